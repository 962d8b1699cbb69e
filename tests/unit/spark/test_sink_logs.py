"""The sink: routing to several logs, schemas and their evolution, overwrite, takeover."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

import bk_core
from bk_core.client.log.intents import intents_of
from bk_core.client.log.janitor import delete_log, gc_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log, list_logs
from bk_core.client.log.writer import LogWriter
from bk_core.errors import (
    InvalidArgumentError,
    LogDataLossError,
    LogError,
    LogOfQueriesError,
    LogSchemaError,
    LogTakenOverError,
    LogWriterAliveError,
    NoSuchLogError,
)
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.segments import LogProperties
from bk_spark.options.table import parse_options
from bk_spark.schemas import schema_of_text
from bk_spark.sink import data_ledgers
from bk_spark.sink import task as sink
from bk_spark.sink.routing import split_by_log
from bk_spark.sink.writer import BookKeeperWriter

# --- routing ---------------------------------------------------------------------------------------------------------------


def test_a_column_chooses_the_log(world: Any) -> None:
    batches = [{"id": [1, 2, 3], "log": ["a", "b", "a"]}, {"id": [4, 5], "log": ["b", "a"]}]
    message = world.write(*batches, schema="id long, log string")
    assert world.rows("a") == [1, 3, 5] and world.rows("b") == [2, 4] and message.rows == 5
    world.write({"id": [6], "topic": ["a"]}, schema="topic string, id long")
    assert world.rows("a") == [1, 3, 5, 6]
    assert schema_of_text(read_ledger_list(world.client, "a").properties.schema).names == ["id"]


def test_with_a_log_the_column_is_data(world: Any) -> None:
    world.write({"id": [1], "log": ["b"]}, schema="id long, log string", log="a")
    assert world.rows("a") == [(1, "b")] and list_logs(world.client) == ["a"]


@pytest.mark.parametrize(
    ("schema", "row", "error", "text"),
    [
        ("id long, log string", {"id": [1, 2], "log": ["a", None]}, LogSchemaError, "null"),
        ("id long, log string", {"id": [1, 2], "log": ["a", "no/name"]}, InvalidArgumentError, "no/name"),
        ("id long, log long", {"id": [1], "log": [1]}, LogSchemaError, "must be a string"),
        ("id long", {"id": [1]}, InvalidArgumentError, 'option\\("log"'),
        ("log string", {"log": ["a"]}, LogSchemaError, "column"),
    ],
)
def test_a_bad_route_fails_before_anything_is_published(world: Any, schema: str, row: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        world.write({k: v[:1] for k, v in row.items()}, row, schema=schema)
    assert list_logs(world.client) == [] and world.ledgers() == set()


@pytest.mark.parametrize("there", [True, False])
def test_the_log_of_a_file_store_is_never_written(world: Any, there: bool) -> None:
    """GRD-7: not by a batch, an overwrite, a stream nor a route, and whatever is insisted on; none is made either."""
    if there:
        with bk_core.FileStore.open(world.client, "s") as store:
            store.put("/a", b"a")
    before = list_logs(world.client), world.ledgers()
    for given in ({}, {"entryFormat": "raw"}, {"entryFormat": "raw", "takeOver": "true"}):
        for overwrite in (False, True):
            with pytest.raises(InvalidArgumentError, match="file store 's'"):
                world.write({"value": ["x"]}, schema="value string", log="files.s", overwrite=overwrite, **given)
        with pytest.raises(InvalidArgumentError, match="file store 's'"):
            world.stream("value string", log="files.s", **given)
    with pytest.raises(InvalidArgumentError, match="file store 's'"):
        world.write({"id": [1], "log": ["files.s"]}, schema="id long, log string")
    assert (list_logs(world.client), world.ledgers()) == before
    if there:
        with bk_core.FileStore.open(world.client, "s") as store:
            assert store.read("/a") == b"a"


def test_rows_of_many_logs_keep_their_order_and_hold_only_themselves() -> None:
    rng = random.Random(7)
    logs = [f"l{rng.randrange(50)}" for _ in range(3000)]
    batch = pa.record_batch({"id": pa.array(range(3000)), "log": logs, "text": [log * 9 for log in logs]}).slice(100)
    found = dict(split_by_log(batch, "log"))
    assert list(found) == list(dict.fromkeys(logs[100:]))
    for log, rows in found.items():
        assert rows.column("id").to_pylist() == [i for i in range(100, 3000) if logs[i] == log]
        assert rows.get_total_buffer_size() < 2 * rows.nbytes


def test_what_is_held_for_many_logs_is_not_summed_up_at_each_of_them(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    held_bytes = sink._LogPacker.held_bytes.fget
    assert held_bytes is not None

    def counting(packer: Any) -> int:
        nonlocal asked
        asked += 1
        return int(held_bytes(packer))

    monkeypatch.setattr(sink._LogPacker, "held_bytes", property(counting))
    names = [f"l{i:02d}" for i in range(30)]
    batches = [{"id": list(range(30 * n, 30 * n + 30)), "log": names} for n in range(3)]
    world.write(*batches, schema="id long, log string", maxOpenLedgers="40")
    assert [world.rows(name) for name in names] == [[i, i + 30, i + 60] for i in range(30)]
    assert asked <= 2 * 3 * 30


def test_routed_batches_are_exactly_once_in_each_log(world: Any) -> None:
    """A crash between the logs: the replay appends only where the mark is missing."""
    world.write({"id": [0, 0], "log": ["a", "b"]}, schema="id long, log string")
    schema = "id long, log string"
    message = world.task(world.stream(schema), {"id": [1, 2], "log": ["a", "b"]}, query="q")
    count = 0

    def crash() -> None:
        nonlocal count
        count += 1
        if count == 1:
            world.store.before_write = crash
        else:
            raise KeyboardInterrupt

    world.store.before_write = crash
    with pytest.raises(KeyboardInterrupt):
        world.stream(schema).commit([message], 0)
    assert (world.rows("a"), world.rows("b")) == ([0, 1], [0])
    replay = world.task(world.stream(schema), {"id": [1, 2], "log": ["a", "b"]}, query="q")
    world.stream(schema).commit([replay], 0)
    assert (world.rows("a"), world.rows("b")) == ([0, 1], [0, 2])


def test_what_one_log_refuses_is_published_in_none(world: Any) -> None:
    schema = "id long, log string"
    world.write({"id": [0, 0], "log": ["a", "b"]}, schema=schema)
    writer = world.writer(schema)
    message = world.task(writer, {"id": [1, 2], "log": ["a", "b"]})
    delete_log(world.client, "b")
    world.create("b")
    with pytest.raises(LogDataLossError):
        writer.commit([message])
    assert world.rows("a") == [0]


def test_missing_logs_without_create_logs(world: Any) -> None:
    world.create("a")
    world.write({"id": [1], "log": ["a"]}, schema="id long, log string", createLogs="false")
    with pytest.raises(NoSuchLogError, match="createLogs"):
        world.write({"id": [1, 2], "log": ["a", "b"]}, schema="id long, log string", createLogs="false")
    with pytest.raises(NoSuchLogError, match="createLogs"):
        world.writer(log="b", createLogs="false")
    assert list_logs(world.client) == ["a"] and world.rows("a") == [1]


def test_open_ledgers_are_bounded(world: Any) -> None:
    rows = {"id": list(range(12)), "log": [f"l{i % 4}" for i in range(12)]}
    world.write(rows, rows, schema="id long, log string", maxOpenLedgers="2", entrySize="1", maxInFlightBytes="1")
    assert len(data_ledgers._kept) == 2
    for i in range(4):
        assert world.rows(f"l{i}") == [i, i + 4, i + 8] * 2
    open_ones = [i for i in world.ledgers() if world.client.ledger_metadata(i).state is LedgerState.OPEN]
    assert len(open_ones) == 2


def test_the_rows_of_many_logs_are_bounded_too(world: Any) -> None:
    """Rows that wait for a full entry count: with a small bound the fullest log's rows go out early, as entries that are not full."""
    rows = {"id": list(range(400)), "log": [f"l{i % 2}" for i in range(400)]}
    for bound, entries in (("1k", 4), ("1m", 2)):
        message = world.write(rows, rows, schema="id long, log string", maxInFlightBytes=bound)
        assert sum(r.last_entry_id - r.first_entry_id + 1 for p in message.parts for r in p.ranges) == entries
    assert world.rows("l0") == list(range(0, 400, 2)) * 4


