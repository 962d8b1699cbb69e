"""The protobuf protocol v3 (wire-protocol.md 4), both directions, one payload at a time (no length prefix; see ``frame``).

Required fields are enforced when reading and always written, zero or not (wire-protocol.md 4.1). Reading goes in two steps, because a
bookie must tell a payload that is no v3 request (``parse_request`` gives None; wire-protocol.md 2.2) from a v3 request that makes no
sense (RemoteProtocolError).
Encoders raise InvalidArgumentError for what v3 cannot carry; decoders raise RemoteProtocolError and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from google.protobuf.message import DecodeError, EncodeError

from bk_core.errors import InvalidArgumentError, RemoteProtocolError
from bk_core.protocol import BytesLike
from bk_core.protocol.wire import codec_v2
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire._proto import bookie_pb2 as pb
from bk_core.protocol.wire.messages import Request, Response, Status
from bk_core.protocol.wire.status import status_from_v3, v3_number

VERSION = 3
HIGH_PRIORITY = 100  # what Java sends; any value above 0 means high priority
DEFERRED_SYNC = 1  # bit of writeFlags

READ, ADD, RANGE_READ, RANGE_ADD, AUTH, WRITE_LAC = 1, 2, 3, 4, 5, 6
READ_LAC, BOOKIE_INFO, START_TLS, FORCE_LEDGER, ENTRY_LIST, BATCH_READ = 7, 8, 9, 10, 11, 12

UNSERVED_OPERATIONS = frozenset((RANGE_READ, RANGE_ADD, BATCH_READ))

# Field names of the sub-messages of an operation: in Request, in Response.
_FIELDS: Mapping[int, tuple[str, str]] = MappingProxyType(
    {
        READ: ("readRequest", "readResponse"),
        ADD: ("addRequest", "addResponse"),
        AUTH: ("authRequest", "authResponse"),
        WRITE_LAC: ("writeLacRequest", "writeLacResponse"),
        READ_LAC: ("readLacRequest", "readLacResponse"),
        BOOKIE_INFO: ("getBookieInfoRequest", "getBookieInfoResponse"),
        START_TLS: ("startTLSRequest", "startTLSResponse"),
        FORCE_LEDGER: ("forceLedgerRequest", "forceLedgerResponse"),
        ENTRY_LIST: ("getListOfEntriesOfLedgerRequest", "getListOfEntriesOfLedgerResponse"),
    }
)
# Operations that older bookies serve without their sub-message, all fields absent, in all releases (wire-protocol.md 8.12).
_MESSAGE_OPTIONAL = frozenset((BOOKIE_INFO, AUTH, START_TLS))
_VERSION_UNCHECKED = frozenset((AUTH, START_TLS))

frame = codec_v2.frame


# --- requests ---------------------------------------------------------------------------------------------------


def encode_request(request: Request) -> bytes:
    """Return the payload of a request. Raises InvalidArgumentError for a batch read (v2 only) and for numbers that do not fit
    their fields."""
    try:
        return _build_request(request).SerializeToString()
    except (EncodeError, TypeError, ValueError) as cause:
        if isinstance(cause, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"a field of {type(request).__name__} does not fit its type") from cause


def _request(operation: int, request_id: int, high_priority: bool = False) -> pb.Request:
    message = pb.Request()
    header = message.header
    header.version = VERSION  # type: ignore[assignment]
    header.operation = operation  # type: ignore[assignment]
    header.txnId = request_id
    if high_priority:
        header.priority = HIGH_PRIORITY
    return message


def _build_request(request: Request) -> pb.Request:
    match request:
        case m.AddRequest():
            return _build_add(request)
        case m.ReadRequest():
            return _build_read(request)
        case m.AuthRequest():
            message = _request(AUTH, request.request_id)
            message.authRequest.authPluginName = request.plugin
            message.authRequest.payload = request.payload
        case m.WriteLacRequest():
            message = _request(WRITE_LAC, request.request_id)
            write = message.writeLacRequest
            write.ledgerId, write.lac = request.ledger_id, request.last_add_confirmed
            write.masterKey, write.body = request.master_key, request.body
        case m.ReadLacRequest():
            message = _request(READ_LAC, request.request_id)
            message.readLacRequest.ledgerId = request.ledger_id
        case m.ForceLedgerRequest():
            message = _request(FORCE_LEDGER, request.request_id)
            message.forceLedgerRequest.ledgerId = request.ledger_id
        case m.BookieInfoRequest():
            message = _request(BOOKIE_INFO, request.request_id)
            message.getBookieInfoRequest.requested = request.requested
        case m.EntryListRequest():
            message = _request(ENTRY_LIST, request.request_id)
            message.getListOfEntriesOfLedgerRequest.ledgerId = request.ledger_id
        case m.StartTlsRequest():
            message = _request(START_TLS, request.request_id)
            message.startTLSRequest.SetInParent()
        case _:
            raise InvalidArgumentError(f"{type(request).__name__} does not exist in protocol v3")
    return message


def _build_add(request: m.AddRequest) -> pb.Request:
    message = _request(ADD, request.request_id, request.high_priority)
    add = message.addRequest
    add.ledgerId, add.entryId = request.ledger_id, request.entry_id
    add.masterKey, add.body = request.master_key, request.body
    if request.deferred_sync:
        add.writeFlags = DEFERRED_SYNC
    if request.recovery:
        add.flag = pb.AddRequest.RECOVERY_ADD
    return message


def _build_read(request: m.ReadRequest) -> pb.Request:
    if request.fence and request.piggyback:
        raise InvalidArgumentError("a read either fences or piggybacks: v3 has one flag for both")
    message = _request(READ, request.request_id, request.high_priority)
    read = message.readRequest
    read.ledgerId, read.entryId = request.ledger_id, request.entry_id
    if request.fence or request.master_key:
        read.masterKey = request.master_key
    if request.previous_lac is not None:
        read.previousLAC = request.previous_lac
    if request.timeout_ms is not None:
        read.timeOut = request.timeout_ms
    if request.fence:
        read.flag = pb.ReadRequest.FENCE_LEDGER
    elif request.piggyback:
        read.flag = pb.ReadRequest.ENTRY_PIGGYBACK
    return message


def parse_request(payload: BytesLike) -> pb.Request | None:
    """Return the parsed request, or None if the payload is no v3 request: it is malformed, lacks a required field, or has an unknown
    operation or version number (wire-protocol.md 2.2, 4.1)."""
    message = pb.Request()
    try:
        message.ParseFromString(bytes(payload))
    except (DecodeError, UnicodeDecodeError):
        return None
    return message if message.IsInitialized() else None


def decode_request(payload: BytesLike) -> Request:
    """Return the request in a payload, as a bookie reads it."""
    message = parse_request(payload)
    if message is None:
        raise RemoteProtocolError("payload is no v3 request")
    return request_of(message)


def request_of(message: pb.Request) -> Request:
    """Return the request of a parsed message.

    The result is an UnservedRequest for operations that nobody serves (BAD_REQUEST) and for versions 1 and 2 (BAD_VERSION), see
    wire-protocol.md 3.3. Raises RemoteProtocolError if the sub-message of the operation is missing: the connection is then closed, as by
    bookies from 4.18 (wire-protocol.md 8.12).
    """
    header = message.header
    operation, version = int(header.operation), int(header.version)
    if operation in UNSERVED_OPERATIONS:
        return m.UnservedRequest(header.txnId, operation, version, Status.BAD_REQUEST)
    name = _FIELDS[operation][0]
    if operation not in _MESSAGE_OPTIONAL and not message.HasField(name):
        raise RemoteProtocolError(f"v3 request of operation {operation} without its {name}")
    body: Any = getattr(message, name)
    if version != VERSION and operation not in _VERSION_UNCHECKED:
        ledger_id, entry_id = getattr(body, "ledgerId", 0), getattr(body, "entryId", 0)
        return m.UnservedRequest(header.txnId, operation, version, Status.BAD_VERSION, ledger_id, entry_id)
    return _REQUEST_READERS[operation](header.txnId, header.priority > 0, body)


def _read_add(request_id: int, high_priority: bool, body: pb.AddRequest) -> Request:
    return m.AddRequest(
        request_id,
        body.ledgerId,
        body.entryId,
        body.masterKey,
        body.body,
        body.flag == pb.AddRequest.RECOVERY_ADD and body.HasField("flag"),
        high_priority,
        body.writeFlags & DEFERRED_SYNC != 0,
    )


def _read_read(request_id: int, high_priority: bool, body: pb.ReadRequest) -> Request:
    flag = body.flag if body.HasField("flag") else None
    return m.ReadRequest(
        request_id,
        body.ledgerId,
        body.entryId,
        flag == pb.ReadRequest.FENCE_LEDGER,
        high_priority,
        body.masterKey,
        body.previousLAC if body.HasField("previousLAC") else None,
        body.timeOut if body.HasField("timeOut") else None,
        flag == pb.ReadRequest.ENTRY_PIGGYBACK,
    )


def _read_auth(request_id: int, _high_priority: bool, body: pb.AuthMessage) -> Request:
    return m.AuthRequest(request_id, _text(body), body.payload)


def _text(body: pb.AuthMessage) -> str:
    """Return the plugin name. The C runtime of protobuf returns text that is not UTF-8 as bytes (the Python one refuses the message)."""
    plugin = body.authPluginName
    if not isinstance(plugin, str):
        raise RemoteProtocolError("auth plugin name is not UTF-8")
    return plugin


def _read_write_lac(request_id: int, _high_priority: bool, body: pb.WriteLacRequest) -> Request:
    return m.WriteLacRequest(request_id, body.ledgerId, body.lac, body.masterKey, body.body)


_REQUEST_READERS: Mapping[int, Callable[[int, bool, Any], Request]] = MappingProxyType(
    {
        ADD: _read_add,
        READ: _read_read,
        AUTH: _read_auth,
        WRITE_LAC: _read_write_lac,
        READ_LAC: lambda request_id, _high, body: m.ReadLacRequest(request_id, body.ledgerId),
        FORCE_LEDGER: lambda request_id, _high, body: m.ForceLedgerRequest(request_id, body.ledgerId),
        BOOKIE_INFO: lambda request_id, _high, body: m.BookieInfoRequest(request_id, body.requested),
        ENTRY_LIST: lambda request_id, _high, body: m.EntryListRequest(request_id, body.ledgerId),
        START_TLS: lambda request_id, _high, _body: m.StartTlsRequest(request_id),
    }
)


# --- responses --------------------------------------------------------------------------------------------------


def encode_response(response: Response, version: int = VERSION, priority: int = 0) -> bytes:
    """Return the payload of a response. ``version`` and ``priority`` are those of the request; only AUTH, UNAUTHORIZED and unserved
    operations repeat them (wire-protocol.md 4.3). Both statuses carry the same value. The inner message is there with its ids unless the
    connection (AUTH, START_TLS) or an operation without an inner message is refused."""
    try:
        return _build_response(response, version, priority).SerializeToString()
    except (EncodeError, TypeError, ValueError) as cause:
        if isinstance(cause, InvalidArgumentError):
            raise
        raise InvalidArgumentError(f"a field of {type(response).__name__} does not fit its type") from cause


def _response(operation: int, response: Response, version: int = VERSION, priority: int = 0) -> pb.Response:
    message = pb.Response()
    header = message.header
    header.version = version  # type: ignore[assignment]
    header.operation = operation  # type: ignore[assignment]
    header.txnId = response.request_id
    if priority:
        header.priority = priority
    message.status = v3_number(response.status)
    return message


def _build_response(response: Response, version: int, priority: int) -> pb.Response:
    match response:
        case m.ReadResponse():
            return _build_read_response(response)
        case m.AddResponse():
            return _with_ids(_response(ADD, response), ADD, response.ledger_id, response.entry_id)
        case m.WriteLacResponse():
            return _with_ids(_response(WRITE_LAC, response), WRITE_LAC, response.ledger_id, 0)
        case m.ForceLedgerResponse():
            return _with_ids(_response(FORCE_LEDGER, response), FORCE_LEDGER, response.ledger_id, 0)
        case m.ReadLacResponse():
            message = _with_ids(_response(READ_LAC, response), READ_LAC, response.ledger_id, 0)
            if response.lac_body is not None:  # it may stand beside a failure: EIO with an explicit LAC but no entry (wire-protocol.md 8.8)
                message.readLacResponse.lacBody = response.lac_body
            if response.last_entry_body is not None:
                message.readLacResponse.lastEntryBody = response.last_entry_body
            return message
        case m.EntryListResponse():
            message = _with_ids(_response(ENTRY_LIST, response), ENTRY_LIST, response.ledger_id, 0)
            if response.entries is not None:
                message.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger = response.entries
            return message
        case m.BookieInfoResponse():
            return _build_info_response(response)
        case m.AuthResponse():
            message = _response(AUTH, response, version, priority)
            if response.status is Status.OK:
                message.authResponse.authPluginName = response.plugin
                message.authResponse.payload = response.payload
            return message
        case m.StartTlsResponse():
            message = _response(START_TLS, response)
            if response.status is Status.OK:
                message.startTLSResponse.SetInParent()
            return message
        case m.UnservedResponse():
            return _build_unserved_response(response, priority)
        case _:
            raise InvalidArgumentError(f"{type(response).__name__} does not exist in protocol v3")


def _with_ids(message: pb.Response, operation: int, ledger_id: int, entry_id: int) -> pb.Response:
    """Fill in the inner message's status and the ids that it has."""
    inner: Any = getattr(message, _FIELDS[operation][1])
    inner.status = message.status
    if operation != BOOKIE_INFO:
        inner.ledgerId = ledger_id
    if operation in (READ, ADD):
        inner.entryId = entry_id
    return message


