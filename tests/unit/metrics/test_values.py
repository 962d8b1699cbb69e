"""Histograms, snapshots, differences of them, and what they look like."""

from __future__ import annotations

import json
import random
from itertools import pairwise

import pytest

from bk_core.errors import InvalidArgumentError
from bk_core.metrics.client import ClientCounts
from bk_core.metrics.marks import Marks
from bk_core.metrics.registry import Histogram, Registry
from bk_core.metrics.snapshot import BUCKETS, NOTHING, upper_bound_ns
from bk_core.metrics.table import ALL, BOOKIE, CLIENT, SPARK, Metric

SECOND = 1_000_000_000


def test_every_time_is_in_the_bucket_whose_bounds_hold_it() -> None:
    bounds = [upper_bound_ns(index) for index in range(BUCKETS - 1)]
    assert bounds == sorted(bounds) and all(upper <= lower * 5 // 4 + 1 for lower, upper in pairwise(bounds))
    for index, (lower, upper) in enumerate(pairwise(bounds), 1):
        for nanoseconds in (lower, upper - 1):
            histogram = Histogram()
            histogram.observe(nanoseconds)
            assert histogram.counts[index] == 1, nanoseconds
    for nanoseconds, index in ((0, 0), (bounds[0] - 1, 0), (bounds[-1], BUCKETS - 1), (10**18, BUCKETS - 1)):
        histogram = Histogram()
        histogram.observe(nanoseconds)
        assert histogram.counts[index] == 1, nanoseconds


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_at_most_a_quarter_too_high(seed: int) -> None:
    chance = random.Random(seed)
    times = sorted(int(10 ** chance.uniform(3.5, 11)) for _ in range(1000))
    histogram = Histogram()
    for nanoseconds in times:
        histogram.observe(nanoseconds)
    value = histogram.read()
    assert value.count == 1000 and value.total_ns == sum(times) and value.max_s == times[-1] / 1e9
    for percent in (1, 50, 90, 99, 100):
        exact = times[max(0, percent * 10 - 1)] / 1e9
        told = value.percentile_s(percent)
        assert told is not None and exact <= told <= exact * 1.25


def test_a_time_may_stand_for_many_and_values_add_up() -> None:
    histogram = Histogram()
    histogram.observe(SECOND, 99)
    before = histogram.read()
    histogram.observe(3 * SECOND)
    value = histogram.read()
    assert (value.count, value.sum_s, value.mean_s) == (100, 102.0, 1.02)
    assert value.p50_s is not None and 1 <= value.p50_s <= 1.25 and value.p99_s == value.p50_s and value.max_s == 3.0
    since = value - before
    assert (since.count, since.sum_s) == (1, 3.0) and (since + before) == value
    assert NOTHING.count == 0 and NOTHING.mean_s is NOTHING.p50_s is NOTHING.max_s is None


def test_marks_tell_how_long_those_sent_first_took() -> None:
    histogram = Histogram()
    marks = Marks(histogram)
    marks.began(0, 100)
    marks.began(10, 200)  # five more
    assert marks.answered(4, 1100) == 4
    assert marks.answered(4, 1200) == 0
    assert marks.answered(12, 2100) == 8
    assert histogram.total == 4 * 1000 + 6 * 2000 + 2 * 1900
    marks.clear()
    assert marks.answered(0, 9000) == 0
    marks.began(0, 10_000)
    assert marks.answered(2, 10_500) == 2 and histogram.total == 4 * 1000 + 6 * 2000 + 2 * 1900 + 2 * 500
    for number in range(2, 5):
        marks.began(number, 10_000 * number)
    assert marks.answered(5, 60_000) == 3 and histogram.total == 4 * 1000 + 6 * 2000 + 2 * 1900 + 2 * 500 + 40_000 + 30_000 + 20_000


def counted() -> ClientCounts:
    counts = ClientCounts("a test")
    counts.add_entries.value += 7
    counts.bookie("one:1").failed("read", "TIMEOUT")
    counts.bookie("two:1").failed("read", "NO_ENTRY", 2)
    counts.bookie("one:1").asked("read", SECOND // 1000)
    return counts


def test_a_snapshot_is_asked_by_name_and_labels() -> None:
    metrics = counted().registry.snapshot()
    assert metrics["bookkeeper_client_add_entry_total"] == 7
    failed = "bookkeeper_client_bookie_request_failed_total"
    assert metrics[failed] == 3 and metrics.value(failed, bookie="two:1") == 2 and metrics.value(failed, status="OK") == 0
    assert metrics["bookkeeper_client_bookie_request_seconds"].max_s == 0.001
    with pytest.raises(InvalidArgumentError, match="no metric 'bookkeeper_bookie_fence_total' of a test"):
        metrics["bookkeeper_bookie_fence_total"]
    with pytest.raises(InvalidArgumentError, match=r"has no label log; it has bookie, operation, status"):
        metrics.value(failed, log="x")


def test_the_difference_of_two_is_what_came_between() -> None:
    counts = counted()
    level = counts.bookie("one:1").connections
    level.value = 5
    before = counts.registry.snapshot()
    counts.add_entries.value += 20
    counts.bookie("new:1").failed("read", "TIMEOUT")
    counts.add_seconds.observe(SECOND)
    level.value = 3
    after = counts.registry.snapshot()
    since = after - before
    assert since["bookkeeper_client_add_entry_total"] == 20
    assert since["bookkeeper_client_bookie_request_failed_total"] == 1
    assert since["bookkeeper_client_add_entry_seconds"].count == 1
    assert since["bookkeeper_client_bookie_connections"] == 3  # a level has no difference
    assert since.seconds == pytest.approx(after.seconds - before.seconds)
    assert since.per_second("bookkeeper_client_add_entry_total") == pytest.approx(20 / since.seconds)
    assert since.per_second("bookkeeper_client_add_entry_seconds") == pytest.approx(1 / since.seconds)
    with pytest.raises(InvalidArgumentError, match="is a gauge"):
        since.per_second("bookkeeper_client_bookie_connections")
    assert before["bookkeeper_client_add_entry_total"] == 7  # a snapshot stays as it was


def test_plain_values_are_json() -> None:
    plain = json.loads(json.dumps(counted().registry.snapshot().to_dict()))
    assert plain["of"] == "a test" and plain["metrics"]["bookkeeper_client_add_entry_total"] == 7
    failed = plain["metrics"]["bookkeeper_client_bookie_request_failed_total"]
    assert {"labels": {"bookie": "one:1", "operation": "read", "status": "TIMEOUT"}, "value": 1} in failed
    assert plain["metrics"]["bookkeeper_client_add_entry_seconds"]["count"] == 0


def test_a_notebook_shows_what_there_is_and_no_markup_of_others() -> None:
    counts = counted()
    counts.bookie("<b>evil</b>").failed("read", "TIMEOUT")
    shown = counts.registry.snapshot()._repr_html_()
    assert "bookkeeper_client_add_entry_total" in shown and "bookie one:1, operation read" in shown
    assert "<b>" not in shown and "&lt;b&gt;evil" in shown
    assert "bookkeeper_client_log_trim_total" not in shown  # nothing was trimmed


def test_labels_that_a_metric_does_not_have_are_a_mistake_of_ours() -> None:
    registry = Registry("a test", CLIENT)
    with pytest.raises(AssertionError):
        registry.count("bookkeeper_client_add_entry_total", "a", "b")
    with pytest.raises(KeyError):
        registry.count("bookkeeper_client_nothing_total")


@pytest.mark.parametrize("metric", ALL.values(), ids=lambda metric: metric.name)
def test_the_table_keeps_to_its_own_rules(metric: Metric) -> None:
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert (metric.kind == "histogram") == metric.name.endswith("_seconds")
    assert metric.meaning[0].isupper() or metric.meaning[0].isdigit()
    assert metric.meaning.endswith(".") and metric.unit


def test_names_are_unique() -> None:
    assert len(ALL) == len(CLIENT) + len(BOOKIE) + len(SPARK)
