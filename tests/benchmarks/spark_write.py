"""Batch and streaming writes of packed rows: ours at one copy and at three, Kafka's sink with a tuned producer, a sink that drops all.

Rows are made in the JVM with one copy of a constant. Ours is exactly once and durable at ``fsync`` on the bookies' side; Kafka's sink is
at least once, has one replica, and its broker leaves it to the kernel when data reach the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tests.benchmarks.measure import Comparison, Reach, Sample, interleave
from tests.benchmarks.spark_read import KAFKA, PARQUET, PARTITIONS, QUICK, Size
from tests.benchmarks.spark_world import (
    APACHE,
    EMBEDDED,
    KAFKA_WRITING,
    ONE_COPY,
    SINKS,
    THREE_COPIES,
    URI,
    World,
    to_partitions,
    value,
    values,
)

BATCH, STREAM = "Spark batch write", "Spark streaming write"
DROPPED = "sink that drops"
ONE, THREE = "ours 1/1/1, Apache", "ours 3/3/2, Apache"
ONE_EMBEDDED, THREE_EMBEDDED = "ours 1/1/1, embedded", "ours 3/3/2, embedded"
ONE_SINK = "ours 1/1/1, acknowledging sinks"
OURS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    ONE: (APACHE, ONE_COPY),
    THREE: (APACHE, THREE_COPIES),
    ONE_EMBEDDED: (EMBEDDED, ONE_COPY),
    THREE_EMBEDDED: (EMBEDDED, THREE_COPIES),
    ONE_SINK: (SINKS, ONE_COPY),
}
NOTE = "Kafka: one replica, no fsync, batch.size 256 KiB, linger 5 ms, at least once; ours: fsync on every bookie, exactly once"
REACHES = (Reach(ONE, 1.5), Reach(ONE_EMBEDDED, 1.5))
WAIT_S = 600.0
SIZES = (Size(100, 2_000_000), Size(1024, 500_000), Size(10_240, 50_000))
ALL_OF_OURS = 1024  # the other sizes do without stand-ins and without three copies on embedded bookies


def batches_to_python(world: World, row_bytes: int) -> None:
    """Record batches of about 2 MiB on their way to Python: larger ones fall out of the processor's caches, and memory of 64 MiB is given
    back to the system between any two. By rows: with a limit of bytes Spark asks for the size of all columns after each row. For all
    contenders of this session alike; Kafka's sink and Parquet use no record batches.
    """
    conf = world.spark.conf
    conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str((1 << 31) - 1))
    conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(min(10_000, (2 << 20) // row_bytes)))


def batch_writes(world: World) -> None:
    for size in QUICK if world.quick else SIZES:
        batches_to_python(world, size.value_bytes)
        world.report.say(f"batch writes of {size.rows:,} values of {size.value_bytes} B")
        world.spare_disk()
        ours = _ours(world, size)
        contenders = {KAFKA: _to_kafka(world, size), **{name: _to_log(world, size, name) for name in ours}}
        contenders[DROPPED] = _measured(world, size, lambda frame: frame.write.format("prebuilt").mode("append").save())
        contenders[PARQUET] = _to_parquet(world, size)
        samples = interleave(contenders, world.rounds, 1, world.report.say)
        title = f"Spark batch write, {size.value_bytes} B values"
        world.report.add(Comparison(title, "rows", samples, KAFKA, f"{PARTITIONS} partitions; {NOTE}", REACHES, BATCH))


def _ours(world: World, size: Size) -> list[str]:
    return list(OURS) if size.value_bytes == ALL_OF_OURS and not world.quick else [ONE, THREE, ONE_EMBEDDED]


def _measured(world: World, size: Size, write: Callable[[DataFrame], None]) -> Callable[[], Sample]:
    return world.measured(size.rows, size.bytes, lambda: write(values(world.spark, size.rows, size.value_bytes, PARTITIONS)))


def _to_kafka(world: World, size: Size) -> Callable[[], Sample]:
    def run() -> Sample:
        topic = world.topic(PARTITIONS)
        options = {"kafka.bootstrap.servers": world.kafka, "topic": topic, **KAFKA_WRITING}
        sample = _measured(world, size, lambda frame: to_partitions(frame).write.format("kafka").options(**options).mode("append").save())()
        world.drop_topic(topic)
        return sample

    return run


def _to_log(world: World, size: Size, name: str) -> Callable[[], Sample]:
    kind, copies = OURS[name]

    def run() -> Sample:
        log = world.name("write")
        options = {URI: world.uri(kind), "log": log, **copies}
        sample = _measured(world, size, lambda frame: frame.write.format("bookkeeper").options(**options).mode("append").save())()
        world.drop_log(kind, log)
        return sample

    return run


def _to_parquet(world: World, size: Size) -> Callable[[], Sample]:
    def run() -> Sample:
        path = world.path("written")
        sample = _measured(world, size, lambda frame: frame.write.option("compression", "none").parquet(str(path)))()
        world.remove(path)
        return sample

    return run


# --- streams --------------------------------------------------------------------------------------------------------------


def streaming_writes(world: World) -> None:
    """Spark's ``rate-micro-batch`` gives batches of a fixed number of rows, one after the other without a pause."""
    size, batches = (Size(1024, 50_000), 4) if world.quick else (Size(1024, 100_000), 6)
    batches_to_python(world, size.value_bytes)
    contenders: dict[str, Callable[[], Sample]] = {KAFKA: lambda: _stream_to_kafka(world, size, batches)}
    for name in _ours(world, size):
        contenders[name] = partial(_stream_to_log, world, size, batches, name)
    contenders[DROPPED] = lambda: stream(world, size, batches, "prebuilt", {})
    samples = interleave(contenders, world.at_most(2 if world.quick else 5), 0 if world.quick else 1, world.report.say)
    note = f"{batches} micro-batches of {size.rows:,} rows, the first not counted; {PARTITIONS} partitions; {NOTE}"
    title = f"Spark streaming write, {size.value_bytes} B values"
    world.report.add(Comparison(title, "rows", samples, KAFKA, note, REACHES, STREAM))


