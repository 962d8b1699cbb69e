"""The choices of who opens a ledger: ids, deferred sync, timeouts, busy bookies, fault domains (replication-protocol.md 3)."""

from __future__ import annotations

import pytest

from bk_core.errors import (
    AddQuorumTimeoutError,
    DuplicateEntryIdError,
    InvalidArgumentError,
    LedgerClosedError,
    LedgerFencedError,
    UnauthorizedError,
    WriteFailedError,
)
from bk_core.protocol.events import ReadReply
from bk_core.protocol.ledger.metadata import Fragment, LedgerState
from bk_core.protocol.ledger.write.writer import EnsembleChangeMode, WriterOptions, WriterState
from bk_core.protocol.wire.messages import ForceLedgerRequest, Status
from tests.unit.ledger.writer_script import SECOND, WriterScript, tokens

CALLER_IDS = WriterOptions(caller_ids=True)
DEFERRED = WriterOptions(deferred_sync=True)


# --- caller-chosen ids -----------------------------------------------------------------------------------------------


def test_ids_may_come_in_any_order_and_are_acknowledged_without_gaps() -> None:
    """WR-2, WR-8: what is above a gap waits for the gap."""
    script = WriterScript(options=CALLER_IDS).append("five", at=5).append("zero", b"0", b"1", at=0)
    script.ack("ab", 5).ack("ab", 0, 2)
    assert script.done == [("zero", 1)]
    assert not script.writer.idle
    script.append("rest", b"2", b"3", b"4", at=2).ack("ac", 2, 3)
    assert script.done == [("zero", 1), ("rest", 4), ("five", 5)]
    assert script.append("next").sent[0] == ("a", 6)


@pytest.mark.parametrize("at", [0, 2, 3])
def test_an_id_in_use_is_refused(at: int) -> None:
    """WR-2: acknowledged, or queued, wholly or in part; nothing is sent and the length stays."""
    script = WriterScript(options=CALLER_IDS).append("t", b"0", b"1", at=0).ack("ab", 0, 2).append("u", b"3", b"4", at=3)
    script.append("again", b"x", b"y", at=at)
    assert script.failed == [("again", DuplicateEntryIdError)]
    assert script.sent == []
    assert (script.writer.last_add_pushed, script.writer.length) == (4, 4)


def test_the_writer_counts_unless_told_otherwise() -> None:
    """WR-1, WR-2: an id needs the option and 63 bits."""
    assert WriterScript().append("t", at=0).failed == [("t", InvalidArgumentError)]
    script = WriterScript(options=CALLER_IDS)
    for wrong in (-1, 2**63 - 2):
        assert script.append("t", b"x", b"y", at=wrong).failed.pop() == ("t", InvalidArgumentError)
    script.append("high", b"x", b"y", at=2**63 - 3)
    assert script.sent == [(b, 2**63 - 3) for b in "abc"]


def test_a_close_fails_what_waits_above_a_gap() -> None:
    """CL-1, WR-2, META-10: the length is that of the entries that are there."""
    script = WriterScript(options=CALLER_IDS).append("t", b"four", at=0).append("u", b"seven77", at=2).ack("ab", 0).ack("ab", 2)
    script.do(script.writer.close("close", 0))
    assert script.failed == [("u", LedgerClosedError)]
    assert (script.write.metadata.last_entry_id, script.write.metadata.length) == (0, 4)


def test_a_close_of_a_guaranteed_ledger_does_not_wait_for_a_gap() -> None:
    """G-11, WR-2, L-5, I-14: it waits for what is below, which completes before what is above fails; nothing is admitted any more."""
    script = WriterScript(guaranteed=True, options=CALLER_IDS).append("t", b"four", at=0).append("u", b"seven77", at=2)
    script.ack("abc", 2).ack("ab", 0)
    script.do(script.writer.close("close", 0))
    assert script.failed == [] and script.writes == []
    script.ack("c", 0)
    assert (script.done, script.failed) == ([("t", 0)], [("u", LedgerClosedError)])
    metadata = script.write.metadata
    assert (metadata.last_entry_id, metadata.length, metadata.sealed) == (0, 4, True)


# --- deferred sync ---------------------------------------------------------------------------------------------------


