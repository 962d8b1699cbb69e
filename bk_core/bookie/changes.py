"""The changes of a batch as the content of one journal record, and back.

    u8 'D' | u64 ledger                                                  its entries are gone
    u8 'R' | u64 ledger | u64 first | u32 count | u32 bytes | bodies     a run, (u32 length, body)*
    u8 'E' | u64 ledger | u64 entry | u32 bytes | body                   an entry that came singly
    u8 'L' | u64 ledger | u32 bytes | record                             what is known of a ledger (records.py)
    u8 'F' | u64 ledger                                                  a ledger is forgotten

A batch read back is that batch: items are written in an order in which each may be applied when it is read.
"""

from __future__ import annotations

import struct

from bk_core.bookie.batch import Batch
from bk_core.bookie.records import decode_record, encode_record
from bk_core.errors import BookieIOError
from bk_core.protocol import BytesLike
from bk_core.protocol.bookie.chunks import StoredEntries

_KIND = struct.Struct(">cQ")
_RUN = struct.Struct(">QII")
_ENTRY = struct.Struct(">QI")
_SIZE = struct.Struct(">I")


def encode_changes(batch: Batch) -> list[BytesLike]:
    """Return the pieces of the record; bodies are not copied."""
    parts: list[BytesLike] = [_KIND.pack(b"D", ledger_id) for ledger_id in batch.dropped]
    for ledger_id, runs in batch.runs.items():
        for run in runs:
            parts += (_KIND.pack(b"R", ledger_id) + _RUN.pack(run.first, run.size, len(run.bodies)), run.bodies)
    for ledger_id, entries in batch.entries.items():
        for entry_id, body in entries.items():
            parts += (_KIND.pack(b"E", ledger_id) + _ENTRY.pack(entry_id, len(body)), body)
    for ledger_id, record in batch.records.items():
        if record is None:
            parts.append(_KIND.pack(b"F", ledger_id))
        else:
            value = encode_record(record)
            parts.append(_KIND.pack(b"L", ledger_id) + _SIZE.pack(len(value)) + value)
    return parts


def decode_changes(content: BytesLike) -> Batch:
    """Return a batch that keeps nothing of ``content``. Raises BookieIOError for anything that ``encode_changes`` does not write."""
    try:
        return _decode(memoryview(content))
    except struct.error as error:
        raise BookieIOError("a journal record that ends inside of a change") from error


def _decode(view: memoryview) -> Batch:
    batch, at = Batch(), 0
    while at < len(view):
        kind, ledger_id = _KIND.unpack_from(view, at)
        at += _KIND.size
        match kind:
            case b"D":
                batch.dropped.add(ledger_id)
            case b"F":
                batch.records[ledger_id] = None
            case b"R":
                first, count, size = _RUN.unpack_from(view, at)
                at += _RUN.size + size
                batch.runs.setdefault(ledger_id, []).append(StoredEntries(first, count, bytes(view[at - size : at])))
                batch.bytes += size
            case b"E":
                entry_id, size = _ENTRY.unpack_from(view, at)
                at += _ENTRY.size + size
                batch.entries.setdefault(ledger_id, {})[entry_id] = bytes(view[at - size : at])
                batch.bytes += size
            case b"L":
                size = _SIZE.unpack_from(view, at)[0]
                at += _SIZE.size + size
                batch.records[ledger_id] = decode_record(ledger_id, bytes(view[at - size : at]))
            case _:
                raise BookieIOError(f"a journal record with an unknown change {kind!r}")
    return batch
