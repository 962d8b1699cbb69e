"""``bk log`` against bookies in this process: what is printed, what is an error, what is asked first, and what it does to logs."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

import bk_core
from bk_core import cli
from bk_core.bookie.server import EmbeddedBookie
from bk_core.cli import output
from bk_core.cli.units import Duration, Number, Size
from bk_core.client.log import janitor, list_store, lists
from bk_core.client.log.history import read_log, update_ledger_list
from bk_core.client.log.intents import Intent, create_intended, record_intent
from bk_core.client.log.janitor import delete_log
from bk_core.client.log.lists import create_log, list_logs
from bk_core.client.log.writer import LogWriter
from bk_core.display.words import told_age, told_duration, told_size
from bk_core.metadata import open_store
from bk_core.metadata.memory import MemoryStore
from bk_core.protocol.log.segments import LogProperties


class Bk:
    """The command line and what it said."""

    def __init__(self, uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.uri = uri
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        self.out = self.err = ""
        self.bookies: list[EmbeddedBookie] = []

    def __call__(self, *arguments: str, status: int = 0, stdin: bytes = b"") -> str:
        self._monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin), isatty=lambda: False))
        found = cli.run(["log", *arguments])
        self.out, self.err = self._capsys.readouterr()
        assert found == status, (found, self.out, self.err)
        assert "Traceback" not in self.err
        return self.out

    def json(self, *arguments: str, status: int = 0, stdin: bytes = b"") -> list[Any]:
        return [json.loads(line) for line in self(*arguments, "--json", status=status, stdin=stdin).splitlines()]


@pytest.fixture
def bk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bk]:
    uri = f"memory://{tmp_path.name}"
    store = open_store(uri)
    store.initialize_cluster()
    bookies = [EmbeddedBookie(tmp_path / str(i), "127.0.0.1", 0, store).start() for i in range(3)]
    monkeypatch.setenv(output.URI_VARIABLE, uri)
    bk = Bk(uri, capsys, monkeypatch)
    bk.bookies = bookies
    yield bk
    for bookie in bookies:
        bookie.close()
    store.close()


@pytest.fixture
def client(bk: Bk) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(bk.uri) as client:
        yield client


def fill(client: bk_core.BookKeeper, name: str, segments: int, entries: int = 2) -> None:
    create_log(client, name, LogProperties(entry_format="raw"), exist_ok=True)
    with LogWriter.open(client, name) as writer:
        for seq in range(segments):
            for n in range(entries):
                writer.append(b"%d.%d" % (seq, n))
            if seq < segments - 1:
                writer.roll()


def test_a_log_is_made_with_its_columns(bk: Bk, client: bk_core.BookKeeper) -> None:
    bk("create", "flights", "--schema", "id BIGINT, carrier STRING")
    assert [(field.name, str(field.type)) for field in client.log("flights").arrow_schema()] == [("id", "int64"), ("carrier", "string")]
    bk("create", "other", "--schema", "id BIGIN", status=1)
    assert "character 3: no column can be made of type 'BIGIN'; did you mean 'BIGINT'?" in bk.err
    bk("create", "other", "--schema", "id BIGINT", "--entry-format", "raw", status=2)
    assert "--schema is for --entry-format arrow" in bk.err
    assert client.logs() == ["flights"]


def test_a_mistyped_name_is_told_before_anything_is_deleted(bk: Bk, client: bk_core.BookKeeper) -> None:
    for name in ("a", "b"):
        bk("create", name)
    bk("rm", "a", "typo", "b", "--yes", status=1)
    assert list_logs(client) == ["a", "b"]
    bk("rm", "a", "b", "a", "--yes")
    assert list_logs(client) == []


def test_create_show_set_ls_rm(bk: Bk, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    quorums = [
        "--ensemble-size",
        "2",
        "--write-quorum-size",
        "2",
        "--ack-quorum-size",
        "1",
        "--digest-type",
        "CRC32",
        "--guaranteed-write-quorum",
    ]
    kept = ["--retention", "7d", "--retention-bytes", "10GiB", "--committed-retention", "2w"]
    (made,) = bk.json("create", "a", "--entry-format", "raw", *quorums, *kept)
    properties = read_log(client, "a").properties
    assert properties == LogProperties("raw", "", 2, 2, 1, "CRC32", 7 * 86_400_000, 10 << 30, True, 14 * 86_400_000)
    assert (made["quorums"], made["retentionMs"], made["guaranteed"]) == ([2, 2, 1], 7 * 86_400_000, True)
    bk("create", "a", status=1)
    assert bk.err == "error: [BK-LOG-EXISTS] log 'a' exists; exist_ok=True (--exist-ok) takes it as it is\n"
    assert "raw" in bk("create", "a", "--exist-ok")
    bk("create", "b", "--ack-quorum-size", "9", status=2)
    assert "--ack-quorum-size 9 is above" in bk.err and list_logs(client) == ["a"]
    (changed,) = bk.json("set", "a", "--retention", "none", "--no-guaranteed-write-quorum", "--ack-quorum-size", "2")
    assert (changed["retentionMs"], changed["retentionBytes"], changed["guaranteed"], changed["quorums"]) == (
        None,
        10 << 30,
        False,
        [2, 2, 2],
    )
    bk("set", "a", status=2)
    assert "say what to change" in bk.err
    bk("set", "a", "--retention", "soon", status=2)
    assert "no duration" in bk.err
    assert bk.json("show", "a")[0]["retentionBytes"] == 10 << 30
    assert "CRC32" in bk("show", "a")
    lines = dict(found for line in bk("show", "a").splitlines() if len(found := re.split(" {2,}", line.rstrip())) == 2)
    wanted = {"retention": "none", "retention bytes": "10GiB", "committed retention": "14d", "E/Qw/Qa": "2/2/2", "live": "no"}
    assert {key: lines[key] for key in wanted} == wanted and lines["guaranteed write quorum"] == "no"
    assert [summary["log"] for summary in bk.json("ls")] == ["a"]
    assert "1 log\n" in bk("ls")
    monkeypatch.setattr("click.confirm", lambda *_args, **_options: (_ for _ in ()).throw(KeyboardInterrupt))
    bk("rm", "a", status=130)
    assert list_logs(client) == ["a"]
    assert bk.json("rm", "a", "--yes") == [{"log": "a", "deleted": True}]
    assert list_logs(client) == []
    for command in ("show", "segments", "rm", "trim", "tail", "append", "set"):
        bk(command, "a", *{"rm": ["--yes"], "trim": ["--before-seq", "1"], "set": ["--ensemble-size", "3"]}.get(command, []), status=1)
        assert "[BK-NO-LOG]" in bk.err, command


def test_lines_go_in_and_come_out(bk: Bk, client: bk_core.BookKeeper) -> None:
    bk("create", "a", "--entry-format", "raw")
    (told,) = bk.json("append", "a", stdin=b"one\n\nthree\nfour without an end")
    assert told == {"log": "a", "entries": 4, "bytes": 27, "first": {"seq": 0, "entry": 0}, "last": {"seq": 0, "entry": 3}}
    assert bk("append", "a", stdin=b"five\n").splitlines() == ["1 entry, 4 bytes, at 1:0 .. 1:0"]
    assert bk("append", "a") == "no entries\n"
    assert bk.json("append", "a") == [{"log": "a", "entries": 0, "bytes": 0, "first": None, "last": None}]
    assert len(list(client.log("a").segments())) == 2  # an input without lines leaves none
    assert [line.split() for line in bk("tail", "a", "-n", "2").splitlines()] == [
        ["0:3", "19", "B", "four", "without", "an", "end"],
        ["1:0", "4", "B", "five"],
    ]
    assert bk.json("tail", "a", "-n", "1")[0]["payload"] == "Zml2ZQ=="
    assert len(bk.json("tail", "a")) == 5 and bk("tail", "a", "-n", "0") == "" == bk("tail", "a", "--from", "end")
    assert [(e["seq"], e["entry"]) for e in bk.json("tail", "a", "--from", "0:3")] == [(0, 3), (1, 0)]
    assert len(bk.json("tail", "a", "--from", "first")) == 5 and len(bk.json("tail", "a", "--from", "1")) == 1
    for nowhere in ("yesterday", "9" * 5000, f"0:{'9' * 5000}"):
        bk("tail", "a", "--from", nowhere, status=2)
        assert "is neither SEQ, SEQ:ENTRY, first nor end" in bk.err and len(bk.err) < 1000
    assert bk("tail", "a", "--from", "1:1") == ""  # the end itself
    for beyond, what in (("1:2", "segment 1, whose last entry is 0"), ("3:1", "the log, which is 2:0 now"), ("9", "the log")):
        bk("tail", "a", "--from", beyond, status=1)
        assert f"{beyond} lies beyond the end of {what}" in bk.err
    bk("tail", "b", status=1)
    assert "there is no log 'b'" in bk.err
    for name, near in (("b", ";"), ("ab", "; did you mean 'a'?")):
        bk("append", name, status=1, stdin=b"x\n")
        assert (
            bk.err == f"error: [BK-NO-LOG] there is no log '{name}'{near} `bk log create {name} --entry-format raw` makes a log for lines\n"
        )


def test_a_name_that_is_nearly_right_is_told(bk: Bk, client: bk_core.BookKeeper) -> None:
    create_log(client, "flights")
    for command in (["gc"], ["show"], ["check"], ["release"], ["set", "--retention", "1d"], ["trim", "--older-than", "1d"], ["adopt"]):
        bk(command[0], "flihgts", *command[1:], status=1)
        assert "[BK-NO-LOG] there is no log 'flihgts'; did you mean 'flights'?" in bk.err, command
    create_intended(client, "flights", read_log(client, "flights").properties)
    delete_log(client, "flights")
    bk("gc")  # all of them, and none is left


def test_raw_payloads_are_written_as_they_are(bk: Bk, client: bk_core.BookKeeper) -> None:
    bk("create", "a", "--entry-format", "raw")
    with LogWriter.open(client, "a") as writer:
        writer.append("ü\tx".encode())
        writer.append(b"")
    assert bk("tail", "a", "--raw") == "ü\tx\n\n"


def test_append_fences_only_when_it_is_told_to(bk: Bk, client: bk_core.BookKeeper) -> None:
    bk("create", "a", "--entry-format", "raw")
    with LogWriter.open(client, "a", password=b"p") as writer:
        writer.append(b"one")
        bk("append", "a", "--password", "p", status=1, stdin=b"two\n")
        assert "or end its writing: take_over=True (--take-over)" in bk.err
        assert f"process {os.getpid()} on host {socket.gethostname()}, since 20" in bk.err
        writer.append(b"still there")
        assert [e["seq"] for e in bk.json("tail", "a", "--password", "p", "-n", "1")] == [0]  # of a live segment, too
        bk("append", "a", "--take-over", status=1, stdin=b"two\n")
        assert "[BK-PASSWORD]" in bk.err
        bk("append", "a", "--take-over", "--password", "p", stdin=b"two\n")
    assert [e["bytes"] for e in bk.json("tail", "a", "--password", "p")] == [3, 11, 3]


def test_append_takes_over_from_who_is_certainly_gone(bk: Bk, client: bk_core.BookKeeper) -> None:
    """As ``Log.writer`` does, and as the doctor says."""
    bk("create", "a", "--entry-format", "raw")
    with LogWriter.open(client, "a") as writer:
        writer.append(b"one")
        writer.abandon()
    bk("append", "a", stdin=b"two\n")
    assert [entry["bytes"] for entry in bk.json("tail", "a", "--from", "first")] == [3, 3]


def test_tail_counts_from_the_end_or_begins_somewhere(bk: Bk, client: bk_core.BookKeeper) -> None:
    fill(client, "a", 2, entries=8)
    assert len(bk.json("tail", "a")) == 10 and len(bk.json("tail", "a", "--from", "first")) == 16
    bk("tail", "a", "--from", "first", "-n", "3", status=2)
    assert "leave one of them out" in bk.err


def test_lines_are_no_entries_of_an_arrow_log(bk: Bk) -> None:
    bk("create", "a")
    bk("append", "a", status=1, stdin=b"x\n")
    assert bk.err == (
        "error: [BK-LOG-FORMAT] log 'a' is for Arrow record batches, as Spark writes them (the default of bk log create); lines of text "
        "would make it unreadable. Make a log for them: bk log create NAME --entry-format raw\n"
    )


def test_a_log_of_queries_is_taken_from_them_only_when_it_is_told_to(bk: Bk, client: bk_core.BookKeeper) -> None:
    """GRD-1: the same guard as Python's."""
    create_log(client, "a", LogProperties(entry_format="raw"))
    update_ledger_list(client, "a", lambda listed: listed.mark_committed("q1", 3, 1))
    bk("append", "a", "--take-over", status=1, stdin=b"x\n")
    assert "[BK-LOG-QUERIES]" in bk.err and "(q1)" in bk.err and list(client.list_ledgers()) == []
    bk("append", "a", "--take-over-queries", stdin=b"x\n")
    assert read_log(client, "a").next_seq == 1


