"""Scenarios 21 to 30 of replication-protocol.md 13.3, in the vocabulary of the simulator's README.md."""

from __future__ import annotations

import pytest

from bk_core.errors import NotEnoughBookiesError, RecoveryFailedError
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.ledger.recover.options import RecoveryOptions
from bk_core.protocol.ledger.write.options import ChangeWindow, EnsembleChangeMode, WriterOptions
from bk_core.protocol.ledger.write.writer import WriterState
from tests.simulation.scenario import Scenario

DELAYED = WriterOptions(ensemble_change=EnsembleChangeMode.DELAYED)


# --- 21 and 22: what is sent again, what is taken back ------------------------------------------------------------------------


def test_scenario_21_a_a_bookie_is_replaced_and_comes_back() -> None:
    """EC-7, EC-11, L-1; replication-protocol.md 14.1 item 7.

    1. All three must acknowledge. b1 fails and b4 takes its place; b4 does not answer.
    2. b1 is back, b4 times out, and the only spare bookie is b1: {0: b1 b2 b3} as at the beginning.
    3. e0 is sent to b1, although no position differs from the first ensemble.
    """
    s = Scenario(3, 3, 3, bookies=4)
    w = s.writer()
    s.hold("add", to="b1", count=1)
    s.hold("add", to="b4")
    w.append()
    s.run(1)
    s.crash("b1")
    s.until(lambda: s.fragments == {0: ("b4", "b2", "b3")})
    s.restart("b1")
    s.until(lambda: s.fragments == {0: ("b1", "b2", "b3")})
    s.until(lambda: s.acked == [0])
    assert s.stored(0) == ["b1", "b2", "b3"] and s.writes(w) == 2
    s.release()
    s.settle()


def test_scenario_21_b_a_failed_bookie_stays_for_want_of_another() -> None:
    """EC-6 (best effort), EC-11, L-1: what failed on a bookie that stays is sent to it again with the others' entries.

    1. e0 gets lost on its way to b1 and to b2. Only b4 is spare: it replaces b1.
    2. b2 keeps its place, and gets e0 now.
    """
    s = Scenario(3, 3, 3, bookies=4)
    w = s.writer()
    s.drop("add", to="b1")
    s.drop("add", to="b2", count=1)
    w.append()
    s.settle()
    assert s.acked == [0] and s.fragments == {0: ("b4", "b2", "b3")} and s.arrived("add", "w", "b2", 0) == 1


@pytest.mark.parametrize("window", list(ChangeWindow))
def test_scenario_22_later_entries_lose_an_ack_before_the_head_is_looked_at(window: ChangeWindow) -> None:
    """EC-8, EC-10, EC-12, EC-14, WR-8, I-3; R9, replication-protocol.md 14.1 items 1 and 2.

    1. 4/2/2: e0 on b1 b2, e1 on b2 b3, e2 on b3 b4, e3 on b4 b1. All of e1 and e2 are acknowledged by their bookies; e0 waits for b1.
    2. b4, which has nothing to do with e0, fails; its replacement is on its way to the store when b1 answers for e0.
    3. Blocked: nothing moves. Survivors: e0 and e1 do, e2 does not, one of its two copies is about to leave.
    4. The change is definite: e0 and e1 are acknowledged at once; e2 and e3 when b5 has them.
    """
    s = Scenario(4, 2, 2, bookies=5)
    w = s.writer(options=WriterOptions(window=window))
    head = s.hold("add-reply", source="b1", entry=0)
    s.hold("add", to="b4", entry=3)
    new = s.hold("add", to="b5")
    for _ in range(4):
        w.append()
    s.run(10)
    assert s.stored(2) == ["b3", "b4"] and s.acked == []
    change = s.metadata_hold(client=w)
    s.crash("b4")
    s.until(lambda: bool(change.messages))
    s.release(head)
    s.run(5)
    assert s.acked == ([] if window is ChangeWindow.BLOCK else [0, 1])
    s.release(change)
    s.until(lambda: len(new.messages) == 2)
    assert s.acked == [0, 1]
    assert s.fragments == {0: ("b1", "b2", "b3", "b5")}
    s.release(new)
    s.settle()
    assert s.acked == [0, 1, 2, 3] and s.stored(2) == ["b3", "b4", "b5"] and s.stored(3) == ["b1", "b5"]


