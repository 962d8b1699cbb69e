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
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from bk_core import kernels
from bk_core.errors import RemoteProtocolError
from bk_core.net.outstanding import RESPONSES, Answer, Outstanding, Waiting
from bk_core.net.reactor import Reactor
from bk_core.net.receiving import WHOLE_BYTES, ReceiveBuffer
from bk_core.net.sent_adds import SentAddRuns, SentAdds
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.run import AddRun
from bk_core.protocol.wire import connection
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.batch_parts import BatchParts
from bk_core.protocol.wire.messages import AddResponse, ReadRequest, ReadResponse, ReadRunRequest, Request, Response, Status
from bk_core.protocol.wire.read_run import ReadRun

log = logging.getLogger("bk_core.net")

SEND_BUFFERS_MAX = 256
BACKOFF_FIRST_NS = 50_000_000
BACKOFF_LAST_NS = 2_000_000_000
CHECK_NS = 100_000_000
CONNECT_TIMEOUT_NS = 5_000_000_000
# A v3 or batch answer to an entry at the v2 limit is a little longer than the limit (wire-protocol.md 2.1).
RECEIVE_SLACK_BYTES = 4096
TURN_BYTES = 4 << 20  # received from one bookie before others have their turn

Resolve = Callable[[BookieId, Callable[[tuple[str, int] | None, str], None]], None]


class AddListener(Protocol):
    """Who wants the add answers of one ledger on this link."""

    def on_add(self, bookie: BookieId, first_entry_id: int, count: int, status: Status, entries: int | None) -> None: ...
    def on_lost(self, bookie: BookieId, status: Status) -> None: ...


