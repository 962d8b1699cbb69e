"""Finds the exact payload bytes at any position of a log, because every entry carries the length of its ledger up to and with itself
(META-10).

The list knows bytes at the ends of segments and shares them out evenly in between (protocol/log/view.py). Here the bytes in between are
looked up, one entry at a time: a limit of bytes is met in O(log n) single reads of entries, and those are remembered. When no replica of an
entry answers, the even share stands in for it. Inside an entry bytes are shared out evenly over its rows, as the cost of a row.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Protocol

from bk_core.client.inspect import intact_header
from bk_core.errors import BkError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import Segment
from bk_core.protocol.log.view import LogView

_REMEMBERED = 4096
_COUNTED = 16


class Lengths(Protocol):
    def up_to(self, ledger_id: int, entry: int) -> int | None:
        """Return the payload bytes of entries 0..entry of a ledger (entry -1: 0); None if that cannot be learned now."""


class EntryLengths:
    """Asks bookies for headers of single entries. It is for one thread at a time."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._known: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._closed: dict[int, Any] = {}

    def up_to(self, ledger_id: int, entry: int) -> int | None:
        if entry < 0:
            return 0
        key = (ledger_id, entry)
        if key not in self._known:
            found = self._ask(ledger_id, entry)
            if found is None:
                return None
            self._known[key] = found
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return self._known[key]

    def _ask(self, ledger_id: int, entry: int) -> int | None:
        try:
            metadata = self._closed.get(ledger_id) or self._client.ledger_metadata(ledger_id)
            if metadata.state is LedgerState.CLOSED:
                self._closed = {ledger_id: metadata}  # neighbours are asked for next
            # This asks the bookie that the first task from here on asks (partitions.py), so that the entries which it reads ahead serve
            # that task.
            header = intact_header(self._client, ledger_id, metadata, entry, rotation=ledger_id)
            return None if header is None else header.length
        except BkError:
            return None


@dataclass(frozen=True, slots=True)
class Measured:
    """A view of a log whose byte counts are exact at every entry."""

    view: LogView
    lengths: Lengths
    _counted: dict[Position, tuple[int, int]] = field(default_factory=dict, repr=False, compare=False)

    def counts_before(self, position: Position) -> tuple[int, int]:
        """Return the cumulative (rows, bytes) before ``position`` since the log was created. A trigger asks about the same few positions
        often."""
        found = self._counted.get(position)
        if found is None:
            found, exact = self._counts_before(position)
            if exact:
                if len(self._counted) >= _COUNTED:
                    self._counted.clear()
                self._counted[position] = found
        return found

    def _counts_before(self, position: Position) -> tuple[tuple[int, int], bool]:
        """Return the counts, and True if they are exact; others are to be asked for again."""
        here = self.view.normal(position)
        rows, size = self.view.counts_before(here)
        if here.seq >= self.view.next_seq:
            return (rows, size), True
        segment = self.view.segment(here.seq)
        if segment.live or (here.entry, here.row) == (segment.first_entry_id, 0):
            return (rows, size), True
        inside = self._inside(segment, here.entry, here.row)
        if inside is None:
            return (rows, size), False
        return (rows, size - segment.counts_before(here.entry, here.row)[1] + inside), True

    def _inside(self, segment: Segment, entry: int, row: int = 0) -> int | None:
        """Return the payload bytes of a segment before ``row`` of ``entry``, never more than the list says it has."""
        base = self.lengths.up_to(segment.ledger_id, segment.first_entry_id - 1)
        here = self.lengths.up_to(segment.ledger_id, entry - 1)
        rows = segment.rows_in(entry) if row else None
        after = self.lengths.up_to(segment.ledger_id, entry) if rows else here
        if base is None or here is None or after is None:
            return None
        return min(segment.bytes, max(0, here - base) + ((after - here) * row // rows if rows else 0))

    def position_at_rows(self, start: Position, rows: int | None, size: int | None) -> Position:
        """Return the farthest position with at most ``rows`` rows and ``size`` bytes between it and ``start``.

        Rows may end inside an entry; bytes end between entries. At least one row is admitted, and of bytes at least one entry.
        """
        here, by_rows = self.view.normal(start), self.view.position_at_rows(start, rows, None)
        if size is None or by_rows <= here:
            return by_rows
        limit = self.counts_before(here)[1] + size
        begin = Position(here.seq)
        there = self.view.position_at_rows(begin, None, max(0, limit - self.view.counts_before(begin)[1]))
        if there.seq > by_rows.seq or there >= self.view.end_position:
            cut = there  # whole segments, whose bytes the list knows
        else:
            cut = self._cut(self.view.segment(there.seq), limit, there)
        if self.view.counts_before(Position(cut.seq))[1] > limit or cut <= here:
            cut = self.view.normal(Position(here.seq, here.entry + 1))
        return min(by_rows, cut)

    def _cut(self, segment: Segment, limit: int, guess: Position) -> Position:
        """Return the last entry of a segment before which the log has at most ``limit`` bytes: by interpolation, halving in turns."""
        target = limit - self.view.counts_before(Position(segment.seq))[1]
        low, high = segment.first_entry_id, segment.first_entry_id + segment.entries
        size_low, size_high = 0, max(1, segment.bytes)
        halve = False
        while high - low > 1:
            wanted = (low + high) // 2 if halve else low + (target - size_low) * (high - low) // max(1, size_high - size_low)
            middle = min(max(wanted, low + 1), high - 1)
            size = self._inside(segment, middle)
            if size is None:
                return Position(guess.seq, guess.entry)
            if size <= target:
                low, size_low = middle, size
            else:
                high, size_high = middle, size
            halve = not halve
        return Position(segment.seq, low)
