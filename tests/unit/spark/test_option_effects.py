"""Options by their effects: what bookies see of them, and what a batch read makes of them without a JVM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.datasource import GreaterThanOrEqual, LessThan

from bk_core.client.log.history import read_log
from bk_core.client.log.lists import list_logs
from bk_core.errors import EntryTooLargeError, LogEntryError, LogSchemaError
from bk_core.metadata import open_store
from bk_core.protocol.bookie.runs import RequestedAdds, RequestedReads
from bk_core.protocol.bookie.stream import RequestStream
from bk_core.protocol.wire.messages import AddRequest, BatchReadRequest, ReadRequest
from bk_spark import clients
from bk_spark.datasource import BookKeeperDataSource
from bk_spark.options.table import URI_ENVIRONMENT
from bk_spark.schemas import arrow_schema
from bk_spark.sink import commit as commits
from bk_spark.sink import data_ledgers
from bk_spark.sink import task as sink
from tests.spark_clients import close_clients

ENTRIES = {AddRequest: "add", RequestedAdds: "add", ReadRequest: "read", BatchReadRequest: "read", RequestedReads: "read"}


@pytest.fixture
def uri(world: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URI of the world's cluster, with clients as the options ask for them: not the one that the world lends to every writer."""
    for module in (sink, commits, data_ledgers):
        monkeypatch.setattr(module, "client_for", clients.client_for)
    yield world.client.config.uri
    close_clients()


def read(**options: str) -> list[Any]:
    source = BookKeeperDataSource(options)
    reader: Any = source.reader(source.schema())
    return [value for part in reader.partitions() for batch in reader.read(part) for value in batch.column("id").to_pylist()]


@pytest.mark.parametrize("protocol", ["v3", "v2"])
def test_bookies_hear_the_protocol_that_was_asked_for(world: Any, uri: str, monkeypatch: pytest.MonkeyPatch, protocol: str) -> None:
    heard: set[tuple[str, str]] = set()
    units = RequestStream.units

    def listen(self: RequestStream, data: Any, stop: int) -> Any:
        found, consumed = units(self, data, stop)
        heard.update((ENTRIES[type(request)], to.protocol) for request, to in found if type(request) in ENTRIES)
        return found, consumed

    monkeypatch.setattr(RequestStream, "units", listen)
    options = {"metadataServiceUri": uri, "bookkeeper.protocol": protocol, "log": "a"}
    world.write([1, 2], **options)
    assert read(**options) == [1, 2]
    assert heard == {("add", protocol), ("read", protocol)}


