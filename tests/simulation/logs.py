"""Leaders of a log in the simulated world: each performs whole ledger operations with writers and recoverers of its own
(replication-protocol.md 10)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bk_core.client.log import list_store
from bk_core.errors import (
    LedgerClosedError,
    LedgerFencedError,
    LogDataLossError,
    MetadataConflictError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
)
from bk_core.protocol.effects import Complete, Fail, SetTimer
from bk_core.protocol.events import Outcome
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.ledger.write.writer import WriterState
from bk_core.protocol.log import effects as log_effects
from bk_core.protocol.log.history import Chunk
from bk_core.protocol.log.leader import LeaderOptions, LeaderState, LogLeader
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.reader_order import LogReaderOrder, OnTrimmed
from bk_core.protocol.log.segments import HistoryRef
from bk_core.protocol.log.view import LogView
from tests.simulation.clients import Client, Writer
from tests.simulation.store import Answer
from tests.simulation.truth import Truth
from tests.simulation.world import MS

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

LIST = "log"
LOOK_NS = 25 * MS
LEADER_OPTIONS = LeaderOptions(rounds_max=50, backoff_ns=20 * MS, backoff_max_ns=400 * MS, retry_ns=30 * MS)


class LogTruth:
    """The true events of the log: every version of its list, the creator of each ledger, and the ledgers that were truncated.

    ``history``: the data ledgers of each version, those of chunks included. ``chunks``: the history ledgers that exist.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.history: list[tuple[int, ...]] = [()]
        self.ever: dict[int, None] = {}
        self.owner: dict[int, str] = {}
        self.serving: dict[str, None] = {}
        self.changed = True  # the list, or the metadata of a ledger
        self.new_acks: list[tuple[int, int]] = []
        self.new_stored: list[int] = []
        self.election_lost = 0.0  # how often a look at the election says no
        self.disorder: list[str] = []  # what a reader was told out of order
        self.fenced_by_readers: list[str] = []
        self.wronged: list[str] = []  # ledgers that were deleted and must not be (LOG-11, LOG-12)
        self.overdone: list[str] = []  # what a trim cut off beyond its bounds
        self.untimely: list[str] = []  # commit times that go back, and young commits that retention took
        self.ghosts: list[int] = []  # ledgers that were gone, or condemned, when they were listed
        self.hosts_ms: dict[str, int] = {}  # how far the clocks of hosts are ahead; those that are not here are right
        self.made_ms: dict[int, int] = {}  # the earliest time at which the end of a ledger was to be listed, on the store's clock
        self.chunks: dict[int, Chunk] = {}
        self.sealed = 0
        self._closed: dict[int, None] = {}
        cluster.logs.append(self)
        cluster.store.items[LIST] = [LedgerList("log"), 0]

    @property
    def ledgers(self) -> tuple[int, ...]:
        return self.history[-1]

    def load(self, ref: HistoryRef) -> Chunk:
        return self.chunks[ref.ledger_id]

    def listed(self, value: LedgerList) -> None:
        self.check_times(value)
        ledgers = tuple(segment.ledger_id for segment in LogView(value, self.load).segments())
        if ledgers == self.ledgers:
            return
        fresh = [ledger_id for ledger_id in ledgers if ledger_id not in self.ever]
        self.ghosts += [one for one in fresh if self.cluster.truths[one].deleted or one in value.condemned]
        self.history.append(ledgers)
        for ledger_id in ledgers:
            self.ever[ledger_id] = None
        self.changed = True
        self.cluster.world.note(f"the log lists {', '.join(map(str, ledgers)) or 'nothing'}")

    def check_times(self, value: LedgerList) -> None:
        """I-L10: commit times never go back (JAN-2)."""
        committed = [segment for segment in LogView(value, self.load).segments() if not segment.live]
        for before, after in itertools.pairwise(committed):
            if after.committed_at_ms < before.committed_at_ms:
                self.untimely.append(f"segment {after.seq} was committed at {after.committed_at_ms}, before its predecessor")

    def made(self, ledger_id: int) -> int:
        """Return the earliest time at which it was committed: before whatever follows it was."""
        order = list(self.ever)
        following = order[order.index(ledger_id) :] if ledger_id in order else [ledger_id]
        return min((self.made_ms[one] for one in following if one in self.made_ms), default=0)

    def closed(self, ledger_id: int) -> bool:
        """CLOSED, or gone after having been CLOSED (LOG-12). CLOSED is final."""
        if ledger_id in self._closed:
            return True
        if self.cluster.truths[ledger_id].closed:
            self._closed[ledger_id] = None
        return ledger_id in self._closed

    def unclosed(self, ledgers: tuple[int, ...]) -> list[int]:
        known = self._closed
        return [ledger_id for ledger_id in ledgers if ledger_id not in known and not self.closed(ledger_id)]


