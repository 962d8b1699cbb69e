"""The receive buffer of one connection; its bytes are read in place."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from bk_core.net.tls_socket import TlsSocket

FIRST_BYTES = 256 << 10
# of a frame that is used while it arrives: about the size of a processor's own cache, so that bytes are used while they are in it
PART_BYTES = 1 << 20
WHOLE_BYTES = 64 << 10  # above this size, the rest of a frame is received by itself, so that it never has to be moved
LOW_WATER_BYTES = 1 << 20

Source: TypeAlias = "socket.socket | TlsSocket"
# Gets the first bytes of a frame. Returns how many of these it is done with, and the size of the item that begins behind them.
Take = Callable[[memoryview, int], tuple[int, int]]


class ReceiveBuffer:
    """A buffer in which the bytes ``start`` to ``stop`` of ``view`` have arrived and were not used. They are used in place: the next
    ``receive`` may overwrite bytes that were used. For a frame that does not fit, the buffer grows and stays large; or the frame is used
    item by item as it arrives (``begin``), and then ``rest`` is the number of its bytes not used yet (otherwise 0). ``full`` is True if
    more bytes may be there at once."""

    def __init__(self) -> None:
        self.start = self.stop = self.rest = 0
        self.full = False
        self._wanted = self._item = 0
        self._low_water = 1
        self.view = memoryview(bytearray(FIRST_BYTES))

    def receive(self, source: Source) -> int:
        """Return the number of bytes received, 0 when the other side has closed. Raises what ``recv_into`` raises."""
        end = len(self.view)
        if self._wanted > WHOLE_BYTES:
            end = self.start + self._wanted
        count = source.recv_into(self.view[self.stop : end])
        self.stop += count
        self.full = self.stop == end
        return count

    @property
    def awaits_much(self) -> bool:
        """True if bytes may have arrived without waking the reactor."""
        return self._low_water > 1

    def wait_for_more(self, source: Source) -> None:
        """Ask the kernel not to wake for a little of a large frame. The low-water mark is never above what is missing of the frame, so its
        last bytes wake too; when no more fits into the kernel's buffer, the kernel wakes whatever the mark."""
        missing = (self.rest or self._wanted) - (self.stop - self.start)
        low_water = min(missing, LOW_WATER_BYTES) if missing > WHOLE_BYTES else 1
        if low_water != self._low_water:
            self._low_water = low_water
            with suppress(OSError):  # the mark is no more than a hint
                source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, low_water)

    def begin(self, start: int, rest: int, take: Take) -> None:
        """Use the next ``rest`` bytes from ``start`` on item by item, so that only a part of the frame has to be in the buffer."""
        self.start, self.rest, self._wanted = start, rest, 0
        self._take_part(take)

    def receive_parts(self, source: Source, take: Take, bytes_max: int) -> int:
        """Receive and use the bytes of that frame until it ends or none are there at once. The result is that of ``receive``."""
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
        """Mark everything before ``consumed`` as used. ``wanted`` is the size of the incomplete frame that begins there, if it is known."""
        self._wanted = wanted
        self.start = consumed
        if self.start == self.stop:
            self.start = self.stop = 0
        if self.start + wanted > len(self.view) or self.stop == len(self.view):
            self._move(max(wanted, self.stop - self.start + 1))

    def _move(self, size: int) -> None:
        """Move the head of an incomplete frame to the front of a buffer that can take all of the frame."""
        rest = self.view[self.start : self.stop]
        if size > len(self.view):
            self.view = memoryview(bytearray(-(-size // WHOLE_BYTES) * WHOLE_BYTES))
        self.view[: len(rest)] = rest
        self.start, self.stop = 0, len(rest)

    def clear(self) -> None:
        self.start = self.stop = self.rest = self._wanted = 0
        self._low_water = 1
