"""Pictures of ledgers and logs: what they show, where they draw, and what they say without matplotlib."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.abc import MetaPathFinder
from typing import Any

import matplotlib
import pytest

from bk_core.client import BookKeeper, connect
from bk_core.errors import ArgumentTypeError, InvalidArgumentError, MissingPackageError
from bk_core.plots.canvas import COLOURS
from bk_core.plots.fragments import draw_fragments
from bk_core.plots.segments import LEGEND_MAX, draw_segments, places_of
from bk_core.plots.trace import draw_trace, in_lines

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402 - after the backend was chosen


@pytest.fixture
def client(uri: str) -> Iterator[BookKeeper]:
    with connect(uri) as client:
        client.await_bookies(3, 3)
        yield client
    pyplot.close("all")


def words(axes: Any) -> str:
    """Every text of a picture."""
    legend = axes.get_legend()
    texts = [*axes.texts, *axes.get_yticklabels(), *axes.get_xticklabels(), *([] if legend is None else legend.get_texts())]
    return "\n".join([axes.get_title(), axes.get_xlabel(), axes.get_ylabel(), *(text.get_text() for text in texts)])


def test_fragments_show_dead_bookies_and_live_copies(client: BookKeeper) -> None:
    with client.create_ledger(ensemble_size=3, write_quorum_size=2, ack_quorum_size=2) as writer:
        for number in range(7):
            writer.append(b"%d" % number)
    ledger = client.ledger(writer.ledger_id)
    dead = ledger.bookies[0]
    axes = ledger.plot_fragments(dead=[dead])
    told = words(axes)
    assert f"{dead} (dead)" in told and "1 to 2 of 2 live" in told and "fragment 0: entries 0 to 6" in told and "CLOSED" in told
    assert "light: not on this bookie, which has 2 of 3 entries" in told
    assert len(axes.patches) == 3 and {bar.get_width() for bar in axes.patches} == {7} and not any(bar.get_hatch() for bar in axes.patches)
    ensemble = client.ledger_metadata(writer.ledger_id).fragments[0].ensemble
    assert [bool(cells.get_hatch()) for cells in axes.collections] == [bookie == dead for bookie in ensemble]
    for position, cells in enumerate(axes.collections):
        held = {int(path.vertices[:, 0].min()) for path in cells.get_paths()}
        assert held == {entry for entry in range(7) if position in (entry % 3, (entry + 1) % 3)}, "of the write set of the entry"
    assert axes.get_xlim() == (0.0, 7.0)
    alive = words(ledger.plot_fragments())
    assert "dead" not in alive and "2 of 2 live" in alive


def test_many_striped_entries_are_a_share_and_whole_ones_are_hatched_where_dead(client: BookKeeper) -> None:
    with client.create_ledger(ensemble_size=3, write_quorum_size=1, ack_quorum_size=1) as writer:
        writer.append_many([b"x"] * 100)
    axes = client.ledger(writer.ledger_id).plot_fragments()
    heights = {
        round(float(path.vertices[:, 1].max() - path.vertices[:, 1].min()), 3) for cells in axes.collections for path in cells.get_paths()
    }
    assert heights == {round(axes.patches[0].get_height() / 3, 3)} and "1 of 3 entries" in words(axes)
    with client.create_ledger() as writer:
        writer.append(b"x")
    ledger = client.ledger(writer.ledger_id)
    whole = ledger.plot_fragments(dead=ledger.bookies[:1])
    assert [bool(bar.get_hatch()) for bar in whole.patches].count(True) == 1 and not whole.collections and "light:" not in words(whole)


def test_a_fragment_that_may_grow_has_no_end(client: BookKeeper) -> None:
    with client.create_ledger() as writer:
        writer.append(b"x")
        assert "entries 0 to ... (may grow)" in words(client.ledger(writer.ledger_id).plot_fragments())


def steps_of(axes: Any) -> list[tuple[int, int]]:
    """Return how much the log had before and behind each segment that is drawn."""
    return [tuple(map(int, line.get_ydata())) for line in axes.lines if line.get_linewidth() == 5]


def test_segments_are_drawn_over_the_time_of_their_commits(client: BookKeeper) -> None:
    log = client.create_log("events")
    with log.writer() as writer:
        for number in range(20):
            writer.append(b"%03d" % number)
            if number % 4 == 3:
                writer.roll()
    segments = list(log.segments())
    ends = [sum(one.rows for one in segments[: at + 1]) for at in range(len(segments))]
    assert len(segments) >= 3 and ends[-1] == 20
    axes = log.plot_segments()
    told = words(axes)
    assert steps_of(axes) == list(zip([0, *ends], ends, strict=False))
    assert f"log events: {len(segments)} segments" in told and f"ledger {segments[0].ledger_id}" in told and "UTC" in told
    assert steps_of(log.plot_segments(by="bytes")) == [(3 * before, 3 * after) for before, after in steps_of(axes)]
    newest = log.plot_segments(last=2)
    assert f"the newest 2 of {len(segments)} segments" in words(newest) and steps_of(newest) == steps_of(axes)[-2:]
    log.trim(before=segments[1].first_position())
    trimmed = log.plot_segments()
    assert f"trimmed: {segments[0].rows} rows" in words(trimmed) and steps_of(trimmed) == steps_of(axes)[1:]


def test_segments_of_one_moment_are_drawn_within_a_second(client: BookKeeper) -> None:
    log = client.create_log("short")
    with log.writer() as writer:
        writer.append(b"x")
    axes = log.plot_segments()
    axes.figure.canvas.draw()
    first, last = axes.get_xlim()
    assert len(steps_of(axes)) == 1 and (last - first) * 86400 == pytest.approx(1.0, abs=1e-3)
    assert (first + last) / 2 == pytest.approx(axes.lines[-1].get_xdata(orig=False)[0], abs=1e-9)


@pytest.mark.parametrize(
    ("apart", "tick", "date"),
    [
        (timedelta(seconds=1), "04:45:05", "2026-11-28"),
        (timedelta(minutes=1), "04:45", "2026-11-28"),
        (timedelta(hours=4), "Nov 29", "2026-11-29"),
        (timedelta(days=1), "Nov 29", "2026"),
    ],
    ids=["seconds", "minutes", "over midnight", "days"],
)
def test_a_time_is_whole_at_each_tick(apart: timedelta, tick: str, date: str) -> None:
    begun = datetime(2026, 11, 28, 4, 45, tzinfo=UTC)
    steps = [(begun + apart * at, at, at, at + 1) for at in range(10)]
    axes = draw_segments(steps, title="", unit="rows", trimmed=0, marks={}, live=0)
    axes.figure.draw_without_rendering()
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert tick in labels and not any(label.isdecimal() for label in labels)
    assert axes.xaxis.get_offset_text().get_text() == date


def test_words_of_one_lane_stand_beside_each_other() -> None:
    """Two messages within a thousandth of the width: their words would cover one another."""
    message = {"kind": "add", "client": "writer", "answer": "OK", "refused": False, "wants": True}
    lines = [
        {**message, "peer": peer, "sent": (number, sent), "answered": (number, sent + 1.0), "what": f"add {number}"}
        for number, (peer, sent) in enumerate([("b", 10.0), ("b", 10.5), ("c", 10.5), ("b", 999.0)])
    ]
    axes = draw_trace(["writer", "b", "c"], lines, scale="time", title="")
    moved = {text.get_text(): text.xyann[0] for text in axes.texts}
    assert moved["add 0"] == moved["add 2"] == moved["add 3"] and moved["add 1"] - moved["add 0"] > 10


def test_long_words_of_a_lane_stand_in_two_lines() -> None:
    """In one line they would reach the words of the lane above."""
    assert in_lines("set metadata: CLOSED, last entry 2") == "set metadata:\nCLOSED, last entry 2"
    assert in_lines("ledger 1 is CLOSED, last entry 2") == "ledger 1 is CLOSED,\nlast entry 2"
    assert in_lines("add 3: FENCED") == "add 3: FENCED" and in_lines("acknowledged up to entry 123") == "acknowledged up to entry 123"


def test_a_lac_is_no_add_and_wants_no_answer() -> None:
    message = {"client": "writer", "peer": "b", "answer": "", "refused": False, "sent": (1, 0.0), "answered": None}
    lines = [{**message, "kind": "lac", "what": "write LAC 2", "wants": False}, {**message, "kind": "add", "what": "add 3", "wants": True}]
    told = words(draw_trace(["writer", "b"], lines[:1], scale="order", title=""))
    assert "the LAC, written without an entry" in told and "an add" not in told
    assert "no answer is wanted" in told and "no answer so far" not in told
    told = words(draw_trace(["writer", "b"], lines, scale="order", title=""))
    assert "an add" in told and "no answer is wanted" in told and "no answer so far" in told


@pytest.mark.parametrize("known", [0, 16], ids=["one fragment", "two fragments"])
def test_an_open_fragment_has_no_numbers(known: int) -> None:
    """Metadata does not tell how many entries it has, so none is made up."""
    bars = [*([(0, known - 1, ("a", "b"), "2 of 2")] if known else []), (known, None, ("a", "c"), "2 of 2")]
    axes = draw_fragments(bars, title="", dead=(), write_quorum_size=2)
    assert axes.get_xticks().min() == 0 and axes.get_xticks().max() == known and "not to scale" in axes.get_xlabel()
    closed = draw_fragments([(0, 15, ("a",), "1 of 1")], title="", dead=(), write_quorum_size=1)
    assert closed.get_xlabel() == "entry"


def test_a_ledger_has_its_colour_after_a_trim() -> None:
    assert places_of([3, 4, 5]) == {3: 3, 4: 4, 5: 5} and places_of([4, 5]) == {4: 4, 5: 5}
    assert places_of([3, 13, 4]) == {3: 3, 13: 4, 4: 5}
    many = places_of(range(100, 100 + 2 * LEGEND_MAX))
    assert len(set(list(many.values())[:LEGEND_MAX])) == LEGEND_MAX and set(many.values()) == set(range(LEGEND_MAX))


def test_a_segment_of_one_row_is_seen_beside_a_large_one() -> None:
    begun = datetime(2026, 11, 28, 4, 45, tzinfo=UTC)
    axes = draw_segments([(begun, 1, 0, 100_000), (begun + timedelta(seconds=1), 2, 100_000, 100_001)], title="", unit="rows",
                         trimmed=0, marks={}, live=0)  # fmt: skip
    bars = [line for line in axes.lines if line.get_linewidth() == 5]
    assert len(bars) == 2 and all(bar.get_marker() == "_" and bar.get_markeredgewidth() >= 2 for bar in bars)


def test_as_many_colours_as_a_legend_has_places() -> None:
    assert len(set(COLOURS)) == LEGEND_MAX


def test_a_log_without_segments_and_one_that_is_written_are_drawn_too(client: BookKeeper) -> None:
    log = client.create_log("quiet")
    assert "log quiet: 0 segments" in words(log.plot_segments())
    with log.writer() as writer:
        writer.append(b"x")
        assert "1 live segment, not counted until closed" in words(log.plot_segments())


def test_a_picture_is_drawn_where_one_says(client: BookKeeper) -> None:
    log = client.create_log("side")
    with client.create_ledger() as writer:
        writer.append(b"x")
    figure, (left, right) = pyplot.subplots(1, 2)
    assert log.plot_segments(ax=left) is left and client.ledger(writer.ledger_id).plot_fragments(ax=right) is right
    with pytest.raises(ArgumentTypeError, match="ax must be the axes"):
        log.plot_segments(ax=figure)
    with pytest.raises(InvalidArgumentError, match='by must be "rows" or "bytes"'):
        log.plot_segments(by="lines")


def test_without_matplotlib_it_says_what_to_install(client: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    log = client.create_log("bare")
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(
        MissingPackageError, match=r'pictures need matplotlib, there is none \(.*\): pip install "bk-spark\[notebook\]" there'
    ):
        log.plot_segments()


@pytest.mark.parametrize(
    "error",
    [ImportError("cannot load module more than once per process"), ModuleNotFoundError("No module named 'kiwisolver'", name="kiwisolver")],
    ids=["interrupted", "a part is missing"],
)
def test_a_matplotlib_that_cannot_be_imported_is_not_called_missing(
    client: BookKeeper, monkeypatch: pytest.MonkeyPatch, error: ImportError
) -> None:
    """Ctrl-C during the first picture leaves numpy half imported."""

    class Finder(MetaPathFinder):
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name == "matplotlib":
                raise error

    log = client.create_log("half")
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    with pytest.raises(MissingPackageError, match="is there and cannot be imported") as raised:
        log.plot_segments()
    assert str(error) in str(raised.value) and "restart the kernel" in str(raised.value) and "pip install" not in str(raised.value)
    assert raised.value.__cause__ is error


def test_text_of_others_is_no_formula(client: BookKeeper) -> None:
    """A transaction of Spark's sink has a name that a user chooses, and a trace one that a program does."""
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    name = "pay $x_{1$ in $ \u202e"
    axes = draw_segments([(moment, 1, 0, 5)], title=f"log {name}", unit="rows", trimmed=0, marks={name: moment}, live=0)
    with client.trace(name) as trace, client.create_ledger() as ledger:
        ledger.append(b"x")
    for drawn in (axes, trace.plot()):
        drawn.figure.canvas.draw()  # a wrong formula fails here
        assert r"pay \$x_{1\$ in \$ \u202e" in words(drawn)
