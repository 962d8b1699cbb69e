"""The journal, the database behind it, and what a kill at any moment leaves of both."""

from __future__ import annotations

import errno
import os
import shutil
import struct
import threading
import zlib
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bk_core.bookie import journal as journals
from bk_core.bookie.batch import Batch
from bk_core.bookie.changes import decode_changes, encode_changes
from bk_core.bookie.directory import Condition, condition_of, move_aside
from bk_core.bookie.journal import NAMES, Journal, create
from bk_core.bookie.records import encode_record
from bk_core.bookie.storage import LmdbBookieStorage
from bk_core.errors import BookieIOError, RemoteProtocolError
from bk_core.protocol.bookie import Change, LedgerRecord, MemoryBookieStorage, Persist, PersistMany
from bk_core.protocol.bookie.chunks import StoredEntries, bounds_of
from bk_core.protocol.wire.codec_v2 import join_bodies, split_bodies
from tests.unit.bookie.host import body

ID = b"i" * journals.ID_BYTES


def opened(directory: Path, after: int = 0) -> tuple[Journal, list[tuple[int, bytes]]]:
    found: list[tuple[int, bytes]] = []
    return Journal(directory, ID, after, lambda number, content: found.append((number, bytes(content)))), found


def written(directory: Path, *contents: bytes) -> None:
    create(directory, ID)
    journal, _ = opened(directory)
    for content in contents:
        journal.append([content])
    journal.close()


def test_records_come_back_in_order(tmp_path: Path) -> None:
    written(tmp_path, b"one", b"", b"three")
    journal, found = opened(tmp_path)
    assert found == [(1, b"one"), (2, b""), (3, b"three")] and journal.append([b"fo", b"ur"]) == 4
    journal.close()
    journal, found = opened(tmp_path, after=2)
    assert found == [(3, b"three"), (4, b"four")]
    journal.close()


def test_b6_every_torn_end_is_cut_and_written_over(tmp_path: Path) -> None:
    """B-6: whatever part of the last record reached the disk, those before it are whole."""
    written(tmp_path, b"one", b"two")
    path = tmp_path / NAMES[0]
    whole = path.read_bytes()
    start = whole.rindex(b"\xb5BKrec")
    for torn in [whole[:size] for size in range(start, len(whole))] + [
        whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :] for at in range(start, len(whole))
    ]:
        path.write_bytes(torn)
        journal, found = opened(tmp_path)
        assert found == [(1, b"one")] and journal.append([b"2"]) == 2
        journal.close()
        journal, found = opened(tmp_path)
        assert found == [(1, b"one"), (2, b"2")]
        journal.close()


def test_b7_damage_before_the_end_is_no_shorter_journal(tmp_path: Path) -> None:
    """B-7: what was acknowledged is never denied."""
    written(tmp_path, b"one", b"two", b"three")
    path = tmp_path / NAMES[0]
    whole = path.read_bytes()
    for at in range(journals._START, whole.rindex(b"\xb5BKrec")):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
        with pytest.raises(BookieIOError, match="damaged"):
            opened(tmp_path)
        if at > whole.rindex(b"one"):
            opened(tmp_path, after=3)[0].close()  # the database has them all


@pytest.mark.parametrize("bad", [None, b"", b"BKJ1", b"BKJ1" + b"o" * journals.ID_BYTES])
def test_a_file_that_is_missing_or_of_another_journal(tmp_path: Path, bad: bytes | None) -> None:
    for name in NAMES:
        written(tmp_path, b"one")
        (tmp_path / name).unlink()
        if bad is not None:
            (tmp_path / name).write_bytes(bad)
        with pytest.raises(BookieIOError):
            opened(tmp_path)


def test_files_take_turns_once_the_database_has_what_is_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "FILE_BYTES", 1000)
    create(tmp_path, ID)
    journal, _ = opened(tmp_path)
    contents = [os.urandom(400) for _ in range(40)]
    for number, content in enumerate(contents, 1):
        assert journal.append([content]) == number
        if number > 4:
            journal.release(number - 4)
        other, found = opened(tmp_path, after=max(0, number - 4))
        assert found == list(enumerate(contents[:number], 1))[-4:]
        other.close()
    journal.close()
    assert all((tmp_path / name).stat().st_size < 4000 for name in NAMES)


