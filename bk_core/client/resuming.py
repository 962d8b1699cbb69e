"""An iterator that goes on after an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Self, TypeVar

from bk_core.errors import BkError
from bk_core.threads import Flag

T = TypeVar("T")


class Following(Generic[T]):
    """An iterator over what ``begin`` yields. A generator ends when it raises; this begins a new one at the next call.

    ``begin`` must go on behind what was given. It is given a flag, which says once it is set that the iteration is to end; ``wake`` ends
    what the generator waits for then. ``close`` the iterator to release at once what it holds.
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
            item = next(self._items)
        except StopIteration:
            self._over.set()
            raise
        except BaseException as error:
            self._items = None
            if self._over.is_set() and isinstance(error, BkError):  # it was closed, which ended what this call waited for
                raise StopIteration from None
            raise
        if self._over.is_set():
            self._end()
        return item

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
