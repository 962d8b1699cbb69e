"""The driver side of a stream, called as Spark's source runner calls it, over bookies and without a JVM."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows
from pyspark.sql.types import LongType, StructField, StructType

import bk_spark.source.following
from bk_core.client.log.history import read_log, update_ledger_list
from bk_core.client.log.janitor import delete_log, trim_log
from bk_core.client.log.list_store import now_ms, read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.writer import LogWriter
from bk_core.errors import (
    InvalidArgumentError,
    LogDataLossError,
    LogSchemaError,
    MetadataUnavailableError,
    NoSuchLogError,
    WrongPasswordError,
)
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.ledger_list import LogProperties
from bk_core.protocol.log.offset import KEYS
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import SegmentRange
from bk_spark.datasource import schema_of
from bk_spark.entries.packing import pack_arrow
from bk_spark.options.table import parse_options
from bk_spark.schemas import arrow_schema, schema_text
from bk_spark.source.stream import BookKeeperStreamReader

pytestmark = pytest.mark.spark
SCHEMA = StructType([StructField("id", LongType())])
Offset = dict[str, Any]


class Stream:
    """One run of a query: every offset goes through JSON text and every partition through pickle, as in Spark."""

    def __init__(self, uri: str, schema: StructType | None = None, whole: StructType | None = None, **options: str) -> None:
        """``schema``: a user's, or a table's. ``whole``: what the source said when the DataFrame was made, now by default."""
        parsed = parse_options({"bookkeeper.metadataServiceUri": uri, **options})
        self.reader = BookKeeperStreamReader(parsed, schema or whole or schema_of(parsed), inferred=schema is None)
        self.limit: Any = self.reader.getDefaultReadLimit()

    def initial(self) -> Offset:
        return through_text(self.reader.initialOffset())

    def latest(self, start: Offset, limit: Any = None) -> Offset:
        return through_text(self.reader.latestOffset(start, limit or self.limit))

    def rows(self, start: Offset, end: Offset) -> list[int]:
        task = pickle.loads(pickle.dumps(self.reader))
        partitions = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        column = next(iter(set(task._schema.names) & {"id", "value"}))
        found = [value for p in partitions for batch in task.read(p) for value in batch.column(column).to_pylist()]
        return [int(value) for value in found]

    def batches(self, start: Offset | None = None, limit: Any = None) -> Iterator[tuple[list[int], Offset]]:
        """Until nothing is new."""
        here = self.initial() if start is None else start
        while (end := self.latest(here, limit)) != here:
            yield self.rows(here, end), end
            here = end

    def drain(self, start: Offset | None = None) -> tuple[list[int], Offset]:
        here, rows = self.initial() if start is None else start, []
        for batch, end in self.batches(here):
            rows, here = rows + batch, end
        return rows, here


def through_text(offset: Offset) -> Offset:
    return dict(json.loads(json.dumps(offset)))


@pytest.fixture
def stream(cluster: Any, log: str) -> Iterator[Callable[..., Stream]]:
    runs: list[Stream] = []

    def stream(**options: str) -> Stream:
        where = {} if options.keys() & {"log", "logs", "logPattern"} else {"log": log}
        runs.append(Stream(cluster.uri, **where, **{"startingOffsets": "earliest", **options}))
        return runs[-1]

    yield stream
    for run in runs:
        run.reader.stop()
    deadline = time.monotonic() + 10
    for thread in threading.enumerate():
        if thread.name.startswith(("bk-lists", "bk-tail")):
            thread.join(max(0.0, deadline - time.monotonic()))
            assert not thread.is_alive(), thread.name


def put(client: Any, log: str, rows: range, *, per_entry: int = 1 << 20, at_ms: int | None = None) -> None:
    """Commit rows as one segment of entries with ``per_entry`` rows; the first write makes the log."""
    create_log(client, log, LogProperties(entry_format="arrow"), exist_ok=True)
    schema = arrow_schema(SCHEMA)
    batch = pa.record_batch([pa.array(rows, pa.int64())], schema=schema)
    pieces = [batch.slice(start, per_entry) for start in range(0, len(rows), per_entry)]
    runs = [run for piece in pieces for run in pack_arrow(iter([piece]), schema, 1 << 20)]
    with client.create_ledger(custom={"log": log.encode()}) as ledger:
        for run in runs:
            ledger.append_run(run.payloads, run.offsets)
        size = sum(run.bytes for run in runs)
        segment = SegmentRange(ledger.ledger_id, 0, len(runs) - 1, len(rows), size, min(per_entry, len(rows)))
    update_ledger_list(
        client,
        log,
        lambda listed: listed.set_schema(schema_text(SCHEMA)).append_segments([segment], at_ms or now_ms(), f"q{segment.ledger_id}", 0),
    )


# --- admission --------------------------------------------------------------------------------------------------------


def test_rows_per_trigger_are_exact_inside_entries(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    put(client, log, range(0, 25), per_entry=10)
    put(client, log, range(25, 60), per_entry=7)
    run = stream(maxRowsPerTrigger="8")
    assert run.limit == ReadMaxRows(8)
    batches = list(run.batches())
    assert [rows for rows, _ in batches] == [list(range(i, min(i + 8, 60))) for i in range(0, 60, 8)]
    offset = batches[0][1][log]
    assert tuple(offset) == KEYS and (offset["seq"], offset["entry"], offset["row"], offset["rows"]) == (0, 0, 8, 8)
    assert [end[log]["rows"] for _, end in batches] == [*range(8, 60, 8), 60]
    # a restart anywhere goes on just there
    assert stream(maxRowsPerTrigger="8").drain(batches[2][1])[0] == list(range(24, 60))


def test_bytes_per_trigger_are_exact(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    create_log(client, log, LogProperties(entry_format="raw"))
    sizes = [1, 50, 3, 200, 1, 1, 60, 7, 90]
    with client.create_ledger(custom={"log": log.encode()}) as ledger:
        ledger.append_many([str(i).zfill(size).encode() for i, size in enumerate(sizes)])
    segment = SegmentRange(ledger.ledger_id, 0, len(sizes) - 1, len(sizes), sum(sizes), 1)
    update_ledger_list(client, log, lambda listed: listed.append_segments([segment], now_ms(), "q", 0))
    run = stream(maxBytesPerTrigger="64b")
    assert run.limit == ReadMaxBytes(64)
    batches = list(run.batches())
    assert [rows for rows, _ in batches] == [[0, 1, 2], [3], [4, 5, 6], [7], [8]]
    assert [end[log]["bytes"] for _, end in batches] == [54, 254, 316, 323, 413]


def test_all_available_is_obeyed(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    put(client, log, range(30), per_entry=10)
    run = stream(maxRowsPerTrigger="8", minOffsetsPerTrigger="8")
    run.reader._delay.went(10**12)
    assert [rows for rows, _ in run.batches(limit=ReadAllAvailable())] == [list(range(30))]


def test_few_rows_wait_for_more_or_for_the_delay(
    client: Any, log: str, stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = 0
    monkeypatch.setattr("bk_spark.source.stream._clock_ms", lambda: clock)
    put(client, log, range(5))
    run = stream(minOffsetsPerTrigger="10", maxTriggerDelay="30s")
    assert run.limit == ReadMinRows(10)
    first = run.latest(run.initial())  # the first batch of a run does not wait
    assert run.rows(run.initial(), first) == [0, 1, 2, 3, 4]
    put(client, log, range(5, 9))
    run.reader._logs.snapshots(fresh=True)  # type: ignore[union-attr]
    clock = 29_999
    assert run.latest(first) == first
    clock = 30_000
    second = run.latest(first)
    assert run.rows(first, second) == [5, 6, 7, 8]
    put(client, log, range(9, 19))
    run.reader._logs.snapshots(fresh=True)  # type: ignore[union-attr]
    assert run.rows(second, run.latest(second)) == list(range(9, 19))
    again = stream(minOffsetsPerTrigger="1000")
    again.reader.prepareForTriggerAvailableNow()
    again.reader._delay.went(0)
    assert again.drain()[0] == list(range(19))


def test_available_now_ends_where_it_was_prepared(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    put(client, log, range(10))
    run = stream(maxRowsPerTrigger="4")
    run.reader.prepareForTriggerAvailableNow()  # before initialOffset, after a restart too
    put(client, log, range(10, 20))
    rows, end = run.drain()
    assert rows == list(range(10))
    again = stream(maxRowsPerTrigger="4")
    again.reader.prepareForTriggerAvailableNow()
    put(client, log, range(20, 30))
    assert again.drain(end)[0] == list(range(10, 20))


# --- several logs ------------------------------------------------------------------------------------------------------


def test_logs_share_a_limit(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    put(client, f"{log}-a", range(0, 90))
    put(client, f"{log}-b", range(1000, 1010))
    run = stream(logs=f"{log}-b, {log}-a", maxRowsPerTrigger="50")
    batches = [rows for rows, _ in run.batches()]
    assert [len(rows) for rows in batches] == [50, 50]
    assert [sum(1 for row in rows if row >= 1000) for rows in batches] == [5, 5]
    assert sorted(row for rows in batches for row in rows) == [*range(90), *range(1000, 1010)]
    assert list(run.initial()) == [f"{log}-a", f"{log}-b"]


def test_a_pattern_finds_new_logs(client: Any, log: str, stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bk_spark.source.following, "DISCOVER_S", -1.0)
    put(client, f"{log}-1", range(0, 5))
    put(client, f"{log}-x", range(900, 905))
    run = stream(logPattern=f"{log}-[0-9]", startingOffsets="latest")
    rows, here = run.drain()
    assert rows == [] and list(here) == [f"{log}-1"]
    put(client, f"{log}-2", range(10, 15))
    put(client, f"{log}-1", range(5, 7))
    run.reader._logs.snapshots(fresh=True)  # type: ignore[union-attr]
    batches = list(run.batches(here))
    assert sorted(row for rows, _ in batches for row in rows) == [5, 6, 10, 11, 12, 13, 14]
    pinned = batches[0][1][f"{log}-2"]  # the batch that finds a log pins its first entry, and reads none of it
    assert (pinned["seq"], pinned["rows"]) == (0, 0)
    delete_log(client, f"{log}-2")
    here = batches[-1][1]
    with pytest.raises(LogDataLossError, match="was deleted; what it had after row 5"):
        run.latest(here)
    lossy = stream(logPattern=f"{log}-[0-9]", failOnDataLoss="false")
    rows, here = lossy.drain(here)
    assert rows == [] and list(here) == [f"{log}-1"]


def test_a_pattern_must_match_a_whole_name(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    put(client, log, range(1))
    with pytest.raises(NoSuchLogError, match="matches no log"):
        stream(logPattern=log[:-1])


def test_logs_must_have_one_schema(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    put(client, f"{log}-a", range(1))
    create_log(client, f"{log}-b", LogProperties(entry_format="raw"))
    with pytest.raises(LogSchemaError):
        stream(logs=f"{log}-a,{log}-b")


# --- where to begin -----------------------------------------------------------------------------------------------------


def test_offsets_by_position_and_ledger(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    put(client, log, range(0, 20), per_entry=10)
    put(client, log, range(20, 40), per_entry=10)
    ledger = read_log(client, log).segment(1).ledger_id
    for starting, first in (
        ("earliest", 0),
        ("latest", 40),
        ('{"seq":0,"entry":1,"row":3}', 13),
        (json.dumps({"ledgerId": ledger, "entryId": 1}), 30),
        (json.dumps({log: -2}), 0),
        (json.dumps({log: -1}), 40),
        (json.dumps({log: {"seq": 1}}), 20),
    ):
        assert stream(startingOffsets=starting).drain()[0] == list(range(first, 40)), starting
    progress = json.dumps(stream(startingOffsets='{"seq":1}').initial())
    assert stream(startingOffsets=progress).drain()[0] == list(range(20, 40))
    with pytest.raises(InvalidArgumentError, match="leaves out"):
        stream(startingOffsets='{"other":-2}').initial()
    with pytest.raises(InvalidArgumentError, match="beyond the end"):
        stream(startingOffsets='{"seq":7}').initial()


def test_offsets_by_time(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    for i in range(3):
        put(client, log, range(i * 10, i * 10 + 10), at_ms=1_700_000_000_000 + i * 1000)
    for options, first in (
        ({"startingTimestamp": "1700000001000"}, 10),
        ({"startingTime": "2023-11-14T22:13:20.500Z"}, 10),
        ({"startingOffsetsByTimestamp": json.dumps({log: "2023-11-14T22:13:22+00:00"})}, 20),
        ({"startingTimestamp": "0", "startingOffsetsByTimestamp": json.dumps({log: 1700000002000})}, 0),
        ({"startingTimestamp": "1700000002001", "startingOffsetsByTimestampStrategy": "latest"}, 30),
    ):
        assert stream(**options).drain()[0] == list(range(first, 30)), options
    with pytest.raises(InvalidArgumentError, match="no commit at or after"):
        stream(startingTimestamp="1700000002001").initial()


def test_a_stream_has_no_end(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    put(client, log, range(1))
    for option in ("endingOffsets", "endingTimestamp"):
        with pytest.raises(InvalidArgumentError, match="a stream has no end"):
            stream(**{option: "latest" if option == "endingOffsets" else "0"})


# --- the first offset (spark-connectors.md 5.6) -----------------------------------------------------------------------


def test_the_first_offset_is_fixed_for_a_run(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    put(client, log, range(5))
    run = stream(startingOffsets="latest")
    first = run.initial()
    put(client, log, range(5, 10))
    assert run.initial() == first
    wait_for_rows(run, first, [5, 6, 7, 8, 9])


@pytest.mark.parametrize(("name", "value"), [("entrySize", "64k"), ("compression", "zstd"), ("createLogs", "true")])
def test_options_that_would_do_nothing_are_errors(client: Any, log: str, stream: Callable[..., Stream], name: str, value: str) -> None:
    put(client, log, range(5))
    with pytest.raises(InvalidArgumentError, match=f"{name} does nothing in a stream"):
        stream(**{name: value})


@pytest.mark.parametrize("limit", [None, ReadAllAvailable(), ReadMinRows(100)])
def test_a_first_batch_may_be_empty(client: Any, log: str, stream: Callable[..., Stream], limit: Any) -> None:
    """To Spark every offset is new to a query without any, so it plans a batch 0 even if nothing came (spark-connectors.md 5.6)."""
    put(client, log, range(5))
    run = stream(startingOffsets="latest")
    start = run.initial()
    end = run.latest(start, limit)
    assert end == start and run.rows(start, end) == []
    put(client, log, range(5, 10))
    wait_for_rows(run, end, [5, 6, 7, 8, 9])


def test_a_restart_before_batch_0_commits(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    """The trace of spark-connectors.md 5.6: run 2 asks for the first offset again and gets the end that run 1 planned: silent loss, if
    nobody looks."""
    put(client, log, range(5))
    run = stream(startingOffsets="latest")
    start = run.initial()
    put(client, log, range(5, 10))
    end = wait_for_rows(run, start, [5, 6, 7, 8, 9])
    again = stream(startingOffsets="latest")
    assert again.initial() == end != start  # nothing came meanwhile, so start > end would not notice it
    with pytest.raises(LogDataLossError, match="readerName"):
        again.rows(again.initial(), end)
    put(client, log, range(10, 12))
    later = stream(startingOffsets="latest")
    with pytest.raises(LogDataLossError):
        later.rows(later.initial(), end)
    assert stream(startingOffsets="latest", failOnDataLoss="false").rows(start, end) == [5, 6, 7, 8, 9]
    fixed = stream(startingOffsets="earliest")
    assert fixed.rows(fixed.initial(), end) == list(range(10))  # the first entry is the same place for every run


def test_offsets_never_run_backwards(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    put(client, log, range(5))
    run = stream()
    start = run.initial()
    end = run.latest(start)
    for lossy in ("true", "false"):
        with pytest.raises(LogDataLossError, match="run backwards"):
            stream(failOnDataLoss=lossy).rows(end, start)


def test_a_named_reader_begins_where_it_began(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    put(client, f"{log}-a", range(5))
    put(client, f"{log}-b", range(100, 105))
    options = {"logPattern": f"{log}-.", "startingOffsets": "latest", "predefinedSubscription": "me"}
    run = stream(**options)
    start = run.initial()
    put(client, f"{log}-a", range(5, 10))
    end = wait_for_rows(run, start, [5, 6, 7, 8, 9])
    put(client, f"{log}-a", range(10, 12))
    again = stream(**options)
    assert again.initial() == start
    assert again.rows(again.initial(), end) == [5, 6, 7, 8, 9]
    assert client.store.children(f"readers/{log}-a") == client.store.children(f"readers/{log}-b") == ["me"]
    other = stream(**{**options, "predefinedSubscription": "you"})
    assert other.initial() != start


# --- losses -------------------------------------------------------------------------------------------------------------


def test_a_trimmed_log(client: Any, log: str, stream: Callable[..., Stream], caplog: pytest.LogCaptureFixture) -> None:
    for i in range(3):
        put(client, log, range(i * 10, i * 10 + 10))
    size = read_log(client, log).segment(0).bytes
    run = stream(maxRowsPerTrigger="3")
    start = run.initial()
    end = run.latest(start)
    trim_log(client, log, before=Position(1))
    with pytest.raises(LogDataLossError, match=rf"10 rows \({size} bytes\) from segment 0, entry 0 up to segment 1 are lost"):
        stream().latest(start)
    with pytest.raises(LogDataLossError, match="was trimmed"):
        stream().rows(start, end)
    lossy = stream(failOnDataLoss="false", maxRowsPerTrigger="8")
    assert lossy.rows(start, end) == []
    batches = list(lossy.batches(end))
    assert [rows for rows, _ in batches] == [list(range(10, 18)), list(range(18, 26)), list(range(26, 30))]
    assert [end[log]["rows"] for _, end in batches] == [18, 26, 30]
    assert any("are lost" in record.message for record in caplog.records)


def test_a_recreated_log(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    put(client, log, range(10))
    _, end = stream().drain()
    delete_log(client, log)
    put(client, log, range(100, 103))
    with pytest.raises(LogDataLossError, match=r"deleted and created again: .*after row 10 \(segment 1"):
        stream().latest(end)
    lossy = stream(failOnDataLoss="false")
    rows, there = lossy.drain(end)
    assert rows == [100, 101, 102] and there[log]["rows"] == 3
    # a batch that was planned in the old log is gone
    with pytest.raises(LogDataLossError, match="deleted or recreated"):
        stream().rows(through_text(end), through_text(end))
    assert lossy.rows(end, end) == []


def test_a_list_from_a_backup(client: Any, log: str, stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_spark.source.stream.CATCH_UP_S", 0.2)
    put(client, log, range(5))
    old = read_ledger_list(client, log)
    put(client, log, range(5, 10))
    _, end = stream().drain()
    update_ledger_list(client, log, lambda current: old)
    for lossy in ("true", "false"):
        with pytest.raises(LogDataLossError, match="ends before the offset"):
            stream(failOnDataLoss=lossy).latest(end)


def test_a_live_ledger_that_is_gone(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    create_log(client, log, LogProperties(entry_format="raw"))
    with client.create_ledger(custom={"log": log.encode()}) as ledger:
        update_ledger_list(client, log, lambda listed: listed.add_live_segment(ledger.ledger_id, now_ms()))
        start = stream(openLedgers="lac").initial()
    client.delete_ledger(ledger.ledger_id, even_if_listed=True)
    for mode in ("lac", "skip", "recover"):
        with pytest.raises(LogDataLossError, match="lists a live ledger that does not exist"):
            stream(openLedgers=mode).latest(start)


# --- the live segment ----------------------------------------------------------------------------------------------------


@contextmanager
def writing(client: Any, log: str, **options: Any) -> Iterator[LogWriter]:
    create_log(client, log, LogProperties(entry_format="raw"), exist_ok=True)
    with LogWriter.open(client, log, **options) as writer:
        yield writer


def wait_for_rows(run: Stream, start: Offset, rows: list[int]) -> Offset:
    """Ask again and again, as idle triggers do."""
    end, pause = start, threading.Event()
    for _ in range(200):
        end = run.latest(start)
        if end != start and len(run.rows(start, end)) == len(rows):
            break
        pause.wait(0.05)
    assert run.rows(start, end) == rows
    return end


def test_a_live_segment_is_skipped_followed_or_recovered(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    with writing(client, log) as writer:
        for i in range(4):
            writer.append(b"%d" % i)
        assert stream().drain()[0] == []
        run = stream(openLedgers="lac", maxRowsPerTrigger="2")
        rows, here = run.drain()
        writer.append(b"4")
        writer.append(b"5")  # confirms the entry before it, if nothing else has
        for _ in range(500):
            if len(rows) >= 5:
                break
            more, here = run.drain(here)
            rows += more
            threading.Event().wait(0.02)
        assert len(rows) >= 5 and rows == list(range(len(rows)))
        offset = here[log]
        assert (offset["seq"], offset["entry"], offset["rows"], offset["bytes"]) == (0, len(rows), len(rows), len(rows))
        ledger = writer.ledger_id
        assert client.ledger_metadata(ledger).state is LedgerState.OPEN  # nothing was fenced
        assert stream().latest(here) == here  # skip: what is behind it waits for the close
    rest, end = stream().drain(here)
    assert rows + rest == list(range(6)) and end[log]["rows"] == 6  # the offset stays valid when the segment is closed
    with writing(client, log) as writer:
        writer.append(b"6")
        rows, end = stream(openLedgers="recover").drain(end)
        assert rows == [6]
        assert client.ledger_metadata(writer.ledger_id).state is LedgerState.CLOSED
    with writing(client, log) as writer:
        writer.append(b"7")
        client.recover_ledger(writer.ledger_id).close()  # its writer is dead: CLOSED, though the list still calls it live
        assert read_log(client, log).live_segments
        assert stream().drain(end)[0] == [7]


def test_a_planned_batch_of_a_live_segment_is_replayed(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    with writing(client, log) as writer:
        for i in range(6):
            writer.append(b"%d" % i)
        run = stream(openLedgers="lac")
        start = run.initial()
        end = run.latest(start)
        count = end[log]["rows"]
        assert count >= 5
        assert stream().rows(start, end) == list(range(count))  # another run, which follows nothing, knows it from the offset
    assert stream().rows(start, end) == list(range(count))


def test_a_writer_is_followed_through_its_rolls(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    rows: list[int] = []
    with writing(client, log, roll_max_bytes=40) as writer:
        run = stream(openLedgers="lac", maxRowsPerTrigger="7")
        here = run.initial()
        for i in range(100):
            writer.append(b"%02d" % i)
            end = run.latest(here)
            assert end[log]["rows"] <= i + 1
            rows, here = rows + run.rows(here, end), end
        assert here[log]["rows"] == len(rows) > 0
    assert read_log(client, log).next_seq > 3
    again = stream(openLedgers="lac")
    again.reader.prepareForTriggerAvailableNow()
    more, here = again.drain(here)
    assert rows + more == list(range(100)) and (here[log]["rows"], here[log]["bytes"]) == (100, 200)


def test_a_password_opens_what_is_followed(client: Any, log: str, stream: Callable[..., Stream]) -> None:
    with writing(client, log, password=b"sesame") as writer:
        writer.append(b"0")
        writer.append(b"1")
        assert stream(openLedgers="lac", password="sesame").drain()[0][:1] == [0]
        with pytest.raises(WrongPasswordError):
            stream(openLedgers="lac").drain()


def test_a_password_in_a_file_opens_what_is_followed(client: Any, log: str, stream: Callable[..., Stream], tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("sesame\n")
    with writing(client, log, password=b"sesame") as writer:
        writer.append(b"0")
        writer.append(b"1")
        assert stream(openLedgers="lac", passwordFile=str(file)).drain()[0][:1] == [0]


# --- freshness, retries, lag ---------------------------------------------------------------------------------------------


class Counting:
    """A store that counts reads of lists, and fails now and then."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.reads = 0
        self.failures = 0

    def read_here(self, path: str) -> Any:
        self.reads += path.startswith("logs/")
        if self.failures:
            self.failures -= 1
            raise MetadataUnavailableError("away for a moment")
        return self._store.read_here(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_an_idle_trigger_reads_no_list(
    client: Any, log: str, stream: Callable[..., Stream], monkeypatch: pytest.MonkeyPatch, cluster: Any
) -> None:
    put(client, log, range(5))
    run = stream()
    here = run.drain()[1]
    followed = run.reader._logs._followed[log]  # type: ignore[union-attr]
    counting = Counting(followed._client.store)
    monkeypatch.setattr(followed._client, "store", counting)
    for _ in range(10):
        assert run.latest(here) == here
    assert counting.reads == 0
    changed = threading.Event()
    watch = counting.watch(f"logs/{log}", changed.set)
    put(client, log, range(5, 7))
    assert changed.wait(10)
    watch.cancel()
    wait_for_rows(run, here, [5, 6])
    assert counting.reads <= 2
    followed._watch.cancel()
    monkeypatch.setattr(bk_spark.source.following, "RELIST_S", 0.2)
    put(client, log, range(7, 8))
    wait_for_rows(run, here, [5, 6, 7])  # without a watch, only later
    counting.failures = 3
    followed._stale.set()
    put(client, log, range(8, 9))
    wait_for_rows(run, here, [5, 6, 7, 8])
    assert counting.failures == 0


def test_lag_is_reported(client: Any, log: str, stream: Callable[..., Stream], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "bk_spark.stream")
    put(client, log, range(10), per_entry=5, at_ms=now_ms() - 60_000)
    put(client, log, range(10, 20), per_entry=5)
    run = stream(maxRowsPerTrigger="4")
    end = run.latest(run.initial())
    latest = through_text(run.reader.reportLatestOffset())
    assert latest[log]["rows"] == 20 and latest[log]["bytes"] == sum(s.bytes for s in read_log(client, log).segments())
    context = next(record.context for record in caplog.records if hasattr(record, "context"))
    assert (context["log"], context["rows"], context["lagRows"]) == (log, "4", "16")
    assert int(context["lagBytes"]) == latest[log]["bytes"] - end[log]["bytes"]
    assert 60 <= float(context["lagSeconds"]) < 600
