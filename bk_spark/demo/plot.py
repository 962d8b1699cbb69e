"""The demo's picture: rows over time with the two faults, fragments over bookies, delays by carrier and month."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bk_spark.demo.report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def save_plot(report: Report, path: Path) -> None:
    """Write a PNG. Uses a canvas of its own: no display and no global state of matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 8), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2)
    draw_rows(figure.add_subplot(grid[0, 0]), report)
    draw_delays(figure.add_subplot(grid[0, 1]), report)
    draw_fragments(figure.add_subplot(grid[1, :]), report)
    figure.savefig(path, dpi=110)


def draw_rows(axes: Axes, report: Report) -> None:
    times = [sample.at_s for sample in report.samples]
    axes.step(times, [sample.dropped for sample in report.samples], where="post", color="0.6", label="dropped into the input")
    axes.step(times, [sample.committed for sample in report.samples], where="post", color="tab:blue", label="committed to the log")
    for moment in report.moments:
        if moment.fault:
            axes.axvline(moment.at_s, color="tab:red", linestyle="--", linewidth=1)
            axes.annotate(
                moment.text.split(":")[0], (moment.at_s, 0.02), xycoords=("data", "axes fraction"), rotation=90, ha="right", color="tab:red"
            )
    axes.set(title="rows over time", xlabel="seconds", ylabel="rows")
    axes.legend(loc="lower right")


def draw_delays(axes: Axes, report: Report) -> None:
    carriers = sorted({row["carrier"] for row in report.delays})
    months = sorted({row["month"] for row in report.delays})
    grid = [[float("nan")] * len(months) for _ in carriers]
    for row in report.delays:
        if row["dep_delay"] is not None:
            grid[carriers.index(row["carrier"])][months.index(row["month"])] = row["dep_delay"]
    axes.set(title="mean departure delay, minutes", xlabel="month")
    if grid:
        shown = axes.imshow(grid, aspect="auto", cmap="magma_r")
        axes.figure.colorbar(shown, ax=axes)
    axes.set_xticks(range(len(months)), [str(month) for month in months])
    axes.set_yticks(range(len(carriers)), carriers)


def draw_fragments(axes: Axes, report: Report) -> None:
    """One lane per bookie; ledgers one after the other along x; a bar where the bookie belongs to the fragment's ensemble."""
    lanes = {bookie: lane for lane, bookie in enumerate(report.bookies)}
    start = 0
    for number, ledger in enumerate(report.ledgers):
        end = start
        for index, fragment in enumerate(ledger.fragments):
            count = max(0, fragment.last_entry_id - fragment.first_entry_id + 1)
            if count == 0:
                continue
            for bookie in fragment.ensemble:
                lane = lanes.setdefault(bookie, len(lanes))
                color = f"C{number % 10}"
                axes.barh(lane, count, left=start + fragment.first_entry_id, height=0.7, color=color, alpha=0.9 - 0.3 * (index % 2))
            end = max(end, start + fragment.last_entry_id + 1)
        axes.text((start + end) / 2, -0.75, f"ledger {ledger.ledger_id}", ha="center", fontsize=8)
        axes.axvline(end, color="0.8", linewidth=0.8)
        start = end
    labels = [f"{bookie}\n(killed)" if report.bookies.get(bookie) else bookie for bookie in lanes]
    axes.set_yticks(range(len(lanes)), labels)
    axes.set_ylim(len(lanes) - 0.4, -1.1)
    axes.set(
        title="which bookie holds which entries (a lighter bar: the ensemble changed)", xlabel="entries of all ledgers in order of the log"
    )
