"""Checks one fragment for replicas of entries that are missing or bad (RR-4).

Theory of operation. Every position of the fragment is a replica of its own stripe. In quick mode the first and the last entry of each
stripe are read, in full mode every entry, always from that one bookie and never with the fence flag. Without striping, a batch read asks
for many entries at once; with striping, or where the bookie has no batch read, single reads are pipelined. An answer is good (digest and
ids match), a definite denial (missing), a bad copy (corrupt), an error of that entry (unreadable), or silence. A bookie that stays silent,
or that does not admit this client (RR-19), is reported as such and not asked again. Nothing is written anywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bk_core.errors import InvalidArgumentError
from bk_core.protocol.effects import Complete, Effect, Log, SendRead, SetTimer
from bk_core.protocol.entry import digests
from bk_core.protocol.events import Event, ReadReply, TimerFired
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata
from bk_core.protocol.ledger.replication.bodies import Body, bodies_of
from bk_core.protocol.ledger.replication.budget import ByteBudget
from bk_core.protocol.ledger.replication.fragments import EntryRanges, FragmentSpan, distribution_of, is_eligible, stored_bounds, stripe
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import BatchReadRequest, ReadRequest, Status

ASKS_PER_REPLICA_MAX = 32
DENIALS = frozenset({Status.NO_ENTRY, Status.NO_LEDGER})
BATCH_UNKNOWN = frozenset({Status.BAD_REQUEST, Status.PROTOCOL_ERROR})  # an old bookie hangs up (wire-protocol.md 8.5, LINK-7)
REFUSALS = frozenset({Status.UNAUTHORIZED, Status.NOT_ADMITTED})  # no plain read shows a password, so it is this client that is refused
SILENCE = frozenset({Status.TIMEOUT, Status.UNAVAILABLE, Status.PROTOCOL_ERROR, Status.TOO_MANY_REQUESTS, Status.NOT_ADMITTED})


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """The finding about one position of a fragment, which holds its part of the stripe ``first_stored..last_stored`` (None: the stripe is
    empty)."""

    position: int
    bookie: BookieId
    registered: bool
    first_stored: int | None = None
    last_stored: int | None = None
    checked: int = 0
    missing: EntryRanges = EntryRanges()
    corrupt: EntryRanges = EntryRanges()
    unreadable: EntryRanges = EntryRanges()
    silent: Status | None = None

    @property
    def damaged(self) -> EntryRanges:
        """The ids of which the bookie has no good copy."""
        return self.missing | self.corrupt

    @property
    def is_good(self) -> bool:
        """True if the position needs no repair. A position without any entry is bad only if its bookie is gone (RR-4)."""
        return self.registered and self.silent is None and not (self.missing or self.corrupt or self.unreadable)

    @property
    def is_refused(self) -> bool:
        """True if the bookie does not admit this client, so that nothing is known of the copies there (RR-19)."""
        return self.silent is Status.NOT_ADMITTED


@dataclass(frozen=True, slots=True)
class FragmentReport:
    span: FragmentSpan
    replicas: tuple[ReplicaReport, ...]

    @property
    def is_good(self) -> bool:
        return all(replica.is_good for replica in self.replicas)


@dataclass(slots=True)
class _Replica:
    """The state of one replica. ``todo`` are ranges not asked yet: (first, last, one by one)."""

    position: int
    bookie: BookieId
    bounds: tuple[int, int] | None
    registered: bool
    batch: bool
    todo: deque[tuple[int, int, bool]] = field(default_factory=deque)
    asked: int = 0
    resting: bool = False
    retries: int = 0
    checked: int = 0
    missing: list[int] = field(default_factory=list)
    missing_ranges: EntryRanges = EntryRanges()
    corrupt: list[int] = field(default_factory=list)
    unreadable: list[int] = field(default_factory=list)
    silent: Status | None = None

    @property
    def done(self) -> bool:
        return not self.todo and not self.asked


@dataclass(frozen=True, slots=True)
class _Ask:
    replica: _Replica
    first: int
    last: int
    single: bool
    reserved: int


class FragmentCheck:
    """Machine: completes ``token`` with a FragmentReport. It never fails, because "not known" is a finding too.

    ``registered`` are the bookies that are up according to the registry; the others are reported without being asked. With ``positions``
    None all are checked. ``budget`` may be shared with other checks: the owner then calls ``resume`` if this one is ``starved`` and bytes
    were released. Bookies in ``silent`` are not asked, because they were silent a moment ago. Requests are numbered from ``first_request``
    + 1. Raises InvalidArgumentError for a fragment that is not decided (RR-2).
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        span: FragmentSpan,
        token: Any,
        *,
        registered: Collection[BookieId],
        full: bool = False,
        batch: bool = True,
        positions: Iterable[int] | None = None,
        bytes_per_second: int | None = None,
        limits: Limits | None = None,
        budget: ByteBudget | None = None,
        silent: Mapping[BookieId, Status] | None = None,
        first_request: int = 0,
    ) -> None:
        if not is_eligible(metadata, span.first_entry_id):
            raise InvalidArgumentError(f"fragment {span.first_entry_id} of ledger {ledger_id} is not decided")
        self.ledger_id = ledger_id
        self.span = span
        self.entries_checked = 0
        self.bytes_read = 0
        self._token = token
        self._limits = limits or Limits()
        self._digest_type = metadata.digest_type
        self._hmac_key = digests.hmac_key(metadata.password)
        self._distribution = distribution_of(metadata)
        self._full = full
        self.starved = False
        self._budget = budget or ByteBudget(self._limits.replication_bytes_in_flight, bytes_per_second, self._limits.read_batch_bytes)
        chosen = range(metadata.ensemble_size) if positions is None else sorted(set(positions))
        may_batch = batch and full and not self._distribution.striped
        self._replicas = [self._replica(position, span.ensemble[position] in registered, may_batch) for position in chosen]
        for replica in self._replicas:
            if silent and replica.todo and replica.bookie in silent:
                replica.silent = silent[replica.bookie]
                replica.todo.clear()
        self._asked: dict[int, _Ask] = {}
        self._requests = first_request
        self._finished = False

    def _replica(self, position: int, registered: bool, batch: bool) -> _Replica:
        bounds = stored_bounds(self._distribution, position, self.span.first_entry_id, self.span.last_entry_id)
        replica = _Replica(position, self.span.ensemble[position], bounds, registered, batch)
        if bounds is not None and registered:
            first, last = bounds
            wanted = [(first, last, not batch)] if self._full else [(entry_id, entry_id, True) for entry_id in sorted({first, last})]
            replica.todo.extend(wanted)
        return replica

    def start(self, now_ns: int = 0) -> list[Effect]:
        return self._go_on(now_ns)

    def resume(self, now_ns: int) -> list[Effect]:
        """Go on after bytes of the shared budget were released."""
        return [] if self._finished else self._go_on(now_ns)

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        if self._finished:
            return []
        match event:
            case ReadReply():
                return self._answered(event, now_ns)
            case TimerFired("again"):
                for replica in self._replicas:
                    replica.resting = False
                return self._go_on(now_ns)
            case TimerFired("pace"):
                return self._go_on(now_ns)
            case _:
                return []

    # --- asking ------------------------------------------------------------------------------------------------------

    def _go_on(self, now_ns: int) -> list[Effect]:
        """Ask as much as the budget allows, replica by replica in turn; report when nothing is left."""
        effects: list[Effect] = []
        self.starved = False
        waiting = [replica for replica in self._replicas if replica.todo and not replica.resting]
        while waiting:
            pause_ns = self._budget.pause_ns(now_ns)
            if pause_ns:
                effects.append(SetTimer("pace", pause_ns))
                break
            asked = [effect for replica in waiting if (effect := self._ask(replica)) is not None]
            if not asked:
                break
            effects += asked
            waiting = [replica for replica in waiting if replica.todo]
        if all(replica.done for replica in self._replicas):
            self._finished = True
            effects.append(Complete(self._token, self.report()))
        return effects

    def _ask(self, replica: _Replica) -> Effect | None:
        """Return the next read of one replica, never with the fence flag; None if it has to wait."""
        first, last, single = replica.todo[0]
        single = single or not replica.batch
        size = self._budget.entry_bytes if single else self._budget.batch_bytes
        if replica.asked >= ASKS_PER_REPLICA_MAX:
            return None
        if not self._budget.admits(size):
            self.starved = True
            return None
        replica.todo.popleft()
        end = first if single else min(last, first + self._limits.read_chunk_entries - 1)
        following = next(stripe(self._distribution, replica.position, end + 1, last), None)
        if following is not None:
            replica.todo.appendleft((following, last, single))
        self._requests += 1
        self._budget.reserve(size)
        replica.asked += 1
        self._asked[self._requests] = _Ask(replica, first, end, single, size)
        if single:
            return SendRead(self._requests, replica.bookie, ReadRequest(self._requests, self.ledger_id, first))
        count = end - first + 1
        return SendRead(self._requests, replica.bookie, BatchReadRequest(self._requests, self.ledger_id, first, count, size))

    # --- answers -----------------------------------------------------------------------------------------------------

    def _answered(self, event: ReadReply, now_ns: int) -> list[Effect]:
        ask = self._asked.pop(event.request, None)
        if ask is None:
            return []
        ask.replica.asked -= 1
        self._budget.release(ask.reserved)
        effects: list[Effect] = []
        if ask.replica.silent is not None:
            pass  # this replica is settled
        elif event.status is Status.OK:
            bodies = bodies_of(event.response, self.ledger_id, ask.first, ask.last, self._digest_type, self._hmac_key)
            self._judge(ask, bodies, now_ns)
        elif event.status in DENIALS:
            self._denied(ask, event.status)
        elif not ask.single and event.status in BATCH_UNKNOWN:
            ask.replica.batch = False
            ask.replica.todo.appendleft((ask.first, ask.last, True))
        elif event.status in REFUSALS:
            self._settle(ask.replica, Status.NOT_ADMITTED)  # asking again changes nothing
        elif event.status in SILENCE:
            effects += self._silent(ask, event.status)
        else:
            self._broken(ask)
        return effects + self._go_on(now_ns)

    def _judge(self, ask: _Ask, bodies: list[Body], now_ns: int) -> None:
        replica = ask.replica
        if not bodies:
            self._broken(ask)
            return
        replica.retries = 0
        for body in bodies:
            self._count(replica)
            self._budget.note_entry(len(body.data))
            self.bytes_read += len(body.data)
            if body.problem is not None:
                replica.corrupt.append(body.entry_id)
        self._budget.note_read(sum(len(body.data) for body in bodies), now_ns)
        if bodies[-1].entry_id < ask.last:  # a batch stops where it is full or where an entry is missing
            replica.todo.appendleft((bodies[-1].entry_id + 1, ask.last, ask.single))

    def _denied(self, ask: _Ask, status: Status) -> None:
        replica = ask.replica
        replica.retries = 0
        if status is Status.NO_LEDGER and replica.bounds is not None and self._full:
            # the bookie knows nothing of the ledger, so it need not say that for each entry
            replica.missing_ranges = EntryRanges((replica.bounds,))
            replica.todo.clear()
            return
        replica.missing.append(ask.first)
        self._count(replica)
        if ask.first < ask.last:
            # others may be missing too, so single reads are pipelined instead of one round trip each
            replica.todo.appendleft((ask.first + 1, ask.last, True))

    def _silent(self, ask: _Ask, status: Status) -> list[Effect]:
        replica = ask.replica
        if not replica.resting and replica.retries >= self._limits.replication_retries_max:
            self._settle(replica, status)
            return [Log("warning", f"ledger {self.ledger_id}: bookie {replica.bookie} gives no answer ({status.name.lower()})")]
        if not replica.resting:  # everything else in flight fails with it and counts once
            replica.retries += 1
            replica.resting = True
        replica.todo.appendleft((ask.first, ask.last, ask.single))
        return [SetTimer("again", self._limits.replication_retry_ns)]

    def _settle(self, replica: _Replica, status: Status) -> None:
        """Ask no more of a bookie that says nothing about its copies."""
        replica.silent = status
        replica.todo.clear()

    def _broken(self, ask: _Ask) -> None:
        """Note that the bookie answers but not with this entry (IO error, limbo, refused). The next reads are single ones, to tell entries
        apart."""
        if not ask.single:
            ask.replica.todo.appendleft((ask.first, ask.last, True))
            return
        ask.replica.unreadable.append(ask.first)
        self._count(ask.replica)

    def _count(self, replica: _Replica) -> None:
        replica.checked += 1
        self.entries_checked += 1

    # --- the report --------------------------------------------------------------------------------------------------

    def report(self) -> FragmentReport:
        """The result so far; it is complete once the machine has completed."""
        return FragmentReport(self.span, tuple(self._reports()))

    def _reports(self) -> Iterator[ReplicaReport]:
        for replica in self._replicas:
            first, last = replica.bounds if replica.bounds is not None else (None, None)

            def ranges(ids: list[int], position: int = replica.position) -> EntryRanges:
                return EntryRanges.over_stripe(self._distribution, position, ids)

            yield ReplicaReport(
                replica.position,
                replica.bookie,
                replica.registered,
                first,
                last,
                replica.checked,
                replica.missing_ranges or ranges(replica.missing),
                ranges(replica.corrupt),
                ranges(replica.unreadable),
                replica.silent,
            )
