"""The findings of an x-ray, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.xray.stretches import EntryState, Stretches
from bk_core.protocol.wire.messages import Status

JUDGED = frozenset(EntryState) - {EntryState.GOOD, EntryState.LISTED}


@dataclass(frozen=True, slots=True)
class BookieXray:
    """One bookie of the ledger. ``lac`` is the last add confirmed that it tells, ``last_entry_id`` the highest entry that it has; None
    where it tells none. ``lists`` is True if it gave a list of its entries. ``silent`` is the reason why it was given up."""

    bookie: BookieId
    registered: bool
    lac: int | None = None
    last_entry_id: int | None = None
    lists: bool = False
    silent: Status | None = None


@dataclass(frozen=True, slots=True)
class ReplicaXray:
    """The copies at one position of a fragment, of the entries ``first_entry_id`` to ``last_entry_id`` that the position holds.

    ``decided`` is False in the last fragment of a ledger that is not CLOSED: its writer, or who recovers it, may still send what is
    missing.
    """

    first_entry_id: int
    last_entry_id: int
    position: int
    bookie: BookieId
    decided: bool
    stretches: Stretches

    def is_problem(self, state: EntryState) -> bool:
        """Return True if a copy in this state is in need of repair. What is missing where nothing is decided is none."""
        return state in JUDGED and (self.decided or state is not EntryState.MISSING)


@dataclass(frozen=True, slots=True)
class XrayResult:
    """The result of the machine. ``last`` is the last entry that was looked for, ``lac`` the last add confirmed that is known."""

    first: int
    last: int
    lac: int
    bookies: tuple[BookieXray, ...]
    replicas: tuple[ReplicaXray, ...]
