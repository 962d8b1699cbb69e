"""The demo from beginning to end: a cluster, a stream into a log, two killings, and the comparison of every row."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client import BookKeeper
from bk_core.client.files.view import FileStoreView
from bk_core.client.log.history import read_log
from bk_core.errors import NoSuchLogError, NoSuchPathError
from bk_core.protocol.log.segments import Segment
from bk_spark.demo.compare import Comparison
from bk_spark.demo.flights import Part, read_lines, write_parts
from bk_spark.demo.plot import save_plot
from bk_spark.demo.processes import Child, DemoError, MemoryWatch, await_that
from bk_spark.demo.report import LedgerRow, Moment, Report, Sample, fragment_rows, render
from bk_spark.demo.session import CHECKPOINT, LOG_NAME

PARTS_MIN = 4  # fewer leave no room for both killings
IN_FLIGHT_PARTS = 2


@dataclass(frozen=True, slots=True)
class Settings:
    """``rows`` None means all; ``patience_s`` bounds every single wait."""

    out: Path
    rows: int | None = None
    parts: int = 24
    patience_s: float = 180.0

    @property
    def work(self) -> Path:
        return self.out / "work"


@dataclass
class Stage:
    """The state that the acts of the demo share: the cluster, a client, the screen, and what has been seen so far."""

    settings: Settings
    cluster: LocalCluster
    client: BookKeeper
    progress: Progress
    started: float
    killed: set[str] = field(default_factory=set)
    moments: list[Moment] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    dropped_rows: int = 0
    batches: int = 0

    @cached_property
    def checkpoint(self) -> FileStoreView:
        """The query's checkpoint, beside the driver that owns it. It is there when the first rows are."""
        return FileStoreView.open(self.client, CHECKPOINT)

    def now(self) -> float:
        return time.monotonic() - self.started

    def say(self, text: str, fault: bool = False) -> None:
        self.moments.append(Moment(self.now(), text, fault))
        self.progress.console.print(f"[dim]{self.now():6.1f} s[/dim]  {'[bold red]' if fault else ''}{text}", highlight=False)

    def segments(self) -> tuple[Segment, ...]:
        """Published segments, in order. None before the first commit has made the log."""
        try:
            return tuple(read_log(self.client, LOG_NAME).segments())
        except NoSuchLogError:
            return ()

    def committed_rows(self) -> int:
        """Reads the ledger list, and keeps what it says for the picture and the bar."""
        rows = sum(segment.rows for segment in self.segments())
        if not self.samples or (self.samples[-1].dropped, self.samples[-1].committed) != (self.dropped_rows, rows):
            self.samples.append(Sample(self.now(), self.dropped_rows, rows))
            self.progress.update(self.progress.task_ids[0], completed=rows)
        return rows

    def drop(self, part: Part) -> None:
        """Move a finished file into the stream's input in one step."""
        os.utime(part.path)
        os.rename(part.path, self.settings.work / "input" / part.path.name)
        self.dropped_rows += part.rows
        self.committed_rows()

    def await_rows(self, rows: int, driver: Child) -> None:
        await_that(f"{rows} committed rows", lambda: self.committed_rows() >= rows, self.settings.patience_s, driver)


