"""Exchanges bookies of several fragments by one change of the metadata (RR-7, RR-15).

The metadata is stored as a whole: one change for each of 5,000 fragments would write 5,000 times the size of all of them. So fragments
whose copies are all confirmed wait for a few others. The cost of a crash stays bounded: their copies are made again, and no more.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bk_core.errors import ReplicationError
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.replication.fragments import Exchange, exchanged_together

GROUPS_PER_LEDGER = 32  # the most changes for the bookies of one ledger, however many fragments it has ...
BYTES_MAX = 64 * 1024 * 1024  # ... unless more copied bytes than this wait for their change


@dataclass(slots=True)
class ExchangeGroup:
    """Exchanges of fragments, by their first entry. ``fragments`` is the number of fragments that the ledger has."""

    fragments: int
    exchanges: dict[int, tuple[Exchange, ...]] = field(default_factory=dict)
    refused: dict[int, ReplicationError] = field(default_factory=dict)
    _bytes: int = 0

    def add(self, first_entry_id: int, exchanges: tuple[Exchange, ...], bytes_copied: int) -> None:
        """Add an exchange; every target must have confirmed its copies in full (RR-7)."""
        self.exchanges[first_entry_id] = exchanges
        self._bytes += bytes_copied

    @property
    def is_due(self) -> bool:
        return len(self.exchanges) > self.fragments // GROUPS_PER_LEDGER or self._bytes >= BYTES_MAX

    def intent(self, stored: LedgerMetadata) -> LedgerMetadata | None:
        """Serve as the intent of a MetadataChange. ``refused`` then holds the exchanges that were not possible in the metadata
        stored last."""
        return exchanged_together(stored, self.exchanges, self.refused)
