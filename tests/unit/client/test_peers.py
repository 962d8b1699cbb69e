"""Suspects are asked again, and connections are made while the metadata store is silent. A small server plays the bookie."""

from __future__ import annotations

import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import bk_core
from bk_core.client.peers import Resolver
from bk_core.metadata.memory import MemoryStore
from bk_core.net import connecting
from bk_core.net.link import BookieLink
from bk_core.net.reactor import Reactor
from bk_core.protocol.wire import connection
from bk_core.protocol.wire.messages import BatchReadRequest, ReadRequest, ReadResponse, Request, Status

PATIENCE_S = 20.0
S = 1_000_000_000


class Server:
    """Takes connections; closes each at its first request, or with ``answers`` has no such ledger."""

    def __init__(self) -> None:
        self.answers = False
        self.requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        protocol = connection.ServerProtocol()
        with peer:
            while data := peer.recv(4096):
                for request, reply_to in protocol.feed(data):
                    self.requests.put(request)
                    if not self.answers:
                        return
                    assert isinstance(request, ReadRequest)
                    response = ReadResponse(request.request_id, Status.NO_LEDGER, request.ledger_id, request.entry_id)
                    peer.sendall(protocol.encode(response, reply_to))

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def client(server: Server) -> Iterator[bk_core.BookKeeper]:
    store = MemoryStore(uuid.uuid4().hex)
    store.initialize_cluster()
    store.register_bookie(f"127.0.0.1:{server.port}", "127.0.0.1", server.port)
    with bk_core.connect("memory://peers", store=store, quarantine_s=0.2) as bk:
        yield bk


def ask(bk: bk_core.BookKeeper, server: Server, kind: str, message: Request) -> Status:
    """Return the outcome of one request on a connection of that kind."""
    came: queue.SimpleQueue[Status] = queue.SimpleQueue()
    session = bk._session
    bookie = f"127.0.0.1:{server.port}"
    session.reactor.post(lambda: session.link(bookie, kind).request(message, 5 * S, lambda status, _: came.put(status)))
    return came.get(timeout=PATIENCE_S)


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_a_bookie_without_batch_read_is_no_suspect_for_being_read_from(client: bk_core.BookKeeper, server: Server) -> None:
    """SES-1: an old bookie closes the connection that asks for one."""
    assert ask(client, server, "batch", BatchReadRequest(0, 1, 0, 10, 1000)) in (Status.UNAVAILABLE, Status.BAD_REQUEST)
    assert client._session._avoided() == frozenset()
    assert ask(client, server, "data", ReadRequest(0, 1, 0)) is Status.UNAVAILABLE
    assert client._session._avoided() == {f"127.0.0.1:{server.port}"}


def test_a_suspect_is_asked_by_itself_until_it_answers(client: bk_core.BookKeeper, server: Server) -> None:
    """SES-2, SES-3: nobody else talks to it."""
    ask(client, server, "data", ReadRequest(0, 1, 0))
    for _ in range(3):  # the request, and two questions
        server.requests.get(timeout=PATIENCE_S)
    assert client._session._avoided()
    server.answers = True
    until(lambda: not client._session._avoided(), "a bookie that answers again is still avoided")
    assert isinstance(server.requests.get(timeout=PATIENCE_S), ReadRequest)


class Slow(MemoryStore):
    """Knows an address, and sometimes takes its time to tell it."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex)
        self.initialize_cluster()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = 0
        self.address = ("127.0.0.1", 1)

    def resolve(self, bookie_id: str) -> tuple[str, int]:
        self.asked += 1
        assert self.may_answer.wait(PATIENCE_S)
        return self.address


def test_a_known_address_is_taken_while_the_store_is_silent() -> None:
    """SES-5, SES-6: soon, and the store is asked once however often that happens; what it says then counts for the next time."""
    store = Slow()
    with bk_core.connect("memory://slow", store=store) as bk:
        session = bk._session
        resolver = Resolver(session.reactor, store, session.metadata_call)
        came: queue.SimpleQueue[tuple[Any, str]] = queue.SimpleQueue()

        def resolve() -> tuple[Any, str]:
            session.reactor.post(lambda: resolver.resolve("b", lambda address, problem: came.put((address, problem))))
            return came.get(timeout=PATIENCE_S)

        assert resolve() == (("127.0.0.1", 1), "")
        store.may_answer.clear()
        store.address = ("127.0.0.1", 2)
        assert [resolve(), resolve(), resolve()] == [(("127.0.0.1", 1), "")] * 3
        assert store.asked == 2
        store.may_answer.set()
        until(lambda: resolve() == (("127.0.0.1", 2), ""), "the new address is not taken")


def test_looking_up_an_address_takes_nothing_from_the_time_to_connect(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """SES-5: a store that answered after 5 s cost every connection, though the bookie was there."""
    monkeypatch.setattr(connecting, "CONNECT_TIMEOUT_NS", 100_000_000)
    server.answers = True
    reactor = Reactor()
    came: queue.SimpleQueue[Status] = queue.SimpleQueue()
    kept: list[BookieLink] = []

    def begin() -> None:
        def resolve(_bookie: str, then: Callable[..., None]) -> None:
            reactor.call_later(S, lambda: then(("127.0.0.1", server.port), ""))

        kept.append(BookieLink(reactor, "b", "v2", resolve, 1 << 20))
        kept[0].request(ReadRequest(0, 1, 0), 10 * S, lambda status, _: came.put(status))

    reactor.post(begin)
    try:
        assert came.get(timeout=PATIENCE_S) is Status.NO_LEDGER
    finally:
        reactor.post(lambda: kept[0].close())
        reactor.close()
