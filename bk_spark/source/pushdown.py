"""Turns the filters that Spark pushes down into bounds on what a read may give (spark-connectors.md 5.5). Pure.

Bounds leave out only what no row can satisfy. Every filter goes back to Spark too, which checks each row again, so that results are the
same with and without: a filter that is not understood bounds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from bk_spark.source.bounds import ANY, LOG, TIMESTAMP, Bounds, Interval

Convert = Callable[[Any], int | None]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def bounds_of(filters: Iterable[Filter], columns: Mapping[str, str]) -> Bounds:
    """Return the bounds of filters. ``columns`` gives the meaning of a column of the DataFrame, e.g. ``{"_ledgerId": "ledgerId"}``; filters
    on others bound nothing."""
    intervals: dict[str, Interval] = {}
    logs: frozenset[str] | None = None
    for one in filters:
        path: Sequence[str] = getattr(one, "attribute", ())
        meaning = columns.get(path[0]) if len(path) == 1 else None
        if meaning == LOG:
            names = _names(one)
            if names is not None:
                logs = names if logs is None else logs & names
        elif meaning is not None:
            found = _interval(one, _milliseconds if meaning == TIMESTAMP else _whole)
            if found is not None:
                intervals[meaning] = intervals.get(meaning, ANY).narrowed(found)
    return Bounds(MappingProxyType(intervals), logs)


def _names(one: Filter) -> frozenset[str] | None:
    match one:
        case EqualTo(_, str(value)) | EqualNullSafe(_, str(value)):
            return frozenset((value,))
        case In(_, values):
            return frozenset(v for v in values if isinstance(v, str))
        case _:
            return None


def _interval(one: Filter, convert: Convert) -> Interval | None:
    """Return inclusive bounds that contain whatever satisfies the filter."""
    match one:
        case EqualTo(_, value) | EqualNullSafe(_, value):
            return _between(convert(value), convert(value))
        case GreaterThanOrEqual(_, value) | GreaterThan(_, value):
            return _between(convert(value), None, past=isinstance(one, GreaterThan) and convert is _whole)
        case LessThanOrEqual(_, value) | LessThan(_, value):
            return _between(None, convert(value), past=isinstance(one, LessThan) and convert is _whole)
        case In(_, values):
            there = [value for value in values if value is not None]
            numbers = frozenset(n for n in map(convert, there) if n is not None)
            return Interval(among=numbers) if all(convert(value) is not None for value in there) else None
        case _:
            return None


def _between(low: int | None, high: int | None, past: bool = False) -> Interval | None:
    if low is None and high is None:
        return None
    step = 1 if past else 0
    return Interval(None if low is None else low + step, None if high is None else high - step)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _milliseconds(value: Any) -> int | None:
    """Return milliseconds, rounded down because commit times are whole milliseconds. If a bound allows less than a millisecond too much,
    Spark's own check of the rows corrects it. A time without a zone tells no moment, so it bounds nothing."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // timedelta(milliseconds=1)
