"""Which kind of run a seed is."""

from __future__ import annotations

from typing import Any

from tests.simulation.log_swarm import LogRun
from tests.simulation.swarm import Run

LOG_EVERY = 8


def run_of(seed: int, forced: dict[str, Any] | None = None, *, verbose: bool = False) -> Run:
    """Every eighth seed is about a log; ``forced`` may say so with its key "log"."""
    rest = {name: value for name, value in (forced or {}).items() if name != "log"}
    is_log = (forced or {}).get("log", seed % LOG_EVERY == LOG_EVERY - 1 and not forced)
    return (LogRun if is_log else Run)(seed, rest, verbose=verbose)
