"""Appends rows to a log as a whole: entries of ledgers of their own first, then the one change of the list that makes all of them visible.

It is what a batch write of Spark's is, made by one process. Readers see all rows or none. Another append may come in between; each is a
commit of its own. Nothing is fenced, except an exclusive writer that is certainly gone, or that the caller wants to end.
"""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from bk_core.client.guards import check_password
from bk_core.client.identity import recover_own
from bk_core.client.log.history import history_of, update_ledger_list
from bk_core.client.log.intents import create_intended, forget_intent
from bk_core.client.log.janitor import check_listable
from bk_core.client.log.list_store import LogClient, encoded, read_ledger_list, store_now_ms, update_timeout_s
from bk_core.client.log.tables import WrittenRows
from bk_core.client.operations import unanswered, wait
from bk_core.errors import (
    ArgumentTypeError,
    BkError,
    InvalidArgumentError,
    LogDataLossError,
    LogError,
    LogSchemaError,
    LogWriterAliveError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    OperationTimeoutError,
    WrongPasswordError,
)
from bk_core.protocol.log.ledger_list import LedgerList, SegmentRange
from bk_core.protocol.log.names import check_not_of_files
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.view import LogView
from bk_core.threads import start_aside
from bk_spark.arrow.schemas import check_fits, check_named_once, given_schema, log_schema, stored_text
from bk_spark.entries.columns import RAW_COLUMNS
from bk_spark.entries.packing import PackedEntries, conform, pack_arrow, pack_raw
from bk_spark.entries.ranges import note_range
from bk_spark.entries.stored_schema import arrow_schema_of_text
from bk_spark.entries.values import ValueCheck
from bk_spark.entries.words import OF_PYTHON
from bk_spark.options.grammar import ENTRY_BYTES_MAX
from bk_spark.sink.intents import claim, withdraw
from bk_spark.sink.sweep import delete_unlisted

DEFAULT_TIMEOUT_S = 60.0
IN_FLIGHT_BYTES = 32 << 20
ROLL_BYTES = 256 << 20
COMPRESSIONS = ("none", "zstd", "lz4")
_APPLICATION = b"bk_arrow"
_NAMED_MAX = 8  # columns in a message


def write_rows(
    client: LogClient,
    name: str,
    data: object,
    *,
    password: bytes,
    ended: Sequence[int] | None,
    entry_size: int,
    compression: str,
) -> WrittenRows:
    """Append the rows of ``data`` and return where they are. ``ended``: live ledgers whose writers may be ended; None is any.

    Before anything is done: ArgumentTypeError for what has no rows, LogSchemaError for columns that do not fit, WrongPasswordError,
    LogWriterAliveError behind an exclusive writer. Nothing is visible after an error of the rows or of the bookies.
    """
    if compression not in COMPRESSIONS:
        raise InvalidArgumentError(f"compression must be one of {', '.join(COMPRESSIONS)}, not {compression!r}")
    if entry_size > ENTRY_BYTES_MAX:
        raise InvalidArgumentError(f"entry_size must be at most {ENTRY_BYTES_MAX}, because bookies take no larger entry, not {entry_size}")
    check_not_of_files(name, False)
    given, batches = _rows_of(data)
    listed = read_ledger_list(client, name)
    check_password(client, name, listed, password)
    _check_live(name, listed, ended)
    if listed.properties.entry_format == "raw":
        text, runs = "", pack_raw(_values(name, given, batches), words=OF_PYTHON)
        if compression != "none":
            raise InvalidArgumentError(f"compression is for logs of Arrow entries; {name!r} is a raw one: each value is an entry as it is")
    else:
        text = _text_for(name, listed, given)
        if text != listed.properties.schema:
            encoded(name, listed.set_schema(text))  # columns that no list can keep are told of before a row is written
        schema = arrow_schema_of_text(text)
        runs = pack_arrow(_checked(name, batches, schema), schema, entry_size, compression, words=OF_PYTHON)
    ledgers = _Ledgers(client, name, listed, password)
    try:
        for run in runs:
            ledgers.append(run)
        ranges = ledgers.finish()
    except BaseException as error:
        _tidy(error, ledgers.discard)
        if isinstance(error, BkError):
            error.nothing_done()  # no list names the ledgers
        raise
    return _Commit(client, name, listed, text, ranges, password, ended).publish(ledgers)


