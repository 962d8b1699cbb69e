"""States of many entries of one replica as stretches of equal ones: 32 bytes a stretch, however many entries it has."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from bk_core.protocol.ledger.distribution import Distribution


class EntryState(IntEnum):
    """The state of one copy of one entry.

    GOOD: it was read, and digest and ids are right. LISTED: the bookie lists it, and it was not read. MISSING: the bookie has none.
    CORRUPT: it was read, and digest or ids are wrong. UNREADABLE: the bookie answers about this entry with an error. SILENT: the bookie
    does not answer. UNASKED: the bookie is not registered, and was not asked.
    """

    GOOD = 1
    LISTED = 2
    MISSING = 3
    CORRUPT = 4
    UNREADABLE = 5
    SILENT = 6
    UNASKED = 7

    @property
    def is_there(self) -> bool:
        """True if nothing speaks against the copy."""
        return self <= EntryState.LISTED


@dataclass(frozen=True, slots=True)
class Stretch:
    """The entries that a position holds of ``first`` to ``last``, both inclusive: ``count`` of them, all in one state."""

    first: int
    last: int
    count: int
    state: EntryState


class Stripe:
    """The entries from ``first`` on that one position of an ensemble holds, in their order."""

    __slots__ = ("_held", "_size", "first", "mask")

    def __init__(self, distribution: Distribution, position: int, first: int) -> None:
        self.first = first
        self._size = distribution.ensemble_size
        self._held = [offset for offset in range(self._size) if distribution.holds(position, first + offset)]
        self.mask = bytes(255 * (offset in self._held) for offset in range(self._size))

    @property
    def whole(self) -> bool:
        """True if the position holds every entry."""
        return len(self._held) == self._size

    def nth(self, index: int) -> int:
        """Return the id of the entry with ``index``, counted from 0."""
        rounds, rest = divmod(index, len(self._held))
        return self.first + rounds * self._size + self._held[rest]

    def held(self, last: int) -> int:
        """Return how many entries up to ``last`` the position holds."""
        rounds, rest = divmod(last - self.first + 1, self._size)
        return rounds * len(self._held) + sum(offset < rest for offset in self._held)

    def lanes(self, last: int) -> list[tuple[int, int]]:
        """Return first entry and step of the sequences that make up the stripe up to ``last``."""
        step = 1 if self.whole else self._size
        starts = [self.first] if self.whole else [self.first + offset for offset in self._held]
        return [(start, step) for start in starts if start <= last]

    def masked(self, states: bytes | bytearray) -> bytes:
        """Return the states of consecutive entries from ``first`` on, without those of entries that the position does not hold."""
        if self.whole:
            return bytes(states)
        mask = (self.mask * (len(states) // self._size + 1))[: len(states)]
        kept = int.from_bytes(states, "big") & int.from_bytes(mask, "big")
        return kept.to_bytes(len(states), "big").translate(None, b"\0")


class Stretches:
    """The states of one position's entries, ascending. Iterate over its stretches; ``counts`` adds them up."""

    __slots__ = ("_counts", "_firsts", "_lasts", "_states")

    def __init__(self) -> None:
        self._firsts, self._lasts, self._counts, self._states = array("q"), array("q"), array("q"), array("b")

    def add(self, first: int, last: int, count: int, state: int) -> None:
        """Append the next entries that the position holds. They join the stretch before if their state is the same."""
        if self._states and self._states[-1] == state:
            self._lasts[-1] = last
            self._counts[-1] += count
            return
        self._firsts.append(first)
        self._lasts.append(last)
        self._counts.append(count)
        self._states.append(state)

    def add_states(self, stripe: Stripe, states: bytes | bytearray) -> None:
        """Append the states of consecutive entries from ``stripe.first`` on; those of entries that are not held are left out."""
        held = stripe.masked(states)
        at = 0
        while at < len(held):
            rest = held[at : at + _LOOK]
            same = len(rest) - len(rest.lstrip(rest[:1]))
            self.add(stripe.nth(at), stripe.nth(at + same - 1), same, rest[0])
            at += same

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[Stretch]:
        for first, last, count, state in zip(self._firsts, self._lasts, self._counts, self._states, strict=True):
            yield Stretch(first, last, count, EntryState(state))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stretches) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        told = ", ".join(f"{one.first}..{one.last} {one.state.name}" for one, _ in zip(self, range(4), strict=False))
        return f"<Stretches {told}{', ...' if len(self) > 4 else ''}>"

    @property
    def counts(self) -> Mapping[EntryState, int]:
        """The number of entries in each state that occurs."""
        found: dict[EntryState, int] = {}
        for count, state in zip(self._counts, self._states, strict=True):
            found[EntryState(state)] = found.get(EntryState(state), 0) + count
        return found


_LOOK = 4096  # bytes looked at for one stretch: what is cut off here is joined again
