"""``readStream`` and ``writeStream``: exactly once, admission, first offset, data loss."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from bk_core import cli
from bk_core.client.log.janitor import delete_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.protocol.log.offset import KEYS

pytestmark = pytest.mark.spark


@pytest.fixture
def copy(spark: SparkSession, cluster: Any, tmp_path: Path) -> Callable[..., Any]:
    """Run everything there is from one log into another; returns the query."""

    def copy(source: str, sink: str, sink_options: dict[str, str] | None = None, **options: str) -> Any:
        uri = {"bookkeeper.metadataServiceUri": cluster.uri}
        stream = spark.readStream.format("bookkeeper").options(**uri, **{"startingOffsets": "earliest", **options}).load(source)
        writer = (
            stream.writeStream.format("bookkeeper")
            .options(**uri, log=sink, **(sink_options or {}))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
        )
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return query

    return copy


def ids(load: Callable[..., Any], log: str) -> list[int]:
    return sorted(row.id for row in load(log=log).collect())


def test_a_copy_is_complete_and_goes_on(
    spark: SparkSession,
    load: Callable[..., Any],
    save: Callable[..., None],
    copy: Callable[..., Any],
    cluster: Any,
    log: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for i in range(2):
        save(spark.range(i * 100, i * 100 + 100).coalesce(1), log=log, entrySize="512b")
    query = copy(log, f"{log}-out", maxRowsPerTrigger="77")
    assert ids(load, f"{log}-out") == list(range(200))
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    assert [p["numInputRows"] for p in progress] == [77, 77, 46]  # inside entries
    end, latest = (json.loads(progress[0]["sources"][0][key])[log] for key in ("endOffset", "latestOffset"))
    assert tuple(end) == KEYS and (end["rows"], latest["rows"]) == (77, 200) and 0 < end["bytes"] < latest["bytes"]
    save(spark.range(200, 300), log=log)
    assert lag(tmp_path, cluster, capsys) == {"log": log, "committedBatch": 2, "rowsBehind": 100}
    copy(log, f"{log}-out")
    assert ids(load, f"{log}-out") == list(range(300))
    assert lag(tmp_path, cluster, capsys) == {"log": log, "committedBatch": 3, "rowsBehind": 0}


def lag(folder: Path, cluster: Any, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """``bk query lag`` on the checkpoint that Spark wrote."""
    capsys.readouterr()
    assert cli.run(["query", "lag", str(folder / "checkpoint"), "--uri", cluster.uri, "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    return {key: found[key] for key in ("log", "committedBatch", "rowsBehind")}


def test_a_replayed_batch_is_published_once(
    spark: SparkSession,
    load: Callable[..., Any],
    save: Callable[..., None],
    copy: Callable[..., Any],
    client: Any,
    log: str,
    tmp_path: Path,
) -> None:
    """A crash between the sink's commit and Spark's own: the batch is written again, with new messages (spark-connectors.md 5.9)."""
    save(spark.range(50), log=log)
    copy(log, f"{log}-out")
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    before = read_ledger_list(client, f"{log}-out").segments
    copy(log, f"{log}-out")
    assert read_ledger_list(client, f"{log}-out").segments == before
    assert ids(load, f"{log}-out") == list(range(50))


def test_two_queries_share_a_log(
    spark: SparkSession,
    load: Callable[..., Any],
    save: Callable[..., None],
    copy: Callable[..., Any],
    client: Any,
    log: str,
    tmp_path: Path,
) -> None:
    save(spark.range(50), log=log)
    copy(log, f"{log}-out")
    shutil.move(tmp_path / "checkpoint", tmp_path / "first")
    copy(log, f"{log}-out")
    assert ids(load, f"{log}-out") == sorted([*range(50)] * 2)
    assert len(read_ledger_list(client, f"{log}-out").committed) == 2


def test_a_stream_of_a_quiet_log_begins_with_what_comes(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], copy: Callable[..., Any], log: str
) -> None:
    """The default is latest, and nothing has come when Spark plans batch 0 (spark-connectors.md 5.6)."""
    save(spark.range(10), log=log)
    copy(log, f"{log}-out", startingOffsets="latest")
    save(spark.range(10, 20), log=log)
    copy(log, f"{log}-out", startingOffsets="latest")
    assert ids(load, f"{log}-out") == list(range(10, 20))


def test_a_restart_before_batch_0_commits(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], copy: Callable[..., Any], log: str, tmp_path: Path
) -> None:
    """Batch 0 is in ``offsets`` and not in ``commits``: Spark asks for the first offset again (spark-connectors.md 5.6), and latest has
    moved on."""

    options = {"startingOffsets": "latest", "readerName": "me"}
    save(spark.range(10), log=log)
    copy(log, f"{log}-out", **options)
    save(spark.range(10, 20), log=log)
    shutil.rmtree(tmp_path / "checkpoint")  # its batch 0 was empty: this run's will not be
    copy(log, f"{log}-out", **options)
    for path in (tmp_path / "checkpoint" / "commits").iterdir():
        path.unlink()
    with pytest.raises(StreamingQueryException, match="BK-LOG-DATA-LOSS.*readerName"):
        copy(log, f"{log}-out", startingOffsets="latest")
    copy(log, f"{log}-out", **options)
    assert ids(load, f"{log}-out") == list(range(10, 20))


def test_losses_end_the_query(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], copy: Callable[..., Any], client: Any, log: str
) -> None:
    save(spark.range(10), log=log)
    copy(log, f"{log}-out")
    delete_log(client, log)
    save(spark.range(90, 95), log=log)
    with pytest.raises(StreamingQueryException, match="BK-LOG-DATA-LOSS.*after row 10"):
        copy(log, f"{log}-out")
    copy(log, f"{log}-out", failOnDataLoss="false")
    assert ids(load, f"{log}-out") == [*range(10), *range(90, 95)]


@pytest.mark.parametrize("recreated", [pytest.param(False, marks=pytest.mark.deep), True])
def test_a_sink_whose_log_is_gone_ends_the_query(
    spark: SparkSession,
    load: Callable[..., Any],
    save: Callable[..., None],
    copy: Callable[..., Any],
    client: Any,
    log: str,
    recreated: bool,
) -> None:
    """BAT-1: an old checkpoint goes on with an empty log only if it is told to."""
    save(spark.range(10), log=log)
    copy(log, f"{log}-out", maxRowsPerTrigger="5")
    delete_log(client, f"{log}-out")
    if recreated:
        save(spark.range(90, 91), log=f"{log}-out")
    save(spark.range(10, 15), log=log)
    with pytest.raises(StreamingQueryException, match="BK-LOG-DATA-LOSS.*is at batch 2, but"):
        copy(log, f"{log}-out")
    copy(log, f"{log}-out", sink_options={"failOnDataLoss": "false"})
    assert ids(load, f"{log}-out") == [*range(10, 15), *([90] if recreated else [])]


def test_a_new_column_ends_a_query_and_a_restart_has_it(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], cluster: Any, log: str, tmp_path: Path
) -> None:
    """Spark's own processes know if a DataFrame was made to have all columns; one that asks for some goes on."""
    uri = {"bookkeeper.metadataServiceUri": cluster.uri}

    def read(**options: str) -> Any:
        return spark.readStream.format("bookkeeper").options(**uri, startingOffsets="earliest", **options)

    def run(frame: Any, sink: str) -> None:
        writer = frame.writeStream.format("bookkeeper").options(**uri, log=sink, mergeSchema="true")
        assert writer.option("checkpointLocation", str(tmp_path / sink)).trigger(availableNow=True).start().awaitTermination(120)

    save(spark.range(5), log=log)
    before = read().load(log)
    save(spark.range(5, 8).selectExpr("id", "'new' name"), log=log, mergeSchema="true")
    for _ in range(2):  # a supervisor starts the same DataFrame again
        with pytest.raises(StreamingQueryException, match="BK-LOG-SCHEMA.*new columns .*: 'name'"):
            run(before, f"{log}-out")
    assert ids(load, f"{log}-out") == list(range(5))
    run(read().load(log), f"{log}-out")
    found = {(row.id, row.name) for row in load(log=f"{log}-out").collect()}
    assert found == {*((i, None) for i in range(5)), *((i, "new") for i in range(5, 8))}
    run(read().schema("id bigint").load(log), f"{log}-some")
    run(read(failOnNewColumns="false").load(log).select("id"), f"{log}-all")
    assert ids(load, f"{log}-some") == ids(load, f"{log}-all") == list(range(8))


