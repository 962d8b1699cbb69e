"""The frame of every page, and the sentences that pages share: what is not known yet, how old something is, that the cluster is silent."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode

from bk_core.display.moments import told_utc
from bk_core.display.words import rounded_size, told_age
from bk_core.ui.answers import Answer, Answers
from bk_core.ui.markup import NOTHING, Child, Markup, badge, empty, joined, link, tag
from bk_core.ui.watching import Watcher

if TYPE_CHECKING:
    from bk_core.client import BookKeeper

T = TypeVar("T")
OLD_S = 8.0
"""An answer older than this is shown with its age."""
SEVERITIES = {"error": "bad", "warning": "watch", "note": ""}
"""The look of each severity of a finding."""
REFRESH_S = 5  # without JavaScript
NAV = (
    ("Overview", "/", "o"),
    ("Ledgers", "/ledgers", "l"),
    ("Logs", "/logs", "g"),
    ("Queries", "/queries", "q"),
    ("Events", "/events", "e"),
)
"""The pages of the navigation: name, path, and the key that leads there after ``g``."""
KEYS = (
    ("j, k", "next and previous row"), ("Enter", "open the row"), ("n, b", "next and previous part of a list"),
    ("/", "search"), ("g o, g l, g g, g q, g e", "overview, ledgers, logs, queries, events"),
    ("r", "refresh now"), ("p", "pause refreshing, and go on"), ("?", "these keys"), ("Escape", "leave the search, close this"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class World:
    """The sources of all pages. ``password`` is the one with which payloads of protected ledgers and file stores are read."""

    client: BookKeeper
    watcher: Watcher
    answers: Answers
    password: bytes = field(default=b"", repr=False)

    @property
    def now_ms(self) -> int:
        """The time of this machine's clock, in milliseconds since 1970, from which ages are counted."""
        return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Page:
    """``here`` is the path in the navigation that the page belongs to. ``refreshes`` says that it is loaded again without JavaScript."""

    title: str
    body: Markup
    here: str = ""
    status: int = 200
    refreshes: bool = False