def _tidy(error: BaseException, work: Callable[[], None]) -> None:
    """Clean up after an error. Where the store or a bookie is away, which has taken the time of the call already, nobody waits for it."""
    if isinstance(error, MetadataUnavailableError | MetadataOutcomeUnknownError | OperationTimeoutError):
        start_aside(work, "bk-tidy")
    else:
        work()


_INDEX = re.compile(r"__index_level_\d+__")  # names that pandas makes up


# --- rows -----------------------------------------------------------------------------------------------------------------


def _rows_of(data: object) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the columns and the batches of whatever has rows. ArgumentTypeError for what has none."""
    if isinstance(data, pa.Table):  # as it is: names are cut on the way through the C interface
        return data.schema, iter(data.to_batches())
    if hasattr(data, "__arrow_c_stream__"):
        try:
            stream = pa.RecordBatchReader.from_stream(data)
        except pa.ArrowException as error:  # the values of one column
            raise _not_given(data, error) from error
        return _without_index(data, stream)
    if hasattr(data, "__arrow_c_array__"):
        batch = _batch(data)
        return batch.schema, iter([batch])
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | dict):
        raise _no_rows(data)
    batches = iter(data)
    first = next(batches, None)
    if first is None:
        raise ArgumentTypeError("data has no batch, so that nobody knows its columns: give an empty table instead")
    if isinstance(first, dict):
        told = _no_rows(data).args[0]
        raise ArgumentTypeError(f"{told} of dictionaries; pyarrow.Table.from_pylist(data) makes a table of such a list")
    whole = map(_batch, chain([first], batches))
    begin = next(whole)
    return begin.schema, chain([begin], whole)


def _without_index(data: object, stream: pa.RecordBatchReader) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the columns and the batches of a stream. A DataFrame of pandas gives an index without a name as a column of a made-up name,
    which nobody meant to be a column of a log: it is left out."""
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(data, pandas.DataFrame):
        return stream.schema, iter(stream)
    kept = [name for name in stream.schema.names if name in data.columns or not _INDEX.fullmatch(name)]
    return pa.schema([stream.schema.field(name) for name in kept]), (batch.select(kept) for batch in stream)


def _batch(given: object) -> pa.RecordBatch:
    if isinstance(given, pa.RecordBatch):
        return given
    if hasattr(given, "__arrow_c_array__"):
        try:
            return pa.record_batch(given)
        except pa.ArrowException as error:
            raise _not_given(given, error) from error
    raise _no_rows(given)


def _not_given(data: object, error: pa.ArrowException) -> ArgumentTypeError:
    if "non-struct" in str(error):
        return _no_rows(data)
    return ArgumentTypeError(f"data, of type {type(data).__name__}, cannot be had as Arrow columns: {'; '.join(map(str, error.args))}")


def _no_rows(data: object) -> ArgumentTypeError:
    wanted = "a table, record batches, or whatever has __arrow_c_stream__ (a DataFrame of polars or pandas, a relation of DuckDB)"
    return ArgumentTypeError(f"data must be {wanted}, not of type {type(data).__name__}")


def _text_for(name: str, listed: LedgerList, given: pa.Schema) -> str:
    """Return the schema that the rows are written with: the log's, or, before its first write, their own."""
    check_named_once(name, given)
    if not listed.properties.schema:
        return stored_text(log_schema(given))
    check_fits(name, given_schema(given), arrow_schema_of_text(listed.properties.schema))
    return listed.properties.schema