def test_a_ledger_of_a_log_is_deleted_only_when_it_is_told_to(bk: Bk, client: bk_core.BookKeeper) -> None:
    """GRD-2."""
    fill(client, "a", 1)
    ledger_id = str(read_log(client, "a").segment(0).ledger_id)
    assert cli.run(["ledger", "rm", ledger_id, "--yes"]) == 1
    assert cli.run(["ledger", "rm", ledger_id]) == 1  # without a question, which would be in vain
    assert list(client.list_ledgers()) == [int(ledger_id)]
    assert cli.run(["ledger", "rm", ledger_id, "--yes", "--even-if-listed"]) == 0
    assert list(client.list_ledgers()) == []


def test_lines_are_written_as_they_come(bk: Bk, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """And are followed as they come: `tail -f` ends when the log is deleted."""
    create_log(client, "a", LogProperties(entry_format="raw"))
    there, said = threading.Event(), []
    read_end, write_end = os.pipe()
    monkeypatch.setattr("bk_core.cli.log_entries.say_json", lambda value: (said.append(value), there.set()))
    with ThreadPoolExecutor(2) as threads, os.fdopen(read_end, "rb") as source, os.fdopen(write_end, "wb", buffering=0) as sink:
        following = threads.submit(cli.run, ["log", "tail", "a", "-f", "--json"])
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=source, isatty=source.isatty))
        writing = threads.submit(cli.run, ["log", "append", "a"])
        for n in range(3):
            sink.write(b"%d\nunfinished" % n)
            assert there.wait(60)
            there.clear()
            sink.write(b"\n")
            assert there.wait(60)
            there.clear()
        sink.close()
        assert writing.result(60) == 0
        janitor.delete_log(client, "a")
        assert following.result(60) == 1
    assert [value["bytes"] for value in said] == [1, 10] * 3


