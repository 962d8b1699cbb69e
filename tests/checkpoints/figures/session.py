"""``python -m tests.checkpoints.figures.session``: a Spark session that is measured, told what to do as tests/faults/driver.py is.

{"do": "open", ...}       open a checkpoint in ledgers: the seconds that it takes
{"do": "measure", ...}    run a query for some batches from its checkpoint: their durations, and what the gateway did
{"do": "follow", ...}     start a query over files that come
{"do": "look"}            whether that one runs, and how it ended
{"do": "drain"}           wait until it has taken all files, or has failed
{"do": "finish"}          wait for its end
{"do": "read", ...}       the ids that it has written
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

import bk_core.client as client_package
from bk_core.client.files.store import FileStore
from bk_core.client.log.writer import LogWriter
from bk_core.protocol.files.content import Content
from bk_core.protocol.log.names import store_of
from bk_spark.checkpoint import checkpoint_location, close, hadoop_conf, location
from tests.faults.commands import arguments, serve
from tests.faults.driver import STORE

URI = "bookkeeper.metadataServiceUri"
STATE = "spark.sql.streaming.stateStore"
PROVIDERS = {
    "hdfs": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
ROWS = 100
LOOK_S = 0.05
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "10",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
}


class Meter:
    """Counts the requests of the gateway, by operation, and the records and bytes that its stores write; by the name of the store."""

    def __init__(self) -> None:
        self.requests: dict[str, Counter[str]] = defaultdict(Counter)
        self.took_ms: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self.written: dict[str, Counter[str]] = defaultdict(Counter)
        self._watched: set[int] = set()
        self._count_writes()

    def _count_writes(self) -> None:
        append, put = LogWriter.append_future, FileStore.put

        def appended(writer: LogWriter, record: Any, *rest: Any, **named: Any) -> Any:
            self.written[store_of(writer.name) or ""].update(records=1, record_bytes=len(record))
            return append(writer, record, *rest, **named)

        def was_put(store: FileStore, path: str, data: Any, **named: Any) -> Any:
            extents = getattr(data, "content", Content()).extents
            self.written[store.name].update(files=1, data_bytes=sum(extent.length for extent in extents))
            return put(store, path, data, **named)

        LogWriter.append_future, FileStore.put = appended, was_put

    def watch_gateway(self) -> None:
        """Whichever this application has; doing it again changes nothing."""
        for application in location._applications.values():
            operations = application.gateway.operations
            if id(operations) not in self._watched:
                self._watched.add(id(operations))
                operations.handle = self._counting(operations.handle)

    def _counting(self, handle: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def counted(request: Any, body: Any) -> Any:
            name = request.path.removeprefix("/webhdfs/v1/").partition("/")[0]
            op = request.query.get("op", "") + (" 2" if "bkstep" in request.query else "")
            begun = time.perf_counter()
            try:
                return handle(request, body)
            finally:
                self.requests[name][op] += 1
                self.took_ms[name][op] += (time.perf_counter() - begun) * 1e3

        return counted

    def take(self, name: str) -> dict[str, Any]:
        """The counts since the last time."""
        found = {"requests": self.requests.pop(name, {}), "tookMs": self.took_ms.pop(name, {}), "written": self.written.pop(name, {})}
        return {key: dict(value) for key, value in found.items()}


def session(master: str, work: Path, more: dict[str, str]) -> SparkSession:
    builder: Any = SparkSession.builder
    own = {"spark.local.dir": str(work / "spark"), "spark.sql.warehouse.dir": str(work / "warehouse")}
    for key, value in {**SETTINGS, **own, **more}.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.master(master).appName("figures").getOrCreate()
    return spark


def _timed(name: str, call: Callable[..., Any], parts: dict[str, float]) -> Callable[..., Any]:
    def measured(*arguments: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        try:
            return call(*arguments, **named)
        finally:
            parts[name] = time.perf_counter() - begun

    return measured


class Measured:
    """The commands."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._meter = Meter()
        self._query: StreamingQuery | None = None

    def _place(self, command: dict[str, Any]) -> str:
        checkpoint: str = command["checkpoint"]
        if not checkpoint.startswith(STORE):
            return checkpoint
        place = checkpoint_location(self._spark, checkpoint.removeprefix(STORE), uri=command["uri"])
        self._meter.watch_gateway()
        return place

    def open(self, command: dict[str, Any]) -> dict[str, Any]:
        """The seconds of the whole call, and of its parts: the connection, the store itself, and Hadoop's settings in the JVM."""
        parts: dict[str, float] = {}
        timed = [(client_package, "connect"), (FileStore, "open"), (hadoop_conf, "apply")]
        real = [getattr(owner, name) for owner, name in timed]
        for (owner, name), call in zip(timed, real, strict=True):
            setattr(owner, name, _timed(name, call, parts))
        try:
            begun = time.perf_counter()
            self._place(command)
            return {"seconds": time.perf_counter() - begun, "parts": parts}
        finally:
            for (owner, name), call in zip(timed, real, strict=True):
                setattr(owner, name, call)

    def close(self, command: dict[str, Any]) -> dict[str, Any]:
        close(self._spark, command["checkpoint"].removeprefix(STORE))
        return {}

    # --- what a batch costs -------------------------------------------------------------------------------------------------

    def _rows(self, kind: str) -> DataFrame:
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", str(ROWS)).option("numPartitions", "2")
        rows = source.option("advanceMillisPerBatch", "1000").load()
        if kind == "stateless":
            return rows
        self._spark.conf.set(f"{STATE}.providerClass", PROVIDERS[kind])
        return rows.groupBy((f.col("value") % 5000).alias("k")).agg(f.count("*").alias("n"), f.max("timestamp").alias("t"))

    def measure(self, command: dict[str, Any]) -> dict[str, Any]:
        """``skip`` batches of each start do not count: plans are made and state is loaded in them."""
        place, store = self._place(command), command["checkpoint"].removeprefix(STORE)
        writer = self._rows(command["kind"]).writeStream.format("noop").outputMode("update").option("checkpointLocation", place)
        query = writer.trigger(processingTime="0 seconds").start()
        try:
            first = self._wait(query, 1) + command["skip"]
            self._wait(query, command["skip"])
            self._meter.take(store)
            self._wait(query, command["skip"] + command["batches"])
            counts = self._meter.take(store)
        finally:
            query.stop()
        done = [one for one in query.recentProgress if first <= one["batchId"] < first + command["batches"]]
        rows = [one["numInputRows"] for one in query.recentProgress]
        return {"batches": [dict(one["durationMs"]) for one in done], "first": first - command["skip"], "rows": rows, **counts}

    def _wait(self, query: StreamingQuery, batches: int) -> int:
        """Until this start of the query has so many; the number of the first one."""
        while True:
            error = query.exception()
            if error is not None:
                raise error
            last = query.recentProgress
            if len(last) >= batches:
                return int(last[0]["batchId"]) if last else 0
            time.sleep(LOOK_S)

    # --- two drivers --------------------------------------------------------------------------------------------------------

    def follow(self, command: dict[str, Any]) -> dict[str, Any]:
        """A file a batch. ``sink``: a log of ours, or "append": ``foreachBatch`` that appends, so that a batch
        that is run twice is there twice."""
        rows = self._spark.readStream.schema("id long").option("maxFilesPerTrigger", "1").json(command["input"])
        writer = rows.writeStream.option("checkpointLocation", self._place(command))
        if command["sink"] == "append":
            output = command["output"]
            writer = writer.foreachBatch(lambda frame, _: frame.coalesce(1).write.mode("append").json(output))
        else:
            writer = writer.format("bookkeeper").option(URI, command["uri"]).option("log", command["output"])
        once = command.get("once", False)
        self._query = (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")).start()
        return {}

    def look(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._query is not None
        error = None if self._query.isActive else self._query.exception()
        last = self._query.lastProgress
        return {"active": self._query.isActive, "error": error and str(error)[:6000], "batch": last["batchId"] if last else -1}

    def drain(self, command: dict[str, Any]) -> dict[str, Any]:
        """Until it has taken all that has come, or has failed."""
        assert self._query is not None
        with suppress(StreamingQueryException):
            self._query.processAllAvailable()
        return {}

    def finish(self, command: dict[str, Any]) -> dict[str, Any]:
        """To its end, or by ``stop`` where it runs for ever."""
        assert self._query is not None
        if command.get("stop"):
            self._query.stop()
        elif not self._query.awaitTermination(command["limit"]):
            raise TimeoutError("the query did not end")
        return self.look(command)

    def read(self, command: dict[str, Any]) -> dict[str, Any]:
        if command["sink"] == "append":
            frame = self._spark.read.schema("id long").json(command["output"])
        else:
            frame = self._spark.read.format("bookkeeper").option(URI, command["uri"]).option("log", command["output"]).load()
        return {"ids": [row.id for row in frame.select("id").collect()]}


def main() -> None:
    options = arguments()
    spark = session(options.master, options.work, options.conf)
    serve(spark, partial(getattr, Measured(spark)))


if __name__ == "__main__":
    main()
