"""Writing a log exclusively: one leader at a time, driven by ``LogLeader`` (protocol/log/leader.py; replication-protocol.md 10.1, 10.2).

The threads. A caller hands its work over in one step that an interrupt (Ctrl-C) cannot tear, and waits. It never runs the machine,
because half a step is no state. Callers' work is done by the writer's own thread, in their order. Steps of the machine run under one lock,
on the thread where something happened: the writer's own, the reactor's, the worker's. What a step asks for leaves in two lanes that keep
its order: entries go to the ledger's ``WriteHandle``, where the writer's own thread may wait for room; outcomes go to the callers' futures.
All else that blocks (list, creating, recovering, closing) runs on a worker thread, so nothing holds up the reactor.

Memory is bounded: an append waits while more than ``outstanding_bytes_max`` are not acknowledged, whatever the reason: slow bookies, a
roll that drains, or a ledger that is being recovered.
"""

from __future__ import annotations

import logging
import time
import warnings
from _thread import allocate_lock
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Self

from bk_core.arguments import POSITIVE, POSITIVE_SECONDS, SECRET, checked
from bk_core.client.log.leadership import UNCERTAIN, Leadership, end_threads
from bk_core.client.log.list_store import LogClient
from bk_core.client.log.parts import Append, Call, LogSpan, OneRowEach, RollLimits, again
from bk_core.client.operations import LeftOpen, must_not_block, unanswered, wait
from bk_core.client.payloads import Buffer, Payloads, limits_of, payload_bytes_max
from bk_core.errors import ArgumentTypeError, BkError, BlockingCallError, ClientClosedError, LeftOpenError, OperationTimeoutError
from bk_core.protocol.log.exclusive import Insisted
from bk_core.protocol.log.leader_state import LeaderOptions, Roll
from bk_core.protocol.log.names import check_not_of_files
from bk_core.protocol.log.position import Position
from bk_core.threads import acquired, holds_lock, interrupted_call, is_ending, is_own, made_aside

__all__ = ["LogSpan", "LogWriter"]

OUTSTANDING_BYTES_MAX = 32 << 20
TIDY_S = 5.0
_OTHERWISE = object()  # the outcome of a roll when another one is or was under way
_log = logging.getLogger("bk_core.client.log")


