"""A reader's knowledge of a ledger: its newest metadata, and how far it may read (OP-6, RD-1, RD-9, LC-4)."""

from __future__ import annotations

from bk_core.errors import InvalidArgumentError
from bk_core.protocol.effects import Log
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState


class LedgerView:
    """Metadata with its version, and the reader's LAC. ``hold_back``: see ``ReadOptions.hold_back_in_recovery``."""

    def __init__(self, ledger_id: int, metadata: LedgerMetadata, version: int, *, hold_back: bool = True) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.version = version
        self.last_add_confirmed = -1
        self._hold_back = hold_back
        self._settle()

    @property
    def is_closed(self) -> bool:
        return self.metadata.state is LedgerState.CLOSED

    @property
    def held_back(self) -> bool:
        """True while nothing that bookies say about the LAC counts, which is until the ledger is CLOSED."""
        return self._hold_back and self.metadata.state is LedgerState.IN_RECOVERY

    def adopt(self, metadata: LedgerMetadata, version: int) -> list[Log]:
        """Take newer metadata, never older (OP-6, META-11). CLOSED sets the LAC even if that lowers it, with an alarm."""
        if version <= self.version:
            return []
        before = self.last_add_confirmed
        self.metadata, self.version = metadata, version
        self._settle()
        if self.last_add_confirmed >= before:
            return []
        message = (
            f"ledger {self.ledger_id} was closed at entry {self.last_add_confirmed} although entry {before} was confirmed: "
            "entries that readers may have seen are not part of it"
        )
        return [Log("error", message)]

    def _settle(self) -> None:
        """Set the LAC: to the recorded end if CLOSED (OP-2), else to at least the entry before the last fragment, which is committed (D5,
        META-6)."""
        if self.is_closed:
            self.last_add_confirmed = self.metadata.last_entry_id
        else:
            self.last_add_confirmed = max(self.last_add_confirmed, self._floor())

    def _floor(self) -> int:
        """Return the entry before the last fragment, K - 1 (D5)."""
        return self.metadata.last_fragment.first_entry_id - 1

    def heard(self, lac: int) -> bool:
        """Take the LAC that a bookie told, and return True if the reader's rose (RD-9, LC-2). What bookies say of a CLOSED ledger is
        ignored (LC-4)."""
        if self.is_closed or self.held_back or lac <= self.last_add_confirmed:
            return False
        self.last_add_confirmed = lac
        return True

    def check_bound(self, first: int, last: int) -> None:
        """Raise InvalidArgumentError for a range that may not be read, before anything is sent (RD-1)."""
        self.check_range(first, last)
        if last > self.last_add_confirmed:
            end = "last entry" if self.is_closed else "last add confirmed"
            raise InvalidArgumentError(
                f"entry {last} lies beyond the {end} {self.last_add_confirmed} of ledger {self.ledger_id}", ledger=self.ledger_id
            )

    def check_range(self, first: int, last: int) -> None:
        """Check the part of RD-1 that holds for unconfirmed reads too (RD-11): nothing lies beyond the end of a CLOSED ledger."""
        if not 0 <= first <= last:
            message = f"entries {first}..{last} are no range: first must be at least 0, and last not below first"
            raise InvalidArgumentError(message, ledger=self.ledger_id)
        if self.is_closed and last > self.last_add_confirmed:
            raise InvalidArgumentError(
                f"entry {last} lies beyond the last entry {self.last_add_confirmed} of ledger {self.ledger_id}", ledger=self.ledger_id
            )
