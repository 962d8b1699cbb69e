"""Clients: each performs the effects of one production machine in the simulated world, as the reactor's driver does in the real one."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bk_core.protocol.effects import (
    Complete,
    Effect,
    Fail,
    Log,
    LookForBookies,
    ReadLedger,
    SendAdds,
    SendAndForget,
    SendRead,
    SetTimer,
    WriteLedger,
)
from bk_core.protocol.events import (
    AddReply,
    BookieLost,
    BookiesChanged,
    BookiesLookedFor,
    LedgerRead,
    LedgerWritten,
    Outcome,
    ReadReply,
    TimerFired,
)
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.ledger.recover.recovery import LedgerRecovery, RecoveryState
from bk_core.protocol.ledger.write.options import WriterOptions
from bk_core.protocol.ledger.write.writer import LedgerWriter, WriterState
from bk_core.protocol.wire.batch_parts import BatchParts
from bk_core.protocol.wire.messages import AddRequest, BatchReadRequest, ReadRequest, ReadRunRequest, Request, Status
from bk_core.protocol.wire.read_run import RunAnswers
from tests.simulation.bookies import Call, kind_of
from tests.simulation.store import Answer
from tests.simulation.truth import CALLBACK, FENCED, OPENED, VERDICT, Adds, Truth
from tests.simulation.writer_watch import WriterWatch

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster


def in_parts(request: BatchReadRequest, response: Any) -> Any:
    """The answer as it is when it was verified while it arrived, cut anywhere."""
    assert request.check is not None
    bodies = bytes(response.bodies)
    parts = BatchParts(request.check, request.ledger_id, request.entry_id, request.entries_max, len(bodies))
    cuts = random.Random(len(bodies) + request.entry_id)
    at = end = 0
    while at < len(bodies):
        end = min(len(bodies), max(at, end) + cuts.choice((1, 5, 40, 1000)))
        at += parts.take(memoryview(bodies)[at:end], len(bodies) - at)[0]
    return replace(response, bodies=b"", parts=parts)


class Client:
    """One machine and its connections. ``role`` says what it may write into metadata (META-3)."""

    role = "client"
    wants_registry = False

    truth: Truth  # of the ledger it works on; leaders of logs have none of their own

    def __init__(self, cluster: Cluster, name: str, truth: Truth | None) -> None:
        self.cluster, self.world, self.name = cluster, cluster.world, name
        if truth is not None:
            self.truth = truth
        self.machine: Any = None
        self.alive = True
        self.paused = False
        self.clock_ns = 0  # how far this client's clock is ahead
        self.on_done: Callable[[Any, Any], None] = lambda token, value: None
        self.cas_sent = 0
        self.cas_unknown = 0
        self.leaks: list[str] = []  # what the machine asked for after its end (L-11)
        self._inbox: list[Callable[[], None]] = []
        self._timers: dict[str, int] = {}
        self._connected: dict[str, None] = {}
        self._reads: dict[tuple[int, int], str] = {}  # outstanding (machine, request) -> bookie
        self._generation = 0  # counts machines: an answer for an earlier one is nobody's
        cluster.clients.append(self)

    @property
    def now(self) -> int:
        return self.world.now + self.clock_ns

    # --- being alive -----------------------------------------------------------------------------------------------

    def soon(self, function: Callable[[], None]) -> None:
        """Run when not paused: a paused client finds everything in its inbox afterwards (scenario 14)."""
        if not self.alive:
            return
        if self.paused:
            self._inbox.append(function)
            return
        function()

    def pause(self) -> None:
        self.paused = True
        self.world.note(f"{self.name} pauses")

    def resume(self) -> None:
        if not self.paused:
            return
        self.paused = False
        self.world.note(f"{self.name} resumes")
        inbox, self._inbox = self._inbox, []
        for function in inbox:
            self.soon(function)

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self._inbox.clear()
            self.world.note(f"{self.name} dies")

    def registry_changed(self) -> None:
        """The set of writable bookies changed; machines that wait for that hear of it (G-10)."""

    # --- events and effects ----------------------------------------------------------------------------------------

    def feed(self, event: Any) -> None:
        self.soon(lambda: self._handle(event))

    def _handle(self, event: Any) -> None:
        if self.machine is None:
            return
        if not self.ended:
            self.act(self.machine.handle(event, self.now))
            return
        effects = self.machine.handle(event, self.now)
        for effect in effects:
            if not isinstance(effect, Log | Complete | Fail):
                self.leaks.append(f"{type(effect).__name__} after {type(event).__name__}")
        self.act(effects)

    @property
    def ended(self) -> bool:
        """The machine will never do anything again."""
        return False

    def act(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._one(effect)
        self.observe()

    def observe(self) -> None:
        """Look at the machine after a step; subclasses tell the truth about it."""

    def _one(self, effect: Effect) -> None:
        match effect:
            case SendAdds(bookie, position, run, start):
                self._send_adds(bookie, position, run, start)
            case SendRead(request, bookie, message, timeout_ns):
                self._send_read(request, bookie, message, timeout_ns)
            case SendAndForget(bookie, message):
                self._send(bookie, message, lambda response: None)
            case ReadLedger(request):
                self.read_ledger(request)
            case WriteLedger(request, metadata, version):
                self.write_ledger(request, metadata, version)
            case LookForBookies(request):
                self.look_for_bookies(request)
            case SetTimer(key, after_ns):
                self._timers[key] = mark = self._timers.get(key, 0) + 1
                generation = self._generation
                self.world.timer(after_ns, lambda: self._timer(key, mark, generation))
            case Complete(token, value):
                self.on_done(token, value)
            case Fail(token, error):
                self.on_done(token, error)
            case Log(level, message):
                self.world.note(f"{self.name}: {message}")
                if level == "error":
                    self.cluster.alarms.append(f"{self.name}: {message}")

    def read_ledger(self, request: int) -> None:
        machine = self.machine

        def heard(found: Answer) -> None:
            if machine is self.machine:
                self.feed(LedgerRead(request, found.outcome, self.view(found.value), found.version))

        self.cluster.store.read(self.name, self.truth, heard)

    def look_for_bookies(self, request: int) -> None:
        """Placement asks the registry itself; what the look adds is the time that it takes, and that it may be in vain."""
        machine = self.machine

        def heard(found: Answer) -> None:
            if machine is self.machine:
                self.feed(BookiesLookedFor(request, found.outcome))

        self.cluster.store.call(self.name, "bookies", self.truth.ledger_id, lambda: Answer(Outcome.OK), heard)

    def view(self, metadata: LedgerMetadata | None) -> LedgerMetadata | None:
        """The metadata as this client understands it."""
        return metadata

    def write_ledger(self, request: int, metadata: LedgerMetadata, version: int) -> None:
        machine = self.machine
        self.cas_sent += 1

        def heard(found: Answer) -> None:
            if found.outcome is Outcome.UNKNOWN:
                self.cas_unknown += 1
            if machine is self.machine:
                self.feed(LedgerWritten(request, found.outcome, found.version))

        self.cluster.store.compare_and_set(self.name, self.role, self.truth, metadata, version, heard)

    def _timer(self, key: str, mark: int, generation: int) -> None:
        if self._timers[key] == mark and generation == self._generation:
            self.feed(TimerFired(key))

    def _send(self, bookie: str, message: Request, answer: Callable[[Any], None]) -> None:
        self._connected[bookie] = None
        target, kind = self.cluster.bookies[bookie], kind_of(message)
        call = Call(self.name, message, kind, answer, self.decides(message))
        self.world.send(
            self.name, bookie, kind, getattr(message, "ledger_id", -1), getattr(message, "entry_id", -1), lambda: target.receive(call)
        )

    def _send_adds(self, bookie: str, position: int, run: Any, start: int) -> None:
        if not self.cluster.bookies[bookie].up:
            self._refused(bookie)
            return
        md, key = self.truth.history[0].metadata, self.truth.master_key
        ledger_id, recovery = self.truth.ledger_id, run.recovery
        deferred = bool(getattr(run, "deferred_sync", False))

        machine = self.machine

        def answer(response: Any) -> None:
            if machine is self.machine:
                self.feed(AddReply(bookie, response.entry_id, 1, response.status))

        for index in run.indices(position, start, md.ensemble_size, md.write_quorum_size):
            entry_id = run.first_entry_id + index
            self._send(bookie, AddRequest(0, ledger_id, entry_id, key, bytes(run.body(index)), recovery, recovery, deferred), answer)

    def _refused(self, bookie: str) -> None:
        """Connection refused: told soon, once for all that was to be sent."""
        self.world.at(self.world.delay(), lambda: self.feed(BookieLost(bookie)))

    def decides(self, message: Request) -> bool:
        """Return True if a denial of this read may end the ledger (I-12)."""
        return False

    def lost(self, bookie: str) -> None:
        """The connection broke: adds are told through BookieLost, reads each get their answer."""
        if bookie in self._connected:
            del self._connected[bookie]
            self.feed(BookieLost(bookie))
            for key in [k for k, b in self._reads.items() if b == bookie]:
                self._answered(key, bookie, Status.UNAVAILABLE, None)

    def _send_read(self, request: int, bookie: str, message: Any, timeout_ns: int | None) -> None:
        world, key = self.world, (self._generation, request)
        self._reads[key] = bookie
        if not self.cluster.bookies[bookie].up:
            world.at(world.delay(), lambda: self._answered(key, bookie, Status.UNAVAILABLE, None))
            return
        if isinstance(message, ReadRunRequest):
            self._send_read_run(key, bookie, replace(message, request_id=request), timeout_ns)
            return
        world.timer(timeout_ns or self.cluster.limits.read_timeout_ns, lambda: self._answered(key, bookie, Status.TIMEOUT, None))
        self._send(bookie, replace(message, request_id=request), lambda response: self._read_answered(key, bookie, message, response))

    def _read_answered(self, key: tuple[int, int], bookie: str, message: Any, response: Any) -> None:
        """As the link does it: of answers to batch reads every other one is long enough to be taken in parts."""
        if isinstance(message, BatchReadRequest) and message.check and response.status is Status.OK and key[1] % 2:
            response = in_parts(message, response)
            if response.parts.problem is not None:
                self.world.probes["an entry was bad in an answer taken in parts"] += 1
        self._answered(key, bookie, response.status, response)

    def _send_read_run(self, key: tuple[int, int], bookie: str, message: ReadRunRequest, timeout_ns: int | None) -> None:
        """As the link does it: many single reads, one answer for what came of them."""
        answers = RunAnswers(message)

        def over(otherwise: Status) -> None:
            response = answers.response(otherwise)
            self._answered(key, bookie, response.status, response if response.frames else None)

        def answered(response: Any) -> None:
            if not answers.awaits(response.entry_id):
                return
            answers.take(response)
            if answers.done:
                over(Status.OK)

        self.world.timer(timeout_ns or self.cluster.limits.read_timeout_ns, lambda: over(Status.TIMEOUT))
        for entry_id in range(message.entry_id, message.last_entry_id + 1, message.step):
            self._send(bookie, ReadRequest(0, message.ledger_id, entry_id), answered)

    def _answered(self, key: tuple[int, int], bookie: str, status: Status, response: Any) -> None:
        if self._reads.pop(key, None) is not None:
            self.feed(ReadReply(key[1], bookie, status, response))

    def change_machine(self, machine: Any) -> None:
        """The next operation of this client: outstanding requests of the last one are forgotten (RD-12)."""
        self.machine = machine
        self._generation += 1
        self._reads.clear()


class Writer(Client):
    role = "writer"
    wants_registry = True

    def __init__(self, cluster: Cluster, name: str, truth: Truth, options: dict[str, Any]) -> None:
        super().__init__(cluster, name, truth)
        self.adds = Adds(name)
        truth.adds.append(self.adds)
        self.closing: list[Any] = []
        self.close_results: list[Any] = []
        self.errors: list[Exception] = []
        self.told = -1
        self._event: Any = None
        self._told_of: dict[int, Callable[[Any], None]] = {}
        self.on_closed: Callable[[Any], None] = lambda value: None
        self.options: WriterOptions = options.get("options") or WriterOptions()
        self._lives: dict[str, int] = {}  # bookie -> its life that the connection reaches
        self._watch = WriterWatch(self.world.probes, self.options)
        self.machine = LedgerWriter(truth.ledger_id, truth.metadata, truth.version, cluster.placement, cluster.limits, **options)
        self.on_done = self._done

    def registry_changed(self) -> None:
        self.feed(BookiesChanged())

    # --- application -----------------------------------------------------------------------------------------------

    def append(self, count: int = 1, *, first_entry_id: int | None = None, word: str = "") -> int:
        """Append ``count`` entries of different sizes. Returns the first id. ``word``: what makes this payload another one."""
        first = self.machine.last_add_pushed + 1 if first_entry_id is None else first_entry_id
        payloads = [f"{self.name}{word} {first + i} ".encode() * (1 + (first + i) % 3) for i in range(count)]
        return self._append(first, payloads, {} if first_entry_id is None else {"first_entry_id": first_entry_id})

    def append_payloads(self, payloads: Sequence[bytes], done: Callable[[Any], None]) -> int:
        """For a log: ``done`` hears the result."""
        self._told_of[len(self.adds.pushed)] = done
        return self._append(self.machine.last_add_pushed + 1, list(payloads), {})

    def _append(self, first: int, payloads: list[bytes], extra: dict[str, int]) -> int:
        count = len(payloads)
        before = {e: self.truth.submitted.get(e) for e in range(first, first + count)}
        offsets = array("q", [0])
        for index, payload in enumerate(payloads):
            offsets.append(offsets[-1] + len(payload))
            if before[first + index] is None or not self.options.caller_ids:  # WR-2: the first one under an id is the entry
                self.truth.submit(first + index, payload)
        serial = len(self.adds.pushed)
        self.adds.pushed.append((first, count))
        pushed = self.machine.last_add_pushed
        token = (first, count, serial)
        effects = self.machine.append(b"".join(payloads), offsets, token, self.now, **extra)
        if self._refused_at_once(effects, pushed, token):  # WR-1, WR-2: it consumed no id, so it says nothing about the ledger
            self.adds.refused[serial] = None
            self.truth.submitted.update({e: p for e, p in before.items() if p is not None})
            for entry_id in [e for e, p in before.items() if p is None]:
                del self.truth.submitted[entry_id]
        self.act(effects)
        return first

    def _refused_at_once(self, effects: list[Effect], pushed: int, token: Any) -> bool:
        if not effects or not isinstance(effects[0], Fail) or effects[0].token != token:
            return False
        return self.machine.last_add_pushed == pushed

    def close(self, **options: Any) -> None:
        token = f"close-{len(self.closing)}"
        self.closing.append(token)
        self.act(self.machine.close(token, self.now, **options))

    def force(self) -> None:
        self.act(self.machine.force("force", self.now))

    @property
    def last_add_confirmed(self) -> int:
        return int(self.machine.last_add_confirmed)

    @property
    def acked(self) -> list[int]:
        """Ids whose callback fired OK, in that order."""
        return [first + i for first, count, _, good in self.adds.done if good for i in range(count)]

    def _done(self, token: Any, value: Any) -> None:
        good = not isinstance(value, Exception)
        if not isinstance(token, tuple):
            self._call_done(token, value, good)
            return
        first, count, serial = token
        self.adds.done.append((first, count, serial, good))
        self.truth.dirty |= CALLBACK
        self.world.note(f"{self.name}: append {first}+{count} {'ok' if good else type(value).__name__}")
        if serial in self._told_of:
            self._told_of.pop(serial)(value)
        if not good:
            self.errors.append(value)
            self._watch.error(value)
            self.world.stats[f"appends failed: {type(value).__name__}"] += 1
            return
        if self.truth.exact:
            for entry_id in range(first, first + count):
                self._acknowledged(entry_id)

    def _acknowledged(self, entry_id: int) -> None:
        if entry_id in self.truth.acked:
            return
        if self.truth.metadata.state is not LedgerState.OPEN:
            self.world.probes["an add was acknowledged after the ledger left OPEN"] += 1
        self.truth.acknowledge(entry_id)
        for log in self.cluster.logs:
            log.new_acks.append((self.truth.ledger_id, entry_id))

    def _call_done(self, token: Any, value: Any, good: bool) -> None:
        self.world.note(f"{self.name}: {token} {'ok' if good else type(value).__name__}")
        if token == "force" and good and self.machine.acknowledged_head > value:
            self.world.probes["a force was answered after more adds were acknowledged"] += 1
        if token in self.closing:
            self.close_results.append(value)
            self.on_closed(value)
            if good:
                md = self.machine.metadata
                self.truth.closes.append((self.name, md))
                self.truth.opened.append((self.name, self.machine.last_add_confirmed, md.length))  # I-15: its own end
                self.truth.dirty |= OPENED

    @property
    def ended(self) -> bool:
        return self.machine.state in (WriterState.CLOSED, WriterState.CLOSE_FAILED, WriterState.FENCED, WriterState.FAILED)

    # --- connections ---------------------------------------------------------------------------------------------------

    def _send(self, bookie: str, message: Request, answer: Callable[[Any], None]) -> None:
        """With deferred sync it matters that a connection does not outlive its bookie: what follows a restart is not what came before."""
        if not self.options.deferred_sync:
            super()._send(bookie, message, answer)
            return
        target = self.cluster.bookies[bookie]
        life = self._lives.setdefault(bookie, target.life)
        if life != target.life:
            self.world.at(self.world.delay(), lambda: self.soon(lambda: self._broke(bookie, life)))
            return
        self._connected[bookie] = None
        call = Call(self.name, message, kind_of(message), answer)

        def arrive() -> None:
            if target.life == life:
                target.receive(call)

        self.world.send(self.name, bookie, call.kind, self.truth.ledger_id, getattr(message, "entry_id", -1), arrive)

    def _broke(self, bookie: str, life: int) -> None:
        if self._lives.get(bookie) == life:
            self.lost(bookie)

    def lost(self, bookie: str) -> None:
        self._lives.pop(bookie, None)
        super().lost(bookie)

    # --- rare states ---------------------------------------------------------------------------------------------------

    def _handle(self, event: Any) -> None:
        self._event = event
        if isinstance(event, AddReply):
            self._watch.reply(event)
        super()._handle(event)
        if isinstance(event, LedgerRead) and not self.ended and self.machine.state is WriterState.OPEN:
            self.world.probes["an ensemble change conflicted and the ledger was still OPEN"] += 1
        if isinstance(event, BookiesLookedFor):
            taken = self.machine._change is not None
            self.world.probes["a look at the registry saved a ledger" if taken else "a look at the registry changed nothing"] += 1
        self._event = None

    def _send_adds(self, bookie: str, position: int, run: Any, start: int) -> None:
        if bookie not in self.machine.ensemble:
            self.world.probes["a candidate was sent entries before the metadata named it"] += 1
        super()._send_adds(bookie, position, run, start)

    # --- watching the machine --------------------------------------------------------------------------------------

    def observe(self) -> None:
        """An entry is committed once the writer's LAC has reached it (replication-protocol.md 0.3), though its run's callback waits for the
        run's last one."""
        machine = self.machine
        if self.options.fault_domains_min > 1 and machine.state is WriterState.OPEN:
            self._watch.domains(machine)
        while self.told < machine.last_add_confirmed:
            self.told += 1
            self._acknowledged(self.told)
        self.truth.note_handle(self.name, machine.version, machine.ensemble if machine.state is WriterState.OPEN else None)

    def write_ledger(self, request: int, metadata: LedgerMetadata, version: int) -> None:
        if metadata.state is LedgerState.OPEN:
            self._watch.change(self.machine, metadata, self._event)
        elif metadata.state is LedgerState.CLOSED:
            self.world.stats["writer closes"] += 1
            self._watch.close(self.machine, metadata)
        super().write_ledger(request, metadata, version)


