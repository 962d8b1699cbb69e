"""The driver's knowledge of the logs of a stream: lists kept fresh by watches, live segments followed by long polls.

The stream reader has one thread, which Spark blocks on (spark-connectors.md 5.14, no. 19), so reading is done beside it: a watch that fires
wakes a thread which reads that list again, and each followed ledger has a thread in a long poll. A trigger looks at what is there; it reads
itself only what changed a moment ago. Nothing here fences, except where the user wrote ``openLedgers=recover``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

from bk_core.background import WHEN_WOKEN, BackgroundLoop, WorkerPool
from bk_core.client.identity import recover_own
from bk_core.client.log.history import read_log
from bk_core.client.log.list_store import log_path, now_ms
from bk_core.client.log.lists import list_logs
from bk_core.client.repeating import while_it_may_pass
from bk_core.errors import BkError, ClientClosedError, NoSuchLedgerError, NoSuchLogError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log import reading
from bk_core.protocol.log.offset import LogOffset
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import Segment
from bk_core.protocol.log.view import LogView
from bk_core.threads import Flag
from bk_spark.options.grammar import matching
from bk_spark.options.table import Options
from bk_spark.source.ledger_checks import lost_live
from bk_spark.source.measuring import EntryLengths, Measured

T = TypeVar("T")
RETRY_S = 60.0
RELIST_S = 10.0  # a list this old is read again, beside the triggers, in case a watch was lost
_RELIST_PACE_S = 0.02  # the average time between two reads of this kind, if there are many lists
_READERS = 8  # the number of lists that are read at a time
DISCOVER_S = 1.0  # the time between two matches of logPattern with the existing logs
_POLL_S = 30.0
_log = logging.getLogger("bk_spark.stream")


def retried(call: Callable[[], T], timeout_s: float = RETRY_S) -> T:
    """Repeat a call that only reads while it fails in a way that may pass, because nobody else repeats a call of the driver
    (spark-connectors.md 5.13)."""
    told = partial(_log.warning, "trying again: %s")
    return while_it_may_pass(call, lambda error: error.retriable, time.monotonic() + timeout_s, told=told)


@dataclass(frozen=True)
class Snapshot:
    """One log at one moment. ``end`` is where its readable entries end: the last committed one, or the LAC of a live segment.

    A live segment that is followed is closed in ``view`` at what is known to be acknowledged, so that its rows can be counted. ``end`` then
    lies inside that segment, where it stays valid when the segment grows.
    """

    name: str
    view: LogView
    end: Position
    measured: Measured

    @property
    def log_id(self) -> str:
        return self.view.log_id

    @cached_property
    def first(self) -> Position:
        return self.spelled(self.view.first_position)

    def spelled(self, position: Position) -> Position:
        """Return the one spelling of a position, never behind ``end``: the end of a live segment so far is not the start of the next."""
        return min(self.view.normal(position), self.end)

    def offset_at(self, position: Position) -> LogOffset:
        rows, size = self.measured.counts_before(position)
        return LogOffset(self.log_id, position, rows, size)


@dataclass(frozen=True, slots=True)
class LiveEnd:
    """The state of a ledger that a list calls live: its last acknowledged entry (-1: none), and True if it is CLOSED there."""

    last: int
    closed: bool


class LiveTail:
    """Follows the end of one ledger without fencing it (``openLedgers=lac``). A daemon thread waits in long polls (LC-5)."""

    def __init__(self, client: Any, ledger_id: int, password: bytes) -> None:
        self.ledger_id = ledger_id
        self._handle = client.open_ledger(ledger_id, password=password)
        self._loop = BackgroundLoop(f"bk-tail-{ledger_id}", self._poll)
        self._loop.start()

    def _poll(self) -> float | None:
        """Wait in one long poll."""
        if self._handle.is_closed:
            return None
        try:
            self._handle.wait_for(self._handle.last_add_confirmed + 1, _POLL_S)
        except (ClientClosedError, NoSuchLedgerError):
            return None
        except BkError as error:
            _log.warning("following ledger %d: %s; trying again", self.ledger_id, error)
            return 1.0
        return 0.0

    def look(self, fresh: bool = False) -> LiveEnd:
        """Return the state that the long poll has brought; ``fresh`` asks the bookies first."""
        if fresh:
            retried(self._handle.read_last_add_confirmed)
        # this comes before the LAC, so that a ledger that closes in between is seen as open once more
        closed = bool(self._handle.is_closed)
        return LiveEnd(self._handle.last_add_confirmed, closed)

    def close(self) -> None:
        self._loop.stop()
        self._handle.close()


class FollowedLog:
    """One log: its list, read again after a change, and the tails of its live segments."""

    def __init__(self, client: Any, name: str, options: Options, wake: Callable[[FollowedLog], None]) -> None:
        self.name = name
        self._client = client
        self._options = options
        self._wake = wake
        self._lock = threading.RLock()
        self._stale = Flag()
        self._stale.set()
        self._old = False
        self._read_at = 0.0
        self._view: LogView | None = None
        self._tails: dict[int, LiveTail] = {}
        self._recovered: dict[int, LiveEnd] = {}
        self._skipped: dict[int, tuple[float, LiveEnd | None]] = {}
        self._quiet: tuple[LogView, Snapshot] | None = None
        self._watch = client.store.watch(log_path(name), self._changed)

    def _changed(self) -> None:
        """Note a change. The watch calls this from any thread, so it must not wait."""
        self._stale.set()
        self._wake(self)

    def relist(self, age_s: float) -> None:
        """Have the list read again beside the trigger if it is older than that. The trigger uses what the watch has told."""
        if not self._old and time.monotonic() - self._read_at > age_s:
            self._old = True
            self._wake(self)

    @property
    def is_due(self) -> bool:
        """Return True if ``refresh`` has to read."""
        return self._view is None or self._stale.is_set()

    def refresh(self, fresh: bool = False) -> LogView:
        """Return the list as of the last known change. Raises NoSuchLogError if the log is gone."""
        with self._lock:
            if fresh or self.is_due:
                self._stale.clear()  # this comes before the read, so that no change is missed
                try:
                    self._view = retried(lambda: read_log(self._client, self.name))
                except BaseException:
                    self._view = None
                    raise
                finally:
                    self._read_at, self._old = time.monotonic(), False
            assert self._view is not None
            return self._view

    def refresh_if_due(self) -> None:
        """Read the list beside the trigger if it has changed or is old."""
        if self._stale.is_set() or self._old:
            self.refresh(fresh=True)

    def snapshot(self, lengths: EntryLengths, fresh: bool = False, reached: Position | None = None, listed: bool = False) -> Snapshot:
        """Return a snapshot. ``reached`` is a position that an offset named, so everything before it is known to be acknowledged, whatever
        LAC is known here. ``listed`` means that the list was read for this trigger already."""
        with self._lock:
            view = self.refresh(fresh and not listed)
            try:
                return self._with_live(view, lengths, fresh, reached)
            except NoSuchLedgerError as error:  # the log may have been trimmed or deleted a moment ago, which has its own message
                again = self.refresh(fresh=True)
                if again.log_id == view.log_id and again.live_segments == view.live_segments:
                    raise lost_live(self.name, int(error.context["ledger"])) from None
                return self._with_live(again, lengths, fresh, reached)

    def _with_live(self, view: LogView, lengths: EntryLengths, fresh: bool, reached: Position | None) -> Snapshot:
        """Return the snapshot with live segments. For an unchanged list without any it is the same snapshot, which need not be counted
        through again."""
        if self._quiet is not None and self._quiet[0] is view:
            return self._quiet[1]
        listed, end = view.listed, view.end_position
        for segment in view.live_segments:
            known = self._live_end(segment.ledger_id, fresh)
            if reached is not None:
                known = self._at_least(known, segment, reached)
            if known is None:
                break
            if known.last >= 0 or known.closed:
                size = lengths.up_to(segment.ledger_id, known.last) or 0
                listed = listed.close_live(segment.ledger_id, known.last, size, now_ms())
            end = Position(segment.seq + 1) if known.closed else Position(segment.seq, known.last + 1)
            if not reading.may_move_on(segment, closed=known.closed):
                break
        self._forget_all_but({segment.ledger_id for segment in view.live_segments})
        seen = copy(view)
        seen.listed = listed
        found = Snapshot(self.name, seen, end, Measured(seen, lengths))
        self._quiet = None if view.live_segments else (view, found)
        return found

    def _live_end(self, ledger_id: int, fresh: bool) -> LiveEnd | None:
        if self._options.open_ledgers == "skip":
            return self._closed_end(ledger_id, fresh)
        if self._options.open_ledgers == "recover":
            if ledger_id not in self._recovered:
                with retried(lambda: self._recover(ledger_id)) as ended:
                    self._recovered[ledger_id] = LiveEnd(ended.last_add_confirmed, True)
                _log.warning("ledger %d of log %s was fenced and recovered, as openLedgers=recover asks", ledger_id, self.name)
            return self._recovered[ledger_id]
        tail = self._tails.get(ledger_id)
        if tail is None:
            tail = self._tails[ledger_id] = retried(lambda: LiveTail(self._client, ledger_id, self._options.secret))
        return tail.look(fresh)

    def _recover(self, ledger_id: int) -> Any:
        """Recover a ledger and return its reader. Raises ForeignLedgerError for a ledger that is not of this log, before it is fenced
        (OWN-6)."""
        assert self._view is not None
        listed = self._view.listed
        return recover_own(self._client, self.name, listed.log_id, ledger_id, self._options.secret, listed.adopted)

    def _closed_end(self, ledger_id: int, fresh: bool) -> LiveEnd | None:
        """Return the end of a ledger that is CLOSED although the list calls it live, because its writer died and somebody recovered it.
        This is rare, so it is seldom asked."""
        asked_at, known = self._skipped.get(ledger_id, (None, None))
        if known is None and (fresh or asked_at is None or time.monotonic() - asked_at > RELIST_S):
            metadata = retried(lambda: self._client.ledger_metadata(ledger_id))
            known = LiveEnd(metadata.last_entry_id, True) if metadata.state is LedgerState.CLOSED else None
            self._skipped[ledger_id] = (time.monotonic(), known)
        return known

    def _at_least(self, known: LiveEnd | None, segment: Segment, reached: Position) -> LiveEnd | None:
        """Return at least the end that an offset inside a live segment, or behind it, proves: more was known when the offset was made than
        now."""
        if (known is not None and known.closed) or segment.seq > reached.seq:
            return known
        if segment.seq < reached.seq:  # it was passed, so its ledger is CLOSED, though the list does not say so yet
            return self._closed_end(segment.ledger_id, True) or known
        return LiveEnd(max(known.last if known is not None else -1, reached.entry - 1), False)

    def _forget_all_but(self, live: Collection[int]) -> None:
        for ledger_id in [i for i in self._tails if i not in live]:
            self._tails.pop(ledger_id).close()
        for known in (self._recovered, self._skipped):
            for ledger_id in [i for i in known if i not in live]:
                known.pop(ledger_id)

    def close(self) -> None:
        self._watch.cancel()
        self._forget_all_but(())


class SourceLogs:
    """All logs of a source, by name. ``log`` and ``logs`` name them, ``logPattern`` finds them again and again."""

    def __init__(self, client: Any, options: Options) -> None:
        self._client = client
        self._options = options
        self._lengths = EntryLengths(client)
        self._followed: dict[str, FollowedLog] = {}
        self._names: tuple[str, ...] = ()
        self._named_at: float | None = None
        self._missing_at: dict[str, float] = {}
        self._lock = threading.Lock()
        self._due: deque[FollowedLog] = deque()
        self._refreshing = BackgroundLoop("bk-lists", self._refresh)
        self._refreshing.start()

    def _refresh(self) -> float:
        """Read changed lists beside the thread that Spark waits for. A failure here is repeated there, where it is reported."""
        while self._due and not self._refreshing.is_stopped:
            log = self._due.popleft()
            try:
                log.refresh_if_due()
            except BkError as error:
                _log.debug("log %s: %s", log.name, error)
        return WHEN_WOKEN

    def _look_at(self, log: FollowedLog) -> None:
        """Have a log looked at, from any thread."""
        self._due.append(log)
        self._refreshing.wake()

    def names(self, fresh: bool = False) -> tuple[str, ...]:
        pattern = self._options.log_pattern
        if pattern is None:
            return self._options.log_names()
        now = time.monotonic()
        if self._named_at is None or fresh or now - self._named_at > DISCOVER_S:
            self._names = matching(pattern, retried(lambda: list_logs(self._client)))
            self._named_at = now
        return self._names

    def snapshots(self, fresh: bool = False, reached: Mapping[str, Position] | None = None) -> dict[str, Snapshot]:
        """Return snapshots of the logs that exist, sorted by name. With ``fresh`` they are read now, whatever the watches have told."""
        found: dict[str, Snapshot] = {}
        names = sorted(name for name in self.names(fresh) if fresh or not self._is_awaited(name))
        age_s = max(RELIST_S, _RELIST_PACE_S * len(names))
        listed = self._listed(names, fresh)
        for name in names:
            try:
                log = self._of(name)
                found[name] = log.snapshot(self._lengths, fresh, (reached or {}).get(name), name in listed)
                log.relist(age_s)
            except NoSuchLogError:
                self._forget(name)
                self._missing_at[name] = time.monotonic()
        return found

    def _is_awaited(self, name: str) -> bool:
        """Return True for a log that did not exist a moment ago (``waitForLog``), which is not asked for in every trigger."""
        return name not in self._followed and time.monotonic() - self._missing_at.get(name, -DISCOVER_S) < DISCOVER_S

    def _listed(self, names: Sequence[str], fresh: bool) -> frozenset[str]:
        """Read the lists of several logs that are due at the same time, and return the names of those that exist."""
        due = [name for name in names if fresh or name not in self._followed or self._followed[name].is_due]
        if len(due) < 2:
            return frozenset()
        pool = WorkerPool("bk-list-reader", min(_READERS, len(due)))
        try:
            answers = {name: pool.call(partial(self._read, name, fresh)) for name in due}
            return frozenset([name for name, answer in answers.items() if answer.result()])
        finally:
            pool.close()

    def _read(self, name: str, fresh: bool) -> bool:
        try:
            self._of(name).refresh(fresh)
        except NoSuchLogError:
            return False
        return True

    def once(self, name: str) -> dict[str, Snapshot]:
        """Return the snapshot of one log, of the source or not; {} if it does not exist."""
        try:
            return {name: self._of(name).snapshot(self._lengths, True)}
        except NoSuchLogError:
            return {}
        finally:
            self._forget(name)

    def _of(self, name: str) -> FollowedLog:
        log = self._followed.get(name)
        if log is None:
            log = retried(lambda: FollowedLog(self._client, name, self._options, self._look_at))
            with self._lock:
                self._followed[name] = log
        return log

    def _forget(self, name: str) -> None:
        with self._lock:
            log = self._followed.pop(name, None)
        if log is not None:
            log.close()

    def close(self) -> None:
        """End all threads and watches."""
        self._refreshing.stop()
        for name in list(self._followed):
            self._forget(name)
