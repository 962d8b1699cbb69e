"""Ensemble changes of the writer, one rule at a time (replication-protocol.md 4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import LedgerClosedError, LedgerFencedError, MetadataError, NoSuchLedgerError, NotEnoughBookiesError, WriteFailedError
from bk_core.protocol.effects import LookForBookies, ReadLedger, SendAdds, WriteLedger
from bk_core.protocol.entry import layout
from bk_core.protocol.events import BytesDrained, LedgerRead, LedgerWritten, MetadataChanged, Outcome
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.write.writer import ChangeWindow, EnsembleChangeMode, WriterOptions, WriterState
from bk_core.protocol.wire.messages import Status
from tests.unit.ledger.writer_script import SECOND, WriterScript, tokens

DELAYED = WriterOptions(ensemble_change=EnsembleChangeMode.DELAYED)
DISABLED = WriterOptions(ensemble_change=EnsembleChangeMode.DISABLED)
SURVIVORS = WriterOptions(window=ChangeWindow.SURVIVORS)


def moved(metadata: LedgerMetadata, position: int, bookie: str) -> LedgerMetadata:
    """The metadata after a foreign tool put ``bookie`` at ``position`` of the last fragment."""
    last = metadata.last_fragment
    ensemble = (*last.ensemble[:position], bookie, *last.ensemble[position + 1 :])
    return replace(metadata, fragments=(*metadata.fragments[:-1], Fragment(last.first_entry_id, ensemble)))


# --- which failures lead to a change ---------------------------------------------------------------------------------


def test_a_failure_of_a_bookie_that_holds_no_position_is_discarded() -> None:
    """EC-1, SM-3."""
    script = WriterScript().append("t")
    assert script.refuse("d", 0).effects == []
    assert script.lose("z").effects == []


def test_a_failure_about_an_entry_that_the_bookie_has_is_discarded() -> None:
    """SM-3: the answer was superseded by an OK of the same bookie."""
    script = WriterScript().append("t").ack("a", 0)
    assert script.refuse("a", 0).effects == []
    assert script.lose("a").effects == []


@pytest.mark.parametrize(
    "status",
    [Status.IO_ERROR, Status.BAD_REQUEST, Status.BAD_VERSION, Status.READ_ONLY, Status.TOO_MANY_REQUESTS, Status.NO_LEDGER]
    + [Status.NO_ENTRY, Status.UNKNOWN_LEDGER_STATE, Status.TIMEOUT, Status.UNAVAILABLE, Status.PROTOCOL_ERROR],
)
def test_every_failure_of_an_uncommitted_entry_replaces_the_bookie(status: Status) -> None:
    """WR-6, EC-2, EC-3 immediate, EC-7: nothing is committed in the fragment, so its ensemble is overwritten."""
    script = WriterScript().append("t").refuse("b", 0, status)
    assert script.write.metadata.fragments == (Fragment(0, ("a", "d", "c")),)
    assert script.write.version == 0


def test_a_late_failure_waits_for_the_next_entry() -> None:
    """WR-10, WR-4, EC-16: remembered, and the change begins before the next first send, which still goes to the old ensemble."""
    script = WriterScript().append("t").ack("ab", 0)
    assert script.refuse("c", 0).writes == []
    assert script.writer.unretired_entries == 0
    script.append("u")
    assert script.write.metadata.fragments[-1] == Fragment(1, ("a", "b", "d"))
    assert script.sent == [("a", 1), ("b", 1), ("c", 1)]
    assert script.stored(script.write).sent == [("d", 1)]


def test_a_late_failure_joins_a_change_that_starts_for_another_reason() -> None:
    """WR-10, EC-6: R is everything recorded and valid, in the order it came."""
    script = WriterScript(bookies="abcde").append("t").append("u").ack("ab", 0)
    script.refuse("c", 0)
    assert script.lose("b").write.metadata.fragments[-1] == Fragment(1, ("a", "e", "d"))


def test_a_run_is_late_up_to_the_head_only() -> None:
    """WR-10: of one run, the committed part is given up and the rest asks for a change."""
    script = WriterScript().append("t", b"0", b"1").ack("ab", 0)
    assert script.refuse("c", 0).writes == []
    assert script.refuse("c", 1).write.metadata.fragments[-1] == Fragment(1, ("a", "b", "d"))


def test_bookies_that_fall_silent_together_are_replaced_together() -> None:
    """EC-6, WR-6: one round for all timeouts of one look at the clock."""
    script = WriterScript(bookies="abcde").append("t").ack("a", 0).tick(10 * SECOND)
    assert script.write.metadata.fragments == (Fragment(0, ("a", "d", "e")),)


def test_failures_of_one_round_go_together_and_later_ones_form_the_next() -> None:
    """EC-4, EC-15, scenario 20: F stays while nothing is committed, so the same key is overwritten."""
    script = WriterScript(bookies="abcde").append("t")
    first = script.refuse("b", 0).write
    assert script.refuse("c", 0).writes == []
    second = script.stored(first).write
    assert second.metadata.fragments == (Fragment(0, ("a", "d", "e")),)
    assert second.version == 1
    script.stored(second)
    assert script.sent == [("e", 0)]
    assert script.ack("de", 0).done == [("t", 0)]


def test_a_position_without_a_candidate_stays_and_is_sent_to_again() -> None:
    """EC-6, EC-11: best effort; the request that failed goes to the same bookie once more."""
    script = WriterScript(bookies="abcd").append("t").append("u").ack("abc", 0)
    script.writer._failures = {1: "b", 2: "c"}
    for bookie in "bc":
        script.refuse(bookie, 1)
        if script.writes:
            write = script.write
    assert write.metadata.fragments[-1] == Fragment(1, ("a", "d", "c"))
    assert sorted(script.stored(write).sent) == [("c", 1), ("d", 1)]


def test_without_any_candidate_the_ledger_is_closed_at_the_lac() -> None:
    """EC-6, WR-12, CL-6, scenario 25: that needs no bookie."""
    script = WriterScript(bookies="abc").append("t").ack("ab", 0).append("u").lose("b").looked()
    assert script.failed == [("u", NotEnoughBookiesError)]
    assert (script.write.metadata.state, script.write.metadata.last_entry_id) == (LedgerState.CLOSED, 0)
    script.stored(script.write)
    assert script.append("v").failed[-1] == ("v", NotEnoughBookiesError)


def test_an_add_that_finds_no_replacement_for_a_late_failure_ends_the_writing() -> None:
    """WR-4, WR-10, EC-6: the look comes first. The add goes to the old ensemble meanwhile, as during a change."""
    script = WriterScript(bookies="abc").append("t").ack("ab", 0).lose("c").append("u")
    assert isinstance(script.effects[0], LookForBookies) and script.sent == [("a", 1), ("b", 1), ("c", 1)]
    assert script.looked().failed == [("u", NotEnoughBookiesError)]
    assert script.sent == []


def test_the_budget_of_changes() -> None:
    """EC-5: one round more than allowed ends the writing."""
    script = WriterScript(bookies="abcdef", ensemble_changes_max=1).append("t")
    script.stored(script.lose("b").write).lose("c")
    assert script.failed == [("t", WriteFailedError)]
    assert script.write.metadata.state is LedgerState.CLOSED


# --- delayed and disabled --------------------------------------------------------------------------------------------


def test_delayed_a_change_waits_until_the_ack_quorum_is_out_of_reach() -> None:
    """EC-3, scenario 23: one of three slow bookies changes nothing; two failures of one entry do, and both go."""
    script = WriterScript(bookies="abcde", options=DELAYED).append("t").append("u")
    assert script.refuse("b", 0).writes == []
    assert script.refuse("c", 1).writes == []  # another entry: each can still reach two
    assert script.refuse("c", 0).write.metadata.fragments == (Fragment(0, ("a", "d", "e")),)


def test_delayed_a_later_ok_takes_the_failure_back() -> None:
    """EC-3."""
    script = WriterScript(bookies="abcde", options=DELAYED).append("t")
    script.refuse("b", 0).ack("b", 0)
    assert script.refuse("c", 0).writes == []
    assert script.ack("a", 0).done == [("t", 0)]


def test_delayed_a_read_only_bookie_is_replaced_at_once() -> None:
    """EC-3, WR-6, scenario 24: and with it whatever else failed the same entry."""
    script = WriterScript((4, 4, 2), "abcdefg", options=DELAYED).append("t").append("u")
    script.refuse("b", 0)
    script.refuse("d", 1)
    assert script.refuse("c", 0, Status.READ_ONLY).write.metadata.fragments == (Fragment(0, ("a", "e", "f", "d")),)


def test_delayed_late_failures_are_ignored() -> None:
    """WR-10, EC-3."""
    script = WriterScript(options=DELAYED).append("t").ack("ab", 0)
    script.refuse("c", 0, Status.READ_ONLY)
    assert script.writer.unretired_entries == 0
    assert script.append("u").writes == []


def test_delayed_a_failure_that_cleared_is_not_part_of_the_next_round() -> None:
    """EC-3, EC-15: recorded in the window, taken back by an OK in the window."""
    script = WriterScript((4, 4, 2), "abcdefgh", options=DELAYED).append("t")
    write = script.refuse("b", 0, Status.READ_ONLY).write
    script.refuse("c", 0, Status.READ_ONLY)
    script.ack("c", 0)
    assert script.stored(write).writes == []
    assert script.last_ensemble == "aecd"


def test_delayed_a_position_without_a_candidate_does_not_end_the_writing() -> None:
    """EC-3, EC-6: one replacement is enough for the quorum; the other position is sent to again."""
    script = WriterScript(bookies="abcd", options=DELAYED).append("t").refuse("b", 0).refuse("c", 0)
    assert sorted(script.stored(script.write).sent) == [("c", 0), ("d", 0)]
    assert script.ack("ad", 0).done == [("t", 0)]


def test_disabled_the_entry_is_sent_to_the_same_bookie_again() -> None:
    """EC-3: no metadata is written; the pause grows."""
    script = WriterScript(options=DISABLED, add_retry_ns=1000, add_retry_ns_max=3000).append("t")
    for pause in (1000, 2000, 3000, 3000):
        assert script.refuse("b", 0).writes == []
        assert script.refuse("b", 0).effects == []  # once is enough
        assert script.tick(pause - 1).sent == []
        assert script.tick(1).sent == [("b", 0)]
    assert script.ack("ab", 0).done == [("t", 0)]
    assert script.refuse("c", 0).effects[1:] == []  # late: of no interest
    assert script.writer.unretired_entries == 0


# --- the window ------------------------------------------------------------------------------------------------------


def test_block_nothing_is_acknowledged_in_the_window() -> None:
    """EC-8 a, EC-10: not even what the survivors have; right after the window it is."""
    script = WriterScript().append("t")
    write = script.lose("b").write
    assert script.ack("abc", 0).done == []
    assert script.stored(write).done == [("t", 0)]


def test_survivors_only_what_they_have_is_acknowledged_in_the_window() -> None:
    """EC-8 b: the departing bookie's answer does not count, and what was committed meanwhile is sent to the newcomer too."""
    script = WriterScript(options=SURVIVORS).append("t").append("u")
    write = script.lose("b").write
    assert script.ack("ab", 0).done == []
    assert script.ack("c", 0).done == [("t", 0)]
    assert script.writer.unretired_entries == 2
    assert script.stored(write).sent == [("d", 0), ("d", 1)]
    assert script.writer.last_add_confirmed == 0
    assert script.ack("d", 0).writer.unretired_entries == 1


