"""Computes the positions of an ensemble that hold an entry, and the number of answers that is enough (Q-1..Q-10).

There are two kinds of sets, both as bits of an int: a set of positions (bit p is position p) and, for a run of consecutive entries, a set
of entries (bit i is the run's entry i). Work on a run is a handful of operations on such ints, however many entries it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Distribution:
    """The round-robin striping of one ledger: E, Qw, Qa."""

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int

    @property
    def striped(self) -> bool:
        return self.ensemble_size != self.write_quorum_size

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Return WS(e) in order, position e mod E first; e has 64 bits (SM-5)."""
        first = entry_id % self.ensemble_size
        return tuple((first + k) % self.ensemble_size for k in range(self.write_quorum_size))

    def write_mask(self, entry_id: int) -> int:
        mask = 0
        for position in self.write_set(entry_id):
            mask |= 1 << position
        return mask

    def holds(self, position: int, entry_id: int) -> bool:
        return (position - entry_id) % self.ensemble_size < self.write_quorum_size

    def write_sets(self, first_entry_id: int, count: int) -> WriteSet:
        """Return the write sets of a run of entries."""
        return _write_sets(self.ensemble_size, self.write_quorum_size, first_entry_id % self.ensemble_size, count)

    @property
    def denials_needed(self) -> int:
        """The number QC = Qw - Qa + 1: once so many bookies of one write set definitely deny an entry, no ack quorum can exist (Q-2)."""
        return self.write_quorum_size - self.ack_quorum_size + 1

    def covered(self, heard: Iterable[int]) -> bool:
        """Return True if these positions cover every write set (RR coverage, Q-4)."""
        coverage = QuorumCoverage(self)
        for position in heard:
            coverage.hear(position)
        return coverage.covered


@dataclass(frozen=True, slots=True)
class WriteSet:
    """The write sets of consecutive entries: bit i of ``held[p]`` says that position p is in the write set of entry i.

    ``entries`` is the set of all of them.
    """

    entries: int
    held: tuple[int, ...]


@lru_cache(maxsize=4096)
def _write_sets(ensemble_size: int, write_quorum_size: int, phase: int, count: int) -> WriteSet:
    """Return the write sets of ``count`` entries. Round robin repeats every E entries, so all runs of one length share E sets."""
    periods = count // ensemble_size + 1
    repeat = ((1 << ensemble_size * periods) - 1) // ((1 << ensemble_size) - 1)
    everything = (1 << count) - 1
    held = []
    for position in range(ensemble_size):
        period = sum(1 << i for i in range(ensemble_size) if (position - phase - i) % ensemble_size < write_quorum_size)
        held.append(period * repeat & everything)
    return WriteSet(everything, tuple(held))


class QuorumCoverage:
    """RR coverage (Q-4): in every window of Qw positions fewer than Qa were not heard.

    It is exact per write set (Q-7). Neither a count over the ensemble (Q-3, Q-8) nor one answer per window would be enough.
    """

    def __init__(self, distribution: Distribution) -> None:
        self.heard = 0
        self._unheard_allowed = distribution.ack_quorum_size - 1
        self._windows = tuple(distribution.write_mask(start) for start in range(distribution.ensemble_size))

    def hear(self, position: int) -> None:
        self.heard |= 1 << position

    @property
    def covered(self) -> bool:
        return all((window & ~self.heard).bit_count() <= self._unheard_allowed for window in self._windows)


def in_at_least(needed: int, sets: Sequence[int]) -> int:
    """Return the entries that are in at least ``needed`` (1 or more) of ``sets``."""
    if needed == 2:  # almost every ledger has this
        once = twice = 0
        for members in sets:
            twice |= once & members
            once |= members
        return twice
    reached = [0] * needed  # reached[k]: in more than k of the sets seen so far
    for members in sets:
        for k in range(needed - 1, 0, -1):
            reached[k] |= reached[k - 1] & members
        reached[0] |= members
    return reached[-1]
