"""Threads of our own, and waiting for them in a way that Ctrl-C cannot break.

The standard classes do not fit. ``concurrent.futures`` ends its executors when the *main* thread ends, so threads that go on, and functions
given to ``atexit``, would find them closed. ``threading.Condition`` (and so ``Event``, ``Future`` and ``Queue``) takes its lock in a Python
function: an interrupt right after that leaves the lock taken for good, and the thread that brings the answer waits for it for ever.

CPython raises KeyboardInterrupt where a call has returned, where a function begins, and where a loop turns; nowhere else. So a ``with`` of
a plain lock is safe, and so is a step whose last call is a single one into C, with nothing but assignments to attributes before it.

Signal handlers run at the same places, on top of the code that they interrupt, and finalizers run wherever memory is allocated. So a lock
that is held around a call is an ``RLock``; and if other threads need it too, the function is marked (``holds_lock``). A handler on top of a
marked function may make calls that do not wait, and gets an error at once before a wait that could not end.
"""

from __future__ import annotations

import logging
import math
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
from types import FrameType
from typing import Any, Generic, TypeVar

from bk_core.errors import BlockingCallError, ForkedClientError

log = logging.getLogger("bk_core.threads")

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
ENDING_S = 5.0  # only functions given to ``atexit`` before ours run between the end of our clients and that of the interpreter
HEARD_S = 1.0  # a signal may wait this long for its handler while the main thread waits
_RUNNING = "RUNNING"  # a state of concurrent.futures

_INSTEAD = "give it a callback, or hand it to a thread of your own"

_own = threading.local()


# --- which thread, which process --------------------------------------------------------------------------------------


def mark_own() -> None:
    """Mark this thread as one of ours that must never wait for a client to close, because the client may wait for this thread."""
    _own.mark = True


def is_own() -> bool:
    return getattr(_own, "mark", False)


@contextmanager
def calling_back() -> Iterator[None]:
    """Surround the calls of users' completion callbacks on a thread that others need: a ``SafeFuture`` does not wait inside."""
    before = getattr(_own, "calls_back", False)
    _own.calls_back = True
    try:
        yield
    finally:
        _own.calls_back = before


def is_ending() -> bool:
    """Return True once the interpreter is being taken down. Daemon threads then stand still for ever, so nobody may wait for one."""
    return sys.is_finalizing()


def rest_if_daemon() -> None:
    """Hold a program's daemon thread until the interpreter stops it, for ``ENDING_S`` at most, because another thread may wait for a lock
    that it holds."""
    if threading.current_thread().daemon and not is_own():
        time.sleep(ENDING_S)


class _Process:
    """Holds the ``pid`` of this process, also in a forked child. Every call of a user reads it, so it costs no system call."""

    __slots__ = ("pid",)

    def __init__(self) -> None:
        self.pid = os.getpid()

    def forked(self) -> None:
        self.pid = os.getpid()


_process = _Process()
os.register_at_fork(after_in_child=_process.forked)


class Home:
    """The process in which an object with threads and connections was made. A forked child inherits neither."""

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = _process.pid

    @property
    def is_here(self) -> bool:
        return self._pid == _process.pid

    def check(self, what: str = "client") -> None:
        """Raise ForkedClientError in a process that was forked from the one in which ``what`` was made."""
        if self._pid != _process.pid:
            raise ForkedClientError(
                f"this {what} was made in process {self._pid} and this is process {_process.pid}, which was forked from it and has none of "
                "its threads: connect again in this process",
                made_in=self._pid,
            )


# --- signal handlers on top of our calls ---------------------------------------------------------------------------------

_holding: set[int] = set()  # the ids of code objects, which live as long as the program
_LIBRARY = os.path.dirname(is_ending.__code__.co_filename) + os.sep


def holds_lock(function: F) -> F:
    """Mark a function that calls others while it holds a lock that the threads which bring outcomes need."""
    _holding.add(id(function.__code__))
    return function


