"""The way in over a blocking socket: what a bookie says before it hangs up is heard, and one that drips ends in time."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from bk_core.errors import BookieTlsError
from bk_core.net import blocking_entry
from bk_core.net.blocking_entry import entered
from bk_core.protocol.wire.messages import BookieInfoResponse, StartTlsResponse, Status
from bk_core.security import BookieTls, Security
from tests.integration.secured_zookeeper import Authority
from tests.unit.net.test_link_entering import say, whole

PATIENCE_S = 30.0


class World:
    def __init__(self, directory: Path) -> None:
        self.ca = Authority.made(directory, "ca")
        self.server = self.ca.signed("server", ["IP:127.0.0.1"])
        self.security = Security(BookieTls(self.ca.certificate))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("ca"))


@contextmanager
def connected(serve: Callable[[socket.socket], None], timeout_s: float) -> Iterator[socket.socket]:
    """A connection to a bookie that is played by ``serve``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            peer, _ = listener.accept()
            with peer, suppress(OSError):
                serve(peer)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            with socket.create_connection(listener.getsockname(), timeout_s) as made:
                yield made
        finally:
            thread.join(PATIENCE_S)


def by_tls(world: World, peer: socket.socket, *, asks: bool = False) -> ssl.SSLSocket:
    whole(peer)
    say(peer, StartTlsResponse(1, Status.OK))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*world.server)
    if asks:
        context.load_verify_locations(world.ca.certificate)
        context.verify_mode = ssl.CERT_REQUIRED
    return context.wrap_socket(peer, server_side=True)


def test_the_timeout_of_the_caller_is_left_on_the_socket(world: World) -> None:
    def serve(peer: socket.socket) -> None:
        with by_tls(world, peer) as secured:
            whole(secured)
            say(secured, BookieInfoResponse(2, Status.OK))
            secured.recv(1)

    with connected(serve, 17.0) as plain, entered(plain, world.security, "b", "127.0.0.1") as made:
        assert made.gettimeout() == 17.0


def test_a_refusal_is_heard_though_a_later_send_finds_the_connection_reset(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, shake = threading.Event(), blocking_entry._by_tls

    def serve(peer: socket.socket) -> None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its end is a reset
        try:
            by_tls(world, peer, asks=True)
        finally:
            peer.close()
            ended.set()

    def late(*arguments: Any) -> socket.socket:
        """The handshake; this client goes on when the bookie has hung up."""
        made = shake(*arguments)
        assert ended.wait(PATIENCE_S)
        return made

    monkeypatch.setattr(blocking_entry, "_by_tls", late)
    with connected(serve, PATIENCE_S) as plain, pytest.raises(BookieTlsError, match="may want a client certificate"):
        entered(plain, world.security, "b", "127.0.0.1")


def test_one_that_drips_ends_in_time(world: World) -> None:
    def serve(peer: socket.socket) -> None:
        whole(peer)
        peer.sendall(b"\0\0\xff\0")
        for _ in range(40):
            time.sleep(0.25)  # the pace of the bookie
            peer.sendall(b"x")

    begun = time.monotonic()
    with connected(serve, 1.0) as plain:
        with pytest.raises(TimeoutError):
            entered(plain, world.security, "b", "127.0.0.1")
        assert time.monotonic() - begun < 8
        plain.close()
