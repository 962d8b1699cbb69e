"""The bytes that a check or a copy may hold in memory and read per second."""

from __future__ import annotations

from dataclasses import dataclass

ENTRY_BYTES_GUESS = 64 * 1024  # until an entry was seen
BATCHES_IN_BUDGET = 4  # so that several replicas can be read at once


@dataclass(slots=True)
class ByteBudget:
    """Bytes asked for or held, and a rate. ``bytes_per_second`` None: no bound but ``bytes_max``.

    Nobody knows an entry's size before it is read: a single read reserves as much as the largest entry so far took. What is larger than all
    before can go over the bound, by as many reads as are in flight at most; batch reads carry the bound in the request.
    """

    bytes_max: int
    bytes_per_second: int | None = None
    batch_bytes_max: int = 4 * 1024 * 1024  # an answer has to fit into one frame
    in_flight: int = 0
    entry_bytes: int = ENTRY_BYTES_GUESS  # what one entry may take: the largest seen so far
    _seen: bool = False
    _free_at_ns: int = 0

    def __post_init__(self) -> None:
        if self.bytes_per_second is not None:
            self.bytes_max = max(1, min(self.bytes_max, self.bytes_per_second))  # a burst of one second at most

    @property
    def batch_bytes(self) -> int:
        return max(1, min(self.batch_bytes_max, self.bytes_max // BATCHES_IN_BUDGET))

    def admits(self, size: int) -> bool:
        """True if ``size`` more bytes may be asked for. Something always may, or one large entry would block for ever."""
        return self.in_flight == 0 or self.in_flight + size <= self.bytes_max

    def pause_ns(self, now_ns: int) -> int:
        """The time during which the rate wants nothing to be asked; 0 if it does not mind."""
        return max(0, self._free_at_ns - now_ns)

    def reserve(self, size: int) -> None:
        self.in_flight += size

    def release(self, size: int) -> None:
        self.in_flight -= size

    def note_read(self, size: int, now_ns: int) -> None:
        """``size`` bytes arrived: they count against the rate."""
        if self.bytes_per_second:
            self._free_at_ns = max(self._free_at_ns, now_ns) + size * 1_000_000_000 // self.bytes_per_second

    def note_entry(self, size: int) -> None:
        self.entry_bytes = max(self.entry_bytes, size) if self._seen else size
        self._seen = True
