"""The state of entries on their way: which bookies have them, were sent them, or failed, run by run.

There is no object per entry: a run of 500 adds is one PendingAdds whose AckSet keeps, per position, sets of entries as bits of an int
(``distribution``). An answer for a run of entries is one or-operation, an ack quorum is a threshold over E such ints, and the committed
prefix is the trailing ones of the result.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from operator import and_, invert
from typing import Any

from bk_core.protocol.ledger.distribution import WriteSet, in_at_least
from bk_core.protocol.ledger.run import PackedAdds


def trailing_ones(entries: int) -> int:
    """Return the number of entries, from the first one on, that are in the set without a gap."""
    return (~entries & (entries + 1)).bit_length() - 1


class AckSet:
    """The answers of every position to the entries of one run; each list has one set of entries per position.

    ``acked``        answered OK by the bookie that holds the position (its ack leaves with it: EC-12)
    ``wanted``       in the position's write set and still of interest; given up after a late failure (WR-10) or in an older fragment
    ``outstanding``  sent to the bookie at the position and not answered
    ``failed``       failed there and not answered OK since
    """

    __slots__ = ("acked", "failed", "outstanding", "wanted", "write_set")

    def __init__(self, write_set: WriteSet) -> None:
        size = len(write_set.held)
        self.write_set = write_set
        self.wanted = list(write_set.held)
        self.acked = [0] * size
        self.outstanding = [0] * size
        self.failed = [0] * size

    def acknowledge(self, position: int, entries: int) -> None:
        self.acked[position] |= entries & self.write_set.held[position]
        self.outstanding[position] &= ~entries
        self.failed[position] &= ~entries

    def fail(self, position: int, entries: int) -> None:
        self.outstanding[position] &= ~entries
        self.failed[position] |= entries

    def give_up(self, position: int, entries: int) -> None:
        """Stop waiting for this position's answers about these entries, which are safe without it (WR-10)."""
        self.wanted[position] &= ~entries
        self.failed[position] &= ~entries

    def missing(self, position: int) -> int:
        return self.wanted[position] & ~self.acked[position]

    def unsent(self, position: int) -> int:
        """Return the entries that the position lacks and that are not on their way to it (EC-11)."""
        return self.wanted[position] & ~(self.acked[position] | self.outstanding[position])

    def in_quorum(self, needed: int, excluded: Collection[int]) -> int:
        """Return the entries that ``needed`` positions acknowledged, without those in ``excluded`` (WR-7)."""
        if not excluded:
            return in_at_least(needed, self.acked)
        return in_at_least(needed, [acked for p, acked in enumerate(self.acked) if p not in excluded])

    def everywhere(self, excluded: Collection[int]) -> int:
        """Return the entries acknowledged at every position of their write set; an ``excluded`` position counts as one that has
        acknowledged nothing (G-1, G-6)."""
        entries = self.write_set.entries
        for position, held in enumerate(self.write_set.held):
            entries &= ~held if position in excluded else ~held | self.acked[position]
        return entries

    @property
    def settled(self) -> bool:
        """Return True if no answer is awaited any more (WR-9)."""
        return not any(map(and_, self.wanted, map(invert, self.acked)))

    def move(self, position: int, entries: int) -> None:
        """Note that another bookie holds the position: it has acknowledged none of ``entries``. The other entries belong to an older
        fragment."""
        self.acked[position] &= ~entries
        self.outstanding[position] = 0
        self.failed[position] = 0
        self.wanted[position] = self.write_set.held[position] & entries

    def forget(self, entries: int) -> None:
        """Forget these entries, which are no longer pending (G-11)."""
        for position in range(len(self.wanted)):
            self.wanted[position] &= ~entries
            self.failed[position] &= ~entries
            self.outstanding[position] &= ~entries


class PendingAdds:
    """One run in flight. ``bounds`` are its payload offsets; ``token`` is the application's until it is answered."""

    __slots__ = ("acks", "bounds", "first", "first_sent_ns", "last", "payload_bytes", "run", "sent_ns", "token", "waiting")

    def __init__(self, run: PackedAdds, acks: AckSet, bounds: memoryview, token: Any, now_ns: int) -> None:
        self.run = run
        self.acks = acks
        self.bounds = bounds
        self.token = token
        self.waiting = True  # the token was not answered yet
        self.first = run.first_entry_id
        self.last = run.last_entry_id
        self.payload_bytes = bounds[run.count] - bounds[0]
        self.first_sent_ns = now_ns  # WR-14: this does not change when something is sent again
        self.sent_ns = [now_ns] * len(acks.wanted)

    def between(self, first: int, last: int) -> int:
        """Return the set of those entries of the run that lie in ``first``..``last``."""
        if first <= self.first and last >= self.last:
            return self.acks.write_set.entries
        low = first - self.first if first > self.first else 0
        high = (last if last < self.last else self.last) + 1 - self.first
        return (1 << high) - (1 << low) if low < high else 0

    def shifted(self, entries: int, first: int) -> int:
        """Convert a set of entries whose bit 0 is entry ``first`` into one whose bit 0 is this run's first entry."""
        return entries << first - self.first if first >= self.first else entries >> self.first - first

    def after(self, entry_id: int) -> int:
        return self.between(entry_id + 1, self.last)

    def bytes_after(self, entry_id: int) -> int:
        keep = min(max(0, entry_id + 1 - self.first), self.run.count)
        return self.bounds[self.run.count] - self.bounds[keep]


