"""Entries to record batches that Spark takes: strictly the demanded schema, int32 offsets, bounded by bytes (spark-connectors.md 5.4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import pyarrow as pa

from bk_core.errors import LogSchemaError
from bk_core.protocol import BytesLike
from bk_spark.packing import as_type

BATCH_BYTES = 2 << 20  # what a reader hands to Spark at once; larger ones fall out of the processor's caches


class Run(Protocol):
    """Consecutive entries: what ``ReadHandle.read_runs`` yields."""

    @property
    def first_entry_id(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def values(self) -> BytesLike: ...
    @property
    def offsets(self) -> memoryview: ...


# --- raw ------------------------------------------------------------------------------------------------------------


def value_array(run: Run) -> pa.Array:
    """The payloads of a run as a binary column over the run's own memory."""
    return pa.Array.from_buffers(pa.binary(), run.count, [None, _offsets32(run.offsets, run.count), pa.py_buffer(run.values)])


def _offsets32(offsets: memoryview, count: int) -> pa.Buffer:
    wide = pa.Array.from_buffers(pa.int64(), count + 1, [None, pa.py_buffer(offsets)])
    return wide.cast(pa.int32()).buffers()[1]


# --- arrow ----------------------------------------------------------------------------------------------------------


def arrow_batches(
    schema: pa.Schema,
    runs: Iterable[Run],
    skip_rows: int = 0,
    take_rows: int | None = None,
    *,
    stored: pa.Schema | None = None,
    bytes_max: int = BATCH_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Decode entries and join small ones into batches of about ``bytes_max``, each of exactly ``schema``.

    ``skip_rows``: rows of the first entry that were read before. ``take_rows``: rows of the *last* entry to read, counted from that
    entry's beginning (so ``skip_rows`` of them are skipped if it is also the first); None = all of it.
    ``stored``: the schema that these entries were written with, if it is not ``schema``: columns are matched by name, only the wanted
    ones are decoded, and those that the entries do not have are null.
    LogSchemaError for an entry that is no record batch of the stored schema.
    """
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in _cut_ends(_Decoder(schema, schema if stored is None else stored).batches(runs), skip_rows, take_rows):
        pending.append(batch)
        size += batch.nbytes
        if size >= bytes_max:
            yield from _joined(pending, schema)
            pending, size = [], 0
    yield from _joined(pending, schema)


def _cut_ends(batches: Iterator[pa.RecordBatch], skip_rows: int, take_rows: int | None) -> Iterator[pa.RecordBatch]:
    """One entry is held back: only when none follows is it known to be the last."""
    held: pa.RecordBatch | None = None
    skip = skip_rows
    for batch in batches:
        if held is not None:
            yield held.slice(skip)
            skip = 0
        held = batch
    if held is not None:
        yield held.slice(0, take_rows).slice(skip) if take_rows is not None else held.slice(skip)


class _Decoder:
    def __init__(self, wanted: pa.Schema, stored: pa.Schema) -> None:
        self._wanted = wanted
        self._stored = stored
        known = {name: i for i, name in enumerate(stored.names)}
        self._included = sorted(known[name] for name in wanted.names if name in known)
        self._partly = len(self._included) < len(stored)
        self._same = not self._partly and stored.equals(wanted)
        self._as_stream: bool | None = True if self._partly else None

    def batches(self, runs: Iterable[Run]) -> Iterator[pa.RecordBatch]:
        for run in runs:
            if self._as_stream is None:
                self._as_stream = self._is_compressed(run)
            yield from self._stream(run) if self._as_stream else self._whole(run)

    def _is_compressed(self, run: Run) -> bool:
        """By its first entry, which is larger than its columns unless they are compressed. It only decides how to decode."""
        for batch in self._whole(run):
            return bool(batch.nbytes > run.offsets[1])
        return False

    def _whole(self, run: Run) -> Iterator[pa.RecordBatch]:
        values = pa.py_buffer(run.values)
        for i in range(run.count):
            try:
                batch = pa.ipc.read_record_batch(values.slice(run.offsets[i], run.offsets[i + 1] - run.offsets[i]), self._stored)
            except (pa.ArrowException, OSError) as error:
                raise _foreign(run.first_entry_id + i, error) from error
            yield batch if self._same else self._fitted(batch)

    def _stream(self, run: Run) -> Iterator[pa.RecordBatch]:
        """A run is a stream that lacks its schema; to put that in front costs a copy. Only a stream decodes (and decompresses) some columns
        and leaves the others, and only there Arrow's threads can be left out, which cost more than they bring in a task of one core."""
        fields = {"included_fields": self._included or [0]} if self._partly else {}  # Arrow takes an empty list for all
        source = pa.py_buffer(b"".join((self._stored.serialize(), run.values)))
        done = 0
        try:
            for batch in pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False, **fields)):
                yield batch if self._same else self._fitted(batch)
                done += 1
        except (pa.ArrowException, OSError) as error:
            raise _foreign(run.first_entry_id + done, error) from error
        if done != run.count:
            raise _foreign(run.first_entry_id + done, "it is empty")

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        there = set(batch.schema.names)
        columns: list[Any] = [
            as_type(batch.column(f.name), f.type) if f.name in there else pa.nulls(batch.num_rows, f.type) for f in self._wanted
        ]
        if not columns:
            raise LogSchemaError("at least one column must be read")
        return pa.RecordBatch.from_arrays(columns, schema=self._wanted)


def _foreign(entry_id: int, reason: object) -> LogSchemaError:
    return LogSchemaError(f"entry {entry_id} is no Arrow record batch of the log's schema: {reason}", entry_id=entry_id)


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if batches:
        yield from pa.Table.from_batches(batches, schema=schema).combine_chunks().to_batches()
