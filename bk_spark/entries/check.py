"""Checks an entry's own description before Arrow sees it: every buffer lies in the entry and is as large as its column needs.

An entry is one encapsulated IPC message: a mark, the length of the metadata, the metadata (a flatbuffer ``Message`` with a
``RecordBatch``), and the body with the buffers of all columns. A digest proves that an entry is the one that was written, but not that its
writer was right or meant well. Arrow trusts much of the metadata, and code that takes record batches trusts their buffers, so everything is
checked: the structure here, the values (offsets, UTF-8, decimals, ...) by ``values`` once they are decoded.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pyarrow as pa

from bk_core.protocol import BytesLike
from bk_spark.entries.flatbuffer import FlatBuffer, Table
from bk_spark.entries.words import OF_SPARK, Words

ROWS_MAX = (1 << 31) - 1
"""Spark and Arrow's 32-bit offsets take no more in one array."""
_PREFIX = struct.Struct("<Ii")
_I64 = struct.Struct("<q")
_MARK = 0xFFFFFFFF
_V5 = 4  # Arrow reads V4's compression from another place, which nothing here looks at
_RECORD_BATCH = 3
_CODECS = (0, 1)  # LZ4_FRAME, ZSTD
_AS_IT_IS = -1  # a buffer that compression would have made larger
_ROOT, _FREE = -1, -2  # the length of a column: the batch's; or its own, because offsets point into it
_VALIDITY, _OFFSETS = -1, -2  # instead of the bits that each value takes


class BadEntryError(ValueError):
    """An entry is no record batch of the schema. The text gives the reason, and begins where "it" is the entry."""


class EntryTooBigError(BadEntryError):
    """An entry holds more bytes than the reader takes."""


@dataclass(frozen=True, slots=True)
class EntryShape:
    """``bytes`` are those of the wanted columns, decompressed."""

    rows: int
    compressed: bool
    bytes: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """The places at which metadata of one form keep the values that differ from entry to entry. ``fixed`` is all the rest, as (begin, end,
    bytes)."""

    size: int
    rows_at: int | None
    body_at: int | None
    nodes_at: int
    buffers_at: int
    compressed: bool
    fixed: tuple[tuple[int, int, bytes], ...]

    def fits(self, metadata: bytes) -> bool:
        return len(metadata) == self.size and all(metadata[begin:end] == rest for begin, end, rest in self.fixed)


