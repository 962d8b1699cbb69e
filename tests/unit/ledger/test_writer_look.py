"""A writer or a recovery that finds no candidate has the registered bookies looked at once before it gives up (EC-6, RC-15)."""

from __future__ import annotations

import pytest

from bk_core.errors import AddQuorumTimeoutError, LedgerFencedError, NotEnoughBookiesError, UnauthorizedError, WriteFailedError
from bk_core.protocol.effects import Complete, Log, LookForBookies
from bk_core.protocol.events import BookiesChanged, BookiesLookedFor, Outcome
from bk_core.protocol.ledger.metadata import Fragment, LedgerState
from bk_core.protocol.ledger.recover.options import RecoveryOptions
from bk_core.protocol.ledger.write.writer import EnsembleChangeMode, WriterOptions, WriterState
from bk_core.protocol.wire.messages import Status
from tests.unit.ledger.recovery_script import Script, body
from tests.unit.ledger.writer_script import SECOND, WriterScript

DELAYED = WriterOptions(ensemble_change=EnsembleChangeMode.DELAYED)


def short(bookies: str = "abc", **more: object) -> WriterScript:
    """Entry 0 is committed, entry 1 is not, and b has failed: there is no spare."""
    return WriterScript(bookies=bookies, **more).append("t").ack("ab", 0).append("u").lose("b")  # type: ignore[arg-type]


def test_a_shortage_asks_for_a_look_and_nothing_else() -> None:
    """EC-6."""
    script = short()
    assert [effect for effect in script.effects if not isinstance(effect, Log)] == script.of(LookForBookies) != []
    assert script.failed == [] and script.writer.state is WriterState.OPEN and script.writer._failures == {1: "b"}


def test_a_spare_that_the_look_finds_takes_the_place() -> None:
    """EC-6: it had registered, and the watch was a moment behind."""
    script = short()
    script.bookies.append("d")
    assert script.looked().write.metadata.fragments[-1] == Fragment(1, ("a", "d", "c"))
    assert script.stored(script.write).sent == [("d", 1)]
    assert script.ack("ad", 1).done[-1] == ("u", 1) and script.failed == []


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.UNKNOWN, Outcome.REFUSED])
def test_without_a_spare_the_ledger_ends_after_the_look(outcome: Outcome) -> None:
    """EC-6, WR-12: also if nobody could look."""
    script = short().looked(outcome)
    assert script.failed == [("u", NotEnoughBookiesError)]
    assert str(script.errors[0]).endswith("ledger 7: no writable bookie can replace b; it ends at entry 0")
    assert (script.write.metadata.state, script.write.metadata.last_entry_id) == (LedgerState.CLOSED, 0)


def test_nothing_is_decided_during_the_look() -> None:
    """EC-6, WR-4, WR-10: neither by an append nor by another failure, a timeout, or a bookie that came."""
    script = short("abc")
    (look,) = script.of(LookForBookies)
    script.bookies += "de"
    assert script.append("v").sent == [("a", 2), ("b", 2), ("c", 2)] and script.writes == []
    assert script.refuse("c", 1).writes == [] == script.of(LookForBookies)
    assert script.feed(BookiesChanged(frozenset("de"))).effects == []
    script.tick(100 * SECOND)
    assert script.writes == [] == script.of(LookForBookies) and script.writer.state is WriterState.OPEN
    script.feed(BookiesLookedFor(look.request))
    assert sorted(script.write.metadata.last_fragment.ensemble[1:]) == ["d", "e"]


def test_a_failure_during_the_look_is_of_the_same_decision() -> None:
    """EC-6: R is everything that is recorded when it is decided."""
    script = short()
    (look,) = script.of(LookForBookies)
    script.lose("c")
    assert script.of(LookForBookies) == []
    script.feed(BookiesLookedFor(look.request))
    assert script.failed == [("u", NotEnoughBookiesError)] and "can replace b, c;" in str(script.errors[0])


