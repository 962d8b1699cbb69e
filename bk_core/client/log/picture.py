"""``Log.plot_segments``: collects what is drawn of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from bk_core.display.moments import moment
from bk_core.display.words import counted
from bk_core.errors import InvalidArgumentError
from bk_core.protocol.log.ledger_list import ONE_SHOT
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.view import LogView

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Unit: TypeAlias = Literal["rows", "bytes"]
UNITS = get_args(Unit)
_SHORT = 12  # characters of a query's id


def picture_of_segments(name: str, view: LogView, by: Unit, last: int, ax: Any) -> Axes:
    """Draw the newest ``last`` segments of a log. InvalidArgumentError; MissingPackageError."""
    if by not in UNITS:
        raise InvalidArgumentError(f'by must be "rows" or "bytes", not {by!r}')
    from bk_core.plots.segments import draw_segments

    trimmed = view.counts_before(view.first_position)[UNITS.index(by)]
    first_seq = max(view.listed.trimmed_seq, view.next_seq - last)
    at = view.counts_before(Position(first_seq))[UNITS.index(by)] if first_seq > view.listed.trimmed_seq else trimmed
    steps, lost, live = [], [], 0
    for segment in view.segments(first_seq):
        if segment.live:
            live += 1
            continue
        if segment.written_off:
            lost.append((moment(segment.committed_at_ms), at))
            continue
        before, at = at, at + (segment.rows if by == "rows" else segment.bytes)
        steps.append((moment(segment.committed_at_ms), segment.ledger_id, before, at))
    marks = {
        f"query {query[:_SHORT]}: last batch, {mark.batch_id:,}": moment(mark.at_ms)
        for query, mark in view.listed.committed.items()
        if mark.at_ms and not query.startswith(ONE_SHOT)
    }
    left = view.next_seq - view.listed.trimmed_seq
    told = counted(left, "segment") if left <= last else f"the newest {last:,} of {counted(left, 'segment')}"
    return draw_segments(steps, title=f"log {name}: {told}", unit=by, trimmed=trimmed, marks=marks, live=live, lost=lost, ax=ax)