def test_an_entry_is_packaged_once() -> None:
    """WR-3: with the LAC of that moment; what is sent again, also to another bookie and after the LAC has moved, is the same bytes."""
    script = WriterScript().append("t").append("u", b"payload")
    (run,) = {id(e.run): e.run for e in script.of(SendAdds)}.values()
    entry = layout.decode_body(bytes(run.body(0)), 7, 1, script.writer.metadata.digest_type, b"")
    assert (entry.last_add_confirmed, entry.length, bytes(entry.payload)) == (-1, 8, b"payload")
    script.ack("ab", 0)
    assert script.writer.last_add_confirmed == 0
    script.stored(script.refuse("c", 1).write)
    (again,) = script.of(SendAdds)
    assert (again.bookie, again.run) == ("d", run)
    assert again.run.frames is run.frames


def test_adds_of_the_window_go_to_the_old_ensemble() -> None:
    """EC-8, EC-11: and to the newcomer when it is over."""
    script = WriterScript().append("t")
    write = script.lose("b").write
    assert script.append("u").sent == [("a", 1), ("b", 1), ("c", 1)]
    assert script.stored(write).sent == [("d", 0), ("d", 1)]


def test_the_three_phases_of_an_installation() -> None:
    """EC-10, EC-12, EC-14: every entry is un-acked before anything is acknowledged; survivors' answers stay."""
    script = WriterScript((4, 2, 2), "abcde").append("h").append("n").append("s")
    script.ack("bc", 1)  # has its quorum, waits behind the head
    script.ack("a", 0)
    write = script.refuse("c", 2).write
    script.ack("b", 0)
    done = script.stored(write).done
    assert done == [("h", 0)]
    assert script.sent == [("e", 1), ("e", 2)]
    assert script.ack("e", 1).done == [("h", 0), ("n", 1)]


