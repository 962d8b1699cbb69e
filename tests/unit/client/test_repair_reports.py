"""The options of a repair, and what its report says of itself."""

from __future__ import annotations

import pytest

from bk_core.client.repair.report import RepairReport, repair_options
from bk_core.errors import InvalidArgumentError


def test_options() -> None:
    assert repair_options({"lost": ["a", "a"]}).lost == frozenset({"a"})
    with pytest.raises(InvalidArgumentError):
        repair_options({"fast": True})


def test_a_report_is_complete_only_without_anything_left() -> None:
    """RR-3, RR-8, RR-11."""
    assert RepairReport(1).is_complete and not RepairReport(1).changed
    assert not RepairReport(1, problems=["x"]).is_complete
    assert not RepairReport(1, locked_by="w").is_complete
    assert not RepairReport(1, open_tail_lost=("a",)).is_complete
    assert RepairReport(1, recovered=True).changed
