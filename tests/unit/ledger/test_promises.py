"""The table of promises in the README is computed, shape by shape, from the same counting that recovery uses (Q-1..Q-7)."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from bk_core.protocol.ledger.distribution import Distribution

ROOT = Path(__file__).resolve().parents[3]
SHAPES = ((1, 1, 1), (2, 2, 1), (2, 2, 2), (3, 3, 2), (3, 3, 3), (3, 2, 2), (5, 3, 2), (5, 5, 3))


def _largest(size: int, good_for_all: object) -> int:
    """The largest k so that every choice of k positions out of ``size`` is good; -1 if none is."""
    assert callable(good_for_all)
    for count in range(size + 1):
        if not all(good_for_all(gone) for gone in combinations(range(size), count)):
            return count - 1
    return size


def _row(e: int, qw: int, qa: int) -> str:
    shape = Distribution(e, qw, qa)
    windows = [set(shape.write_set(entry)) for entry in range(e)]
    kept = _largest(qa, lambda gone: len(gone) < qa)  # of the Qa that are certain to have it
    writes = _largest(e, lambda gone: all(len(w - set(gone)) >= qa for w in windows))
    recovers = _largest(e, lambda gone: shape.covered(set(range(e)) - set(gone)))
    sealed = "-" if qw == qa else str(qw - 1)
    return f"| {e}/{qw}/{qa} | {kept} | {writes} | {recovers} | {qa} to {qw} | {sealed} |".replace(f"{qa} to {qa} ", f"{qa} ")


@pytest.mark.parametrize("shape", SHAPES)
def test_the_readme_states_what_a_shape_promises(shape: tuple[int, int, int]) -> None:
    """Q-1: committed means Qa copies. Q-10: Qa - 1 may be lost, Qw - Qa of a write set may be down. Q-7: recovery needs coverage (Q-4)."""
    assert _row(*shape) in (ROOT / "README.md").read_text()
