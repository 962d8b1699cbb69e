"""Tables of a flatbuffer, read with every position checked: just what Arrow's messages need. Pure.

A table begins with the distance to its vtable, which says where each field lies; a field that is not there has its default. Nothing is
believed: whatever points out of the buffer is a ValueError.
"""

from __future__ import annotations

import struct

_NUMBERS = {kind: struct.Struct(f"<{kind}") for kind in "bBhHiIq"}


class FlatBuffer:
    """A buffer: ``data``, and every (begin, end) that was read."""

    __slots__ = ("data", "looked_at")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.looked_at: list[tuple[int, int]] = []

    def root(self) -> Table:
        return Table(self, self.number("I", 0))

    def number(self, kind: str, at: int) -> int:
        """Return a number. ``kind`` is a letter of the struct module."""
        form = _NUMBERS[kind]
        self.require(at, form.size)
        self.looked_at.append((at, at + form.size))
        return int(form.unpack_from(self.data, at)[0])

    def require(self, at: int, size: int) -> None:
        if at < 0 or at + size > len(self.data):
            raise ValueError("its metadata points outside of itself")


class Table:
    """The table at byte ``at``. ValueError if it does not lie within its buffer."""

    __slots__ = ("_at", "_buffer", "_fields", "_size", "_vtable")

    def __init__(self, buffer: FlatBuffer, at: int) -> None:
        self._buffer, self._at = buffer, at
        self._vtable = at - buffer.number("i", at)
        self._fields = buffer.number("H", self._vtable)
        self._size = buffer.number("H", self._vtable + 2)
        if self._fields < 4 or self._fields % 2 or self._size < 4:
            raise ValueError("a table of its metadata has no sound description")
        buffer.require(self._vtable, self._fields)
        buffer.require(at, self._size)

    def place(self, slot: int, size: int) -> int | None:
        """Return the position of the ``size`` bytes of a field; None if the table does not have it."""
        entry = 4 + 2 * slot
        distance = self._buffer.number("H", self._vtable + entry) if entry < self._fields else 0
        if not distance:
            return None
        if distance + size > self._size:
            raise ValueError("a field of its metadata lies outside of its table")
        return self._at + distance

    def number(self, slot: int, kind: str, default: int) -> int:
        at = self.place(slot, _NUMBERS[kind].size)
        return default if at is None else self._buffer.number(kind, at)

    def table(self, slot: int) -> Table | None:
        at = self._referred(slot)
        return None if at is None else Table(self._buffer, at)

    def items(self, slot: int, size: int) -> tuple[int, int]:
        """Return the position of a vector's first item, and the number of items; ``size`` is that of one in bytes. A missing vector has
        none."""
        at = self._referred(slot)
        if at is None:
            return 0, 0
        count = self._buffer.number("I", at)
        self._buffer.require(at + 4, count * size)
        return at + 4, count

    def tables(self, slot: int) -> list[Table]:
        begin, count = self.items(slot, 4)
        return [Table(self._buffer, at + self._buffer.number("I", at)) for at in range(begin, begin + 4 * count, 4)]

    def text(self, slot: int) -> str:
        """Return the text of a field. Text that is not UTF-8 is a ValueError too."""
        begin, count = self.items(slot, 1)
        return self._buffer.data[begin : begin + count].decode()

    def _referred(self, slot: int) -> int | None:
        at = self.place(slot, 4)
        return None if at is None else at + self._buffer.number("I", at)
