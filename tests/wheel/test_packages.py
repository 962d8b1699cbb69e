"""The wheel and the source distribution: what is in them, and that they work outside of the checkout. No network is needed.

An environment here finds the packages that ours need in the one that runs the tests. ``make wheel`` and ``make matrix`` install them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import site
import subprocess
import sys
import tomllib
import venv
from email import message_from_bytes
from email.message import Message
from pathlib import Path, PurePosixPath

import pytest

from docs.index_page import LINK, index_page
from tests.wheel import builds

ROOT = builds.ROOT
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="only git knows which files belong to the repository")
MADE = r"PKG-INFO|setup\.cfg|bk_spark\.egg-info/.*"  # what setuptools adds to a source distribution
PACKED = r"bk_(core|spark)/(.*/)?(\w+\.py|\w+\.pyi|py\.typed|\w+\.proto)|bk_core/ui/static/\w+\.(css|js|svg)|pyspark_bookkeeper\.py"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(scope="module")
def sdist(work: Path) -> Path:
    """Unpacked."""
    return builds.unpack(builds.build("sdist", builds.copy(work / "tree"), work / "dist"), work / "unpacked")


@pytest.fixture(scope="module")
def wheel(work: Path, sdist: Path) -> Path:
    """Made of the source distribution, as an index would give it."""
    return builds.build("wheel", sdist, work / "dist")


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    return message_from_bytes(builds.contents(wheel)[f"bk_spark-{PROJECT['version']}.dist-info/METADATA"])


@pytest.fixture(scope="module")
def environment(work: Path, wheel: Path) -> Path:
    home = work / "environment"
    venv.create(home, symlinks=True)
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text("\n".join(site.getsitepackages()))
    builds.run(sys.executable, "-m", "pip", "--python", home, "install", "--no-index", "--no-deps", wheel)
    return home


def test_the_source_distribution_is_the_repository(sdist: Path) -> None:
    """Documents, C sources, headers, licence, tests, and what builds them. A new file at the top needs a word in MANIFEST.in."""
    found = {str(path.relative_to(sdist)) for path in sdist.rglob("*") if path.is_file()}
    ours = {name for name in found if not re.fullmatch(MADE, name)}
    assert ours == set(builds.tracked())
    for name in ("LICENSE", "docs/wire-protocol.md", "native/crc32c.c", "native/crc32c.h", "bk_core/protocol/RULES.md", "CHANGELOG.md"):
        assert (sdist / name).read_bytes() == (ROOT / name).read_bytes()


def test_the_wheel_is_the_packages_and_nothing_else(wheel: Path) -> None:
    ours = {name for name in builds.tracked() if re.fullmatch(PACKED, name)}
    assert {"bk_core/py.typed", "bk_spark/py.typed", "bk_core/kernels/_native.pyi", "bk_core/protocol/wire/_proto/bookie.proto"} <= ours
    about = f"bk_spark-{PROJECT['version']}.dist-info"
    parts = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt", "licenses/LICENSE")
    assert set(builds.contents(wheel)) == ours | {"bk_core/kernels/_native.abi3.so"} | {f"{about}/{part}" for part in parts}
    assert re.fullmatch(rf"bk_spark-{PROJECT['version']}-cp311-abi3-linux_\w+\.whl", wheel.name)


def test_the_source_distribution_makes_the_wheel_of_the_checkout(work: Path, wheel: Path) -> None:
    """But for the extension, of which the compiler may tell where it was made."""
    direct = builds.contents(builds.build("wheel", work / "tree", work / "direct"))
    through = builds.contents(wheel)
    assert set(direct) == set(through)
    differ = {PurePosixPath(name).name for name in direct if direct[name] != through[name]}
    assert differ <= {"_native.abi3.so", "RECORD"}


def test_the_metadata_are_those_of_the_project(metadata: Message) -> None:
    assert metadata["Name"] == "bk-spark" and metadata["Version"] == PROJECT["version"]
    assert metadata["License-Expression"] == "Apache-2.0" and metadata["Requires-Python"] == PROJECT["requires-python"]
    assert set(metadata.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert metadata.get_all("Classifier") == PROJECT["classifiers"]


# --- the page of an index ------------------------------------------------------------------------------------------------


def test_no_link_of_the_page_is_relative(metadata: Message) -> None:
    page = metadata.get_payload()
    assert isinstance(page, str)
    assert page.startswith('# bk-spark\n\n    pip install "bk-spark[spark]"\n')
    assert not LINK.search(page)
    readme = (ROOT / "README.md").read_text()
    targets = {link[2] for link in LINK.finditer(readme)}
    assert len(targets) > 5 and all(f"(`{target}`)" in page for target in targets)
    assert re.findall(r"^#+ .*$", page, re.M) == re.findall(r"^#+ .*$", readme, re.M)


def test_links_become_words_or_absolute_and_code_stays() -> None:
    readme = "[a](b/c.txt#d), [e](f.txt), [g](#h), [i](https://example.org/j)\n\n    [k](l.txt)\n\n`[m](n.txt)`\n\n```\n[o](p.txt)\n```\n"
    rest = ", [g](#h), [i](https://example.org/j)\n\n    [k](l.txt)\n\n`[m](n.txt)`\n\n```\n[o](p.txt)\n```\n"
    assert index_page(readme, None) == "a (`b/c.txt`), e (`f.txt`)" + rest
    assert index_page(readme, "https://example.org/x/") == "[a](https://example.org/x/b/c.txt#d), [e](https://example.org/x/f.txt)" + rest


def test_links_begin_with_the_address_of_the_project_when_it_has_one(work: Path) -> None:
    tree = builds.copy(work / "with-address")
    text = (tree / "pyproject.toml").read_text()
    (tree / "pyproject.toml").write_text(
        text.replace("[project.scripts]", '[project.urls]\nFiles = "https://example.org/x"\n\n[project.scripts]')
    )
    made = builds.unpack(builds.build("sdist", tree, work / "dist-with-address"), work / "unpacked-with-address") / "PKG-INFO"
    found = message_from_bytes(made.read_bytes())
    assert "[All options](https://example.org/x/bk_spark/README.md#options)" in str(found.get_payload())
    assert found["Project-URL"] == "Files, https://example.org/x"


# --- installed -----------------------------------------------------------------------------------------------------------


def play(environment: Path, home: Path, *arguments: str) -> dict[str, object]:
    home.mkdir()
    shutil.copy(ROOT / "tests/wheel/first_lines.py", home)
    command = [environment / "bin" / "python", "first_lines.py", *arguments]
    done = subprocess.run(command, cwd=home, env=builds.activated(environment), capture_output=True, text=True, timeout=560)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.deep  # make wheel plays them, too
@pytest.mark.timeout(600)
def test_the_lines_of_the_readme_run_where_the_wheel_is_installed(environment: Path, tmp_path: Path) -> None:
    found = play(environment, tmp_path / "home")
    assert found["version"] == PROJECT["version"] and found["rows"] == 3 and found["kernels"]


def test_a_checkout_on_the_path_is_noticed(environment: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copytree(ROOT / "bk_core", home / "bk_core", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "tests/wheel/first_lines.py", home)
    command = [os.fspath(environment / "bin" / "python"), "first_lines.py", "--without-spark"]
    done = subprocess.run(command, cwd=home, env=builds.activated(environment), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "is not of this environment" in done.stderr
