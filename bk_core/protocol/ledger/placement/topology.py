"""The rack of each bookie (metadata.md 1.5, 5.1).

A *location* is an absolute path such as ``/rack-a``, or ``/region/rack`` in clusters of two levels. Locations are given for names; a name
is a bookie id, a host name or an address. All locations of one cluster have the same depth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from bk_core.protocol.ledger.metadata import BookieId

DEFAULT_RACK = "/default-rack"
_NOTHING: Mapping[str, str] = MappingProxyType({})


def location(text: str) -> str | None:
    """Return the normal form of a written location: one leading slash, none at the end. None means "no mapping" (empty, or only
    slashes)."""
    names = [name for name in text.split("/") if name]
    return "/" + "/".join(names) if names else None


@dataclass(frozen=True, slots=True)
class Topology:
    """``racks``: name -> location as written. ``hosts``: bookie id -> host it was resolved to, where it was. ``registered``: the bookies
    that are there now; those that are gone may have locations, too.

    A bookie without a mapping is in the default rack. One whose location has another depth than those of most registered bookies is
    *left out* (metadata.md 5.1): comparing ``/rack`` with ``/region/rack`` says nothing about what fails together.
    """

    racks: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    hosts: Mapping[BookieId, str] = field(default_factory=lambda: _NOTHING)
    registered: frozenset[BookieId] = frozenset()
    _located: Mapping[str, str] = field(init=False, repr=False, compare=False)
    _depth: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        located = {name: place for name, text in self.racks.items() if (place := location(text)) is not None}
        object.__setattr__(self, "_located", located)
        there = [place for bookie in self.registered if (place := self._lookup(bookie)) is not None]
        object.__setattr__(self, "_depth", _usual_depth(there, located.values()))

    @property
    def default_rack(self) -> str:
        """``/default-rack``, or ``/default-region/default-rack`` where locations have two levels, and so on."""
        return "/default-region" * (self._depth - 1) + DEFAULT_RACK

    @property
    def misplaced(self) -> tuple[str, ...]:
        """The names whose location has another depth than the usual one, sorted."""
        return tuple(sorted(name for name, place in self._located.items() if place.count("/") != self._depth))

    def rack_of(self, bookie: BookieId) -> str | None:
        """Return the location of a bookie, looked up by id, then by host; None if it is left out."""
        place = self._lookup(bookie)
        if place is None:
            return self.default_rack
        return place if place.count("/") == self._depth else None

    def _lookup(self, bookie: BookieId) -> str | None:
        for name in (bookie, self.hosts.get(bookie, ""), host_of(bookie)):
            if name in self._located:
                return self._located[name]
        return None


def host_of(bookie: BookieId) -> str:
    """Return the host of a classic id ``host:port``; a custom id without a colon is its own name (metadata.md 4.2)."""
    return bookie.rpartition(":")[0] or bookie


def _usual_depth(there: Iterable[str], known: Iterable[str]) -> int:
    """Return the depth that most locations of bookies which are ``there`` have; of several that of most ``known`` ones, then the smallest;
    1 if there are no locations."""
    now, ever = (Counter(place.count("/") for place in places) for places in (there, known))
    return min(ever, key=lambda depth: (-now[depth], -ever[depth], depth), default=1)
