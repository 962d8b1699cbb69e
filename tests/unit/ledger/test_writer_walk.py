"""A writer alone against random weather: what must hold after every step, and that it gets everywhere once the weather is fine.

Bookies are sets of entries, the metadata store is a list of versions with answers that may be lost while the write applies now, later or
never. Quorums, modes and faults are drawn from the seed. The recoverers and readers of the full simulator are not here; this walk is fast
enough to run in the unit tests and reaches the corners of the ensemble change.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass, replace

import pytest

from bk_core.protocol.effects import Complete, Effect, Fail, LookForBookies, ReadLedger, SendAdds, WriteLedger
from bk_core.protocol.events import AddReply, BookieLost, BookiesChanged, BookiesLookedFor, LedgerRead, LedgerWritten, Outcome, TimerFired
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from bk_core.protocol.ledger.write.writer import ChangeWindow, EnsembleChangeMode, LedgerWriter, WriterOptions, WriterState
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import Status

SHAPES = ((3, 3, 2), (3, 2, 2), (4, 2, 2), (5, 3, 2), (4, 3, 2), (3, 3, 1), (3, 2, 1))
MODES = tuple(EnsembleChangeMode)
FAILURES = (Status.TIMEOUT, Status.IO_ERROR, Status.READ_ONLY, Status.TOO_MANY_REQUESTS, Status.UNAVAILABLE)
MS = 1_000_000


@dataclass(frozen=True)
class Add:
    bookie: str
    entry: int


class Walk:
    def __init__(self, seed: int, guaranteed: bool) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        shape = self.rng.choice(SHAPES)
        self.bookies = [f"b{i}" for i in range(shape[0] + self.rng.randrange(4))]
        self.dead: set[str] = set()
        self.holds: dict[str, set[int]] = {b: set() for b in self.bookies}
        custom = {"gwq": b"1"} if guaranteed else {}
        first = LedgerMetadata(*shape, LedgerState.OPEN, (Fragment(0, tuple(self.bookies[: shape[0]])),), custom=custom)
        self.history = [first]
        self.options = WriterOptions(
            ensemble_change=self.rng.choice(MODES[:2]) if guaranteed else self.rng.choice(MODES),
            window=self.rng.choice((None, *ChangeWindow)),
            busy_resends_max=self.rng.choice((0, 2)),
        )
        limits = Limits(add_timeout_ns=50 * MS, add_retry_ns=5 * MS, add_retry_ns_max=20 * MS, pinned_retries_max=self.rng.randrange(3))
        placement = RandomPlacement(lambda: [b for b in self.bookies if b not in self.dead or not self.known_dead], self.rng.random)
        self.known_dead = self.rng.random() < 0.5
        self.writer = LedgerWriter(7, first, 0, placement, limits, options=self.options)
        self.now = 0
        self.adds: list[Add] = []
        self.stores: list[tuple[LedgerMetadata, int]] = []  # writes whose answer was lost and that may still apply
        self.store_requests: list[Effect] = []
        self.acked = -1
        self.failed = False
        self.calm = False

    # --- effects ---------------------------------------------------------------------------------------------------

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case SendAdds(bookie, position, run, start):
                    size, write, _ = self.shape
                    self.adds += [Add(bookie, run.first_entry_id + i) for i in run.indices(position, start, size, write)]
                case WriteLedger() | ReadLedger() | LookForBookies():
                    self.store_requests.append(effect)
                case Complete("close"):
                    pass
                case Complete(_, last):
                    assert not self.failed and last > self.acked
                    self.acked = last
                case Fail():
                    self.failed = True
        self.check()

    @property
    def shape(self) -> tuple[int, int, int]:
        first = self.history[0]
        return first.ensemble_size, first.write_quorum_size, first.ack_quorum_size

    def holders(self, metadata: LedgerMetadata, entry: int) -> list[str]:
        ensemble = metadata.fragment_of(entry).ensemble
        size, write, _ = self.shape
        return [b for k in range(write) if entry in self.holds[b := ensemble[(entry + k) % size]]]

    # --- invariants ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """I-3 and I-10 (EC-8, EC-10, META-12), G-15 (I-G1..I-G3, G-1..G-9): in every version that is or could become current."""
        current = self.history[-1]
        possible = [current] + [m for m, version in self.stores if version == len(self.history) - 1]
        possible += [e.metadata for e in self.store_requests if isinstance(e, WriteLedger) and e.version == len(self.history) - 1]
        _, write, quorum = self.shape
        for metadata in possible:
            for entry in range(self.writer.last_add_confirmed + 1):
                assert len(self.holders(metadata, entry)) >= quorum, f"seed {self.seed}: entry {entry} in {metadata.fragments}"
        assert max(self.acked, self.writer.last_add_fully_replicated) <= self.writer.last_add_confirmed
        if current.guaranteed:
            done = max(self.writer.last_add_fully_replicated, current.last_fragment.first_entry_id - 1)
            if current.sealed:
                done = current.last_entry_id
            for metadata in possible:
                for entry in range(done + 1):
                    assert len(self.holders(metadata, entry)) == write, f"seed {self.seed}: entry {entry} not on all"

    # --- steps -----------------------------------------------------------------------------------------------------

    def step(self) -> None:
        choices = [self.deliver] * 8 + [self.answer_store] * 3 + [self.tick] * 2 + [self.late_store]
        if not self.calm:
            choices += [self.append] * 2 + [self.refuse, self.lose, self.kill, self.revive]
        self.now += int(self.rng.random() * 3 * MS)
        self.rng.choice(choices)()

    def append(self) -> None:
        if self.writer.state is WriterState.OPEN and self.writer.last_add_pushed < 25:
            count = self.rng.randrange(1, 4)
            offsets = array("q", range(count + 1))
            self.perform(self.writer.append(b"x" * count, offsets, "t", self.now))

    def take(self) -> Add | None:
        return self.adds.pop(self.rng.randrange(len(self.adds))) if self.adds else None

    def deliver(self) -> None:
        add = self.take()
        if add is None or (add.bookie in self.dead):
            return
        self.holds[add.bookie].add(add.entry)
        if self.calm or self.rng.random() < 0.9:
            self.perform(self.writer.handle(AddReply(add.bookie, add.entry, 1, Status.OK), self.now))

    def refuse(self) -> None:
        add = self.take()
        if add is not None:
            if self.rng.random() < 0.5:
                self.holds[add.bookie].add(add.entry)
            status = FAILURES[self.rng.randrange(len(FAILURES))]
            self.perform(self.writer.handle(AddReply(add.bookie, add.entry, 1, status), self.now))

    def lose(self) -> None:
        self.drop(self.rng.choice(self.bookies))

    def drop(self, bookie: str) -> None:
        self.adds = [a for a in self.adds if a.bookie != bookie]
        self.perform(self.writer.handle(BookieLost(bookie), self.now))

    def kill(self) -> None:
        if len(self.dead) < 2 and self.rng.random() < 0.2:
            bookie = self.rng.choice(self.bookies)
            self.dead.add(bookie)
            self.drop(bookie)

    def revive(self) -> None:
        if self.dead and self.rng.random() < 0.3:
            self.dead.discard(sorted(self.dead)[0])
            self.perform(self.writer.handle(BookiesChanged(), self.now))

    def tick(self) -> None:
        self.now += 10 * MS
        for key in ("tick", "metadata", "explicit-lac"):
            self.perform(self.writer.handle(TimerFired(key), self.now))
        for bookie in sorted(self.dead):
            if any(a.bookie == bookie for a in self.adds):
                self.drop(bookie)

    # --- the store -------------------------------------------------------------------------------------------------

    def answer_store(self) -> None:
        if not self.store_requests:
            return
        effect = self.store_requests.pop(self.rng.randrange(len(self.store_requests)))
        if isinstance(effect, ReadLedger):
            outcome = Outcome.OK if self.calm or self.rng.random() < 0.8 else Outcome.UNKNOWN
            known = max(0, len(self.history) - 1 - (0 if self.calm else self.rng.randrange(2)))
            self.perform(self.writer.handle(LedgerRead(effect.request, outcome, self.history[known], known), self.now))
            return
        if isinstance(effect, LookForBookies):
            self.perform(self.writer.handle(BookiesLookedFor(effect.request, self.rng.choice((Outcome.OK, Outcome.UNKNOWN))), self.now))
            return
        assert isinstance(effect, WriteLedger)
        if not self.calm and self.rng.random() < 0.3:
            self.stores.append((effect.metadata, effect.version))
            self.perform(self.writer.handle(LedgerWritten(effect.request, Outcome.UNKNOWN), self.now))
            return
        good = self.apply(effect.metadata, effect.version)
        outcome = Outcome.OK if good else Outcome.CONFLICT
        self.perform(self.writer.handle(LedgerWritten(effect.request, outcome, len(self.history) - 1), self.now))

    def apply(self, metadata: LedgerMetadata, version: int) -> bool:
        if version != len(self.history) - 1:
            return False
        metadata.check()
        self.history.append(metadata)
        return True

    def late_store(self) -> None:
        if self.stores and self.rng.random() < 0.5:
            self.apply(*self.stores.pop(self.rng.randrange(len(self.stores))))
            self.check()
        elif not self.calm and self.rng.random() < 0.1:  # a foreign tool touches the metadata
            self.history.append(replace(self.history[-1]))

    # --- a whole walk ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        for _ in range(self.rng.randrange(20, 300)):
            self.step()
        self.calm = True
        self.dead.clear()
        self.perform(self.writer.handle(BookiesChanged(), self.now))
        if self.rng.random() < 0.3:  # in the middle of everything
            self.perform(self.writer.close("close", self.now, forced=self.rng.random() < 0.5))
        self.settle()
        if self.writer.state is WriterState.OPEN:
            assert self.writer.idle, f"seed {self.seed}: {self.acked} {self.writer.last_add_pushed} {self.writer.last_add_fully_replicated}"
        self.perform(self.writer.close("close", self.now))
        self.settle()
        self.check()
        assert self.writer.state in (WriterState.CLOSED, WriterState.FAILED), f"seed {self.seed}: {self.writer.state}"
        if self.writer.state is WriterState.CLOSED:
            closed = self.history[-1]
            assert (closed.last_entry_id, closed.length) == (self.writer.last_add_confirmed, self.writer.last_add_confirmed + 1)
            assert closed.sealed is closed.guaranteed

    def settle(self) -> None:
        for _ in range(1000):
            for _ in range(len(self.adds)):
                self.deliver()
            busy = bool(self.adds or self.store_requests or self.stores)
            if not busy and self.writer.idle and self.writer.state is not WriterState.CLOSING:
                return
            self.step()


@pytest.mark.parametrize("guaranteed", [False, True])
def test_random_weather(guaranteed: bool) -> None:
    """EC-8..EC-15, WR-8, META-12..META-14; with the mark G-1..G-11. L-2, L-3, L-5 once it is calm."""
    for seed in range(50):
        Walk(seed, guaranteed).run()
