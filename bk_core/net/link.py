"""One TCP connection to one bookie: frames out, frames in, requests matched with answers, timeouts, reconnects with backoff.

A link speaks v2 or v3 for its whole life (wire-protocol.md 2.2). Adds are not tracked one by one: the writer machine knows what it
waits for; their answers are routed by ledger id. Everything else is matched by number and operation (9), v2 single reads by (ledger, entry)
in order (5.4). An answer that nothing waits for is dropped.
"""

from __future__ import annotations

import logging
import selectors
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Protocol

from bk_core import kernels
from bk_core.errors import RemoteProtocolError
from bk_core.net.reactor import Reactor
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.run import AddRun
from bk_core.protocol.wire import connection
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import AddRequest, AddResponse, ReadRequest, Request, Response, Status

log = logging.getLogger("bk_core.net")

RECEIVE_BYTES = 1 << 20
SEND_BUFFERS_MAX = 256
BACKOFF_FIRST_NS = 50_000_000
BACKOFF_LAST_NS = 2_000_000_000
CHECK_NS = 100_000_000
CONNECT_TIMEOUT_NS = 5_000_000_000
# A v3 or batch answer to an entry at the v2 limit is a little longer than the limit (wire-protocol.md 2.1).
RECEIVE_SLACK_BYTES = 4096

# SM-3: a number alone does not tell whose answer it is; the operation must be the request's too (wire-protocol.md 9).
RESPONSES: Mapping[type[Request], type[Response]] = MappingProxyType(
    {
        m.AddRequest: m.AddResponse,
        m.ReadRequest: m.ReadResponse,
        m.BatchReadRequest: m.BatchReadResponse,
        m.AuthRequest: m.AuthResponse,
        m.WriteLacRequest: m.WriteLacResponse,
        m.ReadLacRequest: m.ReadLacResponse,
        m.ForceLedgerRequest: m.ForceLedgerResponse,
        m.BookieInfoRequest: m.BookieInfoResponse,
        m.EntryListRequest: m.EntryListResponse,
        m.StartTlsRequest: m.StartTlsResponse,
        m.UnservedRequest: m.UnservedResponse,
    }
)

Answer = Callable[[Status, Response | None], None]
Resolve = Callable[[BookieId, Callable[[tuple[str, int] | None, str], None]], None]


class AddListener(Protocol):
    """Who wants the add answers of one ledger on this link."""

    def on_add(self, bookie: BookieId, first_entry_id: int, count: int, status: Status) -> None: ...
    def on_lost(self, bookie: BookieId, status: Status) -> None: ...


@dataclass(slots=True, eq=False)
class _Waiting:
    answer: Answer
    response: type[Response]
    deadline_ns: int
    key: tuple[int, int] | None  # v2 single reads


