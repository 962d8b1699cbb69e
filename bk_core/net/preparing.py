"""Reads the files and secrets of connections on threads of their own: a function of the program, a KDC or a file server may be silent for
minutes, and on the reactor thread all ledgers would wait for it (LINK-10)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from bk_core.background import OwnThread
from bk_core.errors import CLIENT_CLOSED, BookieSecurityError
from bk_core.net.entering import Prepared, Then, Turn, prepare
from bk_core.secrets import told_of
from bk_core.security import Security

AT_ONCE = 4
"""The number of readings for one bookie that are under way at a time. Those that hang are no more, and the others wait for a turn."""


class Preparations:
    """The readings of one client. Each bookie has threads of its own, which end when there is nothing to read, so those that hang cost
    their own bookie alone. Nobody waits for a thread at the end. ``post`` carries an outcome to the reactor thread."""

    def __init__(self, security: Security, post: Callable[[Callable[[], None]], None]) -> None:
        self._security = security
        self._post = post
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Turn]] = {}
        self._running: dict[str, int] = {}
        self._closed = False

    def begin(self, bookie: str, host: str, then: Then) -> Turn:
        """Have the files and secrets of one connection read. ``then`` gets the outcome on the reactor thread, unless the turn is
        cancelled before."""
        turn, problem, starts = Turn(bookie, host, then), "", False
        with self._lock:
            if self._closed:
                problem = CLIENT_CLOSED
            else:
                self._waiting.setdefault(bookie, deque()).append(turn)
                running = self._running.get(bookie, 0)
                starts = running < AT_ONCE
                self._running[bookie] = running + starts
        if starts:
            try:
                OwnThread(f"bookkeeper-security-{bookie}", lambda: self._next(bookie)).start()
            except RuntimeError as error:  # no more threads can be started
                problem = self._not_started(bookie, turn, f"no files and secrets for bookie {bookie} can be read: {error}")
        if problem:
            self._tell(turn, None, BookieSecurityError(problem, bookie=bookie))
        return turn

    def _not_started(self, bookie: str, turn: Turn, problem: str) -> str:
        """Return the problem of a turn for which no thread could be started, or "" where another thread takes it."""
        with self._lock:
            self._ended(bookie)
            waiting = self._waiting.get(bookie, deque())
            if bookie in self._running or turn not in waiting:
                return ""
            waiting.remove(turn)
            return problem

    def _ended(self, bookie: str) -> None:
        self._running[bookie] -= 1
        if not self._running[bookie]:
            del self._running[bookie]

    def _next(self, bookie: str) -> Callable[[], None] | None:
        """Return the next reading for a bookie, or None, which ends a thread. Turns whose connection was given up are left out."""
        with self._lock:
            waiting = self._waiting.get(bookie, deque())
            while waiting:
                turn = waiting.popleft()
                if not turn.is_over:
                    turn.has_begun = True
                    return lambda: self._read(turn)
            self._waiting.pop(bookie, None)
            self._ended(bookie)
            return None

    def _read(self, turn: Turn) -> None:
        made: Prepared | None = None
        problem: BookieSecurityError | None = None
        try:
            made = prepare(self._security, turn.bookie, turn.host)
        except BookieSecurityError as error:
            problem = error
        except BaseException as error:  # somebody waits for the outcome, whatever it is
            problem = BookieSecurityError(f"bookie {turn.bookie}: {told_of(error, 'reading files and secrets')}", bookie=turn.bookie)
        self._tell(turn, made, problem)

    def _tell(self, turn: Turn, made: Prepared | None, problem: BookieSecurityError | None) -> None:
        def tell() -> None:
            if not turn.is_over:
                turn.is_over = True
                turn.then(made, problem)

        self._post(tell)

    def close(self) -> None:
        """Begin nothing more. What is under way ends by itself, and is told to nobody."""
        with self._lock:
            self._closed = True
            for waiting in self._waiting.values():
                waiting.clear()
