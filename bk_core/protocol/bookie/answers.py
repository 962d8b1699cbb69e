"""Answers that need no ledger: refusals, failed syncs, the blob of an entry list."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import replace

from bk_core.protocol.bookie.runs import AddRunAnswer
from bk_core.protocol.wire.messages import (
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

_LIST_HEADER = struct.Struct(">ii56x")
_LIST_GROUP = struct.Struct(">qqii")
_SEQUENCE_MAX = 2**31 - 1


def failure(request: Request, status: Status) -> Response:
    """The refusal that fits ``request``, ids echoed as they were asked for (wire-protocol.md 5.3, 4.3)."""
    number = request.request_id
    match request:
        case AddRequest():
            return AddResponse(number, status, request.ledger_id, request.entry_id)
        case ReadRequest():
            return ReadResponse(number, status, request.ledger_id, request.entry_id)
        case BatchReadRequest():
            return BatchReadResponse(number, status, request.ledger_id, request.entry_id)
        case AuthRequest():
            return AuthResponse(number, status)
        case WriteLacRequest():
            return WriteLacResponse(number, status, request.ledger_id)
        case ReadLacRequest():
            return ReadLacResponse(number, status, request.ledger_id)
        case ForceLedgerRequest():
            return ForceLedgerResponse(number, status, request.ledger_id)
        case BookieInfoRequest():
            return BookieInfoResponse(number, status)
        case EntryListRequest():
            return EntryListResponse(number, status, request.ledger_id)
        case StartTlsRequest():
            return StartTlsResponse(number, status)
        case _:
            assert isinstance(request, UnservedRequest)  # a run of reads is a client's word for many requests
            return UnservedResponse(number, status, request.operation, request.version, request.ledger_id, request.entry_id)


def io_error(response: Response | AddRunAnswer) -> Response | AddRunAnswer:
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
