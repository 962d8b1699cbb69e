"""Connections in the simulated world: the production link (``bk_core.net.link``) on a socket that is none.

A line is what all connections to one bookie share, one way: so many bytes a second. A connection is a pipe in each direction; a pipe that
is silenced keeps what is written into it, as a network does that loses every packet. What is silent, reset or thin is decided by
``link_swarm.py``; what really moved is remembered here, outside of the machines.
"""

from __future__ import annotations

import errno
import selectors
import socket
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from bk_core.net.asking import Asking, _is_bulk
from bk_core.net.link import BookieLink
from bk_core.net.names import Address, Names
from bk_core.net.outstanding import Waiting
from bk_core.net.reactor import Pollable, Reactor, Timer
from bk_core.net.sent_bytes import SentBytes
from bk_core.protocol.wire.messages import Status
from tests.simulation.world import MS, World

CHUNK_BYTES = 1400, 16 << 10  # of one connection, before others on the same line have their turn: a twentieth of a second within these
SEND_BUFFER_BYTES = 256 << 10
TIMEOUT_NS = 5_000 * MS  # of every request
FAST = 1_000_000_000  # bytes a second
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class SimReactor(Reactor):
    """The clock is the world's, and so is the thread."""

    def __init__(self, network: Network) -> None:  # no thread, no selector
        self.network = network
        self.world = network.world

    def now_ns(self) -> int:
        return self.world.now

    def on_thread(self) -> bool:
        return True

    def post(self, function: Callable[[], None]) -> None:
        self.world.at(1, function)

    def at_turn_end(self, function: Callable[[], None]) -> None:
        self.world.at(1, function)

    def call_later(self, after_ns: int, callback: Callable[[], None]) -> Timer:
        timer = Timer(callback)

        def fire() -> None:
            if (wanted := timer.callback) is not None:
                timer.callback = None
                wanted()

        self.world.at(after_ns, fire)
        return timer

    def register(self, sock: Any, events: int, target: Pollable) -> None:
        sock.interest, sock.target = events, target
        sock.poll()

    modify = register

    def unregister(self, sock: Any) -> None:
        sock.interest, sock.target = 0, None


