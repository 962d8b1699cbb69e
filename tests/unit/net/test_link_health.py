"""Links to bookies that fall silent, move, send what cannot be handled, or have several addresses: a link and a server of our own."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from bk_core import kernels
from bk_core.net.link import BookieLink
from bk_core.net.names import Names
from bk_core.net.reactor import Reactor
from bk_core.protocol.wire import codec_v2, connection
from bk_core.protocol.wire.messages import (
    AddResponse,
    BatchReadRequest,
    EntryListRequest,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    Status,
)
from tests.unit.net.test_link_adds import LEDGER, run_of

S = 1_000_000_000
PATIENCE_S = 20.0


def frame(response: Response) -> bytes:
    return connection.ServerProtocol().encode(response, connection.ReplyTo("v2", 2))


@dataclass
class World:
    """Links to one listener whose connections the test answers itself."""

    reactor: Reactor
    listener: socket.socket
    told: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    silent: queue.SimpleQueue[tuple[str, int]] = field(default_factory=queue.SimpleQueue)
    peers: list[socket.socket] = field(default_factory=list)
    links: list[BookieLink] = field(default_factory=list)

    def link(self, address: tuple[str, int] | None = None, protocol: connection.Protocol = "v2", **options: Any) -> BookieLink:
        where = address or self.listener.getsockname()
        link = self.on_reactor(
            lambda: BookieLink(
                self.reactor,
                "b",
                protocol,
                lambda bookie, then: then(where, ""),
                1 << 20,
                on_silent=lambda *a: self.silent.put(a),
                **options,
            )
        )
        self.links.append(link)
        return link

    def link_to(self, where: list[tuple[str, int]]) -> BookieLink:
        """Return a link to a bookie that is at ``where[0]`` whenever it is asked for."""
        link: BookieLink = self.on_reactor(lambda: BookieLink(self.reactor, "b", "v2", lambda bookie, then: then(where[0], ""), 1 << 20))
        self.links.append(link)
        return link

    def on_reactor(self, function: Callable[[], Any]) -> Any:
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.reactor.post(lambda: done.put(function()))
        return done.get(timeout=PATIENCE_S)

    def ask(self, link: BookieLink, name: str, message: Request, timeout_s: float = 30.0) -> None:
        self.on_reactor(lambda: link.request(message, int(timeout_s * S), lambda status, _: self.told.put((name, status))) and None)

    def accept(self) -> socket.socket:
        peer, _ = self.listener.accept()
        peer.settimeout(PATIENCE_S)
        self.peers.append(peer)
        return peer

    def requests(self, peer: socket.socket, count: int = 1) -> list[Any]:
        server, found = connection.ServerProtocol(), []
        while len(found) < count:
            data = peer.recv(4096)
            assert data
            found += [request for request, _ in server.feed(data)]
        return found

    def serve(self, peer: socket.socket, count: int = 1) -> None:
        for request in self.requests(peer, count):
            peer.sendall(frame(ReadResponse(0, Status.OK, request.ledger_id, request.entry_id, bytes(40))))

    def warm(self, link: BookieLink) -> socket.socket:
        self.ask(link, "warm", ReadRequest(0, 1, 0))
        peer = self.accept()
        self.serve(peer)
        assert self.next() == ("warm", Status.OK)
        return peer

    def next(self) -> Any:
        return self.told.get(timeout=PATIENCE_S)

    # as a listener of adds
    needs_connection = False

    def on_add(self, bookie: str, first: int, count: int, status: Status, entries: int | None) -> None:
        self.told.put(("added", first, count))

    def on_lost(self, bookie: str, status: Status) -> None:
        self.told.put(("lost", status))


@pytest.fixture
def world() -> Iterator[World]:
    reactor = Reactor()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        made = World(reactor, listener)
        yield made
        made.on_reactor(lambda: [link.close() for link in made.links])
        for peer in made.peers:
            peer.close()
    reactor.close()


def test_a_question_that_some_bookies_never_answer_ends_no_connection(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """LINK-3: the list of a ledger's entries times out, without a word, and what else is asked goes on over the same connection."""
    link = world.link(protocol="v3")
    world.ask(link, "list", EntryListRequest(0, 1), 0.3)
    peer = world.accept()
    world.requests(peer)
    assert world.next() == ("list", Status.TIMEOUT)
    world.ask(link, "read", ReadRequest(0, 1, 1))
    (request,) = world.requests(peer)
    answer = ReadResponse(request.request_id, Status.OK, 1, 1, bytes(40))
    peer.sendall(connection.ServerProtocol().encode(answer, connection.ReplyTo("v3", request.request_id)))
    assert world.next() == ("read", Status.OK)
    assert world.silent.empty() and not caplog.records
    world.ask(link, "silent", ReadRequest(0, 1, 2), 0.3)
    assert world.next() == ("silent", Status.TIMEOUT)
    assert "nothing came for a whole timeout" in caplog.text  # as ever


