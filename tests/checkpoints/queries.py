"""The queries that are restarted: where their rows come from, what is done with them, where they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from tests.checkpoints.marker import watched
from tests.checkpoints.processors import OUTPUT, VARIABLES, Totals, TotalsInPandas

SCHEMA = "k string, v long, t timestamp"
URI = "bookkeeper.metadataServiceUri"
ROWS_PER_BATCH = 20
PAD_DIGESTS = 128  # of 64 bytes each
TEXT_MAX = 300
STATE = "org.apache.spark.sql.execution.streaming.state"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
STORES: dict[str, dict[str, str]] = {
    "": {PROVIDER: f"{STATE}.HDFSBackedStateStoreProvider", CHANGELOG: "false", FORMAT: "1"},
    "hdfs": {PROVIDER: f"{STATE}.HDFSBackedStateStoreProvider", CHANGELOG: "false", FORMAT: "1"},
    "rocksdb": {PROVIDER: f"{STATE}.RocksDBStateStoreProvider", CHANGELOG: "false", FORMAT: "1"},
    "rocksdb changelog": {PROVIDER: f"{STATE}.RocksDBStateStoreProvider", CHANGELOG: "true", FORMAT: "1"},
    "rocksdb changelog v2": {PROVIDER: f"{STATE}.RocksDBStateStoreProvider", CHANGELOG: "true", FORMAT: "2"},
}


# --- where rows come from -----------------------------------------------------------------------------------------------------


def _files(spark: SparkSession, directory: str) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").json(directory)


def _log(spark: SparkSession, spec: dict[str, Any]) -> DataFrame:
    reader = spark.readStream.format("bookkeeper").option(URI, spec["uri"]).option("startingOffsets", "earliest")
    return reader.option("maxRowsPerTrigger", str(ROWS_PER_BATCH)).load(spec["from"])


def _rate_micro_batch(spark: SparkSession, salt: int) -> DataFrame:
    """The same rows in the same batches, however often it is started: no other source has both. Each row follows from its number: event
    time goes on by two seconds a batch, some rows come again, some come too late, and keys fall silent for a while.
    """
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", str(ROWS_PER_BATCH)).option("numPartitions", "1")
    numbers = reader.load().select(f.col("value").alias("x"))

    def chance(what: int, of: int) -> str:
        return f"pmod(xxhash64(y, {salt}, {what}), {of})"

    again = f"x > 20 AND pmod(xxhash64(x, {salt}), 10) < 3"
    numbers = numbers.selectExpr(f"CASE WHEN {again} THEN x - 1 - pmod(xxhash64(x, {salt}, 1), 20) ELSE x END AS y")
    early_ms = f"element_at(array(-12000, -4000, -1000, 0, 500, 1000), cast({chance(2, 6)} + 1 AS int))"
    return numbers.selectExpr(
        f"concat('k', pmod(y div 60 + {chance(3, 4)}, 8)) AS k",
        f"{chance(4, 100)} AS v",
        f"timestamp_millis(1700000000000 + (y div {ROWS_PER_BATCH}) * 2000 + {early_ms} + {chance(5, 1000)}) AS t",
    )


def _rate(spark: SparkSession) -> DataFrame:
    """Rows by the clock: when it began is in the checkpoint."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", "20").option("numPartitions", "1").load()
    return rows.select(f.lit("k").alias("k"), f.col("value").alias("v"), f.col("timestamp").alias("t"))


def _input(spark: SparkSession, spec: dict[str, Any], side: str = "left") -> DataFrame:
    match spec["source"]:
        case "files":
            return _files(spark, f"{spec['input']}/{side}")
        case "log":
            return _log(spark, spec)
        case "rate-micro-batch":
            return _rate_micro_batch(spark, 1 if side == "left" else 2)
        case "rate":
            return _rate(spark)
        case other:
            raise ValueError(f"no source {other!r}")


