"""Parts of a log's writer: limits, tokens, and the lanes that keep order."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from bk_core.arguments import POSITIVE, POSITIVE_SECONDS
from bk_core.client.ledger.add_window import Batch
from bk_core.client.payloads import Buffer, PayloadCheck, Payloads
from bk_core.errors import BkError, ClientClosedError, InvalidArgumentError, LogTakenOverError
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.record_batches import rows_of
from bk_core.threads import Monitor, SafeFuture

log = logging.getLogger("bk_core.client")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LogSpan:
    """Entries ``first_entry_id .. last_entry_id`` (inclusive) of segment ``seq``, which is ledger ``ledger_id``."""

    seq: int
    ledger_id: int
    first_entry_id: int
    last_entry_id: int

    @property
    def first_position(self) -> Position:
        """Return the position of the first entry."""
        return Position(self.seq, self.first_entry_id)

    @property
    def last_position(self) -> Position:
        """Return the position of the last entry."""
        return Position(self.seq, self.last_entry_id)

    @property
    def end_position(self) -> Position:
        """Return the position after the last entry, at which a reader goes on."""
        return Position(self.seq, self.last_entry_id + 1)


class OneRowEach(PayloadCheck):
    """Takes what callers append to a live segment of a log of Arrow entries: record batches of one row each.

    Readers count each entry of a live segment as one row, and refuse another. So InvalidArgumentError is raised for any other payload,
    before it is sent.
    """

    __slots__ = ()

    def one(self, payload: Buffer) -> Payloads:
        return self._of_one_row(super().one(payload))

    def many(self, payloads: Sequence[Buffer]) -> Payloads:
        return self._of_one_row(super().many(payloads))

    def run(self, payloads: Buffer, offsets: Buffer) -> Payloads:
        return self._of_one_row(super().run(payloads, offsets))

    def _of_one_row(self, given: Payloads) -> Payloads:
        for i, payload in enumerate(given):
            rows = rows_of(payload)
            if rows != 1:
                what = "is no Arrow record batch message" if rows is None else f"has {rows} rows"
                message = (
                    f"{self._target}: payload {i} {what}; a writer of Arrow entries appends record batches of one row each. Log.write "
                    "takes a table, and puts many rows into an entry"
                )
                raise InvalidArgumentError(message, **self._context)
        return given


@dataclass(frozen=True, slots=True)
class RollLimits:
    """The limits at which a writer goes on in a new ledger. They are soft: entries go to the old one until the new one is listed (LOG-6).
    None means no limit."""

    bytes_max: int | None = 256 << 20
    entries_max: int | None = None
    age_s: float | None = None

    def check(self) -> None:
        """Check the limits; raise InvalidArgumentError."""
        replace(POSITIVE, optional=True)("roll_max_bytes", self.bytes_max)
        replace(POSITIVE, optional=True)("roll_max_entries", self.entries_max)
        replace(POSITIVE_SECONDS, optional=True)("roll_max_s", self.age_s)


class Filling:
    """The fill of the ledger that entries go to."""

    __slots__ = ("bytes", "entries", "ledger_id", "limits", "not_before_s", "old")

    def __init__(self, limits: RollLimits) -> None:
        self.limits = limits
        self.ledger_id: int | None = None
        self.entries = 0
        self.bytes = 0
        self.old = False
        self.not_before_s = 0.0  # after a roll that failed, no other one before this monotonic time

    def add(self, ledger_id: int, run: Payloads) -> bool:
        """Count entries. Return True for the first entries of a ledger."""
        first = ledger_id != self.ledger_id
        if first:
            self.ledger_id, self.entries, self.bytes, self.old = ledger_id, 0, 0, False
        self.entries += run.entries
        self.bytes += run.size
        return first

    @property
    def is_due(self) -> bool:
        """True if it is time to roll."""
        limits = self.limits
        by_bytes = limits.bytes_max is not None and self.bytes >= limits.bytes_max
        by_entries = limits.entries_max is not None and self.entries >= limits.entries_max
        return (by_bytes or by_entries or self.old) and time.monotonic() >= self.not_before_s


class Call:
    """The token of open, roll and close."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: SafeFuture[Any] = SafeFuture()


class Append:
    """The token of one append of ``run``. With ``single`` its future has the entry's position, else spans. ``admitted`` is True if it has
    room, and ``batch`` tells then what it was appended with; ``gone`` is True if nobody waits for room any more."""

    __slots__ = ("admitted", "batch", "future", "gone", "run", "single", "size")

    batch: Batch

    def __init__(self, run: Payloads, single: bool) -> None:
        self.future: SafeFuture[Any] = SafeFuture()
        self.run = run
        self.size = run.size
        self.single = single
        self.admitted = self.gone = False


class Lane(Generic[T]):
    """Runs what is put in, in that order and one at a time, on whichever thread finds the lane free. ``lock`` guards it."""

    def __init__(self, lock: Monitor, perform: Callable[[T], None]) -> None:
        self._lock = lock
        self._perform = perform
        self._busy = False
        self.items: deque[T] = deque()

    def drain(self) -> None:
        while True:
            with self._lock:
                if self._busy or not self.items:
                    return
                self._busy = True
                item = self.items.popleft()
            try:
                self._perform(item)
            finally:
                with self._lock:
                    self._busy = False


def again(error: Exception, what: str = "") -> Exception:
    """Return a new copy of the error for each caller, because raising changes an exception. ``what`` says what became of this call."""
    if not isinstance(error, BkError):
        return error
    return error.retold(f"{error.args[0]}; {what}" if what else error.args[0], of_same_call=not what)


def refused(error: Exception) -> Exception:
    """Return the error of a call on a writer that ``error`` has ended. Nothing of the call was written."""
    what = "nothing was written"
    if not isinstance(error, (LogTakenOverError, ClientClosedError)):  # these two say by themselves what became of the writer
        what += ". That failure has ended this writer for good: close it, and open another one"
    told = again(error, what)
    return told.nothing_done() if isinstance(told, BkError) else told
