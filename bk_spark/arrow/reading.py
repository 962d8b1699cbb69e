"""Reads a log as record batches: the columns that Spark's source gives, from the same entries, by the same code.

A read is a snapshot. It takes the list once, ends live segments at their last add confirmed, and makes ranges of entries of what lies
between start and end (``source/planning.py``). Batches are made as they are asked for, so memory holds some runs of entries and no more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from bk_core.client.log.history import read_log
from bk_core.client.log.list_store import LogClient
from bk_core.client.log.reader import LogReader, reaching
from bk_core.client.log.tables import EARLIEST, LATEST, Place
from bk_core.errors import BkError, InvalidArgumentError, LogDataLossError, LogSchemaError, NoSuchLedgerError, NoSuchLogError
from bk_core.near import meant
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import Segment
from bk_core.protocol.log.view import LogView
from bk_spark.entries.columns import RAW_COLUMNS, arrow_column_batches, joined, raw_column_batches
from bk_spark.entries.packing import BYTES_PER_ENTRY_MAX
from bk_spark.entries.ranges import EntryRange
from bk_spark.entries.stored_schema import arrow_schema_of_text
from bk_spark.entries.words import OF_PYTHON
from bk_spark.needs import check_pandas
from bk_spark.source.ledger_checks import lost_live
from bk_spark.source.planning import committed_ranges
from bk_spark.source.stretches import LedgerEnd, RangeReader, end_of, with_live

LOOK_S = 0.5  # the time between two looks at the stop event while nothing comes
_DELETED = "The log was deleted while it was read"
_RECREATED = "The log was deleted and created again while it was read: what the old one had is lost"
_LISTED = "The log still lists it, so somebody else deleted it: `bk log check` tells what else is lost"
_TRIMMED = "They were trimmed while they were read: read the log again, from the first entry that is left"
_UNKNOWN = "They were trimmed, or the log was deleted, while they were read, and nobody can tell now which it was"


def arrow_schema(client: LogClient, name: str, columns: Sequence[str] | None) -> pa.Schema:
    """Return the columns that a read gives. NoSuchLogError; LogSchemaError for a log without columns; InvalidArgumentError."""
    return _columns_of(name, read_log(client, name), columns)


def open_batches(
    client: LogClient, name: str, *, password: bytes, columns: Sequence[str] | None, start: Place, end: Place
) -> pa.RecordBatchReader:
    """Return a reader of what the log holds now between ``start`` and ``end``. Entries are read when batches are asked for.

    NoSuchLogError; LogSchemaError for a log without columns; InvalidArgumentError for places and columns that are not there;
    LogDataLossError for a place that was trimmed.
    """
    seen = _Seen.now(client, name, password, start, end)
    schema = _columns_of(name, seen.view, columns)
    ranges = seen.ranges(seen.place("start", start), seen.place("end", end))
    return pa.RecordBatchReader.from_batches(schema, _batches(client, name, password, seen.view, schema, ranges))


def span_now(client: LogClient, name: str, password: bytes) -> tuple[Position, Position]:
    """Return the first position that is left, and the one behind the last entry of now."""
    seen = _Seen.now(client, name, password, EARLIEST, LATEST)
    return seen.place("start", EARLIEST), seen.place("end", LATEST)


def follow_batches(
    client: LogClient, name: str, *, password: bytes, columns: Sequence[str] | None, start: Place, stop: threading.Event | None
) -> pa.RecordBatchReader:
    """Return a reader that goes on for ever: what there is now from ``start`` on, then what comes, until ``stop`` is set."""
    seen = _Seen.now(client, name, password, start)
    schema = _columns_of(name, seen.view, columns)
    batches = _followed(client, name, password, schema, columns is None, seen, seen.place("start", start), stop)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _followed(
    client: LogClient,
    name: str,
    password: bytes,
    schema: pa.Schema,
    all_asked: bool,
    first: _Seen,
    position: Position,
    stop: threading.Event | None,
) -> Iterator[pa.RecordBatch]:
    """Yield snapshot after snapshot, each from the end of the one before. A reader of the log waits in between."""
    seen = first
    with LogReader(client, name, start=position, password=password) as waiting:
        while True:
            ranges = seen.ranges(position, max(position, seen.end))
            if not seen.raw:
                _check_columns(name, seen.view, ranges, schema, all_asked=all_asked)
            for batch in _batches(client, name, password, seen.view, schema, ranges):
                if stop is not None and stop.is_set():
                    return
                yield batch
            position = waiting.position = max(position, seen.end)
            while not (stop is not None and stop.is_set()) and not waiting.wait(LOOK_S):
                pass
            if stop is not None and stop.is_set():
                return
            seen = _Seen.now(client, name, password, log_id=first.view.log_id)


def _check_columns(name: str, view: LogView, ranges: Sequence[EntryRange], schema: pa.Schema, *, all_asked: bool) -> None:
    """Raise LogSchemaError for rows that do not fit the stream of batches, whose schema is fixed when it begins: with new columns, where
    all were asked for, or without the columns asked for, or with others of their names."""
    if not ranges:
        return
    missing = [column for column in schema.names if column not in arrow_schema_of_text(view.properties.schema).names]
    for schema_id in sorted({r.schema_id for r in ranges}):
        stored = arrow_schema_of_text(view.listed.schemas[schema_id])
        others = [field.name for field in stored if field.name in schema.names and field.type != schema.field(field.name).type]
        new = [column for column in stored.names if column not in schema.names] if all_asked else []
        wrong = {"new columns": new, "columns of another type": others, "no columns any more": missing}
        told = [f"{what}: {', '.join(map(repr, columns))}" for what, columns in wrong.items() if columns]
        if told:
            message = f"log {name!r} has rows with {'; '.join(told)}, since this read began. Begin again, or name columns: columns=[...]"
            raise LogSchemaError(message, log=name)


def to_pandas(reader: pa.RecordBatchReader) -> Any:
    """Return the rest of ``reader`` as a DataFrame. MissingPackageError where there is no pandas."""
    check_pandas()
    return reader.read_pandas()


# --- what there is to read ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seen:
    """A log at one moment. Live segments end in ``view`` where they can be read to; ``end`` is where all of it ends."""

    name: str
    view: LogView
    end: Position
    live: frozenset[int]

    @classmethod
    def now(cls, client: LogClient, name: str, password: bytes, *places: Place, log_id: str | None = None) -> _Seen:
        view = read_log(client, name)
        for place in places:
            if isinstance(place, Position):
                view = reaching(client, name, view, place)
        if log_id not in (None, view.log_id):
            raise LogDataLossError(f"log {name!r} was deleted and created again; what it had is lost", log=name)
        seen, end = with_live(view, _live_ends(client, name, view, password))
        return cls(name, seen, end, frozenset(segment.seq for segment in view.live_segments))

    @property
    def raw(self) -> bool:
        return self.view.properties.entry_format == "raw"

    def place(self, argument: str, place: Place) -> Position:
        """Return the position that an argument means. InvalidArgumentError; LogDataLossError for one that was trimmed."""
        if isinstance(place, Position):
            found = self.view.normal(place)
            if found > max(self.end, self.view.normal(self.end)):
                where = f"{_told(place)}, row {place.row}"
                raise InvalidArgumentError(
                    f"{argument} ({where}) is beyond the end of log {self.name!r} ({_told(self.end)})", log=self.name
                )
            return min(found, self.end)
        if isinstance(place, int):
            return min(self.view.position_at_time(place) or self.end, self.end)
        if place not in (EARLIEST, LATEST):
            raise InvalidArgumentError(f'{argument} must be "earliest", "latest", a Position or a datetime, not {place!r}')
        return min(self.view.first_position, self.end) if place == EARLIEST else self.end

    def ranges(self, start: Position, end: Position) -> list[EntryRange]:
        if start > end:
            raise InvalidArgumentError(f"log {self.name!r}: start ({_told(start)}) lies behind end ({_told(end)})", log=self.name)
        found = committed_ranges(self.view, start, end, self.name)
        return [replace(r, committed_at_ms=None) if r.seq in self.live else r for r in found]


def _told(position: Position) -> str:
    return f"segment {position.seq}, entry {position.entry}"


def _live_ends(client: LogClient, name: str, view: LogView, password: bytes) -> Iterator[tuple[Segment, LedgerEnd]]:
    for segment in view.live_segments:
        try:
            found = end_of(client, segment.ledger_id, password, "lac")
        except NoSuchLedgerError:
            raise lost_live(name, segment.ledger_id) from None
        assert found is not None
        yield segment, found


def _columns_of(name: str, view: LogView, columns: Sequence[str] | None) -> pa.Schema:
    properties = view.properties
    if properties.entry_format != "raw" and not properties.schema:
        raise LogSchemaError(f"log {name!r} has no columns yet: its first write gives them, or create_log(..., schema=...)", log=name)
    whole = RAW_COLUMNS if properties.entry_format == "raw" else arrow_schema_of_text(properties.schema)
    if columns is None:
        return whole
    if not columns:
        raise InvalidArgumentError("columns must name at least one column, or be None for all")
    for column in columns:
        if column not in whole.names:
            hint = meant(column, whole.names) or f"there are {', '.join(map(repr, whole.names))}"
            raise InvalidArgumentError(f"log {name!r} has no column {column!r}; {hint}", log=name)
    if len(set(columns)) < len(columns):
        raise InvalidArgumentError(f"columns names a column twice: {', '.join(map(repr, columns))}")
    return pa.schema([whole.field(column) for column in columns])


# --- reading --------------------------------------------------------------------------------------------------------------


def _why_gone(client: LogClient, name: str, log_id: str, ledger_id: int) -> str:
    """Return the reason why a ledger of the log is gone that was listed when the read began, for the error's message."""
    try:
        view = read_log(client, name)
        listed = bool(view.named([ledger_id]))
    except NoSuchLogError:
        return _DELETED
    except BkError:
        return _UNKNOWN
    return _RECREATED if view.log_id != log_id else _LISTED if listed else _TRIMMED


def _batches(
    client: LogClient, name: str, password: bytes, view: LogView, schema: pa.Schema, ranges: Sequence[EntryRange]
) -> Iterator[pa.RecordBatch]:
    raw = view.properties.entry_format == "raw"
    stored = [] if raw else [arrow_schema_of_text(text) for text in view.listed.schemas]
    reader = RangeReader(client, password, None, {}, True, partial(_why_gone, client, name, view.log_id))

    def decoded() -> Iterator[pa.RecordBatch]:
        for r, runs in reader.runs(ranges):
            if raw:
                yield from raw_column_batches(schema, r, runs)
            else:
                yield from arrow_column_batches(schema, stored[r.schema_id], False, r, runs, BYTES_PER_ENTRY_MAX, OF_PYTHON)

    return joined(decoded(), schema)