@pytest.mark.parametrize("first", ["reader", *(pytest.param(first, marks=pytest.mark.deep) for first in ("empty log", "columns"))])
def test_a_reader_starts_before_the_first_row(
    spark: SparkSession,
    load: Callable[..., Any],
    save: Callable[..., None],
    cluster: Any,
    client: Any,
    log: str,
    tmp_path: Path,
    first: str,
) -> None:
    """In each order: the query before the log; after the log and before its columns; after the columns and before the first row."""
    uri = {"bookkeeper.metadataServiceUri": cluster.uri}
    source = spark.readStream.format("bookkeeper").options(**uri, startingOffsets="earliest")
    if first == "reader":
        frame = source.option("waitForLog", "true").schema("id bigint").load(log)
    elif first == "empty log":
        client.create_log(log, entry_format="arrow")
        frame = source.schema("id bigint").load(log)
    else:
        client.create_log(log, schema="id BIGINT")
        frame = source.load(log)
    writer = frame.writeStream.format("bookkeeper").options(**uri, log=f"{log}-out")
    query = writer.option("checkpointLocation", str(tmp_path / "running")).trigger(processingTime="100 milliseconds").start()
    try:
        save(spark.range(5), log=log)
        wait_for(query, 5)
    finally:
        query.stop()
    assert ids(load, f"{log}-out") == list(range(5))