def force(script: WriterScript, token: str = "force") -> list[ReadReply]:
    """The good answers to a force."""
    script.do(script.writer.force(token, script.now))
    assert all(isinstance(e.message, ForceLedgerRequest) and e.message.request_id == e.request for e in script.reads)
    return [ReadReply(e.request, e.bookie, Status.OK) for e in script.reads]


def test_acknowledged_is_not_confirmed_until_a_force() -> None:
    """WR-17: adds complete at Qa, the LAC moves when all E bookies have forced, to where the head was when the force began."""
    script = WriterScript((4, 2, 2), "abcd", options=DEFERRED).append("t")
    assert all(e.run.deferred_sync for e in script.effects if hasattr(e, "run"))
    script.ack("ab", 0)
    assert (script.done, script.writer.acknowledged_head, script.writer.last_add_confirmed) == ([("t", 0)], 0, -1)
    answers = force(script)
    assert [a.bookie for a in answers] == ["a", "b", "c", "d"]
    script.append("u").ack("bc", 1)
    for answer in answers[:3]:
        assert script.feed(answer).effects == []
    assert script.feed(answers[2]).effects == []  # twice is once
    script.feed(answers[3])
    assert script.done[-1] == ("force", 0)
    assert script.timers == ["explicit-lac"]
    assert (script.writer.acknowledged_head, script.writer.last_add_confirmed) == (1, 0)
    assert script.append("v").writer.last_add_confirmed == 0


def test_with_deferred_sync_the_first_silent_bookie_ends_the_writing() -> None:
    """WR-17, WR-6: two timeouts of one look at the clock are one end."""
    script = WriterScript(options=DEFERRED).append("t").tick(10 * SECOND)
    assert script.failed == [("t", WriteFailedError)]
    assert len(script.writes) == 1


def test_forces_may_finish_in_any_order() -> None:
    """WR-17: LAC := max(LAC, h)."""
    script = WriterScript(options=DEFERRED).append("t").ack("ab", 0)
    first = force(script, "first")
    script.append("u").ack("ab", 1)
    second = force(script, "second")
    for answer in second + first:
        script.feed(answer)
    assert script.done[-2:] == [("second", 1), ("first", 1)]
    assert script.writer.last_add_confirmed == 1


def test_a_failed_or_silent_force_ends_the_writing() -> None:
    """WR-17, WR-12: the force fails with it, what was not forced is not part of the ledger, and a later answer changes nothing."""
    script = WriterScript(options=DEFERRED).append("t", b"four").ack("ab", 0)
    for answer in force(script, "good"):
        script.feed(answer)
    script.append("u", b"seven77").ack("ab", 1)
    answers = force(script)
    script.feed(answers[0])
    script.feed(ReadReply(answers[1].request, "b", Status.TIMEOUT))
    assert script.failed == [("force", WriteFailedError)]
    assert (script.write.metadata.last_entry_id, script.write.metadata.length) == (0, 4)
    assert script.feed(answers[2]).effects == []
    assert script.do(script.writer.force("late", 0)).failed[-1] == ("late", WriteFailedError)


@pytest.mark.parametrize("late", [False, True])
def test_deferred_sync_admits_no_ensemble_change(late: bool) -> None:
    """WR-17: any failure of any bookie is WR-12, a late one too."""
    script = WriterScript(options=DEFERRED).append("t")
    if late:
        script.ack("ab", 0)
    script.lose("c")
    assert script.write.metadata.state is LedgerState.CLOSED
    assert script.write.metadata.fragments == (Fragment(0, ("a", "b", "c")),)
    assert script.failed == ([] if late else [("t", WriteFailedError)])


@pytest.mark.parametrize("acknowledged_by", ["abc", "a"])
def test_a_bookie_lost_before_the_force_ends_the_writing(acknowledged_by: str) -> None:
    """WR-17: nothing waits for it, but it may come back without what it had not synced and answer OK to a force of that."""
    script = WriterScript(options=DEFERRED).append("t").ack(acknowledged_by, 0).lose("a")
    assert script.write.metadata.last_entry_id == -1
    script.do(script.writer.force("force", script.now))
    assert script.reads == [] and script.failed[-1] == ("force", WriteFailedError)


