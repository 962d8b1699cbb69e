"""A file store for Spark's checkpoints: temporary files stay out of the log, and a delete before a replacement is delayed.

Spark writes every file of a checkpoint beside its name, as ``.<name>.<uuid>.tmp`` (with ``.TID<task>`` behind the uuid in a task), and then
renames it. To replace a file, Hadoop deletes it first. Written down as they come those are three or four changes of the log, a file that is
gone if the driver dies in between, and temporary files that nobody removes after a crash. Here it is one:

* What is created under such a name is staged: small contents in memory, larger ones durable in a data ledger, neither in the log. All
  requests see the file.
* A delete of a file that has a whole temporary sibling is kept back: the file looks gone, and stays in the log.
* The rename is one ``put``, which replaces what was kept back in the same change.

If the rename does not follow, the delete is made: when the temporary file is deleted, when another operation is about the same name, when
the store is closed in good order, and after ``KEPT_BACK_S``. It is a delete of the file that was there when it was asked for, and of no
later one. If the driver dies first, the file is there with what it had.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from typing import Any, Protocol

from bk_core.client.files.reading import present_chunks
from bk_core.errors import (
    BkError,
    DirectoryNotEmptyError,
    NoSuchPathError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotDirectoryError,
)
from bk_core.protocol.files.content import Content, FileStatus
from bk_core.protocol.files.paths import ROOT, is_below, join, normal, parent
from bk_spark.checkpoint.claims import Claims, meet
from bk_spark.checkpoint.listings import Listings
from bk_spark.checkpoint.temporaries import TEMPORARY_S, Staged, Temporaries, Temporary, is_temporary_name, target_of

KEPT_BACK_S = 10.0
PUBLISHED_MAX = 1024
CHUNK = 1 << 20
CHANGE_PATIENCES = 2  # what a change may take: as long as patience for its turn, and as long for the store
REQUEST_PATIENCES = 9  # that, one for room in memory, and two each for three runs of an upload that the client has sent already
TEND_CALL_S = 1.0


class Store(Protocol):
    """The part that this needs of ``bk_core.client.files.store.FileStore``."""

    @property
    def error(self) -> BkError | None: ...
    @property
    def is_open(self) -> bool: ...
    def status(self, path: str) -> FileStatus: ...
    def listing(self, path: str) -> list[FileStatus]: ...
    def read_content(self, content: Content, offset: int = 0, length: int | None = None) -> bytes: ...
    def content(self, path: str) -> Content: ...
    def stage(self, data: bytes | Iterable[bytes]) -> Any: ...
    def put(self, path: str, data: Any, *, overwrite: bool, parents: bool, timeout_s: float | None) -> FileStatus: ...
    def mkdirs(self, path: str, *, timeout_s: float | None) -> FileStatus: ...
    def rename(self, src: str, dst: str, *, overwrite: bool, timeout_s: float | None) -> FileStatus: ...
    def delete(self, path: str, *, recursive: bool, timeout_s: float | None) -> bool: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _KeptBack:
    """A delete that is not made yet, of the file that had this ``file_id``."""

    file_id: int
    until_s: float


class CheckpointFiles:
    """One store, for all requests at once. Each change is done or refused within ``CHANGE_PATIENCES`` times ``patience_s``.

    No lock is held over a call of the store. A change claims the names that it is about, makes the deletes that were kept back there, and
    keeps its claims while the store works. Two changes wait for each other if one's name is the other's, or lies above or below it; they
    have their turn in the order in which they came.
    """

    def __init__(self, store: Store, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.store, self.patience_s, self._clock = store, patience_s, clock
        self._lock = threading.Lock()
        self._closing = False
        self._all_claims = Claims(clock)
        self._temporary = Temporaries()
        self._listings = Listings(clock)
        self._kept_back: dict[str, _KeptBack] = {}
        self._published: OrderedDict[str, str] = OrderedDict()  # temporary file -> where it went, of the last renames
        self._numbers = count(1)

    # --- looking ------------------------------------------------------------------------------------------------------------

    def status(self, path: str) -> FileStatus:
        """Raises NoSuchPathError."""
        with self._lock:
            temporary, kept = self._temporary.get(path), self._kept_back.get(path)
        if temporary is not None:
            return temporary.status
        status = self.store.status(path)
        if kept is not None and kept.file_id == status.file_id:
            raise _no_such(path)
        return status

    def listing(self, path: str) -> list[FileStatus]:
        """The entries of a directory, by name; of a file its own status. NoSuchPathError."""
        with self._lock:  # before the store is asked: a file that is renamed meanwhile is there twice rather than not at all
            temporary, within = self._temporary.get(path), self._temporary.within(path)
            gone = {(name, kept.file_id) for name, kept in self._kept_back.items()}
        if temporary is not None:
            return [temporary.status]
        listed = self.store.listing(path)
        found = {status.path: status for status in listed if (status.path, status.file_id) not in gone}
        if path not in found and any(status.path == path for status in listed):
            raise _no_such(path)
        found.update((status.path, status) for status in within)
        return sorted(found.values(), key=lambda status: status.name)

    def listing_part(self, path: str, after: str, most: int) -> tuple[list[FileStatus], int]:
        """Return at most ``most`` of them behind the name ``after``, and how many come behind these. NoSuchPathError."""
        if after:
            self.status(path)  # what was deleted, or was taken over, is told in the middle too
        return self._listings.part(path, after, most, lambda: self.listing(path))

    def open(self, path: str, offset: int, length: int | None) -> tuple[int, Iterator[bytes]]:
        """The number of bytes that come, and the bytes. NoSuchPathError, PathIsDirectoryError; EOFError behind the end."""
        with self._lock:
            temporary = self._temporary.get(path)
        status = temporary.status if temporary is not None else self.status(path)
        if status.is_directory:
            raise PathIsDirectoryError(f"{path} is a directory", path=path)
        wanted = 0

        def chunks_of(content: Content) -> Iterator[bytes]:
            nonlocal wanted
            if offset > content.size:
                raise EOFError(f"{path} has {content.size} bytes, and {offset} lies behind them")
            wanted = content.size - offset if length is None else min(length, content.size - offset)
            return self._chunks(content, offset, wanted)

        chunks = present_chunks(lambda: temporary.staged.content if temporary is not None else self.store.content(path), chunks_of)
        first = list(islice(chunks, 1))  # from here on it is certain which content it is
        return wanted, chain(first, chunks)

    def summary(self, path: str) -> tuple[int, int, int]:
        """Bytes, files and directories at and below a path."""
        status = self.status(path)
        if not status.is_directory:
            return status.size, 1, 0
        length, files, directories = 0, 0, 1
        waiting = [path]
        while waiting:
            with suppress(NoSuchPathError):  # deleted meanwhile
                for found in self.listing(waiting.pop()):
                    length, files = length + found.size, files + (not found.is_directory)
                    if found.is_directory:
                        directories += 1
                        waiting.append(found.path)
        return length, files, directories

    def _chunks(self, content: Content, offset: int, length: int) -> Iterator[bytes]:
        """All from one content, so that as many bytes come as were promised, of one version of the file."""
        for at in range(offset, offset + length, CHUNK):
            yield self.store.read_content(content, at, min(CHUNK, offset + length - at))

    # --- changing -----------------------------------------------------------------------------------------------------------

    def check_create(self, path: str, overwrite: bool, parents: bool) -> None:
        """Raises what ``create`` would raise, as far as it can be told before the contents come."""
        self._refuse_files_above(path)
        try:
            status = self.status(path)
        except NoSuchPathError:
            if not parents and not self.status(parent(path)).is_directory:
                raise PathNotDirectoryError(f"{parent(path)} is a file, so nothing can be made in it", path=path) from None
            return
        if status.is_directory:
            raise PathIsDirectoryError(f"{path} is a directory, so no file can be made there", path=path)
        if not overwrite:
            raise PathExistsError(f"{path} is there already, and overwriting it was not asked for", path=path)

    def create(self, path: str, pieces: Iterable[bytes], overwrite: bool, parents: bool) -> None:
        """A file of these bytes. If they do not come to their end, there is none."""
        self.check_create(path, overwrite, parents)
        if is_temporary_name(path):
            self._create_temporary(path, pieces, parents)
            return
        staged: Staged = self.store.stage(pieces)  # it may take long, so nothing is claimed yet
        try:
            with self._touching(path) as deadline:
                self._refuse_files_above(path)
                self.store.put(path, staged, overwrite=overwrite, parents=parents, timeout_s=self._left(deadline))
        finally:
            staged.release()

    def mkdirs(self, path: str) -> None:
        """The directory with all above it; one that is there is fine."""
        with self._touching(path) as deadline:
            self._refuse_files_above(path)
            with self._lock:
                taken = path in self._temporary
            if taken:
                raise PathExistsError(f"{path} is a file", path=path)
            self.store.mkdirs(path, timeout_s=self._left(deadline))

    def rename(self, src: str, dst: str, overwrite: bool) -> None:
        """Hadoop's strict rename: ``dst`` is the whole new name. With it a temporary file becomes one of the store."""
        if src == dst:
            raise PathExistsError(f"{src} cannot be renamed to itself", path=src)
        with self._lock:
            temporary = src in self._temporary or src in self._published
        if temporary:
            self._publish(src, dst, overwrite)
            return
        with self._touching(src, dst) as deadline:
            self._refuse_files_above(dst)
            self._refuse_temporary(src, dst, overwrite)
            self.store.rename(src, dst, overwrite=overwrite, timeout_s=self._left(deadline))
            self._release_below(src)  # their writers find the directory gone, as they would anywhere
            self._release(dst)

    def rename_if_possible(self, src: str, dst: str) -> bool:
        """Hadoop's old rename: into ``dst`` if that is a directory; False where it is not possible."""
        try:
            source = self.status(src)
            with suppress(NoSuchPathError):
                if self.status(dst).is_directory and src != dst:
                    dst = normal(join(dst, source.name))
            if src == dst:
                return not source.is_directory
            if source.is_directory and is_below(dst, src):
                return False
            self.rename(src, dst, overwrite=False)
        except (NoSuchPathError, PathExistsError, PathIsDirectoryError, PathNotDirectoryError, DirectoryNotEmptyError):
            return self._was_published(src, dst)
        return True

    def delete(self, path: str, recursive: bool) -> bool:
        """False if there was nothing. Of the root what lies in it is deleted, and it stays."""
        if path == ROOT:
            return self._clear(recursive)
        if self._keep_back(path, recursive):
            return True
        target = target_of(path)
        with self._claims(path, target) as deadline:
            with self._lock:
                temporary = self._temporary.pop(path)
            if temporary is not None:
                temporary.staged.release()
                if not self._has_successor(target):
                    self._carry_out(target, self._left(deadline))  # the file that it was to replace
                return True
            gone = self._is_hidden(path)
            self._settle(path, deadline)
            if gone:
                return False
            if not recursive and self._temporaries_below(path):
                raise DirectoryNotEmptyError(f"{path} has something in it", path=path)
            done = self.store.delete(path, recursive=recursive, timeout_s=self._left(deadline))
            self._release_below(path)
            return done

    def tend(self) -> None:
        """Make the deletes that no rename followed, and drop temporary files that nobody renamed. Called every second or so.

        A name that is claimed is left for the next call. After a delete that the store fails, the others wait for the next call too.
        """
        now = self._clock()
        self._listings.tend()
        with self._lock:
            due = [path for path, kept in self._kept_back.items() if kept.until_s <= now]
            old = self._temporary.due(now)
        for path in old:
            with self._all_claims.if_free(path) as is_free:
                if is_free:
                    self._release(path)
        for path in due:
            try:
                with self._all_claims.if_free(path) as is_free:
                    if is_free:
                        self._carry_out(path, min(TEND_CALL_S, self.patience_s))
            except BkError:
                with self._lock:
                    if path in self._kept_back:  # not at once: what has no answer yet may still be done
                        self._kept_back[path] = replace(self._kept_back[path], until_s=now + KEPT_BACK_S)
                return

    @property
    def close_s(self) -> float:
        """The longest that ``close`` takes: as long as a change for all deletes that were kept back, and patience for the store."""
        return (CHANGE_PATIENCES + 1) * self.patience_s

    def close(self) -> None:
        """Make the deletes that were kept back, and close the store. From here on none is kept back."""
        with self._lock:
            self._closing = True
        until = self._clock() + CHANGE_PATIENCES * self.patience_s
        while self.store.is_open:
            with self._lock:
                path = next(iter(self._kept_back), None)
            if path is None:
                break
            with suppress(BkError), self._claims(path, wait_s=max(0.0, min(self.patience_s, until - self._clock()))) as deadline:
                self._carry_out(path, self._left(min(deadline, until)))
            with self._lock:
                self._kept_back.pop(path, None)  # if that failed, the file keeps what it had
        self._release_below(ROOT)
        self.store.close()

    # --- temporary files ----------------------------------------------------------------------------------------------------

    def _create_temporary(self, path: str, pieces: Iterable[bytes], parents: bool) -> None:
        staged: Staged = self.store.stage(pieces)  # it may take long, so nothing is claimed yet
        now_ms = int(time.time() * 1000)
        status = FileStatus(path, False, staged.size, now_ms, -next(self._numbers))
        try:
            with self._touching(path) as deadline:  # so that nobody deletes its directory meanwhile, who would not see it
                self._refuse_files_above(path)
                self._need_directory(parent(path), parents, deadline)
                with self._lock:  # over the clock too, so that they are put in the order of their times
                    before = self._temporary.put(path, Temporary(status, staged, target_of(path), self._clock() + TEMPORARY_S))
        except BaseException:
            staged.release()
            raise
        if before is not None:
            before.staged.release()

    def _need_directory(self, path: str, make: bool, deadline: float) -> None:
        """Raise NoSuchPathError where it is not there and not to be made; PathNotDirectoryError for a file."""
        try:
            there = self.store.status(path)
        except NoSuchPathError:
            if not make:
                raise
            self.store.mkdirs(path, timeout_s=self._left(deadline))
        else:
            if not there.is_directory:
                raise PathNotDirectoryError(f"{path} is a file, so nothing can be in it", path=path)

    def _publish(self, src: str, dst: str, overwrite: bool) -> None:
        """Make a temporary file one of the store, in one change. A repeated rename, whose answer was lost, is told as the first one was."""
        with self._claims(src, dst) as deadline:
            with self._lock:
                temporary, other = self._temporary.get(src), self._temporary.get(dst)
            if temporary is None:
                if self._was_published(src, dst):
                    return
                raise _no_such(src)
            if other is not None and not overwrite:
                raise PathExistsError(f"{dst} is there already, and overwriting it was not asked for", path=dst)
            self._refuse_files_above(dst)
            replaces = overwrite or self._is_hidden(dst)
            try:
                self.store.put(dst, temporary.staged, overwrite=replaces, parents=False, timeout_s=self._left(deadline))
            except BkError as error:
                if error.outcome_unknown:  # the new contents may be there: nothing is deleted for the sake of the old ones
                    with self._lock:
                        self._kept_back.pop(dst, None)
                raise
            with self._lock:
                self._temporary.pop(src)
                self._kept_back.pop(dst, None)
                self._temporary.pop(dst)
                self._published[src] = dst
                if len(self._published) > PUBLISHED_MAX:
                    self._published.popitem(last=False)
            if other is not None:
                other.staged.release()

    def _was_published(self, src: str, dst: str) -> bool:
        with self._lock:
            return self._published.get(src) == dst and src not in self._temporary

    def _temporaries_below(self, path: str) -> list[str]:
        with self._lock:
            return self._temporary.below(path)

    def _release_below(self, path: str) -> None:
        for name in self._temporaries_below(path):
            self._release(name)

    def _release(self, path: str) -> None:
        """The caller has claimed it, or a path above it."""
        with self._lock:
            temporary = self._temporary.pop(path)
        if temporary is not None:
            temporary.staged.release()

    # --- deletes that are kept back -----------------------------------------------------------------------------------------

    def _keep_back(self, path: str, recursive: bool) -> bool:
        """True if the delete of this file waits for the rename of its temporary sibling. That asks for one without ``recursive``.

        A repeated delete is told the same while the sibling waits, and the file stays: the answer of the first may have been lost.
        """
        if recursive or not self._has_successor(path):
            return False
        with suppress(NoSuchPathError), self._claims(path):
            status = self.store.status(path)
            if not status.is_directory:
                with self._lock:
                    if self._closing or path in self._temporary:
                        return False
                    self._kept_back[path] = _KeptBack(status.file_id, self._clock() + KEPT_BACK_S)
                return True
        return False

    def _is_hidden(self, path: str) -> bool:
        """True if the file that is there was deleted, and that delete is kept back."""
        with self._lock:
            kept = self._kept_back.get(path)
        if kept is None:
            return False
        try:
            return self.store.status(path).file_id == kept.file_id
        except NoSuchPathError:
            return False

    def _has_successor(self, path: str) -> bool:
        with self._lock:
            return self._temporary.awaits(path)

    def _settle(self, path: str, deadline: float) -> None:
        """Make the deletes that were kept back at, above and below a path, which the caller has claimed to do something else with it."""
        with self._lock:
            met = [name for name in self._kept_back if meet(name, path)]
        for name in met:
            self._carry_out(name, self._left(deadline))

    def _carry_out(self, path: str, timeout_s: float) -> None:
        """Delete the file whose delete was kept back; the caller has claimed it. While the answer is open the file looks gone."""
        if self._is_hidden(path):
            try:
                self.store.delete(path, recursive=False, timeout_s=timeout_s)
            except BkError:
                if self.store.is_open:
                    raise
        with self._lock:
            self._kept_back.pop(path, None)

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def _clear(self, recursive: bool) -> bool:
        """All at once: a crash between several changes would leave some of Spark's files without the others."""
        with self._touching(ROOT) as deadline:
            if not recursive and self.listing(ROOT):
                raise DirectoryNotEmptyError("the root has something in it", path=ROOT)
            self.store.delete(ROOT, recursive=True, timeout_s=self._left(deadline))
            self._release_below(ROOT)
        return True

    def _refuse_temporary(self, src: str, dst: str, overwrite: bool) -> None:
        """The store refuses what FS-19 forbids for its own files; a temporary one at ``dst`` it does not know."""
        with self._lock:
            taken = dst in self._temporary
        if not taken:
            return
        if not overwrite:
            raise PathExistsError(f"{dst} is there already, and overwriting it was not asked for", path=dst)
        if self.store.status(src).is_directory:
            raise PathNotDirectoryError(f"{dst} is a file, so the directory {src} cannot take its place", path=dst)

    def _refuse_files_above(self, path: str) -> None:
        """The store says so itself of its files; temporary ones it does not know."""
        with self._lock:
            above = self._temporary.above(path)
        if above is not None:
            raise PathNotDirectoryError(f"{above} is a file, so nothing can be in it", path=path)

    @contextmanager
    def _touching(self, *paths: str) -> Iterator[float]:
        """Claims with the deletes made that were kept back there: for a change that is about these names."""
        with self._claims(*paths) as deadline:
            for path in paths:
                self._settle(path, deadline)
            yield deadline

    @contextmanager
    def _claims(self, *paths: str, wait_s: float | None = None) -> Iterator[float]:
        """Keep everybody else from changing anything at, above or below these names while a ``with`` block runs, and yield the time by
        which the change must be done.

        Raises OperationTimeoutError if claims that came before keep one of the names for longer than ``wait_s`` seconds, by default
        ``patience_s``.
        """
        wait_s = self.patience_s if wait_s is None else wait_s
        with self._all_claims.of(*paths, wait_s=wait_s, within_s=CHANGE_PATIENCES * self.patience_s) as deadline:
            yield deadline

    def _left(self, deadline: float) -> float:
        """The seconds that a call of the store may take."""
        return max(0.01, min(self.patience_s, deadline - self._clock()))


def _no_such(path: str) -> NoSuchPathError:
    return NoSuchPathError(f"there is no {path}", path=path)
