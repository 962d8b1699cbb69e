"""The version stands in pyproject.toml; whatever else tells it asks there or agrees."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import bk_core

ROOT = Path(__file__).resolve().parents[1]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
UNKNOWN = """
import importlib.metadata, sys
def version(name):
    raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = version
import bk_core, bk_core.cli
print(bk_core.__version__)
bk_core.cli.main(["--version"])
"""


def said(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_package_and_the_command_tell_the_declared_version() -> None:
    assert version("bk-spark") == bk_core.__version__ == VERSION
    assert said('from bk_core.cli import main; main(["--version"])') == f"bk, version {VERSION}\n"


def test_a_source_tree_that_is_not_installed_says_so() -> None:
    assert said(UNKNOWN) == "0+unknown\nbk, version 0+unknown\n"


def test_pages_tell_no_other_version() -> None:
    assert re.findall(r"^This is version (\S+);", (ROOT / "README.md").read_text(), re.M) == [VERSION]
    newest = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None and VERSION in newest[1]


def test_no_module_has_a_version_of_its_own() -> None:
    for package in ("bk_core", "bk_spark"):
        for path in (ROOT / package).rglob("*.py"):
            assert not re.search(r"^__version__ *=|^VERSION *= *[\"']", path.read_text(), re.M), path
