"""Following a ledger: what is handed out, what a change of the metadata does, and what is no end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import NoSuchEntryError, NoSuchLedgerError, ReadError, UnauthorizedError
from bk_core.protocol.effects import SendRead
from bk_core.protocol.events import BookieLost, LedgerRead, Outcome, TimerFired
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.protocol.ledger.read.tail import LOOK, PAUSE, Tail
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import LAST_ENTRY, BatchReadRequest, ReadRequest, ReadResponse, ReadRunRequest, Status
from tests.unit.ledger.reader_world import (
    LEDGER,
    World,
    batch,
    body,
    closed,
    good,
    metadata,
    nothing_confirmed,
    nothing_new,
    payload,
    single,
)

OPEN = metadata()


def in_recovery(md: LedgerMetadata = OPEN) -> LedgerMetadata:
    return replace(md, state=LedgerState.IN_RECOVERY)


def tail(md: LedgerMetadata = OPEN, first: int = 0, **options: object) -> World:
    """One whose bookies all know that nothing is confirmed yet: plain reads answered, polls outstanding."""
    world = World(Tail(LEDGER, md, 1, first, **options)).start()  # type: ignore[arg-type]
    prime(world)
    return world


def prime(world: World) -> None:
    for ask in [a for a in world.asks if isinstance(a.message, ReadRequest) and a.message.entry_id == LAST_ENTRY and not is_poll(a)]:
        world.answer(ask, nothing_confirmed())


def is_poll(ask: SendRead) -> bool:
    return isinstance(ask.message, ReadRequest) and ask.message.previous_lac is not None


def polls(world: World) -> list[tuple[str, int]]:
    """Outstanding ones: bookie and the LAC polled from. Superseded ones stay outstanding, so the last ones count."""
    return [
        (a.bookie, a.message.previous_lac) for a in world.asks if isinstance(a.message, ReadRequest) and a.message.previous_lac is not None
    ]


def fresh_polls(world: World, before: int) -> list[tuple[str, int]]:
    return [
        (a.bookie, a.message.previous_lac)
        for a in world.all_asks[before:]
        if isinstance(a.message, ReadRequest) and a.message.previous_lac is not None
    ]


def expected(last: int, first: int = 0) -> dict[int, bytes]:
    return {e: payload(e) for e in range(first, last + 1)}


# --- following ---------------------------------------------------------------------------------------------------------


def test_entries_come_with_the_poll_one_round_trip_after_their_acknowledgement() -> None:
    """LC-5, LC-6: the piggybacked entry is handed out, and the next poll is there at once."""
    world = tail()
    for entry_id in range(3):
        before = len(world.all_asks)
        world.answer(world.asks[-1], single(entry_id, max_lac=entry_id))
        assert world.entries == expected(entry_id)
        assert sorted(fresh_polls(world, before)) == [(b, entry_id) for b in "abc"]
        world.consume()
    assert world.heard == [0, 1, 2]
    assert world.machine.last_add_confirmed == 2


def test_what_is_confirmed_and_did_not_come_along_is_read() -> None:
    """LC-6: LAC without entry; RD-10 in batches."""
    world = tail(batch=True)
    world.answer(world.asks[0], nothing_new(9))
    ask = world.asks[-1]
    assert isinstance(ask.message, BatchReadRequest) and (ask.message.entry_id, ask.message.entries_max) == (0, 10)
    world.answer(ask, batch(0, [body(e) for e in range(4)]))
    world.answer(world.asks[-1], good)
    assert world.entries == expected(9)
    assert world.ends == [] and polls(world)[-1][1] == 9


def test_a_backlog_is_read_before_anything_is_polled() -> None:
    """LC-5: only if the entry lies above the LAC."""
    world = World(Tail(LEDGER, OPEN, 1, 2, known=5)).start()
    assert [a.message for a in world.asks] == [ReadRunRequest(1, LEDGER, 2, 4)]
    world.answer_all()
    assert world.entries == expected(5, 2)
    prime(world)
    assert {lac for _, lac in polls(world)} == {5}


def test_an_entry_from_a_bookie_that_is_ahead_brings_the_rest() -> None:
    """LC-6: entry n and a higher LAC in one answer."""
    world = tail(batch=True)
    world.answer(world.asks[0], single(0, max_lac=3))
    assert world.entries == expected(0)
    ask = world.asks[-1]
    assert isinstance(ask.message, BatchReadRequest) and (ask.message.entry_id, ask.message.entries_max) == (1, 3)
    world.answer(ask, good)
    assert world.entries == expected(3)


def test_a_tail_from_an_entry_far_ahead_polls_from_the_lac() -> None:
    """LC-5: Apache's bookies answer a poll from above their LAC only when its time is up. What lies before is not handed out."""
    world = tail(first=10)
    assert {lac for _, lac in polls(world)} == {-1}
    before = len(world.all_asks)
    world.answer(world.asks[0], single(0, max_lac=4))
    assert {lac for _, lac in fresh_polls(world, before)} == {4}
    world.answer(world.asks[-1], nothing_new(10))
    world.answer(world.asks[-1], good)
    assert world.entries == expected(10, 10) and world.heard == [4, 10]