def interrupted_call() -> str:
    """Return the name of the marked function that this thread is interrupting with a signal handler or a finalizer, or "".

    Code that is not ours lies between the caller and a marked function, because marked functions do not call each other.
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
    """Return the end of a message about ``interrupted_call``."""
    return (
        f"a handler of a signal (or a finalizer) that interrupted {where} cannot wait for it: let it set a flag, raise, or start a thread"
    )


# --- waiting ----------------------------------------------------------------------------------------------------------


def acquired(ticket: threading.Lock, timeout: float | None) -> bool:
    """Acquire a ticket within ``timeout`` seconds, or whenever it comes if that is None. Return False when the time is up.

    CPython runs the handler of a signal only when a wait is over if the signal came in the moment before that wait began. So the main
    thread, which runs the handlers, waits in steps of ``HEARD_S``: a Ctrl-C takes effect after this time at the latest.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return ticket.acquire(True, _seconds(timeout))
    end = math.inf if timeout is None else time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        if ticket.acquire(True, min(max(0.0, left), HEARD_S)):
            return True
        if left <= HEARD_S:
            return False


def join(thread: threading.Thread, timeout: float | None = None) -> None:
    """Wait for the end of a thread, for ``timeout`` seconds at most unless that is None. The main thread waits in steps (``acquired``)."""
    steps = threading.get_ident() == threading.main_thread().ident
    end = math.inf if timeout is None else time.monotonic() + timeout
    while steps and thread.is_alive() and (left := end - time.monotonic()) > HEARD_S:
        threading.Thread.join(thread, min(left, HEARD_S))
    threading.Thread.join(thread, None if end == math.inf else max(0.0, end - time.monotonic()))


class Bell:
    """Wakes threads that wait for a change, without a lock. A waiter takes a ``ticket``, looks for the change, and then acquires the
    ticket. It misses no change if every change is followed by ``notify_all``."""

    _waiting: deque[threading.Lock] | None = None  # most bells belong to futures that are done before anybody waits for them

    def ticket(self) -> threading.Lock:
        """Return a ticket. Each waiter takes its own, and passes it to ``drop`` in the end."""
        lock = threading.Lock()
        lock.acquire()
        waiting = self._waiting
        if waiting is None:
            waiting = self.__dict__.setdefault("_waiting", deque())  # one step, even if another thread does it at the same time
        waiting.append(lock)
        return lock

    def drop(self, ticket: threading.Lock) -> None:
        if self._waiting is not None:
            with suppress(ValueError):  # it was told already
                self._waiting.remove(ticket)

    @property
    def is_awaited(self) -> bool:
        return bool(self._waiting)

    def notify_all(self) -> None:
        while self._waiting:
            try:
                self._waiting.popleft().release()
            except IndexError:  # the waiter has gone
                return

    def until(self, condition: Callable[[], bool], timeout: float) -> bool:
        """Wait without a lock until ``condition`` holds. Return True then, and False when the time is up."""
        end = time.monotonic() + timeout
        while not condition():
            ticket = self.ticket()
            try:
                if condition():
                    return True
                left = end - time.monotonic()
                if left <= 0:
                    return False
                acquired(ticket, left)
            finally:
                self.drop(ticket)
        return True


