"""Some hundreds of seeds, the determinism of a seed, and that the checkers themselves work (papers.md 9)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bk_core.metadata.zookeeper import store as zookeeper
from tests.simulation.files_invariants import FILES_INVARIANTS
from tests.simulation.invariants import INVARIANTS
from tests.simulation.link_invariants import LINK_INVARIANTS
from tests.simulation.liveness import LIVENESS
from tests.simulation.log_invariants import LOG_INVARIANTS
from tests.simulation.owner_invariants import OWNER_INVARIANTS
from tests.simulation.owner_swarm import OwnerPlay
from tests.simulation.runs import run_of
from tests.simulation.twins import different

ROOT = Path(__file__).resolve().parents[2]
BLOCKS, BLOCKS_OF_THE_GATE, SEEDS_A_BLOCK = 8, 1, 150
SAFETY = [*(f"I-{i}" for i in range(1, 21)), "I-G1", "I-G2", "I-G3", *(f"I-L{i}" for i in range(1, 11)), "I-R1", "RC-5", "WR-7"]
LINKS = [f"I-K{i}" for i in range(1, 13)]
LIVE = [f"L-{i}" for i in range(1, 12)]
EVALUATED: Counter[str] = Counter()


@pytest.mark.parametrize(
    "block", [block if block < BLOCKS_OF_THE_GATE else pytest.param(block, marks=pytest.mark.deep) for block in range(BLOCKS)]
)
def test_no_seed_breaks_an_invariant(block: int) -> None:
    for seed in range(block * SEEDS_A_BLOCK, (block + 1) * SEEDS_A_BLOCK):
        run = run_of(seed)
        run.play()
        EVALUATED.update(run.cluster.checker.evaluated)


@pytest.mark.parametrize("seed", [914020706, 914048540, 914079915, 914099485, 961014962, 502026, 530042, 564287])
def test_seeds_that_once_broke_one(seed: int) -> None:
    """A janitor forgot the intent of a cluster made anew (OWN-10), and somebody one that was another cluster's by then (OWN-5); one that
    another cluster had under the same number went while it was looked at (OWN-5). A look for an address that met no store was never made
    again (LINK-4). The others were of invariants that asked for too much.
    """
    run_of(seed).play()


def test_every_rule_of_13_1_and_13_2_has_a_function_and_is_evaluated() -> None:
    assert sorted({i.rule for i in (*INVARIANTS, *LOG_INVARIANTS)}) == sorted(SAFETY)
    assert sorted({i.rule for i in LIVENESS}) == sorted(LIVE)
    assert sorted({i.rule for i in LINK_INVARIANTS}) == sorted(LINKS)
    seen = Counter(EVALUATED)
    seed = last = BLOCKS_OF_THE_GATE * SEEDS_A_BLOCK if EVALUATED else 0
    while missing := [rule for rule in (*SAFETY, *LIVE, *LINKS, *OWNER_INVARIANTS, *FILES_INVARIANTS) if not seen[rule]]:
        assert seed < last + 600, missing
        run = run_of(seed)
        run.play()
        seen.update(run.cluster.checker.evaluated)
        seed += 1


def test_a_seed_replays_the_same_whatever_the_string_hashes() -> None:
    code = "from tests.simulation.runs import run_of\nfor s in range(12):\n r = run_of(s); r.play(); print(r.world.fingerprint())"
    outputs = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True, cwd=ROOT)
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]


def test_a_run_is_the_same_with_kernels_in_c_and_in_python() -> None:
    """More of them: ``python -m tests.simulation.twins``."""
    assert different(0, 12) == []


def test_verbose_replay_is_the_same_run() -> None:
    for seed in range(5):
        quiet, loud = run_of(seed), run_of(seed, verbose=True)
        quiet.play()
        loud.play()
        assert quiet.world.steps == loud.world.steps and quiet.world.now == loud.world.now
        assert quiet.world.fingerprint() == loud.world.fingerprint()


def test_a_run_about_clusters_leaves_nothing_behind() -> None:
    """Its programs use the product's store over nodes in memory; what stands for ZooKeeper meanwhile is put away, whatever ends them."""
    link = zookeeper.Link
    for seed in range(20):
        OwnerPlay(seed).play()
        assert zookeeper.Link is link, f"seed {seed}"
