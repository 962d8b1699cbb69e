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
from bk_spark.schemas import arrow_schema
from bk_spark.source.columns import HEADERS, METADATA_FIELDS, RAW_FIELDS, named

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
"""The column of raw entries for each of Kafka's names. The column of Arrow entries has ``_`` before its name."""
_ZERO = frozenset({"partition", "timestampType"})
_OWN = ("key", "value", "headers")


def kafka_schema(own: StructType | None, include_headers: bool, log: str = "") -> StructType:
    """Return the schema. ``own`` has the columns of the logs, those of ``log``; None for raw entries. Raises LogSchemaError if they are not
    those of records."""
    if own is not None:
        _check_records(own, log)
    return StructType([*KAFKA_FIELDS, HEADERS] if include_headers else list(KAFKA_FIELDS))


def _check_records(own: StructType, log: str) -> None:
    """Check the columns. Names are found in any case where that leaves no doubt, as writes and option ``columns`` find them."""
    advice = "includeMetadata=kafka needs a column 'value', beside it at most 'key' and 'headers'; includeMetadata=true takes any columns"
    meant = {name: spelled for name in _OWN if (spelled := named(own.names, name)) is not None}
    if "value" not in meant or (others := [name for name in own.names if name not in meant.values()]):
        has = "no column 'value'" if "value" not in meant else f"a column {others[0]!r}"
        raise LogSchemaError(f"log {log!r} has {has}: {advice}", log=log)
    for name, spelled in meant.items():
        kind = own[spelled].dataType
        if name != "headers" and kind.typeName() not in ("binary", "string"):
            raise LogSchemaError(f"column {spelled!r} of log {log!r} is {kind.simpleString()}, not binary or string: {advice}", log=log)
        if name == "headers" and arrow_schema(StructType([own[spelled]])).types != arrow_schema(StructType([HEADERS])).types:
            kinds = f"{kind.simpleString()}, not {HEADERS.dataType.simpleString()}"
            raise LogSchemaError(f"column {spelled!r} of log {log!r} is {kinds}: {advice}", log=log)


def plain_schema(schema: pa.Schema, raw: bool, stored: Iterable[pa.Schema]) -> pa.Schema:
    """Return the columns to decode for rows of ``schema``, as ``columns`` names them. ``stored`` has the schemas of the entries, which have
    the types of keys and values."""
    metadata = {field.name: field for field in arrow_schema(StructType(list(RAW_FIELDS if raw else METADATA_FIELDS)))}
    kinds = {} if raw else {field.name: field for one in stored for field in one}
    prefix = "" if raw else "_"
    fields = [
        kinds.get(named(list(kinds), f.name) or f.name, f) if f.name in _OWN else metadata[prefix + AS_RAW[f.name]]
        for f in schema
        if f.name not in _ZERO
    ]
    return pa.schema(fields or [metadata[f"{prefix}offset"]])


def kafka_batches(schema: pa.Schema, raw: bool, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield ``batches`` of ``plain_schema`` with the columns of ``schema``. No value is copied."""
    prefix = "" if raw else "_"
    for batch in batches:
        columns = []
        for field in schema:
            if field.name in _ZERO:
                columns.append(pa.repeat(pa.scalar(0, field.type), batch.num_rows))
            else:
                name = named(batch.schema.names, field.name) if field.name in _OWN else prefix + AS_RAW[field.name]
                column = batch.column(name)
                columns.append(column if column.type == field.type else column.cast(field.type))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
