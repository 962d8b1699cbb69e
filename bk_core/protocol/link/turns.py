"""Orders requests on a connection that cannot take all of them at once (LINK-6)."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Turns(Generic[T]):
    """Requests that wait, by the reader that they are for. The readers have their turns one after the other; the lowest entry of a reader
    goes first, because the reader waits for it. ``size`` is the number of requests that wait."""

    size: int = field(default=0, init=False)
    _by_reader: dict[Hashable, list[tuple[int, int, T]]] = field(default_factory=dict)
    _order: deque[Hashable] = field(default_factory=deque)
    _number: int = 0

    @property
    def readers(self) -> int:
        return len(self._order)

    def push(self, reader: Hashable, entry_id: int, item: T) -> None:
        waiting = self._by_reader.get(reader)
        if waiting is None:
            waiting = self._by_reader[reader] = []
            self._order.append(reader)
        self._number += 1
        self.size += 1
        insort(waiting, (entry_id, self._number, item))  # the numbers differ, so items are never compared

    def peek(self) -> T:
        """Return the item that ``pop`` would return. Raises IndexError if nothing waits."""
        return self._by_reader[self._order[0]][0][2]

    def pop(self) -> T:
        reader = self._order.popleft()
        waiting = self._by_reader[reader]
        item = waiting.pop(0)[2]
        self.size -= 1
        if waiting:
            self._order.append(reader)
        else:
            del self._by_reader[reader]
        return item

    def drop(self, reader: Hashable) -> list[T]:
        """Remove and return everything of a reader that is gone."""
        found = self._by_reader.pop(reader, None)
        if found is None:
            return []
        self._order.remove(reader)
        self.size -= len(found)
        return [item for _, _, item in found]

    def clear(self) -> list[T]:
        """Remove and return everything in the order of turns."""
        everything = []
        while self.size:
            everything.append(self.pop())
        return everything
