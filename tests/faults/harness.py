"""The ground that cells run on: one cluster of bookies, Spark drivers as child processes, orders on disk, and the judge."""

from __future__ import annotations

import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil  # type: ignore[import-untyped, unused-ignore]

from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client import BookKeeper
from bk_core.client.files.names import store_log
from bk_core.client.files.store import FileStore
from bk_core.client.files.upkeep import delete_file_store
from bk_core.client.log.history import read_log
from bk_core.client.log.janitor import delete_log, gc_log
from bk_core.errors import NoSuchLogError
from tests.faults.commands import MARK
from tests.faults.driver import STORE
from tests.faults.metadata import Server, revoke_leases
from tests.faults.points import RELEASE
from tests.faults.standalone import StandaloneSpark
from tests.faults.stores import ledgers_of, leftovers, remains
from tests.network.proxy import IN, OUT, Link, Proxy

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 360.0
COMMAND_TIMEOUT_S = 600.0
KILL_TIMEOUT_S = 60.0
SILENCE_S = (3.0, 20.0)  # of the metadata store, shorter and longer than a session
DEAD_S = (0.0, 15.0)  # until a killed metadata store is started again; ZooKeeper needs some seconds then
DIRECTORY, LEDGERS = "directory", "ledgers"
RUNS_MAX = 6
ROWS_PER_FILE = 15
FILES_PER_BATCH = 2


def short(error: str, shown: int = 1500) -> str:
    """Return the ends of an error of Spark: what happened stands in front of the frames of Java, and its cause behind them."""
    return error if len(error) <= 2 * shown else f"{error[:shown]}\n...\n{error[-shown:]}"


class HarnessError(Exception):
    """The cell cannot be judged."""


class HangingError(HarnessError):
    """Something did not end in time, so the driver cannot be used again."""


class DriverDiedError(Exception):
    """The driver was killed, as ordered or not."""


# --- Spark drivers ------------------------------------------------------------------------------------------------------------


