"""Runs of v2 messages, both twins: known bytes, arbitrary streams cut everywhere, and the same errors for the same arguments."""

from __future__ import annotations

import struct
import threading
from array import array
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import BkError, DigestError, InvalidArgumentError, RemoteProtocolError
from bk_core.kernels import _native, pure
from tests.kernels.test_differential import BIG, KEY, NOT_SIMPLE, assert_equal, numbers, outcome

OTHER, ADDS, READS, BATCH, SPARSE_ADDS = 0, 1, 2, 3, 4
LIMIT = 1 << 20
ADD, READ, AUTH, BATCH_READ = 1, 2, 3, 7
OK_ADD = bytes.fromhex("00000018 02010000 00000000 0000000000001234 0000000000000007")  # A3 of wire-protocol.md 13.5
FENCED_ADD = bytes.fromhex("00000018 02010000 00000068 0000000000001234 0000000000000007")
PLAIN_READ = bytes.fromhex("00000014 02020000 0000000000001234 0000000000000007")
FENCE_READ = bytes.fromhex("00000028 02020001 0000000000001234 ffffffffffffffff e793cbc379107648537183605cd361d3bb789a39")
READ_OK = bytes.fromhex(
    "0000004d 02020000 00000000 0000000000001234 0000000000000007"
    "0000000000001234 0000000000000007 0000000000000006 00000000000003ed 0321c545 68656c6c6f2c20626f6f6b6b6565706572"
)
NO_ENTRY = bytes.fromhex("00000018 02020000 00000002 0000000000001234 0000000000000007")
BATCH_OK = bytes.fromhex(
    "00000083 02070000 00000000 0000000000001234 0000000000000007 000000000000002a"
    "00000035 0000000000001234 0000000000000007 0000000000000006 00000000000003ed 0321c545 68656c6c6f2c20626f6f6b6b6565706572"
    "00000026 0000000000001234 0000000000000008 0000000000000007 00000000000003ef 41a61489 6869"
)
NO_BATCH = bytes.fromhex("00000020 02070000 00000002 0000000000001234 0000000000000007 000000000000002a")
AUTH_FRAME = bytes.fromhex("0000001a 02030000 0a12 4175746844697361626c6564506c7567696e 1200")

both = pytest.mark.parametrize("kernels", [pure, _native], ids=["pure", "native"])


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def response(opcode: int, ledger: int, entry: int, code: int = 0, tail: bytes = b"", version: int = 2, flags: int = 0) -> bytes:
    return frame(struct.pack(">BBHiqq", version, opcode, flags, code, ledger, entry) + tail)


def add_request(ledger: int, entry: int, flags: int = 0, key: bytes = KEY, tail: bytes = bytes(16), version: int = 2) -> bytes:
    return frame(struct.pack(">BBH", version, ADD, flags) + key + struct.pack(">qq", ledger, entry) + tail)


def read_request(ledger: int, entry: int, flags: int = 0, tail: bytes = b"", version: int = 2) -> bytes:
    return frame(struct.pack(">BBHqq", version, READ, flags, ledger, entry) + tail)


def scan(kernels: ModuleType, name: str, data: bytes) -> list[tuple[int, ...]]:
    items, consumed, wanted = getattr(kernels, name)(data, 0, len(data), LIMIT)
    assert (consumed, wanted) == (len(data), 0)
    found: list[tuple[int, ...]] = items
    return found


# --- responses --------------------------------------------------------------------------------------------------


@both
def test_the_golden_responses(kernels: ModuleType) -> None:
    stream = OK_ADD + FENCED_ADD + READ_OK + NO_ENTRY + BATCH_OK + NO_BATCH + AUTH_FRAME
    items = scan(kernels, "scan_responses", stream)
    assert [item[:5] for item in items] == [
        (ADDS, 0x1234, 7, 1, 0),
        (OTHER, -1, -1, 0, 0),
        (READS, 0x1234, 7, 1, 1),
        (OTHER, -1, -1, 0, 0),
        (BATCH, 0x1234, 7, 42, 0),
        (OTHER, -1, -1, 0, 0),
        (OTHER, -1, -1, 0, 0),
    ]
    pieces = [stream[item[5] : item[6]] for item in items]
    assert pieces == [OK_ADD, FENCED_ADD[4:], READ_OK, NO_ENTRY[4:], BATCH_OK[36:], NO_BATCH[4:], AUTH_FRAME[4:]]


