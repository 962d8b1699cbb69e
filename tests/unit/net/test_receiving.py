"""The receive buffer: frames of any size in any pieces, whole frames in place, large ones never moved."""

from __future__ import annotations

import random
import socket

import pytest

from bk_core.net.receiving import FIRST_BYTES, WHOLE_BYTES, ReceiveBuffer
from bk_core.protocol.wire import codec_v2, connection


class Pieces:
    """A socket that gives at most so much at a time."""

    def __init__(self, data: bytes, rng: random.Random) -> None:
        self.data, self.position, self.rng = data, 0, rng

    def recv_into(self, view: memoryview) -> int:
        assert len(view) > 0, "there is always room"
        count = min(len(view), len(self.data) - self.position, self.rng.choice((1, 3, 1000, 70_000, 1 << 20)))
        view[:count] = self.data[self.position : self.position + count]
        self.position += count
        return count


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_pieces_all_frames_come(seed: int) -> None:
    """wire-protocol.md 2.1."""
    rng = random.Random(seed)
    sizes = [rng.choice((4, 24, 500, WHOLE_BYTES, FIRST_BYTES - 4, FIRST_BYTES, 3 * FIRST_BYTES)) for _ in range(30)]
    payloads = [rng.randbytes(size) for size in sizes]
    source = Pieces(b"".join(codec_v2.frame(payload) for payload in payloads), rng)
    received, got = ReceiveBuffer(), []
    while source.position < len(source.data):
        assert received.receive(source)  # type: ignore[arg-type]
        items, consumed, wanted = connection.scan_v3(received.view, received.start, received.stop, 4 * FIRST_BYTES)
        got += [bytes(received.view[item[5] : item[6]]) for item in items]
        received.use(consumed, wanted)
    assert got == payloads and received.start == received.stop == 0
    assert len(received.view) <= 3 * FIRST_BYTES + WHOLE_BYTES


def test_a_large_frame_is_received_to_its_end_and_no_further() -> None:
    """Bytes behind it would have to be moved when it is done."""
    left, right = socket.socketpair()
    with left, right:
        left.sendall(codec_v2.frame(bytes(WHOLE_BYTES))[:100])
        received = ReceiveBuffer()
        assert received.receive(right) == 100
        received.use(0, WHOLE_BYTES + 4)
        left.sendall(bytes(WHOLE_BYTES + 4 - 100) + b"more")
        while received.stop < WHOLE_BYTES + 4:
            assert received.receive(right)
        assert received.stop == WHOLE_BYTES + 4


def test_what_was_received_is_forgotten() -> None:
    received = ReceiveBuffer()
    received.stop = 10
    received.clear()
    assert (received.start, received.stop) == (0, 0)
