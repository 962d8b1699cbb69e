"""Child processes of the demo: each starts a session of its own and ends completely, with all it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

import bk_core
from bk_core.background import BackgroundLoop


class DemoError(Exception):
    """The demo cannot go on: a child ended by itself or a wait ran out."""


class Child:
    """One ``python -m bk_spark.demo ROLE ...`` in its own session, output into ``log``.

    Spark's Python daemon leaves the process group of its driver but not the session, so the session is what gets killed.
    """

    def __init__(self, name: str, arguments: list[str], log: Path) -> None:
        self.name, self.log = name, log
        home = str(Path(str(bk_core.__file__)).parents[1])  # workers must find these packages wherever the demo was started
        path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bk_spark.demo", *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
            )  # fmt: skip

    def members(self) -> list[int]:
        """Pids of the session, the child first."""
        found = []
        for pid in psutil.pids():
            try:
                if os.getsid(pid) == self.process.pid:
                    found.append(pid)
            except (ProcessLookupError, PermissionError):
                continue
        return sorted(found, key=lambda pid: pid != self.process.pid)

    def kill(self) -> int:
        """SIGKILL for every process of the session, until none is left; returns how many there were."""
        killed: set[int] = set()
        while members := self.members_alive():
            for pid in members:
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
                except ProcessLookupError:
                    continue
            self.process.wait()  # first, and here: psutil would take the exit status away
            psutil.wait_procs(_as_processes([pid for pid in members if pid != self.process.pid]), timeout=5)
        self.process.wait()
        return len(killed)

    def members_alive(self) -> list[int]:
        """Return what ``members`` does without zombies: those are dead already and wait for their parent or init."""
        return [process.pid for process in _as_processes(self.members()) if _alive(process)]

    def check_running(self) -> None:
        """Raises DemoError with the end of the log if the child is gone."""
        status = self.process.poll()
        if status is not None:
            raise DemoError(f"{self.name} ended with status {status}:\n{self.tail()}")

    def wait(self, limit_s: float) -> None:
        """Wait for a good end. Raises DemoError if it is bad or late."""
        try:
            status = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise DemoError(f"{self.name} did not end within {limit_s:.0f} s:\n{self.tail()}") from None
        if status != 0:
            raise DemoError(f"{self.name} ended with status {status}:\n{self.tail()}")

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def _as_processes(pids: list[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        try:
            found.append(psutil.Process(pid))
        except psutil.NoSuchProcess:
            continue
    return found


def _alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class MemoryWatch:
    """Samples the resident size of this process and all its descendants; ``peak_bytes`` is the largest sum seen.

    Pages shared between forked workers count once for each, so the true peak is a little lower.
    """

    def __init__(self, interval_s: float = 0.25) -> None:
        self.peak_bytes = 0
        self._interval_s = interval_s
        self._loop = BackgroundLoop("demo-memory", self._sample)

    def __enter__(self) -> MemoryWatch:
        self._loop.start(self._interval_s)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.stop()
        self._loop.join()

    def _sample(self) -> float:
        me, total = psutil.Process(), 0
        for process in [me, *me.children(recursive=True)]:
            try:
                total += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        self.peak_bytes = max(self.peak_bytes, total)
        return self._interval_s


def await_that(what: str, holds: Callable[[], bool], limit_s: float, child: Child | None = None, poll_s: float = 0.05) -> None:
    """Look every ``poll_s`` seconds until ``holds()``. Raises DemoError after ``limit_s`` or when ``child`` is gone."""
    pause = threading.Event()
    for _ in range(max(1, int(limit_s / poll_s))):
        if holds():
            return
        if child is not None:
            child.check_running()
        pause.wait(poll_s)
    raise DemoError(f"waited {limit_s:.0f} s in vain: {what}")
