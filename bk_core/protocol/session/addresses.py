"""Decides which address of a bookie a new connection takes, and when the metadata store is asked for it (SES-5, SES-6)."""

from __future__ import annotations

from dataclasses import dataclass

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
        self._asked: set[BookieId] = set()

    def look_up(self, bookie: BookieId) -> Lookup:
        """Look an address up. If ``ask`` is True, a call of ``learned`` or ``not_learned`` must follow (SES-5, SES-6)."""
        ask = bookie not in self._asked
        self._asked.add(bookie)
        return Lookup(self._known.get(bookie), ask)

    def learned(self, bookie: BookieId, address: Address) -> None:
        self._asked.discard(bookie)
        self._known[bookie] = address

    def not_learned(self, bookie: BookieId, *, unreachable: bool) -> Address | None:
        """Return the address to take although the store told none. ``unreachable`` means that it did not answer; otherwise it knows no
        address (SES-5)."""
        self._asked.discard(bookie)
        if not unreachable:
            self._known.pop(bookie, None)
        return self._known.get(bookie)