class BookieLink:
    """Reactor thread only. ``protocol`` never changes."""

    def __init__(
        self,
        reactor: Reactor,
        bookie: BookieId,
        protocol: connection.Protocol,
        resolve: Resolve,
        frame_bytes_max: int,
        broke: Callable[[], None] = lambda: None,
    ) -> None:
        self.bookie = bookie
        self.protocol = protocol
        self.failed_recently = False
        self._reactor = reactor
        self._resolve = resolve
        self._broke = broke  # told when the connection is lost or cannot be made, before anybody who waits on it
        self._frame_bytes_max = frame_bytes_max + RECEIVE_SLACK_BYTES
        self._socket: socket.socket | None = None
        self._connecting = False
        self._connected = False
        self._closed = False
        self._output: deque[memoryview] = deque()
        self._input = ReceiveBuffer()
        self._arriving: tuple[BatchParts, m.BatchReadResponse] | None = None  # its frame ends later
        self._outstanding = Outstanding()
        self._adds = SentAddRuns()  # v3 only
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
        count = run.count_for(position, start, ensemble_size, write_quorum_size)
        if not count:
            return
        numbers = range(self._next_id + 1, self._next_id + 1 + count)
        self._next_id += count
        first = run.first_entry_id + start
        self._adds.add(SentAdds(numbers, run.ledger_id, first, position, ensemble_size, write_quorum_size, count))
        self._send([run.frames_v3_for(position, start, ensemble_size, write_quorum_size, numbers.start)])

    def request(self, message: Request, timeout_ns: int, answer: Answer) -> None:
        """Send one request; ``answer`` is called exactly once. What a batch read or a run of reads brings is good until it returns."""
        if not self._ready():
            self._reactor.post(lambda: answer(Status.UNAVAILABLE, None))
            return
        self._next_id += 1
        waiting = Waiting(self._next_id, answer, RESPONSES[type(message)], timeout_ns, self._reactor.now_ns() + timeout_ns)
        if self.protocol == "v2" and isinstance(message, m.BatchReadRequest):
            waiting.batch = message
            self._outstanding.add(waiting)
            self._send([memoryview(connection.encode_batch_read(message, self._next_id))])
            return
        message = replace(message, request_id=self._next_id)
        if isinstance(message, ReadRunRequest):
            self._send([self._run_frames(message, waiting)])
            return
        if self.protocol == "v2" and isinstance(message, ReadRequest):
            waiting.key = message.ledger_id, message.entry_id
        self._outstanding.add(waiting)
        self._send([memoryview(connection.encode_request(message, self.protocol))])

    def _run_frames(self, message: ReadRunRequest, waiting: Waiting) -> memoryview:
        waiting.run, waiting.ledger_id = ReadRun(message), message.ledger_id
        if self.protocol == "v3":
            waiting.numbers = range(self._next_id + 1, self._next_id + 1 + message.count)
            self._next_id += message.count
        self._outstanding.add_run(waiting)
        return memoryview(connection.encode_read_run(message, waiting.numbers))

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
        self._resolve(self.bookie, self._resolved)
        return True

    def _resolved(self, address: tuple[str, int] | None, problem: str) -> None:
        if self._closed or not self._connecting or self._socket is not None:
            return
        if address is None:
            self._drop(Status.UNAVAILABLE, problem)
            return
        self._connect_deadline_ns = self._reactor.now_ns() + CONNECT_TIMEOUT_NS  # of the connection alone: who looks up has limits too
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
        """Until there is no more at once, but not for long: others wait too."""
        source, received, count, total = self._socket, self._input, 1, 0
        assert source is not None
        try:
            while count and self._socket is source and total < TURN_BYTES:
                if received.rest and self._arriving is not None:
                    count = received.receive_parts(source, self._arriving[0].take, TURN_BYTES - total)
                else:
                    count = received.receive(source)
                if count:
                    self._backoff_ns = BACKOFF_FIRST_NS
                    self.failed_recently = False
                    self._parse()
                total += count
                if not received.full:
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            self._drop(Status.UNAVAILABLE, str(error))
            return
        except RemoteProtocolError as error:
            log.error("bookie %s broke the protocol: %s; closing the connection", self.bookie, error)
            self._drop(Status.PROTOCOL_ERROR, str(error))
            return
        if not count:
            self._drop(Status.UNAVAILABLE, "closed by the bookie")
        elif self._socket is source:
            received.wait_for_more(source)

    def _parse(self) -> None:
        received = self._input
        if received.rest:
            return  # of a frame that is taken in parts
        if self._arriving is not None:
            response, self._arriving = self._arriving[1], None
            self._answer(response)
        view, start, stop = received.view, received.start, received.stop
        if start == stop:
            return
        scan, handle = (connection.scan_v2, self._item) if self.protocol == "v2" else (connection.scan_v3, self._item_v3)
        items, consumed, wanted = scan(view, start, stop, self._frame_bytes_max)
        for item in items:
            handle(view, item)
        # It may have been dropped meanwhile, and a new one begins from nothing.
        if self._connected and not (wanted > WHOLE_BYTES and self._begin_batch(consumed, wanted)):
            received.use(consumed, wanted)

    def _begin_batch(self, at: int, size: int) -> bool:
        """Whether the frame of ``size`` bytes that begins at ``at`` is, or may turn out to be, one that is taken in parts."""
        received, head_bytes = self._input, connection.BATCH_HEAD_BYTES
        if self.protocol != "v2":
            return False
        if received.stop - at < head_bytes:
            received.use(at, head_bytes)
            return True
        self._arriving = self._outstanding.arriving(received.view, at, size)
        if self._arriving is not None:
            received.begin(at + head_bytes, size - head_bytes, self._arriving[0].take)
        return self._arriving is not None

    def _item(self, view: memoryview, item: connection.Item) -> None:
        kind, ledger_id, entry_id, count, step, begin, end = item
        if kind == connection.ADDS:
            self._add_answer(ledger_id, entry_id, count, Status.OK)
        elif kind == connection.READS:
            self._reads(view[begin:end], ledger_id, entry_id, count, step)
        elif kind == connection.SPARSE_ADDS:
            entries = int.from_bytes(kernels.entry_bits(view[begin:end], entry_id, count), "little")
            self._add_answer(ledger_id, entry_id, count, Status.OK, entries)
        elif kind == connection.BATCH:
            self._answer(m.BatchReadResponse(count, Status.OK, ledger_id, entry_id, view[begin:end]))
        else:
            self._answer(connection.decode_response(bytes(view[begin:end]), "v2"))

    def _item_v3(self, view: memoryview, item: connection.Item) -> None:
        kind, ledger_id, entry_id, count, number, begin, end = item
        if kind == connection.ADDS:
            self._added_v3(ledger_id, entry_id, count, number)
        elif kind == connection.READS and self._read_v3(view[begin:end], entry_id, count, number):
            pass
        else:
            start = begin if kind == connection.READS else begin - connection.LENGTH_BYTES
            marks = memoryview(kernels.scan_frames(view[start:end], self._frame_bytes_max)[0]).cast("q")
            for i in range(0, len(marks), 2):
                self._answer(connection.decode_response(bytes(view[start + marks[i] : start + marks[i + 1]]), "v3"))

    def _added_v3(self, ledger_id: int, entry_id: int, count: int, number: int) -> None:
        """``count`` good answers, numbers and entries ascending by one. Whose they are the numbers say, not the entries (SM-3)."""
        while count:
            sent, taken = self._adds.find(number), 1
            if sent is None:
                self._answer(AddResponse(number, Status.OK, ledger_id, entry_id))
            else:
                most = min(count, sent.numbers.stop - number)
                if (sent.ledger_id, sent.entry_id(number), sent.entry_id(number + most - 1)) == (ledger_id, entry_id, entry_id + most - 1):
                    taken = most
                self._adds.answered(sent, taken)
                self._add_answer(sent.ledger_id, sent.entry_id(number), taken, Status.OK)
            entry_id, count, number = entry_id + taken, count - taken, number + taken

    def _read_v3(self, frames: memoryview, entry_id: int, count: int, number: int) -> bool:
        """Whether these good answers are all of one run and in its order; if so it has taken them."""
        waiting = self._outstanding.run_reads(number, count)
        if waiting is None or waiting.run is None:
            return False
        made, step, max_lac = kernels.v3_read_frames(frames, 0, len(frames))
        if waiting.run.in_order(entry_id, count, step) != count:
            return False
        self._outstanding.forget_reads(number, count)
        waiting.run.take_frames(count, made, max_lac)
        self._run_moved(waiting)
        return True

    def _add_answer(self, ledger_id: int, first: int, count: int, status: Status, entries: int | None = None) -> None:
        listener = self._listeners.get(ledger_id)
        if listener is not None:
            self._tell(partial(listener.on_add, self.bookie, first, count, status, entries))

    def _answer(self, response: Response) -> None:
        if isinstance(response, AddResponse) and self._add_response(response):
            return
        if self.protocol == "v2" and isinstance(response, ReadResponse):
            self._read_response(response)
        elif (waiting := self._outstanding.run_read(response)) is not None:
            self._run_answer(waiting, response)
        elif (waiting := self._outstanding.numbered(response)) is not None:
            self._done(waiting, response.status, response)

    def _add_response(self, response: AddResponse) -> bool:
        """Whether it is about an add of a run, which nobody waits for by number."""
        if self.protocol == "v2":
            self._add_answer(response.ledger_id, response.entry_id, 1, response.status)
            return True
        sent = self._adds.find(response.request_id)
        if sent is not None:
            self._adds.answered(sent, 1)
            self._add_answer(sent.ledger_id, sent.entry_id(response.request_id), 1, response.status)
        return sent is not None

    def _reads(self, frames: memoryview, ledger_id: int, entry_id: int, count: int, step: int) -> None:
        """v2: ``count`` good answers, of every ``step``-th entry. As many at once as continue a run; whatever else one by one."""
        while count:
            waiting = self._outstanding.run_of(ledger_id, entry_id)
            taken = 0 if waiting is None or waiting.run is None else waiting.run.in_order(entry_id, count, step)
            end = len(frames) if taken == count else kernels.skip_frames(frames, 0, len(frames), taken or 1)
            if taken and waiting is not None and waiting.run is not None:
                waiting.run.take_frames(taken, frames[:end])
                self._run_moved(waiting)
            else:
                response = connection.decode_response(bytes(frames[connection.LENGTH_BYTES : end]), "v2")
                self._answer(response)
            frames, entry_id, count = frames[end:], entry_id + (taken or 1) * step, count - (taken or 1)

    def _read_response(self, response: ReadResponse) -> None:
        """v2: a single read, or one of a run that is out of turn or refused."""
        single = self._outstanding.single(response.ledger_id, response.entry_id)
        if single is not None:
            self._done(single, response.status, response)
        elif (waiting := self._outstanding.run_of(response.ledger_id, response.entry_id)) is not None:
            self._run_answer(waiting, response)

    def _run_answer(self, waiting: Waiting, response: Response) -> None:
        run = waiting.run
        if run is not None and isinstance(response, ReadResponse) and run.awaits(response.entry_id):
            run.take(response)
            self._run_moved(waiting)

    def _run_moved(self, waiting: Waiting) -> None:
        """The bookie is at work: its time starts again."""
        waiting.deadline_ns = self._reactor.now_ns() + waiting.timeout_ns
        if waiting.run is not None and waiting.run.done:
            self._done(waiting, *waiting.outcome(Status.OK))

    def _done(self, waiting: Waiting, status: Status, response: Response | None) -> None:
        self._outstanding.forget(waiting)
        self._tell(partial(waiting.answer, status, response))

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
            self._reactor.at_turn_end(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flush_posted = False
        if self._connected:
            self._flush()

    def _flush(self) -> None:
        assert self._socket is not None
        try:
            while self._output:
                if len(self._output) == 1:
                    sent = self._socket.send(self._output[0])
                else:
                    sent = self._socket.sendmsg([self._output[i] for i in range(min(len(self._output), SEND_BUFFERS_MAX))])
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
        self._arriving = None
        self._adds.clear()
        waiting = self._outstanding.clear()
        if backoff:
            self.failed_recently = True
            self._blocked_until_ns = self._reactor.now_ns() + self._backoff_ns
            self._backoff_ns = min(self._backoff_ns * 2, BACKOFF_LAST_NS)
            log.info("bookie %s: connection lost (%s)", self.bookie, why)
            self._broke()
        for one in waiting:
            self._tell(partial(one.answer, *one.outcome(status)))
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
        if self._connecting and self._socket is not None and now >= self._connect_deadline_ns:
            self._drop(Status.UNAVAILABLE, "connect timed out")
        if self._connected and self._input.awaits_much:
            self._receive()  # kernels before 5.8 may forget to wake for a low-water mark
        for waiting in self._outstanding.late(now):
            self._done(waiting, *waiting.outcome(Status.TIMEOUT))
        if not self._closed:
            self._check = self._reactor.call_later(CHECK_NS, self._check_deadlines)
