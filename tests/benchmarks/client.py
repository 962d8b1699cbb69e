"""Our client against Apache's Java client: on stand-ins, where the client itself is measured, on embedded and on Apache bookies.

Every contender is a process of its own and keeps its clock; CPU is counted from outside. All write E3/Qw3/Qa2 with CRC32C and read back by
batch reads; single reads are measured on striped ledgers (E3/Qw2), where both clients use them. Ours is measured once more with v3 alone.
Java looks at payloads where they lie, the cheapest that its API has, and once more copies each out for the caller to keep, which is what
ours hands out (one buffer of values per run).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import bk_core
from bk_core.bookie import apache
from bk_core.protocol.ledger.read.options import ReadOptions
from tests.benchmarks.measure import Comparison, CpuMeter, Reach, Sample, Steady, interleave
from tests.benchmarks.report import Report
from tests.benchmarks.settings import APACHE_SETTINGS, Settings
from tests.benchmarks.standins import standins
from tests.benchmarks.workers import OperationFailed, Worker, java_client, our_client, warm_up

OURS, OURS_V3, JAVA, JAVA_COPIES = "bk_core", "bk_core v3", "Java", "Java, copied"
IN_FLIGHT_ENTRIES = 4000
IN_FLIGHT_BYTES = 32 << 20
BATCH_BYTES = 4 << 20
TRIES = 5
BOTH = ("write", "read")
WARM_UP = {"sinks": ("write",), "sources": ("read",)}
SETTLE_S = 0.5  # for the bookie that is behind
SINGLE_BYTES = 1024
WORDS = {100: "100 B", 1024: "1 KiB", 10240: "10 KiB", 102400: "100 KiB"}

# Entries of a ledger, by size. Each contender writes or reads as many ledgers a sample as take it about a second.
ON_STANDINS = {100: 200_000, 1024: 100_000, 10240: 20_000, 102400: 2_000}
ON_BOOKIES = {100: 60_000, 1024: 40_000, 10240: 4_000, 102400: 400}
ON_EMBEDDED = {100: 30_000, 1024: 25_000, 10240: 4_000, 102400: 400}
V3_SHARE = 8  # its ledgers are so many times shorter
SINGLE_SHARE = 2


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster and what to expect of it. ``servers`` are the processes of its bookies, by ``server`` name."""

    name: str
    uri: str
    server: str
    servers: Sequence[int]
    entries: Mapping[int, int]
    sizes: Sequence[int]


