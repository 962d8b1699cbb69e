"""Views of file stores: beside an owner that writes, compacts, dies and deletes; against bookies on sockets in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import bk_core
from bk_core.client.files import view as views
from bk_core.client.files.store import FileStore
from bk_core.client.files.upkeep import delete_file_store, gc_file_store
from bk_core.client.files.view import FileStoreView
from bk_core.client.log.history import read_log
from bk_core.client.log.list_store import log_path
from bk_core.client.log.lists import create_log
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.errors import (
    BkError,
    BlockingCallError,
    FileDataLostError,
    FileStoreClosedError,
    FileStoreError,
    FileStoreFormatError,
    InvalidArgumentError,
    LogDataLossError,
    NoSuchFileStoreError,
    NoSuchPathError,
    PathIsDirectoryError,
    WrongPasswordError,
)
from bk_core.metadata import open_store
from bk_core.metadata.store import MetadataStore
from bk_core.protocol.files.records import BaseBegin, BaseEnd, Mkdirs, encode
from bk_core.protocol.files.replay import FileReplay
from bk_core.protocol.files.state import FileLimits
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties

LIMITS = Limits(explicit_lac_ns=5_000_000)
LARGE = bytes(range(256)) * (5 << 11)  # 2.5 MiB: three entries of a data ledger
PUTS = 17
OFTEN_BYTES = FileLimits().compact_bytes // PUTS + 1  # within the record


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri, limits=LIMITS) as client:
        yield client


@pytest.fixture
def store(client: bk_core.BookKeeper) -> Iterator[FileStore]:
    with FileStore.open(client, "s") as store:
        yield store


class ReadOnly:
    """A metadata store that takes no write."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("create", "write", "delete", "new_", "clock")):
            raise PermissionError(name)
        return getattr(self._store, name)


def seen(view: FileStoreView, path: str, data: bytes | None) -> None:
    """Follows the store until ``path`` has these bytes; None: until it is gone."""
    while True:
        view.refresh()
        try:
            if view.read(path) == data:
                return
        except NoSuchPathError:
            if data is None:
                return
        assert view.wait(30), path


def test_a_view_shows_what_the_owner_has_done_and_disturbs_nobody(client: bk_core.BookKeeper, store: FileStore, uri: str) -> None:
    """Its client can write nothing to the metadata store, and so recovers nothing either."""
    store.put("/offsets/0", b"zero")
    store.put("/state/large", LARGE)
    reader = ReadOnly(open_store(uri))
    with bk_core.connect(uri, store=reader, limits=LIMITS) as other:  # type: ignore[arg-type]
        with FileStoreView.open(other, "s") as view:
            seen(view, "/state/large", LARGE)
            assert [status.name for status in view.listing("/")] == ["offsets", "state"]
            assert view.status("/offsets/0").size == 4 and view.exists("/offsets") and not view.exists("/commits")
            assert view.read("/offsets/0", 1, 2) == b"er" and view.read("/offsets/0", 9) == b""
            assert [(status.path, content is None) for status, content in view.everything()] == [
                ("/", True),
                ("/offsets", True),
                ("/offsets/0", False),
                ("/state", True),
                ("/state/large", False),
            ]
            with pytest.raises(NoSuchPathError):
                view.read("/nothing")
            with pytest.raises(PathIsDirectoryError):
                view.read("/state")
            store.put("/offsets/1", b"one")
            store.delete("/offsets/0")
            seen(view, "/offsets/0", None)
            assert view.read("/offsets/1") == b"one"
            assert not view.refresh()
        with pytest.raises(PermissionError):
            other.create_ledger()
    store.put("/offsets/2", b"two")
    (live,) = read_log(client, store.log_name).live_segments
    assert client.ledger_metadata(live.ledger_id).state is LedgerState.OPEN


@pytest.mark.parametrize(("offset", "length"), [(0, None), (1, 1), ((1 << 20) - 1, 2), (1 << 20, 1 << 20), (5 << 19, 9), (9 << 20, None)])
def test_any_bytes_of_a_large_file(client: bk_core.BookKeeper, store: FileStore, offset: int, length: int | None) -> None:
    store.put("/large", LARGE)
    with FileStoreView.open(client, "s") as view:
        seen(view, "/large", LARGE)
        wanted = LARGE[offset : None if length is None else offset + length]
        assert view.read("/large", offset, length) == wanted
        chunks = list(view.chunks("/large", offset, length))
        assert b"".join(chunks) == wanted and all(0 < len(chunk) <= 1 << 20 for chunk in chunks)
        with pytest.raises(InvalidArgumentError):
            view.read("/large", -1)


