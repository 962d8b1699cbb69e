"""Every document, section, item, rule, decision and scenario that code, tests or pages name is there to be looked up.

A citation is a document's name with sections (``metadata.md 4.3, 5.1``), an id (``EC-9``, ``D6``, ``R12``), or a numbered scenario,
question, row, or step of a rule (``LOG-1 (2)``). Ids are defined by the first column of a table in a page, or in the docstring of the
simulator's invariants. A section's number without a document counts as lost, unless the same paragraph or docstring has named the document
before it. In a page with numbered sections it is the page's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("bk_core", "bk_spark", "docs", "native", "notebooks", "tests")
SUFFIXES = {".py", ".pyi", ".md", ".c", ".h", ".java", ".sh", ".ipynb", ".toml", ".yaml", ".proto"}
INVARIANTS = "tests/simulation/*invariants.py"  # their docstrings define what they check
ABSENT = "absent" + ".md"  # a document that is not there
SITE = "docs/site/pages"  # tests/test_site.py looks at sections there: pages have some from documents
GENERATED = {
    f"{SITE}/reference/{name}.md" for name in ("api", "aio-api", "spark-api", "options", "errors", "cli", "loggers", "metrics", "settings")
}  # from the code
NOT_LOOKED_AT = {"tests/test_references.py"}  # it cites what is not there

# Capitals, a hyphen and a number that are no rule.
NO_RULES = {"UTF", "CRC", "SHA", "ID", "HOB", "SSH", "SPARK", "ISO", "E", "A"}

NUMBER = r"\d{1,2}(?:\.\d{1,2})*"
ITEM = r"(?:,? (?:items?|nos?\.|rows?) (?P<items>\d+(?:(?:, | and | to )\d+(?!\.?\d))*))?"
SECTION = re.compile(rf"(?P<section>{NUMBER})(?![\w%]|\.\d)(?: [a-e]\b)?{ITEM}")
DOCUMENT = re.compile(r"(?<![\w/.-])(?P<path>(?:[\w.-]+/)*(?P<name>[\w-]+\.md))\b`?(?:\]\([^)]*\))?")
BEFORE_SECTION = re.compile(r",?\s+(?:sections? )?(?=\d)")
BETWEEN = re.compile(r"(?: \([^()]*\))?(?:, and |, | and | or | to | ?- ?|\.\.)(?:sections? )?(?=\d)")
SECTION_FIRST = re.compile(rf"\bsections? ({NUMBER}) of (?:\[?`?(?:[\w.-]+/)*)([\w-]+\.md)\b")
ID = re.compile(r"(?<![\w-])([A-Z]{1,5}-[A-Z]?)(\d+[a-z]?)(?![\w])")
SHORT_ID = re.compile(r"(?<![\w.-])([DR]\d{1,2})(?![\w.-])")
STEP = re.compile(r"(?<![\w-])([A-Z]{1,5}-[A-Z]?\d+[a-z]?) \((\d{1,2})\)")  # LOG-1 (2)
COUNTED = re.compile(r"\b(?P<what>[Ss]cenarios?|[Oo]pen questions?) (?P<numbers>\d+(?:(?:, | and | to |-)\d+(?!\.?\d))*)")
ROW = re.compile(r"\b(?P<rule>EC-9|RC-18) row (?P<row>\d+)")
COUNTED_IN = {"scenario": "13.3", "open question": "16", "EC-9": "4", "RC-18": "7.5"}
COUNTED_PAGE = "replication-protocol.md"

GROUP = re.compile(r"\(([^()]+)\)")
GROUP_ITEM = re.compile(rf"(?:sections? )?({NUMBER})(?: [a-e])?(?:,? items? \d+)?")
LOOSE = (
    re.compile(rf"(?<!RFC \d{{4}} )(?:\b[Ss]ections? |§ ?)({NUMBER})(?![\w%])"),
    re.compile(rf"(?<![\w.])({NUMBER}),? items? \d"),
    re.compile(r'^(?:"""|#+ (?:-+ )?)(\d{1,2}\.\d{1,2})(?=[:,;]| -)'),
    re.compile(r"\b(?:in|of|by|see|and) (1\d\.\d)(?![\w%]|\.\d|\s?(?:s|ms|M|k|GB|MB|million|thousand)\b)"),
)

