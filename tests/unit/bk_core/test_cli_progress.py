"""Progress of what takes long: how much is done, how fast, and how long it takes yet. A terminal shows it; a pipe and a file do not."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bk_core
from bk_core.cli.progress import RateColumn, with_progress
from tests.unit.bk_core.conftest import Bk

ROOT = Path(bk_core.__file__).resolve().parents[1]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("speed", "shown"), [(None, ""), (0.25, "0.2/s"), (9.9, "9.9/s"), (1234.6, "1,235/s")])
def test_rates_are_told(speed: float | None, shown: str) -> None:
    task: Any = SimpleNamespace(speed=speed, finished_speed=None)
    assert RateColumn().render(task).plain == shown


def test_a_terminal_shows_how_much_is_done_and_how_fast() -> None:
    """In a process of its own, whose standard error is a terminal."""
    program = "import time\nfrom bk_core.cli.progress import with_progress as bar\nfor _ in bar(range(60), 'counting'): time.sleep(0.01)"
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "120"}
    try:
        subprocess.run([sys.executable, "-c", program], stderr=theirs, env=environment, timeout=60, check=True)
        shown = os.read(ours, 1 << 20).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "counting" in shown and "/60" in shown and "/s" in shown


def test_what_is_no_terminal_and_what_is_short_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, count in ((io.StringIO(), 1000), (Terminal(), 49)):
        monkeypatch.setattr(sys, "stderr", stream)
        assert list(with_progress(range(count), "counting")) == list(range(count))
        assert stream.getvalue() == ""


def test_appending_shows_how_much_was_sent(
    bk: Bk, client: bk_core.BookKeeper, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    bk("create", "a", "--entry-format", "raw", group="log")
    given: Any = SimpleNamespace(buffer=io.BytesIO(b"one\ntwo\n"), isatty=lambda: False)
    monkeypatch.setattr(sys, "stdin", given)
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    bk("append", "a", group="log")
    assert "appending" in screen.getvalue() and "2 entries" in screen.getvalue()
    given.buffer, given.isatty = io.BytesIO(b"typed\n"), lambda: True
    screen.truncate(0)
    bk("append", "a", group="log")
    assert screen.getvalue() == ""


def test_a_look_for_orphans_shows_its_progress(bk: Bk, client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    made = client.create_ledger(custom={"log": b"gone", "logId": b"x"}).ledger_id
    seen: list[str] = []
    monkeypatch.setattr("bk_core.cli.log_collecting.with_progress", lambda items, text: (seen.append(f"{text}: {list(items)}"), items)[1])
    bk("gc", group="log")
    assert seen[-1] == f"looking for ledgers whose log is gone: [{made}]"
