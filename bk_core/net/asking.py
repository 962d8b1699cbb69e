"""The requests of one link: each waits for its turn and its room (LINK-5, LINK-6), is encoded, and then is outstanding."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import replace

from bk_core.net.outstanding import Outstanding, Waiting
from bk_core.protocol.link import EntrySizes, FlowWindow, LinkHealth, Turns
from bk_core.protocol.wire import connection, read_run
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import ReadRequest, ReadRunRequest, Request
from bk_core.protocol.wire.read_run import RunAnswers

# LINK-7: these requests are sent again when their connection is lost, because asking twice changes nothing. A force is not among them: a
# bookie that was restarted has nothing left to force, and would report success.
REPEATABLE = (ReadRequest, m.BatchReadRequest, ReadRunRequest, m.ReadLacRequest, m.BookieInfoRequest, m.EntryListRequest)
# wire-protocol.md 8.10: some bookies never answer these, so that their silence says nothing of the connection
UNSURE = (m.EntryListRequest,)
_HEAD_BYTES = read_run.HEADER_BYTES + read_run.LENGTH_BYTES


def is_repeatable(message: Request) -> bool:
    return isinstance(message, REPEATABLE)


def is_unsure(message: Request) -> bool:
    return isinstance(message, UNSURE)


def _is_bulk(message: Request) -> bool:
    """True if the answer carries entries. A long poll and the question for the last entry carry none worth a wait for room."""
    if isinstance(message, ReadRequest):
        return message.entry_id >= 0 and message.previous_lac is None
    return isinstance(message, m.BatchReadRequest | ReadRunRequest)


class Asking:
    """Holds all requests of one link, over all of its connections."""

    def __init__(self, protocol: connection.Protocol, health: LinkHealth) -> None:
        self.outstanding = Outstanding()
        self._protocol = protocol
        self._health = health
        self._window = FlowWindow()
        self._sizes = EntrySizes()
        self._at_once: deque[Waiting] = deque()
        self._turns: Turns[Waiting] = Turns()

    def __bool__(self) -> bool:
        """Return True if something waits to be sent."""
        return bool(self._at_once or self._turns.size)

    def hold(self, waiting: Waiting) -> None:
        """Keep the request until its turn comes."""
        waiting.patience.sent_ns = None
        message = waiting.message
        if not _is_bulk(message):
            self._at_once.append(waiting)
            return
        assert isinstance(message, ReadRequest | m.BatchReadRequest | ReadRunRequest)
        self._turns.push(waiting.reader, message.entry_id if waiting.run is None else waiting.run.next, waiting)

    def drop(self, reader: Hashable) -> None:
        """Drop the requests of ``reader`` that were not sent yet; nobody wants their answers any more."""
        for waiting in self._turns.drop(reader):
            self.outstanding.forget(waiting)

    def held(self) -> list[Waiting]:
        """Return everything that waits to be sent, and empty the queues."""
        everything = [*self._at_once, *self._turns.clear()]
        self._at_once.clear()
        return everything

    def connected(self) -> None:
        self._window.connected()

    # --- sending -----------------------------------------------------------------------------------------------------

    def frames(self, now_ns: int) -> Iterator[memoryview]:
        """Yield the frames that may be sent now."""
        while self._at_once:
            yield self._encode(self._at_once.popleft(), now_ns)
        while self._turns.size:
            waiting = self._turns.peek()
            size, entries = self._piece(waiting)
            if not self._window.admits(size):
                return
            self._turns.pop()
            self._window.sent(size)
            waiting.reserved, waiting.piece_ns, waiting.piece_entries = size, now_ns, entries
            waiting.under_way = self._window.in_flight
            yield self._encode(waiting, now_ns)

    def _piece(self, waiting: Waiting) -> tuple[int, int]:
        """Return the bytes to expect of the request's next piece, and its number of entries: 0 for a batch read, which brings as many as
        fit."""
        message = waiting.message
        if isinstance(message, m.BatchReadRequest):
            return self._window.piece(message.bytes_max, self._turns.readers), 0
        assert isinstance(message, ReadRequest | ReadRunRequest)
        each = self._sizes.of(message.ledger_id)
        if isinstance(message, ReadRequest):
            return each, 1
        next_entry = message.entry_id if waiting.run is None else waiting.run.next
        left = (message.last_entry_id - next_entry) // message.step + 1
        entries = max(1, self._window.piece(left * each, self._turns.readers) // each)
        return entries * each, entries

    def _encode(self, waiting: Waiting, now_ns: int) -> memoryview:
        waiting.patience.sent_ns = now_ns
        message = waiting.message
        if self._protocol == "v2" and isinstance(message, m.BatchReadRequest):
            waiting.batch = message
            self.outstanding.add(waiting)
            return memoryview(connection.encode_batch_read(replace(message, bytes_max=waiting.reserved), waiting.number))
        if isinstance(message, ReadRunRequest):
            return self._encode_run(waiting, message)
        message = replace(message, request_id=waiting.number)
        if self._protocol == "v2" and isinstance(message, ReadRequest):
            waiting.key = message.ledger_id, message.entry_id
        self.outstanding.add(waiting)
        return memoryview(connection.encode_request(message, self._protocol))

    def _encode_run(self, waiting: Waiting, message: ReadRunRequest) -> memoryview:
        if waiting.run is None:
            numbered = ReadRunRequest(waiting.number, message.ledger_id, message.entry_id, message.count, message.step, message.bytes_max)
            waiting.run, waiting.ledger_id = RunAnswers(numbered), message.ledger_id
        if waiting not in self.outstanding:
            self.outstanding.add_run(waiting)
        run = waiting.run
        piece = ReadRunRequest(message.request_id, message.ledger_id, run.next, waiting.piece_entries, message.step, message.bytes_max)
        waiting.piece_last = piece.last_entry_id
        start = (run.next - message.entry_id) // message.step
        return memoryview(connection.encode_read_run(piece, waiting.numbers[start : start + piece.count]))

    # --- answers -----------------------------------------------------------------------------------------------------

    def run_moved(self, waiting: Waiting, now_ns: int) -> bool:
        """Restart the time limit of a run after some of its reads were answered. Return True when all were; otherwise its next piece waits
        for its turn."""
        run = waiting.run
        assert run is not None
        if run.done:
            return True
        if waiting.patience.sent_ns is not None:
            waiting.patience.sent_ns = now_ns
            if run.next > waiting.piece_last:
                self._took(waiting, now_ns)
                self.hold(waiting)
        return False

    def done(self, waiting: Waiting, now_ns: int, answer_bytes: int = 0) -> None:
        """Forget a request that was answered; ``answer_bytes`` is the size of the entry if it was a single read."""
        sent_ns = waiting.patience.sent_ns
        self.outstanding.forget(waiting)
        if sent_ns is None:
            return
        self._health.answered(waiting.piece_ns if waiting.reserved else sent_ns)
        if answer_bytes and isinstance(waiting.message, ReadRequest):
            self._sizes.told(waiting.message.ledger_id, answer_bytes, 1)
        if waiting.reserved:
            self._took(waiting, now_ns)

    def _took(self, waiting: Waiting, now_ns: int) -> None:
        self._window.released(waiting.reserved)
        self._window.took(waiting.piece_ns, now_ns, waiting.under_way)
        self._health.answered(waiting.piece_ns)
        waiting.reserved = 0

    def read(self, waiting: Waiting, frames_bytes: int, entries: int) -> None:
        """Learn the size of the ledger's entries from ``entries`` that a run brought."""
        self._sizes.told(waiting.ledger_id, max(1, frames_bytes - entries * _HEAD_BYTES), entries)

    def give_up(self, waiting: Waiting) -> None:
        """Forget a request that is late. Its answer may still come, but its room is released now: waiting for the answer might
        never end."""
        self.outstanding.forget(waiting)
        self._window.released(waiting.reserved)
        waiting.reserved = 0

    def lost(self) -> list[Waiting]:
        """Return the requests that were under way on a connection that is lost. A run between two pieces stays, and goes on
        where it was."""
        waiting = [one for one in self.outstanding.clear() if one.patience.sent_ns is not None]
        self._window.connected()
        for one in waiting:
            one.reserved = 0
        return waiting