@both
def test_answers_to_consecutive_adds_are_one_item(kernels: ModuleType) -> None:
    stream = b"".join(response(ADD, 5, entry) for entry in (3, 4, 5, 5, 6, 5)) + response(ADD, 6, 6)
    assert scan(kernels, "scan_responses", stream) == [
        (ADDS, 5, 3, 3, 0, 0, 84),
        (ADDS, 5, 5, 2, 0, 84, 140),
        (ADDS, 5, 5, 1, 0, 140, 168),
        (ADDS, 6, 6, 1, 0, 168, 196),
    ]


@both
def test_answers_to_adds_with_gaps_are_one_item(kernels: ModuleType) -> None:
    """A striped ledger: a bookie has some of every E entries."""
    entries = [3, 4, 5, 8, 9, 10, 13]
    stream = b"".join(response(ADD, 5, entry) for entry in [*entries, 13, 12, 14]) + response(ADD, 6, 15)
    assert scan(kernels, "scan_responses", stream) == [
        (SPARSE_ADDS, 5, 3, 11, 0, 0, 196),
        (ADDS, 5, 13, 1, 0, 196, 224),
        (SPARSE_ADDS, 5, 12, 3, 0, 224, 280),
        (ADDS, 6, 15, 1, 0, 280, 308),
    ]
    bits = kernels.entry_bits(stream[:196], 3, 11)
    assert (len(bits), int.from_bytes(bits, "little")) == (2, sum(1 << entry - 3 for entry in entries))


@both
def test_the_span_of_sparse_adds_is_bounded(kernels: ModuleType) -> None:
    def items(*entries: int) -> list[tuple[int, ...]]:
        return [item[:4] for item in scan(kernels, "scan_responses", b"".join(response(ADD, 5, entry) for entry in entries))]

    assert items(0, 65535) == [(SPARSE_ADDS, 5, 0, 65536)]
    assert items(0, 65536) == [(ADDS, 5, 0, 1), (ADDS, 5, 65536, 1)]
    assert items(1, 3, 65536, 65537, 65538) == [(SPARSE_ADDS, 5, 1, 65536), (ADDS, 5, 65537, 2)]
    assert items(BIG - 2, BIG) == [(SPARSE_ADDS, 5, BIG - 2, 3)]
    assert items(0, BIG) == [(ADDS, 5, 0, 1), (ADDS, 5, BIG, 1)]
    dense = kernels.frame_add_responses(5, 0, 70_000, 0) + response(ADD, 5, 70_001)
    assert [item[:4] for item in scan(kernels, "scan_responses", dense)] == [(ADDS, 5, 0, 70_000), (ADDS, 5, 70_001, 1)]


@both
def test_reads_of_every_so_many_entries_are_one_item(kernels: ModuleType) -> None:
    def items(*entries: int) -> list[tuple[int, ...]]:
        stream = b"".join(response(READ, 5, entry, tail=bytes(32)) for entry in entries)
        return [item[:5] for item in scan(kernels, "scan_responses", stream)]

    assert items(3, 8, 13, 18) == [(READS, 5, 3, 4, 5)]
    assert items(3, 8, 13, 14, 15, 15) == [(READS, 5, 3, 3, 5), (READS, 5, 14, 2, 1), (READS, 5, 15, 1, 1)]
    assert items(0, 64, 129, 194, 193) == [(READS, 5, 0, 2, 64), (READS, 5, 129, 1, 1), (READS, 5, 194, 1, 1), (READS, 5, 193, 1, 1)]
    assert items(BIG - 2, BIG) == [(READS, 5, BIG - 2, 2, 2)]


