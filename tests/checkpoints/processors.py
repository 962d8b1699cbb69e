"""Processors of ``transformWithState``: value, list and map state and event-time timers, so that column families are met."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

OUTPUT = "k string, v long, t long"
SILENCE_MS = 7_000
LAST_KEPT = 3
VARIABLES = ("total", "last", "seen", "pad")
_LONG = StructType([StructField("value", LongType())])
_TEXT = StructType([StructField("value", StringType())])
_KEY = StructType([StructField("key", IntegerType())])


class Totals(StatefulProcessor):
    """Tell of each key the sum so far, its last values, how often each residue came; a row when it was silent for seven seconds."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", _LONG)
        self._last = handle.getListState("last", _LONG)
        self._seen = handle.getMapState("seen", _KEY, _LONG)
        self._pad = handle.getListState("pad", _TEXT)

    def _take(self, values: list[int], pads: list[str], newest_ms: int) -> int:
        before = self._total.get()
        total = (before[0] if before else 0) + sum(values)
        self._total.update((total,))
        kept = [row[0] for row in self._last.get()] if self._last.exists() else []
        self._last.put([(value,) for value in sorted([*kept, *values])[-LAST_KEPT:]])
        self._pad.appendList([(pad,) for pad in sorted(pads)])
        for value in values:
            residue = (value % 3,)
            count = self._seen.getValue(residue) if self._seen.containsKey(residue) else None
            self._seen.updateValue(residue, ((count[0] if count else 0) + 1,))
        for timer in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(newest_ms + SILENCE_MS)
        return total

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        found = list(rows)
        newest = max(row.t for row in found)
        yield Row(k=key[0], v=self._take([row.v for row in found], [row.pad for row in found], newest), t=newest)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        total = self._total.get()
        yield Row(k=f"{key[0]} was silent", v=total[0] if total else 0, t=expiredTimerInfo.getExpiryTimeInMs())
        for state in (self._total, self._last, self._seen, self._pad):
            state.clear()

    def close(self) -> None:
        pass


class TotalsInPandas(Totals):
    """The same over frames."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        found = pd.concat(list(rows))
        newest = int(found["t"].max())
        total = self._take([int(value) for value in found["v"]], [str(pad) for pad in found["pad"]], newest)
        yield pd.DataFrame({"k": [key[0]], "v": [total], "t": [newest]})

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        for row in super().handleExpiredTimer(key, timerValues, expiredTimerInfo):
            yield pd.DataFrame([row.asDict()])
