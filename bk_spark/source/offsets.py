"""The offsets of a stream that Spark hands back, and what their logs have lost since. Their JSON is in bk_core/protocol/log/offset.py,
because ``bk`` reads it, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bk_core.errors import InvalidArgumentError, LogDataLossError
from bk_core.protocol.log import offset as stored
from bk_core.protocol.log.offset import LogOffset
from bk_core.protocol.log.view import LogView


def from_json(value: Mapping[str, Any]) -> dict[str, LogOffset]:
    """Parse an offset. Raises InvalidArgumentError for what is no offset of this source."""
    try:
        return stored.from_json(value)
    except ValueError as error:
        raise InvalidArgumentError(
            f"the checkpoint was written by another source, such as Kafka's, or edited: {str(value)[:500]} is no offset of logs. Begin a "
            "new checkpoint, and say where with startingOffsets or startingTimestamp"
        ) from error


def check_there(log: str, view: LogView, offset: LogOffset) -> None:
    """Raise LogDataLossError, with what is lost, if the log was recreated or trimmed behind ``offset``."""
    way_out = "failOnDataLoss=false goes on at the first entry that is there"
    if offset.log_id != view.log_id:
        message = (
            f"log {log!r} was deleted and created again: whatever the old log {offset.log_id} had after row {offset.rows:,} "
            f"(segment {offset.position.seq}, entry {offset.position.entry}) is lost; {way_out}"
        )
        raise LogDataLossError(message, log=log, log_id=offset.log_id)
    lost_rows, lost_bytes = offset.lost(view)
    if lost_rows:
        message = (
            f"log {log!r} was trimmed: {lost_rows:,} rows ({lost_bytes:,} bytes) from segment {offset.position.seq}, entry "
            f"{offset.position.entry} up to segment {view.first_position.seq} are lost; {way_out}"
        )
        raise LogDataLossError(message, log=log, rows=lost_rows, bytes=lost_bytes, seq=offset.position.seq)
