"""One thread, one selector, one timer heap. Everything of one client that is not a user's call happens here, so no rule needs a lock."""

from __future__ import annotations

import heapq
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

log = logging.getLogger("bk_core.net")

_here = threading.local()


def on_reactor_thread() -> bool:
    """True on the thread of any client's reactor: whoever waits there for an answer waits for himself."""
    return getattr(_here, "reactor", False)


class Pollable(Protocol):
    def on_io(self, readable: bool, writable: bool) -> None: ...


class Timer:
    """A one-shot timer; ``cancel`` may be called any number of times."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None] | None) -> None:
        self.callback = callback

    def cancel(self) -> None:
        self.callback = None


class Reactor:
    """Runs posted functions, timers and socket callbacks on one daemon thread until ``close``."""

    def __init__(self, name: str = "bookkeeper-reactor") -> None:
        self._selector = selectors.DefaultSelector()
        self._posted: deque[Callable[[], None]] = deque()
        self._timers: list[tuple[int, int, Timer]] = []
        self._sequence = 0
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._awake = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @staticmethod
    def now_ns() -> int:
        return time.monotonic_ns()

    def on_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def post(self, function: Callable[[], None]) -> None:
        """Run ``function`` on the reactor thread, after everything posted before. From any thread."""
        self._posted.append(function)
        if not self._awake:
            self._awake = True
            try:
                self._wake_out.send(b"\0")
            except (BlockingIOError, OSError):
                pass  # a full pipe wakes as well; a closed one means the reactor has stopped

    def call_later(self, after_ns: int, callback: Callable[[], None]) -> Timer:
        """Reactor thread only."""
        timer = Timer(callback)
        self._sequence += 1
        heapq.heappush(self._timers, (time.monotonic_ns() + after_ns, self._sequence, timer))
        return timer

    def register(self, sock: socket.socket, events: int, target: Pollable) -> None:
        self._selector.register(sock, events, target)

    def modify(self, sock: socket.socket, events: int, target: Pollable) -> None:
        self._selector.modify(sock, events, target)

    def unregister(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)

    def close(self) -> None:
        """Stop the thread and wait for it. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        self.post(lambda: None)
        if not self.on_thread():
            self._thread.join(timeout=10)
        self._wake_out.close()

    def _run(self) -> None:
        _here.reactor = True
        while not self._stopping:
            for key, mask in self._selector.select(self._wait_s()):
                if key.data is None:
                    self._drain_wakeups()
                    continue
                self._io(key.data, mask)
            self._awake = False
            for _ in range(len(self._posted)):
                self._guard(self._posted.popleft())
            self._fire_timers()
        self._selector.close()
        self._wake_in.close()

    def _io(self, target: Pollable, mask: int) -> None:
        self._guard(lambda: target.on_io(bool(mask & selectors.EVENT_READ), bool(mask & selectors.EVENT_WRITE)))

    def _drain_wakeups(self) -> None:
        try:
            while self._wake_in.recv(4096):
                pass
        except (BlockingIOError, OSError):
            pass

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
        except Exception:
            log.exception("unexpected error on the reactor thread")
