"""Logs that get columns under a stream, or come with others: no value is dropped in silence, and no type converted. Without a JVM."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from bk_core.client.log.history import update_ledger_list
from bk_core.client.log.list_store import now_ms
from bk_core.client.log.lists import create_log
from bk_core.errors import LogSchemaError
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.segments import LogProperties, SegmentRange
from bk_spark.datasource import schema_of
from bk_spark.entries.packing import pack_arrow
from bk_spark.options.table import parse_options
from bk_spark.schemas import arrow_schema, schema_text
from bk_spark.source.batch import BookKeeperReader
from tests.spark.test_stream_reader import Stream

pytestmark = pytest.mark.spark
ID, V, W = StructField("id", LongType()), StructField("v", StringType()), StructField("w", LongType())
Put = Callable[..., None]
Streams = Callable[..., Stream]


@pytest.fixture
def stream(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Streams]:
    monkeypatch.setattr("bk_spark.source.following.DISCOVER_S", -1.0)
    runs: list[Stream] = []

    def stream(**options: Any) -> Stream:
        runs.append(Stream(cluster.uri, **{"startingOffsets": "earliest", **options}))
        return runs[-1]

    yield stream
    for run in runs:
        run.reader.stop()


@pytest.fixture
def put(client: Any) -> Put:
    def put(log: str, fields: list[StructField], **columns: list[Any]) -> None:
        """Commit rows with these columns as one segment; the log's schema becomes theirs."""
        create_log(client, log, LogProperties("arrow"), exist_ok=True)
        spark = StructType(fields)
        schema, text = arrow_schema(spark), schema_text(spark)
        (run,) = pack_arrow(iter([pa.record_batch(columns, schema=schema)]), schema, 1 << 20)
        with client.create_ledger(custom={"log": log.encode()}) as ledger:
            ledger.append_run(run.payloads, run.offsets)
            segment = SegmentRange(ledger.ledger_id, 0, 0, run.rows, run.bytes, run.rows)

        def change(listed: LedgerList) -> LedgerList:
            known = listed if text in listed.schemas else listed.evolve_schema(text)
            return known.append_segments([segment], now_ms(), f"q{segment.ledger_id}", 0, schema=text)

        update_ledger_list(client, log, change)

    return put


def values(run: Stream, start: Any, end: Any) -> list[Any]:
    return [row for p in run.reader.partitions(start, end) for batch in run.reader.read(p) for row in batch.to_pylist()]


def all_values(run: Stream, start: Any = None) -> tuple[list[Any], Any]:
    """Rows of all batches, and the offset behind them."""
    here = run.initial() if start is None else start
    rows: list[Any] = []
    while (end := run.latest(here)) != here:
        rows, here = rows + values(run, here, end), end
    return rows, here


def test_a_query_ends_before_the_first_row_with_a_new_column(put: Put, stream: Streams, log: str) -> None:
    """Entries before it are read; a new run with a new DataFrame reads all the rest, and the values of the new column."""
    put(log, [ID], id=[1, 2])
    run = stream(log=log)
    rows, here = all_values(run)
    put(log, [ID], id=[3])
    put(log, [ID, V], id=[4], v=["four"])
    put(log, [ID], id=[5])  # of a writer who does not know the column yet
    run.reader._snapshots(fresh=True)
    end = run.latest(here)
    assert rows + values(run, here, end) == [{"id": 1}, {"id": 2}, {"id": 3}]
    for _ in range(2):
        with pytest.raises(LogSchemaError, match=f"log '{log}' has rows with new columns .*: 'v'. .*failOnNewColumns=false"):
            run.latest(end)
    again = stream(log=log)
    rest, here = all_values(again, end)
    assert rest == [{"id": 4, "v": "four"}, {"id": 5, "v": None}]
    assert here[log]["rows"] == 5


def test_the_same_data_frame_ends_again(put: Put, stream: Streams, log: str) -> None:
    """A restart with a DataFrame of before the column: it was made to have all columns, so it may not lack one now."""
    put(log, [ID], id=[1])
    put(log, [ID, V], id=[2], v=["two"])
    stale = stream(log=log, whole=StructType([ID]))
    start = stale.initial()
    end = stale.latest(start)
    assert values(stale, start, end) == [{"id": 1}]
    with pytest.raises(LogSchemaError, match="new columns"):
        stale.latest(end)
    planned = stream(log=log)
    behind = planned.latest(end)
    with pytest.raises(LogSchemaError, match="new columns"):  # a batch that a run with the column had planned
        stale.reader.partitions(end, behind)
    assert values(planned, end, behind) == [{"id": 2, "v": "two"}]


def test_limits_hold_before_a_new_column(put: Put, stream: Streams, log: str) -> None:
    put(log, [ID], id=[1, 2, 3])
    put(log, [ID, V], id=[4], v=["four"])
    run = stream(log=log, maxRowsPerTrigger="2", whole=StructType([ID]))
    here, read = run.initial(), []
    for _ in range(2):
        end = run.latest(here)
        read.append(len(values(run, here, end)))
        here = end
    assert read == [2, 1]
    with pytest.raises(LogSchemaError):
        run.latest(here)


