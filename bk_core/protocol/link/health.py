"""Tells when a connection is silent and when one request on it is late.

A bookie's answers share one connection, so an answer waits behind those before it, for minutes on a slow link. Such a wait is no fault of
the bookie; only silence counts (LINK-1). A second bound holds for a request that is passed over while others are answered (LINK-2): the
answer to a request that was sent a whole timeout later shows that the bookie had this one for that long and did not serve it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

MARK_NS = 250_000_000  # between two marks in a stream of adds
CUTS_MAX = 2  # a request that may be sent again is given up after so many lost connections
_NEVER = -(1 << 62)


@dataclass(slots=True, eq=False)
class Patience:
    """The clock of one request. It was sent at ``sent_ns`` (None: it waits for its turn) and may take ``timeout_ns``."""

    timeout_ns: int
    sent_ns: int | None = None


@dataclass(slots=True)
class LinkHealth:
    """The health of one connection, from ``connected`` on. Times are monotonic nanoseconds."""

    add_timeout_ns: int
    heard_ns: int = _NEVER  # the time at which bytes came
    drained_ns: int = _NEVER  # the time at which bytes of ours that had been waiting went on
    _latest_answered_ns: int = _NEVER  # the latest time of sending among the requests that were answered
    adds_sent_so_far: int = 0  # on this connection
    adds_answered_so_far: int = 0  # of them
    _adds_since_ns: int = _NEVER  # there have been unanswered adds since then
    _marks: deque[tuple[int, int]] = field(default_factory=deque)  # (adds sent before, when)

    def connected(self, now_ns: int) -> None:
        """Forget the requests of an earlier connection, because this one does not owe their answers."""
        self.heard_ns = now_ns
        self.drained_ns = self._latest_answered_ns = _NEVER
        self.adds_sent_so_far = self.adds_answered_so_far = 0
        self._marks.clear()

    # --- events on the connection --------------------------------------------------------------------------------------

    def heard(self, now_ns: int) -> None:
        self.heard_ns = now_ns

    def drained(self, now_ns: int) -> None:
        """Note that waiting bytes went on. A slow way out is no silence, because the other side takes what we send (LINK-1)."""
        self.drained_ns = now_ns

    def answered(self, sent_ns: int) -> None:
        """Note that a request which was sent at ``sent_ns`` was answered (LINK-2)."""
        self._latest_answered_ns = max(self._latest_answered_ns, sent_ns)

    def adds_sent(self, count: int, now_ns: int) -> None:
        if not self.adds_unanswered:
            self._adds_since_ns = now_ns
        if not self._marks or now_ns - self._marks[-1][1] >= MARK_NS:
            self._marks.append((self.adds_sent_so_far, now_ns))
        self.adds_sent_so_far += count

    def adds_answered(self, count: int) -> None:
        """Count answers to adds, which are not known one by one. Once there are more answers than adds sent before a mark, one of those
        behind the mark is answered (LINK-3)."""
        self.adds_answered_so_far = min(self.adds_answered_so_far + count, self.adds_sent_so_far)
        while self._marks and self.adds_answered_so_far > self._marks[0][0]:
            self.answered(self._marks.popleft()[1])

    @property
    def adds_unanswered(self) -> int:
        return self.adds_sent_so_far - self.adds_answered_so_far

    # --- conclusions ---------------------------------------------------------------------------------------------------

    @property
    def moved_ns(self) -> int:
        return max(self.heard_ns, self.drained_ns)

    def is_silent(self, one: Patience, now_ns: int, patience_ns: int | None = None) -> bool:
        """Return True if nothing has moved on this connection for the request's timeout (or ``patience_ns``) while it was outstanding
        (LINK-1)."""
        if one.sent_ns is None:
            return False
        return now_ns - max(one.sent_ns, self.moved_ns) >= (one.timeout_ns if patience_ns is None else patience_ns)

    def is_late(self, one: Patience, now_ns: int, patience_ns: int | None = None) -> bool:
        """Return True if the request is late. One that was not sent yet waits for us and is never late (LINK-1, LINK-2)."""
        if one.sent_ns is None:
            return False
        patience_ns = one.timeout_ns if patience_ns is None else patience_ns
        return self._latest_answered_ns - one.sent_ns >= patience_ns or self.is_silent(one, now_ns, patience_ns)

    def adds_are_silent(self, now_ns: int) -> bool:
        """Return True if adds have been waiting for a whole timeout while nothing moved (LINK-3)."""
        return self.adds_unanswered > 0 and now_ns - self.silent_since_ns >= self.add_timeout_ns

    @property
    def silent_since_ns(self) -> int:
        """The time since which adds have been waiting while nothing moved."""
        return max(self._adds_since_ns, self.moved_ns)

    def silence_of(self, waiting: Iterable[Patience]) -> int:
        """Return the time since which these requests have waited while nothing moved; without any of them, the same for the
        adds (LINK-4)."""
        sent = [one.sent_ns for one in waiting if one.sent_ns is not None]
        return max(min(sent), self.moved_ns) if sent else self.silent_since_ns

    def is_doubtful(self, since_ns: int, *, needed: bool = False) -> bool:
        """Return True if this connection has heard nothing since ``since_ns``, from when on another connection to this bookie has been
        silent (LINK-4). With adds under way it has its own timeout instead, because the bookie may be about to answer, and lost adds cost
        an ensemble change. The same holds for a connection that is ``needed``: its loss costs a writer its ledger even when nothing else is
        lost with it (WR-17)."""
        return self.heard_ns < since_ns and not self.adds_unanswered and not needed


@dataclass(slots=True)
class Attempts:
    """The connects of one attempt, one after the other, to each address of a name, within ``deadline_ns`` for all of them (LINK-8)."""

    left: int
    deadline_ns: int

    def next(self, now_ns: int) -> int | None:
        """Return the time in nanoseconds that the next address may take, or None if there is no address or no time left."""
        if self.left <= 0 or now_ns >= self.deadline_ns:
            return None
        share = (self.deadline_ns - now_ns) // self.left
        self.left -= 1
        return max(1, share)