def test_lines_that_no_bookie_takes_end_in_an_error(bk: Bk, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    create_log(client, "a", LogProperties(entry_format="raw"))
    monkeypatch.setattr("bk_core.client.connect", partial(bk_core.connect, operation_timeout_s=1.0))

    appended = LogWriter.append_run_future

    def and_end(*arguments: Any) -> Any:
        for bookie in bk.bookies:
            bookie.close()
        return appended(*arguments)

    monkeypatch.setattr(LogWriter, "append_run_future", and_end)
    bk("append", "a", status=1, stdin=b"one\n")
    assert "BK-TIMEOUT" in bk.err
    assert "log 'a': no line was acknowledged for 1 s (none was before; later lines may be in the log)" in bk.err


def test_segments(bk: Bk, client: bk_core.BookKeeper) -> None:
    fill(client, "a", 4)
    assert [(s["seq"], s["lastEntryId"], s["rows"], s["bytes"]) for s in bk.json("segments", "a")] == [(n, 1, 2, 6) for n in range(4)]
    assert [s["seq"] for s in bk.json("segments", "a", "--first", "1", "--last", "2")] == [1, 2]
    assert len(bk("segments", "a").splitlines()) == 5


@pytest.mark.parametrize(
    ("bound", "left"),
    [
        (["--before-seq", "2"], 2),
        (["--before-seq", "4"], 0),
        (["--keep-bytes", "6"], 1),
        (["--keep-bytes", "7B"], 2),
        (["--older-than", "1w"], 4),
        (["--older-than", "0s"], 0),
        (["--older-than", "1w", "--keep-bytes", "6"], 1),
        (["--retention"], 3),
    ],
)
def test_trim(bk: Bk, client: bk_core.BookKeeper, bound: list[str], left: int) -> None:
    """A dry run says what the real one does."""
    fill(client, "a", 4)
    bk("set", "a", "--retention-bytes", "18", "--retention", "1d")
    now_ms = list_store.now_ms() + 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lists, "store_now_ms", lambda _: now_ms)
        (would,) = bk.json("trim", "a", *bound, "--dry-run")
        assert len(read_log(client, "a").listed.segments) == 4
        text = bk("trim", "a", *bound, "--dry-run")
        (did,) = bk.json("trim", "a", *bound)
    assert text == f"would drop {4 - left} segment{'' if left == 3 else 's'}, {8 - 2 * left} rows, {24 - 6 * left} bytes\n"
    assert {**would, "deleted": did["deleted"], "dryRun": False} == did
    assert len(did["deleted"]) == 4 - left == did["segments"] and did["rows"] == 2 * (4 - left)
    assert sorted(client.list_ledgers()) == sorted(s.ledger_id for s in read_log(client, "a").segments())
    assert bk("trim", "a", *bound) == "dropped 0 segments, 0 rows, 0 bytes\n"


