"""Makes record batches of entries: the columns of raw entries, and those that tell where a row of an Arrow log comes from. No pyspark.

What each column means stands in ``bk_spark/source/columns.py``.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pyarrow as pa

from bk_spark.entries.ranges import EntryRange
from bk_spark.entries.unpacking import Entries, arrow_batches, value_array
from bk_spark.entries.words import OF_SPARK, Words

JOIN_BYTES = 1 << 20  # smaller batches are joined: each costs Spark a round through the JVM
JOIN_BATCHES = 1024
RAW_COLUMNS = pa.schema(
    [
        ("log", pa.string()),
        ("ledgerId", pa.int64()),
        ("entryId", pa.int64()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("length", pa.int64()),
    ]
)
"""The columns of raw entries."""
METADATA_NAMES = tuple(f"_{name}" for name in RAW_COLUMNS.names[:5])
"""The columns that tell where a row of an Arrow log comes from."""


def raw_column_batches(schema: pa.Schema, r: EntryRange, runs: Iterable[Entries]) -> Iterator[pa.RecordBatch]:
    """Yield one batch per run, of the columns of ``schema``, which are among the raw ones. Values are not copied."""
    for run in runs:
        made = _RawColumns(r, run)
        yield pa.RecordBatch.from_arrays([made.column(field) for field in schema], schema=schema)


@dataclass(frozen=True, slots=True)
class _RawColumns:
    range: EntryRange
    run: Entries

    def column(self, field: pa.Field) -> pa.Array:
        run, count = self.run, self.run.count
        match field.name:
            case "entryId":
                return _counted(run.first_entry_id, count)
            case "offset":
                before = self.range.offset
                return pa.nulls(count, pa.int64()) if before is None else _counted(before + run.first_entry_id - self.range.first, count)
            case "value":
                return value_array(run)
            case "length":
                import pyarrow.compute as pc

                ends = pa.Array.from_buffers(pa.int64(), count + 1, [None, pa.py_buffer(run.offsets)])
                return pc.subtract(ends.slice(1), ends.slice(0, count))
            case _:
                return _repeated(self.range, field, count)


def _repeated(r: EntryRange, field: pa.Field, count: int) -> pa.Array:
    """Return a column that is the same for a whole range."""
    match field.name.removeprefix("_"):
        case "log":
            value: Any = r.log
        case "ledgerId":
            value = r.ledger_id
        case "timestamp":
            value = None if r.committed_at_ms is None else r.committed_at_ms * 1000
        case _:  # key, headers
            value = None
    return pa.nulls(count, field.type) if value is None else pa.repeat(pa.scalar(value, field.type), count)


def _counted(first: int, count: int) -> pa.Array:
    """Return first, first + 1, ..., without a Python object for each."""
    import pyarrow.compute as pc  # a read of values alone does not need it

    return pc.add(_numbers(max(12, count.bit_length())).slice(0, count), pa.scalar(first, pa.int64()))


@cache
def _numbers(bits: int) -> pa.Array:
    return pa.array(range(1 << bits), pa.int64())


def arrow_column_batches(
    schema: pa.Schema,
    stored: pa.Schema | None,
    with_metadata: bool,
    r: EntryRange,
    runs: Iterable[Entries],
    entry_bytes_max: int,
    words: Words = OF_SPARK,
) -> Iterator[pa.RecordBatch]:
    """Yield batches of ``schema``: the log's columns, decoded with ``stored``, and with ``with_metadata`` those of METADATA_NAMES.

    ``entry_bytes_max`` is the most bytes that the columns of one entry may have. Raises LogEntryError for an entry that is not valid.
    """
    decoded = partial(arrow_batches, stored=stored, entry_bytes_max=entry_bytes_max, words=words)
    if not with_metadata:
        yield from decoded(schema, runs, r.skip_rows, r.last_rows, origin=r)
        return
    own = pa.schema([field for field in schema if field.name not in METADATA_NAMES])
    if not len(own):  # Arrow knows the rows of an entry only by a column of it
        assert stored is not None
        own = pa.schema([stored.field(0)])
    if r.rows_per_entry:
        yield from _with_metadata(schema, r, decoded(own, runs, r.skip_rows, r.last_rows, origin=r))
        return
    for run in runs:  # these were written before lists stored the rows per entry, so each entry is read to count them
        for i in range(run.count):
            one = cut_run(run, i, i + 1)
            alone = EntryRange(r.ledger_id, one.first_entry_id, one.first_entry_id, 0, log=r.log, committed_at_ms=r.committed_at_ms)
            yield from _with_metadata(schema, alone, decoded(own, [one], origin=alone))


def _with_metadata(schema: pa.Schema, r: EntryRange, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    done = 0
    for batch in batches:
        columns = []
        for field in schema:
            if field.name == "_entryId":
                columns.append(_entry_ids(r, done, batch.num_rows))
            elif field.name == "_offset":
                count = batch.num_rows
                columns.append(pa.nulls(count, pa.int64()) if r.offset is None else _counted(r.offset + done, count))
            elif field.name in METADATA_NAMES:
                columns.append(_repeated(r, field, batch.num_rows))
            else:
                columns.append(batch.column(field.name))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
        done += batch.num_rows


def _entry_ids(r: EntryRange, done: int, count: int) -> pa.Array:
    """Return the entry ids of ``count`` rows after the first ``done`` of the range: all entries but the last hold
    ``rows_per_entry`` rows."""
    per_entry = r.rows_per_entry or count + r.skip_rows + 1
    row, end = r.skip_rows + done, r.skip_rows + done + count
    parts: list[pa.Array] = []
    while row < end:
        index = row // per_entry
        after = min(end, (index + 1) * per_entry)
        parts.append(pa.repeat(pa.scalar(r.first + index, pa.int64()), after - row))
        row = after
    return pa.concat_arrays(parts) if parts else pa.array([], pa.int64())


def joined(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in fewer batches, where they are small."""
    small: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        if batch.nbytes >= JOIN_BYTES and not small:
            yield batch
            continue
        small.append(batch)
        size += batch.nbytes
        if size >= JOIN_BYTES or len(small) >= JOIN_BATCHES:
            yield from _one(small, schema)
            small, size = [], 0
    yield from _one(small, schema)


