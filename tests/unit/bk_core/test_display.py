"""The output of a notebook: the rows that ``bk`` prints, as HTML in which no text of others is markup; short texts; no secrets."""

from __future__ import annotations

import array
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from click.testing import CliRunner

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.cli import ledgers as ledger_commands
from bk_core.cli import logs as log_commands
from bk_core.cli.output import say_table
from bk_core.client import BookKeeper, showing
from bk_core.client.exploring.ledgers import SHOWN_ROWS
from bk_core.client.files.connections import Wish
from bk_core.client.files.upkeep import FileGcReport
from bk_core.client.log.check import LogCheck, LogProblem
from bk_core.client.log.info import LogInfo, Segments
from bk_core.client.log.janitor import GcReport
from bk_core.client.log.live_writers import LiveWriter
from bk_core.client.log.reader import LogEntries
from bk_core.client.log.settings import schema_text
from bk_core.client.repair.report import DecommissionReport, LedgerReport, Moved, Refilled, RepairReport, StillNamed
from bk_core.config import ClientConfig
from bk_core.display import copies, ledgers, logs, table
from bk_core.display.logs import NO_PYARROW
from bk_core.display.words import about, cell, rest_about
from bk_core.errors import BkError
from bk_core.metadata.memory import MemoryStore
from bk_core.metadata.store import BookieView, Versioned
from bk_core.protocol.files.content import FileStatus
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.replication import EntryRanges, FragmentReport, FragmentSpan, ReplicaReport
from bk_core.protocol.ledger.run import EntryRun
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties, Segment, unchecked_properties

HOSTILE = '<script>alert("1")</script><img src=x onerror=alert(2)>&amp;\u202e\x1b[31m\''
SECRET = b"hunter2"
TAGS = {"div", "p", "table", "thead", "tbody", "tr", "th", "td"}


class Shown(HTMLParser):
    """Reads HTML as a browser does: its tags, attributes, and the texts between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[tuple[str, str | None]] = set()
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._open.append(tag)
        self.attributes.update(attrs)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def run_of(*payloads: bytes) -> EntryRun:
    offsets = array.array("q", [0])
    for payload in payloads:
        offsets.append(offsets[-1] + len(payload))
    return EntryRun(7, len(payloads), b"".join(payloads), memoryview(offsets))


def metadata(text: str = HOSTILE) -> LedgerMetadata:
    custom = MappingProxyType({text: text.encode(), "application": b"x"})
    fragments = (Fragment(0, (text,)), Fragment(9, (text,)))
    return LedgerMetadata(1, 1, 1, LedgerState.CLOSED, fragments, 9, 100, password=SECRET, custom=custom, ctime_ms=1_700_000_000_000)


def ledger_report() -> LedgerReport:
    replica = ReplicaReport(0, HOSTILE, True, 0, 9, 10, missing=EntryRanges(((3, 4),)))
    return LedgerReport(5, metadata(), True, (FragmentReport(FragmentSpan(0, 8, (HOSTILE,)), (replica,)),))


def repair_report() -> RepairReport:
    return RepairReport(5, [Moved(0, 0, HOSTILE, "b", 3)], [Refilled(0, 1, HOSTILE, 2)], locked_by=HOSTILE, problems=[HOSTILE])


def segments() -> Iterator[Segment]:
    return iter([Segment(seq, 100 + seq, 0, 9, 1000, 5000, 1_700_000_000_000) for seq in range(3)])


def info(name: str = HOSTILE) -> LogInfo:
    writer = LiveWriter(HOSTILE, 4, 1_700_000_000_000, "unknown")
    properties = LogProperties(schema=HOSTILE)
    return LogInfo(name, HOSTILE, properties, 3, 1000, 5000, Position(0), Position(3), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), writer)


PROBLEM = LogProblem("missing", 8, 0, 1, 10, 20, HOSTILE)
VALUES: dict[str, Any] = {
    "bookies": BookieView((HOSTILE,), ("b:1",)),
    "ledger metadata": metadata(),
    "log info": info(),
    "log properties": unchecked_properties(schema=HOSTILE, digest_type=HOSTILE),
    "segment": next(segments()),
    "segments": Segments(segments),
    "check of a ledger": ledger_report(),
    "repair": repair_report(),
    "decommission": DecommissionReport(HOSTILE, [repair_report()], still_named=[StillNamed(5, log=HOSTILE, problem=HOSTILE)]),
    "collection": GcReport((1,), (2,), ((3, HOSTILE),), ((4, HOSTILE),)),
    "check of a log": LogCheck(HOSTILE, 3, 2, (PROBLEM,)),
    "position": Position(1, 2, 3),
    "entries": run_of(HOSTILE.encode(), b"\xff\x00"),
    "entries of a log": LogEntries(next(segments()), 7, 1, HOSTILE.encode(), memoryview(array.array("q", [0, len(HOSTILE.encode())]))),
    "file": FileStatus(f"/{HOSTILE}", False, 5, 1_700_000_000_000, 3),
    "directory": FileStatus("/", True, 0, 1_700_000_000_000, 1, 2),
    "collection of a store": FileGcReport((1,), ((2, HOSTILE),), ((3, HOSTILE),), (f"/{HOSTILE}",), True, ("/b",)),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_no_text_of_others_becomes_markup(value: Any) -> None:
    html = value._repr_html_()
    shown = Shown(html)
    assert set(shown.tags) <= TAGS and "table" in shown.tags
    assert {name for name, _ in shown.attributes} <= {"style"}
    assert {style for _, style in shown.attributes} <= {"text-align: left", "text-align: right"}  # no colour: right on dark and light
    assert html.isprintable()  # nothing turns the direction of a line
    assert all(len(row) > 0 for row in shown.rows) and shown.rows


@pytest.mark.parametrize("value", [value for value in VALUES.values() if HOSTILE[:8] in "".join(Shown(value._repr_html_()).texts)])
def test_hostile_texts_are_shown_as_they_are(value: Any) -> None:
    assert '<script>alert("1")</script><img src=x onerror=alert(2)>&amp;\\u202e\\x1b[31m\'' in "".join(Shown(value._repr_html_()).texts)


def test_most_values_hold_hostile_texts() -> None:
    """Else the tests above would show nothing."""
    assert sum("<script>" in "".join(Shown(value._repr_html_()).texts) for value in VALUES.values()) >= 9


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_texts_are_short_and_tell_no_secret(value: Any) -> None:
    assert "hunter2" not in repr(value) and "hunter2" not in value._repr_html_()
    assert len(repr(value)) < 250 and "\n" not in repr(value)


def test_the_rows_of_a_notebook_are_those_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both show one ledger, and the segments of a log, with the same cells in the same order."""
    for module in (ledger_commands, log_commands):
        monkeypatch.setattr(module, "connected", _connected)
    monkeypatch.setattr("bk_core.client.log.history.read_log", lambda client, name: client)
    for command, words, value in (
        (ledger_commands.show_ledger, ["5"], metadata("b:1")),
        (log_commands.show_segments, ["events"], Segments(segments)),
    ):
        printed = CliRunner().invoke(command, [*words, "--uri", "x"], catch_exceptions=False).output
        rows = Shown(value._repr_html_()).rows
        if isinstance(value, LedgerMetadata):  # it does not tell which ledger it is of
            assert list(rows.pop(0)) == ["ledger metadata", "value"]
        for row in rows:
            cells = [cell for cell in row if cell and cell != "5"]
            assert any(all(cell in line for cell in cells) for line in printed.splitlines()), row