class LogClient(Client):
    """Performs the effects of a log machine."""

    role = "leader"

    def __init__(self, cluster: Cluster, name: str, log: LogTruth, quorums: tuple[int, int, int], machine: Any) -> None:
        super().__init__(cluster, name, None)
        self.log, self.quorums = log, quorums
        self.machine = machine
        self.writers: dict[int, Writer] = {}
        self.parts: list[Client] = []
        self.results: dict[Any, Any] = {}
        self.recoveries = 0
        self.lists: dict[int, LedgerList] = {}
        self.ends: dict[int, int] = {}
        self.store = cluster.store
        self.attempt: tuple[log_effects.WriteList, LedgerList] | None = None
        self.on_done = self.results.__setitem__

    def kill(self) -> None:
        super().kill()
        for part in self.parts:
            part.kill()

    def _one(self, effect: Any) -> None:
        match effect:
            case log_effects.ReadList(request):
                self.cluster.store.read_item(self.name, LIST, lambda found: self._list_read(request, found))
            case log_effects.WriteList(request, _, version):
                value = self._value_of(effect)
                self.cluster.store.set_item(
                    self.name, LIST, value, version, lambda found: self._list_written(request, found, value), self.log.listed
                )
            case log_effects.LoadChunk(request, ref):
                self._load_chunk(request, ref)
            case log_effects.CheckLeadership(request):
                self.world.at(self.world.delay(), lambda: self.feed(log_effects.LeadershipChecked(request, self.leads())))
            case log_effects.CreateLedger(request, _):
                self._create(request)
            case log_effects.RecoverLedger(request, ledger_id):
                self._recover(request, self.cluster.truths[ledger_id])
            case log_effects.CloseLedger(request, ledger_id):
                self._close(request, ledger_id)
            case log_effects.DeleteLedger(request, ledger_id):
                self._delete(request, self.cluster.truths[ledger_id])
            case log_effects.AppendTo(request, ledger_id, first, payloads):
                self._append(request, ledger_id, first, payloads)
            case log_effects.CheckLedger(request, ledger_id):
                self._check(request, self.cluster.truths[ledger_id])
            case log_effects.OpenLedger(request, ledger_id):
                self._open(request, self.cluster.truths[ledger_id])
            case log_effects.AwaitLedger(request, ledger_id, last):
                self._await(request, lambda: self._ledger_moved(self.cluster.truths[ledger_id], last))
            case log_effects.AwaitList(request, version):
                self._await(request, lambda: self.cluster.store.items[LIST][1] != version)
            case log_effects.Deliver():
                self.deliver(effect)
            case SetTimer() | Complete() | Fail():
                super()._one(effect)
            case _:
                raise AssertionError(effect)

    def leads(self) -> bool:
        """Return the answer of the election."""
        return True

    def host_ms(self) -> int:
        """Return the time on the clock of its host."""
        return self.store.clock_ms() + self.log.hosts_ms.get(self.name, 0)

    def now_ms(self) -> int:
        """As the product takes the time of a commit (JAN-1)."""
        return list_store.store_now_ms(self)  # type: ignore[arg-type]

    def _close_live(self, value: LedgerList, ledger_id: int, at_ms: int) -> LedgerList:
        if self.name in self.log.hosts_ms:
            self.world.probes["a commit was recorded on a host whose clock is hours wrong"] += 1
        now_ms = self.store.clock_ms()  # which goes back when another server leads
        self.log.made_ms[ledger_id] = min(now_ms, self.log.made_ms.get(ledger_id, now_ms))
        return value.close_live(ledger_id, self.ends[ledger_id], size_up_to(self.ends[ledger_id]), at_ms)

    def deliver(self, effect: log_effects.Deliver) -> None:
        """Only readers are told what comes next."""
        raise AssertionError(effect)

    def _await(self, request: int, over: Callable[[], bool]) -> None:
        """Nobody is told before there is something: who sleeps through a change stays behind (L-6)."""

        def look() -> None:
            if over():
                self.feed(log_effects.Changed(request))
            elif self.alive:
                self.world.timer(LOOK_NS, look)

        self.world.timer(LOOK_NS, look)

    def _ledger_moved(self, truth: Truth, last: int) -> bool:
        return truth.deleted or truth.closed or _lac(truth, truth.metadata) > last

    # --- the list --------------------------------------------------------------------------------------------------

    def _list_read(self, request: int, found: Answer) -> None:
        if found.outcome is not Outcome.OK:
            self.feed(log_effects.ListRead(request, found.outcome))
            return
        value: LedgerList = found.value
        self.lists[found.version] = value
        ledgers = tuple(segment.ledger_id for segment in value.segments)
        told = {"condemned": value.condemned, "listed": value, "next_seq": value.next_seq}
        self.feed(log_effects.ListRead(request, Outcome.OK, ledgers, found.version, **told))

    def _value_of(self, effect: log_effects.WriteList) -> LedgerList:
        """As client/log/driver.py makes it: the last ledger behind the list of that version, with the ends known by now filled in."""
        if self.attempt is None or (self.attempt[0].ledgers, self.attempt[0].version) != (effect.ledgers, effect.version):
            value, now_ms = self.lists[effect.version], self.now_ms()
            for segment in value.live_segments:
                if segment.ledger_id in self.ends:
                    value = self._close_live(value, segment.ledger_id, now_ms)
            self.attempt = (effect, value.add_live_segment(effect.ledgers[-1], now_ms))
        return self.attempt[1]

    def _list_written(self, request: int, found: Answer, value: LedgerList) -> None:
        if found.outcome is Outcome.OK:
            self.lists[found.version] = value
        self.feed(log_effects.ListWritten(request, found.outcome, found.version))

    def _load_chunk(self, request: int, ref: HistoryRef) -> None:
        def serve() -> Answer:
            chunk = self.log.chunks.get(ref.ledger_id)
            if self.role == "reader":
                self.world.probes["a reader of a log loaded a chunk of its history"] += 1
            return Answer(Outcome.NO_SUCH_LEDGER) if chunk is None else Answer(Outcome.OK, 0, chunk)

        self.cluster.store.call(
            self.name,
            "chunk",
            ref.ledger_id,
            serve,
            lambda found: self.feed(log_effects.ChunkLoaded(request, found.outcome, found.value or ())),
        )

    # --- ledgers ---------------------------------------------------------------------------------------------------

    def _create(self, request: int) -> None:
        def serve() -> Answer:
            try:
                ensemble = self.cluster.placement.new_ensemble(self.quorums[0])
            except NotEnoughBookiesError:
                return Answer(Outcome.REFUSED)
            truth = self.cluster.create_ledger(self.quorums, ensemble)
            self.log.owner[truth.ledger_id] = self.name
            return Answer(Outcome.OK, 0, truth)

        self.cluster.store.call(self.name, "create", -1, serve, lambda found: self.soon(lambda: self._created(request, found)))

    def _created(self, request: int, found: Answer) -> None:
        if found.value is None:
            self.feed(log_effects.LedgerCreated(request, found.outcome))
            return
        truth: Truth = found.value
        writer = self.cluster.writer(f"{self.name}/w{truth.ledger_id}", truth)
        self.writers[truth.ledger_id] = writer
        self.parts.append(writer)
        self.feed(log_effects.LedgerCreated(request, Outcome.OK, truth.ledger_id))

    def _recover(self, request: int, truth: Truth) -> None:
        self.recoveries += 1
        if self.role == "reader":
            self.log.fenced_by_readers.append(f"{self.name} opens ledger {truth.ledger_id} with recovery")
            self.log.changed = True
        client = self.cluster.recoverer(f"{self.name}/r{self.recoveries}", truth)
        self.parts.append(client)

        def ended() -> None:
            if isinstance(client.result, NoSuchLedgerError):
                answer = log_effects.LedgerEnded(request, Outcome.NO_SUCH_LEDGER, error=client.result)
            elif isinstance(client.result, Exception):
                answer = log_effects.LedgerEnded(request, Outcome.UNKNOWN, error=client.result)
            else:
                self.ends[truth.ledger_id] = client.result.last_entry_id
                answer = log_effects.LedgerEnded(request, Outcome.OK, client.result.last_entry_id)
            self.world.at(1, lambda: self.feed(answer))

        client.on_end = ended
        client.start()

    def _close(self, request: int, ledger_id: int) -> None:
        writer = self.writers[ledger_id]

        def closed(value: Any) -> None:
            if not isinstance(value, Exception):
                self.ends[ledger_id] = value.last_entry_id
                self._tell_end(ledger_id, tries=5)
                answer = log_effects.LedgerEnded(request, Outcome.OK, value.last_entry_id)
            else:
                answer = log_effects.LedgerEnded(request, _outcome(value), error=value)
            self.world.at(1, lambda: self.feed(answer))

        writer.on_closed = closed
        writer.soon(writer.close)

    def _tell_end(self, ledger_id: int, tries: int) -> None:
        """Fill in the end of a CLOSED ledger, if that succeeds soon."""

        def heard(found: Answer) -> None:
            if found.outcome is Outcome.OK:
                told = self._close_live(found.value, ledger_id, self.now_ms())
                if told is not found.value:
                    self.cluster.store.set_item(self.name, LIST, told, found.version, written, self.log.listed)

        def written(found: Answer) -> None:
            if found.outcome is not Outcome.OK and tries > 0:
                self._tell_end(ledger_id, tries - 1)

        self.cluster.store.read_item(self.name, LIST, lambda found: self.soon(lambda: heard(found)))

    def _delete(self, request: int, truth: Truth) -> None:
        def serve() -> Answer:
            if not truth.deleted:
                self.cluster.store.delete(truth)
            return Answer(Outcome.OK)

        self.cluster.store.call(
            self.name, "delete", truth.ledger_id, serve, lambda found: self.feed(log_effects.LedgerDeleted(request, found.outcome))
        )

    def _check(self, request: int, truth: Truth) -> None:
        self.cluster.store.read(self.name, truth, lambda found: self.feed(log_effects.LedgerChecked(request, found.outcome)))

    def _append(self, request: int, ledger_id: int, first: int, payloads: tuple[bytes, ...]) -> None:
        writer = self.writers[ledger_id]

        def done(value: Any) -> None:
            outcome = _outcome(value) if isinstance(value, Exception) else Outcome.OK
            self.world.at(1, lambda: self.feed(log_effects.Appended(request, outcome)))

        writer.soon(lambda: writer.append_payloads(payloads, done))

    def _open(self, request: int, truth: Truth) -> None:
        def heard(found: Answer) -> None:
            if found.outcome is not Outcome.OK:
                self.feed(log_effects.LedgerOpened(request, found.outcome))
                return
            closed = found.value.state is LedgerState.CLOSED
            last = found.value.last_entry_id if closed else _lac(truth, found.value)
            self.feed(log_effects.LedgerOpened(request, Outcome.OK, closed, last))

        self.cluster.store.read(self.name, truth, heard)


