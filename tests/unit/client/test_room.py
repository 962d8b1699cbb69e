"""Many threads that wait for room: what they cost, in which order they are let in, and that none of them stands in another's way."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import bk_core
from bk_core.client.ledger import appending
from bk_core.client.log.lists import create_log
from bk_core.client.log.writer import LogWriter
from bk_core.errors import ClientClosedError
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.segments import LogProperties

TIMEOUT_S = 120.0
WAITING = 80


@pytest.fixture
def small(uri: str) -> Iterator[bk_core.BookKeeper]:
    """A client whose ledgers have ten unacknowledged bytes."""
    with bk_core.connect(uri, operation_timeout_s=TIMEOUT_S, limits=Limits(pending_bytes_max=10)) as bk:
        yield bk


def stalled(bk: bk_core.BookKeeper) -> threading.Event:
    """Nothing is answered until this is set."""
    busy, go_on = threading.Event(), threading.Event()
    bk._session.reactor.post(lambda: (busy.set(), go_on.wait(4 * TIMEOUT_S))[0])  # type: ignore[func-returns-value]
    assert busy.wait(TIMEOUT_S)
    return go_on


def awaited(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def counted(where: Any, name: str, counts: Counter[str]) -> None:
    """Have calls of a method counted."""
    method = getattr(where, name)

    def call(*arguments: Any, **named: Any) -> Any:
        counts[name] += 1
        return method(*arguments, **named)

    setattr(where, name, call)


def test_what_an_answer_costs_does_not_grow_with_those_who_wait(small: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appending, "ROOM_POLL_S", TIMEOUT_S)
    counts: Counter[str] = Counter()
    with small.create_ledger() as ledger, ThreadPoolExecutor(WAITING) as threads:
        for where, name in ((ledger, "_try"), (ledger._adds, "next_in")):
            counted(where, name, counts)
        go_on = stalled(small)
        ledger.append_future(b"x" * 10)
        waiting = [threads.submit(lambda: ledger.append(b"x" * 10)) for _ in range(WAITING)]
        awaited(lambda: len(ledger._share.line) == WAITING)
        go_on.set()
        assert sorted(one.result(TIMEOUT_S) for one in waiting) == list(range(1, WAITING + 1))
    assert counts["_try"] == WAITING + 1
    assert counts["next_in"] < 15 * WAITING  # some for each acknowledgement of each bookie, and for each call


def test_what_an_answer_of_a_log_costs_does_not_grow_with_those_who_wait(small: bk_core.BookKeeper) -> None:
    create_log(small, "a", LogProperties(entry_format="raw"))
    counts: Counter[str] = Counter()
    with LogWriter.open(small, "a", outstanding_bytes_max=10) as writer, ThreadPoolExecutor(WAITING) as threads:
        for name in ("admitted", "_has_room"):
            counted(writer._window, name, counts)
        go_on = stalled(small)
        writer.append_future(b"x" * 10)
        waiting = [threads.submit(lambda: writer.append(b"x" * 10)) for _ in range(WAITING)]
        awaited(lambda: len(writer._window.line) == WAITING)
        go_on.set()
        assert len({one.result(TIMEOUT_S) for one in waiting}) == WAITING
    assert counts["admitted"] <= 2 * WAITING + 1
    assert counts["_has_room"] < 15 * WAITING


def test_a_large_payload_does_not_starve_behind_small_ones(small: bk_core.BookKeeper) -> None:
    with small.create_ledger() as ledger, ThreadPoolExecutor(6) as threads:
        go_on = stalled(small)
        ledger.append_future(b"x" * 5)
        ledger.append_future(b"x" * 5)
        waiting = []
        for size in (10, 1, 1, 9, 1, 10):
            waiting.append(threads.submit(lambda size=size: ledger.append(b"x" * size)))
            awaited(lambda: len(ledger._share.line) == len(waiting))
        go_on.set()
        assert [one.result(TIMEOUT_S) for one in waiting] == list(range(2, 8))


def test_a_large_payload_of_a_log_does_not_starve_behind_small_ones(small: bk_core.BookKeeper) -> None:
    create_log(small, "a", LogProperties(entry_format="raw"))
    with LogWriter.open(small, "a", outstanding_bytes_max=10) as writer, ThreadPoolExecutor(6) as threads:
        go_on = stalled(small)
        writer.append_future(b"x" * 10)
        waiting = []
        for size in (10, 1, 1, 9, 1, 10):
            waiting.append(threads.submit(lambda size=size: writer.append(b"x" * size)))
            awaited(lambda: len(writer._window.line) == len(waiting))
        go_on.set()
        places = [one.result(TIMEOUT_S) for one in waiting]
        assert places == sorted(places)


@pytest.mark.parametrize("kind", ["ledger", "log"])
def test_nobody_stands_behind_a_thread_that_handles_a_signal(small: bk_core.BookKeeper, kind: str) -> None:
    """The main thread is the first in line, and its handler waits for the one behind it."""
    if kind == "log":
        create_log(small, "a", LogProperties(entry_format="raw"))
    writer: Any = small.create_ledger() if kind == "ledger" else LogWriter.open(small, "a", outstanding_bytes_max=10)
    line = (lambda: writer._share.line) if kind == "ledger" else (lambda: writer._window.line)
    with writer, ThreadPoolExecutor(1) as threads:
        go_on = stalled(small)
        writer.append_future(b"x" * 10)
        behind: list[Any] = []
        heard: list[object] = []

        def handler(*_: object) -> None:
            go_on.set()
            heard.append(behind[0].result(TIMEOUT_S))

        def send() -> None:
            awaited(lambda: len(line()) == 1)
            behind.append(threads.submit(lambda: writer.append(b"x" * 10)))
            awaited(lambda: len(line()) == 2)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        before = signal.signal(signal.SIGUSR1, handler)
        sender = threading.Thread(target=send)
        try:
            sender.start()
            first = writer.append(b"x" * 10)
        finally:
            sender.join(TIMEOUT_S)
            signal.signal(signal.SIGUSR1, before)
        assert heard and heard[0] > first


def test_who_waits_is_told_that_the_ledger_was_closed(small: bk_core.BookKeeper) -> None:
    with ThreadPoolExecutor(5) as threads:
        ledger = small.create_ledger()
        go_on = stalled(small)
        ledger.append_future(b"x" * 10)
        waiting = [threads.submit(lambda: ledger.append(b"x" * 10)) for _ in range(5)]
        awaited(lambda: len(ledger._share.line) == 5)
        ledger.abandon()
        go_on.set()
        assert {type(one.exception(TIMEOUT_S)) for one in waiting} == {ClientClosedError}


def test_a_completion_callback_passes_those_who_wait_for_more(small: bk_core.BookKeeper) -> None:
    """It cannot wait, and there is room for what it appends."""
    with small.create_ledger() as ledger, ThreadPoolExecutor(1) as threads:
        go_on = stalled(small)
        first, second = ledger.append_future(b"x" * 5), ledger.append_future(b"x" * 5)
        told: list[Any] = []
        first.add_done_callback(lambda _: told.append(ledger.append_future(b"x")))
        waits = threads.submit(lambda: ledger.append(b"x" * 10))
        awaited(lambda: ledger._share.line)
        go_on.set()
        assert waits.result(TIMEOUT_S) == 3 and second.done() and told[0].result(TIMEOUT_S) == 2


def test_a_payload_of_a_run_costs_no_call(small: bk_core.BookKeeper) -> None:
    """Count the lines of Python: a run has a thousand entries."""

    def calls(count: int) -> int:
        found = 0

        def look(_frame: object, event: str, _argument: object) -> None:
            nonlocal found
            found += event == "call"

        payloads = [b""] * count
        before = sys.getprofile()
        sys.setprofile(look)
        try:
            future = ledger.append_many_future(payloads)
        finally:
            sys.setprofile(before)
        future.result(TIMEOUT_S)
        return found

    with small.create_ledger() as ledger:
        calls(1)
        assert calls(1000) < calls(1) + 100
