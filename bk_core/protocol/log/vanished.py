"""Decides if a writer is gone for certain, and if a ledger that it left may be collected. Pure.

The decision rests on what an intent says of its process, what is seen of that process here, and the age of the intent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

COMMIT_GRACE_MS = 60_000
"""A worker of a query may end between its task and the commit of its batch, which another process makes."""


class Presence(Enum):
    """The state of a process, as far as it can be seen by its number."""

    ABSENT = auto()
    """The kernel says that there is no such process in this process namespace."""
    ENDED = auto()
    """The process has ended and waits for its parent."""
    RUNNING = auto()
    HIDDEN = auto()
    """There is, or may be, such a process, and nobody here may look at it."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place in which numbers of processes have a meaning: a host by its name, its boot and the process namespace. "" means
    not known."""

    host: str
    boot: str


@dataclass(frozen=True, slots=True)
class Seen:
    """``started`` is the start of the process in clock ticks since boot, if it is RUNNING."""

    presence: Presence
    started: int = 0


def certainly_gone(place: Place, started: int, here: Place, seen: Seen) -> bool:
    """Return True if the process that began at ``started`` in ``place`` certainly runs no more (JAN-5). Where that is not certain it
    returns False, and the age decides.

    Cloned machines share the id of their boot, so the host's name counts as well; clones of one running machine that keep its name cannot
    be told apart. A process that is hidden (``hidepid``) is not gone. If the number belongs to a process of another start, it was reused.
    """
    if not _comparable(place, started, here):
        return False
    if seen.presence is Presence.RUNNING:
        return seen.started != started
    return seen.presence in (Presence.ABSENT, Presence.ENDED)


def evidently_lives(place: Place, started: int, here: Place, seen: Seen) -> bool:
    """Return True if this very process is seen here (JAN-5)."""
    return _comparable(place, started, here) and seen == Seen(Presence.RUNNING, started)


def may_be_collected(age_ms: int, min_age_ms: int, *, gone: bool, awaited: bool, grace_ms: int = COMMIT_GRACE_MS) -> bool:
    """Return True if nobody is expected to list the ledger of an intent any more that is ``age_ms`` old, on the metadata store's clock
    (JAN-8).

    An intent of ``min_age_ms`` is old, whoever left it; 0 means every intent, even one whose time lies in the future by the clock. A
    younger one is collected only if its process is ``gone`` for certain: at once if that process lists its ledgers itself, and after
    ``grace_ms`` if another process may list them in a commit that is ``awaited``.
    """
    if min_age_ms == 0 or age_ms >= min_age_ms:
        return True
    return gone and (not awaited or age_ms >= grace_ms)


def _comparable(place: Place, started: int, here: Place) -> bool:
    return bool(place.boot and started) and place == here
