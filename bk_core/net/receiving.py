"""Where the bytes of one connection arrive: one buffer, read in place."""

from __future__ import annotations

import socket

FIRST_BYTES = 256 << 10
WHOLE_BYTES = 64 << 10  # the rest of a frame above this is received by itself, so that it never has to be moved


class ReceiveBuffer:
    """Bytes ``start`` to ``stop`` of ``view`` have arrived and were not used. What is used is used in place: the next ``receive`` may
    overwrite it. A frame that does not fit gets a larger buffer, which stays."""

    def __init__(self) -> None:
        self.start = self.stop = 0
        self._wanted = 0
        self.view = memoryview(bytearray(FIRST_BYTES))

    def receive(self, source: socket.socket) -> int:
        """Bytes received, 0 when the other side has closed. Raises what ``recv_into`` raises."""
        end = len(self.view)
        if self._wanted > WHOLE_BYTES:
            end = self.start + self._wanted
        count = source.recv_into(self.view[self.stop : end])
        self.stop += count
        return count

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
        self.start = self.stop = self._wanted = 0
