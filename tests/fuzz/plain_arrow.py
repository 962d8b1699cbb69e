"""An entry decoded plainly, value by value, with nothing of the product and nothing of Arrow but its codecs: what hostile ones mean.

Rows are tuples of what lies in the bytes: numbers as integers (floats as their bits), texts as str, lists and maps as lists, structs as
tuples. Slow, and it reads everything.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any

import pyarrow as pa

LENGTH_MAX = 1 << 20  # more than that weighs too much, if nothing else


class NotSoundError(Exception):
    """The bytes are no record batch of the schema."""


class Message:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def number(self, form: str, at: int) -> int:
        size = struct.calcsize("<" + form)
        if not 0 <= at <= len(self.data) - size:
            raise NotSoundError("points out")
        return int(struct.unpack("<" + form, self.data[at : at + size])[0])

    def fields(self, at: int) -> dict[int, int]:
        """Return the place of each field of the table at ``at``."""
        vtable = at - self.number("i", at)
        size = self.number("H", vtable)
        if size % 2 or size < 4:
            raise NotSoundError("a vtable")
        places = [self.number("H", vtable + 4 + 2 * i) for i in range((size - 4) // 2)]
        return {i: at + place for i, place in enumerate(places) if place}

    def follow(self, at: int) -> int:
        return at + self.number("I", at)

    def pairs(self, at: int) -> list[tuple[int, int]]:
        count = self.number("I", at)
        if count > len(self.data):
            raise NotSoundError("too many")
        return [(self.number("q", at + 4 + 16 * i), self.number("q", at + 12 + 16 * i)) for i in range(count)]


def rows_of(entry: bytes, schema: pa.Schema, names: Collection[str]) -> list[tuple[Any, ...]]:
    """The columns ``names``, in the order of the schema; the values of others are not looked at. NotSoundError."""
    if len(entry) < 8 or entry[:4] != b"\xff\xff\xff\xff":
        raise NotSoundError("no mark")
    (length,) = struct.unpack("<i", entry[4:8])
    if length <= 0 or length + 8 > len(entry):
        raise NotSoundError("no metadata")
    message, body = Message(entry[8 : 8 + length]), entry[8 + length :]
    top = message.fields(message.number("I", 0))
    if message.number("h", top.get(0, -1)) != 4 or message.number("B", top.get(1, -1)) != 3:
        raise NotSoundError("another message")
    if (message.number("q", top[3]) if 3 in top else 0) != len(body):
        raise NotSoundError("another body")
    batch = message.fields(message.follow(top.get(2, -1)))
    codec = None
    if 3 in batch:
        compression = message.fields(message.follow(batch[3]))
        number = message.number("b", compression[0]) if 0 in compression else 0
        method = message.number("b", compression[1]) if 1 in compression else 0
        if number not in (0, 1) or method:
            raise NotSoundError("a codec")
        codec = pa.Codec(("lz4", "zstd")[number])
    nodes, buffers = message.pairs(message.follow(batch.get(1, -1))), message.pairs(message.follow(batch.get(2, -1)))
    count = message.number("q", batch[0]) if 0 in batch else 0
    reader = _Columns(nodes, buffers, body, codec)
    columns: list[list[Any]] = []
    for f in schema:
        if f.name in names:
            columns.append(reader.column(f.type, f.nullable, count))
        else:
            reader.skip(f.type)
    if reader.nodes or reader.buffers:
        raise NotSoundError("more than the schema")
    return list(zip(*columns, strict=True))


class _Columns:
    def __init__(self, nodes: list[tuple[int, int]], buffers: list[tuple[int, int]], body: bytes, codec: Any) -> None:
        self.nodes, self.buffers, self.body, self.codec = nodes, buffers, body, codec

    def skip(self, kind: pa.DataType) -> None:
        if not self.nodes:
            raise NotSoundError("a column is missing")
        self.nodes.pop(0)
        leaf = pa.types.is_string(kind) or pa.types.is_binary(kind)
        del self.buffers[: 0 if pa.types.is_null(kind) else 3 if leaf else 1 if pa.types.is_struct(kind) else 2]
        if pa.types.is_map(kind):
            self.skip(pa.struct([kind.key_field, kind.item_field]))
        elif pa.types.is_list(kind):
            self.skip(kind.value_type)
        elif pa.types.is_struct(kind):
            for i in range(kind.num_fields):
                self.skip(kind.field(i).type)

    def column(self, kind: pa.DataType, nullable: bool, demanded: int | None, there: list[bool] | None = None) -> list[Any]:
        """``demanded``: its length; None for what a list points into. ``there``: rows in which the struct around it is not null."""
        if not self.nodes:
            raise NotSoundError("a column is missing")
        length, nulls = self.nodes.pop(0)
        if (demanded is not None and length != demanded) or not 0 <= nulls <= length <= LENGTH_MAX:
            raise NotSoundError("a length")
        if pa.types.is_null(kind):
            return [None] * length
        valid = [True] * length
        if nulls:
            valid = _bits(self._buffer(), length)
            if valid.count(False) != nulls:
                raise NotSoundError("nulls")
        elif self.buffers:  # where nothing is null nobody reads the bits, so they need not be any
            self.buffers.pop(0)
        else:
            raise NotSoundError("a buffer is missing")
        if not nullable and any(not ok and (there is None or around) for ok, around in zip(valid, there or valid_all(length), strict=True)):
            raise NotSoundError("a null")
        values = self._values(kind, length, valid if there is None else [a and b for a, b in zip(valid, there, strict=True)])
        return [value if ok else None for value, ok in zip(values, valid, strict=True)]

    def _values(self, kind: pa.DataType, length: int, valid: list[bool]) -> list[Any]:
        types = pa.types
        if types.is_struct(kind):
            parts = [self.column(kind.field(i).type, kind.field(i).nullable, length, valid) for i in range(kind.num_fields)]
            return [tuple(part[row] for part in parts) for row in range(length)]
        if types.is_map(kind) or types.is_list(kind):
            edges = self._edges(length)
            entries = pa.struct([kind.key_field, kind.item_field]) if types.is_map(kind) else None
            child = (
                self.column(entries, False, None) if entries is not None else self.column(kind.value_type, kind.value_field.nullable, None)
            )
            return [child[a:b] for a, b in _spans(edges, len(child))]
        if types.is_string(kind) or types.is_binary(kind):
            edges = self._edges(length)
            data = self._buffer()
            found = [data[a:b] for a, b in _spans(edges, len(data))]
            if types.is_binary(kind):
                return found
            try:
                # a text that is null has bytes too, and nobody looks at them
                return [part.decode() if ok else None for part, ok in zip(found, valid, strict=True)]
            except UnicodeDecodeError as error:
                raise NotSoundError("a text") from error
        data = self._buffer()
        if types.is_boolean(kind):
            return _bits(data, length)
        width = kind.bit_width // 8
        if len(data) < width * length:
            raise NotSoundError("values are missing")
        numbers = [int.from_bytes(data[i * width : (i + 1) * width], "little", signed=True) for i in range(length)]
        if types.is_decimal(kind) and any(ok and abs(n) >= 10**kind.precision for n, ok in zip(numbers, valid, strict=True)):
            raise NotSoundError("a decimal")
        return numbers

    def _edges(self, length: int) -> list[int]:
        data = self._buffer()
        if not length:
            return [0]
        if len(data) < 4 * (length + 1):
            raise NotSoundError("offsets are missing")
        return list(struct.unpack(f"<{length + 1}i", data[: 4 * (length + 1)]))

    def _buffer(self) -> bytes:
        if not self.buffers:
            raise NotSoundError("a buffer is missing")
        begin, size = self.buffers.pop(0)
        if begin < 0 or size < 0 or begin + size > len(self.body):
            raise NotSoundError("a buffer lies outside")
        data = self.body[begin : begin + size]
        if self.codec is None or not data:
            return data
        if size < 8:
            raise NotSoundError("no size")
        (declared,) = struct.unpack("<q", data[:8])
        if declared == -1:
            return data[8:]
        if not 0 <= declared <= LENGTH_MAX:
            raise NotSoundError("a declared size")
        try:
            return bytes(self.codec.decompress(data[8:], declared))
        except (OSError, pa.ArrowException) as error:
            raise NotSoundError("not to be decompressed") from error


def valid_all(length: int) -> list[bool]:
    return [True] * length


def _bits(data: bytes, count: int) -> list[bool]:
    if 8 * len(data) < count:
        raise NotSoundError("bits are missing")
    return [bool(data[i // 8] >> (i % 8) & 1) for i in range(count)]


def _spans(edges: list[int], end: int) -> list[tuple[int, int]]:
    spans = list(zip(edges, edges[1:], strict=False))
    if any(a > b for a, b in spans) or edges[0] < 0 or edges[-1] > end:
        raise NotSoundError("offsets")
    return spans
