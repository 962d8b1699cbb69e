"""One bookie cluster and one Spark session for all Spark tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import bk_core
from bk_core.bookie.local_cluster import LocalCluster

ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    with bk_core.local_cluster(bookies=3) as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Any]:
    with bk_core.connect(cluster.uri) as opened:
        yield opened


def start_spark(master: str) -> SparkSession:
    """Workers find the packages through PYTHONPATH, as they would find an installed wheel; nothing is registered."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([ROOT, *filter(None, [os.environ.get("PYTHONPATH")])])
    return (
        SparkSession.builder.master(master)
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests of this folder: a JVM costs more than all of them. Other masters: test_deployments.py, in processes."""
    session = start_spark("local[2]")
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture
def active(spark: SparkSession, cluster: LocalCluster) -> None:
    """``createDataFrame`` makes the session active in this thread; without an active session Spark looks up no Python format."""
    spark.createDataFrame([(1,)], "a int")


@pytest.fixture
def log(request: pytest.FixtureRequest) -> str:
    """A log name of its own for each test."""
    allowed = "".join(c if c.isalnum() else "-" for c in request.node.nodeid.removeprefix("tests/spark/test_"))
    return f"t-{allowed}"[:150]


@pytest.fixture
def load(spark: SparkSession, cluster: LocalCluster, active: None) -> Callable[..., Any]:
    def load(**options: str) -> Any:
        return spark.read.format("bookkeeper").option("bookkeeper.metadataServiceUri", cluster.uri).options(**options).load()

    return load


@pytest.fixture
def save(cluster: LocalCluster, active: None) -> Callable[..., None]:
    def save(frame: Any, **options: str) -> None:
        writer = frame.write.format("bookkeeper").option("bookkeeper.metadataServiceUri", cluster.uri)
        writer.options(**options).mode("append").save()

    return save
