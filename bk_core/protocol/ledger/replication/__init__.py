"""Re-replication: finding replicas that are missing or bad, and making them good again (RR-1..RR-13, G-27).

RR-1: it runs outside the writer and changes metadata by compare-and-set like everybody else. ``FragmentCheck`` looks, ``FragmentRepair``
copies and exchanges bookies, ``MetadataChange`` is the compare-and-set that both repair and seal go through.
"""

from bk_core.protocol.ledger.replication.change import MetadataChange
from bk_core.protocol.ledger.replication.check import FragmentCheck, FragmentReport, ReplicaReport
from bk_core.protocol.ledger.replication.fragments import (
    EntryRanges,
    Exchange,
    FragmentSpan,
    eligible_fragments,
    exchanged,
    known_last_entry,
    open_tail_without,
    stored_bounds,
)
from bk_core.protocol.ledger.replication.repair import FragmentRepair, RepairState

__all__ = [
    "EntryRanges",
    "Exchange",
    "FragmentCheck",
    "FragmentRepair",
    "FragmentReport",
    "FragmentSpan",
    "MetadataChange",
    "RepairState",
    "ReplicaReport",
    "eligible_fragments",
    "exchanged",
    "known_last_entry",
    "open_tail_without",
    "stored_bounds",
]
