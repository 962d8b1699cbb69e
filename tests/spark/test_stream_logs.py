"""The logs that a stream reads: patterns with offsets by log, logs that are gone at a restart, logs that are not asked for any more."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from bk_core.client.log.janitor import delete_log
from bk_core.errors import InvalidArgumentError, LogDataLossError, LogSchemaError, NoSuchLogError
from tests.spark.test_stream_reader import SCHEMA, Stream, put

pytestmark = pytest.mark.spark
Streams = Callable[..., Stream]


@pytest.fixture
def stream(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Streams]:
    monkeypatch.setattr("bk_spark.source.following.DISCOVER_S", -1.0)
    runs: list[Stream] = []

    def stream(**options: Any) -> Stream:
        default = {} if "startingOffsetsByTimestamp" in options else {"startingOffsets": "earliest"}
        runs.append(Stream(cluster.uri, **{**default, **options}))
        return runs[-1]

    yield stream
    for run in runs:
        run.reader.stop()


@pytest.mark.parametrize("how", ["offsets", "times", "place"])
def test_offsets_by_log_are_for_a_new_query(client: Any, stream: Streams, log: str, how: str) -> None:
    """As with Kafka: a restart does not look at them, and a log that they do not name begins at its first entry."""
    put(client, f"{log}-1", range(0, 5), at_ms=1000)
    put(client, f"{log}-1", range(5, 10), at_ms=2000)
    said = {"offsets": {f"{log}-1": {"seq": 1}}, "place": {"seq": 1}, "times": {f"{log}-1": 2000}}[how]
    name = "startingOffsetsByTimestamp" if how == "times" else "startingOffsets"
    options = {"logPattern": f"{log}-[0-9]", name: json.dumps(said)}
    run = stream(**options)
    rows, here = run.drain()
    assert rows == [5, 6, 7, 8, 9]
    put(client, f"{log}-2", range(10, 12))
    again = stream(**options)
    rows, here = again.drain(here)
    assert rows == [10, 11]
    if how != "place":  # of a new query as well
        assert sorted(stream(**options).drain()[0]) == [*range(5, 12)]


def test_offsets_of_a_new_query_name_logs_that_are_there(client: Any, stream: Streams, log: str) -> None:
    put(client, f"{log}-1", range(5))
    options = {"logPattern": f"{log}-[0-9]", "startingOffsets": json.dumps({f"{log}-1": -1, f"{log}-9": -1})}
    with pytest.raises(InvalidArgumentError, match=f"startingOffsets names '{log}-9'; the pattern matches '{log}-1'"):
        stream(**options).initial()
    put(client, f"{log}-2", range(5))
    with pytest.raises(InvalidArgumentError, match="a place in one log"):
        stream(logPattern=f"{log}-[0-9]", startingOffsets='{"seq":0}').initial()


@pytest.mark.parametrize("by", ["logs", "logPattern"])
def test_a_restart_without_a_log_that_is_gone(client: Any, stream: Streams, log: str, by: str, caplog: pytest.LogCaptureFixture) -> None:
    """``failOnDataLoss=false`` holds at a restart, too; a new query does not take a wrong name for a loss."""
    put(client, f"{log}-a", range(5))
    put(client, f"{log}-b", range(5, 10))
    options = {"logs": f"{log}-a,{log}-b"} if by == "logs" else {"logPattern": f"{log}-."}
    _, here = stream(**options).drain()
    delete_log(client, f"{log}-b")
    put(client, f"{log}-a", range(10, 12))
    with pytest.raises((LogDataLossError, NoSuchLogError), match=f"{log}-b"):
        stream(**options).drain(here)
    with caplog.at_level(logging.WARNING):
        rows, there = stream(**options, failOnDataLoss="false").drain(here)
    assert rows == [10, 11] and list(there) == [f"{log}-a"]
    assert f"log '{log}-b' was deleted; what it had after row 5 is lost" in caplog.text
    if by == "logs":
        with pytest.raises(NoSuchLogError, match=f"{log}-b"):
            stream(**options, failOnDataLoss="false").initial()


def test_a_log_that_is_not_asked_for_any_more_keeps_its_place(
    client: Any, stream: Streams, log: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was called deleted. Nothing of it is lost: asked for again, it goes on where it was."""
    put(client, f"{log}-a", range(5))
    put(client, f"{log}-b", range(100, 105))
    _, here = stream(logs=f"{log}-a,{log}-b").drain()
    put(client, f"{log}-a", range(5, 7))
    put(client, f"{log}-b", range(105, 107))
    with caplog.at_level(logging.WARNING):
        rows, there = stream(logs=f"{log}-a").drain(here)
    assert rows == [5, 6] and there[f"{log}-b"] == here[f"{log}-b"]
    assert (
        "deleted" not in caplog.text
        and f"log '{log}-b' is in the checkpoint, and not asked for any more: the stream keeps its place at row" in caplog.text
    )
    assert stream(logPattern=f"{log}-[ax]").drain(there)[0] == []
    assert stream(logs=f"{log}-a,{log}-b").drain(there)[0] == [105, 106]


def test_a_batch_that_was_planned_with_a_log_is_read_whole(client: Any, stream: Streams, log: str) -> None:
    """Its offsets are in the checkpoint: a replay without the log would be another batch."""
    put(client, f"{log}-a", range(5))
    put(client, f"{log}-b", range(100, 105))
    run = stream(logs=f"{log}-a,{log}-b")
    start = run.initial()
    end = run.latest(start)
    fewer = stream(logs=f"{log}-a")
    fewer.latest(end)
    assert sorted(fewer.rows(start, end)) == sorted(run.rows(start, end)) == [*range(5), *range(100, 105)]
    delete_log(client, f"{log}-b")
    with pytest.raises(LogDataLossError, match="deleted"):
        fewer.rows(start, end)


