"""The reads of a task by its ranges, against bookies on sockets in this process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StringType, StructField, StructType

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.errors import InvalidArgumentError, LogDataLossError, LogSchemaError
from bk_core.metadata import open_store
from bk_core.protocol.limits import Limits
from bk_spark.entries.packing import pack_arrow
from bk_spark.entries.ranges import EntryRange
from bk_spark.options.table import Options, parse_options
from bk_spark.schemas import arrow_schema, schema_text
from bk_spark.source import partitions
from bk_spark.source.columns import arrow_columns, chosen, raw_schema
from bk_spark.source.partitions import BookKeeperPartition, ledger_end, partitions_of, range_until, read_partition
from bk_spark.source.snapshot import check_read_schema, read_ranges

NEVER = Limits(explicit_lac_ns=3_600_000_000_000)
OPTIONS = Options("memory://")
ROWS = StructType([StructField("id", LongType()), StructField("text", StringType())])


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[bk_core.BookKeeper]:
    uri = f"memory://{tmp_path.name}"
    store = open_store(uri)
    store.initialize_cluster()
    bookies = [EmbeddedBookie(tmp_path / str(i), "127.0.0.1", 0, store).start() for i in range(3)]
    with bk_core.connect(uri, limits=NEVER) as bk:
        for name in ("client_for", "reading_client"):
            monkeypatch.setattr(partitions, name, lambda *_: bk)
        yield bk
    for bookie in bookies:
        bookie.close()
    store.close()


def ledger_range(client: Any, options: Options, ledger_id: int) -> EntryRange | None:
    return range_until(ledger_id, ledger_end(client, options, ledger_id))


def table(schema: StructType, raw: bool, *ranges: EntryRange, options: Options = OPTIONS, stored: dict[Any, str] | None = None) -> pa.Table:
    batches = list(read_partition(options, arrow_schema(schema), raw, BookKeeperPartition(ranges, stored)))
    return pa.Table.from_batches(batches, schema=arrow_schema(schema))


def values(r: EntryRange) -> list[Any]:
    return list(table(raw_schema(False, False), True, r).column("value").to_pylist())


def test_what_the_driver_knows_to_be_acknowledged_is_read_whatever_the_lac(client: bk_core.BookKeeper) -> None:
    """RD-1, LC-2: the task's handle has never heard of the last entry of a writer that fell silent."""
    ledger = client.create_ledger()
    assert ledger.append_many([b"a", b"b", b"c"]) == 2
    with client.open_ledger(ledger.ledger_id) as handle:
        assert handle.last_add_confirmed < 2
    assert values(EntryRange(ledger.ledger_id, 0, 2, 3)) == [b"a", b"b", b"c"]
    ledger.close()


def test_a_range_beyond_the_end_of_a_closed_ledger_is_a_loss(client: bk_core.BookKeeper) -> None:
    """RD-1: said as what it is, and nothing of the range is handed out as if it were all."""
    with client.create_ledger() as ledger:
        ledger.append_many([b"a", b"b", b"c"])
    with pytest.raises(LogDataLossError, match=rf"entries 3\.\.7 of ledger {ledger.ledger_id} are lost: .* closed at entry 2"):
        values(EntryRange(ledger.ledger_id, 1, 7, 7))


