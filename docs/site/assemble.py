"""Makes the Markdown that MkDocs is given: the pages, with the sections of documents that they include; the documents; the reference.

A page takes a section of a document of the repository, with its heading and all below it, by a line

    <!-- include: bk_spark/README.md#sink -->

and the section then stands on that page only: the document's own page names it, and links to the section lead there. With a document's
title as the section, what stands before its first section is taken. ``; as: Commands`` gives the section another heading, and
``; as: -`` none. ``<!-- picture: concepts -->`` is replaced by that picture of pictures.py, and with ``; picture: concepts`` in an
include the first block of code in the section is.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from docs.site import pictures, reference
from docs.site.command_lists import as_tables
from docs.site.commonmark import for_python_markdown
from docs.site.links import PAGES, ROOT, Document, Places, lines_of, slug

INCLUDE = re.compile(
    r"^<!-- include: (?P<path>[\w./-]+\.md)#(?P<anchor>[\w-]+)(?:; as: (?P<title>[^;]+?))?(?:; picture: (?P<picture>\w+))? -->$", re.M
)
PICTURE = re.compile(r"^<!-- picture: (\w+) -->$", re.M)
EXAMPLE_URI = "zk://127.0.0.1:2181/ledgers"
"""The cluster of all examples; tests put a running one in its place."""
NOT_RUN = re.compile(r"^<!-- not run: .+ -->\n", re.M)
_CODE = re.compile(r"^```\w*\n.*?^```$", re.M | re.S)
_MERMAID = re.compile(r"^```mermaid\n(stateDiagram-v2\n.*?)^```$", re.M | re.S)
_BEFORE_OTHERS = "---\nsearch:\n  boost: 3\n---\n\n"  # the search shows pages for users first
_LEFT_OUT = ("docs/site", "docs/README.md")


def documents() -> dict[str, Document]:
    """Return all documents of the repository, by path."""
    found = {}
    tops = ("bk_core", "bk_spark", "docs", "native", "tests")
    for path in sorted([*ROOT.glob("*.md"), *(one for top in tops for one in (ROOT / top).rglob("*.md"))]):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(_LEFT_OUT) and not any(part.startswith(".") or part == "build" for part in Path(name).parts):
            found[name] = Document(name, path.read_text(encoding="utf-8"))
    return found


def pages() -> dict[str, str]:
    """Return the pages of the site's own, by their path on it."""
    home = ROOT / PAGES
    return {path.relative_to(home).as_posix(): path.read_text(encoding="utf-8") for path in sorted(home.rglob("*.md"))}


class Assembly:
    """All files of the site before MkDocs."""

    def __init__(self) -> None:
        self.documents = documents()
        self.pages = pages()
        self.reference = {f"reference/{name}": text for name, text in reference.pages().items()}
        self.taken: dict[str, list[tuple[int, int, str, str]]] = {}
        """Document -> (first line, end, anchor, page) of each section that a page has."""
        at = {f"{PAGES}/{path}": path for path in [*self.pages, *self.reference]}
        at |= {name: name.lower() if name.endswith("RULES.md") else name for name in self.documents if name != "README.md"}
        self.places = Places(self.documents, at)
        for page, text in (self.pages | self.reference).items():
            for found in INCLUDE.finditer(text):
                self._take(page, found["path"], found["anchor"], found["title"] or "")
        left = [anchor for _, _, anchor in self.documents["README.md"].headings if ("README.md", anchor) not in self.places.moved]
        assert not left, f"sections of README.md that no page includes: {left}"
        self._take("reference/options.md", "bk_spark/README.md", "options", "-")  # the reference has what these sections say
        self._take("reference/settings.md", "bk_core/README.md", "settings", "-")

    def _take(self, page: str, path: str, anchor: str, title: str) -> None:
        document = self.documents[path]
        first, end = document.span(anchor)
        self.taken.setdefault(path, []).append((first, end, anchor, page))
        for name in document.anchors_in(first, end):
            assert (path, name) not in self.places.moved, f"{page}: {path}#{name} is included twice"
            renamed = title if name == anchor else ""
            self.places.moved[path, name] = page if renamed == "-" else f"{page}#{slug(renamed) if renamed else name}"

    def files(self) -> Iterator[tuple[str, str]]:
        """Yield (path, text) of every file."""
        for page, text in (self.pages | self.reference).items():
            yield page, _BEFORE_OTHERS + self._page(page, text)
        for name, document in self.documents.items():
            if name in self.places.pages:
                page = self.places.pages[name]
                left = as_tables(self._left(name, document))
                yield page, for_python_markdown(self._pictures(self.places.linked(left, name, page)))

    def _page(self, page: str, text: str) -> str:
        parts, at = [], 0
        for found in INCLUDE.finditer(text):
            parts.append(self.places.linked(text[at : found.start()], f"{PAGES}/{page}", page))
            document = self.documents[found["path"]]
            first, end = document.span(found["anchor"])
            lines = document.text.split("\n")[first:end]
            if lines[0].startswith("# ") or found["title"] == "-":
                del lines[0]
            elif found["title"]:
                lines[0] = f"{lines[0].partition(' ')[0]} {found['title']}"
            section = as_tables("\n".join(lines))
            if found["picture"]:
                picture = pictures.named(found["picture"])
                section = _CODE.sub(picture.replace("\\", r"\\"), section, count=1)
            parts.append(self.places.linked(section, found["path"], page))
            at = found.end()
        parts.append(self.places.linked(text[at:], f"{PAGES}/{page}", page))
        return for_python_markdown(self._pictures(NOT_RUN.sub("", "\n".join(parts))))

    def _left(self, name: str, document: Document) -> str:
        """Return a document without what pages have taken of it, which it names instead."""
        taken = self.taken.get(name, [])
        gone = {line for first, end, _, _ in taken for line in range(first, end)}
        lines = document.text.split("\n")
        text = "\n".join(line for number, line in enumerate(lines) if number not in gone).rstrip()
        if not taken:
            return text
        origin = posixpath.dirname(name)
        parts = [f"[{lines[first].lstrip('# ')}]({posixpath.relpath(name, origin)}#{anchor})" for first, _, anchor, _ in taken]
        return f"{text}\n\n## Elsewhere on this site\n\nOther pages have these parts of this document: {', '.join(parts)}.\n"

    def _pictures(self, text: str) -> str:
        text = PICTURE.sub(lambda found: pictures.named(found[1]), text)
        return _MERMAID.sub(lambda found: pictures.states(found[1]), text)


def write(folder: Path) -> None:
    """Write everything that MkDocs needs into a folder, and nothing else stays there."""
    shutil.rmtree(folder, ignore_errors=True)
    for path, text in Assembly().files():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    shutil.copytree(Path(__file__).parent / "theme", folder / "theme")


def fences(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (language, code, why it is not run or "") of each fenced block of a page."""
    code: list[str] = []
    language = reason = ""
    inside = False
    for line, is_prose in lines_of(text):
        if is_prose:
            found = re.fullmatch(r"<!-- not run: (.+) -->", line)
            reason = found[1] if found else (reason if not line.strip() else "")
        elif not inside:
            inside, language, code = True, line.strip("` "), []
        elif line.startswith("```"):
            yield language, "\n".join(code) + "\n", reason
            inside, reason = False, ""
        else:
            code.append(line)
