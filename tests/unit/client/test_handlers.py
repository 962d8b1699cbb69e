"""Handlers of signals that use what they interrupt, wherever one can strike (each third place of a long call); and threads that wait for
each other.

CPython runs handlers on top of the main thread's call, where a Python function begins and where one written in C has returned. A profile
function is called at just these points. Whatever the handler does there, it is done, or it is refused at once: it never waits for a lock of
the call beneath it, which cannot go on before the handler ends. Real signals, which strike waits too, are at the end.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest

import bk_core
from bk_core.client.ledger.write_handle import WriteHandle
from bk_core.client.log.lists import create_log
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.errors import BlockingCallError, ClientClosedError, LedgerClosedError, OperationTimeoutError
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.segments import LogProperties
from bk_core.threads import SafeFuture, interrupted_call

POINTS_MAX = 20_000
TIMEOUT_S = 60.0  # of whatever waits for itself


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri, operation_timeout_s=TIMEOUT_S) as bk:
        yield bk


def handled(point: int, call: Callable[[], object], handler: Callable[[], object]) -> bool:
    """``call`` with ``handler`` on top of its ``point``-th point; False if it ended before."""
    left, struck = point, False

    def look(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left, struck
        if event not in ("call", "c_return") or struck:
            return
        if not left:
            struck = True
            sys.setprofile(None)
            handler()
        left -= 1

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(before)
    return struck


class Handler:
    """Does ``call``, and notes if it was refused."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.done = self.refused = 0

    def __call__(self) -> None:
        try:
            self._call()
            self.done += 1
        except BlockingCallError:
            self.refused += 1


def everywhere(call: Callable[[], object], handler: Callable[[], object], step: int = 1) -> int:
    for point in range(0, POINTS_MAX, step):
        if not handled(point, call, handler):
            return point
    raise AssertionError("it never ends")


def run_of(count: int) -> tuple[bytes, array[int]]:
    return b"r" * count, array("q", range(count + 1))


def test_a_handler_appends_or_is_refused(client: bk_core.BookKeeper) -> None:
    """Nothing is lost, and what was refused is not there."""
    with client.create_ledger() as ledger, client.create_ledger() as other:
        same = Handler(lambda: ledger.append(b"h"))
        entries = 0
        for call in (lambda: ledger.append(b"m"), lambda: ledger.append_future(b"m").result(TIMEOUT_S), ledger.flush):
            points = everywhere(call, same)
            entries += points + 1 if call != ledger.flush else 0
        elsewhere = Handler(lambda: other.append(b"h"))
        entries += everywhere(lambda: ledger.append(b"m"), elsewhere) + 1
        assert same.done and same.refused and elsewhere.done and elsewhere.refused
        ledger.flush()
        assert ledger.last_add_confirmed == entries + same.done - 1
        assert other.last_add_confirmed == elsewhere.done - 1


def test_what_does_not_wait_is_never_refused(client: bk_core.BookKeeper) -> None:
    """Outside of a run in pieces, where it would have to wait for its turn."""
    with client.create_ledger() as ledger:
        futures: list[Any] = []
        handler = Handler(lambda: futures.append(ledger.append_future(b"h")))
        entries = everywhere(lambda: ledger.append(b"m"), handler) + 1
        assert not handler.refused and len({future.result(TIMEOUT_S) for future in futures}) == len(futures) == handler.done
        assert ledger.last_add_confirmed == entries + handler.done - 1


