"""A writer that appends Arrow entries to a log: one row each, because a live segment has as many rows as entries."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import bk_core
from bk_core.client.log.entering import enter_one
from bk_core.errors import InvalidArgumentError
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