# --- schemas -----------------------------------------------------------------------------------------------------------------


def test_columns_go_by_name_and_missing_ones_are_null(world: Any) -> None:
    world.write({"id": [1], "name": ["one"]}, schema="id long, name string", log="a")
    world.write({"name": ["two"], "id": [2]}, schema="name string, id long", log="a")
    world.write({"ID": pa.array([3], pa.int32())}, schema="ID int", log="a")
    assert world.rows("a") == [(1, "one"), (2, "two"), (3, None)]


def test_what_does_not_fit_is_refused_before_anything_is_written(world: Any) -> None:
    world.write({"id": [1]}, schema="id int", log="a")
    for schema, text in (
        ("id string", "'id' is string, stored as int"),
        ("id long", "bigint"),
        ("id int, x int, y int", "column 'x', 'y'"),
    ):
        with pytest.raises(LogSchemaError, match=text):
            world.writer(schema, log="a")
    with pytest.raises(LogSchemaError, match="at least one column"):
        world.writer("", log="a")
    with pytest.raises(LogSchemaError, match="nothing but null"):
        world.writer("id int, n void", log="a", mergeSchema="true")


def test_an_overwrite_with_other_columns_is_told_how_to_replace_them(world: Any) -> None:
    """Batches, streams in output mode complete, and rows that name their log."""
    world.write([1], log="a")
    routed = world.writer("id long, name string, log string", True)
    for refused in (
        lambda: world.writer("id long, name string", True, log="a"),
        lambda: world.stream("id long, name string", True, log="a"),
        lambda: world.task(routed, {"id": [1], "name": ["x"], "log": ["a"]}),
    ):
        with pytest.raises(LogSchemaError, match="An overwrite keeps the log's columns: replace them with .*overwriteSchema"):
            refused()
    with pytest.raises(LogSchemaError, match="Add new ones with .*mergeSchema"):
        world.writer("id long, name string", log="a")


