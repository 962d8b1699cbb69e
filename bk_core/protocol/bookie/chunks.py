"""Runs of entries in their stored form: many consecutive entries of one ledger behind one checksum.

    u32 crc32c of the rest | u32 number of entries | (u32 length, body)*

The bodies are in the wire form of a batch read answer, so that serving them is a slice.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bk_core.errors import BookieIOError, RemoteProtocolError
from bk_core.kernels import crc32c, scan_frames
from bk_core.protocol import BytesLike

# The bytes that one read has to check; a single entry may be larger. With our head and LMDB's it fills exactly 16 pages: aligned writes of
# 64 KiB cost the kernel half of those that are not.
CHUNK_BYTES_MAX = (64 << 10) - 16 - 8
PAGE_CHUNK_BYTES_MAX = (4 << 10) - 16 - 8  # the same on one page, which fits into any gap
_BODY_BYTES_MAX = (1 << 31) - 1
_ID_MAX = (1 << 63) - 1
_HEAD = struct.Struct(">II")
_COUNT = struct.Struct(">I")
_BODY_START = struct.Struct(">Iqq")  # length, ledger, entry


class StoredEntries(NamedTuple):
    """Consecutive entries of one ledger; ``bodies`` is ``(u32 length, body)*``."""

    first: int
    size: int
    bodies: BytesLike

    @property
    def last(self) -> int:
        return self.first + self.size - 1

    def slice(self, entry_id: int, entries_max: int, bytes_max: int) -> tuple[int, memoryview]:
        """Return (number, part of ``bodies``) of as many entries from ``entry_id`` on as the limits allow; ``entry_id`` must be
        in the run."""
        marks, number = bounds_of(self.bodies), entry_id - self.first
        start = marks[2 * number] - _COUNT.size
        stop = bisect_right(marks[1::2], start + bytes_max, number, min(self.size, number + entries_max))
        return stop - number, memoryview(self.bodies)[start : marks[2 * stop - 1] if stop > number else start]

    def body(self, entry_id: int) -> bytes:
        """Return the body of an entry that must be in the run."""
        marks = bounds_of(self.bodies)
        number = 2 * (entry_id - self.first)
        return bytes(memoryview(self.bodies)[marks[number] : marks[number + 1]])

    def pieces(self, bytes_max: int | None = None) -> Iterator[StoredEntries]:
        """Yield the run in parts of at most ``bytes_max`` (by default CHUNK_BYTES_MAX), or of one entry."""
        bytes_max = bytes_max or CHUNK_BYTES_MAX
        if len(self.bodies) <= bytes_max:
            yield self
            return
        marks, view, number = bounds_of(self.bodies), memoryview(self.bodies), 0
        while number < self.size:
            start = marks[2 * number] - _COUNT.size
            stop = max(number + 1, bisect_right(marks[1::2], start + bytes_max, number, self.size))
            yield StoredEntries(self.first + number, stop - number, view[start : marks[2 * stop - 1]])
            number = stop


def bounds_of(bodies: BytesLike) -> memoryview:
    """Return starts and ends of the bodies in turn, as int64. Raises RemoteProtocolError if there is anything else in ``bodies``."""
    bounds, consumed = scan_frames(bodies, _BODY_BYTES_MAX)
    if consumed != len(bodies):
        raise RemoteProtocolError("a run that ends inside of an entry")
    return memoryview(bounds).cast("B").cast("q")


def checksum(parts: Iterable[BytesLike]) -> int:
    """Return the CRC-32C of ``parts``, one behind the other."""
    crc = 0
    for part in parts:
        crc = crc32c(part, crc)
    return crc


def encode_chunk(run: StoredEntries) -> bytes:
    count = _COUNT.pack(run.size)
    return b"".join((_COUNT.pack(checksum((count, run.bodies))), count, run.bodies))


def last_of_chunk(first: int, value: BytesLike) -> int:
    """Return the id of the last entry without a look at the rest. If the value is too short for a head, return the greatest id possible."""
    return first + int(_HEAD.unpack_from(value)[1]) - 1 if len(value) >= _HEAD.size else _ID_MAX


def decode_chunk(ledger_id: int, first: int, value: memoryview) -> StoredEntries:
    """Return the run in ``value``, as a view. Raises BookieIOError if the bytes are not what ``encode_chunk`` wrote for this place."""
    if len(value) <= _HEAD.size or _COUNT.unpack_from(value)[0] != crc32c(value[_COUNT.size :]):
        raise BookieIOError("damaged run of entries", ledger_id=ledger_id, entry_id=first)
    run = StoredEntries(first, _HEAD.unpack_from(value)[1], value[_HEAD.size :])
    if len(run.bodies) < _BODY_START.size or _BODY_START.unpack_from(run.bodies)[1:] != (ledger_id, first):
        raise BookieIOError("a run of entries under another one's key", ledger_id=ledger_id, entry_id=first)
    return run
