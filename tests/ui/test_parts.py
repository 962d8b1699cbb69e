"""The parts of the page alone: its guard, its HTML, its index and its events."""

from __future__ import annotations

import os
import pickle
import stat
from array import array
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from bk_core.client.doctor.findings import Finding
from bk_core.errors import InvalidArgumentError, MetadataUnavailableError
from bk_core.metadata import open_store
from bk_core.metadata.store import BookieView, Versioned
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.metadata_codec import encode
from bk_core.ui.answers import KEPT_MAX, Answers
from bk_core.ui.events import EVENTS_MAX, ClusterEvent, EventLog, of_bookies, of_ids, of_metadata
from bk_core.ui.guard import Token, cookie_value, host_of, is_own_host, token_of_file
from bk_core.ui.index import Filter, LedgerIndex
from bk_core.ui.layout import amount
from bk_core.ui.markup import Markup, joined, table, tag, text
from bk_core.ui.pages import examinations
from bk_core.ui.pages.ledger import hexadecimal
from bk_core.ui.pages.ledgers import number
from bk_core.ui.watching import Watcher

OPEN = LedgerMetadata(3, 2, 2, LedgerState.OPEN, (Fragment(0, ("b1:1", "b2:1", "b3:1")),))
CLOSED = OPEN.closed(9, 100)

# --- looks ---------------------------------------------------------------------------------------------------------------


def test_a_change_that_could_not_be_read_is_read_at_the_next_look(request: pytest.FixtureRequest) -> None:
    """A ledger that has a watch is looked at when that fires, and in no turn."""
    store = open_store(f"memory://{request.node.name}")
    failures: list[Exception] = []

    def read_ledger(ledger_id: int) -> Versioned:
        if failures:
            raise failures.pop()
        return store.read_ledger(ledger_id)

    reached = SimpleNamespace(**{name: getattr(store, name) for name in ("cluster_id", "cookies", "is_connected", "watch_ledger")})
    reached.read_ledger = read_ledger
    client: Any = SimpleNamespace(store=reached, bookies=store.bookies, logs=lambda: (), list_ledgers=store.list_ledgers)
    with closing(store):
        store.initialize_cluster()
        version = store.create_ledger(0, encode(OPEN))
        watcher = Watcher(client, look_s=0.0)
        for _ in range(3):
            watcher._turn()
        assert not watcher._changed and [one.state for one in watcher._open.values()] == [LedgerState.OPEN]
        store.write_ledger(0, encode(CLOSED), version)
        failures.append(MetadataUnavailableError("a server is started again"))
        watcher._turn()
        assert not failures and watcher._open
        watcher._turn()
        assert not watcher._open and "CLOSED" in " ".join(one.said for one in watcher.events.newest(ledger=0)).upper()


# --- guard ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost", "localhost"), ("LOCALHOST:80", "localhost"), ("127.0.0.1:8642", "127.0.0.1"), ("[::1]:8642", "::1"), ("[::1]", "::1"),
        ("a.example.:1", "a.example"), ("", ""), ("a b", ""), ("user@localhost", ""), ("localhost:123456", ""), ("[::1", ""), ("a:b:c", ""),
        ("localhost/x", ""),
    ],
)  # fmt: skip
def test_the_host_of_a_header(header: str, host: str) -> None:
    assert host_of(header) == host


@pytest.mark.parametrize(
    ("header", "bound", "names", "own"),
    [
        ("127.0.0.1:99", "127.0.0.1", (), True),
        ("localhost:99", "127.0.0.1", (), True),
        ("[::1]:99", "::1", (), True),
        ("rebound.example:99", "127.0.0.1", (), False),
        ("192.0.2.7:99", "127.0.0.1", (), False),
        ("192.0.2.7:99", "0.0.0.0", (), True),
        ("rebound.example", "0.0.0.0", (), False),
        ("bk.example", "0.0.0.0", ("bk.example",), True),
        ("BK.example:443", "127.0.0.1", ("bk.example",), True),
        ("box.example", "box.example", (), True),
        ("127.0.0.1.rebound.example", "127.0.0.1", (), False),
        ("localhost.rebound.example", "127.0.0.1", (), False),
        (None, "127.0.0.1", (), False),
    ],
)
def test_the_names_of_the_page(header: str | None, bound: str, names: tuple[str, ...], own: bool) -> None:
    assert is_own_host(header, bound, names) is own