def test_evolution_adds_columns_in_the_same_compare_and_set(world: Any) -> None:
    world.write([1], log="a")
    writer = world.writer("name string, id long", log="a", mergeSchema="true")
    message = world.task(writer, {"name": ["two"], "id": [2]})
    assert read_ledger_list(world.client, "a").properties.schema == read_ledger_list(world.client, "a").schemas[0]
    writer.commit([message])
    world.write([3], log="a")
    assert world.rows("a") == [1, (2, "two"), (3, None)]
    listed = read_ledger_list(world.client, "a")
    assert [s.schema_id for s in listed.segments] == [0, 1, 1]
    assert schema_of_text(listed.properties.schema).names == ["id", "name"]


def test_a_race_of_two_evolutions(world: Any) -> None:
    """The second is told; a writer that adds nothing goes on with the schema that its rows have."""
    world.write([1], log="a")
    plain, one, two = world.writer(log="a"), *(world.writer(f"id long, {c} string", log="a", mergeSchema="true") for c in ("x", "y"))
    same = world.writer("id long, x string", log="a", mergeSchema="true")
    messages = [world.task(plain, [2]), *(world.task(w, {"id": [3], c: ["v"]}) for w, c in ((one, "x"), (two, "y"), (same, "x")))]
    one.commit([messages[1]])
    with pytest.raises(LogSchemaError, match="other columns"):
        two.commit([messages[2]])
    plain.commit([messages[0]])
    same.commit([messages[3]])
    assert world.rows("a") == [1, (3, "v"), 2, (3, "v")]
    assert len(read_ledger_list(world.client, "a").schemas) == 2


def test_an_overwrite_may_replace_the_columns(world: Any) -> None:
    """As often as one likes, back to columns that the log once had, too."""
    world.write({"id": [1], "old": ["x"]}, schema="id long, old string", log="a")
    with pytest.raises(LogSchemaError, match=r"'id' is string.*\.option\(.overwriteSchema., .true.\)"):
        world.writer("id string", overwrite=True, log="a")
    assert world.rows("a") == [(1, "x")]
    for i in range(70):
        kind, value = ("string", "one") if i % 2 == 0 else ("long", 1)
        world.write({"id": [value]}, schema=f"id {kind}", overwrite=True, log="a", overwriteSchema="true")
    world.write([2], log="a")
    assert world.rows("a") == [1, 2] and len(read_ledger_list(world.client, "a").schemas) == 1


def test_columns_are_replaced_by_an_overwrite_alone(world: Any) -> None:
    for writer in (world.writer, world.stream):
        with pytest.raises(InvalidArgumentError, match="needs mode"):
            writer(log="a", overwriteSchema="true")
    world.stream(overwrite=True, log="a", overwriteSchema="true")  # output mode complete
    world.write({"value": [b"x"]}, schema="value binary", log="raw", entryFormat="raw")
    with pytest.raises(InvalidArgumentError, match="overwriteSchema is for arrow logs"):
        world.writer("id long", overwrite=True, log="raw", overwriteSchema="true")


