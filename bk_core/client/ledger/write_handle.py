"""The writer's handle of one ledger: blocking calls and futures over the reactor. It may be used from several threads."""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from threading import get_ident
from types import TracebackType
from typing import Any, Self

from bk_core.arguments import checked, whole
from bk_core.client.driver import Driver
from bk_core.client.here import StaysHere
from bk_core.client.ledger.add_window import Batch, Place, Share
from bk_core.client.log.losses import Losses
from bk_core.client.operations import LeftOpen, must_not_block, must_not_interrupt, wait
from bk_core.client.payloads import Buffer, PayloadCheck, Payloads, payload_bytes_max
from bk_core.client.session import Session
from bk_core.errors import BkError, BlockingCallError, ClientClosedError, InvalidArgumentError, OperationTimeoutError
from bk_core.protocol.effects import Effect
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.write.options import WriterOptions
from bk_core.protocol.ledger.write.writer import ENTRY_ID_MAX, LedgerWriter, WriterState
from bk_core.threads import Bell, SafeFuture, cannot_wait, is_ending

ROOM_POLL_S = 1.0  # the reactor lets waiting appends in; this is only a safety net


class WriteHandle(StaysHere):
    """The writer of one ledger. Appends are acknowledged in order.

    After an error the outcome of what was pending is unknown until the ledger is CLOSED; then an entry exists if it is not above the
    last one. If this handle closed the ledger, an entry that failed does not exist (WR-13).

    A handle that nobody refers to any more stops once what is pending has its outcome, with a ResourceWarning; its ledger stays OPEN.
    """

    def __init__(
        self, session: Session, ledger_id: int, metadata: LedgerMetadata, version: int, options: WriterOptions | None = None
    ) -> None:
        self.ledger_id = ledger_id
        self.tells_when_dropped = True  # False if another object tells it, such as the writer of a log
        self._session = session
        self._limits = session.config.limits
        self._options = options or session.writer_options()
        self._machine = LedgerWriter(ledger_id, metadata, version, session.placement, self._limits, options=self._options)
        # Only v3 can ask for an add to be answered before it is durable (wire-protocol.md 6).
        self._driver = Driver(session, ledger_id, add_kind="control" if self._options.deferred_sync else "data")
        self._driver.machine = self._machine
        self._driver.set_quorums(metadata)
        self._driver.on_complete, self._driver.on_fail = _completed, _failed
        self._driver.on_broken = self._machine.give_up
        self._client = session.client  # the client must outlive its handles
        self._answered = Bell()  # rung when a whole batch is answered, which a flush waits for
        self._adds = session.adds
        self._share = Share(_nudging(weakref.ref(self)))
        self._losses = Losses()
        self._handed_over = self._given_back = 0  # entries that the reactor has taken, and those of them that left the window again
        self._highest_entry_id = -1  # the highest one that the reactor has taken, with the caller's ids
        self._driver.on_step = _stepping(weakref.ref(self))
        self._payloads = PayloadCheck(f"ledger {ledger_id}", payload_bytes_max(self._limits, metadata.digest_type), ledger=ledger_id)
        self._closed = False
        session.reactor.post(partial(session.tell_of_bookies, self._driver, True))
        self._left_open = LeftOpen(self._leave)
        session.close_with(self._left_open)

    @property
    def metadata(self) -> LedgerMetadata:
        """The newest metadata of the ledger that this writer knows."""
        return self._machine.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The id of the last entry up to which all are acknowledged; -1 if none is."""
        return self._machine.last_add_confirmed

    @property
    def last_add_fully_replicated(self) -> int:
        """The LAFR: the last entry that is, like all before it, on every bookie of its write set (G-1)."""
        return self._machine.last_add_fully_replicated

    @property
    def length(self) -> int:
        """The payload bytes of all entries handed in so far."""
        return self._machine.length

    def append(self, payload: Buffer, *, entry_id: int | None = None) -> int:
        """Append ``payload`` as one entry, wait for its acknowledgement, and return its id. ``entry_id`` is as in ``append_run_future``.

        Raises what ``append_run_future`` raises, and the error of an append that failed.
        """
        return self._appended_in_time(lambda: self.append_future(payload, entry_id=entry_id), entry_id)

    def append_future(self, payload: Buffer, *, entry_id: int | None = None) -> Future[int]:
        """Append ``payload`` as one entry, and return a future, which has its id once it is acknowledged. ``entry_id`` is as in
        ``append_run_future``.

        Blocks and raises as ``append_run_future`` does.
        """
        return self._append(self._one(payload, entry_id), entry_id)

    def append_many(self, payloads: Sequence[Buffer], *, entry_id: int | None = None) -> int:
        """Append ``payloads``, bytes each, as one run, wait for its acknowledgement, and return the id of the last one. ``entry_id`` is as
        in ``append_run_future``.

        Raises InvalidArgumentError if there are none, ArgumentTypeError if they are no bytes, what ``append_run_future`` raises, and the
        error of an append that failed.
        """
        return self._appended_in_time(lambda: self.append_many_future(payloads, entry_id=entry_id), entry_id)

    def append_many_future(self, payloads: Sequence[Buffer], *, entry_id: int | None = None) -> Future[int]:
        """Append ``payloads``, bytes each, as one run, and return a future, which has the last one's id. ``entry_id`` is as in
        ``append_run_future``.

        Blocks and raises as ``append_run_future`` does. Raises InvalidArgumentError if there are none, ArgumentTypeError if they are no
        bytes.
        """
        return self._append(self._many(payloads, entry_id), entry_id)

    def append_run(self, payloads: Buffer, offsets: Buffer, *, entry_id: int | None = None) -> int:
        """Append a run, wait for its acknowledgement, and return the id of its last entry. ``payloads``, ``offsets`` and ``entry_id`` are
        as in ``append_run_future``.

        Raises what ``append_run_future`` raises, and the error of an append that failed.
        """
        return self._appended_in_time(lambda: self.append_run_future(payloads, offsets, entry_id=entry_id), entry_id)

    def append_run_future(self, payloads: Buffer, offsets: Buffer, *, entry_id: int | None = None) -> Future[int]:
        """Append ``len(offsets) - 1`` entries, and return a future, which has the id of the last one once all are acknowledged.

        Entry i is ``payloads[offsets[i]:offsets[i + 1]]``; ``offsets`` are int64. ``payloads`` that are read-only are not copied: leave
        them alone until then. ``entry_id`` is the id of the first entry of the run in a ledger created with ``caller_ids``, and must be
        left out in others. Ids may come in any order, each once, or the future fails with DuplicateEntryIdError; an acknowledgement waits
        for all lower ids. The call blocks while more than ``pending_bytes_max`` are in flight, or while another thread is in the middle of
        a long run.

        Raises InvalidArgumentError for a payload over the frame limit, before anything is sent; OperationTimeoutError when there was no
        turn and no room within ``operation_timeout_s`` of the call, or no room for the next piece of a long run within that of the last;
        BlockingCallError in a completion callback that would have to wait, and, before anything is sent, in a handler of a signal (or a
        finalizer) that would have to wait for what it interrupts.

        Rule: WR-2.
        """
        return self._append(self._run(payloads, offsets, entry_id), entry_id)

    def _one(self, payload: Buffer, entry_id: int | None) -> Payloads:
        self._session.check()
        return self._numbered(self._payloads.one(payload), entry_id)

    def _many(self, payloads: Sequence[Buffer], entry_id: int | None) -> Payloads:
        self._session.check()
        return self._numbered(self._payloads.many(payloads), entry_id)

    def _run(self, payloads: Buffer, offsets: Buffer, entry_id: int | None) -> Payloads:
        self._session.check()
        return self._numbered(self._payloads.run(payloads, offsets), entry_id)

    def _numbered(self, run: Payloads, entry_id: int | None) -> Payloads:
        """Check that ``entry_id`` is given if the caller chooses ids, and only then, and is a possible id for ``run``. Return the run.

        Rule: WR-2.
        """
        if (entry_id is not None) != self._options.caller_ids:
            how = (
                "needs entry_id: it was created with caller_ids" if self._options.caller_ids else "numbers its entries itself: no entry_id"
            )
            raise InvalidArgumentError(f"ledger {self.ledger_id} {how}", ledger=self.ledger_id)
        if entry_id is not None:
            whole(0, ENTRY_ID_MAX - run.entries + 1)("entry_id", entry_id)
        return run

    def _appended_in_time(self, append: Callable[[], Future[int]], entry_id: int | None) -> int:
        """Append and wait for the outcome, within one timeout from now."""
        what = f"append to ledger {self.ledger_id}"
        if entry_id is not None:
            what = f"append of entry {entry_id} to ledger {self.ledger_id} (acknowledged once all lower ids are)"
        must_not_block(what)
        since_s = time.monotonic()
        return int(wait(append(), self._session.config.operation_timeout_s, what, since_s=since_s))

    def _append(self, run: Payloads, entry_id: int | None) -> Future[int]:
        """Append a run. Long runs go in pieces, so that the reactor can take acknowledgements in between, and other ledgers get their share
        of the window."""
        future: Future[int] = SafeFuture()
        size = self._adds.piece_entries()
        try:
            if run.entries <= size:
                self._admit(run, future, True, entry_id)
            else:
                self._append_long(run, future, entry_id, size)
        finally:
            self._nudge()
        return future

    def _append_long(self, run: Payloads, future: Future[int], entry_id: int | None, size: int) -> None:
        """Append a run in pieces. Its entries are consecutive, whoever else appends. A caller who chooses ids needs no turn, and must not
        wait for one, because this run may fill the gap that all others wait behind."""
        # an error after half of it was handed in would come too late
        must_not_interrupt(f"append of {run.entries} entries to ledger {self.ledger_id}")
        deadline = self._deadline()
        try:
            if entry_id is None:
                self._await_turn(future, deadline)
            self._admit_pieces(run, future, entry_id, size, deadline)
        finally:
            if self._share.turn is future:
                self._share.turn = None  # ``_append`` has the reactor let the next append in

    def _admit_pieces(self, run: Payloads, future: Future[int], first: int | None, size: int, deadline: float) -> None:
        for start in range(0, run.entries, size):
            piece, last = run[start : start + size], start + size >= run.entries
            self._admit(piece, future, last, None if first is None else first + start, deadline if not start else None)

    def _admit(self, run: Payloads, future: Future[int], last: bool, first: int | None, deadline: float | None = None) -> None:
        hand_over = self._handing_over(run, future, last, first)
        if self._try(hand_over, run, first, future):
            return
        try:
            self._check_may_wait(future)
        except BlockingCallError:  # a caller that must not wait passes those who can, if there is room
            if self._try(hand_over, run, first, future, passing=True):
                return
            raise
        turn = None if first is not None else future
        self._wait_for_room(Place(hand_over, run.entries, run.size, first, turn, get_ident()), future, deadline or self._deadline())

    def _handing_over(self, run: Payloads, future: Future[int], last: bool, first: int | None) -> Callable[[Batch], None]:
        """Return what the reactor does with a piece of a run that was handed in."""

        def hand_over(batch: Batch) -> None:
            self._handed_over += run.entries
            self._highest_entry_id = max(self._highest_entry_id, -1 if first is None else first + run.entries - 1)
            token, now_ns = (self, batch, future, run.size, last), self._session.reactor.now_ns()
            self._driver.step(self._machine.append, run.data, run.bounds, token, now_ns, first_entry_id=first, asker=token)

        return hand_over

    def _try(
        self, hand_over: Callable[[Batch], None], run: Payloads, first: int | None, future: Future[int], *, passing: bool = False
    ) -> bool:
        """Hand the append in if there is room: for bytes that nobody acknowledged, and for bytes and entries that a slow bookie still has
        to take (WR-15). The entries of all ledgers of this client count, because bookies count them so."""
        self._check_open()
        if first is not None and first <= self._highest_entry_id:
            # Entries below those already handed in, perhaps during this wait, must not wait for room that only they can make.
            self._adds.hand_in(self._share, hand_over, run.entries, run.size)
            return True
        if self._machine.unretired_bytes > self._limits.unretired_bytes_max:
            return False
        turn = None if first is not None else future
        return self._adds.admit(self._share, hand_over, run.entries, run.size, self._limits.pending_bytes_max, turn, passing=passing)

    def _await_turn(self, future: Future[int], deadline: float) -> None:
        self._check_open()
        if self._adds.take_turn(self._share, future, get_ident()):
            return
        try:
            self._check_may_wait(future)
        except BlockingCallError:
            if self._adds.take_turn(self._share, future, get_ident(), passing=True):
                return
            raise
        self._wait_for_room(Place(None, 0, 0, None, future, get_ident()), future, deadline)

    def _wait_for_room(self, place: Place, future: Future[int], deadline: float) -> None:
        """Wait until the reactor has let ``place`` in. This holds nothing that others need, and nobody waits for this thread to run."""
        try:
            self._adds.stand_in_line(self._share, place)
            while not place.admitted and not self._closed:
                self._check_may_wait(future)
                self._nudge()
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                place.ticket.acquire(True, min(left, ROOM_POLL_S))
        finally:
            place.gone = True  # no interrupt strikes before this
        if not self._adds.leave(place):
            self._check_open()
            raise OperationTimeoutError(self._why_not_appended(future))

    def _let_in(self) -> None:
        """Let the first in line in, as long as there is room. The others are neither asked nor woken. Reactor thread."""
        share = self._share
        if self._closed:
            for waiting in self._adds.dismiss(share):
                waiting.ticket.release()
            return
        handed_in = False
        while share.line:
            bytes_max = self._limits.pending_bytes_max if self._machine.unretired_bytes <= self._limits.unretired_bytes_max else None
            place = self._adds.next_in(share, self._highest_entry_id, bytes_max)
            if place is None:
                break
            handed_in = handed_in or place.item is not None
            place.ticket.release()
        if handed_in:
            self._nudge()

    def _check_may_wait(self, future: Future[int]) -> None:
        """Raise BlockingCallError if this thread must not wait."""
        share = self._share
        if self._is_others_turn(future) and share.turn_of == get_ident():
            long = f"append of a long run to ledger {self.ledger_id}"
            raise BlockingCallError(f"append to ledger {self.ledger_id} has to wait for a run of this thread, and {cannot_wait(long)}")
        must_not_block(f"append to ledger {self.ledger_id}, whose window is full,")

    def _is_others_turn(self, future: Future[int]) -> bool:
        return self._share.turn is not None and self._share.turn is not future

    def _why_not_appended(self, future: Future[int]) -> str:
        if self._is_others_turn(future):
            return f"{self._unacknowledged()}, and another thread's run is not handed in yet; this one was not appended"
        return f"{self._unacknowledged()}, {self._machine.unretired_bytes} not yet on all bookies; the rest of this run was not appended"

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError(f"ledger {self.ledger_id} was closed by this program", ledger=self.ledger_id)

    def _deadline(self) -> float:
        return time.monotonic() + self._session.config.operation_timeout_s

    def _nudge(self) -> None:
        """Have the reactor take what was handed in. A waiting thread does this too, because an interrupt may have kept the thread that
        handed in from doing it."""
        self._session.reactor.post(self._take_in)

    def _take_in(self) -> None:
        """Take what was handed in. Reactor thread."""
        inbox = self._share.inbox
        if not inbox:
            if self._share.line:
                self._let_in()
            return
        try:
            for _ in range(len(inbox)):
                hand_over, batch = inbox.popleft()
                hand_over(batch)
        finally:
            self._stepped()
            if inbox:  # one of the steps raised
                self._nudge()

    def _unacknowledged(self) -> str:
        """Return a text about the entries in flight, and with the caller's ids about the entries that they may wait for."""
        text = f"ledger {self.ledger_id}: {self._share.bytes} bytes stayed unacknowledged"
        if self._options.caller_ids:
            text += f"; no entry is acknowledged before entry {self._machine.acknowledged_head + 1}"
        return text

    def _stepped(self) -> None:
        """Take note of the machine's state after each of its steps. Reactor thread."""
        self._give_back(self._handed_over - self._machine.unretired_entries - self._given_back)
        if self._share.line:
            self._let_in()

    def _give_back(self, entries: int) -> None:
        if entries:
            self._given_back += entries
            self._adds.released(self._share, entries)

    def _end(self) -> None:
        """End the machine, which is not stepped any more. Reactor thread."""
        self._driver.close()
        self._give_back(self._handed_over - self._given_back)

    def _hand_in(self, step: Callable[[Any], list[Effect]], future: Future[Any]) -> None:
        """Hand in something other than entries, behind what was appended. It is answered like a run of no bytes. ``step`` gets
        its token."""
        try:
            self._adds.hand_in(self._share, lambda batch: self._ask(step, (self, batch, future, 0, True)))
        finally:
            self._nudge()

    def _ask(self, step: Callable[[Any], list[Effect]], token: Any) -> None:
        self._driver.step(step, token, asker=token)

    def _release(self, size: int, batch: Batch, _future: object = None) -> None:
        """Release the room of a run that has its outcome. Its future has been told, so a flush finds all futures done, and users' callbacks
        find room."""
        self._adds.answered(self._share, size, batch)
        if not batch.runs:
            self._answered.notify_all()

    def flush(self) -> None:
        """Wait until everything appended so far is acknowledged, whatever others append meanwhile.

        Raises the error that ended this handle, or that of an append that failed if nobody was told it; OperationTimeoutError after
        ``operation_timeout_s``.
        """
        self._await_answers()
        self.raise_failure()

    def _await_answers(self) -> None:
        self._session.check()
        self._nudge()
        if not self._share.batch.is_done:
            must_not_block(f"flushing ledger {self.ledger_id}")
            until_now = self._adds.mark(self._share, Batch())
            if not self._answered.until(lambda: until_now.is_done, self._session.config.operation_timeout_s):
                raise OperationTimeoutError(self._unacknowledged())
            until_now.before = None

    def raise_failure(self) -> None:
        """Raise the error that ended this handle, or that of an append that failed if nobody was told it. It waits for nothing."""
        self._raise_end()
        lost = self._losses.take()
        if lost is not None:
            raise lost

    def _raise_end(self) -> None:
        if self._machine.error is not None:
            self._losses.told(self._machine.error)
            raise self._machine.error

    def force(self) -> int:
        """Make everything acknowledged so far durable on all bookies of the ensemble, and return the new LAC (WR-17, ``deferred_sync``).

        In a ledger without ``deferred_sync`` acknowledged entries are durable already: this then sends nothing and returns the LAC.
        """
        return int(wait(self.force_future(), self._session.config.operation_timeout_s, f"forcing ledger {self.ledger_id}"))

    def force_future(self) -> Future[int]:
        """Do the same as ``force``, and return a future at once."""
        self._session.check()
        future: Future[int] = SafeFuture()
        self._check_open()
        self._hand_in(lambda token: self._machine.force(token, self._session.reactor.now_ns()), future)
        return future

    @checked()
    def close(self, *, forced: bool = False) -> LedgerMetadata:
        """Wait for what was appended (and with ``deferred_sync`` force it), then close the ledger at its last entry. Closing a closed
        ledger has no effect, nor has closing in a forked child. A ledger that another client fenced, or closed elsewhere, cannot be closed:
        every call raises LedgerFencedError.

        A ledger with guaranteed write quorum is closed once every entry is on all of its write set, which takes a bookie for every
        position. ``forced`` waits for nothing and gives up what is not acknowledged, with ``deferred_sync`` also what was not forced.
        ``abandon`` gives up the close and leaves the ledger to a recovery. ``metadata`` has what a call that raises does not return.

        Raises OperationTimeoutError when that lasts longer than ``operation_timeout_s``, and the close goes on. The first call raises the
        error of appends that failed, after it has closed the ledger without them, unless somebody was told it: ``result()`` or
        ``exception()`` of one of their futures was called, or a call of this handle raised it. A completion callback that does not look at
        its future is told nothing.

        Rules: G-10, G-11.
        """
        if not self._session.home.is_here:
            return self.metadata
        must_not_block(f"closing ledger {self.ledger_id}")
        if not self._closed and not forced and self._machine.error is None:
            self._await_answers()
            self._raise_end()
            if self._options.deferred_sync:
                self.force()
        # A ledger that is CLOSED needs nobody, so closing again has no effect once the client is closed, too.
        metadata = self.metadata if self._machine.state is WriterState.CLOSED else self._close(forced)
        if forced:
            self._losses.forgive()
        lost = self._losses.take()
        if lost is not None:
            raise lost
        return metadata

    def _close(self, forced: bool = False) -> LedgerMetadata:
        # After a timeout or an interrupt it is still being tried (CL-5: a later call waits for the same result).
        metadata = wait(self._begin_close(forced), self._session.config.operation_timeout_s, f"closing ledger {self.ledger_id}")
        assert isinstance(metadata, LedgerMetadata)
        return metadata

    def _begin_close(self, forced: bool) -> Future[LedgerMetadata]:
        self._session.check()
        future: Future[LedgerMetadata] = SafeFuture()
        future.add_done_callback(lambda _: self._session.reactor.post(self._end))
        self._closed = True
        self._hand_in(lambda token: self._machine.close(token, self._session.reactor.now_ns(), forced=forced), future)
        return future

    def abandon(self) -> None:
        """Stop without closing the ledger, which somebody will have to recover. Entries in flight fail, and may or may not be in it."""
        if not self._session.home.is_here:
            return
        self._closed = True

        def stop() -> None:
            try:
                self._take_in()
            finally:
                self._driver.step(self._machine.abandon, self._session.reactor.now_ns())
                self._end()

        self._session.reactor.post(stop)

    def _leave(self) -> None:
        if self._machine.state is WriterState.OPEN:
            self.abandon()

    def __del__(self) -> None:
        """Stop a handle that was dropped. Nothing is pending, because that would refer to the handle."""
        if getattr(self, "_closed", True) or is_ending() or self._session.is_over or not self._session.home.is_here:
            return
        message = f"unclosed {self!r}"
        self.abandon()
        if self.tells_when_dropped:
            warnings.warn(message, ResourceWarning, stacklevel=2, source=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the ledger if there was no error; this raises the error of appends that failed if nobody was told it."""
        if kind is None:
            self.close()
            return
        if not self._session.home.is_here:
            return
        try:
            self._close()
        except BkError:
            pass  # the error on its way out is the one to show

    def __repr__(self) -> str:
        return f"<WriteHandle ledger {self.ledger_id} {self._machine.state.name} last add confirmed {self.last_add_confirmed}>"


def _completed(token: Any, value: Any) -> None:
    """Tell an append that it is acknowledged. A pending append keeps its handle alive, because the machine has its token until it is
    answered."""
    handle, batch, future, size, last = token
    if last and not future.done():
        future.call_first(partial(handle._release, size, batch))
        future.set_result(value)
    else:
        handle._release(size, batch)


def _failed(token: Any, error: Exception) -> None:
    """Tell that an append failed. A run is acknowledged only if all its pieces are: with the caller's ids one may be refused and the next
    accepted."""
    handle, batch, future, size, _ = token
    if future.done():
        handle._release(size, batch)
    else:
        handle._losses.lost(future, handle._machine.error or error)
        future.call_first(partial(handle._release, size, batch))
        future.set_exception(error)


def _stepping(known: weakref.ref[WriteHandle]) -> Callable[[], None]:
    """Return the function that the driver calls after each step. It does not keep the handle alive, because the driver lives as long as
    connections know of it."""

    def stepped() -> None:
        handle = known()
        if handle is not None:
            handle._stepped()

    return stepped


def _nudging(known: weakref.ref[WriteHandle]) -> Callable[[], None]:
    """Return the function by which the window has the handle's line looked at. It does not keep the handle alive."""

    def nudge() -> None:
        handle = known()
        if handle is not None:
            handle._nudge()

    return nudge
