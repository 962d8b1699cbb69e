"""The questions of a recovery to bookies, and the answers so far. This is bookkeeping only: nothing here sends or decides to close.

An inquiry is the same request to several positions of one ensemble. An answer is good, a denial (RC-10), or unknown (RC-11). A position
with an unknown answer may be asked again, ``repeats_max`` times each, while others are still silent: a bookie that hangs must not use up
the patience meant for one that was busy (RC-5, RC-10).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bk_core.protocol.entry import layout
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.wire.messages import Status


@dataclass(slots=True, eq=False)
class Inquiry:
    """``ensemble`` is asked by position; ``left`` are the positions not asked yet, in the order in which they will be."""

    ensemble: tuple[BookieId, ...]
    left: list[int]
    repeats_max: int
    asked: set[int] = field(default_factory=set)
    unknown: dict[int, Status] = field(default_factory=dict)
    repeats: dict[int, int] = field(default_factory=dict)

    def take(self, count: int | None = None) -> list[int]:
        """Return the next ``count`` positions to ask (all, if None), and count them as asked."""
        end = len(self.left) if count is None else count
        taken, self.left = self.left[:end], self.left[end:]
        self.asked.update(taken)
        return taken

    def answered(self, position: int) -> None:
        """Note that the one answer of ``position`` is here; the caller adds its meaning."""
        self.asked.discard(position)

    def repeatable(self) -> list[int]:
        return sorted(p for p in self.unknown if self.repeats.get(p, 0) < self.repeats_max)

    def again(self) -> list[int]:
        """Return the unknown positions whose turn it is to be asked again, and count them as asked."""
        positions = self.repeatable()
        for position in positions:
            del self.unknown[position]
            self.repeats[position] = self.repeats.get(position, 0) + 1
        self.asked.update(positions)
        return positions

    @property
    def may_come_back(self) -> bool:
        """True if a bookie that could not be reached may still decide it (RD-13)."""
        return Status.UNAVAILABLE in self.unknown.values()

    def forgive(self) -> None:
        """Let the bookies that could not be reached be asked once more, whatever the budget (RD-13)."""
        for position, status in self.unknown.items():
            if status is Status.UNAVAILABLE:
                self.repeats[position] = min(self.repeats.get(position, 0), self.repeats_max - 1)

    @property
    def exhausted(self) -> bool:
        """True when no further answer can come."""
        return not self.asked and not self.left and not self.repeatable()

    def unknown_text(self) -> str:
        texts = {p: "corrupt copy" if status is Status.OK else status.name for p, status in sorted(self.unknown.items())}
        return ", ".join(f"{self.ensemble[p]} ({text})" for p, text in texts.items()) or "nobody"


@dataclass(slots=True, eq=False)
class FenceInquiry(Inquiry):
    """The request to fence (RC-4). ``heard`` maps each position known to be fenced to the LAC it gave, or -1 if it gave none; OK and
    denials are heard (Q-4)."""

    heard: dict[int, int] = field(default_factory=dict)

    @property
    def highest_lac(self) -> int:
        return max(self.heard.values(), default=-1)


@dataclass(slots=True, eq=False)
class LafrInquiry(Inquiry):
    """The request for the explicit LACs of a guaranteed ledger (G-12, G-22). It is best effort: never repeated, never needed."""

    highest: int = -1


@dataclass(slots=True, eq=False)
class EntryInquiry(Inquiry):
    """The request for one entry to its write set (RC-8, RC-10)."""

    entry_id: int = -1
    denied: set[int] = field(default_factory=set)
    entry: layout.Entry | None = None

    @property
    def recoverable(self) -> bool:
        """True if one verified copy is there, which is enough (RC-10, D2)."""
        return self.entry is not None

    def absent(self, denials_needed: int) -> bool:
        """True if so many bookies promised never to take the entry that no ack quorum can exist any more (RC-10). Unknown answers are not
        among them (RC-11)."""
        return len(self.denied) >= denials_needed


@dataclass(slots=True, eq=False)
class LengthInquiry(Inquiry):
    """The request for the header of the last entry, which is committed (RC-16)."""

    entry_id: int = -1


@dataclass(slots=True, eq=False)
class BarrierInquiry(Inquiry):
    """The bookies that proved, by a journaled request, that their fence mark is durable (RC-11a). Those in ``read_only`` take no LAC,
    and are asked for a force."""

    confirmed: set[int] = field(default_factory=set)
    read_only: set[int] = field(default_factory=set)
