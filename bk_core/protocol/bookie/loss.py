"""Decides about each ledger after the bookie may have lost data (B-10, RC-26, RC-27), and in garbage collection (B-12)."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState


class AfterLoss(Enum):
    NOTHING = "nothing"
    FENCE = "fence"
    LIMBO = "fence and limbo"


def after_loss(metadata: LedgerMetadata | None, bookie: BookieId) -> AfterLoss:
    """Return the marks that a ledger gets after a loss (RC-26). If ``metadata`` is None it cannot be understood; then the worst is assumed,
    which costs availability and never data.

    A CLOSED ledger is fenced without limbo, which the rule does not ask for. Its closing may rest on a fence that was lost here, even if
    the recovery replaced this bookie and no fragment names it any more; and no regular add to it can be rightful. Fragments made after this
    look at the metadata have had no answer from this life of the bookie.
    """
    if metadata is None:
        return AfterLoss.LIMBO
    if metadata.state is not LedgerState.CLOSED:
        return AfterLoss.LIMBO if bookie in metadata.last_fragment.ensemble else AfterLoss.NOTHING
    return AfterLoss.FENCE


def is_member(metadata: LedgerMetadata, bookie: BookieId) -> bool:
    """Return True if any fragment names the bookie."""
    return any(bookie in fragment.ensemble for fragment in metadata.fragments)


def decided_entries(metadata: LedgerMetadata, bookie: BookieId) -> Iterator[tuple[int, tuple[BookieId, ...]]]:
    """Yield the ids whose contents are decided and that ``bookie`` should hold, ascending, each with the other replicas that hold it
    (RC-27).

    In a CLOSED ledger everything up to its last entry is decided; in any other everything below its last fragment.
    """
    closed = metadata.state is LedgerState.CLOSED
    end = metadata.last_entry_id + 1 if closed else metadata.last_fragment.first_entry_id
    stripes = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
    ends = [fragment.first_entry_id for fragment in metadata.fragments[1:]] + [end]
    for fragment, fragment_end in zip(metadata.fragments, ends, strict=True):
        if bookie not in fragment.ensemble:
            continue
        for entry_id in range(fragment.first_entry_id, min(fragment_end, end)):
            replicas = dict.fromkeys(fragment.ensemble[position] for position in stripes.write_set(entry_id))
            if bookie in replicas:
                yield entry_id, tuple(replica for replica in replicas if replica != bookie)


def may_leave_limbo(metadata: LedgerMetadata | None) -> bool:
    """Return True if a ledger may leave limbo: somebody has closed it, or it is gone (None). Its entries must have been fetched as well
    (RC-27)."""
    return metadata is None or metadata.state is LedgerState.CLOSED


def may_delete(metadata: LedgerMetadata | None, bookie: BookieId, *, lock_held: bool) -> bool:
    """Return True if a ledger may be deleted here (B-12): the metadata is gone (None), or the ledger is CLOSED, names the bookie nowhere
    and is not being re-replicated.

    ``lock_held`` means that the caller holds the ledger's replication lock and has read ``metadata`` after taking it.
    """
    if metadata is None:
        return True
    return lock_held and metadata.state is LedgerState.CLOSED and not is_member(metadata, bookie)
