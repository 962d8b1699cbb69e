"""Finds the places where the last entries or rows of a log begin. Only its ledger knows how many entries a live segment has."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import Segment

if TYPE_CHECKING:
    from bk_core.client import BookKeeper
    from bk_core.protocol.log.view import LogView


def last_entries(client: BookKeeper, view: LogView, count: int, password: bytes) -> Position:
    """Return the position that has ``count`` entries after it; with fewer in the log its first."""
    return _back(client, view, count, password, lambda segment: (segment.entries, 1))


def last_rows(client: BookKeeper, view: LogView, count: int, password: bytes) -> Position:
    """Return a position that has ``count`` rows after it, or more where nobody keeps how many rows an entry has: in a live segment, and in
    segments of old lists. With fewer rows in the log it is the first."""
    return _back(client, view, count, password, lambda segment: (segment.rows, segment.rows_per_entry))


def _back(client: BookKeeper, view: LogView, count: int, password: bytes, units_of: Callable[[Segment], tuple[int, int]]) -> Position:
    """Go back from the end of the log by ``count`` units. ``units_of`` returns how many a segment has, and an entry of it; 0 where that is
    not known. An entry of a live segment counts as one."""
    left, position = count, Position(view.next_seq)
    for seq in range(view.next_seq - 1, view.listed.trimmed_seq - 1, -1):
        segment = view.segment(seq)
        units, per_entry = (_confirmed(client, segment, password), 1) if segment.live else units_of(segment)
        if units >= left:
            if not left:
                return Position(seq, segment.first_entry_id + units) if segment.live else position
            entries, row = divmod(units - left, per_entry) if per_entry else (0, 0)
            return Position(seq, segment.first_entry_id + entries, row)
        left -= units
        position = Position(seq)
    return position


def _confirmed(client: BookKeeper, segment: Segment, password: bytes) -> int:
    with client.open_ledger(segment.ledger_id, password=password) as handle:
        return max(0, handle.last_add_confirmed + 1 - segment.first_entry_id)
