"""An embedded bookie counts what it is asked: exactly, and readable in its process, on a page for Prometheus, and in its log."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import bk_core
from bk_core.bookie.collector import CollectorOptions
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.bookie.local_cluster import local_cluster
from bk_core.errors import InvalidArgumentError
from bk_core.metadata.memory import MemoryStore
from bk_core.protocol.ledger.metadata_codec import encode
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status
from tests.integration.embedded import add, body, eventually, fence, metadata, peer_of, read

B = "bookkeeper_bookie_"
ROOT = Path(__file__).resolve().parents[2]


def test_a_bookie_counts_what_it_is_asked(tmp_path: Path) -> None:
    with EmbeddedBookie(tmp_path) as bookie:
        with peer_of(bookie) as peer:
            for entry in range(10):
                assert peer.status(add(7, entry)) is Status.OK
            assert peer.status(read(7, 3)) is Status.OK
            assert peer.status(read(7, 77)) is Status.NO_ENTRY
            assert peer.status(fence(7)) is Status.OK
            assert peer.status(fence(7)) is Status.OK  # it was there: no second one
            assert peer.status(add(7, 10)) is Status.FENCED
            assert peer.status(m.ReadLacRequest(1, 7)) is Status.OK
            metrics = bookie.metrics()
            assert metrics[f"{B}connections"] == 1
        size = len(body(7, 0))
        assert metrics[f"{B}add_entry_total"] == 10
        assert metrics[f"{B}add_entry_bytes_total"] == 11 * size  # one was refused
        assert metrics.value(f"{B}add_failed_total", status="FENCED") == 1 == metrics[f"{B}add_failed_total"]
        assert metrics[f"{B}read_entry_total"] == 3  # a fence brings the last entry
        assert metrics.value(f"{B}read_failed_total", status="NO_ENTRY") == 1
        assert metrics[f"{B}fence_total"] == 1
        assert metrics.value(f"{B}request_total", kind="read_lac") == 1
        assert 1 <= metrics[f"{B}journal_sync_seconds"].count <= 12
        assert metrics[f"{B}journal_bytes_total"] > 10 * size
        assert metrics[f"{B}free_disk_bytes"] > 0 and metrics[f"{B}read_only"] == 0
        assert eventually(lambda: bookie.metrics()[f"{B}store_seconds"].count >= 1)
        assert eventually(lambda: bookie.metrics()[f"{B}connections"] == 0)
    assert bookie.metrics()[f"{B}add_entry_total"] == 10  # after it was closed
    assert bookie.metrics().of == f"bookie {bookie.bookie_id}"


def test_collected_ledgers_are_counted(tmp_path: Path) -> None:
    store = MemoryStore(f"metrics-{tmp_path.name}")
    store.initialize_cluster()
    options = BookieOptions(collector=CollectorOptions(interval_s=0.1))
    with EmbeddedBookie(tmp_path, store=store, options=options) as bookie:
        store.create_ledger(7, encode(metadata((0, (bookie.bookie_id,)))))
        with peer_of(bookie) as peer:
            assert peer.status(add(7, 0)) is Status.OK
        store.delete_ledger(7)
        assert eventually(lambda: bookie.metrics()[f"{B}collected_ledger_total"] == 1)
        assert bookie.metrics()[f"{B}collection_refused_total"] == 0


def samples(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text = answer.read().decode()
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_each_bookie_of_a_local_cluster_serves_a_page() -> None:
    with local_cluster(3, metrics=True) as cluster, bk_core.connect(cluster.uri) as bk:
        assert len(cluster.metrics_urls) == 3 and all(url.startswith("http://127.0.0.1:") for url in cluster.metrics_urls)
        with bk.create_ledger() as ledger:
            ledger.append_many([b"x" * 10] * 1000)
        with bk.open_ledger(ledger.ledger_id) as reader:
            assert sum(run.count for run in reader.read_runs(0, 999)) == 1000

        def all_have_it() -> bool:  # the third bookie may be slower than the acknowledgement
            return [samples(url)[f"{B}add_entry_total"] for url in cluster.metrics_urls] == [1000] * 3

        assert eventually(all_have_it, 60)
        assert sum(samples(url)[f"{B}read_entry_total"] for url in cluster.metrics_urls) == 1000
        cluster.restart(0)
        assert samples(cluster.metrics_urls[0])[f"{B}add_entry_total"] == 0  # a page that is there once the bookie is ready
    with pytest.raises(OSError):
        urllib.request.urlopen(cluster.metrics_urls[0], timeout=10)


def test_apaches_bookies_have_pages_of_their_own() -> None:
    with pytest.raises(InvalidArgumentError, match="metrics of their own"):
        local_cluster(1, apache="4.18.0", metrics=True)


def test_the_log_of_a_bookie_tells_what_was_counted(tmp_path: Path) -> None:
    with local_cluster(1) as cluster:
        log = tmp_path / "log"
        options = ["--uri", cluster.uri, "--directory", str(tmp_path / "data"), "--metrics-log-s", "0.1", "--metrics-port", "0"]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "bk_core.bookie.server", *options], cwd=ROOT, stdout=output, stderr=output,
                env={**os.environ, "BK_DIE_WITH_PARENT": "1"},
            )  # fmt: skip
        try:
            assert eventually(lambda: "BK-BOOKIE-METRICS {" in log.read_text(), 60)
            page = re.search(r"BK-BOOKIE-METRICS-PAGE (\S+)", log.read_text())
            assert page is not None and samples(page[1])[f"{B}fence_total"] == 0
            told = json.loads(log.read_text().split("BK-BOOKIE-METRICS ", 1)[1].splitlines()[0])
            assert told["metrics"][f"{B}add_entry_total"] == 0 and told["of"].startswith("bookie 127.0.0.1:")
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


@pytest.mark.parametrize(("option", "value"), [("--metrics-port", "70000"), ("--metrics-port", "-1"), ("--metrics-log-s", "-1")])
def test_a_bad_option_is_told_before_anything_is_done(tmp_path: Path, option: str, value: str) -> None:
    command = [sys.executable, "-m", "bk_core.bookie.server", "--uri", "memory://x", "--directory", str(tmp_path / "data"), option, value]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and option in done.stderr and not (tmp_path / "data").exists()
