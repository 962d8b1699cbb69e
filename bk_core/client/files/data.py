"""Brings the bytes of large files into data ledgers: ``stage`` returns them as extents once every byte of them is acknowledged.

A stage pulls from its source on its caller's thread and holds nothing meanwhile, so a source that hangs holds up nobody. What it has pulled
goes as a run of entries to a ledger that no other stage writes to at that moment, so the run's entries are consecutive. What all of them
have in memory is bounded (``STAGING_BYTES``): the more there are, the shorter are their runs, and at last one waits for another.

A run that failed is written again, whole, to another ledger. No file names what the failed one may have left. A run to a ledger that turns
out to be gone, because somebody deleted it, is written again as well. A put of bytes that such a ledger held already raises an error.

A *lease* keeps data ledgers from being dropped: the one that is being filled, and those of a content that was staged and not yet put.
"""

from __future__ import annotations

import logging
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any

from bk_core.arguments import bytes_like
from bk_core.background import WorkerPool
from bk_core.client.files.watches import Watches
from bk_core.client.repeating import while_it_may_pass
from bk_core.errors import (
    BkError,
    ClientClosedError,
    ClusterChangedError,
    FileDataLostError,
    FileStoreError,
    ForkedClientError,
    InvalidArgumentError,
    NoClusterError,
    NoSuchLedgerError,
    OperationTimeoutError,
    WrongClusterError,
    WrongPasswordError,
)
from bk_core.metadata.store import Watch
from bk_core.protocol.files.content import Content, Extent
from bk_core.threads import Monitor, SafeFuture, holds_lock

PIECE_BYTES = 1 << 20
RUN_PIECES = 4
# In memory, of all sources together: each has a run that is gathered and one that is written. It is room for 128 sources with the longest
# runs, which is how many large uploads a checkpoint's gateway admits (bk_spark/checkpoint/uploads.py), and for 512 with the shortest, which
# is how many connections it has: a task may keep an upload open for long, so that a short one which had to wait for it would fail.
STAGING_BYTES = 1 << 30
LEDGER_BYTES = 64 << 20
WRITERS_MAX = 4
PLACE_S = 0.5
_FOR_GOOD = (
    InvalidArgumentError,
    ClientClosedError,
    ForkedClientError,
    WrongPasswordError,
    ClusterChangedError,
    NoClusterError,
    WrongClusterError,
    FileStoreError,
)
log = logging.getLogger("bk_core.client.files")


class Leases:
    """The leases of one owner, and those that were given back and are not yet counted out."""

    def __init__(self) -> None:
        self._kept: dict[int, _Grip] = {}
        self._returned: deque[_Grip] = deque()

    def new(self) -> Lease:
        lease = Lease()
        grip = _Grip(lease, self._returned.append)
        grip.held = lease.held
        self._kept[id(grip)] = grip
        lease.release = partial(self._returned.append, grip)
        return lease

    def held(self) -> set[int]:
        """All ledgers that a lease keeps. Any thread: the copies are made in one step each."""
        return {ledger_id for grip in list(self._kept.values()) for ledger_id in list(grip.held)}

    def next_returned(self) -> list[int] | None:
        """The ledgers of a lease that was given back: whoever counts them out takes them off the list. None if there is none."""
        try:
            grip = self._returned.popleft()
        except IndexError:
            return None
        if grip() is None:  # else a run that is still under way may add to it, and it tells once more when it goes
            self._kept.pop(id(grip), None)
        return grip.held


class Lease:
    """Keeps the data ledgers in ``held`` until ``release`` is called, or until nobody refers to it any more.

    Both are one step into C, which no interrupt can tear, and which a finalizer may do on top of anything. ``release`` is idempotent."""

    __slots__ = ("__weakref__", "held", "release")

    def __init__(self) -> None:
        self.held: list[int] = []
        self.release: Callable[[], None] = _nothing


class _Grip(weakref.ref[Lease]):
    """Tells when its lease has gone, which ``held`` outlives."""

    __slots__ = ("held",)

    held: list[int]


def _nothing() -> None:
    """A lease that holds nothing yet has nothing to give back."""


class _Place:
    """One source whose bytes are in memory, as long as its stage goes on."""

    __slots__ = ("__weakref__",)


class _Filling:
    """A data ledger that entries go to. One run at a time is written to it."""

    __slots__ = ("bytes", "handle", "lease", "ledger_id", "watch")

    def __init__(self, handle: Any, lease: Lease) -> None:
        self.watch: Watch | None = None
        self.handle = handle
        self.ledger_id = int(handle.ledger_id)
        self.lease = lease
        self.bytes = 0


