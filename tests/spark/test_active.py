"""A thread without an active session finds no Python format to write with, and what gives it one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

import bk_core
import bk_spark
from bk_core.client.log.history import read_log
from bk_core.errors import ArgumentTypeError, InvalidArgumentError

pytestmark = pytest.mark.spark


def test_a_thread_of_its_own_writes_after_it_made_the_session_active(
    spark: SparkSession, cluster: Any, active: None, log: str, tmp_path: Path
) -> None:
    """README, Deploying: the first is Spark's doing, the others the ways out that are named there."""
    frame = spark.range(3)
    options = {"bookkeeper.metadataServiceUri": cluster.uri, "log": log}

    def write() -> None:
        frame.write.format("bookkeeper").options(**options).mode("append").save()

    def activate_and_write() -> None:
        bk_spark.activate(spark)
        write()

    def stream() -> None:
        place = bk_spark.checkpoint_location(spark, f"{log}-thread", uri=cluster.uri)
        rows = spark.readStream.schema("id BIGINT").json(str(tmp_path))
        query = rows.writeStream.format("bookkeeper").options(**options, checkpointLocation=place).trigger(availableNow=True).start()
        assert query.awaitTermination(200)

    def count() -> None:
        bk_spark.count_in_accumulators(spark)
        frame.write.format("bookkeeper_counted").options(**options).mode("append").save()

    def told(call: Callable[[], None]) -> BaseException | None:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(call).exception(300)

    assert "DATA_SOURCE_NOT_FOUND" in str(told(write))
    assert [told(call) for call in (activate_and_write, stream, count)] == [None] * 3
    with bk_core.connect(cluster.uri) as client:
        view = read_log(client, log)
        assert view.counts_before(view.end_position)[0] == 6


def test_an_interrupted_call_into_the_jvm_loses_the_session_of_its_thread(
    spark: SparkSession, cluster: Any, active: None, log: str
) -> None:
    """As Ctrl-C does: py4j closes the connection that the interrupt struck in, and the next call has another thread of the JVM."""
    assert threading.current_thread() is threading.main_thread()
    jvm: Any = spark._jvm
    over = threading.Event()

    def press() -> None:
        while not over.wait(0.5):  # Python drops an interrupt that it meets in the callback of a weak reference
            os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    with pytest.raises(KeyboardInterrupt):
        pressing.start()
        try:
            jvm.java.lang.Thread.sleep(60_000)
        finally:
            over.set()
    pressing.join()
    sink = spark.range(3).write.format("bookkeeper").options(**{"bookkeeper.metadataServiceUri": cluster.uri, "log": log}).mode("append")
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        sink.save()
    bk_spark.activate(spark)
    sink.save()


def test_what_cannot_be_made_active_is_refused() -> None:
    with pytest.raises(ArgumentTypeError, match="spark must be a SparkSession, not of type str"):
        bk_spark.activate("spark")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="this session was stopped"):
        bk_spark.activate(SimpleNamespace(sparkContext=SimpleNamespace(_jsc=None)))  # type: ignore[arg-type]
