"""Waits for results of the reactor thread."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import contextmanager
from typing import Any, TypeVar

from bk_core.client.driver import Driver
from bk_core.client.patience import patience_s
from bk_core.client.session import Session
from bk_core.errors import BlockingCallError, OperationTimeoutError
from bk_core.net.reactor import on_reactor_thread
from bk_core.protocol.effects import Effect
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.threads import SafeFuture, cannot_wait, interrupted_call

P = TypeVar("P")
LOOK_S = 0.1


def must_not_block(what: str) -> None:
    """Raise BlockingCallError in a completion callback, which runs on the thread that takes in the answers; see also
    ``must_not_interrupt``."""
    if on_reactor_thread():
        raise BlockingCallError(f"{what} has to wait, which a completion callback cannot: hand it to a thread of your own")
    must_not_interrupt(what)


def must_not_interrupt(what: str) -> None:
    """Raise BlockingCallError in a signal handler that interrupts a call which holds a lock that the threads need which bring outcomes."""
    where = interrupted_call()
    if where:
        raise BlockingCallError(f"{what} has to wait, and {cannot_wait(where)}")


def wait(future: Future[Any], timeout_s: float, what: str, *, since_s: float | None = None) -> Any:
    """Return the future's result. OperationTimeoutError names the operation; BlockingCallError tells that it cannot be waited for in a
    callback.

    ``since_s`` is the monotonic time from which the timeout counts, by default now.
    """
    if not future.done():
        must_not_block(what)
    try:
        return future.result(timeout=timeout_s if since_s is None else max(0.0, since_s + timeout_s - time.monotonic()))
    except FutureTimeoutError:
        if future.done():
            raise
        raise OperationTimeoutError(f"{what} did not finish within {round(timeout_s, 3):g} s; it may still take effect") from None


def wait_and_tell(future: Future[Any], look: Callable[[], P], tell: Callable[[P], object], timeout_s: float, problem: str) -> Any:
    """Return the future's result. Meanwhile ``tell`` is told what ``look`` sees. OperationTimeoutError, which begins with ``problem``, if
    that stays the same for ``timeout_s``."""
    seen, since = look(), time.monotonic()
    while True:
        try:
            return future.result(timeout=LOOK_S)
        except FutureTimeoutError:
            if future.done():
                raise
        now = look()
        tell(now)
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > timeout_s:
            raise OperationTimeoutError(f"{problem} for {timeout_s:g} s")


def unanswered(client: Any, since_s: float) -> str:
    """``; no answer from bookie A, B``: what the error of an operation that began at ``since_s``, on the monotonic clock, says of the
    reason. Empty where all bookies have answered meanwhile, as far as is known."""
    ask = getattr(client, "unanswering", None)
    silent: tuple[str, ...] = () if ask is None else ask(since_s)
    return f"; no answer from bookie {', '.join(silent)}" if silent else ""


class LeftOpen:
    """Ends a writer that is still open when the client is closed (WR-6): its queue fails, and the metadata stays. It keeps no
    writer alive."""

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = weakref.WeakMethod(leave)

    def close(self) -> None:
        leave = self._leave()
        if leave is not None:
            leave()


class _Stalls:
    """The time at which a machine last made progress. The reactor thread notes it, and the waiting thread reads it."""

    def __init__(self, machine: Any) -> None:
        self._machine = machine
        self._seen: Any = None
        self.since_s = time.monotonic()

    def note(self) -> None:
        progress = self._machine.progress
        if progress != self._seen:
            self._seen, self.since_s = progress, time.monotonic()

    def __str__(self) -> str:
        return str(self._seen)


@contextmanager
def driven(
    driver: Driver, machine: Any, start: Callable[[], list[Effect]], quorums: LedgerMetadata | None = None
) -> Iterator[SafeFuture[Any]]:
    """Have ``driver`` run a machine to its one completion, and yield the future of that. The driver is closed in the end. The future fails
    with ClientClosedError when the session is closed, or is closed already."""
    future = driver.session.owed()
    reactor = driver.session.reactor
    driver.machine = machine
    if quorums is not None:
        driver.set_quorums(quorums)
    future.add_done_callback(lambda _: reactor.post(driver.close))  # this also serves when an interrupt keeps us from doing it
    driver.on_complete = lambda token, value: future.settle(value)
    driver.on_fail = lambda token, error: future.fail(error)
    try:
        reactor.post(lambda: driver.step(start))
        yield future
    finally:
        reactor.post(driver.close)


def run_machine(
    session: Session,
    ledger_id: int,
    machine: Any,
    start: Callable[[], list[Effect]],
    *,
    add_kind: str = "data",
    quorums: LedgerMetadata | None = None,
    what: str = "an operation on",
    places_entries: bool = False,
) -> Any:
    """Drive a machine to its one completion and wait for it.

    Raises OperationTimeoutError after ``operation_timeout_s``, or earlier where the thread is less patient (patience.py). A machine that
    tells its ``progress`` may take any time in all (a recovery reads a whole fragment), but only so long without progress. One that
    ``places_entries`` is told which bookies come meanwhile (EC-6).
    """
    title, timeout_s = f"{what} ledger {ledger_id}", patience_s(session.config.operation_timeout_s)
    must_not_block(title)
    driver = Driver(session, ledger_id, add_kind=add_kind)
    stalls = _Stalls(machine) if hasattr(machine, "progress") else None
    if stalls is not None:
        driver.on_step = stalls.note
    began_ns = session.reactor.now_ns()

    def begin() -> list[Effect]:
        if places_entries:
            session.tell_of_bookies(driver, True)
        return start()

    with driven(driver, machine, begin, quorums) as future:
        try:
            return wait(future, timeout_s, title) if stalls is None else _wait_while_it_gets_on(future, stalls, timeout_s, title)
        except OperationTimeoutError as error:
            raise session.explained(error, began_ns) from error.__cause__


def _wait_while_it_gets_on(future: Future[Any], stalls: _Stalls, timeout_s: float, what: str) -> Any:
    """Return the future's result. OperationTimeoutError tells where the machine stands still."""
    while True:
        left = stalls.since_s + timeout_s - time.monotonic()
        try:
            return future.result(timeout=max(0.0, left))
        except FutureTimeoutError:
            if future.done():
                raise
            if stalls.since_s + timeout_s <= time.monotonic():
                raise OperationTimeoutError(
                    f"{what} made no progress for {round(timeout_s, 3):g} s ({stalls}); it may be tried again"
                ) from None
