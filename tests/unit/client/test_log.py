"""Logs as objects: ``client.create_log``, ``client.log`` and what they do, against bookies on sockets in this process."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

import bk_core
from bk_core import aio
from bk_core.client.log import check, live_writers
from bk_core.client.log import log as log_module
from bk_core.client.log import reader as reader_module
from bk_core.client.log.history import read_log, update_ledger_list
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.log import Log
from bk_core.client.log.writer import LogWriter
from bk_core.errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    LogClockError,
    LogDataLossError,
    LogExistsError,
    LogFormatError,
    LogOfQueriesError,
    LogTakenOverError,
    LogWriterAliveError,
    NoSuchLogError,
    WrongPasswordError,
)
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties
from tests.integration.patience import until

KEPT = "must be at least a millisecond and at most 31 years, or None to keep everything"
BEYOND = "lies beyond the end of log 'events', which is segment 2, entry 0"
ROWS = [b"%d" % number for number in range(10)]


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri) as client:
        yield client


@pytest.fixture
def log(client: bk_core.BookKeeper) -> Log:
    """Ten entries in two segments."""
    log = client.create_log("events")
    for part in (ROWS[:6], ROWS[6:]):
        with log.writer() as writer:
            for payload in part:
                writer.append(payload)
    return log


def read(log: Log, **options: Any) -> list[bytes]:
    return [payload for run in log.reader(**options) for payload in run.payloads()]


def test_a_log_is_made_written_read_and_deleted(client: bk_core.BookKeeper) -> None:
    log = client.create_log("events", retention=timedelta(days=7), ensemble_size=2, write_quorum_size=2)
    assert (log.name, client.logs()) == ("events", ["events"])
    with log.writer() as writer:
        writer.append(b"x")
    assert read(client.log("events")) == [b"x"]
    assert log.info.properties.retention_ms == 7 * 86_400_000 and log.info.properties.ensemble_size == 2
    log.delete()
    assert client.logs() == []
    with pytest.raises(NoSuchLogError):
        _ = log.info


def test_a_log_that_is_there_is_taken_as_it_is(client: bk_core.BookKeeper, log: Log) -> None:
    with pytest.raises(LogExistsError):
        client.create_log("events")
    assert read(client.create_log("events", retention=60, exist_ok=True)) == ROWS
    assert log.info.properties.retention_ms is None


def test_info_counts_what_is_left(log: Log) -> None:
    info = log.info
    assert (info.segments, info.rows, info.bytes) == (2, 10, 10)
    assert (info.first, info.end, info.writer) == (Position(0), Position(2), None)
    assert info.committed_at is not None and abs(info.committed_at - datetime.now(UTC)) < timedelta(minutes=5)
    assert [segment.entries for segment in log.segments()] == [6, 4]
    assert [segment.seq for segment in log.segments(1)] == [1]
    assert len(log.trim(before=Position(1))) == 1
    assert (log.info.segments, log.info.rows, log.info.first) == (1, 4, Position(1))


def test_every_copy_of_a_log_is_verified(client: bk_core.BookKeeper, log: Log) -> None:
    found = log.verify(bytes_per_second=1 << 20)
    assert isinstance(found, bk_core.LogVerification) and found.is_good and (found.ledgers, found.copies) == (2, 30)

    async def awaited() -> bk_core.LogVerification:
        async with bk_core.aio.connect(client.config.uri) as other:
            return await (await other.log("events")).verify()

    assert asyncio.run(awaited()) == found
    log.delete()
    with pytest.raises(NoSuchLogError):
        log.verify()


def test_an_empty_log_has_info_too(client: bk_core.BookKeeper) -> None:
    info = client.create_log("empty").info
    assert (info.segments, info.rows, info.first, info.end, info.committed_at) == (0, 0, Position(0), Position(0), None)


def test_reading_begins_where_it_is_asked_to(log: Log) -> None:
    assert read(log, start=Position(0, 4)) == ROWS[4:]
    assert read(log, start="latest") == []
    second = next(segment for segment in log.segments(1))
    assert read(log, start=datetime.fromtimestamp(second.committed_at_ms / 1000, UTC) + timedelta(seconds=1)) == []
    assert read(log, start=datetime(2020, 1, 1, tzinfo=UTC)) == ROWS
    assert read(log, start=datetime(1960, 1, 1, tzinfo=UTC)) == ROWS
    reader = log.reader()
    first = next(iter(reader))
    assert repr(first) == "<LogEntries 0:0..5, 6 entries, 6 bytes>" and len(first) == 6
    assert read(log, start=first.end_position) == ROWS[first.count :]
    assert reader.position == first.end_position


def test_latest_is_behind_what_a_living_writer_has_acknowledged(log: Log) -> None:
    with log.writer() as writer:
        for payload in (b"a", b"b"):
            writer.append(payload)
        found = log.reader(start="latest")
        assert found.position in (Position(2, 1), Position(2, 2))  # the LAC may be an entry behind (LC-1)
        assert log.info.writer is not None
        writer.append(b"c")
    assert b"c" in [payload for run in found for payload in run.payloads()]


def test_a_name_that_there_is_not_is_told_with_the_one_that_is_meant(client: bk_core.BookKeeper, log: Log) -> None:
    """As ``connect`` and ``create_log`` do. It is a TypeError, as Python's own is."""
    before = list(client.list_ledgers())
    aside = partial(aio.BookKeeper.create_ledger, None)  # type: ignore[arg-type]
    wrong: list[tuple[Callable[..., object], dict[str, Any], str]] = [
        (bk_core.Limits, {"read_ahead_byte": 1}, "Limits has no field 'read_ahead_byte'; did you mean 'read_ahead_bytes'"),
        (bk_core.ClientConfig, {"timeout": 1}, "ClientConfig has no field 'timeout'; there are .*operation_timeout_s"),
        (partial(replace, bk_core.LogProperties()), {"ensemble": 1}, "LogProperties has no field 'ensemble'; did you mean 'ensemble_size'"),
        (client.create_ledger, {"ensemble": 3}, r"create_ledger\(\) takes no argument 'ensemble'; did you mean 'ensemble_size'"),
        (log.writer, {"takeover": True}, r"writer\(\) takes no argument 'takeover'; did you mean 'take_over'"),
        (aside, {"pass": b"hush"}, r"create_ledger\(\) takes no argument 'pass'"),
    ]
    for call, named, told in wrong:
        with pytest.raises(ArgumentTypeError, match=told) as caught:
            call(**named)
        assert "hush" not in str(caught.value)
    assert isinstance(caught.value, TypeError) and list(client.list_ledgers()) == before
    given = replace(bk_core.Limits(), read_ahead_bytes=7)
    assert given.read_ahead_bytes == 7 and pickle.loads(pickle.dumps(given)) == given


