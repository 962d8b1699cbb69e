"""The tree of files: what the records of a store, applied in order, amount to. Plain dictionaries, so that a directory may have any
number of children: one more or one less costs the same, and a listing sorts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bk_core.errors import FileStoreFormatError, NoSuchPathError, PathIsDirectoryError
from bk_core.protocol.calendar import FIRST_MS
from bk_core.protocol.files.content import Content, FileStatus
from bk_core.protocol.files.paths import PATH_MAX, ROOT, byte_length, join, normal, parent, parts, shown
from bk_core.protocol.files.records import Change, Delete, Mkdirs, Put, Rename, ReplaceAll

ROOT_ID = 1


class Node:
    """A directory has ``children``, a file has ``content``."""

    __slots__ = ("children", "content", "file_id", "modified_ms")

    def __init__(self, content: Content | None, modified_ms: int, file_id: int) -> None:
        self.content = content
        self.children: dict[str, Node] | None = {} if content is None else None
        self.modified_ms = modified_ms
        self.file_id = file_id


class FileTree:
    """``ledgers``: by data ledger, how many extents of files refer to it (FS-13). ``count``: files and directories, without the root.

    ``longest``: no path has more bytes than that; it may be more than the longest path has. ``latest_ms``: nothing was modified later.
    """

    def __init__(self) -> None:
        self.root = Node(None, 0, ROOT_ID)
        self.next_id = ROOT_ID + 1
        self.count = 0
        self.longest = 1
        self.latest_ms = FIRST_MS
        self.ledgers: dict[int, int] = {}

    # --- reading ------------------------------------------------------------------------------------------------------

    def find(self, path: str) -> Node | None:
        """The node of a path in normal form; None if there is none."""
        node = self.root
        for name in parts(path):
            child = node.children.get(name) if node.children is not None else None
            if child is None:
                return None
            node = child
        return node

    def exists(self, path: str) -> bool:
        return self.find(normal(path)) is not None

    def status(self, path: str) -> FileStatus:
        """Raises NoSuchPathError if there is nothing, also because a part above it is a file."""
        path = normal(path)
        return _status(path, self._existing(path))

    def listing(self, path: str) -> list[FileStatus]:
        """The children of a directory, sorted by name; of a file its own status alone. NoSuchPathError."""
        path = normal(path)
        node = self._existing(path)
        if node.children is None:
            return [_status(path, node)]
        return [_status(join(path, name), child) for name, child in sorted(node.children.items())]

    def content(self, path: str) -> Content:
        """Raises NoSuchPathError; PathIsDirectoryError."""
        path = normal(path)
        content = self._existing(path).content
        if content is None:
            raise PathIsDirectoryError(f"{shown(path)} is a directory, and has no content", path=path)
        return content

    def walk(self, path: str = ROOT) -> Iterator[FileStatus]:
        """``path`` and all below it; a directory before what is in it, names sorted. The tree must not change meanwhile."""
        path = normal(path)
        left = [(path, self._existing(path))]
        while left:
            path, node = left.pop()
            yield _status(path, node)
            if node.children:
                left += [(join(path, name), child) for name, child in sorted(node.children.items(), reverse=True)]

    def _existing(self, path: str) -> Node:
        node = self.find(path)
        if node is None:
            raise NoSuchPathError(f"{shown(path)} does not exist", path=path)
        return node

    def longest_below(self, path: str) -> int:
        """Bytes of the longest path at or below ``path``, which exists. It looks at all of them."""
        found = 0
        left = [(byte_length(path) if path != ROOT else 0, self._existing(path))]
        while left:
            size, node = left.pop()
            found = max(found, size)
            if node.children:
                left += [(size + 1 + byte_length(name), child) for name, child in node.children.items()]
        return found

    # --- changing -----------------------------------------------------------------------------------------------------

    def apply(self, record: Change) -> Sequence[int]:
        """The data ledgers that nothing in the tree refers to any more. FileStoreFormatError for a record that does not fit (FS-3)."""
        self.latest_ms = max(self.latest_ms, record.modified_ms)
        match record:
            case Put():
                return self._put(record)
            case Mkdirs():
                names = parts(record.path)
                if record.made < 1:
                    raise _misfit(record.path, "is made, without anything that is missing")
                self._way(names, record)
                self.longest = max(self.longest, byte_length(record.path))
                return ()
            case Rename():
                return self._rename(record)
            case Delete():
                return self._delete(record)
            case ReplaceAll():
                return self._replace_all(record)

    def _put(self, record: Put) -> Sequence[int]:
        *above, name = parts(record.path) or [""]
        directory = self._way(above, record)
        old = _children(directory).get(name)
        if not name or (old is not None and old.content is None):
            raise _misfit(record.path, "is put, and is a directory")
        self._insert(directory, name, Node(record.content, record.modified_ms, self._take_id(record.file_id + record.made)))
        directory.modified_ms = record.modified_ms
        self.longest = max(self.longest, byte_length(record.path))
        return self._removed(old) if old is not None else ()

    def _way(self, names: list[str], record: Put | Mkdirs) -> Node:
        """The directory at the end of ``names``; the last ones, as many as the record says, are made."""
        node, there = self.root, len(names) - record.made
        for index, name in enumerate(names):
            children = _children(node)
            child = children.get(name)
            if (child is None) != (index >= there):
                raise _misfit(record.path, f"is put where the directory {name!r} is {'not there' if child is None else 'there already'}")
            if child is None:
                child = Node(None, record.modified_ms, self._take_id(record.file_id + index - there))
                self._insert(node, name, child)
                node.modified_ms = record.modified_ms
            node = child
        if there < 0 or node.children is None:
            raise _misfit(record.path, "is put below what is no directory")
        return node

    def _take_id(self, file_id: int) -> int:
        """Take a file id. None is ever given twice (FS-5)."""
        if file_id < self.next_id:
            raise FileStoreFormatError(f"a record gives away the file id {file_id}, although all below {self.next_id} have been given away")
        self.next_id = file_id + 1
        return file_id

    def _rename(self, record: Rename) -> Sequence[int]:
        source, target = self.find(parent(record.src)), self.find(parent(record.dst))
        name, new_name = record.src.rpartition("/")[2], record.dst.rpartition("/")[2]
        node = source.children.get(name) if source is not None and source.children is not None else None
        if source is None or target is None or node is None or not new_name or target.children is None:
            raise _misfit(record.src, f"is renamed to {shown(record.dst)}, which is not possible")
        old = target.children.get(new_name)
        if (old is not None and old.children) or old is node or (record.dst + "/").startswith(record.src + "/"):
            raise _misfit(record.src, f"is renamed to {shown(record.dst)}, which is in its way")
        del _children(source)[name]
        target.children[new_name] = node
        source.modified_ms = target.modified_ms = record.modified_ms
        size = byte_length(record.dst)
        if node.children:
            self.longest = min(PATH_MAX, self.longest + max(0, size - byte_length(record.src)))  # no change makes a path longer (FS-2)
        else:
            self.longest = max(self.longest, size)
        return self._removed(old) if old is not None else ()

    def _delete(self, record: Delete) -> Sequence[int]:
        directory, name = self.find(parent(record.path)), record.path.rpartition("/")[2]
        if record.path == ROOT:
            gone = list(_children(self.root).values())
            _children(self.root).clear()
        else:
            node = directory.children.pop(name, None) if directory is not None and directory.children is not None else None
            gone = [node] if node is not None else []
        if not gone or directory is None:
            raise _misfit(record.path, "is deleted, and is not there")
        directory.modified_ms = record.modified_ms
        return [ledger_id for node in gone for ledger_id in self._removed(node)]

    def _replace_all(self, record: ReplaceAll) -> Sequence[int]:
        """Put what lies in a directory in the place of all files (FS-20). No path becomes longer, so ``longest`` stays what it is."""
        source = self.find(record.src)
        if source is None or source is self.root or source.children is None:
            raise _misfit(record.src, "takes the place of all files, and is no directory below the root")
        kept, source.children = source.children, {}
        gone, self.root.children = list(_children(self.root).values()), kept
        self.root.modified_ms = record.modified_ms
        return [ledger_id for node in gone for ledger_id in self._removed(node)]

    def _insert(self, directory: Node, name: str, node: Node) -> None:
        """Insert a node. The caller then removes what had the name before."""
        _children(directory)[name] = node
        self.count += 1
        if node.content is not None:
            for extent in node.content.extents:
                self.ledgers[extent.ledger_id] = self.ledgers.get(extent.ledger_id, 0) + 1

    def insert(self, directory: Node, name: str, node: Node) -> bool:
        """Insert a file of a base. Return False if the directory is a file, or has something of this name."""
        if directory.children is None or name in directory.children:
            return False
        self._insert(directory, name, node)
        return True

    def _removed(self, node: Node) -> Sequence[int]:
        """``node`` has left its directory, or another one has taken its place there."""
        unreferenced: list[int] = []
        left = [node]
        while left:
            node = left.pop()
            self.count -= 1
            left += node.children.values() if node.children else ()
            for extent in node.content.extents if node.content is not None else ():
                self.ledgers[extent.ledger_id] -= 1
                if not self.ledgers[extent.ledger_id]:
                    del self.ledgers[extent.ledger_id]
                    unreferenced.append(extent.ledger_id)
        return unreferenced

    def copy(self) -> FileTree:
        """Another tree with the same contents, which may change without this one."""
        other = FileTree()
        other.next_id, other.count, other.longest, other.ledgers = self.next_id, self.count, self.longest, dict(self.ledgers)
        other.root.modified_ms, other.latest_ms = self.root.modified_ms, self.latest_ms
        left = [(self.root, other.root)]
        while left:
            old, new = left.pop()
            for name, child in _children(old).items():
                twin = Node(child.content, child.modified_ms, child.file_id)
                _children(new)[name] = twin
                if child.children:
                    left.append((child, twin))
        return other


def _children(node: Node) -> dict[str, Node]:
    if node.children is None:
        raise FileStoreFormatError("a record has a file where a directory is needed")
    return node.children


def _misfit(path: str, what: str) -> FileStoreFormatError:
    return FileStoreFormatError(f"a record does not fit what was before it: {shown(path)} {what}", path=path)


def _status(path: str, node: Node) -> FileStatus:
    if node.content is None:
        return FileStatus(path, True, 0, node.modified_ms, node.file_id, len(node.children or ()))
    return FileStatus(path, False, node.content.size, node.modified_ms, node.file_id)
