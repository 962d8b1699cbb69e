"""Defines the columns that reading gives. ``bk_spark/entries/columns.py`` makes record batches of them.

A log of ``arrow`` entries gives its own columns; ``includeMetadata`` puts ``_log, _ledgerId, _entryId, _offset, _timestamp`` behind them.
Entries of ``raw`` logs and of single ledgers give ``log, ledgerId, entryId, offset, timestamp, key, value, length`` (spark-connectors.md
2.4), and ``value`` alone without metadata. ``offset`` is the number of the row since the log was created, dense; ``timestamp`` is the time
at which its segment was committed. Both are null where they are not known: in a ledger that is read without its log, and, for the
timestamp, in a segment that is still written to. BookKeeper's entries have neither keys nor headers, so ``key`` and ``headers`` are null.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import ArrayType, BinaryType, LongType, StringType, StructField, StructType, TimestampType

from bk_core.errors import InvalidArgumentError, LogSchemaError
from bk_core.near import meant
from bk_spark.entries.columns import METADATA_NAMES

VALUE = StructField("value", BinaryType())
HEADERS = StructField("headers", ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])))
RAW_FIELDS = (
    StructField("log", StringType()),
    StructField("ledgerId", LongType()),
    StructField("entryId", LongType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("key", BinaryType()),
    VALUE,
    StructField("length", LongType()),
)
METADATA_FIELDS = tuple(StructField(f"_{field.name}", field.dataType) for field in RAW_FIELDS[:5])


def raw_schema(include_metadata: bool, include_headers: bool) -> StructType:
    fields = list(RAW_FIELDS) if include_metadata else [VALUE]
    return StructType([*fields, HEADERS] if include_headers else fields)


def arrow_columns(own: StructType, include_metadata: bool) -> StructType:
    """Return the columns of an Arrow log. Raises LogSchemaError if a column has the name of one of the metadata columns, in any case."""
    if not include_metadata:
        return own
    reserved = {name.lower() for name in METADATA_NAMES}
    taken = [name for name in own.names if name.lower() in reserved]
    if taken:
        raise LogSchemaError(f"the log has a column {taken[0]!r} of its own, so includeMetadata=true cannot add one; leave the option out")
    return StructType([*own.fields, *METADATA_FIELDS])


def chosen(schema: StructType, columns: Sequence[str] | None) -> StructType:
    """Return the columns that option ``columns`` names, in its order, spelled as they are there. Raises InvalidArgumentError for one that
    is not there.

    A name in another case means the only column that it fits, because a Python source is not told ``spark.sql.caseSensitive``.
    """
    if columns is None:
        return schema
    found = [named(schema.names, name) for name in columns]
    for name, there in zip(columns, found, strict=True):
        if there is None:
            hint = meant(name, schema.names) or f"there are {', '.join(map(repr, schema.names))}"
            raise InvalidArgumentError(f"option columns: there is no column {name!r}; {hint}")
        if found.count(there) > 1:
            raise InvalidArgumentError(f"option columns names column {there!r} twice")
    return StructType([schema[there] for there in found if there is not None])


def named(names: Sequence[str], name: str) -> str | None:
    """Return the one of ``names`` that is meant: of the same spelling, or else the only one that differs in case alone."""
    near = [one for one in names if one.casefold() == name.casefold()]
    return name if name in names else near[0] if len(near) == 1 else None
