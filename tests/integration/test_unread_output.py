"""Commands that follow end soon after the reader of their output has gone, though nothing comes that they could print."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.cli import statuses

ROOT = Path(bk_core.__file__).resolve().parents[1]
SOON_S = 20.0  # a second, and what a machine under load takes to end a process


@pytest.fixture
def embedded(running_clusters: Callable[[str], LocalCluster]) -> LocalCluster:
    return running_clusters("embedded")


@pytest.fixture
def client(embedded: LocalCluster) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(embedded.uri) as client:
        yield client


@contextmanager
def following(cluster: LocalCluster, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "bk_core.cli", *map(str, arguments), "--uri", cluster.uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def ends_unread(process: subprocess.Popen[bytes], lines: int = 1) -> None:
    """The reader takes all lines that there are and goes, as ``head -1`` does. The entry that was acknowledged last comes a moment later,
    when its writer confirms it: nothing is written behind that."""
    assert process.stdout is not None and process.stderr is not None
    assert all(process.stdout.readline() for _ in range(lines))
    assert process.poll() is None
    process.stdout.close()
    began = time.monotonic()
    assert process.wait(60) == statuses.UNREAD
    assert time.monotonic() - began < SOON_S
    assert process.stderr.read() == b""


def test_a_ledger_that_is_followed(embedded: LocalCluster, client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        ledger.append_many([b"one", b"two"])
        with following(embedded, "ledger", "tail", ledger.ledger_id, "-f") as process:
            ends_unread(process, lines=2)


@pytest.mark.parametrize("how", ["--entries", "--raw", "--json"])
def test_a_log_that_is_followed(embedded: LocalCluster, client: bk_core.BookKeeper, how: str) -> None:
    name = f"log-{uuid.uuid4().hex}"
    with client.create_log(name).writer() as writer:
        writer.append_many([b"one", b"two"])
        with following(embedded, "log", "tail", name, "-f", how) as process:
            ends_unread(process, lines=2)


def test_the_batches_of_a_checkpoint(embedded: LocalCluster, client: bk_core.BookKeeper) -> None:
    name = f"query-{uuid.uuid4().hex}"
    with bk_core.FileStore.open(client, name) as store:
        store.put("/offsets/0", b'v1\n{"batchTimestampMs":1700000000000}\n-')
        store.put("/commits/0", b"v1\n{}")
        with following(embedded, "checkpoint", "tail", name) as process:
            ends_unread(process)


def test_a_cluster_that_is_watched_at_long_intervals(embedded: LocalCluster) -> None:
    with following(embedded, "top", "--interval", "600") as process:
        ends_unread(process)


def test_a_reader_that_stays_is_written_to(embedded: LocalCluster, client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        ledger.append_many([b"one", b"two"])
        with following(embedded, "ledger", "tail", ledger.ledger_id, "-f", "--raw") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"one\n"
            ledger.append_many([b"three", b"four"])
            assert [process.stdout.readline() for _ in range(2)] == [b"two\n", b"three\n"]
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == statuses.INTERRUPTED
