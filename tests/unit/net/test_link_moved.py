"""A link whose bookie is found elsewhere, or whose place another bookie takes, while it finds out where to connect to."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from bk_core.net.entering import Turn
from bk_core.net.link import BookieLink
from bk_core.net.names import Names
from bk_core.net.reactor import Reactor
from bk_core.protocol.wire.messages import ReadRequest, Status
from tests.unit.net.test_link_adds import LEDGER, run_of

PATIENCE_S = 20.0
S = 1_000_000_000
HOST = "shelf.example"

Place = tuple[str, int]


class World:
    """A link whose questions the test answers: for the bookie's address, for the addresses of its host, and for files and secrets."""

    needs_connection = False

    def __init__(self, ending: ExitStack) -> None:
        self.reactor = Reactor()
        self.told: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.asked: queue.SimpleQueue[Callable[[Place | None, str], None]] = queue.SimpleQueue()
        self.named: queue.SimpleQueue[queue.SimpleQueue[list[str]]] = queue.SimpleQueue()
        self.servers = [ending.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        for server in self.servers:
            server.settimeout(PATIENCE_S)
        ending.callback(self.reactor.close)

    def link(self, ending: ExitStack, **options: Any) -> BookieLink:
        def resolve(_bookie: str, then: Callable[[Place | None, str], None]) -> None:
            self.asked.put(then)

        names = Names(self.reactor.post, self._getaddrinfo)
        made: BookieLink = self.on_reactor(lambda: BookieLink(self.reactor, "b", "v2", resolve, 1 << 20, names=names, **options))
        ending.callback(lambda: self.on_reactor(made.close))
        return made

    def _getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        answer: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self.named.put(answer)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (found, port)) for found in answer.get(timeout=PATIENCE_S)]

    def on_reactor(self, function: Callable[[], Any]) -> Any:
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.reactor.post(lambda: done.put(function()))
        return done.get(timeout=PATIENCE_S)

    def place(self, index: int) -> Place:
        return "127.0.0.1", self.servers[index].getsockname()[1]

    def use(self, link: BookieLink, what: str) -> None:
        """Send adds, or ask for an entry."""

        def use() -> None:
            if what == "adds":
                link.listen(LEDGER, self)
                link.send_adds(run_of(0, 3), 0, 0, 1, 1)
            else:
                link.request(ReadRequest(0, 1, 0), 30 * S, lambda status, _: self.told.put(status))

        self.on_reactor(use)

    def resolved(self, place: Place | None) -> None:
        then = self.asked.get(timeout=PATIENCE_S)
        self.on_reactor(lambda: then(place, "" if place else "nobody knows"))

    def comes(self, index: int) -> None:
        """Wait until something arrives at a place, and see that nobody was told of a failure and nothing went to the other one."""
        peer, _ = self.servers[index].accept()
        with peer:
            assert peer.recv(4096)
            assert self.told.empty()
        self.servers[1 - index].setblocking(False)
        with pytest.raises(BlockingIOError):
            self.servers[1 - index].accept()

    def on_add(self, *_: object) -> None: ...

    def on_lost(self, _bookie: str, status: Status) -> None:
        self.told.put(status)


@pytest.fixture
def ending() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def world(ending: ExitStack) -> World:
    return World(ending)


def was_at_the_first(world: World, link: BookieLink) -> None:
    """Have a link whose last attempt, at the first place, was refused."""
    world.use(link, "read")
    world.resolved(("127.0.0.1", 1))
    assert world.told.get(timeout=PATIENCE_S) is Status.UNAVAILABLE
    world.on_reactor(link.returned)


@pytest.mark.parametrize("what", ["read", "adds"])
def test_a_bookie_found_elsewhere_while_it_is_asked_for_is_waited_for(world: World, ending: ExitStack, what: str) -> None:
    """LINK-7: the address of the attempt before is no reason to end the one that is under way."""
    link = world.link(ending)
    was_at_the_first(world, link)
    world.use(link, what)
    assert world.on_reactor(lambda: link.moved(world.place(1))) is True
    world.resolved(world.place(1))
    world.comes(1)


@pytest.mark.parametrize("what", ["read", "adds"])
def test_an_answer_of_before_the_bookie_moved_is_asked_for_again(world: World, ending: ExitStack, what: str) -> None:
    """LINK-4: either of the two answers may be the older one."""
    link = world.link(ending)
    was_at_the_first(world, link)
    world.use(link, what)
    world.on_reactor(lambda: link.moved(world.place(1)))
    world.resolved(world.place(0))
    world.resolved(world.place(1))
    world.comes(1)


