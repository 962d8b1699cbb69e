"""Bounds the entries under way of all ledgers of a client together.

An Apache bookie queues 10,000 adds a thread. It answers TOO_MANY_REQUESTS to the next one, and some releases close the connection (4.18
does: wire-protocol.md 8.2), so that everything on it counts as failed. The bookie does not distinguish ledgers, so the bound is on
everything that one client writes, and each ledger has its share of it.
"""

from __future__ import annotations

import time
from _thread import RLock, allocate_lock
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count as numbers
from typing import Any
from weakref import WeakSet

from bk_core.metrics.registry import Histogram
from bk_core.threads import holds_lock

PIECE_ENTRIES_MAX = 1024  # entries of a run, so that the reactor can take acknowledgements in between
PIECE_ENTRIES_MIN = 64


class Batch:
    """The runs handed in between two flushes; ``runs`` of them are not answered yet. ``before`` is an earlier batch that may
    not be done."""

    __slots__ = ("before", "runs")

    def __init__(self, before: Batch | None = None) -> None:
        self.runs = 0
        self.before = before

    @property
    def is_done(self) -> bool:
        """True if it and all batches before it are answered."""
        batch: Batch | None = self
        while batch is not None:
            if batch.runs:
                return False
            batch = batch.before
        return True


class Place:
    """The place of one append in the line of those that wait for room. The reactor hands the append in as soon as its turn comes, so nobody
    waits behind a thread that sleeps or runs a signal handler. With ``item`` None it waits for the turn of a run in pieces.

    ``ticket`` is released when the append is ``admitted`` or the handle was closed. ``gone`` is True if nobody waits any more.
    ``since_ns`` is the time since which it has stood in line, None before and after that.
    """

    __slots__ = ("admitted", "entries", "first", "gone", "item", "since_ns", "size", "ticket", "turn", "turn_of")

    def __init__(
        self, item: Callable[[Batch], None] | None, entries: int, size: int, first: int | None, turn: object, turn_of: int
    ) -> None:
        self.item = item
        self.entries = entries
        self.size = size
        self.first = first
        self.turn = turn
        self.turn_of = turn_of
        self.admitted = self.gone = False
        self.since_ns: int | None = None
        self.ticket: Any = allocate_lock()  # or an ``Entering``, for an append that no thread waits with
        self.ticket.acquire()


class Share:
    """One ledger's part of the window. ``inbox`` holds what was handed in and the reactor has not taken yet, each item with its batch.
    ``runs`` and ``bytes`` count what is not answered yet, ``entries`` what some bookie still has to take. ``turn`` belongs to the append
    that is handing in a run in pieces, on thread ``turn_of``. ``line`` holds those who wait for room. The first in it is the next one: with
    caller's ids the lowest id, else the next piece of the append that has the turn, then the order of arrival. ``nudge`` has the line
    looked at again. The window changes a share, and the reactor empties the inbox."""

    __slots__ = ("__weakref__", "batch", "bytes", "entries", "inbox", "line", "nudge", "runs", "turn", "turn_of")

    def __init__(self, nudge: Callable[[], object] = lambda: None) -> None:
        self.nudge = nudge
        self.inbox: deque[tuple[Callable[[Batch], None], Batch]] = deque()
        self.runs = 0
        self.bytes = 0
        self.entries = 0
        self.batch = Batch()
        self.turn: object = None
        self.turn_of = 0
        self.line: list[tuple[int, int, Place]] = []


