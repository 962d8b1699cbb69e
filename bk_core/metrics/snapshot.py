"""The values of metrics at one moment, or between two."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from bk_core.errors import InvalidArgumentError
from bk_core.metrics.table import ALL, Metric

Labels: TypeAlias = tuple[str, ...]
"""The values of the labels of one series, in the order of the metric's table."""

FIRST_BITS = 10  # times below 2^10 ns are one bucket
LAST_BITS = 38  # those of 2^38 ns (275 s) and more are one, too
BUCKETS = (LAST_BITS - FIRST_BITS) * 4 + 2
_NS = 1e9


def upper_bound_ns(index: int) -> int:
    """Return the time at which the bucket ``index`` of a histogram ends; the last one has no end."""
    octave, quarter = divmod(index, 4)
    return (1 << FIRST_BITS + octave) * (4 + quarter) // 4


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """The times that a histogram has observed: ``buckets`` count them by size, and ``total_ns`` is their sum. ``largest_ns`` is the largest
    since the beginning, also in the difference of two values."""

    buckets: tuple[int, ...]
    total_ns: int
    largest_ns: int

    @property
    def count(self) -> int:
        """The number of times that were observed."""
        return sum(self.buckets)

    @property
    def sum_s(self) -> float:
        """The sum of all times, in seconds."""
        return self.total_ns / _NS

    @property
    def mean_s(self) -> float | None:
        """The mean time in seconds; None if there was none."""
        return self.total_ns / self.count / _NS if self.count else None

    @property
    def p50_s(self) -> float | None:
        """The median in seconds; None if there was no time."""
        return self.percentile_s(50)

    @property
    def p99_s(self) -> float | None:
        """The time in seconds that 99 of 100 do not exceed; None if there was none."""
        return self.percentile_s(99)

    @property
    def max_s(self) -> float | None:
        """The largest time in seconds; None if there was none. Of a difference it is an upper bound."""
        return self.percentile_s(100)

    def percentile_s(self, percent: float) -> float | None:
        """Return the time in seconds that ``percent`` of 100 do not exceed, at most a quarter too high; None if there was none."""
        wanted, seen = max(1.0, self.count * percent / 100), 0
        for index, count in enumerate(self.buckets):
            seen += count
            if count and seen >= wanted:
                return min(upper_bound_ns(index) if index < BUCKETS - 1 else self.largest_ns, self.largest_ns) / _NS
        return None

    def up_to(self, index: int) -> int:
        """Return how many times were below the end of the bucket ``index``."""
        return sum(self.buckets[: index + 1])

    def __add__(self, other: HistogramValue) -> HistogramValue:
        both = tuple(a + b for a, b in zip(self.buckets, other.buckets, strict=True))
        return HistogramValue(both, self.total_ns + other.total_ns, max(self.largest_ns, other.largest_ns))

    def __sub__(self, earlier: HistogramValue) -> HistogramValue:
        since = tuple(a - b for a, b in zip(self.buckets, earlier.buckets, strict=True))
        return HistogramValue(since, self.total_ns - earlier.total_ns, self.largest_ns)