@both
def test_entry_bits(kernels: ModuleType) -> None:
    frames = b"".join(response(ADD, 5, entry) for entry in (9, 3, 3))
    assert kernels.entry_bits(frames, 3, 7) == b"\x41"
    assert kernels.entry_bits(memoryview(frames), 0, 17) == b"\x08\x02\x00"
    assert kernels.entry_bits(b"", 3, 0) == b""
    for arguments, text in [
        ((frames, 4, 7), "entry 3 is none of 7 entries from 4"),
        ((frames, 3, 6), "entry 9 is none of 6 entries from 3"),
        ((response(ADD, 5, -1), 0, 6), "entry -1 is none of 6 entries from 0"),
        ((frames[1:], 3, 7), "frames must be add responses of 28 bytes: 83 bytes given"),
        ((frames, -1, 7), "first_entry_id must not be negative: -1"),
        ((frames, 0, -1), "span must be 0..1048576: -1"),
        ((frames, 0, (1 << 20) + 1), "span must be 0..1048576: 1048577"),
        ((frames, BIG - 1, 3), f"3 entries from {BIG - 1} do not fit in 64 bits"),
    ]:
        with pytest.raises(InvalidArgumentError, match=text):
            kernels.entry_bits(*arguments)


@given(st.lists(st.integers(0, 40), max_size=20), st.integers(0, 40), st.integers(0, 40), numbers, numbers, st.binary(max_size=60))
def test_entry_bits_of_arbitrary_frames(entries: list[int], first: int, span: int, some: int, other: int, data: bytes) -> None:
    frames = b"".join(response(ADD, 5, first + entry) for entry in entries)
    for arguments in [(frames, first, span), (frames, first, 41), (frames, some, other), (data, some, other), (data[:28], first, span)]:
        assert_equal("entry_bits", *arguments)


@both
def test_a_run_of_reads_goes_on_to_unpack_entries(kernels: ModuleType) -> None:
    payloads = [b"", b"one", bytes(500)]
    offsets = array("q", [0, 0, 3, 503])
    adds, marks = kernels.frame_adds(b"".join(payloads), offsets, 5, 10, -1, 0, 3, b"", KEY, 0)
    starts = array("q", marks)
    bodies = [adds[starts[i] + 28 : starts[i + 1]] for i in range(3)]
    stream = b"\xff" * 9 + kernels.frame_read_responses(5, 10, bodies) + OK_ADD
    items, consumed, wanted = kernels.scan_responses(bytearray(stream), 9, len(stream), LIMIT)
    assert items == [(READS, 5, 10, 3, 1, 9, len(stream) - 28), (ADDS, 0x1234, 7, 1, 0, len(stream) - 28, len(stream))]
    assert (consumed, wanted) == (len(stream), 0)
    begin, end = items[0][5:]
    columns = kernels.unpack_entries(memoryview(stream)[begin:end], 24, 5, 3, b"", 10)
    assert (array("q", columns[0]).tolist(), columns[1], columns[2]) == ([10, 11, 12], offsets.tobytes(), b"".join(payloads))


@both
@pytest.mark.parametrize(
    "payload",
    [
        b"\0",
        response(ADD, 1, 1)[4:-1],
        response(ADD, 1, 1, tail=b"x")[4:],
        response(ADD, 1, 1, version=1)[4:],
        response(ADD, 1, 1, flags=1)[4:],
        response(ADD, -1, 1)[4:],
        response(ADD, 1, -1)[4:],
        response(READ, 1, -1, tail=bytes(40))[4:],
        response(READ, 1, 1, tail=bytes(31))[4:],
        response(READ, 1, 1, code=-2, tail=bytes(40))[4:],
        response(BATCH_READ, 1, 1, tail=bytes(7))[4:],
        response(5, 1, 1, tail=bytes(40))[4:],
    ],
)
def test_what_is_not_understood_is_left_to_the_codec(kernels: ModuleType, payload: bytes) -> None:
    stream = OK_ADD + frame(payload) * 2 + OK_ADD
    items = scan(kernels, "scan_responses", stream)
    assert [item[0] for item in items] == [ADDS, OTHER, OTHER, ADDS]
    assert [stream[item[5] : item[6]] for item in items[1:3]] == [payload, payload]


# --- requests ---------------------------------------------------------------------------------------------------


