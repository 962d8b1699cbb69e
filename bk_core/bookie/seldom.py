"""Lines of the log about what strangers do, in bounded numbers: a peer may do it a thousand times a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger("bk_core.bookie")

PERIOD_S = 60.0
LINES = 10  # of one kind in a period


class SeldomLines:
    """Warnings by kind, of each at most ``lines`` in a minute; the first one of the next minute says how many were left out.

    The kinds are words of the program, not of a peer, so that there are few of them.
    """

    def __init__(self, lines: int = LINES, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._clock = clock
        self._began: dict[str, float] = {}
        self._count: dict[str, int] = {}

    def tell(self, kind: str, text: str, lines: int | None = None) -> None:
        """Write a line, or count it. ``lines`` is another bound for this kind, such as 1 for a trouble of the bookie's own that lasts."""
        now, bound = self._clock(), lines or self._lines
        left_out = 0
        if now - self._began.get(kind, -PERIOD_S) >= PERIOD_S:
            left_out = max(0, self._count.get(kind, 0) - bound)
            self._began[kind], self._count[kind] = now, 0
        self._count[kind] = self._count.get(kind, 0) + 1
        if self._count[kind] <= bound:
            log.warning("%s%s", text, f"; {left_out} lines like this were left out before" if left_out else "")
