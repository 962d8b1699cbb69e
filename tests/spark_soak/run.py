"""One soak: bookies, a standalone Spark, the queries' driver, faults at random, samples of memory, and the verdict."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]

import bk_core
from bk_core.bookie.children import Child
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client.log.lists import set_properties
from tests.faults.standalone import StandaloneSpark
from tests.spark_soak.memory import Sampler, plot, summary
from tests.spark_soak.network import Detour, spoil
from tests.spark_soak.queries import COPY, EACH, SOAK, leftovers

ROOT = Path(__file__).resolve().parents[2]
BOOKIES = 4
BOOKIE_DOWN_S = 5.0
WARM_UP_S = 600.0  # until all four queries have committed a batch
FINISH_S = 1800.0
PROCESS_FAULTS = {"executor": "executor JVM", "worker": "task worker", "planner": "planner worker", "source runner": "source runner"}
KINDS = ("bookie", "bookie", "executor", "executor", "worker", "worker", "planner", "source runner")
NETWORK_KINDS = ("link slow", "link thin", "link silent", "link cut", "bookie moves", "zookeeper silent", "bookie pause")
PAUSE_S = (1.0, 15.0)  # of a bookie by SIGSTOP: shorter and longer than its session
RETENTION_MS = 3600 * 1000  # longer than a run, shorter than the clocks are wrong
SKEWS_S = (2 * 3600.0, -2 * 3600.0)  # of the clocks of two janitors


def soak(directory: Path, seconds: float, seed: int, every_s: float, rows: int, apache: str | None) -> dict[str, Any]:
    """The report; ``memory.png`` is written beside it. All of Spark reaches bookies and ZooKeeper through links that can be made bad."""
    rng = random.Random(seed)
    with ExitStack() as stack:
        cluster = stack.enter_context(bk_core.local_cluster(bookies=BOOKIES, apache=apache))
        detour = stack.enter_context(Detour(cluster))
        spark = stack.enter_context(StandaloneSpark(directory / "standalone", more={"spark.speculation": "false"}))
        command = [sys.executable, "-u", "-m", "tests.spark_soak.queries", "--uri", detour.uri, "--master", spark.master]
        command += ["--work", str(directory), "--conf", json.dumps(spark.conf), "--rows", str(rows)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        driver = Child("driver", command, directory / "driver.log", env=environment)
        stack.callback(driver.kill)
        driver.wait_until(lambda: _warm(directory), WARM_UP_S)
        with Sampler() as sampler:
            with bk_core.connect(cluster.uri) as client:
                for log in (SOAK, COPY, EACH):
                    set_properties(client, log, retention_ms=RETENTION_MS)
            janitors = [_janitor(cluster.uri, skew_s, directory) for skew_s in SKEWS_S]
            for janitor in janitors:
                stack.callback(janitor.kill)
            network = NetworkLane(random.Random(rng.getrandbits(32)), detour, cluster, every_s)
            stack.callback(network.stop)
            faults = _harm(rng, seconds, every_s, cluster, sampler, driver)
            faults = sorted(faults + network.stop(), key=lambda fault: fault["at_s"])
            ended = [janitor.name for janitor in janitors if not janitor.running]
            for janitor in janitors:
                janitor.kill()
            if ended:
                raise RuntimeError(f"ended by themselves: {ended}")
        (directory / "stop").touch()
        driver.wait_until((directory / "result.json").exists, FINISH_S)
        result = json.loads((directory / "result.json").read_text())
        _end(driver)
        spark.__exit__()
        left = {} if "problem" in result else leftovers(cluster.uri)
    series = [one for one in sampler.series.values() if one.sizes]
    plot(series, faults, f"{seconds / 60:g} minutes, {len(faults)} faults, seed {seed}", directory / "memory.png")
    memory = summary(series, seconds)
    report = {"seed": seed, "seconds": seconds, "bookies": apache or "embedded", "result": result, "leftovers": left, "faults": faults}
    report |= {"memory": memory, "good": _good(result, left, memory)}
    report["series"] = [{"kind": one.kind, "pid": one.pid, "times": one.times, "mb": one.sizes} for one in series]
    return report


def _janitor(uri: str, skew_s: float, directory: Path) -> Child:
    """Cleans up and applies retention to all logs all the time, by a clock that is wrong."""
    name = f"janitor{skew_s:+.0f}"
    options = json.dumps({"uri": uri, "skew_s": skew_s, "logs": [SOAK, COPY, EACH]})
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-u", "-m", "tests.soak.janitor_process", options]
    return Child(name, command, directory / f"{name}.log", env={"PYTHONPATH": path})


class NetworkLane:
    """A thread that spoils the network now and then, beside the faults of processes. ``stop`` heals all and tells what was done."""

    def __init__(self, rng: random.Random, detour: Detour, cluster: LocalCluster, every_s: float) -> None:
        self._rng = rng
        self._detour = detour
        self._cluster = cluster
        self._every_s = every_s
        self._begun = time.monotonic()
        self._faults: list[dict[str, Any]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        if every_s:
            self._thread.start()

    def stop(self) -> list[dict[str, Any]]:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._detour.proxy.heal_all()
        return self._faults

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s * self._rng.uniform(0.5, 1.5)):
            kind = self._rng.choice(NETWORK_KINDS)
            self._faults.append({"at_s": round(time.monotonic() - self._begun, 1), "kind": kind})
            print(f"{self._faults[-1]['at_s']:7.1f} s  {kind}", flush=True)
            if kind == "bookie pause":
                self._pause()
            else:
                spoil(kind, self._detour, self._rng, self._stopping)

    def _pause(self) -> None:
        pid = self._cluster.pid(self._rng.randrange(len(self._cluster.bookie_ids)))
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                try:
                    self._stopping.wait(self._rng.uniform(*PAUSE_S))
                finally:
                    os.kill(pid, signal.SIGCONT)


def _warm(directory: Path) -> bool:
    try:
        batches = json.loads((directory / "progress.json").read_text())["batches"]
    except (OSError, ValueError):
        return False
    return all(batch is not None and batch >= 1 for batch in batches.values())


def _harm(
    rng: random.Random, seconds: float, every_s: float, cluster: LocalCluster, sampler: Sampler, driver: Child
) -> list[dict[str, Any]]:
    """A fault about every ``every_s`` seconds until the time is over. A killed bookie comes back after some seconds."""
    begun = time.monotonic()
    faults: list[dict[str, Any]] = []
    while (left := seconds - (time.monotonic() - begun)) > 0:
        time.sleep(min(left, every_s * rng.uniform(0.5, 1.5) if every_s else left))
        if not driver.running:
            raise RuntimeError(f"the driver ended; see {driver.log}")
        if time.monotonic() - begun < seconds and every_s:
            kind = rng.choice(KINDS)
            at_s = round(time.monotonic() - begun, 1)
            if _strike(kind, rng, cluster, sampler):
                faults.append({"at_s": at_s, "kind": kind})
                print(f"{at_s:7.1f} s  {kind} killed", flush=True)
    return faults


def _strike(kind: str, rng: random.Random, cluster: LocalCluster, sampler: Sampler) -> bool:
    if kind == "bookie":
        index = rng.randrange(len(cluster.bookie_ids))
        cluster.kill(index)
        time.sleep(BOOKIE_DOWN_S)
        cluster.restart(index)
        return True
    pids = sampler.pids(PROCESS_FAULTS[kind])
    if not pids:
        return False
    with suppress(ProcessLookupError):
        os.kill(rng.choice(pids), signal.SIGKILL)
    return True


def _end(driver: Child) -> None:
    """The driver and all that it started, so that no writer is alive."""
    with suppress(psutil.NoSuchProcess):
        members = psutil.Process(driver.pid).children(recursive=True)
        driver.kill()
        for member in members:
            with suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(members, timeout=10)


def _good(result: dict[str, Any], left: dict[str, int], memory: dict[str, dict[str, Any]]) -> bool:
    if "problem" in result:
        return False
    wrong = sum(log[name] for log in result["logs"].values() for name in ("missing", "doubled", "foreign"))
    return not wrong and not any(left.values()) and all(kind["flat"] is not False for kind in memory.values())


def text(report: dict[str, Any]) -> str:
    result = report["result"]
    if "problem" in result:
        return f"FAILED: {result['problem']}\n{json.dumps(result['errors'], indent=1)}"
    killed, spoilt = (
        ", ".join(f"{kind} {sum(f['kind'] == kind for f in report['faults'])}" for kind in dict.fromkeys(kinds))
        for kinds in (KINDS, NETWORK_KINDS)
    )
    lines = [f"rows in {result['rows_in']}; killed: {killed}; network: {spoilt}; starts of queries: {result['starts']}", ""]
    lines += ["| Log | Rows out | Missing | Doubled | Foreign | Leftovers |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for log, found in result["logs"].items():
        counts = [found[name] for name in ("rows", "missing", "doubled", "foreign")]
        lines.append(f"| {log} | " + " | ".join(map(str, [*counts, report["leftovers"].get(log, "")])) + " |")
    lines += ["", "| Process | Number | Largest MiB | Median MiB | Growth MiB | Flat |", "| --- | ---: | ---: | ---: | ---: | --- |"]
    words = {None: "not judged", True: "yes", False: "**no**"}
    for kind, one in report["memory"].items():
        lines.append(f"| {kind} | {one['processes']} | {one['max_mb']} | {one['median_mb']} | {one['growth_mb']} | {words[one['flat']]} |")
    return "\n".join(lines)
