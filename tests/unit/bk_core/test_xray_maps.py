"""The map of an x-ray: each column shows the worst of its entries, in every width, with and without Unicode and colour."""

from __future__ import annotations

import io
import random
import re
import sys

import pytest

from bk_core.cli.xrays import say_map
from bk_core.client.xray import Xray
from bk_core.display import table
from bk_core.display import xray as display
from bk_core.display.words import safe
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.xray import BookieXray, EntryState, ReplicaXray, Stretches
from bk_core.protocol.ledger.xray.stretches import Stripe

WORST = list(display.MARKS)


def xray_of(states: dict[str, dict[int, str]], first: int, last: int, quorums: tuple[int, int, int]) -> Xray:
    """An x-ray with a fragment of all bookies; ``states`` are those of their entries that are not GOOD."""
    bookies = tuple(states)
    distribution = Distribution(*quorums)
    metadata = LedgerMetadata(*quorums, LedgerState.OPEN, (Fragment(0, bookies),)).closed(last, 1)
    replicas = []
    for position, bookie in enumerate(bookies):
        stretches = Stretches()
        codes = bytes(EntryState[states[bookie].get(entry, "GOOD")] for entry in range(first, last + 1))
        stretches.add_states(Stripe(distribution, position, first), codes)
        replicas.append(ReplicaXray(first, last, position, bookie, True, stretches))
    seen = tuple(BookieXray(bookie, True, last, last) for bookie in bookies)
    return Xray(4, metadata, first, last, last, True, seen, tuple(replicas), 1, 1, 1.0)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (5, 2, 2)])
@pytest.mark.parametrize(("first", "last"), [(0, 0), (0, 9), (7, 1000), (3, 130)])
def test_a_column_shows_the_worst_of_its_entries(first: int, last: int, quorums: tuple[int, int, int]) -> None:
    dice = random.Random(last)
    names = [f"bookie-{n}" for n in range(quorums[0])]
    states = {name: {dice.randrange(first, last + 1): dice.choice(WORST) for _ in range(dice.choice([0, 3]))} for name in names}
    xray = xray_of(states, first, last, quorums)
    distribution = Distribution(*quorums)
    for width in (1, 7, 64, 3000):
        columns = display.columns(xray, width)
        assert [columns[0][0], columns[-1][1]] == [first, last]
        assert all(before[1] + 1 == after[0] for before, after in zip(columns, columns[1:], strict=False))
        count, striped = last - first + 1, quorums[1] < quorums[0]
        assert len(columns) == (max(1, min(width, count // quorums[0])) if striped and width < count else min(width, count))
        rows = {row.bookie: row.marks for row in display.map_rows(xray, width)}
        for position, name in enumerate(names):
            wanted = []
            for low, high in columns:
                held = [states[name].get(n, "GOOD") for n in range(low, high + 1) if distribution.holds(position, n)]
                wanted.append(display.MARKS[max(held, key=WORST.index)] if held else display.NONE)
            assert list(rows.get(name, [display.NONE] * len(columns))) == wanted


def test_the_scale_and_the_words_tell_the_columns() -> None:
    xray = xray_of({"a": {}, "b": {}, "c": {}}, 5, 104, (3, 3, 2))
    assert display.scale(xray, 20) == "5" + "104".rjust(19)
    assert display.scale(xray, 3) == "5 to 104"
    assert display.per_column(xray, 20) == "each column is 5 entries, and shows the worst of them"
    assert display.per_column(xray, 30).startswith("each column is 3 or 4 entries")
    assert display.per_column(xray, 200) == "each column is one entry"


@pytest.mark.parametrize(("encoding", "row"), [("utf-8", "a  █○X█"), ("ascii", "a  #oX#"), ("latin-1", "a  #oX#")])
def test_without_unicode_the_map_says_the_same(encoding: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", out)
    say_map(xray_of({"a": {1: "MISSING", 2: "CORRUPT"}, "b": {}, "c": {}}, 0, 3, (3, 3, 2)), 4)
    out.flush()
    shown = out.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]
    assert row in shown.splitlines()
    assert "missing" in shown
    assert "wrong digest or id" in shown
    assert "\x1b" not in shown


def test_a_notebook_shows_the_map_with_its_columns() -> None:
    html = xray_of({"<b>": {3: "MISSING"}, "b": {}, "c": {}}, 0, 3, (3, 3, 2))._repr_html_()
    assert re.search(r"<pre [^>]*>.*&lt;b&gt;  ███○\nb  .*</pre>", html, re.DOTALL)
    assert "1 in need of repair" in html
    assert table.html(table.Lines(["<a>", "b"])) == '<div><pre style="line-height: 1.2; overflow-x: auto">&lt;a&gt;\nb</pre></div>'


def test_what_scripts_get_has_every_copy() -> None:
    facts = display.facts(xray_of({"a": {1: "MISSING"}, "b": {}, "c": {}}, 0, 3, (3, 3, 2)))
    assert facts["good"] is False
    assert facts["counts"] == {"good": 11, "missing": 1}
    assert facts["replicas"][0]["stretches"] == [[0, 0, 1, "good"], [1, 1, 1, "missing"], [2, 3, 2, "good"]]  # type: ignore[index]


def test_a_wrong_copy_was_read_and_a_listed_one_was_not() -> None:
    found = display.bookies(xray_of({"a": {0: "LISTED", 1: "MISSING", 2: "CORRUPT"}, "b": {}, "c": {}}, 0, 3, (3, 3, 2)))
    row = dict(zip(found.columns, next(iter(found.rows)), strict=True))
    assert (row["#there"], row["#read"], row["#missing"], row["#wrong"], row["#unknown"]) == (2, 2, 1, 1, 0)


def test_a_bookie_reaches_the_terminal_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich writes what a Text holds as it is, past what makes other output safe."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", out)
    hostile = "a\x1b]0;owned\x07\u202e"
    say_map(xray_of({hostile: {}, "b": {}, "c": {}}, 0, 3, (3, 3, 2)), 4)
    out.flush()
    lines = out.buffer.getvalue().decode().splitlines()  # type: ignore[attr-defined]
    assert all(line.isprintable() for line in lines)
    shown = safe(hostile, kept="")
    assert f"{shown}  ████" in lines and f"{'b':{len(shown)}}  ████" in lines
