"""The distance of a log's reader from the end of the log. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bk_core.protocol.log.position import Position

if TYPE_CHECKING:
    from bk_core.protocol.log.view import LogView


@dataclass(frozen=True, slots=True)
class Lag:
    """Rows and payload bytes not read yet, and seconds since the oldest of them was committed: 0.0 if there are none.

    The commit was stamped by the clock of who made it, and the seconds are counted by the clock of who asks: the difference of the two
    clocks is in them. They are never negative.
    """

    rows: int
    bytes: int
    seconds: float


def lag(view: LogView, position: Position, end: Position, now_ms: int) -> Lag:
    """Return the lag at ``position``; ``now_ms`` is the asking host's time in milliseconds since 1970. Where its clock is behind the last
    commit, the time of that commit is taken in its place: both times are then the writer's. Raises LogDataLossError if the log was trimmed
    behind it."""
    here = view.normal(position)
    if here >= end:
        return Lag(0, 0, 0.0)
    (rows, size), (rows_before, size_before) = view.counts_before(end), view.counts_before(here)
    oldest = view.segment(here.seq).committed_at_ms
    here_ms = max(now_ms, view.listed.last_ms)
    return Lag(max(0, rows - rows_before), max(0, size - size_before), max(0, here_ms - oldest) / 1000)
