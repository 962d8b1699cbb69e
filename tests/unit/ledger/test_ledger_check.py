"""Many fragments of one ledger at once (RR-15), and when emptying a bookie ends (RR-14)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from bk_core.protocol.effects import SendRead
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.replication import (
    DrainStep,
    Exchange,
    ExchangeGroup,
    FragmentCheck,
    FragmentReport,
    LedgerCheck,
    after_look,
    eligible_fragments,
    exchanged_together,
)
from bk_core.protocol.ledger.replication import fragments as fragments_module
from bk_core.protocol.ledger.replication.group import BYTES_MAX
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import Status
from tests.unit.ledger.replication_world import LEDGER, World, body, ledger

ABC, DEF = ("a", "b", "c"), ("d", "e", "f")
LAST = 599


def many(quorums: tuple[int, int, int] = (3, 2, 2), step: int = 3, last: int = LAST) -> World:
    """Two hundred fragments, or so many as ``step`` wants, on two ensembles in turn."""
    rows = {first: ABC if first // step % 2 else DEF for first in range(0, last + 1, step)}
    return World(ledger(quorums, rows, last=last), last_written=last)


def check_all(world: World, **options: Any) -> list[FragmentReport]:
    options.setdefault("registered", set(world.bookies))
    reports = world.run(LedgerCheck(LEDGER, world.metadata, eligible_fragments(world.metadata), "t", **options))
    assert isinstance(reports, list)
    return reports


def one_by_one(world: World, **options: Any) -> list[FragmentReport]:
    spans = eligible_fragments(world.metadata)
    return [world.run(FragmentCheck(LEDGER, world.metadata, s, "t", registered=set(world.bookies), **options)) for s in spans]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)])
def test_rr15_the_same_is_found_as_one_by_one(quorums: tuple[int, int, int], full: bool) -> None:
    """RR-4, RR-15: in the order of the fragments, whatever the order of the answers."""
    world = many(quorums)
    chance = random.Random(12)
    for bookie in world.bookies.values():
        for entry_id in chance.sample(sorted(bookie.entries), 12):
            if entry_id % 2:
                del bookie.entries[entry_id]
            else:
                bookie.entries[entry_id] = body(entry_id)[:-1] + b"?"
    world.weather = chance
    found = check_all(world, full=full)
    world.weather = None
    assert found == one_by_one(world, full=full)
    assert [report.span for report in found] == list(eligible_fragments(world.metadata))
    assert sum(not report.is_good for report in found) > 20


def test_rr15_several_are_under_way_but_not_all() -> None:
    """The point of it: not one round trip after the other, and not as many at once as the ledger has fragments."""
    world = many()
    machine = LedgerCheck(LEDGER, world.metadata, eligible_fragments(world.metadata), "t", registered=set(world.bookies))
    first = [effect for effect in machine.start() if isinstance(effect, SendRead)]
    assert len({effect.message.entry_id // 3 for effect in first}) == 32  # type: ignore[union-attr]
    assert len({effect.request for effect in first}) == len(first)
    check_all(world)
    assert 32 <= world.in_flight_max <= 32 * 6


def test_rr15_one_budget_for_all() -> None:
    """Each single read reserves 64 KiB before a size is known: with 256 KiB no more than four are in flight, and all get their turn."""
    world = many(step=30)
    limits = Limits(replication_bytes_in_flight=256 * 1024)
    assert all(report.is_good for report in check_all(world, full=True, batch=False, limits=limits))
    assert world.in_flight_max <= 4 * 3 * 32  # sizes are small once they are known: then each replica's own bound counts
    machine = LedgerCheck(LEDGER, world.metadata, eligible_fragments(world.metadata), "t", registered=set(world.bookies), limits=limits)
    assert sum(isinstance(effect, SendRead) for effect in machine.start()) == 4


def test_rr15_one_rate_for_all() -> None:
    """600 entries twice of about 50 bytes at 1,000 bytes a second take about a minute, not a thirty-second part of it."""
    world = many()
    total = sum(len(data) for bookie in world.bookies.values() for data in bookie.entries.values())
    assert all(report.is_good for report in check_all(world, full=True, bytes_per_second=1000))
    assert world.now >= (total / 1000 - 2) * 1e9


def test_rr15_a_silent_bookie_is_not_waited_for_in_each_fragment() -> None:
    """RR-4: reported as silent everywhere; it is asked in the fragments that are under way together, and in no later one."""
    world = many()
    world.bookies["b"].silent = True
    limits = Limits(replication_retries_max=2)
    reports = check_all(world, limits=limits)
    rows = [replica for report in reports for replica in report.replicas]
    assert all((replica.silent is Status.TIMEOUT) == (replica.bookie == "b") for replica in rows)
    assert sum(name == "b" for name, _ in world.asked) <= 32 * 2 * 3


def test_rr15_lost_answers_and_any_order() -> None:
    """Every fragment comes to its end; what was asked again is found as good as it is."""
    for seed in range(10):
        world = many()
        world.weather, world.loss = random.Random(seed), 0.2
        reports = check_all(world, limits=Limits(replication_retries_max=20))
        assert len(reports) == 200 and all(report.is_good for report in reports), f"seed {seed}"


def test_rr15_a_check_of_nothing_ends_at_once() -> None:
    world = World(ledger((3, 2, 2), {0: ABC}, last=-1), last_written=-1)
    assert check_all(world) == []


def test_rr15_the_fragments_are_not_gone_through_for_each_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear: the list is walked once by who asks for it, and looked up for each fragment."""
    walks: list[int] = []
    real = fragments_module.known_last_entry

    def known_last_entry(metadata: LedgerMetadata) -> int:
        walks.append(1)
        return real(metadata)

    monkeypatch.setattr(fragments_module, "known_last_entry", known_last_entry)
    world = many()
    check_all(world)
    assert len(walks) == 1


