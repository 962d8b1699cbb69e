"""Scenarios 1 to 10: messages out of order, crashes of bookies, lost disks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bk_core.errors import (
    LedgerFencedError,
    RecoveryFailedError,
)
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.ledger.recover.options import RecoveryOptions
from tests.simulation.cluster import LIMITS
from tests.simulation.mutations import MUTATIONS, applied
from tests.simulation.scenario import Scenario
from tests.simulation.world import MS

BROKEN = {mutation.rule: mutation for mutation in MUTATIONS}
PATIENT = replace(LIMITS, add_timeout_ns=1_000 * MS)


def test_scenario_01_recovery_reads_fence_so_a_straggling_add_is_refused() -> None:
    """RC-8, RC-9, I-1; R1.

    1. e0 to b1 is lost; b2 stores it; e0 to b3 is slow.
    2. r fences b1 and b2; its fencing request to b3 is lost.
    3. b1 and b3 deny e0. Both denials are promises.
    4. e0 reaches b3 at last: refused. w hears FENCED and never acknowledges e0.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    s.drop("add", to="b1", entry=0)
    slow = s.hold("add", to="b3", entry=0)
    w.append()
    s.run(10)
    assert s.stored(0) == ["b2"]
    s.drop("fence", to="b3")
    s.hold("recovery-read", to="b2")
    s.recoverer()
    s.until(lambda: s.state is LedgerState.CLOSED)
    assert s.last_entry == -1 and s.fenced() == ["b1", "b2", "b3"]
    s.release(slow)
    s.settle()
    assert s.acked == [] and "b3" not in s.stored(0)
    assert [type(e) for e in w.errors] == [LedgerFencedError]


def test_scenario_02_recovery_never_starts_below_the_last_fragment() -> None:
    """RC-6 (floor), I-8; R2.

    1. w changes to an ensemble of three new bookies, in which nothing is stored yet.
    2. r hears no LAC from any of them, and nothing at all from one that is down. The floor is the entry before the fragment; only the
       length comes from the old fragment.
    """
    s = Scenario(3, 3, 2, bookies=6)
    w = s.writer()
    w.append(2)
    s.settle()
    s.drop("add")
    w.append()
    for bookie in ("b1", "b2", "b3"):
        s.crash(bookie)
    s.until(lambda: s.fragments.get(2) == ("b4", "b5", "b6"))
    s.kill(w)
    for bookie in ("b1", "b2", "b3"):
        s.restart(bookie)
    s.crash("b6")
    r = s.recoverer()
    s.settle()
    assert s.last_entry == 1 and s.fragments == {0: ("b1", "b2", "b3"), 2: ("b4", "b5", "b6")}
    assert r.result.last_entry_id == 1


# --- 3: every message may be lost, duplicated, reordered, delayed past timeouts --------------------------------------------


def test_scenario_03_a_the_late_ok_of_a_replaced_bookie_counts_for_nothing() -> None:
    """SM-3, WR-7.

    1. b1 and b2 store e0, but their answers are slow; w replaces them by b4 and b5.
    2. Before b4 and b5 have answered, the old OKs arrive. With b3's that would be three, and is one.
    3. b4 answers: now there are two.
    """
    s = Scenario(3, 3, 2, bookies=5)
    w = s.writer()
    late = s.hold("add-reply", source="b1"), s.hold("add-reply", source="b2")
    new = s.hold("add", to="b4"), s.hold("add", to="b5")
    w.append()
    s.until(lambda: bool(new[1].messages))
    assert s.fragments == {0: ("b4", "b5", "b3")} and s.stored(0) == ["b1", "b2", "b3"]
    for rule in late:
        s.release(rule)
    s.run(10)
    assert s.acked == []
    s.release(new[0])
    s.run(10)
    assert s.acked == [0] == w.acked
    s.release()
    s.settle()
    assert s.stored(0) == ["b1", "b2", "b3", "b4", "b5"]


