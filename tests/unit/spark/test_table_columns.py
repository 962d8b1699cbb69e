"""Columns of logs as Arrow tables without Spark: types of other libraries, types that widen, and the schema that a log is made with."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pandas
import polars
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bk_core
from bk_core.client.log.lists import create_log
from bk_core.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    LogSchemaError,
)
from bk_core.protocol.log.segments import LogProperties
from bk_spark.arrow.schemas import given_schema, log_schema, widens
from tests.unit.spark.conftest import World

Client = bk_core.BookKeeper


@pytest.fixture
def client(world: World) -> Client:
    found: Client = world.client
    return found


# --- columns of other libraries ------------------------------------------------------------------------------------------------


def marked(kind: pa.DataType) -> pa.Table:
    """A column with what Parquet's reader notes of it."""
    return pa.table({"a": pa.array(["x"], kind)}, pa.schema([pa.field("a", kind, metadata={"PARQUET:field_id": "1"})]))


@pytest.mark.parametrize(
    "rows",
    [
        polars.DataFrame({"a": ["x"]}, schema={"a": polars.Categorical}),
        polars.DataFrame({"a": ["x"]}, schema={"a": polars.Enum(["x", "y"])}),
        marked(pa.string()),
        marked(pa.large_string()),
    ],
    ids=["categorical", "enum", "string with metadata", "large string with metadata"],
)
def test_metadata_and_dictionaries_of_other_libraries_are_no_part_of_a_log(client: Client, rows: object) -> None:
    """Before the first write, behind it, and as the columns that a log is made with."""
    log = client.create_log("new", entry_format="arrow")
    log.write(rows)
    log.write(rows)
    assert log.to_arrow() == pa.table({"a": ["x", "x"]})
    if isinstance(rows, pa.Table):
        assert client.create_log("made", schema=rows.schema).arrow_schema() == pa.schema([("a", pa.string())])


def test_a_name_with_a_nul_is_refused_and_not_cut(client: Client) -> None:
    with pytest.raises(LogSchemaError, match=r"'a\\x00b' of the columns has a NUL character"):
        client.create_log("new", entry_format="arrow").write(pa.table({"a\0b": [1]}))


@pytest.mark.parametrize("rows", [pandas.DataFrame({"a": [1, "x"]}), polars.DataFrame({"a": [1]}, schema={"a": polars.Int128})])
def test_a_table_that_gives_no_columns_says_why(client: Client, rows: object) -> None:
    with pytest.raises(ArgumentTypeError, match="of type DataFrame, cannot be had as Arrow columns: (Could not|Invalid or)"):
        client.create_log("new", entry_format="arrow").write(rows)


def test_an_index_of_pandas_without_a_name_is_no_column(client: Client) -> None:
    """One with a name is."""
    frame = pandas.DataFrame({"id": [1, 2], "dest": ["a", "b"]}, index=["x", "y"])
    log = client.create_log("flights", entry_format="arrow")
    log.write(frame)
    log.write(frame.set_index(["id", "dest"]).reset_index(level="id"))
    log.write(frame.set_index("dest"))
    assert log.to_arrow().to_pydict() == {"id": [1, 2] * 3, "dest": ["a", "b"] * 3}
    levels = pandas.MultiIndex.from_tuples([(1, "x"), (2, "y")])
    log.write(pandas.DataFrame({"id": [3, 4]}, index=levels))
    assert log.to_arrow(columns=["id"]).column("id").to_pylist()[-2:] == [3, 4]
    named = pandas.DataFrame({"__index_level_0__": [7]}, index=["x"])
    assert client.create_log("own", entry_format="arrow").write(named.reset_index(drop=True)).rows == 1


# --- columns ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.binary(16), pa.binary()),
        (pa.uint8(), pa.int16()),
        (pa.uint32(), pa.int64()),
        (pa.float16(), pa.float32()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.time32("ms"), pa.time64("ns")),
        (pa.duration("ns"), pa.duration("us")),
        (pa.decimal256(20, 3), pa.decimal128(20, 3)),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.large_list(pa.large_string()), pa.list_(pa.field("element", pa.string()))),
        (pa.list_(pa.int32(), 3), pa.list_(pa.field("element", pa.int32()))),
        (pa.map_(pa.large_string(), pa.uint16()), pa.map_(pa.string(), pa.int32())),
        (pa.struct([pa.field("a", pa.int8(), nullable=False)]), pa.struct([("a", pa.int8())])),
    ],
)
def test_types_of_other_libraries_are_taken_for_those_of_logs(client: Client, given: pa.DataType, kept: pa.DataType) -> None:
    assert log_schema(pa.schema([pa.field("x", given, nullable=False)])) == pa.schema([("x", kept)])
    log = client.create_log("flights", schema=pa.schema([("x", given)]))
    assert log.arrow_schema() == pa.schema([("x", kept)])
    log.write(pa.table({"x": pa.nulls(3, given)}))
    assert log.to_arrow().to_pydict() == {"x": [None] * 3}


