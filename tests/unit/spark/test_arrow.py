"""Entries to record batches and back."""

from __future__ import annotations

import datetime
from array import array
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DecimalType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from bk_core.errors import InvalidArgumentError, LogSchemaError
from bk_spark.arrow import (
    RAW_SCHEMA,
    PackedRun,
    arrow_batches,
    arrow_schema,
    pack_arrow,
    pack_raw,
    raw_batches,
    schema_of_text,
    schema_text,
)

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def run_of(packed: PackedRun, first: int = 0) -> Any:
    return SimpleNamespace(first_entry_id=first, count=packed.count, values=bytes(packed.payloads), offsets=memoryview(packed.offsets))


def rows(count: int, start: int = 0) -> pa.RecordBatch:
    ids = range(start, start + count)
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), pa.array([f"row {i}" for i in ids])], schema=SCHEMA)


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_rows_survive_packing(compression: str) -> None:
    given = [rows(1000, i * 1000) for i in range(5)] + [rows(3, 5000), rows(0)]
    packed = list(pack_arrow(given, SCHEMA, 4096, compression, run_bytes=20_000))
    assert len(packed) > 1 and sum(p.rows for p in packed) == 5003 and all(p.bytes == len(p.payloads) for p in packed)
    if compression == "none":
        assert max(b - a for p in packed for a, b in zip(p.offsets, p.offsets[1:], strict=False)) < 2 * 4096
    read = list(arrow_batches(SCHEMA, map(run_of, packed)))
    assert len(read) == 1 and read[0].schema == SCHEMA and read[0].column(0).to_pylist() == list(range(5003))
    assert len(list(arrow_batches(SCHEMA, map(run_of, packed), bytes_max=1))) > 1


def test_small_batches_share_an_entry_and_nothing_makes_none() -> None:
    assert [p.count for p in pack_arrow([rows(1, i) for i in range(50)], SCHEMA, 1 << 20)] == [1]
    assert list(pack_arrow([rows(0)], SCHEMA, 1 << 20)) == []


def test_an_entry_of_something_else_is_named() -> None:
    foreign = PackedRun(b"hello", array("q", [0, 5]), 1)
    with pytest.raises(LogSchemaError, match="entry 7"):
        list(arrow_batches(SCHEMA, [run_of(foreign, 7)]))


def test_raw_is_one_entry_per_value() -> None:
    sliced = pa.RecordBatch.from_arrays([pa.array([b"skip", b"a", b"", b"ccc"], pa.binary())], ["value"]).slice(1)
    text = pa.RecordBatch.from_arrays([pa.array(["x"])], ["value"])
    packed = list(pack_raw([sliced, text]))
    assert [list(p.offsets) for p in packed] == [[0, 1, 1, 4], [0, 1]]
    (batch, other) = raw_batches("log", 9, map(run_of, packed))
    assert batch.column("value").to_pylist() == [b"a", b"", b"ccc"] and other.column("ledgerId").to_pylist() == [9]
    assert batch.schema == arrow_schema(RAW_SCHEMA)
    with pytest.raises(InvalidArgumentError, match="null"):
        list(pack_raw([pa.RecordBatch.from_arrays([pa.array([None], pa.binary())], ["value"])]))
    with pytest.raises(InvalidArgumentError, match="named value"):
        list(pack_raw([rows(1)]))


def test_schemas_survive_the_ledger_list() -> None:
    schema = StructType(
        [
            StructField("a", IntegerType(), False),
            StructField("b", ArrayType(StringType(), False)),
            StructField("c", MapType(StringType(), DecimalType(20, 3))),
            StructField("d", TimestampType()),
            StructField("e", TimestampNTZType()),
            StructField("f", StructType([StructField("g", BinaryType(), False)])),
        ]
    )
    again = schema_of_text(schema_text(schema))
    assert [f.dataType.simpleString() for f in again.fields] == [f.dataType.simpleString() for f in schema.fields]
    assert to_arrow_schema(again, timezone="UTC") == arrow_schema(schema) == arrow_schema(again)
    assert all(f.nullable for f in again.fields)


def test_session_time_zones_become_utc() -> None:
    target = arrow_schema(StructType([StructField("at", TimestampType())]))
    moment = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    sent = pa.RecordBatch.from_arrays([pa.array([moment], pa.timestamp("us", "Europe/Berlin"))], ["at"])
    (packed,) = pack_arrow([sent], target, 1 << 20)
    (read,) = arrow_batches(target, [run_of(packed)])
    assert read.column(0).to_pylist() == [moment]
