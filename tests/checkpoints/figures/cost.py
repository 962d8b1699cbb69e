"""Milliseconds of a micro-batch, with its checkpoint in a directory, in one whose every write is synced, and in ledgers.

One Spark session, one query for each kind and place. Each round starts every query from its checkpoint once, and the places change their
order from round to round, so all of them meet the same weather.

Spark itself syncs nothing that it writes to a local directory. The synced directory has ext4's attributes S and D (``chattr +S +D``): what
is written is on the disk when ``write`` returns, and so is the name when a file is made or renamed. Files and directories that are made in
it inherit both.

For each file in a local directory Spark starts processes (``chmod``, ``stat``) where Hadoop has no native library, and the wheel of pyspark
has none. What the files alone cost is measured beside it: a program writes one under a temporary name, syncs it, renames it, and syncs the
directory. ``floor`` is a batch in the plain directory with two such files in place of ``walCommit`` and ``commitOffsets``.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bk_core
from tests.checkpoints.figures.numbers import Spread, load, table
from tests.faults.driver import STORE
from tests.faults.harness import Driver

KINDS = {"stateless": "stateless", "hdfs": "stateful, 10 partitions, HDFS-backed", "rocksdb": "stateful, 10 partitions, RocksDB"}
DIRECTORY, SYNCED, EMBEDDED, APACHE = "directory", "directory, synced", "ledgers, embedded bookies", "ledgers, Apache's bookies"
PHASES = ("triggerExecution", "walCommit", "commitOffsets", "addBatch")
BOOKIES = 3
SKIP = 2
LIMIT_S = 900.0
FILES, FILE_BYTES = 30, 600  # of each round, and about as large as an offset
MODULE = "tests.checkpoints.figures.session"


class NoSyncError(Exception):
    """The file system has no such attributes."""


@dataclass
class Samples:
    """The cost of a query's counted batches. ``requests``, ``took_ms``, ``written``: sums over all of them."""

    phases: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    requests: Counter[str] = field(default_factory=Counter)
    took_ms: dict[str, float] = field(default_factory=dict)
    written: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        return len(self.phases[PHASES[0]])

    def add(self, answer: dict[str, Any]) -> None:
        for batch in answer["batches"]:
            for phase in PHASES:
                self.phases[phase].append(float(batch.get(phase, 0)))
        self.requests.update(answer["requests"])
        for op, took in answer["tookMs"].items():
            self.took_ms[op] = self.took_ms.get(op, 0.0) + took
        self.written.update(answer["written"])

    def each(self, sum_of: Counter[str], what: str) -> float:
        """For each batch."""
        return sum_of[what] / max(1, self.count)