@both
def test_runs_of_requests(kernels: ModuleType) -> None:
    adds = [add_request(5, entry, tail=bytes(16 + entry)) for entry in (3, 4)]
    stream = b"".join(adds) + add_request(5, 5, 6) + add_request(5, 6, 6, bytes(20)) + read_request(5, 7) + read_request(5, 8, tail=b"x")
    items = scan(kernels, "scan_requests", stream + read_request(5, 9, 4) + FENCE_READ)
    ends = [len(adds[0] + adds[1])]
    ends += [ends[-1] + 60, ends[-1] + 120, len(stream), len(stream) + 24]
    assert items == [
        (ADDS, 5, 3, 2, 0, 0, ends[0]),
        (ADDS, 5, 5, 1, 6, ends[0], ends[1]),
        (ADDS, 5, 6, 1, 6, ends[1], ends[2]),
        (READS, 5, 7, 2, 0, ends[2], ends[3]),
        (READS, 5, 9, 1, 4, ends[3], ends[4]),
        (OTHER, -1, -1, 0, 0, ends[4] + 4, ends[4] + 44),
    ]


@both
@pytest.mark.parametrize(
    "payload",
    [
        b"\2\1\0\0",
        add_request(1, 1, tail=bytes(15))[4:],
        add_request(1, 1, version=3)[4:],
        add_request(1, -1)[4:],
        add_request(-1, 1)[4:],
        read_request(1, -1)[4:],
        read_request(1, 1)[4:-1],
        read_request(1, 1, 1, KEY)[4:],
        read_request(1, 1, version=0)[4:],
        frame(struct.pack(">BBHqqqiq", 2, BATCH_READ, 0, 1, 1, 1, 1, 1))[4:],
        AUTH_FRAME[4:],
    ],
)
def test_other_requests_are_left_to_the_codec(kernels: ModuleType, payload: bytes) -> None:
    stream = PLAIN_READ + frame(payload) * 2 + PLAIN_READ
    items = scan(kernels, "scan_requests", stream)
    assert [item[0] for item in items] == [READS, OTHER, OTHER, READS]
    assert [stream[item[5] : item[6]] for item in items[1:3]] == [payload, payload]


# --- both scans -------------------------------------------------------------------------------------------------

ids = st.sampled_from([-1, 0, 1, 2, 3, BIG - 1, BIG])
tails = st.sampled_from([b"", bytes(8), bytes(16), bytes(32), bytes(40), b"x" * 9])
known_frames = st.one_of(
    st.builds(response, st.sampled_from([1, 1, 2, 7]), ids, ids, st.sampled_from([0, 0, 0, 2, -1]), tails, st.sampled_from([2, 2, 2, 1])),
    st.builds(add_request, ids, ids, st.sampled_from([0, 0, 6]), st.sampled_from([KEY, KEY, bytes(20)]), tails),
    st.builds(read_request, ids, ids, st.sampled_from([0, 0, 1, 4]), tails),
    st.binary(min_size=1, max_size=40).map(frame),
)
ascending = st.builds(
    lambda make, ledger, first, count, step: b"".join(make(ledger, first + i * step) for i in range(count)),
    st.sampled_from([lambda ledger, entry: response(ADD, ledger, entry), lambda ledger, entry: response(READ, ledger, entry, 0, bytes(33)),
                     add_request, read_request]),
    st.sampled_from([0, 1]), st.integers(0, 3), st.integers(1, 5), st.sampled_from([1, 1, 2, 5, 64, 65, 70_000]),
)  # fmt: skip
streams = st.lists(st.one_of(known_frames, ascending, ascending), max_size=12).map(b"".join)


@given(st.sampled_from(["scan_responses", "scan_requests"]), streams, st.binary(max_size=5), st.data())
def test_scans_of_arbitrary_streams(name: str, stream: bytes, rest: bytes, data: st.DataObject) -> None:
    whole = assert_equal(name, stream + rest, 0, len(stream + rest), LIMIT)
    start, stop = data.draw(st.integers(0, len(stream))), data.draw(st.integers(0, len(stream + rest)))
    assert_equal(name, stream + rest, start, stop, data.draw(st.sampled_from([LIMIT, LIMIT, 40, 64])))
    if whole[0] == "result":
        assert whole[1][1] >= len(stream) or rest
        _check_pieces(name, stream, data.draw(st.integers(0, len(stream))))


