"""Batch reads of metadata tables (``metadata=``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from bk_core.errors import InvalidArgumentError
from bk_spark.arrow.facts import fact_batch
from bk_spark.clients import client_for
from bk_spark.options import scopes
from bk_spark.options.table import Options, refuse_others
from bk_spark.plain_errors import plainly
from bk_spark.schemas import arrow_schema
from bk_spark.source.bounds import NO_BOUNDS, Bounds
from bk_spark.source.columns import chosen
from bk_spark.source.pushdown import bounds_of
from bk_spark.source.snapshot import check_read_schema
from bk_spark.tables.cluster import BOOKIES, FRAGMENTS, LEDGERS
from bk_spark.tables.entries import ENTRIES
from bk_spark.tables.logs import LOGS, SEGMENTS
from bk_spark.tables.table import Table

TABLES: dict[str, Table] = {
    "ledgers": LEDGERS,
    "fragments": FRAGMENTS,
    "bookies": BOOKIES,
    "logs": LOGS,
    "segments": SEGMENTS,
    "entries": ENTRIES,
}
ROWS_AT_ONCE = 4096


def table_schema(name: str, columns: tuple[str, ...] | None) -> StructType:
    """Return the columns of a table, or those of them that are asked for. Raises InvalidArgumentError for bad ``columns``."""
    return chosen(TABLES[name].schema, columns)


def table_reader(name: str, options: Options, schema: StructType) -> DataSourceReader:
    """Return a reader, with ``pushFilters`` only with ``pushdown=true`` (spark-connectors.md 5.5)."""
    refuse_others(options, scopes.TABLES[name])
    return PushdownMetadataReader(options, schema) if options.pushdown else MetadataReader(options, schema)


class TablePartition(InputPartition):
    """One unit of work of a metadata table."""

    def __init__(self, unit: Any) -> None:
        super().__init__(None)
        self.unit = unit


class MetadataReader(DataSourceReader):
    """Reads a metadata table (``metadata=``). Raises InvalidArgumentError for options that would have it write, because looking never
    fences."""

    _bounds: Bounds = NO_BOUNDS

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.open_ledgers == "recover":
            raise InvalidArgumentError("openLedgers=recover fences ledgers, and metadata tables only look: use skip or lac")
        assert options.metadata is not None
        self._table = TABLES[options.metadata]
        check_read_schema(schema, self._table.schema)
        self._options = options
        self._columns = tuple(schema.names)
        self._schema = arrow_schema(schema)

    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        client = client_for(self._options.uri, self._options.protocol)
        return [TablePartition(unit) for unit in self._table.plan(client, self._options, self._bounds)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Spark turns an empty plan into one partition of None, which has no rows."""
        if not isinstance(partition, TablePartition):
            return
        client = client_for(self._options.uri, self._options.protocol)
        rows = self._table.rows(client, self._options, partition.unit, frozenset(self._columns))
        while some := [{name: row.get(name) for name in self._columns} for row in islice(rows, ROWS_AT_ONCE)]:
            yield fact_batch(some, self._schema)


class PushdownMetadataReader(MetadataReader):
    @plainly
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds = bounds_of(filters, self._table.bounded_by)
        return filters