Value: TypeAlias = int | float | HistogramValue
NOTHING = HistogramValue((0,) * BUCKETS, 0, 0)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Metrics:
    """The metrics of a client or a bookie at one moment, which ``BookKeeper.metrics`` returns. The difference of two is what happened
    between them.

    ``of`` names what was counted, ``at_s`` is the moment in Unix seconds, and ``seconds`` the time that is covered: since the client was
    made or, in a difference, between the two. ``values`` are the values by name of the metric and by values of its labels.

    >>> before = client.metrics()
    >>> ledger.append_many([b"a", b"b"])
    >>> since = client.metrics() - before
    >>> since["bookkeeper_client_add_entry_total"], since.per_second("bookkeeper_client_add_entry_total")
    >>> since["bookkeeper_client_add_entry_seconds"].p99_s
    """

    of: str
    at_s: float
    seconds: float
    values: Mapping[str, Mapping[Labels, Value]]

    def __getitem__(self, name: str) -> Any:
        """Return the value of the metric called ``name``: the sum over its labels, a ``HistogramValue`` for a histogram.

        Raises InvalidArgumentError for a name that these metrics do not have.
        """
        return self.value(name)

    def value(self, name: str, **labels: str) -> Any:
        """Return the value of the metric called ``name``, summed over all series that have the given ``labels``.

        Raises InvalidArgumentError for a name or a label that does not exist.

        >>> client.metrics().value("bookkeeper_client_bookie_connections", bookie="127.0.0.1:3181")
        """
        metric = self._metric(name)
        unknown = sorted(set(labels) - set(metric.labels))
        if unknown:
            raise InvalidArgumentError(f"{name} has no label {unknown[0]}; it has {', '.join(metric.labels) or 'none'}")
        wanted = [(metric.labels.index(label), value) for label, value in labels.items()]
        found = [value for series, value in self.values[name].items() if all(series[at] == one for at, one in wanted)]
        if metric.kind == "histogram":
            return sum((value for value in found if isinstance(value, HistogramValue)), NOTHING)
        return sum(value for value in found if not isinstance(value, HistogramValue))

    def _metric(self, name: str) -> Metric:
        if name not in self.values:
            raise InvalidArgumentError(f"there is no metric {name!r} of {self.of}; docs: the page Metrics and alerts has them all")
        return ALL[name]

    def per_second(self, name: str) -> float:
        """Return how much the counter called ``name`` grew in a second, or how many times its histogram observed, on the average of the
        time that is covered.

        Raises InvalidArgumentError for a gauge, and for a name that does not exist.
        """
        if self._metric(name).kind == "gauge":
            raise InvalidArgumentError(f"{name} is a gauge, which has a value and no rate")
        found = self.value(name)
        return float(found.count if isinstance(found, HistogramValue) else found) / self.seconds if self.seconds > 0 else 0.0

    def __sub__(self, earlier: Metrics) -> Metrics:
        """Return what was counted since ``earlier``. Gauges have no difference, and are as they are now."""
        if not isinstance(earlier, Metrics):
            return NotImplemented
        values = {name: dict(self._since(earlier, name)) for name in self.values}
        return Metrics(self.of, self.at_s, self.seconds - earlier.seconds, values)

    def _since(self, earlier: Metrics, name: str) -> Iterator[tuple[Labels, Value]]:
        before = earlier.values.get(name, {})
        for labels, value in self.values[name].items():
            was = before.get(labels)
            if isinstance(value, HistogramValue):
                yield labels, value - was if isinstance(was, HistogramValue) else value
            elif was is None or isinstance(was, HistogramValue) or ALL[name].kind == "gauge":
                yield labels, value
            else:
                yield labels, value - was

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, which ``json.dumps`` takes: by name of the metric a number or, for a histogram, its count, sum
        and percentiles in seconds. A metric with labels is a list of such values, each with its labels."""
        found: dict[str, Any] = {"of": self.of, "at_s": self.at_s, "seconds": self.seconds, "metrics": {}}
        for name, series in self.values.items():
            named = [dict(zip(ALL[name].labels, labels, strict=True)) for labels in series]
            plain = [_plain(value) for value in series.values()]
            if ALL[name].labels:
                found["metrics"][name] = [{"labels": labels, "value": value} for labels, value in zip(named, plain, strict=True)]
            elif plain:
                found["metrics"][name] = plain[0]
        return found

    def __repr__(self) -> str:
        return f"<Metrics of {self.of}, {self.seconds:.1f} s until {self._moment}>"

    @property
    def _moment(self) -> str:
        return datetime.fromtimestamp(self.at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

    def _repr_html_(self) -> str:
        """Return the tables that a notebook shows: counters and gauges that are not 0, and histograms that have observed something."""
        from bk_core.display.metrics import tables
        from bk_core.display.table import html

        return html(repr(self).strip("<>"), *tables(self._rows(), self.seconds))

    def _rows(self) -> Iterator[tuple[str, str, str, Any]]:
        """Yield (name, labels, unit, value) of all that is not 0; the value of a histogram is (count, p50, p99, max)."""
        for name, series in self.values.items():
            metric = ALL[name]
            for labels, value in sorted(series.items()):
                told = ", ".join(f"{label} {one}" for label, one in zip(metric.labels, labels, strict=True))
                if not isinstance(value, HistogramValue):
                    if value:
                        yield (
                            name,
                            told,
                            metric.unit if metric.kind == "counter" or metric.unit == "yes or no" else f"{metric.unit} now",
                            value,
                        )
                elif value.count:
                    yield name, told, metric.unit, (value.count, value.p50_s, value.p99_s, value.max_s)


def _plain(value: Value) -> Any:
    if not isinstance(value, HistogramValue):
        return value
    return {"count": value.count, "sum_s": value.sum_s, "p50_s": value.p50_s, "p99_s": value.p99_s, "max_s": value.max_s}
