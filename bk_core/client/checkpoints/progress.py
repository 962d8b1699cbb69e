"""Finds how far a Spark query is, from its checkpoint: its last committed batch, and its lag in the logs that it reads."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bk_core.client.checkpoints.batches import Folder, last_number, read_offsets
from bk_core.client.log import history
from bk_core.display.words import counted
from bk_core.errors import InvalidArgumentError, NoSuchLogError
from bk_core.protocol.log.lag import lag
from bk_core.protocol.log.offset import LogOffset, of_source

if TYPE_CHECKING:
    from bk_core.client import BookKeeper
    from bk_core.protocol.log.view import LogView

CLOCKS = "from the commit by the writer's clock until now by this host's, so it is off by what the two clocks differ"
"""The meaning of ``secondsBehind``."""
NOT_BEGUN = ": it is no checkpoint of a query that has begun"


@dataclass(frozen=True, slots=True)
class Progress:
    """The position of a query: its last committed batch, the last one it planned, and for each source the offset after the committed
    batch, by log; None before there is one."""

    committed: int | None
    planned: int
    sources: tuple[Mapping[str, LogOffset | None], ...]


def read_progress(checkpoint: Folder, hint: str = "") -> Progress:
    """Return the position of the query of a checkpoint.

    Raises InvalidArgumentError if the folder is no checkpoint of a query, or its query reads no log. ``hint`` ends the message of the
    first of these.
    """
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


@dataclass(frozen=True, slots=True)
class SourceLag:
    """The lag of a query in one log. ``source`` is the number of the query's source, ``offset`` its place in the log, None before the first
    commit, and ``facts`` are those of ``behind``."""

    source: int
    log: str
    offset: LogOffset | None
    facts: Mapping[str, Any]


def lags(client: BookKeeper, progress: Progress) -> Iterator[SourceLag]:
    """Yield the lag of a query in each log that it reads, by source and then by name. Time is this host's clock."""
    for source, offsets in enumerate(progress.sources):
        for log, offset in sorted(offsets.items()):
            try:
                view = history.read_log(client, log)
            except NoSuchLogError:
                view = None
            yield SourceLag(source, log, offset, behind(view, offset, int(time.time() * 1000)))


def behind(view: LogView | None, offset: LogOffset | None, now_ms: int) -> dict[str, Any]:
    """Return the lag in one log, by the names that scripts get. What cannot be known is None, and ``note`` says why. ``view`` is None for a
    log that does not exist."""
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
