"""Settings about placement: each one acts or is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

import bk_core
from bk_core.config import ClientConfig, Placement
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


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"racks": {"a": "/r"}}, r"\] racks means nothing without placement='rack-aware'"),
        ({"rack_script_timeout_s": 3.0}, r"\] rack_script_timeout_s means nothing"),
        ({"min_ack_racks": 2}, r"\] min_ack_racks means nothing"),
        ({"racks": {}, "local_rack": "/r", "min_racks": 3}, r"\] racks, min_racks and local_rack mean nothing"),
    ],
)
@pytest.mark.parametrize("uri", ["zk://h:1/l", "zk://h:1/l?placement=random"])
def test_a_refusal_names_what_was_given_and_nothing_else(uri: str, settings: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        ClientConfig(uri, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(("of_uri", "given"), [("random", "rack-aware"), ("rack-aware", "random")])
def test_a_placement_in_the_uri_and_another_one_beside_it_are_refused(of_uri: str, given: Placement) -> None:
    with pytest.raises(InvalidArgumentError, match=f"placement is '{given}', and '{of_uri}' in the options of the URI"):
        ClientConfig(f"zk://h:1/l?placement={of_uri}", placement=given)
    assert ClientConfig(f"zk://h:1/l?placement={given}", placement=given).placement_policy == given


def test_a_store_in_memory_is_the_same_with_placement_in_its_uri() -> None:
    bk_core.metadata.open_store("memory://in-the-uri").initialize_cluster()
    with bk_core.connect("memory://in-the-uri?placement=rack-aware", racks={"b1": "/r1"}) as bk:
        assert bk._session.placement.domain_of("b1") == "/r1"


def test_a_copy_of_settings_takes_a_mapping_instead_of_the_script_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BK_RACK_SCRIPT", "/x")
    config = ClientConfig("zk://h:1/l?placement=rack-aware")
    copy = replace(config, racks={"a": "/r"})
    assert (config.script_of_racks, copy.script_of_racks) == ("/x", None)


def test_settings_about_racks_are_taken() -> None:
    settings = {"racks": {"b1": "/r1", "b2": "r2"}, "min_racks": 3, "enforce_racks": True, "local_rack": "r1", "quarantine_s": 0}
    bk_core.metadata.open_store("memory://racks").initialize_cluster()
    with bk_core.connect("memory://racks", placement="rack-aware", **settings) as bk:
        assert bk._session.placement.domain_of("b2:3181") == "/r2"
        assert (bk._session.placement.min_racks, bk._session.placement.enforce, bk._session.placement.local_rack) == (3, True, "/r1")