def test_a_writer_of_this_program_that_is_gone_is_taken_over(client: bk_core.BookKeeper, log: Log) -> None:
    """It was dropped after an error, abandoned, or left open behind its client: this process lives, and nobody writes."""
    writer = log.writer()
    writer.append(b"dropped")
    with pytest.warns(ResourceWarning, match="unclosed <LogWriter"):
        del writer
        gc.collect()
    with pytest.raises(ZeroDivisionError), log.writer() as writer:
        writer.append(b"abandoned")
        writer.abandon()
        raise ZeroDivisionError
    with bk_core.connect(client.config.uri) as other:
        left = other.log("events").writer()
        left.append(b"left")
    until(
        lambda: (found := log.info.writer) is not None and (found.state, found.is_own) == ("gone", True), "a thread notes that it was left"
    )
    with log.writer() as last:
        last.append(b"last")
    assert read(log)[len(ROWS) :] == [b"dropped", b"abandoned", b"left", b"last"]


OWN = (
    r"is being written \(this program, process .* on host .*\); close that writer of this program, or end its writing: "
    r"take_over=True \(--take-over\)$"
)


def test_a_living_writer_is_ended_only_by_the_word(client: bk_core.BookKeeper, log: Log) -> None:
    with bk_core.connect(client.config.uri) as other:
        first = other.log("events").writer()
        first.append(b"first")
        with pytest.raises(
            LogWriterAliveError, match=r"log 'events' is being written \(this program, process .* on host .*\); .* take_over=True"
        ):
            log.writer()
        with pytest.raises(
            LogWriterAliveError, match=r"\(this program, process .*\); close that writer of this program, or end its"
        ) as told:
            log.writer()
        assert "stop that process" not in str(told.value)
        first.append(b"still")
        with log.writer(take_over=True) as writer:
            writer.append(b"second")
        with pytest.raises(LogTakenOverError):
            first.append(b"late")
        first.abandon()
    assert read(log)[len(ROWS) :] == [b"first", b"still", b"second"]


