"""The ways in which the writing of a ledger ends: closed, fenced, failed, abandoned (replication-protocol.md 5, WR-11, WR-12)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from bk_core.errors import BkError, LedgerClosedError, LedgerFencedError, MetadataConflictError, PersistenceViolatedError
from bk_core.protocol.effects import Complete, Effect, Fail, Log, ReadLedger, SetTimer, WriteLedger
from bk_core.protocol.events import LedgerRead, LedgerWritten, Outcome
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.ledger.write.base import WriterState
from bk_core.protocol.ledger.write.ensemble_change import ChangingWriter

FAILED_STATES = frozenset({WriterState.FENCED, WriterState.FAILED, WriterState.CLOSE_FAILED})


@dataclass(slots=True)
class Closing:
    """The closing compare-and-set. The end is fixed; the metadata that it changes may be newer at the next try (CL-4)."""

    wanted: LedgerMetadata
    request: int
    reading: bool = False


class ClosingWriter(ChangingWriter):
    """The part of a writer that ends it (CL-1..CL-7, D1, G-10, G-11, G-13)."""

    _close_tokens: list[Any]
    _closing: Closing | None

    # --- application calls -------------------------------------------------------------------------------------------

    def close(self, token: Any, now_ns: int, *, forced: bool = False) -> list[Effect]:
        """Close the ledger at its last confirmed entry; ``token`` completes with the CLOSED metadata.

        Entries that are not acknowledged fail (CL-1). With guaranteed write quorum the close waits until there are none and all are on
        Qw bookies, however long that takes, or until the ledger is fenced; ``forced`` fails unacknowledged ones first (G-11).
        Later calls share the result of the first (CL-5); a close that failed is final (CL-7).
        """
        if self.state is WriterState.CLOSED:
            return [Complete(token, self.metadata)]
        if self.state in FAILED_STATES:
            return [Fail(token, self._refusal())]
        self._close_tokens.append(token)
        if self.state is WriterState.CLOSING:
            return []
        why = LedgerClosedError(f"ledger {self.ledger_id} was closed before these entries were acknowledged", ledger=self.ledger_id)
        if not self._guaranteed:
            return self._begin_close(why)
        self._draining = True
        effects = self._drop_unacknowledged(why) if forced and not self._cut else []
        return effects + self._close_if_drained()

    def abandon(self, now_ns: int) -> list[Effect]:
        """Stop and leave the ledger to a recovery (G-10). Entries that were not acknowledged may or may not be in it (WR-13)."""
        error = LedgerClosedError(f"ledger {self.ledger_id} was abandoned by its writer without being closed", ledger=self.ledger_id)
        return self.give_up(error)

    def give_up(self, error: BkError) -> list[Effect]:
        """Do the same as ``abandon``, but fail everything that waits with ``error``."""
        if self.state is WriterState.CLOSED or self.state in FAILED_STATES:
            return []
        return self._stop(WriterState.CLOSE_FAILED if self.state is WriterState.CLOSING else WriterState.FAILED, error)

    # --- reasons to end ----------------------------------------------------------------------------------------------

    def _fenced(self) -> list[Effect]:
        """Stop at once and change no metadata, because the ledger is fenced; by option, close it at this end (WR-11, D1)."""
        later = f"entries after {self.last_add_confirmed}" if self.last_add_confirmed >= 0 else "its entries"
        message = (
            f"ledger {self.ledger_id} was fenced by a recovery (this program's or another's); {later} may or may not be part of it: "
            "read the ledger, and write on in a new one"
        )
        error = LedgerFencedError(message, ledger=self.ledger_id, entry=self.last_add_confirmed)
        if self.options.close_in_recovery and self._may_close_here():
            self.error = error
            return self._begin_close(error)
        return self._stop(WriterState.FENCED, error)

    def _may_close_here(self) -> bool:
        """Return True if the ledger may end at LAC. With guaranteed write quorum that needs full replication up to there (G-10)."""
        return not self._guaranteed or self.last_add_fully_replicated == self.last_add_confirmed

    def _fatal(self, error: BkError) -> list[Effect]:
        """Fail the queue, and close at LAC if this writer may still close the ledger (WR-12)."""
        if self.recovering or self.metadata.state is not LedgerState.OPEN or not self._may_close_here():
            return self._stop(WriterState.FAILED, error)
        self.error = error
        return [Log("warning", str(error)), *self._begin_close(error)]

    def _stop(self, state: WriterState, error: BkError) -> list[Effect]:
        self.state, self.error = state, error
        effects = self._drain(error)
        effects += [Fail(token, error) for token in self._close_tokens]
        self._close_tokens.clear()
        return effects

    def _drain(self, error: BkError) -> list[Effect]:
        """Fail everything that waits, in the order of ids. None of it can be acknowledged later."""
        effects = self._fail_waiting(self._pending, error) + self._fail_forces(error)
        self._pending.clear()
        self._failures.clear()
        self._retries.clear()
        self._staging.clear()
        self._change = None
        self.pending_bytes = 0
        return effects

    @abstractmethod
    def _fail_forces(self, error: BkError) -> list[Effect]:
        """Fail the forces that have not ended (WR-17)."""

    # --- waiting for full replication --------------------------------------------------------------------------------

    def _drop_unacknowledged(self, why: BkError) -> list[Effect]:
        """Fail the entries that have no ack quorum, because the close is forced (G-11, CL-1)."""
        self._cut = True
        head = self.acknowledged_head
        dropped = list(self._pending.after(head))
        self.length -= sum(pending.bytes_after(head) for pending in dropped)
        self.pending_bytes -= sum(pending.payload_bytes for pending in dropped)
        self._pending.cut(head)
        self.last_add_pushed = head
        self._retire()
        return self._fail_waiting(dropped, why)

    def _close_if_drained(self) -> list[Effect]:
        if self._draining and self.state is WriterState.OPEN and self._drained():
            why = LedgerClosedError(f"ledger {self.ledger_id} was closed", ledger=self.ledger_id)
            return self._begin_close(why)
        return []

    def _drained(self) -> bool:
        """Return True if LAFR = LAC = LAP, or all entries are done below an id that the caller never gave (G-11, WR-2).

        No more entries are admitted, so entries above that id would wait in vain, and fail with the close (L-5).
        """
        last = self._last_without_gap() if self.options.caller_ids and not self._cut else self.last_add_pushed
        return self.last_add_fully_replicated == self.last_add_confirmed == last

    def _last_without_gap(self) -> int:
        return self._pending.prefix(self.acknowledged_head, lambda pending, _: pending.acks.write_set.entries, ())

    # --- closing -----------------------------------------------------------------------------------------------------

    def _begin_close(self, why: BkError) -> list[Effect]:
        """Begin the closing compare-and-set (CL-1). It takes the place of an ensemble change in flight, at the same version (CL-2)."""
        self.state = WriterState.CLOSING
        self.length = self._closing_length()
        effects = self._drain(why)
        self._closing = Closing(self._closed_metadata(self.metadata), self._request())
        return [*effects, WriteLedger(self._closing.request, self._closing.wanted, self.version)]

    def _closing_length(self) -> int:
        """Return the ledger's length. Drained entries do not count (META-10); a forced close has taken them off already."""
        return self.length if self._cut else self._length_up_to(self.last_add_confirmed)

    def _length_up_to(self, entry_id: int) -> int:
        """Return the payload bytes up to an entry that is not below the acknowledged head."""
        return self.length - sum(pending.bytes_after(entry_id) for pending in self._pending.after(entry_id))

    def _closed_metadata(self, stored: LedgerMetadata) -> LedgerMetadata:
        """Return the CLOSED metadata (CL-3). The seal says that every entry is on all of its write set (G-13)."""
        closed = stored.closed(self.last_add_confirmed, self.length)
        return closed.with_seal() if self._guaranteed and self._may_close_here() else closed

    def _close_written(self, closing: Closing, event: LedgerWritten) -> list[Effect]:
        """Handle the outcome of the closing compare-and-set (CL-4)."""
        match event.outcome:
            case Outcome.OK:
                self.metadata, self.version = closing.wanted, event.version
                return self._closed()
            case Outcome.UNKNOWN:
                return self._after_unknown()
            case Outcome.CONFLICT:
                closing.reading = True
                return [ReadLedger(closing.request)]
            case Outcome.NO_SUCH_LEDGER:
                return self._close_failed(self._deleted())
            case _:  # REFUSED
                return self._close_failed(self._store_error(event.error))

    def _close_reread(self, closing: Closing, event: LedgerRead) -> list[Effect]:
        """Handle the metadata read after a conflict. The stored state decides, whatever this handle would like (CL-4, META-14)."""
        if event.outcome is Outcome.NO_SUCH_LEDGER:
            return self._close_failed(self._deleted())
        if event.outcome is Outcome.UNKNOWN or (event.metadata is not None and self._stale(event.version)):
            return [SetTimer("metadata", self._limits.metadata_retry_ns)]
        if event.metadata is None:
            return self._close_failed(self._store_error(event.error))
        stored = event.metadata
        self.metadata, self.version = stored, event.version
        if stored.state is LedgerState.CLOSED:
            return self._closed_by_another(closing, stored)
        if stored.state is LedgerState.OPEN or self.options.close_in_recovery:
            # SM-3: this request has its own number, so that a late answer about the old version is not taken for its answer.
            closing.wanted, closing.request, closing.reading = self._closed_metadata(stored), self._request(), False
            return [WriteLedger(closing.request, closing.wanted, self.version)]
        message = f"ledger {self.ledger_id} was fenced by a recovery (this program's or another's), which will close it"
        return self._close_failed(LedgerFencedError(message, ledger=self.ledger_id))

    def _closed_by_another(self, closing: Closing, stored: LedgerMetadata) -> list[Effect]:
        mine = closing.wanted
        if self._same_end(stored):
            if stored.length == mine.length:
                return self._closed()
            text = f"ledger {self.ledger_id}: closed elsewhere with length {stored.length}, here {mine.length}"
            return [Log("warning", text), *self._closed()]
        end = f"ledger {self.ledger_id} was closed at entry {stored.last_entry_id}"
        if stored.last_entry_id < mine.last_entry_id:
            message = f"{end}, below acknowledged entry {mine.last_entry_id}"
            return [Log("error", message), *self._close_failed(PersistenceViolatedError(message, ledger=self.ledger_id))]
        message = f"{end} by somebody else, such as a recovery; this writer ended at {mine.last_entry_id}"
        return self._close_failed(MetadataConflictError(message, ledger=self.ledger_id))

    def _same_end(self, stored: LedgerMetadata) -> bool:
        return stored.last_entry_id == self.last_add_confirmed

    def _closed(self) -> list[Effect]:
        self.state = WriterState.CLOSED
        done: list[Effect] = [Complete(token, self.metadata) for token in self._close_tokens]
        self._close_tokens.clear()
        return done

    def _close_failed(self, error: BkError) -> list[Effect]:
        """Fail the close for good (CL-7)."""
        self.state, self.error = WriterState.CLOSE_FAILED, error
        failed: list[Effect] = [Fail(token, error) for token in self._close_tokens]
        self._close_tokens.clear()
        return failed
