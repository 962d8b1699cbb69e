"""Which positions of an ensemble hold an entry, and how many answers are enough (Q-1..Q-7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Distribution:
    """Round-robin striping of one ledger: E, Qw, Qa. Positions are sets of bits: bit p stands for position p."""

    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int

    @property
    def striped(self) -> bool:
        return self.ensemble_size != self.write_quorum_size

    @property
    def all_positions(self) -> int:
        return (1 << self.ensemble_size) - 1

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """WS(e) in order, e mod E first and in 64 bits (SM-5)."""
        first = entry_id % self.ensemble_size
        return tuple((first + k) % self.ensemble_size for k in range(self.write_quorum_size))

    def write_mask(self, entry_id: int) -> int:
        mask = 0
        for position in self.write_set(entry_id):
            mask |= 1 << position
        return mask

    def holds(self, position: int, entry_id: int) -> bool:
        return (position - entry_id) % self.ensemble_size < self.write_quorum_size

    @property
    def denials_needed(self) -> int:
        """QC = Qw - Qa + 1 (Q-2): so many definite negatives in one write set and no ack quorum can exist."""
        return self.write_quorum_size - self.ack_quorum_size + 1

    def covered(self, heard: Iterable[int]) -> bool:
        """RR coverage (Q-4): every window of Qw positions has fewer than Qa unheard ones."""
        known = set(heard)
        size = self.ensemble_size
        return all(
            sum((start + k) % size not in known for k in range(self.write_quorum_size)) < self.ack_quorum_size for start in range(size)
        )
