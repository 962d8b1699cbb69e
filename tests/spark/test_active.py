"""A thread without an active session finds no Python format to write with, and what gives it one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

import bk_core
import bk_spark
from bk_core.client.log.history import read_log
from bk_core.errors import ArgumentTypeError, InvalidArgumentError

pytestmark = pytest.mark.spark


def options_of(cluster: Any, log: str) -> dict[str, str]:
    return {"bookkeeper.metadataServiceUri": cluster.uri, "log": log}


def told(call: Callable[[], None]) -> BaseException | None:
    """Return the end of ``call`` in a thread of its own."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(call).exception(300)


def test_a_thread_of_its_own_writes_after_it_made_the_session_active(spark: SparkSession, cluster: Any, active: None, log: str) -> None:
    """README, Deploying: the first is Spark's doing, the second one the way out that is named there."""
    frame = spark.range(3)

    def write() -> None:
        frame.write.format("bookkeeper").options(**options_of(cluster, log)).mode("append").save()

    def activate_and_write() -> None:
        bk_spark.activate(spark)
        write()

    assert "DATA_SOURCE_NOT_FOUND" in str(told(write))
    assert told(activate_and_write) is None
    with bk_core.connect(cluster.uri) as client:
        view = read_log(client, log)
        assert view.counts_before(view.end_position)[0] == 3


def is_active(spark: SparkSession) -> bool:
    jvm: Any = spark._jvm
    return bool(jvm.org.apache.spark.sql.classic.SparkSession.getActiveSession().isDefined())


def test_whoever_asks_for_a_checkpoint_or_for_counts_may_write(spark: SparkSession, cluster: Any, active: None, log: str) -> None:
    found = []

    def checkpoint() -> None:
        found.append(is_active(spark))
        bk_spark.checkpoint_location(spark, f"{log}-thread", uri=cluster.uri)
        bk_spark.checkpoint.close(spark, f"{log}-thread")  # while its cluster is there
        found.append(is_active(spark))

    def count() -> None:
        found.append(is_active(spark))
        bk_spark.count_in_accumulators(spark)
        found.append(is_active(spark))

    assert [told(checkpoint), told(count)] == [None, None]
    assert found == [False, True] * 2


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
