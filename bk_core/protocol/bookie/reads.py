"""Answers requests that only read (wire-protocol.md 8.3-8.5, 8.8, 8.10, 8.11). Nothing here changes anything."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from bk_core.errors import BookieIOError
from bk_core.protocol.bookie.answers import failure
from bk_core.protocol.bookie.listing import LIST_ROWS, EntryListing
from bk_core.protocol.bookie.records import BookieStorageView, LedgerRecord
from bk_core.protocol.bookie.rules import BookieRules
from bk_core.protocol.wire.messages import (
    LAST_ENTRY,
    BatchReadRequest,
    BatchReadResponse,
    BookieInfoRequest,
    BookieInfoResponse,
    EntryListResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Response,
    Status,
)

BATCH_READ_BYTES_MAX = 5 << 20  # wire-protocol.md 8.5
ENTRY_LIST_BYTES_MAX = BATCH_READ_BYTES_MAX - 4096  # a frame of the default size without its heads
INFO_TOTAL, INFO_FREE = 0x01, 0x02  # bits of BookieInfoRequest.requested

_BATCH_FRAME_START = 4 + 24 + 8  # length prefix, response prefix, request id
_MANY = 1 << 62
_LENGTH = struct.Struct(">I")

Added = tuple[int, bytes]  # an entry, id and body, whose change the host has not applied yet because it is part of the same effects


class BookieReads(BookieRules):
    """The reads of one bookie's storage. All methods may raise BookieIOError unless they say otherwise."""

    def __init__(self, storage: BookieStorageView, batch_read_bytes_max: int) -> None:
        self._storage = storage
        self._batch_read_bytes_max = batch_read_bytes_max

    def _known(self, ledger_id: int) -> LedgerRecord | None:
        record = self._storage.ledger(ledger_id) if ledger_id >= 0 else None
        return None if record is None or record.deleted else record

    def _find(self, record: LedgerRecord | None, entry_id: int, added: Added | None = None) -> tuple[Status, bytes | None]:
        """Return one entry, or the definite denial (B-7). In limbo, entries that are here are served (B-10)."""
        if record is None:
            return Status.NO_LEDGER, None
        if entry_id == LAST_ENTRY:
            return self._find_last(record, added)
        if added is not None and entry_id == added[0]:
            return Status.OK, bytes(added[1])
        body = self._storage.entry(record.ledger_id, entry_id) if 0 <= entry_id <= record.last_entry_id else None
        return (self._absent(record), None) if body is None else (Status.OK, body)

    def _find_last(self, record: LedgerRecord, added: Added | None = None) -> tuple[Status, bytes | None]:
        """Return the entry with the highest id here (B-9)."""
        if self._end_unknown(record):
            return Status.UNKNOWN_LEDGER_STATE, None
        if not record.has_entries:
            return Status.NO_ENTRY, None
        if added is not None and added[0] == record.last_entry_id:
            return Status.OK, bytes(added[1])
        body = self._storage.entry(record.ledger_id, record.last_entry_id)
        if body is None:
            raise BookieIOError("the last entry of a ledger is not where the index says", ledger_id=record.ledger_id)
        return Status.OK, body

    def _read(self, request: ReadRequest, record: LedgerRecord | None, added: Added | None = None) -> ReadResponse:
        """Answer a read (wire-protocol.md 8.3, 8.4). ``max_lac`` goes with every entry found; v2 has no place for it."""
        status, body = self._find(record, request.entry_id, added)
        max_lac = record.last_add_confirmed if record is not None and body is not None else None
        return ReadResponse(request.request_id, status, request.ledger_id, request.entry_id, body, max_lac)

    def _fence_answer(self, request: ReadRequest | BatchReadRequest, record: LedgerRecord) -> Response:
        """Return the read part of a fence read; it carries no ``max_lac`` (wire-protocol.md 8.3). This never raises, because the fence
        stands."""
        try:
            if isinstance(request, BatchReadRequest):
                return self._batch_read(request, record)
            status, body = self._find(record, request.entry_id)
        except BookieIOError:
            return failure(request, self._unreadable())
        return ReadResponse(request.request_id, status, request.ledger_id, request.entry_id, body)

    def _batch_read(self, request: BatchReadRequest, record: LedgerRecord | None) -> BatchReadResponse:
        """Answer a batch read: the first entry whatever its size, then entries while the whole frame stays within the limit
        (wire-protocol.md 8.5)."""
        rest = min(request.bytes_max, self._batch_read_bytes_max) - _BATCH_FRAME_START
        wanted = request.entries_max if request.entries_max > 0 else _MANY
        count, bodies = self._at_hand(record, request.entry_id, wanted, rest)
        if not count:
            status, body = self._find(record, request.entry_id)  # an IO error here is the answer; a later one only ends the run
            if body is None:
                return BatchReadResponse(request.request_id, status, request.ledger_id, request.entry_id)
            count, bodies = 1, _LENGTH.pack(len(body)) + body
        parts = [bodies, *self._more(record, request.entry_id + count, wanted - count, rest - len(bodies))]
        return BatchReadResponse(request.request_id, Status.OK, request.ledger_id, request.entry_id, b"".join(parts))

    def _more(self, record: LedgerRecord | None, entry_id: int, wanted: int, rest: int) -> Iterator[bytes]:
        """Yield the entries of a batch behind the first ones, in pieces of ``(u32 length, body)*`` and ``rest`` bytes at most."""
        while wanted > 0 and rest > 0:
            try:
                count, bodies = self._at_hand(record, entry_id, wanted, rest)
                if not count:
                    body = self._find(record, entry_id)[1]
                    if body is None or _LENGTH.size + len(body) > rest:
                        return
                    count, bodies = 1, _LENGTH.pack(len(body)) + body
            except BookieIOError:
                return
            yield bodies
            entry_id, wanted, rest = entry_id + count, wanted - count, rest - len(bodies)

    def _at_hand(self, record: LedgerRecord | None, entry_id: int, entries_max: int, bytes_max: int) -> tuple[int, bytes]:
        """Return entries that the storage has together, see ``BookieStorageView.entries``; none where more than bodies has to
        be returned."""
        if record is None or not 0 <= entry_id <= record.last_entry_id or bytes_max <= 0:
            return 0, b""
        return self._storage.entries(record.ledger_id, entry_id, min(entries_max, record.last_entry_id - entry_id + 1), bytes_max)

    def _read_lac(self, request: ReadLacRequest) -> ReadLacResponse:
        """Answer a LAC read by the table of wire-protocol.md 8.8, as of 4.15: an explicit LAC without entries is IO_ERROR with the packet
        attached."""
        record = self._known(request.ledger_id)
        if record is None:
            return ReadLacResponse(request.request_id, Status.NO_ENTRY, request.ledger_id)
        if self._end_unknown(record):
            return ReadLacResponse(request.request_id, Status.UNKNOWN_LEDGER_STATE, request.ledger_id)
        last = self._find_last(record)[1]
        packet = record.explicit_lac
        if last is not None:
            status = Status.OK
        else:
            status = Status.NO_ENTRY if packet is None else Status.IO_ERROR
        return ReadLacResponse(request.request_id, status, request.ledger_id, packet, last)

    def _info(self, request: BookieInfoRequest) -> BookieInfoResponse:
        """Answer with the numbers that were asked for, and no others (wire-protocol.md 8.11)."""
        total, free = self._storage.disk_bytes()
        return BookieInfoResponse(
            request.request_id,
            Status.OK,
            total if request.requested & INFO_TOTAL else None,
            free if request.requested & INFO_FREE else None,
        )

    def _list_piece(self, listing: EntryListing) -> EntryListResponse | None:
        """Make one piece of a list, and return the answer after the last one (wire-protocol.md 8.10).

        A list tells what is absent, so there is none in limbo (B-10), and none of a ledger that is gone by the end (BKE-7). A list that
        fits no frame is refused, because it would cost the client its connection.
        """
        request = listing.request
        record = self._known(request.ledger_id)
        if record is None:
            return EntryListResponse(request.request_id, Status.NO_LEDGER, request.ledger_id)
        if self._end_unknown(record):
            return EntryListResponse(request.request_id, Status.UNKNOWN_LEDGER_STATE, request.ledger_id)
        runs, next_id = self._storage.entry_runs(request.ledger_id, listing.next_id, LIST_ROWS)
        listing.encoder.add(runs)
        if listing.encoder.size > ENTRY_LIST_BYTES_MAX:
            return EntryListResponse(request.request_id, Status.IO_ERROR, request.ledger_id)
        if next_id is not None:
            listing.next_id = next_id
            return None
        return EntryListResponse(request.request_id, Status.OK, request.ledger_id, listing.encoder.blob())

    def _poll_answer(
        self, request: ReadRequest, record: LedgerRecord, advanced_at_ms: int | None = None, added: Added | None = None
    ) -> Response:
        """Answer a long poll (wire-protocol.md 8.7 item 2). ``advanced_at_ms`` is the time at which the LAC moved, if that
        ended the wait."""
        if not request.piggyback:
            answer = self._read(request, record, added)
            return ReadResponse(
                answer.request_id, answer.status, answer.ledger_id, answer.entry_id, answer.body, answer.max_lac, advanced_at_ms
            )
        if request.entry_id != LAST_ENTRY:
            return failure(request, Status.BAD_REQUEST)
        entry_id, body = LAST_ENTRY, None
        if advanced(record, request):
            wanted = (request.previous_lac if request.previous_lac is not None else -1) + 1
            body = self._find(record, wanted, added)[1]
            entry_id = wanted if body is not None else LAST_ENTRY
        if body is None and self._end_unknown(record):
            return failure(request, Status.UNKNOWN_LEDGER_STATE)
        if not record.has_entries and record.explicit_lac is None:
            return failure(request, Status.NO_ENTRY)
        return ReadResponse(request.request_id, Status.OK, request.ledger_id, entry_id, body, record.last_add_confirmed, advanced_at_ms)


def advanced(record: LedgerRecord, request: ReadRequest) -> bool:
    """Return True if the LAC is beyond the one that the poll knows."""
    return request.previous_lac is not None and record.last_add_confirmed > request.previous_lac
