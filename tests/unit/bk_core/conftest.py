"""Bookies in this process, and the command line against them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core import cli
from bk_core.bookie.server import EmbeddedBookie
from bk_core.cli import output
from bk_core.metadata import open_store


class Bk:
    """The command line and what it said."""

    def __init__(self, uri: str, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
        self.uri = uri
        self._captured = capfdbinary
        self.out = self.err = ""
        self.status = 0

    def __call__(self, *arguments: str, status: int | None = 0, group: str = "checkpoint") -> str:
        """Run a command and return its output. Its status must be ``status``, unless that is None."""
        found = self.status = cli.run([group, *map(str, arguments)])
        sys.stdout.flush()
        self.raw, err = self._captured.readouterr()
        self.out, self.err = self.raw.decode(errors="replace"), err.decode()
        assert status in (None, found), (found, self.out, self.err)
        assert "Traceback" not in self.err
        return self.out

    def json(self, *arguments: str, status: int = 0, group: str = "checkpoint") -> list[Any]:
        return [json.loads(line) for line in self(*arguments, "--json", status=status, group=group).splitlines()]


@pytest.fixture
def bk(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Bk]:
    uri = f"memory://{tmp_path.name}"
    store = open_store(uri)
    store.initialize_cluster()
    bookies = [EmbeddedBookie(tmp_path / "bookies" / str(i), "127.0.0.1", 0, store).start() for i in range(3)]
    monkeypatch.setenv(output.URI_VARIABLE, uri)
    yield Bk(uri, capfdbinary)
    for bookie in bookies:
        bookie.close()
    store.close()


@pytest.fixture
def client(bk: Bk) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(bk.uri) as client:
        yield client
