"""Guaranteed write quorum, the writer's side, one rule at a time (replication-protocol.md 9)."""

from __future__ import annotations

import inspect

import pytest

from bk_core.client import BookKeeper, WriteHandle
from bk_core.errors import LedgerClosedError, LedgerFencedError, NotEnoughBookiesError, UnauthorizedError, WriteFailedError
from bk_core.protocol.effects import SendAdds, WriteLedger
from bk_core.protocol.events import AddReply, BookiesChanged, LedgerWritten, Outcome
from bk_core.protocol.ledger.metadata import GWQ_SEAL, Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.write.writer import ChangeWindow, EnsembleChangeMode, WriterOptions, WriterState
from bk_core.protocol.wire.messages import Status
from tests.unit.ledger.writer_script import SECOND, WriterScript

PAUSE = 1000


def guaranteed(bookies: str = "bcdf", shape: tuple[int, int, int] = (3, 3, 2), **more: object) -> WriterScript:
    """Pauses of PAUSE ns, staging after the second vain repetition."""
    limits: dict[str, object] = {"add_retry_ns": PAUSE, "add_retry_ns_max": PAUSE, "pinned_retries_max": 1} | more
    return WriterScript(shape, bookies, guaranteed=True, **limits)  # type: ignore[arg-type]


def all_pinned(bookies: str = "bcdf") -> WriterScript:
    """Scenario 47: e0 on {b, c}, e1 on {c, d}, e2 on {b, d}, and d, b, c failed one write each. Everything is committed."""
    script = guaranteed(bookies).append("e0").append("e1").append("e2")
    script.ack("bc", 0).ack("cd", 1).ack("bd", 2)
    for entry, bookie in enumerate("dbc"):
        assert script.refuse(bookie, entry).writes == []
    assert script.done == [("e0", 0), ("e1", 1), ("e2", 2)]
    assert script.writer.last_add_fully_replicated == -1
    return script


# --- LAFR and the queue ----------------------------------------------------------------------------------------------


def test_the_mark_needs_more_copies_than_acknowledgements() -> None:
    """G-0, META-8: with Qw = Qa it means nothing; the seal keeps everything else."""
    fragments = (Fragment(0, ("a", "b", "c")),)
    marked = {"gwq": b"1", "other": b"kept"}
    assert LedgerMetadata(3, 3, 2, LedgerState.OPEN, fragments, custom=marked).guaranteed
    assert not LedgerMetadata(3, 3, 3, LedgerState.OPEN, fragments, custom=marked).guaranteed
    assert not LedgerMetadata(3, 3, 2, LedgerState.OPEN, fragments, custom={"gwq": b"0"}).guaranteed
    sealed = LedgerMetadata(3, 3, 2, LedgerState.OPEN, fragments, custom=marked).with_seal()
    assert sealed.sealed
    assert sealed.custom == {**marked, GWQ_SEAL: b"1"}


def test_an_entry_is_acknowledged_at_qa_and_leaves_the_queue_at_qw() -> None:
    """G-1, G-2, G-16: LAFR follows LAC, over gaps it waits."""
    script = guaranteed().append("t", b"0", b"1").append("u")
    script.ack("bc", 0, 2)
    assert (script.writer.last_add_confirmed, script.writer.last_add_fully_replicated) == (1, -1)
    script.ack("d", 1)
    assert (script.writer.last_add_fully_replicated, script.writer.unretired_entries, script.writer.idle) == (-1, 3, False)
    script.ack("d", 0)
    assert (script.writer.last_add_fully_replicated, script.writer.unretired_entries) == (1, 1)
    script.ack("bcd", 2)
    assert (script.writer.last_add_fully_replicated, script.writer.unretired_entries, script.writer.idle) == (2, 0, True)


def test_lafr_counts_the_write_set_only() -> None:
    """G-1 with striping: 4/3/2, position 3 has nothing of entry 0."""
    script = guaranteed("abcde", (4, 3, 2)).append("t").ack("abc", 0)
    assert script.writer.last_add_fully_replicated == 0


