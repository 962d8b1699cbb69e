"""Stream offsets: JSON that a person can read in progress and checkpoint, with a fixed key order because Spark compares text.

``{"flights": {"logId": "…", "seq": 12, "entry": 0, "row": 0, "rows": 345678, "bytes": 9876543}, …}``, sorted by log: the next row to
read is row ``row`` of entry ``entry`` of segment ``seq``; ``rows`` and ``bytes`` count everything before it since the log was created, so
lag is a subtraction. One small object per log, never a list of ledgers: Spark writes it into every file of ``offsets/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bk_core.errors import InvalidArgumentError, LogDataLossError
from bk_core.protocol.log import reading
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.view import LogView

_NUMBER_MAX = (1 << 63) - 1
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


def to_json(offsets: Mapping[str, LogOffset]) -> dict[str, Any]:
    """Return the offset of a source, sorted by log name."""
    return {name: offset.json() for name, offset in sorted(offsets.items())}


def from_json(value: Mapping[str, Any]) -> dict[str, LogOffset]:
    """Parse an offset. Raises InvalidArgumentError for what is no offset of this source."""
    try:
        return {name: _log_offset(offset) for name, offset in value.items()}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"the checkpoint was written by another source, such as Kafka's, or edited: {str(value)[:500]} is no offset of logs. Begin a "
            "new checkpoint, and say where with startingOffsets or startingTimestamp"
        ) from error


def _log_offset(value: Mapping[str, Any]) -> LogOffset:
    """Parse one log's offset. Raises ValueError for anything but a text and natural numbers, because somebody may have edited a
    checkpoint."""
    log_id, *numbers = (value[key] for key in KEYS)
    if not isinstance(log_id, str) or not all(type(number) is int and 0 <= number <= _NUMBER_MAX for number in numbers):
        raise ValueError("it has another form")
    seq, entry, row, rows, size = numbers
    return LogOffset(log_id, Position(seq, entry, row), rows, size)


def check_there(log: str, view: LogView, offset: LogOffset) -> None:
    """Raise LogDataLossError, with what is lost, if the log was recreated or trimmed behind ``offset``."""
    way_out = "failOnDataLoss=false goes on at the first entry that is there"
    if offset.log_id != view.log_id:
        message = (
            f"log {log!r} was deleted and created again: whatever the old log {offset.log_id} had after row {offset.rows:,} "
            f"(segment {offset.position.seq}, entry {offset.position.entry}) is lost; {way_out}"
        )
        raise LogDataLossError(message, log=log, log_id=offset.log_id)
    first = view.first_position
    if offset.position.seq >= first.seq:
        return
    rows, size = view.counts_before(first)
    lost_rows, lost_bytes = reading.rows_lost(rows, offset.rows), max(0, size - offset.bytes)
    if lost_rows:
        message = (
            f"log {log!r} was trimmed: {lost_rows:,} rows ({lost_bytes:,} bytes) from segment {offset.position.seq}, entry "
            f"{offset.position.entry} up to segment {first.seq} are lost; {way_out}"
        )
        raise LogDataLossError(message, log=log, rows=lost_rows, bytes=lost_bytes, seq=offset.position.seq)
