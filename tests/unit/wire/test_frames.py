"""FrameReader on streams cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.errors import RemoteProtocolError
from bk_core.protocol.wire.frames import FrameReader, frame


@given(st.lists(st.binary(min_size=1, max_size=50), max_size=10), st.lists(st.integers(0, 40), max_size=40))
def test_payloads_do_not_depend_on_the_chunks(payloads: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(frame(payload) for payload in payloads)
    reader, found, position = FrameReader(64), [], 0
    for size in [*sizes, len(stream)]:
        found += reader.feed(stream[position : position + size])
        position += size
    assert found == payloads  # compared at the end: earlier views must not change under later chunks
    assert reader.pending_bytes == 0


def test_a_buffer_the_caller_uses_again_does_not_change_what_was_read() -> None:
    buffer = bytearray(frame(b"first") + frame(b"second")[:6])
    reader = FrameReader()
    [first] = reader.feed(buffer)
    buffer[:] = b"\xff" * len(buffer)
    [second] = reader.feed(memoryview(frame(b"second"))[6:])
    assert (bytes(first), bytes(second)) == (b"first", b"second")


@pytest.mark.parametrize("limit", [16, 1000])
def test_the_limit_counts_the_length_bytes(limit: int) -> None:
    assert FrameReader(limit).feed(frame(bytes(limit - 4))) == [bytes(limit - 4)]
    reader = FrameReader(limit)
    assert reader.feed((limit - 3).to_bytes(4, "big")[:3]) == []
    with pytest.raises(RemoteProtocolError):
        reader.feed((limit - 3).to_bytes(4, "big")[3:])


def test_an_empty_frame_is_refused() -> None:
    with pytest.raises(RemoteProtocolError):
        FrameReader().feed(bytes(4))
