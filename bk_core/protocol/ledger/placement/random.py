"""The random policy (metadata.md 5.2): any distinct writable bookies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.placement.policy import Shuffle, fill, not_enough


@dataclass(slots=True)
class RandomPlacement:
    """The random policy. ``writable`` and ``suspect`` are read at each choice; ``suspect`` bookies are taken only when there are no others
    (CR-2)."""

    writable: Callable[[], Sequence[BookieId]]
    random: Callable[[], float]
    suspect: Callable[[], Collection[BookieId]] = tuple

    def new_ensemble(self, size: int, write_quorum_size: int | None = None) -> tuple[BookieId, ...]:
        """See ``Placement``. The write quorum does not matter here."""
        candidates = self._in_order(())
        if len(candidates) < size:
            raise not_enough(size, len(candidates))
        return tuple(candidates[:size])

    def replace(self, ensemble: Sequence[BookieId], positions: Sequence[int], avoid: Collection[BookieId] = ()) -> dict[int, BookieId]:
        candidates = iter(self._in_order({*ensemble, *avoid}))
        return fill(ensemble, positions, lambda _position, _current: next(candidates, None))

    def domain_of(self, bookie: BookieId) -> str:
        """Return the bookie itself: nothing is known about racks, so each bookie is a domain of its own."""
        return bookie

    def _in_order(self, excluded: Collection[BookieId]) -> list[BookieId]:
        preferred, quarantined = Shuffle(self.writable, self.random, self.suspect).candidates(excluded)
        return preferred + quarantined
