"""The ground that hardships are played on: a cluster whose disks and links can be made bad, one driver, one query, and the judge."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.client import BookKeeper
from tests.checkpoints.judge import Judged, compared
from tests.checkpoints.marker import LEFT, MET, ORDER, RELEASE
from tests.faults.driver import STORE
from tests.faults.harness import Driver
from tests.faults.stores import leftovers, remains
from tests.network.proxy import Link, Proxy

MODULE = "tests.checkpoints.hardships.driver"
BOOKIES = 3
STATES = ("hdfs", "rocksdb")
LIMIT_S = 600.0
LOOK_S = 0.2
BATCHES = 8  # of each play, from 0 on
HARD = 3  # the batch whose task is held while the hardship begins
_CODE = re.compile(r"\[BK-[-A-Z\d]+\][^\n]*")


class HardshipError(Exception):
    """The play cannot be judged."""


@dataclass
class Ground:
    """``work`` holds everything that is written. ``disks``: where each bookie keeps its data."""

    cluster: LocalCluster
    client: BookKeeper
    keeper: ZooKeeperProcess
    work: Path
    proxy: Proxy
    undisturbed: dict[str, tuple[list[str], dict[str, list[str]]]] = field(default_factory=dict)
    _driver: Driver | None = None

    @property
    def disks(self) -> list[Path]:
        return [self.cluster.directory / f"bookie-{index}" for index in range(BOOKIES)]

    @property
    def zookeeper(self) -> Link:
        """The way of the driver to ZooKeeper."""
        host, _, port = self.keeper.connect_string.rpartition(":")
        return self.proxy.link("driver", "zookeeper", host, int(port))

    @property
    def links(self) -> list[Link]:
        """The ways of the driver to the bookies."""
        named = [(bookie, *bookie.rsplit(":", 1)) for bookie in self.cluster.bookie_ids]
        return [self.proxy.link("driver", bookie, host, int(port)) for bookie, host, port in named]

    @property
    def uri(self) -> str:
        """The text that Spark is told."""
        return f"zk://127.0.0.1:{self.zookeeper.listen_port}/ledgers"

    @property
    def driver(self) -> Driver:
        if self._driver is None or not self._driver.alive:
            self.kill_driver()
            self._driver = Driver(self.work / "spark-work", "local[3]", module=MODULE)
            addresses = {link.target: ["127.0.0.1", link.listen_port] for link in self.links}
            self.ask({"do": "detour", "bookies": addresses})
        return self._driver

    def ask(self, command: dict[str, Any], meanwhile: Callable[[], None] = lambda: None, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """HardshipError with the driver's error if the command fails."""
        driver = self.driver
        driver.begin(command)
        answer = driver.end(meanwhile, limit_s)
        if not answer["ok"]:
            raise HardshipError(answer["error"])
        return answer

    def kill_driver(self) -> None:
        if self._driver is not None:
            self._driver.kill()
            self._driver = None


@contextmanager
def ground(work: Path, apache: str | None, disk: Callable[[Path], Any] | None = None) -> Iterator[Ground]:
    """``disk`` makes the file system of each bookie's directory; ZooKeeper, which ends on a full one, is elsewhere."""
    with ExitStack() as stack:
        keeper = stack.enter_context(ZooKeeperProcess(work / "zookeeper"))
        for index in range(BOOKIES if disk else 0):
            assert disk is not None
            (work / "cluster").mkdir(exist_ok=True)
            stack.enter_context(disk(work / "cluster" / f"bookie-{index}"))
        cluster = stack.enter_context(bk_core.local_cluster(BOOKIES, work / "cluster", apache=apache, zookeeper=keeper.connect_string))
        client = stack.enter_context(bk_core.connect(cluster.uri))
        proxy = Proxy()
        stack.callback(proxy.close)
        made = Ground(cluster, client, keeper, work, proxy)
        stack.callback(made.kill_driver)
        yield made


