"""Honest answers of a bookie, bent: each bend is one way in which a bookie, or what stands in its place, may be wrong. Pure, by a seed."""

from __future__ import annotations

import random
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bk_core.protocol.wire._proto import bookie_pb2 as pb
from bk_core.protocol.wire.frames import FRAME_BYTES_MAX

EXTREMES = (-(2**63), -(2**31) - 1, -2, -1, 0, 1, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 6, 2**63 - 2, 2**63 - 1)
LENGTHS = (0, 1, 3, 23, FRAME_BYTES_MAX + 4097, 6 << 20, 1 << 24, 2**31 - 1, 2**31, 2**32 - 1)
V2_CODES = (0, 1, 2, 3, 4, 5, 100, 101, 102, 103, 104, 105, 106, 107, -1, 2**31 - 1)
V3_STATUSES = (0, 402, 403, 404, 501, 502, 503, 504, 505, 506, 507)
_INNER = ("addResponse", "readResponse", "readLacResponse", "writeLacResponse", "forceLedgerResponse", "getBookieInfoResponse")
_NUMBERS = ("ledgerId", "entryId", "maxLAC", "lacUpdateTimestamp")
_HEADER_WORDS = (0x02010000, 0x02020000, 0x02070000, 0x02030000, 0x02630000, 0x03010000, 0x00000001, 0xFFFFFFFF, 0)


