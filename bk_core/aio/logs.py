"""A log and its writer, awaited."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from bk_core.aio.appends import Acknowledgement, Appends
from bk_core.aio.loops import Opening
from bk_core.aio.reading import LogReader
from bk_core.arguments import Duration, named
from bk_core.client.here import StaysHere
from bk_core.client.log.check import LogCheck
from bk_core.client.log.entering import abandon_and_wait, begin_close, enter_many, enter_one, enter_run, tell_left_open, tell_losses
from bk_core.client.log.info import LogInfo
from bk_core.client.log.janitor import INTENT_AGE_S, GcReport
from bk_core.client.log.log import Log as SyncLog
from bk_core.client.log.log import Start
from bk_core.client.log.parts import LogSpan
from bk_core.client.log.settings import LogChanges
from bk_core.client.log.tables import EARLIEST
from bk_core.client.log.verify import LogVerification
from bk_core.client.log.writer import OUTSTANDING_BYTES_MAX
from bk_core.client.log.writer import LogWriter as Writing
from bk_core.client.payloads import Buffer
from bk_core.errors import BkError, OperationTimeoutError
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import LogProperties, Segment

if TYPE_CHECKING:
    from bk_core.aio.client import BookKeeper
    from bk_core.client.repair.report import OnProgress

T = TypeVar("T")


class Log(StaysHere):
    """One log of a cluster, by its name. It keeps nothing: every call sees the log as it is then. Its calls are those of ``bk_core.Log``,
    awaited.

    >>> log = await client.create_log("events", entry_format="raw", exist_ok=True)
    >>> async with log.writer() as writer:
    ...     await writer.append(b"hello")
    >>> async for run in log.reader(start="earliest").read():
    ...     print(run.payloads())
    """

    def __init__(self, client: BookKeeper, log: SyncLog) -> None:
        self.name = log.name
        self._client = client
        self._log = log

    def __repr__(self) -> str:
        return f"<aio {self._log!r}>"

    async def _run(self, work: Callable[[], T], *, lasts: bool = False) -> T:
        self._client._check()
        return await self._client._aside.run(work, lasts=lasts)

    async def info(self) -> LogInfo:
        """Return what the log is at this moment. Raises NoSuchLogError."""
        return await self._run(lambda: self._log.info)

    async def segments(self, first_seq: int = 0, last_seq: int | None = None) -> list[Segment]:
        """Return the segments ``first_seq .. last_seq`` (inclusive) that are left, in order. Raises NoSuchLogError."""
        return await self._run(lambda: list(self._log.segments(first_seq, last_seq)))

    @named
    def writer(
        self,
        *,
        take_over: bool = False,
        take_over_queries: bool = False,
        arrow_entries: bool = False,
        roll_max_bytes: int | None = 256 << 20,
        roll_max_entries: int | None = None,
        roll_max_time: Duration | None = None,
        outstanding_bytes_max: int = OUTSTANDING_BYTES_MAX,
    ) -> Opening[LogWriter]:
        """Become the one writer of the log: ``async with log.writer() as writer``, or ``await`` it. Arguments and errors are those of
        ``bk_core.Log.writer``. If that is cancelled, a writer that was opened all the same is closed again, and the next one that this
        client opens waits for that."""
        make = partial(
            self._log.writer,
            take_over=take_over,
            take_over_queries=take_over_queries,
            arrow_entries=arrow_entries,
            roll_max_bytes=roll_max_bytes,
            roll_max_entries=roll_max_entries,
            roll_max_time=roll_max_time,
            outstanding_bytes_max=outstanding_bytes_max,
        )

        async def open_() -> LogWriter:
            client = self._client
            client._check()
            await client._left(self.name)
            given_up = partial(client._leaves, self.name)
            return LogWriter(client, await client._aside.run(make, Writing.close, lasts=True, given_up=given_up))

        return Opening(open_, "log.writer(...)")

    @named
    def reader(self, start: Start = EARLIEST) -> LogReader:
        """Read the log in order: ``async for run in log.reader().read()`` what is there now, ``.follow()`` for more as it comes. Nobody is
        fenced. Nothing is asked before the reader is entered or its first run is awaited. That raises the errors of ``bk_core.Log.reader``.
        """
        return LogReader(self._client, self._log, start)

    async def set(self, **changes: Unpack[LogChanges]) -> LogProperties:
        """Change properties for what is written from now on, and return all. ``changes``: see ``bk_core.Log.set``."""
        return await self._run(partial(self._log.set, **changes))

    async def trim(
        self, *, before: Position | datetime | None = None, older_than: Duration | None = None, max_bytes: int | None = None
    ) -> tuple[int, ...]:
        """Drop whole segments from the front, and return the ledgers that were deleted. See ``bk_core.Log.trim``. A trim that is cancelled
        goes on, or did not begin."""
        return await self._run(partial(self._log.trim, before=before, older_than=older_than, max_bytes=max_bytes), lasts=True)

    async def apply_retention(self) -> tuple[int, ...]:
        """Trim what the log's retention no longer keeps, and return the ledgers that were deleted. Raises NoSuchLogError."""
        return await self._run(self._log.apply_retention, lasts=True)

    async def gc(self, *, min_age: Duration = INTENT_AGE_S) -> GcReport:
        """Clean up after writers that vanished, at any time. See ``bk_core.Log.gc``."""
        return await self._run(partial(self._log.gc, min_age=min_age), lasts=True)

    async def check(self, *, read: bool = True) -> LogCheck:
        """Check that all is there that the log lists; with ``read`` the ends of its ledgers too. Raises NoSuchLogError."""
        return await self._run(partial(self._log.check, read=read), lasts=True)

    async def verify(self, *, bytes_per_second: int | None = None, on_progress: OnProgress | None = None) -> LogVerification:
        """Read every copy of every entry that the log lists, and check its digest. See ``bk_core.Log.verify``. ``on_progress`` is called on
        another thread. A verification that is cancelled goes on, or did not begin."""
        return await self._run(partial(self._log.verify, bytes_per_second=bytes_per_second, on_progress=on_progress), lasts=True)

    async def delete(self) -> None:
        """Delete the log with its ledgers; whoever writes it is ended. Raises NoSuchLogError. A deletion that is cancelled
        goes on, or did not begin."""
        await self._run(self._log.delete, lasts=True)


