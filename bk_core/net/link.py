"""One TCP connection to one bookie: frames out, frames in, requests matched with answers, timeouts, reconnects with backoff.

A link speaks v2 or v3 for its whole life (wire-protocol.md 2.2). It does not track adds one by one, because the writer machine knows what
it waits for: it routes their answers by ledger id. It matches everything else by number and operation (wire-protocol.md 9), and single
reads of v2 by ledger and entry, in order (wire-protocol.md 5.4). It drops an answer that nothing waits for.

The parts of a link are classes that inherit from one another: its state (``link_state.py``), its answers (``answers.py``), its way of
connecting (``connecting.py``), and here the requests, the bytes in and out, and failures.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from functools import partial

from bk_core.display.words import host_port, meet
from bk_core.errors import RemoteProtocolError
from bk_core.net.asking import is_repeatable, is_unsure
from bk_core.net.connecting import ConnectingLink
from bk_core.net.link_state import (
    BACKOFF_FIRST_NS,
    CHECK_NS,
    AddListener,
)
from bk_core.net.names import Address
from bk_core.net.outstanding import Answer, Waiting
from bk_core.net.receiving import WHOLE_BYTES
from bk_core.net.sent_adds import SentAdds
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.run import PackedAdds
from bk_core.protocol.link import CUTS_MAX, Patience
from bk_core.protocol.wire import connection
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.batch_parts import BatchParts
from bk_core.protocol.wire.messages import ReadRunRequest, Request, Status

log = logging.getLogger("bk_core.net")

SEND_BUFFERS_MAX = 256
BACKOFF_LAST_NS = 2_000_000_000
TURN_BYTES = 4 << 20  # received from one bookie before the others have their turn
HUNG_UP_MAX = 2


class BookieLink(ConnectingLink):
    """A connection to one bookie, used on the reactor thread only. ``protocol`` never changes."""

    # --- requests --------------------------------------------------------------------------------------------------

    def listen(self, ledger_id: int, listener: AddListener) -> None:
        self._listeners[ledger_id] = listener

    def unlisten(self, ledger_id: int, listener: AddListener) -> None:
        if self._listeners.get(ledger_id) is listener:
            del self._listeners[ledger_id]

    def send_adds(self, run: PackedAdds, position: int, start: int, ensemble_size: int, write_quorum_size: int) -> None:
        if not self._ready():
            self._refuse_adds(run.ledger_id)
            return
        count = run.count_for(position, start, ensemble_size, write_quorum_size)
        if not count:
            return
        now = self._reactor.now_ns()
        if not self._adds_marked:
            self._add_times.began(self._health.adds_sent_so_far, now)
        self._health.adds_sent(count, now)
        if self.protocol == "v2":
            self._send(run.frames_for(position, start, ensemble_size, write_quorum_size))
        else:
            numbers = range(self._next_id + 1, self._next_id + 1 + count)
            self._next_id += count
            first = run.first_entry_id + start
            self._adds.add(SentAdds(numbers, run.ledger_id, first, position, ensemble_size, write_quorum_size, count))
            self._send([run.frames_v3_for(position, start, ensemble_size, write_quorum_size, numbers.start)])
        self._adds_marked = self._flush_posted  # one time for all that this turn sends

    def request(self, message: Request, timeout_ns: int, answer: Answer, reader: Hashable = None) -> Waiting:
        """Send one request when its turn comes, and call ``answer`` exactly once. The bytes of a batch read or a run of reads are valid
        until ``answer`` returns. ``reader`` names the reader that the request is sent for, by default its ledger's (LINK-6)."""
        self._next_id += 1
        reader = getattr(message, "ledger_id", None) if reader is None else reader
        waiting = Waiting(self._next_id, answer, message, Patience(timeout_ns), reader)
        if self.protocol == "v3" and isinstance(message, ReadRunRequest):
            waiting.numbers = range(self._next_id + 1, self._next_id + 1 + message.count)
            self._next_id += message.count
        if not self._ready() and not self._waits_out(message):
            refusal = self._refusal
            self._reactor.post(lambda: answer(refusal, None))
            return waiting
        self._asking.hold(waiting)
        self._ask()
        return waiting

    def _ask(self) -> None:
        if self._connected and self._asking:
            self._send(list(self._asking.frames(self._reactor.now_ns())))

    def is_late(self, waiting: Waiting, patience_ns: int) -> bool:
        """Return True if a request is so long without an answer that it is worth asking another bookie. It is judged by ``patience_ns``
        instead of its own limit (LINK-1, LINK-2)."""
        if waiting.patience.sent_ns is None and not self._connected:
            return True
        return self._health.is_late(waiting.patience, self._reactor.now_ns(), patience_ns)

    @property
    def is_connected(self) -> bool:
        """True if requests go out at once."""
        return self._connected

    @property
    def drained_ns(self) -> int:
        """The time at which bytes of ours that had been waiting to be sent last went on."""
        return self._health.drained_ns

    def forget(self, reader: Hashable) -> None:
        """Drop the requests of ``reader`` that were not sent yet. Their callers are not told."""
        self._asking.drop(reader)

    def doubt(self, since_ns: int) -> None:
        """Drop this connection if it is in doubt too, because another connection to this bookie has been silent since ``since_ns``
        (LINK-4)."""
        needed = any(listener.needs_connection for listener in self._listeners.values())
        if self._connected and self._health.is_doubtful(since_ns, needed=needed):
            self._drop(Status.TIMEOUT, "another connection to it fell silent", backoff=False)

    def moved(self, address: tuple[str, int]) -> bool:
        """Learn that the bookie is registered at ``address``. Return True if the link looked for it elsewhere (LINK-4)."""
        if self.address is None or self.address == address:
            return False
        if self._asks_where:
            self._found_at = address
        else:
            self._leave(f"the bookie moved to {host_port(*address)}")
        self.returned()  # the pause was about the address that it has no more
        return True

    def given_away(self, address: tuple[str, int], bookie: BookieId) -> None:
        """Learn that another ``bookie`` has registered at ``address``, which this link may have in another spelling, or by a name
        (LINK-4)."""
        if not self._asks_where and self._may_lead_to(address):
            self._leave(f"{host_port(*address)} is the address of bookie {bookie} now", backoff=True)

    def _may_lead_to(self, address: tuple[str, int]) -> bool:
        """Return True if the link is connected to ``address`` or may be soon. Of a name that is being looked up nobody knows where it
        leads."""
        if self.address is None or not (self._connected or self._connecting):
            return False
        if self._socket is None:
            return self.address[1] == address[1]
        coming = self._addresses if self._connecting else ()
        targets = [one[3][:2] for one in (self._target, *coming) if one is not None]
        return any(meet(one, address) for one in (self.address, *targets))

    def renamed(self, name: tuple[str, int], found: Sequence[Address]) -> bool:
        """Learn that the bookie's ``name``, a host and a port, has the addresses ``found``. Return True if the link is connected to another
        one, or tries it, which is where the bookie was before (LINK-4)."""
        if self._socket is None or self.address != name or not found or self._target in found:
            return False
        self._leave(f"{name[0]} has another address now")
        return True

    def _leave(self, why: str, *, backoff: bool = False) -> None:
        """Leave a place that is not the bookie's any more. An attempt to connect begins anew, and whoever waits for it goes on waiting."""
        if self._connected:
            self._drop(Status.UNAVAILABLE, why, backoff=backoff)
        elif self._connecting:
            self._ask_where(looks_anew=True)

    def returned(self) -> None:
        """Learn that the bookie has registered anew, or elsewhere: the next attempt to connect waits for no pause that its absence has made
        (LINK-7)."""
        self._backoff_ns = BACKOFF_FIRST_NS
        self._blocked_until_ns = 0
        if self._reconnect is not None:
            self._reconnect.cancel()
            self._connect_again()

    def close(self) -> None:
        self._closed = True
        self._check.cancel()
        self._drop(Status.UNAVAILABLE, "client closed", backoff=False)

    # --- connection ------------------------------------------------------------------------------------------------

    def on_io(self, readable: bool, writable: bool) -> None:
        """Handle the socket. If a bookie sent something wrong, its connection ends here, so the same bytes are never parsed
        twice (LINK-9)."""
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
            if not self._comes_in():
                return
            self._is_connected()
            writable = True  # what was handed over meanwhile goes out
        if writable:
            self._flush()
        if readable and self._socket is not None:
            self._receive()

    def _is_connected(self) -> None:
        self._connecting, self._connected, self._refused, self._heard = False, True, False, False
        self._counts.connected.value += 1
        self._counts.connections.value += 1
        now = self._reactor.now_ns()
        unanswered = self._health.adds_unanswered
        self._health.connected(now)
        self._asking.connected()
        self._waiting_out.connected()
        if unanswered:  # they were handed over while the connection was made
            self._health.adds_sent(unanswered, now)
            self._add_times.clear()
            self._add_times.began(0, now)
        self._output.extend(self._asking.frames(now))

    def _receive(self) -> None:
        """Receive until no more bytes are there at once, but at most ``TURN_BYTES``, because other bookies wait too."""
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
                    self._heard = True
                    now = self._reactor.now_ns()
                    self._health.heard(now)
                    self._counts.received_bytes.value += count
                    self._parse()
                    self._add_times.answered(self._health.adds_answered_so_far, now)
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
        self._ask()  # the answers made room in the window

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
        # A handler may have dropped the connection, and a new one begins with an empty buffer.
        if self._connected and not (wanted > WHOLE_BYTES and self._begin_batch(consumed, wanted)):
            received.use(consumed, wanted)

    def _begin_batch(self, at: int, size: int) -> bool:
        """Return True if the frame of ``size`` bytes that begins at ``at`` is taken in parts, or if its head must arrive before that is
        known."""
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

    # --- output ----------------------------------------------------------------------------------------------------

    def _send(self, buffers: Sequence[memoryview]) -> None:
        """Queue the buffers. Everything queued in one turn of the reactor goes out in one call, because a system call costs more than a
        small message."""
        self._output.extend(filter(len, buffers))
        if not self._connected or self._writing or not self._output:
            return  # the connection flushes once it is made or takes bytes again
        if len(self._output) >= SEND_BUFFERS_MAX:
            self._flush()
        elif not self._flush_posted:
            self._flush_posted = True
            self._reactor.at_turn_end(self._flush_turn)

    def _flush_turn(self) -> None:
        self._flush_posted = self._adds_marked = False
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
                self._counts.sent_bytes.value += sent
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

    # --- failures --------------------------------------------------------------------------------------------------

    def _drop(self, status: Status, why: str, *, backoff: bool = True, silent: Sequence[Waiting] = ()) -> None:
        """End the connection: tell the writers, and wait before the next attempt. Outstanding requests are asked again on the next
        connection or answered now (LINK-7); the time limit of those in ``silent`` is over."""
        was_connected = self._connected
        if was_connected:
            self._counts.connections.value -= 1
            self._counts.lost.value += not self._closed
        elif self._connecting and not self._closed:
            self._counts.connect_failed.value += 1
            if backoff and status is not Status.NOT_ADMITTED:  # a refusal before this one may hold no more (LINK-10)
                self._tell_of_entry(None)
        self._forget_socket()
        self._connecting = self._connected = self._asks_where = False
        self._output.clear()
        self._input.clear()
        arrived, self._arriving = self._arriving, None
        self._adds.clear()
        self._add_times.clear()
        self._health.connected(self._reactor.now_ns())
        self._refused = not was_connected
        self._refusal = Status.NOT_ADMITTED if status is Status.NOT_ADMITTED else Status.UNAVAILABLE
        if backoff:
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
        """Ask a request again after its connection was lost, or answer it. The part of an answer that arrived counts as an answer (LINK-7,
        RD-10)."""
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

    def _refuse_adds(self, ledger_id: int) -> None:
        refusal = self._refusal

        def tell() -> None:
            listener = self._listeners.get(ledger_id)
            if listener is not None:
                listener.on_lost(self.bookie, refusal)

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
            self._attempt_is_over()
        if self._connected and self._input.awaits_much:
            self.on_io(True, False)  # kernels before 5.8 may forget to wake for a low-water mark
        if not self._connected or self._socket is None:
            return
        if self._waiting_out.look(self._socket, now):
            self._health.drained(now)
        sure = (waiting for waiting in self._outstanding if not is_unsure(waiting.message))
        silent = [waiting for waiting in sure if self._health.is_silent(waiting.patience, now)]
        if silent or self._health.adds_are_silent(now):
            self._give_up(silent)
            return
        for waiting in [waiting for waiting in self._outstanding if self._health.is_late(waiting.patience, now)]:
            self._asking.give_up(waiting)
            self._counts.gave_up("late")
            self._tell(partial(waiting.answer, *waiting.outcome(Status.TIMEOUT)))
        self._ask()

    def _give_up(self, silent: Sequence[Waiting]) -> None:
        """Close a connection that was silent for a whole timeout with something outstanding (LINK-3), and put the bookie's other
        connections in doubt (LINK-4)."""
        since_ns = self._health.silence_of(one.patience for one in silent)
        log.warning("bookie %s: nothing came for a whole timeout; closing the connection", self.bookie)
        self._counts.gave_up("silent")
        self._drop(Status.TIMEOUT, "silent", silent=silent)
        if self._on_silent is not None:
            self._on_silent(self.bookie, since_ns)
