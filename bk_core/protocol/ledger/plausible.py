"""Last entries that no ledger can have. Whoever looks at every entry of a ledger would not come to an end. Pure."""

from __future__ import annotations

from bk_core.errors import MetadataFormatError
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState

EMPTY_MAX = 1 << 32
"""No ledger has more entries without a byte."""
ENTRIES_MAX = 1 << 40
"""No ledger has more entries: to write them takes weeks."""


def check_plausible(ledger_id: int, metadata: LedgerMetadata, first: int = 0, last: int | None = None) -> None:
    """Check before all entries of ``first`` to ``last`` (None: the end) are looked at that a CLOSED ledger may have so many.

    Raises MetadataFormatError where they are more than the bytes of the ledger, by more than 2^32, because the others would all be empty;
    and where they are more than ``ENTRIES_MAX``.
    """
    if metadata.state is not LedgerState.CLOSED:
        return
    end = metadata.last_entry_id if last is None else min(last, metadata.last_entry_id)
    count = end - first + 1
    if count > metadata.length + EMPTY_MAX:
        why = f"by its metadata it has {metadata.length:,} bytes, so nearly all of them would be empty"
    elif count > ENTRIES_MAX:
        why = f"it takes weeks to write more than {ENTRIES_MAX:,}"
    else:
        return
    raise MetadataFormatError(
        f"ledger {ledger_id} cannot have entries up to {metadata.last_entry_id}: {why}. The metadata is damaged: restore its node from a "
        "backup. A part of the ledger can be read and x-rayed nevertheless",
        ledger=ledger_id,
    )