def test_lafr_never_passes_lac() -> None:
    """G-1: with the domain predicate unmet an entry is everywhere and yet not committed."""
    options = WriterOptions(fault_domains_min=2)
    script = guaranteed("abcd", options=options, domains=dict.fromkeys("abc", "rack")).append("t").ack("abc", 0)
    assert (script.writer.last_add_confirmed, script.writer.last_add_fully_replicated) == (-1, -1)


def test_a_new_fragment_starts_above_lafr() -> None:
    """G-3, EC-7: the committed entries of the queue move along and get their third copy at the new place."""
    script = guaranteed("abcd").append("t", *[b"x"] * 4).ack("ab", 0, 4).ack("c", 0, 2)
    write = script.refuse("c", 2).write
    assert write.metadata.fragments == (Fragment(0, ("a", "b", "c")), Fragment(2, ("a", "b", "d")))
    assert script.stored(write).sent == [("d", 2)]
    script.ack("d", 2, 2)
    assert script.writer.last_add_fully_replicated == 3


# --- pinning ---------------------------------------------------------------------------------------------------------


def test_a_bookie_that_a_committed_entry_needs_is_not_replaced() -> None:
    """G-4, the story of figure 3 in papers.md 4: e0 on {a, b}, c replaced by d; before d has e0, b fails too. Replacing b as well would
    leave e0 on a alone."""
    script = guaranteed("abcdef").append("t").ack("ab", 0)
    script.stored(script.refuse("c", 0).write)
    assert script.last_ensemble == "abd"
    script.append("u")
    assert script.refuse("b", 1).writes == []  # pinned by e0
    write = script.ack("d", 0).write  # now a and d keep e0
    assert write.metadata.fragments == (Fragment(0, ("a", "b", "d")), Fragment(1, ("a", "e", "d")))


def test_a_set_is_judged_as_a_set() -> None:
    """G-5: each of c and d could go alone, both together would leave e0 with one copy; the part that can go goes."""
    script = guaranteed("abcdefgh", (4, 4, 2)).append("t").append("u").ack("acd", 0)
    write = script.refuse("b", 0).write  # b's window keeps the two failures below together
    script.refuse("c", 1)
    script.refuse("d", 1)
    script.stored(write)
    assert script.write.metadata.last_fragment.ensemble == ("a", "e", "f", "d")
    assert script.writer._change is not None
    assert script.writer._change.removed == {2: "c"}


def test_in_the_window_survivors_count_for_lac_and_lafr() -> None:
    """G-6: what becomes fully replicated meanwhile is so in the old and in the new ensemble."""
    script = guaranteed("abcdef", (4, 3, 2)).append("e0").append("e1").append("e2")  # abc bcd cda
    write = script.refuse("d", 1).write
    script.ack("abc", 0)
    assert (script.writer.last_add_confirmed, script.writer.last_add_fully_replicated) == (0, 0)
    script.ack("bd", 1)
    assert script.writer.last_add_confirmed == 0  # d's answer does not count
    script.ack("c", 1)
    assert (script.writer.last_add_confirmed, script.writer.last_add_fully_replicated) == (1, 0)
    script.stored(write)
    assert script.sent == [("e", 1), ("e", 2)]


def test_the_window_may_block() -> None:
    """G-6, EC-8 a: also correct; neither LAC nor LAFR moves."""
    script = guaranteed("abcde", options=WriterOptions(window=ChangeWindow.BLOCK)).append("t")
    write = script.refuse("c", 0).write
    script.ack("abc", 0)
    assert (script.writer.last_add_confirmed, script.writer.last_add_fully_replicated) == (-1, -1)
    script.stored(write).ack("d", 0)
    assert (script.writer.last_add_confirmed, script.writer.last_add_fully_replicated) == (0, 0)


# --- retries and staging ---------------------------------------------------------------------------------------------


