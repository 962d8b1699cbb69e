"""Writing a log exclusively, against bookies on sockets in this process: the API, rolling, back-pressure."""

from __future__ import annotations

import gc
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

import bk_core
from bk_core.client.log.intents import intents_of
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.parts import Call
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogSpan, LogWriter
from bk_core.errors import (
    BlockingCallError,
    ClientClosedError,
    InvalidArgumentError,
    LeftOpenError,
    LogTakenOverError,
    NoSuchLogError,
    NotEnoughBookiesError,
    OperationTimeoutError,
)
from bk_core.protocol.log.position import Position
from tests.unit.client.raw_log import LIMITS, RAW, contents, run_of, segments


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri, limits=LIMITS) as bk:
        create_log(bk, "a", RAW)
        yield bk


# --- the API -------------------------------------------------------------------------------------------------------------


def test_entries_are_where_the_writer_says(client: bk_core.BookKeeper) -> None:
    with LogWriter.open(client, "a") as writer:
        assert writer.position == Position(0)
        assert writer.append(b"0") == Position(0, 0)
        assert writer.append_future(bytearray(b"1")).result(30) == Position(0, 1)
        ledger_id = writer.ledger_id
        spans = writer.append_run(*run_of(b"2", b"", b"4"))
        assert spans == (LogSpan(0, ledger_id, 2, 4),)
        assert (spans[0].first_position, spans[0].end_position) == (Position(0, 2), Position(0, 5))
        assert writer.position == Position(0, 5)
        writer.roll()
        assert writer.ledger_id != ledger_id and writer.position == Position(1)
        assert writer.append(b"5") == Position(1, 0)
        assert repr(writer) == f"<LogWriter 'a' SERVING ledger {writer.ledger_id}>"
    assert contents(client) == [b"0", b"1", b"2", b"", b"4", b"5"]
    assert segments(client) == [4, 0]


def test_the_list_says_where_a_closed_ledger_ends_and_nothing_is_left_over(client: bk_core.BookKeeper) -> None:
    """LOG-9: neither intents, nor ledgers that nothing lists."""
    with LogWriter.open(client, "a") as writer:
        writer.append_run(*run_of(b"abc", b"de"))
        writer.roll()
        first, second = read_ledger_list(client, "a").segments
        assert (first.last_entry_id, first.rows, first.bytes, second.live) == (1, 2, 5, True)
        assert intents_of(client, "a") == {}
        assert client.ledger_metadata(writer.ledger_id).custom["log"] == b"a"
    listed = read_ledger_list(client, "a")
    assert not listed.live_segments and listed.total_rows == 2
    assert sorted(client.list_ledgers()) == sorted(segment.ledger_id for segment in listed.segments)


def test_what_cannot_work_is_refused_before_anything_is_written(client: bk_core.BookKeeper) -> None:
    for name in ("roll_max_bytes", "roll_max_entries", "roll_max_s"):
        with pytest.raises(InvalidArgumentError, match=f"{name} must be a .* above 0"):
            LogWriter.open(client, "a", **{name: 0})
    for name in ("attempts", "outstanding_bytes_max"):
        with pytest.raises(InvalidArgumentError, match=f"{name} must be a .* above 0"):
            LogWriter.open(client, "a", **{name: 0})
    with pytest.raises(InvalidArgumentError, match="log name"):
        LogWriter.open(client, "a/b")
    with pytest.raises(NoSuchLogError):
        LogWriter.open(client, "b")
    assert list(client.list_ledgers()) == []
    with LogWriter.open(client, "a") as writer:
        text: Any = "text"
        refused: list[tuple[str, Callable[[], object]]] = [
            ("payload must be bytes", lambda: writer.append(text)),
            ("too large", lambda: writer.append(bytes(LIMITS.frame_bytes_max))),
            ("offsets must be int64", lambda: writer.append_run_future(b"x", text)),
            ("offsets must be int64", lambda: writer.append_run_future(b"x", b"123")),
            ("empty run", lambda: writer.append_run_future(b"", array("q", [0]))),
            ("must rise", lambda: writer.append_run_future(b"x", array("q", [0, 2]))),
            ("must rise", lambda: writer.append_run_future(b"xy", array("q", [0, 2, 1]))),
        ]
        for message, call in refused:
            with pytest.raises(InvalidArgumentError, match=message):
                call()
        assert writer.append(b"fine") == Position(0, 0)


def test_flushes_keep_nothing_of_what_came_before(client: bk_core.BookKeeper) -> None:
    with client.log("a").writer() as writer:
        for _ in range(5):
            writer.append(b"x")
            writer.flush()
            writer.flush()
        batch, kept = writer._window._batch, 0
        while batch.before is not None:
            batch, kept = batch.before, kept + 1
        assert kept <= 1


