"""Streaming reads of a log's committed segments. Lives in one long process per run of a query; ``read`` runs on executors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from bk_core.client.logs import read_ledger_list
from bk_core.errors import InvalidArgumentError, LogDataLossError, NodeExistsError, NoNodeError
from bk_core.protocol.log.ledger_list import LedgerList, position_at_rows
from bk_core.protocol.log.position import Position
from bk_spark.arrow import arrow_schema
from bk_spark.clients import client_for
from bk_spark.offsets import locate, offset_at, position_of, starting_position
from bk_spark.options import Options
from bk_spark.partitions import BookKeeperPartition, fragment_boundaries, read_partition
from bk_spark.planning import committed_ranges, plan
from bk_spark.reader import is_raw


class BookKeeperStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows committed segments; a live segment of an exclusive writer is read once it is closed."""

    def __init__(self, options: Options, schema: StructType) -> None:
        if options.ledgers is not None:
            raise InvalidArgumentError("ledgers are read in batch; a stream needs option log")
        self._options = options
        self._name = options.log_name()
        self._schema = arrow_schema(schema)
        self._raw = is_raw(options, self._name, self._list(), schema)
        self._initial: dict[str, Any] | None = None
        self._target: Position | None = None
        self._available_now = False

    def _list(self) -> LedgerList:
        return read_ledger_list(client_for(self._options.uri, self._options.protocol), self._name)

    # --- offsets ---------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Spark does not store it and asks again (5.6), so it is fixed for the run, and with ``readerName`` for ever."""
        if self._initial is None:
            listed = self._list()
            starting = self._options.starting_offsets or "latest"
            position = starting_position(listed, starting, self._name, self._options.fail_on_data_loss)
            self._initial = self._durable(offset_at(self._name, listed, position))
        return self._initial

    def _durable(self, offset: dict[str, Any]) -> dict[str, Any]:
        """Whoever comes first decides; everybody else takes what is stored."""
        if self._options.reader_name is None:
            return offset
        store = client_for(self._options.uri, self._options.protocol).store
        path = f"readers/{self._name}/{self._options.reader_name}"
        try:
            return dict(json.loads(store.read(path).data))
        except NoNodeError:
            pass
        try:
            store.create(path, json.dumps(offset).encode())
        except NodeExistsError:
            return dict(json.loads(store.read(path).data))
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.max_rows_per_trigger is not None:
            return ReadMaxRows(self._options.max_rows_per_trigger)
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Rows and bytes hold together (Spark knows no composite limit); ReadAllAvailable is obeyed."""
        listed = self._list()
        here = locate(self._name, listed, start, self._options.fail_on_data_loss)
        bounded = not isinstance(limit, ReadAllAvailable)
        rows = self._options.max_rows_per_trigger if bounded else None
        size = self._options.max_bytes_per_trigger if bounded else None
        there = position_at_rows(listed, here, rows, size)
        if self._available_now:
            self._target = self._target or listed.end_position
            there = max(here, min(there, self._target))
        if here > there:
            raise LogDataLossError(f"log {self._name!r} ends before the offset {json.dumps(start)}", log=self._name)
        return offset_at(self._name, listed, there)

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True
        self._target = self._list().end_position

    def reportLatestOffset(self) -> dict[str, Any]:
        listed = self._list()
        return offset_at(self._name, listed, listed.end_position)

    def commit(self, end: dict[str, Any]) -> None:
        """A hint only (5.6): nothing is released by it."""

    def stop(self) -> None:
        """Nothing needs a goodbye; Spark seldom calls this (5.1)."""

    # --- tasks -----------------------------------------------------------------------------------------------------

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """LogDataLossError if start > end: returning nothing would lose rows silently (5.6 d)."""
        listed = self._list()
        lossy = not self._options.fail_on_data_loss
        if start.get("logId") == end.get("logId") and position_of(start) > position_of(end):
            raise LogDataLossError(f"offsets run backwards: {json.dumps(start)} > {json.dumps(end)}; use readerName", log=self._name)
        if lossy and end.get("logId") != listed.log_id:
            return []
        first = locate(self._name, listed, start, self._options.fail_on_data_loss)
        after = locate(self._name, listed, end, self._options.fail_on_data_loss)
        if first > after:
            raise LogDataLossError(f"offsets run backwards: {json.dumps(start)} > {json.dumps(end)}", log=self._name)
        client = client_for(self._options.uri, self._options.protocol)
        ranges = committed_ranges(listed, first, after)
        tasks = plan(ranges, self._options.max_bytes_per_partition, self._options.min_partitions, fragment_boundaries(client))
        return [BookKeeperPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, self._schema, self._raw, partition)
