"""The types that a write may widen, judged by the packer that does it; columns by name; schemas that follow one another."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as T
from pyspark.sql.types import StructField, StructType

from bk_core.errors import LogSchemaError
from bk_spark.entries.packing import conform
from bk_spark.schemas import arrow_schema, schema_of_text, schema_text
from bk_spark.sink.schema import check_raw, columns_for, extends, only_value, schema_to_write, spelled, widens

BYTE, SHORT, INT, LONG, FLOAT, DOUBLE = T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType()


def one(kind: T.DataType, name: str = "c", nullable: bool = True) -> StructType:
    return StructType([StructField(name, kind, nullable)])


def nested(kind: T.DataType) -> T.DataType:
    return T.MapType(T.StringType(), T.ArrayType(one(kind)))


@pytest.mark.parametrize(
    ("given", "stored", "value"),
    [
        (BYTE, SHORT, -128),
        (BYTE, LONG, 127),
        (SHORT, INT, -32768),
        (INT, LONG, 2**31 - 1),
        (FLOAT, DOUBLE, 0.5),
        (BYTE, FLOAT, -128),
        (SHORT, FLOAT, 32767),
        (INT, DOUBLE, -(2**31)),
        (BYTE, T.DecimalType(3, 0), -128),
        (INT, T.DecimalType(12, 2), 2**31 - 1),
        (LONG, T.DecimalType(19, 0), -(2**63)),
        (T.DecimalType(10, 2), T.DecimalType(14, 4), Decimal("12345678.91")),
        (T.NullType(), T.StringType(), None),
    ],
)
def test_every_value_survives_what_counts_as_widening(given: T.DataType, stored: T.DataType, value: Any) -> None:
    assert widens(given, stored) and not widens(stored, given)
    batch = pa.RecordBatch.from_pydict({"c": [value, None]}, schema=arrow_schema(one(given)))
    assert conform(batch, arrow_schema(one(stored))).column("c").to_pylist() == [value, None]
    assert schema_to_write("a", schema_text(one(stored)), one(given, nullable=False), False) == schema_text(one(stored))


def test_widening_inside_nested_types() -> None:
    assert widens(nested(INT), nested(LONG)) and not widens(nested(LONG), nested(INT))
    rows = [[("k", [{"c": 1}, None])], None]
    batch = pa.RecordBatch.from_pydict({"c": rows}, schema=arrow_schema(one(nested(INT))))
    assert conform(batch, arrow_schema(one(nested(LONG)))).column("c").to_pylist() == rows


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (INT, FLOAT),
        (LONG, DOUBLE),
        (LONG, T.DecimalType(18, 0)),
        (T.DecimalType(10, 2), T.DecimalType(11, 4)),
        (T.DecimalType(10, 2), DOUBLE),
        (INT, T.StringType()),
        (T.StringType(), T.BinaryType()),
        (T.TimestampType(), T.TimestampNTZType()),
        (T.DateType(), T.TimestampType()),
        (one(INT, "a"), one(INT, "b")),
        (T.ArrayType(INT), INT),
        (one(INT), StructType([*one(INT).fields, *one(INT, "more").fields])),
    ],
)
def test_what_could_lose_something_is_refused(given: T.DataType, stored: T.DataType) -> None:
    assert not widens(given, stored)
    with pytest.raises(LogSchemaError, match="'c' is .*, stored as "):
        schema_to_write("a", schema_text(one(stored)), one(given), True)


def test_names() -> None:
    assert columns_for(["a", "B"], ["b", "a"]) == [1, 0]
    assert columns_for(["a"], ["A", "a"]) == [1]
    assert columns_for(["x", "a"], ["A", "AA"]) == [None, 0]
    assert columns_for(["ab"], ["AB", "Ab"]) == [None]  # which one is meant nobody knows
    batch = pa.RecordBatch.from_pydict({"ID": [1], "name": ["x"]})
    assert spelled(batch, ["name", "id", "other"]).schema.names == ["id", "name"]
    with pytest.raises(LogSchemaError, match="more than one column named 'c'"):
        schema_to_write("a", "", StructType([*one(INT).fields, *one(LONG).fields]), False)


def test_names_of_fields_may_differ_in_case_alone() -> None:
    """Python sources are not told ``spark.sql.caseSensitive``; Spark's default is that case does not count."""
    stored, given = nested(LONG), T.MapType(T.StringType(), T.ArrayType(one(INT, "C")))
    assert widens(given, stored)
    batch = pa.RecordBatch.from_pydict({"c": [[("k", [{"C": 1}])]]}, schema=arrow_schema(one(given)))
    assert conform(batch, arrow_schema(one(stored))).column("c").to_pylist() == [[("k", [{"c": 1}])]]
    two = StructType([*one(INT, "a").fields, *one(INT, "A").fields])
    assert widens(two, two) and not widens(two, StructType(list(reversed(two.fields))))  # which one is meant nobody knows