def synced(directory: Path) -> Path:
    """NoSyncError where it cannot be had."""
    directory.mkdir(parents=True)
    try:
        subprocess.run(["chattr", "+S", "+D", str(directory)], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoSyncError(f"chattr +S +D {directory} is not possible here: {getattr(error, 'stderr', '') or error}") from error
    return directory


def sync_files(directory: Path) -> list[float]:
    """Milliseconds of each of ``FILES`` small files, written as carefully as a checkpoint's has to be."""
    directory.mkdir(exist_ok=True)
    took = []
    for number in range(FILES):
        begun = time.perf_counter()
        beside = directory / f".{number}.tmp"
        with beside.open("wb") as out:
            out.write(bytes(FILE_BYTES))
            out.flush()
            os.fsync(out.fileno())
        beside.replace(directory / str(number))
        descriptor = os.open(directory, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        took.append((time.perf_counter() - begun) * 1e3)
    return took


def floor(plain: Samples, file_ms: float) -> list[float]:
    """Whole triggers of a directory in which the two files of a batch cost ``file_ms`` each."""
    logged = zip(*(plain.phases[phase] for phase in ("triggerExecution", "walCommit", "commitOffsets")), strict=True)
    return [whole - offsets - commits + 2 * file_ms for whole, offsets, commits in logged]


def measure(
    directory: Path, rounds: int, batches: int, apache: str | None, kinds: Sequence[str], say: Callable[[str], None]
) -> tuple[dict[tuple[str, str], Samples], list[float]]:
    """Return the times by kind and place, and those that the files alone took."""
    found: dict[tuple[str, str], Samples] = {}
    files: list[float] = []
    with ExitStack() as stack:
        uris = {EMBEDDED: stack.enter_context(bk_core.local_cluster(BOOKIES)).uri}
        if apache:
            uris[APACHE] = stack.enter_context(bk_core.local_cluster(BOOKIES, apache=apache, progress=say)).uri
        places = {DIRECTORY: directory / "plain"}
        try:
            places[SYNCED] = synced(directory / "synced")
        except NoSyncError as error:
            say(f"without a synced directory: {error}")
        driver = Driver(directory / "spark-work", "local[2]", module=MODULE)
        stack.callback(driver.kill)
        names = [*places, *uris]
        for number in range(rounds):
            for kind in kinds:
                for place in names[number % len(names) :] + names[: number % len(names)]:
                    name = f"cost-{kind}"
                    checkpoint = f"{STORE}{name}-{place.split()[1][:6]}" if place in uris else str(places[place] / name)
                    command = {"checkpoint": checkpoint, "uri": uris.get(place, ""), "kind": kind, "batches": batches, "skip": SKIP}
                    answer = ask(driver, {"do": "measure", **command})
                    found.setdefault((kind, place), Samples()).add(answer)
                files += sync_files(directory / "files")
            say(f"{report(found, files)}\n\nround {number + 1} of {rounds}; {load()}")
    return found, files


def ask(driver: Driver, command: dict[str, Any], limit_s: float = LIMIT_S) -> dict[str, Any]:
    driver.begin(command)
    answer = driver.end(lambda: None, limit_s)
    if not answer["ok"]:
        raise RuntimeError(f"{command['do']}: {answer['error']}")
    return answer


def report(found: dict[tuple[str, str], Samples], files: Sequence[float]) -> str:
    """All tables."""
    return "\n\n".join([durations(found, files), writes(found), operations(found)])


def durations(found: dict[tuple[str, str], Samples], files: Sequence[float]) -> str:
    """Medians and p99 in ms, and the median of the whole trigger as a multiple of those of a synced directory and of the floor."""
    rows = []
    alone = Spread.of(files)
    for (kind, place), samples in found.items():
        spreads = [Spread.of(samples.phases[phase]) for phase in PHASES]
        floors = [Spread.of(base.phases[PHASES[0]]) for base in [found.get((kind, SYNCED))] if base]
        floors += [Spread.of(floor(base, alone.median)) for base in [found.get((kind, DIRECTORY))] if base]
        ratios = [f"{spreads[0].median / base.median:.2f}" for base in floors]
        rows.append([KINDS[kind], place, samples.count, *spreads, " / ".join(ratios)])
    head = ["query", "checkpoint", "batches", *(f"{phase} p50 / p99" for phase in PHASES), "trigger, of synced / of floor"]
    return f"{table(head, rows)}\n\na file alone, synced: {alone} ms, {alone.count} files"


def writes(found: dict[tuple[str, str], Samples]) -> str:
    """Requests, records, files and bytes of each batch."""
    rows = []
    for (kind, place), one in found.items():
        if one.requests:
            amounts = [one.each(one.written, what) for what in ("records", "record_bytes", "files", "data_bytes")]
            told = [f"{amount:,.1f}" for amount in (sum(one.requests.values()) / max(1, one.count), *amounts)]
            rows.append([KINDS[kind], place, *told, f"{sum(one.took_ms.values()) / max(1, one.count):,.0f}"])
    head = ["query", "checkpoint", "requests", "records", "bytes of records", "files put", "bytes in data ledgers", "ms in the gateway"]
    return table([*head[:2], *(f"{what} / batch" for what in head[2:])], rows)


def operations(found: dict[tuple[str, str], Samples]) -> str:
    """For each operation of the gateway: how many in a batch, and the milliseconds that one takes in it, on average."""
    rows = []
    for (kind, place), one in found.items():
        for op, count in one.requests.most_common():
            rows.append([KINDS[kind], place, op, f"{count / max(1, one.count):.1f}", f"{one.took_ms[op] / count:.2f}"])
    return table(["query", "checkpoint", "operation", "/ batch", "mean ms"], rows)