def test_values_survive_the_change_of_their_type(client: Client) -> None:
    log = client.create_log("flights", entry_format="arrow")
    moment = datetime(2026, 3, 1, 12, 30, 15, 123456, UTC)
    table = pa.table(
        {
            "at": pa.array([moment, None], pa.timestamp("ns", "Asia/Tokyo")),
            "cost": pa.array([Decimal("1.25"), None], pa.decimal256(10, 2)),
            "tags": pa.array([["a", None], None], pa.large_list(pa.string_view())),
            "kind": pa.array(["x", None]).dictionary_encode(),
            "box": pa.array([{"a": [1, None]}, None], pa.struct([("a", pa.large_list(pa.uint8()))])),
        }
    )
    log.write(table)
    assert log.to_arrow().to_pylist() == [
        {"at": moment, "cost": Decimal("1.25"), "tags": ["a", None], "kind": "x", "box": {"a": [1, None]}},
        dict.fromkeys(table.column_names),
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pa.null(),
        pa.uint64(),
        pa.month_day_nano_interval(),
        pa.decimal256(39, 0),
        pa.list_(pa.null()),
        pa.list_view(pa.int64()),
        pa.large_list_view(pa.int64()),
    ],
)
def test_types_that_logs_do_not_have_are_refused(client: Client, kind: pa.DataType) -> None:
    with pytest.raises(LogSchemaError, match="column 'x"):
        client.create_log("flights", schema=pa.schema([("x", kind)]))
    assert client.logs() == []


def test_a_column_of_nothing_but_null_fits_any(client: Client) -> None:
    log = client.create_log("flights", schema="id BIGINT, tags ARRAY<STRING>")
    log.write(pa.table({"id": [1], "tags": pa.nulls(1)}))
    assert log.to_arrow().to_pydict() == {"id": [1], "tags": [None]}


NUMBERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.decimal128(5, 2), pa.decimal128(20, 0)]


@given(st.sampled_from(NUMBERS), st.sampled_from(NUMBERS))
def test_types_widen_as_sparks_sink_widens_them(given: pa.DataType, stored: pa.DataType) -> None:
    from pyspark.sql.pandas.types import from_arrow_type

    from bk_spark.sink.schema import widens as in_spark

    assert widens(given, stored) is in_spark(from_arrow_type(given), from_arrow_type(stored))
    nested = [pa.list_(pa.field("element", kind)) for kind in (given, stored)]
    assert widens(nested[0], nested[1]) is widens(given, stored)


def test_what_rows_widen_to_is_what_they_are_cast_to(client: Client) -> None:
    for number, (kind, stored) in enumerate((a, b) for a in NUMBERS for b in NUMBERS if widens(a, b)):
        log = client.create_log(f"log{number}", schema=pa.schema([("x", stored)]))
        log.write(pa.table({"x": pa.array([7, None], kind)}))
        assert log.to_arrow().to_pydict() == {"x": [7, None]}
    assert given_schema(pa.schema([("x", pa.null())])) == pa.schema([("x", pa.null())])


# --- create_log(schema=...) ---------------------------------------------------------------------------------------------


