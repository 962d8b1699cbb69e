"""Appending is the same on ledgers and logs: calls that wait, calls that return futures, ``flush``. Bookies on sockets, one process."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import bk_core
from bk_core.client.files.store import FileStore
from bk_core.client.ledger.write_handle import WriteHandle
from bk_core.client.log.intents import intents_of
from bk_core.client.log.writer import LogWriter
from bk_core.errors import BkError, DuplicateEntryIdError, LedgerFencedError, LogTakenOverError, OperationTimeoutError

KINDS = ("ledger", "log")
PAYLOADS = [b"one", b"", b"three"]
RUN = (b"".join(PAYLOADS), array("q", (0, 3, 3, 8)))


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri) as bk:
        bk.create_log("a", entry_format="raw")
        yield bk


def open_writer(client: bk_core.BookKeeper, kind: str) -> Any:
    return client.create_ledger() if kind == "ledger" else client.log("a").writer(take_over=True)


def ids(kind: str, outcome: Any) -> tuple[int, int]:
    """The first and the last entry of a run of three that was just appended."""
    return (outcome - 2, outcome) if kind == "ledger" else (outcome[0].first_entry_id, outcome[-1].last_entry_id)


@pytest.mark.parametrize("kind", KINDS)
def test_what_waits_returns_what_the_future_has(client: bk_core.BookKeeper, kind: str) -> None:
    with open_writer(client, kind) as writer:
        assert ids(kind, writer.append_many(PAYLOADS)) == (0, 2)
        assert ids(kind, writer.append_many_future(PAYLOADS).result(30)) == (3, 5)
        assert ids(kind, writer.append_run(*RUN)) == (6, 8)
        assert ids(kind, writer.append_run_future(*RUN).result(30)) == (9, 11)
        single, later = writer.append(b"x"), writer.append_future(memoryview(b"y")).result(30)
        assert (single, later) == (12, 13) if kind == "ledger" else (single.entry, later.entry) == (12, 13)
    if kind == "ledger":
        with client.open_ledger(writer.ledger_id) as reader:
            assert reader.read(0, 13) == [*PAYLOADS * 4, b"x", b"y"]
    else:
        assert [payload for run in client.log("a").reader() for payload in run.payloads()] == [*PAYLOADS * 4, b"x", b"y"]


@pytest.mark.parametrize("method", ["append_many", "append_run"])
def test_the_calls_that_wait_take_the_ids_of_callers(client: bk_core.BookKeeper, method: str) -> None:
    """WR-2."""
    with client.create_ledger(caller_ids=True) as ledger:
        arguments = (PAYLOADS,) if method == "append_many" else RUN
        assert getattr(ledger, method)(*arguments, entry_id=0) == 2


class Held:
    """Bookies whose answers to one writer are held back until ``release``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, writer: Any) -> None:
        self.taken = threading.Event()
        self._steps: list[Callable[[], object]] = []
        self._post: Callable[[Callable[[], object]], None]
        self._open = threading.Event()
        if isinstance(writer, WriteHandle):
            self._hold_steps(monkeypatch, writer)
        else:
            self._hold_runs(monkeypatch, writer._works.handles[writer.ledger_id])

    def _hold_steps(self, monkeypatch: pytest.MonkeyPatch, handle: WriteHandle) -> None:
        original, self._post = handle._driver.step, handle._session.reactor.post

        def step(*arguments: Any, **named: Any) -> Any:
            if self._open.is_set():
                return original(*arguments, **named)
            self._steps.append(lambda: original(*arguments, **named))
            self.taken.set()
            return None

        monkeypatch.setattr(handle._driver, "step", step)

    def _hold_runs(self, monkeypatch: pytest.MonkeyPatch, handle: WriteHandle) -> None:
        original, self._post = handle.append_run_future, handle._session.reactor.post

        def append(*run: Any) -> Future[int]:
            if self._open.is_set():
                return original(*run)
            held: Future[int] = Future()
            self._steps.append(lambda: original(*run).add_done_callback(lambda done: held.set_result(done.result())))
            self.taken.set()
            return held

        monkeypatch.setattr(handle, "append_run_future", append)

    def release(self) -> None:
        self._open.set()
        for step in self._steps:
            self._post(step)


