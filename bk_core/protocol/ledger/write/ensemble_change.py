"""Ensemble changes: decide, store, install (replication-protocol.md 4).

A change is decided in one step from the failures recorded so far; there is one at a time (EC-4). From the decision until the
compare-and-set is definite the window is open: adds go to the old ensemble, acknowledgements are recorded, and ``_positions_to_exclude``
and ``_window_blocks`` decide what may be committed (EC-8). Installation has three phases inside one input step: un-ack, send, commit
(EC-10).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bk_core.errors import LedgerClosedError, NotEnoughBookiesError, WriteFailedError
from bk_core.protocol.effects import Effect, Log, LookForBookies, ReadLedger, SetTimer, WriteLedger
from bk_core.protocol.events import LedgerRead, LedgerWritten, Outcome
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.write.base import Change, WriterState
from bk_core.protocol.ledger.write.failures import FailingWriter


class ChangingWriter(FailingWriter):
    """The part of a writer that changes the ensemble (EC-4..EC-16, META-11..META-14)."""

    # --- decision ----------------------------------------------------------------------------------------------------

    def _start_change(self, now_ns: int, *, has_looked: bool = False) -> list[Effect]:
        """Begin a change for the failures recorded so far, or end the writer if there were too many changes (EC-5).

        While bookies are looked for, nothing is decided. ``has_looked`` is True for the decision after that.
        """
        failures = self._next_round()
        if not failures or self._look is not None:
            return []
        if self._changes >= self._limits.ensemble_changes_max:  # EC-5
            message = f"ledger {self.ledger_id} changed its ensemble {self._changes} times, the limit"
            return self._fatal(WriteFailedError(message, ledger=self.ledger_id))
        removable = self._removable_part(failures)
        chosen = self._replacements(removable, now_ns)
        if not chosen:
            pinned = not removable or self._starving()
            return self._pinned_wait(failures, now_ns) if pinned else self._without_candidate(failures, now_ns, has_looked)
        self._changes += 1
        effects = self._propose(failures, chosen, now_ns)
        if self._pins():
            effects += self._pinned_wait({p: b for p, b in failures.items() if p not in chosen}, now_ns)
        return effects

    def _replacements(self, positions: Sequence[int], now_ns: int) -> dict[int, BookieId]:
        """Return a replacement for as many positions as possible; a position without a candidate stays as it is (EC-6). Staged positions
        have theirs already (G-7)."""
        chosen = {p: self._staging[p].candidate for p in positions if self._staged_ready(p)}
        ensemble = [chosen.get(p, bookie) for p, bookie in enumerate(self._ensemble)]
        others = [p for p in positions if p not in chosen and not self._starving()]
        return chosen | (self._placement.replace(ensemble, others, self._bookies_to_avoid(now_ns)) if others else {})

    def _without_candidate(self, failures: Mapping[int, BookieId], now_ns: int, has_looked: bool) -> list[Effect]:
        """Deal with failures for which no bookie is left. What the placement knows may be a moment old, so the registered bookies are
        looked at first, once for each decision. If there is still none, a writer closes the ledger at LAC, which needs no bookie (EC-6),
        and a recovery stops (RC-15). A guaranteed ledger waits (G-10)."""
        if self._pins():
            return self._wait_for_bookies(now_ns) + self._pinned_wait(failures, now_ns)
        if not has_looked:
            self._look = self._request()
            return [LookForBookies(self._look)]
        gone = ", ".join(failures.values())
        end = "it stays IN_RECOVERY" if self.recovering else f"it ends at entry {self.last_add_confirmed}"
        message = f"ledger {self.ledger_id}: no writable bookie can replace {gone}; {end}"
        return self._fatal(NotEnoughBookiesError(message, ledger=self.ledger_id, bookies=tuple(failures.values())))

    def _looked_for(self, request: int, now_ns: int) -> list[Effect]:
        """Decide about what is recorded by now, after the registered bookies were looked at (EC-6). If the failures went away meanwhile, or
        the writer has ended, there is nothing to decide."""
        if request != self._look:
            return []
        self._look = None
        return self._start_change(now_ns, has_looked=True) if self.state is WriterState.OPEN else []

    def _propose(self, failures: dict[int, BookieId], chosen: Mapping[int, BookieId], now_ns: int) -> list[Effect]:
        """Ask for the change to be stored (EC-7). In a recovery it stays in this run until the closing compare-and-set (RC-15)."""
        ensemble = tuple(chosen.get(p, bookie) for p, bookie in enumerate(self._ensemble))
        first = self._first_entry_of_change()
        if self.recovering:
            self.private_changes[first] = ensemble
            return self._install(ensemble, first, failures, now_ns)
        wanted = self.metadata.with_ensemble(first, ensemble)
        removed = {p: failures[p] for p in chosen}
        self._change = Change(failures, removed, ensemble, first, wanted, self._request())
        return [WriteLedger(self._change.request, wanted, self.version)]

    # --- installation ------------------------------------------------------------------------------------------------

    def _install(self, ensemble: Sequence[BookieId], first: int, settled: Iterable[int], now_ns: int) -> list[Effect]:
        """Install the new ensemble: all of the first phase comes before any of the second, and all of that before the third (EC-10).

        ``settled`` are the failed positions of this round. A position that found no replacement is simply sent to again (EC-11).
        """
        if not self._pins():
            for position in settled:
                self._failures.pop(position, None)
        self._take_back(ensemble, first)
        return self._send_all_missing(now_ns) + self._close_window(now_ns)

    def _take_back(self, ensemble: Sequence[BookieId], first: int) -> None:
        """Take back the acknowledgements of bookies that no longer hold their position, for the entries from ``first`` on (EC-10 (1),
        EC-12, G-9).

        Some entries may thereby fall below Qa although they had reached it; they were never acknowledged to the application (EC-14).
        Entries that were staged are credited (G-7).
        """
        changed = [p for p, bookie in enumerate(ensemble) if bookie != self._ensemble[p]]
        self._set_ensemble(ensemble)
        for position in changed:
            self._failures.pop(position, None)
            self._retries.pop(position, None)
            self._progress.pop(position, None)
            staging = self._staging.pop(position, None)
            credit = staging.acked if staging is not None and staging.candidate == ensemble[position] else {}
            for pending in self._pending:
                entries = pending.after(first - 1)
                pending.acks.move(position, entries)
                pending.acks.acknowledge(position, credit.get(pending.first, 0) & entries)
        for position, staging in list(self._staging.items()):
            if staging.candidate in self._position:  # another change put it into the ensemble
                del self._staging[position]

    def _send_all_missing(self, now_ns: int) -> list[Effect]:
        """Send every entry to every position that lacks it, not only to positions that changed (EC-10 (2), EC-11). In a guaranteed ledger,
        bookies that failed are sent to again after their pause (G-7)."""
        positions = [p for p in range(len(self._ensemble)) if not (self._pins() and p in self._failures)]
        effects: list[Effect] = []
        for pending in self._pending:
            for position in positions:
                self._send_missing(pending, position, now_ns, effects)
        return effects

    def _close_window(self, now_ns: int) -> list[Effect]:
        """Commit what the change allows (EC-10 (3)), and begin the next round if failures came in meanwhile (EC-15)."""
        self._change = None
        effects = self._advance()
        self._retire()
        if self._next_round_is_urgent():
            effects += self._start_change(now_ns)
        return effects + self._close_if_drained()

    def _next_round_is_urgent(self) -> bool:
        """Return True if an entry that is not done lacks a failed bookie. Late failures alone wait for the next add (WR-10, EC-16)."""
        done = self.last_add_fully_replicated if self._guaranteed else self.acknowledged_head
        return any(pending.acks.failed[p] & pending.after(done) for p in self._next_round() for pending in self._pending.after(done))

    # --- answers of the store ----------------------------------------------------------------------------------------

    def _change_written(self, change: Change, event: LedgerWritten, now_ns: int) -> list[Effect]:
        """Handle the outcome of the compare-and-set (EC-9)."""
        match event.outcome:
            case Outcome.OK:
                self.metadata, self.version = change.wanted, event.version
                line = f"ledger {self.ledger_id}: entries from {change.first_entry_id} on {', '.join(change.ensemble)}"
                return [Log("info", line), *self._install(change.ensemble, change.first_entry_id, change.round, now_ns)]
            case Outcome.UNKNOWN:
                return self._after_unknown()
            case Outcome.CONFLICT:
                change.reading = True
                return [ReadLedger(change.request)]
            case Outcome.NO_SUCH_LEDGER:
                return self._stop(WriterState.FAILED, self._deleted())
            case _:  # REFUSED
                return self._fatal(self._store_error(event.error))

    def _after_unknown(self) -> list[Effect]:
        """Send the identical request again later, and never look at what is stored (META-12)."""
        return [SetTimer("metadata", self._limits.metadata_retry_ns)]

    def _change_reread(self, change: Change, event: LedgerRead, now_ns: int) -> list[Effect]:
        """Handle the metadata read after a conflict (EC-9). It shows the fate of every earlier attempt at the old version (META-13)."""
        if event.outcome is Outcome.NO_SUCH_LEDGER:
            return self._stop(WriterState.FAILED, self._deleted())
        if event.outcome is Outcome.UNKNOWN or (event.metadata is not None and self._stale(event.version)):
            return [SetTimer("metadata", self._limits.metadata_retry_ns)]
        if event.metadata is None:
            return self._fatal(self._store_error(event.error))
        self.metadata, self.version = event.metadata, event.version
        match event.metadata.state:
            case LedgerState.IN_RECOVERY:
                return self._fenced()
            case LedgerState.CLOSED:
                last = event.metadata.last_entry_id
                message = f"ledger {self.ledger_id} was closed at entry {last} by somebody else, such as a recovery"
                return self._stop(WriterState.FAILED, LedgerClosedError(message, ledger=self.ledger_id, entry=last))
            case _:
                return self._adopt(change, event.metadata, now_ns)

    def _stale(self, version: int) -> bool:
        """Return True if the answer is old: a follower may answer with what was there before (META-11, scenario 46)."""
        return version <= self.version

    def _adopt(self, change: Change, stored: LedgerMetadata, now_ns: int) -> list[Effect]:
        """Decide again from the metadata that is stored now (META-14). If a failed bookie is still in the ensemble, the window stays open
        over a new decision.

        If none is, somebody, perhaps an earlier attempt of ours, replaced them all, which is as good as done.
        """
        ensemble = stored.last_fragment.ensemble
        held = any(ensemble[p] == bookie for p, bookie in change.removed.items())
        if not held:
            return self._install(ensemble, change.first_entry_id, change.round, now_ns)
        self._take_back(ensemble, change.first_entry_id)
        self._change = None
        effects = self._start_change(now_ns)
        if self._change is not None or self.state is not WriterState.OPEN:
            return effects
        return effects + self._send_all_missing(now_ns) + self._close_window(now_ns)
