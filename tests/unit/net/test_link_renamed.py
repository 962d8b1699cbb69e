"""A link learns that the name of its bookie leads elsewhere."""

from __future__ import annotations

import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import bk_core
from bk_core.metadata.memory import MemoryStore
from bk_core.metadata.store import Registration
from bk_core.net.connecting import CONNECT_TIMEOUT_NS
from bk_core.net.link import BookieLink
from bk_core.protocol.wire.messages import ReadRequest, Status
from tests.integration.patience import until

S = 1_000_000_000
QUEUE_MAX = 16
"""A queue of length 0 holds one connection; the kernel may take a few more."""


class World:
    """A bookie registered by name, played by sockets that only listen, and the addresses of that name."""

    def __init__(self, client: bk_core.BookKeeper, store: MemoryStore, port: int, hosts: list[str]) -> None:
        self.client, self.store, self.port, self.hosts = client, store, port, hosts
        self.registration: Registration = store.register_bookie("shelf-1", "shelf-1.example", port)
        self.answers: queue.SimpleQueue[Status] = queue.SimpleQueue()

    def ask(self) -> None:
        session = self.client._session
        message = ReadRequest(0, 1, 0)
        session.reactor.post(lambda: session.link("shelf-1", "data").request(message, 600 * S, lambda status, _: self.answers.put(status)))

    def register_again(self) -> None:
        self.registration.close()
        self.registration = self.store.register_bookie("shelf-1", "shelf-1.example", self.port)

    @property
    def link(self) -> BookieLink:
        (link,) = self.client._session._links.values()
        return link

    def is_at(self, host: str) -> bool:
        return self.link._connected and self.link._target is not None and self.link._target[3][0] == host


@contextmanager
def black_hole(host: str, port: int) -> Iterator[None]:
    """An address that takes no connection and refuses none: its queue is full, and the kernel drops what comes."""
    with ExitStack() as held:
        listener = held.enter_context(socket.socket())
        listener.bind((host, port))
        listener.listen(0)
        for _ in range(QUEUE_MAX):
            probe = held.enter_context(socket.socket())
            probe.settimeout(0.3)
            try:
                probe.connect((host, port))
            except TimeoutError:
                break
        else:
            raise AssertionError(f"the queue of a listener takes {QUEUE_MAX} connections, and is to take none")
        yield


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    real, hosts = socket.getaddrinfo, ["127.0.0.2"]

    def getaddrinfo(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host != "shelf-1.example":
            return real(host, port, *arguments, **options)
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (one, port)) for one in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    store = MemoryStore(uuid.uuid4().hex)
    store.initialize_cluster()
    with socket.create_server(("127.0.0.2", 0)) as before:
        port = before.getsockname()[1]
        with socket.create_server(("127.0.0.3", port)), bk_core.connect("memory://renamed", store=store) as client:
            yield World(client, store, port, hosts)


def test_a_bookie_that_is_registered_again_is_looked_for_where_its_name_leads(world: World) -> None:
    """LINK-4: what was asked at the old address is asked again at the new one."""
    world.ask()
    until(lambda: bool(world.client._session._links) and world.is_at("127.0.0.2"), "no connection is made")
    world.hosts[:] = ["127.0.0.3"]
    world.register_again()
    until(lambda: world.is_at("127.0.0.3"), "the connection still leads to where the bookie was")
    assert world.answers.empty()


def test_a_lookup_that_began_before_the_bookie_registered_again_does_not_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """LINK-4: whoever asks during it would learn where the bookie was."""
    begun, go, found = threading.Event(), threading.Event(), socket.getaddrinfo

    def slow(host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        answer = found(host, port, *arguments, **options)
        if host == "shelf-1.example" and not begun.is_set():
            begun.set()
            assert go.wait(20)
        return answer

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    world.ask()
    assert begun.wait(20)
    world.hosts[:] = ["127.0.0.3"]
    world.register_again()
    until(lambda: bool(world.client._session._names._next), "the name is not looked up again")
    go.set()
    until(lambda: world.is_at("127.0.0.3"), "the connection leads to where the bookie was")


def test_a_connection_that_is_being_made_to_where_it_was_is_given_up(world: World) -> None:
    """LINK-4: at a black hole, to which no connection is refused, a new attempt would begin when the time of this one is over."""
    with black_hole("127.0.0.4", world.port):
        world.hosts[:] = ["127.0.0.4"]
        world.ask()
        until(lambda: bool(world.client._session._links) and world.link._socket is not None, "no connection is tried")
        world.hosts[:] = ["127.0.0.3"]
        began = time.monotonic()
        world.register_again()
        until(lambda: world.is_at("127.0.0.3"), "no connection is made to where the bookie is")
        assert time.monotonic() - began < CONNECT_TIMEOUT_NS / S / 2
        assert world.answers.empty()  # whoever waited waits for the answer of the bookie


@pytest.mark.parametrize("hosts", [["127.0.0.2"], ["127.0.0.9", "127.0.0.2"], []], ids=["same", "one more", "unknown"])
def test_a_connection_stays_as_long_as_its_address_may_be_right(world: World, hosts: list[str]) -> None:
    """LINK-4: whoever has registered again may be the same bookie, whose session with the store was lost."""
    told: queue.SimpleQueue[bool] = queue.SimpleQueue()
    world.ask()
    until(lambda: bool(world.client._session._links) and world.is_at("127.0.0.2"), "no connection is made")
    world.hosts[:] = hosts
    renamed: Callable[..., bool] = world.link.renamed
    world.link.renamed = lambda *arguments: bool(told.put(renamed(*arguments)))  # type: ignore[method-assign]
    socket_of = world.link._socket
    world.register_again()
    assert told.get(timeout=20) is False
    assert world.is_at("127.0.0.2") and world.link._socket is socket_of


@pytest.mark.parametrize("spelling", ["127.0.0.2", "::ffff:127.0.0.2", "shelf-1.example", "Shelf-1.Example."])
def test_a_connection_ends_whose_address_another_bookie_has_registered_at(world: World, spelling: str) -> None:
    """LINK-4: it would take what is sent to this one. The name leads to the address."""
    world.ask()
    until(lambda: bool(world.client._session._links) and world.is_at("127.0.0.2"), "no connection is made")
    done = threading.Event()
    link, reactor = world.link, world.client._session.reactor
    reactor.post(lambda: (link.given_away(("127.0.0.9", world.port), "other"), link.given_away((spelling, world.port + 1), "other")))
    reactor.post(done.set)
    assert done.wait(30)
    before = link._socket
    assert before is not None
    reactor.post(lambda: link.given_away((spelling, world.port), "other"))
    until(lambda: link._socket is not before, "the connection stays")