def test_a_writer_that_cannot_be_seen_may_live(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = log.writer()
    monkeypatch.setattr(live_writers, "lives_here", lambda _: False)
    with pytest.raises(LogWriterAliveError, match="may be being written"):
        log.writer()
    writer.abandon()
    monkeypatch.setattr(live_writers, "abandoned", lambda _: True)
    with log.writer() as after:  # one that is certainly gone needs no word
        after.append(b"after")
    assert read(log) == [*ROWS, b"after"]


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every writer that did not close its log is one that died."""
    monkeypatch.setattr(live_writers, "lives_here", lambda _: False)
    monkeypatch.setattr(live_writers, "abandoned", lambda _: True)


@pytest.mark.parametrize(
    ("name", "settings", "mark", "options", "refused"),
    [
        ("arrow", {"entry_format": "arrow"}, None, {}, LogFormatError),
        ("queries", {}, "query", {}, LogOfQueriesError),
        ("files.s", {}, None, {}, InvalidArgumentError),
        ("password", {}, None, {"password": b"wrong"}, WrongPasswordError),
        ("limits", {}, None, {"roll_max_bytes": 1, "roll_max_time": 0}, InvalidArgumentError),
    ],
)
def test_guards_are_judged_before_what_a_dead_writer_left_is_closed(
    client: bk_core.BookKeeper, gone: None, name: str, settings: dict[str, Any], mark: str | None, options: dict[str, Any], refused: type
) -> None:
    """GRD-1, GRD-6, GRD-7: nothing is fenced before."""
    create_log(client, name, LogProperties(**settings), file_entries=name.startswith("files."))
    with LogWriter.open(client, name, password=b"right", arrow_entries=True, file_entries=True) as dead:
        ledger_id = dead.ledger_id
        dead.abandon()
    if mark is not None:
        update_ledger_list(client, name, lambda listed: listed.mark_committed(mark, 7, 1))
    before = read_ledger_list(client, name)
    with pytest.raises(refused):
        client.log(name, password=options.pop("password", b"right")).writer(**options)
    assert read_ledger_list(client, name) == before
    assert client.ledger_metadata(ledger_id).state is LedgerState.OPEN


def test_a_writer_that_comes_in_between_is_not_fenced(
    client: bk_core.BookKeeper, log: Log, gone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the verdict that the last writer is gone, and the take-over."""
    log.writer().abandon()
    judge = log_module.live_writers
    others: list[LogWriter] = []
    with bk_core.connect(client.config.uri) as elsewhere:

        def later(*asked: Any) -> Any:
            verdicts = judge(*asked)
            others.append(LogWriter.open(elsewhere, "events"))
            return verdicts

        monkeypatch.setattr(log_module, "live_writers", later)
        with pytest.raises(LogWriterAliveError, match="take_over=True"):
            log.writer()
        (other,) = others
        other.append(b"still")
        other.close()
    assert read(log) == [*ROWS, b"still"]


def test_info_tells_the_writer_and_if_it_lives(log: Log, gone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    writing = log.writer()
    for lives, abandoned, state in ((True, False, "alive"), (False, True, "gone"), (False, False, "unknown")):
        monkeypatch.setattr(live_writers, "lives_here", lambda _, lives=lives: lives)
        monkeypatch.setattr(live_writers, "abandoned", lambda _, abandoned=abandoned: abandoned)
        writer = log.info.writer
        assert writer is not None and (writer.host, writer.pid, writer.state) == (socket.gethostname(), os.getpid(), state)
        assert writer.since is not None and abs(writer.since - datetime.now(UTC)) < timedelta(minutes=5)
        assert f"process {os.getpid()} on host {socket.gethostname()}, since 20" in writer.told
    writing.abandon()


def test_properties_take_times_as_people_have_them(log: Log) -> None:
    assert log.set(retention=timedelta(hours=1)).retention_ms == 3_600_000
    assert log.set(retention=1.5).retention_ms == 1500
    assert log.set(retention=None).retention_ms is None
    assert log.set(committed_retention=60).committed_retention_ms == 60_000


def test_what_is_old_is_trimmed_and_what_is_left_over_is_collected(log: Log) -> None:
    assert log.trim(older_than=timedelta(hours=1)) == ()
    assert log.trim(before=datetime(2020, 1, 1, tzinfo=UTC)) == ()
    assert len(log.trim(max_bytes=4)) == 1
    assert log.apply_retention() == () and log.gc(min_age=timedelta(hours=1)).deleted == ()
    assert not log.check().problems
    assert read(log) == ROWS[6:]
    with pytest.raises(LogDataLossError):
        read(log, start=Position(0))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda log: log.reader(start="newest"), 'start must be "earliest", "latest", a Position or a datetime, not \'newest\''),
        (lambda log: log.reader(start=datetime(2026, 1, 1)), "start=2026-01-01T00:00:00 names no time zone"),  # noqa: DTZ001
        (lambda log: log.trim(before=datetime(2026, 1, 1)), "before=2026-01-01T00:00:00 names no time zone"),  # noqa: DTZ001
        (lambda log: log.trim(before=datetime(2026, 1, 1, tzinfo=UTC), older_than=3), "give one of them"),
        (lambda log: log._client.create_log("new", schema=""), "schema is empty: name the columns, or leave it out"),
        (lambda log: log.trim(), "say where to trim: before, older_than or max_bytes"),
        (lambda log: log.trim(older_than=-5), "older_than must be a finite number of seconds within 0..1000000000, not -5"),
        (lambda log: log.set(retention=-1), f"retention {KEPT}, not -1"),
        (lambda log: log.set(retention=0), f"retention {KEPT}, not 0"),
        (lambda log: log.set(retention=float("nan")), f"retention {KEPT}, not nan"),
        (lambda log: log.set(committed_retention=timedelta(0)), f"committed_retention {KEPT}, not 0:00:00"),
        (lambda log: log.set(retention_ms=0), "retention_ms must be positive"),
        (lambda log: log.set(retentoin=60), "a log has no property 'retentoin'; did you mean 'retention'?"),
        (lambda log: log.set(name="x"), "a log has no property 'name'; there are ensemble_size, write_quorum_size"),
        (lambda log: log.set(client="x"), "a log has no property 'client'; there are"),
        (lambda log: log.set(digest_type="md5"), "digest_type must be one of CRC32, MAC, CRC32C, DUMMY, not 'md5'"),
        (lambda log: log.reader(start=Position(99)), f"segment 99, entry 0 {BEYOND}"),
        (lambda log: log.reader(start=Position(2, 1)), f"segment 2, entry 1 {BEYOND}"),
        (lambda log: log.reader(start=Position(0, 7)), "lies beyond the end of segment 0 of log 'events', whose last entry is 5"),
        (lambda log: log.set(retention=1, retention_ms=5), "retention_ms is given twice, as retention and as retention_ms"),
        (lambda log: log.set(retention_ms=5, retention=1), "retention_ms is given twice, as retention_ms and as retention"),
        (lambda log: log.set(retension=1), "a log has no property 'retension'"),
        (lambda log: log.writer(roll_max_time=0), "roll_max_time must be a finite number of seconds above 0"),
    ],
)
def test_bad_input_is_refused_before_anything_is_done(log: Log, call: Callable[[Log], Any], told: str) -> None:
    before = log.info
    with pytest.raises(InvalidArgumentError) as raised:
        call(log)
    assert told in str(raised.value)
    assert log.info == before