def test_whoever_writes_the_columns_from_before_an_overwrite_is_told(world: Any) -> None:
    """Nobody could read the log if rows with the old columns were listed behind the new ones."""
    world.write([1], log="a")
    late, wider = world.writer(log="a"), world.writer("id long, more long", log="a", mergeSchema="true")
    messages = [world.task(late, [2]), world.task(wider, {"id": [3], "more": [3]})]
    world.write({"id": ["one"]}, schema="id string", overwrite=True, log="a", overwriteSchema="true")
    for writer, message in zip((late, wider), messages, strict=True):
        with pytest.raises(LogSchemaError, match="other columns"):
            writer.commit([message])
    assert world.rows("a") == ["one"]


def test_a_column_that_an_overwrite_dropped_does_not_come_back(world: Any) -> None:
    """LOG-19: the columns that are left are the first of those from before, so the late rows would only seem to add some."""
    old = "id long, text string"
    world.write({"id": [1], "text": ["a"]}, schema=old, log="a")
    rows = {"id": [2], "text": ["late"]}
    late = [world.writer(old, log="a"), world.stream(old, log="a"), world.writer(f"{old}, more long", log="a", mergeSchema="true")]
    messages = [world.task(w, rows | ({"more": [3]} if i == 2 else {}), query="q" if i == 1 else "") for i, w in enumerate(late)]
    world.write([100], overwrite=True, log="a", overwriteSchema="true")
    for i, (writer, message) in enumerate(zip(late, messages, strict=True)):
        with pytest.raises(LogSchemaError, match="other columns"):
            writer.commit([message], 0) if i == 1 else writer.commit([message])
    assert world.rows("a") == [100] and schema_of_text(read_ledger_list(world.client, "a").properties.schema).names == ["id"]


def test_the_second_of_two_first_writes_adds_no_columns_uninvited(world: Any) -> None:
    first, second, merging = (
        world.writer(log="a"),
        world.writer("id long, x long", log="a"),
        world.writer("id long, x long", log="a", mergeSchema="true"),
    )
    messages = [world.task(first, [1]), *(world.task(writer, {"id": [2], "x": [3]}) for writer in (second, merging))]
    first.commit([messages[0]])
    with pytest.raises(LogSchemaError, match="other columns"):
        second.commit([messages[1]])
    merging.commit([messages[2]])
    assert world.rows("a") == [1, (2, 3)]


def test_routed_overwrites_replace_columns_too(world: Any) -> None:
    rows, schema = {"id": [1, 2], "log": ["l1", "l2"]}, "id long, log string"
    world.write(rows, schema=schema)
    other = {"text": ["x", "y"], "log": ["l1", "l2"]}
    world.write(other, schema="text string, log string", overwrite=True, overwriteSchema="true")
    assert world.rows("l1") == ["x"] and world.rows("l2") == ["y"]


def test_two_writers_create_a_log_differently(world: Any) -> None:
    one, two = world.writer(log="a"), world.writer("value string", log="a", entryFormat="raw")
    first, second = world.task(one, [1]), world.task(two, {"value": ["x"]})
    one.commit([first])
    with pytest.raises(bk_core.BkError, match="entryFormat"):
        two.commit([second])
    fewer = {"ensembleSize": "3", "writeQuorumSize": "2", "ackQuorumSize": "2"}
    data_ledgers._kept.clear()
    default = BookKeeperWriter(parse_options({"metadataServiceUri": "memory://x", "log": "d"}), world.struct("id long"), False)
    message = world.task(default, [1])
    world.write([2], log="d", **fewer)
    with pytest.raises(LogError, match="created log 'd' otherwise"):
        default.commit([message])
    assert world.rows("d") == [2]
    three = world.writer("other long", log="b")
    four = world.writer(log="b")
    messages = world.task(three, {"other": [1]}), world.task(four, [1])
    three.commit([messages[0]])
    with pytest.raises(LogSchemaError, match="other columns"):
        four.commit([messages[1]])
    assert world.rows("a") == [1] and world.rows("b") == [1]


def test_a_raw_log_loses_no_column(world: Any) -> None:
    rows = {"key": pa.nulls(1, pa.binary()), "value": [b"v"], "log": ["a"], "ledgerId": [7], "entryId": [1]}
    schema = "key binary, value binary, log string, ledgerId long, entryId long"
    world.write(rows, schema=schema, entryFormat="raw")
    assert world.rows("a") == [b"v"]  # a copy of a raw log, routed as it came
    for schema, row, text in (
        ("value binary, more int", {}, "drop 'more'"),
        ("value int", {}, "must be binary or string"),
        ("other int", {}, "named 'value'"),
        ("key binary, value binary", {"key": [b"k"], "value": [b"v"]}, "column 'key' is not all null"),
    ):
        with pytest.raises(LogSchemaError, match=text):
            world.task(world.writer(schema, log="a"), row)
    assert world.rows("a") == [b"v"]


