"""``df.write`` and ``writeStream`` in Spark: replays, aborts, routing, evolution, overwrite, and workers that are killed."""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle, inheritable_thread_target
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bk_core.client.log.history import read_log
from bk_core.client.log.intents import intents_of
from bk_core.client.log.janitor import gc_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log, list_logs
from bk_core.client.log.writer import LogWriter
from bk_core.errors import NoSuchLogError
from bk_core.protocol.log.segments import LogProperties
from bk_core.protocol.log.vanished import COMMIT_GRACE_MS
from bk_spark.datasource import BookKeeperDataSource
from bk_spark.sink.writer import BookKeeperStreamWriter, BookKeeperWriter

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file


class LosesTheAnswer(BookKeeperDataSource):
    """Its first commit of a checkpoint succeeds, and says that it failed."""

    @classmethod
    def name(cls) -> str:
        return "bookkeeper_loses_the_answer"

    def streamWriter(self, schema: Any, overwrite: bool) -> BookKeeperStreamWriter:
        writer = super().streamWriter(schema, overwrite)
        writer.__class__ = _SaysItFailed
        return writer


class _SaysItFailed(BookKeeperStreamWriter):
    def commit(self, messages: Any, batchId: int) -> None:
        super().commit(messages, batchId)
        raise RuntimeError("the answer was lost")


def kill(pid: int) -> None:
    """Until it is gone: Spark gives a task to an idle worker whose connection still looks well."""
    process = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([process], [], [], 60)[0], f"process {pid} does not end"
    finally:
        os.close(process)


class TellsWhatIsFrozen(BookKeeperDataSource):
    @classmethod
    def name(cls) -> str:
        return "bookkeeper_tells_what_is_frozen"

    def writer(self, schema: Any, overwrite: bool) -> BookKeeperWriter:
        writer = super().writer(schema, overwrite)
        writer.__class__ = _WritesWhatIsFrozen
        return writer


