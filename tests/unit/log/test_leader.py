"""One leader, word by word: taking over, its end, and the scenarios 54 .. 56 of replication-protocol.md 13.3."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.errors import BkError, LogDataLossError, LogError, LogTakenOverError, NoSuchLogError
from bk_core.protocol.events import Outcome, TimerFired
from bk_core.protocol.log.effects import (
    Appended,
    AppendTo,
    CheckLeadership,
    CloseLedger,
    CreateLedger,
    DeleteLedger,
    ReadList,
    RecoverLedger,
    WriteList,
)
from bk_core.protocol.log.leader_state import LeaderState, Span
from tests.unit.log.talk import Lead

REFUSAL = BkError("refused")


# --- taking over ----------------------------------------------------------------------------------------------------


def test_taking_over_goes_step_by_step_and_serves_only_after_the_compare_and_set() -> None:
    """LOG-1, LOG-2: read, recover the last two (penultimate first), create, compare-and-set; no write is served before."""
    lead = Lead()
    lead.append("early")
    lead.reply(ReadList, ledgers=(5, 3, 8), version=7)
    assert [p.ledger_id for p in lead.pending] == [3]
    lead.reply(RecoverLedger, last_entry_id=4)
    assert [p.ledger_id for p in lead.pending] == [8]
    lead.reply(RecoverLedger, last_entry_id=-1)
    created = lead.reply(CreateLedger, ledger_id=2)
    assert created.tags == {"application": b"bk_core", "log": b"flights", "epoch": b"7"}  # LOG-9
    write = lead.find(WriteList)
    assert (write.ledgers, write.version) == ((5, 3, 8, 2), 7)
    assert not lead.asks(AppendTo) and lead.done == {}
    lead.reply(WriteList, version=8)
    assert lead.done == {"open": 2}
    assert lead.find(AppendTo).payloads == ("early",)


@pytest.mark.parametrize(("listed", "recovered"), [((), []), ((4,), [4]), ((1, 2), [1, 2]), ((1, 2, 3, 4), [3, 4])])
def test_fewer_ledgers_if_the_list_is_shorter(listed: tuple[int, ...], recovered: list[int]) -> None:
    """LOG-1, LOG-2."""
    lead = Lead()
    lead.reply(ReadList, ledgers=listed, version=1)
    seen = []
    while lead.asks(RecoverLedger):
        seen.append(lead.reply(RecoverLedger).ledger_id)
    assert seen == recovered and lead.asks(CreateLedger)


def test_a_conflict_deletes_the_new_ledger_and_starts_again_after_a_pause_and_a_look_at_the_election() -> None:
    """LOG-3, LOG-4, META-14."""
    lead = Lead()
    lead.up_to_listing((1,), 3, 9)
    lead.reply(WriteList, Outcome.CONFLICT)
    lead.reply(ReadList, ledgers=(1, 7), version=4)
    assert lead.deleted == [9]
    assert lead.timers == {"round": 37_500_000}  # 50 ms times 0.75
    lead.fire("round")
    lead.reply(CheckLeadership, leading=True)
    lead.reply(ReadList, ledgers=(1, 7), version=4)
    assert lead.find(RecoverLedger).ledger_id == 1
    lead.recover_all()
    lead.reply(CreateLedger, ledger_id=10)
    assert lead.reply(WriteList, version=5).ledgers == (1, 7, 10)
    assert lead.done == {"open": 10}


def test_a_ledger_that_was_listed_and_sealed_meanwhile_stays() -> None:
    """LOG-9: the answer to its listing was lost, and by the next look others have pushed it out of the list's tail into the history."""
    lead = Lead()
    lead.up_to_listing((1,), 3, 9)
    lead.reply(WriteList, Outcome.UNKNOWN)
    lead.fire("list")
    lead.reply(WriteList, Outcome.CONFLICT)
    lead.reply(ReadList, ledgers=(20, 21), version=40)
    assert lead.deleted == []
    lead.fire("round")
    lead.reply(CheckLeadership, leading=True)
    lead.up_to_listing((20, 21), 40, 22)
    lead.reply(WriteList, Outcome.CONFLICT)
    lead.reply(ReadList, ledgers=(20, 21, 30), version=41)
    assert lead.deleted == [22]  # another ledger, and no attempt of this one is in doubt