def test_a_bookie_that_nobody_knows_any_more_is_not_waited_for(world: World, ending: ExitStack) -> None:
    """LINK-7: it was found elsewhere, and went before its address was told."""
    link = world.link(ending)
    was_at_the_first(world, link)
    world.use(link, "read")
    world.on_reactor(lambda: link.moved(world.place(1)))
    world.resolved(None)
    assert world.told.get(timeout=PATIENCE_S) is Status.UNAVAILABLE


@pytest.mark.parametrize("taken", [HOST, "127.0.0.1"])
@pytest.mark.parametrize("what", ["read", "adds"])
def test_a_place_that_is_given_away_while_its_host_is_looked_up(world: World, ending: ExitStack, what: str, taken: str) -> None:
    """LINK-4: a connection to it would stay, and its new bookie would take the entries of this one."""
    link = world.link(ending)
    world.use(link, what)
    world.resolved((HOST, world.place(0)[1]))
    looked_up = world.named.get(timeout=PATIENCE_S)
    world.on_reactor(lambda: link.given_away((taken, world.place(0)[1]), "other"))
    looked_up.put(["127.0.0.1"])
    world.resolved(world.place(1))
    world.comes(1)


def test_a_name_is_looked_up_anew_when_its_place_was_given_away(world: World, ending: ExitStack) -> None:
    """LINK-4: the bookie has kept its name and moved. A lookup that began before finds where it was."""
    link, name = world.link(ending), (HOST, world.place(0)[1])
    world.use(link, "adds")
    world.resolved(name)
    before = world.named.get(timeout=PATIENCE_S)
    world.on_reactor(lambda: link.given_away(("127.0.0.1", name[1]), "other"))
    world.resolved(name)
    before.put(["127.0.0.1"])
    with socket.create_server(("127.0.0.3", name[1])) as elsewhere:
        elsewhere.settimeout(PATIENCE_S)
        world.named.get(timeout=PATIENCE_S).put(["127.0.0.3"])
        with elsewhere.accept()[0] as peer:
            assert peer.recv(4096)
    world.servers[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        world.servers[0].accept()


def test_a_place_that_is_given_away_while_secrets_are_read(world: World, ending: ExitStack) -> None:
    """LINK-4: what is read for the place that was, is not used."""
    begun: queue.SimpleQueue[Turn] = queue.SimpleQueue()

    def prepare(bookie: str, host: str, then: Any) -> Turn:
        turn = Turn(bookie, host, then)
        begun.put(turn)
        return turn

    link = world.link(ending, prepare=prepare)
    world.use(link, "adds")
    world.resolved(world.place(0))
    turn = begun.get(timeout=PATIENCE_S)
    world.on_reactor(lambda: link.given_away(world.place(0), "other"))
    assert turn.is_over
    world.resolved(("127.0.0.9", world.place(1)[1]))
    assert begun.get(timeout=PATIENCE_S).host == "127.0.0.9"
    assert world.told.empty()


def test_a_place_that_is_given_away_before_its_turn(world: World, ending: ExitStack) -> None:
    """LINK-4: the host has two addresses. The first takes no connection, and the second is another bookie's by now."""
    link, port = world.link(ending), world.place(0)[1]
    with socket.socket() as full:
        full.bind(("127.0.0.2", port))
        full.listen(0)
        others = [socket.socket() for _ in range(3)]
        try:
            for one in others:
                one.setblocking(False)
                one.connect_ex(("127.0.0.2", port))
            world.use(link, "adds")
            world.resolved((HOST, port))
            world.named.get(timeout=PATIENCE_S).put(["127.0.0.2", "127.0.0.1"])
            tried = threading.Event()

            def look() -> None:
                tried.set() if link._socket is not None else world.reactor.post(look)

            world.reactor.post(look)
            assert tried.wait(PATIENCE_S)
            world.on_reactor(lambda: link.given_away(world.place(0), "other"))
            world.resolved(world.place(1))
            world.comes(1)
        finally:
            for one in others:
                one.close()


def test_a_registration_elsewhere_disturbs_nobody(world: World, ending: ExitStack) -> None:
    link = world.link(ending)
    world.use(link, "adds")
    world.resolved((HOST, world.place(0)[1]))
    looked_up = world.named.get(timeout=PATIENCE_S)
    world.on_reactor(lambda: link.given_away(world.place(1), "other"))
    looked_up.put(["127.0.0.1"])
    world.comes(0)
    assert world.asked.empty()
