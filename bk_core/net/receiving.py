"""Where the bytes of one connection arrive: one buffer, read in place."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

FIRST_BYTES = 256 << 10
PART_BYTES = 1 << 20  # of a frame that is used as it comes: about a processor's own cache, so that bytes are used while they are there
WHOLE_BYTES = 64 << 10  # the rest of a frame above this is received by itself, so that it never has to be moved
LOW_WATER_BYTES = 1 << 20

# Gets the first of so many bytes of a frame. How many of these it is done with, and the size of the item that begins behind them.
Take = Callable[[memoryview, int], tuple[int, int]]


class ReceiveBuffer:
    """Bytes ``start`` to ``stop`` of ``view`` have arrived and were not used. What is used is used in place: the next ``receive`` may
    overwrite it. A frame that does not fit gets a larger buffer, which stays; or it is used item by item as it comes (``begin``): then
    ``rest`` of its bytes were not used yet, else 0. ``full``: there may be more to receive at once."""

    def __init__(self) -> None:
        self.start = self.stop = self.rest = 0
        self.full = False
        self._wanted = self._item = 0
        self._low_water = 1
        self.view = memoryview(bytearray(FIRST_BYTES))

    def receive(self, source: socket.socket) -> int:
        """Bytes received, 0 when the other side has closed. Raises what ``recv_into`` raises."""
        end = len(self.view)
        if self._wanted > WHOLE_BYTES:
            end = self.start + self._wanted
        count = source.recv_into(self.view[self.stop : end])
        self.stop += count
        self.full = self.stop == end
        return count

    @property
    def awaits_much(self) -> bool:
        """Whether bytes may be here of which nobody was woken."""
        return self._low_water > 1

    def wait_for_more(self, source: socket.socket) -> None:
        """Nobody is woken for a little of a large frame. The low-water mark is never above what is missing of it, so that what comes last
        wakes too; when no more than that fits, the kernel wakes whatever the mark."""
        missing = (self.rest or self._wanted) - (self.stop - self.start)
        low_water = min(missing, LOW_WATER_BYTES) if missing > WHOLE_BYTES else 1
        if low_water != self._low_water:
            self._low_water = low_water
            with suppress(OSError):  # no more than a hint
                source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)

    def begin(self, start: int, rest: int, take: Take) -> None:
        """A frame whose ``rest`` bytes from ``start`` on are used item by item, of which no more than a part need be here."""
        self.start, self.rest, self._wanted = start, rest, 0
        self._take_part(take)

    def receive_parts(self, source: socket.socket, take: Take, bytes_max: int) -> int:
        """The next bytes of that frame, as long as there are some at once and the frame has not ended. Otherwise as ``receive``."""
        total = 0
        while self.rest and total < bytes_max:
            end = self._item if self._item > PART_BYTES else PART_BYTES
            if end > len(self.view):
                self._move(end)
            count = source.recv_into(self.view[self.stop : end])
            if not count:
                return 0
            total += count
            self.stop += count
            self.full = full = self.stop == end
            self._take_part(take)
            if not full:
                break
        return total

    def _take_part(self, take: Take) -> None:
        view, start, stop, rest = self.view, self.start, self.stop, self.rest
        done, self._item = take(view[start:stop] if stop - start <= rest else view[start : start + rest], rest)
        start += done
        self.rest = rest - done
        if start == stop:
            self.start = self.stop = 0
            return
        self.start = start
        if done < rest:
            self._move(self._item)

    def use(self, consumed: int, wanted: int) -> None:
        """Everything before ``consumed`` is done with; ``wanted``: the size of the incomplete frame that begins there, if it is known."""
        self._wanted = wanted
        self.start = consumed
        if self.start == self.stop:
            self.start = self.stop = 0
        if self.start + wanted > len(self.view) or self.stop == len(self.view):
            self._move(max(wanted, self.stop - self.start + 1))

    def _move(self, size: int) -> None:
        """The head of an incomplete frame to the front of a buffer that can take all of it."""
        rest = self.view[self.start : self.stop]
        if size > len(self.view):
            self.view = memoryview(bytearray(-(-size // WHOLE_BYTES) * WHOLE_BYTES))
        self.view[: len(rest)] = rest
        self.start, self.stop = 0, len(rest)

    def clear(self) -> None:
        self.start = self.stop = self.rest = self._wanted = 0
        self._low_water = 1
