"""The input and the work of a read task. Everything it needs is in the pickled partition and reader (spark-connectors.md 5.2)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from bk_core.errors import BkError
from bk_core.protocol.log.view import LogView
from bk_spark.clients import client_for, reading_client
from bk_spark.entries.columns import arrow_column_batches, joined, raw_column_batches
from bk_spark.entries.ranges import EntryRange
from bk_spark.entries.stored_schema import arrow_schema_of_text
from bk_spark.entries.unpacking import Entries
from bk_spark.options.grammar import KAFKA
from bk_spark.options.table import Options
from bk_spark.source.kafka_columns import kafka_batches, plain_schema
from bk_spark.source.known import Known, Learned, facts_of, part_of
from bk_spark.source.ledger_checks import check_password, still_there
from bk_spark.source.planning import Boundaries, plan
from bk_spark.source.stretches import LedgerEnd, RangeReader, end_of
from bk_spark.source.telling import Told
from bk_spark.worker_process import spare_collections

if TYPE_CHECKING:
    from bk_spark.accumulators import Accumulators

OPEN_ASKED_MAX = 8  # open ledgers that a warning counts the entries of
_log = logging.getLogger("bk_spark.read")
_AGAIN = "A DataFrame or temporary view reads what was there at its first use: make it anew; failOnDataLoss=false leaves lost entries out"
Schemas = Mapping[tuple[str | None, int], str]
"""The schema with which entries were written, as the ledger list keeps it, by log and schema id."""


class BookKeeperPartition(InputPartition):
    """Ranges of entries that one task reads, in order. ``rotation`` chooses the replica that it asks first, so that tasks spread over
    bookies. ``known`` spares the task a session with the metadata store."""

    def __init__(self, ranges: Sequence[EntryRange], schemas: Schemas | None = None, rotation: int = 0, known: Known | None = None) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.schemas = dict(schemas or {})
        self.rotation = rotation
        self.known = known

    def __repr__(self) -> str:
        return f"BookKeeperPartition({', '.join(f'{r.ledger_id}:{r.first}-{r.last}' for r in self.ranges)})"


def partitions_of(
    client: Any, options: Options, views: Mapping[str, LogView], ranges: Sequence[EntryRange], learned: Learned | None = None
) -> list[BookKeeperPartition]:
    """Return tasks for ``ranges``, by ``maxBytesPerPartition``, ``maxRecordsPerPartition`` and ``minPartitions``. ``views`` are by log
    name. ``learned`` is a stream's knowledge from batches before. Raises WrongPasswordError; and LogDataLossError for a ledger that does
    not exist, which ``failOnDataLoss=false`` turns into a warning and tasks for the rest."""
    if not ranges:
        return []
    known = (learned or Learned()).known(client, [r.ledger_id for r in ranges])
    check_password(known, options, ranges)
    ranges = still_there(known, options, ranges)
    boundaries = fragment_boundaries(known)
    tasks = plan(ranges, options.max_bytes_per_partition, options.min_partitions, boundaries, options.max_records_per_partition)
    start = tasks[0][0].ledger_id if tasks else 0  # the ledger where this stream's planner has asked for the first entry (measuring.py)
    return [
        BookKeeperPartition(task, _schemas(task, views), start + index, part_of(known, {r.ledger_id for r in task}))
        for index, task in enumerate(tasks)
    ]


def _schemas(task: Sequence[EntryRange], views: Mapping[str, LogView]) -> dict[tuple[str | None, int], str]:
    needed = {(r.log, r.schema_id) for r in task if r.log is not None and r.log in views}
    found: dict[tuple[str | None, int], str] = {}
    for log, schema_id in needed:
        schemas = views[str(log)].listed.schemas
        if schema_id < len(schemas):
            found[log, schema_id] = schemas[schema_id]
    return found


# --- in the task ----------------------------------------------------------------------------------------------------------


def read_partition(
    options: Options, schema: pa.Schema, raw: bool, partition: InputPartition, accumulators: Accumulators | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield record batches of ``schema``. Spark turns an empty plan into one partition of None, which has no rows. At the end
    ``accumulators`` get its rows and bytes."""
    if not isinstance(partition, BookKeeperPartition):
        return
    spare_collections()
    metadata = bool(options.include_metadata) and not raw
    stored = {key: arrow_schema_of_text(text) for key, text in partition.schemas.items()}
    as_kafka = options.include_metadata == KAFKA
    plain = plain_schema(schema, raw, stored.values()) if as_kafka else schema

    def batches() -> Iterator[pa.RecordBatch]:
        for r, runs in _runs(options, partition):
            if raw:
                yield from raw_column_batches(plain, r, runs)
            else:
                yield from arrow_column_batches(plain, stored.get((r.log, r.schema_id)), metadata, r, runs, options.max_bytes_per_entry)

    told = Told(",".join(sorted({r.log for r in partition.ranges if r.log is not None})), len(partition.ranges), accumulators)
    yield from told.of(joined(kafka_batches(schema, raw, batches()) if as_kafka else batches(), schema))


