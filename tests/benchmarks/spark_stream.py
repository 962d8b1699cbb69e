"""Streaming: reading at a fixed number of rows per micro-batch, what a micro-batch costs when it has almost no data, and latency."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from tests.benchmarks.measure import Comparison, Reach, Sample, interleave
from tests.benchmarks.spark_read import CEILING, KAFKA, ON_APACHE, ON_EMBEDDED, PARTITIONS, Size
from tests.benchmarks.spark_world import (
    APACHE,
    EMBEDDED,
    KAFKA_READING,
    KAFKA_WRITING,
    ONE_COPY,
    THREE_COPIES,
    URI,
    World,
    to_partitions,
    values,
)
from tests.benchmarks.spark_write import await_batch

READ, OVERHEAD, LATENCY = "Spark streaming read", "Spark micro-batch overhead", "Spark latency"
PHASES = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
TRIVIAL = "trivial Python"
ENDS: Mapping[str, str] = {ON_APACHE: APACHE, ON_EMBEDDED: EMBEDDED}


def read_stream(world: World, format: str, options: Mapping[str, Any]) -> DataFrame:
    world.activate()
    return world.spark.readStream.format(format).options(**{key: str(text) for key, text in options.items()}).load()


def available(world: World, rows: DataFrame, format: str, options: Mapping[str, str], skip: int) -> Sample:
    """Read what is there, batch by batch, and measure the batches after the first ``skip``.

    The clock is the sum of their durations; CPU and memory are of the whole query.
    """
    writer = rows.writeStream.format(format).options(**options).option("checkpointLocation", str(world.path("checkpoint")))
    world.activate()
    with world.meter() as meter:
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    done = [p for p in query.recentProgress if p["numInputRows"] > 0]
    counted = done[skip:]
    took = [p["durationMs"]["triggerExecution"] for p in counted]
    phases = {f"{name}_ms": statistics.median(p["durationMs"].get(name, 0) for p in counted) for name in PHASES}
    sample = meter.sample(sum(p["numInputRows"] for p in counted), seconds=sum(took) / 1000, batch_ms=statistics.median(took), **phases)
    share = len(counted) / len(done)  # so that CPU belongs to the rows that count
    return Sample(sample.seconds, sample.amount, 0, {name: spent * share for name, spent in sample.cpu.items()}, sample.extra)


# --- reading --------------------------------------------------------------------------------------------------------------


def streaming_reads(world: World) -> None:
    """The sink is Spark's ``noop`` behind a filter that fetches every value and lets none pass."""
    size = Size(1024, 600_000)
    per_trigger = size.rows // 6
    topic, logs = _filled(world, size)
    kafka = {"kafka.bootstrap.servers": world.kafka, "subscribe": topic, "startingOffsets": "earliest", **KAFKA_READING}
    sources: dict[str, tuple[str, dict[str, Any]]] = {KAFKA: ("kafka", {**kafka, "maxOffsetsPerTrigger": per_trigger})}
    for name, kind in ENDS.items():
        ours = {URI: world.uri(kind), "log": logs[kind], "startingOffsets": "earliest", "minPartitions": PARTITIONS}
        sources[name] = ("bookkeeper", {**ours, "maxRecordsPerTrigger": per_trigger})
    prebuilt = {"rows": per_trigger, "valueBytes": size.value_bytes, "batches": size.rows // per_trigger, "partitions": PARTITIONS}
    sources[CEILING] = ("prebuilt", prebuilt)
    contenders = {name: _reading(world, size, *source) for name, source in sources.items()}
    samples = interleave(contenders, world.rounds, 1, world.report.say)
    note = f"{per_trigger:,} rows per micro-batch, {PARTITIONS} partitions, AvailableNow; where(length(value) < 0) into noop"
    reaches = (Reach(ON_APACHE, 1.2),)
    world.report.add(Comparison(f"Spark streaming read, {size.value_bytes} B values", "rows", samples, KAFKA, note, reaches, READ))
    for kind, log in logs.items():
        world.drop_log(kind, log)
    world.drop_topic(topic)


def _filled(world: World, size: Size) -> tuple[str, dict[str, str]]:
    given = values(world.spark, size.rows, size.value_bytes, PARTITIONS)
    topic = world.topic(PARTITIONS)
    servers = {"kafka.bootstrap.servers": world.kafka, "topic": topic}
    to_partitions(given).write.format("kafka").options(**servers, **KAFKA_WRITING).mode("append").save()
    logs = {}
    for kind in ENDS.values():
        logs[kind] = world.name("streamed")
        options = {URI: world.uri(kind), "log": logs[kind], **THREE_COPIES}
        world.activate()
        given.write.format("bookkeeper").options(**options).mode("append").save()
    return topic, logs


def _reading(world: World, size: Size, format: str, options: Mapping[str, Any]) -> Callable[[], Sample]:
    def run() -> Sample:
        rows = read_stream(world, format, options).where(f.length("value") < 0)
        sample = available(world, rows, "noop", {}, 1)
        return Sample(sample.seconds, sample.amount, int(sample.amount) * size.value_bytes, sample.cpu, sample.extra)

    return run


# --- overhead -------------------------------------------------------------------------------------------------------------


def overheads(world: World) -> None:
    for partitions in (2,) if world.quick else (1, 2):
        world.report.say(f"micro-batches of {partitions} rows")
        overhead(world, partitions, 12 if world.quick else 24)


def overhead(world: World, partitions: int, batches: int) -> None:
    """Micro-batches of one row per partition, from source to sink of the same kind. ``batches`` of them are measured, after three."""
    rows = (batches + 3) * partitions
    given = values(world.spark, rows, 100, partitions)
    topic, log = world.topic(partitions), world.name("small")
    uri = world.uri(EMBEDDED)
    servers = {"kafka.bootstrap.servers": world.kafka}
    to_partitions(given).write.format("kafka").options(**servers, topic=topic).mode("append").save()
    world.activate()
    given.write.format("bookkeeper").options(**{URI: uri, "log": log, **ONE_COPY}).mode("append").save()
    ours = {URI: uri, "log": log, "startingOffsets": "earliest", "maxRecordsPerTrigger": partitions, "minPartitions": partitions}
    kafka = {**servers, "subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": partitions}
    trivial = {"rows": partitions, "batches": batches + 3, "partitions": partitions}
    copies: list[str] = []

    def to_log() -> Sample:
        copies.append(world.name("copy"))
        return available(world, read_stream(world, "bookkeeper", ours), "bookkeeper", {URI: uri, "log": copies[-1], **ONE_COPY}, 3)

    def to_topic() -> Sample:
        copy = world.topic(partitions)
        sample = available(world, read_stream(world, "kafka", kafka).select("value"), "kafka", {**servers, "topic": copy}, 3)
        world.drop_topic(copy)
        return sample

    contenders: dict[str, Callable[[], Sample]] = {
        TRIVIAL: lambda: available(world, read_stream(world, "prebuilt", trivial), "prebuilt", {}, 3),
        "ours": to_log,
        "Kafka": to_topic,
    }
    samples = interleave(contenders, world.at_most(2 if world.quick else 5), 0 if world.quick else 1, world.report.say)
    reaches = (Reach("ours", 1.15, of="batch_ms", at_most=True),) if partitions == 2 else ()
    title = f"Spark micro-batches of {partitions} row{'s' * (partitions > 1)} in as many partitions"
    note = f"{batches} micro-batches, source to sink of the same kind; ours on embedded bookies, 1/1/1; batch_ms: median of a run"
    world.report.add(Comparison(title, "rows", samples, TRIVIAL, note, reaches, OVERHEAD, "batch_ms"))
    for name in [log, *copies]:
        world.drop_log(EMBEDDED, name)
    world.drop_topic(topic)


# --- latency --------------------------------------------------------------------------------------------------------------

_NOW = "CAST(reflect('java.lang.System', 'currentTimeMillis') AS BIGINT)"


def latencies(world: World) -> None:
    """From the moment a task of one query has a row in its hands to the moment a task of another query, behind the log, has it in its."""
    ours = {URI: world.uri(APACHE)}
    kafka = {"kafka.bootstrap.servers": world.kafka}

    def named() -> dict[str, str]:
        return {"readerName": world.name("reader")}

    contenders = {
        KAFKA: lambda: _latency(world, "kafka", kafka, kafka, "subscribe", "topic"),
        "ours 3/3/2, Apache": lambda: _latency(world, "bookkeeper", {**ours, **named()}, {**ours, **THREE_COPIES}, "log", "log"),
    }
    samples = interleave(contenders, world.rounds, 0, world.report.say)
    note = "two queries with processing-time trigger 0 on the same two cores; rows as they come, 10 per batch; latency in ms"
    world.report.add(Comparison("Spark latency through the log", "rows", samples, KAFKA, note, (), LATENCY, "p50_ms"))


def _latency(world: World, format: str, reading: Mapping[str, str], writing: Mapping[str, str], source: str, target: str) -> Sample:
    log, table = world.name("latency"), world.name("delays").replace("-", "_")
    if format == "kafka":
        log = world.topic(1)
    rate = world.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 1).load()
    sent = rate.selectExpr(f"CAST(CAST({_NOW} AS STRING) AS BINARY) AS value").writeStream.format(format).options(**writing)
    sent = sent.option(target, log).option("checkpointLocation", str(world.path("checkpoint"))).trigger(processingTime="0 seconds")
    world.activate()
    writer = sent.start()
    try:
        await_batch(writer, 0)
        rows = read_stream(world, format, {**reading, source: log, "startingOffsets": "latest"})
        late = rows.selectExpr(f"{_NOW} - CAST(CAST(value AS STRING) AS BIGINT) AS ms")
        reader = late.writeStream.format("memory").queryName(table).trigger(processingTime="0 seconds").start()
        try:
            first = await_batch(reader, 1)
            with world.meter() as meter:
                await_batch(reader, first + (10 if world.quick else 40))
        finally:
            reader.stop()
    finally:
        writer.stop()
    delays = sorted(row.ms for row in world.spark.table(table).collect())[20:]  # of the first two batches: sessions, imports
    cut = _quantiles(delays)
    if format == "kafka":
        world.drop_topic(log)
    else:
        world.drop_log(APACHE, log)
    return meter.sample(len(delays), 0, **cut)


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"p{share}_ms": ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 90, 99)}