def test_pauses_grow_and_rounds_end() -> None:
    """LOG-4: safety needs no election and no luck; patience ends."""
    lead, pauses = Lead(rounds_max=4, backoff_ns=100, backoff_max_ns=300), []
    for version in range(4):
        lead.up_to_listing((1,), version, 20 + version)
        lead.reply(WriteList, Outcome.CONFLICT)
        lead.reply(ReadList, ledgers=(1, 99), version=version + 1)
        if "round" in lead.timers:
            pauses.append(lead.timers["round"])
            lead.fire("round")
            lead.reply(CheckLeadership, leading=True)
    assert pauses == [75, 150, 225]
    assert isinstance(lead.failed["open"], LogTakenOverError)
    assert lead.deleted == [20, 21, 22, 23]


def test_a_lost_election_ends_the_attempt() -> None:
    """LOG-3, LOG-4."""
    lead = Lead()
    lead.up_to_listing()
    lead.reply(WriteList, Outcome.CONFLICT)
    lead.reply(ReadList, ledgers=(7,), version=4)
    lead.fire("round")
    lead.reply(CheckLeadership, leading=False)
    assert isinstance(lead.failed["open"], LogTakenOverError) and lead.machine.state is LeaderState.ABDICATED


def test_an_unknown_outcome_is_repeated_identically_and_recognised_as_our_own() -> None:
    """LOG-3, META-12, scenario 18: UNKNOWN, identical request, CONFLICT; our id is the last element, so it was ours."""
    lead = Lead()
    lead.up_to_listing((1,), 3, 9)
    first = lead.reply(WriteList, Outcome.UNKNOWN)
    lead.fire("list")
    again = lead.reply(WriteList, Outcome.CONFLICT)
    assert (again.ledgers, again.version) == (first.ledgers, first.version)
    lead.reply(ReadList, ledgers=(1, 9), version=4)
    assert lead.done == {"open": 9} and lead.deleted == []
    assert (lead.machine.ledgers, lead.machine.version) == ((1, 9), 4)


def test_a_stale_list_does_not_decide_whose_ledger_is_last() -> None:
    """META-11: after the conflict only a newer list counts, or a listed ledger might be deleted."""
    lead = Lead()
    lead.up_to_listing((1,), 3, 9)
    lead.reply(WriteList, Outcome.CONFLICT)
    lead.reply(ReadList, ledgers=(1,), version=3)
    assert lead.deleted == []
    lead.fire("list")
    lead.reply(ReadList, ledgers=(1, 9), version=4)
    assert lead.done == {"open": 9}


def test_our_ledger_listed_with_another_behind_it_is_not_deleted() -> None:
    """LOG-3, LOG-I5: it is part of the log now; start over and recover it."""
    lead = Lead()
    lead.up_to_listing((1,), 3, 9)
    lead.reply(WriteList, Outcome.UNKNOWN)
    lead.fire("list")
    lead.reply(WriteList, Outcome.CONFLICT)
    lead.reply(ReadList, ledgers=(1, 9, 12), version=5)
    assert lead.deleted == [] and lead.done == {}
    lead.fire("round")
    lead.reply(CheckLeadership, leading=True)
    lead.reply(ReadList, ledgers=(1, 9, 12), version=5)
    assert lead.find(RecoverLedger).ledger_id == 9


def test_an_undecidable_recovery_waits_and_nothing_is_appended_past_it() -> None:
    """LOG-3: stay at step 2."""
    lead = Lead()
    lead.reply(ReadList, ledgers=(1, 2), version=3)
    for _ in range(3):
        assert lead.reply(RecoverLedger, Outcome.UNKNOWN).ledger_id == 1
        assert not lead.asks(CreateLedger) and not lead.asks(RecoverLedger)
        lead.fire("recover")
    lead.recover_all()
    assert lead.asks(CreateLedger)