# --- exchanging together -------------------------------------------------------------------------------------------------


def test_rr15_fragments_are_exchanged_together_and_one_that_cannot_be_does_not_hinder_the_others() -> None:
    """RR-7 for each of them."""
    metadata = ledger((3, 2, 2), {0: ABC, 10: ABC, 20: ABC, 30: ABC}, last=39)
    wanted = {first: (Exchange(0, "a", "x"),) for first in (0, 10, 99)} | {20: (Exchange(0, "z", "x"),), 30: (Exchange(1, "b", "c"),)}
    refused: dict[int, Any] = {}
    changed = exchanged_together(metadata, wanted, refused)
    assert changed is not None
    assert [fragment.ensemble for fragment in changed.fragments] == [("x", "b", "c"), ("x", "b", "c"), ABC, ABC]
    assert {first: str(error.args[0])[:16] for first, error in refused.items()} == {
        99: "fragment 99 is g", 20: "another program ", 30: "another program ",
    }  # fmt: skip
    assert exchanged_together(changed, {0: wanted[0]}, refused) is None and refused == {}  # scenario 18: it is there already


def test_rr15_the_last_fragment_of_an_open_ledger_is_refused() -> None:
    """RR-2, RR-12."""
    refused: dict[int, Any] = {}
    metadata = ledger((3, 2, 2), {0: ABC, 10: ABC})
    assert exchanged_together(metadata, {10: (Exchange(0, "a", "x"),)}, refused) is None and list(refused) == [10]


def test_rr15_a_group_is_due_by_number_and_by_bytes() -> None:
    group = ExchangeGroup(3)
    assert not group.is_due
    group.add(0, (Exchange(0, "a", "x"),), 10)
    assert group.is_due  # a ledger of few fragments waits for nothing
    group = ExchangeGroup(3200)
    for first in range(100):
        group.add(first, (Exchange(0, "a", "x"),), 10)
    assert not group.is_due
    group.add(100, (Exchange(0, "a", "x"),), 10)
    assert group.is_due
    group = ExchangeGroup(3200)
    group.add(0, (Exchange(0, "a", "x"),), BYTES_MAX)
    assert group.is_due


# --- emptying a bookie ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "named", "changed", "left_s", "step"),
    [
        (0, 0, False, 5.0, DrainStep.END),
        (0, 3, False, 0.0, DrainStep.REPAIR),  # one round is always made
        (1, 3, True, 0.0, DrainStep.END),  # then the time counts, whatever moved
        (1, 3, True, 1.0, DrainStep.REPAIR),
        (1, 3, False, 1.0, DrainStep.WAIT),
        (1, 0, True, 1.0, DrainStep.END),
        (7, 1, False, -1.0, DrainStep.END),
    ],
)
def test_rr14_what_follows_a_look(rounds: int, named: int, changed: bool, left_s: float, step: DrainStep) -> None:
    assert after_look(rounds=rounds, named=named, changed=changed, left_s=left_s) is step
