"""Appends to a ledger for which no thread waits (bk_core/client/entering.py). The reactor hands in what had no room at first."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from bk_core.client.entering import Told
from bk_core.client.ledger.add_window import Place
from bk_core.client.ledger.write_handle import WriteHandle
from bk_core.client.payloads import NO_PAYLOADS, Buffer, Payloads
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.write.base import WriterState
from bk_core.threads import SafeFuture

NO_THREAD = 0  # in place of the thread whose turn it is: nobody waits on a thread for this turn


def enter_one(handle: WriteHandle, payload: Buffer, entry_id: int | None, told: Told) -> RunEntering:
    """Append one entry, or stand in line. Raises what ``WriteHandle.append_future`` raises at once."""
    return _entered(handle, handle._one(payload, entry_id), entry_id, told)


def enter_many(handle: WriteHandle, payloads: Sequence[Buffer], entry_id: int | None, told: Told) -> RunEntering:
    """Append entries as one run, or stand in line. Raises what ``WriteHandle.append_many_future`` raises at once."""
    return _entered(handle, handle._many(payloads, entry_id), entry_id, told)


def enter_run(handle: WriteHandle, payloads: Buffer, offsets: Buffer, entry_id: int | None, told: Told) -> RunEntering:
    """Append a run, or stand in line. Raises what ``WriteHandle.append_run_future`` raises at once."""
    return _entered(handle, handle._run(payloads, offsets, entry_id), entry_id, told)


def closed_metadata(handle: WriteHandle) -> LedgerMetadata | None:
    """Return the metadata of a ledger that the handle has closed; None if it has not. It may be asked once the client is closed, too."""
    return handle.metadata if handle._machine.state is WriterState.CLOSED else None


def may_flush(handle: WriteHandle) -> bool:
    """Return True if the handle takes part in a close as it should: it was not closed before and has not failed."""
    return not handle._closed and handle._machine.error is None


def has_to_force(handle: WriteHandle) -> bool:
    """Return True if a close has to force what was acknowledged (WR-17). Raises the error that ended the handle."""
    handle._raise_end()
    return handle._options.deferred_sync


def begin_close(handle: WriteHandle, forced: bool) -> Future[LedgerMetadata]:
    """Begin what ``WriteHandle.close`` waits for."""
    return handle._begin_close(forced)


def tell_losses(handle: WriteHandle, forced: bool) -> None:
    """Raise the error of appends that failed, after the close, if nobody was told it."""
    if forced:
        handle._losses.forgive()
    lost = handle._losses.take()
    if lost is not None:
        raise lost


def _entered(handle: WriteHandle, run: Payloads, entry_id: int | None, told: Told) -> RunEntering:
    entering = RunEntering(handle, run, entry_id, told)
    try:
        entering.go_on()
    finally:
        handle._nudge()
    return entering


class RunEntering:
    """A run on its way into the window, in pieces if it is long. It is the ticket of its own place in line. When the place was admitted, it
    goes on, on the reactor thread. Once a piece is handed in the others follow, whoever still waits."""

    def __init__(self, handle: WriteHandle, run: Payloads, entry_id: int | None, told: Told) -> None:
        self.future: SafeFuture[int] = SafeFuture()
        self._handle = handle
        self._run = run
        self._first = entry_id
        self._told = told
        self._size = handle._adds.piece_entries()
        self._next = 0  # the first entry that is not handed in
        self._count = run.entries
        self._place: Place | None = None

    @property
    def admitted(self) -> bool:
        return self._next >= self._count

    def go_on(self) -> None:
        """Hand in what there is room for; stand in line with the rest. Raises ClientClosedError if the handle is closed."""
        handle, share = self._handle, self._handle._share
        handle._check_open()
        has_turn = self._count <= self._size or self._first is not None or share.turn is self.future
        if not has_turn and not handle._adds.take_turn(share, self.future, NO_THREAD):
            self._stand(Place(None, 0, 0, None, self.future, NO_THREAD))
            return
        while self._next < self._count:
            end = min(self._next + self._size, self._count)
            piece = self._run[self._next : end]
            first = None if self._first is None else self._first + self._next
            hand_over = handle._handing_over(piece, self.future, end == self._count, first)
            if not handle._try(hand_over, piece, first, self.future):
                self._stand(Place(hand_over, piece.entries, piece.size, first, self.future if first is None else None, NO_THREAD))
                return
            self._next = end
        self._finish()

    def _stand(self, place: Place) -> None:
        place.ticket = self
        self._place = place
        self._handle._adds.stand_in_line(self._handle._share, place)
        self._handle._nudge()

    def release(self) -> None:
        """Go on after the place in line was admitted, or fail because the handle was closed. Reactor thread."""
        place = self._place
        if place is None or (place.gone and not place.admitted):
            return
        try:
            if place.item is not None and place.admitted:
                self._next += place.entries
            self.go_on()
        except Exception as error:
            self._finish()
            if not self.future.done():
                self.future.set_exception(error)
            return
        if self.admitted:
            self._told()

    def _finish(self) -> None:
        """Give the turn on."""
        self._next = self._count
        if self._handle._share.turn is self.future:
            self._handle._share.turn = None
            self._handle._nudge()

    def leave(self) -> bool:
        """Wait for room no longer (bk_core/client/entering.py)."""
        place = self._place
        if place is None or self._next or self._handle._adds.leave(place):
            return True
        self._run = NO_PAYLOADS  # its place may stay in line for long
        if self._handle._share.turn is self.future:
            self._handle._share.turn = None
        self._handle._nudge()  # the next in line may enter
        return False

    def why_waiting(self) -> str:
        return self._handle._why_not_appended(self.future)
