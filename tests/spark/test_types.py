"""Every Spark type that Arrow carries comes back from a log exactly as it was written; what cannot is refused before a row moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from bk_core.client.log.lists import list_logs

pytestmark = pytest.mark.spark

# Each line: a column's name and its values in SQL. Every column also gets a null, and every type a place in an array, a map and a struct.
TYPES: dict[str, tuple[str, ...]] = {
    "flag": ("true", "false"),
    "tiny": ("127Y", "-128Y"),
    "small": ("32767S", "-32768S"),
    "whole": ("2147483647", "-2147483648"),
    "long": ("9223372036854775807", "-9223372036854775808"),
    "single": ("float('NaN')", "float('-0.0')", "float('Infinity')", "float('-Infinity')", "1.4E-45F"),
    "double": ("double('NaN')", "double('-0.0')", "double('Infinity')", "double('-Infinity')", "4.9E-324D"),
    "exact": ("cast('99999999999999999999.999999999999999999' as decimal(38,18))", "cast('-0.000000000000000001' as decimal(38,18))"),
    "money": ("cast(-1.50 as decimal(5,2))",),
    "text": ("''", "'\\u00e4\\u6f22\\U0001F600\\0x'", "repeat('long ', 20000)"),
    "folded": ("'Ab' collate UTF8_LCASE",),
    "bytes": ("X''", "X'00FF80'"),
    "day": ("date'1582-10-04'", "date'0001-01-01'", "date'9999-12-31'"),
    "moment": (
        "timestamp'2026-03-29 02:30:00.123456 UTC'",
        "timestamp'0001-01-03 00:00:00 UTC'",
        "timestamp'9999-12-30 23:59:59.999999 UTC'",
    ),
    "wall": (
        "timestamp_ntz'2026-03-29 02:30:00.123456'",
        "timestamp_ntz'0001-01-01 00:00:00'",
        "timestamp_ntz'9999-12-31 23:59:59.999999'",
    ),
    "span": ("interval '-3 04:05:06.789012' day to second", "interval '106751991' day + interval '1' second"),
    "hours": ("interval '5:30' hour to minute",),
    "clock": ("time'23:59:59.123456'", "time'00:00:00'"),
    "parts": ("array()", "array(1, null, -3)"),
    "geo": ("st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')",),
    "globe": ("st_geogfromwkb(X'0101000000000000000000F03F0000000000000040')",),
    "tick": ("cast('23:59:59.123' as time(3))",),
    "either": ('parse_json(\'{"a":[1,null,"x"],"b":1.5}\')', "parse_json('null')"),
}


def every_type(spark: SparkSession) -> DataFrame:
    rows = max(len(values) for values in TYPES.values()) + 1
    columns = []
    for name, values in TYPES.items():
        cases = " ".join(f"when {i} then {value}" for i, value in enumerate(values))
        columns.append(f"case id {cases} end as {name}")
    plain = spark.range(0, rows, 1, 1).selectExpr("id", *columns)
    nested = [f"array(map('k', named_struct('x', {name}, 'id', id)), null) as in_{name}" for name in TYPES]
    return plain.selectExpr("*", *nested)


def shown(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))


@pytest.fixture
def setting(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """Settings of the shared session for one test."""
    before: dict[str, str | None] = {}

    def change(key: str, value: str) -> None:
        before.setdefault(key, spark.conf.get(key, None))
        spark.conf.set(key, value)

    yield change
    for key, value in before.items():
        spark.conf.unset(key) if value is None else spark.conf.set(key, value)


def test_every_type_comes_back(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], log: str, setting: Callable[[str, str], None]
) -> None:
    """In both forms of compression, written and read under different session time zones."""
    setting("spark.sql.timeType.enabled", "true")
    written = every_type(spark)
    for zone, compression in (("Asia/Kolkata", "zstd"), ("Australia/Lord_Howe", "lz4")):
        setting("spark.sql.session.timeZone", zone)
        save(written, log=log, compression=compression)
    back = load(log=log)
    assert [(f.name, f.dataType.simpleString()) for f in back.schema] == [(f.name, f.dataType.simpleString()) for f in written.schema]
    assert shown(back) == sorted(shown(written) * 2)


def test_comments_order_and_case_are_kept(spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], log: str) -> None:
    inner = StructType([StructField("n", LongType(), False, {"comment": "inner"})])
    schema = StructType(
        [
            StructField("zulu", LongType(), False, {"comment": "first", "unit": "s"}),
            StructField("Alpha", inner),
            StructField("b", StringType()),
        ]
    )
    save(spark.createDataFrame([(1, (2,), "x"), (3, None, None)], schema).coalesce(1), log=log)
    back = load(log=log)
    assert back.columns == ["zulu", "Alpha", "b"] and back.schema["zulu"].metadata == {"comment": "first", "unit": "s"}
    assert back.schema["Alpha"].dataType.fields[0].metadata == {"comment": "inner"}
    assert sorted(back.collect()) == [(1, (2,), "x"), (3, None, None)]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (("interval '1-2' year to month as months",), "column 'months' has type interval year to month"),
        (("array(named_struct('x', interval '1' month)) as l",), r"column 'l\.element\.x' has type interval month"),
        (("1 as a", "2 as b", "3 as a"), "more than one column named 'a'"),
    ],
)
def test_what_cannot_come_back_is_refused_at_planning(
    spark: SparkSession, save: Callable[..., None], client: Any, log: str, columns: tuple[str, ...], message: str
) -> None:
    with pytest.raises(PySparkException, match=message) as caught:
        save(spark.range(1).selectExpr(*columns), log=log)
    assert "BK-LOG-SCHEMA" in str(caught.value) and log not in list_logs(client)


def test_raw_values_are_strings_or_bytes_and_never_null(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], log: str
) -> None:
    save(spark.sql("select * from values ('\u00e4'), ('') t(value)").coalesce(1), log=log, entryFormat="raw")
    save(spark.sql("select X'00FF' as value"), log=log)
    for kind in ("string", "binary"):
        rows = spark.range(0, 5, 1, 1).selectExpr(f"case when id <> 3 then cast(cast(id as string) as {kind}) end as value")
        with pytest.raises(PySparkException, match=r"BK-LOG-NULL-VALUE.*row 3 of the task"):
            save(rows, log=log)
    assert sorted(bytes(row.value) for row in load(log=log).collect()) == [b"", b"\x00\xff", "\u00e4".encode()]
    assert load(log=log).schema["value"].nullable
