"""Locations, names they are found under, and bookies that fit nowhere (metadata.md 1.5, 5.1)."""

from __future__ import annotations

import pytest

from bk_core.protocol.ledger.placement import Topology, location
from bk_core.protocol.ledger.placement.topology import host_of


@pytest.mark.parametrize(
    ("text", "place"),
    [("/rack-a", "/rack-a"), ("rack-a", "/rack-a"), ("/r/a/", "/r/a"), ("r//a", "/r/a"), ("", None), ("/", None), ("//", None)],
)
def test_a_location_has_one_spelling(text: str, place: str | None) -> None:
    assert location(text) == place


def test_a_bookie_is_found_by_id_then_by_host() -> None:
    topology = Topology(
        {"h1:3181": "by-id", "h1": "by-host", "10.0.0.7": "by-address", "custom": "/"}, {"bookie-a": "10.0.0.7", "bookie-b": "10.0.0.8"}
    )
    assert topology.rack_of("h1:3181") == "/by-id"
    assert topology.rack_of("h1:3182") == "/by-host"
    assert topology.rack_of("bookie-a") == "/by-address"
    assert topology.rack_of("bookie-b") == topology.rack_of("custom") == topology.default_rack == "/default-rack"


def test_host_of_a_custom_id_is_the_id() -> None:
    assert (host_of("h:3181"), host_of("bookie-a")) == ("h", "bookie-a")


def test_the_default_rack_is_as_deep_as_the_others() -> None:
    assert Topology({"a": "/region/rack"}).default_rack == "/default-region/default-rack"
    assert Topology({"a": "/region/rack"}).rack_of("b") == "/default-region/default-rack"


def test_another_depth_is_left_out_and_named() -> None:
    topology = Topology({"a": "/eu/r1", "b": "/eu/r2", "c": "/r1"})
    assert topology.misplaced == ("c",)
    assert (topology.rack_of("a"), topology.rack_of("c")) == ("/eu/r1", None)
    assert Topology({"a": "/eu/r1", "c": "/r1"}).misplaced == ("a",)  # a tie: the shallower one counts
    assert Topology().misplaced == ()


def test_bookies_that_are_gone_do_not_decide_the_depth() -> None:
    racks = {"a": "/r1", "b": "/r2", "host-c": "/eu/r1"}
    topology = Topology(racks, {"c": "host-c"}, frozenset(("c", "unmapped")))
    assert (topology.rack_of("c"), topology.rack_of("unmapped")) == ("/eu/r1", "/default-region/default-rack")
    assert topology.rack_of("a") is None and topology.misplaced == ("a", "b")
    assert Topology(racks, {"c": "host-c"}, frozenset(("a", "c"))).rack_of("a") == "/r1"  # a tie: that of most, with those that are gone
    assert Topology(racks, {}, frozenset(("unmapped",))).rack_of("a") == "/r1"
