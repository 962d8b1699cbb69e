"""The options of a reader: how replicas are asked (RD-3..RD-5), how tails poll (LC-6), and what is shown during a recovery."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from bk_core.arguments import check_fields


class ReadMode(Enum):
    """SEQUENTIAL asks one replica after the other (RD-3); PARALLEL asks all Qw at once and takes the first good answer (RD-5)."""

    SEQUENTIAL = auto()
    PARALLEL = auto()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The way in which one handle reads.

    ``speculative``: while an operation is incomplete, ask another replica after ``Limits.speculative_read_ns``, doubled each time (RD-4).
    ``sticky``: without striping all reads prefer one bookie, which moves on when it fails (RD-2).
    ``spread``: the parts of a long sticky read begin at one replica after the other, so that all of them work at it. A turn is hundreds of
    entries at least: a bookie that must read from its disk reads some entries ahead, which is wasted on one that is not asked for them.
    ``parallel_polls``: long polls go to all E bookies at once; else one after the other with speculative follow-ups (LC-6).
    ``hold_back_in_recovery``: while somebody recovers the ledger, nothing above the last LAC seen before is shown until the ledger is
    CLOSED. A recoverer that stamps its own advancing LAC into what it writes back, as Apache's Java client does, may tell bookies a LAC
    that ends up above the ledger's end (D6); a reader that believed it would see an entry that then vanishes. It costs latency only, and
    only during recoveries. A handle opened during a recovery has seen no LAC before it and shows what lies before the last fragment.
    ``rotation``: without striping, the position asked first (modulo E) instead of a random one: readers that share a ledger, like the
    tasks of one job, spread over its bookies by taking different rotations.
    ``watch_closed``: watch the metadata of CLOSED ledgers too, so that reads follow re-replication at once and not after a failure (OP-6).
    """

    mode: ReadMode = ReadMode.SEQUENTIAL
    speculative: bool = True
    sticky: bool = True
    spread: bool = True
    parallel_polls: bool = True
    hold_back_in_recovery: bool = True
    watch_closed: bool = False
    rotation: int | None = None

    def __post_init__(self) -> None:
        """Check the options; raise InvalidArgumentError."""
        check_fields(self, {}, ReadMode)
