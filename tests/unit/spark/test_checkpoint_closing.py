"""The checkpoint gateway closes all stores side by side and all callers together, and nothing keeps it open for ever."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import bk_core.client
from bk_core.client.files.imports import import_mark, is_made_by_import
from bk_core.client.files.store import FileStore
from bk_core.client.log.lists import create_log
from bk_core.errors import BkError, BlockingCallError, ImportUnfinishedError, InvalidArgumentError, NoSuchPathError, OperationTimeoutError
from bk_core.metadata.memory import MemoryStore
from bk_core.protocol.files.content import FileStatus
from bk_spark.checkpoint import checkpoint_location, close, location
from bk_spark.checkpoint import gateway as gateways
from bk_spark.checkpoint.gateway import Gateway
from bk_spark.checkpoint.staging import CheckpointFiles
from tests.unit.client.forked import in_a_forked_child
from tests.unit.spark.checkpoint_client import temporary
from tests.unit.spark.memory_files import MemoryFiles


class SlowFiles(CheckpointFiles):
    """Closing it waits for ``go_on``."""

    def __init__(self, go_on: threading.Event, patience_s: float = 10) -> None:
        super().__init__(MemoryFiles(), patience_s)
        self.begun, self.go_on, self.is_closed = threading.Event(), go_on, False

    def close(self) -> None:
        self.begun.set()
        assert self.go_on.wait(60)
        super().close()
        self.is_closed = True


def test_stores_are_closed_side_by_side_and_whoever_closes_returns_when_all_are(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, told = threading.Event(), threading.Event()
    gateway = Gateway(on_close=told.set)
    monkeypatch.setattr(gateways, "JOIN_S", 0.05)
    slow = {name: SlowFiles(go_on) for name in "abc"}
    gateway.files.update(slow)
    returned: list[bool] = []

    def close() -> None:
        gateway.close()
        returned.append(told.is_set() and all(files.is_closed for files in slow.values()))

    callers = [threading.Thread(target=close) for _ in range(3)]
    for caller in callers:
        caller.start()
    assert all(files.begun.wait(30) for files in slow.values())
    callers[0].join(0.2)
    assert returned == [] and not told.is_set()
    go_on.set()
    for caller in callers:
        caller.join(30)
    assert returned == [True] * 3


def test_a_store_that_does_not_close_does_not_keep_the_gateway(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    go_on, told = threading.Event(), threading.Event()
    gateway = Gateway(on_close=told.set)
    monkeypatch.setattr(gateways, "JOIN_S", 0.2)
    stuck, good = SlowFiles(go_on, 0.01), CheckpointFiles(MemoryFiles(), 0.01)
    gateway.files.update({"stuck": stuck, "good": good})
    with caplog.at_level(logging.WARNING, "bk_spark.checkpoint"):
        gateway.close()
    assert told.is_set() and not good.store.is_open and not stuck.is_closed
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records if "did not close in" in record.getMessage()] == ["stuck"]
    go_on.set()
    gateway.close_files("stuck")
    assert stuck.is_closed


def test_stores_are_closed_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as in the last moments of the interpreter."""
    gateway = Gateway()
    files = gateway.files["x"] = CheckpointFiles(MemoryFiles(), 10)
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "bk-checkpoint-close":
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    gateway.close()
    assert not files.store.is_open and gateway._closed.is_set()


def test_a_close_that_was_interrupted_is_finished_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    gateway = Gateway(on_close=told.set)
    files = gateway.files["x"] = CheckpointFiles(MemoryFiles(), 10)
    stop_serving = gateway._stop_serving

    def interrupt(connections: Any) -> None:
        stop_serving(connections)
        raise KeyboardInterrupt

    monkeypatch.setattr(gateway, "_stop_serving", interrupt)
    with pytest.raises(KeyboardInterrupt):
        gateway.close()
    assert files.store.is_open and not told.is_set()
    gateway.close()
    assert not files.store.is_open and told.is_set()


def test_closing_inside_of_closing_does_not_wait_for_itself() -> None:
    """As the handler of a signal may, in the thread that closes already."""
    gateway = Gateway()
    files = gateway.files["x"] = CheckpointFiles(MemoryFiles(), 10)
    wake, told = gateways._wake, threading.Event()

    def close_again(socket: Any) -> None:
        wake(socket)
        gateway.close()
        told.set()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(gateways, "_wake", close_again)
        closing = threading.Thread(target=gateway.close, daemon=True)
        closing.start()
        assert told.wait(30)
    closing.join(30)
    assert not closing.is_alive() and not files.store.is_open


