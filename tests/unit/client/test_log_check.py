"""Logs whose ledgers are gone, cut off, of others; writing off, releasing, marks: against bookies on sockets in this process."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import bk_core
from bk_core import cli
from bk_core.cli import output
from bk_core.client.log import check, list_store
from bk_core.client.log.check import check_log, forget_marks, release_log, repair_log
from bk_core.client.log.history import read_log, seal_log, update_ledger_list
from bk_core.client.log.intents import intents_of
from bk_core.client.log.janitor import gc_log, trim_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log, set_properties
from bk_core.client.log.live_writers import WRITER
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.errors import (
    ForeignLedgerError,
    LogDataLossError,
    LogError,
    LogListFullError,
    LogWriterAliveError,
    MetadataOutcomeUnknownError,
    WrongPasswordError,
)
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.list_size import check_size, is_large
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.sealing import SealLimits
from bk_core.protocol.log.segments import LogProperties, Mark, SegmentRange
from bk_core.ui.pages.logs import _segment_rows

RAW = LogProperties(entry_format="raw")
SMALL = SealLimits(tail_max=4, chunk=2, fan_out=2)


@pytest.fixture
def client(uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[bk_core.BookKeeper]:
    monkeypatch.setenv(output.URI_VARIABLE, uri)
    with bk_core.connect(uri) as bk:
        yield bk


def grow(client: bk_core.BookKeeper, count: int, name: str = "a") -> list[int]:
    """A log of that many segments of two entries; its data ledgers."""
    create_log(client, name, RAW)
    with LogWriter.open(client, name) as writer:
        for seq in range(count):
            writer.append(b"%d.0" % seq)
            writer.append(b"%d.1" % seq)
            if seq < count - 1:
                writer.roll()
    return [segment.ledger_id for segment in read_log(client, name).segments()]


def contents(client: bk_core.BookKeeper, name: str = "a") -> list[bytes]:
    with LogReader(client, name) as reader:
        return [payload for run in reader.read() for payload in run.payloads()]


def bk(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str, status: int = 0) -> str:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=None))
    found = cli.run(list(arguments))
    said = capsys.readouterr()
    assert found == status and "Traceback" not in said.err, (found, said)
    return said.out + said.err


# --- check and repair ------------------------------------------------------------------------------------------------------------


def test_a_sound_log_is_good(client: bk_core.BookKeeper) -> None:
    grow(client, 9)
    for _ in range(3):
        seal_log(client, "a", limits=SMALL)
    with LogWriter.open(client, "a") as writer:
        writer.append(b"live")
        found = check_log(client, "a")
    assert found.is_good and found.segments == 10 and found.ledgers > 10


def test_a_repair_of_what_was_trimmed_meanwhile_leaves_nothing(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger that was to stand in for the lost one is listed nowhere, so it goes."""
    data = grow(client, 2)
    client.delete_ledger(data[0], even_if_listed=True)

    def late(*arguments: Any, **options: Any) -> Any:
        found = check_log(*arguments, **options)
        trim_log(client, "a", before=Position(1))
        return found

    monkeypatch.setattr(check, "check_log", late)
    assert repair_log(client, "a") == ()
    assert list(client.list_ledgers()) == [data[1]] and intents_of(client, "a") == {}


@pytest.mark.parametrize("sealed", [False, True])
def test_lost_ledgers_are_found_and_written_off(client: bk_core.BookKeeper, sealed: bool) -> None:
    """GRD-5: in the tail and in the history; everything else is there as before, with its numbers."""
    data = grow(client, 9)
    while sealed and seal_log(client, "a", limits=SMALL):
        pass
    lost = [data[1], data[4], data[8]]  # the last one: no writer opens the log any more
    for ledger_id in lost:
        client.delete_ledger(ledger_id, even_if_listed=True)
    found = check_log(client, "a")
    assert [(p.kind, p.ledger_id, p.first_seq, p.rows) for p in found.problems] == [("missing", data[n], n, 2) for n in (1, 4, 8)]
    with pytest.raises(LogDataLossError):
        LogWriter.open(client, "a")
    assert repair_log(client, "a") == found.problems
    assert check_log(client, "a").is_good and repair_log(client, "a") == ()
    segments = list(client.log("a").segments())
    assert [one.seq for one in segments if one.written_off] == [1, 4, 8]
    assert all(one.written_off == (not one.entries) for one in segments)
    left = [b"%d.%d" % (seq, entry) for seq in range(9) if seq not in (1, 4, 8) for entry in (0, 1)]
    assert contents(client) == left
    with LogWriter.open(client, "a") as writer:
        assert writer.append(b"more") == Position(9, 0)
    assert contents(client) == [*left, b"more"] and intents_of(client, "a") == {}
    gc_log(client, "a", min_age_s=0)
    trim_log(client, "a", before=Position(9))
    gc_log(client, "a", min_age_s=0)
    assert len(list(client.list_ledgers())) == 1, "nothing of the repair is left behind"


