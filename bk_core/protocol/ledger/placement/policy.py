"""The interface of placement policies, and their common base: one order of preference per choice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bk_core.display.words import counted
from bk_core.errors import NotEnoughBookiesError
from bk_core.protocol.ledger.metadata import BookieId


class Placement(Protocol):
    """A placement policy. Read-only bookies never count as writable, so they are never chosen."""

    def new_ensemble(self, size: int, write_quorum_size: int | None = None) -> tuple[BookieId, ...]:
        """Return ``size`` distinct bookies for write sets of ``write_quorum_size`` positions (None: of all). Raises NotEnoughBookiesError
        (CR-2)."""
        ...

    def replace(self, ensemble: Sequence[BookieId], positions: Sequence[int], avoid: Collection[BookieId] = ()) -> dict[int, BookieId]:
        """Return position -> replacement for as many of ``positions`` as possible; no replacement is in ``ensemble`` or in ``avoid`` (EC-6,
        RR-6)."""
        ...

    def domain_of(self, bookie: BookieId) -> str:
        """Return the fault domain: bookies of one domain are expected to fail together (WR-7's optional predicate)."""
        ...


@dataclass(slots=True)
class Shuffle:
    """Yields writable bookies in a fresh random order. ``suspect`` bookies failed lately (metadata.md 5.6)."""

    writable: Callable[[], Sequence[BookieId]]
    random: Callable[[], float]
    suspect: Callable[[], Collection[BookieId]]

    def candidates(self, excluded: Collection[BookieId] = ()) -> tuple[list[BookieId], list[BookieId]]:
        """Return (bookies to prefer, quarantined bookies) without ``excluded``. They are sorted before chance is used, so that the seed
        alone decides."""
        keyed = sorted((self.random(), bookie) for bookie in sorted(set(self.writable()) - set(excluded)))
        suspects = set(self.suspect())
        return [b for _, b in keyed if b not in suspects], [b for _, b in keyed if b in suspects]


def fill(
    ensemble: Iterable[BookieId], positions: Sequence[int], choose: Callable[[int, list[BookieId]], BookieId | None]
) -> dict[int, BookieId]:
    """Replace one position after the other, each in view of the replacements before. A position without a candidate stays (EC-6).

    ``choose`` gets the position and the partly replaced ensemble.
    """
    current = list(ensemble)
    chosen: dict[int, BookieId] = {}
    for position in positions:
        bookie = choose(position, current)
        if bookie is not None:
            current[position] = chosen[position] = bookie
    return chosen


def not_enough(size: int, registered: int, why: str = "") -> NotEnoughBookiesError:
    if not registered:
        needs = f"a ledger with ensemble size {size} needs {counted(size, 'writable bookie')}"
        how = "start bookies with the same metadata service URI, its path included"
        room = "or make room on the disks of those that are read-only (`bk bookie ls`)"
        return NotEnoughBookiesError(f"{needs}, and none is registered in this cluster as writable{why}; {how}, {room}")
    there = f"{registered} {'is' if registered == 1 else 'are'} registered"
    return NotEnoughBookiesError(
        f"a ledger with ensemble size {size} needs {counted(size, 'writable bookie')}, {there}{why}; "
        "start more bookies, make room on the disks of those that are read-only, or lower the ensemble size"
    )


def not_enough_known(size: int, known: int) -> NotEnoughBookiesError:
    """``known``: the bookies that a cluster has, wherever they are now."""
    needs = f"a ledger with ensemble size {size} needs {counted(size, 'writable bookie')}"
    if not known:
        how = "start bookies with the same metadata service URI, its path included (`bk bookie ls`)"
        return NotEnoughBookiesError(f"{needs}, and this cluster has never had one; {how}")
    has = f"{counted(known, 'bookie')}, including any that are away"
    return NotEnoughBookiesError(f"{needs}, and this cluster has {has}; start more bookies, or lower the ensemble size")


def new_ensemble_striped(placement: Placement, size: int, write_quorum_size: int) -> tuple[BookieId, ...]:
    """Return an ensemble with opportunistic striping: when bookies are short, E is lowered step by step, but never below Qw (CR-2). The
    length of the result is the E to record.

    Raises NotEnoughBookiesError, about the E that was asked for, if there are not even Qw bookies.
    """
    shortage: NotEnoughBookiesError | None = None
    for smaller in range(size, write_quorum_size - 1, -1):
        try:
            return placement.new_ensemble(smaller, write_quorum_size)
        except NotEnoughBookiesError as error:
            shortage = shortage or error
    raise shortage or not_enough(size, 0)
