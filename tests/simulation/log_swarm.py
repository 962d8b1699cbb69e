"""The second kind of run: leaders that take a log from one another, roll it and cut it, in the same storms."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from bk_core.protocol.ledger.recover.recovery import RecoveryState
from bk_core.protocol.ledger.write.writer import WriterState
from bk_core.protocol.log.leader import LeaderState
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.reader_order import OnTrimmed
from bk_core.protocol.log.trimming import TrimBounds
from tests.simulation.clients import Recoverer, Writer
from tests.simulation.cluster import Cluster
from tests.simulation.log_keepers import cleaning, retain, seal_some, trim
from tests.simulation.logs import LIST, Leader, LogTail, LogTruth
from tests.simulation.options import draw, election_lost
from tests.simulation.swarm import LedgerPlay
from tests.simulation.world import MS

HOUR_MS = 3_600_000


class LogPlay(LedgerPlay):
    """No bookie loses data here: what that does to a ledger is the other runs' business."""

    def __init__(self, seed: int, forced: dict[str, Any] | None = None, *, verbose: bool = False) -> None:
        options = draw(seed, {"gwq": False, **(forced or {})})
        self.options = replace(options, damage=0.0, wipes=0, recoverer_dies=0.0, replicators=0, limits=options.limits)
        self.cluster = Cluster(seed, replace(options.weather), options.bookies, options.limits, verbose=verbose)
        self.world = self.cluster.world
        self.log = LogTruth(self.cluster)
        self.log.election_lost = 0.0 if forced else election_lost(seed)
        self.ids = None
        self.leaders: list[Leader] = []
        self.calm = False
        self.recoverers, self.readers, self.replicators = [], [], []
        self._wipeable, self._damaged = [], []
        world = self.world
        for index in range(1 + int(world.random() * 3)):
            world.at(1 + index * int(options.storm_ms * MS * world.random() / 2), lambda i=index: self.lead(f"l{i}"))  # type: ignore[misc]
        choices = (OnTrimmed.JUMP, OnTrimmed.FAIL)
        self.tails = [LogTail(self.cluster, f"t{index}", self.log, choices[index % 2]) for index in range(int(world.random() * 3.5))]
        for tail in self.tails:
            tail.slow_ns = int(world.random() * 2) * options.storm_ms * MS
            world.at(int(options.storm_ms * MS * world.random() / 2), tail.start)
        for _ in range(int(world.random() * 3)):
            world.at(int(options.storm_ms * MS * world.random()), self._trim)
        self._janitor = Random(seed * 2 + 7)
        if self._janitor.random() < 0.4:
            world.at(MS, self._collect)
        if self._janitor.random() < 0.5:
            world.at(MS, self._seal)
        world.at(MS, self._weather)
        self._clocks = Random(f"clocks of {seed}")
        self.wrong_clocks = self._clocks.random() < 0.4
        if self.wrong_clocks:
            world.at(MS, self._retain)

    def _host(self, name: str) -> None:
        """JAN-1: half of the hosts are hours off."""
        if self.wrong_clocks and self._clocks.random() < 0.5:
            self.log.hosts_ms[name] = int((self._clocks.random() * 14 - 7) * HOUR_MS)

    def _retain(self) -> None:
        """Janitors that keep what is young, in front of a store whose clock is another server's now and then."""
        if self.calm:
            return
        chance = self._clocks.random
        if chance() < 0.3:
            self.cluster.store.ahead_ms = int(chance() * 80)
        name = f"old{len(self.cluster.clients)}"
        self._host(name)
        retain(self.cluster, name, self.log, int(chance() * 200))
        self.world.at(int(60 * MS * chance()) + 1, self._retain)

    def lead(self, name: str) -> Leader:
        self._host(name)
        leader = Leader(self.cluster, name, self.log, self.options.quorums)
        self.leaders.append(leader)
        leader.open()
        self._go_on(leader)
        return leader

    def _go_on(self, leader: Leader) -> None:
        """Append and roll, now and then, until it leads no more."""
        if self.calm or not leader.alive or leader.state in (LeaderState.ABDICATED, LeaderState.FAILED, LeaderState.CLOSED):
            return
        chance, world = self.world.random(), self.world
        if chance < 0.75:
            leader.soon(lambda: leader.append(1 + int(world.random() * 3)))
        elif chance < 0.9:
            leader.soon(leader.roll)
        elif chance < 0.93:
            world.stats["leaders killed"] += 1
            leader.kill()
        world.at(int(self.options.append_every_ms * MS * 2 * world.random()), lambda: self._go_on(leader))

    def _trim(self) -> None:
        value, random = self.cluster.store.items[LIST][0], self.world.random
        kept = random()
        if kept < 0.6:
            span = value.next_seq - value.trimmed_seq
            bounds = TrimBounds(before=Position(value.trimmed_seq + int(random() * (span + 1))))
        elif kept < 0.8:
            bounds = TrimBounds(before_ms=int(self.world.now // MS * random()))
        else:
            bounds = TrimBounds(max_bytes=int((value.total_bytes - value.trimmed_bytes) * random()))
        trim(self.cluster, f"cut{len(self.cluster.clients)}", self.log, bounds, self._trimmed)

    def _collect(self) -> None:
        """A janitor that takes ledgers for abandoned as soon as they are made."""
        if not self.calm:
            orphans = [one for one in self.log.owner if one not in self.log.ever and not self.cluster.truths[one].deleted]
            if self._janitor.random() < 0.3 and orphans:
                cleaning(self.cluster, f"gc{len(self.cluster.clients)}", self.log, orphans[-1:], lambda value: None)
            self.world.at(int(2 * MS * self._janitor.random()) + 1, self._collect)

    def _seal(self) -> None:
        if not self.calm:
            seal_some(self.cluster, "sealer", self.log)
            self.world.at(int(60 * MS * self._janitor.random()) + 1, self._seal)

    def _trimmed(self, value: Any) -> None:
        if not isinstance(value, Exception) and value:
            self.world.stats["ledgers trimmed"] += len(value)

    def play(self) -> None:
        step, world = self.cluster.step, self.world
        while not self.calm and step():
            pass
        self._heal()
        self.log.election_lost = 0.0
        for tail in self.tails:
            tail.slow_ns, tail.restless = 0, False
        self._run_until(lambda: not any(one.alive and one.state is LeaderState.TAKING_OVER for one in self.leaders))
        last = self.lead("last")
        last.append(2)
        self._run_until(lambda: ("append", 1) in last.results)
        self._expect(not isinstance(last.results.get(("append", 1), ValueError()), Exception), "L-8", f"{last.name} is {last.state.name}")
        self._wake_the_deposed(last)
        last.close()
        self._run_until(lambda: "close" in last.results)
        self._expect(not isinstance(last.results.get("close", ValueError()), Exception), "L-5", f"closing: {last.results.get('close')}")
        self._linger()
        for tail in self.tails:
            ledger_id, end = self._last_entry()
            behind = tail.alive and ledger_id is not None and (tail.ledger_id, tail.position) != (ledger_id, end + 1)
            self._expect(not behind, "L-6", f"{tail.name} is at {tail.ledger_id}/{tail.position}, the log ends at {ledger_id}/{end}")
        self._check_end()
        stats = world.stats
        stats["leaders"] += len(self.leaders)
        stats["leaders that served"] += len(self.log.serving)
        stats["ledgers listed"] += len(self.log.ever)
        stats["ledgers orphaned"] += sum(1 for i in self.cluster.truths if i not in self.log.ever)
        if len(self.log.serving) > 2:
            world.probes["three leaders served a log"] += 1
        if any(len(a) < len(b) for b, a in zip(self.log.history, self.log.history[1:], strict=False)):
            world.probes["a log was trimmed"] += 1

    def _last_entry(self) -> tuple[int | None, int]:
        """The last ledger that has entries, and its last one."""
        for ledger_id in reversed(self.log.ledgers):
            end = self.cluster.truths[ledger_id].metadata.last_entry_id
            if end >= 0:
                return ledger_id, end
        return None, -1

    def _wake_the_deposed(self, last: Leader) -> None:
        """A leader notices that it was taken over when it writes."""
        deposed = [one for one in self.leaders if one is not last and one.alive and one.state is LeaderState.SERVING]
        for leader in deposed:
            leader.append(1)
        self._run_until(lambda: all(("append", one.appends) in one.results for one in deposed))

    def _check_end(self) -> None:
        for leader in self.leaders:
            if leader.alive:
                waiting = [n for n in range(1, leader.appends + 1) if ("append", n) not in leader.results]
                stopped = leader.state in (LeaderState.ABDICATED, LeaderState.FAILED, LeaderState.CLOSED)
                self._expect(not (stopped and waiting), "L-1", f"{leader.name} never answered appends {waiting}")
                self._expect(stopped, "L-8", f"{leader.name} is still {leader.state.name}")
                gave_up = leader.state is LeaderState.ABDICATED
                self._expect(gave_up or not leader.lost_election, "L-8", f"{leader.name} lost the election and is {leader.state.name}")
        for ledger_id in self.log.ledgers:
            self._expect(self.log.closed(ledger_id), "L-4", f"listed ledger {ledger_id} is not closed")
        for client in self.cluster.clients:
            self._expect(not client.leaks, "L-11", f"{client.name} still acts after its end: {client.leaks[:1]}")
            if isinstance(client, Writer) and client.alive and client.machine.state is not WriterState.OPEN:
                self._expect(len(client.adds.done) == len(client.adds.pushed), "L-1", f"{client.name} did not complete all appends")
            if isinstance(client, Recoverer) and client.alive:
                ended = client.machine.state in (RecoveryState.DONE, RecoveryState.ABORTED)
                self._expect(ended, "L-8", f"{client.name} never ends")

    def _expect(self, good: bool, rule: str, detail: str) -> None:
        self.cluster.checker.evaluated[rule] += 1
        if not good:
            self.cluster.checker.fail(rule, detail)
