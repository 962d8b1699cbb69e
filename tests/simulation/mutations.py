"""Rules broken on purpose (13.4). Each mutation replaces methods of production classes for the time of one run; the swarm must notice.

A mutation names the invariants of which one must fire. ``forced`` pins what the rule is about (see ``options.override``), the rest is drawn
as always. "crash" as an expectation: an assertion inside a machine noticed first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from bk_core.protocol.bookie.memory import MemoryBookieStorage
from bk_core.protocol.bookie.records import LedgerRecord, Reply
from bk_core.protocol.bookie.rules import BookieRules
from bk_core.protocol.effects import Complete, ReadLedger, WriteLedger
from bk_core.protocol.entry import layout
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.end_phase import EndPhase
from bk_core.protocol.ledger.ensemble_change import ChangingWriter
from bk_core.protocol.ledger.fence_phase import DENIALS, FencePhase
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.ledger.pending import AckSet
from bk_core.protocol.ledger.recovery import LedgerRecovery, RecoveryState
from bk_core.protocol.ledger.replication import FragmentRepair
from bk_core.protocol.ledger.writer import LedgerWriter
from bk_core.protocol.ledger.writer_acks import CountingWriter
from bk_core.protocol.ledger.writer_base import WriterBase, WriterState
from bk_core.protocol.ledger.writer_close import ClosingWriter
from bk_core.protocol.ledger.writer_guarantee import GuaranteeingWriter
from bk_core.protocol.ledger.writer_options import ChangeWindow, EnsembleChangeMode
from bk_core.protocol.wire.messages import Status

Patch = tuple[type, str, Any]


@dataclass(frozen=True, slots=True)
class Mutation:
    rule: str
    what: str
    patches: tuple[Patch, ...]
    expected: tuple[str, ...]
    forced: dict[str, Any] = field(default_factory=dict)
    seeds: int = 2000


@contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """The mutation is in force inside the block, in this process."""
    missing = object()
    before = [(owner, name, owner.__dict__.get(name, missing)) for owner, name, _ in mutation.patches]
    try:
        for owner, name, replacement in mutation.patches:
            setattr(owner, name, replacement)
        yield
    finally:
        for owner, name, original in before:
            if original is missing:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


# What the swarm is made to do, so that the rule matters.
PLAIN = {"gwq": False, "writer_dies_ms": 0, "replicators": 0}
STRAGGLERS = {
    **PLAIN,
    "quorums": (3, 3, 2),
    "bookies": 3,
    "entries": 2,
    "entries_at_once": 1,
    "recoverers": 1,
    "recover_at_ms": 5,
    "storm_ms": 500,
    "weather.slow": 0.5,
    "weather.loss": 0.1,
    "limits.add_timeout_ns": 400_000_000,
    "limits.read_timeout_ns": 100_000_000,
}
CHANGES = {
    **PLAIN,
    "crash": 0.12,
    "entries": 25,
    "append_every_ms": 8,
    "storm_ms": 300,
    "close_at_ms": 0,
    "writer.ensemble_change": EnsembleChangeMode.IMMEDIATE,
    "limits.ensemble_changes_max": 1000,
    "limits.add_timeout_ns": 40_000_000,
    "weather.slow": 0.4,
    "weather.loss": 0.02,
}
RECOVERIES = {
    **PLAIN,
    "recoverers": 3,
    "recover_at_ms": 40,
    "entries": 12,
    "append_every_ms": 4,
    "weather.slow": 0.4,
    "recoverer_dies": 0.05,
}
GWQ = {**CHANGES, "gwq": True, "plain_recovery": False}
AMBIGUOUS = {
    **GWQ,
    "quorums": (3, 3, 2),
    "bookies": 6,
    "crash": 0.0,
    "recoverers": 0,
    "weather.store_loss": 0.8,
    "weather.slow": 0.6,
    "limits.add_timeout_ns": 12_000_000,
    "limits.add_retry_ns": 10_000_000,
}
WIPES = {**STRAGGLERS, "wipes": 1, "crash": 0.25, "entries": 4}


# --- bookies -------------------------------------------------------------------------------------------------------------


def _fences_only_what_it_knows(self: BookieRules, record: LedgerRecord, key: bytes) -> LedgerRecord:
    return replace(record, key=key, fenced=True) if record.has_entries else record


def _forgets_fences(self: MemoryBookieStorage, durable: Any) -> Any:
    for ledger_id, record in durable.records.items():
        durable.records[ledger_id] = replace(record, fenced=False)
    return durable


def _tombstone_without_fence(self: BookieRules, record: LedgerRecord, now_ms: int) -> LedgerRecord:
    return LedgerRecord(record.ledger_id)


# --- writer --------------------------------------------------------------------------------------------------------------

_propose = ChangingWriter._propose
_take_back = ChangingWriter._take_back
_install = ChangingWriter._install
_acknowledged = CountingWriter._acknowledged
_begin_close = ClosingWriter._begin_close
_set_ensemble = WriterBase._set_ensemble


def _uses_before_commit(self: Any, failures: Any, chosen: Any, now_ns: int) -> Any:
    effects = _propose(self, failures, chosen, now_ns)
    change = self._change
    if change is None:
        return effects
    self.metadata, self.version = change.wanted, self.version + 1
    return [*effects, *self._install(change.ensemble, change.first_entry_id, change.round, now_ns)]


def _rereads_when_unknown(self: Any) -> Any:
    waiting = self._closing if self._change is None else self._change
    waiting.reading = True
    return [ReadLedger(waiting.request)]


def _accepts_its_own_version(self: Any, version: int) -> bool:
    return version < self.version


def _remembers_departed(self: Any, ensemble: Any) -> None:
    departed = getattr(self, "_departed", {}) if hasattr(type(self), "_departed_of") else {}
    for position, bookie in enumerate(self._ensemble):
        departed[bookie] = position
    _DEPARTED[id(self)] = departed
    _set_ensemble(self, ensemble)


_DEPARTED: dict[int, dict[str, int]] = {}


def _counts_departed(self: Any, bookie: str, first: int, count: int, now_ns: int) -> Any:
    position = _DEPARTED.get(id(self), {}).get(bookie)
    if bookie in self._position or position is None:
        return _acknowledged(self, bookie, first, count, now_ns)
    stands_in = self._ensemble[position]
    del self._position[stands_in]
    self._position[bookie] = position
    try:
        return _acknowledged(self, bookie, first, count, now_ns)
    finally:
        self._position.pop(bookie, None)
        self._position[self._ensemble[position]] = position


def _commits_any_complete(self: Any) -> Any:
    """Out of order: the highest complete run completes, whatever is before it."""
    effects: list[Any] = []
    if self._may_commit():
        for pending in list(self._pending.after(self.acknowledged_head)):
            everything = pending.between(pending.first, pending.last)
            if self._quorum_complete(pending, ()) & everything == everything:
                self._commit(pending.last, effects)
    return effects


def _commits_between_un_acks(self: Any, ensemble: Any, first: int) -> None:
    """EC-10: the commit runs after each entry that is un-acked, not after all of them."""
    changed = [p for p, bookie in enumerate(ensemble) if bookie != self._ensemble[p]]
    original = AckSet.move
    runs = list(self._pending)
    late = self.__dict__.setdefault if hasattr(self, "__dict__") else None
    assert late is not None
    change, self._change = self._change, None
    for pending in runs:
        touched = any(pending.acks.write_set.held[p] & pending.after(first - 1) for p in changed)
        if not touched:
            _EARLY.setdefault(id(self), []).extend(self._advance())
        for position in changed:
            original(pending.acks, position, pending.after(first - 1))
    self._change = change
    _take_back(self, ensemble, first)


_EARLY: dict[int, list[Any]] = {}


def _install_with_early(self: Any, ensemble: Any, first: int, settled: Any, now_ns: int) -> Any:
    effects = _install(self, ensemble, first, settled, now_ns)
    return [*_EARLY.pop(id(self), []), *effects]


def _sends_by_difference(self: Any, now_ns: int) -> Any:
    """EC-11 broken: only what changed in this installation, so a bookie that came back gets nothing."""
    effects: list[Any] = []
    before = _BEFORE.get(id(self), ())
    for pending in self._pending:
        for position, bookie in enumerate(self._ensemble):
            if position < len(before) and before[position] != bookie:
                self._send_missing(pending, position, now_ns, effects)
    return effects


_BEFORE: dict[int, tuple[str, ...]] = {}


def _take_back_noting(self: Any, ensemble: Any, first: int) -> None:
    _BEFORE[id(self)] = tuple(self._ensemble)
    _take_back(self, ensemble, first)


def _closes_without_draining(self: Any, why: Any) -> Any:
    """CL-1 broken: the queue goes on committing while the closing write is on its way."""
    kept = list(self._pending)
    effects = _begin_close(self, why)
    for pending in kept:
        self._pending.add(pending)
        pending.waiting = True
    return [e for e in effects if isinstance(e, WriteLedger | Complete)]


def _acknowledges_while_closing(self: Any, bookie: str, first: int, count: int, now_ns: int) -> Any:
    state = self.state
    if state in (WriterState.CLOSING, WriterState.CLOSED):
        self.state = WriterState.OPEN
    try:
        return _acknowledged(self, bookie, first, count, now_ns)
    finally:
        if self.state is WriterState.OPEN:
            self.state = state


# --- recovery ------------------------------------------------------------------------------------------------------------

_metadata_read = LedgerRecovery._metadata_read
_maybe_close = LedgerRecovery._maybe_close
_package = LedgerWriter._package


def _asks_current_ensemble(self: Any, question: Any, position: int) -> Any:
    if self.writer is not None:
        question.ensemble = self.writer.ensemble
    return self._requests.fence_read(question, position, question.entry_id)


def _asks_without_fence(self: Any, question: Any, position: int) -> Any:
    return self._requests.plain_read(question, position, question.entry_id)


def _unverified_lac(self: Any, body: bytes | None) -> int:
    return -1 if body is None else int(layout.HEADER.unpack_from(body)[2])


def _stamps_moving_lac(self: Any, *arguments: Any) -> Any:
    frozen = self._frozen_lac
    if frozen is not None:
        self._frozen_lac = self.last_add_pushed
    try:
        return _package(self, *arguments)
    finally:
        self._frozen_lac = frozen


def _persists_private_changes(self: Any, failures: Any, chosen: Any, now_ns: int) -> Any:
    effects = _propose(self, failures, chosen, now_ns)
    if self.recovering:
        first, ensemble = max(self.private_changes.items())
        return [*effects, WriteLedger(-1, self.metadata.with_ensemble(first, ensemble), self.version)]
    return effects


def _length_of_nothing(self: Any) -> Any:
    if self.length is None:
        self.length = 0
    return self._write_barrier(self.barrier.take())


def _overwrites_closed(self: Any, event: Any) -> Any:
    closing = self.state is RecoveryState.CLOSING and event.request == self._metadata_request and self._wanted is None
    if closing and event.metadata is not None and event.metadata.state is LedgerState.CLOSED:
        self.metadata, self.version = event.metadata, event.version
        return [self._write_metadata(self._closing_metadata(event.metadata.in_recovery()))]
    return _metadata_read(self, event)


def _tells_early(self: Any) -> Any:
    effects = _maybe_close(self)
    return [Complete(self._token, e.metadata) if isinstance(e, WriteLedger) else e for e in effects] + effects


def _counts_answers(self: Distribution, heard: Any) -> bool:
    return len(set(heard)) >= self.denials_needed


def _always(value: Any) -> Callable[..., Any]:
    return lambda self, *arguments, **options: value


# --- re-replication --------------------------------------------------------------------------------------------------------


def _changes_first(self: Any, now_ns: int) -> Any:
    return self._finish_copying() if self._exchanges else _go_on(self, now_ns)


_go_on = FragmentRepair._go_on


MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "B-3",
        "a ledger that the bookie has no entries of is not fenced",
        ((BookieRules, "_fenced", _fences_only_what_it_knows),),
        ("I-11", "I-12", "I-1", "I-17"),
        STRAGGLERS,
    ),
    Mutation(
        "B-4",
        "a fencing request is answered before the mark is durable",
        ((BookieRules, "_fence_reply", lambda self, tag, response: Reply(tag, response)),),
        ("I-11", "I-12", "I-1", "I-17"),
        {**STRAGGLERS, "crash": 0.3, "weather.slow_disk": 0.5},
        4000,
    ),
    Mutation(
        "B-6 (restart)",
        "fence marks are lost in a restart",
        ((MemoryBookieStorage, "_after_crash", _forgets_fences),),
        ("I-11", "I-12", "I-1", "I-17"),
        {**STRAGGLERS, "crash": 0.3},
    ),
    Mutation(
        "B-6 (deletion)",
        "a deleted ledger leaves no fence",
        ((BookieRules, "_tombstone", _tombstone_without_fence),),
        ("I-11",),
        {"delete": True},
    ),
    Mutation(
        "B-7",
        "an entry that cannot be read is denied",
        ((BookieRules, "_unreadable", _always(Status.NO_ENTRY)),),
        ("I-1", "I-17"),
        {**STRAGGLERS, "damage": 0.5, "entries": 6, "append_every_ms": 2, "recover_at_ms": 30},
        4000,
    ),
    Mutation(
        "B-10 (limbo)",
        "a bookie that lost its disk denies what it lost",
        ((BookieRules, "_lost", lambda self, record: replace(record, fenced=True)),),
        ("I-1", "I-17"),
        {**WIPES, "recover_at_ms": 80},
        4000,
    ),
    Mutation(
        "B-10 (fence)",
        "a bookie that lost its disk is in limbo and not fenced",
        ((BookieRules, "_lost", lambda self, record: replace(record, limbo=True)),),
        ("I-11", "I-12", "I-1", "I-17"),
        WIPES,
        6000,
    ),
    Mutation(
        "META-11",
        "an ensemble is used before the store has it",
        ((ChangingWriter, "_propose", _uses_before_commit),),
        ("I-3", "I-10", "I-19"),
        CHANGES,
    ),
    Mutation(
        "META-12",
        "after an ambiguous compare-and-set the store is read instead",
        ((ChangingWriter, "_after_unknown", _rereads_when_unknown), (ChangingWriter, "_stale", _accepts_its_own_version)),
        ("I-10", "I-3", "I-1", "I-G1", "I-G2", "I-G3"),
        AMBIGUOUS,
        20000,
    ),
    Mutation(
        "WR-7",
        "acknowledgements of replaced bookies count",
        ((WriterBase, "_set_ensemble", _remembers_departed), (CountingWriter, "_acknowledged", _counts_departed)),
        ("I-3", "I-10", "I-2", "I-4"),
        CHANGES,
        4000,
    ),
    Mutation(
        "WR-8",
        "entries are acknowledged out of order",
        ((CountingWriter, "_advance", _commits_any_complete),),
        ("I-3", "I-14", "I-2"),
        {**CHANGES, "entries_at_once": 1, "append_every_ms": 1},
    ),
    Mutation(
        "EC-7 (too high)",
        "a fragment starts behind the last entry pushed",
        ((WriterBase, "_first_entry_of_change", lambda self: self.last_add_pushed + 1),),
        ("I-3", "I-10", "I-4", "I-2"),
        CHANGES,
    ),
    Mutation(
        "EC-7 (too low)",
        "a fragment starts at the last committed entry",
        (
            (
                WriterBase,
                "_first_entry_of_change",
                lambda self: max(self.metadata.last_fragment.first_entry_id, self.last_add_confirmed),
            ),
        ),
        ("I-3", "I-10", "I-4", "I-2"),
        {**CHANGES, "quorums": (3, 2, 2), "bookies": 6},
    ),
    Mutation(
        "EC-8",
        "everything counts while the metadata of a change is on its way",
        ((WriterBase, "_positions_to_exclude", _always(())), (WriterBase, "_window_blocks", _always(False))),
        ("I-3", "I-10"),
        {**CHANGES, "weather.store_loss": 0.3},
    ),
    Mutation(
        "EC-10 (order)",
        "the commit runs between un-acking one entry and the next",
        ((ChangingWriter, "_take_back", _commits_between_un_acks), (ChangingWriter, "_install", _install_with_early)),
        ("I-3", "I-10", "I-4"),
        {**CHANGES, "quorums": (4, 2, 2), "bookies": 7, "entries_at_once": 1, "append_every_ms": 1, "writer.window": ChangeWindow.BLOCK},
        6000,
    ),
    Mutation(
        "EC-10 (no un-ack)",
        "acknowledgements of replaced bookies are kept",
        ((AckSet, "move", _always(None)),),
        ("I-3", "I-10", "I-4", "L-1", "L-2"),
        CHANGES,
    ),
    Mutation(
        "EC-11",
        "only positions that changed are sent to",
        ((ChangingWriter, "_take_back", _take_back_noting), (ChangingWriter, "_send_all_missing", _sends_by_difference)),
        ("L-1", "L-2", "L-5", "L-3"),
        {**CHANGES, "recoverers": 0, "bookies": 4, "quorums": (3, 3, 3)},
        6000,
    ),
    Mutation(
        "CL-1",
        "entries are acknowledged after the close has fixed the end",
        (
            (ClosingWriter, "_begin_close", _closes_without_draining),
            (CountingWriter, "_acknowledged", _acknowledges_while_closing),
        ),
        ("I-1", "I-13"),
        {**CHANGES, "recoverers": 0, "close_at_ms": 40, "storm_ms": 150},
    ),
    Mutation(
        "CL-4",
        "a close succeeds although another client closed elsewhere",
        ((ClosingWriter, "_same_end", _always(True)),),
        ("I-7", "I-15"),
        {
            **STRAGGLERS,
            "entries": 3,
            "recover_at_ms": 3,
            "close_at_ms": 60,
            "weather.loss": 0.2,
            "limits.add_timeout_ns": 1_000_000_000,
            "writer.quorum_timeout_ns": None,
        },
        4000,
    ),
    Mutation(
        "RC-2",
        "recovery reads follow its own write-backs",
        ((LedgerRecovery, "_ask", _asks_current_ensemble),),
        ("I-1", "I-17", "I-10"),
        {
            **RECOVERIES,
            "quorums": (3, 2, 2),
            "bookies": 6,
            "entries": 25,
            "append_every_ms": 1,
            "recoverers": 1,
            "recover_at_ms": 25,
            "recoverer_dies": 0.0,
            "limits.recovery_window_entries": 1,
            "limits.add_timeout_ns": 15_000_000,
            "recovery.ensemble_change": EnsembleChangeMode.IMMEDIATE,
        },
        6000,
    ),
    Mutation(
        "RC-5",
        "a global count of answers is taken for coverage (Q-8)",
        ((Distribution, "covered", _counts_answers),),
        ("RC-5",),
        {**RECOVERIES, "quorums": (4, 2, 2), "crash": 0.1},
    ),
    Mutation(
        "RC-6 (floor)",
        "recovery starts at the LAC heard, however low",
        ((FencePhase, "_floor", property(lambda self: -1)),),
        ("I-1", "I-17", "I-8", "crash"),
        {**CHANGES, **RECOVERIES, "crash": 0.12},
        4000,
    ),
    Mutation(
        "RC-6 (digest)",
        "a LAC under a bad digest counts",
        ((FencePhase, "_lac_of", _unverified_lac),),
        ("I-4", "I-6", "I-18", "I-17", "L-4"),
        {**RECOVERIES, "damage": 0.5, "quorums": (3, 3, 2), "recovery.reread_last_fragment": False, "storm_ms": 300},
        4000,
    ),
    Mutation(
        "RC-7",
        "write-backs carry the moving LAC",
        ((LedgerWriter, "_package", _stamps_moving_lac),),
        ("I-6",),
        RECOVERIES,
    ),
    Mutation(
        "RC-8",
        "recovery reads do not fence",
        ((LedgerRecovery, "_ask", _asks_without_fence),),
        ("I-1", "I-12", "I-17"),
        STRAGGLERS,
        20000,
    ),
    Mutation(
        "RC-10 (QC - 1)",
        "one denial less ends the ledger",
        ((LedgerRecovery, "_denials_needed", lambda self: max(1, self._distribution.denials_needed - 1)),),
        ("I-1", "I-17"),
        RECOVERIES,
    ),
    Mutation(
        "RC-10 (one)",
        "one denial ends the ledger",
        ((LedgerRecovery, "_denials_needed", _always(1)),),
        ("I-1", "I-17"),
        RECOVERIES,
    ),
    Mutation(
        "RC-11",
        "silence counts as a denial",
        ((LedgerRecovery, "_denies", lambda self, status: status in DENIALS or status in (Status.TIMEOUT, Status.UNAVAILABLE)),),
        ("I-1", "I-17"),
        {**RECOVERIES, "crash": 0.1, "weather.loss": 0.15},
    ),
    Mutation(
        "RC-15",
        "ensembles of a recovery are stored before it closes",
        ((ChangingWriter, "_propose", _persists_private_changes),),
        ("I-9", "I-1", "I-17", "I-3"),
        {**RECOVERIES, "crash": 0.12},
    ),
    Mutation(
        "RC-16",
        "the length of an unread last entry is taken for nothing",
        ((EndPhase, "start", _length_of_nothing),),
        ("I-18", "I-7"),
        RECOVERIES,
    ),
    Mutation(
        "RC-18",
        "a recovery closes a ledger that is closed",
        ((LedgerRecovery, "_metadata_read", _overwrites_closed),),
        ("I-9", "I-1", "I-15"),
        RECOVERIES,
    ),
    Mutation(
        "RC-19",
        "a recovery answers its caller before the close is definite",
        ((LedgerRecovery, "_maybe_close", _tells_early),),
        ("I-15", "I-16"),
        RECOVERIES,
    ),
    Mutation(
        "G-4",
        "nothing is pinned",
        ((GuaranteeingWriter, "_removable", _always(True)),),
        ("I-3", "I-10", "I-G3"),
        GWQ,
    ),
    Mutation(
        "G-6",
        "departing bookies count inside the window",
        ((WriterBase, "_positions_to_exclude", _always(())),),
        ("I-3", "I-10", "I-G1", "I-G3"),
        {**GWQ, "weather.store_loss": 0.3, "writer.window": None},
        4000,
    ),
    Mutation(
        "G-8",
        "failures are taken back while an ambiguous change is out, and the store is read instead",
        ((ChangingWriter, "_after_unknown", _rereads_when_unknown), (ChangingWriter, "_stale", _accepts_its_own_version)),
        ("I-10", "I-3", "I-G1", "I-G2", "I-G3"),
        {**AMBIGUOUS, "quorums": (4, 3, 2)},
        20000,
    ),
    Mutation(
        "G-11",
        "a guaranteed ledger is closed and sealed before everything is fully replicated",
        (
            (ClosingWriter, "_drained", lambda self: self.last_add_confirmed == self.last_add_pushed),
            (ClosingWriter, "_may_close_here", _always(True)),
        ),
        ("I-G2",),
        {**GWQ, "recoverers": 0, "close_at_ms": 40},
    ),
    Mutation(
        "G-12",
        "recovery of a guaranteed ledger starts at the LAC",
        ((FencePhase, "base", property(lambda self: max(self.inquiry.highest_lac, self._floor))),),
        ("I-G2",),
        {**GWQ, **{k: v for k, v in RECOVERIES.items() if k != "gwq"}, "weather.loss": 0.15},
        4000,
    ),
    Mutation(
        "RR-5",
        "copies are written without the recovery flag",
        ((BookieRules, "_passes_fences", _always(False)),),
        ("L-10", "L-4", "L-8", "L-7"),
        {"replicators": 1, "recoverers": 1},
    ),
    Mutation(
        "RR-7",
        "bookies are exchanged before the copies are there",
        ((FragmentRepair, "_go_on", _changes_first),),
        ("I-R1", "I-3", "I-4", "I-2"),
        {**CHANGES, "replicators": 2, "weather.loss": 0.02},
        4000,
    ),
)
