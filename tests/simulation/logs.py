"""Leaders of a log in the simulated world: each performs whole ledger operations with writers and recoverers of its own (section 10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bk_core.errors import LedgerClosedError, LedgerFencedError, MetadataConflictError, NoSuchLedgerError, NotEnoughBookiesError
from bk_core.protocol.effects import Complete, Fail, SetTimer
from bk_core.protocol.events import Outcome
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.ledger.writer import WriterState
from bk_core.protocol.log import effects as log_effects
from bk_core.protocol.log.leader import LeaderOptions, LeaderState, LogLeader
from bk_core.protocol.log.reader_order import LogReaderOrder, OnTruncated
from bk_core.protocol.log.truncation import LogTruncation
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
    """What really happened to the log: every version of its list, who created which ledger, which were truncated."""

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
        self.condemned: list[tuple[int, tuple[int, ...]]] = [(0, ())]  # (version of the list, what it condemns from then on)
        self.ghosts: list[int] = []  # ledgers that were gone, or condemned, when they were listed
        cluster.logs.append(self)
        cluster.store.items[LIST] = [(), 0]

    @property
    def ledgers(self) -> tuple[int, ...]:
        return self.history[-1]

    def listed(self, ledgers: tuple[int, ...]) -> None:
        fresh = [ledger_id for ledger_id in ledgers if ledger_id not in self.ever]
        self.ghosts += [one for one in fresh if self.cluster.truths[one].deleted or one in self.condemned[-1][1]]
        self.history.append(ledgers)
        for ledger_id in ledgers:
            self.ever[ledger_id] = None
        self.changed = True
        self.cluster.world.note(f"the log lists {', '.join(map(str, ledgers)) or 'nothing'}")

    def condemned_at(self, version: int) -> tuple[int, ...]:
        """What the list of that version condemns."""
        return [ids for since, ids in self.condemned if since <= version][-1] if version >= 0 else ()

    def collect(self) -> None:
        """One step of a janitor: condemn a ledger that nothing lists, or delete what is condemned. Each changes the list."""
        store, truths = self.cluster.store, self.cluster.truths
        doomed = self.condemned[-1][1]
        for ledger_id in doomed:
            if not truths[ledger_id].deleted:
                store.delete(truths[ledger_id])
                self.cluster.world.probes["a janitor took a ledger that a leader was about to list"] += 1
        orphans = [one for one in self.owner if one not in self.ever and not truths[one].deleted]
        if doomed or orphans:
            store.items[LIST][1] += 1
            self.condemned.append((store.items[LIST][1], () if doomed else tuple(orphans[-1:])))

    def closed(self, ledger_id: int) -> bool:
        """CLOSED, or gone after having been CLOSED (LOG-12)."""
        return self.cluster.truths[ledger_id].closed


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
        self.on_done = self.results.__setitem__

    def kill(self) -> None:
        super().kill()
        for part in self.parts:
            part.kill()

    def _one(self, effect: Any) -> None:
        match effect:
            case log_effects.ReadList(request):
                self.cluster.store.read_item(self.name, LIST, lambda found: self._list_read(request, found))
            case log_effects.WriteList(request, ledgers, version):
                self.cluster.store.set_item(
                    self.name, LIST, ledgers, version, lambda found: self._list_written(request, found), self.log.listed
                )
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
            case log_effects.AwaitLedger(request) | log_effects.AwaitList(request):
                self.world.timer(LOOK_NS, lambda: self.feed(log_effects.Changed(request)))
            case log_effects.Deliver(ledger_id, first, last):
                self.deliver(ledger_id, first, last)
            case SetTimer() | Complete() | Fail():
                super()._one(effect)
            case _:
                raise AssertionError(effect)

    def leads(self) -> bool:
        """What the election says."""
        return True

    def deliver(self, ledger_id: int, first: int, last: int) -> None:
        """Only readers are told what comes next."""

    # --- the list --------------------------------------------------------------------------------------------------

    def _list_read(self, request: int, found: Answer) -> None:
        condemned = self.log.condemned_at(found.version)
        self.feed(log_effects.ListRead(request, found.outcome, found.value or (), found.version, condemned=condemned))

    def _list_written(self, request: int, found: Answer) -> None:
        self.feed(log_effects.ListWritten(request, found.outcome, found.version))

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
        client = self.cluster.recoverer(f"{self.name}/r{self.recoveries}", truth)
        self.parts.append(client)

        def ended() -> None:
            if isinstance(client.result, NoSuchLedgerError):
                answer = log_effects.LedgerEnded(request, Outcome.NO_SUCH_LEDGER, error=client.result)
            elif isinstance(client.result, Exception):
                answer = log_effects.LedgerEnded(request, Outcome.UNKNOWN, error=client.result)
            else:
                answer = log_effects.LedgerEnded(request, Outcome.OK, client.result.last_entry_id)
            self.world.at(1, lambda: self.feed(answer))

        client.on_end = ended
        client.start()

    def _close(self, request: int, ledger_id: int) -> None:
        writer = self.writers[ledger_id]

        def closed(value: Any) -> None:
            if not isinstance(value, Exception):
                answer = log_effects.LedgerEnded(request, Outcome.OK, value.last_entry_id)
            else:
                answer = log_effects.LedgerEnded(request, _outcome(value), error=value)
            self.world.at(1, lambda: self.feed(answer))

        writer.on_closed = closed
        writer.soon(writer.close)

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
            last = found.value.last_entry_id if closed else max(truth.top_lac, found.value.last_fragment.first_entry_id - 1)
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
            for writer in self.writers.values():  # LOG-6: it stops writing everywhere
                if writer.alive and writer.machine.state is WriterState.OPEN:
                    writer.soon(lambda w=writer: w.act(w.machine.abandon(w.now)))  # type: ignore[misc]


class LogTail(LogClient):
    """A plain reader: is told which entries come next (LOG-15)."""

    def __init__(self, cluster: Cluster, name: str, log: LogTruth) -> None:
        super().__init__(cluster, name, log, (1, 1, 1), LogReaderOrder(on_truncated=OnTruncated.JUMP, retry_ns=30 * MS))
        self.ledger_id: int | None = None
        self.position = 0

    def start(self) -> None:
        self.act(self.machine.start("tail", self.now))

    def deliver(self, ledger_id: int, first: int, last: int) -> None:
        """I-L2: whatever lies between the last delivery and this one must have been delivered, or be known to be nothing."""
        ledgers = self.log.ledgers
        if self.ledger_id != ledger_id and self.ledger_id in ledgers and ledger_id in ledgers:
            position = self.position
            for passed in ledgers[ledgers.index(self.ledger_id) : ledgers.index(ledger_id)]:
                if not self.log.closed(passed) or position <= self.cluster.truths[passed].metadata.last_entry_id:
                    self.log.disorder.append(f"{self.name} went on to ledger {ledger_id} before the end of ledger {passed}")
                position = 0
        elif self.ledger_id == ledger_id and first != self.position:
            self.log.disorder.append(f"{self.name} was told entry {first} of ledger {ledger_id} after {self.position - 1}")
        self.ledger_id, self.position = ledger_id, last + 1
        self.log.changed = True


def truncation(cluster: Cluster, name: str, log: LogTruth, keep_from: int, on_done: Callable[[Any], None]) -> LogClient:
    """LOG-11: everything before ``keep_from`` goes."""
    client = LogClient(cluster, name, log, (1, 1, 1), LogTruncation(keep_from, 30 * MS))
    client.on_done = lambda token, value: on_done(value)
    client.act(client.machine.start("truncated", client.now))
    return client


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
