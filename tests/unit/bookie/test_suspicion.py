"""The time at which a bookie believes that its ledgers are gone (BKE-1, BKE-2)."""

from __future__ import annotations

import pytest

from bk_core.protocol.bookie.suspicion import Absence, Sight, judge_absence, judge_cluster, may_believe, may_drop


@pytest.mark.parametrize(
    ("signed", "found", "differences", "sight"),
    [
        ("a", "a", (), Sight.HOME),
        (None, None, (), Sight.HOME),  # a cluster without an instance id
        ("a", None, None, Sight.GONE),  # wiped
        ("a", None, (), Sight.GONE),  # INSTANCEID alone is gone
        ("a", "a", None, Sight.GONE),  # the cookie alone is gone
        (None, None, None, Sight.GONE),
        ("a", "b", None, Sight.FOREIGN),  # initialised anew
        (None, "b", (), Sight.FOREIGN),
        ("a", "a", ("ledger directories",), Sight.FOREIGN),  # another bookie has taken this one's name
    ],
)
def test_bke_1_the_cluster_that_was_signed(
    signed: str | None, found: str | None, differences: tuple[str, ...] | None, sight: Sight
) -> None:
    assert judge_cluster(signed, found, differences) is sight


def test_bke_1_every_look_counts() -> None:
    """BKE-1: a store that is emptied and filled again between two looks is not believed in the middle."""
    assert may_believe([Sight.HOME, Sight.HOME])
    assert not may_believe([Sight.HOME, Sight.GONE])
    assert not may_believe([Sight.FOREIGN, Sight.HOME])


@pytest.mark.parametrize(
    ("count", "held", "told", "goes"),
    [
        (1, 1, 0, True),
        (100, 100, 0, True),  # a small bookie may lose all
        (101, 101, 0, False),
        (500, 1000, 0, True),
        (501, 1000, 0, False),
        (501, 1000, 500, False),  # told of fewer
        (501, 1000, 501, True),
        (0, 0, 0, True),
    ],
)
def test_bke_2_a_round_that_drops_much_has_to_be_told(count: int, held: int, told: int, goes: bool) -> None:
    assert may_drop(count, held, floor=100, share=0.5, told=told) is goes


@pytest.mark.parametrize(
    ("has", "servers", "judged"),
    [
        ([False, False, False], 3, Absence.GONE),
        ([False, False], 3, Absence.GONE),
        ([False], 3, Absence.UNKNOWN),
        ([], 3, Absence.UNKNOWN),
        ([False], 2, Absence.UNKNOWN),
        ([False], 1, Absence.GONE),
        ([True, False], 3, Absence.CONTRADICTED),
        ([False, False, True], 5, Absence.CONTRADICTED),
        ([True, True], 3, Absence.THERE),
        ([True], 3, Absence.UNKNOWN),
    ],
)
def test_bke_10_most_servers_must_say_so(has: list[bool], servers: int, judged: Absence) -> None:
    assert judge_absence(has, servers) is judged
