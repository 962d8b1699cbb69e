"""The bytes that a check or a copy may hold in memory and read per second."""

from __future__ import annotations

from dataclasses import dataclass

ENTRY_BYTES_GUESS = 64 * 1024  # used until an entry was seen
BATCHES_IN_BUDGET = 4  # so that several replicas can be read at once


@dataclass(slots=True)
class ByteBudget:
    """A bound on bytes asked for or held, and a rate. With ``bytes_per_second`` None only ``bytes_max`` is a bound.

    An entry's size is not known before it is read, so a single read reserves as much as the largest entry so far took. Entries larger than
    all before can exceed the bound, by as many reads as are in flight at most. Batch reads carry the bound in the request.
    """

    bytes_max: int
    bytes_per_second: int | None = None
    batch_bytes_max: int = 4 * 1024 * 1024  # an answer has to fit into one frame
    in_flight: int = 0
    entry_bytes: int = ENTRY_BYTES_GUESS  # the bytes that one entry may take: the largest seen so far
    _seen: bool = False
    _free_at_ns: int = 0

    def __post_init__(self) -> None:
        if self.bytes_per_second is not None:
            self.bytes_max = max(1, min(self.bytes_max, self.bytes_per_second))  # a burst lasts one second at most

    @property
    def batch_bytes(self) -> int:
        return max(1, min(self.batch_bytes_max, self.bytes_max // BATCHES_IN_BUDGET))

    def admits(self, size: int) -> bool:
        """Return True if ``size`` more bytes may be asked for. One request is always admitted, because one large entry would block for ever
        otherwise."""
        return self.in_flight == 0 or self.in_flight + size <= self.bytes_max

    def pause_ns(self, now_ns: int) -> int:
        """Return the time for which the rate forbids another request, or 0."""
        return max(0, self._free_at_ns - now_ns)

    def reserve(self, size: int) -> None:
        self.in_flight += size

    def release(self, size: int) -> None:
        self.in_flight -= size

    def note_read(self, size: int, now_ns: int) -> None:
        """Count ``size`` bytes that arrived against the rate."""
        if self.bytes_per_second:
            self._free_at_ns = max(self._free_at_ns, now_ns) + size * 1_000_000_000 // self.bytes_per_second

    def note_entry(self, size: int) -> None:
        self.entry_bytes = max(self.entry_bytes, size) if self._seen else size
        self._seen = True