def test_scenario_47_retries_on_the_same_bookies_clear_everything() -> None:
    """G-7, scenario 47: all three bookies have failed and are pinned; all are alive."""
    script = all_pinned()
    assert sorted(script.tick(PAUSE).sent) == [("b", 1), ("c", 2), ("d", 0)]
    script.ack("c", 2).ack("b", 1).ack("d", 0)
    assert script.writer.last_add_fully_replicated == 2
    assert script.writer.idle
    assert script.last_ensemble == "bcd"
    assert script.append("e3").writes == []  # no failure is left over
    assert script.tick(PAUSE).sent == []


def test_scenario_48_a_dead_bookie_is_staged_out() -> None:
    """G-7, G-9, scenario 48: d is dead for ever. f gets every committed entry of d first, then the place; nothing falls below Qa."""
    script = all_pinned()
    script.tick(PAUSE).lose("d")  # b and c have not answered yet
    script.tick(PAUSE)
    staged = [(e.bookie, e.position, e.run.first_entry_id) for e in script.of(SendAdds) if e.bookie == "f"]
    assert staged == [("f", 2, 0), ("f", 2, 1), ("f", 2, 2)]
    assert script.ack("f", 0).writes == []
    assert script.writer.last_add_fully_replicated == -1  # counts for nothing before the compare-and-set
    assert script.ack("f", 1).writes == []
    write = script.ack("f", 2).write
    assert write.metadata.fragments == (Fragment(0, ("b", "c", "f")),)
    script.stored(write)
    assert script.writer.last_add_fully_replicated == 0  # credited; e1 still wants b, e2 still wants c
    script.ack("b", 1).ack("c", 2)
    assert script.writer.last_add_fully_replicated == 2
    close = script.do(script.writer.close("close", script.now)).write
    assert close.metadata.sealed
    assert close.metadata.last_entry_id == 2


def staging() -> WriterScript:
    """Scenario 48 up to the moment where f is being prepared for d's place; b and c owe an answer each."""
    script = all_pinned("bcdfg")
    script.tick(PAUSE).lose("d")
    script.tick(PAUSE)
    assert ("f", 0) in script.sent
    return script


def test_what_is_appended_meanwhile_goes_to_the_candidate_too() -> None:
    """G-7: all that exist at decision time, also those committed since staging began."""
    script = staging().append("e3")
    assert ("f", 3) in script.sent
    script.ack("bc", 3).ack("f", 0)
    assert script.ack("f", 1, 2).writes == []
    assert script.ack("f", 3).write.metadata.last_fragment.ensemble == ("b", "c", "f")


def test_a_candidate_that_fails_is_replaced_by_another() -> None:
    """G-7: refused, lost or silent; what it had acknowledged is forgotten."""
    for how in ("refused", "lost", "silent"):
        script = staging().ack("f", 0)
        if how == "refused":
            script.refuse("f", 1)
        elif how == "lost":
            script.lose("f")
        else:
            script.tick(5 * SECOND)
        assert "f failed before it was used" in " ".join(script.logs)
        script.tick(PAUSE)
        assert ("g", 0) in script.sent


def test_a_bookie_that_comes_back_keeps_its_place() -> None:
    """G-7, G-8: the staged copies are harmless and are dropped."""
    script = staging().ack("d", 0).ack("c", 2).ack("b", 1)
    assert script.writer.last_add_fully_replicated == 2
    assert script.ack("f", 0, 3).effects == []
    assert script.append("e3").sent == [("b", 3), ("c", 3), ("d", 3)]


def test_an_answer_of_the_candidate_can_end_the_writing() -> None:
    """G-7, WR-6: a regular add was refused because the ledger is fenced there."""
    assert staging().refuse("f", 0, Status.FENCED).writer.state is WriterState.FENCED