class Line:
    """One way between a bookie and everybody: ``rate`` bytes a second, a chunk of each connection in turn."""

    def __init__(self, world: World, rate: int, latency_ns: int) -> None:
        self.world, self.rate, self.latency_ns = world, rate, latency_ns
        self.carried = 0
        self._chunk = min(max(rate // 20, CHUNK_BYTES[0]), CHUNK_BYTES[1])
        self._ready: deque[Pipe] = deque()
        self._busy = False

    def wake(self, pipe: Pipe) -> None:
        if pipe.moves and pipe not in self._ready:
            self._ready.append(pipe)
            self._pump()

    def _pump(self) -> None:
        while self._ready and not self._busy:
            pipe = self._ready.popleft()
            if not pipe.moves:
                continue
            chunk = pipe.take(self._chunk)
            self.carried += len(chunk)
            self._busy = True
            self.world.at(len(chunk) * 1_000_000_000 // self.rate, lambda p=pipe, c=chunk: self._sent(p, c))  # type: ignore[misc]

    def _sent(self, pipe: Pipe, chunk: bytes) -> None:
        self._busy = False
        pipe.sent(len(chunk))
        self.world.at(self.latency_ns, lambda: pipe.arrived(chunk))
        self.wake(pipe)
        self._pump()


class Pipe:
    """One direction of one connection."""

    def __init__(self, line: Line, deliver: Callable[[bytes], None], moved: Callable[[], None] = lambda: None) -> None:
        self.line, self._deliver, self._moved = line, deliver, moved
        self.queued = 0  # written and not yet on the other side
        self.silent = self.dead = False
        self._waiting = bytearray()

    @property
    def moves(self) -> bool:
        return bool(self._waiting) and not self.silent and not self.dead

    def write(self, data: bytes | memoryview) -> None:
        if not self.dead:
            self._waiting += data
            self.queued += len(data)
            self.line.wake(self)

    def take(self, count: int) -> bytes:
        chunk = bytes(self._waiting[:count])
        del self._waiting[:count]
        return chunk

    def sent(self, count: int) -> None:
        self.queued -= count
        if not self.dead:
            self._moved()

    def arrived(self, chunk: bytes) -> None:
        if not self.dead:
            self._deliver(chunk)

    def silence(self, on: bool) -> None:
        self.silent = on
        self.line.wake(self)


class SimSocket:
    """The client's end of one connection. ``heard_ns``, ``moved_ns``: when bytes really came, and really went."""

    def __init__(self, network: Network, link: SimLink) -> None:
        self.network, self.world, self.link = network, network.world, link
        self.interest = 0
        self.target: Pollable | None = None
        self.connected = self.closed = self.ended = False
        self.error = 0
        self.began_ns = self.heard_ns = self.moved_ns = self.world.now
        self.inbox = bytearray()
        self.out: Pipe | None = None
        self.back: Pipe | None = None
        self.host: Any = None
        self.forgotten: dict[int, None] = {}  # ledgers of which the bookie passed a request over on this connection
        self._polled = False

    # --- as the world sees it ------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """As a selector does, until nothing is ready any more."""
        if self._ready() and not self._polled:
            self._polled = True
            self.world.at(1, self._fire)

    def _ready(self) -> int:
        if self.target is None or self.closed or not (self.connected or self.error):
            return 0
        readable = READ if self.inbox or self.ended or self.error else 0
        writable = WRITE if self.error or (self.out is not None and self.out.queued < SEND_BUFFER_BYTES) else 0
        return (readable | writable) & self.interest

    def _fire(self) -> None:
        self._polled = False
        ready, target = self._ready(), self.target
        if ready and target is not None:
            target.on_io(bool(ready & READ), bool(ready & WRITE))
            self.poll()

    def made(self, out: Pipe, back: Pipe) -> None:
        self.connected, self.out, self.back = True, out, back
        self.began_ns = self.heard_ns = self.moved_ns = self.world.now
        self.poll()

    def deliver(self, chunk: bytes) -> None:
        if not self.closed and not self.error:
            self.inbox += chunk
            self.heard_ns = self.world.now
            self.poll()

    def moved(self) -> None:
        self.moved_ns = self.world.now
        self.poll()

    def fail(self, code: int) -> None:
        """A refused connect, or a reset: what was not read is lost."""
        self.error = code
        self.inbox.clear()
        self._cut()
        self.poll()

    def end(self) -> None:
        """The other side hung up; what it sent before comes first."""
        self.ended = True
        self._cut()
        self.poll()

    def _cut(self) -> None:
        for pipe in (self.out, self.back):
            if pipe is not None:
                pipe.dead = True

    # --- as the link sees it -------------------------------------------------------------------------------------------

    def getsockopt(self, level: int, option: int) -> int:
        return self.error

    def setsockopt(self, *_: Any) -> None:
        """Hints: nobody here needs them."""

    def recv_into(self, view: memoryview) -> int:
        if self.error:
            raise ConnectionResetError(self.error, "reset")
        if not self.inbox and not self.ended:
            raise BlockingIOError
        count = min(len(view), len(self.inbox))
        view[:count] = self.inbox[:count]
        del self.inbox[:count]
        return count

    def send(self, data: memoryview) -> int:
        if self.error or self.ended or self.out is None:
            raise BrokenPipeError(errno.EPIPE, "broken pipe")
        room = SEND_BUFFER_BYTES - self.out.queued
        if room <= 0:
            raise BlockingIOError
        count = min(room, len(data))
        self.out.write(data[:count])
        return count

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        return self.send(memoryview(b"".join(buffers)))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._cut()
            self.network.closed(self)


class SimSentBytes(SentBytes):
    def _queued(self, connection: Any) -> int | None:
        return None if connection.out is None else connection.out.queued


class SimNames(Names):
    """A name is known at once; some have an address first where nobody answers."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def lookup(self, host: str, port: int, then: Callable[[list[Address], str], None], *, anew: bool = False) -> None:
        targets = self._network.addresses(host, port)
        then([(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, target) for target in targets], "")


class WatchedAsking(Asking):
    """Tells the network what waits for its turn, and whose turn it was."""

    link: SimLink

    def hold(self, waiting: Waiting) -> None:
        super().hold(waiting)
        if _is_bulk(waiting.message):
            self.link.network.turns.holds(self.link, waiting)

    def held(self) -> list[Waiting]:
        everything = super().held()
        for waiting in everything:
            self.link.network.turns.gone(self.link, waiting)
        return everything

    def drop(self, reader: Hashable) -> None:
        for waiting in self.link.network.turns.of(self.link, reader):
            self.link.network.turns.gone(self.link, waiting)
        super().drop(reader)

    def done(self, waiting: Waiting, now_ns: int, answer_bytes: int = 0) -> None:
        super().done(waiting, now_ns, answer_bytes)
        self.link.network.on_answer(self.link)

    def _encode(self, waiting: Waiting, now_ns: int) -> memoryview:
        if waiting.reserved:
            self.link.network.turns.sends(self.link, waiting)
        self.link.network.sends(self.link, waiting)
        return super()._encode(waiting, now_ns)


class SimLink(BookieLink):
    """The production link; only where a socket would be made, and the kernel asked, is it another."""

    def __init__(self, reactor: Reactor, bookie: str, *args: Any, **options: Any) -> None:
        super().__init__(reactor, bookie, *args, **options)
        assert isinstance(reactor, SimReactor)
        self.network = reactor.network
        self.latest: SimSocket | None = None
        self.losses = 0
        self.failures = 0
        self.dropped_ns = -1
        self._waiting_out = SimSentBytes()
        asking = WatchedAsking(self.protocol, self._health)
        asking.link = self
        self._asking, self._outstanding = asking, asking.outstanding
        self.network.links.append(self)

    def _connect(self, address: Address) -> None:
        self.latest = made = self.network.connect(self, address[3])
        self._socket = made  # type: ignore[assignment]
        self._reactor.register(made, READ | WRITE, self)  # type: ignore[arg-type]
        self._writing = True

    def _drop(self, status: Status, why: str, *, backoff: bool = True, silent: Sequence[Waiting] = ()) -> None:
        was_connected = self._connected
        self.losses += was_connected
        self.failures += not was_connected
        self.dropped_ns = self._reactor.now_ns()
        self.network.drops(self, status, why, was_connected, backoff)
        super()._drop(status, why, backoff=backoff, silent=silent)

    @property
    def connection(self) -> SimSocket | None:
        return self.latest if self._connected else None

    def doubt(self, since_ns: int) -> None:
        before, owes = self.connection, bool(self._health.adds_unanswered)
        needed = any(listener.needs_connection for listener in self._listeners.values())
        super().doubt(since_ns)
        self.network.doubts(self, before, since_ns, owes, needed)


class Turns:
    """LINK-6 from outside: who waits on which link, and how often others were before them meanwhile."""

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self.overtakes = 0
        self._waiting: dict[tuple[int, Any], dict[Waiting, int]] = {}
        self._passed: dict[tuple[int, Any], dict[Any, int]] = {}

    def holds(self, link: SimLink, waiting: Waiting) -> None:
        message: Any = waiting.message
        self._of(link, waiting)[waiting] = message.entry_id if waiting.run is None else waiting.run.next

    def _of(self, link: SimLink, waiting: Waiting) -> dict[Waiting, int]:
        key = id(link), waiting.reader
        mine = self._waiting.setdefault(key, {})
        if not mine:
            self._passed[key] = {}
        return mine

    def sends(self, link: SimLink, waiting: Waiting) -> None:
        mine = self._of(link, waiting)
        entry = mine.pop(waiting, None)
        lowest = min(mine.values(), default=None)
        if entry is not None and lowest is not None and lowest < entry:
            self._fail("I-K6", f"entry {entry} of reader {waiting.reader} was asked for while {lowest} waited")
        self._passed[id(link), waiting.reader] = {}
        for (where, reader), held in self._waiting.items():
            if where == id(link) and reader != waiting.reader and held:
                passed = self._passed[where, reader]
                passed[waiting.reader] = passed.get(waiting.reader, 0) + 1
                self.overtakes += 1
                if passed[waiting.reader] > 2:
                    self._fail("I-K6", f"reader {waiting.reader} had its third turn while {reader} waited for one")

    def of(self, link: SimLink, reader: Any) -> list[Waiting]:
        return list(self._waiting.get((id(link), reader), ()))

    def gone(self, link: SimLink, waiting: Waiting) -> None:
        self._of(link, waiting).pop(waiting, None)


class Network:
    """All links and lines of one run. ``link_swarm.py`` says which hosts there are and what it does to them."""

    def __init__(self, world: World, fail: Callable[[str, str], None]) -> None:
        self.world, self.fail = world, fail
        self.links: list[SimLink] = []
        self.hosts: dict[str, Any] = {}
        self.turns = Turns(fail)
        self.on_drop: Callable[[SimLink, Status, str, bool], None] = lambda link, status, why, counts: None
        self.on_answer: Callable[[SimLink], None] = lambda link: None
        self.on_send: Callable[[SimLink, Waiting], None] = lambda link, waiting: None

    def addresses(self, host: str, port: int) -> list[tuple[str, int]]:
        return self.hosts[host].addresses(port)  # type: ignore[no-any-return]

    def connect(self, link: SimLink, target: tuple[str, int]) -> SimSocket:
        made = SimSocket(self, link)
        self.hosts[target[0]].accept(made, target[1])
        return made

    def closed(self, one: SimSocket) -> None:
        if one.host is not None:
            one.host.left(one)

    def sends(self, link: SimLink, waiting: Waiting) -> None:
        self.on_send(link, waiting)

    def drops(self, link: SimLink, status: Status, why: str, was_connected: bool, backoff: bool) -> None:
        """LINK-3: given up for silence only if it was silent."""
        one = link.latest
        if was_connected and why == "silent" and one is not None:
            quiet = self.world.now - max(one.heard_ns, one.began_ns)
            if quiet < TIMEOUT_NS - MS:
                self.fail("I-K1", f"the connection to {link.bookie} was given up as silent {quiet / MS:.0f} ms after bytes had come")
            self.world.probes["a link was dropped because it was silent"] += 1
        self.on_drop(link, status, why, backoff)

    def doubts(self, link: SimLink, before: SimSocket | None, since_ns: int, owes: bool, needed: bool) -> None:
        """LINK-4: those that heard nothing since then, and no others; not one with adds under way, nor one that a writer needs."""
        if before is None:
            return
        dropped = before.closed
        if dropped:
            self.world.probes["a link was dropped because another one to its bookie was silent"] += 1
        if dropped and before.heard_ns >= since_ns and not before.inbox:
            self.fail("I-K4", f"a connection to {link.bookie} was dropped as doubtful; it had heard something since")
        if dropped and owes:
            self.fail("I-K4", f"a connection to {link.bookie} was dropped as doubtful; adds under way have their own timeout")
        if dropped and needed:
            self.fail("I-K4", f"a connection to {link.bookie} was dropped as doubtful; a writer with deferred sync needs it")
        if not dropped and not owes and not needed and before.heard_ns < since_ns - MS:
            self.fail("I-K4", f"a connection to {link.bookie} was kept; it has heard nothing since another one fell silent")
