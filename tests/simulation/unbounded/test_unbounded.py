"""Unbounded ledgers (replication-protocol.md 11): each rule by itself, a walk of many seeds, and broken rules that the walk must notice."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bk_core.protocol.events import Outcome
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.placement import RandomPlacement
from tests.simulation.unbounded.bookie import Answer, Ask, Copy, Reply, UnboundedBookie, What
from tests.simulation.unbounded.client import (
    FAILURES_MAX,
    NO_OP,
    Acknowledged,
    Load,
    Phase,
    Send,
    Store,
    Stored,
    Todo,
    UnboundedClient,
)
from tests.simulation.unbounded.world import InvariantViolated, World

SEEDS = 100


def stored(ensemble: str = "abc", state: LedgerState = LedgerState.OPEN, term: int = 1, start: int = -1, first: int = 0) -> Stored:
    fragments = (Fragment(0, tuple("xyz")),) * (first > 0) + (Fragment(first, tuple(ensemble)),)
    return Stored(LedgerMetadata(3, 3, 2, state, fragments), term, start)


class Script:
    """A client and the test that plays bookies and store. ``sent`` are the requests that wait for an answer."""

    def __init__(self, found: Stored | None = None, bookies: str = "abcd") -> None:
        self.client = UnboundedClient("c", RandomPlacement(lambda: list(bookies), random.Random(1).random))
        self.sent: list[Send] = []
        self.stores: list[Store] = []
        self.done: list[Acknowledged] = []
        self.loads = 0
        self.take(self.client.start())
        self.take(self.client.handle_loaded(found or stored(), 7))

    def take(self, todo: Sequence[Todo]) -> None:
        for step in todo:
            match step:
                case Send():
                    self.sent.append(step)
                case Store():
                    self.stores.append(step)
                case Acknowledged():
                    self.done.append(step)
                case Load():
                    self.loads += 1

    def ok(self, outcome: Outcome = Outcome.OK) -> None:
        self.take(self.client.handle_stored(self.stores[-1], outcome))

    def answer(self, bookies: str, what: What, entry_id: int = -1, answer: Answer = Answer.OK, **reply: Any) -> None:
        for bookie in bookies:
            send = next(s for s in self.sent if (s.bookie, s.ask.what, s.ask.entry_id) == (bookie, what, entry_id))
            self.sent.remove(send)
            self.take(self.client.handle_reply(bookie, send.ask, Reply(send.ask.term, answer, **reply)))

    def fenced(self, **reply: Any) -> Script:
        self.ok()
        self.answer("ab", What.FENCE, **reply)
        return self

    def at(self, phase: Phase) -> bool:
        return self.client.phase is phase

    def opened(self) -> Script:
        """Term taken, nothing found, no-op everywhere, OPEN."""
        self.fenced()
        self.answer("ab", What.READ, self.client.last_add_pushed + 1, Answer.NO_ENTRY)
        self.answer("abc", What.ADD, self.client.last_add_pushed)
        self.ok()
        assert self.at(Phase.OPEN)
        return self

    def adds(self, entry_id: int) -> list[Send]:
        return [s for s in self.sent if s.ask.what is What.ADD and s.ask.entry_id == entry_id]


# --- the rules -----------------------------------------------------------------------------------------------------


def test_u1_a_writer_takes_the_next_term_and_fences_with_it() -> None:
    """U-1: one compare-and-set for mark and term; no bookie hears of the term before it is definite."""
    script = Script(stored(term=4))
    (store,) = script.stores
    assert (store.wanted.ledger.state, store.wanted.term, store.version) == (LedgerState.IN_RECOVERY, 5, 7)
    script.ok(Outcome.UNKNOWN)
    assert script.stores == [store, store], "META-12"
    assert not script.sent
    script.ok()
    assert [(s.bookie, s.ask) for s in script.sent] == [(b, Ask(What.FENCE, 5)) for b in "abc"]


def test_u1_a_lost_race_for_the_term_starts_over() -> None:
    """U-1, META-14; a closed ledger has no further term (U-6)."""
    script = Script()
    script.ok(Outcome.CONFLICT)
    assert script.loads == 2
    closed = stored()
    script.take(script.client.handle_loaded(Stored(closed.ledger.closed(3, 0), 9), 9))
    assert script.at(Phase.DONE)
    assert len(script.stores) == 1


def test_u2_a_bookie_refuses_lower_terms_and_adopts_higher_ones() -> None:
    """U-2: adds, fences and recovery reads alike; the reply carries the term of the request."""
    bookie = UnboundedBookie("a")
    assert bookie.handle(Ask(What.ADD, 3, 0, "x")).answer is Answer.OK
    for what in (What.ADD, What.FENCE, What.READ, What.JOIN):
        assert bookie.handle(Ask(what, 2, 0, "y")) == Reply(2, Answer.INVALID_TERM)
    assert bookie.handle(Ask(What.READ, 5, 0)) == Reply(5, Answer.OK, "x")
    assert bookie.handle(Ask(What.ADD, 4, 1, "z")).answer is Answer.INVALID_TERM
    assert bookie.entries == {0: Copy(3, "x")}


def test_u2_a_client_drops_replies_of_other_terms_and_withdraws_when_its_own_is_over() -> None:
    """U-2: then it looks at the metadata again before it does anything."""
    script = Script().fenced()
    ask = Ask(What.READ, 1, 0)
    script.take(script.client.handle_reply("c", ask, Reply(1, Answer.INVALID_TERM)))
    assert script.at(Phase.READING)
    script.answer("a", What.READ, 0, Answer.INVALID_TERM)
    assert script.at(Phase.IDLE)
    script.take(script.client.start())
    assert script.loads == 2


def test_u3_recovery_ends_with_a_no_op_that_truncates_and_opens_the_ledger_again() -> None:
    """U-3, G-12: from LAFR + 1; no-op at last + 1; the next entry is last + 2."""
    script = Script().fenced(lac=3, lafr=1)
    script.answer("a", What.READ, 2, value="two")
    script.answer("bc", What.READ, 3, Answer.NO_ENTRY)
    (one, *_) = script.adds(3)
    assert (one.ask.value, one.ask.truncate, one.ask.lac) == (NO_OP, True, 3)
    script.answer("abc", What.ADD, 3)
    assert len(script.stores) == 1, "write-back of 2 is not done"
    script.answer("abc", What.ADD, 2)
    wanted = script.stores[-1].wanted
    assert (wanted.ledger.state, wanted.term, wanted.start) == (LedgerState.OPEN, 2, 3)
    script.ok()
    script.take(script.client.append("new"))
    assert [s.bookie for s in script.adds(4)] == ["a", "b", "c"]


def test_u3_a_bookie_drops_what_older_terms_left_above_the_no_op() -> None:
    """U-3. A second delivery, after its own term has written more, takes nothing."""
    bookie = UnboundedBookie("a")
    for entry_id in range(5):
        bookie.handle(Ask(What.ADD, 1, entry_id, "old"))
    no_op = Ask(What.ADD, 2, 2, NO_OP, truncate=True)
    bookie.handle(no_op)
    assert sorted(bookie.entries) == [0, 1, 2]
    bookie.handle(Ask(What.ADD, 2, 3, "new"))
    bookie.handle(no_op)
    assert bookie.entries[3] == Copy(2, "new")


@pytest.mark.parametrize("missing", ["a", "b", "c"])
def test_u4_nothing_is_opened_before_the_whole_write_set_has_the_no_op(missing: str) -> None:
    """U-4: a bookie that missed it would keep entries under ids that will be used again."""
    script = Script().fenced()
    script.answer("ab", What.READ, 0, Answer.NO_ENTRY)
    script.answer("abc".replace(missing, ""), What.ADD, 0)
    assert script.at(Phase.TRUNCATING)
    script.answer(missing, What.ADD, 0)
    assert script.at(Phase.OPENING)


def test_u4_a_bookie_that_stays_silent_is_replaced_privately() -> None:
    """U-4, G-13, RC-15: its successor gets everything of the run's; the metadata learns of it when the ledger is opened."""
    script = Script().fenced()
    script.answer("ab", What.READ, 0, Answer.NO_ENTRY)
    script.answer("ab", What.ADD, 0)
    for _ in range(FAILURES_MAX + 1):
        script.take(script.client.tick())
    assert [s.bookie for s in script.adds(0)][-1] == "d"
    assert len(script.stores) == 1
    script.answer("d", What.ADD, 0)
    assert script.stores[-1].wanted.ledger.fragments == (Fragment(0, ("a", "b", "d")),)


