"""The input and the work of a read task. Everything it needs is in the pickled partition and reader (spark-connectors.md 5.2)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from bk_core.errors import BkError, LogDataLossError, NoSuchLedgerError
from bk_core.metadata.store import Versioned
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.view import LogView
from bk_core.threads import WorkerPool
from bk_spark.clients import client_for, reading_client
from bk_spark.entries.ranges import EntryRange
from bk_spark.entries.schemas import arrow_schema_of_text
from bk_spark.entries.unpacking import Run
from bk_spark.options.grammar import KAFKA
from bk_spark.options.table import Options
from bk_spark.source.columns import RunSplitter, arrow_column_batches, joined, raw_column_batches
from bk_spark.source.kafka_columns import kafka_batches, plain_schema
from bk_spark.source.known import Known, Learned, facts_of, part_of
from bk_spark.source.ledger_checks import check_password, still_there
from bk_spark.source.planning import Boundaries, plan
from bk_spark.worker_process import spare_collections

OPENERS = 4  # ledgers that a task opens ahead
OPEN_ASKED_MAX = 8  # open ledgers that a warning counts the entries of
_log = logging.getLogger("bk_spark.read")
Schemas = Mapping[tuple[str | None, int], str]
"""By log and schema id: the schema (as the ledger list keeps it) with which entries were written."""


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


def read_partition(options: Options, schema: pa.Schema, raw: bool, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield record batches of ``schema``. Spark turns an empty plan into one partition of None, which has no rows."""
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

    yield from joined(kafka_batches(schema, raw, batches()) if as_kafka else batches(), schema)


def _runs(options: Options, partition: BookKeeperPartition) -> Iterator[tuple[EntryRange, Iterator[Run]]]:
    """Yield each range with its entries. Ranges that touch are read as one, through one handle. A range's runs must be used up before the
    next one is asked for."""
    known = partition.known
    client = client_for(options.uri, options.protocol) if known is None else reading_client(options.uri, options.protocol, known)
    # Tasks spread over the bookies by rotation. One task stays with one bookie: entries are large here, and a bookie that misses its cache
    # reads a hundred of them ahead, in vain if their next reader asks another bookie.
    reads = replace(client.config.reads, rotation=partition.rotation, spread=False)
    for stretch, handle in _opened(client, options, reads, list(_touching(partition.ranges)), {} if known is None else known.ledgers):
        first, last = stretch[0], stretch[-1]
        with handle as ledger:
            _check_end(ledger, stretch)
            # The driver learned that these entries are acknowledged, from a ledger list or a LAC; this handle's LAC may be lower (RD-1).
            found = ledger.read_runs(first.first, last.last, unchecked_bound=first.acknowledged)
            runs = RunSplitter(_there(client, options, stretch, ledger, found))
            for r in stretch:
                yield r, runs.through(r.last)


Stretch = list[EntryRange]


def _there(client: Any, options: Options, stretch: Stretch, ledger: Any, runs: Iterator[Run]) -> Iterator[Run]:
    """Yield the runs. If the ledger is found to be gone on the way, ``failOnDataLoss`` decides between an error and an early end. Raises
    LogDataLossError if it was closed before their end since the driver looked; ClusterChangedError (OWN-2)."""
    try:
        yield from runs
    except NoSuchLedgerError:
        if options.fail_on_data_loss:
            raise _deleted(stretch) from None
    except BkError:
        if client.store.cluster_has_changed:
            client.store.check_cluster()
        _check_end(ledger, stretch)
        raise


def _opened(
    client: Any, options: Options, reads: Any, stretches: Sequence[Stretch], known: Mapping[int, Versioned]
) -> Iterator[tuple[Stretch, Any]]:
    """Yield each stretch with its handle, in order. The next few are opened meanwhile, unless all are ``known``: opening waits for the
    metadata store, which is most of the time that small ledgers take. A ledger that is gone is an error in its turn."""

    def opened(stretch: Stretch) -> Any:
        ledger_id, acknowledged = stretch[0].ledger_id, stretch[0].acknowledged
        if acknowledged and ledger_id in known:
            return client.open_known(ledger_id, known[ledger_id], password=options.password, options=reads)
        # otherwise the LAC is not needed
        return client.open_ledger(ledger_id, password=options.password, options=reads, lac=not acknowledged)

    waits = any(not stretch[0].acknowledged or stretch[0].ledger_id not in known for stretch in stretches)
    pool = WorkerPool("bk-open", OPENERS) if len(stretches) > 1 and waits else None
    rest = iter(stretches)

    def begun(count: int) -> list[tuple[Stretch, Future[Any] | None]]:
        return [(stretch, None if pool is None else pool.call(partial(opened, stretch))) for stretch in islice(rest, count)]

    waiting: deque[tuple[Stretch, Future[Any] | None]] = deque((stretch, None) for stretch in islice(rest, 1))
    try:
        waiting.extend(begun(OPENERS - 1))
        while waiting:
            stretch, future = waiting.popleft()
            waiting.extend(begun(1))
            try:
                handle = opened(stretch) if future is None else future.result()
            except NoSuchLedgerError:
                if options.fail_on_data_loss:
                    raise _deleted(stretch) from None
                continue
            yield stretch, handle
    finally:
        for _, unused in waiting:
            if unused is not None:
                with suppress(BkError):
                    unused.result().close()
        if pool is not None:
            pool.close()


