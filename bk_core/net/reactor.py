"""One thread, one selector, one timer heap. Everything of a client except the calls of its users happens on this thread, so no rule needs a
lock."""

from __future__ import annotations

import heapq
import io
import logging
import os
import selectors
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from bk_core.threads import calling_back, join, mark_own

log = logging.getLogger("bk_core.net")

RING = (1).to_bytes(8, sys.byteorder)

_here = threading.local()


def on_reactor_thread() -> bool:
    """Return True on the thread of any client's reactor. A wait for an answer there would never end."""
    return getattr(_here, "reactor", False)


class Descriptor(Protocol):
    """A socket, or whatever stands for one."""

    def fileno(self) -> int: ...


class Pollable(Protocol):
    def on_io(self, readable: bool, writable: bool) -> None: ...


class _End(io.FileIO):
    """One end of a pipe, or an eventfd. It closes itself, and raises nothing, when nobody refers to it any more. A thread that is writing
    to it does refer to it, so its number cannot belong to another file yet."""

    other: _End | None = None  # the reading end of a pipe, which must live as long as the writing end

    def __del__(self) -> None:
        self.close()


class Waker:
    """A descriptor that is readable from ``ring(RING)`` to ``clear``, so that a wait for sockets ends. It is an eventfd where there is one,
    which costs less than a pipe.

    ``awake`` is True if a wait would end at once, or nobody waits. The waiting thread sets it to False before its last look for work. A
    thread that rings sets it to True in the statement before. ``ring`` is one step into C and holds no lock, so no interrupt can strike
    between the two or tear it (bk_core/threads.py), and a signal handler that strikes on top of it may wait for another thread that rings.
    """

    def __init__(self) -> None:
        if hasattr(os, "eventfd"):
            self._read_end = write_end = _End(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC), "r+")
        else:
            self._read_end, write_end = (_End(number, mode) for number, mode in zip(os.pipe(), "rw", strict=True))
            write_end.other = self._read_end
            for end in (self._read_end, write_end):
                os.set_blocking(end.fileno(), False)
        self.ring: Callable[[bytes], object] = write_end.write  # a write to a full pipe wakes as well
        self.awake = False

    def fileno(self) -> int:
        return self._read_end.fileno()

    def clear(self) -> None:
        self._read_end.read(4096)  # None if there is nothing

    def close(self) -> None:
        """Close the descriptor. Nothing waits any more, and rings have no effect."""
        self.ring = _nobody_hears
        del self._read_end


def _nobody_hears(ring: bytes) -> None:
    """Ignore a ring, because the reactor has ended."""


class Timer:
    """A one-shot timer; ``cancel`` may be called any number of times."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None] | None) -> None:
        self.callback = callback

    def cancel(self) -> None:
        self.callback = None


class Reactor:
    """Runs posted functions, timers and socket callbacks on one daemon thread until ``close``. Its clock is ``now_ns()``."""

    def __init__(self, name: str = "bookkeeper-reactor") -> None:
        self._selector = selectors.DefaultSelector()
        self._posted: deque[Callable[[], None]] = deque()
        self._at_turn_end: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[int, int, Timer]] = []
        self._sequence = 0
        self._waker = Waker()
        self._selector.register(self._waker, selectors.EVENT_READ, None)
        self._waker.awake = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # no more threads: nobody would run to close these
            self._selector.close()
            self._waker.close()
            raise

    now_ns = staticmethod(time.monotonic_ns)

    def on_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def post(self, function: Callable[[], None]) -> None:
        """Run ``function`` on the reactor thread, after everything posted before. Any thread may call this."""
        try:
            self._posted.append(function)
        finally:  # an interrupt may strike after the append, and what was appended must be seen
            waker = self._waker
            if not waker.awake:
                waker.awake = True
                waker.ring(RING)

    def at_turn_end(self, function: Callable[[], None]) -> None:
        """Run ``function`` when everything of this turn is done, before the next wait. Only the reactor thread may call this."""
        self._at_turn_end.append(function)

    def call_later(self, after_ns: int, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` after ``after_ns``. Only the reactor thread may call this."""
        timer = Timer(callback)
        self._sequence += 1
        heapq.heappush(self._timers, (time.monotonic_ns() + after_ns, self._sequence, timer))
        return timer

    def register(self, sock: Descriptor, events: int, target: Pollable) -> None:
        self._selector.register(sock, events, target)

    def modify(self, sock: Descriptor, events: int, target: Pollable) -> None:
        self._selector.modify(sock, events, target)

    def unregister(self, sock: Descriptor) -> None:
        self._selector.unregister(sock)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive() and not self._stopping

    def close(self) -> None:
        """Stop the thread and wait for it. Idempotent."""
        self._stopping = True
        self.post(lambda: None)
        if not self.on_thread():
            join(self._thread, 10)

    def _run(self) -> None:
        mark_own()
        _here.reactor = True
        with calling_back():
            self._serve()
        self._selector.close()
        self._waker.close()

    def _serve(self) -> None:
        wait_s: float | None = 0
        while not self._stopping:
            ready = self._selector.select(wait_s)
            self._waker.awake = True
            for key, mask in ready:
                if key.data is None:
                    self._waker.clear()
                else:
                    self._io(key.data, mask)
            for _ in range(len(self._posted)):
                self._guard(self._posted.popleft())
            self._fire_timers()
            while self._at_turn_end:
                self._guard(self._at_turn_end.popleft())
            # this must come before the look at what was posted, so that one of the two threads sees the other's step
            self._waker.awake = False
            wait_s = self._wait_s()

    def _io(self, target: Pollable, mask: int) -> None:
        self._guard(lambda: target.on_io(bool(mask & selectors.EVENT_READ), bool(mask & selectors.EVENT_WRITE)))

    def _wait_s(self) -> float | None:
        if self._posted:
            return 0
        if not self._timers:
            return None
        return max(0.0, (self._timers[0][0] - time.monotonic_ns()) / 1e9)

    def _fire_timers(self) -> None:
        now = time.monotonic_ns()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if timer.callback is not None:
                callback, timer.callback = timer.callback, None
                self._guard(callback)

    def _guard(self, function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException:  # a user's callback may raise SystemExit, which is no reason to stop serving all the others
            log.exception("unexpected error on the reactor thread")
