"""FileStore: the one owner of a file store, driven by ``FileMachine`` (protocol/files/machine.py).

A caller hands a change over in one step that an interrupt (Ctrl-C) cannot tear, and waits for its outcome. The store's own thread steps
the machine and appends its records in order. It waits only for the log's writer. Data threads take leases under the lock. A worker thread
does what blocks: rolls, trims, closing and deleting data ledgers. Contents that are too large for a record are written by the data threads
before the change is handed over (data.py). Readers look at the acknowledged tree under the lock, and read data ledgers without it.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeAlias

from bk_core.arguments import COUNT, SECONDS, SECRET, Check, checked, whole
from bk_core.client.files.data import PIECE_BYTES, DataLedgers, Lease, Leases
from bk_core.client.files.names import store_log
from bk_core.client.files.opening import Opened, again, broken_by, ended_by, leave, open_log
from bk_core.client.files.reading import ContentReader
from bk_core.client.files.works import FileWorks, Work
from bk_core.client.list_store import LogClient, now_ms
from bk_core.client.log_parts import Call, Worker
from bk_core.client.operations import LeftOpen, must_not_block, wait
from bk_core.errors import (
    CLIENT_CLOSED,
    BkError,
    ClientClosedError,
    FileDataLostError,
    FileStoreClosedError,
    ForkedClientError,
    InvalidArgumentError,
    LogTakenOverError,
    NoSuchPathError,
    OperationTimeoutError,
)
from bk_core.metadata.store import Watch
from bk_core.protocol.effects import Complete, Fail, SetTimer
from bk_core.protocol.entry import layout
from bk_core.protocol.events import Outcome, TimerFired
from bk_core.protocol.files.content import Content, FileStatus
from bk_core.protocol.files.effects import AppendRecords, DropData, FileEffect, FileEvent, RecordsAppended, RollLog, TrimLog
from bk_core.protocol.files.machine import FileMachine
from bk_core.protocol.files.paths import normal
from bk_core.protocol.files.records import RECORD_MAX
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.ledger.run import ADD_FRAME_PREFIX_BYTES
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties
from bk_core.threads import Home, Monitor, WorkerPool, holds_lock, is_own, made_aside

log = logging.getLogger("bk_core.client.files")

INLINE_BYTES = 64 << 10
INLINE_BYTES_MAX = 256 << 10
UNDECIDED_BYTES_MAX = 16 << 20  # of changes that are not acknowledged, whoever still waits for them
CHANGE_BYTES = 512  # a change without a content counts as so much
ROLL_BYTES = 64 << 20
AGAIN_S = 5.0  # a data ledger that could not be closed is tried again after that
LEASES_S = 5.0  # how often leases of contents that nobody refers to any more are looked for
JOIN_S = 10.0
_DEFAULT_TIMEOUT_S = 60.0
_DEFAULTS = LogProperties()
_DATA = Check("bytes, an iterable of bytes, or what stage() returned", lambda data: not isinstance(data, str | int | float | None))
Bytes: TypeAlias = "bytes | bytearray | memoryview"
Data: TypeAlias = "Bytes | Iterable[Bytes] | Staged"


class Staged:
    """Content that belongs to no file yet. Large content is durable; small content is in memory. ``FileStore.put`` makes it a file.
    ``release`` gives it up. So does the end of a ``with`` block, and losing the last reference."""

    def __init__(self, store: FileStore, content: Content, lease: Lease) -> None:
        self.content = content
        self._store = store
        self._lease: Lease | None = lease

    @property
    def size(self) -> int:
        """Bytes."""
        return self.content.size

    def release(self) -> None:
        """Give the content up. A file that has it keeps it. Idempotent."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()
            self._store._nudge()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Staged {self.size} bytes of {self._store!r}{'' if self._lease is not None else ' released'}>"


class _Change:
    """Token of one change that a caller asked for. ``act`` steps the machine; ``size`` is what it counts for."""

    __slots__ = ("act", "future", "size")

    def __init__(self, act: Callable[[_Change], list[FileEffect]], size: int) -> None:
        self.future: Any = Call().future
        self.act = act
        self.size = size


