"""The peers of a bookie: who is let in and who is given up, which events are waited for, and what is sent."""

from __future__ import annotations

import errno
import resource
import selectors
import socket
import time
from collections import deque
from dataclasses import replace
from functools import partial
from pathlib import Path

from bk_core.bookie.connection import GATE_FRAME_BYTES_MAX, Connection, Tag
from bk_core.bookie.counting import Traffic
from bk_core.bookie.disk import JudgedDisk
from bk_core.bookie.door import Door
from bk_core.bookie.door_files import DoorFiles
from bk_core.bookie.seldom import SeldomLines
from bk_core.display.words import host_port
from bk_core.errors import InvalidArgumentError, RemoteProtocolError
from bk_core.metrics.bookie import ServerCounts
from bk_core.net.tls_socket import TlsSocket
from bk_core.protocol.bookie.admission import ConnectionLimits, Quiet, overdue, stranger_makes_room, to_make_room
from bk_core.protocol.bookie.gate import Then
from bk_core.protocol.bookie.stream import Answer
from bk_core.protocol.wire.codec_v3 import VERSION
from bk_core.protocol.wire.connection import ReplyTo

SEND_BUFFERS_MAX = 256  # below IOV_MAX
FRAME_HEAD_BYTES = 4
TLS_HANDSHAKE = 0x16  # the first byte of TLS, and never of a frame, whose length would be that of hundreds of megabytes
TO_START_TLS = ReplyTo("v3", VERSION)  # which is asked over no other protocol
ACCEPT_PAUSE_S = 1.0  # after the process or the machine ran out of descriptors

_RESERVED_DESCRIPTORS = 64  # for files, the metadata store, other bookies
# errors of accept that say nothing about the next connection
_THAT_PEER = frozenset((errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.EINTR))


