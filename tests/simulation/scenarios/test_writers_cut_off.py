"""Scenarios 11 to 20: writers that crash or are cut off, foreign writes, ambiguous compare-and-sets, several failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bk_core.errors import (
    LedgerClosedError,
    LedgerFencedError,
    MetadataConflictError,
    NoSuchLedgerError,
)
from bk_core.protocol.ledger.metadata import Fragment, LedgerState
from bk_core.protocol.ledger.write.options import WriterOptions
from bk_core.protocol.ledger.write.writer import WriterState
from tests.simulation.cluster import LIMITS
from tests.simulation.logs import Leader, LogTruth
from tests.simulation.scenario import Scenario
from tests.simulation.world import MS

PATIENT = replace(LIMITS, add_timeout_ns=1_000 * MS)


# --- 11: w crashes, wherever it stands --------------------------------------------------------------------------------------


def test_scenario_11_a_before_the_metadata_is_created() -> None:
    """CR-8, RC-1: there is no ledger, and nobody is asked about it."""
    s = Scenario(3, 3, 2)
    s.delete_ledger()
    r = s.recoverer()
    s.settle()
    assert isinstance(r.result, NoSuchLedgerError) and s.fenced() == []


def test_scenario_11_b_after_create() -> None:
    """CR-8, RC-20: an empty ledger, also with one bookie of the write set down."""
    s = Scenario(3, 3, 2)
    s.kill(s.writer())
    s.crash("b2")
    s.recoverer()
    s.settle()
    assert s.last_entry == -1 and s.metadata.length == 0


@pytest.mark.parametrize("found", [False, True])
def test_scenario_11_c_with_an_entry_below_its_ack_quorum(found: bool) -> None:
    """RC-10, RC-13, I-4: either way; if it is in, it has an ack quorum of copies. e1 was sent and arrived nowhere.

    1. e0 is on b1 only.
    2. b1 answers r before b2 and b3 have both denied e0, or after.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    s.drop("add", to="b2")
    s.drop("add", to="b3")
    s.drop("add", entry=1)
    w.append()
    w.append()
    s.run(5)
    s.kill(w)
    for bookie in ("b2", "b3") if found else ("b1",):
        s.hold("recovery-read", to=bookie, entry=0)
    s.recoverer()
    s.settle()
    assert s.last_entry == (0 if found else -1) and s.acked == []
    assert s.stored(0) == (["b1", "b2", "b3"] if found else ["b1"])


