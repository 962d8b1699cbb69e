"""The columns of a log, from an Arrow schema or from Spark's DDL, as the list of the log keeps them: what Spark's sink would have stored.

A log's columns are nullable, and of the types that Spark can read back. Types of other libraries that say the same are taken for them
(``large_string``, a time in nanoseconds, a dictionary); others are an error that names the column.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
from pyarrow import types

from bk_core.errors import ArgumentTypeError, LogSchemaError
from bk_core.near import meant
from bk_spark.arrow.ddl import columns_of_ddl, ddl_of
from bk_spark.entries.stored_schema import COLUMN_METADATA, arrow_schema_of_text

STORED_MARK = "/////"  # base64 of the mark that every Arrow message begins with, which no DDL begins with
_DIGITS_MAX = 38
_SAME = (
    types.is_boolean, types.is_int8, types.is_int16, types.is_int32, types.is_int64, types.is_float32, types.is_float64,
    types.is_string, types.is_binary, types.is_date32,
)  # fmt: skip
_TAKEN_FOR = (
    (types.is_uint8, pa.int16()),
    (types.is_uint16, pa.int32()),
    (types.is_uint32, pa.int64()),
    (types.is_float16, pa.float32()),
    (types.is_large_string, pa.string()),
    (types.is_string_view, pa.string()),
    (types.is_large_binary, pa.binary()),
    (types.is_binary_view, pa.binary()),
    (types.is_fixed_size_binary, pa.binary()),
    (types.is_date64, pa.date32()),
    (types.is_time, pa.time64("ns")),
    (types.is_duration, pa.duration("us")),
)
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
_EXACT_IN = {
    pa.float32(): (pa.float64(),),
    pa.int8(): (pa.float32(), pa.float64()),
    pa.int16(): (pa.float32(), pa.float64()),
    pa.int32(): (pa.float64(),),
}


def schema_text(schema: object) -> str:
    """Return the text for a log's list. ``schema``: DDL such as ``"id BIGINT, carrier STRING"``, a text that a list has, a pyarrow Schema,
    or whatever has ``__arrow_c_schema__``. LogSchemaError; ArgumentTypeError."""
    if isinstance(schema, str):
        if schema.startswith(STORED_MARK):
            arrow_schema_of_text(schema)
            return schema
        return stored_text(columns_of_ddl(schema))
    if hasattr(schema, "__arrow_c_schema__"):
        return stored_text(log_schema(pa.schema(schema)))
    raise ArgumentTypeError(f'schema must be DDL such as "id BIGINT, name STRING", or an Arrow schema, not of type {type(schema).__name__}')


def told_columns(text: str) -> list[tuple[str, str]]:
    """Return the columns of a text that a list has, each with its type as DDL spells it. LogSchemaError for a text that no sink wrote."""
    return [(field.name, ddl_of(field.type)) for field in arrow_schema_of_text(text)]


def stored_text(schema: pa.Schema) -> str:
    """Return the text of a schema of ``log_schema``. LogSchemaError for one that no reader would take, or that Spark reads only with
    ``spark.sql.caseSensitive``. Metadata that other libraries have given columns are no part of a log."""
    if not len(schema):
        raise LogSchemaError("a log needs at least one column")
    _check_names("", pa.struct(list(schema)))
    text = base64.b64encode(schema.serialize().to_pybytes()).decode()
    arrow_schema_of_text(text)
    return text


def _check_names(path: str, kind: pa.DataType) -> None:
    """Raise LogSchemaError if two fields of a struct have one name, or names that differ in case alone. All columns are a struct without
    a path."""
    if types.is_list(kind):
        _check_names(f"{path}.element", kind.value_type)
    elif types.is_map(kind):
        _check_names(f"{path}.key", kind.key_type)
        _check_names(f"{path}.value", kind.item_type)
    elif types.is_struct(kind):
        what = f"the fields of struct {path!r}" if path else "the columns"
        names: dict[str, str] = {}
        for part in _parts(kind):
            if "\0" in part.name:  # Arrow's C interface cuts a name there
                raise LogSchemaError(f"{part.name!r} of {what} has a NUL character: rename it", column=path)
            other = names.get(part.name.casefold())
            if other is not None:
                how = "are of one name" if other == part.name else "differ in case alone, and are one to Spark"
                raise LogSchemaError(f"{what} {other!r} and {part.name!r} {how}: rename one of them", column=path)
            names[part.name.casefold()] = part.name
            _check_names(f"{path}.{part.name}" if path else part.name, part.type)


def log_schema(given: pa.Schema) -> pa.Schema:
    """Return the columns as a log has them. LogSchemaError for a type that logs do not have."""
    return pa.schema([_field(field.name, field, void=False) for field in given])


def given_schema(given: pa.Schema) -> pa.Schema:
    """Return the same for rows of a log that has columns: here a column may be nothing but null."""
    return pa.schema([_field(field.name, field, void=True) for field in given])


def _field(path: str, field: pa.Field, *, void: bool) -> pa.Field:
    kept = {key: value for key, value in (field.metadata or {}).items() if key.decode(errors="replace") in COLUMN_METADATA}
    if kept:  # such as the mark of a variant, whose parts are never null
        return field.with_nullable(True).with_metadata(kept)
    return pa.field(field.name, _type(path, field.type, void=void))


def _type(path: str, kind: pa.DataType, *, void: bool) -> pa.DataType:
    if any(same(kind) for same in _SAME):
        return kind
    for fits, taken in _TAKEN_FOR:
        if fits(kind):
            return taken
    if types.is_dictionary(kind):
        return _type(path, kind.value_type, void=void)
    if types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if types.is_decimal(kind) and kind.precision <= _DIGITS_MAX:
        return pa.decimal128(kind.precision, kind.scale)
    if types.is_struct(kind):
        return pa.struct([_field(f"{path}.{part.name}", part, void=void) for part in (kind.field(i) for i in range(kind.num_fields))])
    if types.is_map(kind):
        key, value = _type(f"{path}.key", kind.key_type, void=False), _type(f"{path}.value", kind.item_type, void=void)
        return pa.map_(key, value)
    if _is_list(kind):
        return pa.list_(pa.field("element", _type(f"{path}.element", kind.value_type, void=void)))
    if types.is_null(kind) and void:
        return kind
    raise LogSchemaError(f"column {path!r} has type {kind}, which no log has: {_cast_to(kind)}", column=path)


def _is_list(kind: pa.DataType) -> bool:
    """Return True for a list. Views of lists are none here, because pyarrow's casts of them make arrays that are not valid."""
    return any(fits(kind) for fits in (types.is_list, types.is_large_list, types.is_fixed_size_list))


