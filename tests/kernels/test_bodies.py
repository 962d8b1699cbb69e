"""Bodies of entries in their several arrangements, both twins: in add frames, behind their lengths, in read answers of every so many."""

from __future__ import annotations

import struct
import threading
from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import BkError, DigestError, InvalidArgumentError
from bk_core.kernels import _native, pure
from tests.kernels.test_differential import BIG, KEY, NOT_SIMPLE, assert_equal, numbers, outcome

both = pytest.mark.parametrize("kernels", [pure, _native], ids=["pure", "native"])


def joined(bodies: list[bytes]) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def body(entry: int, lac: int, payload: bytes = b"") -> bytes:
    return struct.pack(">qqqq", 5, entry, lac, 0) + payload


def add_frame(content: bytes) -> bytes:
    payload = b"\2\1\0\0" + KEY + content
    return len(payload).to_bytes(4, "big") + payload


# --- take_bodies ------------------------------------------------------------------------------------------------


@both
def test_bodies_of_a_run_of_adds(kernels: ModuleType) -> None:
    bodies = [body(3, 1, b"abc"), body(4, 2), body(5, -1, bytes(300))]
    stream = b"\xff" * 3 + b"".join(map(add_frame, bodies)) + b"\xff" * 5
    items, _, _ = kernels.scan_requests(stream[:-5], 3, len(stream) - 5, 1 << 20)
    assert [item[:5] for item in items] == [(1, 5, 3, 3, 0)]
    assert kernels.take_bodies(bytearray(stream), *items[0][5:]) == (joined(bodies), 2)
    assert kernels.take_bodies(add_frame(body(1, -7)), 0, 60) == (joined([body(1, -7)]), -7)
    assert kernels.frame_read_responses(5, 3, joined(bodies)) == kernels.frame_read_responses(5, 3, bodies)


@both
@pytest.mark.parametrize("data", [b"", b"\0\0\0", add_frame(bytes(31)), add_frame(bytes(32))[:-1], b"\0\0\0\0" * 20], ids=len)
def test_what_is_no_add(kernels: ModuleType, data: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="frame 0 is no whole add request"):
        kernels.take_bodies(data, 0, len(data))
    good = add_frame(bytes(32))
    if data:
        with pytest.raises(InvalidArgumentError, match="frame 1 is no whole add request"):
            kernels.take_bodies(good + data, 0, len(good + data))


@given(st.lists(st.binary(min_size=30, max_size=60), max_size=6), st.data())
def test_arbitrary_bodies(bodies: list[bytes], data: st.DataObject) -> None:
    frames, wire = b"".join(map(add_frame, bodies)), joined(bodies)
    begin, end = data.draw(st.integers(0, len(frames))), data.draw(st.integers(0, len(frames)))
    assert_equal("take_bodies", frames, 0, len(frames))
    assert_equal("take_bodies", frames, begin, end)
    assert_equal("take_bodies", frames, data.draw(numbers), data.draw(numbers))
    assert_equal("frame_read_responses", 1, 1, wire)
    assert_equal("frame_read_responses", data.draw(st.sampled_from([-1, 1])), data.draw(numbers), memoryview(wire)[:end])


# --- unpack_entries with a step ---------------------------------------------------------------------------------


@both
def test_ids_of_a_lane(kernels: ModuleType) -> None:
    frames = b"".join(kernels.frame_adds(b"ab", array("q", [0, 2]), 5, entry, -1, 0, 3, b"", KEY, 0)[0] for entry in (4, 7, 10))
    assert array("q", kernels.unpack_entries(frames, 24, 5, 3, b"", 4, 3)[0]).tolist() == [4, 7, 10]
    assert kernels.unpack_entries(frames, 24, 5, 3, b"", -1, 2) == kernels.unpack_entries(frames, 24, 5, 3, b"")
    with pytest.raises(DigestError, match="item 1: ledger 5, entry 7 where entry 6 was expected"):
        kernels.unpack_entries(frames, 24, 5, 3, b"", 4, 2)
    with pytest.raises(InvalidArgumentError, match="step must be"):
        kernels.unpack_entries(frames, 24, 5, 3, b"", 4, 0)


@given(st.lists(st.integers(0, 9), max_size=4), numbers, numbers)
def test_steps_of_all_kinds(entries: list[int], first: int, step: int) -> None:
    frames = b"".join(pure.frame_adds(b"ab", array("q", [0, 2]), 5, entry, -1, 0, 4, b"", KEY, 0)[0] for entry in entries)
    assert_equal("unpack_entries", frames, 24, 5, 4, b"", first, step)
    assert_equal("unpack_entries", frames, 24, 5, 4, b"", BIG - 7, step)
    if len(entries) > 1:
        assert_equal("unpack_entries", frames, 24, 5, 4, b"", entries[0], entries[1] - entries[0])


# --- arguments of the wrong kind --------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", NOT_SIMPLE, ids=lambda thing: type(thing).__name__)
def test_things_of_all_kinds(thing: Any) -> None:
    assert_equal("take_bodies", thing, 0, 0)


@pytest.mark.parametrize("number", [None, "1", 1.0, True, BIG + 1], ids=repr)
def test_numbers_of_all_kinds(number: Any) -> None:
    for position in (1, 2):
        arguments: list[Any] = [add_frame(bytes(32)), 0, 60]
        arguments[position] = number
        assert_equal("take_bodies", *arguments)
    assert_equal("unpack_entries", b"", 0, 1, 4, b"", 1, number)


@pytest.mark.parametrize(
    "name, count",
    [("take_bodies", 2), ("take_bodies", 4), ("frame_read_responses", 2), ("unpack_entries", 4)],
)
def test_wrong_number_of_arguments(name: str, count: int) -> None:
    for kernels in (pure, _native):
        with pytest.raises(TypeError, match="argument"):
            getattr(kernels, name)(*[0] * count)


def test_calls_let_go_of_their_buffers() -> None:
    """A buffer still held could not be resized."""
    data = bytearray(add_frame(bytes(40)))
    for name, arguments in [
        ("take_bodies", (data, 0, len(data))),
        ("take_bodies", (data, 0, 5)),
        ("take_bodies", (data, 0, None)),
        ("frame_read_responses", (1, 1, data)),
        ("frame_read_responses", (-1, 1, data)),
    ]:
        outcome(getattr(_native, name), arguments)
        data.append(0)


def test_another_thread_writes_meanwhile() -> None:
    """Big inputs are read without the GIL, twice: the answer is whole, or one of our errors."""
    frames = bytearray(b"".join(add_frame(body(entry, 0, bytes(200))) for entry in range(400)))
    wire = bytearray(joined([bytes(200)] * 400))
    stop = threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            for at in range(2, 60_000, 204):
                frames[at] ^= 1
                wire[at] ^= 1
                frames[at] ^= 1
                wire[at] ^= 1

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(300):
            for name, arguments in [
                ("take_bodies", (frames, 0, len(frames))),
                ("frame_read_responses", (1, 1, wire)),
            ]:
                kind = outcome(getattr(_native, name), arguments)[0]
                assert kind == "result" or issubclass(kind, BkError)
    finally:
        stop.set()
        thread.join()
