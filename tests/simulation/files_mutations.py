"""Rules of file stores broken on purpose; see mutations.py."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bk_core.errors import BkError
from bk_core.protocol.effects import Complete, Fail
from bk_core.protocol.events import Outcome
from bk_core.protocol.files import compaction
from bk_core.protocol.files.base import encode_base
from bk_core.protocol.files.changes import Decided
from bk_core.protocol.files.compaction import LogKeeping, Pending
from bk_core.protocol.files.data_ledgers import DataLedgers
from bk_core.protocol.files.effects import LogRolled, RecordsAppended
from bk_core.protocol.files.machine import FileMachine
from bk_core.protocol.files.records import Change, Mkdirs, Put, encode
from bk_core.protocol.files.replay import FileReplay
from bk_core.protocol.files.state import Compaction, FileState
from bk_core.protocol.files.tree import FileTree
from bk_core.protocol.log.position import Position
from tests.simulation.broken import always
from tests.simulation.files_owners import Owner
from tests.simulation.mutation import Mutation

FILES: dict[str, Any] = {"files": True, "clients": 4, "think_ms": 0.3, "storm_ms": 150, "take_over_ms": 20, "owners_max": 9}
SLOW = {**FILES, "slow": 0.4}
OFTEN = {**FILES, "limits.compact_bytes": 200, "limits.compact_factor": 1, "limits.part_bytes": 60}
SEGMENTS = {**OFTEN, "entries_a_segment": 3}
DATA = {**SLOW, "staged": 0.6, "contents_a_ledger": 1, "works_slow": 1}

_serve = Owner._serve
_make = FileMachine._make
_change = FileMachine._change
_after = LogKeeping._after
_trim = LogKeeping._trim
_append_base = LogKeeping._append_base
_take = FileReplay._take


def makes_directories_first(self: FileMachine, token: Any, record: Change, answer: Callable[[FileTree], Any]) -> None:
    if isinstance(record, Put) and record.made:
        above = Mkdirs(record.path.rpartition("/")[0], record.modified_ms, record.file_id, record.made)
        self._next.apply(above)

        def made() -> None:
            self._acknowledged.apply(above)

        self._append((encode(above),), Pending(compaction.NOBODY, made, ready=False))
        record = Put(record.path, record.content, record.modified_ms, record.file_id + record.made)
    _make(self, token, record, answer)


def counts_ids_anew(tree: FileTree, part_bytes: int) -> tuple[bytes, ...]:
    """The next id is the first one that nothing in the tree has."""
    copy = tree.copy()
    copy.next_id = 1 + max(status.file_id for status in tree.walk())
    return encode_base(copy, part_bytes)


def takes_any_id(self: FileTree, file_id: int) -> int:
    self.next_id = file_id + 1
    return file_id


def writes_what_is_acknowledged(self: LogKeeping) -> None:
    following, self._next = self._next, self._acknowledged
    try:
        _append_base(self)
    finally:
        self._next = following


def applies_whatever_there_is(self: FileReplay, change: Change) -> None:
    self._base = None
    self.tree.apply(change)


def forgets_the_tree_at_a_base(self: FileReplay, record: bytes, position: Position) -> None:
    """The tree of a base counts from its beginning on."""
    _take(self, record, position)
    if self._base is not None:
        self.tree, self.complete = self._base._tree, True


def serves_without_a_base(self: LogKeeping) -> None:
    if self.state is FileState.STARTING:
        self.state, self._has_base = FileState.SERVING, True
    else:
        _append_base(self)


def refuses_at_once(self: FileMachine, token: Any, told: Callable[[], Complete | Fail]) -> None:
    self._effects.append(told())


def refuses_on_what_is_acknowledged(self: FileMachine, token: Any, decide: Callable[[FileTree], Decided]) -> list[Any]:
    try:
        if self._is_open():
            decide(self._acknowledged)
    except BkError as error:
        self._tell_in_turn(token, partial(Fail, token, error))
        return self._finish_step()
    return _change(self, token, decide)


def fails_alone(self: LogKeeping, pending: Pending, event: RecordsAppended) -> None:
    pending.ready, pending.position = True, event.first_position
    if event.outcome is not Outcome.OK:
        error = self._told(event.error)
        pending.then = lambda: Fail(pending.token, error) if pending.token is not compaction.NOBODY else None


def ends_what_was_first(self: LogKeeping, error: Exception) -> None:
    """Do not tell the outcome of later requests."""
    self.state = FileState.FAILED
    self.error = error
    first = self._pending.popleft()
    self._pending.clear()
    if first.token is not compaction.NOBODY:
        self._effects.append(Fail(first.token, error))


def is_due_all_the_time(self: LogKeeping) -> bool:
    return self.state is FileState.SERVING and self._bytes > self._limits.compact_bytes


def is_due_whatever_is_trimmed(self: LogKeeping) -> bool:
    due = max(self._limits.compact_bytes, self._limits.compact_factor * self._base_bytes)
    return self.state is FileState.SERVING and self.compaction in (Compaction.NONE, Compaction.TRIMMING) and self._bytes > due


def trims_when_it_rolled(self: LogKeeping, event: LogRolled) -> None:
    if event.outcome is Outcome.OK and self.state is FileState.SERVING:
        self._append_base()
        self._trim(Position(1 << 30))


def trims_one_segment_more(self: LogKeeping, before: Position) -> None:
    _trim(self, Position(before.seq + 1))


def gives_up(self: LogKeeping, key: str, after_ns: int, action: Callable[[], None]) -> None:
    if key.startswith("drop"):
        _after(self, key, after_ns, action)


def gives_up_drops(self: LogKeeping, key: str, after_ns: int, action: Callable[[], None]) -> None:
    if not key.startswith("drop"):
        _after(self, key, after_ns, action)


def lists_late(self: Owner, end: int) -> None:
    self._listed = list(self.data.nodes)
    _serve(self, end)


def trims_only(self: LogKeeping, replay: FileReplay, segment: int, trim_left: bool) -> None:
    before = replay.trim_before()
    if before is not None:
        self._trim(before)


FILES_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "FS-4",
        "directories above a file are made by a record of their own",
        ((FileMachine, "_make", makes_directories_first),),
        ("I-F1", "I-F2"),
        FILES,
    ),
    Mutation(
        "FS-5",
        "a base forgets which file ids were given",
        ((compaction, "encode_base", counts_ids_anew), (FileTree, "_take_id", takes_any_id)),
        ("I-F6",),
        OFTEN,
    ),
    Mutation(
        "FS-6",
        "a base is of the acknowledged tree",
        ((LogKeeping, "_append_base", writes_what_is_acknowledged),),
        ("I-F2", "I-F7"),
        {**OFTEN, "slow": 0.4, "think_ms": 0.05},
    ),
    Mutation(
        "FS-7 (begin)",
        "changes before the first complete base count",
        ((FileReplay, "_change", applies_whatever_there_is),),
        ("I-F7", "I-F2", "crash"),
        SEGMENTS,
    ),
    Mutation(
        "FS-7 (end)",
        "a base counts from its beginning on",
        ((FileReplay, "_take", forgets_the_tree_at_a_base),),
        ("I-F2", "I-F7"),
        OFTEN,
    ),
    Mutation(
        "FS-7 (first)",
        "a new store serves without a base",
        ((LogKeeping, "_append_base", serves_without_a_base),),
        ("crash", "I-F7"),
        FILES,
    ),
    Mutation(
        "FS-8",
        "reads see what was asked for",
        ((DataLedgers, "tree", property(lambda self: self._next)),),
        ("I-F4", "I-F1", "I-F2"),
        FILES,
    ),
    Mutation(
        "FS-9 (refusals)",
        "a refusal is told at once",
        ((FileMachine, "_tell_in_turn", refuses_at_once),),
        ("I-F1", "I-F3"),
        SLOW,
    ),
    Mutation(
        "FS-9 (order)",
        "outcomes are told before all up to them is acknowledged",
        ((LogKeeping, "_may_tell", always(True)),),
        ("I-F3",),
        SLOW,
    ),
    Mutation(
        "FS-9 (next)",
        "what is asked for is decided on the acknowledged tree",
        ((FileMachine, "_change", refuses_on_what_is_acknowledged),),
        ("I-F1",),
        SLOW,
    ),
    Mutation(
        "FS-10 (alone)",
        "an append that fails ends nothing but its change",
        ((LogKeeping, "_appended", fails_alone),),
        ("I-F1", "I-F3", "I-F8", "L-F1", "crash"),
        SLOW,
    ),
    Mutation(
        "FS-10 (all)",
        "what is pending behind an append that failed is not told",
        ((LogKeeping, "_fail", ends_what_was_first),),
        ("L-F1", "I-F1"),
        SLOW,
    ),
    Mutation("FS-11 (never)", "no base is ever due", ((LogKeeping, "_is_base_due", always(False)),), ("L-F2",), OFTEN),
    Mutation(
        "FS-11 (one)",
        "a base is begun before the last one is trimmed for",
        ((LogKeeping, "_is_base_due", is_due_whatever_is_trimmed),),
        ("I-F9",),
        {**OFTEN, "works_slow": 40},
    ),
    Mutation(
        "FS-11 (two)",
        "a base is begun while another one is under way",
        ((LogKeeping, "_is_base_due", is_due_all_the_time),),
        ("I-F9",),
        OFTEN,
    ),
    Mutation(
        "FS-12 (early)",
        "the log is trimmed before the base is acknowledged",
        ((LogKeeping, "_rolled", trims_when_it_rolled),),
        ("I-F7",),
        {**OFTEN, "slow": 0.4, "works_slow": 1},
    ),
    Mutation("FS-12 (further)", "one segment more is trimmed", ((LogKeeping, "_trim", trims_one_segment_more),), ("I-F7",), SEGMENTS),
    Mutation(
        "FS-12 (left)",
        "nobody trims what a former owner left",
        ((FileReplay, "trim_before", always(None)),),
        ("L-F2",),
        {**OFTEN, "works_slow": 40},
    ),
    Mutation(
        "FS-13 (acknowledged)",
        "a data ledger goes when its deletion is asked for",
        ((DataLedgers, "_is_referred_to", lambda self, ledger_id: ledger_id in self._next.ledgers or ledger_id in self._leases),),
        ("I-F5",),
        DATA,
    ),
    Mutation(
        "FS-13 (pending)",
        "a put that is not acknowledged does not hold its data ledger",
        ((FileMachine, "_leased_by", always(frozenset())),),
        ("I-F5",),
        {**DATA, "contents_a_ledger": 3, "think_ms": 0.05, "clients": 8, "paths": 3},
    ),
    Mutation(
        "FS-13 (leases)",
        "leases hold nothing",
        (
            (
                DataLedgers,
                "_is_referred_to",
                lambda self, ledger_id: ledger_id in self._acknowledged.ledgers or ledger_id in self._next.ledgers,
            ),
        ),
        ("I-F5", "I-F1"),
        {**DATA, "contents_a_ledger": 6},
    ),
    Mutation(
        "FS-15 (trims)",
        "a roll or a trim that fails is forgotten",
        ((LogKeeping, "_after", gives_up),),
        ("L-F2",),
        {**OFTEN, "works_fail": 0.5},
    ),
    Mutation(
        "FS-15 (drops)",
        "a drop that fails is forgotten",
        ((LogKeeping, "_after", gives_up_drops),),
        ("L-F3",),
        {**DATA, "works_fail": 0.5, "owners_max": 2, "kills": 0.0},
    ),
    Mutation(
        "FS-16 (list)",
        "data ledgers are listed when the former owner is fenced",
        ((Owner, "_serve", lists_late),),
        ("I-F5",),
        {**DATA, **OFTEN, "replays_slow": 300, "take_over_ms": 5, "storm_ms": 300},
    ),
    Mutation(
        "FS-16",
        "who finds no base drops what it was told of at once",
        ((DataLedgers, "_may_drop", DataLedgers._drops),),
        ("I-F5",),
        {**DATA, **OFTEN, "replays_slow": 300, "take_over_ms": 5, "storm_ms": 300},
        8000,
    ),
    Mutation(
        "FS-18",
        "who opens a store never minds how many segments there are",
        ((LogKeeping, "_shorten", trims_only),),
        ("L-F2",),
        {**FILES, "limits.segments_max": 1, "limits.compact_bytes": 100_000, "owners_max": 9, "take_over_ms": 5},
    ),
)
