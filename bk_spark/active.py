"""Makes a session active in the calling thread, which is where Spark looks for the Python formats that a write names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bk_core.errors import ArgumentTypeError, InvalidArgumentError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def activate(spark: SparkSession) -> None:
    """Make ``spark`` the active session of the calling thread, so that a write there finds ``format("bookkeeper")``.

    Spark looks a Python format of a write up in the session that is active in the JVM's thread. The thread that made the session has it.
    Another Python thread has a JVM thread of its own, without any, and so has the first one after an interrupt (Ctrl-C) that struck during
    a call into the JVM: the write fails with DATA_SOURCE_NOT_FOUND. ``checkpoint_location`` and ``count_in_accumulators`` do this by
    themselves, for the thread that calls them. It costs one call into the JVM. With Spark Connect nothing is needed, and nothing is done.

    Raises InvalidArgumentError for a session that was stopped, and ArgumentTypeError for what is no session.

    >>> activate(spark)
    >>> frame.write.format("bookkeeper").option("log", "flights").mode("append").save()
    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        return
    context: Any = getattr(spark, "sparkContext", None)
    if context is None:
        raise ArgumentTypeError(f"spark must be a SparkSession, not {'None' if spark is None else f'of type {type(spark).__name__}'}")
    if getattr(context, "_jsc", None) is None:
        raise InvalidArgumentError("this session was stopped: take one that runs; SparkSession.builder.getOrCreate() makes it")
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
