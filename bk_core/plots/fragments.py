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
SEEN_MAX = 60  # entries of a striped fragment that are drawn one by one
_HIGH = 0.68  # of a bar, of 1 for a bookie
_LIGHT = 0.25  # of the colour; the rest is white
_NARROW = 0.12  # of the width; narrower fragments have no room for words
_GROWING = 0.15  # of the width that a fragment takes which may grow


def draw_fragments(bars: Sequence[Bar], *, title: str, dead: Collection[str], write_quorum_size: int, ax: Any = None) -> Axes:
    """Draw a bar where a bookie belongs to the ensemble of a fragment, hatched if it is ``dead``. Return the axes.

    Where an ensemble is larger than ``write_quorum_size``, a bookie has some of the entries only: its bar is light, and dark where it has
    an entry. Of a fragment with too many entries to be seen one by one the dark part is as high as the share of the entries.
    The live copies of each fragment stand above it and in the legend. A fragment that may grow has no end: its bars are open on the right,
    and the axis has no numbers below them, because metadata does not tell how many entries it has.
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
                striped = write_quorum_size < len(ensemble)
                lane = bookies.index(bookie)
                _bar(axes, lane, first, stop, colour(index), hatched=bookie in dead, is_open=last is None, is_light=striped)
                if striped:
                    share = (write_quorum_size, len(ensemble), ensemble.index(bookie))
                    is_exact = last is not None and stop - first <= SEEN_MAX
                    _entries(axes, lane, first, stop, share, _style(colour(index), hatched=bookie in dead), is_exact=is_exact)
            if stop - first >= _NARROW * end:
                axes.text((first + stop) / 2, -0.62, f"{copies} live", ha="center", va="bottom", fontsize="small", color=INK)
        told = "no entries" if last is not None and last < first else f"entries {first} to {'... (may grow)' if last is None else last}"
        handles.append(Patch(facecolor=colour(index), label=f"fragment {index}: {told}, {copies} copies live"))
    handles, left = handles[:LEGEND_MAX], len(handles) - LEGEND_MAX
    if left > 0:
        handles.append(Patch(facecolor="none", label=f"... and {left:,} more fragments"))
    wide = max((len(ensemble) for _, _, ensemble, _ in bars), default=0)
    if write_quorum_size < wide:
        label = f"light: not on this bookie, which has {write_quorum_size} of {wide} entries"
        handles.append(Patch(facecolor=_lighter(colour(0)), label=label))
    if any(bookie in dead for bookie in bookies):
        handles.append(Patch(facecolor="white", edgecolor=INK, hatch="////", label="on a dead bookie: no copy to read now"))
    axes.set_yticks(range(len(bookies)), [literal(f"{bookie} (dead)" if bookie in dead else bookie) for bookie in bookies])
    axes.set(xlim=(0, end), ylim=(len(bookies) - 0.4, -1.1), xlabel="entry", title=literal(title))
    if growing:  # its bars have the width of a word, and no entry stands at their end
        axes.set_xlabel("entry (how many the open fragment has is not known: not to scale)")
        ticks = {int(tick) for tick in MaxNLocator(6, integer=True).tick_values(0, max(1, known)) if tick < known * 0.93}
        axes.set_xticks(sorted({0, known} | ticks))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    plain(axes)
    legend_outside(axes, handles)
    return axes


def _entries(axes: Axes, lane: int, first: int, stop: int, share: tuple[int, int, int], style: dict[str, Any], *, is_exact: bool) -> None:
    """Draw what a bookie has of a striped fragment. ``share``: the write quorum, the ensemble size, and the position of the bookie."""
    quorum, size, position = share
    if is_exact:
        held = [(entry, 1) for entry in range(first, stop) if (position - entry) % size < quorum]
        axes.broken_barh(held, (lane - _HIGH / 2, _HIGH), linewidth=0.8, zorder=2, **style)
    else:
        high = _HIGH * quorum / size
        axes.broken_barh([(first, stop - first)], (lane + _HIGH / 2 - high, high), linewidth=0.8, zorder=2, **style)


def _style(face: str, *, hatched: bool) -> dict[str, Any]:
    return {"facecolor": "white", "edgecolor": face, "hatch": "////"} if hatched else {"facecolor": face, "edgecolor": "white"}


def _bar(axes: Axes, lane: int, first: int, stop: int, face: str, *, hatched: bool, is_open: bool, is_light: bool) -> None:
    style = {"facecolor": _lighter(face), "edgecolor": "white"} if is_light else _style(face, hatched=hatched)
    axes.barh(lane, stop - first, left=first, height=_HIGH, linewidth=0.8, linestyle="--" if is_open else "-", **style)
    if is_open:
        axes.text(stop, lane, " ... ", ha="right", va="center", color="white" if not hatched else face)


def _lighter(face: str) -> tuple[float, float, float]:
    from matplotlib.colors import to_rgb

    red, green, blue = (1 - _LIGHT * (1 - part) for part in to_rgb(face))
    return red, green, blue