def test_a_file_grows_while_the_database_is_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "FILE_BYTES", 1000)
    contents = [os.urandom(400) for _ in range(20)]
    written(tmp_path, *contents)
    journal, found = opened(tmp_path)
    assert [content for _, content in found] == contents
    journal.close()


def test_a_write_that_fails_is_made_again_in_the_same_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path, ID)
    journal, _ = opened(tmp_path)
    pwritev = os.pwritev

    def short(descriptor: int, parts: list[Any], offset: int) -> int:
        return os.pwrite(descriptor, b"".join(parts)[:5], offset)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OSError, match="No space"):
        journal.append([b"one"])
    monkeypatch.setattr(os, "pwritev", short)
    assert journal.append([b"first"] * 1500) == 1
    monkeypatch.setattr(os, "pwritev", pwritev)
    assert journal.append([b"second"]) == 2
    journal.close()
    journal, found = opened(tmp_path)
    assert found == [(1, b"first" * 1500), (2, b"second")]
    journal.close()


def test_a_record_whose_sync_failed_is_never_there_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other file became free between the two attempts."""
    monkeypatch.setattr(journals, "FILE_BYTES", 100)
    written(tmp_path, b"1" * 100, b"2" * 100, b"3" * 100)
    journal, _ = opened(tmp_path)

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output"):
            journal.append([b"some"])
    journal.release(3)
    journal.append([b"some", b"more"])
    journal.append([b"next"])
    journal.close()
    journal, found = opened(tmp_path, after=3)
    assert found == [(4, b"somemore"), (5, b"next")]
    journal.close()


# --- changes and batches ------------------------------------------------------------------------------------------

ids = st.integers(0, 12)
ledgers = st.integers(1, 2)


def run_of(ledger_id: int, first: int, count: int, mark: int) -> PersistMany:
    bodies = [body(entry, 0, bytes((mark,)) * (entry % 3 + 1), ledger_id) for entry in range(first, first + count)]
    return PersistMany(LedgerRecord(ledger_id, b"k", last_entry_id=first + count - 1), first, count, join_bodies(bodies))


def single_of(ledger_id: int, entry: int, mark: int) -> Persist:
    return Persist(LedgerRecord(ledger_id, b"k", last_entry_id=entry), entry, body(entry, 0, bytes((mark,)), ledger_id))


changes = st.one_of(
    st.builds(run_of, ledgers, ids, st.integers(2, 6), st.integers(0, 255)),
    st.builds(single_of, ledgers, ids, st.integers(0, 255)),
    st.builds(lambda ledger: Persist(LedgerRecord(ledger, b"k", fenced=True), drop_entries=True), ledgers),
    st.builds(lambda ledger: Persist(LedgerRecord(ledger), drop_entries=True, forget=True), ledgers),
)


@given(st.lists(changes, max_size=12))
def test_changes_come_back(made: list[Change]) -> None:
    batch = Batch()
    for change in made:
        batch.add(change)
    found = decode_changes(b"".join(encode_changes(batch)))
    assert (found.runs, found.entries, found.records, found.dropped) == (batch.runs, batch.entries, batch.records, batch.dropped)


def test_changes_that_make_no_sense() -> None:
    batch = Batch()
    batch.add(run_of(1, 0, 2, 1))
    whole = b"".join(encode_changes(batch))
    for content in (whole[:5], whole[:12], b"?" + whole[1:]):
        with pytest.raises(BookieIOError):
            decode_changes(content)


def test_pieces_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_core.protocol.bookie.chunks.CHUNK_BYTES_MAX", 100)
    bodies = [b"x" * size for size in (10, 20, 300, 40, 40, 5, 5, 96)]
    pieces = list(StoredEntries(7, len(bodies), join_bodies(bodies)).pieces())
    assert [(piece.first, piece.size) for piece in pieces] == [(7, 2), (9, 1), (10, 3), (13, 1), (14, 1)]
    assert [bytes(found) for piece in pieces for found in split_bodies(piece.bodies)] == bodies
    with pytest.raises(RemoteProtocolError):
        bounds_of(b"\0\0\0\5abc")


# --- the whole storage --------------------------------------------------------------------------------------------


def same(storage: LmdbBookieStorage, model: MemoryBookieStorage) -> None:
    for ledger_id in (1, 2):
        assert storage.ledger(ledger_id) == model.ledger(ledger_id)
        held = model.entry_ids(ledger_id)
        assert storage.entry_ids(ledger_id) == held
        for entry in range(-1, 20):
            wanted = model.entry(ledger_id, entry) if entry >= 0 else None
            assert storage.entry(ledger_id, entry) == wanted
            if entry >= 0:
                count, bodies = storage.entries(ledger_id, entry, 5, 150)
                assert [bytes(found) for found in split_bodies(bodies)] == [model.entry(ledger_id, entry + n) for n in range(count)]
                assert count <= 5 and len(bodies) <= 150
    assert storage.ledger_ids() == model.ledger_ids()


def stored(storage: LmdbBookieStorage) -> None:
    """Wait until the database has what the journal has."""
    storage.sync()
    done = threading.Event()
    while storage.uncommitted_bytes or storage._settled.record or storage._storing is not None:
        done.wait(0.001)


steps = st.lists(st.one_of(changes, st.sampled_from(["sync", "store", "crash", "reopen"])), max_size=14)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_b5_b6_the_storage_is_what_a_plain_one_would_be(tmp_path_factory: pytest.TempPathFactory, script: list[Any]) -> None:
    """B-5, B-6: over journal, database, kills and restarts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bk_core.bookie.storage.STORE_AFTER_S", 0.01)
        patch.setattr("bk_core.protocol.bookie.chunks.CHUNK_BYTES_MAX", 120)
        patch.setattr("bk_core.bookie.storage.PIECE_BYTES", 200)
        directory = tmp_path_factory.mktemp("storage")
        model, storage = MemoryBookieStorage(), LmdbBookieStorage(directory)
        for number, step in enumerate(script):
            match step:
                case "sync":
                    storage.sync()
                    model.sync()
                case "store":
                    stored(storage)
                    model.sync()
                case "crash":
                    storage.sync()
                    model.sync()
                    after = tmp_path_factory.mktemp(f"crash{number}")
                    assert killed(storage, directory, after) in (Condition.USED, Condition.EMPTY)
                    directory, storage = after, LmdbBookieStorage(after)
                case "reopen":
                    storage.close()
                    model.sync()
                    storage = LmdbBookieStorage(directory)
                case _:
                    storage.apply(step)
                    model.apply(step)
            same(storage, model)
        storage.close()


