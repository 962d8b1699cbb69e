"""The writer of one ledger, and the write-back half of a recovery.

Theory of operation. Entries arrive in runs and get consecutive ids (WR-1). A run is packaged once (WR-3) and sent to the bookies of its
write sets. Each entry keeps a set of positions that acknowledged it (bits in an int). The prefix of entries with Qa acknowledgements is
committed, in order (WR-8). A failed bookie is replaced by a new fragment that starts at LAC + 1 (section 4): until the
compare-and-set that records it is definite, nothing is committed (EC-8, block window); then acknowledgements of the positions that changed
are taken back, what is missing is sent, and only then the prefix is looked at again (EC-10).

A run stays in ``_runs`` after its commit until every position answered or failed, so that late failures are still noticed (WR-9, WR-10).

In recovery (``frozen_lac`` given) adds carry the recovery flag and the frozen LAC (D6, RC-13), and ensemble changes stay private to this
run of recovery: they are kept in ``private_changes`` and no metadata is written (RC-15).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from bk_core import kernels
from bk_core.errors import (
    BkError,
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    MetadataError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    PersistenceViolatedError,
    UnauthorizedError,
)
from bk_core.protocol.effects import (
    Complete,
    Effect,
    Fail,
    Log,
    ReadLedger,
    SendAdds,
    SendAndForget,
    SetTimer,
    WriteLedger,
)
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.events import AddReply, BookieLost, Event, LedgerRead, LedgerWritten, Outcome, TimerFired
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from bk_core.protocol.ledger.run import AddRun
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import Status, WriteLacRequest

RECOVERY_FLAGS = 0x0006  # recovery add, high priority (wire-protocol.md 3.4)


class WriterState(Enum):
    """SM-6."""

    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()
    CLOSE_FAILED = auto()
    FENCED = auto()
    FAILED = auto()


@dataclass(slots=True, eq=False)
class _Pending:
    """One run in flight. ``acks[i]`` holds the positions that acknowledged entry i; ``sent`` maps positions to (bookie, since ns)."""

    run: AddRun
    acks: list[int]
    payload_bytes: int
    lengths: memoryview | None  # payload offsets, to give back the length of drained entries (CL-1)
    sent: dict[int, tuple[BookieId, int]] = field(default_factory=dict)
    given_up: int = 0  # positions that failed after the commit (WR-10): no longer waited for


@dataclass(slots=True)
class _Change:
    """One ensemble change in flight: positions removed, the ensemble wanted, its first entry (EC-6, EC-7)."""

    round: list[int]
    removed: dict[int, BookieId]
    ensemble: tuple[BookieId, ...]
    first_entry_id: int
    wanted: LedgerMetadata
    request: int


class LedgerWriter:
    """Machine: adds to one open ledger. Outputs are lists of effects; see the module text.

    Tokens given to ``append`` complete with the id of the run's last entry.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        placement: RandomPlacement,
        limits: Limits | None = None,
        *,
        frozen_lac: int | None = None,
        base: int = -1,
    ) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.version = version
        self.state = WriterState.OPEN
        self.last_add_confirmed = base
        self.last_add_pushed = base
        self.length = 0
        self.private_changes: dict[int, tuple[BookieId, ...]] = {}
        self.pending_bytes = 0
        self.unretired_bytes = 0
        self.unretired_entries = 0
        self.error: BkError | None = None
        self._placement = placement
        self._limits = limits or Limits()
        self._frozen_lac = frozen_lac
        self._distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        self._ensemble: list[BookieId] = list(metadata.last_fragment.ensemble)
        self._runs: deque[_Pending] = deque()
        self._tokens: deque[tuple[int, Any]] = deque()
        self._failures: dict[int, BookieId] = {}
        self._failed_at: dict[BookieId, int] = {}
        self._progress: dict[int, tuple[int, int]] = {}  # position -> (last entry acknowledged, when)
        self._change: _Change | None = None
        self._changes = 0
        self._requests = 0
        self._master_key = digests.master_key(metadata.password)
        self._hmac_key = digests.hmac_key(metadata.password)
        self._close_tokens: list[Any] = []
        self._closing: LedgerMetadata | None = None
        self._close_request = -1
        self._stamped_lac = base
        self._tick_set = False
        self._explicit_set = False

    # --- application calls ---------------------------------------------------------------------------------------

    @property
    def recovering(self) -> bool:
        return self._frozen_lac is not None

    @property
    def idle(self) -> bool:
        """True when everything pushed is committed and no change is in flight."""
        return self.last_add_confirmed == self.last_add_pushed and self._change is None

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        return tuple(self._ensemble)

    def append(self, payloads: Any, offsets: Any, token: Any, now_ns: int, *, length_before: int | None = None) -> list[Effect]:
        """Admit a run (WR-1). ``offsets``: int64 byte positions, count + 1 of them. Recovery gives the stored running length."""
        if self.state is not WriterState.OPEN:
            return [Fail(token, self._refusal())]
        if length_before is not None:
            self.length = length_before
        first = self.last_add_pushed + 1
        lac = self.last_add_confirmed if self._frozen_lac is None else self._frozen_lac
        frames, frame_offsets = kernels.frame_adds(
            payloads,
            offsets,
            self.ledger_id,
            first,
            lac,
            self.length,
            int(self.metadata.digest_type),
            self._hmac_key,
            self._master_key,
            RECOVERY_FLAGS if self.recovering else 0,
        )
        bounds = memoryview(offsets).cast("B").cast("q")
        count = len(bounds) - 1
        payload_bytes = bounds[count] - bounds[0]
        run = AddRun(self.ledger_id, first, count, frames, memoryview(frame_offsets).cast("q"), self.recovering)
        pending = _Pending(run, [0] * count, payload_bytes, memoryview(bytes(bounds.cast("B"))).cast("q"))
        self.last_add_pushed = run.last_entry_id
        self.length += payload_bytes
        self.pending_bytes += payload_bytes
        self.unretired_bytes += payload_bytes
        self.unretired_entries += count
        self._stamped_lac = max(self._stamped_lac, lac)
        self._runs.append(pending)
        self._tokens.append((run.last_entry_id, token))
        effects: list[Effect] = []
        if self._failures and self._change is None:
            effects += self._start_change(now_ns)  # WR-4
        if self.state is WriterState.OPEN:
            self._send_missing(pending, now_ns, effects)
            self._arm_tick(effects)
        return effects

    def close(self, token: Any, now_ns: int) -> list[Effect]:
        """CL-1: stop admission, fail what is uncommitted, fix the end, write it. Later calls share the first one's result (CL-5)."""
        if self.state is WriterState.CLOSED:
            return [Complete(token, self.metadata)]
        if self.state in (WriterState.FENCED, WriterState.FAILED, WriterState.CLOSE_FAILED):
            return [Fail(token, self._refusal())]
        self._close_tokens.append(token)
        if self.state is WriterState.CLOSING:
            return []
        return self._begin_close(LedgerClosedError(f"ledger {self.ledger_id} was closed before these entries were acknowledged"))

    # --- input ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        match event:
            case AddReply(bookie, first, count, Status.OK):
                return self._acknowledged(bookie, first, count, now_ns)
            case AddReply(bookie, first, count, status):
                return self._refused(bookie, first, count, status, now_ns)
            case BookieLost(bookie, _):
                return self._lost(bookie, now_ns)
            case LedgerWritten():
                return self._written(event, now_ns)
            case LedgerRead():
                return self._reread(event, now_ns)
            case TimerFired("tick"):
                return self._tick(now_ns)
            case TimerFired("explicit-lac"):
                return self._explicit_lac()
            case TimerFired("metadata"):
                return self._repeat_metadata()
            case _:
                return []

    # --- acknowledgements ------------------------------------------------------------------------------------------

    def _acknowledged(self, bookie: BookieId, first: int, count: int, now_ns: int) -> list[Effect]:
        if bookie not in self._ensemble or not self._runs:
            return []
        position = self._ensemble.index(bookie)
        bit = 1 << position
        end = first + count
        distribution = self._distribution
        for pending in self._runs:
            run = pending.run
            low = max(first, run.first_entry_id) - run.first_entry_id
            high = min(end, run.first_entry_id + run.count) - run.first_entry_id
            if high <= 0:
                break
            if low >= high:
                continue
            acks = pending.acks
            for index in range(low, high):
                if distribution.holds(position, run.first_entry_id + index):
                    acks[index] |= bit
            if position in pending.sent:
                pending.sent[position] = (bookie, now_ns)  # a long run that moves is not late; a hole in it stops moving
        self._progress[position] = (end - 1, now_ns)
        effects = self._commit()
        self._retire()
        return effects

    def _commit(self) -> list[Effect]:
        """WR-8. Nothing is committed inside the window of a change (EC-8 block) or once the handle has stopped."""
        if self.state is not WriterState.OPEN or (self._change is not None and not self.recovering):
            return []
        needed = self._distribution.ack_quorum_size
        lac = self.last_add_confirmed
        for pending in self._runs:
            run = pending.run
            if run.last_entry_id <= lac:
                continue
            index = lac + 1 - run.first_entry_id
            acks = pending.acks
            while index < run.count and acks[index].bit_count() >= needed:
                index += 1
            lac = run.first_entry_id + index - 1
            if index < run.count:
                break
            self.pending_bytes -= pending.payload_bytes
        if lac == self.last_add_confirmed:
            return []
        self.last_add_confirmed = lac
        effects: list[Effect] = []
        while self._tokens and self._tokens[0][0] <= lac:
            last, token = self._tokens.popleft()
            effects.append(Complete(token, last))
        self._arm_explicit_lac(effects)
        return effects

    def _retire(self) -> None:
        """Forget committed runs from the front once nobody is waited for (WR-9)."""
        while self._runs and self._runs[0].run.last_entry_id <= self.last_add_confirmed:
            pending = self._runs[0]
            if not self._complete(pending):
                return
            self.unretired_bytes -= pending.payload_bytes
            self.unretired_entries -= pending.run.count
            self._runs.popleft()

    def _complete(self, pending: _Pending) -> bool:
        full, gone = self._distribution, pending.given_up
        if not full.striped:
            everyone = full.all_positions & ~gone
            return all(acks & everyone == everyone for acks in pending.acks)
        first = pending.run.first_entry_id
        return all(full.write_mask(first + i) & ~gone & ~acks == 0 for i, acks in enumerate(pending.acks))

    # --- failures --------------------------------------------------------------------------------------------------

    def _refused(self, bookie: BookieId, first: int, count: int, status: Status, now_ns: int) -> list[Effect]:
        """WR-6."""
        if status is Status.FENCED and not self.recovering:
            return self._fenced()
        if status is Status.UNAUTHORIZED:
            if first + count - 1 <= self.last_add_confirmed:
                return [Log("warning", f"ledger {self.ledger_id}: bookie {bookie} refused the key for entry {first}, already committed")]
            message = f"bookie {bookie} refused the password of ledger {self.ledger_id} (entry {first})"
            return self._fatal(UnauthorizedError(message, ledger=self.ledger_id, entry=first, bookie=bookie))
        return self._failed(bookie, now_ns, status.name)

    def _lost(self, bookie: BookieId, now_ns: int) -> list[Effect]:
        """A connection went down: every request outstanding on it failed."""
        if bookie not in self._ensemble:
            return []
        position = self._ensemble.index(bookie)
        if not any(self._missing(p, position) for p in self._runs):
            return []
        return self._failed(bookie, now_ns, "connection lost")

    def _missing(self, pending: _Pending, position: int) -> bool:
        """True if an entry of the run still waits for ``position``."""
        if pending.given_up >> position & 1:
            return False
        bit, first = 1 << position, pending.run.first_entry_id
        return any(not acks & bit and self._distribution.holds(position, first + i) for i, acks in enumerate(pending.acks))

    def _failed(self, bookie: BookieId, now_ns: int, why: str) -> list[Effect]:
        """EC-1, EC-2, WR-10: a valid failure starts a change if an uncommitted entry waits for it, else it is remembered."""
        if self.state is not WriterState.OPEN or bookie not in self._ensemble:
            return []
        position = self._ensemble.index(bookie)
        urgent = False
        for pending in self._runs:
            pending.sent.pop(position, None)
            if not self._missing(pending, position):
                continue
            if pending.run.last_entry_id <= self.last_add_confirmed:
                pending.given_up |= 1 << position
            else:
                urgent = True
        self._failures[position] = bookie
        self._failed_at[bookie] = now_ns
        self._retire()
        effects: list[Effect] = [Log("info", f"ledger {self.ledger_id}: bookie {bookie} failed ({why})")]
        if urgent and self._change is None:
            effects += self._start_change(now_ns)
        return effects

    def _tick(self, now_ns: int) -> list[Effect]:
        """Timeouts: a position that kept a run waiting longer than the add timeout has failed (WR-6)."""
        self._tick_set = False
        late: dict[BookieId, None] = {}
        for pending in self._runs:
            for position, (bookie, since) in pending.sent.items():
                reached, at = self._progress.get(position, (-1, 0))
                waited_since = max(since, at) if pending.run.first_entry_id > reached else since  # runs behind it wait their turn
                overdue = now_ns - waited_since >= self._limits.add_timeout_ns
                if overdue and self._ensemble[position] == bookie and self._missing(pending, position):
                    late[bookie] = None
        effects: list[Effect] = []
        for bookie in late:
            effects += self._failed(bookie, now_ns, "timeout")
        if self.state is WriterState.OPEN and self._runs:
            self._arm_tick(effects)
        return effects

    # --- ensemble change -------------------------------------------------------------------------------------------

    def _start_change(self, now_ns: int) -> list[Effect]:
        """EC-6, EC-7."""
        failures = {p: b for p, b in self._failures.items() if self._ensemble[p] == b}
        self._failures = dict(failures)
        if not failures:
            return []
        if self._changes >= self._limits.ensemble_changes_max:
            return self._fatal(
                NotEnoughBookiesError(
                    f"ledger {self.ledger_id} changed its ensemble {self._changes} times, the limit", ledger=self.ledger_id
                )
            )
        # A bookie that failed a moment ago is no candidate: two dead ones would be swapped for one another for ever (R37).
        avoid = [b for b, at in self._failed_at.items() if now_ns - at < self._limits.add_timeout_ns]
        chosen = self._placement.replace(self._ensemble, list(failures), avoid)
        if not chosen:
            gone = ", ".join(failures.values())
            end = "it stays IN_RECOVERY" if self.recovering else f"it ends at entry {self.last_add_confirmed}"
            return self._fatal(
                NotEnoughBookiesError(
                    f"ledger {self.ledger_id}: no writable bookie can replace {gone}; {end}",
                    ledger=self.ledger_id,
                    bookies=tuple(failures.values()),
                )
            )
        self._changes += 1
        ensemble = tuple(chosen.get(p, b) for p, b in enumerate(self._ensemble))
        first = self.last_add_confirmed + 1
        removed = {p: failures[p] for p in chosen}
        if self.recovering:
            self.private_changes[first] = ensemble  # RC-15: kept from the store until the closing compare-and-set
            return self._install(ensemble, list(failures), now_ns)
        wanted = self.metadata.with_ensemble(first, ensemble)
        self._requests += 1
        self._change = _Change(list(failures), removed, ensemble, first, wanted, self._requests)
        return [WriteLedger(self._requests, wanted, self.version)]

    def _install(self, ensemble: Sequence[BookieId], settled: Sequence[int], now_ns: int) -> list[Effect]:
        """EC-10: un-ack everything, then send what is missing, then close the window and commit.

        ``settled`` are the failed positions of this round: one that found no replacement is simply sent to again.
        """
        changed = {p for p, bookie in enumerate(ensemble) if bookie != self._ensemble[p]}
        keep = ~sum(1 << p for p in changed)
        self._ensemble = list(ensemble)
        for position in (*changed, *settled):
            self._failures.pop(position, None)
        for pending in self._runs:
            self._take_back(pending, changed, keep)
        effects: list[Effect] = []
        for pending in self._runs:
            if pending.run.last_entry_id > self.last_add_confirmed:
                self._send_missing(pending, now_ns, effects)
        self._change = None
        effects += self._commit()
        self._retire()
        if self._still_urgent():
            effects += self._start_change(now_ns)  # EC-15
        return effects

    def _still_urgent(self) -> bool:
        return self.state is WriterState.OPEN and any(
            self._ensemble[p] == b and any(r.run.last_entry_id > self.last_add_confirmed and self._missing(r, p) for r in self._runs)
            for p, b in self._failures.items()
        )

    def _send_missing(self, pending: _Pending, now_ns: int, effects: list[Effect]) -> None:
        """EC-11: for every position of the run that has not acknowledged and has nothing outstanding, send."""
        start = max(0, self.last_add_confirmed + 1 - pending.run.first_entry_id)
        for position, bookie in enumerate(self._ensemble):
            if position in pending.sent:
                continue
            bit, first = 1 << position, pending.run.first_entry_id
            if all(pending.acks[i] & bit or not self._distribution.holds(position, first + i) for i in range(start, pending.run.count)):
                continue
            pending.sent[position] = (bookie, now_ns)
            effects.append(SendAdds(bookie, position, pending.run, start))

    # --- metadata answers --------------------------------------------------------------------------------------------

    def _written(self, event: LedgerWritten, now_ns: int) -> list[Effect]:
        if self.state is WriterState.CLOSING:
            return self._close_written(event) if event.request == self._close_request else []
        change = self._change
        if change is None or event.request != change.request or self.state is not WriterState.OPEN:
            return []
        match event.outcome:
            case Outcome.OK:
                self.metadata, self.version = change.wanted, event.version
                line = f"ledger {self.ledger_id}: entries from {change.first_entry_id} on {', '.join(change.ensemble)}"
                return [Log("info", line), *self._install(change.ensemble, change.round, now_ns)]
            case Outcome.UNKNOWN:
                return [SetTimer("metadata", self._limits.metadata_retry_ns)]  # META-12
            case Outcome.CONFLICT:
                return [ReadLedger(change.request)]
            case Outcome.NO_SUCH_LEDGER:
                return self._stop(WriterState.FAILED, NoSuchLedgerError(f"ledger {self.ledger_id} was deleted while being written"))
            case Outcome.REFUSED:
                return self._fatal(_store_error(event.error, self.ledger_id))

    def _repeat_metadata(self) -> list[Effect]:
        """META-12: the byte-identical request at the same version, until the outcome is definite."""
        if self.state is WriterState.CLOSING and self._closing is not None:
            return [WriteLedger(self._close_request, self._closing, self.version)]
        if self._change is not None and self.state is WriterState.OPEN:
            return [WriteLedger(self._change.request, self._change.wanted, self.version)]
        return []

    def _reread(self, event: LedgerRead, now_ns: int) -> list[Effect]:
        """The stored metadata after a conflict (EC-9, CL-4)."""
        if self.state is WriterState.CLOSING:
            return self._close_reread(event) if event.request == self._close_request else []
        change = self._change
        if change is None or event.request != change.request or self.state is not WriterState.OPEN:
            return []
        if event.outcome is Outcome.NO_SUCH_LEDGER:
            return self._stop(WriterState.FAILED, NoSuchLedgerError(f"ledger {self.ledger_id} was deleted while being written"))
        if event.outcome is not Outcome.OK or event.metadata is None:
            return (
                [ReadLedger(change.request)] if event.outcome is Outcome.UNKNOWN else self._fatal(_store_error(event.error, self.ledger_id))
            )
        stored = event.metadata
        if stored.state is LedgerState.IN_RECOVERY:
            self.metadata, self.version = stored, event.version
            return self._fenced()
        if stored.state is LedgerState.CLOSED:
            self.metadata, self.version = stored, event.version
            error = LedgerClosedError(
                f"ledger {self.ledger_id} was closed at entry {stored.last_entry_id} by another client", ledger=self.ledger_id
            )
            return self._stop(WriterState.FAILED, error)
        self.metadata, self.version = stored, event.version
        held = [p for p, b in change.removed.items() if stored.last_fragment.ensemble[p] == b]
        self._change = None
        if not held:
            return self._install(stored.last_fragment.ensemble, change.round, now_ns)
        return self._adopt(stored.last_fragment.ensemble) + self._start_change(now_ns)

    def _adopt(self, ensemble: Sequence[BookieId]) -> list[Effect]:
        """Positions that a foreign tool replaced: their acknowledgements no longer count; what is missing goes out with the change."""
        changed = {p for p, b in enumerate(ensemble) if b != self._ensemble[p]}
        keep = ~sum(1 << p for p in changed)
        for pending in self._runs:
            self._take_back(pending, changed, keep)
        self._ensemble = list(ensemble)
        return []

    def _take_back(self, pending: _Pending, changed: set[int], keep: int) -> None:
        """EC-12: entries above LAC lose the acknowledgements of changed positions; entries up to LAC belong to the old fragment."""
        start = min(max(0, self.last_add_confirmed + 1 - pending.run.first_entry_id), pending.run.count)
        acks = pending.acks
        for index in range(start):
            acks[index] |= ~keep & self._distribution.all_positions
        for index in range(start, pending.run.count):
            acks[index] &= keep
        if start < pending.run.count:
            pending.given_up &= keep
        for position in changed:
            pending.sent.pop(position, None)

    # --- the end -----------------------------------------------------------------------------------------------------

    def _fenced(self) -> list[Effect]:
        """WR-11, D1: stop at once, touch no metadata."""
        error = LedgerFencedError(
            f"ledger {self.ledger_id} is being recovered by another client; "
            f"entries after {self.last_add_confirmed} may or may not be part of it",
            ledger=self.ledger_id,
            entry=self.last_add_confirmed,
        )
        return self._stop(WriterState.FENCED, error)

    def _fatal(self, error: BkError) -> list[Effect]:
        """WR-12: fail the queue; close at LAC if the ledger is still ours to close."""
        if self.recovering or self.metadata.state is not LedgerState.OPEN:
            return self._stop(WriterState.FAILED, error)
        self.error = error
        return [Log("warning", str(error)), *self._begin_close(error)]

    def _stop(self, state: WriterState, error: BkError) -> list[Effect]:
        self.state, self.error = state, error
        self._change = None
        effects: list[Effect] = [Fail(token, error) for _, token in self._tokens]
        effects += [Fail(token, error) for token in self._close_tokens]
        self._tokens.clear()
        self._close_tokens.clear()
        self._forget_runs()
        return effects

    def _forget_runs(self) -> None:
        self._runs.clear()
        self.pending_bytes = self.unretired_bytes = self.unretired_entries = 0

    def _begin_close(self, why: BkError) -> list[Effect]:
        self.state = WriterState.CLOSING
        self._change = None  # CL-2: the closing compare-and-set settles it
        for pending in self._runs:
            keep = min(max(0, self.last_add_confirmed + 1 - pending.run.first_entry_id), pending.run.count)
            if keep < pending.run.count and pending.lengths is not None:
                self.length -= pending.lengths[pending.run.count] - pending.lengths[keep]
        effects: list[Effect] = [Fail(token, why) for _, token in self._tokens]
        self._tokens.clear()
        self._forget_runs()
        self._requests += 1
        self._close_request = self._requests
        self._closing = self.metadata.closed(self.last_add_confirmed, self.length)
        return [*effects, WriteLedger(self._close_request, self._closing, self.version)]

    def _close_written(self, event: LedgerWritten) -> list[Effect]:
        assert self._closing is not None
        match event.outcome:
            case Outcome.OK:
                self.metadata, self.version = self._closing, event.version
                return self._closed()
            case Outcome.UNKNOWN:
                return [SetTimer("metadata", self._limits.metadata_retry_ns)]
            case Outcome.CONFLICT:
                return [ReadLedger(self._close_request)]
            case Outcome.NO_SUCH_LEDGER:
                return self._close_failed(NoSuchLedgerError(f"ledger {self.ledger_id} was deleted before it was closed"))
            case Outcome.REFUSED:
                return self._close_failed(_store_error(event.error, self.ledger_id))

    def _close_reread(self, event: LedgerRead) -> list[Effect]:
        """CL-4."""
        assert self._closing is not None
        if event.outcome is Outcome.UNKNOWN:
            return [ReadLedger(self._close_request)]
        if event.outcome is Outcome.NO_SUCH_LEDGER:
            return self._close_failed(NoSuchLedgerError(f"ledger {self.ledger_id} was deleted before it was closed"))
        if event.metadata is None:
            return self._close_failed(_store_error(event.error, self.ledger_id))
        stored, mine = event.metadata, self._closing.last_entry_id
        self.metadata, self.version = stored, event.version
        if stored.state is LedgerState.OPEN:
            self._closing = stored.closed(mine, self._closing.length)
            return [WriteLedger(self._close_request, self._closing, self.version)]
        if stored.state is LedgerState.IN_RECOVERY:
            error = LedgerFencedError(
                f"ledger {self.ledger_id} is being recovered by another client, which will close it", ledger=self.ledger_id
            )
            return self._close_failed(error)
        if stored.last_entry_id == mine:
            note: list[Effect] = []
            if stored.length != self._closing.length:
                note = [
                    Log("warning", f"ledger {self.ledger_id}: closed elsewhere with length {stored.length}, here {self._closing.length}")
                ]
            return note + self._closed()
        if stored.last_entry_id < mine:
            message = f"ledger {self.ledger_id} was closed at entry {stored.last_entry_id}, below acknowledged entry {mine}"
            return [Log("error", message), *self._close_failed(PersistenceViolatedError(message, ledger=self.ledger_id))]
        message = f"ledger {self.ledger_id} was closed at entry {stored.last_entry_id} by another client; this writer ended at {mine}"
        return self._close_failed(MetadataConflictError(message, ledger=self.ledger_id))

    def _closed(self) -> list[Effect]:
        self.state = WriterState.CLOSED
        done: list[Effect] = [Complete(token, self.metadata) for token in self._close_tokens]
        self._close_tokens.clear()
        return done

    def _close_failed(self, error: BkError) -> list[Effect]:
        """CL-7."""
        self.state, self.error = WriterState.CLOSE_FAILED, error
        failed: list[Effect] = [Fail(token, error) for token in self._close_tokens]
        self._close_tokens.clear()
        return failed

    def _refusal(self) -> BkError:
        if self.error is not None:
            return self.error
        return LedgerClosedError(f"ledger {self.ledger_id} is {self.state.name.lower()}: no more entries", ledger=self.ledger_id)

    # --- timers --------------------------------------------------------------------------------------------------------

    def _arm_tick(self, effects: list[Effect]) -> None:
        if not self._tick_set:
            self._tick_set = True
            effects.append(SetTimer("tick", max(1, self._limits.add_timeout_ns // 4)))

    def _arm_explicit_lac(self, effects: list[Effect]) -> None:
        if not self._explicit_set and not self.recovering and self.last_add_confirmed > self._stamped_lac:
            self._explicit_set = True
            effects.append(SetTimer("explicit-lac", self._limits.explicit_lac_ns))

    def _explicit_lac(self) -> list[Effect]:
        """WR-16: tell all bookies of the ensemble, unless a newer add already did."""
        self._explicit_set = False
        lac = self.last_add_confirmed
        if self.state is not WriterState.OPEN or lac <= self._stamped_lac:
            return []
        self._stamped_lac = lac
        body = layout.encode_lac_packet(self.ledger_id, lac, self.metadata.digest_type, self._hmac_key)
        return [SendAndForget(b, WriteLacRequest(0, self.ledger_id, lac, self._master_key, body)) for b in self._ensemble]


def _store_error(error: Exception | None, ledger_id: int) -> BkError:
    if isinstance(error, BkError):
        return error
    return MetadataError(f"the metadata of ledger {ledger_id} could not be written: {error}", ledger=ledger_id)
