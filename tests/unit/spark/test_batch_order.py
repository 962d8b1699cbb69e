"""A sink's log that was deleted or made anew under its query, and checkpoints that went back: nothing of it passes in silence."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from bk_core.client.log.check import forget_marks
from bk_core.client.log.history import update_ledger_list
from bk_core.client.log.janitor import delete_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log, list_logs
from bk_core.errors import InvalidArgumentError, LogDataLossError, LogReplayError
from bk_core.protocol.log.segments import LogProperties
from bk_spark.sink.data_ledgers import _kept


def run(world: Any, batch_id: int, *batches: Any, query: str = "q", schema: str = "id long", **given: str) -> None:
    """One batch of a stream, as Spark runs it: a fresh writer plans it, a task writes, another fresh writer commits."""
    stream = world.stream(schema, **given)
    message = world.task(stream, *batches, query=query)
    world.stream(schema, **given).commit([message], batch_id)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and r.name == "bk_spark.sink"]


# --- BAT-1 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recreated", [False, True])
def test_a_sink_whose_log_is_gone_ends_the_query(world: Any, recreated: bool) -> None:
    """BAT-1: it went on with an empty log, and everybody took it for whole. Running or restarted is the same."""
    for i in range(3):
        run(world, i, [i], log="a")
    delete_log(world.client, "a")
    if recreated:
        create_log(world.client, "a", LogProperties("arrow"))
    for _ in range(2):
        with pytest.raises(LogDataLossError, match="query q is at batch 3, but .*(there is no log|has no mark of it).*failOnDataLoss"):
            run(world, 3, [3], log="a")
    assert list_logs(world.client) == (["a"] if recreated else [])
    assert not recreated or world.rows("a") == []


@pytest.mark.parametrize("recreated", [False, True])
def test_going_on_behind_a_loss(world: Any, recreated: bool, caplog: pytest.LogCaptureFixture) -> None:
    """BAT-1: what was told once to go on has its mark, and is as any other afterwards."""
    run(world, 0, [0], log="a")
    delete_log(world.client, "a")
    if recreated:
        create_log(world.client, "a", LogProperties("arrow"))
    run(world, 1, [1], log="a", failOnDataLoss="false")
    assert [text.split()[0] for text in warnings(caplog)] == ["BK-SINK-LOSS"]
    run(world, 2, [2], log="a")
    assert world.rows("a") == [1, 2]


def test_a_log_deleted_between_plan_and_commit(world: Any) -> None:
    """BAT-1."""
    run(world, 0, [0], log="a")
    for recreated in (False, True):
        stream = world.stream(log="a")
        message = world.task(stream, [1], query="q")
        delete_log(world.client, "a")
        _kept.clear()
        if recreated:
            create_log(world.client, "a", LogProperties("arrow"))
        with pytest.raises(LogDataLossError, match="deleted .*during the write"):
            stream.commit([message], 1)
        if not recreated:
            create_log(world.client, "a", LogProperties("arrow"))


def test_a_list_from_a_backup_lacks_batches(world: Any) -> None:
    """BAT-1."""
    run(world, 0, [0], log="a")
    old = read_ledger_list(world.client, "a")
    run(world, 1, [1], log="a")
    run(world, 2, [2], log="a")
    update_ledger_list(world.client, "a", lambda current: old)
    with pytest.raises(LogDataLossError, match="query q is at batch 3, but log 'a' has its batches up to 0 only"):
        run(world, 3, [3], log="a")


def test_a_mark_that_was_forgotten(world: Any) -> None:
    """BAT-1: nobody knows then if the batch is a replay."""
    run(world, 0, [0], log="a")
    forget_marks(world.client, "a", ["q"])
    with pytest.raises(LogDataLossError, match="bk log marks --forget"):
        run(world, 1, [1], log="a")


def test_what_may_come_to_a_log_without_a_mark(world: Any) -> None:
    """BAT-1: rows that are routed, batches that replace all there is, and queries without marks; but none of the last without its log."""
    run(world, 5, {"log": ["r"], "id": [1]}, schema="log string, id long")
    assert world.rows("r") == [1]
    stream = world.stream(log="c", overwrite=True)
    stream.commit([world.task(stream, [2], query="q")], 5)
    assert world.rows("c") == [2]
    run(world, 0, [0], log="e", exactlyOnce="false")
    run(world, 5, [5], log="e", exactlyOnce="false")
    assert world.rows("e") == [0, 5]
    delete_log(world.client, "e")
    with pytest.raises(LogDataLossError, match="there is no log 'e'"):
        run(world, 6, [6], log="e", exactlyOnce="false")
    world.write([1], log="b", txnAppId="app", txnVersion="7")  # versions of a transaction begin anywhere
    assert world.rows("b") == [1]


# --- BAT-2 ---------------------------------------------------------------------------------------------------------------


def test_a_replay_that_differs_is_told_with_both_counts(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    """BAT-2: what was committed stays. The same again is no news."""
    run(world, 0, [1, 2, 3], log="a")
    mark = read_ledger_list(world.client, "a").committed["q"]
    assert mark.rows == 3 and mark.bytes
    run(world, 0, [1, 2, 3], log="a")
    assert warnings(caplog) == []
    run(world, 0, [1], log="a")
    (told,) = warnings(caplog)
    assert "batch 0 of query q comes again with 1 rows" in told and f"log 'a' has it with 3 rows ({mark.bytes} bytes)" in told
    assert told.endswith("; option failOnDifferentReplay=true makes this an error")
    assert world.rows("a") == [1, 2, 3]


def test_the_same_number_of_other_rows_is_told_by_their_bytes(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    """BAT-2."""
    for value in ("a", "a much longer text than before" * 9):
        run(world, 0, {"id": [value]}, schema="id string", log="a")
    assert len(warnings(caplog)) == 1


def test_a_checkpoint_that_went_back(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    """BAT-2: rolled back, or copied: each batch up to the mark is told, the next one is written."""
    for i in range(3):
        run(world, i, [i], log="a")
    for i in range(4):
        run(world, i, [10 + i, 20 + i], log="a")
    told = warnings(caplog)
    assert len(told) == 3 and ["up to 2" in text for text in told] == [True, True, False]
    assert "rolled back, or is a copy" in told[0] and "with 2 rows" in told[0] and "the last one with 1 rows" in told[0]
    assert world.rows("a") == [0, 1, 2, 13, 23]


def test_a_replay_that_differs_is_an_error_if_asked_for(world: Any) -> None:
    """BAT-2: nothing is changed by it. A mark of an earlier program tells no counts, and is no reason."""
    run(world, 0, [0], log="a")
    run(world, 1, [1], log="a")
    before = read_ledger_list(world.client, "a")
    for batch_id, told in ((0, "up to 1"), (1, "has it with 1 rows")):
        with pytest.raises(LogReplayError, match=f"{told}.*failOnDifferentReplay=false"):
            run(world, batch_id, [1, 2], log="a", failOnDifferentReplay="true")
    assert read_ledger_list(world.client, "a") == before
    run(world, 1, [1], log="a", failOnDifferentReplay="true")
    unknown = {"q": replace(before.committed["q"], rows=None, bytes=None)}
    update_ledger_list(world.client, "a", lambda current: replace(current, committed=unknown))
    run(world, 1, [1, 2], log="a", failOnDifferentReplay="true")
    assert world.rows("a") == [0, 1]


def test_a_lost_answer_is_no_different_replay(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    """BAT-2, META-12: the own mark is met, with its own counts."""
    run(world, 0, [0], log="a")
    world.store.lost_answers = 1
    run(world, 1, [1, 2], log="a", failOnDifferentReplay="true")
    assert world.rows("a") == [0, 1, 2] and warnings(caplog) == []


def test_transactions_that_are_done_are_no_replays_to_tell(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    """They write no row the second time, so there is nothing to compare."""
    for _ in range(2):
        world.write([1], log="a", txnAppId="app", txnVersion="3")
    assert warnings(caplog) == []


@pytest.mark.parametrize("option", ["failOnDataLoss", "failOnDifferentReplay"])
def test_options_of_streams_do_nothing_in_a_batch_write(world: Any, option: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{option} does nothing in a batch write"):
        world.writer(log="a", **{option: "true"})
    with pytest.raises(InvalidArgumentError, match="exactlyOnce=false"):
        world.stream(log="a", exactlyOnce="false", failOnDifferentReplay="true")
