"""Tables of metrics: what was counted, and how long things took."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bk_core.display.table import Table


def tables(rows: Iterable[tuple[str, str, str, Any]], seconds: float) -> list[Table]:
    """Return a table of numbers and one of times, without those that are empty. A row is (name, labels, unit, value), where the value of
    a histogram is (count, p50, p99, max); ``seconds`` is the time that they cover."""
    numbers: list[tuple[object, ...]] = []
    times: list[tuple[object, ...]] = []
    for name, labels, unit, value in rows:
        if isinstance(value, tuple):
            count, *found = value
            times.append((name, labels, count, *map(milliseconds, found)))
        else:
            is_level = unit.endswith(" now") or unit == "yes or no"
            numbers.append((name, labels, value, unit, "" if is_level or seconds <= 0 else rate(value / seconds)))
    columns = ("metric", "labels", "#value", "unit", "#a second"), ("metric", "labels", "#count", "#p50 ms", "#p99 ms", "#max ms")
    return [Table(names, found) for names, found in zip(columns, (numbers, times), strict=True) if found]


def milliseconds(seconds: float | None) -> str:
    """Return a time with three digits that mean something."""
    return "" if seconds is None else f"{seconds * 1000:,.3g}" if seconds < 1 else f"{seconds * 1000:,.0f}"


def rate(a_second: float) -> str:
    """Return a rate with as many digits as mean something."""
    return f"{a_second:,.0f}" if a_second >= 10 else f"{a_second:.2g}"