PYTHON_PROSE = re.compile(r'"""(.*?)"""|(?:^[ \t]*#[^\n]*\n)+|#[^\n]*', re.S | re.M)
C_PROSE = re.compile(r"/\*(.*?)\*/|//[^\n]*", re.S)
HEADING = re.compile(rf"^#{{1,6}} (?:({NUMBER})\.? )?(.*)$", re.M)
DEFINED = re.compile(r"^\| \*{0,2}`?((?:[A-Z]{1,5}-[A-Z]?\d+[a-z]?)|[DR]\d{1,2})`?\*{0,2} \|", re.M)
ROW_OF_RULE = re.compile(r"^\| ([A-Z]{1,5}-[A-Z]?\d+[a-z]?) \| (.*) \|$", re.M)
COUNT = re.compile(r"^(?:\| (\d+) \||(\d+)\. )", re.M)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")


@dataclass
class Page:
    """A page with numbered sections."""

    path: Path
    text: str

    @cached_property
    def sections(self) -> dict[str, set[int]]:
        """Each section's numbered rows and items."""
        headings = [*HEADING.finditer(self.text)]
        ends = [heading.start() for heading in headings[1:]] + [len(self.text)]
        parts = {heading[1]: self.text[heading.end() : end] for heading, end in zip(headings, ends, strict=True) if heading[1]}
        return {number: {int(row or item) for row, item in COUNT.findall(part)} for number, part in parts.items()}

    @cached_property
    def anchors(self) -> set[str]:
        return {re.sub(r"[^\w\- ]", "", heading[0].lstrip("# ").lower()).replace(" ", "-") for heading in HEADING.finditer(self.text)}


