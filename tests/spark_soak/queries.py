"""``python -m tests.spark_soak.queries``: the Spark driver of the soak. Two queries write one log, two read it.

Each is restarted when it fails. Runs until the file ``stop`` appears in ``--work``; then the readers drain, everything is counted, and
``result.json`` is written. Rows come from Spark's ``rate-micro-batch``, whose batches are the same however often they are replayed:
writer ``w`` sends the ids ``w * STRIDE + 0, 1, 2, ...``
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import bk_core
from bk_core.client.log.history import read_log
from bk_core.client.log.janitor import gc_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.errors import MetadataUnavailableError

URI = "bookkeeper.metadataServiceUri"
STRIDE = 10**12
SOAK, COPY, EACH = "soak", "soak-copy", "soak-each"
WRITERS = ("writer-0", "writer-1")
AGAIN_S = 10.0  # before a query is started again. Spark gives its Python processes ten seconds to come up, so not all come at once
DRAIN_TRIES = 8
DRAIN_TIMEOUT_S = 600
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # what Spark keeps for its web page would look like a leak
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "20",
    "spark.ui.retainedTasks": "200",
    "spark.sql.ui.retainedExecutions": "20",
    "spark.sql.streaming.minBatchesToRetain": "10",
}


@dataclass
class Supervised:
    """A query that is started again from its checkpoint whenever it fails."""

    name: str
    begin: Callable[[bool], StreamingQuery]
    query: StreamingQuery | None = None
    starts: int = 0
    errors: list[str] = field(default_factory=list)
    started_s: float = -AGAIN_S

    def look(self) -> bool:
        """Return True if the query had to be started."""
        if self.query is not None and self.query.isActive or time.monotonic() < self.started_s + AGAIN_S:
            return False
        self._note()
        self.starts += 1
        self.started_s = time.monotonic()
        try:
            self.query = self.begin(False)
        except Exception as error:  # the cluster may be in the middle of a fault
            self.query = None
            self.errors.append(str(error)[-600:])
        return True

    def _note(self) -> None:
        if self.query is not None:
            error = self.query.exception()
            self.errors.append("ended without an error" if error is None else str(error)[-600:])

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()

    def drain(self) -> None:
        """To the end of the input that there is now."""
        for _ in range(DRAIN_TRIES):
            self.query = self.begin(True)
            try:
                if self.query.awaitTermination(DRAIN_TIMEOUT_S):
                    return
            except Exception as error:
                self.errors.append(str(error)[-600:])
        raise RuntimeError(f"{self.name} did not drain: {self.errors[-1:]}")


class Soak:
    def __init__(self, spark: SparkSession, uri: str, work: Path, rows_per_batch: int) -> None:
        self._spark = spark
        self._uri = uri
        self._work = work
        self._rows = rows_per_batch
        self.queries = [
            *(Supervised(name, self._writer(number, name)) for number, name in enumerate(WRITERS)),
            Supervised("reader-copy", self._copier),
            Supervised("reader-each", self._foreach),
        ]

    def _writer(self, number: int, name: str) -> Callable[[bool], StreamingQuery]:
        def begin(_drain: bool) -> StreamingQuery:
            rows = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self._rows).option("numPartitions", 2).load()
            rows = rows.select((f.col("value") + number * STRIDE).alias("id"), f.repeat(f.col("value").cast("string"), 10).alias("text"))
            return self._triggered(self._into(rows, SOAK, name), False)

        return begin

    def _into(self, rows: DataFrame, log: str, name: str) -> Any:
        writer = rows.writeStream.format("bookkeeper").option(URI, self._uri).option("log", log).queryName(name)
        return writer.option("checkpointLocation", str(self._work / name))

    def _from(self, name: str) -> DataFrame:
        reader = self._spark.readStream.format("bookkeeper").option(URI, self._uri).option("log", SOAK)
        return reader.option("startingOffsets", "earliest").option("readerName", name).load()

    def _triggered(self, writer: Any, drain: bool) -> StreamingQuery:
        chosen = writer.trigger(availableNow=True) if drain else writer.trigger(processingTime="1 second")
        query: StreamingQuery = chosen.start()
        return query

    def _copier(self, drain: bool) -> StreamingQuery:
        return self._triggered(self._into(self._from("copy"), COPY, "reader-copy"), drain)

    def _foreach(self, drain: bool) -> StreamingQuery:
        def save(rows: DataFrame, batch_id: int) -> None:
            writer = rows.write.format("bookkeeper").option(URI, self._uri).option("log", EACH)
            writer.option("txnAppId", "each").option("txnVersion", str(batch_id)).mode("append").save()

        writer = self._from("each").writeStream.foreachBatch(save).queryName("reader-each")
        return self._triggered(writer.option("checkpointLocation", str(self._work / "reader-each")), drain)

    def run(self) -> None:
        stop = self._work / "stop"
        while not stop.exists():
            for supervised in self.queries:
                if supervised.name.startswith("reader") and not self._log_exists():
                    continue
                if supervised.look():
                    break
            self._report()
            time.sleep(1.0)
        for supervised in self.queries:
            supervised.stop()
        for supervised in self.queries:
            if supervised.name.startswith("reader"):
                supervised.drain()

    def _log_exists(self) -> bool:
        """False as well while ZooKeeper cannot be asked: that is one of the faults, and the next look is a second away."""
        try:
            with bk_core.connect(self._uri, await_store=True) as client:
                return SOAK in client.store.children("logs")
        except MetadataUnavailableError:
            return False

    def _report(self) -> None:
        last = {s.name: s.query.lastProgress if s.query else None for s in self.queries}
        rows = {name: progress["batchId"] if progress else None for name, progress in last.items()}
        beside = self._work / "progress.tmp"
        beside.write_text(json.dumps({"batches": rows, "starts": {s.name: s.starts for s in self.queries}}))
        beside.rename(self._work / "progress.json")

    # --- the verdict -------------------------------------------------------------------------------------------------------

    def result(self) -> dict[str, Any]:
        with bk_core.connect(self._uri, await_store=True) as client:
            sent = {name: self._sent(client, name) for name in WRITERS}
            logs = {log: self._counted(log, sent) for log in (SOAK, COPY, EACH)}
        return {
            "rows_in": sum(sent.values()),
            "logs": logs,
            "starts": {s.name: s.starts for s in self.queries},
            "errors": {s.name: s.errors for s in self.queries},
        }

    def _sent(self, client: Any, name: str) -> int:
        """Rows of all batches that the log's own mark says are committed: the end of the last one's offsets in the checkpoint."""
        query_id = json.loads((self._work / name / "metadata").read_text())["id"]
        batch = read_ledger_list(client, SOAK).committed[query_id].batch_id
        return int(json.loads((self._work / name / "offsets" / str(batch)).read_text().splitlines()[-1])["offset"])

    def _counted(self, log: str, sent: dict[str, int]) -> dict[str, int]:
        rows = self._spark.read.format("bookkeeper").option(URI, self._uri).option("log", log).load()
        writer = f.floor(f.col("id") / STRIDE).cast("int")
        found = rows.groupBy(writer.alias("writer")).agg(
            f.count("*").alias("rows"), f.count_distinct("id").alias("ids"), f.max("id").alias("last")
        )
        by_writer = {row.writer: row for row in found.collect()}
        total = {"rows": 0, "missing": 0, "doubled": 0, "foreign": 0}
        for number, name in enumerate(WRITERS):
            row = by_writer.pop(number, None)
            ids = row.ids if row else 0
            beyond = max(0, row.last - number * STRIDE + 1 - sent[name]) if row else 0
            total["rows"] += row.rows if row else 0
            total["missing"] += sent[name] + beyond - ids
            total["foreign"] += beyond
            total["doubled"] += row.rows - ids if row else 0
        total["foreign"] += sum(row.rows for row in by_writer.values())
        return total


def leftovers(uri: str) -> dict[str, int]:
    """After a collection of garbage that does not wait: ledgers of the logs that no list names, and intents. No writer may be alive."""
    found = {}
    with bk_core.connect(uri, await_store=True) as client:
        for log in (SOAK, COPY, EACH):
            gc_log(client, log, min_age_s=0)
            mine = {i for i in client.store.list_ledgers() if client.ledger_metadata(i).custom.get("log") == log.encode()}
            found[log] = len(mine - read_log(client, log).named(mine)) + len(client.store.children(f"intents/{log}"))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--uri", "--master"):
        parser.add_argument(name, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--conf", type=json.loads, default={})
    parser.add_argument("--rows", type=int, default=500)
    options = parser.parse_args()
    builder: Any = SparkSession.builder
    own = {"spark.local.dir": str(options.work / "spark"), "spark.sql.warehouse.dir": str(options.work / "warehouse")}
    for key, value in {**SETTINGS, **own, **options.conf}.items():
        builder = builder.config(key, value)
    spark = builder.master(options.master).appName("spark-soak").getOrCreate()
    soak = Soak(spark, options.uri, options.work, options.rows)
    try:
        soak.run()
        result = soak.result()
    except Exception:
        result = {"problem": traceback.format_exc()[-3000:], "errors": {s.name: s.errors for s in soak.queries}}
    beside = options.work / "result.tmp"
    beside.write_text(json.dumps(result))
    beside.rename(options.work / "result.json")
    spark.stop()


if __name__ == "__main__":
    main()
