"""The address of a bookie that a new connection takes, and the moment at which the metadata store is asked for it (SES-5, SES-6)."""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.protocol.ledger.metadata import BookieId

Address = tuple[str, int]

PATIENCE_NS = 250_000_000  # a store that works answers sooner


@dataclass(frozen=True, slots=True)
class Lookup:
    """``known``: what to take unless the store tells another address in time. ``ask``: the store must be asked now."""

    known: Address | None
    ask: bool


class AddressBook:
    """One client's knowledge of its bookies' addresses. One thread."""

    def __init__(self) -> None:
        self._known: dict[BookieId, Address] = {}
        self._asked: set[BookieId] = set()

    def look_up(self, bookie: BookieId) -> Lookup:
        """SES-5, SES-6. Where ``ask`` is True, ``learned`` or ``not_learned`` follows."""
        ask = bookie not in self._asked
        self._asked.add(bookie)
        return Lookup(self._known.get(bookie), ask)

    def learned(self, bookie: BookieId, address: Address) -> None:
        self._asked.discard(bookie)
        self._known[bookie] = address

    def not_learned(self, bookie: BookieId, *, unreachable: bool) -> Address | None:
        """SES-5: the address to take although the store told none. ``unreachable``: it did not answer; else it knows none."""
        self._asked.discard(bookie)
        if not unreachable:
            self._known.pop(bookie, None)
        return self._known.get(bookie)
