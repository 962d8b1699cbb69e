"""Makes answers that need no ledger: refusals and failed syncs."""

from __future__ import annotations

from dataclasses import replace

from bk_core.protocol.bookie.runs import AddsAnswer
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


def failure(request: Request, status: Status) -> Response:
    """Return the refusal that fits ``request``, with the ids that it has (wire-protocol.md 5.3, 4.3)."""
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
            assert isinstance(request, UnservedRequest)  # a run of reads exists only at the client; a bookie sees single requests
            return UnservedResponse(number, status, request.operation, request.version, request.ledger_id, request.entry_id)


def io_error(response: Response | AddsAnswer) -> Response | AddsAnswer:
    """Return ``response`` as IO_ERROR, without anything that the failed sync was to make durable."""
    match response:
        case ReadResponse():
            return ReadResponse(response.request_id, Status.IO_ERROR, response.ledger_id, response.entry_id)
        case BatchReadResponse():
            return BatchReadResponse(response.request_id, Status.IO_ERROR, response.ledger_id, response.entry_id)
        case _:
            return replace(response, status=Status.IO_ERROR)