def test_closing_has_one_time_for_all_deletes_that_were_kept_back() -> None:
    store, now, allowed = MemoryFiles(), [0.0], []
    files = CheckpointFiles(store, 10, clock=lambda: now[0])
    for name in ("/0", "/1", "/2", "/3"):
        files.create(name, [b"old"], True, True)
        files.create(temporary(name), [b"new"], True, True)
        files.delete(name, recursive=False)

    def fail(path: str, **options: Any) -> bool:
        allowed.append(options["timeout_s"])
        now[0] += 8
        raise OperationTimeoutError("no bookie answers")

    store.delete = fail  # type: ignore[method-assign]
    files.close()
    assert allowed == [10, 10, 4, 0.01] and store.is_closed and not store.staged
    assert files.close_s == 30


@pytest.mark.parametrize("parents", [True, False])
def test_no_temporary_file_is_made_in_a_directory_that_was_deleted_meanwhile(parents: bool) -> None:
    """It would be an orphan for an hour: whoever deleted the directory has not seen it."""
    store = MemoryFiles()
    files = CheckpointFiles(store, 10)
    files.mkdirs("/state/0")
    path, stage = temporary("/state/0/1.delta"), store.stage

    def delete_meanwhile(pieces: Any) -> Any:
        assert files.delete("/state", recursive=True)
        return stage(pieces)

    store.stage = delete_meanwhile  # type: ignore[method-assign]
    if parents:
        files.create(path, [b"new"], True, True)
        assert [status.path for status in files.listing("/state/0")] == [path]
    else:
        with pytest.raises(NoSuchPathError):
            files.create(path, [b"new"], True, False)
        assert not store.staged


def test_a_delete_of_a_directory_waits_for_a_temporary_file_that_is_made_in_it() -> None:
    store = MemoryFiles()
    files = CheckpointFiles(store, 10)
    files.mkdirs("/state/0")
    path, status = temporary("/state/0/1.delta"), store.status
    deleting = threading.Thread(target=files.delete, args=("/state", True))

    def delete_meanwhile(asked: str) -> FileStatus:
        found = status(asked)
        if asked == "/state/0" and deleting.ident is None:  # it is looked at, and the file is to be put into it
            deleting.start()
            deleting.join(0.2)
        return found

    store.status = delete_meanwhile  # type: ignore[method-assign]
    files.create(path, [b"new"], True, True)
    deleting.join(30)
    assert not store.staged and list(store.nodes) == ["/"]
    with pytest.raises(NoSuchPathError):
        files.status(path)


# --- a session that is stopped, or a signal that comes, while a checkpoint is opened -------------------------------------------


