"""Reading a file store beside its owner. A view fences nobody and writes nothing: it follows the store's log as any reader does."""

from __future__ import annotations

import time
from _thread import RLock
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Self, TypeVar

from bk_core.arguments import COUNT, SECONDS, SECRET, checked
from bk_core.client.files.names import store_log, unreadable, wrong_password
from bk_core.client.files.reading import ContentReader, present_chunks
from bk_core.client.here import StaysHere
from bk_core.client.log.list_store import LogClient, read_ledger_list
from bk_core.client.log.lists import list_logs
from bk_core.client.log.reader import LogReader
from bk_core.errors import (
    BlockingCallError,
    FileDataLostError,
    FileStoreClosedError,
    FileStoreError,
    FileStoreFormatError,
    LogDataLossError,
    NoSuchFileStoreError,
    NoSuchLogError,
    WrongPasswordError,
)
from bk_core.near import meant
from bk_core.protocol.files.content import Content, FileStatus
from bk_core.protocol.files.replay import FileReplay
from bk_core.protocol.files.tree import FileTree
from bk_core.protocol.log.names import FILES_PREFIX, store_of
from bk_core.protocol.log.position import Position
from bk_core.threads import Home, cannot_wait

TRIES = 5  # so often what an owner does while we read may make us begin again
BASE_S = 10.0  # the longest wait for a whole snapshot of which too little is confirmed; the operation timeout bounds it, too
T = TypeVar("T")


