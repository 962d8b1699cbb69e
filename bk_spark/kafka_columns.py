"""``includeMetadata=kafka``: rows with the columns, names and types of Kafka's source, so that jobs which read them move as they are.

``key``, ``value`` and, with ``includeHeaders``, ``headers`` are the log's own columns (raw entries have a ``value`` alone); ``topic`` is
the name of the log, ``offset`` and ``timestamp`` are those of ``columns``. A log has no partitions and one kind of time: ``partition`` and
``timestampType`` are 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from bk_core.errors import LogSchemaError
from bk_spark.columns import HEADERS, METADATA_FIELDS, RAW_FIELDS
from bk_spark.schemas import arrow_schema

KAFKA_FIELDS = (
    StructField("key", BinaryType()),
    StructField("value", BinaryType()),
    StructField("topic", StringType()),
    StructField("partition", IntegerType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("timestampType", IntegerType()),
)
AS_RAW = {"topic": "log", "offset": "offset", "timestamp": "timestamp"}
"""By Kafka's name: the column of raw entries, with ``_`` before it the one of Arrow entries."""
_ZERO = frozenset({"partition", "timestampType"})
_OWN = ("key", "value", "headers")


def kafka_schema(own: StructType | None, include_headers: bool) -> StructType:
    """``own``: the columns of the logs; None for raw entries. LogSchemaError if they are not those of records."""
    if own is not None:
        _check_records(own)
    return StructType([*KAFKA_FIELDS, HEADERS] if include_headers else list(KAFKA_FIELDS))


def _check_records(own: StructType) -> None:
    advice = "includeMetadata=kafka needs a column value, beside it at most key and headers; includeMetadata=true takes any columns"
    if "value" not in own.names or (others := [name for name in own.names if name not in _OWN]):
        has = "no column value" if "value" not in own.names else f"a column {others[0]}"
        raise LogSchemaError(f"the log has {has}: {advice}")
    for name in ("key", "value"):
        if name in own.names and own[name].dataType.typeName() not in ("binary", "string"):
            raise LogSchemaError(f"column {name} of the log is {own[name].dataType.simpleString()}, not binary or string: {advice}")
    if "headers" in own.names and arrow_schema(StructType([own["headers"]])).types != arrow_schema(StructType([HEADERS])).types:
        kinds = f"{own['headers'].dataType.simpleString()}, not {HEADERS.dataType.simpleString()}"
        raise LogSchemaError(f"column headers of the log is {kinds}: {advice}")


def plain_schema(schema: pa.Schema, raw: bool, stored: Iterable[pa.Schema]) -> pa.Schema:
    """The columns to decode for rows of ``schema``, as ``columns`` names them. ``stored``: the schemas of the entries, which know the types
    of keys and values."""
    metadata = {field.name: field for field in arrow_schema(StructType(list(RAW_FIELDS if raw else METADATA_FIELDS)))}
    kinds = {} if raw else {field.name: field for one in stored for field in one}
    prefix = "" if raw else "_"
    fields = [kinds.get(f.name, f) if f.name in _OWN else metadata[prefix + AS_RAW[f.name]] for f in schema if f.name not in _ZERO]
    return pa.schema(fields or [metadata[f"{prefix}offset"]])


def kafka_batches(schema: pa.Schema, raw: bool, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """``batches`` of ``plain_schema`` with the columns of ``schema``. No value is copied."""
    prefix = "" if raw else "_"
    for batch in batches:
        columns = []
        for field in schema:
            if field.name in _ZERO:
                columns.append(pa.repeat(pa.scalar(0, field.type), batch.num_rows))
            else:
                column = batch.column(field.name if field.name in _OWN else prefix + AS_RAW[field.name])
                columns.append(column if column.type == field.type else column.cast(field.type))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
