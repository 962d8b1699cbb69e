"""The answer to a batch read, taken part by part as it arrives. Each byte is verified and copied out while it is in the processor's cache.

No entry is handed out before the last byte is there and every entry is verified.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bk_core import kernels
from bk_core.errors import DigestError, RemoteProtocolError

OFFSET_BYTES = 8
ITEM_BYTES_MIN = 4 + 32  # the length, and the header of an entry


@dataclass(frozen=True, slots=True)
class BodyCheck:
    """The means by which the bodies of an answer are verified: a number of the ledger metadata's digest enum, and the key of HMAC."""

    digest_type: int
    hmac_key: bytes = field(default=b"", repr=False)


class BatchParts:
    """Collects the bodies ``(u32 length, body)*`` of one answer: ``size`` bytes about entries ``first``, ``first + 1``, ...;
    ``entries_max`` were asked for.

    ``count`` payloads are verified, ``values[offsets[i]:offsets[i + 1]]``. ``problem`` is the error behind them. After a DigestError they
    are good, unless more entries came than were asked for; after that, or a RemoteProtocolError, no entry is good (RD-8, RD-10).
    """

    __slots__ = ("_arguments", "_entries_max", "_first", "_ledger_id", "_offsets", "_values", "count", "problem")

    def __init__(self, check: BodyCheck, ledger_id: int, first: int, entries_max: int, size: int) -> None:
        self.count = 0
        self.problem: DigestError | RemoteProtocolError | None = None
        self._ledger_id = ledger_id
        self._first = first
        self._entries_max = entries_max
        self._values = kernels.new_block(size)  # the payloads need a little less
        places = min(entries_max, size // ITEM_BYTES_MIN) + 1  # and one place that shows if there are too many
        self._offsets = memoryview(bytearray(OFFSET_BYTES * (places + 1)))
        self._arguments = ledger_id, check.digest_type, check.hmac_key, first, self._values, self._offsets

    def take(self, data: memoryview, rest: int) -> tuple[int, int]:
        """Take ``data``, the first of the ``rest`` bytes that were not taken yet. Return (the number of bytes that are finished, the size
        of the item that begins behind them or 0). Bytes behind a problem are skipped."""
        if self.problem is not None:
            return len(data), 0
        try:
            done, self.count, wanted = kernels.unpack_part(data, *self._arguments, self.count)
            if wanted > rest - done or self.count > self._entries_max:
                self._refuse(wanted, rest - done)
            return done, wanted
        except DigestError as error:
            self.count, self.problem = int(error.context["item"]), error
        except RemoteProtocolError as error:
            self.count, self.problem = 0, error
        return len(data), 0

    def _refuse(self, size: int, rest: int) -> None:
        """Raise the error for an entry that nobody asked for, or for an item of ``size`` bytes of which only ``rest`` can come."""
        if self.count <= self._entries_max:
            raise RemoteProtocolError(f"item {self.count} is cut off: {rest} of {size} bytes, its length included")
        message = f"a read of ledger {self._ledger_id} from entry {self._first} brought more than {self._entries_max} entries"
        raise DigestError(message, item=0, ledger=self._ledger_id)

    @property
    def values(self) -> bytes | memoryview:
        """Return the payloads where they lie, or a copy if they fill less than half of the memory, so that whoever keeps them keeps at most
        twice their bytes."""
        size = self.offsets[self.count]
        return bytes(self._values[:size]) if 2 * size < len(self._values) else self._values[:size].toreadonly()

    @property
    def offsets(self) -> memoryview:
        return self._offsets.cast("q")[: self.count + 1].toreadonly()
