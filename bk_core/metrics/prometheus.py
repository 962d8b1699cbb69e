"""Metrics for Prometheus, through its own library (``pip install "bk-spark[prometheus]"``).

>>> from bk_core.metrics import prometheus
>>> prometheus.register(client)                         # into the registry that the program serves already
>>> with prometheus.serve(client, port=9108) as page:   # or on a page of its own, on the loopback
...     print(page.url)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from threading import Thread
from typing import Any, Protocol, Self

from prometheus_client import REGISTRY, CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from bk_core.display.words import host_port
from bk_core.metrics.registry import Registry
from bk_core.metrics.snapshot import FIRST_BITS, HistogramValue, Labels, Metrics, Value, upper_bound_ns
from bk_core.metrics.table import ALL, Metric

LOOPBACK = "127.0.0.1"
_LAST = tuple((bits - FIRST_BITS) * 4 for bits in range(13, 38))
"""The buckets of a histogram at whose ends Prometheus is given a count: at each power of two from 8 µs to 137 s."""
_BOUNDS = tuple(str(upper_bound_ns(index) / 1e9) for index in _LAST)


class _Counts(Protocol):
    @property
    def registry(self) -> Registry: ...


class Counting(Protocol):
    """An object that has metrics: a client, an embedded bookie, the queries of a driver."""

    @property
    def counts(self) -> _Counts: ...


class MetricsCollector(Collector):
    """Gives the metrics of clients, bookies and queries to Prometheus, as they are when it asks. ``label`` is the label that tells them
    apart: of several of one name, such as clients of one cluster, the second one has " (2)" behind it. The sources are not kept alive."""

    def __init__(self, sources: Iterable[Counting], label: str = "client") -> None:
        self._registries = [source.counts.registry for source in sources]
        self._label = label

    def collect(self) -> Iterator[Family]:
        """Yield one family for each metric, with the series of all sources."""
        found = _told_apart(registry.snapshot() for registry in self._registries)
        for name in dict.fromkeys(name for _, metrics in found for name in metrics.values):
            family = _family(ALL[name], self._label)
            for of, metrics in found:
                _add_all(family, of, metrics, name)
            if family.samples:
                yield family

    def describe(self) -> Iterator[Family]:
        """Yield the families without series, by which a registry sees what it has already."""
        found = [registry.snapshot() for registry in self._registries]
        for name in dict.fromkeys(name for metrics in found for name in metrics.values):
            yield _family(ALL[name], self._label)


def _told_apart(found: Iterable[Metrics]) -> list[tuple[str, Metrics]]:
    """Return the metrics, each with a name that no other one has."""
    seen: Counter[str] = Counter()
    named = []
    for metrics in found:
        seen[metrics.of] += 1
        named.append((metrics.of if seen[metrics.of] == 1 else f"{metrics.of} ({seen[metrics.of]})", metrics))
    return named


def _family(metric: Metric, label: str) -> Any:
    kinds: dict[str, Any] = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily, "histogram": HistogramMetricFamily}
    return kinds[metric.kind](metric.name, metric.meaning, labels=[label, *metric.labels])


def _add_all(family: Any, of: str, metrics: Metrics, name: str) -> None:
    series: dict[Labels, Value] = dict(metrics.values.get(name, {}))
    for labels, value in series.items():
        if isinstance(value, HistogramValue):
            bounds = [(bound, value.up_to(index)) for bound, index in zip(_BOUNDS, _LAST, strict=True)]
            family.add_metric([of, *labels], [*bounds, ("+Inf", value.count)], value.sum_s)
        else:
            family.add_metric([of, *labels], value)


def register(*sources: Counting, registry: CollectorRegistry = REGISTRY, label: str = "client") -> MetricsCollector:
    """Register the metrics of ``sources`` (clients, embedded bookies, ``bk_spark.QueryMetrics``) with ``registry``, by default the one that
    a program serves, and return the collector, for ``registry.unregister``. Sources that have the same metrics must be registered together.

    ``label`` is the label whose value names the source.

    Raises ValueError of Prometheus's library if the registry has these metrics already.
    """
    collector = MetricsCollector(sources, label)
    registry.register(collector)
    return collector


class Page:
    """A page of metrics that is being served. ``close`` it, or use it with ``with``."""

    def __init__(self, sources: Iterable[Counting], port: int, host: str, label: str) -> None:
        registry = CollectorRegistry()
        registry.register(MetricsCollector(sources, label))
        self._server, self._thread = _served(port, host, registry)
        self.host, self.port = host, int(self._server.server_port)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{host_port(self.host, self.port)}/metrics"

    def close(self) -> None:
        """Stop serving it, and wait for that. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _served(port: int, host: str, registry: CollectorRegistry) -> tuple[Any, Thread]:
    return start_http_server(port, addr=host, registry=registry)


def serve(*sources: Counting, port: int = 0, host: str = LOOPBACK, label: str = "client") -> Page:
    """Serve the metrics of ``sources`` on a page of their own, and return it. ``port`` 0 takes any free one.

    ``host`` is the address to listen on, by default the loopback: the page asks for no password, and names bookies and logs. ``label`` is
    the label whose value names the source.

    Raises OSError if the port cannot be had.
    """
    return Page(sources, port, host, label)
