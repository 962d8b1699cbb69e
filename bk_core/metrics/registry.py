"""Counts, levels and histograms that cost next to nothing, and the registry that keeps them by name and labels.

None of them has a lock. A change is one statement without a call in it, such as ``count.value += n``: CPython switches threads and handles
signals where a function begins, where a call has returned and where a loop turns, and nowhere else (bk_core/threads.py). So nothing is
lost, whichever threads count, and a signal handler may count on top of anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from bk_core.metrics.snapshot import BUCKETS, FIRST_BITS, LAST_BITS, HistogramValue, Labels, Metrics, Value
from bk_core.metrics.table import Metric

Read: TypeAlias = Callable[[], float | Mapping[Labels, float]]
"""Returns the value of a metric, or those of all its series by their labels."""


class Count:
    """A number: what was counted so far, or a level that rises and falls."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Histogram:
    """Counts of times by their size, in nanoseconds. Each power of two has four buckets, so a percentile is a quarter too high at most.
    ``tap`` is called with each observation, for an exporter that keeps histograms of its own."""

    __slots__ = ("counts", "largest", "tap", "total")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.total = 0
        self.largest = 0
        self.tap: Callable[[int], None] | None = None

    def observe(self, nanoseconds: int, times: int = 1) -> None:
        """Note a time; ``times`` things took that long."""
        bits = nanoseconds.bit_length()
        if FIRST_BITS < bits <= LAST_BITS:
            index = (bits - FIRST_BITS - 1 << 2 | nanoseconds >> bits - 3 & 3) + 1
        else:
            index = 0 if bits <= FIRST_BITS else BUCKETS - 1
        self.counts[index] += times
        self.total += nanoseconds * times
        if nanoseconds > self.largest:
            self.largest = nanoseconds
        if self.tap is not None:
            self.tap(nanoseconds)

    def read(self) -> HistogramValue:
        """Return what was observed so far."""
        return HistogramValue(tuple(self.counts), self.total, self.largest)


class Registry:
    """The metrics of one client, bookie or driver, which ``of`` names. Any thread may use it, also after what it counts was closed.

    ``table`` says which metrics there are. Those of them without labels are there from the beginning, with 0.
    """

    def __init__(self, of: str, table: Iterable[Metric]) -> None:
        self.of = of
        self.metrics: Mapping[str, Metric] = {metric.name: metric for metric in table}
        self._begun_s = time.monotonic()
        self._counts: dict[tuple[str, Labels], Count] = {}
        self._histograms: dict[tuple[str, Labels], Histogram] = {}
        self._reads: dict[str, Read] = {}
        self._taps: Callable[[Metric, Labels], Callable[[int], None]] | None = None
        for metric in self.metrics.values():
            if not metric.labels and metric.kind == "counter":
                self.count(metric.name)
            elif not metric.labels and metric.kind == "histogram":
                self.histogram(metric.name)

    def count(self, name: str, *labels: str) -> Count:
        """Return the counter, or the level, with this name and values of labels. It is made when it is first asked for."""
        found = self._counts.get((name, labels))
        return found if found is not None else self._counts.setdefault((self._known(name, labels), labels), Count())

    def histogram(self, name: str, *labels: str) -> Histogram:
        """Return the histogram with this name and values of labels. It is made when it is first asked for."""
        found = self._histograms.get((name, labels))
        if found is None:
            made = Histogram()
            if self._taps is not None:
                made.tap = self._taps(self.metrics[self._known(name, labels)], labels)
            found = self._histograms.setdefault((self._known(name, labels), labels), made)
        return found

    def read(self, name: str, read: Read) -> None:
        """Have ``read`` called for the values of a gauge, or of a counter that others keep, whenever somebody looks, on any thread."""
        self._reads[self._known(name, None)] = read

    def tap(self, make: Callable[[Metric, Labels], Callable[[int], None]] | None) -> None:
        """Have each observation of a histogram passed on, to what ``make`` returns for its metric and labels; None ends that. One exporter
        at a time can have this."""
        self._taps = make
        for (name, labels), histogram in tuple(self._histograms.items()):
            histogram.tap = None if make is None else make(self.metrics[name], labels)

    def _known(self, name: str, labels: Labels | None) -> str:
        metric = self.metrics[name]
        assert labels is None or len(labels) == len(metric.labels), f"{name} has the labels {metric.labels}, not {labels}"
        return name

    def values_of(self, name: str) -> dict[Labels, Value]:
        """Return the values of all series of one metric as they are now."""
        found: dict[Labels, Value] = {labels: count.value for (one, labels), count in tuple(self._counts.items()) if one == name}
        found |= {labels: histogram.read() for (one, labels), histogram in tuple(self._histograms.items()) if one == name}
        read = self._reads.get(name)
        if read is not None:
            told = read()
            found |= told if isinstance(told, Mapping) else {(): told}
        return found

    def snapshot(self) -> Metrics:
        """Return the values of all metrics as they are now."""
        values: dict[str, dict[Labels, Value]] = {name: {} for name in self.metrics}
        for (name, labels), count in tuple(self._counts.items()):
            values[name][labels] = count.value
        for (name, labels), histogram in tuple(self._histograms.items()):
            values[name][labels] = histogram.read()
        for name, read in tuple(self._reads.items()):
            found = read()
            values[name].update(found if isinstance(found, Mapping) else {(): found})
        return Metrics(self.of, time.time(), time.monotonic() - self._begun_s, values)
