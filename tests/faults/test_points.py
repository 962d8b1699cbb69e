"""Orders and how they are taken."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from bk_core.errors import MetadataOutcomeUnknownError
from tests.faults import points


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(points, "_here", points._Place(tmp_path))  # without wrapping anything in this process
    return tmp_path


def _order(directory: Path, name: str, **order: object) -> None:
    (directory / name).write_text(json.dumps(order))


def test_an_order_is_obeyed_once_and_in_turn(orders: Path) -> None:
    _order(orders, "cas@0001", do="raise")
    _order(orders, "cas@0000", do="pass")
    _order(orders, "cas_done@0002", do="lose_answer")
    points.point("cas")
    with pytest.raises(points.InjectedError):
        points.point("cas")
    points.point("cas")
    with pytest.raises(MetadataOutcomeUnknownError):
        points.point("cas_done")
    assert sorted(path.name.rpartition(".")[0] for path in orders.iterdir()) == ["fired.cas@0000", "fired.cas@0001", "fired.cas_done@0002"]


def test_an_order_waits_for_its_place(orders: Path) -> None:
    _order(orders, "add@0000", do="raise", batch=1, partition=0)
    for place in ((0, 0), (1, 1), (None, None)):
        with points.phase("write", *place):
            points.point("add")
    with pytest.raises(points.InjectedError), points.phase("write", 1, 0, 3):
        points.point("add")


def test_nothing_is_obeyed_without_a_directory(orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _order(orders, "add@0000", do="raise")
    monkeypatch.setattr(points, "_here", points._Place())
    points.point("add")


def test_questions_are_answered_and_holds_released(orders: Path) -> None:
    _order(orders, "add@0000", do="ask", what="bookie")
    _order(orders, "add@0001", do="hold")
    asked: list[str] = []

    def come_and_go() -> None:
        points.point("add")
        points.point("add")

    process = threading.Thread(target=come_and_go)
    process.start()
    while not (questions := list(orders.glob("ask.*"))):
        process.join(0.01)
    asked.append(questions[0].read_text())
    questions[0].rename(questions[0].with_name(questions[0].name.replace("ask.", "answer.", 1)))
    while not list(orders.glob("fired.add@0001*")):
        process.join(0.01)
    assert process.is_alive()
    (orders / points.RELEASE).touch()
    process.join(10)
    assert asked == ["bookie"] and not process.is_alive()


def test_what_is_wrapped_does_what_it_did() -> None:
    class Store:
        def write(self, path: str, data: bytes) -> tuple[str, bytes]:
            return path, data

    points._around(Store, "write", lambda path, *_: "cas" if path == "logs/x" else "")
    assert Store().write("logs/x", data=b"1") == ("logs/x", b"1")
    assert Store().write("other", b"2") == ("other", b"2")
