"""Answers to adds on one connection, v2 and v3: runs, gaps, failures without ids, and numbers that were never given."""

from __future__ import annotations

import queue
import socket
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from bk_core import kernels
from bk_core.net.link import BookieLink
from bk_core.net.reactor import Reactor
from bk_core.net.sent_adds import SentAddRuns, SentAdds
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.run import PackedAdds
from bk_core.protocol.wire import codec_v2, codec_v3, connection
from bk_core.protocol.wire._proto import bookie_pb2 as pb
from bk_core.protocol.wire.connection import Protocol
from bk_core.protocol.wire.messages import AddRequest, AddResponse, Status

Told = tuple[int, int, Status, int | None]
LEDGER = 7


def run_of(first: int, count: int, ledger_id: int = LEDGER) -> PackedAdds:
    offsets = array("q", range(0, 3 * count + 1, 3))
    frames, marks = kernels.frame_adds(b"abc" * count, offsets, ledger_id, first, -1, 0, 3, b"", bytes(20), 0)
    return PackedAdds(ledger_id, first, count, frames, memoryview(marks).cast("q"))


@dataclass
class Ends:
    """A link that sends adds, and the bookie's end of its connection."""

    reactor: Reactor
    link: BookieLink
    peer: socket.socket
    told: queue.SimpleQueue[Told]
    protocol: Protocol

    needs_connection = False

    def on_add(self, bookie: str, first: int, count: int, status: Status, entries: int | None) -> None:
        self.told.put((first, count, status, entries))

    def on_lost(self, bookie: str, status: Status) -> None:
        self.told.put((-1, 0, status, None))

    def sends(self, run: PackedAdds, position: int = 0, start: int = 0, shape: tuple[int, int] = (1, 1)) -> list[AddRequest]:
        """The requests as they come out at the other end."""
        self.reactor.post(lambda: self.link.send_adds(run, position, start, *shape))
        count = run.count_for(position, start, *shape)
        server, found = connection.ServerProtocol(), []
        while len(found) < count:
            found += [request for request, _ in server.feed(self.peer.recv(1 << 16))]
        assert all(isinstance(request, AddRequest) for request in found)
        return found  # type: ignore[return-value]

    def answers(self, *requests: AddRequest, status: Status = Status.OK, ledger_id: int = LEDGER) -> None:
        reply = connection.ReplyTo(self.protocol, 3 if self.protocol == "v3" else 2)
        responses = [AddResponse(r.request_id, status, ledger_id, r.entry_id) for r in requests]
        self.peer.sendall(b"".join(connection.ServerProtocol().encode(response, reply) for response in responses))

    def next(self) -> Told:
        return self.told.get(timeout=20)


@pytest.fixture(params=["v2", "v3"])
def ends(request: pytest.FixtureRequest) -> Iterator[Ends]:
    reactor = Reactor()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        address = listener.getsockname()
        link = BookieLink(reactor, "b", request.param, lambda bookie, then: then(address, ""), 1 << 20)
        told: queue.SimpleQueue[Told] = queue.SimpleQueue()
        made = Ends(reactor, link, socket.socket(), told, request.param)
        made.peer.close()
        reactor.post(lambda: (link.listen(LEDGER, made), link.send_adds(run_of(0, 1), 0, 0, 1, 1))[1])  # type: ignore[func-returns-value]
        made.peer, _ = listener.accept()
        made.peer.settimeout(20)
        with made.peer:
            server = connection.ServerProtocol()
            ((first, _),) = server.feed(made.peer.recv(4096))
            assert isinstance(first, AddRequest)
            made.answers(first)
            assert made.next() == (0, 1, Status.OK, None)
            yield made
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        reactor.post(lambda: (link.close(), ended.put(None))[1])  # type: ignore[func-returns-value]
        ended.get(timeout=20)
    reactor.close()


def test_answers_to_a_run_are_told_at_once(ends: Ends) -> None:
    requests = ends.sends(run_of(1, 500))
    assert [request.entry_id for request in requests] == list(range(1, 501))
    ends.answers(*requests[:300])
    ends.answers(*requests[300:])
    count = 0
    while count < 500:
        first, some, status, entries = ends.next()
        assert (first, status, entries) == (1 + count, Status.OK, None)
        count += some