def killed(storage: LmdbBookieStorage, directory: Path, after: Path) -> Condition:
    """Return what a process that is killed now would leave behind: the journal is copied last, because it is ahead of the database."""
    for name in ("data.mdb", *NAMES):
        shutil.copy(directory / name, after / name)
    storage.close()
    return condition_of(after)


def test_b6_a_kill_between_journal_and_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B-6: it is there again, also after a second kill, and in the database once that works."""
    monkeypatch.setattr("bk_core.bookie.storage.STORE_AFTER_S", 3600.0)
    storage = LmdbBookieStorage(tmp_path / "0")
    storage.apply(run_of(1, 0, 5, 1))
    storage.apply(single_of(1, 2, 9))
    storage.sync()
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        assert killed(storage, tmp_path / str(number - 1), tmp_path / str(number)) is Condition.USED
        storage = LmdbBookieStorage(tmp_path / str(number))
        assert storage.entry_ids(1) == [0, 1, 2, 3, 4] and storage.entry(1, 2) == body(2, 0, b"\x09", 1)
    storage.close()
    storage = LmdbBookieStorage(tmp_path / "2")
    assert not storage.uncommitted_bytes and storage.entry_ids(1) == [0, 1, 2, 3, 4]
    storage.close()


def test_b4_b6_a_record_that_was_written_and_not_synced_is_synced_before_it_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B-4, B-6: a process was killed between the two. The next one has the fence, and would answer it again without a sync, so the files
    and their names are synced before the storage is open."""
    (tmp_path / "after").mkdir()
    storage = LmdbBookieStorage(tmp_path / "before")

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        storage.apply(Persist(LedgerRecord(1, b"k", fenced=True)))
        with pytest.raises(BookieIOError, match="Input/output"):
            storage.sync()
        for name in ("data.mdb", *NAMES):
            shutil.copy(tmp_path / "before" / name, tmp_path / "after" / name)
    storage.close()
    synced: set[int] = set()
    for call in ("fsync", "fdatasync"):
        sync = getattr(os, call)
        monkeypatch.setattr(os, call, lambda descriptor, sync=sync: (synced.add(os.fstat(descriptor).st_ino), sync(descriptor))[1])
    storage = LmdbBookieStorage(tmp_path / "after")
    synced_first = set(synced)
    record = storage.ledger(1)
    assert record is not None and record.fenced and storage.position == storage.durable_position
    assert {(tmp_path / "after" / name).stat().st_ino for name in (*NAMES, ".")} <= synced_first
    storage.close()


