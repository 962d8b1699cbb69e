"""Scenarios 31 to 40 of replication-protocol.md 13.3: what a recovery needs to hear, and what it must not believe."""

from __future__ import annotations

from typing import Any

from bk_core.errors import RecoveryFailedError
from bk_core.metadata.memory import MemoryStore
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.ledger.write.writer import WriterState
from bk_core.protocol.wire.messages import Status
from tests.simulation.bookies import Call
from tests.simulation.clients import Writer
from tests.simulation.scenario import Scenario
from tests.simulation.world import MS, Message


def test_scenario_31_a_striped_ledger_recovers_with_two_bookies_of_different_windows_down() -> None:
    """Q-4, Q-6, Q-7, D4, RC-5.

    1. 6/3/2: w writes e0..e5, then dies. Positions 0 and 3 go down for good.
    2. r hears four of six. E - Qa + 1 = 5 answers would never come; but in every window at most one is unheard.
    3. Each window has the two live bookies that are needed to read an entry or rule it out: r closes at e5.
    """
    s = Scenario(6, 3, 2, bookies=8)
    w = s.writer()
    for _ in range(6):
        w.append()
        s.settle()
    s.kill(w)
    s.crash("b1")
    s.crash("b4")
    r = s.recoverer()
    s.settle()
    assert s.fenced() == ["b2", "b3", "b5", "b6"]
    assert r.result.last_entry_id == s.last_entry == 5


def test_scenario_32_two_bookies_of_one_window_down_leave_the_fence_uncovered() -> None:
    """Q-4, Q-6, Q-8, RC-5, RC-21; regressions R11, R12.

    1. 6/3/2: w writes e0..e5, then dies. Positions 0 and 2 are down: window {0, 1, 2} has an ack quorum unheard.
    2. r hears four answers, twice as many as one window's quorum; it reads nothing, gives up, and leaves the ledger IN_RECOVERY.
    3. Position 2 returns. r2 fences five bookies and closes at e5.
    """
    s = Scenario(6, 3, 2, bookies=8)
    w = s.writer()
    for _ in range(6):
        w.append()
        s.settle()
    s.kill(w)
    s.crash("b1")
    s.crash("b3")
    reads = s.hold("recovery-read")
    r = s.recoverer()
    s.settle()
    assert s.fenced() == ["b2", "b4", "b5", "b6"] and reads.messages == []
    assert isinstance(r.result, RecoveryFailedError) and s.state is LedgerState.IN_RECOVERY
    s.release(reads)
    s.restart("b3")
    r2 = s.recoverer()
    s.settle()
    assert r2.result.last_entry_id == s.last_entry == 5


def test_scenario_33_a_a_reader_passes_over_a_corrupt_copy() -> None:
    """RD-3, RD-8.

    1. w writes e0 and e1 to three bookies and closes.
    2. One copy of e0 rots: of each bookie in turn, so that a reader beginning anywhere meets it.
    3. t takes both entries, the first from another bookie, and says which copy is bad.
    """
    passed_over = 0
    for rotten in ("b1", "b2", "b3"):
        s = Scenario(3, 3, 2)
        w = s.writer()
        w.append(2)
        s.settle()
        w.close()
        s.settle()
        s.corrupt(rotten, 0)
        t = s.reader()
        s.settle()
        assert t.entries == list(s.truth.submitted.items()) and t.at_end and t.errors == []
        passed_over += f" at {rotten}; asking another replica" in s.story()
    assert passed_over


