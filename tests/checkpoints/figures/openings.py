"""The time in which a checkpoint opens again after ``kill -9`` of its owner, with so many batches behind it, and whether its query goes on.

The first batches are a real query's, the others ``history.py`` writes, which is killed. Then a new Spark application calls
``checkpoint_location`` and is killed in its turn, some times; the last one goes on with the query. What is measured is the call: it
connects, fences and recovers the ledger of the former owner, and replays. The JVM runs by then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bk_core
from tests.checkpoints.figures.cost import MODULE, ask
from tests.checkpoints.figures.history import Task
from tests.checkpoints.figures.numbers import load, table
from tests.checkpoints.figures.session import ROWS
from tests.checkpoints.figures.size import history
from tests.faults.driver import STORE
from tests.faults.harness import Driver

BOOKIES = 3
SIZES = (10, 1_000, 100_000)
BEGUN, MORE = 5, 3  # batches of the query before and behind
AIM_S = 2.0
PARTS = {"connect": "of them connecting", "open": "the store", "apply": "Hadoop's settings in the JVM"}


@dataclass
class Opened:
    """``seconds``: of each opening; ``parts``: of connecting, of the store and of the JVM's settings in each. ``first``, ``rows``: the
    number and the rows of the batches that the query made then."""

    bookies: str
    batches: int
    seconds: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    first: int = -1
    rows: list[int] = field(default_factory=list)
    load: str = ""

    @property
    def goes_on(self) -> bool:
        return self.first == self.batches and len(self.rows) >= MORE and set(self.rows) == {ROWS}

    @property
    def good(self) -> bool:
        return self.goes_on and max(self.seconds) < AIM_S


def measure(directory: Path, sizes: Sequence[int], times: int, apache: str | None, say: Callable[[str], None]) -> list[Opened]:
    """On embedded bookies, and on Apache's if a release is named."""
    found = []
    for release in dict.fromkeys([None, apache]):
        with bk_core.local_cluster(BOOKIES, apache=release, progress=say) as cluster:
            for batches in sizes:
                one = Opened(cluster.kind, batches)
                play(one, directory, cluster.uri, f"opening-{batches}", times)
                one.load = load()
                found.append(one)
                say(f"{one}")
    return found


def play(one: Opened, directory: Path, uri: str, name: str, times: int) -> None:
    query = {"do": "measure", "kind": "stateless", "checkpoint": f"{STORE}{name}", "uri": uri, "skip": 0}
    begin(directory, {**query, "batches": BEGUN})
    with history(Task(uri, name, one.batches), _nothing):
        pass
    for number in range(times):
        driver = Driver(directory / f"driver-{number}", "local[2]", module=MODULE)
        try:
            opened = ask(driver, {**query, "do": "open"})
            one.seconds.append(float(opened["seconds"]))
            one.parts.append(opened["parts"])
            if number == times - 1:
                answer = ask(driver, {**query, "batches": MORE})
                one.first, one.rows = answer["first"], answer["rows"]
        finally:
            driver.kill()


def begin(directory: Path, query: dict[str, Any]) -> None:
    driver = Driver(directory / "driver", "local[2]", module=MODULE)
    try:
        ask(driver, query)
    finally:
        driver.kill()


def _nothing(look: dict[str, Any]) -> None:
    """It is looked at by ``size``."""


def summary(found: Sequence[Opened]) -> str:
    rows = []
    for one in found:
        parts = [[part[name] for part in one.parts] for name in PARTS]
        seconds = [", ".join(f"{value:.2f}" for value in values) for values in (one.seconds, *parts)]
        rows.append([one.bookies, f"{one.batches:,}", *seconds, "yes" if one.goes_on else f"NO: {one.first}, {one.rows}", one.load])
    return table(["bookies", "batches", "seconds to open", *PARTS.values(), f"goes on at that batch, {ROWS} rows each", "machine"], rows)
