"""Between entries and Arrow record batches, in both directions, without a Python object per row.

An ``arrow`` entry is one encapsulated IPC record batch message, without the schema: that is kept once, in the ledger list.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, BinaryType, DataType, LongType, MapType, StringType, StructField, StructType

from bk_core.errors import InvalidArgumentError, LogSchemaError

BATCH_BYTES = 8 << 20  # what a reader hands to Spark at once; far below Arrow's 2 GiB for a binary column
RAW_SCHEMA = StructType(
    [
        StructField("log", StringType()),
        StructField("ledgerId", LongType()),
        StructField("entryId", LongType()),
        StructField("value", BinaryType()),
    ]
)
_RAW_ARROW = pa.schema([("log", pa.string()), ("ledgerId", pa.int64()), ("entryId", pa.int64()), ("value", pa.binary())])


class Run(Protocol):
    """Consecutive entries: what ``ReadHandle.read_runs`` yields."""

    @property
    def first_entry_id(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def values(self) -> bytes: ...
    @property
    def offsets(self) -> memoryview: ...


# --- schemas --------------------------------------------------------------------------------------------------------


def all_nullable(schema: StructType) -> StructType:
    """Spark passes batches of a Python source through only if every field is nullable (spark-connectors.md 5.4)."""
    nullable = _nullable(schema)
    assert isinstance(nullable, StructType)
    return nullable


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return StructType([StructField(f.name, _nullable(f.dataType), True) for f in kind.fields])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType), True)
    return kind


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark demands of a reader with this schema."""
    return to_arrow_schema(all_nullable(schema), timezone="UTC")


def schema_text(schema: StructType) -> str:
    """For the ledger list: the Arrow schema as IPC message, in base64."""
    return base64.b64encode(arrow_schema(schema).serialize().to_pybytes()).decode()


def schema_of_text(text: str) -> StructType:
    try:
        stored = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
    except (pa.ArrowException, ValueError) as error:
        raise LogSchemaError(f"the schema stored with the log cannot be read: {error}") from error
    return all_nullable(from_arrow_schema(stored, prefer_timestamp_ntz=True))


# --- reading --------------------------------------------------------------------------------------------------------


def raw_batches(log: str | None, ledger_id: int, runs: Iterable[Run]) -> Iterator[pa.RecordBatch]:
    """One batch per run with columns log, ledgerId, entryId, value. The values are not copied."""
    for run in runs:
        count = run.count
        value = pa.Array.from_buffers(pa.binary(), count, [None, _offsets32(run.offsets, count), pa.py_buffer(run.values)])
        names = pa.nulls(count, pa.string()) if log is None else pa.repeat(pa.scalar(log, pa.string()), count)
        ledger = pa.repeat(pa.scalar(ledger_id, pa.int64()), count)
        entry = pa.array(range(run.first_entry_id, run.first_entry_id + count), pa.int64())
        yield pa.RecordBatch.from_arrays([names, ledger, entry, value], schema=_RAW_ARROW)


def _offsets32(offsets: memoryview, count: int) -> pa.Buffer:
    wide = pa.Array.from_buffers(pa.int64(), count + 1, [None, pa.py_buffer(offsets)])
    return wide.cast(pa.int32()).buffers()[1]


