"""Decisions about changes: each function decides one change on the tree that it will be made in.

A refusal is raised. The first one counts, in this order: the arguments, what is to be changed, the directories above its new place, the
new place itself. The messages name paths, never contents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bk_core.errors import (
    DirectoryNotEmptyError,
    InvalidArgumentError,
    InvalidPathError,
    NoSuchPathError,
    PathExistsError,
    PathIsDirectoryError,
    PathNotDirectoryError,
)
from bk_core.protocol.files.content import Content
from bk_core.protocol.files.paths import PATH_MAX, ROOT, byte_length, is_below, join, normal, parent, parts, shown
from bk_core.protocol.files.records import CONTENT_MAX, Change, Delete, Mkdirs, Put, Rename, ReplaceAll, content_bytes, fault
from bk_core.protocol.files.tree import FileTree


@dataclass(frozen=True, slots=True)
class Decided:
    """``record`` makes the change; None: nothing is to be changed. ``answer`` makes the value from the tree that has the change."""

    record: Change | None
    answer: Callable[[FileTree], Any]


def put(tree: FileTree, path: str, content: Content, overwrite: bool, parents: bool, now_ms: int) -> Decided:
    path = normal(path)
    _check_content(content, path)
    if path == ROOT:
        raise PathIsDirectoryError("'/' is a directory: no file can be put there", path=path)
    missing = _missing(tree, parent(path))
    if missing and not parents:
        raise NoSuchPathError(f"the directory {shown(parent(path))} does not exist: make it first, or allow it to be made", path=path)
    old = tree.find(path)
    if old is not None and old.children is not None:
        raise PathIsDirectoryError(f"{shown(path)} is a directory: no file can be put there", path=path)
    if old is not None and not overwrite:
        raise PathExistsError(f"{shown(path)} exists already, and overwriting it was not asked for", path=path)
    return Decided(Put(path, content, now_ms, tree.next_id, missing), lambda after: after.status(path))


def _check_content(content: Content, path: str) -> None:
    wrong = fault(content)
    if wrong:
        raise InvalidArgumentError(f"{shown(path)} cannot have {wrong}", path=path)
    if content_bytes(content) > CONTENT_MAX:
        what = f"{len(content.extents)} extents" if content.extents else f"{len(content.inline)} bytes inline"
        raise InvalidArgumentError(f"{shown(path)}: a content of {what} has no room in a record; keep its bytes in data ledgers", path=path)


def mkdirs(tree: FileTree, path: str, now_ms: int) -> Decided:
    path = normal(path)
    node = tree.find(path)
    if node is not None and node.children is None:
        raise PathExistsError(f"{shown(path)} exists already, and is a file", path=path)
    missing = _missing(tree, path)
    record = Mkdirs(path, now_ms, tree.next_id, missing) if missing else None
    return Decided(record, lambda after: after.status(path))


def rename(tree: FileTree, src: str, dst: str, overwrite: bool, now_ms: int) -> Decided:
    src, dst = normal(src), normal(dst)
    if src == ROOT:
        raise InvalidArgumentError("'/' cannot be renamed", path=src)
    node = tree.find(src)
    if node is None:
        raise NoSuchPathError(f"{shown(src)} does not exist, so it cannot be renamed", path=src)
    if is_below(dst, src):
        raise InvalidArgumentError(f"{shown(src)} cannot be renamed to {shown(dst)}, which lies in it", path=src, to=dst)
    if _missing(tree, parent(dst)):
        raise NoSuchPathError(f"the directory {shown(parent(dst))} does not exist: make it first", path=dst)
    _check_length(tree, src, dst)
    old = tree.find(dst)
    if old is not None and not overwrite:
        raise PathExistsError(f"{shown(dst)} exists already, and overwriting it was not asked for", path=dst)
    if old is not None and (old.children is None) != (node.children is None):  # FS-19
        if old.children is not None:
            raise PathIsDirectoryError(f"{shown(dst)} is a directory, so the file {shown(src)} cannot take its place", path=dst, source=src)
        told = f"{shown(dst)} is a file, so the directory {shown(src)} cannot take its place"
        raise PathNotDirectoryError(told, path=dst, source=src)
    if old is not None and old.children and src != dst:
        raise DirectoryNotEmptyError(f"the directory {shown(dst)} is not empty, so nothing can take its place", path=dst)
    return Decided(Rename(src, dst, now_ms) if src != dst else None, lambda after: after.status(dst))


def _check_length(tree: FileTree, src: str, dst: str) -> None:
    """Raise InvalidPathError if a path below would become too long (FS-2). They are looked at only if the longest path of the store
    might."""
    grown = byte_length(dst) - byte_length(src)
    if grown > 0 and tree.longest + grown > PATH_MAX and tree.longest_below(src) + grown > PATH_MAX:
        told = f"{shown(src)} cannot be renamed to {shown(dst)}: a path below it would have more than {PATH_MAX} bytes"
        raise InvalidPathError(told, path=src, to=dst)


def delete(tree: FileTree, path: str, recursive: bool, now_ms: int) -> Decided:
    path = normal(path)
    node = tree.find(path)
    if node is None or (path == ROOT and not node.children):
        return Decided(None, lambda after: False)
    if node.children and not recursive:
        raise DirectoryNotEmptyError(f"the directory {shown(path)} is not empty, and deleting all of it was not asked for", path=path)
    return Decided(Delete(path, now_ms), lambda after: True)


def replace_all(tree: FileTree, src: str, now_ms: int) -> Decided:
    src = normal(src)
    if src == ROOT:
        raise InvalidArgumentError("'/' cannot take the place of all files: it is where they are", path=src)
    node = tree.find(src)
    if node is None:
        raise NoSuchPathError(f"{shown(src)} does not exist, so it cannot take the place of all files", path=src)
    if node.children is None:
        raise PathNotDirectoryError(f"{shown(src)} is a file, so it cannot take the place of all files", path=src)
    return Decided(ReplaceAll(src, now_ms), lambda after: after.status(ROOT))


def _missing(tree: FileTree, path: str) -> int:
    """The number of directories at the end of ``path`` that are not there. PathNotDirectoryError if one of them is a file."""
    node, names, reached = tree.root, parts(path), ROOT
    for index, name in enumerate(names):
        assert node.children is not None
        child = node.children.get(name)
        if child is None:
            return len(names) - index
        reached = join(reached, name)
        if child.children is None:
            raise PathNotDirectoryError(f"{shown(reached)} is a file, so it cannot have anything in it", path=path)
        node = child
    return 0
