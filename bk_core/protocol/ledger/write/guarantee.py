"""Guaranteed write quorum: decides which failed bookies may be replaced, and deals with those that may not (replication-protocol.md 9).

Entries above the LAFR move into the next fragment, committed ones among them. A committed entry must keep an ack quorum of copies at
unchanged positions, because a recoverer that looks at the new ensemble only could rule the entry out otherwise. So a failed bookie that
such an entry needs is pinned (G-4): missing entries are sent to it again, and if that stays hopeless a candidate gets copies first and then
takes its place (G-7).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from bk_core.protocol.effects import Effect, Log, SendAdds
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.write.acks import CountingWriter
from bk_core.protocol.ledger.write.base import Staging, WriterState
from bk_core.protocol.ledger.write.pending import PendingAdds


class GuaranteeingWriter(CountingWriter):
    """The part of a writer that keeps the guarantee (G-4..G-10). A recovery pins nothing, because nothing of it is visible before it closes
    the ledger (G-13)."""

    def _pins(self) -> bool:
        return self._guaranteed and not self.recovering

    def _next_round(self) -> dict[int, BookieId]:
        """Return the failures to act on. A bookie to which entries are being sent again keeps its place until that fails too, or its
        successor is ready (G-7)."""
        failures = super()._next_round()
        if not self._pins():
            return failures
        return {p: b for p, b in failures.items() if self._failed_again(p) or self._staged_ready(p)}

    def _failed_again(self, position: int) -> bool:
        return any(pending.acks.failed[position] & pending.acks.unsent(position) for pending in self._pending)

    # --- pinning -----------------------------------------------------------------------------------------------------

    def _removable(self, positions: Sequence[int]) -> bool:
        """Return True if every entry from LAFR + 1 to LAC has an ack quorum without these positions (G-4 in its sharper form G-5).

        A candidate that has all of those entries stands in for the bookie it replaces (G-7).
        """
        lost = [p for p in positions if not self._staged_ready(p)]
        return self._pending.prefix(self.last_add_fully_replicated, self._in_quorum, lost) >= self.last_add_confirmed

    def _in_quorum(self, pending: PendingAdds, lost: Collection[int]) -> int:
        return pending.acks.in_quorum(self._distribution.ack_quorum_size, lost)

    def _removable_part(self, failures: Iterable[int]) -> list[int]:
        """Return as many of the failed positions as may be replaced together."""
        positions = list(failures)
        if not self._pins() or self._removable(positions):
            return positions
        part: list[int] = []
        for position in positions:
            if self._removable([*part, position]):
                part.append(position)
        return part

    def _pinned_wait(self, failures: Mapping[int, BookieId], now_ns: int) -> list[Effect]:
        """Keep these positions for now, and send their bookies again what they lack (G-7)."""
        effects: list[Effect] = []
        for position in failures:
            effects += self._schedule_resend(position, now_ns)
        return effects

    def _reconsider(self, now_ns: int) -> list[Effect]:
        """Evaluate the pins again after every acknowledgement (G-7; G-6: at decision time). While no bookie can be found, only staged ones
        are considered."""
        if self._change is not None or self.state is not WriterState.OPEN or not self._failures or not self._pins():
            return []
        removable = self._removable_part(self._next_round())
        return self._start_change(now_ns) if any(not self._starving() or self._staged_ready(p) for p in removable) else []

    # --- no bookies --------------------------------------------------------------------------------------------------

    def _starving(self) -> bool:
        """Return True if no bookie could be found a moment ago."""
        return self._look_again_ns is not None

    def _wait_for_bookies(self, now_ns: int) -> list[Effect]:
        """Wait for bookies: look again when the registry changes and from time to time. Never close, and never fail committed entries
        (G-10)."""
        self._look_again_ns = now_ns + self._limits.placement_retry_ns
        effects: list[Effect] = [
            Log("warning", f"ledger {self.ledger_id}: no writable bookie to replace a failed one with; waiting for one")
        ]
        self._arm_tick(now_ns, self._look_again_ns, effects)
        return effects

    def _look_again_due(self, now_ns: int) -> list[Effect]:
        return self._look_again(now_ns) if self._look_again_ns is not None and now_ns >= self._look_again_ns else []

    def _look_again(self, now_ns: int) -> list[Effect]:
        """Look for bookies again, because some came or went or time has passed (G-10)."""
        if self._look_again_ns is None or self.state is not WriterState.OPEN:
            return []
        self._look_again_ns = None
        effects = self._reconsider(now_ns)
        for position in list(self._retries):
            effects += self._stage_if_hopeless(position, now_ns)
        return effects

    # --- staging -----------------------------------------------------------------------------------------------------

    def _stage_if_hopeless(self, position: int, now_ns: int) -> list[Effect]:
        """Stage a candidate for a pinned bookie once more resends than the limit were in vain (G-7)."""
        hopeless = self._retries[position].tries > self._limits.pinned_retries_max
        settled = self._change is not None or position in self._staging or self._starving()
        if not hopeless or settled or not self._pins() or position not in self._failures or self._removable([position]):
            return []
        candidate = self._placement.replace(self._ensemble, [position], self._bookies_to_avoid(now_ns)).get(position)
        if candidate is None:
            return self._wait_for_bookies(now_ns)
        departing = self._ensemble[position]
        self._staging[position] = Staging(candidate, departing, now_ns)
        effects: list[Effect] = [Log("info", f"ledger {self.ledger_id}: copying to {candidate}, which is to replace {departing}")]
        for pending in self._pending:
            self._send_to_staged(pending, [position], effects)
        return effects

    def _send_to_staged(self, pending: PendingAdds, positions: Iterable[int], effects: list[Effect]) -> None:
        """Send regular adds of everything above the LAFR that the position holds and the candidate lacks."""
        for position in positions:
            staging = self._staging[position]
            wanted = pending.acks.write_set.held[position] & pending.after(self.last_add_fully_replicated)
            wanted &= ~staging.acked.get(pending.first, 0)
            if wanted:
                effects.append(SendAdds(staging.candidate, position, pending.run, (wanted & -wanted).bit_length() - 1))

    def _staged_position(self, bookie: BookieId) -> int | None:
        return next((p for p, staging in self._staging.items() if staging.candidate == bookie), None)

    def _staged_ready(self, position: int) -> bool:
        """Return True if the candidate has every committed entry of the position that is not fully replicated."""
        staging = self._staging.get(position)
        if staging is None or staging.departing != self._ensemble[position]:
            return False
        for pending in self._pending:
            entries = pending.between(self.last_add_fully_replicated + 1, self.last_add_confirmed)
            if pending.acks.write_set.held[position] & entries & ~staging.acked.get(pending.first, 0):
                return False
        return True

    def _staging_failed(self, position: int, now_ns: int) -> list[Effect]:
        """Try another candidate after the next pause. A candidate that the metadata is about to name is dealt with once it is named."""
        if self._change is not None and position in self._change.removed:
            return []
        candidate = self._staging.pop(position).candidate
        self._failed_at[candidate] = now_ns
        return [
            Log("info", f"ledger {self.ledger_id}: bookie {candidate} failed before it was used"),
            *self._schedule_resend(position, now_ns),
        ]

    def _staging_timeouts(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for position, staging in list(self._staging.items()):
            if now_ns - staging.progress_ns >= self._limits.add_timeout_ns and not self._staged_ready(position):
                effects += self._staging_failed(position, now_ns)
        return effects

    # --- candidates --------------------------------------------------------------------------------------------------

    def _forgive(self, came: Iterable[BookieId]) -> None:
        """Take bookies that have registered anew for candidates again: they were restarted since they failed (EC-6)."""
        for bookie in came:
            self._failed_at.pop(bookie, None)

    def _bookies_to_avoid(self, now_ns: int) -> list[BookieId]:
        """Return the bookies that failed a moment ago and have not registered since. They are no candidates, because two dead ones would be
        swapped for one another for ever otherwise (R37)."""
        failed = [b for b, at in self._failed_at.items() if now_ns - at < self._limits.add_timeout_ns]
        return [*failed, *(staging.candidate for staging in self._staging.values())]