class _Client:
    @property
    def store(self) -> _Client:
        return self

    def read_ledgers(self, ledger_ids: Iterable[int]) -> Iterator[tuple[int, Versioned]]:
        return ((ledger_id, Versioned(metadata_codec.encode(metadata("b:1")), 0)) for ledger_id in ledger_ids)

    def segments(self, first: int, last: int | None) -> Iterator[Segment]:
        return segments()


@contextmanager
def _connected(uri: str, protocol: str) -> Iterator[_Client]:
    yield _Client()


def test_long_tables_are_cut_with_a_word() -> None:
    shown = Shown(table.html(table.Table(["#n"], ((number,) for number in range(table.ROWS_MAX + 1)))))
    assert len(shown.rows) == 1 + table.ROWS_MAX and f"only the first {table.ROWS_MAX} rows" in shown.texts[-1]
    assert "and more" not in table.html(table.Table(["#n"], ((number,) for number in range(table.ROWS_MAX))))


def test_long_cells_are_cut() -> None:
    found = table.Table(["text"], [("x" * table.CELL_MAX,), ("y" * (table.CELL_MAX + 1),)])
    assert Shown(table.html(found)).rows[1:] == [["x" * table.CELL_MAX], ["y" * table.CELL_MAX + " ..."]]


def test_showing_segments_takes_none_from_the_iteration() -> None:
    found = Segments(segments)
    next(found)
    assert len(Shown(found._repr_html_()).rows) == 1 + 3
    assert [segment.seq for segment in found] == [1, 2]


def test_the_cells_of_one_row_show_numbers_nothing_and_flags(capsys: pytest.CaptureFixture[str]) -> None:
    found = table.Table(["#n", "none", "yes", "text"], [(1234567, None, True, "a b")])
    assert Shown(table.html(found)).rows == [["n", "none", "yes", "text"], ["1,234,567", "-", "yes", "a b"]]
    say_table(*found)
    assert capsys.readouterr().out.split() == ["n", "none", "yes", "text", "1,234,567", "-", "yes", "a", "b"]


