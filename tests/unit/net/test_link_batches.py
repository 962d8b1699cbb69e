"""Long answers to batch reads on one connection: taken while they arrive, whatever the pieces, between other answers."""

from __future__ import annotations

import queue
import random
import socket
import time
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from bk_core import kernels
from bk_core.errors import DigestError
from bk_core.net.link import BookieLink
from bk_core.net.reactor import Reactor
from bk_core.net.receiving import LOW_WATER_BYTES, PART_BYTES, WHOLE_BYTES, ReceiveBuffer
from bk_core.protocol.wire import codec_v2, connection
from bk_core.protocol.wire.batch_parts import BatchParts, BodyCheck
from bk_core.protocol.wire.messages import BatchReadRequest, BatchReadResponse, ReadRequest, ReadResponse, Request, Response, Status

S = 1_000_000_000
LEDGER = 5
FRAME_MAX = 5 << 20
CHECK = BodyCheck(3)


def bodies(first: int, payloads: Sequence[bytes]) -> bytes:
    offsets = array("q", [0])
    for payload in payloads:
        offsets.append(offsets[-1] + len(payload))
    frames, marks = kernels.frame_adds(b"".join(payloads), offsets, LEDGER, first, -1, 0, 3, b"", bytes(20), 0)
    at, data = memoryview(marks).cast("q"), memoryview(frames)
    return codec_v2.join_bodies([bytes(data[at[i] + 28 : at[i + 1]]) for i in range(len(payloads))])


def frame(response: Response) -> bytes:
    return connection.ServerProtocol().encode(response, connection.ReplyTo("v2", 2))


@dataclass
class Ends:
    link: BookieLink
    reactor: Reactor
    peer: socket.socket
    answers: queue.SimpleQueue[tuple[int, Status, int, bytes, Exception | None]]

    def ask(self, name: int, message: Request, timeout_ns: int = 30 * S) -> None:
        """Answers are what was handed out while it was good: name, status, entries, payloads or the body, problem. What is there at once
        comes as a whole, so those of less than a part may come in either way."""
        check = message.check if isinstance(message, BatchReadRequest) else None

        def answer(status: Status, response: Response | None) -> None:
            if isinstance(response, BatchReadResponse) and check is not None:
                parts = response.parts
                if parts is None:
                    parts = BatchParts(check, LEDGER, response.entry_id, FRAME_MAX, len(response.bodies))
                    parts.take(memoryview(response.bodies), len(response.bodies))
                self.answers.put((name, status, parts.count, bytes(parts.values), parts.problem))
            elif isinstance(response, BatchReadResponse):
                self.answers.put((name, status, -1, bytes(response.bodies), None))
            else:
                self.answers.put((name, status, 1, response.body or b"" if isinstance(response, ReadResponse) else b"", None))

        self.reactor.post(lambda: self.link.request(message, timeout_ns, answer))

    def batch(self, name: int, first: int, count: int, check: BodyCheck | None = CHECK, timeout_ns: int = 30 * S) -> BatchReadRequest:
        """The request as the bookie gets it."""
        self.ask(name, BatchReadRequest(0, LEDGER, first, count, FRAME_MAX, check=check), timeout_ns)
        (request,) = self.requests(1)
        assert isinstance(request, BatchReadRequest)
        return request

    def requests(self, count: int) -> list[Request]:
        server, found = connection.ServerProtocol(), []
        while len(found) < count:
            found += [request for request, _ in server.feed(self.peer.recv(4096))]
        return found  # type: ignore[return-value]

    def next(self) -> tuple[int, Status, int, bytes, Exception | None]:
        return self.answers.get(timeout=20)


@pytest.fixture
def ends() -> Iterator[Ends]:
    reactor = Reactor()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        made: queue.SimpleQueue[BookieLink] = queue.SimpleQueue()
        address = listener.getsockname()
        reactor.post(lambda: made.put(BookieLink(reactor, "b", "v2", lambda bookie, then: then(address, ""), FRAME_MAX)))
        both = Ends(made.get(timeout=20), reactor, socket.socket(), queue.SimpleQueue())
        both.peer.close()
        both.ask(0, ReadRequest(0, LEDGER, 0))
        both.peer, _ = listener.accept()
        both.peer.settimeout(20)
        with both.peer:
            both.requests(1)
            both.peer.sendall(frame(ReadResponse(0, Status.OK, LEDGER, 0, bytes(40))))
            both.next()
            yield both
        ended: queue.SimpleQueue[None] = queue.SimpleQueue()
        reactor.post(lambda: (both.link.close(), ended.put(None))[1])  # type: ignore[func-returns-value]
        ended.get(timeout=20)
    reactor.close()


def good(request: BatchReadRequest, payloads: Sequence[bytes], damage: int | None = None) -> bytes:
    data = bytearray(bodies(request.entry_id, payloads))
    if damage is not None:
        data[damage] ^= 1
    return frame(BatchReadResponse(request.request_id, Status.OK, LEDGER, request.entry_id, bytes(data)))


