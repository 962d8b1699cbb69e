"""Items of runs of reads, lanes of striped ledgers: both twins, known results, arbitrary input and the same errors."""

from __future__ import annotations

import threading
from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import DigestError, InvalidArgumentError, RemoteProtocolError
from bk_core.kernels import _native, pure
from tests.kernels.test_differential import BIG, KEY, NOT_SIMPLE, assert_equal, numbers, outcome

both = pytest.mark.parametrize("kernels", [pure, _native], ids=["pure", "native"])


def item(size: int) -> bytes:
    return size.to_bytes(4, "big") + bytes(size)


def marks(*sizes: int, first: int = 0) -> array[int]:
    offsets = array("q", [first])
    for size in sizes:
        offsets.append(offsets[-1] + size)
    return offsets


# --- skip_frames ------------------------------------------------------------------------------------------------


@both
def test_skip_frames(kernels: ModuleType) -> None:
    data = b"\xff" * 7 + item(5) + item(0) + item(300)
    assert [kernels.skip_frames(data, 7, len(data), count) for count in range(4)] == [7, 16, 20, len(data)]
    assert kernels.skip_frames(memoryview(data), 7, 16, 1) == 16
    for start, stop, count in [(7, len(data), 4), (7, 15, 1), (7, 10, 1), (7, 7, 1), (0, len(data), 1), (7, len(data), BIG)]:
        with pytest.raises(RemoteProtocolError, match=f"there are fewer than {count} items"):
            kernels.skip_frames(data, start, stop, count)
    for arguments, text in [
        ((-1, 3, 0), f"start must be 0..{len(data)}: -1"),
        ((8, 7, 0), f"stop must be 8..{len(data)}: 7"),
        ((0, len(data) + 1, 0), "stop must be 0"),
        ((0, 0, -1), "count must not be negative: -1"),
    ]:
        with pytest.raises(InvalidArgumentError, match=text):
            kernels.skip_frames(data, *arguments)


@given(st.lists(st.integers(0, 20).map(item), max_size=8).map(b"".join), numbers, numbers, numbers, st.integers(0, 9))
def test_skip_frames_of_arbitrary_numbers(data: bytes, start: int, stop: int, count: int, small: int) -> None:
    assert_equal("skip_frames", data, start, stop, min(count, 100))
    assert_equal("skip_frames", data, small, len(data), small)
    assert_equal("skip_frames", data[small:], 0, max(0, len(data) - small), small)


# --- interleave -------------------------------------------------------------------------------------------------


@both
def test_interleave(kernels: ModuleType) -> None:
    lanes = [
        [(b"aaddd", marks(2, 3)), (b"--g", marks(1, first=2))],
        [(b"b", marks(0)), (b"be", marks(1, 1))],
        [(b"", marks(0)), (b"", array("q", [77])), (b"ffffff", marks(6))],
    ]
    lanes[1][0] = (b"", array("q", [5]))  # a part without entries
    offsets, values = kernels.interleave(lanes)
    assert values == b"aabdddeffffffg"
    assert array("q", offsets).tolist() == [0, 2, 3, 3, 6, 7, 13, 14]
    assert kernels.interleave([[(b"abc", marks(1, 2))]]) == (marks(1, 2).tobytes(), b"abc")
    assert kernels.interleave([[]]) == kernels.interleave([[], []]) == (bytes(8), b"")
    assert kernels.interleave(([(b"a", marks(1))], ())) == (marks(1).tobytes(), b"a")


@both
def test_lanes_that_cannot_be_merged(kernels: ModuleType) -> None:
    def lane(entries: int) -> list[tuple[bytes, array[int]]]:
        return [(b"", marks(*[0] * entries))]

    for sizes in ([], [1, 2], [2, 0], [2, 1, 0], [3, 2, 3], [2, 3, 3]):
        text = f"lanes of {sizes} entries cannot be merged".replace("[", r"\[").replace("]", r"\]")
        with pytest.raises(InvalidArgumentError, match=text):
            kernels.interleave([lane(size) for size in sizes])
    for values, offsets, text in [
        (b"ab", [0, 3], "offsets 0 and 3 are no part of 2 bytes"),
        (b"ab", [-1, 1], "offsets -1 and 1 are no part of 2 bytes"),
        (b"ab", [2, 1], "offsets 2 and 1 are no part of 2 bytes"),
        (b"ab", [0, 1, 2, BIG], "offsets 2 and 9223372036854775807 are no part of 2 bytes"),
        (b"ab", [], "offsets must be one or more native int64: 0 bytes given"),
    ]:
        with pytest.raises(InvalidArgumentError, match=text):
            kernels.interleave([[(values, array("q", offsets))]])
    with pytest.raises(InvalidArgumentError, match="offsets must be one or more native int64: 9 bytes given"):
        kernels.interleave([[(b"a", bytes(9))]])


entries = st.lists(st.binary(max_size=20), max_size=12)


@given(st.lists(entries, max_size=5), st.integers(0, 3), st.booleans())
def test_arbitrary_lanes(columns: list[list[bytes]], cut: int, fitting: bool) -> None:
    if fitting and columns:
        size = min(map(len, columns))
        columns = [column[: size + (index < cut)] for index, column in enumerate(columns)]
    lanes = [[(b"".join(part), marks(*map(len, part))) for part in (column[:cut], column[cut:])] for column in columns]
    assert_equal("interleave", lanes)


