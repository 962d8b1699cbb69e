"""Names that changes of a checkpoint are about: two changes wait for each other if one's name is the other's, or lies above or below it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bk_core.errors import OperationTimeoutError
from bk_core.protocol.files.paths import is_below


class Claims:
    """No lock is held while a change keeps its claims."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._claimed: list[str] = []
        self._released = threading.Condition()

    @contextmanager
    def of(self, *paths: str, wait_s: float, within_s: float) -> Iterator[float]:
        """Nobody else changes anything at, above or below these names meanwhile. Gives the time by which the change must be done: in
        ``within_s`` from now.

        OperationTimeoutError if somebody keeps one for longer than ``wait_s``.
        """
        deadline = self._clock() + within_s
        with self._released:
            if not self._released.wait_for(lambda: not any(meet(path, other) for path in paths for other in self._claimed), wait_s):
                raise OperationTimeoutError(f"another request about {min(paths)} takes longer than {wait_s:g} s", path=min(paths))
            self._claimed += paths
        try:
            yield deadline
        finally:
            with self._released:
                for path in paths:
                    self._claimed.remove(path)
                self._released.notify_all()


def meet(path: str, other: str) -> bool:
    """True if they are the same, or one lies below the other."""
    return path == other or is_below(path, other) or is_below(other, path)
