"""Splits the requests of one connection into units: runs where consecutive requests are alike, single requests where not.

A kernel walks a receive buffer once. A run of adds or of plain reads that it finds is certainly v2, because no v3 message starts with such
a word (wire-protocol.md 2.2); everything else goes through the codecs one payload at a time.
"""

from __future__ import annotations

import struct

from bk_core.kernels import frame_add_responses, frame_read_responses, scan_requests
from bk_core.protocol import BytesLike
from bk_core.protocol.bookie.runs import AddsAnswer, ReadsAnswer, RequestedAdds, RequestedReads, add_run
from bk_core.protocol.wire import codec_v2
from bk_core.protocol.wire.connection import ReplyTo, ServerProtocol
from bk_core.protocol.wire.frames import FRAME_BYTES_MAX
from bk_core.protocol.wire.messages import BatchReadResponse, Request, Response
from bk_core.protocol.wire.status import v2_number

Unit = Request | RequestedAdds | RequestedReads
Answer = Response | AddsAnswer | ReadsAnswer

_LENGTH = struct.Struct(">I")
_REPLY = ReplyTo("v2", codec_v2.VERSION)
_ADDS, _READS = 1, 2


class RequestStream(ServerProtocol):
    """A bookie's side of one connection that takes requests and gives answers in runs. Not thread-safe."""

    __slots__ = ("_limit",)

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        super().__init__(frame_bytes_max)
        self._limit = frame_bytes_max

    def allow(self, frame_bytes_max: int) -> None:
        """Take frames of this size from now on."""
        self._limit = frame_bytes_max

    def units(self, data: BytesLike, stop: int) -> tuple[list[tuple[Unit, ReplyTo]], int]:
        """Return (units of ``data[:stop]`` in order, bytes of whole frames in it). Nothing of ``data`` is kept. The errors are those of
        ``feed``."""
        items, consumed, _ = scan_requests(data, 0, stop, self._limit)
        view = memoryview(data)
        units: list[tuple[Unit, ReplyTo]] = []
        for kind, ledger_id, first, count, flags, begin, end in items:
            if kind == _READS and count > 1:
                units.append((RequestedReads(ledger_id, first, count), _REPLY))
            elif kind == _ADDS and count > 1:
                units.append((add_run(view, ledger_id, first, count, flags, begin, end), _REPLY))
            else:
                units.append(self._decode(view[begin + _LENGTH.size if kind else begin : end]))
                continue
            self._is_v2 = True
        return units, consumed

    def encode_parts(self, response: Answer, reply_to: ReplyTo) -> list[BytesLike]:
        """Return the bytes to send for ``response``, in pieces. Raises InvalidArgumentError if the request's protocol has no
        such response."""
        match response:
            case AddsAnswer():
                number = v2_number(response.status)
                return [frame_add_responses(response.ledger_id, response.first_entry_id, response.count, number)]
            case ReadsAnswer():
                return [frame_read_responses(response.ledger_id, response.first_entry_id, response.bodies)]
            case BatchReadResponse() if reply_to.protocol == "v2":
                head, bodies = codec_v2.response_parts(response, reply_to.version)
                return [_LENGTH.pack(len(head) + len(bodies)) + head, bodies]
            case _:
                return [self.encode(response, reply_to)]
