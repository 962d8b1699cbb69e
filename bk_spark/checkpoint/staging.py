"""A file store as Spark's checkpoint sees it: temporary files stay out of the log, and a file that is about to be replaced only looks gone.

Spark writes every file of a checkpoint beside its name, as ``.<name>.<uuid>.tmp`` (with ``.TID<task>`` behind the uuid in a task), and then
renames it. To replace a file, Hadoop deletes it first. Written down as they come those are three or four changes of the log, a file that is
gone if the driver dies in between, and temporary files that nobody removes after a crash. Here it is one:

* What is created under such a name is staged: small contents in memory, larger ones durable in a data ledger, neither in the log. All
  requests see the file.
* A delete of a file that has a whole temporary sibling is kept back: the file looks gone, and stays in the log.
* The rename is one ``put``, which replaces what was kept back in the same change.

A delete that was kept back and is not followed by that rename is carried out: when the temporary file is deleted, when anything else
touches the name, when the store is closed in good order, and after ``KEPT_BACK_S``. If the driver dies first, the file is there with
what it had.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from bk_core.errors import (
    BkError,
    DirectoryNotEmptyError,
    FileStoreError,
    NoSuchPathError,
    OperationTimeoutError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotDirectoryError,
)
from bk_core.protocol.files.content import Content, FileStatus
from bk_core.protocol.files.paths import ROOT, is_below, join, normal, parent

KEPT_BACK_S = 10.0
TEMPORARY_S = 3600.0
TEMPORARIES_MAX = 10_000
TEMPORARY_BYTES_MAX = 256 << 20
PUBLISHED_MAX = 1024
CHUNK = 1 << 20
CLAIM_S = 60.0

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?:\.TID[0-9]{1,19})?\.tmp")


class Staged(Protocol):
    """Contents that are durable, or small enough to lie in memory, and belong to no file yet."""

    @property
    def content(self) -> Content: ...
    @property
    def size(self) -> int: ...
    def release(self) -> None: ...


class Store(Protocol):
    """The part that this needs of ``bk_core.client.files.store.FileStore``."""

    @property
    def error(self) -> BkError | None: ...
    @property
    def is_open(self) -> bool: ...
    def status(self, path: str) -> FileStatus: ...
    def listing(self, path: str) -> list[FileStatus]: ...
    def read_content(self, content: Content, offset: int = 0, length: int | None = None) -> bytes: ...
    def chunks(self, path: str, offset: int = 0, length: int | None = None) -> Iterator[bytes]: ...
    def stage(self, data: bytes | Iterable[bytes]) -> Any: ...
    def put(self, path: str, data: Any, *, overwrite: bool, parents: bool, timeout_s: float | None) -> FileStatus: ...
    def mkdirs(self, path: str, *, timeout_s: float | None) -> FileStatus: ...
    def rename(self, src: str, dst: str, *, overwrite: bool, timeout_s: float | None) -> FileStatus: ...
    def delete(self, path: str, *, recursive: bool, timeout_s: float | None) -> bool: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Temporary:
    status: FileStatus
    staged: Staged
    target: str
    until_s: float


class CheckpointFiles:
    """One store, for all requests at once. ``patience_s`` bounds each change; None: as long as the client waits.

    No lock is held over a call of the store. Those that belong together, such as a rename and the repetition of the same rename, wait for
    each other by claims on the names they are about.
    """

    def __init__(self, store: Store, name: str, patience_s: float | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.store, self.name = store, name
        self._patience_s, self._clock = patience_s, clock
        self._lock = threading.Lock()
        self._claimed: set[str] = set()
        self._released = threading.Condition(self._lock)
        self._temporary: dict[str, _Temporary] = {}
        self._kept_back: dict[str, float] = {}  # path -> when its delete is carried out
        self._published: OrderedDict[str, str] = OrderedDict()  # temporary file -> where it went, of the last renames
        self._numbers = count(1)

    # --- looking ------------------------------------------------------------------------------------------------------------

    def status(self, path: str) -> FileStatus:
        """NoSuchPathError."""
        with self._lock:
            temporary, gone = self._temporary.get(path), path in self._kept_back
        if temporary is not None:
            return temporary.status
        if gone:
            raise _no_such(path)
        return self.store.status(path)

    def listing(self, path: str) -> list[FileStatus]:
        """The entries of a directory, by name; of a file its own status. NoSuchPathError."""
        with self._lock:  # before the store is asked: a file that is renamed meanwhile is there twice rather than not at all
            temporary, gone = dict(self._temporary), set(self._kept_back)
        if path in temporary:
            return [temporary[path].status]
        if path in gone:
            raise _no_such(path)
        found = {status.path: status for status in self.store.listing(path) if status.path not in gone}
        found.update((name, kept.status) for name, kept in temporary.items() if parent(name) == path)
        return sorted(found.values(), key=lambda status: status.name)

    def open(self, path: str, offset: int, length: int | None) -> tuple[int, Iterator[bytes]]:
        """The number of bytes that come, and the bytes. NoSuchPathError, PathIsDirectoryError; EOFError behind the end."""
        with self._lock:
            temporary = self._temporary.get(path)
        status = temporary.status if temporary is not None else self.status(path)
        if status.is_directory:
            raise PathIsDirectoryError(f"{path} is a directory", path=path)
        if offset > status.size:
            raise EOFError(f"{path} has {status.size} bytes, and {offset} lies behind them")
        wanted = status.size - offset if length is None else min(length, status.size - offset)
        if not wanted:
            return 0, iter(())
        if temporary is not None:
            return wanted, self._staged_chunks(temporary.staged.content, offset, wanted)
        return wanted, self.store.chunks(path, offset, wanted)

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

    def _staged_chunks(self, content: Content, offset: int, length: int) -> Iterator[bytes]:
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
        if self._is_temporary_name(path):
            self._create_temporary(path, pieces, parents)
            return
        self._settle(path)
        self.store.put(path, pieces, overwrite=overwrite, parents=parents, timeout_s=self._patience_s)

    def mkdirs(self, path: str) -> None:
        """The directory with all above it; one that is there is fine."""
        self._settle(path)
        self._refuse_files_above(path)
        with self._lock:
            taken = path in self._temporary
        if taken:
            raise PathExistsError(f"{path} is a file", path=path)
        self.store.mkdirs(path, timeout_s=self._patience_s)

    def rename(self, src: str, dst: str, overwrite: bool) -> None:
        """Hadoop's strict rename: ``dst`` is the whole new name. With it a temporary file becomes one of the store."""
        if src == dst:
            raise PathExistsError(f"{src} cannot be renamed to itself", path=src)
        with self._lock:
            temporary = src in self._temporary or src in self._published
        if temporary:
            self._publish(src, dst, overwrite)
            return
        self._settle(src)
        self._settle(dst)
        self._refuse_files_above(dst)
        if self.status(src).is_directory:
            self._drop_temporaries_below(src)  # their writers find the directory gone, as they would anywhere
        self.store.rename(src, dst, overwrite=overwrite, timeout_s=self._patience_s)

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
        target = self._target(path)
        with self._claims(path, target):
            with self._lock:
                temporary = self._temporary.pop(path, None)
            if temporary is not None:
                temporary.staged.release()
                self._carry_out(target)  # the file that it was to replace
                return True
        with self._lock:
            gone = path in self._kept_back
        self._settle(path)
        if gone:
            return False
        if not recursive and self._temporaries_below(path):
            raise DirectoryNotEmptyError(f"{path} has something in it", path=path)
        done = self.store.delete(path, recursive=recursive, timeout_s=self._patience_s)
        self._drop_temporaries_below(path)
        return done

    def tend(self) -> None:
        """Carry out the deletes that nobody's rename followed, and drop temporary files that nobody renamed. Called every second or so."""
        now = self._clock()
        with self._lock:
            due = [path for path, until in self._kept_back.items() if until <= now]
            old = [path for path, kept in self._temporary.items() if kept.until_s <= now]
        for path in due:
            with suppress(BkError), self._claims(path):  # tried again at the next round
                self._carry_out(path)
        for path in old:
            self._drop(path)

    def close(self) -> None:
        """Carry out what was kept back, and close the store."""
        with self._lock:
            left = list(self._kept_back)
        for path in left if self.store.is_open else ():
            with suppress(BkError), self._claims(path):  # else the file keeps what it had
                self._carry_out(path)
        self._drop_temporaries_below(ROOT)
        self.store.close()

    # --- temporary files ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _is_temporary_name(path: str) -> bool:
        return _TEMPORARY.fullmatch(path.rpartition("/")[2]) is not None

    @staticmethod
    def _target(path: str) -> str:
        """The name that a temporary file is written for; any other path stands for itself."""
        match = _TEMPORARY.fullmatch(path.rpartition("/")[2])
        return path if match is None else join(parent(path), match[1])

    def _create_temporary(self, path: str, pieces: Iterable[bytes], parents: bool) -> None:
        try:
            self.store.status(parent(path))
        except NoSuchPathError:
            if not parents:
                raise
            self.store.mkdirs(parent(path), timeout_s=self._patience_s)
        staged: Staged = self.store.stage(pieces)
        now_ms = int(time.time() * 1000)
        status = FileStatus(path, False, staged.size, now_ms, -next(self._numbers))
        with self._lock:
            held = sum(len(kept.staged.content.inline) for kept in self._temporary.values())
            full = len(self._temporary) >= TEMPORARIES_MAX or held + len(staged.content.inline) > TEMPORARY_BYTES_MAX
            before = None if full else self._temporary.get(path)
            if not full:
                self._temporary[path] = _Temporary(status, staged, self._target(path), self._clock() + TEMPORARY_S)
        if full:
            staged.release()
            raise FileStoreError(
                f"{len(self._temporary)} temporary files with {held} bytes in memory wait for a rename that does not come; "
                "delete them (.<name>.<uuid>.tmp), or wait an hour",
                path=path,
            )
        if before is not None:
            before.staged.release()

    def _publish(self, src: str, dst: str, overwrite: bool) -> None:
        """Make a temporary file one of the store, in one change. A repeated rename, whose answer was lost, is told as the first one was."""
        with self._claims(src, dst):
            with self._lock:
                temporary, gone = self._temporary.get(src), dst in self._kept_back
                other = self._temporary.get(dst)
            if temporary is None:
                if self._was_published(src, dst):
                    return
                raise _no_such(src)
            if other is not None and not overwrite:
                raise PathExistsError(f"{dst} is there already, and overwriting it was not asked for", path=dst)
            self._refuse_files_above(dst)
            try:
                self.store.put(dst, temporary.staged, overwrite=overwrite or gone, parents=False, timeout_s=self._patience_s)
            except BkError as error:
                if error.outcome_unknown:  # the new contents may be there: nothing is deleted for the sake of the old ones
                    with self._lock:
                        self._kept_back.pop(dst, None)
                raise
            with self._lock:
                del self._temporary[src]
                self._kept_back.pop(dst, None)
                self._temporary.pop(dst, None)
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
            return [name for name in self._temporary if is_below(name, path)]

    def _drop_temporaries_below(self, path: str) -> None:
        for name in self._temporaries_below(path):
            self._drop(name)

    def _drop(self, path: str) -> None:
        with suppress(BkError), self._claims(path):
            with self._lock:
                temporary = self._temporary.pop(path, None)
            if temporary is not None:
                temporary.staged.release()

    # --- deletes that are kept back -----------------------------------------------------------------------------------------

    def _keep_back(self, path: str, recursive: bool) -> bool:
        """True if the delete of this file waits for the rename of its temporary sibling. That asks for one without ``recursive``."""
        if recursive or not self._has_successor(path):
            return False
        with suppress(NoSuchPathError), self._claims(path):
            if not self.store.status(path).is_directory:
                with self._lock:
                    if path in self._kept_back or path in self._temporary:
                        return False
                    self._kept_back[path] = self._clock() + KEPT_BACK_S
                return True
        return False

    def _has_successor(self, path: str) -> bool:
        with self._lock:
            return any(kept.target == path for kept in self._temporary.values())

    def _settle(self, path: str) -> None:
        """Carry out what was kept back at, above and below a path, because something else is going to touch it."""
        with self._lock:
            met = [name for name in self._kept_back if name == path or is_below(name, path) or is_below(path, name)]
        for name in met:
            with self._claims(name):
                self._carry_out(name)

    def _carry_out(self, path: str) -> None:
        """Delete a file whose delete was kept back; the caller has claimed it. While the answer is open the file looks gone."""
        with self._lock:
            kept = path in self._kept_back
        if not kept:
            return
        try:
            self.store.delete(path, recursive=False, timeout_s=self._patience_s)
        except BkError:
            if self.store.is_open:
                raise
        with self._lock:
            self._kept_back.pop(path, None)

    # --- helpers ------------------------------------------------------------------------------------------------------------

    def _clear(self, recursive: bool) -> bool:
        found = self.listing(ROOT)
        if found and not recursive:
            raise DirectoryNotEmptyError("the root has something in it", path=ROOT)
        for status in found:
            self.delete(status.path, recursive=True)
        return True

    def _refuse_files_above(self, path: str) -> None:
        """The store says so itself of its files; temporary ones it does not know."""
        with self._lock:
            above = next((name for name in self._temporary if is_below(path, name)), None)
        if above is not None:
            raise PathNotDirectoryError(f"{above} is a file, so nothing can be in it", path=path)

    @contextmanager
    def _claims(self, *paths: str) -> Iterator[None]:
        """Nobody else has any of these names meanwhile. OperationTimeoutError if somebody keeps one for too long."""
        wanted = set(paths)
        patience_s = CLAIM_S if self._patience_s is None else 2 * self._patience_s
        with self._released:
            if not self._released.wait_for(lambda: not wanted & self._claimed, patience_s):
                raise OperationTimeoutError(f"another request about {min(wanted)} takes longer than {patience_s:g} s", path=min(wanted))
            self._claimed |= wanted
        try:
            yield
        finally:
            with self._released:
                self._claimed -= wanted
                self._released.notify_all()


def _no_such(path: str) -> NoSuchPathError:
    return NoSuchPathError(f"there is no {path}", path=path)
