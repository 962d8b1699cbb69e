"""The documentation site builds without a warning, leads nowhere that is not there, loads nothing from elsewhere, and its reference names
everything that users can name."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from markdown_it import MarkdownIt

import bk_core
import bk_spark
from bk_core.cli import cli
from bk_core.config import ClientConfig
from bk_core.protocol.ledger.read.options import ReadOptions
from bk_core.protocol.limits import Limits
from bk_spark.options.table import OPTIONS
from docs.site import assemble, pictures, reference
from docs.site.__main__ import complete
from docs.site.command_lists import WIDE, as_tables
from docs.site.commonmark import for_python_markdown
from docs.site.links import PAGES, ROOT, lines_of
from tests import state_tables
from tests.site_html import Html, Site, structure
from tests.test_references import ABSENT, GENERATED


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site that was just built, in a process of its own: MkDocs changes how warnings and logging behave."""
    out = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run([sys.executable, "-m", "docs.site", "--out", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def site(built: Path) -> Site:
    return Site(built)


@pytest.fixture(scope="module")
def assembly() -> assemble.Assembly:
    return assemble.Assembly()


# --- pages ------------------------------------------------------------------------------------------------------------


def test_nothing_is_wrong_with_any_page(site: Site) -> None:
    assert len(site.pages) > 60
    found = site.faults()
    assert not found, f"{len(found)} faults:\n" + "\n".join(found)


def test_the_search_knows_every_page(built: Path, site: Site) -> None:
    index = json.loads((built / "search" / "search_index.json").read_text())
    known = {entry["location"].partition("#")[0] for entry in index["docs"]}
    assert known == set(site.pages) - {"404.html"}
    assert any("Whoever recovers a ledger fences it" in entry["text"] for entry in index["docs"] if entry["location"] == "promises.html")


def test_every_page_has_the_parts_that_its_source_has(built: Path, site: Site) -> None:
    """Lists, tables, code and headings, as a parser of CommonMark finds them: Python-Markdown reads some lists otherwise."""
    parser = MarkdownIt("commonmark").enable("table")
    source = built.with_name("site-source")
    for path in sorted(source.rglob("*.md")):
        name = path.relative_to(source).with_suffix(".html")
        name = name.with_name("index.html") if path.name == "README.md" else name
        plain = source / "plain.html"
        text = re.sub(r"\A---\n.*?\n---\n", "", path.read_text(), flags=re.S)
        plain.write_text(f"<article>{parser.render(text)}</article>")
        assert structure(site.pages[name.as_posix()].article) == structure(Html(plain).article), name


def test_every_document_of_the_repository_is_on_the_site(site: Site, assembly: assemble.Assembly) -> None:
    for name in assembly.documents:
        page = assembly.places.where(name, "")
        assert page is not None, name
        html = page.partition("#")[0].replace("README.md", "index.md").replace(".md", ".html")
        assert html in site.pages, name


def test_a_page_that_takes_a_section_has_its_text(site: Site, assembly: assemble.Assembly) -> None:
    words = {name: " ".join(page.text.split()) for name, page in site.pages.items()}
    for (name, anchor), place in assembly.places.moved.items():
        if place.startswith("reference/"):
            continue  # it says the same in other words
        first, end = assembly.documents[name].span(anchor)
        page = words[place.partition("#")[0].replace(".md", ".html")]
        lines = assembly.documents[name].text.split("\n")[first + 1 : end]
        plain = [line for line in lines if re.fullmatch(r"[A-Z][A-Za-z ,.']{30,}", line)]
        assert all(line.strip() in page for line in plain), (name, anchor)


def test_a_page_says_what_its_examples_begin_with(assembly: assemble.Assembly) -> None:
    """A reader who pastes the first example of a page has its names, or has read what they are."""
    pages = dict(assembly.files())
    met = 0
    for page, text in pages.items():
        known: set[str] = set()
        for found in re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S):
            try:
                nodes = list(ast.walk(ast.parse(found[1])))
            except SyntaxError:  # a signature
                continue
            known |= {alias.asname or alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
            names = [node for node in nodes if isinstance(node, ast.Name)]
            known |= {node.id for node in names if isinstance(node.ctx, ast.Store)} | {
                node.arg for node in nodes if isinstance(node, ast.arg)
            }
            lacking = {node.id for node in names if node.id in ("bk_core", "uri")} - known
            before = " ".join(text[: found.start()].split())
            said = {"bk_core": "import bk_core", "uri": "`uri` "}
            met += len(lacking)
            assert all(said[name] in before for name in lacking), f"{page} uses {lacking}:\n{found[1]}"
    assert met > 5


def test_a_page_that_the_navigation_does_not_name_is_put_where_its_folder_is() -> None:
    nav: list[Any] = [{"A": ["a/one.md", {"Two": "a/two.md"}]}, {"B": [{"C": ["b/README.md"]}]}, {"D": "d.md"}]
    complete(nav, ["a/one.md", "a/two.md", "b/README.md", "b/x/README.md", "d.md", "a/b/three.md"])
    assert nav == [
        {"A": ["a/one.md", {"Two": "a/two.md"}, "a/b/three.md"]},
        {"B": [{"C": ["b/README.md", "b/x/README.md"]}]},
        {"D": "d.md"},
    ]


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_every_machine_with_states_is_drawn(site: Site) -> None:
    page = site.pages["bk_core/protocol/index.html"]
    drawn = re.findall(r'<div class="picture">(.*?)</div>', page.path.read_text(), re.S)
    tables = re.findall(r"```mermaid\n(.*?)```", state_tables.render(), re.S)
    assert len(drawn) == len(tables) > 3
    for picture, table in zip(drawn, tables, strict=True):
        states = set(re.findall(r"[A-Z_]{3,}", table))
        assert set(re.findall(r'class="label">([A-Z_]+)</text>', picture)) == states
        arrows = [arrow for arrow in re.findall(r"(\S+) --> (\S+)", table) if "[*]" not in arrow]
        assert len(re.findall(r'<path d="M[^"]* C', picture)) == len(arrows)


def test_states_do_not_lie_on_one_another() -> None:
    picture = pictures.states("stateDiagram-v2\n [*] --> A\n A --> B\n A --> C\n B --> D\n C --> D\n D --> A\n A --> D\n D --> [*]\n")
    boxes = [tuple(map(float, box)) for box in re.findall(r'<rect x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)"', picture)]
    assert len(boxes) == 4
    for at, (x, y, width, height) in enumerate(boxes):
        for other_x, other_y, other_width, other_height in boxes[at + 1 :]:
            assert x + width <= other_x or other_x + other_width <= x or y + height <= other_y or other_y + other_height <= y


# --- reference --------------------------------------------------------------------------------------------------------


def test_the_pages_that_are_made_are_those_that_may_be_cited() -> None:
    assert {f"{PAGES}/reference/{name}" for name in reference.pages()} == GENERATED


def test_every_public_name_is_there(site: Site) -> None:
    for page, module in (
        ("reference/api.html", bk_core), ("reference/aio-api.html", bk_core.aio), ("reference/spark-api.html", bk_spark),
    ):  # fmt: skip
        ids, text = set(site.pages[page].ids), site.pages[page].text
        for name in module.__all__:
            assert name.lower() in ids or f"{module.__name__}{name}".lower() in ids, name
            assert name in text
            what = getattr(module, name)
            for member in vars(what) if isinstance(what, type) and issubclass(what, object) else ():
                is_public = not member.startswith("_") and callable(getattr(what, member)) and not isinstance(getattr(what, member), type)
                assert not is_public or f"{name}.{member}" in text or page == "reference/spark-api.html", f"{name}.{member}"


def test_every_error_is_there_with_what_to_do(site: Site) -> None:
    page = site.pages["reference/errors.html"]
    text = " ".join(page.text.split())
    found = reference.all_errors()
    assert len(found) > 85
    for cls in found:
        assert cls.__name__.lower() in page.ids and cls.code in text, cls
        assert re.sub("`", "", cls.advice) in text, cls


def test_every_option_is_there(site: Site) -> None:
    page = site.pages["reference/options.html"]
    for option in OPTIONS:
        assert re.sub(r"\W", "", option.name).lower() in page.ids, option.name
        assert all(alias in page.text for alias in option.aliases), option.name
    assert "An unknown option is an error." in page.text


def test_every_command_is_there_with_its_options(site: Site) -> None:
    text = " ".join(site.pages["reference/cli.html"].text.split())
    commands = list(reference.all_commands())
    assert len(commands) > 40
    for name, command in commands:  # single ones stand below their own group
        before = [group for group, one in commands[: commands.index((name, command))] if isinstance(one, click.Group)]
        assert isinstance(command, click.Group) or before[-1] == name.rpartition(" ")[0]
    for name, command in commands:
        assert name in text
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert all(option in text for option in parameter.opts), (name, parameter.name)


@pytest.mark.parametrize("cls", [ClientConfig, Limits, ReadOptions], ids=lambda cls: cls.__name__)
def test_every_setting_is_there_with_its_effect(site: Site, cls: type) -> None:
    page = site.pages["reference/settings.html"]
    behind = reference.strings_behind(cls)
    for field in dataclasses.fields(cls):
        assert field.name in page.ids
        assert behind.get(field.name, "").endswith("."), f"{cls.__name__}.{field.name}: say its effect in a string behind it"
        assert " ".join(re.sub("`", "", behind[field.name]).split()) in " ".join(page.text.split())


# --- what is refused --------------------------------------------------------------------------------------------------


PAGE = '<html><head><title>x</title></head><body><nav></nav><main><h1 id="a">A</h1><article>{}</article></main></body></html>'


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        (PAGE.format('<p><a href="#a">a</a></p>'), None),
        (PAGE.format('<a href="#b">b</a>'), "leads to #b, which is not there"),
        (PAGE.format('<a href="gone.html">b</a>'), "leads to gone.html, which is not there"),
        (PAGE.format('<a href="page.html#b">b</a>'), "leads to page.html#b, which is not there"),
        (PAGE.format('<img src="https://example.org/x.png">'), "loads https://example.org/x.png"),
        (PAGE.format('<script src="//example.org/x.js"></script>'), "loads //example.org/x.js"),
        (PAGE.format('<img src="gone.png">'), "loads gone.png, which is not there"),
        (PAGE.format('<p style="background: url(https://example.org/x.png)"></p>'), "loads https://example.org/x.png"),
        (PAGE.format("<style>@import 'https://example.org/x.css';</style>"), "loads https://example.org/x.css"),
        (PAGE.format('<p id="b"></p><p id="b"></p>'), "has the id b 2 times"),
        (PAGE.format("<table class='wide'></table>"), "may be too wide: a table of class wide"),
        (PAGE.format("<p><svg width='900'></svg></p>"), "may be too wide: a picture outside of its box"),
        (PAGE.format("<h1>B</h1>"), "has 2 <h1>"),
        (PAGE.format("").replace("<title>x</title>", ""), "has no title"),
        (PAGE.format("").replace("<nav></nav>", ""), "has no navigation"),
    ],
)
def test_faults_are_seen(tmp_path: Path, html: str, fault: str | None) -> None:
    (tmp_path / "page.html").write_text(html)
    assert Site(tmp_path).faults() == ([] if fault is None else [f"page.html: {fault}"])