def test_a_bookie_lost_after_the_force_may_come_back() -> None:
    """WR-17: everything it answered OK to is durable."""
    script = WriterScript(options=DEFERRED).append("t").ack("abc", 0)
    for answer in force(script):
        script.feed(answer)
    assert script.lose("a").effects == []
    assert script.append("u").ack("ab", 1).done[-1] == ("u", 1)


def test_a_force_of_what_is_durable_sends_nothing() -> None:
    """WR-17: without deferred sync everything acknowledged is durable."""
    script = WriterScript().append("t").ack("ab", 0)
    assert force(script) == []
    assert script.done[-1] == ("force", 0)


def test_a_recovery_never_defers() -> None:
    """WR-17, RC-13."""
    script = WriterScript(options=DEFERRED, frozen_lac=-1).append("t")
    assert not any(e.run.deferred_sync for e in script.effects if hasattr(e, "run"))
    assert script.ack("ab", 0).writer.last_add_confirmed == 0


# --- time ------------------------------------------------------------------------------------------------------------


def test_an_entry_may_not_wait_for_its_quorum_for_ever() -> None:
    """WR-14, WR-12: counted from the first send, whatever was sent again; the ledger is closed at LAC."""
    options = WriterOptions(quorum_timeout_ns=10 * SECOND)
    script = WriterScript(bookies="abcdefgh", options=options, add_timeout_ns=4 * SECOND).append("t").ack("ab", 0).append("u")
    for _ in range(2):
        script.tick(4 * SECOND)
        script.stored(script.write)
    assert script.failed == []
    script.tick(2 * SECOND)
    assert script.failed == [("u", AddQuorumTimeoutError)]
    assert (script.write.metadata.state, script.write.metadata.last_entry_id) == (LedgerState.CLOSED, 0)


def test_the_quorum_timeout_is_looked_at_in_time() -> None:
    """WR-14: also when it is shorter than the bookies' timeout."""
    script = WriterScript(options=WriterOptions(quorum_timeout_ns=8)).append("t")
    assert script.effects[-1].after_ns == 2  # type: ignore[union-attr]
    assert script.tick(7).failed == []
    assert script.tick(1).failed == [("t", AddQuorumTimeoutError)]


# --- busy bookies ----------------------------------------------------------------------------------------------------


def test_a_busy_bookie_is_sent_the_entry_again_a_few_times() -> None:
    """WR-6: with a growing pause, then it counts as failed."""
    script = WriterScript(options=WriterOptions(busy_resends_max=2), add_retry_ns=1000).append("t")
    for pause in (1000, 2000):
        assert script.refuse("b", 0, Status.TOO_MANY_REQUESTS).writes == []
        assert script.tick(pause - 1).sent == []
        assert script.tick(1).sent == [("b", 0)]
    assert script.refuse("b", 0, Status.TOO_MANY_REQUESTS).write.metadata.last_fragment.ensemble == ("a", "d", "c")


def test_a_bookie_that_takes_the_entry_is_no_longer_busy() -> None:
    """WR-6: the count starts again; entries that are on their way are not sent twice."""
    script = WriterScript(options=WriterOptions(busy_resends_max=1), add_retry_ns=1000).append("t").append("u")
    for entry in (0, 1):
        assert script.refuse("b", entry, Status.TOO_MANY_REQUESTS).writes == []
        assert script.tick(1000).sent == [("b", entry)]
        script.ack("b", entry)


# --- fault domains ---------------------------------------------------------------------------------------------------


def test_an_ack_quorum_must_span_the_domains_asked_for() -> None:
    """WR-7, optional predicate: two acknowledgements of one rack are not enough."""
    script = WriterScript(options=WriterOptions(fault_domains_min=2), domains={"a": "r", "b": "r", "c": "s"}).append("t")
    assert script.ack("ab", 0).done == []
    assert script.ack("c", 0).done == [("t", 0)]


def test_domains_in_the_window_are_those_of_the_survivors() -> None:
    """WR-7, EC-8 b: a departing bookie brings no domain."""
    options = WriterOptions(fault_domains_min=2, window=None)
    script = WriterScript((4, 4, 2), "abcdef", guaranteed=True, options=options, domains={"a": "r", "b": "r"}).append("t").lose("c")
    assert script.ack("abc", 0).done == []
    assert script.ack("d", 0).done == [("t", 0)]