def test_waiting_without_delivery_ends_when_the_entry_is_confirmed() -> None:
    """LC-5: nothing is read."""
    world = tail(first=7, deliver=False)
    world.answer(world.asks[0], single(0, max_lac=6))
    assert world.ends == []
    world.answer(world.asks[-1], single(7, max_lac=8))
    assert world.ends == [None] and world.runs == [] and world.heard == [6, 8]
    assert World(Tail(LEDGER, OPEN, 1, 7, known=7, deliver=False)).start().ends == [None]


def test_the_reader_s_figures_pass_through() -> None:
    """RD-9: only what is new; a refused batch is remembered."""
    world = tail(batch=True, options=ReadOptions(speculative=False))
    world.answer(world.asks[0], nothing_new(1))
    world.answer(world.asks[-1], Status.BAD_REQUEST)
    world.answer(world.asks[-1], lambda ask: good(ask, max_lac=5))
    world.answer(world.asks[-1], lambda ask: good(ask, max_lac=4))
    assert world.heard == [1, 5]
    assert all(not isinstance(ask.message, BatchReadRequest) for ask in world.asks)  # 2..5 singly
    assert len(world.all_asks) > 4 and world.entries == expected(1)


def test_a_caller_that_takes_nothing_stops_the_polling() -> None:
    """A bound on what is handed out and not taken."""
    world = tail()
    for entry_id in range(256):
        world.answer(world.asks[-1], single(entry_id, max_lac=entry_id))
    before = len(world.all_asks)
    assert polls(world)[-1][1] == 254
    world.consume()
    assert {lac for _, lac in fresh_polls(world, before)} == {255}


def test_a_tail_is_ahead_of_its_reader_by_bytes() -> None:
    """RD-10, LC-6: entries that come with polls count like those that are read, and no read begins while there is no room."""
    world = tail(limits=Limits(read_ahead_bytes=4))
    for entry_id in range(4):  # a byte each
        world.answer(world.asks[-1], single(entry_id, max_lac=entry_id))
    asked = len(world.all_asks)
    world.fire(PAUSE)
    assert world.entries == expected(3) and len(world.all_asks) == asked
    world.consume()
    assert len(world.all_asks) > asked
    world.answer(world.asks[-1], single(4, max_lac=9))  # that poll's entry takes the last room
    asked = len(world.all_asks)
    assert world.entries == expected(4)
    world.consume()
    assert [ask.message for ask in world.all_asks[asked:]], "the reader has taken one: 5..9 are asked for"


def test_taking_runs_goes_to_whoever_handed_them_out() -> None:
    """Piggybacked runs first, then those of the reader at work."""
    limits = Limits(read_chunk_entries=1, read_chunks_in_flight=1)
    world = tail(batch=True, limits=limits)
    world.answer(world.asks[0], single(0, max_lac=3))
    world.answer(world.asks[-1], good)
    before = len(world.all_asks)
    world.consume()  # entry 0, which no reader counts
    assert len(world.all_asks) == before
    world.consume()  # entry 1
    assert len(world.all_asks) == before + 1
    world.answer(world.asks[-1], good)
    world.consume()
    world.answer(world.asks[-1], good)
    assert world.entries == expected(3)
    world.consume()
    world.consume()  # one too many is nobody's
    assert world.ends == []


# --- LC-7, LC-8, OP-6 ----------------------------------------------------------------------------------------------------


