"""Event loops for tests: they run to their end in a bounded time, and tell what nobody retrieved. Cancellation at every await point."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

import bk_core

T = TypeVar("T")
PATIENCE_S = 120.0
POINTS_MAX = 200


def run(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run ``main`` in a loop of its own. Whatever the loop or the garbage collector complains of fails the test."""
    complaints: list[str] = []
    gc.collect()  # what earlier tests have left complains here, where nobody counts it

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(f"{context}"))
        async with asyncio.timeout(PATIENCE_S):
            found = await main()
        gc.collect()
        await asyncio.sleep(0)
        return found

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = asyncio.run(watched())
        gc.collect()
    complaints += [str(one.message) for one in told if issubclass(one.category, ResourceWarning | RuntimeWarning)]
    assert not complaints, complaints
    return found


class Struck:
    """An awaitable that cancels its task at one of its await points. ``late`` cancels it when what is awaited there is done, and the task
    has not noticed yet."""

    def __init__(self, awaitable: Awaitable[Any], point: int, late: bool) -> None:
        self.reached = False
        self._awaitable = awaitable
        self._left = point
        self._late = late

    def _strike(self, awaited: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.reached = True
        if self._late and awaited is not None:
            awaited.add_done_callback(lambda _: task.cancel())
        else:
            task.cancel()

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._awaitable.__await__()
        error: BaseException | None = None
        while True:
            try:
                awaited = next(steps) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            if not self._left and not self.reached:
                self._strike(awaited)
            self._left -= 1
            try:
                yield awaited
            except BaseException as thrown:
                error = thrown


async def everywhere(call: Callable[[int], Awaitable[Any]], after: Callable[[int, bool], Awaitable[Any]], *, late: bool = False) -> int:
    """Await ``call`` once for each of its await points and cancel it there; ``after`` is told if it was cancelled. Return how many points
    there were."""
    for point in range(POINTS_MAX):
        struck = Struck(call(point), point, late)

        async def outer(struck: Struck = struck) -> None:
            await struck

        task = asyncio.ensure_future(outer())
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        await after(point, task.cancelled())
        if not struck.reached:
            return point
    raise AssertionError("it never ends")


def stalled(client: bk_core.aio.BookKeeper) -> threading.Event:
    """Nothing of this client is answered until the event is set."""
    busy, go_on = threading.Event(), threading.Event()
    client._client._session.reactor.post(lambda: (busy.set(), go_on.wait(4 * PATIENCE_S))[0])  # type: ignore[func-returns-value]
    assert busy.wait(PATIENCE_S)
    return go_on


async def eventually(holds: Callable[[], object]) -> None:
    """Let the loop's other tasks run until ``holds``."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)
