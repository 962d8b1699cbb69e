"""File stores as a whole: who owns one, deleting one, and data ledgers that nothing refers to."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import bk_core
from bk_core.client.files import upkeep
from bk_core.client.files.nodes import create_data_ledger, data_nodes
from bk_core.client.files.store import FileStore
from bk_core.client.files.upkeep import delete_file_store, file_store_owner, file_stores, gc_file_store, own_file_store
from bk_core.client.log import janitor, live_writers
from bk_core.client.log.history import read_log
from bk_core.client.log.janitor import delete_log
from bk_core.client.log.lists import create_log
from bk_core.errors import (
    BkError,
    FileStoreError,
    FileStoreTakenOverError,
    LogWriterAliveError,
    NoSuchFileStoreError,
    NotEnoughBookiesError,
    WrongPasswordError,
)
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.segments import LogProperties

LARGE = b"x" * (1 << 20)


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri, limits=Limits(explicit_lac_ns=3_600_000_000_000)) as client:
        yield client


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every owner that did not close its store is one that died."""
    monkeypatch.setattr(live_writers, "lives_here", lambda _writer: False)
    monkeypatch.setattr(live_writers, "abandoned", lambda _writer: True)


def made(client: bk_core.BookKeeper, name: str, password: bytes = b"") -> None:
    with FileStore.open(client, name, password=password) as store:
        store.put("/small", b"small")
        store.put("/large", LARGE)


def staged(client: bk_core.BookKeeper, log: str) -> int:
    """A data ledger that nothing refers to, as an owner leaves one that dies before it puts the file."""
    listed = read_log(client, log)
    with create_data_ledger(client, log, listed.log_id, listed.properties, b"") as ledger:
        ledger.append(b"x")
    return int(ledger.ledger_id)


def test_stores_are_the_logs_of_that_prefix(client: bk_core.BookKeeper) -> None:
    for name in ("b", "a"):
        FileStore.open(client, name).close()
    create_log(client, "other", LogProperties(entry_format="raw"))
    assert file_stores(client) == ["a", "b"]


def test_an_owner_is_told_until_it_closes(client: bk_core.BookKeeper) -> None:
    with FileStore.open(client, "s"):
        owner = file_store_owner(client, "s")
        assert owner is not None and owner.state == live_writers.ALIVE and f"process {owner.pid} on host {owner.host}" in owner.told
    assert file_store_owner(client, "s") is None
    with pytest.raises(NoSuchFileStoreError):
        file_store_owner(client, "z")


def test_a_store_is_deleted_with_everything(client: bk_core.BookKeeper) -> None:
    made(client, "s")
    report = delete_file_store(client, "s")
    assert len(report.deleted) == 1 and not report.failed
    assert list(client.list_ledgers()) == [] and file_stores(client, remains=True) == []
    assert not client.store.children("files") and not client.store.children("intents")
    with pytest.raises(NoSuchFileStoreError):
        delete_file_store(client, "s")


def test_a_living_owner_keeps_its_store_unless_somebody_insists(client: bk_core.BookKeeper) -> None:
    with bk_core.connect(client.config.uri) as other:
        store = FileStore.open(other, "s")
        store.put("/large", LARGE)
        for refused in (delete_file_store, gc_file_store):
            with pytest.raises(LogWriterAliveError, match=r"is open in this program, process \d+ on host .*--even-if-alive"):
                refused(client, "s")
        store.put("/more", LARGE)
        delete_file_store(client, "s", even_if_alive=True)
        with pytest.raises(BkError):
            for _ in range(3):
                store.put("/late", b"late")
        store.abandon()
    with pytest.raises(NoSuchFileStoreError):
        FileStore.open(client, "s", create=False)


