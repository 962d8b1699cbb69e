"""The hand-packed protocol v2 (wire-protocol.md 5), both directions, one payload at a time (no length prefix; see ``frame``).

    header word   version << 24 | opcode << 16 | flags; when the version byte is 0 the opcode is the lowest byte (wire-protocol.md 5.1)
    add           word | master key 20 | entry body
    read          word | i64 ledger | i64 entry | master key 20 if fencing
    batch read    word | i64 ledger | i64 entry | i64 request id | i32 entries max | i64 bytes max | master key 20 if fencing
    auth          word | AuthMessage (protobuf)
    responses     word | i32 code | i64 ledger | i64 entry | ..., except auth: word | AuthMessage

Decoders raise RemoteProtocolError for anything the layout does not allow and nothing else; encoders raise InvalidArgumentError for
messages that v2 cannot carry.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from google.protobuf.message import DecodeError, EncodeError

from bk_core.errors import InvalidArgumentError, RemoteProtocolError
from bk_core.protocol import BytesLike
from bk_core.protocol.wire._proto import bookie_pb2 as pb
from bk_core.protocol.wire.messages import (
    AddRequest,
    AddResponse,
    AuthRequest,
    AuthResponse,
    BatchReadRequest,
    BatchReadResponse,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    Status,
    UnservedRequest,
    UnservedResponse,
)
from bk_core.protocol.wire.status import V2_STATUSES, status_from_v2, v2_number

VERSION = 2
ADD, READ, AUTH, BATCH_READ = 1, 2, 3, 7

FLAG_FENCE = 0x0001
FLAG_RECOVERY_ADD = 0x0002
FLAG_HIGH_PRIORITY = 0x0004

KEY_BYTES = 20
RESPONSE_BYTES = 24

_U32 = struct.Struct(">I")
_IDS = struct.Struct(">qq")
_READ = struct.Struct(">Iqq")
_BATCH = struct.Struct(">Iqqqiq")
_RESPONSE = struct.Struct(">Iiqq")
_BATCH_RESPONSE = struct.Struct(">Iiqqq")
_ADD_BODY = 4 + KEY_BYTES


def frame(payload: BytesLike) -> bytes:
    """Return the payload behind its u32 length (wire-protocol.md 2.1)."""
    view = memoryview(payload).cast("B")
    return b"".join((_U32.pack(len(view)), view))


def header_word(version: int, opcode: int, flags: int = 0) -> int:
    """Return the first word of a message; in version 0 it has the legacy form, the opcode only."""
    return opcode if version == 0 else version << 24 | opcode << 16 | flags


def split_word(word: int) -> tuple[int, int, int]:
    """Return (version, opcode, flags) of a header word."""
    version = word >> 24
    return (0, word & 0xFF, 0) if version == 0 else (version, word >> 16 & 0xFF, word & 0xFFFF)


# --- AuthMessage ------------------------------------------------------------------------------------------------


def encode_auth(plugin: str, payload: bytes) -> bytes:
    """Return a serialized AuthMessage (wire-protocol.md 4.2)."""
    try:
        return pb.AuthMessage(authPluginName=plugin, payload=payload).SerializeToString()
    except (EncodeError, TypeError, ValueError) as cause:
        raise InvalidArgumentError("AUTH needs a plugin name as text and a token as bytes") from cause


def decode_auth(view: BytesLike) -> tuple[str, bytes]:
    """Return (plugin, payload) of a serialized AuthMessage."""
    message = pb.AuthMessage()
    try:
        message.ParseFromString(bytes(view))
        if message.IsInitialized() and isinstance(message.authPluginName, str):
            return message.authPluginName, message.payload
    except (DecodeError, UnicodeDecodeError) as cause:
        raise RemoteProtocolError("v2 AUTH with a malformed AuthMessage") from cause
    raise RemoteProtocolError("v2 AUTH with an incomplete AuthMessage")


# --- requests ---------------------------------------------------------------------------------------------------


def encode_request(request: Request) -> bytes:
    """Return the payload of a request. Raises InvalidArgumentError for operations, options and numbers that v2 cannot carry
    (wire-protocol.md 6)."""
    try:
        return _encode_request(request)
    except struct.error as cause:
        raise InvalidArgumentError(f"a number of {type(request).__name__} does not fit its field") from cause


def _encode_request(request: Request) -> bytes:
    match request:
        case AddRequest():
            return _encode_add(request)
        case ReadRequest():
            if request.previous_lac is not None or request.timeout_ms is not None or request.piggyback:
                raise InvalidArgumentError("long polls and piggybacked reads need protocol v3")
            word = header_word(VERSION, READ, _read_flags(request))
            return _READ.pack(word, request.ledger_id, request.entry_id) + _fence_key(request)
        case BatchReadRequest():
            return encode_batch_read(request, request.request_id)
        case AuthRequest():
            return _U32.pack(header_word(VERSION, AUTH)) + encode_auth(request.plugin, request.payload)
        case _:
            raise InvalidArgumentError(f"{type(request).__name__} needs protocol v3")


def encode_batch_read(request: BatchReadRequest, request_id: int) -> bytes:
    word = header_word(VERSION, BATCH_READ, _read_flags(request))
    fixed = _BATCH.pack(word, request.ledger_id, request.entry_id, request_id, request.entries_max, request.bytes_max)
    return fixed + _fence_key(request) if request.fence else fixed


def _encode_add(request: AddRequest) -> bytes:
    if request.deferred_sync:
        raise InvalidArgumentError("adds with deferred sync need protocol v3")
    _check_key(request.master_key)
    if request.body[:16] != _IDS.pack(request.ledger_id, request.entry_id):
        raise InvalidArgumentError(f"body is not that of ledger {request.ledger_id} entry {request.entry_id}")
    flags = FLAG_RECOVERY_ADD * request.recovery | FLAG_HIGH_PRIORITY * request.high_priority
    return b"".join((_U32.pack(header_word(VERSION, ADD, flags)), request.master_key, request.body))


def _read_flags(request: ReadRequest | BatchReadRequest) -> int:
    return FLAG_FENCE * request.fence | FLAG_HIGH_PRIORITY * request.high_priority


def _fence_key(request: ReadRequest | BatchReadRequest) -> bytes:
    if not request.fence:
        return b""
    _check_key(request.master_key)
    return request.master_key


def _check_key(master_key: bytes) -> None:
    if len(master_key) != KEY_BYTES:
        raise InvalidArgumentError(f"a v2 master key has {KEY_BYTES} bytes, not {len(master_key)}")


def decode_request(payload: BytesLike) -> Request:
    """Return the request in a payload, as a bookie reads it: an UnservedRequest for version 3 and above, except for AUTH (wire-protocol.md
    3.3).

    The body of an add is copied once, out of the receive buffer.
    """
    view = memoryview(payload)
    if len(view) < 4:
        raise RemoteProtocolError(f"v2 payload of {len(view)} bytes has no header word")
    version, opcode, flags = split_word(_U32.unpack_from(view)[0])
    decoder = _REQUEST_DECODERS.get(opcode)
    if decoder is None:
        raise RemoteProtocolError(f"v2 opcode {opcode} is not served")
    return decoder(view, version, flags)


def _decode_add(view: memoryview, version: int, flags: int) -> Request:
    # The ids are the first 16 bytes of the body; without them there is nothing to answer (wire-protocol.md 7.1).
    if len(view) < _ADD_BODY + 16:
        raise RemoteProtocolError(f"v2 add of {len(view)} bytes is too short")
    ledger_id, entry_id = _IDS.unpack_from(view, _ADD_BODY)
    if version > VERSION:
        return UnservedRequest(0, ADD, version, Status.BAD_VERSION, ledger_id, entry_id)
    return AddRequest(
        0,
        ledger_id,
        entry_id,
        bytes(view[4:_ADD_BODY]),
        bytes(view[_ADD_BODY:]),
        flags & FLAG_RECOVERY_ADD != 0,
        flags & FLAG_HIGH_PRIORITY != 0,
    )


def _decode_read(view: memoryview, version: int, flags: int) -> Request:
    if len(view) < _READ.size:
        raise RemoteProtocolError(f"v2 read of {len(view)} bytes is too short")
    _, ledger_id, entry_id = _READ.unpack_from(view)
    fence = flags & FLAG_FENCE != 0
    # Version 1 knew the flag but carried no key. Such a read is refused later for its missing key, and not here (wire-protocol.md 8.6).
    key = _key_at(view, _READ.size) if fence and version >= 2 else b""
    if version > VERSION:
        return UnservedRequest(0, READ, version, Status.BAD_VERSION, ledger_id, entry_id)
    return ReadRequest(0, ledger_id, entry_id, fence, flags & FLAG_HIGH_PRIORITY != 0, key)


def _decode_batch_read(view: memoryview, version: int, flags: int) -> Request:
    if len(view) < _BATCH.size:
        raise RemoteProtocolError(f"v2 batch read of {len(view)} bytes is too short")
    _, ledger_id, entry_id, request_id, entries_max, bytes_max = _BATCH.unpack_from(view)
    fence = flags & FLAG_FENCE != 0
    key = _key_at(view, _BATCH.size) if fence and version >= 2 else b""
    if version > VERSION:
        return UnservedRequest(request_id, BATCH_READ, version, Status.BAD_VERSION, ledger_id, entry_id)
    return BatchReadRequest(request_id, ledger_id, entry_id, entries_max, bytes_max, fence, flags & FLAG_HIGH_PRIORITY != 0, key)


def _key_at(view: memoryview, start: int) -> bytes:
    key = bytes(view[start : start + KEY_BYTES])
    if len(key) < KEY_BYTES:
        raise RemoteProtocolError("v2 fence read without a whole master key")
    return key


def _decode_auth(view: memoryview, version: int, flags: int) -> Request:
    plugin, payload = decode_auth(view[4:])
    return AuthRequest(0, plugin, payload)


_REQUEST_DECODERS: Mapping[int, Callable[[memoryview, int, int], Request]] = MappingProxyType(
    {ADD: _decode_add, READ: _decode_read, AUTH: _decode_auth, BATCH_READ: _decode_batch_read}
)


# --- responses --------------------------------------------------------------------------------------------------


def encode_response(response: Response, version: int = VERSION) -> bytes:
    """Return the payload of a response to a request of header ``version`` (0 gives the legacy word).

    Raises InvalidArgumentError for responses that v2 does not have. A failed AUTH is one of them: closing the connection reports it
    (wire-protocol.md 5.3).
    """
    return b"".join(response_parts(response, version))


def encode_response_frame(response: Response, version: int = VERSION) -> bytes:
    """Return the result of ``encode_response`` behind its length prefix; bodies are copied once."""
    head, tail = response_parts(response, version)
    return b"".join((_U32.pack(len(head) + len(tail)), head, tail))


def response_parts(response: Response, version: int) -> tuple[bytes, BytesLike]:
    """Return (fixed part, bodies) of a response's payload."""
    try:
        return _response_parts(response, version)
    except struct.error as cause:
        raise InvalidArgumentError(f"a number of {type(response).__name__} does not fit its field") from cause


