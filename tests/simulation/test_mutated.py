"""Every rule is broken by a mutation, or a table says why none does. That each mutation is noticed: test_mutations.py and ``mutate``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.simulation.mutated import mutations, reasons, rules
from tests.simulation.unit_mutations import ROOT, UNIT_MUTATIONS, UnitMutation

# Rules of which each must have one: they say what strangers found missing.
FAMILIES = ("BKE", "OWN", "GRD", "JAN", "SES", "LINK", "FS")
SINGLE = ("META-15", "RR-14", "RR-15", "LOG-18")


def test_every_rule_has_a_mutation_or_a_reason() -> None:
    unnamed = [rule for rule in rules() if rule not in mutations() and rule not in reasons()]
    assert not unnamed, f"neither a mutation nor a reason (tests/simulation/mutated.py): {' '.join(unnamed)}"


def test_every_rule_of_these_families_has_a_mutation() -> None:
    wanted = [rule for rule in rules() if rule.split("-")[0] in FAMILIES or rule in SINGLE]
    assert len(wanted) >= 46
    assert not [rule for rule in wanted if rule not in mutations()]


def test_no_line_of_the_tables_is_out_of_date() -> None:
    known = set(rules())
    assert not set(mutations()) - known and not set(reasons()) - known
    assert not set(mutations()) & set(reasons()), "these have a mutation by now: take them out of the reasons"


@pytest.mark.parametrize("one", UNIT_MUTATIONS, ids=lambda one: one.rule.replace(" ", "-"))
def test_a_unit_mutation_finds_its_place_and_its_test(one: UnitMutation) -> None:
    """So that one which has lost them is noticed at once, not when somebody plays all of them."""
    spec = importlib.util.find_spec(one.module)
    assert spec is not None and spec.origin is not None
    assert Path(spec.origin).read_text().count(one.sound) == 1 and one.broken != one.sound
    path, _, name = one.test.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()
