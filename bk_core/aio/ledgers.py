"""The handles of one ledger, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar
from weakref import ref

from bk_core.aio.appends import Acknowledgement, Appends
from bk_core.aio.loops import Aside, ring, wake
from bk_core.arguments import ID, SECONDS, checked
from bk_core.client.here import StaysHere
from bk_core.client.ledger.entering import (
    begin_close,
    closed_metadata,
    enter_many,
    enter_one,
    enter_run,
    has_to_force,
    may_flush,
    tell_losses,
)
from bk_core.client.ledger.read_handle import ReadHandle as Reading
from bk_core.client.ledger.read_stream import RunStream
from bk_core.client.ledger.streams import check_range, check_tail, end_stream, range_stream, tail_stream
from bk_core.client.ledger.write_handle import WriteHandle as Writing
from bk_core.client.payloads import Buffer
from bk_core.errors import BkError, ClientClosedError, ConcurrentIterationError, OperationTimeoutError
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.run import EntryRun

if TYPE_CHECKING:
    from bk_core.aio.client import BookKeeper

T = TypeVar("T")


class WriteHandle(StaysHere):
    """The writer of one ledger. Appends are acknowledged in order. Its calls are those of ``bk_core.WriteHandle``, awaited.

    An append that is cancelled while it waits for room does not happen. One that has room happens, whoever still waits for it.
    """

    def __init__(self, client: BookKeeper, handle: Writing) -> None:
        self.ledger_id = handle.ledger_id
        self._client = client
        self._handle = handle
        self._loop = client._loop
        self._appends: Appends[int] = Appends(self._loop, client.config.operation_timeout_s, f"append to ledger {handle.ledger_id}")
        client._keep(self)

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata, as far as this handle knows."""
        return self._handle.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is known to be acknowledged, like all before it; -1 if there is none."""
        return self._handle.last_add_confirmed

    @property
    def last_add_fully_replicated(self) -> int:
        """The last entry that is, like all before it, on every bookie of its write set (G-1)."""
        return self._handle.last_add_fully_replicated

    @property
    def length(self) -> int:
        """The payload bytes of all entries handed in so far."""
        return self._handle.length

    async def append(self, payload: Buffer, *, entry_id: int | None = None) -> int:
        """Append one entry, wait for its acknowledgement, and return its id. ``entry_id`` is for ledgers with ``caller_ids``."""
        return await self._appends.append(partial(enter_one, self._handle, payload, entry_id))

    async def append_many(self, payloads: Sequence[Buffer], *, entry_id: int | None = None) -> int:
        """Append entries as one run, wait for its acknowledgement, and return the id of the last one."""
        return await self._appends.append(partial(enter_many, self._handle, payloads, entry_id))

    async def append_run(self, payloads: Buffer, offsets: Buffer, *, entry_id: int | None = None) -> int:
        """Append ``len(offsets) - 1`` entries of one buffer (int64 offsets), wait for the acknowledgement, and return the last id."""
        return await self._appends.append(partial(enter_run, self._handle, payloads, offsets, entry_id))

    async def append_future(self, payload: Buffer, *, entry_id: int | None = None) -> Acknowledgement[int]:
        """Append one entry, wait for room only, and return its acknowledgement, which may be awaited later."""
        return await self._appends.entered(partial(enter_one, self._handle, payload, entry_id))

    async def append_many_future(self, payloads: Sequence[Buffer], *, entry_id: int | None = None) -> Acknowledgement[int]:
        """Append entries as one run, wait for room only, and return the acknowledgement of the last one."""
        return await self._appends.entered(partial(enter_many, self._handle, payloads, entry_id))

    async def append_run_future(self, payloads: Buffer, offsets: Buffer, *, entry_id: int | None = None) -> Acknowledgement[int]:
        """Append the entries of one buffer, wait for room only, and return the acknowledgement of the last one."""
        return await self._appends.entered(partial(enter_run, self._handle, payloads, offsets, entry_id))

    async def flush(self) -> None:
        """Wait until everything appended so far is acknowledged, and raise the error of an append that failed if nobody has seen it."""
        await self._appends.answered()
        self._handle.raise_failure()

    async def force(self) -> int:
        """Make everything acknowledged so far durable on all bookies of the ensemble, and return the new LAC (``deferred_sync``)."""
        self._loop.check()
        return await self._outcome(self._handle.force_future(), f"forcing ledger {self.ledger_id}")

    async def close(self, *, forced: bool = False) -> LedgerMetadata:
        """Wait for what was appended, then close the ledger at its last entry. Idempotent. ``forced`` waits for nothing and gives up what
        is not acknowledged. The first call raises the error of appends that failed, after it has closed the ledger without them, unless
        somebody has seen it. A call that is cancelled may be made again. LeftOpenError if the client was closed before."""
        self._loop.check()
        metadata = closed_metadata(self._handle)
        if metadata is None:
            if not forced and may_flush(self._handle):
                await self._appends.answered()
                if has_to_force(self._handle):
                    await self.force()
            metadata = await self._outcome(begin_close(self._handle, forced), f"closing ledger {self.ledger_id}")
        tell_losses(self._handle, forced)
        return metadata

    async def _outcome(self, future: Future[T], what: str) -> T:
        return await self._loop.wait(future, self._client.config.operation_timeout_s, what)

    def abandon(self) -> None:
        """Stop without closing the ledger, which somebody will have to recover. Entries in flight fail, and may or may not be in it."""
        self._handle.abandon()

    def _stop(self) -> None:
        """Fail what waits, because the client was closed."""
        self._appends.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Close the ledger. Without an error on its way out this raises the error of appends that failed if nobody has seen it."""
        if kind is None:
            await self.close()
            return
        try:
            await self._outcome(begin_close(self._handle, False), f"closing ledger {self.ledger_id}")
        except BkError:
            pass  # the error on its way out is the one to show

    def __repr__(self) -> str:
        return f"<aio {self._handle!r}>"


