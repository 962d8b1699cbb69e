"""The x-ray of a ledger: each copy of each entry, as its bookie has it. Nothing is fenced or written."""

from bk_core.protocol.ledger.xray.machine import LedgerXray
from bk_core.protocol.ledger.xray.result import BookieXray, ReplicaXray, XrayResult
from bk_core.protocol.ledger.xray.stretches import EntryState, Stretch, Stretches

__all__ = ["BookieXray", "EntryState", "LedgerXray", "ReplicaXray", "Stretch", "Stretches", "XrayResult"]
