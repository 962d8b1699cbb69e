"""Filling in and sealing a CLOSED ledger with guaranteed write quorum whose closer did not vouch for it (RR-13, G-27)."""

from __future__ import annotations

from bk_core.errors import ReplicationError
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.replication.fragments import EntryRanges, FragmentSpan, eligible_fragments

FILLED_FRAGMENTS = 2


def needs_filling(metadata: LedgerMetadata) -> bool:
    """G-27: CLOSED, marked at create, not sealed by its closer."""
    return metadata.state is LedgerState.CLOSED and metadata.guaranteed and not metadata.sealed


def spans_to_fill(metadata: LedgerMetadata) -> tuple[FragmentSpan, ...]:
    """The last two fragments that store anything, up to the last entry."""
    return eligible_fragments(metadata)[-FILLED_FRAGMENTS:]


def everything(metadata: LedgerMetadata, span: FragmentSpan) -> dict[int, EntryRanges]:
    """The entries that FragmentRepair is to write again: every entry of the span, at every position of its write set."""
    return {position: EntryRanges(((span.first_entry_id, span.last_entry_id),)) for position in range(metadata.ensemble_size)}


def sealed(stored: LedgerMetadata, filled: tuple[Fragment, ...]) -> LedgerMetadata | None:
    """The metadata to be stored once everything is filled in; ``filled`` are the fragments as they were then.

    None if the seal is there. ReplicationError if bookies were exchanged meanwhile: what took their place has to be filled first.
    """
    if stored.sealed:
        return None
    if stored.state is not LedgerState.CLOSED or stored.fragments != filled:
        raise ReplicationError("the ledger's bookies were exchanged while its entries were filled in; fill in again")
    return stored.with_seal()
