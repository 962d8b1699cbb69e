"""When emptying a bookie goes on, waits or ends (RR-14). No state."""

from __future__ import annotations

from enum import Enum, auto


class DrainStep(Enum):
    REPAIR = auto()  # a round over the ledgers that were found
    WAIT = auto()  # a moment, then look again
    END = auto()


def after_look(*, rounds: int, named: int, changed: bool, left_s: float) -> DrainStep:
    """RR-14: what follows a look at all ledgers, ``named`` of which name the bookie.

    ``rounds`` over named ledgers were begun so far, ``changed`` says whether the last one moved something, ``left_s`` is what is left of
    the caller's time. One round is always made. After it the time counts, whatever moves: writers that go on using the bookie would keep
    every round busy, for ever. The end comes after a look, never after a round: what is reported is what the metadata says afterwards.
    """
    if not named or (rounds and left_s <= 0):
        return DrainStep.END
    return DrainStep.REPAIR if changed or not rounds else DrainStep.WAIT