def render(world: World, page: Page, search: str = "") -> bytes:
    """Return the whole document."""
    health = world.watcher.health
    again = tag("noscript", tag("meta", http_equiv="refresh", content=str(REFRESH_S)))
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("title", f"{page.title} - {_short(world.client.config.shown_uri)}"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="/static/icon.svg"),
        tag("link", rel="stylesheet", href="/static/ui.css"),
        tag("script", NOTHING, src="/static/ui.js", defer=True),
        again if page.refreshes or not health.answers else None,
    )
    pages = [link(path, name, aria_current="page" if path == page.here else None, data_go=key, title=f"g {key}") for name, path, key in NAV]
    form = tag(
        "form",
        tag("label", "Search", for_="search", class_="unseen"),
        tag("input", type="search", id="search", name="q", value=search, placeholder="ledger, log or bookie  ( / )", autocomplete="off"),
        action="/find",
        role="search",
    )
    header = tag("header", link("/", "bk", class_="brand", title="Overview"), tag("nav", pages, aria_label="Pages"), form)
    body = tag(
        "body",
        link("#main", "To the content", class_="skip"),
        header,
        _banner(world),
        tag("div", NOTHING, id="silent", role="alert", hidden=True),
        tag("main", tag("h1", page.title), page.body, id="main", tabindex="-1"),
        _footer(world),
        _keys(),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n".encode()


def _short(uri: str) -> str:
    return uri.partition("://")[2] or uri


def _banner(world: World) -> Markup:
    health, sight = world.watcher.health, world.watcher.sight
    if health.answers:
        return tag("div", NOTHING, id="banner", data_live=True)
    if health.since_ms is None:
        said: list[Child] = ["The cluster does not answer"]
    else:
        said = ["The cluster has not answered since ", moment(health.since_ms), f" ({told_age(world.now_ms - health.since_ms)})"]
    more = ". What is shown is from then; the page goes on by itself." if sight else ". The page goes on by itself."
    problem = f": {health.problem}" if health.problem else ""
    return tag("div", tag("p", said, problem, more, class_="notice bad", role="alert"), id="banner", data_live=True)


def _footer(world: World) -> Markup:
    sight = world.watcher.sight
    seen: Child = "not seen yet" if sight is None else ("seen ", moment(sight.at_ms))
    return tag(
        "footer",
        tag("span", tag("span", world.client.config.shown_uri, class_="id"), " ", seen, id="seen", data_live=True),
        tag("span", NOTHING, id="refreshing"),
        tag("button", "keys ", tag("kbd", "?"), type="button", id="show-keys", hidden=True),
    )


def _keys() -> Markup:
    rows = [tag("div", tag("dt", tag("kbd", keys)), tag("dd", what)) for keys, what in KEYS]
    close = tag("form", tag("button", "Close"), method="dialog")
    return tag("dialog", tag("h2", "Keys"), tag("dl", rows, class_="facts"), close, id="keys", aria_label="Keys")


# --- sentences of all pages ----------------------------------------------------------------------------------------------


def moment(ms: int | None) -> Markup:
    """Return a time in UTC as an element that machines can read."""
    if not ms:
        return Markup("-")
    told = told_utc(ms)
    return tag("time", told, datetime=told.replace(" ", "T") + "Z", title="UTC")


def age(ms: int | None, now_ms: int) -> str | None:
    """Return how long ago something was."""
    return None if ms is None else told_age(now_ms - ms)


def amount(count: int | None) -> str | None:
    """Return bytes as ``rounded_size`` does; None for none."""
    return None if count is None else rounded_size(count)


def shown(answer: Answer[T], render_value: Callable[[T], Child], *, what: str, old_s: float = OLD_S) -> Markup:
    """Return what was answered, with its age and the problem if it is older than ``old_s`` seconds, or a sentence that says why there is
    nothing yet."""
    if answer.value is None:
        if answer.problem is not None:
            return tag("p", f"{what[:1].upper()}{what[1:]}: {answer.problem}", class_="notice bad")
        return tag("p", f"Asking for {what} ...", class_="empty", data_pending=True)
    old = answer.age_s is not None and answer.age_s > old_s
    why = answer.problem or "there is no newer answer yet"
    note = (
        tag("p", f"From {told_age(int((answer.age_s or 0) * 1000))} ago: {why}.", class_="notice watch") if old or answer.problem else None
    )
    return joined([note, render_value(answer.value)])


def state_badge(state: str) -> Markup:
    """Return the state of a ledger or a bookie as a badge."""
    kinds = {
        "OPEN": "good",
        "IN_RECOVERY": "watch",
        "CLOSED": "",
        "writable": "good",
        "read-only": "watch",
        "down": "bad",
        "UNREADABLE": "bad",
    }
    return badge(state, kinds.get(state, ""))


def severity_badge(severity: str) -> Markup:
    """Return the severity of a finding, in the doctor's word, as a badge."""
    return badge(severity, SEVERITIES.get(severity, ""))


def ledger_links(ledger_ids: Sequence[int], count: int) -> Markup:
    """Return links to the first of ``count`` ledgers, and how many more there are."""
    more = f" and {count - len(ledger_ids):,} more" if count > len(ledger_ids) else None
    links = joined([", " if at else "", ledger_link(one)] for at, one in enumerate(ledger_ids))
    return joined(["ledger " if count == 1 else "ledgers ", links, more])


def ledger_link(ledger_id: int) -> Markup:
    """Return a link to the page of a ledger, whose text is its id without commas."""
    return link(f"/ledgers/{ledger_id}", str(ledger_id), class_="id")


def log_link(name: str) -> Markup:
    """Return a link to the page of a log."""
    return link(f"/logs/{quote(name, safe='')}", name, class_="id")


def bookie_link(bookie: str) -> Markup:
    """Return a link to the ledgers of a bookie."""
    return link("/ledgers?" + urlencode({"bookie": bookie}), bookie, class_="id")


def place(path: str, parameters: Mapping[str, object]) -> str:
    """Return a path with those parameters that say something."""
    given = {key: str(value) for key, value in parameters.items() if value not in ("", None)}
    return f"{path}?{urlencode(given)}" if given else path


def steps(previous: str | None, following: str | None, told: Child) -> Markup:
    """Return the way to the parts of a list before and after this one, and what is shown."""
    before = link(previous, "\u2190 newer", rel="prev", data_step="b") if previous else tag("span", "\u2190 newer", class_="off")
    after = link(following, "older \u2192", rel="next", data_step="n") if following else tag("span", "older \u2192", class_="off")
    return tag("p", before, tag("span", told), after, class_="steps")


def no_such(what: str, here: str) -> Page:
    """Return the page of something that is not there."""
    return Page("Not there", empty(what), here, status=404)
