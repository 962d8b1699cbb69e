"""What one bookie answers (B-1..B-13; wire-protocol.md 8): requests and times in, replies and storage changes out.

The machine reads its storage through ``BookieStorageView`` and never changes it: it returns effects, which the host carries out *in order
and before the next input*. That is what serialises a fence with the adds of the ledger (B-5). Apart from the storage the machine only
knows its waiting long polls, so a restarted bookie is a new machine on the old storage.

Differences from Apache's bookie, all of them allowed by wire-protocol.md 14.2 (13) and wanted by B-4 and B-6:
the answer to a fence read waits for the fence mark whether it is positive or negative; fence marks, keys and explicit LACs of ledgers
without entries survive a crash; keys are compared after every restart; negative ids and ids that disagree with the body are refused;
the LAC is always known, so no long poll sleeps through data that is already here.
"""

from __future__ import annotations

import hmac
import struct
from bisect import insort
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from bk_core.errors import BookieIOError
from bk_core.protocol.wire.messages import (
    LAST_ENTRY,
    AddRequest,
    AddResponse,
    AuthRequest,
    AuthResponse,
    BatchReadRequest,
    BatchReadResponse,
    BookieInfoRequest,
    BookieInfoResponse,
    EntryListRequest,
    EntryListResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    StartTlsRequest,
    StartTlsResponse,
    Status,
    UnservedRequest,
    UnservedResponse,
    WriteLacRequest,
    WriteLacResponse,
)

NO_LAC = -1
NO_ENTRIES = -1
AUTH_DISABLED = "AuthDisabledPlugin"  # wire-protocol.md 10.1
BATCH_READ_BYTES_MAX = 5 << 20  # wire-protocol.md 8.5
ADD_BODY_BYTES_MIN = 24  # ledger, entry, LAC (wire-protocol.md 7.1)
LAC_BODY_BYTES_MIN = 16  # ledger, LAC (wire-protocol.md 7.4)
INFO_TOTAL, INFO_FREE = 0x01, 0x02  # bits of BookieInfoRequest.requested

_BATCH_FRAME_START = 4 + 24 + 8  # length prefix, response prefix, request id
_ADD_IDS = struct.Struct(">qqq")
_LAC_IDS = struct.Struct(">qq")
_LIST_HEADER = struct.Struct(">ii56x")
_LIST_GROUP = struct.Struct(">qqii")
_SEQUENCE_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """What a bookie knows about one ledger besides its entries. All of it survives a restart.

    ``key`` is None only for a ledger in limbo that nobody has presented a key for; the next key is then pinned.
    ``deleted`` is the tombstone left by garbage collection, so that an old writer stays locked out (B-6).
    """

    ledger_id: int
    key: bytes | None = field(default=None, repr=False)
    fenced: bool = False
    limbo: bool = False
    deleted: bool = False
    last_add_confirmed: int = NO_LAC  # the greatest LAC seen in adds and explicit LACs (B-9)
    last_entry_id: int = NO_ENTRIES  # the highest id held here
    explicit_lac: bytes | None = field(default=None, repr=False)  # the last packet, byte for byte

    @property
    def has_entries(self) -> bool:
        return self.last_entry_id != NO_ENTRIES


class BookieStorageView(Protocol):
    """The machine's eyes. Everything applied before is visible, durable or not (B-5). Any method may raise BookieIOError."""

    def ledger(self, ledger_id: int) -> LedgerRecord | None: ...

    def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        """None only if the index proves absence (B-7)."""

    def entry_ids(self, ledger_id: int) -> Iterable[int]:
        """Ascending."""

    def disk_bytes(self) -> tuple[int, int]:
        """Total and free."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Send now."""

    tag: Hashable
    response: Response


@dataclass(frozen=True, slots=True)
class ReplyAfterSync:
    """Send once every change made so far is durable; if that fails, send ``io_error(response)`` instead."""

    tag: Hashable
    response: Response


@dataclass(frozen=True, slots=True)
class Persist:
    """Keep ``record`` and, if ``entry_id`` is given, ``body``: both or neither. ``drop_entries`` removes the ledger's entries first."""

    record: LedgerRecord
    entry_id: int | None = None
    body: bytes = field(default=b"", repr=False)
    drop_entries: bool = False


@dataclass(frozen=True, slots=True)
class WakeLater:
    """The request ``tag`` waits: call ``wake`` at ``at_ms``. It may be answered before by another input."""

    tag: Hashable
    at_ms: int


