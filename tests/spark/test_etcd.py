"""Spark over a cluster whose metadata is in three servers of etcd: batch, stream and checkpoint, while servers go and come back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

import bk_core
from bk_core.bookie.etcd_process import EtcdCluster
from bk_spark import checkpoint_location
from bk_spark.checkpoint.location import close

pytestmark = [pytest.mark.spark, pytest.mark.deep]  # in short: tests of etcd itself, and of Spark over ZooKeeper


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture(scope="module")
def uri(servers: EtcdCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    found = f"etcd://{servers.connect_string}/ledgers"
    with bk_core.local_cluster(3, tmp_path_factory.mktemp("bookies"), zookeeper=found):
        yield found


def rows(spark: SparkSession, uri: str, log: str) -> list[int]:
    frame = spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", uri).option("log", log).load()
    return sorted(row.id for row in frame.select("id").collect())


def save(frame: Any, uri: str, log: str) -> None:
    frame.write.format("bookkeeper").option("bookkeeper.metadataServiceUri", uri).option("log", log).mode("append").save()


def stream(spark: SparkSession, uri: str, log: str) -> Any:
    """Copy what is new in the log, with the checkpoint in the cluster, too."""
    options = {"bookkeeper.metadataServiceUri": uri}
    source = spark.readStream.format("bookkeeper").options(**options, log=log, startingOffsets="earliest", maxRowsPerTrigger="70").load()
    sink = source.writeStream.format("bookkeeper").options(**options, log=f"{log}-out")
    query = sink.option("checkpointLocation", checkpoint_location(spark, f"{log}-query", uri=uri)).trigger(availableNow=True).start()
    query.awaitTermination(240)
    assert not query.isActive and query.exception() is None
    return query


def test_rows_are_written_read_and_streamed_once_while_servers_go(spark: SparkSession, uri: str, servers: EtcdCluster) -> None:
    save(spark.range(0, 100), uri, "web")
    assert rows(spark, uri, "web") == list(range(100))
    servers.servers[0].kill()
    save(spark.range(100, 200), uri, "web")
    assert rows(spark, uri, "web") == list(range(200))
    stream(spark, uri, "web")
    assert rows(spark, uri, "web-out") == list(range(200))
    servers.servers[0].start()
    servers.servers[1].kill()
    save(spark.range(200, 300), uri, "web")
    stream(spark, uri, "web")
    assert rows(spark, uri, "web-out") == list(range(300))
    servers.servers[1].start()
    close(spark, "web-query")  # while its cluster is there
    with bk_core.connect(uri) as client:
        assert client.doctor().count("error") == 0


def test_metadata_tables_are_read(spark: SparkSession, uri: str) -> None:
    save(spark.range(10), uri, "told")
    frame = spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", uri).option("metadata", "ledgers").load()
    (first, *_) = frame.collect()
    assert first.state == "CLOSED" and first.createdAt is not None
