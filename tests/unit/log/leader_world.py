"""A small world for several leaders of one log: requests and answers travel apart, answers get lost, writes land late, leaders die.

Every check is made where it can first fail, under the names of replication-protocol.md 10.5.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from bk_core.errors import BkError
from bk_core.protocol.effects import Complete, Fail, SetTimer
from bk_core.protocol.events import Outcome, TimerFired
from bk_core.protocol.log.effects import (
    Appended,
    AppendTo,
    AwaitLedger,
    AwaitList,
    Changed,
    ChangeList,
    CheckLeadership,
    CheckLedger,
    CloseLedger,
    CreateLedger,
    DeleteLedger,
    Deliver,
    Delivered,
    LeadershipChecked,
    LedgerChecked,
    LedgerCreated,
    LedgerDeleted,
    LedgerEnded,
    LedgerOpened,
    ListRead,
    ListWritten,
    LookAtLedger,
    OpenLedger,
    ReadList,
    RecoverLedger,
    WriteList,
)
from bk_core.protocol.log.leader import LogLeader
from bk_core.protocol.log.leader_state import LeaderOptions, LeaderState, Span
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.reader_order import LogReaderOrder, OnTrimmed
from bk_core.protocol.log.segments import Segment
from bk_core.protocol.log.trimming import LogTrimming, TrimBounds


@dataclass
class Ledger:
    """``entries``: stored payloads; the first ``committed`` of them have reached their ack quorum."""

    owner: str
    entries: list[Any] = field(default_factory=list)
    committed: int = 0
    fenced: bool = False
    closed: bool = False
    broken: bool = False  # its writer has given up
    unstored: list[tuple[AppendTo, str]] = field(default_factory=list)
    uncommitted: list[tuple[AppendTo, str]] = field(default_factory=list)

    @property
    def last_entry_id(self) -> int:
        return len(self.entries) - 1


class World:
    def __init__(self, seed: int, faults: float = 0.15) -> None:
        self.rng = Random(seed)
        self.faults = faults
        self.list: tuple[int, ...] = ()
        self.version = 0
        self.late_writes: list[WriteList | ChangeList] = []
        self.ledgers: dict[int, Ledger] = {}
        self.deleted: dict[int, Ledger] = {}
        self.log_order: list[int] = []  # every ledger that was ever listed, in order
        self.trimmed: set[int] = set()
        self.condemned: tuple[int, ...] = ()  # in the list, by a janitor
        self.collected: set[int] = set()
        self.machines: dict[str, LogLeader | LogTrimming | LogReaderOrder] = {}
        self.awaiting: list[tuple[str, AwaitLedger | AwaitList]] = []
        self.read: list[tuple[int, int, Any]] = []  # ledger, entry, payload, as the reader got them
        self.requests: list[tuple[str, Any]] = []
        self.answers: list[tuple[str, Any, Any]] = []  # (machine, request, event)
        self.timers: dict[tuple[str, str], None] = {}
        self.submitted: dict[str, int] = {}
        self.acked: dict[str, int] = {}
        self.spans: dict[str, tuple[Span, ...]] = {}
        self.failed: dict[str, Exception] = {}
        self.done: dict[str, Any] = {}
        self.time = 0
        self.next_ledger = 100

    # --- the outside ---------------------------------------------------------------------------------------------

    def start_leader(self, name: str, **options: Any) -> LogLeader:
        machine = LogLeader("log", self.rng.random, LeaderOptions(**{"rounds_max": 20, **options}))
        self.machines[name] = machine
        self.perform(name, machine.open(f"open {name}", self.time))
        return machine

    def start_trimming(self, name: str, keep_from: int) -> None:
        first = len(self.log_order) - len(self.list)
        machine = LogTrimming("log", TrimBounds(before=Position(first + self.list.index(keep_from))))
        self.machines[name] = machine
        self.perform(name, machine.start(name, self.time))

    def start_reader(self) -> None:
        machine = LogReaderOrder("log", on_trimmed=OnTrimmed.JUMP)
        self.machines["reader"] = machine
        self.perform("reader", machine.start("read", self.time))

    def condemn_or_collect(self) -> None:
        """One step of a janitor: forbid a ledger that nothing lists, by a change of the list; then delete it and take it off the list."""
        self.version += 1
        if self.condemned:
            for ledger_id in self.condemned:
                ledger = self.ledgers.pop(ledger_id, None)
                if ledger is not None:
                    self.deleted[ledger_id] = ledger
                    if ledger_id in self.log_order:  # trimmed
                        assert ledger.closed, "LOG-12"
                    else:
                        assert not ledger.entries, "LOG-9: a ledger that was never listed has entries"
                        self.collected.add(ledger_id)
            self.condemned = ()
        else:
            self.condemned = tuple(ledger_id for ledger_id in self.ledgers if ledger_id not in self.log_order)[:1]

    def append(self, name: str, payloads: list[str]) -> None:
        machine = self.machines[name]
        assert isinstance(machine, LogLeader)
        token = ",".join(payloads)
        for payload in payloads:
            self.submitted[payload] = self.time
        self.perform(name, machine.append(payloads, token, self.time))

    def call(self, name: str, what: str) -> None:
        self.perform(name, getattr(self.machines[name], what)(f"{what} {name}", self.time))

    def crash(self, name: str) -> None:
        """Crash: what it has sent travels on, and nothing reaches it any more."""
        del self.machines[name]
        self.timers = {key: None for key in self.timers if key[0] != name}

    # --- effects -------------------------------------------------------------------------------------------------

    def perform(self, name: str, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case SetTimer(key, _):
                    self.timers[name, key] = None
                case Complete(token, value):
                    self._on_complete(token, value)
                case Fail(token, error):
                    assert token not in self.done and token not in self.failed, f"{token} ends twice"
                    self.failed[token] = error
                case Deliver(_, segment, first, last):
                    ledger_id = segment.ledger_id
                    self.read += [(ledger_id, e, self.ledger(ledger_id).entries[e]) for e in range(first, last + 1)]
                    self._answer(name, effect, Delivered(effect.request, Outcome.OK))
                case AwaitLedger() | AwaitList():
                    self.awaiting.append((name, effect))
                case AppendTo(_, ledger_id, _, _):
                    self.ledger(ledger_id).unstored.append((effect, name))
                    self.requests.append((name, effect))
                case _:
                    self.requests.append((name, effect))

    def _on_complete(self, token: Any, value: Any) -> None:
        assert token not in self.done and token not in self.failed, f"{token} ends twice"
        self.done[token] = value
        if isinstance(value, tuple) and value and isinstance(value[0], Span):
            self.spans[token] = value
            for payload in token.split(","):
                self.acked[payload] = self.time
            self.check_acknowledged_ledgers_are_listed()

    def ledger(self, ledger_id: int) -> Ledger:
        """Its bookies' view: they keep what metadata says is deleted (LOG-12)."""
        return self.ledgers.get(ledger_id) or self.deleted[ledger_id]

    # --- one step ------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One random thing of all that may happen by itself; False if there is none."""
        self.time += 1
        choices: list[Callable[[], None]] = []
        if self.requests:
            choices += [self._execute] * 3
        if self.answers:
            choices += [self._deliver] * 3
        if self.timers:
            choices.append(self._fire)
        if self.late_writes:
            choices.append(self._land)
        changed = [waiting for waiting in self.awaiting if self._has_changed(waiting[1])]
        if changed:
            choices.append(lambda: self._tell(self.rng.choice(changed)))
        for ledger in self.ledgers.values():
            if ledger.uncommitted:
                choices.append(lambda ledger=ledger: self._commit(ledger))
        if not choices:
            return False
        self.rng.choice(choices)()
        self.check_at_most_the_last_two_are_unclosed()
        return True

    def _has_changed(self, wait: AwaitLedger | AwaitList) -> bool:
        if isinstance(wait, AwaitList):
            return wait.version != self.version
        ledger = self.ledgers.get(wait.ledger_id)
        return ledger is None or ledger.closed or ledger.committed - 1 > wait.last_entry_id

    def _tell(self, waiting: tuple[str, AwaitLedger | AwaitList]) -> None:
        self.awaiting.remove(waiting)
        self._answer(*waiting, Changed(waiting[1].request))

    def settle(self, steps: int = 3000) -> None:
        """No more faults; run until nothing happens any more."""
        self.faults = 0.0
        for _ in range(steps):
            if not self.step():
                return
        raise AssertionError("does not come to rest")

    def _chance(self, factor: float = 1.0) -> bool:
        return self.rng.random() < self.faults * factor

    def _fire(self) -> None:
        name, key = self.rng.choice(list(self.timers))
        del self.timers[name, key]
        self.perform(name, self.machines[name].handle(TimerFired(key), self.time))

    def _deliver(self) -> None:
        name, request, event = self.answers.pop(self.rng.randrange(len(self.answers)))
        if name not in self.machines:
            return
        if isinstance(event, Appended) and event.outcome is Outcome.OK:
            self.check_late_acknowledgement(name, request)
        self.perform(name, self.machines[name].handle(event, self.time))

    def _land(self) -> None:
        write = self.late_writes.pop(self.rng.randrange(len(self.late_writes)))
        if write.version == self.version:
            self._apply(write)

    def _answer(self, name: str, request: Any, event: Any) -> None:
        self.answers.append((name, request, event))

    # --- requests ------------------------------------------------------------------------------------------------

    def _execute(self) -> None:
        name, request = self.requests.pop(self.rng.randrange(len(self.requests)))
        match request:
            case ReadList(number):
                outcome = Outcome.UNKNOWN if self._chance() else Outcome.OK
                listed = self._listed()
                told = {"condemned": self.condemned, "listed": listed, "next_seq": listed.next_seq}
                self._answer(name, request, ListRead(number, outcome, self.list, self.version, **told))
            case WriteList() | ChangeList():
                self._answer(name, request, self._write_list(request))
            case LookAtLedger(number, ledger_id):
                self._open(name, request, number, ledger_id)
            case CheckLeadership(number):
                self._answer(name, request, LeadershipChecked(number, not self._chance(0.3)))
            case CreateLedger(number, tags):
                assert tags["log"] == b"log"
                self._answer(name, request, self._create(name, number))
            case RecoverLedger(number, ledger_id):
                self._recover(name, request, number, ledger_id)
            case CloseLedger(number, ledger_id):
                self._answer(name, request, self._close(number, ledger_id))
            case DeleteLedger(number, ledger_id):
                self._delete(name, request, number, ledger_id)
            case CheckLedger(number, ledger_id):
                found = Outcome.OK if ledger_id in self.ledgers else Outcome.NO_SUCH_LEDGER
                self._answer(name, request, LedgerChecked(number, Outcome.UNKNOWN if self._chance() else found))
            case OpenLedger(number, ledger_id):
                self._open(name, request, number, ledger_id)
            case AppendTo(_, ledger_id, _, _):
                self._store(ledger_id)

    def _write_list(self, write: WriteList | ChangeList) -> ListWritten:
        if self._chance(0.5):
            self.late_writes.append(write)
            return ListWritten(write.request, Outcome.UNKNOWN)
        if write.version != self.version:
            return ListWritten(write.request, Outcome.CONFLICT)
        self._apply(write)
        return ListWritten(write.request, Outcome.UNKNOWN if self._chance() else Outcome.OK, self.version)

    def _apply(self, write: WriteList | ChangeList) -> None:
        if isinstance(write, ChangeList):
            ledgers = tuple(segment.ledger_id for segment in write.listed.segments)
            self.condemned = write.listed.condemned
        else:
            ledgers = write.ledgers
        if ledgers != self.list:
            self.check_list_change(self.list, ledgers)
        for ledger_id in ledgers:
            if ledger_id not in self.list:
                assert ledger_id in self.ledgers and ledger_id not in self.condemned, "LOG-18: a deleted ledger was listed"
                self.log_order.append(ledger_id)
        self.trimmed.update(set(self.list) - set(ledgers))
        self.list, self.version = ledgers, self.version + 1

    def _listed(self) -> LedgerList:
        """The list with all that is left of ``log_order``; ends are told at once, but for those of the last two."""
        first = len(self.log_order) - len(self.list)
        segments = []
        for seq, ledger_id in enumerate(self.list, first):
            ledger = self.ledgers[ledger_id]
            live = seq >= len(self.log_order) - 2 or not ledger.closed
            segments.append(Segment(seq, ledger_id, 0, None if live else ledger.last_entry_id, 0 if live else len(ledger.entries)))
        rows = sum(len(self.ledger(ledger_id).entries) for ledger_id in self.log_order[:first])
        return LedgerList("log", segments=tuple(segments), trimmed_seq=first, trimmed_rows=rows, condemned=self.condemned)

    def _create(self, name: str, number: int) -> LedgerCreated:
        ledger_id, self.next_ledger = self.next_ledger, self.next_ledger - 1  # ids need not rise
        self.ledgers[ledger_id] = Ledger(name)
        return LedgerCreated(number, Outcome.UNKNOWN if self._chance() else Outcome.OK, ledger_id)

    def _recover(self, name: str, request: Any, number: int, ledger_id: int) -> None:
        """Two steps, fence and close, so that something may happen in between."""
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            self._answer(name, request, LedgerEnded(number, Outcome.NO_SUCH_LEDGER))
        elif not ledger.fenced and not ledger.closed:
            ledger.fenced = True
            self.requests.append((name, request))
        elif not ledger.closed and self._chance():
            self._answer(name, request, LedgerEnded(number, Outcome.UNKNOWN))
        else:
            if not ledger.closed:
                ledger.closed = True
                del ledger.entries[self.rng.randint(ledger.committed, len(ledger.entries)) :]
            self._answer(name, request, LedgerEnded(number, Outcome.OK, ledger.last_entry_id))

    def _close(self, number: int, ledger_id: int) -> LedgerEnded:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            return LedgerEnded(number, Outcome.NO_SUCH_LEDGER)
        assert not ledger.unstored and not ledger.uncommitted or ledger.fenced, "closed before it was drained"
        if ledger.closed:
            same = ledger.last_entry_id == ledger.committed - 1
            return LedgerEnded(number, Outcome.OK if same else Outcome.CONFLICT, ledger.last_entry_id)
        if ledger.fenced:
            return LedgerEnded(number, Outcome.CONFLICT)
        if self._chance(0.5):
            return LedgerEnded(number, Outcome.REFUSED, error=BkError("refused"))
        if self._chance():
            return LedgerEnded(number, Outcome.UNKNOWN)
        ledger.closed = True
        return LedgerEnded(number, Outcome.UNKNOWN if self._chance() else Outcome.OK, ledger.last_entry_id)

    def _delete(self, name: str, request: Any, number: int, ledger_id: int) -> None:
        """LOG-12, LOG-11: what is listed stays, and what was ever listed goes only when it is CLOSED."""
        ledger = self.ledgers.pop(ledger_id, None)
        if ledger is not None:
            assert ledger_id not in self.list, "a listed ledger was deleted"
            assert ledger.closed if ledger_id in self.log_order else not ledger.entries
            self.deleted[ledger_id] = ledger
        self._answer(name, request, LedgerDeleted(number, Outcome.UNKNOWN if self._chance() else Outcome.OK))

    def _open(self, name: str, request: Any, number: int, ledger_id: int) -> None:
        ledger = self.ledgers.get(ledger_id)
        if ledger is None:
            event = LedgerOpened(number, Outcome.NO_SUCH_LEDGER)
        elif ledger.closed:
            event = LedgerOpened(number, Outcome.OK, True, ledger.last_entry_id)
        else:
            event = LedgerOpened(number, Outcome.OK, False, ledger.committed - 1)
        self._answer(name, request, event)

    def _store(self, ledger_id: int) -> None:
        """The next add of the ledger, in the order in which its writer sent them."""
        ledger = self.ledger(ledger_id)
        request, name = ledger.unstored.pop(0)
        if ledger.closed or ledger.fenced:
            self._answer(name, request, Appended(request.request, Outcome.CONFLICT))
        elif ledger.broken or self._chance(0.2):
            ledger.broken = True
            kept = self.rng.randint(0, len(request.payloads)) if request.first_entry_id == len(ledger.entries) else 0
            self._keep(ledger_id, ledger, request, kept)
            self._answer(name, request, Appended(request.request, Outcome.UNKNOWN))
        else:
            self._keep(ledger_id, ledger, request, len(request.payloads))
            ledger.uncommitted.append((request, name))

    def _keep(self, ledger_id: int, ledger: Ledger, request: AppendTo, count: int) -> None:
        if count:
            self.check_all_before_are_closed(ledger_id)
            assert request.first_entry_id == len(ledger.entries)
            ledger.entries += request.payloads[:count]

    def _commit(self, ledger: Ledger) -> None:
        """The ack quorum is complete, or the fence was faster."""
        request, name = ledger.uncommitted.pop(0)
        last = request.first_entry_id + len(request.payloads) - 1
        if not ledger.fenced and not ledger.closed:
            ledger.committed = last + 1
            outcome = Outcome.OK
        elif ledger.closed and last <= ledger.last_entry_id and last < ledger.committed:
            outcome = Outcome.OK
        else:
            outcome = Outcome.CONFLICT
        self._answer(name, request, Appended(request.request, outcome))

    # --- invariants ----------------------------------------------------------------------------------------------

    def check_acknowledged_ledgers_are_listed(self) -> None:
        """LOG-I1."""
        for spans in self.spans.values():
            for span in spans:
                assert span.ledger_id in self.list or span.ledger_id in self.trimmed, f"LOG-I1: {span}"

    def check_all_before_are_closed(self, ledger_id: int) -> None:
        """LOG-I2, when an entry is stored."""
        assert ledger_id in self.log_order, "LOG-I2, LOG-9: an entry in a ledger that was never listed"
        for before in self.log_order[: self.log_order.index(ledger_id)]:
            ledger = self.ledger(before)
            assert ledger.closed, f"LOG-I2: an entry in {ledger_id} while {before} is not CLOSED"

    def check_at_most_the_last_two_are_unclosed(self) -> None:
        """LOG-I3."""
        for ledger_id in self.list[:-2]:
            assert self.ledgers[ledger_id].closed, f"LOG-I3: {ledger_id} of {self.list} is not CLOSED"

    def check_late_acknowledgement(self, name: str, request: AppendTo) -> None:
        """LOG-I4: the leader of the newest ledger has read whatever an older leader still acknowledges."""
        ledger = self.ledger(request.ledger_id)
        newest = self.ledgers[self.list[-1]] if self.list else None
        if newest is not None and newest.owner != ledger.owner:
            last = request.first_entry_id + len(request.payloads) - 1
            assert ledger.closed and last <= ledger.last_entry_id, f"LOG-I4: {name} acknowledges {last} of {request.ledger_id}"

    def check_list_change(self, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        """LOG-I5."""
        appended = new[:-1] == old
        cut = len(new) < len(old) and old[len(old) - len(new) :] == new
        assert appended or cut, f"LOG-I5: {old} -> {new}"

    def check_reading(self) -> None:
        """LOG-15, LOG-16, LOG-17, LOG-I2: what a reader got is the log, in order and without a gap, but for what was trimmed unread."""
        log = [(i, e, payload) for i in self.log_order for e, payload in enumerate(self.ledger(i).entries)]
        unread = [entry for entry in log if entry not in self.read]
        assert [entry for entry in log if entry in self.read] == self.read
        assert all(ledger_id in self.trimmed for ledger_id, _, _ in unread), f"never delivered: {unread}"

    def check_log(self) -> None:
        """Every acknowledged entry is in the log exactly once, where its leader was told; and the log keeps the order of time."""
        where: dict[str, list[tuple[int, int]]] = {}
        for index, ledger_id in enumerate(self.log_order):
            for entry_id, payload in enumerate(self.ledger(ledger_id).entries):
                where.setdefault(payload, []).append((index, entry_id))
        for payload in self.acked:
            assert len(where.get(payload, [])) == 1, f"{payload} is in the log at {where.get(payload)}"
        for token, spans in self.spans.items():
            told = [(self.log_order.index(s.ledger_id), e) for s in spans for e in range(s.first_entry_id, s.last_entry_id + 1)]
            assert told == [where[payload][0] for payload in token.split(",")]
        for first, acked_at in self.acked.items():
            for second in self.acked:
                if self.submitted[second] >= acked_at:
                    assert where[first][0] < where[second][0], f"{second} was submitted after {first} was acknowledged"


def serving(world: World) -> list[str]:
    return [name for name, m in world.machines.items() if isinstance(m, LogLeader) and m.state is LeaderState.SERVING]


def walk(seed: int, steps: int = 250, leaders: int = 3) -> World:
    """One random history; raises AssertionError where an invariant breaks. Ends healed, with a leader that serves."""
    world = World(seed)
    rng, numbers = world.rng, iter(range(10_000))
    world.start_reader()
    for _ in range(steps):
        alive = [name for name, machine in world.machines.items() if isinstance(machine, LogLeader)]
        what = rng.random()
        if what < 0.02 + 0.2 * (not alive) and len(alive) < leaders:
            world.start_leader(f"leader{next(numbers)}")
        elif what < 0.10 and alive:
            world.append(rng.choice(alive), [f"p{next(numbers)}" for _ in range(rng.randint(1, 3))])
        elif what < 0.13 and serving(world):
            name = rng.choice(serving(world))
            machine = world.machines[name]
            assert isinstance(machine, LogLeader)
            world.perform(name, machine.roll(f"roll {next(numbers)}", world.time))
        elif what < 0.14 and alive:
            world.crash(rng.choice(alive))
        elif what < 0.15 and len(world.list) > 1:
            world.start_trimming(f"trimming{next(numbers)}", rng.choice(world.list))
        elif what < 0.17:
            world.condemn_or_collect()
        else:
            world.step()
    world.settle()
    last = f"leader{next(numbers)}"
    leader = world.start_leader(last)
    world.settle()
    assert leader.state is LeaderState.SERVING, (leader.state, leader.error)
    world.append(last, ["the end"])
    world.settle()
    assert "the end" in world.acked
    world.check_log()
    world.check_reading()
    return world