@dataclass
class Tree:
    """All files that may cite, and what is there to be cited."""

    root: Path
    texts: dict[Path, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        below = [path for folder in FOLDERS for path in (self.root / folder).rglob("*")]
        for path in sorted([*self.root.iterdir(), *below]):
            name = path.relative_to(self.root)
            hidden = any(part.startswith(".") or part in ("__pycache__", "build", "target", "_proto") for part in name.parts)
            if not hidden and str(name) not in NOT_LOOKED_AT and path.suffix in SUFFIXES and path.is_file():
                self.texts[name] = path.read_text(encoding="utf-8")

    @cached_property
    def pages(self) -> dict[Path, Page]:
        return {path: Page(path, text) for path, text in self.texts.items() if path.suffix == ".md"}

    @cached_property
    def documents(self) -> dict[str, Page | None]:
        """The pages by name. None: several pages have it, such as README.md; sections of these are not numbered."""
        found: dict[str, Page | None] = {}
        for path, page in self.pages.items():
            found[path.name] = None if path.name in found else page
        return found

    @cached_property
    def ids(self) -> set[str]:
        sources = [*(page.text for page in self.pages.values()), *(self.texts[path] for path in self.texts if path.match(INVARIANTS))]
        return {found for text in sources for found in DEFINED.findall(text)}

    @cached_property
    def steps(self) -> dict[str, set[int]]:
        """The numbers in brackets of a rule's line, by rule."""
        rows = [row for page in self.pages.values() for row in ROW_OF_RULE.findall(page.text)]
        return {name: {int(number) for number in re.findall(r"\((\d{1,2})\)", told)} for name, told in rows}

    @cached_property
    def families(self) -> set[str]:
        return {name.rstrip("abcdefgh").rstrip("0123456789") for name in self.ids}

    @cached_property
    def numbered(self) -> set[str]:
        """All numbers of sections with a point in them: what looks like one of these in brackets is a citation."""
        return {number for page in self.pages.values() for number in page.sections if "." in number}


def prose(path: Path, text: str) -> Iterator[tuple[int, str]]:
    """(line, paragraph) of what people are to read."""
    if path.suffix in (".py", ".pyi"):
        pieces = [(match.start(), match[0]) for match in PYTHON_PROSE.finditer(text)]
    elif path.suffix in (".c", ".h", ".java", ".proto"):
        pieces = [(match.start(), match[0]) for match in C_PROSE.finditer(text)]
    elif path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        pieces = [(0, "".join(cell["source"])) for cell in cells if cell["cell_type"] == "markdown"]
    elif path.suffix == ".md":
        starts = [0, *(match.end() for match in re.finditer(r"\n\s*\n|\n(?=\|)", text)), len(text)]
        pieces = [(start, text[start:end]) for start, end in pairwise(starts)]
    else:
        pieces = [(0, text)]
    for start, piece in pieces:
        yield text.count("\n", 0, start) + 1, re.sub(r"\n[ \t]*(?:[#*|>-][ \t])?[ \t]*", " ", piece)


def numbers(text: str) -> list[int]:
    """All numbers of ``7``, ``7 and 9``, ``7 to 9``."""
    if " to " in text or "-" in text:
        first, last = (int(part) for part in re.findall(r"\d+", text)[:2])
        return list(range(first, last + 1))
    return [int(part) for part in re.findall(r"\d+", text)]


def cited_sections(tree: Tree, text: str) -> Iterator[tuple[int, int, str, str, list[int]]]:
    """(start, end, document, section, its items) of each citation that names its document."""
    for found in SECTION_FIRST.finditer(text):
        yield found.start(), found.end(), found[2], found[1], []
    for found in DOCUMENT.finditer(text):
        name, at = found["name"], found.end()
        gap = BEFORE_SECTION.match(text, at)
        if tree.documents.get(name) is None or gap is None:
            continue
        while gap is not None and (section := SECTION.match(text, gap.end())) is not None:
            yield found.start(), section.end(), name, section["section"], numbers(section["items"] or "")
            gap = BETWEEN.match(text, section.end())


def dangling(root: Path) -> list[str]:
    """``file:line: what`` of everything that is cited and not there."""
    tree = Tree(root)
    found: list[str] = []
    for path, text in tree.texts.items():
        for what, position in [*lost_ids(tree, text), *lost_links(tree, path, text)]:
            found.append(f"{path}:{text.count(chr(10), 0, position) + 1}: {what}")
        for line, paragraph in prose(path, text):
            found += [f"{path}:{line}: {what}" for what in lost_in(tree, path, paragraph)]
    return found


def lost_ids(tree: Tree, text: str) -> Iterator[tuple[str, int]]:
    for match in ID.finditer(text):
        family, name = match[1], match[0]
        if family.rstrip("-") in NO_RULES or name in tree.ids:
            continue
        yield (f"there is no {name}" if family in tree.families else f"no page has rules of the name {name}"), match.start()


def lost_links(tree: Tree, path: Path, text: str) -> Iterator[tuple[str, int]]:
    for match in LINK.finditer(text) if path.suffix == ".md" else ():
        target, anchor = match[1], match[2]
        if target.startswith(("http:", "https:")) or not (target or anchor):
            continue
        there = (tree.root / path.parent / target).resolve() if target else tree.root / path
        page = (
            tree.pages.get(there.relative_to(tree.root.resolve()))
            if target and there.is_relative_to(tree.root.resolve())
            else tree.pages[path]
        )
        name = there.relative_to(tree.root.resolve()).as_posix() if there.is_relative_to(tree.root.resolve()) else ""
        if name in GENERATED:
            continue
        if not there.exists():
            yield f"a link to {target}, which is not there", match.start()
        elif anchor and page is not None and anchor not in page.anchors and not name.startswith(SITE):
            yield f"a link to #{anchor}, which {page.path} does not have", match.start()


def lost_in(tree: Tree, path: Path, text: str) -> Iterator[str]:
    for match in SHORT_ID.finditer(text):
        if match[0] not in tree.ids:
            yield f"there is no {match[0]}"
    for rule, step in STEP.findall(text):
        if rule in tree.ids and int(step) not in tree.steps.get(rule, set()):
            yield f"{rule} has no step {step}"
    for match in DOCUMENT.finditer(text):
        cited = match["path"].replace("../", "").removeprefix("./")
        if not any(f"/{page}".endswith(f"/{cited}") for page in (*tree.pages, *GENERATED)):
            yield f"there is no document {cited}"
    yield from lost_counts(tree, text)
    named: list[tuple[int, int, str]] = []
    for start, end, name, section, items in cited_sections(tree, text):
        named.append((start, end, name))
        yield from lost_section(tree, name, section, items)
    own = tree.pages.get(path)
    home = path.name if own is not None and own.sections else None
    for at, number in loose_numbers(tree, text):
        if any(start <= at < end for start, end, _ in named):
            continue
        before = [name for start, _, name in sorted(named) if start < at]
        document = before[-1] if before else home
        if document is None:
            yield f"{number} names no document"
        else:
            yield from lost_section(tree, document, number, [])


def lost_section(tree: Tree, name: str, section: str, items: list[int]) -> Iterator[str]:
    page = tree.documents[name]
    assert page is not None
    if section not in page.sections:
        yield f"{name} has no section {section}"
    else:
        yield from (f"{name} {section} has no item {item}" for item in items if item not in page.sections[section])


def lost_counts(tree: Tree, text: str) -> Iterator[str]:
    page = tree.documents.get(COUNTED_PAGE)
    sections = {} if page is None else page.sections
    for match in COUNTED.finditer(text):
        what = match["what"].lower().rstrip("s")
        there = sections.get(COUNTED_IN[what], set())
        yield from (f"there is no {what} {number}" for number in numbers(match["numbers"]) if number not in there)
    for match in ROW.finditer(text):
        if int(match["row"]) not in sections.get(COUNTED_IN[match["rule"]], set()):
            yield f"{match['rule']} has no row {match['row']}"


def loose_numbers(tree: Tree, text: str) -> Iterator[tuple[int, str]]:
    """(position, number) of what is a section's number by its looks: alone in brackets, after "section", before "item"."""
    for group in GROUP.finditer(text):
        if any(number not in tree.numbered for number in re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", group[1])):
            continue  # figures or versions among others
        at = group.start(1)
        for part in re.split(r"([;,:]| and | or )", group[1]):
            item = GROUP_ITEM.fullmatch(part.strip())
            if item is not None and item[1] in tree.numbered:
                yield at, item[1]
            at += len(part)
    for pattern in LOOSE:
        for match in pattern.finditer(text):
            if match[1] in tree.numbered or pattern not in LOOSE[2:]:
                yield match.start(1), match[1]


# --- the tree as it is --------------------------------------------------------------------------------------------


def test_everything_cited_is_there() -> None:
    found = sorted(set(dangling(ROOT)))
    assert not found, f"{len(found)} citations lead nowhere:\n" + "\n".join(found)


# --- the test of the test -----------------------------------------------------------------------------------------

PAGE = """# The protocol

## 4. Change

| row | outcome |
| --- | --- |
| 1 | OK |

| id | rule |
| --- | --- |
| EC-9 | outcomes: (1) look, (2) decide |
| D6 | frozen |

### 4.2 Windows

Told in 4.2 and (4.2), see section 4.

## 13. Checks

### 13.3 Scenarios

| 1 | a crash |
| 2 | a loss |

## 14. History

| 3 | a late fence |

## 16. Open questions

1. Which?
"""
GOOD = '''"""One change (replication-protocol.md 4.2; EC-9 row 1, D6), over all of it (section 4)."""

VERSION = "4.7"  # replication-protocol.md 14 item 3, and docs/replication-protocol.md 4, 13.3 and 16


def change(share: float = 4.2) -> None:
    """EC-9 (1), EC-9 (2): scenarios 1 and 2, open question 1. Not cited: 4.2 MB, bookies of 4.18 (4.18), UTF-8, half (0.5), RFC
    6749 section 6, release 13.3."""
    print(round(share, (4)), (13.3), "scenario")
'''


def planted(tmp_path: Path, text: str, name: str = "code.py") -> list[str]:
    """Return the finds in a small tree after ``text`` was put into a file of it."""
    for path, content in {"docs/replication-protocol.md": PAGE, "bk_core/good.py": GOOD, f"bk_core/{name}": text}.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content, encoding="utf-8")
    return dangling(tmp_path)


def test_what_is_there_is_found(tmp_path: Path) -> None:
    assert planted(tmp_path, "") == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('"""Windows (replication-protocol.md 4.3)."""', "replication-protocol.md has no section 4.3"),
        ('"""Windows (replication-protocol.md 4.2, 4.4 and 4)."""', "replication-protocol.md has no section 4.4"),
        ('"""Windows (section 7 of replication-protocol.md)."""', "replication-protocol.md has no section 7"),
        ('"""Fences (replication-protocol.md 14 item 9)."""', "replication-protocol.md 14 has no item 9"),
        ('"""Fences (replication-protocol.md\n14, item 9)."""', "replication-protocol.md 14 has no item 9"),
        (f"x = 1  # as in {ABSENT} 3", f"there is no document {ABSENT}"),
        ("x = 1  # as in docs/wire/replication-protocol.md", "there is no document docs/wire/replication-protocol.md"),
        ('"""Only windows (4.2)."""', "4.2 names no document"),
        ('"""Only windows (EC-9; 4.2)."""', "4.2 names no document"),
        ('"""Only a change (section 4)."""', "4 names no document"),
        ('"""Only fences, 14 item 3."""', "14 names no document"),
        ('"""Numbered as in 13.3."""', "13.3 names no document"),
        ('"""4.2: only windows."""', "4.2 names no document"),
        ("# --- 4.2 ---", "4.2 names no document"),
        ('"""replication-protocol.md 4, its windows (4.2), and section 5."""', "replication-protocol.md has no section 5"),
        ('CAUGHT = ("EC-9", "EC-10")', "there is no EC-10"),
        ('"""XY-1."""', "no page has rules of the name XY-1"),
        ('"""D7: not frozen."""', "there is no D7"),
        ('"""R1: fenced."""', "there is no R1"),
        ('"""EC-9 row 2."""', "EC-9 has no row 2"),
        ('"""EC-9 (3)."""', "EC-9 has no step 3"),
        ('"""D6, EC-9\n(4): told."""', "EC-9 has no step 4"),
        ('"""Scenarios 1 to 3."""', "there is no scenario 3"),
        ('"""Open question 2."""', "there is no open question 2"),
    ],
)
def test_what_is_not_there_is_missed(tmp_path: Path, text: str, what: str) -> None:
    assert planted(tmp_path, f"import os\n\n{text}\n") == [f"bk_core/code.py:3: {what}"]