@dataclass(frozen=True, slots=True)
class Amount:
    entries: int
    size: int
    quorums: tuple[int, int, int] = (3, 3, 2)

    @property
    def in_flight(self) -> int:
        return max(8, min(IN_FLIGHT_ENTRIES, IN_FLIGHT_BYTES // self.size))


class ClientPart:
    """``sinks``, ``sources``, ``embedded`` and ``apache``, with the same client processes, until one of them fails."""

    def __init__(self, report: Report, settings: Settings) -> None:
        self._report, self._settings = report, settings
        self._workers: dict[str, Worker] = {}
        self._processes = ExitStack()

    def run(self, detail: str) -> None:
        if not self._workers:
            for name, protocol in ((OURS, "v2"), (OURS_V3, "v3")):
                self._workers[name] = self._processes.enter_context(our_client(name, protocol))
            self._workers[JAVA] = self._processes.enter_context(java_client(JAVA))
        with PLACES[detail](self._settings) as cluster:
            Bench(self._report, self._settings, cluster, self._workers).run()
            for worker in self._workers.values():
                worker.disconnect()

    def close(self) -> None:
        self._workers.clear()
        self._processes.close()


@contextmanager
def sinks(settings: Settings) -> Iterator[Place]:
    with standins(3) as cluster:
        sizes = (100, 1024) if settings.quick else tuple(WORDS)
        yield Place("acknowledging sinks", cluster.uri, "sinks", cluster.pids, ON_STANDINS, sizes)


@contextmanager
def sources(settings: Settings) -> Iterator[Place]:
    with standins(3, keep=True) as cluster:
        sizes = (100, 1024) if settings.quick else tuple(WORDS)
        yield Place("replaying sources", cluster.uri, "sources", cluster.pids, ON_STANDINS, sizes)


@contextmanager
def embedded(settings: Settings) -> Iterator[Place]:
    with bk_core.local_cluster(3) as cluster:
        pids = [pid for index in range(3) if (pid := cluster.pid(index))]
        yield Place("3 embedded bookies", cluster.uri, "bookies", pids, ON_EMBEDDED, (1024,) if settings.quick else tuple(WORDS))


@contextmanager
def on_apache(settings: Settings) -> Iterator[Place]:
    with bk_core.local_cluster(3, apache=apache.DEFAULT_VERSION, apache_settings=APACHE_SETTINGS) as cluster:
        pids = [pid for index in range(3) if (pid := cluster.pid(index))]
        yield Place("3 Apache bookies", cluster.uri, "bookies", pids, ON_BOOKIES, (1024,) if settings.quick else tuple(WORDS))


PLACES = {"sinks": sinks, "sources": sources, "embedded": embedded, "apache": on_apache}


class Bench:
    """Everything measured on one cluster."""

    def __init__(self, report: Report, settings: Settings, place: Place, workers: Mapping[str, Worker]) -> None:
        self._report = report
        self._settings = settings
        self._place = place
        self._workers = workers

    def run(self) -> None:
        place = self._place
        self._report.say(f"{place.name}: warming up")
        for worker in self._workers.values():
            # bookies may be JVMs too: they are warmed by every client's way of asking
            seconds = self._settings.warm_up_s * (1.0 if worker.name == JAVA else 0.4 if place.server == "bookies" else 0.1)
            entries, operations = 2_000 if worker.name == OURS_V3 else 20_000, WARM_UP.get(place.server, BOTH)
            warm_up(worker, place.uri, seconds, entries, operations=operations, servers=place.servers)
        with bk_core.connect(place.uri) as owner:
            for size in place.sizes:
                amount = Amount(place.entries[size], size)
                if place.server != "sources":
                    self._writes(owner, amount)
                if place.server != "sinks":
                    self._reads(owner, amount)
            if place.server != "sinks":
                amount = Amount(place.entries[SINGLE_BYTES] // SINGLE_SHARE, SINGLE_BYTES, (3, 2, 2))
                self._reads(owner, amount, single=True)
            if place.server != "sources":
                self._latency(owner)

    # --- one comparison each ---------------------------------------------------------------------------------------------

    def _writes(self, owner: bk_core.BookKeeper, amount: Amount) -> None:
        calls = {
            name: self._steady(partial(self._write, owner, worker, self._share(name, amount))) for name, worker in self._workers.items()
        }
        self._compare(f"write {WORDS[amount.size]} on {self._place.name}", calls, amount, self._write_reach(amount))

    def _reads(self, owner: bk_core.BookKeeper, amount: Amount, *, single: bool = False) -> None:
        ledger = self._prepare(amount)
        if self._place.server == "bookies":
            self._read_everywhere(owner, ledger, amount)
        operation = "single" if single else "read"
        calls = {
            name: self._steady(partial(self._read, worker, operation, ledger, self._share(name, amount)))
            for name, worker in self._workers.items()
        }
        if not single:
            java = partial(self._read, self._workers[JAVA], operation, ledger, amount, copy=1)
            calls[JAVA_COPIES] = self._steady(java)
        title = f"{'single' if single else 'batch'} read {WORDS[amount.size]} from {self._place.name}"
        self._compare(title, calls, amount, self._read_reach(amount, single))
        owner.delete_ledger(ledger)

    def _latency(self, owner: bk_core.BookKeeper) -> None:
        """One add at a time; the time of each, percentiles by round."""
        count = 400 if self._settings.quick else 2000
        calls = {name: partial(self._one_by_one, worker, Amount(count, 1024)) for name, worker in self._workers.items()}
        reaches = [Reach(OURS, 1.1, of, at_most=True) for of in ("p50_ms", "p99_ms")] if self._on_apache else []
        self._compare(f"latency of one add in flight, 1 KiB, on {self._place.name}", calls, Amount(count, 1024), reaches, shown="p50_ms")

    def _compare(
        self, title: str, calls: Mapping[str, Callable[[], Sample]], amount: Amount, reaches: Sequence[Reach], shown: str = "rate"
    ) -> None:
        self._report.say(title)
        e, qw, qa = amount.quorums
        ledgers = f"ledgers of {amount.entries:,} entries (v3: {self._share(OURS_V3, amount).entries:,})"
        note = f"{ledgers if shown == 'rate' else f'{amount.entries:,} adds a sample'}, E{e}/Qw{qw}/Qa{qa}, CRC32C"
        samples = interleave(calls, self._settings.rounds)
        self._report.add(Comparison(title, "entries", samples, JAVA, note, reaches, f"client, {self._place.name}", shown))

    @property
    def _on_apache(self) -> bool:
        return "Apache" in self._place.name

    def _write_reach(self, amount: Amount) -> list[Reach]:
        if amount.size == 1024 and self._place.server == "sinks":
            return [Reach(OURS, 4.0, "cpu:client"), Reach(OURS, 2.0)]
        return [Reach(OURS, 1.3)] if amount.size == 1024 and self._on_apache else []

    def _read_reach(self, amount: Amount, single: bool) -> list[Reach]:
        if amount.size == 1024 and self._place.server == "sources" and not single:
            return [
                Reach(OURS, limit, of, against) for limit, of in ((4.0, "cpu:client"), (2.0, "rate")) for against in (JAVA, JAVA_COPIES)
            ]
        return [Reach(OURS, 1.5 if single else 1.2)] if amount.size == 1024 and self._on_apache else []

    # --- one sample each -------------------------------------------------------------------------------------------------

    def _share(self, name: str, amount: Amount) -> Amount:
        return Amount(max(1, amount.entries // V3_SHARE), amount.size, amount.quorums) if name == OURS_V3 else amount

    def _steady(self, run: Callable[[], Sample]) -> Callable[[], Sample]:
        return Steady(run, self._settings.sample_s)

    def _meter(self, worker: Worker) -> CpuMeter:
        return CpuMeter({"client": [worker.pid], self._place.server: self._place.servers})

    def _write(self, owner: bk_core.BookKeeper, worker: Worker, amount: Amount) -> Sample:
        """Those that fail are told and repeated, not measured."""
        for _ in range(TRIES):
            try:
                with self._meter(worker) as meter:
                    took, ledger = worker.ask("write", amount.entries, amount.size, amount.in_flight, *amount.quorums)
            except OperationFailed as failure:
                self._report.say(f"{failure}; this sample is repeated")
                time.sleep(SETTLE_S)
                continue
            owner.delete_ledger(ledger)
            return meter.sample(amount.entries, amount.entries * amount.size, seconds=took / 1e9)
        raise SystemExit(f"{worker.name}: {TRIES} writes failed in a row")

    def _read(self, worker: Worker, operation: str, ledger: int, amount: Amount, copy: int = 0) -> Sample:
        arguments = (ledger, amount.entries) if operation == "single" else (ledger, amount.entries, BATCH_BYTES, copy)
        with self._meter(worker) as meter:
            took, size = worker.ask(operation, *arguments)
        assert size == amount.entries * amount.size, f"{worker.name} read {size} bytes of {amount.entries * amount.size}"
        return meter.sample(amount.entries, size, seconds=took / 1e9)

    def _one_by_one(self, worker: Worker, amount: Amount) -> Sample:
        with self._meter(worker) as meter:
            found = worker.ask("latency", amount.entries, amount.size, *amount.quorums)
        half, most, nearly_all = (nanoseconds / 1e6 for nanoseconds in found)
        return meter.sample(amount.entries, amount.entries * amount.size, p50_ms=half, p99_ms=most, **{"p99.9_ms": nearly_all})

    def _read_everywhere(self, owner: bk_core.BookKeeper, ledger: int, amount: Amount) -> None:
        """Once from each bookie: which of them a reader prefers must not decide who finds the entries in a bookie's read cache."""
        for rotation in range(amount.quorums[0]):
            with owner.open_ledger(ledger, options=ReadOptions(rotation=rotation)) as handle:
                assert sum(run.count for run in handle.read_runs(0, amount.entries - 1)) == amount.entries

    def _prepare(self, amount: Amount) -> int:
        """A CLOSED ledger with every entry on all of its write set."""
        e, qw, _ = amount.quorums
        for _ in range(TRIES):
            try:
                return self._workers[OURS].ask("write", amount.entries, amount.size, amount.in_flight, e, qw, qw)[1]
            except OperationFailed:
                time.sleep(SETTLE_S)
        raise SystemExit(f"{TRIES} writes failed in a row")