class FileStoreView(StaysHere):
    """The files of a store as its log has them, up to the last ``refresh``. Its owner, if there is one, is not disturbed.

    An acknowledged change shows here once bookies report it as confirmed: with the next change, or after the explicit LAC (LC-5). If the
    owner died, its last changes may show only after another owner opens the store.

    ``FileStoreView.open`` makes one; the class itself makes one that is not open. Several threads may use it. ``close`` it, or use it
    with ``with``. A handler of a signal may use it, too: where it has interrupted a call of the same view that takes in what has
    happened, a call raises BlockingCallError and does nothing.
    """

    def __init__(self, client: LogClient, name: str, password: bytes) -> None:
        self.name = name
        self.log_name = store_log(name)
        self._client = client
        self._password = password
        config = getattr(client, "config", None)
        self._timeout_s: float = config.operation_timeout_s if config is not None else BASE_S
        self._home = Home()
        self._lock = RLock()  # around the files that are known; it is held for no wait
        self._following = RLock()  # around the reading of the log, and taken before the other one
        self._is_following = False  # seen as True by none but a handler of a signal: other threads wait for the lock
        self._contents = ContentReader(client, self.log_name, password)
        self._replay: _Replay | None = None
        self._is_broken = False  # the replay is not gone on with: another one begins
        self._closed = False

    @classmethod
    @checked(password=SECRET)
    def open(cls, client: LogClient, name: str, *, password: bytes = b"") -> Self:
        """Open a view of the store called ``name``, up to what its log has now, and return it.

        ``client`` is a ``BookKeeper``. ``password`` is that of the store.

        Raises NoSuchFileStoreError; WrongPasswordError; FileStoreFormatError for a log that this version does not understand.
        """
        view = cls(client, name, password)
        try:
            view.refresh()
        except WrongPasswordError as error:
            view.close()
            raise wrong_password(error, name, password).nothing_done() from error
        except BaseException:
            view.close()
            raise
        return view

    # --- what there is ---------------------------------------------------------------------------------------------------

    @checked()
    def status(self, path: str) -> FileStatus:
        """Return the status of the file or directory at ``path``.

        Raises NoSuchPathError.
        """
        return self._asked(lambda tree: tree.status(path))

    @checked()
    def exists(self, path: str) -> bool:
        """Return True if there is a file or directory at ``path``."""
        return self._asked(lambda tree: tree.exists(path))

    @checked()
    def listing(self, path: str) -> list[FileStatus]:
        """Return the statuses of what the directory ``path`` holds, sorted by name; of a file, its own alone.

        Raises NoSuchPathError.
        """
        return self._asked(lambda tree: tree.listing(path))

    @checked()
    def content(self, path: str) -> Content:
        """Return the content of the file ``path``: its inline bytes, or the extents that hold them.

        Raises NoSuchPathError, and PathIsDirectoryError.
        """
        return self._asked(lambda tree: tree.content(path))

    @checked()
    def everything(self, path: str = "/") -> list[tuple[FileStatus, Content | None]]:
        """Return ``path`` and all below it with their contents, all of one moment. A directory comes before what is in it, and its content
        is None."""
        return self._asked(lambda tree: [(one, None if one.is_directory else tree.content(one.path)) for one in tree.walk(path)])

    def ledgers(self) -> frozenset[int] | None:
        """Return the data ledgers that files refer to; None where the log has no snapshot of its files, so that nobody can tell."""
        with self._here():
            files = self._caught_up.files
            return frozenset(files.tree.ledgers) if files.complete else None

    def _asked(self, question: Callable[[FileTree], T]) -> T:
        replay = self._replay
        if replay is not None and replay.is_torn:
            self.refresh()
        with self._here():
            return question(self._caught_up.files.tree)

    def _here(self) -> AbstractContextManager[object]:
        """The lock. ForkedClientError in a forked child, where nobody may be left to give it back."""
        self._home.check("view of a file store")
        return self._lock

    @property
    def _caught_up(self) -> _Replay:
        self._check_open()
        if self._replay is None:
            how = "FileStoreView.open(client, name) returns one that is"
            raise FileStoreClosedError(f"this view of file store {self.name!r} was not opened: {how}", store=self.name)
        if self._replay.is_taking:  # on this thread, beneath a handler of a signal: others wait for the lock
            self._check_not_following()
        return self._replay

    def _check_open(self) -> None:
        if self._closed:
            raise FileStoreClosedError(f"this view of file store {self.name!r} is closed; open another one", store=self.name)

    # --- reading ---------------------------------------------------------------------------------------------------------

    @checked(offset=COUNT, length=COUNT)
    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return at most ``length`` bytes of the file ``path`` from ``offset`` on; without ``length`` all of them. All bytes come from one
        version of the file.

        Raises NoSuchPathError; PathIsDirectoryError; FileDataLostError if the owner has deleted the file since, and its bytes with it.
        """
        return b"".join(present_chunks(self._looker(path), lambda content: [self.read_content(content, offset, length)]))

    @checked(offset=COUNT, length=COUNT)
    def chunks(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Yield at most ``length`` bytes of the file ``path`` from ``offset`` on, in parts of at most 1 MiB.

        A file that is replaced or deleted before its first part was read is looked for again. One that is replaced later is read to its end
        as it was.

        Raises NoSuchPathError; PathIsDirectoryError; FileDataLostError if the bytes are gone in the middle.
        """
        return present_chunks(self._looker(path), lambda content: self._contents.chunks(content, offset, length))

    def _looker(self, path: str) -> Callable[[], Content]:
        """Return a function that gives the content of a file that is known, and from its second call on the content that it has now."""
        until_s: list[float] = []  # all that are to be waited for together

        def look() -> Content:
            if until_s:
                self._refresh(until_s[0])
            else:
                until_s.append(self._deadline())
            return self.content(path)

        return look

    @checked(offset=COUNT, length=COUNT)
    def read_content(self, content: Content, offset: int = 0, length: int | None = None) -> bytes:
        """Return at most ``length`` bytes of ``content`` from ``offset`` on; without ``length`` all of them.

        Raises FileDataLostError where the owner has deleted the file since, and its bytes with it.
        """
        return b"".join(self._contents.chunks(content, offset, length))

    @checked()
    def content_chunks(self, content: Content) -> Iterator[bytes]:
        """Yield all bytes of ``content``, in parts of at most 1 MiB.

        Raises FileDataLostError as ``read_content`` does.
        """
        return self._contents.chunks(content)

    # --- following -------------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Take in what has happened since the last look, and return True if something has.

        Where the owner has trimmed its log meanwhile (it does that after a snapshot of all files), the view begins again at that snapshot,
        and shows the files as they were known before until all of it is there. After any error the view shows the files of one moment: the
        moment that it knew before, or a later one.

        Raises NoSuchFileStoreError if the store was deleted meanwhile, and FileStoreError if the snapshot does not come in 10 s, or in the
        client's ``operation_timeout_s`` if that is less.
        """
        return self._refresh(self._deadline())

    def _deadline(self) -> float:
        return time.monotonic() + min(BASE_S, self._timeout_s)

    def _refresh(self, deadline: float) -> bool:
        self._home.check("view of a file store")
        with self._following:
            self._check_not_following()
            try:
                self._is_following = True
                return self._followed(deadline)
            finally:
                self._is_following = False

    def _check_not_following(self) -> None:
        if self._is_following:
            what = f"this view of file store {self.name!r} takes in what has happened"
            raise BlockingCallError(f"{what}, and {cannot_wait('that')}", store=self.name)

    def _followed(self, deadline: float) -> bool:
        self._check_open()
        lost: LogDataLossError | None = None
        for _ in range(TRIES):
            try:
                return self._catch_up(self._replay if lost is None and not self._is_broken else None, deadline)
            except LogDataLossError as error:
                lost = error
            except NoSuchLogError:
                raise no_such_store(self._client, self.name) from None
            except FileStoreFormatError as error:
                raise unreadable(error, self.name) from error
        told = f"the log of file store {self.name!r} cannot be read to its end: {lost}"
        raise FileDataLostError(f"{told}; `bk log check {self.log_name}` says what is there", store=self.name) from lost

    def _catch_up(self, known: _Replay | None, deadline: float) -> bool:
        replay = known or _Replay(self._client, self.name, self.log_name, self._password)
        try:
            changed = replay.read(self._lock)
            while not replay.is_whole:
                if not replay.reader.wait(max(0.0, deadline - time.monotonic())):
                    told = f"file store {self.name!r} has no whole snapshot of its files that is confirmed, so nobody can tell which it has"
                    told = f"{told}; none came in {min(BASE_S, self._timeout_s):g} s"
                    how = f"where its owner died, open it (FileStore.open), or run `bk checkpoint gc {self.name}`"
                    raise FileStoreError(f"{told}; {how}", store=self.name)
                changed = replay.read(self._lock) or changed
        except BaseException:
            self._is_broken = True  # records may have been read and not taken
            if known is None:
                replay.reader.close()
            raise
        self._is_broken = False
        if replay is not self._replay:
            with self._lock:
                before, self._replay = self._replay, replay
            if before is not None:
                before.reader.close()
            return True
        return changed

    @checked(timeout_s=SECONDS)
    def wait(self, timeout_s: float) -> bool:
        """Wait until there is more to see, and return True; ``refresh`` then takes it in. Return False after ``timeout_s`` seconds.

        The wait is one of long polls and watches. Other calls of the view, also ``close``, do not wait for it.

        Raises NoSuchFileStoreError if the store was deleted, and BlockingCallError in a handler of a signal that has interrupted
        ``refresh``.
        """
        self._home.check("view of a file store")
        with self._following:
            self._check_not_following()
            reader = self._caught_up.reader.beside()
        try:
            return reader.wait(timeout_s)
        except LogDataLossError:  # it was cut off: there is more
            return True
        except NoSuchLogError:
            raise no_such_store(self._client, self.name) from None
        finally:
            reader.close()

    def close(self) -> None:
        """End the view. Closing again has no effect, nor has closing in a forked child.

        Raises BlockingCallError in a handler of a signal that has interrupted ``refresh``.
        """
        if not self._home.is_here:
            return
        with self._following, self._lock:
            self._check_not_following()
            self._closed = True
            replay, self._replay = self._replay, None
        if replay is not None:
            replay.reader.close()
        self._contents.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<FileStoreView {self.name!r}>"


class _Replay:
    """The records of the log from its first entry on, and the files that they amount to."""

    def __init__(self, client: LogClient, name: str, log: str, password: bytes) -> None:
        self.reader = LogReader(client, log, password=password)
        self.files = FileReplay(name)
        self._client = client
        self._records = 0
        self.is_taking = False  # under the lock
        self.is_torn = False  # an interrupt struck in the middle of that: these are the files of no moment

    @property
    def is_whole(self) -> bool:
        """False while no snapshot is whole and the log may have had files. FS-17: a log without a record that we can see is that of a new
        store only if it was never trimmed; it is looked at after it was read, so nothing was cut off before we read it either."""
        return self.files.complete or (not self._records and not self._is_trimmed)

    @property
    def _is_trimmed(self) -> bool:
        return read_ledger_list(self._client, self.reader.name).trimmed_seq > 0

    def read(self, lock: AbstractContextManager[object]) -> bool:
        """True if there was anything new. Under the lock the files change, and nothing is waited for."""
        before = self._records
        for run in self.reader.read():
            records = run.payloads()
            with lock:
                try:
                    self.is_taking = True
                    for index, record in enumerate(records):
                        self.files.take(record, Position(run.segment.seq, run.first_entry_id + index))
                        self._records += 1
                except Exception:
                    raise
                except BaseException:
                    self.is_torn = True
                    raise
                finally:
                    self.is_taking = False
        return self._records > before


def no_such_store(client: LogClient, name: str) -> NoSuchFileStoreError:
    """The error, with names that may have been meant."""
    stores = [store for log in list_logs(client) if (store := store_of(log)) is not None]
    near = meant(name, stores) or meant(name.removeprefix(FILES_PREFIX), stores)  # or its log's name was given
    return NoSuchFileStoreError(f"there is no file store {name!r}{f'; {near}' if near else ''}", store=name)
