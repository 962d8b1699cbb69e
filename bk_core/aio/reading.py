"""Reading a log in order on an event loop, and following it.

``LogReaderOrder`` (protocol/log/reader_order.py) decides what comes next, as it does for ``bk_core.LogReader``, whose single steps are used
here. The steps that block run aside, one at a time; what takes long (runs, a live ledger, the list) is awaited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import ref

from bk_core.aio.loops import ring, wake
from bk_core.client.here import StaysHere
from bk_core.client.ledger.read_stream import RunStream
from bk_core.client.ledger.streams import end_stream, range_stream, tail_stream
from bk_core.client.log.list_store import ledger_exists, log_path
from bk_core.client.log.log import Log as SyncLog
from bk_core.client.log.log import Start
from bk_core.client.log.reader import OUTAGE_LOOK_S, WAIT_S, LogEntries, Rest
from bk_core.client.log.reader import LogReader as Steps
from bk_core.errors import BkError, ClientClosedError, MetadataUnavailableError, NoSuchEntryError, NoSuchLedgerError, OperationTimeoutError
from bk_core.metadata.store import Watch
from bk_core.protocol.effects import Fail, SetTimer
from bk_core.protocol.events import Outcome, TimerFired
from bk_core.protocol.log.effects import (
    AwaitLedger,
    AwaitList,
    Changed,
    Deliver,
    Delivered,
    LoadChunk,
    LogAnswer,
    LogEffect,
    OpenLedger,
    ReadList,
)
from bk_core.protocol.log.position import Position

if TYPE_CHECKING:
    from bk_core.aio.client import BookKeeper

T = TypeVar("T")


class _Steps(Steps):
    """The machine of a reader, its ledger and its list. What blocks is called on a thread, the rest on the loop, never at the same time."""

    watch: Watch | None = None

    @classmethod
    def of(cls, log: SyncLog, start: Start) -> Self:
        """Open the log and find the start. Blocks."""
        return log.reader(start)._beside(cls)

    def blocking(self, effect: ReadList | LoadChunk | OpenLedger) -> LogAnswer:
        """Perform an effect."""
        match effect:
            case ReadList():
                return self._read_list(effect)
            case LoadChunk():
                return self._load_chunk(effect)
            case OpenLedger():
                return self._open(effect)

    def is_at_hand(self, effect: OpenLedger) -> bool:
        """Return True if performing it asks nobody."""
        handle = self._handle
        return handle is not None and handle.ledger_id == effect.ledger_id and not (self.asking and effect.wanted is not None)

    def begin_watch(self, rung: Callable[[], None]) -> None:
        """Watch the list from now on, unless a cancelled call has begun that. Blocks."""

        def changed() -> None:
            self._changed.set()
            rung()

        if self.watch is not None:
            return
        self._fresh = False
        self.watch = self._client.store.watch(log_path(self.name), changed)
        self._watching = self._following = True

    def release(self) -> None:
        """Let go of the watch and the ledger. Blocks."""
        watch, self.watch = self.watch, None
        self._watching = self._following = False
        if watch is not None:
            watch.cancel()
        self.close()

    @property
    def asking(self) -> bool:
        return self._asking

    @asking.setter
    def asking(self, asking: bool) -> None:
        self._asking = asking

    @property
    def ledger(self) -> Any:
        return self._handle

    @property
    def list_has_changed(self) -> bool:
        return self._changed.is_set()

    def rest(self) -> Rest | None:
        """Return what the machine waits for, if it need not look again."""
        return self._rest if self._following and not self._list_may_have_changed else None

    def stand(self, rest: Rest | None) -> None:
        self._rest = rest

    def look(self) -> list[LogEffect]:
        return self._look()

    def tell(self, event: LogAnswer | TimerFired) -> list[LogEffect]:
        return self._tell(event)

    def passed(self, entry_id: int) -> None:
        self._order.passed(entry_id)

    def answered(self) -> None:
        self._store_answered()

    def may_outlast(self) -> bool:
        """Note that the metadata store did not answer. Return False if it was away for too long (SES-7)."""
        return self._outage.failed(time.monotonic_ns())

    def is_connected(self) -> bool:
        return bool(self._client.store.is_connected())


class LogReader(StaysHere):
    """Reads a log in order and never fences. The start is found when the first run is awaited; with ``async with`` before its block begins,
    so that a reader that starts at "latest" misses nothing that is appended in the block.

    >>> async with log.reader(start="latest") as reader:
    ...     async for run in reader.follow():
    ...         print(run.payloads())

    ``position`` is the next entry to read. An iteration that is cancelled, by ``asyncio.wait_for`` for one, may go on afterwards: no run is
    lost and none comes twice. ``close`` it, or use it with ``async with``; a follower then ends its iteration. One task at a
    time reads; others wait for their turn.
    """

    def __init__(self, client: BookKeeper, log: SyncLog, start: Start) -> None:
        self.name = log.name
        self._client = client
        self._loop = client._loop
        self._log = log
        self._start = start
        self._steps: _Steps | None = None
        self._lock = asyncio.Lock()  # one task at a time
        self._iteration: LogIteration | None = None  # the one whose next run is awaited
        self._busy: Future[Any] | None = None  # a step that a cancelled task has left under way
        self._deliver: Deliver | None = None
        self._stream: RunStream | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        client._keep(self)

    def __repr__(self) -> str:
        where = "not begun" if self._steps is None else f"at segment {self._steps.position.seq}, entry {self._steps.position.entry}"
        return f"<aio LogReader {self.name!r} {where}>"

    @property
    def position(self) -> Position | None:
        """The next entry to read. None before the start was found, unless the reader starts at a position."""
        if self._steps is None:
            return self._start if isinstance(self._start, Position) else None
        return self._steps.position

    # --- iterating ------------------------------------------------------------------------------------------------------------

    def read(self) -> LogIteration:
        """Iterate over everything there is now: ``async for run in reader.read()``. Call it again for more. It
        raises the errors of ``bk_core.LogReader.read``, and ClientClosedError when the reader is closed meanwhile."""
        return LogIteration(self, follows=False)

    def __aiter__(self) -> LogIteration:
        """``read``: everything there is now."""
        return self.read()

    def follow(self) -> LogIteration:
        """Iterate over everything from ``position`` on, and new entries as they come, until the reader or its client is closed.

        It waits by long polls and watches, on no thread. An outage of the metadata store is tolerated for the client's
        ``operation_timeout_s``. After an error the iteration may be asked for its next run again: it goes on where it was.
        """
        return LogIteration(self, follows=True)

    async def _next_run(self, iteration: LogIteration) -> LogEntries | None:
        """Return the next run; None if there is none now, or to a follower once it or the reader is closed."""
        self._loop.check()
        async with self._lock:
            self._iteration = iteration
            try:
                return await self._next_run_of(iteration.follows, iteration.asking)
            finally:
                self._iteration = None

    async def _next_run_of(self, follows: bool, asking: bool) -> LogEntries | None:
        while not self._is_over:
            try:
                found = await self._step(follows, asking)
            except MetadataUnavailableError as error:
                if not self._is_over:
                    if not follows:
                        raise
                    await self._outlast(error)
                    continue
            except BkError:
                if not (follows and self._is_over):
                    raise
            else:
                if found is not None or not (follows or self._is_over):
                    return found
            asking = False
        if follows:
            return None
        if self._closed:
            raise ClientClosedError(f"the reader of log {self.name!r} was closed by this program", log=self.name)
        raise ClientClosedError(f"a read of log {self.name!r} was ended by another task of this program", log=self.name)

    @property
    def _is_over(self) -> bool:
        """True if the task that waits is to end."""
        return self._closed or (self._iteration is not None and self._iteration.over)

    async def _step(self, follows: bool, asking: bool) -> LogEntries | None:
        """Return the next run. None: there is none now, or the next step may have one."""
        steps = self._steps or await self._begin()
        if follows and steps.watch is None and not self._is_over:
            await self._aside(partial(steps.begin_watch, partial(ring, ref(self), self._loop.call)))
        if self._is_over:
            return None
        if self._stream is None:
            steps.asking = asking and not follows
            rest = steps.rest() or await self._run(steps, steps.look())
            steps.answered()
            if isinstance(rest, Deliver):
                self._deliver, self._stream = rest, range_stream(steps.ledger, rest.first_entry_id, rest.last_entry_id)
                steps.stand(None)
                self._listen(self._stream)
            elif follows:
                await self._await(steps, rest)
                return None
            else:
                return None
        return await self._take(steps, follows)

    async def _begin(self) -> _Steps:
        """Open the log and find the start."""
        await self._aside(self._find_start, lasts=True)
        assert self._steps is not None
        return self._steps

    def _find_start(self) -> None:
        """Find the start, unless a cancelled call has found it: "latest" would be another place by now. Blocks."""
        if self._steps is None:
            self._steps = _Steps.of(self._log, self._start)

    # --- delivering -----------------------------------------------------------------------------------------------------------

    async def _take(self, steps: _Steps, follows: bool) -> LogEntries | None:
        """Return the next run of the range that is being delivered; or, at its end, the first one of the next range if there is any."""
        stream, deliver = self._stream, self._deliver
        assert stream is not None and deliver is not None
        timeout_s = self._client.config.operation_timeout_s
        if not await self._until(lambda: stream.has_arrived, timeout_s):
            self._end_stream(steps)
            if self._is_over:
                return None
            raise OperationTimeoutError(f"a read of ledger {deliver.segment.ledger_id} did not finish in time", log=self.name)
        answer = Delivered(deliver.request, Outcome.OK)
        try:
            run = stream.take()
        except NoSuchEntryError:
            self._end_stream(steps)
            if not (steps.ledger.is_closed and steps.ledger.last_add_confirmed < deliver.last_entry_id):
                raise
            answer = Delivered(deliver.request, Outcome.CONFLICT, steps.position.entry)
        except NoSuchLedgerError:
            self._end_stream(steps)
            if await self._aside(lambda: ledger_exists(self._client._client, deliver.segment.ledger_id)):
                raise
            await self._aside(steps.close)
            answer = Delivered(deliver.request, Outcome.CONFLICT, steps.position.entry)
        except BaseException:
            self._end_stream(steps)
            raise
        else:
            if run is not None:
                steps.passed(run.first_entry_id + run.count - 1)
                return LogEntries(deliver.segment, run.first_entry_id, run.count, run.values, run.offsets)
            self._end_stream(steps)
        await self._run(steps, steps.tell(answer))
        return await self._step(follows, False)

    def _listen(self, stream: RunStream) -> None:
        stream.on_arrival = partial(ring, ref(self), self._loop.call)
        stream.start()

    def _end_stream(self, steps: _Steps) -> None:
        stream, self._stream = self._stream, None
        self._deliver = None
        if stream is not None:
            stream.on_arrival = None
            if steps.ledger is not None:
                end_stream(steps.ledger, stream)
            else:
                stream.close()

    # --- the machine ----------------------------------------------------------------------------------------------------------

    async def _run(self, steps: _Steps, effects: list[LogEffect]) -> Rest:
        """Perform the machine's effects until it knows what comes next, or has to wait."""
        steps.stand(None)
        while True:
            (effect,) = effects
            match effect:
                case OpenLedger() if steps.is_at_hand(effect):
                    effects = steps.tell(steps.blocking(effect))
                case ReadList() | LoadChunk() | OpenLedger():
                    lasts = isinstance(effect, OpenLedger)  # bookies are asked for the LAC
                    effects = steps.tell(await self._aside(partial(steps.blocking, effect), lasts=lasts))
                case SetTimer(key, after_ns):
                    await asyncio.sleep(after_ns / 1e9)
                    effects = steps.tell(TimerFired(key))
                case Fail(_, error):
                    raise error
                case Deliver() | AwaitLedger() | AwaitList():
                    steps.stand(effect)
                    return effect
                case _:
                    raise AssertionError(effect)

    async def _aside(self, work: Callable[[], T], *, lasts: bool = False) -> T:
        """Do what blocks on a thread, after what a cancelled task has left there."""
        while self._busy is not None:
            busy = self._busy
            try:
                await self._loop.wait(busy)
            except Exception:
                pass  # nobody waits for its outcome
            if self._busy is busy:
                self._busy = None
        self._busy = future = self._client._aside.begin(work, lasts=lasts)
        found = await self._loop.wait(future)
        self._busy = None
        return found

    async def _await(self, steps: _Steps, rest: AwaitLedger | AwaitList) -> None:
        """Wait until there is more in the ledger or the list."""
        if isinstance(rest, AwaitList):
            changed = await self._until(lambda: steps.list_has_changed, WAIT_S)
        else:
            changed = await self._await_ledger(steps, rest.last_entry_id + 1)
        if not self._is_over:
            await self._run(steps, steps.tell(Changed(rest.request)) if changed else steps.look())

    async def _await_ledger(self, steps: _Steps, entry_id: int) -> bool:
        """Wait for an entry of the live ledger, or its end, by a long poll."""
        ledger = steps.ledger
        if entry_id > ledger.last_add_confirmed and not ledger.is_closed:
            stream = tail_stream(ledger, entry_id, deliver=False)
            self._listen(stream)
            try:
                if await self._until(lambda: stream.has_arrived, WAIT_S):
                    stream.take()
            except NoSuchLedgerError:
                await self._aside(steps.close)
                return True
            finally:
                stream.on_arrival = None
                end_stream(ledger, stream)
        return entry_id <= ledger.last_add_confirmed or bool(ledger.is_closed)

    async def _until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until ``holds``; False when the time is up or the task is to end."""
        loop = self._loop.loop
        deadline = loop.time() + timeout_s
        while not holds():
            if self._is_over or loop.time() >= deadline:
                return False
            self._waiter = waiter = loop.create_future()
            timer = loop.call_at(deadline, wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiter = None
        return True

    async def _outlast(self, error: MetadataUnavailableError) -> None:
        """Wait for the metadata store. Raises ``error`` if it was away for too long (SES-7)."""
        steps = self._steps
        if steps is None or not steps.may_outlast():
            raise error
        await self._aside(steps.release)
        while not self._is_over:
            await self._until(lambda: False, OUTAGE_LOOK_S)
            if steps.is_connected():
                return
            if not steps.may_outlast():
                raise error

    # --- closing --------------------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """Let the task that waits look again. On the loop."""
        if self._waiter is not None:
            wake(self._waiter)

    def _stop(self) -> None:
        """End iterations, because the reader or its client is closed."""
        self._closed = True
        self._wake()

    async def close(self) -> None:
        """Close the reader; a follower ends its iteration. Idempotent."""
        self._loop.check()
        self._stop()
        with suppress(ClientClosedError):  # the client was closed first, and the reader with it
            async with self._lock:
                if self._steps is not None:
                    self._end_stream(self._steps)
                if self._steps is not None or self._busy is not None:
                    await self._aside(self._release)

    def _release(self) -> None:
        """Let go of what is held, also by a step that a cancelled task has left. Blocks."""
        if self._steps is not None:
            self._steps.release()

    async def __aenter__(self) -> Self:
        """Find the start. Raises the errors of ``bk_core.Log.reader``."""
        self._loop.check()
        async with self._lock:
            if self._steps is None:
                await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        """Let go of what a reader that was dropped still holds, or is about to hold by a step that a cancelled task has left."""
        steps = getattr(self, "_steps", None)
        if steps is None:
            return
        busy = self._busy
        if busy is not None or steps.ledger is not None or steps.watch is not None:
            self._end_stream(steps)
            soon = partial(self._client._aside.soon, steps.release)
            if busy is None:
                soon()
            else:
                busy.add_done_callback(lambda _: soon())


class LogIteration:
    """Runs of a log, in order: ``async for run in ...``."""

    def __init__(self, reader: LogReader, follows: bool) -> None:
        self.follows = follows
        self.asking = True  # bookies are asked for the LAC at the beginning
        self.over = False
        self._reader = reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> LogEntries:
        if self.over:
            raise StopAsyncIteration
        found = await self._reader._next_run(self)
        self.asking = False
        if found is None:
            self.over = True
            raise StopAsyncIteration
        return found

    async def aclose(self) -> None:
        """End this iteration. The reader may begin another one. A task that waits for its next run ends: one of ``follow`` quietly, one of
        ``read`` with ClientClosedError."""
        self.over = True
        self._reader._wake()
