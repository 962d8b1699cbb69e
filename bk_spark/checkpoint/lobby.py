"""New connections of the gateway until the head of their first request is there. One thread looks after all of them.

Anybody who can reach the port can make connections, faster than threads for them can begin. So a connection gets a thread only once it has
sent a whole head, or more than a head may have; a client with a request sends it at once. When there is no room for another connection, the
oldest of those that wait is closed.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from bk_spark.checkpoint import http_parts
from bk_spark.checkpoint.http_parts import HEAD_END, HEAD_MAX, PIECE

FIRST_BYTE_S = 10.0
AT_ONCE = 64  # accepted before those that wait are looked at again
LOOK_S = 0.5


@dataclass(eq=False, slots=True)
class _Newcomer:
    """``sent``: what has come. ``until_s``: when it goes, if it has sent nothing, or no whole head, by then."""

    socket: socket.socket
    until_s: float
    sent: bytearray = field(default_factory=bytearray)


class Lobby:
    """The connections that have not asked for anything yet. Only one thread uses it.

    ``most`` is how many may wait at a time. With ``is_tls`` a request's head cannot be read here, so a connection is let through by its
    first byte, which stays in its socket.
    """

    def __init__(self, listener: socket.socket, most: int, *, is_tls: bool) -> None:
        self._listener, self._most, self._is_tls = listener, most, is_tls
        self._waiting: dict[int, _Newcomer] = {}  # by file descriptor, the oldest first
        self._looked_s = time.monotonic()
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def turn(self) -> Iterator[tuple[socket.socket, bytes]]:
        """Wait until something comes, for a moment at most. Gives the connections that have sent a whole head, with what they sent. OSError
        if no connection can be accepted."""
        is_asked = False
        for key, _ in self._selector.select(LOOK_S):
            newcomer: _Newcomer | None = key.data
            if newcomer is None:
                is_asked = True
            elif self._is_tls or self._has_head(newcomer):
                self._let_go(newcomer)
                newcomer.socket.setblocking(True)
                yield newcomer.socket, bytes(newcomer.sent)
        self._end_late()
        if is_asked:
            self._accept()

    def _has_head(self, newcomer: _Newcomer) -> bool:
        """Take what has come. A peer that has gone is let go of."""
        try:
            piece = newcomer.socket.recv(PIECE)
        except BlockingIOError:
            return False
        except OSError:
            piece = b""
        if not piece:
            self._end(newcomer)
            return False
        looked_at = max(0, len(newcomer.sent) - len(HEAD_END) + 1)
        if not newcomer.sent:
            newcomer.until_s = time.monotonic() + http_parts.HEAD_S
        newcomer.sent += piece
        return newcomer.sent.find(HEAD_END, looked_at) >= 0 or len(newcomer.sent) > HEAD_MAX

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, _ = self._listener.accept()
            except BlockingIOError:
                return
            if len(self._waiting) >= self._most:
                self._end(next(iter(self._waiting.values())))
            accepted.setblocking(False)
            newcomer = _Newcomer(accepted, time.monotonic() + FIRST_BYTE_S)
            self._waiting[accepted.fileno()] = newcomer
            self._selector.register(accepted, selectors.EVENT_READ, newcomer)

    def _end_late(self) -> None:
        now = time.monotonic()
        if now - self._looked_s >= LOOK_S:
            self._looked_s = now
            for late in [one for one in self._waiting.values() if one.until_s <= now]:
                self._end(late)

    def _let_go(self, newcomer: _Newcomer) -> None:
        self._selector.unregister(newcomer.socket)
        del self._waiting[newcomer.socket.fileno()]

    def _end(self, newcomer: _Newcomer) -> None:
        self._let_go(newcomer)
        with suppress(OSError):
            newcomer.socket.close()

    def close(self) -> None:
        """End those that wait. The listener stays open."""
        for newcomer in list(self._waiting.values()):
            self._end(newcomer)
        self._selector.close()
