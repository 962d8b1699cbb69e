"""Recovery of one ledger: mark, fence, read forward, write back, close (replication-protocol.md 7).

Theory of operation. After the metadata says IN_RECOVERY (RC-1) the ensemble of the last fragment is remembered for good (``_read_from``,
RC-2): every read of this run goes there. All of it is asked for its last entry with the fence flag; when every write set is covered (Q-4)
the highest digest-checked LAC, but at least the entry before the last fragment, is the base (RC-6). From base + 1 each entry is read
from its whole write set with the fence flag (RC-8). One good copy: it is written back (RC-13). Qw - Qa + 1 definite denials: the ledger
ends before it (RC-10). Neither, after all patience: recovery stops and the ledger stays IN_RECOVERY (RC-21). Decisions are taken in entry
order. When all write-backs are done one compare-and-set closes the ledger (RC-17); whoever wins it, everybody adopts the result (RC-18).

Earlier fragments are left alone (RC-3): what is in them is committed. Several recoverers need no coordination (RC-22), and an old writer
may go on for as long as it can (RC-23): what it can still acknowledge has Qa copies where this run reads.

In a guaranteed ledger (section 9) the base is the LAFR instead of the LAC (G-12), an entry is done when it is on all of its write set, and
the closing compare-and-set says so (G-13).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from bk_core.errors import (
    BkError,
    MetadataConflictError,
    NoSuchLedgerError,
    RecoveryFailedError,
)
from bk_core.protocol.effects import Complete, Effect, Fail, Log, ReadLedger, SendRead, SetTimer, WriteLedger
from bk_core.protocol.entry import layout
from bk_core.protocol.events import Event, LedgerRead, LedgerWritten, MetadataChanged, Outcome, ReadReply, TimerFired
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import Placement
from bk_core.protocol.ledger.read.unreachable import SILENT, Unreachable
from bk_core.protocol.ledger.recover.end_phase import EndPhase, closing_metadata
from bk_core.protocol.ledger.recover.errors import key_refused, store_error, undecided
from bk_core.protocol.ledger.recover.fence_phase import DENIALS, FencePhase
from bk_core.protocol.ledger.recover.options import RecoveryOptions
from bk_core.protocol.ledger.recover.questions import (
    BarrierInquiry,
    EntryInquiry,
    FenceInquiry,
    Inquiry,
    LafrInquiry,
    LengthInquiry,
)
from bk_core.protocol.ledger.recover.requests import RecoveryRequests
from bk_core.protocol.ledger.write.options import WriterOptions
from bk_core.protocol.ledger.write.writer import LedgerWriter, WriterState
from bk_core.protocol.limits import Limits
from bk_core.protocol.states import Transitions
from bk_core.protocol.wire.messages import ReadResponse, Status

FIRST_WINDOW_ENTRIES = 32


class RecoveryState(Enum):
    """The states of a recovery (SM-6)."""

    MARKING = auto()
    FENCING = auto()
    READING = auto()
    DRAINING = auto()
    CLOSING = auto()
    DONE = auto()
    ABORTED = auto()


@dataclass(frozen=True, slots=True)
class RecoveryProgress:
    """The progress of a recovery: the entry to decide next, the last entry that is back on Qa bookies, and the last one on all Qw. No
    number decreases within a run, so that bookies that come and go cannot look like progress."""

    state: RecoveryState
    next_entry: int = 0
    written_back: int = -1
    fully_written_back: int = -1

    def __str__(self) -> str:
        match self.state:
            case RecoveryState.READING:
                return f"reading entry {self.next_entry}, written back up to entry {self.written_back}"
            case RecoveryState.DRAINING:
                return f"writing back entry {self.written_back + 1}, the ledger ends before entry {self.next_entry}"
            case _:
                return self.state.name.lower()


class LedgerRecovery:
    """Machine: recovers one ledger and completes ``token`` with its CLOSED metadata, never before that is definite (OP-4, RC-19).

    It fails with RecoveryFailedError (RecoveryTimeoutError, UnauthorizedError) if the end cannot be decided now, and with
    NotEnoughBookiesError if an entry cannot be written back. The ledger then stays IN_RECOVERY, everything done so far is harmless, and a
    new machine may try again (RC-21). NoSuchLedgerError, MetadataConflictError and errors of the store are passed on.
    """

    state = Transitions(
        RecoveryState.MARKING,
        {
            RecoveryState.MARKING: (RecoveryState.FENCING, RecoveryState.DONE, RecoveryState.ABORTED),
            RecoveryState.FENCING: (RecoveryState.READING, RecoveryState.ABORTED),
            RecoveryState.READING: (RecoveryState.DRAINING, RecoveryState.ABORTED),
            RecoveryState.DRAINING: (RecoveryState.CLOSING, RecoveryState.ABORTED),
            RecoveryState.CLOSING: (RecoveryState.DONE, RecoveryState.MARKING, RecoveryState.ABORTED),  # MARKING: a new run (RC-18)
        },
    )

    def __init__(
        self,
        ledger_id: int,
        placement: Placement,
        token: Any,
        limits: Limits | None = None,
        *,
        options: RecoveryOptions | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self.options = options or RecoveryOptions()
        self._token = token
        self._placement = placement
        self._limits = limits or Limits()
        self._requests = RecoveryRequests(ledger_id)
        self._begun_again = False
        self._unreachable = Unreachable(self._limits)
        self._now_ns = 0
        self._new_run()

    def _new_run(self) -> None:
        """Begin a run. Everything a run knows, above all its private ensembles, dies with it (RC-21)."""
        self.state = RecoveryState.MARKING
        self.metadata: LedgerMetadata | None = None
        self.version = -1
        self.writer: LedgerWriter | None = None
        self.base = -1
        self.frozen = -1
        self._requests.forget()
        self._metadata_request = 0
        self._wanted: LedgerMetadata | None = None
        self._found_in_recovery = False
        self._read_from: tuple[BookieId, ...] = ()
        self._first_of_last = 0
        self._distribution = Distribution(1, 1, 1)
        self._phase: FencePhase | None = None
        self._holders: set[BookieId] = set()  # that have shown an entry, good or not
        self._waiting_for_lafr = False
        self._questions: dict[int, EntryInquiry] = {}
        self._next_to_ask = 0
        self._next_to_decide = 0
        self._largest_bytes = 0
        self._length: int | None = None
        self._end: EndPhase | None = None
        self._retry_set = False

    def start(self) -> list[Effect]:
        return [self._read_metadata()]

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        if self.state in (RecoveryState.DONE, RecoveryState.ABORTED):
            return []
        self._now_ns = now_ns
        match event:
            case LedgerRead():
                return self._metadata_read(event)
            case LedgerWritten():
                return self._metadata_written(event)
            case ReadReply():
                return self._answered(event, now_ns)
            case TimerFired("recovery-metadata"):
                return self._repeat_metadata()
            case TimerFired("recovery-retry"):
                return self._ask_again()
            case TimerFired("recovery-lafr"):
                return self._stop_waiting_for_lafr()
            case MetadataChanged():
                return []
            case _:
                return self._write_back_event(event, now_ns)

    @property
    def progress(self) -> RecoveryProgress:
        """The progress of this run. While it does not change, nothing is being achieved."""
        writer = self.writer
        if writer is None:
            return RecoveryProgress(self.state)
        return RecoveryProgress(self.state, self._next_to_decide, writer.last_add_confirmed, writer.last_add_fully_replicated)

    # --- metadata ------------------------------------------------------------------------------------------------

    def _read_metadata(self) -> Effect:
        self._metadata_request = self._requests.number()
        return ReadLedger(self._metadata_request)

    def _write_metadata(self, wanted: LedgerMetadata) -> Effect:
        self._wanted = wanted
        self._metadata_request = self._requests.number()
        return WriteLedger(self._metadata_request, wanted, self.version)

    def _repeat_metadata(self) -> list[Effect]:
        """Send the byte-identical write at the same version again; a read is simply asked again (META-12)."""
        if self._wanted is not None:
            return [WriteLedger(self._metadata_request, self._wanted, self.version)]
        return [ReadLedger(self._metadata_request)]

    def _metadata_later(self) -> list[Effect]:
        return [SetTimer("recovery-metadata", self._limits.metadata_retry_ns)]

    def _metadata_read(self, event: LedgerRead) -> list[Effect]:
        if event.request != self._metadata_request or self._wanted is not None:
            return []
        if event.outcome is Outcome.UNKNOWN:
            return self._metadata_later()
        if event.outcome is Outcome.NO_SUCH_LEDGER:
            return self._abort(NoSuchLedgerError(f"ledger {self.ledger_id} does not exist", ledger=self.ledger_id))
        if event.metadata is None:
            return self._abort(store_error(self.ledger_id, event.error))
        if self._stale(event.version):
            return self._metadata_later()
        self.metadata, self.version = event.metadata, event.version
        if event.metadata.state is LedgerState.CLOSED:
            return self._done(event.metadata)  # RC-1, RC-18: this run adopts what was decided, even if it saw another end
        return self._closing_conflict(event.metadata) if self.state is RecoveryState.CLOSING else self._mark(event.metadata)

    def _stale(self, version: int) -> bool:
        """Return True if the answer is old: after a conflict, only metadata newer than what lost is an answer (META-11, scenario 46)."""
        return version <= self.version

    def _mark(self, stored: LedgerMetadata) -> list[Effect]:
        """Mark the ledger IN_RECOVERY (RC-1). If it is already, nothing is written unless the options say so (D3)."""
        if stored.state is LedgerState.OPEN:
            return [self._write_metadata(stored.in_recovery())]
        self._found_in_recovery = True
        return [self._write_metadata(stored)] if self.options.bump_version else self._start_fencing(stored)

    def _metadata_written(self, event: LedgerWritten) -> list[Effect]:
        if event.request != self._metadata_request or self._wanted is None:
            return []
        if event.outcome is Outcome.UNKNOWN:
            return self._metadata_later()
        wanted, self._wanted = self._wanted, None
        match event.outcome:
            case Outcome.OK:
                self.metadata, self.version = wanted, event.version
                return self._done(wanted) if wanted.state is LedgerState.CLOSED else self._start_fencing(wanted)
            case Outcome.CONFLICT:
                return [self._read_metadata()]
            case Outcome.NO_SUCH_LEDGER:
                return self._abort(NoSuchLedgerError(f"ledger {self.ledger_id} was deleted during recovery", ledger=self.ledger_id))
            case _:
                return self._abort(store_error(self.ledger_id, event.error))

    # --- questions and answers -------------------------------------------------------------------------------------

    def _answered(self, event: ReadReply, now_ns: int) -> list[Effect]:
        found = self._requests.take(event.request)
        if found is None:
            return []
        inquiry, position = found
        inquiry.answered(position)
        if event.status not in SILENT:
            self._unreachable.answered()
        if event.status is Status.OK and isinstance(event.response, ReadResponse) and event.response.body is not None:
            self._holders.add(event.bookie)
        match inquiry:
            case FenceInquiry():
                return self._fence_answer(position, event)
            case LafrInquiry():
                return self._lafr_answer(event)
            case EntryInquiry():
                return self._entry_answer(inquiry, position, event, now_ns)
            case _:
                assert isinstance(inquiry, LengthInquiry | BarrierInquiry)
                return self._end_answer(inquiry, position, event)

    def _wait(self, inquiry: Inquiry) -> list[Effect] | None:
        """Ask bookies that cannot be reached again, beyond any number of repeats (RD-13). Return None if there are none, or the patience is
        over."""
        pause_ns = self._unreachable.failed(self._now_ns) if inquiry.may_come_back else None
        if pause_ns is None:
            return None
        inquiry.forgive()
        if self._retry_set:
            return []
        self._retry_set = True
        return [SetTimer("recovery-retry", pause_ns)]

    def _undecided(self, why: str, inquiry: Inquiry, digest_note: str = "") -> list[Effect]:
        return self._abort(undecided(self.ledger_id, why, inquiry, digest_note, str(self._unreachable)))

    def _arm_retry(self, inquiry: Inquiry) -> list[Effect]:
        if self._retry_set or not inquiry.repeatable():
            return []
        self._retry_set = True
        return [SetTimer("recovery-retry", self._limits.recovery_retry_ns)]

    def _ask_again(self) -> list[Effect]:
        """Ask unknown replicas again, each within its own budget, while answers of others are still awaited (RC-5, RC-10)."""
        self._retry_set = False
        match self.state:
            case RecoveryState.FENCING if self._phase is not None:
                return self._phase.again()
            case RecoveryState.READING if (question := self._questions.get(self._next_to_decide)) is not None:
                return [self._ask(question, p) for p in question.again()]
            case RecoveryState.DRAINING if self._end is not None:
                return self._end.again()
            case _:
                return []

    # --- fencing -------------------------------------------------------------------------------------------------

    def _start_fencing(self, stored: LedgerMetadata) -> list[Effect]:
        """Fence the last ensemble. From here on this run reads from this ensemble only, whatever becomes of the metadata or of its own
        write-backs (RC-2)."""
        self.state = RecoveryState.FENCING
        self._read_from = stored.last_fragment.ensemble
        self._first_of_last = stored.last_fragment.first_entry_id
        self._distribution = Distribution(stored.ensemble_size, stored.write_quorum_size, stored.ack_quorum_size)
        self._requests.use_keys(stored)
        self._phase = FencePhase(self._requests, stored, self.options, self._limits, self._found_in_recovery)
        return self._phase.start()

    def _fence_answer(self, position: int, event: ReadReply) -> list[Effect]:
        assert self._phase is not None
        if self.state is not RecoveryState.FENCING:
            return []  # RC-5: it is late
        if event.status is Status.UNAUTHORIZED:
            return self._abort(key_refused(self.ledger_id, event.bookie))
        self._phase.heard(position, event)
        return self._after_fence_answer(self._phase)

    def _lafr_answer(self, event: ReadReply) -> list[Effect]:
        assert self._phase is not None
        if self.state is not RecoveryState.FENCING:
            return []
        self._phase.heard_lafr(event)
        return self._after_fence_answer(self._phase)

    def _after_fence_answer(self, phase: FencePhase) -> list[Effect]:
        """Go on after an answer to a fence request (RC-5)."""
        if phase.covered:
            return self._wait_for_lafr() if phase.lafr.asked else self._fenced(phase)
        if phase.inquiry.exhausted:
            waits = self._wait(phase.inquiry)
            return self._undecided("too few bookies of the last ensemble could be fenced", phase.inquiry) if waits is None else waits
        return self._arm_retry(phase.inquiry)

    def _digest_note(self) -> str:
        return "" if self.metadata is None else self.metadata.access_note

    def _wait_for_lafr(self) -> list[Effect]:
        """Wait for the LAFR once, briefly, and only while some bookie may still tell it; it saves reading and nothing else (G-12)."""
        if self._waiting_for_lafr:
            return []
        self._waiting_for_lafr = True
        return [SetTimer("recovery-lafr", self._limits.recovery_lafr_wait_ns)]

    def _stop_waiting_for_lafr(self) -> list[Effect]:
        if self.state is not RecoveryState.FENCING or not self._waiting_for_lafr or self._phase is None:
            return []
        return self._fenced(self._phase)

    def _fenced(self, phase: FencePhase) -> list[Effect]:
        """Begin to read once the ensemble is fenced (RC-6, RC-7, G-12)."""
        assert self.metadata is not None
        self.state = RecoveryState.READING
        self.base, self.frozen = phase.base, phase.frozen
        self._next_to_ask = self._next_to_decide = self.base + 1
        self.writer = LedgerWriter(
            self.ledger_id,
            self.metadata,
            self.version,
            self._placement,
            self._limits,
            options=WriterOptions(ensemble_change=self.options.ensemble_change),
            frozen_lac=self.frozen,
            base=self.base,
        )
        return self._ask_ahead()

    # --- reading forward -------------------------------------------------------------------------------------------

    def _ask_ahead(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._may_ask():
            entry_id = self._next_to_ask
            self._next_to_ask += 1
            write_set = list(self._distribution.write_set(entry_id))
            question = EntryInquiry(self._read_from, write_set, self._limits.recovery_retries_max, entry_id=entry_id)
            self._questions[entry_id] = question
            effects += self._ask_more(question)
        return effects

    def _may_ask(self) -> bool:
        """Return True if the next entry may be asked for: there is a window of entries in flight (RC-8). Entries must not pile up before
        slow bookies (WR-15), but with nothing left to commit this does not wait for a bookie that may never answer (RC-11)."""
        assert self.writer is not None
        in_window = self._next_to_ask < self._next_to_decide + self._window_entries()
        return in_window and (self.writer.idle or self.writer.unretired_bytes < self._limits.unretired_bytes_max)

    def _window_entries(self) -> int:
        """Return the size of the window: as many entries as the limit allows, but fewer of large entries (all copies of a window must fit
        in memory) and while no size is known."""
        limit = self._limits.recovery_window_entries
        if not self._largest_bytes:
            return min(limit, FIRST_WINDOW_ENTRIES)
        window_bytes = self._largest_bytes * self._distribution.write_quorum_size
        return max(1, min(limit, self._limits.read_window_bytes // window_bytes))

    def _ask(self, question: EntryInquiry, position: int) -> SendRead:
        """Ask for an entry with the fence flag, so that a bookie which denies it will never take it from the old writer (RC-8, RC-9)."""
        return self._requests.fence_read(question, position, question.entry_id)

    def _ask_more(self, question: EntryInquiry) -> list[Effect]:
        """Ask the whole write set at once, or one replica after the other (RC-8)."""
        if not self.options.sequential_reads:
            return [self._ask(question, p) for p in question.take()]
        wanted = not question.asked and not question.recoverable and not question.absent(self._denials_needed())
        return [self._ask(question, p) for p in question.take(1)] if wanted else []

    def _entry_answer(self, question: EntryInquiry, position: int, event: ReadReply, now_ns: int) -> list[Effect]:
        if self._questions.get(question.entry_id) is not question:
            return []  # the entry is decided, or beyond the end (RC-8), where not even an error counts
        response = event.response
        body = response.body if isinstance(response, ReadResponse) and event.status is Status.OK else None
        entry = self._requests.entry(body, question.entry_id)
        if entry is not None:
            question.entry = question.entry or entry
        elif self._denies(event.status):
            question.denied.add(position)
        else:
            question.unknown[position] = event.status  # RC-11, RC-12, RC-25
        return self._ask_more(question) + self._decide(now_ns)

    def _decide(self, now_ns: int) -> list[Effect]:
        """Decide entries in their order (RC-10)."""
        effects: list[Effect] = []
        while self.state is RecoveryState.READING and (question := self._questions.get(self._next_to_decide)) is not None:
            if question.entry is not None:
                del self._questions[question.entry_id]
                self._next_to_decide += 1
                effects += self._write_back(question.entry, now_ns)
            elif question.absent(self._denials_needed()):
                effects += self._end_before(question)
            elif question.exhausted:
                waits = self._wait(question)
                if waits is not None:
                    effects += waits
                    break
                why = f"entry {question.entry_id} can neither be read nor ruled out"
                effects += self._undecided(why, question, self._digest_note())
            else:
                effects += self._arm_retry(question)
                break
        return effects + (self._ask_ahead() if self.state is RecoveryState.READING else self._maybe_close())

    def _denies(self, status: Status) -> bool:
        """Return True if the answer is a definite denial (RC-11)."""
        return status in DENIALS

    def _denials_needed(self) -> int:
        """The number of denials that rule an ack quorum out, QC (Q-2). Fewer leave room for a quorum that has the entry; more may never
        come (RC-11)."""
        return self._distribution.denials_needed

    # --- writing back ------------------------------------------------------------------------------------------------

    def _write_back(self, entry: layout.Entry, now_ns: int) -> list[Effect]:
        """Write an entry back with the payload and running length that were read, the frozen LAC, and the recovery flag (RC-13)."""
        assert self.writer is not None
        if entry.entry_id != self.writer.last_add_pushed + 1:
            raise AssertionError(f"write-back of entry {entry.entry_id} after {self.writer.last_add_pushed} (RC-13)")
        self._length = entry.length
        payload = bytes(entry.payload)
        self._largest_bytes = max(self._largest_bytes, len(payload))
        before = entry.length - len(payload)
        return self._of_writer(self.writer.append(payload, array("q", (0, len(payload))), entry.entry_id, now_ns, length_before=before))

    def _write_back_event(self, event: Event, now_ns: int) -> list[Effect]:
        if self.writer is None or self.state not in (RecoveryState.READING, RecoveryState.DRAINING):
            return []
        effects = self._of_writer(self.writer.handle(event, now_ns))
        return effects + (self._ask_ahead() if self.state is RecoveryState.READING else self._maybe_close())

    def _of_writer(self, effects: list[Effect]) -> list[Effect]:
        """Take the effects of the write-backs. They complete into this machine, and no application hears of them (RC-14). Without bookies
        for them, there is no close (RC-15)."""
        assert self.writer is not None
        passed: list[Effect] = [e for e in effects if not isinstance(e, Complete | Fail)]
        if self.writer.state is WriterState.OPEN:
            return passed
        return passed + self._abort(self.writer.error or RecoveryFailedError(f"ledger {self.ledger_id}: write-back failed"))

    # --- the end -----------------------------------------------------------------------------------------------------

    def _end_before(self, question: EntryInquiry) -> list[Effect]:
        """Settle that the ledger ends before this entry (RC-10). Other requests in flight no longer matter (RC-8)."""
        assert self.metadata is not None
        self.state = RecoveryState.DRAINING
        self._questions.clear()
        barrier_lac = self._barrier_lac() if self.options.barrier else None
        asked = (self._requests, self.metadata, self._limits, question)
        self._end = EndPhase(*asked, length=self._length, barrier_lac=barrier_lac, holders=self._holders)
        return self._end.start()

    def _barrier_lac(self) -> int:
        """Return the LAC for the barrier. The slot means LAC, or LAFR in a guaranteed ledger, and must not claim more than is true
        (RC-11a)."""
        assert self.metadata is not None
        return self.base if self.metadata.guaranteed else self.frozen

    def _end_answer(self, inquiry: LengthInquiry | BarrierInquiry, position: int, event: ReadReply) -> list[Effect]:
        end = self._end
        assert end is not None
        sent: list[Effect] = []
        if isinstance(inquiry, LengthInquiry):
            end.heard_length(position, event)
        else:
            sent = end.heard_barrier(position, event)
        if (hopeless := end.hopeless) is not None:
            waits = self._wait(hopeless[1])
            return self._undecided(*hopeless, self._digest_note()) if waits is None else waits
        return sent + (self._maybe_close() if end.ready else self._arm_retry(inquiry))

    def _maybe_close(self) -> list[Effect]:
        """Close the ledger once every write-back is done (G-13: on its whole write set), the length is known, and the barrier holds
        (RC-17)."""
        if self.state is not RecoveryState.DRAINING or self.writer is None or self._end is None:
            return []
        if not self._end.ready or not self.writer.idle:
            return []
        assert self.metadata is not None
        self.state = RecoveryState.CLOSING
        return [self._write_metadata(self._closing_metadata(self.metadata))]

    def _closing_metadata(self, stored: LedgerMetadata) -> LedgerMetadata:
        assert self._end is not None and self._end.length is not None and self.writer is not None
        return closing_metadata(stored, self._end.last, self._end.length, self.writer.private_changes)

    def _closing_conflict(self, stored: LedgerMetadata) -> list[Effect]:
        """Handle a closing compare-and-set that lost to metadata that is not CLOSED (RC-18)."""
        if stored.state is LedgerState.OPEN:
            return self._abort(
                MetadataConflictError(f"ledger {self.ledger_id} was opened again while it was being recovered", ledger=self.ledger_id)
            )
        last = stored.last_fragment
        if last.ensemble == self._read_from and last.first_entry_id == self._first_of_last:
            return [self._write_metadata(self._closing_metadata(stored))]
        return self._begin_again()

    def _begin_again(self) -> list[Effect]:
        """Begin a new run, once, because the last fragment is not the one that was read. Only a foreign tool can cause this
        (RC-18, RR-12)."""
        message = f"ledger {self.ledger_id}: another program changed the last fragment during recovery"
        if self._begun_again:
            return self._abort(MetadataConflictError(f"{message}, twice", ledger=self.ledger_id))
        self._begun_again = True
        self._new_run()
        return [Log("warning", f"{message}; starting over"), *self.start()]

    def _done(self, closed: LedgerMetadata) -> list[Effect]:
        self._stop(RecoveryState.DONE)
        return [Complete(self._token, closed)]

    def _abort(self, error: BkError) -> list[Effect]:
        """Stop the recovery; the ledger stays IN_RECOVERY (RC-21)."""
        self._stop(RecoveryState.ABORTED)
        return [Fail(self._token, error)]

    def _stop(self, state: RecoveryState) -> None:
        self.state = state
        self._requests.forget()
