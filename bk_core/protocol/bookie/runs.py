"""Runs: consecutive requests of one connection that are one unit from the socket to the disk and back.

A run stands for its single requests in their order, and is answered as they would be, byte for byte. ``bodies`` are in the wire form of a
batch read answer, ``(u32 length, body)*``, which is also how they are kept and served.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from bk_core.protocol import BytesLike
from bk_core.protocol.wire.codec_v2 import FLAG_HIGH_PRIORITY, FLAG_RECOVERY_ADD, KEY_BYTES, split_bodies
from bk_core.protocol.wire.messages import AddRequest, ReadRequest, Status

_BEFORE_BODY = 4 + KEY_BYTES  # of an add: word, key
_FRAME_START = 4 + _BEFORE_BODY
_LENGTH_AND_LAC = struct.Struct(f">I{_FRAME_START - 4 + 16}xq")


@dataclass(frozen=True, slots=True)
class AddRun:
    """Adds of one ledger with consecutive ids, one key and the same flags. ``last_add_confirmed`` is the greatest of all bodies."""

    ledger_id: int
    first_entry_id: int
    count: int
    master_key: bytes = field(repr=False)
    bodies: bytes = field(repr=False)
    last_add_confirmed: int
    recovery: bool = False
    high_priority: bool = False

    @property
    def last_entry_id(self) -> int:
        return self.first_entry_id + self.count - 1

    def requests(self) -> Iterator[AddRequest]:
        """The same as single requests."""
        for entry_id, body in enumerate(split_bodies(self.bodies), self.first_entry_id):
            yield AddRequest(0, self.ledger_id, entry_id, self.master_key, bytes(body), self.recovery, self.high_priority)


@dataclass(frozen=True, slots=True)
class ReadRun:
    """Plain reads of consecutive entries of one ledger."""

    ledger_id: int
    first_entry_id: int
    count: int

    def first(self) -> ReadRequest:
        return ReadRequest(0, self.ledger_id, self.first_entry_id)

    def after(self, count: int) -> ReadRun | None:
        """What is left when the first ``count`` are answered."""
        return ReadRun(self.ledger_id, self.first_entry_id + count, self.count - count) if count < self.count else None


@dataclass(frozen=True, slots=True)
class AddRunAnswer:
    """The same answer to each add of a run."""

    ledger_id: int
    first_entry_id: int
    count: int
    status: Status


@dataclass(frozen=True, slots=True)
class ReadRunAnswer:
    """The entries asked for by consecutive reads, all found."""

    ledger_id: int
    first_entry_id: int
    count: int
    bodies: bytes = field(repr=False)


def add_run(data: BytesLike, ledger_id: int, first_entry_id: int, count: int, flags: int, begin: int, end: int) -> AddRun:
    """The adds whose frames are ``data[begin:end]``, copied out once; each has a whole entry header, as ``scan_requests`` sees to."""
    view, unpack = memoryview(data), _LENGTH_AND_LAC.unpack_from
    parts: list[BytesLike] = []
    lac, at, known, length = -1, begin, 0, b""
    while at < end:  # the one loop over entries on an add's way
        payload_bytes, entry_lac = unpack(view, at)
        if entry_lac > lac:
            lac = entry_lac
        if payload_bytes != known:
            known, length = payload_bytes, (payload_bytes - _BEFORE_BODY).to_bytes(4, "big")
        start, at = at + _FRAME_START, at + 4 + payload_bytes
        parts += (length, view[start:at])
    key = bytes(view[begin + _FRAME_START - KEY_BYTES : begin + _FRAME_START])
    recovery, high_priority = flags & FLAG_RECOVERY_ADD != 0, flags & FLAG_HIGH_PRIORITY != 0
    return AddRun(ledger_id, first_entry_id, count, key, b"".join(parts), lac, recovery, high_priority)
