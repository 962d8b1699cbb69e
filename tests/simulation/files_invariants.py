"""The invariants of file stores, as it really is: the log, the data ledgers and the model; no machine is asked what it believes.

| id | what must hold | rules |
|---|---|---|
| I-F1 | every call has one outcome, in the order of the calls, and it is what the model says at its place in the log | FS-4, FS-9 |
| I-F2 | every beginning of the log comes to the tree of the model: whole changes, bases that say the same | FS-3, FS-4, FS-6, FS-7 |
| I-F3 | an outcome is told only when all changes up to it are acknowledged, and of who failed none is told as done | FS-9, FS-10 |
| I-F4 | reads are of the acknowledged tree | FS-8 |
| I-F5 | a data ledger is deleted only if nothing that the next owner may read refers to it, and nobody holds it | FS-13, FS-16 |
| I-F6 | a file id is of one file or directory for ever | FS-5 |
| I-F7 | the log comes to the same tree from wherever a trim may leave it, now and after every trim | FS-7, FS-12 |
| I-F8 | each request is asked once, and none by who has ended | FS-10, SM-3 |
| I-F9 | one base at a time: rolled, written, trimmed for | FS-11 |
| L-F1 | an owner that lives serves, and every call ends | |
| L-F2 | afterwards the log begins with the last base, and is no longer than the limits allow | FS-11, FS-12, FS-15, FS-18 |
| L-F3 | afterwards every data ledger is referred to, or held | FS-13, FS-15 |
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from bk_core.errors import BkError
from bk_core.protocol.files.content import FileStatus
from bk_core.protocol.files.replay import FileReplay
from bk_core.protocol.files.tree import FileTree
from tests.simulation.files_truth import Identity, Known, State
from tests.simulation.invariants import InvariantViolated

if TYPE_CHECKING:
    from tests.simulation.files_owners import Call, Owner
    from tests.simulation.files_swarm import FilesPlay
    from tests.simulation.files_world import Entry

FILES_INVARIANTS = ("I-F1", "I-F2", "I-F3", "I-F4", "I-F5", "I-F6", "I-F7", "I-F8", "I-F9", "L-F1", "L-F2", "L-F3")


class FilesChecker:
    """Each fails with the id of what is broken."""

    def __init__(self, run: FilesPlay) -> None:
        self.run, self.world = run, run.world
        self.evaluated: Counter[str] = Counter()
        self._numbers: dict[int, Identity] = {}
        self._follower = FileReplay("follower")
        self._followed = 0

    def expect(self, rule: str, good: bool, detail: str) -> None:
        self.evaluated[rule] += 1
        if not good:
            self.fail(rule, detail)

    def fail(self, rule: str, detail: str) -> None:
        raise InvariantViolated(rule, self.world.seed, detail, "\n".join(self.world.lines[-60:]))

    # --- trees -----------------------------------------------------------------------------------------------------------

    def tree_is(self, tree: FileTree, state: State, rule: str, what: str) -> None:
        """All of it, and what it counts."""
        self.evaluated[rule] += 1
        found = list(tree.walk())
        paths = [status.path for status in found]
        if sorted(paths) != sorted(state.nodes):
            self.fail(
                rule, f"{what} has {sorted(set(paths) - set(state.nodes))} too much and lacks {sorted(set(state.nodes) - set(paths))}"
            )
        for status in found:
            self.status_is(status, status.path, state, rule, what)
            known = state.nodes[status.path]
            if known.content is not None and tree.content(status.path) != known.content:
                self.fail(rule, f"{what}: {status.path} has {tree.content(status.path)}, not {known.content}")
        if tree.count != len(found) - 1 or set(tree.ledgers) != state.referred:
            self.fail(rule, f"{what} counts {tree.count} files and ledgers {sorted(tree.ledgers)}")

    def status_is(self, status: FileStatus, path: str, state: State, rule: str, what: str) -> None:
        known = state.nodes[path]
        children = len(state.children(path)) if known.is_directory else 0
        size = known.content.size if known.content is not None else 0
        found = status.path, status.is_directory, status.size, status.modified_ms, status.children
        if found != (path, known.is_directory, size, known.modified_ms, children):
            self.fail(rule, f"{what}: {status} is not {path} with {size} bytes, {children} children, of {known.modified_ms}")
        self._identify(status, known, what)

    def _identify(self, status: FileStatus, known: Known, what: str) -> None:
        """I-F6."""
        self.evaluated["I-F6"] += 1
        identity = known.identity
        if identity.number is None:
            identity.number = status.file_id
        if identity.number != status.file_id or self._numbers.setdefault(status.file_id, identity) is not identity:
            self.fail("I-F6", f"{what}: {status.path} has the file id {status.file_id}, which is another's; its own is {identity.number}")

    # --- outcomes --------------------------------------------------------------------------------------------------------

    def outcome(self, owner: Owner, call: Call, value: Any) -> None:
        """I-F1 and I-F3, of an owner that goes on."""
        told, what = call.told, f"{owner.name}, {call.operation}"
        missing = call.changes - owner.acknowledged
        self.expect("I-F3", missing <= 0, f"{what} is told {value!r} while {missing} changes up to it are not acknowledged")
        if isinstance(told, type):
            self.expect("I-F1", type(value) is told, f"{what} is told {value!r}, not {told.__name__}")
            self.world.stats["files: refusals"] += 1
            if call.waited_for:
                self.world.probes["a refusal waited for a change that was not acknowledged"] += 1
        elif isinstance(told, str):
            self.expect("I-F1", isinstance(value, FileStatus), f"{what} is told {value!r}, not a status")
            self.status_is(value, told, call.state, "I-F1", what)
        else:
            self.expect("I-F1", value is told, f"{what} is told {value!r}, not {told!r}")

    def ended(self, owner: Owner, call: Call, value: Any) -> None:
        """I-F3: of an owner that has failed, whatever became of the change."""
        self.expect("I-F3", isinstance(value, BkError), f"{owner.name}, which has ended, tells {call.operation}: {value!r}")
        self.expect("I-F3", value.outcome_unknown, f"{owner.name}, which has ended, says {value!r} of {call.operation} for certain")

    def read(self, owner: Owner, path: str) -> None:
        """I-F4, by every way there is to read."""
        tree, state = owner.machine.tree, owner.states[owner.acknowledged]
        known, what = state.nodes.get(path), f"{owner.name} reads {path}"
        self.expect("I-F4", tree.exists(path) == (known is not None), f"{what}, which is {'there' if known else 'not there'}")
        if known is None:
            return
        self.status_is(tree.status(path), path, state, "I-F4", what)
        listed = [status.path for status in tree.listing(path)]
        self.expect("I-F4", listed == (state.children(path) if known.is_directory else [path]), f"{what}: {listed}")
        if known.content is not None:
            self.expect("I-F4", tree.content(path) == known.content, f"{what}: {tree.content(path)}")

    # --- the log ---------------------------------------------------------------------------------------------------------

    def confirmed(self) -> None:
        """I-F2: who follows the log entry by entry sees every state of the model, and no other."""
        log = self.run.log
        while self._followed < log.confirmed:
            entry = log.entries[self._followed]
            self._take(self._follower, entry, "I-F2")
            if self._follower.complete:
                self.tree_is(self._follower.tree, entry.state, "I-F2", f"the log up to entry {self._followed}, a {entry.kind}")
            self._followed += 1

    def _take(self, replay: FileReplay, entry: Entry, rule: str) -> None:
        try:
            replay.take(entry.record, entry.position)
        except BkError as error:
            self.fail(rule, f"a replay of what {entry.owner} wrote fails: {error}")

    def replays_from_everywhere(self) -> None:
        """I-F7: from every boundary before the last base that is there for good."""
        log = self.run.log
        last = self.last_base()
        if last is None:
            return self.expect("I-F7", log.begin == 0, "the log was trimmed, and has no base any more")
        self.expect("I-F7", log.begin <= last[0], f"the log begins with entry {log.begin}, behind its last base at {last[0]}")
        for begin in log.boundaries():
            if begin <= last[0]:
                self._replays_from(begin)

    def _replays_from(self, begin: int) -> None:
        log = self.run.log
        replay = FileReplay("suffix")
        if begin < log.confirmed and log.entries[begin].kind in ("part", "end"):
            self.world.probes["a replay of files began in the middle of a base"] += 1
        for entry in log.entries[begin : log.confirmed]:
            self._take(replay, entry, "I-F7")
        self.expect("I-F7", replay.complete, f"from entry {begin} on there is no whole base")
        self.tree_is(replay.tree, log.entries[log.confirmed - 1].state, "I-F7", f"the log from entry {begin} on")
        self.expect(
            "I-F7", replay.tree.next_id == self._follower.tree.next_id, f"from entry {begin} on the next id is {replay.tree.next_id}"
        )

    def last_base(self) -> tuple[int, int] | None:
        """Its first entry and its last one, of those that are in the log for good."""
        entries = self.run.log.entries
        for end in range(self.run.log.confirmed - 1, -1, -1):
            if entries[end].kind == "end":
                begin = end
                while entries[begin].kind != "begin":
                    begin -= 1
                return begin, end
        return None

    # --- data ------------------------------------------------------------------------------------------------------------

    def drops(self, owner: Owner, ledger_id: int) -> None:
        """I-F5, when it happens, whoever asked for it and whenever that was."""
        run = self.run
        if run.log.writer != owner.name:
            self.world.probes["a drop of data arrived after a take-over"] += 1
        for state in run.log.possible_states():
            named = [
                path for path, one in state.nodes.items() if one.content and any(e.ledger_id == ledger_id for e in one.content.extents)
            ]
            self.expect("I-F5", not named, f"{owner.name} deletes data ledger {ledger_id}, to which {named} may refer")
        for other in run.owners:
            writes = other.alive and not other.has_ended and (other is owner or run.log.is_writer(other.name))
            held = writes and ledger_id in other.leases
            self.expect("I-F5", not held, f"{owner.name} deletes data ledger {ledger_id}, which {other.name} holds")
        self.world.stats["files: data ledgers dropped"] += ledger_id in run.data.ledgers

    # --- the end ---------------------------------------------------------------------------------------------------------

    def end(self, last: Owner) -> None:
        run, log = self.run, self.run.log
        for owner in run.owners:
            if owner.alive and owner.is_serving:
                self.expect("L-F1", not owner.calls, f"{owner.name} owes outcomes: {[str(call.operation) for call in owner.calls]}")
        self.replays_from_everywhere()
        self._check_length(last)
        self.made_good(last)
        state = last.states[-1]
        kept = state.referred | set(last.leases)
        self.expect("L-F3", set(run.data.ledgers) == kept, f"data ledgers {sorted(run.data.ledgers)} are left, {sorted(kept)} are needed")
        self.expect("L-F3", set(run.data.nodes) == kept, f"nodes of data ledgers {sorted(run.data.nodes)} are left, {sorted(kept)} needed")
        self.tree_is(last.machine.tree, state, "I-F4", "the tree at the end")
        self.expect("I-F2", log.entries[-1].state is state, "the log does not end with the last change")

    def made_good(self, owner: Owner) -> None:
        """L-F2 and L-F3, of an owner that had only to go on."""
        data, state = self.run.data, owner.states[-1]
        self._check_length(owner)
        kept = state.referred | set(owner.leases)
        left = [one for one in (*data.ledgers, *data.nodes) if data.made_by[one] == owner.name and one not in kept]
        self.expect("L-F3", not left, f"{owner.name} leaves data ledgers {left}")

    def _check_length(self, owner: Owner) -> None:
        """L-F2."""
        log, limits = self.run.log, self.run.options.limits
        base = self.last_base()
        assert base is not None
        size = sum(len(entry.record) for entry in log.entries[base[0] : base[1] + 1])
        behind = sum(len(entry.record) for entry in log.entries[base[1] + 1 :])
        allowed = max(limits.compact_bytes, limits.compact_factor * size)
        self.expect("L-F2", behind <= allowed, f"{behind} bytes follow the last base of {size}, {allowed} are allowed")
        first = log.entries[base[0]].position.seq
        many = owner.segment - first
        self.expect("L-F2", many <= limits.segments_max, f"{owner.name} found {many} segments from the last base on, and wrote none")
        begin = log.starts[first]
        before = [entry for entry in log.entries[log.begin : begin] if entry.kind in ("change", "end")]  # not of a store that never began
        self.expect("L-F2", not before, f"the log begins with entry {log.begin}, the segment of its last base with {begin}")


class View:
    """Somebody who reads and never fences: from the first entry left on, behind what is confirmed, begun again when that is trimmed."""

    def __init__(self, run: FilesPlay, name: str) -> None:
        self.run, self.name = run, name
        self._begin()

    def _begin(self) -> None:
        self._replay = FileReplay(self.name)
        self._at = self.run.log.begin

    def go_on(self) -> None:
        run, log, checker = self.run, self.run.log, self.run.checker
        if log.begin > self._at:
            run.world.probes["a view of files was overtaken by a trim"] += 1
            self._begin()
        upto = min(log.confirmed, self._at + 1 + int(run.world.random() * 8))
        for entry in log.entries[self._at : upto]:
            checker._take(self._replay, entry, "I-F2")
        if self._replay.complete and upto > self._at:
            checker.tree_is(self._replay.tree, log.entries[upto - 1].state, "I-F2", f"{self.name} at entry {upto}")
        self._at = upto
        if run.world.random() < 0.1:
            self._begin()
        if not run.calm:
            run.world.at(run.world.delay() * 4, self.go_on)
