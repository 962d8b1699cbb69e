"""The decisions of a ledger's opener about its writer. Every default is the behaviour that replication-protocol.md recommends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class EnsembleChangeMode(Enum):
    """The reaction to a bookie's failure (EC-3)."""

    IMMEDIATE = auto()  # it is replaced now
    DELAYED = auto()  # it is replaced once an entry cannot reach its ack quorum otherwise, or when it turned read-only
    DISABLED = auto()  # it is never replaced; what it failed to take is sent to it again


class ChangeWindow(Enum):
    """The entries that may be committed while the metadata of an ensemble change is on its way (EC-8, D8)."""

    BLOCK = auto()  # nothing
    SURVIVORS = auto()  # what has its quorum without the departing bookies


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Durations in nanoseconds.

    ``window``: None means BLOCK, and SURVIVORS for a ledger with guaranteed write quorum (D8, G-6).
    ``close_in_recovery``: a fenced writer closes the ledger at its own end instead of leaving that to the recoverer (D1).
    ``caller_ids``: ``append`` takes entry ids in any order (WR-2).
    ``deferred_sync``: bookies acknowledge before durability and the LAC moves by ``force`` only (WR-17).
    ``quorum_timeout_ns``: an entry that is not acknowledged so long after it was first sent ends the writing (WR-14).
    ``busy_resends_max``: so often entries are sent again to a bookie that has too many requests before it counts as failed (WR-6).
    ``fault_domains_min``: acknowledging bookies must span so many domains (WR-7, ``placement.domain_of``).
    """

    ensemble_change: EnsembleChangeMode = EnsembleChangeMode.IMMEDIATE
    window: ChangeWindow | None = None
    close_in_recovery: bool = False
    caller_ids: bool = False
    deferred_sync: bool = False
    quorum_timeout_ns: int | None = None
    busy_resends_max: int = 0
    fault_domains_min: int = 1
