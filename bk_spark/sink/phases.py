"""The times of one write task by phase, for its line in the log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


class Phases:
    """Adds up where the time of a task goes: waiting for rows of Spark's, waiting in appends for room, waiting for the last
    acknowledgements. The rest is packing. Clocks are read for each batch and each run, never for a row."""

    def __init__(self) -> None:
        self._waited_s = self._appended_s = self._acknowledged_s = 0.0

    def waiting(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches, and add up what Spark took for each."""
        while True:
            begun = time.perf_counter()
            batch = next(batches, None)
            self._waited_s += time.perf_counter() - begun
            if batch is None:
                return
            yield batch

    @contextmanager
    def appending(self) -> Iterator[None]:
        """Surround one append."""
        begun = time.perf_counter()
        yield
        self._appended_s += time.perf_counter() - begun

    @contextmanager
    def acknowledging(self) -> Iterator[None]:
        """Surround the wait for what is not acknowledged yet."""
        begun = time.perf_counter()
        yield
        self._acknowledged_s += time.perf_counter() - begun

    def facts(self) -> dict[str, int]:
        """Return the milliseconds by phase."""
        return {
            "rowsMs": round(self._waited_s * 1000),
            "appendMs": round(self._appended_s * 1000),
            "ackMs": round(self._acknowledged_s * 1000),
        }
