"""Threads of our own, and waiting for them in a way that Ctrl-C cannot break.

Why not the standard ones. ``concurrent.futures`` ends its executors when the *main* thread ends: threads that go on, and functions
given to ``atexit``, would find them closed. ``threading.Condition`` (so ``Event``, ``Future`` and ``Queue`` too) takes its lock in a
Python function: an interrupt right behind that leaves the lock taken for good, and whoever answers waits for it for ever.

CPython raises KeyboardInterrupt where a call has returned, where a function begins, and where a loop turns; nowhere else. So a ``with``
of a plain lock is safe, and so is a step whose last call is a single one into C, with nothing but assignments to attributes before it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from _thread import RLock, start_new_thread  # the type, which threading.RLock hides behind a function
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from bk_core.errors import BlockingCallError, ClientClosedError, ForkedClientError

log = logging.getLogger("bk_core.threads")

T = TypeVar("T")
JOIN_S = 10.0
_RUNNING = "RUNNING"  # a state of concurrent.futures

_INSTEAD = "give it a callback, or hand it to a thread of your own"

_own = threading.local()


# --- which thread, which process --------------------------------------------------------------------------------------


def mark_own() -> None:
    """Called by a thread of ours that must never wait for a client to close: it may be what the client waits for."""
    _own.mark = True


def is_own() -> bool:
    return getattr(_own, "mark", False)


@contextmanager
def calling_back() -> Iterator[None]:
    """Around what may run completion callbacks of users on a thread that others need: a ``SafeFuture`` waits for nothing there."""
    before = getattr(_own, "calls_back", False)
    _own.calls_back = True
    try:
        yield
    finally:
        _own.calls_back = before


def is_ending() -> bool:
    """True once the interpreter is being taken down: threads that are daemons stand still for ever, so nobody may wait for one."""
    return sys.is_finalizing()


class _Process:
    """``pid`` of this process, also in a child that was forked: looked at on every call of a user, so it costs no system call."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()

    def forked(self) -> None:
        self.pid = os.getpid()


_process = _Process()
os.register_at_fork(after_in_child=_process.forked)


class Home:
    """The process in which something was made that has threads and connections. A forked child inherits neither."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = _process.pid

    @property
    def is_here(self) -> bool:
        return self._pid == _process.pid

    def check(self, what: str = "client") -> None:
        """ForkedClientError in a process that was forked from the one that ``what`` was made in."""
        if self._pid != _process.pid:
            raise ForkedClientError(
                f"this {what} was made in process {self._pid} and this is process {_process.pid}, which was forked from it and has none of "
                "its threads: connect again in this process",
                made_in=self._pid,
            )


# --- waiting ----------------------------------------------------------------------------------------------------------


class Monitor(RLock):  # type: ignore[misc]  # typeshed calls it final, CPython does not
    """A Condition whose lock an interrupt cannot keep: it is entered and left in C. Do not wait while it is entered twice.

    Whoever must not wait under it takes a ``ticket`` there, leaves it, and acquires the ticket: no change falls between.
    """

    _release_save: Callable[[], object]
    _acquire_restore: Callable[[tuple[int, int]], None]
    _waiting: deque[threading.Lock] | None = None  # most are of futures that are done before anybody waits for them

    def ticket(self) -> threading.Lock:
        """Under the lock. One for each who waits; ``drop`` it in the end."""
        lock = threading.Lock()
        lock.acquire()
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(lock)
        return lock

    def drop(self, ticket: threading.Lock) -> None:
        if self._waiting is not None:
            with suppress(ValueError):  # it was told
                self._waiting.remove(ticket)

    def wait(self, timeout: float | None = None) -> bool:
        """False when the time is up."""
        ticket, mine = self.ticket(), (1, threading.get_ident())
        try:  # nothing strikes before the release is done, and taking the lock again cannot be interrupted
            self._release_save()
            return ticket.acquire(True, _seconds(timeout))
        finally:
            self._acquire_restore(mine)
            self.drop(ticket)

    def wait_for(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """True if it holds now."""
        end = None if timeout is None else time.monotonic() + timeout
        while not (found := condition()):
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    def notify_all(self) -> None:
        while self._waiting:
            try:
                self._waiting.popleft().release()
            except IndexError:  # who waited has gone
                return


class Flag:
    """An Event whose lock an interrupt cannot keep."""

    def __init__(self) -> None:
        self._monitor = Monitor()
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        with self._monitor:
            self._monitor.notify_all()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is set now; False when the time is up."""
        with self._monitor:
            return self._monitor.wait_for(self.is_set, timeout)


def _seconds(timeout: float | None) -> float:
    return -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)


