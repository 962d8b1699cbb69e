"""One selector loop around the bookie's machine: all connections, all changes of the storage, all answers."""

from __future__ import annotations

import errno
import logging
import resource
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from bk_core.bookie import standby
from bk_core.bookie.connection import RECEIVE_BYTES, Connection, Tag, make_room, rest_of_frame
from bk_core.bookie.counting import Traffic
from bk_core.bookie.door import Door
from bk_core.bookie.storage import LmdbBookieStorage
from bk_core.errors import BookieIOError, InvalidArgumentError, RemoteProtocolError
from bk_core.metrics.bookie import ServerCounts
from bk_core.net.tls_socket import TlsSocket
from bk_core.protocol.bookie import BookieMachine, Effect, Persist, PersistMany, Reply, ReplyAfterSync, WakeLater, io_error
from bk_core.protocol.bookie.admission import ConnectionLimits, Quiet, overdue, to_make_room
from bk_core.protocol.bookie.gate import Gate, Then
from bk_core.protocol.bookie.listing import EntryListing
from bk_core.protocol.bookie.room import RESERVE_BYTES, DiskLook, free_bytes, judge_room
from bk_core.protocol.bookie.runs import AddsAnswer, RequestedAdds, RequestedReads
from bk_core.protocol.bookie.stream import Answer, Unit
from bk_core.protocol.wire.messages import BatchReadResponse, EntryListRequest, ReadResponse, Response

log = logging.getLogger("bk_core.bookie")

READ_PIECE_BYTES = 1 << 20  # of a run of reads at a time
SEND_BUFFERS_MAX = 256  # below IOV_MAX
UNSENT_BYTES_MAX = 8 << 20  # per connection; above this, its requests wait until the peer reads
UNSENT_ALL_BYTES_MAX = 256 << 20  # of all connections; above this, the requests of each that has not read everything wait
UNCOMMITTED_BYTES_MAX = 96 << 20  # above this, all requests wait for the database
DISK_RESERVE_BYTES = RESERVE_BYTES  # see judge_room
HOUSEKEEPING_S = 1.0
STOP_TIMEOUT_S = 5.0
ACCEPT_PAUSE_S = 1.0  # after the process or the machine ran out of descriptors
TELL_AGAIN_S = 60.0  # the same trouble with new connections is logged once in this time

_RESERVED_DESCRIPTORS = 64  # for files, the metadata store, other bookies
# errors of accept that say nothing about the next connection
_THAT_PEER = frozenset((errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.EINTR))

_T = TypeVar("_T")


