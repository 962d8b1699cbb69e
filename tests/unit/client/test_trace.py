"""``client.trace()``: the messages of real clients with real bookies, in their order, and the picture of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import matplotlib
import pytest

from bk_core.client import BookKeeper, connect
from bk_core.client.exploring.recorder import Recorder, _told
from bk_core.client.exploring.trace import METADATA_STORE, Trace, TraceMessage, joined
from bk_core.errors import ArgumentTypeError, InvalidArgumentError, LedgerFencedError
from bk_core.protocol.effects import LookForBookies, ReadLedger
from bk_core.protocol.events import BookiesLookedFor, LedgerRead, Outcome
from bk_core.protocol.wire.messages import ForceLedgerRequest, WriteLacRequest
from tests.unit.client.test_pictures import words

matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402 - after the backend was chosen


@pytest.fixture
def clients(uri: str) -> Iterator[tuple[BookKeeper, BookKeeper]]:
    with connect(uri) as first, connect(uri) as second:
        first.await_bookies(3, 3)
        yield first, second
    pyplot.close("all")


def fenced(clients: tuple[BookKeeper, BookKeeper]) -> tuple[Trace, int]:
    """The trace of a recovery that stops a live writer, and the ledger."""
    writing, recovering = clients
    with writing.trace("writer") as first, recovering.trace("recovery") as second:
        ledger = writing.create_ledger(password=b"hunter2")
        for number in range(3):
            ledger.append(b"secret %d" % number)
        recovering.recover_ledger(ledger.ledger_id, password=b"hunter2").close()
        with pytest.raises(LedgerFencedError):
            ledger.append(b"late")
    ledger.abandon()
    return first + second, ledger.ledger_id


def told(trace: Trace) -> list[tuple[str, str]]:
    return [(step.client, step.text) for step in trace.steps()]


def test_a_recovery_is_seen_step_by_step(clients: tuple[BookKeeper, BookKeeper]) -> None:
    trace, ledger_id = fenced(clients)
    steps = told(trace)
    wanted = [
        ("writer", "acknowledged up to entry 2"),
        ("recovery", f"set metadata: IN_RECOVERY -> {METADATA_STORE}"),
        ("recovery", f"{METADATA_STORE}: OK (to: set metadata: IN_RECOVERY)"),
        ("recovery", f"{METADATA_STORE}: OK (to: set metadata: CLOSED, last entry 2)"),
        ("recovery", f"ledger {ledger_id} is CLOSED, last entry 2"),
        ("writer", "failed: LedgerFencedError"),
    ]
    places = [steps.index(one) for one in wanted]
    assert places == sorted(places)
    fences = [at for at, (_, text) in enumerate(steps) if text.startswith("fence -> ")]
    assert len(fences) == 3 and all(places[2] < at < places[3] for at in fences)  # IN_RECOVERY is stored before anybody is fenced
    assert any(text.endswith("FENCED (to: add 3)") for _, text in steps)
    assert {message.ledger_id for message in trace.messages} == {ledger_id} and trace.clients == ("writer", "recovery")
    assert [step.number for step in trace.steps()] == list(range(1, len(steps) + 1)) and trace.steps()[0].at_ms == 0
    assert len({row["step"] for row in trace.to_pylist()}) == len(steps)
    everything = repr(trace.messages) + repr(steps) + trace._repr_html_()
    assert "secret" not in everything and "hunter2" not in everything


def test_each_add_gets_the_answer_to_it(clients: tuple[BookKeeper, BookKeeper]) -> None:
    client, _ = clients
    with client.trace() as trace, client.create_ledger(ensemble_size=3, write_quorum_size=2, ack_quorum_size=2) as ledger:
        ledger.append_many([b"%d" % number for number in range(10)])
        ledger.append(b"x")
        ledger.close()  # by then all adds are answered
    adds = [message for message in trace.messages if message.verb == "add"]
    assert {message.answer for message in adds} == {"OK"} and all((message.answered_ns or 0) > message.sent_ns for message in adds)
    ends = [message.entries for message in adds if message.entries is not None]
    assert [last for _, last in ends] == [9] * 3 + [10] * 2 and all(first in (0, 1, 10) for first, _ in ends)


def test_nothing_is_recorded_but_within_the_block(clients: tuple[BookKeeper, BookKeeper]) -> None:
    client, _ = clients
    with client.create_ledger() as ledger:
        ledger.append(b"before")
        with client.trace(limit=2) as trace:
            ledger.append(b"within")
        ledger.append(b"after")
    assert len(trace.messages) == 2 and trace.left_out == 1 and "1 not recorded" in repr(trace)
    assert all(message.entries == (1, 1) for message in trace.messages)
    assert client._session.tracers == ()


def test_a_recorder_that_fails_breaks_nothing(
    clients: tuple[BookKeeper, BookKeeper], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client, _ = clients

    def broken(*_: Any) -> None:
        raise ValueError("a mistake of the recorder")

    monkeypatch.setattr(Recorder, "_effect", broken)
    with caplog.at_level(logging.ERROR, "bk_core.client"), client.trace() as trace, client.create_ledger() as ledger:
        assert ledger.append(b"x") == 0 and ledger.append(b"y") == 1
    assert trace.messages == () and caplog.text.count("a trace of the client's messages failed") == 1


def test_reads_ahead_are_one_line(clients: tuple[BookKeeper, BookKeeper]) -> None:
    trace, _ = fenced(clients)
    assert len(trace.steps()) < 90 < len(trace.steps(together=False))
    assert any("fence, read 3 to " in text for _, text in told(trace))


def test_an_answer_is_refused_by_its_status(clients: tuple[BookKeeper, BookKeeper]) -> None:
    """No word of the answer decides, and that there is no such entry is no refusal."""
    trace, _ = fenced(clients)
    by_answer = {one.answer: one.is_refused for one in trace.messages}
    assert by_answer["OK"] is False and by_answer["NO_ENTRY"] is False and by_answer["FENCED"] is True
    made = TraceMessage("c", "b", 1, "read", "read", None, 0, 1, "OKAY, but no")
    assert made.is_refused is False and replace(made, is_refused=True).is_refused


def test_a_lac_and_a_force_are_no_adds() -> None:
    assert _told(WriteLacRequest(1, 2, 7, b"", b"")) == ("lac", "write LAC 7", None)
    assert _told(ForceLedgerRequest(1, 2)) == ("force", "force", None)


def test_what_is_joined_has_the_same_answer() -> None:
    def read(entry: int, answer: str, at: int) -> TraceMessage:
        return TraceMessage("c", "b", 1, "read", "read", (entry, entry), at, at + 10, answer)

    found = joined([read(0, "OK", 1), read(1, "NO_ENTRY", 2), read(2, "NO_ENTRY", 3), read(4, "NO_ENTRY", 4)])
    assert [(one.what, one.answer, one.answered_ns) for one in found] == [
        ("read 0", "OK", 11), ("read 1 to 2", "NO_ENTRY", 13), ("read 4", "NO_ENTRY", 14),
    ]  # fmt: skip


def test_the_picture_has_a_lane_for_everybody_and_the_words_of_each_message(clients: tuple[BookKeeper, BookKeeper]) -> None:
    trace, ledger_id = fenced(clients)
    axes = trace.plot()
    lanes = [text.get_text() for text in axes.get_yticklabels()]
    assert lanes[0] == "writer" and lanes[1] == METADATA_STORE and lanes[-1] == "recovery" and len(lanes) == 6
    found = words(axes)
    assert f"ledger {ledger_id}" in found and "add 3: FENCED" in found and "an answer that refuses" in found and "not to scale" in found
    at = next(step.number for step in trace.steps() if "IN_RECOVERY ->" in step.text)
    partly = words(trace.plot(until=at)).replace(":\n", ": ")
    assert "set metadata: IN_RECOVERY" in partly and "CLOSED" not in partly and "no answer so far" in partly
    assert trace.plot(scale="time").get_xlabel() == "milliseconds"
    axes = pyplot.subplots()[1]
    assert Trace([]).plot(ax=axes) is axes
    with pytest.raises(InvalidArgumentError, match='scale must be "order" or "time"'):
        trace.plot(scale="space")
    with pytest.raises(ArgumentTypeError):
        trace + 3  # type: ignore[operator]


class Operation:
    """A driver as a recorder sees it."""

    ledger_id = 7


def test_an_operation_gets_no_answer_of_one_that_is_gone() -> None:
    """A new operation may lie where one lay that ended without its answer, and numbers its requests in the same way."""
    recorder = Recorder("client", 100)
    recorder.performs(Operation(), ReadLedger(1), 0)  # type: ignore[arg-type]
    for at in range(100):
        recorder.hears(Operation(), LedgerRead(1, Outcome.OK), at)  # type: ignore[arg-type]
    (message,) = recorder.messages
    assert message.answered_ns is None and message.answer == ""


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.UNKNOWN])
def test_a_look_at_the_registry_is_recorded(outcome: Outcome) -> None:
    """EC-6."""
    recorder, operation = Recorder("client", 100), Operation()
    recorder.performs(operation, LookForBookies(3), 0)  # type: ignore[arg-type]
    recorder.hears(operation, BookiesLookedFor(3, outcome), 9)  # type: ignore[arg-type]
    (message,) = recorder.messages
    assert (message.peer, message.verb, message.answered_ns, message.answer) == (METADATA_STORE, "list bookies", 9, outcome.name)
    assert message.is_refused is (outcome is not Outcome.OK)
