"""Reads the pages of the built documentation site, for the tests about it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data", "video": "src", "audio": "src"}
"""Elements that make a browser load something, and the attribute that says what."""
COUNTED = ("li", "ol", "ul", "pre", "table", "tr", "h2", "h3", "h4", "strong", "blockquote")
_CSS_LOADS = re.compile(r"(?:url\(\s*|@import\s+)['\"]?([^'\")\s]+)")


@dataclass
class Html(HTMLParser):
    """One page: what it loads, where it leads, and what it is made of."""

    path: Path
    title: str = ""
    ids: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    elements: Counter[str] = field(default_factory=Counter)
    """All elements of the page."""
    article: Counter[str] = field(default_factory=Counter)
    """The elements of its text."""
    text: str = ""
    wide: list[str] = field(default_factory=list)
    """Return what may make the page wider than a narrow window."""
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        inside = "article" in self._open
        self.elements[tag] += 1
        self.article[tag] += inside
        if "id" in values and "svg" not in self._open:
            self.ids.append(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in LOADED and LOADED[tag] in values and values.get("rel") not in ("prev", "next", "canonical"):
            self.loads.append(values[LOADED[tag]])
        self.loads += _CSS_LOADS.findall(values.get("style", ""))
        if inside:
            self.wide += self._too_wide(tag, values)
        if tag not in ("meta", "link", "img", "input", "br", "hr", "path", "rect", "circle", "source"):
            self._open.append(tag)

    def _too_wide(self, tag: str, values: dict[str, str]) -> list[str]:
        """The theme lets tables without a class and code blocks scroll; pictures scroll in a box of ours."""
        if tag == "table" and "class" in values and "highlighttable" not in values["class"]:
            return [f"a table of class {values['class']}"]
        if tag == "svg" and self._open[-1:] != ["div"] and "width" in values:
            return ["a picture outside of its box"]
        if tag == "img" and "width" in values:
            return ["an image with a width"]
        return []

    def handle_endtag(self, tag: str) -> None:
        while tag in self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["title"] and "svg" not in self._open:
            self.title += data
        if self._open[-1:] == ["style"]:
            self.loads += _CSS_LOADS.findall(data)
        if "article" in self._open:
            self.text += data


def structure(counter: Counter[str]) -> dict[str, int]:
    return {tag: counter[tag] for tag in COUNTED if counter[tag]}


class Site:
    """A folder with a built site."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.pages = {path.relative_to(self.folder).as_posix(): Html(path) for path in sorted(self.folder.rglob("*.html"))}

    @cache  # noqa: B019 - a site lives as long as the tests
    def ids(self, page: str) -> frozenset[str]:
        return frozenset(self.pages[page].ids)

    def faults(self) -> list[str]:
        """Return ``page: what`` of everything that is wrong."""
        found = []
        for name, page in self.pages.items():
            found += [f"{name}: {what}" for what in self._faults_of(name, page)]
        for path in [*self.folder.rglob("*.css")]:
            loads = [one for one in _CSS_LOADS.findall(path.read_text(encoding="utf-8")) if not one.startswith("data:")]
            found += [f"{path.name} loads {one}" for one in loads if _is_elsewhere(one)]
        return found

    def _faults_of(self, name: str, page: Html) -> list[str]:
        found = [f"loads {one}" for one in page.loads if _is_elsewhere(one)]
        found += [f"loads {one}, which is not there" for one in page.loads if not _is_elsewhere(one) and not self._has(page, one)]
        if not page.title.strip():
            found.append("has no title")
        found += [f"has {page.elements[tag]} <{tag}>" for tag in ("main", "h1") if page.elements[tag] != 1]
        if not page.elements["nav"]:
            found.append("has no navigation")
        found += [f"has the id {one} {count} times" for one, count in Counter(page.ids).items() if count > 1]
        found += [f"may be too wide: {what}" for what in page.wide]
        if name != "404.html":
            found += [f"leads to {link}, which is not there" for link in dict.fromkeys(page.links) if not self._leads(name, page, link)]
        return found

    def _has(self, page: Html, target: str) -> bool:
        parts = urlsplit(target)
        base = self.folder if parts.path.startswith("/") else page.path.parent
        return not parts.path or (base / unquote(parts.path).lstrip("/")).resolve().exists()

    def _leads(self, name: str, page: Html, link: str) -> bool:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            return parts.scheme in ("http", "https", "mailto")
        there = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path.resolve()
        if not there.is_file() or not there.is_relative_to(self.folder):
            return False
        target = there.relative_to(self.folder).as_posix()
        return not parts.fragment or target not in self.pages or unquote(parts.fragment) in self.ids(target)


def _is_elsewhere(target: str) -> bool:
    return bool(urlsplit(target).netloc) or urlsplit(target).scheme not in ("", "data")
