"""The event loop that a client belongs to, as the threads of the client reach it."""

from __future__ import annotations

import asyncio
import warnings
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, Self, TypeVar
from weakref import ref

from bk_core.background import WorkerPool
from bk_core.errors import BkError, ClientClosedError, EventLoopError, OperationTimeoutError
from bk_core.threads import SafeFuture, is_ending

T = TypeVar("T")
STEPS_MAX = 256  # of one turn of the loop, so that its other tasks run in between
THREADS = 4  # of each of the two pools


class Loop:
    """Passes steps from other threads to one event loop. All that come before the loop has run cost it one wakeup together."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.wakeups = 0
        self._steps: deque[Callable[[], None]] = deque()
        self._woken = False
        self._gone = False

    def check(self) -> None:
        """Raise EventLoopError outside the loop that this belongs to."""
        if asyncio._get_running_loop() is not self.loop:
            self._refuse()

    def _refuse(self) -> None:
        if self.loop.is_closed():
            raise EventLoopError(
                "the event loop in which this client was connected is closed, so nothing can be awaited with it any more: close the client "
                "and connect again in the loop that runs now"
            )
        raise EventLoopError(
            "this client belongs to another event loop: connect a client in each loop, or hand the call to its own loop with "
            "asyncio.run_coroutine_threadsafe"
        )

    def call(self, step: Callable[[], None]) -> None:
        """Run ``step`` on the loop. Any thread may call this, also one that holds locks. A loop that is closed runs nothing."""
        if self._gone:
            return
        self._steps.append(step)
        if not self._woken:
            self._woken = True
            try:
                self.loop.call_soon_threadsafe(self._run)
            except RuntimeError:  # the loop is closed, so nobody is left to hear
                self._give_up()
        elif self.loop.is_closed():  # it was closed between its wakeup and its next turn
            self._give_up()

    def _give_up(self) -> None:
        self._gone = True
        self._steps.clear()

    def _run(self) -> None:
        """Run the steps that have come. ``_woken`` is reset first, so that a step which comes now wakes the loop again. A step that raises
        is told to the loop's exception handler, and the others have their turn all the same."""
        self.wakeups += 1
        self._woken = False
        steps = self._steps
        try:
            for _ in range(min(len(steps), STEPS_MAX)):
                steps.popleft()()
        finally:
            if steps and not self._woken:
                self._woken = True
                self.loop.call_soon(self._run)

    async def wait(self, future: Future[T], timeout_s: float | None = None, what: str = "") -> T:
        """Return the outcome of a future of the client. OperationTimeoutError names ``what`` when the time is up. A cancelled wait leaves
        the future as it is."""
        self.check()
        if not future.done():
            waiter: asyncio.Future[None] = self.loop.create_future()
            future.add_done_callback(lambda _: self.call(partial(wake, waiter)))
            try:
                async with asyncio.timeout(timeout_s):
                    await waiter
            except TimeoutError:
                if not future.done():
                    raise OperationTimeoutError(f"{what} did not finish within {timeout_s:g} s; it may still take effect") from None
        return future.result(0)


def wake(waiter: asyncio.Future[None]) -> None:
    """Let whoever awaits ``waiter`` go on, if it was not cancelled meanwhile. On the loop, or once the loop is closed: nobody goes on
    there then."""
    if not waiter.done() and not waiter.get_loop().is_closed():
        waiter.set_result(None)


class Woken(Protocol):
    """An object that waits for news of other threads."""

    def _wake(self) -> None: ...


def ring(known: ref[Woken], call: Callable[[Callable[[], None]], None]) -> None:
    """Tell an object, if it is still there, that something has arrived or changed. Any thread."""
    found = known()
    if found is not None:
        call(found._wake)


