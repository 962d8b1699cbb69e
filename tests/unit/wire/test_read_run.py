"""Many single reads as one: in order, ahead of their turn, refused, and over before they are complete."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from bk_core.kernels import skip_frames
from bk_core.protocol.wire import codec_v2
from bk_core.protocol.wire.messages import ReadResponse, ReadRunRequest, Status
from bk_core.protocol.wire.read_run import HEADER_BYTES, LENGTH_BYTES, RunAnswers

FIVE = ReadRunRequest(9, 7, 10, 5, 2)  # 10, 12, 14, 16, 18


def answer(entry_id: int, status: Status = Status.OK, max_lac: int | None = None) -> ReadResponse:
    return ReadResponse(0, status, 7, entry_id, b"%d" % entry_id if status is Status.OK else None, max_lac)


def frame(entry_id: int) -> bytes:
    return codec_v2.encode_response_frame(answer(entry_id))


def bodies(run: RunAnswers, otherwise: Status = Status.TIMEOUT) -> list[bytes]:
    frames = bytes(run.response(otherwise).frames)
    ends = [0, *itertools.accumulate(1 for _ in range(frames.count(b"\x02\x02\x00\x00")))]
    edges = [skip_frames(frames, 0, len(frames), count) for count in ends]
    return [frames[a + LENGTH_BYTES + HEADER_BYTES : b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("order", list(itertools.permutations((10, 12, 14))))
def test_answers_are_put_in_order(order: tuple[int, ...]) -> None:
    """wire-protocol.md 9: the order of answers is nothing to rely on."""
    run = RunAnswers(ReadRunRequest(9, 7, 10, 3, 2))
    for entry_id in order:
        assert run.awaits(entry_id) and not run.done
        run.take(answer(entry_id))
        assert not run.awaits(entry_id)
    assert run.done and bodies(run) == [b"10", b"12", b"14"]
    response = run.response(Status.TIMEOUT)
    assert (response.request_id, response.status, response.ledger_id, response.entry_id) == (9, Status.OK, 7, 10)


def test_many_at_once() -> None:
    """Frames as they came, joined with what was ahead of them."""
    run = RunAnswers(FIVE)
    assert (run.in_order(12, 2, 2), run.in_order(10, 0, 2), run.in_order(10, 3, 2), run.in_order(10, 9, 2)) == (0, 0, 3, 5)
    run.take(answer(14))
    run.take_frames(2, frame(10) + frame(12))
    assert run.next == 16 and run.in_order(16, 9, 2) == 2
    run.take_frames(2, frame(16) + frame(18))
    assert run.done and bodies(run) == [b"10", b"12", b"14", b"16", b"18"]


@pytest.mark.parametrize("entry_id", [8, 9, 11, 19, 20])
def test_answers_about_other_entries_are_not_awaited(entry_id: int) -> None:
    assert not RunAnswers(FIVE).awaits(entry_id)


@pytest.mark.parametrize("first", [True, False])
def test_what_comes_before_a_refusal_is_good(first: bool) -> None:
    """RD-10; whatever comes behind it, before or after, is not wanted."""
    run = RunAnswers(FIVE)
    steps = [lambda: run.take(answer(14, Status.IO_ERROR)), lambda: run.take_frames(2, frame(10) + frame(12))]
    run.take(answer(18))
    for step in steps if first else reversed(steps):
        assert not run.done
        step()
    assert run.done and not run.awaits(16)
    assert run.response(Status.TIMEOUT).status is Status.OK and bodies(run) == [b"10", b"12"]


def test_a_refusal_of_the_first_entry_is_the_status_of_all() -> None:
    for response, status in ((answer(10, Status.NO_ENTRY), Status.NO_ENTRY), (ReadResponse(0, Status.OK, 7, 10), Status.PROTOCOL_ERROR)):
        run = RunAnswers(FIVE)
        run.take(response)
        assert run.done and run.response(Status.TIMEOUT).status is status and bodies(run) == []


def test_a_run_that_is_over_before_it_is_complete() -> None:
    """A timeout, a lost connection: the prefix is good; without one the reason is told."""
    run = RunAnswers(FIVE)
    assert run.response(Status.TIMEOUT).status is Status.TIMEOUT
    run.take(answer(12))
    assert run.response(Status.UNAVAILABLE).status is Status.UNAVAILABLE
    run.take(answer(10))
    assert run.response(Status.UNAVAILABLE).status is Status.OK and bodies(run) == [b"10", b"12"]


def test_the_highest_lac_is_told() -> None:
    """RD-9."""
    run = RunAnswers(FIVE)
    assert run.response(Status.TIMEOUT).max_lac is None
    for entry_id, lac in ((10, 30), (12, 40), (14, None), (16, 35)):
        run.take(answer(entry_id, max_lac=lac))
    assert run.response(Status.TIMEOUT).max_lac == 40


@pytest.mark.parametrize("order", list(itertools.permutations((10, 12, 14))))
def test_a_run_ends_where_it_has_its_bytes(order: tuple[int, ...]) -> None:
    """RD-10: entries may be larger than was guessed; what comes behind the bound is not kept."""
    size = len(frame(10))
    run = RunAnswers(replace(FIVE, bytes_max=2 * size + 1))
    for entry_id in order:
        if run.awaits(entry_id):
            run.take(answer(entry_id))
    assert run.done and not any(run.awaits(entry_id) for entry_id in range(30))
    assert bodies(run) == [b"10", b"12", b"14"][: len(bodies(run))] and bodies(run)
    whole = RunAnswers(replace(FIVE, bytes_max=2 * size + 1))
    whole.take_frames(3, frame(10) + frame(12) + frame(14))
    assert whole.done and whole.in_order(16, 2, 2) == 0 and bodies(whole) == [b"10", b"12", b"14"]


def test_a_run_that_lacks_its_first_entry_waits_for_it() -> None:
    """RD-10: at least one entry comes, however large it is."""
    run = RunAnswers(replace(FIVE, bytes_max=1))
    run.take(answer(12))
    run.take(answer(14))
    assert not run.done and run.awaits(10)
    run.take(answer(10))
    assert run.done and bodies(run) == [b"10", b"12", b"14"]
