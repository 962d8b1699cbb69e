"""Version 2 of stored ledger metadata: the message as protobuf text (metadata.md 3)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from bk_core.errors import MetadataFormatError
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata
from bk_core.protocol.ledger.metadata_codec.fields import (
    DIGEST_NAMES,
    DIGESTS_BY_NAME,
    DIGITS,
    I32,
    I64,
    STATES_BY_NAME,
    Raw,
    carries_unknown_fields,
    required,
    stored_end,
    to_utf8,
    utf8,
)
from bk_core.protocol.ledger.metadata_codec.text import NUMBER_DIGITS_MAX, TextField, TextValue, parse_text, quote_text

_E = TypeVar("_E", bound=Enum)


def encode_v2(metadata: LedgerMetadata) -> bytes:
    if carries_unknown_fields(metadata):
        raise MetadataFormatError("metadata format version 2 cannot hold unknown fields")
    length, last_entry_id = stored_end(metadata)
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
        lines.append(f"digestType: {DIGEST_NAMES[metadata.digest_type]}")
    if metadata.stores_password:
        lines.append(f"password: {quote_text(metadata.password)}")
    lines.append(f"ackQuorumSize: {metadata.ack_quorum_size}")
    if metadata.ctime_ms is not None:
        lines.append(f"ctime: {metadata.ctime_ms}")
    for key, value in metadata.custom.items():
        quoted = quote_text(to_utf8(key, "a key of the custom metadata"))
        lines += ["customMetadata {", f"  key: {quoted}", f"  value: {quote_text(value)}", "}"]
    return ("\n".join(lines) + "\n").encode()


def decode_v2(body: bytes) -> Raw:
    raw = Raw()
    for name, value in parse_text(body):
        match name:
            case "quorumSize":
                raw.write_quorum_size = _integer(name, value, I32)
            case "ensembleSize":
                raw.ensemble_size = _integer(name, value, I32)
            case "length":
                raw.length = _integer(name, value, I64)
            case "lastEntryId":
                raw.last_entry_id = _integer(name, value, I64)
            case "state":
                raw.state = _enum(name, value, STATES_BY_NAME)
            case "segment":
                raw.fragments.append(_text_fragment(_message(name, value)))
            case "digestType":
                raw.digest_type = _enum(name, value, DIGESTS_BY_NAME)
            case "password":
                raw.password = _literal(name, value)
            case "ackQuorumSize":
                raw.ack_quorum_size = _integer(name, value, I32)
            case "ctime":
                raw.ctime_ms = _integer(name, value, I64)
            case "customMetadata":
                key, content = _text_custom(_message(name, value))
                raw.custom[key] = content
            case "cToken":
                raw.creator_token = _integer(name, value, I64)
            case _:
                pass  # it is skipped, as by the newest Java release (metadata.md 3.7)
    return raw


def _text_fragment(fields: list[TextField]) -> Fragment:
    members: list[str] = []
    first_entry_id: int | None = None
    for name, value in fields:
        if name == "ensembleMember":
            members.append(utf8(_literal(name, value), "a bookie id"))
        elif name == "firstEntryId":
            first_entry_id = _integer(name, value, I64)
    return Fragment(required(first_entry_id, "firstEntryId"), tuple(members))


def _text_custom(fields: list[TextField]) -> tuple[str, bytes]:
    values = {name: _literal(name, value) for name, value in fields if name in ("key", "value")}
    return utf8(values.get("key", b""), "a key of the custom metadata"), values.get("value", b"")


def _integer(name: str, value: TextValue, bounds: tuple[int, int]) -> int:
    text = value if isinstance(value, str) else ""
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    base, allowed = 10, DIGITS
    if digits[:2] in ("0x", "0X"):
        base, allowed, digits = 16, DIGITS + "abcdefABCDEF", digits[2:]
    elif digits.startswith("0"):
        base, allowed = 8, "01234567"
    if not 0 < len(digits) <= NUMBER_DIGITS_MAX or not set(digits) <= set(allowed):
        raise MetadataFormatError(f"{name} in the metadata text is not a number")
    number = int(sign + digits, base)
    if not bounds[0] <= number <= bounds[1]:
        raise MetadataFormatError(f"{name} {number} in the metadata text is out of range")
    return number


def _enum(name: str, value: TextValue, names: Mapping[str, _E]) -> _E:
    """Return the enum value by name, or by number as old writers may have stored it (metadata.md 3.7)."""
    if isinstance(value, str):
        found = names.get(value) or next((member for member in names.values() if str(member.value) == value), None)
        if found is not None:
            return found
    raise MetadataFormatError(f"{name} in the metadata text has an unknown value")


def _literal(name: str, value: TextValue) -> bytes:
    if not isinstance(value, bytes):
        raise MetadataFormatError(f"{name} in the metadata text is not a quoted text")
    return value


def _message(name: str, value: TextValue) -> list[TextField]:
    if not isinstance(value, list):
        raise MetadataFormatError(f"{name} in the metadata text is not a group in brackets")
    return value
