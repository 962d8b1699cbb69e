"""The defects of the past on the writing side, one test per entry of replication-protocol.md 14. The number is in the test's name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import DuplicateEntryIdError, LedgerClosedError, LedgerFencedError, NotEnoughBookiesError, WriteFailedError
from bk_core.protocol.effects import Complete, SendAdds
from bk_core.protocol.events import (
    AddReply,
    BookieLost,
    BookiesChanged,
    BookiesLookedFor,
    LedgerRead,
    LedgerWritten,
    Outcome,
    ReadReply,
    TimerFired,
)
from bk_core.protocol.ledger.metadata import Fragment, LedgerState
from bk_core.protocol.ledger.write.writer import ChangeWindow, EnsembleChangeMode, WriterOptions, WriterState
from bk_core.protocol.wire.messages import Status
from tests.unit.ledger.writer_script import WriterScript, tokens

WINDOWS = [ChangeWindow.BLOCK, ChangeWindow.SURVIVORS]


# --- present in the Java client (replication-protocol.md 14.1) --------------------------------------------------------


@pytest.mark.parametrize("window", WINDOWS)
def test_item_1_the_first_entry_of_the_new_fragment_is_not_overtaken_by_a_commit(window: ChangeWindow) -> None:
    """SM-1, EC-6, EC-8: the decision and the head are read in one step; no id at or above F commits with a departing bookie's answer."""
    script = WriterScript(options=WriterOptions(window=window)).append("t").append("u")
    script.ack("a", 0)
    write = script.append("v").lose("b").write
    assert write.metadata.last_fragment.first_entry_id == 0
    script.ack("b", 0).ack("ab", 1)
    assert script.done == []
    assert script.writer.last_add_confirmed < write.metadata.last_fragment.first_entry_id


def test_item_2_nothing_commits_inside_the_un_ack_loop() -> None:
    """EC-10, E = 4, Qw = Qa = 2: the head's write set misses the replaced position, the next entry is complete with a departing answer."""
    script = WriterScript((4, 2, 2), "abcde").append("h").append("n")  # h on a b, n on b c
    script.ack("bc", 1).ack("a", 0)
    script.append("s")  # on c d
    write = script.refuse("c", 2).write
    script.ack("b", 0)  # the head is complete inside the window
    script.stored(write)
    order = [
        (type(e), e.run.first_entry_id if isinstance(e, SendAdds) else e.token)
        for e in script.effects
        if isinstance(e, SendAdds | Complete)
    ]
    assert order == [(SendAdds, 1), (SendAdds, 2), (Complete, "h")]
    assert script.writer.last_add_confirmed == 0


def test_item_7_a_bookie_that_was_swapped_out_and_back_in_gets_the_entry() -> None:
    """EC-11, scenario 21, A -> X -> A: what is sent follows from what is missing, not from the difference of two lists."""
    script = WriterScript(bookies="abcx", add_timeout_ns=10).append("t").ack("a", 0)
    script.now = 1
    script.bookies = ["a", "b", "c", "x"]
    script.stored(script.lose("b").write)
    assert script.last_ensemble == "axc"
    script.now = 100  # b's failure is no longer fresh
    again = script.lose("x").write
    assert again.metadata.last_fragment.ensemble == ("a", "b", "c")
    assert script.stored(again).sent == [("b", 0)]
    assert script.ack("b", 0).done == [("t", 0)]


@pytest.mark.parametrize("close_in_recovery", [False, True])
def test_item_8_a_fenced_writer_and_a_ledger_in_recovery(close_in_recovery: bool) -> None:
    """D1 both ways: without the option the metadata stays IN_RECOVERY; with it the ledger is closed at the writer's end."""
    script = WriterScript(options=WriterOptions(close_in_recovery=close_in_recovery)).append("t").ack("ab", 0)
    write = script.do(script.writer.close("close", 0)).write
    script.conflict(write, script.writer.metadata.in_recovery())
    if not close_in_recovery:
        assert script.writes == []
        assert script.failed == [("close", LedgerFencedError)]
        return
    assert (script.write.metadata.state, script.write.metadata.last_entry_id) == (LedgerState.CLOSED, 0)


def test_item_10_an_acknowledged_id_is_taken_before_it_is_forced() -> None:
    """WR-2, WR-17: add id 0, acknowledged, add id 0 again before the force."""
    script = WriterScript(options=WriterOptions(caller_ids=True, deferred_sync=True)).append("t", b"one", at=0).ack("ab", 0)
    assert script.writer.last_add_confirmed == -1
    assert script.append("again", b"two", at=0).failed == [("again", DuplicateEntryIdError)]


