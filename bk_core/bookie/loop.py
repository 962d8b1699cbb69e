"""One selector loop around the bookie's machine: all connections, all changes of the storage, all answers.

The parts of the loop are classes that inherit from one another: the disk (``disk.py``), the peers (``peers.py``), and here what comes on
connections and what becomes of it.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from bk_core.bookie.connection import RECEIVE_BYTES, Connection, Tag, make_room, rest_of_frame
from bk_core.bookie.disk import DISK_RESERVE_BYTES, HOUSEKEEPING_S
from bk_core.bookie.door import Door
from bk_core.bookie.peers import Peers
from bk_core.errors import RemoteProtocolError
from bk_core.metrics.bookie import ServerCounts
from bk_core.protocol.bookie import Effect, Persist, PersistMany, Reply, ReplyAfterSync, WakeLater, io_error
from bk_core.protocol.bookie.admission import ConnectionLimits
from bk_core.protocol.bookie.gate import Gate, GateAnswer, Then
from bk_core.protocol.bookie.listing import EntryListing
from bk_core.protocol.bookie.runs import AddsAnswer, RequestedAdds, RequestedReads
from bk_core.protocol.bookie.stream import Answer, Unit
from bk_core.protocol.wire.messages import AuthRequest, BatchReadResponse, EntryListRequest, ReadResponse, Response

READ_PIECE_BYTES = 1 << 20  # of a run of reads at a time
UNSENT_BYTES_MAX = 8 << 20  # per connection; above this, its requests wait until the peer reads
UNSENT_ALL_BYTES_MAX = 256 << 20  # of all connections; above this, the requests of each that has not read everything wait
UNCOMMITTED_BYTES_MAX = 96 << 20  # above this, all requests wait for the database
STOP_TIMEOUT_S = 5.0
EARLY_S = 0.5  # the time that a client has to begin TLS after a token that it sent in clear

_T = TypeVar("_T")


class _Clock:
    """A clock of Unix milliseconds that never goes backwards."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def __call__(self) -> int:
        return (time.monotonic_ns() + self._offset_ns) // 1_000_000


class BookieServer(Peers):
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
        self._completions: deque[tuple[int, BaseException | None]] = deque()
        self._commands: deque[Callable[[], None]] = deque()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        super().__init__(listener, directory, disk_reserve_bytes, limits or ConnectionLimits(), counts or ServerCounts(), door)
        self._clock = _Clock()
        self._receive_buffer = bytearray(RECEIVE_BYTES)
        self._waiting: deque[tuple[int, Tag, Response | AddsAnswer]] = deque()  # answers that wait for a commit, oldest first
        self._sync_wanted = False
        self._stopping = False
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
        self._refuse_early(now)
        self._give_up_overdue(now)
        if not self._accepting and not self._stopping and now >= self._accept_at:
            self._listen()

    # --- connections ----------------------------------------------------------------------------------------------

    def _serve(self, connection: Connection, mask: int) -> None:
        if connection.shaking:
            self._shake(connection)
            return None if connection.shaking else self._pump(connection)
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
            return self._drop(
                connection, f"malformed input{'' if connection.gate is None else ', before it was admitted'}: {error}", "malformed"
            )
        connection.known = size - consumed
        if consumed or buffer is self._receive_buffer:
            connection.partial = rest_of_frame(buffer, consumed, size)
        else:
            make_room(connection.partial, connection.known)
        connection.inbox.extend(units)
        self._pump(connection)

    def _pump(self, connection: Connection) -> None:
        """Serve requests in the order they came, as long as there is room for answers and changes."""
        while connection.inbox and connection.open and not connection.shaking:
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
        self._after_early(connection, gate, unit)
        if not connection.open:
            return
        found = gate.asked(unit, is_v2=tag.context.protocol == "v2")
        if found.then is Then.WAIT and isinstance(unit, AuthRequest):
            connection.early = unit, tag.context, time.monotonic()
            self._early.add(connection)
            return
        self._follow(connection, gate, tag, found)

    def _after_early(self, connection: Connection, gate: Gate, behind: Unit | None) -> None:
        """Go on with a token that came in clear, now that something is ``behind`` it, or that nothing has come for long."""
        self._early.discard(connection)
        early, connection.early = connection.early, None
        if early is None or not connection.open:
            return
        token, context, _ = early
        found = gate.early(token, behind, is_v2=context.protocol == "v2")
        if found.then is Then.WAIT:
            connection.inbox.appendleft((token, context))  # it is served behind the handshake
        else:
            self._follow(connection, gate, Tag(connection, context), found)

    def _refuse_early(self, now: float) -> None:
        for connection in tuple(self._early):
            if connection.gate is None or connection.early is None or not connection.open:
                self._early.discard(connection)
            elif now - connection.early[2] >= EARLY_S:
                self._after_early(connection, connection.gate, None)

    def _follow(self, connection: Connection, gate: Gate, tag: Tag, found: GateAnswer) -> None:
        """Do what the gate says."""
        if found.answer is not None:
            self._answer(tag, found.answer)
        if found.refused is not None:
            self._turned_away(connection, gate.proof, found.refused)
        if found.then is Then.SERVE:
            self._let_in(connection)
        elif found.then is Then.BEGIN_TLS:
            self._begin_tls(connection)
        elif found.then is Then.CLOSE:
            if connection.open:
                self._flush(connection)  # which says why
            if found.refused is None:
                return self._drop(connection, "it asks for what only those get who are admitted", "unauthorized")
            self._drop(connection, None)

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


def _content_bytes(response: Answer) -> int:
    if isinstance(response, ReadResponse):
        return len(response.body or b"")
    return len(response.bodies) if isinstance(response, BatchReadResponse) else 0