def test_b1_what_cannot_be_synced_at_the_start_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    LmdbBookieStorage(tmp_path).close()

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(BookieIOError, match="Input/output"):
            LmdbBookieStorage(tmp_path)
    LmdbBookieStorage(tmp_path).close()


def test_b11_a_database_that_fails_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B-11: the journal goes on confirming, the host hears of it, and nothing is lost."""
    monkeypatch.setattr("bk_core.bookie.storage.STORE_AFTER_S", 0.01)
    heard, good = threading.Event(), threading.Event()

    def completed(position: int, error: BaseException | None) -> None:
        if position == 0:
            (good if error is None else heard).set()

    storage = LmdbBookieStorage(tmp_path, completed)
    put = storage._put

    def fail(batch: Batch) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "_put", fail)
    storage.apply(run_of(1, 0, 5, 1))
    assert storage.sync() == 1 and heard.wait(10) and storage.failure is not None
    storage.apply(run_of(1, 3, 5, 2))
    assert storage.sync() == 2 and storage.entry_ids(1) == list(range(8))
    monkeypatch.setattr(storage, "_put", put)
    assert good.wait(10)
    stored(storage)
    assert storage.failure is None and storage.entry_ids(1) == list(range(8))
    monkeypatch.setattr(storage, "_put", fail)
    storage.apply(single_of(1, 8, 3))
    storage.close()
    storage = LmdbBookieStorage(tmp_path)
    assert storage.entry_ids(1) == list(range(9))
    storage.close()


def test_b6_a_kill_between_two_transactions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B-6: what is in the database already is put once more, and is the same."""
    monkeypatch.setattr("bk_core.bookie.storage.PIECE_BYTES", 1)
    storage = LmdbBookieStorage(tmp_path)
    storage.apply(run_of(1, 0, 4, 1))
    storage.apply(Persist(LedgerRecord(1, b"k"), drop_entries=True))
    for change in (run_of(1, 0, 4, 2), single_of(1, 9, 2), run_of(1, 4, 3, 2)):
        storage.apply(change)

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(storage, "_put_records", fail)
    storage.close()
    for _ in range(2):
        storage = LmdbBookieStorage(tmp_path)
        assert storage.entry_ids(1) == [0, 1, 2, 3, 4, 5, 6, 9] and storage.entry(1, 2) == body(2, 0, b"\2\2\2", 1)
        storage.close()
    assert not storage.uncommitted_bytes


