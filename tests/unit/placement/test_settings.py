"""Settings about placement: each one acts or is refused."""

from __future__ import annotations

import pytest

import bk_core
from bk_core.errors import InvalidArgumentError


@pytest.mark.parametrize(
    "settings",
    [
        {"placement": "nearest"},
        {"racks": {}},
        {"min_racks": 3},
        {"enforce_racks": True},
        {"local_rack": "/r"},
        {"placement": "rack-aware", "min_racks": 0},
        {"placement": "rack-aware", "racks": {"a": 1}},
        {"placement": "rack-aware", "local_rack": "/"},
        {"quarantine_s": -1.0},
        {"quarantine_s": float("nan")},
        {"quarantine_errors": 0},
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        bk_core.connect("memory://nobody", **settings)


def test_settings_about_racks_are_taken() -> None:
    settings = {"racks": {"b1": "/r1", "b2": "r2"}, "min_racks": 3, "enforce_racks": True, "local_rack": "r1", "quarantine_s": 0}
    bk_core.metadata.open_store("memory://racks").initialize_cluster()
    with bk_core.connect("memory://racks", placement="rack-aware", **settings) as bk:
        assert bk._session.placement.domain_of("b2:3181") == "/r2"
        assert (bk._session.placement.min_racks, bk._session.placement.enforce, bk._session.placement.local_rack) == (3, True, "/r1")
