"""Scenarios 51 to 60 of replication-protocol.md 13.3: LAFR slots, re-replication, logs of ledgers, clocks, large ids, old lists."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bk_core.errors import LogDataLossError, LogError, LogTakenOverError, ReadError
from bk_core.protocol.events import Outcome
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.read.reader import RangeReader
from bk_core.protocol.ledger.replication import stored_bounds
from bk_core.protocol.log import effects as log_effects
from bk_core.protocol.log.leader_state import LeaderState, Span
from bk_core.protocol.log.reader_order import LogReaderOrder, OnTrimmed
from tests.simulation.clients import Recoverer
from tests.simulation.log_keepers import trimming
from tests.simulation.logs import Leader, LogClient, LogTruth
from tests.simulation.scenario import Scenario
from tests.simulation.world import MS

# --- the LAFR slot -----------------------------------------------------------------------------------------------------


def _recovered(s: Scenario) -> Recoverer:
    r = s.recoverer()
    s.settle()
    assert s.state is LedgerState.CLOSED and s.metadata.sealed
    return r


def test_scenario_51_a_a_late_write_sets_the_lafr_slot_back() -> None:
    """G-12, G-22.

    1. GWQ. e0 is everywhere; w's word of that, LAFR 0, is slow. It writes e1 and e2 as well, and says LAFR 2.
    2. The late word arrives last and sets the slots of all three bookies back to 0. w dies.
    3. r starts at 0 instead of 2, though the LAC it hears is 1. It reads two entries more; the result is the same.
    """
    results = []
    for late_word in (True, False):
        s = Scenario(3, 3, 2, gwq=True)
        w = s.writer()
        late = s.hold("write-lac", count=3)
        w.append()
        s.until(lambda: len(late.messages) == 3)  # noqa: B023
        for _ in range(2):
            w.append()
            s.settle(200)
        assert set(s.truth.slots.values()) == {2}
        if late_word:
            s.release(late)
            s.settle()
            assert set(s.truth.slots.values()) == {0}
        s.kill(w)
        r = _recovered(s)
        assert (r.machine.base, r.machine.frozen) == ((0, 1) if late_word else (2, 2))
        results.append(s.metadata)
    assert results[0] == results[1] and results[0].last_entry_id == 2


def test_scenario_51_b_new_bookies_have_no_lafr_slot() -> None:
    """G-12, G-21, G-23.

    1. GWQ. w writes e0 and e1 and says LAFR 1. Then all three bookies fail, and e2 goes to three new ones. Nobody tells them a LAFR.
    2. w dies. r hears no LAFR from the new bookies: it starts at the entry before their fragment, and closes at e2.
    """
    s = Scenario(3, 3, 2, bookies=6, gwq=True)
    w = s.writer()
    w.append(2)
    s.settle()
    assert set(s.truth.slots.values()) == {1}
    s.drop("write-lac")
    for bookie in ("b1", "b2", "b3"):
        s.crash(bookie)
    w.append()
    s.until(lambda: w.acked == [0, 1, 2])
    assert s.fragments == {0: ("b1", "b2", "b3"), 2: ("b4", "b5", "b6")}
    s.kill(w)
    r = _recovered(s)
    assert r.machine.base == 1 and s.last_entry == 2 and set(s.truth.slots) == {0, 1, 2}


# --- re-replication ----------------------------------------------------------------------------------------------------


def test_scenario_52_a_the_writer_and_a_foreign_tool_change_the_same_fragment() -> None:
    """EC-9, EC-11, EC-12, META-14, RR-9; regression R14.

    1. e0 is everywhere. b3 dies. e1 is on b1 and b2; w's change to b4 is on its way.
    2. A foreign tool takes b1 out of service, and replaces it by b5 in that fragment. It copies what is acknowledged, e0, but not e1.
    3. w's compare-and-set is in conflict. It adopts b5, decides again, takes back b1's acknowledgement of e1, and sends e1 to b5 and b4.
    """
    s = Scenario(3, 3, 2, bookies=5)
    w = s.writer()
    w.append()
    s.settle()
    cas = s.metadata_hold(client=w)
    s.crash("b3")
    w.append()
    s.until(lambda: bool(cas.messages) and s.stored(1) == ["b1", "b2"])
    s.run(5)
    s.read_only("b1")
    s.substitute(0, "b1", "b5")
    again = s.hold("add", to="b2", entry=1)
    before_b5 = s.hold("add", to="b5", entry=1)
    before_b4 = s.hold("add", to="b4", entry=1)
    s.release(cas)
    s.until(lambda: bool(before_b5.messages) and bool(before_b4.messages))
    assert s.fragments == {0: ("b5", "b2", "b3"), 1: ("b5", "b2", "b4")}
    s.run(20)
    assert w.acked == [0] and again.messages == []  # b2 has it, and it counts
    s.release()
    s.settle()
    assert w.acked == [0, 1] and s.stored(0) == ["b1", "b2", "b3", "b5"] and s.stored(1) == ["b1", "b2", "b4", "b5"]
    assert s.writes(w) == 1


def test_scenario_52_b_a_recoverer_and_a_foreign_tool_change_the_same_fragment() -> None:
    """RC-18.

    1. w writes e0 and dies. r has read and written back; its closing write is on its way.
    2. A foreign tool replaces b1 by b4 in the last fragment, which nobody should do while the ledger is IN_RECOVERY.
    3. r's write is in conflict. The fragment is not the one it read from: it starts over, fences b4 as well, and closes at e0.
    """
    s = Scenario(3, 3, 2, bookies=4)
    w = s.writer()
    w.append()
    s.settle()
    s.kill(w)
    r = s.recoverer()
    s.until(lambda: s.state is LedgerState.IN_RECOVERY)
    cas = s.metadata_hold(client=r)
    s.until(lambda: bool(cas.messages))
    s.substitute(0, "b1", "b4")
    s.release(cas)
    s.settle()
    assert "another program changed the last fragment during recovery; starting over" in s.story()
    assert s.fenced() == ["b1", "b2", "b3", "b4"] and s.fragments == {0: ("b4", "b2", "b3")}
    assert r.result.last_entry_id == s.last_entry == 0


def _closed_without_b3(bookies: int) -> Scenario:
    """w wrote e0..e2 to b1 b2 b3 and closed; then b3 died."""
    s = Scenario(3, 3, 2, bookies=bookies)
    w = s.writer()
    w.append(3)
    s.settle()
    w.close()
    s.settle()
    s.crash("b3")
    return s


def test_scenario_53_a_the_target_of_a_copy_dies() -> None:
    """RR-7, I-R1.

    1. A closed ledger has lost b3. The re-replicator copies its entries to b4; before all is confirmed, b4 dies.
    2. No compare-and-set. Another try, to b5, succeeds: it takes b3's position, and nothing else changes.
    """
    s = _closed_without_b3(5)
    confirmed = s.hold("recovery-add-reply", source="b4")
    rr = s.replicator()
    s.until(lambda: len(confirmed.messages) == 3)
    s.run(20)
    before = s.metadata
    assert s.writes(rr) == 0 and s.stored(2) == ["b1", "b2", "b3", "b4"]
    s.crash("b4")
    s.release(confirmed, only=2)  # one is still missing
    s.until(lambda: len(rr.results) == 1)
    assert isinstance(rr.results[0], Exception) and s.writes(rr) == 0 and s.metadata == before
    s.until(lambda: rr.content)
    assert s.metadata == replace(before, fragments=(Fragment(0, ("b1", "b2", "b5")),)) and s.writes(rr) == 1
    assert all("b5" in s.stored(e) for e in range(3))


def test_scenario_53_b_an_entry_that_cannot_be_read_prevents_the_change() -> None:
    """RR-7, RR-8.

    1. A closed ledger has lost b3. Both living copies of e1 are rotten.
    2. The re-replicator copies e0 and e2 to b4, but the metadata must not say that b4 has e1: no compare-and-set, it tries again.
    3. One copy is mended: b4 gets e1, takes b3's position, and b2 is given a good e1 too.
    """
    s = _closed_without_b3(4)
    for bookie in ("b1", "b2"):
        s.corrupt(bookie, 1)
    rr = s.replicator()
    s.until(lambda: len(rr.results) == 2)
    assert all(isinstance(result, Exception) for result in rr.results)
    assert s.writes(rr) == 0 and s.fragments == {0: ("b1", "b2", "b3")} and "b4" not in s.stored(1)
    s.repair("b1", 1)
    s.until(lambda: rr.content)
    assert s.fragments == {0: ("b1", "b2", "b4")} and s.writes(rr) == 1
    assert all(s.cluster.bookies[b].sound_body(s.truth.ledger_id, 1) is not None for b in ("b1", "b2", "b4"))


# --- logs --------------------------------------------------------------------------------------------------------------


def _log() -> tuple[Scenario, LogTruth]:
    """Three bookies and an empty log; its ledgers are 8, 9, ... (7 is the scenario's own, which nobody uses)."""
    s = Scenario(3, 3, 2)
    return s, LogTruth(s.cluster)


def _open(s: Scenario, log: LogTruth, name: str) -> Leader:
    leader = Leader(s.cluster, name, log, (3, 3, 2))
    leader.open()
    return leader


def _lead(s: Scenario, log: LogTruth, name: str) -> Leader:
    leader = _open(s, log, name)
    s.until(lambda: leader.state is LeaderState.SERVING)
    return leader


def _held(s: Scenario, ledger_id: int, entry_id: int) -> list[str]:
    return [name for name, bookie in s.cluster.bookies.items() if bookie.holds(ledger_id, entry_id)]


class Follower(LogClient):
    """A plain reader of the log; ``read`` are the payloads it was told to deliver, in order."""

    role = "reader"
    machine: LogReaderOrder

    def __init__(self, s: Scenario, name: str, log: LogTruth, **options: Any) -> None:
        super().__init__(s.cluster, name, log, (3, 3, 2), LogReaderOrder("log", **options))
        self.read: list[bytes] = []
        self.act(self.machine.start("read", self.now))

    def _one(self, effect: Any) -> None:
        match effect:
            case log_effects.Deliver(request, segment, first, last):
                truth = self.cluster.truths[segment.ledger_id]
                self.read += [truth.submitted[e] for e in range(first, last + 1)]
                self.world.at(1, lambda: self.feed(log_effects.Delivered(request, Outcome.OK)))
            case log_effects.AwaitLedger() | log_effects.AwaitList():
                self.world.timer(20 * MS, lambda: self.feed(log_effects.Changed(effect.request)))
            case _:
                super()._one(effect)


def _from_a_to_b(s: Scenario, log: LogTruth) -> Leader:
    """a has written e0 to ledger 8, listed ledger 9, and not closed 8: e1 is on b1 only, and on its way to b2 and b3."""
    a = _lead(s, log, "a")
    a.append(1)
    s.until(lambda: ("append", 1) in a.results)
    for bookie in ("b2", "b3"):
        s.hold("add", source="a/w8", to=bookie, entry=1)
    a.append(1)
    a.roll()
    s.until(lambda: log.ledgers == (8, 9) and _held(s, 8, 1) == ["b1"])
    return a


def test_scenario_54_a_a_leader_dies_between_listing_and_closing() -> None:
    """LOG-1, LOG-2, LOG-15, LOG-I2, LOG-I3.

    1. A lists ledger 9 while its entry e1 is on the way to two bookies of ledger 8. It dies: neither 8 nor 9 is closed.
    2. B takes over: it recovers both, and only then lists 10 and writes there.
    3. The copies of e1 arrive at last: refused. 8 ends at e0. A reader finds what A was told is written, and behind it what B wrote.
    """
    s, log = _log()
    a = _from_a_to_b(s, log)
    s.kill(a)
    reader = Follower(s, "t", log)
    b = _lead(s, log, "b")
    assert b.recoveries == 2 and log.ledgers == (8, 9, 10) and log.closed(8) and log.closed(9)
    b.append(1)
    s.until(lambda: ("append", 1) in b.results)
    s.release()
    s.run(50)
    assert s.cluster.truths[8].metadata.last_entry_id == 0 and _held(s, 8, 1) == ["b1"]
    b.close()
    s.until(lambda: reader.read == [b"a 1.0 ", b"b 1.0 "])
    s.kill(reader)


def test_scenario_54_b_the_leader_slept_with_an_acknowledgement_in_its_inbox() -> None:
    """CL-4, LOG-2, LOG-4, LOG-6, LOG-I4.

    1. A lists ledger 9. e1 of ledger 8 is on all three bookies, and their answers are on the way, when A is paused.
    2. B takes over: 8 ends at e1.
    3. A wakes up and hears the answers: e1 is acknowledged, truly, for B has read it. 8 is closed just where A would have closed it,
       so A is none the wiser. Its next entry goes to ledger 9, which B has fenced too: refused, and A abdicates.
    """
    s, log = _log()
    a = _lead(s, log, "a")
    a.append(1)
    s.until(lambda: ("append", 1) in a.results)
    answers = s.hold("add-reply", to="a/w8", entry=1)
    a.append(1)
    a.roll()
    s.until(lambda: log.ledgers == (8, 9) and len(answers.messages) == 3)
    asleep = [a, *a.writers.values()]
    for client in asleep:
        s.pause(client)
    b = _lead(s, log, "b")
    assert s.cluster.truths[8].metadata.last_entry_id == 1 and log.ledgers == (8, 9, 10)
    s.release(answers)
    s.run(10)
    for client in asleep:
        s.resume(client)
    s.until(lambda: len(a.writers[8].close_results) == 1)
    s.run(10)
    assert a.state is LeaderState.SERVING and a.machine.current == 9
    a.append(1)
    s.until(lambda: ("append", 3) in a.results)
    assert a.state is LeaderState.ABDICATED and isinstance(a.results["append", 3], LogTakenOverError)
    assert a.results["append", 2] == (Span(8, 1, 1),) and log.ledgers == (8, 9, 10) and _held(s, 9, 0) == []
    b.append(1)
    s.until(lambda: ("append", 1) in b.results)
    assert not isinstance(b.results["append", 1], Exception)


def test_scenario_54_c_the_leader_slept_with_an_add_on_its_way() -> None:
    """LOG-2, LOG-4, LOG-6, WR-11.

    1. As in the first case, but A was paused. B has taken over when A wakes up.
    2. A's copies of e1 are refused: it learns that it is no leader any more, writes nothing to ledger 9, and lists nothing.
    """
    s, log = _log()
    a = _from_a_to_b(s, log)
    asleep = [a, *a.writers.values()]
    for client in asleep:
        s.pause(client)
    b = _lead(s, log, "b")
    for client in asleep:
        s.resume(client)
    s.release()
    a.append(1)
    s.until(lambda: ("append", 2) in a.results and ("append", 3) in a.results)
    assert a.state is LeaderState.ABDICATED and isinstance(a.results["append", 3], LogTakenOverError)
    assert log.ledgers == (8, 9, 10) and _held(s, 9, 0) == []
    b.append(1)
    s.until(lambda: ("append", 1) in b.results)
    assert not isinstance(b.results["append", 1], Exception)


def test_scenario_55_two_leaders_take_over_at_once() -> None:
    """LOG-1, LOG-3, LOG-9, LOG-I1, L-8.

    1. The log has ledger 8, closed. A and B both read the list, recover it, and create a ledger each: 9 and 10.
    2. A's compare-and-set comes first: 9 is listed. B's is in conflict: it deletes 10, which was never listed and never written to.
    3. B starts again, fences 9 and lists 11. A is told so when it writes next.
    """
    s, log = _log()
    first = _lead(s, log, "z")
    first.append(1)
    first.close()
    s.until(lambda: log.closed(8))
    s.settle()
    from_a, from_b = s.hold("cas", source="a"), s.hold("cas", source="b")
    a, b = _open(s, log, "a"), _open(s, log, "b")
    b.append(1)
    s.until(lambda: bool(from_a.messages) and bool(from_b.messages))
    own = {log.owner[i]: i for i in (9, 10)}
    s.release(from_a)
    s.until(lambda: a.state is LeaderState.SERVING)
    assert log.ledgers == (8, own["a"]) and b.state is LeaderState.TAKING_OVER
    s.release(from_b)
    s.until(lambda: s.cluster.truths[own["b"]].deleted)
    assert own["b"] not in log.ever and _held(s, own["b"], 0) == []
    s.until(lambda: ("append", 1) in b.results)
    assert b.state is LeaderState.SERVING and log.ledgers == (8, own["a"], 11) and _held(s, 11, 0) == ["b1", "b2", "b3"]
    a.append(1)
    s.until(lambda: ("append", 1) in a.results)
    assert isinstance(a.results["append", 1], LogTakenOverError) and _held(s, own["a"], 0) == []


def test_scenario_56_no_second_roll_while_the_old_ledger_does_not_close() -> None:
    """LOG-7, LOG-6, LOG-8, LOG-I3.

    1. A rolls: ledger 9 is listed, but the closing write of 8 does not get through.
    2. A wants 10: refused, again and again. Entries wait, too: none goes to 9 while the end of 8 is unknown.
    3. The write gets through: the entry goes to 9, and the next roll is possible.
    """
    s, log = _log()
    a = _lead(s, log, "a")
    a.append(1)
    s.until(lambda: ("append", 1) in a.results)
    closing = s.metadata_hold(client="a/w8")
    a.roll()
    s.until(lambda: log.ledgers == (8, 9) and bool(closing.messages))
    a.append(1)
    for _ in range(3):
        s.run(100)
        refused = ("roll", len(a.results))
        a.roll()
        s.run(100)
        assert isinstance(a.results[refused], LogError)
        assert log.ledgers == (8, 9) and ("append", 2) not in a.results and _held(s, 9, 0) == []
    s.release(closing)
    s.until(lambda: ("append", 2) in a.results)
    assert log.closed(8) and _held(s, 9, 0) != []
    a.roll()
    s.until(lambda: log.ledgers == (8, 9, 10) and log.closed(9))


def _rolled_twice(s: Scenario, log: LogTruth) -> Leader:
    """Ledgers 8 and 9 with an entry each, closed, and 10 with one, open."""
    a = _lead(s, log, "a")
    for count in range(1, 4):
        a.append(1)
        s.until(lambda: ("append", count) in a.results)  # noqa: B023
        if count < 3:
            a.roll()
            s.until(lambda: log.ledgers[-1] == 8 + count and log.closed(7 + count))  # noqa: B023
    return a


def test_scenario_57_a_trim_with_a_slow_reader_in_it() -> None:
    """LOG-11, LOG-13, LOG-17, LOG-I5.

    1. The log has ledgers 8, 9 and 10. Two readers stand in 8; what they asked about it is slow.
    2. Everything before 9 is trimmed: 8 is unlisted first and deleted then.
    3. The readers hear that 8 does not exist, and read the list again. One goes on with 9, the other reports the loss.
    """
    s, log = _log()
    _rolled_twice(s, log)
    slow = [s.hold("metadata-read", source=name) for name in ("jumps", "reports")]
    jumps = Follower(s, "jumps", log, on_trimmed=OnTrimmed.JUMP)
    reports = Follower(s, "reports", log, on_trimmed=OnTrimmed.FAIL)
    s.until(lambda: all(rule.messages for rule in slow))
    cut: list[Any] = []
    trimming(s.cluster, "cut", log, 9, cut.append)
    s.until(lambda: cut == [(8,)])
    assert log.ledgers == (9, 10) and s.cluster.truths[8].deleted
    for rule in slow:
        s.release(rule)
    s.until(lambda: jumps.read == [b"a 2.0 "] and "read" in reports.results)
    assert isinstance(reports.results["read"], LogDataLossError) and reports.read == []
    assert "read" not in jumps.results and not s.cluster.truths[10].promised


def test_scenario_57_b_a_trim_under_a_take_over() -> None:
    """LOG-5, LOG-14.

    1. A has closed the log: ledgers 9 and 10 of it are left, both closed. B reads the list and is about to recover 9.
    2. 9 is trimmed: unlisted, deleted. B finds that it does not exist, and looks at the list again: not there, so no alarm.
    3. B begins again with 10, and lists 11 behind it.
    """
    s, log = _log()
    a = _rolled_twice(s, log)
    a.close()
    cut: list[Any] = []
    trimming(s.cluster, "cut", log, 9, cut.append)
    s.until(lambda: log.closed(10) and cut == [(8,)])
    slow = s.hold("metadata-read", source="b/r1")
    b = _open(s, log, "b")
    s.until(lambda: bool(slow.messages))
    trimming(s.cluster, "cut again", log, 10, cut.append)
    s.until(lambda: cut == [(8,), (9,)])
    s.release(slow)
    s.until(lambda: b.state is not LeaderState.TAKING_OVER)
    assert b.state is LeaderState.SERVING and log.ledgers == (10, 11)


def test_scenario_57_c_a_ledger_that_is_gone_and_still_listed_is_an_alarm() -> None:
    """LOG-5.

    1. Somebody deletes the last ledger of the log, and does not unlist it.
    2. B wants to take over: what was in that ledger is lost, and B says so instead of writing on.
    """
    s, log = _log()
    a = _rolled_twice(s, log)
    a.close()
    s.until(lambda: log.closed(10))
    s.cluster.store.delete(s.cluster.truths[10])
    b = _open(s, log, "b")
    s.until(lambda: b.state is not LeaderState.TAKING_OVER)
    assert b.state is LeaderState.FAILED and isinstance(b.results["open"], LogDataLossError) and log.ledgers == (8, 9, 10)


# --- clocks ------------------------------------------------------------------------------------------------------------


def test_scenario_58_a_a_clock_jumps_forward() -> None:
    """SM-3, WR-7.

    1. e0 is on three bookies; the answer of b3 is on its way when w's clock jumps ten seconds ahead. b1 has not got e0 yet.
    2. Both are taken for dead; b4 and b5 take their places. The answer of b3 counts for nothing: e0 is acknowledged when b2 and one of the
       new ones have it.
    """
    s = Scenario(3, 3, 2, bookies=5)
    w = s.writer()
    s.hold("add", to="b1")
    late = s.hold("add-reply", source="b3")
    new = [s.hold("add", to=bookie) for bookie in ("b4", "b5")]
    w.append()
    s.run(5)
    s.jump(w, 10_000)
    s.until(lambda: s.fragments == {0: ("b4", "b2", "b5")})
    s.release(late)
    s.run(20)
    assert w.acked == [] and s.stored(0) == ["b2", "b3"]
    s.release(new[0])
    s.until(lambda: w.acked == [0])
    assert s.stored(0) == ["b2", "b3", "b4"]


def test_scenario_58_b_a_clock_jumps_back() -> None:
    """WR-6, WR-7.

    1. b3 swallows e0, and w's clock jumps ten seconds back: b3 is not suspected for ten seconds.
    2. e0 is acknowledged all the same, by b1 and b2; so is e1. Then b3 is replaced, for what follows.
    """
    s = Scenario(3, 3, 2, bookies=4)
    w = s.writer()
    s.drop("add", to="b3")
    w.append()
    s.jump(w, -10_000)
    s.run(5_000)
    assert w.acked == [0] and s.fragments == {0: ("b1", "b2", "b3")}
    s.run(6_000)
    w.append()
    s.run(500)
    assert w.acked == [0, 1] and s.fragments[max(s.fragments)] == ("b1", "b2", "b4")


def test_scenario_58_c_all_timers_are_wrong() -> None:
    """RC-11, RC-21, L-4.

    1. Every timer fires early or late, by a factor of up to eight. w's e0 and e1 are on b1 and b2, and acknowledged; b3 denies them.
    2. b1 and b2 answer r's reads after 40 ms. Some of its timers, meant for 80, have fired before; silence proves nothing all the same.
    3. r recovers both entries, or gives up and is followed by others. In each of forty draws the ledger is closed at e1.
    """
    early = 0
    for seed in range(40):
        s = Scenario(3, 3, 2)
        s.world.rng.seed(seed)
        s.world.weather.timers = 1.0
        w = s.writer()
        s.drop("add", to="b3")
        w.append(2)
        s.run(4)
        assert w.acked == [0, 1]
        s.kill(w)
        slow = [s.hold("recovery-read-reply", source=bookie) for bookie in ("b1", "b2")]
        r = s.recoverer()
        s.until(lambda: any(rule.messages for rule in slow) or r.result is not None)  # noqa: B023
        s.run(40)
        early += any(question.unknown for question in r.machine._questions.values())
        for rule in slow:
            s.release(rule)
        for _ in range(8):
            s.settle()
            if s.state is LedgerState.CLOSED:
                break
            s.recoverer()
        assert s.last_entry == 1
    assert early


# --- large ids ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [2**31 - 3, 2**32 - 3, 2**63 - 8])
def test_scenario_59_entry_ids_beyond_32_bits_are_striped_alike_everywhere(first: int) -> None:
    """SM-5, WR-5, RD-2, RC-8, RR-4; replication-protocol.md 14.1 item 9.

    1. 5/3/2: a fragment begins just below 2^31 (2^32, 2^63). w writes five entries across that border; the third has two copies only.
    2. Each is on the bookies that its id, in full, names. w dies.
    3. r asks just those: it finds all five, gives the third its missing copy, and closes behind the last.
    4. t asks just those as well, and gets what was written.
    """
    s = Scenario(5, 3, 2)
    s.cluster.checker.check = lambda: None  # type: ignore[method-assign]  # it counts entries from 0 on
    ensemble = ("b1", "b2", "b3", "b4", "b5")
    fragments = (Fragment(0, ensemble), Fragment(first, ensemble))
    truth = s.cluster.add_ledger(replace(s.metadata, fragments=fragments))
    w = s.cluster.writer("big", truth, base=first - 1)
    w.told = first - 1
    entries = list(range(first, first + 5))
    homes = {e: [f"b{p + 1}" for p in sorted((e % 5 + k) % 5 for k in range(3))] for e in entries}
    missing = s.drop("add", to=homes[entries[2]][0], entry=entries[2])
    w.append(5)
    s.until(lambda: w.acked == entries)
    s.allow(missing)
    expected = {**homes, entries[2]: homes[entries[2]][1:]}
    assert {e: _held(s, truth.ledger_id, e) for e in entries} == expected
    s.kill(w)
    r = s.cluster.recoverer("r", truth)
    asked = s.hold("recovery-read", source="r", entry=entries[1])
    r.start()
    s.until(lambda: bool(asked.messages))
    assert sorted(m.target for m in asked.messages) == homes[entries[1]]
    s.release(asked)
    s.settle()
    assert r.result.last_entry_id == truth.metadata.last_entry_id == entries[-1]
    assert truth.metadata.length == sum(len(truth.submitted[e]) for e in entries)
    assert {e: _held(s, truth.ledger_id, e) for e in entries} == homes
    t = s.cluster.reader("t", truth, tailing=False)
    t.position = first
    t.start()
    s.settle()
    assert t.entries == [(e, truth.submitted[e]) for e in entries] and t.at_end and t.errors == []
    for e in entries:
        asked_of = [b for b in ensemble if f"t -> {b}: read of ledger {truth.ledger_id} e{e}" in s.story()]
        assert asked_of and set(asked_of) <= set(homes[e])
    distribution = Distribution(5, 3, 2)
    for position in range(5):
        mine = [e for e in entries if f"b{position + 1}" in homes[e]]
        assert stored_bounds(distribution, position, first, entries[-1]) == (mine[0], mine[-1])


# --- old lists -----------------------------------------------------------------------------------------------------------


def _with_a_bookie_twice(e: int, ensemble: tuple[str, ...], *, close: bool = True) -> Scenario:
    """An old client named a bookie twice in a list (what it stored there once counts twice). w wrote e0..e3 and closed, or died."""
    s = Scenario(e, 3, 2)
    w = s.writer()
    w.append(4)
    s.settle()
    if close:
        w.close()
        s.settle()
    s.kill(w)
    s.cluster.checker.check = lambda: None  # type: ignore[method-assign]  # no client of ours may write such a list (I-8)
    for entry in range(4):
        for bookie in dict.fromkeys(ensemble):
            s.cluster.bookies[bookie].copy_entry(s.truth, entry)
    metadata: LedgerMetadata = replace(s.metadata, fragments=(Fragment(0, ensemble),))
    metadata.check()
    s.write_metadata(metadata)
    return s


@pytest.mark.parametrize(("e", "ensemble"), [(3, ("b1", "b1", "b2")), (4, ("b1", "b2", "b1", "b3"))])
def test_scenario_60_a_a_bookie_that_stands_twice_in_an_old_list(e: int, ensemble: tuple[str, ...]) -> None:
    """META-4, RD-2, RD-3; regression R31.

    1. An old list names b1 twice. Its copies of e1 and e2 are rotten.
    2. Readers beginning anywhere go by position: b1 fails twice, perhaps, and then the other bookie helps. All entries are read.
    3. A ledger that is still open tells its LAC in the same way.
    """
    for seed in range(6):
        s = _with_a_bookie_twice(e, ensemble)
        s.world.rng.seed(seed)
        s.corrupt("b1", 1)
        s.corrupt("b1", 2)
        t = s.reader()
        s.settle()
        assert t.entries == list(s.truth.submitted.items()) and t.at_end and t.errors == []
    s = _with_a_bookie_twice(e, ensemble, close=False)
    s.crash("b2")
    t = s.reader()
    s.settle()
    assert t.errors == [] and t.last_add_confirmed == 3 and len(t.entries) == 4


def test_scenario_60_b_a_read_that_fails_at_all_positions_ends() -> None:
    """RD-3, RD-6; regression R31: by bookie, two of three positions would be asked and the third waited for, for ever.

    1. An old list names b1 twice. No bookie has a good copy of e2.
    2. t reads e0 and e1, and is told that e2 cannot be read: in the round that was about it each of the three positions was asked once.
    """
    s = _with_a_bookie_twice(3, ("b1", "b1", "b2"))
    s.corrupt("b1", 2)
    s.corrupt("b2", 2)
    t = s.reader(start=False)
    t.metadata, t.version, t.last_add_confirmed = s.metadata, s.truth.version, 3
    t.change_machine(RangeReader(s.truth.ledger_id, s.metadata, 0, 3, batch=False, limits=s.cluster.limits, version=t.version))
    t.act(t.machine.start())
    s.settle()
    assert [entry for entry, _ in t.entries] == [0, 1] and t.at_end
    assert [type(error) for error in t.errors] == [ReadError]
    assert sum(" e2" in line and "t -> b" in line for line in s.world.lines) == 1 + 3  # the first time together with e0 and e1
