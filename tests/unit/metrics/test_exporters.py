"""Prometheus and OpenTelemetry, each through its own library: what they are given is what was counted."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from bk_core.metrics import opentelemetry, prometheus
from bk_core.metrics.bookie import ServerCounts
from bk_core.metrics.client import ClientCounts
from bk_core.metrics.registry import Registry

C = "bookkeeper_client_"


class Source:
    """Something that counts, as a client does."""

    def __init__(self, of: str) -> None:
        self.counts = counts = ClientCounts(of)
        counts.add_entries.value += 1000
        counts.bookie("one:1").connections.value = 2
        counts.bookie("one:1").failed("read", 'quote " and \\ line\n')
        for milliseconds, times in ((1, 90), (10, 9), (1000, 1)):
            counts.add_seconds.observe(milliseconds * 1_000_000, times)


Series = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of a page, by its name and labels, as Prometheus's own parser reads it."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(found: Series, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def test_prometheus_reads_what_was_counted() -> None:
    registry = CollectorRegistry()
    collector = prometheus.register(Source("first"), Source("second"), registry=registry)
    found = scraped(generate_latest(registry).decode())
    assert of(found, f"{C}add_entry_total", client="first") == of(found, f"{C}add_entry_total", client="second") == 1000
    assert of(found, f"{C}log_trim_total", client="first") == 0  # it is there before anything was trimmed
    assert of(found, f"{C}bookie_connections", client="first", bookie="one:1") == 2
    odd = {"client": "first", "bookie": "one:1", "operation": "read", "status": 'quote " and \\ line\n'}
    assert of(found, f"{C}bookie_request_failed_total", **odd) == 1
    assert of(found, f"{C}add_entry_seconds_count", client="first") == 100
    assert of(found, f"{C}add_entry_seconds_sum", client="first") == pytest.approx(0.09 + 0.09 + 1)
    bounds = {
        float(dict(labels)["le"]): value
        for (name, labels), value in found.items()
        if name == f"{C}add_entry_seconds_bucket" and dict(labels)["client"] == "first"
    }
    ordered = [bounds[bound] for bound in sorted(bounds)]
    assert ordered == sorted(ordered) and ordered[0] == 0 and bounds[float("inf")] == 100
    assert max(value for bound, value in bounds.items() if bound < 0.001) == 0
    assert min(value for bound, value in bounds.items() if bound > 0.0011) == 90
    assert min(value for bound, value in bounds.items() if 0.011 < bound < 0.99) == 99
    registry.unregister(collector)
    assert generate_latest(registry) == b""


def test_a_page_is_served_on_the_loopback_until_it_is_closed() -> None:
    with prometheus.serve(Source("one")) as page:
        assert page.url.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(page.url, timeout=10) as answer:
            found = scraped(answer.read().decode())
        assert of(found, f"{C}add_entry_total", client="one") == 1000
    with pytest.raises(OSError):
        urllib.request.urlopen(page.url, timeout=10)
    with pytest.raises(OSError), prometheus.serve(Source("one")) as first:
        prometheus.serve(Source("two"), port=first.port)


def test_a_bookie_has_a_label_of_its_own() -> None:
    class Bookie:
        counts = ServerCounts("bookie one:1")

    registry = CollectorRegistry()
    prometheus.register(Bookie(), registry=registry, label="bookie")
    assert of(scraped(generate_latest(registry).decode()), "bookkeeper_bookie_fence_total", bookie="bookie one:1") == 0


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    found = InMemoryMetricReader()
    provider = MeterProvider([found])
    found.meter = provider.get_meter("a test")  # type: ignore[attr-defined]
    yield found
    provider.shutdown()


def collected(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_opentelemetry_collects_what_was_counted(reader: InMemoryMetricReader) -> None:
    source = Source("mine")
    with opentelemetry.export(source, reader.meter, job="nightly") as exported:  # type: ignore[attr-defined]
        source.counts.add_entries.value += 5
        source.counts.add_seconds.observe(250_000_000, 5)
        source.counts.bookie("new:1").asked("read", 1_000_000)  # a series that is made later
        found = collected(reader)
        (added,) = found[f"{C}add_entry"]
        assert added.value == 1005 and dict(added.attributes) == {"client": "mine", "job": "nightly"}
        assert {point.attributes["bookie"]: point.value for point in found[f"{C}bookie_connections"]} == {"one:1": 2, "new:1": 0}
        (seconds,) = found[f"{C}add_entry_seconds"]
        assert (seconds.count, seconds.sum) == (1, 0.25)  # five that were acknowledged together are one
        (asked,) = found[f"{C}bookie_request_seconds"]
        assert asked.attributes["operation"] == "read" and asked.count == 1
    source.counts.add_entries.value += 1
    source.counts.add_seconds.observe(1)
    assert not collected(reader).get(f"{C}add_entry")  # nothing is told any more
    assert source.counts.add_seconds.tap is None
    exported.close()


def test_an_instrument_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: self

        def record(self, *_: object) -> None:
            raise OSError("no more")

    source = Source("mine")
    exported = opentelemetry.export(source, Broken())  # type: ignore[arg-type]
    source.counts.add_seconds.observe(7)
    source.counts.add_seconds.observe(8)
    exported.close()
    assert source.counts.add_seconds.read().count == 102
    assert caplog.text.count("OpenTelemetry takes no times") == 1


def test_no_exporter_keeps_a_source_alive() -> None:
    registry = CollectorRegistry()
    source = Source("mine")
    kept = prometheus.register(source, registry=registry)
    exported = opentelemetry.export(source)
    for holder in (kept, exported):
        assert not any(isinstance(value, Source) for value in vars(holder).values())
        assert any(isinstance(value, (Registry, list)) for value in vars(holder).values())
    exported.close()


def test_clients_of_one_cluster_are_told_apart_and_none_counts_twice() -> None:
    registry = CollectorRegistry()
    first, second = Source("the client of zk://h/ledgers"), Source("the client of zk://h/ledgers")
    prometheus.register(first, second, registry=registry)
    found = scraped(generate_latest(registry).decode())
    for name in ("the client of zk://h/ledgers", "the client of zk://h/ledgers (2)"):
        assert of(found, f"{C}add_entry_total", client=name) == 1000
    with pytest.raises(ValueError, match="Duplicated"):
        prometheus.register(first, registry=registry)
