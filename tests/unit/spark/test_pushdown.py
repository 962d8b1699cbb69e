"""Filters as bounds: they leave out only what no filter would keep."""

from __future__ import annotations

import operator
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from bk_spark.source.bounds import NO_BOUNDS, Bounds, Interval
from bk_spark.source.pushdown import bounds_of

COLUMNS = {"_ledgerId": "ledgerId", "_timestamp": "timestamp", "_log": "log"}
COMPARISONS: dict[Any, Any] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
FILTERS = st.lists(st.tuples(st.sampled_from(sorted(COMPARISONS, key=lambda c: c.__name__)), st.integers(-5, 15)), max_size=4)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@given(FILTERS, st.lists(st.integers(0, 10), max_size=3), st.integers(0, 10))
def test_whole_numbers_are_bounded_exactly(filters: list[tuple[Any, int]], among: list[int], number: int) -> None:
    pushed = [kind(("_ledgerId",), value) for kind, value in filters] + [In(("_ledgerId",), (*among, None)) for _ in among[:1]]
    kept = all(COMPARISONS[kind](number, value) for kind, value in filters) and (not among or number in among)
    interval = bounds_of(pushed, COLUMNS).interval("ledgerId")
    assert interval.meets(number, number) == kept
    first, last = interval.clipped(0, 10)
    assert not kept or first <= number <= last


@given(FILTERS, st.integers(0, 10))
def test_times_are_never_bounded_too_much(filters: list[tuple[Any, int]], ms: int) -> None:
    """Filters in thirds of a millisecond, on commits at whole ones."""
    moment = EPOCH + timedelta(milliseconds=ms + 1_763_640_000_001)
    values = [(kind, EPOCH + timedelta(milliseconds=1_763_640_000_001, microseconds=333 * value)) for kind, value in filters]
    interval = bounds_of([kind(("_timestamp",), value) for kind, value in values], COLUMNS).interval("timestamp")
    if all(COMPARISONS[kind](moment, value) for kind, value in values):
        assert interval.meets(ms + 1_763_640_000_001, ms + 1_763_640_000_001)


def test_what_is_not_understood_bounds_nothing() -> None:
    strange = [
        IsNotNull(("_ledgerId",)),
        Not(EqualTo(("_ledgerId",), 3)),
        EqualTo(("id",), 3),
        EqualTo(("_ledgerId", "deep"), 3),
        EqualTo(("_ledgerId",), "3"),
        EqualTo(("_ledgerId",), None),
        EqualTo(("_timestamp",), datetime(2026, 1, 1)),
        In(("_ledgerId",), (1, "2")),
        StringStartsWith(("_log",), "a"),
    ]
    assert bounds_of(strange, COLUMNS) == NO_BOUNDS


def test_logs_are_named() -> None:
    bounds = bounds_of([In(("_log",), ("a", "b", None)), EqualTo(("_log",), "b")], COLUMNS)
    assert bounds.allows_log("b") and not bounds.allows_log("a") and not bounds.allows_log(None)
    assert NO_BOUNDS.allows_log(None) and pickle.loads(pickle.dumps(bounds)) == bounds


def test_open_ends() -> None:
    assert Interval(5).meets(0, None) and not Interval(None, 5).meets(6, None)
    assert Interval(among=frozenset((3,))).meets(0, None) and Bounds({"a": Interval(1)}).interval("b").ends() == (None, None)
