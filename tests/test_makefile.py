"""``make help`` tells every target, and what pages and code say about `make` is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):(?!=)", MAKEFILE, re.M))
PAGES = sorted(path for path in ROOT.rglob("*.md") if not {".venv", ".cache", "demo-out"} & {*path.relative_to(ROOT).parts})


def listed(makefile: Path) -> dict[str, str]:
    """Return the output of ``make help``: the line of each target."""
    done = subprocess.run(["make", "-f", makefile, "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    rows = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert all(row[0] == "make" for row in rows)
    return {row[1]: row[2] for row in rows}


def test_help_has_one_line_for_each_target() -> None:
    found = listed(ROOT / "Makefile")
    assert set(found) == TARGETS
    assert len(TARGETS) > 30
    assert max(len(line) for line in found.values()) < 110


def test_a_target_without_its_line_is_missing_in_the_list(tmp_path: Path) -> None:
    changed = tmp_path / "Makefile"
    assert "\n## ruff" in MAKEFILE
    changed.write_text(MAKEFILE.replace("\n## ruff", "\n# ruff"))
    assert set(listed(changed)) == TARGETS - {"lint"}


def test_pages_name_targets_that_there_are() -> None:
    """In code only: a sentence may make other things."""
    named = {}
    for page in PAGES:
        for match in re.finditer(r"`make ([a-z][a-z0-9-]*)|^ {4}make ([a-z][a-z0-9-]*)", page.read_text(), re.M):
            named[match[1] or match[2]] = str(page.relative_to(ROOT))
    assert {"test", "demo", "lock"} <= set(named)
    assert {target: page for target, page in named.items() if target not in TARGETS} == {}
