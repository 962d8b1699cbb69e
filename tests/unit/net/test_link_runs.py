"""Runs of single reads on one connection, v2 and v3: whose answer is whose, refusals, timeouts, and a connection that is lost."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bk_core.net.link import BookieLink
from bk_core.net.reactor import Reactor
from bk_core.protocol.wire import connection
from bk_core.protocol.wire.connection import Protocol
from bk_core.protocol.wire.messages import (
    ForceLedgerRequest,
    ReadRequest,
    ReadResponse,
    ReadRunRequest,
    ReadRunResponse,
    Request,
    Response,
    Status,
)

S = 1_000_000_000
Got = tuple[str, Status, Response | None]


@dataclass
class Ends:
    """A link, the bookie's end of its connection, and the answers that the link gave."""

    reactor: Reactor
    link: BookieLink
    peer: socket.socket
    answers: queue.SimpleQueue[Got]
    protocol: Protocol
    listener: socket.socket

    def ask(self, name: str, message: Request, timeout_ns: int = 30 * S) -> None:
        def answer(status: Status, response: Response | None) -> None:
            if isinstance(response, ReadRunResponse):
                response = ReadRunResponse(0, response.status, response.ledger_id, response.entry_id, bytes(response.frames))
            self.answers.put((name, status, response))

        self.reactor.post(lambda: self.link.request(message, timeout_ns, answer))

    def requests(self, count: int) -> list[ReadRequest]:
        server, found = connection.ServerProtocol(), []
        while len(found) < count:
            found += [request for request, _ in server.feed(self.peer.recv(4096))]
        assert all(isinstance(request, ReadRequest) for request in found)
        return found  # type: ignore[return-value]

    def send(self, *responses: ReadResponse) -> None:
        reply = connection.ReplyTo(self.protocol, 3 if self.protocol == "v3" else 2)
        self.peer.sendall(b"".join(connection.ServerProtocol().encode(response, reply) for response in responses))

    def next(self) -> Got:
        return self.answers.get(timeout=20)


