"""Every broken rule is noticed, by an invariant that names it (replication-protocol.md 13.4): a simulator that misses one is not
finished."""

from __future__ import annotations

import pytest

from tests.simulation.mutate import hunt
from tests.simulation.mutations import MUTATIONS, Mutation, applied
from tests.simulation.runs import run_of


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.rule.replace(" ", "-"))
def test_a_broken_rule_is_noticed(mutation: Mutation) -> None:
    """``near`` is where it was noticed last time; if the machines have changed since then, the hunt goes on from there."""
    catch = hunt(mutation, first=mutation.near)
    assert catch.rule in mutation.expected, catch


def test_a_mutation_leaves_nothing_behind() -> None:
    before = {(owner, name): getattr(owner, name) for m in MUTATIONS for owner, name, _ in m.patches}
    for mutation in MUTATIONS:
        with applied(mutation):
            pass
    assert {(owner, name): getattr(owner, name) for m in MUTATIONS for owner, name, _ in m.patches} == before


@pytest.mark.parametrize("third", [0, *(pytest.param(third, marks=pytest.mark.deep) for third in (1, 2))])
def test_what_mutations_force_harms_nobody_without_the_mutation(third: int) -> None:
    """Those that force nothing play what test_swarm.py plays."""
    forcing = [mutation for mutation in MUTATIONS if mutation.forced and not mutation.forced.get("log")]
    assert len(forcing) >= 3
    for mutation in forcing[third::3]:
        run_of(mutation.near, mutation.forced).play()
