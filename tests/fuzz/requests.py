"""Requests to the embedded bookie: bent at any byte, cut anywhere, half, pipelined, of both protocols.

Three bookies run in this process, over sockets. ``whole`` and ``pieces`` get the same requests, one of them as they come and the other cut
at random places; a plain reading of the same bytes, frame by frame, says what they are. What is sound must be answered alike by both and
leave the same in both; what is not must end the connection, and is sent to ``third``, whose other connections go on. After each case an
honest peer is served by all of them.
"""

from __future__ import annotations

import logging
import random
import select
import shutil
import socket
import ssl
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.errors import BkError, RemoteProtocolError
from bk_core.protocol.entry.digests import master_key
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.connection import ServerProtocol, decode_response, encode_request
from tests.fuzz.cases import play_cases
from tests.fuzz.doorways import Doorway

KEY = master_key(b"fuzz")
OTHER_KEY = master_key(b"not fuzz")
ANSWER_S = 30.0
HONEST = 1 << 50  # ledgers that no bent request names, but by a chance of 1 in 2^64
EXTREMES = (-(2**63), -(2**31), -2, -1, 0, 1, 2**31 - 1, 2**31, 2**62, 2**63 - 2, 2**63 - 1)
LENGTHS = (0, 1, 3, 4, 23, 5 << 20, (5 << 20) + 1, 2**31 - 1, 2**31, 2**32 - 1)


class Wrong(Exception):
    """A bookie did what it must not."""


@dataclass
class Result:
    cases: int = 0
    inputs: int = 0
    crashes: list[str] = field(default_factory=list)


# --- what is sent -------------------------------------------------------------------------------------------------------


def body(ledger_id: int, entry_id: int, payload: bytes) -> bytes:
    return struct.pack(">qqqqI", ledger_id, entry_id, entry_id - 1 if entry_id > -(2**63) else entry_id, 0, 0) + payload


def honest(rng: random.Random, ledger_id: int, number: int) -> m.Request:
    """A request as a client makes it, about one of few entries, so that adds, reads and fences meet."""
    entry_id = rng.choice((*range(12), rng.choice(EXTREMES)))
    key = KEY if rng.random() < 0.95 else OTHER_KEY
    size = rng.choice((0, 1, 10, 100, 5000, 70_000))
    match rng.randrange(12):
        case 0 | 1 | 2 | 3 | 4:
            return m.AddRequest(number, ledger_id, entry_id, key, body(ledger_id, entry_id, rng.randbytes(size)), rng.random() < 0.2)
        case 5 | 6 | 7:
            return m.ReadRequest(number, ledger_id, entry_id)
        case 8:
            return m.BatchReadRequest(number, ledger_id, max(0, entry_id), rng.randrange(20), rng.choice((1, 1000, 1 << 20)))
        case 9:
            return m.ReadRequest(number, ledger_id, -1, fence=True, master_key=key)
        case 10:
            return m.ReadLacRequest(number, ledger_id)
        case _:
            return rng.choice((m.ForceLedgerRequest(number, ledger_id), m.EntryListRequest(number, ledger_id)))


def frame_of(request: m.Request, protocol: str) -> bytes | None:
    """None where the protocol cannot say it: a connection that has spoken v2 speaks v3 no more."""
    try:
        return encode_request(request, protocol)  # type: ignore[arg-type]
    except BkError:
        return None


def bend(rng: random.Random, frame: bytes) -> bytes:
    payload = bytearray(frame[4:])
    match rng.randrange(9):
        case 0:
            for _ in range(rng.choice((1, 1, 2, 8))):
                payload[rng.randrange(min(len(payload), rng.choice((8, 40, 10_000))))] ^= 1 << rng.randrange(8)
        case 1:
            payload[rng.randrange(len(payload))] = rng.randrange(256)
        case 2:
            del payload[rng.randrange(len(payload)) :]
        case 3:
            payload += rng.randbytes(rng.choice((1, 4, 100)))
        case 4:
            return struct.pack(">I", rng.choice((*LENGTHS, len(payload) - 1, len(payload) + 1))) + bytes(payload)
        case 5:
            payload = bytearray(rng.randbytes(rng.choice((1, 4, 24, 60, 300))))
        case 6 if len(payload) >= 16:
            struct.pack_into(">Q", payload, rng.randrange(len(payload) - 7), rng.choice(EXTREMES) % 2**64)
        case 7:
            return frame * rng.choice((2, 3, 50))
        case _:
            word = struct.pack(">BBH", rng.randrange(4), rng.randrange(13), rng.choice((0, 1, 2, 4, 64, 0xFFFF)))
            payload[:4] = word[: len(payload)]
    return struct.pack(">I", len(payload)) + bytes(payload)


