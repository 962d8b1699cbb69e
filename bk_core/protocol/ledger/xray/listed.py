"""The list of a ledger's entries as a bookie tells it (wire-protocol.md 8.10), and what it says of a range."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from bk_core.errors import RemoteProtocolError
from bk_core.protocol.ledger.xray.stretches import EntryState

_HEADER_BYTES = 64
_VERSION = struct.Struct(">ii")
_GROUP = struct.Struct(">qqii")
_THERE = bytes([EntryState.LISTED])


class EntryList:
    """The groups of a list: each stands for the ids s to s + size - 1 of every s = first, first + period, ..., last.

    Raises RemoteProtocolError for bytes that are no list, or one of another version.
    """

    __slots__ = ("_groups",)

    def __init__(self, blob: bytes) -> None:
        if len(blob) < _HEADER_BYTES:
            raise RemoteProtocolError(f"a list of entries has {len(blob)} bytes, fewer than its header")
        version, count = _VERSION.unpack_from(blob)
        if version != 0 or count < 0 or len(blob) < _HEADER_BYTES + count * _GROUP.size:
            raise RemoteProtocolError(f"a list of entries of version {version} with {count} groups in {len(blob)} bytes")
        self._groups = list(_GROUP.iter_unpack(blob[_HEADER_BYTES : _HEADER_BYTES + count * _GROUP.size]))
        for first, last, size, period in self._groups:
            if not 0 <= first <= last or size < 1 or (first != last and period < 1):
                raise RemoteProtocolError(f"a list of entries has a group ({first}, {last}, {size}, {period})")

    @property
    def last(self) -> int | None:
        """The highest entry of the list; None if it is empty."""
        return max((last + size - 1 for _, last, size, _ in self._groups), default=None)

    def states(self, first: int, last: int) -> bytearray:
        """Return a byte for each entry of ``first`` to ``last``: LISTED or MISSING."""
        count = last - first + 1
        states = bytearray([EntryState.MISSING]) * count
        for low, step, repeats, size in self._within(first, last):
            if size >= step or repeats == 1:
                _fill(states, low - first, low - first + (repeats - 1) * step + size)
                continue
            for k in range(size):
                start = low - first + k
                skipped = max(0, -(start // step)) if start < 0 else 0
                places = range(start + skipped * step, min(count, start + (repeats - 1) * step + 1), step)
                if len(places):
                    states[places.start : places[-1] + 1 : step] = _THERE * len(places)
        return states

    def _within(self, first: int, last: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (first, period, number of sequences, size) of the groups that reach into a range, cut to the sequences that do."""
        for low, high, size, period in self._groups:
            if low > last or high + size - 1 < first:
                continue
            step = period or 1
            skipped = max(0, (first - low - size) // step + 1) if first - low - size >= 0 else 0
            low += skipped * step
            if low <= min(high, last):
                yield low, step, (min(high, last) - low) // step + 1, size


def _fill(states: bytearray, start: int, end: int) -> None:
    start, end = max(0, start), min(len(states), end)
    if end > start:
        states[start:end] = _THERE * (end - start)
