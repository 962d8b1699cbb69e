"""The judge, the table and the input of the restarts; the restarts themselves: ``make checkpoint-restarts`` (README.md)."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

from tests.checkpoints import marker
from tests.checkpoints.cases import cases
from tests.checkpoints.feed import write_files
from tests.checkpoints.judge import Judged, compared, consecutive, line, table


def test_the_judge_sees_what_is_wrong() -> None:
    right = compared(["a", "b"], {"0": ["x", "y"]}, ["b", "a"], {"0": ["y", "x"]}, True)
    assert right.good and (right.rows, right.states) == (2, 2)
    wrong = compared(["a", "a", "c"], {"0": ["x"]}, ["a", "b"], {"0": ["y"], "1": ["z"]}, True)
    assert (wrong.missing, wrong.doubled, wrong.foreign, wrong.wrong) == (1, 1, 1, 3)
    assert not wrong.good and not compared([], {}, [], {}, True).good
    assert compared(["a", "a"], {}, ["a"], {}, exactly=False).good


def test_a_row_of_the_clock_is_there_once() -> None:
    def judged(*values: int) -> Judged:
        return consecutive([json.dumps({"v": value}) for value in values])

    assert judged(2, 0, 1).good
    assert (judged(0, 2, 2).missing, judged(0, 2, 2).doubled) == (1, 1)
    assert not judged().good


def test_the_table_sums_up() -> None:
    good, bad = Judged("a", "ledgers", kills=1, stops=2, rows=3), Judged("a", "directory", missing=4, wrong=5)
    assert line(bad).startswith("BAD ")
    assert table([good, bad]).splitlines()[2:] == [
        "| a | ledgers | 1 | 2 | 0 | 3 | 0 | 0 | 0 | 0 | 0 |  |",
        "| a | directory | 0 | 0 | 0 | 0 | 4 | 0 | 0 | 5 | 0 | **bad** |",
        "| **all** | | 1 | 2 | 0 | 3 | 4 | 0 | 0 | 5 | 0 | **1 bad** |",
    ]


def test_every_case_has_a_name_of_its_own() -> None:
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names) > 20


def test_the_input_is_the_same_again(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_files(tmp_path / name, 5, random.Random(3))
    texts = [[path.read_text() for path in sorted((tmp_path / name).iterdir())] for name in ("a", "b")]
    assert texts[0] == texts[1] and len(set(texts[0])) == 5


def test_an_order_is_taken_once_and_held(tmp_path: Path) -> None:
    (tmp_path / marker.ORDER).write_text(json.dumps({"batch": 3, "hold": True}))
    marker.obey(tmp_path, 2)
    task = threading.Thread(target=marker.obey, args=(tmp_path, 4))
    task.start()
    while not list(tmp_path.glob(f"{marker.MET}.4")):
        task.join(0.01)
    marker.obey(tmp_path, 5)  # the order is taken, and no barrier was asked for
    assert task.is_alive()
    (tmp_path / marker.RELEASE).touch()
    task.join(10)
    assert not task.is_alive()


def test_a_barrier_holds_later_batches(tmp_path: Path) -> None:
    (tmp_path / marker.ORDER).write_text(json.dumps({"batch": 3, "hold": False}))
    marker.obey(tmp_path, 3)
    marker.obey(tmp_path, 3)  # another task of the same batch
    later = threading.Thread(target=marker.obey, args=(tmp_path, 4))
    later.start()
    later.join(0.1)
    assert later.is_alive()
    (tmp_path / marker.RELEASE).touch()
    later.join(10)
    assert not later.is_alive()