def test_u5_an_id_is_used_again_by_a_later_term() -> None:
    """U-5: the add overwrites, so copies of one id may differ between terms; what is at or below a LAC does not."""
    bookie = UnboundedBookie("a")
    bookie.handle(Ask(What.ADD, 1, 0, "first"))
    bookie.handle(Ask(What.ADD, 2, 0, "second", lac=-1))
    assert bookie.entries == {0: Copy(2, "second")}


def test_u6_only_an_empty_queue_of_the_current_term_closes_and_once() -> None:
    """U-6."""
    script = Script().opened()
    script.take(script.client.append("x"))
    script.answer("ab", What.ADD, 1)
    assert script.done == [Acknowledged(1, "x")]
    script.take(script.client.close())
    assert script.at(Phase.OPEN), "one copy is still missing"
    script.answer("c", What.ADD, 1)
    script.take(script.client.close())
    script.take(script.client.close())
    assert [s.wanted.ledger.state for s in script.stores[2:]] == [LedgerState.CLOSED]
    script.ok(Outcome.CONFLICT)
    assert script.at(Phase.IDLE), "somebody has the next term"


def test_u7_without_a_replacement_the_writer_waits() -> None:
    """U-7: it acknowledges at Qa, closes nothing, and goes on sending what is missing."""
    script = Script(bookies="abc").opened()
    script.take(script.client.append("x"))
    script.answer("ab", What.ADD, 1)
    for _ in range(20):
        script.take(script.client.tick())
    assert script.at(Phase.OPEN)
    assert len(script.stores) == 2
    script.answer("c", What.ADD, 1)
    assert script.client.lafr == 1