@pytest.mark.parametrize("silent", ["b1", "b2", "b3"])
@pytest.mark.parametrize("acked", [False, True])
def test_scenario_11_d_with_an_entry_at_its_ack_quorum(acked: bool, silent: str) -> None:
    """RC-10, Q-2, I-1: acknowledged or not, it is always recovered, whichever bookie r does not hear.

    1. e0 is on b1 and b2. w has heard of that, or not.
    2. b3 denies e0 before the others answer. One of the three never does.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    s.drop("add", to="b3")
    if not acked:
        s.drop("add-reply")
    w.append()
    s.run(5)
    s.kill(w)
    assert s.acked == ([0] if acked else []) and s.stored(0) == ["b1", "b2"]
    slow = [s.hold("recovery-read", to=bookie) for bookie in ("b1", "b2")]
    s.partition("r", silent)
    r = s.recoverer()
    s.until(lambda: all(rule.messages for rule in slow))
    s.run(10)
    assert r.verdict is None and s.arrived("recovery-read-reply", "b3", "r", 0) == (silent != "b3")
    for rule in slow:
        s.release(rule)
    s.settle(400)
    s.heal()
    s.settle()
    assert s.last_entry == 0


def _in_the_window() -> tuple[Scenario, Callable[[], object]]:
    """e0 is acknowledged, e1 on b2 and b3; b1 has failed and the compare-and-set of {1: b4 b2 b3} is on its way (the second value lets it
    go on)."""
    s = Scenario(3, 3, 2, bookies=4)
    w = s.writer()
    w.append()
    s.settle()
    s.hold("add", to="b1", entry=1)
    change = s.metadata_hold(client=w)
    w.append()
    s.run(1)
    s.crash("b1")
    s.until(lambda: bool(change.messages) and s.truth.copies.get(1) == 0b110)
    s.run(5)
    return s, lambda: s.release(change)


def test_scenario_11_e_in_the_window_before_its_change_is_stored() -> None:
    """EC-8, EC-17, META-13, RC-1.

    1. w dies in the window; nothing was acknowledged in it. e1 is at its ack quorum and is recovered from the old ensemble.
    2. The change arrives after that, and is refused.
    """
    s, let_go = _in_the_window()
    assert s.acked == [0]
    s.kill(s.cluster.clients[0])
    s.recoverer()
    s.until(lambda: s.state is LedgerState.CLOSED)
    version = s.truth.version
    let_go()
    s.settle()
    assert s.truth.version == version and s.last_entry == 1 and s.fragments[0] == ("b1", "b2", "b3")


def test_scenario_11_f_after_its_change_and_before_the_copies() -> None:
    """EC-17, RC-10: {1: b4 b2 b3} is stored and w dies before e1 goes to b4, which denies it. b2 and b3 have it."""
    s, let_go = _in_the_window()
    let_go()
    s.until(lambda: 1 in s.fragments)
    s.kill(s.cluster.clients[0])
    slow = [s.hold("recovery-read", to=bookie) for bookie in ("b2", "b3")]
    s.recoverer()
    s.until(lambda: s.arrived("recovery-read-reply", "b4", "r", 1) == 1)
    for rule in slow:
        s.release(rule)
    s.settle()
    assert s.acked == [0] and s.last_entry == 1 and "b4" in s.stored(1)
    assert s.fragments == {0: ("b1", "b2", "b3"), 1: ("b4", "b2", "b3")}


def test_scenario_11_g_after_changes_that_left_its_entry_behind() -> None:
    """EC-17, RC-6, RC-16: e1 is on b1, and {1: b4 b5 b6} is all that recovery looks at.

    1. e1 reaches b1 only. b1, b2, b3 fail; w puts b4, b5, b6 in their places and dies before it has sent e1 to any of them.
    2. b1 is back. e1 was never acknowledged: the ledger ends at e0, below the empty last fragment.
    """
    s = Scenario(3, 3, 2, bookies=6)
    w = s.writer()
    w.append()
    s.settle()
    s.hold("add-reply", source="b1")
    for bookie in ("b2", "b3", "b4", "b5", "b6"):
        s.hold("add", to=bookie)
    w.append()
    s.run(5)
    for bookie in ("b1", "b2", "b3"):
        s.crash(bookie)
    s.until(lambda: s.fragments.get(1) == ("b4", "b5", "b6"))
    s.kill(w)
    s.restart("b1")
    s.recoverer()
    s.settle()
    assert s.stored(1) == ["b1"] and s.acked == [0] and s.last_entry == 0
    assert s.metadata.length == len(s.truth.submitted[0])


@pytest.mark.parametrize("arrives", ["in time", "too late"])
def test_scenario_11_h_during_its_closing_write(arrives: str) -> None:
    """RC-1, META-13: whoever is first closes; the other's write finds a newer version. Both ends are right."""
    s = Scenario(3, 3, 2)
    w = s.writer()
    w.append(2)
    s.settle()
    closing = s.metadata_hold(client=w)
    w.close()
    s.run(5)
    s.kill(w)
    if arrives == "in time":
        s.release(closing)
    r = s.recoverer()
    s.settle()
    s.release()
    s.settle()
    assert s.last_entry == 1 == r.result.last_entry_id
    assert (s.writes(w), s.writes(r)) == ((1, 0) if arrives == "in time" else (0, 2))


# --- 12 to 14: zombies -------------------------------------------------------------------------------------------------------


