"""The bookies that failed lately, which are chosen only when there are no others (CR-2, metadata.md 5.6)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.wire.messages import Status

# These answers are about the ledger and not about the bookie's health (WR-6): absence, fencing, a wrong key, limbo.
_ABOUT_THE_LEDGER = frozenset(
    {Status.OK, Status.NO_LEDGER, Status.NO_ENTRY, Status.FENCED, Status.UNAUTHORIZED, Status.UNKNOWN_LEDGER_STATE, Status.BAD_REQUEST}
)


def is_bookie_failure(status: Status) -> bool:
    """Return True if an answer, or a missing one, counts against the bookie."""
    return status not in _ABOUT_THE_LEDGER


@dataclass(slots=True)
class Quarantine:
    """``errors`` failures of one bookie within ``window_ns`` quarantine it for ``duration_ns``; each further failure starts that anew.

    ``now_ns`` is monotonic time. With a ``duration_ns`` of 0 nobody is ever quarantined. ``failed`` belongs to one thread; ``members``
    may be called from any.
    """

    now_ns: Callable[[], int]
    duration_ns: int
    errors: int = 1
    window_ns: int = 60_000_000_000
    _failures: dict[BookieId, deque[int]] = field(default_factory=dict, repr=False)
    _until: dict[BookieId, int] = field(default_factory=dict, repr=False)

    def failed(self, bookie: BookieId) -> None:
        if self.duration_ns == 0:
            return
        now = self.now_ns()
        recent = self._failures.setdefault(bookie, deque(maxlen=self.errors))
        recent.append(now)
        if len(recent) == self.errors and recent[0] > now - self.window_ns:
            self._until[bookie] = now + self.duration_ns

    def members(self) -> frozenset[BookieId]:
        now = self.now_ns()
        return frozenset(bookie for bookie, until in tuple(self._until.items()) if now < until)
