"""Tells how far a Spark query is, from its checkpoint: its last committed batch, and its lag behind the logs it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bk_core.client.checkpoints.batches import Folder, last_number, read_offsets
from bk_core.display.words import counted
from bk_core.errors import InvalidArgumentError
from bk_core.protocol.log.lag import lag
from bk_core.protocol.log.offset import LogOffset, of_source

if TYPE_CHECKING:
    from bk_core.protocol.log.view import LogView

NOT_BEGUN = ": it is no checkpoint of a query that has begun"


@dataclass(frozen=True, slots=True)
class Progress:
    """The position of a query: its last committed batch, the last one it planned, and for each source the offset behind the committed
    batch, by log; None before there is one."""

    committed: int | None
    planned: int
    sources: tuple[Mapping[str, LogOffset | None], ...]


def read_progress(checkpoint: Folder, hint: str = "") -> Progress:
    """Raises InvalidArgumentError if the folder is no checkpoint of a query, or its query reads no log. ``hint`` ends the first of
    these."""
    planned, committed = last_number(checkpoint, "offsets"), last_number(checkpoint, "commits")
    if planned is None:
        raise InvalidArgumentError(f"{checkpoint.told()} has no file in a folder offsets{hint or NOT_BEGUN}")
    known = planned if committed is None else committed
    found = (of_source(offset) for offset in read_offsets(checkpoint, known)[1].values())
    sources: tuple[Mapping[str, LogOffset | None], ...] = tuple(source for source in found if source is not None)
    if not sources:
        raise InvalidArgumentError(f"the query of checkpoint {checkpoint.told()} reads no log of format bookkeeper")
    if committed is None:
        sources = tuple(dict.fromkeys(source) for source in sources)
    return Progress(committed, planned, sources)


def behind(view: LogView | None, offset: LogOffset | None, now_ms: int) -> dict[str, Any]:
    """Lag of one log. What cannot be known is None, and ``note`` says why. ``view``: None for a log that does not exist."""
    unknown = {"rowsBehind": None, "bytesBehind": None, "secondsBehind": None}
    if view is None:
        return {**unknown, "note": "the log was deleted"}
    if offset is None:
        return {**unknown, "note": "no batch was committed yet"}
    if offset.log_id != view.log_id:
        return {**unknown, "note": "the log was deleted and created again"}
    lost, size_lost = offset.lost(view)
    found = lag(view, max(offset.position, view.first_position), view.end_position, now_ms)
    note = "a live segment is not counted" if view.live_segments else ""
    if lost:
        note = f"{counted(lost, 'row')} of these {'was' if lost == 1 else 'were'} trimmed before being read"
    return {"rowsBehind": found.rows + lost, "bytesBehind": found.bytes + size_lost, "secondsBehind": round(found.seconds, 1), "note": note}
