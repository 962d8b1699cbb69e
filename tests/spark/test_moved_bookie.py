"""Spark while the bookies of a log go away without a word, one after the other, and come back at other addresses: a query that follows the
log, and reads whose tasks were told the old addresses."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bk_core.bookie import apache
from bk_core.errors import BookieUnavailableError
from tests.integration.patience import until
from tests.integration.shelves import Shelves

pytestmark = [pytest.mark.spark, pytest.mark.apache, pytest.mark.deep]
TWO = {"ensembleSize": "2", "writeQuorumSize": "2", "ackQuorumSize": "2"}
QUERY_S = 90.0


def test_a_query_and_reads_outlive_moves(spark: SparkSession, tmp_path: Path) -> None:
    """SES-13, RD-4: nothing fails, and nobody is told of the moves."""
    try:
        apache.resolve(apache.DEFAULT_VERSION)
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    spark.createDataFrame([(1,)], "a int")
    with Shelves(tmp_path / "cluster", 2) as cluster:
        options = {"bookkeeper.metadataServiceUri": cluster.uri, "log": "moved"}

        def save(first: int, end: int) -> None:
            spark.range(first, end, 1, 1).write.format("bookkeeper").options(**options, **TWO).mode("append").save()

        save(0, 100)
        stream = spark.readStream.format("bookkeeper").options(**options, startingOffsets="earliest").load()
        query = stream.writeStream.format("memory").queryName("moved").option("checkpointLocation", str(tmp_path / "state")).start()
        try:
            until(lambda: spark.table("moved").count() == 100, "the query has not begun", QUERY_S)
            read = spark.read.format("bookkeeper").options(**options).load()
            counted: list[int] = []
            for bookie in (0, 1):
                cluster.vanish(bookie)
                reading = threading.Thread(target=lambda: counted.append(read.count()))
                reading.start()
                cluster.come_back(bookie)
                reading.join(QUERY_S)
            assert counted == [100, 100]
            began = time.monotonic()
            save(100, 200)
            until(lambda: spark.table("moved").count() == 200 or query.exception() is not None, "the query does not go on", QUERY_S)
            print(f"{time.monotonic() - began:.1f} s for a commit and a batch after both moves")
            assert query.exception() is None and query.isActive
            assert sorted(row.id for row in spark.table("moved").collect()) == list(range(200))
        finally:
            query.stop()
