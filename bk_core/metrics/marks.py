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
        self._marks: deque[tuple[int, int]] = deque()  # (sent before, since when more are sent)
        self._answered = 0

    def began(self, before: int, now_ns: int) -> None:
        """Note that what is sent from now on comes after the first ``before``. Something is sent before the next time."""
        self._marks.append((before, now_ns))

    def answered(self, total: int, now_ns: int) -> int:
        """Note that ``total`` have been answered until now. Return how many are new."""
        before = done = self._answered
        if total <= before:
            return 0
        self._answered = total
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= done:  # all of these were answered before
            marks.popleft()
        while len(marks) > 1 and marks[1][0] <= total:
            upto = marks[1][0]
            self._seconds.observe(now_ns - marks.popleft()[1], upto - done)
            done = upto
        if done < total and marks:
            self._seconds.observe(now_ns - marks[0][1], total - done)
        return total - before

    def clear(self) -> None:
        """Begin again at 0, because nobody answers what was sent until now."""
        self._marks.clear()
        self._answered = 0