def test_clients_and_logs_show_what_they_know() -> None:
    store = MemoryStore("display")
    store.initialize_cluster()
    store.register_bookie("b:1", "127.0.0.1", 3181)
    with BookKeeper(ClientConfig("memory://x"), store) as client:
        log = client.create_log("events")
        client.log("events").set(retention=60)
        assert ["b:1", "writable"] in Shown(client._repr_html_()).rows
        shown = Shown(log._repr_html_())
        assert ["retention", "1m"] in shown.rows and ["log", "events"] in shown.rows
        log.delete()
        assert "events" in "".join(Shown(log._repr_html_()).texts)  # what is shown never fails
        closed = client
    assert repr(closed) == "<BookKeeper memory://x v2 closed>"
    assert "b:1" in closed._repr_html_()


def test_what_is_shown_of_a_client_names_no_file_of_a_secret(tmp_path: Path) -> None:
    """The URI of ``ClientConfig.shown_uri``, in representations and in the label of metrics."""
    (tmp_path / "secret").write_text("moss-3310")
    store = MemoryStore(uuid.uuid4().hex)
    store.initialize_cluster()
    options = f"bookie_user=ann&bookie_password_file={tmp_path / 'secret'}"
    with bk_core.connect(f"zk://h:2181/ledgers?{options}", store=store) as client:
        texts = [repr(client), client._repr_html_(), repr(client.ledgers()), client._session.counts.registry.of]
        texts.append(repr(Wish(client.config.uri, "web", b"", "r", False)))
    assert all("zk://h:2181/ledgers" in text and "secret" not in text and "bookie_user" not in text for text in texts), texts