def _stream_to_kafka(world: World, size: Size, batches: int) -> Sample:
    topic = world.topic(PARTITIONS)
    options = {"kafka.bootstrap.servers": world.kafka, "topic": topic, **KAFKA_WRITING}
    sample = stream(world, size, batches, "kafka", options)
    world.drop_topic(topic)
    return sample


def _stream_to_log(world: World, size: Size, batches: int, name: str) -> Sample:
    kind, copies = OURS[name]
    log = world.name("stream")
    sample = stream(world, size, batches, "bookkeeper", {URI: world.uri(kind), "log": log, **copies})
    world.drop_log(kind, log)
    return sample


def stream(world: World, size: Size, batches: int, format: str, options: Mapping[str, str]) -> Sample:
    """``batches`` micro-batches after the first one, by the clock from the end of that one to the end of the last."""
    world.activate()
    rate = world.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", size.rows).option("numPartitions", PARTITIONS).load()
    rows = rate.select(value(f.col("value"), size.value_bytes))
    if format == "kafka":
        rows = to_partitions(rows)
    writer = rows.writeStream.format(format).options(**options).option("checkpointLocation", str(world.path("checkpoint")))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        first = await_batch(query, 0)
        with world.meter() as meter:
            last = await_batch(query, first + batches)
    finally:
        query.stop()
    took = [p["durationMs"]["triggerExecution"] for p in query.recentProgress if first < p["batchId"] <= last]
    amount = (last - first) * size.rows
    return meter.sample(amount, amount * size.value_bytes, batch_ms=sorted(took)[len(took) // 2])


def await_batch(query: Any, batch: int) -> int:
    """Until a batch of at least that number is done; which one it is then. What the query failed with is raised."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] >= batch and progress["numInputRows"] > 0:
            return int(progress["batchId"])
        if query.exception() is not None:
            raise query.exception()
        time.sleep(0.005)
    raise RuntimeError(f"{query.name} did not come to batch {batch} in {WAIT_S:.0f} s")
