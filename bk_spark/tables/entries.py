"""The table ``entries``: headers of entries as their bookies have them, with each replica checked. Payloads are not read into it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from pyspark.sql.types import ArrayType, BooleanType, IntegerType, LongType, StringType, StructField, StructType

from bk_core.client.inspect import EntryHeader, entry_headers
from bk_core.errors import InvalidArgumentError, NoSuchLedgerError
from bk_core.protocol.wire.messages import Status
from bk_spark.options.table import Options
from bk_spark.source.bounds import ENTRY, LEDGER, LOG, Bounds
from bk_spark.source.snapshot import read_ranges
from bk_spark.tables.table import Row, Table

ENTRIES_PER_TASK = 20_000

_SCHEMA = StructType(
    [
        StructField("log", StringType()),
        StructField("ledgerId", LongType()),
        StructField("entryId", LongType()),
        StructField("lastAddConfirmed", LongType()),
        StructField("length", LongType()),
        StructField("payloadBytes", LongType()),
        StructField("digestOk", BooleanType()),
        StructField("replicas", IntegerType()),
        StructField("corrupt", ArrayType(StringType())),
        StructField("missing", ArrayType(StringType())),
    ]
)


@dataclass(frozen=True, slots=True)
class EntriesOf:
    """Entries ``first .. last`` (inclusive) of a ledger."""

    log: str | None
    ledger_id: int
    first: int
    last: int


def _plan(client: Any, options: Options, bounds: Bounds) -> list[tuple[EntriesOf, ...]]:
    if options.ledgers is None and not options.names_logs:
        raise InvalidArgumentError("metadata=entries asks every bookie for every entry: name the ledgers or the log to look at")
    _, ranges = read_ranges(client, options, bounds)
    per_task = min(ENTRIES_PER_TASK, max(1, -(-sum(r.entries for r in ranges) // options.min_partitions)))
    tasks: list[tuple[EntriesOf, ...]] = []
    current: list[EntriesOf] = []
    room = per_task
    for r in ranges:
        first = r.first
        while first <= r.last:
            last = min(r.last, first + room - 1)
            current.append(EntriesOf(r.log, r.ledger_id, first, last))
            room -= last - first + 1
            first = last + 1
            if room == 0:
                tasks.append(tuple(current))
                current, room = [], per_task
    return [*tasks, tuple(current)] if current else tasks


def _rows(client: Any, options: Options, unit: tuple[EntriesOf, ...], columns: Collection[str]) -> Iterator[Row]:
    for part in unit:
        try:
            handle = client.open_ledger(part.ledger_id, password=options.secret)
        except NoSuchLedgerError:
            continue
        with handle as ledger:
            headers = entry_headers(client, part.ledger_id, ledger.metadata, range(part.first, part.last + 1))
            for entry_id, replicas in groupby(headers, key=lambda header: header.entry_id):
                yield _row(part, entry_id, list(replicas))


def _row(part: EntriesOf, entry_id: int, replicas: list[EntryHeader]) -> Row:
    """Return a row. ``digestOk`` is True if every replica that is there is intact; null if none is there."""
    there = [header for header in replicas if header.status is Status.OK]
    good = next((header for header in there if header.digest_ok), None)
    return {
        "log": part.log,
        "ledgerId": part.ledger_id,
        "entryId": entry_id,
        "lastAddConfirmed": good.last_add_confirmed if good else None,
        "length": good.length if good else None,
        "payloadBytes": good.payload_bytes if good else None,
        "digestOk": all(header.digest_ok for header in there) if there else None,
        "replicas": len(there),
        "corrupt": [header.bookie for header in there if not header.digest_ok],
        "missing": [header.bookie for header in replicas if header.status is not Status.OK],
    }


ENTRIES = Table(_SCHEMA, _plan, _rows, {"log": LOG, "ledgerId": LEDGER, "entryId": ENTRY})
