"""Decides which address of a bookie a new connection takes, and when the metadata store is asked for it (SES-5, SES-6)."""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.display.words import meet
from bk_core.protocol.ledger.metadata import BookieId

Address = tuple[str, int]

PATIENCE_NS = 250_000_000  # a working store answers sooner


@dataclass(frozen=True, slots=True)
class Lookup:
    """``known`` is the address to take unless the store tells another one in time. If ``ask`` is True, the store must be asked now."""

    known: Address | None
    ask: bool


class AddressBook:
    """One client's knowledge of its bookies' addresses, for use on one thread."""

    def __init__(self) -> None:
        self._known: dict[BookieId, Address] = {}
        self._asked: dict[BookieId, set[Address]] = {}  # with the addresses at which other bookies have registered since

    def look_up(self, bookie: BookieId) -> Lookup:
        """Look an address up. If ``ask`` is True, a call of ``learned`` or ``not_learned`` must follow (SES-5, SES-6)."""
        ask = bookie not in self._asked
        if ask:
            self._asked[bookie] = set()
        return Lookup(self._known.get(bookie), ask)

    def learned(self, bookie: BookieId, address: Address) -> bool:
        """Take the answer of the store. Return False if another bookie has registered there since it was asked: then it must be asked
        again, because it may have answered before (LINK-4)."""
        if any(meet(address, taken) for taken in self._asked.get(bookie, ())):
            self._asked[bookie] = set()
            return False
        self._asked.pop(bookie, None)
        self._known[bookie] = address
        return True

    def is_known(self, bookie: BookieId, address: Address) -> bool:
        """Return True if ``address`` is still the last one that is known of the bookie."""
        return self._known.get(bookie) == address

    def taken(self, bookie: BookieId, address: Address) -> None:
        """Learn that ``bookie`` has registered at ``address``. Whether others that were there still are, the store has to say (LINK-4)."""
        self._known = {other: at for other, at in self._known.items() if other == bookie or not meet(at, address)}
        for other, since in self._asked.items():
            if other != bookie:
                since.add(address)

    def not_learned(self, bookie: BookieId, *, unreachable: bool) -> Address | None:
        """Return the address to take although the store told none. ``unreachable`` means that it did not answer; otherwise it knows no
        address (SES-5)."""
        self._asked.pop(bookie, None)
        if not unreachable:
            self._known.pop(bookie, None)
        return self._known.get(bookie)