def arrow_batches(schema: pa.Schema, runs: Iterable[Run], bytes_max: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """Decode entries and join small ones into batches of about ``bytes_max``. LogSchemaError for an entry that is no record batch."""
    pending: list[pa.RecordBatch] = []
    size = 0
    for run in runs:
        values = pa.py_buffer(run.values)
        for i in range(run.count):
            batch = _decode(values.slice(run.offsets[i], run.offsets[i + 1] - run.offsets[i]), schema, run.first_entry_id + i)
            pending.append(batch)
            size += batch.nbytes
            if size >= bytes_max:
                yield from _joined(pending, schema)
                pending, size = [], 0
    yield from _joined(pending, schema)


def _decode(entry: pa.Buffer, schema: pa.Schema, entry_id: int) -> pa.RecordBatch:
    try:
        return pa.ipc.read_record_batch(entry, schema)
    except (pa.ArrowException, OSError) as error:
        raise LogSchemaError(f"entry {entry_id} is no Arrow record batch of the log's schema: {error}", entry_id=entry_id) from error


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if batches:
        yield from pa.Table.from_batches(batches, schema=schema).combine_chunks().to_batches()


# --- writing --------------------------------------------------------------------------------------------------------


class PackedRun:
    """Entries ready for one ``append_run``: payloads one after the other, int64 offsets (count + 1), and the rows in them."""

    __slots__ = ("count", "offsets", "payloads", "rows")

    def __init__(self, payloads: Any, offsets: array[int], rows: int) -> None:
        self.payloads = memoryview(payloads).cast("B")
        self.offsets = offsets
        self.count = len(offsets) - 1
        self.rows = rows

    @property
    def bytes(self) -> int:
        return self.offsets[-1]


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Columns by position, cast to the stored types (Spark sends session time zones and non-nullable fields)."""
    if batch.num_columns != len(schema):
        raise LogSchemaError(f"{batch.num_columns} columns where the log has {len(schema)}")
    columns = [c if c.type == f.type else c.cast(f.type) for c, f in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def pack_arrow(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, entry_size: int, compression: str = "none", run_bytes: int = 4 << 20
) -> Iterator[PackedRun]:
    """Pack rows into entries of about ``entry_size`` payload bytes (before compression), and entries into runs of ``run_bytes``."""
    options = pa.ipc.IpcWriteOptions(compression=None if compression == "none" else compression)
    entries: list[pa.RecordBatch] = []
    size = 0
    for entry in _entries(batches, schema, entry_size):
        entries.append(entry)
        size += entry.nbytes
        if size >= run_bytes:
            yield _encode_run(entries, schema, options)
            entries, size = [], 0
    if entries:
        yield _encode_run(entries, schema, options)


def _entries(batches: Iterable[pa.RecordBatch], schema: pa.Schema, entry_size: int) -> Iterator[pa.RecordBatch]:
    small: list[pa.RecordBatch] = []
    size = 0
    for given in batches:
        batch = conform(given, schema)
        if batch.num_rows == 0:
            continue
        if size + batch.nbytes < entry_size:
            small.append(batch)
            size += batch.nbytes
            continue
        joined = pa.Table.from_batches([*small, batch], schema=schema).combine_chunks().to_batches()
        small, size = [], 0
        for whole in joined:
            rows = max(1, min(whole.num_rows, whole.num_rows * entry_size // max(1, whole.nbytes)))
            full = whole.num_rows - whole.num_rows % rows
            for start in range(0, full, rows):
                yield whole.slice(start, rows)
            if full < whole.num_rows:
                rest = whole.slice(full)
                small.append(rest)
                size += rest.nbytes
    if small:
        yield from pa.Table.from_batches(small, schema=schema).combine_chunks().to_batches()


def _encode_run(entries: list[pa.RecordBatch], schema: pa.Schema, options: pa.ipc.IpcWriteOptions) -> PackedRun:
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, schema, options=options)
    writer.write_batch(entries[0].slice(0, 0))  # the schema goes out with the first batch; both are cut off
    start = sink.tell()
    offsets = array("q", [0])
    for entry in entries:
        writer.write_batch(entry)
        offsets.append(sink.tell() - start)
    data = sink.getvalue()
    return PackedRun(data.slice(start, offsets[-1]), offsets, sum(entry.num_rows for entry in entries))


def pack_raw(batches: Iterable[pa.RecordBatch]) -> Iterator[PackedRun]:
    """Each ``value`` (binary or string) is one entry. InvalidArgumentError for a null or a missing column."""
    for batch in batches:
        if batch.num_rows == 0:
            continue
        column = _value_column(batch)
        first, last = column.offset, column.offset + len(column)
        wide = pa.Array.from_buffers(pa.int32(), last + 1, [None, column.buffers()[1]]).slice(first).cast(pa.int64())
        relative = pc.subtract(wide, wide[0])
        data = column.buffers()[2] or pa.py_buffer(b"")
        offsets = array("q", relative.buffers()[1].to_pybytes()[: 8 * (len(column) + 1)])
        yield PackedRun(data.slice(wide[0].as_py(), offsets[-1]), offsets, len(column))


def _value_column(batch: pa.RecordBatch) -> pa.Array:
    if "value" not in batch.schema.names:
        raise InvalidArgumentError("a raw log takes a column named value (binary or string)")
    column = batch.column("value")
    if column.null_count:
        raise InvalidArgumentError("a raw log takes no null values")
    try:
        return column if pa.types.is_binary(column.type) else column.cast(pa.string()).cast(pa.binary())
    except pa.ArrowException as error:
        raise InvalidArgumentError(f"column value must be binary or string, not {column.type}") from error
