"""TLS over a socket that takes and gives a little at a time: every byte arrives, in order, and nothing waits that could go on."""

from __future__ import annotations

import random
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bk_core.net.tls_socket import PULL_STEPS, STEPS_MAX, TlsSocket
from bk_core.tls_files import context_of
from tests.integration.secured_zookeeper import Authority

Pair = Callable[..., tuple[TlsSocket, TlsSocket]]


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    ca = Authority.made(tmp_path_factory.mktemp("ca"), "ca")
    certificate, key = ca.signed("server", ["IP:127.0.0.1"])
    both = {"key_password": None, "verify_host": True}
    client = context_of("test", ca=ca.certificate, cert=None, key=None, **both)
    return client, context_of("test", ca=None, cert=certificate, key=key, server=True, **both)


@pytest.fixture
def pair(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Iterator[Pair]:
    plain: list[socket.socket] = []

    def made(again: Callable[[], None] = lambda: None, buffer_bytes: int | None = None) -> tuple[TlsSocket, TlsSocket]:
        ends = socket.socketpair()
        plain.extend(ends)
        for end in ends:
            end.setblocking(False)
            if buffer_bytes is not None:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        client = TlsSocket(ends[0], contexts[0], "127.0.0.1", again)
        server = TlsSocket(ends[1], contexts[1], None, again, server=True)
        done = [False, False]
        for _ in range(20):
            done = [client.shake(), server.shake()]
            if all(done):
                return client, server
        raise AssertionError(done)

    yield made
    for end in plain:
        end.close()


def sent(source: TlsSocket, output: list[memoryview]) -> int:
    """Offer the front of ``output`` as a link does. Return the number of bytes that are gone."""
    try:
        count = source.sendmsg(output)
    except BlockingIOError:
        return 0
    left = count
    while left:
        if left < len(output[0]):
            output[0] = output[0][left:]
            break
        left -= len(output.pop(0))
    return count


def received(source: TlsSocket, size: int) -> bytes:
    room = bytearray(size)
    try:
        return bytes(room[: source.recv_into(memoryview(room))])
    except BlockingIOError:
        return b""


@pytest.mark.parametrize("buffer_bytes", [None, 4096])
def test_every_byte_arrives_in_order_whatever_the_sizes(pair: Pair, buffer_bytes: int | None) -> None:
    client, server = pair(buffer_bytes=buffer_bytes)
    chance = random.Random(1)
    whole = chance.randbytes(3 << 20)
    output, at = [], 0
    while at < len(whole):
        size = chance.choice((1, 24, 1000, 16_384, 100_000, 900_000))
        output.append(memoryview(whole)[at : at + size])
        at += size
    came, told = bytearray(), 0
    while len(came) < len(whole):
        told += sent(client, output) if output else 0
        came += received(server, chance.choice((1, 100, 5000, 300_000)))
        assert len(came) <= len(whole) and told <= len(whole)
    while output:
        told += sent(client, output)
    assert bytes(came) == whole and told == len(whole) and client.wire_bytes > len(whole) and not client.is_behind


def test_nothing_counts_as_sent_before_the_network_has_all_of_it(pair: Pair) -> None:
    client, server = pair(buffer_bytes=4096)
    output = [memoryview(bytes(200_000))]
    for _ in range(3):
        with pytest.raises(BlockingIOError):
            client.sendmsg(output)
    came = 0
    while client.is_behind:
        came += len(received(server, 1 << 20))
        client.push()
    assert client.sendmsg(output) == 200_000
    while came < 200_000:
        came += len(received(server, 1 << 20))
    assert came == 200_000  # once, though it was offered five times


def test_a_full_buffer_asks_for_another_turn(pair: Pair) -> None:
    """Bytes that are left are decrypted already, and the system does not know of them."""
    turns: list[None] = []
    client, server = pair(lambda: turns.append(None))
    assert client.send(memoryview(b"0123456789")) == 10
    assert received(server, 4) == b"0123" and len(turns) == 1
    assert received(server, 4) == b"4567" and len(turns) == 2
    assert received(server, 4) == b"89" and len(turns) == 2


def test_the_end_comes_behind_what_was_sent_before_it(pair: Pair) -> None:
    turns: list[None] = []
    client, server = pair(lambda: turns.append(None))
    client.send(memoryview(b"last words"))
    client.close()
    assert received(server, 100) == b"last words" and turns
    assert server.recv_into(memoryview(bytearray(10))) == 0


def test_a_connection_that_was_cut_ends(pair: Pair) -> None:
    """Without TLS's own good-bye, as a process that was killed leaves it."""
    client, server = pair()
    client.send(memoryview(b"half"))
    assert received(server, 100) == b"half" and received(client, 1) == b""  # tickets; what was not read would make it a reset
    client._plain.close()
    assert server.recv_into(memoryview(bytearray(10))) == 0


def test_bytes_that_are_no_tls_are_an_error_behind_those_that_are(pair: Pair) -> None:
    client, server = pair()
    client.send(memoryview(b"good"))
    client._plain.send(b"\x00 this is no record")
    assert received(server, 100) == b"good"
    for _ in range(2):
        with pytest.raises(ssl.SSLError):
            server.recv_into(memoryview(bytearray(10)))


def test_a_low_water_mark_is_not_set_because_it_counts_other_bytes(pair: Pair) -> None:
    client, _ = pair()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 100_000)
    assert client._plain.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
    client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    assert client._plain.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


