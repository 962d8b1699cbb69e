"""Contents that are staged for a file store: leases, data ledgers that fail, sources that fail, and the memory of uploads."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import bk_core
from bk_core.client.files import data as data_module
from bk_core.client.files import nodes as nodes_module
from bk_core.client.files import owner as owner_module
from bk_core.client.files.nodes import data_ledgers
from bk_core.client.files.store import FileStore, Staged
from bk_core.errors import (
    FileStoreClosedError,
    InvalidArgumentError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    OperationTimeoutError,
    PathExistsError,
)
from bk_core.protocol.ledger.metadata import LedgerState
from tests.unit.client.file_store.stores import BIG, LIMITS, LOG, Failing, eventually, ledgers_of, names, nodes, small


def test_what_is_staged_becomes_a_file_once(store: FileStore) -> None:
    for data in (b"small", BIG):
        staged = store.stage(data)
        assert staged.size == len(data) and store.read_content(staged.content) == data
        assert store.put("/file", staged).size == len(data)
        assert store.read("/file") == data
        with pytest.raises(InvalidArgumentError, match="was put or released already"):
            store.put("/other", staged)
    assert names(store) == ["file"] and "released" in repr(staged)


def test_what_is_staged_stays_when_a_put_is_refused(store: FileStore) -> None:
    store.put("/taken", b"x")
    with store.stage(BIG) as staged:
        with pytest.raises(PathExistsError):
            store.put("/taken", staged, overwrite=False)
        store.put("/free", staged)
    assert store.read("/free") == BIG


def test_staged_contents_belong_to_their_store(store: FileStore, client: bk_core.BookKeeper) -> None:
    with FileStore.open(client, "b") as other, other.stage(b"x") as staged:
        with pytest.raises(InvalidArgumentError, match="of another file store"):
            store.put("/x", staged)


@pytest.mark.parametrize("how", ["release", "collect", "with"])
def test_a_lease_keeps_a_data_ledger_until_it_is_given_up(store: FileStore, client: bk_core.BookKeeper, how: str) -> None:
    """FS-13: neither a deletion nor the end of its filling drops a ledger that something staged is in."""
    small(store, ledger=1)
    staged: Staged | None = store.stage(BIG)
    assert staged is not None
    store.put("/other", b"x" * 70_000)
    (mine,) = {extent.ledger_id for extent in staged.content.extents}
    eventually(lambda: client.ledger_metadata(mine).state is LedgerState.CLOSED)
    store.delete("/other")
    eventually(lambda: nodes(client) == [mine])
    assert store.read_content(staged.content) == BIG
    if how == "release":
        staged.release()
        staged.release()
    elif how == "with":
        with staged:
            pass
    staged = None
    gc.collect()
    store.flush()
    eventually(lambda: not nodes(client))
    with pytest.raises(NoSuchLedgerError):
        client.ledger_metadata(mine)


def test_leases_that_nobody_gave_back_are_looked_for(store: FileStore, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-13: also while nobody uses the store."""
    monkeypatch.setattr(owner_module, "LEASES_S", 0.01)
    small(store, ledger=1).stage(BIG)
    eventually(lambda: not nodes(client))


def test_stages_do_not_wait_for_one_another(store: FileStore) -> None:
    """A source that hangs holds neither a thread nor a ledger; changes and other stages go on."""
    small(store, piece=1000)
    waiting, go_on = threading.Semaphore(0), threading.Event()

    def slow() -> Iterator[bytes]:
        yield BIG
        waiting.release()
        assert go_on.wait(30)
        yield BIG

    with ThreadPoolExecutor(8) as pool:
        stages = [pool.submit(store.stage, slow()) for _ in range(8)]
        for _ in stages:
            assert waiting.acquire(timeout=30)
        store.put("/small", b"x")
        store.put("/big", BIG)
        go_on.set()
        for stage in stages:
            staged = stage.result(30)
            assert store.read_content(staged.content) == BIG + BIG
            staged.release()
    assert store.read("/big") == BIG


def test_a_source_that_fails_leaves_nothing(store: FileStore, client: bk_core.BookKeeper) -> None:
    small(store, ledger=1)

    def bad() -> Iterator[bytes]:
        yield BIG
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.put("/x", bad())
    store.flush()
    eventually(lambda: not nodes(client))
    assert not store.exists("/x")