def test_a_raw_log_takes_its_columns_in_any_case() -> None:
    given = StructType([*one(T.BinaryType(), "VALUE").fields, *one(T.BinaryType(), "Key").fields, *one(LONG, "ledgerid").fields])
    check_raw("a", given)
    batch = pa.RecordBatch.from_pydict({"VALUE": [b"x"], "Key": pa.nulls(1, pa.binary()), "ledgerid": [1]})
    assert only_value("a", batch).to_pydict() == {"value": [b"x"]}
    with pytest.raises(LogSchemaError, match="column 'key' is not all null"):
        only_value("a", pa.RecordBatch.from_pydict({"value": [b"x"], "KEY": [b"k"]}))


@pytest.mark.parametrize("kind", [T.MapType(T.NullType(), T.NullType()), T.ArrayType(T.MapType(T.NullType(), INT))])
def test_an_empty_map_needs_types(kind: T.DataType) -> None:
    with pytest.raises(LogSchemaError, match=r"column 'c\S*' is map<void,.*>: an empty map\(\) has no types.*cast\("):
        schema_to_write("a", "", one(kind), False)


@pytest.mark.parametrize("kind", [T.ArrayType(T.NullType()), T.MapType(T.StringType(), T.NullType()), one(T.NullType())])
def test_void_inside_is_filled_and_never_stored(kind: T.DataType) -> None:
    with pytest.raises(LogSchemaError, match="column 'c' is .*void.*cast it"):
        schema_to_write("a", "", one(kind), False)
    with pytest.raises(LogSchemaError, match="column 'c' is .*void.*cast it"):
        schema_to_write("a", schema_text(one(INT, "id")), one(kind), True)
    stored = T.ArrayType(INT)
    assert schema_to_write("a", schema_text(one(stored)), one(T.ArrayType(T.NullType())), False) == schema_text(one(stored))


def test_schemas_follow_one_another() -> None:
    stored = schema_text(one(INT))
    more = schema_to_write("a", stored, StructType([StructField("new", DOUBLE, False), *one(INT).fields]), True)
    assert schema_of_text(more) == StructType([StructField("c", INT), StructField("new", DOUBLE)])
    assert extends("", stored) and extends(stored, stored) and extends(stored, more)
    assert not extends(more, stored) and not extends(schema_text(one(LONG)), more)
    assert schema_to_write("a", more, one(INT), True) == more


def test_new_columns_are_told_with_the_ways_to_have_them() -> None:
    """An overwrite replaces rows, so its columns may be meant to go with them."""
    id_, name = StructField("id", LONG), StructField("name", T.StringType())
    stored, given = schema_text(StructType([id_])), StructType([id_, name])
    for overwrite, words in (
        (False, r"it has 'id' bigint\. Add new ones with \.option\(\"mergeSchema\", \"true\"\)$"),
        (True, r"it has 'id' bigint\. An overwrite keeps .* \.option\(\"overwriteSchema\", \"true\"\), or add .*\"mergeSchema\""),
    ):
        with pytest.raises(LogSchemaError, match=f"log 'flights' has no column 'name'; {words}"):
            schema_to_write("flights", stored, given, False, overwrite)
