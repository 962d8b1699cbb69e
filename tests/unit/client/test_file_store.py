"""The owner of a file store, against bookies on sockets in this process: the API, data ledgers and leases, take-overs, the end."""

from __future__ import annotations

import gc
import json
import logging
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.client.files import data as data_module
from bk_core.client.files import nodes as nodes_module
from bk_core.client.files import owner as owner_module
from bk_core.client.files import store as store_module
from bk_core.client.files import view as view_module
from bk_core.client.files import works as works_module
from bk_core.client.files.names import store_log
from bk_core.client.files.nodes import create_data_ledger, data_ledgers, data_nodes, delete_data_ledger, read_node
from bk_core.client.files.opening import log_records
from bk_core.client.files.owner_parts import Gathered, Retries, end_threads
from bk_core.client.files.store import FileStore, Staged
from bk_core.client.files.upkeep import delete_file_store, file_stores, gc_file_store, own_file_store
from bk_core.client.files.view import FileStoreView
from bk_core.client.files.watches import Watches
from bk_core.client.log import list_store, live_writers
from bk_core.client.log.history import read_log, update_ledger_list
from bk_core.client.log.intents import create_intended, forget_intent
from bk_core.client.log.janitor import apply_retention, delete_log, trim_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.orphans import adopt_log
from bk_core.client.log.writer import LogWriter
from bk_core.client.near import meant
from bk_core.errors import (
    ArgumentTypeError,
    BkError,
    ClientClosedError,
    FileDataLostError,
    FileStoreClosedError,
    FileStoreError,
    FileStoreFormatError,
    FileStoreTakenOverError,
    ForeignLedgerError,
    InvalidArgumentError,
    InvalidPathError,
    LedgerListedError,
    LogTakenOverError,
    MetadataFormatError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NoSuchFileStoreError,
    NoSuchLedgerError,
    NoSuchPathError,
    NotEnoughBookiesError,
    OperationTimeoutError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotDirectoryError,
    WrongClusterError,
    WrongPasswordError,
)
from bk_core.metadata import open_store
from bk_core.protocol.files.records import Mkdirs, encode
from bk_core.protocol.files.state import FileLimits
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.names import store_of
from bk_core.protocol.log.segments import LogProperties
from tests.unit.client.forked import in_a_forked_child

LIMITS = Limits(explicit_lac_ns=5_000_000)
LOG = "files.a"
BIG = bytes(range(256)) * 1024  # four times what lies in a record


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri, limits=LIMITS) as bk:
        yield bk


@pytest.fixture
def store(client: bk_core.BookKeeper) -> Iterator[FileStore]:
    with FileStore.open(client, "a") as opened:
        yield opened


def small(store: FileStore, *, piece: int = 1 << 20, ledger: int = 64 << 20) -> FileStore:
    """With small entries and data ledgers."""
    store._data._piece, store._data._ledger_bytes = piece, ledger
    return store


def eventually(holds: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    never = threading.Event()
    while not holds():
        assert time.monotonic() < deadline
        never.wait(0.005)


def nodes(client: Any) -> list[int]:
    return [node.ledger_id for node in data_nodes(client, LOG)]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "-files" in thread.name]


def ledgers_of(store: FileStore, path: str) -> list[int]:
    return [extent.ledger_id for extent in store.content(path).extents]


def names(store: FileStore, path: str = "/") -> list[str]:
    return [status.name for status in store.listing(path)]


# --- the API -------------------------------------------------------------------------------------------------------------


def test_files_and_directories(store: FileStore) -> None:
    status = store.put("/dir/file", b"hello")
    assert (status.path, status.size, status.is_directory) == ("/dir/file", 5, False)
    assert store.status("/dir/file") == status and store.exists("/dir") and not store.exists("/nothing")
    assert store.status("/dir").children == 1
    assert store.mkdirs("/dir/x/y").is_directory and store.mkdirs("/dir/x") == store.status("/dir/x")
    assert names(store, "/dir") == ["file", "x"] and store.listing("/dir/file") == [status]
    assert store.rename("/dir/file", "/dir/x/moved").path == "/dir/x/moved"
    assert store.read("/dir/x/moved") == b"hello"
    assert store.delete("/dir/none") is False and store.delete("/dir/x/moved") is True
    assert store.delete("/dir", recursive=True) and names(store) == []
    store.flush()
    assert repr(store) == "<FileStore 'a' SERVING>" and store.is_open and store.error is None
    assert (store.name, store.log_name) == ("a", LOG)


def test_fs_20_a_directory_takes_the_place_of_all_files(store: FileStore, client: bk_core.BookKeeper) -> None:
    """FS-20: for the owner, for a view beside it and for the next owner; the data ledgers of what went are deleted."""
    store.put("/old/file", BIG)
    store.close()
    with FileStore.open(client, "a") as later:  # which has data ledgers of its own
        later.put("/new/dir/file", BIG + b"new")
        kept = sorted(set(ledgers_of(later, "/new/dir/file")))
        assert nodes(client) == sorted({*ledgers_of(later, "/old/file"), *kept}) != kept
        assert later.replace_all("/new").path == "/"
        assert names(later) == ["dir"] and later.read("/dir/file") == BIG + b"new"
        eventually(lambda: nodes(client) == kept)
    with FileStoreView.open(client, "a") as view:
        assert [status.path for status, _ in view.everything()] == ["/", "/dir", "/dir/file"]
    with FileStore.open(client, "a") as after:
        assert names(after) == ["dir"] and after.read("/dir/file") == BIG + b"new"


def test_what_cannot_be_is_refused(store: FileStore, client: bk_core.BookKeeper) -> None:
    store.put("/file", b"1")
    text: Any = "text"
    refused: list[tuple[type[Exception], Callable[[], object]]] = [
        (NoSuchPathError, lambda: store.status("/none")),
        (NoSuchPathError, lambda: store.listing("/none")),
        (NoSuchPathError, lambda: store.read("/none")),
        (NoSuchPathError, lambda: store.put("/none/file", b"", parents=False)),
        (NoSuchPathError, lambda: store.rename("/none", "/other")),
        (FileNotFoundError, lambda: store.chunks("/none")),
        (PathIsDirectoryError, lambda: store.read("/")),
        (PathExistsError, lambda: store.put("/file", b"2", overwrite=False)),
        (PathExistsError, lambda: store.mkdirs("/file")),
        (InvalidPathError, lambda: store.put("file", b"2")),
        (InvalidPathError, lambda: store.mkdirs("/a//b")),
        (InvalidPathError, lambda: store.rename("/file", "..")),
        (NoSuchPathError, lambda: store.replace_all("/none")),
        (PathNotDirectoryError, lambda: store.replace_all("/file")),
        (InvalidPathError, lambda: store.exists("/../x")),
        (ArgumentTypeError, lambda: store.put("/x", text)),
        (ArgumentTypeError, lambda: store.put("/x", [b"1", text])),
        (InvalidArgumentError, lambda: store.read("/file", -1)),
        (InvalidArgumentError, lambda: store.flush(timeout_s=-1)),
        (InvalidArgumentError, lambda: FileStore.open(client, "a/b")),
        (InvalidArgumentError, lambda: FileStore.open(client, "")),
        (InvalidArgumentError, lambda: FileStore.open(client, "b", inline_max=1 << 30)),
        (InvalidArgumentError, lambda: FileStore.open(client, "b", ensemble_size=1)),
        (InvalidArgumentError, lambda: FileStore.open(client, "b", digest_type="none")),
        (NoSuchFileStoreError, lambda: FileStore.open(client, "b", create=False)),
    ]
    for expected, call in refused:
        with pytest.raises(expected):
            call()
    assert store.read("/file") == b"1" and names(store) == ["file"]


def test_a_client_whose_frames_are_too_short_for_records(uri: str) -> None:
    with bk_core.connect(uri, limits=Limits(frame_bytes_max=500_000)) as client:
        with pytest.raises(InvalidArgumentError, match="limits.frame_bytes_max"):
            FileStore.open(client, "a")
        assert list(client.list_ledgers()) == []


def test_a_store_is_opened_and_not_made(client: bk_core.BookKeeper) -> None:
    with pytest.raises(ArgumentTypeError, match=r"not made but opened: FileStore.open\(client, name\)"):
        FileStore(client, "fs")


def test_what_messages_name_is_exported() -> None:
    assert (bk_core.delete_file_store, bk_core.file_stores) == (delete_file_store, file_stores)
    assert (bk_core.own_file_store, bk_core.gc_file_store) == (own_file_store, gc_file_store)