def test_a_style_sheet_that_loads_from_elsewhere_is_seen(tmp_path: Path) -> None:
    (tmp_path / "site.css").write_text("@font-face { src: url('https://example.org/font.woff2') } p { background: url(data:image/png;x) }")
    assert Site(tmp_path).faults() == ["site.css loads https://example.org/font.woff2"]


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (f"# A\n\n[x](../../{ABSENT})\n", f"a link to ../../{ABSENT}, which is not there"),
        ("# A\n\n<!-- include: README.md#gone -->\n", "README.md has no section #gone"),
        ("# A\n\n<!-- include: README.md#install -->\n", "README.md#install is included twice"),
    ],
)
def test_a_page_that_names_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch, page: str, said: str) -> None:
    own = assemble.pages()
    monkeypatch.setattr(assemble, "pages", lambda: own | {"more" + ".md": page})
    with pytest.raises((LookupError, AssertionError), match=re.escape(said)):
        dict(assemble.Assembly().files())


def test_links_lead_to_where_a_section_is(assembly: assemble.Assembly) -> None:
    places = assembly.places
    page = "guides/index.md"
    line = places.linked("[s](../../../../bk_spark/README.md#sink), `metadata.md 4`, metadata.md 4.3, RC-5", f"{PAGES}/{page}", page)
    assert "[s](spark-sink.md#what-the-sink-guarantees), `metadata.md 4`" in line
    assert "[metadata.md 4.3](../docs/metadata.md#43-" in line
    assert "[RC-5](../" + "bk_core/protocol/rules.md#RC-5)" in line
    assert places.linked("[code](../../../../Makefile)", f"{PAGES}/{page}", page) == "code"