Effect = Reply | ReplyAfterSync | Persist | WakeLater


@dataclass(slots=True)
class _Poll:
    tag: Hashable
    request: ReadRequest
    deadline_ms: int


class BookieMachine:
    """One bookie. ``read_only`` may be set by the host at any time (B-11). Times are Unix milliseconds and must not go backwards."""

    def __init__(self, storage: BookieStorageView, *, read_only: bool = False, batch_read_bytes_max: int = BATCH_READ_BYTES_MAX) -> None:
        self._storage = storage
        self.read_only = read_only
        self.accept_recovery_adds = True  # while read-only: there is reserve space (B-11)
        self._batch_read_bytes_max = batch_read_bytes_max
        self._polls: dict[Hashable, _Poll] = {}
        self._polls_by_ledger: dict[int, list[Hashable]] = {}
        self._deadlines: list[_Poll] = []  # latest first; holds answered polls until they surface or become too many

    # --- inputs -------------------------------------------------------------------------------------------------

    def handle(self, tag: Hashable, request: Request, now_ms: int) -> list[Effect]:
        """Answer one request. ``tag`` is the host's own name for it and must be unique while the request is unanswered."""
        try:
            return self._handle(tag, request, now_ms)
        except BookieIOError:
            return [Reply(tag, _failure(request, Status.IO_ERROR))]

    def wake(self, now_ms: int) -> list[Effect]:
        """End the long polls whose time is over."""
        effects: list[Effect] = []
        while self._deadlines and self._deadlines[-1].deadline_ms <= now_ms:
            poll = self._deadlines.pop()
            if self._polls.get(poll.tag) is poll:
                effects.append(self._end_poll(poll, None))
        return effects

    def cancel(self, tag: Hashable) -> None:
        """Forget a waiting request, because its connection is gone. Unknown tags are fine."""
        poll = self._polls.get(tag)
        if poll is not None:
            self._forget(poll)

    def next_wake_ms(self) -> int | None:
        """When ``wake`` has something to do next; None if nobody waits."""
        while self._deadlines and self._polls.get(self._deadlines[-1].tag) is not self._deadlines[-1]:
            self._deadlines.pop()
        return self._deadlines[-1].deadline_ms if self._deadlines else None

    def collect(self, ledger_id: int, now_ms: int) -> list[Effect]:
        """Drop a ledger whose metadata is gone (B-12), leaving a fenced tombstone (B-6). The caller has proven that it is gone."""
        record = self._storage.ledger(ledger_id)
        if record is None or record.deleted:
            return []
        tombstone = LedgerRecord(ledger_id, record.key, fenced=True, deleted=True)
        effects: list[Effect] = [Persist(tombstone, drop_entries=True)]
        for poll in self._waiting(ledger_id):
            self._forget(poll)
            effects.append(Reply(poll.tag, _failure(poll.request, Status.NO_LEDGER)))
        return effects

    def enter_limbo(self, ledger_id: int) -> list[Effect]:
        """B-10: this bookie may have lost entries of the ledger. Fences it too; to be durable before the bookie serves anything."""
        record = self._storage.ledger(ledger_id) or LedgerRecord(ledger_id)
        return [] if record.deleted else [Persist(replace(record, fenced=True, limbo=True))]

    def leave_limbo(self, ledger_id: int) -> list[Effect]:
        """RC-27: the ledger was recovered, closed and its entries fetched. The fence stays."""
        record = self._storage.ledger(ledger_id)
        return [Persist(replace(record, limbo=False))] if record is not None and record.limbo else []

    # --- dispatch -----------------------------------------------------------------------------------------------

    def _handle(self, tag: Hashable, request: Request, now_ms: int) -> list[Effect]:
        match request:
            case AddRequest():
                return self._add(tag, request, now_ms)
            case ReadRequest(fence=True) | BatchReadRequest(fence=True):
                return self._fence(tag, request, now_ms)
            case ReadRequest(previous_lac=int()):
                return self._long_poll(tag, request, now_ms)
            case ReadRequest():
                return [Reply(tag, self._read(request))]
            case BatchReadRequest():
                return [Reply(tag, self._batch_read(request))]
            case WriteLacRequest():
                return self._write_lac(tag, request, now_ms)
            case ReadLacRequest():
                return [Reply(tag, self._read_lac(request))]
            case ForceLedgerRequest():
                return [ReplyAfterSync(tag, ForceLedgerResponse(request.request_id, Status.OK, request.ledger_id))]
            case BookieInfoRequest():
                return [Reply(tag, self._info(request))]
            case EntryListRequest():
                return [Reply(tag, self._entry_list(request))]
            case AuthRequest():
                return [Reply(tag, AuthResponse(request.request_id, Status.OK, AUTH_DISABLED, b""))]
            case StartTlsRequest():
                return [Reply(tag, StartTlsResponse(request.request_id, Status.BAD_REQUEST))]
            case UnservedRequest():
                return [Reply(tag, _failure(request, request.status))]

    # --- writing ------------------------------------------------------------------------------------------------

    def _add(self, tag: Hashable, request: AddRequest, now_ms: int) -> list[Effect]:
        """B-1, B-2, B-8, B-11, B-13; order of the checks: wire-protocol.md 8.2."""
        record = self._storage.ledger(request.ledger_id) if request.ledger_id >= 0 else None
        status = self._refuse_add(request, record)
        if status is not None:
            return [Reply(tag, _failure(request, status))]
        ledger_id, entry_id, lac = _ADD_IDS.unpack_from(request.body)
        if (ledger_id, entry_id) != (request.ledger_id, request.entry_id):
            return [Reply(tag, _failure(request, Status.BAD_REQUEST))]
        before = record or LedgerRecord(ledger_id, request.master_key)
        after = LedgerRecord(
            ledger_id,
            request.master_key,
            before.fenced,
            before.limbo,
            False,
            max(before.last_add_confirmed, lac),
            max(before.last_entry_id, entry_id),
            before.explicit_lac,
        )
        response = AddResponse(request.request_id, Status.OK, ledger_id, entry_id)
        effects: list[Effect] = [Persist(after, entry_id, bytes(request.body)), ReplyAfterSync(tag, response)]
        if ledger_id in self._polls_by_ledger:
            effects += self._advance_polls(after, now_ms, (entry_id, request.body))
        return effects

    def _refuse_add(self, request: AddRequest, record: LedgerRecord | None) -> Status | None:
        if self.read_only and not (request.recovery and request.high_priority and self.accept_recovery_adds):
            return Status.READ_ONLY
        if request.ledger_id < 0:
            return Status.BAD_REQUEST
        if record is not None:
            if record.deleted:
                return Status.FENCED
            if not _key_fits(record, request.master_key):
                return Status.UNAUTHORIZED
            if record.fenced and not request.recovery:
                return Status.FENCED
        if request.entry_id < 0 or len(request.body) < ADD_BODY_BYTES_MIN:
            return Status.BAD_REQUEST
        return None

    def _write_lac(self, tag: Hashable, request: WriteLacRequest, now_ms: int) -> list[Effect]:
        """wire-protocol.md 8.8. The LAC that counts is the one inside the packet (7.4); it never lowers a known LAC (B-9)."""
        record = self._storage.ledger(request.ledger_id) if request.ledger_id >= 0 else None
        status = self._refuse_write_lac(request, record)
        if status is not None:
            return [Reply(tag, _failure(request, status))]
        ledger_id, lac = _LAC_IDS.unpack_from(request.body)
        if ledger_id != request.ledger_id:
            return [Reply(tag, _failure(request, Status.BAD_REQUEST))]
        before = record or LedgerRecord(ledger_id)
        after = replace(
            before,
            key=request.master_key,
            explicit_lac=bytes(request.body),
            last_add_confirmed=max(before.last_add_confirmed, lac),
        )
        response = WriteLacResponse(request.request_id, Status.OK, ledger_id)
        return [Persist(after), ReplyAfterSync(tag, response), *self._advance_polls(after, now_ms, None)]

    def _refuse_write_lac(self, request: WriteLacRequest, record: LedgerRecord | None) -> Status | None:
        if self.read_only:
            return Status.READ_ONLY
        if request.ledger_id < 0 or len(request.body) < LAC_BODY_BYTES_MIN:
            return Status.BAD_REQUEST
        if record is not None and record.deleted:
            return Status.NO_LEDGER
        if record is not None and not _key_fits(record, request.master_key):
            return Status.UNAUTHORIZED
        return None

    def _fence(self, tag: Hashable, request: ReadRequest | BatchReadRequest, now_ms: int) -> list[Effect]:
        """B-3: also ledgers never heard of, also when read-only. B-4: every answer that fences or relies on a fence waits for the mark."""
        if not request.master_key:
            return [Reply(tag, _failure(request, Status.UNAUTHORIZED))]
        if request.ledger_id < 0:
            return [Reply(tag, _failure(request, Status.BAD_REQUEST))]
        record = self._storage.ledger(request.ledger_id) or LedgerRecord(request.ledger_id)
        if record.deleted:
            return [ReplyAfterSync(tag, _failure(request, Status.NO_LEDGER))]
        if not _key_fits(record, request.master_key):
            return [Reply(tag, _failure(request, Status.UNAUTHORIZED))]
        fenced = record if record.fenced and record.key is not None else replace(record, key=request.master_key, fenced=True)
        changes: list[Effect] = [] if fenced is record else [Persist(fenced)]
        response = self._fence_answer(request, fenced)
        polls = [] if record.fenced else [self._end_poll(poll, None) for poll in self._waiting(request.ledger_id)]
        return [*changes, ReplyAfterSync(tag, response), *polls]

    def _fence_answer(self, request: ReadRequest | BatchReadRequest, record: LedgerRecord) -> Response:
        """The read part. Fence reads carry no ``max_lac`` (wire-protocol.md 8.3). A failed read must not undo the fence."""
        try:
            if isinstance(request, BatchReadRequest):
                return self._batch_read_of(request, record)
            status, body = self._find(record, request.entry_id)
        except BookieIOError:
            return _failure(request, Status.IO_ERROR)
        return ReadResponse(request.request_id, status, request.ledger_id, request.entry_id, body)

    # --- reading ------------------------------------------------------------------------------------------------

    def _known(self, ledger_id: int) -> LedgerRecord | None:
        record = self._storage.ledger(ledger_id) if ledger_id >= 0 else None
        return None if record is None or record.deleted else record

    def _find(self, record: LedgerRecord | None, entry_id: int) -> tuple[Status, bytes | None]:
        """One entry, or the definite negative (B-7). In limbo nothing absent is ever denied, nor is the end known (B-10)."""
        if record is None:
            return Status.NO_LEDGER, None
        if entry_id == LAST_ENTRY:
            return self._find_last(record)
        body = self._storage.entry(record.ledger_id, entry_id) if 0 <= entry_id <= record.last_entry_id else None
        if body is not None:
            return Status.OK, body
        return (Status.UNKNOWN_LEDGER_STATE if record.limbo else Status.NO_ENTRY), None

    def _find_last(self, record: LedgerRecord) -> tuple[Status, bytes | None]:
        if record.limbo:
            return Status.UNKNOWN_LEDGER_STATE, None
        if not record.has_entries:
            return Status.NO_ENTRY, None
        body = self._storage.entry(record.ledger_id, record.last_entry_id)
        if body is None:
            raise BookieIOError("the last entry of a ledger is not where the index says", ledger_id=record.ledger_id)
        return Status.OK, body

    def _read(self, request: ReadRequest) -> ReadResponse:
        """wire-protocol.md 8.3, 8.4. ``max_lac`` goes with every entry found; v2 has no place for it."""
        record = self._known(request.ledger_id)
        status, body = self._find(record, request.entry_id)
        max_lac = record.last_add_confirmed if record is not None and body is not None else None
        return ReadResponse(request.request_id, status, request.ledger_id, request.entry_id, body, max_lac)

    def _batch_read(self, request: BatchReadRequest) -> BatchReadResponse:
        return self._batch_read_of(request, self._known(request.ledger_id))

    def _batch_read_of(self, request: BatchReadRequest, record: LedgerRecord | None) -> BatchReadResponse:
        """wire-protocol.md 8.5: the first entry whatever its size, then entries while the whole frame stays within the limit."""
        limit = min(request.bytes_max, self._batch_read_bytes_max)
        frame_bytes = _BATCH_FRAME_START
        parts: list[bytes] = []
        for index, (status, body) in enumerate(self._entries_from(record, request.entry_id, request.entries_max)):
            if body is None:
                if index == 0:
                    return BatchReadResponse(request.request_id, status, request.ledger_id, request.entry_id)
                break
            frame_bytes += 4 + len(body)
            if index > 0 and frame_bytes > limit:
                break
            parts += (len(body).to_bytes(4, "big"), body)
        return BatchReadResponse(request.request_id, Status.OK, request.ledger_id, request.entry_id, b"".join(parts))

    def _entries_from(self, record: LedgerRecord | None, first_entry_id: int, entries_max: int) -> Iterator[tuple[Status, bytes | None]]:
        yield self._find(record, first_entry_id)  # an IO error here is the answer; later ones only end the run
        entry_id = first_entry_id + 1
        while entries_max <= 0 or entry_id - first_entry_id < entries_max:
            try:
                found = self._find(record, entry_id)
            except BookieIOError:
                return
            yield found
            entry_id += 1

    def _read_lac(self, request: ReadLacRequest) -> ReadLacResponse:
        """The table of wire-protocol.md 8.8, as of 4.15: an explicit LAC without entries is IO_ERROR with the packet attached."""
        record = self._known(request.ledger_id)
        if record is not None and record.limbo:
            return ReadLacResponse(request.request_id, Status.UNKNOWN_LEDGER_STATE, request.ledger_id)
        last = self._find_last(record)[1] if record is not None else None
        packet = record.explicit_lac if record is not None else None
        if last is not None:
            status = Status.OK
        else:
            status = Status.NO_ENTRY if packet is None else Status.IO_ERROR
        return ReadLacResponse(request.request_id, status, request.ledger_id, packet, last)

    def _info(self, request: BookieInfoRequest) -> BookieInfoResponse:
        """wire-protocol.md 8.11: only the numbers asked for."""
        total, free = self._storage.disk_bytes()
        return BookieInfoResponse(
            request.request_id,
            Status.OK,
            total if request.requested & INFO_TOTAL else None,
            free if request.requested & INFO_FREE else None,
        )

    def _entry_list(self, request: EntryListRequest) -> EntryListResponse:
        record = self._known(request.ledger_id)
        if record is None:
            return EntryListResponse(request.request_id, Status.NO_LEDGER, request.ledger_id)
        if record.limbo:
            return EntryListResponse(request.request_id, Status.UNKNOWN_LEDGER_STATE, request.ledger_id)
        blob = encode_entry_list(self._storage.entry_ids(request.ledger_id))
        return EntryListResponse(request.request_id, Status.OK, request.ledger_id, blob)

    # --- long polls (wire-protocol.md 8.7) ------------------------------------------------------------------------

    def _long_poll(self, tag: Hashable, request: ReadRequest, now_ms: int) -> list[Effect]:
        record = self._known(request.ledger_id)
        if record is None:
            return [Reply(tag, _failure(request, Status.NO_LEDGER))]
        waits = request.timeout_ms is not None and request.timeout_ms > 0
        if not waits or _advanced(record, request) or (request.piggyback and request.entry_id != LAST_ENTRY):
            return [Reply(tag, self._poll_answer(request, record, None))]
        poll = _Poll(tag, request, now_ms + (request.timeout_ms or 0))
        self._polls[tag] = poll
        self._polls_by_ledger.setdefault(request.ledger_id, []).append(tag)
        insort(self._deadlines, poll, key=_latest_first)
        return [WakeLater(tag, poll.deadline_ms)]

    def _poll_answer(
        self, request: ReadRequest, record: LedgerRecord, advanced_at_ms: int | None, added: tuple[int, bytes] | None = None
    ) -> Response:
        """``added`` is an entry whose change the host has not applied yet, because it is part of the same effects."""
        if not request.piggyback:
            return replace(self._read_with(request, record, added), lac_update_timestamp_ms=advanced_at_ms)
        if request.entry_id != LAST_ENTRY:
            return _failure(request, Status.BAD_REQUEST)
        if not record.has_entries and record.explicit_lac is None:
            return _failure(request, Status.UNKNOWN_LEDGER_STATE if record.limbo else Status.NO_ENTRY)
        entry_id, body = LAST_ENTRY, None
        if _advanced(record, request):
            wanted = (request.previous_lac if request.previous_lac is not None else NO_LAC) + 1
            body = self._find_with(record, wanted, added)[1]
            entry_id = wanted if body is not None else LAST_ENTRY
        lac = record.last_add_confirmed
        return ReadResponse(request.request_id, Status.OK, request.ledger_id, entry_id, body, lac, advanced_at_ms)

    def _read_with(self, request: ReadRequest, record: LedgerRecord, added: tuple[int, bytes] | None) -> ReadResponse:
        status, body = self._find_with(record, request.entry_id, added)
        max_lac = record.last_add_confirmed if body is not None else None
        return ReadResponse(request.request_id, status, request.ledger_id, request.entry_id, body, max_lac)

    def _find_with(self, record: LedgerRecord, entry_id: int, added: tuple[int, bytes] | None) -> tuple[Status, bytes | None]:
        if added is not None and not record.limbo:
            if entry_id == added[0] or (entry_id == LAST_ENTRY and record.last_entry_id == added[0]):
                return Status.OK, bytes(added[1])
        return self._find(record, entry_id)

    def _advance_polls(self, record: LedgerRecord, now_ms: int, added: tuple[int, bytes] | None) -> list[Effect]:
        """End the polls that wait for a LAC this ledger has reached now."""
        ended: list[Effect] = []
        for poll in self._waiting(record.ledger_id):
            if _advanced(record, poll.request):
                ended.append(self._end_poll(poll, now_ms, record, added))
        return ended

    def _end_poll(
        self,
        poll: _Poll,
        advanced_at_ms: int | None,
        record: LedgerRecord | None = None,
        added: tuple[int, bytes] | None = None,
    ) -> Reply:
        self._forget(poll)
        try:
            record = record or self._known(poll.request.ledger_id)
            if record is None:
                return Reply(poll.tag, _failure(poll.request, Status.NO_LEDGER))
            return Reply(poll.tag, self._poll_answer(poll.request, record, advanced_at_ms, added))
        except BookieIOError:
            return Reply(poll.tag, _failure(poll.request, Status.IO_ERROR))

    def _waiting(self, ledger_id: int) -> list[_Poll]:
        return [self._polls[tag] for tag in self._polls_by_ledger.get(ledger_id, ())]

    def _forget(self, poll: _Poll) -> None:
        del self._polls[poll.tag]
        tags = self._polls_by_ledger[poll.request.ledger_id]
        tags.remove(poll.tag)
        if not tags:
            del self._polls_by_ledger[poll.request.ledger_id]
        if len(self._deadlines) > 2 * len(self._polls) + 64:
            self._deadlines = sorted(self._polls.values(), key=_latest_first)