def run_demo(settings: Settings, console: Console) -> Report:
    """The whole demo. Raises DemoError if something never happens; a wrong row is no error here but part of the report."""
    if settings.parts < PARTS_MIN:
        raise DemoError(f"--parts {settings.parts} is too few: at least {PARTS_MIN}")
    if settings.work.exists():
        shutil.rmtree(settings.work)
    for name in ("input", "staging"):
        (settings.work / name).mkdir(parents=True)
    header, lines = read_lines(settings.rows)
    if len(lines) < settings.parts:
        raise DemoError(f"{len(lines)} rows do not fill {settings.parts} files")
    parts = write_parts(header, lines, settings.work / "staging", settings.parts)
    started = time.monotonic()
    columns = (TextColumn("rows in the log"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with MemoryWatch() as memory, Progress(*columns, console=console) as progress:
        progress.add_task("rows", total=len(lines))
        with bk_core.local_cluster(bookies=4) as cluster, bk_core.connect(cluster.uri) as client:
            stage = Stage(settings, cluster, client, progress, started)
            stage.say(f"ZooKeeper and bookies {', '.join(cluster.bookie_ids)} are up")
            stream(stage, parts)
            reading = read_back(stage)
            ledgers = describe_ledgers(stage)
    return build_report(stage, parts, reading, ledgers, memory.peak_bytes)


def stream(stage: Stage, parts: list[Part]) -> None:
    """Files trickle in; a bookie dies after a quarter of them and the driver after five eighths; a second driver does the rest."""
    bookie_at, driver_at = len(parts) // 4, len(parts) * 5 // 8
    with driver_process(stage, "first") as driver:
        for index, part in enumerate(parts[: driver_at + 1]):
            stage.await_rows(parts[max(0, index - IN_FLIGHT_PARTS)].first_row, driver)
            stage.drop(part)
            if index == bookie_at:
                stage.await_rows(1, driver)
                kill_bookie(stage)
        kill_driver(stage, driver)
    for part in parts[driver_at + 1 :]:
        stage.drop(part)
    with driver_process(stage, "second") as driver:
        stage.await_rows(sum(part.rows for part in parts), driver)
        driver.wait(stage.settings.patience_s)
    stage.checkpoint.refresh()
    stage.batches = len(batch_numbers(stage.checkpoint, "/commits"))
    stage.checkpoint.close()
    stage.say(f"all {stage.committed_rows():,} rows are committed; the second driver has ended")


@contextmanager
def driver_process(stage: Stage, which: str) -> Iterator[Child]:
    """A driver of the streaming query. However the block is left, nothing of the driver stays behind."""
    follow = ["--follow"] if which == "first" else []
    arguments = ["--driver", "--uri", stage.cluster.uri, "--out", str(stage.settings.out), *follow]
    child = Child(f"{which} driver", arguments, stage.settings.out / f"driver-{which}.log")
    stage.say(f"{which} driver started, pid {child.process.pid}" + ("" if follow else ", from the first one's checkpoint"))
    try:
        yield child
    finally:
        child.kill()


def kill_bookie(stage: Stage) -> None:
    """SIGKILL for the first bookie of the ensemble that is being written to, while a batch is under way."""
    last = stage.segments()[-1]
    victim = stage.client.ledger_metadata(last.ledger_id).last_fragment.ensemble[0]
    stage.cluster.kill(list(stage.cluster.bookie_ids).index(victim))
    stage.killed.add(victim)
    stage.say(f"bookie killed: {victim}, of ledger {last.ledger_id} (kill -9)", fault=True)


def kill_driver(stage: Stage, driver: Child) -> None:
    """SIGKILL for the driver, its JVM and all Python workers, in the middle of a batch: planned, but not yet committed."""
    await_that("a batch under way", lambda: unfinished_batch(stage) is not None, stage.settings.patience_s, driver, 0.005)
    processes = driver.kill()
    batch = unfinished_batch(stage)
    place = f"in the middle of batch {batch}" if batch is not None else "just after a batch"
    stage.say(f"driver killed: all its {processes} processes, {place} (kill -9)", fault=True)


def batch_numbers(checkpoint: FileStoreView, folder: str) -> set[int]:
    """Batches that the checkpoint's offset log or commit log knows."""
    try:
        return {int(status.name) for status in checkpoint.listing(folder) if status.name.isdigit()}
    except NoSuchPathError:
        return set()


def unfinished_batch(stage: Stage) -> int | None:
    """The batch that is planned and not finished, by Spark's own checkpoint."""
    checkpoint = stage.checkpoint
    checkpoint.refresh()
    return max(batch_numbers(checkpoint, "/offsets") - batch_numbers(checkpoint, "/commits"), default=None)


@dataclass(frozen=True, slots=True)
class Reading:
    """The findings of the reader process."""

    seconds: float
    comparison: Comparison
    delays: tuple[dict[str, object], ...]


def read_back(stage: Stage) -> Reading:
    """Read the log by a Spark of its own and compare. Raises DemoError if it cannot be read."""
    rows = [] if stage.settings.rows is None else ["--rows", str(stage.settings.rows)]
    arguments = ["--reader", "--uri", stage.cluster.uri, "--out", str(stage.settings.out), *rows]
    reader = Child("reader", arguments, stage.settings.out / "reader.log")
    stage.say("reading the log back and comparing every cell")
    try:
        reader.wait(stage.settings.patience_s)
    finally:
        reader.kill()
    result = json.loads((stage.settings.work / "reading.json").read_text(encoding="utf-8"))
    return Reading(result["seconds"], Comparison(**result["comparison"]), tuple(result["delays"]))


def describe_ledgers(stage: Stage) -> tuple[LedgerRow, ...]:
    """One row per data ledger, in the order in which the log first names them."""
    by_ledger: dict[int, list[Segment]] = {}
    for segment in stage.segments():
        by_ledger.setdefault(segment.ledger_id, []).append(segment)
    rows = []
    for ledger_id, segments in by_ledger.items():
        metadata = stage.client.ledger_metadata(ledger_id)
        last_entry_id = max(-1 if segment.last_entry_id is None else segment.last_entry_id for segment in segments)
        row_count, byte_count = (sum(values) for values in zip(*((s.rows, s.bytes) for s in segments), strict=True))
        rows.append(
            LedgerRow(
                ledger_id, metadata.state.name, metadata.write_quorum_size, len(segments), row_count, byte_count,
                fragment_rows(metadata, last_entry_id),
            )
        )  # fmt: skip
    return tuple(rows)


def build_report(stage: Stage, parts: list[Part], reading: Reading, ledgers: tuple[LedgerRow, ...], peak_bytes: int) -> Report:
    work = stage.settings.work
    batches = [json.loads(line) for line in (work / "progress.jsonl").read_text(encoding="utf-8").splitlines()]
    return Report(
        comparison=reading.comparison,
        parts=len(parts),
        batches=stage.batches,
        source_bytes=sum(part.bytes for part in parts),
        log_bytes=sum(ledger.bytes for ledger in ledgers),
        write_s=sum(batch["ms"] for batch in batches) / 1000,
        timed_share=sum(batch["rows"] for batch in batches) / reading.comparison.expected,
        read_s=reading.seconds,
        wall_s=stage.now(),
        peak_memory_bytes=peak_bytes,
        bookies={bookie: bookie in stage.killed for bookie in stage.cluster.bookie_ids},
        ledgers=ledgers,
        moments=tuple(stage.moments),
        samples=tuple(stage.samples),
        delays=reading.delays,
    )


def show(report: Report, settings: Settings, console: Console) -> None:
    """Print the report and keep it, with its picture, in the output folder."""
    (settings.out / "report.json").write_text(json.dumps(report.to_json(), indent=2), encoding="utf-8")
    save_plot(report, settings.out / "flights.png")
    console.print(render(report))
    console.print(f"picture: {settings.out / 'flights.png'}   numbers: {settings.out / 'report.json'}   logs: {settings.out}/*.log")
