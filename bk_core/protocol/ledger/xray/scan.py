"""The scan of one replica: which entries are to be asked for next, and what their answers say.

Theory of operation. The entries of a position are gone through block by block. A block has a byte for each of its entries, and lanes: one,
or one for each residue that the position holds of a striped ledger. A lane asks for a run of entries at a time. Behind an entry that is
missing it asks for some single entries at once, because more may be missing, and a run would end at each of them. A block whose lanes are
through becomes stretches. So memory is a few blocks, whatever the ledger's size.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from bk_core import kernels
from bk_core.errors import DigestError, RemoteProtocolError
from bk_core.protocol import BytesLike
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata
from bk_core.protocol.ledger.xray.stretches import EntryState, Stretches, Stripe
from bk_core.protocol.wire import read_run
from bk_core.protocol.wire.messages import BatchReadResponse, ReadResponse, ReadRunResponse, Response

BLOCK_ENTRIES = 4096  # of a lane
BLOCKS_AT_ONCE = 2
RUN_ENTRIES = 1024
SINGLES = 64  # asked for at once behind a missing entry


@dataclass(frozen=True, slots=True)
class Check:
    """The means by which the copies of one ledger are verified."""

    ledger_id: int
    digest_type: int
    key: bytes = field(repr=False)

    @classmethod
    def of(cls, ledger_id: int, metadata: LedgerMetadata) -> Check:
        return cls(ledger_id, int(metadata.digest_type), digests.hmac_key(metadata.password))

    def states(self, items: BytesLike, header_bytes: int, first: int, step: int, most: int) -> bytes | None:
        """Return GOOD or CORRUPT for the entries that an answer brings, at most ``most``; None if it cannot be taken apart."""
        states = bytearray()
        view = memoryview(items).cast("B")
        while len(view) and len(states) < most:
            try:
                at = first + len(states) * step
                ids = kernels.unpack_entries(view, header_bytes, self.ledger_id, self.digest_type, self.key, at, step)[0]
                states += bytes([EntryState.GOOD]) * (len(ids) // 8)
                break
            except DigestError as error:
                good = int(error.context.get("item", 0))
                states += bytes([EntryState.GOOD]) * good + bytes([EntryState.CORRUPT])
                view = view[kernels.skip_frames(view, 0, len(view), good + 1) :]
            except RemoteProtocolError:
                return None
        return bytes(states[:most])

    def state(self, body: BytesLike, entry_id: int) -> EntryState:
        """Return the state of a copy that was read by itself."""
        try:
            layout.decode_body(body, self.ledger_id, entry_id, self.digest_type, self.key)
        except (DigestError, RemoteProtocolError):
            return EntryState.CORRUPT
        return EntryState.GOOD


@dataclass(slots=True, eq=False)
class Lane:
    """Entries ``next``, ``next + step``, ... of one block, up to its end. ``burst`` are entries that are asked for singly."""

    block: Block
    next: int
    step: int
    busy: int = 0
    burst: deque[int] = field(default_factory=deque)
    failed: list[int] = field(default_factory=list)
    burst_end: int = 0
    found: bool = False

    @property
    def done(self) -> bool:
        return self.next > self.block.last and not self.busy and not self.burst

    @property
    def idle(self) -> bool:
        return bool(self.burst) or (not self.busy and self.next <= self.block.last)

    @property
    def left(self) -> int:
        return (self.block.last - self.next) // self.step + 1


class Block:
    """Consecutive entries of one replica, with a byte for the state of each."""

    __slots__ = ("first", "lanes", "last", "states")

    def __init__(self, stripe: Stripe, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.states = bytearray(last - first + 1)
        self.lanes: list[Lane] = []

    def note(self, entry_id: int, state: int) -> None:
        self.states[entry_id - self.first] = state

    @property
    def done(self) -> bool:
        return all(lane.done for lane in self.lanes)


@dataclass(frozen=True, slots=True)
class Ask:
    """A question: ``count`` entries of a lane from ``first`` on. ``single`` is a read of one entry."""

    lane: Lane
    first: int
    count: int
    single: bool


class ReplicaScan:
    """One position of a fragment, read entry by entry. The owner sends what ``asks`` yields, and tells of the answers."""

    def __init__(self, distribution: Distribution, position: int, first: int, last: int, bookie: BookieId, check: Check) -> None:
        self.bookie = bookie
        self.position = position
        self.stretches = Stretches()
        self.retries = 0
        self.resting = False
        self.scanned = 0
        self.batch = True  # until the bookie turns out not to know batch reads
        self._distribution = distribution
        self._check = check
        self._last = last
        self._next = first
        self._blocks: deque[Block] = deque()

    @property
    def done(self) -> bool:
        return not self._blocks and self._next > self._last

    # --- asking ------------------------------------------------------------------------------------------------------

    def asks(self) -> Iterator[Ask]:
        """Yield the questions that may be asked now. A question counts as asked once the next one is wanted, or with ``asked``."""
        while len(self._blocks) < BLOCKS_AT_ONCE and self._next <= self._last:
            self._begin()
        for block in tuple(self._blocks):
            for lane in block.lanes:
                while lane.idle:
                    yield self._next_ask(lane)

    def _begin(self) -> None:
        stripe = Stripe(self._distribution, self.position, self._next)
        width = BLOCK_ENTRIES * (1 if stripe.whole else self._distribution.ensemble_size)
        block = Block(stripe, self._next, min(self._last, self._next + width - 1))
        block.lanes = [Lane(block, start, step) for start, step in stripe.lanes(block.last)]
        self._next = block.last + 1
        if block.lanes:  # of a short stretch of a striped ledger the position may hold nothing, and no answer would end the block
            self._blocks.append(block)

    def _next_ask(self, lane: Lane) -> Ask:
        lane.busy += 1
        if lane.burst:
            return Ask(lane, lane.burst.popleft(), 1, True)
        return Ask(lane, lane.next, min(lane.left, RUN_ENTRIES), False)

    def take_back(self, ask: Ask) -> None:
        """Undo a question that could not be sent now."""
        ask.lane.busy -= 1
        if ask.single:
            ask.lane.burst.appendleft(ask.first)

    # --- answers -----------------------------------------------------------------------------------------------------

    def answered(self, ask: Ask, response: Response | None) -> int:
        """Take what was read, and return the bytes of it, or -1 if the answer says nothing that can be used."""
        if isinstance(response, ReadResponse) and response.body is not None:
            self._settle(ask, self._check.state(response.body, ask.first))
            return len(response.body)
        items: BytesLike
        if isinstance(response, BatchReadResponse):
            items, header = response.bodies, 0
        elif isinstance(response, ReadRunResponse):
            items, header = response.frames, read_run.HEADER_BYTES
        else:
            return -1
        states = self._check.states(items, header, ask.first, ask.lane.step, ask.count)
        if not states:
            return -1
        lane = ask.lane
        start = ask.first - lane.block.first
        lane.block.states[start : start + (len(states) - 1) * lane.step + 1 : lane.step] = states
        lane.next = ask.first + len(states) * lane.step
        lane.busy -= 1
        self._progress(len(states))
        return len(items)

    def denied(self, ask: Ask, state: EntryState) -> None:
        """Note that the bookie has no good copy of the entry that was asked for, or of the first of them."""
        self._settle(ask, state)

    def apart(self, ask: Ask) -> None:
        """Ask for the entries of a run one by one, because the bookie's answer does not tell them apart."""
        ask.lane.busy -= 1
        self._begin_burst(ask.lane)

    def silent(self, ask: Ask) -> None:
        """Note that there was no answer; the entries are asked for again."""
        lane = ask.lane
        lane.busy -= 1
        if ask.single:
            lane.failed.append(ask.first)
            self._end_burst(lane)

    def give_up(self, state: EntryState) -> None:
        """End the scan; whatever was not read has this state."""
        for block in self._blocks:
            for lane in block.lanes:
                lane.busy, lane.burst, lane.next = 0, deque(), block.last + 1
            self._put(block, bytes(block.states).replace(b"\0", bytes([state])))
        self._blocks.clear()
        if self._next <= self._last:
            stripe = Stripe(self._distribution, self.position, self._next)
            count = stripe.held(self._last)
            if count:
                self.stretches.add(stripe.nth(0), stripe.nth(count - 1), count, state)
        self._next = self._last + 1

    def _settle(self, ask: Ask, state: EntryState) -> None:
        lane = ask.lane
        lane.busy -= 1
        lane.block.note(ask.first, state)
        if ask.single:
            lane.found = lane.found or state.is_there
            self._end_burst(lane)
        else:
            lane.next = ask.first + lane.step
            self._begin_burst(lane)
        self._progress(1)

    def _begin_burst(self, lane: Lane) -> None:
        ids = range(lane.next, min(lane.block.last, lane.next + (SINGLES - 1) * lane.step) + 1, lane.step)
        lane.burst, lane.found, lane.burst_end = deque(ids), False, lane.next + len(ids) * lane.step
        lane.next = lane.burst_end

    def _end_burst(self, lane: Lane) -> None:
        if lane.busy or lane.burst:
            return
        if lane.failed:
            lane.burst, lane.failed = deque(sorted(lane.failed)), []
        elif not lane.found and lane.next <= lane.block.last:
            self._begin_burst(lane)

    def _progress(self, count: int) -> None:
        self.retries = 0
        self.scanned += count
        while self._blocks and self._blocks[0].done:
            block = self._blocks.popleft()
            self._put(block, block.states)

    def _put(self, block: Block, states: bytes | bytearray) -> None:
        self.stretches.add_states(Stripe(self._distribution, self.position, block.first), states)
