"""Checks ledgers and repairs them: the blocking side of ``bk_core.protocol.ledger.replication``.

A repair holds the ledger's replication lock, Apache's own, from before the first copy until its compare-and-set is definite (RR-11), so
that it and Apache's auto-recovery never copy one ledger at the same time. The lock is checked again right before each compare-and-set.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from bk_core.client.driver import Driver
from bk_core.client.operations import driven, wait_and_tell
from bk_core.client.repair.report import (
    LedgerReport,
    Moved,
    Progress,
    Refilled,
    RepairOptions,
    RepairReport,
)
from bk_core.errors import (
    BkError,
    BookieError,
    LedgerError,
    MetadataFormatError,
    NoSuchLedgerError,
    OperationTimeoutError,
    ReplicationError,
)
from bk_core.metadata.store import BookieView, Version
from bk_core.metadata.underreplication import ReplicationLock
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata
from bk_core.protocol.ledger.plausible import check_plausible
from bk_core.protocol.ledger.replication import (
    EntryRanges,
    Exchange,
    ExchangeGroup,
    FragmentRepair,
    FragmentReport,
    FragmentSpan,
    LedgerCheck,
    MetadataChange,
    eligible_fragments,
    exchanged_together,
    guaranteed,
    open_tail_without,
    span_now,
)
from bk_core.threads import Flag

if TYPE_CHECKING:
    from bk_core.client.client import BookKeeper

TARGETS_TRIED_MAX = 3  # another bookie takes the place of one that takes no copies
LOCK_POLL_S = 0.5
_AS_IN_SPAN: Mapping[int, BookieId] = MappingProxyType({})


def check_ledger(client: BookKeeper, ledger_id: int, options: RepairOptions) -> LedgerReport:
    """Check a ledger; it neither fences nor writes (RR-4). Raises NoSuchLedgerError."""
    return _Job(client, ledger_id, options).check()


def repair_ledger(client: BookKeeper, ledger_id: int, options: RepairOptions) -> RepairReport:
    """Repair a ledger (RR-1..RR-8, G-27). The report has what cannot be done now; this raises only if the metadata store or the ledger is
    in the way. Raises NoSuchLedgerError for one that was not there to begin with; its mark, if it has one, is taken away all the same."""
    job = _Job(client, ledger_id, options)
    report = job.repair()
    if job.missing is not None:
        raise job.missing
    return report


def repair_if_there(client: BookKeeper, ledger_id: int, options: RepairOptions) -> RepairReport:
    """Repair a ledger as ``repair_ledger`` does. The report of one that is gone says so (``deleted``)."""
    return _Job(client, ledger_id, options).repair()


@dataclass(frozen=True, slots=True)
class _Copied:
    """A fragment whose copies are confirmed. ``standing`` has the bookies that stand at positions of it before the exchange, where they are
    others than in ``span``, from which was copied. ``before`` is what was copied and exchanged before, to other bookies (RR-20), and
    ``given_back``, which both share, has the positions at which the bookie of ``span`` stands again."""

    machine: FragmentRepair
    span: FragmentSpan
    standing: Mapping[int, BookieId]
    before: _Copied | None = None
    given_back: set[int] = field(default_factory=set)

    @property
    def standing_then(self) -> Mapping[int, BookieId]:
        """The bookies that stand there once the exchange is made."""
        return {**self.standing, **self.machine.targets}

    @property
    def machines(self) -> tuple[FragmentRepair, ...]:
        return (*(() if self.before is None else self.before.machines), self.machine)


class _Job:
    """One check or repair of one ledger."""

    def __init__(self, client: BookKeeper, ledger_id: int, options: RepairOptions) -> None:
        self._client = client
        self._session = client._session
        self._limits = client.config.limits
        self.ledger_id = ledger_id
        self._options = options
        self._lock: ReplicationLock | None = None
        self._metadata: LedgerMetadata
        self._version: Version = -1
        self._registered: frozenset[BookieId] = frozenset()
        self._avoid: set[BookieId] = set()
        self._report = RepairReport(ledger_id)
        self._group = ExchangeGroup(0)
        self._copied: dict[int, _Copied] = {}  # by their first entries, those whose exchanges wait in the group
        self._loaded = False
        self.missing: NoSuchLedgerError | None = None  # the ledger was not there when the repair first looked

    # --- checking ----------------------------------------------------------------------------------------------------

    def check(self) -> LedgerReport:
        self._client.store.check_cluster()
        self._load()
        if self._options.full:
            check_plausible(self.ledger_id, self._metadata)
        fragments = tuple(self._check_many(eligible_fragments(self._metadata), full=self._options.full))
        tail = open_tail_without(self._metadata, self._registered)
        return LedgerReport(self.ledger_id, self._metadata, self._options.full, fragments, tail)

    def _load(self) -> None:
        """Load the metadata and the registry as they are now. Bookies named as lost count as gone."""
        metadata, self._version = self._client._load(self.ledger_id)
        self._loaded = True
        self._metadata = metadata.with_access(self._options.access)
        self._session.refresh_bookies()
        view = self._session.bookies()
        there = {*view.registered, *self._options.spared}
        if self._session.store.unregistered():  # a bookie without a registration may serve: only one that is named is lost
            there |= {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}
        self._registered = frozenset(there - self._options.lost)

    def _check(self, span: FragmentSpan, *, full: bool, positions: Collection[int] | None = None) -> FragmentReport:
        return self._check_many([span], full=full, positions=None if positions is None else lambda _: positions)[0]

    def _check_many(
        self, spans: Sequence[FragmentSpan], *, full: bool, positions: Callable[[FragmentSpan], Collection[int]] | None = None
    ) -> list[FragmentReport]:
        """Check several fragments at once (RR-15)."""
        machine = LedgerCheck(
            self.ledger_id,
            self._metadata,
            spans,
            None,
            registered=self._registered,
            full=full,
            batch=self._session.config.protocol == "v2",
            positions=positions,
            bytes_per_second=self._options.bytes_per_second,
            limits=self._limits,
        )
        total = sum(span.last_entry_id - span.first_entry_id + 1 for span in spans) * self._metadata.write_quorum_size
        shown = total if full and positions is None else None
        reports: list[FragmentReport] = self._run(
            machine, lambda: Progress(self.ledger_id, "check", machine.entries_checked, shown, machine.bytes_read)
        )
        return reports

    # --- repairing ---------------------------------------------------------------------------------------------------

    def repair(self) -> RepairReport:
        self._client.store.check_cluster()  # before a lock or a ledger of another cluster is touched (OWN-2)
        marks = self._session.store.underreplication()
        with self._locked() as locked:
            if not locked:
                return self._report
            mark = marks.mark_of(self.ledger_id)
            try:
                self._load()
                self._repair_tail()
                self._repair_fragments()
                self._fill()
            except NoSuchLedgerError as error:
                self._client.store.check_cluster()
                self._report.deleted = True
                self.missing = None if self._loaded else error
            except (LedgerError, BookieError, MetadataFormatError, OperationTimeoutError) as error:
                self._report.problems.append(str(error.args[0]))
            if mark is not None and self._report.is_complete and not self._options.only_lost:
                marks.unmark(mark)
        return self._report

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the ledger's replication lock; yield False if another process keeps it longer than we wait (RR-11)."""
        store = self._session.store.underreplication()
        deadline = time.monotonic() + self._options.lock_wait_s
        while (lock := store.lock(self.ledger_id, socket.gethostname())) is None:
            if time.monotonic() >= deadline:
                self._report.locked_by = store.lock_holder(self.ledger_id) or "another replicator"
                yield False
                return
            self._say(Progress(self.ledger_id, "wait"))
            time.sleep(min(LOCK_POLL_S, max(0.0, deadline - time.monotonic())))
        self._lock = lock
        try:
            yield True
        finally:
            self._lock = None
            lock.release()

    def _repair_tail(self) -> None:
        """Leave the writer time to replace the bookies itself, look again, then recover the ledger, if the caller asked for that (RR-3)."""
        lost = self._lost_from_tail()
        if lost and self._options.recover_open:
            lost = self._after_grace()
            if lost:
                self._say(Progress(self.ledger_id, "recover"))
                self._recover()
                self._load()
        elif lost:
            self._report.open_tail_lost = lost

    def _lost_from_tail(self) -> tuple[BookieId, ...]:
        lost = open_tail_without(self._metadata, self._registered)
        return tuple(bookie for bookie in lost if bookie in self._options.lost) if self._options.only_lost else lost

    def _after_grace(self) -> tuple[BookieId, ...]:
        """Return the bookies that are still lost when the grace period is over, or none as soon as the writer has replaced them."""
        changed = Flag()
        watch = self._session.store.watch_ledger(self.ledger_id, changed.set)
        try:
            deadline = time.monotonic() + self._options.grace_s
            while True:
                changed.clear()
                self._load()
                lost = self._lost_from_tail()
                left_s = deadline - time.monotonic()
                if not lost or left_s <= 0:
                    return lost
                self._say(Progress(self.ledger_id, "wait"))
                changed.wait(min(1.0, left_s))
        finally:
            watch.cancel()

    def _recover(self) -> None:
        access = self._metadata.access
        self._client.recover_ledger(self.ledger_id, password=access.password or b"", digest_type=access.digest_type).close()
        self._report.recovered = True

    def _repair_fragments(self) -> None:
        """Check all fragments first, several at once (RR-15); then repair those that need it, one after the other."""
        check_plausible(self.ledger_id, self._metadata)
        only_lost = self._options.only_lost
        spans = eligible_fragments(self._metadata, with_empty=only_lost)
        reports = [None] * len(spans) if only_lost else self._check_many(spans, full=self._options.full, positions=self._present)
        self._group = ExchangeGroup(len(spans))
        try:
            for span, report in zip(spans, reports, strict=True):
                self._repair_one(span_now(self._metadata, span), report)
        finally:
            self._exchange_group()

    def _repair_one(self, span: FragmentSpan, report: FragmentReport | None) -> None:
        lost = self._lost_positions(span)
        refill = {} if report is None else self._find_damage(span, report)
        if lost or refill:
            self._repair_fragment(span, lost, refill)
        if self._group.is_due:
            self._exchange_group()

    def _lost_positions(self, span: FragmentSpan) -> list[int]:
        lost = [position for position, bookie in enumerate(span.ensemble) if bookie not in self._registered]
        return [position for position in lost if span.ensemble[position] in self._options.lost] if self._options.only_lost else lost

    def _present(self, span: FragmentSpan) -> list[int]:
        return [position for position, bookie in enumerate(span.ensemble) if bookie in self._registered]

    def _find_damage(self, span: FragmentSpan, report: FragmentReport) -> dict[int, EntryRanges]:
        """Return the entries of which the available bookies have no good copy. A quick look that found something is followed by
        a full one."""
        bad = [replica.position for replica in report.replicas if not replica.is_good and replica.silent is None]
        if bad and not self._options.full:
            silent = [replica for replica in report.replicas if replica.silent is not None]
            thorough = self._check(span, full=True, positions=bad)
            report = FragmentReport(span, (*thorough.replicas, *silent))
        self._note_silence(report)
        found = {replica.position: replica.damaged | replica.unreadable for replica in report.replicas if replica.silent is None}
        return {position: ranges for position, ranges in found.items() if ranges}

    def _note_silence(self, report: FragmentReport) -> None:
        for replica in report.replicas:
            if replica.silent is not None:
                why = replica.silent.name.lower().replace("_", " ")
                is_away = replica.bookie in self._options.spared - self._session.bookies().registered
                state = "is away for now" if is_away else "is registered but gives no answer"
                text = f"{replica.bookie} {state} ({why})"
                if replica.is_refused:
                    self._report.not_admitting.add(replica.bookie)
                    text = f"{replica.bookie} does not admit this client"
                self._report.problems.append(f"{text}; its replica of fragment {report.span.first_entry_id} is not judged")

    def _repair_fragment(
        self,
        span: FragmentSpan,
        lost: list[int],
        refill: Mapping[int, EntryRanges],
        standing: Mapping[int, BookieId] = _AS_IN_SPAN,
        before: _Copied | None = None,
    ) -> Collection[int]:
        """Repair one fragment. A target that takes no copies is replaced by another one (RR-6, RR-7); any other failure is reported (RR-8).
        ``standing`` and ``before``: see ``_Copied``. Return the positions for which copies were made."""
        tried: set[BookieId] = set()
        for _ in range(TARGETS_TRIED_MAX):
            targets = self._targets(span, lost, standing)
            if lost and len(targets) < len(lost):
                without = ", ".join(span.ensemble[position] for position in lost if position not in targets)
                self._report.problems.append(f"no writable bookie can take the place of {without} in fragment {span.first_entry_id}")
            if not targets and not refill:
                return ()
            machine = FragmentRepair(
                self.ledger_id, self._metadata, self._version, span, None, targets=targets, refill=refill, exchange=False, **self._how()
            )
            try:
                self._copy(machine, span)
            except NoSuchLedgerError:
                raise
            except BkError as error:
                failed = set(machine.failed_bookies) & set(targets.values())
                if failed:
                    self._avoid |= failed
                    tried |= failed
                    continue
                self._report.problems.append(str(error.args[0]))
                return ()
            if machine.exchanges:
                exchanges = tuple(replace(one, old=standing.get(one.position, one.old)) for one in machine.exchanges)
                self._group.add(span.first_entry_id, exchanges, machine.bytes_copied)
                given_back = set() if before is None else before.given_back
                self._copied[span.first_entry_id] = _Copied(machine, span, standing, before, given_back)
            else:
                self._note(_Copied(machine, span, standing))
            return targets
        self._report.problems.append(f"no bookie took the copies of fragment {span.first_entry_id}: tried {', '.join(sorted(tried))}")
        return ()

    def _exchange_group(self) -> None:
        """Exchange the bookies of the group by one change, because everything in it is copied and confirmed (RR-7, RR-15). Copies on a
        bookie that is not writable any more are made elsewhere instead (RR-20)."""
        while self._group.exchanges:
            group, copied = self._group, self._copied
            self._group, self._copied = ExchangeGroup(group.fragments), {}
            early = {first: copied.pop(first) for first in self._leaving(copied, named=False)}
            for first_entry_id in early:
                del group.exchanges[first_entry_id]
            is_exchanged = False
            try:
                if group.exchanges:
                    self._change(group.intent)
                is_exchanged = True
                for first_entry_id, error in group.refused.items():
                    self._report.problems.append(str(error.args[0]))
                    del copied[first_entry_id]
                late = self._leaving(copied, named=True)
                for one in early.values():
                    self._copy_elsewhere(one, list(one.machine.targets), named=False)
                for first_entry_id, positions in late.items():
                    self._copy_elsewhere(copied[first_entry_id], positions, named=True)
            except NoSuchLedgerError:
                raise
            except BkError as error:
                self._report.problems.append(str(error.args[0]))
                for one in copied.values() if is_exchanged else ():
                    self._note(one)
                return
            for first_entry_id, one in copied.items():
                if first_entry_id not in self._copied:
                    self._note(one)

    def _leaving(self, copied: Mapping[int, _Copied], *, named: bool) -> dict[int, list[int]]:
        """Return the positions of fragments whose copies are on a bookie that is not registered as writable any more, by the first entry.
        One that is read-only stays if no other bookie can take its place. The metadata has the exchanges if they are ``named``."""
        view = self._session.store.bookies() if copied else BookieView((), ())
        found = {}
        for first_entry_id, one in copied.items():
            positions = [position for position, bookie in one.machine.targets.items() if bookie not in view.writable]
            self._avoid |= {one.machine.targets[position] for position in positions}
            standing = one.standing_then if named else one.standing
            if len(self._targets(one.span, positions, standing)) < len(positions):  # then those of bookies that are gone come first
                positions = [position for position in positions if one.machine.targets[position] not in view.registered]
            if positions:
                found[first_entry_id] = positions
        return found

    def _copy_elsewhere(self, one: _Copied, positions: list[int], *, named: bool) -> None:
        """Make copies at ``positions`` again, because whoever emptied their bookies may have looked at the ledger before it ``named`` them.
        The bookies that the fragment had are read, because these may end at any moment. Where no other bookie takes the copies, one that is
        there keeps its place, and one that is gone gives it back (RR-20)."""
        problems = len(self._report.problems)
        if not named and one.before is None:
            self._repair_fragment(span_now(self._metadata, one.span), positions, one.machine.refill)
            return
        standing = one.standing_then if named else one.standing
        before = one if named else one.before
        left = set(positions).difference(self._repair_fragment(one.span, positions, {}, standing, before))
        registered = self._session.store.bookies().registered
        gone = [position for position in sorted(left) if standing[position] not in registered]
        if not gone:
            del self._report.problems[problems:]
        gone = self._not_forgotten(one.span, gone)
        if gone:
            undo = tuple(Exchange(position, standing[position], one.span.ensemble[position]) for position in gone)
            self._change(partial(exchanged_together, exchanges={one.span.first_entry_id: undo}, refused={}))
            assert before is not None
            before.given_back.update(gone)
        if not named and before is not None and one.span.first_entry_id not in self._copied:
            self._note(before)

    def _not_forgotten(self, span: FragmentSpan, positions: list[int]) -> list[int]:
        """Return the positions whose bookies of before may get them back. One that was decommissioned meanwhile has no cookie any more, and
        its decommission has said that no ledger names it (RR-14): its place stays with the bookie that is gone, and the ledger incomplete.
        """
        if not positions:
            return []
        known = {*self._session.store.cookies(), *self._session.store.bookies().registered}
        return [position for position in positions if span.ensemble[position] in known]

    def _change(self, intent: Callable[[LedgerMetadata], LedgerMetadata | None]) -> None:
        change = MetadataChange(self.ledger_id, self._metadata, self._version, intent, None, self._limits)
        try:
            self._run(change, lambda: Progress(self.ledger_id, "copy", self._report.entries_copied, None, self._report.bytes_copied))
        finally:
            self._metadata, self._version = change.metadata, change.version

    def _targets(self, span: FragmentSpan, lost: list[int], standing: Mapping[int, BookieId]) -> dict[int, BookieId]:
        """Choose targets by the placement policy: bookies that are not in the fragment, not lost, and have not failed us (RR-6). One that
        stood there before, and is back, gets its place by being given it back (RR-20)."""
        avoid = {*self._avoid, *self._options.lost, *span.ensemble}
        ensemble = tuple(standing.get(position, bookie) for position, bookie in enumerate(span.ensemble))
        return self._session.placement.replace(ensemble, lost, avoid) if lost else {}

    def _how(self) -> dict[str, Any]:
        return {
            "batch": self._session.config.protocol == "v2",
            "bytes_per_second": self._options.bytes_per_second,
            "limits": self._limits,
        }

    def _copy(self, machine: FragmentRepair, span: FragmentSpan) -> None:
        total = span.last_entry_id - span.first_entry_id + 1 if machine.targets else None
        try:
            self._run(machine, lambda: Progress(self.ledger_id, "copy", _seen(machine), total, machine.bytes_copied))
        finally:
            self._report.not_admitting |= machine.not_admitting
            self._report.entries_copied += machine.entries_copied
            self._report.bytes_copied += machine.bytes_copied

    def _note(self, one: _Copied) -> None:
        span, first, distribution = one.span, one.span.first_entry_id, one.machine.distribution
        whole = EntryRanges(((first, span.last_entry_id),)) if not span.is_empty else EntryRanges()
        moved = {position: (old, new) for machine in one.machines for position, old, new in machine.exchanged_positions}
        for position, (old, new) in moved.items():
            if position not in one.given_back:
                self._report.moved.append(Moved(first, position, old, new, whole.count(distribution, position)))
        for machine in one.machines:
            for position, ranges in machine.refill.items():
                self._report.refilled.append(Refilled(first, position, span.ensemble[position], ranges.count(distribution, position)))

    def _fill(self) -> None:
        """Fill in a ledger with guaranteed write quorum (G-27). Older fragments are checked entry by entry first, because a plain client
        that recovered the ledger may have added several."""
        if self._options.only_lost or not guaranteed.needs_filling(self._metadata) or self._report.problems:
            return
        filled = self._metadata.fragments
        last = guaranteed.spans_to_fill(self._metadata)
        for span in eligible_fragments(self._metadata):
            if span not in last:
                damage = self._check(span, full=True)
                self._note_silence(damage)  # no seal for a replica that nobody has seen
                refill = {replica.position: replica.damaged | replica.unreadable for replica in damage.replicas if not replica.is_good}
            else:
                refill = guaranteed.everything(self._metadata, span)
            if refill:
                self._repair_fragment(span, [], refill)
        if len(self._report.problems) > 0:
            return
        change = MetadataChange(
            self.ledger_id, self._metadata, self._version, lambda stored: guaranteed.sealed(stored, filled), None, self._limits
        )
        try:
            self._run(change, lambda: Progress(self.ledger_id, "copy"))
        except ReplicationError as error:
            self._report.problems.append(str(error.args[0]))
            return
        self._report.sealed = True

    # --- machines ----------------------------------------------------------------------------------------------------

    def _say(self, progress: Progress) -> None:
        if self._options.on_progress is not None:
            self._options.on_progress(progress)

    def _run(self, machine: Any, look: Callable[[], Progress]) -> Any:
        """Drive a machine to its completion. Raises OperationTimeoutError if nothing moves for the operation timeout."""
        driver = _ReplicationDriver(self._session, self.ledger_id, self._lock)
        with driven(driver, machine, machine.start, self._metadata) as future:
            problem = f"nothing moved in ledger {self.ledger_id}"
            return wait_and_tell(future, look, self._say, self._session.config.operation_timeout_s, problem)


def _seen(machine: FragmentRepair) -> int:
    """Return the entries that are done with: copied, or readable nowhere."""
    return machine.entries_copied + len(machine.unreadable)


class _ReplicationDriver(Driver):
    """A driver whose adds have their own connections, so that no writer of this client takes their answers for its own. It writes only
    under the lock (RR-11)."""

    def __init__(self, session: Any, ledger_id: int, lock: ReplicationLock | None) -> None:
        super().__init__(session, ledger_id, add_kind=f"replication-{random.getrandbits(32)}")
        self._lock = lock

    def _store_ledger(self, data: bytes, version: int) -> Version:
        if self._lock is None or not self._lock.is_held():
            raise ReplicationError(f"the replication lock of ledger {self.ledger_id} was lost; repair it again", ledger=self.ledger_id)
        return super()._store_ledger(data, version)