def test_a_missing_last_ledger_is_an_alarm() -> None:
    """LOG-5: still listed as last."""
    lead = Lead(missing_penultimate_is_closed=True)
    lead.reply(ReadList, ledgers=(1, 2), version=3)
    lead.reply(RecoverLedger)
    lead.reply(RecoverLedger, Outcome.NO_SUCH_LEDGER)
    lead.reply(ReadList, Outcome.UNKNOWN)
    lead.fire("list")
    lead.reply(ReadList, ledgers=(1, 2), version=3)
    assert isinstance(lead.failed["open"], LogDataLossError) and lead.machine.state is LeaderState.FAILED
    assert lead.failed["open"].context == {"log": "flights", "ledger": 2}
    assert not lead.asks(CreateLedger)


@pytest.mark.parametrize("configured", [False, True])
def test_a_missing_penultimate_ledger_is_an_alarm_unless_configured(configured: bool) -> None:
    """LOG-5."""
    lead = Lead(missing_penultimate_is_closed=configured)
    lead.reply(ReadList, ledgers=(1, 2), version=3)
    lead.reply(RecoverLedger, Outcome.NO_SUCH_LEDGER)
    lead.reply(ReadList, ledgers=(1, 2), version=3)
    if configured:
        assert lead.find(RecoverLedger).ledger_id == 2
    else:
        assert isinstance(lead.failed["open"], LogDataLossError)


def test_a_ledger_trimmed_during_the_take_over_is_no_alarm() -> None:
    """LOG-5, LOG-14, scenario 57: unlisted by now, so stop recovering it quietly and begin with the new list."""
    lead = Lead()
    lead.reply(ReadList, ledgers=(1, 2), version=3)
    lead.reply(RecoverLedger, Outcome.NO_SUCH_LEDGER)
    lead.reply(ReadList, ledgers=(2,), version=4)
    assert lead.failed == {} and [p.ledger_id for p in lead.pending] == [2]
    lead.recover_all()
    lead.reply(CreateLedger, ledger_id=9)
    assert lead.find(WriteList).version == 4


@pytest.mark.parametrize(
    ("step", "outcome", "error"),
    [
        ("list", Outcome.NO_SUCH_LEDGER, NoSuchLogError),
        ("list", Outcome.REFUSED, BkError),
        ("recover", Outcome.REFUSED, BkError),
        ("create", Outcome.REFUSED, BkError),
        ("write", Outcome.REFUSED, BkError),
        ("write", Outcome.NO_SUCH_LEDGER, NoSuchLogError),
    ],
)
@pytest.mark.parametrize("given", [REFUSAL, None])
def test_what_cannot_be_done_ends_the_take_over(step: str, outcome: Outcome, error: type[BkError], given: BkError | None) -> None:
    """LOG-1; LOG-9: a new ledger that was definitely not listed is deleted."""
    lead = Lead()
    if step == "list":
        lead.reply(ReadList, outcome, error=given)
    else:
        lead.reply(ReadList, ledgers=(1,), version=3)
        if step == "recover":
            lead.reply(RecoverLedger, outcome, error=given)
        else:
            lead.recover_all()
            if step == "create":
                lead.reply(CreateLedger, outcome, error=given)
            else:
                lead.reply(CreateLedger, ledger_id=9)
                lead.reply(WriteList, outcome, error=given)
                assert lead.deleted == [9]
    assert isinstance(lead.failed["open"], error) and lead.machine.state is LeaderState.FAILED
    if error is BkError:
        assert (lead.failed["open"] is REFUSAL) is (given is REFUSAL)


def test_a_refusal_after_an_unknown_outcome_leaves_the_ledger_alone() -> None:
    """META-13: only OK or CONFLICT ends the earlier attempt; it may yet list the ledger, so that must not be deleted (LOG-9)."""
    lead = Lead()
    lead.up_to_listing()
    lead.reply(WriteList, Outcome.UNKNOWN)
    lead.fire("list")
    lead.reply(WriteList, Outcome.REFUSED, error=REFUSAL)
    assert lead.failed == {"open": REFUSAL} and lead.deleted == []