# --- 23 to 26: slow, read-only and missing bookies -----------------------------------------------------------------------------


def test_scenario_23_a_slow_bookie_in_delayed_mode() -> None:
    """EC-3 (delayed), WR-10.

    1. b3 is slow. e0 and e1 are acknowledged without it, and that it fails to answer in time leads to nothing.
    2. b2 fails as well while e2 is waiting: no ack quorum is left, and both are replaced at e2.
    """
    s = Scenario(3, 3, 2, bookies=5)
    w = s.writer(options=DELAYED)
    s.hold("add", to="b3")
    w.append(2)
    s.run(200)
    assert s.acked == [0, 1] and s.stored(1) == ["b1", "b2"] and w.cas_sent == 0
    w.append()
    s.run(200)
    assert s.acked == [0, 1, 2] and w.cas_sent == 0
    s.hold("add", to="b2")
    w.append()
    s.until(lambda: s.acked == [0, 1, 2, 3])
    assert s.fragments == {0: ("b1", "b2", "b3"), 3: ("b1", "b4", "b5")} and s.stored(3) == ["b1", "b4", "b5"]
    s.release()
    s.settle()
    assert s.writes(w) == 1


@pytest.mark.parametrize("mode", [EnsembleChangeMode.IMMEDIATE, EnsembleChangeMode.DELAYED])
def test_scenario_24_a_bookie_turns_read_only(mode: EnsembleChangeMode) -> None:
    """WR-6 (READ_ONLY), EC-3, B-11, RC-13.

    1. b3 turns read-only: it refuses e1 and is replaced at once, in delayed mode too.
    2. b2 turns read-only as well, after e2, which is on b1 and b4 only. w dies.
    3. r writes e2 back to b2, which still takes it.
    """
    s = Scenario(3, 3, 2, bookies=4)
    w = s.writer(options=WriterOptions(ensemble_change=mode))
    w.append()
    s.settle()
    s.read_only("b3")
    w.append()
    s.settle()
    assert s.acked == [0, 1] and s.fragments == {0: ("b1", "b2", "b3"), 1: ("b1", "b2", "b4")}
    s.drop("add", to="b2")
    w.append()
    s.run(10)
    s.kill(w)
    s.read_only("b2")
    s.read_only("b4")
    assert s.stored(2) == ["b1", "b4"]
    r = s.recoverer()
    s.settle()
    assert s.last_entry == 2 and s.stored(2) == ["b1", "b2", "b4"] and not r.machine.writer.private_changes