class LedgerIteration:
    """Runs of entries as they arrive: ``async for run in ...``. An iteration that is cancelled may go on afterwards: no run is lost.
    One task at a time may wait for the next run; another one gets ConcurrentIterationError."""

    def __init__(
        self,
        handle: ReadHandle,
        begin: Callable[[], RunStream],
        timeout_s: float | None,
        what: str,
        *,
        ends_quietly: bool = False,
        follows: bool = False,
    ) -> None:
        self._handle = handle
        self._begin = begin
        self._timeout_s = timeout_s
        self._what = what
        self._ends_quietly = ends_quietly or follows  # when the time is up, or another task ends it
        self._follows = follows  # it ends when the handle or the client is closed
        self._stream: RunStream | None = None
        self._over = False
        self._is_asked = False  # a task waits for the next run
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> EntryRun:
        self._handle._loop.check()
        if self._is_asked:
            message = f"another task waits for the next run of {self._what}: give each task an iteration of its own"
            raise ConcurrentIterationError(message, ledger=self._handle.ledger_id)
        if self._over:
            raise StopAsyncIteration
        self._is_asked = True
        try:
            run = await self._next()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._end()
            if self._follows and isinstance(error, ClientClosedError):
                raise StopAsyncIteration from None
            raise
        finally:
            self._is_asked = False
        if run is None:
            self._end()
            raise StopAsyncIteration
        return run

    async def _next(self) -> EntryRun | None:
        stream = self._stream
        if stream is None:
            stream = self._stream = self._begin()
            stream.on_arrival = partial(ring, ref(self), self._handle._loop.call)
            stream.start()
        try:
            async with asyncio.timeout(self._timeout_s):
                while not (self._over or stream.has_arrived):
                    self._waiter = self._handle._loop.loop.create_future()
                    await self._waiter
        except TimeoutError:
            if self._ends_quietly:
                return None
            raise OperationTimeoutError(f"{self._what} did not finish in time", ledger=self._handle.ledger_id) from None
        if not self._over:
            return stream.take()
        if self._ends_quietly:
            return None
        raise ClientClosedError(f"{self._what} was ended by another task of this program", ledger=self._handle.ledger_id)

    def _wake(self) -> None:
        if self._waiter is not None:
            wake(self._waiter)

    def _end(self) -> None:
        self._over = True
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.on_arrival = None
            end_stream(self._handle._handle, stream)

    async def aclose(self) -> None:
        """End the iteration. Idempotent. A task that waits for its next run ends: a tail quietly, a read of a range with ClientClosedError,
        because a quiet end would look as if all had been read."""
        self._end()
        self._wake()

    def __del__(self) -> None:
        if getattr(self, "_stream", None) is not None:
            self._end()


