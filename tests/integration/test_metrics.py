"""Clients and bookies count exactly: the work is known, so its numbers are. On embedded and Apache's bookies, both kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.errors import ForkedClientError, LedgerFencedError, NotEnoughBookiesError
from bk_core.metrics.snapshot import Metrics
from tests.integration.patience import PATIENT

C = "bookkeeper_client_"
ROOT = Path(__file__).resolve().parents[2]


def client(cluster: LocalCluster, **settings: Any) -> bk_core.BookKeeper:
    return bk_core.connect(cluster.uri, limits=PATIENT, **settings)


def eventually(bk: bk_core.BookKeeper, holds: Callable[[Metrics], bool]) -> Metrics:
    """Wait for metrics that hold: the answer of a third bookie may come after the acknowledgement."""
    deadline = time.monotonic() + 60
    while not holds(metrics := bk.metrics()):
        assert time.monotonic() < deadline, metrics.to_dict()
        time.sleep(0.05)
    return metrics


def warmed(cluster: LocalCluster) -> None:
    """Have every bookie take an entry: the first one makes a JVM load half of its classes, which on a busy machine is a timeout."""
    size, deadline = len(cluster.bookie_ids), time.monotonic() + 120
    with client(cluster) as bk:
        while True:
            try:
                with bk.create_ledger(ensemble_size=size, write_quorum_size=size, ack_quorum_size=size) as ledger:
                    ledger.append(b"warm")
                return
            except NotEnoughBookiesError:
                assert time.monotonic() < deadline


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_adds_and_reads_are_counted_one_by_one(cluster: LocalCluster, protocol: str) -> None:
    with client(cluster, protocol=protocol) as bk:
        before = bk.metrics()
        with bk.create_ledger() as ledger:
            futures = [ledger.append_future(b"x" * 10) for _ in range(400)]
            futures.append(ledger.append_many_future([b"y" * 5] * 600))
            for future in futures:
                future.result(60)
            metrics = eventually(bk, lambda now: now[f"{C}pending_add"] == 0)
            since = metrics - before
            assert since[f"{C}add_entry_total"] == 1000
            assert since[f"{C}add_entry_bytes_total"] == 400 * 10 + 600 * 5
            assert since[f"{C}add_run_total"] == 401
            assert since[f"{C}add_entry_seconds"].count == 1000
            assert since[f"{C}add_entry_failed_total"] == since[f"{C}ensemble_change_total"] == since[f"{C}fence_total"] == 0
            assert metrics[f"{C}pending_add_bytes"] == metrics[f"{C}add_waiting"] == 0
            for bookie in ledger.metadata.last_fragment.ensemble:  # the cluster is shared, and may have more
                assert since.value(f"{C}bookie_add_seconds", bookie=bookie).count == 1000
                assert metrics.value(f"{C}bookie_connections", bookie=bookie) >= 1
                assert since.value(f"{C}bookie_sent_bytes_total", bookie=bookie) > 1000 * 50
        with bk.open_ledger(ledger.ledger_id) as reader:
            assert sum(run.count for run in reader.read_runs(0, 999)) == 1000
        since = bk.metrics() - before
        assert since[f"{C}read_entry_total"] == 1000 and since[f"{C}read_entry_bytes_total"] == 7000
        assert since.value(f"{C}bookie_request_seconds", operation="read").count >= 1
        assert (since[f"{C}ledger_create_total"], since[f"{C}ledger_open_total"]) == (1, 1)
        assert since.value(f"{C}metadata_request_seconds", operation="create").count >= 1
        assert since[f"{C}metadata_outage_total"] == 0 and since[f"{C}metadata_connected"] == 1
    closed = bk.metrics()  # a client that was closed tells it, too
    assert (closed - before)[f"{C}add_entry_total"] == 1000
    assert closed[f"{C}bookie_connections"] == closed[f"{C}metadata_connected"] == closed[f"{C}bookie_connection_lost_total"] == 0
    assert closed[f"{C}metadata_outage_total"] == before[f"{C}metadata_outage_total"]  # the alert of an outage is made of it


def test_a_killed_bookie_is_one_ensemble_change(cluster: LocalCluster) -> None:
    if len(cluster.bookie_ids) < 4:
        cluster.add_bookie()
    warmed(cluster)
    with client(cluster) as bk, bk.create_ledger() as ledger:
        ledger.append(b"before")
        eventually(bk, lambda now: now[f"{C}pending_add"] == 0)
        killed = ledger.metadata.last_fragment.ensemble[0]
        connections = bk.metrics().value(f"{C}bookie_connections", bookie=killed)  # one, or two if the LAC was told over another one
        cluster.kill(cluster.bookie_ids.index(killed))
        for number in range(50):
            ledger.append(b"%d" % number)
        metrics = eventually(bk, lambda now: now[f"{C}ensemble_change_total"] == 1 and now[f"{C}pending_add"] == 0)
        assert metrics.value(f"{C}bookie_replaced_total", bookie=killed) == 1 == metrics[f"{C}bookie_replaced_total"]
        assert metrics.value(f"{C}bookie_connection_lost_total", bookie=killed) == connections >= 1
        assert metrics.value(f"{C}bookie_connections", bookie=killed) == 0
        assert metrics[f"{C}add_entry_total"] == metrics[f"{C}add_entry_seconds"].count == 51
    assert bk.metrics()[f"{C}ensemble_change_total"] == 1  # closing the ledger is none


def test_a_fence_is_one_for_him_who_fences_and_one_for_him_who_is_fenced(cluster: LocalCluster) -> None:
    with client(cluster) as writing, client(cluster) as other:
        ledger = writing.create_ledger()
        ledger.append(b"one")
        with other.recover_ledger(ledger.ledger_id) as recovered:
            assert recovered.last_add_confirmed == 0
        with pytest.raises(LedgerFencedError):
            ledger.append(b"two")
        theirs, mine = other.metrics(), writing.metrics()
        assert theirs[f"{C}fence_total"] == theirs[f"{C}ledger_recover_seconds"].count == 1
        assert theirs[f"{C}ledger_recover_failed_total"] == theirs[f"{C}fenced_total"] == theirs[f"{C}ensemble_change_total"] == 0
        assert theirs.value(f"{C}bookie_request_seconds", operation="fence").count >= 2
        assert mine[f"{C}fenced_total"] == 1 and mine[f"{C}fence_total"] == 0
        assert (mine[f"{C}add_entry_total"], mine[f"{C}add_entry_failed_total"]) == (1, 1)
        assert mine.value(f"{C}bookie_request_failed_total", operation="add", status="FENCED") >= 1
        ledger.abandon()


def test_logs_count_take_overs_rolls_commits_and_trims(cluster: LocalCluster) -> None:
    with client(cluster) as bk:
        log = bk.create_log("counted-" + cluster.kind.split()[0], entry_format="raw")
        with log.writer() as writer:
            writer.append_many([b"a"] * 10)
            writer.roll()
            last = writer.append(b"b")
        metrics = bk.metrics()
        assert (metrics[f"{C}log_take_over_total"], metrics[f"{C}log_roll_total"]) == (1, 1)
        assert metrics[f"{C}log_commit_total"] >= 4  # two ledgers begun, and two that ended
        assert metrics[f"{C}log_commit_conflict_total"] == metrics[f"{C}log_trim_total"] == 0
        reader = log.reader()
        runs = iter(reader)
        next(runs)
        assert bk.metrics().value(f"{C}log_reader_lag_entries", log=log.name) == reader.lag_entries == 1
        assert sum(run.count for run in runs) == 1
        assert bk.metrics().value(f"{C}log_reader_lag_entries", log=log.name) == 0
        del reader, runs
        assert bk.metrics()[f"{C}log_reader_lag_entries"] == 0
        assert len(log.trim(before=last)) == 1
        metrics = bk.metrics()
        assert (metrics[f"{C}log_trim_total"], metrics[f"{C}log_deleted_ledger_total"]) == (1, 1)
        log.trim(before=last)
        assert bk.metrics()[f"{C}log_trim_total"] == 1  # nothing was left to trim


def test_file_stores_count_changes_and_bytes(cluster: LocalCluster) -> None:
    with client(cluster) as bk, bk_core.FileStore.open(bk, "counted-" + cluster.kind.split()[0]) as store:
        before = bk.metrics()
        store.put("/small", b"x" * 100)
        store.put("/large", b"y" * (2 << 20))
        store.delete("/small")
        since = bk.metrics() - before
        assert (since[f"{C}file_store_change_total"], since[f"{C}file_store_bytes_total"]) == (3, 100 + (2 << 20))


def test_waits_for_room_are_counted(running_clusters: Callable[[str], LocalCluster]) -> None:
    limits = bk_core.ClientConfig("memory://x", limits=PATIENT).limits
    small = type(limits)(unretired_entries_max=64, pending_bytes_max=4096)
    with bk_core.connect(running_clusters("embedded").uri, limits=small) as bk, bk.create_ledger() as ledger:
        futures = [ledger.append_future(b"x" * 1024) for _ in range(200)]
        assert bk.metrics()[f"{C}add_wait_seconds"].count >= 1
        for future in futures:
            future.result(60)
        metrics = eventually(bk, lambda now: now[f"{C}pending_add"] == 0)
        assert metrics[f"{C}add_waiting"] == metrics[f"{C}pending_add_bytes"] == 0
        assert metrics[f"{C}add_entry_total"] == 200


def test_the_pure_kernels_count_the_same(running_clusters: Callable[[str], LocalCluster]) -> None:
    program = f"""
import bk_core
from bk_core import kernels
assert kernels.IMPLEMENTATION == "pure"
with bk_core.connect({running_clusters("embedded").uri!r}) as bk:
    with bk.create_ledger() as ledger:
        ledger.append_many([b"abc"] * 300)
    with bk.open_ledger(ledger.ledger_id) as reader:
        assert sum(run.count for run in reader.read_runs(0, 299)) == 300
    now = bk.metrics()
    print(now["{C}add_entry_total"], now["{C}add_entry_bytes_total"], now["{C}read_entry_total"], now["{C}read_entry_bytes_total"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "BK_CORE_KERNELS": "pure"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["300", "900", "300", "900"]), done.stderr


def test_a_forked_child_has_no_metrics_of_its_parents_client(running_clusters: Callable[[str], LocalCluster]) -> None:
    with bk_core.connect(running_clusters("embedded").uri) as bk:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                bk.metrics()
            except ForkedClientError:
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert bk.metrics()[f"{C}metadata_connected"] == 1
