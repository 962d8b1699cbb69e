"""Two drivers on one checkpoint, which lies in a directory or in ledgers: what becomes of the queries and of the rows.

A query reads files of a few rows, one a batch, and writes them to a log of ours, or appends them with ``foreachBatch`` as many a job does.
While files come all the time, a second driver starts the same query from the same checkpoint, as somebody does who takes the first one for
dead. When all files are there, whoever still runs is left to finish; where nobody does, a driver is started once more. Then the rows are
counted, by the log of each file in the sink.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from tests.checkpoints.figures.cost import MODULE, ask
from tests.checkpoints.figures.numbers import load, table
from tests.faults.driver import STORE
from tests.faults.harness import DIRECTORY, LEDGERS, Driver

BOOKIES = 3
FILES, ROWS_PER_FILE = 30, 5
BEFORE = 4  # files until the second driver starts
PACE_S = 0.4  # between files
LOOK_S = 0.1
LIMIT_S = 240.0
SINKS = {"log": "a log", "append": "foreachBatch that appends"}
_CODE = re.compile(r"BK-[A-Z-]+")
_CLASS = re.compile(r"(?:[a-z]+\.)+([A-Z]\w*(?:Exception|Error))")


@dataclass
class Outcome:
    """The result of one play. ``first`` and ``second``: how the two queries ended. ``again``: how one more driver ended, if it was
    needed."""

    side: str
    sink: str
    first: str
    second: str
    again: str
    missing: int
    doubled: int

    @property
    def good(self) -> bool:
        """The one promise: the first driver ends, the second goes on, and each row is there once."""
        return not (self.missing or self.doubled) and "BK-FILES-TAKEN-OVER" in self.first and not self.second


def counted(ids: Iterable[int], expected: Iterable[int]) -> tuple[int, int]:
    """Rows that are missing, and how many more than once."""
    found = Counter(ids)
    wanted = set(expected)
    return len(wanted - set(found)), sum(found.values()) - len(found)


def told(error: str | None) -> str:
    """Return what ended a query, in a few words: our code, or the class and the first words of Spark's error."""
    if not error:
        return ""
    code = _CODE.search(error)
    if code:
        return code[0]
    lines = [line for line in error.splitlines() if not line.startswith("\tat ")]
    line = next((one for one in lines if "concurrent" in one.lower()), lines[0])
    name = _CLASS.search(line)
    return f"{name[1]}: {line[line.index(name[0]) + len(name[0]) + 2 :][:90]}" if name else line[:110]


class Play:
    """One checkpoint, its input and its output."""

    def __init__(self, directory: Path, cluster: LocalCluster, side: str, sink: str, number: int) -> None:
        name = f"two-{side}-{sink}-{number}"
        self._own = directory / name
        (self._own / "input").mkdir(parents=True)
        checkpoint = f"{STORE}{name}" if side == LEDGERS else str(self._own / "checkpoint")
        output = name if sink == "log" else str(self._own / "output")
        self.side, self.sink = side, sink
        self.query = {
            "checkpoint": checkpoint, "uri": cluster.uri, "sink": sink, "input": str(self._own / "input"), "output": output
        }  # fmt: skip

    def drop(self, number: int) -> None:
        beside = self._own / f"{number}.json"
        rows = range(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        beside.write_text("".join(json.dumps({"id": row}) + "\n" for row in rows))
        beside.replace(self._own / "input" / beside.name)

    def play(self, first: Driver, second: Driver) -> Outcome:
        ask(first, {"do": "follow", **self.query})
        for number in range(BEFORE):
            self.drop(number)
        self._until(lambda: self._look(first)["batch"] >= 1)
        second.begin({"do": "follow", **self.query})
        begun = time.monotonic()
        for number in range(BEFORE, FILES):
            time.sleep(max(0.0, begun + (number - BEFORE + 1) * PACE_S - time.monotonic()))  # files come by the clock
            self.drop(number)
        answer = second.end(lambda: None, LIMIT_S)
        refused = "" if answer["ok"] else str(answer["error"])
        ends = self._to_the_end(first, second, refused)
        again = ""
        if not any(end["active"] for end in ends.values()):
            again = self._once_more(second)
        for driver, end in ((first, ends["first"]), (second, ends["second"])):
            if end["active"]:
                ask(driver, {"do": "finish", "stop": True})
        ids = ask(second, {"do": "read", **self.query})["ids"]
        missing, doubled = counted(ids, range(FILES * ROWS_PER_FILE))
        return Outcome(self.side, self.sink, told(ends["first"]["error"]), told(ends["second"]["error"]), again, missing, doubled)

    def _to_the_end(self, first: Driver, second: Driver, refused: str) -> dict[str, dict[str, Any]]:
        """Return how both queries stand once each has taken all files, or has ended."""
        for driver in (first,) if refused else (first, second, first):
            ask(driver, {"do": "drain"})
        gone = {"active": False, "error": refused, "batch": -1}
        return {"first": self._look(first), "second": gone if refused else self._look(second)}

    def _once_more(self, driver: Driver) -> str:
        """As somebody starts it who finds both ended."""
        try:
            ask(driver, {"do": "follow", **self.query, "once": True})
            end = ask(driver, {"do": "finish", "limit": LIMIT_S})
        except RuntimeError as error:
            return told(str(error))
        return told(end["error"]) or "ends well"

    @staticmethod
    def _look(driver: Driver) -> dict[str, Any]:
        return ask(driver, {"do": "look"})

    @staticmethod
    def _until(holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            if time.monotonic() > deadline:
                raise TimeoutError("the first driver has no batch")
            time.sleep(LOOK_S)


def measure(directory: Path, rounds: int, say: Callable[[str], None]) -> list[Outcome]:
    """The same two drivers play all of them, one after the other."""
    found: list[Outcome] = []
    with bk_core.local_cluster(BOOKIES) as cluster:
        drivers: list[Driver] = []
        try:
            for number in range(2):
                drivers.append(Driver(directory / f"driver-{number}", "local[2]", module=MODULE))
            for number in range(rounds):
                for sink in SINKS:
                    for side in (DIRECTORY, LEDGERS):
                        found.append(Play(directory, cluster, side, sink, number).play(*drivers))
                        say(f"{found[-1]}; {load()}")
        finally:
            for driver in drivers:
                with suppress(ProcessLookupError):
                    driver.kill()
    return found


def summary(found: list[Outcome]) -> str:
    """One line for each place and sink."""
    rows = []
    for side, sink in dict.fromkeys((one.side, one.sink) for one in found):
        mine = [one for one in found if (one.side, one.sink) == (side, sink)]
        ends = [_most(Counter(end or "goes on" for end in ends)) for ends in zip(*((one.first, one.second) for one in mine), strict=True)]
        again = _most(Counter(one.again for one in mine if one.again))
        sums = [sum(getattr(one, what) for one in mine) for what in ("missing", "doubled")]
        rows.append([side, SINKS[sink], len(mine), *ends, again, *sums])
    head = ["checkpoint", "sink", "times", "first driver", "second driver", "one more", "rows missing", "doubled"]
    return table(head, rows)


def _most(ends: Counter[str]) -> str:
    return "; ".join(f"{count} x {end}" for end, count in ends.most_common())
