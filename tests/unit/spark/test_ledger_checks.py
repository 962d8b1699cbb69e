"""A read whose ledgers are gone, or have another password, is refused when it is planned: by its own class, with the words that help."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from bk_core.client.log.history import update_ledger_list
from bk_core.client.log.list_store import now_ms
from bk_core.errors import LogDataLossError, NoSuchLedgerError, WrongPasswordError
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_spark.datasource import BookKeeperDataSource
from bk_spark.entries.ranges import EntryRange
from bk_spark.options.table import Options, parse_options
from bk_spark.source import known, snapshot
from bk_spark.source.known import Known
from bk_spark.source.ledger_checks import check_password
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