def test_item_11_a_replaced_bookie_brings_no_fault_domain() -> None:
    """WR-7: an answer from rack A, its bookie is replaced, two from rack B: not complete."""
    domains = {"a": "A", "b": "B", "c": "B", "d": "B"}
    script = WriterScript(options=WriterOptions(fault_domains_min=2), domains=domains).append("t").append("u").ack("a", 0)
    script.stored(script.refuse("a", 1).write)
    assert script.last_ensemble == "dbc"
    assert script.ack("bcd", 0).done == []


def test_item_12_failures_of_the_whole_ensemble_are_heard() -> None:
    """WR-16, WR-17, E > Qw: explicit LAC goes to all E; a flush that all E answer badly is answered once, not never."""
    script = WriterScript((5, 2, 2), "abcde", options=WriterOptions(deferred_sync=True)).append("t").ack("ab", 0)
    script.do(script.writer.force("good", 0))
    for read in script.reads:
        script.feed(ReadReply(read.request, read.bookie, Status.OK))
    assert [bookie for bookie, _ in script.fire("explicit-lac").told] == list("abcde")
    script.append("u").ack("bc", 1)
    script.do(script.writer.force("bad", 0))
    for read in reversed(script.reads):
        script.feed(ReadReply(read.request, read.bookie, Status.IO_ERROR))
    assert script.failed == [("bad", WriteFailedError)]


def test_item_14_metadata_of_a_closed_ledger_does_not_raise_the_writers_lac() -> None:
    """WR-8, EC-9 row CLOSED, WR-12: closed at 2 by another, this writer had confirmed 0; its LAC stays, nothing is closed or compared."""
    script = WriterScript().append("t").ack("ab", 0).append("u", b"x", b"y")
    write = script.lose("c").write
    script.conflict(write, script.writer.metadata.closed(2, 3))
    assert script.writer.last_add_confirmed == 0
    assert script.failed == [("u", LedgerClosedError)]
    assert script.writes == []


# --- fixed in history (replication-protocol.md 14.2) ------------------------------------------------------------------


@pytest.mark.parametrize("by", ["change", "close"])
def test_r6_the_closed_state_of_a_recoverer_is_not_overwritten(by: str) -> None:
    """EC-9, CL-4, META-11."""
    script = WriterScript().append("t").ack("ab", 0).append("u")
    write = script.lose("b").write if by == "change" else script.do(script.writer.close("close", 0)).write
    script.conflict(write, script.writer.metadata.closed(4, 9))
    assert script.writes == []
    assert script.fire("metadata").effects == []
    assert script.writer.metadata.last_entry_id == 4


def test_r7_a_stalled_store_and_three_failures_in_a_row() -> None:
    """EC-3 delayed, META-11: nothing is acknowledged that has no Qa copies in the stored ensemble, however many failures follow."""
    options = WriterOptions(ensemble_change=EnsembleChangeMode.DELAYED)
    script = WriterScript((4, 4, 3), "abcdefghi", options=options).append("t")
    write = script.refuse("a", 0).refuse("b", 0).write
    script.refuse("c", 0)
    script.ack("d", 0).ack("ab", 0)  # late answers of the departing ones
    script.ack("efg", 0)  # bookies that nobody has stored yet
    assert script.done == []
    assert script.writer.metadata.fragments == (Fragment(0, ("a", "b", "c", "d")),)
    script.stored(write)
    assert script.last_ensemble == "efcd"
    assert script.ack("e", 0).done == []
    assert script.ack("f", 0).done == [("t", 0)]


def test_r8_a_failure_after_the_quorum_is_remembered() -> None:
    """WR-10: the bookie is replaced before the next entry, and the run that it never took is let go."""
    script = WriterScript().append("t").ack("ab", 0).lose("c")
    assert script.writer.unretired_bytes == 0
    assert script.append("u").write.metadata.last_fragment == Fragment(1, ("a", "b", "d"))


def test_r9_an_entry_that_the_change_does_not_touch_is_acknowledged_right_after_it() -> None:
    """EC-10 (3)."""
    script = WriterScript((4, 2, 2), "abcde").append("h").append("n")
    write = script.refuse("c", 1).write
    script.ack("ab", 0)
    assert script.done == []
    assert script.stored(write).done == [("h", 0)]


def test_r10_a_failure_report_about_a_replaced_bookie_holds_nothing_up() -> None:
    """EC-1."""
    script = WriterScript().append("t")
    script.stored(script.lose("b").write).append("u")
    script.ack("ad", 1)
    assert script.refuse("b", 0).effects == []
    assert script.lose("b").effects == []
    assert tokens(script.ack("ad", 0).done) == ["t", "u"]


