"""Spark lets a Python source tell counts: by a listener of progress, lines of tasks, and accumulators."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from bk_core.bookie.local_cluster import LocalCluster
from bk_core.metrics import prometheus
from bk_spark import QueryMetrics, count_in_accumulators

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]
S = "bookkeeper_spark_"


@pytest.fixture
def counted(spark: SparkSession) -> Any:
    found = QueryMetrics("a driver")
    spark.streams.addListener(found)
    yield found
    spark.streams.removeListener(found)


def stream(spark: SparkSession, cluster: LocalCluster, log: str, **options: str) -> Any:
    reader = spark.readStream.format("bookkeeper").option("bookkeeper.metadataServiceUri", cluster.uri).option("log", log)
    return reader.option("startingOffsets", "earliest").options(**options).load()


def test_a_listener_counts_rows_lag_and_phases(
    spark: SparkSession, cluster: LocalCluster, save: Callable[..., None], log: str, tmp_path: Path, counted: QueryMetrics
) -> None:
    for start in (0, 10, 20):
        save(spark.range(start, start + 10).coalesce(1), log=log)
    writer = stream(spark, cluster, log, maxRowsPerTrigger="10").writeStream.format("noop").queryName("counted")
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # type: ignore[union-attr]
    metrics = counted.metrics()
    assert metrics.value(f"{S}source_rows_total", query="counted", log=log) == 30
    assert metrics.value(f"{S}source_bytes_total", log=log) > 0
    assert metrics.value(f"{S}source_lag_rows", log=log) == metrics.value(f"{S}source_lag_bytes", log=log) == 0
    assert metrics[f"{S}batch_total"] >= 3 and metrics[f"{S}batch_rows_total"] == 30
    phases = metrics.value(f"{S}batch_phase_seconds", phase="triggerExecution")
    assert phases.count >= 3 and 0 < phases.p50_s < 120
    assert metrics[f"{S}query_failed_total"] == 0
    found = {sample.name for family in prometheus.MetricsCollector([counted]).collect() for sample in family.samples}
    assert f"{S}source_rows_total" in found and f"{S}batch_phase_seconds_bucket" in found


def test_a_query_that_fails_is_counted(
    spark: SparkSession, cluster: LocalCluster, save: Callable[..., None], log: str, tmp_path: Path, counted: QueryMetrics
) -> None:
    save(spark.range(10), log=log)
    frame = stream(spark, cluster, log).selectExpr("assert_true(id < 5)")
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    with pytest.raises(Exception, match="is not true|ASSERT|assert"):
        query.awaitTermination(120)
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # type: ignore[union-attr]
    assert counted.metrics()[f"{S}query_failed_total"] == 1


PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
from tests.spark.conftest import start_spark

spark = start_spark("local[2]")
uri, log = sys.argv[1:]
spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
options = {"bookkeeper.metadataServiceUri": uri, "log": log}
spark.range(1000).coalesce(1).write.format("bookkeeper").options(**options).mode("append").save()
assert spark.read.format("bookkeeper").options(**options).load().count() == 1000
print(json.dumps([(row.msg, row.context) for row in spark.tvf.python_worker_logs().collect()]))
spark.stop()
"""


@pytest.mark.deep
def test_tasks_tell_rows_bytes_and_phases(cluster: LocalCluster, log: str) -> None:
    """As rows of ``python_worker_logs``, where Spark collects what Python's tasks log. The level is a variable of the environment."""
    environment = {**os.environ, "BOOKKEEPER_LOG_LEVEL": "INFO"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, cluster.uri, log], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    codes = ("BK-SINK-TASK", "BK-READ-TASK", "BK-SINK-COMMIT")
    told = {code: [context for message, context in rows if message.startswith(code)] for code in codes}
    (written,) = told["BK-SINK-TASK"]
    assert (written["logs"], written["rows"]) == (log, "1000") and {"rowsMs", "appendMs", "ackMs", "ms", "bytes"} <= set(written)
    assert sum(int(written[phase]) for phase in ("rowsMs", "appendMs", "ackMs")) <= int(written["ms"]) + 3
    assert sum(int(facts["rows"]) for facts in told["BK-READ-TASK"]) == 1000
    assert all(facts["log"] == log and {"readMs", "ms", "bytes"} <= set(facts) for facts in told["BK-READ-TASK"])
    assert [facts["rows"] for facts in told["BK-SINK-COMMIT"]] == ["1000"]


def test_accumulators_count_what_tasks_write_and_read(
    spark: SparkSession, cluster: LocalCluster, log: str, tmp_path: Path, active: None
) -> None:
    counted = count_in_accumulators(spark)
    options = {"bookkeeper.metadataServiceUri": cluster.uri, "log": log}
    spark.range(1000).write.format("bookkeeper_counted").options(**options).mode("append").save()
    assert counted.rows_written.value == 1000 and counted.bytes_written.value > 0 == counted.rows_read.value
    assert spark.read.format("bookkeeper_counted").options(**options).load().count() == 1000
    assert counted.rows_read.value == 1000 and counted.bytes_read.value >= 8000
    frame = spark.readStream.format("bookkeeper_counted").options(**options, startingOffsets="earliest").load()
    writer = frame.writeStream.format("bookkeeper_counted").options(**{**options, "log": f"{log}-out"})
    query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    assert (counted.rows_written.value, counted.rows_read.value) == (2000, 2000)
    spark.range(5).write.format("bookkeeper").options(**options).mode("append").save()  # the plain format counts nothing
    assert counted.rows_written.value == 2000
