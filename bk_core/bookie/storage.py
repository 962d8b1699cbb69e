"""A bookie's entries and ledger records in LMDB, with group commit.

Changes are visible to reads at once through an overlay, and durable once a commit that contains them has been synced. One thread commits
whatever has gathered since its last commit in one transaction, so the price of a sync is shared by every add that waited for it.

    entries   (ledger id, entry id), both u64 big-endian   ->   crc32 of body, body
    ledgers   ledger id, u64 big-endian                    ->   crc32 of the rest, flags, LAC, last entry, key, explicit LAC, deletion time

LMDB writes copy-on-write pages and syncs them before it switches to the new root, so a process killed at any moment leaves the last
committed state. A checksum or id that does not fit raises BookieIOError: never "no such entry" (B-7).
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import lmdb

from bk_core.errors import BookieIOError
from bk_core.protocol.bookie import LedgerRecord, Persist

MAP_BYTES_START = 256 << 20  # sparse: costs address space, not disk
RECORD_CACHE_MAX = 65_536

_ENTRY_KEY = struct.Struct(">QQ")
_LEDGER_KEY = struct.Struct(">Q")
_BODY_IDS = struct.Struct(">qq")
_CRC = struct.Struct(">I")
_RECORD = struct.Struct(">BBqqII")  # format, flags, LAC, last entry, key bytes, explicit LAC bytes
_DELETED_AT = struct.Struct(">q")  # at the end, from format 2 on
_FORMAT_WITHOUT_TIME, _RECORD_FORMAT = 1, 2
_FENCED, _LIMBO, _DELETED, _HAS_KEY, _HAS_EXPLICIT_LAC = 1, 2, 4, 8, 16

Completion = Callable[[int, BaseException | None], None]


class Condition(Enum):
    """What a directory holds before it is opened."""

    ABSENT = "absent"
    DAMAGED = "damaged"
    EMPTY = "empty"  # a sound database without a ledger
    USED = "used"


def condition_of(directory: Path) -> Condition:
    """Look at a storage without changing it. Damage inside of it shows only when it is read."""
    path = directory / "data.mdb"
    if not path.exists():
        return Condition.ABSENT
    try:
        with lmdb.open(str(directory), max_dbs=2, readonly=True, create=False, lock=False) as env, env.begin() as txn:
            if txn.get(b"ledgers") is None:
                return Condition.ABSENT  # LMDB makes a database of an empty file as if there never was one
            db = env.open_db(b"ledgers", txn, create=False)
            return Condition.USED if txn.stat(db)["entries"] else Condition.EMPTY
    except lmdb.Error:
        return Condition.DAMAGED


def move_aside(directory: Path) -> Path:
    """Make room for a new storage, keeping the old bytes. Returns where they are now."""
    path = directory / "data.mdb"
    number = 1
    while (kept := directory / f"data.mdb.lost-{number}").exists():
        number += 1
    path.rename(kept)
    (directory / "lock.mdb").unlink(missing_ok=True)
    return kept


def encode_record(record: LedgerRecord) -> bytes:
    flags = _FENCED * record.fenced | _LIMBO * record.limbo | _DELETED * record.deleted
    flags |= _HAS_KEY * (record.key is not None) | _HAS_EXPLICIT_LAC * (record.explicit_lac is not None)
    key, packet = record.key or b"", record.explicit_lac or b""
    head = _RECORD.pack(_RECORD_FORMAT, flags, record.last_add_confirmed, record.last_entry_id, len(key), len(packet))
    value = head + key + packet + _DELETED_AT.pack(record.deleted_at_ms)
    return _CRC.pack(zlib.crc32(value)) + value


def decode_record(ledger_id: int, value: bytes) -> LedgerRecord:
    """BookieIOError if the bytes are not what ``encode_record`` wrote."""
    start = _CRC.size + _RECORD.size
    if len(value) < start or _CRC.unpack_from(value)[0] != zlib.crc32(value[_CRC.size :]):
        raise BookieIOError("damaged ledger record", ledger_id=ledger_id)
    form, flags, lac, last_entry_id, key_bytes, packet_bytes = _RECORD.unpack_from(value, _CRC.size)
    end = start + key_bytes + packet_bytes
    time_bytes = {_FORMAT_WITHOUT_TIME: 0, _RECORD_FORMAT: _DELETED_AT.size}.get(form, -1)
    if len(value) != end + time_bytes or time_bytes < 0:
        raise BookieIOError(f"ledger record of unknown format {form}", ledger_id=ledger_id)
    return LedgerRecord(
        ledger_id,
        value[start : start + key_bytes] if flags & _HAS_KEY else None,
        fenced=bool(flags & _FENCED),
        limbo=bool(flags & _LIMBO),
        deleted=bool(flags & _DELETED),
        last_add_confirmed=lac,
        last_entry_id=last_entry_id,
        explicit_lac=value[start + key_bytes : end] if flags & _HAS_EXPLICIT_LAC else None,
        deleted_at_ms=_DELETED_AT.unpack_from(value, end)[0] if time_bytes else 0,
    )


class _Batch:
    """Changes for one transaction, in a form in which only the newest per key is left."""

    __slots__ = ("bytes", "dropped", "entries", "position", "records")

    def __init__(self) -> None:
        self.records: dict[int, LedgerRecord | None] = {}  # None: forgotten
        self.entries: dict[tuple[int, int], bytes] = {}
        self.dropped: set[int] = set()
        self.bytes = 0
        self.position = 0

    def add(self, change: Persist) -> None:
        ledger_id = change.record.ledger_id
        self.records[ledger_id] = None if change.forget else change.record
        if change.drop_entries:
            self.dropped.add(ledger_id)
            self.entries = {key: body for key, body in self.entries.items() if key[0] != ledger_id}
        if change.entry_id is not None:
            self.entries[ledger_id, change.entry_id] = change.body
            self.bytes += len(change.body) + 64

    def absorb(self, later: _Batch) -> None:
        """Put the changes of ``later`` behind those of this batch."""
        if later.dropped:
            self.entries = {key: body for key, body in self.entries.items() if key[0] not in later.dropped}
        self.records.update(later.records)
        self.entries.update(later.entries)
        self.dropped |= later.dropped
        self.bytes += later.bytes
        self.position = later.position


class LmdbBookieStorage:
    """Use from one thread, except that ``completed(position, error)`` is called on the commit thread.

    ``completed`` reports that all changes up to ``position`` are durable, or, with an error, that the commit of changes up to
    ``position`` failed. Failed changes stay visible and are tried again with the next commit: storing an add that was answered
    with an error is allowed, forgetting a fence that reads already saw is not.
    """

    def __init__(self, directory: Path, completed: Completion | None = None, *, map_bytes: int = MAP_BYTES_START) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._completed = completed
        try:
            self._env = lmdb.open(str(directory), map_size=map_bytes, max_dbs=2, subdir=True, readahead=False, metasync=True, sync=True)
            self._entries = self._env.open_db(b"entries")
            self._ledgers = self._env.open_db(b"ledgers")
        except lmdb.Error as error:
            raise BookieIOError(f"storage in {directory} cannot be opened: {error}") from error
        self._map_lock = threading.Lock()  # the map may only be resized while no transaction of this process is open
        self._cache: dict[int, LedgerRecord | None] = {}
        self._condition = threading.Condition()
        self._gathering = _Batch()
        self._committing: _Batch | None = None
        self._wanted = 0  # commit at least up to this position
        self._closing = False
        self._failure: BaseException | None = None
        self.position = 0
        self.durable_position = 0
        self._thread = threading.Thread(target=self._commit_loop, name="bookie-commit", daemon=True)
        self._thread.start()

    # --- view (BookieStorageView) ---------------------------------------------------------------------------------

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        if ledger_id < 0:
            return None
        try:
            return self._cache[ledger_id]
        except KeyError:
            pass
        record = self._read_record(ledger_id)
        self._remember(ledger_id, record)
        return record

    def entry(self, ledger_id: int, entry_id: int) -> bytes | None:
        if ledger_id < 0 or entry_id < 0:
            return None
        with self._condition:
            layers = [self._gathering] if self._committing is None else [self._gathering, self._committing]
            for layer in layers:
                body = layer.entries.get((ledger_id, entry_id))
                if body is not None:
                    return body
                if ledger_id in layer.dropped:
                    return None
        value = self._get(self._entries, _ENTRY_KEY.pack(ledger_id, entry_id))
        return None if value is None else _checked_body(ledger_id, entry_id, value)

    def entry_ids(self, ledger_id: int) -> list[int]:
        """Ascending."""
        with self._condition:
            layers = [self._gathering] if self._committing is None else [self._committing, self._gathering]
            overlay = [([e for (owner, e) in layer.entries if owner == ledger_id], ledger_id in layer.dropped) for layer in layers]
        ids = set(self._stored_entry_ids(ledger_id))
        for added, dropped in overlay:
            ids = set(added) if dropped else ids | set(added)
        return sorted(ids)

    def ledger_ids(self) -> list[int]:
        """Ledgers with a record, tombstones left out, ascending. A damaged record is kept in: it must not be taken for a tombstone."""
        return sorted(ledger_id for ledger_id, record in self._records().items() if record is None or not record.deleted)

    def tombstone_ids(self) -> list[int]:
        """Deleted ledgers that are not forgotten yet, ascending."""
        return sorted(ledger_id for ledger_id, record in self._records().items() if record is not None and record.deleted)

    def limbo_ids(self) -> list[int]:
        """Ledgers in limbo, ascending."""
        return sorted(ledger_id for ledger_id, record in self._records().items() if record is not None and record.limbo)

    def _records(self) -> dict[int, LedgerRecord | None]:
        """Every record as of now; None stands for a damaged one. From any thread."""
        known: dict[int, LedgerRecord | None] = {}
        with self._condition:  # taken over from a batch to LMDB in one step, so that nothing is missed between the two
            layers = [layer for layer in (self._committing, self._gathering) if layer is not None]
            changes = [(ledger_id, record) for layer in layers for ledger_id, record in layer.records.items()]
        with self._map_lock, self._transaction() as txn:
            for key, value in txn.cursor(self._ledgers):
                ledger_id = _LEDGER_KEY.unpack(key)[0]
                known[ledger_id] = _decoded(ledger_id, bytes(value))
        for ledger_id, record in changes:
            if record is None:
                known.pop(ledger_id, None)
            else:
                known[ledger_id] = record
        return known

    def disk_bytes(self) -> tuple[int, int]:
        """Total and free bytes of the file system. BookieIOError if it cannot be asked."""
        try:
            stat = os.statvfs(self._directory)
        except OSError as error:
            raise BookieIOError(f"the file system cannot be asked for its size: {error}") from error
        return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize

    # --- changes ------------------------------------------------------------------------------------------------

    def apply(self, change: Persist) -> None:
        """Visible at once; durable only after a commit, which ``request_sync`` starts."""
        with self._condition:
            self.position += 1
            self._gathering.add(change)
            self._gathering.position = self.position
        self._remember(change.record.ledger_id, None if change.forget else change.record)

    def request_sync(self) -> None:
        """Have everything applied so far committed; the outcome goes to ``completed``."""
        with self._condition:
            self._wanted = self.position
            self._condition.notify_all()

    def sync(self) -> int:
        """``request_sync`` and wait. BookieIOError if the commit fails. Returns the durable position."""
        with self._condition:
            target = self._wanted = self.position
            self._condition.notify_all()
            self._failure = None
            while self.durable_position < target and self._failure is None and self._thread.is_alive():
                self._condition.wait(0.5)
            if self.durable_position < target:
                raise BookieIOError(f"commit failed: {self._failure}")
            return self.durable_position

    @property
    def uncommitted_bytes(self) -> int:
        """What the overlay holds in memory, for back-pressure."""
        committing = self._committing
        return self._gathering.bytes + (committing.bytes if committing is not None else 0)

    def close(self) -> None:
        """Commit what is pending and close. Further use is an error."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join()
        with self._map_lock:  # another thread may be reading
            self._env.close()

    # --- the commit thread ----------------------------------------------------------------------------------------

    def _commit_loop(self) -> None:
        while (batch := self._next_batch()) is not None:
            position = batch.position
            error = self._try_commit(batch)
            with self._condition:
                self._committing = None
                if error is None:
                    self.durable_position = position
                else:
                    self._failure = error
                    self._keep_for_later(batch)
                stop = self._closing and error is not None
                self._condition.notify_all()
            if self._completed is not None:
                self._completed(position, error)
            if stop:
                return

    def _keep_for_later(self, batch: _Batch) -> None:
        if self._gathering.position:
            batch.absorb(self._gathering)
        self._gathering = batch

    def _next_batch(self) -> _Batch | None:
        with self._condition:
            while not self._closing and (self._wanted <= self.durable_position or not self._gathering.position):
                self._condition.wait()
            if not self._gathering.position:
                return None
            batch, self._gathering = self._gathering, _Batch()
            self._committing = batch
            self._wanted = 0  # asked for again by whoever still waits after a failure
            return batch

    def _try_commit(self, batch: _Batch) -> BaseException | None:
        while True:
            try:
                self._commit(batch)
                return None
            except lmdb.MapFullError:
                try:
                    self._grow()
                except (lmdb.Error, OSError, MemoryError) as error:
                    return error
            except Exception as error:  # whatever it is: those who wait must hear of it
                return error

    def _commit(self, batch: _Batch) -> None:
        """One transaction with one sync at its end."""
        with self._env.begin(write=True) as txn:
            for ledger_id in batch.dropped:
                _drop_entries(txn, self._entries, ledger_id)
            cursor = txn.cursor(self._entries)
            for key, body in batch.entries.items():
                cursor.put(_ENTRY_KEY.pack(*key), _CRC.pack(zlib.crc32(body)) + body)
            for ledger_id, record in batch.records.items():
                if record is None:
                    txn.delete(_LEDGER_KEY.pack(ledger_id), db=self._ledgers)
                else:
                    txn.put(_LEDGER_KEY.pack(ledger_id), encode_record(record), db=self._ledgers)

    def _grow(self) -> None:
        with self._map_lock:
            self._env.set_mapsize(int(self._env.info()["map_size"]) * 2)

    # --- reading LMDB ---------------------------------------------------------------------------------------------

    def _transaction(self) -> Any:
        try:
            return self._env.begin(buffers=True)
        except lmdb.Error as error:
            raise BookieIOError(f"storage cannot be read: {error}") from error

    def _get(self, db: Any, key: bytes) -> bytes | None:
        try:
            with self._map_lock, self._env.begin(db=db, buffers=True) as txn:
                value = txn.get(key)
                return None if value is None else bytes(value)
        except lmdb.Error as error:
            raise BookieIOError(f"storage cannot be read: {error}") from error

    def _read_record(self, ledger_id: int) -> LedgerRecord | None:
        with self._condition:
            for layer in filter(None, (self._gathering, self._committing)):
                if ledger_id in layer.records:
                    return layer.records[ledger_id]
        value = self._get(self._ledgers, _LEDGER_KEY.pack(ledger_id))
        return None if value is None else decode_record(ledger_id, value)

    def _remember(self, ledger_id: int, record: LedgerRecord | None) -> None:
        if len(self._cache) >= RECORD_CACHE_MAX:
            self._cache.clear()
        self._cache[ledger_id] = record

    def _stored_entry_ids(self, ledger_id: int) -> Iterator[int]:
        with self._map_lock, self._transaction() as txn:
            cursor = txn.cursor(self._entries)
            found = cursor.set_range(_ENTRY_KEY.pack(ledger_id, 0))
            while found:
                owner, entry_id = _ENTRY_KEY.unpack(cursor.key())
                if owner != ledger_id:
                    return
                yield entry_id
                found = cursor.next()


def _checked_body(ledger_id: int, entry_id: int, value: bytes) -> bytes:
    body = value[_CRC.size :]
    if len(body) < _BODY_IDS.size or _CRC.unpack_from(value)[0] != zlib.crc32(body):
        raise BookieIOError("damaged entry", ledger_id=ledger_id, entry_id=entry_id)
    if _BODY_IDS.unpack_from(body) != (ledger_id, entry_id):
        raise BookieIOError("an entry under another one's key", ledger_id=ledger_id, entry_id=entry_id)
    return body


def _decoded(ledger_id: int, value: bytes) -> LedgerRecord | None:
    try:
        return decode_record(ledger_id, value)
    except BookieIOError:
        return None


def _drop_entries(txn: Any, db: Any, ledger_id: int) -> None:
    cursor = txn.cursor(db)
    cursor.set_range(_ENTRY_KEY.pack(ledger_id, 0))
    prefix = _LEDGER_KEY.pack(ledger_id)
    while cursor.key()[: len(prefix)] == prefix:  # b"" behind the last key
        cursor.delete()  # moves on to the next key
