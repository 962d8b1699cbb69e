"""Reading a log in order, and waiting for more of it. Readers fence nobody and write nothing (LOG-17)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

from bk_core.client.history import read_log
from bk_core.client.list_store import LogClient, log_path
from bk_core.client.resuming import Following
from bk_core.errors import LogDataLossError, MetadataUnavailableError, NoSuchEntryError, NoSuchLedgerError
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import Segment
from bk_core.protocol.log.view import LogView
from bk_core.protocol.session.outage import Outage

OUTAGE_LOOK_S = 0.1
STOP_LOOK_S = 0.5  # how often ``follow`` looks at its stop event while nothing comes
WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class LogRun:
    """Consecutive entries of one segment. ``offsets``: int64 view, count + 1, into ``values``."""

    segment: Segment
    first_entry: int
    count: int
    values: bytes | bytearray | memoryview
    offsets: memoryview

    def payloads(self) -> list[bytes]:
        return [bytes(self.values[self.offsets[i] : self.offsets[i + 1]]) for i in range(self.count)]

    @property
    def end_position(self) -> Position:
        """Where to go on behind this run."""
        return Position(self.segment.seq, self.first_entry + self.count)


class LogReader:
    """Reads a log in order and never fences (LOG-15, LOG-17). ``position`` is the next entry to read. Calls from one thread at a time.

    To follow a log: ``follow``, or ``read``, then ``wait``, then ``read`` again. ``close`` it, or use it with ``with``. Entries are read
    whole: the ``row`` of a position plays no part.
    """

    def __init__(self, client: LogClient, name: str, *, start: Position | None = None, password: bytes = b"") -> None:
        """Starts at ``start``, by default at the first entry that is left. NoSuchLogError; LogDataLossError for a trimmed position."""
        self.name = name
        self._client = client
        self._password = password
        self._waited: Any = None  # the handle that saw something new; another one might not know of it yet (LC-2)
        self._changed = threading.Event()
        self._watching = False
        self._following = False
        config = getattr(client, "config", None)
        self._lost: MetadataUnavailableError | None = None  # the last failure of an outage that is not known to be over
        self._outage = Outage(int((config.operation_timeout_s if config is not None else WAIT_S) * 1e9))
        self._known: LogView | None = None  # while the list is watched: as it was read after the last change
        self._rows_before: tuple[int, int] | None = None  # a live segment, and the log's rows before it
        listed = read_log(client, name)
        self._log_id = listed.log_id
        self.position = listed.first_position if start is None else listed.normal(start)

    # --- reading -------------------------------------------------------------------------------------------------------

    def read(self) -> Iterator[LogRun]:
        """Everything there is now: closed ranges, then a live segment up to its LAC. Ends there; call again for more.

        LogDataLossError if the log was recreated or trimmed behind the position (LOG-13), if a ledger that it lists does not exist, and,
        behind the entries that are there, if a ledger was closed below what the list says.
        """
        listed = self._list()
        self.position = self._normal(listed)
        while self.position.seq < listed.next_seq:
            segment = listed.segment(self.position.seq)
            self._remember(listed, segment)
            handle = self._open(segment)
            closed = True
            try:
                last, closed = self._bound(segment, handle)
                yield from self._segment_runs(handle, segment, last)
            finally:
                self._put_back(handle, keep=not closed and self._following)
            if not closed:  # a successor says nothing about where this one ends: wait for CLOSED (LOG-15)
                return
            if segment.live:
                self._pass(segment, last)
            else:
                self.position = listed.normal(Position(segment.seq, last + 1))

    def _list(self) -> LogView:
        if self._watching:
            if self._known is not None and not self._changed.is_set():
                return self._known
            self._changed.clear()  # before the list is read, so that no change falls between
        listed = read_log(self._client, self.name)
        if listed.log_id != self._log_id:
            message = (
                f"log {self.name!r} was deleted and created again: what this reader had not read of the old one, from segment "
                f"{self.position.seq} entry {self.position.entry} on, is lost"
            )
            raise LogDataLossError(message, log=self.name)
        self._known = listed
        return listed

    def _normal(self, listed: LogView) -> Position:
        """LOG-13. A live segment read to its end may be closed and trimmed before this reader looks again: then nothing is lost."""
        position, first = self.position, listed.listed.trimmed_seq
        if position.seq >= first:
            return listed.normal(position)
        if self._rows_before is not None and self._rows_before[0] == position.seq:
            rows = self._rows_before[1] + position.entry
            if listed.listed.trimmed_rows == rows:
                return listed.first_position
        message = (
            f"log {self.name!r}: segments {position.seq}..{first - 1} were trimmed before this reader had read them "
            f"(it was at entry {position.entry} of segment {position.seq}); the log now starts at segment {first}"
        )
        raise LogDataLossError(message, log=self.name, seq=position.seq)

    def _remember(self, listed: LogView, segment: Segment) -> None:
        """The rows before a live segment. A live one before it has no rows in the list yet: then only who read it knows them."""
        if not segment.live or (self._rows_before is not None and self._rows_before[0] == segment.seq):
            return
        before = [one for one in listed.listed.live_segments if one.seq < segment.seq]
        self._rows_before = None if before else (segment.seq, listed.counts_before(segment.first_position())[0])

    def _pass(self, segment: Segment, last: int) -> None:
        """Go on behind a segment that was listed as live and whose ledger is CLOSED at ``last``, whatever the list learns meanwhile."""
        if self._rows_before is not None:
            self._rows_before = (segment.seq + 1, self._rows_before[1] + last + 1)
        self.position = Position(segment.seq + 1)

    def _open(self, segment: Segment) -> Any:
        waited, self._waited = self._waited, None
        if waited is not None:
            if waited.ledger_id == segment.ledger_id:
                return waited
            waited.close()
        try:
            return self._client.open_ledger(segment.ledger_id, password=self._password)
        except NoSuchLedgerError:
            self._known = None
            self._list().segment(segment.seq)  # LOG-13: it may have been trimmed a moment ago, which has words of its own
            message = f"log {self.name!r}: ledger {segment.ledger_id} of segment {segment.seq} does not exist; its entries are lost"
            raise LogDataLossError(message, log=self.name, ledger=segment.ledger_id) from None

    def _put_back(self, handle: Any, *, keep: bool) -> None:
        if keep:
            self._waited = handle
        else:
            handle.close()

    def _bound(self, segment: Segment, handle: Any) -> tuple[int, bool]:
        """The last entry to read now, and whether there is no more of this segment behind it."""
        if segment.last_entry is not None:
            return segment.last_entry, True
        if handle.is_closed:
            return int(handle.last_add_confirmed), True
        if self._following and handle.last_add_confirmed >= self.position.entry:  # a long poll, or opening it, has just told
            return int(handle.last_add_confirmed), False
        return int(handle.read_last_add_confirmed()), False

    def _segment_runs(self, handle: Any, segment: Segment, last: int) -> Iterator[LogRun]:
        """What the list says was acknowledged when it was listed; no LAC has to know of it, but no ledger may end before it (RD-1)."""
        first = max(self.position.entry, segment.first_entry)
        there = min(last, handle.last_add_confirmed) if handle.is_closed else last
        if first <= there:
            try:
                for run in handle.read_runs(first, there, unchecked_bound=not segment.live):
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

    def follow(self, stop: threading.Event | None = None) -> Following[LogRun]:
        """Everything from ``position`` on, and what comes, as it comes, until ``stop`` is set (seen within half a second) or for ever.

        An entry is here one long-poll round trip after its acknowledgement (LC-5). Raises what ``read`` raises, and NoSuchLogError when
        the log is deleted. The list is read once per change of it, a live ledger stays open; both end with the iteration.

        An outage of the metadata store is borne for the client's ``operation_timeout_s`` (SES-7), then MetadataUnavailableError is raised.
        After any error the iteration may be asked for its next run again: it goes on where it was.
        """
        return Following(lambda: self._follow(stop))

    def _follow(self, stop: threading.Event | None) -> Iterator[LogRun]:
        wait_s = WAIT_S if stop is None else STOP_LOOK_S
        while stop is None or not stop.is_set():
            try:
                with self._watched(follow=True):
                    while stop is None or not stop.is_set():
                        yield from self.read()
                        self._store_answered()
                        while not self.wait(wait_s) and (stop is None or not stop.is_set()):
                            pass  # nothing to read, and no need to ask the metadata store anything
            except MetadataUnavailableError as error:
                while not self._outlast(error, time.monotonic() + wait_s) and (stop is None or not stop.is_set()):
                    pass

    def wait(self, timeout_s: float) -> bool:
        """Wait until there may be something at ``position``; False after ``timeout_s``.

        A live segment is followed by long polls (LC-5), the end of the log by a watch of the list (LOG-16): nothing is asked for twice.
        An outage of the metadata store is waited out, which may take ``metadata_timeout_s`` longer than ``timeout_s``;
        MetadataUnavailableError when it has lasted for the client's ``operation_timeout_s`` (SES-7).
        """
        deadline = time.monotonic() + timeout_s
        lost = None if self._client.store.is_connected() else self._lost
        while lost is None or self._outlast(lost, deadline):
            try:
                with self._watched():
                    return self._wait_until(deadline)
            except MetadataUnavailableError as error:
                lost = self._lost = error
        return False

    def _wait_until(self, deadline: float) -> bool:
        while not self._look(deadline):
            self._store_answered()
            if time.monotonic() >= deadline:
                return False
        self._store_answered()
        return True

    def _store_answered(self) -> None:
        self._lost = None
        self._outage.answered()

    def _outlast(self, error: MetadataUnavailableError, until: float) -> bool:
        """SES-7: wait for the metadata store; False when it is not back by ``until``. Raises ``error`` when it was away for too long."""
        while True:
            if not self._outage.failed(time.monotonic_ns()):
                raise error
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, OUTAGE_LOOK_S))
            if self._client.store.is_connected():
                return True

    @contextmanager
    def _watched(self, *, follow: bool = False) -> Iterator[None]:
        """Meanwhile the list is read only when it has changed; with ``follow`` a live ledger stays open between reads."""
        if self._watching:
            yield
            return
        self._known = None
        watch = self._client.store.watch(log_path(self.name), self._changed.set)
        self._watching, self._following = True, follow
        try:
            yield
        finally:
            self._watching = self._following = False
            watch.cancel()
            if follow:
                self.close()

    def _look(self, deadline: float) -> bool:
        """Whether there may be something at the position. Where there is not, one wait for what could change that."""
        listed = self._list()
        self.position = position = self._normal(listed)
        if position < listed.end_position:
            return True
        left = max(0.0, deadline - time.monotonic())
        if position.seq < listed.next_seq:
            return self._wait_for_entry(listed.segment(position.seq), position.entry, left)
        self._changed.wait(left)
        return False

    def _wait_for_entry(self, segment: Segment, entry_id: int, timeout_s: float) -> bool:
        """LC-5, LC-7: an entry, or the end of the ledger, behind which the log goes on. The deletion of the log shows in its list."""
        handle = self._open(segment)
        keep = False
        try:
            found = bool(handle.wait_for(entry_id, timeout_s) or handle.is_closed)
            keep = found or self._following
            return found
        except NoSuchLedgerError:
            self._known = None
            return False
        finally:
            self._put_back(handle, keep=keep)

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