def _runs(options: Options, partition: BookKeeperPartition) -> Iterator[tuple[EntryRange, Iterator[Entries]]]:
    """Yield each range with its entries (``RangeReader.runs``)."""
    known = partition.known
    client = client_for(options.uri, options.protocol) if known is None else reading_client(options.uri, options.protocol, known)
    # Tasks spread over the bookies by rotation. One task stays with one bookie: entries are large here, and a bookie that misses its cache
    # reads a hundred of them ahead, in vain if their next reader asks another bookie.
    reads = replace(client.config.reads, rotation=partition.rotation, spread=False)
    told = {} if known is None else known.ledgers
    return RangeReader(client, options.secret, reads, told, options.fail_on_data_loss, lambda _: _AGAIN).runs(partition.ranges)


# --- ledgers --------------------------------------------------------------------------------------------------------------


def fragment_boundaries(known: Known) -> Boundaries:
    """Return the first entries of a ledger's fragments; none for a ledger that is gone."""

    def boundaries(ledger_id: int) -> Sequence[int]:
        stored = known.ledgers.get(ledger_id)
        return [] if stored is None else facts_of(stored).fragment_starts

    return boundaries


def ledger_end(client: Any, options: Options, ledger_id: int) -> LedgerEnd | None:
    """Return the end of a ledger by ``openLedgers`` (``end_of``)."""
    return end_of(client, ledger_id, options.secret, options.open_ledgers)


def warn_of_open(client: Any, options: Options, ledger_ids: Sequence[int], log: str | None = None) -> None:
    """Warn of what a read leaves out because it is still written to, unless the user has allowed it: the read gives too few
    rows, or none."""
    if not ledger_ids or "open_ledgers" in options.given:
        return
    counts: list[str] = []
    with suppress(BkError):  # the warning that they are left out comes in any case
        for ledger_id in ledger_ids[:OPEN_ASKED_MAX]:
            with client.open_ledger(ledger_id, password=options.secret) as ledger:
                counts.append(f"ledger {ledger_id} with {int(ledger.last_add_confirmed) + 1} entries confirmed so far")
    told = counts + [f"ledger {ledger_id}" for ledger_id in ledger_ids[len(counts) : OPEN_ASKED_MAX]]
    more = len(ledger_ids) - len(told)
    what = ", ".join(told) + (f" and {more} more" if more else "")
    _log.warning(
        "BK-READ-OPEN %sleaves out %d open ledger%s: %s. openLedgers=lac reads up to the last add confirmed and disturbs nobody; "
        "openLedgers=skip leaves them out without this warning",
        "the read " if log is None else f"the read of log {log!r} ",
        len(ledger_ids),
        "" if len(ledger_ids) == 1 else "s",
        what,
        extra={"context": {"log": log or "", "ledgers": ",".join(map(str, ledger_ids[:OPEN_ASKED_MAX]))}},
    )


def range_until(ledger_id: int, end: LedgerEnd | None) -> EntryRange | None:
    """Return the range of all entries of a ledger with this ``ledger_end``."""
    if end is None or end[0] < 0:
        return None
    last, size, _ = end
    return EntryRange(ledger_id, 0, last, size, rows=last + 1, rows_per_entry=1)
