"""The order in which the replicas of an entry are asked (RD-2), and the figures that put slow and failing bookies last
(metadata.md 5.7)."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from enum import IntEnum
from typing import NamedTuple

from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.wire.messages import Status

RECENT_NS = 60_000_000_000


class Standing(IntEnum):
    """The standing of a bookie. Bookies of a better one are asked first."""

    HEALTHY = 0
    FAILED = 1
    READ_ONLY = 2
    SLOW = 3
    UNREGISTERED = 4


class Rank(NamedTuple):
    """The sort key of a bookie: its standing, and among those that failed the time of the last failure, the earlier the better."""

    standing: Standing
    failed_at_ns: int = 0


HEALTHIEST = Rank(Standing.HEALTHY)


def everybody_healthy(bookie: BookieId) -> Rank:
    """Return the rank without any figures, which leaves the order of the write set."""
    return HEALTHIEST


class ReplicaOrder:
    """The order for the reads of one handle (RD-2). ``start`` is the sticky position, which the caller draws at random. With None, or with
    striping, there is none.

    ``rank`` is asked again for each entry. The machines of one handle share one order, so that all of them move on from a bookie that
    failed.
    """

    def __init__(self, distribution: Distribution, start: int | None = None, rank: Callable[[BookieId], Rank] = everybody_healthy) -> None:
        self._distribution = distribution
        sticky = start is not None and not distribution.striped
        self._sticky = start % distribution.ensemble_size if sticky and start is not None else None
        self._rank = rank

    @property
    def sticky(self) -> int | None:
        """The position asked first, or None."""
        return self._sticky

    def positions(self, entry_id: int, ensemble: Sequence[BookieId], turn: int = 0) -> list[int]:
        """Return the write set of ``entry_id``, best replica first. These are positions and never bookies, because a bookie may stand twice
        in an old ensemble (scenario 60). With a sticky order, it begins ``turn`` positions behind the preferred one."""
        order = self._natural(entry_id, turn)
        ranks = {position: self._rank(ensemble[position]) for position in order}
        return sorted(order, key=ranks.__getitem__)  # stable, so equals keep their place

    def first(self, entry_id: int, ensemble: Sequence[BookieId], turn: int, tried: Container[int]) -> int | None:
        """Return the first of ``positions`` that is not ``tried``."""
        order = [position for position in self._natural(entry_id, turn) if position not in tried]
        if order and self._rank(ensemble[order[0]]) == HEALTHIEST:  # then no other one goes before it
            return order[0]
        return min(order, key=lambda position: self._rank(ensemble[position]), default=None)

    def _natural(self, entry_id: int, turn: int) -> list[int]:
        if self._sticky is None:
            return list(self._distribution.write_set(entry_id))
        size = self._distribution.ensemble_size
        return [(self._sticky + turn + k) % size for k in range(size)]

    def failed(self, position: int) -> None:
        """Note a read error: it moves the sticky position behind the one that failed, so two errors of one bookie move it once (RD-2)."""
        if self._sticky is not None:
            self._sticky = (position + 1) % self._distribution.ensemble_size


class ReadHistory:
    """The outcomes of recent reads at each bookie. The world feeds it and tells the time (SM-4)."""

    def __init__(self, slow_ns: int, recent_ns: int = RECENT_NS) -> None:
        self._slow_ns = slow_ns
        self._recent_ns = recent_ns
        self._failed: dict[BookieId, int] = {}
        self._slow: dict[BookieId, int] = {}

    def note(self, bookie: BookieId, status: Status, elapsed_ns: int, now_ns: int) -> None:
        """Note that one read was answered or given up. Denials count as good answers here, because a striped or late bookie may rightly
        lack an entry."""
        if status is Status.TIMEOUT or elapsed_ns >= self._slow_ns:
            self._slow[bookie] = now_ns
        elif status in (Status.OK, Status.NO_ENTRY, Status.NO_LEDGER):
            self._slow.pop(bookie, None)
            self._failed.pop(bookie, None)
        else:
            self._failed[bookie] = now_ns

    def rank(self, bookie: BookieId, now_ns: int, *, readonly: bool = False, registered: bool = True) -> Rank:
        if not registered:
            return Rank(Standing.UNREGISTERED)
        if self._is_recent(self._slow.get(bookie), now_ns):
            return Rank(Standing.SLOW)
        if readonly:
            return Rank(Standing.READ_ONLY)
        failed_at = self._failed.get(bookie)
        if failed_at is not None and self._is_recent(failed_at, now_ns):
            return Rank(Standing.FAILED, failed_at)
        return HEALTHIEST

    def _is_recent(self, at_ns: int | None, now_ns: int) -> bool:
        return at_ns is not None and now_ns - at_ns < self._recent_ns