def test_a_ledger_from_before_the_log_was_created_is_closed(world: Any) -> None:
    """And so is one of a log that was deleted and created again: what deletes the old log might still delete its ledgers."""
    world.write([1], log="a")
    world.write([2], log="a")
    assert [world.client.ledger_metadata(i).state.name for i in sorted(world.ledgers())] == ["CLOSED", "OPEN"]
    assert world.rows("a") == [1, 2] and len(intents_of(world.client, "a")) == 1
    delete_log(world.client, "a")
    world.write([3], log="a")
    assert world.rows("a") == [3] and len(world.ledgers()) == 1 == len(data_ledgers._kept)


# --- overwrite, takeOver ---------------------------------------------------------------------------------------------------------


def test_overwrite_is_one_compare_and_set(world: Any) -> None:
    world.write([1], log="a")
    data_ledgers._kept.clear()  # as if that worker were gone
    gc_log(world.client, "a", min_age_s=0)
    version = world.store.read("logs/a").version
    world.write([2], [3], log="a", overwrite=True)
    assert world.rows("a") == [2, 3] and len(world.ledgers()) == 1
    listed = read_ledger_list(world.client, "a")
    assert (listed.trimmed_seq, listed.trimmed_rows, listed.total_rows) == (1, 1, 3) and listed.condemned == ()
    assert world.store.read("logs/a").version - version <= 3  # publish, absolve what was deleted, perhaps a janitor


def test_overwrite_does_not_disturb_a_query_in_the_same_ledger(world: Any) -> None:
    world.write([1], log="a")
    other = world.task(world.stream(log="a"), [3], query="q")
    data_ledgers._kept.clear()
    world.write([2], log="a", overwrite=True)
    world.stream(log="a").commit([other], 0)
    assert world.rows("a") == [2, 3]


def test_complete_mode_replaces_the_log_with_every_batch(world: Any) -> None:
    world.create("a")
    for batch_id, ids in ((0, [1]), (1, [1, 2]), (1, [9]), (2, [])):
        stream = world.stream(log="a", overwrite=True)
        stream.commit([world.task(stream, ids, query="q")], batch_id)
        assert world.rows("a") == {0: [1], 1: [1, 2], 2: []}[batch_id]
    assert len(world.ledgers()) == 1


@pytest.mark.parametrize("overwrite", [False, True])
def test_take_over_fences_an_exclusive_writer(world: Any, overwrite: bool) -> None:
    create_log(world.client, "a", LogProperties(entry_format="raw"))
    with LogWriter.open(world.client, "a") as exclusive:
        exclusive.append(b"one")
        with pytest.raises(LogWriterAliveError, match="takeOver"):
            world.writer("value string", log="a", overwrite=overwrite)
        world.write(schema="value string", log="a", takeOver="true")
        exclusive.append(b"two")  # a batch without rows stops nobody
        world.write({"value": ["three"]}, schema="value string", log="a", takeOver="true", overwrite=overwrite)
        with pytest.raises(LogTakenOverError):
            exclusive.append(b"never")
    assert world.rows("a") == ([b"three"] if overwrite else [b"one", b"two", b"three"])


def test_a_writer_that_comes_during_the_write_is_not_written_behind(world: Any) -> None:
    create_log(world.client, "a", LogProperties(entry_format="raw"))
    writer = world.writer("value string", log="a")
    message = world.task(writer, {"value": ["x"]})
    with LogWriter.open(world.client, "a", take_over_queries=True):  # it has a ledger open, if no commit yet
        with pytest.raises(LogTakenOverError):
            writer.commit([message])
    writer.commit([message])
    assert world.rows("a") == [b"x"]


def test_a_replay_with_take_over_fences_nobody(world: Any) -> None:
    stream = world.stream("value string", log="a", entryFormat="raw", takeOver="true")
    message = world.task(stream, {"value": ["x"]}, query="q")
    stream.commit([message], 0)
    with pytest.raises(LogOfQueriesError, match="q"):
        LogWriter.open(world.client, "a")
    with LogWriter.open(world.client, "a", take_over_queries=True) as exclusive:
        stream.commit([message], 0)
        exclusive.append(b"still mine")
