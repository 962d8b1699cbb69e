"""Recovery of one ledger: mark, fence, read forward, write back, close (replication-protocol.md 7).

Theory of operation. After the metadata says IN_RECOVERY (RC-1) the ensemble of the last fragment is remembered for good (``_read_from``,
RC-2): every read of this run goes there. All of it is asked for its last entry with the fence flag; when every write set is covered (Q-4)
the highest digest-checked LAC, but at least the entry before the last fragment, is the base (RC-6). From base + 1 each entry is read
from its whole write set with the fence flag (RC-8). One good copy: it is written back (RC-13). Qw - Qa + 1 definite denials: the ledger
ends before it (RC-10). Neither: recovery stops and the ledger stays IN_RECOVERY (RC-21). Decisions are taken in entry order. When all
write-backs are committed one compare-and-set closes the ledger (RC-17); whoever wins it, everybody adopts the result (RC-18).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from bk_core.errors import (
    BkError,
    DigestError,
    MetadataError,
    NoSuchLedgerError,
    RecoveryFailedError,
    RemoteProtocolError,
    UnauthorizedError,
)
from bk_core.protocol.effects import Complete, Effect, Fail, Log, ReadLedger, SendAdds, SendRead, SetTimer, WriteLedger
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.events import AddReply, BookieLost, Event, LedgerRead, LedgerWritten, Outcome, ReadReply, TimerFired
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from bk_core.protocol.ledger.writer import LedgerWriter, WriterState
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import LAST_ENTRY, ReadRequest, ReadResponse, Status

DENIALS = frozenset({Status.NO_ENTRY, Status.NO_LEDGER})


class RecoveryState(Enum):
    """SM-6."""

    MARKING = auto()
    FENCING = auto()
    READING = auto()
    DRAINING = auto()
    CLOSING = auto()
    DONE = auto()
    ABORTED = auto()


@dataclass(slots=True)
class _Question:
    """The answers about one entry so far. ``retries`` counts repeats per position."""

    entry_id: int
    asked: set[int] = field(default_factory=set)
    denied: set[int] = field(default_factory=set)
    unknown: dict[int, Status] = field(default_factory=dict)
    entry: layout.Entry | None = None
    retries: int = 0


class LedgerRecovery:
    """Machine: one run of recovery (a new attempt is a new machine). Completes ``token`` with the CLOSED metadata."""

    def __init__(self, ledger_id: int, placement: RandomPlacement, token: Any, limits: Limits | None = None) -> None:
        self.ledger_id = ledger_id
        self.state = RecoveryState.MARKING
        self.metadata: LedgerMetadata | None = None
        self.version = -1
        self.writer: LedgerWriter | None = None
        self._token = token
        self._placement = placement
        self._limits = limits or Limits()
        self._requests = 0
        self._metadata_request = 0
        self._asked: dict[int, tuple[int | None, int]] = {}  # request -> (entry or None for the fence read, position)
        self._read_from: tuple[BookieId, ...] = ()
        self._first_of_last = 0
        self._distribution: Distribution
        self._heard: dict[int, int] = {}
        self._fence_failed: dict[int, Status] = {}
        self._fence_retries = 0
        self._base = -1
        self._questions: dict[int, _Question] = {}
        self._next_to_ask = 0
        self._next_to_decide = 0
        self._last: int | None = None
        self._length: int | None = None
        self._wanted: LedgerMetadata | None = None
        self._master_key = b""
        self._hmac_key = b""

    def start(self) -> list[Effect]:
        return [self._read_metadata()]

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        if self.state in (RecoveryState.DONE, RecoveryState.ABORTED):
            return []
        match event:
            case LedgerRead():
                return self._metadata_read(event)
            case LedgerWritten():
                return self._metadata_written(event)
            case ReadReply():
                return self._answered(event, now_ns)
            case AddReply() | BookieLost():
                return self._write_back_event(event, now_ns)
            case TimerFired("metadata"):
                return self._repeat_metadata()
            case TimerFired("fence"):
                return self._fence_again()
            case TimerFired("retry"):
                return self._ask_again()
            case TimerFired("tick"):
                return self._write_back_event(event, now_ns)
            case _:
                return []

    # --- metadata ------------------------------------------------------------------------------------------------

    def _request(self) -> int:
        self._requests += 1
        return self._requests

    def _read_metadata(self) -> Effect:
        self._metadata_request = self._request()
        return ReadLedger(self._metadata_request)

    def _write_metadata(self, wanted: LedgerMetadata) -> Effect:
        self._wanted = wanted
        self._metadata_request = self._request()
        return WriteLedger(self._metadata_request, wanted, self.version)

    def _repeat_metadata(self) -> list[Effect]:
        """META-12 for a write; a read is simply asked again."""
        if self._wanted is not None:
            return [WriteLedger(self._metadata_request, self._wanted, self.version)]
        return [ReadLedger(self._metadata_request)]

    def _metadata_read(self, event: LedgerRead) -> list[Effect]:
        if event.request != self._metadata_request:
            return []
        if event.outcome is Outcome.UNKNOWN:
            return [SetTimer("metadata", self._limits.metadata_retry_ns)]
        if event.outcome is Outcome.NO_SUCH_LEDGER:
            return self._abort(NoSuchLedgerError(f"ledger {self.ledger_id} does not exist", ledger=self.ledger_id))
        if event.metadata is None:
            return self._abort(_as_error(event.error, self.ledger_id))
        stored = event.metadata
        self.metadata, self.version = stored, event.version
        if stored.state is LedgerState.CLOSED:
            return self._done(stored)  # RC-1, RC-18: adopt whatever was decided
        if self.state is RecoveryState.CLOSING:
            return self._closing_conflict(stored)
        if stored.state is LedgerState.OPEN:
            return [self._write_metadata(stored.in_recovery())]
        return self._fence(stored)  # D3: already IN_RECOVERY, no write

    def _metadata_written(self, event: LedgerWritten) -> list[Effect]:
        if event.request != self._metadata_request or self._wanted is None:
            return []
        wanted = self._wanted
        match event.outcome:
            case Outcome.OK:
                self._wanted = None
                self.metadata, self.version = wanted, event.version
                return self._done(wanted) if wanted.state is LedgerState.CLOSED else self._fence(wanted)
            case Outcome.UNKNOWN:
                return [SetTimer("metadata", self._limits.metadata_retry_ns)]
            case Outcome.CONFLICT:
                self._wanted = None
                return [self._read_metadata()]
            case Outcome.NO_SUCH_LEDGER:
                return self._abort(NoSuchLedgerError(f"ledger {self.ledger_id} was deleted during recovery", ledger=self.ledger_id))
            case Outcome.REFUSED:
                return self._abort(_as_error(event.error, self.ledger_id))

    # --- fencing -------------------------------------------------------------------------------------------------

    def _fence(self, stored: LedgerMetadata) -> list[Effect]:
        """RC-2, RC-4."""
        self.state = RecoveryState.FENCING
        self._read_from = stored.last_fragment.ensemble
        self._first_of_last = stored.last_fragment.first_entry_id
        self._distribution = Distribution(stored.ensemble_size, stored.write_quorum_size, stored.ack_quorum_size)
        self._master_key = digests.master_key(stored.password)
        self._hmac_key = digests.hmac_key(stored.password)
        return [self._ask(None, position) for position in range(stored.ensemble_size)]

    def _ask(self, entry_id: int | None, position: int) -> Effect:
        """RC-8: with the fence flag and the key. RC-4 asks for the last entry."""
        request = self._request()
        self._asked[request] = (entry_id, position)
        wanted = LAST_ENTRY if entry_id is None else entry_id
        message = ReadRequest(request, self.ledger_id, wanted, True, entry_id is not None, self._master_key)
        return SendRead(request, self._read_from[position], message)

    def _answered(self, event: ReadReply, now_ns: int) -> list[Effect]:
        asked = self._asked.pop(event.request, None)
        if asked is None:
            return []
        entry_id, position = asked
        if event.status is Status.UNAUTHORIZED:
            error = UnauthorizedError(
                f"bookie {event.bookie} refused the password of ledger {self.ledger_id}", ledger=self.ledger_id, bookie=event.bookie
            )
            return self._abort(error)
        body = event.response.body if isinstance(event.response, ReadResponse) and event.status is Status.OK else None
        if entry_id is None:
            return self._fence_answer(position, event.status, body)
        return self._entry_answer(entry_id, position, event.status, body, now_ns)

    def _decode(self, body: bytes | None, entry_id: int | None) -> layout.Entry | None:
        """RD-8: None if the copy is not what was asked for (RC-12: that is unknown, never absence)."""
        assert self.metadata is not None
        if body is None:
            return None
        try:
            return layout.decode_body(body, self.ledger_id, entry_id, self.metadata.digest_type, self._hmac_key)
        except (DigestError, RemoteProtocolError):
            return None

    def _fence_answer(self, position: int, status: Status, body: bytes | None) -> list[Effect]:
        if self.state is not RecoveryState.FENCING:
            return []
        if status is Status.OK:
            entry = self._decode(body, None)
            self._heard[position] = entry.last_add_confirmed if entry else -1  # scenario 35: fenced, but no LAC
        elif status in DENIALS:
            self._heard[position] = -1
        else:
            self._fence_failed[position] = status
        if self._distribution.covered(self._heard):
            return self._fenced()
        if len(self._heard) + len(self._fence_failed) < self._distribution.ensemble_size:
            return []
        if self._fence_retries >= self._limits.recovery_retries_max:
            missing = ", ".join(f"{self._read_from[p]} ({s.name})" for p, s in sorted(self._fence_failed.items()))
            return self._abort(self._undecided(f"too few bookies of the last ensemble could be fenced; no answer from {missing}"))
        self._fence_retries += 1
        return [SetTimer("fence", self._limits.recovery_retry_ns)]

    def _fence_again(self) -> list[Effect]:
        if self.state is not RecoveryState.FENCING:
            return []
        again, self._fence_failed = sorted(self._fence_failed), {}
        return [self._ask(None, position) for position in again]

    def _fenced(self) -> list[Effect]:
        """RC-6, RC-7."""
        assert self.metadata is not None
        self.state = RecoveryState.READING
        self._base = max([*self._heard.values(), self._first_of_last - 1])
        self._next_to_ask = self._next_to_decide = self._base + 1
        self.writer = LedgerWriter(
            self.ledger_id, self.metadata, self.version, self._placement, self._limits, frozen_lac=self._base, base=self._base
        )
        return self._ask_ahead()

    # --- reading forward -------------------------------------------------------------------------------------------

    def _ask_ahead(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._last is None and self._next_to_ask < self._next_to_decide + self._limits.recovery_window_entries:
            entry_id = self._next_to_ask
            self._next_to_ask += 1
            question = self._questions[entry_id] = _Question(entry_id)
            for position in self._distribution.write_set(entry_id):
                question.asked.add(position)
                effects.append(self._ask(entry_id, position))
        return effects

    def _entry_answer(self, entry_id: int, position: int, status: Status, body: bytes | None, now_ns: int) -> list[Effect]:
        question = self._questions.get(entry_id)
        if question is None:
            return self._length_answer(entry_id, position, body)
        question.asked.discard(position)
        entry = self._decode(body, entry_id) if status is Status.OK else None
        if entry is not None:
            question.entry = question.entry or entry
        elif status in DENIALS:
            question.denied.add(position)
        else:
            question.unknown[position] = status  # RC-11
        return self._decide(now_ns)

    def _decide(self, now_ns: int) -> list[Effect]:
        """RC-10, in entry order."""
        effects: list[Effect] = []
        while self.state is RecoveryState.READING and (question := self._questions.get(self._next_to_decide)) is not None:
            if question.entry is not None:
                del self._questions[question.entry_id]
                self._next_to_decide += 1
                effects += self._write_back(question.entry, now_ns)
            elif len(question.denied) >= self._distribution.denials_needed:
                self._last = question.entry_id - 1
                self._questions.clear()  # RC-8: answers beyond the end are ignored
                self.state = RecoveryState.DRAINING
            elif not question.asked and question.unknown:
                return effects + self._unknown(question)
            else:
                break
        if self.state is RecoveryState.READING:
            return effects + self._ask_ahead()
        return effects + self._maybe_close()

    def _unknown(self, question: _Question) -> list[Effect]:
        if question.retries < self._limits.recovery_retries_max:
            return [SetTimer("retry", self._limits.recovery_retry_ns)]
        answers = ", ".join(f"{self._read_from[p]} ({s.name})" for p, s in sorted(question.unknown.items()))
        return self._abort(self._undecided(f"entry {question.entry_id} can neither be read nor ruled out; no good answer from {answers}"))

    def _ask_again(self) -> list[Effect]:
        question = self._questions.get(self._next_to_decide)
        if self.state is not RecoveryState.READING or question is None or question.asked:
            return []
        question.retries += 1
        again, question.unknown = sorted(question.unknown), {}
        question.asked.update(again)
        return [self._ask(question.entry_id, position) for position in again]

    # --- writing back ------------------------------------------------------------------------------------------------

    def _write_back(self, entry: layout.Entry, now_ns: int) -> list[Effect]:
        """RC-13: payload and running length as read."""
        assert self.writer is not None
        if entry.entry_id != self.writer.last_add_pushed + 1:
            raise AssertionError(f"write-back of entry {entry.entry_id} after {self.writer.last_add_pushed}")
        self._length = entry.length
        payload = bytes(entry.payload)
        offsets = array("q", (0, len(payload)))
        before = entry.length - len(payload)
        effects = self._filter(self.writer.append(payload, offsets, entry.entry_id, now_ns, length_before=before))
        if self.writer.state is not WriterState.OPEN:
            return effects + self._abort(self.writer.error or self._undecided("write-back failed"))
        return effects

    def _write_back_event(self, event: Event, now_ns: int) -> list[Effect]:
        if self.writer is None or self.state not in (RecoveryState.READING, RecoveryState.DRAINING):
            return []
        effects = self._filter(self.writer.handle(event, now_ns))
        if self.writer.state is not WriterState.OPEN:
            return effects + self._abort(self.writer.error or self._undecided("write-back failed"))
        return effects + self._maybe_close()

    def _filter(self, effects: list[Effect]) -> list[Effect]:
        """Write-backs complete into this machine, not into an application call (RC-14)."""
        return [e for e in effects if isinstance(e, SendAdds | SetTimer | Log)]

    # --- closing -----------------------------------------------------------------------------------------------------

    def _maybe_close(self) -> list[Effect]:
        """RC-16, RC-17: all write-backs committed and the length known."""
        if self.state is not RecoveryState.DRAINING or self.writer is None or not self.writer.idle:
            return []
        assert self._last is not None and self.metadata is not None
        if self._length is None:
            if self._last >= 0:
                return self._ask_length()
            self._length = 0
        self.state = RecoveryState.CLOSING
        return [self._write_metadata(self._closing_metadata(self.metadata))]

    def _ask_length(self) -> list[Effect]:
        """Nothing was read in this run: the header of the last entry, which is committed, has the length (RC-16, D9)."""
        assert self._last is not None and self.metadata is not None
        ensemble = self.metadata.fragment_of(self._last).ensemble
        effects: list[Effect] = []
        for position in self._distribution.write_set(self._last):
            request = self._request()
            self._asked[request] = (self._last, position)
            effects.append(SendRead(request, ensemble[position], ReadRequest(request, self.ledger_id, self._last)))
        return effects

    def _length_answer(self, entry_id: int, position: int, body: bytes | None) -> list[Effect]:
        if self.state is not RecoveryState.DRAINING or entry_id != self._last or self._length is not None:
            return []
        entry = self._decode(body, entry_id)
        if entry is not None:
            self._length = entry.length
            return self._maybe_close()
        if any(e == entry_id for e, _ in self._asked.values()):
            return []
        return self._abort(self._undecided(f"entry {entry_id}, the last one, could not be read for the ledger's length"))

    def _closing_metadata(self, stored: LedgerMetadata) -> LedgerMetadata:
        """RC-17: the fragments being replaced, then the private changes of this run; none beyond the end."""
        assert self._last is not None and self._length is not None and self.writer is not None
        for first, ensemble in sorted(self.writer.private_changes.items()):
            if first <= self._last + 1:
                stored = stored.with_ensemble(first, ensemble)
        return stored.closed(self._last, self._length)

    def _closing_conflict(self, stored: LedgerMetadata) -> list[Effect]:
        """RC-18."""
        last = stored.last_fragment
        unchanged = last.ensemble == self._read_from and last.first_entry_id == self._first_of_last
        if stored.state is LedgerState.IN_RECOVERY and unchanged:
            return [self._write_metadata(self._closing_metadata(stored))]
        return self._abort(self._undecided("another program changed the last fragment during recovery"))

    def _done(self, closed: LedgerMetadata) -> list[Effect]:
        self.state = RecoveryState.DONE
        return [Complete(self._token, closed)]

    def _undecided(self, why: str) -> RecoveryFailedError:
        return RecoveryFailedError(f"ledger {self.ledger_id} stays IN_RECOVERY: {why}; try again when they are back", ledger=self.ledger_id)

    def _abort(self, error: BkError) -> list[Effect]:
        """RC-21."""
        self.state = RecoveryState.ABORTED
        return [Fail(self._token, error)]


def _as_error(error: Exception | None, ledger_id: int) -> BkError:
    return error if isinstance(error, BkError) else MetadataError(f"metadata of ledger {ledger_id}: {error}", ledger=ledger_id)
