"""A run of consecutive entries: the unit in which entries are written and read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from bk_core import kernels
from bk_core.display.words import counted
from bk_core.errors import InvalidArgumentError
from bk_core.protocol import BytesLike

ADD_FRAME_PREFIX_BYTES = 28  # v2 add: length, header word, master key; the entry body follows (wire-protocol.md 5.2)


def measured(offsets: BytesLike, total: int, **context: Any) -> tuple[int, int, int]:
    """Return the number of entries of a run with these native int64 offsets, the bytes of all, and those of the largest one.

    Raises InvalidArgumentError, with ``context``, unless the offsets rise within 0 to ``total``.
    """
    try:
        count, start, end, largest = kernels.measure_run(offsets)
    except InvalidArgumentError as cause:
        raise InvalidArgumentError(
            f"offsets of a run must rise within the {total} bytes of its payloads: {cause.args[0]}", **context
        ) from None
    if end > total:
        raise InvalidArgumentError(f"offsets of a run must rise within the {total} bytes of its payloads: they end at {end}", **context)
    return count, end - start, largest


@dataclass(frozen=True, slots=True, eq=False)
class PackedAdds:
    """``count`` packaged adds from ``first_entry_id`` on: v2 frames back to back, made once and sent to every bookie (WR-3).

    ``offsets`` are ``count + 1`` byte positions in ``frames``.
    """

    ledger_id: int
    first_entry_id: int
    count: int
    frames: BytesLike = field(repr=False)
    offsets: memoryview = field(repr=False)
    recovery: bool = False
    deferred_sync: bool = False  # v3 only: the bookie may answer before it is durable (WR-17)

    @property
    def last_entry_id(self) -> int:
        return self.first_entry_id + self.count - 1

    def body(self, index: int) -> memoryview:
        """Return the entry body (header, digest, payload) of one entry."""
        return memoryview(self.frames)[self.offsets[index] + ADD_FRAME_PREFIX_BYTES : self.offsets[index + 1]]

    def count_for(self, position: int, start: int, ensemble_size: int, write_quorum_size: int) -> int:
        """Return the number of ``indices`` for these arguments."""
        if ensemble_size == write_quorum_size:
            return self.count - start
        rounds, rest = divmod(self.count - start, ensemble_size)
        first = self.first_entry_id + start + rounds * ensemble_size
        last_round = ((position - entry) % ensemble_size < write_quorum_size for entry in range(first, first + rest))
        return rounds * write_quorum_size + sum(last_round)

    def frames_v3_for(self, position: int, start: int, ensemble_size: int, write_quorum_size: int, first_number: int) -> memoryview:
        """Return the frames of ``frames_for`` as v3 requests with consecutive numbers."""
        quorums = position, ensemble_size, write_quorum_size
        ids = self.ledger_id, first_number
        flags = self.recovery, self.deferred_sync
        return memoryview(kernels.frame_adds_v3(self.frames, self.offsets, start, self.first_entry_id, *quorums, *ids, *flags))

    def indices(self, position: int, start: int, ensemble_size: int, write_quorum_size: int) -> Iterator[int]:
        """Yield the indices from ``start`` on of the entries whose write set has ``position``."""
        for index in range(start, self.count):
            if (position - self.first_entry_id - index) % ensemble_size < write_quorum_size:
                yield index

    def frames_for(self, position: int, start: int, ensemble_size: int, write_quorum_size: int) -> list[memoryview]:
        """Return the v2 frames for one position, as one buffer or, if there are none, no buffer. Without striping this makes no copy."""
        if ensemble_size == write_quorum_size:
            return [memoryview(self.frames)[self.offsets[start] :]]
        quorums = position, ensemble_size, write_quorum_size
        frames = kernels.select_frames(self.frames, self.offsets, start, self.first_entry_id, *quorums)
        return [memoryview(frames)] if frames else []


@dataclass(frozen=True, slots=True, eq=False)
class EntryRun:
    """``count`` verified entries: payload i is ``values[offsets[i]:offsets[i + 1]]``. ``values`` are bytes or a read-only memoryview.

    Readers hand out consecutive entries; ``step`` is above 1 only inside the machine that reads a striped ledger.
    """

    first_entry_id: int
    count: int
    values: BytesLike = field(repr=False)
    offsets: memoryview = field(repr=False)
    step: int = 1

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        counts = f"{counted(self.count, 'entry', 'entries')}, {counted(self.payload_bytes, 'byte')}"
        return f"<EntryRun {self.first_entry_id}..{self.last_entry_id}, {counts}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import ledgers, table

        return table.html(f"{self!r}".strip("<>"), ledgers.entries(self))

    @property
    def last_entry_id(self) -> int:
        """The id of the last entry."""
        return self.first_entry_id + (self.count - 1) * self.step

    @property
    def payload_bytes(self) -> int:
        """The bytes of all payloads together."""
        return int(self.offsets[self.count] - self.offsets[0])

    def payloads(self) -> list[bytes]:
        """Return the payloads as bytes, in the order of their entries. Each is a copy."""
        o, v = self.offsets, self.values
        return [bytes(v[o[i] : o[i + 1]]) for i in range(self.count)]

    def split(self, last: int) -> tuple[EntryRun | None, EntryRun | None]:
        """Return the entries up to ``last`` and those after it, None where there are none. Both share ``values``."""
        count = min(max(0, (last - self.first_entry_id) // self.step + 1), self.count)
        if count in (0, self.count):
            return (self, None) if count else (None, self)
        behind = self.first_entry_id + count * self.step
        return (
            EntryRun(self.first_entry_id, count, self.values, self.offsets[: count + 1], self.step),
            EntryRun(behind, self.count - count, self.values, self.offsets[count:], self.step),
        )

    def up_to(self, last: int) -> EntryRun | None:
        """Return the entries up to ``last``, or None if there are none."""
        if self.last_entry_id <= last:
            return self
        count = (last - self.first_entry_id) // self.step + 1
        if count <= 0:
            return None
        offsets = self.offsets[: count + 1]
        return EntryRun(self.first_entry_id, count, self.values[: offsets[count]], offsets, self.step)