def test_waiting_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_core.bookie.storage.STORE_AFTER_S", 0.01)
    storage = LmdbBookieStorage(tmp_path)
    storage.wait_for_room(0)
    storage.apply(run_of(1, 0, 5, 1))
    storage.wait_for_room(1000)
    assert storage.durable_position == 0
    storage.wait_for_room(0)
    assert storage.durable_position == 1 and not storage.uncommitted_bytes

    def fail(batch: Batch) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "_put", fail)
    storage.apply(run_of(1, 5, 5, 1))
    with pytest.raises(BookieIOError, match="No space"):
        storage.wait_for_room(0)
    storage.close()


def test_a_directory_from_before_there_were_runs(tmp_path: Path) -> None:
    """Two tables, records of format 2 and no journal: it opens, serves what it has and takes runs."""
    record = LedgerRecord(1, b"k", last_entry_id=2)
    value = encode_record(record)[4:]
    value = b"\x02" + value[1:]
    with lmdb.open(str(tmp_path), max_dbs=2) as env:
        entries, ledgers = env.open_db(b"entries"), env.open_db(b"ledgers")
        with env.begin(write=True) as txn:
            for entry in range(3):
                data = body(entry, 0, b"old", 1)
                txn.put(struct.pack(">QQ", 1, entry), struct.pack(">I", zlib.crc32(data)) + data, db=entries)
            txn.put(struct.pack(">Q", 1), struct.pack(">I", zlib.crc32(value)) + value, db=ledgers)
    assert condition_of(tmp_path) is Condition.USED
    for _ in range(2):
        storage = LmdbBookieStorage(tmp_path)
        assert storage.ledger(1) == record and storage.entry(1, 2) == body(2, 0, b"old", 1)
        storage.close()
    storage = LmdbBookieStorage(tmp_path)
    storage.apply(run_of(1, 2, 4, 1))
    storage.close()
    storage = LmdbBookieStorage(tmp_path)
    assert storage.entry_ids(1) == list(range(6)) and storage.entry(1, 2) == body(2, 0, b"\1\1\1", 1)
    storage.close()


def test_b10_a_journal_that_is_gone_is_a_loss(tmp_path: Path) -> None:
    """B-10."""
    storage = LmdbBookieStorage(tmp_path)
    storage.apply(run_of(1, 0, 5, 1))
    storage.close()
    (tmp_path / NAMES[1]).unlink()
    assert condition_of(tmp_path) is Condition.DAMAGED
    with pytest.raises(BookieIOError):
        LmdbBookieStorage(tmp_path)
    move_aside(tmp_path)
    assert condition_of(tmp_path) is Condition.ABSENT
    storage = LmdbBookieStorage(tmp_path)
    assert storage.ledger_ids() == []
    storage.close()
    assert condition_of(tmp_path) is Condition.EMPTY and (tmp_path / f"{NAMES[0]}.lost-1").exists()


def test_b7_damaged_runs(tmp_path: Path) -> None:
    """B-7: each byte of a run in the database counts, and a run is where its entries say that it is."""
    storage = LmdbBookieStorage(tmp_path)
    storage.apply(run_of(1, 0, 3, 1))
    storage.apply(run_of(1, 3, 3, 1))
    storage.close()
    with lmdb.open(str(tmp_path), max_dbs=3) as env:
        db = env.open_db(b"runs")
        with env.begin(write=True, db=db) as txn:
            (first, _), (second, good) = list(txn.cursor())
            txn.put(second, good[:-1] + b"!")
    storage = LmdbBookieStorage(tmp_path)
    assert storage.entries(1, 0, 100, 10_000)[0] == 3
    with pytest.raises(BookieIOError):
        storage.entry(1, 4)
    storage.apply(run_of(1, 3, 3, 7))
    storage.close()
    storage = LmdbBookieStorage(tmp_path)
    assert storage.entry(1, 4) == body(4, 0, b"\x07\x07", 1)
    storage.close()
    with lmdb.open(str(tmp_path), max_dbs=3) as env:
        db = env.open_db(b"runs")
        with env.begin(write=True, db=db) as txn:
            txn.put(first, good)
    storage = LmdbBookieStorage(tmp_path)
    with pytest.raises(BookieIOError):
        storage.entry(1, 0)
    storage.close()
