"""Decides if the emptying of a bookie goes on, waits or ends (RR-14). It keeps no state."""

from __future__ import annotations

from enum import Enum, auto


class DrainStep(Enum):
    REPAIR = auto()  # make a round over the ledgers that were found
    WAIT = auto()  # wait a moment, then look again
    END = auto()


def after_look(*, rounds: int, named: int, changed: bool, left_s: float) -> DrainStep:
    """Return the next step after a look at all ledgers, of which ``named`` name the bookie (RR-14).

    ``rounds`` rounds over such ledgers were begun so far, ``changed`` is True if the last one moved something, and ``left_s`` is the rest
    of the caller's time. One round is always made. After it the time counts, whatever moves: writers that go on using the bookie would keep
    every round busy for ever. The end comes after a look, never after a round, so that the report is what the metadata says afterwards.
    """
    if not named or (rounds and left_s <= 0):
        return DrainStep.END
    return DrainStep.REPAIR if changed or not rounds else DrainStep.WAIT