def _latest_first(poll: _Poll) -> int:
    return -poll.deadline_ms


def _advanced(record: LedgerRecord, request: ReadRequest) -> bool:
    return request.previous_lac is not None and record.last_add_confirmed > request.previous_lac


def _key_fits(record: LedgerRecord, key: bytes) -> bool:
    """B-13. The first key presented for a ledger is its key for ever (wire-protocol.md 8.1)."""
    return record.key is None or hmac.compare_digest(record.key, key)


def _failure(request: Request, status: Status) -> Response:
    """The refusal that fits ``request``, ids echoed as they were asked for (wire-protocol.md 5.3, 4.3)."""
    match request:
        case AddRequest():
            return AddResponse(request.request_id, status, request.ledger_id, request.entry_id)
        case ReadRequest():
            return ReadResponse(request.request_id, status, request.ledger_id, request.entry_id)
        case BatchReadRequest():
            return BatchReadResponse(request.request_id, status, request.ledger_id, request.entry_id)
        case AuthRequest():
            return AuthResponse(request.request_id, status)
        case WriteLacRequest():
            return WriteLacResponse(request.request_id, status, request.ledger_id)
        case ReadLacRequest():
            return ReadLacResponse(request.request_id, status, request.ledger_id)
        case ForceLedgerRequest():
            return ForceLedgerResponse(request.request_id, status, request.ledger_id)
        case BookieInfoRequest():
            return BookieInfoResponse(request.request_id, status)
        case EntryListRequest():
            return EntryListResponse(request.request_id, status, request.ledger_id)
        case StartTlsRequest():
            return StartTlsResponse(request.request_id, status)
        case UnservedRequest():
            return UnservedResponse(request.request_id, status, request.operation, request.version, request.ledger_id, request.entry_id)


def io_error(response: Response) -> Response:
    """``response`` turned into IO_ERROR, with nothing in it that the failed sync was to make durable."""
    match response:
        case ReadResponse():
            return ReadResponse(response.request_id, Status.IO_ERROR, response.ledger_id, response.entry_id)
        case BatchReadResponse():
            return BatchReadResponse(response.request_id, Status.IO_ERROR, response.ledger_id, response.entry_id)
        case _:
            return replace(response, status=Status.IO_ERROR)


def encode_entry_list(entry_ids: Iterable[int]) -> bytes:
    """The blob of wire-protocol.md 8.10, one group per run of consecutive ids, as Apache's encoders write it."""
    groups: list[bytes] = []
    start, size = 0, 0
    for entry_id in entry_ids:
        if size and entry_id == start + size and size < _SEQUENCE_MAX:
            size += 1
            continue
        if size:
            groups.append(_LIST_GROUP.pack(start, start, size, 0))
        start, size = entry_id, 1
    if size:
        groups.append(_LIST_GROUP.pack(start, start, size, 0))
    return _LIST_HEADER.pack(0, len(groups)) + b"".join(groups)
