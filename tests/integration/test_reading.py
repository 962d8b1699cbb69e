"""Readers beside a live writer on Apache bookies, and readers of ledgers whose bookies hang, lack entries or hold bad ones."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.read.options import ReadMode, ReadOptions
from bk_core.protocol.limits import Limits
from tests.integration.patience import PATIENT
from tests.integration.test_corrupt import PAYLOAD, add
from tests.network.stopping import stop_process

pytestmark = pytest.mark.apache

# A bookie is stopped for a few seconds at most: its registration must survive.
QUICK = Limits(add_timeout_ns=700_000_000, speculative_read_ns=200_000_000)


@contextmanager
def stopped(cluster: LocalCluster, bookie: str) -> Iterator[None]:
    """The bookie's process hangs: connections stay open and nothing is answered."""
    pid = cluster.pid(cluster.bookie_ids.index(bookie))
    assert pid is not None
    stop_process(pid)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def numbered(first: int, count: int) -> list[bytes]:
    return [b"%d" % i for i in range(first, first + count)]


def test_a_tail_follows_a_writer_over_an_ensemble_change_and_a_close(apache_cluster: LocalCluster) -> None:
    """LC-5..LC-8, OP-6: every entry once and in order, the last one before the close without a successor."""
    with bk_core.connect(apache_cluster.uri, limits=QUICK) as bk, ThreadPoolExecutor(1) as threads:
        writer = bk.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
        reader = bk.open_ledger(writer.ledger_id)
        tail = reader.tail(timeout_s=30)
        writer.append(b"0")
        assert next(tail).payloads() == [b"0"]
        seen = threads.submit(lambda: [payload for run in tail for payload in run.payloads()])
        for payload in numbered(1, 50):
            writer.append(payload)
        with stopped(apache_cluster, writer.metadata.last_fragment.ensemble[0]):
            for payload in numbered(51, 50):
                writer.append(payload)
        assert len(writer.metadata.fragments) == 2
        for payload in numbered(101, 50):
            writer.append(payload)
        writer.close()
        assert seen.result(30) == numbered(1, 150)
        assert reader.is_closed and reader.last_add_confirmed == 150
        reader.close()


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_a_hanging_bookie_costs_one_speculation(apache_cluster: LocalCluster, protocol: str) -> None:
    """RD-4: each entry has another first replica; the timeout of a read (60 s) is never waited for."""
    with bk_core.connect(apache_cluster.uri, protocol=protocol, limits=replace(QUICK, read_timeout_ns=60_000_000_000)) as bk:
        writer = bk.create_ledger()
        writer.append_many(numbered(0, 9))
        writer.close()
        for options in (ReadOptions(sticky=False), ReadOptions(mode=ReadMode.PARALLEL)):
            with (
                stopped(apache_cluster, writer.metadata.last_fragment.ensemble[1]),
                bk.open_ledger(writer.ledger_id, options=options) as reader,
            ):
                started = time.monotonic()
                assert [reader.read(entry, entry) for entry in range(3)] == [[p] for p in numbered(0, 3)]
                assert reader.read(0, 8) == numbered(0, 9)
                assert time.monotonic() - started < 40


@pytest.mark.parametrize("protocol", ["v2", "v3"])
@pytest.mark.parametrize("bad", ["missing", "corrupt"])
def test_one_bad_replica_is_made_up_for_by_another(apache_cluster: LocalCluster, protocol: str, bad: str) -> None:
    """RD-3, RD-5, RD-8, RD-10: a copy that is not there, or not what was written."""
    bookies = sorted(apache_cluster.bookie_ids)[:3]
    with bk_core.connect(apache_cluster.uri, protocol=protocol, limits=PATIENT) as bk:
        ledger_id = bk.store.new_ledger_id()
        metadata = LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Fragment(0, tuple(bookies)),)).closed(0, len(PAYLOAD))
        bk.store.create_ledger(ledger_id, metadata_codec.encode(metadata))
        for bookie in bookies[1:]:
            add(bookie, ledger_id, corrupt=False)
        if bad == "corrupt":
            add(bookies[0], ledger_id, corrupt=True)
        for options in (ReadOptions(sticky=False), ReadOptions(mode=ReadMode.PARALLEL)):
            with bk.open_ledger(ledger_id, options=options) as reader:
                assert reader.read(0, 0) == [PAYLOAD]


def test_a_tail_of_a_ledger_that_is_recovered(apache_cluster: LocalCluster) -> None:
    """LC-7, LC-8, scenario 42: the writer dies, somebody else fences and closes; the tail ends where the ledger does."""
    with (
        bk_core.connect(apache_cluster.uri, limits=PATIENT) as bk,
        bk_core.connect(apache_cluster.uri) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        writer = bk.create_ledger()
        with bk.open_ledger(writer.ledger_id) as reader:
            seen = threads.submit(lambda: [payload for run in reader.tail(timeout_s=30) for payload in run.payloads()])
            writer.append_many(numbered(0, 20))
            writer.abandon()
            other.recover_ledger(writer.ledger_id).close()
            assert seen.result(40) == numbered(0, 20)
            assert reader.is_closed
