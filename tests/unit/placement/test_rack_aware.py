"""The rack-aware policy: every write set spans racks whenever that can be had (metadata.md 5.3, 5.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bk_core.errors import NotEnoughBookiesError
from bk_core.protocol.ledger.placement import DEFAULT_RACK, RackAwarePlacement, Topology, new_ensemble_striped


def cluster(*counts: int) -> dict[str, str]:
    """Bookie -> rack: ``counts[i]`` bookies in rack i."""
    return {f"r{rack}b{number}": f"/rack{rack}" for rack, count in enumerate(counts) for number in range(count)}


def placement(
    racks: dict[str, str],
    seed: int = 1,
    *,
    writable: Sequence[str] | None = None,
    suspect: Sequence[str] = (),
    min_racks: int = 2,
    enforce: bool = False,
    local_rack: str | None = None,
) -> RackAwarePlacement:
    registered = list(racks) if writable is None else list(writable)
    topology = Topology(racks)
    return RackAwarePlacement(lambda: registered, Random(seed).random, lambda: suspect, lambda: topology, min_racks, enforce, local_rack)


def narrowest(ensemble: Sequence[str], quorum: int, racks: dict[str, str]) -> int:
    """Fewest racks that any write set of the ensemble spans."""
    size = len(ensemble)
    return min(len({racks[ensemble[(start + k) % size]] for k in range(quorum)}) for start in range(size))


def best_narrowest(size: int, quorum: int, racks: dict[str, str]) -> int:
    """Return by brute force over the order of racks the best that any ensemble can do."""
    return max(_width(names, quorum) for names in set(permutations(racks.values(), size)))


def _width(names: Sequence[str], quorum: int) -> int:
    size = len(names)
    return min(len({names[(start + k) % size] for k in range(quorum)}) for start in range(size))


counts = st.lists(st.integers(1, 3), min_size=1, max_size=3)


@settings(deadline=None, max_examples=150)
@given(counts=counts, seed=st.integers(0, 9), size=st.integers(1, 4), quorum=st.integers(1, 4), min_racks=st.integers(1, 3))
def test_every_write_set_spans_as_many_racks_as_any_ensemble_could(
    counts: list[int], seed: int, size: int, quorum: int, min_racks: int
) -> None:
    """CR-2: distinct writable bookies by policy. Where an adhering ensemble exists, one is found (a greedy choice would miss some)."""
    racks = cluster(*counts)
    quorum = min(quorum, size)
    if len(racks) < size:
        with pytest.raises(NotEnoughBookiesError):
            placement(racks, seed, min_racks=min_racks).new_ensemble(size, quorum)
        return
    ensemble = placement(racks, seed, min_racks=min_racks).new_ensemble(size, quorum)
    assert len(set(ensemble)) == size and set(ensemble) <= set(racks)
    wanted = min(quorum, min_racks, best_narrowest(size, quorum, racks))
    assert narrowest(ensemble, quorum, racks) >= wanted


@settings(deadline=None, max_examples=80)
@given(counts=counts, seed=st.integers(0, 9), size=st.integers(1, 4), min_racks=st.integers(1, 3))
def test_enforced_means_adhering_or_an_error(counts: list[int], seed: int, size: int, min_racks: int) -> None:
    racks = cluster(*counts)
    policy = placement(racks, seed, min_racks=min_racks, enforce=True)
    quorum = min(2, size)
    wanted = min(quorum, min_racks)
    if len(racks) >= size and best_narrowest(size, quorum, racks) >= wanted:
        assert narrowest(policy.new_ensemble(size, quorum), quorum, racks) >= wanted
    else:
        with pytest.raises(NotEnoughBookiesError, match=f"must span {wanted} racks"):
            policy.new_ensemble(size, quorum)


def test_the_search_goes_back_where_a_greedy_choice_is_stuck() -> None:
    """Racks of 1, 1 and 2 bookies, E=4, Qw=2: only the pair on opposite sides adheres. Greedy a, b, c leaves c beside c."""
    racks = cluster(1, 1, 2)
    for seed in range(30):
        assert narrowest(placement(racks, seed).new_ensemble(4, 2), 2, racks) == 2


def test_bookies_spread_over_unused_racks_first() -> None:
    racks = cluster(3, 3, 3, 3)
    for seed in range(20):
        assert len({racks[b] for b in placement(racks, seed).new_ensemble(4, 3)}) == 4


def test_a_search_without_an_answer_ends_soon() -> None:
    """Twenty bookies, eleven in one rack: no ensemble of all of them adheres with pairs. What comes closest is still taken."""
    racks = cluster(11, *[1] * 9)
    ensemble = placement(racks).new_ensemble(20, 2)
    assert len(set(ensemble)) == 20
    with pytest.raises(NotEnoughBookiesError):
        placement(racks, enforce=True).new_ensemble(20, 2)


def test_without_a_write_quorum_the_whole_ensemble_is_one_write_set() -> None:
    racks = cluster(5, 1)
    for seed in range(20):
        assert narrowest(placement(racks, seed).new_ensemble(3), 3, racks) == 2


def test_quarantined_bookies_only_when_short() -> None:
    """CR-2: first without them, even if fewer racks are left; then with them."""
    racks = cluster(3, 1)
    for seed in range(20):
        assert "r1b0" not in placement(racks, seed, suspect=["r1b0"]).new_ensemble(3, 3)
    assert "r1b0" in placement(racks, suspect=["r1b0"]).new_ensemble(4, 3)
    assert "r1b0" in placement(racks, suspect=["r1b0"], enforce=True).new_ensemble(3, 3)


def test_the_first_bookie_stands_in_the_local_rack() -> None:
    racks = cluster(2, 2, 2)
    for seed in range(20):
        ensemble = placement(racks, seed, local_rack="/rack1").new_ensemble(3, 2)
        assert racks[ensemble[0]] == "/rack1" and narrowest(ensemble, 2, racks) == 2
    assert placement(racks, local_rack="/elsewhere").new_ensemble(3, 2)


def test_one_seed_makes_the_same_choices_and_every_bookie_has_its_turn() -> None:
    """SM-4."""
    racks = cluster(2, 2, 2)
    first = [placement(racks, seed).new_ensemble(3, 2) for seed in range(60)]
    again = [placement(racks, seed, writable=list(reversed(racks))).new_ensemble(3, 2) for seed in range(60)]
    assert first == again
    assert {bookie for ensemble in first for bookie in ensemble} == set(racks)


def test_the_fault_domain_of_a_bookie_is_its_rack() -> None:
    """WR-7: for the optional predicate on who has acknowledged."""
    policy = placement(cluster(2, 1))
    assert [policy.domain_of(bookie) for bookie in ("r0b0", "r0b1", "r1b0")] == ["/rack0", "/rack0", "/rack1"]


def test_bookies_without_a_mapping_share_the_default_rack_and_are_no_use_when_enforced() -> None:
    racks = cluster(1, 1)
    everywhere = [*racks, "unknown1", "unknown2"]
    policy = placement(racks, writable=everywhere)
    assert policy.domain_of("unknown1") == policy.domain_of("unknown2") == DEFAULT_RACK
    assert set(policy.new_ensemble(4, 2)) == set(everywhere)
    with pytest.raises(NotEnoughBookiesError, match="2 of them in no usable rack"):
        placement(racks, writable=everywhere, enforce=True).new_ensemble(3, 2)
    assert set(placement(racks, writable=everywhere, enforce=True).new_ensemble(2, 2)) == set(racks)


def test_a_bookie_at_another_depth_is_left_out() -> None:
    """metadata.md 5.1."""
    racks = {"a": "/r1", "b": "/r2", "c": "/region/r1"}
    for seed in range(10):
        assert set(placement(racks, seed).new_ensemble(2, 2)) == {"a", "b"}
    assert placement(racks).domain_of("c") == DEFAULT_RACK
    assert placement(racks).replace(("a",), [0], ["b"]) == {}


# --- replacement ----------------------------------------------------------------------------------------------------


def test_a_replacement_stands_in_the_same_rack_if_one_can() -> None:
    """EC-6, metadata.md 5.4 (1)."""
    racks = cluster(2, 2, 2)
    for seed in range(20):
        assert placement(racks, seed).replace(("r0b0", "r1b0", "r2b0"), [1]) == {1: "r1b1"}


def test_else_in_a_rack_of_no_remaining_member() -> None:
    """EC-6, metadata.md 5.4 (2)."""
    racks = cluster(3, 1, 1, 1)
    for seed in range(20):
        chosen = placement(racks, seed).replace(("r0b0", "r1b0", "r2b0"), [1])
        assert chosen == {1: "r3b0"}


def test_else_anywhere_unless_enforced() -> None:
    """EC-6, metadata.md 5.4 (3)."""
    racks = cluster(2, 1, 1)
    ensemble = ("r0b0", "r1b0", "r2b0")
    assert placement(racks).replace(ensemble, [1]) == {1: "r0b1"}
    assert placement(racks, enforce=True).replace(ensemble, [1]) == {}


def test_several_positions_are_replaced_one_after_the_other() -> None:
    """EC-6: the second sees the first's result, and a later shortage is tolerated."""
    racks = cluster(1, 1, 1, 1)
    for seed in range(20):
        chosen = placement(racks, seed, enforce=True).replace(("r0b0", "r1b0"), [0, 1])
        assert Counter(chosen.values()) == Counter(["r2b0", "r3b0"])
    assert list(placement(cluster(1, 1, 1)).replace(("r0b0", "r1b0"), [0, 1])) == [0]


