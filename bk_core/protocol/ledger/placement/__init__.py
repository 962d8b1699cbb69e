"""Choosing bookies: for a new ledger (CR-2), for an ensemble change (EC-6) and for re-replication (RR-6); metadata.md 5.

Every policy is pure: chance is a function of no arguments that returns 0.0 <= x < 1.0, time likewise a function, and the registered
bookies are read at each choice. One seed therefore replays the same choices (SM-4).
"""

from __future__ import annotations

from bk_core.protocol.ledger.placement.policy import Placement, Shuffle, new_ensemble_striped, not_enough_known
from bk_core.protocol.ledger.placement.quarantine import Quarantine, is_bookie_failure
from bk_core.protocol.ledger.placement.rack_aware import RackAwarePlacement
from bk_core.protocol.ledger.placement.random import RandomPlacement
from bk_core.protocol.ledger.placement.topology import DEFAULT_RACK, Topology, location

__all__ = [
    "DEFAULT_RACK",
    "Placement",
    "Quarantine",
    "RackAwarePlacement",
    "RandomPlacement",
    "Shuffle",
    "Topology",
    "is_bookie_failure",
    "location",
    "new_ensemble_striped",
    "not_enough_known",
]
