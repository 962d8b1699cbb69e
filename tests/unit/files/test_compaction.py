"""Bases and trims: when they begin, what goes on meanwhile, what is asked for again, and what an owner's death leaves to the next."""

from __future__ import annotations

import pytest

from bk_core.errors import BkError
from bk_core.protocol.events import Outcome
from bk_core.protocol.files.effects import AppendRecords, RollLog, TrimLog
from bk_core.protocol.files.machine import Compaction, FileLimits, FileState
from bk_core.protocol.files.records import BaseBegin, BaseEnd, decode
from bk_core.protocol.log.position import Position
from tests.unit.files.store_world import World, inline, new_store, replayed, shape

SMALL = FileLimits(compact_bytes=1000, compact_factor=4, part_bytes=200)


def fill(world: World, size: int = 1100) -> None:
    """Records with more bytes than make a base due."""
    world.put("/filler", inline("x" * size))


def base_of(world: World) -> AppendRecords:
    """The append of a base that is not answered yet."""
    return next(one for one in world.asked if isinstance(one, AppendRecords) and isinstance(decode(one.records[0]), BaseBegin))


def begun(world: World) -> World:
    """A base is appended and not acknowledged."""
    fill(world)
    world.answer(world.find(RollLog))
    assert world.machine.compaction is Compaction.WRITING
    return world


def test_fs_11_a_base_is_due_behind_enough_bytes() -> None:
    """FS-11: 1 MiB, or four times the last base."""
    limits = FileLimits()
    assert (limits.compact_bytes, limits.compact_factor) == (1 << 20, 4)
    world = new_store(SMALL)
    world.put("/a", inline("x" * 600))
    world.settle()
    assert world.machine.compaction is Compaction.NONE
    world.put("/b", inline("x" * 600))
    assert world.asks(RollLog) and world.machine.compaction is Compaction.ROLLING
    world.settle()
    assert world.machine.compaction is Compaction.NONE
    base = sum(len(record) for _, record in world.log)
    assert 1200 < base < 1400
    while not world.asks(RollLog):
        since = sum(len(record) for _, record in world.log) - base
        assert since <= 4 * base
        world.put("/a", inline("x" * 600))
    assert since + 640 > 4 * base


def test_a_base_follows_the_roll_and_the_trim_the_base() -> None:
    world = new_store(SMALL)
    fill(world)
    assert not world.asks(TrimLog)
    world.answer(world.find(RollLog))
    base = base_of(world)
    assert len(base.records) == 3 and isinstance(decode(base.records[-1]), BaseEnd)
    world.answer(world.asked[0])
    assert not world.asks(TrimLog)
    world.answer(base)
    assert world.find(TrimLog).before == Position(1, 0) and world.machine.compaction is Compaction.TRIMMING
    world.settle()
    assert [position for position, _ in world.log] == [Position(1, 0), Position(1, 1), Position(1, 2)]
    assert shape(replayed(world.log).tree) == shape(world.machine.tree)


def test_fs_6_changes_go_on_while_a_base_is_made() -> None:
    """FS-6: those asked for before it are in it, acknowledged or not; those behind it stand behind it."""
    world = new_store(SMALL)
    world.put("/before")
    fill(world)
    world.put("/rolling")
    world.delete("/before")
    world.answer(world.find(RollLog))
    world.put("/behind")
    world.delete("/rolling")
    base = base_of(world)
    place = next(index for index, (_, record) in enumerate(world.log) if record == base.records[0])
    alone = replayed([(Position(0, n), record) for n, record in enumerate(base.records)])
    assert [status.path for status in alone.tree.walk()] == ["/", "/filler", "/rolling"]
    assert shape(alone.tree) == shape(replayed(world.log[:place]).tree), "it says what the log says up to there"
    world.settle()
    assert world.paths() == ["/behind", "/filler"] and world.log[0][1] == base.records[0]
    assert shape(replayed(world.log).tree) == shape(world.machine.tree)


