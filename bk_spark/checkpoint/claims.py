"""Names that changes of a checkpoint are about: two changes wait for each other if one's name is the other's, or lies above or below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from bk_core.errors import OperationTimeoutError
from bk_core.protocol.files.paths import is_below
from bk_core.threads import Monitor, holds_lock


class _Claim:
    """The names of one change."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths = paths

    def meets(self, other: _Claim) -> bool:
        return any(meet(path, another) for path in self.paths for another in other.paths)


class Claims:
    """All claims stand in one line, in the order in which they came. A change has its claim once no claim before it in the line meets it,
    so a delete of a directory gets its turn however many changes below it come later. No lock is held while a change keeps its claim.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._line: list[_Claim] = []
        self._lock = Monitor()

    @contextmanager
    def of(self, *paths: str, wait_s: float, within_s: float) -> Iterator[float]:
        """Keep everybody else from changing anything at, above or below these names while a ``with`` block runs, and yield the time by
        which the change must be done: ``within_s`` seconds from now.

        Raises OperationTimeoutError if claims that came before keep one of the names for longer than ``wait_s`` seconds.
        """
        deadline = self._clock() + within_s
        claim = _Claim(paths)
        try:
            self._stand_in_line(claim)
            if not self._lock.until(partial(self._has_its_turn, claim), wait_s):
                raise OperationTimeoutError(f"another request about {min(paths)} takes longer than {wait_s:g} s", path=min(paths))
            yield deadline
        finally:
            self._leave(claim)

    @contextmanager
    def if_free(self, path: str) -> Iterator[bool]:
        """Claim as ``of`` does, without waiting. Gives False, and nothing is claimed, if somebody has claimed such a name or waits for
        one."""
        claim = _Claim((path,))
        try:
            self._stand_in_line(claim)
            is_free = self._has_its_turn(claim)
            if not is_free:
                self._leave(claim)
            yield is_free
        finally:
            self._leave(claim)

    @holds_lock
    def _stand_in_line(self, claim: _Claim) -> None:
        with self._lock:
            self._line.append(claim)

    @holds_lock
    def _has_its_turn(self, claim: _Claim) -> bool:
        with self._lock:
            return not any(claim.meets(earlier) for earlier in self._line[: self._line.index(claim)])

    @holds_lock
    def _leave(self, claim: _Claim) -> None:
        with self._lock:
            if claim in self._line:
                self._line.remove(claim)
        self._lock.notify_all()


def meet(path: str, other: str) -> bool:
    """True if they are the same, or one lies below the other."""
    return path == other or is_below(path, other) or is_below(other, path)
