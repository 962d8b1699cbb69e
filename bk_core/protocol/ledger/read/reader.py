"""Reading a range of entries. Readers never send the fence flag and never write metadata (OP-5).

Theory of operation. A range is cut into blocks that stay inside one fragment (RD-10). Without striping a block is one chunk of many
entries, asked of one replica at a time: by batch read, or where the bookie has none by a run of single reads. With striping a block has E
chunks, its lanes: every E-th entry, which all have the same write set, so that a lane is read like a ledger without striping; the lanes
are merged when all are there. A replica that fails, denies or shows a bad copy is passed over for the next one (RD-3, RD-8); an answer
that brings only a prefix is good for that prefix. Blocks are delivered in order as EntryRuns. How far the machine reads ahead is bounded in
bytes (``ReadAhead``); what its reader waits for is always asked for.

A chunk is asked in rounds: a round is over when at least one more entry of it is there, and nothing that belongs to an earlier round
counts any more (RD-12).
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable

from bk_core.errors import BkError, DigestError, NoSuchEntryError, NoSuchLedgerError, RemoteProtocolError
from bk_core.protocol.effects import Complete, Effect, Fail, Log, ReadLedger, SendRead, SetTimer
from bk_core.protocol.entry import digests, layout
from bk_core.protocol.events import LedgerRead, MetadataChanged, Outcome, ReadReply, ReadsMoving, TimerFired
from bk_core.protocol.ledger.answers import Wanted, entry_run
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import BookieId, LedgerMetadata, LedgerState
from bk_core.protocol.ledger.read.chunks import SINGLE_READS_IN_FLIGHT, Attempt, Block, Chunk, EntrySizes, ReadAhead
from bk_core.protocol.ledger.read.failures import Failure, failure_of, read_error
from bk_core.protocol.ledger.read.lac_reader import LacReader
from bk_core.protocol.ledger.read.options import ReadMode, ReadOptions
from bk_core.protocol.ledger.read.replica_order import ReplicaOrder
from bk_core.protocol.ledger.read.unreachable import Unreachable, only_unreachable
from bk_core.protocol.ledger.run import EntryRun
from bk_core.protocol.limits import Limits
from bk_core.protocol.wire import read_run
from bk_core.protocol.wire.batch_parts import BatchParts, BodyCheck
from bk_core.protocol.wire.messages import (
    BatchReadRequest,
    BatchReadResponse,
    ReadRequest,
    ReadResponse,
    ReadRunRequest,
    ReadRunResponse,
    Request,
    Status,
)

__all__ = ["SINGLE_READS_IN_FLIGHT", "LacReader", "RangeReader"]

SPECULATE = "speculate"
AGAIN = "read-again"
# A bookie that has no batch read gives one of these answers to it. An old one closes the connection (wire-protocol.md 8.5), which a link
# reports as BAD_REQUEST (LINK-7). A lost connection says nothing about the bookie.
_BATCH_REFUSALS = frozenset((Status.BAD_REQUEST, Status.PROTOCOL_ERROR))


class RangeReader:
    """Machine: reads the entries first..last. The world checks the bound (RD-1) before it makes one.

    Its effects for the world are ``Complete("run", EntryRun)`` in order, ``Complete("heard", lac)`` when an answer tells a higher LAC than
    was asked for (RD-9), and ``Complete("metadata", (metadata, version))`` when it found newer metadata. The end is ``Complete("end")`` or
    ``Fail("end", error)``: NoSuchEntryError, ReadError (RD-6), NoSuchLedgerError. ``order`` is shared by the reads of one handle; without
    it ``start`` is the sticky position. ``unconfirmed`` reads may meet entries that are not there, and report that without an alarm
    (RD-11). Requests are numbered from ``first_request``. ``sizes`` are shared by the reads of one handle, ``ahead`` by those of one tail.
    """

    def __init__(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        *,
        start: int | None = None,
        batch: bool,
        limits: Limits | None = None,
        order: ReplicaOrder | None = None,
        options: ReadOptions | None = None,
        version: int = -1,
        unconfirmed: bool = False,
        first_request: int = 1,
        sizes: EntrySizes | None = None,
        ahead: ReadAhead | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self.batch_refused = False
        self.trouble = ""  # the obstacle while bookies cannot be reached (RD-13); any thread may read it
        self.next_request = first_request
        self._metadata, self._version = metadata, version
        self._limits = limits or Limits()
        self._options = options or ReadOptions()
        self._distribution = Distribution(metadata.ensemble_size, metadata.write_quorum_size, metadata.ack_quorum_size)
        self._batch = batch and not self._distribution.striped
        self._order = order or ReplicaOrder(self._distribution, start)
        self._hmac_key = digests.hmac_key(metadata.password)
        self._check = BodyCheck(int(metadata.digest_type), self._hmac_key)
        self._unconfirmed = unconfirmed
        self._next, self._last = first, last
        self._heard = -1 if unconfirmed else last
        self._vanished: int | None = None  # the first entry that a CLOSED ledger turned out not to have
        self._blocks: deque[Block] = deque()
        self._turn = self._since_turn = 0
        self._lanes = metadata.ensemble_size if self._distribution.striped else 1
        self._earlier = ahead.unconsumed if ahead else 0  # runs that other reads of this tail handed out; the caller takes these first
        self._ahead = ahead or ReadAhead(self._limits, self._lanes, sizes or EntrySizes(metadata))
        self._asked: dict[int, Attempt] = {}
        self._looking: dict[int, Chunk] = {}
        self._glancing: dict[int, Chunk] = {}  # reads of the metadata during the wait for bookies that cannot be reached
        self._unreachable = Unreachable(self._limits)
        self._again_armed = False
        self._now_ns = 0
        self._answered: set[BookieId] = set()
        self._moving: frozenset[int] = frozenset()
        self._delay_ns = self._limits.speculative_read_ns
        self._armed = False
        self._finished = False

    # --- calls of the world ------------------------------------------------------------------------------------------

    def start(self) -> list[Effect]:
        return self.resume()

    def consumed(self) -> list[Effect]:
        """Note that the caller took one run, which frees its place in the window."""
        self._ahead.consumed()
        self._earlier = max(0, self._earlier - 1)
        return self.resume()

    def resume(self) -> list[Effect]:
        """Ask for as much as there is room for."""
        effects: list[Effect] = []
        for chunk in self._chunks():
            if chunk.parked and self._may_ask(chunk):
                effects += self._new_round(chunk)
        while not self._finished and self._next <= self._last and self._may_begin():
            last = min(self._next + self._ahead.entries(self._batch) - 1, self._last, self._fragment_end(self._next))
            block = Block(self._next, last, self._lanes, self._turn)
            self._take_turns(last + 1 - self._next)
            self._next = last + 1
            self._blocks.append(block)
            for lane in block.lanes:
                effects += self._new_round(lane)
        return effects + self._deliver()

    def _take_turns(self, entries: int) -> None:
        """Let the replicas take turns (``ReadOptions.spread``): a bookie whose caches miss reads ahead, and is then asked for what it read
        ahead."""
        self._since_turn += entries
        if self._options.spread and self._since_turn >= self._limits.read_turn_entries:
            self._turn, self._since_turn = self._turn + 1, 0

    def _chunks(self) -> list[Chunk]:
        return [lane for block in self._blocks for lane in block.lanes]

    def _may_begin(self) -> bool:
        under_way = len(self._blocks) + self.unconsumed
        if not under_way:
            return not self._earlier or self._has_room()
        return under_way < self._ahead.blocks(self._batch) and self._has_room()

    def _may_ask(self, chunk: Chunk) -> bool:
        """Return True if the block may be asked for. The first missing entry is always asked for once the reader has taken
        everything else."""
        return self._has_room() or (not self._ahead.unconsumed and chunk.next == self._blocks[0].ready)

    def _has_room(self) -> bool:
        if self._ahead.has_room(self._next - self._blocks[0].first if self._blocks else 0):
            return True  # even if none of these entries is there yet
        asked = 0
        for block in self._blocks:
            for lane in block.lanes:
                if lane.asked:
                    asked += (max([attempt.last for attempt in lane.asked.values()]) - lane.next) // lane.step + 1
        return self._ahead.has_room(asked)

    def handle(self, event: object, now_ns: int) -> list[Effect]:
        """Take one input. After the end no input changes the operation (RD-12)."""
        if self._finished:
            return []
        self._now_ns = now_ns
        match event:
            case ReadReply():
                return self._on_reply(event)
            case ReadsMoving(requests=requests, away=away):
                self._moving = requests
                self._answered -= away
                return []
            case TimerFired(key=key) if key == SPECULATE:
                return self._speculate()
            case TimerFired(key=key) if key == AGAIN:
                return self._ask_again()
            case LedgerRead():
                return self._on_metadata_read(event)
            case MetadataChanged(metadata=metadata, version=version):
                self._adopt(metadata, version)
                return self.resume()
        return []

    @property
    def unconsumed(self) -> int:
        """The runs handed out that the caller has not taken yet."""
        return self._ahead.unconsumed - self._earlier

    # --- asking ------------------------------------------------------------------------------------------------------

    def _fragment_end(self, entry_id: int) -> int:
        """Return the last entry of this one's fragment, because a batch stays inside the fragment of its first entry (RD-10)."""
        following = self._metadata.first_entry_after(entry_id)
        return self._last if following is None else following - 1

    def _new_round(self, chunk: Chunk) -> list[Effect]:
        chunk.parked = chunk.waiting = False
        self._forget(chunk.asked)
        chunk.asked.clear()
        chunk.tried.clear()
        chunk.failures.clear()
        chunk.ensemble = self._metadata.fragment_of(chunk.next).ensemble
        return self._ask(chunk)

    def _forget(self, requests: Iterable[int]) -> None:
        """Forget these requests; their answers will be ignored (RD-12)."""
        for request in requests:
            self._asked.pop(request, None)

    def _ask(self, chunk: Chunk) -> list[Effect]:
        """Ask the next replica (RD-3), or all of them (RD-5)."""
        positions = self._next_untried(chunk) if self._options.mode is ReadMode.SEQUENTIAL else self._untried(chunk)
        effects = [self._send(chunk, position) for position in positions]
        if effects or chunk.asked:
            return effects + self._arm()
        return self._exhausted(chunk)

    def _next_untried(self, chunk: Chunk) -> list[int]:
        position = self._order.first(chunk.next, chunk.ensemble, chunk.turn, chunk.tried)
        return [] if position is None else [position]

    def _untried(self, chunk: Chunk) -> list[int]:
        return [p for p in self._order.positions(chunk.next, chunk.ensemble, chunk.turn) if p not in chunk.tried]

    def _send(self, chunk: Chunk, position: int, *, probe: bool = False) -> Effect:
        request, self.next_request = self.next_request, self.next_request + 1
        batch = self._batch and chunk.left > 1 and not probe
        attempt = Attempt(chunk, position, chunk.ensemble[position], self._until(chunk, batch, probe), batch, probe)
        self._asked[request] = chunk.asked[request] = attempt
        chunk.tried.add(position)
        return SendRead(request, attempt.bookie, self._message(request, attempt))

    def _until(self, chunk: Chunk, batch: bool, probe: bool) -> int:
        """Return the last entry to ask for. Single reads ask for no more at once than one answer may hold, by the sizes of the entries so
        far."""
        if batch:
            return chunk.last
        return chunk.next if probe else min(chunk.last, chunk.next + (self._ahead.run_entries() - 1) * chunk.step)

    def _message(self, request: int, attempt: Attempt) -> Request:
        chunk = attempt.chunk
        if attempt.last == chunk.next:
            return ReadRequest(request, self.ledger_id, chunk.next)
        if attempt.batch:
            return BatchReadRequest(request, self.ledger_id, chunk.next, chunk.left, self._limits.read_batch_bytes, check=self._check)
        count = (attempt.last - chunk.next) // chunk.step + 1
        return ReadRunRequest(request, self.ledger_id, chunk.next, count, chunk.step, self._ahead.run_bytes)

    # --- speculation -------------------------------------------------------------------------------------------------

    def _arm(self) -> list[Effect]:
        """Set one timer for the whole operation, while something is asked for (RD-4)."""
        if self._armed or not self._may_speculate() or not self._asked:
            return []
        self._armed = True
        return [SetTimer(SPECULATE, self._delay_ns)]

    def _may_speculate(self) -> bool:
        return self._options.speculative and self._options.mode is ReadMode.SEQUENTIAL and self._distribution.write_quorum_size > 1

    def _speculate(self) -> list[Effect]:
        """Ask another replica: first after 2 s, then after pauses that double up to a bound. Progress starts over (RD-4)."""
        if not self._armed:
            return []
        self._armed = False
        self._delay_ns = min(self._delay_ns * 2, self._limits.speculative_read_ns_max)
        effects: list[Effect] = []
        for chunk in self._chunks():
            if chunk.asked and not self._heard_from(chunk):
                effects += [self._send(chunk, position) for position in self._next_untried(chunk)]
        return effects + self._arm()

    def _heard_from(self, chunk: Chunk) -> bool:
        """Return True if one of the replicas asked for it has answered well for any entry of this operation: it is alive and will answer
        again (RD-4), unless its connection is gone since. The same holds if its answer waits behind others that come (LINK-1)."""
        if not self._moving.isdisjoint(chunk.asked):
            return True
        return any(attempt.bookie in self._answered for attempt in chunk.asked.values())

    # --- answers -----------------------------------------------------------------------------------------------------

    def _on_reply(self, reply: ReadReply) -> list[Effect]:
        attempt = self._asked.pop(reply.request, None)
        if attempt is None:
            return []
        chunk = attempt.chunk
        del chunk.asked[reply.request]
        run, failure = self._verified(attempt, reply)
        if run is not None:
            return self._progress(attempt, run, failure, reply)
        assert failure is not None
        if attempt.batch and reply.status in _BATCH_REFUSALS:
            return [self._send(chunk, attempt.position, probe=True)]
        return [*self._note(attempt, chunk.next, failure), *self._next_after_failure(chunk)]

    def _next_after_failure(self, chunk: Chunk) -> list[Effect]:
        """Ask another replica if nothing is outstanding (RD-3)."""
        if chunk.asked:
            return []
        return self._ask(chunk)

    def _note(self, attempt: Attempt, entry_id: int, failure: Failure) -> list[Effect]:
        attempt.chunk.failures[attempt.position] = failure
        self._order.failed(attempt.position)
        line = f"ledger {self.ledger_id} entry {entry_id}: {failure.text} at {attempt.bookie}; asking another replica"
        expected = self._unconfirmed and failure.denial  # nobody has promised that the entry is there (RD-11)
        return [Log("debug" if self._unreachable.waits or expected else "warning", line)]

    def _progress(self, attempt: Attempt, run: EntryRun, failure: Failure | None, reply: ReadReply) -> list[Effect]:
        """Take a verified prefix, which is a valid answer (RD-10). ``failure`` is the error behind it: that replica is not asked for the
        rest."""
        chunk = attempt.chunk
        if attempt.probe:
            self._batch, self.batch_refused = False, True
        self._answered.add(attempt.bookie)
        self._unreachable.answered()
        self.trouble = ""
        self._delay_ns = self._limits.speculative_read_ns
        chunk.runs.append(run)
        self._ahead.arrived(run)
        chunk.next = run.last_entry_id + chunk.step
        chunk.looked_again = False
        effects = [] if failure else self._heard_lac(reply)
        if chunk.done:
            self._forget(chunk.asked)
            chunk.asked.clear()
        else:
            effects += self._rest(attempt, failure)
        return effects + self._deliver() + self.resume()

    def _rest(self, attempt: Attempt, failure: Failure | None) -> list[Effect]:
        chunk = attempt.chunk
        noted = [] if failure is None else self._note(attempt, chunk.next, failure)
        self._forget(chunk.asked)
        chunk.asked.clear()
        chunk.parked = True  # ``resume`` goes on with it, now or when there is room
        return noted

    def _heard_lac(self, reply: ReadReply) -> list[Effect]:
        """Tell the world a higher LAC (RD-9). It counts only beside a verified entry; v2 answers carry none."""
        lac = getattr(reply.response, "max_lac", None)
        if lac is None or lac <= self._heard:
            return []
        self._heard = lac
        return [Complete("heard", lac)]

    def _verified(self, attempt: Attempt, reply: ReadReply) -> tuple[EntryRun | None, Failure | None]:
        """Return the entries that are what was asked for, and the failure of the first that is not (RD-8)."""
        if reply.status is not Status.OK:
            return None, failure_of(reply.status)
        try:
            run, problem = self._unpack(attempt, reply.response)
        except DigestError as error:
            return None, Failure(None, f"corrupt copy ({error.args[0]})")
        except RemoteProtocolError as error:
            return None, Failure(None, f"malformed answer ({error.args[0]})")
        if problem is not None:
            return run, Failure(None, f"corrupt copy ({problem.args[0]})")
        return run, None if run is not None else Failure(None, "empty answer")

    def _unpack(self, attempt: Attempt, response: object) -> tuple[EntryRun | None, DigestError | None]:
        chunk, digest_type = attempt.chunk, self._metadata.digest_type
        match response:
            case ReadResponse(body=body) if body is not None and attempt.single:
                return _one(layout.decode_body(body, self.ledger_id, chunk.next, digest_type, self._hmac_key).payload, chunk), None
            case ReadRunResponse(frames=frames) if frames and not attempt.batch:
                run, problem = entry_run(frames, read_run.HEADER_BYTES, self._wanted(attempt))
            case BatchReadResponse(parts=parts) if parts is not None and attempt.batch:
                run, problem = _of_parts(parts, chunk)
            case BatchReadResponse(bodies=bodies) if bodies and attempt.batch:
                run, problem = entry_run(bodies, 0, self._wanted(attempt))
            case _:
                return None, None
        return (None if run is None else run.up_to(chunk.last)), problem  # the ledger was closed below what was asked for (OP-6)

    def _wanted(self, attempt: Attempt) -> Wanted:
        chunk = attempt.chunk
        return Wanted(self.ledger_id, chunk.next, attempt.last, chunk.step, self._metadata.digest_type, self._hmac_key)

    # --- when no replica helps -----------------------------------------------------------------------------------------

    def _exhausted(self, chunk: Chunk) -> list[Effect]:
        """Read the metadata once more before an entry is given up, because its replicas may be others now, or elsewhere (RD-7)."""
        if self._may_come_back(chunk) and (pause_ns := self._unreachable.failed(self._now_ns)) is not None:
            return self._wait(chunk, pause_ns)
        if chunk.looked_again:
            return self._fail(self._error(chunk), alarm=True)
        chunk.looked_again = True
        request, self.next_request = self.next_request, self.next_request + 1
        self._looking[request] = chunk
        return [ReadLedger(request, chunk.ensemble)]

    def _may_come_back(self, chunk: Chunk) -> bool:
        """Return True if a replica that cannot be reached may still have the entry. A confirmed entry exists, so another replica's denial
        does not settle it (RD-13)."""
        statuses = [failure.status for failure in chunk.failures.values()]
        return only_unreachable(statuses, denials_count=not self._unconfirmed)

    def _wait(self, chunk: Chunk, pause_ns: int) -> list[Effect]:
        """Wait and ask again (RD-13). Meanwhile the metadata is read, which may name other replicas by now (RD-7)."""
        effects: list[Effect] = []
        self.trouble = str(self._error(chunk).args[0])
        if not chunk.looked_again:
            effects.append(Log("warning", f"{self.trouble}; asking again for up to {self._unreachable.patience_s:g} s"))
        chunk.waiting = chunk.looked_again = True
        if chunk not in self._glancing.values():
            request, self.next_request = self.next_request, self.next_request + 1
            self._glancing[request] = chunk
            effects.append(ReadLedger(request, chunk.ensemble))
        if not self._again_armed:
            self._again_armed = True
            effects.append(SetTimer(AGAIN, pause_ns))
        return effects

    def _ask_again(self) -> list[Effect]:
        self._again_armed = False
        effects: list[Effect] = []
        for chunk in self._chunks():
            if chunk.waiting and not chunk.done:
                effects += self._new_round(chunk)
        return effects

    def _on_metadata_read(self, read: LedgerRead) -> list[Effect]:
        glance = read.request in self._glancing
        chunk = (self._glancing if glance else self._looking).pop(read.request, None)
        if chunk is None:
            return []
        if read.outcome is Outcome.NO_SUCH_LEDGER:
            return self._fail(NoSuchLedgerError(f"ledger {self.ledger_id} was deleted", ledger=self.ledger_id))
        effects: list[Effect] = []
        if read.outcome is Outcome.OK and read.metadata is not None and read.version > self._version:
            effects.append(Complete("metadata", (read.metadata, read.version)))
            self._adopt(read.metadata, read.version)
        if chunk.done or chunk not in self._chunks():  # the ledger was closed below it
            return effects + self._deliver()
        same = self._metadata.fragment_of(chunk.next).ensemble == chunk.ensemble and not read.moved
        if glance and (same or chunk.parked):
            return effects
        if chunk.asked and not glance:  # the other read of the metadata has found other replicas meanwhile
            return effects
        if same:
            return effects + self._fail(self._error(chunk), alarm=True)
        return effects + self._new_round(chunk)

    def _adopt(self, metadata: LedgerMetadata, version: int) -> None:
        """Take newer metadata: later reads use its fragments. A CLOSED ledger has no entries beyond its end, whatever was asked
        for (OP-6)."""
        if version <= self._version:
            return
        self._metadata, self._version = metadata, version
        if metadata.state is LedgerState.CLOSED and metadata.last_entry_id < self._last:
            self._clip(metadata.last_entry_id)

    def _clip(self, end: int) -> None:
        self._vanished = end + 1
        self._last = end
        self._next = min(self._next, end + 1)
        for block in [b for b in self._blocks if b.last > end]:
            before = block.held
            for chunk in block.cut(end) + [lane for lane in block.lanes if lane.done]:
                self._forget(chunk.asked)
                chunk.asked.clear()
            self._ahead.held -= before - block.held
            if not block.lanes:
                self._blocks.remove(block)

    def _error(self, chunk: Chunk) -> BkError:
        replicas, note = self._distribution.write_quorum_size, self._metadata.access_note
        return read_error(self.ledger_id, chunk.next, chunk.ensemble, chunk.failures, replicas, note, tried=str(self._unreachable))

    def _fail(self, error: BkError, *, alarm: bool = False) -> list[Effect]:
        self._finished = True
        effects: list[Effect] = [Fail("end", error)]
        if alarm and isinstance(error, NoSuchEntryError) and not self._unconfirmed:  # RD-6: data was lost, or the metadata is wrong
            effects.insert(0, Log("error", f"confirmed {error.args[0]}: data loss, or wrong metadata"))
        return effects

    def _deliver(self) -> list[Effect]:
        """Hand out the runs in the order of their ids (RD-10)."""
        effects: list[Effect] = []
        while self._blocks and not self._finished:
            block = self._blocks[0]
            for run in block.take() or self._ready_of(block):
                self._ahead.delivered(run)
                effects.append(Complete("run", run))
            if not block.done:
                break
            self._blocks.popleft()
        if not self._finished and not self._blocks and self._next > self._last:
            effects += self._end()
        return effects

    def _ready_of(self, block: Block) -> list[EntryRun]:
        """Return the gapless part of a striped block, if only its delivery makes room for the rest."""
        return [] if self._lanes == 1 or block.done or self._has_room() else block.take_ready()

    def _end(self) -> list[Effect]:
        if self._vanished is None:
            self._finished = True
            return [Complete("end")]
        message = f"entry {self._vanished} is not part of ledger {self.ledger_id}: it was closed at entry {self._last}"
        return self._fail(NoSuchEntryError(message, ledger=self.ledger_id, entry=self._vanished))


def _of_parts(parts: BatchParts, chunk: Chunk) -> tuple[EntryRun | None, DigestError | None]:
    """Do the same as ``entry_run`` for entries that were verified while they arrived."""
    run = EntryRun(chunk.next, parts.count, parts.values, parts.offsets) if parts.count else None
    problem = parts.problem
    if problem is None or (run is not None and isinstance(problem, DigestError)):
        return run, problem
    raise problem


def _one(payload: bytes, chunk: Chunk) -> EntryRun:
    return EntryRun(chunk.next, 1, payload, memoryview(array("q", (0, len(payload)))), chunk.step)
