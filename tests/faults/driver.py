"""``python -m tests.faults.driver``: one Spark session that does what comes on standard input, a JSON command per line.

A process of its own, because some faults kill it. Answers are lines on standard output that begin with ``@@``. It ends with its input.

    {"do": "stream", ...}    run a query to the end of its input; see ``stream``
    {"do": "write", ...}     append rows to a log as a batch
    {"do": "read", ...}      the ids in a log, as a user sees them, and the whole rows
    {"do": "states", ...}    the rows of state that a query has kept
    {"do": "close", ...}     close a checkpoint in ledgers, as the end of an application does

A checkpoint is a directory, or ``store:<name>`` for one in ledgers.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.streaming.query import StreamingQuery

from bk_spark.checkpoint import checkpoint_location
from bk_spark.checkpoint import close as close_checkpoint
from tests.faults.commands import arguments, serve
from tests.faults.points import arm_gateway
from tests.faults.source import NAME, FaultyDataSource

STORE = "store:"
URI = "bookkeeper.metadataServiceUri"
PROVIDERS = "org.apache.spark.sql.execution.streaming.state"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
HDFS, ROCKSDB = "HDFSBacked", "RocksDB"
RETAINED = "spark.sql.streaming.minBatchesToRetain"
# Rows are distinct already; the state is what matters, and that nothing compresses it: its files are too large for the records of a store.
PAD = "concat_ws('', transform(sequence(1, 256), i -> sha2(concat_ws('/', id, i), 256)))"
SCHEMA = "id long, text string"
STREAM_TIMEOUT_S = 480
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "5",  # several appends in each task of a few rows
    "spark.python.task.killTimeout": "8s",  # a zombie that is let go earlier goes on, one that is not is killed by Spark
    "spark.task.maxFailures": "4",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # sessions are short: quick to start counts
}


def session(master: str, work: Path, more: dict[str, str]) -> SparkSession:
    builder: Any = SparkSession.builder
    own = {"spark.local.dir": str(work / "spark"), "spark.sql.warehouse.dir": str(work / "warehouse"), "spark.driver.memory": "1g"}
    for key, value in {**SETTINGS, **own, **more}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.master(master).appName("faults").getOrCreate()
    spark.dataSource.register(FaultyDataSource)
    return spark


def place(spark: SparkSession, checkpoint: str, uri: str) -> str:
    """Return the text that Spark is told as a checkpoint's location."""
    return checkpoint_location(spark, checkpoint.removeprefix(STORE), uri=uri) if checkpoint.startswith(STORE) else checkpoint


def _source(spark: SparkSession, command: dict[str, Any]) -> DataFrame:
    """``files``: a directory of JSON files, two per batch and a task each. ``from``: a log, with ``source`` options."""
    if "files" in command:
        return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "2").json(command["files"])
    options = {"startingOffsets": "earliest", "faults": command["faults"], **command.get("source", {})}
    return spark.readStream.format(NAME).option(URI, command["uri"]).options(**options).load(command["from"])


def stream(spark: SparkSession, command: dict[str, Any]) -> dict[str, Any]:
    """Run the query of ``checkpoint`` into log ``log`` until its input is exhausted; with ``beside``, a second one at the same time."""
    queries = [_start(spark, one) for one in (command, command.get("beside")) if one]
    for query in queries:
        if not query.awaitTermination(STREAM_TIMEOUT_S):
            query.stop()
            raise TimeoutError(f"the query did not end within {STREAM_TIMEOUT_S} s")
    return {"batches": [[progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]] for query in queries]}


def _start(spark: SparkSession, command: dict[str, Any]) -> StreamingQuery:
    rows = _source(spark, command)
    if command.get("also"):  # the query was changed: every row comes once more, under another id
        rows = rows.selectExpr(f"explode(array(id, id + {command['also']})) as id", "text")
    if command.get("stateful"):
        rows = rows.withColumn("pad", expr(PAD)).dropDuplicates(["id", "pad"]).drop("pad")
    if command["checkpoint"].startswith(STORE):
        arm_gateway(command["faults"])
    spark.conf.set(RETAINED, command.get("retained", "100"))
    spark.conf.set(PROVIDER, f"{PROVIDERS}.{command.get('state', HDFS)}StateStoreProvider")
    writer = rows.writeStream.format(NAME).option(URI, command["uri"]).option("log", command["log"])
    checkpoint = place(spark, command["checkpoint"], command["uri"])
    writer = writer.option("faults", command["faults"]).option("checkpointLocation", checkpoint)
    writer = writer.options(**command.get("sink", {}))
    writer = writer.trigger(once=True) if command.get("once") else writer.trigger(availableNow=True)
    query: StreamingQuery = writer.start()
    return query


def write(spark: SparkSession, command: dict[str, Any]) -> dict[str, Any]:
    """Rows ``first`` to ``end`` in ``tasks`` tasks."""
    rows = spark.range(command["first"], command["end"], 1, command.get("tasks", 1)).selectExpr(
        "id", "repeat(cast(id as string), 9) as text"
    )
    writer = rows.write.format(NAME).option(URI, command["uri"]).option("log", command["log"]).option("faults", command["faults"])
    writer.options(**command.get("sink", {})).mode("append").save()
    return {}


def read(spark: SparkSession, command: dict[str, Any]) -> dict[str, Any]:
    frame = spark.read.format("bookkeeper").option(URI, command["uri"]).option("log", command["log"]).load()
    rows = [(row.id, row.text) for row in frame.select("id", "text").collect()]
    return {"ids": [number for number, _ in rows], "rows": [f"{number} {text}" for number, text in rows]}


def states(spark: SparkSession, command: dict[str, Any]) -> dict[str, Any]:
    """Digests, because the rows are long. Which partition each is in counts too."""
    spark.conf.set(PROVIDER, f"{PROVIDERS}.{command['state']}StateStoreProvider")
    frame = spark.read.format("statestore").load(place(spark, command["checkpoint"], command["uri"]))
    return {"states": [row.text for row in frame.selectExpr("sha2(to_json(struct(*)), 256) AS text").collect()]}


def close(spark: SparkSession, command: dict[str, Any]) -> dict[str, Any]:
    close_checkpoint(spark, command["checkpoint"].removeprefix(STORE))
    return {}


def main() -> None:
    options = arguments()
    spark = session(options.master, options.work, options.conf)
    actions = {"stream": stream, "write": write, "read": read, "states": states, "close": close}
    serve(spark, lambda do: partial(actions[do], spark))


if __name__ == "__main__":
    main()
