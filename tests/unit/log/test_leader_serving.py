"""One leader that serves, word by word: entries, ledgers that fail under it, rolling."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.errors import BkError, LogDataLossError, LogTakenOverError
from bk_core.protocol.events import Outcome
from bk_core.protocol.log.effects import (
    Appended,
    AppendTo,
    CheckLedger,
    CloseLedger,
    CreateLedger,
    ReadList,
    RecoverLedger,
    WriteList,
)
from bk_core.protocol.log.leader_state import Health, LeaderState, Roll, Span
from tests.unit.log.talk import Lead

REFUSAL = BkError("refused")


# --- writing --------------------------------------------------------------------------------------------------------


def test_entries_are_acknowledged_in_order_with_their_ledger() -> None:
    """LOG-21, LOG-10: the order of the log is (ledger, entry); a position names both."""
    lead = Lead().serve()
    lead.append("a", "b")
    lead.append("c")
    second = lead.find(AppendTo, first_entry_id=2)
    lead.pending.remove(second)
    lead.take(lead.machine.handle(Appended(second.request, Outcome.OK), 0))
    assert lead.done == {"open": 9}
    lead.reply(AppendTo)
    assert lead.done == {"open": 9, "a": (Span(9, 0, 1),), "c": (Span(9, 2, 2),)}


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.UNKNOWN, Outcome.CONFLICT, Outcome.NO_SUCH_LEDGER])
def test_a_late_answer_of_an_ended_ledger_counts_nothing_against_the_next_one(outcome: Outcome) -> None:
    """SM-3: its end was taken from the recovery, which fences its own writer."""
    lead = Lead().serve()
    lead.append("a")
    lead.append("b")
    late = lead.find(AppendTo, first_entry_id=1)
    lead.reply(AppendTo, Outcome.UNKNOWN)
    lead.pending.remove(late)
    lead.reply(RecoverLedger, last_entry_id=-1)
    lead.reply(CreateLedger, ledger_id=10)
    lead.reply(WriteList, version=5)
    lead.take(lead.machine.handle(Appended(late.request, outcome, REFUSAL), 0))
    assert lead.machine.state is LeaderState.SERVING and lead.machine.health is Health.HEALTHY and not lead.asks(RecoverLedger)
    assert "b" not in lead.done
    lead.reply(AppendTo)
    lead.reply(AppendTo)
    assert (lead.done["a"], lead.done["b"]) == ((Span(10, 0, 0),), (Span(10, 1, 1),))


def test_a_fence_means_somebody_took_over() -> None:
    """LOG-20: every call fails in order, and nothing more is sent."""
    lead = Lead().serve()
    lead.append("a")
    lead.append("b")
    lead.roll()
    lead.close()
    lead.reply(AppendTo, Outcome.CONFLICT)
    assert list(lead.failed) == ["a", "b", "roll", "close"]
    assert all(isinstance(error, LogTakenOverError) and error.outcome_unknown for error in lead.failed.values())
    lead.reply(AppendTo)  # a late acknowledgement of b changes nothing any more
    lead.append("c")
    lead.roll("again")
    lead.close("too")
    assert list(lead.failed) == ["a", "b", "roll", "close", "c", "again", "too"] and "b" not in lead.done


def test_a_ledger_created_for_a_leader_that_has_abdicated_is_deleted() -> None:
    """LOG-9: nothing will ever list it."""
    lead = Lead().serve()
    lead.append("a")
    lead.roll()
    lead.reply(AppendTo, Outcome.CONFLICT)
    lead.reply(CreateLedger, ledger_id=10)
    assert lead.deleted == [10] and not lead.asks(WriteList)
    lead = Lead().serve()
    lead.append("a")
    lead.roll()
    lead.reply(AppendTo, Outcome.CONFLICT)
    lead.reply(CreateLedger, Outcome.REFUSED)
    assert lead.deleted == []


def test_a_failed_ledger_is_recovered_before_anything_is_written_again() -> None:
    """LOG-8: learn its end; what lies at or below it is in the log, the rest is written first, in order, into the next ledger."""
    lead = Lead().serve((1,), 3, 9)
    lead.append("a")
    lead.append("b1", "b2", "b3")
    lead.append("c")
    lead.reply(AppendTo, Outcome.UNKNOWN)
    lead.append("d")
    assert lead.machine.health is Health.RECOVERING and not lead.asks(CreateLedger)
    lead.reply(AppendTo, Outcome.CONFLICT)  # our own recovery fences our own writer: no takeover
    lead.reply(RecoverLedger, Outcome.UNKNOWN)
    lead.fire("recover")
    assert lead.reply(RecoverLedger, last_entry_id=2).ledger_id == 9
    assert lead.done == {"open": 9, "a": (Span(9, 0, 0),)}
    lead.reply(CreateLedger, ledger_id=10)
    assert lead.reply(WriteList, version=5).ledgers == (1, 9, 10)
    lead.reply(AppendTo)  # c's answer from the old ledger, late: it is not in the log there, and this is nobody's answer
    sent = [(p.ledger_id, p.first_entry_id, p.payloads) for p in lead.pending if isinstance(p, AppendTo)]
    assert sent == [(10, 0, ("b3",)), (10, 1, ("c",)), (10, 2, ("d",))]
    for _ in sent:
        lead.reply(AppendTo)
    assert lead.done["b1"] == (Span(9, 1, 2), Span(10, 0, 0))
    assert lead.done["c"] == (Span(10, 1, 1),) and lead.done["d"] == (Span(10, 2, 2),)


def test_a_run_with_nothing_kept_is_written_whole() -> None:
    """LOG-8."""
    lead = Lead().serve()
    lead.append("a", "b")
    lead.reply(AppendTo, Outcome.REFUSED)
    lead.reply(RecoverLedger, last_entry_id=-1)
    lead.reply(CreateLedger, ledger_id=10)
    lead.reply(WriteList, version=5)
    lead.reply(AppendTo)
    assert lead.done["a"] == (Span(10, 0, 1),)


def test_a_ledger_that_fails_during_a_roll_is_recovered_and_the_roll_goes_on() -> None:
    """LOG-6, LOG-8."""
    lead = Lead().serve((), 3, 9)
    lead.append("a")
    lead.roll_to_drain(10)
    lead.append("b")
    assert len([p for p in lead.pending if isinstance(p, AppendTo)]) == 1  # b waits
    lead.reply(AppendTo, Outcome.UNKNOWN)
    assert not lead.asks(CloseLedger)
    lead.reply(RecoverLedger, last_entry_id=-1)
    assert lead.done["roll"] == 10
    assert [(p.ledger_id, p.payloads) for p in lead.pending] == [(10, ("a",)), (10, ("b",))]


@pytest.mark.parametrize(("outcome", "error"), [(Outcome.NO_SUCH_LEDGER, LogDataLossError), (Outcome.REFUSED, BkError)])
def test_a_failed_ledger_that_cannot_be_recovered_ends_the_leader(outcome: Outcome, error: type[BkError]) -> None:
    """LOG-3, LOG-5: nothing is appended past it."""
    lead = Lead().serve()
    lead.append("a")
    lead.reply(AppendTo, Outcome.UNKNOWN)
    lead.reply(RecoverLedger, outcome)
    assert isinstance(lead.failed["a"], error) and lead.machine.state is LeaderState.FAILED


# --- rolling --------------------------------------------------------------------------------------------------------


def test_a_roll_lists_then_drains_then_closes_then_writes() -> None:
    """LOG-6, LOG-8: until the new ledger is listed entries go to the old one; then they wait until that is CLOSED."""
    lead = Lead().serve((1,), 3, 9)
    lead.roll()
    lead.append("a")
    assert lead.find(AppendTo).ledger_id == 9
    lead.reply(CreateLedger, ledger_id=10)
    lead.append("b")
    write = lead.reply(WriteList, version=5)
    assert (write.ledgers, write.version) == ((1, 9, 10), 4)
    lead.append("c")
    assert [p.payloads for p in lead.pending] == [("a",), ("b",)]
    lead.reply(AppendTo)
    assert not lead.asks(CloseLedger)
    lead.reply(AppendTo)
    assert lead.reply(CloseLedger, Outcome.UNKNOWN).ledger_id == 9
    lead.append("d")
    lead.fire("close")
    assert not lead.asks(AppendTo) and "roll" not in lead.done
    lead.reply(CloseLedger, last_entry_id=1)
    assert lead.done["roll"] == 10
    assert [(p.ledger_id, p.first_entry_id, p.payloads) for p in lead.pending] == [(10, 0, ("c",)), (10, 1, ("d",))]


def _conflicting_roll(**fields: Any) -> Lead:
    """Somebody else has changed the list while the next ledger was made, but put nothing on it."""
    lead = Lead().serve((1,), 3, 9)
    lead.roll()
    lead.reply(CreateLedger, ledger_id=10)
    lead.reply(WriteList, Outcome.CONFLICT)
    lead.reply(ReadList, ledgers=(1, 9), version=6, **fields)
    return lead


def test_a_roll_looks_for_its_ledger_before_it_lists_it_in_a_list_that_was_changed() -> None:
    """LOG-18: a janitor may have deleted what nothing listed yet."""
    lead = _conflicting_roll()
    assert not lead.asks(WriteList)
    assert lead.reply(CheckLedger).ledger_id == 10
    assert (lead.find(WriteList).ledgers, lead.find(WriteList).version) == ((1, 9, 10), 6)


@pytest.mark.parametrize("how", ["condemned", "deleted"])
def test_a_roll_makes_another_ledger_where_a_janitor_took_the_first(how: str) -> None:
    """LOG-18, LOG-9: nobody wrote to it, so nothing is lost and the roll goes on."""
    lead = _conflicting_roll(condemned=(4, 10)) if how == "condemned" else _conflicting_roll()
    if how == "deleted":
        lead.reply(CheckLedger, Outcome.UNKNOWN)
        lead.fire("list")
        lead.reply(CheckLedger, Outcome.NO_SUCH_LEDGER)
    assert lead.deleted == [10] and not lead.asks(WriteList)
    lead.reply(CreateLedger, ledger_id=11)
    assert (lead.find(WriteList).ledgers, lead.find(WriteList).version) == ((1, 9, 11), 6)
    lead.reply(WriteList, version=7)
    lead.reply(CloseLedger, last_entry_id=-1)
    assert lead.done["roll"] == 11 and lead.machine.state is LeaderState.SERVING


def test_a_roll_that_cannot_look_for_its_ledger_is_given_up() -> None:
    lead = _conflicting_roll()
    lead.reply(CheckLedger, Outcome.REFUSED, error=REFUSAL)
    assert lead.failed == {"roll": REFUSAL} and lead.deleted == [10] and lead.machine.rolling is Roll.NONE


def test_a_conflict_in_a_roll_is_an_abdication() -> None:
    """LOG-20: someone took over; our ledger was never listed and goes."""
    lead = Lead().serve((), 3, 9)
    lead.append("a")
    lead.roll()
    lead.reply(CreateLedger, ledger_id=10)
    lead.reply(WriteList, Outcome.CONFLICT)
    lead.reply(ReadList, ledgers=(9, 77), version=5)
    assert lead.deleted == [10] and list(lead.failed) == ["a", "roll"]
    assert lead.machine.state is LeaderState.ABDICATED


def test_a_listed_ledger_of_an_overtaken_roll_is_not_deleted() -> None:
    """LOG-20, META-12: our lost write was applied, then another leader came."""
    lead = Lead().serve((), 3, 9)
    lead.roll()
    lead.reply(CreateLedger, ledger_id=10)
    lead.reply(WriteList, Outcome.UNKNOWN)
    lead.fire("list")
    lead.reply(WriteList, Outcome.CONFLICT)
    lead.reply(ReadList, ledgers=(9, 10, 77), version=6)
    assert lead.deleted == [] and isinstance(lead.failed["roll"], LogTakenOverError)


def test_a_trim_by_somebody_else_does_not_stop_a_roll() -> None:
    """LOG-11, META-14: only a prefix went; the intent still holds on the new list."""
    lead = Lead().serve((1, 2), 3, 9)
    lead.roll()
    lead.reply(CreateLedger, ledger_id=10)
    lead.reply(WriteList, Outcome.CONFLICT)
    lead.reply(ReadList, ledgers=(2, 9), version=5)
    lead.reply(CheckLedger)
    write = lead.reply(WriteList, version=6)
    assert (write.ledgers, write.version) == ((2, 9, 10), 5)
    lead.reply(CloseLedger)
    assert lead.done["roll"] == 10


@pytest.mark.parametrize(("next_seq", "state"), [(6, LeaderState.SERVING), (7, LeaderState.ABDICATED)])
def test_a_trim_of_all_that_is_closed_is_no_take_over(next_seq: int, state: LeaderState) -> None:
    """LOG-11, LOG-20: an idle leader whose ledger has ended is not there any more for who looks at the tail alone. How many ledgers were
    ever listed tells if somebody has listed one behind."""
    lead = Lead()
    lead.reply(ReadList, ledgers=(1, 2), version=3, next_seq=5)
    lead.recover_all()
    lead.reply(CreateLedger, ledger_id=9)
    lead.reply(WriteList, version=4)
    lead.append("a")
    lead.reply(AppendTo, Outcome.UNKNOWN)
    lead.reply(RecoverLedger, last_entry_id=0)
    assert lead.done["a"] == (Span(9, 0, 0),) and lead.machine.health is Health.ENDED
    lead.append("b")
    lead.reply(CreateLedger, ledger_id=10)
    lead.reply(WriteList, Outcome.CONFLICT)
    lead.reply(ReadList, ledgers=(), version=6, next_seq=next_seq)
    assert lead.machine.state is state
    if state is LeaderState.SERVING:
        lead.reply(CheckLedger)
        assert (lead.find(WriteList).ledgers, lead.find(WriteList).version) == ((10,), 6)
        lead.reply(WriteList, version=7)
        lead.reply(AppendTo)
        assert lead.done["b"] == (Span(10, 0, 0),)
    else:
        assert isinstance(lead.failed["b"], LogTakenOverError) and lead.deleted == [10]


def test_a_trim_that_comes_while_a_ledger_is_in_use_is_one_of_a_ledger_that_others_closed() -> None:
    """LOG-12, LOG-20: only a CLOSED ledger is trimmed, and we did not close it."""
    lead = Lead()
    lead.reply(ReadList, ledgers=(), version=3, next_seq=0)
    lead.reply(CreateLedger, ledger_id=9)
    lead.reply(WriteList, version=4)
    lead.roll()
    lead.reply(CreateLedger, ledger_id=10)
    lead.reply(WriteList, Outcome.CONFLICT)
    lead.reply(ReadList, ledgers=(), version=6, next_seq=1)
    assert lead.machine.state is LeaderState.ABDICATED


@pytest.mark.parametrize("step", ["create", "write"])
def test_a_roll_that_is_refused_leaves_the_leader_where_it_was(step: str) -> None:
    """LOG-6: nothing has changed; it may be tried again."""
    lead = Lead().serve((), 3, 9)
    lead.roll()
    if step == "write":
        lead.reply(CreateLedger, ledger_id=10)
        lead.reply(WriteList, Outcome.REFUSED, error=REFUSAL)
        assert lead.deleted == [10]
    else:
        lead.reply(CreateLedger, Outcome.REFUSED)
    assert isinstance(lead.failed.pop("roll"), BkError)
    lead.append("a")
    lead.reply(AppendTo)
    assert lead.done["a"] == (Span(9, 0, 0),)
    lead.roll()
    assert lead.asks(CreateLedger)


def test_without_a_ledger_to_write_to_a_refusal_ends_the_leader() -> None:
    lead = Lead().serve()
    lead.append("a")
    lead.reply(AppendTo, Outcome.UNKNOWN)
    lead.reply(RecoverLedger, last_entry_id=-1)
    lead.reply(CreateLedger, Outcome.REFUSED, error=REFUSAL)
    assert lead.failed == {"a": REFUSAL} and lead.machine.state is LeaderState.FAILED


@pytest.mark.parametrize(("outcome", "error"), [(Outcome.CONFLICT, LogTakenOverError), (Outcome.NO_SUCH_LEDGER, LogDataLossError)])
def test_a_foreign_end_of_an_own_ledger_is_noticed_when_closing(outcome: Outcome, error: type[BkError]) -> None:
    """LOG-20: a close conflict means abdicate; LOG-12: a ledger in use was deleted."""
    lead = Lead().serve()
    lead.roll_to_drain(10)
    lead.append("a")
    lead.reply(CloseLedger, outcome)
    assert isinstance(lead.failed["a"], error) and isinstance(lead.failed["roll"], error)


def test_a_close_that_is_refused_becomes_a_recovery() -> None:
    """LOG-8: the end must be known before the next entry."""
    lead = Lead().serve((), 3, 9)
    lead.roll_to_drain(10)
    lead.reply(CloseLedger, Outcome.REFUSED)
    assert lead.reply(RecoverLedger, last_entry_id=-1).ledger_id == 9
    assert lead.done["roll"] == 10