def test_a_deleted_ledger_is_a_loss_or_left_out(client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        ledger.append(b"a")
    gone = EntryRange(ledger.ledger_id, 0, 0, 1, log="flights")
    client.delete_ledger(ledger.ledger_id)
    with pytest.raises(
        LogDataLossError, match="'flights' are lost: .* temporary view reads what was there at its first use.* failOnDataLoss=false"
    ):
        values(gone)
    lossy = replace(OPTIONS, fail_on_data_loss=False)
    assert table(raw_schema(False, False), True, gone, options=lossy).num_rows == 0


def test_raw_columns(client: bk_core.BookKeeper) -> None:
    """Two commits that touch are read as one, and keep their own times; offsets go on over them."""
    with client.create_ledger() as ledger:
        ledger.append_many([b"a", b"", b"ccc", b"dd"])
    first = EntryRange(ledger.ledger_id, 0, 1, 1, rows=2, rows_per_entry=1, log="flights", offset=70, committed_at_ms=1000)
    second = EntryRange(ledger.ledger_id, 2, 3, 5, rows=2, rows_per_entry=1, log="flights", offset=72)
    got = table(raw_schema(True, True), True, first, second)
    assert got.column("value").to_pylist() == [b"a", b"", b"ccc", b"dd"] and got.column("length").to_pylist() == [1, 0, 3, 2]
    assert got.column("entryId").to_pylist() == [0, 1, 2, 3] and got.column("offset").to_pylist() == [70, 71, 72, 73]
    assert got.column("timestamp").cast(pa.int64()).to_pylist() == [1_000_000, 1_000_000, None, None]
    assert set(got.column("log").to_pylist()) == {"flights"} and set(got.column("ledgerId").to_pylist()) == {ledger.ledger_id}
    assert got.column("key").null_count == got.column("headers").null_count == 4
    alone = ledger_range(client, OPTIONS, ledger.ledger_id)
    assert alone is not None and alone.rows == 4 and alone.bytes == 6
    assert table(raw_schema(True, False), True, alone).column("offset").null_count == 4
    some = chosen(raw_schema(True, False), ("offset", "value"))
    assert table(some, True, second).column_names == ["offset", "value"]


def packed(client: bk_core.BookKeeper, rows: int, per_entry: int, schema: StructType = ROWS) -> EntryRange:
    """``rows`` rows in a ledger of their own."""
    data = {"id": list(range(rows)), "text": [f"row {i}" for i in range(rows)], "more": [str(-i) for i in range(rows)]}
    whole = pa.Table.from_pydict({name: data[name] for name in schema.names}, schema=arrow_schema(schema))
    size = 0
    with client.create_ledger() as ledger:
        for batch in whole.to_batches(max_chunksize=per_entry):
            for run in pack_arrow([batch], whole.schema, 1 << 20):
                ledger.append(bytes(run.payloads))
                size += run.bytes
    last = -(-rows // per_entry) - 1
    return EntryRange(ledger.ledger_id, 0, last, size, rows=rows, rows_per_entry=per_entry, log="flights", offset=500, committed_at_ms=7)


@pytest.mark.parametrize(("start", "end"), [(0, 25), (3, 25), (12, 19), (13, 14), (20, 25), (0, 10)])
def test_rows_inside_entries(client: bk_core.BookKeeper, start: int, end: int) -> None:
    """skip_rows and last_rows, with and without the columns that say where a row comes from."""
    part = packed(client, 25, 10).part(start, end)
    stored = {("flights", 0): schema_text(ROWS)}
    assert table(ROWS, False, part, stored=stored).column("id").to_pylist() == list(range(start, end))
    more = replace(OPTIONS, include_metadata=True)
    got = table(arrow_columns(ROWS, True), False, part, options=more, stored=stored)
    assert got.column("_offset").to_pylist() == [500 + i for i in range(start, end)]
    assert got.column("_entryId").to_pylist() == [i // 10 for i in range(start, end)]
    assert set(got.column("_timestamp").cast(pa.int64()).to_pylist()) == {7000} and set(got.column("_log").to_pylist()) == {"flights"}
    only = chosen(arrow_columns(ROWS, True), ("_offset",))
    assert table(only, False, part, options=more, stored=stored).column("_offset").to_pylist() == [500 + i for i in range(start, end)]


def test_lists_that_do_not_know_rows_per_entry(client: bk_core.BookKeeper) -> None:
    old = replace(packed(client, 25, 10), rows=None, rows_per_entry=0, offset=None)
    more = replace(OPTIONS, include_metadata=True)
    got = table(arrow_columns(ROWS, True), False, old, options=more, stored={("flights", 0): schema_text(ROWS)})
    assert got.column("_entryId").to_pylist() == [i // 10 for i in range(25)] and got.column("_offset").null_count == 25


def test_entries_are_read_with_the_columns_they_were_written_with(client: bk_core.BookKeeper) -> None:
    later = StructType([*ROWS.fields, StructField("more", StringType())])
    stored = {("flights", 0): schema_text(ROWS), ("flights", 1): schema_text(later)}
    old, new = packed(client, 3, 2), replace(packed(client, 2, 2, later), schema_id=1)
    assert table(later, False, old, new, stored=stored).column("more").to_pylist() == [None, None, None, "0", "-1"]
    assert table(chosen(later, ("text",)), False, old, new, stored=stored).column("text").to_pylist()[2:] == ["row 2", "row 0", "row 1"]


def test_the_tasks_of_one_ledger_start_at_different_bookies(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    with client.create_ledger(ensemble_size=3, write_quorum_size=3) as ledger:
        ledger.append_many([b"x" * 100] * 30)
    whole = ledger_range(client, OPTIONS, ledger.ledger_id)
    assert whole is not None
    tasks = partitions_of(client, replace(OPTIONS, max_bytes_per_partition=1000), {}, [whole])
    assert len(tasks) == 3
    asked: list[str] = []
    note = client._session.note_read
    monkeypatch.setattr(client._session, "note_read", lambda bookie, *rest: (asked.append(bookie), note(bookie, *rest)))
    firsts = []
    for task in tasks:
        asked.clear()
        assert sum(b.num_rows for b in read_partition(OPTIONS, arrow_schema(raw_schema(True, False)), True, task)) == 10
        firsts.append(asked[0])
        assert set(asked) == {firsts[-1]}
    assert len(set(firsts)) == 3


def test_limits_reach_the_planner(client: bk_core.BookKeeper) -> None:
    with client.create_ledger() as ledger:
        ledger.append_many([b"x" * 10] * 30)
    whole = ledger_range(client, OPTIONS, ledger.ledger_id)
    assert whole is not None

    def tasks(**limits: Any) -> int:
        return len(partitions_of(client, replace(OPTIONS, **limits), {}, [whole]))

    assert tasks() == 1 and tasks(min_partitions=4) == 4 and tasks(max_records_per_partition=7) == 5
    assert tasks(max_bytes_per_partition=100) == 3


def test_no_plan_is_no_row() -> None:
    assert list(read_partition(OPTIONS, arrow_schema(raw_schema(True, False)), True, InputPartition(None))) == []


def test_open_ledgers_are_left_alone_unless_the_word_is_written(client: bk_core.BookKeeper) -> None:
    ledger = client.create_ledger()
    for _ in range(5):
        ledger.append(b"ab")
    assert ledger_range(client, OPTIONS, ledger.ledger_id) is None
    lac = ledger_range(client, replace(OPTIONS, open_ledgers="lac"), ledger.ledger_id)
    assert lac is not None and lac.last == 3 and lac.bytes == 8
    ledger.append(b"ab")  # nobody fenced it
    recovered = ledger_range(client, replace(OPTIONS, open_ledgers="recover"), ledger.ledger_id)
    assert recovered is not None and recovered.last == 5
    with pytest.raises(bk_core.BkError):
        ledger.append(b"late")


def test_a_read_that_leaves_open_ledgers_out_says_so(client: bk_core.BookKeeper, caplog: pytest.LogCaptureFixture) -> None:
    """Else it gives too few rows, or none, without a word. Who writes ``openLedgers`` knows."""
    ledger = client.create_ledger()
    for _ in range(3):
        ledger.append(b"ab")
    with client.create_ledger() as closed:
        closed.append(b"ab")

    def read(**given: str) -> list[int]:
        caplog.clear()
        which = f"{closed.ledger_id},{ledger.ledger_id}"
        _, ranges = read_ranges(client, parse_options({"metadataServiceUri": "memory://", "ledgers": which, **given}))
        return [r.ledger_id for r in ranges]

    assert read() == [closed.ledger_id]
    (said,) = [r.getMessage() for r in caplog.records if r.name == "bk_spark.read"]
    assert f"leaves out 1 open ledger: ledger {ledger.ledger_id} with 2 entries confirmed so far. openLedgers=lac" in said
    assert read(openLedgers="skip") == [closed.ledger_id] and not caplog.records
    assert read(openLedgers="lac") == [closed.ledger_id, ledger.ledger_id] and not caplog.records
    assert read(password="another") == [closed.ledger_id]  # nobody is asked with success, and it is told all the same
    assert f"leaves out 1 open ledger: ledger {ledger.ledger_id}. openLedgers=lac" in caplog.text


def test_columns_that_are_not_there() -> None:
    with pytest.raises(InvalidArgumentError, match="no column 'nope'; there are 'id', 'text'"):
        chosen(ROWS, ("nope",))
    with pytest.raises(InvalidArgumentError, match="option columns: there is no column 'txet'; did you mean 'text'\\?"):
        chosen(ROWS, ("txet",))
    assert chosen(ROWS, ("TEXT", "Id")).names == ["text", "id"]
    with pytest.raises(InvalidArgumentError, match="names column 'id' twice"):
        chosen(ROWS, ("id", "ID"))
    both = StructType([StructField("ab", LongType()), StructField("AB", LongType())])
    assert chosen(both, ("AB",)).names == ["AB"]
    with pytest.raises(InvalidArgumentError, match="no column 'Ab'; did you mean 'ab' or 'AB'\\?"):  # which one is meant nobody knows
        chosen(both, ("Ab",))
    with pytest.raises(LogSchemaError, match="asks for column 'ID' as bigint, which is 'id' bigint"):
        check_read_schema(StructType([StructField("ID", LongType())]), ROWS)
    words = r"asks for column 'id' as string, which is 'id' bigint: leave \.schema\(\.\.\.\) out; if there is none, .* make the DataFrame"
    with pytest.raises(LogSchemaError, match=words):
        check_read_schema(StructType([StructField("id", StringType())]), ROWS)
    with pytest.raises(LogSchemaError, match="'_OFFSET' of its own"):
        arrow_columns(StructType([StructField("_OFFSET", LongType())]), True)
