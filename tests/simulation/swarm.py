"""One seed, one run: a storm in which only safety counts, then calm in which everything must come to its end (papers.md 9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bk_core.protocol.bookie import machine as bookie_machine
from bk_core.protocol.entry import layout
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.ledger.recover.recovery import RecoveryState
from bk_core.protocol.ledger.write.writer import WriterState
from bk_core.protocol.wire.messages import AddRequest
from tests.simulation.bookies import Call
from tests.simulation.callers import CallerIds
from tests.simulation.clients import Client, Recoverer, Writer
from tests.simulation.cluster import Cluster
from tests.simulation.liveness import check_end, check_writer_alone
from tests.simulation.options import SwarmOptions, draw
from tests.simulation.readers import Reader
from tests.simulation.replicator import Replicator
from tests.simulation.truth import Truth
from tests.simulation.world import MS, STORE, Weather

LINGER_MS = 800  # the slowest message of the storm has arrived by then


class LedgerPlay:
    """``play`` raises InvariantViolated, or returns and leaves counts in ``world.stats`` and ``world.probes``."""

    def __init__(self, seed: int, forced: dict[str, Any] | None = None, *, verbose: bool = False) -> None:
        self.options: SwarmOptions = draw(seed, forced)
        options = self.options
        self.cluster = Cluster(seed, replace(options.weather), options.bookies, options.limits, verbose=verbose)
        self.world = self.cluster.world
        marks = {"gwq": b"1"} if options.gwq and options.quorums[1] > options.quorums[2] else {}
        if options.domains:
            self.cluster.use_domains(options.domains, options.quorums[1])
        self.truth: Truth = self.cluster.create_ledger(options.quorums, custom=marks, exact=not options.writer.deferred_sync)
        self.truth.ordered = not options.writer.caller_ids
        self.truth.domains_min = options.writer.fault_domains_min
        self.ids = CallerIds(self.world.random) if options.writer.caller_ids else None
        self.writer: Writer = self.cluster.writer("w", self.truth, options=options.writer)
        self.recoverers: list[Recoverer] = []
        self.readers: list[Reader] = []
        self.replicators: list[Replicator] = []
        self.calm = False
        self.recovered = 0
        self._left = options.entries
        self._wipeable = list(self.cluster.bookies)
        self.world.rng.shuffle(self._wipeable)
        self._wipeable = self._wipeable[: options.wipes]
        self._damaged: list[str] = [*self._wipeable]
        self._schedule()

    # --- the storm -------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        options, world = self.options, self.world
        world.at(1, self._append)
        if options.writer.deferred_sync:
            world.at(1, self._force)
        for index in range(options.recoverers):
            world.at(options.recover_at_ms * MS + index * world.delay(), lambda i=index: self.recover(f"r{i}"))  # type: ignore[misc]
        for index in range(options.readers):
            polls = options.tailing and world.random() < 0.3
            name = f"t{index}"
            reader = self.cluster.poller(name, self.truth) if polls else self.cluster.reader(name, self.truth, tailing=options.tailing)
            self.readers.append(reader)
            world.at(int(world.random() * 50 * MS), self.readers[-1].start)
        for index in range(options.late_readers):
            late = self.cluster.reader(f"late{index}", self.truth, tailing=False)
            self.readers.append(late)
            world.at(int(options.storm_ms * MS * (0.6 + 0.4 * world.random())), late.start)
        for index in range(options.replicators):
            self.replicators.append(self.cluster.replicator(f"rr{index}", self.truth, move=0.2))
            world.at(int(world.random() * 100 * MS), self.replicators[-1].start)
        if options.writer_dies_ms:
            world.at(options.writer_dies_ms * MS, self._writer_dies)
        if options.close_at_ms:
            world.at(options.close_at_ms * MS, lambda: self.writer.soon(self.close))
        world.at(MS, self._weather)

    def _writer_dies(self) -> None:
        if not self.calm:
            self.world.stats["writers killed"] += 1
            self.writer.kill()

    def close(self) -> None:
        if self.writer.alive and not self.writer.closing:
            self.writer.close()

    def _append(self) -> None:
        writer, world = self.writer, self.world
        if not writer.alive or writer.machine.state is not WriterState.OPEN:
            return
        if not self._more:
            if self.ids is not None and not self.calm:  # what waits for a paused client may leave gaps yet
                world.at(5 * MS, self._append)
            return
        count = min(1 + int(world.random() * self.options.entries_at_once), self._left)
        self._left -= count
        writer.soon(lambda: self._append_now(count))
        world.at(int(self.options.append_every_ms * MS * 2 * world.random()), self._append)

    @property
    def _more(self) -> bool:
        """Something is left to append: entries, or gaps between them."""
        return self._left > 0 or (self.ids is not None and bool(self.ids.gaps))

    def _append_now(self, count: int) -> None:
        if self.writer.machine.state is not WriterState.OPEN:
            return
        if self.ids is None:
            self.writer.append(count)
        elif self.ids.gaps or count:
            self._append_chosen(self.ids, count)

    def _append_chosen(self, ids: CallerIds, count: int) -> None:
        writer = self.writer
        first, count = ids.choose(count)
        if first < writer.machine.last_add_pushed and not self._more:
            self.world.probes["the last entry to come filled a gap"] += 1
        writer.append(count, first_entry_id=first)
        again = ids.again()
        if again is not None and writer.machine.state is WriterState.OPEN:
            writer.append(first_entry_id=again, word=" again")

    def _force(self) -> None:
        """WR-17: an application forces now and then, until the end."""
        writer, world = self.writer, self.world
        if writer.alive and writer.machine.state is WriterState.OPEN:
            writer.soon(writer.force)
            world.at(int(self.options.force_every_ms * MS * 2 * world.random()), self._force)

    def recover(self, name: str, attempt: int = 0) -> None:
        if self.calm and attempt == 0 and self.truth.closed and self.recoverers:
            return
        recovery = replace(self.options.recovery)
        client = self.cluster.recoverer(
            f"{name}.{attempt}" if attempt else name, self.truth, plain=self.options.plain_recovery, options=recovery
        )
        self.recoverers.append(client)
        client.on_end = lambda: self._recovered(client, name, attempt)
        client.start()

    def _recovered(self, client: Recoverer, name: str, attempt: int) -> None:
        if isinstance(client.result, Exception):
            pause = int((20 + 60 * self.world.random()) * MS)
            self.world.at(pause, lambda: self.recover(name, attempt + 1))
        else:
            self.recovered += 1
            if attempt:
                self.world.probes["undecidable, then closed by a later run"] += 1

    def _weather(self) -> None:
        if self.calm:
            return
        options, world = self.options, self.world
        for chance, happen in self._happenings():
            if chance and world.random() < chance:
                happen()
        world.at(5 * MS, self._weather)
        if world.now >= options.storm_ms * MS:
            self.calm = True

    def _happenings(self) -> list[tuple[float, Callable[[], None]]]:
        o = self.options
        return [
            (o.crash, lambda: self._crash(self._some_bookie(), wipe=False)),
            (0.08 if self._wipeable else 0.0, self._wipe),
            (o.partition, self._partition),
            (o.pause, self._pause),
            (o.read_only, self._read_only),
            (o.clog, self._clog),
            (o.damage, self._damage),
            (o.busy, self._busy),
            (o.recoverer_dies, self._recoverer_dies),
        ]

    def _some_bookie(self) -> str:
        names = list(self.cluster.bookies)
        return names[int(self.world.random() * len(names))]

    def _some_client(self) -> Client | None:
        alive = [c for c in self.cluster.clients if c.alive]
        return alive[int(self.world.random() * len(alive))] if alive else None

    def _wipe(self) -> None:
        self._crash(self._wipeable[int(self.world.random() * len(self._wipeable))], wipe=True)

    def _crash(self, name: str, *, wipe: bool) -> None:
        world, bookie = self.world, self.cluster.bookies[name]
        if not bookie.up:
            return
        bookie.crash()

        def restart() -> None:
            if not bookie.up:
                if wipe:
                    bookie.wipe()
                bookie.restart()

        world.at(int(200 * MS * world.random()), restart)

    def _partition(self) -> None:
        world, client = self.world, self._some_client()
        if client is None:
            return
        other = STORE if world.random() < 0.2 else self._some_bookie()
        ends = (client.name, other) if world.random() < 0.5 else (other, client.name)
        one_way = world.random() < 0.4
        world.partition(*ends, one_way)
        world.stats["partitions"] += 1
        world.note(f"{ends[0]} and {ends[1]} are cut off from each other{' (one way)' if one_way else ''}")
        world.at(int(150 * MS * world.random()), lambda: world.reconnect(*ends, one_way))

    def _pause(self) -> None:
        client = self._some_client()
        if client is not None and not client.paused:
            client.pause()
            self.world.stats["pauses"] += 1
            self.world.at(int(150 * MS * self.world.random()), client.resume)
            if self.world.random() < 0.3:
                client.clock_ns += int(200 * MS * self.world.random())

    def _read_only(self) -> None:
        bookie = self.cluster.bookies[self._some_bookie()]
        bookie.turn_read_only(not bookie.read_only)
        self.world.stats["read-only"] += 1

    def _busy(self) -> None:
        bookie = self.cluster.bookies[self._some_bookie()]
        bookie.busy_until = self.world.now + int(60 * MS * self.world.random())
        self.world.stats["busy"] += 1
        self.world.note(f"{bookie.name} is busy")

    def _clog(self) -> None:
        client = self._some_client()
        if client is not None:
            ends = (client.name, self._some_bookie())
            until = self.world.now + int(100 * MS * self.world.random())
            self.world.clogged[ends if self.world.random() < 0.5 else ends[::-1]] = until

    def _damage(self) -> None:
        """A copy rots or cannot be read; only on as many bookies as may lose data without voiding I-2."""
        name = self._some_bookie()
        if name not in self._damaged:
            if len(self._damaged) >= self.options.quorums[2] - 1:
                return
            self._damaged.append(name)
        bookie = self.cluster.bookies[name]
        ids = bookie.storage.entry_ids(self.truth.ledger_id)
        if not ids:
            return
        entry_id = ids[int(self.world.random() * len(ids))]
        self.world.stats["damaged copies"] += 1
        self.world.note(f"the copy of entry {entry_id} on {name} is damaged")
        if self.world.random() < 0.5:
            bookie.storage.corrupt[self.truth.ledger_id, entry_id] = None
        else:
            bookie.storage.damage(self.truth.ledger_id, entry_id)

    def _recoverer_dies(self) -> None:
        alive = [r for r in self.recoverers if r.alive and r.result is None]
        if alive:
            client = alive[int(self.world.random() * len(alive))]
            client.kill()
            self.world.stats["recoverers killed"] += 1
            if client.machine.state in (RecoveryState.READING, RecoveryState.DRAINING) and client.private:
                self.world.probes["a recoverer died after a private ensemble change"] += 1

    # --- the calm --------------------------------------------------------------------------------------------------

    def play(self) -> None:
        cluster, world, step = self.cluster, self.world, self.cluster.step
        while not self.calm and step():
            pass
        self._heal()
        writer = self.writer
        if writer.alive and not self.recoverers and writer.machine.state is WriterState.OPEN:
            self._run_until(lambda: not self._more and self._writer_quiet())
            if writer.machine.state is WriterState.OPEN:
                check_writer_alone(self)
            self.close()
            self._run_until(lambda: len(writer.close_results) == len(writer.closing))
        if not self.truth.closed:
            self.recover("last")
        self._run_until(self._finished)
        self._linger()
        check_end(self)
        if self.options.delete:
            self._delete()
        self._count()
        cluster.checker.check()
        assert not world.weather.loss

    def _writer_quiet(self) -> bool:
        machine = self.writer.machine
        if machine.state is not WriterState.OPEN:
            return True
        return bool(machine.idle and machine.last_add_confirmed == machine.last_add_pushed and not machine.unretired_entries)

    def _heal(self) -> None:
        world, cluster = self.world, self.cluster
        world.note("calm")
        world.weather = cluster.world.weather = Weather()
        world.heal()
        for bookie in cluster.bookies.values():
            if not bookie.up:
                bookie.restart()
            if bookie.read_only:
                bookie.turn_read_only(False)
            bookie.busy_until = 0
            bookie.storage.sync()  # what a slow disk still had to do
            bookie.storage.corrupt.clear()
            bookie.storage.heal_damage()
        for replicator in self.replicators:
            replicator.move = 0.0
            if replicator.content:
                replicator.start()
        for client in list(cluster.clients):
            client.resume()
        self._mend()

    def _mend(self) -> None:
        """RC-27, what a bookie's background task does."""
        for bookie in self.cluster.bookies.values():
            bookie.mend()
            if self.options.replicators:
                bookie.collect_moved()
        self.world.at(100 * MS, self._mend)

    def _finished(self) -> bool:
        if not self.truth.closed:
            return False
        writer = self.writer
        if writer.alive and (len(writer.adds.done) < len(writer.adds.pushed) or len(writer.close_results) < len(writer.closing)):
            return False
        if any(r.alive and r.result is None for r in self.recoverers):
            return False
        return all(t.at_end for t in self.readers) and not self._in_limbo() and all(r.content for r in self.replicators)

    def _in_limbo(self) -> bool:
        for bookie in self.cluster.bookies.values():
            record = bookie.storage.ledger(self.truth.ledger_id)
            if record is not None and record.limbo:
                return True
        return False

    def _run_until(self, done: Callable[[], bool]) -> None:
        deadline, world, step = self.world.now + self.options.calm_ms * MS, self.world, self.cluster.step
        while not done() and world.now < deadline and step():
            pass

    def _linger(self) -> None:
        """Let the messages that still travel arrive; they must not matter."""
        deadline, world, step = self.world.now + LINGER_MS * MS, self.world, self.cluster.step
        while (due := world.next_at()) is not None and due <= deadline:
            step()

    def _delete(self) -> None:
        """Metadata gone, bookies collect (B-12), and an old writer tries once more (B-6, scenario 40)."""
        cluster, truth = self.cluster, self.truth
        cluster.store.delete(truth)
        for bookie in cluster.bookies.values():
            bookie.collect(truth.ledger_id)
            if self.world.random() < 0.5:
                bookie.crash()
                bookie.restart()
            body = layout.encode_body(truth.ledger_id, 0, -1, 1, b"x", truth.metadata.digest_type)
            request = AddRequest(0, truth.ledger_id, 0, truth.master_key, body)
            known = bookie.storage.ledger(truth.ledger_id) is not None
            call = Call("zombie", request, "add", lambda response: None)
            effects = bookie.machine.handle(call, request, self.world.now // MS)
            if known and any(isinstance(e, bookie_machine.Persist) for e in effects):
                cluster.checker.fail("I-11", f"{bookie.name} accepts adds to a ledger it has deleted (B-6)")
        self.world.stats["deleted"] += 1

    # --- counting --------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        world, truth = self.world, self.truth
        stats = world.stats
        stats["entries acknowledged"] += len(truth.acked)
        stats["ensemble changes"] += sum(1 for v in truth.history if v.role == "writer" and v.metadata.state is LedgerState.OPEN)
        stats["fenced writers"] += self.writer.machine.state is WriterState.FENCED
        stats["entries read"] += len(truth.seen)
        stats["guaranteed"] += truth.gwq
        stats["deferred"] += not truth.exact
        stats["ids of the caller"] += not truth.ordered
        stats["fault domains"] += truth.domains_min > 1
        first = [v.metadata.fragments[0].ensemble for v in truth.history]
        if any(a in first[i + 2 :] and first[i + 1] != a for i, a in enumerate(first[:-2])):
            world.probes["an ensemble came back (A, X, A)"] += 1
        if any(m > 2 for m in [len(truth.metadata.fragments)]):
            world.probes["three fragments"] += 1
        if truth.plainly_recovered and truth.closed and "gwq.sealed" not in truth.metadata.custom:
            world.probes["a guaranteed ledger was closed by a plain client"] += 1
        if truth.gwq and "gwq.sealed" in truth.metadata.custom:
            world.probes["a guaranteed ledger was sealed"] += 1
