"""The READMEs of the packages are maps, in both directions.

They name files, and classes and functions with the file that has them: all of that is there. And each module stands in the first column of
a table of the nearest README above it, by its name, or by the name of a folder that has no README of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("bk_core", "bk_spark")
READMES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("README.md"))
NAMED = re.compile(r"`(?P<name>[A-Za-z_][\w.]*)(?<!\.py)`(?: \(|, | in )`(?P<file>[\w/]+\.py)`")
FILE = re.compile(r"`(?P<file>[\w/]+\.py)`")
FIRST_COLUMN = re.compile(r"^\| (.+?) \|", re.MULTILINE)
PLACE = re.compile(r"`([\w/.]+)`")
NO_MODULES = {"__init__.py", "__main__.py"}
NO_FOLDERS = {"_proto", "__pycache__"}


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


def inhabitants(folder: Path, below: str = "") -> Iterator[str]:
    """Yield the modules that the map of a folder has to name, by their paths from there: its own, and those of folders without a map. A
    folder with a map of its own is yielded as ``folder/``."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in NO_FOLDERS:
            if (path / "README.md").is_file():
                yield f"{below}{path.name}/"
            else:
                yield from inhabitants(path, f"{below}{path.name}/")
        elif path.suffix == ".py" and path.name not in NO_MODULES:
            yield below + path.name


def left_out(readme: Path) -> list[str]:
    """The modules and mapped folders that stand in no first column of a README's tables."""
    cells = FIRST_COLUMN.findall(readme.read_text(encoding="utf-8"))
    places = [place for cell in cells for place in PLACE.findall(cell)]
    folders = {place.rstrip("/") + "/" for place in places if not place.endswith(".py")}
    there = [one for one in inhabitants(readme.parent) if not any(one.startswith(folder) for folder in folders)]
    # Two modules of one name in different folders take two rows.
    named = Counter(place.rpartition("/")[2] for place in places if place.endswith(".py"))
    wanted = Counter(one.rpartition("/")[2] for one in there)
    return [one for one in there if one.endswith("/") or named[one.rpartition("/")[2]] < wanted[one.rpartition("/")[2]]]


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_readme_names_is_there(readme: Path) -> None:
    assert not sorted(set(wrong(readme)))


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_module_stands_in_the_map_above_it(readme: Path) -> None:
    assert not left_out(readme), f"{readme.relative_to(ROOT)} has no row for {', '.join(left_out(readme))}"


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


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ("| `log.py`, `part/log.py` | logs |\n| `deep/` | a map |\n| `flat/` | all of it |\n", []),
        ("| `log.py` | logs |\n| `part/` | parts |\n| `deep/` | a map |\n| `flat/one.py` | one |\n", []),
        ("| `log.py` | logs |\n| `deep/` | a map |\n| `flat/` | all of it |\n", ["log.py", "part/log.py"]),
        ("| `log.py`, `part/log.py` | logs, and `flat/`, `deep/` |\n", ["deep/", "flat/one.py"]),
    ],
)
def test_a_module_that_is_left_out_is_noticed(rows: str, told: list[str], tmp_path: Path) -> None:
    for name in ("__init__.py", "log.py", "part/log.py", "flat/one.py", "deep/README.md", "deep/inner.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    (tmp_path / "README.md").write_text(f"| module | holds |\n| --- | --- |\n{rows}", encoding="utf-8")
    assert left_out(tmp_path / "README.md") == told
