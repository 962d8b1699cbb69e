"""Scenarios 41 to 50 of replication-protocol.md 13.3: deletion, readers, the metadata store, guaranteed write quorum."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bk_core.errors import LedgerClosedError, NoSuchLedgerError, ReadError
from bk_core.protocol.effects import Complete, Fail
from bk_core.protocol.events import MetadataChanged
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.protocol.ledger.read.tail import Tail
from bk_core.protocol.ledger.replication import FragmentRepair, MetadataChange, guaranteed
from bk_core.protocol.ledger.write.writer import LedgerWriter, WriterState
from tests.simulation.clients import Client, Writer
from tests.simulation.cluster import LIMITS
from tests.simulation.log_keepers import trimming
from tests.simulation.logs import Leader, LogTruth
from tests.simulation.scenario import Scenario
from tests.simulation.truth import OPENED, READ
from tests.simulation.world import MS

TAIL_LIMITS = replace(LIMITS, long_poll_ns=200 * MS, tail_pause_ns=20 * MS, tail_look_ns=100 * MS)


class Follower(Client):
    """A reader that follows the ledger with the production machine for that: long polls, and a watch on the metadata."""

    role = "reader"

    def __init__(self, s: Scenario, name: str, options: ReadOptions | None = None) -> None:
        super().__init__(s.cluster, name, s.truth)
        self.entries: list[tuple[int, bytes]] = []
        self.result: Any = None
        self.machine = Tail(s.truth.ledger_id, s.metadata, s.truth.version, 0, limits=TAIL_LIMITS, options=options)
        self.on_done = self._done
        s.cluster.store.watch(name, s.truth, lambda md, version: self.feed(MetadataChanged(md, version)))
        self.act(self.machine.start())

    @property
    def ended(self) -> bool:
        return self.result is not None

    def observe(self) -> None:
        self.truth.reader_lacs[self.name] = self.machine.last_add_confirmed
        self.truth.dirty |= READ

    def _one(self, effect: Any) -> None:
        if isinstance(effect, Complete | Fail) and effect.token == "end":
            self.result = effect.value if isinstance(effect, Complete) else effect.error
            self.result = "end" if self.result is None else self.result
            self.truth.dirty |= OPENED
        super()._one(effect)

    def _done(self, token: Any, value: Any) -> None:
        if token == "run":
            for index, payload in enumerate(value.payloads()):
                self.entries.append((value.first_entry_id + index, payload))
                self.truth.seen.append((self.name, value.first_entry_id + index, payload))
            self.world.at(1, lambda: self.soon(lambda: self.act(self.machine.consumed())))


def _times(s: Scenario, what: str) -> int:
    """Return how often a line of the story has ``what``."""
    return sum(what in line for line in s.world.lines)


# --- deletion --------------------------------------------------------------------------------------------------------


def test_scenario_41_a_who_deletes_an_open_ledger_may_lose_acknowledged_entries() -> None:
    """CL-4; and the reason why logs delete only what is closed, which the next case is about.

    1. w writes e0. Another program deletes the ledger without recovering it first.
    2. The bookies know nothing of that: w writes e1, and is told OK. Then they collect the ledger: both entries are gone.
    3. w hears of it at the latest when it closes.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    w.append()
    s.settle()
    s.delete_ledger()
    w.append()
    s.settle()
    assert w.acked == [0, 1]
    for bookie in s.cluster.bookies.values():
        bookie.collect(s.truth.ledger_id)
    assert s.stored(0) == s.stored(1) == []
    w.close()
    s.settle()
    assert [type(result) for result in w.close_results] == [NoSuchLedgerError]


