"""The two Spark processes of the demo: the driver of the streaming query, and the reader that judges the log afterwards.

Both run as processes of their own, so that the driver can be killed with everything it started and Spark's memory ends with them.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from bk_spark import checkpoint_location
from bk_spark.demo.compare import compare
from bk_spark.demo.flights import NULL_TEXT, SPARK_SCHEMA, read_lines, to_table

LOG_NAME = "flights"
CHECKPOINT = "flights-in"  # a file store: the checkpoint lies in ledgers like the rows
URI_OPTION = "bookkeeper.metadataServiceUri"


def spark_session(name: str, work: Path) -> SparkSession:
    """A quiet local Spark that keeps its files below ``work`` and its clock in UTC."""
    builder: Any = SparkSession.builder
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(work / "spark"),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        "spark.ui.showConsoleProgress": "false",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.master("local[2]").appName(name).getOrCreate()
    return session


def run_driver(uri: str, work: Path, follow: bool) -> None:
    """Stream ``work/input`` into the log from the checkpoint on: for ever (``follow``) or until all files of this moment are in."""
    spark = spark_session("bk-demo-driver", work)
    files = spark.readStream.schema(SPARK_SCHEMA).option("header", "true").option("nullValue", NULL_TEXT)
    rows = files.option("maxFilesPerTrigger", "1").csv(str(work / "input"))
    writer = rows.writeStream.format("bookkeeper").queryName("flights-in").option(URI_OPTION, uri).option("log", LOG_NAME)
    writer = writer.option("ensembleSize", "3").option("writeQuorumSize", "3").option("ackQuorumSize", "2")
    writer = writer.option("checkpointLocation", checkpoint_location(spark, CHECKPOINT, uri=uri))
    writer = writer.trigger(processingTime="0 seconds") if follow else writer.trigger(availableNow=True)
    query = writer.start()
    with open(work / "progress.jsonl", "a", encoding="utf-8") as out:
        seen = -1
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(1))
            for progress in query.recentProgress:
                if progress["batchId"] > seen and progress["numInputRows"] > 0:
                    seen = progress["batchId"]
                    line = {"batch": seen, "rows": progress["numInputRows"], "ms": progress["durationMs"].get("triggerExecution", 0)}
                    out.write(json.dumps({**line, "pid": os.getpid()}) + "\n")
                    out.flush()
    spark.stop()


def run_reader(uri: str, work: Path, rows: int | None) -> None:
    """Read the log back, compare it with the input, sum up delays; everything goes into ``work/reading.json``."""
    spark = spark_session("bk-demo-reader", work)
    log = spark.read.format("bookkeeper").option(URI_OPTION, uri).option("log", LOG_NAME).load()
    started = time.monotonic()
    found = log.toArrow()
    seconds = time.monotonic() - started
    verdict = compare(to_table(*read_lines(rows)), found)
    result = {
        "seconds": seconds,
        "partitions": log.rdd.getNumPartitions(),
        "arrow_bytes": found.nbytes,
        "comparison": {name: getattr(verdict, name) for name in ("expected", "found", "missing", "doubled", "foreign", "changed")},
        "delays": [row.asDict() for row in delays(log).collect()],
    }
    (work / "reading.json").write_text(json.dumps(result), encoding="utf-8")
    spark.stop()


def delays(flights: DataFrame) -> DataFrame:
    """Flights, mean departure and arrival delay in minutes, by carrier and month."""
    means = [f.avg(name).alias(name) for name in ("dep_delay", "arr_delay")]
    return flights.groupBy("carrier", "month").agg(f.count("*").alias("flights"), *means).orderBy("carrier", "month")
