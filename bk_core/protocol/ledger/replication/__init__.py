"""Re-replication: finds replicas that are missing or bad, and makes them good again (RR-1..RR-20, G-27).

It runs outside the writer and changes metadata by compare-and-set like every other client (RR-1). ``FragmentCheck`` looks,
``FragmentRepair`` copies and exchanges bookies, and ``MetadataChange`` is the compare-and-set that both repair and seal go through.
``LostBookies``, ``RepairQueue`` and ``may_begin`` decide for who does this by itself (RR-16 to RR-19).
``LedgerCheck`` and ``ExchangeGroup`` are for ledgers of many fragments: several are looked at together, and exchanged by one change
(RR-15).
"""

from bk_core.protocol.ledger.replication.auditing import Audit, Ended, LostBookies, RepairQueue, check_due, check_pause_ns, may_begin
from bk_core.protocol.ledger.replication.change import MetadataChange
from bk_core.protocol.ledger.replication.check import FragmentCheck, FragmentReport, ReplicaReport
from bk_core.protocol.ledger.replication.draining import DrainStep, after_look
from bk_core.protocol.ledger.replication.fragments import (
    EntryRanges,
    Exchange,
    FragmentSpan,
    eligible_fragments,
    exchanged,
    exchanged_together,
    known_last_entry,
    open_tail_without,
    span_now,
    stored_bounds,
)
from bk_core.protocol.ledger.replication.group import ExchangeGroup
from bk_core.protocol.ledger.replication.ledger_check import LedgerCheck
from bk_core.protocol.ledger.replication.repair import FragmentRepair, RepairState

__all__ = [
    "Audit",
    "DrainStep",
    "Ended",
    "EntryRanges",
    "Exchange",
    "ExchangeGroup",
    "FragmentCheck",
    "FragmentRepair",
    "FragmentReport",
    "FragmentSpan",
    "LedgerCheck",
    "LostBookies",
    "MetadataChange",
    "RepairQueue",
    "RepairState",
    "ReplicaReport",
    "after_look",
    "eligible_fragments",
    "exchanged",
    "check_due",
    "check_pause_ns",
    "exchanged_together",
    "known_last_entry",
    "may_begin",
    "open_tail_without",
    "span_now",
    "stored_bounds",
]
