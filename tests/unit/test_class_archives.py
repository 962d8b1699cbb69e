"""Archives of classes: made once, named by what they belong to, and left aside when anything is wrong with them."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bk_core.bookie import apache
from bk_core.errors import BookieUnavailableError
from tests import class_archives


class Home:
    """A cache, a jar and a runtime of Java as far as the name of an archive depends on them."""

    def __init__(self, directory: Path) -> None:
        self.cache = directory / "cache" / "archives"
        self.jar = directory / "lib" / "a.jar"
        self.java = directory / "java" / "bin" / "java"
        for file in (self.jar, self.java, directory / "java" / "lib" / "modules", directory / "java" / "lib" / "server" / "libjvm.so"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"as built")
        self.trained = 0

    def train(self, options: list[str]) -> None:
        self.trained += 1
        Path(options[0].partition("=")[2]).write_bytes(b"classes")

    def options(self) -> list[str]:
        return class_archives.options("test", str(self.java), f"{self.jar.parent}/*", self.train)

    def made(self) -> list[Path]:
        return sorted(self.cache.glob("*.jsa"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("BK_CACHE", str(tmp_path / "cache"))
    return Home(tmp_path)


def test_it_is_made_once(home: Home) -> None:
    first = home.options()
    (made,) = home.made()
    assert (
        first == home.options() == [f"-XX:SharedArchiveFile={made}", "-XX:+VerifySharedSpaces", class_archives.QUIET] and home.trained == 1
    )


@pytest.mark.parametrize("changed", ["jar", "java"])
def test_other_jars_and_another_java_have_another(home: Home, changed: str) -> None:
    before = home.options()
    file: Path = home.jar if changed == "jar" else home.java.parents[1] / "lib" / "modules"
    file.write_bytes(b"built anew")
    assert home.options() != before and home.trained == 2 and len(home.made()) == 2


def test_one_that_was_cut_short_is_made_again(home: Home) -> None:
    """A JVM that maps it would crash."""
    before = home.options()
    (made,) = home.made()
    made.write_bytes(b"cla")
    assert home.options() == before and home.trained == 2 and made.read_bytes() == b"classes"


def test_those_who_want_it_at_once_make_it_once(home: Home) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = {tuple(one.result()) for one in [pool.submit(home.options) for _ in range(4)]}
    assert len(found) == 1 and home.trained == 1


@pytest.mark.parametrize("error", [BookieUnavailableError("no"), OSError("no"), subprocess.TimeoutExpired("java", 1), None])
def test_without_one_a_jvm_starts_as_ever(home: Home, error: Exception | None) -> None:
    def train(options: list[str]) -> None:
        if error is not None:
            raise error

    assert class_archives.options("test", str(home.java), f"{home.jar.parent}/*", train) == [] and home.made() == []
    assert [path.suffix for path in home.cache.iterdir()] == [".lock"]


def test_no_place_for_it_is_no_failure(home: Home) -> None:
    home.cache.parent.write_text("a file")
    assert home.options() == [] and home.trained == 0


def test_a_java_that_is_a_script_of_its_own_has_none(home: Home) -> None:
    (home.java.parents[1] / "lib" / "modules").unlink()
    assert home.options() == [] and home.trained == 0


def test_those_of_folders_that_are_gone_go(home: Home) -> None:
    home.options()
    (old,) = home.made()
    long_ago = old.stat().st_mtime - class_archives.UNUSED_S - 60
    os.utime(old, (long_ago, long_ago))
    home.jar.write_bytes(b"built anew")
    home.options()
    assert old not in home.made() and len(home.made()) == 1


PROGRAM = """
import java.util.concurrent.ConcurrentSkipListMap;
public class Loads { public static void main(String[] a) { System.out.println("loaded " + new ConcurrentSkipListMap<String, String>()); } }
"""


def test_a_jvm_takes_it_and_starts_with_a_damaged_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The options that are given are those that a real JVM understands."""
    monkeypatch.setenv("BK_CACHE", str(tmp_path / "cache"))
    try:
        java = apache.find_java()
        (tmp_path / "Loads.java").write_text(PROGRAM)
        for command in (["javac", "Loads.java"], ["jar", "cf", "loads.jar", "Loads.class"]):
            subprocess.run(command, cwd=tmp_path, check=True, timeout=120)
    except (BookieUnavailableError, FileNotFoundError) as error:
        pytest.skip(str(error))
    (tmp_path / "Loads.class").unlink()
    jar = str(tmp_path / "loads.jar")

    def run(options: list[str]) -> str:
        command = [java, *options, "-Xlog:class+load", "-cp", jar, "Loads"]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout

    options = class_archives.options("loads", java, jar, lambda options: print(run(options)[:0], file=sys.stderr))
    assert "Loads source: shared objects file (top)" in run(options)
    archive = Path(options[0].partition("=")[2])
    raw = bytearray(archive.read_bytes())
    raw[len(raw) // 2 :] = bytes(len(raw) - len(raw) // 2)
    archive.write_bytes(raw)
    told = run(options)
    assert f"Loads source: file:{jar}" in told and "loaded {}" in told