class DataLedgers:
    """The data ledgers that one owner of a store fills, at most ``WRITERS_MAX`` at once.

    ``create`` makes one and returns its writer; it calls what it is given with the ledger's id before the ledger is there. ``hold`` has
    the store keep a ledger for a lease, and raises if the store has ended. ``finish`` is handed what takes no more: (writer, its lease,
    whether it failed). ``returned`` is called when a lease was given back that nobody else tells of. ``watch`` watches the metadata of a
    ledger that is filled, as one of ``watches``; whoever learns by it, or by reading, that the ledger is gone calls ``lost``.
    """

    def __init__(
        self,
        name: str,
        create: Callable[[Callable[[int], None]], Any],
        hold: Callable[[Lease, int], None],
        finish: Callable[[Any, Lease, bool], None],
        returned: Callable[[], None],
        leases: Leases,
        watch: Callable[[int], Watch],
        watches: Watches,
        *,
        timeout_s: float,
        piece_bytes: int = PIECE_BYTES,
        ledger_bytes: int = LEDGER_BYTES,
    ) -> None:
        self._create = create
        self._hold = hold
        self._finish = finish
        self._returned = returned
        self._leases = leases
        self._watch = watch
        self._watches = watches
        self._places: weakref.WeakSet[_Place] = weakref.WeakSet()
        self._gone: set[int] = set()  # ledgers that are known to be deleted, as far as a lease held them when ``lost`` was last called
        self._timeout_s = timeout_s
        self._piece = piece_bytes
        self._ledger_bytes = ledger_bytes
        self._lock = Monitor()
        self._idle: list[_Filling] = []
        self._busy: list[_Filling] = []
        self._making = 0  # ledgers that are being made
        self._over = False
        self.pool = WorkerPool(f"bookkeeper-files-{name}-data", WRITERS_MAX)

    # --- staging, on the caller's thread ----------------------------------------------------------------------------------

    def stage(self, data: Any, inline_max: int, until_s: float | None = None) -> tuple[Content, Lease]:
        """Return the content of ``data`` (bytes, or an iterable of them) and the lease that keeps it from being dropped. ``until_s`` is the
        monotonic time at which nothing more is tried. A failure is raised, and then nothing stays held."""
        lease = self._leases.new()
        try:
            return self._stage(data, inline_max, lease, until_s), lease
        except BaseException:
            lease.release()
            raise

    def _stage(self, data: Any, inline_max: int, lease: Lease, until_s: float | None) -> Content:
        place = _Place()
        try:
            content = self._staged(data, inline_max, lease, until_s, place)
        finally:
            self._leave(place)  # whoever keeps the error keeps this frame
        self.check_there(content)
        return content

    def _staged(self, data: Any, inline_max: int, lease: Lease, until_s: float | None, place: _Place) -> Content:
        extents: list[Extent] = []
        under_way: SafeFuture[Extent] | None = None
        least = inline_max // self._piece + 1  # pieces of a run: whatever is not inline has more than ``inline_max``
        for batch in _batches(data, inline_max, partial(self._run_bytes, place, least, until_s), self._piece * max(RUN_PIECES, least)):
            if under_way is None and len(batch) <= inline_max:
                return Content(bytes(batch))  # one that is so short is all there is
            if under_way is not None:
                _add(extents, self._written(under_way, until_s))
            last = extents[-1].ledger_id if extents else None
            deadline = time.monotonic() + self._timeout_s
            under_way = self.pool.call(partial(self._write, batch, lease, last, deadline if until_s is None else min(deadline, until_s)))
        if under_way is not None:
            _add(extents, self._written(under_way, until_s))
        return Content(extents=tuple(extents))

    @holds_lock
    def _leave(self, place: _Place) -> None:
        with self._lock:
            self._places.discard(place)
        self._lock.notify_all()

    def _run_bytes(self, place: _Place, least: int, until_s: float | None) -> int:
        """The size of the next run of one source. Many at once have shorter ones, and more than have room for the shortest wait."""
        timeout_s = self._timeout_s if until_s is None else max(0.0, until_s - time.monotonic())
        deadline = time.monotonic() + timeout_s
        while not self._has_place(place, least):
            left = deadline - time.monotonic()
            if left <= 0:
                what = f"{len(self._places)} contents of files are being staged, and there is no memory for another one"
                raise OperationTimeoutError(f"{what}; after {timeout_s:g} s nothing was staged").nothing_done()
            self._lock.until(partial(self._has_place, place, least), min(left, PLACE_S))  # a place may go without a word
        return self._piece * max(least, min(RUN_PIECES, STAGING_BYTES // (2 * self._piece * len(self._places))))

    @holds_lock
    def _has_place(self, place: _Place, least: int) -> bool:
        with self._lock:
            if place not in self._places and (2 * least * self._piece * (len(self._places) + 1) <= STAGING_BYTES or not self._places):
                self._places.add(place)
            return place in self._places

    def check_there(self, content: Content) -> None:
        """Raise FileDataLostError for bytes in a ledger that is known to be gone."""
        for extent in content.extents:
            if extent.ledger_id in self._gone:
                what = f"data ledger {extent.ledger_id}, which held bytes that no file has yet, was deleted by somebody else"
                raise FileDataLostError(f"{what}: write them again", ledger=extent.ledger_id).nothing_done()

    def lost(self, ledger_id: int) -> None:
        """Take note, on any thread, that the ledger is gone: nothing more goes there."""
        for filling in self._without(ledger_id):
            self._end(filling, failed=True)

    @holds_lock
    def _without(self, ledger_id: int) -> list[_Filling]:
        """Take the ledger off the idle ones and return them. A thread that writes to it learns that it is gone when its run is done."""
        with self._lock:
            # Nobody asks for one that no lease keeps: a ledger that is filled has a lease, and so has a content that no file has yet.
            self._gone = {*self._gone, ledger_id} & self._leases.held()
            found = [one for one in self._idle if one.ledger_id == ledger_id]
            self._idle = [one for one in self._idle if one.ledger_id != ledger_id]
        return found

    def _written(self, future: SafeFuture[Extent], until_s: float | None) -> Extent:
        """Wait for the bytes and return where they are. If this raises, no file has them, whatever became of them."""
        timeout_s = 2 * self._timeout_s  # it ends by itself before that
        if until_s is not None:
            timeout_s = min(timeout_s, max(0.0, until_s - time.monotonic()))
        try:
            return future.result(timeout_s)
        except BkError as error:
            error.nothing_done()
            raise
        except FutureTimeoutError:
            raise OperationTimeoutError("bytes of a file were not staged in time; no file has them").nothing_done() from None

    # --- writing, on a thread of the pool ---------------------------------------------------------------------------------

    def _write(self, batch: Any, lease: Lease, last: int | None, deadline: float) -> Extent:
        """Write one run to the first ledger that takes it."""
        return while_it_may_pass(
            lambda: self._write_to(self._take(last), batch, lease, deadline),
            lambda error: not isinstance(error, _FOR_GOOD),
            deadline,
            told=partial(log.warning, "bytes of a file could not be written, trying again with another ledger: %s"),
        )

    def _write_to(self, filling: _Filling, batch: Any, lease: Lease, deadline: float) -> Extent:
        count = -(-len(batch) // self._piece)
        offsets = array("q", [min(i * self._piece, len(batch)) for i in range(count + 1)])
        failed = True
        try:
            self._hold(lease, filling.ledger_id)
            future = filling.handle.append_run_future(batch, offsets)
            last_entry_id = int(future.result(max(0.0, deadline - time.monotonic())))
            if filling.ledger_id in self._gone:  # bookies take entries of a ledger that has no metadata any more, until they notice
                raise NoSuchLedgerError(f"data ledger {filling.ledger_id} was deleted by somebody else", ledger=filling.ledger_id)
            failed = False
        except FutureTimeoutError as error:
            what = f"bytes of a file were not acknowledged by the bookies of data ledger {filling.ledger_id} in {self._timeout_s:g} s"
            raise OperationTimeoutError(f"{what}; no file has them", ledger=filling.ledger_id) from error
        finally:
            filling.bytes += len(batch)
            self._give_back(filling, failed)
        return Extent(filling.ledger_id, last_entry_id - count + 1, last_entry_id, len(batch), self._piece)

    def _take(self, wanted: int | None) -> _Filling:
        """A ledger that nobody writes to: ``wanted`` if it is free, else the one that was used last, else a new one."""
        with self._lock:
            if self._over:
                raise _closed()
            if self._idle:
                filling = next((one for one in self._idle if one.ledger_id == wanted), self._idle[-1])
                self._idle.remove(filling)
                self._busy.append(filling)
                return filling
            self._making += 1  # the end waits for it
        return self._new()

    def _new(self) -> _Filling:
        made: list[_Filling] = []
        try:
            made.append(self._made())
        finally:
            with self._lock:
                self._making -= 1
                self._busy += made
                over = self._over
                self._lock.notify_all()
        (filling,) = made
        if over:  # whoever ended this meanwhile has not seen it
            filling.handle.abandon()
            self._give_back(filling, True)
            raise _closed()
        return filling

    def _made(self) -> _Filling:
        """The lease begins with the ledger's node, so whatever is left of a ledger that could not be made is dropped (FS-13)."""
        lease = self._leases.new()
        try:
            handle = self._create(partial(self._hold, lease))
            try:
                filling = _Filling(handle, lease)
                filling.watch = self._watch(filling.ledger_id)
                self._watches.add(filling.watch)
            except BaseException:
                handle.abandon()
                raise
        except BaseException:
            lease.release()
            self._returned()
            raise
        return filling

    def _end(self, filling: _Filling, *, failed: bool) -> None:
        if filling.watch is not None:
            self._watches.cancel(filling.watch)
        self._finish(filling.handle, filling.lease, failed)

    def _give_back(self, filling: _Filling, failed: bool) -> None:
        with self._lock:
            failed = failed or filling.ledger_id in self._gone
            if not (failed or self._over or filling.bytes >= self._ledger_bytes):
                self._busy.remove(filling)
                self._idle.append(filling)
                self._lock.notify_all()
                return
        try:
            self._end(filling, failed=failed)
        finally:  # behind that, because what waits for the last one comes behind its closing
            with self._lock:
                self._busy.remove(filling)
                self._lock.notify_all()

    # --- the end ------------------------------------------------------------------------------------------------------------

    def finish_all(self, timeout_s: float) -> None:
        """Begin no more runs, and finish what is open. Runs under way, and ledgers that are being made, are waited for: their threads
        finish them."""
        with self._lock:
            self._over = True
            idle, self._idle = self._idle, []
        for filling in idle:
            self._end(filling, failed=False)
        self._lock.until(lambda: not self._busy and not self._making, timeout_s)

    def abandon(self) -> None:
        """Stop writing everywhere; the ledgers stay as they are."""
        with self._lock:
            self._over = True
            left, self._idle = [*self._idle, *self._busy], []
        for filling in left:
            filling.handle.abandon()
        self.pool.close(0.0)


def _closed() -> ClientClosedError:
    return ClientClosedError("the store was closed by this program")


def _batches(data: Any, inline_max: int, run_bytes: Callable[[], int], whole_bytes: int) -> Iterator[Any]:
    """Yield parts of ``run_bytes()`` bytes, and a last part of what is left, at least one byte. ``run_bytes`` may wait for room in memory.
    It is called when more than ``inline_max`` bytes are gathered. Data that is one object of bytes is in memory already, so ``run_bytes``
    is not called for it: it comes in parts of ``whole_bytes``."""
    if not isinstance(data, Iterable) or isinstance(data, bytes | bytearray | memoryview):
        whole = data if isinstance(data, bytes) else bytes(bytes_like("data", data))
        view = memoryview(whole)
        yield from (view[start : start + whole_bytes] for start in range(0, len(whole), whole_bytes))
        return
    gathered, size = bytearray(), 0
    for part in data:
        gathered += bytes_like("each part of data", part)
        while len(gathered) > inline_max and len(gathered) >= (size := size or run_bytes()):
            if len(gathered) < 2 * size:
                rest = gathered[size:]
                del gathered[size:]
                batch, gathered = gathered, rest
            else:
                batch = gathered[:size]
                del gathered[:size]
            size = 0
            yield memoryview(batch).toreadonly()
            del batch
    if gathered:
        yield memoryview(gathered).toreadonly()


def _add(extents: list[Extent], more: Extent) -> None:
    """Put an extent behind the others, and join it as one with the last where it goes on in the same ledger."""
    if extents:
        before = extents[-1]
        full = before.length == (before.last_entry_id - before.first_entry_id + 1) * before.piece
        if full and (before.ledger_id, before.last_entry_id + 1, before.piece) == (more.ledger_id, more.first_entry_id, more.piece):
            extents[-1] = Extent(before.ledger_id, before.first_entry_id, more.last_entry_id, before.length + more.length, before.piece)
            return
    extents.append(more)
