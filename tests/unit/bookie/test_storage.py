"""The LMDB storage against the one in memory, and what damage and full maps do."""

from __future__ import annotations

import errno
import os
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bk_core.bookie.records import decode_record, encode_record
from bk_core.bookie.storage import LmdbBookieStorage
from bk_core.errors import BookieIOError
from bk_core.protocol.bookie import LedgerRecord, MemoryBookieStorage, Persist

LEDGERS, ENTRIES = range(3), range(5)


def body(ledger_id: int, entry_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, -1, 0) + payload


records = st.builds(
    LedgerRecord,
    st.sampled_from(LEDGERS),
    st.none() | st.binary(max_size=25),
    fenced=st.booleans(),
    limbo=st.booleans(),
    deleted=st.booleans(),
    last_add_confirmed=st.integers(-1, 2**63 - 1),
    last_entry_id=st.integers(-1, 2**63 - 1),
    explicit_lac=st.none() | st.binary(max_size=40),
    deleted_at_ms=st.integers(0, 2**62),
)


@st.composite
def changes(draw: st.DrawFn) -> Persist:
    record = draw(records)
    if draw(st.integers(0, 9)) == 0:
        return Persist(record, drop_entries=True, forget=draw(st.booleans()))
    if draw(st.booleans()):
        return Persist(record)
    entry_id = draw(st.sampled_from(ENTRIES))
    return Persist(record, entry_id, body(record.ledger_id, entry_id, draw(st.binary(max_size=9))))


steps = st.lists(st.one_of(changes(), st.sampled_from(["sync", "request", "restart"])), max_size=40)


def assert_same(left: Any, right: Any) -> None:
    for ledger_id in LEDGERS:
        assert left.ledger(ledger_id) == right.ledger(ledger_id)
        assert list(left.entry_ids(ledger_id)) == list(right.entry_ids(ledger_id))
        for entry_id in ENTRIES:
            assert left.entry(ledger_id, entry_id) == right.entry(ledger_id, entry_id)
    assert left.ledger_ids() == right.ledger_ids()
    assert left.tombstone_ids() == right.tombstone_ids()
    assert left.limbo_ids() == right.limbo_ids()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps)
def test_same_as_memory(tmp_path_factory: pytest.TempPathFactory, script: list[Any]) -> None:
    directory = tmp_path_factory.mktemp("storage")
    memory, real = MemoryBookieStorage(), LmdbBookieStorage(directory)
    try:
        for step in script:
            if step == "sync":
                memory.sync()
                real.sync()
                assert memory.durable_position == memory.position
            elif step == "request":
                real.request_sync()
            elif step == "restart":
                real.close()
                real = LmdbBookieStorage(directory)
            else:
                memory.apply(step)
                real.apply(step)
            assert_same(memory, real)
    finally:
        real.close()


@given(records)
def test_records_round_trip(record: LedgerRecord) -> None:
    assert decode_record(record.ledger_id, encode_record(record)) == record


def test_records_of_the_first_format_are_read() -> None:
    """They had no time of deletion."""
    record = LedgerRecord(1, b"key", fenced=True, deleted=True, last_add_confirmed=3, last_entry_id=4, explicit_lac=b"packet")
    head = struct.pack(">BBqqII", 1, 1 | 4 | 8 | 16, 3, 4, 3, 6)
    value = head + b"key" + b"packet"
    assert decode_record(1, struct.pack(">I", zlib.crc32(value)) + value) == record
    for wrong in (head[:0] + b"\x03" + value[1:], value + b"x"):
        with pytest.raises(BookieIOError, match="unknown format"):
            decode_record(1, struct.pack(">I", zlib.crc32(wrong)) + wrong)