@pytest.mark.parametrize("at", ["begin", "middle"])
def test_a_data_ledger_that_fails_is_left_for_another(store: FileStore, client: bk_core.BookKeeper, at: str) -> None:
    """Somebody fences it while it is filled: every byte of the content is there all the same, and the ledger is CLOSED."""
    store.put("/first", BIG)
    (ledger,) = set(ledgers_of(small(store, piece=1000), "/first"))

    def parts() -> Iterator[bytes]:
        if at == "middle":
            yield BIG
        client.recover_ledger(ledger).close()
        yield BIG[::-1]
        yield BIG

    store.put("/second", parts())
    assert store.read("/second") == (BIG if at == "middle" else b"") + BIG[::-1] + BIG
    assert len(set(ledgers_of(store, "/second"))) >= 2 or at == "begin"
    assert set(ledgers_of(store, "/second")) != {ledger}
    store.delete("/first")
    store.delete("/second")
    eventually(lambda: ledger not in nodes(client))


def test_bytes_that_no_bookie_takes(uri: str, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried until the time is up; nothing of it stays, and the store works on."""
    with bk_core.connect(uri, limits=LIMITS, operation_timeout_s=0.5) as impatient, FileStore.open(impatient, "a") as store:
        made = impatient.create_ledger
        monkeypatch.setattr(impatient, "create_ledger", lambda **_: (_ for _ in ()).throw(NotEnoughBookiesError("none")))
        with pytest.raises(NotEnoughBookiesError):
            store.put("/big", BIG)
        assert nodes(client) == []
        monkeypatch.setattr(impatient, "create_ledger", made)
        store.put("/small", b"x")
        store.put("/big", BIG)
        assert store.read("/big") == BIG


@pytest.mark.parametrize("at", ["the node", "the ledger", "the ledger is there", "the look behind it", "the watch"])
def test_fs_13_what_is_left_of_a_data_ledger_that_could_not_be_made_is_dropped(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """FS-13: node and ledger, by the owner itself, however far the making came. The bytes go to another ledger."""
    if at == "the look behind it":
        monkeypatch.setattr(nodes_module, "update_timeout_s", lambda _client: 0.0)
    with FileStore.open(client, "a") as store:
        calls = {
            "the node": (nodes_module, "_record", OperationTimeoutError("nobody answers"), True),
            "the ledger": (client, "create_ledger", MetadataOutcomeUnknownError("nobody answers"), False),
            "the ledger is there": (client, "create_ledger", OperationTimeoutError("nobody answers"), True),
            "the look behind it": (nodes_module, "_is_noted", MetadataUnavailableError("nobody answers"), True),
            "the watch": (store._data, "_watch", MetadataUnavailableError("nobody answers"), True),
        }
        where, name, error, is_done = calls[at]
        call, left = getattr(where, name), []

        def once(*arguments: Any, **named: Any) -> Any:
            if left:
                return call(*arguments, **named)
            if is_done:
                call(*arguments, **named)
            left.extend(data_ledgers(client, LOG))
            raise error

        monkeypatch.setattr(where, name, once)
        store.put("/big", BIG)
        (used,) = set(ledgers_of(store, "/big"))
        assert len(left) == 1 and used not in left
        eventually(lambda: nodes(client) == [used] and left[0] not in client.list_ledgers())
        assert store.read("/big") == BIG


def test_a_look_for_a_node_that_is_not_answered_is_repeated(store: FileStore, client: bk_core.BookKeeper, monkeypatch: Any) -> None:
    """The ledger is there already, so a hiccup of the metadata store does not cost it."""
    failing = Failing(nodes_module._is_noted, 1)
    monkeypatch.setattr(nodes_module, "_is_noted", failing)
    created = Counted(client.create_ledger)
    monkeypatch.setattr(client, "create_ledger", created)
    store.put("/big", BIG)
    assert not failing.left and created.times == 1


def test_the_timeout_of_a_put_bounds_its_staging(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while a data ledger is being made. The file was not made, and the error says so."""
    go_on, create = threading.Event(), store._data._create
    monkeypatch.setattr(store._data, "_create", lambda noted: (go_on.wait(30), create(noted))[1])
    begun = time.monotonic()
    with pytest.raises(OperationTimeoutError, match="no file has them") as caught:
        store.put("/big", BIG, timeout_s=0.05)
    assert time.monotonic() - begun < 20 and not caught.value.outcome_unknown
    go_on.set()
    store.put("/big", BIG, timeout_s=30)
    assert store.read("/big") == BIG


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_a_data_ledger_that_is_being_made_at_the_end(
    store: FileStore, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """A close waits for it and has it closed. A store that is abandoned makes it no more. No handle stays that writes."""
    making, go_on, create, made = threading.Event(), threading.Event(), store._data._create, []

    def slow(noted: Any) -> Any:
        making.set()
        assert go_on.wait(30)
        made.append(create(noted))
        return made[0]

    monkeypatch.setattr(store._data, "_create", slow)
    with ThreadPoolExecutor(2) as pool:
        staging = pool.submit(store.stage, BIG)
        assert making.wait(30)
        ending = pool.submit(getattr(store, end))
        eventually(lambda: store._data._over)
        go_on.set()
        ending.result(30)
        assert isinstance(staging.exception(30), FileStoreClosedError)
    if end == "close":  # as no file refers to it, it is gone
        assert made[0]._closed
        assert nodes(client) == [] and made[0].ledger_id not in client.list_ledgers()
    else:  # the store has ended before the ledger was made; the next owner finds its node
        assert not made and len(nodes(client)) == 1 and nodes(client)[0] not in client.list_ledgers()


def test_a_data_ledger_is_at_work_until_its_closing_is_asked_for(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that waits for the last one at work comes behind its closing."""
    data, seen = store._data, []
    finish = data._finish
    monkeypatch.setattr(data, "_finish", lambda *arguments: (seen.append(len(data._busy)), finish(*arguments)))
    small(store, ledger=1).put("/big", BIG)
    assert seen == [1] and not data._busy


def test_data_ledgers_are_rolled_and_shared(store: FileStore, client: bk_core.BookKeeper) -> None:
    small(store, ledger=300_000)
    for n in range(4):
        store.put(f"/{n}", BIG)
    first, second, third, fourth = [set(ledgers_of(store, f"/{n}")) for n in range(4)]
    assert first == second != third == fourth
    eventually(lambda: client.ledger_metadata(*first).state is LedgerState.CLOSED)
    custom = client.ledger_metadata(*third).custom
    assert (custom["log"], custom["purpose"], custom["application"]) == (b"files.a", b"files", b"bk_core")
    store.delete("/0")
    store.flush()
    assert store.read("/1") == BIG
    store.delete("/1")
    eventually(lambda: nodes(client) == sorted(third))


class Counted:
    """Does what ``call`` does, and counts it."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.times = 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.times += 1
        return self._call(*arguments, **named)


def test_the_memory_of_many_uploads_is_bounded(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a run that is gathered and one that is written. Many have shorter ones, and those that find no room wait."""
    monkeypatch.setattr(data_module, "STAGING_BYTES", 16_000)
    sizes: list[int] = []
    most = 0
    lock = threading.Lock()

    write = data_module.DataLedgers._write

    def written(ledgers: Any, batch: Any, *rest: Any) -> Any:
        nonlocal most
        with lock:
            sizes.append(len(batch))
            most = max(most, len(ledgers._places))
        return write(ledgers, batch, *rest)

    monkeypatch.setattr(data_module.DataLedgers, "_write", written)
    with FileStore.open(client, "a", inline_max=100) as store, ThreadPoolExecutor(20) as pool:
        small(store, piece=1000)
        for status in pool.map(lambda number: store.put(f"/{number}", (bytes(1000) for _ in range(40))), range(20)):
            assert status.size == 40_000
        assert most <= 8 and set(sizes) <= {1000, 2000, 3000, 4000} and not store._data._places  # 3000 may be left at the end
        assert sum(sizes) == 20 * 40_000
        sizes.clear()
        store.put("/alone", iter([bytes(100_000)]))
        assert set(sizes) == {4000}
        assert store.read("/alone") == bytes(100_000)


def test_an_upload_that_fails_takes_no_room_any_more(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while somebody keeps its error, and with it the frames in which the upload was."""
    monkeypatch.setattr(data_module, "STAGING_BYTES", 2000)

    def breaks() -> Iterator[bytes]:
        yield bytes(2000)
        raise ZeroDivisionError

    with FileStore.open(client, "a", inline_max=100) as store:
        small(store, piece=1000)
        with pytest.raises(ZeroDivisionError) as kept:
            store.put("/breaks", breaks())
        assert store.put("/other", iter([bytes(2000)]), timeout_s=0.2).size == 2000
        assert kept.traceback


def test_an_upload_that_finds_no_room_says_so_in_time(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_module, "STAGING_BYTES", 2000)
    begun, go_on = threading.Event(), threading.Event()

    def hangs() -> Iterator[bytes]:
        yield bytes(2000)
        begun.set()
        assert go_on.wait(30)

    with FileStore.open(client, "a", inline_max=100) as store, ThreadPoolExecutor(1) as pool:
        small(store, piece=1000)
        hanging = pool.submit(store.put, "/hangs", hangs())
        assert begun.wait(30)
        with pytest.raises(OperationTimeoutError, match="1 contents of files are being staged") as caught:
            store.put("/other", iter([bytes(2000)]), timeout_s=0.2)
        assert not caught.value.outcome_unknown
        store.put("/small", iter([bytes(100)]))
        store.put("/whole", bytes(2000))
        waiting = threading.Timer(0, go_on.set)
        waiting.start()
        store.put("/other", iter([bytes(2000)]), timeout_s=30)
        assert hanging.result(30).size == 2000 and names(store) == ["hangs", "other", "small", "whole"]
