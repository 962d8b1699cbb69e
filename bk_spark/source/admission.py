"""Decides how much of the waiting rows a micro-batch takes: rows, bytes, least rows and delay hold together. Pure.

Spark knows no composite limit (spark-connectors.md 5.7), so the conjunction is made here. Several logs share a limit as Kafka's topics do,
in proportion to what waits in each, but exactly: shares add up to the limit, and no log is starved, because each gets a row while there are
enough, and otherwise they take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bk_core.protocol.log.position import Position


class Counted(Protocol):
    """The part of a log's view that admission needs."""

    def counts_before(self, position: Position) -> tuple[int, int]: ...
    def position_at_rows(self, start: Position, rows: int | None, size: int | None, /) -> Position: ...


@dataclass(frozen=True, slots=True)
class Backlog:
    """The part of one log that may be read now: positions ``start <= p < end``."""

    view: Counted
    start: Position
    end: Position

    def waiting(self) -> tuple[int, int]:
        """Return (rows, bytes), which are never negative."""
        return self.between(self.start, self.end)

    def between(self, first: Position, after: Position) -> tuple[int, int]:
        if first >= after:
            return 0, 0
        (rows, size), (rows_before, size_before) = self.view.counts_before(after), self.view.counts_before(first)
        return max(0, rows - rows_before), max(0, size - size_before)

    def reach(self, start: Position, rows: int | None, size: int | None) -> Position:
        """Return the farthest position with at most ``rows`` rows and ``size`` bytes behind ``start``; ``start`` if nothing fits."""
        if start >= self.end or rows == 0:
            return start
        left = self.between(start, self.end)
        if _fits(left[0], rows) and _fits(left[1], size):
            return self.end
        there = self.step(start, rows, size)
        taken = self.between(start, there)
        return there if _fits(taken[0], rows) and _fits(taken[1], size) else start

    def step(self, start: Position, rows: int | None, size: int | None) -> Position:
        """Return the same, but at least one row, because a row that is larger than the limit must not stop a stream for ever."""
        return min(self.end, self.view.position_at_rows(start, rows, size))


def _fits(amount: int, limit: int | None) -> bool:
    return limit is None or amount <= limit


def admit(backlogs: Sequence[Backlog], rows: int | None, size: int | None, turn: int) -> list[Position]:
    """Return the end of each log's part of the next batch. ``turn`` counts triggers, and changes which log comes first.

    Rows are exact: if ``rows`` wait and the bytes allow it, just so many are taken. Bytes are never more than ``size``, except when a
    single row is larger. If a log leaves some of its share, because it has no more or its next row does not fit, the others get it.
    """
    if rows is None and size is None:
        return [backlog.end for backlog in backlogs]
    waiting = [backlog.waiting() for backlog in backlogs]
    row_shares = [None] * len(backlogs) if rows is None else share(rows, [w[0] for w in waiting], turn)
    size_shares = [None] * len(backlogs) if size is None else share(size, [w[1] for w in waiting], turn)
    reached = [b.reach(b.start, r, s) for b, r, s in zip(backlogs, row_shares, size_shares, strict=True)]
    spent = [b.between(b.start, there) for b, there in zip(backlogs, reached, strict=True)]
    rows_spent, size_spent = sum(s[0] for s in spent), sum(s[1] for s in spent)
    for i in _order(range(len(backlogs)), turn):
        rows_left = None if rows is None else max(0, rows - rows_spent)
        size_left = None if size is None else max(0, size - size_spent)
        there = backlogs[i].reach(reached[i], rows_left, size_left)
        if there == reached[i]:
            continue
        now = backlogs[i].between(backlogs[i].start, there)
        rows_spent, size_spent = rows_spent + now[0] - spent[i][0], size_spent + now[1] - spent[i][1]
        reached[i] = there
    if all(b.start >= there for b, there in zip(backlogs, reached, strict=True)):
        for i in _order([i for i, b in enumerate(backlogs) if b.start < b.end], turn)[:1]:
            reached[i] = backlogs[i].step(backlogs[i].start, rows, size)
    return reached


def share(total: int, waiting: Sequence[int], turn: int) -> list[int]:
    """Split ``total`` in proportion to ``waiting``: never more than waits, adding up to min(total, sum of waiting)."""
    if total >= sum(waiting):
        return list(waiting)
    order = _order([i for i, amount in enumerate(waiting) if amount > 0], turn)
    shares = [0] * len(waiting)
    for i in order[:total]:
        shares[i] = 1
    rest = total - sum(shares)
    open_now = [amount - given for amount, given in zip(waiting, shares, strict=True)]
    everything = sum(open_now)
    for i in order:
        shares[i] += rest * open_now[i] // everything
    left = total - sum(shares)
    for i in [i for i in order if shares[i] < waiting[i]][:left]:
        shares[i] += 1
    return shares


def _order(indices: Sequence[int], turn: int) -> list[int]:
    """Return the indices rotated, so that each comes first in its turn."""
    start = turn % len(indices) if indices else 0
    return [*indices[start:], *indices[:start]]


@dataclass(slots=True)
class Delay:
    """``minOffsetsPerTrigger`` with ``maxTriggerDelay``, as Kafka has it: a small batch waits for more rows, but not for longer than the
    delay since the last batch. The first batch of a run does not wait."""

    min_rows: int | None
    max_delay_ms: int
    last_batch_ms: int | None = None

    def holds(self, rows: int, at_ms: int) -> bool:
        """Return True if a batch with ``rows`` waiting rows must wait at ``at_ms`` (a monotonic clock)."""
        if self.min_rows is None or self.last_batch_ms is None or rows >= self.min_rows:
            return False
        return at_ms - self.last_batch_ms < self.max_delay_ms

    def went(self, at_ms: int) -> None:
        """Note that a batch was let through."""
        self.last_batch_ms = at_ms