class LogWriter(StaysHere):
    """The one writer of a log. Its calls are those of ``bk_core.LogWriter``, awaited.

    An append that is cancelled while it waits for room does not happen. One that has room happens, whoever still waits for it.
    """

    def __init__(self, client: BookKeeper, writer: Writing) -> None:
        self.name = writer.name
        self._client = client
        self._writer = writer
        self._appends: Appends[Any] = Appends(client._loop, client.config.operation_timeout_s, f"append to log {writer.name!r}")
        client._keep(self)

    @property
    def ledger_id(self) -> int:
        """The ledger that entries go to now."""
        return self._writer.ledger_id

    @property
    def position(self) -> Position:
        """The position after the last acknowledged entry."""
        return self._writer.position

    async def append(self, payload: Buffer) -> Position:
        """Append an entry, wait for its acknowledgement, and return its position."""
        found: Position = await self._appends.append(partial(enter_one, self._writer, payload))
        return found

    async def append_many(self, payloads: Sequence[Buffer]) -> tuple[LogSpan, ...]:
        """Append entries as one run, wait for its acknowledgement, and return where they are: one span, or more if ledgers failed."""
        found: tuple[LogSpan, ...] = await self._appends.append(partial(enter_many, self._writer, payloads))
        return found

    async def append_run(self, payloads: Buffer, offsets: Buffer) -> tuple[LogSpan, ...]:
        """Append ``len(offsets) - 1`` entries of one buffer (int64 offsets), wait for the acknowledgement, and return where they are."""
        found: tuple[LogSpan, ...] = await self._appends.append(partial(enter_run, self._writer, payloads, offsets))
        return found

    async def append_future(self, payload: Buffer) -> Acknowledgement[Position]:
        """Append an entry, wait for room only, and return its acknowledgement, which may be awaited later."""
        return await self._appends.entered(partial(enter_one, self._writer, payload))

    async def append_many_future(self, payloads: Sequence[Buffer]) -> Acknowledgement[tuple[LogSpan, ...]]:
        """Append entries as one run, wait for room only, and return its acknowledgement."""
        return await self._appends.entered(partial(enter_many, self._writer, payloads))

    async def append_run_future(self, payloads: Buffer, offsets: Buffer) -> Acknowledgement[tuple[LogSpan, ...]]:
        """Append the entries of one buffer, wait for room only, and return the acknowledgement of the run."""
        return await self._appends.entered(partial(enter_run, self._writer, payloads, offsets))

    async def flush(self) -> None:
        """Wait until everything appended so far is acknowledged, and raise the error of an append that failed if nobody has seen it."""
        await self._appends.answered()
        self._writer.raise_failure()

    async def roll(self) -> None:
        """Go on in a new ledger, and return when the old one is closed."""
        await self._client._aside.run(self._writer.roll, lasts=True)

    async def close(self) -> None:
        """Write what is outstanding, close the ledger and note its end in the list. Idempotent. The first call raises the error of appends
        that failed if nobody has seen it. A call that is cancelled may be made again. When the time is up before all is acknowledged,
        OperationTimeoutError is raised and the close goes on: nothing more is appended. LeftOpenError if the client was closed before."""
        self._client._loop.check()
        if self._appends.is_stopped:  # with the client, which has ended the writer, too
            tell_losses(self._writer)
            tell_left_open(self._writer)
            return
        try:
            await self._appends.answered()
        except OperationTimeoutError:
            begin_close(self._writer)
            raise
        await self._client._aside.run(self._writer.close, lasts=True)

    def abandon(self) -> None:
        """Stop without closing the ledger; the next writer of the log will recover it. It returns at once."""
        self._client._leaves(self._writer.name, self._client._aside.soon(partial(abandon_and_wait, self._writer)))

    def _stop(self) -> None:
        """Fail what waits, because the client was closed."""
        self._appends.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Close the writer. Without an error on its way out this raises the error of appends that failed if nobody has seen it."""
        if kind is None:
            await self.close()
            return
        try:
            await self._client._aside.run(self._writer.close, lasts=True)
        except BkError:
            pass  # the error on its way out is the one to show

    def __repr__(self) -> str:
        return f"<aio {self._writer!r}>"
