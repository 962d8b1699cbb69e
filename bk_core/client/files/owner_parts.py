"""The parts of a file store's owner: what a caller hands in, leases, appends that belong together, and the end of its threads."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from bk_core.background import Worker, WorkerPool
from bk_core.client.files.data import Lease, Leases
from bk_core.client.files.opening import again
from bk_core.client.files.watches import Watches
from bk_core.client.files.works import FileWorks
from bk_core.client.log.parts import Call
from bk_core.errors import BkError, ClientClosedError, ForkedClientError, MetadataUnavailableError
from bk_core.metadata.store import Watch
from bk_core.protocol.files.effects import FileEffect
from bk_core.protocol.files.machine import FileMachine
from bk_core.protocol.log.position import Position
from bk_core.threads import Monitor

AGAIN_MAX_S = 60.0
log = logging.getLogger("bk_core.client.files")


class Asked:
    """Token of one change that a caller asked for. ``act`` steps the machine; ``size`` is what it counts for."""

    __slots__ = ("act", "future", "size")

    def __init__(self, act: Callable[[Asked], list[FileEffect]], size: int) -> None:
        self.future: Any = Call().future
        self.act = act
        self.size = size


class Holds:
    """Takes leases of data ledgers from the machine. It refers to no store, so that a store that is dropped ends."""

    def __init__(self, lock: Monitor, machine: FileMachine) -> None:
        self.leases = Leases()
        self._lock = lock
        self._machine = machine

    def take(self, lease: Lease, ledger_id: int) -> None:
        """Raises the store's error if it has ended."""
        with self._lock:
            if self._machine.error is not None:
                raise again(self._machine.error, "nothing was written")
            if ledger_id not in lease.held:
                self._machine.hold(ledger_id)
                lease.held.append(ledger_id)


class Gathered:
    """The outcomes of the appends of one request: all of them are acknowledged, or one failed."""

    def __init__(self, request: int, count: int, told: Callable[..., None]) -> None:
        self._request = request
        self._left = count
        self._told = told
        self._first: Position | None = None
        self._ended = False  # by an error
        self._lock = Monitor()

    def told(self, index: int, done: Future[Position]) -> None:
        """Take note, on any thread, of the position or the error of record ``index``."""
        error = done.exception()
        if error is not None:
            self.end(error)
            return
        with self._lock:
            if not index:
                self._first = done.result()
            self._left -= 1
            over = not self._left
        if over:
            self._told(self._request, self._first, None)

    def end(self, error: BaseException) -> None:
        """Tell the first error of the request, and no later one: finding out what an error means asks the metadata store. Any thread may
        call it."""
        with self._lock:
            ended, self._ended = self._ended, True
        if not ended:
            self._told(self._request, None, error)


class Retries:
    """Has a store's worker try again what failed, after pauses that grow. A failure is told once for as long as it is of the same kind.
    Only the worker's thread calls this."""

    def __init__(self, worker: Worker, store: str) -> None:
        self._worker = worker
        self._store = store
        self._failing: dict[str, tuple[type[BkError], float]] = {}  # how each failed last, and the next pause

    def failed(self, key: str, what: str, error: BkError, pause_s: float, task: Callable[[], None]) -> None:
        """Try ``task`` again under this key. ``pause_s`` is the first pause; ``what`` cannot be done now."""
        if isinstance(error, ClientClosedError):  # the store ends with its client, and says so to whoever asks
            return
        kind, pause_s = self._failing.get(key, (None, pause_s))
        is_outage = isinstance(error, MetadataUnavailableError)  # the same one fails all that is asked of the metadata store (SES-8)
        if kind is not type(error) and not (is_outage and any(known is type(error) for known, _ in self._failing.values())):
            log.warning("file store %s: %s now, trying again: %s", self._store, what, error)
        self._failing[key] = type(error), min(2 * pause_s, AGAIN_MAX_S)
        self._worker.later(key, pause_s, task)

    def done(self, key: str) -> None:
        self._failing.pop(key, None)


def end_threads(own: WorkerPool, worker: Worker, data: WorkerPool, watches: Watches) -> None:
    """End the threads without waiting for them: one of them may run this, or whichever thread finds that a store was dropped."""
    for watch in watches.end():
        with suppress(ClientClosedError, ForkedClientError):
            own.submit(watch.cancel)
    data.close(0.0)
    own.close(0.0, finish=True)
    worker.close()


def watch_data(works: FileWorks, changed: Callable[[int], None], ledger_id: int) -> Watch:
    return works.watch_data(ledger_id, partial(changed, ledger_id))


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return a call for timers and parts of a store: it keeps no store alive, and does nothing once that is gone."""
    known = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        found = known()
        if found is not None:
            found(*arguments)

    return call
