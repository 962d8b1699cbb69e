"""The site: finds the page of a path. The server asks it for each request that has shown the token."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from bk_core.display.words import counted
from bk_core.ui.answers import Answers
from bk_core.ui.layout import Page, World, bookie_link, log_link, no_such, render
from bk_core.ui.markup import empty, joined, section, tag
from bk_core.ui.pages import events, examinations, ledger, ledgers, logs, overview, queries
from bk_core.ui.server import Asked, Reply
from bk_core.ui.watching import LOOK_S, Watcher

if TYPE_CHECKING:
    from bk_core.client import BookKeeper

FOUND_MAX = 100
STATIC = {"ui.css": "text/css; charset=utf-8", "ui.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}


class Site:
    """The pages of the cluster of ``client``. It looks at the cluster every ``look_s`` seconds from ``start`` until ``close``."""

    def __init__(self, client: BookKeeper, password: bytes = b"", *, look_s: float = LOOK_S) -> None:
        watcher = Watcher(client, look_s=look_s)
        answers = Answers(lambda: None if watcher.health.answers else watcher.health.problem or "the cluster does not answer")
        self.world = World(client, watcher, answers, password)

    def start(self) -> None:
        """Begin to look."""
        self.world.watcher.start()

    def close(self) -> None:
        """Stop looking; nothing is waited for."""
        self.world.watcher.close()
        self.world.answers.close()

    def answer(self, asked: Asked) -> Reply:
        """Return what is at a path."""
        parts = [unquote(part, errors="replace") for part in asked.path.split("/")[1:]]
        match parts:
            case ["static", name] if name in STATIC:
                return Reply(_static(name), kind=STATIC[name])
            case ["favicon.ico"]:
                return Reply(_static("icon.svg"), kind=STATIC["icon.svg"])
            case ["find"]:
                return self._find(asked.query.get("q", "").strip())
        page = self._page(parts, asked)
        return Reply(render(self.world, page), page.status)

    def _page(self, parts: list[str], asked: Asked) -> Page:
        world = self.world
        match parts:
            case [""]:
                return overview.page(world)
            case ["ledgers"]:
                return ledgers.page(world, asked.query)
            case ["ledgers", text] if (ledger_id := ledgers.number(text)) is not None:
                return ledger.page(world, ledger_id, asked.query)
            case ["ledgers", text, "xray"] if (ledger_id := ledgers.number(text)) is not None:
                return examinations.xray_page(world, ledger_id, asked.query)
            case ["ledgers", text, "entries", entry] if (ledger_id := ledgers.number(text)) is not None:
                entry_id = ledgers.number(entry)
                return (
                    no_such("No entry has such an id.", "/ledgers") if entry_id is None else ledger.entry_page(world, ledger_id, entry_id)
                )
            case ["logs"]:
                return logs.page(world, asked.query)
            case ["logs", name] if name:
                return logs.log_page(world, name, asked.query)
            case ["queries"]:
                return queries.page(world)
            case ["doctor"]:
                return examinations.doctor_page(world, asked.query)
            case ["events"]:
                return events.page(world, asked.query.get("kind", ""))
        return no_such("There is no such page.", "")

    def _find(self, wanted: str) -> Reply:
        """Find what was searched: a number is a ledger; another text is a log or a bookie, or a part of their names."""
        ledger_id = ledgers.number(wanted)
        sight = self.world.watcher.sight
        names = () if sight is None else sight.logs
        if ledger_id is not None and wanted not in names:
            return Reply(status=303, location=f"/ledgers/{ledger_id}")
        if wanted in names:
            return Reply(status=303, location=f"/logs/{quote(wanted, safe='')}")
        bookies = [] if sight is None else sorted({*sight.bookies.writable, *sight.bookies.readonly, *sight.cookies})
        found_logs = [name for name in names if wanted and wanted.lower() in name.lower()]
        found_bookies = [name for name in bookies if wanted and wanted.lower() in name.lower()]
        items = [tag("li", "log ", log_link(name)) for name in found_logs[:FOUND_MAX]]
        items += [tag("li", "bookie ", bookie_link(name)) for name in found_bookies[:FOUND_MAX]]
        count = len(found_logs) + len(found_bookies)
        told = empty("No log or bookie has this in its name; a number leads to the ledger of that id.")
        body = joined([tag("p", f"{counted(count, 'name')} with {wanted!r} in it"), tag("ul", items, class_="found")]) if count else told
        page = Page("Search", section("Found", body, name="found"), status=200 if count else 404)
        return Reply(render(self.world, page, wanted), page.status)


@cache
def _static(name: str) -> bytes:
    return (files("bk_core.ui") / "static" / name).read_bytes()
