"""Entry bodies (wire-protocol.md 7.1) and explicit LAC packets (wire-protocol.md 7.4): how they are laid out, built and checked.

    entry body    i64 ledger | i64 entry | i64 last add confirmed | i64 accumulated length | digest (D bytes) | payload
    LAC packet    i64 ledger | i64 last add confirmed | digest (D bytes)

``length`` is the sum of the payload sizes of entries 0..this one, in bytes.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass, field

from bk_core.errors import DigestError, InvalidArgumentError
from bk_core.protocol import BytesLike
from bk_core.protocol.entry.digests import digest_for
from bk_core.protocol.ledger.metadata import DigestType

HEADER = struct.Struct(">qqqq")
HEADER_BYTES = HEADER.size  # 32
LAC_HEADER = struct.Struct(">qq")
LAC_HEADER_BYTES = LAC_HEADER.size  # 16


@dataclass(frozen=True, slots=True)
class Entry:
    """A checked entry. ``last_add_confirmed`` is the field inside the body: the LAC that the writer knew when it sent the entry."""

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int
    payload: bytes = field(repr=False)


def body_overhead(digest_type: DigestType | int) -> int:
    """Return the bytes that an entry body has beyond its payload: 32 + D."""
    return HEADER_BYTES + digest_for(digest_type).length


def encode_body(
    ledger_id: int,
    entry_id: int,
    last_add_confirmed: int,
    length: int,
    payload: BytesLike,
    digest_type: DigestType | int,
    hmac_key: bytes = b"",
) -> bytes:
    """Return one entry body. Raises InvalidArgumentError for a negative id, an impossible LAC or length, or an unknown digest type."""
    digest = digest_for(digest_type)
    if ledger_id < 0 or entry_id < 0 or last_add_confirmed < -1 or length < 0:
        raise InvalidArgumentError(f"entry {entry_id} of ledger {ledger_id}: LAC {last_add_confirmed}, length {length} cannot be written")
    try:
        header = HEADER.pack(ledger_id, entry_id, last_add_confirmed, length)
    except struct.error as cause:
        raise InvalidArgumentError(f"entry {entry_id} of ledger {ledger_id}: a number does not fit 64 bits") from cause
    return b"".join((header, digest.compute(hmac_key, header, payload), payload))


def decode_body(body: BytesLike, ledger_id: int, entry_id: int | None, digest_type: DigestType | int, hmac_key: bytes = b"") -> Entry:
    """Return the entry in ``body`` after checks in the order of wire-protocol.md 7.3: size, digest, ledger id, entry id.

    With ``entry_id`` None any entry is accepted (answers to last-entry reads). Any mismatch raises DigestError (RD-8).
    """
    digest = digest_for(digest_type)
    view = memoryview(body).cast("B")
    start = HEADER_BYTES + digest.length
    if len(view) < start:
        raise DigestError(f"entry body of {len(view)} bytes is shorter than {start}", ledger_id=ledger_id, entry_id=entry_id)
    payload = bytes(view[start:])
    header = view[:HEADER_BYTES]
    if not hmac.compare_digest(digest.compute(hmac_key, header, payload), view[HEADER_BYTES:start]):
        raise DigestError(f"{digest.digest_type.name} digest does not match", ledger_id=ledger_id, entry_id=entry_id)
    found_ledger, found_entry, lac, length = HEADER.unpack(header)
    if found_ledger != ledger_id:
        raise DigestError(f"body of ledger {found_ledger}, not {ledger_id}", ledger_id=ledger_id, entry_id=entry_id)
    if found_entry < 0 or (entry_id is not None and found_entry != entry_id):
        raise DigestError(f"body of entry {found_entry}, not {entry_id}", ledger_id=ledger_id, entry_id=entry_id)
    return Entry(found_ledger, found_entry, lac, length, payload)


def encode_lac_packet(ledger_id: int, last_add_confirmed: int, digest_type: DigestType | int, hmac_key: bytes = b"") -> bytes:
    """Return the explicit LAC packet of WRITE_LAC (wire-protocol.md 7.4). Raises InvalidArgumentError for numbers that cannot
    be written."""
    digest = digest_for(digest_type)
    if ledger_id < 0 or last_add_confirmed < -1:
        raise InvalidArgumentError(f"LAC {last_add_confirmed} of ledger {ledger_id} cannot be written")
    try:
        header = LAC_HEADER.pack(ledger_id, last_add_confirmed)
    except struct.error as cause:
        raise InvalidArgumentError(f"LAC {last_add_confirmed} of ledger {ledger_id} does not fit 64 bits") from cause
    return header + digest.compute(hmac_key, header)


def decode_lac_packet(packet: BytesLike, ledger_id: int, digest_type: DigestType | int, hmac_key: bytes = b"") -> int:
    """Return the LAC in an explicit LAC packet. Raises DigestError if size, digest or ledger id is wrong."""
    digest = digest_for(digest_type)
    view = memoryview(packet).cast("B")
    end = LAC_HEADER_BYTES + digest.length
    if len(view) < end:
        raise DigestError(f"explicit LAC packet of {len(view)} bytes is shorter than {end}", ledger_id=ledger_id)
    header = view[:LAC_HEADER_BYTES]
    if not hmac.compare_digest(digest.compute(hmac_key, header), view[LAC_HEADER_BYTES:end]):
        raise DigestError(f"{digest.digest_type.name} digest of an explicit LAC does not match", ledger_id=ledger_id)
    found_ledger, lac = LAC_HEADER.unpack(header)
    if found_ledger != ledger_id:
        raise DigestError(f"explicit LAC of ledger {found_ledger}, not {ledger_id}", ledger_id=ledger_id)
    return int(lac)
