"""The plainest model of a file store: a table of paths that is copied for every change, one change behind the other.

The model knows nothing of records, logs and bases. Its own answers are what clients must be told (I-F1), and its tables what every replay
of the log must come to (I-F2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bk_core.errors import (
    DirectoryNotEmptyError,
    InvalidArgumentError,
    NoSuchPathError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotDirectoryError,
)
from bk_core.protocol.files.content import Content

ROOT = "/"


@dataclass(slots=True, eq=False)
class Identity:
    """One file or directory, wherever it is moved. ``number`` is found out when it is first seen."""

    number: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A file or directory at a path. ``content``: None of a directory."""

    identity: Identity
    content: Content | None
    modified_ms: int

    @property
    def is_directory(self) -> bool:
        return self.content is None


class State:
    """All of a store at one moment; never changed once it is made."""

    __slots__ = ("nodes", "number", "referred")

    def __init__(self, nodes: Mapping[str, Known], number: int) -> None:
        self.nodes = nodes
        self.number = number
        self.referred = frozenset(one.ledger_id for known in nodes.values() if known.content for one in known.content.extents)

    def below(self, path: str) -> Iterator[str]:
        """Paths in and under that directory."""
        prefix = path if path == ROOT else f"{path}/"
        return (other for other in self.nodes if other != path and other.startswith(prefix))

    def children(self, path: str) -> list[str]:
        prefix = path if path == ROOT else f"{path}/"
        return sorted(other for other in self.below(path) if "/" not in other[len(prefix) :])


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or ROOT


def ancestors(path: str) -> list[str]:
    """From the root down, without the path itself."""
    found = []
    while path != ROOT:
        path = parent_of(path)
        found.append(path)
    return found[::-1]


def new_store() -> State:
    return State({ROOT: Known(Identity(), None, 0)}, 0)


@dataclass(frozen=True, slots=True)
class Operation:
    """``kind``: put, mkdirs, rename, delete, replace_all or barrier."""

    kind: str
    path: str = ROOT
    target: str = ROOT
    content: Content = Content()
    flag: bool = False  # put, rename: overwrite; delete: recursive
    parents: bool = False
    now_ms: int = 0

    def __str__(self) -> str:
        where = f"{self.path} -> {self.target}" if self.kind == "rename" else self.path
        return f"{self.kind} {where}{' !' if self.flag else ''}{' p' if self.parents else ''}"


Told = Any  # the path whose status a call gives back, another value, or the class of its error


def apply(state: State, operation: Operation) -> tuple[State, Told]:
    """Return the outcome of one call and the state behind it, which is the same one if nothing changes."""
    return _KINDS[operation.kind](state, operation)


def _blocked(state: State, path: str) -> bool:
    """A file stands where the path needs a directory."""
    return any(one in state.nodes and not state.nodes[one].is_directory for one in ancestors(path))


def _with_parents(state: State, path: str, now_ms: int) -> dict[str, Known]:
    """A copy, with all directories above ``path``."""
    nodes = dict(state.nodes)
    for one in ancestors(path):
        if one not in nodes:
            nodes[one] = Known(Identity(), None, now_ms)
            _touch(nodes, parent_of(one), now_ms)
    return nodes


def _touch(nodes: dict[str, Known], path: str, now_ms: int) -> None:
    nodes[path] = replace(nodes[path], modified_ms=now_ms)


def _changed(state: State, nodes: dict[str, Known]) -> State:
    return State(nodes, state.number + 1)


def _put(state: State, asked: Operation) -> tuple[State, Told]:
    path, above = asked.path, parent_of(asked.path)
    there = state.nodes.get(path)
    if path == ROOT:
        return state, PathIsDirectoryError
    if _blocked(state, path):
        return state, PathNotDirectoryError
    if not asked.parents and above not in state.nodes:
        return state, NoSuchPathError
    if there is not None and there.is_directory:
        return state, PathIsDirectoryError
    if there is not None and not asked.flag:
        return state, PathExistsError
    nodes = _with_parents(state, path, asked.now_ms)
    nodes[path] = Known(Identity(), asked.content, asked.now_ms)
    _touch(nodes, above, asked.now_ms)
    return _changed(state, nodes), path


def _mkdirs(state: State, asked: Operation) -> tuple[State, Told]:
    path = asked.path
    there = state.nodes.get(path)
    if there is not None:
        return state, path if there.is_directory else PathExistsError
    if _blocked(state, path):
        return state, PathNotDirectoryError
    nodes = _with_parents(state, path, asked.now_ms)
    nodes[path] = Known(Identity(), None, asked.now_ms)
    _touch(nodes, parent_of(path), asked.now_ms)
    return _changed(state, nodes), path


def _rename(state: State, asked: Operation) -> tuple[State, Told]:
    refused = _refused_rename(state, asked.path, asked.target, asked.flag)
    if refused is not None:
        return state, refused
    if asked.path == asked.target:
        return state, asked.target
    moved = {path: known for path, known in state.nodes.items() if path == asked.path or path.startswith(f"{asked.path}/")}
    nodes = {path: known for path, known in state.nodes.items() if path not in moved}
    nodes.update({asked.target + path[len(asked.path) :]: known for path, known in moved.items()})
    for path in (asked.path, asked.target):
        _touch(nodes, parent_of(path), asked.now_ms)
    return _changed(state, nodes), asked.target


def _refused_rename(state: State, path: str, target: str, overwrite: bool) -> type[Exception] | None:
    if path == ROOT:
        return InvalidArgumentError
    if path not in state.nodes:
        return NoSuchPathError
    if target.startswith(f"{path}/"):
        return InvalidArgumentError
    if _blocked(state, target):
        return PathNotDirectoryError
    if parent_of(target) not in state.nodes:
        return NoSuchPathError
    if target in state.nodes and not overwrite:
        return PathExistsError
    if target in state.nodes and state.nodes[target].is_directory != state.nodes[path].is_directory:
        return PathIsDirectoryError if state.nodes[target].is_directory else PathNotDirectoryError
    if path != target and any(state.below(target)):
        return DirectoryNotEmptyError
    return None


def _delete(state: State, asked: Operation) -> tuple[State, Told]:
    path = asked.path
    below = list(state.below(path)) if path in state.nodes else []
    if path not in state.nodes or (path == ROOT and not below):
        return state, False
    if below and not asked.flag:
        return state, DirectoryNotEmptyError
    gone = {path: None for path in (below if path == ROOT else [path, *below])}
    nodes = {path: known for path, known in state.nodes.items() if path not in gone}
    _touch(nodes, parent_of(path), asked.now_ms)
    return _changed(state, nodes), True


def _replace_all(state: State, asked: Operation) -> tuple[State, Told]:
    src = asked.path
    if src == ROOT:
        return state, InvalidArgumentError
    if src not in state.nodes:
        return state, NoSuchPathError
    if not state.nodes[src].is_directory:
        return state, PathNotDirectoryError
    nodes = {path[len(src) :]: state.nodes[path] for path in state.below(src)}
    return _changed(state, {ROOT: replace(state.nodes[ROOT], modified_ms=asked.now_ms), **nodes}), ROOT


_KINDS: dict[str, Callable[[State, Operation], tuple[State, Told]]] = {
    "put": _put,
    "mkdirs": _mkdirs,
    "rename": _rename,
    "delete": _delete,
    "replace_all": _replace_all,
    "barrier": lambda state, asked: (state, None),
}