@given(records, st.data())
def test_damaged_records_are_errors(record: LedgerRecord, data: st.DataObject) -> None:
    value = bytearray(encode_record(record))
    value[data.draw(st.integers(0, len(value) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(BookieIOError):
        decode_record(record.ledger_id, bytes(value))


def put(storage: LmdbBookieStorage, ledger_id: int, entry_id: int, payload: bytes = b"") -> None:
    record = LedgerRecord(ledger_id, b"k", last_entry_id=entry_id)
    storage.apply(Persist(record, entry_id, body(ledger_id, entry_id, payload)))


def test_map_grows(tmp_path: Path) -> None:
    storage = LmdbBookieStorage(tmp_path, map_bytes=64 << 10)
    for entry_id in range(64):
        put(storage, 1, entry_id, os.urandom(32 << 10))
    storage.sync()
    assert storage.entry_ids(1) == list(range(64))
    storage.close()
    storage = LmdbBookieStorage(tmp_path, map_bytes=64 << 10)
    assert len(storage.entry(1, 63) or b"") == 32 + (32 << 10)
    put(storage, 1, 64)
    storage.sync()
    storage.close()


def test_group_commit_reports_positions(tmp_path: Path) -> None:
    reported: list[tuple[int, BaseException | None]] = []
    done = threading.Event()

    def completed(position: int, error: BaseException | None) -> None:
        if position:  # 0: about the database
            reported.append((position, error))
        if position == 100:
            done.set()

    storage = LmdbBookieStorage(tmp_path, completed)
    for entry_id in range(100):
        put(storage, 1, entry_id)
        if entry_id % 10 == 9:
            storage.request_sync()
    assert done.wait(10)
    positions = [position for position, _ in reported]
    assert positions == sorted(set(positions)) and all(error is None for _, error in reported)
    assert storage.durable_position == 100
    storage.close()
    assert storage.uncommitted_bytes == 0


def test_failed_commit_is_reported_kept_and_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[tuple[int, BaseException | None]] = []
    storage = LmdbBookieStorage(tmp_path, lambda position, error: reported.append((position, error)))
    commit = storage._commit

    def fail(batch: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "_commit", fail)
    put(storage, 1, 0)
    with pytest.raises(BookieIOError, match="No space left"):
        storage.sync()
    put(storage, 1, 1)
    with pytest.raises(BookieIOError):
        storage.sync()
    assert storage.entry_ids(1) == [0, 1] and storage.durable_position == 0
    monkeypatch.setattr(storage, "_commit", commit)
    assert storage.sync() == 2
    storage.close()
    assert [position for position, error in reported if error] == [1, 2]
    storage = LmdbBookieStorage(tmp_path)
    assert storage.entry_ids(1) == [0, 1]
    storage.close()


def test_b7_damaged_and_misplaced_entries(tmp_path: Path) -> None:
    storage = LmdbBookieStorage(tmp_path)
    put(storage, 1, 0, b"abc")
    put(storage, 1, 1, b"abc")
    storage.close()
    with lmdb.open(str(tmp_path), max_dbs=2) as env:
        db = env.open_db(b"entries")
        with env.begin(write=True, db=db) as txn:
            first = bytes(txn.get(struct.pack(">QQ", 1, 0)) or b"")
            txn.put(struct.pack(">QQ", 1, 0), first[:-1] + b"!")
            txn.put(struct.pack(">QQ", 1, 2), first)
            txn.put(struct.pack(">QQ", 1, 1), b"")
    storage = LmdbBookieStorage(tmp_path)
    for entry_id in (0, 1, 2):
        with pytest.raises(BookieIOError):
            storage.entry(1, entry_id)
    assert storage.entry(1, 3) is None
    storage.close()


def test_damaged_record_is_not_a_tombstone(tmp_path: Path) -> None:
    storage = LmdbBookieStorage(tmp_path)
    put(storage, 1, 0)
    storage.close()
    with lmdb.open(str(tmp_path), max_dbs=2) as env:
        db = env.open_db(b"ledgers")
        with env.begin(write=True, db=db) as txn:
            txn.put(struct.pack(">Q", 1), b"garbage")
    storage = LmdbBookieStorage(tmp_path)
    assert storage.ledger_ids() == [1]
    assert storage.tombstone_ids() == [] and storage.limbo_ids() == []
    with pytest.raises(BookieIOError):
        storage.ledger(1)
    storage.close()


def test_disk_bytes(tmp_path: Path) -> None:
    storage = LmdbBookieStorage(tmp_path)
    total, free = storage.disk_bytes()
    assert 0 < free <= total
    storage.close()