def test_scenario_33_b_recovery_takes_a_corrupt_copy_for_unknown_and_mends_it() -> None:
    """RC-10, RC-12, RC-13.

    1. e0 is on b1 and b2, and acknowledged; it never reached b3. The copy on b1 rots.
    2. r reads b1 (corrupt) and b3 (no such entry) while b2 hesitates. One denial and one unknown: no verdict.
    3. b2 answers: e0 is recovered, and the write-back leaves three good copies.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    s.drop("add", to="b3")
    w.append(2)
    s.until(lambda: w.acked == [0, 1])
    s.kill(w)
    s.corrupt("b1", 0)
    late = s.hold("recovery-read-reply", source="b2", entry=0)
    r = s.recoverer()
    s.until(lambda: len(late.messages) == 1)
    s.run(20)  # b1 and b3 have answered long ago
    assert (
        list(s.truth.denied) == [(2, 0), (2, 1)] and r.verdict is None
    )  # b3 denies, and nobody else and s.state is LedgerState.IN_RECOVERY
    s.release(late)
    s.settle()
    assert r.result.last_entry_id == s.last_entry == 1
    assert all(s.cluster.bookies[b].sound_body(s.truth.ledger_id, 0) is not None for b in ("b1", "b2", "b3"))


def test_scenario_34_an_entry_with_only_corrupt_copies_is_never_skipped() -> None:
    """RC-10, RC-12, RC-21.

    1. w writes e0; then e1 and e2 together, so that no bookie has heard of a LAC above 0. All are acknowledged.
    2. Every copy of e1 rots. r can read e2 but neither read e1 nor rule it out: it gives up, the ledger stays IN_RECOVERY.
    3. One copy is mended. r2 closes at e2.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    w.append()
    s.settle()
    s.drop("write-lac")
    w.append(2)
    s.run(10)
    assert w.acked == [0, 1, 2] and {s.lac(b) for b in s.stored(2)} == {0}
    s.kill(w)
    for bookie in ("b1", "b2", "b3"):
        s.corrupt(bookie, 1)
    r = s.recoverer()
    s.settle()
    assert isinstance(r.result, RecoveryFailedError) and "entry 1 can neither be read nor ruled out" in str(r.result)
    assert s.state is LedgerState.IN_RECOVERY and r.verdict is None
    s.repair("b3", 1)
    r2 = s.recoverer()
    s.settle()
    assert r2.result.last_entry_id == s.last_entry == 2


def test_scenario_35_a_corrupt_last_entry_proves_the_fence_and_no_lac() -> None:
    """RC-4, RC-6.

    1. w writes e0, then e1, whose copy on b1 rots: the LAC in its header reads 85 now.
    2. r's fencing request to b3 is lost. b1 answers with the rotten e1, b2 with a good one: two are fenced, which covers.
    3. r starts at the LAC of b2's answer, 0, and closes at e1, not at 85, and without hearing b3.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    w.append()
    s.settle()
    s.drop("write-lac")
    w.append()
    s.run(10)
    s.kill(w)
    s.corrupt("b1", 1)
    s.drop("fence", to="b3")
    r = s.recoverer()
    asked_at = s.world.now
    s.until(lambda: s.state is LedgerState.CLOSED)
    assert r.machine.base == 0 and s.last_entry == 1
    assert s.world.now - asked_at < 80 * MS  # nobody waited for b3


def test_scenario_36_a_an_io_error_is_no_denial_and_is_asked_again() -> None:
    """B-7, RC-10, RC-11; regression R23.

    1. e0 and e1 are on b1 and b2, and acknowledged. b1 cannot read e0 from its disk any more.
    2. r hears an error from b1 and a denial from b3 while b2 hesitates: no verdict; it asks b1 again.
    3. b2 answers: e0 is recovered; the ledger closes at e1.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    s.drop("add", to="b3")
    w.append(2)
    s.until(lambda: w.acked == [0, 1])
    s.kill(w)
    s.io_error("b1", 0)
    asked = s.hold("recovery-read-reply", source="b2", entry=0)
    again = s.hold("recovery-read", to="b1", entry=0)
    r = s.recoverer()
    s.until(lambda: len(again.messages) == 1)
    s.release(again, only=1)
    s.until(lambda: len(again.messages) == 1)  # the next question to b1
    assert list(s.truth.denied) == [(2, 0), (2, 1)]  # b3 denies, and nobody else
    assert r.verdict is None and s.state is LedgerState.IN_RECOVERY
    s.release(again)
    s.release(asked)
    s.settle()
    assert r.result.last_entry_id == s.last_entry == 1


