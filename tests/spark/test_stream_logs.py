"""Which logs a stream reads: patterns with offsets by log, logs that are gone at a restart, logs that are not asked for any more."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from bk_core.client.log.janitor import delete_log
from bk_core.errors import InvalidArgumentError, LogDataLossError, NoSuchLogError
from tests.spark.test_stream_reader import Stream, put

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