class Monitor(Bell, RLock):  # type: ignore[misc]  # typeshed calls it final, CPython does not
    """A Condition whose lock an interrupt cannot keep: it is entered and left in C. Do not wait while it is entered twice."""

    _release_save: Callable[[], object]
    _acquire_restore: Callable[[tuple[int, int]], None]

    def wait(self, timeout: float | None = None) -> bool:
        """Wait to be notified. Return False when the time is up."""
        ticket, mine = self.ticket(), (1, threading.get_ident())
        try:  # no interrupt strikes before the release is done, and taking the lock again cannot be interrupted
            self._release_save()
            return acquired(ticket, timeout)
        finally:
            self._acquire_restore(mine)
            self.drop(ticket)

    def wait_for(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until ``condition`` holds or the time is up. Return True if it holds now."""
        end = None if timeout is None else time.monotonic() + timeout
        while not (found := condition()):
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found


class Flag:
    """An Event whose lock an interrupt cannot keep. ``on`` is what ``is_set`` returns, where a call might be interrupted."""

    def __init__(self) -> None:
        self._monitor = Monitor()
        self.on = False

    def is_set(self) -> bool:
        return self.on

    def set(self) -> None:
        self.on = True
        with self._monitor:
            self._monitor.notify_all()

    def clear(self) -> None:
        self.on = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the flag is set or the time is up. Return True if it is set now."""
        with self._monitor:
            return self._monitor.wait_for(self.is_set, timeout)


def _seconds(timeout: float | None) -> float:
    return -1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)


class SafeFuture(Future[T], Generic[T]):
    """A Future that stays usable when a waiting thread is interrupted. It counts as running from the start, so nobody can cancel it: the
    work that was handed in goes on, and its outcome must find the future waiting. A thread that asks or waits holds no lock, so a signal
    handler which strikes there may wait for other outcomes.

    In a completion callback, ``result`` and ``exception`` raise BlockingCallError if the future is not done, because the waiting thread is
    one that brings outcomes.
    """

    when_told: Callable[[], None] | None = None
    """A function that is called when somebody asks for the outcome and it is an error."""

    def __init__(self) -> None:
        # This sets what Future.__init__ sets, in a third of its time, because one future is made for each append.
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
            del self, error  # a traceback refers to these variables, which must not refer to it

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
            return  # the thread that brought the outcome calls it
        self._call(fn)

    def call_first(self, fn: Callable[[Future[T]], object]) -> None:
        """Call ``fn`` as soon as the outcome is there, before any other completion callback. This is for the code that brings
        the outcome."""
        self._done_callbacks.insert(0, fn)

    def _invoke_callbacks(self) -> None:
        callbacks = self._done_callbacks
        while callbacks:
            try:
                callback = callbacks.pop(0)
            except IndexError:  # the thread that added the last one has taken it back
                return
            try:
                self._call(callback)
            except BaseException:
                self._invoke_callbacks()
                raise

    def _call(self, callback: Callable[[Any], object]) -> None:
        """Call a completion callback. An error that it raises ends nothing but the callback, because the thread has other outcomes to
        bring. On the main thread the error may come from a signal handler (Ctrl-C); it then goes to the program beneath."""
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
        """Wait for the outcome; raise TimeoutError when the time is up."""
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
                acquired(ticket, timeout)
        finally:
            self._condition.drop(ticket)


def start_aside(run: Callable[[], None], name: str) -> None:
    """Start a daemon thread that runs ``run``, from code in which an interrupt may strike. Raises RuntimeError when no more threads can be
    started.

    ``Thread.start`` waits in a way that an interrupt may leave stuck, so a bare thread, which no interrupt strikes, calls it. The bare
    thread never asks for ``current_thread``, because Python would then list it as ``Dummy-1`` for good.
    """

    def start() -> None:
        thread = threading.Thread(target=run, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no other thread can be started, and to be listed as a dummy is better than not to run
            run()

    start_new_thread(start, ())


def made_aside(make: Callable[[], T], dispose: Callable[[T], object]) -> T:
    """Call ``make`` on a thread of its own, which no interrupt strikes, and return its result. Objects that start threads and open
    connections are made as a whole this way, or are given to ``dispose`` when the caller is interrupted."""
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
        raise  # an error of ``make``
    except BaseException:
        future.add_done_callback(give_up)
        raise


def wait_done(future: Future[Any], timeout_s: float) -> bool:
    """Wait for the end of tasks that nobody wants the outcome of. Return False when the time is up."""
    try:
        future.exception(timeout_s)
    except (FutureTimeoutError, BlockingCallError):
        return future.done()
    return True
