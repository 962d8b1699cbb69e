"""A write, from its plan to the messages of its tasks. plan.py decides per log, and commit.py commits."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import StructType

from bk_spark.clients import client_for
from bk_spark.entries.packing import PackedEntries, Packer, conform, pack_arrow, pack_raw
from bk_spark.entries.stored_schema import arrow_schema_of_text
from bk_spark.options.scopes import BATCH_WRITE, STREAM_WRITE
from bk_spark.options.table import Options, refuse_others
from bk_spark.schemas import check_schema
from bk_spark.sink.data_ledgers import TaskLedgers
from bk_spark.sink.messages import CommitMessage, LogPart
from bk_spark.sink.phases import Phases
from bk_spark.sink.plan import LogPlan, plan_log, wanted_properties
from bk_spark.sink.routing import route_column, split_by_log, without_route
from bk_spark.sink.schema import only_value, spelled
from bk_spark.worker_process import spare_collections

_log = logging.getLogger("bk_spark.sink")
ROUTED_RUN_BYTES = 512 << 10
"""The payload of one append to one of several logs, each of which has its own memory for the run that it fills."""


def task_identity() -> tuple[str, int, int]:
    """Return (query id or "", partition, attempt). Only a task can tell the query id, which the checkpoint keeps over restarts
    (spark-connectors.md 5.3)."""
    context = TaskContext.get()
    if context is None:
        return "", 0, 0
    return context.getLocalProperty("sql.streaming.queryId") or "", context.partitionId(), context.attemptNumber()


def worker_is_reused() -> bool:
    """Return True if this process gets more tasks. With ``spark.python.worker.reuse=false`` it ends with this one, as pyspark's daemon
    decides."""
    return TaskContext.get() is None or bool(os.environ.get("SPARK_REUSE_WORKER"))


class Sink:
    """One planned write. It is plain data, pickled into every task. ``owner`` is "" for a stream, whose query id owns its ledgers."""

    def __init__(self, options: Options, schema: StructType, owner: str, mark: tuple[str, int] | None, overwrite: bool = False) -> None:
        refuse_others(options, BATCH_WRITE if owner else STREAM_WRITE)
        wanted_properties(options)
        self.options = options
        self.owner = owner
        self.mark = mark
        self.overwrite = overwrite
        self.route = route_column(schema) if options.log is None else None
        self.schema = schema if self.route is None else without_route(schema, self.route)
        self.plan = None if options.log is None else plan_log(self._client(), options, options.log, schema, mark, overwrite)
        if self.plan is None:
            check_schema(self.schema)

    def _client(self) -> Any:
        return client_for(self.options.uri, self.options.protocol)

    def write(self, batches: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Write the rows of one task, in a worker. No ledger is made before the first row; it returns after the last acknowledgement; a
        failed task leaves nothing."""
        spare_collections()
        started = time.monotonic()
        query_id, partition, attempt = task_identity()
        phases = Phases()
        parts = self._write(phases.waiting(batches), self.owner or query_id, phases)
        message = CommitMessage(query_id, partition, attempt, parts)
        facts = {
            "partition": partition,
            "attempt": attempt,
            "rows": message.rows,
            "bytes": message.bytes,
            "logs": ",".join(part.log for part in parts),
            "ledgers": len({r.ledger_id for part in parts for r in part.ranges}),
            "ms": round((time.monotonic() - started) * 1000),
            **phases.facts(),
        }
        _log.info("BK-SINK-TASK wrote %d rows", message.rows, extra={"context": facts})
        return message

    def _write(self, batches: Iterator[pa.RecordBatch], owner: str, phases: Phases) -> tuple[LogPart, ...]:
        ledgers = TaskLedgers(self.options, owner)
        plans: dict[str, LogPlan] = {}
        try:
            runs = self._routed(batches, plans) if self.plan is None else self._single(batches, plans, self.plan)
            for plan, run in runs:
                with phases.appending():
                    ledgers.append(plan.log, plan.log_id, plan.properties, run)
            with phases.acknowledging():
                written = ledgers.finish(keep=worker_is_reused())
        except BaseException:
            ledgers.discard()
            raise
        parts: list[LogPart] = []
        for plan in plans.values():
            ranges, closed = written.get(plan.log, ((), ()))
            parts.append(LogPart(plan.log, plan.log_id, plan.schema, ranges, closed, plan.properties.schema))
        return tuple(parts)

    def _single(
        self, batches: Iterator[pa.RecordBatch], plans: dict[str, LogPlan], plan: LogPlan
    ) -> Iterator[tuple[LogPlan, PackedEntries]]:
        plans[plan.log] = plan
        if plan.done:
            for _ in batches:
                pass
            return
        if plan.schema:
            schema = arrow_schema_of_text(plan.schema)
            fitting = (spelled(batch, schema.names) for batch in batches)
            options = self.options
            runs: Iterable[PackedEntries] = pack_arrow(
                fitting, schema, options.entry_size, options.compression, entry_bytes_max=options.max_bytes_per_entry
            )
        else:
            runs = pack_raw(only_value(plan.log, batch) for batch in batches)
        for run in runs:
            yield plan, run

    def _routed(self, batches: Iterator[pa.RecordBatch], plans: dict[str, LogPlan]) -> Iterator[tuple[LogPlan, PackedEntries]]:
        """Pack the rows of each log apart. Together the packers hold at most about ``maxInFlightBytes``, or the fullest is emptied."""
        assert self.route is not None
        packers: dict[str, _LogPacker] = {}
        held = 0  # by all of them together, because there may be many
        for batch in batches:
            for log, rows in split_by_log(batch, self.route):
                if log not in plans:
                    plans[log] = plan_log(self._client(), self.options, log, self.schema, self.mark, self.overwrite)
                    packers[log] = _LogPacker(plans[log], self.options)
                before = packers[log].held_bytes
                for run in packers[log].put(rows):
                    yield plans[log], run
                held += packers[log].held_bytes - before
                while held > self.options.max_in_flight_bytes:
                    log, fullest = max(packers.items(), key=lambda item: item[1].held_bytes)
                    held -= fullest.held_bytes
                    for run in fullest.rest():
                        yield plans[log], run
        for log, packer in packers.items():
            for run in packer.rest():
                yield plans[log], run


class _LogPacker:
    """The rows of one of several logs on their way into entries."""

    def __init__(self, plan: LogPlan, options: Options) -> None:
        self._plan = plan
        self._rows = self._bytes = 0
        self._packer: Packer | None = None
        if plan.schema:
            self._schema = arrow_schema_of_text(plan.schema)
            self._packer = Packer(self._schema, options.entry_size, options.compression, ROUTED_RUN_BYTES, options.max_bytes_per_entry)

    @property
    def held_bytes(self) -> int:
        """The bytes before compression."""
        return self._bytes

    def put(self, rows: pa.RecordBatch) -> Iterator[PackedEntries]:
        if self._plan.done:
            return
        if self._packer is None:
            yield from pack_raw([only_value(self._plan.log, rows)])
            return
        self._packer.put(conform(spelled(rows, self._schema.names), self._schema))
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        for run in self._packer.full_entries():
            self._bytes -= self._bytes * run.rows // max(self._rows, run.rows)
            self._rows -= run.rows
            yield run

    def rest(self) -> Iterator[PackedEntries]:
        self._rows = self._bytes = 0
        if self._packer is not None:
            yield from self._packer.rest()
