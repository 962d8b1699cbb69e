"""Counts copies: what each bookie of a fragment holds, and how many bookies hold each of its entries now."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState


@dataclass(frozen=True, slots=True)
class LedgerFragment:
    """Consecutive entries of a ledger that lie on the same bookies.

    ``index`` counts from 0. ``last_entry_id`` is None for the last fragment of a ledger that is not CLOSED, which may grow, and is below
    ``first_entry_id`` where a fragment holds nothing. Entry e lies on ``write_quorum_size`` bookies of ``ensemble``, round robin.
    """

    index: int
    first_entry_id: int
    last_entry_id: int | None
    ensemble: tuple[BookieId, ...]
    write_quorum_size: int

    @property
    def entries(self) -> int | None:
        """The number of entries; None while it may grow."""
        return None if self.last_entry_id is None else max(0, self.last_entry_id - self.first_entry_id + 1)

    def copies_on(self, position: int) -> int | None:
        """Return the number of entries whose copy lies on the bookie at ``position`` of the ensemble; None while it may grow."""
        count = self.entries
        if count is None:
            return None
        size = len(self.ensemble)
        rounds, rest = divmod(count, size)
        striping = Distribution(size, self.write_quorum_size, 1)
        return rounds * self.write_quorum_size + sum(striping.holds(position, self.first_entry_id + one) for one in range(rest))

    def live_copies(self, live: Collection[BookieId]) -> tuple[int, int]:
        """Return the least and the greatest number of copies of an entry that lie on the bookies ``live``. Of a fragment without entries,
        and of one that may grow, it is that of the entries that may come."""
        size = len(self.ensemble)
        striping = Distribution(size, self.write_quorum_size, 1)
        count = min(self.entries or size, size)
        found = [sum(self.ensemble[position] in live for position in striping.write_set(self.first_entry_id + one)) for one in range(count)]
        return min(found), max(found)


def fragments_of(metadata: LedgerMetadata) -> tuple[LedgerFragment, ...]:
    """Return the fragments of a ledger in order, with their ends."""
    closed = metadata.state is LedgerState.CLOSED
    ends: list[int | None] = [fragment.first_entry_id - 1 for fragment in metadata.fragments[1:]]
    ends.append(metadata.last_entry_id if closed else None)
    if closed:  # a fragment that was begun and got no entry lies after the end
        ends = [min(end, metadata.last_entry_id) for end in ends if end is not None]
    return tuple(
        LedgerFragment(index, fragment.first_entry_id, end, fragment.ensemble, metadata.write_quorum_size)
        for index, (fragment, end) in enumerate(zip(metadata.fragments, ends, strict=True))
    )


def told_copies(least: int, most: int, wanted: int) -> str:
    """Return ``2 of 3``, or ``1 to 2 of 3`` where entries differ."""
    return f"{least} of {wanted}" if least == most else f"{least} to {most} of {wanted}"