def test_a_candidate_that_fails_in_the_window_is_dealt_with_afterwards() -> None:
    """G-7, EC-1: its copies are credited; it is an ordinary member then."""
    script = staging().append("e3").ack("bc", 3).ack("f", 0, 3)
    write = script.ack("f", 3).write
    assert script.lose("f").effects == []
    script.stored(write)
    assert script.last_ensemble == "bcf"
    script.ack("b", 1).ack("c", 2)
    assert script.writer.last_add_fully_replicated == 3


def test_a_candidate_is_credited_with_the_entries_it_says() -> None:
    """G-7: an answer with gaps, about a part of what was asked."""
    script = staging()
    assert script.feed(AddReply("f", 0, 3, Status.OK, 0b101)).writes == []
    assert script.writer._staging[2].acked == {0: 1, 1: 0, 2: 1}
    assert script.ack("f", 1).write.metadata.last_fragment.ensemble == ("b", "c", "f")


def test_a_candidate_that_somebody_else_puts_into_the_ensemble_is_no_candidate() -> None:
    """G-7, EC-9: a foreign tool may have had the same idea for another position."""
    script = staging()
    script.writer._take_back(("b", "x", "d"), 0)
    assert script.writer._staging[2].candidate == "f"
    script.writer._take_back(("f", "x", "d"), 0)
    assert script.writer._staging == {}


def test_two_candidates_at_once() -> None:
    """G-7: each has a place of its own, and neither is chosen for another; who is ready first goes first."""
    script = all_pinned("bcdfg")
    script.tick(PAUSE)
    for entry, bookie in enumerate("dbc"):
        script.refuse(bookie, entry)
    script.tick(PAUSE)
    assert [(p, s.candidate) for p, s in script.writer._staging.items()] == [(0, "f"), (1, "g")]
    write = script.ack("g", 0, 3).write
    assert write.metadata.last_fragment.ensemble == ("b", "g", "d")


def test_a_candidate_is_sent_what_its_position_holds() -> None:
    """G-7 with striping: entry 3 is on d, a, b; nothing is late as long as the candidate has time."""
    script = guaranteed("abcde", (4, 3, 2), pinned_retries_max=0).append("e0").append("e1").ack("bc", 0)
    script.refuse("c", 1)
    assert script.tick(PAUSE).sent == [("c", 1), ("e", 0), ("e", 1)]
    assert ("e", 2) in script.append("e2").sent
    assert ("e", 3) not in script.append("e3").sent
    assert "e failed" not in " ".join(script.tick(PAUSE).logs)


def test_staging_never_starts_without_need() -> None:
    """G-7: with the limit at two, the first repetitions go to the same bookie only."""
    script = guaranteed("bcdf", pinned_retries_max=3).append("e0").append("e1").append("e2")
    script.ack("bc", 0).ack("cd", 1).ack("bd", 2)
    for entry, bookie in enumerate("dbc"):
        script.refuse(bookie, entry)
    for _ in range(3):
        assert all(bookie != "f" for bookie, _ in script.tick(PAUSE).sent)
        script.lose("d")
    assert ("f", 0) in script.tick(PAUSE).sent


def test_an_ambiguous_change_keeps_its_positions_excluded() -> None:
    """G-8, META-12: a retry clears the failure while the compare-and-set lingers; the cleared bookie still counts for nothing."""
    script = guaranteed("abcd").append("t").append("u")
    write = script.refuse("c", 0).write
    script.feed(LedgerWritten(write.request, Outcome.UNKNOWN))
    script.ack("c", 0).ack("c", 1).ack("a", 0)
    assert script.done == []
    assert script.fire("metadata").effects == [write]
    script.ack("b", 0)
    assert (script.done, script.writer.last_add_fully_replicated) == ([("t", 0)], -1)
    script.conflict(write, write.metadata, 1)
    assert script.sent == [("d", 0), ("d", 1)]
    assert script.writer.last_add_fully_replicated == -1


# --- not enough bookies ----------------------------------------------------------------------------------------------


