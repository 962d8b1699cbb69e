"""FileStore: the one owner of a file store, driven by ``FileMachine`` (protocol/files/machine.py).

This module has the calls of its users; owner.py has its threads and its end. Contents that are too large for a record are written by the
data threads before the change is handed over (data.py). Readers look at the acknowledged tree under the lock, and read data ledgers without
it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Self, TypeAlias

from bk_core.arguments import COUNT, SECONDS, SECRET, Check, checked, whole
from bk_core.client.files.data import Lease
from bk_core.client.files.names import store_log
from bk_core.client.files.opening import leave, open_log
from bk_core.client.files.owner import DEFAULT_TIMEOUT_S, StoreOwner
from bk_core.client.files.owner_parts import Asked, end_threads
from bk_core.client.files.reading import present_chunks
from bk_core.client.log.list_store import LogClient, now_ms
from bk_core.client.log.parts import Call
from bk_core.client.operations import must_not_block, wait
from bk_core.client.payloads import limits_of, payload_bytes_max
from bk_core.errors import (
    BkError,
    ClientClosedError,
    InvalidArgumentError,
    NoSuchPathError,
    NotEnoughBookiesError,
    OperationTimeoutError,
)
from bk_core.protocol.files.content import Content, FileStatus
from bk_core.protocol.files.effects import FileEffect
from bk_core.protocol.files.paths import normal
from bk_core.protocol.files.records import RECORD_MAX
from bk_core.protocol.ledger.metadata import DigestName, DigestType
from bk_core.protocol.log.segments import EMPTY, LogProperties
from bk_core.threads import holds_lock, made_aside

INLINE_BYTES = 64 << 10
INLINE_BYTES_MAX = 256 << 10
ROLL_BYTES = 64 << 20
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
        """The size in bytes."""
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


class FileStore(StoreOwner):
    """The owner of a file store: directories and files on ledgers, each change atomic and durable when its call returns.

    ``open`` takes the store over, which ends its former owner: all that was pending there, and every later call, raises
    FileStoreTakenOverError. Any number of threads may use a store at once; changes are made in the order of their calls. Reads see what
    is acknowledged. A change may or may not be made if its call raises an error whose ``outcome_unknown`` is True, such as
    OperationTimeoutError. An owner that was taken over and has not learnt it yet still answers from its own tree: reads, refusals, changes
    that change nothing, and ``flush``.

    Close it, or use it with ``with``. One that nobody refers to any more stops by itself, as its log's writer does.
    """

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
        digest_type: DigestType | DigestName = _DEFAULTS.digest_type,
        inline_max: int = INLINE_BYTES,
        on_end: Callable[[BkError], object] | None = None,
    ) -> Self:
        """Take the store called ``name`` over, fencing its former owner, and return its owner.

        ``password`` is that of its log and of its data ledgers. ``create`` makes the store if there is none: then ``ensemble_size``,
        ``write_quorum_size``, ``ack_quorum_size`` and ``digest_type`` are those of its ledgers, else they are as they were. Contents of at
        most ``inline_max`` bytes lie within the record of their change. ``take_over=False`` refuses a store that has an owner. ``on_end``
        is called once, on a thread of the store's, if it ends by a failure, such as being taken over. ``client`` is a ``BookKeeper``.
        Bookies that are away, as in a restart of a cluster, are waited for, for the client's ``operation_timeout_s``.

        Raises NoSuchFileStoreError without ``create``; FileStoreTakenOverError with ``take_over=False`` where the store has an owner or one
        died owning it, or where others won; NotEnoughBookiesError, before anything is made or anybody is fenced, when there are too few
        bookies for that time, and at once when the cluster has fewer; FileStoreFormatError for a log that holds something else;
        InvalidArgumentError where ``limits.frame_bytes_max`` has no room for a record of a store; and what ``LogWriter.open`` raises.
        """
        digest = digest_type.name if isinstance(digest_type, DigestType) else digest_type
        quorums = {"ensemble_size": ensemble_size, "write_quorum_size": write_quorum_size, "ack_quorum_size": ack_quorum_size}
        properties = LogProperties(entry_format="raw", digest_type=digest, **quorums)  # type: ignore[arg-type]
        properties.check(str)
        created = properties if create else None
        return cls._open(client, name, created, password=password, take_over=take_over, inline_max=inline_max, on_end=on_end)

    @classmethod
    def _open(
        cls,
        client: LogClient,
        name: str,
        create: LogProperties | None,
        *,
        password: bytes,
        take_over: bool,
        inline_max: int = INLINE_BYTES,
        on_end: Callable[[BkError], object] | None = None,
        marks: Mapping[str, Any] = EMPTY,
    ) -> Self:
        """Do what ``open`` does. ``marks``: what else the list of its log says of a store that is made."""
        log_name = store_log(name)
        must_not_block(f"opening file store {name!r}")
        if payload_bytes_max(limits_of(client)) < RECORD_MAX:
            raise InvalidArgumentError(f"limits.frame_bytes_max must have room for a record of {RECORD_MAX} bytes of a file store")
        options: dict[str, Any] = {"password": password, "take_over": take_over, "roll_max_bytes": ROLL_BYTES, "marks": marks}
        config = getattr(client, "config", None)
        timeout_s = config.operation_timeout_s if config is not None else DEFAULT_TIMEOUT_S
        opened = open_log(client, name, log_name, create=create, timeout_s=timeout_s, **options)
        try:
            make = partial(cls, client, name, opened, password=password, inline_max=inline_max, on_end=on_end)
            store = made_aside(make, lambda made: end_threads(made._own, made._worker, made._data.pool, made._watches))
        except BaseException:
            leave(opened.writer)
            raise
        try:
            store._serve(opened.ledgers, opened.listed.has_put_aside)
            store._opened()
        except BaseException:
            store._leave_unopened()
            raise
        return store

    def _serve(self, ledgers: list[int], trim_left: bool) -> None:
        call, segment = Call(), self._writer.position.seq

        def begin() -> None:
            self._step(lambda: self._machine.serve(ledgers, segment, trim_left=trim_left), call)
            if not call.future.done():
                self._step(lambda: self._machine.barrier(call), call)
                self._worker.submit(self._watch_log)
                self._worker.submit(partial(self._recover_left, [one for one in ledgers if one in self._machine.tree.ledgers]))
                self._worker.submit(self._clean_log)

        begun = time.monotonic()
        self._own.submit(begin)
        try:
            wait(call.future, self._timeout_s, f"opening file store {self.name!r}")
        except OperationTimeoutError as error:
            raise self._explained(error, begun) from self._writer.problem

    def __repr__(self) -> str:
        return f"<FileStore {self.name!r} {self._machine.state.name}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
            return
        with suppress(BkError):  # the error on its way out is the one to see
            self.close()

    # --- reading ----------------------------------------------------------------------------------------------------------

    @checked()
    @holds_lock
    def status(self, path: str) -> FileStatus:
        """Return the status of the file or directory at ``path``.

        Raises NoSuchPathError, and InvalidPathError.
        """
        self._home.check("file store")  # before the lock, which may have been taken when this process was forked
        with self._lock:
            self._check("nothing was read")
            found: FileStatus = self._machine.tree.status(path)
            return found

    @checked()
    def exists(self, path: str) -> bool:
        """Return True if there is a file or directory at ``path``."""
        try:
            self.status(path)
        except NoSuchPathError:
            return False
        return True

    @checked()
    @holds_lock
    def listing(self, path: str) -> list[FileStatus]:
        """Return the statuses of what the directory ``path`` holds, sorted by name; of a file, its own alone.

        Raises NoSuchPathError.
        """
        self._home.check("file store")  # before the lock, which may have been taken when this process was forked
        with self._lock:
            self._check("nothing was read")
            found: list[FileStatus] = self._machine.tree.listing(path)
            return found

    @checked()
    @holds_lock
    def content(self, path: str) -> Content:
        """Return the content of the file ``path``: its inline bytes, or the extents that hold them.

        Raises NoSuchPathError, and PathIsDirectoryError.
        """
        self._home.check("file store")  # before the lock, which may have been taken when this process was forked
        with self._lock:
            self._check("nothing was read")
            found: Content = self._machine.tree.content(path)
            return found

    @checked(offset=COUNT, length=COUNT)
    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return at most ``length`` bytes of the file ``path`` from ``offset`` on; without ``length`` all of them. All bytes come from one
        version of the file.

        Raises NoSuchPathError; PathIsDirectoryError; FileDataLostError if the ledger that holds them is gone.
        """
        return b"".join(
            present_chunks(partial(self.content, path), lambda content: [b"".join(self._reader.chunks(content, offset, length))])
        )

    @checked(offset=COUNT, length=COUNT)
    def read_content(self, content: Content, offset: int = 0, length: int | None = None) -> bytes:
        """Return at most ``length`` bytes of ``content`` from ``offset`` on; without ``length`` all of them. The content was staged, or is
        that of a file.

        Raises FileDataLostError if the ledger that holds them is gone.
        """
        self._check("nothing was read")
        return b"".join(self._reader.chunks(content, offset, length))

    @checked(offset=COUNT, length=COUNT)
    def chunks(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Yield at most ``length`` bytes of the file ``path`` from ``offset`` on, in parts of at most 1 MiB.

        Raises NoSuchPathError; PathIsDirectoryError; FileDataLostError, also in the middle if the file is replaced or deleted meanwhile.
        """
        return present_chunks(partial(self.content, path), lambda content: self._reader.chunks(content, offset, length))

    # --- changing ---------------------------------------------------------------------------------------------------------

    @checked(data=_DATA)
    def stage(self, data: Bytes | Iterable[Bytes]) -> Staged:
        """Write ``data`` durably without making a file, and return what ``put`` makes a file of. Data of at most ``inline_max`` bytes is
        only kept in memory; the put writes it.

        ``data`` is bytes, or an iterable of their parts. Everything else goes on meanwhile, however slow it is. A part that the bookies do
        not take is written again to another data ledger.

        Raises OperationTimeoutError if that does not succeed within the client's ``operation_timeout_s``.
        """
        return self._stage(data, None)

    def _stage(self, data: Bytes | Iterable[Bytes], until_s: float | None) -> Staged:
        must_not_block("staging bytes of a file")
        begun = time.monotonic()
        self._check("nothing was written")
        try:
            content, lease = self._data.stage(data, self._inline_max, until_s)
            self._counts.file_bytes.value += content.size
        except ClientClosedError:
            self._check("nothing was put")
            raise
        except (OperationTimeoutError, NotEnoughBookiesError) as error:
            raise error.retold(f"{error.args[0]}{self._unanswered(begun)}").nothing_done() from error.__cause__
        if content.extents:
            self._look_for_leases()
        return Staged(self, content, lease)

    @checked(data=_DATA, timeout_s=SECONDS)
    def put(self, path: str, data: Data, *, overwrite: bool = True, parents: bool = True, timeout_s: float | None = None) -> FileStatus:
        """Make a file at ``path`` of ``data`` in one atomic change, and return its status.

        ``data`` is bytes, an iterable of their parts, or what ``stage`` returned, which is used up by success and stays as it was if the
        put is refused. With ``overwrite`` the file replaces the one of this path; with ``parents`` the missing directories above it are
        made. ``timeout_s`` (seconds) bounds staging and change together, but not the time in which ``data`` makes its next part; None
        bounds each part and the change.

        Raises PathExistsError; PathIsDirectoryError; PathNotDirectoryError; NoSuchPathError without ``parents``; InvalidPathError;
        InvalidArgumentError for staged content of another store, or that was used up; and what ``stage`` raises.
        """
        path = normal(path)
        if not isinstance(data, Staged):
            until_s = None if timeout_s is None else time.monotonic() + timeout_s
            with self._stage(data, until_s) as staged:
                left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
                return self._put(path, staged.content, overwrite, parents, left_s)
        if data._store is not self or data._lease is None:
            told = f"what is to be put at {path!r} was put or released already, or is of another file store"
            raise InvalidArgumentError(told, path=path)
        done = self._put(path, data.content, overwrite, parents, timeout_s)
        data.release()
        return done

    def _put(self, path: str, content: Content, overwrite: bool, parents: bool, timeout_s: float | None) -> FileStatus:
        machine = self._machine
        self._data.check_there(content)

        def act(token: Asked) -> list[FileEffect]:
            return machine.put(token, path, content, overwrite, parents, now_ms())

        found: FileStatus = self._change(f"putting file {path!r}", act, timeout_s, len(content.inline), path=path)
        return found

    @checked(timeout_s=SECONDS)
    def mkdirs(self, path: str, *, timeout_s: float | None = None) -> FileStatus:
        """Make the directory ``path`` and those above it, and return its status. One that is there is left as it is. ``timeout_s``
        (seconds) bounds the change; None is the client's ``operation_timeout_s``.

        Raises PathExistsError, and PathNotDirectoryError for a file.
        """
        found: FileStatus = self._change(
            f"making directory {path!r}", lambda token: self._machine.mkdirs(token, path, now_ms()), timeout_s, path=path
        )
        return found

    @checked(timeout_s=SECONDS)
    def rename(self, src: str, dst: str, *, overwrite: bool = False, timeout_s: float | None = None) -> FileStatus:
        """Give the file ``src``, or a directory with all in it, the path ``dst``, in one atomic change.

        The directory above ``dst`` must be there. ``overwrite`` replaces a file by a file, and an empty directory by a directory.
        ``timeout_s`` (seconds) bounds the change; None is the client's ``operation_timeout_s``.

        Raises NoSuchPathError; PathExistsError; DirectoryNotEmptyError; InvalidPathError; PathNotDirectoryError and PathIsDirectoryError
        for kinds that do not fit; InvalidArgumentError for the root, and for a directory that would come to lie in itself.
        """
        found: FileStatus = self._change(
            f"renaming {src!r} to {dst!r}",
            lambda token: self._machine.rename(token, src, dst, overwrite, now_ms()),
            timeout_s,
            path=src,
            to=dst,
        )
        return found

    @checked(timeout_s=SECONDS)
    def delete(self, path: str, *, recursive: bool = False, timeout_s: float | None = None) -> bool:
        """Delete the file or directory ``path``. Return False if there is nothing of this path.

        ``recursive`` deletes all that is in a directory, too, at once. ``timeout_s`` (seconds) bounds the change; None is the client's
        ``operation_timeout_s``.

        Raises DirectoryNotEmptyError unless ``recursive``.
        """
        return bool(
            self._change(f"deleting {path!r}", lambda token: self._machine.delete(token, path, recursive, now_ms()), timeout_s, path=path)
        )

    @checked(timeout_s=SECONDS)
    def replace_all(self, src: str, *, timeout_s: float | None = None) -> FileStatus:
        """Put what lies in the directory ``src`` in place of all files of the store, in one atomic change, and return the status of the
        root.

        What lay in ``src`` lies in the root then, and all else is gone, ``src`` too. Programs that do not know this change refuse a store
        whose log has it. ``timeout_s`` (seconds) bounds the change; None is the client's ``operation_timeout_s``.

        Raises NoSuchPathError; PathNotDirectoryError; InvalidPathError; InvalidArgumentError for the root.
        """
        found: FileStatus = self._change(
            f"replacing all files by those in {src!r}", lambda token: self._machine.replace_all(token, src, now_ms()), timeout_s, path=src
        )
        return found

    @checked(timeout_s=SECONDS)
    def flush(self, *, timeout_s: float | None = None) -> None:
        """Wait until all earlier changes are acknowledged, at most ``timeout_s`` seconds; None is the client's ``operation_timeout_s``.

        Nothing is appended: without earlier changes that are pending this does not find out whether the store was taken over.

        Raises OperationTimeoutError.
        """
        self._change(f"flushing file store {self.name!r}", self._machine.barrier, timeout_s)
