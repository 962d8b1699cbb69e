"""Decides the schema that a write stores, before any row moves: columns go by name, types may only widen, new columns need
``mergeSchema``."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StructField,
    StructType,
)

from bk_core.errors import LogSchemaError
from bk_spark.entries.stored_schema import arrow_schema_of_text
from bk_spark.schemas import check_schema, schema_of_text, schema_text

_INTEGERS: tuple[type[DataType], ...] = (ByteType, ShortType, IntegerType, LongType)
_DIGITS: dict[type[DataType], int] = {ByteType: 3, ShortType: 5, IntegerType: 10, LongType: 19}
_EXACT_IN: dict[type[DataType], tuple[type[DataType], ...]] = {  # floating point types that hold every value of the key
    FloatType: (DoubleType,),
    ByteType: (FloatType, DoubleType),
    ShortType: (FloatType, DoubleType),
    IntegerType: (DoubleType,),
}
# columns that reading a raw log adds to each entry: a copy of a raw log brings these back, and they are not stored
READERS_OWN = frozenset({"log", "topic", "ledgerId", "entryId", "offset", "timestamp", "timestampType", "partition", "length"})
EMPTY_IF_RAW = frozenset({"key", "headers"})  # a raw entry has no room for these, so they must be null
_RAW = ("value", *sorted(READERS_OWN | EMPTY_IF_RAW))


_ADD = 'Add new ones with .option("mergeSchema", "true")'
_KEEPS = (
    'An overwrite keeps the log\'s columns: replace them with .option("overwriteSchema", "true"), or add to them with '
    '.option("mergeSchema", "true")'
)
_REPLACE = 'to replace rows and columns: mode("overwrite") with .option("overwriteSchema", "true")'


def schema_to_write(log: str, stored: str, given: StructType, merge: bool, overwrite: bool = False) -> str:
    """Return the text of the schema that rows of ``given`` are written with: ``stored``, or with ``merge`` one with new columns at its end.
    ``overwrite``: rows are replaced, so that the columns could be, too.

    LogSchemaError names every column that does not fit. Missing columns are filled with null; all stored columns are nullable.
    """
    check_schema(given)
    if not stored:
        _refuse_untyped(log, given.fields)
        return schema_text(given)
    kept = schema_of_text(stored)
    chosen = columns_for(kept.names, given.names)
    wrong = [
        f"{f.name!r} is {given[i].dataType.simpleString()}, stored as {f.dataType.simpleString()}"
        for f, i in zip(kept.fields, chosen, strict=True)
        if i is not None and not widens(given[i].dataType, f.dataType)
    ]
    if wrong:
        raise LogSchemaError(f"log {log!r}: {'; '.join(wrong)}; cast the column, only widening is done by itself; {_REPLACE}", log=log)
    new = [f for i, f in enumerate(given.fields) if i not in chosen]
    if not new:
        if not any(i is not None for i in chosen):
            raise LogSchemaError(f"log {log!r} has the columns {_shown(kept)}; none of them is in the DataFrame", log=log)
        return stored
    if not merge:
        raise LogSchemaError(f"log {log!r} has no column {_quoted(new)}; it has {_shown(kept)}. {_KEEPS if overwrite else _ADD}", log=log)
    _refuse_untyped(log, new)
    return schema_text(StructType([*kept.fields, *new]))


def extends(stored: str, schema: str) -> bool:
    """Return True if ``schema`` is ``stored`` with perhaps more columns at its end, so that it may follow it in the list."""
    if not stored:
        return True
    before, after = arrow_schema_of_text(stored), arrow_schema_of_text(schema)
    return len(after) >= len(before) and all(had.equals(has) for had, has in zip(before, after, strict=False))


def check_raw(log: str, given: StructType) -> None:
    """Raise LogSchemaError unless a raw log can keep all of it: ``value``, beside the columns that reading a raw log adds."""
    check_schema(given)
    names = _raw_names(given.names)
    if "value" not in names:
        raise LogSchemaError(f"raw log {log!r} takes a column named 'value' (binary or string), not {_shown(given)}", log=log)
    kind = given[names.index("value")].dataType.typeName()
    if kind not in ("binary", "string"):
        raise LogSchemaError(f"raw log {log!r}: column 'value' must be binary or string, not {kind}", log=log)
    lost = [name for name in names if name not in _RAW]
    if lost:
        raise LogSchemaError(f"raw log {log!r} stores only 'value'; drop {', '.join(map(repr, lost))} or use an arrow log", log=log)


def only_value(log: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the part of ``batch`` that a raw log keeps. Raises LogSchemaError if a column that it has no room for holds more
    than nulls."""
    batch = pa.RecordBatch.from_arrays(batch.columns, names=_raw_names(batch.schema.names))
    for name in EMPTY_IF_RAW.intersection(batch.schema.names):
        column = batch.column(name)
        if column.null_count != len(column):
            raise LogSchemaError(
                f"raw log {log!r} stores only 'value', and column {name!r} is not all null; drop it, or write to a log of arrow entries, "
                "which keeps key, value and headers",
                log=log,
            )
    return batch.select(["value"])


