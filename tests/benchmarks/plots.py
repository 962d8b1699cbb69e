"""One HTML page of a run: what was reached, then a picture and the tables of each group. It needs no other file."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tests.benchmarks.measure import Comparison, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH_IN = 15.0
LANE_IN = 0.27
HEAD_IN = 0.85
DOTS = 80
LEGEND_COLUMNS = 9
EACH_FROM = 2000.0
OURS, OTHERS, CEILINGS = "tab:blue", "0.65", "tab:green"
REFERENCE = ("ceiling", "sink that drops", "memcpy", "Parquet", "trivial Python")  # neither ours nor what we compete with
COLOURS = {
    "client": "gold",
    "JVM": "tab:orange",
    "Python workers": "gold",
    "planner": "tab:cyan",
    "source runner": "tab:olive",
    "bookies": "tab:red",
    "bookie": "tab:red",
    "sinks": "tab:brown",
    "sources": "tab:brown",
    "stand-ins": "tab:brown",
    "broker": "tab:purple",
    "ZooKeeper": "tab:pink",
}
STYLE = (
    "body{font:14px sans-serif;margin:2em} pre{font-size:12px;overflow-x:auto} img{max-width:100%} td{padding:0 1em 0 0} .no{color:#b00}"
)


def grouped(comparisons: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """In the order in which groups first came."""
    found: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        found.setdefault(comparison.group or "all", []).append(comparison)
    return found


def page(comparisons: Sequence[Comparison], about: str, account: str) -> str:
    """The whole page."""
    verdicts = [(line, comparison.title) for comparison in comparisons for line in comparison.verdicts()]
    rows = [
        f'<tr class="{"no" if line.endswith("NO") else "yes"}"><td>{html.escape(title)}</td><td>{html.escape(line)}</td></tr>'
        for line, title in verdicts
    ]
    parts = [f"<h2>Reach</h2><table>{''.join(rows)}</table>"]
    for group, members in grouped(comparisons).items():
        image = base64.b64encode(picture(members)).decode()
        tables = html.escape("\n\n".join(comparison.text() for comparison in members))
        parts.append(f'<h2>{html.escape(group)}</h2><img src="data:image/png;base64,{image}"><details><summary>tables</summary>')
        parts.append(f"<pre>{tables}</pre></details>")
    head = f'<meta charset="utf-8"><title>Speed, side by side</title><style>{STYLE}</style><h1>Speed, side by side</h1>'
    time = f"<h2>Minutes</h2><pre>{html.escape(account)}</pre>"
    return f"<!doctype html>{head}<p>{html.escape(about)}</p>{''.join(parts)}{time}\n"


def picture(comparisons: Sequence[Comparison]) -> bytes:
    """A PNG: a line per comparison, on the left the figure that it is about, on the right the CPU of each process."""
    with_cpu = any(comparison.cpu(name) for comparison in comparisons for name in comparison.samples)
    heights = [HEAD_IN + LANE_IN * len(comparison.samples) for comparison in comparisons]
    figure = Figure(figsize=(WIDTH_IN, sum(heights) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(len(comparisons), 2 if with_cpu else 1, height_ratios=heights, width_ratios=[1.15, 1] if with_cpu else None)
    seen: dict[str, str] = {}
    for line, comparison in enumerate(comparisons):
        draw(figure.add_subplot(grid[line, 0]), comparison)
        if with_cpu:
            seen.update(draw_cpu(figure.add_subplot(grid[line, 1]), comparison))
    kinds = {"ours": OURS, "compared with": OTHERS, "for reference": CEILINGS}
    used = {colour_of(name, comparison) for comparison in comparisons for name in comparison.samples}
    shown = {
        **{name: colour for name, colour in kinds.items() if colour in used},
        **{f"CPU: {name}": colour for name, colour in seen.items()},
    }
    patches = [Patch(color=colour, label=name) for name, colour in shown.items()]
    figure.legend(handles=patches, loc="outside upper center", ncols=LEGEND_COLUMNS, fontsize=9, frameon=False)
    out = io.BytesIO()
    figure.savefig(out, dpi=DOTS, format="png")
    return out.getvalue()


def colour_of(name: str, comparison: Comparison) -> str:
    if name in REFERENCE:
        return CEILINGS
    alone = not any(n.startswith(("ours", "bk_core", "embedded")) for n in comparison.samples)  # only ours, at several sizes
    return OURS if alone or name.startswith(("ours", "bk_core", "embedded", "frame_adds", "unpack_entries")) else OTHERS


def draw(axes: Axes, comparison: Comparison) -> None:
    """Bars: the median, a line from the smallest to the largest; beside it the median and its ratio to the baseline's."""
    names, of = list(comparison.samples), comparison.shown
    longest = max(comparison.spread(name, of).high for name in names) or 1.0
    for lane, name in enumerate(names):
        found = comparison.spread(name, of)
        axes.barh(lane, found.median, height=0.7, color=colour_of(name, comparison), alpha=0.8)
        axes.plot([found.low, found.high], [lane, lane], color="black", linewidth=1.4)
        ratio = comparison.ratio(name, of)
        words = "" if name == comparison.baseline else f"   × {ratio.median:.2f}  ({ratio.low:.2f} to {ratio.high:.2f})"
        axes.text(longest * 1.02, lane, f"{number(found.median)}{words}", va="center", fontsize=9)
    axes.set_xlim(0, longest * 1.5)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(lambda value, _: number(value))
    axes.tick_params(axis="x", labelsize=8)
    unit = f"{comparison.unit}/s" if of == "rate" else f"{of.replace('_mib', ' MiB').replace('_', ' ')} (less is better)"
    axes.set_title(f"{comparison.title}: {unit}; × {comparison.baseline}", fontsize=9.5, loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def draw_cpu(axes: Axes, comparison: Comparison) -> Mapping[str, str]:
    """Stacked bars of CPU seconds by process. The colours that were used, by process."""
    names = list(comparison.samples)
    seen: dict[str, str] = {}
    by_size = all(sample.bytes for name in names for sample in comparison.samples[name])
    costs = {name: {process: cost[by_size] for process, cost in comparison.cpu_per(name).items()} for name in names}
    longest = max(sum(cost.values()) for cost in costs.values()) or 1.0
    each = longest > EACH_FROM and not by_size  # then seconds per million are too large a number
    scale = 1e-3 if each else 1.0
    for lane, name in enumerate(names):
        at = 0.0
        for process, cost in costs[name].items():
            wide = cost * scale
            colour = seen.setdefault(process, COLOURS.get(process, "0.4")) if wide else ""
            axes.barh(lane, wide, left=at, height=0.7, color=colour or "0.4")
            at += wide
        axes.text(at, lane, f" {number(at)}" if at else "", va="center", fontsize=9)
    axes.set_yticks(range(len(names)), [""] * len(names))
    axes.invert_yaxis()
    axes.set_xlim(0, longest * scale * 1.15)
    axes.xaxis.set_major_formatter(lambda value, _: number(value))
    axes.tick_params(axis="x", labelsize=8)
    what = (
        "seconds per GiB of payload"
        if by_size
        else f"ms per {comparison.unit.rstrip('s')}"
        if each
        else f"seconds per million {comparison.unit}"
    )
    axes.set_title(f"CPU {what}", fontsize=9.5, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    return seen
