"""Entries to record batches and back."""

from __future__ import annotations

import datetime
import random
from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructField, StructType, TimestampType

from bk_core.errors import EntryTooLargeError, InvalidArgumentError, LogEntryError, LogSchemaError, NullValueError
from bk_spark.entries.packing import PackedEntries, conform, nulls, pack_arrow, pack_raw
from bk_spark.entries.unpacking import arrow_batches, value_array
from bk_spark.options.grammar import ENTRY_BYTES_MAX
from bk_spark.schemas import arrow_schema

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])


def run_of(packed: PackedEntries, first: int = 0) -> Any:
    return SimpleNamespace(first_entry_id=first, count=packed.count, values=bytes(packed.payloads), offsets=memoryview(packed.offsets))


def rows(count: int, start: int = 0) -> pa.RecordBatch:
    ids = range(start, start + count)
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), pa.array([f"row {i}" for i in ids])], schema=SCHEMA)


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_rows_survive_packing(compression: str) -> None:
    batches = [rows(1000, i * 1000) for i in range(5)] + [rows(3, 5000), rows(0)]
    packed = list(pack_arrow(batches, SCHEMA, 4096, compression, run_bytes=20_000))
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
    foreign = PackedEntries(b"hello", array("q", [0, 5]), 1)
    with pytest.raises(LogEntryError, match="entry 7"):
        list(arrow_batches(SCHEMA, [run_of(foreign, 7)]))


def test_raw_is_one_entry_per_value() -> None:
    sliced = pa.RecordBatch.from_arrays([pa.array([b"skip", b"a", b"", b"ccc"], pa.binary())], ["value"]).slice(1)
    text = pa.RecordBatch.from_arrays([pa.array(["x"])], ["value"])
    packed = list(pack_raw([sliced, text]))
    assert [list(p.offsets) for p in packed] == [[0, 1, 1, 4], [0, 1]]
    assert [value_array(run_of(run)).to_pylist() for run in packed] == [[b"a", b"", b"ccc"], [b"x"]]
    assert value_array(run_of(packed[0])).type == pa.binary()
    with pytest.raises(InvalidArgumentError, match="not int64"):
        list(pack_raw([pa.RecordBatch.from_arrays([pa.array([1])], ["value"])]))
    with pytest.raises(InvalidArgumentError, match="named 'value'"):
        list(pack_raw([rows(1)]))


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_an_append_need_not_copy_a_run(compression: str) -> None:
    """It copies what others may write to, and takes the rest as it is."""
    values = pa.RecordBatch.from_arrays([pa.array([b"a", b"b"], pa.binary())], ["value"])
    runs = [*pack_arrow([rows(100)], SCHEMA, 600, compression), *pack_raw([values])]
    assert len(runs) == 2 and all(run.payloads.readonly for run in runs)


def test_a_null_value_is_named_by_its_row() -> None:
    first = pa.RecordBatch.from_arrays([pa.array([b"a", b""], pa.binary())], ["value"])
    second = pa.RecordBatch.from_arrays([pa.array([None, b"skip", b"b", None], pa.binary())], ["value"]).slice(1)
    with pytest.raises(NullValueError, match="row 4 of the task") as caught:
        list(pack_raw([first, second]))
    assert caught.value.context == {"row": 4}


def test_raw_runs_are_bounded() -> None:
    """A batch of Spark may have 64 MiB; acknowledgements should come in smaller steps."""
    values = [b"x" * (i % 7) for i in range(100)] + [b"y" * 50, b""]
    for kind in (pa.binary(), pa.large_binary()):
        packed = list(pack_raw([pa.RecordBatch.from_arrays([pa.array([b"skip", *values], kind)], ["value"]).slice(1)], run_bytes=20))
        assert max(p.bytes for p in packed if p.count > 1) <= 20 and all(p.full and p.rows_per_entry == 1 for p in packed)
        assert [value for run in packed for value in value_array(run_of(run)).to_pylist()] == values


