"""Logs as Arrow tables without Spark: reading, following, writing, and what is refused before anything is done."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import bk_core
from bk_core.client.log.history import read_log, seal_log
from bk_core.client.log.intents import intents_of
from bk_core.client.log.janitor import gc_log
from bk_core.errors import (
    ArgumentTypeError,
    EntryTooLargeError,
    InvalidArgumentError,
    LogDataLossError,
    LogEntryError,
    LogSchemaError,
    LogWriterAliveError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    MissingPackageError,
    NoSuchLogError,
    NullValueError,
    WrongPasswordError,
)
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.sealing import SealLimits
from bk_spark.arrow import writing
from bk_spark.entries import packing
from bk_spark.entries.columns import RAW_COLUMNS
from bk_spark.schemas import arrow_schema
from bk_spark.source.columns import raw_schema
from tests.unit.spark.conftest import World

ROOT = Path(__file__).resolve().parents[3]
Client = bk_core.BookKeeper


@pytest.fixture
def client(world: World) -> Client:
    found: Client = world.client
    return found


def ids(*numbers: int | None) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def read(log: bk_core.Log, **where: Any) -> list[Any]:
    return [row["id"] for row in log.to_arrow(**where).to_pylist()]


# --- reading ------------------------------------------------------------------------------------------------------------


def test_what_the_sink_wrote_is_read_in_its_order(world: World, client: Client) -> None:
    world.write(*([i] for i in range(50)), log="flights", entrySize="64")
    world.write([50, 51], log="flights")
    log = client.log("flights")
    assert read(log) == list(range(52))
    assert [batch.schema for batch in log.to_batches()] == [log.arrow_schema()]
    assert log.to_arrow().schema == pa.schema([("id", pa.int64())])


def test_only_the_columns_asked_for_are_read(world: World, client: Client) -> None:
    world.write({"id": [1, 2], "name": ["a", None]}, schema="id long, name string", log="flights")
    log = client.log("flights")
    assert log.to_arrow(columns=["name"]).to_pydict() == {"name": ["a", None]}
    assert log.to_arrow(columns=["name", "id"]).column_names == ["name", "id"]
    for wrong, said in ((["nam"], "did you mean 'name'"), (["NAME"], "did you mean 'name'"), ([], "at least one"), (["id", "id"], "twice")):
        with pytest.raises(InvalidArgumentError, match=said):
            log.to_batches(columns=wrong)
    with pytest.raises(ArgumentTypeError, match="columns must be a sequence of texts"):
        log.to_batches(columns="id")


def test_rows_from_before_a_column_was_added_are_null_there(world: World, client: Client) -> None:
    world.write([1], log="flights")
    world.write({"id": [2], "name": ["b"]}, schema="id long, name string", log="flights", mergeSchema="true")
    assert client.log("flights").to_arrow().to_pylist() == [{"id": 1, "name": None}, {"id": 2, "name": "b"}]


def test_places_are_exact_to_the_row(world: World, client: Client) -> None:
    world.write(list(range(100)), log="flights")
    world.write(list(range(100, 110)), log="flights")
    log = client.log("flights")
    assert read(log, start=Position(0, 0, 7), end=Position(0, 0, 12)) == [7, 8, 9, 10, 11]
    assert read(log, start=Position(0, 0, 98)) == list(range(98, 110))
    assert read(log, start=Position(1)) == list(range(100, 110))
    assert read(log, start="latest") == [] and read(log, end="earliest") == []
    assert read(log, start=log.info.end) == []
    with pytest.raises(InvalidArgumentError, match=r"lies behind end"):
        log.to_batches(start=Position(1), end=Position(0))
    with pytest.raises(InvalidArgumentError, match=r"segment 7, entry 0 lies beyond the end of log 'flights'"):
        log.to_batches(start=Position(7))
    with pytest.raises(InvalidArgumentError, match='start must be "earliest", "latest"'):
        log.to_batches(start="first")


def test_times_are_those_of_commits(world: World, client: Client) -> None:
    world.write([1], log="flights")
    log = client.log("flights")
    at = log.info.committed_at
    assert at is not None
    assert read(log, start=at) == [1] and read(log, end=at) == []
    assert read(log, start=at + timedelta(seconds=9)) == []
    with pytest.raises(InvalidArgumentError, match="names no time zone"):
        log.to_batches(start=datetime(2026, 1, 1))


def test_a_read_is_a_snapshot_and_ends_where_it_began_to_end(client: Client) -> None:
    log = client.create_log("flights", schema="id BIGINT")
    log.write(ids(1, 2))
    batches = log.to_batches()
    log.write(ids(3))
    assert sum(batch.num_rows for batch in batches) == 2
    assert read(log) == [1, 2, 3]


def test_a_trimmed_place_and_a_ledger_that_goes_under_a_read_are_losses(client: Client) -> None:
    log = client.create_log("flights", schema="id BIGINT")
    log.write(ids(1))
    second = log.write(ids(2))
    batches = log.to_batches()
    log.trim(before=second.first)
    with pytest.raises(LogDataLossError, match="trimmed while they were read"):
        batches.read_all()
    with pytest.raises(LogDataLossError, match="was trimmed"):
        log.to_batches(start=Position(0))
    assert read(log) == [2]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("deleted", r"of log 'flights' are lost: .*\. The log was deleted while it was read"),
        ("made anew", "The log was deleted and created again while it was read"),
        ("without its ledger", "The log still lists it, so somebody else deleted it: `bk log check` tells"),
    ],
)
def test_a_log_that_goes_under_a_read_is_told_as_what_it_is(client: Client, how: str, said: str) -> None:
    log = client.create_log("flights", schema="id BIGINT")
    log.write(ids(1))
    batches = log.to_batches()
    if how == "without its ledger":
        (ledger_id,) = client.list_ledgers()
        client.delete_ledger(ledger_id, even_if_listed=True)
    else:
        log.delete()
    if how == "made anew":
        client.create_log("flights", schema="id BIGINT").write(ids(2))
    with pytest.raises(LogDataLossError, match=said):
        batches.read_all()


def test_a_reader_of_entries_passes_by_one_whose_rows_were_all_consumed(client: Client) -> None:
    """Any other it reads whole, from its first row on: where it starts, and where its position is set."""
    log = client.create_log("flights", schema="id BIGINT")
    log.write(ids(1, 2, 3))
    log.write(ids(4))
    for row, entries in ((0, [0, 1]), (2, [0, 1]), (3, [1])):
        with log.reader(start=Position(0, 0, row)) as reader:
            assert [run.segment.seq for run in reader] == entries
            reader.position = Position(0, 0, row)
            assert [run.segment.seq for run in reader] == entries
        assert read(log, start=Position(0, 0, row)) == [1, 2, 3, 4][row:]


def test_a_raw_log_has_the_columns_of_sparks_source(client: Client) -> None:
    assert arrow_schema(raw_schema(True, False)) == RAW_COLUMNS
    log = client.create_log("lines")
    log.write(pa.table({"value": ["a", "bb"]}))
    with log.writer() as writer:
        for payload in (b"ccc", b""):
            writer.append(payload)
        rows = log.to_arrow().to_pylist()
        assert [row["timestamp"] is None for row in rows] == [False, False, True]  # up to the LAC; the writer lives on
        writer.append(b"e")
    rows = log.to_arrow().to_pylist()
    assert [row["value"] for row in rows] == [b"a", b"bb", b"ccc", b"", b"e"]
    assert [row["offset"] for row in rows] == list(range(5)) and [row["length"] for row in rows] == [1, 2, 3, 0, 1]
    assert {row["log"] for row in rows} == {"lines"} and {row["key"] for row in rows} == {None}
    assert log.to_arrow(columns=["value"]).column_names == ["value"]


def test_a_log_without_columns_says_who_gives_them(client: Client) -> None:
    log = client.create_log("flights", entry_format="arrow")
    with pytest.raises(LogSchemaError, match=r"has no columns yet: its first write gives them, or create_log\(\.\.\., schema="):
        log.to_arrow()


def test_the_password_is_the_logs(client: Client) -> None:
    log = client.create_log("flights", schema="id BIGINT", password=b"right")
    log.write(ids(1))
    assert read(client.log("flights", password=b"right")) == [1]
    with pytest.raises(WrongPasswordError):
        client.log("flights", password=b"wrong").to_arrow()
    with pytest.raises(WrongPasswordError):
        client.log("flights", password=b"wrong").write(ids(2))


def test_an_entry_of_another_program_is_refused(client: Client) -> None:
    log = client.create_log("flights", schema="id BIGINT")
    with log.writer(arrow_entries=True) as writer:
        writer.append(pa.record_batch({"name": ["of another schema"]}).serialize().to_pybytes())
    with pytest.raises(LogEntryError, match="is no sound Arrow record batch"):
        log.to_arrow()


def test_a_reader_that_is_dropped_lets_its_ledgers_go(client: Client) -> None:
    log = client.create_log("flights", schema="id BIGINT")
    for n in range(6):
        log.write(ids(*range(n * 100_000, n * 100_000 + 100_000)))
    batches = log.to_batches()
    assert next(batches).num_rows
    del batches
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("bk-open") and thread.is_alive()]


def test_pandas_is_needed_only_for_frames(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    log = client.create_log("flights", schema="id BIGINT")
    log.write(ids(1, 2))
    assert list(log.to_pandas()["id"]) == [1, 2]
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.setattr("bk_spark.needs.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="Log.to_pandas needs pandas, there is none .*: pip install pandas"):
        log.to_pandas()


# --- following ----------------------------------------------------------------------------------------------------------


def test_following_goes_on_with_what_comes(client: Client) -> None:
    log = client.create_log("flights", schema="id BIGINT")
    log.write(ids(1))
    stop = threading.Event()
    batches = log.follow_batches(stop=stop)
    assert next(batches).column("id").to_pylist() == [1]
    log.write(ids(2, 3))
    assert next(batches).column("id").to_pylist() == [2, 3]
    stop.set()
    assert list(batches) == []


def test_following_stops_in_the_middle_of_what_is_there(world: World, client: Client) -> None:
    world.write(*([i] for i in range(20)), log="flights", entrySize="64")
    stop = threading.Event()
    found = [batch for batch in client.log("flights").follow_batches(stop=stop) if not stop.set()]
    assert len(found) == 1


def test_following_a_living_writer_gives_each_entry_once(client: Client) -> None:
    log = client.create_log("lines")
    stop = threading.Event()
    batches = log.follow_batches(columns=["value"], stop=stop)
    found: list[bytes] = []
    with log.writer() as writer:
        for n in range(20):
            writer.append(b"%d" % n)
    while len(found) < 20:
        found += next(batches).column("value").to_pylist()
    stop.set()
    assert found == [b"%d" % n for n in range(20)]


def test_following_ends_at_rows_with_new_columns(world: World, client: Client) -> None:
    world.write([1], log="flights")
    log = client.log("flights")
    everything, some = log.follow_batches(), log.follow_batches(columns=["id"])
    assert next(everything).num_rows == next(some).num_rows == 1
    world.write({"id": [2], "name": ["b"]}, schema="id long, name string", log="flights", mergeSchema="true")
    assert next(some).to_pydict() == {"id": [2]}
    with pytest.raises(LogSchemaError, match="has rows with new columns: 'name', since this read began"):
        next(everything)


@pytest.mark.parametrize(("to", "said"), [("id int", "columns of another type: 'id'"), ("name string", "no columns any more: 'id'")])
def test_following_ends_where_columns_are_replaced(world: World, client: Client, to: str, said: str) -> None:
    world.write([1], log="flights")
    batches = client.log("flights").follow_batches(columns=["id"])
    next(batches)
    rows = {"id": pa.array([2], pa.int32())} if "int" in to else {"name": ["b"]}
    world.write(rows, schema=to, overwrite=True, log="flights", overwriteSchema="true")
    with pytest.raises(LogSchemaError, match=said):
        next(batches)


def test_following_notices_a_log_that_was_made_anew(client: Client) -> None:
    log = client.create_log("flights", schema="id BIGINT")
    log.write(ids(1))
    batches = log.follow_batches()
    next(batches)
    log.delete()
    client.create_log("flights", schema="id BIGINT").write(ids(2))
    with pytest.raises(LogDataLossError):
        next(batches)


# --- writing ------------------------------------------------------------------------------------------------------------


def test_a_write_is_one_commit_and_leaves_nothing_behind(world: World, client: Client) -> None:
    log = client.create_log("flights", schema="id BIGINT, name STRING")
    written = log.write(pa.table({"name": ["a", None], "id": pa.array([1, 2], pa.int8())}))
    assert (written.rows, written.entries, written.first, written.end) == (2, 1, Position(0), Position(1))
    assert log.to_arrow(start=written.first, end=written.end).to_pydict() == {"id": [1, 2], "name": ["a", None]}
    assert written.bytes == log.info.bytes and log.info.rows == 2
    assert intents_of(client, "flights") == {}
    assert world.rows("flights") == [(1, "a"), (2, None)]  # Spark's sink and source see the same


def test_the_first_write_gives_the_columns(world: World, client: Client) -> None:
    log = client.create_log("flights", entry_format="arrow")
    log.write(ids(1))
    assert log.arrow_schema() == pa.schema([("id", pa.int64())])
    world.write([2], log="flights")
    assert read(log) == [1, 2]


def test_an_empty_table_gives_the_columns_and_no_ledger(world: World, client: Client) -> None:
    log = client.create_log("flights", entry_format="arrow")
    written = log.write(ids())
    assert (written.rows, written.first, written.end) == (0, Position(0), Position(0))
    assert log.arrow_schema().names == ["id"] and read(log) == [] and world.ledgers() == set()


class Stream:
    """Rows of another library, by Arrow's C interface alone."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "made",
    [
        lambda: ids(1, 2),
        lambda: ids(1, 2).to_batches()[0],
        lambda: ids(1, 2).to_reader(),
        lambda: iter(ids(1, 2).to_batches()),
        lambda: Stream(ids(1, 2)),
        lambda: ids(1, 2).to_pandas(),
    ],
    ids=["table", "batch", "reader", "iterator", "stream", "pandas"],
)
def test_whatever_has_rows_is_taken(client: Client, made: Callable[[], Any]) -> None:
    log = client.create_log("flights", schema="id BIGINT")
    log.write(made())
    assert read(log) == [1, 2]