def test_a_running_query_sees_a_commit_and_a_new_log(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], cluster: Any, log: str, tmp_path: Path
) -> None:
    """Triggers of a query that goes on: a commit shows through the watch, a new log of the pattern within a second."""
    save(spark.range(5), log=f"{log}-1")
    options = {"bookkeeper.metadataServiceUri": cluster.uri, "logPattern": f"{log}-[0-9]", "startingOffsets": "earliest"}
    writer = spark.readStream.format("bookkeeper").options(**options).load().writeStream.format("bookkeeper")
    query = writer.options(**{"bookkeeper.metadataServiceUri": cluster.uri, "log": f"{log}-out"}).option(
        "checkpointLocation", str(tmp_path / "running")
    )
    running = query.trigger(processingTime="100 milliseconds").start()
    try:
        seen = wait_for(running, 5)
        save(spark.range(5, 8), log=f"{log}-1")
        save(spark.range(8, 10), log=f"{log}-2")
        seen = wait_for(running, 10)
    finally:
        running.stop()
    assert list(seen) == [f"{log}-1", f"{log}-2"]
    assert ids(load, f"{log}-out") == list(range(10))


def wait_for(query: Any, rows: int) -> dict[str, Any]:
    """The end offset once the query has read so many rows; every second trigger reports (the API has nothing to wait on)."""
    pause = threading.Event()
    for _ in range(600):
        progress = query.lastProgress
        end = json.loads(progress["sources"][0]["endOffset"] or "{}") if progress else {}
        if sum(offset["rows"] for offset in end.values()) == rows:
            return dict(end)
        assert query.isActive, query.exception()
        pause.wait(0.1)
    raise AssertionError(f"{rows} rows were not read; the query is at {query.lastProgress}")


def test_single_ledgers_do_not_stream(spark: SparkSession, cluster: Any, active: None) -> None:
    stream = spark.readStream.format("bookkeeper").option("bookkeeper.metadataServiceUri", cluster.uri).option("ledgers", "1").load()
    query = stream.writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException, match="BK-ARGUMENT"):
        query.awaitTermination(60)
