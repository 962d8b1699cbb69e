"""The files of a file store: made, read, replaced, renamed and deleted, by many threads, and what is refused."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.client.files import owner as owner_module
from bk_core.client.files.names import store_log
from bk_core.client.files.store import FileStore
from bk_core.client.files.upkeep import delete_file_store, file_stores, gc_file_store, own_file_store
from bk_core.client.files.view import FileStoreView
from bk_core.errors import (
    ArgumentTypeError,
    BkError,
    InvalidArgumentError,
    InvalidPathError,
    NoSuchFileStoreError,
    NoSuchPathError,
    NotEnoughBookiesError,
    OperationTimeoutError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotDirectoryError,
)
from bk_core.metadata import open_store
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.names import store_of
from tests.unit.client.file_store.stores import BIG, LOG, Stalled, eventually, ledgers_of, names, nodes, small


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
        limits = Limits(add_timeout_ns=500_000_000, read_timeout_ns=500_000_000)
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


def test_a_view_checks_its_arguments(store: FileStore, client: bk_core.BookKeeper) -> None:
    store.put("/a", b"abc")
    store.close()
    with bk_core.FileStoreView.open(client, "a") as view:
        for call in (
            lambda: view.read("/a", offset="1"),  # type: ignore[arg-type]
            lambda: view.read(1),  # type: ignore[arg-type]
            lambda: view.chunks("/a", length="1"),  # type: ignore[arg-type]
            lambda: view.read_content(view.content("/a"), "1"),  # type: ignore[arg-type]
            lambda: view.content_chunks("/a"),  # type: ignore[arg-type]
            lambda: view.status(1),  # type: ignore[arg-type]
            lambda: view.exists(None),  # type: ignore[arg-type]
            lambda: view.listing(b"/"),  # type: ignore[arg-type]
            lambda: view.content(1),  # type: ignore[arg-type]
            lambda: view.everything(1),  # type: ignore[arg-type]
        ):
            with pytest.raises(ArgumentTypeError):
                call()
        with pytest.raises(InvalidArgumentError):
            view.read("/a", -1)
        assert view.read("/a", 1, 1) == b"b"
