"""The sink: data ledgers, their intents, rolls and bounds; options of ledgers and logs; records."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core.client.log.intents import intents_of
from bk_core.client.log.janitor import gc_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log, list_logs
from bk_core.errors import (
    InvalidArgumentError,
    LogError,
    NotEnoughBookiesError,
    SecretUnavailableError,
    WrongPasswordError,
)
from bk_core.metadata.store import BookieView
from bk_core.protocol.ledger.metadata import GWQ_MARK, LedgerState
from bk_core.protocol.log.segments import LogProperties
from bk_spark.options.table import parse_options
from bk_spark.sink import commit as commits
from bk_spark.sink import data_ledgers, sweep
from bk_spark.sink import task as sink
from bk_spark.sink.writer import BookKeeperWriter

# --- data ledgers -------------------------------------------------------------------------------------------------------


def test_a_worker_keeps_its_ledger_across_tasks_writes_and_queries(world: Any) -> None:
    world.create("a")
    world.write([1], log="a")
    world.write([2], log="a")
    world.stream(log="a").commit([world.task(world.stream(log="a"), [3], query="q")], 0)
    (ledger,) = world.ledgers()
    assert world.rows("a") == [1, 2, 3]
    assert world.client.ledger_metadata(ledger).state is LedgerState.OPEN
    assert intents_of(world.client, "a")[ledger].query_id == "*"


def test_a_worker_without_reuse_closes_its_ledger(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink, "worker_is_reused", lambda: False)
    world.write([1], log="a")
    assert world.rows("a") == [1] and intents_of(world.client, "a") == {} and not data_ledgers._kept
    assert world.client.ledger_metadata(*world.ledgers()).state is LedgerState.CLOSED


def test_a_task_without_rows_connects_to_nobody(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = world.writer(log="a")
    monkeypatch.setattr(data_ledgers, "client_for", lambda *_: pytest.fail("a client"))
    assert world.task(writer).rows == 0


def test_the_intent_comes_before_the_ledger(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker killed in between leaves an intent without a ledger, which a janitor forgets; never a ledger without an intent."""

    def dies(*_: Any, **__: Any) -> Any:
        assert len(intents_of(world.client, "a")) == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(world.client, "create_ledger", dies)
    with pytest.raises(KeyboardInterrupt):
        world.task(world.writer(log="a"), [1])
    (intent,) = intents_of(world.client, "a").values()
    assert (intent.pid, intent.ledger_id) == (os.getpid(), intent.ledger_id)
    gc_log(world.client, "a", min_age_s=0)
    assert intents_of(world.client, "a") == {}


