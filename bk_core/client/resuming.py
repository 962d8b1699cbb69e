"""An iterator that goes on after an error, and ends when it is closed or when an event is set."""

from __future__ import annotations

import os
import threading
from _thread import RLock
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Self, TypeVar

from bk_core.background import BackgroundLoop
from bk_core.errors import BkError
from bk_core.threads import Flag

T = TypeVar("T")
STOP_LOOK_S = 0.5  # the time between two looks at the events of followers


class Following(Generic[T]):
    """An iterator over what ``begin`` yields. A generator ends when it raises; this begins a new one at the next call.

    ``begin`` must go on behind what was given; what the generator has yielded counts as given. It is given a flag, which says once it is
    set that the iteration is to end; ``wake`` ends what the generator waits for then. ``close`` the iterator to release at once what it
    holds.
    """

    def __init__(self, begin: Callable[[Flag], Iterator[T]], wake: Callable[[], None]) -> None:
        self._begin = begin
        self._wake = wake
        self._items: Iterator[T] | None = None
        self._over = Flag()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._over.is_set():
            raise StopIteration
        if self._items is None:
            self._items = self._begin(self._over)
        try:
            for item in self._items:  # an interrupt where ``next`` returns would lose the item, and from here on nothing is called
                if self._over.on:  # unless another thread ends the iteration
                    self._end()
                return item
        except BaseException as error:
            self._items = None
            if self._over.is_set() and isinstance(error, BkError):  # it was closed, which ended what this call waited for
                raise StopIteration from None
            raise
        self._over.set()
        raise StopIteration

    def close(self) -> None:
        """End the iteration, from any thread and from a handler of a signal. A call that waits for the next item ends as at the end of all
        items, and releases what the iteration holds; nobody waits for that here. Closing again has no effect."""
        self._over.set()
        if not self._end():
            self._wake()

    def _end(self) -> bool:
        """Release what the iteration holds. Return False if a call for the next item is under way, which does that itself behind it."""
        items = self._items
        close = getattr(items, "close", None)
        if close is not None:
            try:
                close()
            except ValueError as error:  # the one sign of it that no other thread can change meanwhile
                if "already executing" not in str(error):
                    raise
                return False
        return True


class _Stops:
    """Looks at the events by which users end what follows, on one thread for all of them, which exists while there are any.

    A follower waits for minutes, and its event wakes nobody. To look at it, a follower of its own would have to end its long poll and begin
    another one twice a second.
    """

    def __init__(self) -> None:
        self._lock = RLock()
        self._watched: dict[object, tuple[threading.Event, Callable[[], None]]] = {}
        self._loop: BackgroundLoop | None = None

    def add(self, key: object, stop: threading.Event, end: Callable[[], None]) -> None:
        with self._lock:
            self._watched[key] = (stop, end)
            if self._loop is None:
                self._loop = BackgroundLoop("bk-stops", self._turn)
                self._loop.start()

    def remove(self, key: object) -> None:
        with self._lock:
            self._watched.pop(key, None)

    def _turn(self) -> float | None:
        with self._lock:
            ended = [key for key, (stop, _) in self._watched.items() if stop.is_set()]
            calls = [self._watched.pop(key)[1] for key in ended]
            are_more = bool(self._watched)
            if not are_more:
                self._loop = None  # the next one begins another thread
        for call in calls:
            call()
        return STOP_LOOK_S if are_more else None


_stops = _Stops()


def _begin_anew() -> None:
    """A forked child has neither the thread nor the followers."""
    global _stops
    _stops = _Stops()


os.register_at_fork(after_in_child=_begin_anew)


@contextmanager
def ended_by(stop: threading.Event | None, end: Callable[[], None]) -> Iterator[None]:
    """Call ``end`` once ``stop`` is set, seen within half a second, or at once if it is set already, while a ``with`` block runs."""
    if stop is None:
        yield
        return
    if stop.is_set():
        end()
    key, stops = object(), _stops
    stops.add(key, stop, end)
    try:
        yield
    finally:
        stops.remove(key)
