"""Data ledgers, to which write tasks append. Each worker process keeps them open across tasks, batches and queries.

No reader sees an entry of one until a commit lists its range. Workers die without warning after 60 s of idleness (spark-connectors.md 5.3),
so an abandoned data ledger is a normal end: committed ranges stay readable, and the janitor closes or deletes the ledger by its intent.
"""

from __future__ import annotations

import os
import time
from array import array
from collections import OrderedDict, deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from bk_core.client.log.intents import create_intended
from bk_core.errors import BkError, OperationTimeoutError
from bk_core.protocol.log.ledger_list import LogProperties, SegmentRange
from bk_spark.clients import client_for
from bk_spark.entries.packing import PackedEntries
from bk_spark.entries.ranges import note_range
from bk_spark.options.table import Options
from bk_spark.sink.intents import still_usable, withdraw

ACK_TIMEOUT_S = 300.0
Key = tuple[Any, ...]


@dataclass(slots=True)
class DataLedger:
    """An open ledger of this process. ``bytes`` and ``entries`` count everything appended to it, garbage too."""

    key: Key = field(repr=False)  # it has the password
    log: str
    handle: Any
    opened_s: float
    bytes: int = 0
    entries: int = 0

    @property
    def ledger_id(self) -> int:
        return int(self.handle.ledger_id)


_kept: OrderedDict[Key, DataLedger] = OrderedDict()
"""The open ledgers, least recently used first; one per cluster, log and kind."""


def _forget_the_parents() -> None:
    """Forget all handles in a forked child, which has none of the threads that drive them."""
    _kept.clear()


os.register_at_fork(after_in_child=_forget_the_parents)