def test_fs_6_a_base_is_the_same_whatever_is_acknowledged() -> None:
    """FS-6."""
    for acknowledged in range(5):
        world = new_store(SMALL)
        fill(world, 800)
        world.put("/a/b")
        world.delete("/a/b")
        fill(world, 900)
        roll = world.find(RollLog)
        for _ in range(acknowledged):
            world.answer(world.find(AppendRecords)) if world.asks(AppendRecords) else None
        world.answer(roll)
        records = base_of(world).records
        assert [status.path for status in replayed([(Position(0), one) for one in records]).tree.walk()] == ["/", "/a", "/filler"]


def test_fs_11_one_base_at_a_time() -> None:
    """FS-11: not before the last one is acknowledged and what is before it is trimmed."""
    world = begun(new_store(SMALL))
    for _ in range(20):
        fill(world)
    assert not world.asks(RollLog)
    while world.asks(AppendRecords):
        world.answer(world.find(AppendRecords))
        assert not world.asks(RollLog)
    trim = world.find(TrimLog)
    world.answer(trim, Outcome.UNKNOWN)
    fill(world)
    assert not world.asks(RollLog) and not world.asks(TrimLog)
    world.fire()
    world.answer(world.find(TrimLog))
    assert world.asks(RollLog)


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_fs_15_a_roll_or_trim_that_fails_is_asked_for_again(outcome: Outcome) -> None:
    """FS-15: after a pause, and it ends nothing."""
    world = new_store(SMALL)
    fill(world)
    for kind in (RollLog, TrimLog):
        for failures in range(3):
            first = world.find(kind)
            world.answer(first, outcome, BkError("not now"))
            assert not world.asks(kind)
            (timer,) = world.timers
            assert timer.after_ns == SMALL.retry_ns << failures
            world.put(f"/{kind.__name__}")
            world.fire()
            assert world.find(kind) != first
        world.answer(world.find(kind))
        while world.asks(AppendRecords):
            world.answer(world.find(AppendRecords))
    assert world.machine.compaction is Compaction.NONE and world.machine.state is FileState.SERVING
    assert world.machine.error is None and world.log[0][0].seq == 1


def test_fs_10_a_base_that_fails_ends_the_owner() -> None:
    """FS-10."""
    world = begun(new_store(SMALL))
    world.put("/b")
    world.answer(world.asked[0])
    world.answer(base_of(world), Outcome.UNKNOWN)
    assert world.machine.state is FileState.FAILED and world.told[-1][0] == "/b"
    assert not world.asks(TrimLog)


def test_fs_12_a_base_that_is_not_acknowledged_lets_go_of_nothing() -> None:
    """FS-12: nor one that is, before what stands in front of it is."""
    world = new_store(SMALL)
    fill(world)
    world.answer(world.find(RollLog))
    put, base = world.asked
    world.answer(base)
    assert not world.asks(TrimLog)
    world.answer(put)
    assert world.asks(TrimLog)


def test_fs_12_the_next_owner_trims_what_a_dead_one_left() -> None:
    """FS-12: at every point of a compaction at which the owner may have died."""
    world = new_store(SMALL)
    fill(world)
    world.answer(world.find(RollLog))
    world.put("/behind")
    size = len(world.log)
    for kept in range(3, size + 1):
        following = World(world.log[:kept])
        whole = kept >= size - 1
        assert following.asks(TrimLog) == whole
        if whole:
            assert following.find(TrimLog).before == Position(1, 0) and following.machine.compaction is Compaction.TRIMMING
        following.put("/more")
        following.settle()
        assert following.log[0][0].seq == (1 if whole else 0) and following.machine.compaction is Compaction.NONE
        assert shape(replayed(following.log).tree) == shape(following.machine.tree)
    assert not World([one for one in world.log if one[0].seq == 1]).asks(TrimLog)


def test_fs_12_the_next_owner_deletes_what_a_dead_one_took_off_the_list() -> None:
    """FS-12: the former owner died between the two steps of its trim, so no segment lies before the base."""
    world = begun(new_store(SMALL))
    world.settle()
    assert not World(world.log).asks(TrimLog)
    following = World(world.log, trim_left=True)
    assert following.find(TrimLog).before == Position(1, 0)
    following.settle()
    assert following.machine.compaction is Compaction.NONE


