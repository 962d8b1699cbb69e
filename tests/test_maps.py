"""The READMEs of the packages name files, and classes and functions with the file that has them. All of that is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("bk_core", "bk_spark")
READMES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("README.md"))
NAMED = re.compile(r"`(?P<name>[A-Za-z_][\w.]*)(?<!\.py)`(?: \(|, | in )`(?P<file>[\w/]+\.py)`")
FILE = re.compile(r"`(?P<file>[\w/]+\.py)`")


def found(readme: Path, file: str, root: Path = ROOT) -> Path | None:
    """The file that a README names: from its own folder, from its package, from the root, or, by its bare name, in a folder below."""
    package = root / readme.relative_to(root).parts[0]
    places = [place / file for place in (readme.parent, package, root)]
    return next((path for path in (*places, *([] if "/" in file else readme.parent.rglob(file))) if path.is_file()), None)


def has(path: Path, name: str) -> bool:
    """True if the file defines it; of ``Class.method`` both."""
    text = path.read_text(encoding="utf-8")
    return all(re.search(rf"\b(?:def|class) {part}\b|^\s*{part}\b.* = ", text, re.MULTILINE) for part in name.split("."))


def wrong(readme: Path, root: Path = ROOT) -> Iterator[str]:
    text = " ".join(readme.read_text(encoding="utf-8").split())
    for match in FILE.finditer(text):
        if found(readme, match["file"], root) is None:
            yield f"there is no {match['file']}"
    for match in NAMED.finditer(text):
        path = found(readme, match["file"], root)
        if path is not None and not has(path, match["name"]):
            yield f"{match['file']} has no {match['name']}"


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_readme_names_is_there(readme: Path) -> None:
    assert not sorted(set(wrong(readme)))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("`Log` (`log.py`) and `Log.roll` in `log.py`, of `part/log.py`.", []),
        ("`Log`\n(`part/log.py`)", ["part/log.py has no Log"]),
        ("`Log.trim` (`log.py`)", ["log.py has no Log.trim"]),
        ("`Log`, `lost.py`", ["there is no lost.py"]),
    ],
)
def test_what_is_not_there_is_noticed(text: str, told: list[str], tmp_path: Path) -> None:
    (tmp_path / "bk" / "part").mkdir(parents=True)
    (tmp_path / "bk" / "log.py").write_text("class Log:\n    def roll(self) -> None: ...\n", encoding="utf-8")
    (tmp_path / "bk" / "part" / "log.py").write_text("", encoding="utf-8")
    (tmp_path / "bk" / "README.md").write_text(text, encoding="utf-8")
    assert list(wrong(tmp_path / "bk" / "README.md", tmp_path)) == told
