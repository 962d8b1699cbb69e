"""A world of one ledger for the replication machines: bookies as dictionaries, one metadata value, time that jumps from timer to timer."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bk_core.protocol.effects import Complete, Effect, Fail, Log, ReadLedger, SendAdds, SendRead, SetTimer, WriteLedger
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.events import AddReply, LedgerRead, LedgerWritten, Outcome, ReadReply, TimerFired
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import DigestType, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.wire.messages import BatchReadRequest, BatchReadResponse, ReadRequest, ReadResponse, Status

LEDGER = 11
PASSWORD = b"secret"
STEPS_MAX = 100_000


def payload(entry_id: int) -> bytes:
    return b"payload %d " % entry_id * (1 + entry_id % 5)


def length_at(entry_id: int) -> int:
    return sum(len(payload(n)) for n in range(entry_id + 1))


def body(entry_id: int, *, lac: int | None = None, digest_type: DigestType = DigestType.CRC32C) -> bytes:
    """As the writer sent it: its LAC was one behind."""
    stamped = max(-1, entry_id - 1) if lac is None else lac
    key = digests.hmac_key(PASSWORD)
    return layout.encode_body(LEDGER, entry_id, stamped, length_at(entry_id), payload(entry_id), digest_type, key)


@dataclass
class Bookie:
    """``refuses``: status for each request while it is not empty (the last one stays)."""

    entries: dict[int, bytes] = field(default_factory=dict)
    knows_ledger: bool = True
    fenced: bool = False
    has_batch_read: bool = True
    read_refusals: dict[int, Status] = field(default_factory=dict)
    add_refusals: deque[Status] = field(default_factory=deque)
    silent: bool = False
    keys: set[bytes] = field(default_factory=set)
    fencing_reads: int = 0
    plain_adds: int = 0

    def read(self, request: ReadRequest | BatchReadRequest) -> tuple[Status, Any]:
        self.fencing_reads += request.fence
        if isinstance(request, BatchReadRequest) and not self.has_batch_read:
            return Status.BAD_REQUEST, None
        if not self.knows_ledger:
            return Status.NO_LEDGER, None
        first = request.entry_id
        if first in self.read_refusals:
            return self.read_refusals[first], None
        if first not in self.entries:
            return Status.NO_ENTRY, None
        if isinstance(request, ReadRequest):
            return Status.OK, ReadResponse(request.request_id, Status.OK, LEDGER, first, self.entries[first])
        parts: list[bytes] = []
        size = 0
        for entry_id in range(first, first + request.entries_max):
            found = self.entries.get(entry_id)
            if found is None or entry_id in self.read_refusals or (parts and size + len(found) > request.bytes_max):
                break
            parts.append(len(found).to_bytes(4, "big") + found)
            size += len(found)
        return Status.OK, BatchReadResponse(request.request_id, Status.OK, LEDGER, first, b"".join(parts))

    def add(self, entry_id: int, data: bytes, key: bytes, recovery: bool) -> Status:
        if self.add_refusals:
            return self.add_refusals.popleft() if len(self.add_refusals) > 1 else self.add_refusals[0]
        self.plain_adds += not recovery
        if self.fenced and not recovery:
            return Status.FENCED
        self.keys.add(key)
        self.knows_ledger = True
        self.entries[entry_id] = data
        return Status.OK


class World:
    """``metadata`` and ``version`` are the stored ones; ``writes`` is every compare-and-set that arrived."""

    def __init__(self, metadata: LedgerMetadata, *, last_written: int, extra: tuple[str, ...] = ()) -> None:
        self.metadata, self.version = metadata, 5
        self.now = 0
        self.bookies = {name: Bookie() for fragment in metadata.fragments for name in fragment.ensemble}
        self.bookies.update({name: Bookie(knows_ledger=False) for name in extra})
        self.distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        for entry_id in range(last_written + 1):
            for position in self.distribution.write_set(entry_id):
                self.bookies[metadata.fragment_of(entry_id).ensemble[position]].entries[entry_id] = body(entry_id)
        self.writes: list[tuple[LedgerMetadata, int]] = []
        self.cas_answers: deque[Outcome] = deque()  # instead of the true outcome; the write itself happens
        self.before_cas: Callable[[], None] = lambda: None
        self.sent_to: list[tuple[str, int]] = []
        self.asked: list[tuple[str, int]] = []
        self.in_flight_max = 0
        self.result: Any = None
        self.logs: list[str] = []
        self.weather: random.Random | None = None  # answers in any order, some of them lost
        self.loss = 0.0
        self._inbox: deque[Any] = deque()
        self._timers: dict[str, int] = {}
        self._reads_in_flight = 0

    def run(self, machine: Any) -> Any:
        """To the machine's completion; its value or its error."""
        self.result = None
        self._inbox.clear()
        self._timers.clear()
        self._perform(machine.start())
        for _ in range(STEPS_MAX):
            if self.result is not None:
                return self.result
            self._step(machine)
        raise AssertionError("the machine does not come to an end")

    def _step(self, machine: Any) -> None:
        if self._inbox:
            if self.weather is not None:
                self._inbox.rotate(-self.weather.randrange(len(self._inbox)))
            event = self._inbox.popleft()
            if isinstance(event, ReadReply):
                self._reads_in_flight -= 1
                if self._is_lost():
                    event = ReadReply(event.request, event.bookie, Status.TIMEOUT)
            elif isinstance(event, AddReply) and self._is_lost():
                return
            self._perform(machine.handle(event, self.now))
            return
        assert self._timers, "nothing can happen any more and the machine has not completed"
        key = min(self._timers, key=lambda name: self._timers[name])
        self.now = max(self.now, self._timers.pop(key))
        self._perform(machine.handle(TimerFired(key), self.now))

    def _is_lost(self) -> bool:
        return self.weather is not None and self.weather.random() < self.loss

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            self._one(effect)

    def _one(self, effect: Effect) -> None:
        match effect:
            case SendRead(request, name, message):
                assert isinstance(message, ReadRequest | BatchReadRequest)
                self.asked.append((name, message.entry_id))
                self._reads_in_flight += 1
                self.in_flight_max = max(self.in_flight_max, self._reads_in_flight)
                bookie = self.bookies[name]
                status, response = (Status.TIMEOUT, None) if bookie.silent else bookie.read(message)
                self._inbox.append(ReadReply(request, name, status, response))
            case SendAdds(name, position, run, start):
                self._add(name, position, run, start)
            case ReadLedger(request):
                self._inbox.append(LedgerRead(request, Outcome.OK, self.metadata, self.version))
            case WriteLedger(request, metadata, version):
                self._inbox.append(self._write(request, metadata, version))
            case SetTimer(key, after_ns):
                self._timers[key] = self.now + after_ns
            case Complete(_, value):
                self.result = value
            case Fail(_, error):
                self.result = error
            case Log(_, message):
                self.logs.append(message)
            case _:
                raise AssertionError(effect)

    def _add(self, name: str, position: int, run: Any, start: int) -> None:
        bookie = self.bookies[name]
        for index in run.indices(position, start, self.distribution.ensemble_size, self.distribution.write_quorum_size):
            entry_id = run.first_entry_id + index
            self.sent_to.append((name, entry_id))
            if bookie.silent:
                continue
            key = bytes(run.frames[run.offsets[index] + 8 : run.offsets[index] + 28])
            status = bookie.add(entry_id, bytes(run.body(index)), key, run.recovery)
            self._inbox.append(AddReply(name, entry_id, 1, status))

    def _write(self, request: int, metadata: LedgerMetadata, version: int) -> LedgerWritten:
        self.before_cas()
        self.writes.append((metadata, version))
        outcome = Outcome.CONFLICT
        if version == self.version:
            self.metadata, self.version, outcome = metadata, self.version + 1, Outcome.OK
        if self.cas_answers:
            outcome = self.cas_answers.popleft()
        return LedgerWritten(request, outcome, self.version)

    def copies(self, name: str) -> list[int]:
        """Ids of which the bookie holds a good copy."""
        good = []
        for entry_id, data in sorted(self.bookies[name].entries.items()):
            entry = layout.decode_body(data, LEDGER, entry_id, self.metadata.digest_type, digests.hmac_key(PASSWORD))
            assert (entry.payload, entry.length) == (payload(entry_id), length_at(entry_id))
            good.append(entry_id)
        return good

    def lacks(self) -> list[tuple[int, str]]:
        """(entry, bookie) of the decided entries that the current metadata says are there and are not."""
        missing = []
        end = self.metadata.last_entry_id if self.metadata.state is LedgerState.CLOSED else self.metadata.last_fragment.first_entry_id - 1
        for entry_id in range(end + 1):
            ensemble = self.metadata.fragment_of(entry_id).ensemble
            for position in self.distribution.write_set(entry_id):
                if self.bookies[ensemble[position]].entries.get(entry_id, b"")[-1:] != payload(entry_id)[-1:]:
                    missing.append((entry_id, ensemble[position]))
        return missing


def ledger(
    quorums: tuple[int, int, int],
    fragments: Mapping[int, tuple[str, ...]],
    *,
    last: int | None = None,
    state: LedgerState = LedgerState.OPEN,
    custom: Mapping[str, bytes] | None = None,
) -> LedgerMetadata:
    """CLOSED at ``last`` if that is given."""
    e, w, a = quorums
    listed = tuple(Fragment(first, ensemble) for first, ensemble in sorted(fragments.items()))
    metadata = LedgerMetadata(e, w, a, state, listed, password=PASSWORD, custom=dict(custom or {}))
    return metadata if last is None else metadata.closed(last, length_at(last) if last >= 0 else 0)