def test_a_janitor_that_is_faster_than_the_first_entry(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create("a")
    create = world.client.create_ledger

    def swept(**given: Any) -> Any:
        monkeypatch.setattr(world.client, "create_ledger", create)
        gc_log(world.client, "a", min_age_s=0)
        return create(**given)

    monkeypatch.setattr(world.client, "create_ledger", swept)
    world.write([1], log="a")
    assert world.rows("a") == [1] and len(world.ledgers()) == 1 == len(intents_of(world.client, "a"))


def test_a_ledger_that_a_janitor_took_is_not_gone_on_with(world: Any) -> None:
    world.write([1], log="a")
    gc_log(world.client, "a", min_age_s=0)
    world.write([2], log="a")
    assert world.rows("a") == [1, 2] and len(world.ledgers()) == 2


@pytest.mark.parametrize(("option", "value"), [("rollMaxBytes", "1"), ("rollMaxEntries", "2"), ("rollMaxTime", "1ms")])
def test_rolls(world: Any, monkeypatch: pytest.MonkeyPatch, option: str, value: str) -> None:
    world.create("a")
    clock = iter(range(1_000_000))
    monkeypatch.setattr(data_ledgers.time, "monotonic", lambda: next(clock) / 10)
    for i in range(3):
        world.write([2 * i, 2 * i + 1], log="a", entrySize="1", **{option: value})
    assert world.rows("a") == [0, 1, 2, 3, 4, 5]
    states = [world.client.ledger_metadata(i).state for i in sorted(world.ledgers())]
    assert states == [LedgerState.CLOSED, LedgerState.CLOSED, LedgerState.OPEN]
    assert len(intents_of(world.client, "a")) == 1  # what is closed and listed needs nobody to look after it


def test_roll_by_entries_is_exact_inside_a_run(world: Any) -> None:
    world.write(list(range(7)), log="a", entrySize="1", rollMaxEntries="3")
    assert world.rows("a") == list(range(7))
    segments = read_ledger_list(world.client, "a").segments
    assert [(s.first_entry_id, s.last_entry_id, s.rows) for s in segments] == [(0, 2, 3), (0, 2, 3), (0, 0, 1)]


def test_bad_roll_times() -> None:
    for text in ("0", "4h", "soon"):
        with pytest.raises(InvalidArgumentError, match="rollMaxTime"):
            parse_options({"metadataServiceUri": "memory://x", "log": "a", "rollMaxTime": text})
    assert parse_options({"metadataServiceUri": "memory://x", "log": "a", "rollMaxTime": "10m"}).roll_max_time_ms == 600_000


def test_memory_of_a_task_is_bounded_by_what_is_unacknowledged(world: Any) -> None:
    """``append`` returns with at most ``maxInFlightBytes`` unacknowledged: with one byte, with nothing."""
    for limit, most in (("1", 0), ("1g", None)):
        writer = world.writer(log="a", maxInFlightBytes=limit)
        ledgers = data_ledgers.TaskLedgers(writer._sink.options, "q")
        for _, run in writer._sink._single(iter([world.ids([1, 2, 3])]), {}, writer._sink.plan):
            ledgers.append("a", "", writer._sink.plan.properties, run)
            assert ledgers._in_flight_bytes == (run.bytes if most is None else most)
        ledgers.finish()


def test_guaranteed_ledgers_and_other_properties(world: Any) -> None:
    given = {"guaranteedWriteQuorum": "true", "digestType": "CRC32", "ensembleSize": "3", "writeQuorumSize": "2", "ackQuorumSize": "1"}
    world.write([1], log="a", **given)
    metadata = world.client.ledger_metadata(*world.ledgers())
    assert GWQ_MARK in metadata.custom and metadata.digest_type.name == "CRC32" and metadata.custom["log"] == b"a"
    assert (metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size) == (3, 2, 1)
    assert read_ledger_list(world.client, "a").properties.guaranteed_write_quorum
    other = {"guaranteedWriteQuorum": "false", "digestType": "MAC", "ensembleSize": "2", "writeQuorumSize": "3", "ackQuorumSize": "2"}
    for name, value in {**other, "entryFormat": "raw"}.items():
        with pytest.raises(InvalidArgumentError, match=name):
            world.writer(log="a", **{**given, "writeQuorumSize": "2", name: value} if name != "writeQuorumSize" else {**given, name: value})
    world.write([2], log="a", **given)
    assert world.rows("a") == [1, 2]


def test_the_password_is_the_ledgers(world: Any) -> None:
    world.write([1], log="a", password="secret")
    (ledger,) = world.ledgers()
    with pytest.raises(WrongPasswordError):
        world.client.open_ledger(ledger)
    world.client.open_ledger(ledger, password=b"secret").close()


def test_an_open_ledger_does_not_show_its_password(world: Any) -> None:
    stream = world.stream(log="a", password="hush")
    world.task(stream, [1], query="q")
    (kept,) = data_ledgers._kept.values()
    assert "hush" in repr(kept.key) and "hush" not in repr(kept) and "log='a'" in repr(kept)


def test_a_password_in_a_file_is_the_ledgers_and_in_no_pickle(world: Any, tmp_path: Path) -> None:
    """The file is read in each process and again at each use."""
    file = tmp_path / "password"
    file.write_text("reed-6021\n")
    writer = world.writer(log="a", passwordFile=str(file))
    assert b"reed-6021" not in pickle.dumps(writer)
    world.write([1], log="a", passwordFile=str(file))
    world.write([2], log="a", password="reed-6021")
    assert world.rows_of("a", b"reed-6021") == [1, 2]
    file.write_text("other-6021")
    with pytest.raises(WrongPasswordError, match="option password does not fit"):
        world.writer(log="a", passwordFile=str(file))
    file.unlink()
    with pytest.raises(SecretUnavailableError, match="cannot be read: No such file"):
        world.writer(log="a", passwordFile=str(file))


def test_another_password_is_refused_before_a_row_is_written(world: Any) -> None:
    """GRD-6: as another digest is, for batches and streams, with takeOver, and for rows that go to several logs."""
    world.write([1], log="a", password="secret")
    ledgers = world.ledgers()
    for given in ({}, {"password": "other"}, {"password": "other", "takeOver": "true"}):
        for made in (world.writer, world.stream):
            with pytest.raises(WrongPasswordError, match="option password does not fit: log 'a'") as refused:
                made(log="a", **given)
            assert "secret" not in str(refused.value) and "other" not in str(refused.value).replace("another", "")
    with pytest.raises(WrongPasswordError, match="option password"):
        world.task(world.writer("log string, id long", password="other"), {"log": ["a"], "id": [2]})
    assert world.ledgers() == ledgers
    world.write([2], log="a", password="secret")
    assert world.rows_of("a", b"secret") == [1, 2]


def test_of_two_first_writes_with_two_passwords_one_is_told(world: Any) -> None:
    """GRD-6: both are planned before there is a ledger; the second commit publishes nothing."""
    first, second = (world.writer(log="a", password=word) for word in ("one", "two"))
    messages = [world.task(writer, [i]) for i, writer in enumerate((first, second))]
    first.commit([messages[0]])
    with pytest.raises(WrongPasswordError, match="option password does not fit"):
        second.commit([messages[1]])
    assert world.rows_of("a", b"one") == [0]


def test_quorums_are_judged_before_any_side_effect(world: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="writeQuorumSize 3 is above ensembleSize 2"):
        world.writer(log="a", ensembleSize="2")
    assert list_logs(world.client) == [] and world.ledgers() == set()


def test_a_log_that_needs_more_bookies_than_there_are_is_told_at_planning(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for plan in (world.writer, world.stream):
        with pytest.raises(
            NotEnoughBookiesError, match=r"log 'a': .* needs 9 writable bookies, .* has 3 bookies, .* changed by option ensembleSize$"
        ):
            plan(log="a", ensembleSize="9")
    create_log(world.client, "wide", LogProperties(entry_format="arrow", ensemble_size=9))
    with pytest.raises(NotEnoughBookiesError, match=r"needs 9 .* `bk log set wide --ensemble-size N`$"):
        BookKeeperWriter(parse_options({"metadataServiceUri": "memory://x", "log": "wide"}), world.struct("id long"), False)
    assert list_logs(world.client) == ["wide"] and world.ledgers() == set()
    monkeypatch.setattr(world.client._session, "bookies", lambda: BookieView((), ()))  # all are away, but they may come back
    world.writer(log="a")


def test_compression_and_entry_size(world: Any) -> None:
    text = {"text": ["bookkeeper " * 50] * 100}
    world.write(text, schema="text string", log="plain")
    world.write(text, schema="text string", log="small", compression="zstd")
    world.write(text, schema="text string", log="many", entrySize="1k")
    plain, small, many = (read_ledger_list(world.client, log).segments[0] for log in ("plain", "small", "many"))
    assert small.bytes * 5 < plain.bytes and plain.entries == 1 and many.entries > 40
    assert world.rows("plain") == world.rows("small") == world.rows("many")
    world.write({"value": ["x"]}, schema="value string", log="raw", entryFormat="raw")
    for name, value in {"compression": "zstd", "entrySize": "1k", "mergeSchema": "true"}.items():
        with pytest.raises(InvalidArgumentError, match=name):
            world.writer("value string", log="raw", **{name: value})


# --- around --------------------------------------------------------------------------------------------------------------------------


def test_a_commit_runs_the_janitor_at_most_once_a_minute(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: list[str] = []
    monkeypatch.setattr(sweep, "gc_quietly", lambda _, log, **__: rounds.append(log))
    for i in range(3):
        world.write([i], log="a")
    world.write([1], log="b")
    assert rounds == ["a", "b"]


def test_tidying_up_never_fails_a_commit(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise LogError("the janitor tripped")

    monkeypatch.setattr(commits, "sweep", fails)
    world.write([1], log="a")
    assert world.rows("a") == [1]


def test_records_for_the_worker_log(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    """spark-connectors.md 5.13: one structured record per task, per commit and per abort; the first word is a stable code."""
    with caplog.at_level("INFO"):
        stream = world.stream(log="a", password="secret")
        message = world.task(stream, [1, 2], query="q", partition=3)
        stream.commit([message], 0)
        stream.commit([message], 0)
        stream.abort([message], 0)
    contexts = {r.getMessage().split()[0]: r.__dict__["context"] for r in caplog.records if r.name.startswith("bk_spark")}
    assert set(contexts) == {"BK-SINK-TASK", "BK-SINK-COMMIT", "BK-SINK-REPLAY", "BK-SINK-ABORT"}
    assert contexts["BK-SINK-TASK"]["partition"] == 3 and contexts["BK-SINK-TASK"]["rows"] == 2
    facts = contexts["BK-SINK-COMMIT"]
    assert (facts["log"], facts["query"], facts["batch"], facts["rows"], facts["ledgers"]) == ("a", "q", 0, 2, 1)
    assert facts["bytes"] == message.bytes > 0 and facts["ms"] >= 0
    assert "secret" not in caplog.text and "secret" not in repr(stream.__dict__) and "secret" not in repr(message)


def test_options_for_reading_are_refused(world: Any) -> None:
    idle = {"startingOffsets": "latest", "maxRowsPerTrigger": "5", "failOnDataLoss": "false", "minPartitions": "4"}
    for name, value in {"logs": "a,b", "ledgers": "7", "logPattern": "a.*", **idle}.items():
        with pytest.raises(InvalidArgumentError, match=name):
            world.writer("id long, log string", **{name: value})


def test_a_ledger_that_was_fenced_fails_one_task_and_is_dropped(world: Any) -> None:
    """Whatever befell the ledger, the next attempt begins another one."""
    world.create("a")
    world.write([1], log="a")
    (ledger,) = world.ledgers()
    world.client.recover_ledger(ledger).close()
    with pytest.raises(bk_core.BkError, match=f"log 'a': .*ledger {ledger}") as failed:
        world.write([2], log="a")
    assert failed.value.context["log"] == "a"
    world.write([2], log="a")
    assert world.rows("a") == [1, 2] and len(data_ledgers._kept) == 1