def test_a_token_is_shown_by_nothing_but_reveal() -> None:
    token = Token()
    assert token.matches(token.reveal()) and not token.matches(token.reveal()[:-1]) and not token.matches("\udcff")
    assert token.reveal() not in f"{token!r} {token}"
    assert len(token.reveal()) >= 43 and token.reveal() != Token().reveal()
    with pytest.raises(TypeError):
        pickle.dumps(token)


def test_a_token_file_is_made_for_its_user_alone_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made = token_of_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert token_of_file(path).matches(made.reveal())


@pytest.mark.parametrize(("mode", "content", "said"), [
    (0o644, "x" * 40, "others may read"), (0o600, "short", "holds no token"),
    (0o600, "a b" * 20, "holds no token"), (0o600, "", "holds no token"),
])  # fmt: skip
def test_a_token_file_that_is_none_is_refused(tmp_path: Path, mode: int, content: str, said: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    os.chmod(path, mode)
    with pytest.raises(InvalidArgumentError, match=said) as caught:
        token_of_file(path)
    assert not content or content not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "value"),
    [(None, ""), ("", ""), ("bk-ui-1=abc", "abc"), ("a=b; bk-ui-1=abc; c=d", "abc"), ("bk-ui-2=abc", ""), ("\x01;;==", "")],
)
def test_the_value_of_a_cookie(header: str | None, value: str) -> None:
    assert cookie_value(header, "bk-ui-1") == value


# --- HTML ----------------------------------------------------------------------------------------------------------------


def test_whatever_is_no_markup_is_escaped() -> None:
    assert tag("p", "<b>", 1234, None, True, title='"><b>', class_="x", hidden=False) == (
        '<p title="&quot;&gt;&lt;b&gt;" class="x">&lt;b&gt;1,234yes</p>'
    )
    assert tag("p", tag("b", "x"), Markup("<i>y</i>")) == "<p><b>x</b><i>y</i></p>"
    assert text("a\u202eb\x07\n\u2028") == "a\\u202eb\\x07\\n\\u2028"
    assert 'title="\\u202e\\x00"' in tag("p", title="\u202e\x00")
    assert "<script" not in table(["<script>"], [["<script>"]], caption="<script>", keys=["<script>"])


def test_bytes_are_shown_in_hexadecimal() -> None:
    assert hexadecimal(b"<a>\x00" + bytes(range(14))).splitlines() == [
        "00000000  3c 61 3e 00 00 01 02 03 04 05 06 07 08 09 0a 0b  &lt;a&gt;.............",
        "00000010  0c 0d                                            ..",
    ]