def _one(batches: list[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if len(batches) == 1:
        yield batches[0]
    elif batches:
        yield from pa.Table.from_batches(batches, schema=schema).combine_chunks().to_batches()


# --- runs ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class PartOfEntries:
    """Some consecutive entries of a run. ``values`` holds nothing else, and ``offsets`` begin at 0."""

    first_entry_id: int
    count: int
    values: Any
    offsets: memoryview


def cut_run(run: Entries, start: int, end: int) -> PartOfEntries:
    """Return the entries number ``start .. end - 1`` of the run."""
    base = run.offsets[start]
    offsets = array("q", (run.offsets[i] - base for i in range(start, end + 1)))
    return PartOfEntries(run.first_entry_id + start, end - start, memoryview(run.values)[base : run.offsets[end]], memoryview(offsets))


class RunSplitter:
    """Hands the runs of one long read out to the ranges that it spans."""

    def __init__(self, runs: Iterable[Entries]) -> None:
        self._runs = iter(runs)
        self._held: Entries | None = None

    def through(self, last: int) -> Iterator[Entries]:
        """Yield the runs up to entry ``last``; the rest of a run is kept for the next call."""
        while True:
            run = self._held if self._held is not None else next(self._runs, None)
            self._held = None
            if run is None:
                return
            count = last + 1 - run.first_entry_id
            if count < run.count:
                self._held = cut_run(run, count, run.count) if count > 0 else run
                if count > 0:
                    yield cut_run(run, 0, count)
                return
            yield run
            if count == run.count:
                return
