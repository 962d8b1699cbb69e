"""The random policy: what every choice promises, whatever the seed."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import NotEnoughBookiesError
from bk_core.protocol.ledger.placement import RandomPlacement, new_ensemble_striped

BOOKIES = [f"b{i}:3181" for i in range(8)]
some = st.lists(st.sampled_from(BOOKIES), unique=True)


def placement(writable: list[str], seed: int, suspect: list[str] | None = None) -> RandomPlacement:
    return RandomPlacement(lambda: writable, Random(seed).random, lambda: suspect or [])


@given(writable=some, suspect=some, seed=st.integers(0, 99), size=st.integers(1, 6))
def test_an_ensemble_is_distinct_writable_bookies_and_quarantined_ones_only_when_short(
    writable: list[str], suspect: list[str], seed: int, size: int
) -> None:
    """META-2, CR-2: E distinct bookies out of those registered as writable; a quarantined one only if the others do not suffice."""
    policy = placement(writable, seed, suspect)
    if len(writable) < size:
        with pytest.raises(NotEnoughBookiesError, match=f"ensemble size {size}"):
            policy.new_ensemble(size)
        return
    ensemble = policy.new_ensemble(size)
    assert len(set(ensemble)) == size and set(ensemble) <= set(writable)
    healthy = set(writable) - set(suspect)
    assert len(set(ensemble) & healthy) == min(size, len(healthy))


@given(writable=some, seed=st.integers(0, 99), avoid=some, failed=st.lists(st.integers(0, 2), unique=True))
def test_replacements_come_from_outside_the_ensemble(writable: list[str], seed: int, avoid: list[str], failed: list[int]) -> None:
    """EC-6, RR-6: no bookie of the ensemble, none of the failed ones, none twice; as many positions as there are candidates, in order."""
    ensemble = ("b0:3181", "b1:3181", "b2:3181")
    chosen = placement(writable, seed).replace(ensemble, failed, avoid)
    candidates = set(writable) - set(ensemble) - set(avoid)
    assert list(chosen) == failed[: len(candidates)]
    assert set(chosen.values()) <= candidates and len(set(chosen.values())) == len(chosen)


def test_a_quarantined_replacement_is_the_last_resort() -> None:
    """EC-6: not quarantined if possible."""
    for seed in range(20):
        chosen = placement(["a", "b", "c", "d"], seed, suspect=["c"]).replace(("a",), [0])
        assert chosen[0] != "c"
    assert placement(["a", "c"], 1, suspect=["c"]).replace(("a",), [0]) == {0: "c"}


def test_one_seed_makes_the_same_choices_and_every_bookie_has_its_turn() -> None:
    """SM-4: chance comes in from outside, in whatever order the registry lists the bookies."""
    first = [placement(BOOKIES, seed).new_ensemble(3) for seed in range(50)]
    again = [placement(list(reversed(BOOKIES)), seed).new_ensemble(3) for seed in range(50)]
    assert first == again
    assert {bookie for ensemble in first for bookie in ensemble} == set(BOOKIES)


def test_each_bookie_is_its_own_fault_domain() -> None:
    """WR-7: for the optional predicate on who has acknowledged."""
    assert placement(BOOKIES, 1).domain_of("b1:3181") == "b1:3181"


@pytest.mark.parametrize(("registered", "used"), [(5, 5), (4, 4), (3, 3), (8, 5)])
def test_opportunistic_striping_lowers_the_ensemble_size_step_by_step(registered: int, used: int) -> None:
    """CR-2: the E used is as close to the E asked for as the bookies allow."""
    assert len(new_ensemble_striped(placement(BOOKIES[:registered], 7), 5, 3)) == used


@pytest.mark.parametrize("registered", [0, 2])
def test_opportunistic_striping_never_goes_below_the_write_quorum(registered: int) -> None:
    """CR-2; the error speaks of what was asked for."""
    with pytest.raises(NotEnoughBookiesError, match="ensemble size 5"):
        new_ensemble_striped(placement(BOOKIES[:registered], 7), 5, 3)