def script(rng: random.Random, case: int) -> bytes:
    """The bytes of one connection."""
    ledger_ids = [(case + 1) * 4 + number for number in range(rng.choice((1, 1, 3)))]
    protocol, rate = rng.choice(("v2", "v3")), rng.choice((0.0, 0.0, 0.1, 0.5))
    frames = []
    for number in range(rng.choice((1, 3, 10, 40, 150))):
        frame = frame_of(honest(rng, rng.choice(ledger_ids), number), protocol)
        if frame is None:
            continue
        frames.append(bend(rng, frame) if rng.random() < rate else frame)
    whole = b"".join(frames) or encode_request(m.ReadRequest(0, ledger_ids[0], 0), "v2")
    return whole[: rng.randrange(1, len(whole) + 1)] if rng.random() < 0.1 else whole


def every_byte(case: int) -> Iterator[bytes]:
    """Each kind of request with each byte of it bent, one at a time."""
    ledger_id, rng = (case + 1) * 4, random.Random(case)
    requests = (
        m.AddRequest(1, ledger_id, 0, KEY, body(ledger_id, 0, b"x")),
        m.ReadRequest(2, ledger_id, 0),
        m.ReadRequest(3, ledger_id, -1, fence=True, master_key=KEY),
        m.BatchReadRequest(4, ledger_id, 0, 5, 1000),
        m.ReadLacRequest(5, ledger_id),
        m.WriteLacRequest(6, ledger_id, 0, KEY, struct.pack(">qqI", ledger_id, 0, 0)),
        m.ForceLedgerRequest(7, ledger_id),
        m.EntryListRequest(8, ledger_id),
        m.AuthRequest(9, "plugin", b"x"),
    )
    frames = [frame_of(request, protocol) for request in requests for protocol in ("v2", "v3")]
    for frame in filter(None, frames):
        for place in range(len(frame)):
            bent = bytearray(frame)
            bent[place] ^= rng.choice((0xFF, 0x80, 0x01))
            yield bytes(bent)


# --- a plain reading ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reading:
    """``requests`` is None if the bytes are no sequence of requests; ``rest``: the last frame has not ended."""

    requests: list[m.Request] | None
    rest: bool

    @property
    def comparable(self) -> bool:
        """Two bookies say the same: nothing is asked that depends on the time or on the disk."""
        return not any(
            isinstance(one, m.BookieInfoRequest) or (isinstance(one, m.ReadRequest) and one.previous_lac is not None)
            for one in self.requests or ()
        )


def read_plainly(data: bytes) -> Reading:
    protocol = ServerProtocol()
    try:
        requests = [request for request, _ in protocol.feed(data)]
    except RemoteProtocolError:
        return Reading(None, rest=False)
    return Reading(requests, rest=protocol._frames.pending_bytes > 0)


# --- the bookies --------------------------------------------------------------------------------------------------------