def test_scenario_25_a_not_enough_bookies_for_a_standard_writer() -> None:
    """EC-6, WR-12, CL-6, WR-13, I-14.

    1. e0 is acknowledged; b3 fails, and w knows of no other bookie. It looks at the registry, which has none either.
    2. w closes the ledger at e0, which needs no bookie, and fails e1. So e1 is not in the ledger.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    w.append()
    s.settle()
    s.hold("add", to="b2", entry=1)
    w.append()
    s.run(1)
    s.crash("b3")
    s.settle()
    assert s.arrived("bookies", source="w", to="md") == 1
    assert s.last_entry == 0 and s.acked == [0] and [type(e) for e in w.errors] == [NotEnoughBookiesError]
    assert w.machine.state is WriterState.CLOSED
    w.append()
    assert len(w.errors) == 2 and s.stored(2) == []


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "lost"])
def test_a_spare_that_registers_between_the_failure_and_the_look_saves_the_ledger(answered: bool) -> None:
    """EC-6, WR-4, WR-10; as in scenario 25 a, but of a rolling restart.

    1. b4 is away when b3 fails under e1. w looks at the registry; meanwhile e2 goes to the old ensemble, and nothing is decided.
    2. b4 registers before the look is answered, or before w gives the answer up for lost.
    3. w goes on with b4 from e1 on.
    """
    s = Scenario(3, 3, 2, bookies=4)
    w = s.writer()
    w.append()
    s.settle()
    s.crash("b4")
    look = s.hold("bookies", source="w")
    slow = s.hold("add", to="b2")
    w.append()
    s.run(1)
    s.crash("b3")
    s.until(lambda: len(look.messages) == 1)
    w.append()
    s.run(10)
    assert s.acked == [0] and w.errors == [] and s.state is LedgerState.OPEN and len(look.messages) == 1
    s.restart("b4")
    if answered:
        s.release(look)
    s.until(lambda: s.fragments == {0: ("b1", "b2", "b3"), 1: ("b1", "b2", "b4")})
    s.release(slow)
    s.settle()
    w.close()
    s.settle()
    assert s.acked == [0, 1, 2] and w.errors == [] and s.last_entry == 2 and s.stored(2) == ["b1", "b2", "b4"]


def test_scenario_25_b_not_enough_bookies_for_a_writer_with_guaranteed_write_quorum() -> None:
    """G-2, G-10, G-11, G-16, WR-15.

    1. b3 fails. w goes on acknowledging with b1 and b2, holds everything for a third bookie, and neither closes nor fails.
    2. b2 fails as well: e3 simply waits. The close that was asked for waits too.
    3. Both are back: all of it reaches all of them, and the ledger is closed and sealed.
    """
    s = Scenario(3, 3, 2, gwq=True)
    w = s.writer()
    w.append()
    s.settle()
    s.crash("b3")
    s.run(5)
    w.append()
    w.append()
    s.run(1_500)
    assert s.acked == [0, 1, 2] and w.machine.last_add_fully_replicated == 0 and w.machine.unretired_entries == 2
    s.crash("b2")
    s.run(5)
    w.append()
    w.close()
    s.run(1_500)
    assert s.acked == [0, 1, 2] and w.errors == w.close_results == [] and s.state is LedgerState.OPEN
    assert w.machine.unretired_entries == 3
    s.restart("b2")
    s.restart("b3")
    s.settle(20_000)
    assert s.acked == [0, 1, 2, 3] and s.stored(3) == ["b1", "b2", "b3"]
    assert s.last_entry == 3 and s.metadata.sealed and s.fragments == {0: ("b1", "b2", "b3")}


def test_scenario_26_not_enough_bookies_for_a_recovery() -> None:
    """RC-15, RC-21; R5.

    1. e0 is acknowledged, on b1 and b2. b3 is down: r finds e0, and has nobody to write it back to in place of b3, also after a look at
       the registry.
    2. r gives up. The ledger is not closed, and not short of e0.
    3. b3 is back: the next run closes at e0.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    s.drop("add", to="b3")
    w.append()
    s.until(lambda: s.acked == [0])
    s.kill(w)
    s.crash("b3")
    slow = s.hold("recovery-add", to="b2")
    r = s.recoverer()
    s.until(lambda: r.result is not None)
    s.release(slow)
    s.settle()
    assert s.arrived("bookies", source="r", to="md") == 1
    assert isinstance(r.result, NotEnoughBookiesError) and s.state is LedgerState.IN_RECOVERY
    s.restart("b3")
    s.recoverer()
    s.settle()
    assert s.last_entry == 0 and s.stored(0) == ["b1", "b2", "b3"]


def test_a_recovery_takes_a_spare_that_registers_before_it_has_looked() -> None:
    """EC-6, RC-15; as scenario 26, but b4 registers while r looks at the registry."""
    s = Scenario(3, 3, 2, bookies=4)
    w = s.writer()
    s.drop("add", to="b3")
    w.append()
    s.until(lambda: s.acked == [0])
    s.kill(w)
    s.crash("b3")
    s.crash("b4")
    look = s.hold("bookies", source="r")
    s.hold("recovery-add", to="b2")
    r = s.recoverer()
    s.until(lambda: len(look.messages) == 1)
    s.restart("b4")
    s.release()
    s.settle()
    assert s.last_entry == 0 and s.stored(0) == ["b1", "b2", "b4"] and r.result.fragments[0].ensemble == ("b1", "b2", "b4")


# --- 27 to 29: several recoverers -----------------------------------------------------------------------------------------------


