"""Writing a log exclusively, against bookies on sockets in this process: the API, rolling, back-pressure, the outcomes of requests."""

from __future__ import annotations

import gc
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import bk_core
from bk_core.client.log.driver import LeaderWorks, append_outcome
from bk_core.client.log.history import read_log, update_ledger_list
from bk_core.client.log.intents import intents_of
from bk_core.client.log.janitor import delete_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.parts import Call, Payloads, Worker
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogSpan, LogWriter
from bk_core.errors import (
    BkError,
    BlockingCallError,
    ClientClosedError,
    ClusterChangedError,
    InvalidArgumentError,
    LedgerFencedError,
    LogDataLossError,
    LogTakenOverError,
    MetadataConflictError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NoClusterError,
    NoNodeError,
    NoSuchLedgerError,
    NoSuchLogError,
    NotEnoughBookiesError,
    OperationTimeoutError,
    RecoveryFailedError,
    VersionConflictError,
    WriteFailedError,
    WrongPasswordError,
)
from bk_core.protocol.events import Outcome
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.effects import CheckLedger, CloseLedger, CreateLedger, DeleteLedger, ReadList, RecoverLedger, WriteList
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties

LIMITS = Limits(explicit_lac_ns=5_000_000)
RAW = LogProperties(entry_format="raw")


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri, limits=LIMITS) as bk:
        create_log(bk, "a", RAW)
        yield bk


class Store:
    """A store with another ``read`` or ``write``; tests put it between a client's logs and its store."""

    def __init__(self, store: Any, **methods: Any) -> None:
        self._store = store
        self.__dict__.update(methods)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def run_of(*payloads: bytes) -> tuple[bytes, array[int]]:
    offsets = array("q", [0])
    for payload in payloads:
        offsets.append(offsets[-1] + len(payload))
    return b"".join(payloads), offsets


def contents(client: Any, name: str = "a") -> list[bytes]:
    with LogReader(client, name) as reader:
        return [payload for run in reader.read() for payload in run.payloads()]


def segments(client: Any) -> list[int | None]:
    return [segment.last_entry_id for segment in read_log(client, "a").segments()]


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
        writer._worker.wait_ended(30)
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
    """By bytes, by entries, and by age even if nobody writes; without entries there is no roll."""
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
        with pytest.raises(OperationTimeoutError, match="10 bytes stayed unacknowledged; this run was not appended"):
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


def test_a_task_that_fails_does_not_end_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    worker, done = Worker("w"), threading.Event()
    worker.submit(lambda: [][0])
    worker.submit(sys.exit)
    worker.later("timer", 0.0, done.set)
    assert done.wait(30) and "a step failed" in caplog.text
    worker.close()
    worker.wait_ended(30)


# --- taken over ----------------------------------------------------------------------------------------------------------


def test_a_writer_that_was_taken_over_says_so_on_every_call(client: bk_core.BookKeeper) -> None:
    """LOG-8, LOG-10."""
    first = LogWriter.open(client, "a")
    first.append(b"one")
    second = LogWriter.open(client, "a")
    with pytest.raises(LogTakenOverError, match="may or may not be in the log"):
        first.append(b"lost")
    for call in (lambda: first.append(b"x"), first.roll, lambda: first.append_run_future(*run_of(b"x"))):
        with pytest.raises(LogTakenOverError, match="nothing was written"):
            call()
    first.close()
    second.append(b"two")
    second.close()
    assert contents(client) == [b"one", b"two"]


@pytest.mark.parametrize("known", [True, False])
def test_leaving_the_block_tells_that_an_append_failed(client: bk_core.BookKeeper, known: bool) -> None:
    """Whether it fails before the end of the block or while the writer is being closed."""
    failed = threading.Event()
    with pytest.raises(LogTakenOverError), LogWriter.open(client, "a") as first:
        first.append(b"one")
        second = LogWriter.open(client, "a")
        second.append(b"two")
        first.append_future(b"lost").add_done_callback(lambda _: failed.set())
        assert not known or failed.wait(30)
    second.close()
    assert contents(client) == [b"one", b"two"]


