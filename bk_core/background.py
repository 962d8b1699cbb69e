"""Work on threads of our own: pools, a thread with timers, and a loop that takes turns.

A thread of ours has a name and is a daemon. What fails on it is logged and ends nothing. It is joined with a limit, and not at all in a
forked child, where it does not exist, nor once the interpreter is being taken down, when it stands still for ever.

The reactor and the bookie's loop serve a selector, and the threads of the bookie's storage share its condition: they are not made of these
(``bk_core/README.md``, decision 12).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from _thread import RLock
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from bk_core.errors import ClientClosedError
from bk_core.threads import Flag, Home, Monitor, SafeFuture, holds_lock, is_ending, join, mark_own

log = logging.getLogger("bk_core.threads")

T = TypeVar("T")
JOIN_S = 10.0
AGAIN_S = 1.0  # a turn that failed is taken again after this time
WHEN_WOKEN = math.inf  # what a turn returns if nothing is due


class OwnThread(threading.Thread):
    """A thread that does the tasks which ``next_task`` returns, one after the other, until that returns None. ``of_client`` says that a
    client may wait for it when it closes, so the thread itself never waits for that."""

    def __init__(self, name: str, next_task: Callable[[], Callable[[], object] | None], *, of_client: bool = True) -> None:
        super().__init__(name=name, daemon=True)
        self.home = Home()
        self._of_client = of_client
        self._next_task = next_task

    @property
    def is_current(self) -> bool:
        return threading.current_thread() is self

    def join(self, timeout: float | None = JOIN_S) -> None:
        """Wait for the end of the thread, for ``timeout`` seconds at most. The thread itself does not wait."""
        if self.home.is_here and not is_ending() and not self.is_current:
            join(self, timeout)

    def run(self) -> None:
        if self._of_client:
            mark_own()
        while (task := self._next_task()) is not None:
            try:
                task()
            except BaseException:  # a user's callback may raise SystemExit
                log.exception("%s: a task failed", self.name)
            del task  # keeps nothing of the task alive while there is nothing to do


class BackgroundLoop:
    """A thread that takes a ``turn`` when it starts, when it is woken, and when the time is over that the last turn asked for.

    A turn returns the seconds until the next one, WHEN_WOKEN if nothing is due, or None to end the loop. A wake that comes during a turn
    leads to another turn. A turn that raises is logged and taken again after AGAIN_S.
    ``of_client``: see ``OwnThread``.
    """

    def __init__(self, name: str, turn: Callable[[], float | None], *, of_client: bool = False) -> None:
        self._turn = turn
        self._due = 0.0  # monotonic seconds
        self._woken = Flag()
        self._stopped = False
        self._thread = OwnThread(name, self._next, of_client=of_client)

    def start(self, after_s: float = 0.0) -> None:
        """Begin. The first turn comes after ``after_s`` seconds. Raises RuntimeError where no more threads can be started."""
        self._due = time.monotonic() + after_s
        self._thread.start()

    @property
    def is_current(self) -> bool:
        return self._thread.is_current

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def wake(self) -> None:
        """Have a turn taken now. Any thread may call this, and a signal handler. It does not wait."""
        if self._thread.home.is_here:
            self._woken.set()

    def stop(self) -> None:
        """Take no more turns. It does not wait for the turn that is under way; ``join`` does."""
        self._stopped = True
        self.wake()

    def join(self, timeout_s: float | None = JOIN_S) -> None:
        """Wait for the end of the thread, for ``timeout_s`` seconds at most. The thread itself does not wait."""
        self._thread.join(timeout_s)

    def _next(self) -> Callable[[], object] | None:
        while not self._stopped:
            left = self._due - time.monotonic()
            if left <= 0 or self._woken.is_set():
                self._woken.clear()  # this comes before the turn, so that no wake is missed
                return self._take_turn
            self._woken.wait(left)
        return None

    def _take_turn(self) -> None:
        self._due = time.monotonic() + AGAIN_S
        wanted = self._turn()
        if wanted is None:
            self._stopped = True
        else:
            self._due = time.monotonic() + wanted


class Worker:
    """One thread for calls that block, in order, and for timers. It exists until ``close``, because a process that ends starts no more
    threads."""

    def __init__(self, name: str) -> None:
        self._lock = Monitor()
        self._tasks: deque[Callable[[], object]] = deque()
        self._timers: dict[str, tuple[float, Callable[[], object]]] = {}
        self._closed = False
        self._thread = OwnThread(name, self._next)
        self._thread.start()

    def submit(self, task: Callable[[], object]) -> None:
        """Run the task after everything submitted before.

        After ``close`` this has no effect, unless the thread is still at what was submitted before: then the task is run as well. Nobody is
        told, unlike with ``WorkerPool``: watches, timers and finalizers submit at any time, and who closes a worker has settled before what
        his callers wait for."""
        with self._lock:
            self._tasks.append(task)
            self._lock.notify_all()

    def later(self, key: str, after_s: float, task: Callable[[], object]) -> None:
        """Set the timer of this name; it replaces an earlier one."""
        with self._lock:
            self._timers[key] = (time.monotonic() + after_s, task)
            self._lock.notify_all()

    def forget_timers(self) -> None:
        with self._lock:
            self._timers.clear()
            self._lock.notify_all()

    def close(self) -> None:
        """End the thread when the submitted tasks are done; timers are not waited for. In a forked child this has no effect, because a
        thread that does not exist there may hold the lock."""
        if not self._thread.home.is_here:
            return
        with self._lock:
            self._closed = True
            self._lock.notify_all()

    def join(self, timeout_s: float | None = JOIN_S) -> None:
        """Wait for the end of the thread after ``close``, for ``timeout_s`` seconds at most. The thread itself does not wait."""
        self._thread.join(timeout_s)

    def _next(self) -> Callable[[], object] | None:
        with self._lock:
            while not self._tasks:
                if self._closed:
                    return None
                key, (due, task) = min(self._timers.items(), key=lambda item: item[1][0], default=("", (math.inf, _nothing)))
                left = due - time.monotonic()
                if left <= 0:
                    del self._timers[key]
                    return task
                del task
                self._lock.wait(left if key else None)
            return self._tasks.popleft()


def _nothing() -> None:
    """Do nothing; this is the action of a key that has no timer."""


class _Call(Generic[T]):
    """A task with a future."""

    def __init__(self, function: Callable[[], T]) -> None:
        self.future: SafeFuture[T] = SafeFuture()
        self._function = function

    def __call__(self) -> None:
        try:
            result = self._function()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class WorkerPool:
    """Up to ``threads_max`` daemon threads that run the tasks put in. They go on after the main thread, until ``close`` or the end of the
    process.

    The first thread is started at once and the others by threads of the pool, so no start can be torn by an interrupt.
    """

    def __init__(self, name: str, threads_max: int = 1) -> None:
        self._name = name
        self._threads_max = threads_max
        self._home = Home()
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = RLock()
        self._threads: list[OwnThread] = []
        self._idle = 0
        self._closed = self._dropping = False
        self._start()

    @holds_lock
    def submit(self, task: Callable[[], None]) -> None:
        """Put a task in and return at once. Raises ClientClosedError after ``close``."""
        self._home.check("pool of threads")
        with self._lock:
            if not self._closed:
                self._tasks.put(task)
                return
        raise ClientClosedError(f"the threads {self._name} have been ended")

    @property
    def is_current(self) -> bool:
        """Return True on a thread of this pool."""
        return threading.current_thread() in self._threads

    def call(self, function: Callable[[], T]) -> SafeFuture[T]:
        """Return a future of what ``function`` returns or raises. It fails with ClientClosedError if the pool is closed before the call
        begins."""
        called = _Call(function)
        self.submit(called)
        return called.future

    def close(self, timeout_s: float = JOIN_S, *, finish: bool = False) -> None:
        """End the threads. With ``finish``, they first do everything that was put in; otherwise tasks that have not begun are dropped.
        Waits for running tasks, unless one of them makes this call. May be called again."""
        if not self._home.is_here:
            return
        with self._lock:
            self._closed = True
            self._dropping = self._dropping or not finish
            self._tasks.put(None)
        if is_ending():
            return
        if self._dropping:
            self._drop_all()
        if self.is_current:
            return
        for thread in tuple(self._threads):
            thread.join(timeout_s)

    def _drop_all(self) -> None:
        """Drop the tasks that have not begun. Their futures fail at once, even while the threads are at work for long."""
        try:
            while True:
                self._drop(self._tasks.get_nowait())
        except Empty:
            pass
        finally:
            self._tasks.put(None)  # the end marker was taken out as well

    def _drop(self, task: Callable[[], None] | None) -> None:
        if isinstance(task, _Call):
            task.future.set_exception(ClientClosedError(f"the threads {self._name} have been ended before this was begun"))

    def _start(self) -> None:
        thread = OwnThread(f"{self._name}-{len(self._threads)}", self._next)
        self._threads.append(thread)
        thread.start()

    def _next(self) -> Callable[[], None] | None:
        task = self._taken()
        if task is None:
            self._tasks.put(None)  # the end marker, for the next thread
        return task

    def _taken(self) -> Callable[[], None] | None:
        with self._lock:
            self._idle += 1
        task = self._tasks.get()
        with self._lock:
            self._idle -= 1
            short = not self._idle and not self._closed and len(self._threads) < self._threads_max
            if short:
                self._grow()
        if self._dropping:
            self._drop(task)
            return None
        return task

    def _grow(self) -> None:
        """Start a thread if none is left to wait for work and there may be more. The caller holds the lock."""
        try:
            self._start()
        except RuntimeError:  # at the very end of a process newer Pythons start no more threads, so the existing ones have to do
            self._threads.pop()