def test_the_cluster_is_the_one_named_and_not_that_of_the_environment(world: Any, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = open_store(f"{uri}-other")
    other.initialize_cluster()
    monkeypatch.setenv(URI_ENVIRONMENT, f"{uri}-other")
    world.write([1, 2], log="a", metadataServiceUri=uri)
    assert list_logs(world.client) == ["a"] and other.children("logs") == []
    assert read(**{"bookkeeper.metadataServiceUri": uri, "log": "a"}) == [1, 2]
    other.close()


def test_a_ledger_has_as_many_bookies_as_asked_for(world: Any) -> None:
    world.write([1], log="a", ensembleSize="2", writeQuorumSize="2", ackQuorumSize="1")
    metadata = world.client.ledger_metadata(*world.ledgers())
    assert metadata.ensemble_size == 2 and [len(fragment.ensemble) for fragment in metadata.fragments] == [2]


# --- batch reads ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def rows_of_a(world: Any, uri: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Log ``a``: rows 0..159 in three commits, one second apart, of many entries each."""
    clock = iter(range(1_700_000_000_000, 1_800_000_000_000, 1000))
    monkeypatch.setattr(commits, "store_now_ms", lambda _: next(clock))
    for ids in (range(100), range(100, 150), range(150, 160)):
        world.write(list(ids), log="a", entrySize="64", metadataServiceUri=uri)
    return {"metadataServiceUri": uri, "log": "a"}


def planned(options: dict[str, str], *filters: Any) -> list[Any]:
    """The ranges of each task."""
    source = BookKeeperDataSource(options)
    reader: Any = source.reader(source.schema())
    assert not filters or list(reader.pushFilters(list(filters))) == list(filters)
    return [part.ranges for part in reader.partitions()]


def test_where_a_batch_read_begins_and_ends(world: Any, rows_of_a: dict[str, str]) -> None:
    at = str(read_log(world.client, "a").segment(2).committed_at_ms)
    for options, rows in (
        ({"startingOffsets": '{"seq":1}'}, range(100, 160)),
        ({"startingTimestamp": at}, range(150, 160)),
        ({"startingOffsetsByTimestamp": json.dumps({"a": at})}, range(150, 160)),
        ({"startingTimestamp": "2100-01-01", "startingOffsetsByTimestampStrategy": "latest"}, range(0)),
        ({"endingOffsets": '{"seq":1}'}, range(100)),
        ({"endingTimestamp": at}, range(150)),
        ({"endingOffsetsByTimestamp": json.dumps({"a": at})}, range(150)),
    ):
        assert read(**rows_of_a, **options) == list(rows), options


def test_how_a_batch_read_is_divided(rows_of_a: dict[str, str]) -> None:
    (whole,) = planned(rows_of_a)
    assert sum(r.rows for r in whole) == 160 and sum(r.bytes for r in whole) > 4096
    assert max(sum(r.rows for r in task) for task in planned({**rows_of_a, "maxRecordsPerPartition": "30"})) <= 30
    assert len(planned({**rows_of_a, "minPartitions": "5"})) >= 5
    assert max(sum(r.bytes for r in task) for task in planned({**rows_of_a, "maxBytesPerPartition": "2k"})) <= 2048


def test_an_entry_that_takes_too_much_is_not_read(rows_of_a: dict[str, str]) -> None:
    assert read(**rows_of_a, maxBytesPerEntry="1k") == list(range(160))
    with pytest.raises(LogEntryError, match="entry 0 of ledger . of log 'a'.*maxBytesPerEntry is 8"):
        read(**rows_of_a, maxBytesPerEntry="8")


def test_a_row_that_takes_too_much_is_not_written(world: Any, uri: str) -> None:
    def write(value: bytes) -> None:
        world.write({"value": [value]}, schema="value binary", log="b", metadataServiceUri=uri, compression="zstd", maxBytesPerEntry="1k")

    with pytest.raises(EntryTooLargeError, match="maxBytesPerEntry is 1,024"):
        write(b"x" * 1024)
    write(b"x" * 900)


def test_which_columns_a_batch_read_has(world: Any, uri: str, rows_of_a: dict[str, str]) -> None:
    def names(**options: str) -> list[str]:
        return list(BookKeeperDataSource({**rows_of_a, **options}).schema().names)

    assert names() == ["id"]
    assert names(includeMetadata="true") == ["id", "_log", "_ledgerId", "_entryId", "_offset", "_timestamp"]
    assert names(includeMetadata="true", columns="_offset,id") == ["_offset", "id"]
    assert read(**rows_of_a, includeMetadata="true", columns="_offset,id") == list(range(160))
    world.write({"value": [b"x"]}, schema="value binary", log="raw", entryFormat="raw", metadataServiceUri=uri)
    assert "headers" in names(log="raw", includeHeaders="true") and "headers" not in names(log="raw")


KAFKA = "key binary, value binary, topic string, partition int, offset long, timestamp time, timestampType int"
RECORD = "key string, value binary, headers headers"


def kafka_rows(**options: str) -> list[tuple[Any, ...]]:
    source = BookKeeperDataSource({"includeMetadata": "Kafka", **options})
    reader: Any = source.reader(source.schema())
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert all(batch.schema.equals(arrow_schema(source.schema())) for batch in batches)
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_kafkas_columns(world: Any, uri: str) -> None:
    """Keys and headers that were written come back, under the names and with the types of Kafka's source; text is bytes there."""
    rows = {"key": ["k", None], "value": [b"v", b"w"], "headers": [[{"key": "h", "value": b"x"}], None]}
    world.write(rows, schema=RECORD, log="a", metadataServiceUri=uri)
    world.write({"key": ["l"], "value": [b"y"], "headers": [None]}, schema=RECORD, log="a", metadataServiceUri=uri)
    here = {"metadataServiceUri": uri, "log": "a"}
    assert BookKeeperDataSource({**here, "includeMetadata": "kafka"}).schema() == world.struct(KAFKA)
    got = kafka_rows(**here, includeHeaders="true")
    assert [row[:5] + row[6:7] for row in got] == [(b"k", b"v", "a", 0, 0, 0), (None, b"w", "a", 0, 1, 0), (b"l", b"y", "a", 0, 2, 0)]
    assert [row[7] for row in got] == [[{"key": "h", "value": b"x"}], None, None] and all(row[5] is not None for row in got)
    assert kafka_rows(**here, columns="partition") == [(0,)] * 3 and kafka_rows(**here, columns="headers", includeHeaders="true")[2] == (
        None,
    )
    world.write({"value": [b"x"]}, schema="value binary", log="raw", entryFormat="raw", metadataServiceUri=uri)
    (row,) = kafka_rows(metadataServiceUri=uri, log="raw", includeHeaders="true")
    assert row[:5] == (None, b"x", "raw", 0, 0) and row[6:] == (0, None)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("id long", "log 'a' has no column 'value': "),
        ("value binary, id long", "log 'a' has a column 'id': "),
        ("value long", "column 'value' of log 'a' is bigint, not binary or string: "),
        ("value binary, headers map", r"column 'headers' of log 'a' is map<string,binary>, not array<"),
    ],
)
def test_what_is_no_record_has_no_kafka_columns(world: Any, uri: str, schema: str, reason: str) -> None:
    world.write(schema=schema, log="a", metadataServiceUri=uri)
    with pytest.raises(LogSchemaError, match=reason):
        BookKeeperDataSource({"metadataServiceUri": uri, "log": "a", "includeMetadata": "kafka"}).schema()


