"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """``quick``: fewer sizes and bytes, for a look within minutes; ``rounds`` are counted after one that is not."""

    quick: bool = False
    rounds: int = 5

    @property
    def warm_up_s(self) -> float:
        """Of each JVM on each kind of cluster."""
        return 4.0 if self.quick else 12.0

    @property
    def sample_s(self) -> float:
        """What a sample should take at least: CPU time is counted in ticks of 10 ms."""
        return 0.4 if self.quick else 1.0
