"""The data source named ``bookkeeper``. Holds parsed options only: Spark pickles it, so nothing is opened here."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from bk_spark.options import Options, parse_options
from bk_spark.reader import BookKeeperReader, schema_of
from bk_spark.stream_reader import BookKeeperStreamReader
from bk_spark.writer import BookKeeperStreamWriter, BookKeeperWriter


class BookKeeperDataSource(DataSource):
    """``spark.read.format("bookkeeper").option("log", "flights").load()`` and its three companions."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options: Options = parse_options(options)

    def __repr__(self) -> str:
        return f"BookKeeperDataSource({self._options!r})"

    @classmethod
    def name(cls) -> str:
        return "bookkeeper"

    def schema(self) -> StructType:
        return schema_of(self._options)

    def reader(self, schema: StructType) -> BookKeeperReader:
        return BookKeeperReader(self._options, schema)

    def streamReader(self, schema: StructType) -> BookKeeperStreamReader:
        return BookKeeperStreamReader(self._options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> BookKeeperWriter:
        return BookKeeperWriter(self._options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> BookKeeperStreamWriter:
        return BookKeeperStreamWriter(self._options, schema, overwrite)
