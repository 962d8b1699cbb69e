"""A file of 2 GB, and 100,000 files in one directory, through Hadoop's own client."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped, unused-ignore]

from tests.checkpoints.figures.numbers import load, table
from tests.checkpoints.hardships.ground import Ground, ground
from tests.faults.driver import STORE
from tests.faults.stores import leftovers, remains

LARGE_BYTES = 2 << 30
MANY = 100_000
PATIENCE_S = 60.0
LIMIT_S = 3000.0
SAMPLE_S = 0.05
STEPS = ("create", "list", "list in parts", "rename twice")


class Memory:
    """The most that the driver's Python has held while the block ran, over what it held before."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.before = self.most = self._now()

    def _now(self) -> int:
        return int(self._process.memory_info().rss)

    def _look(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.most = max(self.most, self._now())

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def grown_mib(self) -> int:
        return (self.most - self.before) >> 20


@dataclass
class Figures:
    """``lines``: step, seconds, files or bytes, MiB that the driver's Python grew by at most."""

    bookies: str
    lines: list[tuple[str, float, int, int]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problems


def measure(work: Path, apache: str | None, size: int, count: int, say: Callable[[object], None]) -> Figures:
    with ground(work, apache) as here:
        found = Figures(here.cluster.kind)
        for part, amount in ((_one_large, size), (_many, count)):
            if amount:
                part(here, amount, found)
                say(f"{found}; {load()}")
    return found


def _one_large(here: Ground, size: int, found: Figures) -> None:
    name = "large"
    where = {"checkpoint": f"{STORE}{name}", "uri": here.uri, "patience": PATIENCE_S, "path": "state/large"}
    here.ask({"do": "open", **where})
    sums = []
    for step, command in (("write", {"do": "put", "bytes": size}), ("read", {"do": "get"}), ("read again", {"do": "get"})):
        if step == "read again":  # by the next owner
            here.ask({"do": "close", **where})
            _reopen(here, where, found)
        with Memory(here.driver.pid) as memory:
            answer = here.ask({**command, **where}, limit_s=LIMIT_S)
        sums.append(answer["sha256"])
        found.lines.append((step, answer["seconds"], size, memory.grown_mib))
    if len(set(sums)) != 1:
        found.problems.append(f"the file was not read as it was written: {sums}")
    _end(here, name, where, found)


def _many(here: Ground, count: int, found: Figures) -> None:
    name = "many"
    where = {"checkpoint": f"{STORE}{name}", "uri": here.uri, "patience": PATIENCE_S, "path": "state/many"}
    here.ask({"do": "open", **where})
    for step in STEPS:
        _step(here, step, where, count, found)
    here.ask({"do": "close", **where})
    _reopen(here, where, found)
    for step in ("list in parts", "delete"):
        _step(here, step, where, count, found)
    _end(here, name, where, found)


def _step(here: Ground, step: str, where: dict[str, object], count: int, found: Figures) -> None:
    with Memory(here.driver.pid) as memory:
        answer = here.ask({"do": "many", "count": count, "steps": [step], **where}, limit_s=LIMIT_S)["steps"][step]
    found.lines.append((step, answer["seconds"], answer["files"], memory.grown_mib))
    if answer["files"] != count:
        found.problems.append(f"{step}: {answer['files']} files instead of {count}")


def _reopen(here: Ground, where: dict[str, object], found: Figures) -> None:
    with Memory(here.driver.pid) as memory:
        begun = time.monotonic()
        here.ask({"do": "open", **where})
    found.lines.append(("open it again", time.monotonic() - begun, 1, memory.grown_mib))


def _end(here: Ground, name: str, where: dict[str, object], found: Figures) -> None:
    here.ask({"do": "close", **where})
    found.problems += [*leftovers(here.client, name), *remains(here.client, name)]


def summary(found: Figures) -> str:
    rows = [[found.bookies, step, f"{seconds:.1f}", f"{amount:,}", grown] for step, seconds, amount, grown in found.lines]
    return table(["bookies", "step", "seconds", "files or bytes", "MiB more in the driver's Python"], rows)
