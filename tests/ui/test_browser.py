"""The page in a real browser: dark and light, narrow and wide, by keyboard, without JavaScript, and when what it shows goes away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import bk_core
from bk_core.ui.guard import Token
from bk_core.ui.server import PageServer
from bk_core.ui.site import Site
from tests.ui.browser import Browser, find_browser
from tests.ui.conftest import HOSTILE, Visitor, World

WIDTHS = {"wide": 1600, "usual": 1200, "narrow": 400}
TOO_WIDE = """[document.documentElement.scrollWidth, ...[...document.querySelectorAll("body *")]
  .filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest(".scroll, pre"))
  .slice(0, 3).map(e => `${e.tagName}.${e.className}: ${e.textContent.slice(0, 40)}`)]"""
CONTRAST = """(() => {
  const parse = c => c.match(/[\\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = c.map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b; };
  const paper = e => { for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    if (!e.checkVisibility() || e.closest(".unseen, .off, option")) continue;
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(paper(e))].sort((x, y) => y - x);
    const ratio = (a + .05) / (b + .05);
    if (ratio < 4.5) found.push(`${e.tagName}.${e.className} ${ratio.toFixed(2)}: ${e.textContent.slice(0, 40)}`);
  }
  return found;
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    path = find_browser()
    assert path is not None  # conftest.py leaves this module out otherwise
    with Browser(path, tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def page(browser: Browser, visitor: Visitor) -> Iterator[Browser]:
    """The browser, with the cookie of the page, in a window as usual. No page may log an error."""
    browser.scripts(True)
    browser.window(1200)
    browser.go(visitor.server.open_url)
    browser.problems.clear()
    yield browser
    assert browser.problems == []


def base(visitor: Visitor) -> str:
    return visitor.server.url.rstrip("/")


def paths(world: World) -> list[str]:
    ledger = f"/ledgers/{world.hostile}"
    return [
        "/",
        "/ledgers",
        ledger,
        f"{ledger}/entries/0",
        f"/ledgers/{world.open}",
        "/logs",
        "/logs/events",
        "/queries",
        "/doctor",
        f"{ledger}/xray",
        "/events",
        "/find?q=e",
    ]


def test_the_token_is_not_in_the_address(page: Browser, visitor: Visitor) -> None:
    assert page.run("location.href") == f"{base(visitor)}/"
    assert page.run("document.cookie") == ""  # no script can read it
    assert page.run("performance.getEntriesByType('resource').every(e => e.name.startsWith(location.origin))")


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, pytest.param(True, marks=pytest.mark.deep)], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_pages_fit_and_can_be_read(page: Browser, visitor: Visitor, world: World, width: int, dark: bool) -> None:
    page.window(width, dark=dark)
    for path in paths(world):
        page.go(f"{base(visitor)}{path}")
        page.until("document.querySelector('[data-pending]') === null")
        wide, *culprits = page.run(TOO_WIDE)
        assert wide <= width and not culprits, (path, wide, culprits)
        assert page.run(CONTRAST) == [], path
        if width == WIDTHS["narrow"]:
            assert page.run("[...document.querySelectorAll('.rows td')].every(cell => cell.clientWidth > 250 || !cell.clientWidth)"), path
        paper = page.run("getComputedStyle(document.documentElement).backgroundColor")
        assert (sum(map(int, paper.strip("rgb()").split(","))) < 200) is dark
        assert page.run("document.querySelectorAll('h1').length") == 1
        assert page.run("[...document.querySelectorAll('input, select')].every(e => e.labels.length > 0)")


SPLIT = """[...document.querySelectorAll(".rows .id")].filter(e => e.textContent.length < 25
  && e.offsetHeight > 1.6 * parseFloat(getComputedStyle(e).lineHeight)).map(e => e.textContent)"""


@pytest.mark.parametrize("width", [1600, 1200])
def test_short_names_stay_in_one_piece(page: Browser, visitor: Visitor, world: World, width: int) -> None:
    page.window(width)
    for path in ("/queries", "/events", "/ledgers", "/"):
        page.go(f"{base(visitor)}{path}")
        page.until("document.querySelector('[data-pending]') === null")
        assert page.run("document.querySelectorAll('.rows .id').length > 0") or path == "/events"
        assert page.run(SPLIT) == [], path


def test_hostile_payloads_stay_text(page: Browser, visitor: Visitor, world: World) -> None:
    page.go(f"{base(visitor)}/ledgers/{world.hostile}")
    page.until("document.querySelector('[data-pending]') === null")
    assert HOSTILE in page.run("document.getElementById('entries').innerText")
    assert page.run("document.querySelectorAll('main script, main img').length") == 0
    page.key("r")  # and when the script puts it in again
    page.until("document.getElementById('refreshing').textContent === 'live'")
    assert page.run("document.querySelectorAll('main script, main img').length") == 0


def test_the_content_policy_stops_a_script_in_the_page(browser: Browser, page: Browser) -> None:
    page.run("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))")
    page.run("document.body.append(Object.assign(document.createElement('img'), {src: 'http://127.0.0.1:1/x'}))")
    page.until("true")
    assert page.run("typeof window.ran") == "undefined"
    assert any("Content Security Policy" in problem for problem in browser.problems)
    browser.problems.clear()


def arrived(page: Browser, condition: str) -> None:
    """Wait for a page that is there with its script, which takes the keys."""
    page.until(f"document.readyState === 'complete' && ({condition})")


def test_keys(page: Browser, visitor: Visitor, world: World) -> None:
    page.key("g", "l")
    arrived(page, "document.title.startsWith('Ledgers') && document.querySelectorAll('tr[data-key]').length === 50")
    chosen = "document.querySelector('tr.chosen')?.dataset.key"
    first, second, third = page.run("[...document.querySelectorAll('tr[data-key]')].slice(0, 3).map(row => row.dataset.key)")
    page.key("j")
    assert page.run(chosen) == first
    page.key("j", "j")
    assert page.run(chosen) == third
    page.key("k")
    assert page.run(chosen) == second
    page.key("r")  # a refresh leaves it chosen
    arrived(page, f"{chosen} === '{second}'")
    page.key("n")
    arrived(page, "location.search.startsWith('?before=')")
    page.key("b")
    arrived(page, f"document.querySelector('tr[data-key]')?.dataset.key === '{first}'")
    page.key("j", "Enter")
    arrived(page, f"document.title.startsWith('Ledger {first}')")
    page.key("/")
    assert page.run("document.activeElement.id") == "search"
    page.key("e", "v", "j")  # letters go into the field, and Escape leaves it
    assert page.run("document.getElementById('search').value") == "evj"
    page.key("Escape")
    assert page.run("document.activeElement.tagName") == "BODY"
    page.key("/")
    page.run("document.getElementById('search').value = 'events'")
    page.key("Enter")
    arrived(page, "document.title.startsWith('Log events')")
    page.key("?")
    assert page.run("document.getElementById('keys').open")
    page.key("Escape")
    arrived(page, "!document.getElementById('keys').open")
    for key, title in (("o", "Overview"), ("g", "Logs"), ("q", "Queries"), ("e", "Events")):
        page.key("g", key)
        arrived(page, f"document.title.startsWith('{title}')")
    page.key("p")
    assert page.run("document.getElementById('refreshing').textContent") == "paused: p goes on"
    page.key("p")
    assert page.run("document.getElementById('refreshing').textContent") == "live"


def test_everything_is_reached_with_tab(page: Browser) -> None:
    page.key("Tab")
    assert page.run("document.activeElement.textContent") == "To the content"
    assert page.run("document.activeElement.getBoundingClientRect().left") >= 0  # it shows itself
    page.key("Enter")
    page.until("document.activeElement.id === 'main' || location.hash === '#main'")


def test_news_show_without_a_reload_and_leave_what_is_in_use(page: Browser, visitor: Visitor, world: World) -> None:
    page.go(f"{base(visitor)}/events")
    page.run("window.same = 1")
    page.run("getSelection().selectAllChildren(document.querySelector('p.soft'))")
    with world.client.create_ledger() as ledger:
        ledger.append(b"news")
    page.until(f"document.getElementById('events').innerText.includes('ledger {ledger.ledger_id} was closed')")
    assert page.run("window.same") == 1 and "These are the events" in page.run("getSelection().toString()")
    page.go(f"{base(visitor)}/ledgers")
    page.run("document.querySelector('input[name=log]').focus()")
    page.key("e", "v")
    with world.client.create_ledger() as another:
        another.append(b"news")
    page.until(f"document.querySelector('tr[data-key]')?.dataset.key === '{another.ledger_id}'")
    assert page.run("document.activeElement.value") == "ev"


@pytest.mark.slow
def test_without_scripts_everything_works(browser: Browser, visitor: Visitor, world: World) -> None:
    browser.scripts(False)
    try:
        browser.window(1200)
        browser.go(visitor.server.open_url)
        for path in paths(world):
            visitor.settled(path)  # it need not reload itself
            browser.go(f"{base(visitor)}{path}")
            assert browser.run("document.querySelector('h1').innerText.length") > 0
            assert browser.run("getComputedStyle(document.getElementById('show-keys')).display") == "none"  # a button that would do nothing
        browser.go(f"{base(visitor)}/ledgers")
        browser._events.clear()
        browser.run("document.querySelector('select[name=state]').value = 'OPEN'")
        browser.run("document.querySelector('.filter button').click()")
        browser.until("location.search.includes('state=OPEN')")
        assert browser.until(f"document.querySelector('tr[data-key=\"{world.open}\"]') !== null")
        browser.go(f"{base(visitor)}/")
        browser.run("window.same = 1")
        arrived(browser, "typeof window.same === 'undefined'")  # it has reloaded by itself
        assert browser.problems == []
    finally:
        browser.scripts(True)


def test_a_page_whose_program_has_ended_says_so_and_goes_on(browser: Browser, world: World) -> None:
    with bk_core.connect(world.cluster.uri) as client:
        site = Site(client)
        site.start()
        token = Token()
        server = PageServer("127.0.0.1", 0, token, site.answer)
        server.start()
        browser.window(1200)
        browser.go(server.open_url)
        browser.until("document.title.startsWith('Overview')")
        server.close()
        browser.until("document.getElementById('silent').innerText.includes('bk ui itself has not answered')")
        assert browser.run("document.querySelector('h1').innerText") == "Overview"  # what was seen last stays
        again = PageServer("127.0.0.1", server.port, token, site.answer)
        again.start()
        browser.until("document.getElementById('silent').hidden")
        again.close()
        other = PageServer("127.0.0.1", server.port, Token(), site.answer)
        other.start()
        browser.until("document.getElementById('silent').innerText.includes('Open the address that bk ui has printed')")
        other.close()
        site.close()
        browser.go("about:blank")
        browser.problems.clear()


def test_a_long_payload_is_wrapped(page: Browser, visitor: Visitor, world: World) -> None:
    with bk_core.connect(world.cluster.uri) as client, client.create_ledger() as ledger:
        ledger.append(b"word " * 100 + b"x" * 500)
    page.window(400)
    page.go(f"{base(visitor)}/ledgers/{ledger.ledger_id}/entries/0")
    page.until("document.querySelector('[data-pending]') === null && document.querySelector('pre.text') !== null")
    assert page.run("(pre => pre.scrollWidth <= pre.clientWidth && pre.clientHeight > 200)(document.querySelector('pre.text'))")
    assert page.run(TOO_WIDE)[0] <= 400


def test_a_silent_cluster_is_told_in_the_page(browser: Browser, world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only what the watcher has found: test_outage.py takes a real cluster away."""
    with bk_core.connect(world.cluster.uri) as client:
        site = Site(client)
        server = PageServer("127.0.0.1", 0, Token(), site.answer)
        site.start()
        server.start()
        browser.window(400, dark=True)
        browser.go(server.open_url)
        browser.until("document.title.startsWith('Overview') && document.getElementById('bookies') !== null")
        site.close()
        client.close()
        browser.until("document.getElementById('banner').innerText.includes('The cluster has not answered since')")
        assert browser.run("document.getElementById('bookies').innerText.includes('writable')")
        assert browser.run("document.getElementById('refreshing').textContent") == "not live: the cluster does not answer"
        wide, *culprits = browser.run(TOO_WIDE)
        assert wide <= 400 and not culprits
        assert browser.picture(tmp_path / "silent.png").stat().st_size > 1000
        server.close()
        browser.go("about:blank")
        browser.problems.clear()
