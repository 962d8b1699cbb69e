"""The reactor's order of work, and what wakes it."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import pytest

from bk_core.net.reactor import Reactor, Waker, on_reactor_thread

PATIENCE_S = 20.0


@pytest.fixture(params=["eventfd", "sockets"])
def waker_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Machines differ in what they have."""
    if request.param == "sockets":
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
        waker.wake()
    assert readable(waker)
    waker.clear()
    assert not readable(waker)
    waker.clear()
    waker.close()
    waker.wake()  # a late one wakes nobody and touches no file that is somebody else's now


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
    wakes = []
    reactor._waker.wake = lambda: wakes.append(1)  # type: ignore[method-assign]
    reactor.post(lambda: found.append("meanwhile"))
    reactor.post(done.set)
    go_on.set()
    assert done.wait(PATIENCE_S)
    del reactor._waker.wake
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
    """Of many reactors, because what other tests left behind in this process may come and go meanwhile."""
    tries = 20
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(tries):
        reactor = Reactor()
        reactor.close()
        reactor.close()
        reactor.post(lambda: None)
    assert len(os.listdir("/proc/self/fd")) < before + tries if before else True
