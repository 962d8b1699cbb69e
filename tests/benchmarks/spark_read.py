"""Batch reads of packed rows: ours against Kafka's source, against the ceiling of Python sources, and Parquet for reference.

The action of all is ``select(sum(length(value)))``: every value is fetched into the JVM's row, and none is moved elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from tests.benchmarks.measure import Comparison, Reach, interleave
from tests.benchmarks.spark_world import (
    APACHE,
    EMBEDDED,
    KAFKA_WRITING,
    ONE_COPY,
    REPLAYING,
    THREE_COPIES,
    URI,
    World,
    summed,
    to_partitions,
    values,
)

GROUP = "Spark batch read"
KAFKA, CEILING, PARQUET = "Kafka", "ceiling", "Parquet"
ON_APACHE, ON_EMBEDDED, REPLAYED = "ours, 3 Apache bookies", "ours, 3 embedded bookies", "ours, replaying sources"
PARTITIONS = 2


@dataclass(frozen=True, slots=True)
class Size:
    """``value_bytes`` per row and rows, so that a read takes about a second or longer."""

    value_bytes: int
    rows: int

    @property
    def bytes(self) -> int:
        return self.value_bytes * self.rows


FULL = (Size(100, 4_000_000), Size(1024, 1_000_000), Size(10_240, 100_000))
QUICK = (Size(1024, 250_000),)


def batch_reads(world: World) -> None:
    for size in QUICK if world.quick else FULL:
        world.report.say(f"batch reads of {size.rows:,} values of {size.value_bytes} B: filling")
        with Filled(world, size) as filled:
            compare(world, size, filled.frames)


def compare(world: World, size: Size, frames: Mapping[str, Callable[[], DataFrame]], title: str = "", group: str = GROUP) -> None:
    def reading(name: str, frame: Callable[[], DataFrame]) -> Callable[[], None]:
        def read() -> None:
            found = summed(frame())
            if found != size.bytes:
                raise RuntimeError(f"{name} read {found} bytes of {size.bytes}")

        return read

    contenders = {name: world.measured(size.rows, size.bytes, reading(name, frame)) for name, frame in frames.items()}
    samples = interleave(contenders, world.rounds, 1, world.report.say)
    reaches = (
        Reach(REPLAYED, 0.8, against=CEILING),
        Reach(REPLAYED, 2.0),
        Reach(ON_APACHE, 1.2),
    )
    note = "sum(length(value)); the ceiling is a Python source that yields a prebuilt batch; Kafka has one replica"
    title = title or f"Spark batch read, {size.value_bytes} B values, {PARTITIONS} partitions"
    world.report.add(Comparison(title, "rows", samples, KAFKA, note, reaches, group))


class Filled:
    """The same values in a log on each kind of bookie, in a topic, and in Parquet files. ``frames``: one read of each, anew."""

    def __init__(self, world: World, size: Size, partitions: int = PARTITIONS, without: Sequence[str] = ()) -> None:
        """``without`` some of ON_APACHE, ON_EMBEDDED and PARQUET."""
        self._world, self._size, self._partitions, self._without = world, size, partitions, without
        self._logs: list[tuple[str, str]] = []
        self._topic = world.topic(partitions)
        self._path = world.path("parquet")
        self.frames: dict[str, Callable[[], DataFrame]] = {KAFKA: lambda: world.read_kafka(self._topic)}
        self._fill()

    def _fill(self) -> None:
        world, size = self._world, self._size
        given = values(world.spark, size.rows, size.value_bytes, self._partitions)
        servers = {"kafka.bootstrap.servers": world.kafka, "topic": self._topic}
        to_partitions(given).write.format("kafka").options(**servers, **KAFKA_WRITING).mode("append").save()
        for name, kind in ((REPLAYED, REPLAYING), (ON_APACHE, APACHE), (ON_EMBEDDED, EMBEDDED)):
            if name not in self._without:
                self.frames[name] = self._log(given, kind)
        options = {"rows": size.rows, "valueBytes": size.value_bytes, "partitions": self._partitions}
        self.frames[CEILING] = lambda: world.read("prebuilt", **options)
        if PARQUET not in self._without:
            given.write.option("compression", "none").parquet(str(self._path))
            self.frames[PARQUET] = lambda: world.spark.read.parquet(str(self._path))

    def _log(self, given: DataFrame, kind: str) -> Callable[[], DataFrame]:
        world, log = self._world, self._world.name("read")
        uri = world.uri(kind)
        world.activate()
        copies = ONE_COPY if kind == REPLAYING else THREE_COPIES  # what is replayed stays in memory, and nobody reads a second copy
        given.write.format("bookkeeper").options(**{URI: uri, "log": log, **copies}).mode("append").save()
        self._logs.append((kind, log))
        if kind == REPLAYING:
            world.close_ledgers(kind, log)
        return lambda: world.read_ours(uri, log, minPartitions=self._partitions, maxBytesPerPartition="64g")

    def __enter__(self) -> Filled:
        return self

    def __exit__(self, *_: object) -> None:
        for kind, log in self._logs:
            self._world.drop_log(kind, log)
        self._world.drop_topic(self._topic)
        self._world.remove(self._path)