def test_striped_answers_are_those_of_the_entries_that_were_sent(ends: Ends) -> None:
    """SM-5: position 2 of five with three copies: it holds what is 0, 1, 2 modulo 5."""
    requests = ends.sends(run_of(1, 20), 2, 3, (5, 3))
    held = [entry for entry in range(4, 21) if entry % 5 in (0, 1, 2)]
    assert [request.entry_id for request in requests] == held
    ends.answers(*requests)
    told: list[int] = []
    while len(told) < len(held):
        first, count, status, entries = ends.next()
        assert status is Status.OK
        told += [first + i for i in range(count) if entries is None or entries >> i & 1]
    assert told == held


def test_refusals_between_good_answers(ends: Ends) -> None:
    requests = ends.sends(run_of(1, 4))
    ends.answers(requests[0], requests[1])
    ends.answers(requests[2], status=Status.FENCED)
    ends.answers(requests[3])
    told = [ends.next() for _ in range(3)]
    if told[0][1] == 1:
        told.append(ends.next())
    assert [(first, status) for first, _, status, _ in told][-2:] == [(3, Status.FENCED), (4, Status.OK)]


def test_nothing_is_sent_to_a_bookie_that_holds_nothing(ends: Ends) -> None:
    assert ends.sends(run_of(1, 1), 0, 0, (3, 1)) == []
    assert [request.entry_id for request in ends.sends(run_of(2, 1))] == [2]


def test_a_failure_has_a_number_only(ends: Ends) -> None:
    """wire-protocol.md 4.3: without an inner message; striped, the number tells the entry."""
    if ends.protocol == "v2":
        return
    requests = ends.sends(run_of(1, 20), 2, 3, (5, 3))
    for request in (requests[4], requests[0]):
        message = pb.Response()
        message.ParseFromString(codec_v3.encode_response(AddResponse(request.request_id, Status.UNAUTHORIZED, LEDGER, 0)))
        message.ClearField("addResponse")
        ends.peer.sendall(codec_v2.frame(message.SerializeToString()))
        assert ends.next() == (request.entry_id, 1, Status.UNAUTHORIZED, None)


def test_whose_an_answer_is_the_number_says(ends: Ends) -> None:
    """SM-3: other ids beside the right numbers are the bookie's mistake; a number that nobody has is nobody's answer."""
    if ends.protocol == "v2":
        return
    first, second = ends.sends(run_of(1, 2)), ends.sends(run_of(3, 2, LEDGER))
    odd = [AddResponse(r.request_id, Status.OK, 99, r.entry_id + 5) for r in first]
    unknown = [AddResponse(9999 + i, Status.OK, LEDGER, 1 + i) for i in range(2)]
    ends.peer.sendall(b"".join(codec_v2.frame(codec_v3.encode_response(r)) for r in [*unknown, *odd]))
    assert [ends.next(), ends.next()] == [(1, 1, Status.OK, None), (2, 1, Status.OK, None)]
    ends.answers(*second, *second)
    seen = 0
    while seen < 2:
        at, count, status, _ = ends.next()
        assert (at, status) == (3 + seen, Status.OK)
        seen += count


@pytest.mark.parametrize(("ensemble", "quorum"), [(1, 1), (3, 3), (3, 2), (5, 3), (7, 1)])
def test_the_entry_of_a_number(ensemble: int, quorum: int) -> None:
    layout = Distribution(ensemble, quorum, 1)
    for position in range(ensemble):
        for first in (0, 1, 4):
            held = [entry for entry in range(first, first + 40) if layout.holds(position, entry)]
            sent = SentAdds(range(100, 100 + len(held)), LEDGER, first, position, ensemble, quorum, len(held))
            assert [sent.entry_id(number) for number in sent.numbers] == held


def test_runs_are_forgotten_when_all_is_answered() -> None:
    runs = SentAddRuns()
    one, two = (SentAdds(range(a, b), LEDGER, 0, 0, 1, 1, b - a) for a, b in ((1, 4), (6, 8)))
    runs.add(one)
    runs.add(two)
    assert [runs.find(number) for number in range(9)] == [None, one, one, one, None, None, two, two, None]
    runs.answered(one, 2)
    assert runs.find(1) is one
    runs.answered(one, 1)
    assert runs.find(1) is None and runs.find(7) is two
    runs.clear()
    assert runs.find(7) is None