@pytest.mark.parametrize(
    ("text", "rewritten"),
    [
        ("a\n* b\n  c", "a\n\n* b\n    c"),
        ("1. b\n\n       code\n2. c", "1. b\n\n        code\n\n2. c"),
        ("* a\n  * b\n    c", "* a\n    * b\n        c"),
        ("```\n* a\n```", "```\n* a\n```"),
    ],
)
def test_lists_are_rewritten_for_python_markdown(text: str, rewritten: str) -> None:
    assert for_python_markdown(text) == rewritten


@pytest.mark.parametrize(
    ("block", "rows"),
    [
        (
            f"    bk log ls         all of them, {'x' * WIDE}\n    bk log rm NAME\n    bk log gc    a_b | c",
            ["`bk log ls`", "`bk log rm NAME`"],
        ),
        (f"    bk log ls         all of them,\n                      {'x' * WIDE}\n    bk log gc    left", ["`bk log ls`", "`bk log gc`"]),
        ("    bk log ls         all of them\n    bk log gc         what is left", []),
        (f"    bk log ls ─► {'x' * WIDE}    a picture\n    bk log gc         what is left", []),
        (f"    one line of code, {'x' * WIDE}", []),
        (f"    a | b         a bar, {'x' * WIDE}\n    b         none", ["<code>a &#124; b</code>", "`b`"]),
        (f"* an item\n\n      bk log ls         all of them, {'x' * WIDE}\n      bk log gc         what is left", []),
    ],
)
def test_wide_lists_of_commands_are_tables(block: str, rows: list[str]) -> None:
    made = as_tables(f"Before.\n\n{block}\n\nAfter.\n")
    assert made.startswith("Before.\n\n") and made.endswith("\n\nAfter.\n")
    assert re.findall(r"^\| ([`<].+?[`>]) \|", made, re.M)[: len(rows)] == rows
    assert bool(rows) == ("| --- | --- |" in made) == (block not in made)
    assert "a_b | c" not in made or not rows


