"""Choosing bookies. Chance arrives as a ``random`` function, so that a seed replays the same choices (SM-4)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from bk_core.errors import NotEnoughBookiesError
from bk_core.protocol.ledger.metadata import BookieId


@dataclass(slots=True)
class RandomPlacement:
    """metadata.md 5.2: any distinct writable bookies. ``writable`` and ``suspect`` are read at each choice.

    ``suspect`` bookies failed lately; they are taken only when there are no others (CR-2).
    """

    writable: Callable[[], Sequence[BookieId]]
    random: Callable[[], float]
    suspect: Callable[[], Collection[BookieId]] = tuple

    def _shuffled(self, candidates: list[BookieId]) -> list[BookieId]:
        keyed = sorted((self.random(), bookie) for bookie in candidates)
        suspects = self.suspect()
        return [b for _, b in keyed if b not in suspects] + [b for _, b in keyed if b in suspects]

    def new_ensemble(self, size: int) -> tuple[BookieId, ...]:
        candidates = self._shuffled(sorted(set(self.writable())))
        if len(candidates) < size:
            raise NotEnoughBookiesError(
                f"a ledger with ensemble size {size} needs {size} writable bookies, {len(candidates)} are registered; "
                "start more bookies or lower the ensemble size"
            )
        return tuple(candidates[:size])

    def replace(self, ensemble: Sequence[BookieId], positions: Sequence[int], avoid: Collection[BookieId] = ()) -> dict[int, BookieId]:
        """EC-6: a replacement for as many of ``positions`` as possible; none is in the ensemble or in ``avoid``."""
        excluded = {*ensemble, *avoid}
        candidates = iter(self._shuffled(sorted(set(self.writable()) - excluded)))
        chosen: dict[int, BookieId] = {}
        for position in positions:
            bookie = next(candidates, None)
            if bookie is None:
                break
            chosen[position] = bookie
        return chosen