def test_a_creation_of_unknown_outcome_leaves_at_most_an_orphan() -> None:
    """LOG-9, CR-8."""
    lead = Lead()
    lead.reply(ReadList, ledgers=(), version=0)
    lead.reply(CreateLedger, Outcome.UNKNOWN)
    lead.fire("create")
    lead.reply(CreateLedger, ledger_id=9)
    assert lead.find(WriteList).ledgers == (9,)


def test_a_list_that_cannot_be_read_for_a_while_is_read_again() -> None:
    lead = Lead()
    lead.reply(ReadList, Outcome.UNKNOWN)
    lead.fire("list")
    lead.serve()
    lead = Lead()
    lead.up_to_listing()
    lead.reply(WriteList, Outcome.CONFLICT)
    lead.reply(ReadList, Outcome.UNKNOWN)
    lead.fire("list")
    lead.reply(ReadList, Outcome.REFUSED, error=REFUSAL)
    assert lead.failed == {"open": REFUSAL} and lead.deleted == []


# --- calls at the wrong time, and the end ----------------------------------------------------------------------------


def test_calls_that_make_no_sense_are_refused() -> None:
    lead = Lead()
    lead.roll("too early")
    lead.append()
    assert isinstance(lead.failed["too early"], LogError) and isinstance(lead.failed[""], LogError)
    lead.serve()
    lead.close()
    lead.append("a")
    lead.roll()
    assert set(lead.failed) == {"too early", "", "a", "roll"}
    with pytest.raises(AssertionError):
        lead.machine.open("again", 0)


def test_closing_writes_what_was_appended_then_closes_the_ledger() -> None:
    """LOG-8."""
    lead = Lead()
    lead.append("a")
    lead.close()
    lead.serve((), 3, 9)
    assert not lead.asks(CloseLedger)
    lead.reply(AppendTo)
    lead.reply(CloseLedger, last_entry_id=0)
    assert lead.done == {"open": 9, "a": (Span(9, 0, 0),), "close": None} and lead.machine.state is LeaderState.CLOSED
    lead.close("again")
    assert isinstance(lead.failed["again"], LogError)


def test_closing_waits_for_a_roll_and_closes_the_ledger_that_follows() -> None:
    lead = Lead().serve((), 3, 9)
    lead.roll_to_drain(10)
    lead.close()
    assert lead.reply(CloseLedger).ledger_id == 9
    assert lead.reply(CloseLedger).ledger_id == 10
    assert lead.done == {"open": 9, "roll": 10, "close": None}


def test_closing_a_ledger_that_failed_needs_no_new_one_when_nothing_is_left() -> None:
    lead = Lead().serve()
    lead.append("a")
    lead.close()
    lead.reply(AppendTo, Outcome.UNKNOWN)
    lead.reply(RecoverLedger, last_entry_id=0)
    assert lead.done["a"] == (Span(9, 0, 0),) and "close" in lead.done and not lead.asks(CreateLedger)


def test_answers_and_timers_that_nobody_waits_for_do_nothing() -> None:
    """SM-3."""
    lead = Lead().serve()
    assert lead.machine.handle(TimerFired("close"), 0) == []
    assert lead.machine.handle(Appended(12345, Outcome.CONFLICT), 0) == []
    assert lead.machine.state is LeaderState.SERVING


def test_a_leader_may_be_given_up_at_any_time() -> None:
    """Every call fails with the error given; what is being created is deleted when it is there, what may be listed stays (META-13)."""
    error = BkError("too late")
    lead = Lead()
    lead.append("early")
    lead.reply(ReadList, ledgers=(), version=3)
    lead.take(lead.machine.abandon(error, 0))
    assert lead.failed == {"open": error, "early": error} and lead.machine.state is LeaderState.FAILED
    lead.reply(CreateLedger, ledger_id=9)
    assert lead.deleted == [9]
    listing = Lead()
    listing.up_to_listing()
    listing.take(listing.machine.abandon(error, 0))
    listing.reply(WriteList, version=4)
    assert listing.failed == {"open": error} and listing.deleted == []
    for machine in (lead.machine, listing.machine):
        assert machine.abandon(BkError("again"), 0) == [] and machine.error is error
    listing.append("later")
    assert listing.failed["later"] is error


