"""The memory that uploads take while they are on their way to data ledgers: bounded for all of a gateway together.

The budget is the one that a store has for its sources (``STAGING_BYTES``). A gateway with several stores has it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from bk_core.client.files.data import PIECE_BYTES, RUN_PIECES, STAGING_BYTES
from bk_core.errors import OperationTimeoutError
from bk_core.threads import Monitor

SMALL_BYTES = 512 << 10
LARGE_BYTES = 2 * RUN_PIECES * PIECE_BYTES  # a run that is written, and one that is gathered


class Uploads:
    """An upload needs a place from its ``SMALL_BYTES`` on. There is one for each ``LARGE_BYTES`` of the
    budget; whoever finds none waits."""

    def __init__(self, budget: int = STAGING_BYTES) -> None:
        self._free = self.places = budget // LARGE_BYTES
        self._freed = Monitor()

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
                    f"{self.places} other uploads of more than {SMALL_BYTES >> 10} KiB did not come to their end in {patience_s:g} s, "
                    "and there is no memory for more at once: nothing was written"
                )
            self._free -= 1
