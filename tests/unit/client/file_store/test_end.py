"""The end of a file store: another owner, a client that closes, failures of its own, forks, and what callers are told then."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import bk_core
from bk_core.client.files import owner as owner_module
from bk_core.client.files import works as works_module
from bk_core.client.files.owner_parts import Gathered, end_threads
from bk_core.client.files.store import FileStore
from bk_core.client.files.upkeep import gc_file_store, own_file_store
from bk_core.client.files.view import FileStoreView
from bk_core.client.files.watches import Watches
from bk_core.client.files.words import is_unowned
from bk_core.client.log.list_store import read_ledger_list
from bk_core.errors import (
    BkError,
    ClientClosedError,
    FileStoreClosedError,
    FileStoreTakenOverError,
    LogTakenOverError,
    OperationTimeoutError,
)
from bk_core.protocol.ledger.metadata import LedgerState
from tests.unit.client.file_store.stores import BIG, LIMITS, LOG, Failing, Stalled, eventually, names, nodes, small, threads
from tests.unit.client.forked import in_a_forked_child


def test_another_owner_ends_a_store(client: bk_core.BookKeeper) -> None:
    """All that is pending and all that is called later fails alike; it is told once, and no thread stays."""
    told: list[BkError] = []
    store = FileStore.open(client, "a", on_end=told.append)
    store.put("/before", BIG)
    staged = store.stage(BIG)
    with FileStore.open(client, "a") as other:
        assert other.read("/before") == BIG
        ended = rf"another owner opened file store 'a' \(this program, process {os.getpid()} on host .* UTC\), which ended this one"
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


@pytest.mark.parametrize("kind", ["gc", "import"])
def test_an_owner_that_was_fenced_knows_if_there_is_another(client: bk_core.BookKeeper, kind: str) -> None:
    """A user who is told of another owner looks for a program that has the store. Behind ``gc_file_store`` there is none."""
    with bk_core.connect(client.config.uri) as other:
        store = FileStore.open(client, "a")
        store.put("/x", b"")
        if kind == "gc":
            gc_file_store(other, "a", even_if_alive=True)
        else:
            own_file_store(other, "a", even_if_alive=True).close()
        with pytest.raises(FileStoreTakenOverError) as caught:
            store.put("/y", b"")
        assert is_unowned(caught.value) == (kind == "gc")
        assert ("no other one has it so far" if kind == "gc" else "another owner opened") in str(caught.value)
        store.close()
    with FileStore.open(client, "a") as again:
        assert names(again) == ["x"]


def test_an_error_says_whether_something_may_have_been_done(
    store: FileStore, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is refused before anything was done has a known outcome, also in another process; one that was handed over has not."""
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
