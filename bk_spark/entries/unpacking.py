"""Turns entries into record batches that Spark takes: strictly the demanded schema, int32 offsets, bounded by bytes (spark-connectors.md
5.4).

No entry is trusted. Before Arrow decodes one its structure is checked (``check``), and before a decoded column is used all its values
are. A digest does not make that needless, because it vouches for bytes and not for the program that wrote them. Nor does a digest with a
password, because a defect of another writer does the same harm as malice, and the check is a small part of a read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import pyarrow as pa

from bk_core.errors import LogEntryError, LogSchemaError
from bk_core.protocol import BytesLike
from bk_spark.entries.check import BadEntryError, EntryCheck, EntryShape
from bk_spark.entries.packing import BYTES_PER_ENTRY_MAX, as_type
from bk_spark.entries.ranges import EntryRange
from bk_spark.entries.values import ValueCheck
from bk_spark.entries.words import OF_SPARK, Words

BATCH_BYTES = 2 << 20  # the batch that a reader hands to Spark at once; larger ones do not fit the processor's caches
_SOME = 1024  # rows, of which the bytes of nulls are told


class Entries(Protocol):
    """Consecutive entries, as ``ReadHandle.read_runs`` yields them."""

    @property
    def first_entry_id(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def values(self) -> BytesLike: ...
    @property
    def offsets(self) -> memoryview: ...


# --- raw ------------------------------------------------------------------------------------------------------------


def value_array(run: Entries) -> pa.Array:
    """Return the payloads of a run as a binary column over the run's own memory."""
    return pa.Array.from_buffers(pa.binary(), run.count, [None, _offsets32(run.offsets, run.count), pa.py_buffer(run.values)])


def _offsets32(offsets: memoryview, count: int) -> pa.Buffer:
    wide = pa.Array.from_buffers(pa.int64(), count + 1, [None, pa.py_buffer(offsets)])
    return wide.cast(pa.int32()).buffers()[1]


# --- arrow ----------------------------------------------------------------------------------------------------------


def arrow_batches(
    schema: pa.Schema,
    runs: Iterable[Entries],
    skip_rows: int = 0,
    take_rows: int | None = None,
    *,
    stored: pa.Schema | None = None,
    origin: EntryRange | None = None,
    bytes_max: int = BATCH_BYTES,
    entry_bytes_max: int = BYTES_PER_ENTRY_MAX,
    words: Words = OF_SPARK,
) -> Iterator[pa.RecordBatch]:
    """Decode entries and join small ones into batches of about ``bytes_max``, each of exactly ``schema``.

    ``skip_rows``: rows of the first entry that were read before. ``take_rows``: rows of the *last* entry to read, counted from that
    entry's beginning (so ``skip_rows`` of them are skipped if it is also the first); None = all of it.
    ``stored``: the schema that these entries were written with, if it is not ``schema``: columns are matched by name, only the wanted
    ones are decoded, and those that the entries do not have are null.
    ``origin``: the range that the entries are of; each must have the rows that it tells, and errors name its log and ledger.
    ``entry_bytes_max``: bytes that the columns of one entry may have, decompressed.
    LogEntryError for an entry that is no sound record batch of the stored schema.
    """
    pending: list[pa.RecordBatch] = []
    size = 0
    decoder = _Decoder(schema, schema if stored is None else stored, origin, entry_bytes_max, words)
    for batch, batch_bytes in _cut_ends(decoder.batches(runs), skip_rows, take_rows):
        pending.append(batch)
        size += batch_bytes
        if size >= bytes_max:
            yield from _joined(pending, schema)
            pending, size = [], 0
    yield from _joined(pending, schema)


Sized = tuple[pa.RecordBatch, int]
"""The rows of an entry and their bytes. They are told by the entry: Arrow's ``nbytes`` takes longer than decoding, for each column."""


def _cut_ends(batches: Iterator[Sized], skip_rows: int, take_rows: int | None) -> Iterator[Sized]:
    """Cut the ends. One entry is held back, because only when none follows is it known to be the last."""
    held: Sized | None = None
    skip = skip_rows
    for sized in batches:
        if held is not None:
            yield _part(held, skip, None) if skip else held
            skip = 0
        held = sized
    if held is not None:
        yield _part(held, skip, take_rows)


def _part(sized: Sized, skip: int, take: int | None) -> Sized:
    """Return the rows ``skip .. take - 1``, with their share of the bytes."""
    whole, size = sized
    batch = whole.slice(0, take).slice(skip) if take is not None else whole.slice(skip)
    return batch, size * batch.num_rows // max(1, whole.num_rows)