def test_a_schema_makes_a_log_of_arrow_entries(client: Client) -> None:
    assert client.create_log("a", schema="id BIGINT").info.properties.entry_format == "arrow"
    assert client.create_log("b").info.properties.entry_format == "raw"
    with pytest.raises(InvalidArgumentError, match="a raw log has no columns"):
        client.create_log("c", schema="id BIGINT", entry_format="raw")
    with pytest.raises(ArgumentTypeError, match="schema must be DDL"):
        client.create_log("c", schema=5)  # type: ignore[arg-type]
    with pytest.raises(LogSchemaError):
        client.create_log("c", schema="/////damaged")
    stored = client.log("a").info.properties.schema
    assert client.create_log("d", schema=stored).arrow_schema() == client.log("a").arrow_schema()
    with pytest.raises(InvalidArgumentError, match="the schema of a log changes by writing more columns"):
        client.log("a").set(schema="id INT")
    assert client.logs() == ["a", "b", "d"]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("id BIGINT, ID BIGINT", "the columns 'id' and 'ID' differ in case alone, and are one to Spark: rename one of them"),
        ("s STRUCT<x: INT, X: INT>", "the fields of struct 's' 'x' and 'X' differ in case alone"),
        ("l ARRAY<STRUCT<x: INT, X: INT>>", r"the fields of struct 'l\.element'"),
        ("m MAP<STRING, STRUCT<x: INT, X: INT>>", r"the fields of struct 'm\.value'"),
        (pa.schema([("stra\u00dfe", pa.int8()), ("STRASSE", pa.int8())]), "differ in case alone"),
        (pa.schema([("id", pa.int8()), ("id", pa.int8())]), "the columns 'id' and 'id' are of one name: rename one of them"),
        (pa.schema([("s", pa.struct([("x", pa.int8()), ("x", pa.int8())]))]), "the fields of struct 's' 'x' and 'x' are of one name"),
    ],
)
def test_columns_that_are_one_to_spark_are_refused_before_anything_is_done(
    world: World, client: Client, schema: str | pa.Schema, said: str
) -> None:
    with pytest.raises(LogSchemaError, match=said):
        client.create_log("flights", schema=schema)
    assert client.logs() == []
    if isinstance(schema, pa.Schema) and len(set(schema.names)) == len(schema):
        log = client.create_log("flights", entry_format="arrow")
        with pytest.raises(LogSchemaError, match=said):
            log.write(schema.empty_table())
        assert log.info.properties.schema == "" and world.ledgers() == set()


def test_a_log_of_sparks_that_tells_case_apart_is_read_written_and_copied(world: World, client: Client) -> None:
    """A session with ``spark.sql.caseSensitive`` made it."""
    world.write({"id": [1], "ID": [2]}, schema="id long, ID long", log="flights")
    log = client.log("flights")
    log.write(pa.table({"ID": [4], "id": [3]}))
    assert log.to_arrow().to_pydict() == {"id": [1, 3], "ID": [2, 4]}
    assert log.to_arrow(columns=["ID"]).to_pydict() == {"ID": [2, 4]}
    copy = client.create_log("copy", schema=log.info.properties.schema)
    copy.write(log)
    assert copy.to_arrow() == log.to_arrow()


def test_a_schema_beside_raw_entries_is_refused_by_every_way(client: Client) -> None:
    schema = client.create_log("a", schema="id BIGINT").info.properties.schema
    with pytest.raises(InvalidArgumentError, match="a raw log has no columns"):
        create_log(client, "b", LogProperties(entry_format="raw", schema=schema))


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        (" ", "character 0: there must be the name of a column, not the end"),
        ("id", "character 2: there must be a type, not the end"),
        ("id BIGIN", "character 3: no column can be made of type 'BIGIN'; did you mean 'BIGINT'"),
        ("id VARCHAR(5)", "no column can be made of type 'VARCHAR'"),
        ("id INT NOT NULL", "character 7: all columns of a log are nullable; leave NOT NULL out"),
        ("id INT,", "character 7: there must be the name of a column"),
        ("id INT name STRING", "character 7: there must be a comma or the end, not 'name STRING'"),
        ("a ARRAY<INT", "there must be '>'"),
        ("a MAP<INT>", "there must be ','"),
        ("a DECIMAL(39)", "DECIMAL has 1 to 38 digits"),
        ("a DECIMAL(5,6)", "DECIMAL has 1 to 38 digits"),
        ("a STRUCT<x: INT, x: INT>", "two fields of a STRUCT have one name"),
        ("a INT, a STRING", "more than one column is named 'a'"),
        ("a INT; b INT", "character 5: there must be a name, a type or one of"),
        ("a " + "ARRAY<" * 70 + "INT" + ">" * 70, "nested more than 60 deep"),
    ],
)
def test_ddl_that_is_none_is_refused_with_its_place(client: Client, ddl: str, said: str) -> None:
    with pytest.raises(LogSchemaError, match=said.replace("(", r"\(")):
        client.create_log("flights", schema=ddl)
