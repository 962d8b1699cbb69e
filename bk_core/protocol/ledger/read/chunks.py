"""The parts that a range read asks for at a time: chunks, the lanes of a striped ledger, and the bounds of reading ahead."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from bk_core import kernels
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.read.failures import Failure
from bk_core.protocol.ledger.run import EntryRun
from bk_core.protocol.limits import Limits

LANE_ENTRIES = 256  # entries of one request made of single reads
# A thread of an Apache bookie queues 2,500 reads (maxPendingReadRequestsPerThread) and refuses the next one; it may serve several readers.
SINGLE_READS_IN_FLIGHT = 512
ENTRY_BYTES_AT_FIRST = 1024
# For single reads while the size of the entries is not known: each may have frame_bytes_max.
SINGLE_READS_AT_FIRST = 8
ENTRY_OVERHEAD_BYTES = 64  # a batch answer has less than this for each entry beside its payload


@dataclass(slots=True, eq=False)
class Chunk:
    """Entries first, first + step, ..., last, all in one fragment and, if the ledger is striped, all with one write set.

    ``runs`` are the verified parts that were not delivered yet; the other fields are about the round under way.
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
    parked: bool = False  # waits for room in the read-ahead
    waiting: bool = False  # waits for bookies that cannot be reached (RD-13)
    turn: int = 0  # the replica that is asked first (ReplicaOrder)
    runs: list[EntryRun] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.next > self.last

    @property
    def left(self) -> int:
        """The number of entries that are not there yet."""
        return (self.last - self.next) // self.step + 1

    def give(self, end: int) -> list[EntryRun]:
        """Return the verified parts up to ``end``, all of which are there. The chunk then begins behind it."""
        halves = [run.split(end) for run in self.runs]
        self.runs = [behind for _, behind in halves if behind is not None]
        self.first += max(0, (end - self.first) // self.step + 1) * self.step
        return [before for before, _ in halves if before is not None]

    def cut(self, end: int) -> None:
        """Drop the entries above ``end``, which do not exist."""
        self.last = min(self.last, end - (end - self.first) % self.step)
        self.runs = [run for run in (run.up_to(end) for run in self.runs) if run is not None]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One request, for the entries of one chunk up to ``last`` at one position. ``batch`` marks a batch read. ``probe`` marks a single read
    that tells if the bookie is there after a batch read failed."""

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
        for lane in self.lanes:  # noqa: SIM110 - asked several times per answer; a generator costs more than all of it
            if lane.next <= lane.last:
                return False
        return True

    @property
    def held(self) -> int:
        """The payload bytes that are here and were not delivered."""
        return sum(run.payload_bytes for lane in self.lanes for run in lane.runs)

    def cut(self, end: int) -> list[Chunk]:
        """Drop the entries above ``end``, which do not exist. Return the lanes of which nothing is left."""
        self.last = min(self.last, end)
        gone = [lane for lane in self.lanes if lane.first > end]
        self.lanes = [lane for lane in self.lanes if lane.first <= end]
        for lane in self.lanes:
            lane.cut(end)
        return gone

    def take(self) -> list[EntryRun]:
        """Return the runs that may be delivered: whatever is there of a single chunk, but several lanes only when they are complete."""
        lane = self.lanes[0] if len(self.lanes) == 1 else None
        if lane is not None and lane.step == 1:
            runs = lane.runs
            if runs:
                lane.runs = []
            return runs
        return [_merged(self.first, self.last, [lane.runs for lane in self.lanes])] if self.done and self.lanes else []

    @property
    def ready(self) -> int:
        """The first entry that is not there."""
        return min((lane.next for lane in self.lanes if not lane.done), default=self.last + 1)

    def take_ready(self) -> list[EntryRun]:
        """Return the run without a gap from the first entry on, to make room, although more is to come."""
        end = self.ready - 1
        if end < self.first:
            return []
        run = _merged(self.first, end, [parts for lane in self.lanes if (parts := lane.give(end))])
        self.first = end + 1
        self.lanes = sorted((lane for lane in self.lanes if lane.first <= lane.last), key=lambda lane: lane.first)
        return [run]


def _merged(first: int, last: int, lanes: list[list[EntryRun]]) -> EntryRun:
    offsets, values = kernels.interleave([[(run.values, run.offsets) for run in runs] for runs in lanes])
    return EntryRun(first, last - first + 1, values, memoryview(offsets).cast("q"))


class EntrySizes:
    """The guessed size of a ledger's entries in ``bytes``, from those that came lately. ``known`` is False before any came. The reads of
    one handle share it."""

    __slots__ = ("bytes", "known")

    def __init__(self, metadata: LedgerMetadata) -> None:
        entries = metadata.last_entry_id + 1 if metadata.state is LedgerState.CLOSED else 0
        self.known = entries > 0
        self.bytes = metadata.length // entries if entries else ENTRY_BYTES_AT_FIRST

    def saw(self, run: EntryRun) -> None:
        """Learn a size. The guess goes up at once and down by halves, because one that is too low costs memory and one that is too high
        costs a round trip."""
        came = run.payload_bytes // run.count
        self.bytes = max(came, (self.bytes + came) // 2)
        self.known = True


class ReadAhead:
    """The amount that a read may ask for. It is bounded by bytes, which are estimated from what came before. The reads of a tail share one.

    ``held`` are payload bytes that arrived and were not consumed. ``run_bytes`` are those that the answer to one run of single reads may
    have: entries may be larger than those before them, and then fewer are kept.
    """

    def __init__(self, limits: Limits, lanes: int, sizes: EntrySizes) -> None:
        self.held = 0
        self.unconsumed = 0
        self.run_bytes = max(1, min(limits.read_batch_bytes, limits.read_ahead_bytes // (2 * lanes)))
        self._limits = limits
        self._lanes = lanes
        self._sizes = sizes
        self._delivered: deque[int] = deque()

    def entries(self, batch: bool) -> int:
        """The number of entries to ask for at once: as many as one batch answer holds, but only a few single reads until their size is
        known."""
        if batch:
            return min(self._fitting(self._limits.read_batch_bytes), self._limits.read_chunk_entries)
        return self.run_entries() * self._lanes

    def run_entries(self) -> int:
        """The number of single reads that make up one run."""
        most = LANE_ENTRIES if self._sizes.known else max(1, SINGLE_READS_AT_FIRST // self._lanes)
        return min(self._fitting(self.run_bytes), most, self._limits.read_chunk_entries)

    def _fitting(self, size: int) -> int:
        return max(1, size // (self._sizes.bytes + ENTRY_OVERHEAD_BYTES))

    def blocks(self, batch: bool) -> int:
        """The number of blocks that may be under way. With single reads it is as many as make up SINGLE_READS_IN_FLIGHT, but at
        least two."""
        if batch:
            return self._limits.read_chunks_in_flight
        return max(2, SINGLE_READS_IN_FLIGHT // self.entries(False)) if self._sizes.known else 1

    def has_room(self, asked_entries: int) -> bool:
        return self.held + asked_entries * self._sizes.bytes < self._limits.read_ahead_bytes

    def arrived(self, run: EntryRun) -> None:
        self.held += run.payload_bytes
        self._sizes.saw(run)

    def delivered(self, run: EntryRun) -> None:
        self.unconsumed += 1
        self._delivered.append(run.payload_bytes)

    def consumed(self) -> None:
        if self._delivered:
            self.unconsumed -= 1
            self.held -= self._delivered.popleft()
