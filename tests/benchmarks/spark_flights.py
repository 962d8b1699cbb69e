"""The job users have: 19 typed columns into a log and back. Ours against Kafka with JSON and with Avro.

All read the same Parquet files, cached by the kernel. Reading back ends in a sum of hashes over all columns, which must be the same for
all; it reads every column and moves none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.avro import functions as avro

from bk_spark.demo.flights import ARROW_SCHEMA, read_lines, to_table
from tests.benchmarks.measure import Comparison, Reach, Sample, interleave
from tests.benchmarks.spark_read import PARTITIONS
from tests.benchmarks.spark_world import APACHE, EMBEDDED, KAFKA_READING, KAFKA_WRITING, ONE_COPY, URI, World, to_partitions
from tests.benchmarks.spark_write import batches_to_python

GROUP = "19 typed columns"
COLUMNS = tuple(name for name in ARROW_SCHEMA.names if name != "n")
JSON, AVRO = "Kafka, JSON", "Kafka, Avro"
PLAIN, ZSTD = "ours, plain", "ours, zstd"
CEILING = "ceiling"
ENTRY_SIZE = "1m"  # columns are compressed one by one, and long ones more cheaply; Kafka's batches are tuned as well
ROW_BYTES = 150  # in memory, roughly
ROWS, ROWS_WHOLE, ROWS_QUICK = 2_000_000, 20_000_000, 200_000
_MODULUS = 1_000_003  # of each row's hash, so that the sum stays a bigint


@dataclass(frozen=True, slots=True)
class Way:
    """There and back: ``write`` puts all rows into a new place, ``read`` gives them again, ``size`` is what it takes, ``drop`` ends it."""

    write: Callable[[], None]
    read: Callable[[], DataFrame]
    size: Callable[[], int]
    drop: Callable[[], None]


def typed_columns(world: World, *, whole: bool = False) -> None:
    """``whole``: so many rows that one round is all there is time for, after no warm-up; that comes with fewer rows."""
    rows = ROWS_WHOLE if whole else ROWS_QUICK if world.quick else ROWS
    batches_to_python(world, ROW_BYTES)
    rounds = world.at_most(1 if whole else 2 if world.quick else world.rounds)
    world.report.say(f"flights, {rows:,} rows: reading the package")
    flights = Flights(world, rows)
    makers: dict[str, Callable[[], Way]] = {
        JSON: flights.by_json,
        AVRO: flights.by_avro,
        PLAIN: lambda: flights.ours(APACHE, "none"),
        ZSTD: lambda: flights.ours(APACHE, "zstd"),
    }
    makers[CEILING] = flights.prebuilt
    if not world.quick:
        makers["ours, plain, embedded"] = lambda: flights.ours(EMBEDDED, "none")
    contenders = {name: partial(flights.round_trip, maker) for name, maker in makers.items()}
    samples = interleave(contenders, rounds, 0 if whole else 1, world.report.say)
    reaches = (
        Reach(PLAIN, 5.0),
        Reach(PLAIN, 3.0, against=AVRO),
        Reach(ZSTD, 5.0),
        Reach(ZSTD, 3.0, against=AVRO),
        Reach(ZSTD, 1 / 3, of="stored_mb", at_most=True),
    )
    note = (
        f"{rows:,} flights, rounds: {rounds}; there and back, {PARTITIONS} partitions; one copy each; Kafka: tuned, no fsync, uncompressed"
    )
    world.report.add(Comparison(f"{rows:,} rows of 19 typed columns there and back", "rows", samples, JSON, note, reaches, GROUP))
    flights.close()


class Flights:
    def __init__(self, world: World, rows: int) -> None:
        self._world, self._rows = world, rows
        self._path = world.path("flights")
        self._path.mkdir()
        self._make()
        self.frame = world.spark.read.parquet(str(self._path))
        self._schema = self.frame.schema
        self._expected = checksum(self.frame)

    def _make(self) -> None:
        """Two files with half of the rows each; the year's flights are repeated as often as it takes."""
        table = to_table(*read_lines(min(self._rows, 336_776))).select(list(COLUMNS))
        for part in range(PARTITIONS):
            left = self._rows * (part + 1) // PARTITIONS - self._rows * part // PARTITIONS
            with pa.parquet.ParquetWriter(self._path / f"part-{part}.parquet", table.schema, compression="snappy") as writer:
                while left > 0:
                    writer.write_table(table.slice(0, min(left, table.num_rows)))
                    left -= table.num_rows

    def close(self) -> None:
        self._world.remove(self._path)

    def round_trip(self, maker: Callable[[], Way]) -> Sample:
        """Both ways on one clock; seconds of each way, and what is stored, beside it."""
        world, way = self._world, maker()
        there = world.measured(self._rows, 0, way.write)()
        stored = way.size()
        found: list[int] = []
        back = world.measured(self._rows, 0, lambda: found.append(checksum(way.read())))()
        way.drop()
        if found != [self._expected]:
            raise RuntimeError(f"what came back is not what went in: {found} instead of {self._expected}")
        cpu = {name: there.cpu[name] + back.cpu[name] for name in there.cpu}
        peaks = {name: max(size, back.extra[name]) for name, size in there.extra.items()}
        extra = {**peaks, "there_s": there.seconds, "back_s": back.seconds, "stored_mb": stored / 1e6}
        return Sample(there.seconds + back.seconds, self._rows, 0, cpu, extra)

    # --- ours ----------------------------------------------------------------------------------------------------------

    def ours(self, kind: str, compression: str) -> Way:
        world, log = self._world, self._world.name("flights")
        uri = world.uri(kind)
        options = {URI: uri, "log": log, "compression": compression, "entrySize": ENTRY_SIZE, **ONE_COPY}
        return Way(
            lambda: self.frame.write.format("bookkeeper").options(**options).mode("append").save(),
            lambda: world.read_ours(uri, log, minPartitions=PARTITIONS, maxBytesPerPartition="64g"),
            lambda: world.log_bytes(kind, log),
            lambda: world.drop_log(kind, log),
        )

    def prebuilt(self) -> Way:
        """Nothing is kept: a Python sink that drops all, and a source that gives the same rows from its memory."""
        options = {"parquet": str(self._path), "rows": str(self._rows), "partitions": str(PARTITIONS)}
        source = self._world.spark.read.format("prebuilt").schema(self._schema).options(**options)
        return Way(
            lambda: self.frame.write.format("prebuilt").mode("append").save(),
            source.load,
            lambda: 0,
            lambda: None,
        )

    # --- Kafka ---------------------------------------------------------------------------------------------------------

    def by_json(self) -> Way:
        return self._by_kafka(f.to_json, lambda column: f.from_json(column.cast("string"), self._schema))

    def by_avro(self) -> Way:
        text = _avro_schema(self._world, self._schema)
        return self._by_kafka(lambda column: avro.to_avro(column, text), lambda column: avro.from_avro(column, text))

    def _by_kafka(self, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> Way:
        world = self._world
        topic = world.topic(PARTITIONS)
        options: Mapping[str, str] = {"kafka.bootstrap.servers": world.kafka, "topic": topic, **KAFKA_WRITING}

        def write() -> None:
            rows = self.frame.select(encode(f.struct(*COLUMNS)).alias("value"))
            to_partitions(rows).write.format("kafka").options(**options).mode("append").save()

        def read() -> DataFrame:
            return (
                world.read("kafka", **{"kafka.bootstrap.servers": world.kafka, "subscribe": topic, **KAFKA_READING})
                .select(decode(f.col("value")).alias("flight"))
                .select("flight.*")
            )

        return Way(write, read, lambda: world.topic_bytes(topic), lambda: world.drop_topic(topic))


def checksum(frame: DataFrame) -> int:
    """The sum of a hash over all columns of each row."""
    return int(frame.select(f.sum(f.pmod(f.xxhash64(*COLUMNS), f.lit(_MODULUS)))).collect()[0][0])


def _avro_schema(world: World, schema: Any) -> str:
    """Return the schema that Spark itself would choose for such a row: every column nullable."""
    jvm: Any = world.spark._jvm
    kind = jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json())
    return str(jvm.org.apache.spark.sql.avro.SchemaConverters.toAvroType(kind, False, "flight", "").toString())