def test_u8_a_newcomer_takes_the_term_before_it_is_named() -> None:
    """U-8, and beyond replication-protocol.md 11: d was in the ensemble of an older term and holds an entry of it under an id that is used
    again. The no-op of this term never reached it. It is asked to join, drops that entry, and only then the metadata may name it."""
    script = Script().opened()
    script.take(script.client.append("x"))
    script.answer("ab", What.ADD, 1)
    for _ in range(FAILURES_MAX + 1):
        script.take(script.client.tick())
    (join,) = [s for s in script.sent if s.ask.what is What.JOIN]
    assert (join.bookie, join.ask.entry_id) == ("d", 0)
    assert len(script.stores) == 2
    d = UnboundedBookie("d")
    d.handle(Ask(What.ADD, 1, 1, "left over"))
    d.handle(join.ask)
    assert not d.entries
    script.answer("d", What.JOIN, 0)
    assert script.stores[-1].wanted.ledger.last_fragment == Fragment(1, ("a", "b", "d"))
    script.ok()
    assert [s.bookie for s in script.adds(1)][-1] == "d"


def _carry(script: Script, bookies: dict[str, UnboundedBookie], reached: str) -> None:
    """Deliver everything that goes to one of these bookies, and their answers, in that order of bookies; the rest is lost."""
    while waiting := [s for b in reached for s in script.sent if s.bookie == b]:
        script.sent.remove(waiting[0])
        reply = bookies[waiting[0].bookie].handle(waiting[0].ask)
        script.take(script.client.handle_reply(waiting[0].bookie, waiting[0].ask, reply))
    script.sent.clear()


