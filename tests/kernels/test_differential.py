"""The twins on arbitrary arguments: equal results, or the same exception class, text and context."""

from __future__ import annotations

import ctypes
import threading
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bk_core.errors import BkError
from bk_core.kernels import _native, pure

KEY = bytes(range(20))
BIG = (1 << 63) - 1

numbers = st.one_of(
    st.integers(-2, 40), st.sampled_from([BIG, -BIG - 1, BIG + 1, -BIG - 2, 0xFFFF, 0x10000, 0xFFFFFFFF, 1 << 32]), st.integers()
)
small = st.integers(0, 50)
keys = st.one_of(st.just(KEY), st.binary(max_size=21))
digest_types = st.one_of(st.integers(1, 4), numbers)
frames = st.lists(st.binary(max_size=30), max_size=8).map(lambda items: b"".join(len(item).to_bytes(4, "big") + item for item in items))
streams = st.one_of(st.binary(max_size=80), frames, st.builds(bytes.__add__, frames, st.binary(max_size=8)))


def outcome(function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        return ("result", function(*arguments))
    except Exception as error:
        return (type(error), error.args, error.context if isinstance(error, BkError) else None)


def assert_equal(name: str, *arguments: Any) -> tuple[Any, ...]:
    expected = outcome(getattr(pure, name), arguments)
    assert outcome(getattr(_native, name), arguments) == expected
    return expected


@given(st.binary(max_size=3000), numbers)
def test_crc32c(data: bytes, value: int) -> None:
    assert_equal("crc32c", data, value)


@given(streams, st.one_of(st.integers(4, 40), numbers))
def test_scan_frames(data: bytes, limit: int) -> None:
    assert_equal("scan_frames", data, limit)


@given(st.binary(max_size=60), st.lists(numbers, max_size=6), st.tuples(*[numbers] * 4, digest_types, keys, keys, numbers))
def test_frame_adds_arbitrary(payloads: bytes, offsets: list[int], rest: tuple[Any, ...]) -> None:
    native_offsets = array("q", [offset for offset in offsets if -BIG - 1 <= offset <= BIG])
    assert_equal("frame_adds", payloads, native_offsets, *rest)


@given(
    st.lists(st.binary(max_size=200), max_size=6),
    st.integers(0, 5),
    st.sampled_from([0, 7, BIG - 3, BIG]),
    st.sampled_from([0, 7, BIG - 3, BIG]),
    st.integers(1, 4),
    st.integers(0, 0xFFFF),
    st.data(),
)
def test_frame_adds_and_back(
    payloads: list[bytes], skip: int, entry: int, before: int, digest_type: int, flags: int, data: st.DataObject
) -> None:
    offsets = array("q", [skip])
    for payload in payloads:
        offsets.append(offsets[-1] + len(payload))
    joined = bytes(skip) + b"".join(payloads)
    framed = assert_equal("frame_adds", joined, offsets, 5, entry, -1, before, digest_type, KEY, KEY, flags)
    if framed[0] != "result":
        return
    frames_made, frame_offsets = framed[1]
    unpacked = assert_equal("unpack_entries", frames_made, 24, 5, digest_type, KEY)
    assert unpacked[1][2] == b"".join(payloads)
    for i in range(len(payloads)):
        start, end = array("q", frame_offsets)[i : i + 2]
        assert frames_made[end - len(payloads[i]) : end] == payloads[i] and end - start >= 60
    if frames_made:
        damaged = bytearray(frames_made)
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        assert_equal("unpack_entries", damaged, data.draw(st.sampled_from([24, 24, 0, 25])), 5, digest_type, KEY)
        assert_equal("unpack_entries", frames_made[: data.draw(st.integers(0, len(frames_made)))], 24, 5, digest_type, KEY)


@given(st.one_of(streams, st.binary(max_size=300)), numbers, numbers, digest_types, keys)
def test_unpack_entries_arbitrary(data: bytes, header_bytes: int, ledger_id: int, digest_type: int, key: bytes) -> None:
    assert_equal("unpack_entries", data, header_bytes, ledger_id, digest_type, key)


@settings(max_examples=50)
@given(st.integers(0, 24), st.lists(st.binary(min_size=24, max_size=60), max_size=4), st.integers(1, 4))
def test_unpack_entries_of_the_right_ledger(header_bytes: int, bodies: list[bytes], digest_type: int) -> None:
    """With DUMMY digests random headers get through, ids of every sign."""
    items = [bytes(header_bytes + 7) + b"\x05" + body for body in bodies]
    assert_equal("unpack_entries", b"".join(len(item).to_bytes(4, "big") + item for item in items), header_bytes, 5, digest_type, KEY)


NOT_SIMPLE = [
    None,
    "text",
    7,
    [1],
    bytearray(b"\0\0\0\x01a"),
    memoryview(b"\0\0\0\x01a\0\0\0\0\0\0")[:5],
    memoryview(bytes(20))[::2],
    memoryview(bytes(24)).cast("B", (4, 6)),
    array("d", [1.5]),
    array("q"),
    (ctypes.c_int64 * 2)(0, 0),
    (ctypes.c_int64 * 0)(),
]


@pytest.mark.parametrize("thing", NOT_SIMPLE, ids=lambda thing: type(thing).__name__)
def test_buffers_of_all_kinds(thing: Any) -> None:
    assert_equal("crc32c", thing)
    assert_equal("scan_frames", thing, 100)
    assert_equal("unpack_entries", thing, 0, 5, 4, b"")
    assert_equal("unpack_entries", b"", 0, 5, 2, thing)
    assert_equal("frame_adds", thing, array("q", [0, 2]), 1, 0, -1, 0, 3, KEY, KEY, 0)
    assert_equal("frame_adds", b"", thing, 1, 0, -1, 0, 3, KEY, KEY, 0)
    assert_equal("frame_adds", b"", array("q", [0]), 1, 0, -1, 0, 2, thing, KEY, 0)
    assert_equal("frame_adds", b"", array("q", [0]), 1, 0, -1, 0, 3, KEY, thing, 0)


@pytest.mark.parametrize("number", [None, "1", 1.0, True, BIG + 1], ids=repr)
def test_numbers_of_all_kinds(number: Any) -> None:
    assert_equal("crc32c", b"a", number)
    assert_equal("scan_frames", b"", number)
    assert_equal("unpack_entries", b"", number, number, number, b"")
    for position in (2, 3, 4, 5, 6, 9):
        arguments: list[Any] = [b"ab", array("q", [0, 2]), 1, 0, -1, 0, 3, KEY, KEY, 0]
        arguments[position] = number
        assert_equal("frame_adds", *arguments)


def test_a_released_view() -> None:
    view = memoryview(b"abc")
    view.release()
    assert_equal("crc32c", view)


@pytest.mark.parametrize("name, count", [("crc32c", 0), ("crc32c", 3), ("scan_frames", 1), ("frame_adds", 9), ("unpack_entries", 8)])
def test_wrong_number_of_arguments(name: str, count: int) -> None:
    for kernels in (pure, _native):
        with pytest.raises(TypeError, match="argument"):
            getattr(kernels, name)(*[b""] * count)


def test_a_failed_call_lets_go_of_its_buffers() -> None:
    """A buffer still held could not be resized."""
    data, key = bytearray(b"\0\0\0\x09a"), bytearray(3)
    for name, arguments in [
        ("crc32c", (data, -1)),
        ("scan_frames", (data, 5)),
        ("scan_frames", (data, None)),
        ("frame_adds", (data, data, 1, 0, -1, 0, 3, key, key, 0)),
        ("frame_adds", (data, data, 1, 0, -1, 0, 3, key, key, None)),
        ("unpack_entries", (data, 0, 0, 2, key)),
        ("unpack_entries", (data, 0, 0, 4, None)),
    ]:
        assert outcome(getattr(_native, name), arguments)[0] != "result"
        data.append(0)
        key.append(0)


def test_another_thread_writes_meanwhile() -> None:
    """A big input is read without the GIL, twice. Whatever it says at each moment, the answer is whole or one of our errors."""
    count, size = 400, 300
    offsets = array("q", range(0, (count + 1) * size, size))
    frames, frame_offsets = pure.frame_adds(bytes(count * size), offsets, 1, 0, -1, 0, 4, b"", KEY, 0)
    shared, stop = bytearray(frames), threading.Event()
    starts = array("q", frame_offsets)

    def disturb() -> None:
        while not stop.is_set():
            for start in starts[:-1:7]:
                shared[start + 2] ^= 1  # a length that is 256 bytes longer or shorter
                shared[start + 2] ^= 1
            for i in range(1, count, 7):
                offsets[i] += 1 << 20
                offsets[i] -= 1 << 20

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(300):
            for name, arguments in [
                ("unpack_entries", (shared, 24, 1, 4, b"")),
                ("scan_frames", (shared, 5000)),
                ("frame_adds", (bytes(count * size), offsets, 1, 0, -1, 0, 4, b"", KEY, 0)),
            ]:
                kind = outcome(getattr(_native, name), arguments)[0]
                assert kind == "result" or issubclass(kind, BkError)
    finally:
        stop.set()
        thread.join()