class SafeFuture(Future[T], Generic[T]):
    """A Future that an interrupt of a waiting thread cannot wedge. It runs from the start, so that nobody can cancel it: what was handed
    in goes its way, and its outcome must find the future waiting.

    In a completion callback ``result`` and ``exception`` raise BlockingCallError if it is not done: who would wait there brings outcomes.
    """

    when_told: Callable[[], None] | None = None
    """Called when somebody asks for the outcome, and it is an error."""

    def __init__(self) -> None:
        # What Future.__init__ sets, in a third of its time: one is made for each append.
        self._condition: Any = Monitor()
        self._state = _RUNNING
        self._result = None
        self._exception = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Any] = []

    def result(self, timeout: float | None = None) -> T:
        self._await(timeout)
        self._tell()
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._await(timeout)
        self._tell()
        return super().exception(0)

    def _tell(self) -> None:
        if self.when_told is not None and self._exception is not None:
            self.when_told()

    def _await(self, timeout: float | None) -> None:
        """Waits without the lock: who brings the outcome needs that."""
        with self._condition:
            if self._state != _RUNNING:
                return
            if (timeout is None or timeout > 0) and getattr(_own, "calls_back", False):
                raise BlockingCallError(
                    "a future that is not done has no result yet, and a completion callback cannot wait for it: " + _INSTEAD
                )
            ticket = self._condition.ticket()
        try:
            ticket.acquire(True, _seconds(timeout))
        finally:
            self._condition.drop(ticket)


def made_aside(make: Callable[[], T], dispose: Callable[[T], object]) -> T:
    """What ``make`` returns, made on a thread of its own, where no interrupt strikes: what starts threads and opens connections is there
    as a whole, or ``dispose`` gets it when the caller is interrupted. (``Thread.start`` waits in a way that may leave its thread stuck.)"""
    future: SafeFuture[T] = SafeFuture()

    def run() -> None:
        try:
            made = make()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(made)

    def give_up(done: Future[T]) -> None:
        if done.exception() is None:
            dispose(done.result())

    try:
        start_new_thread(run, ())
        return future.result()
    except Exception:
        raise  # of ``make``
    except BaseException:
        future.add_done_callback(give_up)
        raise


# --- working ----------------------------------------------------------------------------------------------------------


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
    """Up to ``threads_max`` daemon threads that do what is put in. They go on after the main thread, until ``close`` or the process ends.

    The first thread is started at once and the others by threads of the pool, so no start can be torn by an interrupt.
    """

    def __init__(self, name: str, threads_max: int = 1) -> None:
        self._name = name
        self._threads_max = threads_max
        self._home = Home()
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = self._dropping = False
        self._start()

    def submit(self, task: Callable[[], None]) -> None:
        """Returns at once. ClientClosedError after ``close``."""
        self._home.check("pool of threads")
        with self._lock:
            if not self._closed:
                self._tasks.put(task)
                return
        raise ClientClosedError(f"the threads {self._name} have been ended")

    @property
    def is_current(self) -> bool:
        """True on a thread of this pool."""
        return threading.current_thread() in self._threads

    def call(self, function: Callable[[], T]) -> SafeFuture[T]:
        """The future of what ``function`` returns or raises; ClientClosedError if the pool was closed before it was begun."""
        called = _Call(function)
        self.submit(called)
        return called.future

    def close(self, timeout_s: float = JOIN_S, *, finish: bool = False) -> None:
        """End the threads, with ``finish`` when everything put in is done; else what was not begun is dropped. Waits for those that are at
        work, unless one of them asks. May be called again."""
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
        """Nothing is put in any more. Whoever waits for a future is told at once, also while the threads are at work for long."""
        try:
            while True:
                self._drop(self._tasks.get_nowait())
        except Empty:
            pass
        finally:
            self._tasks.put(None)  # it was taken out as well

    def _drop(self, task: Callable[[], None] | None) -> None:
        if isinstance(task, _Call):
            task.future.set_exception(ClientClosedError(f"the threads {self._name} have been ended before this was begun"))

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=f"{self._name}-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        mark_own()
        while (task := self._next()) is not None:
            try:
                task()
            except BaseException:  # callbacks of users may raise SystemExit
                log.exception("%s: a task failed", self._name)
            del task  # nothing of it stays while there is nothing to do
        self._tasks.put(None)  # for the next one

    def _next(self) -> Callable[[], None] | None:
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
        """Under the lock: there is always one that waits for work, as long as there may be more."""
        try:
            self._start()
        except RuntimeError:  # at the very end of a process newer Pythons start no more threads: these have to do
            self._threads.pop()


def wait_done(future: Future[Any], timeout_s: float) -> bool:
    """Wait for the end of what nobody wants the outcome of; False when the time is up."""
    try:
        future.exception(timeout_s)
    except (FutureTimeoutError, BlockingCallError):
        return future.done()
    return True