def _response_parts(response: Response, version: int) -> tuple[bytes, BytesLike]:
    match response:
        case AddResponse():
            return _prefix(response, ADD, version), b""
        case ReadResponse():
            body = response.body if response.status is Status.OK else None
            return _prefix(response, READ, version), body or b""
        case BatchReadResponse():
            return _batch_prefix(response, version), response.bodies if response.status is Status.OK else b""
        case AuthResponse():
            if response.status is not Status.OK:
                raise InvalidArgumentError("v2 has no failed AUTH response; close the connection")
            return _U32.pack(header_word(VERSION, AUTH)), encode_auth(response.plugin, response.payload)
        case UnservedResponse(operation=operation) if operation in (ADD, READ):
            return _prefix(response, operation, version), b""
        case UnservedResponse(operation=operation) if operation == BATCH_READ:
            return _batch_prefix(response, version), b""
        case _:
            raise InvalidArgumentError(f"{type(response).__name__} needs protocol v3")


def _prefix(response: AddResponse | ReadResponse | UnservedResponse, opcode: int, version: int) -> bytes:
    return _RESPONSE.pack(header_word(version, opcode), v2_number(response.status), response.ledger_id, response.entry_id)


def _batch_prefix(response: BatchReadResponse | UnservedResponse, version: int) -> bytes:
    word = header_word(version, BATCH_READ)
    return _BATCH_RESPONSE.pack(word, v2_number(response.status), response.ledger_id, response.entry_id, response.request_id)