def test_a_silent_connection_is_dropped_and_the_others_of_its_bookie_are_in_doubt(world: World) -> None:
    """LINK-3, LINK-4, LINK-7: what was silent is told, once; what had time left is asked again on the next connection."""
    data, batch = world.link(), world.link()
    idle = world.warm(batch)
    peer = world.warm(data)
    world.ask(data, "silent", ReadRequest(0, 1, 1), 0.3)
    world.ask(data, "patient", ReadRequest(0, 1, 2), 30)
    assert world.next() == ("silent", Status.TIMEOUT)
    bookie, since_ns = world.silent.get(timeout=PATIENCE_S)
    again = world.accept()
    (request,) = world.requests(again)
    assert (bookie, request.entry_id) == ("b", 2)
    again.sendall(frame(ReadResponse(0, Status.OK, 1, 2, bytes(40))))
    assert world.next() == ("patient", Status.OK)
    world.requests(peer, 2)
    assert peer.recv(1) == b""  # the old connection is closed
    world.on_reactor(lambda: [link.doubt(since_ns) for link in (data, batch)])
    assert idle.recv(1) == b""
    world.ask(data, "kept", ReadRequest(0, 1, 3))
    world.serve(again)  # this one has been heard from since
    assert world.next() == ("kept", Status.OK)


def test_a_young_add_is_not_lost_with_another_connection(world: World) -> None:
    """LINK-4: a link with nothing under way is dropped, one with an add is not, until its own time is over."""
    silent, busy, idle = world.link(), world.link(), world.link()
    living, sleeping = world.warm(busy), world.warm(idle)
    world.warm(silent)
    world.on_reactor(lambda: (busy.listen(LEDGER, world), idle.listen(LEDGER + 1, world)))
    world.ask(silent, "silent", ReadRequest(0, 1, 1), 0.2)
    assert world.next() == ("silent", Status.TIMEOUT)
    _, since_ns = world.silent.get(timeout=PATIENCE_S)
    world.on_reactor(lambda: busy.send_adds(run_of(0, 1), 0, 0, 1, 1))
    assert len(world.requests(living)) == 1
    world.on_reactor(lambda: [link.doubt(since_ns) for link in (busy, idle)])
    assert sleeping.recv(1) == b"" and world.next() == ("lost", Status.TIMEOUT)  # of the idle one
    living.sendall(frame(AddResponse(0, Status.OK, LEDGER, 0)))
    assert world.next() == ("added", 0, 1)


