"""The reading side of a log: positions, rows, bytes and times, over the list and its history. Pure.

``load`` returns the children of a reference into the history; it is called only for chunks that an answer really needs, and never for the
tail. A view is one snapshot: read the log again to see more of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from bk_core.errors import InvalidArgumentError, LogDataLossError
from bk_core.protocol.log.history import Item, Load, counts, find, no_history, pieces, segments_of
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import HistoryRef, LogProperties, Segment


class LogView:
    """A snapshot of a log; ``version`` is that of its stored list, -1 if unknown.

    A method that needs the history raises the error of ``load`` when it cannot be read.
    """

    def __init__(self, listed: LedgerList, load: Load = no_history, version: int = -1) -> None:
        self.listed = listed
        self.version = version
        self.load = load

    def __repr__(self) -> str:
        return f"LogView({self.log_id}, segments {self.listed.trimmed_seq}..{self.next_seq - 1})"

    # --- ends ---------------------------------------------------------------------------------------------------------

    @property
    def log_id(self) -> str:
        return self.listed.log_id

    @property
    def properties(self) -> LogProperties:
        return self.listed.properties

    @property
    def next_seq(self) -> int:
        return self.listed.next_seq

    @property
    def live_segments(self) -> tuple[Segment, ...]:
        return self.listed.live_segments

    @property
    def first_position(self) -> Position:
        return self.normal(Position(self.listed.trimmed_seq))

    @property
    def end_position(self) -> Position:
        """The position after the last committed entry, before any live segment."""
        return self.listed.end_position

    # --- segments -----------------------------------------------------------------------------------------------------

    def segment(self, seq: int) -> Segment:
        """Return a segment. Raises LogDataLossError if it was trimmed; InvalidArgumentError if it does not exist yet."""
        listed = self.listed
        self._refuse_trimmed(seq)
        if seq >= listed.next_seq:
            raise InvalidArgumentError(f"segment {seq} does not exist; the log ends before segment {listed.next_seq}")
        if seq >= listed.tail_seq:
            return listed.segments[seq - listed.tail_seq]
        return find(listed.history, seq, self.load)

    def segments(self, first_seq: int = 0, last_seq: int | None = None) -> Iterator[Segment]:
        """Yield the segments ``first_seq .. last_seq`` (inclusive) that are left, in order; the history is loaded chunk by chunk."""
        last = self.next_seq - 1 if last_seq is None else last_seq
        return segments_of(self.listed.items, max(first_seq, self.listed.trimmed_seq), last, self.load)

    def named(self, ledger_ids: Collection[int]) -> frozenset[int]:
        """Return those of these ledgers that the log lists, as data or as history."""
        return self.listed.named(ledger_ids, self.load)

    def mentioned(self, ledger_ids: Collection[int]) -> frozenset[int]:
        """Return those of these ledgers that the log lists, or still has to read in order to delete what a trim has dropped."""
        return self.listed.mentioned(ledger_ids, self.load)

    # --- positions ----------------------------------------------------------------------------------------------------

    def normal(self, position: Position) -> Position:
        """Return the one spelling of a position: the end of an entry, and of a closed segment, is the start of the next; entry 0 is the
        first.

        Raises LogDataLossError if it lies before the first segment that is left. Offsets are compared as text, so the spelling matters.
        """
        seq, entry, row = position.seq, position.entry, position.row
        self._refuse_trimmed(seq)
        next_seq = self.next_seq
        while seq < next_seq:
            segment = self.segment(seq)
            if entry < segment.first_entry_id:
                entry, row = segment.first_entry_id, 0
            if row:
                rows = segment.rows_in(entry)
                if rows is not None and row >= rows:
                    entry, row = entry + 1, 0
            if segment.last_entry_id is None or entry <= segment.last_entry_id:
                break
            seq, entry, row = seq + 1, 0, 0
        return position if (seq, entry, row) == (position.seq, position.entry, position.row) else Position(seq, entry, row)

    def refuse_beyond(self, position: Position, name: str) -> None:
        """Raise InvalidArgumentError for a position that no reader of this log has reached: behind its end, or behind the end of a closed
        segment. A live segment may grow. A segment without entries may have lost them (``write_off``), so any position in it is taken."""
        seq, entry = position.seq, position.entry
        if (seq, entry) > (self.next_seq, 0):
            where = f"the end of log {name!r}, which is segment {self.next_seq}, entry 0"
        elif self.listed.trimmed_seq <= seq < self.next_seq and (segment := self.segment(seq)).entries and entry > segment.after_entry:
            where = f"the end of segment {seq} of log {name!r}, whose last entry is {segment.last_entry_id}"
        else:
            return
        raise InvalidArgumentError(f"segment {seq}, entry {entry} lies beyond {where}", log=name)

    def counts_before(self, position: Position) -> tuple[int, int]:
        """Return the cumulative (rows, bytes) before ``position`` since the log was created.

        Rows are exact. Bytes are exact at segment ends, and shared out evenly inside. Entries of a live segment are not counted yet.
        """
        position = self.normal(position)
        rows, size = counts(self.listed.items, position.seq, self.load)
        rows, size = rows + (self.listed.head_rows or 0), size + (self.listed.head_bytes or 0)
        if position.seq < self.next_seq:
            segment = self.segment(position.seq)
            if not segment.live:
                part_rows, part_size = segment.counts_before(position.entry, position.row)
                rows, size = rows + part_rows, size + part_size
        return rows, size

    def position_at_rows(self, start: Position, rows: int | None, size: int | None) -> Position:
        """Return the farthest committed position with at most ``rows`` rows and ``size`` bytes between it and ``start``, for admission.

        It may cut inside an entry. At least one row is admitted if there is one (one entry where rows per entry are not known), because a
        small limit would stop a stream for ever. Chunks of history that fit are not loaded. Raises InvalidArgumentError for a negative
        limit.
        """
        if (rows is not None and rows < 0) or (size is not None and size < 0):
            raise InvalidArgumentError(f"limits must not be negative: {rows} rows, {size} bytes")
        here, end = self.normal(start), self.end_position
        if here >= end:
            return here
        found = self._advance(here, _Budget(rows, size))
        if found == here:
            segment = self.segment(here.seq)
            found = segment.position_after(segment.units_before(here.entry, here.row) + 1)
        return self.normal(found)

    def _advance(self, here: Position, budget: _Budget) -> Position:
        segment = self.segment(here.seq)
        done = segment.units_before(here.entry, here.row)
        spent = segment.counts_of(done)
        units = segment.units_within(*budget.beyond(spent))
        if units < segment.units:
            return segment.position_after(units)
        budget.spend(segment.rows - spent[0], segment.bytes - spent[1])
        return self._advance_over(pieces(self.listed.items, here.seq + 1, self.load), budget) or self.end_position

    def _advance_over(self, items: Iterable[Item], budget: _Budget) -> Position | None:
        """Return the position among ``items`` at which the budget ends, or None if it outlasts them."""
        for item in items:
            if isinstance(item, Segment) and item.live:
                return None
            if budget.spend(item.rows, item.bytes):
                continue
            if isinstance(item, HistoryRef):
                return self._advance_over(self.load(item), budget)
            return item.position_after(item.units_within(*budget.left))
        return None

    def position_of_entry(self, ledger_id: int, entry_id: int) -> Position:
        """The position of an entry of a ledger. An entry that no segment lists stands for the next one of that ledger that is listed, or
        for what follows the last. LogDataLossError if no segment that is left names the ledger.
        """
        last: Segment | None = None
        for segment in self._segments_naming(ledger_id):
            last = segment
            if segment.live or (segment.last_entry_id is not None and entry_id <= segment.last_entry_id):
                return self.normal(Position(segment.seq, max(entry_id, segment.first_entry_id)))
        if last is None:
            trimmed = self.listed.trimmed_seq
            message = f"ledger {ledger_id} is not in the log, or was trimmed; the log now starts at segment {trimmed}"
            raise LogDataLossError(message, ledger=ledger_id)
        return self.normal(Position(last.seq + 1))

    def _segments_naming(self, ledger_id: int) -> Iterator[Segment]:
        found = _naming(self.listed.items, ledger_id, self.load)
        return (segment for segment in found if segment.seq >= self.listed.trimmed_seq)

    def position_at_time(self, ms: int) -> Position | None:
        """Return the first position of the first segment committed at ``ms`` or later; None if there is none.

        A live segment is not committed yet, so it always counts.
        """
        items: Iterable[Item] = pieces(self.listed.items, self.listed.trimmed_seq, self.load)
        while True:
            item = next((item for item in items if _committed_since(item, ms)), None)
            if item is None:
                return None
            if isinstance(item, Segment):
                return self.normal(Position(item.seq))
            items = self.load(item)

    def _refuse_trimmed(self, seq: int) -> None:
        first = self.listed.trimmed_seq
        if seq < first:
            raise LogDataLossError(f"segment {seq} was trimmed; the log now starts at segment {first}", seq=seq)


class _Budget:
    """The rows and bytes that may still be admitted; None means unlimited."""

    __slots__ = ("left",)

    def __init__(self, rows: int | None, size: int | None) -> None:
        self.left = (rows, size)

    def beyond(self, spent: tuple[int, int]) -> tuple[int | None, int | None]:
        rows, size = self.left
        return None if rows is None else rows + spent[0], None if size is None else size + spent[1]

    def spend(self, rows: int, size: int) -> bool:
        """Take both and return True, or take neither."""
        left_rows, left_size = self.left
        if (left_rows is not None and rows > left_rows) or (left_size is not None and size > left_size):
            return False
        self.left = (None if left_rows is None else left_rows - rows, None if left_size is None else left_size - size)
        return True


def _naming(items: Iterable[Item], ledger_id: int, load: Load) -> Iterator[Segment]:
    for item in items:
        if isinstance(item, HistoryRef):
            if item.min_ledger <= ledger_id <= item.max_ledger:
                yield from _naming(load(item), ledger_id, load)
        elif item.ledger_id == ledger_id:
            yield item


def _committed_since(item: Item, ms: int) -> bool:
    if isinstance(item, HistoryRef):
        return item.last_ms >= ms
    return item.live or item.committed_at_ms >= ms
