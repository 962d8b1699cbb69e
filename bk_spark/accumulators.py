"""Rows and bytes of tasks as accumulators of Spark's, for a program that asks for them.

An accumulator reaches the tasks only inside of the data source's class, which ``spark.dataSource.register`` sends to them; what Spark finds
by itself as ``bookkeeper`` has none. So the counting source is another format, with the same options.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.accumulators import Accumulator
from pyspark.sql.types import StructType
from pyspark.sql.utils import is_remote

from bk_core.errors import ArgumentTypeError, InvalidArgumentError
from bk_spark.active import activate
from bk_spark.datasource import BookKeeperDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTED_FORMAT = "bookkeeper_counted"


@dataclass(frozen=True)
class Accumulators:
    """Spark's accumulators of rows and payload bytes that tasks have written and read. Read their ``value`` in the driver. Spark adds up
    what tasks tell that succeed; a task that runs again because its output was lost counts again."""

    rows_written: Accumulator[int]
    bytes_written: Accumulator[int]
    rows_read: Accumulator[int]
    bytes_read: Accumulator[int]

    def wrote(self, rows: int, size: int) -> None:
        """Add what a task has written. In the task."""
        self.rows_written.add(rows)
        self.bytes_written.add(size)

    def read(self, rows: int, size: int) -> None:
        """Add what a task has read. In the task."""
        self.rows_read.add(rows)
        self.bytes_read.add(size)


def count_in_accumulators(spark: SparkSession, format_name: str = COUNTED_FORMAT) -> Accumulators:
    """Register with the session ``spark`` a format called ``format_name``, which is ``bookkeeper`` with accumulators, and return the
    accumulators.

    It takes the options of ``bookkeeper``, for batches and streams. Bytes written are the payload of entries; bytes read are those of
    the columns in memory. The session is active in this thread afterwards, as ``bk_spark.activate`` makes it.

    Raises InvalidArgumentError for a name that cannot be, and with Spark Connect, whose client has no accumulators; ArgumentTypeError for
    what is no text.

    >>> counted = count_in_accumulators(spark)
    >>> frame.write.format("bookkeeper_counted").option("log", "flights").mode("append").save()
    >>> counted.rows_written.value
    """
    if not isinstance(format_name, str):
        raise ArgumentTypeError(f"format_name must be text, not {format_name!r}")
    if not format_name or format_name == BookKeeperDataSource.name():
        raise InvalidArgumentError(f"format_name {format_name!r} must be a name of its own, such as {COUNTED_FORMAT!r}")
    if is_remote():
        raise InvalidArgumentError("a client of Spark Connect has no accumulators: use QueryMetrics, or call this where the driver runs")
    context = spark.sparkContext
    accumulators = Accumulators(context.accumulator(0), context.accumulator(0), context.accumulator(0), context.accumulator(0))
    spark.dataSource.register(_source(format_name, accumulators))
    activate(spark)
    return accumulators


def _source(format_name: str, accumulators: Accumulators) -> type[BookKeeperDataSource]:
    """Return a class made here, which Spark pickles with what it refers to."""

    class CountedDataSource(BookKeeperDataSource):
        @classmethod
        def name(cls) -> str:
            return format_name

        def reader(self, schema: StructType) -> Any:
            return _with(BookKeeperDataSource.reader(self, schema), accumulators)

        def streamReader(self, schema: StructType) -> Any:
            return _with(BookKeeperDataSource.streamReader(self, schema), accumulators)

        def writer(self, schema: StructType, overwrite: bool) -> Any:
            return _with(BookKeeperDataSource.writer(self, schema, overwrite), accumulators)

        def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
            return _with(BookKeeperDataSource.streamWriter(self, schema, overwrite), accumulators)

    return CountedDataSource


def _with(made: Any, accumulators: Accumulators) -> Any:
    """Return a reader or writer that adds to the accumulators; a metadata table counts nothing."""
    if hasattr(made, "accumulators"):
        made.accumulators = accumulators
    return made
