"""One leader, word by word: taking over, rolling, failing, and the scenarios 54 .. 56 of replication-protocol.md 13.3."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.errors import BkError, LogDataLossError, LogError, LogTakenOverError, NoSuchLogError
from bk_core.protocol.events import Outcome, TimerFired
from bk_core.protocol.log.effects import (
    Appended,
    AppendTo,
    CheckLeadership,
    CheckLedger,
    CloseLedger,
    CreateLedger,
    DeleteLedger,
    ReadList,
    RecoverLedger,
    WriteList,
)
from bk_core.protocol.log.leader import LogLeader
from bk_core.protocol.log.leader_state import Health, LeaderOptions, LeaderState, Roll, Span
from tests.unit.log.talk import Talk

REFUSAL = BkError("refused")


class Lead(Talk):
    """A conversation with a leader, with the common openings."""

    machine: LogLeader

    def __init__(self, **options: Any) -> None:
        super().__init__(LogLeader("flights", lambda: 0.5, LeaderOptions(**options) if options else None))
        self.take(self.machine.open("open", 0))

    def recover_all(self, last_entry_id: int = 0) -> None:
        while self.asks(RecoverLedger):
            self.reply(RecoverLedger, last_entry_id=last_entry_id)

    def up_to_listing(self, listed: tuple[int, ...] = (), version: int = 3, new: int = 9) -> None:
        self.reply(ReadList, ledgers=listed, version=version)
        self.recover_all()
        self.reply(CreateLedger, ledger_id=new)

    def serve(self, listed: tuple[int, ...] = (), version: int = 3, new: int = 9) -> Lead:
        self.up_to_listing(listed, version, new)
        self.reply(WriteList, version=version + 1)
        assert self.machine.state is LeaderState.SERVING
        return self

    def append(self, *payloads: str) -> None:
        self.take(self.machine.append(payloads, payloads[0] if payloads else "", 0))

    def roll(self, token: str = "roll") -> None:
        self.take(self.machine.roll(token, 0))

    def roll_to_drain(self, new: int) -> None:
        self.roll()
        self.reply(CreateLedger, ledger_id=new)
        self.reply(WriteList, version=self.machine.version + 1)
        assert self.machine.rolling is Roll.DRAINING

    def close(self, token: str = "close") -> None:
        self.take(self.machine.close(token, 0))


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


# --- writing --------------------------------------------------------------------------------------------------------


def test_entries_are_acknowledged_in_order_with_their_ledger() -> None:
    """LOG-8, LOG-10: the order of the log is (ledger, entry); a position names both."""
    lead = Lead().serve()
    lead.append("a", "b")
    lead.append("c")
    second = lead.find(AppendTo, first_entry_id=2)
    lead.pending.remove(second)
    lead.take(lead.machine.handle(Appended(second.request, Outcome.OK), 0))
    assert lead.done == {"open": 9}
    lead.reply(AppendTo)
    assert lead.done == {"open": 9, "a": (Span(9, 0, 1),), "c": (Span(9, 2, 2),)}


def test_a_fence_means_somebody_took_over() -> None:
    """LOG-8: abdicate; every call fails in order, and nothing more is sent (LOG-6: stop writing everywhere)."""
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
    """LOG-6: someone took over; our ledger was never listed and goes."""
    lead = Lead().serve((), 3, 9)
    lead.append("a")
    lead.roll()
    lead.reply(CreateLedger, ledger_id=10)
    lead.reply(WriteList, Outcome.CONFLICT)
    lead.reply(ReadList, ledgers=(9, 77), version=5)
    assert lead.deleted == [10] and list(lead.failed) == ["a", "roll"]
    assert lead.machine.state is LeaderState.ABDICATED


def test_a_listed_ledger_of_an_overtaken_roll_is_not_deleted() -> None:
    """LOG-6, META-12: our lost write was applied, then another leader came."""
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
    """LOG-8: a close conflict means abdicate; LOG-12: a ledger in use was deleted."""
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
