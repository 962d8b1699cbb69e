"""Bookies that ask who comes: the ways in, and honest peers that take them. What is bent begins before, within or behind the handshake."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bk_core.bookie.certificates import USER, LocalSecurity
from bk_core.bookie.door import Door
from bk_core.protocol.link.auth_exchange import AuthExchange
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.connection import ServerProtocol, decode_response, encode_request
from bk_core.security import BookieSasl, BookieTls, Security

TIMEOUT_S = 30.0

Wire = Literal["v2", "v3"]


@dataclass(frozen=True)
class Doorway:
    """One way in: with TLS or in clear, with a certificate of the client or without, with a password or without."""

    name: str
    files: LocalSecurity
    mutual: bool = False

    @property
    def tls(self) -> bool:
        return self.files.tls

    @property
    def sasl(self) -> bool:
        return self.files.sasl

    @property
    def door(self) -> Door:
        return self.files.door if self.mutual else replace(self.files.door, client_ca=None)

    @property
    def password(self) -> str:
        return self._path("password").read_text().strip()

    def security(self) -> Security:
        """Return the security of a client that is to be admitted."""
        own = {"cert": str(self._path("client.pem")), "key": str(self._path("client.key"))} if self.mutual else {}
        tls = BookieTls(ca=str(self._path("ca.pem")), **own) if self.tls else None  # type: ignore[arg-type]
        return Security(tls=tls, auth=BookieSasl(USER, self.password) if self.sasl else None)

    def enter(self, port: int, protocol: Wire = "v3") -> socket.socket:
        """Return a connection of an honest client that has been admitted."""
        sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        if self.tls:
            answer = asked(sock, m.StartTlsRequest(0), "v3")
            assert isinstance(answer, m.StartTlsResponse) and answer.status is m.Status.OK, answer
            sock = self.shaken(sock)
        if self.sasl:
            exchange = self.exchange()
            token: bytes | None = exchange.first()
            while token is not None:
                answer = asked(sock, m.AuthRequest(0, "sasl", token), protocol)
                assert isinstance(answer, m.AuthResponse) and answer.status is m.Status.OK, answer
                token = exchange.answer(answer.payload)
        return sock

    def exchange(self, password: str | None = None) -> AuthExchange:
        """The client's side of SASL."""
        return BookieSasl(USER, password or self.password).exchange("127.0.0.1")

    def shaken(self, sock: socket.socket) -> ssl.SSLSocket:
        """The client's side of the handshake of TLS."""
        tls = self.security().tls
        assert tls is not None
        sock.getpeername()  # ``wrap_socket`` does not close what it has made of a connection that is over, and OSError says that here
        return tls.context().wrap_socket(sock, server_hostname="127.0.0.1")

    def served(self, sock: socket.socket) -> ssl.SSLSocket:
        """The bookie's side of the handshake, for whoever stands in its place and has its key."""
        sock.getpeername()
        return self.door.context().wrap_socket(sock, server_side=True)

    def between(self, client: socket.socket, bookie: socket.socket) -> tuple[socket.socket, socket.socket]:
        """Return both connections as they are inside of TLS, for whoever stands between a client and a bookie and has the keys of both.
        OSError if the client does not do its part."""
        if not self.tls:
            return client, bookie
        size = int.from_bytes(_exactly(client, 4), "big")
        request, reply_to = ServerProtocol().feed(size.to_bytes(4, "big") + _exactly(client, size))[0]
        if not isinstance(request, m.StartTlsRequest):
            raise ConnectionError(f"the client begins with {type(request).__name__}")
        answer = asked(bookie, m.StartTlsRequest(0), "v3")
        assert isinstance(answer, m.StartTlsResponse) and answer.status is m.Status.OK, answer
        client.sendall(ServerProtocol().encode(m.StartTlsResponse(request.request_id, m.Status.OK), reply_to))
        inside = in_clear(self.shaken(bookie))
        try:
            return in_clear(self.served(client)), inside
        except OSError:
            inside.close()
            raise

    def _path(self, name: str) -> Path:
        return self.files.directory / name


def doorways(directory: Path) -> list[Doorway]:
    """All ways in, with files in ``directory``."""
    made = []
    for name, tls, sasl, mutual in (
        ("digest", False, True, False),
        ("tls", True, False, False),
        ("tls digest", True, True, False),
        ("mutual", True, False, True),
        ("mutual digest", True, True, True),
    ):
        files = LocalSecurity(directory / name.replace(" ", "-"), tls, sasl)
        files.make()
        made.append(Doorway(name, files, mutual))
    return made


def asked(sock: socket.socket, request: m.Request, protocol: Wire) -> m.Response:
    """Send one request and wait for one answer. ConnectionError if there is none."""
    sock.sendall(encode_request(request, protocol))
    size = int.from_bytes(_exactly(sock, 4), "big")
    return decode_response(_exactly(sock, size), protocol)


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = sock.recv(count - len(data))
        if not more:
            raise ConnectionError(f"the connection ended after {len(data)} of {count} bytes")
        data += more
    return data


def in_clear(secured: ssl.SSLSocket) -> socket.socket:
    """Return a socket that stands for what is inside of TLS, so that two threads may use it, one for each direction. A thread of its own
    carries the bytes, and closes both when either ends."""
    outer, inner = socket.socketpair()
    secured.setblocking(False)
    threading.Thread(target=_carry, args=(secured, inner), name="fuzz-tls", daemon=True).start()
    return outer


def _carry(secured: ssl.SSLSocket, inner: socket.socket) -> None:
    try:
        with suppress(OSError):
            is_open = _forwarded(secured, inner)  # what came together with the end of the handshake
            while is_open:
                readable, _, _ = select.select([secured, inner], [], [], TIMEOUT_S)
                if not readable:
                    return
                if secured in readable and not _forwarded(secured, inner):
                    return
                if inner in readable:
                    data = inner.recv(1 << 16)
                    if not data:
                        return
                    _sent(secured, data)
    finally:
        for end in (secured, inner):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _forwarded(secured: ssl.SSLSocket, inner: socket.socket) -> bool:
    """False at the end of the connection."""
    while True:
        try:
            data = secured.recv(1 << 16)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return True
        if not data:
            return False
        inner.sendall(data)


def _sent(secured: ssl.SSLSocket, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[secured.send(rest) :]
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if not select.select([], [secured], [], TIMEOUT_S)[1]:
                raise OSError("the other side takes nothing") from None
