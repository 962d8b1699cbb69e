"""Sessions at a server of the metadata store that is behind another session: nothing is gone before the servers agree that it is."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructField, StructType

from bk_core.client.log.janitor import delete_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import list_logs
from bk_core.errors import LogDataLossError, LogError, NoNodeError
from bk_spark.clients import client_for
from bk_spark.options.table import parse_options
from bk_spark.source.stream import BookKeeperStreamReader
from tests.spark_clients import close_clients

SCHEMA = StructType([StructField("id", LongType())])


class Behind:
    """A store whose server has not heard yet of the ``hidden`` logs and ledgers, and knows ``old`` lists, until the servers agree."""

    def __init__(self, store: Any, hidden: tuple[Any, ...] = (), old: dict[str, Any] | None = None) -> None:
        self._store = store
        self.hidden, self.old = hidden, old or {}
        self.agreements = 0

    def list_ledgers(self) -> Iterator[int]:
        """Return the ids behind an agreement, as the stores do."""
        self.agreements += 1
        self.hidden, self.old = (), {}
        return iter(self._store.list_ledgers())

    def children(self, path: str) -> list[str]:
        return [name for name in self._store.children(path) if name not in self.hidden]

    def read_here(self, path: str) -> Any:
        name = path.removeprefix("logs/")
        if name in self.hidden:
            raise NoNodeError(path)
        return self.old.get(name) or self._store.read_here(path)

    def read_ledger(self, ledger_id: int) -> Any:
        if ledger_id in self.hidden:
            raise NoNodeError(f"ledger {ledger_id}")
        return self._store.read_ledger(ledger_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


# --- the sink ------------------------------------------------------------------------------------------------------------


def commit(world: Any, writer: Any, message: Any, *batch_id: int, hidden: tuple[Any, ...] = (), old: dict[str, Any] | None = None) -> int:
    """Commit with a session at a server that is behind; return how often the servers agreed meanwhile."""
    real, world.store.store = world.store.store, Behind(world.store.store, hidden, old)
    try:
        pickle.loads(pickle.dumps(writer)).commit([message], *batch_id)
        return int(world.store.store.agreements)
    finally:
        world.store.store = real


@pytest.mark.parametrize("is_new", [True, False])
def test_a_ledger_that_the_committer_does_not_know_yet(world: Any, is_new: bool) -> None:
    if not is_new:
        world.create("a")
    writer = world.writer(log="a")
    message = world.task(writer, [1, 2])
    assert commit(world, writer, message, hidden=(message.parts[0].ranges[0].ledger_id,)) == 1
    assert world.rows("a") == [1, 2]


@pytest.mark.parametrize("lossy", ["true", "false"])
@pytest.mark.parametrize("behind", ["a batch", "the log", "its making anew"])
def test_a_list_that_lacks_what_the_batch_follows(world: Any, behind: str, lossy: str, caplog: pytest.LogCaptureFixture) -> None:
    """BAT-1."""

    def run(batch_id: int, **how: Any) -> int:
        stream = world.stream(log="a", failOnDataLoss=lossy)
        return commit(world, stream, world.task(stream, [batch_id], query="q"), batch_id, **how)

    if behind == "its making anew":
        world.create("a")
    else:
        assert run(0) == 0
    old = {"a": world.store.read_here("logs/a")}
    if behind == "its making anew":
        delete_log(world.client, "a")
        run(0)
    assert run(1) == 0
    assert run(2, **({"hidden": ("a",)} if behind == "the log" else {"old": old})) == 1
    assert world.rows("a") == [0, 1, 2] and not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_columns_that_the_committers_list_does_not_have_yet(world: Any) -> None:
    world.write([1], log="a")
    old = {"a": world.store.read_here("logs/a")}
    world.write({"id": [2], "b": [3]}, schema="id long, b long", log="a", mergeSchema="true")
    writer = world.writer("id long, b long, c long", log="a", mergeSchema="true")
    assert commit(world, writer, world.task(writer, {"id": [4], "b": [5], "c": [6]}), old=old) == 1
    assert read_ledger_list(world.client, "a").total_rows == 3


def test_a_loss_that_the_servers_agree_on_is_one(world: Any) -> None:
    """BAT-1. The refused write makes no log either."""
    stream = world.stream(log="a")
    commit(world, stream, world.task(stream, [0], query="q"), 0)
    delete_log(world.client, "a")
    message = world.task(stream, [1], query="q")
    with pytest.raises(LogDataLossError, match="there is no log 'a'"):
        commit(world, stream, message, 1)
    writer = world.writer(log="b")
    message = world.task(writer, [1])
    world.client.delete_ledger(message.parts[0].ranges[0].ledger_id)
    with pytest.raises(LogError, match="deleted by a janitor"):
        commit(world, writer, message)
    assert list_logs(world.client) == []


# --- the source ----------------------------------------------------------------------------------------------------------


class Query:
    """A query of two logs: the runs of it, and the rows that they have shown."""

    def __init__(self, uri: str, **options: str) -> None:
        given = {"metadataServiceUri": uri, "startingOffsets": "earliest", **options}
        self._options = parse_options(given)
        self.client = client_for(self._options.uri, self._options.protocol)
        self.shown: list[int] = []
        self.at: Any = None

    def run(self, triggers: int = 3) -> None:
        """Run it anew, from its checkpoint if there is one."""
        reader = BookKeeperStreamReader(self._options, SCHEMA)
        try:
            first = reader.initialOffset()
            self.at = self.at or first
            for _ in range(triggers):
                end = reader.latestOffset(self.at, ReadAllAvailable())
                for task in reader.partitions(self.at, end) if end != self.at else ():
                    self.shown += [value for batch in reader.read(task) for value in batch.column(0).to_pylist()]
                self.at = end
        finally:
            reader.stop()

    def behind(self, *hidden: str, old: dict[str, Any] | None = None) -> Behind:
        """Have the session of the next run at a server that is behind."""
        self.client.store = Behind(self.client.store, hidden, old)
        store: Behind = self.client.store
        return store


@pytest.fixture
def uri(world: Any) -> Iterator[str]:
    world.write([1], log="l-a")
    world.write([2, 3], log="l-b")
    yield world.client.config.uri
    close_clients()


@pytest.mark.parametrize("source", [{"logPattern": "l-.*"}, {"logs": "l-a,l-b"}])
@pytest.mark.parametrize("lossy", ["true", "false"])
def test_a_stream_that_is_started_again_behind_its_offset_reads_nothing_twice(
    world: Any, uri: str, source: dict[str, str], lossy: str, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(uri, failOnDataLoss=lossy, **source)
    query.run()
    assert sorted(query.shown) == [1, 2, 3]
    store = query.behind("l-b")
    world.write([4], log="l-b")
    with caplog.at_level(logging.WARNING, "bk_spark.stream"):
        query.run()
    assert sorted(query.shown) == [1, 2, 3, 4] and store.agreements and not caplog.records


@pytest.mark.parametrize("lossy", ["true", "false"])
def test_a_log_that_was_made_anew_is_known_by_its_offset(world: Any, uri: str, lossy: str) -> None:
    """The server that is behind still has the log of that name from before."""
    before = world.store.read_here("logs/l-b")
    delete_log(world.client, "l-b")
    world.write([5, 6], log="l-b")
    query = Query(uri, failOnDataLoss=lossy, logPattern="l-.*")
    query.run()
    query.behind(old={"l-b": before})
    query.run()
    assert sorted(query.shown) == [1, 5, 6]


def test_a_log_that_is_gone_costs_one_agreement(world: Any, uri: str, caplog: pytest.LogCaptureFixture) -> None:
    query = Query(uri, failOnDataLoss="false", logPattern="l-.*")
    query.run()
    delete_log(world.client, "l-b")
    store = query.behind()
    with caplog.at_level(logging.WARNING, "bk_spark.stream"):
        query.run()
    (told,) = [record.getMessage() for record in caplog.records]
    assert "log 'l-b' was deleted; what it had after row 2 is lost" in told
    assert store.agreements == 1
    delete_log(world.client, "l-a")
    query = Query(uri, logPattern="l-.*")
    world.write([7], log="l-c")
    world.write([8], log="l-d")
    query.run()
    delete_log(world.client, "l-c")
    with pytest.raises(LogDataLossError, match="log 'l-c' was deleted"):
        query.run()