@given(
    st.lists(st.tuples(st.binary(max_size=9), st.lists(st.one_of(st.integers(-BIG - 1, BIG), st.integers(0, 9)), max_size=4)), max_size=3),
    st.binary(max_size=2),
)
def test_arbitrary_offsets(parts: list[tuple[bytes, list[int]]], rest: bytes) -> None:
    assert_equal("interleave", [[(values, array("q", offsets)) for values, offsets in parts]])
    assert_equal("interleave", [[(values, array("q", offsets).tobytes() + rest)] for values, offsets in parts])


def test_big_lanes_without_the_gil() -> None:
    lanes = [[(bytes([lane]) * 300_000, marks(*[300] * 1000))] for lane in range(5)]
    offsets, values = assert_equal("interleave", lanes)[1]
    assert len(offsets) == 8 * 5001 and values[:1500] == b"".join(bytes([lane]) * 300 for lane in range(5))


# --- ids with a step --------------------------------------------------------------------------------------------


@both
def test_unpacked_ids_with_a_step(kernels: ModuleType) -> None:
    frames = b"".join(kernels.frame_adds(b"ab", marks(2), 5, entry, -1, 0, 3, b"", KEY, 0)[0] for entry in (10, 15, 20))
    assert kernels.unpack_entries(frames, 24, 5, 3, b"", 10, 5) == kernels.unpack_entries(frames, 24, 5, 3, b"")
    assert kernels.unpack_entries(frames, 24, 5, 3, b"", -1, 7) == kernels.unpack_entries(frames, 24, 5, 3, b"")
    with pytest.raises(DigestError, match="item 1: ledger 5, entry 15 where entry 14 was expected") as caught:
        kernels.unpack_entries(frames, 24, 5, 3, b"", 10, 4)
    assert caught.value.context == {"item": 1, "ledger": 5, "entry": 15}
    for step in (0, -1, 1 << 31, BIG):
        with pytest.raises(InvalidArgumentError, match=f"step must be 1..2147483647: {step}"):
            kernels.unpack_entries(frames, 24, 5, 3, b"", 10, step)
    for first, step in [(BIG - 9, 5), (BIG - 1, 1), (BIG, 1), (BIG - 2 * 0x7FFFFFFF + 1, 0x7FFFFFFF)]:
        with pytest.raises(InvalidArgumentError, match=f"3 entries from {first} do not fit in 64 bits"):
            kernels.unpack_entries(frames, 24, 5, 3, b"", first, step)
    for first, step in [(BIG - 10, 5), (BIG - 2, 1), (BIG - 2 * 0x7FFFFFFF, 0x7FFFFFFF)]:
        with pytest.raises(DigestError, match="item 0"):
            kernels.unpack_entries(frames, 24, 5, 3, b"", first, step)


@given(st.integers(0, 5), st.integers(1, 4), numbers, numbers)
def test_steps_of_all_kinds(count: int, given_step: int, first: int, step: int) -> None:
    frames = b"".join(pure.frame_adds(b"ab", marks(2), 5, 3 + i * given_step, -1, 0, 4, b"", KEY, 0)[0] for i in range(count))
    assert_equal("unpack_entries", frames, 24, 5, 4, KEY, 3, given_step)
    assert_equal("unpack_entries", frames, 24, 5, 4, KEY, first, step)


# --- arguments of the wrong kind --------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [*NOT_SIMPLE, (b"a", None), iter([b"a"])], ids=lambda thing: type(thing).__name__)
def test_things_of_all_kinds(thing: Any) -> None:
    assert_equal("skip_frames", thing, 0, 0, 0)
    for lanes in (
        thing,
        [thing],
        [[thing]],
        [[(thing, marks(1))]],
        [[(b"a", thing)]],
        [[], [(b"", bytes(8)), thing]],
        [[(b"", b"", thing)]],
    ):
        assert_equal("interleave", lanes)


@pytest.mark.parametrize("number", [None, "1", 1.0, True, BIG + 1], ids=repr)
def test_numbers_of_all_kinds(number: Any) -> None:
    for position in (1, 2, 3):
        arguments: list[Any] = [item(3), 0, 7, 1]
        arguments[position] = number
        assert_equal("skip_frames", *arguments)
    assert_equal("unpack_entries", b"", 0, 1, 4, b"", 0, number)


@pytest.mark.parametrize(
    "name, count", [("skip_frames", 3), ("skip_frames", 5), ("interleave", 0), ("interleave", 2), ("unpack_entries", 8)]
)
def test_wrong_number_of_arguments(name: str, count: int) -> None:
    for kernels in (pure, _native):
        with pytest.raises(TypeError, match="argument"):
            getattr(kernels, name)(*[0] * count)


def test_calls_let_go_of_their_buffers() -> None:
    """A buffer still held could not be resized."""
    data = bytearray(item(3))
    for name, arguments in [
        ("skip_frames", (data, 0, 4, 1)),
        ("skip_frames", (data, 0, 7, 1)),
        ("skip_frames", (data, 0, None, 1)),
        ("interleave", ([[(data, marks(1))]],)),
        ("interleave", ([[(data, marks(1)), (data, data)]],)),
        ("interleave", ([[(data, marks(1)), (data, None)]],)),
        ("interleave", ([[(data, marks(1))], [(data, marks(1, 1))]],)),
    ]:
        outcome(getattr(_native, name), arguments)
        data.append(0)


def test_another_thread_writes_meanwhile() -> None:
    shared, stop = marks(*[100] * 2000), threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            for at in range(1, 2000, 7):
                shared[at] += 10_000
                shared[at] -= 10_000

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(300):
            kind, *rest = outcome(_native.interleave, ([[(bytes(200_000), shared)]] * 3,))
            assert kind == "result" and len(rest[0][1]) == 600_000 or issubclass(kind, InvalidArgumentError)
    finally:
        stop.set()
        thread.join()