def test_what_the_owner_trims_under_a_view_makes_it_begin_again(client: bk_core.BookKeeper, store: FileStore) -> None:
    """The view stands where it is while the log is cut off in front of it and behind."""
    store.put("/kept", b"kept")
    with FileStoreView.open(client, "s") as view:
        seen(view, "/kept", b"kept")
        first = read_log(client, store.log_name).first_position
        number = 0
        while read_log(client, store.log_name).first_position == first:
            store.put("/often", number.to_bytes(4, "big") * (12 << 10))
            number += 1
        store.put("/last", b"last")
        seen(view, "/last", b"last")
        assert view.read("/kept") == b"kept" and view.read("/often") == (number - 1).to_bytes(4, "big") * (12 << 10)
        assert [status for status, _ in view.everything()] == walked(store, "/")
        with FileStoreView.open(client, "s") as late:
            seen(late, "/last", b"last")
            assert late.everything() == view.everything()


@pytest.fixture
def late(uri: str) -> Iterator[bk_core.BookKeeper]:
    """A client that confirms its last entry with the next one alone: bookies hear nothing more of it for an hour."""
    with bk_core.connect(uri, limits=Limits(explicit_lac_ns=3_600_000_000_000)) as client:
        yield client


def trimmed(store: FileStore, client: bk_core.BookKeeper) -> None:
    """Changes the store until it makes a base, and leaves it when the log begins with that base, which nobody is told is confirmed."""
    first = read_log(client, store.log_name).first_position
    for _ in range(PUTS):  # the last of them makes a base due, so none comes behind it
        store.put("/often", bytes(OFTEN_BYTES))
    changed = threading.Event()
    watch = client.store.watch(log_path(store.log_name), changed.set)
    while read_log(client, store.log_name).first_position == first:
        assert changed.wait(30)
        changed.clear()
    watch.cancel()


