"""The records of a file store's log, as values and as bytes. FORMAT.md has every byte.

A record of a change carries what was decided: it was validated before it was appended, and applying it never fails. The same record is
always the same bytes. Whatever its bytes cannot be trusted with is a FileStoreFormatError (FS-3).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from zlib import crc32

from bk_core.errors import FileStoreFormatError, InvalidPathError
from bk_core.protocol.files.content import Content, Extent
from bk_core.protocol.files.paths import PART_MAX, ROOT, normal

VERSION, VERSION_MAX = 1, 2
PUT, MKDIRS, RENAME, DELETE, REPLACE_ALL = 1, 2, 3, 4, 5
BASE_BEGIN, BASE_PART, BASE_END = 16, 17, 18
RECORD_MAX = 512 << 10  # bytes of one record: every log takes entries of that size
CONTENT_MAX = RECORD_MAX - (16 << 10)  # of an encoded content, so that its path and the rest of the record have room

_HEADER = struct.Struct(">BBI")  # version, kind, CRC-32 of these two bytes and all behind it
_MADE = struct.Struct(">qQHH")  # Put, Mkdirs: modified_ms, file_id, made, bytes of the path
_RENAME = struct.Struct(">qHH")
_PLACE = struct.Struct(">qH")  # Delete, ReplaceAll: modified_ms, bytes of the path
_BASE_BEGIN = struct.Struct(">Qq")
_BASE_PART = struct.Struct(">I")
_BASE_END = struct.Struct(">QI")
_NODE = struct.Struct(">QQqBB")  # directory, file_id, modified_ms, is a directory, bytes of the name
_CONTENT = struct.Struct(">II")  # bytes inline, extents
_EXTENT = struct.Struct(">QQQQI")
_BODY = _HEADER.size
_MALFORMED = (struct.error, UnicodeDecodeError, InvalidPathError, ValueError)


@dataclass(frozen=True, slots=True)
class Put:
    """The file ``path`` is there with ``content``, instead of one that may have been there. The last ``made`` directories above it are
    made with it; they have the ids from ``file_id`` on, outermost first, and the file has the one behind them."""

    path: str
    content: Content
    modified_ms: int
    file_id: int
    made: int = 0


@dataclass(frozen=True, slots=True)
class Mkdirs:
    """The last ``made`` parts of ``path`` are made as directories, with the ids from ``file_id`` on, outermost first."""

    path: str
    modified_ms: int
    file_id: int
    made: int


@dataclass(frozen=True, slots=True)
class Rename:
    """``src`` with all below it lies at ``dst``, instead of a file or an empty directory that may have been there."""

    src: str
    dst: str
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Delete:
    """``path`` with all below it is gone; of the root, all below it."""

    path: str
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ReplaceAll:
    """All in the directory ``src`` lies in the root instead, and all else is gone, ``src`` too (FS-20)."""

    src: str
    modified_ms: int


@dataclass(frozen=True, slots=True)
class BaseBegin:
    """A snapshot of the tree begins, as it is behind all records before. ``next_id``: the first file id not yet given away."""

    next_id: int
    modified_ms: int  # of the root


@dataclass(frozen=True, slots=True)
class BaseNode:
    """A file, or a directory (``content`` is None), in the directory with the id ``directory``, which a node before it has, or the root."""

    directory: int
    name: str
    file_id: int
    modified_ms: int
    content: Content | None


@dataclass(frozen=True, slots=True)
class BasePart:
    nodes: tuple[BaseNode, ...]


@dataclass(frozen=True, slots=True)
class BaseEnd:
    """The snapshot is whole if it has ``count`` nodes besides the root, and ``checksum`` is the CRC-32 of all its other records."""

    count: int
    checksum: int


Change = Put | Mkdirs | Rename | Delete | ReplaceAll
Record = Change | BaseBegin | BasePart | BaseEnd


# --- writing ----------------------------------------------------------------------------------------------------------


def encode(record: Record) -> bytes:
    """One entry of the log."""
    match record:
        case Put():
            return _whole(PUT, _made(record) + encode_content(record.content))
        case Mkdirs():
            return _whole(MKDIRS, _made(record))
        case Rename(src, dst, modified_ms):
            source, target = src.encode(), dst.encode()
            return _whole(RENAME, _RENAME.pack(modified_ms, len(source), len(target)) + source + target)
        case Delete(path, modified_ms):
            return _whole(DELETE, _place(path, modified_ms))
        case ReplaceAll(src, modified_ms):
            return _whole(REPLACE_ALL, _place(src, modified_ms))
        case BaseBegin(next_id, modified_ms):
            return _whole(BASE_BEGIN, _BASE_BEGIN.pack(next_id, modified_ms))
        case BasePart(nodes):
            return encode_part([encode_node(node) for node in nodes])
        case BaseEnd(count, checksum):
            return _whole(BASE_END, _BASE_END.pack(count, checksum))


def _whole(kind: int, body: bytes) -> bytes:
    return _HEADER.pack(version_of(kind), kind, crc32(body, _SEEDS[kind])) + body


def version_of(kind: int) -> int:
    """The first version that has the kind: programs of an earlier one refuse these records, and no others."""
    return _LATER.get(kind, VERSION)


def _made(record: Put | Mkdirs) -> bytes:
    name = record.path.encode()
    return _MADE.pack(record.modified_ms, record.file_id, record.made, len(name)) + name


def _place(path: str, modified_ms: int) -> bytes:
    name = path.encode()
    return _PLACE.pack(modified_ms, len(name)) + name


def encode_content(content: Content) -> bytes:
    extents = [_EXTENT.pack(e.ledger_id, e.first_entry_id, e.last_entry_id, e.length, e.piece) for e in content.extents]
    return b"".join((_CONTENT.pack(len(content.inline), len(extents)), content.inline, *extents))


def content_bytes(content: Content) -> int:
    """Bytes of ``encode_content``."""
    return _CONTENT.size + len(content.inline) + _EXTENT.size * len(content.extents)


def encode_node(node: BaseNode) -> bytes:
    name, is_directory = node.name.encode(), node.content is None
    head = _NODE.pack(node.directory, node.file_id, node.modified_ms, is_directory, len(name)) + name
    return head if node.content is None else head + encode_content(node.content)


def encode_part(nodes: list[bytes]) -> bytes:
    """A BasePart of nodes that ``encode_node`` made."""
    return _whole(BASE_PART, b"".join((_BASE_PART.pack(len(nodes)), *nodes)))


# --- reading ----------------------------------------------------------------------------------------------------------


def decode(record: bytes) -> Record:
    """Raises FileStoreFormatError for bytes that are damaged, or that a later version wrote (FS-3)."""
    try:
        if len(record) < _BODY:
            told = f"the entry is no record of a store ({len(record)} bytes): somebody else wrote to this log"
            raise FileStoreFormatError(told)
        version, kind, checksum = _HEADER.unpack_from(record)
        if version != version_of(kind):
            told = f"the entry begins as a record of version {version} and kind {kind} would"
            told = f"{told}, and this program reads version {version_of(kind)}"
            raise FileStoreFormatError(f"{told}: a later program wrote it, or it is no record of a store")
        reader = _READERS.get(kind)
        if reader is None:
            raise FileStoreFormatError(f"a record of kind {kind}, which this program does not know")
        if crc32(memoryview(record)[_BODY:], _SEEDS[kind]) != checksum:
            raise FileStoreFormatError(f"a record of {len(record)} bytes whose checksum does not fit: it is damaged")
        return reader(record)
    except _MALFORMED as error:
        raise FileStoreFormatError(f"a record of {len(record)} bytes, kind {kind}, that does not hold what its kind has") from error


def _end_at(record: bytes, end: int) -> None:
    if end != len(record):
        raise ValueError(f"{len(record)} bytes where {end} are told")


def _path(record: bytes, at: int, size: int) -> str:
    path = record[at : at + size].decode()
    if normal(path) != path:
        raise ValueError(f"path {path!r} is not in normal form")
    return path


def _read_put(record: bytes) -> Put:
    modified_ms, file_id, made, size = _MADE.unpack_from(record, _BODY)
    at = _BODY + _MADE.size
    content, end = _read_content(record, at + size)
    _end_at(record, end)
    return Put(_path(record, at, size), content, modified_ms, file_id, made)


def _read_mkdirs(record: bytes) -> Mkdirs:
    modified_ms, file_id, made, size = _MADE.unpack_from(record, _BODY)
    at = _BODY + _MADE.size
    _end_at(record, at + size)
    return Mkdirs(_path(record, at, size), modified_ms, file_id, made)


def _read_rename(record: bytes) -> Rename:
    modified_ms, source, target = _RENAME.unpack_from(record, _BODY)
    at = _BODY + _RENAME.size
    _end_at(record, at + source + target)
    return Rename(_path(record, at, source), _path(record, at + source, target), modified_ms)


def _read_delete(record: bytes) -> Delete:
    return Delete(*_read_place(record))


def _read_replace_all(record: bytes) -> ReplaceAll:
    return ReplaceAll(*_read_place(record))


def _read_place(record: bytes) -> tuple[str, int]:
    modified_ms, size = _PLACE.unpack_from(record, _BODY)
    at = _BODY + _PLACE.size
    _end_at(record, at + size)
    return _path(record, at, size), modified_ms


def _read_content(record: bytes, at: int) -> tuple[Content, int]:
    inline, extents = _CONTENT.unpack_from(record, at)
    at += _CONTENT.size
    end = at + inline + extents * _EXTENT.size
    if end > len(record):  # before anything of that size is made
        raise ValueError(f"{len(record)} bytes where {end} are told")
    if not extents:
        return Content(record[at:end]), end
    spans = _EXTENT.iter_unpack(memoryview(record)[at + inline : end])
    content = Content(record[at : at + inline], tuple(Extent(*span) for span in spans))
    wrong = fault(content)
    if wrong:
        raise ValueError(wrong)
    return content, end


def fault(content: Content) -> str:
    """The reason why ``content`` cannot be that of a file; empty if it can."""
    if content.inline and content.extents:
        return "content that is inline and in extents at the same time"
    for e in content.extents:
        if min(e.ledger_id, e.first_entry_id, e.last_entry_id - e.first_entry_id) < 0 or max(e.ledger_id, e.last_entry_id, e.length) >> 63:
            return f"{e} names no entries"
        if e.length <= 0 or not 0 < e.piece < 1 << 32 or (e.length - 1) // e.piece != e.last_entry_id - e.first_entry_id:
            return f"{e} has another length than its entries can have"
    return ""


def _read_base_begin(record: bytes) -> BaseBegin:
    _end_at(record, _BODY + _BASE_BEGIN.size)
    return BaseBegin(*_BASE_BEGIN.unpack_from(record, _BODY))


def _read_base_part(record: bytes) -> BasePart:
    (count,) = _BASE_PART.unpack_from(record, _BODY)
    at = _BODY + _BASE_PART.size
    nodes = []
    for _ in range(count):
        node, at = _read_node(record, at)
        nodes.append(node)
    _end_at(record, at)
    return BasePart(tuple(nodes))


def _read_node(record: bytes, at: int) -> tuple[BaseNode, int]:
    directory, file_id, modified_ms, is_directory, size = _NODE.unpack_from(record, at)
    at += _NODE.size
    name = _name(record[at : at + size])
    content, end = (None, at + size) if is_directory == 1 else _read_content(record, at + size)
    if is_directory > 1:
        raise ValueError(f"a node of kind {is_directory}")
    return BaseNode(directory, name, file_id, modified_ms, content), end


def _name(encoded: bytes) -> str:
    name = encoded.decode()
    if "/" in name or normal(ROOT + name) != ROOT + name or not 0 < len(encoded) <= PART_MAX:
        raise ValueError(f"{name!r} is no name of a file")
    return name


def _read_base_end(record: bytes) -> BaseEnd:
    _end_at(record, _BODY + _BASE_END.size)
    return BaseEnd(*_BASE_END.unpack_from(record, _BODY))


_READERS: dict[int, Callable[[bytes], Record]] = {
    PUT: _read_put,
    MKDIRS: _read_mkdirs,
    RENAME: _read_rename,
    DELETE: _read_delete,
    REPLACE_ALL: _read_replace_all,
    BASE_BEGIN: _read_base_begin,
    BASE_PART: _read_base_part,
    BASE_END: _read_base_end,
}
_LATER = {REPLACE_ALL: VERSION_MAX}
_SEEDS = {kind: crc32(bytes((version_of(kind), kind))) for kind in _READERS}