def test_a_store_is_exported() -> None:
    assert bk_core.FileStore is FileStore
    assert store_of(store_log("a.b-c")) == "a.b-c" and store_of("other") is None


def test_ranges_of_files(store: FileStore) -> None:
    """Inline, in one entry, across entries and extents; and behind the end."""
    small(store, piece=100, ledger=1000)
    content = os.urandom(5000)
    store.put("/inline", content)
    store.put("/big", BIG)
    assert len(store.content("/big").extents) > 1
    for path, whole in (("/inline", content), ("/big", BIG)):
        for offset, length in [
            (0, None),
            (0, 0),
            (0, 1),
            (99, 2),
            (100, 100),
            (1, 4000),
            (4999, 1),
            (4999, 5),
            (len(whole), 1),
            (1 << 40, 7),
        ]:
            end = len(whole) if length is None else offset + length
            assert store.read(path, offset, length) == whole[offset:end]
            assert b"".join(store.chunks(path, offset, length)) == whole[offset:end]
        assert store.read_content(store.content(path), 3, 5) == whole[3:8]


def test_contents_come_in_any_parts(store: FileStore) -> None:
    """WR: of a generator, of buffers, none at all; the sizes around what still lies in a record."""
    small(store, piece=1000)
    for size in (0, 1, 65535, 65536, 65537, 68000, 68001, 200_000):
        data = os.urandom(size)
        parts = [bytearray(data[at : at + 777]) for at in range(0, size, 777)]
        for given in (data, bytearray(data), memoryview(data), iter(parts), parts):
            assert store.put(f"/{size}", given).size == size
            assert store.read(f"/{size}") == data
        assert bool(store.content(f"/{size}").extents) is (size > 65536)


def test_many_threads_change_a_store(store: FileStore, client: bk_core.BookKeeper) -> None:
    """Changes are pipelined; each has its outcome, and all of them are there for the next owner."""
    small(store, piece=100)

    def work(who: int) -> None:
        for n in range(20):
            store.put(f"/{who}/{n}", b"%d" % n if n % 5 else BIG[: 70_000 + n])
            if n % 3 == 2:
                store.delete(f"/{who}/{n}")

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    before = {status.path: store.read(status.path) for who in range(6) for status in store.listing(f"/{who}")}
    assert len(before) == 6 * 14
    store.close()
    with FileStore.open(client, "a") as again:
        assert {path: again.read(path) for path in before} == before
        assert sum(status.children for status in again.listing("/")) == len(before)


