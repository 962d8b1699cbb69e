"""The size of a measurement."""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.bookie.apache import ApacheSettings

# Entry logs past the page cache, which Apache's bookies can do since 4.15: half of their CPU where memory is dear to touch (README.md).
APACHE_SETTINGS = ApacheSettings(lines={"dbStorage_directIOEntryLogger": "true"})
ROUNDS, ROUNDS_QUICK = 5, 3


@dataclass(frozen=True, slots=True)
class Settings:
    """``quick``: fewer sizes and bytes, for a look within minutes; ``rounds`` are counted after one that is not. ``asked``: somebody
    wishes just so many, everywhere."""

    quick: bool = False
    rounds: int = ROUNDS
    asked: bool = False

    @classmethod
    def of(cls, *, quick: bool, rounds: int | None) -> Settings:
        return cls(quick, rounds or (ROUNDS_QUICK if quick else ROUNDS), rounds is not None)

    def at_most(self, rounds: int) -> int:
        """Rounds of what is too long for all of them."""
        return self.rounds if self.asked else min(rounds, self.rounds)

    @property
    def warm_up_s(self) -> float:
        """The warm-up of each JVM on each kind of cluster, in seconds."""
        return 4.0 if self.quick else 12.0

    @property
    def sample_s(self) -> float:
        """The time that a sample should take at least: CPU time is counted in ticks of 10 ms."""
        return 0.4 if self.quick else 1.0