class Recoverer(Client):
    role = "recoverer"

    def __init__(self, cluster: Cluster, name: str, truth: Truth, options: dict[str, Any], *, plain: bool = False) -> None:
        super().__init__(cluster, name, truth)
        self.plain = plain  # knows nothing of guaranteed write quorum (G-25)
        self.result: Any = None
        self.private = False
        self.reads = False
        self.decided = False
        self.on_end: Callable[[], None] = lambda: None
        self.machine = LedgerRecovery(truth.ledger_id, cluster.placement, name, cluster.limits, **options)
        self.on_done = self._done

    def start(self) -> None:
        self.act(self.machine.start())

    def view(self, metadata: LedgerMetadata | None) -> LedgerMetadata | None:
        if not self.plain or metadata is None or not metadata.guaranteed:
            return metadata
        self.truth.plainly_recovered = True
        return replace(metadata, custom=MappingProxyType({k: v for k, v in metadata.custom.items() if not k.startswith("gwq")}))

    def write_ledger(self, request: int, metadata: LedgerMetadata, version: int) -> None:
        if self.plain:  # META-8: what it does not know it carries through
            metadata = replace(metadata, custom=self.truth.metadata.custom)
        super().write_ledger(request, metadata, version)

    def decides(self, message: Request) -> bool:
        return isinstance(message, ReadRequest) and message.entry_id > self.machine.base

    @property
    def state(self) -> RecoveryState:
        return self.machine.state  # type: ignore[no-any-return]

    @property
    def verdict(self) -> int | None:
        """The last entry this run decided on, if it has."""
        end = self.machine._end
        return None if end is None else end.last  # type: ignore[no-any-return]

    def _done(self, token: Any, value: Any) -> None:
        self.result = value
        self.truth.exposed.append((self.name, self.truth.metadata.state, not isinstance(value, Exception)))
        if isinstance(value, Exception):
            self.world.stats["recovery aborted"] += 1
            self.world.note(f"{self.name}: {type(value).__name__}: {value}")
        else:
            self.world.stats["recovered"] += 1
            self.world.note(f"{self.name}: ledger {self.truth.ledger_id} ends at {value.last_entry_id}")
            self.truth.opened.append((self.name, value.last_entry_id, value.length))
            if self.truth.history[-1].by != self.name:
                self.world.stats["adopted foreign close"] += 1
                self.world.probes["a recoverer adopted another client's close"] += 1
                if self.verdict is not None and self.verdict != value.last_entry_id:
                    self.world.probes["a recoverer adopted an end it had not decided on"] += 1
        self.truth.dirty |= OPENED
        self.on_end()

    @property
    def ended(self) -> bool:
        return self.machine.state in (RecoveryState.DONE, RecoveryState.ABORTED)

    def observe(self) -> None:
        machine = self.machine
        verdict = self.verdict
        if verdict is not None and not self.decided:
            self.decided = True
            if any(v != verdict for v in self.truth.verdicts.values()):
                self.world.probes["two recoverers disagree"] += 1
            if self.truth.closed:
                # B-10 wants no limbo for a ledger that is CLOSED, so a bookie wiped since then may deny what it had, and so may one whose
                # copy was collected because no fragment names it any more (B-12). That can mislead a recovery that is still reading; its
                # closing write cannot apply any more (RC-18).
                self.world.probes["a recovery was misled after the ledger had closed"] += verdict < self.truth.top_acked
            else:
                self.truth.verdicts[self.name] = verdict
                self.truth.dirty |= VERDICT
        if not self.reads and machine.state in (RecoveryState.READING, RecoveryState.DRAINING):
            self.reads = True
            if machine.metadata.guaranteed and machine.base >= machine.metadata.last_fragment.first_entry_id:
                self.world.probes["a recovery began at the LAFR it heard"] += 1
            self.truth.reading.append((self.name, machine.metadata.last_fragment.ensemble, self.truth.promised))
            self.truth.dirty |= FENCED
        if not self.private and machine.writer is not None and machine.writer.private_changes:
            self.private = True
            self.world.probes["a recoverer changed its private ensemble"] += 1
        if machine.version >= 0:
            self.truth.note_handle(self.name, machine.version, None)