def framed(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


@dataclass
class Bender:
    """Frames of one connection in, bytes out. ``rate``: the chance that a frame is bent. ``cut`` is True when the connection is to end."""

    rng: random.Random
    protocol: str
    rate: float = 0.3
    cut: bool = False
    bends: list[str] = field(default_factory=list)
    _held: deque[tuple[int, bytes]] = field(default_factory=deque)

    def frame(self, payload: bytes) -> bytes:
        """Return the bytes that go to the client instead of the frame of ``payload``, and those that were held back and are due now."""
        out = framed(payload)
        if self.rng.random() < self.rate:
            name = self.rng.choice(sorted(_BENDS))
            self.bends.append(name)
            out = _BENDS[name](self, payload)
        due = b""
        for _ in range(len(self._held)):
            after, held = self._held.popleft()
            if after <= 0:
                due += held
            else:
                self._held.append((after - 1, held))
        return out + due

    def pieces(self, data: bytes) -> list[bytes]:
        """``data`` as it comes out of the network: in one piece, or in several."""
        if not data or self.rng.random() < 0.5:
            return [data] if data else []
        cuts = sorted(self.rng.randrange(len(data)) for _ in range(self.rng.choice((1, 2, 5))))
        ends = [*cuts, len(data)]
        return [data[begin:end] for begin, end in zip([0, *cuts], ends, strict=True) if end > begin]

    # --- bends of any frame ------------------------------------------------------------------------------------------

    def flip(self, payload: bytes) -> bytes:
        bent = bytearray(payload)
        for _ in range(self.rng.choice((1, 1, 2, 8))):
            place = self.rng.randrange(len(bent)) if self.rng.random() < 0.5 else self.rng.randrange(min(40, len(bent)))
            bent[place] ^= 1 << self.rng.randrange(8)
        return framed(bytes(bent))

    def wrong_length(self, payload: bytes) -> bytes:
        length = self.rng.choice((*LENGTHS, len(payload) - 1, len(payload) + 1, len(payload) * 2))
        return struct.pack(">I", max(0, length)) + payload

    def cut_off(self, payload: bytes) -> bytes:
        self.cut = True
        return framed(payload)[: self.rng.randrange(len(payload) + 4)]

    def hang_up(self, payload: bytes) -> bytes:
        self.cut = True
        return framed(payload)

    def twice(self, payload: bytes) -> bytes:
        return framed(payload) * self.rng.choice((2, 3, 50))

    def late(self, payload: bytes) -> bytes:
        self._held.append((self.rng.randrange(1, 4), framed(payload)))
        return b""

    def lost(self, payload: bytes) -> bytes:
        return b""

    def shorter(self, payload: bytes) -> bytes:
        return framed(payload[: self.rng.randrange(len(payload))])

    def longer(self, payload: bytes) -> bytes:
        return framed(payload + self.rng.randbytes(self.rng.choice((1, 4, 100))))

    def noise(self, payload: bytes) -> bytes:
        return framed(self.rng.randbytes(self.rng.choice((1, 4, 24, 32, 60, 300)))) + framed(payload)

    def raw_noise(self, payload: bytes) -> bytes:
        return self.rng.randbytes(self.rng.choice((1, 3, 7, 64))) + framed(payload)

    def forged(self, payload: bytes) -> bytes:
        """Good answers that nobody asked for, in runs as bookies write them, up to the ends of what a number can be."""
        count, steps = self.rng.choice((1, 2, 2, 6, 40)), self.rng.choice(((1,), (3,), (5,), (1, 1, 1, 6)))
        entry_ids = [self.rng.choice((*EXTREMES, 0, 5))]
        for _ in range(count - 1):
            entry_ids.append(min(entry_ids[-1] + self.rng.choice(steps), 2**63 - 1))
        if self.rng.random() < 0.5:  # a run that ends with the last of all entries
            entry_ids = [entry_id - entry_ids[-1] + 2**63 - 1 for entry_id in entry_ids if entry_ids[-1] - entry_id < 2**63]
        ledger_id = struct.unpack_from(">q", payload, 8)[0] if self.protocol == "v2" and len(payload) >= 16 else self.rng.choice((0, 1, 2))
        made = [self._forged(ledger_id, entry_id, number) for number, entry_id in enumerate(entry_ids)]
        return b"".join((*made, framed(payload)) if self.rng.random() < 0.5 else (framed(payload), *made))

    def _forged(self, ledger_id: int, entry_id: int, number: int) -> bytes:
        read = self.rng.random() < 0.3
        if self.protocol == "v2":
            head = struct.pack(">Iiqq", 0x02020000 if read else 0x02010000, 0, ledger_id, entry_id)
            return framed(head + (self.rng.randbytes(60) if read else b""))
        message = pb.Response()
        message.header.version = 3  # type: ignore[assignment]
        message.header.operation = 2 if read else 1  # type: ignore[assignment]
        message.header.txnId, message.status = number, 0
        inner: Any = message.readResponse if read else message.addResponse
        inner.status, inner.ledgerId, inner.entryId = 0, ledger_id, entry_id
        return framed(message.SerializeToString())

    # --- bends of what a frame says ----------------------------------------------------------------------------------

    def other_ids(self, payload: bytes) -> bytes:
        """Another ledger, another entry, or another number of the request."""
        if self.protocol == "v3":
            return self._v3(payload, self._v3_numbers)
        bent, offset = bytearray(payload), self.rng.choice((8, 16, 24))
        if len(bent) < offset + 8:
            return framed(payload)
        value = (
            self.rng.choice(EXTREMES) if self.rng.random() < 0.5 else struct.unpack_from(">q", bent, offset)[0] + self.rng.choice((-1, 1))
        )
        struct.pack_into(">Q", bent, offset, value % 2**64)
        return framed(bytes(bent))

    def _v3_numbers(self, message: Any) -> None:
        if self.rng.random() < 0.3:
            message.header.txnId = self.rng.choice((*range(8), 2**62, 2**63, 2**64 - 1))
            return
        for name in _INNER:
            if message.HasField(name):
                inner = getattr(message, name)
                fields = [one for one in _NUMBERS if one in inner.DESCRIPTOR.fields_by_name]
                if fields:
                    setattr(inner, self.rng.choice(fields), self.rng.choice(EXTREMES))

    def other_status(self, payload: bytes) -> bytes:
        if self.protocol == "v3":
            return self._v3(payload, self._v3_status)
        bent = bytearray(payload)
        if len(bent) >= 8:
            struct.pack_into(">I", bent, 4, self.rng.choice(V2_CODES) % 2**32)
        return framed(bytes(bent))

    def _v3_status(self, message: Any) -> None:
        status = self.rng.choice(V3_STATUSES)
        which = self.rng.randrange(3)
        if which != 1:
            message.status = status
        for name in _INNER:
            if which and message.HasField(name):
                getattr(message, name).status = status

    def refusal(self, payload: bytes) -> bytes:
        """An error without what answers have otherwise."""
        if self.protocol == "v3":
            return self._v3(payload, self._v3_refusal)
        bent = bytearray(payload[:24])
        if len(bent) >= 8:
            struct.pack_into(">I", bent, 4, self.rng.choice(V2_CODES[1:]) % 2**32)
        return framed(bytes(bent))

    def _v3_refusal(self, message: Any) -> None:
        message.status = self.rng.choice(V3_STATUSES)
        for name in _INNER:
            message.ClearField(name)

    def other_kind(self, payload: bytes) -> bytes:
        """The answer to another operation."""
        if self.protocol == "v3":
            return self._v3(payload, lambda message: setattr(message.header, "operation", self.rng.choice(range(1, 13))))
        return framed(struct.pack(">I", self.rng.choice(_HEADER_WORDS)) + payload[4:])

    def body(self, payload: bytes) -> bytes:
        """Something about the entry itself: its header, a length within a batch, its end."""
        if self.protocol == "v3":
            return self._v3(payload, self._v3_body)
        bent = bytearray(payload)
        if len(bent) <= 40:
            return framed(payload)
        place = self.rng.randrange(24, min(len(bent), 120))
        if self.rng.random() < 0.5:
            bent[place] = self.rng.randrange(256)
        else:
            bent[place:] = self.rng.randbytes(self.rng.choice((0, 3, 40))) + bent[place + self.rng.choice((0, 1, 4)) :]
        return framed(bytes(bent))

    def _v3_body(self, message: Any) -> None:
        inner = message.readResponse
        if message.HasField("readResponse") and inner.HasField("body"):
            body = bytearray(inner.body)
            if body and self.rng.random() < 0.7:
                body[self.rng.randrange(min(len(body), 60))] ^= 1 << self.rng.randrange(8)
                inner.body = bytes(body)
            elif self.rng.random() < 0.5:
                inner.body = b""
            else:
                inner.ClearField("body")

    def _v3(self, payload: bytes, change: Callable[[Any], None]) -> bytes:
        message = pb.Response()
        try:
            message.ParseFromString(payload)
            change(message)
            return framed(message.SerializePartialToString())
        except Exception:  # what the library refuses to write is bent as bytes
            return self.flip(payload)


_BENDS: dict[str, Callable[[Bender, bytes], bytes]] = {
    name: getattr(Bender, name)
    for name in (
        "flip", "wrong_length", "cut_off", "hang_up", "twice", "late", "lost", "shorter", "longer", "noise", "raw_noise", "forged",
        "other_ids", "other_status", "refusal", "other_kind", "body",
    )
}  # fmt: skip
