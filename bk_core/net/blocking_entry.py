"""The way in to a bookie over a blocking socket, for what works on threads of its own: probes, and bookies that ask bookies."""

from __future__ import annotations

import socket
import ssl

from bk_core.errors import BookieHostNameError, RemoteProtocolError
from bk_core.net.entering import LENGTH_BYTES, failed_tls, prepare
from bk_core.protocol.link.entrance import FRAME_BYTES_MAX, Admitted, BeginTls, Entrance, Say, Step
from bk_core.security import Security


def entered(plain: socket.socket, security: Security | None, bookie: str, host: str) -> socket.socket:
    """Return a socket over which the bookie serves this client: ``plain`` itself, or one that took it over. Nothing is to have been sent
    yet. Raises BookieSecurityError, RemoteProtocolError, and OSError for a connection that broke."""
    if security is None:
        return plain
    prepared = prepare(security, bookie, host)
    entrance = Entrance(bookie, tls=prepared.context is not None, exchange=prepared.exchange)
    made, steps = plain, entrance.begin()
    try:
        while not any(isinstance(step, Admitted) for step in steps):
            for step in steps:
                if isinstance(step, Say):
                    made.sendall(step.frame)
                elif not isinstance(step, BeginTls):
                    assert not isinstance(step, Admitted)
                    raise step.error
            if any(isinstance(step, BeginTls) for step in steps):
                assert prepared.context is not None
                made = _by_tls(made, prepared.context, bookie, host)
                steps = entrance.secured()
            else:
                steps = _answered(made, entrance)
    except ssl.SSLError as error:
        made.close()
        raise failed_tls(prepared, error) from None
    except BaseException:
        made.close()
        raise
    return made


def _by_tls(plain: socket.socket, context: ssl.SSLContext, bookie: str, host: str) -> socket.socket:
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLError:
        raise
    except ValueError:  # UnicodeError is one
        raise BookieHostNameError(f"bookie {bookie} is registered with {host!r}, which is in no certificate", bookie=bookie) from None


def _answered(made: socket.socket, entrance: Entrance) -> list[Step]:
    size = int.from_bytes(_whole(made, LENGTH_BYTES, entrance.awaits), "big")
    if size > FRAME_BYTES_MAX:
        raise RemoteProtocolError(f"a frame of {size} bytes came while {entrance.awaits} was awaited")
    return entrance.received(_whole(made, size, entrance.awaits))


def _whole(made: socket.socket, size: int, awaits: str) -> bytes:
    data = b""
    while len(data) < size:
        more = made.recv(size - len(data))
        if not more:
            raise ConnectionError(f"closed by the bookie while {awaits} was awaited")
        data += more
    return data
