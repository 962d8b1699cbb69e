"""``bk log show`` and ``bk log tail`` of logs of Arrow entries: their columns, their rows, and what their copies take."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import bk_core
from bk_core.cli import log_rows
from bk_core.client.inspect import stored_bytes
from bk_core.client.log.history import read_log
from bk_core.client.log.log import Log
from bk_core.client.log.newest import last_rows
from bk_core.client.log.sizes import log_stored_bytes
from bk_core.client.log.writer import LogWriter
from bk_spark.arrow.ddl import columns_of_ddl, ddl_of
from bk_spark.needs import check_for_tables
from tests.unit.bk_core.conftest import Bk

DDL = "id BIGINT, who STRING"


@pytest.fixture
def flights(client: bk_core.BookKeeper) -> Log:
    """Three segments of 5, 5 and 3 rows, of which the first two have several entries."""
    log = client.create_log("flights", schema=DDL)
    for first, rows in ((0, 5), (5, 5), (10, 3)):
        ids = list(range(first, first + rows))
        log.write(pa.table({"id": pa.array(ids, pa.int64()), "who": [f"w{one}" for one in ids]}), entry_size=1)
    return log


def tail(bk: Bk, *words: str, status: int = 0) -> list[Any]:
    return bk.json("tail", "flights", *words, group="log", status=status)


def test_a_schema_is_shown_as_columns(bk: Bk, flights: Log) -> None:
    shown = bk("show", "flights", group="log")
    lines = [line.split() for line in shown.splitlines()]
    assert ["column", "type"] in lines and ["id", "BIGINT"] in lines and ["who", "STRING"] in lines
    assert flights.info.properties.schema[:40] not in shown
    (told,) = bk.json("show", "flights", group="log")
    assert told["columns"] == [{"name": "id", "type": "BIGINT"}, {"name": "who", "type": "STRING"}]
    bk("create", "again", "--schema", told["schema"], group="log")  # scripts have the text that makes the same columns
    assert "BIGINT" in bk.out
    assert "BIGINT" in flights._repr_html_() and flights.info.properties.schema[:40] not in flights._repr_html_()


def test_a_log_without_columns_shows_none(bk: Bk) -> None:
    assert "column" not in bk("create", "a", group="log")
    assert bk.json("show", "a", group="log")[0]["columns"] == []
    assert bk("tail", "a", group="log") == ""


def test_without_pyarrow_the_schema_is_told_by_its_size(bk: Bk, flights: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        monkeypatch.setattr("pyarrow.__version__", "1.0")
        check_for_tables()

    monkeypatch.setattr("bk_core.client.log.tables.tables", missing)
    shown = bk("show", "flights", group="log")
    assert "characters of Arrow" in shown and 'pip install "bk-spark[arrow]"' in bk.err
    assert bk.json("show", "flights", group="log")[0]["columns"] is None


@pytest.mark.parametrize(
    "text",
    [
        "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ",
        "DECIMAL(12, 3)", "INTERVAL DAY TO SECOND", "ARRAY<INT>", "MAP<STRING, ARRAY<DATE>>", "STRUCT<a: INT, `b ``c`: STRING>",
    ],
)  # fmt: skip
def test_types_are_told_in_words_that_make_them(text: str) -> None:
    kind = columns_of_ddl(f"a {text}").field(0).type
    assert ddl_of(kind) == text and columns_of_ddl(f"a {ddl_of(kind)}").field(0).type == kind


def test_a_type_without_a_word_of_ours_has_arrows() -> None:
    assert ddl_of(pa.time64("ns")) == "time64[ns]"


@pytest.mark.parametrize(("count", "first"), [(0, 13), (1, 12), (3, 10), (4, 9), (8, 5), (10, 3), (13, 0), (99, 0)])
def test_the_last_rows_are_shown_exactly(bk: Bk, flights: Log, count: int, first: int) -> None:
    """Across entries and segments, and not whole entries."""
    assert tail(bk, "-n", str(count)) == [{"id": one, "who": f"w{one}"} for one in range(first, 13)]


def test_little_is_read_for_the_last_rows(bk: Bk, client: bk_core.BookKeeper, flights: Log) -> None:
    """The position is that of the row, not the beginning of its segment."""
    view = read_log(client, "flights")
    segment = view.segment(0)
    assert segment.entries > 1 and segment.rows_per_entry > 0
    where = last_rows(client, view, 9, b"")
    assert (where.seq, where.entry) == (0, segment.first_entry_id + 4 // segment.rows_per_entry)


def test_rows_are_a_table_with_the_columns_asked_for(bk: Bk, flights: Log) -> None:
    lines = [line.split() for line in bk("tail", "flights", "-n", "2", group="log").splitlines()]
    assert lines == [["id", "who"], ["11", "w11"], ["12", "w12"]]
    lines = [line.split() for line in bk("tail", "flights", "--from", "2", "--columns", "who", group="log").splitlines()]
    assert lines == [["who"], ["w10"], ["w11"], ["w12"]]
    assert tail(bk, "--from", "end") == [] and len(tail(bk, "--from", "first")) == 13
    bk("tail", "flights", "--columns", "whom", status=1, group="log")
    assert "did you mean 'who'?" in bk.err


def test_entries_and_payloads_are_shown_when_asked_for(bk: Bk, flights: Log) -> None:
    (entry, *_) = tail(bk, "--entries", "-n", "1")
    assert entry["seq"] == 2 and entry["payload"] and "0x" in bk("tail", "flights", "--entries", group="log")
    bk("tail", "flights", "--raw", "-n", "1", group="log")
    assert bk.raw == next(iter(flights.reader(flights.segments(2).__next__().first_position()))).payloads()[-1] + b"\n"
    for word in ("--raw", "--entries"):
        bk("tail", "flights", word, "--columns", "id", status=2, group="log")
        assert "--columns is for rows" in bk.err


def test_values_are_spelled_for_scripts_and_for_people(bk: Bk, client: bk_core.BookKeeper) -> None:
    ddl = "t TIMESTAMP, d DATE, n DECIMAL(5, 2), b BINARY, x DOUBLE, i INTERVAL DAY TO SECOND, a ARRAY<INT>, m MAP<STRING, INT>, s STRING"
    values = {
        "t": [datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)],
        "d": [date(2026, 1, 2)],
        "n": [Decimal("1.50")],
        "b": [b"\x00\xff"],
        "x": [float("nan")],
        "i": [timedelta(seconds=90)],
        "a": [[1, None]],
        "m": [[("k", 1)]],
        "s": ["\x1b[31mred\u202e" + "y" * 99],
    }
    log = client.create_log("all", schema=ddl)
    log.write(pa.table(values, schema=log.arrow_schema()))
    (row,) = bk.json("tail", "all", group="log")
    assert row == {
        "t": "2026-01-02T03:04:05+00:00", "d": "2026-01-02", "n": "1.50", "b": "AP8=", "x": "nan", "i": 90.0, "a": [1, None],
        "m": [["k", 1]], "s": values["s"][0],
    }  # fmt: skip
    shown = bk("tail", "all", group="log")
    assert "0x00ff" in shown and "[1, null]" in shown and "\x1b" not in shown and "\u202e" not in shown and "yyy ..." in shown


def test_times_that_python_has_no_value_for_are_shown(bk: Bk, client: bk_core.BookKeeper) -> None:
    log = client.create_log("far", schema="t TIMESTAMP")
    log.write(pa.table({"t": pa.array([1 << 60, 0], pa.int64()).cast(pa.timestamp("us", "UTC"))}))
    first, second = bk.json("tail", "far", group="log")
    assert "out of range" in first["t"] and second["t"].startswith("1970-01-01")


def test_rows_are_followed_also_in_a_log_that_gets_its_columns_later(bk: Bk, client: bk_core.BookKeeper) -> None:
    log = client.create_log("late", entry_format="arrow")
    stop, seen = threading.Event(), threading.Event()
    found: list[Any] = []

    def follow() -> None:
        for batch in log_rows.followed(client, "late", b"", None, log.info.end, stop):
            found.extend(batch.column(0).to_pylist())
            if len(found) == 3:
                seen.set()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        log.write(pa.table({"id": pa.array([1, 2], pa.int64())}))
        log.write(pa.table({"id": pa.array([3], pa.int64())}))
        assert seen.wait(30) and found == [1, 2, 3]
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


def test_rows_of_a_live_segment_are_shown(bk: Bk, client: bk_core.BookKeeper, flights: Log) -> None:
    (payload,) = [run.payloads()[0] for run in [next(iter(flights.reader()))]]
    with LogWriter.open(client, "flights", arrow_entries=True) as writer:
        writer.append_many([payload, payload])
        assert [row["id"] for row in tail(bk, "-n", "1")] and read_log(client, "flights").live_segments


def test_what_all_copies_of_a_log_take_is_shown(bk: Bk, client: bk_core.BookKeeper) -> None:
    """Each ledger with its own quorum: a change of the log's holds for new ones only."""
    log = client.create_log("sized", entry_format="raw", write_quorum_size=3, ack_quorum_size=2)
    with log.writer() as writer:
        writer.append_many([b"x" * 100, b"y" * 50])
    log.set(write_quorum_size=2, ack_quorum_size=2)
    with log.writer() as writer:
        writer.append_many([b"z"])
    wanted = 3 * (150 + 2 * 36) + 2 * (1 + 36)
    assert sum(stored_bytes(client.ledger_metadata(segment.ledger_id)) or 0 for segment in log.segments()) == wanted
    assert bk.json("show", "sized", group="log")[0]["storedBytes"] == wanted
    assert ["with", "copies", str(wanted)] in [line.split() for line in bk("show", "sized", group="log").splitlines()]


def test_copies_of_a_log_of_many_ledgers_are_counted_when_asked_for(
    bk: Bk, client: bk_core.BookKeeper, flights: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bk_core.cli.logs.LEDGERS_MAX", 2)
    assert bk.json("show", "flights", group="log")[0]["storedBytes"] is None
    assert "--sizes counts their copies" in (bk("show", "flights", group="log"), bk.err)[1]
    told = bk.json("show", "flights", "--sizes", group="log")[0]["storedBytes"]
    assert told == log_stored_bytes(client, read_log(client, "flights")) > 3 * flights.info.bytes
    client.delete_ledger(read_log(client, "flights").segment(0).ledger_id, even_if_listed=True)  # what is gone takes nothing
    assert 0 < bk.json("show", "flights", "--sizes", group="log")[0]["storedBytes"] < told
