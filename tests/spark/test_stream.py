"""``readStream`` and ``writeStream``: exactly once, admission, first offset, data loss."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from bk_core.client.logs import create_log, delete_log, read_ledger_list
from bk_spark.offsets import KEYS

pytestmark = pytest.mark.spark


@pytest.fixture
def copy(spark: SparkSession, cluster: Any, tmp_path: Path) -> Callable[..., Any]:
    """Run everything there is from one log into another; returns the query."""

    def copy(source: str, sink: str, **options: str) -> Any:
        uri = {"bookkeeper.metadataServiceUri": cluster.uri}
        stream = spark.readStream.format("bookkeeper").options(**uri, **{"startingOffsets": "earliest", **options}).load(source)
        writer = stream.writeStream.format("bookkeeper").options(**uri, log=sink).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return query

    return copy


def ids(load: Callable[..., Any], log: str) -> list[int]:
    return sorted(row.id for row in load(log=log).collect())


def test_a_copy_is_complete_and_goes_on(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], copy: Callable[..., Any], log: str
) -> None:
    for i in range(3):
        save(spark.range(i * 100, i * 100 + 100).coalesce(1), log=log)
    query = copy(log, f"{log}-out", maxRowsPerTrigger="100")
    assert ids(load, f"{log}-out") == list(range(300))
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    assert [p["numInputRows"] for p in progress] == [100, 100, 100]
    end = json.loads(progress[-1]["sources"][0]["endOffset"])
    assert tuple(end) == KEYS and end["rows"] == 300
    save(spark.range(300, 400), log=log)
    copy(log, f"{log}-out")
    assert ids(load, f"{log}-out") == list(range(400))


def test_a_replayed_batch_is_published_once(
    spark: SparkSession,
    load: Callable[..., Any],
    save: Callable[..., None],
    copy: Callable[..., Any],
    client: Any,
    log: str,
    tmp_path: Path,
) -> None:
    """A crash between the sink's commit and Spark's own: the batch is written again, with new messages (5.9)."""
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


def test_reader_name_keeps_the_first_offset(
    spark: SparkSession,
    load: Callable[..., Any],
    save: Callable[..., None],
    copy: Callable[..., Any],
    client: Any,
    log: str,
    tmp_path: Path,
) -> None:
    save(spark.range(10), log=log)
    copy(log, f"{log}-out", startingOffsets="latest", readerName="me")
    save(spark.range(10, 20), log=log)
    shutil.rmtree(tmp_path / "checkpoint", ignore_errors=True)  # as if batch 0 had never been committed
    copy(log, f"{log}-out", startingOffsets="latest", readerName="me")
    assert ids(load, f"{log}-out") == list(range(10, 20))
    assert client.store.children(f"readers/{log}") == ["me"]


def test_a_recreated_log_is_noticed(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], copy: Callable[..., Any], client: Any, log: str
) -> None:
    save(spark.range(10), log=log)
    copy(log, f"{log}-out")
    delete_log(client, log)
    save(spark.range(90, 95), log=log)
    with pytest.raises(StreamingQueryException, match="BK-LOG-DATA-LOSS"):
        copy(log, f"{log}-out")
    copy(log, f"{log}-out", failOnDataLoss="false")
    assert ids(load, f"{log}-out") == [*range(10), *range(90, 95)]


def test_single_ledgers_do_not_stream(spark: SparkSession, cluster: Any, client: Any, log: str) -> None:
    create_log(client, log)
    stream = spark.readStream.format("bookkeeper").option("bookkeeper.metadataServiceUri", cluster.uri).option("ledgers", "1").load()
    query = stream.writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException, match="BK-ARGUMENT"):
        query.awaitTermination(60)
