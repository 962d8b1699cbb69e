"""The options of a ledger's writer. Every default is what replication-protocol.md recommends."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class EnsembleChangeMode(Enum):
    """The reaction to a bookie's failure (EC-3)."""

    IMMEDIATE = auto()  # the bookie is replaced now
    DELAYED = auto()  # the bookie is replaced once an entry cannot reach its ack quorum otherwise, or when it turned read-only
    DISABLED = auto()  # the bookie is never replaced; entries that it failed to take are sent to it again


class ChangeWindow(Enum):
    """The entries that may be committed while the metadata of an ensemble change is on its way (EC-8, D8)."""

    BLOCK = auto()  # none
    SURVIVORS = auto()  # those that have their quorum without the departing bookies


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """The options; durations are in nanoseconds.

    ``window``: None means BLOCK, and SURVIVORS for a ledger with guaranteed write quorum (D8, G-6).
    ``close_in_recovery``: a fenced writer closes the ledger at its own end instead of leaving that to the recoverer (D1).
    ``caller_ids``: ``append`` takes entry ids in any order (WR-2).
    ``deferred_sync``: bookies acknowledge before durability and the LAC moves by ``force`` only (WR-17).
    ``quorum_timeout_ns``: the writing ends if an entry is not acknowledged for so long after it was first sent (WR-14).
    ``busy_resends_max``: the number of resends to a bookie with too many requests before it counts as failed (WR-6).
    ``fault_domains_min``: the number of domains that acknowledging bookies must span (WR-7, ``placement.domain_of``).
    """

    ensemble_change: EnsembleChangeMode = EnsembleChangeMode.IMMEDIATE
    window: ChangeWindow | None = None
    close_in_recovery: bool = False
    caller_ids: bool = False
    deferred_sync: bool = False
    quorum_timeout_ns: int | None = None
    busy_resends_max: int = 0
    fault_domains_min: int = 1
