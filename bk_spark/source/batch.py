"""Batch reads of rows: a snapshot of logs, or single ledgers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from bk_core.errors import InvalidArgumentError
from bk_spark.clients import client_for
from bk_spark.options.grammar import KAFKA
from bk_spark.options.scopes import BATCH_READ, PLACES
from bk_spark.options.table import Options, refuse_others
from bk_spark.plain_errors import plainly
from bk_spark.schemas import arrow_schema
from bk_spark.source.bounds import NO_BOUNDS, Bounds
from bk_spark.source.columns import METADATA_FIELDS, RAW_FIELDS, chosen
from bk_spark.source.kafka_columns import AS_RAW
from bk_spark.source.known_columns import KnownColumns
from bk_spark.source.partitions import partitions_of, read_partition
from bk_spark.source.pushdown import bounds_of
from bk_spark.source.snapshot import check_read_schema, common_columns, is_raw_source, read_ranges, source_schema, views_of

if TYPE_CHECKING:
    from bk_spark.accumulators import Accumulators

_PLAIN = {field.name: field.name for field in RAW_FIELDS[:5]}
_UNDERSCORED = {meta.name: plain.name for meta, plain in zip(METADATA_FIELDS, RAW_FIELDS, strict=False)}


def rows_schema(options: Options) -> StructType:
    """Return the columns that a read with these options gives, of a batch or of a stream that is under way.

    Raises LogSchemaError if a log has none yet; InvalidArgumentError for bad ``columns``, and for ``waitForLog``.
    """
    if options.wait_for_log:
        raise InvalidArgumentError("waitForLog is for a stream that is told its columns: .schema(...); a log that is missing tells none")
    views = {} if options.ledgers is not None else views_of(client_for(options.uri, options.protocol), options, under_way=True, either=True)
    return chosen(source_schema(options, views), options.columns)


def rows_reader(options: Options, schema: StructType) -> DataSourceReader:
    """Return a reader. It has ``pushFilters`` only with ``pushdown=true``, because Spark refuses a reader that has it while its conf is off
    (spark-connectors.md 5.5). Raises InvalidArgumentError for options that have no effect."""
    refuse_others(options, BATCH_READ)
    if options.ledgers is not None and options.given & PLACES:
        raise InvalidArgumentError("ledgers are read whole: starting and ending offsets are places in logs; filter on entryId instead")
    return PushdownReader(options, schema) if options.pushdown else BookKeeperReader(options, schema)


class BookKeeperReader(DataSourceReader):
    """Reads a snapshot, which ``partitions`` takes once per DataFrame (spark-connectors.md 5.5)."""

    accumulators: Accumulators | None = None
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
        return read_partition(self._options, self._schema, self._raw, partition, self.accumulators)


class PushdownReader(BookKeeperReader):
    """A reader with pushdown. It hands every filter back, so that Spark checks each row again: bounds only spare reading (pushdown.py)."""

    @plainly
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        include = self._options.include_metadata
        meant = AS_RAW if include == KAFKA else _PLAIN if self._raw else _UNDERSCORED if include else {}
        self._bounds = bounds_of(filters, meant)
        return filters