class _Piece(Generic[T]):
    """One piece of blocking work. A piece that was given up before it began is not done."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.given_up = False

    def __call__(self) -> T | None:
        return None if self.given_up else self._work()


class Aside:
    """Runs what blocks on a few threads that the client owns. Requests to the metadata store and steps of readers have one pool. What waits
    for bookies (taking over a log, closing it, recovery) has another, so that bookies which do not answer hold up none of the first."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.pool = WorkerPool("bookkeeper-aio", THREADS)
        self.lasting = WorkerPool("bookkeeper-aio-lasting", THREADS)

    async def run(
        self,
        work: Callable[[], T],
        dispose: Callable[[T], object] | None = None,
        *,
        lasts: bool = False,
        given_up: Callable[[Future[None]], None] | None = None,
    ) -> T:
        """Return what ``work`` returns. ``lasts`` says that it waits for bookies, or asks for much. If the wait is cancelled, work that has
        not begun is not done, and what work under way still makes is given to ``dispose``. ``given_up`` is called then with a future that
        is done when nothing is left of it."""
        self.loop.check()
        piece = _Piece(work)
        future = self.begin(piece, lasts=lasts)
        try:
            found = await self.loop.wait(future)
        except asyncio.CancelledError:
            piece.given_up = True
            if dispose is not None:
                ended = self._dispose_later(future, dispose)
                if given_up is not None:
                    given_up(ended)
            raise
        return found  # type: ignore[return-value]  # None only if it was given up

    def begin(self, work: Callable[[], T], *, lasts: bool = False) -> SafeFuture[T]:
        """Begin ``work`` and return its future. ClientClosedError once the client is closed."""
        try:
            return (self.lasting if lasts else self.pool).call(work)
        except ClientClosedError:
            raise ClientClosedError("this client was closed by this program") from None

    def _dispose_later(self, future: SafeFuture[T | None], dispose: Callable[[T], object]) -> Future[None]:
        ended: SafeFuture[None] = SafeFuture()

        def done(_: object) -> None:
            if future.exception(0) is None and (made := future.result(0)) is not None:
                self.soon(partial(dispose, made)).add_done_callback(lambda _: ended.set_result(None))
            else:
                ended.set_result(None)

        future.add_done_callback(done)
        return ended

    def soon(self, work: Callable[[], object]) -> Future[None]:
        """Run ``work`` on one of the threads, or here once they have ended, and wait for nothing. Return a future that is done then, or
        when the threads have ended before it was begun."""
        try:
            return self.lasting.call(partial(_quietly, work))
        except Exception:
            _quietly(work)
        ended: SafeFuture[None] = SafeFuture()
        ended.set_result(None)
        return ended

    def close(self, *, finish: bool = False) -> None:
        """End the threads and wait for none. With ``finish`` they do first what was put in."""
        self.pool.close(0.0, finish=finish)
        self.lasting.close(0.0, finish=finish)


def _quietly(work: Callable[[], object]) -> None:
    try:
        work()
    except BkError:
        pass  # the client is closed, which has the same effect


class Manageable(Protocol):
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None: ...


M = TypeVar("M", bound=Manageable)


class Opening(Generic[M]):
    """Something that is opened when it is awaited (``ledger = await client.create_ledger()``), or entered (``async with
    client.create_ledger() as ledger``) and closed again. One that is dropped without that warns as a coroutine does."""

    _what = "what is opened"
    _is_asked = True  # until it is made

    def __init__(self, open_: Callable[[], Any], what: str) -> None:
        self._open = open_
        self._what = what  # the call, for messages
        self._opened: M | None = None
        self._is_asked = False

    def __del__(self) -> None:
        if not (self._is_asked or is_ending()):
            warnings.warn(f"{self._what} was never awaited, so nothing was opened", RuntimeWarning, stacklevel=2, source=self)

    def __repr__(self) -> str:
        return f"<Opening of {self._what}: await it, or use async with>"

    if not TYPE_CHECKING:  # a type checker finds these mistakes by itself

        def __getattr__(self, name: str) -> NoReturn:
            self._is_asked = self._is_asked or not name.startswith("_")  # the mistake is told
            message = f"{self._what} is not open yet and has no {name!r}: await it, or use `async with {self._what} as ...`"
            raise AttributeError(message, name=name, obj=self)

        def __enter__(self) -> NoReturn:
            self._is_asked = True
            raise TypeError(f"{self._what} is opened by `async with`, and not by `with`; or await it")

        def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
            """Python looks for this before it enters."""

    def __await__(self) -> Generator[Any, None, M]:
        self._is_asked = True
        found: M = yield from self._open().__await__()
        return found

    async def __aenter__(self) -> M:
        self._opened = await self
        return await self._opened.__aenter__()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, trace)
