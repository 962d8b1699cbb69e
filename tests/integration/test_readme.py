"""The snippets of README.md, of bk_core/README.md and of the documentation site do what they show.

Those with Spark are run by tests/spark/test_site.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bk_core.bookie.local_cluster import LocalCluster
from docs.site import assemble

ROOT = Path(__file__).resolve().parents[2]


def snippets(readme: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", readme.read_text(), re.MULTILINE | re.DOTALL)


def test_every_snippet_runs(running_clusters: Callable[[str], LocalCluster]) -> None:
    """In their order, in one program: later ones use what earlier ones made."""
    found = snippets(ROOT / "bk_core/README.md")
    assert len(found) == 8
    names: dict[str, Any] = {"uri": running_clusters("embedded").uri}
    for number, snippet in enumerate(found):
        exec(compile(snippet, f"bk_core/README.md, snippet {number}", "exec"), names)


def test_the_first_snippets_run_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Those of README.md that need no Spark, each a program of its own."""
    found = [snippet for snippet in snippets(ROOT / "README.md") if "spark" not in snippet]
    assert len(found) == 3
    for number, snippet in enumerate(found):
        exec(compile(snippet, f"README.md, snippet {number}", "exec"), {})
    told = capsys.readouterr().out
    assert "[{'dest': 'FRA', 'delay': 5}, {'dest': 'SFO', 'delay': None}]\n2\n" in told
    assert told.startswith("[b'hello']\n") and "b'payload 999'" in told and told.endswith("b'the last one'\n")


def programs() -> dict[str, str]:
    """The Python of each page of the site that needs no Spark, as one program."""
    found = {}
    for page, text in assemble.pages().items():
        blocks = [code for language, code, not_run in assemble.fences(text) if language == "python" and not not_run]
        if blocks and not any("spark" in block for block in blocks):
            found[page] = "\n".join(blocks)
    return found


def test_pages_of_the_site_have_programs() -> None:
    assert set(programs()) == {
        "guides/arrow.md",
        "guides/logs.md",
        "guides/from-java.md",
        "guides/from-kafka.md",
        "guides/notebooks.md",
    }


@pytest.mark.parametrize("page", programs())
def test_every_page_of_the_site_runs(page: str, running_clusters: Callable[[str], LocalCluster]) -> None:
    program = programs()[page]
    assert assemble.EXAMPLE_URI in program
    exec(compile(program.replace(assemble.EXAMPLE_URI, running_clusters("embedded").uri), page, "exec"), {})