@pytest.mark.parametrize(
    "told", [lambda writer: writer.append(b"lost"), lambda writer: [writer.append_future(b"lost") for _ in range(9)][4].result(30)]
)
def test_leaving_the_block_tells_nothing_twice(client: bk_core.BookKeeper, told: Callable[[LogWriter], object]) -> None:
    with LogWriter.open(client, "a") as first:
        first.append(b"one")
        with LogWriter.open(client, "a") as second:
            second.append(b"two")
        with pytest.raises(LogTakenOverError):
            told(first)


def test_closing_tells_once_that_an_append_failed(client: bk_core.BookKeeper) -> None:
    first = LogWriter.open(client, "a")
    first.append(b"one")
    with LogWriter.open(client, "a") as second:
        second.append(b"two")
    failed = threading.Event()
    first.append_future(b"lost").add_done_callback(lambda _: failed.set())
    assert failed.wait(30)
    with pytest.raises(LogTakenOverError):
        first.close()
    first.close()
    assert contents(client) == [b"one", b"two"]


def test_what_is_abandoned_on_purpose_is_no_loss(client: bk_core.BookKeeper) -> None:
    with LogWriter.open(client, "a") as writer:
        writer.append_future(b"x")
        writer.abandon()


def test_a_take_over_shows_when_an_idle_writer_rolls(client: bk_core.BookKeeper) -> None:
    """LOG-6: by the conflict of the list."""
    first = LogWriter.open(client, "a")
    with LogWriter.open(client, "a"):
        with pytest.raises(LogTakenOverError, match="another leader has put a ledger on the list"):
            first.roll()
        with pytest.raises(LogTakenOverError, match="nothing was written"):
            first.append(b"x")


def test_a_recreated_log_is_another_log(client: bk_core.BookKeeper) -> None:
    """Even if the versions of both are the same: the old writer must not overwrite the new list."""
    writer = LogWriter.open(client, "a")
    delete_log(client, "a")
    create_log(client, "a", RAW)
    with LogWriter.open(client, "a") as newer:
        newer.append(b"new")
        with pytest.raises(NoSuchLogError):
            writer.roll()
    assert contents(client) == [b"new"]


def test_who_trims_does_not_take_over(client: bk_core.BookKeeper) -> None:
    from bk_core.client.log.janitor import trim_log

    with LogWriter.open(client, "a") as writer:
        writer.append(b"one")
        writer.roll()
        assert len(trim_log(client, "a", before=Position(1))) == 1
        writer.append(b"two")
        writer.roll()
    assert contents(client) == [b"two"]