# --- what is done with them -----------------------------------------------------------------------------------------------------


def _late(rows: DataFrame) -> DataFrame:
    """With a column that nothing compresses, so that files of state are too large to lie within the records of a store."""
    digests = f.expr(f"transform(sequence(1, {PAD_DIGESTS}), i -> sha2(concat_ws('/', k, v, t, i), 256))")
    return rows.withWatermark("t", "5 seconds").withColumn("pad", f.concat_ws("", digests))


def _plain(rows: DataFrame, _: DataFrame | None) -> DataFrame:
    return rows.select("k", "v", f.unix_millis("t").alias("t"))


def _aggregation(rows: DataFrame, _: DataFrame | None) -> DataFrame:
    counted = (
        _late(rows).groupBy(f.window("t", "4 seconds"), "k").agg(f.sum("v").alias("v"), f.count("*").alias("n"), f.min("pad").alias("pad"))
    )
    return counted.select(f.concat_ws(" ", "k", "n", f.md5("pad")).alias("k"), "v", f.unix_millis(f.col("window.start")).alias("t"))


def _deduplication(rows: DataFrame, _: DataFrame | None) -> DataFrame:
    return _late(rows).dropDuplicates(["k", "v", "t", "pad"]).select("k", "v", f.unix_millis("t").alias("t"))


def _distinct(rows: DataFrame, _: DataFrame | None) -> DataFrame:
    """Without a watermark, so that Spark's file sink, see ``_batches``, makes no difference."""
    return rows.dropDuplicates(["k", "v"]).select("k", "v", f.lit(0).cast("long").alias("t"))


def _deduplication_within(rows: DataFrame, _: DataFrame | None) -> DataFrame:
    return _late(rows).dropDuplicatesWithinWatermark(["k", "v"]).select("k", "v", f.unix_millis("t").alias("t"))


def _join(rows: DataFrame, other: DataFrame | None) -> DataFrame:
    assert other is not None
    left = _late(rows).select("k", "v", "t", "pad")
    right = _late(other).select(f.col("k").alias("k2"), f.col("v").alias("v2"), f.col("t").alias("t2"))
    near = f.expr("k = k2 AND t2 BETWEEN t - INTERVAL 2 seconds AND t + INTERVAL 2 seconds")
    joined = left.join(right, near, "leftOuter")
    return joined.select(f.concat_ws(" ", "k", "v2", f.md5("pad")).alias("k"), "v", f.unix_millis("t").alias("t"))


def _keyed(rows: DataFrame) -> Any:
    return _late(rows).select("k", "v", f.unix_millis("t").alias("t"), "pad", f.col("t").alias("at")).groupBy("k")


def _transform(rows: DataFrame, _: DataFrame | None) -> DataFrame:
    found: DataFrame = _keyed(rows).transformWithState(Totals(), OUTPUT, "Append", "EventTime")
    return found


def _transform_in_pandas(rows: DataFrame, _: DataFrame | None) -> DataFrame:
    found: DataFrame = _keyed(rows).transformWithStateInPandas(TotalsInPandas(), OUTPUT, "Append", "EventTime")
    return found


KINDS: dict[str, Callable[[DataFrame, DataFrame | None], DataFrame]] = {
    "plain": _plain,
    "aggregation": _aggregation,
    "dropDuplicates": _deduplication,
    "dropDuplicates without watermark": _distinct,
    "dropDuplicatesWithinWatermark": _deduplication_within,
    "stream-stream join": _join,
    "transformWithState": _transform,
    "transformWithStateInPandas": _transform_in_pandas,
}
_VARIABLES: list[dict[str, str]] = [*({"stateVarName": name} for name in VARIABLES), {"readRegisteredTimers": "true"}]
STATES: dict[str, list[dict[str, str]]] = {
    "plain": [],
    "stream-stream join": [{"joinSide": "left"}, {"joinSide": "right"}],
    "transformWithState": _VARIABLES,
    "transformWithStateInPandas": _VARIABLES,
}
"""The options by which all of a query's state is read; of one that is not named, everything is read without any."""


