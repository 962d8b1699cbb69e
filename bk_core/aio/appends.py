"""Appends that are awaited: their acknowledgements, their deadlines, and what a flush waits for. Ledgers and logs have it in common."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from bk_core.aio.loops import Loop, wake
from bk_core.client.entering import Entering, Told
from bk_core.client.ledger.add_window import Batch
from bk_core.errors import BkError, ClientClosedError, OperationTimeoutError

T = TypeVar("T")
REST_EVERY = 64  # appends without a wait, after which the other tasks of the loop get their turn


class Acknowledgement(Generic[T]):
    """The outcome of one append that was handed in. ``await`` it, once or several times; nobody has to: the failure of an append that
    nobody awaited is raised by ``flush`` or ``close`` of its writer.

    It fails with OperationTimeoutError when the append has no outcome within ``operation_timeout_s`` of its call; it may still take effect.
    """

    def __init__(self, appends: Appends[T], batch: Batch) -> None:
        self._appends = appends
        self._batch = batch
        self._waiters: list[asyncio.Future[None]] = []
        self._entering: Entering | None = None  # until there is an outcome, because it has the payload
        self._outcome: Future[Any] | None = None
        self._late: BkError | None = None
        self._over = False
        self._deadline = appends.loop.loop.time() + appends.timeout_s

    def done(self) -> bool:
        """Return True if there is an outcome."""
        return self._over or self._late is not None

    def result(self) -> T:
        """Return what the append returns. Raises its error, and asyncio.InvalidStateError if there is no outcome yet."""
        if self._late is not None:
            raise self._late
        if self._outcome is None:
            raise asyncio.InvalidStateError("the append has no outcome yet: await it")
        found: T = self._outcome.result(0)
        return found

    def __await__(self) -> Generator[Any, None, T]:
        self._appends.loop.check()
        while not self.done():
            yield from self._news().__await__()
        return self.result()

    async def _room(self) -> None:
        """Wait until the append is handed in, or has its outcome."""
        while not (self.done() or self._entering is None or self._entering.admitted):
            await self._news()

    async def _news(self) -> None:
        waiter: asyncio.Future[None] = self._appends.loop.loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:  # cancelled, and no news came in the same turn
                self._waiters.remove(waiter)

    # --- the machine's side, on the loop ------------------------------------------------------------------------------------

    def _begin(self, entering: Entering) -> None:
        """Follow the append."""
        self._entering = entering
        entering.future.add_done_callback(self._answered)

    def _answered(self, _future: object) -> None:
        """Pass the outcome on to the loop. Any thread."""
        self._appends.loop.call(self._settle)

    def _told(self) -> None:
        """Pass on that there is room. Any thread."""
        self._appends.loop.call(self._wake)

    def _settle(self) -> None:
        if not self._over:
            assert self._entering is not None
            self._outcome = self._entering.future
            self._end()
        self._wake()

    def _end(self) -> None:
        """Let go of the payload, and of what a flush waits for."""
        self._over, self._entering = True, None
        self._appends.settled(self, self._batch)

    def _fail(self, error: BkError) -> None:
        """Give it an outcome although the append has none."""
        if not self.done():
            self._late = error
            self._wake()

    def _leave(self) -> bool:
        """Wait for room no longer. Return True if it is too late for that, and the append takes effect."""
        if self._over or self._entering is None or self._entering.leave():
            return True
        self._end()
        return False

    def _expire(self) -> None:
        """Fail, because the time is up."""
        assert self._entering is not None
        waiting = self._entering.why_waiting()
        if self._leave():
            what, timeout_s = self._appends.what, self._appends.timeout_s
            self._fail(OperationTimeoutError(f"{what} did not finish within {timeout_s:g} s; it may still take effect"))
        else:
            self._late = OperationTimeoutError(waiting)
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            wake(waiter)


class Appends(Generic[T]):
    """The appends of one writer that have no outcome yet. It is used on the loop only."""

    def __init__(self, loop: Loop, timeout_s: float, what: str) -> None:
        self.loop = loop
        self.timeout_s = timeout_s
        self.what = what
        self._batch = Batch()
        self._outstanding: dict[Acknowledgement[T], None] = {}
        self._due: deque[Acknowledgement[T]] = deque()  # in the order of their deadlines, which is that of their calls
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: list[asyncio.Future[None]] = []
        self._unrested = 0
        self.is_stopped = False  # True once the client is closed

    @property
    def outstanding(self) -> int:
        """The number of appends without an outcome."""
        return len(self._outstanding)

    def begin(self, enter: Callable[[Told], Entering]) -> Acknowledgement[T]:
        """Begin an append and return at once. Raises what ``enter`` raises; then there is no append."""
        self.loop.check()
        self._check_open()
        found: Acknowledgement[T] = Acknowledgement(self, self._batch)
        found._begin(enter(found._told))
        self._batch.runs += 1
        self._outstanding[found] = None
        self._due.append(found)
        if self._timer is None:
            self._set_timer()
        return found

    async def append(self, enter: Callable[[Told], Entering]) -> T:
        """Append and wait for the outcome. If the wait is cancelled while the append stands in line, it does not happen."""
        found = self.begin(enter)
        try:
            return await found
        except asyncio.CancelledError:
            found._leave()
            raise

    async def entered(self, enter: Callable[[Told], Entering]) -> Acknowledgement[T]:
        """Append, wait for room, and return the acknowledgement to come. If the wait is cancelled while the append stands in line, it
        does not happen."""
        found = self.begin(enter)
        try:
            self._unrested += 1
            if self._unrested >= REST_EVERY:
                self._unrested = 0
                await asyncio.sleep(0)
            await found._room()
        except asyncio.CancelledError:
            found._leave()
            raise
        if found.done():
            found.result()  # the error that kept it out
        return found

    async def answered(self) -> None:
        """Wait until everything begun so far has its outcome. OperationTimeoutError."""
        self.loop.check()
        self._check_open()
        if not self._batch.is_done:
            until_now, self._batch = self._batch, Batch(self._batch)
            try:
                async with asyncio.timeout(self.timeout_s):
                    while not until_now.is_done:
                        waiter: asyncio.Future[None] = self.loop.loop.create_future()
                        self._flushing.append(waiter)
                        await waiter
                        self._check_open()
            except TimeoutError:
                raise OperationTimeoutError(f"{self.outstanding} appends stayed unacknowledged for {self.timeout_s:g} s") from None
            until_now.before = None

    def _check_open(self) -> None:
        if self.is_stopped:
            raise self._closed_error()

    def _closed_error(self) -> ClientClosedError:
        return ClientClosedError(f"{self.what}: the client was closed by this program")

    def settled(self, one: Acknowledgement[T], batch: Batch) -> None:
        """Note that an append has its outcome, or does not happen."""
        self._outstanding.pop(one, None)
        batch.runs -= 1
        due = self._due
        while due and due[0].done():
            due.popleft()
        if not batch.runs:
            flushing, self._flushing = self._flushing, []
            for waiter in flushing:
                wake(waiter)

    def _set_timer(self) -> None:
        if self._due:
            self._timer = self.loop.loop.call_at(self._due[0]._deadline, self._expire)

    def _expire(self) -> None:
        """Fail the appends whose time is up."""
        self._timer = None
        due, now = self._due, self.loop.loop.time()
        while due and (due[0].done() or due[0]._deadline <= now):
            one = due.popleft()
            if not one.done():
                one._expire()
        self._set_timer()

    def stop(self) -> None:
        """Fail what has no outcome, because the client is closed."""
        self.is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for one in tuple(self._outstanding):
            one._fail(self._closed_error())
        for waiter in self._flushing:
            wake(waiter)
