"""Bookies at the other end of simulated connections: the production machine on memory storage, and what can be wrong with a host."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bk_core.protocol.bookie.machine import BookieMachine, Persist, Reply, ReplyAfterSync
from bk_core.protocol.bookie.memory import MemoryBookieStorage
from bk_core.protocol.wire import connection
from bk_core.protocol.wire.messages import AddRequest, ForceLedgerRequest, ReadRequest
from tests.simulation.links import Line, Network, Pipe, SimSocket
from tests.simulation.world import MS

if TYPE_CHECKING:
    from bk_core.protocol.wire.messages import Request

FIRST_PORT = 3181
NOBODY = 1  # a port of an address where nobody answers
GARBAGE = bytes.fromhex("00000008ffffffffffffffff")
KEY = bytes(20)


@dataclass(slots=True)
class Troubles:
    """Probabilities per request, drawn by the seed; 0 once it is calm."""

    forgets: float = 0.0
    garbage: float = 0.0
    cuts: float = 0.0  # the connection is reset while an answer is on its way


@dataclass(slots=True, eq=False)
class SimHost:
    name: str
    network: Network
    to: Line
    back: Line
    latency_ns: int
    sync_ns: int
    troubles: Troubles
    two_addresses: bool = False
    port: int = FIRST_PORT
    up: bool = True
    stopped: bool = False  # the process stands still, its kernel does not
    silent: tuple[bool, bool] = (False, False)  # towards it, from it
    bad_ns: int = 0  # when something was last wrong with it
    storage: MemoryBookieStorage = field(default_factory=MemoryBookieStorage)
    servers: dict[SimSocket, connection.ServerProtocol] = field(default_factory=dict)
    _kept: list[tuple[SimSocket, bytes]] = field(default_factory=list)
    _vanished: dict[SimSocket, None] = field(default_factory=dict)
    _forces: dict[tuple[int, int], None] = field(default_factory=dict)
    machine: BookieMachine = field(init=False)

    def __post_init__(self) -> None:
        self.machine = BookieMachine(self.storage)
        self.network.hosts[self.name] = self

    @property
    def is_well(self) -> bool:
        return self.up and not self.stopped and self.silent == (False, False)

    def put(self, ledger_id: int, bodies: list[bytes]) -> None:
        """As if it had been written long ago."""
        for entry_id, body in enumerate(bodies):
            for effect in self.machine.handle("put", AddRequest(0, ledger_id, entry_id, KEY, body), 0):
                if isinstance(effect, Persist):
                    self.storage.apply(effect)
        self.storage.sync()

    # --- connections -----------------------------------------------------------------------------------------------

    def addresses(self, port: int) -> list[tuple[str, int]]:
        return [(self.name, NOBODY), (self.name, port)] if self.two_addresses else [(self.name, port)]

    def accept(self, sock: SimSocket, port: int) -> None:
        if port == NOBODY or self.silent != (False, False):
            return
        self.network.world.at(2 * self.latency_ns, lambda: self._accepted(sock, port))

    def _accepted(self, sock: SimSocket, port: int) -> None:
        if sock.closed or self.silent != (False, False):
            return
        if not self.up or port != self.port:
            sock.fail(errno.ECONNREFUSED)
            return
        if self.two_addresses:
            self.network.world.probes["a bookie was reached at its second address"] += 1
        sock.host, sock.port = self, port
        self.servers[sock] = connection.ServerProtocol()
        sock.made(Pipe(self.to, lambda chunk: self._receive(sock, chunk), sock.moved), Pipe(self.back, sock.deliver))

    def left(self, sock: SimSocket) -> None:
        self.servers.pop(sock, None)
        self._vanished.pop(sock, None)

    def _receive(self, sock: SimSocket, chunk: bytes) -> None:
        if self.stopped:
            self._kept.append((sock, chunk))
        elif sock in self.servers:
            for request, reply_to in self.servers[sock].feed(chunk):
                if sock in self.servers:
                    self._handle(sock, request, reply_to)

    def _handle(self, sock: SimSocket, request: Request, reply_to: connection.ReplyTo) -> None:
        random, ledger_id = self.network.world.random, getattr(request, "ledger_id", 0)
        if isinstance(request, ForceLedgerRequest):
            key = id(sock.link), request.request_id
            if key in self._forces:
                self.network.fail("I-K7", f"{self.name} was asked twice for the same force of ledger {ledger_id}")
            self._forces[key] = None
        troubles = self.troubles
        if troubles.forgets and ledger_id and isinstance(request, ReadRequest) and random() < troubles.forgets:
            sock.forgotten[ledger_id] = None
            return
        for effect in self.machine.handle((sock, request, object()), request, self.network.world.now // MS):
            match effect:
                case Persist():
                    self.storage.apply(effect)
                case Reply(_, response):
                    self._send(sock, response, reply_to)
                case ReplyAfterSync(_, response):
                    self._after_sync(sock, response, reply_to)
        if troubles.cuts and random() < troubles.cuts:
            self.network.world.at(int(50 * MS * random()) + 1, lambda: self._cut(sock, random() < 0.5))
        if troubles.garbage and random() < troubles.garbage and sock.back is not None:
            sock.back.write(GARBAGE)

    def _after_sync(self, sock: SimSocket, response: Any, reply_to: connection.ReplyTo) -> None:
        def synced() -> None:
            if self.up:
                self.storage.sync()
                self._send(sock, response, reply_to)

        self.network.world.at(self.sync_ns, synced)

    def _send(self, sock: SimSocket, response: Any, reply_to: connection.ReplyTo) -> None:
        if sock in self.servers and sock.back is not None:
            sock.back.write(self.servers[sock].encode(response, reply_to))

    def _cut(self, sock: SimSocket, reset: bool) -> None:
        if sock not in self.servers:
            return
        self.bad_ns = self.network.world.now
        del self.servers[sock]
        if sock.back is not None and sock.back.queued and sock.link._input.stop > sock.link._input.start:
            self.network.world.probes["a connection was lost in the middle of an answer"] += 1
        if reset:
            sock.fail(errno.ECONNRESET)
        else:
            sock.end()

    # --- what happens to it ------------------------------------------------------------------------------------------

    def cut_all(self) -> None:
        for sock in list(self.servers):
            self._cut(sock, reset=True)

    def crash(self, *, vanish: bool) -> None:
        """``vanish``: nobody is told, as when the power is gone."""
        self.up, self.stopped = False, False
        self._kept.clear()
        if vanish:
            for sock in self.servers:
                self._silence(sock, (True, True))
                self._vanished[sock] = None
            self.servers.clear()
        else:
            self.cut_all()
        self.storage.crash()
        self.machine = BookieMachine(self.storage)

    def restart(self) -> None:
        self.up = True
        for sock in list(self._vanished):  # its kernel knows nothing of them
            sock.fail(errno.ECONNRESET)
        self._vanished.clear()

    def move(self) -> None:
        """Its process ends here and begins elsewhere; from here on nothing comes."""
        self.crash(vanish=True)
        self._vanished.clear()
        self.up = True
        self.port += 1

    def stop(self, on: bool) -> None:
        self.stopped = on
        kept, self._kept = self._kept, []
        for sock, chunk in kept:
            self._receive(sock, chunk)

    def silence(self, towards: bool, back: bool) -> None:
        self.silent = towards, back
        for sock in self.servers:
            self._silence(sock, self.silent)

    def _silence(self, sock: SimSocket, silent: tuple[bool, bool]) -> None:
        if sock.out is not None and sock.back is not None:
            sock.out.silence(silent[0])
            sock.back.silence(silent[1])
