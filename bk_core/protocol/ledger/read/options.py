"""The options of a reader: how replicas are asked (RD-3..RD-5), how tails poll (LC-6), and what is shown during a recovery."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from bk_core.arguments import check_fields, settings


class ReadMode(Enum):
    """SEQUENTIAL asks one replica after the other (RD-3); PARALLEL asks all Qw at once and takes the first good answer (RD-5)."""

    SEQUENTIAL = auto()
    PARALLEL = auto()


@settings
@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The way in which one handle reads."""

    mode: ReadMode = ReadMode.SEQUENTIAL
    """The way in which replicas are asked: one after the other, or all at once."""
    speculative: bool = True
    """With True, another replica is asked while an operation is incomplete, after ``Limits.speculative_read_ns``, doubled each time
    (RD-4)."""
    sticky: bool = True
    """With True, all reads prefer one bookie where nothing is striped, and move on when it fails (RD-2)."""
    spread: bool = True
    """With True, the parts of a long sticky read begin at one replica after the other, so that all of them work at it. A turn is hundreds
    of entries at least: a bookie that must read from its disk reads some entries ahead, which is wasted on one that is not asked for
    them."""
    parallel_polls: bool = True
    """With True, long polls go to all E bookies at once; with False to one after the other, with speculative follow-ups (LC-6)."""
    hold_back_in_recovery: bool = True
    """With True, nothing above the last LAC seen before is shown while somebody recovers the ledger, until it is CLOSED. A recoverer that
    stamps its own advancing LAC into what it writes back, as Apache's Java client does, may tell bookies a LAC that ends up above the
    ledger's end (D6); a reader that believed it would see an entry that then vanishes. It costs latency only, and only during recoveries.
    A handle opened during a recovery has seen no LAC before it and shows what lies before the last fragment."""
    watch_closed: bool = False
    """With True, the metadata of CLOSED ledgers is watched too, so that reads follow re-replication at once and not after a failure
    (OP-6)."""
    rotation: int | None = None
    """The position that is asked first (modulo E) where nothing is striped; None is a random one. Readers that share a ledger, like the
    tasks of one job, spread over its bookies by taking different rotations."""

    def __post_init__(self) -> None:
        """Check the options; raise InvalidArgumentError."""
        check_fields(self, {}, ReadMode)
