"""Reads of logs as tables that end before their end: an interrupt, a consumer that has enough, a log that goes away under them."""

from __future__ import annotations

import os
import signal
import threading
from importlib.util import find_spec
from typing import Any

import pyarrow as pa
import pytest

import bk_core
from bk_core.client.log.reader import LogReader
from bk_core.errors import ArgumentTypeError, InvalidArgumentError, LogDataLossError, NoSuchLogError
from bk_core.protocol.log.position import Position
from tests.unit.spark.conftest import World


@pytest.fixture
def client(world: World) -> bk_core.BookKeeper:
    found: bk_core.BookKeeper = world.client
    return found


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


@pytest.fixture
def log(client: bk_core.BookKeeper) -> bk_core.Log:
    """Six ledgers, so that a read opens some ahead."""
    made = client.create_log("flights", schema="id BIGINT")
    for n in range(6):
        made.write(ids(*range(n * 50_000, (n + 1) * 50_000)))
    return made


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("bk-")}


@pytest.fixture
def before(log: bk_core.Log) -> set[threading.Thread]:
    """Threads that others have left running in this process, such as a checkpoint's gateway."""
    return threads()


def test_an_interrupt_ends_a_read_and_leaves_nothing_behind(log: bk_core.Log, before: set[threading.Thread]) -> None:
    taken = 0

    def take(batches: pa.RecordBatchReader) -> None:
        nonlocal taken
        for batch in batches:
            taken += batch.num_rows
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        take(log.to_batches())
    assert 0 < taken < 300_000 and threads() <= before
    assert log.to_arrow().num_rows == 300_000


@pytest.mark.parametrize("how", ["next", "read_all"])
def test_an_interrupt_ends_a_follower_that_waits(
    log: bk_core.Log, before: set[threading.Thread], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Nobody writes, and there is no event to stop it by."""
    wait = LogReader.wait

    def interrupted(reader: LogReader, timeout_s: float) -> bool:
        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()
        return wait(reader, 30.0)

    monkeypatch.setattr(LogReader, "wait", interrupted)
    batches = log.follow_batches(start="latest")
    with pytest.raises(KeyboardInterrupt):
        getattr(batches, "read_next_batch" if how == "next" else how)()
    with pytest.raises(StopIteration):
        batches.read_next_batch()  # any error ends it
    assert threads() <= before


@pytest.mark.parametrize("library", ["polars", "duckdb"])
def test_errors_that_pass_through_other_libraries_say_what_happened(log: bk_core.Log, library: str) -> None:
    """These make errors of their own of them, with the text of ours."""
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    rows = log.to_batches()
    log.trim(before=log.info.end)
    with pytest.raises(Exception, match="BK-LOG-DATA-LOSS.*They were trimmed while they were read: read the log again"):
        if library == "polars":
            import polars

            polars.DataFrame(rows)
        else:
            import duckdb

            duckdb.sql("SELECT sum(id) FROM rows").fetchall()


def test_a_log_without_rows_is_a_table_without_rows(client: bk_core.BookKeeper) -> None:
    log = client.create_log("empty", schema="id BIGINT, name STRING")
    assert log.to_arrow() == log.arrow_schema().empty_table() and log.to_arrow(columns=["name"]).column_names == ["name"]
    assert list(log.to_batches(start="latest")) == [] and log.to_pandas().shape == (0, 2)
    stop = threading.Event()
    stop.set()
    assert list(log.follow_batches(stop=stop)) == []


def test_a_follower_ends_with_its_log_and_behind_a_trim(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threads()
    log = client.create_log("flights", schema="id BIGINT")
    log.write(ids(1))
    behind, left = log.follow_batches(), log.follow_batches()
    next(behind)
    next(left)
    for number in (2, 3):
        log.write(ids(number))
    log.trim(before=log.info.end)
    with pytest.raises(LogDataLossError, match="segments 1..2 were trimmed before this reader had read them"):
        next(behind)
    wait = LogReader.wait

    def deleted(reader: LogReader, timeout_s: float) -> bool:
        monkeypatch.undo()
        log.delete()
        return wait(reader, 30.0)

    waiting = log.follow_batches(start="latest")
    monkeypatch.setattr(LogReader, "wait", deleted)
    with pytest.raises(NoSuchLogError):
        next(waiting)
    assert threads() <= before


@pytest.mark.parametrize("start", [0, None, True, 1.5, b"earliest"])
def test_a_place_is_a_word_a_position_or_a_time(log: bk_core.Log, start: Any) -> None:
    for read in (log.to_batches, log.to_arrow, log.follow_batches):
        with pytest.raises(ArgumentTypeError, match='start must be "earliest", "latest", a Position or a datetime, not'):
            read(start=start)


@pytest.mark.parametrize("columns", ["id", b"id", [1], {"id"}, iter(["id"]), [None]])
def test_columns_are_a_sequence_of_names(log: bk_core.Log, columns: Any) -> None:
    for read in (log.to_batches, log.to_arrow, log.follow_batches, log.arrow_schema):
        with pytest.raises(ArgumentTypeError, match="columns must be a sequence of texts or None"):
            read(columns=columns)
    assert log.to_arrow(columns=("id",)).num_rows == 300_000


def test_a_place_behind_an_entry_is_refused_with_where_it_ends(log: bk_core.Log) -> None:
    for where, said in (
        ({"start": Position(0, 99)}, "segment 0, entry 99 lies beyond the end of segment 0 of log 'flights', whose last entry is 1"),
        ({"end": Position(9)}, "segment 9, entry 0 lies beyond the end of log 'flights', which is segment 6, entry 0"),
        ({"start": "latest", "end": "earliest"}, r"start \(segment 6, entry 0\) lies behind end \(segment 0, entry 0\)"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            log.to_batches(**where)