def test_a_closed_writer_takes_nothing_more(client: bk_core.BookKeeper) -> None:
    writer = LogWriter.open(client, "a")
    waiting = [writer.append_future(b"%d" % n) for n in range(100)]
    writer.close()
    writer.close()
    assert [future.result(0) for future in waiting] == [Position(0, n) for n in range(100)]
    for call in (lambda: writer.append(b"x"), writer.roll):
        with pytest.raises(ClientClosedError, match="closed by this program"):
            call()
    with pytest.raises(ZeroDivisionError), LogWriter.open(client, "a") as writer:
        raise ZeroDivisionError
    assert not read_ledger_list(client, "a").live_segments


def test_a_close_that_comes_after_the_end_says_why(client: bk_core.BookKeeper) -> None:
    """It was interrupted before it could begin, then others took the log: nobody would answer it any more."""
    writer = LogWriter.open(client, "a")
    writer._closing = Call()
    with LogWriter.open(client, "a") as other:
        other.append(b"x")
        writer._hand_over(lambda now_ns: writer._machine.abandon(LogTakenOverError("taken over"), now_ns))
        writer._worker.join(30)
        with pytest.raises(LogTakenOverError, match="taken over"):
            writer.close()


def test_a_writer_may_be_abandoned(client: bk_core.BookKeeper) -> None:
    """Its ledger is not closed; the next writer recovers it."""
    writer = LogWriter.open(client, "a")
    writer.append(b"x")
    writer.abandon()
    with pytest.raises(ClientClosedError, match="abandoned by this program; nothing was written"):
        writer.append(b"y")
    writer.close()
    assert read_ledger_list(client, "a").live_segments
    with LogWriter.open(client, "a") as writer:
        writer.append(b"z")
    assert contents(client) == [b"x", b"z"]


