"""Counts the rows of an Arrow record batch message, from the few fields that tell them. Pure, and without pyarrow.

The entries of an ``arrow`` log are such messages. A live segment has as many rows as entries (FORMAT.md), so whoever writes one has to know
that an entry is one row. bk_spark checks the rest of an entry when it is read.
"""

from __future__ import annotations

import struct

from bk_core.protocol import BytesLike

_MARK = 0xFFFFFFFF  # every message begins with it, and with the length of its metadata
_RECORD_BATCH = 3
_HEADER_TYPE, _HEADER = 1, 2  # fields of a Message
_LENGTH = 0  # field of a RecordBatch


def rows_of(entry: BytesLike) -> int | None:
    """Return the rows of an encapsulated record batch message, None for what is none."""
    data = memoryview(entry).cast("B")
    if len(data) < 8:
        return None
    mark, size = struct.unpack_from("<Ii", data)
    if mark != _MARK or not 0 < size <= len(data) - 8:
        return None
    try:
        return _rows(bytes(data[8 : 8 + size]))
    except (struct.error, ValueError):
        return None


def _rows(metadata: bytes) -> int | None:
    message = _number(metadata, "<I", 0)
    kind, header = _place(metadata, message, _HEADER_TYPE), _place(metadata, message, _HEADER)
    if kind is None or header is None or _number(metadata, "<B", kind) != _RECORD_BATCH:
        return None
    at = _place(metadata, header + _number(metadata, "<I", header), _LENGTH)
    return 0 if at is None else _number(metadata, "<q", at)


def _place(metadata: bytes, table: int, field: int) -> int | None:
    """Return the position of a field of a flatbuffer's table, None if the table leaves it out."""
    fields = table - _number(metadata, "<i", table)
    entry = 4 + 2 * field
    distance = _number(metadata, "<H", fields + entry) if entry < _number(metadata, "<H", fields) else 0
    return table + distance if distance else None


def _number(metadata: bytes, form: str, at: int) -> int:
    if at < 0:  # struct would count it from the end
        raise ValueError("a place before the metadata")
    return int(struct.unpack_from(form, metadata, at)[0])