def test_kafkas_columns_are_found_in_any_case(world: Any, uri: str) -> None:
    """As writes and option ``columns`` find them. A log that has fewer of them is read together with one that has all."""
    here = {"metadataServiceUri": uri}
    world.write({"Value": [b"v"], "KEY": ["k"]}, schema="Value binary, KEY string", log="a", **here)
    world.write({"Value": [b"w"]}, schema="Value binary", log="b", **here)
    assert sorted(row[:3] for row in kafka_rows(logs="a,b", **here) if row[0]) == [(b"k", b"v", "a")]
    assert sorted(row[1:3] for row in kafka_rows(logs="a,b", **here)) == [(b"v", "a"), (b"w", "b")]
    assert kafka_rows(log="a", columns="key", **here) == [(b"k",)]
    world.write({"value": [b"v"], "VALUE": [b"w"]}, schema="value binary, VALUE binary", log="c", **here)
    with pytest.raises(LogSchemaError, match="log 'c' has a column 'VALUE'"):
        kafka_rows(log="c", **here)


def test_headers_that_are_not_there_are_told_with_the_log(world: Any, uri: str) -> None:
    world.write([1], log="flights", metadataServiceUri=uri)
    source = BookKeeperDataSource({"metadataServiceUri": uri, "log": "flights", "includeHeaders": "true"})
    with pytest.raises(LogSchemaError, match="log 'flights' has no column 'headers', so includeHeaders=true has nothing to show: leave it"):
        source.schema()


def test_filters_on_kafkas_columns_spare_entries(world: Any, uri: str) -> None:
    world.write({"value": ["x" * 30] * 100}, schema="value string", log="a", metadataServiceUri=uri, entrySize="64")
    options = {"metadataServiceUri": uri, "log": "a", "includeMetadata": "kafka", "pushdown": "true"}
    (task,) = planned(options, GreaterThanOrEqual(("offset",), 40), LessThan(("offset",), 50))
    assert sum(r.rows for r in task) <= 12


def test_filters_that_are_pushed_down_spare_entries(rows_of_a: dict[str, str]) -> None:
    options = {**rows_of_a, "includeMetadata": "true", "pushdown": "true"}
    (task,) = planned(options, GreaterThanOrEqual(("_offset",), 120), LessThan(("_offset",), 130))
    assert sum(r.rows for r in task) == 10
