"""A bookie's directory as files: its condition before it is opened, its preparation, and the room on its disk."""

from __future__ import annotations

import logging
import os
import shutil
import struct
from enum import Enum
from pathlib import Path
from typing import Any

import lmdb

from bk_core.bookie.journal import ID_BYTES, LAST_BYTES, NAMES, Journal
from bk_core.bookie.private import FILE_MODE, make_directory, opener
from bk_core.errors import BookieIOError
from bk_core.protocol.bookie.room import PAGE_BYTES

log = logging.getLogger("bk_core.bookie")

COMPACT_BYTES_MIN = 64 << 20  # the smallest file worth compacting
COMPACT_SPARE_BYTES = 1 << 20  # the room needed in the file system, beside that of the new file
LOCK_BYTES = 8192  # of lock.mdb, which LMDB writes through a map: a page of it without a place on the disk would kill the process

DATABASES = 3
_TABLES = (b"entries", b"runs", b"ledgers")
_DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.VersionMismatchError, lmdb.PageNotFoundError, lmdb.IncompatibleError)
_META_PAGES = 2
JOURNAL_KEY = b"journal"  # in the unnamed database, beside the names of the others
JOURNAL_STATE = struct.Struct(f">{ID_BYTES}sQ")  # id, number of the last record that is in the database


class Condition(Enum):
    """The content of a directory before it is opened."""

    ABSENT = "absent"
    DAMAGED = "damaged"
    EMPTY = "empty"  # a sound database without a ledger
    USED = "used"


def condition_of(directory: Path) -> Condition:
    """Return the condition of a storage without changing it. Damage inside the database shows only when it is read.

    Raises BookieIOError if it cannot be looked at now, which is no damage: the disk fails, or no more files can be opened.
    """
    path = directory / "data.mdb"
    if not path.exists() or not path.stat().st_size:
        return Condition.ABSENT  # LMDB makes a new database of an empty file
    try:
        with lmdb.open(str(directory), max_dbs=DATABASES, readonly=True, create=False, lock=False) as env, env.begin() as txn:
            if txn.get(b"ledgers") is None:
                return Condition.ABSENT
            state = txn.get(JOURNAL_KEY)
            replayed: list[int] = []
            if state is not None:
                journal_id, after = JOURNAL_STATE.unpack(state)
                Journal(directory, journal_id, after, lambda number, content: replayed.append(number)).close()
            db = env.open_db(b"ledgers", txn, create=False)
            return Condition.USED if replayed or txn.stat(db)["entries"] else Condition.EMPTY
    except (lmdb.Error, struct.error, BookieIOError) as error:
        if _is_damage(error):
            return Condition.DAMAGED
        raise BookieIOError(f"storage in {directory} cannot be looked at: {error}") from error


def _is_damage(error: BaseException) -> bool:
    """Return True for an error of damaged bytes or a missing file; any other error may pass."""
    if isinstance(error, lmdb.Error):
        return isinstance(error, _DAMAGE)
    return not isinstance(error.__cause__, OSError) or isinstance(error.__cause__, FileNotFoundError)


def move_aside(directory: Path) -> list[Path]:
    """Move what there is of a storage aside to make room for a new one, keeping the old bytes. Returns their new places."""
    names = [name for name in ("data.mdb", *NAMES) if (directory / name).exists()]
    number = 1
    while any((directory / f"{name}.lost-{number}").exists() for name in ("data.mdb", *NAMES)):
        number += 1
    for name in names:
        (directory / name).rename(directory / f"{name}.lost-{number}")
    (directory / "lock.mdb").unlink(missing_ok=True)
    kept = [directory / f"{name}.lost-{number}" for name in names]
    log.warning("what is left of the storage in %s is kept as %s", directory, ", ".join(path.name for path in kept))
    return kept


def would_overwrite(directory: Path) -> bool:
    """Return True if a storage that is opened here would write over files that hold what an earlier one has acknowledged, or cannot be
    opened because of them: the database is damaged, or is missing beside a journal."""
    match condition_of(directory):
        case Condition.DAMAGED:
            return True
        case Condition.ABSENT:
            return any((directory / name).exists() for name in NAMES)
        case _:
            return False


def used_and_free(env: Any) -> tuple[int, int]:
    """Return the bytes of the database's file that are used, and those that are free in it."""
    with env.begin(buffers=True) as txn:
        names = [bytes(key) for key, _ in txn.cursor() if bytes(key) in _TABLES]
        stats = [txn.stat(env.open_db(None, txn))] + [txn.stat(env.open_db(name, txn, create=False)) for name in names]
        size = int(stats[0]["psize"])
        used = sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats) + _META_PAGES
        return used * size, max(0, env.info()["last_pgno"] + 1 - used) * size


def give_back_journal(directory: Path) -> None:
    """Cut the files of the journal where the database has all of their records, which makes room for the database. This is done before the
    storage is opened."""
    try:
        with lmdb.open(str(directory), max_dbs=DATABASES, readonly=True, create=False, lock=False) as env, env.begin() as txn:
            journal_id, after = JOURNAL_STATE.unpack(txn.get(JOURNAL_KEY, b""))
        journal = Journal(directory, journal_id, after, lambda number, content: None)
    except (OSError, lmdb.Error, struct.error, BookieIOError):
        return  # the opening of the storage will report the reason
    journal.give_back(LAST_BYTES)
    journal.close()


def compact(directory: Path) -> bool:
    """Write the database anew without its free pages, if they are most of a large file and there is room for the rest. This is done before
    the storage is opened. Returns True if it was done; a crash in the middle, or an error of the disk, leaves the old file."""
    path, draft = directory / "data.mdb", directory / "compacted.new"
    shutil.rmtree(draft, ignore_errors=True)
    if not path.exists() or path.stat().st_size < COMPACT_BYTES_MIN:
        return False
    try:
        return _compact(directory, path, draft)
    except (OSError, lmdb.Error) as error:
        log.warning("the database in %s stays as large as it is: %s", directory, error)
        return False
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _compact(directory: Path, path: Path, draft: Path) -> bool:
    with lmdb.open(str(directory), max_dbs=DATABASES, readonly=True, create=False, lock=False) as env:
        used, free = used_and_free(env)
        stat = os.statvfs(directory)
        if free < used or stat.f_bavail * stat.f_frsize < used + COMPACT_SPARE_BYTES:
            return False
        make_directory(draft)
        env.copy(str(draft), compact=True)
    os.chmod(draft / "data.mdb", FILE_MODE)
    for target in (draft / "data.mdb", directory):
        if target == directory:
            (draft / "data.mdb").replace(path)
        descriptor = os.open(target, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    log.info("the database in %s was compacted from %d to %d MiB", directory, (used + free) >> 20, path.stat().st_size >> 20)
    return True


def keep_lock_file(path: Path) -> None:
    """Raise OSError if the first page of the lock file, with the places of many readers, has no place on the disk."""
    with open(path, "ab", opener=opener) as file:
        try:
            os.posix_fallocate(file.fileno(), 0, LOCK_BYTES)
        except OSError:
            if os.lseek(file.fileno(), 0, os.SEEK_HOLE) < PAGE_BYTES:
                raise


def statvfs_of(directory: Path) -> os.statvfs_result:
    try:
        return os.statvfs(directory)
    except OSError as error:
        raise BookieIOError(f"the file system of {directory} cannot be asked for its size: {error}") from error


def free_outside_bytes(directory: Path) -> int:
    stat = statvfs_of(directory)
    return stat.f_bavail * stat.f_frsize
