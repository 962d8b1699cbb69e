"""The questions of a trigger to the metadata store about many logs: nothing as long as no watch has told of a change."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

import bk_core
import bk_spark.source.following
from bk_core.client.log.history import update_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.metadata import open_store
from bk_core.protocol.log.ledger_list import LedgerList, LogProperties
from bk_core.protocol.log.segments import SegmentRange
from bk_spark.options.table import parse_options
from bk_spark.source.following import SourceLogs

LOGS = 40


class Watched:
    """A metadata store that notes which threads read lists; with ``gate`` they wait there for one another."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.readers: list[int] = []
        self.gate: threading.Barrier | None = None

    def read_here(self, path: str) -> Any:
        if self.gate is not None:
            self.gate.wait(60)
        self.readers.append(threading.get_ident())
        return self._store.read_here(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.fixture
def client() -> Iterator[Any]:
    uri = f"memory://following-{uuid.uuid4().hex}"
    store = open_store(uri)
    store.initialize_cluster()
    with bk_core.connect(uri) as client:
        for index in range(LOGS):
            create_log(client, name_of(index), LogProperties("raw"))
        client.store = Watched(client.store)
        yield client
    store.close()


@pytest.fixture
def logs(client: Any) -> Iterator[SourceLogs]:
    names = ",".join(map(name_of, range(LOGS)))
    following = SourceLogs(client, parse_options({"bookkeeper.metadataServiceUri": client.config.uri, "logs": names}))
    yield following
    following.close()


def name_of(index: int) -> str:
    return f"log-{index:03d}"


def put(client: Any, index: int) -> None:
    def change(listed: LedgerList) -> LedgerList:
        return listed.append_segments([SegmentRange(index, 0, 9, 10, 100, 1)], 1, "q", listed.next_seq)

    update_ledger_list(client, name_of(index), change)


def test_many_lists_are_read_at_the_same_time(client: Any, logs: SourceLogs) -> None:
    client.store.gate = threading.Barrier(bk_spark.source.following._READERS)  # 8 readers pass together, five times
    assert len(logs.snapshots(fresh=True)) == LOGS
    client.store.gate = None
    assert len(client.store.readers) == LOGS


def test_a_trigger_reads_only_what_has_changed(client: Any, logs: SourceLogs) -> None:
    first = logs.snapshots()
    client.store.readers.clear()
    again = logs.snapshots()
    assert not client.store.readers
    assert all(again[name] is first[name] for name in first)  # with what was counted in them
    put(client, 7)
    client.store.readers.clear()
    while logs.snapshots()[name_of(7)].end == first[name_of(7)].end:
        time.sleep(0.01)
    assert 1 <= len(client.store.readers) <= 2
    assert [name for name, snapshot in logs.snapshots().items() if snapshot is not first[name]] == [name_of(7)]


def test_old_lists_are_read_beside_the_trigger(client: Any, logs: SourceLogs, monkeypatch: pytest.MonkeyPatch) -> None:
    first = logs.snapshots()
    for log in logs._followed.values():
        log._watch.cancel()
    put(client, 3)
    client.store.readers.clear()
    assert logs.snapshots()[name_of(3)] is first[name_of(3)] and not client.store.readers
    monkeypatch.setattr(bk_spark.source.following, "RELIST_S", -1.0)
    monkeypatch.setattr(bk_spark.source.following, "_RELIST_PACE_S", 0.0)
    while logs.snapshots()[name_of(3)] is first[name_of(3)]:
        time.sleep(0.01)
    assert threading.get_ident() not in client.store.readers