@pytest.mark.parametrize("step", ["check_password", "_store_tombstone"])
def test_an_owner_that_opens_the_store_while_it_is_deleted_keeps_it(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Nobody owned it when the deletion began."""
    made(client, "s")
    where = upkeep if step == "check_password" else janitor
    original, opened = getattr(where, step), []

    def late(*arguments: Any) -> Any:
        done = original(*arguments)
        if not opened:
            opened.append(FileStore.open(client, "s"))
        return done

    monkeypatch.setattr(where, step, late)
    with pytest.raises(LogWriterAliveError, match="is open in this program, process"):
        delete_file_store(client, "s")
    (store,) = opened
    store.put("/more", b"more")
    store.close()
    assert gc_file_store(client, "s") == upkeep.FileGcReport()
    with FileStore.open(client, "s", create=False) as store:
        assert (store.read("/large"), store.read("/more")) == (LARGE, b"more")
    delete_file_store(client, "s")
    assert list(client.list_ledgers()) == [] and file_stores(client, remains=True) == []


def test_an_owner_that_cannot_be_seen_may_live(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_writers, "lives_here", lambda _writer: False)
    store = FileStore.open(client, "s")
    with pytest.raises(LogWriterAliveError, match="may be open"):
        delete_file_store(client, "s")
    monkeypatch.setattr(live_writers, "_custom", lambda *_: {})
    with pytest.raises(LogWriterAliveError, match="may be open in a process that is not named"):
        delete_file_store(client, "s")
    store.close()


def test_a_wrong_password_deletes_nothing(client: bk_core.BookKeeper) -> None:
    made(client, "s", b"right")
    for refused in (delete_file_store, gc_file_store):
        with pytest.raises(WrongPasswordError):
            refused(client, "s", password=b"wrong")
    with FileStore.open(client, "s", password=b"right", create=False) as store:
        assert store.read("/large") == LARGE


def test_gc_deletes_what_nothing_refers_to(client: bk_core.BookKeeper) -> None:
    made(client, "s")
    unused = staged(client, "files.s")
    assert gc_file_store(client, "s").deleted == (unused,)
    assert gc_file_store(client, "s") == upkeep.FileGcReport()
    with FileStore.open(client, "s", create=False) as store:
        assert store.read("/large") == LARGE


def test_gc_knows_all_that_an_owner_was_told_that_died(client: bk_core.BookKeeper, gone: None) -> None:
    """No reader sees that the last change is confirmed: explicit LACs are an hour apart. Its ledger is recovered first."""
    store = FileStore.open(client, "s")
    store.put("/large", LARGE)
    store.abandon()
    unused = staged(client, "files.s")
    assert gc_file_store(client, "s").deleted == (unused,)
    assert read_log(client, "files.s").live_segments == ()
    with FileStore.open(client, "s", create=False) as again:
        assert again.read("/large") == LARGE


@pytest.mark.parametrize("opens", [own_file_store, gc_file_store])
def test_an_owner_that_opens_the_store_meanwhile_is_not_fenced(
    client: bk_core.BookKeeper, uri: str, gone: None, monkeypatch: pytest.MonkeyPatch, opens: Callable[..., object]
) -> None:
    """GRD-4: only the ledgers are closed whose owner was found to be gone."""
    FileStore.open(client, "s").abandon()
    release = upkeep.release_log
    others: list[FileStore] = []
    with bk_core.connect(uri) as elsewhere:

        def later(*asked: Any, **options: Any) -> Any:
            others.append(FileStore.open(elsewhere, "s"))
            return release(*asked, **options)

        monkeypatch.setattr(upkeep, "release_log", later)
        with pytest.raises(LogWriterAliveError, match="another owner has opened file store 's' a moment ago; it was left alone"):
            opens(client, "s")
        (other,) = others
        other.put("/a", b"a")
        other.close()


def test_gc_deletes_nothing_where_nobody_can_tell(client: bk_core.BookKeeper) -> None:
    """A log without a snapshot says nothing of files: the next owner decides."""
    create_log(client, "files.s", LogProperties(entry_format="raw"), file_entries=True)
    unused = staged(client, "files.s")
    assert gc_file_store(client, "s").deleted == ()
    FileStore.open(client, "s").close()
    assert gc_file_store(client, "s").deleted in ((unused,), ())
    assert not data_nodes(client, "files.s")


def test_gc_clears_what_a_deleted_store_has_left(client: bk_core.BookKeeper) -> None:
    made(client, "s")
    (left,) = data_nodes(client, "files.s")
    delete_log(client, "files.s", file_entries=True)
    assert file_stores(client) == [] and file_stores(client, remains=True) == ["s"]
    made(client, "s")  # another one of the same name
    assert gc_file_store(client, "s").deleted == (left.ledger_id,)
    with FileStore.open(client, "s", create=False) as store:
        assert store.read("/large") == LARGE
    delete_log(client, "files.s", file_entries=True)
    assert len(gc_file_store(client, "s").deleted) == 1 and list(client.list_ledgers()) == []
    with pytest.raises(NoSuchFileStoreError):
        gc_file_store(client, "s")


def test_a_damaged_node_keeps_nothing_else(client: bk_core.BookKeeper) -> None:
    """Neither ``rm`` nor ``gc``: its ledger stays and is told, because nobody says whose it is."""
    made(client, "s")
    (sound,) = data_nodes(client, "files.s")
    bad = staged(client, "files.s")
    path = f"files/files.s/{bad}"
    client.store.write(path, b"garbage", client.store.read(path).version)
    report = gc_file_store(client, "s")
    assert [number for number, _ in report.failed] == [bad] and "is no node of a data ledger" in report.failed[0][1]
    report = delete_file_store(client, "s")
    assert sound.ledger_id in report.deleted and [number for number, _ in report.failed] == [bad]
    assert [number for number, _ in gc_file_store(client, "s").failed] == [bad]
    assert bad in client.list_ledgers() and sound.ledger_id not in client.list_ledgers()


def test_an_owner_learns_that_its_store_was_deleted(client: bk_core.BookKeeper) -> None:
    ends: queue.SimpleQueue[BkError] = queue.SimpleQueue()
    with FileStore.open(client, "s", on_end=ends.put) as store:
        store.put("/a", b"a")
        delete_file_store(client, "s", even_if_alive=True)
        assert "file store 's' was deleted while this owner had it" in str(ends.get(timeout=30))
        for late in (lambda: store.put("/b", b"b"), lambda: store.stage(LARGE)):
            with pytest.raises(FileStoreTakenOverError, match="was deleted"):
                late()
    assert list(client.list_ledgers()) == []


def test_nodes_and_ledgers_of_others_are_left_alone(client: bk_core.BookKeeper) -> None:
    """OWN-5, OWN-6: a node of another cluster with the number of a ledger of ours, and one that names a ledger of somebody else's."""
    made(client, "s")
    listed = read_log(client, "files.s")
    with client.create_ledger() as ledger:
        ledger.append(b"somebody else's")
    cluster = client.store.cluster_id()
    elsewhere, foreign = client.store.new_ledger_id(), ledger.ledger_id
    client.store.create(f"files/files.s/{elsewhere}", json.dumps({"cluster": "another", "logId": listed.log_id}).encode())
    client.store.create(f"files/files.s/{foreign}", json.dumps({"cluster": cluster, "logId": listed.log_id}).encode())
    report = gc_file_store(client, "s")
    assert report.deleted == () and [ledger_id for ledger_id, _ in report.foreign] == [foreign]
    assert [ledger_id for ledger_id, _ in delete_file_store(client, "s").foreign] == [foreign]
    assert list(client.list_ledgers()) == [foreign]
    assert client.store.children("files/files.s") == sorted([str(elsewhere), str(foreign)])


def test_data_ledgers_that_cannot_be_deleted_are_told(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    made(client, "s")
    unused = staged(client, "files.s")

    def fail(*_: object) -> bool:
        raise FileStoreError("no")

    with monkeypatch.context() as patched:
        patched.setattr(upkeep, "delete_data_ledger", fail)
        assert gc_file_store(client, "s").failed == ((unused, "[BK-FILES] no"),)
    assert gc_file_store(client, "s").deleted == (unused,)


def test_what_may_be_deleted_a_moment_later_is_tried_again_in_time(
    client: bk_core.BookKeeper, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bookie that answers too late keeps a ledger that was left open from being closed. What stays so is told, and holds up no other."""
    made(client, "s")
    slow, stuck, good = (staged(client, "files.s") for _ in range(3))
    delete = upkeep.delete_data_ledger
    tries: list[int] = []

    def struck(bk: Any, log: str, log_id: str, ledger_id: int, password: bytes) -> bool:
        tries.append(ledger_id)
        if ledger_id == stuck or (ledger_id == slow and tries.count(slow) < 3):
            raise NotEnoughBookiesError("a bookie answers too late")
        return delete(bk, log, log_id, ledger_id, password)

    with bk_core.connect(uri, operation_timeout_s=2) as impatient, monkeypatch.context() as patched:
        patched.setattr(upkeep, "delete_data_ledger", struck)
        begun = time.monotonic()
        report = gc_file_store(impatient, "s")
        assert time.monotonic() - begun < 30
    assert sorted(report.deleted) == sorted([slow, good]) and tries.count(good) == 1 and tries.count(slow) == 3 < tries.count(stuck)
    assert report.failed == ((stuck, "[BK-NOT-ENOUGH-BOOKIES] a bookie answers too late"),)
    assert gc_file_store(client, "s").deleted == (stuck,)
