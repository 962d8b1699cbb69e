"""``spark.read`` against bookies, and the parts of ``df.write`` that show in what is read back.

What needs no Spark reads through the source's own classes, as Spark's planner and workers do: fixture ``read``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, InputPartition, LessThan, LessThanOrEqual

from bk_core.client.log.history import read_log
from bk_core.client.log.janitor import gc_log, trim_log
from bk_core.client.log.lists import create_log, list_logs
from bk_core.client.log.writer import LogWriter
from bk_core.errors import InvalidArgumentError, LogDataLossError, LogSchemaError, NoSuchLedgerError, NoSuchLogError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.ledger_list import LogProperties
from bk_core.protocol.log.position import Position
from bk_spark.datasource import BookKeeperDataSource
from bk_spark.schemas import arrow_schema
from tests.spark_clients import close_clients

pytestmark = pytest.mark.spark

FLIGHTS, PARTS = "batch-flights", (0, 1000, 1500, 1600)  # rows before each commit


class Read:
    """A read as Spark does it, in this process."""

    def __init__(self, uri: str, **options: str) -> None:
        source = BookKeeperDataSource({"bookkeeper.metadataServiceUri": uri, **options})
        self.schema = source.schema()
        self.reader = source.reader(self.schema)

    def partitions(self) -> list[Any]:
        return list(self.reader.partitions())

    def entries(self) -> int:
        return sum(r.entries for p in self.partitions() for r in p.ranges)

    def table(self) -> pa.Table:
        partitions = self.partitions() or [InputPartition(None)]  # what Spark makes of an empty plan
        batches = [batch for partition in partitions for batch in self.reader.read(partition)]
        return pa.Table.from_batches(batches, schema=arrow_schema(self.schema))

    def column(self, name: str) -> list[Any]:
        return list(self.table().column(name).to_pylist())


@pytest.fixture
def read(cluster: Any) -> Iterator[Callable[..., Read]]:
    yield lambda **options: Read(cluster.uri, **options)
    close_clients()  # workers are killed with theirs; this process goes on


@pytest.fixture(scope="module")
def flights(spark: SparkSession, cluster: Any) -> str:
    """Three commits of one segment each, of several entries: rows 0..1599 in order."""
    spark.createDataFrame([(1,)], "a int")
    for first, end in zip(PARTS, PARTS[1:], strict=False):
        rows = spark.range(first, end, 1, 1).select("id", F.col("id").cast("string").alias("text"))
        writer = rows.write.format("bookkeeper").option("bookkeeper.metadataServiceUri", cluster.uri)
        writer.options(log=FLIGHTS, entrySize="2k").mode("append").save()
    return FLIGHTS


# --- with Spark -----------------------------------------------------------------------------------------------------------


def test_rows_come_back(spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], client: Any, log: str) -> None:
    frame = spark.range(10_000).select("id", F.col("id").cast("string").alias("text"), F.current_timestamp().alias("at"))
    save(frame, log=log, compression="zstd", entrySize="8k")
    back = load(log=log)
    assert back.count() == 10_000 and back.agg(F.sum("id")).first()[0] == 10_000 * 9_999 // 2
    assert [f.dataType for f in back.schema.fields] == [f.dataType for f in frame.schema.fields]
    assert load(log=log, maxBytesPerPartition="20k").rdd.getNumPartitions() > 3
    save(frame.where("id < 10"), log=log)
    assert back.count() == 10_000  # one DataFrame is one snapshot (spark-connectors.md 5.5)
    assert load(log=log).count() == 10_010
    view = read_log(client, log)
    assert view.counts_before(view.end_position)[0] == 10_010


def test_no_rows_make_no_ledger_and_an_empty_log_no_row(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], client: Any, log: str
) -> None:
    save(spark.range(0), log=log)
    assert list(read_log(client, log).segments()) == []
    assert load(log=log).count() == 0 and load(log=log).columns == ["id"]


def test_raw_and_ledgers(spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], client: Any, log: str) -> None:
    save(spark.createDataFrame([("a",), ("bb",), ("",)], "value string").coalesce(1), log=log, entryFormat="raw")
    rows = load(log=log, includeHeaders="true").orderBy("offset").collect()
    assert [(r.log, bytes(r.value), r.offset, r.length) for r in rows] == [(log, b"a", 0, 1), (log, b"bb", 1, 2), (log, b"", 2, 0)]
    assert {(r.key, r.headers) for r in rows} == {(None, None)} and all(r.timestamp is not None for r in rows)
    with client.create_ledger() as ledger:
        for i in range(10):
            ledger.append(b"%d" % i)
        ids = {"ledgers": str(ledger.ledger_id)}
        assert load(**ids).count() == 0  # still open, and reading never fences
    rows = load(**ids, minPartitions="3").orderBy("entryId").collect()
    assert [(r.ledgerId, r.entryId, bytes(r.value)) for r in rows] == [(ledger.ledger_id, i, b"%d" % i) for i in range(10)]
    assert {(r.log, r.offset, r.timestamp) for r in rows} == {(None, None, None)}


def test_a_failing_write_stays_invisible(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], client: Any, log: str
) -> None:
    save(spark.range(3), log=log)
    broken = spark.range(0, 1000, 1, 4).select(
        F.when(F.col("id") == 999, F.raise_error("boom").cast("long")).otherwise(F.col("id")).alias("id")
    )
    with pytest.raises(PySparkException, match="boom"):
        save(broken, log=log)
    assert load(log=log).count() == 3
    gc_log(client, log, min_age_s=0)
    assert load(log=log).count() == 3 and client.store.children(f"intents/{log}") == []


def test_pushdown_changes_no_result(spark: SparkSession, load: Callable[..., Any], client: Any, flights: str) -> None:
    options = {"log": flights, "includeMetadata": "true"}
    with pytest.raises(PySparkException, match="filterPushdown"):  # why it is an option (spark-connectors.md 5.5)
        load(**options, pushdown="true").count()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        second = read_log(client, flights).segment(1)
        filters = f"_offset between 990 and 1010 and _timestamp >= timestamp_millis({second.committed_at_ms}) and _log = '{flights}'"
        pushed, plain = (load(**options, pushdown=word).where(filters).select("id", "_entryId") for word in ("true", "false"))
        assert sorted(pushed.collect()) == sorted(plain.collect()) and {row.id for row in pushed.collect()} == set(range(1000, 1011))
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
        spark.conf.unset("spark.sql.session.timeZone")


def test_mistakes_carry_stable_codes(
    spark: SparkSession, cluster: Any, load: Callable[..., Any], save: Callable[..., None], client: Any, flights: str, log: str
) -> None:
    with pytest.raises(PySparkException, match="BK-LOG-SCHEMA"):
        save(spark.range(3).withColumnRenamed("id", "other"), log=flights)
    with pytest.raises(PySparkException, match="BK-ARGUMENT.*did you mean startingOffsets"):
        load(log=flights, startingOffset="latest")
    with pytest.raises(PySparkException, match="BK-ARGUMENT"):
        save(spark.range(3), log=log, entriSize="1k")
    assert log not in list_logs(client)  # said before anything was made


# --- several logs ---------------------------------------------------------------------------------------------------------


def raw_log(client: Any, name: str, values: list[bytes]) -> str:
    create_log(client, name, LogProperties(entry_format="raw"))
    with LogWriter.open(client, name) as writer:
        for value in values:
            writer.append(value)
    return name


def test_several_logs_in_one_read(client: Any, read: Callable[..., Read], flights: str, log: str) -> None:
    a, b = raw_log(client, f"{log}.a", [b"1", b"2"]), raw_log(client, f"{log}.b", [b"3"])
    for options in ({"logs": f"{b}, {a}"}, {"subscribe": f"{a},{b}"}, {"logPattern": f"{log}.[ab]"}):
        got = read(**options).table()
        assert list(zip(*(got.column(c).to_pylist() for c in ("log", "offset", "value")), strict=True)) == [
            (a, 0, b"1"),
            (a, 1, b"2"),
            (b, 0, b"3"),
        ]
    assert len(read(logs=f"{a},{b}").partitions()) == 1  # small ones share a task
    places = json.dumps({a: {"seq": 0, "entry": 1}, b: -1})
    assert read(logs=f"{a},{b}", startingOffsets=places).column("value") == [b"2"]
    with pytest.raises(LogSchemaError, match="cannot be read together: their entry formats differ"):
        read(logs=f"{a},{flights}")
    with pytest.raises(NoSuchLogError, match="matches no log"):
        read(logPattern="nobody-.*")
    with pytest.raises(NoSuchLogError):
        read(logs=f"{a},{log}.c")


# --- where it begins and ends -----------------------------------------------------------------------------------------------


def test_starting_and_ending_offsets(client: Any, read: Callable[..., Read], flights: str) -> None:
    def ids(**options: str) -> tuple[int, int, int]:
        found = read(log=flights, **options).column("id")
        assert found == list(range(found[0], found[0] + len(found))) if found else True
        return (found[0], found[-1], len(found)) if found else (0, 0, 0)

    view = read_log(client, flights)
    cut = view.position_at_rows(view.first_position, 1234, None)
    place = json.dumps({"seq": cut.seq, "entry": cut.entry, "row": cut.row})
    assert cut.row > 0  # inside an entry
    assert ids() == ids(startingOffsets="earliest", endingOffsets="latest") == (0, 1599, 1600)
    assert ids(startingOffsets="latest") == (0, 0, 0)
    assert ids(startingOffsets=place) == (1234, 1599, 366) and ids(endingOffsets=place) == (0, 1233, 1234)
    assert ids(startingOffsets=json.dumps({flights: {"seq": 1}}), endingOffsets=json.dumps({flights: {"seq": 2}})) == (1000, 1499, 500)
    third = view.segment(2)
    at = str(third.committed_at_ms)
    assert ids(startingTimestamp=at) == (1500, 1599, 100) and ids(endingTime=at) == (0, 1499, 1500)
    assert ids(startingOffsetsByTimestamp=json.dumps({flights: at})) == (1500, 1599, 100)
    assert ids(endingOffsetsByTimestamp=json.dumps({flights: at})) == (0, 1499, 1500)
    future = {"startingTimestamp": "2100-01-01T00:00:00Z"}
    with pytest.raises(InvalidArgumentError, match="no commit at or after"):
        ids(**future)
    assert ids(**future, startingOffsetsByTimestampStrategy="latest") == (0, 0, 0)
    by_ledger = json.dumps({"ledgerId": third.ledger_id, "entryId": third.first_entry_id})
    assert ids(startingOffsets=by_ledger) == (1500, 1599, 100)
    with pytest.raises(InvalidArgumentError, match="lies beyond the ending one"):
        read(log=flights, startingOffsets='{"seq":2}', endingOffsets='{"seq":1}').partitions()
    with pytest.raises(InvalidArgumentError, match="ledgers are read whole"):
        read(ledgers=str(third.ledger_id), startingOffsets="earliest").partitions()


def test_loss_is_said_or_jumped_over(client: Any, read: Callable[..., Read], log: str) -> None:
    raw_log(client, log, [b"1", b"2"])
    with LogWriter.open(client, log) as writer:
        writer.append(b"3")
    trim_log(client, log, before=Position(1))
    old = {"log": log, "startingOffsets": '{"seq":0}'}
    with pytest.raises(LogDataLossError, match="trimmed"):
        read(**old).partitions()
    assert read(**old, failOnDataLoss="false").column("value") == [b"3"]
    assert read(**old, failOnDataLoss="false").column("offset") == [2]
    with pytest.raises(NoSuchLedgerError):
        read(ledgers="999999").partitions()
    assert read(ledgers="999999", failOnDataLoss="false").column("value") == []


def test_open_ledgers_of_a_log(client: Any, read: Callable[..., Read], log: str, caplog: pytest.LogCaptureFixture) -> None:
    create_log(client, log, LogProperties(entry_format="raw"))
    with LogWriter.open(client, log) as writer:
        for value in (b"one", b"two", b"three"):
            writer.append(value)
        assert read(log=log).column("value") == []
        assert f"the read of log '{log}' leaves out 1 open ledger" in caplog.text
        lac = read(log=log, openLedgers="lac").table()
        assert lac.column("value").to_pylist()[:2] == [b"one", b"two"] and lac.column("timestamp").null_count == lac.num_rows
        assert lac.column("offset").to_pylist() == list(range(lac.num_rows))
        writer.append(b"four")  # nobody fenced it
    assert read(log=log).column("value") == [b"one", b"two", b"three", b"four"]
    ledger = client.create_ledger()
    ledger.append(b"left open")
    one = {"ledgers": str(ledger.ledger_id)}
    assert read(**one).column("value") == []
    assert client.ledger_metadata(ledger.ledger_id).state is LedgerState.OPEN
    assert read(**one, openLedgers="recover").column("value") == [b"left open"]
    assert client.ledger_metadata(ledger.ledger_id).state is LedgerState.CLOSED


def test_a_job_that_comes_from_kafka(
    spark: SparkSession, load: Callable[..., Any], save: Callable[..., None], cluster: Any, log: str, tmp_path: Any
) -> None:
    """Written as Kafka's sink takes it, read as Kafka's source gives it, in batch and in a stream."""
    rows = spark.range(100).selectExpr(
        "cast(id as string) as key",
        "concat('v', id) as value",
        "array(named_struct('key', 'h', 'value', cast(cast(id as string) as binary))) as headers",
    )
    save(rows, log=log)
    asked = {"bookkeeper.metadataServiceUri": cluster.uri, "subscribe": log, "includeMetadata": "kafka", "includeHeaders": "true"}
    asked["startingOffsetsByTimestampStrategy"] = "latest"  # Kafka takes it without a time, too
    job = ["cast(key as string) k", "cast(value as string) v", "headers[0].key h", "topic", "partition", "offset", "timestampType"]
    expected = {(str(i), f"v{i}", "h", log, 0, 0) for i in range(100)}
    batch = spark.read.format("bookkeeper").options(**asked).load()
    assert batch.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>>"
    )
    found = batch.selectExpr(*job).collect()
    assert {(*r[:5], r[6]) for r in found} == expected and sorted(r[5] for r in found) == list(range(100))
    stream = spark.readStream.format("bookkeeper").options(**asked, startingOffsets="earliest", maxOffsetsPerTrigger="30").load()
    writer = stream.selectExpr(*job).writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(tmp_path / "out"))
    assert query.awaitTermination(300)
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {(*r[:5], r[6]) for r in found} == expected and sorted(r[5] for r in found) == list(range(100))


# --- columns ----------------------------------------------------------------------------------------------------------------


def test_metadata_columns_of_an_arrow_log(client: Any, read: Callable[..., Read], flights: str) -> None:
    whole = read(log=flights, includeMetadata="true")
    assert whole.schema.names == ["id", "text", "_log", "_ledgerId", "_entryId", "_offset", "_timestamp"]
    got = whole.table()
    assert got.column("_offset").to_pylist() == got.column("id").to_pylist() == list(range(1600))
    segments = list(read_log(client, flights).segments())
    expected = []
    for segment in segments:
        for row in range(segment.rows):
            entry = segment.first_entry_id + row // segment.rows_per_entry
            expected.append((segment.ledger_id, entry, segment.committed_at_ms * 1000))
    found = zip(
        got.column("_ledgerId").to_pylist(),
        got.column("_entryId").to_pylist(),
        got.column("_timestamp").cast(pa.int64()).to_pylist(),
        strict=True,
    )
    assert list(found) == expected
    assert read(log=flights).schema.names == ["id", "text"]


def test_chosen_columns(client: Any, read: Callable[..., Read], flights: str, log: str) -> None:
    assert read(log=flights, columns="text").table().column_names == ["text"]
    some = read(log=flights, columns="_offset, id", includeMetadata="true").table()
    assert some.column_names == ["_offset", "id"] and some.column("id").to_pylist() == list(range(1600))
    assert read(log=flights, columns="_log", includeMetadata="true").table().num_rows == 1600
    with pytest.raises(InvalidArgumentError, match="no column '_offset'"):
        read(log=flights, columns="_offset")
    with pytest.raises(LogSchemaError, match="headers"):
        read(log=flights, includeHeaders="true")
    raw = raw_log(client, log, [b"abc"])
    assert read(log=raw, includeMetadata="false").schema.names == ["value"]
    assert read(log=raw, columns="length").column("length") == [3]


def test_a_schema_of_the_users_own(cluster: Any, read: Callable[..., Read], flights: str) -> None:
    source = BookKeeperDataSource({"bookkeeper.metadataServiceUri": cluster.uri, "log": flights})
    whole = read(log=flights).schema
    reader = source.reader(type(whole)([whole["text"]]))
    (batch, *_) = reader.read(reader.partitions()[0])
    assert batch.schema.names == ["text"]
    with pytest.raises(LogSchemaError, match="column 'length'"):
        source.reader(type(whole)([whole["text"], read(ledgers="0-1", failOnDataLoss="false").schema["length"]]))


# --- how it is divided ------------------------------------------------------------------------------------------------------


def test_options_that_would_do_nothing_are_errors(read: Callable[..., Read], flights: str) -> None:
    idle = {"maxRowsPerTrigger": "5", "readerName": "r", "entryFormat": "raw", "txnAppId": "a"}
    for name, value in idle.items():
        with pytest.raises(InvalidArgumentError, match=f"{name}.* (does|do) nothing in a (batch )?read"):
            read(log=flights, **{name: value}, **({"txnVersion": "1"} if name == "txnAppId" else {}))
    with pytest.raises(InvalidArgumentError, match="log does nothing in metadata=bookies"):
        read(log=flights, metadata="bookies")


def test_tasks(read: Callable[..., Read], flights: str) -> None:
    def rows(**options: str) -> list[int]:
        cut = read(log=flights, **options)
        assert cut.column("id") == list(range(1600))
        return [sum(r.rows for r in p.ranges) for p in cut.partitions()]

    assert rows() == [1600]
    assert max(rows(maxRecordsPerPartition="300")) <= 300
    assert len(rows(minPartitions="7")) >= 7
    sizes = [sum(r.bytes for r in p.ranges) for p in read(log=flights, maxBytesPerPartition="8k").partitions()]
    assert len(sizes) > 3 and max(sizes) <= 8192


def test_pushed_filters_spare_entries(client: Any, read: Callable[..., Read], flights: str) -> None:
    segments = list(read_log(client, flights).segments())

    def pushed(*filters: Any) -> Read:
        cut = read(log=flights, includeMetadata="true", pushdown="true")
        assert list(cut.reader.pushFilters(list(filters))) == list(filters)  # Spark looks at each row again
        return cut

    every = pushed().entries()
    assert every == sum(s.entries for s in segments)
    exact = pushed(GreaterThanOrEqual(("_offset",), 990), LessThan(("_offset",), 1010))
    assert exact.column("id") == list(range(990, 1010)) and exact.entries() <= 4
    assert pushed(EqualTo(("_entryId",), segments[1].first_entry_id), EqualTo(("_ledgerId",), segments[1].ledger_id)).entries() in (1, 2, 3)
    assert pushed(GreaterThan(("_offset",), 1499)).column("id") == list(range(1500, 1600))
    assert pushed(In(("_log",), ("other",))).partitions() == []
    middle = pushed(LessThanOrEqual(("_offset",), 1200), GreaterThan(("_offset",), 1198))
    assert middle.column("id") == [1199, 1200] and middle.entries() < every / 4
    time = read(log=flights, includeMetadata="true", pushdown="true", columns="_timestamp").column("_timestamp")
    assert set(pushed(EqualTo(("_timestamp",), time[1100])).column("id")) == set(range(1000, 1500))
    raw = read(log=flights, pushdown="true")
    raw.reader.pushFilters([EqualTo(("offset",), 3)])  # the user's own column, if there is one: it bounds nothing
    assert raw.entries() == every