def test_scenario_03_b_messages_come_twice_in_the_wrong_order_and_after_the_timeout() -> None:
    """WR-8, B-8, RC-13.

    1. Every message arrives twice; e0 is slow, e1 and e2 are not: nothing is acknowledged before e0, and then all of it once.
    2. e3 to b1 is so late that b1 is replaced by b4. It arrives after all, and nobody minds.
    3. r writes e3 back to bookies that have it already, twice.
    """
    s = Scenario(3, 3, 2, bookies=4)
    s.world.weather.duplication = 1.0
    w = s.writer()
    first = s.hold("add", entry=0)
    for _ in range(3):
        w.append()
    s.run(20)
    s.release(first, only=1)
    s.run(20)
    assert s.stored(0) == ["b1"] and s.stored(2) == ["b1", "b2", "b3"] and s.acked == []
    s.release(first)
    s.run(20)
    assert w.acked == [0, 1, 2]
    late = s.hold("add", to="b1", entry=3)
    s.drop("add", to="b2", entry=3, count=1)
    w.append()
    s.until(lambda: w.acked == [0, 1, 2, 3])
    assert s.fragments == {0: ("b1", "b2", "b3"), 3: ("b4", "b2", "b3")}
    s.release(late)
    s.settle()
    assert s.stored(3) == ["b1", "b2", "b3", "b4"] and len(w.adds.done) == 4
    s.kill(w)
    r = s.recoverer()
    s.settle()
    assert s.last_entry == 3 == r.result.last_entry_id and s.arrived("recovery-add", "r", "b3", 3) > 1


# --- 4 to 6: crashes -------------------------------------------------------------------------------------------------------


def test_scenario_04_a_bookie_crashes_while_it_writes() -> None:
    """B-1, EC-2.

    1. e0 is acknowledged. b1 has e1 in memory and crashes before its disk has it.
    2. b1 comes back with e0 and without e1, which w has sent to b4 meanwhile.
    """
    s = Scenario(3, 3, 2, bookies=4)
    w = s.writer()
    w.append()
    s.settle()
    w.append()
    s.until(lambda: "b1" in s.stored(1))
    s.crash("b1")
    s.restart("b1")
    s.settle()
    assert "b1" in s.stored(0) and s.stored(1) == ["b2", "b3", "b4"]
    assert s.acked == [0, 1] and s.fragments == {0: ("b1", "b2", "b3"), 1: ("b4", "b2", "b3")}


@pytest.mark.parametrize("synced", [False, True])
def test_scenario_04_b_all_bookies_crash_and_only_what_was_synced_is_recovered(synced: bool) -> None:
    """RC-10, RC-20.

    1. e0 is in the memory of all bookies, or also on their disks; nobody has told w. All of them crash, and w too.
    2. Afterwards e0 is gone, or in the ledger. It was never acknowledged, so both are right.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    w.append()
    s.until(lambda: s.stored(0) == ["b1", "b2", "b3"])
    if synced:
        s.until(lambda: s.truth.copies.get(0) == 0b111)
    s.kill(w)
    for bookie in ("b1", "b2", "b3"):
        s.crash(bookie)
        s.restart(bookie)
    s.recoverer()
    s.settle()
    assert s.last_entry == (0 if synced else -1) and s.stored(0) == (["b1", "b2", "b3"] if synced else [])


def test_scenario_04_c_a_fence_survives_the_crash() -> None:
    """B-6, B-1, I-11, WR-11; R20.

    1. r fences everybody and dies. All bookies crash and come back.
    2. w, which knows nothing of that, is refused everywhere.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    w.append()
    s.settle()
    s.hold("recovery-read")
    r = s.recoverer()
    s.until(lambda: s.truth.promised == 0b111)
    s.kill(r)
    for bookie in ("b1", "b2", "b3"):
        s.crash(bookie)
        s.restart(bookie)
    s.run(5)
    assert s.fenced() == ["b1", "b2", "b3"]
    w.append()
    s.settle()
    assert s.acked == [0] and s.stored(1) == [] and [type(e) for e in w.errors] == [LedgerFencedError]


