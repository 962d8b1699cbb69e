"""Broken versions of single methods of production classes, for the table in mutations.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bk_core.protocol.bookie.memory import MemoryBookieStorage
from bk_core.protocol.bookie.records import LedgerRecord
from bk_core.protocol.bookie.rules import BookieRules
from bk_core.protocol.effects import Complete, ReadLedger, SendAdds, WriteLedger
from bk_core.protocol.entry import layout
from bk_core.protocol.ledger.distribution import Distribution, in_at_least
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.ledger.recover.recovery import LedgerRecovery, RecoveryState
from bk_core.protocol.ledger.replication import FragmentRepair, FragmentSpan, eligible_fragments
from bk_core.protocol.ledger.write.acks import CountingWriter
from bk_core.protocol.ledger.write.base import WriterBase, WriterState
from bk_core.protocol.ledger.write.close import ClosingWriter
from bk_core.protocol.ledger.write.ensemble_change import ChangingWriter
from bk_core.protocol.ledger.write.failures import FailingWriter
from bk_core.protocol.ledger.write.lac import ConfirmingWriter
from bk_core.protocol.ledger.write.pending import AckSet
from bk_core.protocol.ledger.write.writer import LedgerWriter
from bk_core.protocol.log.clearing import ListClearing
from bk_core.protocol.log.effects import LedgerOpened, RecoverLedger
from bk_core.protocol.log.reader_order import LogReaderOrder
from bk_core.protocol.log.trimming import TrimBounds
from bk_core.protocol.wire.messages import Status

# --- bookies -------------------------------------------------------------------------------------------------------------


def fences_only_what_it_knows(self: BookieRules, record: LedgerRecord, key: bytes) -> LedgerRecord:
    return replace(record, key=key, fenced=True) if record.has_entries else record


def forgets_fences(self: MemoryBookieStorage, durable: Any) -> Any:
    for ledger_id, record in durable.records.items():
        durable.records[ledger_id] = replace(record, fenced=False)
    return durable


def tombstone_without_fence(self: BookieRules, record: LedgerRecord, now_ms: int) -> LedgerRecord:
    return LedgerRecord(record.ledger_id)


# --- writer --------------------------------------------------------------------------------------------------------------

_propose = ChangingWriter._propose
_take_back = ChangingWriter._take_back
_install = ChangingWriter._install
_acknowledged = CountingWriter._acknowledged
_commit = CountingWriter._commit
_lost = FailingWriter._lost
_force_answered = ConfirmingWriter._force_answered
_begin_close = ClosingWriter._begin_close
_set_ensemble = WriterBase._set_ensemble


def uses_before_commit(self: Any, failures: Any, chosen: Any, now_ns: int) -> Any:
    effects = _propose(self, failures, chosen, now_ns)
    change = self._change
    if change is None:
        return effects
    self.metadata, self.version = change.wanted, self.version + 1
    return [*effects, *self._install(change.ensemble, change.first_entry_id, change.round, now_ns)]


def rereads_when_unknown(self: Any) -> Any:
    waiting = self._closing if self._change is None else self._change
    waiting.reading = True
    return [ReadLedger(waiting.request)]


def accepts_its_own_version(self: Any, version: int) -> bool:
    return version < self.version


def remembers_departed(self: Any, ensemble: Any) -> None:
    _DEPARTED[id(self)] = {bookie: position for position, bookie in enumerate(self._ensemble)}
    _set_ensemble(self, ensemble)


_DEPARTED: dict[int, dict[str, int]] = {}


def counts_departed(self: Any, bookie: str, first: int, count: int, entries: int | None, now_ns: int) -> Any:
    position = _DEPARTED.get(id(self), {}).get(bookie)
    if bookie in self._position or position is None:
        return _acknowledged(self, bookie, first, count, entries, now_ns)
    stands_in = self._ensemble[position]
    del self._position[stands_in]
    self._position[bookie] = position
    try:
        return _acknowledged(self, bookie, first, count, entries, now_ns)
    finally:
        self._position.pop(bookie, None)
        self._position[self._ensemble[position]] = position


def remembers_who_had_it(self: Any, bookie: str, first: int, count: int, entries: int | None, now_ns: int) -> Any:
    vars(self).setdefault("heard", {}).setdefault(bookie, set()).update(range(first, first + count))
    return _acknowledged(self, bookie, first, count, entries, now_ns)


def counts_domains_of_departed(self: Any, pending: Any, excluded: Any) -> int:
    """WR-7 broken: every bookie that ever acknowledged an entry brings its domain."""
    domains: dict[str, int] = {}
    for bookie, entries in vars(self).get("heard", {}).items():
        domain = self._placement.domain_of(bookie)
        for entry_id in entries:
            domains[domain] = domains.get(domain, 0) | pending.between(entry_id, entry_id)
    return in_at_least(self.options.fault_domains_min, list(domains.values()))


def taken_up_to_the_lac(self: Any, first: int, count: int) -> bool:
    return first <= self.last_add_confirmed or bool(self._pending.overlapping(first, count))


def moves_the_lac_by_acks(self: Any, head: int, effects: Any) -> None:
    _commit(self, head, effects)
    self.last_add_confirmed, self._forced_length = head, self._length_up_to(head)


def forces_an_ack_quorum(self: Any, event: Any) -> Any:
    force = self._forces.get(event.request)
    if force is not None and event.status is Status.OK:
        answered = self.metadata.ensemble_size - len(force.requests) + 1
        if answered >= self.metadata.ack_quorum_size:
            self._forces = {request: other for request, other in self._forces.items() if other is not force}
            self._forces[event.request] = force
            force.requests.clear()
    return _force_answered(self, event)


def loses_only_what_is_outstanding(self: Any, bookie: str, status: Status, now_ns: int) -> Any:
    """WR-17 broken: a connection that breaks while every add is answered means nothing."""
    position = self._position.get(bookie)
    quiet = position is not None and not any(pending.acks.outstanding[position] for pending in self._pending)
    return [] if quiet else _lost(self, bookie, status, now_ns)


def commits_any_complete(self: Any) -> Any:
    """Out of order: the highest complete run completes, whatever is before it."""
    effects: list[Any] = []
    if self._may_commit():
        for pending in list(self._pending.after(self.acknowledged_head)):
            everything = pending.between(pending.first, pending.last)
            if self._quorum_complete(pending, ()) & everything == everything:
                self._commit(pending.last, effects)
    return effects


def commits_between_un_acks(self: Any, ensemble: Any, first: int) -> None:
    """EC-10: the commit runs after each entry that is un-acked, not after all of them."""
    changed = [p for p, bookie in enumerate(ensemble) if bookie != self._ensemble[p]]
    original = AckSet.move
    runs = list(self._pending)
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


def install_with_early(self: Any, ensemble: Any, first: int, settled: Any, now_ns: int) -> Any:
    effects = _install(self, ensemble, first, settled, now_ns)
    return [*_EARLY.pop(id(self), []), *effects]


def sends_by_difference(self: Any, now_ns: int) -> Any:
    """EC-11 broken: only what changed in this installation, so a bookie that came back gets nothing."""
    effects: list[Any] = []
    before = _BEFORE.get(id(self), ())
    for pending in self._pending:
        for position, bookie in enumerate(self._ensemble):
            if position < len(before) and before[position] != bookie:
                self._send_missing(pending, position, now_ns, effects)
    return effects


_BEFORE: dict[int, tuple[str, ...]] = {}


def take_back_noting(self: Any, ensemble: Any, first: int) -> None:
    _BEFORE[id(self)] = tuple(self._ensemble)
    _take_back(self, ensemble, first)


def closes_without_draining(self: Any, why: Any) -> Any:
    """CL-1 broken: the queue goes on committing while the closing write is on its way."""
    kept = list(self._pending)
    effects = _begin_close(self, why)
    for pending in kept:
        self._pending.add(pending)
        pending.waiting = True
    return [e for e in effects if isinstance(e, WriteLedger | Complete)]


def acknowledges_while_closing(self: Any, bookie: str, first: int, count: int, entries: int | None, now_ns: int) -> Any:
    state = self.state
    if state in (WriterState.CLOSING, WriterState.CLOSED):
        vars(self)["state"] = WriterState.OPEN  # past the table of transitions
    try:
        return _acknowledged(self, bookie, first, count, entries, now_ns)
    finally:
        if self.state is WriterState.OPEN:
            vars(self)["state"] = state


# --- recovery ------------------------------------------------------------------------------------------------------------

_metadata_read = LedgerRecovery._metadata_read
_maybe_close = LedgerRecovery._maybe_close
_package = LedgerWriter._package


def asks_current_ensemble(self: Any, question: Any, position: int) -> Any:
    if self.writer is not None:
        question.ensemble = self.writer.ensemble
    return self._requests.fence_read(question, position, question.entry_id)


def asks_without_fence(self: Any, question: Any, position: int) -> Any:
    return self._requests.plain_read(question, position, question.entry_id)


def unverified_lac(self: Any, body: bytes | None) -> int:
    return -1 if body is None else int(layout.HEADER.unpack_from(body)[2])


def stamps_moving_lac(self: Any, *arguments: Any) -> Any:
    frozen = self._frozen_lac
    if frozen is not None:
        self._frozen_lac = self.last_add_pushed
    try:
        return _package(self, *arguments)
    finally:
        self._frozen_lac = frozen


def persists_private_changes(self: Any, failures: Any, chosen: Any, now_ns: int) -> Any:
    effects = _propose(self, failures, chosen, now_ns)
    if self.recovering:
        first, ensemble = max(self.private_changes.items())
        return [*effects, WriteLedger(-1, self.metadata.with_ensemble(first, ensemble), self.version)]
    return effects


def length_of_nothing(self: Any) -> Any:
    if self.length is None:
        self.length = 0
    return self._write_barrier(self.barrier.take())


def overwrites_closed(self: Any, event: Any) -> Any:
    closing = self.state is RecoveryState.CLOSING and event.request == self._metadata_request and self._wanted is None
    if closing and event.metadata is not None and event.metadata.state is LedgerState.CLOSED:
        self.metadata, self.version = event.metadata, event.version
        return [self._write_metadata(self._closing_metadata(event.metadata.in_recovery()))]
    return _metadata_read(self, event)


def tells_early(self: Any) -> Any:
    effects = _maybe_close(self)
    return [Complete(self._token, e.metadata) if isinstance(e, WriteLedger) else e for e in effects] + effects


def counts_answers(self: Distribution, heard: Any) -> bool:
    return len(set(heard)) >= self.denials_needed


def always(value: Any) -> Callable[..., Any]:
    return lambda self, *arguments, **options: value


# --- re-replication --------------------------------------------------------------------------------------------------------


def changes_first(self: Any, now_ns: int) -> Any:
    return self._finish_copying() if self.exchanges else _go_on(self, now_ns)


_go_on = FragmentRepair._go_on
_repair_handle = FragmentRepair.handle


def copies_without_flag(self: Any, event: Any, now_ns: int) -> Any:
    effects = _repair_handle(self, event, now_ns)
    return [replace(e, run=replace(e.run, recovery=False)) if isinstance(e, SendAdds) else e for e in effects]


def all_fragments(metadata: LedgerMetadata) -> tuple[FragmentSpan, ...]:
    last = metadata.last_fragment
    guess = FragmentSpan(last.first_entry_id, last.first_entry_id + 5, last.ensemble)
    return eligible_fragments(metadata) if metadata.state is LedgerState.CLOSED else (*eligible_fragments(metadata), guess)


# --- logs ------------------------------------------------------------------------------------------------------------------


def takes_open_ledgers(self: Any, listed: Any, load: Any) -> Any:
    for segment in listed.live_segments:
        if segment.seq < self._bounds.cut(listed, load):
            listed = listed.close_live(segment.ledger_id, -1, 0, 0)
    return listed.trim(self._bounds.cut(listed, load), load)[0]


_write = ListClearing._write
_cut = TrimBounds.cut
_read_again = LogReaderOrder._read_again


def deletes_before_it_writes(self: Any, changed: Any, then: Any, again: Any) -> None:
    """LOG-11 broken: the list comes last."""
    doomed = [ledger_id for ledger_id in changed.condemned if ledger_id not in self.listed.condemned]
    self._delete(doomed, lambda gone: _write(self, changed, then, again))


def cuts_one_more(self: Any, listed: Any, load: Any) -> int:
    return min(listed.next_seq, _cut(self, listed, load) + 1)


def closes_nothing(self: Any, ledger_id: int, then: Any, otherwise: Any) -> None:
    then()


def looks_once(self: Any) -> None:
    """LOG-16 broken: who has read the list once waits for the next change of it, and for the one after that."""
    if self.listed is None:
        _read_again(self)
    else:
        self._await_list()


def opens_with_recovery(self: Any, segment: Any) -> None:
    self._ask(lambda request: RecoverLedger(request, segment.ledger_id), lambda ended: self._on_opened(_as_opened(ended), segment))


def _as_opened(ended: Any) -> Any:
    return LedgerOpened(ended.request, ended.outcome, True, ended.last_entry_id, ended.error)
