"""The journal: the changes that were acknowledged and are not in the database yet. It is two files that take turns. Each is written from
its start to its end, and synced once per group of changes.

    file      "BKJ1" | 16 bytes id of the journal | records, then whatever was there before
    record    8 bytes mark | u64 number | u64 bytes | u32 crc32c of id, number, bytes and content | content (changes.py)

Numbers go up by one from record to record, over both files. A file is written again from its start once the database has all of its
records, so that most syncs overwrite blocks that the file has already, which costs a file system far less than new ones.

KEPT_BYTES of each file are allocated before they are needed, so that a fence or a deletion finds its place on a full disk. Where room is
scarce the files turn earlier and give back the rest, which the database may need more (BKE-9).

A record is begun only after the one before it was synced. So after a crash the last one may be torn, and nothing can lie behind it: a sound
record behind an unsound one means that acknowledged data is damaged, which is an error and never a shorter journal (B-7). The last one may
also be whole and not synced yet, so the files are synced (``Journal.sync``) before anything that they say is answered.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from bk_core.bookie.private import opener
from bk_core.errors import BookieIOError
from bk_core.protocol import BytesLike
from bk_core.protocol.bookie.chunks import checksum

FILE_BYTES = 32 << 20  # at this size the files turn, unless the database is behind
KEPT_BYTES = 4 << 20  # of each file, whatever else is on the disk
LAST_BYTES = 1 << 20  # of each file, when the database found no room
ID_BYTES = 16
NAMES = ("journal-0", "journal-1")

_MAGIC = b"BKJ1"
_MARK = b"\xb5BKrec\r\n"
_START = len(_MAGIC) + ID_BYTES
_HEAD = struct.Struct(">8sQQI")
_NUMBERS = struct.Struct(">QQ")
_BUFFERS_MAX = 1000  # below IOV_MAX


Replay = Callable[[int, memoryview], None]


class _File:
    """One of the two files. ``end`` is where the next record goes, ``last`` the number of the last record that counts, 0 if
    there is none."""

    __slots__ = ("descriptor", "end", "last")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.end = _START
        self.last = 0


class Journal:
    """The journal. One thread appends; any thread may call the rest. ``number`` is that of the last record. The files turn at
    ``file_bytes``."""

    def __init__(self, directory: Path, journal_id: bytes, after: int, replay: Replay) -> None:
        """Open both files. The number and content of each record behind number ``after`` go to ``replay``, in order; the content is a view.

        Raises BookieIOError if a file is missing or another journal's, or if records are damaged that others follow.
        """
        self._id = journal_id
        self._directory = directory
        self._released = self.number = after
        self._again = False  # the last attempt to append failed
        self._lock = threading.Lock()  # no file is cut while a record is written
        self.file_bytes = FILE_BYTES
        self._files: list[_File] = []  # the one in use first
        try:
            self._open(directory, replay)
        except BaseException:
            self.close()
            raise

    def _open(self, directory: Path, replay: Replay) -> None:
        views = [(directory / name, _mapped(directory / name, self._id)) for name in NAMES]
        self._files = [self._replay(path, view, replay) for path, view in sorted(views, key=self._age)]
        if any(number > self.number for _, view in views for number in _all_numbers(view, self._id)):
            raise BookieIOError(f"the journal in {directory} is damaged: record {self.number + 1} is gone, and later ones are there")
        self._files.sort(key=lambda file: file.last, reverse=True)

    def _age(self, file: tuple[Path, memoryview]) -> int:
        found = _record(file[1], _START, self._id)
        return 0 if found is None else found[0]

    def _replay(self, path: Path, view: memoryview, replay: Replay) -> _File:
        file = _File(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        for number, content in _chain(view, self._id):
            file.end, file.last = file.end + _HEAD.size + len(content), number
            if number == self.number + 1:
                replay(number, content)
                self.number = number
        return file

    def sync(self) -> None:
        """Make durable what was replayed, and the names of the directory. An earlier process may have been killed between a write and its
        sync, or between a rename and its sync; what it did is here all the same, as long as the machine has power."""
        for file in self._files:
            os.fdatasync(file.descriptor)
        _sync_directory(self._directory)

    def append(self, content: Sequence[BytesLike]) -> int:
        """Write one record, sync it and return its number. After an OSError the next call writes in the same place."""
        with self._lock:
            return self._append(content)

    def _append(self, content: Sequence[BytesLike]) -> int:
        number = self.number + 1
        size = sum(map(len, content))
        crc = checksum((self._id, _NUMBERS.pack(number, size), *content))
        if not self._again:  # a failed record may be on the disk all the same, and must not be there twice
            self._turn()
        file, self._again = self._files[0], True
        end = _write_all(file.descriptor, [_HEAD.pack(_MARK, number, size, crc), *content], file.end)
        os.fdatasync(file.descriptor)
        file.end, file.last, self.number, self._again = end, number, number, False
        return number

    def release(self, number: int) -> None:
        """Note that the database has every record up to ``number``."""
        self._released = number

    def keep_room(self) -> None:
        """Allocate KEPT_BYTES of each file, where the disk has them."""
        with self._unless_writing() as files, suppress(OSError):
            for file in files:
                if os.fstat(file.descriptor).st_size < KEPT_BYTES:
                    os.posix_fallocate(file.descriptor, 0, KEPT_BYTES)

    def give_back(self, kept_bytes: int) -> None:
        """Cut each file behind ``kept_bytes``, as far as it has no record there that the database lacks (BKE-9)."""
        with self._unless_writing() as files, suppress(OSError):
            for file in files:
                needed = file is files[0] or file.last > self._released
                end = max(kept_bytes, file.end if needed else _START)
                if os.fstat(file.descriptor).st_size > end:
                    os.ftruncate(file.descriptor, end)

    @contextmanager
    def _unless_writing(self) -> Iterator[Sequence[_File]]:
        """Yield the files, or none of them while a record is being written, which may take as long as the disk likes."""
        if not self._lock.acquire(blocking=False):
            yield ()
            return
        try:
            yield self._files
        finally:
            self._lock.release()

    def close(self) -> None:
        for file in self._files:
            os.close(file.descriptor)
        self._files.clear()

    def _turn(self) -> None:
        """Go on with the other file if this one is full and no record of the other one is needed any more."""
        current, other = self._files
        if current.end >= self.file_bytes and other.last <= self._released:
            other.end = _START
            self._files = [other, current]


def create(directory: Path, journal_id: bytes) -> None:
    """Make both files anew, durably."""
    for name in NAMES:
        draft = directory / f"{name}.new"
        with open(draft, "wb", opener=opener) as file:
            file.write(_MAGIC + journal_id)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(directory / name)
    _sync_directory(directory)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _mapped(path: Path, journal_id: bytes) -> memoryview:
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: it is empty
        raise BookieIOError(f"{path} cannot be read: {error}") from error
    if data[:_START] != _MAGIC + journal_id:
        raise BookieIOError(f"{path} is not a file of this journal")
    return memoryview(data)


def _chain(view: memoryview, journal_id: bytes) -> Iterator[tuple[int, memoryview]]:
    """Yield the records from the start of a file for as long as each follows the one before it."""
    at, number = _START, 0
    while (found := _record(view, at, journal_id)) is not None and number in (0, found[0] - 1):
        number, content = found
        yield number, content
        at += _HEAD.size + len(content)


def _all_numbers(view: memoryview, journal_id: bytes) -> Iterator[int]:
    """Yield the numbers of all sound records anywhere in a file."""
    data = view.obj
    assert isinstance(data, mmap.mmap)
    at = data.find(_MARK, _START)
    while at >= 0:
        found = _record(view, at, journal_id)
        if found is not None:
            yield found[0]
        at = data.find(_MARK, at + (1 if found is None else _HEAD.size + len(found[1])))


def _record(view: memoryview, at: int, journal_id: bytes) -> tuple[int, memoryview] | None:
    if len(view) - at < _HEAD.size:
        return None
    mark, number, size, crc = _HEAD.unpack_from(view, at)
    start = at + _HEAD.size
    if mark != _MARK or size > len(view) - start:
        return None
    content = view[start : start + size]
    return (number, content) if checksum((journal_id, _NUMBERS.pack(number, size), content)) == crc else None


def _write_all(descriptor: int, parts: list[BytesLike], offset: int) -> int:
    """Write ``parts`` one behind the other. Returns the offset behind them."""
    for start in range(0, len(parts), _BUFFERS_MAX):
        group = parts[start : start + _BUFFERS_MAX]
        wanted = sum(map(len, group))
        written = os.pwritev(descriptor, group, offset)
        if written < wanted:  # a disk that is nearly full, or a signal: the rest is written in one piece, which may raise the disk's error
            rest = memoryview(b"".join(group))[written:]
            while rest:
                done = os.pwrite(descriptor, rest, offset + wanted - len(rest))
                rest = rest[done:]
        offset += wanted
    return offset