def test_trim_needs_a_bound(bk: Bk, client: bk_core.BookKeeper) -> None:
    fill(client, "a", 1)
    bk("trim", "a", status=2)
    assert "say what to drop" in bk.err
    bk("trim", "a", "--retention", status=2)
    assert "keeps everything for ever" in bk.err
    ((command, days),) = re.findall(r"`bk log (set a --retention) (\d+d)`", " ".join(bk.err.split()))
    bk(*command.split(), days)
    assert "dropped 0 segments" in bk("trim", "a", "--retention")


def test_gc(bk: Bk, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """All logs by default; what is younger than the age stays. JAN-1: the age of an intent is that of its node."""
    fill(client, "a", 1)
    create_log(client, "b")
    of_a = {"log": b"a"}
    with client.create_ledger(custom=of_a) as orphan, client.create_ledger(custom=of_a) as young:
        pass
    with monkeypatch.context() as patch:
        patch.setattr(MemoryStore, "clock_ms", lambda _: list_store.now_ms() - 7_200_000)
        record_intent(client, "a", Intent(orphan.ledger_id, "q", "elsewhere", 1, list_store.now_ms()))
    record_intent(client, "a", Intent(young.ledger_id, "q", "elsewhere", 1, list_store.now_ms()))
    assert [report["deleted"] for report in bk.json("gc")] == [[], []]
    assert bk.json("gc", "--min-age", "1h") == [
        {"log": "a", "deleted": [orphan.ledger_id], "closed": [], "forgotten": [], "failed": [], "foreign": []},
        {"log": "b", "deleted": [], "closed": [], "forgotten": [], "failed": [], "foreign": []},
    ]
    assert bk("gc", "a") == "a: deleted nothing, closed nothing\n"
    assert bk("gc", "a", "--min-age", "0s") == f"a: deleted ledger {young.ledger_id}, closed nothing\n"
    assert len(list(client.list_ledgers())) == 1


def test_gc_tells_of_intents_whose_ledger_is_not_there(bk: Bk, client: bk_core.BookKeeper) -> None:
    fill(client, "a", 1)
    for ledger_id in (7000, 7001):
        record_intent(client, "a", Intent(ledger_id, "q", "elsewhere", 1, list_store.now_ms()))
    assert bk("gc", "a") == "a: deleted nothing, closed nothing\n"
    assert bk("gc", "--min-age", "0s") == "a: deleted nothing, closed nothing, forgot intents without a ledger, of ledgers 7000, 7001\n"
    assert bk("gc", "--min-age", "0s") == "a: deleted nothing, closed nothing\n"
    record_intent(client, "a", Intent(7002, "q", "elsewhere", 1, list_store.now_ms()))
    (report,) = bk.json("gc", "--min-age", "0s")
    assert report["forgotten"] == [7002]


def test_gc_lists_no_log_that_never_was(bk: Bk, client: bk_core.BookKeeper) -> None:
    """A write that has not made its log yet, or never will, has left an intent."""
    create_log(client, "a")
    begun = client.create_ledger(custom={"log": b"never"}).ledger_id
    record_intent(client, "never", Intent(begun, "q", "elsewhere", 1, list_store.now_ms()))
    assert [report["log"] for report in bk.json("gc")] == ["a"]
    assert bk("gc") == "a: deleted nothing, closed nothing\n"
    assert bk("gc", "never") == "never: deleted nothing, closed nothing\n"
    assert bk("gc", "--min-age", "0s").splitlines()[1] == f"never: deleted ledger {begun}, closed nothing"


def test_gc_says_what_it_could_not_do(bk: Bk, client: bk_core.BookKeeper) -> None:
    create_log(client, "a")
    orphan = client.create_ledger(password=b"secret", custom={"log": b"a"}).ledger_id
    record_intent(client, "a", Intent(orphan, "q", "elsewhere", 1, 0))
    assert bk("gc", status=1) == "a: deleted nothing, closed nothing\n"
    assert f"a: ledger {orphan} could not be cleaned up: [BK-PASSWORD]" in bk.err
    (report,) = bk.json("gc", status=1)
    assert report["failed"][0]["ledger"] == orphan
    assert bk("gc", "--password", "secret") == f"a: deleted ledger {orphan}, closed nothing\n"


@pytest.mark.parametrize(
    ("text", "ms"), [("90s", 90_000), ("1.5h", 5_400_000), ("2 d", 172_800_000), ("250ms", 250), ("1w", 604_800_000), (7, 7)]
)
def test_durations(text: Any, ms: int) -> None:
    assert Duration().convert(text, None, None) == ms


@pytest.mark.parametrize(
    ("text", "size"), [("12", 12), ("12B", 12), ("1k", 1000), ("1KiB", 1024), ("1.5MB", 1_500_000), ("2 GiB", 2 << 30), (7, 7)]
)
def test_sizes(text: Any, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "x", "12 parsecs", "1iB", "-5s", "-5", "9" * 400 + "s", "9" * 400])
def test_what_is_neither(text: str) -> None:
    for kind in (Duration(), Duration(optional=True), Size(), Size(optional=True)):
        with pytest.raises(Exception, match=r"no duration|no size"):
            kind.convert(text, None, None)
    assert Duration(optional=True).convert("none", None, None) == -1 == Size(optional=True).convert("Never", None, None)