def test_the_election_is_asked_between_rounds(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-4: others win every round; when the election is lost the attempt ends, and so it does when it cannot be asked."""
    _others_win(client, monkeypatch)
    asked: list[bool] = []

    def leading() -> bool:
        asked.append(len(asked) < 1)
        return asked[-1]

    with pytest.raises(LogTakenOverError, match="the election was lost"):
        LogWriter.open(client, "a", still_leading=leading)
    assert asked == [True, False]

    def broken() -> bool:
        raise OSError("unreachable")

    with pytest.raises(LogTakenOverError, match="the election was lost"):
        LogWriter.open(client, "a", still_leading=broken)
    with pytest.raises(LogTakenOverError, match="other leaders won 2 rounds in a row"):
        LogWriter.open(client, "a", attempts=2)
    assert len(read_ledger_list(client, "a").segments) == 5 and intents_of(client, "a") == {}


def _others_win(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else lists a closed ledger before every compare-and-set of a leader."""
    honest = client.store
    rival = bk_core.BookKeeper(client.config, honest)

    def race(path: str, data: bytes, version: int) -> int:
        with rival.create_ledger(custom={"log": b"a"}) as other:
            update_ledger_list(rival, "a", lambda listed: listed.add_live_segment(other.ledger_id, 1))
        update_ledger_list(rival, "a", lambda listed: listed.close_live(other.ledger_id, -1, 0, 1))
        return honest.write(path, data, version)

    monkeypatch.setattr(client, "store", Store(honest, write=race))


# --- outcomes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
def test_a_lost_answer_is_asked_for_again_with_the_identical_bytes(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """META-12, LOG-3: taking over and rolling; our ledger is listed once, whether or not the lost request was applied."""
    write = client.store.write
    requests: list[tuple[bytes, int]] = []

    def lossy(path: str, data: bytes, version: int) -> int:
        first = (data, version) not in requests
        requests.append((data, version))
        if first:
            if applied:
                write(path, data, version)
            raise MetadataOutcomeUnknownError("connection lost")
        return write(path, data, version)

    monkeypatch.setattr(client, "store", Store(client.store, write=lossy))
    writer = LogWriter.open(client, "a")
    assert requests[0] == requests[1]
    writer.append(b"one")
    writer.roll()
    writer.append(b"two")
    writer.close()
    assert segments(client) == [0, 0] and contents(client) == [b"one", b"two"]
    assert len(list(client.list_ledgers())) == 2


def test_a_missing_ledger_is_an_alarm(client: bk_core.BookKeeper) -> None:
    """LOG-5."""
    client.delete_ledger(LogWriter.open(client, "a").ledger_id, even_if_listed=True)
    with pytest.raises(LogDataLossError, match="does not exist"):
        LogWriter.open(client, "a")


def test_a_wrong_password_is_told_at_once(client: bk_core.BookKeeper) -> None:
    LogWriter.open(client, "a", password=b"right").abandon()
    with pytest.raises(WrongPasswordError):
        LogWriter.open(client, "a", password=b"wrong")
    LogWriter.open(client, "a", password=b"right").close()


def test_too_few_bookies_are_told_at_once(uri: str, client: bk_core.BookKeeper) -> None:
    """Nothing stays: neither a ledger, nor an intent."""
    create_log(client, "wide", replace(RAW, ensemble_size=5, write_quorum_size=3))
    with pytest.raises(NotEnoughBookiesError):
        LogWriter.open(client, "wide")
    assert intents_of(client, "wide") == {} and list(client.list_ledgers()) == []


def test_a_take_over_that_gets_nowhere_says_why(uri: str, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    with bk_core.connect(uri, limits=LIMITS, operation_timeout_s=0.5) as impatient:

        def away(path: str) -> Any:
            raise MetadataUnavailableError("no connection")

        monkeypatch.setattr(impatient, "store", Store(impatient.store, read_here=away))
        with pytest.raises(OperationTimeoutError, match=r"taking over log 'a' did not finish within 0.5 s: .*no connection"):
            LogWriter.open(impatient, "a")


def test_a_roll_without_bookies_changes_nothing(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-6: entries go on to the ledger in use."""
    with LogWriter.open(client, "a", roll_max_entries=1) as writer:

        def too_few(**_settings: Any) -> Any:
            raise NotEnoughBookiesError("only 2 bookies")

        with monkeypatch.context() as patch:
            patch.setattr(client, "create_ledger", too_few)
            writer.append(b"one")  # and a roll that does not come off
            with pytest.raises(NotEnoughBookiesError):
                writer.roll()
            assert writer.append(b"two") == Position(0, 1)
        writer.roll()
        assert writer.append(b"three") == Position(1, 0)


def test_a_run_that_a_ledger_did_not_take_leaves_its_ids_to_nobody(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-8: what follows a refused run must not be taken for it; all goes into the next ledger, in order."""
    with LogWriter.open(client, "a") as writer:
        handle = writer._works.handles[writer.ledger_id]
        writer.append(b"zero")
        taken = handle.append_run_future
        calls: list[int] = []

        def refuse_first(*run: Any) -> Future[int]:
            calls.append(1)
            if len(calls) == 1:
                raise OperationTimeoutError("no room")
            return taken(*run)

        monkeypatch.setattr(handle, "append_run_future", refuse_first)
        futures = [writer.append_future(b"%d" % n) for n in range(5)]
        positions = [future.result(30) for future in futures]
    assert contents(client) == [b"zero", b"0", b"1", b"2", b"3", b"4"]
    assert positions == sorted(positions) and positions[0].seq == 1


def test_ledgers_that_fail_empty_are_followed_by_pauses(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bookies that are dead and still registered: the list must not fill with empty segments as fast as ledgers can be made."""
    created, made = client.create_ledger, []

    def create(**settings: Any) -> Any:
        handle = created(**settings)
        made.append(handle.ledger_id)
        if len(made) < 4:
            monkeypatch.setattr(handle, "append_run_future", lambda *_: (_ for _ in ()).throw(NotEnoughBookiesError("dead")))
        return handle

    monkeypatch.setattr(client, "create_ledger", create)
    with LogWriter.open(client, "a") as writer:
        pauses, later = [], writer._worker.later

        def noted(key: str, after_s: float, task: Callable[[], None]) -> None:
            pauses.append((key, after_s))
            later(key, after_s / 100, task)

        monkeypatch.setattr(writer._worker, "later", noted)
        assert writer.append(b"x") == Position(3, 0)
        assert pauses == [("create again", 0.1), ("create again", 0.2), ("create again", 0.4)]
    assert segments(client) == [-1, -1, -1, 0] and contents(client) == [b"x"]


def test_closing_the_client_ends_the_writer(uri: str, client: bk_core.BookKeeper) -> None:
    """What was on its way fails; no thread stays."""
    other = bk_core.connect(uri, limits=LIMITS)
    writer = LogWriter.open(other, "a")
    writer.append(b"x")
    other.close()
    with pytest.raises(ClientClosedError):
        writer.append(b"y")
    with pytest.raises(ClientClosedError, match="nothing was written"):
        writer.append(b"z")
    writer._worker.wait_ended(30)
    assert not threads_of("a")
    LogWriter.open(client, "a").close()
    assert contents(client) == [b"x"]


WORKS: list[tuple[Any, BaseException, Outcome]] = [
    (ReadList(1), NoNodeError("x"), Outcome.NO_SUCH_LEDGER),
    (ReadList(1), MetadataUnavailableError("x"), Outcome.UNKNOWN),
    (ReadList(1), ClientClosedError("x"), Outcome.REFUSED),
    (WriteList(1, (1,), 0), VersionConflictError("x"), Outcome.CONFLICT),
    (WriteList(1, (1,), 0), MetadataOutcomeUnknownError("x"), Outcome.UNKNOWN),
    (CreateLedger(1, {}), MetadataOutcomeUnknownError("x"), Outcome.UNKNOWN),
    (CreateLedger(1, {}), NotEnoughBookiesError("x"), Outcome.REFUSED),
    (RecoverLedger(1, 2), NoSuchLedgerError("x"), Outcome.NO_SUCH_LEDGER),
    (RecoverLedger(1, 2), RecoveryFailedError("x"), Outcome.UNKNOWN),
    (RecoverLedger(1, 2), NotEnoughBookiesError("x"), Outcome.UNKNOWN),
    (RecoverLedger(1, 2), WrongPasswordError("x"), Outcome.REFUSED),
    (CloseLedger(1, 2), LedgerFencedError("x"), Outcome.CONFLICT),
    (CloseLedger(1, 2), MetadataConflictError("x"), Outcome.CONFLICT),
    (CloseLedger(1, 2), NoSuchLedgerError("x"), Outcome.NO_SUCH_LEDGER),
    (CloseLedger(1, 2), OperationTimeoutError("x"), Outcome.UNKNOWN),
    (CloseLedger(1, 2), WriteFailedError("x"), Outcome.REFUSED),
    (DeleteLedger(1, 2), MetadataOutcomeUnknownError("x"), Outcome.UNKNOWN),
]


@pytest.mark.parametrize(("work", "error", "outcome"), WORKS)
def test_outcomes_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch, work: Any, error: BaseException, outcome: Outcome) -> None:
    """The table at the top of protocol/log/effects.py."""
    client: Any = SimpleNamespace(store=SimpleNamespace(check_cluster=lambda: None))
    works = LeaderWorks(client, "a", b"", 60.0)

    def fail(_work: Any) -> Any:
        raise error

    monkeypatch.setattr(works, "_perform", fail)
    answer = works.answer(work)
    assert (answer.request, answer.outcome, answer.error, works.problem) == (1, outcome, error, error)


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(ClusterChangedError("x"), Outcome.REFUSED), (NoClusterError("x"), Outcome.REFUSED), (MetadataUnavailableError("x"), Outcome.UNKNOWN)],
)
@pytest.mark.parametrize("work", [RecoverLedger(1, 2), CheckLedger(1, 2)])
def test_a_missing_ledger_is_believed_only_of_the_same_cluster(work: Any, error: BkError, outcome: Outcome) -> None:
    """OWN-2: a cluster that was made anew knows none of the ledgers, and none of them is gone."""

    def fail(*_: Any) -> Any:
        raise error

    def missing(*_: Any) -> Any:
        raise NoSuchLedgerError("ledger 2 does not exist")

    client: Any = SimpleNamespace(store=SimpleNamespace(check_cluster=fail), ledger_metadata=missing)
    works = LeaderWorks(client, "a", b"", 60.0)
    answer = works.answer(work)
    assert (answer.outcome, answer.error, works.problem) == (outcome, error, error)


def test_bookies_are_waited_for_only_where_nothing_else_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """CreateLedger in the place of a ledger that has failed: UNKNOWN within the patience, then REFUSED."""
    client: Any = object()
    for patience_s, outcome in ((60.0, Outcome.UNKNOWN), (0.0, Outcome.REFUSED)):
        works = LeaderWorks(client, "a", b"", patience_s)
        monkeypatch.setattr(works, "_perform", lambda _work: (_ for _ in ()).throw(NotEnoughBookiesError("x")))
        assert works.answer(CreateLedger(1, {}), needed=True).outcome is outcome


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Outcome.OK),
        (LedgerFencedError("x"), Outcome.CONFLICT),
        (MetadataConflictError("x"), Outcome.CONFLICT),
        (NoSuchLedgerError("x"), Outcome.NO_SUCH_LEDGER),
        (NotEnoughBookiesError("x"), Outcome.UNKNOWN),
        (OperationTimeoutError("x"), Outcome.UNKNOWN),
    ],
)
def test_outcomes_of_appends(error: BkError | None, outcome: Outcome) -> None:
    assert append_outcome(error) is outcome


def test_an_end_that_cannot_be_told_is_told_later(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cached end is worth no failure of a roll that nobody asked for; the next change of the list has it."""
    with LogWriter.open(client, "a") as writer:
        writer.append(b"x")
        with monkeypatch.context() as patch:

            def fail(*_: Any) -> LedgerList:
                raise OperationTimeoutError("store away")

            patch.setattr(writer._works, "tell_end", fail)
            with pytest.raises(OperationTimeoutError, match="store away"):
                writer.roll()
        assert len(read_ledger_list(client, "a").live_segments) == 2
        writer.append(b"y")
        writer.roll()
    assert segments(client) == [0, 0, -1]


def test_a_roll_by_itself_that_could_not_tell_is_nobodys_error(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()
    with LogWriter.open(client, "a", roll_max_entries=1) as writer:
        with monkeypatch.context() as patch:

            def fail(*_: Any) -> LedgerList:
                failed.set()
                raise OperationTimeoutError("store away")

            patch.setattr(writer._works, "tell_end", fail)
            writer.append(b"x")
            assert failed.wait(30)
        writer.roll()
    assert segments(client) == [0, -1, -1]


def test_a_run_of_payloads_is_sliced_without_copying() -> None:
    run = Payloads.checked(*run_of(b"a", b"bb", b"", b"ccc"), 10, "a")
    assert (len(run), run.size, list(run)) == (4, 6, [b"a", b"bb", b"", b"ccc"])
    rest = run[1:]
    assert isinstance(rest, Payloads) and rest.data is run.data
    assert (list(rest), rest.size, list(rest[2:])) == ([b"bb", b"", b"ccc"], 5, [b"ccc"])
    assert run[-1] == b"ccc" and len(run[4:]) == 0
    with pytest.raises(IndexError):
        run[4]
