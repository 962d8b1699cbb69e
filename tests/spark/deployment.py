"""One job in a Spark of its own kind: rows go through two logs while something is killed. Prints its counts as one line of JSON.

    python -m tests.spark.deployment '{"uri": ..., "master": "local[2,4]", "log": ..., "directory": ..., "victims": ["worker"]}'

A row named by a step is held in its task until the victim is dead, so each kill falls into a running batch and not near one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.quick_java import OPTIONS

STEP = 2000  # rows per append
WAIT_S = 240.0
TRIES = 10
QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "FATAL",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.extraJavaOptions": " ".join(OPTIONS),
}


@dataclass
class Job:
    """The program to run. ``victims``: one kill per step, of "worker", "daemon" or "executor" (its JVM), during the batch."""

    uri: str
    master: str
    log: str
    directory: str
    victims: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    remote: bool = False
    between: bool = False  # kill all daemons between the batches of a running query
    idle_executors: bool = False
    again: bool = False  # stop the session and go on with another one in the same process


def session(job: Job) -> SparkSession:
    if job.remote:
        return SparkSession.builder.remote(job.master).getOrCreate()
    builder = SparkSession.builder.master(job.master).appName("deployment")
    for key, value in {**QUIET, **job.settings}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def until(condition: Callable[[], Any], what: str) -> Any:
    """Other processes tell by files and process tables, which can only be asked."""
    end = time.monotonic() + WAIT_S
    while not (value := condition()):
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.02)
    return value


def insist(action: Callable[[], Any], again: Callable[[], Callable[[], Any]] | None = None) -> Any:
    """Spark gives up a plan, and a query with it, when the daemon of an idle worker is dead: PythonWorkerFactory lets the IOException pass,
    once for each such worker. Nothing of ours has run by then. ``again`` makes what is to be tried next."""
    for tries_left in reversed(range(TRIES)):
        try:
            return action()
        except (Py4JJavaError, StreamingQueryException) as error:
            if not tries_left or "Stream closed" not in str(error):
                raise
            action = again() if again is not None else action


# --- killing --------------------------------------------------------------------------------------------------------


def holding(directory: str, row: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``: the task with ``row`` tells its process and waits for ``<row>.go``; tasks after that pass."""

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import time

        for batch in batches:
            if row in batch.column(0).to_pylist():
                told, go = f"{directory}/{row}.held", f"{directory}/{row}.go"
                with open(f"{told}.tmp", "w") as out:
                    out.write(str(os.getpid()))
                os.replace(f"{told}.tmp", told)
                while not os.path.exists(go):
                    time.sleep(0.02)
            yield batch

    return hold


class Killer(threading.Thread):
    """Waits until the task with ``row`` is held, kills one of its processes by pid, and lets the row go."""

    def __init__(self, directory: str, row: int, victim: str) -> None:
        super().__init__(daemon=True)
        self._path = Path(directory)
        self._row = row
        self._victim = victim

    def run(self) -> None:
        told = self._path / f"{self._row}.held"
        until(told.exists, f"row {self._row} was never reached")
        worker = psutil.Process(int(told.read_text()))
        chain = [worker, *worker.parents()]
        victim = chain[("worker", "daemon", "executor").index(self._victim)]
        told.unlink()
        victim.kill()
        victim.wait(60)
        (self._path / f"{self._row}.go").touch()


def kill_idle_daemons() -> int:
    """Every Python daemon and worker below this process, as the kernel does it when memory runs out."""
    found = [p for p in psutil.Process().children(recursive=True) if "pyspark.daemon" in " ".join(_cmdline(p))]
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(found, 60)
    return len(found)


