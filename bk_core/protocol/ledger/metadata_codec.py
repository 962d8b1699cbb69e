"""Stored bytes of ledger metadata, format versions 1, 2 and 3 (metadata.md 3).

Every version starts with ``BookieMetadataFormatVersion``, a tab, the decimal version and a line feed. Version 3 goes on with a varint
length and a protobuf message, version 2 with the same message as protobuf text, version 1 with plain lines. An update is written in
the version that was read (metadata.md 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from bk_core.errors import MetadataFormatError
from bk_core.protocol.ledger._proto.ledger_formats_pb2 import LedgerMetadata as LedgerMessage
from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState

_E = TypeVar("_E", bound=Enum)

HEADER = b"BookieMetadataFormatVersion\t"
FORMAT_VERSIONS = (1, 2, 3)

_VERSION_DIGITS_MAX = 10
_V1_IN_RECOVERY = -102
_I32 = (-(2**31), 2**31 - 1)
_I64 = (-(2**63), 2**63 - 1)
_MESSAGE_STATES = {
    LedgerState.OPEN: LedgerMessage.OPEN,
    LedgerState.IN_RECOVERY: LedgerMessage.IN_RECOVERY,
    LedgerState.CLOSED: LedgerMessage.CLOSED,
}
_MESSAGE_DIGESTS = {
    DigestType.CRC32: LedgerMessage.CRC32,
    DigestType.MAC: LedgerMessage.HMAC,
    DigestType.CRC32C: LedgerMessage.CRC32C,
    DigestType.DUMMY: LedgerMessage.DUMMY,
}
_DIGEST_NAMES = {DigestType.CRC32: "CRC32", DigestType.MAC: "HMAC", DigestType.CRC32C: "CRC32C", DigestType.DUMMY: "DUMMY"}
_STATES_BY_NAME = {state.name: state for state in LedgerState}
_DIGESTS_BY_NAME = {name: digest for digest, name in _DIGEST_NAMES.items()}
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_DIGITS = "0123456789"
_BOOKIE_ID_LETTERS = frozenset(_LETTERS + _DIGITS + ".-" + "".join(map(chr, range(0x3A, 0x60))))  # the whole range: metadata.md 4.2
# the value that a reader assumes where none is stored and the caller gave none (metadata.md 3.7, META-15)
_ABSENT_DIGEST = DigestType.CRC32


@lru_cache(maxsize=4096)  # a ledger of thousands of fragments names the same few bookies
def is_bookie_id(text: str) -> bool:
    """True if every client can read ``text`` as a bookie id (metadata.md 4.2)."""
    return bool(text) and _BOOKIE_ID_LETTERS.issuperset(text) and text.lower() != "readonly"


def encode(metadata: LedgerMetadata) -> bytes:
    """Return the bytes of ``metadata`` in its own ``format_version``. Raises MetadataFormatError for a value that other clients could not
    read."""
    _check(metadata)
    writers = {1: _encode_v1, 2: _encode_v2, 3: _encode_v3}
    writer = writers.get(metadata.format_version)
    if writer is None:
        raise MetadataFormatError(f"metadata format version {metadata.format_version!r} is not one of 1, 2, 3")
    return HEADER + b"%d\n" % metadata.format_version + writer(metadata)


def decode(data: bytes | bytearray | memoryview) -> LedgerMetadata:
    """Return the metadata stored in ``data``. Raises MetadataFormatError for anything else."""
    version, body = _split_header(bytes(data))
    raw = {1: _decode_v1, 2: _decode_v2, 3: _decode_v3}[version](body)
    metadata = raw.build(version)
    _check(metadata)
    return metadata


def _split_header(data: bytes) -> tuple[int, bytes]:
    if not data.startswith(HEADER):
        raise MetadataFormatError("ledger metadata does not start with the BookieMetadataFormatVersion header")
    start = len(HEADER)
    end = data.find(b"\n", start, start + _VERSION_DIGITS_MAX + 1)
    digits = data[start:end] if end >= 0 else b""
    if not digits.isdigit():
        raise MetadataFormatError("ledger metadata header has no format version")
    version = int(digits)
    if version not in FORMAT_VERSIONS:
        raise MetadataFormatError(f"ledger metadata format version {version} is not one of 1, 2, 3")
    return version, data[end + 1 :]


def _check(metadata: LedgerMetadata) -> None:
    """Check META-4 and the limits of the stored types (metadata.md 3.4, 3.7)."""
    metadata.check()
    for name, value, (low, high) in (
        ("ensemble size", metadata.ensemble_size, _I32),
        ("length", metadata.length, (0, _I64[1])),
        ("last entry", metadata.last_entry_id, (-1, _I64[1])),
        ("ctime", metadata.ctime_ms or 0, _I64),
        ("creator token", metadata.creator_token or 0, _I64),
        ("first entry of the last fragment", metadata.last_fragment.first_entry_id, _I64),
    ):
        if not low <= value <= high:
            raise MetadataFormatError(f"{name} {value} is outside {low}..{high}")
    for fragment in metadata.fragments:
        for bookie_id in fragment.ensemble:
            if not is_bookie_id(bookie_id):
                raise MetadataFormatError(f"fragment {fragment.first_entry_id} names an invalid bookie id {bookie_id!r}")


def _utf8(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise MetadataFormatError(f"{what} is not UTF-8") from None


def _to_utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MetadataFormatError(f"{what} holds a lone surrogate") from None


def _stored_end(metadata: LedgerMetadata) -> tuple[int, int]:
    """Return (length, last entry id) as stored; they are real only when CLOSED (metadata.md 3.4)."""
    return (metadata.length, metadata.last_entry_id) if metadata.state is LedgerState.CLOSED else (0, -1)


def _carries_unknown_fields(metadata: LedgerMetadata) -> bool:
    """Return True if there are unknown fields. Only version 3 has a place for them."""
    return bool(metadata.unknown_fields or metadata.custom_unknown_fields or any(one.unknown_fields for one in metadata.fragments))


@dataclass(slots=True)
class _Raw:
    """The stored fields before they are checked; None means absent."""

    write_quorum_size: int | None = None
    ensemble_size: int | None = None
    length: int | None = None
    last_entry_id: int | None = None
    state: LedgerState | None = None
    fragments: list[Fragment] = field(default_factory=list)
    digest_type: DigestType | None = None
    password: bytes | None = None
    ack_quorum_size: int | None = None
    ctime_ms: int | None = None
    custom: dict[str, bytes] = field(default_factory=dict)
    custom_unknown_fields: dict[str, bytes] = field(default_factory=dict)
    creator_token: int | None = None
    unknown_fields: bytes = b""

    def build(self, format_version: int) -> LedgerMetadata:
        write_quorum_size = _required(self.write_quorum_size, "quorumSize")
        ensemble_size = _required(self.ensemble_size, "ensembleSize")
        length = _required(self.length, "length")
        if self.state is None:
            raise MetadataFormatError("ledger metadata lacks the required field state")
        closed = self.state is LedgerState.CLOSED
        last_entry_id = 0 if self.last_entry_id is None else self.last_entry_id
        return LedgerMetadata(
            ensemble_size=ensemble_size,
            write_quorum_size=write_quorum_size,
            ack_quorum_size=write_quorum_size if self.ack_quorum_size is None else self.ack_quorum_size,
            state=self.state,
            fragments=tuple(self.fragments),
            last_entry_id=last_entry_id if closed else -1,
            length=length if closed else 0,
            digest_type=_ABSENT_DIGEST if self.digest_type is None else self.digest_type,
            password=self.password or b"",
            custom=MappingProxyType(self.custom),
            ctime_ms=self.ctime_ms,
            creator_token=self.creator_token,
            format_version=format_version,
            unknown_fields=self.unknown_fields,
            has_password=self.password is not None,
            has_digest=self.digest_type is not None,
            custom_unknown_fields=tuple((key, data) for key, data in self.custom_unknown_fields.items() if data),
        )


def _required(value: int | None, name: str) -> int:
    if value is None:
        raise MetadataFormatError(f"ledger metadata lacks the required field {name}")
    return value


# --- version 3: binary protobuf -----------------------------------------------------------------------------------


def _encode_v3(metadata: LedgerMetadata) -> bytes:
    message = LedgerMessage()
    message.quorum_size = metadata.write_quorum_size
    message.ensemble_size = metadata.ensemble_size
    message.length, message.last_entry_id = _stored_end(metadata)
    message.state = _MESSAGE_STATES[metadata.state]
    for fragment in metadata.fragments:
        segment = message.segment.add()
        segment.ensemble_member.extend(bookie_id.encode() for bookie_id in fragment.ensemble)
        segment.first_entry_id = fragment.first_entry_id
        segment.MergeFromString(fragment.unknown_fields)
    if metadata.has_digest:
        message.digest_type = _MESSAGE_DIGESTS[metadata.digest_type]
    if metadata.has_password:
        message.password = metadata.password
    message.ack_quorum_size = metadata.ack_quorum_size
    if metadata.ctime_ms is not None:
        message.ctime = metadata.ctime_ms
    unknown = dict(metadata.custom_unknown_fields)
    for key, value in metadata.custom.items():
        entry = message.custom_metadata.add(key=_to_utf8(key, "a key of the custom metadata"), value=value)
        entry.MergeFromString(unknown.get(key, b""))
    if metadata.creator_token is not None:
        message.creator_token = metadata.creator_token
    body = message.SerializeToString() + metadata.unknown_fields
    return _varint(len(body)) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_length(data: bytes) -> tuple[int, int]:
    """Return (value, bytes used) of the unsigned varint at the start of ``data``."""
    value = 0
    for index, byte in enumerate(data[:5]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, index + 1
    raise MetadataFormatError("length of the ledger metadata message is cut off or too large")


def _decode_v3(body: bytes) -> _Raw:
    length, start = _read_length(body)
    if len(body) - start < length:
        raise MetadataFormatError(f"ledger metadata message of {length} bytes is cut off after {len(body) - start}")
    message = LedgerMessage()
    try:
        message.ParseFromString(body[start : start + length])
    except DecodeError:
        raise MetadataFormatError("ledger metadata is not a protobuf message") from None
    raw = _Raw(unknown_fields=_unknown_fields(message, "ledger metadata"))
    raw.write_quorum_size = message.quorum_size if message.HasField("quorum_size") else None
    raw.ensemble_size = message.ensemble_size if message.HasField("ensemble_size") else None
    raw.length = message.length if message.HasField("length") else None
    raw.last_entry_id = message.last_entry_id if message.HasField("last_entry_id") else None
    raw.state = LedgerState(message.state) if message.HasField("state") else None
    raw.fragments = [_fragment_of(segment) for segment in message.segment]
    raw.digest_type = DigestType(message.digest_type) if message.HasField("digest_type") else None
    raw.password = message.password if message.HasField("password") else None
    raw.ack_quorum_size = message.ack_quorum_size if message.HasField("ack_quorum_size") else None
    raw.ctime_ms = message.ctime if message.HasField("ctime") else None
    for entry in message.custom_metadata:
        key = _utf8(entry.key, "a key of the custom metadata")
        raw.custom[key] = entry.value
        raw.custom_unknown_fields[key] = _unknown_fields(entry, "custom metadata")
    raw.creator_token = message.creator_token if message.HasField("creator_token") else None
    return raw


def _fragment_of(segment: LedgerMessage.Segment) -> Fragment:
    if not segment.HasField("first_entry_id"):
        raise MetadataFormatError("a segment lacks the required field firstEntryId")
    ensemble = tuple(_utf8(member, "a bookie id") for member in segment.ensemble_member)
    return Fragment(segment.first_entry_id, ensemble, _unknown_fields(segment, "a segment"))


def _unknown_fields(message: Message, what: str) -> bytes:
    """Return the fields of ``message`` that its format does not have, byte for byte (META-8).

    A known number among them means a wrong wire type or an unknown enum value, because protobuf files both as unknown. Carrying one along
    would write the field twice, so it is an error.
    """
    if not len(UnknownFieldSet(message)):
        return b""
    rest = type(message)()
    rest.CopyFrom(message)
    known = message.DESCRIPTOR.fields_by_name
    for name in known:
        rest.ClearField(name)
    unknown = UnknownFieldSet(rest)
    wrong = sorted({unknown[index].field_number for index in range(len(unknown))} & {one.number for one in known.values()})
    if wrong:
        raise MetadataFormatError(f"fields {wrong} of {what} have an unknown value or a wrong wire type")
    return rest.SerializeToString()


# --- version 2: protobuf text -------------------------------------------------------------------------------------

_ESCAPES = {0x08: r"\b", 0x09: r"\t", 0x0A: r"\n", 0x0C: r"\f", 0x0D: r"\r", 0x22: r"\"", 0x27: r"\'", 0x5C: r"\\"}
_UNESCAPES = {
    ord("a"): 7, ord("b"): 8, ord("f"): 12, ord("n"): 10, ord("r"): 13, ord("t"): 9, ord("v"): 11,
    ord("\\"): 0x5C, ord("'"): 0x27, ord('"'): 0x22, ord("?"): 0x3F,
}  # fmt: skip
_NESTING_MAX = 64
_NUMBER_DIGITS_MAX = 30  # more than any number in range has, leading zeros aside

_TextValue = bytes | str | list["_TextField"]  # string literal, bare word or number, nested message
_TextField = tuple[str, _TextValue]

_SPACE = frozenset(b" \t\r\n\f\v")
_WORD = frozenset((_LETTERS + _LETTERS.upper() + _DIGITS + "_.+-").encode())
_MARKS = frozenset(b"{}<>[]:;,")
_QUOTES = frozenset(b"\"'")
_OCTAL = frozenset(b"01234567")
_HEXADECIMAL = frozenset(b"0123456789abcdefABCDEF")


def quote_text(data: bytes) -> str:
    """Return ``data`` as a protobuf text literal, with bytes outside printable ASCII as octal (metadata.md 3.5)."""
    return '"' + "".join(_ESCAPES.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in data) + '"'


def _encode_v2(metadata: LedgerMetadata) -> bytes:
    if _carries_unknown_fields(metadata):
        raise MetadataFormatError("metadata format version 2 cannot hold unknown fields")
    length, last_entry_id = _stored_end(metadata)
    lines = [
        f"quorumSize: {metadata.write_quorum_size}",
        f"ensembleSize: {metadata.ensemble_size}",
        f"length: {length}",
        f"lastEntryId: {last_entry_id}",
        f"state: {metadata.state.name}",
    ]
    for fragment in metadata.fragments:
        members = (f"  ensembleMember: {quote_text(bookie_id.encode())}" for bookie_id in fragment.ensemble)
        lines += ["segment {", *members, f"  firstEntryId: {fragment.first_entry_id}", "}"]
    if metadata.has_digest:
        lines.append(f"digestType: {_DIGEST_NAMES[metadata.digest_type]}")
    if metadata.has_password:
        lines.append(f"password: {quote_text(metadata.password)}")
    lines.append(f"ackQuorumSize: {metadata.ack_quorum_size}")
    if metadata.ctime_ms is not None:
        lines.append(f"ctime: {metadata.ctime_ms}")
    for key, value in metadata.custom.items():
        quoted = quote_text(_to_utf8(key, "a key of the custom metadata"))
        lines += ["customMetadata {", f"  key: {quoted}", f"  value: {quote_text(value)}", "}"]
    return ("\n".join(lines) + "\n").encode()


def _decode_v2(body: bytes) -> _Raw:
    raw = _Raw()
    for name, value in parse_text(body):
        match name:
            case "quorumSize":
                raw.write_quorum_size = _integer(name, value, _I32)
            case "ensembleSize":
                raw.ensemble_size = _integer(name, value, _I32)
            case "length":
                raw.length = _integer(name, value, _I64)
            case "lastEntryId":
                raw.last_entry_id = _integer(name, value, _I64)
            case "state":
                raw.state = _enum(name, value, _STATES_BY_NAME)
            case "segment":
                raw.fragments.append(_text_fragment(_message(name, value)))
            case "digestType":
                raw.digest_type = _enum(name, value, _DIGESTS_BY_NAME)
            case "password":
                raw.password = _literal(name, value)
            case "ackQuorumSize":
                raw.ack_quorum_size = _integer(name, value, _I32)
            case "ctime":
                raw.ctime_ms = _integer(name, value, _I64)
            case "customMetadata":
                key, content = _text_custom(_message(name, value))
                raw.custom[key] = content
            case "cToken":
                raw.creator_token = _integer(name, value, _I64)
            case _:
                pass  # it is skipped, as by the newest Java release (metadata.md 3.7)
    return raw


def _text_fragment(fields: list[_TextField]) -> Fragment:
    members: list[str] = []
    first_entry_id: int | None = None
    for name, value in fields:
        if name == "ensembleMember":
            members.append(_utf8(_literal(name, value), "a bookie id"))
        elif name == "firstEntryId":
            first_entry_id = _integer(name, value, _I64)
    return Fragment(_required(first_entry_id, "firstEntryId"), tuple(members))


def _text_custom(fields: list[_TextField]) -> tuple[str, bytes]:
    values = {name: _literal(name, value) for name, value in fields if name in ("key", "value")}
    return _utf8(values.get("key", b""), "a key of the custom metadata"), values.get("value", b"")


def parse_text(data: bytes) -> list[_TextField]:
    """Return the fields of a protobuf text message in their order, nested ones as lists. Raises MetadataFormatError if it is no such text.

    Comments, both kinds of quotes and brackets, adjacent literals, list notation and field separators are understood (metadata.md 3.7).
    """
    return _TextParser(data).message(end="", depth=0)


class _TextParser:
    __slots__ = ("_data", "_kind", "_offset", "_text")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0
        self._kind = ""
        self._text = b""
        self._next()

    def message(self, end: str, depth: int) -> list[_TextField]:
        if depth > _NESTING_MAX:
            raise MetadataFormatError(f"metadata text is nested deeper than {_NESTING_MAX}")
        fields: list[_TextField] = []
        while not self._at(end):
            if self._kind != "word":
                raise self._error("a field name")
            name = self._text.decode()
            self._next()
            separated = self._skip(":")
            if self._at("["):
                fields.extend((name, value) for value in self._list(depth))
            else:
                fields.append((name, self._value(depth, separated)))
            if not self._skip(","):
                self._skip(";")
        if end:
            self._next()
        return fields

    def _list(self, depth: int) -> list[_TextValue]:
        self._next()
        values: list[_TextValue] = []
        while not self._at("]"):
            values.append(self._value(depth, separated=True))
            if not self._skip(",") and not self._at("]"):
                raise self._error('"," or "]"')
        self._next()
        return values

    def _value(self, depth: int, separated: bool) -> _TextValue:
        for opening, closing in (("{", "}"), ("<", ">")):
            if self._skip(opening):
                return self.message(closing, depth + 1)
        if not separated:
            raise self._error('":"')
        if self._kind == "word":
            word = self._text.decode()
            self._next()
            return word
        if self._kind != "string":
            raise self._error("a value")
        parts: list[bytes] = []
        while self._kind == "string":
            parts.append(_unquote(self._text))
            self._next()
        return b"".join(parts)

    def _at(self, mark: str) -> bool:
        if not mark:
            return self._kind == "end"
        return self._kind == "mark" and self._text == mark.encode()

    def _skip(self, mark: str) -> bool:
        if self._at(mark):
            self._next()
            return True
        return False

    def _next(self) -> None:
        start = self._skip_space()
        if start == len(self._data):
            self._kind, end = "end", start
        elif (first := self._data[start]) in _QUOTES:
            self._kind, end = "string", self._end_of_string(start)
        elif first in _MARKS:
            self._kind, end = "mark", start + 1
        elif first in _WORD:
            self._kind, end = "word", _end_of_run(self._data, start, _WORD, len(self._data))
        else:
            raise MetadataFormatError(f"metadata text has an unexpected byte near byte {start}")
        self._text, self._offset = self._data[start:end], end

    def _skip_space(self) -> int:
        offset = self._offset
        while offset < len(self._data):
            if self._data[offset] == ord("#"):
                end = self._data.find(b"\n", offset)
                offset = len(self._data) if end < 0 else end
            elif self._data[offset] in _SPACE:
                offset += 1
            else:
                break
        return offset

    def _end_of_string(self, start: int) -> int:
        offset = start + 1
        while offset < len(self._data) and self._data[offset] != ord("\n"):
            if self._data[offset] == self._data[start]:
                return offset + 1
            offset += 2 if self._data[offset] == ord("\\") else 1
        raise MetadataFormatError(f"metadata text has a quoted text without an end near byte {start}")

    def _error(self, wanted: str) -> MetadataFormatError:
        return MetadataFormatError(f"metadata text lacks {wanted} near byte {self._offset}")


def _end_of_run(data: bytes, start: int, wanted: frozenset[int], end: int) -> int:
    while start < end and data[start] in wanted:
        start += 1
    return start


def _unquote(literal: bytes) -> bytes:
    """Return the content of a literal with its quotes. Escapes are one letter, one to three octal or one to two hexadecimal digits."""
    out = bytearray()
    offset, last = 1, len(literal) - 1
    while offset < last:
        if literal[offset] != ord("\\"):
            out.append(literal[offset])
            offset += 1
            continue
        digits = offset + 2 if literal[offset + 1] in b"xX" else offset + 1
        octal = digits == offset + 1
        end = _end_of_run(literal, digits, _OCTAL if octal else _HEXADECIMAL, min(digits + (3 if octal else 2), last))
        if end > digits:
            code, offset = int(literal[digits:end], 8 if octal else 16), end
        else:
            code, offset = _UNESCAPES.get(literal[offset + 1], -1), offset + 2
        if not 0 <= code <= 0xFF:
            raise MetadataFormatError("metadata text holds an unknown escape")
        out.append(code)
    return bytes(out)


def _integer(name: str, value: _TextValue, bounds: tuple[int, int]) -> int:
    text = value if isinstance(value, str) else ""
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    base, allowed = 10, _DIGITS
    if digits[:2] in ("0x", "0X"):
        base, allowed, digits = 16, _DIGITS + "abcdefABCDEF", digits[2:]
    elif digits.startswith("0"):
        base, allowed = 8, "01234567"
    if not 0 < len(digits) <= _NUMBER_DIGITS_MAX or not set(digits) <= set(allowed):
        raise MetadataFormatError(f"{name} in the metadata text is not a number")
    number = int(sign + digits, base)
    if not bounds[0] <= number <= bounds[1]:
        raise MetadataFormatError(f"{name} {number} in the metadata text is out of range")
    return number


def _enum(name: str, value: _TextValue, names: Mapping[str, _E]) -> _E:
    """Return the enum value by name, or by number as old writers may have stored it (metadata.md 3.7)."""
    if isinstance(value, str):
        found = names.get(value) or next((member for member in names.values() if str(member.value) == value), None)
        if found is not None:
            return found
    raise MetadataFormatError(f"{name} in the metadata text has an unknown value")


def _literal(name: str, value: _TextValue) -> bytes:
    if not isinstance(value, bytes):
        raise MetadataFormatError(f"{name} in the metadata text is not a quoted text")
    return value


def _message(name: str, value: _TextValue) -> list[_TextField]:
    if not isinstance(value, list):
        raise MetadataFormatError(f"{name} in the metadata text is not a group in brackets")
    return value


# --- version 1: plain lines ---------------------------------------------------------------------------------------


def _encode_v1(metadata: LedgerMetadata) -> bytes:
    if metadata.ack_quorum_size != metadata.write_quorum_size:
        raise MetadataFormatError("metadata format version 1 cannot hold an ack quorum unlike the write quorum")
    has_access = metadata.has_digest or metadata.has_password
    if has_access or metadata.custom or metadata.ctime_ms is not None or _carries_unknown_fields(metadata):
        raise MetadataFormatError("metadata format version 1 cannot hold a digest type, a password, a creation time or custom metadata")
    length, last_entry_id = _stored_end(metadata)
    lines = [f"{metadata.write_quorum_size}\n{metadata.ensemble_size}\n{length}\n"]
    lines += ["\t".join((str(fragment.first_entry_id), *fragment.ensemble)) + "\n" for fragment in metadata.fragments]
    if metadata.state is LedgerState.CLOSED:
        lines.append(f"{last_entry_id}\tCLOSED")
    elif metadata.state is LedgerState.IN_RECOVERY:
        lines.append(f"{_V1_IN_RECOVERY}\tCLOSED")
    return "".join(lines).encode()


def _decode_v1(body: bytes) -> _Raw:
    lines = [line.removesuffix("\r") for line in _utf8(body, "ledger metadata of version 1").split("\n")]
    if len(lines) < 4:
        raise MetadataFormatError("ledger metadata of version 1 has too few lines")
    raw = _Raw(state=LedgerState.OPEN)
    raw.write_quorum_size = _decimal("write quorum", lines[0], _I32)
    raw.ensemble_size = _decimal("ensemble size", lines[1], _I32)
    raw.length = _decimal("length", lines[2], _I64)
    for index, line in enumerate(lines[3:], start=3):
        if not line and index == len(lines) - 1:
            break
        number, *members = line.split("\t")
        if members == ["CLOSED"]:
            if any(lines[index + 1 :]):
                raise MetadataFormatError("ledger metadata of version 1 goes on after its last line")
            raw.last_entry_id = _decimal("last entry", number, _I64)
            in_recovery = raw.last_entry_id == _V1_IN_RECOVERY
            raw.state = LedgerState.IN_RECOVERY if in_recovery else LedgerState.CLOSED
            break
        raw.fragments.append(Fragment(_decimal("first entry", number, _I64), tuple(members)))
    return raw


def _decimal(what: str, text: str, bounds: tuple[int, int]) -> int:
    digits = text.removeprefix("-")
    if not 0 < len(digits) <= 19 or not set(digits) <= set(_DIGITS) or not bounds[0] <= int(text) <= bounds[1]:
        raise MetadataFormatError(f"{what} in ledger metadata of version 1 is not a number in range")
    return int(text)
