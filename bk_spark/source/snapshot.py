"""The content of a batch read: the logs as they are now, and the ranges of their entries between its starting and ending offsets."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql.types import StructType

from bk_core.client.log.history import read_log
from bk_core.client.log.list_store import agree
from bk_core.errors import InvalidArgumentError, LogSchemaError, NoSuchLedgerError, NoSuchLogError
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import Segment
from bk_core.protocol.log.view import LogView
from bk_spark.entries.ranges import EntryRange
from bk_spark.options.grammar import KAFKA
from bk_spark.options.table import Options
from bk_spark.schemas import arrow_schema, schema_of_text
from bk_spark.source.bounds import NO_BOUNDS, Bounds
from bk_spark.source.columns import arrow_columns, named, raw_schema
from bk_spark.source.kafka_columns import kafka_schema
from bk_spark.source.ledger_checks import REST, lost_live
from bk_spark.source.partitions import ledger_end, range_until, warn_of_open
from bk_spark.source.planning import bounded, committed_ranges
from bk_spark.source.starting import ending_position, source_logs, starting_position
from bk_spark.source.stretches import LedgerEnd, with_live

_log = logging.getLogger("bk_spark.read")


# --- schema -------------------------------------------------------------------------------------------------------------


def views_of(client: Any, options: Options, under_way: bool = False, either: bool = False, waiting: bool = False) -> dict[str, LogView]:
    """Return the logs to read, by name. With ``logPattern`` a log that is deleted at this moment is left out; otherwise it is a
    NoSuchLogError.

    ``under_way``: for a stream that may have begun long ago (``source_logs``). With ``failOnDataLoss=false`` it does without logs that are
    gone, as long as there is one that tells the columns. ``either``: Spark does not say whether a batch or a stream
    asks, so a missing log is told in words that are true of both. ``waiting``: logs that do not exist are left out, because the
    stream waits for them.
    """
    views: dict[str, LogView] = {}
    missing: NoSuchLogError | None = None
    for name in source_logs(options, client, under_way):
        try:
            views[name] = _read(client, name, under_way and not waiting)
        except NoSuchLogError as error:
            missing = _unknown(error) if either else with_deleted(error) if under_way else error
            if options.log_pattern is None and not waiting and (not under_way or options.fail_on_data_loss):
                raise missing from None
    if missing is not None and not views and not waiting:
        raise missing
    return views


def _read(client: Any, name: str, surely: bool) -> LogView:
    """Return the log. ``surely``: one that is missing may have been read by another session, so it is asked for again behind an agreement
    of the metadata store's servers."""
    try:
        return read_log(client, name)
    except NoSuchLogError:
        if not surely:
            raise
    agree(client)
    return read_log(client, name)


def _unknown(error: NoSuchLogError) -> NoSuchLogError:
    """Return the same error with both reasons that there may be, unless it suggests the name of another log."""
    if type(error) is not NoSuchLogError or error.asks:
        return error
    return error.retold(f"{error.args[0]}: it was never made, or it was deleted with what was not read yet")


def with_deleted(error: NoSuchLogError) -> NoSuchLogError:
    """Return the same error for what may be a stream that is started again, because a deleted log cannot be told from one that never
    existed."""
    if type(error) is not NoSuchLogError:
        return error
    stop = "" if error.asks else "."
    deleted = "If this is a stream that has read it before, it was deleted, and what was not read yet is lost"
    waits = "A stream with .schema(...) and waitForLog=true waits for a log that is yet to come"
    return error.retold(f"{error.args[0]}{stop} {deleted}. {waits}")


def is_raw_source(options: Options, views: Mapping[str, LogView]) -> bool:
    """Return True for raw logs. Raises LogSchemaError for logs of both entry formats, which have no columns in common."""
    if options.ledgers is not None:
        return True
    formats = {view.properties.entry_format: name for name, view in sorted(views.items(), reverse=True)}
    if len(formats) > 1:
        both = " and ".join(f"{name!r} ({entry_format})" for entry_format, name in sorted(formats.items()))
        raise LogSchemaError(f"logs {both} cannot be read together: their entry formats differ")
    return "raw" in formats


def source_schema(options: Options, views: Mapping[str, LogView]) -> StructType:
    """Return all columns that there are to read. Raises LogSchemaError if there was no write yet, or if the columns of several logs do not
    fit."""
    if is_raw_source(options, views):
        if options.include_metadata == KAFKA:
            return kafka_schema(None, options.include_headers)
        return raw_schema(options.include_metadata is not False, options.include_headers)
    own = common_columns(views)
    if options.include_metadata == KAFKA:
        return kafka_schema(own, options.include_headers, widest(views))
    if options.include_headers and named(own.names, "headers") is None:
        raise LogSchemaError(f"log {widest(views)!r} has no column 'headers', so includeHeaders=true has nothing to show: leave it out")
    return arrow_columns(own, bool(options.include_metadata))


def have_columns(options: Options, views: Mapping[str, LogView]) -> bool:
    """Return True if the logs tell their columns. Logs that do not exist, and those of Arrow entries before their first write, do not."""
    return bool(views) and (is_raw_source(options, views) or any(view.properties.schema for view in views.values()))