def test_a_bookie_that_failed_is_a_candidate_only_if_the_look_shows_that_it_registered_anew() -> None:
    """EC-6, R37: the rolling restart. b was replaced by d and is back; d dies before the watch has told of b."""
    for came, ends in ((frozenset("b"), False), (frozenset(), True)):
        script = WriterScript(bookies="abcd").append("t")
        script.stored(script.lose("b").write).lose("d")
        (look,) = script.of(LookForBookies)
        script.feed(BookiesChanged(came))
        script.feed(BookiesLookedFor(look.request))
        assert script.failed == ([("t", NotEnoughBookiesError)] if ends else [])
        assert ends or script.write.metadata.last_fragment.ensemble == ("a", "b", "c")


def test_the_next_shortage_leads_to_another_look() -> None:
    """EC-6: each decision has its own; the answer to an earlier one is no answer."""
    script = short()
    (first,) = script.of(LookForBookies)
    script.bookies.append("d")
    script.stored(script.looked().write).lose("d")
    (second,) = script.of(LookForBookies)
    assert second.request != first.request
    assert script.feed(BookiesLookedFor(first.request)).effects == []
    script.feed(BookiesLookedFor(second.request))
    assert script.failed == [("u", NotEnoughBookiesError)]


def test_delayed_a_late_ok_during_the_look_leaves_nothing_to_decide() -> None:
    """EC-3, EC-6. The next shortage is looked at anew."""
    script = WriterScript(bookies="abc", options=DELAYED).append("t").refuse("b", 0).refuse("c", 0)
    (look,) = script.of(LookForBookies)
    assert script.ack("ab", 0).done == [("t", 0)]
    assert script.feed(BookiesLookedFor(look.request)).effects == []
    script.append("u").refuse("b", 1).refuse("c", 1)
    assert script.looked().failed == [("u", NotEnoughBookiesError)]


def test_one_look_for_each_decision_that_finds_nobody() -> None:
    """EC-6, EC-11, EC-15: looks do not chase one another. Delayed, a position that is sent to again is looked for when it fails again."""
    script = WriterScript(bookies="abcd").append("t")
    write = script.refuse("b", 0).write
    assert script.refuse("c", 0).effects[1:] == []  # the next round
    assert len(script.stored(write).of(LookForBookies)) == 1
    assert script.looked().failed == [("t", NotEnoughBookiesError)] and script.of(LookForBookies) == []
    script = WriterScript(bookies="abcd", options=DELAYED).append("t").refuse("b", 0).refuse("c", 0)
    assert sorted(script.stored(script.write).sent) == [("c", 0), ("d", 0)] and script.of(LookForBookies) == []
    assert script.refuse("c", 0).of(LookForBookies) == []
    assert script.refuse("d", 0).looked().failed == [("t", NotEnoughBookiesError)]


def test_a_fence_during_the_look_ends_the_writer_at_once() -> None:
    """EC-6, WR-11."""
    script = short()
    (look,) = script.of(LookForBookies)
    script.refuse("a", 1, Status.FENCED)
    assert script.failed == [("u", LedgerFencedError)] and script.writer.state is WriterState.FENCED
    script.bookies.append("d")
    assert script.feed(BookiesLookedFor(look.request)).effects == []


def test_a_refused_key_and_an_add_that_takes_too_long_end_the_writer_during_the_look() -> None:
    """EC-6, WR-12, WR-14."""
    script = short().refuse("a", 1, Status.UNAUTHORIZED)
    assert script.failed == [("u", UnauthorizedError)]
    script = short(options=WriterOptions(quorum_timeout_ns=SECOND)).tick(SECOND)
    assert script.failed == [("u", AddQuorumTimeoutError)]