@pytest.mark.parametrize("sizes", [[1024] * 3000, [100_000] * 30, [2_500_000, 1, 0, 2_000_000], [100] * 4000], ids=len)
def test_long_answers_between_others_in_pieces(ends: Ends, sizes: list[int]) -> None:
    """wire-protocol.md 2.1, 5.3: two long answers back to back, a short batch and a single read behind them."""
    rng = random.Random(len(sizes))
    payloads = [rng.randbytes(size) for size in sizes]
    requests = [ends.batch(name, first, len(sizes)) for name, first in ((1, 0), (2, 7000))]
    short = ends.batch(3, 20_000, 5)
    ends.ask(4, ReadRequest(0, LEDGER, 30_000))
    ends.requests(1)
    stream = b"".join(good(request, payloads) for request in requests) + good(short, [b"a", b"bc"])
    stream += frame(ReadResponse(0, Status.OK, LEDGER, 30_000, bytes(40)))
    at = 0
    while at < len(stream):
        size = rng.choice((1, 30, 40_000, 700_000, 3 << 20))
        ends.peer.sendall(stream[at : at + size])
        at += size
    joined = b"".join(payloads)
    assert ends.next() == (1, Status.OK, len(sizes), joined, None)
    assert ends.next() == (2, Status.OK, len(sizes), joined, None)
    assert ends.next() == (3, Status.OK, 2, b"abc", None)
    assert ends.next() == (4, Status.OK, 1, bytes(40), None)
    assert len(ends.link._input.view) <= max(PART_BYTES, max(sizes) + WHOLE_BYTES) + WHOLE_BYTES


def test_a_damaged_entry_ends_what_is_good(ends: Ends) -> None:
    """RD-8: and the connection goes on."""
    request = ends.batch(1, 0, 300)
    ends.peer.sendall(good(request, [bytes(1000)] * 300, damage=1040 * 150 + 500))
    name, status, count, values, problem = ends.next()
    assert (name, status, count, len(values)) == (1, Status.OK, 150, 150_000) and isinstance(problem, DigestError)
    request = ends.batch(2, 0, 300)
    ends.peer.sendall(good(request, [bytes(1000)] * 300))
    assert ends.next()[:3] == (2, Status.OK, 300)


def test_an_answer_that_nobody_waits_for_any_more_is_passed_over(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """LINK-2: something that was asked for a whole timeout later is answered. LINK-1: that time alone does nothing while bytes come."""
    jumps = [0]
    monkeypatch.setattr(Reactor, "now_ns", staticmethod(lambda: time.monotonic_ns() + jumps[0]))
    late = ends.batch(1, 0, 300, timeout_ns=60 * S)
    for name in (2, 3):
        jumps[0] += 40 * S
        request = ends.batch(name, 5000, 300, timeout_ns=60 * S)
        ends.peer.sendall(good(request, [bytes(1000)] * 300))
        assert ends.next()[:3] == (name, Status.OK, 300)
    assert ends.next()[:2] == (1, Status.TIMEOUT)
    ends.peer.sendall(good(late, [bytes(1000)] * 300))
    request = ends.batch(4, 0, 300)
    ends.peer.sendall(good(request, [bytes(1000)] * 300))
    assert ends.next()[:3] == (4, Status.OK, 300)


def test_without_a_check_it_comes_as_bytes(ends: Ends) -> None:
    request = ends.batch(1, 0, 300, check=None)
    ends.peer.sendall(good(request, [bytes(1000)] * 300))
    assert ends.next() == (1, Status.OK, -1, bodies(0, [bytes(1000)] * 300), None)


def test_a_connection_lost_within_an_answer(ends: Ends) -> None:
    """RD-10: what was verified is handed out, and nothing of it is left for the next connection."""
    request = ends.batch(1, 0, 300)
    ends.peer.sendall(good(request, [bytes(1000)] * 300)[:200_000])
    ends.peer.close()
    name, status, entries, values, _ = ends.next()
    assert (name, status) == (1, Status.OK) and 100 < entries < 300 and values == bytes(1000 * entries)
    done: queue.SimpleQueue[tuple[int, object]] = queue.SimpleQueue()
    ends.reactor.post(lambda: done.put((ends.link._input.rest, ends.link._arriving)))
    assert done.get(timeout=20) == (0, None)


def test_the_low_water_mark_is_never_above_what_is_missing() -> None:
    """Else the end of an answer would never wake anybody."""
    left, right = socket.socketpair()
    with left, right:
        received = ReceiveBuffer()
        for missing, mark in ((3 << 20, LOW_WATER_BYTES), (LOW_WATER_BYTES - 1, LOW_WATER_BYTES - 1), (WHOLE_BYTES, 1), (0, 1)):
            received.use(0, missing)
            received.wait_for_more(right)
            assert right.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == mark
        received.begin(0, 3 << 20, lambda data, rest: (0, 0))
        received.wait_for_more(right)
        assert right.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == LOW_WATER_BYTES
        received.clear()
        assert received.rest == 0
