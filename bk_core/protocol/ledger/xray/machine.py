"""The machine of an x-ray: asks every bookie of a ledger what it knows, then what it has of each entry.

Theory of operation. First each bookie is asked for its last add confirmed and, unless every entry is to be read, for the list of its
entries. Some bookies never answer about a list (wire-protocol.md 8.10), so it gets little time; those that are known for it, ``unlisting``,
are not asked, and a machine adds to them what it learns. When all have answered or were given up,
the end of the ledger is known: what it was closed at, or the highest that anybody told. Then the replicas are gone through, some at a
time. Where there is a list, only the first and the last copy of it are read; elsewhere every copy is. All reads are plain ones: nobody is
fenced, and a writer notices nothing. Whatever a bookie does is a finding, so the machine never fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from bk_core.errors import DigestError, RemoteProtocolError
from bk_core.protocol.effects import Complete, Effect, SendRead, SetTimer
from bk_core.protocol.entry import layout
from bk_core.protocol.events import Event, ReadReply, TimerFired
from bk_core.protocol.ledger.answers import checked_lac
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.replication.budget import ByteBudget
from bk_core.protocol.ledger.replication.fragments import distribution_of, known_last_entry
from bk_core.protocol.ledger.xray.listed import EntryList
from bk_core.protocol.ledger.xray.result import BookieXray, ReplicaXray, XrayResult
from bk_core.protocol.ledger.xray.scan import Ask, Check, ReplicaScan
from bk_core.protocol.ledger.xray.stretches import EntryState, Stripe
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import (
    BatchReadRequest,
    EntryListRequest,
    EntryListResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadRunRequest,
    Request,
    Status,
)

LIST_TIMEOUT_NS = 3_000_000_000
REPLICAS_AT_ONCE = 8
OPEN_MAX = 1 << 32  # entries of an open ledger that are looked at; a higher ``first`` shows those behind
LISTED_AT_ONCE = 1 << 16  # entries of a list that are looked at in one piece
_DENIALS = frozenset({Status.NO_ENTRY, Status.NO_LEDGER})
_BATCH_UNKNOWN = frozenset({Status.BAD_REQUEST, Status.PROTOCOL_ERROR})
_GONE = frozenset({Status.TIMEOUT, Status.UNAVAILABLE, Status.PROTOCOL_ERROR, Status.NOT_ADMITTED})
_SILENCE = frozenset({Status.TIMEOUT, Status.UNAVAILABLE, Status.PROTOCOL_ERROR, Status.TOO_MANY_REQUESTS, Status.NOT_ADMITTED})


@dataclass(slots=True)
class _Bookie:
    seen: BookieXray
    waits: int = 0  # for so many of the two first answers
    listed: EntryList | None = None
    unknown: bool = False  # the ledger, to this bookie
    mute: bool = False  # about its list


@dataclass(slots=True, eq=False)
class _Replica:
    first: int
    last: int
    position: int
    bookie: BookieId
    scan: ReplicaScan
    decided: bool
    busy: int = 0  # questions under way
    listed: EntryList | None = None  # what its stretches are made of, once the ends of it are read
    to_read: deque[int] = field(default_factory=deque)
    ends: dict[int, EntryState | None] = field(default_factory=dict)
    taken: bool = False

    @property
    def done(self) -> bool:
        return self.taken or (self.listed is None and self.scan.done)


class LedgerXray:
    """Machine: completes ``token`` with an XrayResult. It never fails.

    ``registered`` are the bookies that are up according to the registry; the others are not asked. The entries ``first`` to ``last`` are
    looked for; None is the end of the ledger. With ``full`` every copy is read. ``unlisting`` are bookies that do not answer about lists;
    in the end those that turned out to be such are there as well. ``batch``: bookies are spoken to in v2, which has batch
    reads. ``bytes_per_second`` bounds how fast copies are read.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        token: Any,
        *,
        registered: Collection[BookieId],
        first: int = 0,
        last: int | None = None,
        full: bool = False,
        unlisting: Collection[BookieId] = (),
        batch: bool = True,
        bytes_per_second: int | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self.bytes_read = 0
        self.entries_total: int | None = None
        self._token = token
        self._metadata = metadata
        self._first, self._wanted_last = first, last
        self._full = full
        self.unlisting = set(unlisting)
        self._limits = limits or Limits()
        self._distribution = distribution_of(metadata)
        self._batch = batch and not self._distribution.striped
        self._check = Check.of(ledger_id, metadata)
        self._budget = ByteBudget(self._limits.replication_bytes_in_flight, bytes_per_second, self._limits.read_batch_bytes)
        self._bookies = {
            bookie: _Bookie(BookieXray(bookie, bookie in registered)) for fragment in metadata.fragments for bookie in fragment.ensemble
        }
        self._replicas: list[_Replica] = []
        self._active: list[_Replica] = []
        self._waiting: deque[_Replica] = deque()
        self._requests = 0
        self._probes: dict[int, tuple[_Bookie, type]] = {}
        self._reads: dict[int, tuple[_Replica, Ask | int, int]] = {}  # of a scan, or of one entry at an end of a list
        self._lac = self._last = self._end = -1
        self._settled = 0
        self._scanning = False
        self._finished = False

    @property
    def entries_checked(self) -> int:
        """The number of copies whose state is known."""
        return self._settled + sum(replica.scan.scanned for replica in tuple(self._active))

    def start(self, now_ns: int = 0) -> list[Effect]:
        effects: list[Effect] = []
        for bookie in self._bookies.values():
            if bookie.seen.registered:
                effects.append(self._probe(bookie, ReadLacRequest(0, self.ledger_id), None))
                if not self._full and bookie.seen.bookie not in self.unlisting:
                    effects.append(self._probe(bookie, EntryListRequest(0, self.ledger_id), LIST_TIMEOUT_NS))
        return effects if effects else self._go_on(now_ns)

    def _probe(self, bookie: _Bookie, message: Request, timeout_ns: int | None) -> Effect:
        bookie.waits += 1
        self._requests += 1
        self._probes[self._requests] = bookie, type(message)
        return SendRead(self._requests, bookie.seen.bookie, message, timeout_ns)

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        if self._finished:
            return []
        match event:
            case ReadReply(status=Status.UNAUTHORIZED):  # no read shows a password, so it is this client that is refused (RR-19)
                return self.handle(replace(event, status=Status.NOT_ADMITTED, response=None), now_ns)
            case ReadReply(request=request) if request in self._probes:
                self._probed(*self._probes.pop(request), event)
                return self._go_on(now_ns)
            case ReadReply(request=request) if request in self._reads:
                replica, ask, reserved = self._reads.pop(request)
                replica.busy -= 1
                self._budget.release(reserved)
                effects = self._end_read(replica, ask, event) if isinstance(ask, int) else self._read(replica, ask, event, now_ns)
                return effects + self._go_on(now_ns)
            case TimerFired("again"):
                for replica in self._active:
                    replica.scan.resting = False
                return self._go_on(now_ns)
            case TimerFired("pace"):
                return self._go_on(now_ns)
            case _:
                return []

    # --- what bookies know -------------------------------------------------------------------------------------------

    def _probed(self, bookie: _Bookie, question: type, event: ReadReply) -> None:
        bookie.waits -= 1
        match event.response:
            case EntryListResponse(entries=bytes() as blob) if event.status is Status.OK:
                try:
                    bookie.listed = EntryList(blob)
                except RemoteProtocolError:
                    return  # then its entries are read
                bookie.seen = replace(bookie.seen, lists=True)
                self._saw(bookie, bookie.listed.last)
            case _ if question is EntryListRequest and event.status is Status.NO_LEDGER:
                bookie.unknown = True
            case _ if question is EntryListRequest and event.status is Status.TIMEOUT:
                bookie.mute = True
            case ReadLacResponse() as response:
                lac = checked_lac(response, self.ledger_id, self._metadata.digest_type, self._check.key)
                bookie.seen = replace(bookie.seen, lac=lac)
                self._take_last(bookie, response.last_entry_body)
            case _ if question is ReadLacRequest and event.status in _GONE:
                bookie.seen = replace(bookie.seen, silent=event.status)

    def _take_last(self, bookie: _Bookie, body: bytes | None) -> None:
        """Note the last entry, if its digest is right: an open ledger is looked at up to the highest that is told."""
        if body is None:
            return
        try:
            entry = layout.decode_body(body, self.ledger_id, None, self._metadata.digest_type, self._check.key)
        except (DigestError, RemoteProtocolError):
            return
        self._end = max(self._end, entry.entry_id)
        self._saw(bookie, entry.entry_id)

    @staticmethod
    def _saw(bookie: _Bookie, last: int | None) -> None:
        if last is not None:
            known = bookie.seen.last_entry_id
            bookie.seen = replace(bookie.seen, last_entry_id=last if known is None else max(last, known))

    # --- from there to the copies ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin with the copies, now that the end of the ledger is known."""
        self._scanning = True
        self.unlisting |= {one.seen.bookie for one in self._bookies.values() if one.mute and one.seen.silent is None}
        metadata = self._metadata
        known = known_last_entry(metadata)
        closed = metadata.state is LedgerState.CLOSED
        lacs = [bookie.seen.lac for bookie in self._bookies.values() if bookie.seen.lac is not None]
        self._lac = known if closed else max([known, *lacs])
        end = known if closed else max(self._lac, self._end)
        self._last = end if self._wanted_last is None else min(end, self._wanted_last)
        if not closed:  # a bookie that lies may say that an open ledger goes on for ever
            self._last = min(self._last, self._first + OPEN_MAX - 1)
        total = 0
        for index, fragment in enumerate(metadata.fragments):
            is_last = index + 1 == len(metadata.fragments)
            after = self._last + 1 if is_last else metadata.fragments[index + 1].first_entry_id
            first, last = max(self._first, fragment.first_entry_id), min(self._last, after - 1)
            for position, bookie in enumerate(fragment.ensemble) if last >= first else ():
                scan = ReplicaScan(self._distribution, position, first, last, bookie, self._check)
                scan.batch = self._batch
                self._replicas.append(_Replica(first, last, position, bookie, scan, decided=closed or not is_last))
            total += max(0, last - first + 1) * self._distribution.write_quorum_size
        self._waiting = deque(self._replicas)
        self.entries_total = total

    def _open(self, replica: _Replica) -> None:
        """Begin with one replica. Where its bookie says nothing, or has listed what it has, no scan is needed."""
        bookie = self._bookies[replica.bookie]
        if not bookie.seen.registered:
            replica.scan.give_up(EntryState.UNASKED)
        elif bookie.unknown:
            replica.scan.give_up(EntryState.MISSING)
        elif bookie.listed is not None and not self._full:
            found = [self._listed_end(bookie.listed, replica, up) for up in (True, False)]
            replica.ends = dict.fromkeys(entry for entry in found if entry is not None)
            replica.to_read = deque(sorted(replica.ends))
            replica.listed = bookie.listed
        elif bookie.seen.silent is not None:
            replica.scan.give_up(EntryState.SILENT)

    def _listed_end(self, listed: EntryList, replica: _Replica, up: bool) -> int | None:
        """Return the first entry of the list that the replica holds, or the last."""
        for first, last in _pieces(replica.first, _end_of(listed, replica), up):
            held = Stripe(self._distribution, replica.position, first)
            states = held.masked(listed.states(first, last))
            index = states.find(EntryState.LISTED) if up else states.rfind(EntryState.LISTED)
            if index >= 0:
                return held.nth(index)
        return None

    def _take_list(self, replica: _Replica, listed: EntryList) -> None:
        """Make stretches of the list and of the copies that were read."""
        listed_last = _end_of(listed, replica)
        for first, last in _pieces(replica.first, listed_last, True):
            states = listed.states(first, last)
            for entry_id, state in replica.ends.items():
                if first <= entry_id <= last and state is not None:
                    states[entry_id - first] = state
            replica.scan.stretches.add_states(Stripe(self._distribution, replica.position, first), states)
        stripe = Stripe(self._distribution, replica.position, max(replica.first, listed_last + 1))
        if count := stripe.held(replica.last):
            replica.scan.stretches.add(stripe.nth(0), stripe.nth(count - 1), count, EntryState.MISSING)
        replica.listed = None
        replica.taken = True

    def _go_on(self, now_ns: int) -> list[Effect]:
        if not self._scanning:
            if any(bookie.waits for bookie in self._bookies.values()):
                return []
            self._begin()
        effects: list[Effect] = []
        while True:
            while len(self._active) < REPLICAS_AT_ONCE and self._waiting:
                replica = self._waiting.popleft()
                self._active.append(replica)
                self._open(replica)
            asked = list(self._asks(now_ns))
            effects += asked
            if not self._retire() or any(isinstance(effect, SetTimer) for effect in asked):
                break
        if not self._active and not self._waiting:
            self._finished = True
            effects.append(Complete(self._token, self._result()))
        return effects

    def _retire(self) -> bool:
        """Count replicas that are through; return True if there was one."""
        through = [replica for replica in self._active if replica.done]
        for replica in through:
            self._active.remove(replica)
            self._settled += sum(replica.scan.stretches.counts.values())
        return bool(through)

    def _asks(self, now_ns: int) -> Iterator[Effect]:
        """Yield as many questions as the budget allows."""
        for replica in self._active:
            if replica.listed is not None and not replica.to_read and not replica.busy:
                self._take_list(replica, replica.listed)
            if replica.scan.resting:
                continue
            if replica.listed is not None:
                while replica.to_read:
                    size = self._budget.entry_bytes
                    if not self._budget.admits(size):
                        break
                    entry_id = replica.to_read.popleft()
                    yield self._send(replica, entry_id, ReadRequest(0, self.ledger_id, entry_id), size)
                continue
            if replica.taken:
                continue
            for ask in replica.scan.asks():
                pause_ns = self._budget.pause_ns(now_ns)
                size = self._budget.entry_bytes if ask.single else self._budget.batch_bytes
                if pause_ns or not self._budget.admits(size):
                    replica.scan.take_back(ask)
                    if pause_ns:
                        yield SetTimer("pace", pause_ns)
                        return
                    break
                yield self._send(replica, ask, self._message(replica, ask, size), size)

    def _message(self, replica: _Replica, ask: Ask, size: int) -> Request:
        if ask.single:
            return ReadRequest(0, self.ledger_id, ask.first)
        if replica.scan.batch:
            return BatchReadRequest(0, self.ledger_id, ask.first, ask.count, size)
        return ReadRunRequest(0, self.ledger_id, ask.first, ask.count, ask.lane.step, size)

    def _send(self, replica: _Replica, ask: Ask | int, message: Request, size: int) -> Effect:
        self._requests += 1
        self._budget.reserve(size)
        replica.busy += 1
        self._reads[self._requests] = replica, ask, size
        return SendRead(self._requests, replica.bookie, message)

    # --- what is read ------------------------------------------------------------------------------------------------

    def _read(self, replica: _Replica, ask: Ask, event: ReadReply, now_ns: int) -> list[Effect]:
        scan = replica.scan
        if scan.done:
            return []  # it was given up
        status = event.status
        if status is Status.OK:
            size = scan.answered(ask, event.response)
            if size >= 0:
                self.bytes_read += size
                self._budget.note_read(size, now_ns)
                if ask.single:
                    self._budget.note_entry(size)
            elif ask.single:
                scan.denied(ask, EntryState.UNREADABLE)
            else:
                scan.apart(ask)
        elif status is Status.NO_LEDGER:
            scan.give_up(EntryState.MISSING)  # the bookie knows nothing of the ledger, so it need not say that of each entry
        elif status is Status.NO_ENTRY:
            scan.denied(ask, EntryState.MISSING)
        elif not ask.single and scan.batch and status in _BATCH_UNKNOWN:
            scan.batch = False
            scan.silent(ask)
        elif status in _SILENCE:
            scan.silent(ask)
            return self._rest(replica)
        elif ask.single:
            scan.denied(ask, EntryState.UNREADABLE)
        else:
            scan.apart(ask)
        return []

    def _rest(self, replica: _Replica) -> list[Effect]:
        """Ask again after a pause, or give the replica up. What else was in flight fails with it, and counts once."""
        scan = replica.scan
        if not scan.resting:
            scan.retries += 1
            if scan.retries > self._limits.replication_retries_max:
                scan.give_up(EntryState.SILENT)
                return []
            scan.resting = True
        return [SetTimer("again", self._limits.replication_retry_ns)]

    def _end_read(self, replica: _Replica, entry_id: int, event: ReadReply) -> list[Effect]:
        """Take the copy at an end of a list."""
        body = getattr(event.response, "body", None)
        if event.status is Status.OK and body is not None:
            self.bytes_read += len(body)
            self._budget.note_entry(len(body))
            replica.ends[entry_id] = self._check.state(body, entry_id)
        elif event.status in _DENIALS:
            replica.ends[entry_id] = EntryState.MISSING
        elif event.status in _SILENCE and replica.scan.retries < self._limits.replication_retries_max:
            replica.to_read.append(entry_id)
            replica.scan.retries += not replica.scan.resting
            replica.scan.resting = True
            return [SetTimer("again", self._limits.replication_retry_ns)]
        else:
            replica.ends[entry_id] = EntryState.SILENT if event.status in _SILENCE else EntryState.UNREADABLE
        return []

    def _result(self) -> XrayResult:
        bookies = tuple(bookie.seen for bookie in self._bookies.values())
        replicas = (ReplicaXray(one.first, one.last, one.position, one.bookie, one.decided, one.scan.stretches) for one in self._replicas)
        return XrayResult(self._first, self._last, self._lac, bookies, tuple(replicas))


def _end_of(listed: EntryList, replica: _Replica) -> int:
    """Return the last entry of a replica behind which its bookie lists nothing."""
    return min(replica.last, -1 if listed.last is None else listed.last)


def _pieces(first: int, last: int, up: bool) -> Iterator[tuple[int, int]]:
    """Yield a range in pieces that fit into memory, upwards or downwards."""
    starts = range(first, last + 1, LISTED_AT_ONCE)
    for start in starts if up else reversed(starts):
        yield start, min(last, start + LISTED_AT_ONCE - 1)
