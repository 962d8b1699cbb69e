"""Our client and Apache's Java client against the same three Apache bookies: ``python -m tests.benchmarks.first``.

Both write and read ledgers of 1 KiB entries (E3/Qw3/Qa2, CRC32C, v2, batch reads), with at most 4000 adds and four batches in flight. Each
reads the ledger it has just written. Rounds alternate between the two after a warm-up that is not counted. Everything runs on one machine,
so that a client also pays for what the bookies take from it. The numbers are printed and never asserted on.

``BK_BENCH_ENTRIES`` (50000) and ``BK_BENCH_ROUNDS`` (5) change the size.
"""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import tempfile
import time
from array import array
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import bk_core
from bk_core import kernels
from bk_core.bookie import apache
from bk_core.errors import NotEnoughBookiesError
from bk_core.protocol.limits import Limits

ENTRIES = int(os.environ.get("BK_BENCH_ENTRIES", "50000"))
ROUNDS = int(os.environ.get("BK_BENCH_ROUNDS", "5"))
WARM_UP_ROUNDS = 2
TRIES = 5
SETTLE_S = 0.5  # for the bookie that is behind
ENTRY_BYTES = 1024
IN_FLIGHT = 4000
RUN_ENTRIES = 500
BATCH_ENTRIES = 2048
# An add counts as done at two of three bookies. The third may fall behind by this much, which must stay below the 10000 adds that a bookie
# queues: beyond, it answers TOO_MANY_REQUESTS, and with no fourth bookie to go to the ledger ends.
LAG_BYTES_MAX = 6 << 20
_JAVA = Path(__file__).parent / "java"


class WriteFailed(Exception):
    """An add was refused, and there is no fourth bookie to go to. Both clients meet this when one bookie falls far behind the others."""


class Client(Protocol):
    def write(self) -> tuple[float, int]:
        """Seconds and the id of the ledger written."""

    def read(self, ledger_id: int) -> float:
        """Seconds."""


class Ours:
    def __init__(self, client: bk_core.BookKeeper) -> None:
        self._client = client

    def write(self) -> tuple[float, int]:
        try:
            return self._write()
        except NotEnoughBookiesError:
            raise WriteFailed from None

    def _write(self) -> tuple[float, int]:
        values = bytes(ENTRY_BYTES * RUN_ENTRIES)
        with self._client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=2) as ledger:
            in_flight: deque[Future[int]] = deque()
            start = time.perf_counter()
            for first in range(0, ENTRIES, RUN_ENTRIES):
                if len(in_flight) == IN_FLIGHT // RUN_ENTRIES:
                    in_flight.popleft().result(timeout=60)
                count = min(RUN_ENTRIES, ENTRIES - first)
                in_flight.append(ledger.append_run(values, array("q", range(0, (count + 1) * ENTRY_BYTES, ENTRY_BYTES))))
            for future in in_flight:
                future.result(timeout=60)
            return time.perf_counter() - start, ledger.ledger_id

    def read(self, ledger_id: int) -> float:
        with self._client.open_ledger(ledger_id) as ledger:
            start = time.perf_counter()
            size = sum(len(run.values) for run in ledger.read_runs(0, ENTRIES - 1))
            took = time.perf_counter() - start
        assert size == ENTRIES * ENTRY_BYTES
        return took


class Java:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._answer()

    def write(self) -> tuple[float, int]:
        took, ledger_id = self._ask(f"write {ENTRIES} {ENTRY_BYTES}")
        if took < 0:
            raise WriteFailed
        return took / 1e9, ledger_id

    def read(self, ledger_id: int) -> float:
        took, size = self._ask(f"read {ledger_id} {ENTRIES}")
        assert size == ENTRIES * ENTRY_BYTES
        return took / 1e9

    def _ask(self, command: str) -> tuple[int, int]:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        first, second = self._answer().split()
        return int(first), int(second)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the Java client ended; see its messages above")
        return line


@contextmanager
def java_client(uri: str, libraries: Path) -> Iterator[Java]:
    compiler = shutil.which("javac")
    if compiler is None:
        raise SystemExit("a JDK is needed: there is no javac")
    with tempfile.TemporaryDirectory(prefix="bk-bench-") as classes:
        command = [compiler, "--release", "17", "-nowarn", "-proc:none", "-d", classes, "-cp", f"{libraries}/*", str(_JAVA / "Bench.java")]
        subprocess.run(command, check=True)
        arguments = [uri.replace("zk://", "zk+hierarchical://", 1), str(IN_FLIGHT), str(BATCH_ENTRIES)]
        java = apache.java_command(libraries, _JAVA, "Bench", arguments)
        java[2] = f"{classes}{os.pathsep}{java[2]}"
        with subprocess.Popen(java, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield Java(process)
            finally:
                process.kill()


def row(name: str, rates: list[float]) -> str:
    return f"{name:<22}{min(rates):>12,.0f}{statistics.median(rates):>12,.0f}{max(rates):>12,.0f}"


def write_again(name: str, client: Client) -> tuple[float, int]:
    """A write that succeeds; those that failed before it are told, not measured."""
    for _ in range(TRIES):
        time.sleep(SETTLE_S)
        try:
            return client.write()
        except WriteFailed:
            print(f"{name}: a bookie fell behind and refused an add; this round is repeated", flush=True)
    raise SystemExit(f"{name}: {TRIES} writes failed in a row")


def measure(clients: dict[str, Client], owner: bk_core.BookKeeper) -> dict[tuple[str, str], list[float]]:
    """Entries per second by operation and client, one value a round."""
    rates: dict[tuple[str, str], list[float]] = {(operation, name): [] for operation in ("write", "read") for name in clients}
    for number in range(WARM_UP_ROUNDS + ROUNDS):
        for name, client in clients.items():
            wrote, ledger_id = write_again(name, client)
            read = client.read(ledger_id)
            owner.delete_ledger(ledger_id)
            if number >= WARM_UP_ROUNDS:
                rates["write", name].append(ENTRIES / wrote)
                rates["read", name].append(ENTRIES / read)
    return rates


def main() -> None:
    libraries = apache.resolve(apache.DEFAULT_VERSION, print)
    with (
        bk_core.local_cluster(bookies=3, apache=apache.DEFAULT_VERSION) as cluster,
        bk_core.connect(cluster.uri, limits=Limits(unretired_bytes_max=LAG_BYTES_MAX)) as ours,
        java_client(cluster.uri, libraries) as java,
    ):
        rates = measure({"bk_core": Ours(ours), "Java": java}, ours)
    print(
        f"{ENTRIES} entries of {ENTRY_BYTES} bytes, E3/Qw3/Qa2, CRC32C, v2; {WARM_UP_ROUNDS} warm-up and {ROUNDS} counted rounds\n"
        f"{os.cpu_count()} processors, Python {platform.python_version()}, kernels {kernels.IMPLEMENTATION}, "
        f"Apache {apache.DEFAULT_VERSION}; bk_core appends in runs of {RUN_ENTRIES}, Java entry by entry\n"
    )
    print(f"{'entries/s':<22}{'min':>12}{'median':>12}{'max':>12}")
    for operation in ("write", "read"):
        for name in ("bk_core", "Java"):
            print(row(f"{operation}  {name}", rates[operation, name]))
        ratio = statistics.median(rates[operation, "bk_core"]) / statistics.median(rates[operation, "Java"])
        print(f"{operation}  bk_core / Java: {ratio:.2f} (of the medians)")


if __name__ == "__main__":
    main()