def test_delayed_a_bookie_is_replaced_when_no_other_domain_is_left() -> None:
    """EC-3, WR-7: one failure leaves an ack quorum within reach, but all of it in one rack; a failure beside it changes nothing."""
    options = WriterOptions(fault_domains_min=2, ensemble_change=EnsembleChangeMode.DELAYED)
    domains = {"a": "r", "b": "r", "c": "s", "d": "s"}
    script = WriterScript(options=options, domains=domains).append("t").ack("b", 0).refuse("a", 0)
    assert script.writes == []
    script = WriterScript(options=options, domains=domains).append("t").ack("ab", 0).refuse("c", 0)
    assert script.write.metadata.last_fragment == Fragment(0, ("a", "b", "d"))
    script.stored(script.write).ack("d", 0)
    assert script.done == [("t", 0)]


# --- answers that end the writing ------------------------------------------------------------------------------------


def test_a_wrong_key_ends_the_writing() -> None:
    """WR-6, WR-12: closed at LAC; about an entry that is committed already it is only noted."""
    script = WriterScript().append("t").ack("ab", 0)
    script.refuse("c", 0, Status.UNAUTHORIZED)
    assert "already committed" in script.logs[-1]
    script.append("u").refuse("c", 1, Status.UNAUTHORIZED)
    assert script.failed == [("u", UnauthorizedError)]
    assert script.write.metadata.last_entry_id == 0
    assert "secret" not in str(script.writer.error)


def test_fenced_by_a_bookie_of_the_past_is_dropped() -> None:
    """WR-6, SM-3: it holds no position any more."""
    script = WriterScript().append("t")
    script.stored(script.lose("b").write)
    assert script.refuse("b", 0, Status.FENCED).effects == []
    assert script.refuse("c", 0, Status.FENCED).failed == [("t", LedgerFencedError)]
    assert script.writer.state is WriterState.FENCED


def test_fenced_after_the_commit_is_terminal_too() -> None:
    """WR-6, WR-11."""
    script = WriterScript().append("t").ack("ab", 0).refuse("c", 0, Status.FENCED)
    assert script.writer.state is WriterState.FENCED
    assert script.writes == []


# --- explicit LAC ----------------------------------------------------------------------------------------------------


def test_the_explicit_lac_goes_to_the_whole_ensemble_once() -> None:
    """WR-16: all E bookies, not only the last write set; not again, and not if an add has carried it."""
    script = WriterScript((4, 2, 2), "abcd").append("t").ack("ab", 0)
    assert script.timers == ["explicit-lac"]
    assert script.fire("explicit-lac").told == [("a", 0), ("b", 0), ("c", 0), ("d", 0)]
    assert script.fire("explicit-lac").effects == []
    script.append("u").ack("bc", 1)
    script.append("v")  # packaged with LAC 1
    assert script.fire("explicit-lac").effects == []
    assert tokens(script.done) == ["t", "u"]


def test_options_default_to_the_rule_book() -> None:
    """EC-3, D8, D1: immediate, blocking (survivors with the guarantee), and the recoverer closes."""
    options = WriterOptions()
    assert (options.ensemble_change, options.window, options.close_in_recovery) == (EnsembleChangeMode.IMMEDIATE, None, False)


def test_a_bookie_that_is_waited_for_is_said_to_have_failed_once() -> None:
    """EC-3: every append meets it again, and fills nobody's log. What it answers, and how it fails then, is news."""
    script = WriterScript(bookies="abc", options=WriterOptions(ensemble_change=EnsembleChangeMode.DELAYED))
    for entry in range(10):
        script.append(entry).lose("c").ack("ab", entry).tick(SECOND)
    assert script.logs == ["ledger 7: bookie c failed (UNAVAILABLE)"]
    script.append(10).ack("abc", 10).tick(SECOND).append(11).lose("c").tick(SECOND).append(12).lose("c")
    assert script.logs == ["ledger 7: bookie c failed (UNAVAILABLE)"] * 2