def test_what_is_too_large_is_told_in_a_line() -> None:
    for kind, unit in ((Duration(), "d"), (Size(), "GB")):
        with pytest.raises(click.BadParameter, match="is no (duration|size)") as caught:
            kind.convert("9" * 5000 + unit, None, None)
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "-1", "x"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Number(min=0).convert(text, None, None)
    assert Number(min=0).convert("1.5", None, None) == 1.5


@pytest.mark.parametrize(("ms", "text"), [(7 * 86_400_000, "7d"), (5_400_000, "90m"), (1500, "1500ms"), (0, "0d")])
def test_durations_are_told_as_they_are_given(ms: int, text: str) -> None:
    assert told_duration(ms) == text and Duration().convert(text, None, None) == ms


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0s"),
        (999, "0s"),
        (59_999, "59s"),
        (60_000, "1m"),
        (86_399_999, "23h"),
        (86_400_000 * 1234, "1,234d"),
        (-90_000, "-1m"),
        (-1, "0s"),
    ],
)
def test_ages_are_told_in_their_largest_unit(ms: int, text: str) -> None:
    assert told_age(ms) == text


@pytest.mark.parametrize(("size", "text"), [(10 << 30, "10GiB"), (1536, "1,536"), (1 << 60, "1024PiB"), (0, "0"), (3072, "3KiB")])
def test_sizes_are_told_as_they_are_given(size: int, text: str) -> None:
    assert told_size(size) == text and Size().convert(text.replace(",", ""), None, None) == size