def test_scenario_41_b_the_log_layer_never_does_that() -> None:
    """LOG-11, LOG-12.

    1. A leader has rolled twice. Ledgers 8 and 9 are full; 10 is listed, but the closing write of 9 has not got through yet.
    2. Everything before 10 is to be trimmed: 8 goes, 9 stays, because it is not closed.
    3. 9 is closed, and trimmed again: it stays as long as the list calls it live. What the leader wrote to both is still there.
    """
    s = Scenario(3, 3, 2)
    log = LogTruth(s.cluster)
    a = Leader(s.cluster, "a", log, (3, 3, 2))
    a.open()
    a.append(1)
    s.settle()
    a.roll()
    s.settle()
    closing = s.metadata_hold(client="a/w9")
    a.append(1)
    s.settle(50)
    a.roll()
    s.until(lambda: log.ledgers == (8, 9, 10) and bool(closing.messages))
    cut: list[Any] = []
    trimming(s.cluster, "cut", log, 10, cut.append)
    s.until(lambda: len(cut) == 1)
    assert cut == [(8,)] and log.ledgers == (9, 10)
    s.release(closing)
    s.until(lambda: log.closed(9))
    a.append(1)
    trimming(s.cluster, "cut again", log, 10, cut.append)
    s.settle(500)
    assert cut == [(8,), ()] and log.ledgers == (9, 10)
    assert [i for i in (8, 9, 10) if s.cluster.truths[i].deleted] == [8]
    assert all(s.cluster.bookies["b1"].holds(i, 0) for i in (9, 10))


# --- readers -----------------------------------------------------------------------------------------------------------


def test_scenario_42_a_tailing_reader_through_everything_that_can_happen_to_a_ledger() -> None:
    """LC-5, LC-7, LC-8, OP-6, I-6; regressions R29, R30.

    1. t tails, and believes bookies even during recoveries. w writes e0 and e1; t gets them.
    2. b3 dies and b4 takes its place: t asks again at once, b4 too, though b1 and b2 still sit on its last long poll.
    3. r fences the ledger and dies. For a whole second nothing is written. t's long polls last as long as they may, fenced or not, and
       the silence is no end.
    4. r2 finds e2, of whose acknowledgement no bookie knew, and closes. t gets e2, and is told the end.
    """
    s = Scenario(3, 3, 2, bookies=4)
    w = s.writer()
    t = Follower(s, "t", ReadOptions(hold_back_in_recovery=False))
    w.append(2)
    s.until(lambda: [e for e, _ in t.entries] == [0, 1])
    s.crash("b3")
    w.append()
    s.until(lambda: s.fragments == {0: ("b1", "b2", "b3"), 2: ("b1", "b2", "b4")})
    s.run(5)
    assert _times(s, "t -> b4: ") > 0
    s.until(lambda: w.acked == [0, 1, 2])  # the LAC on the bookies is 1
    s.kill(w)
    s.hold("recovery-read", source="r")
    r = s.recoverer()
    s.until(lambda: s.fenced() == ["b1", "b2", "b4"])
    s.kill(r)
    asked, before = _times(s, "t -> "), [e for e, _ in t.entries]
    s.run(1_000)
    assert 3 * 4 <= _times(s, "t -> ") - asked <= 3 * 6  # long polls of 200 ms to three bookies
    assert not t.ended and [e for e, _ in t.entries] == before and s.state is LedgerState.IN_RECOVERY
    r2 = s.recoverer()
    s.settle()
    assert r2.result.last_entry_id == s.last_entry == 2
    assert t.result == "end" and t.entries == list(s.truth.submitted.items())


