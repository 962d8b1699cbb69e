"""Reading a log in order, and waiting for more of it. Readers fence nobody and write nothing (LOG-17)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from bk_core.client.logs import LogClient, log_path, read_ledger_list
from bk_core.errors import LogDataLossError, NoSuchEntryError, NoSuchLedgerError
from bk_core.protocol.log.ledger_list import LedgerList, Segment
from bk_core.protocol.log.position import Position


@dataclass(frozen=True, slots=True)
class LogRun:
    """Consecutive entries of one segment. ``offsets``: int64 view, count + 1, into ``values``."""

    segment: Segment
    first_entry: int
    count: int
    values: bytes
    offsets: memoryview

    def payloads(self) -> list[bytes]:
        return [self.values[self.offsets[i] : self.offsets[i + 1]] for i in range(self.count)]


class LogReader:
    """Reads a log in order and never fences (LOG-15, LOG-17). ``position`` is the next entry to read. Calls from one thread at a time.

    To follow a log: ``read``, then ``wait``, then ``read`` again. ``close`` it, or use it with ``with``.
    """

    def __init__(self, client: LogClient, name: str, *, start: Position | None = None, password: bytes = b"") -> None:
        self.name = name
        self._client = client
        self._password = password
        self._waited: Any = None  # the handle that saw something new; another one might not know of it yet (LC-2)
        listed = read_ledger_list(client, name)
        self._log_id = listed.log_id
        self.position = listed.first_position if start is None else listed.normal(start)

    # --- reading -------------------------------------------------------------------------------------------------------

    def read(self, bytes_max: int = 8 << 20) -> Iterator[LogRun]:
        """Everything there is now: closed ranges, then a live segment up to its LAC. Ends there; call again for more.

        LogDataLossError if the log was recreated or trimmed behind the position (LOG-13), if a ledger that it lists does not exist, and,
        behind the entries that are there, if a ledger was closed below what the list says.
        """
        listed = self._list()
        self.position = listed.normal(self.position)
        while self.position.seq < listed.next_seq:
            segment = listed.segment(self.position.seq)
            last = segment.last_entry
            with self._open(segment) as handle:
                if last is None:
                    closed = bool(handle.is_closed)
                    last = handle.last_add_confirmed if closed else handle.read_last_add_confirmed()
                else:
                    closed = True
                yield from self._segment_runs(handle, segment, last, bytes_max)
            if not closed:  # a successor says nothing about where this one ends: wait for CLOSED (LOG-15)
                return
            self.position = Position(segment.seq + 1) if segment.live else listed.normal(Position(segment.seq, last + 1))

    def _list(self) -> LedgerList:
        listed = read_ledger_list(self._client, self.name)
        if listed.log_id != self._log_id:
            raise LogDataLossError(f"log {self.name!r} was deleted and created again", log=self.name)
        return listed

    def _open(self, segment: Segment) -> Any:
        waited, self._waited = self._waited, None
        if waited is not None:
            if waited.ledger_id == segment.ledger_id:
                return waited
            waited.close()
        try:
            return self._client.open_ledger(segment.ledger_id, password=self._password)
        except NoSuchLedgerError:
            self._list().segment(segment.seq)  # LOG-13: it may have been trimmed a moment ago, which has words of its own
            message = f"log {self.name!r}: ledger {segment.ledger_id} of segment {segment.seq} does not exist; its entries are lost"
            raise LogDataLossError(message, log=self.name, ledger=segment.ledger_id) from None

    def _segment_runs(self, handle: Any, segment: Segment, last: int, bytes_max: int) -> Iterator[LogRun]:
        """What the list says was acknowledged when it was listed; no LAC has to know of it, but no ledger may end before it (RD-1)."""
        first = max(self.position.entry, segment.first_entry)
        there = min(last, handle.last_add_confirmed) if handle.is_closed else last
        if first <= there:
            try:
                for run in handle.read_runs(first, there, bytes_max=bytes_max, unchecked_bound=not segment.live):
                    self.position = Position(segment.seq, run.first_entry_id + run.count)
                    yield LogRun(segment, run.first_entry_id, run.count, run.values, run.offsets)
            except NoSuchEntryError:
                if not _ends_before(handle, last):
                    raise
        if _ends_before(handle, last) and first <= last:
            raise self._cut_off(segment, max(self.position.entry, first), last, handle.last_add_confirmed)

    def _cut_off(self, segment: Segment, first: int, last: int, end: int) -> LogDataLossError:
        message = (
            f"log {self.name!r}: entries {first}..{last} of ledger {segment.ledger_id} (segment {segment.seq}) are lost: "
            f"the ledger was closed at entry {end}"
        )
        return LogDataLossError(message, log=self.name, ledger=segment.ledger_id, first_entry=first, last_entry=last)

    # --- waiting ---------------------------------------------------------------------------------------------------------

    def wait(self, timeout_s: float) -> bool:
        """Wait until there may be something at ``position``; False after ``timeout_s``.

        A live segment is followed by long polls (LC-5), the end of the log by a watch of the list (LOG-16): nothing is asked for twice.
        """
        deadline = time.monotonic() + timeout_s
        changed = threading.Event()
        watch = self._client.store.watch(log_path(self.name), changed.set)
        try:
            while not self._look(deadline, changed.wait):
                changed.clear()  # before the list is read again, so that no change falls between
                if time.monotonic() >= deadline:
                    return False
            return True
        finally:
            watch.cancel()

    def _look(self, deadline: float, await_change: Callable[[float], object]) -> bool:
        """Whether there may be something at the position. Where there is not, one wait for what could change that."""
        listed = self._list()
        position = listed.normal(self.position)
        if position < listed.end_position:
            return True
        left = max(0.0, deadline - time.monotonic())
        if position.seq < listed.next_seq:
            return self._follow(listed.segment(position.seq), position.entry, left)
        await_change(left)
        return False

    def _follow(self, segment: Segment, entry_id: int, timeout_s: float) -> bool:
        """LC-5, LC-7: an entry, or the end of the ledger, behind which the log goes on. The deletion of the log shows in its list."""
        handle = self._open(segment)
        try:
            if handle.wait_for(entry_id, timeout_s) or handle.is_closed:
                self._waited, handle = handle, None
                return True
        except NoSuchLedgerError:
            return False
        finally:
            if handle is not None:
                handle.close()
        return False

    def close(self) -> None:
        """Idempotent; a reader that was closed may be used again."""
        waited, self._waited = self._waited, None
        if waited is not None:
            waited.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ends_before(handle: Any, entry_id: int) -> bool:
    """Whether the ledger is CLOSED below an entry."""
    return bool(handle.is_closed) and handle.last_add_confirmed < entry_id