class Peers(JudgedDisk):
    """The connections of one bookie. Used on the loop, which serves what comes on them."""

    def __init__(
        self,
        listener: socket.socket,
        directory: Path,
        disk_reserve_bytes: int,
        limits: ConnectionLimits,
        counts: ServerCounts,
        door: Door | None,
    ) -> None:
        self._listener = listener
        self._seldom = SeldomLines()
        self._door = None if door is None else DoorFiles(door, partial(self._seldom.tell, "files"))
        self._more: set[Connection] = set()  # connections with bytes that are decrypted already, which no selector knows of
        self._traffic = Traffic(counts)
        self._selector = selectors.DefaultSelector()
        self._limits = _within_descriptors(limits)
        self._accepting = False
        self._accept_at = 0.0
        self._unsent_bytes = 0  # of all connections
        self._connections: set[Connection] = set()
        self._outside: dict[Connection, None] = {}  # those that are not admitted, the oldest first
        self._listing: deque[Connection] = deque()  # connections whose next unit is a list of entries under way
        self._blocked: set[Connection] = set()  # connections whose requests wait for room
        self._early: set[Connection] = set()  # those whose token came before they have begun TLS
        self._dirty: set[Connection] = set()  # connections with something to send
        super().__init__(directory, disk_reserve_bytes, counts)  # opens the storage, so nothing that may fail comes behind it

    # --- who is let in, and who is given up -----------------------------------------------------------------------

    def _listen(self) -> None:
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._accepting = True

    def _stop_listening(self) -> None:
        if self._accepting:
            self._selector.unregister(self._listener)
            self._accepting = False

    def _accept(self) -> None:
        for _ in range(64):
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _THAT_PEER:
                    continue
                self._seldom.tell("accept", f"no connection can be accepted: {error}; trying again every {ACCEPT_PAUSE_S:g} s", 1)
                self._accept_at = time.monotonic() + ACCEPT_PAUSE_S
                return self._stop_listening()
            self._admit(sock, host_port(*address[:2]))

    def _admit(self, sock: socket.socket, peer: str) -> None:
        """Take a connection. If there are too many, another one makes room, or the new one is refused (BKE-6)."""
        if len(self._connections) >= self._limits.connections:
            spare = self._spare(time.monotonic())
            self.counts.refused("full")
            self._seldom.tell(
                "full",
                f"there are {len(self._connections)} connections, {len(self._outside)} of them not admitted; those and idle ones make room "
                "for new ones, which are refused if there are none",
                1,
            )
            if spare is None:
                sock.close()
                return
            self._drop(spare, None)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # the kernel looks after peers whose machine is gone
        try:
            gate = None if self._door is None else self._door.gate()
        except InvalidArgumentError as error:
            self._seldom.tell("nobody", f"nobody is admitted: {error.args[0]}", 1)
            sock.close()
            return
        connection = Connection(sock, peer, gate)
        self._connections.add(connection)
        if gate is not None:
            self._outside[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, connection)
        connection.events = selectors.EVENT_READ

    def _spare(self, now: float) -> Connection | None:
        oldest = next(iter(self._outside), None)
        if oldest is not None and stranger_makes_room(len(self._outside), now - oldest.begun_at, self._limits):
            return oldest
        return to_make_room(((c, self._quiet(c, now)) for c in self._connections), self._limits)

    def _let_in(self, connection: Connection) -> None:
        """Serve a peer that has passed the gate."""
        self._outside.pop(connection, None)
        connection.admit()

    def _turned_away(self, connection: Connection, why: str, text: str) -> None:
        """Count and log a peer that is not let in and may try again."""
        self.counts.refused(why)
        self._seldom.tell(why, f"connection from {connection.peer} is not admitted: {text}")

    def _quiet(self, connection: Connection, now: float) -> Quiet:
        return connection.quiet(now, blocked=connection in self._blocked or connection in self._listing)

    def _give_up_overdue(self, now: float) -> None:
        """Close overdue connections (BKE-5)."""
        for connection in tuple(self._connections):
            connection.note_progress(now)
            if (reason := overdue(self._quiet(connection, now), self._limits)) is not None:
                self._drop(connection, reason, "late")

    def _drop(self, connection: Connection, reason: str | None, why: str = "broken") -> None:
        """Close one connection; a ``reason`` is for the log, in bounded numbers by ``why``, which is counted of those who are outside."""
        if not connection.open:
            return
        is_outside = connection.gate is not None
        if reason is not None:
            self._seldom.tell(f"{why}, outside" if is_outside else why, f"connection from {connection.peer} closed: {reason}")
            if is_outside and why != "broken":
                self.counts.refused(why)
        connection.open = False
        for tag in connection.polls:
            self.machine.cancel(tag)
        connection.polls.clear()
        connection.inbox.clear()
        connection.outbox.clear()
        self._unsent_bytes -= connection.unsent_bytes
        for group in (self._connections, self._blocked, self._dirty, self._more, self._early):
            group.discard(connection)
        self._outside.pop(connection, None)
        if connection in self._listing:
            self._listing.remove(connection)
        if connection.events:
            self._selector.unregister(connection.sock)
            connection.events = 0
        connection.sock.close()

    # --- TLS ------------------------------------------------------------------------------------------------------

    def _begin_tls(self, connection: Connection) -> None:
        """Go on by TLS, whose first byte is awaited. The answer to the request must be on its way."""
        self._flush(connection)
        if connection.outbox:
            return self._drop(connection, "it takes no answer to its START_TLS", "late")
        connection.shaking = True
        self._await_hello(connection, b"")

    def _await_hello(self, connection: Connection, came: bytes) -> None:
        """Take what comes in clear behind START_TLS. Java's client sends its first token there, which says nothing; it is answered inside
        of TLS (wire-protocol.md 10.4). Anything else ends the connection."""
        assert connection.gate is not None
        came = bytes(connection.partial[: connection.known]) + came
        connection.partial, connection.known = bytearray(), 0
        while came and came[0] != TLS_HANDSHAKE:
            size = FRAME_HEAD_BYTES + int.from_bytes(came[:FRAME_HEAD_BYTES], "big")
            if len(came) < FRAME_HEAD_BYTES or FRAME_HEAD_BYTES <= len(came) < size <= GATE_FRAME_BYTES_MAX:
                connection.partial, connection.known = bytearray(came), len(came)
                break
            try:
                units, consumed = connection.protocol.units(came, min(size, len(came)))
            except RemoteProtocolError as error:
                return self._drop(connection, f"malformed input behind its START_TLS: {error}", "malformed")
            connection.inbox.extend(units)
            came = came[consumed:]
        if not connection.gate.may_wait([unit for unit, _ in connection.inbox]):
            return self._drop(connection, "there is more behind its START_TLS", "malformed")
        if came and came[0] == TLS_HANDSHAKE:
            self._wrap(connection, came)
        self._choose_events(connection)

    def _wrap(self, connection: Connection, came: bytes) -> None:
        assert self._door is not None and isinstance(connection.sock, socket.socket)
        try:
            context = self._door.context()
        except InvalidArgumentError as error:
            return self._drop(connection, str(error.args[0]), "files")
        connection.sock = TlsSocket(connection.sock, context, None, lambda: self._more.add(connection), server=True, came=came)
        self._shake(connection)

    def _receive_hello(self, connection: Connection) -> None:
        assert isinstance(connection.sock, socket.socket)
        try:
            came = connection.sock.recv(GATE_FRAME_BYTES_MAX)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            return self._drop(connection, f"receiving failed: {error}")
        if not came:
            return self._drop(connection, None)
        connection.received_at = time.monotonic()
        self._await_hello(connection, came)

    def _shake(self, connection: Connection) -> None:
        if not isinstance(connection.sock, TlsSocket):
            return self._receive_hello(connection)
        assert connection.gate is not None
        try:
            done = connection.sock.shake()
        except OSError as error:
            return self._drop(connection, f"TLS failed: {error}", "tls")
        connection.received_at = time.monotonic()
        if done:
            connection.shaking = False
            found = connection.gate.secured(connection.sock.peer_unit())
            if found.then is Then.SERVE:
                self._let_in(connection)
            elif found.answer is not None:
                self._turned_away(connection, "role", "its certificate has none of the roles that are admitted")
                self._answer(Tag(connection, TO_START_TLS), found.answer)
                self._flush(connection)
            self._more.add(connection)  # the first request may have come with the end of the handshake
        self._choose_events(connection)

    # --- events, and what is sent ---------------------------------------------------------------------------------

    def _choose_events(self, connection: Connection) -> None:
        if not connection.open:
            return
        events = self._events_of(connection)
        if events == connection.events:
            return
        if not events:
            self._selector.unregister(connection.sock)
        elif not connection.events:
            self._selector.register(connection.sock, events, connection)
        else:
            self._selector.modify(connection.sock, events, connection)
        connection.events = events

    def _events_of(self, connection: Connection) -> int:
        events = 0 if connection in self._blocked or connection in self._listing else selectors.EVENT_READ
        behind = connection.shaking and isinstance(connection.sock, TlsSocket) and connection.sock.is_behind
        return events | selectors.EVENT_WRITE if connection.outbox or behind else events

    def _answer(self, tag: Tag, response: Answer) -> None:
        connection = tag.connection
        connection.polls.discard(tag)
        self._traffic.answered(response)
        if not connection.open:
            return
        try:
            parts = connection.protocol.encode_parts(response, tag.context)
        except InvalidArgumentError as error:
            return self._drop(connection, f"no way to say so on this connection: {error}", "malformed")
        if not connection.outbox:
            connection.sent_at = time.monotonic()
        connection.outbox.extend(map(memoryview, parts))
        self._add_unsent(connection, sum(map(len, parts)))
        self._dirty.add(connection)

    def _add_unsent(self, connection: Connection, count: int) -> None:
        connection.unsent_bytes += count
        if connection.open:
            self._unsent_bytes += count

    def _flush_all(self) -> None:
        dirty, self._dirty = self._dirty, set()
        for connection in dirty:
            self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        outbox = connection.outbox
        try:
            while outbox:
                head = [outbox[index] for index in range(min(len(outbox), SEND_BUFFERS_MAX))]
                sent = connection.sock.sendmsg(head)
                connection.sent_at = time.monotonic()
                self._add_unsent(connection, -sent)
                while outbox and sent >= len(outbox[0]):
                    sent -= len(outbox.popleft())
                if sent:
                    outbox[0] = outbox[0][sent:]
                    break  # the socket is full
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            return self._drop(connection, f"sending failed: {error}")
        self._choose_events(connection)


def _within_descriptors(limits: ConnectionLimits) -> ConnectionLimits:
    """Return limits that fit the number of descriptors that this process may have."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return limits if soft < 0 else replace(limits, connections=max(1, min(limits.connections, soft - _RESERVED_DESCRIPTORS)))