def test_fs_17_a_trimmed_log_without_a_base_is_not_shown_as_empty(late: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-17: a view that follows keeps what it knew; one that is opened then is refused. Both see all with the owner's next change."""
    monkeypatch.setattr(views, "BASE_S", 0.1)
    with FileStore.open(late, "s") as store:
        store.put("/kept", b"kept")
        store.put("/next", b"next")
        with FileStoreView.open(late, "s") as view:
            assert view.read("/kept") == b"kept"
            before = view.everything()
            trimmed(store, late)
            for _ in range(2):
                with pytest.raises(FileStoreError, match="no whole snapshot.*FileStore.open.*bk checkpoint gc s"):
                    view.refresh()
                assert view.everything() == before and view.read("/kept") == b"kept"
            with pytest.raises(FileStoreError, match="no whole snapshot"):
                FileStoreView.open(late, "s")
            monkeypatch.setattr(views, "BASE_S", 30.0)
            with ThreadPoolExecutor(1) as thread:
                opening = thread.submit(FileStoreView.open, late, "s")
                store.put("/last", b"last")
                with opening.result(60) as other:
                    assert other.read("/kept") == b"kept"
            view.refresh()
            assert view.read("/kept") == b"kept" and view.status("/often").size == OFTEN_BYTES


@pytest.mark.parametrize("is_gc", [False, True])
def test_fs_17_a_store_whose_owner_died_behind_a_trim_is_not_shown_as_empty(
    late: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, is_gc: bool
) -> None:
    """FS-17: until another owner opens it, or its last ledger is recovered."""
    monkeypatch.setattr(views, "BASE_S", 0.1)
    store = FileStore.open(late, "s")
    store.put("/kept", b"kept")
    with FileStoreView.open(late, "s") as view:
        trimmed(store, late)
        store.abandon()
        with pytest.raises(FileStoreError, match="no whole snapshot"):
            view.refresh()
        with pytest.raises(FileStoreError, match="no whole snapshot"):
            FileStoreView.open(late, "s")
        if is_gc:
            gc_file_store(late, "s", even_if_alive=True)
        else:
            FileStore.open(late, "s").close()
        assert view.refresh() and view.read("/kept") == b"kept"
        with FileStoreView.open(late, "s") as other:
            assert other.everything() == view.everything()


def walked(store: FileStore, path: str) -> list[Any]:
    found = [store.status(path)]
    for status in store.listing(path):
        found += walked(store, status.path) if status.is_directory else [status]
    return found


def test_a_file_that_is_replaced_under_a_view_is_read_as_it_is_now(client: bk_core.BookKeeper) -> None:
    with FileStore.open(client, "s") as store:
        store.put("/a", LARGE)
    with FileStoreView.open(client, "s") as view:
        content = view.content("/a")
        with FileStore.open(client, "s") as store:
            store.put("/a", b"new")
        while any(client.store.children("files/files.s")):
            FileStore.open(client, "s").close()  # drops what nothing refers to
        assert view.read("/a") == b"new"
        with pytest.raises(FileDataLostError, match=rf"file.*ledger {content.extents[0].ledger_id}"):
            view.read_content(content)
        with FileStore.open(client, "s") as store:
            store.put("/b", LARGE)
        view.refresh()
        (extent,) = view.content("/b").extents
        client.delete_ledger(extent.ledger_id, even_if_listed=True)
        with pytest.raises(FileDataLostError):
            view.read("/b")


def test_a_file_that_is_replaced_in_the_middle_is_read_anew(
    client: bk_core.BookKeeper, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of the whole notices it; who has pieces of it already is told."""
    store.put("/a", LARGE)
    with FileStoreView.open(client, "s") as view:
        seen(view, "/a", LARGE)
        chunks = view._contents.chunks

        def replaced(*asked: Any) -> Any:
            yield next(chunks(*asked))
            monkeypatch.undo()
            store.put("/a", b"new")
            store.put("/b", b"")
            seen(view, "/b", b"")
            raise FileDataLostError("dropped")

        monkeypatch.setattr(view._contents, "chunks", replaced)
        assert view.read("/a") == b"new"
        store.put("/a", LARGE)
        seen(view, "/a", LARGE)
        monkeypatch.setattr(view._contents, "chunks", replaced)
        with pytest.raises(FileDataLostError, match="dropped"):
            list(view.chunks("/a"))


def test_an_owner_that_died_leaves_all_that_was_confirmed(client: bk_core.BookKeeper) -> None:
    store = FileStore.open(client, "s")
    store.put("/a", b"a")
    with FileStoreView.open(client, "s") as view:
        seen(view, "/a", b"a")
        store.abandon()
        with FileStoreView.open(client, "s") as other:
            seen(other, "/a", b"a")
        with FileStore.open(client, "s") as store:
            store.put("/b", b"b")
        assert view.refresh() and not view.refresh()
        assert view.read("/a") == b"a" and view.read("/b") == b"b"


def test_stores_that_are_not_there_are_named(client: bk_core.BookKeeper, store: FileStore) -> None:
    with pytest.raises(NoSuchFileStoreError, match="there is no file store 'z'"):
        FileStoreView.open(client, "z")
    create_log(client, "files.orders", LogProperties(entry_format="raw"), file_entries=True)
    with pytest.raises(NoSuchFileStoreError, match="did you mean 'orders'"):
        FileStoreView.open(client, "oders")
    with pytest.raises(InvalidArgumentError):
        FileStoreView.open(client, "a/b")


def test_a_store_that_is_deleted_under_a_view_and_made_again(client: bk_core.BookKeeper) -> None:
    with FileStore.open(client, "s") as store:
        store.put("/old", b"old")
    with FileStoreView.open(client, "s") as view:
        delete_file_store(client, "s")
        with pytest.raises(NoSuchFileStoreError):
            view.refresh()
        assert view.read("/old") == b"old"
        with FileStore.open(client, "s") as store:
            store.put("/new", b"new")
        assert view.refresh()
        assert view.read("/new") == b"new" and not view.exists("/old")


def test_a_wrong_password_is_told(client: bk_core.BookKeeper) -> None:
    with FileStore.open(client, "s", password=b"right") as store:
        store.put("/a", LARGE)
    with pytest.raises(BkError, match="(?i)password") as raised:
        FileStoreView.open(client, "s", password=b"wrong")
    assert "wrong" not in str(raised.value).replace("wrong password", "")
    with pytest.raises(WrongPasswordError, match="file store 's' was made with a password, and none was given"):
        FileStoreView.open(client, "s")
    for call in (bk_core.delete_file_store, bk_core.gc_file_store):
        with pytest.raises(WrongPasswordError, match="the password given is not that of file store 's'"):
            call(client, "s", password=b"no")
    with FileStoreView.open(client, "s", password=b"right") as view:
        assert view.read("/a") == LARGE


def write(client: bk_core.BookKeeper, *records: bytes) -> None:
    create_log(client, "files.s", LogProperties(entry_format="raw"), exist_ok=True, file_entries=True)
    with LogWriter.open(client, "files.s", file_entries=True) as writer:
        for record in records:
            writer.append(record)


def test_a_log_without_a_whole_snapshot_is_not_shown_as_empty(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "BASE_S", 0.1)
    create_log(client, "files.s", LogProperties(entry_format="raw"), file_entries=True)
    with FileStoreView.open(client, "s") as view:  # one that was just made
        assert view.listing("/") == [] and view.ledgers() is None
        write(client, encode(Mkdirs("/a", 1, 2, 1)), encode(BaseBegin(3, 1)))
        with pytest.raises(FileStoreError, match="no whole snapshot"):
            view.refresh()
        with pytest.raises(FileStoreError, match="no whole snapshot"):
            FileStoreView.open(client, "s")


def test_damaged_records_are_told_again_and_again(client: bk_core.BookKeeper) -> None:
    from zlib import crc32

    begin = encode(BaseBegin(2, 1))
    write(client, begin, encode(BaseEnd(0, crc32(begin))), encode(Mkdirs("/a", 1, 2, 1)))
    with FileStoreView.open(client, "s") as view:
        assert view.exists("/a")
        write(client, b"nonsense")
        for _ in range(2):
            with pytest.raises(FileStoreFormatError, match="file store 's', segment 1, entry 0"):
                view.refresh()
        assert view.exists("/a")


def test_nobody_waits_for_one_who_waits(client: bk_core.BookKeeper, store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others read, refresh, wait and close the view meanwhile; and whoever waits learns of the next change."""
    store.put("/a", b"a")
    begun = threading.Semaphore(0)
    wait = LogReader._wait_until
    monkeypatch.setattr(LogReader, "_wait_until", lambda reader, until: (begun.release(), wait(reader, until))[1])
    with FileStoreView.open(client, "s") as view, ThreadPoolExecutor(3) as threads:
        seen(view, "/a", b"a")
        while begun.acquire(blocking=False):
            pass
        waiting = [threads.submit(view.wait, 60) for _ in range(2)]
        assert all(begun.acquire(timeout=30) for _ in waiting)
        assert threads.submit(view.read, "/a").result(30) == b"a"
        assert not threads.submit(view.refresh).result(30)
        assert not any(one.done() for one in waiting)
        store.put("/b", b"b")
        assert all(one.result(60) for one in waiting)
        view.refresh()
        assert view.read("/b") == b"b"
        late = threads.submit(view.wait, 60)
        assert begun.acquire(timeout=30)
        threads.submit(view.close).result(30)
        assert not late.done()
        store.put("/c", b"c")
        assert late.result(60)


def test_files_are_read_while_another_one_waits_for_a_whole_snapshot(late: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """FS-17: they are shown as they were known before."""
    with FileStore.open(late, "s") as store:
        store.put("/kept", b"kept")
        store.put("/next", b"next")
        with FileStoreView.open(late, "s") as view, ThreadPoolExecutor(2) as threads:
            assert view.read("/kept") == b"kept"
            trimmed(store, late)
            waits, wait = threading.Event(), LogReader.wait
            monkeypatch.setattr(views, "BASE_S", 50.0)
            monkeypatch.setattr(LogReader, "wait", lambda reader, timeout_s: (waits.set(), wait(reader, timeout_s))[1])
            refreshing = threads.submit(view.refresh)
            assert waits.wait(30)
            assert threads.submit(view.read, "/kept").result(30) == b"kept" and not refreshing.done()
            store.put("/last", b"last")
            assert refreshing.result(60) and view.status("/often").size == OFTEN_BYTES


def test_a_view_that_waits_learns_that_its_store_was_made_anew(client: bk_core.BookKeeper) -> None:
    with FileStore.open(client, "s") as store:
        store.put("/a", b"a")
    with FileStoreView.open(client, "s") as view:
        delete_file_store(client, "s")
        with pytest.raises(NoSuchFileStoreError):
            view.wait(30)
        with FileStore.open(client, "s"):
            assert view.wait(30)


@pytest.mark.parametrize("where", ["reading", "taking"])
def test_a_handler_of_a_signal_that_strikes_a_refresh_is_refused_what_it_would_break(
    client: bk_core.BookKeeper, store: FileStore, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It runs on top of the call, on the same thread, so no lock keeps it out."""
    store.put("/a", b"1")
    view = FileStoreView.open(client, "s")
    seen(view, "/a", b"1")
    refused, shown = [], []

    def handler() -> None:
        for call in (view.refresh, view.close, lambda: view.wait(1), lambda: view.exists("/a")):
            try:
                shown.append(call())
            except BlockingCallError as error:
                refused.append(str(error))

    take, read = FileReplay.take, LogReader.read

    def taking(replay: FileReplay, record: bytes, position: Position) -> None:
        handler()
        take(replay, record, position)

    def reading(reader: LogReader) -> Iterator[Any]:
        handler()
        yield from read(reader)

    monkeypatch.setattr(*((FileReplay, "take", taking) if where == "taking" else (LogReader, "read", reading)))
    store.put("/a", b"2")
    seen(view, "/a", b"2")
    monkeypatch.undo()
    assert refused and all("takes in what has happened" in told and "a handler of a signal" in told for told in refused)
    assert set(shown) == ({True} if where == "reading" else set())  # the files are whole while the log is read
    assert view.exists("/a") and not view.refresh()
    view.close()


def test_an_interrupt_in_the_middle_of_a_change_shows_no_half_of_it(
    client: bk_core.BookKeeper, store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("/a", b"1")
    view = FileStoreView.open(client, "s")
    seen(view, "/a", b"1")
    struck = []

    def torn(replay: FileReplay, record: bytes, position: Position) -> None:
        assert replay.tree.root.children is not None
        replay.tree.root.children.clear()
        struck.append(position)
        raise KeyboardInterrupt

    monkeypatch.setattr(FileReplay, "take", torn)
    store.put("/b", b"2")
    with pytest.raises(KeyboardInterrupt):
        seen(view, "/b", b"2")
    monkeypatch.undo()
    assert struck and view.exists("/a")
    seen(view, "/b", b"2")
    view.close()


def test_many_threads_read_one_view(client: bk_core.BookKeeper, store: FileStore) -> None:
    store.put("/large", LARGE)
    with FileStoreView.open(client, "s") as view:
        seen(view, "/large", LARGE)
        done = threading.Event()

        def refresh() -> None:
            while not done.is_set():
                view.refresh()

        with ThreadPoolExecutor(5) as threads:
            refreshing = threads.submit(refresh)
            try:
                reads = [threads.submit(view.read, "/large", n << 10, 1 << 20) for n in range(40)]
                store.put("/small", b"x")
                assert [read.result(60) for read in reads] == [LARGE[n << 10 : (n << 10) + (1 << 20)] for n in range(40)]
            finally:
                done.set()
            refreshing.result(60)


def test_a_view_that_is_closed_says_so(client: bk_core.BookKeeper, store: FileStore) -> None:
    view = FileStoreView.open(client, "s")
    view.close()
    view.close()
    for call in (view.refresh, lambda: view.listing("/"), lambda: view.wait(1)):
        with pytest.raises(FileStoreClosedError, match="closed"):
            call()
    assert "'s'" in repr(view)


def test_a_refresh_waits_no_longer_than_its_client_in_all(late: bk_core.BookKeeper, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it begins again because the log is trimmed under it."""
    store = FileStore.open(late, "s")
    store.put("/kept", b"kept")
    trimmed(store, late)
    store.abandon()
    with bk_core.connect(uri, operation_timeout_s=0.5) as client:
        assert client.config.operation_timeout_s < views.BASE_S
        deadlines: list[float] = []
        catch_up = FileStoreView._catch_up

        def late_loss(view: FileStoreView, known: Any, deadline: float) -> bool:
            deadlines.append(deadline)
            try:
                return catch_up(view, known, deadline)
            except FileStoreError:
                if len(deadlines) < 3:
                    raise LogDataLossError("trimmed under it") from None
                raise

        monkeypatch.setattr(FileStoreView, "_catch_up", late_loss)
        begun = time.monotonic()
        with pytest.raises(FileStoreError, match=r"no whole snapshot.*none came in 0\.5 s"):
            FileStoreView.open(client, "s")
        assert len(deadlines) == 3 and len(set(deadlines)) == 1 and deadlines[0] <= begun + 5


def test_a_view_that_was_not_opened_says_so(uri: str) -> None:
    with bk_core.connect(uri) as client, pytest.raises(FileStoreClosedError, match=r"was not opened: FileStoreView\.open\(client, name\)"):
        FileStoreView(client, "q", b"").exists("/")
