"""The data source ``bookkeeper_faulty``: the product's own, with fault points around what Spark calls. Importable by Spark's workers.

Its option ``faults`` names the directory with the orders (points.py); without it, it is ``bookkeeper`` under another name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, DataSourceStreamReader, InputPartition
from pyspark.sql.datasource import WriterCommitMessage as Message
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from bk_spark.datasource import BookKeeperDataSource
from tests.faults.points import arm, phase, point

NAME = "bookkeeper_faulty"


class FaultyDataSource(BookKeeperDataSource):
    """See the module."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {key: value for key, value in options.items() if key.lower() != "faults"}
        self._faults = next((value for key, value in options.items() if key.lower() == "faults"), None)
        arm(self._faults)
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamReader(self, schema: StructType) -> Any:
        arm(self._faults)
        return FaultyStreamReader(super().streamReader(schema), self._faults)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        arm(self._faults)
        return FaultyWriter(super().writer(schema, overwrite), self._faults)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        arm(self._faults)
        with phase("plan"):
            point("sink_plan")
            return FaultyStreamWriter(super().streamWriter(schema, overwrite), self._faults)


def _in_task(name: str) -> Any:
    context = TaskContext.get()
    if context is None:
        return phase(name)
    batch = context.getLocalProperty("streaming.sql.batchId")
    return phase(name, None if batch is None else int(batch), context.partitionId(), context.attemptNumber())


class _Faulty:
    """The base of all wrappers: the wrapped object, and the orders' directory wherever the object is unpickled."""

    def __init__(self, inner: Any, faults: str | None) -> None:
        self._inner = inner
        self._faults = faults

    def _written(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        arm(self._faults)
        with _in_task("write"):
            point("begin")
            message = self._inner.write(iterator)
            point("message")
            return message

    def _ended(self, name: str, batch: int | None, *arguments: Any) -> None:
        arm(self._faults)
        with phase(name, batch):
            point(name)
            getattr(self._inner, name)(*arguments)
            point(f"{name}_done")


class FaultyWriter(_Faulty, DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        return self._written(iterator)

    def commit(self, messages: list[Message | None]) -> None:
        self._ended("commit", None, messages)

    def abort(self, messages: list[Message | None]) -> None:
        self._ended("abort", None, messages)


class FaultyStreamWriter(_Faulty, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        return self._written(iterator)

    def commit(self, messages: list[Message | None], batchId: int) -> None:
        self._ended("commit", batchId, messages, batchId)

    def abort(self, messages: list[Message | None], batchId: int) -> None:
        self._ended("abort", batchId, messages, batchId)


class FaultyStreamReader(_Faulty, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def initialOffset(self) -> Any:
        arm(self._faults)
        point("initial")
        offset = self._inner.initialOffset()
        point("initial_done")
        return offset

    def latestOffset(self, start: Any, limit: ReadLimit) -> Any:
        point("latest")
        offset = self._inner.latestOffset(start, limit)
        point("latest_done")
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:
        limit: ReadLimit = self._inner.getDefaultReadLimit()
        return limit

    def prepareForTriggerAvailableNow(self) -> None:
        self._inner.prepareForTriggerAvailableNow()

    def reportLatestOffset(self) -> Any:
        return self._inner.reportLatestOffset()

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        point("source_plan")
        planned: Sequence[InputPartition] = self._inner.partitions(start, end)
        point("source_planned")
        return planned

    def read(self, partition: InputPartition) -> Iterator[Any]:
        arm(self._faults)
        with _in_task("read"):
            point("read")
            batches = iter(self._inner.read(partition))
        for batch in batches:
            with _in_task("read"):
                point("reading")
            yield batch

    def commit(self, end: Any) -> None:
        self._inner.commit(end)

    def stop(self) -> None:
        self._inner.stop()