def test_scenario_42_b_a_tail_is_not_shown_what_a_recovery_leaves_out() -> None:
    """D6, RC-7, RC-18, RC-22, I-6; replication-protocol.md 14.1 item 4.

    1. e0 is everywhere; e1 and e2 reached b3 only. w dies. t has e0; it believes bookies even while a recovery is going on.
    2. r hears denials of e1 from b1 and b2 before b3 answers: it will end the ledger at e0.
    3. r2 finds them on b3 and writes them back to all three bookies, each under the LAC it started with.
    4. t asks the bookies: nobody tells it a LAC of 1. r closes first; r2 adopts that. t ends at e0.
    """
    s = Scenario(3, 3, 2)
    w = s.writer()
    t = Follower(s, "t", ReadOptions(hold_back_in_recovery=False))
    w.append()
    s.until(lambda: [e for e, _ in t.entries] == [0])
    lost = [s.drop("add", to="b1"), s.drop("add", to="b2")]
    w.append(2)
    s.run(5)
    s.kill(w)
    for rule in lost:
        s.allow(rule)
    s.hold("recovery-read", source="r", to="b3", entry=1)
    r = s.recoverer()
    s.until(lambda: s.state is LedgerState.IN_RECOVERY)
    first, second = s.hold("cas", source="r"), s.hold("cas", source="r2")
    s.until(lambda: r.verdict == 0)
    r2 = s.recoverer()
    s.until(lambda: r2.verdict == 2 and bool(second.messages))
    asked = _times(s, "t -> ")
    s.run(50)
    assert s.stored(2) == ["b1", "b2", "b3"] and _times(s, "t -> ") > asked
    assert t.machine.last_add_confirmed == 0 and not t.ended
    s.release(first)
    s.until(lambda: s.state is LedgerState.CLOSED)
    s.release(second)
    s.settle()
    assert s.last_entry == r.result.last_entry_id == r2.result.last_entry_id == 0
    assert t.result == "end" and [e for e, _ in t.entries] == [0]


