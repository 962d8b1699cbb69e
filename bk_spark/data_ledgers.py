"""Data ledgers: what write tasks append to. Each worker process keeps one open per log, across tasks, batches and queries.

Nobody sees an entry of one until a commit lists its range. Workers die without warning after 60 s of idleness, so an abandoned data
ledger is a normal end: committed ranges stay readable, and ``gc_log`` closes or deletes the ledger.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from bk_core.client.logs import Intent, now_ms, record_intent
from bk_core.errors import BkError
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.log.ledger_list import LogProperties, SegmentRange
from bk_spark.arrow import PackedRun
from bk_spark.clients import client_for
from bk_spark.options import Options

IN_FLIGHT_BYTES = 32 << 20
ROLL_AGE_S = 3600.0  # well below the janitor's age bound, so it never meets a ledger that is in use
ACK_TIMEOUT_S = 300.0


@dataclass(slots=True)
class _DataLedger:
    handle: Any
    opened_s: float
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A run that is sent; its future tells the last entry id once the whole run is acknowledged."""

    future: Future[int]
    ledger_id: int
    count: int
    rows: int
    bytes: int


_kept: dict[tuple[Any, ...], _DataLedger] = {}


class DataLedgerWriter:
    """The appends of one task. ``finish`` waits for every acknowledgement and tells the ranges; on any error nothing is kept open."""

    def __init__(self, options: Options, log: str, log_id: str, properties: LogProperties, query_id: str) -> None:
        self._options = options
        self._log = log
        self._properties = properties
        self._query_id = query_id
        self._key = (os.getpid(), options.uri, options.protocol, log, log_id, options.password)
        self._current: _DataLedger | None = None
        self._ranges: list[SegmentRange] = []
        self._in_flight: deque[_InFlight] = deque()
        self._in_flight_bytes = 0

    def append(self, run: PackedRun) -> None:
        ledger = self._ledger()
        future = ledger.handle.append_run(run.payloads, run.offsets)
        ledger.bytes += run.bytes
        self._in_flight.append(_InFlight(future, int(ledger.handle.ledger_id), run.count, run.rows, run.bytes))
        self._in_flight_bytes += run.bytes
        while self._in_flight_bytes > IN_FLIGHT_BYTES:
            self._settle_oldest()

    def finish(self) -> tuple[SegmentRange, ...]:
        self._settle_all()
        if self._current is not None:
            _kept[self._key] = self._current
            self._current = None
        return tuple(self._ranges)

    def _note(self, ledger_id: int, first: int, last: int, rows: int, size: int) -> None:
        before = self._ranges[-1] if self._ranges else None
        if before is not None and before.ledger_id == ledger_id and before.last_entry + 1 == first:
            self._ranges[-1] = SegmentRange(ledger_id, before.first_entry, last, before.rows + rows, before.bytes + size)
        else:
            self._ranges.append(SegmentRange(ledger_id, first, last, rows, size))

    def _settle_all(self) -> None:
        while self._in_flight:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        run = self._in_flight.popleft()
        last = run.future.result(ACK_TIMEOUT_S)
        self._in_flight_bytes -= run.bytes
        self._note(run.ledger_id, last - run.count + 1, last, run.rows, run.bytes)

    def _ledger(self) -> _DataLedger:
        ledger = self._current or _kept.pop(self._key, None)
        if ledger is not None and self._worn(ledger):
            self._settle_all()
            _close(ledger)
            ledger = None
        self._current = ledger or self._open()
        return self._current

    def _worn(self, ledger: _DataLedger) -> bool:
        return ledger.bytes >= self._options.roll_max_bytes or time.monotonic() - ledger.opened_s > ROLL_AGE_S

    def _open(self) -> _DataLedger:
        """The intent is stored before the first entry, so a janitor can find whatever a killed worker leaves behind."""
        client, p = client_for(self._options.uri, self._options.protocol), self._properties
        handle = client.create_ledger(
            ensemble_size=p.ensemble_size,
            write_quorum_size=p.write_quorum_size,
            ack_quorum_size=p.ack_quorum_size,
            digest_type=DigestType[p.digest_type],
            password=self._options.password,
            custom={"application": b"bk_spark", "log": self._log.encode()},
        )
        record_intent(client, self._log, Intent(handle.ledger_id, self._query_id, socket.gethostname(), os.getpid(), now_ms()))
        return _DataLedger(handle, time.monotonic())


def _close(ledger: _DataLedger) -> None:
    """Everything in it is acknowledged, so a close that fails (a janitor was faster) costs nothing."""
    try:
        ledger.handle.close()
    except BkError:
        return