class SilentStore:
    """A store that counts how often a list is read, and answers when it is let go."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.answers = threading.Event()
        self.answers.set()
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read_here(self, path: str) -> Any:
        self.reads += 1
        assert self.answers.wait(60)
        return self._store.read_here(path)


def test_a_cell_asks_once_and_does_not_wait_for_a_cluster_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = MemoryStore("silent")
    memory.initialize_cluster()
    store = SilentStore(memory)
    with BookKeeper(ClientConfig("memory://x"), store) as client:  # type: ignore[arg-type]
        log = client.create_log("events")
        store.reads = 0
        assert ["log", "events"] in Shown(log._repr_html_()).rows and store.reads == 1
        monkeypatch.setattr(showing, "SHOWN_S", 0.05)
        store.answers.clear()
        try:
            shown = Shown(log._repr_html_())  # it comes back while the store is still silent
        finally:
            store.answers.set()
        assert shown.texts == [
            repr(log),
            "The cluster did not answer within 0.05 s, so nothing is known of it now. Run the cell again later.",
        ]


def test_segments_that_come_from_a_silent_cluster_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "SHOWN_S", 0.05)
    answers = threading.Event()
    first = iter(segments())

    def begin() -> Iterator[Segment]:
        if threading.current_thread() is not threading.main_thread():
            assert answers.wait(60)
        return first

    found = Segments(begin)
    try:
        assert "did not answer within 0.05 s" in found._repr_html_()
    finally:
        answers.set()
    assert [segment.seq for segment in found] == [0, 1, 2]


def test_a_local_cluster_shows_its_processes() -> None:
    class Bookie:
        def __init__(self, bookie_id: str, running: bool) -> None:
            self.bookie_id, self.running = bookie_id, running

    cluster = LocalCluster.__new__(LocalCluster)
    vars(cluster).update(uri="zk://127.0.0.1:1/ledgers", _state={"kind": "embedded"}, directory=HOSTILE)
    vars(cluster).update(_bookies=[Bookie("b:1", True), Bookie("b:2", False)])
    shown = Shown(cluster._repr_html_())
    assert shown.rows[1:] == [["b:1", "running"], ["b:2", "stopped"]] and "<script>" in "".join(shown.texts)
    assert set(shown.tags) <= TAGS


def test_ids_have_no_commas_and_counts_have_some() -> None:
    """An id is pasted into the next command."""
    fragments = (Fragment(0, ("b:1",)), Fragment(1_000_000, ("b:1",)))
    closed = replace(metadata("b:1"), fragments=fragments, last_entry_id=1_234_567, length=7_654_321)
    place = {
        "ledgerId": 1_234,
        "fragment": 0,
        "firstEntryId": 0,
        "lastEntryId": 8,
        "position": 0,
        "bookie": "b:1",
        "entries": 9,
        "bytes": 1,
    }
    tables = [
        ledgers.ledgers([{"ledger": 1_234, **ledgers.summary(closed, storedBytes=None)}], 1_700_000_000_000),
        ledgers.ledger(closed, 1_234, storedBytes=None),
        ledgers.fragments(fragments),
        logs.segments([Segment(1_000, 2_000, 3_000, 4_000, 5_000, 6_000)]),
        copies.places([place | {"bytes": 1}]),
    ]
    told = [cell(value) for found in tables for row in found.rows for value in row]
    assert {"1234", "1234567", "1000000", "1000", "2000", "3000", "4000"} <= set(told)
    assert {one for one in told if "," in one} == {"7,654,321", "5,000", "6,000"}


def test_what_an_error_is_about_is_named_once() -> None:
    assert about("ledger 7", "it is away") == "ledger 7: it is away"
    assert about("ledger 7", BkError("ledger 7: it is away")) == "[BK-ERROR] ledger 7: it is away"
    assert about("ledger 7", "ledger 77 is away") == "ledger 7: ledger 77 is away"
    assert rest_about("ledger 7", BkError("ledger 7: it is away")) == "[BK-ERROR] it is away"
    assert rest_about("log 'a'", "log 'a': it is away") == "it is away" == rest_about("log 'a'", "it is away")


def test_a_log_is_shown_by_words() -> None:
    shown = dict(logs.properties(LogProperties(ensemble_size=5, retention_ms=86_400_000)).rows)
    assert (shown["E/Qw/Qa"], shown["retention"], shown["retention bytes"], shown["entry format"]) == ("5/3/2", "1d", "none", "raw")
    assert dict(logs.facts("a", {"condemned": [], "firstSeq": 1_000}).rows) == {"condemned ledgers": None, "first segment": "1000"}


def test_states_of_bookies_are_in_the_order_of_their_ids() -> None:
    assert ledgers.bookie_states(["c", "a"], ["b"], ["d", "a"]) == {"a": "writable", "b": "read-only", "c": "writable", "d": "down"}
    assert list(ledgers.bookie_states(["c", "a"], ["b"])) == ["a", "b", "c"]


def test_a_log_shows_its_columns_and_what_is_not_counted_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = schema_text("carrier STRING, delay INT")
    fresh = replace(info("events"), properties=LogProperties(schema=schema), rows=0, segments=1, live=1)
    assert fresh.columns == [("carrier", "STRING"), ("delay", "INT")]
    shown = Shown(fresh._repr_html_())
    assert shown.rows[-3:] == [["column", "type"], ["carrier", "STRING"], ["delay", "INT"]]
    assert ["segments", "1, of which 1 live: its rows are not counted yet"] in shown.rows
    assert not any("characters of Arrow" in text for text in shown.texts)
    assert replace(fresh, properties=LogProperties("raw")).columns == []
    monkeypatch.setattr("bk_core.client.log.info.columns_told", lambda schema: None)
    assert NO_PYARROW in "".join(Shown(fresh._repr_html_()).texts)


def test_what_a_store_deleted_is_told_by_what_became_of_it() -> None:
    shown = Shown(FileGcReport((1,), ((2, "away"),), is_gone=True)._repr_html_())
    assert shown.rows[1:] == [["ledger 1", "deleted", "-"], ["ledger 2", "could not be deleted", "away"]]
    assert shown.texts[-1] == "FileGcReport 1 deleted, 1 failed, 0 foreign, 0 imports, 0 finished, and the store is gone"


def test_the_places_of_entries_are_shown_and_those_that_are_many_are_cut(client: BookKeeper) -> None:
    for ledger_id in range(20):
        client.store.create_ledger(ledger_id, metadata_codec.encode(metadata("b:1")))
    shown = Shown(client.ledgers().copies()._repr_html_())
    assert shown.rows[0][0] == "ledger" and len(shown.rows) == 1 + SHOWN_ROWS
    assert shown.texts[-1] == f"... and more: only the first {SHOWN_ROWS} are shown"
    few = Shown(client.ledgers().limit(1).copies()._repr_html_())
    assert few.rows[1:] == [["0", "0", "0-8", "0", "b:1", "9", "414"], ["0", "1", "9-9", "0", "b:1", "1", "46"]]
    assert few.texts[-1] == "2 rows"


def test_a_log_is_short() -> None:
    assert repr(info("events")) == "<LogInfo events: 3 segments, 1,000 rows, 5,000 bytes, writer unknown>"
    fresh = replace(info("events"), rows=0, bytes=0, segments=1, live=1, writer=None)
    assert repr(fresh) == "<LogInfo events: 1 segment (1 live), 0 committed rows, 0 committed bytes>"
    assert repr(LogProperties()) == "<LogProperties raw entries, quorums 3/3/2>"
    assert repr(LogProperties("raw", "x" * 5000)) == "<LogProperties raw entries, quorums 3/3/2, schema of 5,000 characters>"
    assert repr(run_of(b"ab", b"c")) == "<EntryRun 7..8, 2 entries, 3 bytes>"
    assert repr(run_of(b"a")) == "<EntryRun 7..7, 1 entry, 1 byte>"
