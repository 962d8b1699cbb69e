"""The defects that readers have had before (replication-protocol.md 14), and the reading scenarios of 13.3."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import NoSuchEntryError
from bk_core.protocol.events import LedgerRead, MetadataChanged, Outcome, ReadReply, TimerFired
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.ledger.read.lac_reader import LacReader
from bk_core.protocol.ledger.read.reader import SPECULATE, RangeReader
from bk_core.protocol.ledger.read.replica_order import ReplicaOrder
from bk_core.protocol.ledger.read.tail import LOOK, PAUSE, Tail
from bk_core.protocol.wire.messages import ReadRequest, Status
from tests.unit.ledger.reader_world import (
    LEDGER,
    World,
    body,
    closed,
    good,
    lac_answer,
    metadata,
    nothing_confirmed,
    nothing_new,
    payload,
    single,
)

OPEN = metadata()


def polling(world: World) -> World:
    """Answer the plain reads that come before the first polls."""
    for ask in [a for a in world.asks if isinstance(a.message, ReadRequest) and a.message.previous_lac is None]:
        world.answer(ask, nothing_confirmed())
    return world


@pytest.mark.parametrize("lost", [Status.NO_LEDGER, Status.TIMEOUT, Status.UNKNOWN_LEDGER_STATE])
def test_14_1_6_the_lac_of_a_ledger_with_entries_is_never_minus_one(lost: Status) -> None:
    """replication-protocol.md 14.1 item 6, D5, scenario 43: the last fragment is empty, or a bookie of it lost its data."""
    world = World(LacReader(LEDGER, metadata((3, 3, 2), (0, "abc"), (100, "abd")), "lac")).start()
    world.answer("d", lost)
    world.answer("a", Status.NO_ENTRY)
    if not world.ends:
        world.answer("b", Status.NO_LEDGER)
    assert world.ends == [99]


def test_r28_a_lac_read_completes_exactly_once() -> None:
    """R28: success first, errors after it; and the other way round."""
    world = World(LacReader(LEDGER, OPEN, "lac")).start()
    asks = list(world.asks)
    world.answer(asks[0], lac_answer(5, lac=4))
    world.answer(asks[1], lac_answer(5, lac=4))
    world.answer(asks[2], Status.IO_ERROR)
    assert world.ends == [4]
    world = World(LacReader(LEDGER, OPEN, "lac")).start()
    asks = list(world.asks)
    for ask in asks[:2]:
        world.answer(ask, Status.IO_ERROR)
    world.answer(asks[2], Status.IO_ERROR)
    for ask in asks:
        world.answer(ask, lac_answer(5, lac=4))
    assert len(world.ends) == 1


def test_r29_a_tail_leaves_bookies_that_left_the_ensemble() -> None:
    """R29, LC-7: by the watch, and without one when they have nothing to say any more."""
    for watched in (True, False):
        world = polling(World(Tail(LEDGER, OPEN, 1, 0)).start())
        old = list(world.asks)
        moved = metadata((3, 3, 2), (0, "def"))
        if watched:
            world.change(moved, 2)
        else:
            for ask in old:
                world.answer(ask, Status.NO_LEDGER)
            world.look(moved, 2)
        assert {ask.bookie for ask in world.asks if ask not in old} == set("def")


def test_r29_a_read_follows_a_closed_ledger_that_was_re_replicated() -> None:
    """R29, RD-7, OP-6: told by a watch, or found when the old bookies fail."""
    before, after = closed(OPEN, 1), closed(metadata((3, 3, 2), (0, "def")), 1)
    world = World(RangeReader(LEDGER, before, 0, 1, start=0, batch=True, version=1)).start()
    for _ in range(3):
        world.answer(world.asks[0], Status.UNAVAILABLE)
        if world.asks and world.asks[0].bookie in "abc" and isinstance(world.asks[0].message, ReadRequest):
            world.answer(world.asks[0], Status.UNAVAILABLE)  # the single read that tells a dead bookie from an old one
    world.look(after, 2)
    world.answer(world.asks[0], good)
    assert world.ends == [None]


def test_r30_a_fenced_ledger_is_not_polled_in_a_tight_loop() -> None:
    """R30, LC-5: bookies that answer every poll at once get three polls a pause, not one per answer."""
    world = polling(World(Tail(LEDGER, OPEN, 1, 0)).start())
    before = len(world.all_asks)
    for _ in range(10):
        for ask in list(world.asks):
            world.answer(ask, nothing_new(-1))
        world.fire(PAUSE)
    assert len(world.all_asks) - before == 30
    assert world.ends == []  # LC-8


@pytest.mark.parametrize("ensemble", ["aab", "aba", "aaa"])
def test_r31_a_bookie_that_stands_twice_in_an_ensemble(ensemble: str) -> None:
    """R31, scenario 60: by position, so each position is asked and answers for itself; no hang."""
    md = metadata((3, 3, 2), (0, ensemble))
    world = World(RangeReader(LEDGER, closed(md, 0), 0, 0, start=0, batch=False, version=1)).start()
    asked = []
    while world.asks:
        asked.append(world.asks[0].bookie)
        world.answer(world.asks[0], Status.NO_ENTRY)
    assert asked == list(ensemble)
    world.look(closed(md, 0), 1)
    assert type(world.ends[0]) is NoSuchEntryError
    lac = World(LacReader(LEDGER, md, "lac")).start()
    assert len(lac.asks) == 3
    for ask in list(lac.asks):
        lac.answer(ask, lac_answer(5, lac=4))
    assert lac.ends == [4]
    follower = polling(World(Tail(LEDGER, md, 1, 0)).start())
    assert len(follower.asks) == 3
    follower.answer(follower.asks[-1], single(0, max_lac=0))
    assert follower.entries == {0: payload(0)}


def test_r32_the_sticky_position_is_never_negative() -> None:
    """R32, RD-2: over all E and all failures in a row."""
    for size in range(1, 8):
        order = ReplicaOrder(Distribution(size, size, 1), 0)
        for failed in [*range(size), *reversed(range(size)), 0, size - 1]:
            order.failed(failed)
            assert order.sticky is not None and 0 <= order.sticky < size
            assert order.positions(2**63 - 1, "abcdefgh")[0] == order.sticky


def test_r33_late_events_touch_nothing() -> None:
    """R33, RD-12, SM-3: every kind of event, after completion, at every machine."""
    reader = World(RangeReader(LEDGER, closed(OPEN, 0), 0, 0, start=0, batch=False, version=1)).start()
    reader.fire(SPECULATE)
    lac = World(LacReader(LEDGER, OPEN, "lac", version=1)).start()
    follower = World(Tail(LEDGER, OPEN, 1, 0)).start()
    sent = [(world, list(world.asks)) for world in (reader, lac, follower)]
    reader.answer("a", good)
    for bookie in "ab":
        lac.answer(bookie, Status.NO_ENTRY)
    follower.change(closed(OPEN, -1), 2)
    for world, asks in sent:
        assert len(world.ends) == 1
        late = [ReadReply(a.request, a.bookie, s, r) for a in asks for s, r in ((Status.OK, single(0, max_lac=9)), (Status.IO_ERROR, None))]
        timers = [TimerFired(key) for key in (SPECULATE, PAUSE, LOOK)]
        rest = [LedgerRead(1, Outcome.OK, closed(OPEN, 9), 50), MetadataChanged(closed(OPEN, 9), 50)]
        assert [world.machine.handle(event, 0) for event in [*late, *timers, *rest]] == [[]] * (len(late) + 5)


def test_scenario_42_a_tail_across_change_fence_recovery_and_close() -> None:
    """Scenario 42: it never sees an entry above the end, and follows each change at once."""
    world = polling(World(Tail(LEDGER, OPEN, 1, 0)).start())
    world.answer(world.asks[-1], single(0, max_lac=0))
    moved = metadata((3, 3, 2), (0, "abc"), (1, "abd"))
    world.change(moved, 2)  # ensemble change
    polling(world)
    assert {a.bookie for a in world.asks[-3:]} == set("abd")
    world.answer(world.asks[-1], single(1, max_lac=1))
    world.change(replace(moved, state=LedgerState.IN_RECOVERY), 3)  # fenced; this recoverer dies
    for ask in list(world.asks):
        world.answer(ask, single(2, max_lac=5))  # its LAC, on its way already
    assert world.entries == {0: payload(0), 1: payload(1)}
    sent = len(world.all_asks)
    world.look(replace(moved, state=LedgerState.IN_RECOVERY), 3)
    world.fire(LOOK)
    world.look(replace(moved, state=LedgerState.IN_RECOVERY), 3)
    assert len(world.all_asks) == sent  # no loop while it is fenced
    world.change(closed(moved, 2), 4)  # another recoverer finishes
    for ask in list(world.asks):
        world.answer(ask, good)
    assert world.entries == {e: payload(e) for e in range(3)}
    assert world.ends == [None] and world.logs == []


@pytest.mark.parametrize("down", ["", "a", "ab"])
def test_scenario_44_a_lac_needs_coverage(down: str) -> None:
    """Scenario 44."""
    world = World(LacReader(LEDGER, OPEN, "lac")).start()
    for ask in list(world.asks):
        world.answer(ask, Status.IO_ERROR if ask.bookie in down else lac_answer(3, lac=2))
    assert (world.ends == [2]) == (len(down) < 2) and len(world.ends) == 1


@pytest.mark.parametrize("entry_id", [2**31, 2**40 + 3, 2**63 - 4])
def test_scenario_59_large_ids_are_followed_by_the_same_arithmetic(entry_id: int) -> None:
    """Scenario 59, SM-5: tail and reads agree about the write set."""
    md = metadata((4, 2, 2), (0, "abcd"))
    world = polling(World(Tail(LEDGER, md, 1, entry_id, known=entry_id - 1)).start())
    world.answer(world.asks[-1], nothing_new(entry_id))
    first = world.asks[-1].bookie
    world.answer(world.asks[-1], Status.IO_ERROR)
    second = world.asks[-1].bookie
    assert (first, second) == ("abcd"[entry_id % 4], "abcd"[(entry_id + 1) % 4])
    world.answer(world.asks[-1], good)
    assert world.entries == {entry_id: payload(entry_id)}


def test_a_body_of_the_right_entry_in_the_wrong_ledger_is_no_piggyback() -> None:
    """RD-8."""
    world = polling(World(Tail(LEDGER, OPEN, 1, 0)).start())
    world.answer(world.asks[0], replace(single(0, max_lac=0), body=body(0, ledger_id=8)))
    assert world.runs == [] and world.heard == []