@pytest.mark.parametrize(
    "call",
    [
        lambda log: log.reader(start=5),
        lambda log: log.set(retention="7d"),
        lambda log: log.set(ensemble_size="3"),
        lambda log: log.set(guaranteed_write_quorum="yes"),
        lambda log: log.set(digest_type=5),
        lambda log: log.trim(older_than="7d"),
        lambda log: log.trim(before=3),
        lambda log: log.gc(min_age="now"),
        lambda log: log.writer(roll_max_time="1h"),
    ],
)
def test_the_wrong_kind_is_a_type_error(log: Log, call: Callable[[Log], Any]) -> None:
    before = log.info
    with pytest.raises(ArgumentTypeError):
        call(log)
    assert log.info == before


def test_a_time_that_has_not_come_is_named_as_it_was_given(log: Log) -> None:
    with pytest.raises(LogClockError, match=r"before=20\S+ \S+ is 1,4\d\d minutes ahead of the metadata store's clock"):
        log.trim(before=datetime.now(UTC) + timedelta(days=1))
    log.delete()
    with pytest.raises(NoSuchLogError):
        log.trim(before=datetime.now(UTC) + timedelta(days=1))


def test_a_length_of_time_of_the_wrong_kind_is_told_plainly(log: Log) -> None:
    with pytest.raises(ArgumentTypeError, match=r"older_than must be a timedelta or a number of seconds, or None, not '7d'$"):
        log.trim(older_than="7d")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [10**400, 10**5000, -(10**400)], ids=["long", "longer", "below"])