# --- where they go --------------------------------------------------------------------------------------------------------------


def _batches(directory: str) -> Callable[[DataFrame, int], None]:
    """A directory for each batch, which a replay overwrites. Spark's own file sink does not even compute a batch that it has: the watermark
    of the next one stays behind then, and the query goes on otherwise than undisturbed.
    """

    def save(rows: DataFrame, batch_id: int) -> None:
        rows.write.mode("overwrite").parquet(f"{directory}/batch={batch_id}")

    return save


def _appended(directory: str) -> Callable[[DataFrame, int], None]:
    """A batch that is written twice is there twice."""

    def save(rows: DataFrame, batch_id: int) -> None:
        rows.write.mode("append").parquet(directory)

    return save


def start(spark: SparkSession, spec: dict[str, Any]) -> StreamingQuery:
    """The query of ``spec`` from its checkpoint. Its state store is what the session says when it is started."""
    for key, value in STORES[spec["store"]].items():
        spark.conf.set(key, value)
    rows = watched(_input(spark, spec), spec["orders"])
    other = _input(spark, spec, "right") if spec["kind"] == "stream-stream join" else None
    writer = KINDS[spec["kind"]](rows, other).writeStream.outputMode("append").option("checkpointLocation", spec["checkpoint"])
    match spec["sink"]:
        case "log":
            writer = writer.format("bookkeeper").option(URI, spec["uri"]).option("log", spec["log"])
        case "parquet":
            writer = writer.format("parquet").option("path", spec["output"])
        case "batches":
            writer = writer.foreachBatch(_batches(spec["output"]))
        case "appends":
            writer = writer.foreachBatch(_appended(spec["output"]))
        case other_sink:
            raise ValueError(f"no sink {other_sink!r}")
    writer = writer.options(**spec["options"])
    endless = spec["source"].startswith("rate")
    writer = writer.trigger(processingTime="0 seconds") if endless else writer.trigger(availableNow=True)
    query: StreamingQuery = writer.start()
    return query


# --- what is read of them afterwards --------------------------------------------------------------------------------------------


def _texts(frame: DataFrame) -> list[str]:
    """Each row; of a long one the digest. Structs are taken apart: the rows of a join's state have a field more than they say."""
    columns = []
    for name, kind in ((field.name, field.dataType) for field in frame.schema):
        inner = [f"{name}.{part}" for part in kind.names] if isinstance(kind, StructType) else [name]
        columns += [f.col(one).alias(one.replace(".", "_")) for one in inner]
    text = f.to_json(f.struct(*columns))
    return [row.text for row in frame.select(f.when(f.length(text) > TEXT_MAX, f.sha2(text, 256)).otherwise(text).alias("text")).collect()]


def output(spark: SparkSession, spec: dict[str, Any]) -> list[str]:
    """The rows that the query has written, as a user reads them."""
    if spec["sink"] == "log":
        return _texts(spark.read.format("bookkeeper").option(URI, spec["uri"]).option("log", spec["log"]).load().select("k", "v", "t"))
    return _texts(spark.read.parquet(spec["output"]).select("k", "v", "t"))


def states(spark: SparkSession, spec: dict[str, Any], last: int, back: list[int]) -> dict[str, list[str]]:
    """All rows of the state that the query had after its last batch, and after those that lie so many before it."""
    found = {}
    for key, value in STORES[spec["store"]].items():
        spark.conf.set(key, value)
    for before in back:
        for options in STATES.get(spec["kind"], [{}]):
            reader = spark.read.format("statestore").option("batchId", str(last - before)).options(**options)
            name = " ".join([f"-{before}", *(f"{key}={value}" for key, value in options.items())])
            found[name] = _texts(reader.load(spec["checkpoint"]))
    return found
