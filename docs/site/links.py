"""Where a link of a page or a document of the repository leads on the site, and what in prose becomes a link."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = "docs/site/pages"

_FENCE = re.compile(r"^ *(`{3,}|~{3,})")
_HEADING = re.compile(r"^(#{1,6}) (.+?) *#*$")
_LINK = re.compile(r"(?P<bang>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
_NUMBER = re.compile(r"^#{1,6} (\d{1,2}(?:\.\d{1,2})*)\.? ")
_SECTION = re.compile(r"(?<![\w/.-])(?P<name>[\w-]+\.md) (?P<number>\d{1,2}(?:\.\d{1,2})*)(?![\w%]|\.\d)")
_ID = re.compile(r"(?<![\w#/-])(?:[A-Z]{1,5}-[A-Z]?\d+[a-z]?|[DR]\d{1,2})(?![\w-])")
_DEFINED = re.compile(r"^\| (\*{0,2}`?)((?:[A-Z]{1,5}-[A-Z]?\d+[a-z]?)|[DR]\d{1,2})(`?\*{0,2}) \|")


def slug(heading: str) -> str:
    """Return the anchor of a heading, as forges make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def lines_of(text: str) -> Iterator[tuple[str, bool]]:
    """Yield (line, True if it is prose). Lines of fenced blocks are not."""
    fence = ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if fence:
            yield line, False
            if found is not None and found[1].startswith(fence):
                fence = ""
        elif found is not None:
            fence = found[1]
            yield line, False
        else:
            yield line, True


def outside_code(line: str, change: Callable[[str], str]) -> str:
    """Return the line with ``change`` made of what is neither code nor a link."""
    parts = re.split(r"(`+[^`]*`+|!?\[(?:[^\[\]]|\[[^\]]*\])*\]\([^()\s]+\)|<[^>]*>)", line)
    return "".join(part if at % 2 else change(part) for at, part in enumerate(parts))


@dataclass
class Document:
    """A document of the repository: its text by sections."""

    path: str
    text: str
    headings: list[tuple[int, int, str]] = field(default_factory=list)
    """(line, level, anchor) of each heading."""

    def __post_init__(self) -> None:
        for number, (line, is_prose) in enumerate(lines_of(self.text)):
            found = _HEADING.match(line) if is_prose else None
            if found is not None:
                self.headings.append((number, len(found[1]), slug(found[2])))

    def span(self, anchor: str) -> tuple[int, int]:
        """Return the lines of a section with its heading and all below it; of a title only what stands before the first section."""
        for at, (first, level, name) in enumerate(self.headings):
            if name == anchor:
                following = self.headings[at + 1 :]
                ends = [line for line, below, _ in following if level == 1 or below <= level]
                return first, ends[0] if ends else self.text.count("\n") + 1
        raise LookupError(f"{self.path} has no section #{anchor}")

    def anchors_in(self, first: int, end: int) -> list[str]:
        return [name for line, _, name in self.headings if first <= line < end]

    @cached_property
    def numbers(self) -> dict[str, str]:
        """The anchor of each numbered section."""
        found = {}
        lines = self.text.split("\n")
        for line, _, name in self.headings:
            if (number := _NUMBER.match(lines[line])) is not None:
                found[number[1]] = name
        return found


@dataclass
class Places:
    """Where everything is on the site."""

    documents: dict[str, Document]
    """By path in the repository."""
    pages: dict[str, str]
    """Path in the repository (of documents, pages and what is generated for ``PAGES``) -> path on the site."""
    moved: dict[tuple[str, str], str] = field(default_factory=dict)
    """(document, anchor) -> where on the site the section is instead."""
    rules: dict[str, str] = field(default_factory=dict)
    """Id of a rule or decision -> the document that defines it."""

    def __post_init__(self) -> None:
        for path, document in sorted(self.documents.items(), key=lambda item: not item[0].endswith("RULES.md")):
            for line, is_prose in lines_of(document.text):
                if is_prose and (found := _DEFINED.match(line)) is not None:
                    self.rules.setdefault(found[2], path)

    def where(self, document: str, anchor: str) -> str | None:
        """Return the place on the site of a section of a document, or of the document; None for what the site does not have."""
        if (document, anchor) in self.moved:
            return self.moved[document, anchor]
        page = self.pages.get(document)
        if page is None and not anchor:
            return next((moved for (path, _), moved in self.moved.items() if path == document), None)
        return None if page is None else page + (f"#{anchor}" if anchor else "")

    def linked(self, text: str, origin: str, page: str) -> str:
        """Return the text, which stands in ``origin`` of the repository, with the links that it needs on ``page`` of the site."""
        out = []
        for line, is_prose in lines_of(text):
            if is_prose:
                indented = line.startswith("    ")
                line = _LINK.sub(lambda found: self._link(found, origin, page), line)
                if not line.startswith("#") and not indented:
                    defined, line = self._defined(line, origin)
                    line = defined + outside_code(line, lambda part: self._cited(part, page))
            out.append(line)
        return "\n".join(out)

    def _link(self, found: re.Match[str], origin: str, page: str) -> str:
        target, _, anchor = found["target"].partition("#")
        if target.startswith(("http:", "https:", "mailto:")):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), target)) if target else origin
        there = next((name for name in (path, f"{path}/README.md") if name in self.pages or name in self.documents), None)
        place = None if there is None else self.where(there, anchor)
        if place is None:
            if not (ROOT / path).exists():
                raise LookupError(f"{origin}: a link to {found['target']}, which is not there")
            return found["text"]
        return f"{found['bang']}[{found['text']}]({_relative(place, page)})"

    def _defined(self, line: str, origin: str) -> tuple[str, str]:
        """Return (the cell that defines a rule, with an anchor, if the line has one; the rest of the line)."""
        found = _DEFINED.match(line)
        if found is None or self.rules.get(found[2]) != origin:
            return "", line
        return f'| <span id="{found[2]}">{found[1]}{found[2]}{found[3]}</span> |', line[found.end() :]

    def _cited(self, text: str, page: str) -> str:
        def section(found: re.Match[str]) -> str:
            for path, document in self.documents.items():
                anchor = document.numbers.get(found["number"]) if posixpath.basename(path) == found["name"] else None
                place = None if anchor is None else self.where(path, anchor)
                if place is not None:
                    return f"[{found[0]}]({_relative(place, page)})"
            return found[0]

        def rule(found: re.Match[str]) -> str:
            home = self.rules.get(found[0])
            place = None if home is None else self.pages.get(home)
            return found[0] if place is None else f"[{found[0]}]({_relative(f'{place}#{found[0]}', page)})"

        text = _SECTION.sub(section, text)
        return outside_code(text, lambda part: _ID.sub(rule, part))


def _relative(place: str, page: str) -> str:
    path, _, anchor = place.partition("#")
    if path == page:
        return f"#{anchor}" if anchor else posixpath.basename(page)
    return posixpath.relpath(path, posixpath.dirname(page) or ".") + (f"#{anchor}" if anchor else "")
