"""What a run of the benchmark leaves behind: text as it goes, one JSON file, one page of plots."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from bk_core import kernels
from tests.benchmarks.measure import Comparison, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 4


class Report:
    """Comparisons in the order in which they were added. Every ``add`` prints the table and writes the JSON again: a run that is stopped
    leaves what it had."""

    def __init__(self, json_path: Path | None = None, out: TextIO | None = None) -> None:
        self.comparisons: list[Comparison] = []
        self._json_path = json_path
        self._out = out or sys.stdout
        self._began = time.time()

    def say(self, text: str) -> None:
        """A line of progress, with the seconds since the start."""
        print(f"[{time.time() - self._began:6.0f} s] {text}", file=self._out, flush=True)

    def add(self, comparison: Comparison) -> None:
        self.comparisons.append(comparison)
        print(f"\n{comparison.text()}\n", file=self._out, flush=True)
        if self._json_path is not None:
            self.write_json(self._json_path)

    def verdicts(self) -> list[str]:
        return [f"{comparison.title}: {line}" for comparison in self.comparisons for line in comparison.verdicts()]

    def print_summary(self) -> None:
        """All that should be reached, in one list."""
        lines = self.verdicts()
        missed = sum(line.endswith("NO") for line in lines)
        print(f"== reach: {len(lines) - missed} of {len(lines)}", file=self._out)
        for line in lines:
            print(line, file=self._out, flush=True)

    def write_json(self, path: Path) -> None:
        found: dict[str, Any] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(self._began)),
            "machine": {"cores": os.cpu_count(), "python": platform.python_version(), "kernels": kernels.IMPLEMENTATION},
            "comparisons": [comparison.as_json() for comparison in self.comparisons],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".tmp")
        beside.write_text(json.dumps(found, indent=1) + "\n")
        beside.replace(path)

    def plot(self, path: Path) -> None:
        """One page: per comparison the rate of each contender, median with smallest and largest."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        if not self.comparisons:
            return
        rows = -(-len(self.comparisons) // COLUMNS)
        heights = [max(len(c.samples) for c in self.comparisons[at * COLUMNS : (at + 1) * COLUMNS]) for at in range(rows)]
        figure = Figure(figsize=(4.6 * COLUMNS, sum(0.9 + 0.3 * height for height in heights)), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.add_gridspec(rows, COLUMNS, height_ratios=[0.9 + 0.3 * height for height in heights])
        for index, comparison in enumerate(self.comparisons):
            draw(figure.add_subplot(grid[index // COLUMNS, index % COLUMNS]), comparison)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=90)


def draw(axes: Axes, comparison: Comparison) -> None:
    """Horizontal bars, the baseline in grey; the text beside a bar is its median and its ratio."""
    names = list(comparison.samples)
    longest = max(comparison.spread(name).high for name in names) or 1.0
    for lane, name in enumerate(names):
        rate = comparison.spread(name)
        base = name == comparison.baseline
        axes.barh(lane, rate.median, height=0.7, color="0.7" if base else "tab:blue")
        axes.plot([rate.low, rate.high], [lane, lane], color="black", linewidth=1.2)
        ratio = "" if base else f"  x{comparison.ratio(name).median:.2f}"
        axes.text(longest * 1.02, lane, f"{number(rate.median)}{ratio}", va="center", fontsize=7)
    axes.set_xlim(0, longest * 1.45)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=6)
    axes.set_title(f"{comparison.title} ({comparison.unit}/s)", fontsize=8)