class BookieLink:
    """Reactor thread only. ``protocol`` never changes."""

    def __init__(self, reactor: Reactor, bookie: BookieId, protocol: connection.Protocol, resolve: Resolve, frame_bytes_max: int) -> None:
        self.bookie = bookie
        self.protocol = protocol
        self.failed_recently = False
        self._reactor = reactor
        self._resolve = resolve
        self._frame_bytes_max = frame_bytes_max + RECEIVE_SLACK_BYTES
        self._socket: socket.socket | None = None
        self._connecting = False
        self._connected = False
        self._closed = False
        self._output: deque[memoryview] = deque()
        self._input = bytearray()
        self._waiting: dict[int, _Waiting] = {}
        self._by_key: dict[tuple[int, int], deque[int]] = {}
        self._adds: dict[int, tuple[int, int]] = {}  # v3 only: txn -> (ledger, entry), for answers without an inner message
        self._listeners: dict[int, AddListener] = {}
        self._next_id = 0
        self._backoff_ns = BACKOFF_FIRST_NS
        self._blocked_until_ns = 0
        self._connect_deadline_ns = 0
        self._writing = False
        self._flush_posted = False
        self._check = reactor.call_later(CHECK_NS, self._check_deadlines)

    # --- requests --------------------------------------------------------------------------------------------------

    def listen(self, ledger_id: int, listener: AddListener) -> None:
        self._listeners[ledger_id] = listener

    def unlisten(self, ledger_id: int, listener: AddListener) -> None:
        if self._listeners.get(ledger_id) is listener:
            del self._listeners[ledger_id]

    def send_adds(self, run: AddRun, position: int, start: int, ensemble_size: int, write_quorum_size: int) -> None:
        if not self._ready():
            self._refuse_adds(run.ledger_id)
            return
        if self.protocol == "v2":
            self._send(run.frames_for(position, start, ensemble_size, write_quorum_size))
            return
        buffers: list[memoryview] = []
        for index in run.indices(position, start, ensemble_size, write_quorum_size):
            self._next_id += 1
            entry_id = run.first_entry_id + index
            self._adds[self._next_id] = (run.ledger_id, entry_id)
            key = bytes(run.frames[run.offsets[index] + 8 : run.offsets[index] + 28])
            body, flag = bytes(run.body(index)), run.recovery
            request = AddRequest(self._next_id, run.ledger_id, entry_id, key, body, flag, flag, run.deferred_sync)
            buffers.append(memoryview(connection.encode_request(request, "v3")))
        self._send(buffers)

    def request(self, message: Request, timeout_ns: int, answer: Answer) -> None:
        """Send one request; ``answer`` is called exactly once."""
        if not self._ready():
            self._reactor.post(lambda: answer(Status.UNAVAILABLE, None))
            return
        self._next_id += 1
        number = self._next_id
        key = (message.ledger_id, message.entry_id) if self.protocol == "v2" and isinstance(message, ReadRequest) else None
        self._waiting[number] = _Waiting(answer, RESPONSES[type(message)], self._reactor.now_ns() + timeout_ns, key)
        if key is not None:
            self._by_key.setdefault(key, deque()).append(number)
        self._send([memoryview(connection.encode_request(replace(message, request_id=number), self.protocol))])

    def close(self) -> None:
        self._closed = True
        self._check.cancel()
        self._drop(Status.UNAVAILABLE, "client closed", backoff=False)

    # --- connection ------------------------------------------------------------------------------------------------

    def _ready(self) -> bool:
        """True if bytes may be queued: connected, or a connect is on its way."""
        if self._closed:
            return False
        if self._connected or self._connecting:
            return True
        if self._reactor.now_ns() < self._blocked_until_ns:
            return False
        self._connecting = True
        self._connect_deadline_ns = self._reactor.now_ns() + CONNECT_TIMEOUT_NS
        self._resolve(self.bookie, self._resolved)
        return True

    def _resolved(self, address: tuple[str, int] | None, problem: str) -> None:
        if self._closed or not self._connecting or self._socket is not None:
            return
        if address is None:
            self._drop(Status.UNAVAILABLE, problem)
            return
        try:
            family, kind, number, _, target = socket.getaddrinfo(address[0], address[1], type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(family, kind, number)
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.connect_ex(target)
            self._reactor.register(self._socket, selectors.EVENT_READ | selectors.EVENT_WRITE, self)
            self._writing = True
        except OSError as error:
            self._drop(Status.UNAVAILABLE, str(error))

    def on_io(self, readable: bool, writable: bool) -> None:
        if self._socket is None:
            return
        if self._connecting:
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._drop(Status.UNAVAILABLE, f"connect failed (errno {code})")
                return
            self._connecting, self._connected = False, True
        if writable:
            self._flush()
        if readable and self._socket is not None:
            self._receive()

    def _receive(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(Status.UNAVAILABLE, str(error))
            return
        if not data:
            self._drop(Status.UNAVAILABLE, "closed by the bookie")
            return
        self._backoff_ns = BACKOFF_FIRST_NS
        self.failed_recently = False
        self._input += data
        try:
            self._parse()
        except RemoteProtocolError as error:
            log.error("bookie %s broke the protocol: %s; closing the connection", self.bookie, error)
            self._drop(Status.PROTOCOL_ERROR, str(error))

    def _parse(self) -> None:
        bounds, consumed = kernels.scan_frames(self._input, self._frame_bytes_max)
        if not consumed:
            return
        data = bytes(memoryview(self._input)[:consumed])
        del self._input[:consumed]
        if self.protocol == "v2":
            for item in connection.decode_add_responses(data, bounds):
                if isinstance(item, connection.AddAcks):
                    self._add_answer(item.ledger_id, item.first_entry_id, item.count, item.status)
                else:
                    self._answer(item)
            return
        edges = memoryview(bounds).cast("q")
        for index in range(0, len(edges), 2):
            self._answer(connection.decode_response(data[edges[index] : edges[index + 1]], "v3"))

    def _add_answer(self, ledger_id: int, first: int, count: int, status: Status) -> None:
        listener = self._listeners.get(ledger_id)
        if listener is not None:
            self._tell(partial(listener.on_add, self.bookie, first, count, status))

    def _answer(self, response: Response) -> None:
        if self.protocol == "v3" and isinstance(response, AddResponse) and response.request_id in self._adds:
            ledger_id, entry_id = self._adds.pop(response.request_id)
            self._add_answer(ledger_id, entry_id, 1, response.status)
            return
        number = response.request_id
        if self.protocol == "v2" and number == 0:
            queue = self._by_key.get((getattr(response, "ledger_id", -1), getattr(response, "entry_id", -1)))
            if not queue:
                return
            number = queue[0]
        found = self._waiting.get(number)
        if found is None or not isinstance(response, found.response):
            return
        self._forget(number)
        self._tell(partial(found.answer, response.status, response))

    def _forget(self, number: int) -> _Waiting | None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None and waiting.key is not None:
            queue = self._by_key[waiting.key]
            queue.remove(number)
            if not queue:
                del self._by_key[waiting.key]
        return waiting

    # --- output ----------------------------------------------------------------------------------------------------

    def _send(self, buffers: Sequence[memoryview]) -> None:
        """What is sent in one turn of the reactor goes out in one call: a system call costs more than a small message."""
        self._output.extend(b for b in buffers if len(b))
        if not self._connected or self._writing or not self._output:
            return  # a connection that is made, or takes bytes again, flushes
        if len(self._output) >= SEND_BUFFERS_MAX:
            self._flush()
        elif not self._flush_posted:
            self._flush_posted = True
            self._reactor.post(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flush_posted = False
        if self._connected:
            self._flush()

    def _flush(self) -> None:
        assert self._socket is not None
        try:
            while self._output:
                batch = [self._output[i] for i in range(min(len(self._output), SEND_BUFFERS_MAX))]
                sent = self._socket.sendmsg(batch)
                while sent:
                    head = self._output[0]
                    if sent < len(head):
                        self._output[0] = head[sent:]
                        break
                    sent -= len(head)
                    self._output.popleft()
        except BlockingIOError:
            pass
        except OSError as error:
            self._drop(Status.UNAVAILABLE, str(error))
            return
        self._want_write(bool(self._output))

    def _want_write(self, wanted: bool) -> None:
        if self._socket is not None and wanted != self._writing:
            self._writing = wanted
            self._reactor.modify(self._socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0), self)

    # --- failures --------------------------------------------------------------------------------------------------

    def _drop(self, status: Status, why: str, *, backoff: bool = True) -> None:
        """The connection is gone: answer everything outstanding, tell the writers, wait before the next attempt."""
        if self._socket is not None:
            try:
                self._reactor.unregister(self._socket)
            except (KeyError, ValueError, OSError):
                pass
            self._socket.close()
        self._socket = None
        self._connecting = self._connected = self._writing = False
        self._output.clear()
        self._input.clear()
        self._adds.clear()
        waiting, self._waiting, self._by_key = self._waiting, {}, {}
        if backoff:
            self.failed_recently = True
            self._blocked_until_ns = self._reactor.now_ns() + self._backoff_ns
            self._backoff_ns = min(self._backoff_ns * 2, BACKOFF_LAST_NS)
            log.info("bookie %s: connection lost (%s)", self.bookie, why)
        for one in waiting.values():
            self._tell(partial(one.answer, status, None))
        for listener in list(self._listeners.values()):
            self._tell(partial(listener.on_lost, self.bookie, status))

    def _tell(self, call: Callable[[], None]) -> None:
        """What goes wrong with one ledger is no concern of the others on this connection."""
        try:
            call()
        except Exception:
            log.exception("unexpected error about an answer of bookie %s", self.bookie)

    def _refuse_adds(self, ledger_id: int) -> None:
        def tell() -> None:
            listener = self._listeners.get(ledger_id)
            if listener is not None:
                listener.on_lost(self.bookie, Status.UNAVAILABLE)

        self._reactor.post(tell)

    def _check_deadlines(self) -> None:
        now = self._reactor.now_ns()
        if self._connecting and now >= self._connect_deadline_ns:
            self._drop(Status.UNAVAILABLE, "connect timed out")
        late = [n for n, w in self._waiting.items() if now >= w.deadline_ns]
        for number in late:
            waiting = self._forget(number)
            if waiting is not None:
                self._tell(partial(waiting.answer, Status.TIMEOUT, None))
        if not self._closed:
            self._check = self._reactor.call_later(CHECK_NS, self._check_deadlines)
