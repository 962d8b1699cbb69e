"""References to a data ledger: it goes with the last one, and never gets another."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.errors import FileStoreError, FileStoreTakenOverError
from bk_core.protocol.events import Outcome
from bk_core.protocol.files.effects import AppendRecords, DropData, RollLog
from bk_core.protocol.files.machine import FileLimits
from tests.unit.files.store_world import World, inline, large, new_store, replayed


def dropping(world: World) -> list[int]:
    """Ledgers whose deletion was asked for and is not answered."""
    return [effect.ledger_id for effect in world.asked if isinstance(effect, DropData)]


def put_held(world: World, path: str, *ledger_ids: int) -> None:
    """As the world does it: lease, put, give back at once."""
    world.hold(*ledger_ids)
    world.put(path, large(*ledger_ids))
    world.release(*ledger_ids)


def append(world: World) -> None:
    """The oldest append is acknowledged."""
    world.answer(world.find(AppendRecords))


def test_fs_13_serve_drops_what_nothing_refers_to() -> None:
    """FS-13."""
    world = new_store()
    put_held(world, "/a", 7, 8)
    world.settle()
    following = World(world.log, data=[5, 6, 7, 8, 9])
    assert dropping(following) == [5, 6, 9]
    following.settle()
    assert following.data == {7, 8}


def test_fs_16_a_new_store_drops_nothing_before_its_base_is_acknowledged() -> None:
    """FS-16: the log may be empty because a later owner has trimmed it, and the ledgers are that owner's."""
    world = World(data=[1, 2])
    assert dropping(world) == []
    append(world)
    assert dropping(world) == [1, 2], "a new store refers to nothing"
    deposed = World(data=[1, 2])
    deposed.hold(3)
    deposed.release(3)
    deposed.fail()
    assert not deposed.asked and deposed.dropped == []


def test_fs_13_a_ledger_goes_when_the_last_reference_is_known_to_be_gone() -> None:
    """FS-13: two files share it; the second deletion has to be acknowledged."""
    world = new_store()
    put_held(world, "/a", 7)
    put_held(world, "/b", 7)
    world.settle()
    world.delete("/a")
    world.put("/b", inline("x"))
    append(world)
    assert dropping(world) == []
    append(world)
    assert dropping(world) == [7]
    world.settle()
    assert world.dropped == [7]


@pytest.mark.parametrize("how", ["delete", "overwrite", "rename", "parent"])
def test_fs_13_a_put_and_its_end_may_both_be_unacknowledged(how: str) -> None:
    """FS-13: neither tree refers to the ledger then, but a crash may leave the put in the log without what is behind it."""
    world = new_store()
    world.put("/other")
    world.hold(7)
    put_held(world, "/d/a", 7)
    match how:
        case "delete":
            world.delete("/d/a")
        case "overwrite":
            world.put("/d/a", inline("x"))
        case "rename":
            world.rename("/other", "/d/a", overwrite=True)
        case _:
            world.delete("/d", recursive=True)
    world.release(7)
    for left in (3, 2, 1):
        assert dropping(world) == [], "it may still be needed"
        assert len([effect for effect in world.asked if isinstance(effect, AppendRecords)]) == left
        append(world)
    assert dropping(world) == [7]


def test_fs_13_a_lease_keeps_a_ledger() -> None:
    """FS-13: counted, whoever else refers to it."""
    world = new_store()
    world.hold(7, 7)
    world.put("/a", large(7))
    world.settle()
    world.delete("/a")
    world.settle()
    world.release(7)
    assert dropping(world) == []
    world.release(7)
    assert dropping(world) == [7]
    world.hold(8)
    world.release(8)
    assert dropping(world) == [7, 8], "filled and never put"


def test_fs_13_a_put_that_is_refused_holds_nothing() -> None:
    """FS-13: the world's lease is all there is, and goes with it."""
    world = new_store()
    world.mkdirs("/d")
    world.hold(7)
    world.put("/d", large(7), token="refused")
    assert dropping(world) == []
    world.release(7)
    assert dropping(world) == [7]


def test_fs_13_an_overwrite_with_the_same_ledger_keeps_it() -> None:
    """FS-13."""
    world = new_store()
    put_held(world, "/a", 7)
    put_held(world, "/a", 7)
    world.settle()
    assert world.dropped == [] and world.machine.tree.ledgers == {7: 1}


def test_fs_13_what_a_base_names_goes_only_behind_the_change_that_lets_go_of_it() -> None:
    """FS-13: a base that is not acknowledged names the ledger, and so may be all that the next owner finds."""
    world = new_store(FileLimits(compact_bytes=0, compact_factor=0))
    put_held(world, "/a", 7)
    world.answer(world.find(RollLog))
    world.delete("/a")
    put, base, delete = (effect for effect in world.asked if isinstance(effect, AppendRecords))
    place = world.log.index(next(one for one in world.log if one[1] == base.records[-1]))
    assert replayed(world.log[: place + 1]).tree.ledgers == {7: 1}
    for effect in (delete, put):
        world.answer(effect)
        assert dropping(world) == []
    world.answer(base)
    assert dropping(world) == [7]
    assert replayed(world.log).tree.ledgers == {}


