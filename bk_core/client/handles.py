"""Handles of one ledger: blocking calls and futures over the reactor. A handle may be used from several threads."""

from __future__ import annotations

import operator
import queue
import random
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType
from typing import Any, Self

from bk_core.client.session import Driver, Session
from bk_core.errors import BkError, ClientClosedError, InvalidArgumentError, NoNodeError, NoSuchLedgerError, OperationTimeoutError
from bk_core.protocol.effects import Complete, Effect, SendRead
from bk_core.protocol.entry import layout
from bk_core.protocol.events import Event, ReadReply
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.ledger.reader import LacReader, RangeReader
from bk_core.protocol.ledger.run import ADD_FRAME_PREFIX_BYTES, EntryRun
from bk_core.protocol.ledger.writer import LedgerWriter
from bk_core.protocol.wire.messages import LAST_ENTRY, ReadRequest, ReadResponse, Status

RUN_ENTRIES_MAX = 1024
ROOM_POLL_S = 1.0  # every acknowledgement wakes a waiting append; this is only a safety net


def wait(future: Future[Any], timeout_s: float, what: str) -> Any:
    """The future's result; OperationTimeoutError names what was being done."""
    try:
        return future.result(timeout=timeout_s)
    except FutureTimeoutError:
        if future.done():
            raise
        raise OperationTimeoutError(f"{what} did not finish within {timeout_s:g} s; it may still take effect") from None