class _Holds:
    """Takes leases of data ledgers from the machine. It refers to no store, so that a store that is dropped ends."""

    def __init__(self, lock: Monitor, machine: FileMachine) -> None:
        self.leases = Leases()
        self._lock = lock
        self._machine = machine

    def take(self, lease: Lease, ledger_id: int) -> None:
        """Raises the store's error if it has ended."""
        with self._lock:
            if self._machine.error is not None:
                raise again(self._machine.error, "nothing was written")
            if ledger_id not in lease.held:
                effects = self._machine.hold(ledger_id)
                assert not effects, f"nobody performs {effects} here"
                lease.held.append(ledger_id)


def _end_threads(own: WorkerPool, worker: Worker, data: WorkerPool, watches: Iterable[Watch] = ()) -> None:
    """End the threads without waiting for them: one of them may run this, or whichever thread finds that a store was dropped."""
    for watch in watches:
        with suppress(ClientClosedError, ForkedClientError):
            own.submit(watch.cancel)
    data.close(0.0)
    own.close(0.0, finish=True)
    worker.close()


def _watch_data(works: FileWorks, changed: Callable[[int], None], ledger_id: int) -> Watch:
    return works.watch_data(ledger_id, partial(changed, ledger_id))


def _payload_bytes_max(client: LogClient) -> int:
    """The bytes that an entry of this client's ledgers may have, whatever their digest."""
    config = getattr(client, "config", None)
    limits = config.limits if config is not None else Limits()
    return int(limits.frame_bytes_max - ADD_FRAME_PREFIX_BYTES - max(map(layout.body_overhead, DigestType)))


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """For timers and for parts of a store: it keeps no store alive, and does nothing once that is gone."""
    known = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        found = known()
        if found is not None:
            found(*arguments)

    return call


