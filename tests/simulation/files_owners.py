"""Owners of a file store: each performs the effects of its machine, as the product's store does it, and may die between any two of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bk_core.errors import BkError, FileStoreTakenOverError
from bk_core.protocol.effects import Complete, Fail, SetTimer
from bk_core.protocol.events import Outcome, TimerFired
from bk_core.protocol.files import records
from bk_core.protocol.files.content import Content, Extent
from bk_core.protocol.files.effects import (
    AppendRecords,
    DataDropped,
    DropData,
    FileEffect,
    FileEvent,
    LogRolled,
    LogTrimmed,
    RecordsAppended,
    RollLog,
    TrimLog,
)
from bk_core.protocol.files.machine import FileMachine, FileState
from bk_core.protocol.log.position import Position
from tests.simulation.files_truth import Operation, State, Told, apply
from tests.simulation.files_world import Appending

if TYPE_CHECKING:
    from tests.simulation.files_swarm import FilesPlay

PIECE = 1 << 20
_KINDS = {records.BASE_BEGIN: "begin", records.BASE_PART: "part", records.BASE_END: "end"}


def kind_of(record: bytes) -> str:
    return _KINDS.get(record[1], "change")


@dataclass(slots=True, eq=False)
class Call:
    """``state``: by the model, behind this call; ``changes``: how many of its owner's calls up to this one change something."""

    token: int
    operation: Operation
    state: State
    changes: int
    told: Told
    then: Callable[[], None]
    waited_for: int  # changes that were not acknowledged when it was asked