class Driver:
    """A session with a gateway. What opens a store, or connects, calls ``meanwhile`` first, with the word for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.context = SimpleNamespace(_jsc=SimpleNamespace(), master="local[2]")
        self.session = SimpleNamespace(sparkContext=self.context)
        monkeypatch.setattr(location, "activate", lambda session: None)  # which asks a JVM
        where = {"host": None, "bind_address": None, "port": 0, "tls": None}
        self.application = location._Application(self.context, "127.0.0.1", 0, "127.0.0.1", where)
        self.gateway = self.application.gateway
        self.application.read_timeout_s = 1e9  # so that Spark is led here already
        self.stores: list[MemoryFiles] = []
        self.clients: list[str] = []
        self.lists = MemoryStore(f"lists-{id(self)}")
        self.lists.initialize_cluster()
        self.meanwhile: Callable[[str], None] = lambda what: None
        monkeypatch.setitem(location._applications, id(self.context), self.application)
        monkeypatch.setattr(bk_core.client, "connect", self._connect)
        monkeypatch.setattr(FileStore, "open", self._open)

    def _connect(self, uri: str, **options: Any) -> Any:
        self.meanwhile("connect")
        self.clients.append(uri)
        return SimpleNamespace(store=self.lists, config=SimpleNamespace(operation_timeout_s=10), close=lambda: self.clients.remove(uri))

    def _open(self, client: Any, name: str, **options: Any) -> MemoryFiles:
        self.meanwhile("open")
        self.stores.append(MemoryFiles())
        return self.stores[-1]

    def checkpoint(self, name: str = "x") -> str:
        return checkpoint_location(self.session, name, uri="zk://a/l")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    driver = Driver(monkeypatch)
    yield driver
    driver.gateway.close()


def test_no_password_is_kept(driver: Driver) -> None:
    """The application remembers how a checkpoint was opened, and tells the same call again from another one."""

    def opened(password: str) -> str:
        return checkpoint_location(driver.session, "x", uri="zk://a/l", password=password)

    assert opened("hush1") == opened("hush1") and len(driver.stores) == 1
    with pytest.raises(InvalidArgumentError, match=r"with other options \(password\)"):
        opened("hush2")
    close(driver.session, "x")
    assert "x" in driver.application.asked and "hush" not in repr(driver.application.asked)


def test_a_checkpoint_is_opened_without_what_a_killed_import_has_left(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left, store = f"/.importing-{'0' * 32}", MemoryFiles()
    for path in ("/offsets/0", f"{left}/offsets/0"):
        store.put(path, b"v1")
    monkeypatch.setattr(FileStore, "open", lambda *_, **__: store)
    driver.checkpoint()
    assert sorted(store.nodes) == ["/", "/offsets", "/offsets/0"]
    assert "an import of the checkpoint x was killed or fenced before it was done: its files are those from before it" in caplog.text


def test_a_checkpoint_that_a_killed_import_was_to_bring_is_not_taken_for_a_new_one(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    left, store = f"/.importing-{'0' * 32}", MemoryFiles()
    store.put(f"{left}/offsets/0", b"v1")
    monkeypatch.setattr(FileStore, "open", lambda *_, **__: store)
    with pytest.raises(ImportUnfinishedError, match=rf"checkpoint 'x' has no files, only a part .*\({left}\): that import was killed"):
        driver.checkpoint()
    assert f"{left}/offsets/0" in store.nodes and not driver.gateway.files


def test_a_checkpoint_of_an_import_that_was_killed_before_its_first_file_is_not_taken_for_a_new_one(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_log(SimpleNamespace(store=driver.lists), "files.x", file_entries=True, extra=import_mark())  # type: ignore[arg-type]
    with pytest.raises(ImportUnfinishedError, match=r"checkpoint 'x' has no files, and an import made it: that import was killed"):
        driver.checkpoint()
    assert driver.stores[0].is_closed and not driver.gateway.files
    imported = MemoryFiles()
    imported.put("/offsets/0", b"v1")
    monkeypatch.setattr(FileStore, "open", lambda *_, **__: imported)  # the import was run again
    assert driver.checkpoint() and list(driver.gateway.files) == ["x"]
    assert not is_made_by_import(SimpleNamespace(store=driver.lists), "files.x")  # type: ignore[arg-type]  # it may be emptied from now on


@pytest.mark.parametrize("when", ["connect", "open"])
@pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "unnoticed"])
def test_a_checkpoint_that_is_opened_while_its_session_stops_is_closed(driver: Driver, when: str, is_noticed: bool) -> None:
    def stop(what: str) -> None:
        if what == when:
            driver.context._jsc = None
            if is_noticed:
                driver.gateway.close()
            else:
                driver.application.read_timeout_s = 0  # Spark is to be led here, and is not there

    driver.meanwhile = stop
    with pytest.raises(InvalidArgumentError, match="this session was stopped"):
        driver.checkpoint()
    assert driver.stores and all(store.is_closed for store in driver.stores)
    assert driver.clients == [] and not driver.gateway.files


@pytest.mark.parametrize("where", ["add", "_open", "_open_or_leave"])
@pytest.mark.parametrize("then", ["again", "close"])
def test_a_checkpoint_whose_opening_is_interrupted_at_its_end_can_be_opened_and_closed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, where: str, then: str
) -> None:
    owner = driver.gateway if where == "add" else location
    real = getattr(owner, where)

    def strike(*args: Any) -> None:
        real(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(owner, where, strike)
        driver.checkpoint()
    (first,) = driver.stores
    assert first.is_closed == (where == "add") and list(driver.gateway.files) == ["x"]
    if then == "close":
        close(driver.session, "x")
        assert first.is_closed and not driver.gateway.files
        return
    assert driver.checkpoint() == driver.checkpoint()
    assert (driver.stores == [first]) == (where != "add") and not driver.stores[-1].is_closed


def test_a_checkpoint_that_could_not_be_opened_was_never_open(driver: Driver) -> None:
    def fail(what: str) -> None:
        raise OperationTimeoutError("no bookies")

    driver.meanwhile = fail
    with pytest.raises(OperationTimeoutError):
        driver.checkpoint()
    with pytest.raises(InvalidArgumentError, match="no checkpoint 'x' to close"):
        close(driver.session, "x")


@pytest.mark.parametrize("calls", [close, lambda session: checkpoint_location(session, "y", uri="zk://a/l")], ids=["close", "open"])
def test_a_handler_of_a_signal_is_told_that_it_cannot_wait_for_the_call_that_it_interrupts(
    driver: Driver, calls: Callable[[Any], Any]
) -> None:
    told: list[BkError] = []

    def handle(what: str) -> None:
        try:
            calls(driver.session)
        except BkError as error:
            told.append(error)

    driver.meanwhile = handle
    opening = threading.Thread(target=driver.checkpoint, daemon=True)
    opening.start()
    opening.join(30)
    assert not opening.is_alive() and driver.gateway.files.keys() == {"x"}
    assert [type(error) for error in told] == [BlockingCallError] * 2
    assert all("interrupted checkpoint_location cannot wait for it" in str(error) for error in told)
    close(driver.session)
    assert driver.clients == [] and driver.stores[0].is_closed


def test_closing_inside_of_closing_a_checkpoint_closes_the_others_too(driver: Driver) -> None:
    driver.checkpoint("x")
    driver.checkpoint("y")
    stop = driver.stores[0].close

    def handle() -> None:
        close(driver.session)
        stop()

    driver.stores[0].close = handle  # type: ignore[method-assign]
    closing = threading.Thread(target=close, args=(driver.session, "x"), daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive() and all(store.is_closed for store in driver.stores) and driver.clients == []


def test_a_handler_of_a_signal_that_interrupts_the_gateways_own_lock_does_not_wait() -> None:
    gateway, told = Gateway(), []

    class Interrupted(dict[str, CheckpointFiles]):
        def pop(self, name: str, *default: Any) -> Any:
            for call in (gateway.close, lambda: gateway.close_files("y")):
                with pytest.raises(BlockingCallError, match=r"interrupted Gateway\._take cannot wait") as caught:
                    call()
                told.append(caught.value)
            return super().pop(name, *default)

    gateway.files = Interrupted(x=CheckpointFiles(MemoryFiles(), 10))
    gateway.close_files("x")
    assert len(told) == 2 and not gateway.files
    gateway.close()
    assert gateway._closed.is_set()


def test_no_lock_is_held_while_clients_are_closed() -> None:
    ended: list[bool] = []

    def tell() -> None:
        other = threading.Thread(target=gateway.close_files, args=("x",), daemon=True)
        other.start()
        other.join(10)
        ended.append(not other.is_alive())

    gateway = Gateway(on_close=tell)
    gateway.if_idle(tell)
    gateway.close()
    assert ended == [True, True]


def test_a_client_whose_closing_is_interrupted_is_closed_all_the_same(driver: Driver) -> None:
    """Nobody has it any more, so nobody would call its ``close`` again, and its session and threads would stay."""
    closed = threading.Event()
    calls: list[str] = []

    def close_client() -> None:
        calls.append(threading.current_thread().name)
        if len(calls) == 1:
            raise KeyboardInterrupt
        closed.set()

    driver.application._clients[("zk://a/l", "v2", None)] = SimpleNamespace(close=close_client)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        driver.application.close_clients()
    assert closed.wait(30) and not driver.application._clients


def test_a_forked_child_leaves_the_drivers_checkpoints_alone(driver: Driver) -> None:
    """It shares the JVM, which a gateway of its own would lead away for good."""
    driver.checkpoint()
    calls = {"open": lambda: driver.checkpoint("y"), "again": driver.checkpoint, "close": lambda: close(driver.session)}
    assert in_a_forked_child(calls) == dict.fromkeys(calls, "BK-FORKED")
    assert list(driver.gateway.files) == ["x"] and location._applications[id(driver.context)] is driver.application
