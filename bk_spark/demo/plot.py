"""The demo's picture: rows over time with what happened, fragments over bookies, delays by carrier and month."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bk_spark.demo.report import FragmentRow, LedgerRow, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, RED = "#0072B2", "#D55E00"
COLOURS = (("#0072B2", "#56B4E9"), ("#009E73", "#7FCEB9"), ("#CC79A7", "#E5BCD3"), ("#E69F00", "#F2CF80"))
"""Two shades for each ledger, which people with any kind of colour blindness tell apart."""
_APART = 0.03  # of the time: nearer than that two numbers would lie on one another
_NARROW = 0.05  # of the width; narrower fragments have no room for words


def save_plot(report: Report, path: Path) -> None:
    """Write a PNG. Uses a canvas of its own: no display and no global state of matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 9), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2, 2, width_ratios=[3, 2])
    draw_rows(figure.add_subplot(grid[0, 0]), report)
    draw_delays(figure.add_subplot(grid[0, 1]), report)
    draw_fragments(figure.add_subplot(grid[1, :]), report)
    figure.savefig(path, dpi=110)


def draw_rows(axes: Axes, report: Report) -> None:
    """Rows over time. What happened is numbered above the picture and told in a list beside it, so that no words lie over the curves."""
    from matplotlib.lines import Line2D

    times = [sample.at_s for sample in report.samples]
    handles = axes.step(times, [sample.dropped for sample in report.samples], where="post", color="0.6", label="dropped into the input")
    handles += axes.step(times, [sample.committed for sample in report.samples], where="post", color=BLUE, label="committed to the log")
    told = told_moments(report)
    apart = _APART * max((at_s for at_s, _, _ in told), default=0.0)
    numbers: dict[float, str] = {}  # where they stand; those of moments that are too near one another stand together
    for number, (at_s, text, fault) in enumerate(told, 1):
        style: dict[str, Any] = {"color": RED if fault else "0.35", "linestyle": "--" if fault else ":", "linewidth": 1}
        axes.axvline(at_s, **style)
        near = max(numbers, default=None)
        numbers[at_s] = str(number) if near is None or at_s - near >= apart else f"{numbers.pop(near)}, {number}"
        handles.append(Line2D([], [], label=f"{number}  {at_s:,.0f} s: {text}", **style))
    for at_s, text in numbers.items():
        axes.text(at_s, 1.01, text, transform=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=8)
    axes.set_title("rows over time", pad=16)
    axes.set(xlabel="seconds", ylabel="rows")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=8)


def told_moments(report: Report) -> list[tuple[float, str, bool]]:
    """Return what the picture tells: when Spark's drivers began, with the first rows that each committed, and the two killings."""
    told: list[tuple[float, str, bool]] = []
    for moment in report.moments:
        words = moment.text.split(",")[0].split(":")[0]
        if moment.fault:
            told.append((moment.at_s, words, True))
        elif words.endswith("driver started"):
            told.append((moment.at_s, f"Spark: {words}", False))
            before = max((sample.committed for sample in report.samples if sample.at_s <= moment.at_s), default=0)
            first = next((sample.at_s for sample in report.samples if sample.at_s > moment.at_s and sample.committed > before), None)
            if first is not None:
                told.append((first, f"its first batch is committed, {first - moment.at_s:,.0f} s later", False))
    return sorted(told)


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
    """One lane per bookie; ledgers one after the other along x; a bar where the bookie belongs to the fragment's ensemble, hatched if the
    bookie was killed. The live copies of each fragment stand above it."""
    lanes = {bookie: lane for lane, bookie in enumerate(report.bookies)}
    spans: list[tuple[int, int, FragmentRow, LedgerRow, str]] = []
    start = 0
    for number, ledger in enumerate(report.ledgers):
        end = start
        for index, fragment in enumerate(ledger.fragments):
            first, stop = start + fragment.first_entry_id, start + fragment.last_entry_id + 1
            if stop > first:
                spans.append((first, stop, fragment, ledger, COLOURS[number % len(COLOURS)][index % 2]))
                end = max(end, stop)
        axes.text((start + end) / 2, -1.15, f"ledger {ledger.ledger_id}", ha="center", fontsize=8)
        axes.axvline(end, color="0.8", linewidth=0.8)
        start = end
    for first, stop, fragment, ledger, colour in spans:
        for bookie in fragment.ensemble:
            killed = report.bookies.get(bookie)
            style: dict[str, Any] = (
                {"facecolor": "white", "edgecolor": colour, "hatch": "////"} if killed else {"facecolor": colour, "edgecolor": "white"}
            )
            axes.barh(lanes.setdefault(bookie, len(lanes)), stop - first, left=first, height=0.7, linewidth=0.6, **style)
        if stop - first >= start * _NARROW:
            live = sum(not report.bookies.get(bookie) for bookie in fragment.ensemble)
            words = (
                f"{live} of {len(fragment.ensemble)} live" if len(fragment.ensemble) == ledger.write_quorum_size else f"{live} bookies live"
            )
            axes.text((first + stop) / 2, -0.55, words, ha="center", fontsize=7, color="0.3")
    axes.set_yticks(range(len(lanes)), [f"{bookie}\n(killed)" if report.bookies.get(bookie) else bookie for bookie in lanes])
    axes.set_ylim(len(lanes) - 0.4, -1.5)
    axes.set_xlim(0, max(1, start))
    axes.set(
        title="which bookie holds which entries (another shade: the ensemble changed; hatched: on the killed bookie)",
        xlabel="entries of all ledgers in order of the log",
    )
