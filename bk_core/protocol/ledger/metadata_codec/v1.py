"""Version 1 of stored ledger metadata: plain lines (metadata.md 3)."""

from __future__ import annotations

from bk_core.errors import MetadataFormatError
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.metadata_codec.fields import DIGITS, I32, I64, Raw, carries_unknown_fields, stored_end, utf8

_V1_IN_RECOVERY = -102


def encode_v1(metadata: LedgerMetadata) -> bytes:
    if metadata.ack_quorum_size != metadata.write_quorum_size:
        raise MetadataFormatError("metadata format version 1 cannot hold an ack quorum unlike the write quorum")
    has_access = metadata.has_digest or metadata.stores_password
    if has_access or metadata.custom or metadata.ctime_ms is not None or carries_unknown_fields(metadata):
        raise MetadataFormatError("metadata format version 1 cannot hold a digest type, a password, a creation time or custom metadata")
    length, last_entry_id = stored_end(metadata)
    lines = [f"{metadata.write_quorum_size}\n{metadata.ensemble_size}\n{length}\n"]
    lines += ["\t".join((str(fragment.first_entry_id), *fragment.ensemble)) + "\n" for fragment in metadata.fragments]
    if metadata.state is LedgerState.CLOSED:
        lines.append(f"{last_entry_id}\tCLOSED")
    elif metadata.state is LedgerState.IN_RECOVERY:
        lines.append(f"{_V1_IN_RECOVERY}\tCLOSED")
    return "".join(lines).encode()


def decode_v1(body: bytes) -> Raw:
    lines = [line.removesuffix("\r") for line in utf8(body, "ledger metadata of version 1").split("\n")]
    if len(lines) < 4:
        raise MetadataFormatError("ledger metadata of version 1 has too few lines")
    raw = Raw(state=LedgerState.OPEN)
    raw.write_quorum_size = _decimal("write quorum", lines[0], I32)
    raw.ensemble_size = _decimal("ensemble size", lines[1], I32)
    raw.length = _decimal("length", lines[2], I64)
    for index, line in enumerate(lines[3:], start=3):
        if not line and index == len(lines) - 1:
            break
        number, *members = line.split("\t")
        if members == ["CLOSED"]:
            if any(lines[index + 1 :]):
                raise MetadataFormatError("ledger metadata of version 1 goes on after its last line")
            raw.last_entry_id = _decimal("last entry", number, I64)
            in_recovery = raw.last_entry_id == _V1_IN_RECOVERY
            raw.state = LedgerState.IN_RECOVERY if in_recovery else LedgerState.CLOSED
            break
        raw.fragments.append(Fragment(_decimal("first entry", number, I64), tuple(members)))
    return raw


def _decimal(what: str, text: str, bounds: tuple[int, int]) -> int:
    digits = text.removeprefix("-")
    if not 0 < len(digits) <= 19 or not set(digits) <= set(DIGITS) or not bounds[0] <= int(text) <= bounds[1]:
        raise MetadataFormatError(f"{what} in ledger metadata of version 1 is not a number in range")
    return int(text)
