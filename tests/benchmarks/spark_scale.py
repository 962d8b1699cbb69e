"""How reading and planning scale: partitions, segments in a log, fragments of a ledger, ledgers in a read, size of entries, memory.

Long logs and ledgers of many fragments are made through bk_core, because Spark would take hours for them; what is measured is Spark's.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from bk_core.client.logs import create_log, now_ms, update_ledger_list
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import Fragment
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.segments import LogProperties, SegmentRange
from bk_spark.options import parse_options
from bk_spark.reader import BookKeeperReader, schema_of
from tests.benchmarks.measure import Comparison, CpuMeter, Reach, Sample, interleave
from tests.benchmarks.spark_read import CEILING, KAFKA, ON_APACHE, REPLAYED, Filled, Size, compare
from tests.benchmarks.spark_stream import available, read_stream
from tests.benchmarks.spark_world import APACHE, EMBEDDED, ONE_COPY, REPLAYING, THREE_COPIES, URI, World, summed, values

GROUP = "Spark scale"
VALUE_BYTES = 100
ONE_COPY_RAW = LogProperties(entry_format="raw", ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
AT_ONCE = 100
ENTRIES_PER_LEDGER = 1000


def scale(world: World) -> None:
    for part in (partitions, segments, fragments, ledgers, entries, memory):
        world.report.say(f"scale: {part.__name__}")
        part(world)
        world.end(REPLAYING)  # replaying sources forget nothing before


def partitions(world: World) -> None:
    size = Size(1024, 1_000_000)
    for count in (1, 2, 4):
        with Filled(world, size, count) as filled:
            frames = {name: filled.frames[name] for name in (KAFKA, REPLAYED, ON_APACHE, CEILING)}
            compare(world, size, frames, f"Spark batch read, {size.value_bytes} B values, {count} partitions", GROUP)


# --- segments in a log ----------------------------------------------------------------------------------------------------


def segments(world: World, counts: Sequence[int] = (10, 1_000, 10_000, 100_000)) -> None:
    """Every segment holds one entry of one row. A stream reads the last ones, a row per micro-batch; planning takes all of the log."""
    uri, logs = world.uri(EMBEDDED), {}
    for count in counts:
        world.report.say(f"a log of {count:,} segments")
        logs[count] = grow(world.client(EMBEDDED), world.name("segments"), count)
    batches = 8

    def streaming(count: int) -> Sample:
        start = f'{{"seq": {count - batches - 2}}}'
        options = {URI: uri, "log": logs[count], "startingOffsets": start, "maxRecordsPerTrigger": 1, "includeMetadata": "false"}
        return available(world, read_stream(world, "bookkeeper", options), "prebuilt", {}, 2)

    def planning(count: int) -> Sample:
        options = parse_options({URI: uri, "log": logs[count]})
        began = time.perf_counter()
        tasks = BookKeeperReader(options, schema_of(options)).partitions()
        return Sample(time.perf_counter() - began, count, extra={"tasks": len(tasks)})

    for what, run, note in (
        ("a micro-batch of one row", streaming, "ours as the source, a sink that drops; batch_ms: median of a run"),
        ("planning a batch read of all", planning, "schema, snapshot and tasks, in one process that has a client"),
    ):
        contenders = {f"{count:,} segments": partial(run, count) for count in counts}
        samples = interleave(contenders, world.rounds, 1, world.report.say)
        unit = "rows" if run is streaming else "segments"
        baseline = f"{counts[0]:,} segments"
        world.report.add(Comparison(f"Segments in the log: {what}", unit, samples, baseline, note, (), GROUP))
    for log in logs.values():
        world.drop_log(EMBEDDED, log)


def grow(client: Any, log: str, count: int) -> str:
    """A raw log of ``count`` segments with one entry each."""
    create_log(client, log, ONE_COPY_RAW)
    for start in range(0, count, ENTRIES_PER_LEDGER):
        ledger = written(client, min(ENTRIES_PER_LEDGER, count - start), VALUE_BYTES)
        for first in range(0, min(ENTRIES_PER_LEDGER, count - start), AT_ONCE):
            last = min(first + AT_ONCE, count - start)
            listed(client, log, [SegmentRange(ledger, entry, entry, 1, VALUE_BYTES, 1) for entry in range(first, last)])
    return log


def written(client: Any, count: int, size: int, copies: int = 1, at_once: int = 4 << 20) -> int:
    """A closed ledger of ``count`` entries of ``size`` bytes."""
    per_run = max(1, min(count, at_once // size))
    payload = os.urandom(min(1 << 20, per_run * size))
    payload = (payload * (per_run * size // len(payload) + 1))[: per_run * size]
    with client.create_ledger(ensemble_size=copies, write_quorum_size=copies, ack_quorum_size=copies) as ledger:
        done = 0
        while done < count:
            some = min(per_run, count - done)
            ledger.append_run(payload[: some * size], array("q", range(0, (some + 1) * size, size)))
            done += some
        ledger.flush()
        return int(ledger.ledger_id)


def listed(client: Any, log: str, ranges: Sequence[SegmentRange]) -> None:
    at_ms = now_ms()

    def change(current: LedgerList) -> LedgerList:
        return current.append_segments(ranges, at_ms)

    update_ledger_list(client, log, change)


# --- fragments, ledgers, entries ------------------------------------------------------------------------------------------


def fragments(world: World, count: int = 200_000) -> None:
    """All three bookies hold all entries, so the metadata may say that the ensemble changed its order as often as one likes."""
    client = world.client(APACHE)
    frames: dict[str, Callable[[], DataFrame]] = {}
    for number in (1, 10, 100, 1_000):
        ledger = written(client, count, 1024, copies=3)
        _split(client, ledger, number, count)
        options = {URI: world.uri(APACHE), "ledgers": ledger, "includeMetadata": "false"}
        frames[f"{number:,} fragments"] = partial(world.read, "bookkeeper", **options, minPartitions=2)
    _reads(world, "Fragments of a ledger", count, count * 1024, frames, f"{count:,} entries of 1 KiB, 3 Apache bookies, 2 tasks")


def _split(client: Any, ledger: int, number: int, count: int) -> None:
    stored = client.store.read_ledger(ledger)
    metadata = metadata_codec.decode(stored.data)
    first = metadata.fragments[0].ensemble
    turned = [first[turn % 3 :] + first[: turn % 3] for turn in range(number)]
    made = tuple(Fragment(count * index // number, ensemble) for index, ensemble in enumerate(turned))
    client.store.write_ledger(ledger, metadata_codec.encode(replace(metadata, fragments=made)), stored.version)


def ledgers(world: World, rows: int = 100_000, numbers: Sequence[int] = (1, 100, 10_000)) -> None:
    """The same rows in one ledger, and in many."""
    client = world.client(EMBEDDED)
    frames: dict[str, Callable[[], DataFrame]] = {}
    logs = []
    for number in numbers:
        log = world.name("ledgers")
        logs.append(log)
        create_log(client, log, ONE_COPY_RAW)
        each = rows // number
        with ThreadPoolExecutor(8) as pool:
            ids = [made.result() for made in [pool.submit(written, client, each, VALUE_BYTES) for _ in range(number)]]
        for start in range(0, number, AT_ONCE):
            ranges = [SegmentRange(ledger, 0, each - 1, each, each * VALUE_BYTES, 1) for ledger in ids[start : start + AT_ONCE]]
            listed(client, log, ranges)
        frames[f"{number:,} ledgers"] = partial(world.read_ours, world.uri(EMBEDDED), log, minPartitions=2, includeMetadata="false")
    _reads(world, "Ledgers in one batch read", rows, rows * VALUE_BYTES, frames, f"{rows:,} rows, 3 embedded bookies, 2 tasks")
    for log in logs:
        world.drop_log(EMBEDDED, log)


def entries(world: World, total: int = 256 << 20) -> None:
    """Raw entries: one value is one entry."""
    client = world.client(APACHE)
    frames: dict[str, Callable[[], DataFrame]] = {}
    for size in (100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20):
        bytes_here = total // 4 if size == 100 else total
        ledger = written(client, bytes_here // size, size, copies=3)
        options = {URI: world.uri(APACHE), "ledgers": ledger, "includeMetadata": "false", "minPartitions": 2}
        name = f"{size:,} B"
        frames[name] = partial(world.read, "bookkeeper", **options)
        count = bytes_here // size
        samples = interleave(
            {name: world.measured(count, count * size, _reading(frames[name], count * size))}, world.rounds, 1, world.report.say
        )
        note = "one ledger on 3 Apache bookies, 2 tasks"
        world.report.add(Comparison(f"Raw entries of {size:,} B", "entries", samples, name, note, (), GROUP))


def _reads(world: World, title: str, rows: int, size: int, frames: Mapping[str, Callable[[], DataFrame]], note: str) -> None:
    contenders = {name: world.measured(rows, size, _reading(frame, size)) for name, frame in frames.items()}
    samples = interleave(contenders, world.rounds, 1, world.report.say)
    world.report.add(Comparison(title, "rows", samples, next(iter(frames)), note, (), GROUP))


def _reading(frame: Callable[[], DataFrame], size: int) -> Callable[[], None]:
    def read() -> None:
        found = summed(frame())
        if found != size:
            raise RuntimeError(f"{found} bytes were read of {size}")

    return read


# --- memory ---------------------------------------------------------------------------------------------------------------

ABOVE = "worker_mib_above_idle"


def memory(world: World, sizes_gib: Sequence[float] = (0.25, 1.0, 2.0)) -> None:
    """Anonymous memory of the fattest task worker, above one that is idle: reading and writing logs of different sizes."""
    idle = world.idle_worker_mib()
    world.report.say(f"an idle worker has {idle:.0f} MiB of its own")
    contenders: dict[str, Callable[[], Sample]] = {}
    logs: list[tuple[str, str]] = []
    world.uri(APACHE)  # started here, not on the clock
    for gib in sizes_gib:
        rows = int(gib * (1 << 20))
        log = world.name("memory")
        logs.append((REPLAYING, log))
        given = values(world.spark, rows, 1024)
        where = {URI: world.uri(REPLAYING), "log": log, **ONE_COPY}
        world.activate()
        given.write.format("bookkeeper").options(**where).mode("append").save()
        world.close_ledgers(REPLAYING, log)
        frame = partial(world.read_ours, world.uri(REPLAYING), log, minPartitions=2, maxBytesPerPartition="64g")
        contenders[f"read {gib:g} GiB"] = _watched(world, idle, rows, _reading(frame, rows * 1024))
        contenders[f"write {gib:g} GiB"] = _watched(world, idle, rows, _writing(world, given, logs))
    samples = interleave(contenders, 3, 0, world.report.say)
    reaches = [Reach(name, 256, of=ABOVE, against="", at_most=True) for name in contenders]
    note = f"an idle worker has {idle:.0f} MiB; 2 tasks, defaults otherwise"
    world.report.add(Comparison("Memory of a task worker", "rows", samples, next(iter(contenders)), note, reaches, GROUP))
    for kind, log in logs:
        world.drop_log(kind, log)


def _writing(world: World, given: DataFrame, logs: list[tuple[str, str]]) -> Callable[[], None]:
    def write() -> None:
        log = world.name("memory")
        logs.append((APACHE, log))
        where = {URI: world.uri(APACHE), "log": log, **THREE_COPIES}
        world.activate()
        given.write.format("bookkeeper").options(**where).mode("append").save()

    return write


def _watched(world: World, idle: float, rows: int, action: Callable[[], None]) -> Callable[[], Sample]:
    def run() -> Sample:
        workers = {f"worker {pid}": [pid] for pid in world.pids("Python workers")}
        with CpuMeter(workers) as each, world.meter() as meter:
            action()
        fattest = max(each.peak_anonymous.values(), default=0) / (1 << 20)
        return meter.sample(rows, rows * 1024, **{ABOVE: fattest - idle})

    return run
