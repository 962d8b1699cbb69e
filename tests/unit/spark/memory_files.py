"""A file store in memory, with the calls of ``bk_core.client.files.store.FileStore`` that the checkpoint gateway makes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

from bk_core.errors import (
    BkError,
    DirectoryNotEmptyError,
    FileStoreClosedError,
    FileStoreTakenOverError,
    NoSuchPathError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotDirectoryError,
)
from bk_core.protocol.files.content import Content, Extent, FileStatus
from bk_core.protocol.files.paths import ROOT, is_below, normal, parent

INLINE_BYTES = 64 << 10


class MemoryStaged:
    def __init__(self, store: MemoryFiles, content: Content) -> None:
        self.content, self._store, self.is_released = content, store, False

    @property
    def size(self) -> int:
        return self.content.size

    def release(self) -> None:
        self.is_released = True
        self._store.staged.discard(self)


class MemoryFiles:
    """``changes``: what became a record of a log, in order. ``staged``: contents that nobody put or released yet. ``before``: called with
    the name and the path of each change before it is made; it may wait or raise."""

    def __init__(self) -> None:
        self.nodes: dict[str, tuple[FileStatus, Content]] = {}
        self.changes: list[tuple[str, ...]] = []
        self.staged: set[MemoryStaged] = set()
        self.large: dict[int, bytes] = {}
        self.error: BkError | None = None
        self.is_closed = False
        self.before: Callable[[str, str], None] = lambda operation, path: None
        self._lock = threading.RLock()
        self._numbers = count(1)
        self._make(ROOT, None)

    @property
    def is_open(self) -> bool:
        return self.error is None and not self.is_closed

    def take_over(self) -> None:
        """As if another driver had opened it."""
        self.error = FileStoreTakenOverError("the log files.x was taken over by another writer")

    def status(self, path: str) -> FileStatus:
        with self._lock:
            self._check()
            if path not in self.nodes:
                raise NoSuchPathError(f"there is no {path}")
            return self.nodes[path][0]

    def listing(self, path: str) -> list[FileStatus]:
        with self._lock:
            status = self.status(path)
            if not status.is_directory:
                return [status]
            found = [status for name, (status, _) in self.nodes.items() if name != ROOT and parent(name) == path]
            return sorted(found, key=lambda status: status.name)

    def read_content(self, content: Content, offset: int = 0, length: int | None = None) -> bytes:
        self._check()
        whole = content.inline + b"".join(self.large[extent.ledger_id] for extent in content.extents)
        return whole[offset:] if length is None else whole[offset : offset + length]

    def content(self, path: str) -> Content:
        with self._lock:
            self.status(path)
            return self.nodes[path][1]

    def stage(self, data: bytes | Iterable[bytes]) -> MemoryStaged:
        self._check()
        whole = data if isinstance(data, bytes) else b"".join(data)
        if len(whole) <= INLINE_BYTES:
            staged = MemoryStaged(self, Content(whole))
        else:
            number = next(self._numbers)
            self.large[number] = whole
            staged = MemoryStaged(self, Content(extents=(Extent(number, 0, 0, len(whole), len(whole)),)))
        self.staged.add(staged)
        return staged

    def put(self, path: str, data: Any, *, overwrite: bool = True, parents: bool = True, timeout_s: float | None = None) -> FileStatus:
        if not isinstance(data, MemoryStaged):
            staged = self.stage(data)
            try:
                return self.put(path, staged, overwrite=overwrite, parents=parents)
            finally:
                staged.release()
        assert not data.is_released
        self.before("put", path)
        with self._lock:
            self._check()
            there = self.nodes.get(path)
            if there is not None and there[0].is_directory:
                raise PathIsDirectoryError(f"{path} is a directory")
            if there is not None and not overwrite:
                raise PathExistsError(f"{path} is there already")
            if parents:
                self._directories(parent(path))
            elif not self.status(parent(path)).is_directory:
                raise PathNotDirectoryError(f"{parent(path)} is a file")
            self.changes.append(("put", path))
            self._make(path, data.content)
        data.release()
        return self.status(path)

    def mkdirs(self, path: str, *, timeout_s: float | None = None) -> FileStatus:
        self.before("mkdirs", path)
        with self._lock:
            self._check()
            if path in self.nodes and not self.nodes[path][0].is_directory:
                raise PathExistsError(f"{path} is a file")
            if path not in self.nodes:
                self._directories(path)
                self.changes.append(("mkdirs", path))
            return self.status(path)

    def rename(self, src: str, dst: str, *, overwrite: bool = False, timeout_s: float | None = None) -> FileStatus:
        self.before("rename", src)
        with self._lock:
            source = self.status(src)
            if not self.status(parent(dst)).is_directory:
                raise PathNotDirectoryError(f"{parent(dst)} is a file")
            there = self.nodes.get(dst)
            if there is not None and not overwrite:
                raise PathExistsError(f"{dst} is there already")
            if there is not None and there[0].is_directory != source.is_directory:  # FS-19
                kind = PathIsDirectoryError if there[0].is_directory else PathNotDirectoryError
                raise kind(f"{dst} is of another kind than {src}")
            if there is not None and there[0].is_directory and self.listing(dst):
                raise DirectoryNotEmptyError(f"{dst} has something in it")
            self.changes.append(("rename", src, dst))
            for name in [name for name in self.nodes if name == src or is_below(name, src)]:
                status, content = self.nodes.pop(name)
                moved = dst + name[len(src) :]
                self.nodes[moved] = (FileStatus(moved, status.is_directory, status.size, status.modified_ms, status.file_id), content)
            assert source.path == src
            return self.status(dst)

    def delete(self, path: str, *, recursive: bool = False, timeout_s: float | None = None) -> bool:
        self.before("delete", path)
        with self._lock:
            self._check()
            if path not in self.nodes or (path == ROOT and len(self.nodes) == 1):
                return False
            if not recursive and self.nodes[path][0].is_directory and self.listing(path):
                raise DirectoryNotEmptyError(f"{path} has something in it")
            self.changes.append(("delete", path))
            for name in [name for name in self.nodes if name == path or is_below(name, path)]:
                if name != ROOT:
                    del self.nodes[name]
            return True

    def close(self) -> None:
        self.is_closed = True

    def _check(self) -> None:
        if self.error is not None:
            raise self.error
        if self.is_closed:
            raise FileStoreClosedError("closed by this program")

    def _directories(self, path: str) -> None:
        if path in self.nodes:
            if not self.nodes[path][0].is_directory:
                raise PathNotDirectoryError(f"{path} is a file")
            return
        self._directories(parent(path))
        self._make(path, None)

    def _make(self, path: str, content: Content | None) -> None:
        status = FileStatus(
            normal(path), content is None, 0 if content is None else content.size, int(time.time() * 1000), next(self._numbers)
        )
        self.nodes[path] = (status, content or Content())
