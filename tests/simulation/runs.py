"""Tells which kind of run a seed is."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.simulation.files_swarm import FilesPlay
from tests.simulation.link_swarm import LinkPlay
from tests.simulation.log_swarm import LogPlay
from tests.simulation.owner_swarm import OwnerPlay
from tests.simulation.swarm import LedgerPlay

LOG_EVERY = 8
LINKS_SHARE = 0.06
OWNERS_SHARE = 0.05
FILES_SHARE = 0.05
AnyRun = LedgerPlay | LinkPlay | OwnerPlay | FilesPlay


def run_of(seed: int, forced: dict[str, Any] | None = None, *, verbose: bool = False) -> AnyRun:
    """Every eighth seed is about a log, some others about links, about clusters that share a store, or about a file store; ``forced`` may
    say so with its keys "log", "links", "owners" and "files"."""
    rest = {name: value for name, value in (forced or {}).items() if name not in ("log", "links", "owners", "files")}
    is_log = (forced or {}).get("log", seed % LOG_EVERY == LOG_EVERY - 1 and not forced)
    if (forced or {}).get("links", not forced and not is_log and _is_about_links(seed)):
        return LinkPlay(seed, rest, verbose=verbose)
    if (forced or {}).get("owners", not forced and not is_log and _is_about_owners(seed)):
        return OwnerPlay(seed, rest, verbose=verbose)
    if (forced or {}).get("files", not forced and not is_log and _is_about_files(seed)):
        return FilesPlay(seed, rest, verbose=verbose)
    return (LogPlay if is_log else LedgerPlay)(seed, rest, verbose=verbose)


def _is_about_links(seed: int) -> bool:
    """Out of chance of its own, so that all other seeds stay what they were."""
    return Random(f"links of {seed}").random() < LINKS_SHARE


def _is_about_owners(seed: int) -> bool:
    return Random(f"owners of {seed}").random() < OWNERS_SHARE


def _is_about_files(seed: int) -> bool:
    return Random(f"files of {seed}").random() < FILES_SHARE
