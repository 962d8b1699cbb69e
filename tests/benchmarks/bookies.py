"""An embedded bookie against an Apache bookie: E1/Qw1/Qa1, fsync on, one directory tree, the same client for both.

Both run at the same time, but only one has work. Each has a client process of its own, which is the same program.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import bk_core
from bk_core.bookie import apache
from tests.benchmarks.client import BATCH_BYTES, WORDS, Amount
from tests.benchmarks.measure import Comparison, CpuMeter, Reach, Sample, Steady, interleave
from tests.benchmarks.report import Report
from tests.benchmarks.settings import APACHE_SETTINGS, Settings
from tests.benchmarks.workers import Worker, our_client, warm_up

EMBEDDED, APACHE = "embedded", "Apache"
QUORUMS = (1, 1, 1)
ENTRIES = {100: 60_000, 1024: 50_000, 10240: 6_000, 102400: 600}


@dataclass(frozen=True, slots=True)
class Contender:
    """A bookie, its client and the owner of the ledgers."""

    pid: int
    worker: Worker
    owner: bk_core.BookKeeper

    def meter(self) -> CpuMeter:
        return CpuMeter({"client": [self.worker.pid], "bookie": [self.pid]})


class BookiesPart:
    """One step."""

    def __init__(self, report: Report, settings: Settings) -> None:
        self._report, self._settings = report, settings

    def run(self, detail: str) -> None:
        run(self._report, self._settings)

    def close(self) -> None:
        """Do nothing: processes that it starts end with it."""


def run(report: Report, settings: Settings) -> None:
    with ExitStack() as stack:
        contenders = {}
        for name, release in ((EMBEDDED, None), (APACHE, apache.DEFAULT_VERSION)):
            cluster = stack.enter_context(bk_core.local_cluster(1, apache=release, apache_settings=APACHE_SETTINGS))
            worker = stack.enter_context(our_client(name, "v2"))
            owner = stack.enter_context(bk_core.connect(cluster.uri))
            pid = cluster.pid(0)
            assert pid is not None
            report.say(f"one {name} bookie: warming up")
            warm_up(worker, cluster.uri, settings.warm_up_s, quorums=QUORUMS, servers=[pid])
            contenders[name] = Contender(pid, worker, owner)
        for size in (1024,) if settings.quick else tuple(WORDS):
            compare(report, settings, contenders, Amount(ENTRIES[size], size, QUORUMS))
        latency(report, settings, contenders)
        for contender in contenders.values():
            contender.worker.disconnect()


def compare(report: Report, settings: Settings, contenders: dict[str, Contender], amount: Amount) -> None:
    words = WORDS[amount.size]
    note = f"ledgers of {amount.entries:,} entries, E1/Qw1/Qa1, fsync on, our client for both"
    reaches = [Reach(EMBEDDED, 1.0)]
    ledgers: dict[str, int] = {}
    writes: dict[str, Callable[[], Sample]] = {
        name: Steady(partial(write, c, amount, ledgers, name), settings.sample_s) for name, c in contenders.items()
    }
    report.say(f"write {words} on one bookie")
    found = interleave(writes, settings.rounds)
    report.add(Comparison(f"write {words} on one bookie", "entries", found, APACHE, note, reaches, "bookies"))
    reads: dict[str, Callable[[], Sample]] = {
        name: Steady(partial(read, c, amount, ledgers[name]), settings.sample_s) for name, c in contenders.items()
    }
    report.say(f"batch read {words} from one bookie")
    found = interleave(reads, settings.rounds)
    report.add(Comparison(f"batch read {words} from one bookie", "entries", found, APACHE, note, reaches, "bookies"))
    for name, ledger in ledgers.items():
        contenders[name].owner.delete_ledger(ledger)


def write(contender: Contender, amount: Amount, ledgers: dict[str, int], name: str) -> Sample:
    """The last ledger written is kept for the reads."""
    with contender.meter() as meter:
        took, ledger = contender.worker.ask("write", amount.entries, amount.size, amount.in_flight, *amount.quorums)
    if name in ledgers:
        contender.owner.delete_ledger(ledgers[name])
    ledgers[name] = ledger
    return meter.sample(amount.entries, amount.entries * amount.size, seconds=took / 1e9)


def read(contender: Contender, amount: Amount, ledger: int) -> Sample:
    with contender.meter() as meter:
        took, size = contender.worker.ask("read", ledger, amount.entries, BATCH_BYTES, 1)
    assert size == amount.entries * amount.size
    return meter.sample(amount.entries, size, seconds=took / 1e9)


def latency(report: Report, settings: Settings, contenders: dict[str, Contender]) -> None:
    count = 400 if settings.quick else 2000
    report.say("latency of one add in flight")
    samples = interleave({name: partial(one_by_one, contender, count) for name, contender in contenders.items()}, settings.rounds)
    note = f"{count} adds a sample, E1/Qw1/Qa1, fsync on"
    title = "latency of one add in flight, 1 KiB, on one bookie"
    report.add(Comparison(title, "entries", samples, APACHE, note, (), "bookies", "p50_ms"))


def one_by_one(contender: Contender, count: int) -> Sample:
    with contender.meter() as meter:
        found = contender.worker.ask("latency", count, 1024, *QUORUMS)
    half, most, nearly_all = (nanoseconds / 1e6 for nanoseconds in found)
    return meter.sample(count, count * 1024, p50_ms=half, p99_ms=most, **{"p99.9_ms": nearly_all})
