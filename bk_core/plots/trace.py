"""Messages between clients, bookies and the metadata store, as a space-time diagram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bk_core.plots.canvas import COLOURS, GREY, INK, RED, axes_for, legend_below, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = {"add": (COLOURS[0], "an add"), "lac": (COLOURS[4], "the LAC, written without an entry"), "force": (COLOURS[7], "a force"),
         "read": (COLOURS[2], "a read"), "fence": (COLOURS[1], "a fence, with or without a read"),
         "metadata": (COLOURS[3], "to the metadata store")}  # fmt: skip
LABELS_MAX = 60
"""Above so many messages the words at the lines would cover one another."""
_SLANT = 40  # degrees
_FOR_WORDS = 0.12  # of the width: room on the right for the words of the last steps
_BESIDE_PT = 14  # points between the words of one lane, so that they stand beside each other and not on each other
_LINE_MAX = 22  # letters of a line of words; longer ones would reach the words of the lane above
_AXES_PT = 560  # of the width of a picture, beside the names of its lanes
_HALF = 0.5  # of a step: how far behind its sending a message arrives that was never answered


def draw_trace(lanes: Sequence[str], lines: Sequence[Mapping[str, Any]], *, scale: str, title: str, ax: Any = None) -> Axes:
    """Draw a lane for each of ``lanes`` and a line for each message there and back; return the axes.

    ``scale`` is "order" or "time" (trace.py of the client has the form of ``lines``).
    """
    axes = axes_for(ax, 1.6 + 1.05 * len(lanes))
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    unit = 0 if scale == "order" else 1
    place = {lane: at for at, lane in enumerate(lanes)}
    for at in place.values():
        axes.axhline(at, color=GREY, linewidth=0.8, zorder=0)
    messages = [one for one in lines if "mark" not in one]
    span = max((one[end][unit] for one in lines for end in ("sent", "answered") if one.get(end)), default=1.0)
    labelled = len(messages) <= LABELS_MAX
    words = _Words(axes, span * (1 + _FOR_WORDS))
    for one in messages:
        told, there = _message(axes, place, one, unit, span)
        if labelled:
            words.add(told, there, place[one["peer"]], RED if one["refused"] else INK)
    for one in lines:
        if "mark" in one:
            axes.plot(one["sent"][unit], place[one["client"]], marker="D", markersize=5, color=INK, zorder=4)
            if labelled:
                words.add(one["mark"], one["sent"][unit], place[one["client"]], INK, below=place[one["client"]] > 0)
    words.write()
    used = {one["kind"] for one in messages}
    handles = [Line2D([], [], color=line, label=told) for kind, (line, told) in KINDS.items() if kind in used]
    handles.append(Line2D([], [], color=INK, linestyle=":", label="its answer"))
    if any(one["refused"] for one in messages):
        handles.append(Line2D([], [], color=RED, linestyle=":", marker="X", label="an answer that refuses"))
    if any(one["answered"] is None and one["wants"] for one in messages):
        handles.append(Line2D([], [], color=GREY, marker=">", label="no answer so far"))
    if any(one["answered"] is None and not one["wants"] for one in messages):
        handles.append(Line2D([], [], color=GREY, marker=">", markerfacecolor="white", label="no answer is wanted"))
    if any("mark" in one for one in lines):
        handles.append(Line2D([], [], color=INK, marker="D", linestyle="", label="what the client knows then"))
    axes.set_yticks(range(len(lanes)), [literal(lane) for lane in lanes])
    low = max((place[one["client"]] for one in lines if "mark" in one), default=0) == len(lanes) - 1 > 0
    axes.set_ylim(len(lanes) + (0.35 if low else -0.4), -1.15)
    margin = span * 0.03 + (0.0 if unit else 0.5)
    axes.set_xlim((0.0 if unit else 1.0) - margin, span * (1 + _FOR_WORDS * labelled) + margin)
    axes.set(title=literal(title), xlabel="milliseconds" if unit else "steps, in the order in which the clients saw them (not to scale)")
    if not unit:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    legend_below(axes, handles)
    return axes


def _message(axes: Axes, place: Mapping[str, int], one: Mapping[str, Any], unit: int, span: float) -> tuple[str, float]:
    """Draw a request to its peer and the answer back. Return what stands at the peer, and where along the axis."""
    line, _ = KINDS[one["kind"]]
    client, peer = place[one["client"]], place[one["peer"]]
    sent = one["sent"][unit]
    back = None if one["answered"] is None else one["answered"][unit]
    there = sent + (_HALF if not unit else span * 0.02) if back is None else (sent + back) / 2
    axes.plot([sent, there], [client, peer], color=line, linewidth=1.3, zorder=2)
    style: dict[str, Any] = {"color": GREY if back is None else line}
    if back is None and not one["wants"]:
        style["markerfacecolor"] = "white"
    axes.plot(there, peer, marker=">" if back is None else "o", markersize=4, zorder=3, **style)
    if back is not None:
        axes.plot([there, back], [peer, client], color=RED if one["refused"] else line, linewidth=1.0, linestyle=":", zorder=2)
        if one["refused"]:
            axes.plot(back, client, marker="X", markersize=7, color=RED, zorder=4)
    return one["what"] if not one["refused"] else f"{one['what']}: {one['answer']}", there


def in_lines(text: str) -> str:
    """Return ``text`` in two lines if it is long and has a colon or a comma to break it at."""
    for end in (": ", ", "):
        if len(text) > _LINE_MAX and end in text:
            return f"{end.strip()}\n".join(text.split(end, 1))
    return text


class _Words:
    """The words at the points of all lanes, aslant, so that those of the next step have room beside them."""

    def __init__(self, axes: Axes, span: float) -> None:
        self._axes = axes
        self._points = _AXES_PT / span if span > 0 else 0.0
        self._lanes: dict[tuple[float, bool], list[tuple[float, str, str]]] = {}

    def add(self, text: str, x: float, y: float, ink: str, *, below: bool = False) -> None:
        """Have ``text`` written at a point."""
        self._lanes.setdefault((y, below), []).append((x, text, ink))

    def write(self) -> None:
        """Write all. Words that would stand on those before them move to the right; a white edge keeps them apart from the lines."""
        from matplotlib.patheffects import withStroke

        for (y, below), words in self._lanes.items():
            free = float("-inf")
            for x, text, ink in sorted(words, key=lambda one: one[0]):
                text = in_lines(text)
                at = max(x * self._points, free)
                free = at + _BESIDE_PT * (1 + text.count("\n"))
                moved = at - x * self._points
                self._axes.annotate(
                    text, (x, y), xytext=(2 + moved, -4 if below else 4), textcoords="offset points", fontsize="x-small", color=ink,
                    path_effects=[withStroke(linewidth=2, foreground="white")], multialignment="left",
                    zorder=5, rotation=-_SLANT if below else _SLANT, rotation_mode="anchor", ha="left", va="top" if below else "bottom",
                )  # fmt: skip