def test_a_close_during_the_look_is_what_comes_of_it() -> None:
    """EC-6, CL-1, CL-6: a close needs no bookie."""
    script = short()
    (look,) = script.of(LookForBookies)
    script.do(script.writer.close("close", 0))
    write = script.write
    script.bookies.append("d")
    assert script.feed(BookiesLookedFor(look.request)).effects == []
    assert script.stored(write).effects == [Complete("close", write.metadata)]


def test_deferred_sync_and_too_many_changes_need_no_look() -> None:
    """EC-5, EC-6, WR-17: no bookie would help."""
    script = short(options=WriterOptions(deferred_sync=True))
    assert script.of(LookForBookies) == [] and [kind for _, kind in script.failed] == [WriteFailedError]
    script = short(ensemble_changes_max=0)
    assert script.of(LookForBookies) == [] and script.failed == [("u", WriteFailedError)]


def test_a_guaranteed_ledger_waits_without_a_look() -> None:
    """G-10."""
    script = WriterScript(bookies="abc", guaranteed=True).append("t").refuse("c", 0)
    for _ in range(9):
        assert script.of(LookForBookies) == [] and script.failed == []
        script.tick(SECOND)


def test_after_a_conflict_the_look_comes_before_the_new_decision() -> None:
    """EC-6, EC-9, META-14: what is stored is adopted at once, and its new bookie gets what it lacks."""
    script = WriterScript(bookies="abcdex").append("t").refuse("b", 0)
    write = script.write
    script.bookies = list("abcex")
    stored = script.writer.metadata.with_ensemble(0, ("a", "b", "x"))
    script.bookies = list("abx")
    script.conflict(write, stored)
    assert script.writes == [] and ("x", 0) in script.sent
    (look,) = script.of(LookForBookies)
    script.bookies.append("e")
    script.feed(BookiesLookedFor(look.request))
    assert script.write.metadata.last_fragment.ensemble == ("a", "e", "x")


def recovered(bookies: str) -> Script:
    """Entry 0 is being written back, and c is lost."""
    script = Script(bookies=bookies)
    script.fence("ab")
    script.answer("a", 0, body(0))
    script.lost("c")
    return script


def test_a_recovery_looks_before_it_stops() -> None:
    """RC-15."""
    script = recovered("abc")
    assert not script.results and not script.is_closing
    script.looked()
    assert isinstance(script.result, NotEnoughBookiesError) and "stays IN_RECOVERY" in str(script.result)


def test_a_recovery_takes_the_spare_found() -> None:
    """RC-15: in this run only; the ledger's metadata learns of it when it is closed."""
    bookies = list("abc")
    script = recovered(bookies)  # type: ignore[arg-type]
    bookies.append("d")
    script.looked()
    writer = script.machine.writer
    assert writer is not None and writer.private_changes == {0: ("a", "b", "d")} and not script.results
    assert [one.bookie for one in script.added if one.bookie == "d"] == ["d"]


@pytest.mark.parametrize("mode", [EnsembleChangeMode.IMMEDIATE, EnsembleChangeMode.DELAYED])
def test_a_recovery_does_not_close_during_the_look(mode: EnsembleChangeMode) -> None:
    """RC-15, RC-17, EC-3: Qa bookies take the write-back meanwhile. What comes of it is the mode's, and not a matter of which is faster."""
    script = Script(bookies="abc", options=RecoveryOptions(ensemble_change=mode))
    script.fence("ab")
    script.answer("a", 0, body(0))
    script.lost("c")
    if mode is EnsembleChangeMode.DELAYED:
        script.lost("b")
    (look,) = script.looks
    script.stored_by("ab", 0)  # delayed, b's is a late answer, and so nothing is left to decide
    script.answer("ab", 1, Status.NO_ENTRY)
    assert not script.is_closing and not script.results
    script.feed(BookiesLookedFor(look.request))
    assert script.is_closing is (mode is EnsembleChangeMode.DELAYED)
    assert [type(one) for one in script.results] == ([] if script.is_closing else [NotEnoughBookiesError])
