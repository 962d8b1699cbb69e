"""The contenders of the client benchmark: one process each, so that the CPU of each is counted alone, driven by one-line commands."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bk_core.bookie import apache
from tests.benchmarks.measure import usage_of

HEAP_MB = 1024
SOURCE_ROOT = Path(__file__).resolve().parents[2]
_JAVA = Path(__file__).parent / "java"


class OperationFailed(Exception):
    """The cluster refused. With three bookies and no fourth to go to, one that falls far behind ends a ledger; both clients meet this."""


class Worker:
    """A process that answers each command line with one line of numbers."""

    def __init__(self, name: str, process: subprocess.Popen[str], *, java: bool) -> None:
        self.name = name
        self._process = process
        self._java = java
        self._uri = ""
        self._answer()

    @property
    def pid(self) -> int:
        return self._process.pid

    def connect(self, uri: str, settings: Path | None = None) -> None:
        """To another cluster; what was there before is closed. ``settings`` is a file of Java's, for what a URI does not tell it."""
        if uri != self._uri:
            self._ask(f"connect {uri.replace('zk://', 'zk+hierarchical://', 1) if self._java else uri}{f' {settings}' if settings else ''}")
            self._uri = uri

    def disconnect(self) -> None:
        """Before the cluster goes away."""
        self._ask("disconnect -")
        self._uri = ""

    def ask(self, operation: str, *numbers: int) -> tuple[int, ...]:
        """OperationFailed if it did not work out."""
        found = self._ask(" ".join([operation, *map(str, numbers)]))
        if found[0] < 0:
            raise OperationFailed(f"{self.name}: {operation} failed with code {found[1]}")
        return found

    def _ask(self, command: str) -> tuple[int, ...]:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return tuple(map(int, self._answer().split()))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended; see its messages above")
        return line


@contextmanager
def _worker(name: str, command: Sequence[str], *, java: bool) -> Iterator[Worker]:
    path = os.pathsep.join(part for part in (str(SOURCE_ROOT), os.environ.get("PYTHONPATH")) if part)
    environment = {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield Worker(name, process, java=java)
        finally:
            process.kill()


@contextmanager
def our_client(name: str, protocol: str) -> Iterator[Worker]:
    with _worker(name, [sys.executable, "-m", "tests.benchmarks.ours", protocol], java=False) as worker:
        yield worker


@contextmanager
def java_client(name: str, version: str = apache.DEFAULT_VERSION) -> Iterator[Worker]:
    """Apache's client of that release, compiled against its own jars. SystemExit without a JDK."""
    libraries = apache.resolve(version, print)
    compiler = shutil.which("javac")
    if compiler is None:
        raise SystemExit("a JDK is needed: there is no javac")
    with tempfile.TemporaryDirectory(prefix="bk-bench-") as classes:
        command = [compiler, "--release", "17", "-nowarn", "-proc:none", "-d", classes, "-cp", f"{libraries}/*", str(_JAVA / "Bench.java")]
        subprocess.run(command, check=True)
        java = apache.java_command(libraries, _JAVA, "Bench", [], heap_mb=HEAP_MB)
        java[2] += f"{os.pathsep}{classes}"
        with _worker(name, java, java=True) as worker:
            yield worker


def warm_up(
    worker: Worker,
    uri: str,
    seconds: float,
    entries: int = 20_000,
    quorums: tuple[int, int, int] = (3, 3, 3),
    operations: Sequence[str] = ("write", "read"),
    servers: Sequence[int] = (),
) -> None:
    """Write and read for so long: a JVM's first seconds, the client's or a bookie's, run interpreted code.

    Goes on, up to four times as long, until the ``servers`` and the worker have had as many seconds of CPU together: on a busy machine
    time alone warms nothing. Without "write" among the operations, one ledger is written and read again and again.
    """
    worker.connect(uri)
    began, pids = time.monotonic(), (worker.pid, *servers)
    wanted = _cpu(pids) + seconds
    ledger: int | None = None
    while (took := time.monotonic() - began) < seconds or (took < 4 * seconds and _cpu(pids) < wanted):
        try:
            if ledger is None or "write" in operations:
                _, ledger = worker.ask("write", entries, 1024, 4000, *quorums)
            if "read" in operations:
                worker.ask("read", ledger, entries, 4 << 20, 0)
        except OperationFailed:
            continue


def _cpu(pids: Iterable[int]) -> float:
    """Seconds since their start."""
    return sum(used.cpu for pid in pids if (used := usage_of(pid)) is not None)
