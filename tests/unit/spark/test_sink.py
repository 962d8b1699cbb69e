"""The sink: exactly once, whatever is repeated, lost or late, and what failed writes leave behind."""

from __future__ import annotations

import pickle
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

import bk_core
from bk_core.client.log.intents import intents_of
from bk_core.client.log.janitor import delete_log, gc_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import list_logs
from bk_core.errors import (
    ForeignLedgerError,
    InvalidArgumentError,
    LogDataLossError,
    LogError,
    MetadataDeniedError,
    NoSuchLogError,
    NullValueError,
    OperationTimeoutError,
)
from bk_spark.schemas import schema_of_text
from bk_spark.sink import commit as commits
from bk_spark.sink import data_ledgers

# --- exactly once ----------------------------------------------------------------------------------------------------


def test_rows_keep_the_order_of_partitions_and_of_their_tasks(world: Any) -> None:
    writer = world.writer(log="a", entrySize="64")
    messages = [world.task(writer, [10 * p, 10 * p + 1], [10 * p + 2], partition=p) for p in (2, 0, 1)]
    writer.commit([None, *messages])
    assert world.rows("a") == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert read_ledger_list(world.client, "a").total_rows == 9


def test_a_batch_of_a_stream_is_published_once_however_often_it_is_tried(world: Any) -> None:
    """spark-connectors.md 5.9, paimon#9666: written again with new messages. qbeast#274: lower ids are done too."""
    for batch_id, ids in ((0, [1]), (1, [2]), (1, [2]), (0, [1]), (2, [3])):
        message = world.task(world.stream(log="a"), ids, query="q")
        world.stream(log="a").commit([message], batch_id)
    assert world.rows("a") == [1, 2, 3]
    assert read_ledger_list(world.client, "a").committed["q"].batch_id == 2


def test_an_empty_batch_is_marked_and_makes_no_ledger(world: Any) -> None:
    stream = world.stream(log="a")
    stream.commit([world.task(stream, query="q"), world.task(stream, [], query="q", partition=1)], 0)
    listed = read_ledger_list(world.client, "a")
    assert listed.is_committed("q", 0) and not listed.segments and not world.ledgers()
    assert schema_of_text(listed.properties.schema).names == ["id"]
    stream.commit([world.task(stream, [1], query="q")], 0)
    assert world.rows("a") == []  # a replay with other data publishes nothing either


def test_two_queries_on_one_log_have_marks_of_their_own(world: Any) -> None:
    """hudi#8558. They share the worker's ledger, and neither is disturbed when the other replays or fails."""
    world.create("a")
    one = world.task(world.stream(log="a"), [1], query="q1")
    two = world.task(world.stream(log="a"), [2], query="q2")
    world.stream(log="a").commit([two], 0)
    world.stream(log="a").abort([world.task(world.stream(log="a"), [99], query="q2")], 1)
    world.stream(log="a").commit([one], 0)
    world.stream(log="a").commit([one], 0)
    assert world.rows("a") == [2, 1] and len(world.ledgers()) == 1
    assert {q: m.batch_id for q, m in read_ledger_list(world.client, "a").committed.items()} == {"q1": 0, "q2": 0}


def test_a_commit_whose_answer_is_lost_and_its_abort(world: Any) -> None:
    """META-12: the store applied it, the client asks again, meets its own success, and says so."""
    world.write([0], log="a")
    stream = world.stream(log="a")
    message = world.task(stream, [1], query="q")
    world.store.lost_answers = 1
    stream.commit([message], 0)
    stream.abort([message], 0)  # Spark aborts what failed to answer
    stream.commit([message], 0)
    assert world.rows("a") == [0, 1]


def test_a_commit_that_loses_a_race_goes_behind_the_winner(world: Any) -> None:
    world.write([0], log="a")
    writer = world.writer(log="a")
    message = world.task(writer, [2])
    world.store.before_write = lambda: world.write([1], log="a") and None
    writer.commit([message])
    assert world.rows("a") == [0, 1, 2]


def test_abort_after_commit_touches_nothing(world: Any) -> None:
    writer = world.writer(log="a")
    message = world.task(writer, [1])
    writer.commit([message])
    writer.abort([message])
    gc_log(world.client, "a", min_age_s=0)
    assert world.rows("a") == [1]


def test_a_one_shot_write_is_the_same_write_in_every_process(world: Any) -> None:
    writer = world.writer(log="a")
    message = world.task(writer, [1])
    for _ in range(2):
        pickle.loads(pickle.dumps(writer)).commit([message])
    assert world.rows("a") == [1]