@pytest.mark.parametrize("order", [("writer", "client"), ("client", "writer")])
def test_a_writer_whose_client_is_closed_first_says_that_its_ledger_stays_open(
    client: bk_core.BookKeeper, order: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    other = bk_core.connect(client.config.uri)
    writer = LogWriter.open(other, "a")
    writer.append(b"x")
    if order[0] == "client":
        other.close()
        for _ in range(2):
            with pytest.raises(LeftOpenError, match="log 'a', so its ledger stays open: what was acknowledged is safe, and the next"):
                writer.close()
    else:
        writer.close()
        other.close()
        writer.close()
    told = "the client was closed before the writer of log a, so its ledger stays open: the next writer, or `bk log release a`, closes it"
    assert (told in caplog.text) is (order[0] == "client") is bool(read_ledger_list(client, "a").live_segments)
    LogWriter.open(client, "a").close()
    assert contents(client) == [b"x"]


def test_callbacks_may_append_but_not_wait(client: bk_core.BookKeeper) -> None:
    seen: Future[Any] = Future()

    def again(_done: Future[Position]) -> None:
        try:
            writer.append(b"blocking")
        except BlockingCallError:
            writer.append_future(b"second").add_done_callback(lambda done: seen.set_result(done.result()))

    with LogWriter.open(client, "a") as writer:
        first = writer.append_future(b"first")
        first.add_done_callback(again)
        assert seen.result(30) == Position(0, 1)
    assert contents(client) == [b"first", b"second"]


def test_callbacks_cannot_wait_for_a_future(client: bk_core.BookKeeper) -> None:
    """Whichever thread brings the outcome: the next one would come by the same."""
    seen: Future[type[BaseException]] = Future()

    def callback(_done: Future[Position]) -> None:
        try:
            writer.append_future(b"second").result(60)
        except BaseException as error:
            seen.set_result(type(error))

    with LogWriter.open(client, "a") as writer:
        with writer._lock:  # no outcome before the callback is there
            first = writer.append_future(b"first")
            first.add_done_callback(callback)
        assert seen.result(30) is BlockingCallError
    assert contents(client) == [b"first", b"second"]


def test_threads_may_share_a_writer(client: bk_core.BookKeeper) -> None:
    """Each thread's entries are in its own order, and every one is where its future says, across rolls."""
    with LogWriter.open(client, "a", roll_max_entries=40) as writer, ThreadPoolExecutor(4) as threads:

        def write(who: int) -> list[tuple[bytes, Position]]:
            futures = [(b"%d %d" % (who, n), writer.append_future(b"%d %d" % (who, n))) for n in range(100)]
            return [(payload, future.result(60)) for payload, future in futures]

        told = [list(written) for written in threads.map(write, range(4))]
    with LogReader(client, "a") as reader:
        where = {p: Position(r.segment.seq, r.first_entry_id + i) for r in reader.read() for i, p in enumerate(r.payloads())}
    assert len(where) == 400 and all(where[payload] == position for written in told for payload, position in written)
    assert all([position for _, position in written] == sorted(position for _, position in written) for written in told)
    assert len(segments(client)) >= 2


# --- rolling and memory --------------------------------------------------------------------------------------------------


def await_segments(client: bk_core.BookKeeper, count: int) -> None:
    """Until the list has so many segments of which all but the last have an end."""
    changed = threading.Event()
    watch = client.store.watch("logs/a", changed.set)
    try:
        while True:
            listed = read_ledger_list(client, "a").segments
            if len(listed) >= count and not any(segment.live for segment in listed[:-1]):
                return
            assert changed.wait(30)
            changed.clear()
    finally:
        watch.cancel()


@pytest.mark.parametrize("limit", [{"roll_max_bytes": 10}, {"roll_max_entries": 2}, {"roll_max_s": 0.05}])
def test_a_writer_rolls_by_itself(client: bk_core.BookKeeper, limit: dict[str, Any]) -> None:
    """A ledger is rolled by bytes, by entries, and by age even if nobody writes; without entries there is no roll."""
    never = {"roll_max_bytes": None, "roll_max_entries": None, "roll_max_s": None}
    with LogWriter.open(client, "a", **{**never, **limit}) as writer:
        writer.append_run(*run_of(b"12345", b"67890"))
        await_segments(client, 2)
        writer.append(b"next")
    assert segments(client)[0] == 1
    assert contents(client) == [b"12345", b"67890", b"next"]


def test_below_its_limits_a_writer_does_not_roll(client: bk_core.BookKeeper) -> None:
    with LogWriter.open(client, "a", roll_max_bytes=11, roll_max_entries=3, roll_max_s=3600) as writer:
        writer.append_run(*run_of(b"12345", b"67890"))
    assert segments(client) == [1]


def test_memory_is_bounded_and_waiting_ends(client: bk_core.BookKeeper) -> None:
    """Back-pressure: a run waits until others are acknowledged; one alone may be larger than the bound."""
    with LogWriter.open(client, "a", outstanding_bytes_max=1000) as writer:
        peak = 0
        futures = []
        for n in range(200):
            futures.append(writer.append_future(b"%0300d" % n))
            peak = max(peak, writer._window.bytes)
        futures.append(writer.append_future(bytes(5000)))
        assert [future.result(30) for future in futures] == [Position(0, n) for n in range(201)]
        assert peak <= 1000 and writer._window.bytes == 0


def test_no_room_is_an_error_in_the_end(uri: str, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the run that found no room is written."""
    with bk_core.connect(uri, limits=LIMITS, operation_timeout_s=0.3) as impatient:
        writer = LogWriter.open(impatient, "a", outstanding_bytes_max=10)
        held: list[tuple[Any, ...]] = []
        handle = writer._works.handles[writer.ledger_id]
        monkeypatch.setattr(handle, "append_run_future", lambda *run: held.append(run) or Future())  # bookies that answer nothing
        waiting = writer.append_future(b"0123456789")
        with pytest.raises(OperationTimeoutError, match="10 bytes stayed unacknowledged for .* s.*; this run was not appended"):
            writer.append_future(b"x")
        assert len(held) == 1
        writer.abandon()
        with pytest.raises(ClientClosedError, match="may or may not be in the log"):
            waiting.result(30)


def threads_of(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(f"bookkeeper-log-{name}")]


@pytest.mark.parametrize("how", ["close", "abandon", "drop"])
def test_a_writer_has_two_threads_until_it_ends(client: bk_core.BookKeeper, how: str) -> None:
    """Both from the beginning, because a process that ends starts no more of them."""
    writer = LogWriter.open(client, "a")
    threads = threads_of("a")
    assert len(threads) == 2
    writer.append(b"x")
    assert set(threads) == set(threads_of("a"))
    if how == "drop":
        del writer
        deadline = time.monotonic() + 30
        while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
            gc.collect()  # the thread that made the writer may still have it
            threads[0].join(0.05)
    else:
        getattr(writer, how)()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


def test_closing_the_client_ends_the_writer(uri: str, client: bk_core.BookKeeper) -> None:
    """Appends on their way fail; no thread stays."""
    other = bk_core.connect(uri, limits=LIMITS)
    writer = LogWriter.open(other, "a")
    writer.append(b"x")
    other.close()
    with pytest.raises(ClientClosedError):
        writer.append(b"y")
    with pytest.raises(ClientClosedError, match="nothing was written"):
        writer.append(b"z")
    writer._worker.join(30)
    assert not threads_of("a")
    LogWriter.open(client, "a").close()
    assert contents(client) == [b"x"]


def test_a_log_that_needs_more_bookies_than_there_are_is_named_with_what_changes_it(client: bk_core.BookKeeper) -> None:
    log = client.create_log("wide", ensemble_size=9)
    with pytest.raises(NotEnoughBookiesError) as caught:
        log.writer()
    there = len(client.bookies().writable)
    assert str(caught.value.args[0]).startswith(f"log 'wide': a ledger with ensemble size 9 needs 9 writable bookies, {there} are")
    how = "The ensemble size of this log is changed by log.set(ensemble_size=...) or `bk log set wide --ensemble-size N`"
    assert str(caught.value.args[0]).endswith(how)
    assert intents_of(client, "wide") == {} and list(client.list_ledgers()) == []
    log.set(ensemble_size=3)
    with log.writer() as writer:
        writer.append(b"0")
