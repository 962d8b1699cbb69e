"""Stream offsets: JSON that a person can read in progress and checkpoint, with a fixed key order because Spark compares text.

``{"log": "flights", "logId": "…", "seq": 12, "entry": 0, "rows": 345678, "bytes": 9876543}``: the next entry to read is entry ``entry``
of segment ``seq``; ``rows`` and ``bytes`` count everything before it since the log was created, so lag is a subtraction.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bk_core.errors import InvalidArgumentError, LogDataLossError
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position

KEYS = ("log", "logId", "seq", "entry", "rows", "bytes")


def offset_at(log: str, listed: LedgerList, position: Position) -> dict[str, Any]:
    position = listed.normal(position)
    rows, size = listed.counts_before(position)
    return {"log": log, "logId": listed.log_id, "seq": position.seq, "entry": position.entry, "rows": rows, "bytes": size}


def position_of(offset: Mapping[str, Any]) -> Position:
    try:
        return Position(int(offset["seq"]), int(offset.get("entry", 0)))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"not an offset of this source: {json.dumps(dict(offset))}") from error


def locate(log: str, listed: LedgerList, offset: Mapping[str, Any], fail_on_data_loss: bool) -> Position:
    """Where ``offset`` is in the log as it is now.

    LogDataLossError if the log was recreated or trimmed behind it; without ``fail_on_data_loss`` the log's first entry instead.
    """
    try:
        if "logId" in offset and offset["logId"] != listed.log_id:
            raise LogDataLossError(f"log {log!r} was deleted and created again; failOnDataLoss=false starts at its first entry", log=log)
        return listed.normal(position_of(offset))
    except LogDataLossError:
        if fail_on_data_loss:
            raise
        return listed.first_position


def starting_position(listed: LedgerList, starting: str, log: str, fail_on_data_loss: bool) -> Position:
    if starting == "earliest":
        return listed.first_position
    if starting == "latest":
        return listed.end_position
    position = locate(log, listed, json.loads(starting), fail_on_data_loss)
    if position > listed.end_position:
        raise InvalidArgumentError(f"startingOffsets lies behind the end of log {log!r} (segment {listed.end_position.seq})")
    return position