def test_a_log_with_a_password_is_no_problem_of_the_others(bk: Bk, client: bk_core.BookKeeper) -> None:
    fill(client, "open", 1)
    create_log(client, "shut", LogProperties(entry_format="raw"))
    with LogWriter.open(client, "shut", password=b"p") as writer:
        writer.append(b"x")
    assert bk("check", "--all") == "1 log with 1 ledger checked: 0 with problems, 1 not looked at\n"
    assert bk.err == "log shut is not looked at: it has a password (--password, --password-file, or BOOKKEEPER_LEDGER_PASSWORD)\n"
    assert [one["log"] for one in bk.json("check", "--all")] == ["open"]
    assert [p["problem"] for p in bk.json("check", "shut", status=1)[0]["problems"]] == ["password"]
    assert bk.json("check", "shut", "--password", "p")[0]["good"]


def test_a_password_may_stand_in_a_file(bk: Bk, client: bk_core.BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes before the variable, and not beside the option."""
    create_log(client, "shut", LogProperties(entry_format="raw"))
    with LogWriter.open(client, "shut", password=b"p") as writer:
        writer.append(b"x")
    file = tmp_path / "password"
    file.write_text("p\n")
    monkeypatch.setenv("BOOKKEEPER_LEDGER_PASSWORD", "another")
    assert bk.json("check", "shut", "--password-file", str(file))[0]["good"]
    bk("check", "shut", "--password-file", str(file), "--password", "p", status=2)
    assert "exclude each other" in bk.err
    bk("check", "shut", "--password-file", str(tmp_path / "absent"), status=1)
    assert "BK-SECRET" in bk.err


def test_one_bad_list_hides_no_other_log(bk: Bk) -> None:
    bk("create", "good", "--entry-format", "raw")
    store = open_store(bk.uri)
    store.create("logs/odd", b'{"format":9}')
    assert [one["log"] for one in bk.json("ls")] == ["good"] and "log 'odd': ledger list of format 9" in bk.err
    assert [one["log"] for one in bk.json("check", "--all", status=1)] == ["good"] and "log 'odd'" in bk.err
    assert "good: deleted nothing" in bk("gc", status=1) and "log 'odd'" in bk.err
