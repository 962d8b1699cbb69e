"""A bookie accepts what it has room for, and what it accepted never takes more of the disk than was counted."""

from __future__ import annotations

import fcntl
import os
import random
import threading
from pathlib import Path

import pytest

from bk_core.bookie import journal as journals
from bk_core.bookie import storage as storages
from bk_core.bookie.journal import NAMES, Journal, create
from bk_core.bookie.storage import LmdbBookieStorage
from bk_core.protocol.bookie import Change, LedgerRecord, Persist, PersistMany
from bk_core.protocol.bookie.room import DiskLook, free_bytes, judge_room
from bk_core.protocol.wire.codec_v2 import join_bodies
from tests.unit.bookie.host import body

MIB = 1 << 20
RESERVE = 64 * MIB


@pytest.mark.parametrize(
    ("outside", "inside", "read_only", "recovery_adds", "fence_unknown", "scarce"),
    [
        (1000, 0, False, True, True, False),
        (64, 0, False, True, True, False),
        (63, 0, True, True, True, False),
        (33, 0, True, True, True, False),
        (32, 0, True, False, True, False),
        (31, 0, True, False, True, True),
        (16, 0, True, False, False, True),
        (0, 0, True, False, False, True),
        (16, 48, False, True, True, True),
        (16, 47, True, True, True, True),
        (15, 1000, True, False, False, True),  # an entry that finds no gap inside needs some room outside
    ],
)
def test_b11_bke_3_bke_9_what_is_left_decides(
    outside: int, inside: int, read_only: bool, recovery_adds: bool, fence_unknown: bool, scarce: bool
) -> None:
    """B-11, BKE-3, BKE-9: in steps of the reserve."""
    room = judge_room(DiskLook(outside * MIB, inside * MIB), RESERVE)
    assert (room.read_only, room.recovery_adds, room.fence_unknown, room.scarce) == (read_only, recovery_adds, fence_unknown, scarce)


def test_bke_8_what_is_pending_fits_outside() -> None:
    """BKE-8: what is free inside of the database counts for nothing here. With nothing pending, one request may always come."""
    assert judge_room(DiskLook(100 * MIB, 1000 * MIB, 30 * MIB), RESERVE).accept_bytes == (100 - 8 - 30) * MIB
    assert judge_room(DiskLook(100 * MIB, 1000 * MIB, 92 * MIB), RESERVE).accept_bytes == 0
    assert judge_room(DiskLook(100 * MIB, 0, 1000 * MIB), RESERVE).accept_bytes == 0
    assert judge_room(DiskLook(0), RESERVE).accept_bytes == 1
    assert free_bytes(DiskLook(20 * MIB, 5 * MIB, 9 * MIB), RESERVE) == 25 * MIB


def _single(ledger_id: int, entry_id: int, size: int) -> Persist:
    return Persist(LedgerRecord(ledger_id, b"k" * 20, last_entry_id=entry_id), entry_id, body(entry_id, 0, bytes(size), ledger_id))


def _run(ledger_id: int, first: int, count: int, size: int) -> PersistMany:
    bodies = join_bodies([body(entry, 0, bytes(size), ledger_id) for entry in range(first, first + count)])
    return PersistMany(LedgerRecord(ledger_id, b"k" * 20, last_entry_id=first + count - 1), first, count, bodies)


def _changes(kind: str, chance: random.Random) -> list[Change]:
    match kind:
        case "many ledgers":  # each add changes pages of its own
            return [_single(chance.randrange(1 << 40), 0, 50) for _ in range(1500)]
        case "fences":
            return [Persist(LedgerRecord(chance.randrange(1 << 40), b"k" * 20, fenced=True)) for _ in range(1500)]
        case "just too large for a page":
            return [_single(1, entry, chance.choice((2020, 2040, 4041, 4060, 8150))) for entry in range(1000)]
        case "runs":
            return [_run(1, first, 20, chance.choice((100, 2000, 2040, 4060))) for first in range(0, 4000, 20)]
        case _:
            assert kind == "runs that overlap"
            return [_run(1, first, 20, 300) for first in range(0, 4000, 10)]


def _taken(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.iterdir())


