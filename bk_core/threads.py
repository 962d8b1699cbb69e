"""Threads of our own, and waiting for them in a way that Ctrl-C cannot break.

Why not the standard ones. ``concurrent.futures`` ends its executors when the *main* thread ends: threads that go on, and functions
given to ``atexit``, would find them closed. ``threading.Condition`` (so ``Event``, ``Future`` and ``Queue`` too) takes its lock in a
Python function: an interrupt right behind that leaves the lock taken for good, and whoever answers waits for it for ever.

CPython raises KeyboardInterrupt where a call has returned, where a function begins, and where a loop turns; nowhere else. So a ``with``
of a plain lock is safe, and so is a step whose last call is a single one into C, with nothing but assignments to attributes before it.

Handlers of signals run at the same places, on top of what they interrupt, and finalizers wherever memory is taken. So a lock that is held
around a call is an ``RLock``, and where other threads need it, too, the function is marked (``holds_lock``): whoever comes on top of it may
do what does not wait, and is told so at once before a wait that could not end.
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
from types import FrameType
from typing import Any, Generic, TypeVar

from bk_core.errors import BlockingCallError, ClientClosedError, ForkedClientError

log = logging.getLogger("bk_core.threads")

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
JOIN_S = 10.0
ENDING_S = 5.0  # from the end of our clients to that of the interpreter are only the functions given to ``atexit`` before ours
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


def rest_if_daemon() -> None:
    """Hold a program's daemon thread until the interpreter stops it, ``ENDING_S`` at most: somebody may wait for a lock that it holds."""
    if threading.current_thread().daemon and not is_own():
        time.sleep(ENDING_S)


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


# --- what a handler of a signal comes on top of ------------------------------------------------------------------------

_holding: set[int] = set()  # ids of code objects, which live as long as the program
_LIBRARY = os.path.dirname(is_ending.__code__.co_filename) + os.sep


def holds_lock(function: F) -> F:
    """Marks a function that calls others while it holds a lock which those need who bring outcomes."""
    _holding.add(id(function.__code__))
    return function


def interrupted_call() -> str:
    """The name of the marked function that this thread is interrupting with a handler of a signal or a finalizer; "" if it does not.

    Between the caller and a marked function is code that is not ours: marked ones call none.
    """
    frame: FrameType | None = sys._getframe(1)
    is_ours = True
    while frame is not None:
        code = frame.f_code
        if is_ours:
            is_ours = code.co_filename.startswith(_LIBRARY)
        elif id(code) in _holding:
            return code.co_qualname
        frame = frame.f_back
    return ""


def cannot_wait(where: str) -> str:
    """The end of a message about ``interrupted_call``."""
    return (
        f"a handler of a signal (or a finalizer) that interrupted {where} cannot wait for it: let it set a flag, raise, or start a thread"
    )


# --- waiting ----------------------------------------------------------------------------------------------------------


