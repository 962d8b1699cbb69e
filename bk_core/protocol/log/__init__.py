"""Logs made of ledgers: the ledger list and positions in it (replication-protocol.md section 10)."""

from __future__ import annotations

from bk_core.protocol.log.codec import decode, encode
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import HistoryRef, LogProperties, Mark, Segment, SegmentRange
from bk_core.protocol.log.view import LogView

__all__ = ["HistoryRef", "LedgerList", "LogProperties", "LogView", "Mark", "Position", "Segment", "SegmentRange", "decode", "encode"]