class AddWindow:
    """The entries of all shares together that were handed in and that some bookie still has to take. Any thread may use it."""

    def __init__(self, entries_max: int, wait_seconds: Histogram | None = None) -> None:
        self._max = entries_max
        self._lock = RLock()
        self._wait_seconds = wait_seconds or Histogram()
        self._total = 0
        self._bytes = self._answered_bytes = self._failed_bytes = 0  # what was handed in, what of it has an outcome, and what failed
        self._waiting = 0  # places in line that somebody waits in
        self._ledgers = 0  # the number of shares with entries
        self._crowded: WeakSet[Share] = WeakSet()  # those whose first in line waits until other ledgers have made room
        self._arrivals = numbers()

    @property
    def entries(self) -> int:
        """The entries that some bookie still has to take."""
        return self._total

    @property
    def bytes(self) -> int:
        """The bytes that were handed in and are not answered."""
        return self._bytes - self._answered_bytes

    @property
    def acknowledged_bytes(self) -> int:
        """The bytes that were acknowledged so far, of all ledgers."""
        return self._answered_bytes - self._failed_bytes

    @property
    def waiting(self) -> int:
        """The number of appends that wait in line."""
        return self._waiting

    @holds_lock
    def has_room(self, share: Share, count: int) -> bool:
        """Return True if ``share`` may hand in ``count`` more entries. It always has a quarter of its due, whatever the others hold,
        because they may be stuck. A share that has all of its due leaves a quarter of the window to those that have not."""
        with self._lock:
            own, ledgers = share.entries, max(1, self._ledgers)
            after = own + count
            if not own or after <= self._max // (4 * ledgers):
                return True
            modest = ledgers == 1 or after <= self._max // ledgers
            return self._total + count <= (self._max if modest else self._max - self._max // 4)

    @holds_lock
    def piece_entries(self) -> int:
        """Return the number of entries that one ledger should hand in at once: a share always has room for two such pieces."""
        with self._lock:
            ledgers = self._ledgers
            return max(PIECE_ENTRIES_MIN, min(PIECE_ENTRIES_MAX, self._max // (8 * ledgers if ledgers > 1 else 2)))

    @holds_lock
    def admit(
        self, share: Share, item: Callable[[Batch], None], entries: int, size: int, bytes_max: int, turn: object, *, passing: bool = False
    ) -> bool:
        """Do ``hand_in`` and return True if there is room for it, the turn is nobody's or ``turn``'s (None: any), and it passes nobody in
        line (unless ``passing``)."""
        with self._lock:
            if share.line and not passing and (turn is None or share.turn is not turn):
                return False
            if not self._fits(share, entries, size, bytes_max, turn):
                return False
            self.hand_in(share, item, entries, size)
            return True

    def _fits(self, share: Share, entries: int, size: int, bytes_max: int, turn: object) -> bool:
        """Return True if the item fits. The caller holds the lock."""
        if turn is not None and share.turn is not None and share.turn is not turn:
            return False
        return not (share.bytes and share.bytes + size > bytes_max) and self.has_room(share, entries)

    @holds_lock
    def stand_in_line(self, share: Share, place: Place) -> None:
        with self._lock:
            self._waiting += 1
            place.since_ns = time.monotonic_ns()
            has_turn = place.turn is not None and share.turn is place.turn
            heappush(share.line, (-1 if has_turn else place.first or 0, next(self._arrivals), place))

    @holds_lock
    def next_in(self, share: Share, highest: int, bytes_max: int | None) -> Place | None:
        """Hand in the first item in line, or give it the turn, if it may enter; return None if not. The caller must release its ticket. On
        the reactor thread, so that the line costs one look however long it is. With ``bytes_max`` None there is no room at all."""
        with self._lock:
            while share.line:
                place = share.line[0][2]
                if not place.gone and not self._may_enter(share, place, highest, bytes_max):
                    if place.item is not None and not self.has_room(share, place.entries):
                        self._crowded.add(share)
                    return None
                heappop(share.line)
                if not place.gone:
                    self._enter(share, place)
                    return place
        return None

    def _may_enter(self, share: Share, place: Place, highest: int, bytes_max: int | None) -> bool:
        """Return True if the item may enter. Entries below those already handed in must not wait for room that only they can make (WR-15).
        The caller holds the lock."""
        if place.item is None:
            return share.turn is None
        if place.first is not None and place.first <= highest:
            return True
        return bytes_max is not None and self._fits(share, place.entries, place.size, bytes_max, place.turn)

    def _enter(self, share: Share, place: Place) -> None:
        """Let the place in. The caller holds the lock."""
        if place.item is not None:
            self.hand_in(share, place.item, place.entries, place.size)
        else:
            share.turn_of, share.turn = place.turn_of, place.turn
            if place.gone:  # it may have looked for its turn before it had it
                share.turn = None
                return
        place.admitted = True
        self._waits_no_more(place)

    def _waits_no_more(self, place: Place) -> None:
        """Count the end of a wait in line. The caller holds the lock."""
        if place.since_ns is not None:
            self._waiting -= 1
            self._wait_seconds.observe(time.monotonic_ns() - place.since_ns)
            place.since_ns = None

    @holds_lock
    def leave(self, place: Place) -> bool:
        """Note that the append waits no more. Return True if its place was admitted before that. The place stays in line until its turn
        comes, without what it would have handed in."""
        place.gone = True
        with self._lock:
            if not place.admitted:
                place.item = None
            self._waits_no_more(place)
            return place.admitted

    @holds_lock
    def dismiss(self, share: Share) -> list[Place]:
        """Empty the line and return everybody in it."""
        with self._lock:
            line, share.line = share.line, []
            for _, _, place in line:
                self._waits_no_more(place)
            return [place for _, _, place in line]

    @holds_lock
    def hand_in(self, share: Share, item: Callable[[Batch], None], entries: int = 0, size: int = 0) -> None:
        """Count ``item`` and put it into the inbox."""
        with self._lock:
            # No interrupt strikes before the append is done (bk_core/threads.py), so the item is counted and there, or neither.
            if entries:
                if not share.entries:
                    self._ledgers += 1
                share.entries += entries
                self._total += entries
            share.bytes += size
            self._bytes += size
            share.runs += 1
            share.batch.runs += 1
            share.inbox.append((item, share.batch))

    def take_turn(self, share: Share, turn: object, thread: int, *, passing: bool = False) -> bool:
        """Return True if ``turn`` has the turn now: nobody else hands in anything until ``share.turn`` is None again. See ``admit``."""
        with self._lock:
            if share.turn is None and (passing or not share.line):
                share.turn, share.turn_of = turn, thread
            return share.turn is turn

    def mark(self, share: Share, fresh: Batch) -> Batch:
        """Return the batch of everything handed in until now; later items belong to ``fresh``."""
        with self._lock:
            fresh.before = before = share.batch
            share.batch = fresh
            return before

    def answered(self, share: Share, size: int, batch: Batch) -> None:
        """Note that a run of ``size`` bytes has its outcome."""
        with self._lock:
            share.runs -= 1
            batch.runs -= 1
            share.bytes -= size
            self._answered_bytes += size

    def failed(self, size: int) -> None:
        """Note that a run of ``size`` bytes fails, before ``answered``. Reactor thread."""
        self._failed_bytes += size

    @holds_lock
    def released(self, share: Share, entries: int) -> None:
        """Note that all bookies have the entries, or nobody waits for that any more. Other ledgers that waited for this are nudged, because
        nothing of their own may be answered for long."""
        with self._lock:
            share.entries -= entries
            self._total -= entries
            if entries and not share.entries:
                self._ledgers -= 1
            waiting = [one for one in self._crowded if one is not share and self._is_first_to_fit(one)] if self._crowded else ()
            self._crowded.difference_update(waiting)
        for one in waiting:
            one.nudge()

    def _is_first_to_fit(self, share: Share) -> bool:
        """Return True if there is room now for the first in line. The caller holds the lock."""
        return not share.line or self.has_room(share, share.line[0][2].entries)
