"""Metrics of the streaming queries of a driver, made of what Spark tells after each batch.

Spark takes no metrics from a Python source or sink, and no accumulator reaches the driver from their tasks (spark-connectors.md 5.13). The
progress of a query has our offsets, which carry the rows and bytes of each log: so what was read, and how far it is behind, is exact.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from bk_core.metrics.registry import Registry
from bk_core.metrics.snapshot import Metrics
from bk_core.metrics.table import SPARK
from bk_core.protocol.log.offset import LogOffset, of_source

_log = logging.getLogger("bk_spark.stream")
_PREFIX = "bookkeeper_spark_"


class QueryCounts:
    """The counts of one driver's queries."""

    def __init__(self, of: str) -> None:
        self.registry = Registry(of, SPARK)


class QueryMetrics(StreamingQueryListener):
    """Counts what the streaming queries of a session read from logs, how far they are behind, and how long their batches take.

    ``of`` names the driver, which exporters use as the label ``client``. A query is named by its ``queryName``, or else by its id, which
    its checkpoint keeps over restarts. Sources other than logs are counted in the rows of a batch, and nowhere else.

    >>> metrics = QueryMetrics()
    >>> spark.streams.addListener(metrics)
    >>> metrics.metrics().value("bookkeeper_spark_source_lag_rows", log="flights")
    >>> bk_core.metrics.prometheus.serve(metrics, port=9108)
    """

    def __init__(self, of: str = "spark") -> None:
        self.counts = QueryCounts(of)

    def metrics(self) -> Metrics:
        """Return what was counted so far."""
        return self.counts.registry.snapshot()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Take note of ``event``, which Spark's thread hands in; a query is counted from its first batch on."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Count the batch of ``event``, and write a line of its rows, lag and phases to the log ``bk_spark.stream``."""
        progress = event.progress
        query = progress.name or str(progress.id)
        self._count("batch_total", query).value += 1
        self._count("batch_rows_total", query).value += max(0, progress.numInputRows)
        for phase, milliseconds in progress.durationMs.items():
            self.counts.registry.histogram(f"{_PREFIX}batch_phase_seconds", query, phase).observe(int(milliseconds) * 1_000_000)
        facts: dict[str, Any] = {"query": query, "batch": int(progress.batchId)}
        facts |= {f"{phase}Ms": int(milliseconds) for phase, milliseconds in sorted(progress.durationMs.items())}
        for source in progress.sources:
            start, end, latest = map(_offset, (source.startOffset, source.endOffset, source.latestOffset))
            start = start or _begun(end, max(0, source.numInputRows))
            for log, reached in end.items():
                self._source(query, log, facts, (start.get(log), reached, latest.get(log, reached)))

    def _count(self, name: str, *labels: str) -> Any:
        return self.counts.registry.count(_PREFIX + name, *labels)

    def _source(self, query: str, log: str, facts: dict[str, Any], offsets: tuple[LogOffset | None, LogOffset, LogOffset]) -> None:
        """Count one log of one batch. ``offsets`` are those before it, after it, and of the end of the log."""
        before, reached, newest = offsets
        rows, size = (0, 0) if before is None else _between(before, reached)
        lag_rows, lag_bytes = _between(reached, newest)
        self._count("source_rows_total", query, log).value += rows
        self._count("source_bytes_total", query, log).value += size
        self._count("source_lag_rows", query, log).value = lag_rows
        self._count("source_lag_bytes", query, log).value = lag_bytes
        told = {**facts, "log": log, "rows": rows, "bytes": size, "lagRows": lag_rows, "lagBytes": lag_bytes}
        _log.info("BK-STREAM-BATCH %s: %d rows of log %s, %d behind", query, rows, log, lag_rows, extra={"context": told})

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Take note of ``event``: no rows came, so the figures of the last batch still hold."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Count the end of the query of ``event`` if an error ended it."""
        if event.exception is not None:
            self._count("query_failed_total").value += 1


def _offset(text: Any) -> dict[str, LogOffset]:
    """Return the offset of a source that reads logs, by log; {} of another source, and before the first batch."""
    try:
        return (of_source(json.loads(text)) if isinstance(text, str) else None) or {}
    except ValueError:
        return {}


def _begun(end: dict[str, LogOffset], rows: int) -> dict[str, LogOffset]:
    """Return where the first batch of a query began, which Spark does not tell. That is known if it read all there was, or one log alone,
    whose bytes are shared out evenly; else the first batch counts for nothing."""
    if sum(reached.rows for reached in end.values()) == rows:
        return {log: replace(reached, rows=0, bytes=0) for log, reached in end.items()}
    if len(end) != 1:
        return {}
    ((log, reached),) = end.items()
    before = max(0, reached.rows - rows)
    return {log: replace(reached, rows=before, bytes=reached.bytes * before // max(1, reached.rows))}


def _between(first: LogOffset, second: LogOffset) -> tuple[int, int]:
    """Return the rows and bytes between two offsets of a log; none if it was deleted and made again in between."""
    if first.log_id != second.log_id:
        return 0, 0
    return max(0, second.rows - first.rows), max(0, second.bytes - first.bytes)
