"""Many single reads of one ledger as one request: builds what is sent, and puts the answers together.

Within a thread pool of a bookie the requests of one ledger run in the order of their arrival, so answers come in order (wire-protocol.md
9). Nothing relies on it: an answer that is ahead of its turn waits here for it.
"""

from __future__ import annotations

from bk_core import kernels
from bk_core.protocol import BytesLike
from bk_core.protocol.wire import codec_v2
from bk_core.protocol.wire.messages import ReadResponse, ReadRunRequest, ReadRunResponse, Status

HEADER_BYTES = codec_v2.RESPONSE_BYTES  # of each item of ``ReadRunResponse.frames``, between its length and its body
LENGTH_BYTES = 4
_FRAME_BYTES_MAX = (1 << 31) - 1


def frame_bounds(frames: BytesLike) -> bytes:
    """Return native int64 pairs: where each item of ``ReadRunResponse.frames`` begins behind its length, and where it ends."""
    return kernels.scan_frames(frames, _FRAME_BYTES_MAX)[0]


class RunAnswers:
    """The answers to one ReadRunRequest. The result is the prefix up to the first entry that was refused, or that reached the request's
    ``bytes_max``. Answers behind it are not kept."""

    __slots__ = ("_ahead", "_ahead_bytes", "_frames", "_last", "_max_lac", "_refusal", "_request", "next")

    def __init__(self, request: ReadRunRequest) -> None:
        self.next = request.entry_id
        self._request = request
        self._last = request.last_entry_id
        self._frames = bytearray()
        self._ahead: dict[int, bytes] = {}
        self._ahead_bytes = 0
        self._refusal: Status | None = None
        self._max_lac: int | None = None

    @property
    def done(self) -> bool:
        return self.next > self._last

    def awaits(self, entry_id: int) -> bool:
        """Return True if an answer about this entry is still wanted."""
        return self.next <= entry_id <= self._last and (entry_id - self.next) % self._request.step == 0 and entry_id not in self._ahead

    def in_order(self, first: int, count: int, step: int) -> int:
        """Return how many of ``count`` answers, to entries ``first``, ``first + step``, ..., continue the prefix."""
        if first != self.next or not count:
            return 0
        return min(count if step == self._request.step else 1, (self._last - first) // self._request.step + 1)

    def take_frames(self, count: int, frames: BytesLike, max_lac: int | None = None) -> None:
        """Take the next ``count`` answers, as v2 read responses with their length prefixes, and the highest LAC that they told."""
        self._frames += frames
        self._told(max_lac)
        self.next += count * self._request.step
        self._take_what_waited()

    def take(self, response: ReadResponse) -> None:
        """Take one answer about an entry that is awaited, in any order. An OK without a body counts as no answer to a read."""
        entry_id = response.entry_id
        if response.status is not Status.OK or response.body is None:
            self._last = entry_id - self._request.step
            self._refusal = response.status if response.status is not Status.OK else Status.PROTOCOL_ERROR
            return
        self._told(response.max_lac)
        self._ahead[entry_id] = frame = codec_v2.encode_response_frame(response)
        self._ahead_bytes += len(frame)
        self._take_what_waited()

    def _told(self, lac: int | None) -> None:
        if lac is not None:
            self._max_lac = max(lac, -1 if self._max_lac is None else self._max_lac)

    def _take_what_waited(self) -> None:
        while self._ahead and (frame := self._ahead.pop(self.next, None)) is not None:
            self._frames += frame
            self._ahead_bytes -= len(frame)
            self.next += self._request.step
        if self._frames and 0 < self._request.bytes_max <= len(self._frames) + self._ahead_bytes:
            self._last = min(self._last, self.next - self._request.step)
            self._ahead.clear()
            self._ahead_bytes = 0

    def response(self, otherwise: Status) -> ReadRunResponse:
        """Return the answer to the whole run: OK if any entry is there, else the first entry's refusal, or ``otherwise``."""
        asked = self._request
        status = Status.OK if self._frames else otherwise if self._refusal is None else self._refusal
        return ReadRunResponse(asked.request_id, status, asked.ledger_id, asked.entry_id, self._frames, self._max_lac)
