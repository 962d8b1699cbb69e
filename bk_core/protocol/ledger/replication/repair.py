"""Brings one fragment back to full replication (RR-5..RR-8).

Theory of operation. ``targets`` names positions whose bookie is lost and the bookie that takes its place; ``refill`` names entries of which
a bookie that stays has no good copy. Each wanted entry is read from a replica of its write set, without fencing, replica after replica; its
body goes unchanged, with the recovery flag, to every position that wants it. Only when all of it is confirmed are the lost bookies
exchanged in the metadata by one compare-and-set. An entry that no replica has ends the attempt before that: nothing was promised, the
copies made so far do no harm, and the attempt is repeated later.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import takewhile
from typing import Any

from bk_core.errors import BkError, InvalidArgumentError, ReplicationError
from bk_core.protocol.effects import Complete, Effect, Fail, Log, SendAdds, SendRead, SetTimer
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.events import AddReply, BookieLost, BytesDrained, Event, LedgerRead, LedgerWritten, ReadReply, TimerFired
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata
from bk_core.protocol.ledger.replication.bodies import Body, bodies_of
from bk_core.protocol.ledger.replication.budget import ByteBudget
from bk_core.protocol.ledger.replication.change import MetadataChange
from bk_core.protocol.ledger.replication.check import BATCH_UNKNOWN, REFUSALS, SILENCE
from bk_core.protocol.ledger.replication.fragments import (
    EntryRanges,
    FragmentSpan,
    distribution_of,
    exchanged,
    exchanges_of,
    is_eligible,
    known_last_entry,
)
from bk_core.protocol.ledger.run import ADD_FRAME_PREFIX_BYTES, PackedAdds
from bk_core.protocol.limits import Limits
from bk_core.protocol.states import Transitions
from bk_core.protocol.wire import codec_v2
from bk_core.protocol.wire.messages import AddRequest, BatchReadRequest, ReadRequest, Status

READS_MAX = 64
CHUNKS_OF_ADDS = 4  # a bookie's add queue is filled in so many steps at most
HOPELESS = frozenset({Status.UNAUTHORIZED, Status.BAD_VERSION, Status.BAD_REQUEST, Status.READ_ONLY})  # asking again changes nothing


class RepairState(Enum):
    COPYING = auto()
    CHANGING = auto()
    DONE = auto()
    FAILED = auto()


@dataclass(slots=True, eq=False)
class _Reading:
    """The entries ``next..last``, which are asked of one position at a time; ``tried`` is about ``next``."""

    next: int
    last: int
    position: int = -1
    single: bool = False
    reserved: int = 0
    retries: int = 0
    tried: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Copy:
    """One entry on its way to one bookie."""

    entry_id: int
    position: int
    bookie: BookieId
    run: PackedAdds
    size: int
    deadline_ns: int
    retries: int = 0
    sent: bool = True


class FragmentRepair:
    """Machine: completes ``token`` with the ledger's metadata, or fails it with a ReplicationError that names the obstacle.

    ``targets``: position -> new bookie, which must stand nowhere in the fragment (RR-6). ``refill``: position -> ids to write again to the
    bookie that is there. Without ``exchange`` it completes when all copies are confirmed, and its owner puts ``exchanges`` into the
    metadata, with those of other fragments (RR-7, ExchangeGroup). Raises InvalidArgumentError for a fragment that is not decided (RR-2).
    """

    state = Transitions(
        RepairState.COPYING,
        {
            RepairState.COPYING: (RepairState.CHANGING, RepairState.FAILED),
            RepairState.CHANGING: (RepairState.DONE, RepairState.FAILED),
        },
    )

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        version: int,
        span: FragmentSpan,
        token: Any,
        *,
        targets: Mapping[int, BookieId] | None = None,
        refill: Mapping[int, EntryRanges] | None = None,
        batch: bool = True,
        bytes_per_second: int | None = None,
        limits: Limits | None = None,
        exchange: bool = True,
    ) -> None:
        self.ledger_id = ledger_id
        self.span = span
        self.targets = dict(targets or {})
        self.refill = {position: ranges for position, ranges in (refill or {}).items() if ranges and position not in self.targets}
        self.state = RepairState.COPYING
        self.entries_copied = 0  # distinct entries read
        self.copies_made = 0
        self.bytes_copied = 0
        self.unreadable: list[int] = []
        self.failed_bookies: dict[BookieId, str] = {}
        self.not_admitting: set[BookieId] = set()  # bookies that refused a read of this client (RR-19)
        self._token = token
        self._limits = limits or Limits()
        self._digest_type = metadata.digest_type
        self._hmac_key, self._master_key = digests.hmac_key(metadata.password), digests.master_key(metadata.password)
        self.distribution = distribution_of(metadata)
        self._known_last = known_last_entry(metadata)
        self._budget = ByteBudget(self._limits.replication_bytes_in_flight, bytes_per_second, self._limits.read_batch_bytes)
        self._chunk_entries = max(1, min(self._limits.read_chunk_entries, self._limits.unretired_entries_max // CHUNKS_OF_ADDS))
        self._digest_note = ""
        self._silent: set[int] = set()  # positions that did not answer, which are asked last
        self._batch = batch and not self.distribution.striped
        self._fan_out = max(1, len(self.targets) + len(self.refill))
        self.exchanges = exchanges_of(span, self.targets)
        self._exchange_here = exchange
        self._check_arguments(metadata)
        self._change = MetadataChange(ledger_id, metadata, version, self._exchanged, token, self._limits)
        self._left = self._stretches()
        self._waiting: deque[_Reading] = deque()  # to be asked (again)
        self._asked: dict[int, _Reading] = {}
        self._requests = 0
        self._next: _Reading | None = None
        self._all_asked = False
        self._resting: deque[_Reading] = deque()
        self._copies: dict[tuple[BookieId, int], _Copy] = {}
        self._ticking = False
        self._moved: dict[BookieId, int] = {}  # the time at which the bookie last took a copy, or bytes for it went on

    def _check_arguments(self, metadata: LedgerMetadata) -> None:
        if not self._may_copy(metadata):
            raise InvalidArgumentError(f"fragment {self.span.first_entry_id} of ledger {self.ledger_id} is not decided")
        for position, bookie in self.targets.items():
            if bookie in self.span.ensemble:  # RR-6
                raise InvalidArgumentError(f"{bookie} stands in the fragment already and cannot take position {position}")

    def _may_copy(self, metadata: LedgerMetadata) -> bool:
        """Return True unless it is the last fragment of a ledger that is not CLOSED, which is never copied (RR-2, RR-12)."""
        return is_eligible(metadata, self.span.first_entry_id)

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata that is known to be stored."""
        return self._change.metadata

    @property
    def version(self) -> int:
        return self._change.version

    @property
    def exchanged_positions(self) -> tuple[tuple[int, BookieId, BookieId], ...]:
        """The exchanges (position, old, new) as intended; they are stored once the machine has completed."""
        return tuple((exchange.position, exchange.old, exchange.new) for exchange in self.exchanges)

    def start(self, now_ns: int = 0) -> list[Effect]:
        return self._go_on(now_ns)

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        if self.state in (RepairState.DONE, RepairState.FAILED):
            return []
        match event:
            case LedgerRead() | LedgerWritten() | TimerFired("metadata"):
                return self._changing(self._change.handle(event, now_ns))
            case ReadReply():
                return self._read(event, now_ns)
            case AddReply():
                return self._added(event, now_ns)
            case BookieLost(bookie, status):
                return self._lost(bookie, status, now_ns)
            case BytesDrained(bookie, at_ns):
                return self._drained(bookie, at_ns)
            case TimerFired("tick"):
                return self._tick(now_ns)
            case TimerFired("again"):
                return self._again(now_ns)
            case TimerFired("pace"):
                return self._go_on(now_ns)
            case _:
                return []

    # --- wanted entries ------------------------------------------------------------------------------------------------

    def _stretches(self) -> Iterator[tuple[int, int]]:
        """Yield ranges that hold all wanted entries."""
        if self.targets:
            yield self.span.first_entry_id, self.span.last_entry_id
            return
        union = EntryRanges()
        for ranges in self.refill.values():
            union |= ranges
        yield from union.ranges

    def _wanting(self, entry_id: int) -> list[int]:
        """Return the positions that are to get this entry: those of its write set that lost their bookie or have no good copy (RR-5)."""
        return [p for p in self.distribution.write_set(entry_id) if p in self.targets or entry_id in self.refill.get(p, ())]

    def _sources(self, entry_id: int) -> list[int]:
        """Return the write set, those first that are not known to be bad. A lost or damaged replica is still better than none."""
        return sorted(self.distribution.write_set(entry_id), key=lambda p: (p in self._silent, p in self.refill, p in self.targets))

    def _new_reading(self) -> _Reading | None:
        """Return the next consecutive entries that a position wants; there are many only if they can be read at once."""
        if self._next is None:
            stretch = next(self._left, None)
            if stretch is None:
                self._all_asked = True
                return None
            self._next = _Reading(*stretch)
        entry_id, last = self._next.next, min(self._next.last, self.span.last_entry_id)
        while entry_id <= last and not self._wanting(entry_id):
            entry_id += 1
        if entry_id > last:
            self._next = None
            return self._new_reading()
        end = min(last, entry_id + self._chunk_entries - 1) if self._batch else entry_id
        self._next.next = end + 1
        return _Reading(entry_id, end)

    # --- reading -------------------------------------------------------------------------------------------------------

    def _go_on(self, now_ns: int) -> list[Effect]:
        """Read as far as the budget allows; when everything is confirmed, change the metadata."""
        effects: list[Effect] = []
        while self.state is RepairState.COPYING and len(self._asked) < READS_MAX:
            if not self._budget.admits(self._size(single=not self._batch)) or self._adds_are_many():
                break
            pause_ns = self._budget.pause_ns(now_ns)
            if pause_ns:
                effects.append(SetTimer("pace", pause_ns))
                break
            reading = self._waiting.popleft() if self._waiting else self._new_reading()
            if reading is None:
                break
            effects += self._ask(reading)
        if self.state is RepairState.COPYING and self._may_change():
            effects += self._finish_copying()
        return effects

    def _adds_are_many(self) -> bool:
        """Return True if the entries being read and the copies being written fill a bookie's add queue (wire-protocol.md 8.2)."""
        entries = len(self._copies) + sum(reading.last - reading.next + 1 for reading in self._asked.values())
        return entries > 0 and entries + (self._chunk_entries if self._batch else 1) > self._limits.unretired_entries_max

    def _ask(self, reading: _Reading) -> list[Effect]:
        """Ask a replica like a reader does, never with the fence flag (RR-5)."""
        position = next((p for p in self._sources(reading.next) if p not in reading.tried), None)
        if position is None:
            return self._nowhere(reading)
        single = reading.single or not self._batch or reading.last == reading.next
        size = self._size(single)
        self._requests += 1
        self._budget.reserve(size)
        reading.position, reading.reserved = position, size
        self._asked[self._requests] = reading
        bookie = self.span.ensemble[position]
        if single:
            return [SendRead(self._requests, bookie, ReadRequest(self._requests, self.ledger_id, reading.next))]
        count, bytes_max = reading.last - reading.next + 1, max(1, size // self._fan_out)
        return [SendRead(self._requests, bookie, BatchReadRequest(self._requests, self.ledger_id, reading.next, count, bytes_max))]

    def _size(self, single: bool) -> int:
        """Return the bytes that one read will take until its copies are confirmed; every bookie that is to get them counts."""
        return self._budget.entry_bytes * self._fan_out if single else self._budget.batch_bytes

    def _read(self, event: ReadReply, now_ns: int) -> list[Effect]:
        reading = self._asked.pop(event.request, None)
        if reading is None:
            return []
        self._budget.release(reading.reserved)
        bodies: list[Body] = []
        if event.status is Status.OK:
            bodies = bodies_of(event.response, self.ledger_id, reading.next, reading.last, self._digest_type, self._hmac_key)
            self._budget.note_read(sum(len(body.data) for body in bodies), now_ns)
        good = list(takewhile(lambda body: body.problem is None, bodies))  # another replica is asked for the first bad one
        effects: list[Effect] = []
        if good:
            reading.next, reading.retries = good[-1].entry_id + 1, 0
            reading.tried.clear()
            effects += self._copy(good, now_ns)
        elif self._batch and not reading.single and event.status in BATCH_UNKNOWN:
            reading.single = True  # the bookie is old or dead, which the single read will tell
        else:
            reason = "corrupt copy" if bodies else _why(Status.NOT_ADMITTED if event.status in REFUSALS else event.status)
            reading.tried[reading.position] = reason
            if event.status in REFUSALS:
                self.not_admitting.add(event.bookie)
            if event.status in SILENCE | REFUSALS:
                self._silent.add(reading.position)
            line = f"ledger {self.ledger_id} entry {reading.next}: {reason} at {event.bookie}; reading another replica"
            effects.append(Log("info", line))
        if reading.next <= reading.last:
            self._waiting.appendleft(reading)
        return effects + self._go_on(now_ns)

    def _nowhere(self, reading: _Reading) -> list[Effect]:
        """Try again with back-off a few times; then the fragment's bookies stay as they are (RR-8). Refusals are final at once (RR-19)."""
        refused = [why == _why(Status.NOT_ADMITTED) for why in reading.tried.values()]
        if reading.retries < self._limits.replication_retries_max and not all(refused):
            reading.retries += 1
            reading.tried.clear()
            self._resting.append(reading)
            return [SetTimer("again", self._limits.replication_retry_ns)]
        self.unreadable.append(reading.next)
        answers = ", ".join(f"{self.span.ensemble[p]}: {why}" for p, why in sorted(reading.tried.items()))
        line = f"ledger {self.ledger_id} entry {reading.next} is readable nowhere ({answers})"
        if any(refused):
            line = f"ledger {self.ledger_id} entry {reading.next} is not found where this client is admitted ({answers})"
        if "corrupt copy" in reading.tried.values():
            self._digest_note = self.metadata.access_note
        line += self._digest_note
        if self.exchanges:
            return [Log("error", line), *self._fail(ReplicationError(line, ledger=self.ledger_id, entry=reading.next))]
        reading.next += 1  # what lies behind is asked for once everywhere, with no pauses until something is readable again
        reading.tried.clear()
        if reading.next <= reading.last:
            self._waiting.appendleft(reading)
        return [Log("error", line)]

    # --- writing -------------------------------------------------------------------------------------------------------

    def _copy(self, bodies: list[Body], now_ns: int) -> list[Effect]:
        """Send each body to every position that wants it, consecutive ones as one run."""
        effects: list[Effect] = []
        stretches: dict[int, list[Body]] = {}
        for body in bodies:
            self.entries_copied += 1  # it is wanted, because several are read at once only without striping
            self.bytes_copied += len(body.data)
            self._budget.note_entry(len(body.data) + ADD_FRAME_PREFIX_BYTES)
            for position in self._wanting(body.entry_id):
                stretch = stretches.setdefault(position, [])
                if stretch and stretch[-1].entry_id + 1 != body.entry_id:
                    effects += self._send(position, stretch, now_ns)
                    stretch = stretches[position] = []
                stretch.append(body)
        for position, stretch in stretches.items():
            effects += self._send(position, stretch, now_ns)
        if not self._ticking and self._copies:
            self._ticking = True
            effects.append(SetTimer("tick", self._limits.add_timeout_ns))
        return effects

    def _send(self, position: int, bodies: list[Body], now_ns: int) -> list[Effect]:
        bookie = self.targets.get(position, self.span.ensemble[position])
        frames = [self._frame(body) for body in bodies]
        offsets = array("q", [0])
        for frame in frames:
            offsets.append(offsets[-1] + len(frame))
        run = PackedAdds(self.ledger_id, bodies[0].entry_id, len(frames), b"".join(frames), memoryview(offsets), self._recovery_flag())
        for body, frame in zip(bodies, frames, strict=True):
            again = self._copies.get((bookie, body.entry_id))  # an old ensemble may name a bookie twice (scenario 60)
            self._budget.reserve(len(frame) - (again.size if again is not None else 0))
            deadline_ns = now_ns + self._limits.add_timeout_ns
            self._copies[bookie, body.entry_id] = _Copy(body.entry_id, position, bookie, run, len(frame), deadline_ns)
        return [SendAdds(bookie, position, run)]

    def _recovery_flag(self) -> bool:
        """Return True if copies are recovery adds. They are, because the target may have been fenced long ago (RR-5, R19)."""
        return True

    def _frame(self, body: Body) -> bytes:
        """Return the add with the same id, running length and payload (RR-5). The LAC stays too unless it is above what is known to be
        decided."""
        data = body.data
        assert body.entry is not None
        if body.entry.last_add_confirmed > self._known_last:
            entry = body.entry
            data = layout.encode_body(
                self.ledger_id, entry.entry_id, self._known_last, entry.length, entry.payload, self._digest_type, self._hmac_key
            )
        flag = self._recovery_flag()
        return codec_v2.frame(codec_v2.encode_request(AddRequest(0, self.ledger_id, body.entry_id, self._master_key, data, flag, flag)))

    def _added(self, event: AddReply, now_ns: int) -> list[Effect]:
        failed: list[_Copy] = []
        for entry_id in event.entry_ids():
            copy = self._copies.get((event.bookie, entry_id))
            if copy is None:
                continue
            if event.status is Status.OK:
                del self._copies[event.bookie, entry_id]
                self._budget.release(copy.size)
                self.copies_made += 1
                self._moved[event.bookie] = now_ns
            elif copy.sent:
                failed.append(copy)
        return self._not_added(failed, event.status) + self._go_on(now_ns)

    def _lost(self, bookie: BookieId, status: Status, now_ns: int) -> list[Effect]:
        """Take each copy that the bookie has not answered as one that it did not take."""
        lost = [copy for copy in self._copies.values() if copy.bookie == bookie and copy.sent]
        return self._not_added(lost, status) + self._go_on(now_ns)

    def _drained(self, bookie: BookieId, at_ns: int) -> list[Effect]:
        """Note that bytes go out to the bookie, so that its copies are not taken for late."""
        self._moved[bookie] = max(at_ns, self._moved.get(bookie, at_ns))
        return []

    def _not_added(self, copies: list[_Copy], status: Status) -> list[Effect]:
        """Send again with back-off a few times; then this bookie cannot take the fragment and the metadata stays (scenario 53)."""
        effects: list[Effect] = []
        for copy in copies:
            copy.sent = False
            copy.retries += 1
            if copy.retries > self._limits.replication_retries_max or status in HOPELESS:
                why = _why(status)
                self.failed_bookies[copy.bookie] = why
                line = f"{copy.bookie} does not take entry {copy.entry_id} of ledger {self.ledger_id} ({why})"
                return [Log("warning", line), *self._fail(ReplicationError(line, ledger=self.ledger_id, bookie=copy.bookie))]
        if copies:
            effects.append(SetTimer("again", self._limits.replication_retry_ns))
        return effects

    def _tick(self, now_ns: int) -> list[Effect]:
        since = now_ns - self._limits.add_timeout_ns  # LINK-1: a bookie that took something later than that is only slow
        late = [c for c in self._copies.values() if c.sent and c.deadline_ns <= now_ns and self._moved.get(c.bookie, since) <= since]
        effects = self._not_added(late, Status.TIMEOUT)
        self._ticking = bool(self._copies) and self.state is RepairState.COPYING
        if self._ticking:
            effects.append(SetTimer("tick", max(1, self._limits.add_timeout_ns // 4)))
        return effects + self._go_on(now_ns)

    def _again(self, now_ns: int) -> list[Effect]:
        """Read and send again what failed."""
        self._waiting.extend(self._resting)
        self._resting.clear()
        effects: list[Effect] = []
        for copy in self._copies.values():
            if not copy.sent:
                copy.sent, copy.deadline_ns = True, now_ns + self._limits.add_timeout_ns
                effects.append(SendAdds(copy.bookie, copy.position, self._alone(copy)))
        return effects + self._go_on(now_ns)

    def _alone(self, copy: _Copy) -> PackedAdds:
        """Return one entry of a run as a run of its own."""
        index = copy.entry_id - copy.run.first_entry_id
        frame = copy.run.frames[copy.run.offsets[index] : copy.run.offsets[index + 1]]
        return PackedAdds(self.ledger_id, copy.entry_id, 1, frame, memoryview(array("q", (0, len(frame)))), copy.run.recovery)

    # --- the metadata --------------------------------------------------------------------------------------------------

    def _may_change(self) -> bool:
        """Return True if every target has confirmed every wanted entry (RR-7)."""
        return self._all_asked and not (self._waiting or self._resting or self._asked or self._copies)

    def _finish_copying(self) -> list[Effect]:
        if self.unreadable:
            listed = ", ".join(map(str, self.unreadable[:10])) + (", ..." if len(self.unreadable) > 10 else "")
            line = f"no good copy of entries {listed} of ledger {self.ledger_id} was found{self._digest_note}"
            if self.not_admitting:
                line += f"; {', '.join(sorted(self.not_admitting))} may have some, and did not admit this client"
            return self._fail(ReplicationError(line, ledger=self.ledger_id))
        self.state = RepairState.CHANGING
        return self._changing(self._change.start())

    def _exchanged(self, stored: LedgerMetadata) -> LedgerMetadata | None:
        """Return RR-7's change of the metadata that is stored now. There is nothing to write if only copies were missing."""
        return exchanged(stored, self.span.first_entry_id, self.exchanges) if self.exchanges and self._exchange_here else None

    def _changing(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, Complete):
                self.state = RepairState.DONE
            elif isinstance(effect, Fail):
                self.state = RepairState.FAILED
        return effects

    def _fail(self, error: BkError) -> list[Effect]:
        self.state = RepairState.FAILED
        return [Fail(self._token, error)]


def _why(status: Status) -> str:
    return "an answer without the entry" if status is Status.OK else status.name.lower().replace("_", " ")
