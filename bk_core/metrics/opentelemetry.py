"""Metrics for OpenTelemetry, through its API (``pip install "bk-spark[opentelemetry]"``). Where they go is the business of the SDK that the
program has set up.

>>> from bk_core.metrics import opentelemetry
>>> exported = opentelemetry.export(client)
>>> exported.close()

The names are those of the table, of counters without ``_total``, which an exporter for Prometheus puts back. Counters and gauges are read
when the SDK collects. A histogram gets each time when it is observed, and one time stands for all entries that were acknowledged together,
because OpenTelemetry cannot be told that many took the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Self

from opentelemetry import metrics as api

from bk_core.metrics.registry import Registry
from bk_core.metrics.snapshot import HistogramValue, Labels
from bk_core.metrics.table import Metric

_log = logging.getLogger("bk_core.metrics")
_UNITS = {"seconds": "s", "bytes": "By", "yes or no": "1"}


class Exported:
    """The metrics of one client, bookie or driver as instruments. ``close`` it, or use it with ``with``: instruments cannot be taken back,
    and have no values from then on. The client is not kept alive."""

    def __init__(self, registry: Registry, meter: api.Meter, attributes: dict[str, str]) -> None:
        self._registry = registry
        self._attributes = {"client": registry.of, **attributes}
        self._histograms: dict[str, api.Histogram] = {}
        self._closed = False
        self._told = False  # of an instrument that fails
        for metric in registry.metrics.values():
            self._add(meter, metric)
        registry.tap(self._recorder)

    def _add(self, meter: api.Meter, metric: Metric) -> None:
        name, unit = metric.name.removesuffix("_total"), _UNITS.get(metric.unit, f"{{{metric.unit}}}")
        if metric.kind == "histogram":
            self._histograms[metric.name] = meter.create_histogram(name, unit=unit, description=metric.meaning)
            return
        create: Any = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        create(name, [self._observer(metric)], unit=unit, description=metric.meaning)

    def _observer(self, metric: Metric) -> Callable[[api.CallbackOptions], Iterable[api.Observation]]:
        def observe(_options: api.CallbackOptions) -> Iterable[api.Observation]:
            if self._closed:
                return
            for labels, value in self._registry.values_of(metric.name).items():
                if not isinstance(value, HistogramValue):
                    yield api.Observation(value, self._named(metric, labels))

        return observe

    def _recorder(self, metric: Metric, labels: Labels) -> Callable[[int], None]:
        histogram, attributes = self._histograms[metric.name], self._named(metric, labels)

        def record(nanoseconds: int) -> None:
            try:
                histogram.record(nanoseconds / 1e9, attributes)
            except Exception as error:  # it is called where the client works, which must not fail with an exporter
                if not self._told:
                    self._told = True
                    _log.warning("OpenTelemetry takes no times of %s: %r", metric.name, error)

        return record

    def _named(self, metric: Metric, labels: Labels) -> dict[str, str]:
        return {**self._attributes, **dict(zip(metric.labels, labels, strict=True))}

    def close(self) -> None:
        """Give no more values to the instruments. Idempotent."""
        if not self._closed:
            self._closed = True
            self._registry.tap(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def export(source: Any, meter: api.Meter | None = None, **attributes: str) -> Exported:
    """Make instruments of the metrics of ``source``, a client, an embedded bookie or a ``bk_spark.QueryMetrics``. Return what ends that.

    ``meter`` is the meter that makes them, by default one of the program's provider called ``bk_core``. ``attributes`` are added to all
    values; ``client`` is one of them, and names the source unless it is given. Only one export of a source gets its histograms.
    """
    registry: Registry = source.counts.registry
    return Exported(registry, meter or api.get_meter("bk_core"), attributes)