def test_scenario_27_the_closing_write_decides_between_two_recoverers() -> None:
    """RC-18, RC-22, RC-7, I-6, I-7; replication-protocol.md 14.1 item 4.

    1. e0 and e1 are on b3 only. r hears denials from b1 and b2 before b3 answers: it ends the ledger before e0.
    2. r2 hears b3 first: it finds both and writes them back. t looks on.
    3. r closes first. r2 adopts that end; the copies are out of reach for ever, no LAC speaks of them, and t has seen nothing.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    s.drop("add", to="b1")
    s.drop("add", to="b2")
    w.append()
    w.append()
    s.run(5)
    s.kill(w)
    t = s.reader(tailing=True)
    s.hold("recovery-read", source="r", to="b3", entry=0)
    for bookie in ("b1", "b2"):
        for entry in (0, 1):
            s.hold("recovery-read", source="r2", to=bookie, entry=entry)
    r = s.recoverer()
    s.until(lambda: s.state is LedgerState.IN_RECOVERY)
    first, second = s.hold("cas", source="r"), s.hold("cas", source="r2")
    r2 = s.recoverer()
    s.until(lambda: r.verdict == -1 and r2.verdict == 1)
    s.run(30)
    s.release(first)
    s.until(lambda: s.state is LedgerState.CLOSED)
    s.release(second)
    s.settle()
    assert s.last_entry == -1 and s.acked == []
    assert r.result.last_entry_id == r2.result.last_entry_id == -1
    assert s.stored(1) == ["b1", "b2", "b3"] and {s.lac(b) for b in s.stored(1)} == {-1}
    assert t.at_end and t.entries == [] and t.last_add_confirmed == -1


@pytest.mark.parametrize("reread", [False, True])
def test_scenario_28_a_a_recoverer_dies_after_changes_that_only_it_knew(reread: bool) -> None:
    """RC-7, RC-15, RC-21, RC-22, I-4, I-6; R4, replication-protocol.md 14.1 item 4.

    1. e0 and e1 are on b1 only, not acknowledged. r finds them; b2 and b3 do not take its write-backs, so it takes b4 and b5 instead.
    2. Everything is written back; r dies before it closes. Nothing of b4 and b5 is in the metadata.
    3. r2 and r3 read from b1 b2 b3. No LAC tells them to start above e0, so both entries get their copies there. One of them closes.
    """
    s = Scenario(3, 3, 2, bookies=5)
    w = s.writer()
    s.drop("add", to="b2")
    s.drop("add", to="b3")
    w.append()
    w.append()
    s.run(5)
    s.kill(w)
    for entry in (0, 1):
        for bookie in ("b2", "b3"):
            s.hold("recovery-read", to=bookie, entry=entry)
    for bookie in ("b2", "b3"):
        s.drop("recovery-add", source="r", to=bookie)
    r = s.recoverer()
    s.until(lambda: s.state is LedgerState.IN_RECOVERY)
    closing = s.metadata_hold(client=r)
    s.until(lambda: bool(closing.messages))
    assert r.machine.writer.private_changes == {0: ("b1", "b4", "b5")} and s.stored(1) == ["b1", "b4", "b5"]
    s.kill(r)
    assert s.fragments == {0: ("b1", "b2", "b3")}
    options = RecoveryOptions(reread_last_fragment=reread)
    r2, r3 = s.recoverer(options=options), s.recoverer(options=options)
    s.settle()
    s.release(closing)
    s.settle()
    assert s.last_entry == 1 == r2.result.last_entry_id == r3.result.last_entry_id
    assert s.fragments == {0: ("b1", "b2", "b3")} and s.stored(0) == s.stored(1) == ["b1", "b2", "b3", "b4", "b5"]
    assert s.writes(r2) + s.writes(r3) == 1 and s.arrived("fence", "r2", "b4") == s.arrived("recovery-read", "r2", "b4") == 0


def test_scenario_28_b_what_a_recoverer_reads_does_not_follow_what_it_writes() -> None:
    """RC-2, RC-15, I-17; R3.

    1. e0 and e1 are acknowledged, on b1 and b2. r finds e0; its reads of e1 get lost.
    2. b1 and b2 do not take e0 from r, which puts it on b3 and b4. Only r knows of them, and they have nothing of e1.
    3. r asks for e1 again: b1 and b2, not b3 and b4.
    """
    s = Scenario(2, 2, 2, bookies=4)
    w = s.writer()
    w.append(2)
    s.until(lambda: s.acked == [0, 1])
    s.kill(w)
    for bookie in ("b1", "b2"):
        s.drop("recovery-add", to=bookie)
        s.drop("recovery-read", to=bookie, entry=1, count=1)
    r = s.recoverer()
    s.until(lambda: "b4" in s.stored(0))
    assert r.verdict is None and s.fragments == {0: ("b1", "b2")} and r.machine.writer.private_changes == {0: ("b3", "b4")}
    s.settle()
    assert s.last_entry == 1 and s.fragments == {0: ("b3", "b4")} and s.stored(1) == ["b1", "b2", "b3", "b4"]


STAGES = ["marked", "one fenced", "all fenced", "e1 written back", "e2 written back", "close sent", "close applied"]


@pytest.mark.parametrize("stage", STAGES)
def test_scenario_29_a_recoverer_dies_wherever_it_stands(stage: str) -> None:
    """RC-1, RC-13, RC-21, RC-22, META-13, I-17.

    1. e0 is acknowledged, e1 is at its ack quorum, e2 is on b3.
    2. r dies at some stage. What it has done does no harm.
    3. r2 finds at least e1, and e2 where r had brought it to an ack quorum. A close of r that arrives now is refused.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    w.append()
    s.settle()
    s.drop("add", to="b3", entry=1)
    s.drop("add", to="b1", entry=2)
    s.drop("add", to="b2", entry=2)
    s.drop("add-reply")
    w.append()
    w.append()
    s.run(5)
    s.kill(w)
    assert s.acked == [0] and s.stored(1) == ["b1", "b2"] and s.stored(2) == ["b3"]
    for bookie in ("b1", "b2"):
        s.hold("recovery-read", source="r", to=bookie, entry=2)
    held = [s.hold("fence", to=bookie) for bookie in ("b2", "b3")] if stage == "one fenced" else []
    r = s.recoverer()
    s.until(lambda: s.state is LedgerState.IN_RECOVERY)
    closing = s.metadata_hold(client=r) if stage != "close applied" else None
    reached = {
        "marked": lambda: True,
        "one fenced": lambda: s.truth.fenced == 0b001,
        "all fenced": lambda: s.truth.fenced == 0b111,
        "e1 written back": lambda: "b3" in s.stored(1),
        "e2 written back": lambda: s.stored(2) == ["b1", "b2", "b3"],
        "close sent": lambda: closing is not None and bool(closing.messages),
        "close applied": lambda: s.state is LedgerState.CLOSED,
    }
    s.until(reached[stage])
    s.kill(r)
    for rule in held:
        s.discard(rule)
        s.allow(rule)
    r2 = s.recoverer()
    s.settle()
    s.release()
    s.settle()
    assert s.state is LedgerState.CLOSED and r2.result.last_entry_id == s.last_entry
    assert s.last_entry in ((2,) if stage in STAGES[4:] else (1, 2))
    assert s.writes(r2) == (0 if stage == "close applied" else 1)