def test_r14_several_failures_and_a_foreign_write_between() -> None:
    """EC-9, EC-15, scenarios 15, 16 and 20: each ends in another try, none in an error."""
    script = WriterScript(bookies="abcdefx").append("t")
    first = script.lose("a").write
    script.lose("b")
    found = replace(script.writer.metadata, fragments=(Fragment(0, ("a", "b", "x")),))
    second = script.conflict(first, found).write
    assert second.metadata.last_fragment.ensemble == ("c", "d", "x")
    again = script.conflict(second, replace(found, fragments=(Fragment(0, ("e", "f", "x")),)), version=6)
    assert again.writes == []
    assert sorted(again.sent) == [("e", 0), ("f", 0), ("x", 0)]
    assert script.ack("ef", 0).done == [("t", 0)]


def test_r25_adds_that_race_with_a_close_after_fenced_complete() -> None:
    """I-14, L-1: each exactly once, whatever state the handle is in."""
    script = WriterScript().append("t")
    write = script.do(script.writer.close("close", 0)).write
    script.append("u")
    script.conflict(write, script.writer.metadata.in_recovery())
    script.append("v")
    assert [token for token, _ in script.failed] == ["t", "u", "close", "v"]


@pytest.mark.parametrize("guaranteed", [False, True])
def test_r26_the_length_counts_what_is_in_the_ledger(guaranteed: bool) -> None:
    """CL-1, I-18, META-10: failed adds are taken off in the same step that fixes the end, in the middle of a run too."""
    script = WriterScript(guaranteed=guaranteed).append("t", b"1", b"22", b"333").append("u", b"4444").ack("abc", 0, 2)
    write = script.do(script.writer.close("close", 0, forced=True)).write
    assert (write.metadata.last_entry_id, write.metadata.length) == (1, 3)


def test_r27_a_second_close_does_not_succeed_early() -> None:
    """CL-5: both calls wait for the one result, good or bad."""
    script = WriterScript()
    write = script.do(script.writer.close("one", 0)).write
    assert script.do(script.writer.close("two", 0)).effects == []
    assert tokens(script.stored(write).done) == ["one", "two"]
    assert script.do(script.writer.close("three", 0)).done[-1][0] == "three"


@pytest.mark.parametrize("end", ["closed", "fenced", "failed", "abandoned"])
def test_r33_late_events_after_the_end_touch_nothing(end: str) -> None:
    """SM-2, SM-3, L-11: every kind of input, fired into a handle that is done."""
    script = WriterScript(guaranteed=end == "abandoned", bookies="abc").append("t")
    if end == "closed":
        script.stored(script.do(script.writer.close("close", 0)).write)
    elif end == "fenced":
        script.refuse("a", 0, Status.FENCED)
    elif end == "failed":
        script.writer.metadata = script.writer.metadata.in_recovery()
        script.refuse("a", 0, Status.UNAUTHORIZED)
    else:
        script.do(script.writer.abandon(0))
    state, lac, version = script.writer.state, script.writer.last_add_confirmed, script.writer.version
    found = script.writer.metadata
    late = [AddReply("a", 0, 1, Status.OK), AddReply("a", 0, 1, Status.IO_ERROR), AddReply("b", 0, 1, Status.FENCED), BookieLost("c")]
    late += [TimerFired(key) for key in ("tick", "metadata", "explicit-lac")]
    late += [LedgerWritten(n, Outcome.OK, 9) for n in range(4)] + [LedgerRead(n, Outcome.OK, found, 9) for n in range(4)]
    late += [ReadReply(1, "a", Status.OK), BookiesChanged(), BookiesLookedFor(1)]
    for event in late:
        assert script.feed(event).effects == [], event
    assert (script.writer.state, script.writer.last_add_confirmed, script.writer.version) == (state, lac, version)
    assert state is not WriterState.OPEN


def test_r37_ensemble_changes_are_bounded_and_dead_bookies_are_not_swapped_for_one_another() -> None:
    """EC-5: a budget for the life of the handle; and a bookie that failed a moment ago is no candidate."""
    script = WriterScript(bookies="abcdefgh", ensemble_changes_max=2).append("t")
    for bookie in "ad":
        script.stored(script.lose(bookie).write)
    script.lose("e")
    assert script.failed == [("t", WriteFailedError)]
    script = WriterScript(bookies="abcd").append("t")
    script.stored(script.lose("b").write).lose("d").looked()
    assert script.failed == [("t", NotEnoughBookiesError)]


def test_r37_a_bookie_that_was_restarted_is_a_candidate_at_once() -> None:
    """EC-6: it has registered anew since it failed. In a rolling restart it may be the only one that is left; another that came is none of
    its business."""
    script = WriterScript(bookies="abcd").append("t")
    script.stored(script.lose("b").write)
    script.feed(BookiesChanged(frozenset("xc")))
    script.feed(BookiesChanged(frozenset("b")))
    assert script.lose("d").write.metadata.last_fragment.ensemble == ("a", "b", "c")