# --- outcomes of the compare-and-set ---------------------------------------------------------------------------------


def test_a_conflict_with_a_foreign_change_of_an_old_fragment_is_decided_again() -> None:
    """EC-9 row 3, META-14, R14, scenario 15: adopted, written again over the new version; nothing of other positions is un-acked."""
    script = WriterScript(first_entry_id=10, base=9).append("t").ack("a", 10)
    write = script.lose("b").write
    found = replace(script.writer.metadata, fragments=(Fragment(0, ("x", "y", "z")), *script.writer.metadata.fragments[1:]))
    again = script.conflict(write, found).write
    assert again.version == 5
    assert again.metadata.fragments == (Fragment(0, ("x", "y", "z")), Fragment(10, ("a", "d", "c")))
    assert script.ack("c", 10).done == []  # the window is open still
    assert script.stored(again).done == [("t", 10)]


def test_a_conflict_because_somebody_replaced_the_failed_bookie_is_done() -> None:
    """EC-9 row 4, EC-11, scenario 16: no second replacement; what is missing goes to whoever is there."""
    script = WriterScript(bookies="abcdx").append("t").ack("a", 0)
    write = script.lose("b").write
    script.conflict(write, moved(script.writer.metadata, 1, "x"))
    assert script.writes == []
    assert script.sent == [("x", 0)]
    assert script.ack("c", 0).done == [("t", 0)]


