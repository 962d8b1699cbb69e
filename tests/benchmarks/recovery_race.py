"""Auto-recovery beside Apache's: ``python -m tests.benchmarks.recovery_race [--rounds 2] [--ledgers 60] [--megabytes 8] [--workers 2]``.

In each round `bk autorecovery` and Apache's ``AutoRecoveryMain`` get the same task by turns, each on a cluster of its own with the same
data: four of Apache's bookies, closed ledgers (E3/Qw2/Qa2), a writer that goes on all the time. One bookie is killed for good. Counted are
the seconds from the kill, and from the end of its registration, until no ledger names it and no mark is left; the CPU of the process
that recovers and of the bookies. Then every copy of every entry is looked at, and every acknowledged entry of the writer is read. Both have
their defaults, but for ``--workers`` and ``--batch`` (entries that Apache's worker reads at a time, 10 by default).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bk_core
from bk_core.bookie import apache
from bk_core.bookie.local_cluster import LocalCluster
from tests.benchmarks.measure import CpuMeter
from tests.quick_java import apache_cluster

BOOKIES = 4
ENTRY_BYTES = 4096
QUORUMS: Any = {"ensemble_size": 3, "write_quorum_size": 2, "ack_quorum_size": 2}
PATIENCE_S = 600.0
LOOK_S = 0.25
LOAD_RUN = 50
LOAD_PAUSE_S = 0.1  # so that about 2 MB/s are written
ROLL_RUNS = 40
NAMES = ("ours", "Apache")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds, and what was found afterwards."""

    from_kill_s: float
    from_lapse_s: float
    recoverer_cpu_s: float
    bookies_cpu_s: float
    moved_ledgers: int
    load_entries: int
    missing_copies: int
    missing_entries: int