def test_without_bookies_it_goes_on_acknowledging_and_looks_again() -> None:
    """G-10, scenario 25: no close; a bookie that registers is used at once."""
    script = guaranteed("abc", placement_retry_ns=SECOND).append("t").lose("c")
    assert script.writes == []
    assert script.ack("ab", 0).done == [("t", 0)]
    script.append("u").lose("c")
    assert script.writes == []
    assert script.feed(BookiesChanged()).writes == []
    script.bookies.append("d")
    assert script.ack("ab", 1).writes == []  # not with every answer
    write = script.feed(BookiesChanged()).write
    assert write.metadata.fragments == (Fragment(0, ("a", "b", "d")),)
    script.stored(write).ack("d", 0).ack("d", 1)
    assert script.writer.idle
    assert script.feed(BookiesChanged()).effects == []


def test_placement_is_tried_again_from_time_to_time() -> None:
    """G-10: the registry's news may be lost."""
    script = guaranteed("abc", placement_retry_ns=SECOND, add_retry_ns=2 * SECOND).append("t").lose("c")
    script.bookies.append("d")
    assert script.tick(SECOND - 1).writes == []
    assert script.tick(1).write.metadata.last_fragment.ensemble == ("a", "b", "d")


def test_staging_waits_for_bookies_too() -> None:
    """G-7, G-10."""
    script = all_pinned("bcd")
    for _ in range(3):
        script.tick(PAUSE).lose("d")
    assert script.writer._staging == {}
    script.bookies.append("f")
    assert ("f", 0) in script.feed(BookiesChanged()).sent


def test_the_retry_finds_the_bookie_alive_after_all() -> None:
    """G-7, G-10: no replacement was needed."""
    script = guaranteed("abc").append("t").ack("ab", 0).lose("c")
    assert script.tick(PAUSE).sent == [("c", 0)]
    assert script.ack("c", 0).writer.idle


@pytest.mark.parametrize("replicated", [False, True])
def test_a_fatal_error_closes_only_what_is_fully_replicated(replicated: bool) -> None:
    """G-10, WR-12: else the ledger is left OPEN for a recovery."""
    script = guaranteed("abcd").append("t").ack("abc" if replicated else "ab", 0).append("u")
    script.refuse("a", 1, Status.UNAUTHORIZED)
    assert script.failed == [("u", UnauthorizedError)]
    assert [w.metadata.sealed for w in script.writes] == ([True] if replicated else [])
    assert script.writer.state is (WriterState.CLOSING if replicated else WriterState.FAILED)


def test_the_budget_holds_here_too() -> None:
    """EC-5, G-10."""
    script = guaranteed("abcd", ensemble_changes_max=0).append("t").ack("ab", 0).append("u").lose("c")
    assert script.writes == []
    assert script.failed == [("u", WriteFailedError)]


# --- closing ---------------------------------------------------------------------------------------------------------


def test_a_close_waits_for_the_last_copy() -> None:
    """G-11, CL-3, G-13's seal: admission stops, LAFR = LAC = LAP, then the closing compare-and-set."""
    script = guaranteed("abc").append("t").ack("ab", 0)
    assert script.do(script.writer.close("close", 0)).effects == []
    assert script.append("u").failed == [("u", LedgerClosedError)]
    script.append("v")
    write = script.ack("c", 0).write
    assert (write.metadata.state, write.metadata.last_entry_id, write.metadata.sealed) == (LedgerState.CLOSED, 0, True)
    assert script.stored(write).done[-1] == ("close", write.metadata)


def test_a_close_waits_for_acknowledgements_too() -> None:
    """G-11: nothing is drained unless asked for."""
    script = guaranteed("abc").append("t")
    assert script.do(script.writer.close("close", 0)).effects == []
    assert script.ack("ab", 0).writes == []
    assert len(script.ack("c", 0).writes) == 1


