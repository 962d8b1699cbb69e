"""Adds and reads of protocol v3 and selected frames, both twins: against the codec, arbitrary input, and the same errors."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import InvalidArgumentError
from bk_core.kernels import _native, pure
from bk_core.protocol.wire import codec_v2, codec_v3
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire._proto import bookie_pb2 as pb
from bk_core.protocol.wire.messages import Status
from tests.kernels.test_differential import BIG, KEY, NOT_SIMPLE, assert_equal, numbers, outcome

OTHER, ADDS, READS = 0, 1, 2
LIMIT = 1 << 20
ENTRY = bytes(range(40))  # a body as long as an entry's

both = pytest.mark.parametrize("kernels", [pure, _native], ids=["pure", "native"])


def framed(sizes: Sequence[int], first: int = 0, ledger: int = 5) -> tuple[bytes, bytes]:
    offsets = array("q", [0])
    for size in sizes:
        offsets.append(offsets[-1] + size)
    frames, marks = _native.frame_adds(bytes(i & 0xFF for i in range(sum(sizes))), offsets, ledger, first, -1, 0, 3, b"", KEY, 0)
    return frames, marks


def add_ok(number: int, ledger: int, entry: int, status: Status = Status.OK) -> bytes:
    return codec_v2.frame(codec_v3.encode_response(m.AddResponse(number, status, ledger, entry)))


def read_ok(number: int, ledger: int, entry: int, body: bytes | None = ENTRY, lac: int | None = None, status: Status = Status.OK) -> bytes:
    return codec_v2.frame(codec_v3.encode_response(m.ReadResponse(number, status, ledger, entry, body, lac)))


def scan(kernels: ModuleType, data: bytes) -> list[tuple[int, ...]]:
    items, consumed, wanted = kernels.scan_responses_v3(data, 0, len(data), LIMIT)
    assert (consumed, wanted) == (len(data), 0)
    found: list[tuple[int, ...]] = items
    return found


# --- select_frames ----------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (3, 2), (5, 3), (5, 1), (64, 3)])
def test_selected_frames(kernels: ModuleType, shape: tuple[int, int]) -> None:
    ensemble, quorum = shape
    frames, marks = framed([10 + i for i in range(23)], 7)
    offsets = array("q", marks)
    for position in range(ensemble):
        for start in (0, 1, 22, 23):
            wanted = [i for i in range(start, 23) if (position - 7 - i) % ensemble < quorum]
            made = kernels.select_frames(frames, marks, start, 7, position, ensemble, quorum)
            assert made == b"".join(frames[offsets[i] : offsets[i + 1]] for i in wanted)


@both
def test_what_cannot_be_selected(kernels: ModuleType) -> None:
    frames, marks = framed([10] * 3)
    size = len(frames)
    for arguments, text in [
        ((frames, b"", 0, 0, 0, 1, 1), "offsets must be one or more native int64: 0 bytes given"),
        ((frames, marks[1:], 0, 0, 0, 1, 1), "offsets must be one or more native int64: 31 bytes given"),
        ((frames, marks, 4, 0, 0, 1, 1), "start must be 0..3: 4"),
        ((frames, marks, -1, 0, 0, 1, 1), "start must be 0..3: -1"),
        ((frames, marks, 0, -1, 0, 1, 1), "first_entry_id must not be negative: -1"),
        ((frames, marks, 0, BIG - 1, 0, 1, 1), f"3 entries from {BIG - 1} do not fit in 64 bits"),
        ((frames, marks, 0, 0, 0, 0, 1), "ensemble_size must be 1..2147483647: 0"),
        ((frames, marks, 0, 0, 3, 3, 1), "position must be 0..2: 3"),
        ((frames, marks, 0, 0, 0, 3, 4), "write_quorum_size must be 1..3: 4"),
        ((frames, marks, 0, 0, 0, 3, 0), "write_quorum_size must be 1..3: 0"),
        ((frames[:-1], marks, 0, 0, 0, 1, 1), f"offsets {size // 3 * 2} and {size} are no part of {size - 1} bytes"),
    ]:
        with pytest.raises(InvalidArgumentError, match=text):
            kernels.select_frames(*arguments)
        with pytest.raises(InvalidArgumentError, match=text):
            kernels.frame_adds_v3(*arguments, 5, 1, 0, 0)


offset_lists = st.lists(st.one_of(st.integers(-BIG - 1, BIG), st.integers(0, 60)), max_size=6)


@given(st.binary(max_size=200), offset_lists, st.booleans(), st.tuples(*[st.one_of(numbers, st.integers(0, 6))] * 5), numbers, numbers)
def test_arbitrary_selections(frames: bytes, offsets: list[int], good: bool, given_: Any, ledger: int, number: int) -> None:
    marks = array("q", sorted(abs(offset) % (len(frames) + 1) for offset in offsets) if good else offsets)
    assert_equal("select_frames", frames, marks, *given_)
    assert_equal("frame_adds_v3", frames, marks, *given_, ledger, number, 0, 1)
    assert_equal("frame_adds_v3", frames, marks, 0, 3, 1, 3, 2, ledger, number, 1, 0)


def test_many_frames_without_the_gil() -> None:
    frames, marks = framed([500] * 600)
    assert len(assert_equal("select_frames", frames, marks, 3, 0, 2, 5, 3)[1]) > 150_000
    assert len(assert_equal("frame_adds_v3", frames, marks, 3, 0, 2, 5, 3, 5, 100, 0, 0)[1]) > 150_000


# --- frame_adds_v3 ----------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "first, ledger, number", [(0, 0, 0), (7, 5, 1), (126, 127, 127), (2**33, 2**40, 16_380), (BIG - 30, BIG, BIG - 30)]
)
@pytest.mark.parametrize("recovery, deferred", [(False, False), (True, False), (False, True), (True, True)])
def test_adds_are_those_of_the_codec(kernels: ModuleType, first: int, ledger: int, number: int, recovery: bool, deferred: bool) -> None:
    frames, marks = framed([0, 1, 80, 200, 17_000, 3], first, ledger)
    offsets = array("q", marks)
    for position, ensemble, quorum in [(0, 1, 1), (2, 5, 3)]:
        wanted = [i for i in range(1, 6) if (position - first - i) % ensemble < quorum]
        expected = b"".join(
            codec_v2.frame(
                codec_v3.encode_request(
                    m.AddRequest(
                        number + k, ledger, first + i, frames[offsets[i] + 8 : offsets[i] + 28], frames[offsets[i] + 28 : offsets[i + 1]],
                        recovery, recovery, deferred,
                    )
                )
            )
            for k, i in enumerate(wanted)
        )  # fmt: skip
        assert kernels.frame_adds_v3(frames, marks, 1, first, position, ensemble, quorum, ledger, number, recovery, deferred) == expected


@both
def test_what_is_no_add(kernels: ModuleType) -> None:
    frames, marks = framed([0, 0])
    for given_, text in [
        ((frames, marks, 0, 0, 0, 1, 1, -1, 1, 0, 0), "ledger_id must not be negative: -1"),
        ((frames, marks, 0, 0, 0, 1, 1, 1, -1, 0, 0), "first_number must not be negative: -1"),
        ((frames, marks, 0, 0, 0, 1, 1, 1, BIG - 1, 0, 0), f"2 numbers from {BIG - 1} do not fit in 64 bits"),
        ((frames, array("q", [0, 28, 55]), 0, 0, 0, 1, 1, 1, 1, 0, 0), "frame 1 of 27 bytes is no add"),
    ]:
        with pytest.raises(InvalidArgumentError, match=text):
            kernels.frame_adds_v3(*given_)


# --- frame_reads_v3 ---------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    "ledger, first, step, number",
    [(0, 0, 1, 0), (5, 7, 3, 126), (127, 126, 1, 16_382), (2**40, 2**33, 100, 2**21 - 2), (BIG, BIG - 9, 3, BIG - 3)],
)
def test_reads_are_those_of_the_codec(kernels: ModuleType, ledger: int, first: int, step: int, number: int) -> None:
    requests = [m.ReadRequest(number + i, ledger, first + i * step) for i in range(3)]
    expected = b"".join(codec_v2.frame(codec_v3.encode_request(request)) for request in requests)
    assert kernels.frame_reads_v3(ledger, first, 3, step, number) == expected
    assert kernels.frame_reads_v3(ledger, first, 0, step, number) == b""


@both
def test_what_is_no_read(kernels: ModuleType) -> None:
    for given_, text in [
        ((-1, 0, 1, 1, 0), "ledger_id must not be negative: -1"),
        ((1, 0, 1, 0, 0), "step must be 1..2147483647: 0"),
        ((1, 0, 2, 1, -1), "first_number must not be negative: -1"),
        ((1, 0, 2, 1, BIG - 1), f"2 numbers from {BIG - 1} do not fit in 64 bits"),
        ((1, BIG, 2, 1, 0), f"2 entries from {BIG} do not fit in 64 bits"),
    ]:
        with pytest.raises(InvalidArgumentError, match=text):
            kernels.frame_reads_v3(*given_)


@given(*[numbers] * 3, st.one_of(numbers, st.sampled_from([0, 1, 2, 127])), numbers)
def test_reads_from_arbitrary_numbers(ledger: int, first: int, count: int, step: int, number: int) -> None:
    assert_equal("frame_reads_v3", ledger, first, min(count, 50), step, number)
    assert_equal("frame_reads_v3", abs(ledger) % 1000, abs(first) % 1000, abs(count) % 50, 1 + abs(step) % 5, number)


@pytest.mark.parametrize("thing", [None, "1", 1.0, True, BIG + 1], ids=repr)
def test_reads_from_things_that_are_no_numbers(thing: Any) -> None:
    for position in range(5):
        arguments: list[Any] = [1, 2, 3, 4, 5]
        arguments[position] = thing
        assert_equal("frame_reads_v3", *arguments)


# --- scan_responses_v3 ------------------------------------------------------------------------------------------


@both
def test_runs_of_v3_answers(kernels: ModuleType) -> None:
    adds = b"".join(add_ok(100 + i, 5, 7 + i) for i in range(300))
    gap = add_ok(400, 5, 308) + add_ok(402, 5, 309) + add_ok(403, 6, 310)
    assert [item[:5] for item in scan(kernels, adds + gap)] == [
        (ADDS, 5, 7, 300, 100), (ADDS, 5, 308, 1, 400), (ADDS, 5, 309, 1, 402), (ADDS, 6, 310, 1, 403),
    ]  # fmt: skip
    reads = b"".join(read_ok(9 + i, 5, 5 * i) for i in range(4)) + read_ok(13, 5, 19) + read_ok(14, 5, 19) + read_ok(15, 5, 84)
    assert [item[:5] for item in scan(kernels, reads)] == [
        (READS, 5, 0, 4, 9), (READS, 5, 19, 1, 13), (READS, 5, 19, 1, 14), (READS, 5, 84, 1, 15),
    ]  # fmt: skip
    both_kinds = scan(kernels, add_ok(1, 5, 1) + read_ok(2, 5, 2) + read_ok(3, 5, 3))
    ends = [len(add_ok(1, 5, 1)), len(add_ok(1, 5, 1) + read_ok(2, 5, 2) + read_ok(3, 5, 3))]
    assert both_kinds == [(ADDS, 5, 1, 1, 1, 0, ends[0]), (READS, 5, 2, 2, 2, ends[0], ends[1])]


def variants() -> list[bytes]:
    """Messages that only the codec may judge."""
    made = []
    for change in (
        lambda r: r.header.__setattr__("version", 2),
        lambda r: r.header.__setattr__("operation", 6),
        lambda r: r.header.__setattr__("priority", 1),
        lambda r: r.header.__setattr__("txnId", 1 << 63),
        lambda r: r.__setattr__("status", 502),
        lambda r: r.readResponse.__setattr__("status", 402),
        lambda r: r.readResponse.__setattr__("ledgerId", -1),
        lambda r: r.readResponse.__setattr__("entryId", -1),
        lambda r: r.readResponse.__setattr__("body", bytes(31)),
        lambda r: r.readResponse.ClearField("body"),
        lambda r: r.ClearField("readResponse"),
        lambda r: r.addResponse.CopyFrom(pb.AddResponse(status=0, ledgerId=5, entryId=6)),
    ):
        message = pb.Response.FromString(read_ok(3, 5, 6)[4:])
        change(message)
        made.append(message.SerializePartialToString())
    good, add = read_ok(3, 5, 6)[4:], add_ok(3, 5, 6)[4:]
    made += [good + b"\x10\x00", good + b"\x58\x01", good[:-1], good + b"\x80", b"\xff" * 11, b"", add + add[-9:], add + b"\x0a\x00"]
    return [payload for payload in made if payload]


@both
@pytest.mark.parametrize("payload", variants())
def test_what_is_not_plain_is_left_to_the_codec(kernels: ModuleType, payload: bytes) -> None:
    stream = add_ok(1, 5, 1) + codec_v2.frame(payload) + add_ok(2, 5, 2)
    items = scan(kernels, stream)
    assert [item[0] for item in items] == [ADDS, OTHER, ADDS]
    assert stream[items[1][5] : items[1][6]] == payload
    with pytest.raises(InvalidArgumentError, match="frame 0 is no answer with an entry"):
        kernels.v3_read_frames(stream, len(add_ok(1, 5, 1)), len(stream))


small = st.integers(0, 3)
good_frames = st.one_of(
    st.builds(add_ok, small, small, small, st.sampled_from([Status.OK, Status.OK, Status.FENCED])),
    st.builds(read_ok, small, small, small, st.sampled_from([ENTRY, ENTRY, None, bytes(31)]), st.sampled_from([None, -1, 9])),
)
runs = st.builds(
    lambda make, number, first, count, step: b"".join(make(number + i, 1, first + i * step) for i in range(count)),
    st.sampled_from([add_ok, read_ok]), small, small, st.integers(1, 5), st.sampled_from([1, 1, 2, 64, 65]),
)  # fmt: skip
streams = st.lists(st.one_of(good_frames, runs, st.binary(min_size=1, max_size=30).map(codec_v2.frame)), max_size=8).map(b"".join)


@given(streams, st.data())
def test_arbitrary_streams(stream: bytes, data: st.DataObject) -> None:
    kind, found = assert_equal("scan_responses_v3", stream, 0, len(stream), LIMIT)[:2]
    cut = data.draw(st.integers(0, len(stream)))
    assert_equal("scan_responses_v3", stream, 0, cut, LIMIT)
    assert_equal("v3_read_frames", stream, 0, cut)
    if stream:
        damaged = bytearray(stream)
        damaged[data.draw(st.integers(0, len(stream) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        assert_equal("scan_responses_v3", damaged, 0, len(stream), LIMIT)
        assert_equal("v3_read_frames", damaged, 0, len(stream))
    assert kind == "result"
    for what, ledger, first, count, number, begin, end in found[0]:
        if what == OTHER:
            continue
        marks = memoryview(pure.scan_frames(stream[begin:end], LIMIT)[0]).cast("q")
        answers = [codec_v3.decode_response(stream[begin + marks[i] : begin + marks[i + 1]]) for i in range(0, len(marks), 2)]
        assert [answer.request_id for answer in answers] == list(range(number, number + count))
        if what == ADDS:
            assert answers == [m.AddResponse(number + i, Status.OK, ledger, first + i) for i in range(count)]
            continue
        frames, step, lac = assert_equal("v3_read_frames", stream, begin, end)[1]
        reads = [answer for answer in answers if isinstance(answer, m.ReadResponse) and answer.status is Status.OK]
        assert [read.entry_id for read in reads] == list(range(first, first + count * step, step))
        assert frames == b"".join(codec_v2.encode_response_frame(read) for read in reads)
        assert lac == max((read.max_lac for read in reads if read.max_lac is not None), default=None)


@both
def test_frames_of_reads(kernels: ModuleType) -> None:
    stream = b"??" + read_ok(1, 5, 10, lac=-1) + read_ok(2, 5, 15, ENTRY * 3000, lac=8) + read_ok(3, 5, 20)
    frames, step, lac = kernels.v3_read_frames(stream, 2, len(stream))
    expected = [m.ReadResponse(0, Status.OK, 5, entry, body) for entry, body in ((10, ENTRY), (15, ENTRY * 3000), (20, ENTRY))]
    assert frames == b"".join(codec_v2.encode_response_frame(read) for read in expected)
    assert (step, lac) == (5, 8)
    assert kernels.v3_read_frames(b"", 0, 0) == (b"", 1, None)
    assert kernels.v3_read_frames(read_ok(1, 5, 10, lac=-1), 0, len(read_ok(1, 5, 10, lac=-1)))[1:] == (1, -1)
    size = len(stream)
    for start, stop, text in [(2, size - 1, "frame 2"), (1, size, "frame 0"), (2, 5, "frame 0"), (0, size + 1, "stop must be")]:
        with pytest.raises(InvalidArgumentError, match=text):
            kernels.v3_read_frames(stream, start, stop)


# --- arguments of the wrong kind --------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [*NOT_SIMPLE, (b"a", None), iter([b"a"])], ids=lambda thing: type(thing).__name__)
def test_things_of_all_kinds(thing: Any) -> None:
    assert_equal("select_frames", thing, bytes(8), 0, 0, 0, 1, 1)
    assert_equal("select_frames", b"", thing, 0, 0, 0, 1, 1)
    assert_equal("frame_adds_v3", thing, bytes(8), 0, 0, 0, 1, 1, 1, 1, 0, 0)
    assert_equal("frame_adds_v3", b"", thing, 0, 0, 0, 1, 1, 1, 1, 0, 0)
    assert_equal("scan_responses_v3", thing, 0, 0, 100)
    assert_equal("v3_read_frames", thing, 0, 0)


@pytest.mark.parametrize("number", [None, "1", 1.0, True, BIG + 1, -BIG - 2], ids=repr)
def test_numbers_of_all_kinds(number: Any) -> None:
    frames, marks = framed([1, 2])
    for name, good in [
        ("select_frames", (frames, marks, 0, 0, 0, 1, 1)),
        ("frame_adds_v3", (frames, marks, 0, 0, 0, 1, 1, 1, 1, 0, 0)),
        ("scan_responses_v3", (b"abc", 0, 3, 100)),
        ("v3_read_frames", (b"", 0, 0)),
    ]:
        for position in range(1 if isinstance(good[1], int) else 2, len(good)):
            arguments: list[Any] = list(good)
            arguments[position] = number
            assert_equal(name, *arguments)
        for count in (len(good) - 1, len(good) + 1):
            for kernels in (pure, _native):
                with pytest.raises(TypeError, match="argument"):
                    getattr(kernels, name)(*[0] * count)


def test_calls_let_go_of_their_buffers() -> None:
    """A buffer still held could not be resized."""
    frames, marks = map(bytearray, framed([1, 2]))
    for name, arguments in [
        ("select_frames", (frames, marks, 0, 0, 0, 1, 1)),
        ("select_frames", (frames, marks, 0, 0, 0, 1, None)),
        ("select_frames", (frames, marks, 0, 0, 0, 1, 2)),
        ("frame_adds_v3", (frames, marks, 0, 0, 0, 1, 1, 1, 1, 0, 0)),
        ("frame_adds_v3", (frames, marks, 0, 0, 0, 1, 1, 1, 1, 0, None)),
        ("scan_responses_v3", (frames, 0, len(frames), LIMIT)),
        ("v3_read_frames", (frames, 0, len(frames))),
        ("v3_read_frames", (frames, 0, None)),
    ]:
        outcome(getattr(_native, name), arguments)
        frames.append(0)
        marks.extend(bytes(8))


def test_another_thread_writes_meanwhile() -> None:
    given_frames, marks = framed([300] * 600)
    frames, offsets, stop = bytearray(given_frames), array("q", marks), threading.Event()
    answers = bytearray(b"".join(read_ok(i, 5, i, ENTRY * 8) for i in range(600)))
    size = len(answers)

    def disturb() -> None:
        while not stop.is_set():
            for at in range(1, 600, 7):
                offsets[at] += 40
                offsets[at] -= 40
            for at in range(3, size, 97):
                answers[at] ^= 1
                answers[at] ^= 1

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(200):
            for name, arguments in [
                ("select_frames", (frames, offsets, 0, 0, 1, 3, 2)),
                ("frame_adds_v3", (frames, offsets, 0, 0, 1, 3, 2, 5, 1, 0, 0)),
                ("v3_read_frames", (answers, 0, size)),
            ]:
                kind, *_ = outcome(getattr(_native, name), arguments)
                assert kind == "result" or issubclass(kind, InvalidArgumentError)
    finally:
        stop.set()
        thread.join()