class Leader(LogClient):
    """One attempt to lead."""

    machine: LogLeader

    def __init__(self, cluster: Cluster, name: str, log: LogTruth, quorums: tuple[int, int, int]) -> None:
        super().__init__(cluster, name, log, quorums, LogLeader(LIST, cluster.world.random, LEADER_OPTIONS))
        self.appends = 0
        self.lost_election = False

    def leads(self) -> bool:
        if self.log.election_lost and self.world.random() < self.log.election_lost:
            self.lost_election = True
        return not self.lost_election

    @property
    def state(self) -> LeaderState:
        return self.machine.state

    def open(self) -> None:
        self.act(self.machine.open("open", self.now))

    def append(self, count: int) -> None:
        self.appends += 1
        payloads = [f"{self.name} {self.appends}.{i} ".encode() for i in range(count)]
        self.act(self.machine.append(payloads, ("append", self.appends), self.now))

    def roll(self) -> None:
        self.act(self.machine.roll(("roll", len(self.results)), self.now))

    def close(self) -> None:
        self.act(self.machine.close("close", self.now))

    def observe(self) -> None:
        if self.machine.state is LeaderState.SERVING:
            self.log.serving[self.name] = None
        if self.lost_election and self.machine.state is LeaderState.ABDICATED:
            self.world.probes["a leader abdicated because it lost the election"] = 1
        if self.machine.state in (LeaderState.ABDICATED, LeaderState.FAILED):
            for writer in self.writers.values():  # LOG-20: it stops writing everywhere
                if writer.alive and writer.machine.state is WriterState.OPEN:
                    writer.soon(lambda w=writer: w.act(w.machine.abandon(w.now)))  # type: ignore[misc]


