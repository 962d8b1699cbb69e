"""The way of appends into a ledger: into its machine on the reactor thread, or into the line of those that wait for room."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from threading import get_ident
from typing import Any

from bk_core.client.counting import counts_of
from bk_core.client.driver import Driver
from bk_core.client.here import StaysHere
from bk_core.client.ledger.add_window import Batch, Place, Share
from bk_core.client.log.losses import Losses
from bk_core.client.operations import must_not_block, must_not_interrupt
from bk_core.client.payloads import PayloadCheck, Payloads, payload_bytes_max
from bk_core.client.session import Session
from bk_core.errors import BlockingCallError, ClientClosedError, LedgerFencedError, OperationTimeoutError
from bk_core.metrics.marks import Marks
from bk_core.protocol.effects import Effect
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.write.options import WriterOptions
from bk_core.protocol.ledger.write.writer import LedgerWriter
from bk_core.threads import Bell, SafeFuture, cannot_wait

ROOM_POLL_S = 1.0  # the reactor lets waiting appends in; this is only a safety net


class Appending(StaysHere):
    """The machine of one ledger that is written, and what was appended to it. ``WriteHandle`` is what its users see."""

    def __init__(
        self, session: Session, ledger_id: int, metadata: LedgerMetadata, version: int, options: WriterOptions | None = None
    ) -> None:
        self.ledger_id = ledger_id
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
        self._counts = counts_of(session)
        self._add_times = Marks(self._counts.add_seconds)
        self._settled = self._failed_entries = self._new_failed = 0  # entries with an outcome; those that failed, and were not settled yet
        self._handed_over = self._given_back = 0  # entries that the reactor has taken, and those of them that left the window again
        self._highest_entry_id = -1  # the highest one that the reactor has taken, with the caller's ids
        self._driver.on_step = _stepping(weakref.ref(self))
        self._payloads = PayloadCheck(f"ledger {ledger_id}", payload_bytes_max(self._limits, metadata.digest_type), ledger=ledger_id)
        self._closed = self._is_fenced = False
        session.reactor.post(partial(session.tell_of_bookies, self._driver, True))

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
            token, now_ns = (self, batch, future, run.size, last, run.entries), self._session.reactor.now_ns()
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
            raise ClientClosedError(f"ledger {self.ledger_id} was closed by this program", ledger=self.ledger_id).nothing_done()

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
        self._counts.add_runs.value += len(inbox)
        before, now_ns = self._handed_over, self._session.reactor.now_ns()
        try:
            for _ in range(len(inbox)):
                hand_over, batch = inbox.popleft()
                hand_over(batch)
        finally:
            if self._handed_over > before:
                self._add_times.began(before, now_ns)
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
        self._count_answered()
        self._give_back(self._handed_over - self._machine.unretired_entries - self._given_back)
        if self._share.line:
            self._let_in()

    def _count_answered(self) -> None:
        acknowledged = self._machine.acknowledged_head + 1
        if acknowledged + self._failed_entries > self._settled:
            self._counts.add_entries.value += acknowledged + self._failed_entries - self._settled - self._new_failed
            self._new_failed, self._settled = 0, acknowledged + self._failed_entries
            self._add_times.answered(self._settled, self._session.reactor.now_ns())

    def _count_failed(self, entries: int, size: int) -> None:
        self._failed_entries += entries
        self._new_failed += entries
        self._counts.add_failed.value += entries
        self._adds.failed(size)
        if not self._is_fenced and isinstance(self._machine.error, LedgerFencedError):
            self._is_fenced = True
            self._counts.fenced.value += 1

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
            self._adds.hand_in(self._share, lambda batch: self._ask(step, (self, batch, future, 0, True, 0)))
        finally:
            self._nudge()

    def _ask(self, step: Callable[[Any], list[Effect]], token: Any) -> None:
        self._counts.add_runs.value -= 1  # it is none
        self._driver.step(step, token, asker=token)

    def _release(self, size: int, batch: Batch, _future: object = None) -> None:
        """Release the room of a run that has its outcome. Its future has been told, so a flush finds all futures done, and users' callbacks
        find room."""
        self._adds.answered(self._share, size, batch)
        if not batch.runs:
            self._answered.notify_all()


def _completed(token: Any, value: Any) -> None:
    """Tell an append that it is acknowledged. A pending append keeps its handle alive, because the machine has its token until it is
    answered."""
    handle, batch, future, size, last, _ = token
    if last and not future.done():
        future.call_first(partial(handle._release, size, batch))
        future.set_result(value)
    else:
        handle._release(size, batch)


def _failed(token: Any, error: Exception) -> None:
    """Tell that an append failed. A run is acknowledged only if all its pieces are: with the caller's ids one may be refused and the next
    accepted."""
    handle, batch, future, size, _, entries = token
    handle._count_failed(entries, size)
    if future.done():
        handle._release(size, batch)
    else:
        handle._losses.lost(future, handle._machine.error or error)
        future.call_first(partial(handle._release, size, batch))
        future.set_exception(error)


def _stepping(known: weakref.ref[Appending]) -> Callable[[], None]:
    """Return the function that the driver calls after each step. It does not keep the handle alive, because the driver lives as long as
    connections know of it."""

    def stepped() -> None:
        handle = known()
        if handle is not None:
            handle._stepped()

    return stepped


def _nudging(known: weakref.ref[Appending]) -> Callable[[], None]:
    """Return the function by which the window has the handle's line looked at. It does not keep the handle alive."""

    def nudge() -> None:
        handle = known()
        if handle is not None:
            handle._nudge()

    return nudge
