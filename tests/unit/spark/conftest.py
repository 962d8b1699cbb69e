"""A world for the sink without Spark: writers go as pickles into "tasks" of this process, over bookies on sockets and a lossy store."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.client.log.history import read_log
from bk_core.client.log.lists import create_log
from bk_core.errors import (
    MetadataOutcomeUnknownError,
)
from bk_core.metadata import open_store
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.segments import LogProperties
from bk_spark.entries.stored_schema import arrow_schema_of_text
from bk_spark.entries.unpacking import arrow_batches
from bk_spark.options.table import parse_options
from bk_spark.sink import commit as commits
from bk_spark.sink import data_ledgers, sweep
from bk_spark.sink import task as sink
from bk_spark.sink.messages import CommitMessage
from bk_spark.sink.writer import BookKeeperStreamWriter, BookKeeperWriter

NEVER = Limits(explicit_lac_ns=3_600_000_000_000)
ID = "id long"
TYPES: dict[str, DataType] = {
    "long": LongType(),
    "int": IntegerType(),
    "string": StringType(),
    "binary": BinaryType(),
    "void": NullType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
    "map": MapType(StringType(), BinaryType()),
    "time": TimestampType(),
}


def struct(text: str) -> StructType:
    """``id long, name string``; Spark's own parser is in the JVM."""
    pairs = [column.split() for column in text.split(",") if column]
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


class Store:
    """The real store, but for answers that get lost and races that are lost."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.lost_answers = 0
        self.before_write: Callable[[], None] | None = None
        self.paths_deleted: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def write(self, path: str, data: bytes, version: int) -> int:
        if path.startswith("logs/") and self.before_write is not None:
            race, self.before_write = self.before_write, None
            race()
        written = int(self.store.write(path, data, version))
        if path.startswith("logs/") and self.lost_answers:
            self.lost_answers -= 1
            raise MetadataOutcomeUnknownError("the answer was lost")
        return written


class World:
    """One cluster, and Spark's part in a write: tasks in any number, then commit or abort, all over pickles."""

    def __init__(self, client: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client = client
        self.store = store
        self._monkeypatch = monkeypatch

    def create(self, log: str) -> None:
        """An empty log of Arrow entries."""
        create_log(self.client, log, LogProperties(entry_format="arrow"))

    def struct(self, text: str) -> StructType:
        return struct(text)

    def ids(self, ids: list[int]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})

    def options(self, **given: str) -> Any:
        quorums = {"ensembleSize": "3", "writeQuorumSize": "3", "ackQuorumSize": "2"}
        return parse_options({"metadataServiceUri": "memory://x", **quorums, **given})

    def writer(self, schema: str = ID, overwrite: bool = False, **given: str) -> Any:
        return BookKeeperWriter(self.options(**given), struct(schema), overwrite)

    def stream(self, schema: str = ID, overwrite: bool = False, **given: str) -> Any:
        return BookKeeperStreamWriter(self.options(**given), struct(schema), overwrite)

    def task(self, writer: Any, *batches: Any, query: str = "", partition: int = 0, attempt: int = 0) -> CommitMessage:
        """Each batch: a list of ids, or a dict of columns."""
        self._monkeypatch.setattr(sink, "task_identity", lambda: (query, partition, attempt))
        given = [pa.RecordBatch.from_pydict(b if isinstance(b, dict) else {"id": b}) for b in batches]
        message: CommitMessage = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(iter(given))))
        return message

    def write(self, *batches: Any, schema: str = ID, overwrite: bool = False, **given: str) -> CommitMessage:
        writer = self.writer(schema, overwrite, **given)
        message = self.task(writer, *batches)
        pickle.loads(pickle.dumps(writer)).commit([message])
        return message

    def rows(self, log: str) -> list[Any]:
        """Every row in the order of the log; plain values if there is one column."""
        return self.rows_of(log, b"")

    def rows_of(self, log: str, password: bytes) -> list[Any]:
        view = read_log(self.client, log)
        found: list[Any] = []
        for segment in view.segments():
            raw = view.properties.entry_format == "raw"
            if not segment.entries:
                continue
            with self.client.open_ledger(segment.ledger_id, password=password) as ledger:
                runs = list(ledger.read_runs(segment.first_entry_id, segment.last_entry_id, unchecked_bound=True))
            if raw:
                found += [bytes(r.values[r.offsets[i] : r.offsets[i + 1]]) for r in runs for i in range(r.count)]
                continue
            stored = arrow_schema_of_text(view.listed.schemas[segment.schema_id])
            before = len(found)
            for batch in arrow_batches(stored, runs):
                found += [tuple(row.values()) if len(row) > 1 else next(iter(row.values())) for row in batch.to_pylist()]
            assert len(found) - before == segment.rows
        return found

    def ledgers(self) -> set[int]:
        return set(self.client.list_ledgers())


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    uri = f"memory://{tmp_path.name}"
    store = open_store(uri)
    store.initialize_cluster()
    bookies = [EmbeddedBookie(tmp_path / str(i), "127.0.0.1", 0, store).start() for i in range(3)]
    with bk_core.connect(uri, limits=NEVER) as bk:
        lossy = Store(bk.store)
        monkeypatch.setattr(bk, "store", lossy)
        for module in (sink, commits, data_ledgers):
            monkeypatch.setattr(module, "client_for", lambda *_: bk)
        monkeypatch.setattr(sweep, "_last", {})
        data_ledgers._kept.clear()
        yield World(bk, lossy, monkeypatch)
        data_ledgers._kept.clear()
    for bookie in bookies:
        bookie.close()
    store.close()
