"""Bounds on what a read may give: intervals of ledgers, entries, offsets and times, and names of logs. Pure.

Bounds leave out only what no row can satisfy (``pushdown`` makes them of filters).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

LEDGER, ENTRY, OFFSET, TIMESTAMP, LOG = "ledgerId", "entryId", "offset", "timestamp", "log"


@dataclass(frozen=True, slots=True)
class Interval:
    """Whole numbers ``low .. high`` (inclusive), None is open; with ``among`` only the numbers in it."""

    low: int | None = None
    high: int | None = None
    among: frozenset[int] | None = None

    def meets(self, first: int, last: int | None) -> bool:
        """Return True if a number of ``first .. last`` (None: no end) may be meant."""
        if self.low is not None and last is not None and last < self.low:
            return False
        if self.high is not None and first > self.high:
            return False
        return self.among is None or any(first <= n and (last is None or n <= last) for n in self.among)

    def clipped(self, first: int, last: int) -> tuple[int, int]:
        """Return the part of ``first .. last`` that may be meant: first > last if there is none."""
        low, high = self.ends()
        return first if low is None else max(first, low), last if high is None else min(last, high)

    def ends(self) -> tuple[int | None, int | None]:
        if self.among is None:
            return self.low, self.high
        inside = [n for n in self.among if (self.low is None or n >= self.low) and (self.high is None or n <= self.high)]
        return (min(inside), max(inside)) if inside else (1, 0)

    def narrowed(self, other: Interval) -> Interval:
        lows = [n for n in (self.low, other.low) if n is not None]
        highs = [n for n in (self.high, other.high) if n is not None]
        sets = [s for s in (self.among, other.among) if s is not None]
        among = frozenset.intersection(*sets) if sets else None
        return Interval(max(lows) if lows else None, min(highs) if highs else None, among)


ANY = Interval()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The values that filters allow: intervals by column (times in milliseconds since 1970), and the names of logs, None for all."""

    intervals: Mapping[str, Interval] = field(default_factory=lambda: MappingProxyType({}))
    logs: frozenset[str] | None = None

    def interval(self, column: str) -> Interval:
        return self.intervals.get(column, ANY)

    def allows_log(self, log: str | None) -> bool:
        return self.logs is None or log in self.logs

    def __reduce__(self) -> tuple[Any, ...]:
        return _bounds, (dict(self.intervals), self.logs)


def _bounds(intervals: dict[str, Interval], logs: frozenset[str] | None) -> Bounds:
    return Bounds(MappingProxyType(intervals), logs)


NO_BOUNDS = Bounds()
