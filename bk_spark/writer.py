"""Writing DataFrames and streams, exactly once: tasks append where nobody looks, one compare-and-set publishes a batch."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bk_core.client.logs import check_ledgers_exist, create_log, now_ms, read_ledger_list, update_ledger_list
from bk_core.errors import InvalidArgumentError, LogDataLossError, LogSchemaError, NoSuchLogError
from bk_core.protocol.log.ledger_list import LedgerList, LogProperties, SegmentRange
from bk_spark.arrow import arrow_schema, pack_arrow, pack_raw, schema_of_text, schema_text
from bk_spark.clients import client_for
from bk_spark.data_ledgers import DataLedgerWriter
from bk_spark.options import Options

_log = logging.getLogger("bk_spark.writer")


@dataclass(frozen=True)
class CommitMessage(WriterCommitMessage):
    """What one task did. Every task sends one, with rows or without: only tasks know the query id (spark-connectors.md 5.3)."""

    query_id: str
    partition: int
    attempt: int
    ranges: tuple[SegmentRange, ...]
    rows: int
    bytes: int
    schema: str


class _Sink:
    """What batch and stream share. Plain data: it is pickled into every task."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgumentError('a log only takes appends: use .mode("append") or outputMode("append")')
        self.options = options
        self.name = options.log_name()
        client = client_for(options.uri, options.protocol)
        wanted = LogProperties(
            options.entry_format, "", options.ensemble_size, options.write_quorum_size, options.ack_quorum_size, options.digest_type
        )
        try:
            listed = read_ledger_list(client, self.name)
        except NoSuchLogError:
            listed = create_log(client, self.name, wanted, exist_ok=True)
        self.log_id = listed.log_id
        self.properties = listed.properties
        self.schema = "" if self.raw else self._checked_schema(schema)
        if self.raw and "value" not in schema.names:
            raise LogSchemaError(f"raw log {self.name!r} takes a column named value (binary or string)", log=self.name)

    @property
    def raw(self) -> bool:
        return self.properties.entry_format == "raw"

    def _checked_schema(self, schema: StructType) -> str:
        text = schema_text(schema)
        stored = self.properties.schema
        if stored and arrow_schema(schema_of_text(stored)) != arrow_schema(schema):
            names = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in schema_of_text(stored).fields)
            raise LogSchemaError(f"log {self.name!r} has the columns {names}", log=self.name)
        return stored or text

    def write(self, batches: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Runs in a worker. No ledger before the first row; returns after the last acknowledgement."""
        context = TaskContext.get()
        query_id = (context.getLocalProperty("sql.streaming.queryId") if context else None) or ""
        writer = DataLedgerWriter(self.options, self.name, self.log_id, self.properties, query_id)
        schema = None if self.raw else arrow_schema(schema_of_text(self.schema))
        runs = pack_raw(batches) if schema is None else pack_arrow(batches, schema, self.options.entry_size, self.options.compression)
        for run in runs:
            writer.append(run)
        ranges = writer.finish()
        partition, attempt = (context.partitionId(), context.attemptNumber()) if context else (0, 0)
        rows, size = sum(r.rows for r in ranges), sum(r.bytes for r in ranges)
        _log.info("wrote %d rows", rows, extra={"context": {"log": self.name, "partition": partition, "bytes": size}})
        return CommitMessage(query_id, partition, attempt, ranges, rows, size, self.schema)

    def publish(self, messages: Sequence[Any], query_id: str | None, batch_id: int) -> LedgerList:
        """One compare-and-set: all segments and the mark of the batch, or nothing; nothing at all if the mark is there (5.9)."""
        client = client_for(self.options.uri, self.options.protocol)
        ours = sorted((m for m in messages if isinstance(m, CommitMessage)), key=lambda m: m.partition)
        ranges = [r for message in ours for r in message.ranges]
        at_ms = now_ms()

        def change(listed: LedgerList) -> LedgerList:
            if listed.log_id != self.log_id:
                raise LogDataLossError(f"log {self.name!r} was deleted and created again during the write", log=self.name)
            if query_id is not None and listed.is_committed(query_id, batch_id):
                return listed
            changed = listed.append_segments(ranges, at_ms, query_id, batch_id)
            if changed is not listed:
                check_ledgers_exist(client, sorted({r.ledger_id for r in ranges}))
            return changed.set_schema(self.schema) if self.schema else changed

        return update_ledger_list(client, self.name, change)

    def abort(self, query_id: str | None, batch_id: int) -> None:
        """A commit may have succeeded before its failure was seen, so the list decides. What is unlisted is left to ``gc_log``:

        tasks may still be writing, and the ledgers hold committed ranges of other batches.
        """
        try:
            listed = read_ledger_list(client_for(self.options.uri, self.options.protocol), self.name)
        except NoSuchLogError:
            return
        done = query_id is not None and listed.is_committed(query_id, batch_id)
        _log.warning("abort of a batch that %s", "was committed" if done else "stays invisible", extra={"context": {"log": self.name}})


class BookKeeperWriter(DataSourceArrowWriter):
    """``df.write``: append. With ``txnAppId`` and ``txnVersion`` a version is written once, however often it is tried."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        self._sink = _Sink(options, schema, overwrite)
        self._txn = None if options.txn_app_id is None else f"txn:{options.txn_app_id}"
        self._version = -1 if options.txn_version is None else options.txn_version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.publish(messages, self._txn, self._version)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._sink.abort(self._txn, self._version)


class BookKeeperStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream``. A fresh object commits each batch (5.1); the query id comes with the messages."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        if options.txn_app_id is not None:
            raise InvalidArgumentError("txnAppId and txnVersion are for batch writes; a stream has its query id and batch ids")
        self._sink = _Sink(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._sink.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        query_id = _query_id(messages)
        if not query_id:
            raise InvalidArgumentError("no task told the query id; is this a streaming query?")
        self._sink.publish(messages, query_id, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._sink.abort(_query_id(messages) or None, batchId)


def _query_id(messages: Sequence[Any]) -> str:
    return next((m.query_id for m in messages if isinstance(m, CommitMessage) and m.query_id), "")
