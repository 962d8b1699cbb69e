"""``bk top`` and what it looks at."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import bk_core
from bk_core.cli import top
from bk_core.client.doctor import watch
from bk_core.client.doctor.watch import ClusterWatch, _changes
from bk_core.errors import MetadataUnavailableError
from tests.unit.bk_core.conftest import Bk


def test_ledgers_that_come_and_go(client: bk_core.BookKeeper) -> None:
    before = client.create_ledger()
    with closing(ClusterWatch(client)) as looking:
        first = looking.look()
        assert (first.ledgers, first.created, first.closed, first.deleted) == (1, 0, 0, 0)
        one, two = client.create_ledger(), client.create_ledger()
        one.close()
        second = looking.look()
        assert (second.ledgers, second.created, second.closed, second.deleted) == (3, 2, 1, 0)
        two.close()
        client.delete_ledger(one.ledger_id)
        before.close()
        third = looking.look()
        assert (third.ledgers, third.created, third.closed, third.deleted) == (2, 2, 2, 1)


def test_logs_that_grow(client: bk_core.BookKeeper) -> None:
    log = client.create_log("events", entry_format="raw")
    client.create_log("quiet", entry_format="raw")
    with closing(ClusterWatch(client)) as looking:
        assert [(one.name, one.rows, one.rows_per_second, one.writer) for one in looking.look().logs] == [
            ("events", 0, None, None),
            ("quiet", 0, None, None),
        ]
        with log.writer() as writer:
            writer.append_many([b"12345"] * 10)
            writer.append(b"1")  # with it the ten are known to be confirmed
            (events, quiet) = looking.look().logs
            assert (events.name, quiet.name, quiet.rows_per_second, quiet.bytes_per_second) == ("events", "quiet", 0, 0)
            assert events.rows >= 10 and events.bytes >= 50 and (events.rows_per_second or 0) > 0 and (events.bytes_per_second or 0) > 0
            assert events.writer is not None and (events.writer.state, events.writer.pid) == ("alive", os.getpid())
            writer.append(b"it is not fenced")
        (events, _) = sorted(looking.look().logs, key=lambda one: one.name)
        assert (events.rows, events.bytes, events.writer) == (12, 50 + 1 + 16, None)
        assert not looking._live


def test_listing_takes_a_bounded_share_of_the_time(client: bk_core.BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    listed: list[float] = []
    real = type(client).list_ledgers

    def slow(self: bk_core.BookKeeper) -> Iterator[int]:
        listed.append(now[0])
        now[0] += 1.0
        return real(self)

    monkeypatch.setattr(type(client), "list_ledgers", slow)
    monkeypatch.setattr(watch, "probe_bookies", lambda *_, **__: {})
    with closing(ClusterWatch(client)) as looking:
        for _ in range(30):
            looking.look()
            now[0] += 1.0
    assert listed == [0.0, 10.0, 20.0, 30.0]


def test_what_is_new_of_two_lists() -> None:
    assert _changes([1, 2, 5], [2, 3, 5, 9]) == ([3, 9], 1)
    assert _changes([], [1]) == ([1], 0) and _changes([1, 2], []) == ([], 2)


def test_lines_without_a_terminal(bk: Bk, client: bk_core.BookKeeper) -> None:
    client.create_log("events", entry_format="raw")
    lines = bk("--count", "2", "--interval", "0.5", group="top").splitlines()
    assert len(lines) == 2 and all("3 writable, slowest" in line and "1 log, 0 rows/s" in line for line in lines)
    (look,) = [json.loads(line) for line in bk("--count", "1", "--json", group="top").splitlines()]
    assert [one["answer"] for one in look["bookies"]] == ["answers"] * 3 and look["cluster"] == client.store.cluster_id()
    assert (look["ledgers"], look["logsTotal"], look["logs"][0]["log"], look["logs"][0]["rowsPerSecond"]) == (0, 1, "events", None)


def test_a_look_that_fails_is_told_and_the_next_one_is_taken(bk: Bk, monkeypatch: pytest.MonkeyPatch) -> None:
    real, looks = ClusterWatch.look, [0]

    def look(self: ClusterWatch) -> watch.Moment:
        looks[0] += 1
        if looks[0] == 2:
            raise MetadataUnavailableError("gone for a moment")
        return real(self)

    monkeypatch.setattr(ClusterWatch, "look", look)
    assert len(bk("--count", "3", "--interval", "0.5", group="top").splitlines()) == 2
    assert "gone for a moment" in bk.err
    looks[0] = 1
    bk("--count", "3", group="top", status=1)


PROGRAM = """
import sys
from pathlib import Path
from bk_core import cli
from bk_core.bookie.embedded import EmbeddedBookie
from bk_core.metadata import open_store

store = open_store("memory://top")
store.initialize_cluster()
with EmbeddedBookie(Path(sys.argv[1]), store=store):
    status = cli.run(["top", "--uri", "memory://top", "--interval", "60"])
store.close()
sys.exit(status)
"""


@pytest.mark.parametrize(("key", "status"), [(b"q", 0), (b"\x03", 130)])
def test_q_leaves_a_terminal_as_it_was(tmp_path: Path, key: bytes, status: int) -> None:
    parent, child = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(Path(bk_core.__file__).parents[1]), "COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "b")],
        stdin=child, stdout=child, stderr=child, env=environment, start_new_session=True,
    )  # fmt: skip
    os.close(child)
    shown = b""
    try:
        while b"q leaves" not in shown or b"writable" not in shown:
            shown += os.read(parent, 65536)
        if key == b"\x03":
            process.send_signal(signal.SIGINT)  # this terminal is not its controlling one, so the key alone would only be typed
        else:
            os.write(parent, key)
        while True:
            try:
                more = os.read(parent, 65536)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            shown += more
        assert process.wait(60) == status
    finally:
        process.kill()
        process.wait(60)
        os.close(parent)
    assert b"\x1b[?1049h" in shown and b"\x1b[?1049l" in shown  # the screen behind it is back
    plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode()
    assert "127.0.0.1:" in plain and "Traceback" not in plain


def test_an_error_of_a_look_is_shown_as_text() -> None:
    shown = top._screen(MetadataUnavailableError("it said \x1b[31m\u202e"), 1.0, 40)
    assert str(shown).isprintable() and r"it said \x1b[31m\u202e" in str(shown)