def test_fs_14_a_dropped_ledger_is_never_referred_to_again() -> None:
    """FS-14: from the decision on, whether or not the deletion is known to be done."""
    world = new_store()
    put_held(world, "/a", 7, 8)
    world.settle()
    world.delete("/a")
    world.settle()
    assert world.dropped == [7, 8]
    world.put("/b", large(8, 9), token="t")
    assert type(world.last()) is FileStoreError and "dropped ledger 8" in str(world.last())
    with pytest.raises(FileStoreError):
        world.machine.hold(7)
    assert not world.asked and world.paths() == []


def test_fs_14_also_while_the_deletion_waits_its_turn() -> None:
    """FS-14."""
    world = World(data=range(10), limits=FileLimits(drops_at_once=2))
    append(world)
    assert dropping(world) == [0, 1]
    for ledger_id in (0, 9):
        world.put("/a", large(ledger_id), token=f"put {ledger_id}")
    world.settle()
    assert [type(value) for _, value in world.told] == [FileStoreError] * 2
    assert world.dropped == list(range(10)) and not world.data


def test_drops_are_bounded() -> None:
    world = World(data=range(20), limits=FileLimits(drops_at_once=3))
    seen = 0
    while world.asked:
        seen = max(seen, len(dropping(world)))
        world.answer(world.asked[-1])
    assert seen == 3 and sorted(world.dropped) == list(range(20))


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_fs_15_a_drop_that_fails_is_asked_for_again(outcome: Outcome) -> None:
    """FS-15: and it is in nobody's way meanwhile."""
    world = World(data=range(6), limits=FileLimits(drops_at_once=2))
    append(world)
    for _ in range(2):
        world.answer(world.find(DropData), outcome)
    assert dropping(world) == [2, 3] and len(world.timers) == 2
    world.settle()
    assert world.dropped == [2, 3, 4, 5]
    world.fire()
    world.fire()
    assert dropping(world) == [0, 1]
    world.settle()
    assert not world.data and world.machine.error is None


def test_fs_15_what_fails_for_ever_is_asked_for_less_and_less() -> None:
    """FS-15: up to a limit. A success, or another ledger, begins with the shortest pause."""
    world = World(limits=FileLimits(retry_ns=10, retry_ns_max=65), data=range(2))
    append(world)
    pauses = []
    for _ in range(6):
        world.answer(world.find(DropData), Outcome.UNKNOWN)
        pauses.append(world.timers[-1].after_ns)
        world.answer(world.find(DropData)) if len(pauses) == 1 else None
        world.fire()
    assert pauses == [10, 20, 40, 65, 65, 65] and world.dropped == [1]
    world.answer(world.find(DropData))
    world.hold(7)
    world.release(7)
    world.answer(world.find(DropData), Outcome.UNKNOWN)
    assert world.timers[-1].after_ns == 10 and list(world.machine._pauses) == ["drop 7"]


def test_whoever_has_ended_drops_nothing() -> None:
    """The store may be another owner's by now."""
    world = World(data=range(6), limits=FileLimits(drops_at_once=2))
    world.settle()
    world = new_store(FileLimits(drops_at_once=1))
    world.hold(7, 8)
    put_held(world, "/a", 9)
    world.settle()
    world.release(7)
    world.answer(world.find(DropData), Outcome.UNKNOWN)
    world.delete("/a")
    world.fail(FileStoreTakenOverError("another owner"))
    world.release(8)
    world.fire()
    assert not world.asked and world.dropped == []


def test_a_failed_put_keeps_its_ledger() -> None:
    """It may be in the log."""
    world = new_store()
    put_held(world, "/a", 7)
    world.fail()
    assert world.dropped == [] and not world.asked
    assert World(world.log, data=[7]).data == {7} and not World(world.log, data=[7]).asked
    assert dropping(World(world.log[:2], data=[7])) == [7]


def test_a_lease_is_no_step_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data threads take leases, and nobody there could perform effects."""
    world = new_store()
    taken: Any = world.machine.hold
    monkeypatch.setattr(world.machine, "_advance", lambda: pytest.fail("a lease makes nothing due"))
    assert taken(3) is None


def test_a_lease_before_serve_counts() -> None:
    world = new_store()
    machine = world.machine
    machine.hold(3)
    assert machine.release(3) != []
    following = World.__new__(World)
    World.__init__(following, world.log)
    with pytest.raises(AssertionError, match="not held"):
        following.machine.release(3)
