"""An iterator that goes on after an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Following(Generic[T]):
    """An iterator over what ``begin`` yields. A generator ends when it raises; this begins a new one at the next call.

    ``begin`` must go on behind what was given. ``close`` it to release at once what the iteration holds.
    """

    def __init__(self, begin: Callable[[], Iterator[T]]) -> None:
        self._begin = begin
        self._items: Iterator[T] | None = None
        self._over = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if self._over:
            raise StopIteration
        if self._items is None:
            self._items = self._begin()
        try:
            return next(self._items)
        except StopIteration:
            self._over = True
            raise
        except BaseException:
            self._items = None
            raise

    def close(self) -> None:
        """End the iteration. Idempotent."""
        self._over = True
        items, self._items = self._items, None
        if items is not None and (close := getattr(items, "close", None)) is not None:
            close()