def test_a_forced_close_fails_the_rest_first() -> None:
    """G-11, CL-1, I-18: what has no quorum fails at once and is never acknowledged; what has one is waited for."""
    script = guaranteed("abc").append("t", b"four", b"five5").append("u", b"xx").ack("ab", 0).ack("c", 1, 2)
    script.do(script.writer.close("close", 0, forced=True))
    assert script.failed == [("t", LedgerClosedError), ("u", LedgerClosedError)]
    assert script.ack("b", 1, 2).done == []
    write = script.ack("c", 0).write
    assert (write.metadata.last_entry_id, write.metadata.length, write.metadata.sealed) == (0, 4, True)


def test_a_waiting_close_may_be_forced_later() -> None:
    """G-11, CL-5: both calls get the one result."""
    script = guaranteed("abc").append("t")
    script.do(script.writer.close("first", 0))
    write = script.do(script.writer.close("second", 0, forced=True)).write
    assert write.metadata.last_entry_id == -1
    assert [token for token, _ in script.stored(write).done] == ["first", "second"]


@pytest.mark.parametrize("caller_ids", [False, True])
def test_a_forced_close_in_the_middle_of_a_run_comes_to_its_end(caller_ids: bool) -> None:
    """G-11, L-5, WR-2: the end is where the run was cut, whatever else the run or the caller's ids would have had room for."""
    script = guaranteed("abc", options=WriterOptions(caller_ids=caller_ids))
    script.append("t", b"0", b"1", b"2", at=0 if caller_ids else None).ack("ab", 0, 2)
    assert script.do(script.writer.close("close", 0, forced=True)).writes == []
    assert script.ack("c", 0, 2).write.metadata.last_entry_id == 1


def test_a_close_forced_twice_drops_the_rest_once() -> None:
    """G-11, CL-5, I-18: the length is that of the entries that stay, however often the end is asked for."""
    script = guaranteed("abc").append("t", b"four", b"five5", b"sixsix").ack("ab", 0, 2)
    for token in ("first", "second"):
        script.do(script.writer.close(token, 0, forced=True))
    write = script.ack("c", 0, 2).write
    assert (write.metadata.last_entry_id, write.metadata.length) == (1, 9)
    assert (script.writer.pending_bytes, script.failed) == (0, [("t", LedgerClosedError)])


def test_a_close_with_a_dead_bookie_and_no_spare_waits_until_it_is_abandoned() -> None:
    """G-10, G-11, scenario 49: the ledger stays OPEN."""
    script = guaranteed("abc").append("t").ack("ab", 0).lose("c")
    script.do(script.writer.close("close", 0))
    for _ in range(5):
        assert script.tick(PAUSE).writes == []
        script.lose("c")
    script.do(script.writer.abandon(script.now))
    assert script.failed == [("close", LedgerClosedError)]
    assert script.writes == []
    assert script.tick(PAUSE).effects == []


def test_a_waiting_close_ends_when_the_ledger_is_fenced() -> None:
    """G-11, WR-11."""
    script = guaranteed("abc").append("t").ack("ab", 0)
    script.do(script.writer.close("close", 0))
    assert script.refuse("c", 0, Status.FENCED).failed == [("close", LedgerFencedError)]


def test_a_close_that_waited_for_a_change() -> None:
    """G-11, EC-10: full replication comes with the installation of a staged copy or a late answer."""
    script = guaranteed("abcd").append("t").ack("ab", 0)
    write = script.lose("c").write
    script.do(script.writer.close("close", 0))
    assert script.stored(write).sent == [("d", 0)]
    assert script.ack("d", 0).write.metadata.sealed


def test_the_option_to_close_in_recovery_does_not_break_the_promise() -> None:
    """D1, G-10."""
    script = guaranteed("abc", options=WriterOptions(close_in_recovery=True)).append("t").ack("ab", 0)
    assert script.refuse("c", 0, Status.FENCED).writes == []


# --- the explicit LAC slot -------------------------------------------------------------------------------------------


