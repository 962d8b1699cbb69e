"""Medians, tables, and what a machine was doing meanwhile."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not pass."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and p99 of ``count`` values."""

    count: int
    median: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """NaN of no values."""
        if not values:
            return cls(0, math.nan, math.nan)
        return cls(len(values), statistics.median(values), quantile(values, 0.99))

    def __str__(self) -> str:
        return f"{self.median:.0f} / {self.p99:.0f}" if self.count else "-"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def load() -> str:
    """The load average of one, five and fifteen minutes."""
    return "load " + ", ".join(f"{value:.1f}" for value in os.getloadavg())
