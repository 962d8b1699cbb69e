"""Fills in and seals a CLOSED ledger with guaranteed write quorum that its closer did not seal (RR-13, G-27)."""

from __future__ import annotations

from bk_core.errors import ReplicationError
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.replication.fragments import EntryRanges, FragmentSpan, eligible_fragments

FILLED_FRAGMENTS = 2


def needs_filling(metadata: LedgerMetadata) -> bool:
    """Return True if the ledger is CLOSED and was marked at create, but not sealed by its closer (G-27)."""
    return metadata.state is LedgerState.CLOSED and metadata.guaranteed and not metadata.sealed


def spans_to_fill(metadata: LedgerMetadata) -> tuple[FragmentSpan, ...]:
    """Return the last two fragments that store anything, up to the last entry."""
    return eligible_fragments(metadata)[-FILLED_FRAGMENTS:]


def everything(metadata: LedgerMetadata, span: FragmentSpan) -> dict[int, EntryRanges]:
    """Return the entries that FragmentRepair is to write again: every entry of the span, at every position of its write set."""
    return {position: EntryRanges(((span.first_entry_id, span.last_entry_id),)) for position in range(metadata.ensemble_size)}


def sealed(stored: LedgerMetadata, filled: tuple[Fragment, ...]) -> LedgerMetadata | None:
    """Return the metadata to store once everything is filled in; ``filled`` are the fragments as they were then.

    The result is None if the seal is there. Raises ReplicationError if bookies were exchanged meanwhile, because the new ones have to be
    filled first.
    """
    if stored.sealed:
        return None
    if stored.state is not LedgerState.CLOSED or stored.fragments != filled:
        raise ReplicationError("the ledger's bookies were exchanged while its entries were filled in; fill in again")
    return stored.with_seal()