@pytest.mark.parametrize("kind", KINDS)
def test_flush_returns_when_what_was_appended_before_is_acknowledged(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with open_writer(client, kind) as writer:
        writer.flush()  # nothing was appended
        held = Held(monkeypatch, writer)
        before = [writer.append_future(b"%d" % n) for n in range(20)]
        assert held.taken.wait(30)
        done: Future[bool] = Future()

        def flush() -> None:
            writer.flush()
            done.set_result(all(future.done() for future in before))

        thread = threading.Thread(target=flush)
        thread.start()
        assert not done.done()
        held.release()
        assert done.result(30)
        thread.join(30)
        writer.flush()


@pytest.mark.parametrize("kind", KINDS)
def test_flush_waits_for_nothing_that_is_appended_later(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    writer = open_writer(client, kind)
    writer.append_future(b"before")
    batch = writer._adds.mark(writer._share, type(writer._share.batch)()) if kind == "ledger" else writer._window.mark()
    assert (writer._answered if kind == "ledger" else writer._lock).until(lambda: batch.is_done, 30)
    held = Held(monkeypatch, writer)
    later = writer.append_future(b"later")
    assert held.taken.wait(30)
    assert batch.is_done and not later.done()
    held.release()
    writer.flush()
    assert later.done()
    writer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_flush_that_finds_no_end_says_what_is_missing(uri: str, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    with bk_core.connect(uri, operation_timeout_s=0.5) as impatient:
        impatient.create_log("a", entry_format="raw")
        writer = open_writer(impatient, kind)
        held = Held(monkeypatch, writer)
        writer.append_future(b"12345")
        with pytest.raises(OperationTimeoutError, match="5 bytes stayed unacknowledged"):
            writer.flush()
        held.release()
        writer.flush()
        writer.close()


@pytest.mark.parametrize("kind", KINDS)
def test_flush_raises_the_failure_of_a_writer_that_was_ended(client: bk_core.BookKeeper, kind: str) -> None:
    writer = open_writer(client, kind)
    writer.append(b"before")
    other = client.recover_ledger(writer.ledger_id) if kind == "ledger" else open_writer(client, "log")
    writer.append_future(b"lost")
    expected: type[BkError] = LedgerFencedError if kind == "ledger" else LogTakenOverError
    for _ in range(2):  # and again, because the writer stays ended
        with pytest.raises(expected):
            writer.flush()
    other.close()
    writer.abandon()


@pytest.mark.parametrize("asked", [False, True])
def test_flush_raises_a_failure_that_nobody_was_told(client: bk_core.BookKeeper, asked: bool) -> None:
    """An append that is refused does not end its ledger. ``flush`` tells it once, unless its future has."""
    with client.create_ledger(caller_ids=True) as ledger:
        ledger.append(b"zero", entry_id=0)
        twice = ledger.append_future(b"again", entry_id=0)
        if asked:
            assert isinstance(twice.exception(30), DuplicateEntryIdError)
        else:
            with pytest.raises(DuplicateEntryIdError):
                ledger.flush()
        ledger.flush()
        assert ledger.append(b"one", entry_id=1) == 1


def test_close_closes_the_ledger_before_it_raises_what_flush_would(client: bk_core.BookKeeper) -> None:
    ledger = client.create_ledger(caller_ids=True)
    ledger.append(b"zero", entry_id=0)
    ledger.append_future(b"again", entry_id=0)
    with pytest.raises(DuplicateEntryIdError):
        ledger.close()
    assert client.ledger_metadata(ledger.ledger_id).last_entry_id == 0


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_waits_in_a_completion_callback(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    with open_writer(client, kind) as writer:
        refused: Future[list[str]] = Future()

        def callback(_: Future[Any]) -> None:
            held = Held(monkeypatch, writer) if kind == "log" else None
            found = []
            calls = (lambda: writer.append_many([b"x"]), lambda: writer.append_run(b"x", array("q", (0, 1))))
            for call in calls:
                try:
                    call()
                except BkError as error:
                    found.append(error.code)
            if held is not None:
                held.release()
            refused.set_result(found)

        writer.append_future(b"x").add_done_callback(callback)
        assert refused.result(30) == ["BK-BLOCKING-CALL"] * 2


def test_the_length_of_a_ledger_that_is_written_is_not_known(client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        ledger.append_many(PAYLOADS)
        with client.open_ledger(ledger.ledger_id) as reader:
            assert reader.length is None
        assert ledger.length == 8
    with client.open_ledger(ledger.ledger_id) as reader:
        assert reader.length == 8


def test_a_span_and_a_run_name_the_same_entry(client: bk_core.BookKeeper) -> None:
    with LogWriter.open(client, "a") as writer:
        (span,) = writer.append_many(PAYLOADS)
    (run,) = client.log("a").reader()
    (segment,) = client.log("a").segments()
    assert span.first_entry_id == run.first_entry_id == segment.first_entry_id == 0
    assert span.last_entry_id == segment.last_entry_id == 2


@pytest.mark.parametrize("what", ["log", "files"])
def test_numbers_that_somebody_chose_for_ledgers_of_theirs_are_left_out(client: bk_core.BookKeeper, what: str) -> None:
    """Such a ledger would be taken for the one that was noted before it came to be, and the writer would fail."""
    log = client.create_log("beside")
    with client.create_ledger() as last:
        pass
    chosen = [last.ledger_id + ahead for ahead in range(1, 7)]
    for ledger_id in chosen:
        client.create_ledger(ledger_id=ledger_id).close()
    if what == "log":
        with log.writer() as writer:
            writer.append(b"x")
        (segment,) = log.segments()
        assert segment.ledger_id > chosen[-1] and intents_of(client, "beside") == {}
    else:
        with FileStore.open(client, "beside") as store:
            store.put("/large", bytes(2 << 20))  # in a ledger of its own
            assert store.read("/large") == bytes(2 << 20)
