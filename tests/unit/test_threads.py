"""Threads of our own: futures that an interrupt cannot wedge, and the process that something belongs to."""

from __future__ import annotations

import asyncio
import concurrent.futures
import concurrent.futures.thread
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from bk_core.threads import Flag, Monitor, SafeFuture, start_aside, wait_done

ENDING = """
import atexit, sys, bk_core
atexit.register(lambda: tidy())
from bk_core.bookie.server import EmbeddedBookie
from bk_core.metadata import open_store
store = open_store("memory://ending")
store.initialize_cluster()
bookie = EmbeddedBookie(sys.argv[1], "127.0.0.1", 0, store).start()
bk = bk_core.connect("memory://ending")
ledger = bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
ledger.append(b"x")
def tidy():
    print(ledger.close().state.name, flush=True)
"""


def test_what_a_program_gives_to_atexit_before_it_connects_still_has_its_client(tmp_path: Path) -> None:
    """Functions run last in, first out: the client's own must have been given when the package was imported."""
    done = subprocess.run([sys.executable, "-c", ENDING, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == ("CLOSED\n", "", 0)


def test_a_future_is_one_of_the_standard_library() -> None:
    done: SafeFuture[int] = SafeFuture()
    failed: SafeFuture[int] = SafeFuture()
    heard: list[object] = []
    done.add_done_callback(heard.append)
    assert not done.cancel() and done.running() and not done.done()
    with pytest.raises(TimeoutError):
        done.result(0.01)
    assert not wait_done(done, 0.01)
    timer = threading.Timer(0.05, lambda: (done.set_result(5), failed.set_exception(KeyError("x"))))
    timer.start()
    finished, waiting = concurrent.futures.wait([done, failed], timeout=30)
    assert finished == {done, failed} and not waiting
    assert done.result() == 5 and done.exception() is None and heard == [done] and wait_done(failed, 1)
    with pytest.raises(KeyError):
        failed.result(0)
    assert next(concurrent.futures.as_completed([done])) is done
    timer.join()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit, ValueError])
def test_what_a_callback_raises_ends_nothing_but_the_callback(kind: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    """Neither the callbacks behind it nor what the thread that brings the outcome has to do after it."""
    future: SafeFuture[int] = SafeFuture()
    heard: list[object] = []

    def fail(_: object) -> None:
        raise kind("of a callback")

    def bring() -> None:
        try:
            future.set_result(1)
            future.add_done_callback(fail)
            heard.append("went on")
        except BaseException as error:
            heard.append(error)

    future.add_done_callback(fail)
    future.add_done_callback(lambda done: heard.append(done.result()))
    thread = threading.Thread(target=bring)
    thread.start()
    thread.join()
    assert heard == [1, "went on"]
    assert caplog.text.count("a completion callback failed") == 2


def test_an_interrupt_in_a_callback_reaches_the_main_thread() -> None:
    future: SafeFuture[int] = SafeFuture()
    heard: list[int] = []

    def strike(_: object) -> None:
        raise KeyboardInterrupt

    future.add_done_callback(strike)
    future.add_done_callback(lambda done: heard.append(done.result()))
    with pytest.raises(KeyboardInterrupt):
        future.set_result(1)
    assert heard == [1]


def test_a_thread_beside_is_no_dummy() -> None:
    """One that Python did not start itself would stay in ``threading.enumerate`` for good once it asks who it is."""
    found: SafeFuture[threading.Thread] = SafeFuture()
    start_aside(lambda: found.set_result(threading.current_thread()), "beside")
    thread = found.result(30)
    thread.join(30)
    assert thread.name == "beside" and thread.daemon and not thread.is_alive() and thread not in threading.enumerate()


def test_a_future_may_be_awaited() -> None:
    async def waiter() -> int:
        future: SafeFuture[int] = SafeFuture()
        threading.Timer(0.01, lambda: future.set_result(6)).start()
        return await asyncio.wrap_future(future)

    assert asyncio.run(waiter()) == 6


def test_many_wait_for_one_future() -> None:
    future: SafeFuture[int] = SafeFuture()
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(future.result(30))) for _ in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.01)
    future.set_result(3)
    for thread in threads:
        thread.join(30)
    assert found == [3] * 8


def test_a_monitor_wakes_all_and_forgets_who_has_gone() -> None:
    monitor = Monitor()
    with monitor:
        first, second = monitor.ticket(), monitor.ticket()
        monitor.drop(second)
        monitor.drop(second)
        assert monitor.is_awaited
        monitor.notify_all()
    assert first.acquire(False) and not second.acquire(False) and not monitor.is_awaited
    with monitor:
        assert not monitor.wait(0.01) and not monitor.is_awaited


def test_who_waits_in_a_monitor_lets_others_in() -> None:
    monitor, said = Monitor(), []

    def say() -> None:
        with monitor:
            said.append(1)
            monitor.notify_all()

    thread = threading.Thread(target=say)
    with monitor:
        thread.start()
        assert monitor.wait_for(lambda: bool(said), 30)
        assert not monitor.wait_for(lambda: False, 0.01)
    thread.join(30)


def test_a_flag_is_an_event() -> None:
    flag = Flag()
    assert not flag.is_set() and not flag.wait(0.01)
    timer = threading.Timer(0.05, flag.set)
    timer.start()
    assert flag.wait(30) and flag.is_set() and flag.wait(0)
    flag.clear()
    assert not flag.is_set()
    timer.join()