def test_session_time_zones_become_utc() -> None:
    target = arrow_schema(StructType([StructField("at", TimestampType())]))
    moment = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    sent = pa.RecordBatch.from_arrays([pa.array([moment], pa.timestamp("us", "Europe/Berlin"))], ["at"])
    (packed,) = pack_arrow([sent], target, 1 << 20)
    (read,) = arrow_batches(target, [run_of(packed)])
    assert read.column(0).to_pylist() == [moment]


# --- rows per entry -------------------------------------------------------------------------------------------------


def wide_rows(sizes: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(range(len(sizes)), pa.int64()), pa.array(["x" * n for n in sizes])], schema=SCHEMA)


def rows_of_entries(run: PackedEntries) -> list[int]:
    values = pa.py_buffer(bytes(run.payloads))
    edges = zip(run.offsets, run.offsets[1:], strict=False)
    return [pa.ipc.read_record_batch(values.slice(a, b - a), SCHEMA).num_rows for a, b in edges]


def ranges_of(runs: list[PackedEntries]) -> int:
    """Return how many ranges a sink lists: runs join while the one before is full and the number of rows is the same."""
    pairs = zip(runs, runs[1:], strict=False)
    return len(runs) - sum(a.full and a.rows_per_entry == b.rows_per_entry for a, b in pairs)


@given(
    batches=st.lists(st.lists(st.integers(0, 900), max_size=40), max_size=8),
    entry_size=st.integers(1, 4000),
    run_bytes=st.integers(1, 9000),
)
def test_every_entry_but_the_last_of_a_run_has_the_same_rows(batches: list[list[int]], entry_size: int, run_bytes: int) -> None:
    """replication-protocol.md 10: rows are exact at every position."""
    sent = [wide_rows(sizes) for sizes in batches]
    runs = list(pack_arrow(sent, SCHEMA, entry_size, run_bytes=run_bytes))
    for run in runs:
        *most, last = rows_of_entries(run)
        assert set(most) <= {run.rows_per_entry} and 1 <= last <= run.rows_per_entry and run.rows == sum(most) + last
        assert run.full == (last == run.rows_per_entry)
    read = pa.Table.from_batches(arrow_batches(SCHEMA, map(run_of, runs)), schema=SCHEMA)
    assert read.equals(pa.Table.from_batches(sent, schema=SCHEMA).combine_chunks())


def test_remainders_are_carried_over_so_that_a_task_is_one_range() -> None:
    runs = list(pack_arrow([rows(997, i * 997) for i in range(30)], SCHEMA, 4096, run_bytes=50_000))
    assert len(runs) > 5 and ranges_of(runs) == 1 and all(run.full for run in runs[:-1])


def test_a_batch_is_let_go_once_its_rows_are_in_entries() -> None:
    """A run holds several batches' rows; to hold the batches as well would be most of a worker's memory."""
    held: list[int] = []

    def sent() -> Iterator[pa.RecordBatch]:
        for i in range(40):
            held.append(pa.total_allocated_bytes() - before)
            yield rows(10_000, i * 10_000)

    one = rows(10_000).nbytes
    before = pa.total_allocated_bytes()
    runs = sum(1 for _ in pack_arrow(sent(), SCHEMA, 4096, run_bytes=10 * one))
    assert runs > 3 and max(held) < 3 * one


def test_entries_that_take_more_than_their_rows_still_fit_their_run() -> None:
    """Entries of one row each are mostly what Arrow puts around it, so a run ends before its memory does."""
    runs = list(pack_arrow([rows(3000)], SCHEMA, 1, run_bytes=50_000))
    assert sum(run.count for run in runs) == 3000 and len(runs) > 3 and ranges_of(runs) == 1


def test_growing_rows_begin_another_range_before_entries_grow_too_far() -> None:
    runs = list(pack_arrow([wide_rows([10] * 1000), wide_rows([5000] * 50)], SCHEMA, 4096))
    assert max(b - a for run in runs for a, b in zip(run.offsets, run.offsets[1:], strict=False)) < 5 * 4096
    assert ranges_of(runs) <= 3 and runs[-1].rows_per_entry < runs[0].rows_per_entry