def test_a_foreign_change_of_another_position_is_taken_over() -> None:
    """EC-9, EC-11, scenario 52: the new decision starts from the ensemble found, and both positions get what they lack."""
    script = WriterScript(bookies="abcdx").append("t").ack("c", 0)
    write = script.lose("b").write
    script.ack("a", 0)
    again = script.conflict(write, moved(script.writer.metadata, 2, "x")).write
    assert again.metadata.last_fragment.ensemble == ("a", "c", "x")  # c is free again, and what it had at its old position is forgotten
    assert sorted(script.stored(again).sent) == [("c", 0), ("x", 0)]
    assert script.done == []
    assert script.ack("x", 0).done == [("t", 0)]


def test_a_conflict_may_leave_nothing_to_decide() -> None:
    """EC-9, EC-3: delayed, the failure was taken back while the store was asked; the window closes over what was found."""
    script = WriterScript((4, 4, 2), "abcdefx", options=DELAYED).append("t")
    write = script.refuse("b", 0, Status.READ_ONLY).write
    script.ack("ab", 0)
    script.conflict(write, moved(script.writer.metadata, 3, "x"))
    assert script.writes == []
    assert script.done == [("t", 0)]


@pytest.mark.parametrize(
    ("state", "error", "ends"),
    [(LedgerState.IN_RECOVERY, LedgerFencedError, WriterState.FENCED), (LedgerState.CLOSED, LedgerClosedError, WriterState.FAILED)],
)
def test_a_conflict_with_a_recoverer_ends_the_writing(state: LedgerState, error: type, ends: WriterState) -> None:
    """EC-9, WR-11, WR-12, WR-8, scenario 17: the queue fails in order, no write, and the LAC stays where it was."""
    script = WriterScript().append("t").ack("ab", 0).append("u").append("v")
    write = script.lose("c").write
    script.conflict(write, replace(script.writer.metadata, state=state, last_entry_id=2))
    assert script.failed == [("u", error), ("v", error)]
    assert script.writes == []
    assert (script.writer.state, script.writer.last_add_confirmed) == (ends, 0)
    assert script.writer.metadata.state is state


@pytest.mark.parametrize("when", ["write", "read"])
def test_a_deleted_ledger_ends_the_writing(when: str) -> None:
    """EC-9."""
    script = WriterScript().append("t")
    write = script.lose("c").write
    if when == "write":
        script.feed(LedgerWritten(write.request, Outcome.NO_SUCH_LEDGER))
    else:
        script.feed(LedgerWritten(write.request, Outcome.CONFLICT))
        script.feed(LedgerRead(write.request, Outcome.NO_SUCH_LEDGER))
    assert script.failed == [("t", NoSuchLedgerError)]
    assert script.writer.state is WriterState.FAILED