class _Clock:
    """A clock of Unix milliseconds that never goes backwards."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def __call__(self) -> int:
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000


class BookieServer:
    """Serves connections around one machine and its storage. ``run`` blocks; ``stop``, ``submit`` and ``call`` may be used from
    any thread."""

    def __init__(
        self,
        listener: socket.socket,
        directory: Path,
        *,
        disk_reserve_bytes: int = DISK_RESERVE_BYTES,
        limits: ConnectionLimits | None = None,
        counts: ServerCounts | None = None,
        door: Door | None = None,
    ) -> None:
        self._listener = listener
        self._door = door
        self._more: set[Connection] = set()  # connections with bytes that are decrypted already, which no selector knows of
        self._completions: deque[tuple[int, BaseException | None]] = deque()
        self._commands: deque[Callable[[], None]] = deque()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self.counts = counts or ServerCounts()
        self._traffic = Traffic(self.counts)
        self.storage = LmdbBookieStorage(directory, self._commit_completed, counts=self.counts)
        self.machine = BookieMachine(self.storage)
        self.on_read_only: Callable[[bool], None] = lambda read_only: None
        self._disk_reserve_bytes = self.storage.reserve_bytes = disk_reserve_bytes
        self._accept_until = 0  # a bound on the storage's accepted bytes (BKE-8)
        self._look_again = True  # something was written since the last look at the disk
        self._scarce = False
        self._commit_failed = False
        self._foreign = False
        self._clock = _Clock()
        self._selector = selectors.DefaultSelector()
        self._limits = _within_descriptors(limits or ConnectionLimits())
        self._accepting = False
        self._accept_at = 0.0
        self._told_at = -TELL_AGAIN_S
        self._unsent_bytes = 0  # of all connections
        self._connections: set[Connection] = set()
        self._listing: deque[Connection] = deque()  # connections whose next unit is a list of entries under way
        self._blocked: set[Connection] = set()  # connections whose requests wait for room
        self._dirty: set[Connection] = set()  # connections with something to send
        self._receive_buffer = bytearray(RECEIVE_BYTES)
        self._waiting: deque[tuple[int, Tag, Response | AddsAnswer]] = deque()  # answers that wait for a commit, oldest first
        self._sync_wanted = False
        self._housekeeping_at = 0.0
        self._stopping = False
        self._free_bytes = 0  # at the last look at the disk
        self._read_gauges()

    def _read_gauges(self) -> None:
        read = self.counts.registry.read
        read("bookkeeper_bookie_uncommitted_bytes", lambda: self.storage.uncommitted_bytes)
        read("bookkeeper_bookie_waiting_answers", lambda: len(self._waiting))
        read("bookkeeper_bookie_connections", lambda: len(self._connections))
        read("bookkeeper_bookie_free_disk_bytes", lambda: self._free_bytes)
        read("bookkeeper_bookie_read_only", lambda: int(self.machine.read_only))

    # --- from other threads ---------------------------------------------------------------------------------------

    def submit(self, command: Callable[[], None]) -> None:
        """Run ``command`` on the loop."""
        self._commands.append(command)
        self._wake()

    def call(self, function: Callable[[], _T]) -> Future[_T]:
        """Run ``function`` on the loop; the future has its outcome. The future is never done if the loop has ended meanwhile."""
        future: Future[_T] = Future()

        def command() -> None:
            try:
                future.set_result(function())
            except Exception as error:  # the error belongs to the caller
                future.set_exception(error)

        self.submit(command)
        return future

    def stop(self) -> None:
        self._stopping = True
        self._wake()

    def _commit_completed(self, position: int, error: BaseException | None) -> None:
        self._completions.append((position, error))
        self._wake()

    def _wake(self) -> None:
        try:
            self._wake_in.send(b"\0")
        except (BlockingIOError, OSError):
            pass  # full: the loop is about to wake anyway; closed: the loop has ended

    # --- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        self._listen()
        self._selector.register(self._wake_out, selectors.EVENT_READ, self._drain_wakes)
        try:
            while not self._stopping:
                self._turn(self._pause_s())
            self._drain()
        finally:
            self.close()

    def _turn(self, pause_s: float) -> None:
        for key, mask in self._selector.select(pause_s):
            if isinstance(key.data, Connection):
                self._serve(key.data, mask)
            else:
                key.data()
        while self._commands:
            self._commands.popleft()()
        self._finish_commits()
        self._perform(self.machine.wake(self._clock()))
        self._housekeeping()
        self._flush_all()
        for connection in tuple(self._blocked):
            self._pump(connection)
        if self._more:
            self._receive_decrypted()
        if self._listing:  # one piece a turn, whichever connection it is for
            self._pump(self._listing.popleft())
        if self._sync_wanted:
            self._sync_wanted = False
            self.storage.request_sync()
        self._flush_all()

    def _pause_s(self) -> float:
        if self._listing or self._more - self._blocked or any(map(self._has_room, self._blocked)):
            return 0.0  # room for the waiting requests came at once, so no event will announce it
        next_ms = self.machine.next_wake_ms()
        if next_ms is None:
            return HOUSEKEEPING_S
        return min(HOUSEKEEPING_S, max(0, next_ms - self._clock()) / 1000 + 0.0005)

    def _drain(self) -> None:
        """Let the accepted changes be committed and answered, for a bounded time."""
        self._stop_listening()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while (self._waiting or any(c.outbox for c in self._connections)) and time.monotonic() < deadline:
            self._sync_wanted = bool(self._waiting)
            self._turn(0.05)

    def close(self) -> None:
        for connection in tuple(self._connections):
            self._drop(connection, None)
        self._listener.close()
        self.storage.close()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _drain_wakes(self) -> None:
        try:
            while self._wake_out.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _housekeeping(self) -> None:
        now = time.monotonic()
        if now < self._housekeeping_at:
            return
        self._housekeeping_at = now + HOUSEKEEPING_S
        self.check_disk()
        if self._commit_failed:
            self.storage.request_sync()
        self._give_up_overdue(now)
        if not self._accepting and not self._stopping and now >= self._accept_at:
            self._listen()

    def check_disk(self) -> None:
        """Decide how much may be accepted until the next look (B-11, BKE-3, BKE-8, BKE-9). Called on the loop, or before it runs."""
        self._look_again = False
        accepted = self.storage.accepted_bytes
        try:
            look = self.storage.look()
        except BookieIOError as error:
            log.debug("%s", error)
            look = DiskLook(0)
        self._free_bytes = free_bytes(look, self._disk_reserve_bytes)
        room = judge_room(look, self._disk_reserve_bytes)
        self._accept_until = accepted + room.accept_bytes
        self.machine.accept_recovery_adds = room.recovery_adds and not self._commit_failed
        self.machine.fence_unknown = room.fence_unknown
        if room.scarce or self._scarce:
            self._scarce = room.scarce
            self.storage.be_scarce(room.scarce)
        told = standby.is_told(self.storage.directory.parent)
        self._set_read_only(self._reason(look, told) if self._commit_failed or self._foreign or room.read_only or told else None)

    def _reason(self, look: DiskLook, told: bool) -> str:
        if self._commit_failed:
            return f"what it accepted cannot be written, which is tried again every {HOUSEKEEPING_S:g} s"
        if self._foreign:
            return "the metadata store holds another cluster"
        if told:
            return "an operator has made it so (bk bookie read-only)"
        return (
            f"{free_bytes(look, self._disk_reserve_bytes) >> 20} MiB are free on the disk of {self.storage.directory}, and "
            f"{self._disk_reserve_bytes >> 20} MiB are kept for fences and recovery; delete ledgers or make room"
        )

    def _disk_has_room(self) -> bool:
        """Return True if the disk has room; otherwise connections wait until the database has more of what was accepted (BKE-8)."""
        if self.storage.accepted_bytes < self._accept_until:
            return True
        if self._look_again:
            self.check_disk()
        if self.storage.accepted_bytes < self._accept_until:
            return True
        self.storage.request_store()
        return False

    def takes_copies(self) -> bool:
        """Return True if there is room for an entry that is restored (B-11, BKE-8). Called on the loop."""
        return self.machine.accept_recovery_adds and self._disk_has_room()

    def see_foreign(self, foreign: bool) -> None:
        """Accept nothing new while the store holds another cluster, whose ledgers may have the ids of those that are here (BKE-1). Called
        on the loop."""
        if foreign != self._foreign:
            self._foreign = foreign
            self.check_disk()

    def _set_read_only(self, reason: str | None) -> None:
        read_only = reason is not None
        if read_only != self.machine.read_only:
            self.machine.read_only = read_only
            log.warning("bookie is %s", f"read-only: {reason}" if read_only else "writable again")
            self.on_read_only(read_only)

    # --- connections ----------------------------------------------------------------------------------------------

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
                self._tell(f"no connection can be accepted: {error}; trying again every {ACCEPT_PAUSE_S:g} s")
                self._accept_at = time.monotonic() + ACCEPT_PAUSE_S
                return self._stop_listening()
            self._admit(sock, f"{address[0]}:{address[1]}")

    def _admit(self, sock: socket.socket, peer: str) -> None:
        """Admit a connection. If there are too many, an idle one makes room, or the new one is refused (BKE-6)."""
        if len(self._connections) >= self._limits.connections:
            now = time.monotonic()
            spare = to_make_room(((c, self._quiet(c, now)) for c in self._connections), self._limits)
            self._tell(
                f"there are {len(self._connections)} connections; idle ones make room for new ones, which are refused if there are none"
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
            self._tell(f"nobody is admitted: {error.args[0]}")
            sock.close()
            return
        connection = Connection(sock, peer, gate)
        self._connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)
        connection.events = selectors.EVENT_READ

    def _tell(self, text: str) -> None:
        """Write a line to the log, and no more such lines for a while, because its cause may repeat a thousand times a second."""
        now = time.monotonic()
        if now - self._told_at >= TELL_AGAIN_S:
            self._told_at = now
            log.warning("%s", text)

    def _quiet(self, connection: Connection, now: float) -> Quiet:
        return connection.quiet(now, blocked=connection in self._blocked or connection in self._listing)

    def _give_up_overdue(self, now: float) -> None:
        """Close overdue connections (BKE-5)."""
        for connection in tuple(self._connections):
            connection.note_progress(now)
            if (reason := overdue(self._quiet(connection, now), self._limits)) is not None:
                self._drop(connection, reason)

    def _serve(self, connection: Connection, mask: int) -> None:
        if connection.shaking:
            return self._shake(connection)
        if mask & selectors.EVENT_WRITE and connection.open:
            self._flush(connection)
        if mask & selectors.EVENT_READ and connection.open and connection not in self._blocked and connection not in self._listing:
            self._receive(connection)

    def _receive(self, connection: Connection) -> None:
        known = connection.known
        if len(connection.partial) > known:
            buffer = connection.partial
        else:
            buffer = self._receive_buffer
            buffer[:known] = connection.partial
        try:
            with memoryview(buffer) as view:
                received = connection.sock.recv_into(view[known:])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            return self._drop(connection, f"receiving failed: {error}")
        if not received:
            return self._drop(connection, None)
        connection.received_at = time.monotonic()
        self._take(connection, buffer, known + received)

    def _take(self, connection: Connection, buffer: bytearray, size: int) -> None:
        """Turn whole frames into units, none of which points into the buffer; an incomplete frame waits for its rest."""
        try:
            units, consumed = connection.protocol.units(buffer, size)
        except RemoteProtocolError as error:
            return self._drop(connection, f"malformed input{'' if connection.gate is None else ', before it was admitted'}: {error}")
        connection.known = size - consumed
        if consumed or buffer is self._receive_buffer:
            connection.partial = rest_of_frame(buffer, consumed, size)
        else:
            make_room(connection.partial, connection.known)
        connection.inbox.extend(units)
        self._pump(connection)

    def _pump(self, connection: Connection) -> None:
        """Serve requests in the order they came, as long as there is room for answers and changes."""
        while connection.inbox and connection.open:
            if not self._has_room(connection):
                self._blocked.add(connection)
                return self._choose_events(connection)
            unit, context = connection.inbox.popleft()
            tag = Tag(connection, context)
            if connection.gate is not None:
                self._at_gate(connection, connection.gate, tag, unit)
                continue
            if isinstance(unit, RequestedAdds):
                effects = self.machine.handle_adds(tag, unit)
                if effects is None:
                    connection.inbox.extendleft((request, context) for request in reversed(list(unit.requests())))
                    continue
                self._traffic.asked_adds(unit)
            elif isinstance(unit, RequestedReads):
                effects, rest = self.machine.handle_reads(tag, unit, READ_PIECE_BYTES)
                if rest is not None:
                    connection.inbox.appendleft((rest, context))
            elif isinstance(unit, EntryListRequest | EntryListing):
                effects, listing = self.machine.handle_list(tag, unit if isinstance(unit, EntryListing) else EntryListing(unit))
                if isinstance(unit, EntryListRequest):
                    self._traffic.listed()
                if listing is not None:
                    connection.inbox.appendleft((listing, context))
                    self._listing.append(connection)
                    self._blocked.discard(connection)
                    return self._choose_events(connection)
            else:
                may_wait = len(connection.polls) < self._limits.polls_per_connection
                effects = self.machine.handle(tag, unit, self._clock(), may_wait=may_wait)
                self._traffic.asked(unit, effects)
            self._perform(effects)
        self._blocked.discard(connection)
        if not connection.events & selectors.EVENT_READ:
            connection.received_at = time.monotonic()  # bytes that the bookie did not read were not late
            self._choose_events(connection)

    # --- the gate -------------------------------------------------------------------------------------------------

    def _at_gate(self, connection: Connection, gate: Gate, tag: Tag, unit: Unit | EntryListing) -> None:
        """Answer a request of a peer that is not admitted yet."""
        assert not isinstance(unit, EntryListing)
        found = gate.asked(unit, is_v2=tag.context.protocol == "v2")
        if found.answer is not None:
            self._answer(tag, found.answer)
        if found.then is Then.SERVE:
            connection.admit()
        elif found.then is Then.BEGIN_TLS:
            self._begin_tls(connection)
        elif found.then is Then.CLOSE:
            self._drop(connection, "it is not admitted")

    def _begin_tls(self, connection: Connection) -> None:
        """Go on by TLS. Nothing of it may have come already, and the answer to the request must be on its way."""
        assert self._door is not None and isinstance(connection.sock, socket.socket)
        self._flush(connection)
        if connection.inbox or connection.known or connection.outbox:
            return self._drop(connection, "there is more behind its START_TLS")
        try:
            context = self._door.context()
        except InvalidArgumentError as error:
            return self._drop(connection, str(error.args[0]))
        connection.sock = TlsSocket(connection.sock, context, None, lambda: self._more.add(connection), server=True)
        connection.shaking = True

    def _shake(self, connection: Connection) -> None:
        assert connection.gate is not None and isinstance(connection.sock, TlsSocket)
        try:
            done = connection.sock.shake()
        except OSError as error:
            return self._drop(connection, f"TLS failed: {error}")
        connection.received_at = time.monotonic()
        if done:
            connection.shaking = False
            if connection.gate.secured():
                connection.admit()
            self._more.add(connection)  # the first request may have come with the end of the handshake
        self._choose_events(connection)

    def _receive_decrypted(self) -> None:
        for connection in tuple(self._more):
            if connection not in self._blocked and connection not in self._listing:
                self._more.discard(connection)
                self._receive(connection)

    def _has_room(self, connection: Connection) -> bool:
        if connection.unsent_bytes >= UNSENT_BYTES_MAX or connection.waiting >= self._limits.waits_per_connection:
            return False
        if connection.unsent_bytes and self._unsent_bytes >= UNSENT_ALL_BYTES_MAX:
            return False
        if connection.waiting and len(self._waiting) >= self._limits.waits:
            return False
        if self._commit_failed or (self.machine.read_only and not self.machine.accept_recovery_adds):
            return True  # there is nothing to wait for, because adds are refused
        return self.storage.uncommitted_bytes < UNCOMMITTED_BYTES_MAX and self._disk_has_room()

    def _drop(self, connection: Connection, reason: str | None) -> None:
        """Close one connection; a ``reason`` is for the log."""
        if not connection.open:
            return
        if reason is not None:
            log.warning("connection from %s closed: %s", connection.peer, reason)
        connection.open = False
        for tag in connection.polls:
            self.machine.cancel(tag)
        connection.polls.clear()
        connection.inbox.clear()
        connection.outbox.clear()
        self._unsent_bytes -= connection.unsent_bytes
        for group in (self._connections, self._blocked, self._dirty, self._more):
            group.discard(connection)
        if connection in self._listing:
            self._listing.remove(connection)
        if connection.events:
            self._selector.unregister(connection.sock)
            connection.events = 0
        connection.sock.close()

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

    # --- effects --------------------------------------------------------------------------------------------------

    def change(self, effects: Iterable[Effect]) -> bool:
        """Carry out effects that no connection asked for; return True if there were any. Called on the loop, or before it runs."""
        listed = list(effects)
        self._perform(listed)
        self._sync_wanted = self._sync_wanted or bool(listed)
        return bool(listed)

    def now_ms(self) -> int:
        """Return Unix milliseconds that never go backwards."""
        return self._clock()

    def _perform(self, effects: Iterable[Effect]) -> None:
        """Carry out effects in order. A position above the durable one makes an answer wait for the commit."""
        for effect in effects:
            match effect:
                case Persist() | PersistMany():
                    self.storage.apply(effect)
                case ReplyAfterSync(tag=Tag() as tag, response=response):
                    if self.storage.position <= self.storage.durable_position:
                        self._answer(tag, response)
                    else:
                        self._add_unsent(tag.connection, _content_bytes(response))
                        tag.connection.waiting += 1
                        self._waiting.append((self.storage.position, tag, response))
                        self._sync_wanted = True
                case Reply(tag=Tag() as tag, response=response):
                    self._answer(tag, response)
                case WakeLater(tag=Tag() as tag):
                    tag.connection.polls.add(tag)

    def _finish_commits(self) -> None:
        while self._completions:
            position, error = self._completions.popleft()
            self._look_again = True
            self._judge_disk(error or self.storage.failure)
            while self._waiting and self._waiting[0][0] <= position:
                _, tag, response = self._waiting.popleft()
                self._add_unsent(tag.connection, -_content_bytes(response))
                tag.connection.waiting -= 1
                self._answer(tag, response if error is None else io_error(response))

    def _judge_disk(self, failure: BaseException | None) -> None:
        if failure is not None and not self._commit_failed:
            log.error("%s", failure)
        if self._commit_failed != (failure is not None):
            self._commit_failed = failure is not None
            self._housekeeping_at = 0.0

    def _answer(self, tag: Tag, response: Answer) -> None:
        connection = tag.connection
        connection.polls.discard(tag)
        self._traffic.answered(response)
        if not connection.open:
            return
        try:
            parts = connection.protocol.encode_parts(response, tag.context)
        except InvalidArgumentError as error:
            return self._drop(connection, f"no way to say so on this connection: {error}")
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


def _content_bytes(response: Answer) -> int:
    if isinstance(response, ReadResponse):
        return len(response.body or b"")
    return len(response.bodies) if isinstance(response, BatchReadResponse) else 0
