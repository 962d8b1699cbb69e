"""The owner of a file store: what is told when, what is seen when, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from bk_core.errors import (
    BkError,
    DirectoryNotEmptyError,
    FileStoreClosedError,
    FileStoreError,
    FileStoreTakenOverError,
    InvalidPathError,
    LogError,
    NoSuchPathError,
    PathExistsError,
)
from bk_core.protocol.calendar import FIRST_MS, LAST_MS
from bk_core.protocol.effects import Complete, Fail
from bk_core.protocol.events import Outcome
from bk_core.protocol.files.effects import AppendRecords, RecordsAppended
from bk_core.protocol.files.machine import Compaction, FileLimits, FileMachine, FileState
from bk_core.protocol.files.records import BaseBegin, BaseEnd, Delete, Mkdirs, Put, Rename, decode
from bk_core.protocol.log.position import Position
from tests.unit.files.store_world import World, inline, new_store, replayed, shape


def kinds(world: World) -> list[type]:
    return [type(decode(record)) for _, record in world.log]


def tokens(world: World) -> list[Any]:
    return [token for token, _ in world.told]


# --- the first base ------------------------------------------------------------------------------------------------------


def test_fs_7_the_first_record_of_a_store_is_an_empty_base() -> None:
    """FS-7: operations may be called at once, and wait for it."""
    world = World()
    assert world.machine.state is FileState.STARTING and kinds(world) == [BaseBegin, BaseEnd]
    world.put("/a")
    world.delete("/nothing")
    base, put = world.asked
    world.answer(put)
    assert world.told == [] and world.paths() == []
    world.answer(base)
    assert world.machine.state is FileState.SERVING and world.machine.compaction is Compaction.NONE
    assert tokens(world) == ["/a", "/nothing"] and world.paths() == ["/a"]
    assert not world.asked, "nothing is before the first base that could be trimmed"


def test_fs_10_a_store_whose_first_base_fails_serves_nothing() -> None:
    """FS-10."""
    world = World()
    world.put("/a")
    world.fail()
    assert world.machine.state is FileState.FAILED and isinstance(world.last(), FileStoreTakenOverError)


def test_the_next_owner_goes_on_from_the_log() -> None:
    world = new_store()
    world.put("/a/b")
    world.mkdirs("/c/d")
    world.rename("/a", "/c/a")
    world.delete("/c/d")
    world.settle()
    assert kinds(world)[2:] == [Put, Mkdirs, Rename, Delete]
    following = World(world.log)
    assert following.machine.state is FileState.SERVING and not following.asked
    assert shape(following.machine.tree) == shape(world.machine.tree)
    following.put("/e")
    following.settle()
    assert following.last().file_id == 6, "ids go on where they were (FS-5)"


# --- what is told, and when ----------------------------------------------------------------------------------------------


def test_values() -> None:
    world = new_store()
    world.put("/a/b", inline("xyz"))
    world.mkdirs("/d/e/")
    world.rename("/a/b", "/d/b")
    world.delete("/d/b")
    world.delete("/d/b", token="again")
    world.take(world.machine.barrier("barrier"))
    world.settle()
    values = dict(world.told)
    assert (values["/a/b"].path, values["/a/b"].size, values["/a/b"].modified_ms) == ("/a/b", 3, 1000)
    assert values["/d/e/"].path == "/d/e" and values["/d/e/"].is_directory
    assert values[("/a/b", "/d/b")].path == "/d/b" and values[("/a/b", "/d/b")].file_id == values["/a/b"].file_id
    assert values["/d/b"] is True and values["again"] is False and values["barrier"] is None


def test_a_value_is_that_of_its_own_time() -> None:
    """All of these are acknowledged in one step; each is told as it was behind its own change."""
    world = new_store()
    world.put("/a", inline("1"), token=1)
    world.mkdirs("/d", token=2)
    world.put("/a", inline("333"), token=3)
    world.put("/d/x", token=4)
    world.mkdirs("/d", token=5)
    world.delete("/a", token=6)
    for effect in list(world.asked)[::-1]:
        assert world.told == []
        world.answer(effect)
    values = dict(world.told)
    assert list(values) == [1, 2, 3, 4, 5, 6]
    assert (values[1].size, values[2].children, values[3].size, values[5].children) == (1, 0, 3, 1)


def test_fs_8_reads_see_what_is_acknowledged() -> None:
    """FS-8."""
    world = new_store()
    world.put("/a", inline("1"))
    assert world.paths() == [] and not world.machine.tree.exists("/a")
    world.settle()
    world.put("/a", inline("22"))
    world.delete("/a")
    world.put("/b")
    assert world.paths() == ["/a"] and world.machine.tree.content("/a") == inline("1")
    world.answer(world.asked[0])
    assert world.machine.tree.content("/a") == inline("22")
    world.answer(world.asked[0])
    assert world.paths() == []
    world.answer(world.asked[0])
    assert world.paths() == ["/b"]


def test_changes_are_decided_on_what_those_before_leave_behind() -> None:
    world = new_store()
    world.mkdirs("/a")
    world.put("/a/f", parents=False)
    world.rename("/a", "/b")
    world.put("/b/f", overwrite=False, token="exists")
    world.delete("/b", token="not empty")
    world.put("/a", token="free again")
    world.settle()
    assert [type(value).__name__ for _, value in world.told] == [
        *("FileStatus", "FileStatus", "FileStatus", "PathExistsError", "DirectoryNotEmptyError", "FileStatus")
    ]
    assert world.paths() == ["/a", "/b", "/b/f"]


@pytest.mark.parametrize("last_first", [False, True])
def test_fs_9_outcomes_are_told_in_the_order_of_the_calls(last_first: bool) -> None:
    """FS-9: in whatever order the appends are acknowledged."""
    world = new_store()
    for n in range(5):
        world.put(f"/{n}")
        world.delete(f"/nothing-{n}")
    for effect in list(world.asked)[:: -1 if last_first else 1]:
        world.answer(effect)
    assert tokens(world) == [name for n in range(5) for name in (f"/{n}", f"/nothing-{n}")]


def test_fs_9_an_append_that_is_acknowledged_early_shows_nothing() -> None:
    """FS-9, FS-8."""
    world = new_store()
    world.put("/a")
    world.put("/b")
    world.answer(world.asked[1])
    assert world.told == [] and world.paths() == []


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda world: world.put("/a", overwrite=False, token="t"), PathExistsError),
        (lambda world: world.put("/a/b/c", token="t"), FileStoreError),
        (lambda world: world.mkdirs("/d", token="t"), "/d"),
        (lambda world: world.mkdirs("/a", token="t"), PathExistsError),
        (lambda world: world.rename("/x", "/y", token="t"), NoSuchPathError),
        (lambda world: world.rename("/a", "/a", overwrite=True, token="t"), "/a"),
        (lambda world: world.delete("/d", token="t"), DirectoryNotEmptyError),
        (lambda world: world.delete("/x", token="t"), False),
        (lambda world: world.delete("relative", token="t"), InvalidPathError),
        (lambda world: world.take(world.machine.barrier("t")), None),
    ],
)
def test_fs_9_a_refusal_waits_for_what_it_may_be_due_to(call: Any, wanted: Any) -> None:
    """FS-9: what is told to one caller must not depend on a change that a crash may undo."""
    world = new_store()
    world.put("/x", token=1)
    world.put("/a", token=2)
    world.put("/d/f", token=3)
    world.delete("/x", token=4)
    call(world)
    assert len(world.asked) == 4, "there is no record of it"
    while world.asked:
        assert "t" not in tokens(world)
        world.answer(world.asked[0])
    assert world.told[-1][0] == "t"
    value = world.last()
    assert isinstance(value, wanted) if isinstance(wanted, type) else wanted in (value, getattr(value, "path", None))
    call(world)
    assert tokens(world)[-2:] == ["t", "t"], "with nothing before it, it is told at once"


# --- the end -------------------------------------------------------------------------------------------------------------


def test_fs_10_a_failed_append_fails_all_that_is_pending() -> None:
    """FS-10: those behind it too, although their own appends are acknowledged, and what was refused because of them."""
    world = new_store()
    for n in range(4):
        world.put(f"/{n}")
    world.put("/3", overwrite=False, token="refused")
    world.take(world.machine.barrier("barrier"))
    first, second, third, fourth = world.asked
    world.answer(first)
    world.answer(fourth)
    error = FileStoreTakenOverError("another owner")
    world.answer(second, Outcome.UNKNOWN, error)
    assert world.told[1:] == [("/1", error), ("/2", error), ("/3", error), ("refused", error), ("barrier", error)]
    world.answer(third)  # SM-3: nobody waits for it
    assert len(world.told) == 6 and world.paths() == ["/0"]
    assert world.machine.state is FileState.FAILED and world.machine.error is error


def test_fs_10_after_the_end_all_calls_fail_with_its_error() -> None:
    """FS-10."""
    world = new_store()
    world.put("/a")
    world.fail()
    error = world.machine.error
    world.put("/b", token=1)
    world.mkdirs("/c", token=2)
    world.rename("/d", "/e", token=3)
    world.delete("relative", token=4)
    world.take(world.machine.barrier(5))
    world.take(world.machine.close(6))
    assert world.told[1:] == [(token, error) for token in range(1, 7)]
    assert world.machine.end(BkError("later")) == [] and world.machine.error is error


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
@pytest.mark.parametrize("error", [None, LogError("full")])
def test_fs_10_callers_learn_that_the_outcome_is_unknown(outcome: Outcome, error: Exception | None) -> None:
    """FS-10: whatever the log called it, nobody knows whether the records are in it."""
    world = new_store()
    world.put("/a")
    world.answer(world.asked[0], outcome, error)
    told = world.last()
    assert isinstance(told, FileStoreClosedError) and told.outcome_unknown and told.__cause__ is error
    assert error is None or "full" in str(told)


def test_the_world_may_end_it() -> None:
    world = new_store()
    world.put("/a")
    (effect,) = world.asked
    error = FileStoreTakenOverError("found by the world")
    world.take(world.machine.end(error))
    assert world.told == [("/a", error)] and world.machine.state is FileState.FAILED
    world.answer(effect)
    world.put("/b")
    assert world.told[1:] == [("/b", error)] and world.paths() == []


def test_before_it_serves_nothing_is_taken() -> None:
    machine = FileMachine("s")
    (told,) = machine.mkdirs("t", "/a", 1)
    assert isinstance(told, Fail) and "not open yet" in str(told.error)
    (told,) = machine.close("t")
    assert isinstance(told, Fail)
    error = BkError("the log could not be read")
    assert machine.end(error) == [] and machine.mkdirs("t", "/a", 1) == [Fail("t", error)]


def test_close_waits_for_all_that_was_asked_for() -> None:
    world = new_store()
    world.put("/a")
    world.take(world.machine.close("close"))
    world.put("/b")
    assert [token for token, _ in world.told] == ["/b"] and isinstance(world.last(), FileStoreClosedError)
    world.settle()
    assert [token for token, _ in world.told] == ["/b", "/a", "close"] and world.last() is None
    assert world.machine.state is FileState.CLOSED and world.paths() == ["/a"]
    world.take(world.machine.close("again"))
    assert isinstance(world.last(), FileStoreClosedError) and world.machine.error is None
    assert world.machine.end(BkError("later")) == []
    idle = new_store()
    assert idle.machine.close("t") == [Complete("t")]


def test_close_fails_with_the_append_that_it_waits_for() -> None:
    world = new_store()
    world.put("/a")
    world.take(world.machine.close("close"))
    world.fail()
    assert [token for token, _ in world.told] == ["/a", "close"] and world.machine.state is FileState.FAILED


def test_a_new_store_may_be_closed_before_its_base_is_acknowledged() -> None:
    world = World()
    world.put("/a")
    world.take(world.machine.close("close"))
    world.settle()
    assert [token for token, _ in world.told] == ["/a", "close"] and world.machine.state is FileState.CLOSED
    assert replayed(world.log).tree.exists("/a")


def test_an_answer_that_nobody_waits_for_does_nothing() -> None:
    """SM-3."""
    world = new_store()
    assert world.machine.handle(RecordsAppended(1, Outcome.UNKNOWN, None), 0) == []
    assert world.machine.handle(RecordsAppended(99, Outcome.OK, None, Position(0)), 0) == []
    assert world.machine.state is FileState.SERVING


# --- one change, one record ----------------------------------------------------------------------------------------------


def test_fs_4_a_change_is_one_record_with_all_it_makes() -> None:
    """FS-4: so a crash leaves the file with its directories, or nothing of either."""
    world = new_store()
    world.put("/a/b/c/f")
    world.mkdirs("/a/x/y/z")
    assert [type(effect) for effect in world.asked] == [AppendRecords] * 2
    assert [len(effect.records) for effect in world.asked if isinstance(effect, AppendRecords)] == [1, 1]
    before, after = (replayed(world.log[:size]).tree for size in (2, 3))
    assert before.count == 0 and after.count == 4
    world.settle()
    ids = [status.file_id for status in world.machine.tree.walk()]
    assert sorted(ids) == list(range(1, 9))


def test_fs_5_ids_are_never_given_twice() -> None:
    """FS-5: not by an owner, not over a replay, and not over a base that no longer has the files."""
    world = new_store()
    seen: list[int] = []
    for n in range(6):
        world.put(f"/d{n}/f", token="put")
        world.delete(f"/d{n}", recursive=True)
        world.settle()
        seen.append(dict(world.told)["put"].file_id)
        compacting = FileLimits(compact_bytes=0, compact_factor=0)
        world = World(world.log, limits=compacting if n % 2 else None)
        world.settle()
        assert len(world.log) <= (2 if n % 2 else 4)
    assert seen == [3, 5, 7, 9, 11, 13]


@pytest.mark.parametrize(("told", "kept"), [(10**30, LAST_MS), (LAST_MS, LAST_MS), (LAST_MS + 1, LAST_MS), (-(10**30), FIRST_MS), (0, 0)])
def test_a_time_that_no_calendar_has_becomes_the_nearest(told: int, kept: int) -> None:
    """A host's clock may be set to anything."""
    world = new_store()
    machine = world.machine
    world.take(machine.put("put", "/a/b", inline("x"), True, True, told))
    world.take(machine.mkdirs("mkdirs", "/c", told))
    world.take(machine.rename("rename", "/a/b", "/c/b", False, told))
    world.take(machine.delete("delete", "/a", True, told))
    world.settle()
    assert {machine.tree.status(path).modified_ms for path in ("/", "/c", "/c/b")} == {kept}
    assert shape(World(world.log).machine.tree) == shape(machine.tree)


def test_fs_21_times_do_not_go_back_with_the_clock() -> None:
    """FS-21: for this owner, for the next one, and for one that finds a base."""
    world = new_store()
    world.take(world.machine.mkdirs("a", "/a", 1000))
    world.take(world.machine.put("e", "/a/e", inline("x"), True, True, 5000))
    world.take(world.machine.put("f", "/a/f", inline("x"), True, True, 4000))  # before the others are acknowledged
    world.settle()
    compacting = World(world.log, limits=FileLimits(compact_bytes=0, compact_factor=0))
    compacting.take(compacting.machine.put("g", "/a/g", inline("x"), True, True, 3000))
    compacting.settle()
    third = World(compacting.log)
    third.take(third.machine.put("h", "/h", inline("x"), True, True, 2000))
    third.settle()
    tree = third.machine.tree
    assert {tree.status(path).modified_ms for path in ("/", "/a", "/a/f", "/a/g", "/h")} == {5000}
    third.take(third.machine.delete("d", "/h", False, 5001))
    third.settle()
    assert tree.status("/").modified_ms == 5001
