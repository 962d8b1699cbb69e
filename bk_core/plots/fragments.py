"""Fragments of a ledger over its bookies."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from bk_core.plots.canvas import INK, axes_for, colour, legend_outside, literal, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Bar: TypeAlias = tuple[int, int | None, tuple[str, ...], str]
"""A fragment: its first and its last entry (None while it may grow), its ensemble, and its live copies in words."""
LEGEND_MAX = 12
_NARROW = 0.12  # of the width; narrower fragments have no room for words
_GROWING = 0.15  # of the width that a fragment takes which may grow


def draw_fragments(bars: Sequence[Bar], *, title: str, dead: Collection[str], ax: Any = None) -> Axes:
    """Draw a bar where a bookie belongs to the ensemble of a fragment, hatched if it is ``dead``. Return the axes.

    The live copies of each fragment stand above it and in the legend. A fragment that may grow has no end: its bars are open on the right.
    """
    bookies = sorted({bookie for bar in bars for bookie in bar[2]})
    axes = axes_for(ax, 1.5 + 0.42 * len(bookies))
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    known = max((last + 1 for _, last, _, _ in bars if last is not None), default=0)
    known = max(known, max((first for first, _, _, _ in bars), default=0))
    growing = any(last is None for _, last, _, _ in bars)
    end = known + max(1, round(known * _GROWING)) if growing else max(1, known)
    handles = []
    for index, (first, last, ensemble, copies) in enumerate(bars):
        stop = end if last is None else last + 1
        if stop > first:
            for bookie in ensemble:
                _bar(axes, bookies.index(bookie), first, stop, colour(index), hatched=bookie in dead, is_open=last is None)
            if stop - first >= _NARROW * end:
                axes.text((first + stop) / 2, -0.62, f"{copies} live", ha="center", va="bottom", fontsize="small", color=INK)
        told = "no entries" if last is not None and last < first else f"entries {first} to {'... (may grow)' if last is None else last}"
        handles.append(Patch(facecolor=colour(index), label=f"fragment {index}: {told}, {copies} copies live"))
    handles, left = handles[:LEGEND_MAX], len(handles) - LEGEND_MAX
    if left > 0:
        handles.append(Patch(facecolor="none", label=f"... and {left:,} more fragments"))
    if any(bookie in dead for bookie in bookies):
        handles.append(Patch(facecolor="white", edgecolor=INK, hatch="////", label="on a dead bookie: no copy to read now"))
    axes.set_yticks(range(len(bookies)), [literal(f"{bookie} (dead)" if bookie in dead else bookie) for bookie in bookies])
    axes.set(xlim=(0, end), ylim=(len(bookies) - 0.4, -1.1), xlabel="entry", title=literal(title))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain(axes)
    legend_outside(axes, handles)
    return axes


def _bar(axes: Axes, lane: int, first: int, stop: int, face: str, *, hatched: bool, is_open: bool) -> None:
    style: dict[str, Any] = {"facecolor": face, "edgecolor": "white"}
    if hatched:
        style = {"facecolor": "white", "edgecolor": face, "hatch": "////"}
    axes.barh(lane, stop - first, left=first, height=0.68, linewidth=0.8, linestyle="--" if is_open else "-", **style)
    if is_open:
        axes.text(stop, lane, " ... ", ha="right", va="center", color="white" if not hatched else face)
