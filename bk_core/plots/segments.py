"""Segments of a log over the time of their commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from bk_core.plots.canvas import GREY, INK, axes_for, colour, legend_outside, literal, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Step: TypeAlias = tuple[datetime, int, int, int]
"""A segment: when it was committed, its ledger, and what the log had before and behind it (rows or bytes)."""
LEGEND_MAX = 10
BAR = {"linewidth": 5, "solid_capstyle": "butt", "marker": "_", "markersize": 5, "markeredgewidth": 2}
"""A bar has a mark at both of its ends: without, one of few rows would be thinner than a pixel beside large ones."""
MOMENT_S = 1.0  # the width of a picture of a single moment
DAY_S = 86400.0
TIMES = ["%Y", "%Y-%m", "%b %d", "%H:%M", "%H:%M", "%H:%M:%S.%f"]  # with years, months, days, hours, minutes, seconds between two ticks
AT_ZERO = [*TIMES[:3], "%b %d", *TIMES[4:]]  # midnight, among hours, is a new day
DATES = ["", "", "%Y", "%Y-%m-%d", "%Y-%m-%d", "%Y-%m-%d"]
"""A tick of the time axis has a whole time, because nobody reads 05 as seconds. The date stands at its end, once."""


def places_of(ledgers: Sequence[int]) -> dict[int, int]:
    """Return the place of each ledger among the colours: by its id, so that a ledger looks the same in all pictures of a log.

    Of two ledgers with the same place the second takes the next one that is free, as long as there are as many colours as ledgers.
    """
    places: dict[int, int] = {}
    for ledger in ledgers:
        place = ledger % LEGEND_MAX
        if len(places) < LEGEND_MAX:
            taken = set(places.values())
            place = next(at % LEGEND_MAX for at in range(place, place + LEGEND_MAX) if at % LEGEND_MAX not in taken)
        places[ledger] = place
    return places


def draw_segments(
    steps: Sequence[Step],
    *,
    title: str,
    unit: str,
    trimmed: int,
    marks: Mapping[str, datetime],
    live: int,
    lost: Sequence[tuple[datetime, int]] = (),
    ax: Any = None,
) -> Axes:
    """Draw each segment as a bar at the time of its commit, from what the log had before it to what it had behind it; return the axes.

    ``unit`` is "rows" or "bytes", ``trimmed`` how many were cut off the front, ``marks`` the last batch of each query with its time, and
    ``live`` the number of segments that are being written, and ``lost`` when each segment that was written off was committed, with what the
    log has before it: it is a cross.
    """
    axes: Any = axes_for(ax, 4.0)  # its stubs know no times
    from matplotlib import dates as of_matplotlib
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.ticker import EngFormatter, StrMethodFormatter

    ledgers = list(dict.fromkeys(ledger for _, ledger, _, _ in steps))
    place = places_of(ledgers)
    handles: list[Any] = [
        Line2D([], [], color=colour(place[ledger]), linewidth=5, label=f"ledger {ledger}") for ledger in ledgers[:LEGEND_MAX]
    ]
    if len(ledgers) > LEGEND_MAX:
        handles.append(Patch(facecolor="none", label=f"... and {len(ledgers) - LEGEND_MAX:,} more ledgers; colours come again"))
    if steps:
        times = [at for at, *_ in steps]
        axes.step([times[0], *times], [steps[0][2], *(after for *_, after in steps)], where="post", color=GREY, linewidth=0.8, zorder=1)
        for at, ledger, before, after in steps:
            axes.plot([at, at], [before, after], color=colour(place[ledger]), zorder=2, **BAR)
    if trimmed:
        axes.axhspan(0, trimmed, facecolor="none", edgecolor=GREY, hatch="....", linewidth=0)
        handles.append(Patch(facecolor="none", edgecolor=GREY, hatch="....", label=f"trimmed: {trimmed:,} {unit}"))
    for name, at in list(marks.items())[:LEGEND_MAX]:
        axes.axvline(at, color=INK, linestyle=":", linewidth=1)
        handles.append(Line2D([], [], color=INK, linestyle=":", linewidth=1, label=literal(name)))
    if lost:
        cross: dict[str, Any] = {"color": INK, "marker": "x", "linestyle": "none", "markersize": 8}
        axes.plot([at for at, _ in lost], [before for _, before in lost], **cross, zorder=3, clip_on=False)
        told = f"written off: {len(lost):,} {'segment' if len(lost) == 1 else 'segments'}, whose rows are lost"
        handles.append(Line2D([], [], **cross, label=told))
    if live:
        handles.append(
            Patch(facecolor="none", label=f"and {live:,} live {'segment' if live == 1 else 'segments'}, not counted until closed")
        )
    dates: Any = of_matplotlib
    locator = dates.AutoDateLocator(maxticks=8)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, formats=TIMES, zero_formats=AT_ZERO, offset_formats=DATES))
    axes.yaxis.set_major_formatter(EngFormatter(unit="B") if unit == "bytes" else StrMethodFormatter("{x:,.0f}"))
    axes.set(xlabel="committed at (UTC)", ylabel=f"{unit} since the log was created", title=literal(title))
    axes.set_ylim(bottom=0)
    axes.margins(x=0.03)
    at, until = axes.dataLim.intervalx
    if steps and at == until:  # one moment, which matplotlib would put in the middle of four years
        axes.set_xlim(at - MOMENT_S / 2 / DAY_S, at + MOMENT_S / 2 / DAY_S)
    plain(axes)
    legend_outside(axes, handles)
    made: Axes = axes
    return made
