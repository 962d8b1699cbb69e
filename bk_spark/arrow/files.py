"""Files of rows: Parquet and Arrow IPC, out of a log and into one."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa

from bk_core.client.log.list_store import LogClient
from bk_core.client.log.tables import OnCounts, Place
from bk_core.client.transfer.new_file import new_file
from bk_core.errors import ExportFileError, ExportFormatError
from bk_core.protocol.log.position import Position
from bk_spark.arrow.reading import open_batches, span_now
from bk_spark.entries.columns import RAW_COLUMNS


def export_rows(
    client: LogClient,
    name: str,
    path: Path,
    kind: str,
    *,
    password: bytes,
    compression: str | None,
    on_counts: OnCounts | None,
) -> tuple[int, Position, Position]:
    """Write the rows of a log into a new file, and return how many, and where they begin and end. Errors are those of reading,
    ExportFileError, and ExportFormatError for columns that such a file cannot hold."""
    first, end = span_now(client, name, password)
    reader = open_batches(client, name, password=password, columns=None, start=first, end=end)
    rows = size = 0
    with new_file(path) as target:
        with _writer(target, kind, reader.schema, compression, name, path) as sink:
            for batch in reader:
                with _fitting(name, path, kind):
                    sink.write_batch(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
                if on_counts is not None:
                    on_counts("export", rows, size)
    return rows, first, end


def _writer(target: BinaryIO, kind: str, schema: pa.Schema, compression: str | None, name: str, path: Path) -> Any:
    with _fitting(name, path, kind):
        if kind == "parquet":
            from pyarrow import parquet

            return parquet.ParquetWriter(target, schema, compression=compression or "zstd", store_schema=True)
        options = pa.ipc.IpcWriteOptions(compression=compression)
        return pa.ipc.new_file(target, schema, options=options)


@contextmanager
def _fitting(name: str, path: Path, kind: str) -> Iterator[None]:
    """Tell pyarrow's errors about columns as ExportFormatError; those of the disk stay what they are."""
    try:
        yield
    except pa.ArrowException as error:
        if isinstance(error, OSError):
            raise
        other = " (.arrow keeps every column of a log)" if kind == "parquet" else ""
        message = f"rows of log {name!r} do not fit into {path}{other}: {error}"
        raise ExportFormatError(message, log=name, path=str(path)) from error


def open_rows(path: Path, kind: str) -> pa.RecordBatchReader:
    """Return the rows of a file, which are read as they are asked for. ExportFileError; ExportFormatError for what is no such file."""
    try:
        if kind == "parquet":
            from pyarrow import parquet

            file = parquet.ParquetFile(path)
            return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
        ipc = pa.ipc.open_file(pa.OSFile(str(path)))
        batches = (ipc.get_batch(index) for index in range(ipc.num_record_batches))
        return pa.RecordBatchReader.from_batches(ipc.schema, batches)
    except pa.ArrowException as error:
        told_kind = "Parquet" if kind == "parquet" else "Arrow IPC"
        raise ExportFormatError(f"{path} is no whole {told_kind} file: {error}", path=str(path)) from error
    except OSError as error:
        raise ExportFileError(f"{path} cannot be read: {error.strerror or error}", path=str(path)) from error


def is_raw_table(rows: pa.RecordBatchReader | None) -> bool:
    """Return True for the columns of a raw log that was exported as a table."""
    return rows is not None and rows.schema.names == RAW_COLUMNS.names


def counted(rows: pa.RecordBatchReader | None, on_counts: OnCounts | None) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, behind a batch without any that tells the columns, and tell of them as they pass."""
    assert rows is not None
    yield _none_of(rows.schema)
    count = size = 0
    for batch in _read(rows):
        count, size = count + batch.num_rows, size + batch.nbytes
        if on_counts is not None:
            on_counts("import", count, size)
        yield batch


def _none_of(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _read(rows: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    try:
        yield from rows
    except pa.ArrowException as error:
        raise ExportFormatError(f"the file is damaged or cut off: {error}") from error


def value_batches(runs: Iterable[tuple[Any, array[int]]]) -> Iterator[pa.RecordBatch]:
    """Yield entries as rows of one column ``value``, which is what a raw log takes, behind a batch without any. Nothing is copied.

    It is no reader of pyarrow's, because that would tell an error of the file as one of its own."""
    schema = pa.schema([pa.field("value", pa.large_binary())])
    yield _none_of(schema)
    for values, offsets in runs:
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
        yield pa.record_batch([pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)], schema=schema)


def same_rows(
    client: LogClient, name: str, path: Path, kind: str, *, password: bytes, start: Place, end: Place, on_counts: OnCounts | None
) -> bool:
    """Return True if the log has between ``start`` and ``end`` the rows of the file, in their order."""
    file = open_rows(path, kind)
    names = ["value"] if is_raw_table(file) else list(file.schema.names)
    log = open_batches(client, name, password=password, columns=names, start=start, end=end)
    return _alike((batch.select(names).cast(log.schema) for batch in _read(file)), iter(log), on_counts)


def _alike(left: Iterator[pa.RecordBatch], right: Iterator[pa.RecordBatch], on_counts: OnCounts | None) -> bool:
    a, b, rows, size = next(left, None), next(right, None), 0, 0
    while a is not None and b is not None:
        count = min(a.num_rows, b.num_rows)
        one, other = a.slice(0, count), b.slice(0, count)
        if not one.equals(other) and repr(one.to_pydict()) != repr(other.to_pydict()):  # NaN is not equal to itself
            return False
        rows, size = rows + count, size + one.nbytes
        if on_counts is not None:
            on_counts("verify", rows, size)
        a = next(left, None) if count == a.num_rows else a.slice(count)
        b = next(right, None) if count == b.num_rows else b.slice(count)
    rest = [one for one in (a, b) if one is not None]
    return not any(one.num_rows for one in rest) and not any(batch.num_rows for batch in (*left, *right))
