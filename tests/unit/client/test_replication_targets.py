"""Bookies that take copies, and leave before or after the ledger names them (RR-20)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from bk_core.client.client import BookKeeper
from bk_core.client.repair.jobs import _Job
from bk_core.client.repair.report import repair_options
from bk_core.errors import MetadataUnavailableError, ReplicationError
from bk_core.protocol.ledger.replication import FragmentSpan
from tests.unit.client.ledgers_in_memory import ABC, four_bookies, opened, store_ledger


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[BookKeeper]:
    with four_bookies(request.node.name) as made:
        yield made


@pytest.mark.parametrize("moment", ["before the change", "after the change"])
@pytest.mark.parametrize("leaves", ["turns read-only", "goes"])
@pytest.mark.parametrize("spare", [True, False], ids=["with a spare", "without"])
def test_rr20_copies_on_a_bookie_that_leaves_are_made_elsewhere(
    client: BookKeeper, monkeypatch: pytest.MonkeyPatch, moment: str, leaves: str, spare: bool
) -> None:
    """RR-20. Whoever empties the target has looked at the ledger before it is named there, and stops it."""
    client.store.register_bookie("d:1", "127.0.0.1", 1, readonly=True)
    ensemble = ("d:1", *ABC[1:])  # only x:1 can take a place beside a:1, which the fragment of the other ledger has
    ledger_id = store_ledger(client, replace(opened((*ensemble, "a:1")), ensemble_size=4, write_quorum_size=3).closed(-1, 0))
    target = next(one for one in client.store._mine if getattr(one, "_bookie_id", "") == "x:1")  # type: ignore[attr-defined]
    method = "_repair_fragment" if moment == "before the change" else "_change"
    original = getattr(_Job, method)
    left: list[str] = []

    def then_leaves(self: _Job, *arguments: Any) -> None:
        original(self, *arguments)
        if not left:
            left.append("x:1")
            if spare:
                client.store.register_bookie("y:1", "127.0.0.1", 1)
            target.set_readonly(True) if leaves == "turns read-only" else target.close()

    monkeypatch.setattr(_Job, method, then_leaves)
    report = client.repair_ledger(ledger_id, lost=["d:1"], only_lost=True)
    now = client.ledger_metadata(ledger_id).fragments[0].ensemble[0]
    assert left and now == ("y:1" if spare else "x:1" if leaves == "turns read-only" else "d:1")
    assert report.is_complete is (now != "d:1") and [one.new for one in report.moved] == [now] * report.is_complete
    assert report.is_complete or report.problems == ["no writable bookie can take the place of d:1 in fragment 0"]


@pytest.mark.parametrize("registered", [True, False], ids=["turns read-only", "goes"])
def test_rr20_a_bookie_that_took_the_copies_stays_where_no_other_does(
    client: BookKeeper, monkeypatch: pytest.MonkeyPatch, registered: bool
) -> None:
    """The next one turns out to take none. One that is gone gives its place back to the bookie that had it before."""
    client.store.register_bookie("d:1", "127.0.0.1", 1, readonly=True)
    ledger_id = store_ledger(client, replace(opened(("d:1", "b:1", "c:1", "a:1")), ensemble_size=4).closed(-1, 0))
    target = next(one for one in client.store._mine if getattr(one, "_bookie_id", "") == "x:1")  # type: ignore[attr-defined]
    changes: list[str] = []
    original = _Job._change

    def then_leaves(self: _Job, *arguments: Any) -> None:
        original(self, *arguments)
        if not changes:
            client.store.register_bookie("y:1", "127.0.0.1", 1)
            target.set_readonly(True) if registered else target.close()
        changes.append("x")

    monkeypatch.setattr(_Job, "_change", then_leaves)
    monkeypatch.setattr(_Job, "_copy", refuses_after(changes, "y:1", _Job._copy))
    report = client.repair_ledger(ledger_id, lost=["d:1"], only_lost=True)
    now = client.ledger_metadata(ledger_id).fragments[0].ensemble[0]
    assert now == ("x:1" if registered else "d:1") and report.is_complete is registered
    assert [one.new for one in report.moved] == ["x:1"] * registered


@pytest.mark.parametrize("forgotten", [False, True])
def test_rr20_a_bookie_that_was_decommissioned_gets_no_place_back(
    client: BookKeeper, monkeypatch: pytest.MonkeyPatch, forgotten: bool
) -> None:
    """RR-14: its decommission has told that no ledger names it. The place stays with the bookie that took the copies and is gone."""
    client.store.write_cookie("d:1", b"5\n", None)
    ledger_id = store_ledger(client, replace(opened(("d:1", "b:1", "c:1", "a:1")), ensemble_size=4).closed(-1, 0))
    target = next(one for one in client.store._mine if getattr(one, "_bookie_id", "") == "x:1")  # type: ignore[attr-defined]
    changes: list[str] = []
    original = _Job._change

    def then_leaves(self: _Job, *arguments: Any) -> None:
        original(self, *arguments)
        if not changes:
            client.store.register_bookie("y:1", "127.0.0.1", 1)
            target.close()
            if forgotten:
                client.delete_cookie("d:1")
        changes.append("x")

    monkeypatch.setattr(_Job, "_change", then_leaves)
    monkeypatch.setattr(_Job, "_copy", refuses_after(changes, "y:1", _Job._copy))
    report = client.repair_ledger(ledger_id, lost=["d:1"], only_lost=True)
    assert client.ledger_metadata(ledger_id).fragments[0].ensemble[0] == ("x:1" if forgotten else "d:1")
    assert not report.is_complete and report.problems and [one.new for one in report.moved] == ["x:1"] * forgotten


@pytest.mark.parametrize("leaver", [0, 1])
@pytest.mark.parametrize("leaves", ["turns read-only", "goes"])
def test_rr20_of_two_targets_of_a_fragment_one_leaves(
    client: BookKeeper, monkeypatch: pytest.MonkeyPatch, leaver: int, leaves: str
) -> None:
    """RR-20. What took the other place keeps it."""
    registrations = {one: client.store.register_bookie(one, "127.0.0.1", 1) for one in ("t:1", "u:1", "v:1")}
    ledger_id = store_ledger(client, opened(("gone:1", "gone:2", "c:1")).closed(-1, 0))
    client.store.register_bookie("gone:1", "127.0.0.1", 1, readonly=True)
    client.store.register_bookie("gone:2", "127.0.0.1", 1, readonly=True)
    for one in ("a:1", "b:1", "x:1"):
        next(mine for mine in client.store._mine if getattr(mine, "_bookie_id", "") == one).close()  # type: ignore[attr-defined]
    original, first = _Job._change, list[tuple[str, ...]]()

    def then_leaves(self: _Job, *arguments: Any) -> None:
        original(self, *arguments)
        if not first:
            first.append(client.ledger_metadata(ledger_id).fragments[0].ensemble)
            registration = registrations[first[0][leaver]]
            registration.set_readonly(True) if leaves == "turns read-only" else registration.close()

    monkeypatch.setattr(_Job, "_change", then_leaves)
    report = client.repair_ledger(ledger_id, lost=["gone:1", "gone:2"], only_lost=True)
    now = client.ledger_metadata(ledger_id).fragments[0].ensemble
    assert now[1 - leaver] == first[0][1 - leaver] and {*now, first[0][leaver]} == {"t:1", "u:1", "v:1", "c:1"}
    assert report.is_complete and {one.position: (one.old, one.new) for one in report.moved} == {
        0: ("gone:1", now[0]),
        1: ("gone:2", now[1]),
    }


def test_rr20_what_was_moved_is_told_when_what_follows_fails(client: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger_id = store_ledger(client, opened(("gone:1", "b:1", "c:1")).closed(-1, 0))
    next(one for one in client.store._mine if getattr(one, "_bookie_id", "") == "a:1").close()  # type: ignore[attr-defined]
    looks: list[bool] = []

    def leaving(_self: _Job, _copied: Any, *, named: bool) -> Any:
        looks.append(named)
        if named:
            raise MetadataUnavailableError("nobody answers")
        return {}

    monkeypatch.setattr(_Job, "_leaving", leaving)
    report = client.repair_ledger(ledger_id, lost=["gone:1"], only_lost=True)
    assert looks == [False, True] and [(one.old, one.new) for one in report.moved] == [("gone:1", "x:1")] and not report.is_complete


@pytest.mark.parametrize("second", ["stays", "goes", "turns read-only"])
def test_rr20_the_bookie_that_takes_the_place_of_one_that_left_leaves_as_well(
    client: BookKeeper, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    """RR-20. It does so before it is named. Where nobody else takes the copies, a bookie that is gone is not left in the ledger."""
    client.store.register_bookie("d:1", "127.0.0.1", 1, readonly=True)
    ledger_id = store_ledger(client, replace(opened(("d:1", "b:1", "c:1", "a:1")), ensemble_size=4).closed(-1, 0))
    target = next(one for one in client.store._mine if getattr(one, "_bookie_id", "") == "x:1")  # type: ignore[attr-defined]
    change, copy, changes, copies = _Job._change, _Job._repair_fragment, list[str](), list[str]()
    others = []

    def then_leaves(self: _Job, *arguments: Any) -> None:
        change(self, *arguments)
        if not changes:
            others.append(client.store.register_bookie("y:1", "127.0.0.1", 1))
            target.close()
        changes.append("x")

    def then_the_next_one_leaves(self: _Job, *arguments: Any) -> Any:
        found = copy(self, *arguments)
        copies.append("x")
        if len(copies) == 2 and second != "stays":
            others[0].close() if second == "goes" else others[0].set_readonly(True)
        return found

    monkeypatch.setattr(_Job, "_change", then_leaves)
    monkeypatch.setattr(_Job, "_repair_fragment", then_the_next_one_leaves)
    report = client.repair_ledger(ledger_id, lost=["d:1"], only_lost=True)
    now = client.ledger_metadata(ledger_id).fragments[0].ensemble[0]
    assert now == ("d:1" if second == "goes" else "y:1") and report.is_complete is (second != "goes")
    assert [(one.old, one.new) for one in report.moved] == [("d:1", "y:1")] * (second != "goes")


def refuses_after(changes: list[str], bookie: str, copy: Any) -> Any:
    def refuses(self: _Job, machine: Any, span: FragmentSpan) -> None:
        if changes and bookie in machine.targets.values():
            machine.failed_bookies[bookie] = "it takes none"
            raise ReplicationError("it takes none")
        copy(self, machine, span)

    return refuses


def test_rr20_a_bookie_that_stood_there_and_is_back_is_no_target(client: BookKeeper) -> None:
    """It is given its place back instead, because a fragment cannot be copied to a bookie that it names already."""
    ledger_id = store_ledger(client, opened(ABC).closed(-1, 0))
    job = _Job(client, ledger_id, repair_options({}))
    job._load()
    span = FragmentSpan(0, -1, ("back:1", "b:1", "c:1"))
    client.store.register_bookie("back:1", "127.0.0.1", 1)
    assert job._targets(span, [0], {0: "x:1"}) == {0: "a:1"}
    job._avoid.add("a:1")
    assert job._targets(span, [0], {0: "x:1"}) == {}
