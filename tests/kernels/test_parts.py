"""Entries unpacked part by part, wherever the parts are cut; the twins agree about every byte that they leave behind."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import BkError, DigestError, InvalidArgumentError, RemoteProtocolError
from bk_core.kernels import _native, pure

KEY = bytes(range(20))
BIG = (1 << 63) - 1
LEDGER, FIRST = 5, 7
payloads = st.lists(st.binary(max_size=300), min_size=1, max_size=8)
digest_types = st.integers(1, 4)
numbers = st.one_of(st.integers(-2, 9), st.sampled_from([BIG, BIG - 1, BIG + 1, -BIG - 2]))


def items(of: list[bytes], digest_type: int, ledger_id: int = LEDGER, first: int = FIRST) -> bytes:
    """``(u32 length, body)*``, as in the answer to a batch read."""
    offsets = array("q", [0])
    for payload in of:
        offsets.append(offsets[-1] + len(payload))
    frames, bounds = pure.frame_adds(b"".join(of), offsets, ledger_id, first, -1, 0, digest_type, KEY, KEY, 0)
    at = array("q", bounds)
    bodies = [bytes(frames[at[i] + 28 : at[i + 1]]) for i in range(len(of))]
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def outcome(kernels: Any, data: bytes, arguments: tuple[Any, ...], values: bytes, offsets: bytes, taken: Any) -> tuple[Any, ...]:
    """Return the result, the values that are good then, and the offsets. What a bad entry left behind them is not said."""
    columns = bytearray(values), bytearray(offsets)
    try:
        result = ("result", kernels.unpack_part(data, *arguments, *columns, taken))
    except Exception as error:
        result = (type(error), error.args, error.context if isinstance(error, BkError) else None)  # type: ignore[assignment]
    known = array("q", bytes(columns[1][: len(columns[1]) // 8 * 8]))
    return result, columns[0][: max([0, *known])], columns[1]


def assert_equal(data: bytes, arguments: tuple[Any, ...], values: bytes, offsets: bytes, taken: Any) -> tuple[Any, ...]:
    expected = outcome(pure, data, arguments, values, offsets, taken)
    assert outcome(_native, data, arguments, values, offsets, taken) == expected
    return expected


@pytest.mark.parametrize("kernels", [_native, pure], ids=["native", "pure"])
@given(of=payloads, digest_type=digest_types, cuts=st.lists(st.integers(1, 400), min_size=1), spare=st.integers(0, 2))
def test_the_parts_are_the_whole(kernels: Any, of: list[bytes], digest_type: int, cuts: list[int], spare: int) -> None:
    data = items(of, digest_type)
    values, offsets = kernels.new_block(len(data)), memoryview(bytearray(8 * (len(of) + 1 + spare)))
    taken, at, rest, turn = 0, 0, b"", 0
    while at < len(data):
        rest += data[at : at + cuts[turn % len(cuts)]]
        at, turn = at + cuts[turn % len(cuts)], turn + 1
        done, taken, following = kernels.unpack_part(rest, LEDGER, digest_type, KEY, FIRST, values, offsets, taken)
        rest = rest[done:]
        assert following == (0 if not rest else 4 if len(rest) < 4 else 4 + int.from_bytes(rest[:4], "big"))
    _, whole_offsets, whole, _ = kernels.unpack_entries(data, 0, LEDGER, digest_type, KEY, FIRST)
    assert (taken, rest) == (len(of), b"")
    assert values[: len(whole)] == whole and offsets[: 8 * (taken + 1)] == whole_offsets


@given(payloads, digest_types, st.data())
def test_the_twins_agree(of: list[bytes], digest_type: int, draw: st.DataObject) -> None:
    """Parts from anywhere, a damaged byte, other ids, less room."""
    data = items(of, digest_type)
    if draw.draw(st.booleans()):
        damaged = bytearray(data)
        damaged[draw.draw(st.integers(0, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
        data = bytes(damaged)
    data = data[: draw.draw(st.one_of(st.just(len(data)), st.integers(0, len(data))))]
    ids = draw.draw(st.sampled_from([(LEDGER, FIRST), (LEDGER, FIRST), (LEDGER + 1, FIRST), (LEDGER, FIRST + 1)]))
    taken = draw.draw(st.sampled_from([0, 0, 1]))
    values = bytes(draw.draw(st.one_of(st.just(len(data)), st.integers(0, len(data)))))
    offsets = bytes(8 * (taken + 1 + draw.draw(st.integers(0, len(of) + 1))))
    assert_equal(data, (ids[0], digest_type, KEY, ids[1] - taken), values, offsets, taken)


@given(
    st.binary(max_size=100), numbers, st.one_of(digest_types, numbers), st.one_of(st.just(KEY), st.binary(max_size=21)), numbers, st.data()
)
def test_the_twins_agree_on_anything(data: bytes, ledger_id: int, digest_type: int, key: bytes, first: int, draw: st.DataObject) -> None:
    offsets = draw.draw(st.one_of(st.binary(max_size=40), st.integers(0, 5).map(lambda count: bytes(8 * count))))
    assert_equal(data, (ledger_id, digest_type, key, first), bytes(50), offsets, draw.draw(numbers))


def test_what_is_wrong_is_told_with_the_number_of_the_entry() -> None:
    good = items([b"a", b"b"], 3)
    entry = len(good) // 2
    for data, taken, error, text in (
        (good[:entry] + items([b"b"], 3, LEDGER, FIRST), 0, DigestError, "item 1: ledger 5, entry 7 where entry 8 was expected"),
        (items([b"b"], 3, LEDGER + 1, FIRST + 1), 1, DigestError, "item 1: ledger 6, entry 8 where ledger 5 was expected"),
        (b"\0\0\0\x01", 1, RemoteProtocolError, "item 1 has 1 bytes and needs at least 36"),
    ):
        (kind, arguments, context), values, offsets = assert_equal(data, (LEDGER, 3, KEY, FIRST), b"\0" * 9, bytes(24), taken)
        assert kind is error and arguments[0] == text
        assert error is not DigestError or context["item"] == 1
        assert taken or (values[:1] == b"a" and array("q", bytes(offsets))[1] == 1)  # what was good is in place


def test_no_entry_is_taken_that_has_no_place() -> None:
    data = items([b"abc", b"d"], 3)
    (_, found), values, _ = assert_equal(data, (LEDGER, 3, KEY, FIRST), bytes(9), bytes(16), 0)
    assert found == (43, 1, 41) and values == b"abc"
    (kind, arguments, _), _, _ = assert_equal(data, (LEDGER, 3, KEY, FIRST), bytes(3), bytes(24), 0)
    assert (kind, arguments) == (InvalidArgumentError, ("entry 1 does not fit in the values",))
    for wrong in (-1, 10):
        (kind, arguments, _), _, _ = assert_equal(data, (LEDGER, 3, KEY, FIRST), bytes(9), array("q", [wrong, 0]).tobytes(), 0)
        assert (kind, arguments) == (InvalidArgumentError, ("entry 0 does not fit in the values",))


@pytest.mark.parametrize("thing", [None, 7, b"12345678", memoryview(bytearray(16))[::2], memoryview(b""), bytearray()], ids=repr)
@pytest.mark.parametrize("position", [4, 5])
def test_columns_must_be_writable(thing: Any, position: int) -> None:
    def call(kernels: Any) -> Any:
        columns: list[Any] = [LEDGER, 3, KEY, FIRST, bytearray(9), bytearray(16)]
        columns[position] = thing
        try:
            return kernels.unpack_part(b"", *columns, 0)
        except (TypeError, BkError) as error:
            return type(error), error.args

    assert call(pure) == call(_native)


@pytest.mark.parametrize("size", [0, 1, 1000, 128 << 10, 5 << 20, -1, 1 << 31, BIG + 1, "1"], ids=repr)
def test_blocks(size: Any) -> None:
    made = []
    for kernels in (pure, _native):
        try:
            block = kernels.new_block(size)
        except (TypeError, BkError) as error:
            made.append((type(error), error.args))
            continue
        assert isinstance(block, memoryview) and not block.readonly and block.format == "B" and block.contiguous
        block[:1] = b"x"[: len(block)]
        made.append((len(block), bytes(block[:1])))
    assert made[0] == made[1]


def test_a_block_is_used_again_only_when_nobody_has_it() -> None:
    block = _native.new_block(1 << 20)
    block[:] = b"a" * len(block)
    kept = block[: 1 << 10].toreadonly()
    del block
    other = _native.new_block(1 << 20)
    other[:] = b"b" * len(other)
    assert kept == b"a" * (1 << 10)
