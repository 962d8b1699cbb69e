"""The clients of a run: readers of ledgers, with and without the product's machine, writers, and each request of theirs."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from bk_core.client.driver import Driver
from bk_core.errors import BkError, NotEnoughBookiesError
from bk_core.net.outstanding import Waiting
from bk_core.protocol.ledger.read.reader import RangeReader
from bk_core.protocol.ledger.run import PackedAdds
from bk_core.protocol.wire import connection
from bk_core.protocol.wire.messages import (
    AddRequest,
    BatchReadRequest,
    BatchReadResponse,
    ForceLedgerRequest,
    ReadRequest,
    ReadResponse,
    ReadRunRequest,
    ReadRunResponse,
    Response,
    Status,
)
from tests.simulation.link_hosts import KEY
from tests.simulation.link_session import SimSession
from tests.simulation.links import SimLink
from tests.simulation.world import MS

if TYPE_CHECKING:
    from tests.simulation.link_swarm import LinkPlay

S = 1_000 * MS
ADDED_LEDGER = 1000
HEADER_BYTES = 32
_LENGTH = struct.Struct(">I")
_IDS = struct.Struct(">qq")


@dataclass(slots=True, eq=False)
class Asked:
    """One request of somebody."""

    run: LinkPlay
    link: SimLink
    message: Any
    then: Callable[[Status, Response | None], None]
    counted: tuple[int, int] = (0, 0)  # what the link had lost, and failed to connect, when it was asked
    waiting: Waiting | None = None
    sends: int = 0
    piece_ns: int = 0  # when its latest piece was sent
    answers: int = 0

    def __str__(self) -> str:
        message = self.message
        return f"{type(message).__name__} of ledger {message.ledger_id} to {self.link.bookie}"

    @property
    def sent_ns(self) -> int:
        """Return the time at which its latest piece was sent; now for one that waits for its turn."""
        sent = None if self.waiting is None else self.waiting.patience.sent_ns
        return self.run.world.now if sent is None else sent

    def answer(self, status: Status, response: Response | None) -> None:
        self.answers += 1
        self.run.answered(self, status)
        self.then(status, response)


@dataclass(slots=True, eq=False)
class Puller:
    """Reads one ledger from its beginning to its end, some pieces at a time; goes to another bookie when one does not answer."""

    run: LinkPlay
    session: SimSession
    ledger_id: int
    kind: str
    depth: int
    bookie: int
    got: int = 0
    todo: deque[tuple[int, int]] = field(default_factory=deque)

    @property
    def name(self) -> str:
        return f"{self.session.name} reads {self.ledger_id}"

    def __str__(self) -> str:
        return self.name

    @property
    def done(self) -> bool:
        return self.got == len(self.run.bodies[self.ledger_id])

    def start(self) -> None:
        count = len(self.run.bodies[self.ledger_id])
        size = 1 if self.kind == "single" else 16
        self.todo.extend((first, min(size, count - first)) for first in range(0, count, size))
        for _ in range(self.depth):
            self._ask()

    def _ask(self) -> None:
        if not self.todo:
            return
        first, count = self.todo.popleft()
        names = list(self.run.hosts)
        bookie = names[self.bookie % len(names)]
        link_kind = "batch" if self.kind == "batch" else "data"
        self.run.ask(self.session, bookie, link_kind, self._message(first, count), lambda s, r: self._heard(first, count, s, r), self.name)

    def _message(self, first: int, count: int) -> Any:
        if self.kind == "single":
            return ReadRequest(0, self.ledger_id, first)
        if self.kind == "batch":
            return BatchReadRequest(0, self.ledger_id, first, count, 1 << 20)
        return ReadRunRequest(0, self.ledger_id, first, count)

    def _heard(self, first: int, count: int, status: Status, response: Response | None) -> None:
        bodies = self.run.bodies[self.ledger_id]
        found = _bodies_of(response)
        if found != bodies[first : first + len(found)] or len(found) > count:
            self.run.network.fail("I-K3", f"{self.name} was given something else than entries {first} to {first + count - 1}")
        self.got += len(found)
        self.run.useful_bytes += sum(map(len, found))
        if len(found) < count:
            self.todo.appendleft((first + len(found), count - len(found)))
        if found:
            self._ask()
            return
        if status is Status.OK:
            self.run.network.fail("I-K3", f"{self.name} was given nothing, and that it was well")
        if status is Status.BAD_REQUEST and self.kind == "batch":
            self.kind = "run"
        self.bookie += 1
        self.run.world.at(int(200 * MS * (1 + self.run.world.random())), self._ask)


@dataclass(slots=True, eq=False)
class Reader:
    """Reads one ledger with the product's machine and driver; every host has all of it. What failed is read again from there."""

    run: LinkPlay
    session: SimSession
    ledger_id: int
    batch: bool
    next: int = 0
    moved_ns: int = 0  # since then nothing was read
    driver: Driver | None = None

    @property
    def name(self) -> str:
        return f"{self.session.name} reads {self.ledger_id} by machine"

    @property
    def done(self) -> bool:
        return self.next == len(self.run.bodies[self.ledger_id])

    def start(self) -> None:
        metadata, last = self.run.store.ledgers[self.ledger_id], len(self.run.bodies[self.ledger_id]) - 1
        limits = self.session.config.machine_limits
        machine = RangeReader(self.ledger_id, metadata, self.next, last, start=0, batch=self.batch, limits=limits, version=0)
        self.driver = driver = Driver(self.session, self.ledger_id)
        driver.set_quorums(metadata)
        driver.machine = machine
        driver.on_complete, driver.on_fail = self._completed, self._failed
        self.moved_ns = self.run.world.now
        driver.perform(machine.start())

    def _completed(self, token: Any, value: Any) -> None:
        assert self.driver is not None
        if token == "end":
            self.driver.close()
        elif token == "run":
            bodies = self.run.bodies[self.ledger_id]
            if value.first_entry_id != self.next or value.payloads() != [
                body[HEADER_BYTES:] for body in bodies[self.next : self.next + value.count]
            ]:
                self.run.network.fail("I-K3", f"{self.name} was given something else than entries {self.next} and so on")
            self.next += value.count
            self.moved_ns = self.run.world.now
            self.run.useful_bytes += value.payload_bytes
            driver, machine = self.driver, self.driver.machine
            assert isinstance(machine, RangeReader)
            self.run.world.at(1, lambda: driver.perform(machine.consumed()))

    def _failed(self, token: Any, error: Exception) -> None:
        """RD-13."""
        assert self.driver is not None and isinstance(error, BkError)
        self.driver.close()
        self.run.world.note(f"{self.name}: {error}")
        waited_ns = self.run.world.now - self.moved_ns
        if error.context.get("status") == Status.UNAVAILABLE.name and waited_ns < self.session.config.machine_limits.unreachable_ns:
            self.run.network.fail("I-K12", f"{self.name} was given up after {waited_ns / MS:.0f} ms: {error}")
        self.run.world.at(int(S * (1 + self.run.world.random())), self.start)


