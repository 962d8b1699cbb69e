"""The embedded bookie and its disk: what deleted entries leave is used again, and nobody else can read what it keeps."""

from __future__ import annotations

import os
import stat
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from bk_core.bookie import directory as directory_module
from bk_core.bookie.collector import CollectorOptions
from bk_core.bookie.directory import compact
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.bookie.local_cluster import local_cluster
from bk_core.bookie.storage import LmdbBookieStorage
from bk_core.metadata.memory import MemoryStore
from bk_core.protocol.bookie import LedgerRecord, Persist
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import Status
from tests.integration.embedded import KEY, Peer, add, body, eventually, fill, peer_of, read

CAPACITY = 160 << 20
PAYLOAD = bytes(256 << 10)


@pytest.fixture
def store() -> Iterator[MemoryStore]:
    store = MemoryStore(uuid.uuid4().hex)
    store.initialize_cluster()
    yield store
    store.close()


def _small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system of CAPACITY on which nothing lies but what is asked about."""

    def statvfs(path: Path) -> SimpleNamespace:
        used = sum(file.stat().st_blocks * 512 for file in Path(path).iterdir() if file.is_file())
        return SimpleNamespace(f_frsize=4096, f_blocks=CAPACITY // 4096, f_bavail=max(0, CAPACITY - used) // 4096)

    monkeypatch.setattr(directory_module.os, "statvfs", statvfs)
    monkeypatch.setattr("bk_core.bookie.loop.HOUSEKEEPING_S", 0.02)


def _fill_up(peer: Peer, ledger_id: int, entries_max: int) -> int:
    """Adds until the bookie is read-only, or so many. Returns how many were taken."""
    for entry_id in range(entries_max):
        request = m.AddRequest(1, ledger_id, entry_id, KEY, body(ledger_id, entry_id, PAYLOAD))
        if (status := peer.status(request)) is not Status.OK:
            assert status is Status.READ_ONLY
            return entry_id
    return entries_max


def test_a_full_bookie_whose_ledgers_are_deleted_takes_new_ones(
    store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database's file does not shrink, so it was read-only for ever. What is free inside counts, is used, and goes at a start."""
    _small_disk(monkeypatch)
    options = BookieOptions(collector=CollectorOptions(interval_s=0.05), disk_reserve_bytes=32 << 20)
    data = tmp_path / "data" / "current" / "data.mdb"
    with EmbeddedBookie(tmp_path / "data", store=store, options=options) as bookie, peer_of(bookie) as peer:
        store.create_ledger(1, b"")
        taken = _fill_up(peer, 1, 1000)
        assert 100 < taken < 1000
        assert store.bookies().readonly == (bookie.bookie_id,) or eventually(lambda: bool(store.bookies().readonly))
        full = data.stat().st_size
        store.delete_ledger(1)
        assert eventually(lambda: store.bookies().writable == (bookie.bookie_id,), 30.0)
        store.create_ledger(2, b"")
        assert _fill_up(peer, 2, taken // 2) == taken // 2
        assert peer.ask(read(2, 0)).body == body(2, 0, PAYLOAD)  # type: ignore[union-attr]
        assert data.stat().st_size < full + full // 4  # it lies where the first ledger was
        store.delete_ledger(2)
        store.create_ledger(3, b"")
        fill(bookie, 3, [0])
        assert eventually(lambda: peer.status(read(2, 0)) is Status.NO_LEDGER)
    with EmbeddedBookie(tmp_path / "data", store=store, options=options) as bookie, peer_of(bookie) as peer:
        assert data.stat().st_size < full // 4
        assert peer.ask(read(3, 0)).body == body(3, 0)  # type: ignore[union-attr]
        assert peer.status(add(3, 1)) is Status.OK


def test_what_is_compacted_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_module, "COMPACT_BYTES_MIN", 0)
    storage = LmdbBookieStorage(tmp_path)
    for entry_id in range(400):
        storage.apply(Persist(LedgerRecord(1, KEY, last_entry_id=entry_id), entry_id, body(1, entry_id, bytes(20_000))))
    storage.apply(Persist(LedgerRecord(2, KEY, fenced=True, last_entry_id=7), 7, body(2, 7)))
    storage.sync()
    storage.close()
    assert not compact(tmp_path)  # nothing is free in it
    storage = LmdbBookieStorage(tmp_path)
    storage.apply(Persist(LedgerRecord(1, KEY, fenced=True, deleted=True), drop_entries=True))
    storage.sync()
    storage.close()
    before = (tmp_path / "data.mdb").stat().st_size
    (tmp_path / "compacted.new").mkdir()  # what a crash in the middle has left
    assert compact(tmp_path)
    assert (tmp_path / "data.mdb").stat().st_size < before // 4
    assert not (tmp_path / "compacted.new").exists()
    storage = LmdbBookieStorage(tmp_path)
    assert storage.ledger(2) == LedgerRecord(2, KEY, fenced=True, last_entry_id=7)
    assert storage.entry(2, 7) == body(2, 7) and storage.ledger_ids() == [2] and storage.tombstone_ids() == [1]
    storage.close()


def _modes(directory: Path) -> dict[str, int]:
    found = {"": directory, **{str(path.relative_to(directory)): path for path in directory.rglob("*")}}
    return {name: stat.S_IMODE(path.stat().st_mode) for name, path in found.items()}


def _require_private(directory: Path) -> None:
    for name, mode in _modes(directory).items():
        assert mode & 0o077 == 0, f"{name or directory} has mode {mode:o}"


def test_nobody_else_can_read_what_it_keeps(store: MemoryStore, tmp_path: Path) -> None:
    """Made new, and made by an older version: records hold the keys of ledgers."""
    mask = os.umask(0)
    try:
        with EmbeddedBookie(tmp_path / "a" / "b", store=store) as bookie:
            fill(bookie, 1, range(3))
            _require_private(tmp_path / "a")
        for path in (tmp_path / "a" / "b", *(tmp_path / "a" / "b").rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        with EmbeddedBookie(tmp_path / "a" / "b", store=store) as bookie:
            _require_private(tmp_path / "a" / "b")
            with peer_of(bookie) as peer:
                assert peer.status(read(1, 2)) is Status.OK
    finally:
        os.umask(mask)


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_nobody_else_can_read_a_local_cluster(tmp_path: Path) -> None:
    """ZooKeeper holds the passwords of ledgers."""
    with local_cluster(1, tmp_path / "new"):
        assert all(
            stat.S_IMODE(path.stat().st_mode) == 0o700 for path in (tmp_path / "new", *(tmp_path / "new").iterdir()) if path.is_dir()
        )