def test_shrinking_rows_fill_entries_again() -> None:
    runs = list(pack_arrow([wide_rows([5000]), wide_rows([10] * 50_000)], SCHEMA, 4096))
    assert ranges_of(runs) == 2 and sum(run.count for run in runs) < 500


def test_single_large_rows_among_small_ones_cost_few_ranges() -> None:
    sizes = [100_000 if i % 1000 == 0 else 10 for i in range(10_000)]
    runs = list(pack_arrow([wide_rows(sizes)], SCHEMA, 4096))
    assert ranges_of(runs) <= 2 * 10 + 1 and sum(run.count for run in runs) < 1000


def test_a_row_that_no_bookie_takes_is_refused_by_its_number() -> None:
    large = wide_rows([10, 10, ENTRY_BYTES_MAX, 10])
    with pytest.raises(EntryTooLargeError, match="row 5 of the task") as caught:
        list(pack_arrow([wide_rows([10] * 3), large], SCHEMA, 1 << 18))
    assert caught.value.context["row"] == 5
    assert sum(run.rows for run in pack_arrow([large], SCHEMA, 1 << 18, "zstd")) == 4  # compressed it fits
    assert sum(run.rows for run in pack_arrow([wide_rows([ENTRY_BYTES_MAX - 2000])], SCHEMA, 1 << 18)) == 1
    with pytest.raises(EntryTooLargeError, match="row 1 of the task"):
        list(pack_raw([pa.RecordBatch.from_arrays([pa.array([b"", b"x" * (ENTRY_BYTES_MAX + 1)])], ["value"])]))


@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_an_entry_of_many_rows_that_no_bookie_takes_is_halved(compression: str) -> None:
    """The largest ``entrySize`` that there is: what Arrow adds to columns of just that size is too much. Random bytes do not shrink."""
    noise = random.Random(7).randbytes(4_000_000)
    sent = [pa.RecordBatch.from_arrays([pa.array([noise[i : i + 100] for i in range(0, len(noise), 100)])], ["v"])] * 4
    runs = list(pack_arrow(sent, sent[0].schema, ENTRY_BYTES_MAX, compression))
    assert max(b - a for run in runs for a, b in zip(run.offsets, run.offsets[1:], strict=False)) <= ENTRY_BYTES_MAX
    assert sum(run.rows for run in runs) == 160_000 and runs[0].count and ranges_of(runs) == 1
    if compression != "zstd":  # which makes room by shrinking the offsets
        assert 0.4 < 104 * runs[0].rows_per_entry / ENTRY_BYTES_MAX < 0.6
    read = pa.Table.from_batches(arrow_batches(sent[0].schema, map(run_of, runs)))
    assert read.combine_chunks().equals(pa.Table.from_batches(sent).combine_chunks())


def test_a_row_that_is_too_large_names_its_column_and_what_to_do() -> None:
    large = wide_rows([ENTRY_BYTES_MAX])
    with pytest.raises(
        EntryTooLargeError, match=r"bytes, \d+ of them in column 'text'; .* a row is never divided: .*\"compression\", \"zstd\""
    ):
        list(pack_arrow([large], SCHEMA, 1 << 18))
    noise = pa.RecordBatch.from_arrays([pa.array([random.Random(7).randbytes(ENTRY_BYTES_MAX)])], ["v"])
    with pytest.raises(EntryTooLargeError, match="in column 'v'; .* never divided: divide it into several rows, or keep"):
        list(pack_arrow([noise], noise.schema, 1 << 18, "zstd"))


def test_rows_without_weight_are_packed_too() -> None:
    schema = pa.schema([("nothing", pa.null())])
    (run,) = pack_arrow([pa.RecordBatch.from_arrays([pa.nulls(5000)], schema=schema)] * 3, schema, 4096)
    assert (run.rows, run.count) == (15_000, 1)