def _bodies_of(response: Response | None) -> list[bytes]:
    match response:
        case ReadResponse(body=body) if body is not None:
            return [bytes(body)]
        case BatchReadResponse():
            return _split(bytes(response.bodies), 0)
        case ReadRunResponse():
            return _split(bytes(response.frames), 24)
    return []


def _split(data: bytes, head: int) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        found.append(data[at + 4 + head : at + 4 + size])
        at += 4 + size
    return found


@dataclass(slots=True, eq=False)
class Adder:
    """Writes small ledgers one after the other, each on an ensemble of its own."""

    run: LinkPlay
    session: SimSession
    number: int
    ledger_id: int = 0
    ensemble: tuple[str, ...] = ()
    next_entry: int = 0
    pending: dict[str, list[int]] = field(default_factory=dict)  # by bookie: since when

    @property
    def name(self) -> str:
        return f"{self.session.name} writes {self.ledger_id}"

    def waits_since(self, link: SimLink) -> int | None:
        waiting = self.pending.get(link.bookie)
        if not waiting or not self.ensemble or self.session._links.get((link.bookie, "data", 0)) is not link:
            return None
        return max(waiting[0], link.latest.began_ns if link.latest is not None else 0)

    def go_on(self) -> None:
        if self.run.calm:
            return
        if not self.ensemble or self.run.world.random() < 0.3:
            self._choose()
        if self.ensemble:
            self._add()
        self.run.world.at(int(S * (0.1 + self.run.world.random())), self.go_on)

    def _choose(self) -> None:
        if any(self.pending.values()):
            return
        try:
            chosen = tuple(self.session.placement.new_ensemble(2))
        except NotEnoughBookiesError:
            return
        self.run.chose(self.session, chosen)
        for bookie in self.ensemble:
            self.session.link(bookie, "data").unlisten(self.ledger_id, self)
        self.number += 1
        self.ledger_id, self.ensemble, self.next_entry = ADDED_LEDGER + self.number, chosen, 0

    def _add(self) -> None:
        run, count = self.run, 1 + int(self.run.world.random() * 4)
        frames, offsets = bytearray(), [0]
        for entry_id in range(self.next_entry, self.next_entry + count):
            body = body_of(self.ledger_id, entry_id, 200)
            frames += connection.encode_request(AddRequest(0, self.ledger_id, entry_id, KEY, body), "v2")
            offsets.append(len(frames))
        marks = memoryview(struct.pack(f"={count + 1}q", *offsets)).cast("q")
        added = PackedAdds(self.ledger_id, self.next_entry, count, bytes(frames), marks)
        self.next_entry += count
        for position, bookie in enumerate(self.ensemble):
            self.pending.setdefault(bookie, []).extend([run.world.now] * count)
            link = self.session.link(bookie, "data")
            link.listen(self.ledger_id, self)
            link.send_adds(added, position, 0, 2, 2)
        if run.world.random() < 0.3:
            bookie = self.ensemble[0]
            run.ask(self.session, bookie, "control", ForceLedgerRequest(0, self.ledger_id), lambda s, r: None, self.name)

    @property
    def needs_connection(self) -> bool:
        """Some are writers with deferred sync."""
        return self.number % 2 == 1

    def on_add(self, bookie: str, first_entry_id: int, count: int, status: Status, entries: int | None) -> None:
        self.session.note_answer(bookie, status)
        self.run.heard(self.session, bookie, status)
        waiting = self.pending.get(bookie, [])
        if count > len(waiting) and status is Status.OK:
            self.run.network.fail("I-K3", f"{self.name}: more adds are answered by {bookie} than it was sent")
        del waiting[:count]

    def on_lost(self, bookie: str, status: Status) -> None:
        self.session.note_answer(bookie, status)
        self.pending.pop(bookie, None)


def body_of(ledger_id: int, entry_id: int, size: int) -> bytes:
    filled = bytes([(ledger_id * 31 + entry_id * 7 + 1) % 256]) * max(0, size - 24)
    return _IDS.pack(ledger_id, entry_id) + struct.pack(">q", entry_id - 1) + filled