def test_the_slot_carries_lafr() -> None:
    """G-22: also when adds have carried a higher LAC, and again when it moves."""
    script = guaranteed("abc").append("t", b"0", b"1").ack("ab", 0, 2)
    assert script.timers == []  # LAC has moved, LAFR has not
    script.append("u")
    script.ack("c", 0)
    assert script.timers == ["explicit-lac"]
    assert script.fire("explicit-lac").told == [("a", 0), ("b", 0), ("c", 0)]
    script.ack("c", 1)
    assert script.timers == ["explicit-lac"]
    assert script.fire("explicit-lac").told[0] == ("a", 1)


def test_lafr_is_told_through_the_slot_and_nowhere_else() -> None:
    """G-24: not in a payload, where plain readers would see it, and not by writing metadata now and then."""
    script = guaranteed("abc")
    for entry in range(20):
        script.append("t", b"payload").ack("abc", entry)
        assert script.writes == []
        script.fire("explicit-lac")
        assert script.writes == []
    assert script.writer.length == 20 * len(b"payload")
    assert script.writer.metadata.custom == {"gwq": b"1"}


def test_a_ledger_that_exists_is_never_written_again() -> None:
    """G-28: what pinning relies on. Handles that write come from creating a ledger, and from nowhere else."""
    returns = {name: call.__annotations__.get("return") for name, call in inspect.getmembers(BookKeeper, inspect.isfunction)}
    assert [name for name, result in returns.items() if result == WriteHandle.__name__] == ["create_ledger"]


# --- recovery --------------------------------------------------------------------------------------------------------


def test_write_backs_leave_at_the_runs_lafr() -> None:
    """G-13, G-14: Qa is not enough; the private change starts above the run's LAFR."""
    script = guaranteed("abcde", frozen_lac=6, base=4).append("t", b"5", b"6").ack("ab", 5, 2).ack("c", 5)
    assert (script.writer.last_add_confirmed, script.writer.last_add_fully_replicated, script.writer.idle) == (6, 5, False)
    script.lose("c")
    assert script.writer.private_changes == {6: ("a", "b", "d")}
    assert script.writes == []
    assert script.ack("d", 6).writer.idle


def test_a_recovery_pins_nothing() -> None:
    """G-13: both holders of e5 may go, because the reads of every recoverer follow the recorded ensemble."""
    script = guaranteed("abcdef", frozen_lac=4, base=4).append("t").ack("ab", 5)
    script.append("u").refuse("a", 6)
    script.refuse("b", 6)
    assert script.writer.private_changes == {5: ("d", "e", "c")}
    assert sorted(script.ack("cde", 5).ack("cde", 6).done)[-1] == ("u", 6)
    assert script.writer.idle


def test_a_recovery_without_bookies_stops() -> None:
    """G-13: the ledger stays IN_RECOVERY; FENCED is an unknown failure."""
    script = guaranteed("abc", frozen_lac=-1).append("t").ack("ab", 0).refuse("c", 0, Status.FENCED).looked()
    assert isinstance(script.writer.error, NotEnoughBookiesError)
    assert not any(isinstance(e, WriteLedger) for e in script.effects)


# --- other modes -----------------------------------------------------------------------------------------------------


def test_delayed_means_immediate_where_every_copy_is_needed() -> None:
    """EC-3, G-2: an entry that one bookie fails cannot reach its write quorum."""
    script = guaranteed("abcd", options=WriterOptions(ensemble_change=EnsembleChangeMode.DELAYED)).append("t")
    assert len(script.lose("c").writes) == 1


def test_disabled_repeats_until_the_last_copy_is_there() -> None:
    """EC-3, G-2: also for committed entries."""
    script = guaranteed("abcd", options=WriterOptions(ensemble_change=EnsembleChangeMode.DISABLED)).append("t").ack("ab", 0)
    for _ in range(4):
        assert script.lose("c").writes == []
        assert script.tick(PAUSE).sent == [("c", 0)]
    assert script.ack("c", 0).writer.idle