# --- reading parts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [["id", "text"], ["text"]])
@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_a_range_begins_and_ends_inside_entries(columns: list[str], compression: str) -> None:
    (run,) = pack_arrow([rows(100)], SCHEMA, 600, compression)
    k = run.rows_per_entry
    assert run.count > 3 and not run.full
    wanted = pa.schema([SCHEMA.field(name) for name in columns])
    for skip, take in ((0, None), (3, None), (0, 2), (k - 1, 1), (k, 0)):
        read = pa.Table.from_batches(arrow_batches(wanted, [run_of(run)], skip, take, stored=SCHEMA), schema=wanted)
        end = 100 if take is None else min(100, (run.count - 1) * k + take)
        assert read.column("text").to_pylist() == [f"row {i}" for i in range(skip, end)]
    one = PackedEntries(run.payloads[: run.offsets[1]], run.offsets[:2], k, k)
    (both,) = arrow_batches(wanted, [run_of(one)], 2, 5, stored=SCHEMA)
    assert both.column("text").to_pylist() == ["row 2", "row 3", "row 4"]


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_older_entries_have_nulls_in_columns_that_came_later(compression: str) -> None:
    newer = pa.schema([*SCHEMA, ("extra", pa.list_(pa.int32())), ("more", pa.string())])
    (run,) = pack_arrow([rows(3)], SCHEMA, 1 << 20, compression)
    (read,) = arrow_batches(newer, [run_of(run)], stored=SCHEMA)
    assert read.schema == newer and read.column("extra").to_pylist() == [None] * 3 and read.column("id").to_pylist() == [0, 1, 2]
    only = pa.schema([newer.field("more"), newer.field("id")])
    (read,) = arrow_batches(only, [run_of(run)], stored=SCHEMA)
    assert read.to_pydict() == {"more": [None] * 3, "id": [0, 1, 2]}
    (read,) = arrow_batches(pa.schema([newer.field("more")]), [run_of(run)], stored=SCHEMA)
    assert read.to_pydict() == {"more": [None] * 3}


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_a_foreign_entry_is_named_also_when_columns_are_chosen(compression: str) -> None:
    (run,) = pack_arrow([wide_rows([200] * 100)], SCHEMA, 2000, compression)
    broken = PackedEntries(bytes(run.payloads[: run.offsets[2]]) + b"\x07" * 64, array("q", [*run.offsets[:3], run.offsets[2] + 64]), 0)
    for wanted in (SCHEMA, pa.schema([SCHEMA.field("id")])):
        with pytest.raises(LogEntryError, match="entry 12"):
            list(arrow_batches(wanted, [run_of(broken, 10)], stored=SCHEMA))
    cut = PackedEntries(run.payloads[: run.offsets[1]], array("q", [0, run.offsets[1], run.offsets[1]]), 0)
    with pytest.raises(LogEntryError, match="entry 11"):
        list(arrow_batches(pa.schema([SCHEMA.field("id")]), [run_of(cut, 10)], stored=SCHEMA))


def test_batches_are_bounded_by_bytes() -> None:
    runs = list(pack_arrow([wide_rows([1000] * 1000)], SCHEMA, 4096, "zstd"))
    read = list(arrow_batches(SCHEMA, map(run_of, runs), bytes_max=50_000))
    assert len(read) > 15 and max(batch.nbytes for batch in read) < 60_000


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("columns", [["id"], ["text"], ["id", "text"], ["gone"], ["gone", "list"]])
def test_batches_of_some_columns_are_as_large_as_those_of_all(columns: list[str], compression: str) -> None:
    """Bytes are those of the columns that are read, also of columns that the entries do not have, which else would all be one batch."""
    (run,) = pack_arrow([wide_rows([50] * 20_000)], SCHEMA, 2000, compression)
    newer = pa.schema([*SCHEMA, ("gone", pa.int64()), ("list", pa.list_(pa.int64()))])
    wanted = pa.schema([newer.field(name) for name in columns])
    read = list(arrow_batches(wanted, [run_of(run)], stored=SCHEMA, bytes_max=20_000))
    assert sum(batch.num_rows for batch in read) == 20_000 and len(read) > 5
    assert all(15_000 < batch.nbytes < 25_000 for batch in read[:-1])