class Driver:
    """A Spark session in a process session of its own. Dies with this process, because its standard input ends."""

    def __init__(self, work: Path, master: str, conf: dict[str, str] | None = None, module: str = "tests.faults.driver") -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.log = work / f"driver-{time.monotonic_ns()}.log"
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        command = [sys.executable, "-u", "-m", module, "--master", master, "--work", str(work)]
        with self.log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, "--conf", json.dumps(conf or {})],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment, cwd=work, start_new_session=True,
            )  # fmt: skip
        self._answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()
        self.jvm = int(self._answer(START_TIMEOUT_S, lambda: None)["jvm"])

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                self._answers.put(line[len(MARK) :])
        self._answers.put(None)

    def begin(self, command: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise DriverDiedError("before the command") from None

    def end(self, meanwhile: Callable[[], None], limit_s: float = COMMAND_TIMEOUT_S) -> dict[str, Any]:
        """The answer to the command begun; ``meanwhile`` is called again and again. DriverDiedError if its JVM is gone."""
        return self._answer(limit_s, meanwhile)

    def _answer(self, limit_s: float, meanwhile: Callable[[], None]) -> dict[str, Any]:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            meanwhile()
            try:
                line = self._answers.get(timeout=0.05)
            except queue.Empty:
                continue
            if line is None or not self.alive:
                raise DriverDiedError(f"see {self.log}")
            answer: dict[str, Any] = json.loads(line)
            return answer
        raise HangingError(f"no answer within {limit_s:.0f} s; see {self.log}")

    @property
    def pid(self) -> int:
        """The id of the Python process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        jvm = getattr(self, "jvm", None)
        return self._process.poll() is None and (jvm is None or _lives(jvm))

    def members(self) -> list[int]:
        found = []
        for pid in psutil.pids():
            with suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) == self._process.pid:
                    found.append(pid)
        return found

    def kill(self) -> None:
        """Everything that it started, Python workers included."""
        while members := [pid for pid in self.members() if _lives(pid)]:
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            time.sleep(0.02)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# --- the world ----------------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """A cluster, and a Spark driver that is started again when it was killed. ``checkpoint``: where the cells' checkpoints are. ``keeper``:
    the server of the metadata store, if it may be killed. ``standalone``: where the executors are, if they are processes of their own.
    """

    cluster: LocalCluster
    client: BookKeeper
    work: Path
    master: str = "local[3,4]"
    conf: dict[str, str] = field(default_factory=dict)
    rng: random.Random = field(default_factory=random.Random)
    checkpoint: str = DIRECTORY
    keeper: Server | None = None
    standalone: StandaloneSpark | None = None
    undisturbed: dict[tuple[int, str], tuple[Counter[str], Counter[str]]] = field(default_factory=dict)
    _proxy: Proxy | None = None
    _driver: Driver | None = None
    _beside: Driver | None = None

    def metadata_link(self) -> Link:
        """Between Spark and the metadata store, when checkpoints are in ledgers."""
        server = urlsplit(self.cluster.uri)
        assert server.hostname is not None and server.port is not None
        return self.proxy.link("spark", "metadata", server.hostname, server.port)

    @property
    def proxy(self) -> Proxy:
        if self._proxy is None:
            self._proxy = Proxy()
        return self._proxy

    @property
    def uri(self) -> str:
        """The text that Spark is told."""
        if self.checkpoint == DIRECTORY:
            return self.cluster.uri
        return urlsplit(self.cluster.uri)._replace(netloc=f"127.0.0.1:{self.metadata_link().listen_port}").geturl()

    @property
    def driver(self) -> Driver:
        if self._driver is None or not self._driver.alive:
            self.kill_driver()
            self._driver = Driver(self.work / "spark-work", self.master, self.conf)
        return self._driver

    def kill_driver(self) -> None:
        if self._driver is not None:
            self._driver.kill()
            self._driver = None

    @property
    def beside(self) -> Driver:
        """A second driver, for what happens elsewhere in the meantime."""
        if self._beside is None or not self._beside.alive:
            self._beside = Driver(self.work / "spark-beside", "local[2,4]")
        return self._beside

    def close(self) -> None:
        self.kill_driver()
        if self._beside is not None:
            self._beside.kill()
        if self._proxy is not None:
            self._proxy.close()

    def drivers(self) -> list[Driver]:
        """Those that live."""
        return [driver for driver in (self._driver, self._beside) if driver is not None and driver.alive]


# --- one cell -----------------------------------------------------------------------------------------------------------------


@dataclass
class Verdict:
    """``runs``: how often the query was started until it ended well, the run after it included. ``states``: rows of state, which were
    compared with those of a query that nothing happened to, whose checkpoint is in a local directory. ``differing``: rows of output and
    state that only one of the two has.
    """

    step: str
    fault: str
    runs: int = 0
    fired: int = 0
    missing: int = 0
    doubled: int = 0
    foreign: int = 0
    ledgers: int = 0
    leftovers: int = 0
    intents: int = 0
    states: int = 0
    differing: int = 0
    seconds: float = 0.0
    problem: str = ""
    errors: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        counts = (self.missing, self.doubled, self.foreign, self.leftovers, self.intents, self.differing)
        return not (any(counts) or self.problem)


class Cell:
    """The files, orders and runs of one cell. ``expected``: the ids that must be in the log exactly once."""

    def __init__(self, world: World, name: str, log: str | None = None, checkpoint: str | None = None) -> None:
        self.world = world
        self.log = log or f"{name}-{world.rng.getrandbits(32):08x}"
        self.directory = world.work / "cells" / f"{self.log}-{world.rng.getrandbits(32):08x}"
        self.input = self.directory / "input"
        self.orders = self.directory / "orders"
        self.store = self.directory.name if (checkpoint or world.checkpoint) == LEDGERS else ""  # the checkpoint's name in ledgers
        self.checkpoint = self.directory / "checkpoint"
        self.fixed: dict[str, Any] = {}
        for path in (self.input, self.orders):
            path.mkdir(parents=True)
        self.expected: list[int] = []
        self.runs = 0
        self.errors: list[str] = []
        self.source: dict[str, Any] = {"files": str(self.input)}
        self.inputs: list[str] = []
        self._files = 0
        self._orders = 0
        self._down: list[int] = []
        self._paused: list[int] = []
        self._silent_until: float | None = None
        self._dead_until: float | None = None
        self.answers: dict[str, Callable[[], None]] = {
            "bookie": self.kill_a_bookie,
            "pause": self.pause_a_bookie,
            "bookie of the checkpoint": lambda: self.kill_a_bookie(store_log(self.store)),
            "pause of the checkpoint": lambda: self.pause_a_bookie(store_log(self.store)),
            "silence": self.silence_metadata,
            "metadata": self.kill_metadata,
            "leases": lambda: revoke_leases(self._keeper()),
            "executors": self.kill_executors,
            "nothing": lambda: None,
        }

    # input ---------------------------------------------------------------------------------------------------------------

    def add_files(self, batches: int = 1, rows: int = ROWS_PER_FILE) -> None:
        """``FILES_PER_BATCH`` files for each batch. Each appears at once, under an increasing time."""
        for _ in range(batches * FILES_PER_BATCH):
            ids = range(self._files * 1000, self._files * 1000 + rows)
            path = self.input / f".{self._files:04d}.json"
            path.write_text("".join(json.dumps({"id": i, "text": str(i) * 9}) + "\n" for i in ids))
            os.utime(path, (1_700_000_000 + self._files,) * 2)
            path.rename(self.input / f"{self._files:04d}.json")
            self._files += 1
            self.expected.extend(ids)

    def read_from(self, log: str, **options: str) -> None:
        """From now on the query's input is a log."""
        self.source = {"from": log, "source": options}
        self.inputs.append(log)

    def add_rows(self, count: int = 2 * ROWS_PER_FILE, *, expected: bool = True) -> None:
        """Append to the log that the query reads; no orders are obeyed meanwhile."""
        log = self.inputs[-1]
        first = self._files * 1000
        self._files += 1
        command = {"do": "write", "uri": self.world.uri, "log": log, "faults": "", "first": first, "end": first + count}
        self.call({**command, "sink": {"entrySize": "256"}})
        if expected:
            self.expected.extend(range(first, first + count))

    def rows_by_client(self, count: int = 7) -> None:
        """Append to the query's input while its driver is busy: as a second query would, by a driver of its own."""
        first = self._files * 1000
        self._files += 1
        beside = self.world.beside
        command = {"do": "write", "uri": self.world.uri, "log": self.inputs[-1], "faults": "", "first": first, "end": first + count}
        beside.begin(command)
        if not beside.end(lambda: None)["ok"]:
            raise HarnessError("rows could not be added")
        self.expected.extend(range(first, first + count))

    # orders --------------------------------------------------------------------------------------------------------------

    def order(self, step: str, do: str, **more: Any) -> None:
        if do == "kill_driver":
            more = {"pid": self.world.driver.jvm, **more}
        beside = self.orders / f".{self._orders}"
        beside.write_text(json.dumps({"do": do, **more}))
        beside.rename(self.orders / f"{step}@{self._orders:04d}")
        self._orders += 1

    def fired(self) -> int:
        return len(list(self.orders.glob("fired.*")))

    def wait_until_killed(self, order: int) -> None:
        """Wait until the process that obeys an order is gone, as Spark's ``killTimeout`` wants it."""
        pid = int(next(self.orders.glob(f"fired.*@{order:04d}.*")).name.rpartition(".")[2])
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while _lives(pid):
            if time.monotonic() > deadline:
                raise HarnessError(f"Spark did not kill process {pid} within {KILL_TIMEOUT_S:.0f} s")
            time.sleep(0.05)

    def withdraw(self) -> None:
        for path in self.orders.glob("*@*"):
            if not path.name.startswith("fired."):
                path.unlink(missing_ok=True)

    def release(self) -> None:
        (self.orders / RELEASE).touch()

    def answer(self) -> None:
        """Do what fault points ask for, end a silence in time, and start a dead metadata store again."""
        if self._silent_until is not None and time.monotonic() > self._silent_until:
            self._end_silence()
        if self._dead_until is not None and time.monotonic() > self._dead_until:
            self._start_metadata()
        for question in self.orders.glob("ask.*"):
            self.answers[question.read_text()]()
            question.rename(question.with_name(question.name.replace("ask.", "answer.", 1)))

    # bookies ---------------------------------------------------------------------------------------------------------------

    def _some_bookie(self, log: str) -> int:
        """One that the newest ledger of the log is on."""
        cluster = self.world.cluster
        running = [index for index in range(len(cluster.bookie_ids)) if cluster.is_running(index)]
        for ledger_id in sorted(ledgers_of(self.world.client, log), reverse=True):
            ensemble = self.world.client.ledger_metadata(ledger_id).fragments[-1].ensemble
            held = [index for index in running if cluster.bookie_ids[index] in ensemble]
            if held:
                return self.world.rng.choice(held)
        return self.world.rng.choice(running)

    def kill_a_bookie(self, log: str | None = None) -> None:
        index = self._some_bookie(log or self.log)
        self.world.cluster.kill(index)
        self._down.append(index)

    def pause_a_bookie(self, log: str | None = None) -> None:
        index = self._some_bookie(log or self.log)
        pid = self.world.cluster.pid(index)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        self._paused.append(pid)

    def silence_metadata(self) -> None:
        """Silence the metadata store for Spark, not for the bookies, for some seconds."""
        self.world.proxy.silence(self.world.metadata_link(), OUT, IN)
        self._silent_until = time.monotonic() + self.world.rng.choice(SILENCE_S)

    def _end_silence(self) -> None:
        self.world.proxy.heal(self.world.metadata_link(), cut=self.world.rng.random() < 0.5)
        self._silent_until = None

    def kill_metadata(self) -> None:
        """Kill the metadata store by SIGKILL, for all of its clients. Its data stay."""
        self._keeper().kill()
        self._dead_until = time.monotonic() + self.world.rng.choice(DEAD_S)

    def _start_metadata(self) -> None:
        self._keeper().start()
        self._dead_until = None

    def _keeper(self) -> Server:
        assert self.world.keeper is not None, "this world has no metadata store that may be killed"
        return self.world.keeper

    def kill_executors(self) -> None:
        """One of them or all, by SIGKILL; Spark starts others."""
        assert self.world.standalone is not None, "this world's executors are threads of the driver"
        living = self.world.standalone.executors()
        if not living:
            raise HarnessError("there is no executor to kill")
        for pid in self.world.rng.choice((living, living[:1])):
            os.kill(pid, signal.SIGKILL)

    def heal(self) -> None:
        if self._silent_until is not None:
            self._end_silence()
        if self._dead_until is not None:
            self._start_metadata()
        while self._paused:
            os.kill(self._paused.pop(), signal.SIGCONT)
        while self._down:
            self.world.cluster.restart(self._down.pop())

    # runs ------------------------------------------------------------------------------------------------------------------

    def command(self, **more: Any) -> dict[str, Any]:
        fixed = {"do": "stream", "uri": self.world.uri, "log": self.log, "faults": str(self.orders)}
        return {**fixed, "checkpoint": self._place(), "sink": {"entrySize": "256"}, **self.source, **self.fixed, **more}

    def _place(self) -> str:
        return f"{STORE}{self.store}" if self.store else str(self.checkpoint)

    def call(self, command: dict[str, Any]) -> dict[str, Any]:
        """An orderly command. HarnessError if it fails."""
        for _ in range(3):
            driver = self.world.driver
            try:
                driver.begin(command)
                answer = driver.end(lambda: None)
            except DriverDiedError:
                continue
            if answer["ok"]:
                return answer
            raise HarnessError(short(answer["error"]))
        raise HarnessError("the driver died again and again")

    def run(self, meanwhile: Callable[[], None] | None = None, **more: Any) -> bool:
        """Start the query once; whether it ended well."""
        self.runs += 1
        driver = self.world.driver

        def attend() -> None:
            self.answer()
            if meanwhile is not None:
                meanwhile()

        try:
            driver.begin(self.command(**more))
            answer = driver.end(attend)
        except DriverDiedError:
            self.errors.append("driver killed")
            return False
        if not answer["ok"]:
            self.errors.append(answer["error"])
            if "ConnectionRefusedError" in answer["error"]:  # Spark's end of the gateway is gone, though its process may not be yet
                self.world.kill_driver()
        return bool(answer["ok"])

    def run_to_the_end(self, **more: Any) -> None:
        """Restart from the checkpoint until it ends well. HarnessError if it does not."""
        for _ in range(RUNS_MAX):
            if self.run(**more):
                return
        raise HarnessError(f"failed {RUNS_MAX} times: {short(self.errors[-1])}")

    def lose(self, *names: str) -> None:
        """Delete files of the checkpoint, with their checksums. In ledgers this takes it from the driver that had it open."""
        if self.store:
            with FileStore.open(self.world.client, self.store, create=False) as store:
                for name in names:
                    if not store.delete(f"/{name}"):
                        raise HarnessError(f"the checkpoint has no {name}")
            return
        for name in names:
            path = self.checkpoint / name
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def last(self, folder: str) -> int:
        if self.store:
            # a view may be one batch behind the driver that has it open: an owner sees all that was acknowledged
            with FileStore.open(self.world.client, self.store, create=False) as store:
                names = [status.name for status in store.listing(f"/{folder}")]
        else:
            names = [path.name for path in (self.checkpoint / folder).iterdir()]
        return max(int(name) for name in names if name.isdigit())

    # verdict ---------------------------------------------------------------------------------------------------------------

    def ledgers(self) -> set[int]:
        """All ledgers that say they belong to this log."""
        return ledgers_of(self.world.client, self.log)

    def judge(self, verdict: Verdict) -> None:
        """Compare the log with the input, as a user reads it; collect garbage without waiting; look at what is left."""
        verdict.runs, verdict.fired, verdict.errors = self.runs, self.fired(), self.errors
        if self.fixed.get("stateful"):
            self._compare_with_undisturbed(verdict)
        found = Counter(self.call({"do": "read", "uri": self.world.uri, "log": self.log})["ids"])
        wanted = Counter(self.expected)
        verdict.missing = (wanted - found).total()
        verdict.doubled = sum(found[i] - wanted[i] for i in wanted if found[i] > wanted[i])
        verdict.foreign = sum(count for i, count in found.items() if i not in wanted)
        client = self.world.client
        verdict.ledgers = len(self.ledgers())
        gc_log(client, self.log, min_age_s=0)
        left = self.ledgers()
        with suppress(NoSuchLogError):
            left -= read_log(client, self.log).named(left)
        verdict.leftovers = len(left)
        verdict.intents = len(client.store.children(f"intents/{self.log}"))
        if self.store:
            self._judge_store(verdict)

    def _compare_with_undisturbed(self, verdict: Verdict) -> None:
        """Row by row and state by state. The undisturbed query had the same files, and is played once for all cells that had them."""
        key = (self._files, str(self.fixed["state"]))
        if key not in self.world.undisturbed:
            other = Cell(self.world, "undisturbed", checkpoint=DIRECTORY)
            other.fixed = self.fixed
            other.add_files(self._files // FILES_PER_BATCH)
            other.run_to_the_end()
            self.world.undisturbed[key] = other._kept()
            other.remove()
        right, mine = self.world.undisturbed[key], self._kept()
        verdict.states = mine[1].total()
        verdict.differing = sum(((have - want) + (want - have)).total() for have, want in zip(mine, right, strict=True))
        if not (right[0] and right[1]):
            verdict.problem = "the undisturbed query wrote nothing or kept nothing, so nothing is proved"

    def _kept(self) -> tuple[Counter[str], Counter[str]]:
        """The rows that were written, and those of the state."""
        rows = self.call({"do": "read", "uri": self.world.uri, "log": self.log})["rows"]
        command = {"do": "states", "uri": self.world.uri, "checkpoint": self._place(), "state": self.fixed["state"]}
        return Counter(rows), Counter(self.call(command)["states"])

    def _close_store(self) -> None:
        """No driver has it any more."""
        for driver in self.world.drivers():
            with suppress(DriverDiedError):
                driver.begin({"do": "close", "checkpoint": f"{STORE}{self.store}"})
                driver.end(lambda: None)

    def _judge_store(self, verdict: Verdict) -> None:
        """Judge what is left of the checkpoint: nothing that it does not need, and nothing at all when it is deleted."""
        self._close_store()
        left = [*leftovers(self.world.client, self.store), *remains(self.world.client, self.store)]
        verdict.leftovers += len(left)
        verdict.problem = "; ".join(filter(None, [verdict.problem, *left]))

    def remove(self) -> None:
        if self.store:
            with suppress(Exception):  # it is deleted already, or the cell failed
                self._close_store()
                delete_file_store(self.world.client, self.store, even_if_alive=True)
        shutil.rmtree(self.directory, ignore_errors=True)
        for log in (self.log, *self.inputs):
            with suppress(NoSuchLogError):
                delete_log(self.world.client, log)


def distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))