class _WritesWhatIsFrozen(BookKeeperWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        def counts() -> Iterator[pa.RecordBatch]:
            for batch in iterator:
                ids = pa.array([gc.get_freeze_count()] * batch.num_rows, pa.int64())
                yield pa.RecordBatch.from_arrays([ids], schema=batch.schema)

        return super().write(counts())


class Sinks:
    def __init__(self, spark: SparkSession, uri: str, client: Any, checkpoint: Path) -> None:
        self.spark = spark
        self.client = client
        self.checkpoint = checkpoint
        self._uri = {"bookkeeper.metadataServiceUri": uri}

    def source(self, log: str) -> DataFrame:
        return self.spark.readStream.format("bookkeeper").options(**self._uri, startingOffsets="earliest").load(log)

    def run(self, frame: DataFrame, mode: str = "append", format: str = "bookkeeper", **options: str) -> None:
        """Everything there is, then stop."""
        writer = frame.writeStream.format(format).options(**self._uri, **options).outputMode(mode)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    def replay(self) -> None:
        """Leave what a crash between the sink's commit and Spark's own does (paimon#9666)."""
        for name in ("0", ".0.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)

    def write(self, frame: DataFrame, mode: str = "append", format: str = "bookkeeper", **options: str) -> None:
        frame.write.format(format).options(**self._uri, **options).mode(mode).save()

    def rows(self, log: str) -> list[Any]:
        read = self.spark.read.format("bookkeeper").options(**self._uri).load(log)
        return sorted(tuple(row) if len(row) > 1 else row[0] for row in read.collect())

    def leftovers(self, *logs: str) -> set[int]:
        """Ledgers of these logs that nothing lists."""
        mine = {i for i in self.client.list_ledgers() if self.client.ledger_metadata(i).custom.get("log", b"").decode() in logs}
        listed = {s.ledger_id for log in logs if log in list_logs(self.client) for s in read_log(self.client, log).segments()}
        return mine - listed

    def await_tasks(self) -> None:
        """Until no task of the session runs any more; a task that is told to end is killed after 2 s."""
        deadline = time.monotonic() + 60
        while self.spark.sparkContext.statusTracker().getActiveStageIds():
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
def sinks(spark: SparkSession, cluster: Any, client: Any, active: None, tmp_path: Path) -> Sinks:
    return Sinks(spark, cluster.uri, client, tmp_path / "checkpoint")


def test_a_routed_stream_is_exactly_once_in_each_log(sinks: Sinks, log: str) -> None:
    sinks.write(sinks.spark.range(20), log=log)
    name = F.concat(F.lit(f"{log}-"), (F.col("id") % 2).cast("string"))
    routed = sinks.source(log).withColumn("log", name)
    sinks.run(routed)
    sinks.replay()
    sinks.run(routed)
    assert [sinks.rows(f"{log}-{i}") for i in (0, 1)] == [list(range(0, 20, 2)), list(range(1, 20, 2))]


def test_foreach_batch_with_a_transaction_id(sinks: Sinks, log: str) -> None:
    sinks.write(sinks.spark.range(10), log=log)

    def write(frame: DataFrame, batch_id: int) -> None:
        sinks.write(frame, log=f"{log}-out", txnAppId="job", txnVersion=str(batch_id))

    for _ in range(2):
        query = sinks.source(log).writeStream.foreachBatch(write).option("checkpointLocation", str(sinks.checkpoint))
        assert query.trigger(availableNow=True).start().awaitTermination(120)
        sinks.replay()
    assert sinks.rows(f"{log}-out") == list(range(10))


def test_abort_after_a_commit_that_succeeded(sinks: Sinks, log: str) -> None:
    """spark-connectors.md 5.9: commit raises after its compare-and-set, Spark aborts with the same messages, and the batch is there,
    once."""
    sinks.spark.dataSource.register(LosesTheAnswer)
    sinks.write(sinks.spark.range(10), log=log)
    with pytest.raises(StreamingQueryException, match="the answer was lost"):
        sinks.run(sinks.source(log), format="bookkeeper_loses_the_answer", log=f"{log}-out")
    assert sinks.rows(f"{log}-out") == list(range(10))
    sinks.run(sinks.source(log), log=f"{log}-out")
    assert sinks.rows(f"{log}-out") == list(range(10))


def test_complete_mode_replaces_the_log_with_every_batch(sinks: Sinks, log: str) -> None:
    sinks.write(sinks.spark.range(6), log=log)
    counts = sinks.source(log).groupBy((F.col("id") % 2).alias("odd")).count()
    sinks.run(counts, "complete", log=f"{log}-out")
    sinks.write(sinks.spark.range(6), log=log)
    sinks.run(counts, "complete", log=f"{log}-out")
    assert sinks.rows(f"{log}-out") == [(0, 6), (1, 6)]


def test_an_overwrite_may_replace_the_columns(sinks: Sinks, log: str) -> None:
    sinks.write(sinks.spark.range(3), log=log)
    named = sinks.spark.range(2).selectExpr("cast(id as string) as id", "id as number")
    with pytest.raises(PySparkException, match="overwriteSchema"):
        sinks.write(named, "overwrite", log=log)
    with pytest.raises(PySparkException, match="overwriteSchema=true replaces columns together with all rows"):
        sinks.write(named, log=log, overwriteSchema="true")
    assert sinks.rows(log) == [0, 1, 2]
    sinks.write(named, "overwrite", log=log, overwriteSchema="true")
    sinks.write(named, log=log)
    assert sinks.rows(log) == [("0", 0), ("0", 0), ("1", 1), ("1", 1)]


def test_overwrite_and_a_write_that_fails(sinks: Sinks, log: str) -> None:
    sinks.write(sinks.spark.range(5), log=log)
    sinks.write(sinks.spark.range(10, 12), "overwrite", log=log)
    assert sinks.rows(log) == [10, 11]
    bad = sinks.spark.range(0, 1000, 1, 2).select(F.when(F.col("id") == 999, F.raise_error("boom")).otherwise(F.col("id")).alias("id"))
    with pytest.raises(PySparkException, match="boom"):
        sinks.write(bad, log=log)
    with pytest.raises(PySparkException, match="boom"):
        sinks.write(bad, log=f"{log}-new", entrySize="64")
    assert sinks.rows(log) == [10, 11]
    assert f"{log}-new" not in list_logs(sinks.client)
    sinks.await_tasks()  # Spark aborts while the sibling still writes (spark-connectors.md 5.9); what it made after that is the janitor's
    deadline = time.monotonic() + 120  # Spark does not say when its worker has heard of it
    while True:
        with suppress(NoSuchLogError):  # where nothing was left
            gc_log(sinks.client, f"{log}-new", min_age_s=0)
        if not (left := sinks.leftovers(f"{log}-new")):
            break
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


X = "x" * 1000


def of_a_kilobyte(frame: DataFrame) -> DataFrame:
    """Rows that fill a first run of entries soon: a million of rows with a number alone takes Spark half a minute."""
    return frame.selectExpr("id", f"'{X}' AS x")


def test_a_write_that_is_cancelled_in_the_middle(sinks: Sinks, log: str) -> None:
    """The job's group is cancelled while both tasks have entries in their ledgers: nothing is shown, nothing is left, writing goes on."""
    create_log(sinks.client, log, LogProperties(entry_format="arrow"))
    sinks.write(of_a_kilobyte(sinks.spark.range(5)), log=log)
    context = sinks.spark.sparkContext
    before = set(intents_of(sinks.client, log))
    frame = of_a_kilobyte(sinks.spark.range(0, 1 << 40, 1, 2))  # more rows than anybody writes within the test

    def write() -> None:
        context.setJobGroup(log, "a long write", interruptOnCancel=True)
        sinks.spark.createDataFrame([(1,)], "a int")
        sinks.write(frame, log=log, entrySize="4k")

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(inheritable_thread_target(sinks.spark)(write))
        deadline = time.monotonic() + 120
        while len(set(intents_of(sinks.client, log)) - before) < 2:
            assert time.monotonic() < deadline and not writing.done()
            time.sleep(0.05)
        context.cancelJobGroup(log)
        error = writing.exception(120)
    assert isinstance(error, Exception) and "cancel" in str(error).lower(), error
    assert sinks.rows(log) == [(n, X) for n in range(5)]
    sinks.await_tasks()
    deadline = time.monotonic() + 120  # a killed worker's connection to ZooKeeper may be noticed late
    while True:
        gc_log(sinks.client, log, min_age_s=0)
        if not (left := sinks.leftovers(log)):
            break
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    sinks.write(of_a_kilobyte(sinks.spark.range(5, 8)), log=log)
    assert sinks.rows(log) == [(n, X) for n in range(8)]


def test_columns_by_name_and_evolution(sinks: Sinks, log: str) -> None:
    sinks.write(sinks.spark.createDataFrame([(1, "a")], "id long, name string"), log=log)
    sinks.write(sinks.spark.createDataFrame([("b", 2)], "name string, id int"), log=log)
    more = sinks.spark.createDataFrame([(3, 0.5)], "id long, more double")
    with pytest.raises(PySparkException, match="BK-LOG-SCHEMA.*no column 'more'"):
        sinks.write(more, log=log)
    sinks.write(more, log=log, mergeSchema="true")
    assert sinks.rows(log) == [(1, "a", None), (2, "b", None), (3, None, 0.5)]


def test_take_over(sinks: Sinks, log: str) -> None:
    create_log(sinks.client, log, LogProperties(entry_format="raw"))
    frame = sinks.spark.createDataFrame([("two",)], "value string")
    with LogWriter.open(sinks.client, log) as exclusive:
        exclusive.append(b"one")
        with pytest.raises(PySparkException, match="BK-LOG-WRITER-ALIVE.*takeOver"):
            sinks.write(frame, log=log)
        sinks.write(frame, log=log, takeOver="true")
    assert read_ledger_list(sinks.client, log).total_rows == 2


def test_workers_do_not_look_for_garbage_among_modules(sinks: Sinks, log: str) -> None:
    """pyspark's daemon collects after every task, over everything that its worker has imported."""
    sinks.spark.dataSource.register(TellsWhatIsFrozen)
    frozen = gc.get_freeze_count()  # by the tests' own conftest
    for _ in range(3):
        sinks.write(sinks.spark.range(0, 1000, 1, 2), format="bookkeeper_tells_what_is_frozen", log=log)
    assert max(sinks.rows(log)) > 10_000
    assert gc.get_freeze_count() == frozen, "the collector of the program that has the session is its own business"


def test_killed_workers_cost_neither_data_nor_ledgers(sinks: Sinks, log: str) -> None:
    """spark-connectors.md 5.3: Spark kills idle workers without a word, and leaves their ledgers open; the next batch and the janitor go on
    from there."""
    create_log(sinks.client, log, LogProperties(entry_format="arrow"))
    sinks.write(sinks.spark.range(0, 10, 1, 2), log=log)
    workers = {intent.pid for intent in intents_of(sinks.client, log).values()}
    assert workers and os.getpid() not in workers
    for pid in workers:
        kill(pid)
    sinks.write(sinks.spark.range(10, 20, 1, 2), log=log)
    report = gc_log(sinks.client, log, at_ms=sinks.client.store.clock_ms() + COMMIT_GRACE_MS)  # JAN-8
    assert report.closed and not report.failed
    assert sinks.rows(log) == list(range(20)) and sinks.leftovers(log) == set()
    assert not workers & {intent.pid for intent in intents_of(sinks.client, log).values()}
