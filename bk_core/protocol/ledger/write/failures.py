"""Failures of bookies (answers that are not OK, lost connections, silence), and sending again."""

from __future__ import annotations

from bk_core.errors import AddQuorumTimeoutError, UnauthorizedError, WriteFailedError
from bk_core.protocol.effects import Effect, Log
from bk_core.protocol.ledger.distribution import in_at_least
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.write.base import Hits, Retry, WriterState
from bk_core.protocol.ledger.write.guarantee import GuaranteeingWriter
from bk_core.protocol.ledger.write.options import EnsembleChangeMode
from bk_core.protocol.ledger.write.pending import PendingAdds
from bk_core.protocol.wire.messages import Status


class FailingWriter(GuaranteeingWriter):
    """The part of a writer that deals with failures (WR-6, WR-10, WR-14, EC-1..EC-4)."""

    def _refused(self, bookie: BookieId, first: int, count: int, status: Status, now_ns: int) -> list[Effect]:
        """Handle an answer that is not OK (WR-6). It is dropped if the bookie holds no position any more (SM-3, EC-1)."""
        if self.state is not WriterState.OPEN:
            return []
        staged = self._staged_position(bookie)
        if bookie not in self._position and staged is None:
            return []
        if status is Status.FENCED and not self.recovering:
            return self._fenced()
        if status is Status.UNAUTHORIZED:
            return self._unauthorized(bookie, first, count)
        if staged is not None:
            return self._staging_failed(staged, now_ns)
        position = self._position[bookie]
        hits = list(self._pending.overlapping(first, count))
        if status is Status.TOO_MANY_REQUESTS and self._may_resend_busy(position):
            for pending, entries in hits:
                pending.acks.outstanding[position] &= ~entries
            return self._schedule_resend(position, now_ns)
        return self._failed(position, hits, status, now_ns)

    def _unauthorized(self, bookie: BookieId, first: int, count: int) -> list[Effect]:
        if first + count - 1 <= self.acknowledged_head:
            return [Log("warning", f"ledger {self.ledger_id}: bookie {bookie} refused the key for entry {first}, already committed")]
        message = f"bookie {bookie} refused the password of ledger {self.ledger_id} (entry {first}), or a client without `security`"
        return self._fatal(UnauthorizedError(message, ledger=self.ledger_id, entry=first, bookie=bookie))

    def _may_resend_busy(self, position: int) -> bool:
        retry = self._retries.get(position)
        return (retry.tries if retry is not None else 0) < self.options.busy_resends_max

    def _lost(self, bookie: BookieId, status: Status, now_ns: int) -> list[Effect]:
        """Fail every request that was outstanding on a lost connection."""
        if self.state is not WriterState.OPEN:
            return []
        staged = self._staged_position(bookie)
        if staged is not None:
            return self._staging_failed(staged, now_ns)
        position = self._position.get(bookie)
        if position is None:
            return []
        if self.needs_connections:
            return self._lost_before_force(bookie, status)
        return self._failed(position, [(p, p.acks.outstanding[position]) for p in self._pending], status, now_ns)

    @property
    def needs_connections(self) -> bool:
        """True if something was not forced. Only a connection that lasts shows that its bookie was not restarted meanwhile (WR-17)."""
        return self._deferred and self.state is WriterState.OPEN and self.last_add_pushed > self.last_add_confirmed

    def _lost_before_force(self, bookie: BookieId, status: Status) -> list[Effect]:
        """Handle the loss of a connection before a force. A bookie that comes back may have lost entries that it answered OK to, and would
        still say OK to the next force (WR-17)."""
        message = f"bookie {bookie} failed ({status.name}), and ledger {self.ledger_id} with deferred sync cannot replace it"
        return self._fatal(WriteFailedError(message, ledger=self.ledger_id, bookie=bookie))

    def _failed(self, position: int, hits: Hits, status: Status, now_ns: int) -> list[Effect]:
        effects, decide = self._record_failure(position, hits, status, now_ns)
        return effects + self._decide_change(now_ns) if decide else effects

    def _decide_change(self, now_ns: int) -> list[Effect]:
        """Begin an ensemble change unless one is in flight (EC-4)."""
        return self._start_change(now_ns) if self._change is None and self.state is WriterState.OPEN else []

    def _record_failure(self, position: int, hits: Hits, status: Status, now_ns: int) -> tuple[list[Effect], bool]:
        """Record the failure of these entries. The second result is True if a change must be considered now: an uncommitted entry failed
        (EC-2), not only committed ones (WR-10).

        Entries that the bookie has do not count.
        """
        hits = [(pending, entries & pending.acks.missing(position)) for pending, entries in hits]
        hits = [(pending, entries) for pending, entries in hits if entries]
        if not hits:
            return [], False
        urgent = self._mark_failed(position, hits)
        bookie = self._ensemble[position]
        known = position in self._failures or position in self._retries or self._is_silent(position, bookie)
        self._failed_at[bookie] = now_ns
        effects: list[Effect] = [] if known else [Log("info", f"ledger {self.ledger_id}: bookie {bookie} failed ({status.name})")]
        if self._deferred:
            return [*effects, *self._lost_before_force(bookie, status)], False
        self._retire()
        if self.options.ensemble_change is EnsembleChangeMode.DISABLED:
            return effects + (self._schedule_resend(position, now_ns) if urgent else []), False
        self._failures.update(self._to_replace(position, hits, status, urgent))
        return effects, urgent

    def _is_silent(self, position: int, bookie: BookieId) -> bool:
        """Return True if the bookie failed and has answered nothing since. With delayed changes every append meets its failure again."""
        failed_ns = self._failed_at.get(bookie)
        return failed_ns is not None and self._progress.get(position, (-1, -1))[1] <= failed_ns

    def _mark_failed(self, position: int, hits: Hits) -> bool:
        """Return True if an entry failed that still needs the position: an uncommitted one, or any above the LAFR (G-2)."""
        urgent = False
        for pending, entries in hits:
            pending.acks.fail(position, entries)
            late = 0 if self._guaranteed else entries & pending.between(pending.first, self.acknowledged_head)
            pending.acks.give_up(position, late)
            urgent = urgent or entries != late
        return urgent

    def _to_replace(self, position: int, hits: Hits, status: Status, urgent: bool) -> dict[int, BookieId]:
        """Return the failures that ask for a change of ensemble by themselves (EC-3). With delayed changes these are bookies that turned
        read-only; late failures never are (WR-10)."""
        if not self._is_delayed():
            return {position: self._ensemble[position]}
        if not urgent or status is not Status.READ_ONLY:
            return {}
        failed = [p for pending, entries in hits for p, failed in enumerate(pending.acks.failed) if failed & entries]
        return {p: self._ensemble[p] for p in dict.fromkeys(failed)}

    def _next_round(self) -> dict[int, BookieId]:
        """Return the failures to act on. With delayed changes this is computed anew each time, because a change or a later OK may have put
        the quorum within reach again (EC-3)."""
        failures = super()._next_round()
        if self._is_delayed():
            failures |= {p: self._ensemble[p] for p in self._beyond_reach()}
        return failures

    def _beyond_reach(self) -> list[int]:
        """Return the positions that failed entries which more than Qw - Qa positions failed (EC-3), or too many of some fault domains
        (WR-7)."""
        positions: dict[int, None] = {}
        for pending in self._pending.after(self.acknowledged_head):
            open_entries = pending.after(self.acknowledged_head)
            failed = [f & open_entries for f in pending.acks.failed]
            lost = in_at_least(self._distribution.denials_needed, failed)
            if self.options.fault_domains_min > 1:
                left = (held & ~f for held, f in zip(pending.acks.write_set.held, failed, strict=True))
                lost |= open_entries & ~self._spanning(left)
            positions |= dict.fromkeys(p for p, f in enumerate(failed) if f & lost)
        return list(positions)

    # --- time --------------------------------------------------------------------------------------------------------

    def _tick(self, now_ns: int) -> list[Effect]:
        self._tick_at = None
        effects: list[Effect] = []
        for step in (self._quorum_timeouts, self._add_timeouts, self._resend_due, self._look_again_due):
            if self.state is WriterState.OPEN:
                effects += step(now_ns)
        if self.state is WriterState.OPEN and len(self._pending):
            self._arm_tick(now_ns, self._next_tick(now_ns), effects)
        return effects

    def _next_tick(self, now_ns: int) -> int:
        shortest = self._limits.add_timeout_ns
        if self.options.quorum_timeout_ns is not None:
            shortest = min(shortest, self.options.quorum_timeout_ns)
        times = [now_ns + max(1, shortest // 4), *(r.due_ns for r in self._retries.values() if r.due_ns is not None)]
        return min(times if self._look_again_ns is None else [*times, self._look_again_ns])

    def _quorum_timeouts(self, now_ns: int) -> list[Effect]:
        """End the writer if an entry is not acknowledged in time, counted from its first send (WR-14)."""
        allowed = self.options.quorum_timeout_ns
        if allowed is None:
            return []
        for pending in self._pending.after(self.acknowledged_head):
            if now_ns - pending.first_sent_ns >= allowed:
                message = f"ledger {self.ledger_id}: entry {pending.last} was not acknowledged within {allowed / 1e9:g} s"
                return self._fatal(AddQuorumTimeoutError(message, ledger=self.ledger_id, entry=pending.last))
        return []

    def _add_timeouts(self, now_ns: int) -> list[Effect]:
        """Record the failure of positions that kept a run waiting longer than the add timeout (WR-6). Time in which the bookie answered
        earlier entries, or in which the way to it was full, does not count (LINK-1). For an entry that was passed over the time counts from
        its send (LINK-2)."""
        late: dict[int, list[tuple[PendingAdds, int]]] = {}
        for pending in self._pending:
            for position, since in enumerate(pending.sent_ns):
                entries = pending.acks.outstanding[position] & pending.acks.missing(position)
                if not entries:
                    continue
                reached, at = self._progress.get(position, (-1, 0))
                drained = self._moved_out.get(self._ensemble[position], at)
                waited_since = max(since, at, drained) if pending.last > reached else since
                if now_ns - waited_since >= self._limits.add_timeout_ns:
                    late.setdefault(position, []).append((pending, entries))
        effects: list[Effect] = []
        decide = False
        for position, hits in late.items():
            if self.state is WriterState.OPEN:
                more, urgent = self._record_failure(position, hits, Status.TIMEOUT, now_ns)
                effects += more
                decide = decide or urgent
        if decide:
            effects += self._decide_change(now_ns)
        return effects + self._staging_timeouts(now_ns)

    # --- sending again -----------------------------------------------------------------------------------------------

    def _schedule_resend(self, position: int, now_ns: int) -> list[Effect]:
        retry = self._retries.setdefault(position, Retry(self._limits.add_retry_ns))
        effects: list[Effect] = []
        if retry.due_ns is None:
            retry.due_ns = now_ns + retry.delay_ns
            self._arm_tick(now_ns, retry.due_ns, effects)
        return effects

    def _resend_due(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for position, retry in sorted(self._retries.items()):
            if retry.due_ns is None or now_ns < retry.due_ns:
                continue
            retry.due_ns = None
            retry.tries += 1
            retry.delay_ns = min(2 * retry.delay_ns, self._limits.add_retry_ns_max)
            for pending in self._pending:
                self._send_missing(pending, position, now_ns, effects)
            effects += self._stage_if_hopeless(position, now_ns)
        return effects