class LogWriter(Leadership):
    """The one writer of a log. ``open`` takes the log over, fencing whoever wrote before.

    One row is one entry. It may be used from several threads; entries are in the log in the order of their calls. Another writer's
    take-over ends this one: what was not acknowledged fails with LogTakenOverError and may or may not be in the log, and so does every
    later call, for which nothing is written. A failing ledger does not end it: it goes on in another, without a gap or a double.

    A writer that nobody refers to any more stops once what is pending has its outcome, with a ResourceWarning; its ledger stays OPEN.

    Rules: LOG-1, LOG-10.
    """

    def __init__(
        self,
        client: LogClient,
        name: str,
        *,
        password: bytes = b"",
        rolls: RollLimits | None = None,
        still_leading: Callable[[], bool] | None = None,
        options: LeaderOptions | None = None,
        outstanding_bytes_max: int = OUTSTANDING_BYTES_MAX,
        insisted: Insisted | None = None,
    ) -> None:
        if rolls is None or options is None or insisted is None:
            raise ArgumentTypeError("a writer of a log is not made but opened: LogWriter.open(client, name)")
        super().__init__(
            client,
            name,
            password=password,
            rolls=rolls,
            still_leading=still_leading,
            options=options,
            outstanding_bytes_max=outstanding_bytes_max,
            insisted=insisted,
        )
        self._left_open: LeftOpenError | None = None
        close_with = getattr(client, "close_with", None)
        if close_with is not None:
            self._left = LeftOpen(self._leave)
            close_with(self._left)

    @classmethod
    @checked(
        password=SECRET,
        roll_max_bytes=POSITIVE,
        roll_max_entries=POSITIVE,
        roll_max_s=POSITIVE_SECONDS,
        attempts=POSITIVE,
        outstanding_bytes_max=POSITIVE,
    )
    def open(
        cls,
        client: LogClient,
        name: str,
        *,
        password: bytes = b"",
        roll_max_bytes: int | None = 256 << 20,
        roll_max_entries: int | None = None,
        roll_max_s: float | None = None,
        still_leading: Callable[[], bool] | None = None,
        attempts: int = 8,
        outstanding_bytes_max: int = OUTSTANDING_BYTES_MAX,
        take_over: bool = True,
        gone: Iterable[int] = (),
        take_over_queries: bool = False,
        arrow_entries: bool = False,
        file_entries: bool = False,
    ) -> Self:
        """Take the log called ``name`` over and return its writer, once the list names its first ledger.

        ``client`` is a ``BookKeeper``, ``password`` that of the log's ledgers. A ledger is full at ``roll_max_bytes``, ``roll_max_entries``
        or ``roll_max_s`` seconds, and the next one is begun. Appends wait while ``outstanding_bytes_max`` bytes are not acknowledged.
        ``still_leading`` asks an election, between two rounds of a take-over that others keep winning; safety never depends on it.
        ``attempts`` is how many rounds there are.

        Raises, before anything is fenced, LogWriterAliveError with ``take_over=False`` where somebody writes the log or died writing it,
        except in the ledgers ``gone``, whose writers the caller found to be certainly gone (``live_writers``); LogOfQueriesError without
        ``take_over_queries`` where queries of Spark write it, whose commits this writer ends; LogFormatError without ``arrow_entries``
        where entries are Arrow record batches: every payload then has to be one of the log's columns, with one row; InvalidArgumentError
        without ``file_entries`` for the log of a file store, which ``FileStore`` alone writes.

        Raises LogTakenOverError when others won all rounds, or the election was lost; NoSuchLogError; LogDataLossError when a ledger that
        must be recovered does not exist; WrongPasswordError; OperationTimeoutError when bookies or store did not let it get there in the
        client's ``operation_timeout_s``.

        Rules: GRD-1, GRD-7, LOG-4, LOG-5.
        """
        must_not_block(f"taking over log {name!r}")
        check_not_of_files(name, file_entries)
        make = partial(
            cls,
            client,
            name,
            password=password,
            rolls=RollLimits(roll_max_bytes, roll_max_entries, roll_max_s),
            still_leading=still_leading,
            options=LeaderOptions(rounds_max=attempts),
            outstanding_bytes_max=outstanding_bytes_max,
            insisted=Insisted(take_over, take_over_queries, arrow_entries, frozenset(gone)),
        )
        writer = made_aside(make, lambda made: end_threads(made._own, made._worker))
        writer._take_over()
        return writer

    def _take_over(self) -> None:
        call = Call()
        what, begun = f"taking over log {self.name!r}", time.monotonic()
        try:
            self._hand_over(lambda now_ns: self._machine.open(call, now_ns))
            wait(call.future, self._timeout_s, what)
        except BaseException as error:
            if call.future.done() and call.future.exception() is not None:
                self._worker.join(TIDY_S)  # a ledger that is not needed any more is being deleted
                raise
            problem = self._works.problem
            late = OperationTimeoutError(f"{what} did not finish within {self._timeout_s:g} s{self._why_late(begun)}")
            self._hand_over(lambda now_ns: self._machine.abandon(late, now_ns))
            if isinstance(error, OperationTimeoutError):
                raise late from problem
            raise
        if self._works.properties.entry_format == "arrow":
            self._payloads = OneRowEach(f"log {self.name!r}", payload_bytes_max(limits_of(self._works.client)), log=self.name)

    # --- state ----------------------------------------------------------------------------------------------------------

    @property
    def problem(self) -> Exception | None:
        """Return what it failed to do last and tries again, for the text of a timeout; None while all goes well."""
        return self._works.problem

    @property
    def ledger_id(self) -> int:
        """The ledger that entries go to now."""
        assert self._machine.current is not None
        return self._machine.current

    @property
    @holds_lock
    def position(self) -> Position:
        """The position after the last acknowledged entry. The next entry gets it if nothing is outstanding and no roll comes between."""
        with self._lock:
            current, acknowledged = self.ledger_id, self._acknowledged
            if acknowledged is not None and acknowledged.ledger_id == current:
                return acknowledged.end_position
            return Position(self._works.seqs[current])

    @property
    @holds_lock
    def acknowledged(self) -> tuple[int, int]:
        """The ledger that entries go to now, and its last entry that is acknowledged, -1 before its first one."""
        with self._lock:
            current, acknowledged = self.ledger_id, self._acknowledged
            is_here = acknowledged is not None and acknowledged.ledger_id == current
            return current, acknowledged.end_position.entry - 1 if is_here and acknowledged is not None else -1

    def __repr__(self) -> str:
        return f"<LogWriter {self.name!r} {self._machine.state.name} ledger {self._machine.current}>"

    # --- writing --------------------------------------------------------------------------------------------------------

    def append(self, payload: Buffer) -> Position:
        """Append ``payload`` as one entry, wait for its acknowledgement, and return its position.

        Raises what ``append_run_future`` raises, and the error of an append that failed.
        """
        found: Position = self._appended_in_time(lambda: self.append_future(payload))
        return found

    def append_future(self, payload: Buffer) -> Future[Position]:
        """Append ``payload`` as one entry, and return a future, which has its position once it is acknowledged.

        Blocks and raises as ``append_run_future`` does.
        """
        return self._append(self._payloads.one(payload), single=True)

    def append_many(self, payloads: Sequence[Buffer]) -> tuple[LogSpan, ...]:
        """Append ``payloads``, bytes each, as one run, wait for its acknowledgement, and return where they are: one span, or more if
        ledgers failed in between.

        Raises InvalidArgumentError if there are none, ArgumentTypeError if they are no bytes, what ``append_run_future`` raises, and the
        error of an append that failed.
        """
        found: tuple[LogSpan, ...] = self._appended_in_time(lambda: self.append_many_future(payloads))
        return found

    def append_many_future(self, payloads: Sequence[Buffer]) -> Future[tuple[LogSpan, ...]]:
        """Append ``payloads``, bytes each, as one run, and return a future, which has what ``append_many`` returns.

        Blocks and raises as ``append_run_future`` does. Raises InvalidArgumentError if there are none, ArgumentTypeError if they are no
        bytes.
        """
        return self._append(self._payloads.many(payloads), single=False)

    def append_run(self, payloads: Buffer, offsets: Buffer) -> tuple[LogSpan, ...]:
        """Append a run, wait for its acknowledgement, and return where its entries are. ``payloads`` and ``offsets`` are as in
        ``append_run_future``.

        Raises what ``append_run_future`` raises, and the error of an append that failed.
        """
        found: tuple[LogSpan, ...] = self._appended_in_time(lambda: self.append_run_future(payloads, offsets))
        return found

    def append_run_future(self, payloads: Buffer, offsets: Buffer) -> Future[tuple[LogSpan, ...]]:
        """Append ``len(offsets) - 1`` entries, and return a future, which says where they are once all are acknowledged: one span, or more
        if ledgers failed in between.

        Entry i is ``payloads[offsets[i]:offsets[i + 1]]``; ``offsets`` are int64. ``payloads`` that are read-only are not copied: leave
        them alone until then. The call blocks while ``outstanding_bytes_max`` are not acknowledged.

        Raises, before anything is written, InvalidArgumentError; LogTakenOverError; ClientClosedError after ``close``;
        OperationTimeoutError when no room came free.
        """
        return self._append(self._payloads.run(payloads, offsets), single=False)

    def _appended_in_time(self, append: Callable[[], Future[Any]]) -> Any:
        """Append and wait for the outcome, within one timeout from now."""
        what = f"append to log {self.name!r}"
        self._must_not_block(what)
        since_s = time.monotonic()
        try:
            return wait(append(), self._timeout_s, what, since_s=since_s)
        except OperationTimeoutError as error:
            raise error.retold(f"{error.args[0]}{self._why_late(since_s)}") from self._works.problem

    def _why_late(self, since_s: float) -> str:
        """Return what is in the way of an operation that began at ``since_s``, on the monotonic clock; empty if nothing is known."""
        problem = self._works.problem
        return f"{f': {problem}' if problem else ''}{unanswered(self._works.client, since_s)}"

    def flush(self) -> None:
        """Wait until everything appended so far is acknowledged, whatever others append meanwhile.

        Raises the error of an append that failed if nobody has seen it; LogTakenOverError if the writer was ended; OperationTimeoutError
        after the client's ``operation_timeout_s``.
        """
        self._home.check("writer of a log")
        self._own_thread(self._take_in)  # an interrupt may have kept the thread that appended from doing it
        until_now = self._window.mark()
        if not until_now.is_done:
            what = f"flushing log {self.name!r}"
            self._must_not_block(what)
            since_s = time.monotonic()
            if not self._lock.until(lambda: until_now.is_done, self._timeout_s):
                left = f"{self._window.bytes:,} bytes stayed unacknowledged for {self._timeout_s:g} s{self._why_late(since_s)}"
                raise OperationTimeoutError(f"log {self.name!r}: {left}", log=self.name) from self._works.problem
        until_now.before = None  # else each flush would keep all that came before it
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise the error that ended this writer, or that of an append that failed if nobody has seen it. It waits for nothing."""
        error = self._machine.error
        if error is not None:
            self._losses.told(error)
        else:
            error = self._losses.take()
        if error is not None:
            raise again(error, UNCERTAIN)

    def _append(self, run: Payloads, *, single: bool) -> Future[Any]:
        self._home.check("writer of a log")
        token = Append(run, single)
        try:
            if not self._window.admitted(token):
                self._wait_for_room(token)
        finally:
            self._own_thread(self._take_in)
        return token.future

    def _must_not_block(self, what: str) -> None:
        must_not_block(what)
        if self._own.is_current:
            raise BlockingCallError(f"{what} has to wait, which a completion callback cannot: hand it to a thread of your own")

    def _wait_for_room(self, token: Append) -> None:
        """Wait for room, without a lock that others need. The timeout counts from the call, however many wait."""
        try:
            self._must_not_block(f"append to log {self.name!r}, whose window is full,")
        except BlockingCallError:  # a caller that must not wait passes those who can, if there is room
            if self._window.admitted(token, passing=True):
                return
            raise
        ticket = allocate_lock()
        ticket.acquire()
        since_s = time.monotonic()
        deadline = since_s + self._timeout_s
        try:
            if self._window.admitted(token, ticket):
                return
            acquired(ticket, deadline - time.monotonic())
        finally:
            token.gone = True  # no interrupt strikes before this
        if not self._window.leave(token):
            left = f"{self._window.bytes:,} bytes stayed unacknowledged for {self._timeout_s:g} s{self._why_late(since_s)}"
            raise OperationTimeoutError(f"log {self.name!r}: {left}; this run was not appended", log=self.name).nothing_done()

    # --- rolling, closing -----------------------------------------------------------------------------------------------

    def roll(self) -> None:
        """Go on in a new ledger (LOG-6). Returns when the old one is CLOSED and the list has its end. Also joins a roll under way.

        Raises NotEnoughBookiesError and others if no ledger could be made; then nothing has changed.
        """
        self._home.check("writer of a log")
        what = f"rolling log {self.name!r}"
        self._must_not_block(what)
        deadline = time.monotonic() + self._timeout_s
        before = self._serving()
        while not self._rolled(before, deadline, what):
            call = Call()
            if self._own_thread(partial(self._begin_roll, call, before)):
                if wait(call.future, max(0.0, deadline - time.monotonic()), what) is not _OTHERWISE:
                    break
        self._await_told(deadline, what)

    @holds_lock
    def _serving(self) -> int | None:
        """The ledger that entries go to."""
        with self._lock:
            self._check()
            return self._machine.current

    def _rolled(self, before: int | None, deadline: float, what: str) -> bool:
        """Wait for a roll that is under way. Return True if entries go to another ledger than ``before`` now."""
        self._await(lambda: self._machine.rolling is Roll.NONE or self._stopped, deadline, what)
        return self._serving() != before

    def _begin_roll(self, call: Call, before: int | None) -> None:
        """Begin a roll on the writer's own thread. The token completes with ``_OTHERWISE`` if there is another roll, or was one
        meanwhile."""
        with self._lock:
            other = self._machine.current != before or self._machine.rolling is not Roll.NONE
            if not other or self._machine.error is not None:
                self._sort(self._machine.roll(call, time.monotonic_ns()))
            else:
                call.future.set_result(_OTHERWISE)
        self._go_on()

    def close(self) -> None:
        """Write the outstanding entries, close the ledger and note its end in the list, so that others may append. Idempotent.

        It has no effect on a writer that was taken over, nor in a forked child; it raises LogTakenOverError if the log is taken over while
        it closes, and LeftOpenError, at every call, if its client was closed before: what was acknowledged is safe, and the next writer
        closes the ledger. The first call raises the error of appends that failed, unless a future that was asked or a call has raised it
        already.
        """
        if not self._home.is_here:
            return
        what = f"closing the writer of log {self.name!r}"
        self._must_not_block(what)
        if self._left_open is not None:
            raise again(self._left_open) from self._losses.take()
        deadline = time.monotonic() + self._timeout_s
        is_ended = not self._ask_to_close()
        if self._closing is not None:
            if is_ended and not self._close_begun and self._machine.error is not None:
                raise again(self._machine.error)  # the writer failed before the close could begin, so nobody would answer
            wait(self._closing.future, self._timeout_s, what)
            self._await_told(deadline, what)
        self._raise_untold()

    def _ask_to_close(self) -> bool:
        """Have the writer's own thread begin the close, again if an interrupt was faster. Return False if that thread has ended."""
        self._close_with(Call())
        return self._own_thread(self._begin_close)

    @holds_lock
    def _close_with(self, call: Call) -> None:
        with self._lock:
            if self._closing is None and self._machine.error is None:
                self._closing = call

    def _begin_close(self) -> None:
        """Begin the close on the writer's own thread, behind what was appended."""
        self._take_in()
        with self._lock:
            if self._closing is not None and not self._close_begun:
                self._close_begun = True
                self._sort(self._machine.close(self._closing, time.monotonic_ns()))
        self._go_on()

    def abandon(self) -> None:
        """Stop without closing the ledger; the next writer of the log will recover it. Outstanding entries may or may not be in the log."""
        if not self._home.is_here:
            return
        error = ClientClosedError(f"the writer of log {self.name!r} was abandoned by this program", log=self.name)
        self._losses.told(error)
        self._give_up(error)
        if not is_own() and not interrupted_call():
            self._lock.until(lambda: self._left_all, self._timeout_s)

    def _leave(self) -> None:
        """Stop, because the client is being closed. Who closes things in this order may think that the log was closed, too."""
        if self._closing is None and self._machine.error is None:
            then = f"the next writer, or `bk log release {self.name}`, closes it, and only then its last entries can surely be read"
            _log.warning("the client was closed before the writer of log %s, so its ledger stays open: %s", self.name, then)
            told = f"the client was closed before the writer of log {self.name!r}, so its ledger stays open: what was acknowledged is safe"
            self._left_open = LeftOpenError(f"{told}, and {then}", log=self.name)
        self._give_up(ClientClosedError(f"the client of the writer of log {self.name!r} was closed by this program", log=self.name))

    def _give_up(self, error: BkError) -> None:
        self._own_thread(self._take_in)
        self._hand_over(lambda now_ns: self._machine.abandon(error, now_ns))

    def __del__(self) -> None:
        """Stop a writer that was dropped. Nothing is pending, because that would refer to the writer. Its threads end by themselves
        (``end_threads``)."""
        if getattr(self, "_stopped", True) or self._closing is not None or is_ending() or not self._home.is_here:
            return
        self._works.abandon_all()
        warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the writer if there was no error; this raises the error of appends that failed if nobody has seen it."""
        if kind is None:
            self.close()
            return
        with suppress(BkError):  # the error on its way out is the one to show
            self.close()

    def _raise_untold(self) -> None:
        """Raise an error that nobody was told, after ``close``. Every append has its outcome, or gets it now from a machine
        that has ended."""
        self._lock.until(lambda: not self._window.undecided, self._timeout_s)
        lost = self._losses.take()
        if lost is not None:
            raise again(lost, UNCERTAIN)

    def _await_told(self, deadline: float, what: str) -> None:
        self._await(lambda: self._ends.are_settled, deadline, what)
        errors = self._ends.take_errors()
        if errors:
            raise errors[0]

    def _await(self, condition: Callable[[], bool], deadline: float, what: str) -> None:
        """Wait for a future, without a lock that others need."""
        if not self._lock.until(condition, max(0.0, deadline - time.monotonic())):
            raise OperationTimeoutError(f"{what} did not finish within {self._timeout_s:g} s; it may still take effect", log=self.name)