def _check_pieces(name: str, stream: bytes, cut: int) -> None:
    """Scanned in two steps, every frame is found once and in order, and `wanted` is what makes the cut frame whole."""
    _, consumed, wanted = getattr(_native, name)(stream, 0, cut, LIMIT)
    assert consumed <= cut and (wanted == 0) == (cut - consumed < 4)
    if wanted:
        assert wanted > cut - consumed and getattr(_native, name)(stream, consumed, consumed + wanted, LIMIT)[1] == consumed + wanted
    first = getattr(_native, name)(stream, 0, consumed, LIMIT)[0]
    second = getattr(_native, name)(stream, consumed, len(stream), LIMIT)[0]
    assert frames_in(first) + frames_in(second) == frames_in(getattr(_native, name)(stream, 0, len(stream), LIMIT)[0])


def frames_in(items: Sequence[tuple[int, ...]]) -> int:
    return sum((item[6] - item[5]) // 28 if item[0] == SPARSE_ADDS else item[3] if item[0] in (ADDS, READS) else 1 for item in items)


@given(st.sampled_from(["scan_responses", "scan_requests"]), st.binary(max_size=80), numbers, numbers, numbers)
def test_scans_of_arbitrary_arguments(name: str, data: bytes, start: int, stop: int, limit: int) -> None:
    assert_equal(name, data, start, stop, limit)
    assert_equal(name, data, 0, len(data), limit)
    assert_equal(name, data, start, stop, LIMIT)


@both
@pytest.mark.parametrize("count", [31, 32, 33, 64, 65, 1000])
def test_any_number_of_items(kernels: ModuleType, count: int) -> None:
    """Around the sizes at which the list of runs grows."""
    stream = b"".join(response(ADD, 1, count - i) for i in range(count))
    assert scan(kernels, "scan_responses", stream) == [(ADDS, 1, count - i, 1, 0, 28 * i, 28 * i + 28) for i in range(count)]
    pairs = b"".join(response(ADD, 1, count - i) + response(ADD, 1, count - i + 1) for i in range(count))
    assert scan(kernels, "scan_responses", pairs) == [(ADDS, 1, count - i, 2, 0, 56 * i, 56 * i + 56) for i in range(count)]
    gaps = b"".join(response(ADD, 1, count - i) + response(ADD, 1, count - i + 2) for i in range(count))
    assert scan(kernels, "scan_responses", gaps) == [(SPARSE_ADDS, 1, count - i, 3, 0, 56 * i, 56 * i + 56) for i in range(count)]


@both
@pytest.mark.parametrize("name", ["scan_responses", "scan_requests"])
def test_a_bad_length_after_good_frames(kernels: ModuleType, name: str) -> None:
    for head, text in [
        ("00000000", "without payload"),
        ("00100000", "a frame of 1048580 bytes"),
        ("ffffffff", "a frame of 4294967299 bytes"),
    ]:
        stream = OK_ADD * 100 + bytes.fromhex(head)
        with pytest.raises(RemoteProtocolError, match=text):
            getattr(kernels, name)(stream, 0, len(stream), LIMIT)
        assert getattr(kernels, name)(stream, 0, len(stream) - 1, LIMIT)[1:] == (2800, 0)


def test_a_big_stream_without_the_gil() -> None:
    stream = b"".join(response(ADD, 1, entry) for entry in range(3000)) + b"".join(
        response(READ, 1, entry, 0, bytes(60)) for entry in range(900)
    )
    assert assert_equal("scan_responses", stream, 0, len(stream), LIMIT)[1][0] == [
        (ADDS, 1, 0, 3000, 0, 0, 84_000),
        (READS, 1, 0, 900, 1, 84_000, len(stream)),
    ]
    assert_equal("scan_requests", stream, 0, len(stream), LIMIT)


# --- measure_run, and ids in unpack_entries ---------------------------------------------------------------------


@both
def test_measure_run(kernels: ModuleType) -> None:
    assert kernels.measure_run(array("q", [0, 0])) == (1, 0, 0, 0)
    assert kernels.measure_run(memoryview(array("q", [5, 7, 7, 100, 101]))) == (4, 5, 101, 93)
    assert kernels.measure_run(array("q", [0, BIG])) == (1, 0, BIG, BIG)
    for offsets, text in [
        ([], "offsets must be two or more native int64: 0 bytes given"),
        ([0], "offsets must be two or more native int64: 8 bytes given"),
        ([-1, 5], "offset 0 is -1, below 0"),
        ([3, 5, 4, 1], "offset 2 is 4, below the one before it"),
        ([3, -5], "offset 1 is -5, below the one before it"),
    ]:
        with pytest.raises(InvalidArgumentError, match=text):
            kernels.measure_run(array("q", offsets))


@given(
    st.one_of(st.lists(st.integers(-BIG - 1, BIG), max_size=5), st.lists(st.integers(0, 9), max_size=30).map(sorted)), st.binary(max_size=3)
)
def test_measure_run_of_arbitrary_offsets(offsets: list[int], rest: bytes) -> None:
    assert_equal("measure_run", array("q", offsets))
    assert_equal("measure_run", array("q", offsets).tobytes() + rest)


@both
def test_unpacked_ids_must_follow(kernels: ModuleType) -> None:
    frames, _ = kernels.frame_adds(b"abc", array("q", [0, 1, 2, 3]), 5, 10, -1, 0, 3, b"", KEY, 0)
    assert kernels.unpack_entries(frames, 24, 5, 3, b"", 10) == kernels.unpack_entries(frames, 24, 5, 3, b"")
    assert kernels.unpack_entries(frames, 24, 5, 3, b"", -1) == kernels.unpack_entries(frames, 24, 5, 3, b"")
    with pytest.raises(DigestError, match="item 0: ledger 5, entry 10 where entry 9 was expected") as caught:
        kernels.unpack_entries(frames, 24, 5, 3, b"", 9)
    assert caught.value.context == {"item": 0, "ledger": 5, "entry": 10}
    size = len(frames) // 3
    with pytest.raises(DigestError, match="item 1: ledger 5, entry 12 where entry 11 was expected") as caught:
        kernels.unpack_entries(frames[:size] + frames[2 * size :], 24, 5, 3, b"", 10)
    assert caught.value.context == {"item": 1, "ledger": 5, "entry": 12}
    with pytest.raises(InvalidArgumentError, match="first_entry_id must be -1 or more: -2"):
        kernels.unpack_entries(frames, 24, 5, 3, b"", -2)
    with pytest.raises(InvalidArgumentError, match=f"3 entries from {BIG - 1} do not fit in 64 bits"):
        kernels.unpack_entries(frames, 24, 5, 3, b"", BIG - 1)


@given(st.lists(st.integers(0, 5), max_size=5), st.integers(1, 4), numbers, st.integers(4, 6))
def test_unpacked_ids_of_all_kinds(entries: list[int], digest_type: int, first: int, ledger: int) -> None:
    frames = b"".join(pure.frame_adds(b"ab", array("q", [0, 2]), 5, entry, -1, 0, digest_type, KEY, KEY, 0)[0] for entry in entries)
    assert_equal("unpack_entries", frames, 24, ledger, digest_type, KEY, first)
    assert_equal("unpack_entries", frames, 24, 5, digest_type, KEY, entries[0] if entries else 0)


# --- framing ----------------------------------------------------------------------------------------------------


@both
def test_frames_from_numbers(kernels: ModuleType) -> None:
    assert kernels.frame_reads(0x1234, 7, 1) == PLAIN_READ
    assert kernels.frame_reads(5, 7, 3, 1, 4) == b"".join(read_request(5, entry, 4) for entry in (7, 8, 9))
    assert kernels.frame_reads(5, 7, 3, 100) == b"".join(read_request(5, entry) for entry in (7, 107, 207))
    assert kernels.frame_add_responses(0x1234, 7, 1, 0) == OK_ADD
    assert kernels.frame_add_responses(0x1234, 7, 1, 0x68) == FENCED_ADD
    assert kernels.frame_add_responses(5, 7, 3, -1) == b"".join(response(ADD, 5, entry, -1) for entry in (7, 8, 9))
    assert kernels.frame_read_responses(0x1234, 7, [READ_OK[28:]]) == READ_OK
    assert kernels.frame_reads(1, 1, 0) == kernels.frame_add_responses(1, 1, 0, 0) == kernels.frame_read_responses(1, 1, []) == b""


@both
def test_framed_runs_are_scanned_as_runs(kernels: ModuleType) -> None:
    count = 5000  # beyond 64 KiB
    assert scan(kernels, "scan_requests", kernels.frame_reads(5, 7, count)) == [(READS, 5, 7, count, 0, 0, 24 * count)]
    assert scan(kernels, "scan_responses", kernels.frame_add_responses(5, 7, count, 0)) == [(ADDS, 5, 7, count, 0, 0, 28 * count)]
    answers = kernels.frame_read_responses(5, 7, [bytes(32 + i) for i in range(300)])
    assert scan(kernels, "scan_responses", answers) == [(READS, 5, 7, 300, 1, 0, len(answers))]


@given(*[numbers] * 3, st.one_of(numbers, st.sampled_from([1 << 31, -1 << 31, (1 << 31) - 1])))
def test_frames_from_arbitrary_numbers(ledger: int, first: int, count: int, number: int) -> None:
    small = min(count, 50)
    assert_equal("frame_reads", ledger, first, small, number)
    assert_equal("frame_reads", ledger, first, small, 1 + abs(first) % 5, number)
    assert_equal("frame_add_responses", ledger, first, small, number)
    assert_equal("frame_read_responses", ledger, first, [b""] * max(small, 0))


@pytest.mark.parametrize("name", ["frame_reads", "frame_add_responses"])
def test_counts_out_of_range(name: str) -> None:
    for count in (-1, (1 << 20) + 1, BIG, BIG + 1):
        assert issubclass(assert_equal(name, 1, 1, count, 1)[0], InvalidArgumentError)
    for first in (BIG - 3, BIG - 2, BIG):
        assert_equal(name, 1, first, 3, 1)


@given(st.lists(st.one_of(st.binary(max_size=50), st.binary(max_size=50).map(bytearray)), max_size=6), st.sampled_from([0, 5, BIG - 2]))
def test_frame_read_responses_of_arbitrary_bodies(bodies: list[Any], first: int) -> None:
    made = assert_equal("frame_read_responses", 5, first, bodies)
    assert made == assert_equal("frame_read_responses", 5, first, tuple(memoryview(body) for body in bodies))
    if made[0] == "result":
        assert made[1] == b"".join(response(READ, 5, first + i, 0, bytes(body)) for i, body in enumerate(bodies))


# --- arguments of the wrong kind --------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [*NOT_SIMPLE, (b"a", None), iter([b"a"])], ids=lambda thing: type(thing).__name__)
def test_things_of_all_kinds(thing: Any) -> None:
    assert_equal("scan_responses", thing, 0, 0, 100)
    assert_equal("scan_requests", thing, 0, 3, 100)
    assert_equal("measure_run", thing)
    assert_equal("entry_bits", thing, 0, 3)
    assert_equal("frame_read_responses", 1, 1, thing)
    assert_equal("frame_read_responses", 1, 1, [b"a", thing, None])


@pytest.mark.parametrize("number", [None, "1", 1.0, True, BIG + 1], ids=repr)
def test_numbers_of_all_kinds(number: Any) -> None:
    for name in ("scan_responses", "scan_requests"):
        for position in (1, 2, 3):
            arguments: list[Any] = [b"abc", 0, 3, 100]
            arguments[position] = number
            assert_equal(name, *arguments)
    for name in ("frame_reads", "frame_add_responses"):
        for position in range(4):
            arguments = [1, 2, 3, 4]
            arguments[position] = number
            assert_equal(name, *arguments)
    assert_equal("frame_reads", 1, 2, 3, 4, number)
    assert_equal("entry_bits", b"", number, 1)
    assert_equal("entry_bits", b"", 1, number)
    assert_equal("frame_read_responses", number, 1, [])
    assert_equal("frame_read_responses", 1, number, [])
    assert_equal("unpack_entries", b"", 0, 1, 4, b"", number)


@pytest.mark.parametrize(
    "name, count",
    [("scan_responses", 3), ("scan_responses", 5), ("scan_requests", 3), ("measure_run", 0), ("measure_run", 2), ("frame_reads", 2),
     ("frame_reads", 6), ("frame_add_responses", 3), ("frame_read_responses", 2), ("frame_read_responses", 4),
     ("entry_bits", 2), ("entry_bits", 4)],
)  # fmt: skip
def test_wrong_number_of_arguments(name: str, count: int) -> None:
    for kernels in (pure, _native):
        with pytest.raises(TypeError, match="argument"):
            getattr(kernels, name)(*[0] * count)


def test_calls_let_go_of_their_buffers() -> None:
    """A buffer still held could not be resized."""
    data = bytearray(OK_ADD * 40)
    bodies: list[Any] = [data, data, None]
    for name, arguments in [
        ("scan_responses", (data, 0, len(data), LIMIT)),
        ("scan_responses", (data, 0, len(data), 20)),
        ("scan_responses", (data, 0, 1 << 20, LIMIT)),
        ("scan_requests", (data, 0, None, LIMIT)),
        ("measure_run", (data,)),
        ("entry_bits", (data, 0, 1)),
        ("entry_bits", (data, 0, None)),
        ("frame_read_responses", (1, 1, bodies)),
        ("frame_read_responses", (1, 1, bodies[:2])),
        ("frame_read_responses", (-1, 1, bodies[:2])),
    ]:
        outcome(getattr(_native, name), arguments)
        data.append(0)


def test_another_thread_writes_meanwhile() -> None:
    """Whatever a scan meets in a buffer that changes, its items lie inside, or it is one of our errors."""
    stream = b"".join(add_request(1, entry, tail=bytes(200)) + response(READ, 1, entry, 0, bytes(200)) for entry in range(400))
    shared, bodies, stop = bytearray(stream), [bytes(300)] * 400, threading.Event()

    def disturb() -> None:
        while not stop.is_set():
            for at in range(3, len(shared), 97):
                shared[at] ^= 1
                shared[at] ^= 1
            bodies.append(bodies.pop(0))

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(300):
            for name in ("scan_requests", "scan_responses"):
                kind, *rest = outcome(getattr(_native, name), (shared, 0, len(shared), LIMIT))
                if kind == "result":
                    items, consumed, _ = rest[0]
                    assert all(0 <= begin <= end <= consumed for *_, begin, end in items) and consumed <= len(shared)
                else:
                    assert issubclass(kind, BkError)
            assert len(_native.frame_read_responses(1, 1, bodies)) % 328 == 0
    finally:
        stop.set()
        thread.join()


@both
def test_the_last_entry_id_of_all_has_its_place(kernels: ModuleType) -> None:
    """SM-5: ids have 63 bits, and a run may end at the greatest. A bookie keeps such an entry and answers, so a client has to take it."""
    six = b"".join(response(ADD, 5, entry) for entry in (BIG - 5, BIG))
    assert scan(kernels, "scan_responses", six) == [(SPARSE_ADDS, 5, BIG - 5, 6, 0, 0, 56)]
    assert kernels.entry_bits(six, BIG - 5, 6) == b"\x21"
    assert kernels.frame_add_responses(5, BIG - 1, 2, 0) == response(ADD, 5, BIG - 1) + response(ADD, 5, BIG)
    assert kernels.frame_read_responses(5, BIG, [b"x"]) == response(READ, 5, BIG, tail=b"x")
    assert kernels.frame_reads(5, BIG - 10, 3, 5)[-8:] == BIG.to_bytes(8, "big")
    frames, offsets = kernels.frame_adds(b"ab", array("q", [0, 1, 2]), 5, BIG - 1, -1, 0, 3, b"", KEY, 0)
    assert array("q", kernels.unpack_entries(frames, 24, 5, 3, b"", BIG - 1)[0]).tolist() == [BIG - 1, BIG]
    assert kernels.select_frames(frames, offsets, 2, BIG - 1, 0, 3, 2) == b""  # start behind the last one
    assert kernels.select_frames(frames, offsets, 1, BIG - 1, BIG % 3, 3, 1) == frames[len(frames) // 2 :]
    for first in (BIG, BIG - 1):
        with pytest.raises(InvalidArgumentError, match="3 entries"):
            kernels.frame_add_responses(5, first, 3, 0)