def test_a_refused_write_closes_the_ledger_with_the_stores_error() -> None:
    """EC-9, WR-12."""
    script = WriterScript().append("t")
    script.feed(LedgerWritten(script.lose("c").write.request, Outcome.REFUSED, error=MetadataError("no")))
    assert script.failed == [("t", MetadataError)]
    assert script.write.metadata.state is LedgerState.CLOSED
    script.feed(LedgerWritten(script.write.request, Outcome.REFUSED, error=OSError("disk")))
    assert script.writer.state is WriterState.CLOSE_FAILED
    assert "disk" in str(script.writer.error)


def test_a_read_that_fails_is_repeated_or_ends_the_writing() -> None:
    """EC-9, L-9: an unknown outcome after a pause, a refusal for good."""
    script = WriterScript().append("t")
    write = script.lose("c").write
    script.feed(LedgerWritten(write.request, Outcome.CONFLICT))
    assert script.feed(LedgerRead(write.request, Outcome.UNKNOWN)).timers == ["metadata"]
    assert script.fire("metadata").effects == [ReadLedger(write.request)]
    script.feed(LedgerRead(write.request, Outcome.REFUSED, error=ValueError("garbage")))
    assert script.failed == [("t", MetadataError)]


def test_a_stale_read_is_ignored() -> None:
    """META-11, scenario 46: what a follower still had cannot be the answer to a conflict."""
    script = WriterScript().append("t")
    write = script.lose("c").write
    script.feed(LedgerWritten(write.request, Outcome.CONFLICT))
    assert script.feed(LedgerRead(write.request, Outcome.OK, script.writer.metadata, 0)).timers == ["metadata"]
    assert script.fire("metadata").effects == [ReadLedger(write.request)]
    assert script.writer.version == 0


def test_an_unknown_outcome_is_followed_by_the_identical_request_until_it_is_definite() -> None:
    """META-12, META-13, EC-9, scenarios 18, 19 and 45: failures meanwhile do not alter it, nothing is acknowledged before it is settled."""
    script = WriterScript(bookies="abcde").append("t")
    write = script.lose("b").write
    for _ in range(3):
        assert script.feed(LedgerWritten(write.request, Outcome.UNKNOWN)).timers == ["metadata"]
        script.refuse("c", 0)
        script.ack("abc", 0)
        assert script.fire("metadata").effects == [write]
    assert script.done == []
    assert script.conflict(write, write.metadata, 1).sent[0] == ("d", 0)


def test_answers_to_other_requests_change_nothing() -> None:
    """SM-3: superseded numbers, answers without a question, a timer without a reason, news from a watch."""
    script = WriterScript().append("t")
    write = script.lose("b").write
    assert script.feed(LedgerWritten(write.request + 9, Outcome.OK, 7)).effects == []
    assert script.feed(LedgerRead(write.request, Outcome.OK, script.writer.metadata, 7)).effects == []  # nobody asked
    assert script.feed(MetadataChanged(script.writer.metadata, 9)).effects == []
    script.stored(write)
    assert script.feed(LedgerWritten(write.request, Outcome.OK, 9)).effects == []
    assert script.fire("metadata").effects == []
    assert script.writer.version == 1


# --- recovery --------------------------------------------------------------------------------------------------------


def test_recovery_changes_stay_private_and_start_above_its_lac() -> None:
    """RC-13, RC-14, RC-15: no write, recovery adds, frozen LAC; the same key is overwritten."""
    script = WriterScript(bookies="abcdef", frozen_lac=4, base=4).append("t", b"5", b"6")
    assert all(e.run.recovery for e in script.effects if hasattr(e, "run"))
    script.lose("b")
    assert script.writes == []
    assert script.writer.private_changes == {5: ("a", "d", "c")}
    script.ack("ad", 5)
    script.lose("c")
    assert script.writer.private_changes == {5: ("a", "d", "c"), 6: ("a", "d", "e")}
    assert script.ack("de", 6).done == [("t", 6)]
    assert script.writer.idle


