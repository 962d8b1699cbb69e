"""``bk query lag``: Spark's checkpoint against the list of a log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bk_core import cli
from bk_core.cli import queries
from bk_core.client.checkpoints import progress
from bk_core.client.log import history
from bk_core.errors import InvalidArgumentError, NoSuchLogError
from bk_core.protocol.log.lag import lag
from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import SegmentRange
from bk_core.protocol.log.view import LogView

URI = "zk://127.0.0.1:1/ledgers"
HOUR_AGO_MS = 1_700_000_000_000


def grown(trim: int = 0) -> LogView:
    listed = LedgerList(log_id="a")
    for batch in range(3):
        listed = listed.append_segments([SegmentRange(batch, 0, 9, 100, 1000, 10)], HOUR_AGO_MS + batch, "q", batch)
    return LogView(listed.trim(trim)[0])


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    @contextmanager
    def connected(uri: str, protocol: str) -> Iterator[Any]:
        yield None

    def read_log(client: Any, name: str) -> LogView:
        if name == "gone":
            raise NoSuchLogError("gone")
        return grown(trim=2) if name == "trimmed" else grown()

    monkeypatch.setattr(queries, "connected", connected)
    monkeypatch.setattr(history, "read_log", read_log)
    monkeypatch.setattr(progress.time, "time", lambda: (HOUR_AGO_MS + 3_600_000) / 1000)
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits").mkdir()
    return tmp_path


def offset(seq: int, entry: int, row: int, rows: int, log_id: str = "a") -> dict[str, Any]:
    return {"logId": log_id, "seq": seq, "entry": entry, "row": row, "rows": rows, "bytes": rows * 10}


def batch(checkpoint: Path, number: int, *sources: Any, commit: bool = True) -> None:
    lines = ["v1", "{}", *("-" if source is None else json.dumps(source) for source in sources)]
    (checkpoint / "offsets" / str(number)).write_text("\n".join(lines))
    (checkpoint / "offsets" / f".{number}.crc").write_text("x")
    if commit:
        (checkpoint / "commits" / str(number)).write_text("v1\n{}")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.run(["query", "lag", *arguments, "--uri", URI])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def lines(capsys: pytest.CaptureFixture[str], checkpoint: Path | str) -> list[dict[str, Any]]:
    status, out, err = run(capsys, str(checkpoint), "--json")
    assert status == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_rows_bytes_and_time(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch(checkpoint, 8, {"flights": offset(0, 0, 0, 0)})
    batch(checkpoint, 9, None, {"ships": offset(3, 0, 0, 300), "flights": offset(1, 2, 5, 125)})
    batch(checkpoint, 10, None, {"ships": offset(3, 0, 0, 300), "flights": offset(3, 0, 0, 300)}, commit=False)
    flights, ships = lines(capsys, checkpoint)
    assert flights == {
        "source": 0,
        "log": "flights",
        "committedBatch": 9,
        "plannedBatch": 10,
        "seq": 1,
        "entry": 2,
        "row": 5,
        "rowsBehind": 175,
        "bytesBehind": 1750,
        "secondsBehind": 3600.0,
        "note": "",
    }
    assert (ships["rowsBehind"], ships["bytesBehind"], ships["secondsBehind"]) == (0, 0, 0.0)
    assert lines(capsys, checkpoint.as_uri()) == [flights, ships]
    status, out, _ = run(capsys, str(checkpoint))
    assert status == 0 and "175" in out and "1 h 0 min" in out and "batch committed: 9, planned: 10" in out
    assert "by the writer's clock until now by this host's" in out


def test_time_behind_where_this_hosts_clock_is_behind_the_writers() -> None:
    """Both times are the writer's then: the last commit stands for now, and no time is negative."""
    listed = LedgerList(log_id="a")
    for batch, at_ms in enumerate((50_000, 80_000)):
        listed = listed.append_segments([SegmentRange(batch, 0, 9, 100, 1000, 10)], at_ms, "q", batch)
    view = LogView(listed)
    for now_ms, seconds in ((0, 30.0), (79_000, 30.0), (95_000, 45.0)):
        assert lag(view, Position(0), view.end_position, now_ms).seconds == seconds
    assert lag(view, Position(1), view.end_position, 0).seconds == 0.0
    assert lag(view, view.end_position, view.end_position, 0).seconds == 0.0


def test_what_was_lost_is_noted(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = offset(1, 0, 0, 100)
    batch(checkpoint, 0, {"trimmed": place, "gone": place, "recreated": {**place, "logId": "b"}})
    gone, recreated, trimmed = lines(capsys, checkpoint)
    assert gone["rowsBehind"] is None and "deleted" in gone["note"]
    assert recreated["rowsBehind"] is None and "created again" in recreated["note"]
    assert (trimmed["rowsBehind"], trimmed["bytesBehind"]) == (200, 2000) and "100 rows" in trimmed["note"]


def test_before_the_first_commit(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch(checkpoint, 0, {"flights": offset(3, 0, 0, 300)}, commit=False)
    (row,) = lines(capsys, checkpoint)
    assert (row["committedBatch"], row["seq"], row["rowsBehind"]) == (None, None, None) and "no batch" in row["note"]


def test_what_is_no_checkpoint_of_ours(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no file in a folder offsets" in run(capsys, str(checkpoint))[2]
    batch(checkpoint, 0, {"logOffset": 3})
    assert "reads no log" in run(capsys, str(checkpoint))[2]
    for edited in ({"seq": "one"}, {"rows": -1}, {"entry": 1.5}, {"logId": 7}):
        batch(checkpoint, 0, {"flights": {**offset(1, 0, 0, 100), **edited}})
        assert "reads no log" in run(capsys, str(checkpoint))[2]
    (checkpoint / "offsets" / "0").write_text("v3\n{}\n{}")
    assert "version 'v3'" in run(capsys, str(checkpoint))[2]
    (checkpoint / "offsets" / "0").write_text("v1\n{}\n{")
    assert "cannot be read" in run(capsys, str(checkpoint))[2]
    with pytest.raises(InvalidArgumentError, match="neither on this machine"):
        queries.local_path("hdfs://host/checkpoint")
