"""Answers are matched by number and operation on a v3 connection."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator

import pytest

from bk_core.net.link import SEND_BUFFERS_MAX, BookieLink
from bk_core.net.reactor import Reactor
from bk_core.protocol.wire import connection
from bk_core.protocol.wire.messages import (
    ForceLedgerRequest,
    ForceLedgerResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    Status,
)

S = 1_000_000_000


class Peer:
    """The bookie's end of one connection, by hand."""

    def __init__(self, listener: socket.socket) -> None:
        self._sock, _ = listener.accept()
        self._sock.settimeout(10)
        self._protocol = connection.ServerProtocol()
        self.requests: list[Request] = []

    def receive(self, count: int) -> None:
        while len(self.requests) < count:
            self.requests += [request for request, _ in self._protocol.feed(self._sock.recv(4096))]

    def send(self, response: Response) -> None:
        self._sock.sendall(self._protocol.encode(response, connection.ReplyTo("v3", 3)))

    def close(self) -> None:
        self._sock.close()


@pytest.fixture
def link_and_listener() -> Iterator[tuple[BookieLink, socket.socket]]:
    reactor = Reactor()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        made: queue.SimpleQueue[BookieLink] = queue.SimpleQueue()
        address = listener.getsockname()

        def make() -> None:
            made.put(BookieLink(reactor, "b", "v3", lambda bookie, then: then(address, ""), 1 << 20))

        reactor.post(make)
        link = made.get(timeout=10)
        yield link, listener
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        reactor.post(lambda: (link.close(), ended.put(None))[1])  # type: ignore[func-returns-value]
        ended.get(timeout=10)
    reactor.close()


def test_an_answer_to_another_operation_is_dropped(link_and_listener: tuple[BookieLink, socket.socket]) -> None:
    """SM-3, wire-protocol.md 9: the number alone does not tell whose answer it is; the right answer still arrives."""
    link, listener = link_and_listener
    answers: queue.SimpleQueue[tuple[str, Status, Response | None]] = queue.SimpleQueue()
    requests = {"read": ReadRequest(0, 7, -1), "lac": ReadLacRequest(0, 7), "force": ForceLedgerRequest(0, 7)}
    for name, message in requests.items():
        link._reactor.post(lambda n=name, r=message: link.request(r, 30 * S, lambda s, a: answers.put((n, s, a))))  # type: ignore[misc]
    peer = Peer(listener)
    peer.receive(3)
    read, lac, force = (request.request_id for request in peer.requests)
    peer.send(ReadLacResponse(read, Status.NO_LEDGER, 7))
    peer.send(ReadResponse(lac, Status.NO_ENTRY, 7, -1))
    peer.send(ReadResponse(force, Status.OK, 7, -1))
    peer.send(ForceLedgerResponse(99, Status.OK, 7))
    peer.send(ForceLedgerResponse(force, Status.IO_ERROR, 7))
    peer.send(ReadLacResponse(lac, Status.NO_ENTRY, 7))
    peer.send(ReadResponse(read, Status.OK, 7, -1, b"x" * 40))
    got = [answers.get(timeout=10) for _ in range(3)]
    assert [(name, status) for name, status, _ in got] == [("force", Status.IO_ERROR), ("lac", Status.NO_ENTRY), ("read", Status.OK)]
    peer.close()


def test_what_is_sent_in_one_turn_goes_out_in_one_call(
    link_and_listener: tuple[BookieLink, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system call per message costs more than the message; a long turn does not pile up more than one call takes."""
    link, listener = link_and_listener
    flushes: list[int] = []
    flush = BookieLink._flush
    monkeypatch.setattr(BookieLink, "_flush", lambda self: (flushes.append(len(self._output)), flush(self))[1])
    link._reactor.post(lambda: link.request(ReadLacRequest(0, 7), 30 * S, lambda s, a: None))
    peer = Peer(listener)
    peer.receive(1)
    for count, sizes in ((50, [50]), (SEND_BUFFERS_MAX + 1, [SEND_BUFFERS_MAX, 1])):
        before = len(peer.requests)
        flushes.clear()

        def many(count: int = count) -> None:
            for _ in range(count):
                link.request(ReadLacRequest(0, 7), 30 * S, lambda s, a: None)

        link._reactor.post(many)
        peer.receive(before + count)
        assert flushes == sizes
    peer.close()
