"""The way in to a bookie over a blocking socket, for what works on threads of its own: probes, and bookies that ask bookies."""

from __future__ import annotations

import socket
import ssl
import time

from bk_core.errors import BookieHostNameError, RemoteProtocolError
from bk_core.net.entering import LENGTH_BYTES, failed_tls, prepare
from bk_core.protocol.link.entrance import FRAME_BYTES_MAX, Admitted, BeginTls, Entrance, Say, Step
from bk_core.security import Security


def entered(plain: socket.socket, security: Security | None, bookie: str, host: str) -> socket.socket:
    """Return a socket over which the bookie serves this client: ``plain`` itself, or one that took it over. Nothing is to have been sent
    yet. All of it takes as long as the timeout of ``plain`` at most, once files and secrets are read. Raises BookieSecurityError,
    RemoteProtocolError, and OSError for a connection that broke."""
    if security is None:
        return plain
    prepared = prepare(security, bookie, host)
    entrance = Entrance(bookie, tls=prepared.context is not None, exchange=prepared.exchange)
    limit_s = plain.gettimeout()
    left = _Left(limit_s)
    made, steps = plain, entrance.begin()
    try:
        while not any(isinstance(step, Admitted) for step in steps):
            for step in steps:
                if isinstance(step, Say):
                    left.give(made)
                    made.sendall(step.frame)
                elif not isinstance(step, BeginTls):
                    assert not isinstance(step, Admitted)
                    raise step.error
            if any(isinstance(step, BeginTls) for step in steps):
                assert prepared.context is not None
                left.give(made)
                made = _by_tls(made, prepared.context, bookie, host)
                steps = entrance.secured()
            else:
                steps = _answered(made, entrance, left)
        made.settimeout(limit_s)
    except (ssl.SSLError, ConnectionError) as error:
        told = _last_words(made, error)
        made.close()
        if isinstance(told, ssl.SSLError):
            raise failed_tls(prepared, told) from None
        raise
    except BaseException:
        made.close()
        raise
    return made


class _Left:
    """The time that is left of the whole way in: a peer that sends a byte now and then would else hold it up for ever."""

    def __init__(self, limit_s: float | None) -> None:
        self._until = None if limit_s is None else time.monotonic() + limit_s

    def give(self, made: socket.socket) -> None:
        """Let the next step of a socket take that time. Raises TimeoutError if there is none."""
        if self._until is None:
            return
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the way in to the bookie took too long")
        made.settimeout(left_s)


def _last_words(made: socket.socket, error: OSError) -> OSError:
    """Return the alert that a bookie sent before it hung up, or the error itself: a send that comes too late leaves the alert unread."""
    is_end = isinstance(error, ssl.SSLEOFError | ssl.SSLSyscallError | ConnectionError)
    if not is_end or not isinstance(made, ssl.SSLSocket):
        return error
    try:
        made.setblocking(False)
        made.recv(1)
    except ssl.SSLError as told:
        return told if "ALERT" in (told.reason or "") else error
    except OSError:
        pass
    return error


def _by_tls(plain: socket.socket, context: ssl.SSLContext, bookie: str, host: str) -> socket.socket:
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLError:
        raise
    except ValueError:  # UnicodeError is one
        raise BookieHostNameError(f"bookie {bookie} is registered with {host!r}, which is in no certificate", bookie=bookie) from None


def _answered(made: socket.socket, entrance: Entrance, left: _Left) -> list[Step]:
    size = int.from_bytes(_whole(made, LENGTH_BYTES, entrance.awaits, left), "big")
    if size > FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"a frame of {size} bytes came while {entrance.awaits} was awaited")
    return entrance.received(_whole(made, size, entrance.awaits, left))


def _whole(made: socket.socket, size: int, awaits: str, left: _Left) -> bytes:
    data = b""
    while len(data) < size:
        left.give(made)
        more = made.recv(size - len(data))
        if not more:
            raise ConnectionError(f"closed by the bookie while {awaits} was awaited")
        data += more
    return data