def test_scenario_43_the_lac_of_an_empty_last_fragment_is_the_entry_before_it() -> None:
    """D5, OP-3, OP-5, LC-1; replication-protocol.md 14.1 item 6.

    1. w writes e0 and e1, then changes to an ensemble of three new bookies, in which nothing is stored yet.
    2. None of them has ever heard of the ledger. t opens without recovery: its LAC is 1, not -1, and it reads both entries.
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
    t = s.reader()
    s.settle()
    assert t.last_add_confirmed == 1 and [e for e, _ in t.entries] == [0, 1] and t.errors == []
    assert s.state is LedgerState.OPEN and s.fenced() == []


def test_scenario_44_a_lac_read_with_half_of_the_ensemble_down() -> None:
    """LC-1, Q-4, Q-7, Q-8.

    1. 4/2/2: w writes e0..e5, and tells the bookies its LAC when idle.
    2. Positions 0 and 2 go down: every window has one that answers. t learns the LAC, though only two of four told theirs.
    3. Instead, positions 0 and 1 go down: what window {0, 1} acknowledged last nobody can say. t asks again for a while (RD-13) and gets
       an error, not a number.
    """
    for dead, covered in ((("b1", "b3"), True), (("b1", "b2"), False)):
        s = Scenario(4, 2, 2)
        w = s.writer()
        for _ in range(6):
            w.append()
            s.settle()
        for bookie in dead:
            s.crash(bookie)
        t = s.reader()
        s.settle()
        if covered:
            assert t.last_add_confirmed == 5
        else:
            s.until(lambda reader=t: bool(reader.errors), ms=60_000)  # it asks again for a while (RD-13)
            assert t.last_add_confirmed == -1 and isinstance(t.errors[0], ReadError)


# --- metadata store ----------------------------------------------------------------------------------------------------


def test_scenario_45_the_metadata_store_is_down_for_a_while() -> None:
    """EC-8, META-11, META-12; regression R7.

    1. The store stops answering. w goes on: e0 and e1 are acknowledged, because no change is needed.
    2. b3 dies. w wants b4 in its place, hears UNKNOWN again and again, and repeats. It admits e2 and e3, which two bookies store; but it
       acknowledges nothing more, and sends nothing to b4.
    3. The store is back: the change is recorded, e2 and e3 are acknowledged.
    4. It goes down again. A close waits, and succeeds when the store returns.
    """
    s = Scenario(3, 3, 2, bookies=4)
    w = s.writer()
    s.metadata_down()
    w.append(2)
    s.until(lambda: w.acked == [0, 1])
    s.crash("b3")
    w.append()
    s.run(50)
    w.append()
    s.run(500)
    assert w.cas_unknown > 2 and w.machine.state is WriterState.OPEN
    assert w.acked == [0, 1] and s.stored(2) == s.stored(3) == ["b1", "b2"]
    assert s.fragments == {0: ("b1", "b2", "b3")} and w.machine.ensemble == ("b1", "b2", "b3")
    s.metadata_down(False)
    s.settle(500)
    assert s.fragments == {0: ("b1", "b2", "b3"), 2: ("b1", "b2", "b4")} and s.writes(w) == 1
    assert w.acked == [0, 1, 2, 3] and s.stored(3) == ["b1", "b2", "b4"]
    s.metadata_down()
    w.close()
    s.run(500)
    assert w.close_results == [] and w.machine.state is WriterState.CLOSING
    s.metadata_down(False)
    s.settle()
    assert len(w.close_results) == 1 and s.last_entry == 3 and s.writes(w) == 2


def test_scenario_46_a_a_stale_read_is_not_an_answer_for_the_writer() -> None:
    """META-11, META-14, EC-9, L-9.

    1. w has two fragments. A re-replicator replaces b1 in the first one; w does not know.
    2. b2 dies. w's compare-and-set is in conflict. The follower that it asks has not heard of the newest version: w takes what it says
       for no answer, and asks again.
    3. Then it decides on what is stored, and writes once: two compare-and-sets in all, one of them wasted.
    """
    s = Scenario(3, 3, 2, bookies=6)
    w = s.writer()
    w.append()
    s.settle()
    s.crash("b3")
    w.append()
    s.settle()
    assert s.fragments == {0: ("b1", "b2", "b3"), 1: ("b1", "b2", "b4")}
    s.substitute(0, "b1", "b6")
    sent = w.cas_sent
    s.metadata_stale(client=w)
    s.crash("b2")
    w.append()
    s.settle()
    assert s.fragments == {0: ("b6", "b2", "b3"), 1: ("b1", "b2", "b4"), 2: ("b1", "b5", "b4")}
    assert w.acked == [0, 1, 2] and w.cas_sent - sent == 2


def test_scenario_46_b_a_stale_read_is_not_an_answer_for_a_recoverer() -> None:
    """META-11, RC-1, L-9.

    1. r reads the metadata, and the answer is slow. Meanwhile w has replaced b3 by b4 and written e1 there.
    2. r's mark is in conflict, of course. The follower it asks next says once more what r has seen already: no answer, asked again.
    3. r marks the newest version and fences b4, not b3. It closes at e1, which b3 never had. Two marks, one of them wasted.
    """
    s = Scenario(3, 3, 2, bookies=4)
    w = s.writer()
    w.append()
    s.settle()
    slow = s.hold("metadata-read-reply", to="r")
    r = s.recoverer()
    s.until(lambda: bool(slow.messages))
    s.crash("b3")
    w.append()
    s.settle(50)
    assert s.fragments == {0: ("b1", "b2", "b3"), 1: ("b1", "b2", "b4")} and w.acked == [0, 1]
    s.kill(w)
    s.restart("b3")
    s.metadata_stale(client=r)
    s.release(slow)
    s.settle()
    assert r.result.last_entry_id == s.last_entry == 1
    assert s.fenced() == ["b1", "b2", "b4"] and r.cas_sent == 3  # two marks, one close


def test_scenario_46_c_a_late_watch_does_not_take_a_reader_back() -> None:
    """META-11, OP-6.

    1. t watches. Word of two versions is on its way: b3 replaced by b4, and then the ledger closed. The older word arrives last.
    2. t stays with the newer one: it ends at e1.
    """
    s = Scenario(3, 3, 2, bookies=4)
    w = s.writer()
    t = Follower(s, "t")
    w.append()
    s.until(lambda: len(t.entries) == 1)
    older = s.hold("watch", to="t", count=1)
    s.crash("b3")
    w.append()
    s.until(lambda: bool(older.messages) and w.acked == [0, 1])
    w.close()
    s.until(lambda: s.state is LedgerState.CLOSED)
    s.until(lambda: t.machine.last_add_confirmed == 1)
    s.release(older)
    s.settle()
    assert t.result == "end" and t.entries == list(s.truth.submitted.items()) and s.last_entry == 1


# --- guaranteed write quorum -------------------------------------------------------------------------------------------


GWQ_LIMITS = replace(LIMITS, add_retry_ns=20 * MS, add_retry_ns_max=20 * MS, pinned_retries_max=1)


def _all_pinned(s: Scenario) -> Writer:
    """e0 on b1 b2, e1 on b2 b3, e2 on b1 b3, all three acknowledged; the third copy of each is still on its way (held)."""
    w = s.writer()
    for entry, late in enumerate(("b3", "b1", "b2")):
        s.hold("add", to=late, entry=entry)
        w.append()
    s.until(lambda: w.acked == [0, 1, 2])
    assert [s.stored(e) for e in range(3)] == [["b1", "b2"], ["b2", "b3"], ["b1", "b3"]]
    assert w.machine.last_add_fully_replicated == -1
    return w


def _lafr(w: Writer) -> int:
    machine: LedgerWriter = w.machine
    return machine.last_add_fully_replicated


def test_scenario_47_all_bookies_failed_once_and_all_are_pinned() -> None:
    """G-4, G-7, G-2, I-G3.

    1. GWQ. e0 is on b1 b2, e1 on b2 b3, e2 on b1 b3; each third copy is lost, so each bookie has failed one write.
    2. Every bookie is needed by two committed entries: none is replaced, though b4 is free. Each is sent again what it lacks.
    3. All take it: LAFR reaches the last entry, in the one fragment there ever was.
    """
    s = Scenario(3, 3, 2, bookies=4, gwq=True, limits=replace(GWQ_LIMITS, pinned_retries_max=3))
    w = _all_pinned(s)
    for late in list(s.world.rules):
        s.discard(late)
        s.allow(late)
    again = s.hold("add")
    s.until(lambda: len(again.messages) == 3)
    assert {(m.target, m.entry_id) for m in again.messages} == {("b3", 0), ("b1", 1), ("b2", 2)}
    s.release(again)
    s.settle()
    assert _lafr(w) == 2 and w.machine.idle
    assert s.fragments == {0: ("b1", "b2", "b3")} and s.writes(w) == 0
    assert [s.stored(e) for e in range(3)] == [["b1", "b2", "b3"]] * 3
    assert all(_times(s, f"{b} failed (TIMEOUT)") == 1 for b in ("b1", "b2", "b3"))
    w.close()
    s.settle()
    assert s.metadata.sealed and s.last_entry == 2


def test_scenario_48_a_pinned_bookie_that_is_dead_for_ever_is_staged_out() -> None:
    """G-5, G-7, G-9, I-G3.

    1. As in scenario 47, but b3 is dead for ever and b4 is free; b1 and b2 are slow with the copies they lack.
    2. b3 is pinned by e1 and e2. Sending again is hopeless, so b4 is given e0, e1 and e2 while the metadata still names b3.
    3. Only then the metadata changes. b1 and b2 answer: LAFR reaches the last entry. No entry was ever below Qa in what is recorded.
    """
    s = Scenario(3, 3, 2, bookies=4, gwq=True, limits=replace(GWQ_LIMITS, add_timeout_ns=2_000 * MS))
    w = _all_pinned(s)
    change = s.metadata_hold(client=w)
    s.crash("b3")
    s.until(lambda: bool(change.messages), 1_000)
    assert [("b4" in s.stored(e)) for e in range(3)] == [True, True, True]
    assert s.fragments == {0: ("b1", "b2", "b3")} and _lafr(w) == -1
    s.release()
    s.settle(1_000)
    assert s.fragments == {0: ("b1", "b2", "b4")} and s.writes(w) == 1
    assert _lafr(w) == 2 and w.machine.idle and w.acked == [0, 1, 2] and w.errors == []
    w.close()
    s.settle()
    assert s.metadata.sealed and s.last_entry == 2


def test_scenario_49_a_close_waits_for_a_bookie_and_a_later_recovery_seals() -> None:
    """G-10, G-11, G-12, G-13, I-G2.

    1. GWQ on three bookies, none free. b3 dies; e0 and e1 are acknowledged by the other two.
    2. w closes: it waits, for seconds, and never closes over what is not on all three.
    3. w gives up: the close fails, the ledger is left OPEN, nothing acknowledged was taken back.
    4. b3 is back. r closes the ledger at e1 and seals it: three copies each.
    """
    s = Scenario(3, 3, 2, gwq=True)
    w = s.writer()
    s.crash("b3")
    for _ in range(2):
        w.append()
        s.run(100)
    assert w.acked == [0, 1] and _lafr(w) == -1
    w.close()
    s.run(3_000)
    assert w.close_results == [] and s.state is LedgerState.OPEN and s.writes(w) == 0
    w.act(w.machine.abandon(w.now))
    s.run(500)
    assert [type(result) for result in w.close_results] == [LedgerClosedError]
    assert s.state is LedgerState.OPEN and w.acked == [0, 1] and w.errors == []
    s.restart("b3")
    r = s.recoverer()
    s.settle()
    assert r.result.last_entry_id == s.last_entry == 1 and s.metadata.sealed
    assert s.stored(0) == s.stored(1) == ["b1", "b2", "b3"]


class Filler(Client):
    """The repair job of G-27: writes every entry of the last two fragments again to all of its write set, then seals."""

    role = "replicator"

    def __init__(self, s: Scenario, name: str) -> None:
        super().__init__(s.cluster, name, s.truth)
        self.result: Any = None
        self.filled = s.metadata.fragments
        self._spans = list(guaranteed.spans_to_fill(s.metadata))
        self._known = (s.metadata, s.truth.version)
        self.on_done = self._done
        self._next()

    def _next(self) -> None:
        metadata, version = self._known
        ledger_id = self.truth.ledger_id
        if self._spans:
            span = self._spans.pop(0)
            refill = guaranteed.everything(metadata, span)
            repair = FragmentRepair(ledger_id, metadata, version, span, "fill", refill=refill, limits=self.cluster.limits)
            self.change_machine(repair)
            self.act(repair.start(self.now))
        else:
            seal = MetadataChange(ledger_id, metadata, version, lambda md: guaranteed.sealed(md, self.filled), "seal")
            self.change_machine(seal)
            self.act(seal.start())

    def _done(self, token: Any, value: Any) -> None:
        if token == "fill" and not isinstance(value, Exception):
            self.world.at(1, self._next)
        else:
            self.result = value


def test_scenario_50_a_plain_client_recovers_a_guaranteed_ledger() -> None:
    """G-25, G-27, RR-13, META-7, I-G2.

    1. GWQ. e0, e1 and e2 are acknowledged; b3 has none of them yet. w dies.
    2. A client that knows nothing of guarantees recovers: it starts at the LAC, so e0 and e1 stay on two bookies. All three entries are
       part of the ledger; the seal is missing.
    3. The repair job fills in what is missing and seals; nothing else of the metadata changes.
    """
    s = Scenario(3, 3, 2, gwq=True)
    w = s.writer()
    s.drop("add", to="b3")
    for _ in range(3):
        w.append()
        s.run(5)
    assert w.acked == [0, 1, 2]
    s.kill(w)
    s.allow()
    r = s.recoverer(plain=True)
    s.settle()
    assert r.result.last_entry_id == s.last_entry == 2
    assert s.stored(0) == s.stored(1) == ["b1", "b2"]
    closed = s.metadata
    assert closed.guaranteed and not closed.sealed and guaranteed.needs_filling(closed)
    s.hold("recovery-add", to="b3", entry=1)
    filler = Filler(s, "fill")
    s.run(50)
    assert not s.metadata.sealed  # not before every copy is there
    s.release()
    s.settle()
    assert not isinstance(filler.result, Exception)
    assert s.metadata == closed.with_seal() and not guaranteed.needs_filling(s.metadata)
    assert [s.stored(e) for e in range(3)] == [["b1", "b2", "b3"]] * 3