@pytest.mark.parametrize(
    ("count", "told"),
    [(None, None), (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB"), (10**13, "10.0 TB")],
)
def test_amounts_of_bytes(count: int | None, told: str | None) -> None:
    assert amount(count) == told


@pytest.mark.parametrize(
    ("words", "value"),
    [("0", 0), ("17", 17), (str(2**63 - 1), 2**63 - 1), (str(2**63), None), ("-1", None), ("\u0663", None), ("1" * 5000, None), ("", None)],
)
def test_numbers_of_addresses(words: str, value: int | None) -> None:
    assert number(words) == value


# --- index ---------------------------------------------------------------------------------------------------------------


def index_of(*ids: int) -> LedgerIndex:
    index = LedgerIndex()
    index.replace(array("q", ids))
    return index


def test_ids_that_came_and_went() -> None:
    index = index_of(1, 2, 5, 9)
    assert index.replace(array("q", [0, 2, 3, 9, 12])) == ([0, 3, 12], [1, 5])
    assert index.replace(array("q")) == ([], [0, 2, 3, 9, 12])
    assert index.replace(array("q", [7])) == ([7], [])


def test_parts_of_the_list_lie_end_to_end() -> None:
    index = index_of(*range(0, 100, 2))
    assert index.older(Filter(), None, 3) == [98, 96, 94]
    assert index.older(Filter(), 94, 3) == [92, 90, 88]
    assert index.newer(Filter(), 92, 3) == [98, 96, 94]
    assert index.newer(Filter(), 94, 3) == [98, 96]
    assert index.older(Filter(most_id=51), None, 2) == [50, 48]
    assert index.newer(Filter(most_id=51), 46, 5) == [50, 48]
    assert index.older(Filter(), 0, 3) == [] == index.newer(Filter(), 98, 3)


def test_filters_take_what_was_read() -> None:
    index = index_of(1, 2, 3, 4)
    index.learn(1, CLOSED)
    index.learn(2, replace(OPEN, custom={"log": b"events"}))
    index.learn(3, replace(CLOSED, fragments=(*CLOSED.fragments, Fragment(5, ("b1:1", "b2:1", "b4:1")))))
    assert index.older(Filter(state="CLOSED"), None, 9) == [3, 1]
    assert index.older(Filter(bookie="b4:1"), None, 9) == [3]
    assert index.older(Filter(log="events"), None, 9) == [2]
    assert index.older(Filter(state="CLOSED", bookie="b3:1", most_id=2), None, 9) == [1]
    assert index.states() == {"CLOSED": 2, "OPEN": 1, "?": 1} and index.unread(9) == [4]
    index.learn(4, None)
    assert index.states()["UNREADABLE"] == 1 and index.unread(9) == []
    index.replace(array("q", [2, 4]))
    assert index.states() == {"OPEN": 1, "UNREADABLE": 1} and index.known == 2


def test_ledgers_of_which_no_bookie_has_a_copy() -> None:
    """A striped ledger loses entries only with a whole write set that is gone; write sets without entries lose none."""
    index = index_of(1, 2, 3, 4, 5)
    striped = replace(CLOSED, write_quorum_size=1, ack_quorum_size=1)
    index.learn(1, CLOSED)
    index.learn(2, striped)
    index.learn(3, replace(striped, last_entry_id=0))
    index.learn(4, replace(OPEN, fragments=(*OPEN.fragments, Fragment(5, ("b3:1", "b4:1", "b5:1")))))
    index.learn(5, None)
    assert index.without_copy({"b1:1", "b2:1", "b3:1", "b4:1", "b5:1"}) == []
    assert index.without_copy({"b1:1", "b3:1", "b4:1"}) == [2]
    assert index.without_copy({"b2:1", "b3:1", "b4:1"}) == [2, 3]
    assert index.without_copy({"b4:1"}) == [1, 2, 3, 4]
    assert index.without_copy(set()) == [1, 2, 3, 4]


def test_filters_count() -> None:
    index = index_of(1, 2, 3)
    index.learn(1, CLOSED)
    index.learn(2, OPEN)
    index.learn(3, CLOSED)
    assert index.count(Filter()) == 3 and index.count(Filter(state="CLOSED")) == 2 and index.count(Filter(state="CLOSED", most_id=2)) == 1


def test_the_index_does_not_grow_with_ledgers_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bk_core.ui.index.SPARE", 3)
    index = index_of(0)
    for one in range(100):
        index.learn(one, replace(OPEN, custom={"log": b"log %d" % one}))
        index.replace(array("q", [one, one + 1]))
    assert len(index._shared) <= index.known + 3
    assert index.older(Filter(log="log 99"), None, 9) == [99]


# --- events --------------------------------------------------------------------------------------------------------------


def said(events: object) -> list[str]:
    return [one.said for one in events]  # type: ignore[attr-defined]


def test_bookies_that_come_go_and_turn_read_only() -> None:
    before, now = BookieView(("a", "b"), ("c",)), BookieView(("a", "c"), ("d",))
    assert said(of_bookies(before, now)) == [
        "bookie b is down: it is not registered any more", "bookie c is writable now", "bookie d is up, read-only",
    ]  # fmt: skip
    assert said(of_bookies(now, now)) == []


def test_many_ledgers_have_one_line() -> None:
    assert said(of_ids([1, 2], [3])) == ["ledger 1 was created", "ledger 2 was created", "ledger 3 was deleted"]
    assert said(of_ids(list(range(1000)), [])) == ["1,000 ledgers created, 0 to 999"]


def test_what_happens_to_a_ledger() -> None:
    changed = OPEN.with_ensemble(7, ("b1:1", "b4:1", "b3:1"))
    assert said(of_metadata(5, OPEN, OPEN)) == [] == said(of_metadata(5, None, OPEN))
    assert said(of_metadata(5, OPEN, changed)) == ["ledger 5: from entry 7 on b4:1 in place of b2:1"]
    assert said(of_metadata(5, OPEN, OPEN.in_recovery())) == ["ledger 5 is fenced and being recovered"]
    assert said(of_metadata(5, OPEN.in_recovery(), CLOSED)) == ["ledger 5 was closed at entry 9, 100 bytes, after its recovery"]
    assert said(of_metadata(5, OPEN, OPEN.closed(-1, 0))) == ["ledger 5 was closed without entries"]
    replaced = OPEN.with_ensemble(0, ("b9:1", "b2:1", "b3:1"))  # before its first entry
    assert said(of_metadata(5, OPEN, replaced)) == ["ledger 5: from entry 0 on b9:1 in place of b1:1"]
    assert [one.kind for one in of_metadata(5, OPEN, replace(changed, state=LedgerState.IN_RECOVERY))] == ["ensemble", "recovery"]


def test_the_newest_events_are_kept() -> None:
    events = EventLog()
    events.add((ClusterEvent("ledger", f"{n}", ledger=n) for n in range(EVENTS_MAX + 5)), 1000)
    events.add([ClusterEvent("bookie", "b")], 2000)
    assert said(events.newest(3)) == ["b", f"{EVENTS_MAX + 4}", f"{EVENTS_MAX + 3}"]
    assert len(events.newest()) == EVENTS_MAX and events.total == EVENTS_MAX + 6
    assert said(events.newest(kind="bookie")) == ["b"] and said(events.newest(ledger=700)) == ["700"]
    assert events.newest(1)[0].number == EVENTS_MAX + 6 and events.newest(1)[0].at_ms == 2000


# --- answers -------------------------------------------------------------------------------------------------------------


def test_an_answer_is_kept_and_a_slow_one_is_not_waited_for() -> None:
    answers, asked, go = Answers(), [], Event()

    def slow() -> int:
        asked.append(1)
        assert go.wait(60)
        return len(asked)

    try:
        first = answers.get("key", slow, wait_s=0.01)
        assert first.value is None and first.is_pending and first.problem is None
        assert answers.get("key", slow, wait_s=0.01).is_pending and asked == [1]  # it is under way, and not asked again
        go.set()
        assert answers.get("key", slow, wait_s=60).value == 1
        assert answers.get("key", slow, fresh_s=60).value == 1
        assert asked == [1]
    finally:
        answers.close()


def test_a_failed_question_keeps_the_last_answer_and_says_why() -> None:
    silent: list[str] = []
    answers = Answers(lambda: silent[0] if silent else None)

    def fails() -> int:
        raise MetadataUnavailableError("nobody is there")

    try:
        assert answers.get("a", lambda: 7, wait_s=60).value == 7
        failed = answers.get("a", fails, fresh_s=0, wait_s=60)
        while failed.is_pending:
            failed = answers.get("a", fails, fresh_s=60, wait_s=60)
        assert failed.value == 7 and "nobody is there" in (failed.problem or "")
        silent.append("it is known to be silent")
        told = answers.get("b", fails, wait_s=60)
        assert told.value is None and told.problem == "it is known to be silent" and not told.is_pending
        for key in range(KEPT_MAX + 10):
            answers.get(key, fails)
        assert len(answers._kept) == KEPT_MAX
    finally:
        answers.close()


def test_a_command_breaks_between_its_words_alone() -> None:
    """Browsers break behind hyphens as well, and a command is there to be copied."""
    cells = examinations._finding(
        Finding("bookie-down", "bookie b:1 is down, b:12 is not", "wait", "bk bookie <x> --yes", bookies=("b:1",))
    )
    page = joined(cells)
    words = [f'<span class="whole">{word}</span>' for word in ("bookie-down", "bk", "bookie", "&lt;x&gt;", "--yes")]
    assert words[0] in page and f"<code>{' '.join(words[1:])}</code>" in page
    assert ">b:1</a> is down, b:12 is not" in page and page.count("<a ") == 1
