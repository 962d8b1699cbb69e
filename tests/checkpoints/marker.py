"""A place inside every task of a batch where a query can be held, so that a restart hits the middle of a batch.

What shall happen lies in the query's directory ``orders``:

    order       {"batch": 7, "hold": true}    the first task of batch 7 or later takes it, and waits for ``release``
    order       {"batch": 7, "hold": false}   the same, but it goes on, and no task of a later batch goes on before ``release``

An order that was taken is called ``met.<batch>``. A task that was held and goes on leaves a file ``left``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

ORDER, BARRIER, RELEASE, MET, LEFT = "order", "barrier", "release", "met", "left"
HOLD_S = 900.0  # longer than the slowest query of a group takes to its place


def watched(rows: DataFrame, orders: str) -> DataFrame:
    """The same rows, seen by a Python worker in each task."""

    def watch(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        arrive(Path(orders))
        yield from batches

    return rows.mapInArrow(watch, rows.schema)


def arrive(orders: Path) -> None:
    """A task is there. Usually nothing happens."""
    context = TaskContext.get()
    batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
    if batch is not None:
        obey(orders, int(batch))


def obey(orders: Path, batch: int) -> None:
    """Return what the order tells a task of this batch."""
    barrier = _read(orders / BARRIER)
    if barrier is not None and batch > int(barrier):
        _wait(orders)
    text = _read(orders / ORDER)
    if text is None:
        return
    order = json.loads(text)
    if batch < order["batch"]:
        return
    if not order["hold"]:
        beside = orders / f".{BARRIER}"
        beside.write_text(str(batch))
        beside.replace(orders / BARRIER)
    try:
        (orders / ORDER).rename(orders / f"{MET}.{batch}")
    except FileNotFoundError:  # another task was faster
        return
    if order["hold"]:
        _wait(orders)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def _wait(orders: Path) -> None:
    deadline = time.monotonic() + HOLD_S
    while not (orders / RELEASE).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"held for {HOLD_S:.0f} s, and nobody released it")
        time.sleep(0.01)
    with suppress(FileNotFoundError):  # the next restart has other orders already
        (orders / LEFT).touch()
