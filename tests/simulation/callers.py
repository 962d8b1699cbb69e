"""An application that chooses its entry ids (WR-2): it leaves gaps, fills them later in any order, and tries ids twice."""

from __future__ import annotations

from collections.abc import Callable

GAP_CHANCE, FILL_CHANCE, AGAIN_CHANCE = 0.3, 0.35, 0.2


class CallerIds:
    """``gaps``: runs (first, count) that were skipped and still have to come. Everything else below ``next`` was submitted."""

    def __init__(self, random: Callable[[], float]) -> None:
        self.next = 0
        self.gaps: list[tuple[int, int]] = []
        self._random = random

    def choose(self, count: int) -> tuple[int, int]:
        """(first entry, count) of the next append: a gap, or ``count`` entries further on. ``count`` 0: only gaps are left."""
        if self.gaps and (not count or self._random() < FILL_CHANCE):
            return self.gaps.pop(int(self._random() * len(self.gaps)))
        if self._random() < GAP_CHANCE:
            skipped = 1 + int(self._random() * 3)
            self.gaps.append((self.next, skipped))
            self.next += skipped
        first = self.next
        self.next += count
        return first, count

    def again(self) -> int | None:
        """An id that was submitted before, now and then."""
        if not self.next or self._random() >= AGAIN_CHANCE:
            return None
        entry_id = int(self._random() * self.next)
        return None if any(first <= entry_id < first + count for first, count in self.gaps) else entry_id
