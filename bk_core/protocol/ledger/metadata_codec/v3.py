"""Version 3 of stored ledger metadata: a varint length and a protobuf message (metadata.md 3)."""

from __future__ import annotations

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from bk_core.errors import MetadataFormatError
from bk_core.protocol.ledger._proto.ledger_formats_pb2 import LedgerMetadata as LedgerMessage
from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.metadata_codec.fields import Raw, stored_end, to_utf8, utf8

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


def encode_v3(metadata: LedgerMetadata) -> bytes:
    message = LedgerMessage()
    message.quorum_size = metadata.write_quorum_size
    message.ensemble_size = metadata.ensemble_size
    message.length, message.last_entry_id = stored_end(metadata)
    message.state = _MESSAGE_STATES[metadata.state]
    for fragment in metadata.fragments:
        segment = message.segment.add()
        segment.ensemble_member.extend(bookie_id.encode() for bookie_id in fragment.ensemble)
        segment.first_entry_id = fragment.first_entry_id
        segment.MergeFromString(fragment.unknown_fields)
    if metadata.has_digest:
        message.digest_type = _MESSAGE_DIGESTS[metadata.digest_type]
    if metadata.stores_password:
        message.password = metadata.password
    message.ack_quorum_size = metadata.ack_quorum_size
    if metadata.ctime_ms is not None:
        message.ctime = metadata.ctime_ms
    unknown = dict(metadata.custom_unknown_fields)
    for key, value in metadata.custom.items():
        entry = message.custom_metadata.add(key=to_utf8(key, "a key of the custom metadata"), value=value)
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


def decode_v3(body: bytes) -> Raw:
    length, start = _read_length(body)
    if len(body) - start < length:
        raise MetadataFormatError(f"ledger metadata message of {length} bytes is cut off after {len(body) - start}")
    message = LedgerMessage()
    try:
        message.ParseFromString(body[start : start + length])
    except DecodeError:
        raise MetadataFormatError("ledger metadata is not a protobuf message") from None
    raw = Raw(unknown_fields=_unknown_fields(message, "ledger metadata"))
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
        key = utf8(entry.key, "a key of the custom metadata")
        raw.custom[key] = entry.value
        raw.custom_unknown_fields[key] = _unknown_fields(entry, "custom metadata")
    raw.creator_token = message.creator_token if message.HasField("creator_token") else None
    return raw


def _fragment_of(segment: LedgerMessage.Segment) -> Fragment:
    if not segment.HasField("first_entry_id"):
        raise MetadataFormatError("a segment lacks the required field firstEntryId")
    ensemble = tuple(utf8(member, "a bookie id") for member in segment.ensemble_member)
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