def test_a_handler_never_comes_between_the_pieces_of_a_run(client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        single = Handler(lambda: ledger.append_future(b"h"))
        long = Handler(lambda: ledger.append_run_future(*run_of(2100)))
        for handler in (single, long):
            everywhere(lambda: ledger.append_run_future(*run_of(2500)), handler, step=7)
            assert handler.done and handler.refused
    with client.open_ledger(ledger.ledger_id) as reader:
        found = b"".join(reader.read(0, reader.last_add_confirmed))
    assert {len(runs) % 100 for runs in found.split(b"h")} == {0} and found.count(b"h") == single.done


def test_a_handler_closes_or_is_refused(client: bk_core.BookKeeper) -> None:
    handlers: list[Handler] = []

    def call() -> None:
        ledger = client.create_ledger()
        handlers.append(Handler(ledger.close))
        try:
            everything(ledger)
        except (ClientClosedError, LedgerClosedError):  # the latter of an append that had begun
            assert handlers[-1].done
        try:
            ledger.close()
        except LedgerClosedError:  # nobody has asked how ``append_future`` ended
            assert handlers[-1].done

    def everything(ledger: WriteHandle) -> None:
        ledger.append(b"m")
        ledger.append_future(b"m")
        ledger.flush()

    def handler() -> None:
        if handlers:
            handlers[-1]()

    everywhere(call, handler, step=3)
    assert sum(one.done for one in handlers) and sum(one.refused for one in handlers)


def test_a_handler_reads_or_is_refused(client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        ledger.append_many([b"x"] * 50)
        ledger.append(b"x")  # it tells of those before it
        with client.open_ledger(ledger.ledger_id) as reader:
            handler = Handler(lambda: reader.read(0, 49))
            for call in (lambda: reader.read(0, 49), lambda: reader.wait_for(49, TIMEOUT_S), reader.read_last_add_confirmed):
                everywhere(call, handler, step=3)
            assert handler.done and handler.refused
            append = Handler(lambda: ledger.append(b"h"))
            everywhere(lambda: reader.read(0, 49), append, step=3)
            assert append.done and append.refused


def test_a_handler_appends_to_a_log_or_is_refused(client: bk_core.BookKeeper) -> None:
    create_log(client, "a", LogProperties(entry_format="raw"))
    with LogWriter.open(client, "a") as writer:
        handler = Handler(lambda: writer.append(b"h"))
        entries = everywhere(lambda: writer.append(b"m"), handler) + 1
        assert handler.done and handler.refused
        futures: list[Any] = []
        easy = Handler(lambda: futures.append(writer.append_future(b"h")))
        entries += everywhere(lambda: writer.append(b"m"), easy) + 1
        assert easy.done and not easy.refused
        everywhere(lambda: writer.position, handler)
        for close in (writer.roll, writer.close):
            everywhere(close, handler_of_the_end(writer, handler), step=11)
    with LogReader(client, "a") as reader:
        found = [payload for run in reader.read() for payload in run.payloads()]
    assert found.count(b"m") == entries and found.count(b"h") == handler.done + easy.done


def handler_of_the_end(writer: LogWriter, handler: Handler) -> Callable[[], None]:
    def end() -> None:
        try:
            handler()
        except ClientClosedError:
            assert writer._closing is not None

    return end


def test_a_refusal_says_what_to_do(client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        said: list[BlockingCallError] = []

        def append() -> None:
            try:
                ledger.append(b"h")
            except BlockingCallError as error:
                said.append(error)

        everywhere(lambda: ledger.append(b"m"), append)
        assert "a handler of a signal (or a finalizer) that interrupted" in str(said[0])
        assert "let it set a flag, raise, or start a thread" in str(said[0])
    assert not interrupted_call()


def test_callbacks_of_a_future_are_called_once(uri: str) -> None:
    """Added while its outcome comes, by whichever thread."""
    for _ in range(200):
        future: SafeFuture[int] = SafeFuture()
        heard: list[int] = []
        adding = threading.Thread(target=lambda: [future.add_done_callback(lambda _, n=n: heard.append(n)) for n in range(50)])  # noqa: B023
        adding.start()
        future.set_result(1)
        adding.join(TIMEOUT_S)
        assert sorted(heard) == list(range(50))


# --- threads ------------------------------------------------------------------------------------------------------------


def stalled(bk: bk_core.BookKeeper) -> threading.Event:
    """Nothing is answered until this is set."""
    busy, go_on = threading.Event(), threading.Event()
    bk._session.reactor.post(lambda: (busy.set(), go_on.wait(4 * TIMEOUT_S))[0])  # type: ignore[func-returns-value]
    assert busy.wait(TIMEOUT_S)
    return go_on


@pytest.mark.parametrize("size", [1, 1500])
def test_the_timeout_counts_from_the_call_for_every_thread(uri: str, size: int) -> None:
    """One after the other they would take as many timeouts as there are threads."""
    timeout_s, threads_ = 1.0, 60
    with bk_core.connect(uri, operation_timeout_s=timeout_s, limits=Limits(pending_bytes_max=10)) as bk:
        with bk.create_ledger() as ledger, ThreadPoolExecutor(threads_) as threads:
            go_on = stalled(bk)
            try:
                first = ledger.append_future(b"x" * 20)
                started = time.monotonic()
                waiting = [threads.submit(lambda: ledger.append_run_future(*run_of(size))) for _ in range(threads_)]
                errors = [one.exception(TIMEOUT_S * 3) for one in waiting]
                took = time.monotonic() - started
            finally:
                go_on.set()
            assert first.result(TIMEOUT_S) == 0
        assert [type(error) for error in errors] == [OperationTimeoutError] * threads_
        assert took < 30


def test_a_flush_waits_for_nothing_that_came_after_it(uri: str) -> None:
    """Entry 5 is not acknowledged before entries 1 to 4, which nobody appends as long as the flush waits."""
    with bk_core.connect(uri, operation_timeout_s=TIMEOUT_S) as bk:
        with bk.create_ledger(caller_ids=True) as ledger, ThreadPoolExecutor(2) as threads:
            go_on = stalled(bk)
            first = ledger.append_future(b"x", entry_id=0)
            flush = threads.submit(ledger.flush)
            deadline = time.monotonic() + TIMEOUT_S
            while not ledger._answered.is_awaited and time.monotonic() < deadline:
                time.sleep(0.001)
            later = ledger.append_future(b"x", entry_id=5)
            go_on.set()
            flush.result(2 * TIMEOUT_S)
            assert first.done() and not later.done()
            second = threads.submit(ledger.flush)  # what an earlier one did not wait for is waited for
            for entry_id in range(1, 5):
                ledger.append_future(b"x", entry_id=entry_id)
            second.result(2 * TIMEOUT_S)
            assert later.done()


# --- real signals -------------------------------------------------------------------------------------------------------


def test_a_handler_that_strikes_a_wait_works_on(client: bk_core.BookKeeper) -> None:
    """The usual case: the main thread waits for an acknowledgement, and holds nothing."""
    with client.create_ledger() as ledger, client.create_ledger() as other:
        go_on = stalled(client)
        future = ledger.append_future(b"m")
        heard: list[int] = []

        def handler(*_: object) -> None:
            go_on.set()
            heard.extend([ledger.append(b"h"), other.append(b"h")])
            ledger.flush()

        def send() -> None:
            deadline = time.monotonic() + TIMEOUT_S
            while not future._condition.is_awaited and time.monotonic() < deadline:  # type: ignore[attr-defined]
                time.sleep(0.001)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, handler)
        sender = threading.Thread(target=send)
        try:
            sender.start()
            assert future.result(TIMEOUT_S) == 0
        finally:
            sender.join(TIMEOUT_S)
            signal.signal(signal.SIGUSR1, before)
        assert heard == [1, 0]


def test_a_handler_on_top_of_a_run_that_waits_for_room(uri: str) -> None:
    """It is refused where it would come between the pieces; elsewhere it is done."""
    limits = Limits(unretired_entries_max=1500)
    with (
        bk_core.connect(uri, operation_timeout_s=TIMEOUT_S, limits=limits) as bk,
        bk.create_ledger() as ledger,
        bk.create_ledger() as other,
    ):
        go_on = stalled(bk)
        heard: list[object] = []

        def handler(*_: object) -> None:
            try:
                ledger.append_future(b"h")
            except BlockingCallError as error:
                heard.append(type(error))
            go_on.set()
            heard.append(other.append(b"h"))

        def send() -> None:
            deadline = time.monotonic() + TIMEOUT_S
            while not ledger._share.line and time.monotonic() < deadline:
                time.sleep(0.001)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, handler)
        sender = threading.Thread(target=send)
        try:
            sender.start()
            assert ledger.append_run(*run_of(6000)) == 5999
        finally:
            sender.join(TIMEOUT_S)
            signal.signal(signal.SIGUSR1, before)
        assert heard == [BlockingCallError, 0]


def test_a_wait_ends_in_time_though_a_handler_outlasts_it(client: bk_core.BookKeeper) -> None:
    """A queue's own wait would go on for ever then: it takes the time that is left, which is below zero, for no limit."""
    rescued = threading.Event()
    with client.create_ledger() as ledger, client.open_ledger(ledger.ledger_id) as reader:
        ledger.append(b"first")

        def rescue() -> None:
            rescued.set()
            ledger.append_many([b"x"] * 3)

        timer = threading.Timer(TIMEOUT_S, rescue)
        before = signal.signal(signal.SIGALRM, lambda *_: threading.Event().wait(0.5))
        try:
            timer.start()
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            assert not reader.wait_for(2, timeout_s=0.4)
            assert not rescued.is_set()
        finally:
            timer.cancel()
            signal.signal(signal.SIGALRM, before)
