"""From ranges of entries to tasks. Pure.

Large ranges are cut at fragment boundaries (another ensemble means other bookies), then evenly by bytes; small neighbours are packed
together, because a task costs about 70 ms (spark-connectors.md 5.14, no. 11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries ``first .. last`` (inclusive) of a ledger and their payload bytes, estimated after a cut.

    ``acknowledged``: every entry is known to be acknowledged (a ledger list says so, or the LAC that planning learned), whatever LAC a
    task's own handle knows.
    """

    ledger_id: int
    first: int
    last: int
    bytes: int
    acknowledged: bool = True

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


Boundaries = Callable[[int], Sequence[int]]
"""First entry ids of the fragments of a ledger."""


def committed_ranges(listed: LedgerList, start: Position, end: Position) -> list[EntryRange]:
    """Committed entries at positions ``start <= p < end``, in log order."""
    ranges: list[EntryRange] = []
    for segment in listed.segments[max(0, start.seq - listed.trimmed_seq) :]:
        if segment.seq > end.seq:
            break
        if segment.last_entry is None:
            continue
        first = max(segment.first_entry, start.entry) if segment.seq == start.seq else segment.first_entry
        last = min(segment.last_entry, end.entry - 1) if segment.seq == end.seq else segment.last_entry
        if first <= last:
            ranges.append(EntryRange(segment.ledger_id, first, last, segment.bytes * (last - first + 1) // segment.entries))
    return ranges


def plan(ranges: Iterable[EntryRange], bytes_max: int, min_partitions: int, boundaries: Boundaries) -> list[tuple[EntryRange, ...]]:
    """Tasks in log order; every entry is in exactly one of them. ``boundaries`` is asked only for ranges that must be cut."""
    joined = _join(ranges)
    total = sum(r.bytes for r in joined)
    target = max(1, min(bytes_max, -(-total // min_partitions)))
    tasks: list[tuple[EntryRange, ...]] = []
    current: list[EntryRange] = []
    size = 0
    for piece in (piece for r in joined for piece in _cut(r, target, boundaries)):
        if current and size + piece.bytes > target:
            tasks.append(tuple(current))
            current, size = [], 0
        current.append(piece)
        size += piece.bytes
    if current:
        tasks.append(tuple(current))
    return tasks


def _join(ranges: Iterable[EntryRange]) -> list[EntryRange]:
    """Neighbouring ranges of one ledger become one: micro-batches of one worker lie next to each other."""
    joined: list[EntryRange] = []
    for r in ranges:
        before = joined[-1] if joined else None
        if before and before.ledger_id == r.ledger_id and before.last + 1 == r.first and before.acknowledged == r.acknowledged:
            joined[-1] = replace(before, last=r.last, bytes=before.bytes + r.bytes)
        else:
            joined.append(r)
    return joined


def _cut(whole: EntryRange, target: int, boundaries: Boundaries) -> list[EntryRange]:
    if whole.bytes <= target:
        return [whole]
    starts = [whole.first, *(b for b in sorted(boundaries(whole.ledger_id)) if whole.first < b <= whole.last), whole.last + 1]
    pieces: list[EntryRange] = []
    for first, after in zip(starts, starts[1:], strict=False):
        pieces.extend(_cut_evenly(_part(whole, first, after - 1), target))
    return pieces


def _cut_evenly(r: EntryRange, target: int) -> list[EntryRange]:
    count = min(r.entries, max(1, -(-r.bytes // target)))
    edges = [r.first + r.entries * i // count for i in range(count + 1)]
    return [_part(r, first, after - 1) for first, after in zip(edges, edges[1:], strict=False)]


def _part(r: EntryRange, first: int, last: int) -> EntryRange:
    low, high = first - r.first, last + 1 - r.first
    return replace(r, first=first, last=last, bytes=r.bytes * high // r.entries - r.bytes * low // r.entries)
