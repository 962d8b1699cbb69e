"""One ledger's whole world in one thread, from one seed: bookies, clients, metadata store, network, clock.

The machines are the ones that run in production (``bk_core.protocol``). The seed draws the weather (delays of very different
magnitude per message, loss, duplication, crashes, ambiguous compare-and-sets) and the quorums. ``replay`` of a seed is exact: nothing
here iterates a set or reads a clock.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from bk_core.protocol.bookie import machine as bookie_machine
from bk_core.protocol.bookie.memory import MemoryBookieStorage
from bk_core.protocol.effects import Complete, Effect, Fail, Log, ReadLedger, SendAdds, SendAndForget, SendRead, SetTimer, WriteLedger
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.events import AddReply, BookieLost, LedgerRead, LedgerWritten, Outcome, ReadReply, TimerFired
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from bk_core.protocol.ledger.recovery import LedgerRecovery
from bk_core.protocol.ledger.writer import LedgerWriter, WriterState
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import AddRequest, AddResponse, ReadResponse, Request, Status

LEDGER = 7
MS = 1_000_000
SHAPES = ((3, 3, 2), (3, 2, 2), (4, 2, 2), (5, 3, 2), (3, 3, 3), (4, 3, 2), (3, 2, 1))


@dataclass(frozen=True)
class Options:
    """What a seed decides before anything happens."""

    quorums: tuple[int, int, int]
    bookies: int
    loss: float
    duplication: float
    slow: float
    crash: float
    cas_unknown: float
    recover_at_ms: int
    recoverers: int
    entries: int
    limits: Limits

    @classmethod
    def draw(cls, rng: random.Random) -> Options:
        quorums = SHAPES[rng.randrange(len(SHAPES))]
        window = (1, 2, 32)[rng.randrange(3)]
        return cls(
            quorums,
            quorums[0] + rng.randrange(3),
            (0.0, 0.02, 0.15)[rng.randrange(3)],
            (0.0, 0.1)[rng.randrange(2)],
            (0.0, 0.1, 0.4)[rng.randrange(3)],
            (0.0, 0.01, 0.05)[rng.randrange(3)],
            (0.0, 0.3)[rng.randrange(2)],
            rng.randrange(5, 400),
            1 + rng.randrange(2),
            1 + rng.randrange(40),
            Limits(add_timeout_ns=80 * MS, read_timeout_ns=80 * MS, recovery_window_entries=window, recovery_retries_max=3),
        )


@dataclass
class Bookie:
    name: str
    storage: MemoryBookieStorage = field(default_factory=MemoryBookieStorage)
    up: bool = True
    life: int = 0
    machine: bookie_machine.BookieMachine = field(init=False)

    def __post_init__(self) -> None:
        self.machine = bookie_machine.BookieMachine(self.storage)


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.options = Options.draw(self.rng)
        self.now = 0
        self.healed = False
        self.trace = hashlib.sha256()
        self.lines: list[str] = []
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self.bookies = {f"b{i}:1": Bookie(f"b{i}:1") for i in range(self.options.bookies)}
        size, write, ack = self.options.quorums
        ensemble = tuple(list(self.bookies)[:size])
        self.history: list[LedgerMetadata] = [LedgerMetadata(size, write, ack, LedgerState.OPEN, (Fragment(0, ensemble),), password=b"s")]
        self.placement = RandomPlacement(lambda: list(self.bookies), self.rng.random)
        self.acknowledged: dict[int, bytes] = {}
        self.submitted: dict[int, bytes] = {}
        self.stats = {"acknowledged": 0, "fenced": 0, "recovered": 0, "changes": 0, "crashes": 0, "undecided": 0, "unknown_cas": 0}

    # --- time and weather ------------------------------------------------------------------------------------------

    def at(self, after_ns: int, function: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + max(1, after_ns), self._sequence, function))

    def delay(self) -> int:
        """Speed classes of very different magnitude: uniform delays miss the rare interleavings (replication-protocol.md 13.5)."""
        base = (MS // 10, MS, 10 * MS, 120 * MS)[self.rng.randrange(4) if not self.healed and self.rng.random() < self.options.slow else 0]
        return 1 + int(base * (0.5 + self.rng.random()))

    def lost(self) -> bool:
        return not self.healed and self.rng.random() < self.options.loss

    def note(self, line: str) -> None:
        text = f"{self.now / MS:9.3f} {line}"
        self.trace.update(text.encode())
        self.lines.append(text)

    def step(self) -> bool:
        if not self._heap:
            return False
        self.now, _, function = heapq.heappop(self._heap)
        function()
        return True

    @property
    def metadata(self) -> LedgerMetadata:
        return self.history[-1]

    @property
    def version(self) -> int:
        return len(self.history) - 1

    # --- bookies ---------------------------------------------------------------------------------------------------

    def deliver(self, bookie_name: str, request: Request, answer: Callable[[Any], None]) -> None:
        """Send one request; it and its answer may be lost, late, or come twice."""
        copies = 2 if not self.healed and self.rng.random() < self.options.duplication else 1
        for _ in range(copies):
            if not self.lost():
                self.at(self.delay(), lambda: self._arrive(bookie_name, request, answer))

    def _arrive(self, bookie_name: str, request: Request, answer: Callable[[Any], None]) -> None:
        bookie = self.bookies[bookie_name]
        if not bookie.up:
            return
        for effect in bookie.machine.handle(object(), request, self.now // MS):
            match effect:
                case bookie_machine.Persist():
                    bookie.storage.apply(effect)
                case bookie_machine.Reply(_, response):
                    self._reply(bookie_name, response, answer)
                case bookie_machine.ReplyAfterSync(_, response):
                    self._after_sync(bookie, response, answer)
                case _:
                    raise AssertionError(effect)

    def _after_sync(self, bookie: Bookie, response: Any, answer: Callable[[Any], None]) -> None:
        life, position = bookie.life, bookie.storage.position

        def sync() -> None:
            if bookie.life != life or not bookie.up:
                return
            if bookie.storage.durable_position < position:
                bookie.storage.sync(position - bookie.storage.durable_position)
            self._reply(bookie.name, response, answer)

        self.at(self.delay(), sync)

    def _reply(self, name: str, response: Any, answer: Callable[[Any], None]) -> None:
        if not self.lost():
            self.at(self.delay(), lambda: answer(response))

    def crash(self, name: str, restart: bool = True) -> None:
        bookie = self.bookies[name]
        if not bookie.up:
            return
        self.stats["crashes"] += 1
        self.note(f"crash {name}")
        bookie.up, bookie.life = False, bookie.life + 1
        bookie.storage.crash()
        if restart:
            self.at(int(200 * MS * self.rng.random()), lambda: self.restart(name))

    def restart(self, name: str) -> None:
        bookie = self.bookies[name]
        if not bookie.up:
            bookie.up = True
            bookie.machine = bookie_machine.BookieMachine(bookie.storage)
            self.note(f"restart {name}")

    # --- metadata store --------------------------------------------------------------------------------------------

    def compare_and_set(self, wanted: LedgerMetadata, version: int, answer: Callable[[Outcome, int], None]) -> None:
        """The answer may be lost while the write applies now or much later (META-12, scenarios 18 and 19)."""
        unknown = not self.healed and self.rng.random() < self.options.cas_unknown

        def apply() -> None:
            good = version == self.version
            if good:
                self.history.append(wanted)
                self.note(f"metadata v{self.version} {wanted.state.name} {wanted.fragments} last {wanted.last_entry_id}")
            if not unknown:
                outcome = Outcome.OK if good else Outcome.CONFLICT
                self.at(self.delay(), lambda: answer(outcome, version + 1))

        self.at(self.delay() * (20 if unknown else 1), apply)
        if unknown:
            self.stats["unknown_cas"] += 1
            self.at(self.delay(), lambda: answer(Outcome.UNKNOWN, -1))


class Client:
    """Performs the effects of one machine in the simulated world; the reactor's ``Driver`` is its twin."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.machine: Any = None
        self.alive = True
        self.results: list[tuple[Any, Any]] = []
        self.on_done: Callable[[Any, Any], None] = lambda token, value: None
        self._timers: dict[str, int] = {}

    def feed(self, event: Any) -> None:
        if self.alive:
            self.perform(self.machine.handle(event, self.world.now))

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._one(effect)

    def _one(self, effect: Effect) -> None:
        world = self.world
        match effect:
            case SendAdds(bookie, position, run, start):
                size, write, _ = world.options.quorums
                for index in run.indices(position, start, size, write):
                    self._send_add(bookie, run, index)
            case SendRead(request, bookie, message, _):
                self._send_read(request, bookie, message)
            case SendAndForget(bookie, message):
                world.deliver(bookie, message, lambda response: None)
            case ReadLedger(request):
                world.at(world.delay(), lambda: self._read_ledger(request))
            case WriteLedger(request, metadata, version):
                world.compare_and_set(metadata, version, lambda outcome, v: self.feed(LedgerWritten(request, outcome, v)))
            case SetTimer(key, after_ns):
                self._timers[key] = mark = self._timers.get(key, 0) + 1
                world.at(after_ns, lambda: self.feed(TimerFired(key)) if self._timers[key] == mark else None)
            case Complete(token, value):
                self.on_done(token, value)
            case Fail(token, error):
                self.on_done(token, error)
            case Log(_, message):
                world.note(f"{self.name}: {message}")

    def _send_add(self, bookie: str, run: Any, index: int) -> None:
        entry_id = run.first_entry_id + index
        key = digests.master_key(b"s")
        request = AddRequest(0, LEDGER, entry_id, key, bytes(run.body(index)), run.recovery, run.recovery)
        if not self.world.bookies[bookie].up:
            self.world.at(self.world.delay(), lambda: self.feed(BookieLost(bookie)))
            return

        def answer(response: AddResponse) -> None:
            self.feed(AddReply(bookie, response.entry_id, 1, response.status))

        self.world.deliver(bookie, request, answer)

    def _send_read(self, request: int, bookie: str, message: Request) -> None:
        answered = [False]

        def answer(response: Any) -> None:
            if not answered[0]:
                answered[0] = True
                status = Status.TIMEOUT if response is None else response.status
                self.feed(ReadReply(request, bookie, status, response if isinstance(response, ReadResponse) else None))

        self.world.at(self.world.options.limits.read_timeout_ns, lambda: answer(None))
        self.world.deliver(bookie, replace(message, request_id=request), answer)

    def _read_ledger(self, request: int) -> None:
        self.feed(LedgerRead(request, Outcome.OK, self.world.metadata, self.world.version))