def common_columns(views: Mapping[str, LogView]) -> StructType:
    """Return the columns of the log with the most. The others have the first of them, as if written before columns were added
    (null there)."""
    schemas = _schemas(views)
    longest = _longest(schemas)
    whole = list(arrow_schema(schemas[longest]))
    for name, schema in schemas.items():
        fields = list(arrow_schema(schema))
        if fields != whole[: len(fields)]:
            differs = next(f for f, other in zip(fields, whole, strict=False) if f != other)
            raise LogSchemaError(f"logs {name!r} and {longest!r} cannot be read together: they differ at column {differs.name!r}", log=name)
    return schemas[longest]


def widest(views: Mapping[str, LogView]) -> str:
    """Return the log whose columns ``common_columns`` gives."""
    return _longest(_schemas(views))


def _schemas(views: Mapping[str, LogView]) -> dict[str, StructType]:
    schemas = {name: schema_of_text(view.properties.schema) for name, view in views.items() if view.properties.schema}
    if not schemas:
        raise LogSchemaError(
            f"log {', '.join(map(repr, views))} has no schema yet: its first write gives it, or who creates it (bk log create --schema, "
            "create_log(schema=...)); a stream with .schema(...) waits"
        )
    return schemas


def _longest(schemas: Mapping[str, StructType]) -> str:
    return max(schemas, key=lambda name: len(schemas[name].fields))


def check_read_schema(given: StructType, whole: StructType) -> None:
    """Raise LogSchemaError unless every column that is asked for is there, with its type: a user's schema, or a table's from when it was
    made."""
    there = {field.name: field for field in arrow_schema(whole)}
    for field in arrow_schema(given):
        if field.name not in there or there[field.name].type != field.type:
            spelled = named(list(there), field.name)
            found = "not there" if spelled is None else f"{spelled!r} {whole[spelled].dataType.simpleString()}"
            raise LogSchemaError(
                f"the schema asks for column {field.name!r} as {given[field.name].dataType.simpleString()}, which is {found}: leave "
                ".schema(...) out; if there is none, the log's columns were replaced since: make the DataFrame, or the table, anew"
            )


# --- ranges -------------------------------------------------------------------------------------------------------------


def read_ranges(client: Any, options: Options, bounds: Bounds = NO_BOUNDS) -> tuple[dict[str, LogView], list[EntryRange]]:
    """Return the logs by name, and the parts of them (or of single ledgers) to read, in order."""
    if options.ledgers is not None:
        return {}, _ledger_ranges(client, options, bounds)
    views = views_of(client, options)
    ranges: list[EntryRange] = []
    for name, view in views.items():
        seen, end = _with_live(client, options, view, name)
        start, stop = starting_position(seen, name, options, "earliest", end), ending_position(seen, name, options, end)
        if start > stop:
            raise InvalidArgumentError(f"log {name!r}: the starting offset (segment {start.seq}) lies beyond the ending one ({stop.seq})")
        live = {segment.seq for segment in view.live_segments}
        found = committed_ranges(seen, start, stop, name, bounds)
        ranges += [replace(r, committed_at_ms=None) if r.seq in live else r for r in found]
    return views, ranges


def _ledger_ranges(client: Any, options: Options, bounds: Bounds) -> list[EntryRange]:
    """Return the ranges of single ledgers. Raises NoSuchLedgerError unless ``failOnDataLoss=false``, which gives the rest."""
    ranges: list[EntryRange] = []
    left_out: list[int] = []
    for ledger_id in dict.fromkeys(i for first, last in options.ledgers or () for i in range(first, last + 1)):
        try:
            end = ledger_end(client, options, ledger_id)
        except NoSuchLedgerError:
            if options.fail_on_data_loss:
                message = f"option ledgers: ledger {ledger_id} does not exist; {REST}"
                raise NoSuchLedgerError(message, ledger=ledger_id) from None
            continue
        if end is None:
            left_out.append(ledger_id)
        found = range_until(ledger_id, end)
        ranges += [] if found is None else bounded(found, bounds)
    warn_of_open(client, options, left_out)
    return ranges


def _with_live(client: Any, options: Options, view: LogView, log: str) -> tuple[LogView, Position]:
    """Return the log with its live segments ended where ``openLedgers`` allows to read, and the end of what is read. A live segment whose
    ledger is CLOSED is read in any case."""
    return with_live(view, _live_ends(client, options, view, log))


def _live_ends(client: Any, options: Options, view: LogView, log: str) -> Iterator[tuple[Segment, LedgerEnd]]:
    for segment in view.live_segments:
        try:
            ended = ledger_end(client, options, segment.ledger_id)
        except NoSuchLedgerError:
            lost = lost_live(log, segment.ledger_id)
            if options.fail_on_data_loss:
                raise lost from None
            _log.warning("%s", lost, extra={"context": {"log": log}})
            continue
        if ended is None:
            warn_of_open(client, options, [segment.ledger_id], log)
            return
        yield segment, ended