def _crash_with_a_fence_in_memory() -> tuple[Scenario, Callable[[], object]]:
    """e0 is on b2, which r does not reach; e0 to b1 is late (the second value lets it go on), to b3 lost. b1 has promised nothing so far;
    r's fencing read of e0 marks the ledger in b1's memory, and b1 crashes before the mark is on its disk, unnoticed by anybody."""
    s = Scenario(3, 3, 2, limits=replace(PATIENT, recovery_window_entries=1))
    s.world.weather.reset = 0.0
    w = s.writer()
    late = s.hold("add", to="b1", entry=0)
    s.drop("add", to="b3", entry=0)
    w.append()
    s.run(10)
    s.drop("fence", to="b1")
    s.hold("recovery-read", to="b2")
    s.recoverer()
    s.until(lambda: "b1" in s.fenced())
    s.crash("b1")
    s.drop("recovery-read", to="b1")
    s.restart("b1")
    return s, lambda: s.release(late)


def test_scenario_05_a_denial_does_not_leave_before_the_fence_is_durable() -> None:
    """B-4, RC-11, RC-23; replication-protocol.md 14.1 item 3.

    1. See above: b1 crashes with a fence mark in memory. Its denial never left; for r it has timed out, as b2 has.
    2. The late e0 reaches b1, which is not fenced and takes it. Nobody was promised otherwise: w acknowledges e0, rightly.
    3. r waits for b2 and finds e0.
    """
    s, let_go = _crash_with_a_fence_in_memory()
    s.run(100)
    assert "b1" not in s.fenced() and s.arrived("recovery-read-reply", "b1", "r") == 0
    let_go()
    s.until(lambda: s.acked == [0])
    assert s.stored(0) == ["b1", "b2"] and s.state is LedgerState.IN_RECOVERY
    s.allow()
    s.release()
    s.settle()
    assert s.last_entry == 0


def test_scenario_06_a_denial_that_left_too_early_is_noticed() -> None:
    """B-4 broken: the same story with the answer sent at once. I-12, I-11 and I-1 fire; replication-protocol.md 14.1 item 3.

    1. The denials of b1 and b3 end the ledger before e0.
    2. b1 takes the late e0, against its word.
    """
    with applied(BROKEN["B-4"]):
        s, let_go = _crash_with_a_fence_in_memory()
        s.until(lambda: s.state is LedgerState.CLOSED)
        assert s.last_entry == -1
        let_go()
        assert {"I-11", "I-12", "I-1"} <= s.violations("I-12", "I-1")


# --- 7 to 10: lost disks (R24) -----------------------------------------------------------------------------------------------


