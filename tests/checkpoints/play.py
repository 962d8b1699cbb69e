"""Plays cases: each with its checkpoint in a directory and in ledgers, restarted together, and once undisturbed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client import BookKeeper
from bk_core.client.log.janitor import delete_log
from bk_core.errors import NoSuchLogError
from tests.checkpoints.cases import Case
from tests.checkpoints.feed import write_files
from tests.checkpoints.judge import Judged, compared, consecutive
from tests.checkpoints.marker import MET, ORDER, RELEASE
from tests.faults.driver import STORE
from tests.faults.harness import DIRECTORY, LEDGERS, Driver, HangingError
from tests.faults.stores import leftovers, remains

UNDISTURBED = "undisturbed"
MODULE = "tests.checkpoints.driver"
MEET_TIMEOUT_S = 800.0
LOOK_S = 2.0
TAIL = 3  # batches after the last restart
MOMENT_S = 2.5  # of a restart after a task began: until then the batch is over, and the next one is held
STATES_BACK = (0, 3, 6)
IMPATIENCE = "Python worker failed to connect back"  # Spark gives a worker ten seconds, too few on a busy machine: started again
AGAIN_MAX = 20


class PlayError(Exception):
    """The case cannot be judged."""


@dataclass
class Play:
    """One query with one place for its checkpoint. ``kills`` and ``stops``: the restarts that met it."""

    case: Case
    side: str
    spec: dict[str, Any]
    orders: Path
    kills: int = 0
    stops: int = 0
    batch: int = 0
    last: int = -1
    again: int = 0
    errors: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    def order(self, batch: int, hold: bool) -> None:
        shutil.rmtree(self.orders, ignore_errors=True)
        self.orders.mkdir(parents=True)
        (self.orders / ORDER).write_text(json.dumps({"batch": batch, "hold": hold}))

    def no_orders(self) -> None:
        shutil.rmtree(self.orders, ignore_errors=True)
        self.orders.mkdir(parents=True)

    def met(self) -> bool:
        for path in self.orders.glob(f"{MET}.*"):
            self.batch = int(path.name.rpartition(".")[2])
            return True
        return False

    def release(self) -> None:
        (self.orders / RELEASE).touch()


@dataclass(frozen=True)
class Plan:
    """The plan of a group: ``rounds`` restarts, ``kills`` of them by SIGKILL."""

    rounds: int
    kills: int
    sides: tuple[str, ...] = (DIRECTORY, LEDGERS)

    @property
    def batches(self) -> int:
        return 2 * self.rounds + TAIL + 1


class Group:
    """Some cases in one Spark session, which is killed and started again with all their queries."""

    def __init__(self, cluster: LocalCluster, client: BookKeeper, directory: Path, plan: Plan, rng: random.Random) -> None:
        self._cluster, self._client = cluster, client
        self._directory, self._plan, self._rng = directory, plan, rng
        self._running: Driver | None = None
        self.plays: list[Play] = []

    # --- before -----------------------------------------------------------------------------------------------------------

    def add(self, case: Case) -> None:
        number = f"{self._rng.getrandbits(32):08x}"
        directory = self._directory / number
        rng = random.Random(self._rng.getrandbits(64))
        for side in ("left", "right")[: 2 if case.kind == "stream-stream join" else 1]:
            write_files(directory / "input" / side, self._plan.batches, rng)
        source = f"checkpoints-{number}-in"
        for place, side in enumerate((*self._plan.sides, UNDISTURBED)):
            name = f"checkpoints-{number}-{place}"
            own = directory / str(place)
            spec = {
                "name": name, "kind": case.kind, "store": case.store, "source": case.source, "sink": case.sink, "options": case.options,
                "uri": self._cluster.uri, "input": str(directory / "input"), "from": source, "output": str(own / "output"), "log": name,
                "orders": str(own / "orders"), "checkpoint": f"{STORE}{name}" if side == LEDGERS else str(own / "checkpoint"),
            }  # fmt: skip
            self.plays.append(Play(case, side, spec, own / "orders"))

    # --- the session --------------------------------------------------------------------------------------------------------

    def _driver(self) -> Driver:
        """Every query may hold a task and still leaves cores to the others."""
        if self._running is None or not self._running.alive:
            self._kill()
            self._running = Driver(self._directory / "spark-work", f"local[{len(self.plays) + 2}]", module=MODULE)
        return self._running

    def _kill(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running = None

    def _call(self, command: dict[str, Any]) -> dict[str, Any]:
        driver = self._driver()
        driver.begin(command)
        answer = driver.end(lambda: None, MEET_TIMEOUT_S)
        if not answer["ok"]:
            raise PlayError(f"{command['do']}: {answer['error']}")
        return answer

    def _look(self, plays: Sequence[Play]) -> list[Play]:
        """Those that run. PlayError if one failed by itself."""
        found = self._call({"do": "look"})["queries"]
        for play in plays:
            seen = found[play.name]
            if seen["error"] and IMPATIENCE in seen["error"] and play.again < AGAIN_MAX:
                self._call({"do": "start", "queries": [play.spec]})
                seen["active"] = True
                play.again += 1
            elif seen["error"]:
                play.errors.append(seen["error"])
                raise PlayError(f"{play.side}, {play.case.name}: failed by itself: {seen['error']}")
            play.last = play.last if seen["batch"] is None else max(play.last, seen["batch"])
        return [play for play in plays if found[play.name]["active"]]

    # --- rounds -------------------------------------------------------------------------------------------------------------

    def play(self, say: Callable[[str], None]) -> None:
        """All restarts, then all to the end, the undisturbed ones from their beginning."""
        for play in self.plays:
            if play.case.source == "log" and play.side == UNDISTURBED:
                self._call({"do": "fill", "files": f"{play.spec['input']}/left", "uri": self._cluster.uri, "log": play.spec["from"]})
        restarted = [play for play in self.plays if play.side != UNDISTURBED]
        kinds = ["kill"] * self._plan.kills + ["stop"] * (self._plan.rounds - self._plan.kills)
        self._rng.shuffle(kinds)
        batch = 0
        for number, kind in enumerate(kinds):
            begun = time.monotonic()
            hold = self._rng.random() < 0.5
            self._begin(restarted, batch, hold)
            met = self._wait_until_met(restarted)
            moment = 0.0 if hold else self._rng.uniform(0, MOMENT_S)
            time.sleep(moment)
            how = self._killed(met) if kind == "kill" else self._stopped(met)
            say(f"    {number + 1:2d}: batch {batch}, {how}, {moment:.1f} s after a task began ({time.monotonic() - begun:.0f} s)")
            batch += self._rng.choice((0, 1)) if hold else self._rng.choice((1, 2))
        self._finish()

    def _begin(self, plays: Sequence[Play], batch: int, hold: bool) -> None:
        for play in plays:
            play.order(batch, hold)
        self._call({"do": "start", "queries": [play.spec for play in plays]})

    def _wait_until_met(self, plays: Sequence[Play]) -> list[Play]:
        """Until every query's order is obeyed, or it is at its end."""
        deadline, looked = time.monotonic() + MEET_TIMEOUT_S, time.monotonic()
        waiting = list(plays)
        while waiting:
            if time.monotonic() > deadline:
                raise PlayError(f"nothing came to its place within {MEET_TIMEOUT_S:.0f} s: {[(p.side, p.case.name) for p in waiting]}")
            waiting = [play for play in waiting if not play.met()]
            if time.monotonic() > looked + LOOK_S:
                active = self._look(plays)
                waiting = [play for play in waiting if play in active]
                looked = time.monotonic()
            time.sleep(0.02)
        return [play for play in plays if play.met()]

    def _killed(self, met: Sequence[Play]) -> str:
        """SIGKILL of everything, or first of the JVM, or first of the Python driver, which has the gateway."""
        driver = self._driver()
        victim = self._rng.choice(("all", "JVM first", "Python first"))
        if victim != "all":
            with suppress(ProcessLookupError):
                os.kill(driver.jvm if victim == "JVM first" else driver.pid, signal.SIGKILL)
            for play in met:
                play.release()  # the batch goes on as far as it can
            time.sleep(self._rng.uniform(0, 0.5))
        self._kill()
        for play in met:
            play.kills += 1
        return f"killed ({victim})"

    def _stopped(self, met: Sequence[Play]) -> str:
        driver = self._driver()
        driver.begin({"do": "stop", "names": [play.name for play in self.plays if play.side != UNDISTURBED]})
        time.sleep(self._rng.uniform(0, 0.3))
        for play in met:
            play.release()
        answer = driver.end(lambda: None)
        if not answer["ok"]:
            raise PlayError(f"stop: {answer['error']}")
        for play in met:
            play.stops += 1
            if play.name in answer["errors"]:
                play.errors.append(answer["errors"][play.name])
        failed = sum(play.name in answer["errors"] for play in met)
        return f"stopped, {failed} with an error" if failed else "stopped"

    def _finish(self) -> None:
        for play in self.plays:
            play.no_orders()
        endless = [play for play in self.plays if play.case.endless]
        for play in endless:
            play.order(self._plan.batches, True)
        self._call({"do": "start", "queries": [play.spec for play in self.plays]})
        deadline = time.monotonic() + 2 * MEET_TIMEOUT_S
        while active := self._look(self.plays):
            if time.monotonic() > deadline:
                raise HangingError(f"still active: {[(play.side, play.case.name) for play in active]}")
            if all(play.met() for play in active):  # only the endless ones
                driver = self._driver()
                driver.begin({"do": "stop", "names": [play.name for play in active]})
                driver.end(lambda: [play.release() for play in active] and None)
            time.sleep(0.5)

    # --- afterwards -----------------------------------------------------------------------------------------------------------

    def judge(self) -> list[Judged]:
        """Judge each play that was restarted, by the undisturbed one of the same case."""
        found = []
        cases = list(dict.fromkeys(play.case for play in self.plays))
        for case in cases:
            undisturbed = next(play for play in self.plays if play.case is case and play.side == UNDISTURBED)
            right = self._seen(undisturbed) if case.same else None
            for play in self._restarted(case):
                rows, states, last = self._seen(play)
                one = consecutive(rows) if right is None else compared(rows, states, right[0], right[1], case.exactly)
                if right is not None and last != right[2] and case.steady and case.exactly:
                    one.problem = f"{last} batches, undisturbed {right[2]}"
                one.case, one.side, one.kills, one.stops, one.errors = case.name, play.side, play.kills, play.stops, play.errors
                one.batches = last
                found.append(one)
        self._kill()
        for one, play in zip(found, (play for case in cases for play in self._restarted(case)), strict=True):
            if play.side == LEDGERS:
                name = play.spec["checkpoint"].removeprefix(STORE)
                left = [*leftovers(self._client, name), *remains(self._client, name)]
                one.left = len(left)
                one.problem = one.problem or "; ".join(left)
        return found

    def _restarted(self, case: Case) -> list[Play]:
        return [play for play in self.plays if play.case is case and play.side != UNDISTURBED]

    def _seen(self, play: Play) -> tuple[list[str], dict[str, list[str]], int]:
        rows = self._call({"do": "output", "query": play.spec})["rows"]
        names = self._call({"do": "files", "query": play.spec, "folders": ["commits"]})["files"]["commits"]
        last = max(int(name) for name in names if name.isdigit())
        if not play.case.store:
            return rows, {}, last
        back = list(STATES_BACK) if play.case.steady else [0]
        return rows, self._call({"do": "states", "query": play.spec, "last": last, "back": back})["states"], last

    def close(self) -> None:
        self._kill()
        for play in self.plays:
            for log in {play.spec["log"], play.spec["from"]}:
                with suppress(NoSuchLogError):
                    delete_log(self._client, log)