@pytest.mark.parametrize("what", [5, "id", b"x", {"id": [1]}, [1, 2], [], None])
def test_what_has_no_rows_is_refused(client: Client, what: Any) -> None:
    log = client.create_log("flights", schema="id BIGINT")
    with pytest.raises(ArgumentTypeError, match="data "):
        log.write(what)


def test_rows_as_dictionaries_are_told_how_to_become_a_table(client: Client) -> None:
    with pytest.raises(ArgumentTypeError, match=r"not of type list of dictionaries; pyarrow\.Table\.from_pylist\(data\) makes"):
        client.create_log("t").write([{"id": 1}])


@pytest.mark.parametrize("what", [pa.array([1]), pa.chunked_array([[1]])], ids=["array", "chunked"])
def test_values_of_one_column_are_no_rows(client: Client, what: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="data must be a table, record batches"):
        client.create_log("t").write(what)


def test_names_that_stand_twice_are_told_before_a_first_write_and_of_raw_logs(client: Client) -> None:
    twice = "the rows have more than one column named"
    with pytest.raises(LogSchemaError, match=twice):
        client.create_log("t", entry_format="arrow").write(pa.table([[1], [2]], names=["id", "id"]))
    raw = client.create_log("raw")
    with pytest.raises(LogSchemaError, match=twice):
        raw.write(pa.table([[b"a"], [b"b"]], names=["value", "value"]))
    with pytest.raises(LogSchemaError, match="column 'value' of raw log 'raw' must be binary or string, not dictionary"):
        raw.write(pa.table({"value": pa.array([1, 2]).dictionary_encode()}))
    with pytest.raises(LogSchemaError, match="at least one column"):
        client.create_log("none", schema=pa.schema([]))