def test_the_next_owner_counts_the_bytes_of_the_one_before() -> None:
    """Else many short-lived owners would never make a base."""
    world = new_store(FileLimits(compact_bytes=1 << 30))
    for n in range(11):
        world.put(f"/{n}", inline("x" * 100))
        world.settle()
    assert World(world.log, limits=SMALL).asks(RollLog)
    assert not World(world.log[:9], limits=SMALL).asks(RollLog)


def test_fs_11_the_next_owner_knows_the_size_of_the_last_base() -> None:
    """FS-11."""
    world = begun(new_store(SMALL))
    world.settle()
    for _ in range(4):
        world.put("/a", inline("x" * 1000))
        following = World(world.log, limits=SMALL)
        assert following.asks(RollLog) == world.asks(RollLog)
        assert not following.asks(RollLog)
    world.put("/a", inline("x" * 1000))
    assert World(world.log, limits=SMALL).asks(RollLog) and world.asks(RollLog)


def test_nothing_is_compacted_on_the_way_out() -> None:
    world = new_store(SMALL)
    fill(world)
    world.take(world.machine.close("close"))
    world.answer(world.find(RollLog))
    assert len(world.asked) == 1
    world.settle()
    assert world.told[-1] == ("close", None)
    world = begun(new_store(SMALL))
    world.take(world.machine.close("close"))
    world.settle()
    assert world.told[-1] == ("close", None) and world.machine.state is FileState.CLOSED


def test_a_log_stays_short_however_long_it_is_written() -> None:
    world = new_store(SMALL)
    longest = 0
    for n in range(1000):
        world.put(f"/{n % 10}", inline("x" * 50))
        world.settle()
        longest = max(longest, sum(len(record) for _, record in world.log))
    assert longest < 1000 + 4 * 1100 + 2 * 1100, "the limit, and two bases of ten files"


# --- stores that are opened often --------------------------------------------------------------------------------------------


def test_fs_18_who_finds_many_segments_writes_a_base_first_and_trims() -> None:
    """FS-18: at the limit not yet."""
    assert FileLimits().segments_max == 16
    limits = FileLimits(segments_max=3)
    world = new_store(limits)
    world.put("/a", inline("1"))
    world.settle()
    for opened in range(1, 9):
        world = World(world.log, limits=limits)
        base_seq = min(position.seq for position, _ in world.log)
        if opened in (4, 8):
            assert world.machine.compaction is Compaction.WRITING and not world.asks(RollLog)
            world.put("/b", inline(str(opened)))  # at once
            first, change = world.asked
            world.answer(change)
            assert not world.told, "the change stands behind the base"
            world.answer(first)
            assert world.asks(TrimLog)
            world.settle()
            assert min(position.seq for position, _ in world.log) == world.seq > base_seq
        else:
            assert world.machine.compaction is Compaction.NONE and not world.asked
            world.put("/b", inline(str(opened)))
            world.settle()
        assert world.seq - min(position.seq for position, _ in world.log) <= 3
    assert shape(World(world.log).machine.tree) == shape(world.machine.tree)


def test_fs_18_an_owner_that_dies_before_its_base_is_acknowledged_leaves_it_to_the_next() -> None:
    limits = FileLimits(segments_max=0)
    world = new_store(limits)
    world.settle()
    dead = World(world.log, limits=limits)
    assert dead.machine.compaction is Compaction.WRITING
    following = World(dead.log[:-1], limits=limits)
    assert following.machine.compaction is Compaction.WRITING
    following.settle()
    assert following.machine.compaction is Compaction.NONE and {position.seq for position, _ in following.log} == {following.seq}


def test_an_owner_that_closes_before_its_base_is_acknowledged_trims_nothing() -> None:
    """The next one does (FS-12)."""
    limits = FileLimits(segments_max=0)
    world = World(new_store(limits).log, limits=limits)
    world.take(world.machine.close("close"))
    world.settle()
    assert world.machine.state is FileState.CLOSED and len({position.seq for position, _ in world.log}) == 2