def decode_response(payload: BytesLike) -> Response:
    """Return the response in a payload, as a client reads it. A code outside the table becomes IO_ERROR (wire-protocol.md 14.1 item 8)."""
    view = memoryview(payload)
    if len(view) < 4:
        raise RemoteProtocolError(f"v2 payload of {len(view)} bytes has no header word")
    _, opcode, _ = split_word(_U32.unpack_from(view)[0])
    if opcode == AUTH:
        plugin, token = decode_auth(view[4:])
        return AuthResponse(0, Status.OK, plugin, token)
    if opcode not in (ADD, READ, BATCH_READ):
        raise RemoteProtocolError(f"v2 response with unknown opcode {opcode}")
    if len(view) < RESPONSE_BYTES:
        raise RemoteProtocolError(f"v2 response of {len(view)} bytes is too short")
    _, code, ledger_id, entry_id = _RESPONSE.unpack_from(view)
    status = V2_STATUSES.get(code) or status_from_v2(code)
    if opcode == BATCH_READ:
        return _decode_batch_response(view, status)
    if opcode == ADD:
        _check_end(view, RESPONSE_BYTES)
        return AddResponse(0, status, ledger_id, entry_id)
    if status is Status.OK:
        return ReadResponse(0, status, ledger_id, entry_id, bytes(view[RESPONSE_BYTES:]))
    _check_end(view, RESPONSE_BYTES)
    return ReadResponse(0, status, ledger_id, entry_id)