@pytest.mark.parametrize("name", ["a" * 300, "..", "a..b"])
def test_a_host_that_is_in_no_certificate_is_refused(contexts: tuple[ssl.SSLContext, ssl.SSLContext], name: str, tmp_path: Path) -> None:
    with socket.socket() as plain, pytest.raises(ValueError):
        TlsSocket(plain, contexts[0], name, lambda: None)


def test_nobody_begins_a_handshake_amid_data(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """With TLS 1.2 the other side could ask for one as often as it likes, and what is sent meanwhile would fail."""
    assert all(one.options & ssl.OP_NO_RENEGOTIATION for one in contexts)


def test_records_that_carry_nothing_hold_up_nobody(contexts: tuple[ssl.SSLContext, ssl.SSLContext], tmp_path: Path) -> None:
    """A server may send tickets without an end. A call takes some of them, and asks for another turn."""
    ca = Authority.made(tmp_path, "ca")
    certificate, key = ca.signed("server", ["IP:127.0.0.1"])
    generous = context_of("test", ca=None, cert=certificate, key=key, server=True, key_password=None, verify_host=True)
    generous.num_tickets = 40_000  # some 10 MB
    trusting = context_of("test", ca=ca.certificate, cert=None, key=None, key_password=None, verify_host=True)
    turns: list[None] = []
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as mine:

        def serve() -> None:
            peer, _ = listener.accept()
            with suppress(OSError), generous.wrap_socket(peer, server_side=True) as secured:
                secured.sendall(b"behind them")
                secured.recv(1)

        server = threading.Thread(target=serve)
        server.start()
        mine.setblocking(False)
        client = TlsSocket(mine, trusting, "127.0.0.1", lambda: turns.append(None))
        pulled = Pulled(mine)
        client._plain = pulled
        came = b""
        deadline = time.monotonic() + 60
        while not client.shake():
            assert select.select([mine], [], [], 60)[0]
        while came != b"behind them":
            assert time.monotonic() < deadline
            pulled.count = 0
            came += received(client, 100)
            assert pulled.count <= STEPS_MAX // PULL_STEPS + 1
        client.close()
        server.join(60)


class Pulled:
    """A socket over a fast network, on which more has always come, that counts how often it is asked for it."""

    def __init__(self, inner: socket.socket) -> None:
        self.inner, self.count = inner, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def recv_into(self, room: memoryview) -> int:
        self.count += 1
        select.select([self.inner], [], [], 1)
        return self.inner.recv_into(room)
