"""The offset of a streaming query in each log that it reads, and the JSON in which Spark keeps it in progress and checkpoints.

``{"flights": {"logId": "…", "seq": 12, "entry": 0, "row": 0, "rows": 345678, "bytes": 9876543}, …}``, sorted by log: the next row to
read is row ``row`` of entry ``entry`` of segment ``seq``; ``rows`` and ``bytes`` count everything before it since the log was created, so
lag is a subtraction. There is one small object per log, never a list of ledgers, because Spark writes it into every file of ``offsets/``.
The order of the keys is fixed, because Spark compares offsets as text.

``bk_spark`` writes these offsets and goes on at them; ``bk query lag`` and ``bk checkpoint`` read them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bk_core.arguments import INT64_MAX
from bk_core.protocol.log import reading
from bk_core.protocol.log.position import Position

if TYPE_CHECKING:
    from bk_core.protocol.log.view import LogView

KEYS = ("logId", "seq", "entry", "row", "rows", "bytes")


@dataclass(frozen=True, slots=True)
class LogOffset:
    """A position in one log with its identity and the rows and payload bytes before it."""

    log_id: str
    position: Position
    rows: int
    bytes: int

    def json(self) -> dict[str, Any]:
        p = self.position
        return dict(zip(KEYS, (self.log_id, p.seq, p.entry, p.row, self.rows, self.bytes), strict=True))

    def lost(self, view: LogView) -> tuple[int, int]:
        """Return the rows and payload bytes behind this offset that were trimmed before anybody read them here."""
        first = view.first_position
        if self.position.seq >= first.seq:
            return 0, 0
        rows, size = view.counts_before(first)
        lost = reading.rows_lost(rows, self.rows) or 0
        return lost, max(0, size - self.bytes) if lost else 0


def to_json(offsets: Mapping[str, LogOffset]) -> dict[str, Any]:
    """Return the offset of a source, sorted by log name."""
    return {name: offset.json() for name, offset in sorted(offsets.items())}


def from_json(value: Any) -> dict[str, LogOffset]:
    """Parse the offset of a source. Raises ValueError for what is none: another source wrote it, or somebody edited it."""
    if not isinstance(value, Mapping):
        raise ValueError("it is no object")
    return {name: _log_offset(offset) for name, offset in value.items()}


def of_source(value: Any) -> dict[str, LogOffset] | None:
    """Return the offset of a source that reads logs, or None for one of another source."""
    try:
        return from_json(value)
    except ValueError:
        return None


def _log_offset(value: Any) -> LogOffset:
    if not isinstance(value, Mapping) or not value.keys() >= set(KEYS):
        raise ValueError("it has another form")
    log_id, *numbers = (value[key] for key in KEYS)
    if not isinstance(log_id, str) or not all(type(number) is int and 0 <= number <= INT64_MAX for number in numbers):
        raise ValueError("it has another form")
    seq, entry, row, rows, size = numbers
    return LogOffset(log_id, Position(seq, entry, row), rows, size)
