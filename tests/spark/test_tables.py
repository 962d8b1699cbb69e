"""Tables that Spark writes are read without Spark, cell by cell, and the other way round."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from bk_core.bookie.local_cluster import LocalCluster
from bk_core.errors import LogSchemaError
from bk_spark.arrow.schemas import schema_text as text_without_spark
from bk_spark.demo.flights import read_lines, to_table
from bk_spark.schemas import schema_text
from tests.spark.cells import LIBRARIES, lines

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]
FLIGHTS = 3000
NESTED = [  # of a row with id 0, 1, 2 and 3, where 3 has nothing but nulls
    "case id when 0 then true when 1 then false end flag",
    "case id when 0 then -128Y when 1 then 127Y end tiny",
    "case id when 0 then 9223372036854775807 when 1 then -9223372036854775808 end long",
    "case id when 0 then float('NaN') when 1 then 1.4E-45F when 2 then float('-Infinity') end single",
    "case id when 0 then double('-0.0') when 1 then 4.9E-324D when 2 then 0.1D end double",
    "case id when 0 then cast('99999999999999999999.999999999999999999' as decimal(38,18)) when 1 then -0.5BD end exact",
    "case id when 0 then '' when 1 then '\\u00e4\\u6f22\\U0001F600\\0x' when 2 then repeat('long ', 20000) end text",
    "case id when 0 then X'' when 1 then X'00FF80' end bytes",
    "case id when 0 then date'1582-10-04' when 1 then date'9999-12-31' when 2 then date'0001-01-01' end day",
    "case id when 0 then timestamp'2026-03-29 02:30:00.123456 UTC' when 1 then timestamp'1900-01-01 00:00:00 UTC' end moment",
    "case id when 0 then timestamp_ntz'2026-03-29 02:30:00.123456' when 1 then timestamp_ntz'9999-12-31 23:59:59.999999' end wall",
    "case id when 0 then array() when 1 then array(1, null, -3) end parts",
    "case id when 0 then array(array(1), null, array()) when 1 then array() end deep",
    "case id when 0 then map() when 1 then map('a', 1.50BD, 'b', null) end prices",
    "case id when 0 then named_struct('x', 1, 'y', null, 'z', array(named_struct('d', date'2026-01-01'))) "
    "when 1 then named_struct('x', null, 'y', 'q', 'z', null) end box",
    "case id when 0 then map(1, array(named_struct('k', X'01', 't', timestamp'2026-01-01 00:00:00 UTC'))) end all_of_it",
]


def without_spark(library: str, cluster: LocalCluster, log: str) -> list[str]:
    """The rows as a process reads them that cannot import pyspark."""
    if library != "pyarrow" and find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    command = [sys.executable, "-m", "tests.spark.cells", library, cluster.uri, log]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "TZ": "Asia/Kolkata"}, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def with_spark(load: Callable[..., Any], client: Any, log: str) -> list[str]:
    return list(lines(load(log=log).collect(), client.log(log).arrow_schema()))


@pytest.fixture
def flights(spark: SparkSession, save: Callable[..., None], log: str, tmp_path: Path) -> str:
    """Flights as Spark reads them from CSV and writes them, with nulls where the file has none, in two batches."""
    header, rows = read_lines(FLIGHTS)
    for number, part in enumerate((rows[::2], rows[1::2])):
        (tmp_path / f"{number}.csv").write_bytes(b"\n".join([header, *part]) + b"\n")
        frame = spark.read.csv(str(tmp_path / f"{number}.csv"), header=True, inferSchema=True, nullValue="NA")
        save(frame, log=log, compression="zstd" if number else "none", entrySize="65536")
    return log


@pytest.mark.parametrize("library", LIBRARIES)
def test_flights_that_spark_wrote_are_read_without_it(
    library: str, flights: str, load: Callable[..., Any], client: Any, cluster: LocalCluster
) -> None:
    expected = with_spark(load, client, flights)
    assert len(expected) == FLIGHTS and any("null" in row for row in expected)
    assert without_spark(library, cluster, flights) == expected


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_type_is_read_without_spark(
    library: str, spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], log: str, client: Any, cluster: LocalCluster
) -> None:
    save(spark.range(0, 4, 1, 1).selectExpr("id", *NESTED), log=log)
    expected = with_spark(load, client, log)
    assert len(expected) == 4 and expected[3].count("null") == len(NESTED)
    assert without_spark(library, cluster, log) == expected


def test_rows_written_without_spark_are_read_by_it(load: Callable[..., Any], log: str, client: Any) -> None:
    moment = datetime(2026, 3, 29, 2, 30, 0, 123456, UTC)
    table = pa.table(
        {
            "id": [1, None],
            "name": pa.array(["\u00e4", None], pa.large_string()),
            "at": pa.array([moment, None], pa.timestamp("ns", "Asia/Tokyo")),
            "cost": [Decimal("-1.50"), None],
            "tags": [["a", None], None],
            "prices": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
            "box": [{"x": 1, "y": [b"\0"]}, None],
        }
    )
    here = client.create_log(log, entry_format="arrow")
    here.write(table)
    back = load(log=log)
    assert back.schema.simpleString() == (
        "struct<id:bigint,name:string,at:timestamp,cost:decimal(3,2),tags:array<string>,prices:map<string,int>,"
        "box:struct<x:bigint,y:array<binary>>>"
    )
    read = list(lines(back.collect(), here.arrow_schema()))
    assert read == list(lines((row.values() for row in here.to_arrow().to_pylist()), here.arrow_schema()))
    assert read[0].startswith('[1, "\\u00e4", "2026-03-29T02:30:00.123456+00:00", "-1.50", ["a", null]') and read[1].count("null") == 7


def test_flights_written_by_both_are_one_log(flights: str, load: Callable[..., Any], client: Any, cluster: LocalCluster) -> None:
    log = client.log(flights)
    log.write(log.to_arrow(columns=["carrier", "dest"]).slice(0, 7))
    expected = with_spark(load, client, flights)
    assert len(expected) == FLIGHTS + 7
    assert without_spark("pyarrow", cluster, flights) == expected


def test_the_demo_writes_flights_without_spark(load: Callable[..., Any], log: str, client: Any) -> None:
    client.create_log(log, entry_format="arrow").write(to_table(*read_lines(500)))
    assert load(log=log).count() == 500


def test_names_that_differ_in_case_alone_need_a_session_that_tells_them_apart(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], log: str, client: Any
) -> None:
    """So nobody may give a log such columns in Python, where no session can be asked."""
    told = "spark.sql.caseSensitive"
    spark.conf.set(told, "true")
    try:
        save(spark.sql("select 1 id, 2 ID"), log=log)
        assert [tuple(row) for row in load(log=log).select("ID", "id").collect()] == [(2, 1)]
    finally:
        spark.conf.unset(told)
    assert client.log(log).to_arrow().to_pydict() == {"id": [1], "ID": [2]}
    with pytest.raises(AnalysisException, match="AMBIGUOUS_REFERENCE|COLUMN_ALREADY_EXISTS"):
        load(log=log).select("id").collect()
    with pytest.raises(LogSchemaError, match="differ in case alone"):
        client.create_log(f"{log}-2", schema="id INT, ID INT")


# --- DDL ----------------------------------------------------------------------------------------------------------------

ATOMIC = [
    *("boolean", "TINYINT", "byte", "SMALLINT", "short", "int", "INTEGER", "bigint", "LONG", "float", "REAL", "double", "string"),
    *("binary", "date", "timestamp", "TIMESTAMP_LTZ", "timestamp_ntz", "decimal", "DEC(5)", "numeric(38, 18)", "decimal(7,7)"),
    "interval day to second",
]
NAMES = st.sampled_from(["id", "_x", "a1", "`a b`", "`a``b`", "Map", "array", "timestamp", "comment", "`\u00e4`", "not", "interval"])


def nested(kinds: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    fields = st.lists(st.tuples(NAMES, st.sampled_from([":", ": ", " "]), kinds), min_size=1, max_size=3, unique_by=lambda one: one[0])
    return st.one_of(
        kinds.map(lambda kind: f"array<{kind}>"),
        st.tuples(st.sampled_from(ATOMIC), kinds).map(lambda pair: f"map<{pair[0]}, {pair[1]}>"),
        fields.map(lambda found: f"STRUCT<{', '.join(name + sign + kind for name, sign, kind in found)}>"),
    )


KINDS = st.recursive(st.sampled_from(ATOMIC), nested, max_leaves=5)
COLUMNS = st.lists(st.tuples(NAMES, KINDS, st.sampled_from(["", " COMMENT 'of it'", ' comment "\u00e4"'])), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(COLUMNS)
def test_ddl_means_what_it_means_to_spark(active: None, columns: list[tuple[str, str, str]]) -> None:
    ddl = ", ".join(f"{name} {kind}{comment}" for name, kind, comment in {one[0]: one for one in columns}.values())
    assert text_without_spark(ddl) == schema_text(StructType.fromDDL(ddl))
