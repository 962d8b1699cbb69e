"""Writers of logs as tables: one that appends Arrow entries (one row each, because a live segment has as many rows as entries), and a write
in an outage."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.client.log.entering import enter_one
from bk_core.errors import InvalidArgumentError, LogListFullError, MetadataUnavailableError, OperationTimeoutError
from bk_core.metadata import open_store
from bk_core.metadata.memory import MemoryStore
from bk_core.protocol.log.position import Position
from tests.unit.spark.conftest import World


@pytest.fixture
def log(world: World) -> bk_core.Log:
    found: bk_core.Log = world.client.create_log("flights", schema="id BIGINT, name STRING")
    return found


def entry(*ids: int) -> bytes:
    names = [f"name {number}" for number in ids]
    payload: bytes = pa.record_batch({"id": pa.array(ids, pa.int64()), "name": names}).serialize().to_pybytes()
    return payload


def ids(log: bk_core.Log, **where: Any) -> list[int]:
    return [row["id"] for row in log.to_arrow(columns=["id"], **where).to_pylist()]


def test_rows_of_a_living_writer_and_of_commits_have_their_positions(world: World, log: bk_core.Log) -> None:
    log.write(pa.table({"id": [0, 1], "name": ["name 0", "name 1"]}))
    with log.writer(arrow_entries=True) as writer:
        assert writer.append(entry(2)) == Position(1, 0)
        assert writer.append_many([entry(3), entry(4)])[0].last_position == Position(1, 2)
        writer.append(entry(5))
        assert ids(log)[:5] == [0, 1, 2, 3, 4]
    log.write(pa.table({"id": [6], "name": ["name 6"]}))
    assert ids(log) == [0, 1, 2, 3, 4, 5, 6] and log.info.rows == 7
    assert ids(log, start=Position(1, 1), end=Position(1, 3)) == [3, 4]
    assert world.rows("flights") == [(number, f"name {number}") for number in range(7)]  # Spark's reader


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (entry(1, 2, 3), "payload 0 has 3 rows"),
        (entry(), "payload 0 has 0 rows"),
        (b"no record batch", "payload 0 is no Arrow record batch message"),
        (b"", "payload 0 is no Arrow record batch message"),
        (pa.schema([("id", pa.int64())]).serialize().to_pybytes(), "payload 0 is no Arrow record batch message"),
    ],
    ids=["many", "none", "bytes", "empty", "schema"],
)
def test_entries_that_no_reader_would_take_are_refused_by_every_append(log: bk_core.Log, payload: bytes, said: str) -> None:
    """Readers end at such an entry for good, so the log could not be read behind it."""
    with log.writer(arrow_entries=True) as writer:
        for append in (
            lambda: writer.append(payload),
            lambda: writer.append_future(payload),
            lambda: enter_one(writer, payload, lambda: None),  # bk_core.aio
            lambda: writer.append_many([payload]),
            lambda: writer.append_run(payload, memoryview(b"").cast("B") if not payload else pa.array([0, len(payload)]).buffers()[1]),
        ):
            with pytest.raises(InvalidArgumentError, match=said if payload else "payload 0 is no Arrow|an empty run|offsets"):
                append()
        with pytest.raises(InvalidArgumentError, match="payload 1 .*record batches of one row each.* Log.write takes a table"):
            writer.append_many([entry(7), payload])
        writer.append(entry(8))
    assert ids(log) == [8]


def test_a_raw_log_takes_any_bytes_from_such_a_writer(world: World) -> None:
    log = world.client.create_log("lines")
    with log.writer(arrow_entries=True) as writer:
        writer.append(b"plain")
    assert log.to_arrow(columns=["value"]).to_pydict() == {"value": [b"plain"]}


def test_columns_that_no_list_can_keep_are_told_before_a_row_is_written(world: World) -> None:
    wide = world.client.create_log("wide", entry_format="arrow")
    before = list(world.client.list_ledgers())
    table = pa.table({f"column {n:05} with a rather long name": pa.array([n]) for n in range(12_000)})
    with pytest.raises(LogListFullError, match="of them for its columns") as refused:
        wide.write(table)
    assert not refused.value.outcome_unknown and list(world.client.list_ledgers()) == before


def test_an_outage_ends_a_write_after_the_timeout_of_the_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookie of the open ledger goes, another is there, and the metadata store does not take the change of the ensemble."""
    uri = f"memory://{tmp_path.name}"
    store = open_store(uri)
    store.initialize_cluster()
    bookies = [EmbeddedBookie(tmp_path / str(i), "127.0.0.1", 0, store).start() for i in range(2)]
    with bk_core.connect(uri, operation_timeout_s=1.0) as client:
        log = client.create_log("a", schema="id BIGINT", ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)

        def unavailable(*_: Any) -> int:
            raise MetadataUnavailableError("the metadata store does not answer")

        def batches() -> Iterator[pa.RecordBatch]:
            yield from pa.table({"id": pa.array(range(1 << 21), pa.int64())}).to_batches()
            monkeypatch.setattr(MemoryStore, "write_ledger", unavailable)
            for bookie in bookies:
                if client.ledger_metadata(max(client.list_ledgers())).fragments[-1].ensemble == (bookie.bookie_id,):
                    bookie.close()
            yield from pa.table({"id": pa.array([7], pa.int64())}).to_batches()

        began = time.monotonic()
        with pytest.raises(OperationTimeoutError, match=r"writing rows to log 'a' \(ledger \d+\) got no answer for 1 s.*nothing of it is"):
            log.write(batches(), entry_size=1 << 20)
        assert time.monotonic() - began < 30
        assert log.to_arrow().num_rows == 0
    for bookie in bookies:
        bookie.close()
    store.close()
