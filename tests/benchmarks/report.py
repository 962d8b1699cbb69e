"""The report of a run of the benchmark: text as it goes, one JSON file, one page of plots."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from bk_core import kernels
from tests.benchmarks.measure import Comparison
from tests.benchmarks.plan import Took, account, clock

MACHINE = {
    "cores": os.cpu_count(),
    "python": platform.python_version(),
    "kernels": f"{kernels.IMPLEMENTATION}, {kernels.CRC32C_KERNEL}",
}


class Report:
    """Comparisons in the order in which they were added. Every ``add`` prints the table and writes the JSON again: a run that is stopped
    leaves what it had."""

    def __init__(self, json_path: Path | None = None, out: TextIO | None = None) -> None:
        self.comparisons: list[Comparison] = []
        self.steps: list[Took] = []
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

    def took(self, took: Took) -> None:
        """A step is over."""
        self.steps.append(took)
        self.say(f"{took.step.name} took {clock(took.seconds)} of {clock(took.expected_s)} minutes{', failed' if took.failed else ''}")
        if self._json_path is not None:
            self.write_json(self._json_path)

    @property
    def _at(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(self._began))

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
            "at": self._at,
            "machine": MACHINE,
            "steps": [
                {"name": t.step.name, "expectedS": round(t.expected_s), "tookS": round(t.seconds, 1), "failed": t.failed}
                for t in self.steps
            ],
            "comparisons": [comparison.as_json() for comparison in self.comparisons],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".tmp")
        beside.write_text(json.dumps(found, indent=1) + "\n")
        beside.replace(path)

    def plot(self, path: Path) -> None:
        """One page; see ``plots``."""
        from tests.benchmarks.plots import page

        if not self.comparisons:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        about = f"{self._at}, {', '.join(f'{name}: {value}' for name, value in MACHINE.items())}"
        path.write_text(page(self.comparisons, about, account(self.steps)))
