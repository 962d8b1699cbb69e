"""A bookie's entries and ledger records in a journal and in LMDB, with group commit.

Changes are visible to reads at once through an overlay, and durable once a commit that contains them has been synced. One thread writes
whatever has gathered since its last commit as one record of the journal with one sync, so the price of a sync is shared by every add that
waited for it. Another thread moves the journal's content to LMDB later.

    entries   entries that came singly          (tables.py)
    runs      entries that came many at a time  (tables.py)
    ledgers   ledger id, u64 big-endian  ->  crc32 of the rest, format, flags, LAC, last entry, key, explicit LAC, deletion time

A full disk stops commits and nothing else: what was acknowledged is in the journal, and waits there and in memory for room in the database.

LMDB writes copy-on-write pages and syncs them before it switches to the new root, so a process killed at any moment leaves the last
committed state. A checksum or id that does not fit raises BookieIOError, and is never answered with "no such entry" (B-7).
"""

from __future__ import annotations

import logging
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from bk_core.bookie import tables
from bk_core.bookie.batch import ID_END, Batch, Single
from bk_core.bookie.changes import decode_changes, encode_changes
from bk_core.bookie.directory import (
    DATABASES,
    JOURNAL_KEY,
    JOURNAL_STATE,
    compact,
    free_outside_bytes,
    give_back_journal,
    keep_lock_file,
    statvfs_of,
    used_and_free,
)
from bk_core.bookie.journal import FILE_BYTES, ID_BYTES, KEPT_BYTES, LAST_BYTES, Journal, create
from bk_core.bookie.private import FILE_MODE, make_directory
from bk_core.bookie.records import decode_record, encode_record
from bk_core.errors import BookieIOError
from bk_core.metrics.bookie import ServerCounts
from bk_core.protocol.bookie import Change, LedgerRecord, Persist
from bk_core.protocol.bookie.chunks import PAGE_CHUNK_BYTES_MAX, StoredEntries
from bk_core.protocol.bookie.room import RESERVE_BYTES, DiskLook, free_bytes
from bk_core.threads import join

log = logging.getLogger("bk_core.bookie")

STORE_BYTES = 16 << 20  # so much may be in the journal only before it goes to the database
PIECE_BYTES = 8 << 20  # of a transaction: in one that falls out of the processor's caches a byte costs five times as much
DROP_BYTES = 32 << 20  # of deleted entries in one transaction, because the list of the pages it frees needs room itself
STORE_AFTER_S = 1.0  # or after this long
MAP_BYTES_START = 256 << 20  # sparse: costs address space, not disk
RECORD_CACHE_MAX = 65_536

_ROWS = 10_000
_LEDGER_KEY = struct.Struct(">Q")

_T = TypeVar("_T")

Completion = Callable[[int, BaseException | None], None]