def test_a_new_fragment_re_issues_the_polls() -> None:
    """LC-7, scenario 42: the old ones are cancelled, whatever they bring."""
    world = tail()
    old = list(world.asks)
    before = len(world.all_asks)
    world.change(metadata((3, 3, 2), (0, "abc"), (1, "abd")), 2)
    world.answer(old[0], single(0, max_lac=0))
    assert world.ends == []
    entry = next(a for a in world.all_asks[before:] if isinstance(a.message, ReadRequest) and a.message.entry_id == 0)
    world.answer(entry, good)  # D5: what lies before the last fragment is confirmed
    assert world.entries == expected(0)
    prime(world)
    assert sorted(fresh_polls(world, before)) == [("a", 0), ("b", 0), ("d", 0)]


def test_older_metadata_is_nothing() -> None:
    """META-11."""
    world = tail()
    before = len(world.all_asks)
    world.change(closed(OPEN, 5), 1)
    assert len(world.all_asks) == before and world.ends == []


def test_a_close_ends_it_after_the_last_entry() -> None:
    """LC-7, LC-8: from the metadata, not from bookies."""
    world = tail()
    world.change(closed(OPEN, 1), 2)
    assert world.ends == []
    for ask in list(world.asks):
        if not is_poll(ask):
            world.answer(ask, good)
    assert world.entries == expected(1) and world.ends == [None]
    world.perform(world.machine.handle(TimerFired(PAUSE), 0))
    assert world.ends == [None]


def test_a_closed_ledger_is_read_to_its_end() -> None:
    """OP-2, LC-4."""
    world = World(Tail(LEDGER, closed(OPEN, 2), 1, 0, known=50)).start()
    world.answer_all()
    assert world.entries == expected(2) and world.ends == [None]
    assert World(Tail(LEDGER, closed(OPEN, 2), 1, 3)).start().ends == [None]


def test_a_close_while_reading() -> None:
    """OP-6: the reader at work goes on to the new end."""
    world = tail(batch=True)
    world.answer(world.asks[0], nothing_new(3))
    ask = world.asks[-1]
    world.change(closed(OPEN, 5), 2)
    world.answer(ask, good)
    world.answer(world.asks[-1], good)
    assert world.entries == expected(5) and world.ends == [None]


def test_a_close_below_what_was_confirmed_ends_it_there() -> None:
    """OP-6, scenario 42: nothing above the last entry is handed out any more, and there is an alarm."""
    world = tail(batch=True)
    world.answer(world.asks[0], nothing_new(9))
    ask = world.asks[-1]
    world.change(closed(OPEN, 3), 2)
    world.answer(ask, good)
    assert world.entries == expected(3) and world.ends == [None]
    assert [line.level for line in world.logs] == ["error"]


def test_silence_is_no_end() -> None:
    """LC-8: polls that bring nothing are repeated, for ever."""
    world = tail()
    for _ in range(5):
        world.fire(PAUSE)
        before = len(world.all_asks)
        for ask in [a for a in world.asks if is_poll(a)][-3:-1]:
            world.answer(ask, nothing_new(-1))
        assert len(fresh_polls(world, before)) == 3
    assert world.ends == []


def test_polls_that_end_at_once_do_not_become_a_tight_loop() -> None:
    """LC-5, R30: at most one round of polls in each pause."""
    world = tail()
    before = len(world.all_asks)
    for ask in list(world.asks):
        world.answer(ask, nothing_new(-1))
    assert len(world.all_asks) == before
    world.fire(PAUSE)
    assert len(fresh_polls(world, before)) == 3


@pytest.mark.parametrize("status", [Status.UNAVAILABLE, Status.NO_LEDGER, Status.TIMEOUT])
def test_bookies_that_fail_are_no_end_but_the_metadata_is_looked_at(status: Status) -> None:
    """LC-8, R29: they may have left the ensemble. Not more often than every few seconds."""
    world = tail()
    for ask in list(world.asks):
        world.answer(ask, status)
    assert world.ends == [] and len(world.looks) == 1
    world.look(OPEN, 1)
    world.fire(PAUSE)
    world.answer_all(status)
    assert world.looks == [] and world.ends == []
    world.fire(PAUSE)
    world.fire(LOOK)
    world.answer_all(status)
    moved = metadata((3, 3, 2), (0, "def"))
    before = len(world.all_asks)
    world.look(moved, 2)
    assert world.adopted == [(moved, 2)]
    assert [a.bookie for a in world.all_asks[before:]] == list("def")


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.REFUSED])
def test_a_look_that_fails_is_no_end(outcome: Outcome) -> None:
    """LC-8."""
    world = tail()
    world.answer_all(Status.UNAVAILABLE)
    world.look(None, outcome=outcome)
    world.fire(PAUSE)
    assert world.ends == [] and len(world.asks) == 3