@pytest.mark.parametrize("joins", [True, False])
def test_u8_what_an_older_term_left_on_a_newcomer(joins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """U-8, the story behind joining. In term 2 entries 1 and 2 reach d only. Term 3 replaces d, ends the recovery at 1, acknowledges
    another entry 2 on a and b, and takes d back instead of c; what it then sends to d is lost. Term 4 hears d first."""
    bookies = {name: UnboundedBookie(name) for name in "abcd"}
    first = Script(stored("abd"))
    first.ok()
    _carry(first, bookies, "abd")
    first.ok()
    for value in ("left over 1", "left over 2"):
        first.take(first.client.append(value))
    _carry(first, bookies, "d")
    second = Script(first.stores[-1].wanted)
    second.ok()
    _carry(second, bookies, "ab")
    for _ in range(FAILURES_MAX + 1):
        second.take(second.client.tick())
    _carry(second, bookies, "abc")
    second.ok()
    assert second.stores[-1].wanted.ledger.last_fragment.ensemble == ("a", "b", "c")
    second.take(second.client.append("acknowledged"))
    _carry(second, bookies, "ab")
    assert second.done == [Acknowledged(2, "acknowledged")]
    if not joins:
        monkeypatch.setattr(UnboundedClient, "_has_joined", lambda self, bookie: True)
    for _ in range(FAILURES_MAX + 1):
        second.take(second.client.tick())
    _carry(second, bookies, "d" if joins else "")
    second.ok()
    assert second.stores[-1].wanted.ledger.last_fragment == Fragment(2, ("a", "b", "d"))
    third = Script(second.stores[-1].wanted)
    third.ok()
    _carry(third, bookies, "da")
    assert [op.value for op in third.client._ops.values()][:1] == (["acknowledged"] if joins else ["left over 2"])


def test_u9_the_lafr_is_derived_from_its_own_base() -> None:
    """U-9: with several entries at Qa it stays where it is, and they stay in the queue; from a base above 0 it moves at all."""
    script = Script(stored(first=6)).fenced()
    script.answer("ab", What.READ, 6, Answer.NO_ENTRY)
    script.answer("abc", What.ADD, 6)
    script.ok()
    for value in ("x", "y"):
        script.take(script.client.append(value))
    script.answer("ab", What.ADD, 7)
    script.answer("bc", What.ADD, 8)
    assert (script.client.lac, script.client.lafr) == (8, 6)
    script.answer("c", What.ADD, 7)
    assert script.client.lafr == 7
    script.answer("a", What.ADD, 8)
    assert script.client.lafr == 8


def test_u9_a_recovery_claims_no_lafr_of_its_own() -> None:
    """U-9, D6: what it has replicated may be on bookies of its private changes only; the stamp stays what was heard at the start."""
    script = Script().fenced(lac=2, lafr=1)
    script.answer("a", What.READ, 2, value="two")
    script.answer("abc", What.ADD, 2)
    script.answer("a", What.READ, 3, value="three")
    assert script.client.lafr == 2
    assert {(s.ask.lac, s.ask.lafr) for s in script.adds(3)} == {(2, 1)}


def test_g5_a_position_that_a_committed_entry_needs_is_not_replaced() -> None:
    """G-5, G-3: entry 1 is committed on a and b only, so neither may go; c may, from LAFR + 1 on."""
    script = Script(bookies="abcdef").opened()
    script.take(script.client.append("x"))
    script.answer("ab", What.ADD, 1)
    script.take(script.client.append("y"))
    for _ in range(FAILURES_MAX + 1):
        script.take(script.client.tick())
    joining = {s.bookie for s in script.sent if s.ask.what is What.JOIN}
    assert len(joining) == 1
    script.answer(joining.pop(), What.JOIN, 0)
    assert script.stores[-1].wanted.ledger.last_fragment.ensemble[:2] == ("a", "b")


# --- the walk ------------------------------------------------------------------------------------------------------


def test_no_seed_breaks_an_invariant() -> None:
    """U-1..U-9 together: losses, duplicates, crashes, ambiguous stores; checked after every step, closed in the end."""
    acknowledged = opened = 0
    for seed in range(SEEDS):
        world = World(seed).play()
        acknowledged += len(world.acknowledged)
        opened += sum(version.ledger.state is LedgerState.OPEN for version in world.history[1:])
    assert acknowledged > 10 * SEEDS
    assert opened > 2 * SEEDS, "ledgers are to be opened again and again"


def test_a_seed_replays() -> None:
    """SM-4."""
    assert World(5).play().lines == World(5).play().lines


def _moves_with_the_lac(self: UnboundedClient) -> None:
    """U-9, the published model: what is at or below the LAC counts as fully replicated."""
    while (op := self._ops.get(self.lafr + 1)) is not None and (self.lafr < self.lac or len(op.acked) == len(self.ensemble)):
        self.lafr += 1
        del self._ops[self.lafr]


BROKEN: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "U-2 no term check": (UnboundedBookie, "_accepts", lambda self, term: True),
    "U-3 no truncation": (UnboundedBookie, "_truncate", lambda self, ask: None),
    "U-3 truncation of the term's own entries": (UnboundedBookie, "_is_left_over", lambda self, copy, ask: True),
    "U-4 recovery at Qa only": (UnboundedClient, "_may_open", lambda self: all(map(self._enough, self._ops.values()))),
    "U-6 close with a queue": (UnboundedClient, "_may_close", lambda self: self._wanted is None),
    "U-9 LAFR moves with the LAC": (UnboundedClient, "_advance_lafr", _moves_with_the_lac),
    "U-9 recovery stamps its own LAFR": (UnboundedClient, "_stamps", lambda self: (max(self._frozen, self.lac), self.lafr)),
    "G-5 no pinning": (UnboundedClient, "_removable", lambda self, position: True),
    "G-6 free counting": (UnboundedClient, "_enough", lambda self, op: len(op.acked) >= self._distribution.ack_quorum_size),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_noticed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, method, replacement = BROKEN[rule]
    monkeypatch.setattr(owner, method, replacement)
    with pytest.raises(InvariantViolated):
        for seed in range(SEEDS):
            World(seed).play()
