"""Times of things that are sent in groups, answered in their order, and known by nothing but their number."""

from __future__ import annotations

from collections import deque

from bk_core.metrics.registry import Histogram


class Marks:
    """Notes when how many had been sent and, when how many were answered, how long those took. The first sent count as the first answered:
    where answers overtake each other, the mean time is right all the same. The thread that sends and takes answers uses it."""

    __slots__ = ("_answered", "_marks", "_seconds")

    def __init__(self, seconds: Histogram) -> None:
        self._seconds = seconds
        self._marks: deque[tuple[int, int]] = deque()  # (sent until then, when)
        self._answered = 0

    def sent(self, total: int, now_ns: int) -> None:
        """Note that ``total`` have been sent until now."""
        marks = self._marks
        if total > (marks[-1][0] if marks else self._answered):
            marks.append((total, now_ns))

    def answered(self, total: int, now_ns: int) -> int:
        """Note that ``total`` have been answered until now. Return how many are new."""
        marks, before = self._marks, self._answered
        done = before
        while marks and done < total:
            upto, sent_ns = marks[0]
            if upto > total:
                upto = total
            else:
                marks.popleft()
            self._seconds.observe(now_ns - sent_ns, upto - done)
            done = upto
        self._answered = done
        return done - before

    def clear(self) -> None:
        """Begin again at 0, because nobody answers what was sent until now."""
        self._marks.clear()
        self._answered = 0
