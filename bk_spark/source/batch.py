"""Batch reads: a snapshot of logs, or single ledgers, or a metadata table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from bk_core.errors import InvalidArgumentError
from bk_spark.clients import client_for
from bk_spark.entries.arrow import arrow_schema
from bk_spark.options.grammar import KAFKA
from bk_spark.options.table import Options, refuse_others
from bk_spark.plain_errors import plainly
from bk_spark.source.columns import METADATA_FIELDS, RAW_FIELDS, chosen
from bk_spark.source.kafka_columns import AS_RAW
from bk_spark.source.known_columns import KnownColumns
from bk_spark.source.partitions import partitions_of, read_partition
from bk_spark.source.pushdown import NO_BOUNDS, Bounds, bounds_of
from bk_spark.source.snapshot import PLACES, check_read_schema, common_columns, is_raw_source, read_ranges, source_schema, views_of
from bk_spark.tables.cluster import BOOKIES, FRAGMENTS, LEDGERS
from bk_spark.tables.entries import ENTRIES
from bk_spark.tables.logs import LOGS, SEGMENTS
from bk_spark.tables.table import WHICH_LEDGERS, Table

TABLES: dict[str, Table] = {
    "ledgers": LEDGERS,
    "fragments": FRAGMENTS,
    "bookies": BOOKIES,
    "logs": LOGS,
    "segments": SEGMENTS,
    "entries": ENTRIES,
}
ROWS_AT_ONCE = 4096
_PLAIN = {field.name: field.name for field in RAW_FIELDS[:5]}
_UNDERSCORED = {meta.name: plain.name for meta, plain in zip(METADATA_FIELDS, RAW_FIELDS, strict=False)}


_ALWAYS = frozenset({"uri", "protocol", "metadata", "columns", "pushdown"})
_ROWS = WHICH_LEDGERS | PLACES | _ALWAYS | {"password", "open_ledgers", "fail_on_data_loss", "include_metadata", "include_headers"}
BATCH_OPTIONS = _ROWS | {"max_bytes_per_partition", "max_records_per_partition", "min_partitions", "max_bytes_per_entry"}
"""The options, by field, that have an effect on a batch read."""
BATCH_ONLY = frozenset({"ledgers", "metadata", "pushdown", "ending_offsets", "ending_timestamp", "ending_offsets_by_timestamp"})
"""Those among them that a stream refuses, with a message of their own."""


def schema_of(options: Options) -> StructType:
    """Return the columns that a read with these options gives, of a batch or of a stream that is under way.

    Raises LogSchemaError if a log has none yet; InvalidArgumentError for bad ``columns``.
    """
    if options.metadata is not None:
        return chosen(TABLES[options.metadata].schema, options.columns)
    views = {} if options.ledgers is not None else views_of(client_for(options.uri, options.protocol), options, under_way=True)
    return chosen(source_schema(options, views), options.columns)


def batch_reader(options: Options, schema: StructType) -> DataSourceReader:
    """Return a reader. It has ``pushFilters`` only with ``pushdown=true``, because Spark refuses a reader that has it while its conf is off
    (spark-connectors.md 5.5)."""
    takes = BATCH_OPTIONS if options.metadata is None else _ALWAYS | TABLES[options.metadata].takes
    what = "a batch read of rows" if options.metadata is None else f"metadata={options.metadata}"
    refuse_others(options, takes, what)
    if options.metadata is not None:
        return PushdownMetadataReader(options, schema) if options.pushdown else MetadataReader(options, schema)
    return PushdownReader(options, schema) if options.pushdown else BookKeeperReader(options, schema)


class BookKeeperReader(DataSourceReader):
    """Reads a snapshot, which ``partitions`` takes once per DataFrame (spark-connectors.md 5.5)."""

    _bounds: Bounds = NO_BOUNDS

    def __init__(self, options: Options, schema: StructType) -> None:
        views = {} if options.ledgers is not None else views_of(client_for(options.uri, options.protocol), options)
        check_read_schema(schema, source_schema(options, views))
        self._options = options
        self._schema = arrow_schema(schema)
        self._raw = is_raw_source(options, views)
        own = None if self._raw else common_columns(views)
        self._known = None if own is None else KnownColumns(own if options.include_metadata == KAFKA else schema, own)

    @plainly
    def partitions(self) -> Sequence[InputPartition]:
        client = client_for(self._options.uri, self._options.protocol)
        views, ranges = read_ranges(client, self._options, self._bounds)
        if self._known is not None:  # a log may have had its first write since
            self._known.check_ranges(views, ranges)
        return partitions_of(client, self._options, views, ranges)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._schema, self._raw, partition)


class PushdownReader(BookKeeperReader):
    """A reader with pushdown. It hands every filter back, so that Spark checks each row again: bounds only spare reading (pushdown.py)."""

    @plainly
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        include = self._options.include_metadata
        meant = AS_RAW if include == KAFKA else _PLAIN if self._raw else _UNDERSCORED if include else {}
        self._bounds = bounds_of(filters, meant)
        return filters


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
            yield pa.RecordBatch.from_pylist(some, schema=self._schema)


class PushdownMetadataReader(MetadataReader):
    @plainly
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._bounds = bounds_of(filters, self._table.bounded_by)
        return filters
