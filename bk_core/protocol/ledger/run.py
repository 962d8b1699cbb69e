"""A run of consecutive entries: the unit in which entries are written and read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

ADD_FRAME_PREFIX_BYTES = 28  # v2 add: length, header word, master key; the entry body follows (wire-protocol.md 5.2)


@dataclass(frozen=True, slots=True, eq=False)
class AddRun:
    """``count`` packaged adds from ``first_entry_id``: v2 frames back to back, made once and sent to every bookie (WR-3).

    ``offsets`` are ``count + 1`` byte positions in ``frames``.
    """

    ledger_id: int
    first_entry_id: int
    count: int
    frames: bytes = field(repr=False)
    offsets: memoryview = field(repr=False)
    recovery: bool = False
    deferred_sync: bool = False  # v3 only: the bookie may answer before it is durable (WR-17)

    @property
    def last_entry_id(self) -> int:
        return self.first_entry_id + self.count - 1

    def body(self, index: int) -> memoryview:
        """The entry body (header, digest, payload) of one entry."""
        return memoryview(self.frames)[self.offsets[index] + ADD_FRAME_PREFIX_BYTES : self.offsets[index + 1]]

    def indices(self, position: int, start: int, ensemble_size: int, write_quorum_size: int) -> Iterator[int]:
        """Indices from ``start`` of the entries whose write set has ``position``."""
        for index in range(start, self.count):
            if (position - self.first_entry_id - index) % ensemble_size < write_quorum_size:
                yield index

    def frames_for(self, position: int, start: int, ensemble_size: int, write_quorum_size: int) -> list[memoryview]:
        """v2 frames for one position, as few slices as possible (one, without striping)."""
        view = memoryview(self.frames)
        if ensemble_size == write_quorum_size:
            return [view[self.offsets[start] :]]
        slices: list[memoryview] = []
        run_start = run_end = -1
        for index in self.indices(position, start, ensemble_size, write_quorum_size):
            if self.offsets[index] == run_end:
                run_end = self.offsets[index + 1]
                continue
            if run_end > run_start:
                slices.append(view[run_start:run_end])
            run_start, run_end = self.offsets[index], self.offsets[index + 1]
        if run_end > run_start:
            slices.append(view[run_start:run_end])
        return slices


@dataclass(frozen=True, slots=True, eq=False)
class EntryRun:
    """``count`` consecutive verified entries: payload i is ``values[offsets[i]:offsets[i + 1]]``."""

    first_entry_id: int
    count: int
    values: bytes = field(repr=False)
    offsets: memoryview = field(repr=False)

    @property
    def last_entry_id(self) -> int:
        return self.first_entry_id + self.count - 1

    def payloads(self) -> list[bytes]:
        o, v = self.offsets, self.values
        return [v[o[i] : o[i + 1]] for i in range(self.count)]