def test_recovery_takes_fenced_for_an_unknown_failure() -> None:
    """RC-15, WR-6."""
    script = WriterScript(frozen_lac=-1).append("t").refuse("b", 0, Status.FENCED)
    assert script.writer.private_changes == {0: ("a", "d", "c")}
    assert script.writer.state is WriterState.OPEN


def test_recovery_without_bookies_stops_and_writes_nothing() -> None:
    """RC-15, RC-21, scenario 26."""
    script = WriterScript(bookies="abc", frozen_lac=-1).append("t").lose("b").looked()
    assert script.writes == []
    assert script.failed == [("t", NotEnoughBookiesError)]
    assert "IN_RECOVERY" in str(script.writer.error)
    assert script.writer.state is WriterState.FAILED


def test_recovery_may_delay_its_changes() -> None:
    """RC-14, EC-3: write-backs that reach Qa are enough, no spare bookie is needed."""
    script = WriterScript(bookies="abc", frozen_lac=-1, options=DELAYED).append("t").lose("b")
    assert script.ack("ac", 0).done == [("t", 0)]
    assert script.writer.idle


def test_recovery_keeps_the_running_length_that_was_stored() -> None:
    """RC-13, META-10: it comes with the entry, not from a sum over what this run wrote."""
    script = WriterScript(frozen_lac=4, base=4).append("t", b"five", length_before=100)
    assert script.writer.length == 104
    assert script.writer.ensemble == ("a", "b", "c")


# --- silence ---------------------------------------------------------------------------------------------------------


def test_a_bookie_that_moves_is_not_late() -> None:
    """WR-6: the clock of a run starts again with every answer, those behind it wait their turn, and a hole stops it."""
    script = WriterScript(add_timeout_ns=SECOND).append("t", *[b"x"] * 4).append("u")
    for first in range(4):
        script.now += SECOND * 3 // 4
        script.ack("abc", first)
        assert script.tick().writes == []
    assert tokens(script.done) == ["t"]
    assert script.tick(SECOND // 2).writes == []
    script.bookies += ["e", "f"]
    assert isinstance(script.tick(SECOND).write, WriteLedger)


def test_time_has_no_hold_on_an_idle_writer() -> None:
    """L-11: the timer is not set again when nobody is waited for."""
    script = WriterScript().append("t").ack("abc", 0)
    assert script.tick(SECOND).effects == []
    assert script.append("u").timers == ["tick"]
    assert script.append("v").timers == []


@pytest.mark.parametrize("mode", [EnsembleChangeMode.DELAYED, EnsembleChangeMode.DISABLED])
def test_a_dead_bookie_that_stays_does_not_fill_the_window(mode: EnsembleChangeMode) -> None:
    """WR-9, WR-15: what failed at a bookie that is not replaced is let go at the commit, or one dead bookie stops the writer."""
    script = WriterScript(bookies="abc", options=WriterOptions(ensemble_change=mode))
    for entry in range(20):
        script.append(entry).lose("c").ack("ab", entry)
    assert script.writer.last_add_confirmed == 19
    assert (script.writer.unretired_entries, script.writer.unretired_bytes) == (0, 0)


def test_a_bookie_that_answers_a_long_run_bit_by_bit_is_not_late() -> None:
    """LINK-1, WR-6: each answer starts the time of what is behind it anew; LINK-2: what it passed over has no more time."""
    script = WriterScript(add_timeout_ns=SECOND).append("t", *[b"x"] * 6)
    for entry in range(5):
        script.ack("ab", entry).tick(SECOND * 3 // 4)
        assert script.ack("c", entry).writes == [] and not script.logs
    script.ack("ab", 5).tick(SECOND * 3 // 4)
    assert not script.logs
    script = WriterScript(add_timeout_ns=SECOND).append("t").append("u")
    script.ack("ab", 0, 2).ack("c", 1).tick(SECOND)
    assert any("bookie c failed (TIMEOUT)" in line for line in script.logs)


def test_a_bookie_behind_a_full_link_is_not_late() -> None:
    """LINK-1: bytes for it went on a moment ago, so it cannot have them all."""
    script = WriterScript(add_timeout_ns=SECOND).append("t")
    script.ack("ab", 0)
    for _ in range(5):
        script.tick(SECOND // 2)
        script.feed(BytesDrained("c", script.now))
    assert not script.logs
    script.tick(SECOND)
    assert any("bookie c failed (TIMEOUT)" in line for line in script.logs)