@pytest.mark.parametrize(
    ("link", "what"),
    [
        ("../docs/replication-protocol.md#4-change", None),
        ("../docs/replication-protocol.md#5-close", "a link to #5-close, which docs/replication-protocol.md does not have"),
        ("../docs/", None),
        ("gone/", "a link to gone/, which is not there"),
        ("#a-page", None),
        ("https://example.org/x.html", None),
    ],
)
def test_links_lead_somewhere(tmp_path: Path, link: str, what: str | None) -> None:
    found = planted(tmp_path, f"# A page\n\n[there]({link})\n", "README.md")
    assert found == ([] if what is None else [f"bk_core/README.md:3: {what}"])


def test_prose_of_c_and_of_notebooks_counts_and_code_does_not(tmp_path: Path) -> None:
    assert planted(tmp_path, "/* windows (4.2) */\nfloat x = f(4.2); // (4.2)\n", "a.c") == [
        "bk_core/a.c:1: 4.2 names no document",
        "bk_core/a.c:2: 4.2 names no document",
    ]
    (tmp_path / "bk_core" / "a.c").unlink()
    cells = [{"cell_type": "code", "source": ["f(4.2)"]}, {"cell_type": "markdown", "source": ["See (4.2)."]}]
    assert planted(tmp_path, json.dumps({"cells": cells}), "a.ipynb") == ["bk_core/a.ipynb:1: 4.2 names no document"]
