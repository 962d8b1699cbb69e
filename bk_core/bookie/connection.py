"""One connection of the bookie's loop: the bytes that have come and those to be sent."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys
import termios
import time
from collections import deque
from contextlib import suppress

from bk_core.net.tls_socket import TlsSocket
from bk_core.protocol.bookie.admission import Quiet
from bk_core.protocol.bookie.gate import Gate
from bk_core.protocol.bookie.listing import EntryListing
from bk_core.protocol.bookie.stream import RequestStream, Unit
from bk_core.protocol.wire.connection import ReplyTo
from bk_core.protocol.wire.frames import FRAME_BYTES_MAX
from bk_core.protocol.wire.messages import AuthRequest

RECEIVE_BYTES = 1 << 20  # of the buffer that all connections share
GATE_FRAME_BYTES_MAX = 64 << 10  # of a peer that is not admitted yet
OWN_BUFFER_BYTES = 64 << 10  # above this, an incomplete frame has its own buffer, twice the size of what has come

_LENGTH = struct.Struct(">I")


class Tag:
    """One request that is to be answered; equal only to itself."""

    __slots__ = ("connection", "context")

    def __init__(self, connection: Connection, context: ReplyTo) -> None:
        self.connection = connection
        self.context = context


class Connection:
    __slots__ = (
        *("begun_at", "events", "gate", "inbox", "known", "open", "outbox", "partial", "peer", "polls", "protocol"),
        *("early", "queued", "received_at", "sent_at", "shaking", "sock", "unsent_bytes", "waiting"),
    )

    def __init__(self, sock: socket.socket, peer: str, gate: Gate | None = None) -> None:
        self.sock: socket.socket | TlsSocket = sock
        self.gate = gate  # until this peer is admitted; None where everybody is
        self.shaking = False  # in the handshake of TLS
        self.early: tuple[AuthRequest, ReplyTo, float] | None = None  # a token that came in clear, and when
        self.peer = peer
        self.protocol = RequestStream() if gate is None else RequestStream(GATE_FRAME_BYTES_MAX)
        self.partial = bytearray()  # a frame whose rest has not come yet, ``known`` bytes of it; a large one with room for more
        self.known = 0
        self.inbox: deque[tuple[Unit | EntryListing, ReplyTo]] = deque()
        self.outbox: deque[memoryview] = deque()
        self.unsent_bytes = 0  # encoded bytes, and those held by an answer that waits for a commit
        self.waiting = 0  # answers that wait for a commit
        self.polls: set[Tag] = set()
        self.events = 0
        self.open = True
        self.queued = 0  # the bytes that the kernel had not sent when last asked
        self.begun_at = self.received_at = self.sent_at = time.monotonic()

    def admit(self) -> None:
        """Serve this peer from now on, and take frames of any size from it."""
        self.gate = None
        if isinstance(self.sock, TlsSocket):
            self.sock.widen()
        self.protocol.allow(FRAME_BYTES_MAX)

    def note_progress(self, now: float) -> None:
        """Note progress. Bytes that the kernel still sends count too, because with a slow peer it takes nothing from here for long."""
        if self.outbox and sys.platform == "linux":
            with suppress(OSError):
                queued = int.from_bytes(fcntl.ioctl(self.sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)
                if queued != self.queued:
                    self.queued, self.sent_at = queued, now

    def quiet(self, now: float, *, blocked: bool) -> Quiet:
        """Return the state for admission. ``blocked`` means that the bookie does not read from the connection at the moment."""
        waits = blocked or bool(self.inbox or self.polls or self.waiting)
        outside_s = None if self.gate is None else now - self.begun_at
        return Quiet(now - self.received_at, now - self.sent_at, self.known > 0 and not blocked, bool(self.outbox), waits, outside_s)


def rest_of_frame(buffer: bytearray, start: int, stop: int) -> bytearray:
    """Return a copy of the part of a frame that has come, for a large one with room for as much again. Memory grows with received bytes and
    not with announced ones."""
    rest = buffer[start:stop]
    rest += bytes(_room_for(rest, len(rest)))
    return rest


def make_room(partial: bytearray, known: int) -> None:
    """Make room for more of a frame that has filled its buffer."""
    if known == len(partial):
        partial += bytes(_room_for(partial, known))


def _room_for(partial: bytearray, known: int) -> int:
    if known < OWN_BUFFER_BYTES:
        return 0
    size: int = _LENGTH.size + _LENGTH.unpack_from(partial)[0]
    return min(known, size - known)