class LogTail(LogClient):
    """A plain reader: is told which entries come next (LOG-15), takes its time to read them, and looks again now and then.

    One that FAILs goes on with what is left of the log when it was told that it has lost something.
    """

    role = "reader"
    machine: LogReaderOrder

    def __init__(self, cluster: Cluster, name: str, log: LogTruth, on_trimmed: OnTrimmed = OnTrimmed.JUMP) -> None:
        super().__init__(cluster, name, log, (1, 1, 1), LogReaderOrder("log", on_trimmed=on_trimmed, retry_ns=30 * MS))
        self.jumps = on_trimmed is OnTrimmed.JUMP
        self.slow_ns = 0  # so long at most it takes to read what came
        self.restless = True
        self.ledger_id: int | None = None
        self.position = 0
        self._delivering = 0  # numbers what is being delivered
        self.on_done = lambda token, value: self.world.at(1, lambda: self.soon(lambda: self._failed(value)))

    def start(self) -> None:
        self.act(self.machine.start("tail", self.now))
        self._look_sometimes()

    def _look_sometimes(self) -> None:
        """As a caller does that stops reading, and comes back later."""

        def look() -> None:
            if self.alive and self.restless:
                self._delivering += 1
                self.act(self.machine.look(self.now, list_changed=self.world.random() < 0.5))
                self._look_sometimes()

        self.world.at(int(8 * LOOK_NS * self.world.random()) + 1, lambda: self.soon(look))

    def deliver(self, effect: log_effects.Deliver) -> None:
        self._delivering += 1
        number = self._delivering
        self.world.at(self.world.delay() + int(self.slow_ns * self.world.random()), lambda: self.soon(lambda: self._read(effect, number)))

    def _read(self, effect: log_effects.Deliver, number: int) -> None:
        if number != self._delivering:
            return
        last = effect.last_entry_id
        missing = self.cluster.truths[effect.segment.ledger_id].deleted and self.world.random() < 0.5
        if missing:
            last = effect.first_entry_id - 1 + int(self.world.random() * (last - effect.first_entry_id + 1))
        if last >= effect.first_entry_id:
            self.check_order(effect.segment.ledger_id, effect.first_entry_id, last)
            self.machine.passed(last)
        outcome = Outcome.CONFLICT if missing else Outcome.OK
        self.feed(log_effects.Delivered(effect.request, outcome, last + 1))

    def check_order(self, ledger_id: int, first: int, last: int) -> None:
        """I-L2: whatever lies between the last delivery and this one must have been delivered, or be known to be nothing.

        What was trimmed in between may be missing only where the reader was to jump (LOG-13).
        """
        if self.ledger_id is None:
            self.ledger_id, self.position = ledger_id, first
        if self.ledger_id == ledger_id:
            if first != self.position:
                self.log.disorder.append(f"{self.name} was told entry {first} of ledger {ledger_id} after {self.position - 1}")
        elif passed := self._passed_over(ledger_id, first):
            self.log.disorder.append(f"{self.name} went on to ledger {ledger_id} before the end of ledger {passed}")
        self.ledger_id, self.position = ledger_id, last + 1
        self.log.changed = True

    def _passed_over(self, ledger_id: int, first: int) -> int | None:
        """A ledger whose end was not reached; None if there is none."""
        order = list(self.log.ever)
        assert self.ledger_id is not None
        if order.index(self.ledger_id) > order.index(ledger_id) or first:
            return ledger_id
        position = self.position
        for passed in order[order.index(self.ledger_id) : order.index(ledger_id)]:
            trimmed = passed not in self.log.ledgers
            if trimmed and position <= self.cluster.truths[passed].metadata.last_entry_id:
                self.world.probes["a reader went on behind entries that were trimmed"] += 1
            if not (trimmed and self.jumps):
                if not self.log.closed(passed) or position <= self.cluster.truths[passed].metadata.last_entry_id:
                    return passed
            position = 0
        return None

    def _failed(self, error: Any) -> None:
        """Only ever with LogDataLossError, and only where segments were trimmed."""
        if not isinstance(error, LogDataLossError) or len(self.log.ledgers) == len(self.log.ever) or self.jumps:
            self.log.disorder.append(f"{self.name} ended: {error}")
            self.log.changed = True
            return
        self.world.probes["a reader was told that entries were trimmed before it read them"] += 1
        assert self.machine.listed is not None
        self.ledger_id, self.position = None, 0
        self.machine.go_to(Position(self.machine.listed.trimmed_seq))
        self.act(self.machine.look(self.now))


def size_up_to(last_entry_id: int) -> int:
    """Bytes of a ledger, as far as lists are concerned."""
    return 10 * (last_entry_id + 1)


def _lac(truth: Truth, metadata: LedgerMetadata) -> int:
    """Return the end of an unclosed ledger, floored as every reader floors it."""
    return max(truth.top_lac, metadata.last_fragment.first_entry_id - 1)


def _outcome(error: Exception) -> Outcome:
    match error:
        case LedgerFencedError() | MetadataConflictError():
            return Outcome.CONFLICT
        case NoSuchLedgerError():
            return Outcome.NO_SUCH_LEDGER
        case LedgerClosedError():
            return Outcome.CONFLICT
        case _:
            return Outcome.UNKNOWN
