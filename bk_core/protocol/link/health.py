"""When a connection is silent and when one request on it is late.

A bookie's answers share one connection, so an answer waits behind those before it, for minutes on a thin link. Time spent like that says
nothing against the bookie: what counts is silence (LINK-1). A request that is passed over while others are answered has a second bound
(LINK-2): an answer to something that was sent a whole timeout after it shows that the bookie had it for that long and did not care.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

MARK_NS = 250_000_000  # between two marks in a stream of adds
CUTS_MAX = 2  # a request that may be sent again outlives so many lost connections
_NEVER = -(1 << 62)


@dataclass(slots=True, eq=False)
class Patience:
    """The clock of one request: it was sent at ``sent_ns`` (None: it waits for its turn) and is waited for ``timeout_ns`` long."""

    timeout_ns: int
    sent_ns: int | None = None


@dataclass(slots=True)
class LinkHealth:
    """One connection, from ``connected`` on. Times are monotonic nanoseconds."""

    add_timeout_ns: int
    heard_ns: int = _NEVER  # when bytes came
    drained_ns: int = _NEVER  # when bytes of ours went on that had been waiting
    _latest_answered_ns: int = _NEVER  # of what was answered the latest time of sending
    _adds_sent: int = 0
    _adds_answered: int = 0
    _adds_since_ns: int = _NEVER  # since then there have been unanswered adds
    _marks: deque[tuple[int, int]] = field(default_factory=deque)  # (adds sent before, when)

    def connected(self, now_ns: int) -> None:
        """Forget what an earlier connection owed: this one does not owe it."""
        self.heard_ns = now_ns
        self.drained_ns = self._latest_answered_ns = _NEVER
        self._adds_sent = self._adds_answered = 0
        self._marks.clear()

    # --- what happens on it ------------------------------------------------------------------------------------------

    def heard(self, now_ns: int) -> None:
        self.heard_ns = now_ns

    def drained(self, now_ns: int) -> None:
        """LINK-1: a slow way out is no silence either; the other side takes what we send."""
        self.drained_ns = now_ns

    def answered(self, sent_ns: int) -> None:
        """LINK-2: something that was sent at ``sent_ns`` was answered."""
        self._latest_answered_ns = max(self._latest_answered_ns, sent_ns)

    def adds_sent(self, count: int, now_ns: int) -> None:
        if not self.adds_unanswered:
            self._adds_since_ns = now_ns
        if not self._marks or now_ns - self._marks[-1][1] >= MARK_NS:
            self._marks.append((self._adds_sent, now_ns))
        self._adds_sent += count

    def adds_answered(self, count: int) -> None:
        """LINK-3: adds are counted, not known one by one. More answers than adds sent before a mark: one of those behind it is answered."""
        self._adds_answered = min(self._adds_answered + count, self._adds_sent)
        while self._marks and self._adds_answered > self._marks[0][0]:
            self.answered(self._marks.popleft()[1])

    @property
    def adds_unanswered(self) -> int:
        return self._adds_sent - self._adds_answered

    # --- what follows ------------------------------------------------------------------------------------------------

    @property
    def moved_ns(self) -> int:
        return max(self.heard_ns, self.drained_ns)

    def is_silent(self, one: Patience, now_ns: int, patience_ns: int | None = None) -> bool:
        """LINK-1: nothing has moved on this connection for its timeout (or ``patience_ns``), all of which it was outstanding."""
        if one.sent_ns is None:
            return False
        return now_ns - max(one.sent_ns, self.moved_ns) >= (one.timeout_ns if patience_ns is None else patience_ns)

    def is_late(self, one: Patience, now_ns: int, patience_ns: int | None = None) -> bool:
        """LINK-1, LINK-2. What was not sent yet waits for us and is never late."""
        if one.sent_ns is None:
            return False
        patience_ns = one.timeout_ns if patience_ns is None else patience_ns
        return self._latest_answered_ns - one.sent_ns >= patience_ns or self.is_silent(one, now_ns, patience_ns)

    def adds_are_silent(self, now_ns: int) -> bool:
        """LINK-3."""
        return self.adds_unanswered > 0 and now_ns - self.silent_since_ns >= self.add_timeout_ns

    @property
    def silent_since_ns(self) -> int:
        """Adds have been waiting since then for anything."""
        return max(self._adds_since_ns, self.moved_ns)

    def silence_of(self, waiting: Iterable[Patience]) -> int:
        """LINK-4: since when those have waited and nothing has moved; without any of them, since when the adds have."""
        sent = [one.sent_ns for one in waiting if one.sent_ns is not None]
        return max(min(sent), self.moved_ns) if sent else self.silent_since_ns

    def is_doubtful(self, since_ns: int, *, needed: bool = False) -> bool:
        """LINK-4: another connection to this bookie has been silent since then; this one has heard nothing since either. With adds under
        way it has its own timeout: the bookie may be about to answer, and adds that are lost cost a change of the ensemble. So has one that
        is ``needed``: whose loss costs a writer its ledger (WR-17), also when nothing else is lost with it."""
        return self.heard_ns < since_ns and not self.adds_unanswered and not needed


@dataclass(slots=True)
class Attempts:
    """LINK-8: one connect after the other, to each address of a name, within ``deadline_ns`` for all of them."""

    left: int
    deadline_ns: int

    def next(self, now_ns: int) -> int | None:
        """The time in nanoseconds that the next address may take; None if there is none, or no time."""
        if self.left <= 0 or now_ns >= self.deadline_ns:
            return None
        share = (self.deadline_ns - now_ns) // self.left
        self.left -= 1
        return max(1, share)
