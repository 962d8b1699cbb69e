"""Bounds what a log's writer holds: the appends without an outcome, and the line of those that wait for room."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from bk_core.client.entering import Ticket
from bk_core.client.ledger.add_window import Batch
from bk_core.client.log.parts import Append
from bk_core.client.payloads import NO_PAYLOADS
from bk_core.threads import Monitor, holds_lock


class AppendWindow:
    """The appends of one writer that have no outcome yet. ``arrived`` holds those that the writer has not taken yet. ``check`` raises the
    error that refuses every later append. ``lock`` is the writer's, and guards it."""

    def __init__(self, lock: Monitor, bytes_max: int, check: Callable[[], None]) -> None:
        self.arrived: deque[Append] = deque()
        self.line: deque[tuple[Append, Ticket]] = deque()  # in the order of the calls
        self.bytes = 0
        self.undecided = 0  # appends that were handed in and whose outcome the machine has not told
        self._lock = lock
        self._bytes_max = bytes_max
        self._check = check
        self._batch = Batch()

    @holds_lock
    def admitted(self, token: Append, ticket: Ticket | None = None, *, passing: bool = False) -> bool:
        """Return False if the append has to wait; with a ``ticket`` it is in line then. With ``passing`` it need not wait for those in
        line."""
        with self._lock:
            self._check()
            if (passing or not self.line) and self._has_room(token.size):
                self._admit(token)
            elif ticket is not None:
                self.line.append((token, ticket))
            return token.admitted

    def _admit(self, token: Append) -> None:
        """Count the append and hand it in. The caller holds the lock."""
        token.batch = self._batch
        # No interrupt strikes between these (bk_core/threads.py), so the append is counted and handed in, or neither.
        self.bytes += token.size
        self.undecided += 1
        token.batch.runs += 1
        token.admitted = True
        self.arrived.append(token)

    def _has_room(self, size: int) -> bool:
        return not self.bytes or self.bytes + size <= self._bytes_max

    def let_in(self, over: bool) -> bool:
        """Let the first in line in, as long as there is room, and return True if any was. With ``over`` everybody is sent away. The caller
        holds the lock, on a thread of ours.

        The run is handed in for the waiting thread, so nobody waits behind a thread that sleeps or runs a signal handler. Threads that are
        not first are not woken.
        """
        some = False
        while self.line:
            token, ticket = self.line[0]
            if not over and not token.gone:
                if not self._has_room(token.size):
                    break
                self._admit(token)
                some = True
            self.line.popleft()
            ticket.release()
        return some

    @holds_lock
    def leave(self, token: Append) -> bool:
        """Leave the line. Return True if the append was let in before. Raises the error that keeps it out for good."""
        with self._lock:
            if not token.admitted:
                token.run = NO_PAYLOADS
                self._check()
            return token.admitted

    @holds_lock
    def give_up(self, token: Append) -> bool:
        """Let the append not wait any more. Return True if it was let in before. If not, it stays in line until its turn comes, without its
        payloads."""
        token.gone = True
        with self._lock:
            if not token.admitted:
                token.run = NO_PAYLOADS
            return token.admitted

    def decided(self, token: Append) -> None:
        """Release the room of an append that has its outcome. The caller holds the lock."""
        self.bytes -= token.size

    @holds_lock
    def told(self, token: Append) -> None:
        """Note that the future of an append has its outcome, which a flush waits for."""
        with self._lock:
            token.batch.runs -= 1
            if not token.batch.runs:
                self._lock.notify_all()

    @holds_lock
    def mark(self) -> Batch:
        """Return the batch of everything admitted until now; later appends belong to another one."""
        with self._lock:
            fresh = Batch(self._batch)
            before, self._batch = self._batch, fresh
            return before
