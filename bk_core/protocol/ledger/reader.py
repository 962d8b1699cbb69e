"""Reading a range of entries, and learning the LAC. Readers never send the fence flag and never write metadata (OP-5).

Theory of operation. A range is cut into chunks that stay inside one fragment (RD-10). Without striping a chunk is many entries and is asked
of one replica at a time by batch read; with striping, or where the bookie has no batch read, a chunk is one entry and is asked by
single reads, several in flight. A replica that fails, denies or shows a bad copy is passed over for the next one (RD-3, RD-8); a batch
that brings only a prefix is good for that prefix. Chunks are delivered in order as EntryRuns.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field

from bk_core import kernels
from bk_core.errors import BkError, DigestError, NoSuchEntryError, ReadError, RemoteProtocolError, UnauthorizedError
from bk_core.protocol.effects import Complete, Effect, Fail, Log, SendRead
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.events import ReadReply
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.run import EntryRun
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire.messages import (
    BatchReadRequest,
    BatchReadResponse,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Status,
)

BATCH_PART_BYTES = 4  # u32 length before each body of a batch read


@dataclass(slots=True)
class _Chunk:
    """Entries first..last, all in one fragment. ``runs`` are the verified parts so far; ``tried`` the replicas that failed."""

    first: int
    last: int
    next: int
    tried: dict[int, str] = field(default_factory=dict)
    position: int = -1
    batch: bool = False
    denied: int = 0
    runs: list[EntryRun] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.next > self.last


class RangeReader:
    """Machine: read entries first..last. The world checks the bound (RD-1) before it makes one.

    Completed chunks leave through ``Complete("run", EntryRun)`` in order; the end is ``Complete("end")`` or ``Fail("end", error)``.
    """

    def __init__(
        self, ledger_id: int, metadata: LedgerMetadata, first: int, last: int, *, start: int, batch: bool, limits: Limits | None = None
    ) -> None:
        self.ledger_id = ledger_id
        self.batch_refused = False
        self._metadata = metadata
        self._limits = limits or Limits()
        self._distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        self._batch = batch and not self._distribution.striped
        self._start = start  # rotates the replica order (RD-2, sticky without striping)
        self._hmac_key = digests.hmac_key(metadata.password)
        self._next, self._last = first, last
        self._chunks: deque[_Chunk] = deque()
        self._asked: dict[int, _Chunk] = {}
        self._requests = 0
        self._unconsumed = 0
        self._finished = False

    def start(self) -> list[Effect]:
        return self.resume()

    def consumed(self) -> list[Effect]:
        """The caller took one run; its place in the window is free again."""
        self._unconsumed -= 1
        return self.resume()

    def resume(self) -> list[Effect]:
        """Fill the window of chunks in flight."""
        effects: list[Effect] = []
        window = self._limits.read_chunks_in_flight if self._batch else 256
        while not self._finished and self._next <= self._last and len(self._chunks) + self._unconsumed < window:
            size = self._limits.read_chunk_entries if self._batch else 1
            fragment_end = self._fragment_end(self._next)
            chunk = _Chunk(self._next, min(self._next + size - 1, self._last, fragment_end), self._next)
            self._next = chunk.last + 1
            self._chunks.append(chunk)
            effects += self._ask(chunk)
        return effects + self._deliver()

    def _fragment_end(self, entry_id: int) -> int:
        for fragment in self._metadata.fragments:
            if fragment.first_entry_id > entry_id:
                return fragment.first_entry_id - 1
        return self._last

    def _replicas(self, entry_id: int) -> list[int]:
        order = self._distribution.write_set(entry_id)
        if self._distribution.striped:
            return list(order)
        size = self._distribution.ensemble_size
        return [(self._start + k) % size for k in range(size)]

    def _ask(self, chunk: _Chunk) -> list[Effect]:
        position = next((p for p in self._replicas(chunk.next) if p not in chunk.tried), None)
        if position is None:
            return self._failed(chunk)
        self._requests += 1
        request = self._requests
        self._asked[request] = chunk
        chunk.position = position
        bookie = self._metadata.fragment_of(chunk.next).ensemble[position]
        chunk.batch = self._batch and chunk.last > chunk.next
        if not chunk.batch:
            return [SendRead(request, bookie, ReadRequest(request, self.ledger_id, chunk.next))]
        count = chunk.last - chunk.next + 1
        return [SendRead(request, bookie, BatchReadRequest(request, self.ledger_id, chunk.next, count, self._limits.read_batch_bytes))]

    def handle(self, event: object, now_ns: int) -> list[Effect]:
        if not isinstance(event, ReadReply):
            return []
        chunk = self._asked.pop(event.request, None)
        if chunk is None or self._finished:
            return []
        problem = self._take(chunk, event)
        if problem is None:
            effects: list[Effect] = [] if chunk.done else self._ask(chunk)
            return effects + self._deliver() + self.resume()
        if chunk.batch and event.status in (Status.UNAVAILABLE, Status.BAD_REQUEST, Status.PROTOCOL_ERROR):
            self._batch, self.batch_refused = False, True  # an old bookie closes on a batch read (wire-protocol.md 8.5)
            return self._ask(chunk)  # the same replicas again, one entry at a time
        chunk.tried[chunk.position] = problem
        line = f"ledger {self.ledger_id} entry {chunk.next}: {problem} at {event.bookie}; asking another replica"
        return [Log("warning", line), *self._ask(chunk)]

    def _take(self, chunk: _Chunk, event: ReadReply) -> str | None:
        """Verify what came; None if at least one more entry of the chunk is there now."""
        if event.status in (Status.NO_ENTRY, Status.NO_LEDGER):
            chunk.denied += 1
            return "no such entry"
        if event.status is not Status.OK:
            return event.status.name.lower().replace("_", " ")
        try:
            run = self._verify(chunk, event.response)
        except DigestError as error:
            return f"corrupt copy ({error.args[0]})"
        except RemoteProtocolError as error:
            return f"malformed answer ({error.args[0]})"
        if run is None:
            return "empty answer"
        chunk.runs.append(run)
        chunk.next = run.last_entry_id + 1
        chunk.tried.clear()
        chunk.denied = 0
        return None

    def _verify(self, chunk: _Chunk, response: object) -> EntryRun | None:
        if isinstance(response, ReadResponse) and response.body is not None:
            entry = layout.decode_body(response.body, self.ledger_id, chunk.next, self._metadata.digest_type, self._hmac_key)
            payload = bytes(entry.payload)
            return EntryRun(chunk.next, 1, payload, memoryview(array("q", (0, len(payload)))))
        if not isinstance(response, BatchReadResponse) or not response.bodies:
            return None
        bodies = response.bodies
        ids, offsets, values, _ = kernels.unpack_entries(bodies, 0, self.ledger_id, int(self._metadata.digest_type), self._hmac_key)
        entry_ids = memoryview(ids).cast("q")
        count = len(entry_ids)
        wanted = array("q", range(chunk.next, chunk.next + count))
        if entry_ids.tobytes() != wanted.tobytes() or chunk.next + count - 1 > chunk.last:
            raise DigestError(
                f"a batch read of ledger {self.ledger_id} from entry {chunk.next} brought other entries", ledger=self.ledger_id
            )
        return EntryRun(chunk.next, count, values, memoryview(offsets).cast("q"))

    def _failed(self, chunk: _Chunk) -> list[Effect]:
        """RD-6: NoSuchEntry only when every replica denies; the message names each replica and what it said."""
        self._finished = True
        ensemble = self._metadata.fragment_of(chunk.next).ensemble
        answers = ", ".join(f"{ensemble[p]}: {why}" for p, why in sorted(chunk.tried.items()))
        error: BkError
        if chunk.denied >= self._distribution.write_quorum_size:
            error = NoSuchEntryError(
                f"entry {chunk.next} of ledger {self.ledger_id} is on none of its bookies ({answers})",
                ledger=self.ledger_id,
                entry=chunk.next,
            )
        else:
            error = ReadError(
                f"entry {chunk.next} of ledger {self.ledger_id} cannot be read ({answers})", ledger=self.ledger_id, entry=chunk.next
            )
        return [Fail("end", error)]

    def _deliver(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._chunks and not self._finished:
            chunk = self._chunks[0]
            effects += [Complete("run", run) for run in chunk.runs]
            self._unconsumed += len(chunk.runs)
            chunk.runs = []
            if not chunk.done:
                break
            self._chunks.popleft()
        if not self._finished and not self._chunks and self._next > self._last:
            self._finished = True
            effects.append(Complete("end"))
        return effects


class LacReader:
    """Machine: the LAC of an unclosed ledger by asking all bookies of its last fragment without fencing (LC-1, OP-3).

    ``explicit`` also asks for the explicit LAC (v3). Completes ``token`` with the LAC, floored at the entry before the last fragment (D5).
    """

    def __init__(self, ledger_id: int, metadata: LedgerMetadata, token: object) -> None:
        self.ledger_id = ledger_id
        self._metadata = metadata
        self._token = token
        self._distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        self._hmac_key = digests.hmac_key(metadata.password)
        self._heard: dict[int, int] = {}
        self._failed: dict[int, Status] = {}
        self._finished = False

    def start(self) -> list[Effect]:
        ensemble = self._metadata.last_fragment.ensemble
        return [SendRead(p, b, ReadLacRequest(p, self.ledger_id)) for p, b in enumerate(ensemble)]

    def handle(self, event: object, now_ns: int) -> list[Effect]:
        if not isinstance(event, ReadReply) or self._finished:
            return []
        value = self._value(event)
        if value is None:
            self._failed[event.request] = event.status
        else:
            self._heard[event.request] = value
        everyone = self._distribution.ensemble_size
        if len(self._heard) == everyone or (self._failed and self._distribution.covered(self._heard)):
            return self._finish()
        if len(self._heard) + len(self._failed) < everyone:
            return []
        self._finished = True
        if Status.UNAUTHORIZED in self._failed.values():
            return [
                Fail(self._token, UnauthorizedError(f"a bookie refused to tell the LAC of ledger {self.ledger_id}", ledger=self.ledger_id))
            ]
        ensemble = self._metadata.last_fragment.ensemble
        answers = ", ".join(f"{ensemble[p]}: {s.name.lower()}" for p, s in sorted(self._failed.items()))
        message = f"the LAC of ledger {self.ledger_id} is not known: too few of its bookies answered ({answers})"
        return [Fail(self._token, ReadError(message, ledger=self.ledger_id))]

    def _finish(self) -> list[Effect]:
        self._finished = True
        floor = self._metadata.last_fragment.first_entry_id - 1
        return [Complete(self._token, max([floor, *self._heard.values()]))]

    def _value(self, event: ReadReply) -> int | None:
        """The bodies count even beside EIO: a bookie with an explicit LAC and no entries answers so (wire-protocol.md 8.8)."""
        if event.status in (Status.NO_ENTRY, Status.NO_LEDGER):
            return -1
        response = event.response
        if not isinstance(response, ReadLacResponse):
            return None
        values: list[int] = []
        digest_type = self._metadata.digest_type
        try:
            if response.lac_body:
                values.append(layout.decode_lac_packet(response.lac_body, self.ledger_id, digest_type, self._hmac_key))
            if response.last_entry_body:
                entry = layout.decode_body(response.last_entry_body, self.ledger_id, None, digest_type, self._hmac_key)
                values.append(entry.last_add_confirmed)
        except (DigestError, RemoteProtocolError):
            return None
        return max(values) if values else None
