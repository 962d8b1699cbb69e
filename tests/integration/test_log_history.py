"""The history of a log in real ledgers, beside a real ZooKeeper: two levels and more, rivals, crashes, trims, deletion."""

from __future__ import annotations

import subprocess
import sys
import uuid
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier

import pytest

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client.log.history import read_log, seal_log, update_ledger_list
from bk_core.client.log.intents import create_intended, intents_of
from bk_core.client.log.janitor import check_listable, delete_log, gc_log, gc_quietly, trim_log
from bk_core.client.log.list_store import now_ms, read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.reader import LogReader
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.sealing import SealLimits
from bk_core.protocol.log.segments import LogProperties, SegmentRange
from tests.integration.patience import PATIENCE_S

LIMITS = SealLimits(tail_max=6, chunk=4, fan_out=3)
RAW = LogProperties(entry_format="raw")


@pytest.fixture(scope="module")
def client(running_clusters: Callable[[str], LocalCluster]) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(running_clusters("embedded").uri) as bk:
        yield bk


@contextmanager
def no_leftovers(client: bk_core.BookKeeper) -> Iterator[str]:
    """A new log; once it is deleted, neither a ledger nor a node of it is left."""
    before, name = set(client.list_ledgers()), f"history-{uuid.uuid4().hex[:8]}"
    create_log(client, name, RAW)
    yield name
    delete_log(client, name)
    assert set(client.list_ledgers()) == before
    for place in ("intents", "deleted", "readers"):
        assert client.store.children(f"{place}/{name}") == []


class Appender:
    """A transactional writer with one data ledger of its own: each batch is one entry of five rows, named after query and batch."""

    def __init__(self, client: bk_core.BookKeeper, log: str, query: str) -> None:
        self.client, self.log, self.query = client, log, query
        self.handle = create_intended(client, log, RAW, query_id=query)

    def commit(self, batch: int) -> None:
        payload = f"{self.query}:{batch}".encode()
        entry = self.handle.append_run(payload, array("q", [0, len(payload)]))
        wanted = [SegmentRange(self.handle.ledger_id, entry, entry, 5, len(payload), 5)]
        check_listable(self.client, self.log, "", [self.handle.ledger_id])
        for _ in range(2):  # every commit comes twice, as after a lost answer
            update_ledger_list(
                self.client, self.log, lambda listed: listed.append_segments(wanted, now_ms(), self.query, batch), limits=LIMITS
            )


def test_rivals_lose_nothing_and_double_nothing_across_levels(client: bk_core.BookKeeper) -> None:
    """Three committers at once, each commit twice, sealing and merging all the while; then trims through the history."""
    with no_leftovers(client) as log:
        together = Barrier(3)  # each ledger has entries of every part of the log

        def run(query: str) -> None:
            appender = Appender(client, log, query)
            for batch in range(25):
                together.wait(PATIENCE_S)
                appender.commit(batch)
            appender.handle.close()

        with ThreadPoolExecutor(3) as threads:
            list(threads.map(run, "abc"))
        for _ in range(5):  # what a rival was faster with, and left
            seal_log(client, log, limits=LIMITS)
        view = read_log(client, log)
        assert [s.seq for s in view.segments()] == list(range(75)) and view.listed.total_rows == 375
        assert view.listed.history[0].level >= 2 and len(view.listed.segments) <= LIMITS.tail_max + 3
        read = [payload.decode() for run in LogReader(client, log).read() for payload in run.payloads()]
        assert sorted(read) == sorted(f"{q}:{b}" for q in "abc" for b in range(25))
        for q in "abc":
            assert [int(r[2:]) for r in read if r[0] == q] == list(range(25))
        middle = view.position_at_rows(Position(0), 198, None)
        assert (middle.seq, middle.row) == (39, 3)
        trim_log(client, log, before=Position(40))
        reader = LogReader(client, log)
        assert [payload.decode() for run in reader.read() for payload in run.payloads()] == read[40:]
        assert read_log(client, log).counts_before(Position(40)) == (200, len("".join(read[:40])))
        assert gc_log(client, log, min_age_s=0).deleted == ()  # all three ledgers are listed still
        assert intents_of(client, log) == {}
        trim_log(client, log, max_bytes=20)
        assert len(list(read_log(client, log).segments())) in (5, 6)


CRASHING = """
import os, sys
import bk_core
from bk_core.client.log import history
from bk_core.client.log.intents import create_intended
from bk_core.protocol.log.sealing import SealLimits
from bk_core.protocol.log.segments import LogProperties

history._list_steps = lambda *_: os.kill(os.getpid(), 9)
with bk_core.connect(sys.argv[1]) as client:
    create_intended(client, sys.argv[2], LogProperties(), query_id="q").append(b"nobody will ever see this")
    history.seal_log(client, sys.argv[2], limits=SealLimits(3, 1, 2))
"""


def test_a_killed_process_leaves_nothing_after_gc(client: bk_core.BookKeeper) -> None:
    """kill -9 between writing the history and listing it: the next committer finds its ledgers at once, because the process is gone."""
    with no_leftovers(client) as log:
        appender = Appender(client, log, "q")
        for batch in range(6):
            appender.commit(batch)
        before = set(client.list_ledgers())
        done = subprocess.run([sys.executable, "-c", CRASHING, client.config.uri, log], timeout=60, check=False)
        assert done.returncode == -9
        left = set(client.list_ledgers()) - before
        assert len(left) == 2, "a chunk of history and a data ledger"
        report = gc_quietly(client, log, query_id="q")
        assert report is not None and set(report.deleted) == left and report.failed == ()
        assert set(client.list_ledgers()) == before
        assert set(intents_of(client, log)) == {appender.handle.ledger_id}
        appender.commit(6)
        assert [s.seq for s in read_log(client, log).segments()] == list(range(7))
        appender.handle.close()


def test_an_overwrite_is_one_change_whatever_the_age_of_the_log(client: bk_core.BookKeeper) -> None:
    with no_leftovers(client) as log:
        appender = Appender(client, log, "q")
        for batch in range(30):
            appender.commit(batch)
        fresh = create_intended(client, log, RAW, query_id="new")
        fresh.append(b"new")
        fresh.close()
        wanted = [SegmentRange(fresh.ledger_id, 0, 0, 1, 3)]
        view = read_log(client, log)
        version = client.store.read(f"logs/{log}").version
        appender.handle.close()
        update_ledger_list(
            client, log, lambda listed: listed.trim(listed.next_seq, view.load)[0].append_segments(wanted, now_ms(), "write:1", 0)
        )
        assert client.store.read(f"logs/{log}").version == version + 1
        assert [payload for run in LogReader(client, log).read() for payload in run.payloads()] == [b"new"]
        gc_log(client, log)
        listed = read_ledger_list(client, log)
        assert listed.dropped == () == listed.condemned and listed.total_rows == 151
