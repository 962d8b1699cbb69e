"""Runs: consecutive requests of one connection that are one unit from the socket to the disk and back.

A run stands for its single requests in their order, and is answered as they would be, byte for byte. ``bodies`` are in the wire form of a
batch read answer, ``(u32 length, body)*``, which is also how they are kept and served.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bk_core.kernels import scan_frames, take_bodies
from bk_core.protocol import BytesLike
from bk_core.protocol.wire.codec_v2 import FLAG_HIGH_PRIORITY, FLAG_RECOVERY_ADD, KEY_BYTES, split_bodies
from bk_core.protocol.wire.messages import AddRequest, ReadRequest, Status

_FRAME_START = 4 + 4 + KEY_BYTES  # of an add: length, word, key
_BODIES_MAX = 2**31 - 1  # what a length may be
_BOUNDS_BYTES = 16  # of one body, as the kernel tells it


@dataclass(frozen=True, slots=True)
class RequestedAdds:
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
        """Return the adds as single requests."""
        for entry_id, body in enumerate(split_bodies(self.bodies), self.first_entry_id):
            yield AddRequest(0, self.ledger_id, entry_id, self.master_key, bytes(body), self.recovery, self.high_priority)


@dataclass(frozen=True, slots=True)
class RequestedReads:
    """Plain reads of consecutive entries of one ledger."""

    ledger_id: int
    first_entry_id: int
    count: int

    def first(self) -> ReadRequest:
        return ReadRequest(0, self.ledger_id, self.first_entry_id)

    def after(self, count: int) -> RequestedReads | None:
        """Return the rest of the run when its first ``count`` entries are answered."""
        return RequestedReads(self.ledger_id, self.first_entry_id + count, self.count - count) if count < self.count else None


@dataclass(frozen=True, slots=True)
class AddsAnswer:
    """The one answer to each add of a run."""

    ledger_id: int
    first_entry_id: int
    count: int
    status: Status


@dataclass(frozen=True, slots=True)
class ReadsAnswer:
    """The entries asked for by consecutive reads, all of which were found."""

    ledger_id: int
    first_entry_id: int
    count: int
    bodies: bytes = field(repr=False)


def bodies_in(bodies: BytesLike) -> int:
    """Return how many ``(u32 length, body)`` there are."""
    bounds, _ = scan_frames(bodies, _BODIES_MAX)
    return len(bounds) // _BOUNDS_BYTES


def add_run(data: BytesLike, ledger_id: int, first_entry_id: int, count: int, flags: int, begin: int, end: int) -> RequestedAdds:
    """Return the adds whose frames are ``data[begin:end]``, copied out once. ``scan_requests`` has checked that each has a whole entry
    header."""
    bodies, lac = take_bodies(data, begin, end)
    key = bytes(memoryview(data)[begin + _FRAME_START - KEY_BYTES : begin + _FRAME_START])
    recovery, high_priority = flags & FLAG_RECOVERY_ADD != 0, flags & FLAG_HIGH_PRIORITY != 0
    return RequestedAdds(ledger_id, first_entry_id, count, key, bodies, max(lac, -1), recovery, high_priority)