@pytest.fixture(params=["v2", "v3"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    reactor = Reactor()
    answers: queue.SimpleQueue[Got] = queue.SimpleQueue()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        made: queue.SimpleQueue[BookieLink] = queue.SimpleQueue()
        address = listener.getsockname()
        reactor.post(lambda: made.put(BookieLink(reactor, "b", request.param, lambda bookie, then: then(address, ""), 1 << 20)))
        link = made.get(timeout=20)
        warm: queue.SimpleQueue[None] = queue.SimpleQueue()
        reactor.post(lambda: link.request(ReadRequest(0, 1, 0), 30 * S, lambda status, response: warm.put(None)))
        peer, _ = listener.accept()
        peer.settimeout(20)
        with peer:
            both = Ends(reactor, link, peer, answers, request.param, listener)
            (first,) = both.requests(1)
            both.send(good(first))
            warm.get(timeout=20)
            yield both
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        reactor.post(lambda: (link.close(), ended.put(None))[1])  # type: ignore[func-returns-value]
        ended.get(timeout=20)
    reactor.close()


def good(request: ReadRequest) -> ReadResponse:
    return ReadResponse(request.request_id, Status.OK, request.ledger_id, request.entry_id, b"%032d" % request.entry_id)


def refused(request: ReadRequest, status: Status) -> ReadResponse:
    return ReadResponse(request.request_id, status, request.ledger_id, request.entry_id)


def entries(got: Got) -> list[int]:
    """The entries that a run brought."""
    _, _, response = got
    frames = response.frames if isinstance(response, ReadRunResponse) else b""
    return [int(bytes(frames[i + 28 : i + 60])) for i in range(0, len(frames), 60)]


def test_runs_of_two_ledgers_and_a_single_read_side_by_side(ends: Ends) -> None:
    """wire-protocol.md 5.4, 9: consecutive answers belong to one run, two, or a read of its own."""
    ends.ask("a", ReadRunRequest(0, 7, 0, 4))
    ends.ask("b", ReadRunRequest(0, 7, 4, 3))
    ends.ask("single", ReadRequest(0, 7, 7))
    ends.ask("striped", ReadRunRequest(0, 8, 1, 3, 5))
    asked = ends.requests(11)
    assert [(r.ledger_id, r.entry_id) for r in asked] == [(7, e) for e in range(8)] + [(8, 1), (8, 6), (8, 11)]
    ends.send(*(good(r) for r in asked))
    got = {answer[0]: answer for answer in (ends.next() for _ in range(4))}
    assert [entries(got[name]) for name in ("a", "b", "striped")] == [[0, 1, 2, 3], [4, 5, 6], [1, 6, 11]]
    assert got["single"][1] is Status.OK and isinstance(got["single"][2], ReadResponse)


def test_answers_in_any_order_and_answers_to_nobody(ends: Ends) -> None:
    ends.ask("a", ReadRunRequest(0, 7, 0, 4))
    asked = ends.requests(4)
    nobody = ReadRequest(999, 7, 99)
    ends.send(good(asked[2]), good(nobody), good(asked[3]), good(asked[0]), refused(nobody, Status.NO_ENTRY), good(asked[1]))
    assert entries(ends.next()) == [0, 1, 2, 3]


def test_a_refusal_ends_a_run_and_what_follows_it_is_dropped(ends: Ends) -> None:
    """RD-10. The next run for the same entries gets its own answers, or those: they are the same."""
    ends.ask("a", ReadRunRequest(0, 7, 0, 4))
    asked = ends.requests(4)
    ends.send(good(asked[0]), refused(asked[1], Status.IO_ERROR), good(asked[2]), good(asked[3]))
    assert entries(ends.next()) == [0]
    ends.ask("b", ReadRunRequest(0, 7, 1, 3))
    again = ends.requests(3)
    ends.send(*(refused(r, Status.NO_ENTRY) for r in again))
    assert ends.next() == ("b", Status.NO_ENTRY, None)


def test_a_run_that_takes_too_long_brings_what_there_is(ends: Ends) -> None:
    ends.ask("a", ReadRunRequest(0, 7, 0, 3), S // 2)
    asked = ends.requests(3)
    ends.send(good(asked[0]))
    assert entries(ends.next()) == [0]
    ends.ask("b", ReadRunRequest(0, 7, 5, 2), S // 2)
    assert ends.next() == ("b", Status.TIMEOUT, None)


def test_a_lost_connection_ends_a_run_that_brought_something_and_the_others_are_asked_again(ends: Ends) -> None:
    """LINK-7, RD-10."""
    ends.ask("a", ReadRunRequest(0, 7, 0, 3))
    ends.ask("b", ReadRunRequest(0, 7, 3, 3))
    asked = ends.requests(6)
    ends.send(good(asked[0]))
    ends.peer.shutdown(socket.SHUT_RDWR)
    got = ends.next()
    assert got[:2] == ("a", Status.OK) and entries(got) == [0]
    with ends.listener.accept()[0] as ends.peer:
        ends.peer.settimeout(20)
        again = ends.requests(3)
        assert [request.entry_id for request in again] == [3, 4, 5]
        ends.send(*(good(request) for request in again))
        assert entries(ends.next()) == [3, 4, 5]


def test_a_force_is_not_sent_again(ends: Ends) -> None:
    """LINK-7: a bookie that was started again has forgotten what was to be forced, and would say that it is done."""
    if ends.protocol == "v2":
        return
    ends.ask("force", ForceLedgerRequest(0, 7))
    ends.peer.recv(4096)
    ends.peer.shutdown(socket.SHUT_RDWR)
    assert ends.next() == ("force", Status.UNAVAILABLE, None)


def test_a_force_in_a_pause_is_refused_and_a_read_waits_for_the_next_connection(ends: Ends) -> None:
    """LINK-7: between two attempts nobody has asked the bookie."""
    ends.ask("lost", ReadRequest(0, 7, 1))
    ends.requests(1)
    ends.peer.shutdown(socket.SHUT_RDWR)
    with ends.listener.accept()[0] as ends.peer:
        ends.peer.settimeout(20)
        ends.send(*(good(request) for request in ends.requests(1)))
        assert ends.next()[:2] == ("lost", Status.OK)


def test_of_entries_whose_size_is_unknown_a_few_are_asked_for_first(ends: Ends) -> None:
    """LINK-5: of entries of an unknown size a few are asked for, then as many as fit."""
    ends.ask("a", ReadRunRequest(0, 7, 0, 200))
    first = ends.requests(4)
    assert len(first) == 4  # a quarter of the first window
    ends.send(*(good(request) for request in first))
    rest = ends.requests(196)
    ends.send(*(good(request) for request in rest))
    assert entries(ends.next()) == list(range(200))