def test_scenario_36_b_with_an_io_error_and_silence_recovery_gives_up_and_truncates_nothing() -> None:
    """B-7, RC-11, RC-21; regression R23.

    1. As in the case before, but b2 does not answer reads at all.
    2. One error, one silence, one denial: r gives up. The ledger stays IN_RECOVERY.
    3. b2 answers again. r2 closes at e1.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    s.drop("add", to="b3")
    w.append(2)
    s.until(lambda: w.acked == [0, 1])
    s.kill(w)
    s.io_error("b1", 0)
    silence = s.drop("recovery-read", to="b2")
    r = s.recoverer()
    s.settle()
    assert isinstance(r.result, RecoveryFailedError) and s.state is LedgerState.IN_RECOVERY and r.verdict is None
    s.allow(silence)
    r2 = s.recoverer()
    s.settle()
    assert r2.result.last_entry_id == s.last_entry == 1


def test_scenario_37_one_copy_is_enough_to_recover_an_entry() -> None:
    """RC-10, RC-13, D2.

    1. e0 reached b1 only. w dies; nobody was told.
    2. b2 and b3 do not answer r's reads of e0. b1 does, and that is enough: it is written back before any read has timed out.
    3. The ledger closes at e0, with three copies.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    s.drop("add", to="b2")
    s.drop("add", to="b3")
    w.append()
    s.run(5)
    s.kill(w)
    for bookie in ("b2", "b3"):
        s.drop("recovery-read", to=bookie, entry=0)
    r = s.recoverer()
    asked_at = s.world.now
    s.until(lambda: s.state is LedgerState.CLOSED)
    assert s.world.now - asked_at < 80 * MS
    assert s.last_entry == 0 and s.stored(0) == ["b1", "b2", "b3"] and s.acked == []
    s.settle()
    assert r.result.length == len(s.truth.submitted[0])