class Owner:
    """``states``: by the model, behind each change that was asked of it."""

    def __init__(self, run: FilesPlay, name: str) -> None:
        self.run, self.world, self.log, self.data = run, run.world, run.log, run.data
        self.name = name
        self.alive = True
        self.is_serving = False
        self.is_closing = False
        self.has_ended = False  # by an append that failed, or because it was told
        self.machine = FileMachine(name, run.options.limits)
        self.states: list[State] = []
        self.calls: deque[Call] = deque()
        self.appended = self.acknowledged = 0  # changes
        self.leases: dict[int, int] = {}
        self.current = 0  # the data ledger that is being filled
        self._filled = 0
        self._appendings: deque[Appending] = deque()  # not decided
        self._decided: deque[Appending] = deque()  # well, and not all before them was answered
        self._is_broken = False  # an append of it has failed
        self._tokens = 0
        self._timers: dict[str, int] = {}
        self._answer_at = 0
        self._waiting_drops: dict[int, None] = {}  # gone from the next tree while that was not acknowledged
        self._requests: dict[int, None] = {}
        self._reads_slowly = False
        self._listed: list[int] = []  # data ledgers
        self._compaction = ""  # or "rolls", "writes", "trims": one after the other, one at a time

    def later(self, function: Callable[[], None], factor: int = 1) -> None:
        """After a while, if it is still there."""
        self.world.at(self.world.delay() * factor, lambda: function() if self.alive else None)

    def chance(self, share: float) -> bool:
        return self.run.chance(share)

    def kill(self) -> None:
        if self.alive:
            self.alive = False
            self.run.tell(f"{self.name} dies, {len(self._appendings)} appends on their way")
            self.world.stats["files: owners killed"] += 1

    # --- opening ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """FS-16: the data ledgers are listed before anybody is fenced."""
        self._listed = list(self.data.nodes)
        self.later(self._take_over)

    def _take_over(self) -> None:
        self.run.before_take_over()
        self.run.took_over(*self.log.take_over(self.name))
        self.segment = len(self.log.starts) - 1
        end = len(self.log.entries)
        self.run.tell(f"{self.name} takes the log over, {end} entries, the first left is {self.log.begin}")
        self._reads_slowly = self.chance(0.5)
        self._read_on(lambda: self._replay(self.log.begin, self.log.begin, end))

    def _read_on(self, function: Callable[[], None]) -> None:
        self.later(function, self.run.options.replays_slow if self._reads_slowly and not self.run.calm else 1)

    def _replay(self, begin: int, at: int, end: int) -> None:
        """Entry by entry, while others may trim what is not read yet."""
        if self.log.begin >= end > 0:  # trimmed by somebody who took over since then
            self.world.probes["an owner of files found nothing where its successor had trimmed"] += 1
            self.machine = FileMachine(self.name, self.run.options.limits)
            return self._serve(0)
        if self.log.begin > at or (self.log.begin > begin and self.chance(0.5)):
            self.world.probes["an owner of files read a log that was trimmed meanwhile"] += 1
            begin = at = self.log.begin
            self.machine = FileMachine(self.name, self.run.options.limits)
        upto = min(end, at + 1 + int(self.world.random() * 20))
        for entry in self.log.entries[at:upto]:
            self.machine.replay(entry.record, entry.position)
        if upto < end:
            return self._read_on(lambda: self._replay(begin, upto, end))
        self._serve(end)

    def _serve(self, end: int) -> None:
        state = self.log.entries[end - 1].state if end else self.run.nothing
        self.states = [state]
        if self.log.writer != self.name:
            self.world.probes["an owner of files was taken over before it served"] += 1
        effects = self.machine.serve(self._listed, self.segment)
        self.is_serving = True
        self.world.stats["files: owners that served"] += 1
        self.run.tell(f"{self.name} serves with {len(state.nodes)} paths")
        self.run.checker.tree_is(self.machine.tree, state, "I-F2", f"{self.name} after its replay")
        self.perform(effects)
        self.run.served(self)

    # --- effects ---------------------------------------------------------------------------------------------------------

    def perform(self, effects: list[FileEffect]) -> None:
        for effect in effects:
            if not self.alive:
                return
            self._perform(effect)
            if self.chance(self.run.options.dies_between_effects):
                self.world.probes["an owner of files died between two effects"] += 1
                self.kill()

    def _perform(self, effect: FileEffect) -> None:
        if self.world.verbose and not isinstance(effect, Complete | Fail | AppendRecords):
            self.run.tell_loudly(f"{self.name}: {effect}")
        match effect:
            case Complete(token, value):
                self._told(token, value)
            case Fail(token, error):
                self._told(token, error)
            case SetTimer(key, after_ns):
                self._set_timer(key, after_ns)
            case AppendRecords(request, appended):
                self._once(request)
                self._append(request, appended)
            case RollLog(request):
                self._once(request)
                self._roll(request)
            case TrimLog(request, before):
                self._once(request)
                self._trim(request, before)
            case DropData(request, ledger_id):
                self._once(request)
                self._drop(request, ledger_id)

    def _once(self, request: int) -> None:
        """I-F8, SM-3."""
        self.run.checker.expect("I-F8", request not in self._requests, f"{self.name} asks request {request} twice")
        self.run.checker.expect("I-F8", not self.has_ended, f"{self.name} asks for something after its end")
        self._requests[request] = None

    def handle(self, event: FileEvent) -> None:
        if self.alive:
            if isinstance(event, LogTrimmed) and event.outcome is Outcome.OK:
                self._compaction = ""
            self.perform(self.machine.handle(event, self.world.now))

    def _answer(self, event: FileEvent) -> None:
        self.later(lambda: self.handle(event))

    def _set_timer(self, key: str, after_ns: int) -> None:
        number = self._timers[key] = self._timers.get(key, 0) + 1
        self.world.timer(after_ns, lambda: self.handle(TimerFired(key)) if self._timers[key] == number else None)

    # --- appending -------------------------------------------------------------------------------------------------------

    def _append(self, request: int, appended: tuple[bytes, ...]) -> None:
        first, count, begins, gets_there = len(self.log.entries), 0, False, self.log.is_writer(self.name)
        positions = []
        for record in appended:
            kind = kind_of(record)
            if kind == "change":
                count += 1
                self.appended += 1
                self.run.checker.expect("I-F1", self.appended < len(self.states), f"{self.name} appends a change that nobody asked for")
            begins |= kind == "begin"
            positions.append(self.log.add(record, kind, self.states[self.appended], self.name))
        if begins:
            if self.machine.state is not FileState.STARTING and not self._compaction:
                self.world.probes["an owner of files found many segments and wrote a base"] += 1
                self._compaction = "rolls"  # its segment is as new as one that it rolled to
            self._compacts("writes", "", "rolls")
            self.world.stats["files: bases begun"] += 1
            if sum(one.count for one in self._appendings) > 2:
                self.world.probes["a base of files was written while several changes were under way"] += 1
        if self.world.verbose:
            kinds = ", ".join(kind_of(record) for record in appended)
            self.run.tell_loudly(f"{self.name} appends {kinds} at {first}")
        appending = Appending(request, len(self.log.entries) if gets_there else None, count, positions[0])
        self._appendings.append(appending)
        self.world.stats["files: records"] += len(appended)
        self.later(lambda: self._stored(appending))

    def _stored(self, appending: Appending) -> None:
        appending.is_stored = True
        while self.alive and self._appendings and self._appendings[0].is_stored:
            self._decide(self._appendings.popleft())

    def _decide(self, appending: Appending) -> None:
        """In the order of the log. Of who was taken over, what stayed may be acknowledged late."""
        if not self._is_broken and self.log.writer == self.name:
            self._is_broken = self.log.is_failed = self.chance(self.run.options.append_fails)
        if self.log.writer != self.name and not self._is_broken:
            stayed = appending.end is not None and appending.end <= self.log.kept_of(self.name)
            self._is_broken = not stayed or self.chance(0.5)
            if not self._is_broken:
                self.world.probes["an append of files was acknowledged after its owner was taken over"] += 1
        if not self._is_broken:
            assert appending.end is not None
            self.log.confirm(appending.end)
            self._decided.append(appending)
        if not self._is_broken and self.chance(self.run.options.overtakes):
            return self.later(lambda: self._answer_append(appending, True), 4)
        self._answer_at = max(self._answer_at + 1, self.world.now + self.world.delay())
        good = not self._is_broken
        self.world.at(self._answer_at - self.world.now, lambda: self._answer_append(appending, good))

    def _answer_append(self, appending: Appending, good: bool) -> None:
        if not self.alive:
            return
        if good:
            self._acknowledge(appending)
            event = RecordsAppended(appending.request, Outcome.OK, None, appending.position)
        else:
            self.has_ended = True
            error = FileStoreTakenOverError(f"{self.name} was taken over by {self.log.writer}")
            event = RecordsAppended(appending.request, Outcome.UNKNOWN, error)
        effects = self.machine.handle(event, self.world.now)
        if good and not self.has_ended:
            self.run.checker.tree_is(self.machine.tree, self.states[self.acknowledged], "I-F4", f"{self.name}'s acknowledged tree")
        self.perform(effects)
        if self.has_ended and self.alive:
            self._check_ended()

    def _acknowledge(self, appending: Appending) -> None:
        """Up to here, or only this one so far."""
        appending.is_answered = True
        if appending is not self._decided[0]:
            self.world.probes["an answer to an append of files overtook another one"] += 1
        while not self.has_ended and self._decided and self._decided[0].is_answered:
            self.acknowledged += self._decided.popleft().count

    def _check_ended(self) -> None:
        self.run.checker.expect(
            "L-F1", not self.calls, f"{self.name} has ended and owes outcomes: {[str(c.operation) for c in self.calls]}"
        )

    def told_the_end(self) -> None:
        """The world knows first."""
        if self.alive and self.is_serving and not self.has_ended:
            self.has_ended = True
            self.perform(self.machine.end(FileStoreTakenOverError(f"{self.name} was told that {self.log.writer} writes")))
            if self.alive:
                self._check_ended()

    # --- rolls, trims, drops ---------------------------------------------------------------------------------------------

    def _compacts(self, now: str, *before: str) -> None:
        """I-F9."""
        self.run.checker.expect("I-F9", self._compaction in before, f"{self.name} {now} while its last base {self._compaction}")
        self._compaction = now if now != "writes" or self._compaction else ""  # the first base of a store is not trimmed for

    def _roll(self, request: int) -> None:
        self._compacts("rolls", "", "rolls")
        early, fails = self.world.random() < 0.5, self.chance(self.run.options.works_fail)
        if early and not fails:
            self.log.roll(self.name)

        def rolled() -> None:
            done = not fails or self.world.random() < 0.5
            if done and not early:
                self.log.roll(self.name)
            if fails:
                self.world.stats["files: rolls that failed"] += 1
            if not self.log.is_writer(self.name):
                self.later(self.told_the_end, 3)
            self._answer(LogRolled(request, *self._outcome(not fails and self.log.is_writer(self.name))))

        self.later(rolled)

    def _outcome(self, good: bool) -> tuple[Outcome, Exception | None]:
        return (Outcome.OK, None) if good else (Outcome.UNKNOWN, BkError("the store did not answer"))

    def _works(self) -> tuple[bool, bool]:
        """(it is done, that is known)"""
        if not self.chance(self.run.options.works_fail):
            return True, True
        return self.world.random() < 0.5, False

    def _trim(self, request: int, before: Position) -> None:
        """A request that was sent arrives, whatever has become of who sent it."""
        self._compaction = "trims"

        def arrives() -> None:
            done, known = self._works()
            if done:
                if self.log.writer != self.name:
                    self.world.probes["a trim of a file store arrived after a take-over"] += 1
                self.run.checker.replays_from_everywhere()
                if self.log.trim(before):
                    self.run.trimmed(f"{self.name} before {before}")
            self._answer(LogTrimmed(request, *self._outcome(known)))

        self.world.at(self.world.delay() * self.run.options.works_slow, arrives)

    def _drop(self, request: int, ledger_id: int) -> None:
        if self._waiting_drops.pop(ledger_id, 0) is None:
            self.world.probes["a drop of data waited for a record that was not acknowledged"] += 1

        def arrives() -> None:
            done, known = self._works()
            if done:
                self.run.checker.drops(self, ledger_id)
                self.data.ledgers.pop(ledger_id, None)
            if done and not known and self.world.random() < 0.5:
                self.world.probes["the node of a data ledger outlived it"] += 1
            elif done:
                return self.later(lambda: self._forget(request, ledger_id, known))
            self._answer(DataDropped(request, *self._outcome(known)))

        self.world.at(self.world.delay() * self.run.options.works_slow, arrives)

    def _forget(self, request: int, ledger_id: int, known: bool) -> None:
        self.data.forget(ledger_id)
        self._answer(DataDropped(request, *self._outcome(known)))

    # --- what clients ask ------------------------------------------------------------------------------------------------

    def call(self, operation: Operation, then: Callable[[], None]) -> None:
        before = self.states[-1]
        after, told = apply(before, operation)
        waited_for = len(self.states) - 1 - self.acknowledged
        if after is not before and not self.has_ended:
            self.states.append(after)
            self._note_change(operation, before, after, waited_for)
        self._tokens += 1
        call = Call(self._tokens, operation, after, len(self.states) - 1, told, then, waited_for)
        self.calls.append(call)
        self.world.stats[f"files: {operation.kind}"] += 1
        if self.world.verbose:
            self.run.tell_loudly(f"{self.name} call {call.token}: {operation} {operation.content or ''}")
        self.perform(self._ask(call.token, operation))

    def _ask(self, token: int, asked: Operation) -> list[FileEffect]:
        machine = self.machine
        match asked.kind:
            case "put":
                return machine.put(token, asked.path, asked.content, asked.flag, asked.parents, asked.now_ms)
            case "mkdirs":
                return machine.mkdirs(token, asked.path, asked.now_ms)
            case "rename":
                return machine.rename(token, asked.path, asked.target, asked.flag, asked.now_ms)
            case "delete":
                return machine.delete(token, asked.path, asked.flag, asked.now_ms)
            case "replace_all":
                return machine.replace_all(token, asked.path, asked.now_ms)
        return machine.barrier(token)

    def _note_change(self, operation: Operation, before: State, after: State, waited_for: int) -> None:
        gone = before.referred - after.referred
        self._waiting_drops.update(dict.fromkeys(sorted(gone)))
        probes = self.world.probes
        if gone & self.states[0].referred:
            self.world.stats["files: data of an earlier owner let go"] += 1
        if waited_for and gone - self.states[self.acknowledged].referred:
            probes["a put and what undoes it were both not acknowledged"] += 1
        replaced = before.nodes.get(operation.target)
        if operation.kind == "rename" and replaced is not None and replaced.content is not None and replaced.content.extents:
            probes["a rename replaced a file with data ledgers"] += 1
        if operation.kind == "replace_all" and gone and after.referred:
            probes["a directory took the place of all files, and some data ledgers stayed and others went"] += 1

    def _told(self, token: Any, value: Any) -> None:
        call = self.calls[0] if self.calls else None
        self.run.checker.expect(
            "I-F1", call is not None and call.token == token, f"{self.name} tells of call {token} out of turn or twice: {value!r}"
        )
        assert call is not None
        self.calls.popleft()
        if self.world.verbose:
            self.run.tell_loudly(f"{self.name} call {token} ends: {value!r}")
        if self.has_ended:
            self.run.checker.ended(self, call, value)
        else:
            self.run.checker.outcome(self, call, value)
        self.world.at(1, call.then)

    def close(self) -> None:
        """Nothing is asked for behind it."""
        self.is_closing = True
        self._tokens += 1
        self.calls.append(Call(self._tokens, Operation("barrier"), self.states[-1], len(self.states) - 1, None, lambda: None, 0))
        self.perform(self.machine.close(self._tokens))

    # --- data ------------------------------------------------------------------------------------------------------------

    def hold(self, ledger_id: int) -> None:
        self.leases[ledger_id] = self.leases.get(ledger_id, 0) + 1
        self.machine.hold(ledger_id)

    def release(self, ledger_id: int) -> None:
        self.leases[ledger_id] -= 1
        if not self.leases[ledger_id]:
            del self.leases[ledger_id]
        self.perform(self.machine.release(ledger_id))

    def stage(self, then: Callable[[Content], None], parts: int = 1, before: tuple[Extent, ...] = ()) -> None:
        """Bytes go to the ledger that is being filled, or to a new one; then they are held."""
        if not self.current:
            return self._new_ledger(lambda: self.stage(then, parts, before))
        ledger_id, entry = self.current, self._filled
        self._filled += 1
        self.hold(ledger_id)  # from the moment on that somebody writes there
        if self._filled >= self.run.options.contents_a_ledger:
            self.let_go_of_current()
        extents = (*before, Extent(ledger_id, entry, entry, 1 + entry, PIECE))
        self.later(lambda: self.stage(then, parts - 1, extents) if parts > 1 else then(Content(b"", extents)))

    def let_go_of_current(self) -> None:
        if self.current:
            ledger_id, self.current, self._filled = self.current, 0, 0
            self.release(ledger_id)

    def _new_ledger(self, then: Callable[[], None]) -> None:
        """OWN-5: its node first."""
        ledger_id = self.data.make_node(self.name)
        self.hold(ledger_id)

        def made() -> None:
            self.data.make_ledger(ledger_id)
            if self.current:  # another client was faster
                self.release(ledger_id)
            else:
                self.current, self._filled = ledger_id, 0
            then()

        self.later(made)