def _cmdline(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


# --- the job --------------------------------------------------------------------------------------------------------


class Steps:
    def __init__(self, job: Job) -> None:
        self.job = job
        self.spark = session(job)
        self.written = 0
        self.kills = 0
        Path(job.directory).mkdir(parents=True, exist_ok=True)

    @property
    def uri(self) -> dict[str, str]:
        return {"bookkeeper.metadataServiceUri": self.job.uri, "ensembleSize": "3", "writeQuorumSize": "3", "ackQuorumSize": "2"}

    def append(self) -> None:
        """Once, however often it is tried."""
        frame = self.spark.range(self.written, self.written + STEP, 1, 2)
        once = {"txnAppId": "append", "txnVersion": str(self.written)}
        write = frame.write.format("bookkeeper").options(**self.uri, **once, log=f"{self.job.log}-in").mode("append")
        insist(write.save)
        self.written += STEP

    def copy(self, trigger: dict[str, Any], hold: int | None = None) -> Any:
        uri = {"bookkeeper.metadataServiceUri": self.job.uri}
        stream = self.spark.readStream.format("bookkeeper").options(**uri, startingOffsets="earliest", minPartitions="2")
        frame = insist(lambda: stream.load(f"{self.job.log}-in"))
        if hold is not None:
            frame = frame.mapInArrow(holding(self.job.directory, hold), "id long")
        writer = frame.writeStream.format("bookkeeper").options(**self.uri, log=f"{self.job.log}-out").trigger(**trigger)
        return writer.option("checkpointLocation", f"{self.job.directory}/checkpoint").start()

    def copy_all(self) -> None:
        assert self.copy({"availableNow": True}).awaitTermination(int(WAIT_S))

    def copy_with_a_kill(self, victim: str) -> None:
        """The query may end with an error; run again from its checkpoint it must come to the same."""
        row = self.written - STEP // 2
        killer = Killer(self.job.directory, row, victim)
        killer.start()
        for _ in range(3):
            query = self.copy({"availableNow": True}, hold=row)
            with contextlib.suppress(Exception):
                if query.awaitTermination(int(WAIT_S)):
                    break
        else:
            raise RuntimeError(f"three runs failed after the kill of {victim}: {query.exception()}")
        killer.join(WAIT_S)
        self.kills += 1

    def copy_while_daemons_die_between_batches(self) -> None:
        query = self.copy({"processingTime": "0 seconds"})
        query.processAllAvailable()
        if not self.job.remote:
            self.kills += kill_idle_daemons()
        self.append()
        insist(query.processAllAvailable, lambda: self.copy({"processingTime": "0 seconds"}).processAllAvailable)
        for one in self.spark.streams.active:
            one.stop()

    def without_executors(self) -> None:
        """Dynamic allocation has taken every executor back before the next step begins."""
        tracker = self.spark.sparkContext._jsc.sc().statusTracker()
        until(lambda: len(tracker.getExecutorInfos()) == 1, "executors stay though they are idle")  # one is the driver itself

    def counts(self) -> dict[str, int]:
        reader = self.spark.read.format("bookkeeper").options(**{"bookkeeper.metadataServiceUri": self.job.uri}, log=f"{self.job.log}-out")
        rows, distinct, low, high = reader.load().selectExpr("count(id)", "count(distinct id)", "min(id)", "max(id)").collect()[0]
        inside = distinct if low >= 0 and high < self.written else -1
        return {"written": self.written, "read": rows, "doubled": rows - distinct, "missing": self.written - inside, "kills": self.kills}


def run(job: Job) -> dict[str, int]:
    steps = Steps(job)
    steps.append()
    if job.between:
        steps.copy_while_daemons_die_between_batches()
    if job.again:  # as a notebook does whose kernel lives on
        steps.spark.stop()
        steps.spark = session(job)
    for victim in job.victims or [""]:
        steps.append()
        if victim:
            steps.copy_with_a_kill(victim)
        else:
            steps.copy_all()
    if job.idle_executors:
        steps.without_executors()
        steps.append()
        steps.copy_all()
        steps.without_executors()
    found = steps.counts()
    steps.spark.stop()
    return found


def main(text: str) -> None:
    job = Job(**json.loads(text))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        found = run(job)
    finally:
        if job.master.startswith("local-cluster"):  # it keeps its executors' files inside the installed package
            shutil.rmtree(Path(pyspark.__file__).with_name("work"), ignore_errors=True)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
