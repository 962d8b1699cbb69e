"""Bookies of several fragments exchanged by one change of the metadata (RR-7, RR-15).

The metadata is stored as a whole: one change for each of 5,000 fragments would write 5,000 times what all of them take. So the fragments
whose copies are all confirmed wait for a few others. What a crash costs stays bounded: their copies are made again, no more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bk_core.errors import ReplicationError
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.replication.fragments import Exchange, exchanged_together

GROUPS_PER_LEDGER = 32  # so many changes at most for bookies of one ledger, however many fragments it has ...
BYTES_MAX = 64 * 1024 * 1024  # ... but no more copied bytes than that wait for their change


@dataclass(slots=True)
class ExchangeGroup:
    """Exchanges of fragments, by their first entry. ``fragments``: how many the ledger has."""

    fragments: int
    exchanges: dict[int, tuple[Exchange, ...]] = field(default_factory=dict)
    refused: dict[int, ReplicationError] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, first_entry_id: int, exchanges: tuple[Exchange, ...], bytes_copied: int) -> None:
        """RR-7: only what every target has confirmed in full."""
        self.exchanges[first_entry_id] = exchanges
        self._bytes += bytes_copied

    @property
    def is_due(self) -> bool:
        return len(self.exchanges) > self.fragments // GROUPS_PER_LEDGER or self._bytes >= BYTES_MAX

    def intent(self, stored: LedgerMetadata) -> LedgerMetadata | None:
        """For a MetadataChange. ``refused`` then holds those that could not be exchanged in what was stored last."""
        return exchanged_together(stored, self.exchanges, self.refused)
