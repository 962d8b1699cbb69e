"""A read whose ledgers are gone, or have another password, is refused when it is planned: by its own class, with the words that help."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from bk_core.client.ledger.read_handle import ReadHandle
from bk_core.client.log.history import update_ledger_list
from bk_core.client.log.list_store import now_ms
from bk_core.errors import LogDataLossError, NoSuchLedgerError, WrongPasswordError
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_spark.datasource import BookKeeperDataSource
from bk_spark.entries.ranges import EntryRange
from bk_spark.options.table import Options, parse_options
from bk_spark.sink import data_ledgers
from bk_spark.source import known, snapshot
from bk_spark.source.known import Known
from bk_spark.source.ledger_checks import check_password
from bk_spark.source.stretches import RangeReader
from tests.spark_clients import close_clients

SCHEMA = StructType([StructField("id", LongType())])
SECRET = "hush-hush"


@pytest.fixture
def uri(world: Any) -> Iterator[str]:
    yield world.client.config.uri
    close_clients()


def batch(uri: str, **options: str) -> Any:
    return BookKeeperDataSource({"metadataServiceUri": uri, **options}).reader(SCHEMA).partitions()


def stream(uri: str, **options: str) -> Any:
    """The first batch of a stream."""
    reader = BookKeeperDataSource({"metadataServiceUri": uri, "startingOffsets": "earliest", **options}).streamReader(SCHEMA)
    try:
        start = reader.initialOffset()
        return reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    finally:
        reader.stop()


@pytest.mark.parametrize("read", [batch, stream])
def test_a_listed_ledger_that_is_gone_is_told_at_planning(world: Any, uri: str, caplog: pytest.LogCaptureFixture, read: Any) -> None:
    world.write([1, 2], log="gone")
    (lost,) = world.ledgers()
    world.client.delete_ledger(lost, even_if_listed=True)
    words = (
        rf"log 'gone' lists ledger {lost}, which does not exist: its entries 0\.\.\d are lost\. bk log check gone shows all that is missing"
        ", bk log repair gone writes it off; failOnDataLoss=false reads the rest"
    )
    with pytest.raises(LogDataLossError, match=words) as told:
        read(uri, log="gone")
    assert "DataFrame" not in str(told.value)
    world.write([3], log="gone")
    with caplog.at_level(logging.WARNING, "bk_spark.read"):
        (task,) = read(uri, log="gone", failOnDataLoss="false")
    assert lost not in {r.ledger_id for r in task.ranges} and len(task.ranges) == 1
    assert f"lists ledger {lost}, which does not exist" in caplog.text


@pytest.mark.parametrize("on_the_way", [False, True])
def test_a_ledger_that_goes_before_its_task_reads_it_is_told_by_the_task(
    world: Any, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, on_the_way: bool
) -> None:
    """With the log, the ledger and the rows that are left out, once for each stretch of entries."""
    ids = list(range(100))
    world.write(ids, log="a", entrySize="64")
    (gone,) = world.ledgers()
    data_ledgers._kept.clear()
    world.write([100], log="a")
    read = BookKeeperDataSource({"metadataServiceUri": uri, "log": "a", "failOnDataLoss": "false"}).reader(SCHEMA)
    (task,) = read.partitions()
    planned = [r for r in task.ranges if r.ledger_id == gone]
    real = ReadHandle.read_runs

    def runs(handle: Any, first: int, last: int, **how: Any) -> Iterator[Any]:
        if handle.ledger_id != gone:
            yield from real(handle, first, last, **how)
            return
        if on_the_way:
            yield from real(handle, first, first, **how)
        raise NoSuchLedgerError(f"ledger {gone} does not exist", ledger=gone)

    monkeypatch.setattr(ReadHandle, "read_runs", runs)
    with caplog.at_level(logging.WARNING, "bk_spark.read"):
        shown = [value for batch in read.read(task) for value in batch.column(0).to_pylist()]
    seen = planned[0].rows_per_entry if on_the_way else 0
    here, lost = planned[0].first + on_the_way, 100 - seen
    assert shown == [*ids[:seen], 100] and planned[0].entries > 1
    (told,) = [record for record in caplog.records if record.name == "bk_spark.read"]
    words = f"ledger {gone} of log 'a' does not exist any more: its entries {here}..{planned[-1].last} ({lost} rows) are lost"
    assert words in told.getMessage() and told.levelno == logging.WARNING
    assert told.__dict__["context"] == {"log": "a", "ledger": str(gone), "rows": str(lost)}


def test_a_ledger_that_a_task_cannot_open_any_more_is_told_by_the_task(
    world: Any, uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.write([1, 2], log="a")
    (gone,) = world.ledgers()
    read = BookKeeperDataSource({"metadataServiceUri": uri, "log": "a", "failOnDataLoss": "false"}).reader(SCHEMA)
    (task,) = read.partitions()

    def missing(*_: Any) -> Any:
        raise NoSuchLedgerError(f"ledger {gone} does not exist", ledger=gone)

    monkeypatch.setattr(RangeReader, "_open", missing)
    with caplog.at_level(logging.WARNING, "bk_spark.read"):
        assert not [row for batch in read.read(task) for row in batch.to_pylist()]
    (told,) = [record for record in caplog.records if record.name == "bk_spark.read"]
    assert "(2 rows) are lost" in told.getMessage()


def test_a_live_ledger_that_is_gone_is_a_loss_of_a_batch_read_too(world: Any, uri: str, caplog: pytest.LogCaptureFixture) -> None:
    world.write([1], log="a")
    with world.client.create_ledger(custom={"log": b"a"}) as live:
        update_ledger_list(world.client, "a", lambda listed: listed.add_live_segment(live.ledger_id, now_ms()))
    world.client.delete_ledger(live.ledger_id, even_if_listed=True)
    with pytest.raises(LogDataLossError, match=rf"log 'a' lists a live ledger that does not exist, {live.ledger_id}: .* bk log check a"):
        batch(uri, log="a")
    assert len(batch(uri, log="a", failOnDataLoss="false")) == 1
    assert "live ledger that does not exist" in caplog.text


def test_a_ledger_that_is_named_and_gone(world: Any, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a log there is no list that could be wrong. It may go between the two looks at it."""
    world.write({"value": ["x"]}, schema="value string", log="raw", entryFormat="raw")
    (there,) = world.ledgers()
    read = BookKeeperDataSource({"metadataServiceUri": uri, "ledgers": str(there + 7)})
    with pytest.raises(NoSuchLedgerError, match=f"option ledgers: ledger {there + 7} does not exist; failOnDataLoss=false reads the rest"):
        read.reader(read.schema()).partitions()
    monkeypatch.setattr(snapshot, "ledger_end", lambda *_: (4, 50, True))
    with pytest.raises(LogDataLossError, match=rf"ledger {there + 7} does not exist any more: its entries 0\.\.4 are lost\."):
        read.reader(read.schema()).partitions()


