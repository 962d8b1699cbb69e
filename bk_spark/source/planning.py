"""Divides ranges of entries into tasks. Pure.

Large ranges are cut at fragment boundaries (another ensemble means other bookies), then evenly by bytes; small neighbours are packed
together, because a task costs about 70 ms (spark-connectors.md 5.14, no. 11). A limit of rows, or more tasks than there are entries, cuts
inside entries: two tasks then read one entry and take different rows of it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise

from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import Segment
from bk_core.protocol.log.view import LogView
from bk_spark.entries.ranges import EntryRange
from bk_spark.source.bounds import ENTRY, LEDGER, NO_BOUNDS, OFFSET, TIMESTAMP, Bounds

_NEAR = 16  # a share of the bytes may be off by this part of itself if that spares opening a ledger twice


Boundaries = Callable[[int], Sequence[int]]
"""Returns the first entry ids of the fragments of a ledger."""


# --- ranges to read -----------------------------------------------------------------------------------------------------


def committed_ranges(view: LogView, start: Position, end: Position, log: str | None = None, bounds: Bounds = NO_BOUNDS) -> list[EntryRange]:
    """Return the committed rows at positions ``start <= p < end``, in log order, without those that ``bounds`` rules out."""
    if start >= end or not bounds.allows_log(log):
        return []
    start, end = _narrowed(view, start, end, bounds)
    ranges: list[EntryRange] = []
    before = view.counts_before(Position(start.seq))[0]
    for segment in view.segments(start.seq, end.seq):
        r = None if segment.live else _range_of(segment, start, end, log, before)
        ranges += [] if r is None else bounded(r, bounds)
        before += segment.rows
    return ranges


def _narrowed(view: LogView, start: Position, end: Position, bounds: Bounds) -> tuple[Position, Position]:
    """Return the positions without the history that row numbers or times rule out, so that it is not even loaded."""
    since, _ = bounds.interval(TIMESTAMP).ends()
    if since is not None:
        start = max(start, view.position_at_time(since) or end)
    low, high = bounds.interval(OFFSET).ends()
    if low is None and high is None:
        return start, end
    done = view.counts_before(start)[0]
    if low is not None and low > done and start < end:
        start = view.position_at_rows(start, low - done, None)
        done = view.counts_before(start)[0]
    if high is not None and start < end:
        end = min(end, view.position_at_rows(start, high + 1 - done, None)) if high >= done else start
    return start, end


def _range_of(segment: Segment, start: Position, end: Position, log: str | None, before: int) -> EntryRange | None:
    """Return the range of a segment. ``before`` is the number of rows of the log before it."""
    assert segment.last_entry_id is not None
    first, skip = segment.first_entry_id, 0
    if segment.seq == start.seq and start.entry >= first:
        first, skip = start.entry, start.row
    last, last_rows = segment.last_entry_id, None
    if segment.seq == end.seq and end.entry <= last:
        last, last_rows = (end.entry, end.row) if end.row else (end.entry - 1, None)
    if first > last or (first == last and last_rows is not None and skip >= last_rows):
        return None
    through = segment.units_before(last + 1, 0) if last_rows is None else segment.units_before(last, last_rows)
    rows_before, bytes_before = segment.counts_of(segment.units_before(first, skip))
    rows_after, bytes_after = segment.counts_of(through)
    known = segment.rows_per_entry > 0
    return EntryRange(
        segment.ledger_id,
        first,
        last,
        bytes_after - bytes_before,
        skip_rows=skip,
        last_rows=last_rows,
        rows=rows_after - rows_before if known else None,
        rows_per_entry=segment.rows_per_entry,
        schema_id=segment.schema_id,
        log=log,
        seq=segment.seq,
        offset=before + rows_before if known else None,
        committed_at_ms=segment.committed_at_ms,
    )


def bounded(r: EntryRange, bounds: Bounds) -> list[EntryRange]:
    """Return the part of a range that ``bounds`` allows, as a list of none or one."""
    if not bounds.allows_log(r.log) or not bounds.interval(LEDGER).meets(r.ledger_id, r.ledger_id):
        return []
    if r.committed_at_ms is not None and not bounds.interval(TIMESTAMP).meets(r.committed_at_ms, r.committed_at_ms):
        return []
    wanted = bounds.interval(ENTRY)
    first, last = wanted.clipped(r.first, r.last)
    if first > last or not wanted.meets(first, last):
        return []
    if (first, last) != (r.first, r.last):
        r = r.part(r.units_before(first), r.units if last == r.last else r.units_before(last + 1))
    return _bounded_by_offset(r, bounds)


def _bounded_by_offset(r: EntryRange, bounds: Bounds) -> list[EntryRange]:
    if r.offset is None or r.rows is None or OFFSET not in bounds.intervals:
        return [r]
    wanted = bounds.interval(OFFSET)
    low, high = wanted.clipped(r.offset, r.offset + r.rows - 1)
    if low > high or not wanted.meets(low, high):
        return []
    return [r.part(low - r.offset, high + 1 - r.offset)]


# --- tasks --------------------------------------------------------------------------------------------------------------


def plan(
    ranges: Iterable[EntryRange], bytes_max: int, min_partitions: int, boundaries: Boundaries, rows_max: int | None = None
) -> list[tuple[EntryRange, ...]]:
    """Return tasks in log order; every row is in exactly one of them. ``boundaries`` is called only for ledgers of which more than a task
    is read.

    No task has more than ``rows_max`` rows, where they are known, or more than ``bytes_max`` bytes, unless a single entry is larger. There
    are at least ``min_partitions`` tasks if there are as many rows. Where ``min_partitions`` alone decides, they have about as many bytes
    each, because a task that waits for another core to be free would double the time of two that do not.
    """
    given = list(ranges)
    total = sum(r.bytes for r in given)
    target = max(1, min(bytes_max, -(-total // min_partitions)))
    fragments = cache(boundaries)
    if rows_max is None and target < bytes_max and (shares := _shares(given, min_partitions, bytes_max, fragments)) is not None:
        return _at_least(shares, min_partitions)
    return _at_least(_filled(given, target, fragments, rows_max), min_partitions)


def _shares(ranges: Sequence[EntryRange], count: int, bytes_max: int, boundaries: Boundaries) -> list[tuple[EntryRange, ...]] | None:
    """Return at most ``count`` tasks, cut at entries where the bytes before come to 1/count, 2/count, ... of all, or at the end of a range
    that lies close by. The result is None where that would not do: a fragment begins within what is cut, or entries are too large."""
    ends = list(accumulate((r.bytes for r in ranges), initial=0))
    total = ends[-1]
    near = total // (_NEAR * count)
    cuts: list[tuple[int, int]] = [(0, 0)]  # the index of a range, and its units before the cut
    for number in range(1, count):
        edge = total * number // count
        index = bisect_right(ends, edge) - 1
        if edge - ends[index] <= near:
            cuts.append((index, 0))
        elif ends[index + 1] - edge <= near:
            cuts.append((index + 1, 0))
        else:
            r = ranges[index]
            if any(r.first < entry <= r.last for entry in boundaries(r.ledger_id)):
                return None
            cuts.append((index, r.units_before(r.first + round(r.entries * (edge - ends[index]) / r.bytes))))
    tasks = [_between(ranges, start, end) for start, end in pairwise([*cuts, (len(ranges), 0)])]
    if any(len(task) > 1 and sum(r.bytes for r in task) > bytes_max for task in tasks):
        return None
    return [task for task in tasks if task]


def _between(ranges: Sequence[EntryRange], start: tuple[int, int], end: tuple[int, int]) -> tuple[EntryRange, ...]:
    """Return the part between two cuts."""
    found: list[EntryRange] = []
    for index in range(start[0], min(end[0] + 1, len(ranges))):
        r = ranges[index]
        low = start[1] if index == start[0] else 0
        high = end[1] if index == end[0] else r.units
        if low == 0 and high == r.units and r.units:
            found.append(r)
        elif low < high:
            found.append(r.part(low, high))
    return tuple(found)


def _filled(ranges: Sequence[EntryRange], target: int, boundaries: Boundaries, rows_max: int | None) -> list[tuple[EntryRange, ...]]:
    """Return tasks that are filled up to ``target`` bytes and ``rows_max`` rows, one after the other."""
    tasks: list[tuple[EntryRange, ...]] = []
    current: list[EntryRange] = []
    size = rows = 0
    for piece, begins_fragment in _pieces(ranges, target, boundaries, rows_max):
        piece_rows = piece.rows or 0
        full = size + piece.bytes > target or (rows_max is not None and rows + piece_rows > rows_max)
        if current and (full or (begins_fragment and 4 * size >= target)):
            tasks.append(tuple(current))
            current, size, rows = [], 0, 0
        current.append(piece)
        size, rows = size + piece.bytes, rows + piece_rows
    if current:
        tasks.append(tuple(current))
    return tasks


def _pieces(ranges: Sequence[EntryRange], target: int, boundaries: Boundaries, rows_max: int | None) -> Iterator[tuple[EntryRange, bool]]:
    """Yield pieces no larger than a task, each with True if a fragment begins with it."""
    for stretch in _stretches(ranges):
        starts: list[int] = []
        if sum(r.bytes for r in stretch) > target:
            starts = sorted(boundaries(stretch[0].ledger_id))
        for r in stretch:
            for fragment in _cut_at(r, starts):
                for piece in _cut_evenly(fragment, target, rows_max):
                    yield piece, piece.first in starts and not piece.skip_rows


def _stretches(ranges: Sequence[EntryRange]) -> Iterator[list[EntryRange]]:
    """Yield consecutive ranges of one ledger; the micro-batches of one worker lie next to each other."""
    stretch: list[EntryRange] = []
    for r in ranges:
        if stretch and stretch[0].ledger_id != r.ledger_id:
            yield stretch
            stretch = []
        stretch.append(r)
    if stretch:
        yield stretch


def _cut_at(r: EntryRange, starts: Sequence[int]) -> list[EntryRange]:
    if not any(r.first < entry <= r.last for entry in starts) and r.units:
        return [r]
    edges = [0, *(r.units_before(entry) for entry in starts if r.first < entry <= r.last), r.units]
    return [r.part(low, high) for low, high in zip(edges, edges[1:], strict=False) if low < high]


def _cut_evenly(r: EntryRange, target: int, rows_max: int | None) -> Iterator[EntryRange]:
    count = min(r.entries, max(1, -(-r.bytes // target)))
    if count == 1 and rows_max is None and r.units:
        yield r
        return
    edges = [r.units_before(r.first + r.entries * i // count) for i in range(count)] + [r.units]
    for low, high in zip(edges, edges[1:], strict=False):
        if low < high:
            piece = r if count == 1 else r.part(low, high)
            yield from _parts(piece, -(-piece.rows // rows_max) if rows_max is not None and piece.rows is not None else 1)


def _parts(r: EntryRange, count: int) -> Iterator[EntryRange]:
    """Yield ``count`` parts of nearly as many units each."""
    if count <= 1:
        yield r
        return
    edges = [r.units * i // count for i in range(count + 1)]
    for low, high in zip(edges, edges[1:], strict=False):
        yield r.part(low, high)


def _at_least(tasks: list[tuple[EntryRange, ...]], wanted: int) -> list[tuple[EntryRange, ...]]:
    """Halve the largest tasks until there are ``wanted``, or nothing is left to halve."""
    if len(tasks) >= wanted:
        return tasks
    heap: list[_Placed] = []
    done: list[_Placed] = []
    for index, task in enumerate(tasks):
        _put((index,), task, heap, done)
    while heap and len(heap) + len(done) < wanted:
        _, place, task = heapq.heappop(heap)
        for which, half in enumerate(_halves(task)):
            _put((*place, which), half, heap, done)
    return [task for _, _, task in sorted(heap + done, key=lambda one: one[1])]


_Placed = tuple[float, tuple[int, ...], tuple[EntryRange, ...]]


def _put(place: tuple[int, ...], task: tuple[EntryRange, ...], heap: list[_Placed], done: list[_Placed]) -> None:
    """Put a task into ``heap``, which holds those that can be halved, heaviest first."""
    if _units(task) > 1:
        heapq.heappush(heap, (-_weight(task), place, task))
    else:
        done.append((0.0, place, task))


def _units(task: Sequence[EntryRange]) -> int:
    return sum(r.units for r in task)


def _weight(task: Sequence[EntryRange]) -> float:
    """Return the weight of a task: the bytes, or the number of rows if all its values are empty."""
    return sum(r.bytes for r in task) + _units(task) / 1024


def _halves(task: Sequence[EntryRange]) -> tuple[tuple[EntryRange, ...], tuple[EntryRange, ...]]:
    middle = _units(task) // 2
    first: list[EntryRange] = []
    second: list[EntryRange] = []
    done = 0
    for r in task:
        here = min(max(0, middle - done), r.units)
        if here == r.units:
            first.append(r)
        elif here == 0:
            second.append(r)
        else:
            first.append(r.part(0, here))
            second.append(r.part(here, r.units))
        done += r.units
    return tuple(first), tuple(second)