def test_columns_of_entries_that_are_not_compressed_are_not_copied() -> None:
    (run,) = pack_arrow([rows(100)], SCHEMA, 600)
    entries = run_of(run)
    begin = pa.py_buffer(entries.values).address
    for wanted in (SCHEMA, pa.schema([SCHEMA.field("text")])):
        for batch in arrow_batches(wanted, [entries], stored=SCHEMA, bytes_max=1):
            assert begin <= batch.column("text").buffers()[2].address < begin + len(entries.values)


# --- what Spark sends -----------------------------------------------------------------------------------------------


def test_columns_are_found_by_name_and_missing_ones_are_null() -> None:
    given = pa.RecordBatch.from_arrays([pa.array(["a"], pa.large_string())], ["text"])
    assert conform(given, SCHEMA).to_pydict() == {"id": [None], "text": ["a"]}
    with pytest.raises(LogSchemaError, match="columns 'other' are written"):
        conform(pa.RecordBatch.from_arrays([pa.array([1])], ["other"]), SCHEMA)
    with pytest.raises(LogSchemaError, match="column 'id' is string"):
        conform(pa.RecordBatch.from_arrays([pa.array(["x"])], ["id"]), SCHEMA)


@pytest.mark.parametrize("offset", [0, 1, 9])
def test_nested_columns_change_only_in_what_may_be_null(offset: int) -> None:
    """Arrow's cast refuses structs and maps that differ in nullability, and Spark sends what the DataFrame says."""

    def kind(may: bool) -> pa.DataType:
        inner = pa.struct([pa.field("n", pa.int64(), may), pa.field("at", pa.timestamp("us", "UTC" if may else "Asia/Tokyo"), may)])
        mapped = pa.map_(pa.field("key", pa.string(), False), pa.field("value", inner, may))
        return pa.struct([pa.field("m", mapped, may), pa.field("l", pa.list_(pa.field("element", inner, may)), may)])

    moment = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    values: list[Any] = [
        None
        if i % 5 == 1
        else {"m": [(f"k{j}", {"n": i * j, "at": moment}) for j in range(i % 3)], "l": [{"n": i, "at": moment}] * (i % 4)}
        for i in range(20)
    ]
    sent = pa.RecordBatch.from_arrays([pa.array(values, kind(False))], ["s"]).slice(offset)
    target = pa.schema([("s", kind(True))])
    (packed,) = pack_arrow([sent], target, 1 << 20)
    (read,) = arrow_batches(target, [run_of(packed)])
    read.validate(full=True)
    assert read.schema == target and read.column(0).to_pylist() == values[offset:]


NESTED = [
    pa.list_(pa.field("element", pa.string())),
    pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int64())))),
    pa.map_(pa.string(), pa.list_(pa.field("element", pa.binary()))),
    pa.struct([("a", pa.list_(pa.field("element", pa.string()))), ("b", pa.int8())]),
]


@pytest.mark.parametrize("kind", NESTED, ids=str)
@pytest.mark.parametrize("count", [0, 1, 7, 9])
def test_nulls_of_nested_types_are_sound(kind: pa.DataType, count: int) -> None:
    made = nulls(count, kind)
    made.validate(full=True)
    assert made.equals(pa.nulls(count, kind)) and made.null_count == count


@pytest.mark.parametrize("kind", NESTED, ids=str)
def test_a_missing_nested_column_does_not_grow_with_the_batch(kind: pa.DataType) -> None:
    """A slice of Arrow's own nulls is written with the offsets of all of them, so that each entry carried those of its whole batch."""
    schema = pa.schema([("id", pa.int64()), ("more", kind)])
    given = pa.record_batch({"id": range(100_000)})
    (whole,) = pa.Table.from_batches([given]).to_batches()
    size = sum(run.bytes for run in pack_arrow([whole], schema, 64 << 10))
    assert size < 100_000 * (8 + 4 + 4 + 1)
