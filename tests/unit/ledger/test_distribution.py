"""Quorum arithmetic by enumeration (Q-1 to Q-7)."""

from __future__ import annotations

from itertools import combinations

import pytest

from bk_core.protocol.ledger.distribution import Distribution

SHAPES = [(e, w, a) for e in range(1, 7) for w in range(1, e + 1) for a in range(1, w + 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_coverage_means_no_ack_quorum_escaped(shape: tuple[int, int, int]) -> None:
    """Q-4 against its meaning: covered iff no write set has an ack quorum of unheard positions."""
    size, write, ack = shape
    distribution = Distribution(*shape)
    for count in range(size + 1):
        for heard in combinations(range(size), count):
            escaped = any(
                set(quorum).isdisjoint(heard) for start in range(size) for quorum in combinations(distribution.write_set(start), ack)
            )
            assert distribution.covered(heard) is not escaped


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_denials_needed_is_the_smallest_safe_number(shape: tuple[int, int, int]) -> None:
    """Q-2: every ack quorum of the write set contains one of that many positions, and one fewer would not do."""
    _, write, ack = shape
    needed = Distribution(*shape).denials_needed
    quorums = list(combinations(range(write), ack))
    assert all(set(quorum) & set(deniers) for deniers in combinations(range(write), needed) for quorum in quorums)
    assert any(not set(quorum) & set(deniers) for deniers in combinations(range(write), needed - 1) for quorum in quorums)


@pytest.mark.parametrize("entry_id", [0, 1, 5, 2**31 - 1, 2**31, 2**32 + 1, 2**63 - 1])
def test_striping_is_the_same_for_large_ids(entry_id: int) -> None:
    """SM-5, scenario 59: the position set, the mask and ``holds`` agree at any width."""
    distribution = Distribution(5, 3, 2)
    expected = tuple((entry_id + k) % 5 for k in range(3))
    assert distribution.write_set(entry_id) == expected
    assert [p for p in range(5) if distribution.holds(p, entry_id)] == sorted(expected)
    assert distribution.write_mask(entry_id) == sum(1 << p for p in expected)


def test_the_worked_example_of_a_striped_ensemble() -> None:
    """Q-6, scenarios 31 and 32: 6/3/2 with 0 and 3 down is covered, with 0 and 2 down it is not."""
    distribution = Distribution(6, 3, 2)
    assert distribution.covered({1, 2, 4, 5})
    assert not distribution.covered({1, 3, 4, 5})
