"""The memory that uploads take while they are on their way to data ledgers: bounded for all of a gateway together."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from bk_core.errors import OperationTimeoutError

SMALL_BYTES = 512 << 10
LARGE_BYTES = 12 << 20  # a run of 4 MiB that is written, one that is gathered, and its copy
LARGE_MAX = 128  # 1.5 GiB if all are at their largest; fewer would make the tasks of a large cluster fail that write slowly


class Uploads:
    """An upload needs a place from its ``SMALL_BYTES`` on. There are ``LARGE_MAX``; whoever finds none waits."""

    def __init__(self) -> None:
        self._free = LARGE_MAX
        self._freed = threading.Condition()

    @contextmanager
    def admitted(self, pieces: Iterable[bytes], patience_s: float) -> Iterator[Iterator[bytes]]:
        """The same pieces; the place that they need is kept until the block ends. OperationTimeoutError if none is free in time."""
        places = 0

        def counted() -> Iterator[bytes]:
            nonlocal places
            taken = 0
            for piece in pieces:
                taken += len(piece)
                if taken > SMALL_BYTES and not places:
                    self._take(patience_s)
                    places = 1
                yield piece

        try:
            yield counted()
        finally:
            with self._freed:
                self._free += places
                self._freed.notify_all()

    def _take(self, patience_s: float) -> None:
        with self._freed:
            if not self._freed.wait_for(lambda: self._free > 0, patience_s):
                raise OperationTimeoutError(
                    f"{LARGE_MAX} other uploads of more than {SMALL_BYTES >> 10} KiB did not come to their end in {patience_s:g} s, "
                    "and there is no memory for more at once: nothing was written"
                )
            self._free -= 1