def test_scenario_12_a_adds_of_a_writer_that_is_cut_off_from_the_store() -> None:
    """WR-11, RC-23, D1, I-13, I-14; R25.

    1. w reaches bookies and not the store. r recovers and closes.
    2. w's next adds are refused; it stops, sends nothing more and writes no metadata, also when asked to close.
    """
    s = Scenario(3, 3, 2, bookies=4)
    w = s.writer()
    w.append()
    s.settle()
    s.partition(w, "md")
    s.recoverer()
    s.settle()
    w.append()
    w.append()
    s.run(5)
    assert w.machine.state is WriterState.FENCED and [type(e) for e in w.errors] == [LedgerFencedError] * 2
    w.append()
    w.close()
    s.heal()
    s.settle()
    assert s.acked == [0] and s.last_entry == 0 and w.cas_sent == 0 and s.stored(3) == []
    assert isinstance(w.close_results[0], LedgerFencedError)
    assert len(w.adds.done) == len(w.adds.pushed) == 4


def test_scenario_12_b_an_ensemble_change_of_a_writer_that_is_cut_off_from_the_store() -> None:
    """EC-9 (CLOSED), RC-13, RC-23; R6.

    1. w reaches b1, b2 and not the store; b3 fails, and its change goes unanswered.
    2. r recovers and closes at e2, which only b1 has and r writes back.
    3. The store is back: w's change conflicts. w fails e2, which is in the ledger, and does not try to close.
    """
    s = Scenario(3, 3, 2, bookies=4)
    w = s.writer()
    w.append()
    s.settle()
    s.partition(w, "md")
    s.hold("add", to="b3")
    w.append()
    s.run(10)
    assert s.acked == [0, 1]
    s.drop("add", to="b2", entry=2)
    w.append()
    s.crash("b3")
    s.until(lambda: w.cas_unknown > 1)
    s.recoverer()
    s.until(lambda: s.state is LedgerState.CLOSED)
    s.heal()
    s.settle()
    assert s.last_entry == 2 and s.acked == [0, 1] and s.writes(w) == 0
    assert [type(e) for e in w.errors] == [LedgerClosedError] and w.last_add_confirmed == 1


