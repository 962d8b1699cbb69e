"""Measures how far the sent bytes of a connection have come, and sets the options by which the kernel ends a dead connection."""

from __future__ import annotations

import array
import fcntl
import socket
import termios
from collections import deque
from contextlib import suppress
from typing import TypeAlias

from bk_core.net.tls_socket import TlsSocket

Socket: TypeAlias = "socket.socket | TlsSocket"
WAITING_NS = 1_000_000_000  # bytes older than this are waiting rather than on their way
USER_TIMEOUT_MS = 20_000  # for bytes that nobody acknowledges
KEEP_ALIVE = (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))  # s, s, times


def keep_alive(made: socket.socket) -> None:
    """Have the kernel end dead connections soon. By default it keeps one without a peer for a quarter of an hour, and an idle one for ever.
    Options that a system lacks are left out, because links check for themselves as well (LINK-3)."""
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (*KEEP_ALIVE, ("TCP_USER_TIMEOUT", USER_TIMEOUT_MS)):
        option = getattr(socket, name, None)
        if option is not None:
            with suppress(OSError):
                made.setsockopt(socket.IPPROTO_TCP, option, value)


class SentBytes:
    """Tells whether bytes that had to wait for a slow network went on. Bytes sent within the last second prove nothing: the other side's
    kernel takes them, whatever becomes of the process behind it (LINK-1)."""

    def __init__(self) -> None:
        self._sent = self._acknowledged = 0
        self._history: deque[tuple[int, int]] = deque()  # (when, bytes sent until then)

    def connected(self) -> None:
        self._sent = self._acknowledged = 0
        self._history.clear()

    def sent(self, count: int) -> None:
        self._sent += count

    def look(self, connection: Socket, now_ns: int) -> bool:
        """Return True if some bytes went on since the last look while others, sent more than WAITING_NS ago, still wait."""
        queued = self._queued(connection)
        if queued is None:
            return False
        so_far: int = getattr(connection, "wire_bytes", self._sent)  # by TLS they are others than were handed over
        before, self._acknowledged = self._acknowledged, so_far - queued
        self._history.append((now_ns, so_far))
        while len(self._history) > 1 and self._history[1][0] <= now_ns - WAITING_NS:
            self._history.popleft()
        when, sent = self._history[0]
        return when <= now_ns - WAITING_NS and sent > self._acknowledged > before

    def _queued(self, connection: Socket) -> int | None:
        """Return the number of bytes that the other side's kernel has not acknowledged, or None if the system cannot tell."""
        queued = array.array("i", [0])
        try:
            fcntl.ioctl(connection, termios.TIOCOUTQ, queued)
        except OSError:
            return None
        return queued[0]