class FileStore:
    """The owner of a file store: directories and files on ledgers, each change atomic and durable when its call returns.

    ``open`` takes the store over, which ends its former owner: all that was pending there, and every later call, raises
    FileStoreTakenOverError. Any number of threads may use a store at once; changes are made in the order of their calls. Reads see what
    is acknowledged. A change may or may not be made if its call raises an error whose ``outcome_unknown`` is True, such as
    OperationTimeoutError. An owner that was taken over and has not learnt it yet still answers from its own tree: reads, refusals, changes
    that change nothing, and ``flush``.

    Close it, or use it with ``with``. One that nobody refers to any more stops by itself, as its log's writer does.
    """

    def __init__(
        self, client: LogClient, name: str, opened: Opened, *, password: bytes, inline_max: int, on_end: Callable[[BkError], object] | None
    ) -> None:
        config = getattr(client, "config", None)
        self.name = name
        self.log_name = opened.writer.name
        self._inline_max = inline_max
        self._on_end = on_end
        self._timeout_s: float = config.operation_timeout_s if config is not None else _DEFAULT_TIMEOUT_S
        self._home = Home()
        self._lock = Monitor()
        self._machine = opened.machine
        self._writer = opened.writer
        self._works = FileWorks(client, opened.writer, opened.listed.log_id, opened.listed.properties, password)
        self._holds = _Holds(self._lock, opened.machine)
        self._arrived: deque[_Change] = deque()
        self._undecided_bytes = 0
        self._closing: Call | None = None
        self._close_begun = False
        self._given_up: BkError | None = None  # why this program ended it without closing it
        self._stopped = False
        self._own = WorkerPool(f"bookkeeper-files-{name}")
        self._worker = Worker(f"bookkeeper-files-{name}-worker")
        self._watches: list[Watch] = []
        self._data = DataLedgers(
            name,
            self._works.create_data,
            self._holds.take,
            _weakly(self._finish_data),
            self._holds.leases,
            partial(_watch_data, self._works, _weakly(self._data_changed)),
            self._watches,
            timeout_s=self._timeout_s,
            piece_bytes=min(PIECE_BYTES, _payload_bytes_max(client)),
        )
        self._reader = ContentReader(client, self.log_name, password, _weakly(self._data.lost))
        threads = (self._own, self._worker, self._data.pool)
        weakref.finalize(self, _end_threads, *threads, self._watches).atexit = False  # one that was dropped
        close_with = getattr(client, "close_with", None)
        if close_with is not None:
            self._left = LeftOpen(self._leave)
            close_with(self._left)

    @classmethod
    @checked(password=SECRET, inline_max=whole(0, INLINE_BYTES_MAX))
    def open(
        cls,
        client: LogClient,
        name: str,
        *,
        password: bytes = b"",
        create: bool = True,
        take_over: bool = True,
        ensemble_size: int = _DEFAULTS.ensemble_size,
        write_quorum_size: int = _DEFAULTS.write_quorum_size,
        ack_quorum_size: int = _DEFAULTS.ack_quorum_size,
        digest_type: DigestType | str = _DEFAULTS.digest_type,
        inline_max: int = INLINE_BYTES,
        on_end: Callable[[BkError], object] | None = None,
    ) -> Self:
        """Take the store over, fencing its former owner, and return its owner. ``create`` makes the store if there is none: then quorums
        and digest are those of its ledgers, else they are as they were. ``password`` is that of its log and of its data ledgers. Bookies
        that are away, as in a restart of a cluster, are waited for, for the client's ``operation_timeout_s``.

        Contents of at most ``inline_max`` bytes lie within the record of their change. ``on_end`` is told once, on a thread of the store's,
        if it ends by a failure, such as being taken over.

        NoSuchFileStoreError without ``create``; FileStoreTakenOverError with ``take_over=False`` where the store has an owner or one died
        owning it, or where others won; NotEnoughBookiesError, before anything is made or anybody is fenced, when there are too few
        bookies for that time; FileStoreFormatError for a log that holds something else; what LogWriter.open raises.
        """
        log_name = store_log(name)
        must_not_block(f"opening file store {name!r}")
        if _payload_bytes_max(client) < RECORD_MAX:
            raise InvalidArgumentError(f"limits.frame_bytes_max must have room for a record of {RECORD_MAX} bytes of a file store")
        digest = digest_type.name if isinstance(digest_type, DigestType) else digest_type
        quorums = {"ensemble_size": ensemble_size, "write_quorum_size": write_quorum_size, "ack_quorum_size": ack_quorum_size}
        properties = LogProperties(entry_format="raw", digest_type=digest, **quorums)  # type: ignore[arg-type]
        properties.check(str)
        options: dict[str, Any] = {"password": password, "take_over": take_over, "roll_max_bytes": ROLL_BYTES}
        config = getattr(client, "config", None)
        timeout_s = config.operation_timeout_s if config is not None else _DEFAULT_TIMEOUT_S
        opened = open_log(client, name, log_name, create=properties if create else None, timeout_s=timeout_s, **options)
        try:
            make = partial(cls, client, name, opened, password=password, inline_max=inline_max, on_end=on_end)
            store = made_aside(make, lambda made: _end_threads(made._own, made._worker, made._data.pool))
        except BaseException:
            leave(opened.writer)
            raise
        try:
            store._serve(opened.ledgers)
        except BaseException:
            store._give_up(FileStoreClosedError(f"file store {name!r} could not be opened", store=name))
            raise
        return store

    def _serve(self, ledgers: list[int]) -> None:
        call, segment = Call(), self._writer.position.seq

        def begin() -> None:
            self._step(lambda: self._machine.serve(ledgers, segment), call)
            if not call.future.done():
                self._step(lambda: self._machine.barrier(call), call)
                self._worker.submit(self._watch_log)
                self._worker.submit(partial(self._recover_left, [one for one in ledgers if one in self._machine.tree.ledgers]))

        self._own.submit(begin)
        wait(call.future, self._timeout_s, f"opening file store {self.name!r}")

    @property
    def error(self) -> BkError | None:
        """Why it has ended: taken over, or its log failed. None while it works, and after ``close``."""
        error = self._machine.error
        return error if isinstance(error, BkError) else None

    @property
    def is_open(self) -> bool:
        """False once it was closed or has ended, and in a forked child."""
        return self._home.is_here and self._closing is None and self._machine.error is None

    def __repr__(self) -> str:
        return f"<FileStore {self.name!r} {self._machine.state.name}>"

    # --- reading ----------------------------------------------------------------------------------------------------------

    @checked()
    @holds_lock
    def status(self, path: str) -> FileStatus:
        """NoSuchPathError; InvalidPathError."""
        self._home.check("file store")  # before the lock, which may have been taken when this process was forked
        with self._lock:
            self._check("nothing was read")
            found: FileStatus = self._machine.tree.status(path)
            return found

    @checked()
    def exists(self, path: str) -> bool:
        """True if there is a file or directory of this path."""
        try:
            self.status(path)
        except NoSuchPathError:
            return False
        return True

    @checked()
    @holds_lock
    def listing(self, path: str) -> list[FileStatus]:
        """The statuses of what a directory holds, sorted by name; of a file, its own alone. NoSuchPathError."""
        self._home.check("file store")  # before the lock, which may have been taken when this process was forked
        with self._lock:
            self._check("nothing was read")
            found: list[FileStatus] = self._machine.tree.listing(path)
            return found

    @checked()
    @holds_lock
    def content(self, path: str) -> Content:
        """The content of a file: its inline bytes, or the extents that hold them. NoSuchPathError, PathIsDirectoryError."""
        self._home.check("file store")  # before the lock, which may have been taken when this process was forked
        with self._lock:
            self._check("nothing was read")
            found: Content = self._machine.tree.content(path)
            return found

    @checked(offset=COUNT, length=COUNT)
    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read at most ``length`` bytes from ``offset``. All bytes come from one version of the file.

        NoSuchPathError, PathIsDirectoryError; FileDataLostError if the ledger that holds them is gone.
        """
        content = self.content(path)
        while True:
            try:
                return b"".join(self._reader.chunks(content, offset, length))
            except FileDataLostError as error:
                content = self._changed(path, content, error)

    def _changed(self, path: str, content: Content, error: FileDataLostError) -> Content:
        """Return the present content of the file. Raise ``error`` if that is still ``content``, whose bytes are gone."""
        now = self.content(path)
        if now == content:
            raise error
        return now

    @checked(offset=COUNT, length=COUNT)
    def read_content(self, content: Content, offset: int = 0, length: int | None = None) -> bytes:
        """As ``read``, of a content that was staged or that a file has. FileDataLostError."""
        self._check("nothing was read")
        return b"".join(self._reader.chunks(content, offset, length))

    @checked(offset=COUNT, length=COUNT)
    def chunks(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """As ``read``, in parts of at most 1 MiB. If the file is replaced or deleted meanwhile, the iterator may raise
        FileDataLostError."""
        return self._chunks(path, self.content(path), offset, length)

    def _chunks(self, path: str, content: Content, offset: int, length: int | None) -> Iterator[bytes]:
        while True:
            begun = False
            try:
                for chunk in self._reader.chunks(content, offset, length):
                    begun = True
                    yield chunk
                return
            except FileDataLostError as error:
                if begun:
                    raise
                content = self._changed(path, content, error)

    # --- changing ---------------------------------------------------------------------------------------------------------

    @checked(data=_DATA)
    def stage(self, data: Bytes | Iterable[Bytes]) -> Staged:
        """Write ``data`` durably without making a file. Data of at most ``inline_max`` bytes is only kept; the put writes it.

        Everything else goes on meanwhile, however slow ``data`` is. A part that the bookies do not take is written again to another data
        ledger. OperationTimeoutError if that does not succeed within the client's ``operation_timeout_s``.
        """
        return self._stage(data, None)

    def _stage(self, data: Bytes | Iterable[Bytes], until_s: float | None) -> Staged:
        must_not_block("staging bytes of a file")
        self._check("nothing was written")
        try:
            content, lease = self._data.stage(data, self._inline_max, until_s)
        except ClientClosedError:
            self._check("nothing was put")
            raise
        if content.extents:
            self._look_for_leases()
        return Staged(self, content, lease)

    @checked(data=_DATA, timeout_s=SECONDS)
    def put(self, path: str, data: Data, *, overwrite: bool = True, parents: bool = True, timeout_s: float | None = None) -> FileStatus:
        """Make a file of ``data`` in one atomic change. With ``overwrite`` it replaces the file of this path; with ``parents`` the missing
        directories above it are made. A Staged is used up by success, and stays as it was if the put is refused. ``timeout_s`` bounds
        staging and change together, but not the time in which ``data`` makes its next part; None bounds each part and the change.

        PathExistsError, PathIsDirectoryError, PathNotDirectoryError, NoSuchPathError (without ``parents``), InvalidPathError; what
        ``stage`` raises.
        """
        path = normal(path)
        if not isinstance(data, Staged):
            until_s = None if timeout_s is None else time.monotonic() + timeout_s
            with self._stage(data, until_s) as staged:
                left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
                return self._put(path, staged.content, overwrite, parents, left_s)
        if data._store is not self or data._lease is None:
            raise InvalidArgumentError(f"what is to be put at {path!r} was put or released already, or is of another file store")
        done = self._put(path, data.content, overwrite, parents, timeout_s)
        data.release()
        return done

    def _put(self, path: str, content: Content, overwrite: bool, parents: bool, timeout_s: float | None) -> FileStatus:
        machine = self._machine
        self._data.check_there(content)

        def act(token: _Change) -> list[FileEffect]:
            return machine.put(token, path, content, overwrite, parents, now_ms())

        found: FileStatus = self._change(f"putting file {path!r}", act, timeout_s, len(content.inline))
        return found

    @checked(timeout_s=SECONDS)
    def mkdirs(self, path: str, *, timeout_s: float | None = None) -> FileStatus:
        """Make a directory and those above it; one that is there is left as it is. PathExistsError, PathNotDirectoryError for a file."""
        found: FileStatus = self._change(f"making directory {path!r}", lambda token: self._machine.mkdirs(token, path, now_ms()), timeout_s)
        return found

    @checked(timeout_s=SECONDS)
    def rename(self, src: str, dst: str, *, overwrite: bool = False, timeout_s: float | None = None) -> FileStatus:
        """Give a file, or a directory with all in it, another path, in one atomic change. The directory above ``dst`` must be there.
        ``overwrite`` replaces a file by a file, and an empty directory by a directory.

        NoSuchPathError, PathExistsError, DirectoryNotEmptyError, InvalidPathError; PathNotDirectoryError and PathIsDirectoryError for kinds
        that do not fit; InvalidArgumentError for the root, and for a directory that would come to lie in itself.
        """
        found: FileStatus = self._change(
            f"renaming {src!r} to {dst!r}", lambda token: self._machine.rename(token, src, dst, overwrite, now_ms()), timeout_s
        )
        return found

    @checked(timeout_s=SECONDS)
    def delete(self, path: str, *, recursive: bool = False, timeout_s: float | None = None) -> bool:
        """False if there is nothing of this path. DirectoryNotEmptyError unless ``recursive``, which deletes all in it, too, at once."""
        return bool(self._change(f"deleting {path!r}", lambda token: self._machine.delete(token, path, recursive, now_ms()), timeout_s))

    @checked(timeout_s=SECONDS)
    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all earlier changes are acknowledged. Nothing is appended: without earlier changes that are pending this does not find
        out whether the store was taken over."""
        self._change(f"flushing file store {self.name!r}", self._machine.barrier, timeout_s)

    def _change(self, what: str, act: Callable[[_Change], list[FileEffect]], timeout_s: float | None, size: int = 0) -> Any:
        self._home.check("file store")
        must_not_block(what)
        begun = time.monotonic()
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        token = _Change(act, CHANGE_BYTES + size)
        try:
            while not self._admitted(token):
                if not self._lock.until(partial(self._may_try, token), max(0.0, begun + timeout_s - time.monotonic())):
                    waiting = f"{self._undecided_bytes} bytes of earlier changes stayed unacknowledged"
                    raise OperationTimeoutError(f"{what}: {waiting}; this change was not made", store=self.name).nothing_done()
        finally:
            self._own_thread(self._take_in)
        return wait(token.future, timeout_s, what, since_s=begun)

    @holds_lock
    def _admitted(self, token: _Change) -> bool:
        with self._lock:
            self._check("nothing was changed")
            if self._has_room(token):
                # Nothing strikes between these (bk_core/threads.py): counted and handed in, or neither.
                self._undecided_bytes += token.size
                self._arrived.append(token)
                return True
            return False

    def _has_room(self, token: _Change) -> bool:
        return not self._undecided_bytes or self._undecided_bytes + token.size <= UNDECIDED_BYTES_MAX

    def _may_try(self, token: _Change) -> bool:
        return self._has_room(token) or not self.is_open

    def _check(self, then: str) -> None:
        self._home.check("file store")
        error = self._machine.error
        if error is not None:
            raise again(error, then)
        if self._closing is not None:
            raise FileStoreClosedError(f"file store {self.name!r} was closed by this program; {then}", store=self.name).nothing_done()

    # --- the machine, on the store's own thread -----------------------------------------------------------------------------

    def _own_thread(self, task: Callable[[], None]) -> bool:
        """False if the thread has ended: then the store has stopped, and there is nothing to do any more."""
        try:
            self._own.submit(task)
        except ClientClosedError:
            return False
        return True

    def _nudge(self) -> None:
        if self._home.is_here:
            self._own_thread(self._take_in)

    def _take_in(self) -> None:
        """Make what callers have handed in, and count out leases that were given back."""
        while self._arrived:
            token = self._arrived.popleft()
            self._step(partial(token.act, token), token)
        while (held := self._holds.leases.next_returned()) is not None:
            while held:
                self._step(partial(self._release, held))

    def _release(self, held: list[int]) -> list[FileEffect]:
        return self._machine.release(held.pop())

    def _step(self, act: Callable[[], list[FileEffect]], asker: Any = None) -> None:
        """One step of the machine, then what it asks for, in order (SM-1): on this thread alone, so nothing comes in between. If the
        machine raises, which it must not, the store ends; ``asker`` is the token that nobody else would tell then."""
        with self._lock:
            try:
                effects = act()
            except Exception as error:
                broken = broken_by(error, self.name)
                log.error("%s", broken, exc_info=error)
                effects = [*self._machine.end(broken), *([] if asker is None else [Fail(asker, broken)])]
            self._lock.notify_all()
        for effect in effects:
            self._perform(effect)
        if self._machine.error is not None and not self._stopped:
            self._stop()

    def _perform(self, effect: FileEffect) -> None:
        match effect:
            case Complete(token, value) if token is self._closing:
                self._worker.submit(self._close_writer)
            case Complete(token, value):
                self._tell(token, None, value)
            case Fail(token, error):
                self._tell(token, error, None)
            case AppendRecords(request, records):
                self._append(request, records)
            case SetTimer(key, after_ns):
                self._worker.later(key, after_ns / 1e9, partial(_weakly(self._fire), key))
            case RollLog() | TrimLog() | DropData():
                self._worker.submit(partial(self._do, effect))
            case _:
                raise AssertionError(effect)

    def _tell(self, token: Any, error: Exception | None, value: Any) -> None:
        if token.future.done():
            return
        if isinstance(token, _Change):
            with self._lock:
                self._undecided_bytes -= token.size
                self._lock.notify_all()
        if error is None:
            token.future.set_result(value)
        else:
            token.future.set_exception(again(error))

    def _handle(self, event: FileEvent) -> None:
        self._own_thread(partial(self._step, lambda: self._machine.handle(event, time.monotonic_ns())))

    def _fire(self, key: str) -> None:
        self._handle(TimerFired(key))

    # --- appending to the log ------------------------------------------------------------------------------------------------

    def _append(self, request: int, records: tuple[bytes, ...]) -> None:
        """The log's writer keeps the order of these calls. What it has no room for it takes back, and that is tried again."""
        gathered = _Gathered(request, len(records), _weakly(self._appended))
        for index, record in enumerate(records):
            while True:
                try:
                    future = self._writer.append_future(record)
                    break
                except OperationTimeoutError as error:
                    if self._given_up is not None:
                        gathered.end(error)
                        return
                    log.warning("file store %s: its log takes no more at the moment: %s", self.name, error)
                except Exception as error:
                    gathered.end(error)
                    return
            future.add_done_callback(partial(gathered.told, index))

    def _appended(self, request: int, first: Position | None, error: BaseException | None) -> None:
        """Any thread."""
        if error is None:
            self._handle(RecordsAppended(request, Outcome.OK, first_position=first))
        else:
            self._handle(RecordsAppended(request, Outcome.UNKNOWN, self._given_up or ended_by(error, self.name)))

    # --- on the worker ----------------------------------------------------------------------------------------------------

    def _do(self, work: Work) -> None:
        if not self._stopped:
            answer = self._works.answer(work)
            self._handle(answer)
            if isinstance(answer.error, LogTakenOverError):
                self._end(ended_by(answer.error, self.name))

    def _watch_log(self) -> None:
        """Watch the log's list. So a store that changes nothing learns, too, that it was taken over."""
        if self._stopped or self._closing is not None:
            return
        try:
            watch = self._works.watch_list(_weakly(self._list_changed))
        except BkError as error:
            log.warning("file store %s: its log's list cannot be watched now, trying again: %s", self.name, error)
            self._worker.later("watch", AGAIN_S, _weakly(self._watch_log))
            return
        self._watches.append(watch)
        self._look_at_list()

    def _list_changed(self) -> None:
        """Any thread."""
        self._worker.submit(self._look_at_list)

    def _look_at_list(self) -> None:
        if self._stopped or self._closing is not None:
            return
        try:
            other = self._works.other_owner()
        except BkError as error:  # nobody tells of this change of the list once more
            log.warning("file store %s: its log's list cannot be read now, trying again: %s", self.name, error)
            self._worker.later("list", AGAIN_S, _weakly(self._look_at_list))
            return
        if other is not None:
            self._end(ended_by(other, self.name))

    def _recover_left(self, ledgers: list[int]) -> None:
        """Close the data ledgers that a former owner left and that files refer to: one a task, so that other tasks come in between."""
        if not ledgers or self._stopped or self._closing is not None:
            return
        first, *rest = ledgers
        try:
            self._works.recover_data(first)
        except BkError as error:
            log.warning("file store %s: data ledger %d of a former owner cannot be closed now: %s", self.name, first, error)
            self._worker.later(f"recover {first}", AGAIN_S, partial(_weakly(self._recover_left), [first]))
        self._worker.submit(partial(self._recover_left, rest))

    def _finish_data(self, handle: Any, lease: Lease, failed: bool) -> None:
        """Any thread: a data ledger takes no more."""
        self._worker.submit(partial(self._close_data, handle, lease, failed))

    def _close_data(self, handle: Any, lease: Lease, failed: bool) -> None:
        if self._stopped:
            handle.abandon()
            return
        try:
            self._works.close_data(handle, failed)
        except BkError as error:  # the next owner closes it if this one ends before that
            log.warning("file store %s: data ledger %d cannot be closed now: %s", self.name, handle.ledger_id, error)
            self._worker.later(f"close {handle.ledger_id}", AGAIN_S, partial(_weakly(self._close_data), handle, lease, True))
        else:
            lease.release()
            self._nudge()

    def _data_changed(self, ledger_id: int) -> None:
        """Any thread: a ledger that is being filled, or was, has other metadata, or none any more."""
        self._worker.submit(partial(self._look_at_data, ledger_id))

    def _look_at_data(self, ledger_id: int) -> None:
        if self._stopped:
            return
        try:
            if not self._works.is_data_gone(ledger_id):
                return
        except BkError as error:
            log.warning("file store %s: data ledger %d cannot be looked at now, trying again: %s", self.name, ledger_id, error)
            self._worker.later(f"look {ledger_id}", AGAIN_S, partial(_weakly(self._look_at_data), ledger_id))
            return
        log.error("file store %s: data ledger %d was deleted by somebody else; files may have lost their bytes", self.name, ledger_id)
        self._data.lost(ledger_id)

    def _look_for_leases(self) -> None:
        """Whoever drops what was staged wakes nobody: it may be a finalizer, which may wait for nothing."""
        self._nudge()
        self._worker.later("leases", LEASES_S, _weakly(self._look_for_leases))

    # --- the end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Wait for what was asked for, close the data ledgers and the log, end the threads. Idempotent.

        Does nothing more for a store that has ended, nor in a forked child. FileStoreTakenOverError if it is taken over meanwhile.
        OperationTimeoutError after the client's ``operation_timeout_s``: then it goes on, and a later call waits for it.
        """
        if not self._home.is_here:
            return
        what = f"closing file store {self.name!r}"
        must_not_block(what)
        call = Call()
        self._close_with(call)
        self._own_thread(self._begin_close)  # again if an interrupt was faster
        if self._closing is not None and not is_own():
            wait(self._closing.future, self._timeout_s, what)
        self._join()

    @holds_lock
    def _close_with(self, call: Call) -> None:
        with self._lock:
            if self._closing is None and self._machine.error is None:
                self._closing = call
            self._lock.notify_all()

    def _begin_close(self) -> None:
        """On the store's own thread, behind all that was asked for."""
        self._take_in()
        if self._closing is not None and not self._close_begun and not self._stopped:
            self._close_begun = True
            self._worker.submit(self._close_all_data)

    def _close_all_data(self) -> None:
        self._data.finish_all(self._timeout_s)
        self._worker.submit(partial(self._then, self._close_machine))  # behind the closing of each

    def _then(self, task: Callable[[], None]) -> None:
        self._own_thread(task)

    def _close_machine(self) -> None:
        self._take_in()
        self._step(lambda: self._machine.close(self._closing))

    def _close_writer(self) -> None:
        """On the worker, behind the data ledgers that are dropped last."""
        problem: BkError | None = None
        try:
            self._writer.close()
        except BkError as error:
            problem = ended_by(error, self.name)
        self._own_thread(partial(self._closed, problem))

    def _closed(self, problem: BkError | None) -> None:
        if self._stopped:
            return
        self._stopped = True
        assert self._closing is not None
        self._worker.forget_timers()
        self._data.abandon()  # what was not finished in time
        if problem is None:
            self._closing.future.set_result(None)
        else:
            self._closing.future.set_exception(problem)
        _end_threads(self._own, self._worker, self._data.pool, self._watches)

    def abandon(self) -> None:
        """Stop without closing anything, and wait for nothing: the next owner clears up. Pending changes may or may not be made."""
        if self._home.is_here:
            self._give_up(FileStoreClosedError(f"file store {self.name!r} was abandoned by this program", store=self.name))

    def _leave(self) -> None:
        """The client is being closed."""
        error = FileStoreClosedError(f"the client of file store {self.name!r} was closed by this program", store=self.name)
        error.__cause__ = ClientClosedError(CLIENT_CLOSED)
        self._end(error)

    def _give_up(self, error: BkError) -> None:
        self._given_up = error
        self._end(error)

    def _end(self, error: BkError) -> None:
        self._own_thread(partial(self._step, lambda: self._machine.end(error)))

    def _stop(self) -> None:
        """On the store's own thread, once the machine has ended by a failure. Everybody who waits has been told."""
        self._stopped = True
        error = self.error
        assert error is not None
        if self._closing is not None and not self._closing.future.done():
            self._closing.future.set_exception(again(error))
        self._data.abandon()
        self._writer.abandon()
        if self._given_up is not None:  # whoever was taken over may read on what he reads, until he closes
            self._reader.close()
        self._worker.forget_timers()
        if self._on_end is not None and self._given_up is None:
            try:
                self._on_end(error)
            except BaseException:  # callbacks of users may raise SystemExit
                log.exception("file store %s: whoever is told of its end failed", self.name)
        self._own_thread(self._take_in)  # what was handed in meanwhile is refused
        _end_threads(self._own, self._worker, self._data.pool, self._watches)

    def _join(self) -> None:
        """Wait for the threads of a store that has stopped."""
        if not is_own() and self._stopped:
            self._worker.wait_ended(JOIN_S)
            self._own.close(JOIN_S, finish=True)
            self._data.pool.close(JOIN_S)
            self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
            return
        with suppress(BkError):  # the error on its way out is the one to see
            self.close()


class _Gathered:
    """The outcomes of the appends of one request: all of them are acknowledged, or one failed."""

    def __init__(self, request: int, count: int, told: Callable[..., None]) -> None:
        self._request = request
        self._left = count
        self._told = told
        self._first: Position | None = None
        self._lock = Monitor()

    def told(self, index: int, done: Future[Position]) -> None:
        """Any thread."""
        error = done.exception()
        if error is not None:
            self.end(error)
            return
        with self._lock:
            if not index:
                self._first = done.result()
            self._left -= 1
            over = not self._left
        if over:
            self._told(self._request, self._first, None)

    def end(self, error: BaseException) -> None:
        """The first error is told; the machine takes no second answer."""
        self._told(self._request, None, error)
