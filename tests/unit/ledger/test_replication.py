"""The replication machines rule by rule (replication-protocol.md 12), in a world of dictionaries."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

from bk_core.errors import InvalidArgumentError, NoSuchLedgerError, ReplicationError
from bk_core.protocol.effects import ReadLedger, SetTimer, WriteLedger
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.events import LedgerRead, LedgerWritten, Outcome, TimerFired
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from bk_core.protocol.ledger.replication import (
    EntryRanges,
    Exchange,
    FragmentCheck,
    FragmentRepair,
    FragmentReport,
    MetadataChange,
    eligible_fragments,
    exchanged,
    guaranteed,
    open_tail_without,
    stored_bounds,
)
from bk_core.protocol.ledger.replication.budget import ByteBudget
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import Status
from tests.unit.ledger.replication_world import LEDGER, PASSWORD, World, body, ledger, payload

ABC = ("a", "b", "c")
LAST = 29
SHAPES = [((3, 3, 2), ABC), ((3, 2, 2), ABC), ((5, 3, 2), ("a", "b", "c", "d", "e")), ((4, 2, 1), ("a", "b", "c", "d"))]


def closed(quorums: tuple[int, int, int] = (3, 3, 2), ensemble: tuple[str, ...] = ABC, last: int = LAST) -> World:
    return World(ledger(quorums, {0: ensemble}, last=last), last_written=last, extra=("x", "y"))


def repair(world: World, index: int = 0, **options: Any) -> FragmentRepair:
    span = eligible_fragments(world.metadata, with_empty=True)[index]
    return FragmentRepair(LEDGER, world.metadata, world.version, span, "t", **options)


def check(world: World, index: int = 0, **options: Any) -> FragmentReport:
    span = eligible_fragments(world.metadata)[index]
    options.setdefault("registered", set(world.bookies))
    report = world.run(FragmentCheck(LEDGER, world.metadata, span, "t", **options))
    assert isinstance(report, FragmentReport)
    return report


def test_rr1_a_lost_bookie_is_replaced_and_everything_is_there_again() -> None:
    """RR-1, RR-5, RR-7 over all shapes, with and without batch reads."""
    for quorums, ensemble in SHAPES:
        for batch in (True, False):
            world = closed(quorums, ensemble)
            world.bookies["b"].silent = True
            world.bookies["b"].entries.clear()
            before = world.metadata
            assert world.run(repair(world, targets={1: "x"}, batch=batch)) == world.metadata
            assert world.metadata.fragments == (Fragment(0, tuple("x" if name == "b" else name for name in ensemble)),)
            assert replace(world.metadata, fragments=before.fragments) == before  # nothing else changed
            assert world.lacks() == []
            assert world.copies("x") == [e for e in range(LAST + 1) if world.distribution.holds(1, e)]


# --- RR-2: what may be copied ------------------------------------------------------------------------------------------


def test_rr2_fragments_of_a_closed_ledger_are_clipped_to_its_end() -> None:
    """RR-2."""
    metadata = ledger((3, 3, 2), {0: ABC, 10: ("a", "b", "d")}, last=14)
    assert [(s.first_entry_id, s.last_entry_id) for s in eligible_fragments(metadata)] == [(0, 9), (10, 14)]


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_rr2_the_last_fragment_of_an_unclosed_ledger_is_never_touched(state: LedgerState) -> None:
    """RR-2, RR-12, R15: neither machine accepts it, and an exchange planned earlier is refused when it comes to the write."""
    metadata = ledger((3, 3, 2), {0: ABC, 10: ("a", "b", "d")}, state=state)
    assert [(s.first_entry_id, s.last_entry_id) for s in eligible_fragments(metadata)] == [(0, 9)]
    world = World(metadata, last_written=14, extra=("x",))
    closed_span = eligible_fragments(metadata.closed(14, 0))[1]
    with pytest.raises(InvalidArgumentError):
        FragmentRepair(LEDGER, metadata, 5, closed_span, "t", targets={0: "x"})
    with pytest.raises(InvalidArgumentError):
        FragmentCheck(LEDGER, metadata, closed_span, "t", registered=set())
    with pytest.raises(ReplicationError):
        exchanged(metadata, 10, [Exchange(0, "a", "x")])
    assert world.run(repair(world, targets={0: "x"})) == world.metadata
    assert world.metadata.last_fragment == metadata.last_fragment and world.metadata.state is state


def test_rr3_the_open_tail_counts_bookies_even_if_nothing_is_written() -> None:
    """RR-3, R16."""
    empty = ledger((3, 3, 2), {0: ABC})
    assert open_tail_without(empty, {"a", "c"}) == ("b",)
    assert open_tail_without(empty, {"a", "b", "c"}) == ()
    assert open_tail_without(empty.closed(-1, 0), {"a"}) == ()
    assert open_tail_without(empty.in_recovery(), {"a", "b"}) == ("c",)


# --- RR-4: checking ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("quorums", "ensemble"), SHAPES)
def test_rr4_a_healthy_fragment_is_good(quorums: tuple[int, int, int], ensemble: tuple[str, ...], full: bool) -> None:
    """RR-4."""
    world = closed(quorums, ensemble)
    report = check(world, full=full)
    assert report.is_good
    stripes = [sum(world.distribution.holds(p, e) for e in range(LAST + 1)) for p in range(len(ensemble))]
    assert [replica.checked for replica in report.replicas] == (stripes if full else [2] * len(ensemble))
    assert sum(bookie.fencing_reads for bookie in world.bookies.values()) == 0


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize(("quorums", "ensemble"), SHAPES)
def test_rr4_a_full_check_names_each_missing_and_corrupt_entry(
    quorums: tuple[int, int, int], ensemble: tuple[str, ...], batch: bool
) -> None:
    """RR-4: per fragment and bookie, whatever way the entries are read."""
    world = closed(quorums, ensemble)
    held = [e for e in range(LAST + 1) if world.distribution.holds(1, e)]
    gone, bad = {held[0], held[4], held[5], held[-2]}, {held[2], held[6], held[-1]}
    for entry_id in gone:
        del world.bookies["b"].entries[entry_id]
    for entry_id in bad:
        world.bookies["b"].entries[entry_id] = body(entry_id)[:-1] + b"?"
    world.bookies["a"].read_refusals[0] = Status.IO_ERROR
    first, second, *others = check(world, full=True, batch=batch).replicas
    stripe = [e for e in range(LAST + 1) if world.distribution.holds(1, e)]
    assert {e for e in stripe if e in second.missing} == gone and second.missing.count(world.distribution, 1) == len(gone)
    assert {e for e in stripe if e in second.corrupt} == bad
    assert second.checked == len(held) and not second.is_good
    assert (first.unreadable.ranges, first.is_good) == (((0, 0),), False)
    assert all(other.is_good for other in others)


def test_rr4_quick_reads_the_ends_of_each_stripe_only() -> None:
    """RR-4, R36: 4/2/1 from 5 to 15: position 2 stores 5, 6, 9, 10, 13, 14."""
    world = World(ledger((4, 2, 1), {0: ("e", "f", "g", "h"), 5: ("a", "b", "c", "d")}, last=15), last_written=15)
    report = check(world, 1)
    assert [(r.first_stored, r.last_stored) for r in report.replicas] == [(7, 15), (5, 13), (5, 14), (6, 15)]
    assert sorted(world.asked) == sorted([("a", 7), ("a", 15), ("b", 5), ("b", 13), ("c", 5), ("c", 14), ("d", 6), ("d", 15)])
    assert report.is_good


def test_rr4_a_position_without_entries_is_bad_only_if_its_bookie_is_gone() -> None:
    """RR-4: one entry in 4/2/1 is on positions 0 and 1."""
    world = World(ledger((4, 2, 1), {0: ("a", "b", "c", "d")}, last=0), last_written=0)
    report = check(world, registered={"a", "b", "c"})
    assert [r.is_good for r in report.replicas] == [True, True, True, False]
    assert [r.first_stored for r in report.replicas] == [0, 0, None, None]


def test_rr4_a_bookie_that_knows_nothing_of_the_ledger_lacks_all_of_it() -> None:
    """RR-4: a definite denial of the whole ledger is not repeated for each entry."""
    world = closed((3, 2, 2))
    world.bookies["c"].knows_ledger = False
    world.bookies["c"].entries.clear()
    replica = check(world, full=True).replicas[2]
    assert replica.missing.count(world.distribution, 2) == sum(world.distribution.holds(2, e) for e in range(LAST + 1))


def test_rr4_silence_is_not_absence() -> None:
    """RR-4: a bookie that does not answer is reported as such; nothing is said about its entries."""
    world = closed()
    world.bookies["a"].silent = True
    replica = check(world, full=True).replicas[0]
    assert (replica.silent, replica.missing.ranges, replica.is_good) == (Status.TIMEOUT, (), False)
    gone = check(world, registered={"b", "c"}).replicas[0]
    assert not gone.registered and not gone.is_good and gone.checked == 0


def test_rr4_an_old_bookie_without_batch_reads_is_checked_one_by_one() -> None:
    world = closed()
    world.bookies["a"].has_batch_read = False
    report = check(world, full=True)
    assert report.is_good and report.replicas[0].checked == LAST + 1


# --- RR-5: copying -----------------------------------------------------------------------------------------------------


def test_rr5_copies_carry_the_recovery_flag() -> None:
    """RR-5, R19: the target was fenced by an earlier recovery and takes them."""
    world = closed()
    world.bookies["x"].fenced = True
    assert isinstance(world.run(repair(world, targets={0: "x"})), LedgerMetadata)
    assert world.bookies["x"].plain_adds == 0 and world.copies("x") == list(range(LAST + 1))


def test_rr5_without_the_flag_a_fenced_target_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """RR-5: what the test above would show if the rule were broken."""
    monkeypatch.setattr(FragmentRepair, "_recovery_flag", lambda self: False)
    world = closed()
    world.bookies["x"].fenced = True
    assert isinstance(world.run(repair(world, targets={0: "x"})), ReplicationError)
    assert world.writes == []


def test_rr5_reads_do_not_fence_and_bodies_go_unchanged() -> None:
    """RR-5: same id, running length and payload; a header LAC above what is decided is cut down to it."""
    world = World(ledger((3, 3, 2), {0: ABC, 10: ("a", "b", "d")}), last_written=14, extra=("x",))
    for name in ABC:
        world.bookies[name].entries[9] = body(9, lac=12)  # stamped by a recoverer that moved its LAC
    assert isinstance(world.run(repair(world, targets={0: "x"})), LedgerMetadata)
    stored = world.bookies["x"].entries
    assert sorted(stored) == list(range(10))
    assert all(stored[e] == body(e) for e in range(9))
    entry = layout.decode_body(stored[9], LEDGER, 9, world.metadata.digest_type)
    assert (entry.last_add_confirmed, entry.payload) == (9, payload(9))
    assert sum(bookie.fencing_reads for bookie in world.bookies.values()) == 0
    assert world.bookies["x"].keys == {digests.master_key(PASSWORD)}


def test_rr5_only_positions_that_need_it_are_written_to() -> None:
    """RR-5: with striping each target gets its own stripe; bookies that stay get nothing."""
    world = closed((5, 3, 2), ("a", "b", "c", "d", "e"))
    world.run(repair(world, targets={1: "x", 3: "y"}))
    assert {name for name, _ in world.sent_to} == {"x", "y"}
    assert world.copies("x") == [e for e in range(LAST + 1) if world.distribution.holds(1, e)]
    assert world.copies("y") == [e for e in range(LAST + 1) if world.distribution.holds(3, e)]
    assert world.lacks() == []


@pytest.mark.parametrize("batch", [True, False])
def test_rr5_a_copy_on_a_bookie_that_stays_changes_no_metadata(batch: bool) -> None:
    """RR-5: missing and corrupt copies are written again where they belong."""
    world = closed()
    for entry_id in (0, 1, 7, 29):
        del world.bookies["b"].entries[entry_id]
    world.bookies["b"].entries[12] = body(12)[:-1] + b"?"
    found = check(world, full=True).replicas[1]
    assert isinstance(world.run(repair(world, refill={1: found.damaged}, batch=batch)), LedgerMetadata)
    assert world.writes == [] and world.lacks() == []
    assert sorted(set(world.sent_to)) == [("b", e) for e in (0, 1, 7, 12, 29)]


def test_rr5_any_good_replica_is_a_source_even_a_lost_one() -> None:
    """RR-5: entry 3 is corrupt on one, missing on another; the bookie that is to leave still has it."""
    world = closed()
    world.bookies["b"].entries[3] = body(3)[:-1] + b"?"
    del world.bookies["c"].entries[3]
    assert isinstance(world.run(repair(world, targets={0: "x"})), LedgerMetadata)
    assert world.copies("x") == list(range(LAST + 1))


# --- RR-6, RR-7: the target and the change -----------------------------------------------------------------------------


def test_rr6_a_target_stands_nowhere_else_in_the_fragment() -> None:
    """RR-6: neither given nor chosen by the placement policy."""
    world = closed()
    with pytest.raises(InvalidArgumentError):
        repair(world, targets={0: "c"})
    placement = RandomPlacement(lambda: ["a", "b", "c", "x", "y"], lambda: 0.5)
    assert placement.replace(ABC, [0], {"a", "x"}) == {0: "y"}


def test_rr7_the_metadata_changes_only_after_every_copy_is_confirmed() -> None:
    """RR-7: at the moment of the compare-and-set the new bookie has all of the stripe."""
    for quorums, ensemble in SHAPES:
        world = closed(quorums, ensemble)
        had: list[int] = []
        world.before_cas = lambda world=world, had=had: had.extend(world.copies("x"))  # type: ignore[misc]
        world.run(repair(world, targets={2: "x"}, limits=Limits(replication_bytes_in_flight=200)))
        assert had == [e for e in range(LAST + 1) if world.distribution.holds(2, e)]


def test_rr7_a_change_before_the_copies_is_what_the_test_above_catches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FragmentRepair, "_may_change", lambda self: True)
    world = closed()
    had: list[int] = []
    world.before_cas = lambda: had.extend(world.copies("x"))
    world.run(repair(world, targets={2: "x"}))
    assert had == []


def test_rr7_a_conflict_is_read_again_and_the_predicate_asked_again() -> None:
    """RR-7: another fragment changed meanwhile: both changes stand."""
    world = World(ledger((3, 3, 2), {0: ABC, 10: ("a", "b", "d")}, last=14), last_written=14, extra=("x", "y"))

    def other_replicator() -> None:
        if not world.writes:
            fragments = (world.metadata.fragments[0], Fragment(10, ("y", "b", "d")))
            world.metadata, world.version = replace(world.metadata, fragments=fragments), world.version + 1

    world.before_cas = other_replicator
    assert isinstance(world.run(repair(world, targets={0: "x"})), LedgerMetadata)
    assert world.metadata.fragments == (Fragment(0, ("x", "b", "c")), Fragment(10, ("y", "b", "d")))
    assert [version for _, version in world.writes] == [5, 6]


@pytest.mark.parametrize("ensemble", [("y", "b", "c"), ("a", "b", "x")])
def test_rr7_a_bookie_that_is_no_longer_there_ends_the_attempt(ensemble: tuple[str, ...]) -> None:
    """RR-7: another replicator was faster, or has put the target elsewhere: its ensemble stands."""
    world = closed()

    def other_replicator() -> None:
        if not world.writes:
            world.metadata, world.version = replace(world.metadata, fragments=(Fragment(0, ensemble),)), world.version + 1

    world.before_cas = other_replicator
    assert isinstance(world.run(repair(world, targets={0: "x"})), ReplicationError)
    assert world.metadata.fragments == (Fragment(0, ensemble),)


def test_rr7_a_lost_answer_is_repeated_identically_and_counts_once() -> None:
    """RR-7, META-12, scenario 18: applied, answer unknown; the same write conflicts; what is stored is our own."""
    world = closed()
    world.cas_answers.extend([Outcome.UNKNOWN, Outcome.UNKNOWN])
    assert world.run(repair(world, targets={0: "x"})) == world.metadata
    assert len(world.writes) == 3 and len(set(map(id, (m for m, _ in world.writes)))) == 1
    assert {version for _, version in world.writes} == {5} and world.version == 6


def test_rr7_a_deleted_ledger_is_dropped() -> None:
    world = closed()
    world.cas_answers.append(Outcome.NO_SUCH_LEDGER)
    assert isinstance(world.run(repair(world, targets={0: "x"})), NoSuchLedgerError)


def test_rr7_keys_state_and_end_never_change() -> None:
    """RR-7: an empty fragment beyond the end, too, only exchanges a name."""
    metadata = ledger((3, 3, 2), {0: ABC, 10: ("a", "b", "d")}, last=9)
    changed = exchanged(metadata, 10, [Exchange(0, "a", "x")])
    assert changed == replace(metadata, fragments=(metadata.fragments[0], Fragment(10, ("x", "b", "d"))))
    assert exchanged(changed, 10, [Exchange(0, "a", "x")]) is None  # type: ignore[arg-type]
    world = World(metadata, last_written=9, extra=("x",))
    world.run(repair(world, 1, targets={1: "x"}))
    assert world.metadata.last_fragment == Fragment(10, ("a", "x", "d")) and world.asked == []


# --- RR-8: what cannot be read -----------------------------------------------------------------------------------------


def test_rr8_an_unreadable_entry_leaves_the_metadata_alone() -> None:
    """RR-8: tried again with back-off, then reported; the copies made so far do no harm."""
    world = closed()
    for name in ABC:
        world.bookies[name].entries[5] = body(5)[:-1] + b"?"
    error = world.run(repair(world, targets={0: "x"}))
    assert isinstance(error, ReplicationError) and "entry 5" in str(error) and error.retriable
    assert world.writes == []
    assert len([1 for _, e in world.asked if e == 5]) >= 3 * (1 + Limits().replication_retries_max)


def test_rr8_a_replica_that_comes_back_is_used() -> None:
    """RR-8: the back-off is there for this."""
    world = closed()
    for name in ABC:
        world.bookies[name].read_refusals[5] = Status.IO_ERROR
    machine = repair(world, targets={0: "x"})
    handle = machine.handle

    def healing(event: Any, now_ns: int) -> Any:
        if now_ns >= 2 * Limits().replication_retry_ns:
            world.bookies["c"].read_refusals.clear()
        return handle(event, now_ns)

    machine.handle = healing  # type: ignore[method-assign]
    assert isinstance(world.run(machine), LedgerMetadata)
    assert world.lacks() == []


def test_rr8_without_an_exchange_the_other_entries_are_still_filled_in() -> None:
    """RR-8: what can be made good is; the rest is named."""
    world = closed()
    world.bookies["b"].entries.clear()
    for name in ("a", "c"):
        del world.bookies[name].entries[5]
    machine = repair(world, refill={1: EntryRanges(((0, LAST),))})
    error = world.run(machine)
    assert isinstance(error, ReplicationError) and machine.unreadable == [5]
    assert world.copies("b") == [e for e in range(LAST + 1) if e != 5]


def test_rr8_the_pauses_are_made_once_where_much_is_gone() -> None:
    """RR-8: of a long stretch that no bookie has, only the first entry is waited for; what lies behind it is still filled in."""
    world = closed()
    world.bookies["b"].entries.clear()
    gone = range(3, LAST)
    for name in ("a", "c"):
        for entry in gone:
            del world.bookies[name].entries[entry]
    machine = repair(world, refill={1: EntryRanges(((0, LAST),))})
    assert isinstance(world.run(machine), ReplicationError) and machine.unreadable == list(gone)
    assert world.copies("b") == [0, 1, 2, LAST]
    asked = Counter(entry for _, entry in world.asked)
    assert asked[3] >= 2 * (1 + Limits().replication_retries_max) and all(asked[entry] <= 3 for entry in gone[1:])


def test_rr8_a_target_that_refuses_is_named() -> None:
    """RR-8, RR-6: so that the caller can take another one."""
    for refusals, status in (([Status.READ_ONLY], "read only"), ([Status.IO_ERROR], "io error")):
        world = closed()
        world.bookies["x"].add_refusals.extend(refusals)
        machine = repair(world, targets={0: "x"})
        assert isinstance(world.run(machine), ReplicationError)
        assert machine.failed_bookies == {"x": status} and world.writes == []


def test_a_refusal_that_passes_is_sent_again() -> None:
    world = closed()
    world.bookies["x"].add_refusals.append(Status.TOO_MANY_REQUESTS)
    add = world.bookies["x"].add

    def once_full(*arguments: Any) -> Status:
        if world.now > 0:
            world.bookies["x"].add_refusals.clear()
        return add(*arguments)

    world.bookies["x"].add = once_full  # type: ignore[method-assign]
    assert isinstance(world.run(repair(world, targets={0: "x"})), LedgerMetadata)
    assert world.lacks() == []


# --- RR-9, RR-10, RR-11, RR-12 -----------------------------------------------------------------------------------------


def test_rr9_the_writers_change_and_ours_both_stand() -> None:
    """RR-9: the writer appended a fragment between our read and our write; the ledger stays OPEN for it."""
    world = World(ledger((3, 3, 2), {0: ABC, 10: ("a", "b", "d")}), last_written=14, extra=("x", "y"))

    def writer() -> None:
        if not world.writes:
            world.metadata, world.version = world.metadata.with_ensemble(15, ("a", "y", "d")), world.version + 1

    world.before_cas = writer
    assert isinstance(world.run(repair(world, targets={0: "x"})), LedgerMetadata)
    assert world.metadata.state is LedgerState.OPEN
    assert world.metadata.fragments == (Fragment(0, ("x", "b", "c")), Fragment(10, ("a", "b", "d")), Fragment(15, ("a", "y", "d")))


def test_rr9_a_closed_ledger_can_be_repaired_for_ever() -> None:
    """RR-9, META-9: end and length stay whatever is exchanged."""
    world = closed()
    for old, new in (("a", "x"), ("x", "y"), ("y", "a")):
        position = world.metadata.fragments[0].ensemble.index(old)
        assert isinstance(world.run(repair(world, targets={position: new})), LedgerMetadata)
        assert world.lacks() == []
    assert world.metadata.last_entry_id == LAST and world.metadata.fragments[0].ensemble == ABC


def test_rr10_old_copies_stay_where_a_reader_of_the_old_list_looks() -> None:
    """RR-10: nothing is taken away from the bookie that leaves; a reader with older metadata still finds its entries."""
    world = closed()
    before = world.copies("a")
    world.run(repair(world, targets={0: "x"}))
    assert world.copies("a") == before


def test_rr12_an_exchange_is_refused_when_the_fragment_has_become_undecided() -> None:
    """RR-12: looked at again on what is stored at the time of the write, never on what was read before."""
    stored = ledger((3, 3, 2), {0: ABC}, state=LedgerState.IN_RECOVERY)
    with pytest.raises(ReplicationError):
        exchanged(stored, 0, [Exchange(0, "a", "x")])


# --- RR-13, G-27 -------------------------------------------------------------------------------------------------------


def marked(**fragments: Any) -> LedgerMetadata:
    listed = {0: ABC, 10: ("a", "b", "d"), 20: ("e", "b", "d")}
    return ledger((3, 3, 2), listed, last=LAST, custom={"gwq": b"1", "mine": b"kept"})


def test_g27_the_last_two_fragments_are_written_again_everywhere_and_sealed() -> None:
    """G-27, RR-13: a plain client closed the ledger with entries on two bookies only."""
    world = World(marked(), last_written=LAST)
    assert guaranteed.needs_filling(world.metadata)
    for name in ("d", "e"):
        for entry_id in (11, 25, LAST):
            world.bookies[name].entries.pop(entry_id, None)
    spans = guaranteed.spans_to_fill(world.metadata)
    assert [(s.first_entry_id, s.last_entry_id) for s in spans] == [(10, 19), (20, LAST)]
    for span in spans:
        machine = FragmentRepair(LEDGER, world.metadata, world.version, span, "t", refill=guaranteed.everything(world.metadata, span))
        assert isinstance(world.run(machine), LedgerMetadata)
    assert world.lacks() == [] and world.writes == []
    assert sorted(set(world.sent_to)) == sorted((n, e) for e in range(10, 30) for n in world.metadata.fragment_of(e).ensemble)
    filled = world.metadata.fragments
    change = MetadataChange(LEDGER, world.metadata, world.version, lambda stored: guaranteed.sealed(stored, filled), "t")
    assert world.run(change) == world.metadata
    assert world.metadata.sealed and not guaranteed.needs_filling(world.metadata)
    assert world.metadata.custom == {"gwq": b"1", "gwq.sealed": b"1", "mine": b"kept"}


def test_a_stale_answer_after_a_conflict_leads_to_another_look() -> None:
    """META-11, META-14, L-9, scenario 46: nothing is written again at the version that lost."""
    before = marked()
    change = MetadataChange(LEDGER, before, 4, lambda stored: stored.with_seal(), "t")
    (write,) = change.start()
    assert isinstance(write, WriteLedger)
    (read,) = change.handle(LedgerWritten(write.request, Outcome.CONFLICT), 0)
    assert isinstance(read, ReadLedger)
    assert change.handle(LedgerRead(read.request, Outcome.OK, before, 4), 0) == [SetTimer("metadata", Limits().metadata_retry_ns)]
    assert change.handle(TimerFired("metadata"), 0) == [read]
    (again,) = change.handle(LedgerRead(read.request, Outcome.OK, before, 5), 0)
    assert isinstance(again, WriteLedger) and again.version == 5


def test_g27_only_closed_marked_unsealed_ledgers_are_filled() -> None:
    """G-27: with Qw = Qa the mark means nothing."""
    done = marked()
    assert not guaranteed.needs_filling(done.with_seal())
    assert not guaranteed.needs_filling(replace(done, state=LedgerState.OPEN))
    assert not guaranteed.needs_filling(replace(done, custom=MappingProxyType({})))
    assert not guaranteed.needs_filling(replace(done, ack_quorum_size=3))


def test_g27_no_seal_over_bookies_that_were_exchanged_meanwhile() -> None:
    """G-27: the new one was not filled by us."""
    before = marked()
    changed = exchanged(before, 20, [Exchange(0, "e", "x")])
    assert changed is not None
    with pytest.raises(ReplicationError):
        guaranteed.sealed(changed, before.fragments)
    assert guaranteed.sealed(before.with_seal(), before.fragments) is None


# --- bounds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)])
def test_memory_is_bounded(quorums: tuple[int, int, int]) -> None:
    """Bytes asked for and bytes on their way to targets together stay below the limit, but for entries larger than any before."""
    world = closed(quorums, last=300)
    limit = 2000
    machine = repair(world, targets={0: "x"}, limits=Limits(replication_bytes_in_flight=limit))
    seen: list[int] = []
    handle = machine.handle

    def watching(event: Any, now_ns: int) -> Any:
        effects = handle(event, now_ns)
        seen.append(machine._budget.in_flight)
        return effects

    machine.handle = watching  # type: ignore[method-assign]
    assert isinstance(world.run(machine), LedgerMetadata)
    assert max(seen) <= 2 * limit and sum(seen) <= len(seen) * limit
    assert machine._budget.in_flight == 0


def test_the_rate_is_kept() -> None:
    """Reading 301 entries at 1,000 bytes a second takes as many seconds as they have thousands of bytes."""
    world = closed(last=300)
    machine = repair(world, targets={0: "x"}, bytes_per_second=1000)
    world.run(machine)
    expected_ns = machine.bytes_copied * 1_000_000
    assert 0.8 * expected_ns < world.now < 1.2 * expected_ns
    world = closed(last=300)
    check(world, full=True, bytes_per_second=1000)
    assert world.now > 2 * expected_ns  # three replicas


def test_a_budget_always_lets_something_through() -> None:
    budget = ByteBudget(10)
    assert budget.admits(1000)
    budget.reserve(1000)
    assert not budget.admits(1)
    budget.release(1000)
    assert budget.admits(5)


@pytest.mark.parametrize("seed", range(60))
def test_in_any_weather_the_promises_hold(seed: int) -> None:
    """RR-5, RR-7, RR-8: answers out of order, lost and damaged: either everything is there and recorded, or nothing was changed."""
    rng = random.Random(seed)
    quorums, ensemble = SHAPES[rng.randrange(len(SHAPES))]
    world = closed(quorums, ensemble, last=rng.randrange(60))
    world.weather, world.loss = rng, (0.0, 0.02, 0.2)[rng.randrange(3)]
    before = world.metadata
    for _ in range(rng.randrange(8)):
        name = ensemble[rng.randrange(len(ensemble))]
        entries = world.bookies[name].entries
        if entries:
            entry_id = sorted(entries)[rng.randrange(len(entries))]
            entries[entry_id] = body(entry_id)[:-1] + b"?"
            if rng.random() < 0.5:
                del entries[entry_id]
    if rng.random() < 0.3:
        world.bookies[ensemble[1]].silent = True
    limits = Limits(replication_bytes_in_flight=(1, 500, 1 << 20)[rng.randrange(3)], read_chunk_entries=(1, 3, 4096)[rng.randrange(3)])
    result = world.run(repair(world, targets={1: "x"}, batch=rng.random() < 0.7, limits=limits))
    if isinstance(result, LedgerMetadata):
        assert world.metadata.fragments[0].ensemble[1] == "x"
        assert world.copies("x") == [e for e in range(world.metadata.last_entry_id + 1) if world.distribution.holds(1, e)]
    else:
        assert isinstance(result, ReplicationError) and world.metadata == before and not world.writes
    assert all(bookie.plain_adds == bookie.fencing_reads == 0 for bookie in world.bookies.values())


# --- ranges ------------------------------------------------------------------------------------------------------------


def test_ranges_speak_of_the_stripe() -> None:
    """R36: ids of one position that have only foreign ids between them are one range."""
    distribution = Distribution(4, 2, 1)
    held = [e for e in range(40) if distribution.holds(2, e)]
    ranges = EntryRanges.over_stripe(distribution, 2, reversed(held))
    assert ranges.ranges == ((held[0], held[-1]),) and ranges.count(distribution, 2) == len(held)
    split = EntryRanges.over_stripe(distribution, 2, [e for e in held if e != held[5]])
    assert split.ranges == ((held[0], held[4]), (held[6], held[-1])) and split.count(distribution, 2) == len(held) - 1
    assert str(EntryRanges(((1, 1), (3, 9)))) == "1, 3-9"
    assert (EntryRanges(((1, 4),)) | EntryRanges(((3, 9), (12, 12)))).ranges == ((1, 9), (12, 12))
    assert 12 in EntryRanges(((12, 12),)) and 11 not in EntryRanges(((12, 12),)) and not EntryRanges()


def test_stored_bounds_against_brute_force() -> None:
    """R36, SM-5: every shape up to five, ranges of every size, also far above 2^31."""
    for e in range(1, 6):
        for w in range(1, e + 1):
            distribution = Distribution(e, w, 1)
            for base in (0, 2**31 - 3, 2**62 + 1):
                for size in range(1, 12):
                    for position in range(e):
                        held = [n for n in range(base, base + size) if distribution.holds(position, n)]
                        found = stored_bounds(distribution, position, base, base + size - 1)
                        assert found == ((held[0], held[-1]) if held else None)
