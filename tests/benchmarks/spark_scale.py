"""The cost of reading and planning by the number of partitions, segments, fragments of a ledger, ledgers in a read; entries' size, memory.

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

from bk_core.client.log.history import update_ledger_list
from bk_core.client.log.list_store import now_ms
from bk_core.client.log.lists import create_log
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import Fragment
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.segments import LogProperties, SegmentRange
from bk_spark.datasource import schema_of
from bk_spark.options.table import parse_options
from bk_spark.source.batch import BookKeeperReader
from tests.benchmarks.measure import Comparison, CpuMeter, Reach, Sample, interleave
from tests.benchmarks.spark_read import ON_EMBEDDED, PARQUET, Filled, Size, compare
from tests.benchmarks.spark_stream import available, read_stream
from tests.benchmarks.spark_world import APACHE, EMBEDDED, ONE_COPY, REPLAYING, URI, World, summed, values

GROUP = "Spark scale"
VALUE_BYTES = 100
ENTRY_SIZES = {100: "100 B", 1 << 10: "1 KiB", 10 << 10: "10 KiB", 100 << 10: "100 KiB", 1 << 20: "1 MiB", 4 << 20: "4 MiB"}
ONE_COPY_RAW = LogProperties(entry_format="raw", ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)
PER_COMMIT = 1000  # segments that one compare-and-set of the list adds
ENTRIES_PER_LEDGER = 1000


def run(part: Callable[[World], None], world: World) -> None:
    """Remains of one must not weigh on the next: replaying sources forget nothing, and ledgers by the thousand are gone soonest with
    their bookies."""
    try:
        part(world)
    finally:
        world.end(REPLAYING)
        if part is ledgers:
            world.end(EMBEDDED)


def partitions(world: World) -> None:
    size = Size(1024, 500_000)
    for count in (1, 2, 4):
        with Filled(world, size, count, without=(ON_EMBEDDED, PARQUET)) as filled:
            compare(world, size, filled.frames, f"Spark batch read, {size.value_bytes} B values, {count} partitions", GROUP)


# --- segments in a log ----------------------------------------------------------------------------------------------------


def segments(world: World, counts: Sequence[int] = (10, 1_000, 10_000, 100_000)) -> None:
    """Every segment holds one entry of one row. A stream reads the last ones, a row per micro-batch; planning takes all of the log."""
    uri, logs = world.uri(EMBEDDED), {}
    for count in counts:
        began = time.monotonic()
        logs[count] = grow(world.client(EMBEDDED), world.name("segments"), count)
        world.report.say(f"a log of {count:,} segments, made in {time.monotonic() - began:.1f} s")
    batches = 8

    def streaming(count: int) -> Sample:
        start = f'{{"seq": {count - batches - 2}}}'
        options = {URI: uri, "log": logs[count], "startingOffsets": start, "maxRecordsPerTrigger": 1, "includeMetadata": "false"}
        return available(world, read_stream(world, "bookkeeper", options), "prebuilt", {}, 2)

    def planning(count: int) -> Sample:
        options = parse_options({URI: uri, "log": logs[count]})
        with CpuMeter({"planner": [os.getpid()], "bookies": partial(world.pids, "bookies")}) as meter:
            tasks = BookKeeperReader(options, schema_of(options)).partitions()
        return meter.sample(count, tasks=len(tasks), took_ms=1000 * meter.seconds)

    for what, run, note in (
        ("a micro-batch of one row", streaming, "ours as the source, a sink that drops; batch_ms: median of a run"),
        ("planning a batch read of all", planning, "schema, snapshot and tasks, in one process that has a client"),
    ):
        contenders = {f"{count:,} segments": partial(run, count) for count in counts}
        samples = interleave(contenders, world.rounds, 1, world.report.say)
        unit = "rows" if run is streaming else "segments"
        baseline = f"{counts[0]:,} segments"
        shown = "batch_ms" if run is streaming else "took_ms"
        world.report.add(Comparison(f"Segments in the log: {what}", unit, samples, baseline, note, (), GROUP, shown))
    for log in logs.values():
        world.drop_log(EMBEDDED, log)


def grow(client: Any, log: str, count: int) -> str:
    """A raw log of ``count`` segments with one entry each."""
    create_log(client, log, ONE_COPY_RAW)
    for start in range(0, count, ENTRIES_PER_LEDGER):
        ledger = written(client, min(ENTRIES_PER_LEDGER, count - start), VALUE_BYTES)
        for first in range(0, min(ENTRIES_PER_LEDGER, count - start), PER_COMMIT):
            last = min(first + PER_COMMIT, count - start)
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
            ledger.append_run_future(payload[: some * size], array("q", range(0, (some + 1) * size, size)))
            done += some
        ledger.flush()
        return int(ledger.ledger_id)


def listed(client: Any, log: str, ranges: Sequence[SegmentRange]) -> None:
    at_ms = now_ms()

    def change(current: LedgerList) -> LedgerList:
        return current.append_segments(ranges, at_ms)

    update_ledger_list(client, log, change)


# --- fragments, ledgers, entries ------------------------------------------------------------------------------------------


def fragments(world: World, count: int = 100_000) -> None:
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
    for number in numbers:
        log = world.name("ledgers")
        world.report.say(f"a log of {number:,} ledgers")
        create_log(client, log, ONE_COPY_RAW)
        each = rows // number
        with ThreadPoolExecutor(8) as pool:
            ids = [made.result() for made in [pool.submit(written, client, each, VALUE_BYTES) for _ in range(number)]]
        for start in range(0, number, PER_COMMIT):
            ranges = [SegmentRange(ledger, 0, each - 1, each, each * VALUE_BYTES, 1) for ledger in ids[start : start + PER_COMMIT]]
            listed(client, log, ranges)
        frames[f"{number:,} ledgers"] = partial(world.read_ours, world.uri(EMBEDDED), log, minPartitions=2, includeMetadata="false")
    _reads(world, "Ledgers in one batch read", rows, rows * VALUE_BYTES, frames, f"{rows:,} rows, 3 embedded bookies, 2 tasks")


def entries(world: World, total: int = 256 << 20) -> None:
    """Raw entries: one value is one entry. What is compared is bytes per second."""
    client = world.client(APACHE)
    contenders: dict[str, Callable[[], Sample]] = {}
    ledgers = []
    for size, words in ENTRY_SIZES.items():
        count = (total // 4 if size == 100 else total) // size
        world.report.say(f"a ledger of {count:,} entries of {words}")
        ledgers.append(written(client, count, size, copies=3))
        options = {URI: world.uri(APACHE), "ledgers": ledgers[-1], "includeMetadata": "false", "minPartitions": 2}
        frame = partial(world.read, "bookkeeper", **options)
        contenders[f"entries of {words}"] = world.measured(count * size, count * size, _reading(frame, count * size))
    samples = interleave(contenders, world.rounds, 1, world.report.say)
    note = f"{total >> 20} MiB (100 B: a quarter of it) in a ledger on 3 Apache bookies, 2 tasks; a row is an entry"
    world.report.add(Comparison("Size of raw entries", "bytes", samples, "entries of 1 KiB", note, (), GROUP))
    for ledger in ledgers:
        client.delete_ledger(ledger)


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

ABOVE, PEAK = "worker_mib_above_idle", "worker_mib"
WORKERS = "Python workers"
SLOTS = 8
FLAT = 1.1  # times the memory at an eighth of the size


def memory(world: World, sizes_mib: Sequence[int] = (50, 500, 4096)) -> None:
    """Anonymous memory of the fattest task worker, above one that is idle: writing logs of clearly different sizes, and reading them."""
    uri = world.uri(APACHE)  # started here, not on the clock
    logs: dict[int, str] = {}
    contenders: dict[str, Callable[[], Sample]] = {}
    for mib in sizes_mib:
        rows = mib << 10
        contenders[f"write {mib:,} MiB"] = partial(_watched, world, rows, partial(_write_log, world, logs, mib, uri))
        contenders[f"read {mib:,} MiB"] = partial(_watched, world, rows, partial(_read_log, world, logs, mib, uri))
    samples = interleave(contenders, world.at_most(2), 0, world.report.say)
    reaches = [Reach(name, 256, of=ABOVE, against="", at_most=True) for name in contenders]
    largest, smaller = (f"{{}} {mib:,} MiB" for mib in sizes_mib[:-3:-1])  # the smallest does not fill the buffers
    reaches += [Reach(largest.format(way), FLAT, of=PEAK, against=smaller.format(way), at_most=True) for way in ("write", "read")]
    note = "values of 1 KiB; a log on 3 Apache bookies, 1/1/1, written and then read by 2 tasks, defaults otherwise; workers new every time"
    first = next(iter(contenders))
    world.report.add(Comparison("Memory of a task worker", "rows", samples, first, note, reaches, GROUP, ABOVE))
    for log in logs.values():
        world.drop_log(APACHE, log)


def _write_log(world: World, logs: dict[int, str], mib: int, uri: str) -> None:
    """In place of the one that was written before."""
    if mib in logs:
        world.drop_log(APACHE, logs.pop(mib))
    log = world.name("memory")
    world.activate()
    values(world.spark, mib << 10, 1024).write.format("bookkeeper").options(**{URI: uri, "log": log, **ONE_COPY}).mode("append").save()
    logs[mib] = log


def _read_log(world: World, logs: dict[int, str], mib: int, uri: str) -> None:
    _reading(partial(world.read_ours, uri, logs[mib], minPartitions=2, maxBytesPerPartition="64g"), mib << 20)()


def _watched(world: World, rows: int, action: Callable[[], None]) -> Sample:
    """Measure workers that have done nothing before. More than ``SLOTS`` of them would not be looked at."""
    old = set(world.pids(WORKERS))
    world.fresh_workers()
    idle = world.idle_worker_mib(old)

    def one(slot: int) -> list[int]:
        return [pid for pid in world.pids(WORKERS) if pid not in old][slot : slot + 1]

    with CpuMeter({str(slot): partial(one, slot) for slot in range(SLOTS)}) as each, world.meter() as meter:
        action()
    peak = max(each.peak_anonymous.values()) / (1 << 20)
    return meter.sample(rows, rows * 1024, **{PEAK: peak, ABOVE: peak - idle, "idle_worker_mib": idle})


PARTS: Sequence[Callable[[World], None]] = (partitions, segments, fragments, entries, memory, ledgers)