@pytest.mark.parametrize("scarce", [False, True])
@pytest.mark.parametrize("kind", ["many ledgers", "fences", "just too large for a page", "runs", "runs that overlap"])
def test_bke_8_nothing_takes_more_than_was_counted(tmp_path: Path, kind: str, scarce: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """BKE-8: once in the journal and once in the database, whatever pages that changes. A kill does not make it less."""
    monkeypatch.setattr(storages, "STORE_AFTER_S", 3600.0)
    monkeypatch.setattr(journals, "KEPT_BYTES", 4096)  # so that the journal's growth is seen
    storage = LmdbBookieStorage(tmp_path)
    storage.be_scarce(scarce)
    spread = random.Random(1)
    for change in _changes("many ledgers", spread):  # so that there are pages to change
        storage.apply(change)
    storage.close()
    storage = LmdbBookieStorage(tmp_path)
    storage.be_scarce(scarce)
    before, counted = _taken(tmp_path), storage.accepted_bytes
    for change in _changes(kind, random.Random(2)):
        storage.apply(change)
    counted = storage.accepted_bytes - counted
    assert storage.look().pending == counted
    storage.sync()
    storage.close()
    assert _taken(tmp_path) - before <= counted + MIB


def test_bke_8_what_a_kill_left_in_the_journal_is_pending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BKE-8: and the store of it can be asked for, which is told when it is done."""
    monkeypatch.setattr(storages, "STORE_AFTER_S", 3600.0)
    stored = threading.Event()
    storage = LmdbBookieStorage(tmp_path / "0", lambda position, error: stored.set() if position == 0 and error is None else None)
    storage.apply(_run(1, 0, 50, 1000))
    storage.apply(_single(2, 0, 1000))
    storage.sync()
    pending = storage.look().pending
    (tmp_path / "1").mkdir()
    for name in ("data.mdb", *NAMES):
        (tmp_path / "1" / name).write_bytes((tmp_path / "0" / name).read_bytes())
    assert not stored.is_set()
    storage.request_store()
    assert stored.wait(60) and storage.look().pending == 0
    storage.close()
    storage = LmdbBookieStorage(tmp_path / "1")
    assert storage.look().pending >= pending - 4 * 4096
    storage.close()


def _records(directory: Path, identity: bytes, after: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    Journal(directory, identity, after, lambda number, content: found.append((number, bytes(content)))).close()
    return found


def test_bke_9_a_journal_gives_back_what_nobody_needs(tmp_path: Path) -> None:
    """BKE-9: no record that the database has not, and nothing of a record that comes next."""
    identity = os.urandom(journals.ID_BYTES)
    create(tmp_path, identity)
    contents = [os.urandom(300_000) for _ in range(20)]
    journal = Journal(tmp_path, identity, 0, lambda number, content: None)
    journal.file_bytes = 1_000_000
    for number, content in enumerate(contents, 1):
        journal.append([content])
        journal.release(number - 3)
        journal.give_back(number % 3 * 400_000)
        assert _records(tmp_path, identity, max(0, number - 3)) == list(enumerate(contents[:number], 1))[-3:]
    journal.release(20)
    journal.give_back(0)
    assert sum((tmp_path / name).stat().st_size for name in NAMES) < 1_500_000
    journal.keep_room()
    assert all((tmp_path / name).stat().st_blocks * 512 >= journals.KEPT_BYTES for name in NAMES)
    assert journal.append([b"after"]) == 21
    journal.close()


def _head_descriptor(directory: Path) -> int:
    """The descriptor of the database, through which LMDB writes its head: it syncs each write."""
    path = str((directory / "data.mdb").resolve())
    names = [name for name in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{name}")]
    held = [int(name) for name in names if os.readlink(f"/proc/self/fd/{name}") == path]
    return next(number for number in held if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_DSYNC)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_b11_a_database_whose_head_cannot_be_written_is_opened_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B-11: LMDB refuses all further work then. Nothing that was confirmed is lost, and it goes on without a restart."""
    monkeypatch.setattr(storages, "STORE_AFTER_S", 0.01)
    failed, stored = threading.Event(), threading.Event()

    def completed(position: int, error: BaseException | None) -> None:
        if position == 0:
            (stored if error is None else failed).set()

    storage = LmdbBookieStorage(tmp_path, completed)
    with open("/dev/full", "wb") as full:
        os.dup2(full.fileno(), _head_descriptor(tmp_path), inheritable=False)
    storage.apply(_single(1, 0, 100))
    assert storage.sync() == 1
    assert failed.wait(60)
    stored.clear()
    storage.apply(_single(1, 1, 100))
    storage.sync()
    assert stored.wait(60)
    assert storage.entry_ids(1) == [0, 1] and storage.ledger_ids() == [1]
    storage.close()
    storage = LmdbBookieStorage(tmp_path)
    assert storage.entry_ids(1) == [0, 1]
    storage.close()
