"""Scenarios 1 to 20 of replication-protocol.md 13.3, and 27: the first three as worked examples of the vocabulary."""

from __future__ import annotations

from bk_core.errors import LedgerFencedError
from bk_core.protocol.ledger.metadata import LedgerState
from tests.simulation.scenario import Scenario


def test_01_recovery_reads_fence_so_a_straggling_add_is_refused() -> None:
    """RC-8, RC-9, I-1.

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


def test_02_recovery_never_starts_below_the_last_fragment() -> None:
    """RC-6 (floor), I-8.

    1. w changes to an ensemble of three new bookies, in which nothing is stored yet.
    2. r hears no LAC from any of them. The floor is the entry before the fragment; only the length comes from the old fragment.
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
    r = s.recoverer()
    s.settle()
    assert s.last_entry == 1 and s.fragments == {0: ("b1", "b2", "b3"), 2: ("b4", "b5", "b6")}
    assert r.result.last_entry_id == 1


def test_27_the_closing_write_decides_between_two_recoverers() -> None:
    """RC-18, RC-22, I-7.

    1. e0 is on b3 only. r hears denials from b1 and b2 before b3 answers: it ends the ledger before e0.
    2. r2 hears b3 first: it finds e0 and writes it back.
    3. r closes first. r2 adopts that end; the copies of e0 are out of reach for ever, and no LAC speaks of them.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    s.drop("add", to="b1")
    s.drop("add", to="b2")
    w.append()
    s.run(5)
    s.kill(w)
    s.hold("recovery-read", source="r", to="b3", entry=0)
    for bookie in ("b1", "b2"):
        s.hold("recovery-read", source="r2", to=bookie, entry=0)
    r = s.recoverer()
    s.until(lambda: s.state is LedgerState.IN_RECOVERY)
    first, second = s.hold("cas", source="r"), s.hold("cas", source="r2")
    r2 = s.recoverer()
    s.until(lambda: r.verdict == -1 and r2.verdict == 0)
    s.release(first)
    s.until(lambda: s.state is LedgerState.CLOSED)
    s.release(second)
    s.settle()
    assert s.last_entry == -1 and s.acked == []
    assert r.result.last_entry_id == r2.result.last_entry_id == -1
    assert s.stored(0) == ["b1", "b2", "b3"] and {s.lac(b) for b in s.stored(0)} == {-1}
