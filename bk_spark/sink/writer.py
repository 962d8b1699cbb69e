"""Writes DataFrames and streams, exactly once: tasks append ledgers that no reader looks at yet, and one compare-and-set per log publishes
a batch."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from bk_core.errors import InvalidArgumentError
from bk_core.protocol.log.ledger_list import ONE_SHOT
from bk_spark.options.table import Options
from bk_spark.plain_errors import plainly
from bk_spark.sink.batch_order import Batch
from bk_spark.sink.commit import abort, commit
from bk_spark.sink.messages import ours, query_id_of
from bk_spark.sink.task import Sink

if TYPE_CHECKING:
    from bk_spark.accumulators import Accumulators

TXN = "txn:"


def _check_overwrites(options: Options, overwrite: bool) -> None:
    if options.overwrite_schema and not overwrite:
        raise InvalidArgumentError(
            'overwriteSchema=true replaces columns together with all rows: it needs mode("overwrite"), of a stream output mode complete. '
            'To add columns: .option("mergeSchema", "true")'
        )


class BookKeeperWriter(DataSourceArrowWriter):
    """``df.write``: append or overwrite. The one-shot id is chosen here and pickled, so tasks, commit and abort agree on it.

    With ``txnAppId`` and ``txnVersion`` a version is written once, however often it is tried; lower ones count as written too.
    """

    accumulators: Accumulators | None = None

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        _check_overwrites(options, overwrite)
        self._owner = ONE_SHOT + uuid.uuid4().hex
        mark: tuple[str, int] | None = (self._owner, 0)
        if options.txn_app_id is not None and options.txn_version is not None:
            if not options.exactly_once:
                raise InvalidArgumentError("txnAppId makes a write exactly once, and exactlyOnce=false says not to; leave one out")
            mark = (TXN + options.txn_app_id, options.txn_version)
        elif not options.exactly_once:
            mark = None
        self._batch = Batch(self._owner, mark, overwrite)
        self._sink = Sink(options, schema, self._owner, mark, overwrite)

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = self._sink.write(iterator)
        if self.accumulators is not None:
            self.accumulators.wrote(message.rows, message.bytes)
        return message

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._sink.options, ours(messages), self._batch)

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort(self._sink.options, ours(messages), self._batch)


class BookKeeperStreamWriter(DataSourceStreamArrowWriter):
    """``df.writeStream``. A fresh object commits each batch (spark-connectors.md 5.1); the query id comes with the messages.

    Output mode complete replaces the log's contents with every batch.
    """

    accumulators: Accumulators | None = None

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        _check_overwrites(options, overwrite)
        if options.fail_on_different_replay and not options.exactly_once:
            raise InvalidArgumentError("exactlyOnce=false keeps no mark that a replay could be told by; leave failOnDifferentReplay out")
        self._overwrite = overwrite
        self._sink = Sink(options, schema, "", None, overwrite)

    @plainly
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = self._sink.write(iterator)
        if self.accumulators is not None:
            self.accumulators.wrote(message.rows, message.bytes)
        return message

    @plainly
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        told = ours(messages)
        query_id = query_id_of(told)
        if not query_id:
            raise InvalidArgumentError("no task told the query id; is this a streaming query?")
        mark = (query_id, batchId) if self._sink.options.exactly_once else None
        commit(self._sink.options, told, Batch(query_id, mark, self._overwrite, batchId))

    @plainly
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        told = ours(messages)
        query_id = query_id_of(told)
        abort(self._sink.options, told, Batch(query_id, (query_id, batchId) if query_id else None, self._overwrite))