@pytest.mark.parametrize("further", [False, True])
def test_scenario_12_c_the_close_of_a_writer_that_is_cut_off_from_the_store(further: bool) -> None:
    """CL-4, CL-1, META-14, I-15; R6.

    1. w closes at e0; e1, on b1, fails. The closing write does not get through.
    2. r closes at e0 as well, because b2 and b3 deny e1; or it finds e1.
    3. The store is back. Same end: the close succeeds. Another one: it must say so. The ledger stays as r closed it.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    w.append()
    s.settle()
    s.drop("add", to="b2", entry=1)
    s.drop("add", to="b3", entry=1)
    w.append()
    s.run(5)
    s.partition(w, "md")
    w.close()
    assert [type(e) for e in w.errors] == [LedgerClosedError]
    for bookie in ("b2", "b3") if further else ("b1",):
        s.hold("recovery-read", to=bookie, entry=1)
    r = s.recoverer()
    s.until(lambda: s.state is LedgerState.CLOSED)
    s.heal()
    s.settle()
    assert s.last_entry == (1 if further else 0) == r.result.last_entry_id and s.writes(w) == 0
    assert isinstance(w.close_results[0], MetadataConflictError) == further


@pytest.mark.parametrize("closed", [False, True])
def test_scenario_13_a_writer_that_reaches_only_the_bookie_that_is_not_fenced(closed: bool) -> None:
    """Q-1, EC-9, WR-11, RC-23, I-13.

    1. r fences b1 and b2, not b3; it has closed, or is about to.
    2. w reaches b3 only, which takes e0. That is no ack quorum.
    3. w's change of ensemble meets the store. It stops.
    """
    s = Scenario(3, 3, 2, bookies=5)
    w = s.writer()
    s.partition(w, "b1")
    s.partition(w, "b2")
    s.partition("r", "b3")
    r = s.recoverer()
    s.until(lambda: s.state is LedgerState.IN_RECOVERY)
    closing = s.metadata_hold(client=r)
    s.until(lambda: bool(closing.messages))
    if closed:
        s.release(closing)
        s.until(lambda: s.state is LedgerState.CLOSED)
    w.append()
    s.until(lambda: bool(w.errors))
    assert [type(e) for e in w.errors] == [LedgerClosedError if closed else LedgerFencedError]
    s.release(closing)
    s.settle()
    assert s.last_entry == -1 and s.acked == [] and s.stored(0) == ["b3"] and s.writes(w) == 0 and w.cas_sent == 1


def test_scenario_14_a_paused_writer_wakes_up_with_answers_in_its_inbox() -> None:
    """B-1, WR-11, RC-23, I-13.

    1. The OKs of e0 and e1 wait in the inbox of w, which pauses. e2 is on b3; to b1 and b2 it is slow.
    2. r fences b1 and b2, does not reach b3, and closes at e1.
    3. e2 reaches b1 and b2, which refuse it. w resumes: e0 and e1 are acknowledged, because they are in the ledger; e2 is not.
    """
    s = Scenario(3, 3, 2, limits=PATIENT)
    w = s.writer()
    slow = s.hold("add", to="b1", entry=2), s.hold("add", to="b2", entry=2)
    for _ in range(3):
        w.append()
    s.pause(w)
    s.run(10)
    assert s.stored(1) == ["b1", "b2", "b3"] and s.stored(2) == ["b3"] and s.acked == []
    s.partition("r", "b3")
    s.recoverer()
    s.until(lambda: s.state is LedgerState.CLOSED)
    assert s.last_entry == 1
    for rule in slow:
        s.release(rule)
    s.run(10)
    s.resume(w)
    s.settle()
    assert s.acked == [0, 1] and [type(e) for e in w.errors] == [LedgerFencedError] and s.stored(2) == ["b3"]


# --- 15 to 17: the change of an ensemble meets another version ---------------------------------------------------------------


def test_scenario_15_a_re_replicator_was_at_an_older_fragment() -> None:
    """EC-9 (OPEN), EC-12, META-14, RR-9; R14.

    1. {0: b1 b2 b3, 2: b4 b2 b3}. b2 fails; e3 is on b4 and b3 already.
    2. A re-replicator replaces b1 by b6 in the first fragment while w's change is on its way.
    3. w's change conflicts. w decides again upon the new content; neither change is lost, and b3 and b4 are sent nothing twice.
    """
    s = Scenario(3, 3, 2, bookies=6)
    w = s.writer()
    w.append(2)
    s.settle()
    s.crash("b1")
    w.append()
    s.settle()
    assert s.fragments == {0: ("b1", "b2", "b3"), 2: ("b4", "b2", "b3")}
    s.hold("add", to="b2", entry=3)
    change = s.metadata_hold(client=w)
    w.append()
    s.run(1)
    s.crash("b2")
    s.until(lambda: bool(change.messages))
    s.substitute(0, "b1", "b6")
    s.release(change)
    s.settle()
    assert s.fragments == {0: ("b6", "b2", "b3"), 2: ("b4", "b2", "b3"), 3: ("b4", "b5", "b3")}
    assert s.acked == [0, 1, 2, 3] and s.writes(w) == 2
    assert [s.arrived("add", "w", bookie, 3) for bookie in ("b3", "b4", "b5")] == [1, 1, 1]


def test_scenario_16_somebody_has_replaced_the_failed_bookie_already() -> None:
    """EC-9 (OPEN, none of R held), EC-10, EC-11, META-14; R10, R14.

    1. b1 fails; e1 is on b2 and b3, and w's change of b1 for b4 is on its way.
    2. Another tool replaces b1 by b5 in the last fragment.
    3. w adopts that: no replacement of its own, e1 is sent to b5, and what waited and b2 and b3 have is acknowledged at once.
    """
    s = Scenario(3, 3, 2, bookies=5)
    w = s.writer()
    w.append()
    s.settle()
    s.hold("add", to="b1", entry=1)
    change = s.metadata_hold(client=w)
    w.append()
    s.run(1)
    s.crash("b1")
    s.until(lambda: bool(change.messages))
    s.substitute(0, "b1", "b5")
    new = s.hold("add", to="b5")
    s.release(change)
    s.until(lambda: bool(new.messages))
    assert s.acked == [0, 1]
    s.release(new)
    s.settle()
    assert s.fragments == {0: ("b5", "b2", "b3")} and s.writes(w) == 0
    assert s.acked == [0, 1] and s.stored(1) == ["b2", "b3", "b5"]


@pytest.mark.parametrize("meets", ["IN_RECOVERY", "CLOSED", "deleted"])
def test_scenario_17_a_the_ledger_is_no_longer_ours_to_change(meets: str) -> None:
    """EC-9 (IN_RECOVERY, CLOSED, NO_SUCH_LEDGER), WR-8, WR-11, WR-13, I-14, D1; R6, replication-protocol.md 14.1 items 8 and 14.

    1. e0 is acknowledged; b3 has failed, e1 and e2 wait for the change.
    2. The ledger is being recovered, or has been, or is gone.
    3. w fails e1 and e2, in this order, does not close, and its LAC is what it acknowledged, whatever the metadata says.
    """
    s = Scenario(3, 3, 2, bookies=4)
    w = s.writer()
    w.append()
    s.settle()
    s.hold("add", to="b3")
    change = s.metadata_hold(client=w)
    w.append()
    w.append()
    s.run(1)
    s.crash("b3")
    s.until(lambda: bool(change.messages))
    s.run(5)
    if meets == "deleted":
        s.delete_ledger()
    else:
        s.recoverer()
        s.until(lambda: s.state is LedgerState[meets])
    s.release(change)
    s.until(lambda: len(w.errors) == 2)
    expected = {"IN_RECOVERY": LedgerFencedError, "CLOSED": LedgerClosedError, "deleted": NoSuchLedgerError}[meets]
    assert [type(e) for e in w.errors] == [expected] * 2
    assert [(first, good) for first, _, _, good in w.adds.done] == [(0, True), (1, False), (2, False)]
    assert w.last_add_confirmed == 0 and s.writes(w) == 0
    s.settle()
    assert w.cas_sent == 1 and s.writes(w) == 0
    if meets != "deleted":
        assert s.last_entry == 2  # they exist although their callbacks failed


def test_scenario_17_b_a_writer_that_may_close_what_is_being_recovered() -> None:
    """WR-11, WR-13, RC-18, RC-7, I-6, D1 (the other choice); replication-protocol.md 14.1 item 8.

    1. e0 is acknowledged; e1 and e2 are on b1. r has found them and written them back, and its closing write is on the way.
    2. w hears FENCED and closes at e0, because its options say so.
    3. r adopts that end. No LAC speaks of e1.
    """
    s = Scenario(3, 3, 2)
    w = s.writer(options=WriterOptions(close_in_recovery=True))
    w.append()
    s.settle()
    slow = s.hold("add", to="b2")
    s.drop("add", to="b3")
    w.append()
    w.append()
    s.run(5)
    for bookie in ("b2", "b3"):
        for entry in (1, 2):
            s.hold("recovery-read", to=bookie, entry=entry)
    r = s.recoverer()
    s.until(lambda: s.state is LedgerState.IN_RECOVERY)
    closing = s.metadata_hold(client=r)
    s.until(lambda: bool(closing.messages))
    assert r.verdict == 2 and s.stored(2) == ["b1", "b2", "b3"]
    s.release(slow)
    s.until(lambda: s.state is LedgerState.CLOSED)
    s.release(closing)
    s.settle()
    assert s.last_entry == 0 == r.result.last_entry_id and s.writes(w) == 1 == s.writes(r)
    assert [type(e) for e in w.errors] == [LedgerFencedError] * 2 and s.acked == [0] and max(s.truth.lacs.values()) == 0


# --- 18 and 19: ambiguous compare-and-sets -----------------------------------------------------------------------------------

Mishap = Callable[[Scenario, str], object]


def lose_the_answer(s: Scenario, client: str) -> object:
    return s.metadata_lose_answer(client=client)


def arrive_late(s: Scenario, client: str) -> object:
    return s.metadata_apply_later(client=client)


# 18: it was applied and the answer is lost. 19: it is applied later, when its repetition has been. In both the client hears UNKNOWN and
# repeats the identical request; then its own content is stored exactly once, whichever of the two was first. That a ledger is created
# once, whatever becomes of the answer, is tested where creating is (CR-4).


def check_ensemble_change(mishap: Mishap) -> None:
    """META-12, META-13, EC-9 (UNKNOWN, CONFLICT), EC-8, I-10; e1 is acknowledged only once the change is definite."""
    s = Scenario(3, 3, 2, bookies=6)
    w = s.writer()
    w.append()
    s.settle()
    s.hold("add", to="b1", entry=1)
    mishap(s, "w")
    w.append()
    s.run(1)
    s.crash("b1")
    s.until(lambda: w.cas_sent == 2)
    assert w.cas_unknown == 1 and s.arrived("metadata-read", "w", "md") == 0
    assert s.acked == [0]
    s.settle()
    assert s.acked == [0, 1] and s.fragments == {0: ("b1", "b2", "b3"), 1: ("b4", "b2", "b3")}
    assert s.writes(w) == 1
    s.release()
    s.settle()
    assert s.writes(w) == 1 and s.stored(1) == ["b2", "b3", "b4"]


def check_close(mishap: Mishap) -> None:
    """META-12, CL-4 (UNKNOWN; CONFLICT, CLOSED here), I-15."""
    s = Scenario(3, 3, 2)
    w = s.writer()
    w.append(3)
    s.settle()
    mishap(s, "w")
    w.close()
    s.until(lambda: w.cas_sent == 2)
    assert w.cas_unknown == 1 and s.arrived("metadata-read", "w", "md") == 0
    assert w.close_results == []
    s.settle()
    s.release()
    s.settle()
    assert [md.last_entry_id for md in w.close_results] == [2] == [s.last_entry] and s.writes(w) == 1 and w.cas_sent == 2


def check_recovery(which: str, mishap: Mishap) -> None:
    """META-12, RC-1, RC-18, RC-19, I-16: nothing goes to bookies before the mark is definite, nothing to the caller before the close is."""
    s = Scenario(3, 3, 2)
    w = s.writer()
    w.append(2)
    s.settle()
    s.kill(w)
    r = s.recoverer(start=False)
    if which == "mark":
        mishap(s, "r")
    r.start()
    if which == "close":
        s.until(lambda: s.state is LedgerState.IN_RECOVERY)
        s.run(1.5)
        mishap(s, "r")
    s.until(lambda: r.cas_unknown == 1)
    s.run(10)
    assert not r.result and (which == "close" or s.fenced() == [])
    s.settle()
    s.release()
    s.settle()
    assert r.result.last_entry_id == 1 == s.last_entry and s.writes(r) == 2 and r.cas_sent == 3


def check_list_append(mishap: Mishap) -> None:
    """META-12, LOG-3, LOG-1: the leader finds its own ledger at the end of the list; it is listed once, and serves."""
    s = Scenario(3, 3, 2)
    log = LogTruth(s.cluster)
    leader = Leader(s.cluster, "l", log, (3, 3, 2))
    mishap(s, "l")
    leader.open()
    leader.append(1)
    s.until(lambda: ("append", 1) in leader.results)
    s.release()
    s.settle()
    assert not isinstance(leader.results["append", 1], Exception)
    assert len(log.ledgers) == 1 and log.history == [(), log.ledgers] and len(s.cluster.truths) == 2


def check_re_replication(mishap: Mishap) -> None:
    """META-12, RR-7: b1 is replaced once, at its position."""
    s = Scenario(3, 3, 2, bookies=5)
    w = s.writer()
    w.append(2)
    s.settle()
    w.close()
    s.settle()
    s.crash("b1")
    mishap(s, "rr")
    rr = s.replicator(lost=("b1",))
    s.until(lambda: rr.content)
    s.release()
    s.settle()
    assert s.fragments == {0: ("b4", "b2", "b3")} and s.writes(rr) == 1 and rr.cas_sent == 2
    assert [isinstance(result, Exception) for result in rr.results] == [False]


def check_recovery_mark(mishap: Mishap) -> None:
    check_recovery("mark", mishap)


def check_recovery_close(mishap: Mishap) -> None:
    check_recovery("close", mishap)


WRITES = (check_ensemble_change, check_close, check_recovery_mark, check_recovery_close, check_list_append, check_re_replication)


@pytest.mark.parametrize("check", WRITES)
def test_scenario_18_a_compare_and_set_whose_answer_is_lost(check: Callable[[Mishap], None]) -> None:
    """META-12, META-13, META-14: repeated, it conflicts with itself; what is stored is what was wanted, once."""
    check(lose_the_answer)


@pytest.mark.parametrize("check", WRITES)
def test_scenario_19_a_a_compare_and_set_that_is_applied_later(check: Callable[[Mishap], None]) -> None:
    """META-12, META-13: its repetition was there before, and the first one finds another version."""
    check(arrive_late)


def test_scenario_19_b_no_handle_acts_on_not_applied() -> None:
    """META-12, G-8, G-6, EC-8, I-10: in a guaranteed ledger a failure can be taken back while the change that it led to is on its way.

    1. e0 is on b2. b1 fails; the change {0: b4 b2 b3} is sent and not heard of again.
    2. b1 comes back and takes e0 after all. That is an ack quorum, but not where b1 may be gone at any moment: nothing is acknowledged.
    3. The change lands. e0 goes to b4, and only then it is acknowledged.
    """
    s = Scenario(3, 3, 2, bookies=4, gwq=True, limits=PATIENT)
    w = s.writer()
    late = s.hold("add", to="b1", entry=0)
    s.hold("add", to="b3", entry=0)
    w.append()
    s.run(5)
    changes = s.metadata_hold(client=w)
    s.crash("b1")
    s.run(5)
    assert len(changes.messages) == 1
    s.restart("b1")
    s.release(late)
    s.until(lambda: w.cas_unknown > 2)
    assert s.stored(0) == ["b1", "b2"] and s.acked == []
    s.release(changes)
    s.until(lambda: s.acked == [0])
    assert s.fragments == {0: ("b4", "b2", "b3")} and s.stored(0) == ["b1", "b2", "b4"] and s.writes(w) == 1
    s.release()
    s.settle()
    assert w.machine.last_add_fully_replicated == 0


# --- 20: several failures ----------------------------------------------------------------------------------------------------


def test_scenario_20_a_two_bookies_of_a_write_set_fail_at_once() -> None:
    """EC-2, EC-6, EC-7, EC-11, EC-13; R14.

    1. e0 is acknowledged. e1 and e2 do not get through to b1 and b2, which is noticed in one moment.
    2. One round replaces both; the fragment starts at e1, and both bookies get both entries.
    """
    s = Scenario(3, 3, 2, bookies=5)
    w = s.writer()
    w.append()
    s.settle()
    s.drop("add", to="b1")
    s.drop("add", to="b2")
    w.append(2)
    s.settle()
    assert s.fragments == {0: ("b1", "b2", "b3"), 1: ("b4", "b5", "b3")} and s.writes(w) == 1
    assert s.acked == [0, 1, 2] and s.stored(1) == s.stored(2) == ["b3", "b4", "b5"]


def test_scenario_20_b_three_bookies_fail_one_after_another_during_one_change() -> None:
    """EC-4, EC-7, EC-13, EC-15, META-11; R7, R14.

    1. e0 is acknowledged. b1 fails, and the change at e1 is on its way to the store. b2 and b3 fail meanwhile.
    2. b4, not in the metadata yet, is sent nothing, and nothing is acknowledged.
    3. The change is definite; the next round follows at once, over the same first entry. There are two fragments, not three.
    4. e1 and e2 are sent to all three new bookies.
    """
    s = Scenario(3, 3, 2, bookies=6)
    w = s.writer()
    w.append()
    s.settle()
    for bookie in ("b1", "b2", "b3"):
        s.hold("add", to=bookie)
    change = s.metadata_hold(client=w)
    w.append()
    w.append()
    for bookie in ("b1", "b2", "b3"):
        s.crash(bookie)
        s.run(3)
    assert s.acked == [0] and s.stored(1) == [] and len(change.messages) == 1 == w.cas_sent
    s.release(change)
    s.until(lambda: w.machine.version == 1)
    assert w.cas_sent == 2
    s.settle()
    assert s.acked == [0, 1, 2] and s.stored(1) == s.stored(2) == ["b4", "b5", "b6"]
    assert [v.metadata.fragments[1:] for v in s.truth.history[1:]] == [
        (Fragment(1, ("b4", "b2", "b3")),),
        (Fragment(1, ("b4", "b5", "b6")),),
    ]