# --- 30: partial fence ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "silent"),
    [((3, 3, 2), "b2 b3"), ((4, 2, 2), "b1 b2"), ((4, 2, 2), "b4 b1"), ((6, 3, 2), "b1 b3"), ((5, 3, 3), "b2 b3 b4"), ((2, 2, 1), "b2")],
)
def test_scenario_30_one_answer_too_few_in_one_window(shape: tuple[int, int, int], silent: str) -> None:
    """RC-5, RC-21, Q-4, Q-8, RC-4; R11, R12.

    1. In one write set an ack quorum of bookies answers no fencing request. The others do, however many they are.
    2. r reads no entry and gives up, after having asked again. The ledger stays IN_RECOVERY.
    3. One of the silent bookies answers: the next run reads, and closes.
    """
    s = Scenario(*shape)
    names = silent.split()
    for bookie in names:
        s.drop("fence", to=bookie)
    r = s.recoverer()
    s.settle()
    assert isinstance(r.result, RecoveryFailedError) and s.state is LedgerState.IN_RECOVERY
    assert len(s.fenced()) == shape[0] - len(names)
    assert all(s.arrived("recovery-read", "r", bookie) == 0 for bookie in s.cluster.bookies)
    s.allow()
    for bookie in names[1:]:
        s.drop("fence", to=bookie)
    s.recoverer()
    s.settle()
    assert s.last_entry == -1