@dataclass(slots=True)
class _Appended:
    """The segments that a task wrote to one log."""

    ranges: list[SegmentRange] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A run that is sent; its future has the last entry id once the whole run is acknowledged."""

    future: Future[int]
    log: str
    ledger_id: int
    count: int
    rows: int
    bytes: int
    rows_per_entry: int


class TaskLedgers:
    """The appends of one task, to any number of logs; ``owner`` owns the ledgers that it opens.

    ``finish`` waits for every acknowledgement and returns the ranges. After an error call ``discard``: nobody was told of anything of the
    task, so ledgers that it opened are deleted at once.
    """

    def __init__(self, options: Options, owner: str) -> None:
        self._options = options
        self._owner = owner
        self._logs: dict[str, _Appended] = {}
        self._begun: set[Key] = set()
        self._checked: set[int] = set()
        self._broken: set[int] = set()
        self._opened: list[DataLedger] = []
        self._in_flight: deque[_InFlight] = deque()
        self._in_flight_bytes = 0

    @property
    def _client(self) -> Any:
        """The client, which is made when it is needed: a task without rows connects to nothing."""
        return client_for(self._options.uri, self._options.protocol)

    def append(self, log: str, log_id: str, properties: LogProperties, run: PackedEntries) -> None:
        """Hand over a run. Blocks while more than ``maxInFlightBytes`` are unacknowledged; that is the back-pressure Spark feels."""
        rest: PackedEntries | None = run
        while rest is not None:
            with _named(log):
                ledger = self._ledger(log, log_id, properties)
                piece, rest = _cut(rest, self._room(ledger))
                try:
                    future = ledger.handle.append_run_future(piece.payloads, piece.offsets)
                except BkError:
                    self._broken.add(ledger.ledger_id)
                    raise
            ledger.bytes += piece.bytes
            ledger.entries += piece.count
            self._in_flight.append(_InFlight(future, log, ledger.ledger_id, piece.count, piece.rows, piece.bytes, piece.rows_per_entry))
            self._in_flight_bytes += piece.bytes
            while self._in_flight_bytes > self._options.max_in_flight_bytes:
                self._settle_oldest()

    def finish(self, *, keep: bool = True) -> dict[str, tuple[tuple[SegmentRange, ...], tuple[int, ...]]]:
        """Return log -> (ranges in the order of its rows, ledgers that were closed). Without ``keep`` no ledger stays open for
        later tasks."""
        self._settle_all()
        for ledger in [kept for kept in _kept.values() if kept.ledger_id in self._checked and not keep]:
            self._retire(ledger)
        return {log: (tuple(done.ranges), tuple(done.closed)) for log, done in self._logs.items()}

    def discard(self) -> None:
        """Delete the ledgers that the task opened. Never raises: the janitor cleans up the rest."""
        while self._in_flight:
            with suppress(Exception):
                self._settle_oldest()
        for ledger in [kept for kept in _kept.values() if kept.ledger_id in self._broken]:
            _drop(ledger)
            _close(ledger, forced=True)
        for ledger in self._opened:
            _drop(ledger)
            withdraw(self._client, ledger.log, ledger.handle)

    # --- acknowledgements ------------------------------------------------------------------------------------------

    def _settle_all(self) -> None:
        while self._in_flight:
            self._settle_oldest()

    def _settle_oldest(self) -> None:
        sent = self._in_flight.popleft()
        self._in_flight_bytes -= sent.bytes
        with _named(sent.log):
            try:
                last = sent.future.result(0 if sent.ledger_id in self._broken else ACK_TIMEOUT_S)
            except BaseException as error:
                self._broken.add(sent.ledger_id)
                if isinstance(error, TimeoutError) and not isinstance(error, BkError):
                    what = f"ledger {sent.ledger_id}: {sent.count} entries stayed unacknowledged for {ACK_TIMEOUT_S:.0f} s"
                    raise OperationTimeoutError(what, ledger=sent.ledger_id) from None
                raise
        first = last - sent.count + 1
        found = SegmentRange(sent.ledger_id, first, last, sent.rows, sent.bytes, sent.rows_per_entry)
        note_range(self._of(sent.log).ranges, found)

    def _of(self, log: str) -> _Appended:
        return self._logs.setdefault(log, _Appended())

    # --- ledgers ---------------------------------------------------------------------------------------------------

    def _ledger(self, log: str, log_id: str, properties: LogProperties) -> DataLedger:
        p, o = properties, self._options
        quorums = (p.ensemble_size, p.write_quorum_size, p.ack_quorum_size, p.digest_type, p.guaranteed_write_quorum)
        key = (o.uri, o.protocol, log, log_id, o.secret, quorums)
        if key not in self._begun:
            self._begun.add(key)
            for other in [kept for kept in _kept.values() if kept.key[:3] == key[:3] and kept.key[3] != log_id]:
                self._retire(other)  # it has the same name, but is from before the log was created, or deleted and created again
        ledger = _kept.get(key)
        if ledger is not None and self._is_worn(ledger):
            self._retire(ledger)
            ledger = None
        if ledger is not None and ledger.ledger_id not in self._checked:
            if still_usable(self._client, log, ledger.ledger_id, self._owner):
                self._checked.add(ledger.ledger_id)
            else:
                self._retire(ledger, forced=True)
                ledger = None
        if ledger is None:
            ledger = self._open(key, log, properties)
        _kept.move_to_end(key)
        return ledger

    def _is_worn(self, ledger: DataLedger) -> bool:
        o = self._options
        aged = (time.monotonic() - ledger.opened_s) * 1000 >= o.roll_max_time_ms
        return aged or ledger.bytes >= o.roll_max_bytes or self._room(ledger) == 0

    def _room(self, ledger: DataLedger) -> int | None:
        most = self._options.roll_max_entries
        return None if most is None else max(0, most - ledger.entries)

    def _open(self, key: Key, log: str, p: LogProperties) -> DataLedger:
        """Open a ledger. The intent is stored before the ledger exists, so that a janitor finds whatever a killed worker leaves behind."""
        while len(_kept) >= self._options.max_open_ledgers:
            self._retire(next(iter(_kept.values())))
        while True:
            custom = {"application": b"bk_spark"}
            handle = create_intended(
                self._client, log, p, log_id=key[3], query_id=self._owner, password=self._options.secret, custom=custom
            )
            if still_usable(self._client, log, handle.ledger_id, self._owner):
                break
            withdraw(self._client, log, handle)  # a janitor took the intent away in between
        ledger = _kept[key] = DataLedger(key, log, handle, time.monotonic())
        self._opened.append(ledger)
        self._checked.add(ledger.ledger_id)
        return ledger

    def _retire(self, ledger: DataLedger, *, forced: bool = False) -> None:
        """Close a ledger for good. Everything sent to it is acknowledged before, and settled later in its turn."""
        _drop(ledger)
        if _close(ledger, forced=forced):
            self._of(ledger.log).closed.append(ledger.ledger_id)


@contextmanager
def _named(log: str) -> Iterator[None]:
    """Have an error of one of its ledgers name the log, too: who writes rows to a log knows nothing of its ledgers."""
    try:
        yield
    except BkError as error:
        if "log" in error.context or repr(log) in error.args[0]:
            raise
        told = error.retold(f"log {log!r}: {error.args[0]}")
        told.context["log"] = log
        raise told from error.__cause__


def _drop(ledger: DataLedger) -> None:
    if _kept.get(ledger.key) is ledger:
        del _kept[ledger.key]


def _close(ledger: DataLedger, *, forced: bool = False) -> bool:
    """Return True if the ledger is closed now. A failure does no harm: unacknowledged runs report it themselves, and the janitor closes the
    ledger."""
    try:
        ledger.handle.close(forced=forced)
    except BkError:
        return False
    return True


# --- runs and ranges ------------------------------------------------------------------------------------------------


def _cut(run: PackedEntries, room: int | None) -> tuple[PackedEntries, PackedEntries | None]:
    """Return the first ``room`` entries (None: all) and the rest. Every entry but the last of the run is full, so rows are known."""
    if room is None or run.count <= room:
        return run, None
    edge = run.offsets[room]
    rows = room * run.rows_per_entry
    rest = array("q", (offset - edge for offset in run.offsets[room:]))
    first = PackedEntries(run.payloads[:edge], run.offsets[: room + 1], rows, run.rows_per_entry)
    return first, PackedEntries(run.payloads[edge:], rest, run.rows - rows, run.rows_per_entry)