@dataclass
class Outcome:
    """One play. ``told``: what the query's exceptions say, and what opening said; ``starts``: how often it was started."""

    hardship: str
    state: str
    bookies: str
    starts: int = 0
    told: list[str] = field(default_factory=list)
    judged: Judged = field(default_factory=Judged)
    left: list[str] = field(default_factory=list)
    seconds: float = 0.0
    more: str = ""

    @property
    def good(self) -> bool:
        return self.judged.good and not self.left

    def __str__(self) -> str:
        judged = self.judged
        counts = f"{judged.missing}/{judged.doubled}/{judged.foreign}/{judged.wrong} of {judged.rows}+{judged.states}"
        told = "".join(f"\n    {gist(error)}" for error in self.told)
        what = f"{self.hardship}, {self.state}, {self.bookies}: {counts}, left {self.left}, {self.starts} starts"
        return f"{what}, {self.more}, {self.seconds:.0f} s{told}"


class Query:
    """A stateful query of ``BATCHES`` batches with its checkpoint in ledgers, or with ``undisturbed`` in a directory."""

    def __init__(self, ground: Ground, name: str, state: str, patience_s: float, *, undisturbed: bool = False) -> None:
        self.ground, self.name, self.state = ground, name, state
        own = ground.work / "queries" / name
        self._orders = own / "orders"
        self._orders.mkdir(parents=True)
        self.spec = {
            "name": name, "kind": "dropDuplicates", "store": state, "source": "rate-micro-batch", "sink": "batches", "options": {},
            "uri": ground.uri, "input": "", "from": "", "output": str(own / "output"), "log": "", "orders": str(self._orders),
            "checkpoint": str(own / "checkpoint") if undisturbed else f"{STORE}{name}", "patience": patience_s,
        }  # fmt: skip
        self.starts = 0
        self.told: list[str] = []
        self._is_told = True  # how the last start ended

    def hold_at(self, batch: int) -> None:
        """The next task of this batch, or of a later one, waits for ``release``."""
        for path in self._orders.iterdir():
            path.unlink()
        (self._orders / ORDER).write_text(json.dumps({"batch": batch, "hold": True}))

    def release(self) -> None:
        (self._orders / RELEASE).touch()

    def go_on(self, batch: int) -> None:
        """Let the task go that is held, and hold the next one of this batch."""
        self.release()
        until(lambda: (self._orders / LEFT).exists() or not self.look()["active"], LIMIT_S, f"{self.name}: the task that was held stays")
        self.hold_at(batch)

    @property
    def is_held(self) -> bool:
        return any(self._orders.glob(f"{MET}.*")) and not (self._orders / RELEASE).exists()

    def start(self) -> bool:
        """False if the checkpoint could not be opened, with what was told in ``told``."""
        self.starts += 1
        try:
            self.ground.ask({"do": "start", "queries": [self.spec]})
        except HardshipError as error:
            self.told.append(f"start: {error}")
            return False
        self._is_told = False
        return True

    def look(self) -> dict[str, Any]:
        """Return True if it runs, its last batch, and the error that it ended with, which goes to ``told``."""
        found: dict[str, Any] = self.ground.ask({"do": "look"})["queries"][self.name]
        if not found["active"] and not self._is_told:
            self.told.append(str(found["error"]))
            self._is_told = True
        return found

    def until(self, holds: Callable[[], bool], limit_s: float = LIMIT_S) -> bool:
        """True once it holds, False if the query ended before."""
        deadline = time.monotonic() + limit_s
        while not holds():
            seen = self.look()
            if not seen["active"]:
                return bool(holds())
            if time.monotonic() > deadline:
                raise HardshipError(f"{self.name}: still at batch {seen['batch']} after {limit_s:.0f} s")
            time.sleep(LOOK_S)
        return True

    def close(self) -> None:
        self.ground.ask({"do": "close", "checkpoint": self.spec["checkpoint"]})

    def under_hardship(self, limit_s: float) -> str:
        """Let the task go that is held, and wait until the query ends, or is through, or for so long. What happened, in words."""
        before, begun = self.look()["batch"], time.monotonic()
        self.go_on(BATCHES)
        while (seen := self.look())["active"] and not self.is_held and time.monotonic() < begun + limit_s:
            time.sleep(LOOK_S)
        what = "ended" if not seen["active"] else "was through" if self.is_held else "went on, or waited,"
        return f"from batch {before} to {seen['batch']}, {what} in {time.monotonic() - begun:.0f} s"

    def opened_anew(self) -> str:
        """If it has ended: close the checkpoint, open it again, start the query. What happened, in words."""
        if self.look()["active"]:
            return ""
        times = []
        for step in (self.close, self.start):
            begun = time.monotonic()
            done = step()
            times.append(time.monotonic() - begun)
        return f"; closed in {times[0]:.0f} s, {'not ' if done is False else ''}opened in {times[1]:.0f} s"

    def to_the_end(self) -> None:
        """Go on, started again where it has ended, to the last batch, and stop there."""
        if not self.is_held:  # at the end already
            self.hold_at(BATCHES)
        for _ in range(10):
            if (self.starts and self.look()["active"]) or self.start():
                if self.until(lambda: self.is_held):
                    break
        else:
            raise HardshipError(f"{self.name}: does not go on: {self.told[-1]}")
        self.stop()

    def stop(self) -> None:
        """Let the task go that is held, too."""
        driver = self.ground.driver
        driver.begin({"do": "stop", "names": [self.name]})
        driver.end(self.release)

    def seen(self) -> tuple[list[str], dict[str, list[str]]]:
        """Rows of output, and of state at three versions."""
        rows = self.ground.ask({"do": "output", "query": self.spec})["rows"]
        states = self.ground.ask({"do": "states", "query": self.spec, "last": BATCHES - 1, "back": [0, 2, 4]})["states"]
        return rows, states


