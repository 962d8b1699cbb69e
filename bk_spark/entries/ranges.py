"""Ranges of entries of one ledger, which may begin and end inside an entry. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bk_core.protocol.log.segments import SegmentRange


@dataclass(frozen=True, slots=True)
class EntryRange:
    """Entries ``first .. last`` (inclusive) of a ledger and their payload bytes, estimated after a cut.

    ``acknowledged``: every entry is known to be acknowledged (a ledger list says so, or the LAC that planning learned), whatever LAC a
    task's own handle knows.
    ``skip_rows``: rows of the first entry that are left out. ``last_rows``: rows of the last entry up to which is read, counted from that
    entry's beginning; None is all of them. ``rows``: how many that makes, None if not known. ``rows_per_entry``: of every entry of the
    segment but its last; 0 is not known.
    ``offset``: number of the first row since the log was created. ``committed_at_ms``: when its segment was committed. ``schema_id``: which
    of the log's schemas its entries were written with.
    """

    ledger_id: int
    first: int
    last: int
    bytes: int
    acknowledged: bool = True
    skip_rows: int = 0
    last_rows: int | None = None
    rows: int | None = None
    rows_per_entry: int = 0
    schema_id: int = 0
    log: str | None = None
    seq: int | None = None
    offset: int | None = None
    committed_at_ms: int | None = None

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

    @property
    def units(self) -> int:
        """The number of units that it can be cut into: rows where they are known, else entries."""
        return self.rows if self.rows is not None and self.rows_per_entry else self.entries

    def part(self, start: int, end: int) -> EntryRange:
        """Return the part with the units ``start .. end - 1``."""
        size = self.bytes * end // self.units - self.bytes * start // self.units
        if self.rows is None or not self.rows_per_entry:
            return replace(self, first=self.first + start, last=self.first + end - 1, bytes=size)
        per_entry = self.rows_per_entry
        index, skip = divmod(self.skip_rows + start, per_entry)
        last, last_rows = self.last, self.last_rows
        if end < self.units:
            before, rest = divmod(self.skip_rows + end - 1, per_entry)
            last, last_rows = self.first + before, None if rest + 1 == per_entry else rest + 1
        return replace(
            self,
            first=self.first + index,
            last=last,
            bytes=size,
            skip_rows=skip,
            last_rows=last_rows,
            rows=end - start,
            offset=None if self.offset is None else self.offset + start,
        )

    def units_before(self, entry: int) -> int:
        """Return the number of its units in entries below ``entry``."""
        index = entry - self.first
        if self.rows is None or not self.rows_per_entry:
            return index
        return min(self.rows, max(0, index * self.rows_per_entry - self.skip_rows))


def joined_range(before: SegmentRange, after: SegmentRange) -> SegmentRange | None:
    """Return both as one range, if there is no gap between them and every entry but the last holds the same number of rows."""
    if before.ledger_id != after.ledger_id or before.last_entry_id + 1 != after.first_entry_id:
        return None
    full = before.rows == (before.last_entry_id - before.first_entry_id + 1) * before.rows_per_entry
    single = after.first_entry_id == after.last_entry_id and after.rows <= before.rows_per_entry
    if not full or not (single or after.rows_per_entry == before.rows_per_entry):
        return None
    rows, size = before.rows + after.rows, before.bytes + after.bytes
    return replace(before, last_entry_id=after.last_entry_id, rows=rows, bytes=size)


def note_range(ranges: list[SegmentRange], after: SegmentRange) -> None:
    """Add a range to those before it, joined to the last of them if that makes one range."""
    joined = joined_range(ranges[-1], after) if ranges else None
    if joined is None:
        ranges.append(after)
    else:
        ranges[-1] = joined
