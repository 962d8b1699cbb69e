"""The reactor's order of work, and what wakes it."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from bk_core.net.reactor import RING, Reactor, Waker, on_reactor_thread

PATIENCE_S = 20.0


@pytest.fixture(params=["eventfd", "pipe"])
def waker_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Machines differ in what they have."""
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd", raising=False)
    return str(request.param)


@pytest.fixture
def reactor(waker_kind: str) -> Iterator[Reactor]:
    found = Reactor()
    yield found
    found.close()


def readable(waker: Waker) -> bool:
    return bool(select.select([waker.fileno()], [], [], 0)[0])


def test_a_waker_is_readable_until_it_is_cleared(waker_kind: str) -> None:
    waker = Waker()
    assert not readable(waker)
    for _ in range(3):
        waker.ring(RING)
    assert readable(waker)
    waker.clear()
    assert not readable(waker)
    waker.clear()
    late = waker.ring
    number = waker.fileno()
    waker.close()
    waker.ring(RING)  # wakes nobody
    assert late(RING) == len(RING)  # who was about to ring keeps the number from being somebody else's
    assert os.fstat(number)
    del late
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)


def test_a_waker_that_is_full_wakes(waker_kind: str) -> None:
    waker = Waker()
    while waker.ring(b"\xfe" + 7 * b"\xff" if waker_kind == "eventfd" and sys.byteorder == "little" else 4096 * RING) is not None:
        pass
    assert waker.ring(RING) is None or waker_kind == "eventfd"
    assert readable(waker)
    waker.close()


def test_what_is_posted_runs_in_order_and_not_here(reactor: Reactor) -> None:
    for _ in range(200):  # idle before each, so that each has to wake it
        found: list[object] = []
        done = threading.Event()
        reactor.post(lambda found=found: found.append(on_reactor_thread()))
        reactor.post(lambda found=found: found.append("second"))
        reactor.post(done.set)
        assert done.wait(PATIENCE_S)
        assert found == [True, "second"] and not on_reactor_thread()


def test_what_is_posted_meanwhile_runs_without_another_wake(reactor: Reactor) -> None:
    found: list[str] = []
    entered, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def busy() -> None:
        entered.set()
        assert go_on.wait(PATIENCE_S)

    reactor.post(busy)
    assert entered.wait(PATIENCE_S)
    wakes: list[bytes] = []
    ring = reactor._waker.ring
    reactor._waker.ring = wakes.append
    reactor.post(lambda: found.append("meanwhile"))
    reactor.post(done.set)
    go_on.set()
    assert done.wait(PATIENCE_S)
    reactor._waker.ring = ring
    assert found == ["meanwhile"] and not wakes


def test_the_end_of_a_turn_comes_behind_everything_posted_before_it(reactor: Reactor) -> None:
    found: list[str] = []
    done = threading.Event()

    def first() -> None:
        reactor.at_turn_end(lambda: found.append("end"))
        reactor.at_turn_end(lambda: reactor.at_turn_end(done.set))
        found.append("first")

    def both() -> None:
        reactor.post(first)
        reactor.post(lambda: found.append("second"))

    reactor.post(both)
    assert done.wait(PATIENCE_S)
    assert found == ["first", "second", "end"]


def test_what_fails_at_the_end_of_a_turn_stops_nothing(reactor: Reactor, caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()

    def fail() -> None:
        raise RuntimeError("on purpose")

    reactor.post(lambda: reactor.at_turn_end(fail))
    reactor.post(lambda: reactor.at_turn_end(done.set))
    assert done.wait(PATIENCE_S)
    assert "on purpose" in caplog.text


def test_closing_leaves_no_file_open(waker_kind: str) -> None:
    """Many reactors are counted, because what other tests left behind in this process may come and go meanwhile."""
    tries = 20
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(tries):
        reactor = Reactor()
        reactor.close()
        reactor.close()
        reactor.post(lambda: None)
    assert len(os.listdir("/proc/self/fd")) < before + tries if before else True


# --- interrupts and handlers of signals --------------------------------------------------------------------------------------


class Struck(KeyboardInterrupt):
    """Told apart from somebody's real one."""


def at_point(point: int, call: Callable[[], object], handler: Callable[[], object]) -> bool:
    """``call`` with ``handler`` on top of its ``point``-th point, where CPython would run one; False if it ended before."""
    left, struck = point, False

    def look(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left, struck
        if event not in ("call", "c_return") or struck or argument is sys.setprofile:
            return
        if not left:
            struck = True
            handler()
        left -= 1

    sys.setprofile(look)
    try:
        call()
    except Struck:
        pass
    finally:
        sys.setprofile(None)
    return struck


def until(holds: Callable[[], bool]) -> None:
    deadline, never = time.monotonic() + PATIENCE_S, threading.Event()
    while not holds():
        assert time.monotonic() < deadline, "nobody has woken it"
        never.wait(0.001)


def idle(reactor: Reactor) -> bool:
    """It waits, and what is posted has to wake it."""
    return not reactor._waker.awake and not reactor._posted


def test_an_interrupt_never_loses_a_wake(reactor: Reactor) -> None:
    """A posted function is called without anybody else's wake, wherever the interrupt strikes."""

    def strike() -> None:
        raise Struck

    point = 0
    until(lambda: idle(reactor))
    while at_point(point, lambda: reactor.post(lambda: None), strike):
        until(lambda: idle(reactor))
        point += 1
    assert point >= 3  # where ``post`` begins, behind the append, behind the ring


def test_a_handler_on_top_of_a_wake_may_wait_for_the_wakes_of_others(reactor: Reactor) -> None:
    def wait_for_others() -> None:
        until(lambda: not reactor._waker.awake)  # where it was rung for before, that is done
        done = threading.Event()
        threading.Thread(target=reactor.post, args=(done.set,), daemon=True).start()
        assert done.wait(PATIENCE_S), "a thread that posts waits for the handler"

    point = 0
    until(lambda: idle(reactor))
    while at_point(point, lambda: reactor.post(lambda: None), wait_for_others):
        until(lambda: idle(reactor))
        point += 1
    assert point >= 3
