"""How many entries of all its ledgers together a client has under way.

An Apache bookie queues 10,000 adds a thread. At the next one it answers TOO_MANY_REQUESTS, and some releases close the connection
(wire-protocol.md 8.2; 4.18 does, [L]), so that everything on it counts as failed. A bookie does not care whose ledgers adds are for: the
bound is on all that one client writes, and each ledger has its share of it.
"""

from __future__ import annotations

import threading

PIECE_ENTRIES_MAX = 1024  # of a run: the reactor can take acknowledgements in between
PIECE_ENTRIES_MIN = 64


class AddWindow:
    """Entries that were handed in and that some bookie still has to take, by ledger. Any thread."""

    def __init__(self, entries_max: int) -> None:
        self._max = entries_max
        self._lock = threading.Lock()
        self._of: dict[object, int] = {}
        self._total = 0

    def has_room(self, ledger: object, count: int) -> bool:
        """Whether ``ledger`` may hand in ``count`` more. A quarter of its share it always has, whatever the others hold: they may be stuck.
        One that has all of its share leaves a quarter of the window to those that have not."""
        with self._lock:
            own, ledgers = self._of.get(ledger, 0), max(1, len(self._of))
            after = own + count
            if not own or after <= self._max // (4 * ledgers):
                return True
            modest = ledgers == 1 or after <= self._max // ledgers
            return self._total + count <= (self._max if modest else self._max - self._max // 4)

    def piece_entries(self) -> int:
        """How many entries one ledger should hand in at once: two pieces are what it always may have under way."""
        with self._lock:
            ledgers = len(self._of)
            return max(PIECE_ENTRIES_MIN, min(PIECE_ENTRIES_MAX, self._max // (8 * ledgers if ledgers > 1 else 2)))

    def took(self, ledger: object, count: int) -> None:
        with self._lock:
            self._of[ledger] = self._of.get(ledger, 0) + count
            self._total += count

    def released(self, ledger: object, count: int) -> None:
        with self._lock:
            left = self._of[ledger] - count
            self._total -= count
            if left:
                self._of[ledger] = left
            else:
                del self._of[ledger]