def test_scenario_38_a_hanging_bookie_does_not_delay_the_end_verdict() -> None:
    """Q-2, RC-10, RC-11; regression R13.

    1. w writes e0 and dies.
    2. b1 takes r's question for e1 and never answers it. b2 and b3 deny it: the ledger ends at e0, without waiting.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    w.append()
    s.settle()
    s.kill(w)
    hanging = s.hold("recovery-read-reply", source="b1")
    r = s.recoverer()
    asked_at = s.world.now
    s.until(lambda: s.state is LedgerState.CLOSED)
    assert hanging.messages and s.world.now - asked_at < 80 * MS
    assert r.verdict == s.last_entry == 0


def test_scenario_39_a_an_empty_ledger_closes_with_one_bookie_dead_for_ever() -> None:
    """B-3, Q-10, RC-20; regression R13.

    1. Nothing was ever written. b3 is dead.
    2. b1 and b2 have never heard of the ledger: they are fenced by being asked, deny e0, and that is the end: -1, no bytes.
    """
    s = Scenario(3, 3, 2)
    s.crash("b3")
    r = s.recoverer()
    s.settle()
    assert s.last_entry == -1 and s.metadata.length == 0 and s.fenced() == ["b1", "b2"]
    assert r.result.last_entry_id == -1 and s.fragments == {0: ("b1", "b2", "b3")}


def test_scenario_39_b_how_many_may_be_dead_depends_on_the_windows() -> None:
    """RC-5, RC-20, Q-8; regression R12: counted per window of positions, neither in all nor not at all.

    1. 2/2/2 with one bookie dead: the other one alone can rule out e0. Closed at -1.
    2. 4/2/2 with positions 0 and 2 dead: one per window. Closed at -1.
    3. 4/2/2 with positions 0 and 1 dead: window {0, 1} may hold an entry that nobody living has. Given up.
    """
    for shape, dead, closes in (((2, 2, 2), ("b2",), True), ((4, 2, 2), ("b1", "b3"), True), ((4, 2, 2), ("b1", "b2"), False)):
        s = Scenario(*shape)
        for bookie in dead:
            s.crash(bookie)
        r = s.recoverer()
        s.settle()
        assert s.last_entry == (-1 if closes else None)
        assert isinstance(r.result, RecoveryFailedError) is not closes


def _with_a_copy_of_an_add(s: Scenario) -> tuple[Writer, Message]:
    """w writes e0 to all three; the add to b3 is delivered now, and returned to be delivered once more."""
    w = s.writer()
    kept = s.hold("add", to="b3", entry=0)
    w.append()
    s.until(lambda: len(kept.messages) == 1)
    (message,) = kept.messages
    s.release(kept)
    s.settle()
    assert s.acked == [0] and s.stored(0) == ["b1", "b2", "b3"]
    return w, message


def _answers_to_adds(s: Scenario, bookie: str) -> list[Status]:
    """The status of every answer that ``bookie`` gives to an add from now on."""
    found: list[Status] = []
    target = s.cluster.bookies[bookie]
    reply = target._reply

    def note(call: Call, response: Any) -> None:
        if call.kind == "add":
            found.append(response.status)
        reply(call, response)

    target._reply = note  # type: ignore[method-assign]
    return found


def test_scenario_40_a_an_old_add_delivered_again_after_a_recovery_is_refused() -> None:
    """B-1, B-6.

    1. w writes e0. r recovers and closes the ledger; b3 is fenced, and stays so through a restart.
    2. The network delivers the add of e0 to b3 a second time: refused. So is an add that b3 never saw.
    """
    s = Scenario(3, 3, 2)
    w, old = _with_a_copy_of_an_add(s)
    never_seen = s.hold("add", to="b3", entry=1)
    w.append()
    s.run(10)
    s.recoverer()
    s.settle()
    assert s.state is LedgerState.CLOSED
    s.crash("b3")
    s.restart("b3")
    answers = _answers_to_adds(s, "b3")
    s.world.deliver_held(old)
    s.release(never_seen)
    s.settle()
    assert answers == [Status.FENCED, Status.FENCED]
    assert w.acked == [0, 1] and w.machine.state is WriterState.FENCED  # e1 was on b1 and b2, which is enough


def test_scenario_40_b_a_deleted_ledger_that_was_fenced_stays_out_of_reach() -> None:
    """B-6; regression R22.

    1. w writes e0; r recovers and closes; the ledger is deleted, and the bookies collect what they had of it.
    2. The old add of e0 reaches b3 once more: refused, nothing is stored.
    """
    s = Scenario(3, 3, 2)
    _, old = _with_a_copy_of_an_add(s)
    s.recoverer()
    s.settle()
    s.delete_ledger()
    for bookie in s.cluster.bookies.values():
        bookie.collect(s.truth.ledger_id)
    assert s.stored(0) == []
    answers = _answers_to_adds(s, "b3")
    s.world.deliver_held(old)
    s.settle()
    assert answers == [Status.FENCED] and s.stored(0) == []


def test_scenario_40_c_garbage_of_a_deleted_ledger_never_shows_up_in_its_successor() -> None:
    """CR-3.

    1. w writes e0 and closes: nobody fences b3. The ledger is deleted; the disk of b3 is replaced, so it knows nothing of it.
    2. The same work begins again in a new ledger, on the same bookies. It has another id, as the store sees to.
    3. The old add of e0 reaches b3: whatever b3 makes of it, it is garbage under the old id. The new ledger's e0 is the new one.
    """
    s = Scenario(3, 3, 2)
    w, old = _with_a_copy_of_an_add(s)
    w.close()
    s.settle()
    s.delete_ledger()
    s.crash("b3")
    s.restart("b3", empty=True)
    assert s.stored(0) == ["b1", "b2"]
    new = s.cluster.create_ledger((3, 3, 2))
    w2 = s.cluster.writer("w2", new)
    w2.append()
    s.world.deliver_held(old)
    s.settle()
    assert new.ledger_id != s.truth.ledger_id
    store = MemoryStore("scenario 40")
    first = store.new_ledger_id()
    store.create_ledger(first, b"")
    store.delete_ledger(first)
    assert store.new_ledger_id() > first
    assert s.stored(0) == ["b1", "b2", "b3"]  # the garbage
    t = s.cluster.reader("t", new, tailing=False)
    w2.close()
    s.settle()
    t.start()
    s.settle()
    assert t.entries == [(0, new.submitted[0])] and new.submitted[0] != s.truth.submitted[0]
