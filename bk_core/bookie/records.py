"""A bookie's record of a ledger, as bytes.

    u32 crc32 of the rest | u8 format | u8 flags | i64 LAC | i64 last entry | u32 | u32 | key | explicit LAC | i64 deletion time

Format 3 has the layout of format 2. It says that entries of the ledger may lie in runs, where software that knows only the older formats
would not look for them.
"""

from __future__ import annotations

import struct
import zlib

from bk_core.errors import BookieIOError
from bk_core.protocol.bookie import LedgerRecord

_CRC = struct.Struct(">I")
_RECORD = struct.Struct(">BBqqII")  # format, flags, LAC, last entry, key bytes, explicit LAC bytes
_DELETED_AT = struct.Struct(">q")  # at the end, from format 2 on
_FORMAT_WITHOUT_TIME, _FORMAT_WITHOUT_RUNS, _FORMAT = 1, 2, 3
_FENCED, _LIMBO, _DELETED, _HAS_KEY, _HAS_EXPLICIT_LAC = 1, 2, 4, 8, 16


def encode_record(record: LedgerRecord) -> bytes:
    flags = _FENCED * record.fenced | _LIMBO * record.limbo | _DELETED * record.deleted
    flags |= _HAS_KEY * (record.key is not None) | _HAS_EXPLICIT_LAC * (record.explicit_lac is not None)
    key, packet = record.key or b"", record.explicit_lac or b""
    head = _RECORD.pack(_FORMAT, flags, record.last_add_confirmed, record.last_entry_id, len(key), len(packet))
    value = head + key + packet + _DELETED_AT.pack(record.deleted_at_ms)
    return _CRC.pack(zlib.crc32(value)) + value


def decode_record(ledger_id: int, value: bytes) -> LedgerRecord:
    """Return the record. Raises BookieIOError if the bytes are not what ``encode_record`` wrote."""
    start = _CRC.size + _RECORD.size
    if len(value) < start or _CRC.unpack_from(value)[0] != zlib.crc32(value[_CRC.size :]):
        raise BookieIOError("damaged ledger record", ledger_id=ledger_id)
    form, flags, lac, last_entry_id, key_bytes, packet_bytes = _RECORD.unpack_from(value, _CRC.size)
    end = start + key_bytes + packet_bytes
    time_bytes = {_FORMAT_WITHOUT_TIME: 0, _FORMAT_WITHOUT_RUNS: _DELETED_AT.size, _FORMAT: _DELETED_AT.size}.get(form, -1)
    if len(value) != end + time_bytes or time_bytes < 0:
        raise BookieIOError(f"ledger record of unknown format {form}", ledger_id=ledger_id)
    return LedgerRecord(
        ledger_id,
        value[start : start + key_bytes] if flags & _HAS_KEY else None,
        fenced=bool(flags & _FENCED),
        limbo=bool(flags & _LIMBO),
        deleted=bool(flags & _DELETED),
        last_add_confirmed=lac,
        last_entry_id=last_entry_id,
        explicit_lac=value[start + key_bytes : end] if flags & _HAS_EXPLICIT_LAC else None,
        deleted_at_ms=_DELETED_AT.unpack_from(value, end)[0] if time_bytes else 0,
    )