def _build_read_response(response: m.ReadResponse) -> pb.Response:
    message = _with_ids(_response(READ, response), READ, response.ledger_id, response.entry_id)
    read = message.readResponse
    if response.body is not None:
        read.body = response.body
    if response.max_lac is not None:
        read.maxLAC = response.max_lac
    if response.lac_update_timestamp_ms is not None:
        read.lacUpdateTimestamp = response.lac_update_timestamp_ms
    return message


def _build_info_response(response: m.BookieInfoResponse) -> pb.Response:
    message = _with_ids(_response(BOOKIE_INFO, response), BOOKIE_INFO, 0, 0)
    if response.total_disk_bytes is not None:
        message.getBookieInfoResponse.totalDiskCapacity = response.total_disk_bytes
    if response.free_disk_bytes is not None:
        message.getBookieInfoResponse.freeDiskSpace = response.free_disk_bytes
    return message


def _build_unserved_response(response: m.UnservedResponse, priority: int) -> pb.Response:
    operation = response.operation
    if response.status is Status.BAD_VERSION and operation in _FIELDS and operation not in _VERSION_UNCHECKED:
        return _with_ids(_response(operation, response), operation, response.ledger_id, response.entry_id)
    return _response(operation, response, response.version, priority)


def parse_response(payload: BytesLike) -> pb.Response | None:
    """Return the parsed response, or None if the payload is none."""
    message = pb.Response()
    try:
        message.ParseFromString(bytes(payload))
    except (DecodeError, UnicodeDecodeError):
        return None
    return message if message.IsInitialized() else None


