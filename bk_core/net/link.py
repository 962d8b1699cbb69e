"""One TCP connection to one bookie: frames out, frames in, requests matched with answers, timeouts, reconnects with backoff.

A link speaks v2 or v3 for its whole life (wire-protocol.md 2.2). Adds are not tracked one by one: the writer machine knows what it
waits for; their answers are routed by ledger id. Everything else is matched by number and operation (9), v2 single reads by (ledger, entry)
in order (5.4). An answer that nothing waits for is dropped.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from bk_core import kernels
from bk_core.errors import RemoteProtocolError
from bk_core.net.asking import Asking, is_repeatable
from bk_core.net.local_resources import name_of, shortage_now, shortage_text
from bk_core.net.names import Address, Names
from bk_core.net.outstanding import Answer, Waiting
from bk_core.net.reactor import Reactor, Timer
from bk_core.net.receiving import WHOLE_BYTES, ReceiveBuffer
from bk_core.net.sent_adds import SentAddRuns, SentAdds
from bk_core.net.sent_bytes import SentBytes, keep_alive
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.run import AddRun
from bk_core.protocol.link import CUTS_MAX, Attempts, LinkHealth, Patience
from bk_core.protocol.session.shortage import AGAIN_NS, EVERYWHERE
from bk_core.protocol.wire import connection
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.batch_parts import BatchParts
from bk_core.protocol.wire.messages import AddResponse, ReadResponse, ReadRunRequest, Request, Response, Status

log = logging.getLogger("bk_core.net")

SEND_BUFFERS_MAX = 256
BACKOFF_FIRST_NS = 50_000_000
BACKOFF_LAST_NS = 2_000_000_000
CHECK_NS = 100_000_000
ADD_ANSWER_BYTES = connection.LENGTH_BYTES + 24  # v2
CONNECT_TIMEOUT_NS = 5_000_000_000
# A v3 or batch answer to an entry at the v2 limit is a little longer than the limit (wire-protocol.md 2.1).
RECEIVE_SLACK_BYTES = 4096
TURN_BYTES = 4 << 20  # received from one bookie before others have their turn
ADD_TIMEOUT_NS = 5_000_000_000
HUNG_UP_MAX = 2
_UNDER_WAY = frozenset({0, errno.EINPROGRESS, errno.EINTR})

Resolve = Callable[[BookieId, Callable[[tuple[str, int] | None, str], None]], None]


class AddListener(Protocol):
    """Who wants the add answers of one ledger on this link. ``needs_connection``: it cannot go on over another one (WR-17)."""

    @property
    def needs_connection(self) -> bool: ...
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
        *,
        add_timeout_ns: int = ADD_TIMEOUT_NS,
        names: Names | None = None,
        on_silent: Callable[[BookieId, int], None] | None = None,
        on_short: Callable[[str, str], None] | None = None,
    ) -> None:
        """``on_silent`` gets the bookie and the time since which this connection to it had been silent when it was given up; ``on_short``
        gets the name of the system's error, and what it means, when this host cannot make a connection (SES-9, SES-10)."""
        self.bookie = bookie
        self.protocol = protocol
        self.failed_recently = False
        self.address: tuple[str, int] | None = None  # where it is connected, or tries to be
        self._reactor = reactor
        self._resolve = resolve
        self._broke = broke  # told when the connection is lost or cannot be made, before anybody who waits on it
        self._names = names or Names(reactor.post)
        self._on_silent = on_silent
        self._on_short = on_short
        self._short = False  # the attempt that goes on has met a shortage of this host's
        self._frame_bytes_max = frame_bytes_max + RECEIVE_SLACK_BYTES
        self._socket: socket.socket | None = None
        self._connecting = False
        self._connected = False
        self._closed = False
        self._output: deque[memoryview] = deque()
        self._input = ReceiveBuffer()
        self._arriving: tuple[BatchParts, m.BatchReadResponse] | None = None  # its frame ends later
        self._health = LinkHealth(add_timeout_ns)
        self._asking = Asking(protocol, self._health)
        self._outstanding = self._asking.outstanding
        self._adds = SentAddRuns()  # v3 only
        self._listeners: dict[int, AddListener] = {}
        self._next_id = 0
        self._backoff_ns = BACKOFF_FIRST_NS
        self._blocked_until_ns = 0
        self._refused = False  # the last attempt to connect failed
        self._heard = False  # on this connection
        self._has_batch_read = False
        self._attempts = Attempts(0, 0)
        self._addresses: deque[Address] = deque()
        self._attempt = 0
        self._attempt_until_ns: int | None = None
        self._reconnect: Timer | None = None
        self._writing = False
        self._flush_posted = False
        self._waiting_out = SentBytes()
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
        count = run.count_for(position, start, ensemble_size, write_quorum_size)
        if not count:
            return
        self._health.adds_sent(count, self._reactor.now_ns())
        if self.protocol == "v2":
            self._send(run.frames_for(position, start, ensemble_size, write_quorum_size))
            return
        numbers = range(self._next_id + 1, self._next_id + 1 + count)
        self._next_id += count
        first = run.first_entry_id + start
        self._adds.add(SentAdds(numbers, run.ledger_id, first, position, ensemble_size, write_quorum_size, count))
        self._send([run.frames_v3_for(position, start, ensemble_size, write_quorum_size, numbers.start)])

    def request(self, message: Request, timeout_ns: int, answer: Answer, reader: Hashable = None) -> Waiting:
        """Send one request when it is its turn; ``answer`` is called exactly once. What a batch read or a run of reads brings is good until
        it returns. ``reader``: whose it is (LINK-6), by default its ledger's."""
        self._next_id += 1
        reader = getattr(message, "ledger_id", None) if reader is None else reader
        waiting = Waiting(self._next_id, answer, message, Patience(timeout_ns), reader)
        if self.protocol == "v3" and isinstance(message, ReadRunRequest):
            waiting.numbers = range(self._next_id + 1, self._next_id + 1 + message.count)
            self._next_id += message.count
        if not self._ready() and not self._waits_out(message):
            self._reactor.post(lambda: answer(Status.UNAVAILABLE, None))
            return waiting
        self._asking.hold(waiting)
        self._ask()
        return waiting

    def _ask(self) -> None:
        if self._connected:
            self._send(list(self._asking.frames(self._reactor.now_ns())))

    def is_late(self, waiting: Waiting, patience_ns: int) -> bool:
        """LINK-1, LINK-2, with another patience than its own: whether a request that was not answered yet is a reason to ask elsewhere."""
        if waiting.patience.sent_ns is None and not self._connected:
            return True
        return self._health.is_late(waiting.patience, self._reactor.now_ns(), patience_ns)

    @property
    def drained_ns(self) -> int:
        """When bytes of ours last went on that had been waiting to be sent."""
        return self._health.drained_ns

    def forget(self, reader: Hashable) -> None:
        """What was not sent yet for ``reader`` is not wanted any more; nobody is told."""
        self._asking.drop(reader)

    def doubt(self, since_ns: int) -> None:
        """LINK-4: another connection to this bookie has been silent since then."""
        needed = any(listener.needs_connection for listener in self._listeners.values())
        if self._connected and self._health.is_doubtful(since_ns, needed=needed):
            self._drop(Status.TIMEOUT, "another connection to it fell silent", backoff=False)

    def moved(self, address: tuple[str, int]) -> None:
        """LINK-4: the bookie is registered at ``address``."""
        if self.address is not None and self.address != address and (self._connected or self._connecting):
            self._drop(Status.UNAVAILABLE, f"the bookie moved to {address[0]}:{address[1]}", backoff=False)

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
        self._attempt += 1
        self._attempt_until_ns = None  # who looks the address up has limits of his own
        self._resolve(self.bookie, partial(self._resolved, self._attempt))
        return True

    def _waits_out(self, message: Request) -> bool:
        """LINK-7: a pause before the next attempt is no answer of the bookie, unless the last attempt was refused."""
        if self._closed or self._refused or not is_repeatable(message):
            return False
        self._connect_after_pause()
        return True

    def _connect_after_pause(self) -> None:
        if self._reconnect is None:
            after_ns = max(0, self._blocked_until_ns - self._reactor.now_ns())
            self._reconnect = self._reactor.call_later(after_ns, self._connect_again)

    def _connect_again(self) -> None:
        self._reconnect = None
        if self._asking and not self._closed and not self._ready():
            self._connect_after_pause()

    def _is_current(self, attempt: int) -> bool:
        return self._connecting and not self._closed and attempt == self._attempt and self._socket is None

    def _resolved(self, attempt: int, address: tuple[str, int] | None, problem: str) -> None:
        if not self._is_current(attempt):
            return
        self._short = False
        if address is None:
            self._look_for_shortage()
            self._not_connected(problem)
            return
        self.address = address
        self._attempts = Attempts(0, self._reactor.now_ns() + CONNECT_TIMEOUT_NS)
        self._attempt_until_ns = self._attempts.deadline_ns
        self._names.lookup(*address, partial(self._named, attempt))

    def _named(self, attempt: int, addresses: list[Address], problem: str) -> None:
        if not self._is_current(attempt):
            return
        if not addresses:
            self._look_for_shortage()
        self._addresses = deque(addresses)
        self._attempts.left = len(addresses)
        self._try_next(problem or "no address")

    def _try_next(self, problem: str) -> None:
        """LINK-8: the next address, or the end of this attempt."""
        self._forget_socket()
        while True:
            now = self._reactor.now_ns()
            share_ns = self._attempts.next(now)
            if share_ns is None:
                self._not_connected(problem)
                return
            self._attempt_until_ns = now + share_ns
            address = self._addresses.popleft()
            try:
                self._connect(address)
                return
            except OSError as error:
                self._forget_socket()
                problem = str(error)
                self._note_shortage(error)
                if self._short and self._waits_with_adds(address, now):
                    return

    def _look_for_shortage(self) -> None:
        """Resolvers of names, and clients of the metadata store, do not say what they were short of."""
        error = shortage_now()
        if error is not None:
            self._note_shortage(error)

    def _note_shortage(self, error: OSError) -> None:
        text = shortage_text(error)
        if text is None:
            return
        self._short = name_of(error) in EVERYWHERE
        if self._on_short is not None:
            self._on_short(name_of(error), text)

    def _waits_with_adds(self, address: Address, now_ns: int) -> bool:
        """SES-9: ``_look`` tries again. Without adds nobody waits here: others may be asked."""
        if not self._health.adds_unanswered or now_ns + AGAIN_NS >= self._attempts.deadline_ns:
            return False
        self._addresses.appendleft(address)
        self._attempts.left += 1
        self._attempt_until_ns = now_ns + AGAIN_NS
        for one in self._asking.held():
            self._tell(partial(one.answer, *one.outcome(Status.UNAVAILABLE)))
        return True

    def _not_connected(self, problem: str) -> None:
        """No address is left. SES-9: what this host could not do is no failure of the bookie."""
        short, self._short = self._short, False
        self._drop(Status.UNAVAILABLE, problem, backoff=not short)

    def _connect(self, address: Address) -> None:
        family, kind, number, target = address
        self._socket = made = socket.socket(family, kind, number)
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(made)
        code = made.connect_ex(target)
        if code not in _UNDER_WAY:  # told here and nowhere else: the socket itself keeps no error that ``on_io`` could find
            raise OSError(code, os.strerror(code))
        self._reactor.register(made, selectors.EVENT_READ | selectors.EVENT_WRITE, self)
        self._writing = True

    def _forget_socket(self) -> None:
        if self._socket is None:
            return
        with suppress(KeyError, ValueError, OSError):
            self._reactor.unregister(self._socket)
        self._socket.close()
        self._socket = None
        self._writing = False

    def on_io(self, readable: bool, writable: bool) -> None:
        """LINK-9: whatever is wrong with what a bookie sent, its connection ends there; the same bytes are never looked at twice."""
        try:
            self._on_io(readable, writable)
        except RemoteProtocolError as error:
            log.error("bookie %s broke the protocol: %s; closing the connection", self.bookie, error)
            self._drop(Status.PROTOCOL_ERROR, str(error))
        except Exception as error:
            log.exception("bookie %s sent what cannot be handled; closing the connection", self.bookie)
            self._drop(Status.PROTOCOL_ERROR, repr(error))

    def _on_io(self, readable: bool, writable: bool) -> None:
        if self._socket is None:
            return
        if self._connecting:
            code = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._note_shortage(OSError(code, os.strerror(code)))
                self._try_next(f"connect failed (errno {code}, {os.strerror(code)})")
                return
            self._is_connected()
        if writable:
            self._flush()
        if readable and self._socket is not None:
            self._receive()

    def _is_connected(self) -> None:
        self._connecting, self._connected, self._refused, self._heard = False, True, False, False
        now = self._reactor.now_ns()
        unanswered = self._health.adds_unanswered
        self._health.connected(now)
        self._asking.connected()
        self._waiting_out.connected()
        if unanswered:  # handed over while the connection was made
            self._health.adds_sent(unanswered, now)
        self._output.extend(self._asking.frames(now))

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
                    self._heard = True
                    self._health.heard(self._reactor.now_ns())
                    self._parse()
                total += count
                if not received.full:
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            self._drop(Status.UNAVAILABLE, str(error))
            return
        if not count:
            self._drop(Status.UNAVAILABLE, "closed by the bookie")
        elif self._socket is source:
            received.wait_for_more(source)
        self._ask()  # what came made room

    def _parse(self) -> None:
        received = self._input
        if received.rest:
            return  # of a frame that is taken in parts
        if self._arriving is not None:
            response, self._arriving = self._arriving[1], None
            self._has_batch_read = True
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
            self._add_answer(ledger_id, entry_id, count, Status.OK, entries, (end - begin) // ADD_ANSWER_BYTES)
        elif kind == connection.BATCH:
            self._has_batch_read = True
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
        self._asking.read(waiting, len(made), count)
        self._run_moved(waiting)
        return True

    def _add_answer(
        self, ledger_id: int, first: int, count: int, status: Status, entries: int | None = None, answers: int | None = None
    ) -> None:
        self._health.adds_answered(count if answers is None else answers)
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
                self._asking.read(waiting, end, taken)
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
            if response.body is not None:
                self._asking.read(waiting, len(response.body), 1)
            self._run_moved(waiting)

    def _run_moved(self, waiting: Waiting) -> None:
        """The bookie is at work: its time starts again."""
        if self._asking.run_moved(waiting, self._reactor.now_ns()):
            self._done(waiting, *waiting.outcome(Status.OK))

    def _done(self, waiting: Waiting, status: Status, response: Response | None) -> None:
        body = response.body if isinstance(response, ReadResponse) else None
        self._asking.done(waiting, self._reactor.now_ns(), len(body) if body is not None else 0)
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
                self._waiting_out.sent(sent)
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

    def _drop(self, status: Status, why: str, *, backoff: bool = True, silent: Sequence[Waiting] = ()) -> None:
        """The connection is gone: tell the writers, wait before the next attempt. What was outstanding is asked again there or answered
        now (LINK-7); ``silent`` are those whose time is over."""
        was_connected = self._connected
        self._forget_socket()
        self._connecting = self._connected = False
        self._output.clear()
        self._input.clear()
        arrived, self._arriving = self._arriving, None
        self._adds.clear()
        self._health.connected(self._reactor.now_ns())
        self._refused = not was_connected
        if backoff:
            self.failed_recently = True
            self._blocked_until_ns = self._reactor.now_ns() + self._backoff_ns
            self._backoff_ns = min(self._backoff_ns * 2, BACKOFF_LAST_NS)
            log.info("bookie %s: connection lost (%s)", self.bookie, why)
            self._broke()
        for one in self._asking.lost():
            self._lost(one, Status.TIMEOUT if one in silent else status, arrived, one not in silent)
        if not was_connected or self._closed:
            for one in self._asking.held():
                self._tell(partial(one.answer, *one.outcome(status)))
        elif self._asking:
            self._connect_after_pause()
        for listener in list(self._listeners.values()):
            self._tell(partial(listener.on_lost, self.bookie, status))

    def _lost(self, one: Waiting, status: Status, arrived: tuple[BatchParts, m.BatchReadResponse] | None, may_repeat: bool) -> None:
        """LINK-7. What came of an answer is as good as an answer (RD-10)."""
        outcome = one.outcome(status)
        if arrived is not None and arrived[1].request_id == one.number and arrived[0].count:
            outcome = Status.OK, arrived[1]
        elif outcome[0] is not Status.OK and one.batch is not None and not self._heard and not self._has_batch_read:
            one.hung_up += 1
        if outcome[0] is not Status.OK and may_repeat and self._is_again(one, status):
            one.cuts += 1
            one.run = None
            self._asking.hold(one)
        elif one.hung_up >= HUNG_UP_MAX:
            self._tell(partial(one.answer, Status.BAD_REQUEST, None))
        else:
            self._tell(partial(one.answer, *outcome))

    def _is_again(self, one: Waiting, status: Status) -> bool:
        enough = one.cuts >= CUTS_MAX or one.hung_up >= HUNG_UP_MAX
        return not enough and not self._closed and status is not Status.PROTOCOL_ERROR and is_repeatable(one.message)

    def _tell(self, call: Callable[[], None]) -> None:
        """What goes wrong with one ledger is no concern of the others on this connection."""
        try:
            call()
        except BaseException:  # callbacks of users may raise anything
            log.exception("unexpected error about an answer of bookie %s", self.bookie)

    def _refuse_adds(self, ledger_id: int) -> None:
        def tell() -> None:
            listener = self._listeners.get(ledger_id)
            if listener is not None:
                listener.on_lost(self.bookie, Status.UNAVAILABLE)

        self._reactor.post(tell)

    def _check_deadlines(self) -> None:
        try:
            self._look()
        finally:
            if not self._closed:
                self._check = self._reactor.call_later(CHECK_NS, self._check_deadlines)

    def _look(self) -> None:
        now = self._reactor.now_ns()
        if self._connecting and self._attempt_until_ns is not None and now >= self._attempt_until_ns:
            self._try_next("connect timed out")
        if self._connected and self._input.awaits_much:
            self.on_io(True, False)  # kernels before 5.8 may forget to wake for a low-water mark
        if not self._connected or self._socket is None:
            return
        if self._waiting_out.look(self._socket, now):
            self._health.drained(now)
        silent = [waiting for waiting in self._outstanding if self._health.is_silent(waiting.patience, now)]
        if silent or self._health.adds_are_silent(now):
            self._give_up(silent)
            return
        for waiting in [waiting for waiting in self._outstanding if self._health.is_late(waiting.patience, now)]:
            self._asking.give_up(waiting)
            self._tell(partial(waiting.answer, *waiting.outcome(Status.TIMEOUT)))
        self._ask()

    def _give_up(self, silent: Sequence[Waiting]) -> None:
        """LINK-3: silent for a timeout with something outstanding. LINK-4: its other connections are in doubt."""
        since_ns = self._health.silence_of(one.patience for one in silent)
        log.warning("bookie %s: nothing came for a whole timeout; closing the connection", self.bookie)
        self._drop(Status.TIMEOUT, "silent", silent=silent)
        if self._on_silent is not None:
            self._on_silent(self.bookie, since_ns)
