"""notebooks/leader_election.py: two candidates, and a leader that stands still for longer than its session lasts."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

from bk_core.bookie.local_cluster import LocalCluster

EXAMPLE = Path(__file__).parents[2] / "notebooks" / "leader_election.py"


def test_a_stopped_leader_is_taken_over_and_can_do_no_harm(running_clusters: Callable[[str], LocalCluster]) -> None:
    """LOG-4: the election chooses, the log alone makes it safe."""
    spec = importlib.util.spec_from_file_location("leader_election", EXAMPLE)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    lines = list(example.demonstrate(running_clusters("embedded").uri, "elected"))
    assert [line for line in lines if "leads" in line] == ["ann leads", "ben leads"]
    assert any(line.startswith("ann was taken over: [BK-LOG-TAKEN-OVER]") for line in lines)
    assert "first those of ann, then those of ben" in lines[-1]