class Load:
    """A writer that rolls its ledgers, until ``end``. ``acknowledged`` counts the entries of each ledger."""

    def __init__(self, client: bk_core.BookKeeper) -> None:
        self._client = client
        self._stop = threading.Event()
        self.acknowledged: dict[int, int] = {}
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                with self._client.create_ledger(**QUORUMS) as ledger:
                    for number in range(ROLL_RUNS):
                        last = ledger.append_many([b"%d;" % number * 1000] * LOAD_RUN)
                        self.acknowledged[ledger.ledger_id] = last + 1
                        if self._stop.wait(LOAD_PAUSE_S):
                            break
        except BaseException as error:
            self.failure = error

    def end(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure


def fill(client: bk_core.BookKeeper, ledgers: int, entries: int, chance: random.Random) -> None:
    for _ in range(ledgers):
        payloads = [chance.randbytes(ENTRY_BYTES) for _ in range(64)]
        with client.create_ledger(**QUORUMS) as ledger:
            for first in range(0, entries, 64):
                ledger.append_many(payloads[: entries - first])


@contextmanager
def recoverer(name: str, cluster: LocalCluster, options: argparse.Namespace, directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The process that recovers, once it has been elected."""
    if name == "ours":
        command = [sys.executable, "-m", "bk_core.cli", "autorecovery", "--uri", cluster.uri, "--workers", str(options.workers)]
    else:
        configuration = directory / "autorecovery.conf"
        configuration.write_text(
            f"metadataServiceUri={cluster.uri.replace('zk://', 'zk+hierarchical://', 1)}\nallowLoopback=true\nhttpServerEnabled=false\n"
            f"bookiePort={options.port}\njournalDirectory={directory}/none\nledgerDirectories={directory}/none\n"
            f"rereplicationEntryBatchSize={options.batch}\n"
        )
        apache.write_logging(directory / "logging")
        arguments = ["--conf", str(configuration)]
        main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
        command = apache.java_command(apache.resolve(options.release, print), directory / "logging", main, arguments)
    with (directory / "recoverer.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            with bk_core.connect(cluster.uri) as client:
                wait_for(lambda: client.store.underreplication().auditor() is not None, process, directory)
            yield process
        finally:
            process.terminate()


def wait_for(condition: Any, process: subprocess.Popen[bytes], directory: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the recoverer did not come to its end:\n{(directory / 'recoverer.log').read_text()[-3000:]}")
        time.sleep(LOOK_S)


def race(name: str, options: argparse.Namespace, seed: int, directory: Path) -> Outcome:
    """One recovery, from the first entry to the last look."""
    with apache_cluster(BOOKIES, directory / "cluster", options.release) as cluster, bk_core.connect(cluster.uri) as client:
        fill(client, options.ledgers, (options.megabytes << 20) // ENTRY_BYTES, random.Random(seed))
        doomed = cluster.bookie_ids[0]
        survivors = [pid for index in range(1, BOOKIES) if (pid := cluster.pid(index))]
        with recoverer(name, cluster, options, directory) as process:
            load = Load(client)
            try:
                named = named_by(client, doomed)
                moved, marks = len(named), client.store.underreplication()
                with CpuMeter({"recoverer": [process.pid], "bookies": survivors}) as meter:
                    killed = time.monotonic()
                    cluster.kill(0)
                    cluster.wait_unregistered(0)
                    lapsed = time.monotonic()
                    wait_for(lambda: not named_by(client, doomed) and not list(marks.marked_ledgers()), process, directory)
                    ended = time.monotonic()
            finally:
                load.end()
        missing = sum(not client.check_ledger(ledger, full=True).is_good for ledger in client.list_ledgers())
        lost = sum(acknowledged - read_back(client, ledger) for ledger, acknowledged in load.acknowledged.items())
        entries = sum(load.acknowledged.values())
        return Outcome(ended - killed, ended - lapsed, meter.cpu["recoverer"], meter.cpu["bookies"], moved, entries, missing, lost)


def named_by(client: bk_core.BookKeeper, bookie: str) -> list[int]:
    found = []
    for ledger in client.list_ledgers():
        metadata = client.ledger_metadata(ledger)
        if any(bookie in fragment.ensemble for fragment in metadata.fragments):
            found.append(ledger)
    return found


def read_back(client: bk_core.BookKeeper, ledger: int) -> int:
    with client.open_ledger(ledger) as reader:
        return sum(len(run) for run in reader.read_runs(0, reader.last_add_confirmed))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.recovery_race")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ledgers", type=int, default=60)
    parser.add_argument("--megabytes", type=int, default=8, help="of each ledger, in one copy (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="ledgers that ours repairs at a time (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=10, help="Apache's rereplicationEntryBatchSize (default: %(default)s)")
    parser.add_argument("--release", default=apache.DEFAULT_VERSION)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    options.port = 3181
    outcomes: dict[str, list[Outcome]] = {name: [] for name in NAMES}
    for number in range(options.rounds):
        for name in NAMES if number % 2 == 0 else reversed(NAMES):
            with TemporaryDirectory(prefix="bk-race-") as directory:
                outcome = race(name, options, options.seed + number, Path(directory))
            outcomes[name].append(outcome)
            print(f"round {number + 1} {name:6} {asdict(outcome)}", flush=True)
    for name in NAMES:
        kill, lapse, cpu = (statistics.median(getattr(one, field) for one in outcomes[name]) for field in FIELDS)
        print(f"{name:6} {kill:6.1f} s from the kill, {lapse:6.1f} s from the end of the registration, {cpu:5.1f} s of CPU")
    pairs = list(zip(outcomes["Apache"], outcomes["ours"], strict=True))
    print("Apache over ours, from the end of the registration: " + ", ".join(f"{a.from_lapse_s / b.from_lapse_s:.2f}" for a, b in pairs))
    if options.json is not None:
        options.json.write_text(json.dumps({name: [asdict(one) for one in found] for name, found in outcomes.items()}))
    return int(any(one.missing_copies or one.missing_entries for found in outcomes.values() for one in found))


FIELDS = ("from_kill_s", "from_lapse_s", "recoverer_cpu_s")

if __name__ == "__main__":
    raise SystemExit(main())