def decode_response(payload: BytesLike) -> Response:
    """Return the response in a payload, as a client reads it.

    Its status is the top one, or the inner one if the top one is OK (wire-protocol.md 4.3). A failure without an inner message has ids 0; a
    success without one raises RemoteProtocolError, except for START_TLS, whose message is empty.
    """
    message = parse_response(payload)
    if message is None:
        raise RemoteProtocolError("payload is no v3 response")
    return response_of(message)


def response_of(message: pb.Response) -> Response:
    """Return the response of a parsed message, see ``decode_response``."""
    header = message.header
    operation, request_id = int(header.operation), header.txnId
    status = status_from_v3(message.status)
    if operation in UNSERVED_OPERATIONS:
        if status is Status.OK:
            raise RemoteProtocolError(f"v3 response claims success of operation {operation}, which has no message")
        return m.UnservedResponse(request_id, status, operation, int(header.version))
    if operation == START_TLS:
        return m.StartTlsResponse(request_id, status)
    name = _FIELDS[operation][1]
    inner: Any = getattr(message, name)
    if status is Status.OK:
        if not message.HasField(name):
            raise RemoteProtocolError(f"v3 response of operation {operation} is OK without its {name}")
        status = status_from_v3(getattr(inner, "status", 0))
    return _RESPONSE_READERS[operation](request_id, status, inner)