class EntryCheck:
    """Checks entries of one schema, one after the other. ``bytes_max`` bounds all buffers of an entry once they are decompressed.
    ``wanted`` are the numbers of the columns whose bytes are told; None means all."""

    def __init__(self, schema: pa.Schema, bytes_max: int, words: Words = OF_SPARK, wanted: Collection[int] | None = None) -> None:
        self._bytes_max = bytes_max
        self._words = words
        self._parents: list[int] = []
        self._names: list[str] = []
        self._weightless: list[int] = []
        self._buffers: list[tuple[int, int]] = []
        counted: list[int] = []
        for number, field in enumerate(schema):
            begin = len(self._buffers)
            self._add(field.name, field.type, _ROOT)
            if wanted is None or number in wanted:
                counted += range(begin, len(self._buffers))
        self._counted = None if len(counted) == len(self._buffers) else counted
        self._nodes_form = struct.Struct(f"<{2 * len(self._parents)}q")
        self._buffers_form = struct.Struct(f"<{2 * len(self._buffers)}q")
        self._layout: _Layout | None = None
        self._last: tuple[int, bytes, EntryShape] | None = None

    def shape(self, values: BytesLike, begin: int, end: int) -> EntryShape:
        """Return the shape of the entry ``values[begin:end]``. Raises BadEntryError and EntryTooBigError."""
        if end - begin < _PREFIX.size:
            raise BadEntryError(f"it has {end - begin} bytes")
        mark, length = _PREFIX.unpack_from(values, begin)
        body = begin + _PREFIX.size + length
        if mark != _MARK or length <= 0 or body > end:
            raise BadEntryError("it does not begin as an Arrow message does")
        metadata = bytes(memoryview(values)[begin + _PREFIX.size : body])
        if self._last is not None and self._last[:2] == (end - begin, metadata):
            return self._last[2]  # fixed-width columns: all but the body is the same
        try:
            layout = self._layout_of(metadata)
        except (ValueError, struct.error) as error:
            raise BadEntryError(str(error)) from None
        rows, body_length = _number(metadata, layout.rows_at), _number(metadata, layout.body_at)
        if body_length != end - body:
            raise BadEntryError(f"it says that its body has {body_length} bytes, and {end - body} are there")
        nodes = self._nodes_form.unpack_from(metadata, layout.nodes_at)
        lengths, nulls = nodes[::2], nodes[1::2]
        self._check_lengths(rows, lengths, nulls)
        sizes = self._sizes(self._buffers_form.unpack_from(metadata, layout.buffers_at), body_length)
        if layout.compressed:
            sizes = self._declared(values, body, sizes)
        total = sum(size for _, size in sizes) + sum(lengths[node] for node in self._weightless)
        if total > self._bytes_max:
            raise EntryTooBigError(f"its columns take {total:,} bytes, and {self._words.too_wide_to_read.format(limit=self._bytes_max)}")
        self._check_sizes(lengths, nulls, [size for _, size in sizes])
        told = total if self._counted is None else sum(sizes[number][1] for number in self._counted)
        shape = EntryShape(rows, layout.compressed, told)
        self._last = None if layout.compressed else (end - begin, metadata, shape)
        return shape

    # --- the plan: columns in the order of an entry's nodes, and their buffers ----------------------------------------------

    def _add(self, name: str, kind: pa.DataType, parent: int) -> None:
        node = len(self._parents)
        self._parents.append(parent)
        self._names.append(name)
        if pa.types.is_null(kind):
            self._weightless.append(node)
            return
        self._buffers.append((node, _VALIDITY))
        if pa.types.is_struct(kind):
            if not kind.num_fields:
                self._weightless.append(node)
            for child in _fields(kind):
                self._add(f"{name}.{child.name}", child.type, node)
        elif pa.types.is_map(kind):
            self._buffers.append((node, _OFFSETS))
            self._add(f"{name}.entries", pa.struct([kind.key_field, kind.item_field]), _FREE)
        elif pa.types.is_list(kind):
            self._buffers.append((node, _OFFSETS))
            self._add(f"{name}.element", kind.value_type, _FREE)
        elif pa.types.is_string(kind) or pa.types.is_binary(kind):
            self._buffers += [(node, _OFFSETS), (node, 0)]
        else:
            self._buffers.append((node, kind.bit_width))

    # --- metadata -----------------------------------------------------------------------------------------------------------

    def _layout_of(self, metadata: bytes) -> _Layout:
        if self._layout is None or not self._layout.fits(metadata):
            self._layout = self._parsed(metadata)
        return self._layout

    def _parsed(self, metadata: bytes) -> _Layout:
        """Parse the metadata. Raises ValueError for what is no record batch with as many columns and buffers as the schema has."""
        buffer = FlatBuffer(metadata)
        message = buffer.root()
        if message.number(1, "B", 0) != _RECORD_BATCH:
            raise ValueError("it is another kind of Arrow message")
        version = message.number(0, "h", 0)
        if version != _V5:
            raise ValueError(f"it is of version V{version + 1} of Arrow's format, and entries are of V5")
        batch = message.table(2)
        if batch is None:
            raise ValueError("it has no record batch")
        nodes, buffers = batch.items(1, 16), batch.items(2, 16)
        if nodes[1] != len(self._parents) or buffers[1] != len(self._buffers) or batch.items(4, 8)[1]:
            raise ValueError(
                f"it has {nodes[1]} columns in {buffers[1]} buffers; the schema has {len(self._parents)} in {len(self._buffers)}"
            )
        rows_at, body_at = batch.place(0, 8), message.place(3, 8)
        changing = [(at, 8) for at in (rows_at, body_at) if at is not None]
        changing += [(nodes[0], 16 * nodes[1]), (buffers[0], 16 * buffers[1])]
        compressed = _is_compressed(batch)
        fixed = tuple(_others(metadata, changing))
        if any(begin < at + size and at < end for begin, end in buffer.looked_at for at, size in changing):
            raise ValueError("two parts of its metadata are one")
        return _Layout(len(metadata), rows_at, body_at, nodes[0], buffers[0], compressed, fixed)

    def _check_lengths(self, rows: int, lengths: tuple[int, ...], nulls: tuple[int, ...]) -> None:
        if not 0 <= rows <= ROWS_MAX:
            raise BadEntryError(f"it says that it has {rows} rows")
        for node, parent in enumerate(self._parents):
            length = lengths[node]
            if not 0 <= nulls[node] <= length <= ROWS_MAX:
                raise BadEntryError(f"column {self._names[node]} says that it has {length} values, {nulls[node]} of them null")
            if parent != _FREE and length != (rows if parent == _ROOT else lengths[parent]):
                raise BadEntryError(f"column {self._names[node]} says that it has {length} values; {rows} rows")

    # --- buffers ------------------------------------------------------------------------------------------------------------

    def _sizes(self, buffers: tuple[int, ...], body_length: int) -> list[tuple[int, int]]:
        """Return (begin in the body, size) of each buffer. No byte belongs to two of them."""
        end = 0
        found = list(zip(buffers[::2], buffers[1::2], strict=True))
        for number, (begin, size) in enumerate(found):
            if begin < end or size < 0 or begin % 8:
                raise BadEntryError(f"column {self._name(number)} has {size} bytes at {begin}, behind those that end at {end}")
            end = begin + size
        if end > body_length:
            raise BadEntryError(f"its columns end at byte {end} of a body of {body_length}")
        return found

    def _declared(self, values: BytesLike, body: int, sizes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return the same with the sizes that the buffers declare for their decompressed contents."""
        found: list[tuple[int, int]] = []
        for number, (begin, size) in enumerate(sizes):
            if size:
                declared = int(_I64.unpack_from(values, body + begin)[0]) if size >= _I64.size else _AS_IT_IS - 1
                if declared < _AS_IT_IS:
                    raise BadEntryError(f"column {self._name(number)} does not say what its {size} bytes become")
                size = size - _I64.size if declared == _AS_IT_IS else declared
            found.append((begin, size))
        return found

    def _check_sizes(self, lengths: tuple[int, ...], nulls: tuple[int, ...], sizes: list[int]) -> None:
        for (node, bits), size in zip(self._buffers, sizes, strict=True):
            count = lengths[node]
            if bits == _VALIDITY:
                enough = not nulls[node] or 8 * size >= count
            elif bits == _OFFSETS:
                enough = not count or size >= 4 * count + 4
            else:
                enough = 8 * size >= bits * count
            if not enough:
                raise BadEntryError(f"column {self._names[node]} has {size} bytes for {count} values")

    def _name(self, number: int) -> str:
        return self._names[self._buffers[number][0]]


def _number(data: bytes, at: int | None) -> int:
    """Return a number. A flatbuffer leaves a field out that is 0, such as the length of a body without bytes."""
    return 0 if at is None else int(_I64.unpack_from(data, at)[0])


def _fields(kind: pa.DataType) -> Iterator[pa.Field]:
    return (kind.field(i) for i in range(kind.num_fields))


def _is_compressed(batch: Table) -> bool:
    compression = batch.table(3)
    if compression is None:
        return False
    if compression.number(0, "b", 0) not in _CODECS or compression.number(1, "b", 0) != 0:
        raise ValueError("it is compressed by a method that nobody knows")
    return True


def _others(data: bytes, places: list[tuple[int, int]]) -> Iterator[tuple[int, int, bytes]]:
    """Yield the bytes that are not in ``places`` (begin, size). Raises ValueError if two of these share a byte."""
    done = 0
    for begin, size in sorted(places):
        if begin < done and size:
            raise ValueError("two parts of its metadata are one")
        yield done, begin, data[done:begin]
        done = max(done, begin + size)
    yield done, len(data), data[done:]
