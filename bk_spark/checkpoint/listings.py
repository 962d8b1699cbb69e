"""Long directories that a client takes in parts. One listing serves all parts, because a new listing for each part would make the time
quadratic.

A part shows the directory as it was when its client asked for the first one, or later: the newest listing is the one that is kept.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from bk_core.protocol.files.content import FileStatus

KEPT_MAX = 4
KEPT_S = 60.0


@dataclass(frozen=True, slots=True)
class _Kept:
    number: int
    found: list[FileStatus]
    until_s: float


class Listings:
    """The listings of one checkpoint that clients are reading in parts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def part(self, path: str, after: str, most: int, listing: Callable[[], list[FileStatus]]) -> tuple[list[FileStatus], int]:
        """Return at most ``most`` statuses behind the name ``after``, and how many come behind them. ``listing`` gives all, sorted by
        name."""
        with self._lock:
            number = next(self._numbers)  # before the directory is looked at: an older listing never takes the place of a newer one
            kept = self._kept.get(path) if after else None
        found = listing() if kept is None else kept.found
        first = bisect_right(found, after, key=lambda status: status.name) if after else 0
        left = max(0, len(found) - first - most)
        with self._lock:
            known = self._kept.get(path)
            if not left:
                if known is not None and known.found is found:
                    del self._kept[path]
            elif known is None or known.found is found or known.number < number:
                self._kept[path] = _Kept(
                    known.number if known is not None and known.found is found else number, found, self._clock() + KEPT_S
                )
                self._kept.move_to_end(path)
                if len(self._kept) > KEPT_MAX:
                    self._kept.popitem(last=False)
        return found[first : first + most], left

    def tend(self) -> None:
        """Drop those that nobody has asked for another part of for ``KEPT_S``."""
        with self._lock:
            for path in [path for path, kept in self._kept.items() if kept.until_s <= self._clock()]:
                del self._kept[path]

    def __len__(self) -> int:
        return len(self._kept)
