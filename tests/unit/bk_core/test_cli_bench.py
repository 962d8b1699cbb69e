"""``bk bench``: what it measures, and that it leaves nothing."""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import pytest

import bk_core
from bk_core.client import bench
from bk_core.client.bench import BenchPlan, Histogram
from bk_core.errors import InvalidArgumentError
from tests.unit.bk_core.conftest import Bk

PHASES = ["add latency", "add throughput", "read throughput", "read latency"]


def phases(bk: Bk, *arguments: str) -> list[dict[str, Any]]:
    import json

    bk(*arguments, "--json", group="bench")
    return [json.loads(line) for line in bk.out.splitlines()]


def test_the_phases_and_their_figures(bk: Bk, client: bk_core.BookKeeper) -> None:
    found = phases(bk, "--entries", "40", "--size", "100", "--in-flight", "20", "--run", "10", "--quorums", "2/2/1")
    assert [one["phase"] for one in found] == PHASES
    assert [(one["entries"], one["bytes"]) for one in found] == [(40, 4000)] * 4
    for one in found:
        assert (one["ensembleSize"], one["writeQuorumSize"], one["ackQuorumSize"], one["runEntries"]) == (2, 2, 1, 10)
        assert one["entriesPerSecond"] > 0
        times = [one["p50Us"], one["p95Us"], one["p99Us"], one["p999Us"], one["maxUs"]]
        assert times == [None] * 5 if one["phase"] == "read throughput" else times == sorted(times) and times[0] > 0
    assert list(client.list_ledgers()) == []
    text = bk("--entries", "10", "--size", "0", "--in-flight", "3", group="bench")
    assert all(phase in text for phase in PHASES) and "runs of 3" in text
    assert list(client.list_ledgers()) == []


def test_a_duration_ends_a_phase(bk: Bk, client: bk_core.BookKeeper) -> None:
    assert all(one["entries"] > 0 for one in phases(bk, "--seconds", "0.05"))
    assert list(client.list_ledgers()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("phase", PHASES)
def test_an_interrupt_leaves_no_ledger(
    bk: Bk, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, phase: str, number: signal.Signals
) -> None:
    made: list[int] = []
    create = type(client).create_ledger

    def noted(self: Any, **options: Any) -> Any:
        writer = create(self, **options)
        made.append(writer.ledger_id)
        return writer

    measure = {
        "add latency": "_add_latency",
        "add throughput": "_add_throughput",
        "read throughput": "_read_throughput",
        "read latency": "_read_latency",
    }[phase]
    real = getattr(bench, measure)

    def interrupted(*arguments: Any) -> Any:
        os.kill(os.getpid(), number)
        return real(*arguments)

    monkeypatch.setattr(type(client), "create_ledger", noted)
    monkeypatch.setattr(bench, measure, interrupted)
    bk("--entries", "50", group="bench", status=128 + number)
    assert made and list(client.list_ledgers()) == []


def test_a_cluster_that_is_too_small_is_an_error(bk: Bk, client: bk_core.BookKeeper) -> None:
    bk("--quorums", "5/3/2", "--entries", "1", group="bench", status=1)
    assert "BK-NOT-ENOUGH-BOOKIES" in bk.err and list(client.list_ledgers()) == []
    bk("--quorums", "2/3/1", group="bench", status=2)
    assert "write_quorum_size 3 is above ensemble_size 2" in bk.err
    bk("--quorums", "3-3-2", group="bench", status=2)
    bk("--run", "50", "--in-flight", "10", group="bench", status=2)
    assert "do not fit" in bk.err


def test_entries_too_large_are_refused_before_anything_is_done() -> None:
    with pytest.raises(InvalidArgumentError, match="choose 0 to"):
        BenchPlan(entry_bytes=10**9).check()


def test_percentiles_are_right_within_a_bucket() -> None:
    rng = random.Random(7)
    times = [int(rng.lognormvariate(12, 2)) for _ in range(20_000)]
    counted = Histogram()
    for ns in times:
        counted.add(ns)
    times.sort()
    for share in (0.0001, 0.01, 0.5, 0.95, 0.99, 0.999, 1.0):
        true = times[max(0, -(-int(share * 1e6) * len(times) // 10**6) - 1)]
        told = counted.percentile_ns(share)
        assert told is not None and true <= told <= true * (1 + 1 / 64) + 1, share
    assert counted.percentile_ns(1.0) == counted.worst_ns == times[-1]
    assert Histogram().percentile_ns(0.5) is None