@pytest.mark.parametrize("applied", [True, False])
def test_marks_that_went_with_a_lost_answer_are_told(client: bk_core.BookKeeper, applied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """META-12: the list shows that they are gone, and not who dropped them."""
    create_log(client, "a", RAW)
    for query in ("q", "other"):
        update_ledger_list(client, "a", lambda listed: listed.mark_committed(query, 7, 1))  # noqa: B023
    store = type(client.store)
    write = store.write

    def lost(self: Any, path: str, data: bytes, version: int) -> int:
        monkeypatch.setattr(store, "write", write)
        if applied:
            write(self, path, data, version)
        raise MetadataOutcomeUnknownError("the answer was lost")

    monkeypatch.setattr(store, "write", lost)
    assert forget_marks(client, "a", ["q", "none"]) == ("q",)
    assert set(read_ledger_list(client, "a").committed) == {"other"} and forget_marks(client, "a", ["q"]) == ()


def test_what_a_janitor_took_away_during_a_repair_is_not_listed(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG-18: condemned, deleted and absolved again before it is listed, so that the list is equal to what it was."""
    data = grow(client, 9)
    while seal_log(client, "a", limits=SMALL):
        pass
    client.delete_ledger(data[1], even_if_listed=True)
    before, change = read_ledger_list(client, "a"), check.change_ledger_list

    def late(*arguments: Any, **options: Any) -> LedgerList:
        monkeypatch.setattr(check, "change_ledger_list", change)
        assert len(gc_log(client, "a", min_age_s=0).deleted) > 1
        assert read_ledger_list(client, "a") == before
        return change(*arguments, **options)

    monkeypatch.setattr(check, "change_ledger_list", late)
    with pytest.raises(LogError, match="nothing was repaired"):
        repair_log(client, "a")
    assert read_ledger_list(client, "a") == before
    assert [problem.ledger_id for problem in repair_log(client, "a")] == [data[1]]
    assert contents(client) == [b"%d.%d" % (seq, entry) for seq in range(9) if seq != 1 for entry in (0, 1)]


def test_a_lost_chunk_of_the_history_is_written_off(client: bk_core.BookKeeper) -> None:
    """GRD-5: with all the segments that it told of; a log is not unreadable for ever because of it."""
    grow(client, 9)
    seal_log(client, "a", limits=SMALL)
    ref = read_ledger_list(client, "a").history[0]
    client.delete_ledger(ref.ledger_id, even_if_listed=True)
    (problem,) = check_log(client, "a").problems
    assert (problem.kind, problem.first_seq, problem.last_seq, problem.rows) == ("missing", 0, ref.after_seq - 1, ref.rows)
    assert repair_log(client, "a") == (problem,)
    assert contents(client)[0] == b"%d.0" % ref.after_seq and check_log(client, "a").is_good
    assert [one.seq for one in client.log("a").segments() if one.written_off] == list(range(ref.after_seq))


def test_what_was_written_off_is_called_so(
    client: bk_core.BookKeeper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every list of segments and in their picture; a segment in which its writer wrote nothing is merely empty."""
    ledgers = grow(client, 2)
    LogWriter.open(client, "a").close()
    client.delete_ledger(ledgers[0], even_if_listed=True)
    assert "written off" not in bk(capsys, monkeypatch, "log", "segments", "a")
    bk(capsys, monkeypatch, "log", "repair", "a", "--yes")
    told = {seq: seq == 0 for seq in range(3)}
    for command in ("show", "segments"):
        rows = [line.split() for line in bk(capsys, monkeypatch, "log", command, "a").splitlines()]
        assert {int(row[0]): "written" in row for row in rows if row and row[0].isdecimal()} == told, command
    facts = [json.loads(line) for line in bk(capsys, monkeypatch, "log", "segments", "a", "--json").splitlines()]
    assert {one["seq"]: one["writtenOff"] for one in facts} == told
    assert client.log("a").segments()._repr_html_().count("written off") == 1
    found = _segment_rows(SimpleNamespace(now_ms=0), list(client.log("a").segments()))  # type: ignore[arg-type]
    assert str(found).count("written off") == 1
    legend = client.log("a").plot_segments().get_legend()
    assert any("written off: 1 segment" in text.get_text() for text in legend.get_texts())


def test_what_exists_is_never_written_off(client: bk_core.BookKeeper) -> None:
    """GRD-5: a ledger that is too short, of another log, or cannot be read is told, and stays."""
    data = grow(client, 2)
    grow(client, 1, "b")
    other = read_log(client, "b").segment(0).ledger_id
    ranges = [SegmentRange(data[1], 2, 5, 4, 8), SegmentRange(other, 0, 0, 1, 1)]
    listed = update_ledger_list(client, "a", lambda current: current.append_segments(ranges, 1))
    assert [p.kind for p in check_log(client, "a").problems] == ["short", "foreign"]
    with client.create_ledger(password=b"p", custom={"log": b"a"}) as secret:
        secret.append(b"x")
    locked = [SegmentRange(secret.ledger_id, 0, 0, 1, 1)]
    update_ledger_list(client, "a", lambda current: current.append_segments(locked, 1))
    assert [p.kind for p in check_log(client, "a").problems] == ["short", "foreign", "password"]
    locked_out = {p.ledger_id for p in check_log(client, "a", password=b"p").problems if p.kind == "password"}
    assert secret.ledger_id not in locked_out
    assert repair_log(client, "a") == () and read_ledger_list(client, "a").segments[: len(listed.segments)] == listed.segments


def test_the_command_line_checks_and_repairs(
    client: bk_core.BookKeeper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = grow(client, 3)
    grow(client, 1, "sound")
    assert "2 logs with 4 ledgers checked: 0 with problems" in bk(capsys, monkeypatch, "log", "check", "--all")
    client.delete_ledger(data[1], even_if_listed=True)
    assert f"lists ledgers {data[1]}, which do not exist: bk log check a" in bk(capsys, monkeypatch, "ledger", "check", "--all", status=1)
    said = bk(capsys, monkeypatch, "log", "check", "--all", "--json", status=1)
    checks = [json.loads(line) for line in said.splitlines()]
    assert [(one["log"], one["good"]) for one in checks] == [("a", False), ("sound", True)]
    assert checks[0]["problems"][0]["ledger"] == data[1] and checks[0]["problems"][0]["firstSeq"] == 1
    monkeypatch.setattr("click.confirm", lambda *_args, **_options: (_ for _ in ()).throw(KeyboardInterrupt))
    bk(capsys, monkeypatch, "log", "repair", "a", status=130)
    assert not check_log(client, "a").is_good
    said = bk(capsys, monkeypatch, "log", "repair", "a", "--yes")
    assert "segments 1..1: 2 rows, 6 bytes lost" in said and "log a repaired" in said
    assert "nothing to repair" in bk(capsys, monkeypatch, "log", "repair", "a", "--yes")
    bk(capsys, monkeypatch, "log", "check", "a")
    bk(capsys, monkeypatch, "log", "check", status=2)
    bk(capsys, monkeypatch, "log", "check", "none", status=1)


# --- release ---------------------------------------------------------------------------------------------------------------------


def test_a_log_whose_writer_lives_here_is_not_released(client: bk_core.BookKeeper) -> None:
    """GRD-4."""
    create_log(client, "a", RAW)
    with LogWriter.open(client, "a") as writer:
        writer.append(b"x")
        with pytest.raises(LogWriterAliveError, match=rf"process \d+ on host .*, since .* ledger {writer.ledger_id}"):
            release_log(client, "a")
        writer.append(b"y")
        assert release_log(client, "a", even_if_alive=True) == (writer.ledger_id,)
        writer.abandon()
    assert contents(client) == [b"x", b"y"] and release_log(client, "a") == ()


def test_only_the_ledgers_that_were_judged_are_released(client: bk_core.BookKeeper) -> None:
    """GRD-4: a writer that came since then is left alone, whatever the caller insists on."""
    create_log(client, "a", RAW)
    dead = LogWriter.open(client, "a")
    judged = [dead.ledger_id]
    dead.abandon()
    with LogWriter.open(client, "a") as writer:
        for insists in (False, True):
            with pytest.raises(LogWriterAliveError, match=rf"are \[{writer.ledger_id}\] by now and not \[{judged[0]}\]"):
                release_log(client, "a", even_if_alive=insists, ledgers=judged)
        writer.append(b"x")
        assert release_log(client, "a", even_if_alive=True, ledgers=[writer.ledger_id]) == (writer.ledger_id,)
        writer.abandon()
    assert contents(client) == [b"x"]


def test_a_release_with_a_wrong_password_fences_nobody(client: bk_core.BookKeeper) -> None:
    """GRD-6."""
    create_log(client, "a", RAW)
    with LogWriter.open(client, "a", password=b"right") as writer:
        with pytest.raises(WrongPasswordError, match="log 'a'"):
            release_log(client, "a", password=b"wrong", even_if_alive=True)
        writer.append(b"x")


def test_what_a_dead_writer_left_is_closed_for_queries(
    client: bk_core.BookKeeper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """GRD-4: as its ledger says, its process is gone."""
    create_log(client, "a", RAW)
    create = client.create_ledger

    def as_the_dead(**settings: Any) -> Any:
        tag = json.loads(settings["custom"][WRITER])
        gone = json.dumps({**tag, "started": tag["started"] + 1}).encode()
        return create(**{**settings, "custom": {**settings["custom"], WRITER: gone}})

    monkeypatch.setattr(client, "create_ledger", as_the_dead)
    writer = LogWriter.open(client, "a")
    monkeypatch.setattr(client, "create_ledger", create)
    writer.append(b"x")
    ledger_id = writer.ledger_id
    writer.abandon()
    assert f"closed ledger {ledger_id}" in bk(capsys, monkeypatch, "log", "release", "a")
    listed = read_ledger_list(client, "a")
    assert not listed.live_segments and listed.segments[0].rows == 1
    assert "no live segment" in bk(capsys, monkeypatch, "log", "release", "a")


def test_a_live_segment_whose_ledger_is_gone_is_for_the_repair(client: bk_core.BookKeeper) -> None:
    create_log(client, "a", RAW)
    writer = LogWriter.open(client, "a")
    ledger_id = writer.ledger_id
    writer.abandon()
    client.delete_ledger(ledger_id, even_if_listed=True)
    with pytest.raises(LogDataLossError, match="bk log repair"):
        release_log(client, "a")
    assert [p.ledger_id for p in repair_log(client, "a")] == [ledger_id]
    LogWriter.open(client, "a").close()


def test_a_ledger_of_others_is_not_fenced_for_a_release(client: bk_core.BookKeeper) -> None:
    """OWN-6: whatever the list says."""
    create_log(client, "a", RAW)
    with client.create_ledger(custom={"log": b"another"}) as stranger:
        at_ms = client.store.clock_ms()
        update_ledger_list(client, "a", lambda listed: listed.add_live_segment(stranger.ledger_id, at_ms))
        with pytest.raises(ForeignLedgerError, match="left alone"):
            release_log(client, "a", even_if_alive=True)
        stranger.append(b"goes on")


# --- marks -----------------------------------------------------------------------------------------------------------------------


def test_marks_are_shown_and_dropped(
    client: bk_core.BookKeeper, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAN-6: by id, by age, and by what the log's properties say as soon as they say it."""
    create_log(client, "a", RAW)
    now_ms = client.store.clock_ms()
    for query, at_ms in (("old", 1), ("idle", now_ms - 86_400_000), ("busy", now_ms), ("unknown", 0)):
        update_ledger_list(client, "a", lambda listed, q=query, t=at_ms: listed.mark_committed(q, 7, t))
    said = bk(capsys, monkeypatch, "log", "marks", "a")
    assert "4 marks" in said and "busy" in said
    assert [json.loads(line)["query"] for line in bk(capsys, monkeypatch, "log", "marks", "a", "--json").splitlines()][0] == "busy"
    bk(capsys, monkeypatch, "log", "marks", "a", "--forget", "nobody", status=1)
    assert "1 mark forgotten, 3 left" in bk(capsys, monkeypatch, "log", "marks", "a", "--forget", "unknown", "--yes")
    assert forget_marks(client, "a", older_than_ms=2 * 86_400_000) == ("old",)
    set_properties(client, "a", committed_retention_ms=3_600_000)
    assert set(read_ledger_list(client, "a").committed) == {"busy"}


def test_a_list_full_of_marks_has_a_way_out(
    client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """JAN-7: warned about from half of what the store takes, refused with what to do, and usable again after that."""
    create_log(client, "a", RAW)
    monkeypatch.setattr(list_store, "_large", {})
    marks = {f"{n:08}-0000-4000-8000-000000000000": Mark(1, 1) for n in range(12_000)}
    with caplog.at_level(logging.WARNING):
        update_ledger_list(client, "a", lambda listed: replace(listed, committed=marks))
        assert caplog.text.count("of at most 1,000,000") == 1 and "12,000 queries" in caplog.text
        update_ledger_list(client, "a", lambda listed: listed.mark_committed("q", 1, 1))
    assert caplog.text.count("of at most 1,000,000") == 1
    more = {**marks, **{f"{n:08}-1111-4000-8000-000000000000": Mark(1, 1) for n in range(12_000)}}
    with pytest.raises(LogListFullError, match="bk log marks NAME --forget"):
        update_ledger_list(client, "a", lambda listed: replace(listed, committed=more))
    assert len(read_ledger_list(client, "a").committed) == 12_001
    set_properties(client, "a", committed_retention_ms=86_400_000)
    assert read_ledger_list(client, "a").committed == {}


def test_the_bound_of_a_list() -> None:
    """JAN-7."""
    listed = LedgerList("a", RAW)
    check_size("a", listed, 100, 100)
    with pytest.raises(LogListFullError, match="101 bytes of at most 100"):
        check_size("a", listed, 101, 100)
    assert is_large(51, 100) and not is_large(50, 100)
    with pytest.raises(LogListFullError, match="50 of them for its columns. Use fewer columns"):
        check_size("a", listed.set_schema("x" * 50), 101, 100)
