"""Temporary files of a checkpoint: ``.<name>.<uuid>.tmp`` beside the file that one is written for, of a task ``.<name>.<uuid>.TID<n>.tmp``.

They are staged and in no record of the log. All look-ups but three take constant time: what lies in a
directory and what is due take time by how much there is of it, and what lies below a directory takes a look at all directories.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import takewhile
from typing import Protocol

from bk_core.errors import FileStoreError
from bk_core.protocol.files.content import Content, FileStatus
from bk_core.protocol.files.paths import ROOT, is_below, join, parent

TEMPORARY_S = 3600.0
TEMPORARIES_MAX = 10_000
TEMPORARY_BYTES_MAX = 256 << 20

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?:\.TID[0-9]{1,19})?\.tmp")


class Staged(Protocol):
    """Contents that are durable, or small enough to lie in memory, and belong to no file yet."""

    @property
    def content(self) -> Content: ...
    @property
    def size(self) -> int: ...
    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Temporary:
    """One temporary file. ``target`` is the file that it is written for."""

    status: FileStatus
    staged: Staged
    target: str
    until_s: float


def is_temporary_name(path: str) -> bool:
    return _TEMPORARY.fullmatch(path.rpartition("/")[2]) is not None


def target_of(path: str) -> str:
    """The name that a temporary file is written for; any other path stands for itself."""
    match = _TEMPORARY.fullmatch(path.rpartition("/")[2])
    return path if match is None else join(parent(path), match[1])


class Temporaries:
    """All of one checkpoint. Its user holds a lock over each call."""

    def __init__(self) -> None:
        self._by_path: dict[str, Temporary] = {}  # in the order of their times
        self._names: dict[str, set[str]] = {}  # by the directory that they lie in
        self._awaited: Counter[str] = Counter()  # targets
        self._held_bytes = 0

    def __contains__(self, path: str) -> bool:
        return path in self._by_path

    def get(self, path: str) -> Temporary | None:
        return self._by_path.get(path)

    def put(self, path: str, temporary: Temporary) -> Temporary | None:
        """The one that it replaces. Its time is over after that of all others. FileStoreError where there are too many."""
        held = self._held_bytes + len(temporary.staged.content.inline)
        if len(self._by_path) >= TEMPORARIES_MAX or held > TEMPORARY_BYTES_MAX:
            raise FileStoreError(
                f"{len(self._by_path)} temporary files with {self._held_bytes} bytes in memory wait for a rename that does not come; "
                "delete them (.<name>.<uuid>.tmp), or wait an hour",
                path=path,
            )
        before = self.pop(path)
        self._by_path[path] = temporary
        self._names.setdefault(parent(path), set()).add(path)
        self._awaited[temporary.target] += 1
        self._held_bytes += len(temporary.staged.content.inline)
        return before

    def pop(self, path: str) -> Temporary | None:
        found = self._by_path.pop(path, None)
        if found is not None:
            directory = parent(path)
            self._names[directory].remove(path)
            if not self._names[directory]:
                del self._names[directory]
            self._awaited[found.target] -= 1
            if not self._awaited[found.target]:
                del self._awaited[found.target]
            self._held_bytes -= len(found.staged.content.inline)
        return found

    def awaits(self, target: str) -> bool:
        """True if one of them is written for this file."""
        return target in self._awaited

    def above(self, path: str) -> str | None:
        """The one that ``path`` would lie below, if it were a directory."""
        while path != ROOT:
            path = parent(path)
            if path in self._by_path:
                return path
        return None

    def within(self, directory: str) -> list[FileStatus]:
        """Return the statuses of the temporary files that lie right in ``directory``."""
        return [self._by_path[path].status for path in self._names.get(directory, ())]

    def below(self, path: str) -> list[str]:
        """Return the paths of the temporary files that lie in ``path`` at any depth."""
        return [name for place, names in self._names.items() if place == path or is_below(place, path) for name in names]

    def due(self, now_s: float) -> list[str]:
        """Return the paths of the temporary files whose time is over."""
        return [path for path, _ in takewhile(lambda item: item[1].until_s <= now_s, self._by_path.items())]
