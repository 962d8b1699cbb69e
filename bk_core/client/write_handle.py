"""The writer's handle of one ledger: blocking calls and futures over the reactor. It may be used from several threads."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from bk_core.client.add_window import Share
from bk_core.client.driver import Driver
from bk_core.client.losses import Losses
from bk_core.client.operations import LeftOpen, must_not_block, wait
from bk_core.client.session import Session
from bk_core.errors import BkError, ClientClosedError, InvalidArgumentError, OperationTimeoutError
from bk_core.net.reactor import on_reactor_thread
from bk_core.protocol import BytesLike
from bk_core.protocol.effects import Effect
from bk_core.protocol.entry import layout
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.run import ADD_FRAME_PREFIX_BYTES, largest_of
from bk_core.protocol.ledger.writer import ENTRY_ID_MAX, LedgerWriter, WriterState
from bk_core.protocol.ledger.writer_options import WriterOptions
from bk_core.threads import Monitor, SafeFuture

ROOM_POLL_S = 1.0  # every acknowledgement wakes a waiting append; this is only a safety net


class WriteHandle:
    """The writer of one ledger. Appends are acknowledged in order.

    After an error the outcome of what was pending is unknown until the ledger is CLOSED; then an entry exists if it is not above the
    last one. If this handle closed the ledger, an entry that failed does not exist (WR-13).
    """

    def __init__(
        self, session: Session, ledger_id: int, metadata: LedgerMetadata, version: int, options: WriterOptions | None = None
    ) -> None:
        self.ledger_id = ledger_id
        self._session = session
        self._limits = session.config.limits
        self._options = options or session.writer_options()
        self._machine = LedgerWriter(ledger_id, metadata, version, session.placement, self._limits, options=self._options)
        # Only v3 can say that an add may be answered before it is durable (wire-protocol.md 6).
        self._driver = Driver(session, ledger_id, add_kind="control" if self._options.deferred_sync else "data")
        self._driver.machine = self._machine
        self._driver.set_quorums(metadata)
        self._driver.on_complete = self._completed
        self._driver.on_fail = self._failed
        self._order = threading.Lock()  # a run's entries are consecutive, whoever else appends
        self._lock = Monitor()
        self._adds = session.adds
        self._share = Share()
        self._losses = Losses()
        self._handed_over = self._given_back = 0  # entries the reactor has taken, and those of them that left the window again
        self._highest_entry_id = -1  # handed in with ids of the caller's
        self._driver.on_step = self._stepped
        self._closed = False
        session.reactor.post(lambda: session.tell_of_bookies(self._driver, True))
        self._left_open = LeftOpen(self._leave)
        session.close_with(self._left_open)
        self._payload_bytes_max = self._limits.frame_bytes_max - ADD_FRAME_PREFIX_BYTES - layout.body_overhead(metadata.digest_type)

    @property
    def metadata(self) -> LedgerMetadata:
        return self._machine.metadata

    @property
    def last_add_confirmed(self) -> int:
        return self._machine.last_add_confirmed

    @property
    def last_add_fully_replicated(self) -> int:
        """LAFR: the last entry that is, like all before it, on every bookie of its write set (G-1)."""
        return self._machine.last_add_fully_replicated

    @property
    def length(self) -> int:
        """Payload bytes of all entries handed in so far."""
        return self._machine.length

    def append(self, payload: bytes, *, entry_id: int | None = None) -> int:
        """Append one entry and wait for its acknowledgement; its id. ``entry_id``: see append_run."""
        what = f"append to ledger {self.ledger_id}"
        if entry_id is not None:
            what = f"append of entry {entry_id} to ledger {self.ledger_id} (acknowledged once all lower ids are)"
        must_not_block(what)
        future = self.append_future(payload, entry_id=entry_id)
        return int(wait(future, self._session.config.operation_timeout_s, what))

    def append_future(self, payload: bytes, *, entry_id: int | None = None) -> Future[int]:
        """Append one entry; the future has its id once it is acknowledged. ``entry_id``: see append_run."""
        self._session.check()
        data = self._bytes_of(payload)
        self._check_entry_id(entry_id, 1)
        self._check_largest(len(data))
        return self._append(data, memoryview(array("q", (0, len(data)))), entry_id)

    def append_many(self, payloads: Sequence[bytes], *, entry_id: int | None = None) -> Future[int]:
        """Append entries as one run; the future has the last one's id. ``entry_id``: see append_run."""
        offsets = array("q", [0])
        parts = [self._bytes_of(payload) for payload in payloads]
        for part in parts:
            offsets.append(offsets[-1] + len(part))
        return self.append_run(b"".join(parts), offsets, entry_id=entry_id)

    def append_run(self, payloads: Any, offsets: Any, *, entry_id: int | None = None) -> Future[int]:
        """Append ``len(offsets) - 1`` entries; entry i is ``payloads[offsets[i]:offsets[i + 1]]`` (int64 offsets).

        The future has the id of the run's last entry once the whole run is acknowledged. Blocks while more than
        ``pending_bytes_max`` are in flight. A buffer that is read-only is not copied: leave it alone until then.
        Raises InvalidArgumentError for a payload over the frame limit, before anything is sent.

        ``entry_id`` is the id of the first entry of the run in a ledger created with ``caller_ids`` (WR-2), and must be left out in others.
        Ids may come in any order, each once (DuplicateEntryIdError in the future); an acknowledgement waits for all lower ids.
        """
        self._session.check()
        bounds = self._bounds_of(offsets)
        self._check_entry_id(entry_id, len(bounds) - 1)
        payloads = self._bytes_of(payloads)  # packaged later, on the reactor thread: the caller's buffer may have changed by then
        self._check_largest(largest_of(bounds, len(payloads)))
        return self._append(payloads, bounds, entry_id)

    def _append(self, payloads: BytesLike, bounds: memoryview, entry_id: int | None) -> Future[int]:
        """One run after the other. BlockingCallError in a callback that would wait for another thread's run."""
        future: Future[int] = SafeFuture()
        # Who chooses ids needs no turn, and must not wait for one: it may be the one that fills the gap all others wait behind.
        if entry_id is not None:
            self._admit_pieces(payloads, bounds, future, entry_id)
        elif on_reactor_thread():
            self._append_in_callback(payloads, bounds, future)
        else:
            with self._order:
                self._admit_pieces(payloads, bounds, future, None)
        return future

    def _append_in_callback(self, payloads: BytesLike, bounds: memoryview, future: Future[int]) -> None:
        if not self._order.acquire(blocking=False):
            must_not_block(f"append to ledger {self.ledger_id}")
        try:
            self._admit_pieces(payloads, bounds, future, None)
        finally:
            self._order.release()

    def _admit_pieces(self, payloads: BytesLike, bounds: memoryview, future: Future[int], first: int | None) -> None:
        """Long runs go in pieces, so that the reactor can take acknowledgements in between, and other ledgers their share of the window."""
        count = len(bounds) - 1
        size = self._adds.piece_entries()
        try:
            with self._lock:
                if count <= size:
                    self._admit(payloads, bounds, future, True, first)
                    return
                for start in range(0, count, size):
                    piece, last = bounds[start : start + size + 1], start + size >= count
                    self._admit(payloads, piece, future, last, None if first is None else first + start)
        finally:
            self._nudge()

    def _admit(self, payloads: BytesLike, bounds: memoryview, future: Future[int], last: bool, first: int | None) -> None:
        size, count = bounds[-1] - bounds[0], len(bounds) - 1
        self._wait_for_room(size, count, first)
        self._highest_entry_id = max(self._highest_entry_id, -1 if first is None else first + count - 1)

        def hand_over() -> None:
            self._handed_over += count
            now_ns = self._session.reactor.now_ns()
            self._driver.perform(self._machine.append(payloads, bounds, (future, size, last), now_ns, first_entry_id=first))

        self._adds.hand_in(self._share, hand_over, count, size)

    def _nudge(self) -> None:
        """Have the reactor take what was handed in. Whoever waits does it, too: an interrupt may have kept the one who handed in."""
        self._session.reactor.post(self._take_in)

    def _take_in(self) -> None:
        """Reactor thread."""
        inbox = self._share.inbox
        if not inbox:
            return
        for _ in range(len(inbox)):
            inbox.popleft()()
        self._stepped()

    def _bytes_of(self, payload: Any) -> BytesLike:
        """What is read-only is taken as it is: whoever hands it in must not change it by another way until it is acknowledged."""
        if isinstance(payload, bytes):
            return payload
        try:
            view = memoryview(payload).cast("B")
            return view if view.readonly else bytes(view)
        except TypeError:
            raise InvalidArgumentError(f"a payload is bytes, not {type(payload).__name__}", ledger=self.ledger_id) from None

    def _bounds_of(self, offsets: Any) -> memoryview:
        try:
            view = memoryview(offsets)
            if view.itemsize not in (1, 8):
                raise TypeError
            bounds = memoryview(view.tobytes()).cast("q")
        except TypeError:
            message = f"offsets of a run are int64 numbers in a buffer, such as array('q', ...); this is {type(offsets).__name__}"
            raise InvalidArgumentError(message, ledger=self.ledger_id) from None
        if len(bounds) < 2:
            raise InvalidArgumentError("an empty run cannot be appended", ledger=self.ledger_id)
        return bounds

    def _check_entry_id(self, entry_id: int | None, count: int) -> None:
        """WR-2: who counts, and that it can be an id."""
        if (entry_id is not None) != self._options.caller_ids:
            how = "needs entry_id: it was created with caller_ids" if self._options.caller_ids else "numbers its entries itself"
            raise InvalidArgumentError(f"ledger {self.ledger_id} {how}", ledger=self.ledger_id)
        if entry_id is not None and (not isinstance(entry_id, int) or not 0 <= entry_id <= ENTRY_ID_MAX - count + 1):
            raise InvalidArgumentError(f"entry id {entry_id!r} is not a number within 0..{ENTRY_ID_MAX}", ledger=self.ledger_id)

    def _unacknowledged(self) -> str:
        """What is still in flight, and with ids of the caller's what it may be waiting for."""
        text = f"ledger {self.ledger_id}: {self._share.bytes} bytes stayed unacknowledged"
        if self._options.caller_ids:
            text += f"; no entry is acknowledged before entry {self._machine.acknowledged_head + 1}"
        return text

    def _check_largest(self, largest: int) -> None:
        if largest > self._payload_bytes_max:
            raise InvalidArgumentError(
                f"a payload of {largest} bytes is too large for ledger {self.ledger_id}: "
                f"at most {self._payload_bytes_max} bytes fit into one frame",
                ledger=self.ledger_id,
            )

    def _wait_for_room(self, size: int, count: int, first: int | None) -> None:
        deadline = time.monotonic() + self._session.config.operation_timeout_s
        while not self._closed and not self._fills_gap(first) and self._is_full(size, count):
            must_not_block(f"append to ledger {self.ledger_id}, whose window is full,")
            left = deadline - time.monotonic()
            if left <= 0:
                raise OperationTimeoutError(
                    f"{self._unacknowledged()}, {self._machine.unretired_bytes} not yet on all bookies; the rest of this run was not "
                    "appended"
                )
            self._nudge()
            self._lock.wait(min(left, ROOM_POLL_S))
        if self._closed:
            raise ClientClosedError(f"ledger {self.ledger_id} was closed by this program", ledger=self.ledger_id)

    def _fills_gap(self, first: int | None) -> bool:
        """What lies below entries already handed in, perhaps while this one waited, must not wait for room that only it can make."""
        return first is not None and first <= self._highest_entry_id

    def _is_full(self, size: int, count: int) -> bool:
        """WR-15: bytes that nobody acknowledged, and bytes and entries that a slow bookie still has to take. Entries of all ledgers of this
        client: bookies count them so."""
        if self._share.bytes and self._share.bytes + size > self._limits.pending_bytes_max:
            return True
        if not self._adds.has_room(self._share, count):
            return True
        return self._machine.unretired_bytes > self._limits.unretired_bytes_max

    def _stepped(self) -> None:
        """Reactor thread, after each step of the machine."""
        self._give_back(self._handed_over - self._machine.unretired_entries - self._given_back)
        if self._lock.is_awaited:
            with self._lock:
                self._lock.notify_all()

    def _give_back(self, entries: int) -> None:
        if entries:
            self._given_back += entries
            self._adds.released(self._share, entries)

    def _end(self) -> None:
        """Reactor thread. The machine is not stepped any more."""
        self._driver.close()
        self._give_back(self._handed_over - self._given_back)

    def _hand_in(self, step: Callable[[], list[Effect]]) -> None:
        """Something other than entries, behind what was appended. It is answered like a run of no bytes."""
        try:
            self._adds.hand_in(self._share, lambda: self._driver.perform(step()))
        finally:
            self._nudge()

    def _completed(self, token: Any, value: Any) -> None:
        future, size, last = token
        self._release(size)
        if last and not future.done():
            future.set_result(value)

    def _failed(self, token: Any, error: Exception) -> None:
        """A run is acknowledged only if all its pieces are: with ids of the caller's one may be refused and the next be taken."""
        future, size, _ = token
        self._release(size)
        if not future.done():
            self._losses.lost(future, self._machine.error or error)
            future.set_exception(error)

    def _release(self, size: int) -> None:
        self._adds.answered(self._share, size)
        with self._lock:
            self._lock.notify_all()

    def flush(self) -> None:
        """Wait until everything appended so far is acknowledged; its error if that fails."""
        self._session.check()
        deadline = time.monotonic() + self._session.config.operation_timeout_s
        self._nudge()
        with self._lock:
            while self._share.runs:
                must_not_block(f"flushing ledger {self.ledger_id}")
                left = deadline - time.monotonic()
                if left <= 0:
                    raise OperationTimeoutError(self._unacknowledged())
                self._lock.wait(left)
        if self._machine.error is not None:
            self._losses.told(self._machine.error)
            raise self._machine.error

    def force(self) -> int:
        """Make everything acknowledged so far durable on all bookies of the ensemble; the new LAC (WR-17, ``deferred_sync``).

        In a ledger without ``deferred_sync`` what is acknowledged is durable: there it sends nothing and tells the LAC.
        """
        return int(wait(self.force_future(), self._session.config.operation_timeout_s, f"forcing ledger {self.ledger_id}"))

    def force_future(self) -> Future[int]:
        """See ``force``."""
        self._session.check()
        future: Future[int] = SafeFuture()
        if self._closed:
            raise ClientClosedError(f"ledger {self.ledger_id} was closed by this program", ledger=self.ledger_id)
        self._hand_in(lambda: self._machine.force((future, 0, True), self._session.reactor.now_ns()))
        return future

    def close(self, *, forced: bool = False) -> LedgerMetadata:
        """Wait for what was appended (and with ``deferred_sync`` force it), then close the ledger at its last entry. Idempotent.

        A ledger with guaranteed write quorum is closed once every entry is on all of its write set, which takes a bookie for every
        position: OperationTimeoutError when that lasts too long, and the close goes on. ``forced`` waits for nothing
        and gives up what is not acknowledged (G-11), with ``deferred_sync`` also what was not forced; ``abandon`` gives up the close and
        leaves the ledger to a recovery (G-10). In a forked child it does nothing.
        """
        if not self._session.home.is_here:
            return self.metadata
        must_not_block(f"closing ledger {self.ledger_id}")
        if not self._closed and not forced and self._machine.error is None:
            self.flush()
            if self._options.deferred_sync:
                self.force()
        metadata = self._close(forced)
        if forced:
            self._losses.forgive()
        return metadata

    def _close(self, forced: bool = False) -> LedgerMetadata:
        self._session.check()
        future: Future[LedgerMetadata] = SafeFuture()
        future.add_done_callback(lambda _: self._session.reactor.post(self._end))
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._hand_in(lambda: self._machine.close((future, 0, True), self._session.reactor.now_ns(), forced=forced))
        # After a timeout or an interrupt it is still being tried (CL-5: a later call waits for the same result).
        metadata = wait(future, self._session.config.operation_timeout_s, f"closing ledger {self.ledger_id}")
        assert isinstance(metadata, LedgerMetadata)
        return metadata

    def abandon(self) -> None:
        """Stop without closing the ledger: somebody will have to recover it. What is in flight fails, and may or may not be in it."""
        if not self._session.home.is_here:
            return
        with self._lock:
            self._closed = True
            self._lock.notify_all()

        def stop() -> None:
            self._take_in()
            self._driver.perform(self._machine.abandon(self._session.reactor.now_ns()))
            self._end()

        self._session.reactor.post(stop)

    def _leave(self) -> None:
        if self._machine.state is WriterState.OPEN:
            self.abandon()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Leaving without an error closes the ledger, and raises that of appends that failed if nobody was told it."""
        if kind is None:
            self.close()
            lost = self._losses.take()
            if lost is not None:
                raise lost
            return
        if not self._session.home.is_here:
            return
        try:
            self._close()
        except BkError:
            pass  # the error on its way out is the one to see

    def __repr__(self) -> str:
        return f"<WriteHandle ledger {self.ledger_id} {self._machine.state.name} last add confirmed {self.last_add_confirmed}>"