def test_one_shot_marks_do_not_pile_up(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One per ``df.write``, while a list is kept whole in one node: young ones stay, and the newest, and all of other kinds."""
    monkeypatch.setattr(commits, "ONE_SHOTS_KEPT", 2)
    world.write([0], log="a", txnAppId="app", txnVersion="0")
    for i in range(4):
        world.write([i], log="a")
    assert len(read_ledger_list(world.client, "a").committed) == 5
    monkeypatch.setattr(commits, "ONE_SHOT_AGE_MS", -1)
    world.write([4], log="a")
    assert len(read_ledger_list(world.client, "a").committed) == 3
    listed = read_ledger_list(world.client, "a")
    assert listed.is_committed("txn:app", 0)
    assert {mark.rows for mark in listed.committed.values()} == {1} and all(mark.bytes for mark in listed.committed.values())


def test_transactions_are_written_once_per_version(world: Any) -> None:
    """Delta's txnAppId and txnVersion, as in foreachBatch. A version that is done writes no entry at all."""
    world.create("a")
    for version in ("0", "1", "1", "0"):
        world.write([int(version)], log="a", txnAppId="app", txnVersion=version)
    world.write([0], log="a", txnAppId="other", txnVersion="0")
    assert world.rows("a") == [0, 1, 0]
    assert sum(ledger.entries for ledger in data_ledgers._kept.values()) == 3


def test_exactly_once_false_appends_whatever_is_repeated(world: Any) -> None:
    for _ in range(2):
        stream = world.stream(log="a", exactlyOnce="false")
        stream.commit([world.task(stream, [1], query="q")], 0)
    assert world.rows("a") == [1, 1] and not read_ledger_list(world.client, "a").committed
    with pytest.raises(InvalidArgumentError, match="exactlyOnce"):
        world.writer(log="a", exactlyOnce="false", txnAppId="x", txnVersion="1")
    with pytest.raises(InvalidArgumentError, match="batch writes"):
        world.stream(log="a", txnAppId="x", txnVersion="1")
    with pytest.raises(InvalidArgumentError, match="query id"):
        world.stream(log="a").commit([world.task(world.stream(log="a"), [1])], 0)


def test_a_log_made_anew_during_the_write_gets_nothing(world: Any) -> None:
    world.write([0], log="a")
    writer = world.writer(log="a")
    message = world.task(writer, [1])
    delete_log(world.client, "a")
    with pytest.raises(NoSuchLogError):
        writer.commit([message])
    world.create("a")
    with pytest.raises(LogDataLossError, match="created again"):
        writer.commit([message])
    assert world.rows("a") == []


# --- what failed writes leave behind -----------------------------------------------------------------------------------


def test_a_failed_write_leaves_nothing_behind(world: Any) -> None:
    """Messages of tasks that succeeded, a zombie that nobody told of, and no log if the write was to create it."""
    writer = world.writer(log="a")
    message = world.task(writer, [1, 2])
    (own,) = [ledger.ledger_id for ledger in data_ledgers._kept.values()]
    data_ledgers._kept.clear()  # the next task runs in another worker, and is still running when the job is given up
    zombie = data_ledgers.TaskLedgers(writer._sink.options, writer._owner)
    (run,) = [run for _, run in writer._sink._single(iter([world.ids([3])]), {}, writer._sink.plan)]
    zombie.append("a", "", writer._sink.plan.properties, run)
    assert len(world.ledgers()) == 2
    writer.abort([message, None])
    assert world.ledgers() == set() and list_logs(world.client) == [] and intents_of(world.client, "a") == {}
    with pytest.raises(bk_core.BkError):
        zombie.append("a", "", writer._sink.plan.properties, run)
        zombie.finish()
    zombie.discard()
    assert world.ledgers() == set() and own not in [ledger.ledger_id for ledger in data_ledgers._kept.values()]


def test_a_first_write_whose_commit_fails_leaves_an_empty_log_at_most(world: Any) -> None:
    """It is not removed, because others may have planned writes to it meanwhile. The next write takes it."""
    writer = world.writer(log="a")
    message = world.task(writer, [1, 2])

    def fail() -> None:
        raise MetadataDeniedError("the right was taken away")

    world.store.before_write = fail
    with pytest.raises(MetadataDeniedError):
        writer.commit([message])
    writer.abort([message])
    assert world.rows("a") == [] and not world.ledgers() and not intents_of(world.client, "a")
    world.write([3], log="a")
    assert world.rows("a") == [3]


def test_a_failed_write_leaves_ledgers_alone_that_a_query_shares(world: Any) -> None:
    """The other query went on with the ledger that the failed write had begun: claim and adoption meet in the intent."""
    world.write([0], log="b")
    writer = world.writer(log="a")
    failed = world.task(writer, [1])
    other = world.task(world.stream(log="a"), [2], query="q")
    assert {r.ledger_id for p in failed.parts for r in p.ranges} == {r.ledger_id for p in other.parts for r in p.ranges}
    writer.abort([failed])
    world.stream(log="a").commit([other], 0)
    assert world.rows("a") == [2]


def test_a_ledger_that_a_failed_write_claimed_is_not_gone_on_with(world: Any) -> None:
    writer = world.writer(log="a")
    failed = world.task(writer, [1])
    writer.abort([failed])
    other = world.task(world.stream(log="a"), [2], query="q")
    world.stream(log="a").commit([other], 0)
    assert world.rows("a") == [2] and len(world.ledgers()) == 1


def test_the_abort_of_a_write_whose_commit_came_through_late(world: Any) -> None:
    """The compare-and-set arrives between the abort's first look and its condemning: the commit stands."""
    world.write([0], log="a")
    data_ledgers._kept.clear()
    writer = world.writer(log="a")
    message = world.task(writer, [1])
    world.store.before_write = lambda: writer.commit([message])
    writer.abort([message])
    assert world.rows("a") == [0, 1]
    gc_log(world.client, "a", min_age_s=0)
    assert world.rows("a") == [0, 1]


def test_a_late_commit_cannot_name_what_the_abort_deleted(world: Any) -> None:
    world.write([0], log="a")
    data_ledgers._kept.clear()
    writer = world.writer(log="a")
    message = world.task(writer, [1])
    writer.abort([message])
    with pytest.raises(LogError, match="janitor"):
        writer.commit([message])
    assert world.rows("a") == [0]


def test_a_task_that_fails_takes_its_ledger_away(world: Any) -> None:
    writer = world.writer("value string", log="a", entryFormat="raw")
    with pytest.raises(NullValueError):
        world.task(writer, {"value": ["x"]}, {"value": ["y", None]})
    assert world.ledgers() == set() and intents_of(world.client, "a") == {} and not data_ledgers._kept


def test_a_task_that_fails_takes_all_its_ledgers_away(world: Any) -> None:
    """Also those that it has rolled and closed already."""
    writer = world.writer("value string", log="a", entryFormat="raw", rollMaxEntries="1", maxInFlightBytes="1")
    with pytest.raises(NullValueError):
        world.task(writer, {"value": ["x", "y", "z"]}, {"value": ["y", None]})
    assert world.ledgers() == set() and intents_of(world.client, "a") == {} and not data_ledgers._kept


def test_entries_that_nobody_acknowledges(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_ledgers, "ACK_TIMEOUT_S", 0.0)
    monkeypatch.setattr(bk_core.client.ledger.write_handle.WriteHandle, "append_run_future", lambda *_, **__: Future())
    with pytest.raises(OperationTimeoutError, match="unacknowledged"):
        world.write([1], log="a")
    assert not data_ledgers._kept


def test_a_task_that_fails_keeps_the_ledger_that_others_wrote_to(world: Any) -> None:
    writer = world.writer("value string", log="a", entryFormat="raw")
    first = world.task(writer, {"value": ["x"]})
    with pytest.raises(NullValueError):
        world.task(writer, {"value": ["garbage"]}, {"value": [None]})
    last = world.task(writer, {"value": ["z"]}, partition=1)
    writer.commit([first, last])
    assert world.rows("a") == [b"x", b"z"] and len(world.ledgers()) == 1


def test_the_dropped_message_of_a_twin_stays_invisible(world: Any) -> None:
    """Speculation: two attempts of one partition write everything, one message arrives."""
    writer = world.writer(log="a")
    world.task(writer, [1, 2], attempt=0)
    writer.commit([world.task(writer, [1, 2], attempt=1)])
    assert world.rows("a") == [1, 2]


@pytest.mark.parametrize("custom", [None, {"log": b"b"}])
def test_the_first_commit_of_a_log_lists_no_ledger_of_others(world: Any, custom: dict[str, bytes] | None) -> None:
    """OWN-6: that a ledger of that id exists is not enough; the task may have written to another cluster."""
    writer = world.writer(log="a")
    message = world.task(writer, [1, 2])
    with world.client.create_ledger(custom=custom) as stranger:
        stranger.append(b"of a stranger")
        (part,) = message.parts
        ranges = tuple(replace(one, ledger_id=stranger.ledger_id) for one in part.ranges)
        with pytest.raises(ForeignLedgerError, match=f"ledger {stranger.ledger_id} is not of log 'a'"):
            writer.commit([replace(message, parts=(replace(part, ranges=ranges),))])
        assert list_logs(world.client) == []
    writer.commit([message])
    assert world.rows("a") == [1, 2]
