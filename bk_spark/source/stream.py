"""Streaming reads of one log or several. A reader lives in one long process per run of a query; ``read`` runs on executors.

Order of calls in a trigger (spark-connectors.md 5.6): ``latestOffset``, ``reportLatestOffset``, ``commit`` of the batch before,
``partitions``.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from bk_core.client.log.list_store import agree, no_such_log, now_ms
from bk_core.errors import LogDataLossError, LogError, LogSchemaError
from bk_core.protocol.log.lag import Lag, lag
from bk_core.protocol.log.offset import LogOffset, to_json
from bk_core.protocol.log.position import Position
from bk_spark.clients import client_for
from bk_spark.entries.ranges import EntryRange
from bk_spark.options.grammar import KAFKA, matching
from bk_spark.options.scopes import STREAM_READ
from bk_spark.options.table import Options, refuse_others
from bk_spark.plain_errors import plainly
from bk_spark.schemas import arrow_schema
from bk_spark.source.admission import Backlog, Delay, admit
from bk_spark.source.first_offset import durable
from bk_spark.source.following import Snapshot, SourceLogs, retried
from bk_spark.source.known import Learned
from bk_spark.source.known_columns import KnownColumns
from bk_spark.source.offsets import check_there, from_json
from bk_spark.source.partitions import partitions_of, read_partition
from bk_spark.source.planning import committed_ranges
from bk_spark.source.snapshot import check_read_schema, common_columns, have_columns, is_raw_source, source_schema, views_of, with_deleted
from bk_spark.source.starting import check_beginning, depends_on_now, source_logs, starting_position, unnamed_place

if TYPE_CHECKING:
    from bk_spark.accumulators import Accumulators

CATCH_UP_S = 5.0
_log = logging.getLogger("bk_spark.stream")
Offsets = dict[str, LogOffset]


class BookKeeperStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows committed segments, and live ones if ``openLedgers`` says so. Pickled by Spark before anything is followed.

    ``inferred``: the schema is what the source itself gave the DataFrame, and not a user's or a table's, which may ask for less.
    """

    accumulators: Accumulators | None = None

    def __init__(self, options: Options, schema: StructType, inferred: bool = False) -> None:
        refuse_others(options, STREAM_READ)
        self._options = options
        waiting = options.wait_for_log and not inferred
        views = retried(lambda: views_of(client_for(options.uri, options.protocol), options, under_way=True, waiting=waiting))
        self._asked = schema
        self._raw = bool(views) and is_raw_source(options, views)
        known = have_columns(options, views)
        if known or inferred or options.include_metadata == KAFKA:
            check_read_schema(schema, source_schema(options, views))
        self._schema = arrow_schema(schema)
        self._unlooked = not known  # no log has told its columns yet; those of each are compared when it does
        self._looked: set[str] = set()
        self._columns = None if self._raw else self._expected(schema, common_columns(views) if known else schema, inferred)
        self._logs: SourceLogs | None = None
        self._learned = Learned()
        self._initial: dict[str, Any] | None = None
        self._planned: set[str] = set()
        self._target: dict[str, tuple[str, Position]] | None = None
        self._delay = Delay(options.min_rows_per_trigger, options.max_trigger_delay_ms)
        self._turn = 0
        self._latest: dict[str, Any] | None = None
        self._told: set[str] = set()

    def _expected(self, schema: StructType, own: StructType, inferred: bool) -> KnownColumns:
        known = own if self._options.include_metadata == KAFKA else schema
        return KnownColumns(known, own, inferred and self._options.columns is None, self._options.fail_on_new_columns)

    def __getstate__(self) -> dict[str, Any]:
        """Return options and schema for tasks. The followed logs stay in the driver."""
        return {**self.__dict__, "_logs": None, "_learned": None}

    def _snapshots(self, fresh: bool = False, reached: Mapping[str, Position] | None = None) -> dict[str, Snapshot]:
        if self._logs is None:
            self._logs = SourceLogs(retried(lambda: client_for(self._options.uri, self._options.protocol)), self._options)
        return self._logs.snapshots(fresh, reached)

    def _reaching(self, offsets: Offsets) -> dict[str, Snapshot]:
        """Return snapshots that have come as far as ``offsets``.

        The session that made them was another one after a restart, so this one's server of the metadata store may be behind them. What is
        missing of a log is asked for again behind an agreement of the servers, then given a moment.
        """
        reached = {name: offset.position for name, offset in offsets.items()}
        snapshots = self._snapshots(reached=reached)
        if any(_lacks(snapshots.get(name), offset) and self._asks_for(name) for name, offset in offsets.items()):
            self._agree()
            snapshots = self._snapshots(True, reached)
        deadline = time.monotonic() + CATCH_UP_S
        while any(_falls_short(snapshots.get(name), offset) for name, offset in offsets.items()) and time.monotonic() < deadline:
            time.sleep(0.1)
            snapshots = self._snapshots(True, reached)
        return snapshots

    # --- the first offset ----------------------------------------------------------------------------------------------

    @plainly
    def initialOffset(self) -> dict[str, Any]:
        """Return the first offset. Spark does not store it and asks again (spark-connectors.md 5.6), so it is fixed for the run, and with
        ``readerName`` for ever."""
        if self._initial is None:
            client = client_for(self._options.uri, self._options.protocol)
            reader = self._options.reader_name
            if reader is None:
                self._initial = to_json(self._first_offsets())
            else:
                names = retried(lambda: source_logs(self._options, client, under_way=True))
                offsets, known = retried(lambda: durable(client.store, reader, names, self._first_offsets))
                self._initial = to_json(offsets)
                if known:
                    _log.info("reader %s begins where it began before: %s", reader, json.dumps(self._initial))
        return self._initial

    def _first_offsets(self) -> Offsets:
        names = retried(lambda: source_logs(self._options, client_for(self._options.uri, self._options.protocol), under_way=True))
        snapshots = self._snapshots(fresh=True)
        if self._options.log_pattern is not None:
            check_beginning(self._options, snapshots)
        named = self._options.log_pattern is None and not self._options.wait_for_log
        if named and set(names) - set(snapshots):
            self._agree()  # Spark asks in each run, and the run before may have read what this session's server does not know yet
            snapshots = self._snapshots(fresh=True)
        missing = sorted(set(names) - set(snapshots))
        if missing and named:
            raise with_deleted(no_such_log(client_for(self._options.uri, self._options.protocol), missing[0]))
        return {name: self._begin(snapshot) for name, snapshot in snapshots.items()}

    def _begin(self, snapshot: Snapshot) -> LogOffset:
        position = starting_position(snapshot.view, snapshot.name, self._options, unnamed_place(self._options), snapshot.end)
        return snapshot.offset_at(position)

    # --- admission ------------------------------------------------------------------------------------------------------

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one limit for show; ``latestOffset`` keeps all of them."""
        options = self._options
        if options.max_rows_per_trigger is not None:
            return ReadMaxRows(options.max_rows_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_rows_per_trigger is not None:
            return ReadMinRows(options.min_rows_per_trigger)
        return ReadAllAvailable()

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        """Fix what is read in this run. Spark calls this before ``initialOffset``, after a restart too (spark-connectors.md 5.7)."""
        self._target = {name: (snapshot.view.log_id, snapshot.end) for name, snapshot in self._snapshots(fresh=True).items()}

    @plainly
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch. Rows, bytes, least rows and delay hold together (Spark knows no composite limit);
        ReadAllAvailable is obeyed.

        The first batch may be empty: Spark plans one even if nothing came, because every offset is new to a query without any.
        """
        end = self._admitted(start, limit)
        if start == self._initial:
            self._planned.add(json.dumps(end))
        return end

    def _admitted(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        before = from_json(start)
        snapshots = self._reaching(before)
        self._latest = to_json({name: snapshot.offset_at(snapshot.end) for name, snapshot in snapshots.items()})
        backlogs = self._backlogs(before, snapshots)
        bounded = not isinstance(limit, ReadAllAvailable)
        if bounded and self._target is None:
            waiting = sum(backlog.waiting()[0] for backlog in backlogs.values())
            if self._delay.holds(waiting, _clock_ms()):
                return start
        rows = self._options.max_rows_per_trigger if bounded else None
        size = self._options.max_bytes_per_trigger if bounded else None
        reached = dict(zip(backlogs, admit(list(backlogs.values()), rows, size, self._turn), strict=True))
        ends = self._ends(before, snapshots, backlogs, reached)
        end = to_json(ends)
        if end == start:  # in any order of keys: an unchanged place must be the same text
            return start
        self._turn += 1
        self._delay.went(_clock_ms())
        self._report(snapshots, ends, before)
        return end

    def _backlogs(self, before: Offsets, snapshots: Mapping[str, Snapshot]) -> dict[str, Backlog]:
        """Return the part of each log of the stream that may be read. Losses are raised or reported here."""
        for name in sorted(set(before) - set(snapshots)):
            if not self._asks_for(name):
                self._tell(
                    LogError(
                        f"log {name!r} is in the checkpoint, and not asked for any more: the stream keeps its place at row "
                        f"{before[name].rows:,}, and goes on there if it is asked for again",
                        log=name,
                    )
                )
                continue
            self._lost(LogDataLossError(f"log {name!r} was deleted; what it had after row {before[name].rows:,} is lost", log=name))
        backlogs: dict[str, Backlog] = {}
        for name in sorted(set(before) & set(snapshots)):
            snapshot = snapshots[name]
            here = self._here(snapshot, before[name])
            end = self._until(snapshot, here, max(here, self._target_of(snapshot)))
            backlogs[name] = Backlog(snapshot.measured, here, end)
        return backlogs

    def _until(self, snapshot: Snapshot, here: Position, end: Position) -> Position:
        """Return ``end``, or the first row before it that the stream must not read, where a batch ends. Raises LogSchemaError if that is
        ``here``."""
        if self._columns is None:
            return end
        self._look_at_columns(snapshot)
        if left_out := self._columns.left_out(snapshot.view.listed.schemas):
            self._tell(
                LogSchemaError(f"log {snapshot.name!r}: new columns are not read: {', '.join(map(repr, left_out))}", log=snapshot.name)
            )
        return self._columns.until(snapshot.name, snapshot.view, here, end)

    def _look_at_columns(self, snapshot: Snapshot) -> None:
        """Raise LogSchemaError if a log that was waited for lacks a column that is asked for, or has it of another type."""
        if self._unlooked and snapshot.name not in self._looked and snapshot.view.properties.schema:
            check_read_schema(self._asked, source_schema(self._options, {snapshot.name: snapshot.view}))
            self._looked.add(snapshot.name)

    def _here(self, snapshot: Snapshot, offset: LogOffset) -> Position:
        """Return the position of ``offset`` in the log as it is now, normalised; the first entry if it is lost and losses are allowed."""
        try:
            check_there(snapshot.name, snapshot.view, offset)
        except LogDataLossError as error:
            self._lost(error)
            return snapshot.first
        if offset.position < snapshot.first:  # it is the end of a segment that was trimmed since, so nothing is lost
            return snapshot.first
        if _falls_short(snapshot, offset):
            message = f"log {snapshot.name!r} ends before the offset {json.dumps(offset.json())}; was its metadata restored from a backup?"
            raise LogDataLossError(message, log=snapshot.name)
        return snapshot.spelled(offset.position)

    def _asks_for(self, name: str) -> bool:
        pattern = self._options.log_pattern
        return name in self._options.log_names() if pattern is None else bool(matching(pattern, [name]))

    def _once(self, name: str, offset: LogOffset) -> dict[str, Snapshot]:
        """Return a log that is not followed, as it is now; {} if it does not exist."""
        assert self._logs is not None
        found = self._logs.once(name)
        if _lacks(found.get(name), offset):
            self._agree()
            found = self._logs.once(name)
        return found

    def _agree(self) -> None:
        retried(lambda: agree(client_for(self._options.uri, self._options.protocol)))

    def _target_of(self, snapshot: Snapshot) -> Position:
        if self._target is None:
            return snapshot.end
        log_id, position = self._target.get(snapshot.name, ("", Position(0)))
        return min(position, snapshot.end) if log_id == snapshot.view.log_id else Position(0)

    def _ends(
        self, before: Offsets, snapshots: Mapping[str, Snapshot], backlogs: Mapping[str, Backlog], reached: Mapping[str, Position]
    ) -> Offsets:
        """Return the end of a batch.

        A log that is new to the stream is pinned at its first entry and read from the next batch on, so neither a replay of this batch nor
        a trim in between moves its beginning. One that is not asked for any more keeps its place, to go on there when it is again.
        """
        ends: Offsets = {name: offset for name, offset in before.items() if name not in snapshots and not self._asks_for(name)}
        for name, snapshot in snapshots.items():
            if name in reached:
                ends[name] = _end_of(snapshot, before[name], backlogs[name].start, reached[name])
            elif (self._target is None or name in self._target) and self._fits(snapshot):
                ends[name] = snapshot.offset_at(snapshot.first)
        return ends

    def _fits(self, snapshot: Snapshot) -> bool:
        """True if a log that was found may be read: not before its first write, which gives it a schema.

        LogSchemaError for another entry format than the stream's; columns are looked at before any row is read (``_until``).
        """
        properties = snapshot.view.properties
        if properties.entry_format == "arrow" and not properties.schema:
            return False
        if is_raw_source(self._options, {snapshot.name: snapshot.view}) != self._raw:
            raise LogSchemaError(
                f"log {snapshot.name!r} has another entry format than the logs that this stream began with", log=snapshot.name
            )
        self._look_at_columns(snapshot)
        return True

    def _lost(self, error: LogDataLossError) -> None:
        """Raise for a loss or, with ``failOnDataLoss=false``, report it once and go on."""
        if self._options.fail_on_data_loss:
            raise error
        self._tell(error)

    def _tell(self, error: LogError) -> None:
        """Report something once in a run."""
        if str(error) not in self._told:
            self._told.add(str(error))
            _log.warning("%s", error, extra={"context": {k: str(v) for k, v in error.context.items()}})

    # --- lag ------------------------------------------------------------------------------------------------------------

    @plainly
    def reportLatestOffset(self) -> dict[str, Any]:
        """Return ``latestOffset`` of the progress: the end of each log with its cumulative rows and bytes; lag is what
        ``endOffset`` lacks."""
        if self._latest is None:
            snapshots = self._snapshots()
            self._latest = to_json({name: snapshot.offset_at(snapshot.end) for name, snapshot in snapshots.items()})
        return self._latest

    def _report(self, snapshots: Mapping[str, Snapshot], ends: Offsets, before: Offsets) -> None:
        """Log one structured line per trigger and log: what it takes, and how far behind the log's end the stream is then."""
        if not _log.isEnabledFor(logging.INFO):
            return
        for name, end in ends.items():
            if name not in snapshots:
                continue
            snapshot, start = snapshots[name], before.get(name)
            behind = lag(snapshot.view, end.position, snapshot.end, now_ms())
            taken = end.rows - start.rows if start is not None and start.log_id == end.log_id else end.rows
            context = {"log": name, "rows": str(max(0, taken)), **_lag_context(behind)}
            text = "log %s: %d rows; then %d rows, %d bytes, %.1f s behind"
            _log.info(text, name, max(0, taken), behind.rows, behind.bytes, behind.seconds, extra={"context": context})

    @plainly
    def commit(self, end: dict[str, Any]) -> None:
        """Take note of a hint (spark-connectors.md 5.6), which releases nothing."""

    def stop(self) -> None:
        """Stop following. Spark seldom calls this, but ends the process (spark-connectors.md 5.1), and nothing outside it needs
        a goodbye."""
        logs, self._logs = self._logs, None
        if logs is not None:
            logs.close()

    # --- tasks -----------------------------------------------------------------------------------------------------

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch. Raises LogDataLossError if start > end, because returning nothing would lose rows silently
        (spark-connectors.md 5.6 d)."""
        before, after = from_json(start), from_json(end)
        self._refuse_unknown_first(start, end)
        snapshots = self._reaching(after)
        ranges: list[EntryRange] = []
        for name, there in sorted(after.items()):
            here = before.get(name)
            if here is None:  # the log is new in this batch, which only pins it
                continue
            if name not in snapshots and not self._asks_for(name):
                if here == there:
                    continue
                snapshots |= self._once(name, there)  # the log was there when the batch was planned
            if here.log_id == there.log_id and here.position > there.position:
                raise LogDataLossError(f"offsets of log {name!r} run backwards: {json.dumps(start)} > {json.dumps(end)}", log=name)
            ranges += self._ranges(snapshots.get(name), name, here, there)
        client = client_for(self._options.uri, self._options.protocol)
        return partitions_of(client, self._options, {name: snapshot.view for name, snapshot in snapshots.items()}, ranges, self._learned)

    def _refuse_unknown_first(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        """Refuse a batch 0 that an earlier run planned: it began where *its* initialOffset was, which nobody wrote down
        (spark-connectors.md 5.6)."""
        if start != self._initial or self._options.reader_name is not None or json.dumps(end) in self._planned:
            return
        moving = [name for name in from_json(start) if depends_on_now(self._options, name, unnamed_place(self._options))]
        if moving:
            message = (
                f"batch 0 was planned by an earlier run up to {json.dumps(end)}, but nobody knows where it began in {', '.join(moving)}, "
                "because latest is elsewhere now. Nothing of it was committed: delete the checkpoint, and give option readerName, which "
                "keeps the first offset"
            )
            self._lost(LogDataLossError(message))

    def _ranges(self, snapshot: Snapshot | None, name: str, here: LogOffset, there: LogOffset) -> list[EntryRange]:
        """Return the entries of one log between two offsets, as far as they still exist; missing ones are a loss."""
        if snapshot is None or snapshot.log_id != there.log_id:
            self._lost(LogDataLossError(f"log {name!r} was deleted or recreated: rows up to {there.rows:,} of it are lost", log=name))
            return []
        first = snapshot.first if here.log_id != there.log_id else self._here(snapshot, here)
        if there.position < snapshot.first:
            self._lost(LogDataLossError(f"log {name!r} was trimmed behind a batch that was planned, up to row {there.rows:,}", log=name))
            return []
        ranges = committed_ranges(snapshot.view, first, there.position, name) if first < there.position else []
        if self._columns is not None:  # another run planned it, perhaps for a DataFrame with other columns
            self._columns.check_ranges({name: snapshot.view}, ranges)
        return ranges

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._schema, self._raw, partition, self.accumulators)


def _clock_ms() -> int:
    return int(time.monotonic() * 1000)


def _lag_context(behind: Lag) -> dict[str, str]:
    return {"lagRows": str(behind.rows), "lagBytes": str(behind.bytes), "lagSeconds": f"{behind.seconds:.1f}"}


def _lacks(snapshot: Snapshot | None, offset: LogOffset) -> bool:
    """True if the log of ``offset`` is not there, or not as far as that, or is another one."""
    return snapshot is None or snapshot.log_id != offset.log_id or snapshot.end < offset.position


def _falls_short(snapshot: Snapshot | None, offset: LogOffset) -> bool:
    return snapshot is not None and snapshot.log_id == offset.log_id and snapshot.end < offset.position


def _end_of(snapshot: Snapshot, before: LogOffset, start: Position, end: Position) -> LogOffset:
    """Return the end offset of a log. If nothing of it was read and its place is not lost, it is the same offset, to the letter. Counts
    never go back."""
    if before.log_id != snapshot.log_id:
        return snapshot.offset_at(end)
    if end == start and before.position >= snapshot.first:
        return before
    found = snapshot.offset_at(end)
    return LogOffset(found.log_id, found.position, max(found.rows, before.rows), max(found.bytes, before.bytes))
