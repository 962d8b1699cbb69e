"""A file that appears whole or not at all: it is written under another name beside its place, and moved there when it is on disk."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from bk_core.errors import ExportFileError, ExportFormatError

OTHER_FORMATS = frozenset({".avro", ".csv", ".json", ".jsonl", ".ndjson", ".orc", ".tsv", ".xls", ".xlsx"})
"""Endings of the names of formats which are written or read nowhere here."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""The errors of a file system that has no room, or no more for this user."""
UNSYNCABLE = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""The errors of a file system that cannot sync a folder. Its files are there all the same."""


def check_free(path: Path) -> None:
    """Raise ExportFileError if something stands at the path, or its folder does not exist, before anything is read."""
    if path.exists() or path.is_symlink():
        raise ExportFileError(f"{path} exists and is not written over: name another file, or remove it", path=str(path))
    if not path.parent.is_dir():
        raise ExportFileError(f"there is no folder {path.parent}", path=str(path))


def check_ending(path: Path, formats: str) -> None:
    """Raise ExportFormatError if the name is that of a format which is not written or read here. ``formats`` says which are."""
    ending = path.suffix.lower()
    if ending in OTHER_FORMATS:
        raise ExportFormatError(f"the name of {path} ends with {ending}, and there is no such format: {formats}", path=str(path))


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write. At the end of the block it is synced and gets its name, unless somebody else made a file of that name
    meanwhile; after an error it is gone.

    Raises ExportFileError if the file cannot be made, has no room, or exists.
    """
    check_free(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    with told(path):
        target = part.open("xb")
    try:
        with told(path):
            with target:
                yield target
                target.flush()
                os.fsync(target.fileno())
            _move(part, path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


def _move(part: Path, path: Path) -> None:
    """Give the file its name, and sync its folder. Where that fails, the file is deleted: else it would be there, and its caller was told
    that it is not."""
    _give_name(part, path)
    try:
        _sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            path.unlink()
        raise


def _give_name(part: Path, path: Path) -> None:
    """A link fails where a file of that name exists, which a rename would replace."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(errno.EEXIST, "it came to be meanwhile", str(path)) from None
        part.rename(path)


def _sync_folder(path: Path) -> None:
    """Sync a folder, unless its file system cannot sync folders."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in UNSYNCABLE:
            raise
    finally:
        os.close(folder)


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Raise errors of the file system as ExportFileError."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            why = f"there is no room for it ({error.strerror}): make room, or name a file elsewhere"
        else:
            why = error.strerror or str(error)
        raise ExportFileError(f"{path} cannot be written: {why}. Nothing of it is left", path=str(path)) from error


@contextmanager
def old_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to read. Raises ExportFileError if it cannot be opened or read."""
    try:
        with path.open("rb") as source:
            yield source
    except OSError as error:
        raise ExportFileError(f"{path} cannot be read: {error.strerror or error}", path=str(path)) from error