def test_a_quarantined_replacement_is_the_last_resort() -> None:
    """EC-6: not quarantined if possible, even from another rack; RR-6: never one that is lost."""
    racks = cluster(2, 2)
    ensemble = ("r0b0", "r1b0")
    assert placement(racks, suspect=["r0b1"]).replace(ensemble, [0]) == {0: "r1b1"}
    assert placement(racks, suspect=["r0b1"]).replace(ensemble, [0], avoid=["r1b1"]) == {0: "r0b1"}
    assert placement(racks).replace(ensemble, [0], avoid=["r1b1", "r0b1"]) == {}


@settings(deadline=None)
@given(counts=st.lists(st.integers(1, 3), min_size=3, max_size=4), seed=st.integers(0, 9), failed=st.sets(st.integers(0, 2)))
def test_enforced_replacements_keep_every_write_set_spanning(counts: list[int], seed: int, failed: set[int]) -> None:
    """EC-6, RR-6: policy-conforming; an adhering ensemble stays one."""
    racks = cluster(*counts)
    policy = placement(racks, seed, enforce=True)
    ensemble = list(policy.new_ensemble(3, 2))
    for position, bookie in policy.replace(ensemble, sorted(failed)).items():
        assert bookie not in ensemble
        ensemble[position] = bookie
    assert narrowest(ensemble, 2, racks) >= 2


def test_opportunistic_striping_keeps_the_racks() -> None:
    """CR-2: E goes down until the policy is content too."""
    racks = cluster(3, 1)
    ensemble = new_ensemble_striped(placement(racks, enforce=True), 4, 2)
    assert len(ensemble) == 2 and narrowest(ensemble, 2, racks) == 2
