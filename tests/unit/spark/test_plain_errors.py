"""A user sees the message of an error of a driver's call, and not the way that it came."""

from __future__ import annotations

import io
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.serializers import CPickleSerializer, write_int, write_with_length
from pyspark.sql.types import LongType, StructField, StructType
from pyspark.sql.worker import create_data_source
from pyspark.util import handle_worker_exception

from bk_core.client.log.janitor import delete_log
from bk_core.errors import BkError, InternalError, LogSchemaError
from bk_spark.datasource import BookKeeperDataSource
from bk_spark.plain_errors import plainly
from bk_spark.sink.writer import BookKeeperStreamWriter, BookKeeperWriter
from bk_spark.source.batch import BookKeeperReader, PushdownReader
from bk_spark.source.stream import BookKeeperStreamReader
from bk_spark.tables.reader import MetadataReader, PushdownMetadataReader
from tests.spark_clients import close_clients

SCHEMA = StructType([StructField("id", LongType())])
NAMED = ".option('bookkeeper.metadataServiceUri', 'zk://host:2181/ledgers').option('log', 'name') names the cluster and the log"
CALLS: dict[type, tuple[str, ...]] = {
    BookKeeperDataSource: ("schema", "reader", "streamReader", "writer", "streamWriter"),
    BookKeeperReader: ("partitions",),
    PushdownReader: ("partitions", "pushFilters"),
    MetadataReader: ("partitions",),
    PushdownMetadataReader: ("partitions", "pushFilters"),
    BookKeeperStreamReader: (
        "initialOffset",
        "prepareForTriggerAvailableNow",
        "latestOffset",
        "reportLatestOffset",
        "commit",
        "partitions",
    ),
    BookKeeperWriter: ("write", "commit", "abort"),
    BookKeeperStreamWriter: ("write", "commit", "abort"),
}


@pytest.fixture
def uri(world: Any) -> Iterator[str]:
    world.write([1], log="flights")
    yield world.client.config.uri
    close_clients()


def shown(call: Callable[[], Any]) -> tuple[BkError, str]:
    """As pyspark sends it to the JVM."""
    with pytest.raises(BkError) as caught:
        call()
    error = caught.value
    return error, "".join(traceback.TracebackException(type(error), error, error.__traceback__, compact=True).format())


def ours(text: str) -> int:
    return sum(line.lstrip().startswith("File ") and ("/bk_spark/" in line or "/bk_core/" in line) for line in text.splitlines())


def test_a_mistake_is_shown_without_the_way_it_came(uri: str) -> None:
    def source(**options: str) -> BookKeeperDataSource:
        return BookKeeperDataSource({"metadataServiceUri": uri, **options})

    mistakes: list[tuple[Callable[[], Any], str]] = [
        (lambda: source(log="a", entrySize="9m").schema(), "[BK-ARGUMENT] option entrySize"),
        (lambda: source(log="flihgts").schema(), "[BK-NO-LOG] there is no log 'flihgts'; did you mean 'flights'?"),
        (lambda: source(log="flihgts").streamReader(SCHEMA), "[BK-NO-LOG] there is no log 'flihgts'; did you mean 'flights'?"),
        (
            lambda: source(log="flights").reader(StructType([StructField("x", LongType())])),
            "[BK-LOG-SCHEMA] the schema asks for column 'x'",
        ),
        (lambda: source(log="flihgts", createLogs="false").writer(SCHEMA, False), "did you mean 'flights'?; createLogs is false"),
        (lambda: source(logPattern="flihgt.*").schema(), "matches no log; there are flights"),
        (lambda: BookKeeperDataSource({}).streamWriter(SCHEMA, False), "For CREATE TABLE ... AS SELECT write the rows first: df.write"),
        (
            lambda: BookKeeperDataSource({}).writer(SCHEMA, False),
            f"[BK-ARGUMENT] this write has no options: {NAMED}. Of a table: Spark does",
        ),
        (lambda: BookKeeperDataSource({}).reader(SCHEMA), f"[BK-ARGUMENT] this read has no options: {NAMED}. Of a table: Spark keeps"),
        (lambda: source().writer(SCHEMA, False), '[BK-ARGUMENT] name the log to write: .option("log", "name") or save("name"), or'),
        (lambda: source().schema(), '[BK-ARGUMENT] name the log to read: .option("log", "name") or load("name"), or'),
        (
            lambda: source().writer(StructType([StructField("Topic", LongType())]), False),
            "[BK-LOG-SCHEMA] option log is not given, so column 'Topic' names the log of each row: it must be a string, not bigint",
        ),
        (lambda: source(log="flights", startingOffsets='{"seq":9}').reader(SCHEMA).partitions(), "lies beyond the end of log 'flights'"),
    ]
    for call, message in mistakes:
        _, text = shown(call)
        assert message in text.splitlines()[-1] and ours(text) == 1, text
        assert "During handling" not in text and "direct cause" not in text, text