def play(ground: Ground, hardship: str, state: str, patience_s: float, do: Callable[[Query], str]) -> Outcome:
    """``do`` is called when a task of batch ``HARD`` is held, and heals what it broke; what it returns is told beside the outcome."""
    if state not in ground.undisturbed:
        quiet = Query(ground, f"quiet-{state}".replace(" ", "-"), state, patience_s, undisturbed=True)
        quiet.to_the_end()
        ground.undisturbed[state] = quiet.seen()
        ground.kill_driver()
    begun = time.monotonic()
    query = Query(ground, re.sub(r"[^a-z0-9]+", "-", f"{hardship}-{state}-{time.monotonic_ns()}".lower()), state, patience_s)
    outcome = Outcome(hardship, state, ground.cluster.kind)
    query.hold_at(HARD)
    if not query.start() or not query.until(lambda: query.is_held):
        raise HardshipError(f"{hardship}: {query.told}")
    outcome.more = do(query)
    query.to_the_end()
    rows, states = query.seen()
    right_rows, right_states = ground.undisturbed[state]
    outcome.judged = compared(rows, states, right_rows, right_states, True)
    query.close()
    ground.kill_driver()  # a task that was stopped while it was held may keep its worker from the next one
    outcome.left = [*leftovers(ground.client, query.name), *remains(ground.client, query.name)]
    outcome.starts, outcome.told, outcome.seconds = query.starts, query.told, time.monotonic() - begun
    return outcome


def play_all(
    ground: Ground, plays: Iterable[tuple[str, str, float, Callable[[Query], str]]], only: str, say: Callable[[object], None]
) -> list[Outcome]:
    """Those whose name the regular expression ``only`` finds. A play is (hardship, state store, patience, what to do)."""
    found = []
    for hardship, state, patience_s, do in plays:
        if re.search(only, f"{hardship}, {state}"):
            found.append(play(ground, hardship, state, patience_s, do))
            say(found[-1])
    return found


def until(holds: Callable[[], bool], limit_s: float, otherwise: str) -> None:
    """HardshipError with the text ``otherwise`` if it does not hold in time."""
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            raise HardshipError(otherwise)
        time.sleep(LOOK_S)


def gist(error: str) -> str:
    """The part of an exception that has our code, or its first line."""
    found = _CODE.search(error)
    return found[0] if found else error.splitlines()[0][:300] if error else ""
