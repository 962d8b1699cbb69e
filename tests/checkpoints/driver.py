"""``python -m tests.checkpoints.driver``: a Spark session for several queries at once, told what to do as tests/faults/driver.py is.

{"do": "start", "queries": [...]}     start them; see ``queries.start``
{"do": "look"}                        which of them run, and which failed
{"do": "stop", "names": [...]}        ``query.stop()`` of all at the same time
{"do": "fill", ...}                   rows of files into a log
{"do": "output" | "states", ...}      what a query has written, or has kept
"""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.checkpoints import queries
from tests.faults.commands import arguments, serve
from tests.faults.driver import SETTINGS as QUICK
from tests.faults.driver import place

SETTINGS = {
    **QUICK,
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.streaming.minBatchesToRetain": "12",  # so that old files are deleted while the queries run
    "spark.sql.streaming.stateStore.maintenanceInterval": "3s",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "4",
    "spark.sql.streaming.fileSource.log.compactInterval": "5",
    "spark.sql.streaming.fileSink.log.compactInterval": "5",
    "spark.sql.streaming.numRecentProgressUpdates": "4",
}


def session(master: str, work: Path) -> SparkSession:
    builder: Any = SparkSession.builder
    own = {"spark.local.dir": str(work / "spark"), "spark.sql.warehouse.dir": str(work / "warehouse"), "spark.driver.memory": "2g"}
    for key, value in {**SETTINGS, **own}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.master(master).appName("checkpoints").getOrCreate()
    return spark


def _short(error: object) -> str:
    """Without the places in Java's code."""
    lines = [line for line in str(error).splitlines() if not line.startswith(("\tat ", "\t..."))]
    return "\n".join(lines)[:4000]


class Session:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._queries: dict[str, StreamingQuery] = {}

    def _placed(self, spec: dict[str, Any]) -> dict[str, Any]:
        """``store:<name>`` is a checkpoint in ledgers; anything else is a directory."""
        return {**spec, "checkpoint": place(self._spark, spec["checkpoint"], spec["uri"])}

    def start(self, command: dict[str, Any]) -> dict[str, Any]:
        for spec in command["queries"]:
            self._queries[spec["name"]] = queries.start(self._spark, self._placed(spec))
        return {}

    def look(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return of each query, by name, if it runs, its last batch, and its error."""
        found = {}
        for name, query in self._queries.items():
            active = query.isActive
            error = None if active else query.exception()
            last = query.lastProgress
            found[name] = {"active": active, "batch": last["batchId"] if last else None, "error": error and _short(error)}
        return {"queries": found}

    def stop(self, command: dict[str, Any]) -> dict[str, Any]:
        """A query that ends by an error of its own meanwhile has that error; Spark tells it at the next look."""
        threads = [threading.Thread(target=self._queries[name].stop, name=f"stop {name}") for name in command["names"]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        errors = {name: self._queries[name].exception() for name in command["names"]}
        return {"errors": {name: _short(error) for name, error in errors.items() if error is not None}}

    def fill(self, command: dict[str, Any]) -> dict[str, Any]:
        """All rows of the files in their order, as one task, into a log."""
        rows = self._spark.read.schema(queries.SCHEMA).json(command["files"]).coalesce(1)
        writer = rows.write.format("bookkeeper").option(queries.URI, command["uri"]).option("log", command["log"])
        writer.option("entrySize", "512").mode("append").save()
        return {}

    def output(self, command: dict[str, Any]) -> dict[str, Any]:
        return {"rows": queries.output(self._spark, command["query"])}

    def states(self, command: dict[str, Any]) -> dict[str, Any]:
        return {"states": queries.states(self._spark, self._placed(command["query"]), command["last"], command["back"])}

    def files(self, command: dict[str, Any]) -> dict[str, Any]:
        """The names in these folders of a checkpoint, as Spark sees them through Hadoop."""
        place = self._placed(command["query"])["checkpoint"]
        jvm: Any = self._spark.sparkContext._jvm
        conf = self._spark.sparkContext._jsc.hadoopConfiguration()
        found = {}
        for folder in command["folders"]:
            path = jvm.org.apache.hadoop.fs.Path(f"{place}/{folder}")
            system = path.getFileSystem(conf)
            found[folder] = [status.getPath().getName() for status in system.listStatus(path)] if system.exists(path) else []
        return {"files": found}


def main() -> None:
    options = arguments()
    spark = session(options.master, options.work)
    serve(spark, partial(getattr, Session(spark)), _short)


if __name__ == "__main__":
    main()