def test_payloads_are_kept_as_they_are_and_sliced() -> None:
    """A run in one buffer goes through without becoming an object per entry; a list, which its caller may change, is copied."""

    class Whole(tuple[str, ...]):
        def __getitem__(self, index: Any) -> Any:
            return Whole(super().__getitem__(index))

    lead = Lead().serve()
    whole, listed = Whole("abc"), ["d"]
    lead.take(lead.machine.append(whole, "whole", 0))
    lead.take(lead.machine.append(listed, "listed", 0))
    assert [p.payloads for p in lead.pending if isinstance(p, AppendTo)] == [whole, ("d",)]
    assert lead.find(AppendTo).payloads is whole
    lead.reply(AppendTo, Outcome.UNKNOWN)
    lead.reply(RecoverLedger, last_entry_id=0)
    lead.reply(CreateLedger, ledger_id=10)
    lead.reply(WriteList, version=5)
    rest = lead.find(AppendTo, ledger_id=10).payloads
    assert isinstance(rest, Whole) and rest == ("b", "c")


# --- scenarios ------------------------------------------------------------------------------------------------------


def test_scenario_54_a_leader_dies_between_listing_and_closing() -> None:
    """LOG-2: A has appended 10 and not closed 9 when it dies. B recovers both before it writes, so the order is preserved."""
    a = Lead().serve((), 3, 9)
    a.append("a")
    a.roll_to_drain(10)
    b = Lead()
    b.reply(ReadList, ledgers=(9, 10), version=5)
    assert b.reply(RecoverLedger, last_entry_id=0).ledger_id == 9
    assert b.reply(RecoverLedger, last_entry_id=-1).ledger_id == 10
    b.append("b")
    b.reply(CreateLedger, ledger_id=11)
    assert not b.asks(AppendTo)
    assert b.reply(WriteList, version=6).ledgers == (9, 10, 11)
    assert b.find(AppendTo).ledger_id == 11
    a.reply(AppendTo)  # the acknowledgement that was in A's inbox: for an entry B has read (LOG-I4)
    assert a.done["a"] == (Span(9, 0, 0),)
    a.reply(CloseLedger, Outcome.CONFLICT)
    assert a.machine.state is LeaderState.ABDICATED


def test_scenario_55_two_leaders_take_over_at_once() -> None:
    """LOG-3, LOG-9: one compare-and-set wins; the loser's ledger is unlisted, empty and deleted, and it starts again."""
    a, b = Lead(), Lead()
    for lead, new in ((a, 20), (b, 21)):
        lead.append(f"by {new}")
        lead.up_to_listing((1, 2), 3, new)
    a.reply(WriteList, version=4)
    b.reply(WriteList, Outcome.CONFLICT)
    b.reply(ReadList, ledgers=(1, 2, 20), version=4)
    assert a.machine.state is LeaderState.SERVING and b.machine.state is LeaderState.TAKING_OVER
    assert b.deleted == [21] and not b.asks(AppendTo)
    b.fire("round")
    b.reply(CheckLeadership, leading=True)
    b.reply(ReadList, ledgers=(1, 2, 20), version=4)
    assert [b.reply(RecoverLedger).ledger_id for _ in range(2)] == [2, 20]  # A's ledger is fenced now
    a.reply(AppendTo, Outcome.CONFLICT)
    assert isinstance(a.failed["by 20"], LogTakenOverError)


def test_scenario_56_no_second_roll_while_the_old_ledger_does_not_close() -> None:
    """LOG-7: 10 is listed while closing 9 keeps failing; 11 is refused, or three ledgers could be writable."""
    lead = Lead().serve((), 3, 9)
    lead.roll_to_drain(10)
    for attempt in range(3):
        lead.reply(CloseLedger, Outcome.UNKNOWN)
        lead.roll(f"second {attempt}")
        assert isinstance(lead.failed[f"second {attempt}"], LogError)
        assert not lead.asks(CreateLedger)
        lead.fire("close")
    lead.reply(CloseLedger)
    lead.roll("second")
    assert lead.asks(CreateLedger) and not lead.asks(DeleteLedger)
