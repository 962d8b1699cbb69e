"""Tests of the arithmetic behind the figures; the figures themselves: ``make checkpoint-cost`` and its siblings (README.md)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tests.checkpoints.figures import outsider
from tests.checkpoints.figures.cost import DIRECTORY, SYNCED, Samples, durations, floor
from tests.checkpoints.figures.drivers import Outcome, counted, summary, told
from tests.checkpoints.figures.history import RETAINED, TENDED, Template, files_of, gone_after
from tests.checkpoints.figures.numbers import Spread, quantile, table
from tests.checkpoints.figures.openings import Opened
from tests.checkpoints.figures.secret import KINDS, Found, Verdict, search
from tests.checkpoints.figures.size import points

TEMPLATE = Template('v1\n{"conf":{}}\n{"offset":200,"timestamp":2000}', 'v1\n{"nextBatchWatermarkMs":0}', 100, 1000)


def test_a_quantile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(1, 101)]
    assert (quantile(values, 0.99), quantile(values, 1.0), quantile([7.0], 0.99), quantile(values, 0.5)) == (99, 100, 7, 50)
    assert str(Spread.of([1.0, 2.0, 30.0])) == "2 / 30"
    assert str(Spread.of([])) == "-" and math.isnan(Spread.of([]).median)
    assert table(["a"], [[1]]).splitlines() == ["| a |", "| --- |", "| 1 |"]


def answer(trigger: int, logged: int) -> dict[str, object]:
    batch = {"triggerExecution": trigger, "walCommit": logged, "commitOffsets": logged, "addBatch": 5}
    return {"batches": [batch], "requests": {"RENAME": 2}, "tookMs": {"RENAME": 6.0}, "written": {"records": 2}}


def test_batches_add_up_and_are_compared() -> None:
    plain, synced = Samples(), Samples()
    for _ in range(2):
        plain.add(answer(100, 30))
        synced.add(answer(200, 80))
    assert (plain.count, plain.each(plain.requests, "RENAME"), plain.took_ms, plain.each(plain.written, "records")) == (
        2,
        2,
        {"RENAME": 12.0},
        2,
    )
    assert floor(plain, 10.0) == [60.0, 60.0]
    lines = durations({("stateless", DIRECTORY): plain, ("stateless", SYNCED): synced}, [10.0]).splitlines()
    assert lines[2].endswith("| 2 | 100 / 100 | 30 / 30 | 30 / 30 | 5 / 5 | 0.50 / 1.67 |") and lines[3].endswith("| 1.00 / 3.33 |")


def test_rows_are_counted() -> None:
    assert counted([1, 2, 2, 2], range(4)) == (2, 2)
    assert counted([0, 1], range(2)) == (0, 0)


def test_an_end_is_told_in_a_few_words() -> None:
    assert told(None) == ""
    assert told("java.io.IOException: [BK-FILES-TAKEN-OVER] another owner") == "BK-FILES-TAKEN-OVER"
    assert (
        told("first\njava.lang.IllegalStateException: Concurrent update to the log.")
        == "IllegalStateException: Concurrent update to the log."
    )
    assert told("[CODE] text\n\tat java.util.concurrent.Somewhere") == "[CODE] text"


def test_only_the_whole_promise_is_good() -> None:
    def outcome(**other: object) -> Outcome:
        return Outcome(
            **{**dict(side="ledgers", sink="log", first="BK-FILES-TAKEN-OVER", second="", again="", missing=0, doubled=0), **other}
        )  # type: ignore[arg-type]

    assert outcome().good
    for other in ({"first": ""}, {"second": "an error"}, {"missing": 1}, {"doubled": 1}):
        assert not outcome(**other).good
    line = summary([outcome(), outcome(missing=3)]).splitlines()[2]
    assert line == "| ledgers | a log | 2 | 2 x BK-FILES-TAKEN-OVER | 2 x goes on |  | 3 | 0 |"


def test_only_an_opening_in_time_that_goes_on_is_good() -> None:
    assert Opened("embedded", 10, [0.4, 1.9], first=10, rows=[100, 100, 100]).good
    for seconds, first, rows in (([2.1], 10, [100] * 3), ([0.1], 11, [100] * 3), ([0.1], 10, [100] * 2), ([0.1], 10, [100, 100, 90])):
        assert not Opened("embedded", 10, seconds, first=first, rows=rows).good


def test_a_secret_is_found_wherever_it_is(tmp_path: Path) -> None:
    for name, text in (("events/1", "nothing"), ("driver-1.log", "a S1 and S1"), ("else", "S2")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = search(sorted(path for path in tmp_path.rglob("*") if path.is_file()), ["S1", "S2"], tmp_path)
    assert {kind: (one.files, one.bytes, one.hits) for kind, one in found.items()} == {
        "event log": (1, 7, 0), "log of the driver, at DEBUG": (1, 11, 2), "other files of the application": (1, 2, 1)
    }  # fmt: skip


def test_a_search_counts_only_if_all_was_looked_at() -> None:
    def verdict(**other: Any) -> Verdict:
        kinds = {kind: Found(1, 10) for kind in KINDS.values()}
        outsider = {"hits": [], "answers": {"without a secret: 401": 3}}
        return Verdict(**{"kinds": kinds, "outsider": outsider, "error": "[BK-FILES-TAKEN-OVER] so", **other})

    assert verdict().good and verdict(outsider=None).good
    assert not verdict(kinds={}).good and not verdict(kinds={kind: Found(1, 10, 1) for kind in KINDS.values()}).good
    assert not verdict(error="").good
    for outside in ({"hits": ["/a"], "answers": {}}, {"hits": [], "answers": {"with a wrong secret: 200": 1}}):
        assert not verdict(outsider=outside).good


def test_another_user_searches_over_the_edges_of_parts(tmp_path: Path) -> None:
    text = b"s" * 40
    (tmp_path / "file").write_bytes(bytes(outsider.PART - 20) + text + bytes(10))
    (tmp_path / "other").write_bytes(bytes(100))
    found = outsider.searched({"directories": [str(tmp_path)], "secrets": [text.decode()], "since": 0})
    assert found["hits"] == [str(tmp_path / "file")] and found["bytes"] > outsider.PART and found["files"] >= 2


def test_a_batch_has_its_own_numbers() -> None:
    files = dict(files_of(7, TEMPLATE, 0))
    assert list(files) == ["/offsets/7", "/commits/7"]
    assert files["/offsets/7"].decode().endswith('{"offset":800,"timestamp":8000}')


def test_what_stays_is_what_spark_keeps() -> None:
    """Nothing is deleted twice, and of the state every version of the last hundred batches can be made."""
    there: set[str] = set()
    batches = 10 * TENDED
    for number in range(batches):
        there |= {path for path, _ in files_of(number, TEMPLATE, 1)}
        for path in gone_after(number, 1):
            there.remove(path)
    assert {path for path in there if path.startswith("/commits/")} == {f"/commits/{n}" for n in range(batches - RETAINED, batches)}
    state = {path.rpartition("/")[2] for path in there if path.startswith("/state/")}
    assert {f"{version}.delta" for version in range(batches - RETAINED + 1, batches + 1)} <= state
    assert f"{batches - RETAINED}.snapshot" in state and f"{batches}.snapshot" in state
    assert len(state) <= 2 * TENDED + 2


def test_looks_are_many_and_the_last_one_is_at_the_end() -> None:
    assert points(100_000)[-1] == 100_000 and len(points(100_000)) > 90
    assert points(10) == [*range(1, 4), 10] or points(10)[-1] == 10
    assert {at % TENDED for at in points(100_000)} > {0, 1}