def _checked(name: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the batches with the log's columns. Their values are checked as a reader will check them, so that nobody writes what no reader
    takes."""
    values = ValueCheck(schema)
    row = 0
    for batch in batches:
        try:
            fitting = conform(batch, schema)
            values.check(fitting)
        except (pa.ArrowException, ValueError) as error:
            if isinstance(error, BkError):
                raise
            last = row + batch.num_rows - 1
            raise LogSchemaError(f"log {name!r}: rows {row} to {last} hold what no log can keep: {error}", log=name) from error
        yield fitting
        row += batch.num_rows


def _values(name: str, given: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return batches of ``value`` alone. The columns that reading a raw log adds may be there, so that one can be copied."""
    if "value" not in given.names:
        raise LogSchemaError(f"raw log {name!r} takes a column 'value' (binary or string); the rows have {_some(given.names)}", log=name)
    check_named_once(name, given)
    lost = [column for column in given.names if column not in RAW_COLUMNS.names]
    if lost:
        raise LogSchemaError(f"raw log {name!r} stores only 'value'; drop {_some(lost)}, or use an arrow log", log=name)
    return (_only_value(name, batch) for batch in batches)


def _some(columns: Sequence[str]) -> str:
    """Return the names of columns for a message, of many the first few."""
    more = len(columns) - _NAMED_MAX
    return ", ".join(map(repr, columns[:_NAMED_MAX])) + (f" and {more:,} more" if more > 0 else "")


def _only_value(name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    if "key" in batch.schema.names and batch.column("key").null_count != batch.num_rows:
        raise LogSchemaError(f"raw log {name!r} stores only 'value', and column 'key' is not all null: drop it", log=name)
    values = batch.column("value")
    if pa.types.is_dictionary(values.type) or pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):
        try:
            values = values.cast(pa.binary())
        except pa.ArrowException as error:
            raise LogSchemaError(f"column 'value' of raw log {name!r} must be binary or string, not {values.type}", log=name) from error
    return pa.RecordBatch.from_arrays([values], names=["value"])


def _check_live(name: str, listed: LedgerList, ended: Sequence[int] | None) -> None:
    """Raise LogWriterAliveError unless every live segment may be ended."""
    alive = [segment.ledger_id for segment in listed.live_segments if ended is not None and segment.ledger_id not in ended]
    if alive:
        message = f"log {name!r} has an exclusive writer (live ledger {alive[-1]}); stop it, or end its writing: take_over=True"
        raise LogWriterAliveError(message, log=name, ledger=alive[-1])


# --- entries --------------------------------------------------------------------------------------------------------------


class _Ledgers:
    """The ledgers of one write. None is made before the first row, and all are closed at the end."""

    def __init__(self, client: LogClient, name: str, listed: LedgerList, password: bytes) -> None:
        self._client = client
        self._name = name
        self._listed = listed
        self._password = password
        self._handles: list[Any] = []
        self._open: Any = None
        self._filled = 0
        self._ranges: list[SegmentRange] = []
        self._in_flight: deque[tuple[Future[int], int, PackedEntries]] = deque()
        self._in_flight_bytes = 0
        config = getattr(client, "config", None)
        self._timeout_s: float = config.operation_timeout_s if config is not None else DEFAULT_TIMEOUT_S

    @property
    def ids(self) -> list[int]:
        return [handle.ledger_id for handle in self._handles]

    def append(self, run: PackedEntries) -> None:
        """Hand over a run. Blocks while more than ``IN_FLIGHT_BYTES`` are not acknowledged."""
        handle = self._handle()
        self._in_flight.append((handle.append_run_future(run.payloads, run.offsets), handle.ledger_id, run))
        self._in_flight_bytes += run.bytes
        self._filled += run.bytes
        while self._in_flight_bytes > IN_FLIGHT_BYTES:
            self._settle()

    def finish(self) -> list[SegmentRange]:
        """Wait for every acknowledgement, close the ledgers, and return the ranges in the order of the rows."""
        self._close()
        return self._ranges

    def discard(self) -> None:
        """Delete the ledgers, which nobody was told of. Never raises: the janitor cleans up the rest."""
        for handle in self._handles:
            withdraw(self._client, self._name, handle)

    def _handle(self) -> Any:
        if self._open is not None and self._filled >= ROLL_BYTES:
            self._close()
        if self._open is None:
            custom = {"application": _APPLICATION}
            self._open = create_intended(
                self._client, self._name, self._listed.properties, log_id=self._listed.log_id, password=self._password, custom=custom
            )
            self._handles.append(self._open)
            self._filled = 0
        return self._open

    def _close(self) -> None:
        while self._in_flight:
            self._settle()
        if self._open is not None:
            handle, self._open = self._open, None
            handle.close()

    def _settle(self) -> None:
        future, ledger_id, run = self._in_flight.popleft()
        self._in_flight_bytes -= run.bytes
        began_s = time.monotonic()
        what = f"writing rows to log {self._name!r} (ledger {ledger_id})"
        try:
            last = wait(future, self._timeout_s, what)
        except OperationTimeoutError:
            why = f"{what} got no answer for {self._timeout_s:g} s{unanswered(self._client, began_s)}; nothing of it is visible"
            raise OperationTimeoutError(why, log=self._name, ledger=ledger_id).nothing_done() from None
        note_range(self._ranges, SegmentRange(ledger_id, last - run.count + 1, last, run.rows, run.bytes, run.rows_per_entry))


# --- the commit -------------------------------------------------------------------------------------------------------------


class _Commit:
    """The change of the list. It is run again on every newer list, and judged again each time."""

    def __init__(
        self,
        client: LogClient,
        name: str,
        planned: LedgerList,
        text: str,
        ranges: Sequence[SegmentRange],
        password: bytes,
        ended: Sequence[int] | None,
    ) -> None:
        self._client = client
        self._name = name
        self._planned = planned
        self._text = text
        self._ranges = ranges
        self._password = password
        self._ended = ended
        self._at_ms = 0
        self._first = 0
        self._tried: set[int] = set()  # where earlier attempts would have put the first segment

    def publish(self, ledgers: _Ledgers) -> WrittenRows:
        deadline = time.monotonic() + update_timeout_s(self._client)
        try:
            self._at_ms = store_now_ms(self._client)
            update_ledger_list(self._client, self._name, self._change, timeout_s=max(0.0, deadline - time.monotonic()))
        except BaseException as error:
            _tidy(error, partial(self._undo, ledgers.ids, refused=isinstance(error, LogError | WrongPasswordError)))
            raise
        for ledger_id in ledgers.ids:
            with suppress(BkError):  # the next janitor finds what is left undone
                forget_intent(self._client, self._name, ledger_id)
        rows, size = sum(r.rows for r in self._ranges), sum(r.bytes for r in self._ranges)
        entries = sum(r.last_entry_id - r.first_entry_id + 1 for r in self._ranges)
        return WrittenRows(rows, entries, size, Position(self._first), Position(self._first + len(self._ranges)))

    def _undo(self, ledger_ids: Sequence[int], *, refused: bool) -> None:
        """Clean up. The ledgers of a change that the list ``refused`` are deleted. Otherwise the metadata store may be away, and the change
        may have come through: a janitor deletes the ledgers unless the list names them."""
        with suppress(BkError):
            claimed = [ledger_id for ledger_id in ledger_ids if claim(self._client, self._name, ledger_id, "")]
            if refused:
                delete_unlisted(self._client, self._name, claimed, self._password)

    def _change(self, listed: LedgerList) -> LedgerList:
        if listed.log_id != self._planned.log_id:
            raise LogDataLossError(
                f"log {self._name!r} was deleted and created again during the write; nothing was published", log=self._name
            )
        check_password(self._client, self._name, listed, self._password)
        if self._ranges and (first := self._place_in(listed)) is not None:
            self._first = first  # our own change came through, and its answer was lost
            return listed
        _check_live(self._name, listed, self._ended)
        changed = self._with_schema(self._closed(listed) if self._ranges else listed)
        check_listable(self._client, self._name, listed.log_id, sorted({r.ledger_id for r in self._ranges}))
        self._first = changed.next_seq
        self._tried.add(self._first)
        return changed.append_segments(tuple(self._ranges), self._at_ms, schema=self._text or None)

    def _place_in(self, listed: LedgerList) -> int | None:
        """Return the number of the first segment of our own if the list has it. Commits of others may have moved it into the history since
        an attempt whose answer was lost."""
        first, view = self._ranges[0], LogView(listed, history_of(self._client, self._name, listed.log_id))
        for seq in self._tried:
            if listed.trimmed_seq <= seq < listed.next_seq:
                there = view.segment(seq)
                if (there.ledger_id, there.first_entry_id) == (first.ledger_id, first.first_entry_id):
                    return seq
        return None

    def _closed(self, listed: LedgerList) -> LedgerList:
        """End the live segments, whose writers are gone or to be ended, and list what they hold."""
        for segment in listed.live_segments:
            try:
                with recover_own(self._client, self._name, listed.log_id, segment.ledger_id, self._password, listed.adopted) as ended:
                    last, size = ended.last_add_confirmed, ended.length
            except NoSuchLedgerError:
                message = f"log {self._name!r} lists ledger {segment.ledger_id}, which does not exist"
                raise LogDataLossError(message, log=self._name) from None
            listed = listed.close_live(segment.ledger_id, last, size, self._at_ms)
        return listed

    def _with_schema(self, listed: LedgerList) -> LedgerList:
        current = listed.properties.schema
        if (listed.properties.entry_format == "raw") == bool(self._text):
            raise LogError(f"log {self._name!r} has another entry format now; nothing was published", log=self._name)
        if self._text in ("", current) or (self._text in listed.schemas and current):
            return listed
        if current:
            raise LogSchemaError(
                f"another writer gave log {self._name!r} other columns meanwhile; nothing was published. Write again",
                log=self._name,
            )
        return listed.set_schema(self._text)