def _optional(inner: Any, name: str) -> Any:
    return getattr(inner, name) if inner.HasField(name) else None


def _read_read_response(request_id: int, status: Status, inner: pb.ReadResponse) -> Response:
    return m.ReadResponse(
        request_id,
        status,
        inner.ledgerId,
        inner.entryId,
        _optional(inner, "body"),
        _optional(inner, "maxLAC"),
        _optional(inner, "lacUpdateTimestamp"),
    )


def _read_lac_response(request_id: int, status: Status, inner: pb.ReadLacResponse) -> Response:
    return m.ReadLacResponse(request_id, status, inner.ledgerId, _optional(inner, "lacBody"), _optional(inner, "lastEntryBody"))


def _read_info_response(request_id: int, status: Status, inner: pb.GetBookieInfoResponse) -> Response:
    return m.BookieInfoResponse(request_id, status, _optional(inner, "totalDiskCapacity"), _optional(inner, "freeDiskSpace"))


def _read_list_response(request_id: int, status: Status, inner: pb.GetListOfEntriesOfLedgerResponse) -> Response:
    return m.EntryListResponse(request_id, status, inner.ledgerId, _optional(inner, "availabilityOfEntriesOfLedger"))


_RESPONSE_READERS: Mapping[int, Callable[[int, Status, Any], Response]] = MappingProxyType(
    {
        ADD: lambda request_id, status, inner: m.AddResponse(request_id, status, inner.ledgerId, inner.entryId),
        READ: _read_read_response,
        AUTH: lambda request_id, status, inner: m.AuthResponse(request_id, status, _text(inner), inner.payload),
        WRITE_LAC: lambda request_id, status, inner: m.WriteLacResponse(request_id, status, inner.ledgerId),
        READ_LAC: _read_lac_response,
        FORCE_LEDGER: lambda request_id, status, inner: m.ForceLedgerResponse(request_id, status, inner.ledgerId),
        BOOKIE_INFO: _read_info_response,
        ENTRY_LIST: _read_list_response,
    }
)
