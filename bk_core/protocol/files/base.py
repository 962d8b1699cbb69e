"""Bases: the whole tree as records of the log, so that what is before them can be trimmed.

A base is one BaseBegin, any number of BasePart and one BaseEnd, one behind the other. It says the same as all records before it (FS-6).
"""

from __future__ import annotations

from zlib import crc32

from bk_core.errors import FileStoreFormatError
from bk_core.protocol.files.paths import byte_length
from bk_core.protocol.files.records import BaseBegin, BaseEnd, BaseNode, BasePart, encode, encode_node, encode_part
from bk_core.protocol.files.tree import ROOT_ID, FileTree, Node
from bk_core.protocol.log.position import Position


def encode_base(tree: FileTree, part_bytes: int) -> tuple[bytes, ...]:
    """The records of a base of ``tree``; a part has at most ``part_bytes`` of nodes, or one node. The same tree, the same bytes."""
    records = [encode(BaseBegin(tree.next_id, tree.root.modified_ms))]
    nodes: list[bytes] = []
    size = 0
    left = [tree.root]
    while left:
        directory = left.pop()
        for name, child in sorted((directory.children or {}).items()):
            node = encode_node(BaseNode(directory.file_id, name, child.file_id, child.modified_ms, child.content))
            if nodes and size + len(node) > part_bytes:
                records.append(encode_part(nodes))
                nodes, size = [], 0
            nodes.append(node)
            size += len(node)
            if child.children:
                left.append(child)
    if nodes:
        records.append(encode_part(nodes))
    checksum = 0
    for record in records:
        checksum = crc32(record, checksum)
    return (*records, encode(BaseEnd(tree.count, checksum)))


class BaseReader:
    """Takes the records of one base, in order, and makes a tree of them."""

    def __init__(self, begin: BaseBegin, record: bytes, position: Position) -> None:
        self.position = position
        self.size = len(record)
        self._checksum = crc32(record)
        self._begin = begin
        self._tree = FileTree()
        self._tree.root.modified_ms = self._tree.latest_ms = begin.modified_ms
        self._tree.next_id = begin.next_id  # FS-5
        self._directories = {ROOT_ID: (self._tree.root, 0)}  # by id: the node, and the bytes of its path, 0 of the root

    def take(self, part: BasePart, record: bytes) -> None:
        self.size += len(record)
        self._checksum = crc32(record, self._checksum)
        for one in part.nodes:
            self._insert(one)

    def _insert(self, one: BaseNode) -> None:
        directory, above = self._directories.get(one.directory, (None, 0))
        node = Node(one.content, one.modified_ms, one.file_id)
        if directory is None or one.file_id >= self._begin.next_id or not self._tree.insert(directory, one.name, node):
            raise FileStoreFormatError(f"a base has {one.name!r} in directory {one.directory}, where it cannot be", part=one.name)
        size = above + 1 + byte_length(one.name)
        self._tree.longest = max(self._tree.longest, size)
        self._tree.latest_ms = max(self._tree.latest_ms, one.modified_ms)
        if one.content is None:
            if one.file_id in self._directories:
                raise FileStoreFormatError(f"a base has two directories with the file id {one.file_id}")
            self._directories[one.file_id] = (node, size)

    def end(self, end: BaseEnd, record: bytes) -> FileTree:
        """Raises FileStoreFormatError for a base that is not whole (FS-3)."""
        self.size += len(record)
        if end.count != self._tree.count or end.checksum != self._checksum:
            raise FileStoreFormatError(f"a base has {self._tree.count} files and directories of {end.count}, or other ones: it is damaged")
        return self._tree