def test_going_on_without_a_new_column(put: Put, stream: Streams, log: str, caplog: pytest.LogCaptureFixture) -> None:
    put(log, [ID], id=[1])
    run = stream(log=log, failOnNewColumns="false")
    put(log, [ID, V], id=[2], v=["two"])
    with caplog.at_level(logging.WARNING):
        assert all_values(run)[0] == [{"id": 1}, {"id": 2}]
    assert [r.message for r in caplog.records if "new columns are not read: 'v'" in r.message] != []


@pytest.mark.parametrize("how", ["columns", "schema"])
def test_who_asks_for_some_columns_gets_these(put: Put, stream: Streams, log: str, how: str) -> None:
    put(log, [ID, V], id=[1], v=["one"])
    run = stream(log=log, **({"columns": "id"} if how == "columns" else {"schema": StructType([ID])}))
    put(log, [ID, V, W], id=[2], v=["two"], w=[2])
    assert all_values(run)[0] == [{"id": 1}, {"id": 2}]


def test_a_new_log_with_the_first_columns(put: Put, stream: Streams, log: str) -> None:
    """As at the start: null in the columns that it lacks."""
    put(f"{log}-a", [ID, V], id=[1], v=["one"])
    run = stream(logPattern=f"{log}-.")
    rows, here = all_values(run)
    put(f"{log}-b", [ID], id=[2])
    more, here = all_values(run, here)
    assert more == [{"id": 2, "v": None}]
    assert all_values(stream(logPattern=f"{log}-."), here)[0] == []  # a restart takes it, too


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        (StructField("v", LongType()), 7, "column 'v' of type bigint"),
        (StructField("w", LongType()), 7, "column 'w' bigint where others of this read have 'v' string"),
    ],
)
def test_a_new_log_with_other_columns_is_not_read(put: Put, stream: Streams, log: str, field: StructField, value: Any, told: str) -> None:
    put(f"{log}-a", [ID, V], id=[1], v=["one"])
    run = stream(logPattern=f"{log}-.", failOnNewColumns="false")
    _, here = all_values(run)
    put(f"{log}-b", [ID, field], id=[2], **{field.name: [value]})
    with pytest.raises(LogSchemaError, match=told):
        all_values(run, here)


def test_a_new_log_with_more_columns_is_one_with_new_columns(put: Put, stream: Streams, log: str) -> None:
    put(f"{log}-a", [ID], id=[1])
    run = stream(logPattern=f"{log}-.")
    _, here = all_values(run)
    put(f"{log}-b", [ID, V], id=[2], v=["two"])
    here = run.latest(here)  # which finds the log, and reads none of it
    with pytest.raises(LogSchemaError, match="new columns"):
        run.latest(here)
    assert all_values(stream(logPattern=f"{log}-."), here)[0] == [{"id": 2, "v": "two"}]


@pytest.mark.parametrize("by", ["logs", "logPattern"])
def test_a_log_known_before_its_first_write_is_looked_at_then(put: Put, stream: Streams, client: Any, log: str, by: str) -> None:
    """Its values would be converted in silence: a timestamp read as text."""
    put(f"{log}-a", [ID, V], id=[1], v=["one"])
    create_log(client, f"{log}-b", LogProperties("arrow"))
    run = stream(**({"logs": f"{log}-a,{log}-b"} if by == "logs" else {"logPattern": f"{log}-."}))
    _, here = all_values(run)
    put(f"{log}-b", [ID, StructField("v", TimestampType())], id=[2], v=[0])
    run.reader._snapshots(fresh=True)
    with pytest.raises(LogSchemaError, match=r"column 'v' of type timestamp.*this read has 'v' as string"):
        all_values(run, here)


def test_a_log_known_before_its_first_write_may_have_the_first_columns(put: Put, stream: Streams, client: Any, log: str) -> None:
    put(f"{log}-a", [ID, V], id=[1], v=["one"])
    create_log(client, f"{log}-b", LogProperties("arrow"))
    run = stream(logs=f"{log}-a,{log}-b")
    _, here = all_values(run)
    put(f"{log}-b", [ID], id=[2])
    run.reader._snapshots(fresh=True)
    assert all_values(run, here)[0] == [{"id": 2, "v": None}]


def test_a_new_log_of_another_entry_format(put: Put, stream: Streams, client: Any, log: str) -> None:
    put(f"{log}-a", [ID], id=[1])
    run = stream(logPattern=f"{log}-.")
    _, here = all_values(run)
    create_log(client, f"{log}-b", LogProperties(entry_format="raw"))
    with pytest.raises(LogSchemaError, match="another entry format"):
        run.latest(here)


def test_a_batch_read_looks_at_a_first_write_too(put: Put, client: Any, cluster: Any, log: str) -> None:
    """The snapshot is taken at the first action, and the columns are older."""
    put(f"{log}-a", [ID, V], id=[1], v=["one"])
    create_log(client, f"{log}-b", LogProperties("arrow"))
    options = parse_options({"bookkeeper.metadataServiceUri": cluster.uri, "logs": f"{log}-a,{log}-b"})
    reader = BookKeeperReader(options, schema_of(options))
    put(f"{log}-b", [ID, StructField("v", TimestampType())], id=[2], v=[0])
    with pytest.raises(LogSchemaError, match=r"column 'v' of type timestamp.*this read has 'v' as string"):
        reader.partitions()