class _Decoder:
    def __init__(self, wanted: pa.Schema, stored: pa.Schema, origin: EntryRange | None, entry_bytes_max: int, words: Words) -> None:
        self._wanted = wanted
        self._stored = stored
        self._origin = origin
        self._words = words
        self._values = ValueCheck(stored)
        known = {name: i for i, name in enumerate(stored.names)}
        read = sorted(known[name] for name in wanted.names if name in known)
        self._included = read or [0]  # Arrow takes an empty list for all
        self._partly = len(self._included) < len(stored)
        self._same = not self._partly and stored.equals(wanted)
        self._check = EntryCheck(stored, entry_bytes_max, words, read)
        self._missing_bytes = sum(pa.nulls(_SOME, field.type).nbytes for field in wanted if field.name not in known) // _SOME

    def batches(self, runs: Iterable[Entries]) -> Iterator[Sized]:
        for run in runs:
            shapes = self._checked(run)
            decoded = self._stream(run) if any(shape.compressed for shape in shapes) else self._whole(run)
            for batch, shape in zip(decoded, shapes, strict=True):
                yield batch if self._same else self._fitted(batch), shape.bytes + shape.rows * self._missing_bytes

    def _checked(self, run: Entries) -> list[EntryShape]:
        """Raise LogEntryError unless all entries are record batches with the rows that they must have."""
        shapes: list[EntryShape] = []
        edges = run.offsets.tolist()
        for i in range(run.count):
            entry_id = run.first_entry_id + i
            try:
                shape = self._check.shape(run.values, edges[i], edges[i + 1])
                if self._origin is not None:
                    _check_rows(self._origin, entry_id, shape.rows)
            except BadEntryError as error:
                raise self._damaged(entry_id, error) from None
            shapes.append(shape)
        return shapes

    def _whole(self, run: Entries) -> Iterator[pa.RecordBatch]:
        """Decode entries that are not compressed. Their columns lie in the run's own memory, and those that nobody wants cost nothing."""
        values = pa.py_buffer(run.values)
        edges = run.offsets.tolist()
        for i in range(run.count):
            try:
                batch = pa.ipc.read_record_batch(values.slice(edges[i], edges[i + 1] - edges[i]), self._stored)
                if self._partly:
                    batch = batch.select(self._included)
                self._values.check(batch)
            except (pa.ArrowException, BadEntryError, OSError) as error:
                raise self._damaged(run.first_entry_id + i, error) from error
            yield batch

    def _stream(self, run: Entries) -> Iterator[pa.RecordBatch]:
        """Decode a run as a stream. It lacks its schema, and putting that in front costs a copy. Only a stream can decompress some columns
        and leave the others, and only there Arrow's threads can be switched off, which cost more than they save in a task of one core."""
        fields = {"included_fields": self._included} if self._partly else {}
        source = pa.py_buffer(b"".join((self._stored.serialize(), run.values)))
        done = 0
        try:
            for batch in pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False, **fields)):
                self._values.check(batch)
                yield batch
                done += 1
        except (pa.ArrowException, BadEntryError, OSError) as error:
            raise self._damaged(run.first_entry_id + done, error) from error
        if done != run.count:
            raise self._damaged(run.first_entry_id + done, "it is empty")

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        there = set(batch.schema.names)
        columns: list[Any] = [
            as_type(batch.column(f.name), f.type) if f.name in there else pa.nulls(batch.num_rows, f.type) for f in self._wanted
        ]
        if not columns:
            raise LogSchemaError("at least one column must be read")
        return pa.RecordBatch.from_arrays(columns, schema=self._wanted)

    def _damaged(self, entry_id: int, reason: object) -> LogEntryError:
        origin = self._origin
        where = f"entry {entry_id}"
        context: dict[str, Any] = {"entry": entry_id}
        if origin is not None:
            where += f" of ledger {origin.ledger_id}" + ("" if origin.log is None else f" of log {origin.log!r}")
            context |= {"ledger": origin.ledger_id, "log": origin.log}
        message = (
            f"{where} is no sound Arrow record batch of the log's schema: {reason}. Its digest is right, so it was written like that, and "
            f"every read of it ends here. {self._words.read_around}"
        )
        return LogEntryError(message, **context)


def _check_rows(origin: EntryRange, entry_id: int, rows: int) -> None:
    """Check the rows of each entry, which the list of a log tells. Raises BadEntryError for others, because every later row would have a
    wrong number."""
    per_entry = origin.rows_per_entry
    if not per_entry:
        return
    least = most = per_entry
    if entry_id == origin.last:
        if origin.last_rows is not None:
            least = origin.last_rows
        elif origin.rows is not None:
            least = most = origin.skip_rows + origin.rows - (origin.last - origin.first) * per_entry
        else:
            least = 1
    if not least <= rows <= most:
        raise BadEntryError(f"it has {rows} rows, and the log's list says {least if least == most else f'{least} to {most}'}")


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if batches:
        yield from pa.Table.from_batches(batches, schema=schema).combine_chunks().to_batches()