def test_a_deleted_ledger_is_one() -> None:
    """LOG-13."""
    world = tail()
    world.answer_all(Status.NO_LEDGER)
    world.look(None, outcome=Outcome.NO_SUCH_LEDGER)
    assert isinstance(world.ends[0], NoSuchLedgerError)


def test_a_refusal_is_told() -> None:
    """LC-1: UNAUTHORIZED will not go away by asking again."""
    world = tail(metadata((1, 1, 1)))
    world.answer_all(Status.UNAUTHORIZED)
    assert isinstance(world.ends[0], UnauthorizedError)


def test_a_confirmed_entry_that_cannot_be_read_fails_the_tail() -> None:
    """RD-6, RD-7: and everything after that is ignored (RD-12)."""
    world = tail()
    world.answer(world.asks[0], nothing_new(0))
    for _ in range(3):
        world.answer(world.asks[-1], Status.IO_ERROR)
    world.look(OPEN, 1)
    assert type(world.ends[0]) is ReadError
    world.change(closed(OPEN, 5), 9)
    assert len(world.ends) == 1


def test_a_tail_s_reader_that_finds_newer_metadata_tells_it() -> None:
    """RD-7, OP-6."""
    world = tail()
    world.answer(world.asks[0], nothing_new(0))
    for _ in range(3):
        world.answer(world.asks[-1], Status.IO_ERROR)
    moved = metadata((3, 3, 2), (0, "def"))
    world.look(moved, 2)
    assert world.adopted == [(moved, 2)]
    world.answer(world.asks[-1], good)
    assert world.entries == expected(0)
    before = world.all_asks[-3:]
    assert {ask.bookie for ask in before} == set("def")


def test_an_entry_lost_below_the_end_of_a_closed_ledger_is_an_error() -> None:
    """RD-6: not to be mistaken for what the close cut off."""
    world = World(Tail(LEDGER, closed(OPEN, 0), 1, 0)).start()
    for _ in range(3):
        world.answer(world.asks[0], Status.NO_ENTRY)
    world.look(closed(OPEN, 0), 1)
    assert type(world.ends[0]) is NoSuchEntryError


# --- during a recovery -----------------------------------------------------------------------------------------------------


def test_during_a_recovery_it_waits_for_the_end() -> None:
    """Open question 2, LC-7, scenario 42: no poll, no entry above the last LAC seen before; a look now and then."""
    world = tail()
    late = world.asks[0]
    world.change(in_recovery(), 2)
    before = len(world.all_asks)
    world.answer(late, single(0, max_lac=0))
    assert world.runs == [] and world.heard == []
    world.look(in_recovery(), 2)
    assert world.looks == []
    world.fire(LOOK)
    world.look(closed(OPEN, 0), 3)
    assert len(world.all_asks) > before
    world.answer(world.asks[-1], good)
    assert world.entries == expected(0) and world.ends == [None]


def test_who_trusts_recoverers_goes_on_polling() -> None:
    """Open question 2: an option. The polls are re-issued (LC-7)."""
    world = tail(options=ReadOptions(hold_back_in_recovery=False))
    before = len(world.all_asks)
    world.change(in_recovery(), 2)
    assert len(fresh_polls(world, before)) == 3
    world.answer(world.asks[-1], single(0, max_lac=0))
    assert world.entries == expected(0)


def test_what_was_known_before_a_recovery_is_read_during_it() -> None:
    """Open question 2: the last LAC seen before counts."""
    world = World(Tail(LEDGER, in_recovery(), 2, 0, known=1)).start()
    world.answer_all()
    assert world.entries == expected(1) and world.ends == []
    assert len(world.looks) == 1


def test_a_piggybacked_entry_of_another_time_is_not_handed_out() -> None:
    """RD-8: what a plain answer of the wrong shape brings is a failed bookie, not an entry."""
    world = tail()
    world.answer(world.asks[0], ReadResponse(0, Status.OK, LEDGER, 3, body(3), 3))
    assert world.runs == [] and world.heard == []


def test_what_means_nothing_to_a_tail() -> None:
    """SM-3."""
    world = tail()
    for event in (BookieLost("a"), LedgerRead(99, Outcome.OK, closed(OPEN, 3), 9)):
        world.perform(world.machine.handle(event, 0))
    world.fire(PAUSE)
    world.perform(world.machine.handle(TimerFired(LOOK), 0))
    world.answer_all(nothing_new(-1))
    world.consume()
    assert world.ends == [] and world.looks == []
