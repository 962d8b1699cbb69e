"""Work on threads of our own: pools, the thread with timers, and loops that take turns."""

from __future__ import annotations

import concurrent.futures
import concurrent.futures.thread
import os
import sys
import threading
import time
from queue import SimpleQueue

import pytest

from bk_core import background
from bk_core.background import WHEN_WOKEN, BackgroundLoop, Worker, WorkerPool
from bk_core.errors import ClientClosedError
from bk_core.threads import Flag, is_own


def running(name: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(name)]


# --- pools ------------------------------------------------------------------------------------------------------------------


def test_tasks_run_at_the_same_time_up_to_the_bound() -> None:
    pool = WorkerPool("test", 3)
    both = threading.Barrier(3)
    assert [future.result(30) for future in [pool.call(lambda: both.wait(30)) for _ in range(3)]]
    assert len(pool._threads) == 3
    pool.close()
    assert not running("test-")


def test_a_pool_goes_on_after_a_task_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    pool = WorkerPool("test")
    pool.submit(lambda: {}["missing"])
    pool.submit(sys.exit)
    with pytest.raises(ZeroDivisionError):
        pool.call(lambda: 1 // 0).result(30)
    assert "test-0: a task failed" in caplog.text
    pool.close()


def test_a_closed_pool_says_so_and_may_be_closed_by_its_own_task() -> None:
    pool = WorkerPool("test", 2)
    pool.call(pool.close).result(30)
    with pytest.raises(ClientClosedError, match="test have been ended"):
        pool.submit(print)
    pool.close()
    assert not running("test-")


def test_a_pool_that_is_closed_tells_who_waits_for_what_was_not_begun() -> None:
    pool = WorkerPool("test")
    begun, go_on = Flag(), Flag()
    at_work = pool.call(lambda: begun.set() or go_on.wait(30))
    dropped = [pool.call(int) for _ in range(3)]
    assert begun.wait(30)
    pool.close(0.0)  # does not wait for the thread, which is at work still
    for future in dropped:
        assert isinstance(future.exception(30), ClientClosedError) and not go_on.is_set()
    go_on.set()
    assert at_work.result(30) is True
    pool.close()
    assert not running("test-")


def test_a_pool_that_finishes_drops_nothing() -> None:
    pool, go_on = WorkerPool("test", 2), Flag()
    done = [pool.call(lambda: go_on.wait(30)) for _ in range(5)]
    pool.close(0.0, finish=True)
    go_on.set()
    assert [future.result(30) for future in done] == [True] * 5
    pool.close()


def test_pools_work_where_executors_do_not() -> None:
    """``concurrent.futures`` closes its executors at the end of the main thread: a flag that this sets for a moment."""
    module = concurrent.futures.thread
    pool, executor = WorkerPool("test"), concurrent.futures.ThreadPoolExecutor(1)
    module._shutdown = True
    try:
        with pytest.raises(RuntimeError):
            executor.submit(int)
        assert pool.call(lambda: 7).result(30) == 7
    finally:
        module._shutdown = False
    executor.shutdown()
    pool.close()


# --- the thread with timers ---------------------------------------------------------------------------------------------------


def test_a_task_that_fails_does_not_end_the_worker(caplog: pytest.LogCaptureFixture) -> None:
    worker, done = Worker("w"), threading.Event()
    worker.submit(lambda: [][0])
    worker.submit(sys.exit)
    worker.later("timer", 0.0, done.set)
    assert done.wait(30) and "w: a task failed" in caplog.text
    worker.close()
    worker.join(30)
    assert not running("w")


def test_a_worker_does_what_was_submitted_before_it_ends() -> None:
    worker, go_on, done = Worker("w"), Flag(), []
    worker.submit(lambda: go_on.wait(30))
    worker.submit(lambda: done.append(1))
    worker.close()
    worker.join(0.01)
    assert running("w") and not done
    go_on.set()
    worker.join(30)
    assert done == [1] and not running("w")


def test_a_task_that_is_submitted_behind_the_end_is_dropped_without_a_word() -> None:
    """While the thread is at what came before, it is run as well."""
    worker, go_on, done = Worker("w"), Flag(), []
    worker.submit(lambda: go_on.wait(30))
    worker.close()
    worker.submit(lambda: done.append("in time"))
    go_on.set()
    worker.join(30)
    assert done == ["in time"] and not running("w")
    worker.submit(lambda: done.append("late"))
    worker.later("late", 0.0, lambda: done.append("later"))
    assert done == ["in time"] and not running("w")


def test_who_is_on_the_thread_does_not_wait_for_its_end() -> None:
    worker, told = Worker("w"), SimpleQueue[bool]()
    worker.close()
    other = Worker("w-other")
    other.submit(lambda: (other.join(), told.put(True)))
    assert told.get(timeout=5)
    other.close()
    other.join(30)
    worker.join(30)  # its thread may take a moment to end
    assert not running("w")


# --- loops that take turns ------------------------------------------------------------------------------------------------------


def test_a_loop_takes_a_turn_at_the_start_after_its_time_and_when_it_is_woken() -> None:
    turns: SimpleQueue[float] = SimpleQueue()
    waits = iter([0.05, WHEN_WOKEN, WHEN_WOKEN])
    begun = time.monotonic()

    def turn() -> float:
        turns.put(time.monotonic() - begun)
        return next(waits)

    loop = BackgroundLoop("turns", turn)
    loop.start()
    first, second = turns.get(timeout=30), turns.get(timeout=30)
    assert second - first >= 0.05 and turns.empty()
    loop.wake()
    turns.get(timeout=30)
    loop.stop()
    loop.join(30)
    assert turns.empty() and not running("turns")


def test_the_first_turn_of_a_loop_may_come_later() -> None:
    took: SimpleQueue[float] = SimpleQueue()
    loop, begun = BackgroundLoop("turns", lambda: took.put(time.monotonic())), time.monotonic()  # type: ignore[func-returns-value]
    loop.start(after_s=0.1)
    assert took.get(timeout=30) - begun >= 0.1
    loop.join(30)
    assert not running("turns")  # a turn that returned None was the last one


def test_a_wake_during_a_turn_leads_to_another_turn() -> None:
    begun, go_on, turns = Flag(), Flag(), SimpleQueue[int]()

    def turn() -> float:
        turns.put(1)
        begun.set()
        go_on.wait(30)
        return WHEN_WOKEN

    loop = BackgroundLoop("turns", turn)
    loop.start()
    assert begun.wait(30)
    turns.get(timeout=30)
    loop.wake()
    go_on.set()
    assert turns.get(timeout=30)
    loop.stop()
    loop.join(30)


def test_a_turn_that_fails_is_told_and_taken_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(background, "AGAIN_S", 0.05)
    failures, done, begun = [ZeroDivisionError("first"), SystemExit("second")], Flag(), time.monotonic()

    def turn() -> float | None:
        if failures:
            raise failures.pop(0)
        done.set()
        return None

    loop = BackgroundLoop("turns", turn)
    loop.start()
    assert done.wait(30) and time.monotonic() - begun >= 0.1
    loop.join(30)
    assert caplog.text.count("turns: a task failed") == 2 and not running("turns")


def test_a_loop_that_is_stopped_takes_no_more_turns_and_waits_for_none_under_way() -> None:
    begun, go_on, turns = Flag(), Flag(), []

    def turn() -> float:
        turns.append(1)
        begun.set()
        go_on.wait(30)
        return 0.0

    loop = BackgroundLoop("turns", turn)
    loop.start()
    assert begun.wait(30)
    loop.stop()
    loop.join(0.01)
    assert running("turns") and loop.is_stopped
    go_on.set()
    loop.join(30)
    assert turns == [1] and not running("turns")


@pytest.mark.parametrize("of_client", [False, True])
def test_a_loop_is_a_thread_of_a_client_only_if_it_says_so(of_client: bool) -> None:
    told: SimpleQueue[bool] = SimpleQueue()
    loop = BackgroundLoop("turns", lambda: told.put(is_own()), of_client=of_client)  # type: ignore[func-returns-value]
    loop.start()
    assert told.get(timeout=30) is of_client
    loop.join(30)


def test_nothing_of_this_waits_in_a_forked_child() -> None:
    """The child has none of the threads, and another thread may have held their locks at the fork."""
    loop, worker, pool = BackgroundLoop("turns", lambda: WHEN_WOKEN), Worker("w"), WorkerPool("test")
    loop.start()
    with loop._woken._monitor, worker._lock, pool._lock:
        child = os.fork()
        if not child:
            done = threading.Thread(target=_end_all, args=(loop, worker, pool), daemon=True)  # another thread: these locks are not its own
            done.start()
            done.join(10)
            os._exit(1 if done.is_alive() else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    _end_all(loop, worker, pool)
    assert not running("turns") and not running("w") and not running("test-")


def _end_all(loop: BackgroundLoop, worker: Worker, pool: WorkerPool) -> None:
    loop.wake()
    loop.stop()
    loop.join()
    worker.close()
    worker.join()
    pool.close()
