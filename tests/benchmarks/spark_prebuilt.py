"""The best that Spark's Python data sources can do: a source that yields a prebuilt record batch again and again, a sink that drops all.

Nothing is computed per row or per batch, so what is left is Spark itself: the ceiling of every Python source and sink. As a stream it is
the trivial one: its offset is the number of batches so far. With ``parquet`` a batch read gives typed columns instead of one value.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import BinaryType, StructField, StructType

NAME = "prebuilt"
BATCH_BYTES = 8 << 20
_SCHEMA = pa.schema([("value", pa.binary())])


class Rows(InputPartition):
    def __init__(self, rows: int, number: int) -> None:
        super().__init__(None)
        self.rows, self.number = rows, number


def shares(rows: int, partitions: int) -> list[InputPartition]:
    return [Rows(rows * (index + 1) // partitions - rows * index // partitions, index) for index in range(partitions)]


@lru_cache(maxsize=4)
def built(rows: int, value_bytes: int) -> pa.RecordBatch:
    """Once per worker."""
    data = os.urandom(min(rows * value_bytes, 1 << 20))
    data = (data * (rows * value_bytes // len(data) + 1))[: rows * value_bytes]
    ends = pa.array(range(0, len(data) + 1, value_bytes), pa.int32())
    values = pa.Array.from_buffers(pa.binary(), rows, [None, ends.buffers()[1], pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([values], schema=_SCHEMA)


def batches(rows: int, value_bytes: int, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """``rows`` values: one batch again and again, the last time less of it."""
    per_batch = max(1, min(rows, batch_bytes // value_bytes))
    batch = built(per_batch, value_bytes)
    while rows > 0:
        yield batch if rows >= per_batch else batch.slice(0, rows)
        rows -= per_batch


@lru_cache(maxsize=2)
def built_of_parquet(path: Path, batch_bytes: int) -> tuple[pa.RecordBatch, ...]:
    """The first row group of a file, in batches of about that size. Once per worker."""
    from pyarrow import parquet

    table = parquet.ParquetFile(path).read_row_group(0).combine_chunks()
    table = table.cast(pa.schema([field.with_nullable(True).remove_metadata() for field in table.schema]))
    return tuple(table.to_batches(max(1, table.num_rows * batch_bytes // max(1, table.nbytes))))


def batches_of_parquet(path: Path, rows: int, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """``rows`` rows: those of ``built_of_parquet``, again and again."""
    for batch in cycle(built_of_parquet(path, batch_bytes)):
        if rows <= 0:
            return
        yield batch if rows >= batch.num_rows else batch.slice(0, rows)
        rows -= batch.num_rows


class PrebuiltSource(DataSource):
    """Options: ``rows`` (of a read, or of a micro-batch), ``valueBytes``, ``partitions``, ``batchBytes``; ``batches`` of a stream.

    ``parquet``: a directory with a file per partition; a reader gives the first row group of its file again and again, with the schema
    that the reader is given.
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return StructType([StructField("value", BinaryType())])

    def reader(self, schema: StructType) -> DataSourceReader:
        return Reader(self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return StreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        return Writer()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return StreamWriter()


class _Given:
    def __init__(self, options: Mapping[str, str]) -> None:
        self.rows = int(options.get("rows", "1"))
        self.value_bytes = int(options.get("valueBytes", "100"))
        self.batch_bytes = int(options.get("batchBytes", str(BATCH_BYTES)))
        self.tasks = int(options.get("partitions", "1"))
        self.batches = int(options.get("batches", "1"))
        self.parquet = options.get("parquet")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        if self.parquet is not None:
            return batches_of_parquet(Path(self.parquet) / f"part-{partition.number}.parquet", partition.rows, self.batch_bytes)
        return batches(partition.rows, self.value_bytes, self.batch_bytes)


class Reader(_Given, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return shares(self.rows, self.tasks)


class StreamReader(_Given, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def initialOffset(self) -> dict[str, Any]:
        return {"batch": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        """The end is an option."""

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"batch": min(self.batches, int(start["batch"]) + 1)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return shares(self.rows * (int(end["batch"]) - int(start["batch"])), self.tasks)


class Dropped(WriterCommitMessage):
    """Nothing to tell."""


def drop(iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    for _ in iterator:
        pass
    return Dropped()


class Writer(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return drop(iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return drop(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is kept."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is kept."""
