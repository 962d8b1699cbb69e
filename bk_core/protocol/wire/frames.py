"""Cutting a byte stream into frames, `u32 length | payload` (wire-protocol.md 2.1)."""

from __future__ import annotations

from bk_core.kernels import scan_frames
from bk_core.protocol import BytesLike
from bk_core.protocol.wire import codec_v2

FRAME_BYTES_MAX = 5 * 1024 * 1024  # default of both sides; counts the four length bytes too

frame = codec_v2.frame


class FrameReader:
    """Collects received bytes and hands out whole payloads.

    A payload is a view: of the received ``bytes`` when a frame came in one piece, else of a buffer that is not reused. Nothing beyond
    the frame under way is kept, so memory stays below ``frame_bytes_max`` plus one received chunk.
    """

    __slots__ = ("_frame_bytes_max", "_pending")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._pending = bytearray()

    @property
    def pending_bytes(self) -> int:
        """Bytes of an incomplete frame that wait for the rest of it."""
        return len(self._pending)

    def feed(self, data: BytesLike) -> list[memoryview]:
        """Payloads completed by ``data``, in order. RemoteProtocolError for a length of 0 or above the limit, as soon as it is there."""
        buffer, bounds = self.feed_bounds(data)
        view = memoryview(buffer)
        marks = memoryview(bounds).cast("q")
        return [view[marks[i] : marks[i + 1]] for i in range(0, len(marks), 2)]

    def feed_bounds(self, data: BytesLike) -> tuple[BytesLike, bytes]:
        """Do the same as ``feed``, for readers that walk a whole buffer: (buffer, native int64 pairs of payload start and end in it)."""
        if not self._pending:
            # A caller may use its receive buffer again; bytes it cannot.
            whole = data if isinstance(data, bytes) else bytes(data)
            bounds, consumed = scan_frames(whole, self._frame_bytes_max)
            if consumed < len(whole):
                self._pending += memoryview(whole)[consumed:]
            return whole, bounds
        joined = self._pending
        joined += data
        bounds, consumed = scan_frames(joined, self._frame_bytes_max)
        if consumed:  # views of this buffer are going out: the rest continues in another one
            self._pending = bytearray(memoryview(joined)[consumed:])
        return joined, bounds
