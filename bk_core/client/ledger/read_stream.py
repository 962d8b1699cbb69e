"""Carries the runs that a reading machine hands out from the reactor thread to the caller's."""

from __future__ import annotations

import math
import queue
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, Self

from bk_core.client.counting import counts_of
from bk_core.client.driver import Driver
from bk_core.client.operations import must_not_block
from bk_core.client.session import Session
from bk_core.protocol.effects import Effect
from bk_core.protocol.events import Event
from bk_core.protocol.ledger.metadata import LedgerMetadata
from bk_core.protocol.ledger.run import EntryRun
from bk_core.threads import Bell


class StreamMachine(Protocol):
    """The common interface of RangeReader and Tail."""

    def start(self) -> list[Effect]: ...
    def consumed(self) -> list[Effect]: ...
    def handle(self, event: Event, now_ns: int) -> list[Effect]: ...


class RunStream:
    """The runs of one machine, through a queue that the machine's own window bounds. ``told`` gets everything else that it completes, on
    the reactor thread. ``start`` and ``close`` it, or use it with ``with``.

    ``on_arrival`` is for those who do not wait in ``next``: it is called when there is something to ``take``, on any thread.
    """

    on_arrival: Callable[[], None] | None = None

    def __init__(
        self, session: Session, ledger_id: int, machine: StreamMachine, told: Callable[[Any, Any], None], metadata: LedgerMetadata
    ) -> None:
        self._session = session
        self._machine = machine
        self._arrived: deque[tuple[str, Any]] = deque()
        self._bell = Bell()  # a SimpleQueue waits for ever when a signal handler outlasts the wait's timeout
        self._told = told
        self._counts = counts_of(session)
        self._driver = Driver(session, ledger_id)
        self._driver.set_quorums(metadata)
        self._driver.machine = machine
        self._driver.on_complete = self._completed
        self._driver.on_fail = self._failed

    def start(self) -> None:
        """Begin. The code that has to close the stream has it by now."""
        self._session.reactor.post(lambda: self._driver.step(self._machine.start))

    def _completed(self, token: Any, value: Any) -> None:
        if token in ("run", "end"):
            if token == "run":
                counts = self._counts
                counts.read_entries.value += value.count
                counts.read_bytes.value += value.payload_bytes
            self._put(token, value)
            if token == "end":
                self.close()  # this also serves when an interrupt keeps the reader from doing it
        else:
            self._told(token, value)

    def _failed(self, token: Any, error: Exception) -> None:
        self._counts.reads_failed.value += 1
        self.stop(error)
        self.close()

    def feed(self, event: Event) -> None:
        """Put an event in, from any thread."""
        self._session.reactor.post(lambda: self._driver.feed(event))

    def stop(self, error: Exception) -> None:
        """Stop, from any thread: a waiting caller gets ``error``, after the runs that are there already."""
        self._put("error", error)

    def _put(self, kind: str, value: Any) -> None:
        self._arrived.append((kind, value))
        self._bell.notify_all()
        told = self.on_arrival
        if told is not None:
            told()

    @property
    def has_arrived(self) -> bool:
        """True if ``take`` need not wait."""
        return bool(self._arrived)

    def next(self, timeout_s: float | None) -> EntryRun | None:
        """Return the next run, None at the end. Raises the machine's error, queue.Empty when the time is up, and ForkedClientError in a
        child that was forked since this began, because nothing arrives there."""
        self._session.home.check()
        if not self._arrived:
            must_not_block("reading")
            if not self._bell.until(lambda: bool(self._arrived), math.inf if timeout_s is None else timeout_s):
                raise queue.Empty
        return self.take()

    def take(self) -> EntryRun | None:
        """Return what has arrived: the next run, None at the end. Raises the machine's error."""
        kind, value = self._arrived.popleft()
        if kind == "error":
            raise value
        if kind == "end":
            return None
        self._session.reactor.post(lambda: self._driver.step(self._machine.consumed))
        assert isinstance(value, EntryRun)
        return value

    def close(self) -> None:
        self._session.reactor.post(self._driver.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
