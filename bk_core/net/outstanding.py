"""The requests of one connection that wait for their answers, and the matching of answers with them (wire-protocol.md 5.4, 9)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from bk_core.protocol import BytesLike
from bk_core.protocol.link import Patience
from bk_core.protocol.wire import connection
from bk_core.protocol.wire import messages as m
from bk_core.protocol.wire.batch_parts import BatchParts
from bk_core.protocol.wire.messages import ReadResponse, Request, Response, Status
from bk_core.protocol.wire.read_run import RunAnswers

Answer = Callable[[Status, Response | None], None]

# SM-3: a number alone does not identify the request; the answer's operation must be the request's too (wire-protocol.md 9).
RESPONSES: Mapping[type[Request], type[Response]] = MappingProxyType(
    {
        m.AddRequest: m.AddResponse,
        m.ReadRequest: m.ReadResponse,
        m.BatchReadRequest: m.BatchReadResponse,
        m.ReadRunRequest: m.ReadRunResponse,
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


@dataclass(slots=True, eq=False)
class Waiting:
    """One request. ``key`` identifies a single read of v2 by its ledger and entry; ``run`` collects the answers to many single reads;
    ``batch`` is set for a batch read, whose answer may be taken in parts.

    ``reserved`` bytes of the connection's window belong to it since ``piece_ns``, when ``under_way`` bytes of the window were in use. A run
    is sent in pieces; ``piece_last`` is the last entry of the piece under way. ``cuts`` counts the connections that were lost while it was
    under way, ``hung_up`` those of them that were lost before any byte came.
    """

    number: int
    answer: Answer
    message: Request
    patience: Patience
    reader: Hashable = None
    key: tuple[int, int] | None = None
    run: RunAnswers | None = None
    batch: m.BatchReadRequest | None = None
    ledger_id: int = -1
    numbers: range = range(0)  # the numbers of a run's single reads with v3; v2 has none
    reserved: int = 0
    piece_ns: int = 0
    under_way: int = 0
    piece_last: int = -1
    piece_entries: int = 0
    cuts: int = 0
    hung_up: int = 0

    @property
    def response(self) -> type[Response]:
        return RESPONSES[type(self.message)]

    def outcome(self, status: Status) -> tuple[Status, Response | None]:
        """Return the result to report when no more answers come: for a run, the entries that arrived."""
        if self.run is None:
            return status, None
        response = self.run.response(status)
        return response.status, response if response.frames else None


class Outstanding:
    """All outstanding requests of one connection."""

    def __init__(self) -> None:
        self._waiting: dict[int, Waiting] = {}
        self._by_key: dict[tuple[int, int], deque[Waiting]] = {}
        self._runs: dict[int, list[Waiting]] = {}  # by ledger, for v2
        self._reads: dict[int, Waiting] = {}  # v3: the run that a single read belongs to

    def add(self, waiting: Waiting) -> None:
        self._waiting[waiting.number] = waiting
        if waiting.key is not None:
            self._by_key.setdefault(waiting.key, deque()).append(waiting)

    def add_run(self, waiting: Waiting) -> None:
        self._waiting[waiting.number] = waiting
        for number in waiting.numbers:
            self._reads[number] = waiting
        if not waiting.numbers:
            self._runs.setdefault(waiting.ledger_id, []).append(waiting)

    def forget(self, waiting: Waiting) -> None:
        self._waiting.pop(waiting.number, None)
        if waiting.key is not None and (queue := self._by_key.get(waiting.key)) is not None:
            queue.remove(waiting)
            if not queue:
                del self._by_key[waiting.key]
        if waiting.run is not None and not waiting.numbers and (runs := self._runs.get(waiting.ledger_id)) is not None:
            runs.remove(waiting)
            if not runs:
                del self._runs[waiting.ledger_id]
        for number in waiting.numbers:
            self._reads.pop(number, None)

    def __contains__(self, waiting: Waiting) -> bool:
        return self._waiting.get(waiting.number) is waiting

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self._waiting.values())

    def clear(self) -> list[Waiting]:
        """Forget all requests and return them."""
        waiting = list(self._waiting.values())
        for index in (self._waiting, self._by_key, self._runs, self._reads):
            index.clear()
        return waiting

    # --- matching answers ---------------------------------------------------------------------------------------------

    def single(self, ledger_id: int, entry_id: int) -> Waiting | None:
        """v2: return the oldest single read of this entry."""
        queue = self._by_key.get((ledger_id, entry_id))
        return queue[0] if queue else None

    def numbered(self, response: Response) -> Waiting | None:
        """Return the request with this number if the answer is for its operation."""
        found = self._waiting.get(response.request_id)
        return found if found is not None and isinstance(response, found.response) else None

    def arriving(self, buffer: BytesLike, at: int, size: int) -> tuple[BatchParts, m.BatchReadResponse] | None:
        """Return the parser of the bodies and the answer for the frame of ``size`` bytes that begins at ``at``, if it is a good answer to a
        batch read that says how to check its entries."""
        head = connection.batch_head(buffer, at)
        found = None if head is None else self._waiting.get(head[0])
        request = None if found is None else found.batch
        if head is None or request is None or request.check is None or request.entries_max <= 0:
            return None
        bodies_bytes = size - connection.BATCH_HEAD_BYTES
        parts = BatchParts(request.check, request.ledger_id, request.entry_id, request.entries_max, bodies_bytes)
        return parts, m.BatchReadResponse(head[0], Status.OK, head[1], head[2], parts=parts)

    def run_of(self, ledger_id: int, entry_id: int) -> Waiting | None:
        """v2: return the oldest run that waits for this entry."""
        return next(self._runs_awaiting(ledger_id, entry_id), None)

    def _runs_awaiting(self, ledger_id: int, entry_id: int) -> Iterator[Waiting]:
        for waiting in self._runs.get(ledger_id, ()):
            if waiting.run is not None and waiting.run.awaits(entry_id):
                yield waiting

    def run_reads(self, first: int, count: int) -> Waiting | None:
        """v3: return the run that waits for all of these ``count`` numbers."""
        found = set(map(self._reads.get, range(first, first + count)))
        return found.pop() if len(found) == 1 else None

    def forget_reads(self, first: int, count: int) -> None:
        """v3: forget these single reads of a run, because they are answered."""
        for number in range(first, first + count):
            self._reads.pop(number, None)

    def run_read(self, response: Response) -> Waiting | None:
        """v3: forget the single read that is answered, and return its run."""
        if not isinstance(response, ReadResponse):
            return None
        return self._reads.pop(response.request_id, None)