class Peer:
    """Sends bytes in given pieces and collects answers at the same time, so that neither side waits for the other."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.received = bytearray()
        self.ended = False

    def talk(self, data: bytes, pieces: list[int], until: Callable[[bytearray], bool]) -> None:
        """Wrong if neither ``until`` nor the end of the connection comes in time."""
        self.sock.setblocking(False)
        deadline, at = time.monotonic() + ANSWER_S, 0
        ends = [*pieces, len(data)]
        while not self.ended and not (at == len(data) and until(self.received)):
            if time.monotonic() > deadline:
                raise Wrong(f"no answer to {len(data):,} bytes in {ANSWER_S:g} s")
            readable, writable, _ = select.select([self.sock], [self.sock] if at < len(data) else [], [], 0.5)
            try:
                if readable:
                    chunk = self.sock.recv(1 << 20)
                    self.ended = not chunk
                    self.received += chunk
                if writable:
                    while ends[0] <= at:
                        del ends[0]
                    at += self.sock.send(data[at : ends[0]])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                continue
            except OSError:
                self.ended = True

    def answers(self) -> list[bytes]:
        """Whole frames. Wrong for what is no frame."""
        found, at = [], 0
        while len(self.received) - at >= 4:
            size = int.from_bytes(self.received[at : at + 4], "big")
            if not size:
                raise Wrong("an empty frame")
            if len(self.received) - at < 4 + size:
                break
            found.append(bytes(self.received[at + 4 : at + 4 + size]))
            at += 4 + size
        return found

    def close(self) -> None:
        self.sock.close()


class Probe:
    """An honest peer of one bookie, whose adds are synced and read back."""

    def __init__(self, bookie: EmbeddedBookie, sock: socket.socket) -> None:
        self.bookie = bookie
        self._sock = sock
        self._file = self._sock.makefile("rb")
        self._count = 0

    def require_service(self) -> None:
        """Wrong, with what happened instead."""
        self._count += 1
        text = body(HONEST, self._count, b"%d" % self._count)
        try:
            added = self._ask(m.AddRequest(1, HONEST, self._count, KEY, text))
            found = self._ask(m.ReadRequest(2, HONEST, self._count))
        except (OSError, BkError) as error:
            raise Wrong(f"an honest peer is not served: {error}") from error
        if added.status is not m.Status.OK or not isinstance(found, m.ReadResponse) or found.body != text:
            raise Wrong(f"an honest peer is served wrongly: {added} {found}")
        if self.bookie.failed.is_set():
            raise Wrong("the bookie's loop has ended")

    def await_turn(self) -> None:
        """Return when the bookie has dealt with what others had sent before this call."""
        for _ in range(2):  # it may be dealing with this peer before the others at the first time
            self._ask(m.ReadRequest(2, HONEST, 1))

    def _ask(self, request: m.Request) -> m.Response:
        self._sock.sendall(encode_request(request, "v3"))
        return decode_response(self._file.read(int.from_bytes(self._file.read(4), "big")), "v3")

    def close(self) -> None:
        self._file.close()
        self._sock.close()


class _Tracebacks(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


class World:
    """With a ``doorway``, the bookies ask who comes, and whatever is sent is sent behind an honest entrance."""

    def __init__(self, stack: ExitStack, directory: Path, doorway: Doorway | None = None) -> None:
        self._doorway = doorway
        options = BookieOptions(door=None if doorway is None else doorway.door)
        self.whole, self.pieces, self.third = (
            stack.enter_context(EmbeddedBookie(directory / name, options=options)) for name in ("whole", "pieces", "third")
        )
        self.probes = [Probe(bookie, self.connected(bookie)) for bookie in (self.whole, self.pieces, self.third)]
        for probe in self.probes:
            stack.callback(probe.close)
        self.errors = _Tracebacks()
        logger = logging.getLogger("bk_core.bookie")
        logger.addHandler(self.errors)
        stack.callback(logger.removeHandler, self.errors)
        # what is cut short and misread is warned of, thousands of times
        level = logger.level
        logger.setLevel(logging.ERROR)
        stack.callback(logger.setLevel, level)

    def connected(self, bookie: EmbeddedBookie) -> socket.socket:
        """Return a connection that the bookie serves."""
        if self._doorway is None:
            return socket.create_connection(("127.0.0.1", bookie.port), timeout=ANSWER_S)
        return self._doorway.enter(bookie.port)

    def play(self, data: bytes, rng: random.Random, number: int) -> int:
        """Returns how many requests there were, as far as that can be told."""
        reading = read_plainly(data)
        cuts = _cuts(rng, len(data))
        if reading.requests is None:
            self._require_end(data, cuts)
        elif reading.rest:
            self._require_patience(data, cuts)
        else:
            self._require_same(data, cuts, reading, number)
        self.require_peace()
        return len(reading.requests or ()) + 1

    def require_peace(self) -> None:
        """Wrong if an honest peer is not served, or if anything was logged as unexpected."""
        for probe in self.probes:
            probe.require_service()
        if self.errors.found:
            raise Wrong(f"logged: {self.errors.found.pop()}")

    def _require_end(self, data: bytes, cuts: list[int]) -> None:
        peer = Peer(self.connected(self.third))
        try:
            peer.talk(data, cuts, lambda received: False)
        finally:
            peer.close()

    def _require_patience(self, data: bytes, cuts: list[int]) -> None:
        """Half a frame: what is whole before it is answered, and the connection stays."""
        peer = Peer(self.connected(self.third))
        try:
            peer.talk(data, cuts, lambda received: True)
            self.probes[2].require_service()  # everything sent before has been received by then
            if peer.ended:
                raise Wrong("the connection ended within a frame that may still be sound")
        finally:
            peer.close()

    def _require_same(self, data: bytes, cuts: list[int], reading: Reading, number: int) -> None:
        last, answer = _last(number)
        both = [(self.whole, []), (self.pieces, cuts)]
        said: list[Counter[bytes]] = []
        for bookie, places in both:
            peer = Peer(self.connected(bookie))
            try:
                peer.talk(data + last, places, lambda received: received.endswith(answer) or answer in received)
                if peer.ended:
                    raise Wrong(f"the connection ended though all requests are sound: {reading.requests}"[:2000])
                said.append(Counter(peer.answers()))
            finally:
                peer.close()
        if reading.comparable and said[0] != said[1]:
            raise Wrong(f"whole {said[0] - said[1]} in pieces {said[1] - said[0]} of {reading.requests}"[:4000])
        if reading.comparable and sum(said[0].values()) != len(reading.requests or ()) + 1:
            raise Wrong(f"{sum(said[0].values())} answers to {len(reading.requests or ()) + 1} requests")
        for ledger_id in {getattr(request, "ledger_id", -1) for request in reading.requests or ()} - {-1}:
            self.require_same_ledger(ledger_id)

    def require_same_ledger(self, ledger_id: int) -> None:
        left, right = (_state(bookie, ledger_id) for bookie in (self.whole, self.pieces))
        if left != right:
            raise Wrong(f"ledger {ledger_id}: {left} and {right}"[:2000])


def _last(number: int) -> tuple[bytes, bytes]:
    """A request whose answer comes behind all others, because it waits for the disk as they do, and that answer."""
    request = m.AddRequest(0, HONEST + 1, number, KEY, body(HONEST + 1, number, b""))
    return encode_request(request, "v2"), struct.pack(">IIIqq", 24, 0x02010000, 0, HONEST + 1, number)


def _state(bookie: EmbeddedBookie, ledger_id: int) -> object:
    server = bookie._server
    assert server is not None

    def look() -> object:
        try:
            record = server.storage.ledger(ledger_id)
            return record and (record, server.storage.entry_ids(ledger_id))
        except BkError as error:
            return str(error)

    return server.call(look).result(ANSWER_S)


def _cuts(rng: random.Random, size: int) -> list[int]:
    match rng.randrange(4):
        case 0:
            return []
        case 1:
            return list(range(1, min(size, 400)))  # one byte at a time
        case _:
            return sorted(rng.randrange(1, size + 1) for _ in range(rng.choice((1, 3, 30))))


# --- many cases -----------------------------------------------------------------------------------------------------------


@contextmanager
def world(doorway: Doorway | None = None) -> Iterator[World]:
    directory = Path(tempfile.mkdtemp(prefix="bk-fuzz-"))
    try:
        with ExitStack() as stack:
            yield World(stack, directory, doorway)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run(
    *,
    seconds: float | None = None,
    seed: int = 0,
    first: int = 0,
    cases: int | None = None,
    crashes_max: int = 20,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Cases ``first``, first + 1, ... until the time is over, or so many of them or of crashes were seen; crashes are told at once."""
    result = Result()
    with world() as made:

        def play(case: int) -> int:
            rng = random.Random(f"{seed}/{case}")
            return made.play(script(rng, case), rng, case)

        play_cases(
            result, play, seconds=seconds, seed=seed, first=first, cases=cases, crashes_max=crashes_max, say=say, caught=(Wrong, OSError)
        )
    return result
