"""Logs made of ledgers: the ledger list and positions in it (replication-protocol.md section 10)."""

from __future__ import annotations

from bk_core.protocol.log.ledger_list import LedgerList, LogProperties, Segment, SegmentRange, decode, encode
from bk_core.protocol.log.position import Position

__all__ = ["LedgerList", "LogProperties", "Position", "Segment", "SegmentRange", "decode", "encode"]
