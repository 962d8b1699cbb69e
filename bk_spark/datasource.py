"""The data source named ``bookkeeper``. It holds options only, because Spark pickles it, so nothing is opened here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from bk_spark.catalog import for_reading, for_writing, of_table, remember
from bk_spark.options.scopes import ANY_READ, BATCH_READ, STREAM_READ, TABLES
from bk_spark.options.table import Options, parse_options, refuse_others
from bk_spark.plain_errors import plainly
from bk_spark.schemas import without_table_options
from bk_spark.worker_process import spare_collections

if TYPE_CHECKING:
    from bk_spark.sink.writer import BookKeeperStreamWriter, BookKeeperWriter
    from bk_spark.source.stream import BookKeeperStreamReader


class BookKeeperDataSource(DataSource):
    """The data source of ``format("bookkeeper")``, for batch and streaming reads and writes. Spark makes and calls it.

    The first call that knows all options parses them and reports mistakes: options of a catalog table come with its schema. Each call runs
    in a process of its own kind, which imports only what it needs itself.

    >>> spark.read.format("bookkeeper").option("log", "flights").load()

    Source: spark-connectors.md 5.1.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        spare_collections()
        self._table = of_table(options)
        self._given = dict(options) if self._table is None else {}
        self._inferred = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(sorted(self._given))})"

    @classmethod
    def name(cls) -> str:
        """Return the name by which Spark finds this data source."""
        return "bookkeeper"

    @plainly
    def schema(self) -> StructType:
        """Return the columns of the log or the metadata table that the options name. Spark calls this only where no schema was given, and
        pickles the source after it, so later calls know of it.

        Raises InvalidArgumentError for options that are unknown or do not go together, and what looking at the logs raises.

        Source: spark-connectors.md 5.2.
        """
        self._inferred = True
        if self._table is not None:
            return remember(schema_of(parse_options(self._table)), self._table)
        options = parse_options(self._given)
        refuse_others(options, ANY_READ if options.metadata is None else TABLES[options.metadata])
        return schema_of(options)

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query that asks for the columns of ``schema``.

        Raises InvalidArgumentError for options that are unknown or do not go together.
        """
        return batch_reader(parse_options(for_reading(self._given, schema, BATCH_READ.takes.__contains__)), schema)

    @plainly
    def streamReader(self, schema: StructType) -> BookKeeperStreamReader:
        """Return the reader of a streaming query that asks for the columns of ``schema``.

        Raises InvalidArgumentError for options that are unknown or do not go together, and for a metadata table, which cannot be streamed.
        """
        from bk_spark.source.stream import BookKeeperStreamReader

        takes = STREAM_READ.takes | {"ledgers", "metadata"}  # what a table is about is not left out, but refused
        options = parse_options(for_reading(self._given, schema, takes.__contains__))
        return BookKeeperStreamReader(options, schema, self._inferred)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> BookKeeperWriter:
        """Return the writer of a batch of rows of ``schema``. ``overwrite`` is True for Spark's mode "overwrite".

        Raises InvalidArgumentError for options that are unknown or do not go together, and for what cannot be written.
        """
        from bk_spark.sink.writer import BookKeeperWriter

        return BookKeeperWriter(parse_options(for_writing(self._given)), without_table_options(schema), overwrite)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> BookKeeperStreamWriter:
        """Return the writer of a streaming query with rows of ``schema``. ``overwrite`` is True for Spark's output mode "complete".

        Raises InvalidArgumentError for options that are unknown or do not go together, and for what cannot be written.
        """
        from bk_spark.sink.writer import BookKeeperStreamWriter

        return BookKeeperStreamWriter(parse_options(for_writing(self._given)), without_table_options(schema), overwrite)


def schema_of(options: Options) -> StructType:
    """Return the columns that a read with these options gives: of rows, or of a metadata table."""
    if options.metadata is not None:
        from bk_spark.tables.reader import table_schema

        return table_schema(options.metadata, options.columns)
    from bk_spark.source.batch import rows_schema

    return rows_schema(options)


def batch_reader(options: Options, schema: StructType) -> DataSourceReader:
    """Return a reader of rows, or of a metadata table."""
    if options.metadata is not None:
        from bk_spark.tables.reader import table_reader

        return table_reader(options.metadata, options, schema)
    from bk_spark.source.batch import rows_reader

    return rows_reader(options, schema)