class Stalled:
    """A log whose bookies acknowledge nothing until it goes on."""

    def __init__(self, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.appended: list[tuple[bytes, Future[Any]]] = []
        self._store = store
        self._append = store._writer.append_future
        self._patch = monkeypatch
        monkeypatch.setattr(store._writer, "append_future", self._keep)

    def _keep(self, record: bytes) -> Future[Any]:
        self.appended.append((record, Future()))
        return self.appended[-1][1]

    def go_on(self) -> None:
        self._patch.setattr(self._store._writer, "append_future", self._append)
        for record, future in self.appended:
            self._append(record).add_done_callback(lambda done, told=future: told.set_result(done.result()))  # type: ignore[misc]


def test_memory_is_bounded(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that finds no room in time was not made, and says so; one alone may be larger than the bound."""
    monkeypatch.setattr(owner_module, "UNDECIDED_BYTES_MAX", 2000)
    store.put("/large", bytes(5000))
    stalled = Stalled(store, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(store.put, "/first", bytes(900))
        eventually(lambda: len(stalled.appended) == 1)
        with pytest.raises(OperationTimeoutError, match="this change was not made"):
            store.put("/second", bytes(900), timeout_s=0.05)
        third = pool.submit(store.put, "/third", bytes(900))
        assert store.listing("/") == [store.status("/large")]
        stalled.go_on()
        assert first.result(30).size == third.result(30).size == 900
    assert names(store) == ["first", "large", "third"]


def test_a_change_that_takes_too_long_may_still_be_made(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    stalled = Stalled(store, monkeypatch)
    with pytest.raises(OperationTimeoutError, match="may still take effect"):
        store.put("/late", b"x", timeout_s=0.05)
    assert not store.exists("/late")
    stalled.go_on()
    store.flush()
    assert store.exists("/late")


def test_a_change_that_waits_for_bookies_tells_what_its_log_waits_for(tmp_path: Path) -> None:
    """And one that is only slow tells of no failure that is over."""
    metadata = f"memory://{tmp_path.name}"
    with ExitStack() as stack:
        keeper = stack.enter_context(closing(open_store(metadata)))
        keeper.initialize_cluster()
        bookies = [EmbeddedBookie(tmp_path / str(number), "127.0.0.1", 0, keeper).start() for number in range(3)]
        stack.callback(lambda: [bookie.close() for bookie in bookies])
        client = stack.enter_context(bk_core.connect(metadata, operation_timeout_s=30))
        store = FileStore.open(client, "a")
        stack.callback(store.abandon)
        store.put("/x", b"x")
        ports = [bookie.port for bookie in bookies]
        for bookie in bookies[1:]:
            bookie.close()
        late = r"putting file '/y' did not finish within 2 s; it may still take effect; its log is held up: \[BK-NOT-ENOUGH-BOOKIES\] .* 1 "
        with pytest.raises(OperationTimeoutError, match=late) as caught:
            store.put("/y", b"y", timeout_s=2)
        assert caught.value.outcome_unknown
        bookies[1:] = [EmbeddedBookie(tmp_path / str(number), "127.0.0.1", ports[number], keeper).start() for number in (1, 2)]
        store.flush()
        assert store.read("/y") == b"y"
        with pytest.raises(OperationTimeoutError, match="it may still take effect$"):
            store.put("/z", b"z", timeout_s=0.0)


def test_an_error_of_an_outage_names_the_bookies_that_do_not_answer(tmp_path: Path) -> None:
    metadata, go_on = f"memory://{tmp_path.name}", threading.Event()
    with ExitStack() as stack:
        keeper = stack.enter_context(closing(open_store(metadata)))
        keeper.initialize_cluster()
        bookies = [stack.enter_context(closing(EmbeddedBookie(tmp_path / str(n), "127.0.0.1", 0, keeper).start())) for n in range(3)]
        stack.callback(go_on.set)
        limits = Limits(add_timeout_ns=100_000_000, read_timeout_ns=100_000_000)
        client = stack.enter_context(bk_core.connect(metadata, operation_timeout_s=3, limits=limits))
        store = FileStore.open(client, "a")
        stack.callback(store.abandon)
        store.put("/x", b"x")
        for bookie in bookies[1:]:
            assert bookie._server is not None
            bookie._server.submit(go_on.wait)  # it is there and says nothing
        silent = sorted(bookie.bookie_id for bookie in bookies[1:])
        told = f"no answer from bookie {silent[0]}, {silent[1]}$"
        for change in (lambda: store.put("/y", b"y"), lambda: store.stage(BIG)):
            with pytest.raises((OperationTimeoutError, NotEnoughBookiesError), match=told):
                change()
        with pytest.raises(OperationTimeoutError, match=told):
            store.close()
        with pytest.raises(BkError) as raised:
            FileStore.open(client, "a")
        assert all(one in str(raised.value) for one in silent)


# --- staged contents -------------------------------------------------------------------------------------------------------


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
        monkeypatch.setattr(nodes_module, "UPDATE_TIMEOUT_S", 0.0)
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
    """Who waits for the last one at work comes behind its closing."""
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


# --- opening again -----------------------------------------------------------------------------------------------------------


def test_everything_is_there_again(client: bk_core.BookKeeper) -> None:
    """After a close all ledgers are CLOSED, and there is no thread and no node too many."""
    with FileStore.open(client, "a", password=b"secret", write_quorum_size=2, digest_type="CRC32") as store:
        store.put("/a/small", b"x")
        store.put("/a/big", BIG)
        store.put("/gone", BIG)
        store.delete("/gone")
        listing = store.listing("/a")
    eventually(lambda: not threads())
    metadata = client.ledger_metadata(*nodes(client))
    assert metadata.state is LedgerState.CLOSED and (metadata.write_quorum_size, metadata.digest_type.name) == (2, "CRC32")
    assert not read_ledger_list(client, LOG).live_segments
    assert set(client.list_ledgers()) == {*nodes(client), *(one.ledger_id for one in read_log(client, LOG).segments())}
    with pytest.raises(WrongPasswordError):
        FileStore.open(client, "a")
    with FileStore.open(client, "a", password=b"secret", create=False, take_over=False) as store:
        assert store.listing("/a") == listing and store.read("/a/big") == BIG and store.read("/a/small") == b"x"
        assert store.status("/a/big").file_id < store.put("/new", b"").file_id


def test_a_large_history_is_short_to_read(store: FileStore, client: bk_core.BookKeeper) -> None:
    """FS-11, FS-12: the log is compacted on the way, so opening costs what there is, not what there was."""
    with ThreadPoolExecutor(16) as pool:
        for _ in range(4):
            list(pool.map(lambda n: store.put(f"/{n}", bytes(30_000)), range(30)))
    expected = store.listing("/")
    eventually(lambda: read_log(client, LOG).first_position.seq > 0)
    store.close()
    size = sum(len(record) for record, _ in log_records(client, LOG, b""))
    assert size < 3_500_000
    with FileStore.open(client, "a") as again:
        assert again.listing("/") == expected


def test_what_a_dead_owner_left(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ledgers that files refer to are closed, the others deleted; those of others are not touched."""
    store = FileStore.open(client, "a")
    store.put("/kept", BIG)
    staged = store.stage(BIG[::-1] * 4)
    log_id = read_ledger_list(client, LOG).log_id
    store._data._ledger_bytes = 1  # the next one goes to a ledger of its own
    store._data._idle.clear()
    lost = store.stage(BIG)
    (kept,), (unknown,) = set(ledgers_of(store, "/kept")), {extent.ledger_id for extent in lost.content.extents}
    store.abandon()
    foreign = create_data_ledger(client, LOG, "another log", LogProperties(), b"")
    client.store.create(f"files/{LOG}/4711", b'{"cluster": "another", "logId": "%s"}' % log_id.encode())
    here = rf"process {os.getpid()} on host .* UTC"
    with pytest.raises(FileStoreTakenOverError, match=f"'a' was not opened: {here}, has it open. Close it there, .* take_over=True$"):
        FileStore.open(client, "a", take_over=False)
    with monkeypatch.context() as patched:
        patched.setattr(live_writers, "lives_here", lambda _writer: False)
        with pytest.raises(FileStoreTakenOverError, match=f"{here}, has it open, or died .* If it is gone, .*loses nothing$"):
            FileStore.open(client, "a", take_over=False)
        patched.setattr(live_writers, "abandoned", lambda _writer: True)
        with pytest.raises(FileStoreTakenOverError, match=f"{here}, had it open and died without closing it. take_over=True opens it"):
            FileStore.open(client, "a", take_over=False)
    with FileStore.open(client, "a") as again:
        eventually(lambda: unknown not in nodes(client))
        eventually(lambda: client.ledger_metadata(kept).state is LedgerState.CLOSED)
        assert again.read("/kept") == BIG
    assert nodes(client) == sorted([kept, foreign.ledger_id]) and data_ledgers(client, LOG) == sorted([kept, foreign.ledger_id, 4711])
    assert client.ledger_metadata(foreign.ledger_id).state is LedgerState.OPEN
    assert client.store.children(f"files/{LOG}") == sorted(map(str, [kept, foreign.ledger_id, 4711]))
    for ledger_id in (foreign.ledger_id, 4711):
        with pytest.raises(ForeignLedgerError, match="It was left alone"):
            delete_data_ledger(client, LOG, log_id, ledger_id, b"")
    foreign.close()
    staged.release()


def test_fs_16_a_ledger_of_a_later_owner_is_left_alone(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-16: it is made after this owner took the store over, and before it serves. What a dead owner left is dropped all the same."""
    FileStore.open(client, "a").close()
    listed = read_ledger_list(client, LOG)

    def made() -> int:
        with create_data_ledger(client, LOG, listed.log_id, listed.properties, b"") as ledger:
            return int(ledger.ledger_id)

    earlier, later, real = made(), [], store_module.open_log

    def open_log(*arguments: Any, **options: Any) -> Any:
        opened = real(*arguments, **options)
        later.append(made())
        return opened

    monkeypatch.setattr(store_module, "open_log", open_log)
    with FileStore.open(client, "a"):
        eventually(lambda: earlier not in nodes(client))
    assert nodes(client) == later


def test_a_data_ledger_whose_node_goes_while_it_is_made(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another owner deletes the node before the ledger is there, or between the look of its maker and its own: no ledger is left."""
    FileStore.open(client, "a").close()
    listed = read_ledger_list(client, LOG)
    before = set(client.list_ledgers())

    def go(ledger_id: int) -> None:
        delete_data_ledger(client, LOG, listed.log_id, ledger_id, b"")

    with monkeypatch.context() as patched:
        create = client.create_ledger
        patched.setattr(client, "create_ledger", lambda **options: (go(options["ledger_id"]), create(**options))[1])
        with pytest.raises(FileStoreClosedError, match="has deleted the node of ledger"):
            create_data_ledger(client, LOG, listed.log_id, listed.properties, b"")
    assert set(client.list_ledgers()) == before and nodes(client) == []

    with monkeypatch.context() as patched:
        handles, forget = [], nodes_module._forget

        def late(*arguments: Any) -> None:
            patched.setattr(nodes_module, "_forget", forget)
            handles.append(client.create_ledger(ledger_id=arguments[2], custom=custom))
            forget(*arguments)

        number = client.store.new_ledger_id()
        custom = {"log": LOG.encode(), "logId": listed.log_id.encode()}
        whose = {"cluster": client.store.cluster_id(), "logId": listed.log_id}
        client.store.create(f"files/{LOG}/{number}", json.dumps(whose).encode())
        patched.setattr(nodes_module, "_forget", late)
        go(number)
        assert handles
    assert set(client.list_ledgers()) == before and nodes(client) == []


def test_a_node_that_is_another_cluster_s_by_then_stays(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """OWN-5: another owner was faster, and a cluster at the same log root has come to the number since."""
    FileStore.open(client, "a").close()
    listed = read_ledger_list(client, LOG)
    ledger = create_data_ledger(client, LOG, listed.log_id, listed.properties, b"")
    ledger.close()
    path, delete_ledger = f"files/{LOG}/{ledger.ledger_id}", client.delete_ledger

    def delete(*arguments: Any, **options: Any) -> None:
        delete_ledger(*arguments, **options)
        client.store.delete(path)
        client.store.create(path, b'{"cluster": "another", "logId": "%s"}' % listed.log_id.encode())

    monkeypatch.setattr(client, "delete_ledger", delete)
    assert delete_data_ledger(client, LOG, listed.log_id, ledger.ledger_id, b"")
    assert b"another" in client.store.read(path).data


def test_a_data_ledger_of_another_log_is_not_deleted(client: bk_core.BookKeeper) -> None:
    """OWN-6: the ledger itself says so, whatever its node says."""
    store = FileStore.open(client, "a")
    log_id = read_ledger_list(client, LOG).log_id
    ledger = client.create_ledger(custom={"log": b"other"})
    client.store.create(
        f"files/{LOG}/{ledger.ledger_id}", b'{"cluster": "%s", "logId": "%s"}' % (client.store.cluster_id().encode(), log_id.encode())
    )
    store.close()
    with FileStore.open(client, "a"):
        pass
    assert client.ledger_metadata(ledger.ledger_id).state is LedgerState.OPEN and nodes(client) == [ledger.ledger_id]
    ledger.close()


def test_a_node_that_is_none(store: FileStore, client: bk_core.BookKeeper) -> None:
    """It keeps nobody from opening the store."""
    store.close()
    client.store.create(f"files/{LOG}/7", b"[]")
    with pytest.raises(MetadataFormatError, match="no node of a data ledger"):
        read_node(client, LOG, "7")
    assert read_node(client, LOG, "8") is None
    client.store.create(f"files/{LOG}/none", b"")
    with FileStore.open(client, "a") as again:
        again.put("/big", BIG)
        assert again.read("/big") == BIG


def test_a_log_that_is_no_store_is_not_opened(client: bk_core.BookKeeper) -> None:
    """Its writer is closed again, so that it is not left behind as one that somebody writes."""
    create_log(client, LOG, LogProperties(entry_format="raw"), file_entries=True)
    with LogWriter.open(client, LOG, file_entries=True) as writer:
        writer.append(b"something else")
    told = r"file store 'a', segment 0, entry 0: the entry .*no record of a file store.*delete_file_store\(client, 'a'\)"
    for opening in (FileStore.open, FileStoreView.open):
        with pytest.raises(FileStoreFormatError, match=told):
            opening(client, "a")
    assert not read_ledger_list(client, LOG).live_segments
    eventually(lambda: not threads())


def test_a_log_without_its_beginning_is_not_opened(client: bk_core.BookKeeper) -> None:
    """The store finds that when it begins to serve. Its log is closed again, as after every open that fails."""
    create_log(client, LOG, LogProperties(entry_format="raw"), file_entries=True)
    with LogWriter.open(client, LOG, file_entries=True) as writer:
        writer.append(encode(Mkdirs("/d", 0, 2, 1)))
    for _ in range(2):
        with pytest.raises(FileStoreFormatError, match="its beginning is lost"):
            own_file_store(client, "a")
    assert not read_ledger_list(client, LOG).live_segments
    eventually(lambda: not threads())


def test_a_store_whose_first_base_comes_too_late_can_be_opened_again(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by whoever refuses to take a store over."""

    def too_late(*_: Any) -> None:
        raise OperationTimeoutError("too late")

    with monkeypatch.context() as patched:
        patched.setattr(store_module, "wait", too_late)
        with pytest.raises(OperationTimeoutError, match="too late"):
            FileStore.open(client, "a")
    assert not read_ledger_list(client, LOG).live_segments
    with own_file_store(client, "a") as store:
        store.put("/x", b"1")


def test_a_store_that_ends_while_it_is_opened_abandons_its_log(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its open has all that it waits for, and succeeds."""
    opened = FileStore._opened

    def late(store: FileStore) -> None:
        store._end(FileStoreClosedError("ended"))
        eventually(lambda: store._stopped)
        opened(store)

    monkeypatch.setattr(FileStore, "_opened", late)
    store = FileStore.open(client, "a")
    assert store._writer._stopped and not store.is_open
    store.close()


def test_what_a_dead_owner_took_off_the_list_is_deleted_by_the_next_one(client: bk_core.BookKeeper) -> None:
    """FS-12: it died between the two steps of its trim, after the list had condemned the ledger."""
    with FileStore.open(client, "a") as store:
        store.put("/a", b"a")
    listed = read_ledger_list(client, LOG)
    left = create_intended(client, LOG, listed.properties, log_id=listed.log_id)
    left.close()
    forget_intent(client, LOG, left.ledger_id)
    update_ledger_list(client, LOG, lambda current: current.condemn([left.ledger_id]))
    with FileStore.open(client, "a") as store:
        eventually(lambda: not read_ledger_list(client, LOG).has_put_aside)
        assert left.ledger_id not in client.list_ledgers() and store.read("/a") == b"a"


def test_bookies_that_go_in_the_middle_of_a_take_over_are_waited_for(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause of the metadata store their sessions end, and they register again. The former owner is fenced by then."""
    with bk_core.connect(client.config.uri, limits=LIMITS) as other:
        former = FileStore.open(other, "a")
        former.put("/a", b"a")
        create, refused = client.create_ledger, []

        def away(**options: Any) -> Any:
            if len(refused) < 2:
                refused.append(1)
                raise NotEnoughBookiesError("needs 3 writable bookies, 2 are registered")
            return create(**options)

        monkeypatch.setattr(client, "create_ledger", away)
        with FileStore.open(client, "a") as store:
            assert len(refused) == 2 and store.read("/a") == b"a"
            store.put("/b", b"b")
        with pytest.raises(FileStoreTakenOverError):
            former.put("/late", b"late")
        former.abandon()


def test_opening_goes_on_where_a_former_owner_still_trims(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    from bk_core.client.files import opening
    from bk_core.errors import LogDataLossError

    FileStore.open(client, "a").close()
    records, times = opening.log_records, []

    def trimmed(*arguments: Any) -> Iterator[Any]:
        times.append(1)
        yield from list(records(*arguments))[: len(times) - 1]
        if len(times) < 3:
            raise LogDataLossError("trimmed")

    monkeypatch.setattr(opening, "log_records", trimmed)
    with FileStore.open(client, "a") as store:
        store.put("/x", b"")
    assert len(times) == 3


class Counted:
    """Does what ``call`` does, and counts it."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self.times = 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self.times += 1
        return self._call(*arguments, **named)


class Failing:
    """Fails some times with an error before it does what ``call`` does."""

    def __init__(self, call: Callable[..., Any], times: int) -> None:
        self._call = call
        self.left = times

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.left:
            self.left -= 1
            raise MetadataUnavailableError("nobody answers")
        return self._call(*arguments, **named)


def test_what_is_done_beside_is_tried_again(
    store: FileStore, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """FS-15: a roll, a trim, a drop, and the closing of a data ledger. Each is told once, however often it fails."""
    monkeypatch.setattr(owner_module, "AGAIN_S", 0.01)
    monkeypatch.setattr(store._machine, "_limits", FileLimits(compact_bytes=1000, retry_ns=10_000_000))
    works = store._works
    failing = [Failing(works.close_data, 2), Failing(store._writer.roll, 2), Failing(works_module.trim_log, 2)]
    monkeypatch.setattr(works, "close_data", failing[0])
    monkeypatch.setattr(store._writer, "roll", failing[1])
    monkeypatch.setattr(works_module, "trim_log", failing[2])
    failing.append(Failing(works_module.delete_data_ledger, 2))
    monkeypatch.setattr(works_module, "delete_data_ledger", failing[3])
    with caplog.at_level(logging.WARNING, "bk_core.client.files"):
        small(store, ledger=1).put("/big", BIG)
        (ledger,) = nodes(client)
        eventually(lambda: client.ledger_metadata(ledger).state is LedgerState.CLOSED)
        for _ in range(20):
            store.put("/big", bytes(200))
        eventually(lambda: not nodes(client) and read_log(client, LOG).first_position.seq > 0)
    assert [one.left for one in failing] == [0, 0, 0, 0]
    for what in ("RollLog", "TrimLog", f"dropping data ledger {ledger}"):
        assert caplog.text.count(f"{what} is tried again later") == 1
    assert caplog.text.count("cannot be closed now") == 1
    assert store._works._told == {} and store._retries._failing == {}


def test_what_a_dead_owner_left_open_is_closed_in_the_end(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_module, "AGAIN_S", 0.01)
    store = FileStore.open(client, "a")
    store.put("/big", BIG)
    store.abandon()
    (ledger,) = nodes(client)
    failing = Failing(works_module.close_own, 2)
    monkeypatch.setattr(works_module, "close_own", failing)
    with FileStore.open(client, "a") as store:
        assert store.read("/big") == BIG
        eventually(lambda: client.ledger_metadata(ledger).state is LedgerState.CLOSED)
    assert not failing.left


def test_what_fails_for_ever_is_told_once_and_tried_less_and_less(caplog: pytest.LogCaptureFixture) -> None:
    pauses: list[float] = []
    worker: Any = SimpleNamespace(later=lambda key, after_s, task: pauses.append(after_s))
    retries = Retries(worker, "a")
    for number in range(6):
        retries.failed("close 7", "data ledger 7 cannot be closed", WrongPasswordError(f"not this one, {number}"), 5.0, lambda: None)
    retries.failed("close 8", "data ledger 8 cannot be closed", WrongPasswordError("not this one"), 5.0, lambda: None)
    assert pauses == [5, 10, 20, 40, 60, 60, 5]
    retries.failed("close 7", "data ledger 7 cannot be closed", MetadataUnavailableError("nobody answers"), 5.0, lambda: None)
    assert [caplog.text.count(f"data ledger {number} cannot be closed now") for number in (7, 8)] == [2, 1]
    retries.done("close 7")
    retries.failed("close 7", "data ledger 7 cannot be closed", MetadataUnavailableError("nobody answers"), 5.0, lambda: None)
    assert pauses[-1] == 5 and caplog.text.count("nobody answers") == 2
    retries.failed("list", "its list cannot be read", MetadataUnavailableError("nobody answers"), 5.0, lambda: None)
    assert len(pauses) == 10 and caplog.text.count("nobody answers") == 2, "SES-8: one outage fails all that is asked"
    retries.failed("watch", "its list cannot be watched", ClientClosedError("closed by this program"), 5.0, lambda: None)
    assert len(pauses) == 10 and "closed by this program" not in caplog.text


def test_a_data_ledger_that_is_another_s_is_not_closed_and_told_once(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Files name it all the same; asking again would not make it this store's."""
    monkeypatch.setattr(owner_module, "AGAIN_S", 0.01)
    store = FileStore.open(client, "a")
    store.put("/big", BIG)
    store.abandon()
    asked: list[int] = []

    def foreign(*_: Any) -> None:
        asked.append(1)
        raise ForeignLedgerError("it is of another log. It was left alone")

    monkeypatch.setattr(works_module, "close_own", foreign)
    with FileStore.open(client, "a") as store:
        eventually(lambda: bool(asked))
        done = threading.Event()
        store._worker.later("test", 0.1, done.set)
        assert done.wait(30)
    assert asked == [1] and caplog.text.count("It was left alone") == 1


# --- guards --------------------------------------------------------------------------------------------------------------------


def test_grd_7_nobody_else_writes_the_log_of_a_store(store: FileStore, client: bk_core.BookKeeper) -> None:
    """GRD-7: nothing is fenced, and the message says what writes it."""
    with pytest.raises(InvalidArgumentError, match=r"FileStore.open\(client, 'a'\)"):
        LogWriter.open(client, LOG)
    for act in (lambda: trim_log(client, LOG, max_bytes=0), lambda: apply_retention(client, LOG), lambda: delete_log(client, LOG)):
        with pytest.raises(InvalidArgumentError, match="Only the owner of the store, .*delete_file_store.*bk checkpoint rm a"):
            act()
    store.put("/x", b"1")


def test_a_store_is_adopted_with_its_data_ledgers(store: FileStore, client: bk_core.BookKeeper) -> None:
    """OWN-4: what lay beside the list of a cluster that got another identity is this cluster's again, and goes when it is to go."""
    store.put("/big", BIG)
    store.close()
    for path in (f"logs/{LOG}", f"files/{LOG}/{nodes(client)[0]}"):
        stored = client.store.read(path)
        client.store.write(path, stored.data.replace(client.store.cluster_id().encode(), b"another"), stored.version)
    with pytest.raises(WrongClusterError):
        FileStore.open(client, "a")
    assert nodes(client) == []
    adopt_log(client, LOG, from_cluster="another")
    with FileStore.open(client, "a") as again:
        assert again.read("/big") == BIG and len(nodes(client)) == 1
        again.delete("/big")
        eventually(lambda: not nodes(client))


def test_grd_7_a_data_ledger_is_deleted_by_its_store(store: FileStore, client: bk_core.BookKeeper) -> None:
    """GRD-7: unless one insists, or the store is gone."""
    store.put("/big", BIG)
    (ledger,) = set(ledgers_of(store, "/big"))
    with pytest.raises(LedgerListedError, match="file store 'a', which may refer to it.*even_if_listed"):
        client.delete_ledger(ledger)
    assert store.read("/big") == BIG
    store.close()
    delete_log(client, LOG, file_entries=True)
    client.delete_ledger(ledger)


def test_data_that_somebody_deleted_is_said_to_be_lost(client: bk_core.BookKeeper) -> None:
    with FileStore.open(client, "a") as store:
        store.put("/big", BIG)
        (ledger,) = set(ledgers_of(store, "/big"))
    client.delete_ledger(ledger, even_if_listed=True)
    with FileStore.open(client, "a") as store:
        for call in (lambda: store.read("/big"), lambda: list(store.chunks("/big")), lambda: store.read_content(store.content("/big"))):
            with pytest.raises(FileDataLostError, match=f"ledger {ledger}"):
                call()
        store.put("/big", b"new")
        assert store.read("/big") == b"new"


def test_a_file_that_is_replaced_while_it_is_read(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked up is dropped before it is read: the file is looked up again, so it is read whole."""
    small(store, ledger=1).put("/big", BIG)

    def replaced(*_: Any) -> Any:
        monkeypatch.undo()
        store.put("/big", BIG[::-1])
        raise FileDataLostError("dropped")

    for read in (store.read, lambda path: b"".join(store.chunks(path))):
        store.put("/big", BIG)
        monkeypatch.setattr(store._reader, "chunks", replaced)
        assert read("/big") == BIG[::-1]


# --- the end ---------------------------------------------------------------------------------------------------------------------


def test_another_owner_ends_a_store(client: bk_core.BookKeeper) -> None:
    """All that is pending and all that is called later fails alike; it is told once, and no thread stays."""
    told: list[BkError] = []
    store = FileStore.open(client, "a", on_end=told.append)
    store.put("/before", BIG)
    staged = store.stage(BIG)
    with FileStore.open(client, "a") as other:
        assert other.read("/before") == BIG
        ended = rf"another owner opened file store 'a' \(process {os.getpid()} on host .* UTC\), which ended this one"
        calls: list[Callable[[], object]] = [
            lambda: store.put("/late", b"x"),
            lambda: store.put("/late", BIG),
            lambda: store.put("/late", staged),
            lambda: store.mkdirs("/d"),
            lambda: store.rename("/before", "/after"),
            lambda: store.replace_all("/before"),
            lambda: store.delete("/before"),
            store.flush,
            lambda: store.status("/before"),
            lambda: store.read("/before"),
            lambda: store.listing("/"),
            lambda: store.stage(b"x"),
        ]
        for call in calls:
            with pytest.raises(FileStoreTakenOverError, match=ended) as error:
                call()
            assert isinstance(error.value.__cause__, LogTakenOverError)
        store.close()
        assert [type(error) for error in told] == [FileStoreTakenOverError] and type(store.error) is FileStoreTakenOverError
        assert not store.is_open
        assert names(other) == ["before"]
        other.close()
    eventually(lambda: not threads())


def test_a_store_that_is_idle_learns_that_it_was_taken_over(client: bk_core.BookKeeper) -> None:
    """LOG-1: a ledger of another writer on the log's list means that ours was fenced. One of our own, by a roll, does not."""
    told: list[BkError] = []
    store = FileStore.open(client, "a", on_end=told.append)
    store._writer.roll()
    store.put("/x", b"")
    with FileStore.open(client, "a") as other:
        eventually(lambda: bool(told))
        assert isinstance(told[0], FileStoreTakenOverError) and isinstance(told[0].__cause__, LogTakenOverError)
        with pytest.raises(FileStoreTakenOverError):
            store.status("/x")
        assert other.exists("/x")
    store.close()
    assert len(told) == 1


@pytest.mark.parametrize("what", ["watch_list", "other_owner"])
def test_an_idle_store_learns_it_also_after_a_failure_of_its_watch(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """LOG-1: setting the watch, and reading the list that it tells of, are tried again."""
    monkeypatch.setattr(owner_module, "AGAIN_S", 0.01)
    failing = Failing(getattr(works_module.FileWorks, what), 2)
    monkeypatch.setattr(works_module.FileWorks, what, lambda *arguments: failing(*arguments))
    told: list[BkError] = []
    store = FileStore.open(client, "a", on_end=told.append)
    with FileStore.open(client, "a"):
        eventually(lambda: bool(told))
        assert isinstance(told[0], FileStoreTakenOverError)
    store.close()


def test_an_error_says_whether_something_may_have_been_done(
    store: FileStore, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused before anything was done has a known outcome, also in another process; what was handed over has not."""
    monkeypatch.setattr(owner_module, "UNDECIDED_BYTES_MAX", 1)
    stalled = Stalled(store, monkeypatch)
    errors: list[BkError] = []

    def fails(call: Callable[[], object]) -> BkError:
        with pytest.raises(BkError) as caught:
            call()
        return pickle.loads(pickle.dumps(caught.value))  # type: ignore[no-any-return]

    assert fails(lambda: store.put("/late", b"x", timeout_s=0.05)).outcome_unknown
    errors.append(fails(lambda: store.put("/no room", b"x", timeout_s=0.05)))
    stalled.go_on()
    errors.append(fails(lambda: FileStore.open(client, "a", take_over=False)))
    store.close()
    errors.append(fails(lambda: store.put("/closed", b"x")))
    owner = FileStore.open(client, "a")
    with FileStore.open(client, "a"):
        eventually(lambda: owner.error is not None)
        errors.append(fails(lambda: owner.put("/y", b"")))
        errors.append(fails(lambda: owner.stage(BIG)))
    owner.close()
    kinds = [OperationTimeoutError, FileStoreTakenOverError, FileStoreClosedError, FileStoreTakenOverError, FileStoreTakenOverError]
    assert [type(error) for error in errors] == kinds
    assert not any(error.outcome_unknown for error in errors) and FileStoreTakenOverError("another").outcome_unknown


def test_a_machine_that_fails_within_itself_ends_the_store(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever, and what was acknowledged is there."""
    store = FileStore.open(client, "a")
    store.put("/x", b"1")
    monkeypatch.setattr(store._machine, "put", lambda *_: [][1])
    for _ in range(2):
        with pytest.raises(FileStoreClosedError, match=r"failed within itself \(IndexError.*report this"):
            store.put("/y", b"2")
    store.close()
    with FileStore.open(client, "a") as store:
        assert names(store) == ["x"]


def test_pending_changes_of_a_store_that_is_taken_over_fail(client: bk_core.BookKeeper) -> None:
    store = FileStore.open(client, "a")
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(store.put, f"/{n}", b"x" * n) for n in range(300)]
        with FileStore.open(client, "a") as other:
            outcomes = [future.exception(60) for future in futures]
            there = set(names(other))
    for n, error in enumerate(outcomes):
        assert error is None or isinstance(error, FileStoreTakenOverError)
        if error is None:
            assert str(n) in there
        elif not error.outcome_unknown:
            assert str(n) not in there
    assert any(outcomes)
    store.close()


def test_a_closed_store_takes_nothing_more(client: bk_core.BookKeeper) -> None:
    store = FileStore.open(client, "a")
    store.close()
    store.close()
    for call in (lambda: store.put("/x", b""), lambda: store.status("/"), store.flush, lambda: store.stage(b"")):
        with pytest.raises(FileStoreClosedError, match="closed by this program"):
            call()
    assert not store.is_open and store.error is None
    with pytest.raises(ZeroDivisionError), FileStore.open(client, "a") as store:
        raise ZeroDivisionError
    assert not read_ledger_list(client, LOG).live_segments
    eventually(lambda: not threads())


def test_an_abandoned_store_leaves_everything_as_it_is(client: bk_core.BookKeeper) -> None:
    told: list[BkError] = []
    store = FileStore.open(client, "a", on_end=told.append)
    store.put("/x", BIG)
    assert store.read("/x") == BIG
    store.abandon()
    eventually(lambda: not store.is_open)
    eventually(lambda: not store._reader._handles)
    with pytest.raises(FileStoreClosedError, match="abandoned by this program; nothing was read"):
        store.status("/x")
    store.close()
    assert told == []
    eventually(lambda: not threads())
    assert client.ledger_metadata(*nodes(client)).state is LedgerState.OPEN
    with FileStore.open(client, "a") as store:
        assert store.read("/x") == BIG


def test_the_end_of_the_client_ends_the_store(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    told: list[BkError] = []
    with bk_core.connect(uri, limits=LIMITS) as client:
        store = FileStore.open(client, "a", on_end=told.append)
        store.put("/x", BIG)
    eventually(lambda: bool(told))
    assert isinstance(told[0], FileStoreClosedError) and isinstance(told[0].__cause__, ClientClosedError)
    store._retries.failed("watch", "its log's list cannot be watched", ClientClosedError("closed"), 5.0, lambda: None)
    assert not [one for one in caplog.records if one.name == "bk_core.client.files"]
    with pytest.raises(FileStoreClosedError, match="client of file store 'a' was closed"):
        store.put("/x", b"")
    store.close()
    eventually(lambda: not threads())


@pytest.mark.parametrize("is_full", [False, True])
def test_whichever_learns_first_that_the_client_is_closed_the_store_says_so(
    uri: str, monkeypatch: pytest.MonkeyPatch, is_full: bool
) -> None:
    """The client tells its writers and its stores in no order: the store may learn it by an append that fails, or that waits for room."""
    client = bk_core.connect(uri, limits=LIMITS)
    told: list[BkError] = []
    waiting = threading.Event()
    store = FileStore.open(client, "a", on_end=told.append)
    append = store._writer.append_future
    monkeypatch.setattr(store._writer, "append_future", lambda record: (waiting.set(), append(record))[1])
    monkeypatch.setattr(store, "_end", lambda _error: None)  # it is not told by its client
    if is_full:
        monkeypatch.setattr(store._writer._window, "_has_room", lambda _size: False)
    else:
        store._writer._leave()
    with ThreadPoolExecutor(1) as thread:
        putting = thread.submit(store.put, "/x", b"")
        assert waiting.wait(30)
        client.close()
        with pytest.raises(FileStoreClosedError, match="client of file store 'a' was closed by this program$"):
            putting.result(30)
    eventually(lambda: bool(told))
    assert [str(error) for error in told] == [str(store.error)] and isinstance(told[0].__cause__, ClientClosedError)
    store.close()
    eventually(lambda: not threads())


def test_what_is_told_of_the_end_may_fail_and_may_close(client: bk_core.BookKeeper, caplog: pytest.LogCaptureFixture) -> None:
    opened: list[FileStore] = []

    def told(_error: BkError) -> None:
        opened[0].close()
        raise ZeroDivisionError

    opened.append(store := FileStore.open(client, "a", on_end=told))
    with caplog.at_level(logging.ERROR), FileStore.open(client, "a"):
        with pytest.raises(FileStoreTakenOverError):
            store.put("/x", b"")
        store.close()
    assert "whoever is told of its end failed" in caplog.text
    eventually(lambda: not threads())


def test_everybody_is_refused_before_the_end_is_told(client: bk_core.BookKeeper) -> None:
    """Nobody waits for ``on_end``, which may take long, for example because it opens the store again."""
    go_on, told, gate = threading.Event(), threading.Event(), threading.Event()

    def slow(_error: BkError) -> None:
        told.set()
        assert go_on.wait(30)

    store = FileStore.open(client, "a", on_end=slow)
    with ThreadPoolExecutor(1) as pool:
        store._own.submit(lambda: gate.wait(30) and None)
        store._end(FileStoreClosedError("ended"))
        putting = pool.submit(store.put, "/x", b"")
        eventually(lambda: bool(store._arrived))
        gate.set()
        assert told.wait(30)
        with pytest.raises(FileStoreClosedError, match="ended"):
            putting.result(10)
    eventually(lambda: threads() == ["bookkeeper-files-a-end"])
    go_on.set()
    store.close()
    assert not threads()


def test_the_end_is_told_also_when_no_thread_can_be_started(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    told: list[BkError] = []
    store = FileStore.open(client, "a", on_end=told.append)
    monkeypatch.setattr(owner_module, "start_aside", none_left)
    store._end(FileStoreClosedError("ended"))
    eventually(lambda: store._stopped)
    store.close()
    assert len(told) == 1


def test_the_callback_of_the_end_may_open_the_store_again(client: bk_core.BookKeeper) -> None:
    again: Future[list[str]] = Future()

    def reopen(_error: BkError) -> None:
        with FileStore.open(client, "a") as store:
            again.set_result(names(store))

    store = FileStore.open(client, "a", on_end=reopen)
    store.put("/x", b"")
    FileStore.open(client, "a").abandon()
    assert again.result(30) == ["x"]
    store.close()


def test_many_changes_that_fail_at_once_ask_the_metadata_store_once(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore.open(client, "a")
    stalled, asked = Stalled(store, monkeypatch), []
    monkeypatch.setattr(store._works, "other_owner", lambda: asked.append(1))
    with ThreadPoolExecutor(20) as pool:
        putting = [pool.submit(store.put, f"/{number}", b"") for number in range(20)]
        eventually(lambda: len(stalled.appended) == 20)
        for _, future in stalled.appended:
            future.set_exception(LogTakenOverError("another leader"))
        assert all(isinstance(future.exception(30), FileStoreTakenOverError) for future in putting)
    store.close()
    assert asked == [1]


def test_the_first_failure_of_one_request_is_told() -> None:
    told: list[tuple[Any, ...]] = []
    gathered = Gathered(7, 3, lambda *outcome: told.append(outcome))
    failed: Future[Any] = Future()
    failed.set_exception(error := LogTakenOverError("another leader"))
    for index in range(3):
        gathered.told(index, failed)
    assert told == [(7, None, error)]


def test_watches_are_cancelled_whenever_they_come() -> None:
    """At the end, one by one, and after the end. One that goes while others are being cancelled costs none of these."""
    watches, cancelled = Watches(), []

    def watch(name: str) -> Any:
        return SimpleNamespace(cancel=lambda: cancelled.append(name))

    first, second = watch("first"), watch("second")
    for one in (first, second, watch("third")):
        watches.add(one)
    watches.cancel(second)
    assert cancelled == ["second"] and len(watches) == 2
    pool: Any = SimpleNamespace(submit=lambda task: (watches.cancel(first), task()), close=lambda *_, **__: None)
    end_threads(pool, pool, pool, watches)
    assert set(cancelled) == {"first", "second", "third"}
    watches.add(watch("late"))
    assert cancelled[-1] == "late" and len(watches) == 0


def test_a_store_that_is_dropped_ends_by_itself(client: bk_core.BookKeeper) -> None:
    store = FileStore.open(client, "a")
    store.put("/x", BIG)
    del store
    eventually(lambda: gc.collect() >= 0 and not threads())
    with FileStore.open(client, "a") as store:
        assert store.read("/x") == BIG


def operations(files: Any) -> dict[str, Callable[[], object]]:
    """Each public one that has to ask somebody or something."""
    begun = files.chunks("/big")
    assert next(begun)
    content = files.content("/big")
    calls: dict[str, Callable[[], object]] = {
        "status": lambda: files.status("/x"),
        "exists": lambda: files.exists("/x"),
        "listing": lambda: files.listing("/"),
        "content": lambda: files.content("/x"),
        "read": lambda: files.read("/big"),
        "read inline": lambda: files.read("/x"),
        "read_content": lambda: files.read_content(content),
        "chunks": lambda: list(files.chunks("/big")),
        "chunks that had begun": lambda: list(begun),
    }
    if isinstance(files, FileStoreView):
        calls["content_chunks"] = lambda: list(files.content_chunks(content))
        calls["everything"], calls["ledgers"], calls["refresh"], calls["wait"] = (
            files.everything,
            files.ledgers,
            files.refresh,
            lambda: files.wait(1),
        )
        return calls
    staged = files.stage(BIG)
    return calls | {
        "stage": lambda: files.stage(b""),
        "put": lambda: files.put("/x", b""),
        "put large": lambda: files.put("/x", BIG),
        "put staged": lambda: files.put("/x", staged),
        "mkdirs": lambda: files.mkdirs("/y"),
        "rename": lambda: files.rename("/x", "/y"),
        "replace all": lambda: files.replace_all("/x"),
        "delete": lambda: files.delete("/x"),
        "flush": files.flush,
    }


def test_a_forked_child_may_not_use_its_parents_store(client: bk_core.BookKeeper, store: FileStore) -> None:
    """It is told at once, also where a thread of the parent's had the lock when the child was forked."""
    small(store, piece=16 << 10)
    store.put("/x", b"1")
    store.put("/big", BIG)
    store.flush()
    view = FileStoreView.open(client, "a")
    while not view.exists("/big"):
        view.wait(20)
        view.refresh()
    for files in (store, view):
        calls = {name.replace(" ", "-"): call for name, call in operations(files).items()}
        taken, over = threading.Event(), threading.Event()

        def keep(lock: Any = files._lock, taken: threading.Event = taken, over: threading.Event = over) -> None:
            with lock:
                taken.set()
                over.wait(30)

        with ThreadPoolExecutor(1) as other:
            kept = other.submit(keep)
            assert taken.wait(20)
            try:
                assert in_a_forked_child(calls, files.close) == dict.fromkeys(calls, "BK-FORKED")
            finally:
                over.set()
            kept.result(20)
    assert in_a_forked_child({"open": lambda: 0 if not store.is_open else store.status("/none"), "abandon": store.abandon}) == {
        "open": "",
        "abandon": "",
    }
    store.put("/x", b"2")
    assert store.read("/big") == BIG
    view.close()


def test_a_read_of_a_ledger_that_goes_on_in_a_forked_child_is_refused(client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        for _ in range(40):
            ledger.append(bytes(200_000))
    with client.open_ledger(ledger.ledger_id) as reader:
        runs, tail = reader.read_runs(0, 39), reader.tail()
        assert next(runs) and next(tail)
        assert in_a_forked_child({"runs": lambda: list(runs), "tail": lambda: list(tail)}) == {"runs": "BK-FORKED", "tail": "BK-FORKED"}


# --- too few bookies -------------------------------------------------------------------------------------------------------


def test_an_open_that_wants_more_bookies_than_the_cluster_has_is_refused_at_once_and_leaves_nothing(uri: str) -> None:
    with bk_core.connect(uri, operation_timeout_s=10) as client:
        wanted = "5 writable bookies, and this cluster has 3 bookies, including any that are away; start more bookies, or lower"
        with pytest.raises(NotEnoughBookiesError, match=wanted) as caught:
            FileStore.open(client, "a", ensemble_size=5, write_quorum_size=5, ack_quorum_size=3)
        assert not caught.value.outcome_unknown
        assert file_stores(client, remains=True) == []
        with pytest.raises(InvalidArgumentError):
            FileStore.open(client, "a", ensemble_size=2, write_quorum_size=3)
        assert file_stores(client, remains=True) == []
    with bk_core.connect(uri) as client, FileStore.open(client, "a") as store:
        store.put("/x", b"")
        FileStore.open(client, "a", ensemble_size=1, write_quorum_size=1, ack_quorum_size=1).close()  # as it was made
        assert read_ledger_list(client, LOG).properties == LogProperties()


@pytest.mark.parametrize("opens", [FileStore.open, own_file_store])
def test_only_an_open_that_makes_nothing_looks_for_similar_names(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, opens: Any
) -> None:
    """Comparing costs more with each store that there is."""
    compared: list[str] = []
    for module in (list_store, view_module):
        monkeypatch.setattr(module, "meant", lambda name, *known: compared.append(name) or meant(name, *known))
    opens(client, "orders").close()
    assert compared == []
    with pytest.raises(NoSuchFileStoreError, match="there is no file store 'oders'; did you mean 'orders'"):
        opens(client, "oders", create=False)
    assert "oders" in compared and file_stores(client) == ["orders"]


def test_bookies_that_are_away_count_as_long_as_they_could_come_back(tmp_path: Path) -> None:
    metadata = f"memory://{tmp_path.name}"
    with closing(open_store(metadata)) as keeper:
        keeper.initialize_cluster()
        with bk_core.connect(metadata, operation_timeout_s=10) as client:
            with pytest.raises(NotEnoughBookiesError, match="this cluster has never had one; start bookies"):
                FileStore.open(client, "a")
        EmbeddedBookie(tmp_path / "0", "127.0.0.1", 0, keeper).start().close()
        with bk_core.connect(metadata, operation_timeout_s=10, opportunistic_striping=True) as client:
            with pytest.raises(NotEnoughBookiesError, match="needs 3 writable bookies, and this cluster has 1 bookie, including"):
                FileStore.open(client, "a", write_quorum_size=2)
        EmbeddedBookie(tmp_path / "1", "127.0.0.1", 0, keeper).start().close()
        with bk_core.connect(metadata, operation_timeout_s=0.2, opportunistic_striping=True) as client:
            with pytest.raises(NotEnoughBookiesError, match=r"none is registered in this cluster.* s$") as caught:
                FileStore.open(client, "a", write_quorum_size=2)
        assert not caught.value.outcome_unknown


def test_a_log_that_no_owner_could_ever_write_takes_the_next_ones_settings(client: bk_core.BookKeeper) -> None:
    """What an open has left that ended between making the log and its first ledger."""
    create_log(client, LOG, LogProperties(ensemble_size=5, write_quorum_size=5, ack_quorum_size=3, digest_type="MAC"), file_entries=True)
    with FileStore.open(client, "a", ensemble_size=2, write_quorum_size=2) as store:
        store.put("/x", BIG)
        assert read_ledger_list(client, LOG).properties == LogProperties(ensemble_size=2, write_quorum_size=2)
        assert client.ledger_metadata(ledgers_of(store, "/x")[0]).ensemble_size == 2


def test_an_open_waits_for_bookies_that_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart of all bookies: neither a new store nor one with files has to be opened twice. Nobody is fenced while they are away."""
    metadata = f"memory://{tmp_path.name}"

    def bookies() -> ExitStack:
        there = ExitStack()
        for number in range(3):
            there.enter_context(closing(EmbeddedBookie(tmp_path / str(number), "127.0.0.1", 0, keeper).start()))
        return there

    with closing(open_store(metadata)) as keeper, ExitStack() as closed:
        keeper.initialize_cluster()
        with bookies(), bk_core.connect(metadata) as client:
            owner = FileStore.open(client, "a")
            owner.put("/x", BIG)
            owner.close()
        client = closed.enter_context(bk_core.connect(metadata))
        executor = closed.enter_context(ThreadPoolExecutor(2))
        asked, ensemble = threading.Semaphore(0), bk_core.BookKeeper._new_ensemble

        def ask(known: bk_core.BookKeeper, *sizes: int) -> tuple[str, ...]:
            asked.release()
            return ensemble(known, *sizes)

        monkeypatch.setattr(bk_core.BookKeeper, "_new_ensemble", ask)
        opening = [executor.submit(FileStore.open, client, name) for name in "ab"]
        assert all(asked.acquire(timeout=30) for _ in range(6))  # again and again
        assert not any(future.done() for future in opening)
        assert file_stores(client) == ["a"] and not read_ledger_list(client, LOG).live_segments
        with bookies():
            for future in opening:
                with future.result(60) as store:
                    store.put("/y", b"")
                    assert not store.exists("/x") or store.read("/x") == BIG
            client.close()


# --- stores that are opened often ----------------------------------------------------------------------------------------------


def test_fs_18_the_list_of_a_store_that_is_opened_often_stays_short(uri: str) -> None:
    """FS-18: whether its owners write or not, close or die."""
    limit = FileLimits().segments_max
    longest = 0
    with bk_core.connect(uri, limits=LIMITS) as client:
        for opened in range(200):
            store = FileStore.open(client, "a")
            if opened % 3:
                store.put(f"/{opened % 7}", b"%d" % opened)
            store.close() if opened % 10 else store.abandon()
            longest = max(longest, len(read_ledger_list(client, LOG).items))
        assert limit < longest <= limit + 4  # what closes at once may leave the trim to the next
        assert len([one for one in client.list_ledgers()]) <= limit + 6
        with FileStore.open(client, "a") as store:
            assert {path: int(store.read(f"/{path}")) % 7 for path in names(store)} == {str(number): number for number in range(7)}


# --- data ledgers that somebody deletes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("learns", ["by its watch", "by reading"])
def test_nothing_more_goes_to_a_data_ledger_that_is_gone(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, learns: str
) -> None:
    if learns == "by reading":
        monkeypatch.setattr(works_module.FileWorks, "watch_data", lambda *_: SimpleNamespace(cancel=lambda: None))
    with FileStore.open(client, "a") as store:
        store.put("/lost", BIG)
        (gone,) = ledgers_of(store, "/lost")
        staged = store.stage(BIG)
        assert [extent.ledger_id for extent in staged.content.extents] == [gone]
        client.delete_ledger(gone, even_if_listed=True)
        if learns == "by reading":
            with pytest.raises(FileDataLostError):
                store.read("/lost")
        eventually(lambda: gone in store._data._gone)
        with pytest.raises(FileDataLostError, match="write them again") as caught:
            store.put("/staged", staged)
        assert not caught.value.outcome_unknown and not store.exists("/staged")
        staged.release()
        store.put("/new", BIG)
        (other,) = ledgers_of(store, "/new")
        assert other != gone and store.read("/new") == BIG
        store.put("/lost", BIG)
        assert store.read("/lost") == BIG
        eventually(lambda: store.flush() is None and gone not in nodes(client))
        assert len(store._watches) == 3  # of the log's list, of its last ledger, and of the ledger that is being filled
    assert "Traceback" not in caplog.text


def test_only_ledgers_that_a_lease_keeps_are_known_as_gone(client: bk_core.BookKeeper, store: FileStore) -> None:
    """However many are deleted, or read after their file was."""
    staged, gone = [], []
    for number in range(8):
        store.put(f"/{number}", BIG)
        gone += ledgers_of(store, f"/{number}")
        if number % 2:
            staged.append(store.stage(BIG))
        client.delete_ledger(gone[-1], even_if_listed=True)
        eventually(lambda: not store._data._idle)
    assert len(set(gone)) == 8
    for number in range(8):
        with pytest.raises(FileDataLostError):
            store.read(f"/{number}")
    assert set(gone[1::2]) <= store._data._gone
    for one in staged:
        with pytest.raises(FileDataLostError, match="write them again"):
            store.put("/staged", one)
        one.release()
    store.flush()
    eventually(lambda: not store._holds.leases.held())
    store._data.lost(gone[0])
    assert store._data._gone == set()


def test_a_run_to_a_data_ledger_that_goes_meanwhile_is_written_again(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put("/first", BIG)
    (gone,) = ledgers_of(store, "/first")
    hold = store._data._hold

    def lose(lease: Any, ledger_id: int) -> None:
        hold(lease, ledger_id)
        if ledger_id == gone:
            store._data.lost(gone)

    monkeypatch.setattr(store._data, "_hold", lose)
    store.put("/second", BIG)
    assert gone not in ledgers_of(store, "/second") and store.read("/second") == BIG
    assert [one.ledger_id for one in store._data._idle] == ledgers_of(store, "/second")


def test_watches_of_data_ledgers_go_with_them(client: bk_core.BookKeeper, store: FileStore) -> None:
    """A change of the metadata that leaves the ledger there changes nothing."""
    small(store, ledger=1)
    for number in range(5):
        store.put(f"/{number}", BIG)
    assert len(store._watches) == 2, "of the log's list and of its last ledger"
    small(store)
    store.put("/x", BIG)
    (ledger_id,) = ledgers_of(store, "/x")
    store._data_changed(ledger_id)
    store.put("/y", BIG)
    assert ledgers_of(store, "/y") == [ledger_id] and len(store._watches) == 3


# --- log ledgers that somebody deletes -----------------------------------------------------------------------------------------


def test_a_store_ends_when_the_ledger_of_its_log_is_deleted(client: bk_core.BookKeeper, caplog: pytest.LogCaptureFixture) -> None:
    """Bookies may go on acknowledging what nobody will read."""
    told: list[BkError] = []
    store = FileStore.open(client, "a", on_end=told.append)
    store.put("/x", b"1")
    last = read_ledger_list(client, LOG).segments[-1].ledger_id
    client.delete_ledger(last, even_if_listed=True)
    eventually(lambda: not store.is_open)
    with pytest.raises(FileStoreError, match=f"ledger {last}, which file store 'a' writes its changes to, was deleted"):
        store.put("/y", b"2")
    store.close()
    assert [type(error) for error in told] == [FileStoreClosedError] and told[0].context["ledger"] == last
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("how", ["collected", "kept", "the whole store"])
def test_a_store_whose_log_was_deleted_says_so_before_its_watch_tells_it(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A bookie that has collected the ledger answers as if another owner had fenced it; one that keeps it goes on until it is closed."""
    for watch in ("watch_data", "watch_list"):
        monkeypatch.setattr(works_module.FileWorks, watch, lambda *_: SimpleNamespace(cancel=lambda: None))
    store = FileStore.open(client, "a")
    store.put("/x", b"1")
    last = read_ledger_list(client, LOG).segments[-1].ledger_id
    told = f"ledger {last}, which file store 'a' writes its changes to, was deleted by somebody else"
    if how == "the whole store":
        delete_file_store(client, "a", even_if_alive=True)
        told = "file store 'a' was deleted while this owner had it"
    else:
        if how == "collected":
            client.recover_ledger(last).close()  # from here on its bookies refuse, as they do for one that they have collected
        client.delete_ledger(last, even_if_listed=True)
    if how != "kept":
        with pytest.raises(FileStoreError, match=told):
            store.put("/y", b"2")
        assert isinstance(store.error, FileStoreError) and told in str(store.error) and store.error.__cause__ is not None
        store.close()
    else:
        store.put("/y", b"2")
        with pytest.raises(FileStoreError, match=told):
            store.close()


def test_a_store_goes_on_when_a_ledger_leaves_its_log(client: bk_core.BookKeeper, store: FileStore) -> None:
    """The watch goes over to the next ledger with each roll; trims delete the former ones."""
    store.put("/x", b"1")
    for _ in range(3):
        before = read_ledger_list(client, LOG).segments[-1].ledger_id
        eventually(lambda before=before: store._last is not None and store._last[0] == before)
        store._writer.roll()
        trim_log(client, LOG, before=store._writer.position, file_entries=True)
        store._last_changed(before)
        store.put("/x", b"2")
    assert store.is_open and len(store._watches) == 2


# --- memory --------------------------------------------------------------------------------------------------------------------


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
        for status in pool.map(lambda number: store.put(f"/{number}", (bytes(1000) for _ in range(100))), range(20)):
            assert status.size == 100_000
        assert most <= 8 and set(sizes) <= {1000, 2000, 3000, 4000} and not store._data._places  # 3000 may be left at the end
        assert sum(sizes) == 20 * 100_000
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
