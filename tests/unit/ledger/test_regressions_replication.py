"""The past defects of re-replication (replication-protocol.md 14.2) and two of its fault scenarios (13.3), one test each."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import pytest

from bk_core.errors import InvalidArgumentError, ReplicationError
from bk_core.protocol.effects import SendAdds, WriteLedger
from bk_core.protocol.events import AddReply, LedgerRead, LedgerWritten, Outcome
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from bk_core.protocol.ledger.replication import (
    EntryRanges,
    FragmentCheck,
    FragmentRepair,
    FragmentReport,
    FragmentSpan,
    eligible_fragments,
    open_tail_without,
    stored_bounds,
)
from bk_core.protocol.ledger.write.writer import LedgerWriter
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import Status
from tests.unit.ledger.replication_world import LEDGER, World, body, ledger, payload

ABC = ("a", "b", "c")


def repair(world: World, index: int = 0, **options: Any) -> FragmentRepair:
    span = eligible_fragments(world.metadata, with_empty=True)[index]
    return FragmentRepair(LEDGER, world.metadata, world.version, span, "t", **options)


def test_r15_the_open_last_fragment_is_not_edited_under_a_live_writer() -> None:
    """R15, RR-2: entries of it may still be decided either way; only the older fragment is repaired."""
    metadata = ledger((3, 3, 2), {0: ABC, 10: ABC})
    world = World(metadata, last_written=12, extra=("x",))
    assert [span.first_entry_id for span in eligible_fragments(metadata)] == [0]
    with pytest.raises(InvalidArgumentError):
        FragmentRepair(LEDGER, metadata, 5, FragmentSpan(10, 12, ABC), "t", targets={0: "x"})
    assert isinstance(world.run(repair(world, targets={0: "x"})), LedgerMetadata)
    assert world.metadata.fragments == (Fragment(0, ("x", "b", "c")), Fragment(10, ABC))


def test_r16_an_empty_open_ledger_with_a_lost_bookie_is_noticed() -> None:
    """R16, RR-3: after a second loss nobody could tell any more that nothing was written."""
    metadata = ledger((3, 3, 2), {0: ABC})
    assert eligible_fragments(metadata) == ()
    assert open_tail_without(metadata, {"a", "c", "x"}) == ("b",)
    assert open_tail_without(replace(metadata, state=LedgerState.IN_RECOVERY), {"a", "c", "x"}) == ("b",)


def test_r17_a_trailing_empty_fragment_is_not_under_replicated() -> None:
    """R17, RR-4: its bookies hold nothing and need not be up. Empty ledgers likewise."""
    metadata = ledger((3, 3, 2), {0: ABC, 10: ("d", "e", "f")}, last=9)
    assert [span.first_entry_id for span in eligible_fragments(metadata)] == [0]
    assert eligible_fragments(ledger((3, 3, 2), {0: ABC}, last=-1)) == ()
    assert [s.is_empty for s in eligible_fragments(metadata, with_empty=True)] == [False, True]  # for a bookie that has to vanish


def test_r18_the_penultimate_fragment_is_decided_whatever_lac_is_heard() -> None:
    """R18, RR-2, D5: no bookie tells a LAC of 9, because the entries that would carry it were never added; the floor decides."""
    metadata = ledger((3, 3, 2), {0: ABC, 10: ("a", "d", "e")})
    world = World(metadata, last_written=9, extra=("x",))  # the last header carries LAC 8
    (span,) = eligible_fragments(metadata)
    assert (span.first_entry_id, span.last_entry_id) == (0, 9)
    assert isinstance(world.run(repair(world, targets={1: "x"})), LedgerMetadata)
    assert world.copies("x") == list(range(10))


def test_r19_a_fenced_target_takes_the_copies() -> None:
    """R19, RR-5."""
    world = World(ledger((3, 2, 2), {0: ABC}, last=20), last_written=20, extra=("x",))
    world.bookies["x"].fenced = True
    assert isinstance(world.run(repair(world, targets={2: "x"})), LedgerMetadata)
    assert world.lacks() == []


def test_r36_stripe_bounds_are_ids_the_position_stores() -> None:
    """R36, RR-4: 3/2/2 from 4 to 9: position 1 stores neither 5 nor 8, so the range's ends are not everybody's ends."""
    world = World(ledger((3, 2, 2), {0: ("d", "e", "f"), 4: ABC}, last=9), last_written=9)
    assert [stored_bounds(world.distribution, p, 4, 9) for p in range(3)] == [(5, 9), (4, 9), (4, 8)]
    span = eligible_fragments(world.metadata)[1]
    report = world.run(FragmentCheck(LEDGER, world.metadata, span, "t", registered=set(ABC)))
    assert isinstance(report, FragmentReport) and report.is_good


def test_r36_an_empty_ledger_crashes_nothing() -> None:
    """R36: neither a check nor an exchange of names asks for an entry."""
    world = World(ledger((3, 3, 2), {0: ABC}, last=-1), last_written=-1, extra=("x",))
    span = FragmentSpan(0, -1, ABC)
    assert stored_bounds(world.distribution, 0, 0, -1) is None
    report = world.run(FragmentCheck(LEDGER, world.metadata, span, "t", registered=set(ABC), full=True))
    assert isinstance(report, FragmentReport) and report.is_good
    assert isinstance(world.run(repair(world, targets={0: "x"})), LedgerMetadata)
    assert world.asked == [] and world.metadata.fragments[0].ensemble == ("x", "b", "c")


def test_scenario_52_a_writers_change_races_with_a_foreign_exchange_in_the_same_fragment() -> None:
    """Scenario 52, EC-9, EC-11: a foreign tool has put x for b while the writer wanted y for c: the writer adopts x and repeats its own
    change, and x gets the entries that are not yet acknowledged."""
    limits = Limits()
    stored = ledger((3, 3, 2), {0: ABC})
    writer = LedgerWriter(LEDGER, stored, 0, RandomPlacement(lambda: ["a", "b", "c", "x", "y"], lambda: 0.5), limits)
    writer.append(payload(0), array("q", (0, len(payload(0)))), "t0", 0)
    for name in ("a", "b"):
        writer.handle(AddReply(name, 0, 1, Status.OK), 1)
    writer.append(payload(1), array("q", (0, len(payload(1)))), "t1", 2)
    effects = writer.handle(AddReply("c", 1, 1, Status.READ_ONLY), 3)
    (change,) = [effect for effect in effects if isinstance(effect, WriteLedger)]
    foreign = replace(stored, fragments=(Fragment(0, ("a", "x", "c")),))
    effects = writer.handle(LedgerWritten(change.request, Outcome.CONFLICT), 4)
    request = effects[0].request  # type: ignore[union-attr]
    effects = writer.handle(LedgerRead(request, Outcome.OK, foreign, 1), 5)
    (again,) = [effect for effect in effects if isinstance(effect, WriteLedger)]
    assert again.version == 1 and again.metadata.fragments[0] == Fragment(0, ("a", "x", "c"))
    replaced = again.metadata.last_fragment
    assert replaced.first_entry_id == 1 and replaced.ensemble[:2] == ("a", "x") and replaced.ensemble[2] in ("b", "y")
    effects = writer.handle(LedgerWritten(again.request, Outcome.OK, 2), 6)
    assert {effect.bookie for effect in effects if isinstance(effect, SendAdds)} >= {"x", replaced.ensemble[2]}


def test_scenario_53_a_target_that_dies_before_the_change_stays_out_of_the_metadata() -> None:
    """Scenario 53, RR-7, RR-8: no compare-and-set; with another target the same repair succeeds."""
    world = World(ledger((3, 3, 2), {0: ABC}, last=20), last_written=20, extra=("x", "y"))
    before = world.metadata
    world.bookies["x"].silent = True
    machine = repair(world, targets={0: "x"})
    error = world.run(machine)
    assert isinstance(error, ReplicationError) and machine.failed_bookies == {"x": "timeout"}
    assert world.writes == [] and world.metadata == before
    assert isinstance(world.run(repair(world, targets={0: "y"})), LedgerMetadata)
    assert world.copies("y") == list(range(21))


def test_scenario_53_a_source_that_fails_leaves_the_metadata_alone_and_may_come_back() -> None:
    """Scenario 53, RR-8."""
    world = World(ledger((3, 3, 2), {0: ABC}, last=20), last_written=20, extra=("x",))
    for name in ("b", "c"):
        world.bookies[name].entries[7] = body(7)[:-1] + b"?"
    world.bookies["a"].silent = True
    error = world.run(repair(world, targets={0: "x"}))
    assert isinstance(error, ReplicationError) and "entry 7" in str(error) and "a: timeout" in str(error)
    assert world.writes == []
    world.bookies["a"].silent = False
    assert isinstance(world.run(repair(world, targets={0: "x"})), LedgerMetadata)
    assert world.copies("x") == list(range(21))
    machine = repair(world, refill={1: EntryRanges(((7, 7),)), 2: EntryRanges(((7, 7),))})
    assert isinstance(world.run(machine), LedgerMetadata) and world.lacks() == []