class LmdbBookieStorage:
    """Use from one thread, except that ``completed(position, error)`` is called on the two threads of the storage; the one that fills the
    database gives position 0.

    ``completed`` reports that all changes up to ``position`` are durable, or, with an error, that the commit of changes up to
    ``position`` failed. Failed changes stay visible and are tried again with the next commit: storing an add that was answered
    with an error is allowed, forgetting a fence that reads already saw is not.
    """

    def __init__(
        self,
        directory: Path,
        completed: Completion | None = None,
        *,
        map_bytes: int = MAP_BYTES_START,
        counts: ServerCounts | None = None,
    ) -> None:
        make_directory(directory)
        self.directory = directory
        self._completed = completed
        self._counts = counts or ServerCounts()
        self.reserve_bytes = RESERVE_BYTES
        self._scarce = False
        self._map_bytes = map_bytes
        self._broken = False  # True if the database has to be opened anew
        try:
            self._make_room()
            self._open_database()
        except (lmdb.Error, OSError) as error:
            raise BookieIOError(f"storage in {directory} cannot be opened: {error}") from error
        self._map_lock = threading.Lock()  # the map may only be resized while no transaction of this process is open
        self._cache: dict[int, LedgerRecord | None] = {}
        self._condition = threading.Condition()
        self._gathering = Batch()  # changes that were applied
        self._committing: Batch | None = None  # on its way into the journal
        self._settled = Batch()  # in the journal
        self._storing: Batch | None = None  # on its way into the database
        self._wanted = 0  # commit at least up to this position
        self._closing = False
        self._hurry = False  # True if the database must not wait for more changes
        self._failure: BaseException | None = None
        self._store_failure: BaseException | None = None
        self._journal_done = False
        self.position = 0
        self.durable_position = 0
        self.accepted_bytes = 0  # sum of the demands of all changes (BKE-8)
        try:
            self._journal = self._open_journal()
        except BaseException:
            self._env.close()
            raise
        self._threads = [
            threading.Thread(target=self._commit_loop, name="bookie-commit", daemon=True),
            threading.Thread(target=self._store_loop, name="bookie-store", daemon=True),
        ]
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:  # no more threads can be started, or an interrupt
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self.close()
            raise

    def _make_room(self) -> None:
        """Make room at the start, because an earlier process may have filled the disk."""
        with suppress(BookieIOError):
            if free_outside_bytes(self.directory) < self.reserve_bytes // 2:
                give_back_journal(self.directory)
        compact(self.directory)
        keep_lock_file(self.directory / "lock.mdb")

    def _open_database(self) -> None:
        self._env = lmdb.open(
            str(self.directory),
            map_size=self._map_bytes,
            max_dbs=DATABASES,
            subdir=True,
            readahead=False,
            metasync=True,
            sync=True,
            mode=FILE_MODE,
        )
        self._entries = self._env.open_db(b"entries")
        self._runs = self._env.open_db(b"runs")
        self._ledgers = self._env.open_db(b"ledgers")

    def _open_journal(self) -> Journal:
        """Open the journal, and apply the changes that it has and the database has not."""
        try:
            with self._env.begin() as txn:
                state = txn.get(JOURNAL_KEY)
            if state is None:
                state = JOURNAL_STATE.pack(os.urandom(ID_BYTES), 0)
                create(self.directory, state[:ID_BYTES])
                with self._env.begin(write=True) as txn:
                    txn.put(JOURNAL_KEY, state)
            self._journal_id, after = JOURNAL_STATE.unpack(state)
            journal = Journal(self.directory, self._journal_id, after, self._replay)
            try:
                journal.sync()  # what was replayed counts as durable from now on (B-1, B-4)
                journal.keep_room()
            except BaseException:
                journal.close()
                raise
            return journal
        except (lmdb.Error, struct.error, OSError) as error:
            raise BookieIOError(f"journal in {self.directory} cannot be opened: {error}") from error

    def _replay(self, number: int, content: memoryview) -> None:
        batch = decode_changes(content)
        batch.record = number
        batch.count_demand()
        self._settled.absorb(batch)

    def _layers(self) -> list[Batch]:
        """Return the changes that are not in the database yet, newest first. Call it, and use the result, under the condition's lock."""
        return [layer for layer in (self._gathering, self._committing, self._settled, self._storing) if layer is not None]

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
            for layer in self._layers():
                if (body := layer.entry(ledger_id, entry_id)) is not None:
                    return body
                if ledger_id in layer.dropped:
                    return None
        with self._reading() as txn:
            body = tables.single(txn.cursor(self._entries), ledger_id, entry_id)
            if body is not None:
                return body
            run = tables.run_with(txn.cursor(self._runs), ledger_id, entry_id)
            return None if run is None else run.body(entry_id)

    def entries(self, ledger_id: int, first_entry_id: int, entries_max: int, bytes_max: int) -> tuple[int, bytes]:
        """Return entries from runs only; ``entry`` also finds those that were stored singly."""
        stop = first_entry_id + entries_max  # before it no newer change hides what is found
        with self._condition:
            for layer in self._layers():
                if ledger_id in layer.entries:
                    return 0, b""
                run = layer.run_at(ledger_id, first_entry_id)
                if run is not None and run.last >= first_entry_id:
                    count, bodies = run.slice(first_entry_id, stop - first_entry_id, bytes_max)
                    return count, bytes(bodies)
                if ledger_id in layer.dropped:
                    return 0, b""
                stop = min(stop, layer.start_after(ledger_id, first_entry_id))
        with self._reading() as txn:
            single = tables.first_single(txn.cursor(self._entries), ledger_id, first_entry_id)
            stop = stop if single is None else min(stop, single)
            return tables.entries_of_runs(txn.cursor(self._runs), ledger_id, first_entry_id, stop, bytes_max)

    def entry_ids(self, ledger_id: int) -> list[int]:
        """Return the ids in ascending order."""
        ids: list[int] = []
        next_id: int | None = 0
        while next_id is not None:
            runs, next_id = self.entry_runs(ledger_id, next_id, _ROWS)
            for first, count in runs:
                ids += range(first, first + count)
        return ids

    def entry_runs(self, ledger_id: int, first_entry_id: int, rows_max: int) -> tuple[list[tuple[int, int]], int | None]:
        """See ``BookieStorageView``. A row is a chunk of a run, or a single entry."""
        with self._condition:
            runs, dropped = self._waiting_runs(ledger_id, first_entry_id)
        stop = max(first_entry_id + 1, runs[rows_max][0]) if len(runs) > rows_max else ID_END
        if not dropped:
            with self._reading() as txn:
                for find, db in ((tables.runs_from, self._runs), (tables.singles_from, self._entries)):
                    found, end = find(txn.cursor(db), ledger_id, first_entry_id, rows_max)
                    runs += found
                    stop = min(stop, end)
        return tables.merged(runs, first_entry_id, stop), stop if stop < ID_END else None

    def _waiting_runs(self, ledger_id: int, first_entry_id: int) -> tuple[list[tuple[int, int]], bool]:
        """Return the runs that are not in the database yet, ascending but not merged, and True if everything in the database is to be
        dropped."""
        runs: list[tuple[int, int]] = []
        dropped = False
        for layer in self._layers():
            runs += layer.entry_runs(ledger_id, first_entry_id)
            if ledger_id in layer.dropped:
                dropped = True
                break  # older changes are dropped too
        return sorted(runs), dropped

    def ledger_ids(self) -> list[int]:
        """Return the ids of ledgers with a record, without tombstones, ascending. One with a damaged record is included, because it must
        not pass for a tombstone."""
        return sorted(ledger_id for ledger_id, record in self._records().items() if record is None or not record.deleted)

    def full_ledger_ids(self) -> list[int]:
        """Return those of ``ledger_ids`` that are known to have entries, without those that were only fenced."""
        return [ledger_id for ledger_id, record in self._records().items() if record is None or (record.has_entries and not record.deleted)]

    def tombstone_ids(self) -> list[int]:
        """Return the ids of deleted ledgers that are not forgotten yet, ascending."""
        return sorted(ledger_id for ledger_id, record in self._records().items() if record is not None and record.deleted)

    def limbo_ids(self) -> list[int]:
        """Return the ids of ledgers in limbo, ascending."""
        return sorted(ledger_id for ledger_id, record in self._records().items() if record is not None and record.limbo)

    def _records(self) -> dict[int, LedgerRecord | None]:
        """Return every record as of now; None stands for a damaged one. Any thread may call this."""
        known: dict[int, LedgerRecord | None] = {}
        with self._condition:  # records move from a batch to LMDB in one step under this lock, so none is missed between the two
            changes = [(ledger_id, record) for layer in reversed(self._layers()) for ledger_id, record in layer.records.items()]
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
        """Return the total bytes of the file system, and those that are free there or inside the database. Raises BookieIOError if it
        cannot be asked."""
        look = self.look()
        stat = statvfs_of(self.directory)
        return stat.f_blocks * stat.f_frsize, free_bytes(look, self.reserve_bytes)

    def look(self) -> DiskLook:
        """Return the free bytes as they are now. Raises BookieIOError if they cannot be asked for (BKE-8)."""
        with self._condition:
            pending = sum(layer.demand for layer in self._layers())
        return DiskLook(free_outside_bytes(self.directory), self.free_inside_bytes(), pending)

    def be_scarce(self, scarce: bool) -> None:
        """Begin or stop to be scarce with room (BKE-9): give back what the journal does not need, and put new entries wherever a gap will
        do."""
        self._scarce = scarce
        self._journal.file_bytes = KEPT_BYTES if scarce else FILE_BYTES
        if scarce:
            self._journal.give_back(LAST_BYTES if self._store_failure is not None else KEPT_BYTES)
        else:
            self._journal.keep_room()

    def free_inside_bytes(self) -> int:
        """Return the free bytes inside the database's file, which deleted entries have left for new ones. Raises BookieIOError."""
        try:
            with self._map_lock:
                return used_and_free(self._env)[1]
        except lmdb.Error as error:
            raise BookieIOError(f"storage cannot be read: {error}") from error

    # --- changes ------------------------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Apply a change. Reads see it at once; it is durable only after a commit, which ``request_sync`` starts."""
        with self._condition:
            self.position += 1
            before = self._gathering.demand
            self._gathering.add(change)
            self.accepted_bytes += self._gathering.demand - before
            self._gathering.position = self.position
        forget = isinstance(change, Persist) and change.forget
        self._remember(change.record.ledger_id, None if forget else change.record)

    def request_sync(self) -> None:
        """Ask for everything applied so far to be committed; the outcome goes to ``completed``."""
        with self._condition:
            self._wanted = self.position
            self._condition.notify_all()

    def request_store(self) -> None:
        """Put what is in the journal into the database now, because somebody waits for the room that this frees (BKE-8)."""
        if not self._hurry:
            with self._condition:
                self._hurry = True
                self._condition.notify_all()

    def sync(self) -> int:
        """Do ``request_sync`` and wait. Raises BookieIOError if the commit fails. Returns the durable position."""
        with self._condition:
            target = self._wanted = self.position
            self._condition.notify_all()
            self._failure = None
            while self.durable_position < target and self._failure is None and self._threads[0].is_alive():
                self._condition.wait(0.5)
            if self.durable_position < target:
                raise BookieIOError(f"commit failed: {self._failure}")
            return self.durable_position

    def wait_for_room(self, bytes_max: int) -> None:
        """Wait until at most ``bytes_max`` wait in memory. Raises BookieIOError if journal or database cannot be written. Not
        for the loop."""
        if self.uncommitted_bytes <= bytes_max:
            return
        self.sync()
        with self._condition:
            while self.uncommitted_bytes > bytes_max:
                if self._store_failure is not None or self._closing:
                    raise BookieIOError(f"the database cannot be written: {self._store_failure}")
                self._condition.wait(0.5)

    @property
    def failure(self) -> BaseException | None:
        """The error of the last attempt to write the journal or the database, if it failed."""
        return self._failure or self._store_failure

    @property
    def uncommitted_bytes(self) -> int:
        """The bytes that wait in memory for the journal or for the database, for back-pressure."""
        layers = (self._gathering, self._committing, self._settled, self._storing)  # each of them may be replaced at any moment
        return sum(layer.bytes for layer in layers if layer is not None)

    def close(self) -> None:
        """Commit what is pending and close. Further use is an error."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        for thread in self._threads:
            join(thread)
        self._journal.close()
        with self._map_lock:  # another thread may be reading
            self._env.close()

    # --- the journal ----------------------------------------------------------------------------------------------

    def _commit_loop(self) -> None:
        while (batch := self._next_batch()) is not None:
            position = batch.position
            error = self._error_of("journal", self._commit, batch)
            with self._condition:
                self._committing = None
                self._failure = error
                if error is None:
                    self.durable_position = position
                    self._settled.absorb(batch)
                else:
                    batch.absorb(self._gathering)
                    self._gathering = batch
                self._condition.notify_all()
            self._report(position, error)
            if self._closing and error is not None:
                break
        with self._condition:
            self._journal_done = True
            self._condition.notify_all()

    def _report(self, position: int, error: BaseException | None) -> None:
        if self._completed is not None:
            self._completed(position, error)

    def _next_batch(self) -> Batch | None:
        with self._condition:
            while not self._closing and (self._wanted <= self.durable_position or not self._gathering.position):
                self._condition.wait()
            if not self._gathering.position:
                return None
            batch, self._gathering = self._gathering, Batch()
            self._committing = batch
            self._wanted = 0  # callers that still wait after a failure ask again
            return batch

    def _commit(self, batch: Batch) -> None:
        """Write one record of the journal, with one sync at its end."""
        content = encode_changes(batch)
        batch.record = self._journal.append(content)
        self._counts.journal_bytes.value += sum(map(len, content))

    # --- the database, some time later ------------------------------------------------------------------------------

    def _store_loop(self) -> None:
        while (batch := self._next_to_store()) is not None:
            error = self._error_of("database", self._put, batch)
            with self._condition:
                self._storing = None
                self._store_failure = error
                if error is None:
                    self._journal.release(batch.record)
                else:
                    batch.absorb(self._settled)
                    self._settled = batch
                self._condition.notify_all()
            self._report(0, error)
            if self._closing and error is not None:
                return  # it is in the journal

    def _next_to_store(self) -> Batch | None:
        """Wait until there is enough, or some for long enough, and return it. Return None in the end, when the journal is written and all
        of it is stored."""
        with self._condition:
            while not self._settled.record and not self._journal_done:
                self._condition.wait()
            deadline = time.monotonic() + STORE_AFTER_S
            while not self._closing and (self._store_failure or not (self._hurry or self._settled.bytes >= STORE_BYTES)):
                if (left := deadline - time.monotonic()) <= 0:
                    break
                self._condition.wait(left)
            if not self._settled.record:
                return None
            batch, self._settled = self._settled, Batch()
            self._storing, self._hurry = batch, False
            return batch

    def _put(self, batch: Batch) -> None:
        """Store a batch in transactions of PIECE_BYTES, each synced; only the last one marks the journal's records as not needed any more.
        If this ends half-way, all of it is stored again."""
        for ledger_id in batch.dropped:
            while not self._transact(partial(self._drop, ledger_id)):
                pass  # there is more of it
        for piece in batch.pieces(PIECE_BYTES):
            self._transact(partial(self._put_piece, piece))
        self._transact(lambda txn: self._put_records(txn, batch))

    def _transact(self, action: Callable[[Any], _T]) -> _T:
        if self._broken:
            self._reopen()
        while True:
            try:
                with self._env.begin(write=True, buffers=True) as txn:
                    return action(txn)
            except lmdb.MapFullError:
                self._grow()
            except lmdb.PanicError:  # LMDB could not write its head; opened anew, the database is as it was
                self._broken = True
                raise

    def _drop(self, ledger_id: int, txn: Any) -> bool:
        return all(tables.drop_ledger(txn.cursor(db), ledger_id, DROP_BYTES) for db in (self._entries, self._runs))

    def _put_piece(self, piece: list[tuple[int, StoredEntries | Single]], txn: Any) -> None:
        entries, runs = txn.cursor(self._entries), txn.cursor(self._runs)
        chunk_bytes_max = PAGE_CHUNK_BYTES_MAX if self._scarce else None
        for ledger_id, item in piece:
            tables.put_item(entries, runs, ledger_id, item, chunk_bytes_max)

    def _put_records(self, txn: Any, batch: Batch) -> None:
        for ledger_id, record in batch.records.items():
            if record is None:
                txn.delete(_LEDGER_KEY.pack(ledger_id), db=self._ledgers)
            else:
                txn.put(_LEDGER_KEY.pack(ledger_id), encode_record(record), db=self._ledgers)
        txn.put(JOURNAL_KEY, JOURNAL_STATE.pack(self._journal_id, batch.record))

    def _grow(self) -> None:
        with self._map_lock:
            self._map_bytes *= 2
            self._env.set_mapsize(self._map_bytes)

    def _reopen(self) -> None:
        with self._map_lock:
            self._env.close()
            self._open_database()
            self._broken = False

    def _free_mib(self) -> int:
        """Return the free room for messages. LMDB reports a disk that takes only half of a page as one that fails."""
        try:
            return free_outside_bytes(self.directory) >> 20
        except BookieIOError:
            return 0

    def _error_of(self, what: str, action: Callable[[Batch], None], batch: Batch) -> BaseException | None:
        begun = time.monotonic_ns()
        try:
            action(batch)
            (self._counts.journal_sync_seconds if what == "journal" else self._counts.store_seconds).observe(time.monotonic_ns() - begun)
        except Exception as error:  # waiting callers must be told of any error
            self._counts.write_failed(what)
            failure = BookieIOError(f"the {what} in {self.directory} cannot be written: {error} ({self._free_mib()} MiB are free there)")
            failure.__cause__ = error
            return failure
        return None

    # --- reading LMDB ---------------------------------------------------------------------------------------------

    def _transaction(self) -> Any:
        try:
            return self._env.begin(buffers=True)
        except lmdb.Error as error:
            raise BookieIOError(f"storage cannot be read: {error}") from error

    @contextmanager
    def _reading(self) -> Iterator[Any]:
        """Yield a transaction, in which the map does not move. Raises BookieIOError."""
        try:
            with self._map_lock, self._env.begin(buffers=True) as txn:
                yield txn
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
            for layer in self._layers():
                if ledger_id in layer.records:
                    return layer.records[ledger_id]
        value = self._get(self._ledgers, _LEDGER_KEY.pack(ledger_id))
        return None if value is None else decode_record(ledger_id, value)

    def _remember(self, ledger_id: int, record: LedgerRecord | None) -> None:
        if len(self._cache) >= RECORD_CACHE_MAX:
            self._cache.clear()
        self._cache[ledger_id] = record


def _decoded(ledger_id: int, value: bytes) -> LedgerRecord | None:
    try:
        return decode_record(ledger_id, value)
    except BookieIOError:
        return None
