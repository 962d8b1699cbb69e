"""The rack-aware policy (metadata.md 5.3, 5.4): every write set spans racks, as far as the racks there are allow it.

A write set is a window of Qw consecutive positions of the ensemble, cyclic. With M = min(Qw, ``min_racks``), an ensemble *adheres* when
each of its E windows holds bookies of at least M racks. The search places one position after the other. A rack fits a position when
every window through it can still reach M racks with the positions that are left. Racks unused since the last reset come first, so
bookies spread further than M asks for. Unlike a purely greedy choice the search goes back when it is stuck, within
``SEARCH_STEPS_MAX``: with few bookies in some racks a greedy choice misses ensembles that exist.

When no ensemble adheres, fewer racks per write set are tried, then whatever comes closest; with ``enforce`` there is an error instead.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from bk_core.errors import NotEnoughBookiesError
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.placement.policy import Shuffle, fill, not_enough
from bk_core.protocol.ledger.placement.topology import Topology

SEARCH_STEPS_MAX = 2000


@dataclass(slots=True)
class RackAwarePlacement:
    """The rack-aware policy. ``writable``, ``suspect`` and ``topology`` are read at each choice.

    ``local_rack``: the first bookie of a new ensemble stands there if one can (metadata.md 5.3). With ``enforce``, an ensemble that does
    not adhere is refused with NotEnoughBookiesError, and bookies in the default rack are never chosen.
    """

    writable: Callable[[], Sequence[BookieId]]
    random: Callable[[], float]
    suspect: Callable[[], Collection[BookieId]] = tuple
    topology: Callable[[], Topology] = Topology
    min_racks: int = 2
    enforce: bool = False
    local_rack: str | None = None

    def new_ensemble(self, size: int, write_quorum_size: int | None = None) -> tuple[BookieId, ...]:
        """Return an ensemble, first without quarantined bookies, then with them. Raises NotEnoughBookiesError (CR-2)."""
        quorum = size if write_quorum_size is None else write_quorum_size
        topology = self.topology()
        preferred, quarantined = self._candidates(topology, ())
        found = self._arrange(size, quorum, preferred, topology) or self._arrange(size, quorum, preferred + quarantined, topology)
        if found is None:
            raise self._shortage(size, quorum, topology)
        return found

    def replace(self, ensemble: Sequence[BookieId], positions: Sequence[int], avoid: Collection[BookieId] = ()) -> dict[int, BookieId]:
        """Return replacements (EC-6): from the rack of the departing bookie, then from a rack of no remaining member, then (if not
        enforced) from any (metadata.md 5.4)."""
        topology = self.topology()
        preferred, quarantined = self._candidates(topology, {*ensemble, *avoid})

        def choose(position: int, current: list[BookieId]) -> BookieId | None:
            for candidates in (preferred, quarantined):
                bookie = self._replacement(position, current, candidates, topology)
                if bookie is not None:
                    candidates.remove(bookie)
                    return bookie
            return None

        return fill(ensemble, positions, choose)

    def domain_of(self, bookie: BookieId) -> str:
        """Return the rack; it is the default rack for a bookie that is mapped nowhere or left out."""
        topology = self.topology()
        return topology.rack_of(bookie) or topology.default_rack

    # --- candidates ------------------------------------------------------------------------------------------------

    def _candidates(self, topology: Topology, excluded: Collection[BookieId]) -> tuple[list[BookieId], list[BookieId]]:
        preferred, quarantined = Shuffle(self.writable, self.random, self.suspect).candidates(excluded)
        return [b for b in preferred if self._eligible(b, topology)], [b for b in quarantined if self._eligible(b, topology)]

    def _eligible(self, bookie: BookieId, topology: Topology) -> bool:
        rack = topology.rack_of(bookie)
        return rack is not None and not (self.enforce and rack == topology.default_rack)

    def _shortage(self, size: int, quorum: int, topology: Topology) -> NotEnoughBookiesError:
        writable = set(self.writable())
        left_out = sum(not self._eligible(bookie, topology) for bookie in writable)
        why = f", {left_out} of them in no usable rack" if left_out else ""
        if self.enforce:
            why += f", and every write set must span {self._racks_wanted(quorum)} racks"
        return not_enough(size, len(writable), why)

    # --- a new ensemble --------------------------------------------------------------------------------------------

    def _racks_wanted(self, quorum: int) -> int:
        """Return M of metadata.md 5.3."""
        return min(quorum, self.min_racks)

    def _arrange(self, size: int, quorum: int, candidates: list[BookieId], topology: Topology) -> tuple[BookieId, ...] | None:
        """Return the best ensemble, or None if there are too few bookies or, if enforced, none that adheres."""
        if len(candidates) < size:
            return None
        by_rack: dict[str, list[BookieId]] = {}
        for bookie in candidates:
            by_rack.setdefault(topology.rack_of(bookie) or topology.default_rack, []).append(bookie)
        wanted = self._racks_wanted(quorum)
        lowest = wanted if self.enforce else 2
        for racks in range(wanted, lowest - 1, -1):
            found = _Search(size, quorum, racks, by_rack, self.local_rack).run()
            if found is not None:
                return found
        if self.enforce:
            return None
        return _Search(size, quorum, wanted, by_rack, self.local_rack, strict=False).run()

    # --- a replacement ---------------------------------------------------------------------------------------------

    def _replacement(self, position: int, current: list[BookieId], candidates: list[BookieId], topology: Topology) -> BookieId | None:
        own = topology.rack_of(current[position])
        others = {topology.rack_of(bookie) for index, bookie in enumerate(current) if index != position}
        same_rack = (bookie for bookie in candidates if topology.rack_of(bookie) == own)
        new_rack = (bookie for bookie in candidates if topology.rack_of(bookie) not in others)
        anywhere = iter(() if self.enforce else candidates)
        return next(same_rack, None) or next(new_rack, None) or next(anywhere, None)


@dataclass(slots=True)
class _Search:
    """One search for an ensemble. ``by_rack`` is in shuffled order, of racks by their first bookie, so that large racks come first more
    often."""

    size: int
    quorum: int
    racks: int
    by_rack: dict[str, list[BookieId]]
    local_rack: str | None
    strict: bool = True
    _chosen: list[str] = field(default_factory=list)  # the rack of each position placed so far
    _taken: dict[str, int] = field(default_factory=dict)
    _steps: int = 0

    def run(self) -> tuple[BookieId, ...] | None:
        self._taken = dict.fromkeys(self.by_rack, 0)
        if not self._place(frozenset()):
            return None
        remaining = {rack: iter(bookies) for rack, bookies in self.by_rack.items()}
        return tuple(next(remaining[rack]) for rack in self._chosen)

    def _place(self, used: frozenset[str]) -> bool:
        """Fill the next position and all after it. ``used`` are the racks chosen since the last reset."""
        if len(self._chosen) == self.size:
            return True
        for rack in self._racks_in_order(used):
            self._steps += 1
            if self._steps > SEARCH_STEPS_MAX:
                return False
            self._chosen.append(rack)
            self._taken[rack] += 1
            if self._place(frozenset({rack}) if rack in used else used | {rack}):
                return True
            self._chosen.pop()
            self._taken[rack] -= 1
        return False

    def _racks_in_order(self, used: frozenset[str]) -> list[str]:
        free = [rack for rack, bookies in self.by_rack.items() if self._taken[rack] < len(bookies)]
        if not self._chosen and self.local_rack in free:
            free.sort(key=lambda rack: rack != self.local_rack)
        free.sort(key=lambda rack: rack in used)  # stable: unused racks first, each group in its shuffled order
        fitting = [rack for rack in free if self._fits(rack)]
        if self.strict:
            return fitting
        return fitting + [rack for rack in free if rack not in fitting]

    def _fits(self, rack: str) -> bool:
        """Return True if each window through the next position can still reach enough racks."""
        position = len(self._chosen)
        placed = [*self._chosen, rack]
        for start in range(position - self.quorum + 1, position + 1):
            window = [(start + offset) % self.size for offset in range(self.quorum)]
            seen = {placed[index] for index in window if index <= position}
            left = sum(index > position for index in window)
            if len(seen) + left < self.racks:
                return False
        return True
