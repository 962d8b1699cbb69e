"""The standing of a query's batch in a log, by the mark that the query has there. Pure.

A query numbers its batches without gaps, and commits each of them, even one without rows. So its mark tells which batch comes next. A batch
that the mark has already is a replay. A batch behind a gap, or behind the first one without any mark, comes to a log that has lost
something.
"""

from __future__ import annotations

from enum import Enum, auto

from bk_core.protocol.log.segments import Mark


class Standing(Enum):
    """The relation of a batch to the query's mark. NEXT is to be published; nothing of a replay is. A replay is the SAME, or DIFFERENT in
    rows or bytes from what was committed, or EARLIER than the last batch, which happens only after a checkpoint went back or was copied.
    BEHIND_LOSS: batches before it are not in the log."""

    NEXT = auto()
    SAME = auto()
    DIFFERENT = auto()
    EARLIER = auto()
    BEHIND_LOSS = auto()


def standing_of(mark: Mark | None, batch_id: int, rows: int, size: int) -> Standing:
    """Return the standing of a batch with ``rows`` and ``size`` payload bytes (BAT-1, BAT-2). Marks of earlier programs tell neither
    number, and so never differ."""
    if mark is None:
        return Standing.NEXT if batch_id <= 0 else Standing.BEHIND_LOSS
    if batch_id > mark.batch_id:
        return Standing.NEXT if batch_id == mark.batch_id + 1 else Standing.BEHIND_LOSS
    if batch_id < mark.batch_id:
        return Standing.EARLIER
    known = mark.rows is not None and mark.bytes is not None
    return Standing.DIFFERENT if known and (mark.rows, mark.bytes) != (rows, size) else Standing.SAME