def _touching(ranges: Sequence[EntryRange]) -> Iterator[Stretch]:
    stretch: list[EntryRange] = []
    for r in ranges:
        before = stretch[-1] if stretch else None
        if before and (before.ledger_id, before.last + 1, before.acknowledged) != (r.ledger_id, r.first, r.acknowledged):
            yield stretch
            stretch = []
        stretch.append(r)
    if stretch:
        yield stretch


def _check_end(ledger: Any, stretch: Stretch) -> None:
    """Raise LogDataLossError for a ledger that is known to be CLOSED before the end of what is to be read."""
    first, last, end = stretch[0].first, stretch[-1].last, ledger.last_add_confirmed
    if ledger.is_closed and end < last:
        message = f"entries {max(first, end + 1)}..{last} of ledger {ledger.ledger_id} are lost: the ledger was closed at entry {end}"
        raise LogDataLossError(message, ledger=ledger.ledger_id, first_entry=max(first, end + 1), last_entry=last)


def _deleted(stretch: Sequence[EntryRange]) -> LogDataLossError:
    """Return the error for a ledger that was trimmed between planning and reading (RD-6, LOG-13)."""
    first, last, name = stretch[0], stretch[-1], stretch[0].log
    whose = "" if name is None else f" of log {name!r}"
    message = f"entries {first.first}..{last.last} of ledger {first.ledger_id}{whose} are lost: the ledger does not exist (any more)"
    what = "A DataFrame or temporary view reads what was there at its first use: make it anew; failOnDataLoss=false leaves lost entries out"
    return LogDataLossError(f"{message}. {what}", ledger=first.ledger_id)


# --- ledgers --------------------------------------------------------------------------------------------------------------


def fragment_boundaries(known: Known) -> Boundaries:
    """Return the first entries of a ledger's fragments; none for a ledger that is gone."""

    def boundaries(ledger_id: int) -> Sequence[int]:
        stored = known.ledgers.get(ledger_id)
        return [] if stored is None else facts_of(stored).fragment_starts

    return boundaries


def ledger_end(client: Any, options: Options, ledger_id: int) -> tuple[int, int, bool] | None:
    """Return (last entry, payload bytes, True if it is CLOSED there) by ``openLedgers``; None if the ledger is skipped. Never fences unless
    the word is ``recover``."""
    metadata = client.ledger_metadata(ledger_id)
    if metadata.state is LedgerState.CLOSED:
        return metadata.last_entry_id, metadata.length, True
    if options.open_ledgers == "skip":
        return None
    open_ledger = client.recover_ledger if options.open_ledgers == "recover" else client.open_ledger
    with open_ledger(ledger_id, password=options.password) as ledger:
        closed = bool(ledger.is_closed)  # this comes before the LAC, which then is the end
        last = int(ledger.last_add_confirmed)
        return last, ledger.length if closed else _estimate(ledger, last), closed


def _estimate(ledger: Any, last: int) -> int:
    """Estimate the payload bytes of entries 0..last of a ledger that is not CLOSED. Its metadata does not have them; a few entries spread
    evenly do."""
    picked = sorted({last * i // 3 for i in range(4)}) if last >= 0 else []
    sizes = [len(payload) for entry in picked for payload in ledger.read(entry, entry)]
    return sum(sizes) * (last + 1) // len(sizes) if sizes else 0


def warn_of_open(client: Any, options: Options, ledger_ids: Sequence[int], log: str | None = None) -> None:
    """Warn of what a read leaves out because it is still written to, unless the user has allowed it: the read gives too few
    rows, or none."""
    if not ledger_ids or "open_ledgers" in options.given:
        return
    counts: list[str] = []
    with suppress(BkError):  # the warning that they are left out comes in any case
        for ledger_id in ledger_ids[:OPEN_ASKED_MAX]:
            with client.open_ledger(ledger_id, password=options.password) as ledger:
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


def ledger_range(client: Any, options: Options, ledger_id: int) -> EntryRange | None:
    """Return all entries of one ledger as one row each; None if there are none, or it is skipped. Raises NoSuchLedgerError."""
    return range_until(ledger_id, ledger_end(client, options, ledger_id))


def range_until(ledger_id: int, end: tuple[int, int, bool] | None) -> EntryRange | None:
    """Return the range of all entries of a ledger with this ``ledger_end``."""
    if end is None or end[0] < 0:
        return None
    last, size, _ = end
    return EntryRange(ledger_id, 0, last, size, rows=last + 1, rows_per_entry=1)
