"""What a range read asks for at a time: chunks, the lanes of a striped ledger, and how far ahead of its reader it may be."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from bk_core import kernels
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.read_failures import Failure
from bk_core.protocol.ledger.run import EntryRun
from bk_core.protocol.limits import Limits

LANE_ENTRIES = 256  # of one request made of single reads
# A thread of an Apache bookie queues 2,500 reads (maxPendingReadRequestsPerThread) and refuses the next one; it may serve several readers.
SINGLE_READS_IN_FLIGHT = 512
ENTRY_BYTES_AT_FIRST = 1024
ENTRY_OVERHEAD_BYTES = 64  # more than a batch answer has for each entry beside its payload


@dataclass(slots=True, eq=False)
class Chunk:
    """Entries first, first + step, ..., last: all in one fragment and, striped, all with one write set.

    ``runs`` are the verified parts not yet delivered; the rest is about the round under way.
    """

    first: int
    last: int
    next: int
    step: int = 1
    ensemble: tuple[BookieId, ...] = ()
    tried: set[int] = field(default_factory=set)
    failures: dict[int, Failure] = field(default_factory=dict)
    asked: dict[int, Attempt] = field(default_factory=dict)
    looked_again: bool = False
    parked: bool = False  # it waits for room in the read-ahead
    turn: int = 0  # which of the replicas is asked first (ReplicaOrder)
    runs: list[EntryRun] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.next > self.last

    @property
    def left(self) -> int:
        """Entries that are not there yet."""
        return (self.last - self.next) // self.step + 1

    def cut(self, end: int) -> None:
        """Entries above ``end`` do not exist."""
        self.last = min(self.last, end - (end - self.first) % self.step)
        self.runs = [run for run in (run.up_to(end) for run in self.runs) if run is not None]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request: entries up to ``last`` of one chunk at one position. ``batch``: by batch read. ``probe``: a single read that tells
    whether the bookie is there after a batch read failed."""

    chunk: Chunk
    position: int
    bookie: BookieId
    last: int
    batch: bool
    probe: bool = False

    @property
    def single(self) -> bool:
        return self.last == self.chunk.next


class Block:
    """Consecutive entries: one chunk, or the lanes of a striped ledger side by side."""

    __slots__ = ("first", "lanes", "last")

    def __init__(self, first: int, last: int, lanes: int, turn: int = 0) -> None:
        self.first = first
        self.last = last
        starts = range(first, min(first + lanes, last + 1))
        self.lanes = [Chunk(start, last - (last - start) % lanes, start, lanes, turn=turn) for start in starts]

    @property
    def done(self) -> bool:
        lanes = self.lanes
        return lanes[0].next > lanes[0].last if len(lanes) == 1 else all([lane.done for lane in lanes])

    def cut(self, end: int) -> list[Chunk]:
        """Entries above ``end`` do not exist. The lanes of which nothing is left."""
        self.last = min(self.last, end)
        gone = [lane for lane in self.lanes if lane.first > end]
        self.lanes = [lane for lane in self.lanes if lane.first <= end]
        for lane in self.lanes:
            lane.cut(end)
        return gone

    def take(self) -> list[EntryRun]:
        """What may be delivered: of one chunk whatever is there, of several only all of it."""
        lane = self.lanes[0] if len(self.lanes) == 1 else None
        if lane is not None and lane.step == 1:
            runs = lane.runs
            if runs:
                lane.runs = []
            return runs
        return [self._merged()] if self.done and self.lanes else []

    def _merged(self) -> EntryRun:
        offsets, values = kernels.interleave([[(run.values, run.offsets) for run in lane.runs] for lane in self.lanes])
        return EntryRun(self.first, self.last - self.first + 1, values, memoryview(offsets).cast("q"))


class ReadAhead:
    """How much a read may ask for: bounded by bytes, which are guessed from what came before.

    ``held`` are payload bytes that arrived and were not consumed.
    """

    def __init__(self, limits: Limits, known: tuple[int, int], lanes: int) -> None:
        """``known``: payload bytes and entries of the ledger, if it is CLOSED."""
        self.held = 0
        self.unconsumed = 0
        self._limits = limits
        self._lanes = lanes
        self._entry_bytes = known[0] // known[1] if known[1] else ENTRY_BYTES_AT_FIRST
        self._delivered: deque[int] = deque()

    def entries(self, batch: bool) -> int:
        """How many entries to ask for at once: as many as one batch answer holds."""
        fitting = max(1, self._limits.read_batch_bytes // (self._entry_bytes + ENTRY_OVERHEAD_BYTES))
        if batch:
            return min(fitting, self._limits.read_chunk_entries)
        return min(fitting, LANE_ENTRIES, self._limits.read_chunk_entries) * self._lanes

    def blocks(self, batch: bool) -> int:
        """How many blocks may be under way: of single reads as many as make up SINGLE_READS_IN_FLIGHT, but two at least."""
        if batch:
            return self._limits.read_chunks_in_flight
        return max(2, SINGLE_READS_IN_FLIGHT // self.entries(False))

    def has_room(self, asked_entries: int) -> bool:
        return self.held + asked_entries * self._entry_bytes < self._limits.read_ahead_bytes

    def arrived(self, run: EntryRun) -> None:
        self.held += run.payload_bytes
        self._entry_bytes = (self._entry_bytes + run.payload_bytes // run.count) // 2

    def delivered(self, run: EntryRun) -> None:
        self.unconsumed += 1
        self._delivered.append(run.payload_bytes)

    def consumed(self) -> None:
        self.unconsumed -= 1
        if self._delivered:
            self.held -= self._delivered.popleft()