def test_a_log_that_is_gone_may_have_been_deleted_under_a_stream(uri: str, world: Any) -> None:
    """Spark asks for the columns before it says that there is a checkpoint, so that a deleted log looks like a wrong name there."""

    def source(**options: str) -> BookKeeperDataSource:
        return BookKeeperDataSource({"metadataServiceUri": uri, **options})

    words = "If this is a stream that has read it before, it was deleted, and what was not read yet is lost"
    assert words not in shown(source(log="flihgts").schema)[1]  # it may be a batch that asks, and the name is nearly right
    assert words in shown(lambda: source(log="flihgts").streamReader(SCHEMA))[1]
    stream = source(log="flights").streamReader(SCHEMA)
    delete_log(world.client, "flights")
    for call in (stream.initialOffset, lambda: source(log="flights").streamReader(SCHEMA)):
        error, text = shown(call)
        assert (
            error.code == "BK-NO-LOG"
            and f"there is no log 'flights'. {words}" in text
            and "waitForLog=true waits for a log that is yet to come" in text
        )
    assert words not in shown(lambda: source(log="flights").reader(SCHEMA))[1]
    either = shown(source(log="flights").schema)[1]  # Spark does not say who asks
    assert "there is no log 'flights': it was never made, or it was deleted with what was not read yet" in either and "stream" not in either
    assert words not in shown(lambda: source(logPattern="f.*").schema())[1]


def test_a_mistake_as_spark_gets_it_from_its_planner() -> None:
    """The call of ``load()``, from the bytes that the JVM sends to those that it shows."""
    asked, told = io.BytesIO(), io.BytesIO()
    CPickleSerializer()._write_with_length(BookKeeperDataSource, asked)
    write_with_length(b"bookkeeper", asked)
    asked.write(b"\0")  # no schema is given
    options = {"metadataServiceUri": "zk://127.0.0.1:1/ledgers", "entrySize": "9m"}
    write_int(len(options), asked)
    for text in (text for pair in options.items() for text in pair):
        write_with_length(text.encode(), asked)
    asked.seek(0)
    try:
        create_data_source._main(asked, io.BytesIO())
    except BkError as error:
        handle_worker_exception(error, told, hide_traceback=False)
    text = told.getvalue()[8:].decode()
    assert "option entrySize: expected at most" in text and ours(text) == 1, text


def test_a_cause_is_dropped_and_a_defect_is_not() -> None:
    @plainly
    def fail(error: BkError) -> None:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            raise error from cause

    error, text = shown(lambda: fail(LogSchemaError("it does not fit", log="a")))
    assert "cause" not in text and (error.context, str(pickle.loads(pickle.dumps(error)))) == ({"log": "a"}, str(error))
    assert "KeyError: 'cause'" in shown(lambda: fail(InternalError("a defect")))[1]


@pytest.mark.parametrize(("kind", "method"), [(kind, method) for kind, methods in CALLS.items() for method in methods])
def test_every_call_of_the_driver_is_told_plainly(kind: type, method: str) -> None:
    assert getattr(kind, method).__wrapped__.__name__ == method


def test_an_option_that_does_nothing_is_refused_before_anything_is_asked_for() -> None:
    """There is no such cluster, so a reader or writer that looked first would tell that."""
    nowhere = {"metadataServiceUri": "zk://127.0.0.1:1/ledgers", "log": "flights"}

    def source(**options: str) -> BookKeeperDataSource:
        return BookKeeperDataSource({**nowhere, **options})

    mistakes: list[tuple[Callable[[], Any], str]] = [
        (source(entryFormat="raw").schema, "option entryFormat does nothing in a read: it belongs to writes"),
        (source(metadata="logs", readerName="a").schema, "option readerName does nothing in metadata=logs: it belongs to streaming reads"),
        (lambda: source(readerName="a").reader(SCHEMA), "option readerName does nothing in a batch read of rows"),
        (lambda: source(endingOffsets="latest").streamReader(SCHEMA), "option endingOffsets does nothing in a stream"),
        (lambda: source(txnAppId="a", txnVersion="1").streamWriter(SCHEMA, False), "do nothing in the sink of a stream"),
        (lambda: source(checkpointLocation="/c").writer(SCHEMA, False), "option checkpointLocation does nothing in a batch write"),
    ]
    for call, message in mistakes:
        assert message in shown(call)[1]
    ledgers = BookKeeperDataSource({"metadataServiceUri": "zk://127.0.0.1:1/ledgers", "ledgers": "7", "startingOffsets": "latest"})
    assert "ledgers are read whole" in shown(lambda: ledgers.reader(SCHEMA))[1]