class ReadHandle(StaysHere):
    """A reader of one ledger. It never fences. Its calls are those of ``bk_core.ReadHandle``, awaited."""

    def __init__(self, client: BookKeeper, handle: Reading) -> None:
        self.ledger_id = handle.ledger_id
        self._client = client
        self._handle = handle
        self._loop = client._loop
        self._aside: Aside = client._aside

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's metadata, as far as this handle knows."""
        return self._handle.metadata

    @property
    def is_closed(self) -> bool:
        """True if the ledger is CLOSED, as far as this handle knows."""
        return self._handle.is_closed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is known to be acknowledged, like all before it; -1 if there is none."""
        return self._handle.last_add_confirmed

    @property
    def length(self) -> int | None:
        """The payload bytes of a CLOSED ledger; None before, because nobody knows them."""
        return self._handle.length

    async def read(self, first: int, last: int) -> list[bytes]:
        """Return the payloads of entries first..last. Raises InvalidArgumentError beyond the LAC; ReadError, NoSuchEntryError."""
        return [payload async for run in self.read_runs(first, last) for payload in run.payloads()]

    @checked()
    async def read_unconfirmed(self, first: int, last: int) -> list[bytes]:
        """Return the payloads of entries first..last whatever the LAC. They are not promised to last (RD-11)."""
        check_range(self._handle, first, last, True)
        return [payload async for run in self._range(first, last, unconfirmed=True) for payload in run.payloads()]

    @checked()
    def read_runs(self, first: int, last: int, *, unchecked_bound: bool = False) -> LedgerIteration:
        """Iterate over the entries first..last: ``async for run in ledger.read_runs(0, 9)``. See ``bk_core.ReadHandle.read_runs``."""
        check_range(self._handle, first, last, unchecked_bound)
        return self._range(first, last)

    def _range(self, first: int, last: int, *, unconfirmed: bool = False) -> LedgerIteration:
        timeout_s, what = self._client.config.operation_timeout_s, f"a read of ledger {self.ledger_id}"
        return LedgerIteration(self, lambda: range_stream(self._handle, first, last, unconfirmed=unconfirmed), timeout_s, what)

    @checked(first=ID, timeout_s=SECONDS)
    def tail(self, first: int = 0, *, timeout_s: float | None = None) -> LedgerIteration:
        """Iterate over the entries from ``first`` on as they are confirmed, until the ledger is CLOSED and all were given, or the handle or
        its client is closed. With ``timeout_s`` it ends after so many seconds without an entry, too; ``is_closed`` says if the ledger is
        at its end. See ``bk_core.ReadHandle.tail``, which raises ClientClosedError where this ends."""
        check_tail(self._handle, first)
        what = f"a tail of ledger {self.ledger_id}"
        return LedgerIteration(self, lambda: tail_stream(self._handle, first, deliver=True), timeout_s, what, follows=True)

    async def read_last_add_confirmed(self) -> int:
        """Ask the bookies for the LAC."""
        return await self._aside.run(self._handle.read_last_add_confirmed, lasts=True)

    async def try_read_last_add_confirmed(self) -> int:
        """Return the first LAC that is higher than the handle's, or the handle's when no bookie knows a higher one (LC-3)."""
        return await self._aside.run(self._handle.try_read_last_add_confirmed, lasts=True)

    async def refresh(self) -> None:
        """Read the metadata again (OP-6). Raises NoSuchLedgerError if the ledger was deleted."""
        await self._aside.run(self._handle.refresh)

    @checked(entry_id=ID, timeout_s=SECONDS)
    async def wait_for(self, entry_id: int, timeout_s: float) -> bool:
        """Wait until ``entry_id`` may be read and return True; False after ``timeout_s``, or when the ledger is CLOSED below it."""
        if entry_id > self.last_add_confirmed and not self.is_closed:
            runs = LedgerIteration(
                self, lambda: tail_stream(self._handle, entry_id, deliver=False), timeout_s, f"ledger {self.ledger_id}", ends_quietly=True
            )
            try:
                async for _ in runs:
                    break
            finally:
                await runs.aclose()
        return entry_id <= self.last_add_confirmed

    async def close(self) -> None:
        """Stop following the ledger. A ``tail`` ends; reads that wait, and ``wait_for``, raise ClientClosedError. Idempotent."""
        self._loop.check()
        with suppress(ClientClosedError):  # the client was closed first, and the handle with it
            await self._aside.run(self._handle.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio {self._handle!r}>"
