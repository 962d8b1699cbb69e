"""One line in the log for each task that reads: its rows and bytes, and where its time went."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from bk_spark.accumulators import Accumulators

_log = logging.getLogger("bk_spark.read")


class Told:
    """Passes the batches of a task on, and tells at the end what they were. ``logs`` names what is read, "" for single ledgers."""

    def __init__(self, logs: str, ranges: int, accumulators: Accumulators | None = None) -> None:
        self._logs = logs
        self._accumulators = accumulators
        self._ranges = ranges
        self._rows = self._bytes = self._batches = 0
        self._read_s = 0.0

    def of(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches. The line comes with the last one; a task that ends before, because of a limit or an error, has none."""
        begun = time.perf_counter()
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            self._read_s += time.perf_counter() - asked
            if batch is None:
                break
            self._rows += batch.num_rows
            self._bytes += batch.nbytes
            self._batches += 1
            yield batch
        facts = {
            "log": self._logs,
            "ranges": self._ranges,
            "batches": self._batches,
            "rows": self._rows,
            "bytes": self._bytes,
            "readMs": round(self._read_s * 1000),
            "ms": round((time.perf_counter() - begun) * 1000),
        }
        if self._accumulators is not None:
            self._accumulators.read(self._rows, self._bytes)
        _log.info("BK-READ-TASK read %d rows", self._rows, extra={"context": facts})