class WriteHandle:
    """The writer of one ledger. Appends are acknowledged in order; see WR-13 for what an error means."""

    def __init__(self, session: Session, ledger_id: int, metadata: LedgerMetadata, version: int) -> None:
        self.ledger_id = ledger_id
        self._session = session
        self._limits = session.config.limits
        self._machine = LedgerWriter(ledger_id, metadata, version, session.placement, self._limits)
        self._driver = Driver(session, ledger_id)
        self._driver.machine = self._machine
        self._driver.set_quorums(metadata)
        self._driver.on_complete = self._completed
        self._driver.on_fail = self._failed
        self._order = threading.Lock()  # a run's entries are consecutive, whoever else appends
        self._lock = threading.Condition()
        self._in_flight_bytes = 0
        self._in_flight_runs = 0
        self._handed_over = 0
        self._waiting = False
        self._driver.on_step = self._stepped
        self._closed = False
        self._payload_bytes_max = self._limits.frame_bytes_max - ADD_FRAME_PREFIX_BYTES - layout.body_overhead(metadata.digest_type)

    @property
    def metadata(self) -> LedgerMetadata:
        return self._machine.metadata

    @property
    def last_add_confirmed(self) -> int:
        return self._machine.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of all entries handed in so far."""
        return self._machine.length

    def append(self, payload: bytes) -> int:
        """Append one entry and wait for its acknowledgement; its id."""
        return int(wait(self.append_future(payload), self._session.config.operation_timeout_s, f"append to ledger {self.ledger_id}"))

    def append_future(self, payload: bytes) -> Future[int]:
        """Append one entry; the future has its id once it is acknowledged."""
        return self.append_run(payload, array("q", (0, len(payload))))

    def append_many(self, payloads: Sequence[bytes]) -> Future[int]:
        """Append entries as one run; the future has the last one's id."""
        offsets = array("q", [0])
        for payload in payloads:
            offsets.append(offsets[-1] + len(payload))
        return self.append_run(b"".join(payloads), offsets)

    def append_run(self, payloads: Any, offsets: Any) -> Future[int]:
        """Append ``len(offsets) - 1`` entries; entry i is ``payloads[offsets[i]:offsets[i + 1]]`` (int64 offsets).

        The future has the id of the run's last entry once the whole run is acknowledged. Blocks while more than
        ``pending_bytes_max`` are in flight. Raises InvalidArgumentError for a payload over the frame limit, before anything is sent.
        """
        bounds = memoryview(memoryview(offsets).tobytes()).cast("q")
        if len(bounds) < 2:
            raise InvalidArgumentError("an empty run cannot be appended")
        if not isinstance(payloads, bytes):
            payloads = bytes(payloads)  # packaged later, on the reactor thread: the caller's buffer may have changed by then
        self._check_sizes(bounds, len(payloads))
        future: Future[int] = Future()
        with self._order, self._lock:
            # Long runs go in pieces, so that the reactor can take acknowledgements in between.
            for start in range(0, len(bounds) - 1, RUN_ENTRIES_MAX):
                piece = bounds[start : start + RUN_ENTRIES_MAX + 1]
                last = start + RUN_ENTRIES_MAX >= len(bounds) - 1
                self._admit(payloads, piece, future if last else None)
        return future

    def _admit(self, payloads: bytes, bounds: memoryview, future: Future[int] | None) -> None:
        size, count = bounds[-1] - bounds[0], len(bounds) - 1
        self._wait_for_room(size, count)
        self._in_flight_bytes += size
        self._in_flight_runs += 1
        self._handed_over += count  # until the reactor has taken it, then it counts as unretired

        def hand_over() -> list[Effect]:
            with self._lock:
                self._handed_over -= count
            return self._machine.append(payloads, bounds, (future, size), self._session.reactor.now_ns())

        self._post(hand_over)

    def _check_sizes(self, bounds: memoryview, total: int) -> None:
        edges = bounds.tolist()
        sizes = list(map(operator.sub, edges[1:], edges))
        if edges[0] < 0 or min(sizes) < 0 or edges[-1] > total:
            raise InvalidArgumentError(f"offsets of a run must rise within the {total} bytes of its payloads")
        largest = max(sizes)
        if largest > self._payload_bytes_max:
            raise InvalidArgumentError(
                f"a payload of {largest} bytes is too large for ledger {self.ledger_id}: "
                f"at most {self._payload_bytes_max} bytes fit into one frame",
                ledger=self.ledger_id,
            )

    def _wait_for_room(self, size: int, count: int) -> None:
        deadline = time.monotonic() + self._session.config.operation_timeout_s
        while not self._closed and self._is_full(size, count):
            left = deadline - time.monotonic()
            if left <= 0:
                raise OperationTimeoutError(
                    f"ledger {self.ledger_id}: {self._in_flight_bytes} bytes stayed unacknowledged, {self._machine.unretired_bytes} not "
                    "yet on all bookies; the rest of this run was not appended"
                )
            self._waiting = True
            self._lock.wait(timeout=min(left, ROOM_POLL_S))
        self._waiting = False
        if self._closed:
            raise ClientClosedError(f"ledger {self.ledger_id} was closed by this program", ledger=self.ledger_id)

    def _is_full(self, size: int, count: int) -> bool:
        """WR-15: bytes that nobody acknowledged, and bytes and entries that a slow bookie still has to take."""
        if self._in_flight_bytes and self._in_flight_bytes + size > self._limits.pending_bytes_max:
            return True
        entries = self._machine.unretired_entries + self._handed_over
        if entries and entries + count > self._limits.unretired_entries_max:
            return True
        return self._machine.unretired_bytes > self._limits.unretired_bytes_max

    def _stepped(self) -> None:
        if self._waiting:
            with self._lock:
                self._lock.notify_all()

    def _post(self, function: Callable[[], list[Effect]]) -> None:
        self._session.reactor.post(lambda: self._driver.perform(function()))

    def _completed(self, token: Any, value: Any) -> None:
        future, size = token
        self._release(size)
        if future is not None:
            future.set_result(value)

    def _failed(self, token: Any, error: Exception) -> None:
        future, size = token
        self._release(size)
        if future is not None:
            future.set_exception(error)

    def _release(self, size: int) -> None:
        with self._lock:
            self._in_flight_bytes -= size
            self._in_flight_runs -= 1
            self._lock.notify_all()

    def flush(self) -> None:
        """Wait until everything appended so far is acknowledged; its error if that fails."""
        deadline = time.monotonic() + self._session.config.operation_timeout_s
        with self._lock:
            while self._in_flight_runs:
                if not self._lock.wait(timeout=max(0.0, deadline - time.monotonic())):
                    raise OperationTimeoutError(f"ledger {self.ledger_id}: {self._in_flight_bytes} bytes stayed unacknowledged")
        if self._machine.error is not None:
            raise self._machine.error

    def close(self) -> LedgerMetadata:
        """Wait for what was appended, then close the ledger at its last acknowledged entry. Idempotent."""
        if not self._closed and self._machine.error is None:
            self.flush()
        return self._close()

    def _close(self) -> LedgerMetadata:
        future: Future[LedgerMetadata] = Future()
        with self._lock:
            self._closed = True
            self._in_flight_runs += 1
            self._lock.notify_all()
        self._post(lambda: self._machine.close((future, 0), self._session.reactor.now_ns()))
        try:
            metadata = wait(future, self._session.config.operation_timeout_s, f"closing ledger {self.ledger_id}")
        finally:
            self._session.reactor.post(self._driver.close)
        assert isinstance(metadata, LedgerMetadata)
        return metadata

    def abandon(self) -> None:
        """Stop without closing the ledger: somebody will have to recover it. What is in flight may or may not be in it."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._session.reactor.post(self._driver.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
            return
        try:
            self._close()
        except BkError:
            pass  # the error on its way out is the one to see

    def __repr__(self) -> str:
        return f"<WriteHandle ledger {self.ledger_id} {self._machine.state.name} last add confirmed {self.last_add_confirmed}>"


class ReadHandle:
    """A reader of one ledger. Never fences, never writes metadata (OP-5)."""

    def __init__(self, session: Session, ledger_id: int, metadata: LedgerMetadata, version: int) -> None:
        self.ledger_id = ledger_id
        self._session = session
        self._metadata = metadata
        self._version = version
        self._lac = metadata.last_entry_id if metadata.state is LedgerState.CLOSED else metadata.last_fragment.first_entry_id - 1
        self._start = random.randrange(metadata.ensemble_size)
        self._batch = session.config.protocol == "v2"
        self._changed = False
        self._watch = None if self.is_closed else session.store.watch_ledger(ledger_id, self._notice)

    def _notice(self) -> None:
        self._changed = True

    @property
    def metadata(self) -> LedgerMetadata:
        return self._metadata

    @property
    def is_closed(self) -> bool:
        return self._metadata.state is LedgerState.CLOSED

    @property
    def last_add_confirmed(self) -> int:
        """The highest entry that may be read; CLOSED: the last entry of the ledger."""
        return self._lac

    @property
    def length(self) -> int:
        """Payload bytes of a CLOSED ledger, as its metadata says (META-10); 0 before."""
        return self._metadata.length

    def refresh(self) -> None:
        """Read the metadata again (OP-6). NoSuchLedgerError if the ledger was deleted."""
        self._changed = False
        try:
            found = self._session.store.read_ledger(self.ledger_id)
        except NoNodeError:
            raise NoSuchLedgerError(f"ledger {self.ledger_id} was deleted", ledger=self.ledger_id) from None
        if found.version <= self._version:
            return
        self._metadata, self._version = metadata_codec.decode(found.data), found.version
        if self.is_closed:
            self._lac = self._metadata.last_entry_id

    def read(self, first: int, last: int) -> list[bytes]:
        """Payloads of entries first..last. InvalidArgumentError beyond the LAC (RD-1); ReadError, NoSuchEntryError (RD-6)."""
        return [payload for run in self.read_runs(first, last) for payload in run.payloads()]

    def read_runs(self, first: int, last: int, bytes_max: int = 8 << 20, *, unchecked_bound: bool = False) -> Iterator[EntryRun]:
        """Entries first..last in order, in runs. ``unchecked_bound`` reads past the handle's LAC: only for entries known to be
        acknowledged from elsewhere (RD-11)."""
        if not 0 <= first <= last:
            raise InvalidArgumentError(f"entries {first}..{last} are no range", ledger=self.ledger_id)
        if last > self._lac and not unchecked_bound and not self.is_closed:
            self.read_last_add_confirmed()
        if last > self._lac and (self.is_closed or not unchecked_bound):
            end = "last entry" if self.is_closed else "last add confirmed"
            raise InvalidArgumentError(f"entry {last} lies beyond the {end} {self._lac} of ledger {self.ledger_id}", ledger=self.ledger_id)
        if self._changed:
            self.refresh()
        try:
            yield from self._read(first, last)
        except _Stale as stale:
            yield from self._read(stale.next_entry_id, last, final=True)

    def _read(self, first: int, last: int, *, final: bool = False) -> Iterator[EntryRun]:
        stream = _RunStream(self, first, last, self._batch)
        following = first
        try:
            for run in stream:
                following = run.last_entry_id + 1
                yield run
        except BkError:
            # RD-7: once more with fresh metadata, if it changed meanwhile.
            version = self._version
            if final:
                raise
            self.refresh()
            if self._version == version:
                raise
            raise _Stale(following) from None
        finally:
            stream.close()
            if stream.machine.batch_refused:
                self._batch = False

    def read_last_add_confirmed(self) -> int:
        """Ask the bookies of the last fragment for the LAC (LC-1); for a CLOSED ledger its last entry (LC-4)."""
        if not self.is_closed:
            self.refresh()
        if self.is_closed:
            return self._lac
        machine = LacReader(self.ledger_id, self._metadata, None)
        value = int(_run(self._session, self.ledger_id, machine, machine.start))
        if not self.is_closed:
            self._lac = max(self._lac, value)
        return self._lac

    def wait_for(self, entry_id: int, timeout_s: float) -> bool:
        """Wait until ``entry_id`` may be read: True; False when the time is up or the ledger is CLOSED below it (LC-5, LC-7)."""
        deadline = time.monotonic() + timeout_s
        while entry_id > self._lac:
            if self.is_closed or (self.read_last_add_confirmed() < entry_id and self.is_closed):
                return entry_id <= self._lac
            left = deadline - time.monotonic()
            if entry_id <= self._lac or left <= 0:
                break
            self._long_poll(min(left, 1.0))
        return entry_id <= self._lac

    def _long_poll(self, timeout_s: float) -> None:
        """Ask every bookie of the last fragment to answer as soon as it knows a higher LAC; the first answer ends the wait."""
        machine = _LongPoll(self.ledger_id, self._metadata, self._lac, int(timeout_s * 1000))
        value = _run(self._session, self.ledger_id, machine, machine.start)
        if not self.is_closed and value is not None:
            self._lac = max(self._lac, int(value))

    def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ReadHandle ledger {self.ledger_id} {self._metadata.state.name} last add confirmed {self._lac}>"


class _Stale(Exception):
    def __init__(self, next_entry_id: int) -> None:
        super().__init__()
        self.next_entry_id = next_entry_id


class _LongPoll:
    """LC-5, LC-6: piggybacked long polls to all positions; completes with the first LAC above ``previous``, or None after all answered."""

    def __init__(self, ledger_id: int, metadata: LedgerMetadata, previous: int, timeout_ms: int) -> None:
        self._ledger_id = ledger_id
        self._ensemble = metadata.last_fragment.ensemble
        self._previous = previous
        self._timeout_ms = timeout_ms
        self._open = len(self._ensemble)

    def start(self) -> list[Effect]:
        message = ReadRequest(0, self._ledger_id, LAST_ENTRY, previous_lac=self._previous, timeout_ms=self._timeout_ms, piggyback=True)
        patience = (self._timeout_ms + 2000) * 1_000_000
        return [SendRead(p, bookie, message, patience) for p, bookie in enumerate(self._ensemble)]

    def handle(self, event: Event, now_ns: int) -> list[Effect]:
        if not isinstance(event, ReadReply) or self._open <= 0:
            return []
        self._open -= 1
        response = event.response
        if event.status is Status.OK and isinstance(response, ReadResponse) and (response.max_lac or -1) > self._previous:
            self._open = 0
            return [Complete(None, response.max_lac)]
        return [Complete(None, None)] if self._open == 0 else []


def _run(
    session: Session,
    ledger_id: int,
    machine: Any,
    start: Callable[[], list[Effect]],
    *,
    add_kind: str = "data",
    quorums: LedgerMetadata | None = None,
) -> Any:
    """Drive a machine to its one completion and wait for it."""
    future: Future[Any] = Future()
    driver = Driver(session, ledger_id, add_kind=add_kind)
    driver.machine = machine
    if quorums is not None:
        driver.set_quorums(quorums)
    driver.on_complete = lambda token, value: None if future.done() else future.set_result(value)
    driver.on_fail = lambda token, error: None if future.done() else future.set_exception(error)
    session.reactor.post(lambda: driver.perform(start()))
    try:
        return wait(future, session.config.operation_timeout_s, f"an operation on ledger {ledger_id}")
    finally:
        session.reactor.post(driver.close)


class _RunStream:
    """Runs of one RangeReader, handed from the reactor thread to the caller's through a queue that the machine's window bounds."""

    def __init__(self, handle: ReadHandle, first: int, last: int, batch: bool) -> None:
        session = handle._session
        self._session = session
        self._queue: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self.machine = RangeReader(
            handle.ledger_id, handle.metadata, first, last, start=handle._start, batch=batch, limits=session.config.limits
        )
        self._driver = Driver(session, handle.ledger_id)
        self._driver.machine = self.machine
        self._driver.on_complete = lambda token, value: self._queue.put((token, value))
        self._driver.on_fail = lambda token, error: self._queue.put(("error", error))
        session.reactor.post(lambda: self._driver.perform(self.machine.start()))

    def __iter__(self) -> Iterator[EntryRun]:
        while True:
            try:
                kind, value = self._queue.get(timeout=self._session.config.operation_timeout_s)
            except queue.Empty:
                raise OperationTimeoutError("a read did not finish in time") from None
            if kind == "error":
                raise value
            if kind == "end":
                return
            self._session.reactor.post(lambda: self._driver.perform(self.machine.consumed()))
            yield value

    def close(self) -> None:
        self._session.reactor.post(self._driver.close)
