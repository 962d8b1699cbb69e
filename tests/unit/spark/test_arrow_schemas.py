"""Schemas between Spark, Arrow and the ledger list."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, StructField, StructType

from bk_core.errors import LogSchemaError
from bk_spark.entries.stored_schema import arrow_schema_of_text
from bk_spark.schemas import arrow_schema, check_schema, schema_of_text, schema_text

PLAIN: list[DataType] = [
    T.BooleanType(), T.ByteType(), T.ShortType(), T.IntegerType(), T.LongType(), T.FloatType(), T.DoubleType(), T.DecimalType(38, 18),
    T.StringType(), T.BinaryType(), T.DateType(), T.TimestampType(), T.TimestampNTZType(), T.NullType(), T.VariantType(),
    T.TimeType(3), T.TimeType(), T.StringType("UTF8_LCASE"), T.GeometryType(4326), T.GeographyType("ANY"),
    T.DayTimeIntervalType(), T.DayTimeIntervalType(T.DayTimeIntervalType.HOUR, T.DayTimeIntervalType.MINUTE),
]  # fmt: skip


def nested(kind: DataType) -> StructType:
    inner = StructType([StructField("deep", kind, False, {"comment": "inner"})])
    return StructType(
        [
            StructField("plain", kind, False, {"comment": "outer"}),
            StructField("listed", T.ArrayType(T.ArrayType(kind, False))),
            StructField("mapped", T.MapType(T.StringType(), inner, False)),
        ]
    )


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.simpleString())
def test_schemas_survive_the_ledger_list(kind: DataType) -> None:
    schema = nested(kind)
    text = schema_text(schema)
    again = schema_of_text(text)
    assert [f.dataType.simpleString() for f in again.fields] == [f.dataType.simpleString() for f in schema.fields]
    assert again.fields[0].dataType == kind and again.fields[0].metadata == {"comment": "outer"}
    assert again["mapped"].dataType.valueType.fields[0].metadata == {"comment": "inner"}  # type: ignore[attr-defined]
    assert to_arrow_schema(again, timezone="UTC") == arrow_schema(schema) == arrow_schema_of_text(text)
    assert all(f.nullable for f in again.fields) and schema_text(again) == text


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (T.YearMonthIntervalType(), "interval year to month.*cast it first.*int months"),
        (T.CalendarIntervalType(), "interval"),
        (VectorUDT(), "vector"),
        (T.ObjectType() if hasattr(T, "ObjectType") else T.CalendarIntervalType(), "cast it first"),
    ],
)
def test_what_cannot_come_back_is_refused_with_column_and_type(kind: DataType, word: str) -> None:
    for schema, path in (
        (StructType([StructField("a", T.LongType()), StructField("b", kind)]), "b"),
        (StructType([StructField("s", StructType([StructField("x", T.ArrayType(kind))]))]), r"s\.x\.element"),
        (StructType([StructField("m", T.MapType(T.StringType(), kind))]), r"m\.value"),
    ):
        with pytest.raises(LogSchemaError, match=f"column '{path}' has type.*{word}"):
            check_schema(schema)
        with pytest.raises(LogSchemaError, match=f"column '{path}' "):
            schema_text(schema)


def columns(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


TEXT, INT = T.StringType(), T.IntegerType()


def test_names_are_unique_with_their_case() -> None:
    check_schema(columns(a=INT, A=INT))
    with pytest.raises(LogSchemaError, match="the DataFrame has more than one column named 'a'"):
        check_schema(StructType([*columns(a=INT, b=INT), StructField("a", TEXT)]))
    with pytest.raises(LogSchemaError, match=r"struct 's\.element' has more than one column named 'x'"):
        check_schema(columns(s=T.ArrayType(StructType([*columns(x=INT), *columns(x=INT)]))))
    with pytest.raises(LogSchemaError, match="at least one column"):
        check_schema(StructType([]))


def test_what_spark_notes_for_one_plan_is_not_stored() -> None:
    """A stored watermark would be tracked by every reader of the log."""
    field = StructField("at", T.TimestampType(), True, {"spark.watermarkDelayMs": 1000, "comment": "when"})
    assert schema_of_text(schema_text(StructType([field]))).fields[0].metadata == {"comment": "when"}


def test_damaged_texts_are_named() -> None:
    for text in ("!", "aGVsbG8=", ""):
        with pytest.raises(LogSchemaError, match="cannot be read"):
            schema_of_text(text)
    odd = pa.schema([("a", pa.int64())], metadata={b"spark.schema": b"{}"})
    with pytest.raises(LogSchemaError, match="Spark schema"):
        schema_of_text(base64.b64encode(odd.serialize().to_pybytes()).decode())
