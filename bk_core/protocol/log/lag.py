"""The distance of a log's reader from the end of the log. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bk_core.protocol.log.position import Position

if TYPE_CHECKING:
    from bk_core.protocol.log.view import LogView


@dataclass(frozen=True, slots=True)
class Lag:
    """Rows and payload bytes not read yet, and seconds since the oldest of them was committed: 0.0 if there are none."""

    rows: int
    bytes: int
    seconds: float


def lag(view: LogView, position: Position, end: Position, now_ms: int) -> Lag:
    """Return the lag at ``position``. Raises LogDataLossError if the log was trimmed behind it."""
    here = view.normal(position)
    if here >= end:
        return Lag(0, 0, 0.0)
    (rows, size), (rows_before, size_before) = view.counts_before(end), view.counts_before(here)
    oldest = view.segment(here.seq).committed_at_ms
    return Lag(max(0, rows - rows_before), max(0, size - size_before), max(0, now_ms - oldest) / 1000)
