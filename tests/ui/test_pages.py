"""The pages of a real cluster: what they show, what they escape, and what they keep to themselves."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import pytest

import bk_core
from bk_core.client.inspect import found_ledgers
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.ui.index import LedgerIndex
from bk_core.ui.watching import Watcher
from tests.ui.conftest import BIDI, HOSTILE, HOSTILE_LOG, PASSWORD, Got, Visitor, World, served

VOID = {"meta", "link", "input", "br", "hr", "img"}
TAGS = {
    "html", "head", "meta", "title", "link", "script", "noscript", "body", "a", "header", "nav", "form", "label", "input", "div", "main",
    "h1", "h2", "h3", "p", "section", "dl", "dt", "dd", "span", "time", "table", "caption", "thead", "tbody", "tr", "th", "td", "ul", "li",
    "button", "footer", "dialog", "kbd", "code", "pre", "figure", "figcaption", "svg", "rect", "meter", "select", "option",
}  # fmt: skip


class Parsed(HTMLParser):
    """A page as a browser reads it. A fault is an element that is none of ours, is not closed, or has a script in it."""

    def __init__(self, body: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.feed(body)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, tag
        given = dict(attrs)
        assert len(given) == len(attrs) and not any(name.startswith("on") or name == "style" for name in given), attrs
        assert tag != "script" or given.get("src") == "/static/ui.js"
        self.links += [given["href"] or ""] if tag == "a" else []
        self.ids += [given["id"] or ""] if "id" in given else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def sound(got: Got) -> Parsed:
    assert got.body.startswith("<!doctype html>") and got.headers["content-type"] == "text/html; charset=utf-8"
    parsed = Parsed(got.body)
    assert len(set(parsed.ids)) == len(parsed.ids)
    assert PASSWORD.decode() not in got.body
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", got.body)
    return parsed


def test_every_page_is_sound_and_every_link_leads_somewhere(world: World, visitor: Visitor) -> None:
    """From the first page on, whatever can be reached by links."""
    waiting, seen = ["/", "/find?q=e", "/nothing/here"], set[str]()
    while waiting:
        path = waiting.pop()
        shape = re.sub(r"\d+", "N", path)
        if path in seen or sum(re.sub(r"\d+", "N", one) == shape for one in seen) >= 6:
            continue
        seen.add(path)
        got = visitor.settled(path)
        assert got.status == (404 if path == "/nothing/here" else 200), path
        waiting += [link for link in sound(got).links if not link.startswith("#")]
    shapes = {re.sub(r"\d+", "N", path.partition("?")[0]) for path in seen}
    assert {"/", "/ledgers", "/ledgers/N", "/ledgers/N/entries/N", "/logs", "/logs/events", "/queries", "/events"} <= shapes


def test_payloads_and_custom_metadata_of_others_are_text(world: World, visitor: Visitor) -> None:
    got = visitor.settled(f"/ledgers/{world.hostile}")
    sound(got)
    assert HOSTILE not in got.body and HOSTILE in got.text  # the payload, the name and the value
    assert got.body.count("&lt;script&gt;alert(1)") >= 3
    assert "0x001b5b33316dff" in got.text and "plain words" in got.text and "safe\\u202e\\x07txt.exe" in got.text
    entry = visitor.settled(f"/ledgers/{world.hostile}/entries/1")
    sound(entry)
    copies = entry.body.partition('id="copies"')[2].partition("</section>")[0]
    assert all(bookie in copies for bookie in world.cluster.bookie_ids) and copies.count(">ok<") == 3, "which bookie has a copy"
    assert "safe\\u202e\\x07txt.exe" in entry.text and "73 61 66 65 e2 80 ae 07" in entry.text and BIDI not in entry.body


def test_a_node_whose_name_no_log_can_have_is_text_wherever_it_is_told(world: World, visitor: Visitor) -> None:
    """It is not among the logs. The page of its name, and that of what is wrong here, tell of it."""
    for path in ("/logs", "/"):
        got = visitor.settled(path)
        sound(got)
        assert HOSTILE_LOG not in got.text and HOSTILE_LOG not in got.body and "events" in got.text
    got = visitor.settled(f"/logs/{quote(HOSTILE_LOG, safe='')}")
    sound(got)
    assert HOSTILE_LOG in got.text and HOSTILE_LOG not in got.body


@pytest.mark.parametrize(
    "place",
    [
        *("/find?q={}", "/ledgers?log={}", "/ledgers?bookie={}", "/ledgers?state={}", "/ledgers?id={}"),
        *("/logs?name={}", "/events?kind={}", "/logs/{}", "/ledgers/{}", "/{}"),
    ],
)
def test_what_is_asked_for_comes_back_as_text(world: World, visitor: Visitor, place: str) -> None:
    for words in (HOSTILE, BIDI, "\x00", "%ff", "é" * 500):
        got = visitor.settled(place.format(quote(words, safe="")))
        sound(got)
        assert got.status in (200, 404) and "alert(1)</script>" not in got.body


def test_a_ledger_behind_a_password(world: World, visitor: Visitor) -> None:
    path = f"/ledgers/{world.protected}"
    got = visitor.settled(path)
    assert "password yes" in got.text and "BK-PASSWORD" in got.text and "words behind" not in got.text
    sound(visitor.settled(f"{path}/entries/0"))
    with bk_core.connect(world.cluster.uri) as client, served(client, PASSWORD) as (_, other):
        opened = other.settled(path)
        sound(opened)
        assert "words behind a password" in opened.text
    with bk_core.connect(world.cluster.uri) as client, served(client, b"another one") as (_, other):
        refused = other.settled(path)
        assert "BK-PASSWORD" in refused.text and "words behind" not in refused.text and "another one" not in refused.body


@pytest.mark.parametrize("path", ["/", "/ledgers", "/doctor", "/no-such-page"])
def test_no_page_shows_the_files_of_secrets(world: World, tmp_path: Path, path: str) -> None:
    """The options of a URI name files of keys and passwords: what is before them says which cluster it is."""
    for name in ("key", "password"):
        (tmp_path / name).write_text("moss")
    options = f"session_timeout_ms=8000&user=ann&auth=digest&password_file={tmp_path / 'password'}"
    with bk_core.connect(f"{world.cluster.uri}?{options}") as client, served(client) as (_, visitor):
        got = visitor.settled(path)
        sound(got)
        assert str(tmp_path) not in got.body and "password_file" not in got.body and "session_timeout_ms" not in got.body
        assert f" - {world.cluster.uri.partition('://')[2]}</title>" in got.body and world.cluster.uri in got.text


def test_looking_at_an_open_ledger_neither_fences_nor_closes_it(world: World, visitor: Visitor) -> None:
    got = visitor.settled(f"/ledgers/{world.open}")
    assert "OPEN" in got.text and "confirmed so far" in got.text and "open 28" in got.text
    (found,) = found_ledgers(world.client, [world.open])
    assert found.metadata is not None and found.metadata.state is LedgerState.OPEN


def test_replicas_are_shown_as_bookies_have_them(world: World, visitor: Visitor) -> None:
    got = visitor.settled(f"/ledgers/{world.many[0]}")
    assert got.body.count('class="dot ok" title="127.0.0.1:') == 2  # the legend's have no title
    striped = visitor.settled(f"/ledgers/{world.hostile}?first=25")
    assert "25 to 29 of 0 to 29" in striped.text and striped.body.count('class="dot ok" title="127.0.0.1:') == 15
    assert "lies beyond its end" in visitor.settled(f"/ledgers/{world.hostile}?first=99").text


def test_a_list_that_is_not_there_yet_is_no_empty_one(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """To list 100,000 ledgers takes a second or more, and bookies and logs are known before."""
    monkeypatch.setattr(Watcher, "has_listed", False)
    monkeypatch.setattr(LedgerIndex, "older", lambda *_: [])
    ledgers, overview = visitor.get("/ledgers"), visitor.get("/")
    for got in (ledgers, overview):
        sound(got)
        assert "data-pending" in got.body
    assert "Listing all ledgers" in ledgers.text and "There is no ledger" not in ledgers.text
    assert "being listed" in overview.text
    monkeypatch.undo()
    assert "Listing all ledgers" not in visitor.settled("/ledgers").text


def test_the_doctor_and_an_xray_look_when_they_are_asked(world: World, visitor: Visitor) -> None:
    doctor = visitor.settled("/doctor")
    sound(doctor)
    assert f"cluster {world.client.store.cluster_id()}: 3 bookies" in doctor.text
    xray = visitor.settled(f"/ledgers/{world.hostile}/xray")
    sound(xray)
    assert f"ledger {world.hostile}: 90 copies looked at" in xray.text and "none in need of repair" in xray.text
    assert all(bookie in xray.text for bookie in world.cluster.bookie_ids)
    assert "\n\u2588 there, and read\n" in xray.body  # each mark of the legend has its line
    assert "BK-NO-LEDGER" in visitor.settled("/ledgers/987654/xray").text


def test_ledgers_by_part(world: World, visitor: Visitor) -> None:
    visitor.until("/ledgers?state=OPEN", lambda got: "not read yet" not in got.text)
    seen: list[str] = []
    path = "/ledgers"
    while path:
        got = visitor.settled(path)
        seen += re.findall(r'data-key="(\d+)"', got.body)
        path = next((link for link in sound(got).links if "before=" in link), "") if 'rel="next"' in got.body else ""
        if not re.findall(r'data-key="(\d+)"', got.body):
            break
    assert list(map(int, seen)) == sorted(world.client.list_ledgers(), reverse=True)
    second = visitor.settled(f"/ledgers?before={seen[49]}")
    back = next(link for link in sound(second).links if "after=" in link)
    assert re.findall(r'data-key="(\d+)"', visitor.settled(back).body) == seen[:50]


def test_ledgers_by_what_they_are(world: World, visitor: Visitor) -> None:
    visitor.until("/ledgers?state=OPEN", lambda got: "not read yet" not in got.text)

    def keys(query: str) -> set[int]:
        return set(map(int, re.findall(r'data-key="(\d+)"', visitor.settled(f"/ledgers?{query}").body)))

    assert world.open in keys("state=OPEN") and not keys("state=OPEN") & set(world.many)
    assert world.many[-1] in keys("state=CLOSED") and world.open not in keys("state=CLOSED")
    of_log = keys(f"log={quote(HOSTILE_LOG)}")
    assert of_log and all(world.client.ledger_metadata(one).custom["log"] == HOSTILE_LOG.encode() for one in of_log)
    bookie = world.cluster.bookie_ids[0]
    assert all(bookie in fragment.ensemble for one in keys(f"bookie={bookie}") for fragment in world.client.ledger_metadata(one).fragments)
    assert max(keys("id=5")) == 5 and keys("state=CLOSED&log=nothing") == set()
    everything = f"{len(list(world.client.list_ledgers()))} ledgers in all"
    assert f"{world.open}, 1 that meets the conditions; {everything}" in visitor.settled(f"/ledgers?id={world.open}&state=OPEN").text
    assert f", {everything}" in visitor.settled("/ledgers").text and "conditions" not in visitor.settled("/ledgers").text
    assert "No ledger meets these conditions." in visitor.settled("/ledgers?log=nothing").text


def test_queries_with_their_lag(world: World, visitor: Visitor) -> None:
    got = visitor.settled("/queries")
    sound(got)
    # four of ten rows were read: six rows and their bytes are behind, for some seconds; batch 3 is committed, 4 is planned
    assert re.search(r"bk://orders/by-carrier events 6 30 B \d+[smh] 3 4 ", got.text), got.text
    assert "has no file in a folder offsets" not in got.text and "BK-PASSWORD" in got.text  # a store with a password


def test_what_is_not_there(world: World, visitor: Visitor) -> None:
    for path in (
        "/ledgers/987654",
        f"/ledgers/{2**63 - 1}",
        "/logs/nothing",
        "/ledgers/x",
        "/static/../site.py",
        "/static/secret",
        "/ledgers/1/entries/x",
    ):
        got = visitor.settled(path)
        assert got.status == 404, path
        sound(got)
    beyond = visitor.settled(f"/ledgers/{world.many[0]}/entries/7")
    assert "There is no such entry" in beyond.text and 'id="copies"' not in beyond.body


def test_search(world: World, visitor: Visitor) -> None:
    assert visitor.get("/find?q=12").headers["location"] == "/ledgers/12"
    assert visitor.get("/find?q=events").headers["location"] == "/logs/events"
    found = visitor.get("/find?q=EXTRA")
    assert found.status == 200 and "an-extraordinarily-long-name" in found.text
    assert world.cluster.bookie_ids[0] in visitor.get(f"/find?q={world.cluster.bookie_ids[0][:9]}").text
    assert visitor.get("/find?q=nobody-has-this").status == 404


def test_static_files(visitor: Visitor) -> None:
    kinds = {
        "/static/ui.css": "text/css",
        "/static/ui.js": "text/javascript",
        "/static/icon.svg": "image/svg+xml",
        "/favicon.ico": "image/svg+xml",
    }
    for path, kind in kinds.items():
        got = visitor.get(path)
        assert got.status == 200 and got.headers["content-type"].startswith(kind)
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|eval\(|innerHTML *=[^=]", got.body)
