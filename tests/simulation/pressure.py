"""The conditions that a mutation forces upon the swarm, so that the broken rule matters (see ``options.override``)."""

from __future__ import annotations

from bk_core.protocol.ledger.write.options import EnsembleChangeMode

PLAIN = {"gwq": False, "writer_dies_ms": 0, "replicators": 0, "calm_ms": 8000}
STRAGGLERS = {
    **PLAIN,
    "quorums": (3, 3, 2),
    "bookies": 3,
    "entries": 2,
    "entries_at_once": 1,
    "recoverers": 1,
    "recover_at_ms": 5,
    "readers": 0,
    "crash": 0.0,
    "wipes": 0,
    "partition": 0.0,
    "pause": 0.0,
    "read_only": 0.0,
    "append_every_ms": 1,
    "storm_ms": 500,
    "weather.slow": 0.5,
    "weather.loss": 0.1,
    "limits.add_timeout_ns": 400_000_000,
    "limits.read_timeout_ns": 100_000_000,
}
CHANGES = {
    **PLAIN,
    "crash": 0.12,
    "entries": 25,
    "append_every_ms": 8,
    "storm_ms": 300,
    "close_at_ms": 0,
    "writer.ensemble_change": EnsembleChangeMode.IMMEDIATE,
    "limits.ensemble_changes_max": 1000,
    "limits.add_timeout_ns": 40_000_000,
    "weather.slow": 0.4,
    "weather.loss": 0.02,
}
RECOVERIES = {
    **PLAIN,
    "recoverers": 3,
    "recover_at_ms": 40,
    "entries": 12,
    "append_every_ms": 4,
    "weather.slow": 0.4,
    "recoverer_dies": 0.05,
}
GWQ = {**CHANGES, "gwq": True, "plain_recovery": False}
AMBIGUOUS = {
    **GWQ,
    "quorums": (3, 3, 2),
    "bookies": 6,
    "crash": 0.0,
    "recoverers": 0,
    "weather.store_loss": 0.8,
    "weather.slow": 0.6,
    "limits.add_timeout_ns": 12_000_000,
    "limits.add_retry_ns": 10_000_000,
}
DEFERRED = {
    **PLAIN,
    "quorums": (3, 3, 2),
    "writer.deferred_sync": True,
    "entries": 25,
    "append_every_ms": 4,
    "force_every_ms": 20,
    "recoverers": 0,
    "crash": 0.0,
    "partition": 0.0,
    "weather.loss": 0.0,
    "weather.slow": 0.4,
}
DOMAINS = {**CHANGES, "quorums": (3, 3, 2), "bookies": 6, "domains": 2, "writer.fault_domains_min": 2}
WIPES = {**STRAGGLERS, "wipes": 1, "crash": 0.25, "entries": 4}