class Bell:
    """Wakes whoever waits for a change, without a lock: take a ``ticket``, look, then acquire the ticket. No change falls between if
    whoever changes something calls ``notify_all`` after that."""

    _waiting: deque[threading.Lock] | None = None  # most are of futures that are done before anybody waits for them

    def ticket(self) -> threading.Lock:
        """One for each who waits; ``drop`` it in the end."""
        lock = threading.Lock()
        lock.acquire()
        waiting = self._waiting
        if waiting is None:
            waiting = self.__dict__.setdefault("_waiting", deque())  # one step, whoever else does it
        waiting.append(lock)
        return lock

    def drop(self, ticket: threading.Lock) -> None:
        if self._waiting is not None:
            with suppress(ValueError):  # it was told
                self._waiting.remove(ticket)

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    def notify_all(self) -> None:
        while self._waiting:
            try:
                self._waiting.popleft().release()
            except IndexError:  # who waited has gone
                return

    def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait without a lock until ``condition`` holds: True; False when the time is up."""
        end = time.monotonic() + timeout
        while not condition():
            ticket = self.ticket()
            try:
                if condition():
                    return True
                left = end - time.monotonic()
                if left <= 0:
                    return False
                ticket.acquire(True, _seconds(left))
            finally:
                self.drop(ticket)
        return True


class Monitor(Bell, RLock):  # type: ignore[misc]  # typeshed calls it final, CPython does not
    """A Condition whose lock an interrupt cannot keep: it is entered and left in C. Do not wait while it is entered twice."""

    _release_save: Callable[[], object]
    _acquire_restore: Callable[[tuple[int, int]], None]

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
        """True if it is set now; False when the time is up."""
        with self._monitor:
            return self._monitor.wait_for(self.is_set, timeout)


def _seconds(timeout: float | None) -> float:
    return -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)


class SafeFuture(Future[T], Generic[T]):
    """A Future that an interrupt of a waiting thread cannot wedge. It runs from the start, so that nobody can cancel it: what was handed
    in goes its way, and its outcome must find the future waiting. Who asks or waits holds no lock, so that a handler of a signal which
    strikes there may wait for other outcomes.

    In a completion callback ``result`` and ``exception`` raise BlockingCallError if it is not done: who would wait there brings outcomes.
    """

    when_told: Callable[[], None] | None = None
    """Called when somebody asks for the outcome, and it is an error."""

    def __init__(self) -> None:
        # What Future.__init__ sets, in a third of its time: one is made for each append.
        self._condition: Any = Monitor()
        self._state = _RUNNING
        self._result = None
        self._exception: BaseException | None = None
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Any], object]] = []

    def running(self) -> bool:
        return self._state == _RUNNING

    def done(self) -> bool:
        return self._state != _RUNNING

    def result(self, timeout: float | None = None) -> T:
        self._await(timeout)
        error = self._exception
        if error is None:
            return self._result  # type: ignore[return-value]
        self._tell()
        try:
            raise error
        finally:
            del self, error  # what a traceback holds must not hold it again

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._await(timeout)
        self._tell()
        return self._exception

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        callbacks = self._done_callbacks
        callbacks.append(fn)
        if self._state == _RUNNING:
            return
        try:
            callbacks.remove(fn)
        except ValueError:
            return  # whoever brought the outcome has it
        self._call(fn)

    def call_first(self, fn: Callable[[Future[T]], object]) -> None:
        """For whoever brings the outcome: ``fn`` runs as soon as it is there, before any other completion callback."""
        self._done_callbacks.insert(0, fn)

    def _invoke_callbacks(self) -> None:
        callbacks = self._done_callbacks
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:  # who added the last one has taken it back
                return
            try:
                self._call(callback)
            except BaseException:
                self._invoke_callbacks()
                raise

    def _call(self, callback: Callable[[Any], object]) -> None:
        """Call it. An error that it raises ends nothing but the callback: whoever brings outcomes has others to bring. On the main thread
        it may be a handler of a signal that raised it (Ctrl-C), which is for the program beneath."""
        try:
            callback(self)
        except Exception:
            log.exception("a completion callback failed")
        except BaseException:
            if threading.get_ident() == threading.main_thread().ident:
                raise
            log.exception("a completion callback failed")

    def _tell(self) -> None:
        if self.when_told is not None and self._exception is not None:
            self.when_told()

    def _await(self, timeout: float | None) -> None:
        """TimeoutError."""
        if self._state != _RUNNING:
            return
        if timeout is None or timeout > 0:
            self._stand(timeout)
        if self._state == _RUNNING:
            raise FutureTimeoutError

    def _stand(self, timeout: float | None) -> None:
        if getattr(_own, "calls_back", False):
            raise BlockingCallError(
                "a future that is not done has no result yet, and a completion callback cannot wait for it: " + _INSTEAD
            )
        where = interrupted_call()
        if where:
            raise BlockingCallError("a future that is not done has no result yet, and " + cannot_wait(where))
        ticket = self._condition.ticket()
        try:
            if self._state == _RUNNING:
                ticket.acquire(True, _seconds(timeout))
        finally:
            self._condition.drop(ticket)


def start_aside(run: Callable[[], None], name: str) -> None:
    """Start a daemon thread that runs ``run``, where an interrupt may strike. RuntimeError when no more threads can be started.

    ``Thread.start`` waits in a way that may leave its thread stuck, so a bare thread, where no interrupt strikes, does that. It asks for no
    ``current_thread``, and nor may anything else there: Python would list a bare thread as ``Dummy-1`` for good.
    """

    def start() -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the last thread there was: better listed than not done
            run()

    start_new_thread(start, ())


def made_aside(make: Callable[[], T], dispose: Callable[[T], object]) -> T:
    """Have ``make`` run on a thread of its own, where no interrupt strikes, and return its result: what starts threads and opens
    connections is there as a whole, or ``dispose`` gets it when the caller is interrupted."""
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
        start_aside(run, "bookkeeper-aside")
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
        self._lock = RLock()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = self._dropping = False
        self._start()

    @holds_lock
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
