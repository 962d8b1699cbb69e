"""One job, for whatever log it is given: batch write, streaming copy, batch read, aggregation.

``System`` is all that a user changes to move the job: the format and where the cluster is. Topic and log names, ``subscribe``,
``startingOffsets``, ``maxOffsetsPerTrigger`` and the column ``value`` are spelled the same in both worlds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

SCHEMA = "id BIGINT, carrier STRING, origin STRING, delay DOUBLE, tags ARRAY<STRING>"
PER_TRIGGER = 700


@dataclass(frozen=True)
class System:
    """``cluster`` goes to every reader and writer, ``writing`` to every writer."""

    format: str
    cluster: Mapping[str, str]
    writing: Mapping[str, str]


@dataclass(frozen=True)
class Result:
    """``rows``: what was copied, by id. ``batches``: rows of each micro-batch. ``delays``: the aggregation, as tuples."""

    rows: list[tuple[Any, ...]]
    batches: list[int]
    delays: list[tuple[Any, ...]]


def session(jars: Path) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", "python")
    return (
        SparkSession.builder.master("local[2]")
        .appName("the same job twice")
        .config("spark.jars", ",".join(str(jar) for jar in sorted(jars.glob("*.jar"))))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )


def flights(spark: SparkSession, rows: int) -> DataFrame:
    """Rows made from their number alone, so that both systems get the same bytes."""
    return spark.range(rows).selectExpr(
        "id",
        "element_at(array('UA', 'AA', 'B6', 'DL'), CAST(id % 4 + 1 AS INT)) AS carrier",
        "element_at(array('EWR', 'JFK', 'LGA'), CAST(id % 3 + 1 AS INT)) AS origin",
        "IF(id % 11 = 0, NULL, CAST(id * 37 % 180 - 20 AS DOUBLE) / 4) AS delay",
        "array(CAST(id AS STRING), 'ü') AS tags",
    )


def run(spark: SparkSession, system: System, rows: int, checkpoint: Path) -> Result:
    written = flights(spark, rows).selectExpr("to_json(struct(*)) AS value")
    write = written.write.format(system.format).options(**system.cluster, **system.writing)
    write.option("topic", "flights").mode("append").save()

    stream = (
        spark.readStream.format(system.format)
        .options(**system.cluster)
        .option("subscribe", "flights")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(PER_TRIGGER))
        .load()
    )
    late = _parsed(stream).where("delay IS NULL OR delay > 0")
    copy = (
        late.selectExpr("to_json(struct(*)) AS value")
        .writeStream.format(system.format)
        .options(**system.cluster, **system.writing)
        .option("topic", "late")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    copy.awaitTermination()
    batches = [int(progress["sources"][0]["numInputRows"]) for progress in copy.recentProgress]

    back = spark.read.format(system.format).options(**system.cluster).option("subscribe", "late").load()
    copied = _parsed(back).cache()
    delays = copied.groupBy("carrier", "origin").agg(F.count("*").alias("flights"), F.round(F.avg("delay"), 9).alias("delay"))
    result = Result(
        [tuple(row) for row in copied.orderBy("id").collect()],
        [rows for rows in batches if rows],
        [tuple(row) for row in delays.orderBy("carrier", "origin").collect()],
    )
    copied.unpersist()
    return result


def _parsed(frame: DataFrame) -> DataFrame:
    return frame.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("flight")).select("flight.*")
