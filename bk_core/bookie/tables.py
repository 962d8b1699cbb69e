"""The two tables of entries, seen through cursors of one LMDB transaction.

    entries   (ledger id, entry id), both u64 big-endian          ->   crc32 of body, body
    runs      (ledger id, first entry id), both u64 big-endian    ->   chunks.py

Runs never overlap each other. If an entry is in both tables, it was stored singly after its run, and the one in ``entries`` counts. So a
run is kept as such only where neither table has an entry of it yet, and otherwise entry by entry.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Any

from bk_core.bookie.batch import ID_END, Single, singles
from bk_core.errors import BookieIOError
from bk_core.protocol.bookie.chunks import StoredEntries, decode_chunk, encode_chunk, last_of_chunk

_KEY = struct.Struct(">QQ")
_LEDGER = struct.Struct(">Q")
_BODY_IDS = struct.Struct(">qq")
_CRC = struct.Struct(">I")
_ROW_COST = 64  # the bytes of a row beside its value
_ROW_BYTES = 4096  # the bytes of a run that are as much work as a row


def put_item(entries: Any, runs: Any, ledger_id: int, item: StoredEntries | Single, chunk_bytes_max: int | None = None) -> None:
    if isinstance(item, StoredEntries):
        put_run(entries, runs, ledger_id, item, chunk_bytes_max)
    else:
        put_entries(entries, ledger_id, (item,))


def put_entries(entries: Any, ledger_id: int, bodies: Iterable[Single]) -> None:
    for entry_id, body in bodies:
        entries.put(_KEY.pack(ledger_id, entry_id), _CRC.pack(zlib.crc32(body)) + body)


def put_run(entries: Any, runs: Any, ledger_id: int, run: StoredEntries, chunk_bytes_max: int | None = None) -> None:
    single = first_single(entries, ledger_id, run.first)
    if (single is not None and single <= run.last) or _overlaps(runs, ledger_id, run):
        return put_entries(entries, ledger_id, singles(run))
    for piece in run.pieces(chunk_bytes_max):
        runs.put(_KEY.pack(ledger_id, piece.first), encode_chunk(piece))


def drop_ledger(cursor: Any, ledger_id: int, bytes_max: int) -> bool:
    """Remove a ledger's rows from a table, but if they have more than about ``bytes_max`` bytes only the first of them. Returns True if
    none is left."""
    prefix = _LEDGER.pack(ledger_id)
    cursor.set_range(_KEY.pack(ledger_id, 0))
    while bytes(cursor.key())[: len(prefix)] == prefix:  # b"" behind the last key
        if bytes_max <= 0:
            return False
        bytes_max -= len(cursor.value()) + _ROW_COST
        cursor.delete()  # moves on to the next key
    return True


def first_single(entries: Any, ledger_id: int, entry_id: int) -> int | None:
    """Return the lowest id from ``entry_id`` on that was stored singly."""
    if not entries.set_range(_KEY.pack(ledger_id, entry_id)):
        return None
    owner, found = _KEY.unpack(entries.key())
    return int(found) if owner == ledger_id else None


def single(entries: Any, ledger_id: int, entry_id: int) -> bytes | None:
    """Return the body of an entry that was stored singly. Raises BookieIOError for a damaged one (B-7)."""
    if not entries.set_key(_KEY.pack(ledger_id, entry_id)):
        return None
    value = bytes(entries.value())
    body = value[_CRC.size :]
    if len(body) < _BODY_IDS.size or _CRC.unpack_from(value)[0] != zlib.crc32(body):
        raise BookieIOError("damaged entry", ledger_id=ledger_id, entry_id=entry_id)
    if _BODY_IDS.unpack_from(body) != (ledger_id, entry_id):
        raise BookieIOError("an entry under another one's key", ledger_id=ledger_id, entry_id=entry_id)
    return body


def run_with(runs: Any, ledger_id: int, entry_id: int) -> StoredEntries | None:
    """Return the run that has the entry, as a view. Raises BookieIOError if that cannot be told (B-7)."""
    first = _seek(runs, ledger_id, entry_id)
    if first is None:
        return None
    run = decode_chunk(ledger_id, first, memoryview(runs.value()))
    return run if entry_id <= run.last else None


def entries_of_runs(runs: Any, ledger_id: int, first_entry_id: int, stop: int, bytes_max: int) -> tuple[int, bytes]:
    """Return the entries from ``first_entry_id`` up to, without, ``stop``: (number, ``(u32 length, body)*``). Raises BookieIOError if the
    first is damaged."""
    parts: list[memoryview] = []
    entry_id, run = first_entry_id, run_with(runs, ledger_id, first_entry_id)
    while run is not None and entry_id < stop:
        count, part = run.slice(entry_id, stop - entry_id, bytes_max)
        parts.append(part)
        entry_id, bytes_max = entry_id + count, bytes_max - len(part)
        run = _next(runs, ledger_id, entry_id) if entry_id > run.last else None
    return entry_id - first_entry_id, b"".join(parts)


def runs_from(runs: Any, ledger_id: int, entry_id: int, rows_max: int) -> tuple[list[tuple[int, int]], int]:
    """Return (first, count) of stored runs that end at or behind ``entry_id``, and the id up to which this is complete, which is beyond all
    ids at the end.

    A row whose bytes had to be checked counts by its size, so that ``rows_max`` bounds the work. Raises BookieIOError for a damaged one
    (B-7).
    """
    found: list[tuple[int, int]] = []
    start = _seek(runs, ledger_id, entry_id)
    more = start is not None or runs.set_range(_KEY.pack(ledger_id, entry_id))
    while more and _KEY.unpack(runs.key())[0] == ledger_id:
        first = _KEY.unpack(runs.key())[1]
        run = decode_chunk(ledger_id, first, memoryview(runs.value()))
        if run.last >= entry_id:
            found.append((first, run.size))
            rows_max -= 1 + len(run.bodies) // _ROW_BYTES
            if rows_max <= 0:
                return found, run.last + 1
        more = runs.next()
    return found, ID_END


def singles_from(entries: Any, ledger_id: int, entry_id: int, rows_max: int) -> tuple[list[tuple[int, int]], int]:
    """Return the same as ``runs_from`` for entries that were stored singly; consecutive ones are joined."""
    found: list[tuple[int, int]] = []
    at = first_single(entries, ledger_id, entry_id)
    for _ in range(rows_max):
        if at is None:
            return found, ID_END
        if found and sum(found[-1]) == at:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((at, 1))
        after, at = at + 1, (_KEY.unpack(entries.key())[1] if entries.next() and _KEY.unpack(entries.key())[0] == ledger_id else None)
    return found, after


def merged(runs: list[tuple[int, int]], first: int, stop: int) -> list[tuple[int, int]]:
    """Return the same ids from ``first`` up to, without, ``stop``, ascending and disjoint."""
    result: list[tuple[int, int]] = []
    end = first
    for start, count in sorted(runs):
        start, after = max(start, end), min(start + count, stop)
        if after <= start:
            continue
        if result and sum(result[-1]) == start:
            result[-1] = (result[-1][0], result[-1][1] + after - start)
        else:
            result.append((start, after - start))
        end = after
    return result


def _seek(runs: Any, ledger_id: int, entry_id: int) -> int | None:
    """Go to the run of the ledger with the greatest start up to ``entry_id``. Returns its start."""
    key = _KEY.pack(ledger_id, entry_id)
    if not runs.set_range(key):
        if not runs.last():
            return None
    elif bytes(runs.key()) != key and not runs.prev():
        return None
    owner, first = _KEY.unpack(runs.key())
    return int(first) if owner == ledger_id else None


def _next(runs: Any, ledger_id: int, entry_id: int) -> StoredEntries | None:
    """Return the run behind the cursor if it starts with ``entry_id`` and is sound."""
    if not runs.next() or bytes(runs.key()) != _KEY.pack(ledger_id, entry_id):
        return None
    try:
        return decode_chunk(ledger_id, entry_id, memoryview(runs.value()))
    except BookieIOError:
        return None


def _overlaps(runs: Any, ledger_id: int, run: StoredEntries) -> bool:
    first = _seek(runs, ledger_id, run.last)
    return first is not None and last_of_chunk(first, memoryview(runs.value())) >= run.first