def test_a_connection_that_a_writer_needs_is_not_lost_with_another(world: World) -> None:
    """LINK-4, WR-17: everything was answered, and without this very connection nobody knows if it is still there."""
    kept = world.link()
    living = world.warm(kept)
    world.on_reactor(lambda: (kept.listen(LEDGER, world), kept.send_adds(run_of(0, 1), 0, 0, 1, 1)))
    assert len(world.requests(living)) == 1
    living.sendall(frame(AddResponse(0, Status.OK, LEDGER, 0)))
    assert world.next() == ("added", 0, 1)
    later_ns = world.reactor.now_ns() + 3600 * S  # as if nothing had come for long
    world.needs_connection = True
    world.on_reactor(lambda: kept.doubt(later_ns))
    world.ask(kept, "kept", ReadRequest(0, 1, 3))
    world.serve(living)
    assert world.next() == ("kept", Status.OK)
    world.needs_connection = False
    world.on_reactor(lambda: kept.doubt(later_ns))
    assert world.next() == ("lost", Status.TIMEOUT)


def test_unanswered_adds_make_a_silence(world: World) -> None:
    """LINK-3: nobody but adds waits on this connection."""
    link = world.link(add_timeout_ns=S // 3)
    peer = world.warm(link)
    world.on_reactor(lambda: (link.listen(LEDGER, world), link.send_adds(run_of(0, 3), 0, 0, 1, 1)))
    assert len(world.requests(peer, 3)) == 3
    assert world.next() == ("lost", Status.TIMEOUT)
    assert world.silent.get(timeout=PATIENCE_S)[0] == "b" and peer.recv(1) == b""


def test_answered_adds_leave_a_connection_alone(world: World) -> None:
    """LINK-3: an idle connection may be silent for as long as it likes."""
    link = world.link(add_timeout_ns=S // 5)
    peer = world.warm(link)
    world.on_reactor(lambda: (link.listen(LEDGER, world), link.send_adds(run_of(0, 5), 0, 0, 1, 1)))
    world.requests(peer, 5)
    peer.sendall(b"".join(frame(AddResponse(0, Status.OK, LEDGER, entry)) for entry in (0, 1, 4, 3, 2)))
    told = 0
    while told < 5:
        told += 5 if (answer := world.next()) == ("added", 0, 5) else bin(answer[2]).count("1")
        if world.on_reactor(lambda: link._health.adds_unanswered) == 0:
            break
    looks: queue.SimpleQueue[None] = queue.SimpleQueue()
    world.on_reactor(lambda: world.reactor.call_later(S, lambda: looks.put(None)) and None)
    looks.get(timeout=PATIENCE_S)  # several timeouts later
    assert world.silent.empty()
    world.ask(link, "same", ReadRequest(0, 1, 1))
    world.serve(peer)
    while (answer := world.next())[0] == "added":
        pass
    assert answer == ("same", Status.OK)


def test_a_bookie_that_moved(world: World) -> None:
    """LINK-4: the connection is dropped as soon as the registry says another address; reads go there."""
    where = [world.listener.getsockname()]
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        link = world.link_to(where)
        old = world.warm(link)
        world.on_reactor(lambda: link.moved(where[0]))
        world.ask(link, "moving", ReadRequest(0, 1, 1))
        world.requests(old)
        where[0] = elsewhere.getsockname()
        world.on_reactor(lambda: link.moved(where[0]))
        assert old.recv(1) == b""
        elsewhere.settimeout(PATIENCE_S)
        peer, _ = elsewhere.accept()
        with peer:
            world.serve(peer)
            assert world.next() == ("moving", Status.OK)


def test_a_bookie_found_elsewhere_is_not_waited_for(world: World) -> None:
    """LINK-7: the pause belongs to the address that another bookie has now. A writer without a spare would end in it."""
    where = [world.listener.getsockname()]
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        link = world.link_to(where)
        old = world.warm(link)
        before, where[0] = where[0], elsewhere.getsockname()
        adds = run_of(0, 3)

        def at_once() -> None:
            link.listen(LEDGER, world)
            link.given_away(before, "other")
            link.moved(where[0])
            link.send_adds(adds, 0, 0, 1, 1)

        world.on_reactor(at_once)
        elsewhere.settimeout(PATIENCE_S)
        peer, _ = elsewhere.accept()
        with peer:
            world.requests(peer, 3)
        assert old.recv(1) == b""
        assert world.next() == ("lost", Status.UNAVAILABLE)  # of the connection to where it was
        assert world.told.empty()


def test_what_cannot_be_handled_ends_the_connection(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """LINK-9: everybody is told at once, nothing of the bytes is left, and the next connection works."""
    link = world.link()
    peer = world.warm(link)
    world.on_reactor(lambda: (link.listen(LEDGER, world), link.send_adds(run_of(0, 9), 0, 0, 1, 1)))
    world.ask(link, "read", ReadRequest(0, 1, 1))
    with monkeypatch.context() as patched:
        patched.setattr(kernels, "entry_bits", lambda *_: 1 // 0)
        peer.sendall(b"".join(frame(AddResponse(0, Status.OK, LEDGER, entry)) for entry in (0, 4)))
        assert sorted([world.next(), world.next()]) == [("lost", Status.PROTOCOL_ERROR), ("read", Status.PROTOCOL_ERROR)]
    while peer.recv(4096):
        pass
    world.warm(link)


def test_a_listener_that_raises_whatever_stops_nobody(world: World) -> None:
    """LINK-9: SystemExit in a callback of one ledger is no concern of the others."""
    link = world.link()
    peer = world.warm(link)

    def raising(status: Status, response: Response | None) -> None:
        raise SystemExit("a callback")

    world.on_reactor(lambda: link.request(ReadRequest(0, 1, 1), 30 * S, raising) and None)
    world.serve(peer)
    world.reactor.post(lambda: raising(Status.OK, None))
    world.ask(link, "other", ReadRequest(0, 1, 2))
    world.serve(peer)
    assert world.next() == ("other", Status.OK)


def test_a_bookie_without_batch_read_hangs_up_twice(world: World) -> None:
    """LINK-7, wire-protocol.md 8.5: before any byte, on connections of its own."""
    link = world.link()
    world.ask(link, "batch", BatchReadRequest(0, 1, 0, 10, 1000))
    for _ in range(2):
        with world.accept() as peer:
            peer.recv(4096)
    assert world.next() == ("batch", Status.BAD_REQUEST)


def test_a_bookie_that_has_answered_a_batch_read_has_it(world: World) -> None:
    """LINK-7: connections that are lost later say nothing about that."""
    link = world.link()
    world.ask(link, "first", BatchReadRequest(0, 1, 0, 10, 1000))
    with world.accept() as peer:
        (request,) = world.requests(peer)
        body = bytes(40)
        data = codec_v2.join_bodies([body])
        peer.sendall(frame_of_batch(request.request_id, data))
        assert world.next() == ("first", Status.OK)
    world.ask(link, "second", BatchReadRequest(0, 1, 0, 10, 1000))
    for _ in range(3):
        with world.accept() as peer:
            peer.recv(4096)
    assert world.next() == ("second", Status.UNAVAILABLE)


def frame_of_batch(number: int, data: bytes) -> bytes:
    from bk_core.protocol.wire.messages import BatchReadResponse

    return frame(BatchReadResponse(number, Status.OK, 1, 0, data))


def test_all_addresses_of_a_name_are_tried_in_turn(world: World) -> None:
    """LINK-8."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobody = closed.getsockname()
    asked: list[str] = []

    def found(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in (nobody, nobody, world.listener.getsockname())]

    link = world.link(("bookie.example", 3181), names=Names(world.reactor.post, found))
    world.ask(link, "read", ReadRequest(0, 1, 0))
    world.serve(world.accept())
    assert world.next() == ("read", Status.OK) and asked == ["bookie.example"]


def test_an_address_that_is_refused_at_once_is_followed_by_the_next(world: World) -> None:
    """LINK-8: no route to one of a name's addresses is told by the call itself; the socket keeps no error."""
    unreachable = ("255.255.255.255", 1)  # TCP goes nowhere by broadcast
    addresses = [unreachable, world.listener.getsockname()]
    names = Names(world.reactor.post, lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", one) for one in addresses])
    broke: list[str] = []
    link = world.link(("bookie.example", 3181), names=names, broke=lambda: broke.append("broke"))
    world.ask(link, "read", ReadRequest(0, 1, 0))
    world.serve(world.accept())
    assert world.next() == ("read", Status.OK) and not broke


def test_a_name_that_is_no_name_keeps_nobody_waiting(world: World) -> None:
    """LINK-8: whatever the system says of it; the next look-up of the name is a new one."""
    failures = [ValueError("embedded null byte"), OverflowError("too large")]

    def found(host: str, port: int, **_: Any) -> list[Any]:
        if failures:
            raise failures.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", world.listener.getsockname())]

    names, told = Names(world.reactor.post, found), queue.SimpleQueue[Any]()
    for _ in range(3):
        names.lookup("bad.example", 3181, lambda addresses, problem: told.put((len(addresses), problem)))
        count, problem = told.get(timeout=PATIENCE_S)
        assert bool(problem) is (count == 0)
    assert count == 1 and not failures


def test_a_name_that_is_looked_up_for_long_keeps_nobody(world: World) -> None:
    """LINK-8: neither other links nor the end of the client; the same name is asked for once."""
    hang, asked = threading.Event(), queue.SimpleQueue[str]()

    def slow(host: str, port: int, **_: Any) -> list[Any]:
        asked.put(host)
        hang.wait(PATIENCE_S)
        raise OSError("no such name")

    names = Names(world.reactor.post, slow)
    hanging = [world.link(("slow.example", 1), names=names) for _ in range(2)]
    for link in hanging:
        world.ask(link, "slow", ReadRequest(0, 1, 0))
    assert asked.get(timeout=PATIENCE_S) == "slow.example"
    world.warm(world.link(names=names))
    began = time.monotonic()
    world.on_reactor(lambda: hanging[1].close())
    assert world.next() == ("slow", Status.UNAVAILABLE) and time.monotonic() - began < PATIENCE_S / 2
    hang.set()
    assert world.next() == ("slow", Status.UNAVAILABLE) and asked.empty()


def test_a_low_entry_is_asked_for_before_a_high_one_that_waited_longer(world: World) -> None:
    """LINK-5, LINK-6: while the window is full nothing more is sent; then readers have their turns."""
    link = world.link()
    peer = world.warm(link)
    for first in (100, 200, 300, 400, 500, 50):
        world.ask(link, f"{first}", BatchReadRequest(0, 1, first, 10, 1 << 20))
    got = world.requests(peer, 4)
    assert [(r.entry_id, r.bytes_max) for r in got] == [(first, 64 << 10) for first in (100, 200, 300, 400)]
    peer.sendall(frame_of_batch(got[0].request_id, codec_v2.join_bodies([bytes(40)])))
    assert world.next() == ("100", Status.OK)
    assert [r.entry_id for r in world.requests(peer, 1)][:1] == [50]


def test_what_a_reader_that_is_gone_had_not_sent_is_never_sent(world: World) -> None:
    """LINK-6."""
    link = world.link()
    peer = world.warm(link)

    def ask() -> None:
        for reader in ("stays", "goes", "goes", "goes", "goes"):
            link.request(BatchReadRequest(0, 1, 7, 10, 1 << 20), 30 * S, lambda *_: None, reader)
        link.request(ReadRequest(0, 2, 9), 30 * S, lambda *_: None, "last")
        link.forget("goes")

    world.on_reactor(ask)
    got = world.requests(peer, 4)
    for request in got:
        peer.sendall(frame_of_batch(request.request_id, codec_v2.join_bodies([bytes(40)])))
    (last,) = world.requests(peer)
    assert isinstance(last, ReadRequest) and last.ledger_id == 2