@pytest.mark.parametrize("read", [batch, stream])
def test_the_password_is_looked_at_when_a_read_is_planned(world: Any, uri: str, read: Any) -> None:
    world.write([1], log="sec", password=SECRET)
    (secret,) = world.ledgers()
    world.write([1], log="plain")
    (plain,) = world.ledgers() - {secret}
    line = r"""\.option\("password", "\.\.\."\) or \.option\("passwordFile", "\.\.\."\), on a table WITH \(password = '\.\.\.'\)"""
    cases = [
        ({"log": "sec"}, rf"log 'sec' is written with a password \(ledger {secret} has it\), and none was given: {line}"),
        ({"log": "plain", "password": SECRET}, rf"log 'plain' is written without a password \(ledger {plain} has none\), .*leave the"),
        ({"log": "sec", "password": "tell-tale"}, rf"the password given is not the one that log 'sec' \(ledger {secret}\) is written with"),
    ]
    for options, words in cases:
        with pytest.raises(WrongPasswordError, match=words) as told:
            read(uri, **options)
        assert SECRET not in str(told.value) and "tell-tale" not in str(told.value) and told.value.code == "BK-PASSWORD"
    assert len(read(uri, log="sec", password=SECRET)) == len(read(uri, log="plain")) == 1


def test_the_password_of_a_ledger_without_a_log(world: Any, uri: str) -> None:
    with world.client.create_ledger(password=SECRET.encode()) as ledger:
        ledger.append(b"x")
    for given, words in (
        ({}, f"ledger {ledger.ledger_id} is written with a password, and none was given"),
        ({"password": "x"}, f"the password given is not the one that ledger {ledger.ledger_id} is written with"),
    ):
        read = BookKeeperDataSource({"metadataServiceUri": uri, "ledgers": str(ledger.ledger_id), **given})
        with pytest.raises(WrongPasswordError, match=words):
            read.reader(read.schema()).partitions()


def test_metadata_that_stores_no_password_takes_any_and_is_decoded_once(world: Any, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """META-15: old formats. What is known of a ledger is decoded once, whatever planning asks of it."""
    world.write([1], log="a")
    (ledger_id,) = world.ledgers()
    stored = world.store.read_ledger(ledger_id)
    decode, decoded = metadata_codec.decode, []

    def without(data: bytes) -> LedgerMetadata:
        decoded.append(data)
        return replace(decode(data), stores_password=False)

    known._facts_of.cache_clear()
    monkeypatch.setattr(metadata_codec, "decode", without)
    given: Options = parse_options({"metadataServiceUri": uri, "log": "a", "password": "anything"})
    for _ in range(2):
        check_password(Known("", {ledger_id: stored}, {}), given, [EntryRange(ledger_id, 0, 0, 1, log="a")])
    assert len(decoded) == 1
    known._facts_of.cache_clear()
    assert "anything" not in repr(known.facts_of(stored))
    known._facts_of.cache_clear()
