"""Asks again while the bookies that may have an entry cannot be reached (RD-13)."""

from __future__ import annotations

from collections.abc import Iterable

from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import Status

# No answer in time says as little about an entry as a bookie that cannot be asked.
SILENT = frozenset({Status.UNAVAILABLE, Status.TIMEOUT})
DENIALS = frozenset({Status.NO_ENTRY, Status.NO_LEDGER})


def only_unreachable(statuses: Iterable[Status | None], *, denials_count: bool) -> bool:
    """Return True if some bookie could not be reached, and the others gave nothing better than silence, or a denial if denials count
    (RD-13).

    None stands for a bad copy, which is never silence (RD-8).
    """
    harmless = SILENT | DENIALS if denials_count else SILENT
    said = list(statuses)
    return Status.UNAVAILABLE in said and all(status in harmless for status in said)


class Unreachable:
    """The patience of one operation. Times are monotonic nanoseconds."""

    __slots__ = ("_first_ns", "_last_ns", "_now_ns", "_patience_ns", "_pause_ns", "_since_ns")

    def __init__(self, limits: Limits) -> None:
        self._patience_ns = limits.unreachable_ns
        self._first_ns, self._last_ns = limits.read_again_ns, limits.read_again_ns_max
        self._pause_ns = self._first_ns
        self._since_ns: int | None = None
        self._now_ns = 0

    @property
    def waits(self) -> bool:
        """True from the first failure on, until something was answered."""
        return self._since_ns is not None

    @property
    def patience_s(self) -> float:
        return self._patience_ns / 1e9

    def failed(self, now_ns: int) -> int | None:
        """Note that nobody could be reached. Return the time to wait before asking again, at least 1 ns, or None if the
        patience is over."""
        if self._since_ns is None:
            self._since_ns = now_ns
        self._now_ns = now_ns
        left = self._since_ns + self._patience_ns - now_ns
        if left <= 0:
            return None
        pause, self._pause_ns = self._pause_ns, min(2 * self._pause_ns, self._last_ns)
        return max(1, min(pause, left))

    def answered(self) -> None:
        """Note that somebody answered, so that the whole patience is available again."""
        self._since_ns, self._pause_ns = None, self._first_ns

    def __str__(self) -> str:
        """Return a text for the end of a message; it is empty where nothing was asked again."""
        if self._since_ns is None or self._now_ns <= self._since_ns:
            return ""
        return f"; asked again for {(self._now_ns - self._since_ns) / 1e9:.1f} s"