def test_scenario_07_a_bookie_comes_back_empty() -> None:
    """B-10, WR-11, RC-25, RC-26, RC-27; R24.

    1. e0 and e1 are acknowledged. b1 gets a new disk under its old name; it comes back fenced and in limbo.
    2. w's next add is refused there: w stops. b2 has e2, b3 does not.
    3. r hears nothing about e2 from b1, a denial from b3, and the entry from b2.
    4. The ledger is closed: b1 fetches what it lacks and leaves limbo.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    w.append(2)
    s.settle()
    s.crash("b1")
    s.restart("b1", empty=True)
    assert s.fenced() == s.limbo() == ["b1"]
    s.run(5)
    s.drop("add", to="b3")
    w.append()
    s.run(10)
    assert [type(e) for e in w.errors] == [LedgerFencedError] and s.acked == [0, 1] and s.stored(2) == ["b2"]
    slow = s.hold("recovery-read", to="b2", entry=2)
    r = s.recoverer()
    s.until(lambda: s.arrived("recovery-read-reply", "b1", "r", 2) > 0 and s.arrived("recovery-read-reply", "b3", "r", 2) > 0)
    s.run(5)
    assert r.verdict is None
    s.release(slow)
    s.settle()
    assert s.last_entry == 2
    s.mend()
    assert s.limbo() == [] and "b1" in s.fenced() and all("b1" in s.stored(e) for e in range(3))


def _wiped_before_recovery() -> Scenario:
    """e0 is acknowledged, on b1 and b2. b1 loses its disk; b2 is slow to answer recoverers."""
    s = Scenario(3, 3, 2)
    w = s.writer()
    s.drop("add", to="b3")
    w.append()
    s.until(lambda: s.acked == [0])
    s.kill(w)
    s.crash("b1")
    s.restart("b1", empty=True)
    s.hold("fence", to="b2", count=1)
    s.hold("recovery-read", to="b2", count=1)
    s.recoverer(options=RecoveryOptions(limbo_counts_as_fenced=True))
    return s


def test_scenario_08_without_limbo_a_lost_disk_truncates() -> None:
    """B-10 (limbo): kept, e0 is found; broken, b1 denies what it had, and I-1 fires (I-17 one step before it); RC-25; R24."""
    s = _wiped_before_recovery()
    s.settle()
    assert s.last_entry == 0
    with applied(BROKEN["B-10 (limbo)"]):
        assert {"I-17", "I-1"} <= _wiped_before_recovery().violations()


def _wiped_after_its_denial() -> Scenario:
    """b1 and b3 have denied e0 to r, which is about to close before it. b2 has it. b1 loses its disk; then e0 reaches b1."""
    s = Scenario(3, 3, 2, limits=PATIENT)
    w = s.writer()
    late = s.hold("add", to="b1", entry=0)
    s.drop("add", to="b3")
    w.append()
    s.run(10)
    s.hold("recovery-read", to="b2")
    r = s.recoverer()
    s.until(lambda: s.state is LedgerState.IN_RECOVERY)
    closing = s.metadata_hold(client=r)
    s.until(lambda: bool(closing.messages))
    s.world.weather.reset = 0.0
    s.crash("b1")
    s.restart("b1", empty=True)
    s.release(late)
    s.release(closing)
    return s


def test_scenario_09_without_a_fence_on_boot_a_lost_disk_breaks_promises() -> None:
    """B-10 (fence): kept, e0 is refused; broken, b1 takes what it had denied, and I-12 and I-1 fire; RC-26; R24."""
    s = _wiped_after_its_denial()
    s.settle()
    assert s.last_entry == -1 and s.acked == [] and s.stored(0) == ["b2"]
    with applied(BROKEN["B-10 (fence)"]):
        assert {"I-11", "I-12", "I-1"} <= _wiped_after_its_denial().violations("I-12", "I-1")


@pytest.mark.parametrize("limbo_is_fenced", [False, True])
def test_scenario_10_the_only_copy_is_lost(limbo_is_fenced: bool) -> None:
    """B-10, RC-25, RC-10, RC-21; R24.

    1. AQ = 1: e0 is acknowledged and on b1 only, which loses its disk.
    2. r hears "unknown" from b1 and a denial from b2: neither found nor ruled out, today or tomorrow. Nothing is truncated.
    """
    s = Scenario(2, 2, 1)
    w = s.writer()
    s.drop("add", to="b2")
    w.append()
    s.until(lambda: s.acked == [0])
    s.kill(w)
    s.crash("b1")
    s.restart("b1", empty=True)
    for _ in range(2):
        r = s.recoverer(options=RecoveryOptions(limbo_counts_as_fenced=limbo_is_fenced))
        s.settle()
        assert isinstance(r.result, RecoveryFailedError) and s.state is LedgerState.IN_RECOVERY
    s.mend()
    assert s.limbo() == ["b1"]
