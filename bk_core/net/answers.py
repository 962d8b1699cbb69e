"""A link hands the answers of its bookie, runs of them and single ones, to those who wait for them."""

from __future__ import annotations

from functools import partial

from bk_core import kernels
from bk_core.net.link_state import LinkState
from bk_core.net.outstanding import Waiting
from bk_core.protocol.wire import connection
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.messages import AddResponse, ReadResponse, Response, Status

ADD_ANSWER_BYTES = connection.LENGTH_BYTES + 24  # v2


class AnsweredLink(LinkState):
    """Matches answers with requests: adds by their ledger, everything else by number and operation (wire-protocol.md 5.4, 9)."""

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
        """Take ``count`` good answers whose numbers and entries ascend by one. The numbers tell which adds they answer, not the entries
        (SM-3)."""
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
        """Return True if these good answers all belong to one run and come in its order; the run has then taken them."""
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
        """Return True if the answer is about an add of a run; nobody waits for such an add by number."""
        if self.protocol == "v2":
            self._add_answer(response.ledger_id, response.entry_id, 1, response.status)
            return True
        sent = self._adds.find(response.request_id)
        if sent is not None:
            self._adds.answered(sent, 1)
            self._add_answer(sent.ledger_id, sent.entry_id(response.request_id), 1, response.status)
        return sent is not None

    def _reads(self, frames: memoryview, ledger_id: int, entry_id: int, count: int, step: int) -> None:
        """v2: take ``count`` good answers for every ``step``-th entry. Those that continue a run are taken at once, all others
        one by one."""
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
        """v2: take the answer to a single read, or an answer of a run that is out of order or refused."""
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
        """Restart the request's time limit, because the bookie is at work on it."""
        if self._asking.run_moved(waiting, self._reactor.now_ns()):
            self._done(waiting, *waiting.outcome(Status.OK))

    def _done(self, waiting: Waiting, status: Status, response: Response | None) -> None:
        body = response.body if isinstance(response, ReadResponse) else None
        self._asking.done(waiting, self._reactor.now_ns(), len(body) if body is not None else 0)
        self._tell(partial(waiting.answer, status, response))