class PendingWindow:
    """The runs in progress, by entry id. ``payload_bytes`` and ``entries`` are their totals (WR-15, G-16)."""

    def __init__(self) -> None:
        self.payload_bytes = 0
        self.entries = 0
        self._runs: list[PendingAdds] = []
        self._firsts: list[int] = []

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[PendingAdds]:
        return iter(self._runs)

    def add(self, pending: PendingAdds) -> None:
        """Add a run at its place in the order of ids (WR-2)."""
        index = bisect_left(self._firsts, pending.first)
        self._runs.insert(index, pending)
        self._firsts.insert(index, pending.first)
        self.payload_bytes += pending.payload_bytes
        self.entries += pending.run.count

    def _index(self, entry_id: int) -> int:
        """Return the index of the first run that ends at or after ``entry_id``."""
        index = bisect_right(self._firsts, entry_id) - 1
        return index if index >= 0 and self._runs[index].last >= entry_id else index + 1

    def after(self, entry_id: int) -> Iterator[PendingAdds]:
        """Yield the runs with entries above ``entry_id``."""
        return islice(self._runs, self._index(entry_id + 1), None)

    def overlapping(self, first: int, count: int) -> list[tuple[PendingAdds, int]]:
        """Return the runs with entries ``first``..``first + count - 1``, each with the set of them."""
        last = first + count - 1
        found: list[tuple[PendingAdds, int]] = []
        runs = self._runs
        for index in range(self._index(first), len(runs)):
            pending = runs[index]
            if pending.first > last:
                break
            found.append((pending, pending.between(first, last)))
        return found

    def acknowledge(self, position: int, first: int, count: int, entries: int | None, now_ns: int) -> None:
        """Note that ``position`` has entries ``first``..``first + count - 1``, or only those in the set ``entries`` if it is given.

        The clock of a long run starts again, because a run that moves is not late.
        """
        last = first + count - 1
        runs = self._runs
        for index in range(self._index(first), len(runs)):
            pending = runs[index]
            if pending.first > last:
                break
            those = pending.between(first, last)
            if entries is not None:
                those &= pending.shifted(entries, first)
            pending.acks.acknowledge(position, those)
            pending.sent_ns[position] = now_ns

    def prefix(self, reached: int, good: Callable[[PendingAdds, Collection[int]], int], excluded: Collection[int]) -> int:
        """Return the highest id that is reached from ``reached`` without a gap over entries in the set ``good(run, excluded)``."""
        runs = self._runs
        for index in range(self._index(reached + 1), len(runs)):
            pending = runs[index]
            if pending.first > reached + 1:
                break
            entries = good(pending, excluded)
            if pending.first == reached + 1 and entries == pending.acks.write_set.entries:
                reached = pending.last
                continue
            reached += trailing_ones(entries >> reached + 1 - pending.first)
            if reached < pending.last:
                break
        return reached

    def drop_settled(self, up_to: int) -> Sequence[PendingAdds]:
        """Drop, from the front, runs that end at ``up_to`` or before and wait for no answer (WR-9)."""
        end, runs = 0, self._runs
        while end < len(runs) and runs[end].last <= up_to and runs[end].acks.settled:
            self.payload_bytes -= runs[end].payload_bytes
            self.entries -= runs[end].run.count
            end += 1
        if not end:
            return ()
        dropped = runs[:end]
        del runs[:end], self._firsts[:end]
        return dropped

    def cut(self, last: int) -> list[PendingAdds]:
        """Forget every entry above ``last`` and return the runs that had some, in order (G-11)."""
        touched = list(self.after(last))
        for pending in touched:
            pending.acks.forget(pending.after(last))
            if pending.first > last:
                self.payload_bytes -= pending.payload_bytes
                self.entries -= pending.run.count
        index = bisect_left(self._firsts, last + 1)
        del self._runs[index:], self._firsts[index:]
        return touched

    def clear(self) -> None:
        self._runs.clear()
        self._firsts.clear()
        self.payload_bytes = self.entries = 0