# --- logs that are not there yet, or have no columns yet ------------------------------------------------------------------


def drained(run: Stream, start: dict[str, Any]) -> tuple[list[int], dict[str, Any]]:
    """Return what a run reads once its watch has told it of the log's change."""
    pause = threading.Event()
    deadline = time.monotonic() + 20
    while run.latest(start) == start and time.monotonic() < deadline:
        pause.wait(0.02)
    return run.drain(start)


@pytest.mark.parametrize("begin", ["earliest", "latest"])
def test_a_log_that_is_missing_is_waited_for(client: Any, stream: Streams, log: str, begin: str) -> None:
    options = {"log": log, "schema": SCHEMA, "startingOffsets": begin}
    with pytest.raises(NoSuchLogError):
        stream(**options)
    run = stream(**options, waitForLog="true")
    start = run.initial()
    assert start == {} and run.latest(start) == {} and run.rows(start, start) == []
    client.create_log(log, entry_format="arrow")
    assert run.latest(start) == {}  # it has no columns, so nobody knows yet if they fit
    put(client, log, range(5))
    rows, here = drained(run, start)
    assert rows == [0, 1, 2, 3, 4]
    put(client, log, range(5, 7))
    assert stream(**options, waitForLog="true").drain(here)[0] == [5, 6]


def test_a_log_without_columns_is_waited_for_by_who_gives_them(client: Any, stream: Streams, log: str) -> None:
    made = client.create_log(log, entry_format="arrow")
    with pytest.raises(LogSchemaError, match=r"has no schema yet: .*a stream with \.schema\(\.\.\.\) waits"):
        stream(log=log)
    run = stream(log=log, schema=SCHEMA, startingOffsets="latest")
    start = run.initial()
    assert list(start) == [log] and run.latest(start) == start
    put(client, log, range(5))
    rows, here = drained(run, start)
    assert rows == [0, 1, 2, 3, 4]
    made.delete()
    with pytest.raises(LogDataLossError, match="deleted"):
        drained(run, here)


@pytest.mark.parametrize("exists", [True, False])
def test_columns_that_come_must_be_those_that_are_asked_for(client: Any, stream: Streams, log: str, exists: bool) -> None:
    if exists:
        client.create_log(log, entry_format="arrow")
    narrow = StructType([StructField("id", IntegerType())])
    more = StructType([StructField("id", LongType()), StructField("v", LongType())])
    runs = [stream(log=log, schema=schema, waitForLog="true") for schema in (narrow, more)]
    starts = [run.initial() for run in runs]
    put(client, log, range(5))
    for run, start, said in zip(runs, starts, ("'id' as int, which is 'id' bigint", "'v' as bigint, which is not there"), strict=True):
        with pytest.raises(LogSchemaError, match=said):
            drained(run, start)


def test_a_log_of_raw_entries_is_not_what_was_waited_for(client: Any, stream: Streams, log: str) -> None:
    run = stream(log=log, schema=SCHEMA, waitForLog="true")
    start = run.initial()
    client.create_log(log)
    with pytest.raises(LogSchemaError, match="another entry format"):
        run.latest(start)


def test_a_pattern_may_wait_for_its_first_log(client: Any, stream: Streams, log: str) -> None:
    options = {"logPattern": f"{log}-.", "schema": SCHEMA}
    with pytest.raises(NoSuchLogError):
        stream(**options)
    run = stream(**options, waitForLog="true")
    start = run.initial()
    put(client, f"{log}-a", range(5))
    assert drained(run, start)[0] == [0, 1, 2, 3, 4]


def test_a_run_that_ends_does_not_wait(client: Any, stream: Streams, log: str) -> None:
    run = stream(log=log, schema=SCHEMA, waitForLog="true")
    run.reader.prepareForTriggerAvailableNow()
    start = run.initial()
    put(client, log, range(5))
    assert run.latest(start) == {}


def test_waiting_needs_columns(stream: Streams, log: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"waitForLog is for a stream that is told its columns: \.schema"):
        stream(log=log, waitForLog="true")


def test_a_log_that_is_gone_is_lost_and_not_waited_for(client: Any, stream: Streams, log: str) -> None:
    put(client, log, range(5))
    _, here = stream(log=log, schema=SCHEMA, waitForLog="true").drain()
    delete_log(client, log)
    with pytest.raises(LogDataLossError, match="was deleted"):
        stream(log=log, schema=SCHEMA, waitForLog="true").drain(here)


def test_a_named_reader_that_waited_begins_at_the_first_entry(client: Any, stream: Streams, log: str) -> None:
    options = {"log": log, "schema": SCHEMA, "waitForLog": "true", "readerName": "r", "startingOffsets": "latest"}
    assert stream(**options).initial() == {}
    put(client, log, range(5))
    assert stream(**options).drain()[0] == [0, 1, 2, 3, 4]


def test_a_missing_log_is_not_asked_for_in_every_trigger(cluster: Any, client: Any, log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("bk_spark.source.following.DISCOVER_S", 3600.0)
    run = Stream(cluster.uri, log=log, schema=SCHEMA, waitForLog="true")
    start = run.initial()
    monkeypatch.setattr("bk_spark.source.following.read_log", lambda _, name: asked.append(name))
    try:
        for _ in range(10):
            assert run.latest(start) == {}
        assert asked == []
    finally:
        run.reader.stop()