class Run:
    """One writer that appends, crashes of bookies, and recoverers that want the ledger while it writes."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        options = self.world.options
        self.writer = Client(self.world, "w")
        self.writer.machine = LedgerWriter(LEDGER, self.world.metadata, 0, self.world.placement, options.limits)
        self.writer.on_done = self._acknowledged
        self.completed: list[tuple[int, bool]] = []
        self.recoveries: list[Client] = []
        self.closed: list[LedgerMetadata] = []
        self.world.at(1, self._append)
        self._left = options.entries
        for index in range(options.recoverers):
            self.world.at(options.recover_at_ms * MS + index * self.world.delay(), lambda i=index: self.recover(f"r{i}"))
        self.world.at(MS, self._weather)

    def _append(self) -> None:
        if self._left <= 0 or self.writer.machine.state is not WriterState.OPEN:
            return
        count = min(1 + self.world.rng.randrange(4), self._left)
        self._left -= count
        first = self.writer.machine.last_add_pushed + 1
        payloads = [f"entry {first + i} ".encode() * (1 + (first + i) % 3) for i in range(count)]
        offsets = array("q", [0])
        for index, payload in enumerate(payloads):
            offsets.append(offsets[-1] + len(payload))
            self.world.submitted[first + index] = payload
        self.writer.perform(self.writer.machine.append(b"".join(payloads), offsets, (first, count), self.world.now))
        self.world.at(int(20 * MS * self.world.rng.random()), self._append)

    def _acknowledged(self, token: Any, value: Any) -> None:
        first, count = token
        good = not isinstance(value, Exception)
        self.completed.append((first, good))
        self.world.note(f"append {first}+{count}: {'ok' if good else value}")
        if good:
            for entry_id in range(first, first + count):
                self.world.acknowledged[entry_id] = self.world.submitted[entry_id]

    def recover(self, name: str) -> None:
        client = Client(self.world, name)
        client.machine = LedgerRecovery(LEDGER, self.world.placement, name, self.world.options.limits)
        client.on_done = lambda token, value: self._recovered(client, value)
        self.recoveries.append(client)
        client.perform(client.machine.start())

    def _recovered(self, client: Client, value: Any) -> None:
        if isinstance(value, Exception):
            self.world.stats["undecided"] += 1
            self.world.note(f"{client.name}: {value}")
            self.world.at(50 * MS, lambda: self.recover(client.name))
            return
        self.world.stats["recovered"] += 1
        self.closed.append(value)

    def _weather(self) -> None:
        world = self.world
        if world.healed:
            return
        if world.rng.random() < world.options.crash:
            world.crash(list(world.bookies)[world.rng.randrange(len(world.bookies))])
        world.at(5 * MS, self._weather)

    def play(self, storm_ms: int = 800, calm_ms: int = 60_000) -> None:
        """Phase one: anything may happen, safety only. Phase two: healed, every recovery must end and the ledger must be CLOSED."""
        from tests.simulation.invariants import check_end, check_step

        while self.world.now < storm_ms * MS and self.world.step():
            check_step(self)
        self.world.healed = True
        for name in self.world.bookies:
            self.world.restart(name)
        deadline = self.world.now + calm_ms * MS
        while len(self.closed) < self.world.options.recoverers and self.world.now < deadline and self.world.step():
            check_step(self)
        settle = self.world.now + 2_000 * MS
        while self.world.now < settle and self.world.step():
            check_step(self)
        check_end(self)


def decode(body: bytes, entry_id: int) -> layout.Entry:
    return layout.decode_body(body, LEDGER, entry_id, LedgerMetadata.__dataclass_fields__["digest_type"].default, b"")