def test_many_small_batches_cost_no_more_than_their_sizes() -> None:
    """Counted, not timed: how often the packer asks for the size of a batch."""
    asked = 0
    packer = packing.Packer(pa.schema([("id", pa.int64())]), 256 << 10, "none", packing.RUN_BYTES)
    batch = pa.record_batch({"id": pa.array([1], pa.int64())})

    class Counted:
        num_rows = 1

        @property
        def nbytes(self) -> int:
            nonlocal asked
            asked += 1
            return int(batch.nbytes)

    for _ in range(2000):
        packer.put(Counted())
        assert not list(packer.full_entries())
    assert asked == 2000


def test_a_log_is_copied_to_another(client: Client) -> None:
    one, other = client.create_log("one"), client.create_log("other")
    one.write(pa.table({"value": [b"a", b"b"]}))
    other.write(one)
    assert other.to_arrow(columns=["value"]) == one.to_arrow(columns=["value"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (pa.table({"idd": [1]}), "has no column 'idd'; it has 'id' int64, 'at' timestamp"),
        (pa.table({"ID": [1], "At": [1]}), "has no column 'ID', 'At'; it has .*; case counts here: 'id' for 'ID', 'at' for 'At'$"),
        (pa.table({"lits": [1]}), "; did you mean 'list'\\?$"),
        (pa.table({"id": ["1"]}), "column 'id' is string, stored as int64; cast it"),
        (pa.table({"at": pa.array([0], pa.timestamp("us"))}), r"column 'at' is timestamp\[us\], stored as timestamp\[us, tz=UTC\]"),
        (pa.table({"id": pa.array([1], pa.uint64())}), "column 'id' has type uint64.*: cast it to int64 or decimal128"),
        (pa.table({"id": pa.array([1], pa.float64())}), "column 'id' is double, stored as int64"),
        (pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"]), "more than one column named 'id'"),
        (pa.table({"list": pa.array([["a"]])}), "column 'list' is list<element: string>, stored as list<element: int64>"),
        (pa.table({}), "the rows have no column"),
    ],
)
def test_columns_that_do_not_fit_are_told_before_anything_is_done(world: World, client: Client, given: pa.Table, said: str) -> None:
    log = client.create_log("flights", schema="id BIGINT, at TIMESTAMP, list ARRAY<BIGINT>")
    with pytest.raises(LogSchemaError, match=said):
        log.write(given)
    assert world.ledgers() == set() and intents_of(client, "flights") == {}


def test_values_that_no_log_keeps_leave_nothing_visible(world: World, client: Client) -> None:
    log = client.create_log("flights", schema="at TIMESTAMP_NTZ, text STRING")
    bad = pa.table({"at": pa.array([1], pa.timestamp("ns"))})  # a nanosecond is lost
    with pytest.raises(LogSchemaError, match=r"column 'at' is timestamp\[ns\]; the log has timestamp\[us\]"):
        log.write(bad)
    text = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe"))
    with pytest.raises(LogSchemaError, match="rows 0 to 0 hold what no log can keep: .*UTF8"):
        log.write(pa.table({"text": text}))
    with pytest.raises(EntryTooLargeError):
        log.write([pa.record_batch({"text": ["a" * 100_000]}) for _ in range(200)] + [pa.record_batch({"text": ["x" * (6 << 20)]})])
    assert read_log(client, "flights").next_seq == 0 and world.ledgers() == set() and intents_of(client, "flights") == {}


def test_a_raw_log_takes_values_alone(world: World, client: Client) -> None:
    log = client.create_log("lines")
    log.write(pa.table({"value": pa.array(["a", "b"], pa.large_string())}))
    log.write(pa.table({"value": pa.array(["c"]).dictionary_encode()}))
    assert world.rows("lines") == [b"a", b"b", b"c"]
    for rows, said in (
        (ids(1), "takes a column 'value'"),
        (pa.table({"value": [b"a"], "other": [1]}), "stores only 'value'; drop 'other'"),
        (pa.table({"value": [b"a"], "key": [b"k"]}), "column 'key' is not all null"),
    ):
        with pytest.raises(LogSchemaError, match=said):
            log.write(rows)
    with pytest.raises(NullValueError):
        log.write(pa.table({"value": [b"a", None]}))
    with pytest.raises(InvalidArgumentError, match="compression is for logs of Arrow entries"):
        log.write(pa.table({"value": [b"a"]}), compression="zstd")
    assert read_log(client, "lines").listed.total_rows == 3 and len(world.ledgers()) == 2


def test_entries_are_as_large_and_as_small_as_asked(client: Client) -> None:
    log = client.create_log("flights", schema="id BIGINT")
    plain = log.write(ids(*range(20_000)), entry_size=16 << 10)
    packed = log.write(ids(*range(20_000)), compression="zstd")
    assert plain.entries >= 10 and packed.bytes < plain.bytes / 2
    assert read(log) == [*range(20_000), *range(20_000)]
    with pytest.raises(InvalidArgumentError, match="compression must be one of none, zstd, lz4"):
        log.write(ids(1), compression="gzip")
    with pytest.raises(InvalidArgumentError, match="entry_size must be at most"):
        log.write(ids(1), entry_size=1 << 30)


def test_a_large_write_goes_to_several_ledgers(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "ROLL_BYTES", 64 << 10)
    monkeypatch.setattr(writing, "IN_FLIGHT_BYTES", 64 << 10)
    log = client.create_log("flights", schema="id BIGINT")
    written = log.write([ids(*range(n, n + 600_000)).to_batches()[0] for n in (0, 600_000, 1_200_000)])
    assert len({segment.ledger_id for segment in log.segments()}) > 1
    assert written.rows == 1_800_000 and read(log) == list(range(1_800_000))


def test_a_living_writer_is_ended_only_by_word(client: Client) -> None:
    log = client.create_log("lines")
    writer = log.writer()
    writer.append(b"a")
    with pytest.raises(LogWriterAliveError, match="take_over=True"):
        log.write(pa.table({"value": [b"b"]}))
    log.write(pa.table({"value": [b"b"]}), take_over=True)
    with pytest.raises(bk_core.BkError):
        writer.append(b"c")
    assert log.to_arrow(columns=["value"]).to_pydict() == {"value": [b"a", b"b"]}


def test_a_writer_that_comes_during_the_write_is_not_ended(world: World, client: Client) -> None:
    log = client.create_log("lines")
    opened: list[Any] = []

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": [b"a"]})
        opened.append(log.writer())

    with pytest.raises(LogWriterAliveError):
        log.write(rows())
    opened[0].append(b"b")
    opened[0].close()
    assert log.to_arrow(columns=["value"]).to_pydict() == {"value": [b"b"]}
    assert intents_of(client, "lines") == {} and world.ledgers() == {opened[0].ledger_id}


def test_another_first_write_that_was_faster_decides_the_columns(world: World, client: Client) -> None:
    """The slower one leaves neither ledgers nor intents, and the list keeps nothing of its clean-up."""
    log = client.create_log("flights", entry_format="arrow")

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        log.write(pa.table({"name": ["a"]}))

    with pytest.raises(LogSchemaError, match="another writer gave log 'flights' other columns"):
        log.write(rows())
    assert log.to_arrow().to_pydict() == {"name": ["a"]}
    listed = read_log(client, "flights").listed
    assert intents_of(client, "flights") == {} and world.ledgers() == {listed.segments[0].ledger_id} and listed.condemned == ()


def test_a_log_made_anew_during_the_write_gets_none_of_it(world: World, client: Client) -> None:
    log = client.create_log("flights", schema="id BIGINT")

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        log.delete()
        client.create_log("flights", schema="id BIGINT")

    with pytest.raises(LogDataLossError, match="deleted and created again"):
        log.write(rows())
    assert read(log) == [] and intents_of(client, "flights") == {} and world.ledgers() == set()


def test_a_commit_whose_answer_was_lost_is_made_once(world: World, client: Client) -> None:
    log = client.create_log("flights", schema="id BIGINT")
    world.store.lost_answers = 1
    written = log.write(ids(1))
    assert read(log) == [1] and written.first == Position(0)
    assert intents_of(client, "flights") == {}


def test_a_commit_whose_answer_was_lost_is_found_in_the_history(world: World, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others commit so often before it is looked for that its segment is not in the tail of the list any more."""
    log, write = client.create_log("flights", schema="id BIGINT"), world.store.write

    def lost(path: str, data: bytes, version: int) -> int:
        write(path, data, version)
        monkeypatch.setattr(world.store, "write", write)
        for one in (2, 3, 4, 5):
            log.write(ids(one))
        assert seal_log(client, "flights", limits=SealLimits(tail_max=3, chunk=1, fan_out=2))
        assert read_log(client, "flights").listed.tail_seq > 0
        raise MetadataOutcomeUnknownError("the answer was lost")

    monkeypatch.setattr(world.store, "write", lost)
    written = log.write(ids(1))
    assert read(log) == [1, 2, 3, 4, 5] and written.first == Position(0)


def test_a_commit_of_unknown_fate_deletes_nothing(world: World, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The change came through, and nobody was told: what the list names must stay."""
    log = client.create_log("flights", schema="id BIGINT")
    update = writing.update_ledger_list

    def told_wrongly(*given: Any, **bounds: Any) -> None:
        update(*given, **bounds)
        raise MetadataUnavailableError("the store went away")

    monkeypatch.setattr(writing, "update_ledger_list", told_wrongly)
    with pytest.raises(MetadataUnavailableError):
        log.write(ids(1))
    gc_log(client, "flights", min_age_s=0)
    assert read(log) == [1] and intents_of(client, "flights") == {}


def test_a_log_that_is_deleted_during_the_write_keeps_no_ledger(world: World, client: Client) -> None:
    log = client.create_log("flights", schema="id BIGINT")

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        log.delete()

    with pytest.raises(NoSuchLogError):
        log.write(rows())
    assert intents_of(client, "flights") == {} and world.ledgers() == set()


def test_a_refused_commit_whose_clean_up_fails_is_left_to_the_janitor(
    world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = client.create_log("flights", entry_format="arrow")

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1]})
        log.write(pa.table({"name": ["a"]}))

    def away(*given: Any) -> None:
        raise MetadataUnavailableError("the store went away")

    monkeypatch.setattr(writing, "delete_unlisted", away)
    with pytest.raises(LogSchemaError, match="another writer"):
        log.write(rows())
    assert len(intents_of(client, "flights")) == 1 and len(world.ledgers()) == 2
    gc_log(client, "flights")  # whatever its age: its writer has given it up
    assert intents_of(client, "flights") == {} and len(world.ledgers()) == 1


