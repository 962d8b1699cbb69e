"""The tables ``logs`` and ``segments``, from ledger lists and their history. No ledger is opened."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pyspark.sql.types import BooleanType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from bk_core.client.log.history import read_log
from bk_core.client.log.lists import list_logs
from bk_core.errors import LogSchemaError, NoSuchLogError, WrongClusterError
from bk_core.protocol.log.position import Position
from bk_spark.options.table import Options
from bk_spark.schemas import schema_of_text
from bk_spark.source.bounds import LOG, TIMESTAMP, Bounds
from bk_spark.source.starting import source_logs
from bk_spark.tables.table import Row, Table, chunks, moment

LOGS_PER_TASK = 100
SEGMENTS_PER_TASK = 16 * 1024

_LOGS_SCHEMA = StructType(
    [
        StructField("log", StringType()),
        StructField("logId", StringType()),
        StructField("entryFormat", StringType()),
        StructField("schema", StringType()),
        StructField("firstSeq", LongType()),
        StructField("nextSeq", LongType()),
        StructField("segments", LongType()),
        StructField("rows", LongType()),
        StructField("bytes", LongType()),
        StructField("rowsEver", LongType()),
        StructField("bytesEver", LongType()),
        StructField("live", BooleanType()),
        StructField("ensembleSize", IntegerType()),
        StructField("writeQuorumSize", IntegerType()),
        StructField("ackQuorumSize", IntegerType()),
        StructField("digestType", StringType()),
        StructField("guaranteed", BooleanType()),
        StructField("retentionMs", LongType()),
        StructField("retentionBytes", LongType()),
        StructField("lastCommitAt", TimestampType()),
    ]
)
_SEGMENTS_SCHEMA = StructType(
    [
        StructField("log", StringType()),
        StructField("logId", StringType()),
        StructField("seq", LongType()),
        StructField("ledgerId", LongType()),
        StructField("firstEntryId", LongType()),
        StructField("lastEntryId", LongType()),
        StructField("entries", LongType()),
        StructField("rows", LongType()),
        StructField("rowsPerEntry", LongType()),
        StructField("bytes", LongType()),
        StructField("offset", LongType()),
        StructField("committedAt", TimestampType()),
        StructField("live", BooleanType()),
        StructField("schemaId", IntegerType()),
        StructField("writtenOff", BooleanType()),
    ]
)


@dataclass(frozen=True, slots=True)
class SegmentsOf:
    """Segments ``first_seq .. last_seq`` (inclusive) of one log."""

    log: str
    log_id: str
    first_seq: int
    last_seq: int


def _names(client: Any, options: Options, bounds: Bounds) -> list[str]:
    names = source_logs(options, client) if options.names_logs else list_logs(client)
    return [name for name in names if bounds.allows_log(name)]


def _plan_logs(client: Any, options: Options, bounds: Bounds) -> list[tuple[str, ...]]:
    names = _names(client, options, bounds)
    return [tuple(names[i : i + LOGS_PER_TASK]) for i in range(0, len(names), LOGS_PER_TASK)]


def _log_rows(client: Any, options: Options, names: tuple[str, ...], columns: Collection[str]) -> Iterator[Row]:
    for name in names:
        try:
            view = read_log(client, name)
        except NoSuchLogError:
            continue
        except WrongClusterError:
            if options.names_logs:
                raise
            continue  # it stands among this cluster's logs, but is none
        first, end, properties = view.first_position, view.end_position, view.properties
        rows_before, bytes_before = view.counts_before(first)
        rows_ever, bytes_ever = view.counts_before(end)
        last = view.segment(end.seq - 1) if end.seq > first.seq else None
        yield {
            "log": name,
            "logId": view.log_id,
            "entryFormat": properties.entry_format,
            "schema": _shown_schema(properties.schema),
            "firstSeq": first.seq,
            "nextSeq": view.next_seq,
            "segments": view.next_seq - first.seq,
            "rows": rows_ever - rows_before,
            "bytes": bytes_ever - bytes_before,
            "rowsEver": rows_ever,
            "bytesEver": bytes_ever,
            "live": bool(view.live_segments),
            "ensembleSize": properties.ensemble_size,
            "writeQuorumSize": properties.write_quorum_size,
            "ackQuorumSize": properties.ack_quorum_size,
            "digestType": properties.digest_type,
            "guaranteed": properties.guaranteed_write_quorum,
            "retentionMs": properties.retention_ms,
            "retentionBytes": properties.retention_bytes,
            "lastCommitAt": moment(last.committed_at_ms if last is not None else None),
        }


def _shown_schema(text: str) -> str | None:
    """Return the schema as in CREATE TABLE; None before the first write."""
    if not text:
        return None
    try:
        return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema_of_text(text).fields)
    except LogSchemaError:
        return "?"


def _plan_segments(client: Any, options: Options, bounds: Bounds) -> list[SegmentsOf]:
    units: list[SegmentsOf] = []
    since = bounds.interval(TIMESTAMP).ends()[0]
    for name in _names(client, options, bounds):
        view = read_log(client, name)
        start = view.position_at_time(since) if since is not None else Position(view.listed.trimmed_seq)
        if start is not None:
            seqs = range(start.seq, view.next_seq)
            units += [SegmentsOf(name, view.log_id, part[0], part[-1]) for part in chunks(seqs, SEGMENTS_PER_TASK)]
    return units


def _segment_rows(client: Any, options: Options, unit: SegmentsOf, columns: Collection[str]) -> Iterator[Row]:
    """Yield the segments of the current list. What was trimmed since planning is left out, and so is everything of a log that was created
    again."""
    view = read_log(client, unit.log)
    first_seq = max(unit.first_seq, view.listed.trimmed_seq)
    if view.log_id != unit.log_id or first_seq > unit.last_seq:
        return
    offset = view.counts_before(Position(first_seq))[0]
    for segment in view.segments(first_seq, unit.last_seq):
        yield {
            "log": unit.log,
            "logId": view.log_id,
            "seq": segment.seq,
            "ledgerId": segment.ledger_id,
            "firstEntryId": segment.first_entry_id,
            "lastEntryId": segment.last_entry_id,
            "entries": None if segment.live else segment.entries,
            "rows": None if segment.live else segment.rows,
            "rowsPerEntry": segment.rows_per_entry or None,
            "bytes": None if segment.live else segment.bytes,
            "offset": offset,
            "committedAt": None if segment.live else moment(segment.committed_at_ms),
            "live": segment.live,
            "schemaId": segment.schema_id,
            "writtenOff": segment.written_off,
        }
        offset += segment.rows


LOGS = Table(_LOGS_SCHEMA, _plan_logs, _log_rows, {"log": LOG})
SEGMENTS = Table(_SEGMENTS_SCHEMA, _plan_segments, _segment_rows, {"log": LOG, "committedAt": TIMESTAMP})
