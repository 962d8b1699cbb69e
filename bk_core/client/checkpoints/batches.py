"""Spark's checkpoint of a streaming query: what its offset log and its commit log say of each batch.

A checkpoint is a folder: ``metadata`` with the id of the query, ``offsets/N`` written before batch N runs, ``commits/N`` written after it.
It lies on this machine or in a file store; a ``Folder`` reads either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from bk_core.errors import InvalidArgumentError, NoSuchPathError
from bk_core.protocol.log.stored_json import loads

if TYPE_CHECKING:
    from bk_core.client.files.view import FileStoreView

WRITTEN_MS = 120_000  # the longest time from the planning of a batch to its written offsets: bookies that are away are waited for
_NOTHING = "-"  # what Spark writes for a source that has no offset yet


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch. ``sources``: the offset at which each source ends, by its number or its name; None for one without an offset.

    ``planned_ms`` is the time that Spark gave the batch, ``offsets_ms`` when its offsets were written, ``committed_ms`` when its commit
    was; None where that is not known.
    """

    number: int
    planned_ms: int | None
    watermark_ms: int | None
    sources: Mapping[str, Any]
    committed: bool
    committed_ms: int | None
    offsets_ms: int | None = None

    @property
    def took_ms(self) -> int | None:
        """The time from the writing of its offsets to that of its commit, which whoever writes the checkpoint tells by one clock.

        None where these times say nothing of the batch: Spark writes the offsets when it has planned the batch, and the commit after them.
        A copy has the files in another order, or long after that.
        """
        if self.planned_ms is None or self.offsets_ms is None or self.committed_ms is None:
            return None
        is_copied = abs(self.offsets_ms - self.planned_ms) > WRITTEN_MS or self.committed_ms <= self.offsets_ms
        return None if is_copied else self.committed_ms - self.offsets_ms


class Folder(Protocol):
    """Files of a checkpoint. Paths are relative to it."""

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder; none if there is no such folder."""

    def read(self, path: str) -> bytes:
        """Return the bytes of a file. Raises OSError if there is no such file, or it cannot be read."""

    def modified_ms(self, path: str) -> int | None:
        """Return when the file was written, in milliseconds since 1970; None if it is not there."""

    def told(self, path: str = "") -> str:
        """Return the name of the folder, or of what lies at ``path`` in it, for a message."""


class LocalFolder:
    """A checkpoint on this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def names(self, folder: str) -> list[str]:
        path = self._path / folder
        return [entry.name for entry in path.iterdir()] if path.is_dir() else []

    def read(self, path: str) -> bytes:
        return (self._path / path).read_bytes()

    def modified_ms(self, path: str) -> int | None:
        try:
            return int((self._path / path).stat().st_mtime * 1000)
        except FileNotFoundError:
            return None

    def told(self, path: str = "") -> str:
        return str(self._path / path)


class StoreFolder:
    """A checkpoint in a file store, below ``path``, as the view saw it last."""

    def __init__(self, view: FileStoreView, path: str = "/") -> None:
        self._view = view
        self._base = path.rstrip("/")

    def names(self, folder: str) -> list[str]:
        path = f"{self._base}/{folder}"
        return [status.name for status in self._view.listing(path)] if self._view.exists(path) else []

    def read(self, path: str) -> bytes:
        return self._view.read(f"{self._base}/{path}")

    def modified_ms(self, path: str) -> int | None:
        try:
            return self._view.status(f"{self._base}/{path}").modified_ms
        except NoSuchPathError:
            return None

    def told(self, path: str = "") -> str:
        return f"bk://{self._view.name}{self._base}" + (f"/{path}" if path else "")


def numbers(folder: Folder, log: str) -> list[int]:
    """Return the batches that ``offsets`` or ``commits`` has, ascending. Temporary files and check sums of Hadoop's are none."""
    return sorted(int(name) for name in folder.names(log) if re.fullmatch(r"[0-9]+", name))


def last_number(folder: Folder, log: str) -> int | None:
    """Return the last of these batches; None if there is none."""
    return max(numbers(folder, log), default=None)


def query_id(folder: Folder) -> str | None:
    """Return the id of the query, which stays the same over restarts; None if the checkpoint has none that can be read."""
    try:
        return str(loads(folder.read("metadata"))["id"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_batch(folder: Folder, number: int, *, committed: bool) -> Batch:
    """Return a batch. Raises InvalidArgumentError if Spark would not have written it so; what ``folder`` raises if there is no such batch
    (any more)."""
    metadata, sources = read_offsets(folder, number)
    when = folder.modified_ms(f"commits/{number}") if committed else None
    planned, watermark = _whole(metadata, "batchTimestampMs"), _whole(metadata, "batchWatermarkMs")
    return Batch(number, planned, watermark, sources, committed, when, folder.modified_ms(f"offsets/{number}"))


def _whole(metadata: Mapping[str, Any], key: str) -> int | None:
    value = metadata.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def read_offsets(folder: Folder, number: int) -> tuple[Mapping[str, Any], dict[str, Any]]:
    """Return Spark's notes of a batch, and the offset of each source.

    Format v1 of Spark's offset log: a line of version, one of metadata, one of JSON (or ``-``) for each source. In v2, which Spark 4.2
    writes where it is told to, each of these begins with the name of its source and a colon.
    """
    path = f"offsets/{number}"
    try:
        version, *rest = folder.read(path).decode().splitlines()
        read = _READERS.get(version)
        if read is None:
            known = " and ".join(_READERS)
            told = f"{folder.told(path)} has version {version!r} of Spark's offset log; this program reads {known}"
            raise InvalidArgumentError(told, path=folder.told(path), version=version)
        metadata = loads(rest[0]) if rest and rest[0].strip() else {}
        return metadata if isinstance(metadata, dict) else {}, read(rest[1:])
    except (OSError, ValueError) as error:
        if isinstance(error, (InvalidArgumentError, NoSuchPathError)):
            raise
        told = f"{folder.told(path)} cannot be read as an offset log of Spark: {error}"
        raise InvalidArgumentError(told, path=folder.told(path), why=str(error)) from error


def _in_order(lines: list[str]) -> dict[str, Any]:
    return {str(number): _offset(line) for number, line in enumerate(lines)}


def _by_name(lines: list[str]) -> dict[str, Any]:
    found = {}
    for line in lines:
        name, colon, offset = line.partition(":")
        if not colon:
            raise ValueError(f"no name and colon in {line!r}")
        found[name] = _offset(offset)
    return found


_READERS: Mapping[str, Callable[[list[str]], dict[str, Any]]] = {"v1": _in_order, "v2": _by_name}


def _offset(text: str) -> Any:
    """Return an offset: JSON, as all sources of Spark's write it. Another text is an offset, too, which only its source understands."""
    if text == _NOTHING:
        return None
    try:
        return loads(text)
    except ValueError:
        if text[:1] in "{[":
            raise
        return text