def _cast_to(kind: pa.DataType) -> str:
    if types.is_null(kind):
        return "it is nothing but null; give it a type"
    return "cast it to int64 or decimal128(20, 0)" if types.is_uint64(kind) else "cast it first"


# --- rows for a log that has columns ----------------------------------------------------------------------------------------


def check_fits(name: str, given: pa.Schema, stored: pa.Schema) -> None:
    """Raise LogSchemaError unless every column of ``given_schema`` is one of the log's, of its type or of one that it widens. A column of
    the log that is missing is null."""
    check_named_once(name, given)
    kept = {field.name: field for field in stored}
    unknown = [column for column in given.names if column not in kept]
    if unknown:
        raise LogSchemaError(f"log {name!r} has no column {_quoted(unknown)}; it has {_shown(stored)}{_spelled(unknown, stored)}", log=name)
    if not given.names:
        raise LogSchemaError(f"log {name!r}: the rows have no column; it has {_shown(stored)}", log=name)
    wrong = [
        f"column {field.name!r} is {field.type}, stored as {kept[field.name].type}"
        for field in given
        if not widens(field.type, kept[field.name].type)
    ]
    if wrong:
        raise LogSchemaError(f"log {name!r}: {'; '.join(wrong)}; cast it, only widening is done by itself", log=name)


def _spelled(unknown: Sequence[str], stored: pa.Schema) -> str:
    """Return the spelling that is meant, for a message: Spark takes a name in another case, and this side does not."""
    cased = [f"{one!r} for {column!r}" for column in unknown for one in stored.names if one.casefold() == column.casefold()]
    near = "" if cased else meant(unknown[0], stored.names)
    return f"; case counts here: {', '.join(cased)}" if cased else f"; {near}" if near else ""


def check_named_once(name: str, given: pa.Schema) -> None:
    """Raise LogSchemaError for two columns of one name."""
    twice = sorted(column for column, count in Counter(given.names).items() if count > 1)
    if twice:
        raise LogSchemaError(f"the rows have more than one column named {', '.join(map(repr, twice))}: rename them", log=name)


def widens(given: pa.DataType, stored: pa.DataType) -> bool:
    """Return True if every value of ``given`` is a value of ``stored``. Nested types need the same shape and names, and may widen inside.
    ``bk_spark/sink/schema.py`` has the same rules for Spark's types."""
    if given == stored or types.is_null(given):
        return True
    if given in _INTEGERS and stored in _INTEGERS:
        return _INTEGERS.index(given) <= _INTEGERS.index(stored)
    if types.is_decimal128(stored):
        if types.is_decimal128(given):
            return bool(stored.scale >= given.scale and stored.precision - stored.scale >= given.precision - given.scale)
        return bool(stored.precision - stored.scale >= _DIGITS.get(given, _DIGITS_MAX + 1))
    if types.is_list(given) and types.is_list(stored):
        return widens(given.value_type, stored.value_type)
    if types.is_map(given) and types.is_map(stored):
        return widens(given.key_type, stored.key_type) and widens(given.item_type, stored.item_type)
    if types.is_struct(given) and types.is_struct(stored):
        parts, into = _parts(given), _parts(stored)
        return [f.name for f in parts] == [f.name for f in into] and all(widens(a.type, b.type) for a, b in zip(parts, into, strict=True))
    return stored in _EXACT_IN.get(given, ())


def _parts(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(i) for i in range(kind.num_fields)]


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name!r} {field.type}" for field in schema)