def _raw_names(given: Sequence[str]) -> list[str]:
    """Return the columns of a write to a raw log, spelled as a raw log spells them."""
    chosen = {i: name for name, i in zip(_RAW, columns_for(_RAW, given), strict=True) if i is not None}
    return [chosen.get(i, name) for i, name in enumerate(given)]


def columns_for(wanted: Sequence[str], given: Sequence[str]) -> list[int | None]:
    """Return for each wanted name the index of the given one: the same spelling, or else, as Spark resolves names, the only one but for
    case."""
    exact = {name: i for i, name in enumerate(given)}
    free: dict[str, list[int]] = {}
    for i, name in enumerate(given):
        if name not in wanted:
            free.setdefault(name.casefold(), []).append(i)
    found: list[int | None] = []
    for name in wanted:
        near = free.get(name.casefold(), [])
        found.append(exact[name] if name in exact else near[0] if len(near) == 1 else None)
    return found


def spelled(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Return ``batch`` with its columns spelled as the log spells them; the packer deals with order, types and missing columns."""
    given = batch.schema.names
    if all(name in names for name in given):
        return batch
    spelling = {i: name for name, i in zip(names, columns_for(names, given), strict=True) if i is not None}
    return pa.RecordBatch.from_arrays(batch.columns, names=[spelling.get(i, name) for i, name in enumerate(given)])


def widens(given: DataType, stored: DataType) -> bool:
    """Return True if every value of ``given`` is a value of ``stored``. Nested types need the same shape and names, and may
    widen inside."""
    if isinstance(given, NullType) or given == stored:
        return True
    kind, into = type(given), type(stored)
    if kind in _INTEGERS and into in _INTEGERS:
        return _INTEGERS.index(kind) <= _INTEGERS.index(into)
    if isinstance(stored, DecimalType):
        if isinstance(given, DecimalType):
            return stored.scale >= given.scale and stored.precision - stored.scale >= given.precision - given.scale
        return stored.precision - stored.scale >= _DIGITS.get(kind, 1 << 30)
    if isinstance(given, ArrayType) and isinstance(stored, ArrayType):
        return widens(given.elementType, stored.elementType)
    if isinstance(given, MapType) and isinstance(stored, MapType):
        return widens(given.keyType, stored.keyType) and widens(given.valueType, stored.valueType)
    if isinstance(given, StructType) and isinstance(stored, StructType):
        pairs = zip(given.fields, stored.fields, strict=False)
        return _same_names(given.names, stored.names) and all(widens(a.dataType, b.dataType) for a, b in pairs)
    return into in _EXACT_IN.get(kind, ())


def _same_names(given: Sequence[str], stored: Sequence[str]) -> bool:
    """Return True if the fields of two structs have the same names, each in its place, but for case where that leaves no doubt."""
    folded = [name.casefold() for name in given]
    return list(given) == list(stored) or (folded == [name.casefold() for name in stored] and len(set(folded)) == len(folded))


def _refuse_untyped(log: str, new: Sequence[StructField]) -> None:
    for f in new:
        if isinstance(f.dataType, NullType):
            raise LogSchemaError(f"log {log!r}: column {f.name!r} is nothing but null; give it a type, e.g. cast(null as string)", log=log)
        if _has_void(f.dataType):
            told = f.dataType.simpleString()
            raise LogSchemaError(
                f"log {log!r}: column {f.name!r} is {told}, and nothing else could be written there later; cast it", log=log
            )


def _has_void(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_void(f.dataType) for f in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_void(kind.elementType)
    return isinstance(kind, NullType) or (isinstance(kind, MapType) and (_has_void(kind.keyType) or _has_void(kind.valueType)))


def _shown(schema: StructType) -> str:
    return ", ".join(f"{f.name!r} {f.dataType.simpleString()}" for f in schema.fields)


def _quoted(fields: Sequence[StructField]) -> str:
    return ", ".join(repr(f.name) for f in fields)