def test_bookies_that_fail_leave_nothing_visible(world: World, client: Client) -> None:
    log = client.create_log("flights", schema="id BIGINT")

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": list(range(1_000_000))})
        for ledger_id in world.ledgers():
            client.recover_ledger(ledger_id).close()  # somebody fences it
        yield pa.record_batch({"id": list(range(1_000_000))})

    with pytest.raises(bk_core.BkError):
        log.write(rows())
    assert read(log) == []
    gc_log(client, "flights", min_age_s=0)
    assert world.ledgers() == set() and intents_of(client, "flights") == {}


def test_no_log_and_the_log_of_a_store_are_refused(client: Client) -> None:
    with pytest.raises(NoSuchLogError):
        client.log("flights")
    log = client.create_log("flights", schema="id BIGINT")
    log.delete()
    with pytest.raises(NoSuchLogError):
        log.write(ids(1))


# --- without pyspark, without pyarrow -------------------------------------------------------------------------------------


ABSENT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names}:
            raise ModuleNotFoundError("No module named " + name, name=name)
sys.meta_path.insert(0, Absent())
"""


def alone(*names: str, program: str) -> str:
    text = ABSENT.format(names=set(names)) + program
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_of_this_works_where_pyspark_cannot_be_imported() -> None:
    program = """
import bk_spark.arrow
for name in bk_spark.arrow.__all__:
    getattr(bk_spark.arrow, name)
print(bk_spark.arrow.schema_text("id BIGINT, at TIMESTAMP")[:5], [m for m in sys.modules if m.partition(".")[0] in ("pyspark", "py4j")])
"""
    assert alone("pyspark", "py4j", "pandas", "numpy", program=program) == "///// []\n"


def test_who_has_no_pyarrow_is_told_what_to_install() -> None:
    program = """
from bk_core.client.log.tables import tables
try:
    tables()
except ImportError as error:
    print(error)
"""
    found = alone("pyarrow", program=program)
    assert found.startswith("[BK-PACKAGE] logs as tables need pyarrow 18.0, there is none (") and 'pip install "bk-spark[arrow]"' in found
    old = alone(program='import pyarrow; pyarrow.__version__ = "17.0.0"\n' + program)
    assert "logs as tables need pyarrow 18.0, this is 17.0.0 (" in old