def _decode_batch_response(view: memoryview, status: Status) -> BatchReadResponse:
    if len(view) < _BATCH_RESPONSE.size:
        raise RemoteProtocolError(f"v2 batch read response of {len(view)} bytes is too short")
    _, _, ledger_id, entry_id, request_id = _BATCH_RESPONSE.unpack_from(view)
    if status is not Status.OK:
        _check_end(view, _BATCH_RESPONSE.size)
    return BatchReadResponse(request_id, status, ledger_id, entry_id, bytes(view[_BATCH_RESPONSE.size :]))


def batch_head(buffer: BytesLike, at: int) -> tuple[int, int, int] | None:
    """Return (request id, ledger id, entry id) if the payload that begins at ``at`` is a batch response with status OK, else None."""
    word, code, ledger_id, entry_id, request_id = _BATCH_RESPONSE.unpack_from(buffer, at)
    if word != header_word(VERSION, BATCH_READ) or code or ledger_id < 0 or entry_id < 0:
        return None
    return request_id, ledger_id, entry_id


def _check_end(view: memoryview, size: int) -> None:
    if len(view) != size:
        raise RemoteProtocolError(f"v2 response has {len(view) - size} bytes too many")


# --- bodies of a batch response ---------------------------------------------------------------------------------


def join_bodies(bodies: Iterable[bytes]) -> bytes:
    """Return the wire form of a batch response's entries: each body behind its u32 length (wire-protocol.md 5.3)."""
    return b"".join(part for body in bodies for part in (_U32.pack(len(body)), body))


def split_bodies(bodies: BytesLike) -> list[memoryview]:
    """Return the bodies in a batch response, as views. Raises RemoteProtocolError if the lengths do not fill the bytes exactly."""
    view = memoryview(bodies)
    found = []
    position = 0
    while position < len(view):
        if len(view) - position < 4:
            raise RemoteProtocolError("batch response ends inside a length")
        start = position + 4
        position = start + _U32.unpack_from(view, position)[0]
        if position > len(view):
            raise RemoteProtocolError("batch response ends inside an entry body")
        found.append(view[start:position])
    return found
