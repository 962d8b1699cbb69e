"""The bookies that are registered at an address: whoever is there answers each request, for whichever bookie (metadata.md 4.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from bk_core.display.words import host_port, places
from bk_core.errors import BookieUnavailableError
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.session.addresses import Address

ByPlace: TypeAlias = Mapping[Address, Sequence[BookieId]]
"""The bookies that are registered at an address, by its one spelling."""


def by_place(addresses: Iterable[tuple[BookieId, Address]]) -> ByPlace:
    """Return the bookies by the ``addresses`` at which they are registered."""
    found: dict[Address, list[BookieId]] = {}
    for bookie, address in addresses:
        for place in places(address):
            found.setdefault(place, []).append(bookie)
    return found


def check_nobodys(bookie_id: BookieId, address: Address, registered: ByPlace) -> None:
    """Check the address in the id of a bookie that is not registered. Raises BookieUnavailableError if another bookie is registered there:
    it would answer in the other one's name, and deny entries that it was never given (metadata.md 4.4).

    ``registered`` has also bookies whose ids are addresses, because such a bookie may be registered at another address. Addresses are
    compared, not texts, and no name is looked up: of two names for one host nothing is known here.
    """
    for place in places(address):
        for other in registered.get(place, ()):
            if other != bookie_id:
                text = f"bookie {bookie_id} is not registered, and at the address in its id is bookie {other}"
                raise BookieUnavailableError(text, bookie=bookie_id)


def check_latest(bookie_id: BookieId, address: Address, registered: ByPlace, created: Callable[[BookieId], int | None]) -> None:
    """Check the address at which a bookie is registered. Raises BookieUnavailableError if another bookie registered
    there later: the registration of a killed bookie stands until its session ends, and whoever has its address by then would take its
    entries, and deny those that it was never given (metadata.md 4.4).

    ``created`` returns when a bookie registered, as a number that grows, None for one that is not registered.
    """
    for other in {other for place in places(address) for other in registered.get(place, ())} - {bookie_id}:
        mine, its = created(bookie_id), created(other)
        if its is not None and (mine is None or mine < its):
            text = f"bookie {other} has registered at {host_port(*address)} later, so bookie {bookie_id} is not there any more"
            raise BookieUnavailableError(text, bookie=bookie_id)
