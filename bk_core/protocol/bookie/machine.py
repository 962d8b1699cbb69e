"""The answers of one bookie (B-1..B-13; wire-protocol.md 8): requests and times in, replies and storage changes out.

The machine reads its storage through ``BookieStorageView`` and never changes it: it returns effects, which the host carries out *in order
and before the next input*. That is what serialises a fence with the adds of the ledger (B-5). Apart from the storage the machine only
knows its waiting long polls, so a restarted bookie is a new machine on the old storage.

Differences from Apache's bookie, all of them allowed by wire-protocol.md 14.2 (13) and wanted by B-4 and B-6:
the answer to a fence read waits for the fence mark whether it is positive or negative; fence marks, keys and explicit LACs of ledgers
without entries survive a crash; keys are compared after every restart; negative ids and ids that disagree with the body are refused;
the LAC is always known, so no long poll sleeps through data that is already here. Adds with deferred sync are synced before they are
answered like all others, so a force of the ledger has nothing left to do but to wait for what came before it.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace

from bk_core.errors import BookieIOError
from bk_core.protocol.bookie.answers import failure, io_error
from bk_core.protocol.bookie.listing import EntryListing
from bk_core.protocol.bookie.polls import Poll, PollTable
from bk_core.protocol.bookie.reads import BATCH_READ_BYTES_MAX, Added, BookieReads, advanced
from bk_core.protocol.bookie.records import (
    NO_ENTRIES,
    BookieStorageView,
    Effect,
    LedgerRecord,
    Persist,
    PersistMany,
    Reply,
    ReplyAfterSync,
    WakeLater,
)
from bk_core.protocol.bookie.rules import POLL_MS_MAX, POLLS_MAX
from bk_core.protocol.bookie.runs import AddsAnswer, ReadsAnswer, RequestedAdds, RequestedReads
from bk_core.protocol.wire.messages import (
    LAST_ENTRY,
    AddRequest,
    AddResponse,
    AuthRequest,
    AuthResponse,
    BatchReadRequest,
    BookieInfoRequest,
    EntryListRequest,
    ForceLedgerRequest,
    ForceLedgerResponse,
    ReadLacRequest,
    ReadRequest,
    Request,
    StartTlsRequest,
    StartTlsResponse,
    Status,
    UnservedRequest,
    WriteLacRequest,
    WriteLacResponse,
)

__all__ = [
    "BATCH_READ_BYTES_MAX",
    "BookieMachine",
    "BookieStorageView",
    "Effect",
    "LedgerRecord",
    "Persist",
    "PersistMany",
    "Reply",
    "ReplyAfterSync",
    "WakeLater",
    "io_error",
]

AUTH_DISABLED = "AuthDisabledPlugin"  # wire-protocol.md 10.1
ADD_BODY_BYTES_MIN = 24  # ledger, entry, LAC (wire-protocol.md 7.1)
LAC_BODY_BYTES_MIN = 16  # ledger, LAC (wire-protocol.md 7.4)

_ADD_IDS = struct.Struct(">qqq")
_LAC_IDS = struct.Struct(">qq")


def _has_to_go(moved: LedgerRecord) -> bool:
    """Return True if the ledger has entries to drop. Only the fence stays of a ledger that has left the bookie (B-12)."""
    return moved.has_entries or moved.limbo or not moved.fenced


class BookieMachine(BookieReads):
    """One bookie. Times are Unix milliseconds and must not go backwards. ``BookieRules`` has the single decisions."""

    def __init__(
        self,
        storage: BookieStorageView,
        *,
        read_only: bool = False,
        batch_read_bytes_max: int = BATCH_READ_BYTES_MAX,
        polls_max: int = POLLS_MAX,
        poll_ms_max: int = POLL_MS_MAX,
    ) -> None:
        super().__init__(storage, batch_read_bytes_max)
        self.read_only = read_only
        self.accept_recovery_adds = True
        self.fence_unknown = True
        self.polls_max = polls_max
        self.poll_ms_max = poll_ms_max
        self._polls = PollTable()

    # --- requests -------------------------------------------------------------------------------------------------

    def handle(self, tag: Hashable, request: Request, now_ms: int, *, may_wait: bool = True) -> list[Effect]:
        """Answer one request. ``tag`` is the host's own name for it and must be unique while the request is unanswered.

        ``may_wait`` is False if the peer has enough long polls that wait; this one is then answered as if its time were over (BKE-4).
        """
        try:
            return self._handle(tag, request, now_ms, may_wait)
        except BookieIOError:
            return [Reply(tag, failure(request, self._unreadable()))]

    def _handle(self, tag: Hashable, request: Request, now_ms: int, may_wait: bool) -> list[Effect]:
        match request:
            case AddRequest():
                return self._add(tag, request, now_ms)
            case ReadRequest(fence=True) | BatchReadRequest(fence=True):
                return self._fence(tag, request)
            case ReadRequest(previous_lac=int()):
                return self._long_poll(tag, request, now_ms, may_wait)
            case ReadRequest():
                return [Reply(tag, self._read(request, self._known(request.ledger_id)))]
            case BatchReadRequest():
                return [Reply(tag, self._batch_read(request, self._known(request.ledger_id)))]
            case WriteLacRequest():
                return self._write_lac(tag, request, now_ms)
            case ReadLacRequest():
                return [Reply(tag, self._read_lac(request))]
            case ForceLedgerRequest():
                return self._force(tag, request)
            case BookieInfoRequest():
                return [Reply(tag, self._info(request))]
            case EntryListRequest():
                return self._whole_list(tag, EntryListing(request))
            case AuthRequest():
                return [Reply(tag, AuthResponse(request.request_id, Status.OK, AUTH_DISABLED, b""))]
            case StartTlsRequest():
                return [Reply(tag, StartTlsResponse(request.request_id, Status.BAD_REQUEST))]
            case _:
                assert isinstance(request, UnservedRequest)  # a run of reads exists only at the client; a bookie sees single requests
                return [Reply(tag, failure(request, request.status))]

    # --- runs -----------------------------------------------------------------------------------------------------

    def handle_adds(self, tag: Hashable, run: RequestedAdds) -> list[Effect] | None:
        """Admit a whole run. Return None if any of it may be refused or ends a wait; its requests are then to be handled one by one."""
        try:
            record = self._storage.ledger(run.ledger_id) if run.ledger_id >= 0 else None
        except BookieIOError:
            return None
        first = AddRequest(0, run.ledger_id, run.first_entry_id, run.master_key, b"", run.recovery, run.high_priority)
        if self._refuse_any(first, record) is not None or self._polls.waits_for(run.ledger_id):
            return None
        after = self._after_add(record or LedgerRecord(run.ledger_id), run.master_key, run.last_entry_id, run.last_add_confirmed)
        response = AddsAnswer(run.ledger_id, run.first_entry_id, run.count, Status.OK)
        return [PersistMany(after, run.first_entry_id, run.count, run.bodies), self._confirmation(tag, response)]

    def handle_reads(self, tag: Hashable, run: RequestedReads, bytes_max: int) -> tuple[list[Effect], RequestedReads | None]:
        """Answer the start of a run with at most about ``bytes_max`` bytes. Return the effects and the rest of the run."""
        try:
            count, bodies = self._at_hand(self._known(run.ledger_id), run.first_entry_id, run.count, bytes_max)
        except BookieIOError:
            count = 0
        if not count:
            return self.handle(tag, run.first(), 0), run.after(1)
        return [Reply(tag, ReadsAnswer(run.ledger_id, run.first_entry_id, count, bodies))], run.after(count)

    def handle_list(self, tag: Hashable, listing: EntryListing) -> tuple[list[Effect], EntryListing | None]:
        """Make one piece of a list of entries (BKE-7). Return the effects, and the same listing while there is more to do."""
        try:
            answer = self._list_piece(listing)
        except BookieIOError:
            return [Reply(tag, failure(listing.request, self._unreadable()))], None
        return ([], listing) if answer is None else ([Reply(tag, answer)], None)

    def _whole_list(self, tag: Hashable, listing: EntryListing) -> list[Effect]:
        while True:
            effects, rest = self.handle_list(tag, listing)
            if rest is None:
                return effects

    # --- adds and explicit LACs -----------------------------------------------------------------------------------

    def _add(self, tag: Hashable, request: AddRequest, now_ms: int) -> list[Effect]:
        """Handle an add (B-1, B-2, B-8, B-9, B-11, B-13). The checks have the order of wire-protocol.md 8.2."""
        record = self._storage.ledger(request.ledger_id) if request.ledger_id >= 0 else None
        status = self._refuse_add(request, record)
        if status is not None:
            return [Reply(tag, failure(request, status))]
        ledger_id, entry_id, lac = _ADD_IDS.unpack_from(request.body)
        if (ledger_id, entry_id) != (request.ledger_id, request.entry_id):
            return [Reply(tag, failure(request, Status.BAD_REQUEST))]
        after = self._after_add(record or LedgerRecord(ledger_id), request.master_key, entry_id, lac)
        response = AddResponse(request.request_id, Status.OK, ledger_id, entry_id)
        effects: list[Effect] = [Persist(after, entry_id, bytes(request.body)), self._confirmation(tag, response)]
        if self._polls.waits_for(ledger_id):
            effects += self._advance_polls(after, now_ms, (entry_id, request.body))
        return effects

    def _refuse_add(self, request: AddRequest, record: LedgerRecord | None) -> Status | None:
        status = self._refuse_any(request, record)
        if status is None and len(request.body) < ADD_BODY_BYTES_MIN:
            return Status.BAD_REQUEST
        return status

    def _refuse_any(self, request: AddRequest, record: LedgerRecord | None) -> Status | None:
        """Return the status that refuses an add whatever its body is, or None."""
        if self._closed_to(request):
            return Status.READ_ONLY
        if request.ledger_id < 0:
            return Status.BAD_REQUEST
        if record is not None:
            if record.deleted:
                return Status.FENCED
            if not self._key_fits(record, request.master_key):
                return Status.UNAUTHORIZED
            if self._barred_by_fence(record, request):
                return Status.FENCED
        return Status.BAD_REQUEST if request.entry_id < 0 else None

    def _force(self, tag: Hashable, request: ForceLedgerRequest) -> list[Effect]:
        """Answer a force of a ledger OK, once all that came before it is durable (B-1)."""
        return [self._confirmation(tag, ForceLedgerResponse(request.request_id, Status.OK, request.ledger_id))]

    def _write_lac(self, tag: Hashable, request: WriteLacRequest, now_ms: int) -> list[Effect]:
        """Handle an explicit LAC (wire-protocol.md 8.8). The LAC inside the packet (wire-protocol.md 7.4) counts; it never lowers a known
        LAC (B-9)."""
        record = self._storage.ledger(request.ledger_id) if request.ledger_id >= 0 else None
        status = self._refuse_write_lac(request, record)
        if status is not None:
            return [Reply(tag, failure(request, status))]
        ledger_id, lac = _LAC_IDS.unpack_from(request.body)
        if ledger_id != request.ledger_id:
            return [Reply(tag, failure(request, Status.BAD_REQUEST))]
        before = record or LedgerRecord(ledger_id)
        after = replace(
            before,
            key=request.master_key,
            explicit_lac=bytes(request.body),
            last_add_confirmed=self._greater_lac(before.last_add_confirmed, lac),
        )
        response = WriteLacResponse(request.request_id, Status.OK, ledger_id)
        return [Persist(after), self._confirmation(tag, response), *self._advance_polls(after, now_ms, None)]

    def _refuse_write_lac(self, request: WriteLacRequest, record: LedgerRecord | None) -> Status | None:
        if self.read_only:
            return Status.READ_ONLY
        if request.ledger_id < 0 or len(request.body) < LAC_BODY_BYTES_MIN:
            return Status.BAD_REQUEST
        if record is not None and record.deleted:
            return Status.NO_LEDGER
        if record is not None and not self._key_fits(record, request.master_key):
            return Status.UNAUTHORIZED
        return None

    # --- fences ---------------------------------------------------------------------------------------------------

    def _fence(self, tag: Hashable, request: ReadRequest | BatchReadRequest) -> list[Effect]:
        """Handle a fence (B-3, also when read-only; B-4; B-13; BKE-3). The answer is made from everything admitted before (B-5)."""
        if not self._may_fence(request):
            return [Reply(tag, failure(request, Status.UNAUTHORIZED))]
        if request.ledger_id < 0:
            return [Reply(tag, failure(request, Status.BAD_REQUEST))]
        known = self._storage.ledger(request.ledger_id)
        if known is None and not self._may_make_record():
            return [Reply(tag, failure(request, Status.IO_ERROR))]
        before = self._to_be_fenced(request.ledger_id, known)
        if before.deleted:
            return [self._fence_reply(tag, failure(request, Status.NO_LEDGER))]
        if not self._key_fits(before, request.master_key):
            return [Reply(tag, failure(request, Status.UNAUTHORIZED))]
        after = self._fenced(before, request.master_key)
        mark: list[Effect] = [] if after is before else [Persist(after)]
        # R30: a fence ends a wait only when it is set; otherwise pollers of a fenced ledger would spin.
        polls = [] if before.fenced else [self._end_poll(poll) for poll in self._polls.of_ledger(request.ledger_id)]
        return [*mark, self._fence_reply(tag, self._fence_answer(request, after)), *polls]

    # --- long polls (wire-protocol.md 8.7) ------------------------------------------------------------------------

    def _long_poll(self, tag: Hashable, request: ReadRequest, now_ms: int, may_wait: bool) -> list[Effect]:
        record = self._known(request.ledger_id)
        if record is None:
            return [Reply(tag, failure(request, Status.NO_LEDGER))]
        if not may_wait or not self._has_place(len(self._polls)) or not self._must_wait(request, record):
            return [Reply(tag, self._poll_answer(request, record))]
        poll = Poll(tag, request, now_ms + self._longest_wait_ms(request.timeout_ms or 0))
        self._polls.add(poll)
        return [WakeLater(tag, poll.deadline_ms)]

    def _must_wait(self, request: ReadRequest, record: LedgerRecord) -> bool:
        """Return True if the poll has to wait. A fence set earlier does not shorten the wait (R30). In limbo the LAC stays unknown, however
        long a poll waits (B-10)."""
        wants_to = request.timeout_ms is not None and request.timeout_ms > 0
        impossible = request.piggyback and request.entry_id != LAST_ENTRY
        return wants_to and not impossible and not advanced(record, request) and not self._end_unknown(record)

    def _advance_polls(self, record: LedgerRecord, now_ms: int, added: Added | None) -> list[Effect]:
        """End the polls that wait for a LAC that this ledger has reached now."""
        waiting = self._polls.of_ledger(record.ledger_id)
        return [self._end_poll(poll, record, now_ms, added) for poll in waiting if advanced(record, poll.request)]

    def _end_poll(
        self, poll: Poll, record: LedgerRecord | None = None, advanced_at_ms: int | None = None, added: Added | None = None
    ) -> Reply:
        """Answer a poll from ``record``, which need not be stored yet, or from storage."""
        self._polls.forget(poll)
        try:
            record = record or self._known(poll.request.ledger_id)
            if record is None:
                return Reply(poll.tag, failure(poll.request, Status.NO_LEDGER))
            return Reply(poll.tag, self._poll_answer(poll.request, record, advanced_at_ms, added))
        except BookieIOError:
            return Reply(poll.tag, failure(poll.request, self._unreadable()))

    def wake(self, now_ms: int) -> list[Effect]:
        """End the long polls whose time is over."""
        effects: list[Effect] = []
        while (poll := self._polls.next_due(now_ms)) is not None:
            effects.append(self._end_poll(poll))
        return effects

    def cancel(self, tag: Hashable) -> None:
        """Forget a waiting request, because its connection is gone. Unknown tags are ignored."""
        poll = self._polls.get(tag)
        if poll is not None:
            self._polls.forget(poll)

    def next_wake_ms(self) -> int | None:
        """Return the next time at which ``wake`` has something to do, or None if no poll waits."""
        return self._polls.next_deadline_ms()

    # --- garbage collection (B-12: ``collection.may_delete`` decides) ---------------------------------------------

    def collect(self, ledger_id: int, now_ms: int) -> list[Effect]:
        """Drop a ledger whose metadata is gone, and leave a fenced tombstone (B-6). The caller has proven that it is gone."""
        record = self._storage.ledger(ledger_id)
        if record is None or record.deleted:
            return []
        return [Persist(self._tombstone(record, now_ms), drop_entries=True), *self._refuse_polls(ledger_id)]

    def collect_moved(self, ledger_id: int) -> list[Effect]:
        """Drop the entries of a closed ledger that has left this bookie (B-12). The ledger leaves limbo too, because none of its entries
        belongs here."""
        record = self._known(ledger_id)
        if record is None or not _has_to_go(record):
            return []
        return [Persist(self._without_entries(record), drop_entries=True), *self._refuse_polls(ledger_id)]

    def holds_moved(self, ledger_id: int) -> bool:
        """True if ``collect_moved`` would find anything to drop."""
        record = self._known(ledger_id)
        return record is not None and _has_to_go(record)

    def forget_tombstone(self, ledger_id: int, now_ms: int, keep_ms: int) -> list[Effect]:
        """Forget a deleted ledger after ``keep_ms`` (B-6); nothing for any other ledger."""
        record = self._storage.ledger(ledger_id)
        if record is None or not self._tombstone_expired(record, now_ms, keep_ms):
            return []
        return [Persist(record, drop_entries=True, forget=True)]

    def _refuse_polls(self, ledger_id: int) -> list[Effect]:
        effects: list[Effect] = []
        for poll in self._polls.of_ledger(ledger_id):
            self._polls.forget(poll)
            effects.append(Reply(poll.tag, failure(poll.request, Status.NO_LEDGER)))
        return effects

    # --- data loss (B-10, RC-26, RC-27) ---------------------------------------------------------------------------

    def enter_limbo(self, ledger_ids: Iterable[int], keys: Mapping[int, bytes] | None = None) -> list[Effect]:
        """Put ledgers of which this bookie may have lost entries into limbo. This must be durable before the bookie serves anything.

        ``keys`` are the known master keys, by ledger; the others are pinned by the first request that has one (B-13).
        """
        effects: list[Effect] = []
        for ledger_id in ledger_ids:
            before = self._record_after_loss(ledger_id, keys)
            after = self._lost(before)
            if not before.deleted and after != before:
                effects.append(Persist(after))
        return effects

    def fence_closed(self, ledger_ids: Iterable[int], keys: Mapping[int, bytes] | None = None) -> list[Effect]:
        """Fence ledgers that were CLOSED when data was lost, because a fence that helped to close one may have been lost."""
        effects: list[Effect] = []
        for ledger_id in ledger_ids:
            before = self._record_after_loss(ledger_id, keys)
            if not before.deleted and not before.fenced:
                effects.append(Persist(replace(before, fenced=True)))
        return effects

    def _record_after_loss(self, ledger_id: int, keys: Mapping[int, bytes] | None) -> LedgerRecord:
        """Return the record of a ledger after a loss. A damaged record is among the losses: a new one takes its place, for the entries that
        the index still has."""
        new = LedgerRecord(ledger_id, (keys or {}).get(ledger_id))
        try:
            return self._storage.ledger(ledger_id) or new
        except BookieIOError:
            return replace(new, last_entry_id=max(self._storage.entry_ids(ledger_id), default=NO_ENTRIES))

    def missing(self, ledger_id: int, entry_ids: Iterable[int]) -> list[int]:
        """Return those of ``entry_ids`` that must be fetched because they are missing or damaged; none for a deleted ledger."""
        record = self._storage.ledger(ledger_id)
        if record is not None and record.deleted:
            return []
        return [entry_id for entry_id in entry_ids if not self._holds(ledger_id, entry_id)]

    def _holds(self, ledger_id: int, entry_id: int) -> bool:
        try:
            return self._storage.entry(ledger_id, entry_id) is not None
        except BookieIOError:
            return False

    def restore(self, ledger_id: int, entry_id: int, body: bytes, key: bytes | None) -> list[Effect]:
        """Store one entry that was fetched from another replica and verified, like a recovery add (B-2). ``key`` is pinned if there is
        none."""
        before = self._storage.ledger(ledger_id) or LedgerRecord(ledger_id)
        if before.deleted:
            return []
        lac = _ADD_IDS.unpack_from(body)[2]
        return [Persist(self._after_add(before, key if before.key is None else before.key, entry_id, lac), entry_id, body)]

    def leave_limbo(self, ledger_id: int) -> list[Effect]:
        """Take the ledger out of limbo, because it was recovered and closed and its entries were fetched. The fence stays (RC-27)."""
        record = self._storage.ledger(ledger_id)
        return [Persist(replace(record, limbo=False))] if record is not None and record.limbo else []
