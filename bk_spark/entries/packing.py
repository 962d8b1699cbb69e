"""Rows to entries: record batches packed to a target size, or one ``value`` per entry. No Python object per row.

An ``arrow`` entry is one encapsulated IPC record batch message, without the schema: that is kept once, in the ledger list. Every entry of
a run but its last holds the same number of rows, so a ledger list knows the row at every position without an index per entry.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from bk_core import kernels
from bk_core.errors import EntryTooLargeError, InvalidArgumentError, LogSchemaError, NullValueError
from bk_spark.entries.words import OF_SPARK, Words
from bk_spark.needs import check_version
from bk_spark.options.grammar import ENTRY_BYTES_MAX

check_version("pyarrow", pa.__version__)

BYTES_PER_ENTRY_MAX = 256 << 20
"""The default of ``maxBytesPerEntry``, the bytes that the columns of an entry may have once they are decompressed. It is fifty times the
largest entry."""
RUN_BYTES = 4 << 20
"""Payload of one append: large enough that its cost does not count, small enough for steady acknowledgements."""
_GROWTH_BYTES_MAX = 3 << 20  # an entry never grows beyond this with the rows it was laid out for
_GROWTH = 4  # entries between a quarter and four times the target keep their number of rows
_SMALL_ENTRIES = 32  # so many in a row are too small before a larger number of rows begins a new range
_ROWS_MAX = 1 << 20  # per entry, for rows that weigh nothing
_ROOM_BYTES = 64 << 10  # of a run's memory, for what Arrow adds to each entry


class PackedEntries:
    """Entries ready for one ``append_run_future``: payloads one after the other, int64 offsets (count + 1), and the rows in them.

    Every entry but the last holds exactly ``rows_per_entry`` rows, the last 1 to ``rows_per_entry``. A run whose last entry is ``full``
    and the next one of the same ``rows_per_entry`` are one range.
    """

    __slots__ = ("count", "offsets", "payloads", "rows", "rows_per_entry")

    def __init__(self, payloads: Any, offsets: array[int], rows: int, rows_per_entry: int = 1) -> None:
        self.payloads = memoryview(payloads).cast("B").toreadonly()  # nobody writes to it any more, so an append need not copy it
        self.offsets = offsets
        self.count = len(offsets) - 1
        self.rows = rows
        self.rows_per_entry = rows_per_entry

    @property
    def bytes(self) -> int:
        return self.offsets[-1]

    @property
    def full(self) -> bool:
        return self.rows == self.count * self.rows_per_entry


# --- arrow ----------------------------------------------------------------------------------------------------------


def pack_arrow(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    entry_size: int,
    compression: str = "none",
    run_bytes: int = RUN_BYTES,
    entry_bytes_max: int = BYTES_PER_ENTRY_MAX,
    words: Words = OF_SPARK,
) -> Iterator[PackedEntries]:
    """Pack rows into entries of about ``entry_size`` payload bytes (before compression), and entries into runs of ``run_bytes``.

    The number of rows per entry is chosen from the first data, kept while entries stay near ``entry_size``, and halved where one becomes
    larger than bookies take; remainders are carried from batch to batch. Raises LogSchemaError for columns that the log does not have,
    EntryTooLargeError for a row that no bookie takes, or that has more than ``entry_bytes_max`` bytes before compression, which no reader
    would take.
    """
    packer = Packer(schema, entry_size, compression, run_bytes, entry_bytes_max, words)
    for given in batches:
        packer.put(conform(given, schema))
        yield from packer.full_entries()
    yield from packer.rest()


class Packer:
    """The rows of one task and log. An entry is written into its run's memory as soon as it is cut, so that its batches can be released."""

    def __init__(
        self,
        schema: pa.Schema,
        entry_size: int,
        compression: str,
        run_bytes: int,
        entry_bytes_max: int = BYTES_PER_ENTRY_MAX,
        words: Words = OF_SPARK,
    ) -> None:
        self._schema = schema
        self._words = words
        self._compressed = compression != "none"
        # Spark gives a task one core, and waking Arrow's threads for each column would cost more than they save.
        self._options = pa.ipc.IpcWriteOptions(compression=compression if self._compressed else None, use_threads=False)
        self._empty = pa.RecordBatch.from_pylist([], schema=schema)
        self._head_bytes = self._head_size()
        entry_size = self._entry_size = min(entry_size, entry_bytes_max)
        self._decompressed_max = entry_bytes_max
        self._entry_bytes_max = min(entry_bytes_max, max(entry_size, min(_GROWTH * entry_size, _GROWTH_BYTES_MAX)))
        self._run_bytes = run_bytes
        self._pending: deque[pa.RecordBatch] = deque()
        self._pending_rows = 0
        self._pending_bytes: int | None = 0  # None where nobody has counted since rows were taken
        self._rows_per_entry: int | None = None
        self._run: _OpenEntries | None = None
        self._small = 0
        self._packed_rows = 0

    def put(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._pending.append(batch)
            self._pending_rows += batch.num_rows
            if self._pending_bytes is not None:
                self._pending_bytes += batch.nbytes

    def full_entries(self) -> Iterator[PackedEntries]:
        """Cut as many entries as the pending rows fill."""
        while self._layout(final=False) and self._pending_rows >= (self._rows_per_entry or 0):
            yield from self._cut(self._rows_per_entry or 1, final=False)

    def rest(self) -> Iterator[PackedEntries]:
        """Cut everything that is left; the last entry of the last run may be short."""
        while self._pending_rows:
            self._layout(final=True)
            yield from self._cut(min(self._rows_per_entry or 1, self._pending_rows), final=True)
        yield from self._flush()

    def _layout(self, final: bool) -> bool:
        """Choose the rows per entry, once there is enough data to choose from."""
        if self._rows_per_entry is not None:
            return True
        if self._pending_bytes is None:
            self._pending_bytes = sum(batch.nbytes for batch in self._pending)
        size = self._pending_bytes
        if not final and size < self._entry_size and self._pending_rows < _ROWS_MAX:
            return False
        self._rows_per_entry = max(1, min(self._pending_rows * self._entry_size // max(1, size), self._pending_rows, _ROWS_MAX))
        return True

    def _cut(self, rows: int, *, final: bool) -> Iterator[PackedEntries]:
        entry = self._take(rows)
        size = entry.nbytes
        if rows > 1 and size > self._entry_bytes_max:  # rows have grown, so they go into a range of their own, with fewer per entry
            yield from self._put_back(entry, max(1, rows * self._entry_size // size))
            return
        if not (yield from self._write(entry, size, final=final)):  # Arrow's addition to the columns makes it too large
            yield from self._put_back(entry, rows // 2)
            return
        self._small = self._small + 1 if size * _GROWTH < self._entry_size else 0
        if self._small >= _SMALL_ENTRIES:  # rows have shrunk, apparently for good
            yield from self._flush()
            self._rows_per_entry = None
        elif self._run is not None and self._run.size >= self._run_bytes:
            yield from self._flush()

    def _put_back(self, entry: pa.RecordBatch, rows_per_entry: int) -> Iterator[PackedEntries]:
        """Put the rows back, to be cut again into a range of their own with fewer per entry."""
        self._pending.appendleft(entry)
        self._pending_rows += entry.num_rows
        self._pending_bytes = None
        yield from self._flush()
        self._rows_per_entry = rows_per_entry

    def _take(self, rows: int) -> pa.RecordBatch:
        """Return the next ``rows`` rows. They are copied only if they come from several batches."""
        self._pending_rows -= rows
        self._pending_bytes = None
        parts: list[pa.RecordBatch] = []
        while rows:
            batch = self._pending.popleft()
            if batch.num_rows > rows:
                self._pending.appendleft(batch.slice(rows))
                batch = batch.slice(0, rows)
            parts.append(batch)
            rows -= batch.num_rows
        return parts[0] if len(parts) == 1 else _joined(parts, self._schema)

    def _write(self, entry: pa.RecordBatch, size: int, *, final: bool) -> Generator[PackedEntries, None, bool]:
        """Write an entry, whose columns have ``size`` bytes (Arrow takes long to add them up). Return False if no bookie takes that many
        rows as one entry. Raises EntryTooLargeError for a single row, which nothing can divide."""
        if size > self._decompressed_max:
            raise _too_wide(self._packed_rows, size, self._decompressed_max, self._words)
        needed = 0 if self._compressed else pa.ipc.get_record_batch_size(entry)
        if not self._fits(entry, needed):
            return False
        if self._run is not None and not self._run.has_room(needed):
            yield from self._flush()
        if self._run is None:
            room, sink = self._sink(entry, needed, final)
            self._run = _OpenEntries(room, sink, self._begun(sink))
        if not self._fits(entry, self._run.write(entry, size)):
            self._run.drop_last(entry, size)
            return False
        self._packed_rows += entry.num_rows
        return True

    def _fits(self, entry: pa.RecordBatch, size: int) -> bool:
        if size > ENTRY_BYTES_MAX and entry.num_rows == 1:
            raise _wide_row(self._packed_rows, entry, size, self._compressed, self._words)
        return size <= ENTRY_BYTES_MAX

    def _flush(self) -> Iterator[PackedEntries]:
        if self._run is not None:
            run, self._run = self._run, None
            self._small = 0
            if run.count:
                yield run.packed(self._rows_per_entry or 1)

    def _begun(self, sink: Any) -> Any:
        """Return a stream whose schema is written: it is written with the first batch, and both are cut off."""
        writer = pa.ipc.new_stream(sink, self._schema, options=self._options)
        writer.write_batch(self._empty)  # not an empty slice, because Arrow writes all the offsets behind that
        return writer

    def _head_size(self) -> int:
        sink = pa.MockOutputStream()
        self._begun(sink)
        return int(sink.size())

    def _sink(self, entry: pa.RecordBatch, needed: int, final: bool) -> tuple[pa.Buffer | None, Any]:
        """Return the buffer for a run that begins with ``entry``. It is memory of its final size, which is used again for a later run,
        because Arrow's allocator gives megabytes back. Only the size of compressed entries is not known before."""
        if self._compressed:
            return None, pa.BufferOutputStream()
        size = self._run_bytes + self._entry_size + _ROOM_BYTES
        if final:
            size = min(size, needed * (1 + -(-self._pending_rows // entry.num_rows)))
        room = pa.py_buffer(kernels.new_block(self._head_bytes + max(size, needed)))
        return room, pa.FixedSizeBufferWriter(room)


class _OpenEntries:
    """The entries written so far. ``size`` is the bytes of their columns before compression."""

    __slots__ = ("_offsets", "_room", "_rows", "_sink", "_start", "_writer", "size")

    def __init__(self, room: pa.Buffer | None, sink: Any, writer: Any) -> None:
        self._room, self._sink, self._writer = room, sink, writer
        self._start = sink.tell()
        self._offsets = array("q", [0])
        self._rows = self.size = 0

    def has_room(self, size: int) -> bool:
        return self._room is None or self._start + self._offsets[-1] + size <= self._room.size

    def write(self, entry: pa.RecordBatch, size: int) -> int:
        """Write an entry of ``size`` bytes before compression, and return its bytes."""
        self._writer.write_batch(entry)
        self._offsets.append(self._sink.tell() - self._start)
        self._rows += entry.num_rows
        self.size += size
        return self._offsets[-1] - self._offsets[-2]

    def drop_last(self, entry: pa.RecordBatch, size: int) -> None:
        """Undo ``write``. The bytes stay behind the run's, so the run must be given away next."""
        self._offsets.pop()
        self._rows -= entry.num_rows
        self.size -= size

    @property
    def count(self) -> int:
        return len(self._offsets) - 1

    def packed(self, rows_per_entry: int) -> PackedEntries:
        written = self._sink.getvalue() if self._room is None else self._room
        return PackedEntries(written.slice(self._start, self._offsets[-1]), self._offsets, self._rows, rows_per_entry)


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    (whole,) = pa.Table.from_batches(batches, schema=schema).combine_chunks().to_batches()
    return whole


def _wide_row(row: int, entry: pa.RecordBatch, size: int, compressed: bool, words: Words) -> EntryTooLargeError:
    """Return the error for the one row of ``entry``, which makes an entry of ``size`` bytes that no bookie takes."""
    largest = max(range(entry.num_columns), key=lambda i: entry.column(i).nbytes)
    where = f"{entry.column(largest).nbytes} of them in column {entry.schema.names[largest]!r}"
    what = f"{'' if compressed else words.compress}divide it into several rows"
    return _too_large(row, f"{size} bytes, {where}", size, what, words)


def _too_large(row: int, told: str, size: int, what: str, words: Words) -> EntryTooLargeError:
    message = (
        f"{words.row(row)} would be an entry of {told}; bookies take {ENTRY_BYTES_MAX}, and a row is never divided: {what}, or keep "
        f"the large value elsewhere and its place in the log. {words.no_help}"
    )
    return EntryTooLargeError(message, row=row, bytes=size)


def _too_wide(row: int, size: int, limit: int, words: Words) -> EntryTooLargeError:
    message = f"{words.row(row)} has {size:,} bytes, and {words.too_wide_to_write.format(limit=limit)}"
    return EntryTooLargeError(message, row=row, bytes=size)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return ``batch`` with the log's columns: found by name, cast to the stored types, null where the batch has none.

    Spark sends session time zones, non-nullable fields and, if asked to, large types. Raises LogSchemaError for a column that is not the
    log's.
    """
    if batch.schema.equals(schema):
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
    given, wanted = batch.schema.names, schema.names  # lists that are made anew each time
    place = {name: at for at, name in enumerate(given)}
    unknown = sorted(place.keys() - set(wanted), key=place.__getitem__)
    if unknown or len(place) != batch.num_columns:
        raise LogSchemaError(f"columns {_quoted(unknown or given)} are written; the log has {_quoted(wanted)}")
    columns = [_cast(batch.column(place[f.name]), f) if f.name in place else nulls(batch.num_rows, f.type) for f in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return as_type(column, field.type)
    except pa.ArrowException as error:
        raise LogSchemaError(f"column {field.name!r} is {column.type}; the log has {field.type}: {error}", column=field.name) from error


def as_type(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Cast a column, even where only the nullability of nested fields differs, which Arrow's cast refuses for structs and maps."""
    given = column.type
    if given == wanted:
        return column
    if pa.types.is_struct(given) and pa.types.is_struct(wanted) and given.num_fields == wanted.num_fields:
        parts = [as_type(column.field(i), wanted.field(i).type) for i in range(wanted.num_fields)]
        return pa.StructArray.from_arrays(parts, fields=[wanted.field(i) for i in range(wanted.num_fields)], mask=column.is_null())
    if pa.types.is_list(given) and pa.types.is_list(wanted):
        return _rebuilt(column, wanted, as_type(column.values, wanted.value_type))
    if pa.types.is_map(given) and pa.types.is_map(wanted):
        entries = pa.struct([wanted.key_field, wanted.item_field])
        pairs = pa.StructArray.from_arrays(
            [as_type(column.keys, wanted.key_type), as_type(column.items, wanted.item_type)], fields=list(entries)
        )
        return _rebuilt(column, wanted, pairs)
    if pa.types.is_dictionary(given):  # the values first: Arrow cannot take views of strings by an index
        return column.dictionary.cast(wanted).take(column.indices)
    return column.cast(wanted)


def nulls(count: int, kind: pa.DataType) -> pa.Array:
    """Return ``count`` nulls. Those that Arrow makes of lists and maps keep offsets for as many elements, although there are none, and a
    slice of them is written with all of these: each entry would carry those of the whole batch."""
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays(
            [nulls(count, kind.field(i).type) for i in range(kind.num_fields)],
            fields=[kind.field(i) for i in range(kind.num_fields)],
            mask=pa.repeat(True, count),
        )
    if not (pa.types.is_list(kind) or pa.types.is_map(kind)):
        return pa.nulls(count, kind)
    elements = pa.struct([kind.key_field, kind.item_field]) if pa.types.is_map(kind) else kind.value_type
    nothing = pa.repeat(False, count).buffers()[1]
    offsets = pa.repeat(pa.scalar(0, pa.int32()), count + 1).buffers()[1]
    return pa.Array.from_buffers(kind, count, [nothing, offsets], count, 0, [pa.array([], elements)])


def _rebuilt(column: pa.Array, wanted: pa.DataType, values: pa.Array) -> pa.Array:
    """Return the lists of ``column`` over other ``values``; validity and offsets stay."""
    validity, offsets = column.buffers()[:2]
    return pa.Array.from_buffers(wanted, len(column), [validity, offsets], column.null_count, column.offset, [values])


# --- raw ------------------------------------------------------------------------------------------------------------


def pack_raw(batches: Iterable[pa.RecordBatch], run_bytes: int = RUN_BYTES, words: Words = OF_SPARK) -> Iterator[PackedEntries]:
    """Yield each ``value`` (binary or string) as one entry, in runs of about ``run_bytes``.

    Raises InvalidArgumentError for a missing or foreign column, NullValueError and EntryTooLargeError with the number of the row in its
    task; nothing of the task becomes visible then.
    """
    row = 0
    for batch in batches:
        if batch.num_rows:
            yield from _raw_runs(_value_column(batch, row, words), row, run_bytes, words)
            row += batch.num_rows


def _raw_runs(column: pa.Array, row: int, run_bytes: int, words: Words) -> Iterator[PackedEntries]:
    """Work on all offsets at once, with Arrow's functions, because pyspark needs no numpy and so none may be used here."""
    import pyarrow.compute as pc

    first, count = column.offset, len(column)
    edges = pa.Array.from_buffers(pa.int32(), first + count + 1, [None, column.buffers()[1]]).slice(first).cast(pa.int64())
    data = column.buffers()[2] or pa.py_buffer(b"")
    sizes = pc.subtract(edges.slice(1), edges.slice(0, count))
    largest = pc.max(sizes)
    if largest.as_py() > ENTRY_BYTES_MAX:
        size = largest.as_py()
        raise _too_large(row + pc.index(sizes, largest).as_py(), f"{size} bytes", size, "compress the value, divide it into several", words)
    places = memoryview(edges.buffers()[1]).cast("q")[edges.offset :]
    start = 0
    while start < count:
        end = max(start + 1, bisect_right(places, places[start] + run_bytes, start, count + 1) - 1)
        moved = pc.subtract(edges.slice(start, end - start + 1), edges[start])
        offsets = array("q", memoryview(moved.buffers()[1])[8 * moved.offset : 8 * (moved.offset + len(moved))].tobytes())
        yield PackedEntries(data.slice(places[start], offsets[-1]), offsets, end - start, 1)
        start = end


def _value_column(batch: pa.RecordBatch, row: int, words: Words) -> pa.Array:
    if "value" not in batch.schema.names:
        raise InvalidArgumentError("a raw log takes a column named 'value' (binary or string)")
    column = batch.column("value")
    if column.null_count:
        import pyarrow.compute as pc

        missing = row + pc.index(column.is_null(), True).as_py()
        raise NullValueError(f"{words.row(missing)} has a null value, and an entry of a raw log cannot be null: filter it", row=missing)
    try:
        return column if pa.types.is_binary(column.type) else as_type(_textual(column), pa.binary())
    except pa.ArrowException as error:
        raise InvalidArgumentError(f"column 'value' must be binary or string, not {column.type}") from error


def _textual(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return column
    raise InvalidArgumentError(f"column 'value' must be binary or string, not {kind}")