# --- examples ---------------------------------------------------------------------------------------------------------


def bk_lines(text: str) -> list[list[str]]:
    """The words of every ``bk`` command in blocks of code: fenced ones of no other language, and indented ones."""
    fenced = [code.split("\n") for language, code, _ in assemble.fences(text) if language in ("", "sh")]
    indented = [[line] for line, is_prose in lines_of(text) if is_prose and line.startswith("    ")]
    found = []
    for line in [line for block in [*fenced, *indented] for line in block]:
        command = re.search(r"(?:^|\| *)(bk [a-z].*)", re.split(r"\s{2,}(?!\S*$)|\s#|\s{4,}", line.strip())[0])
        if command is not None:
            found.append(command[1].split())
    return found


def wrong_words(words: list[str]) -> str | None:
    """Say what the command line does not know of a command; None if it knows all."""
    command: click.Command = cli
    rest = words[1:]
    while isinstance(command, click.Group):
        if not rest:
            return None
        if rest[0] not in command.commands:
            return f"there is no {' '.join([command.name or 'bk', rest[0]])}"
        command = command.commands[rest.pop(0)]
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
    unknown = [word for word in rest if word.startswith("-") and word.partition("=")[0] not in known]
    return f"{command.name} has no {', '.join(unknown)}" if unknown else None


def test_commands_in_examples_are_there(assembly: assemble.Assembly) -> None:
    texts = {name: document.text for name, document in assembly.documents.items()} | assembly.pages
    lines = [(name, words) for name, text in texts.items() for words in bk_lines(text)]
    assert len(lines) > 40
    found = [f"{name}: {' '.join(words)}: {wrong}" for name, words in lines if (wrong := wrong_words(words)) is not None]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("bk log trim events --older-than 7d --dry-run    # comment --gone", None),
        ("tail -F app.log | bk log append events", None),
        ("bk log trimm events", "there is no log trimm"),
        ("bk log trim events --younger-than 7d", "trim has no --younger-than"),
    ],
)
def test_commands_that_are_not_there_are_seen(line: str, wrong: str | None) -> None:
    (words,) = bk_lines(f"```sh\n{line}\n```\n")
    assert wrong_words(words) == wrong


def test_every_block_that_is_not_run_has_a_reason() -> None:
    text = "<!-- not run: needs a broker -->\n\n```python\nx = 1\n```\n\ny\n\n```python\nx = 2\n```\n"
    assert list(assemble.fences(text)) == [("python", "x = 1\n", "needs a broker"), ("python", "x = 2\n", "")]


# `bookkeeper shell` of 4.18.0 prints these; the texts of BookieShell.class have no other.
SHELL = """
    metaformat initbookie initnewcluster nukeexistingcluster bookieformat recover ledger readledger listledgers activeledgers
    listunderreplicated whoisauditor whatisinstanceid ledgermetadata localconsistencycheck simpletest bookiesanity readlog readlogmetadata
    readjournal lastmark autorecovery queryautorecoverystatus listbookies listfilesondisc updatecookie updateledgers updateBookieInLedger
    deleteledger bookieinfo clusterinfo decommissionbookie endpointinfo convert-to-db-storage convert-to-interleaved-storage
    rebuild-db-ledger-locations-index rebuild-db-ledgers-index check-db-ledgers-index regenerate-interleaved-storage-index-file help
    lostbookierecoverydelay triggeraudit forceauditchecks cookie_create cookie_delete cookie_update cookie_get cookie_generate
"""


def test_every_command_of_apaches_shell_has_one_row() -> None:
    page = (ROOT / PAGES / "guides" / "from-java.md").read_text()
    section = page.partition("\n## The shell\n")[2].partition("\n## ")[0]
    named = [name for line in section.splitlines() if line.startswith("| ") for name in re.findall(r"`([^`]+)`", line.split("|")[1])]
    assert len(SHELL.split()) == 48 and sorted(named) == sorted(SHELL.split())