def test_a_length_of_time_that_no_float_holds_is_refused_as_others_are(log: Log, value: int) -> None:
    for call in (
        lambda: log.trim(older_than=value),
        lambda: log.gc(min_age=value),
        lambda: log.set(retention=value),
        lambda: log.writer(roll_max_time=value),
    ):
        with pytest.raises(InvalidArgumentError, match=r"(older_than|min_age|retention|roll_max_time) must be") as caught:
            call()
        assert len(str(caught.value)) < 300


def test_a_reader_begins_where_entries_may_still_come(log: Log) -> None:
    assert read(log, start=Position(2)) == [] and read(log, start=Position(0, 6)) == ROWS[6:]
    with log.writer() as writer:
        writer.append(b"a")
        assert read(log, start=Position(2, 50)) == []  # the segment is live and may grow so far
        reader = log.reader(start=Position(1, 2))
        assert repr(reader) == "<LogReader 'events' at segment 1, entry 2>"


def test_a_server_of_the_store_that_is_behind_refuses_no_position(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    old, real = read_log(log._client, "events"), reader_module.read_log
    with log.writer() as writer:
        writer.append(b"a")
    views = [old]
    monkeypatch.setattr(reader_module, "read_log", lambda client, name: views.pop() if views else real(client, name))
    assert log.reader(start=Position(2, 1)).position == Position(3)


def test_a_segment_that_lost_its_entries_takes_any_position(log: Log) -> None:
    first = next(log.segments())
    log._client.delete_ledger(first.ledger_id, even_if_listed=True)
    check.repair_log(log._client, "events")
    assert read(log, start=Position(first.seq, 3)) == ROWS[6:]


def test_names_of_properties_are_checked_when_a_log_is_made(client: bk_core.BookKeeper) -> None:
    with pytest.raises(InvalidArgumentError, match=r"a log has no property 'entry_fromat'; did you mean 'entry_format'\?$"):
        client.create_log("events", entry_fromat="raw")
    with pytest.raises(InvalidArgumentError, match=r"a log has no property 'retentoin'; did you mean 'retention'\?$"):
        client.create_log("events", retentoin=60)  # type: ignore[call-arg]
    with pytest.raises(ArgumentTypeError, match="ensemble_size must be a whole number, not '3'"):
        client.create_log("events", ensemble_size="3")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="entry_format must be one of arrow, raw, not 'RWA'"):
        client.create_log("events", entry_format="RWA")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="entry_format must be one of arrow, raw, not 'rwa'"):
        client.create_log("events", entry_format="rwa")
    with pytest.raises(NoSuchLogError):
        client.log("events")
    assert client.logs() == []


def test_the_name_of_a_file_stores_log_is_refused(client: bk_core.BookKeeper) -> None:
    """GRD-7: an empty log of that name would be taken for a store."""
    with pytest.raises(InvalidArgumentError, match="file store 'x'"):
        client.create_log("files.x")
    assert client.logs() == []


def test_a_digest_type_is_given_as_a_ledgers_is(client: bk_core.BookKeeper) -> None:
    assert client.create_log("mac", digest_type=bk_core.DigestType.MAC).info.properties.digest_type == "MAC"
