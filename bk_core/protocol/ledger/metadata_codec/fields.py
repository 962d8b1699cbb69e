"""The fields of stored ledger metadata, whatever the version: their bounds, names and defaults (metadata.md 3.4, 3.7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from bk_core.errors import MetadataFormatError
from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState

I32 = (-(2**31), 2**31 - 1)
I64 = (-(2**63), 2**63 - 1)
DIGEST_NAMES = {DigestType.CRC32: "CRC32", DigestType.MAC: "HMAC", DigestType.CRC32C: "CRC32C", DigestType.DUMMY: "DUMMY"}
STATES_BY_NAME = {state.name: state for state in LedgerState}
DIGESTS_BY_NAME = {name: digest for digest, name in DIGEST_NAMES.items()}
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DIGITS = "0123456789"
_BOOKIE_ID_LETTERS = frozenset(LETTERS + DIGITS + ".-" + "".join(map(chr, range(0x3A, 0x60))))  # the whole range: metadata.md 4.2
# the value that a reader assumes where none is stored and the caller gave none (metadata.md 3.7, META-15)
_ABSENT_DIGEST = DigestType.CRC32


@lru_cache(maxsize=4096)  # a ledger of thousands of fragments names the same few bookies
def is_bookie_id(text: str) -> bool:
    """True if every client can read ``text`` as a bookie id (metadata.md 4.2)."""
    return bool(text) and _BOOKIE_ID_LETTERS.issuperset(text) and text.lower() != "readonly"


def check(metadata: LedgerMetadata) -> None:
    """Check META-4 and the limits of the stored types (metadata.md 3.4, 3.7)."""
    metadata.check()
    for name, value, (low, high) in (
        ("ensemble size", metadata.ensemble_size, I32),
        ("length", metadata.length, (0, I64[1])),
        ("last entry", metadata.last_entry_id, (-1, I64[1])),
        ("ctime", metadata.ctime_ms or 0, I64),
        ("creator token", metadata.creator_token or 0, I64),
        ("first entry of the last fragment", metadata.last_fragment.first_entry_id, I64),
    ):
        if not low <= value <= high:
            raise MetadataFormatError(f"{name} {value} is outside {low}..{high}")
    for fragment in metadata.fragments:
        for bookie_id in fragment.ensemble:
            if not is_bookie_id(bookie_id):
                raise MetadataFormatError(f"fragment {fragment.first_entry_id} names an invalid bookie id {bookie_id!r}")


def utf8(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise MetadataFormatError(f"{what} is not UTF-8") from None


def to_utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise MetadataFormatError(f"{what} holds a lone surrogate") from None


def stored_end(metadata: LedgerMetadata) -> tuple[int, int]:
    """Return (length, last entry id) as stored; they are real only when CLOSED (metadata.md 3.4)."""
    return (metadata.length, metadata.last_entry_id) if metadata.state is LedgerState.CLOSED else (0, -1)


def carries_unknown_fields(metadata: LedgerMetadata) -> bool:
    """Return True if there are unknown fields. Only version 3 has a place for them."""
    return bool(metadata.unknown_fields or metadata.custom_unknown_fields or any(one.unknown_fields for one in metadata.fragments))


@dataclass(slots=True)
class Raw:
    """The stored fields before they are checked; None means absent."""

    write_quorum_size: int | None = None
    ensemble_size: int | None = None
    length: int | None = None
    last_entry_id: int | None = None
    state: LedgerState | None = None
    fragments: list[Fragment] = field(default_factory=list)
    digest_type: DigestType | None = None
    password: bytes | None = field(default=None, repr=False)
    ack_quorum_size: int | None = None
    ctime_ms: int | None = None
    custom: dict[str, bytes] = field(default_factory=dict)
    custom_unknown_fields: dict[str, bytes] = field(default_factory=dict)
    creator_token: int | None = None
    unknown_fields: bytes = b""

    def build(self, format_version: int) -> LedgerMetadata:
        write_quorum_size = required(self.write_quorum_size, "quorumSize")
        ensemble_size = required(self.ensemble_size, "ensembleSize")
        length = required(self.length, "length")
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
            stores_password=self.password is not None,
            has_digest=self.digest_type is not None,
            custom_unknown_fields=tuple((key, data) for key, data in self.custom_unknown_fields.items() if data),
        )


def required(value: int | None, name: str) -> int:
    if value is None:
        raise MetadataFormatError(f"ledger metadata lacks the required field {name}")
    return value
