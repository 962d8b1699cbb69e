"""One connection as a sequence of messages: a bookie's choice between v2 and v3, and a client's view of its responses.

Source: wire-protocol.md 2.2 (selection), 4.3 and 5.3 (what a response repeats of its request), 12 item 3 (joined add responses).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from bk_core import kernels
from bk_core.protocol import BytesLike
from bk_core.protocol.wire import codec_v2, codec_v3
from bk_core.protocol.wire.frames import FRAME_BYTES_MAX, FrameReader
from bk_core.protocol.wire.messages import BatchReadRequest, ReadRunRequest, Request, Response

Protocol = Literal["v2", "v3"]


# --- server -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplyTo:
    """The part of a request, besides the ids, that its response repeats: the protocol, the header version (0: the legacy word of v2), and
    the v3 priority."""

    protocol: Protocol
    version: int
    priority: int = 0


_V2_REPLIES = tuple(ReplyTo("v2", version) for version in range(256))
_V3_REPLY = ReplyTo("v3", codec_v3.VERSION)


class ServerProtocol:
    """A bookie's side of one connection, without the socket.

    Every payload is tried as v3 until one is not; from then on all are v2 (wire-protocol.md 2.2, sticky). Not thread-safe.
    """

    __slots__ = ("_frames", "_is_v2")

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frames = FrameReader(frame_bytes_max)
        self._is_v2 = False

    @property
    def protocol(self) -> Protocol:
        """The protocol of the last request; v3 before the first one."""
        return "v2" if self._is_v2 else "v3"

    def feed(self, data: BytesLike) -> list[tuple[Request, ReplyTo]]:
        """Return the requests completed by ``data``, in order, each with what ``encode`` needs for its response.

        On RemoteProtocolError the caller must close the connection and answer nothing more (wire-protocol.md 2.1, 5.2).
        """
        return [self._decode(payload) for payload in self._frames.feed(data)]

    def _decode(self, payload: memoryview) -> tuple[Request, ReplyTo]:
        if not self._is_v2:
            message = codec_v3.parse_request(payload)
            if message is not None:
                version, priority = int(message.header.version), message.header.priority
                plain = version == codec_v3.VERSION and not priority
                return codec_v3.request_of(message), _V3_REPLY if plain else ReplyTo("v3", version, priority)
            self._is_v2 = True
        request = codec_v2.decode_request(payload)
        return request, _V2_REPLIES[payload[0]]

    def encode(self, response: Response, reply_to: ReplyTo) -> bytes:
        """Return the response as a frame. Raises InvalidArgumentError if the request's protocol has no such response."""
        if reply_to.protocol == "v3":
            return codec_v2.frame(codec_v3.encode_response(response, reply_to.version, reply_to.priority))
        return codec_v2.encode_response_frame(response, reply_to.version)


# --- client -----------------------------------------------------------------------------------------------------


def encode_request(request: Request, protocol: Protocol) -> bytes:
    """Return the request as a frame. Raises InvalidArgumentError for what the protocol cannot carry (wire-protocol.md 6)."""
    return codec_v2.frame(_REQUEST_ENCODERS[protocol](request))


def encode_batch_read(request: BatchReadRequest, request_id: int) -> bytes:
    """Return a v2 batch read with this number as a frame."""
    return codec_v2.frame(codec_v2.encode_batch_read(request, request_id))


def decode_response(payload: BytesLike, protocol: Protocol) -> Response:
    """Return the response in a payload; a client knows which protocol it speaks (wire-protocol.md 2.3). Raises RemoteProtocolError."""
    return _RESPONSE_DECODERS[protocol](payload)


_REQUEST_ENCODERS: dict[Protocol, Callable[[Request], bytes]] = {"v2": codec_v2.encode_request, "v3": codec_v3.encode_request}
_RESPONSE_DECODERS: dict[Protocol, Callable[[BytesLike], Response]] = {"v2": codec_v2.decode_response, "v3": codec_v3.decode_response}


LENGTH_BYTES = 4
OTHER, ADDS, READS, BATCH, SPARSE_ADDS = 0, 1, 2, 3, 4  # kinds of items in a receive buffer: see ``kernels.scan_responses``
Item = tuple[int, int, int, int, int, int, int]
"""An item is (kind, ledger id, entry id, count or request id, the step of reads, begin, end)."""


def scan_v2(buffer: BytesLike, start: int, stop: int, frame_bytes_max: int) -> tuple[list[Item], int, int]:
    """Decode the bytes that a client has received. Return (items, position behind the last complete frame, size of the incomplete frame
    there or 0).

    Consecutive answers to adds and to reads are joined. Bookies from 4.16 write the acknowledgements of one journal sync as one run of
    frames, so a buffer is a few items whatever its size. Raises RemoteProtocolError.
    """
    return kernels.scan_responses(buffer, start, stop, frame_bytes_max)


BATCH_HEAD_BYTES = LENGTH_BYTES + 32  # of the answer to a batch read, before its bodies


def batch_head(buffer: BytesLike, at: int) -> tuple[int, int, int] | None:
    """(request id, ledger id, entry id) if the frame that begins at ``at`` is a good answer to a batch read; BATCH_HEAD_BYTES of it are
    there (wire-protocol.md 5.3)."""
    return codec_v2.batch_head(buffer, at + LENGTH_BYTES)


def scan_v3(buffer: BytesLike, start: int, stop: int, frame_bytes_max: int) -> tuple[list[Item], int, int]:
    """Return what ``scan_v2`` does for v3; what is joined has consecutive transaction ids, and ``code`` is the first of them."""
    return kernels.scan_responses_v3(buffer, start, stop, frame_bytes_max)


def encode_read_run(request: ReadRunRequest, numbers: Sequence[int]) -> bytes:
    """Single reads as frames back to back: v3 with these consecutive numbers, v2 without any."""
    if not numbers:
        return kernels.frame_reads(request.ledger_id, request.entry_id, request.count, request.step)
    return kernels.frame_reads_v3(request.ledger_id, request.entry_id, request.count, request.step, numbers[0])
