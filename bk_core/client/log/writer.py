"""Writing a log exclusively: one leader at a time, driven by ``LogLeader`` (protocol/log/leader.py; replication-protocol.md 10.1, 10.2).

Who does what. A caller hands its work over in one step that an interrupt (Ctrl-C) cannot tear, and waits. It never runs the machine,
because half a step is no state. Callers' work is done by the writer's own thread, in their order. Steps of the machine run under one lock,
on the thread where something happened: the writer's own, the reactor's, the worker's. What a step asks for leaves in two lanes that keep
its order: entries go to the ledger's ``WriteHandle``, where the writer's own thread may wait for room; outcomes go to the callers' futures.
All else that blocks (list, creating, recovering, closing) runs on a worker thread, so nothing holds up the reactor.

Memory is bounded: ``append_run`` waits while more than ``outstanding_bytes_max`` are not acknowledged, whatever the reason: slow bookies, a
roll that drains, or a ledger that is being recovered.
"""

from __future__ import annotations

import logging
import random
import time
import warnings
import weakref
from _thread import LockType, allocate_lock
from array import array
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from threading import TIMEOUT_MAX
from typing import Any, Self

from bk_core.arguments import POSITIVE, POSITIVE_SECONDS, SECRET, checked
from bk_core.client.files.names import check_not_of_files
from bk_core.client.log.driver import LeaderWorks, Work, append_outcome
from bk_core.client.log.list_store import LogClient, log_path
from bk_core.client.log.losses import Losses
from bk_core.client.log.parts import Append, Buffer, Call, Filling, Lane, LogSpan, PayloadRun, RollLimits, Worker, again, bytes_of
from bk_core.client.operations import LeftOpen, must_not_block, unanswered, wait
from bk_core.errors import ArgumentTypeError, BkError, BlockingCallError, ClientClosedError, OperationTimeoutError
from bk_core.protocol.effects import Complete, Fail, SetTimer
from bk_core.protocol.entry import layout
from bk_core.protocol.events import Outcome, TimerFired
from bk_core.protocol.ledger.metadata import DigestType
from bk_core.protocol.ledger.run import ADD_FRAME_PREFIX_BYTES
from bk_core.protocol.limits import Limits
from bk_core.protocol.log.effects import (
    Appended,
    AppendTo,
    CheckLeadership,
    CheckLedger,
    CloseLedger,
    CreateLedger,
    DeleteLedger,
    LeadershipChecked,
    LogEffect,
    ReadList,
    RecoverLedger,
    WriteList,
)
from bk_core.protocol.log.exclusive import Insisted
from bk_core.protocol.log.leader import LogLeader
from bk_core.protocol.log.leader_state import Health, LeaderOptions, LeaderState, Roll, Span
from bk_core.protocol.log.position import Position
from bk_core.threads import Home, Monitor, WorkerPool, calling_back, holds_lock, interrupted_call, is_ending, is_own, made_aside

__all__ = ["LogSpan", "LogWriter"]

log = logging.getLogger("bk_core.client")

OUTSTANDING_BYTES_MAX = 32 << 20
EMPTY_PAUSE_S = 0.1
EMPTY_PAUSE_MAX_S = 2.0
TIDY_S = 5.0
ROLL_AGAIN_S = 5.0  # after a roll by size or age that failed
_DEFAULT_TIMEOUT_S = 60.0


_OTHERWISE = object()  # the outcome of a roll when another one is or was under way
_BY_ITSELF = object()  # the token of a roll that nobody waits for


def _end_threads(own: WorkerPool, worker: Worker) -> None:
    """End the threads without waiting for them: this may run on either of them, or wherever Python finds that a writer was dropped."""
    own.close(0.0, finish=True)
    worker.close()


def _aged(known: weakref.ref[LogWriter], ledger_id: int) -> None:
    """Roll by age, on the worker. The timer does not keep the writer alive."""
    writer = known()
    if writer is not None:
        writer._aged(ledger_id)


class LogWriter:
    """The one writer of a log. ``open`` takes the log over, fencing whoever wrote before (LOG-1).

    One row is one entry. It may be used from several threads; entries are in the log in the order of their calls. Another writer's
    take-over ends this one: what was not acknowledged fails with LogTakenOverError and may or may not be in the log (LOG-10), and so does
    every later call, for which nothing is written. A failing ledger does not end it: it goes on in another, without a gap or a double.

    A writer that nobody refers to any more stops once what is pending has its outcome, with a ResourceWarning; its ledger stays OPEN.
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
        log_path(name)
        rolls.check()
        config = getattr(client, "config", None)
        self.name = name
        self._timeout_s = config.operation_timeout_s if config is not None else _DEFAULT_TIMEOUT_S
        overhead = max(layout.body_overhead(digest_type) for digest_type in DigestType)  # the next ledger may have another digest
        frame_bytes_max = (config.limits if config is not None else Limits()).frame_bytes_max
        self._payload_bytes_max = frame_bytes_max - ADD_FRAME_PREFIX_BYTES - overhead
        self._still_leading = still_leading
        self._outstanding_bytes_max = outstanding_bytes_max
        self._home = Home()
        self._lock = Monitor()
        self._machine = LogLeader(name, random.random, options)
        self._works = LeaderWorks(client, name, password, self._timeout_s, insisted)
        self._own = WorkerPool(f"bookkeeper-log-{name}")
        self._arrived: deque[Append] = deque()
        self._line: deque[tuple[Append, LockType]] = deque()  # the appends that wait for room, in the order of their calls
        self._let_some_in = False
        self._worker = Worker(f"bookkeeper-log-{name}-worker")
        self._sends: Lane[AppendTo] = Lane(self._lock, self._send)
        self._outcomes: Lane[Complete | Fail] = Lane(self._lock, self._deliver)
        self._broken: set[int] = set()  # ledgers that refused a run; later runs must not take its entry ids
        self._outstanding_bytes = 0
        self._undecided = 0  # appends that were handed in and whose outcome the machine has not told
        self._losses = Losses()
        self._acknowledged: LogSpan | None = None
        self._filling = Filling(rolls)
        self._untold: dict[int, BkError | None] = {}  # CLOSED ledgers whose end is not yet in the list, and the reason
        weakref.finalize(self, _end_threads, self._own, self._worker).atexit = False  # one that was dropped without a word
        close_with = getattr(client, "close_with", None)
        if close_with is not None:
            self._left = LeftOpen(self._leave)
            close_with(self._left)
        self._closing: Call | None = None
        self._close_begun = False
        self._stopped = False

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
        """Take the log over and return its writer, once the list names its first ledger.

        Before anything is fenced it is refused (GRD-1): LogTakenOverError with ``take_over=False`` where somebody writes the log or died
        writing it, except in the ledgers ``gone``, whose writers the caller found to be certainly gone (``live_writers``);
        LogOfQueriesError without ``take_over_queries`` where queries of Spark write it, whose commits this writer ends; LogFormatError
        without ``arrow_entries`` where entries are Arrow record batches, which every payload then has to be; InvalidArgumentError without
        ``file_entries`` for the log of a file store, which ``FileStore`` alone writes (GRD-7).

        ``still_leading`` asks an election, between two rounds of a take-over that others keep winning; safety never depends on it
        (LOG-4). ``attempts``: how many rounds. Raises LogTakenOverError when others won them all, or the election was lost; NoSuchLogError;
        LogDataLossError when a ledger that must be recovered does not exist (LOG-5); WrongPasswordError; OperationTimeoutError when
        bookies or store did not let it get there in the client's ``operation_timeout_s``.
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
        writer = made_aside(make, lambda made: _end_threads(made._own, made._worker))
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
                self._worker.wait_ended(TIDY_S)  # a ledger that is not needed any more is being deleted
                raise
            problem = self._works.problem
            why = f"{f': {problem}' if problem else ''}{unanswered(self._works.client, begun)}"
            late = OperationTimeoutError(f"{what} did not finish within {self._timeout_s:g} s{why}")
            self._hand_over(lambda now_ns: self._machine.abandon(late, now_ns))
            if isinstance(error, OperationTimeoutError):
                raise late from problem
            raise

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
        """The position behind the last acknowledged entry. The next entry gets it if nothing is outstanding and no roll comes between."""
        with self._lock:
            current, acknowledged = self.ledger_id, self._acknowledged
            if acknowledged is not None and acknowledged.ledger_id == current:
                return acknowledged.end_position
            return Position(self._works.seqs[current])

    def __repr__(self) -> str:
        return f"<LogWriter {self.name!r} {self._machine.state.name} ledger {self._machine.current}>"

    # --- writing --------------------------------------------------------------------------------------------------------

    def append(self, payload: Buffer) -> Position:
        """Append an entry, wait for its acknowledgement, and return its position. LogTakenOverError, OperationTimeoutError: see
        the class."""
        what = f"append to log {self.name!r}"
        self._must_not_block(what)
        found: Position = wait(self.append_future(payload), self._timeout_s, what)
        return found

    def append_future(self, payload: Buffer) -> Future[Position]:
        """Append an entry; the future has its position once it is acknowledged. Blocks and raises as ``append_run`` does."""
        data = bytes_of(payload)
        return self._append(PayloadRun.checked(data, array("q", (0, len(data))), self._payload_bytes_max, self.name), single=True)

    def append_run(self, payloads: Buffer, offsets: Buffer) -> Future[tuple[LogSpan, ...]]:
        """Append ``len(offsets) - 1`` entries; entry i is ``payloads[offsets[i]:offsets[i + 1]]`` (int64 offsets).

        The future says where they are once all are acknowledged: one span, or more if ledgers failed in between. Blocks while
        ``outstanding_bytes_max`` are not acknowledged. Raises before anything is written: InvalidArgumentError, LogTakenOverError,
        ClientClosedError after ``close``, OperationTimeoutError when no room came free.
        """
        return self._append(PayloadRun.checked(bytes_of(payloads, "payloads"), offsets, self._payload_bytes_max, self.name), single=False)

    def _append(self, run: PayloadRun, *, single: bool) -> Future[Any]:
        self._home.check("writer of a log")
        token = Append(run, single)
        try:
            if not self._admitted(token):
                self._wait_for_room(token)
        finally:
            self._own_thread(self._take_in)
        return token.future

    @holds_lock
    def _admitted(self, token: Append, ticket: LockType | None = None, *, passing: bool = False) -> bool:
        """Return False if the append has to wait; with a ``ticket`` it is in line then. With ``passing`` it need not wait for those in
        line."""
        with self._lock:
            self._check()
            if (passing or not self._line) and self._has_room(token.size):
                self._admit(token)
            elif ticket is not None:
                self._line.append((token, ticket))
            return token.admitted

    def _admit(self, token: Append) -> None:
        """Count the append and hand it in. The caller holds the lock."""
        # No interrupt strikes between these (bk_core/threads.py), so the append is counted and handed in, or neither.
        self._outstanding_bytes += token.size
        self._undecided += 1
        token.admitted = True
        self._arrived.append(token)

    def _let_in(self) -> None:
        """Let the first in line in, as long as there is room. The caller holds the lock, on a thread of ours, before ``_go_on``. The run is
        handed in for the waiting thread, so nobody waits behind a thread that sleeps or runs a signal handler. Threads that are not first
        are not woken."""
        over = self._machine.error is not None or self._closing is not None
        while self._line:
            token, ticket = self._line[0]
            if not over and not token.gone:
                if not self._has_room(token.size):
                    break
                self._admit(token)
                self._let_some_in = True
            self._line.popleft()
            ticket.release()

    def _has_room(self, size: int) -> bool:
        return not self._outstanding_bytes or self._outstanding_bytes + size <= self._outstanding_bytes_max

    def _take_in(self) -> None:
        """Take what callers have handed in, on the writer's own thread."""
        while self._arrived:
            token = self._arrived.popleft()
            with self._lock:
                self._sort(self._machine.append(token.run, token, time.monotonic_ns()))
                self._roll_if_due()
            self._go_on()
        if self._line:  # the first one may have gone
            with self._lock:
                self._let_in()
            self._go_on()

    def _own_thread(self, task: Callable[[], None]) -> bool:
        """Have the writer's own thread run a task. Return False if that thread has ended: the writer has stopped then, and there is nothing
        left to do."""
        try:
            self._own.submit(task)
        except ClientClosedError:
            return False
        return True

    def _hand_over(self, act: Callable[[int], list[LogEffect]]) -> None:
        self._own_thread(partial(self._step, act))

    def _must_not_block(self, what: str) -> None:
        must_not_block(what)
        if self._own.is_current:
            raise BlockingCallError(f"{what} has to wait, which a completion callback cannot: hand it to a thread of your own")

    def _wait_for_room(self, token: Append) -> None:
        """Wait for room, without a lock that others need. The timeout counts from the call, however many wait."""
        try:
            self._must_not_block(f"append to log {self.name!r}, whose window is full,")
        except BlockingCallError:  # a caller that must not wait passes those who can, if there is room
            if self._admitted(token, passing=True):
                return
            raise
        ticket = allocate_lock()
        ticket.acquire()
        deadline = time.monotonic() + self._timeout_s
        try:
            if self._admitted(token, ticket):
                return
            ticket.acquire(True, min(max(0.0, deadline - time.monotonic()), TIMEOUT_MAX))
        finally:
            token.gone = True  # no interrupt strikes before this
        if not self._leave_line(token):
            message = f"log {self.name!r}: {self._outstanding_bytes} bytes stayed unacknowledged; this run was not appended"
            raise OperationTimeoutError(message, log=self.name)

    @holds_lock
    def _leave_line(self, token: Append) -> bool:
        """Leave the line. Return True if the append was let in before. Raises the error that keeps it out for good."""
        with self._lock:
            if not token.admitted:
                self._check()
            return token.admitted

    def _check(self) -> None:
        if self._machine.error is not None:
            self._losses.told(self._machine.error)
            raise again(self._machine.error, "nothing was written")
        if self._closing is not None:
            raise ClientClosedError(f"the writer of log {self.name!r} was closed by this program", log=self.name)

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
        it closes. The first call raises the error of appends that failed, unless a future that was asked or a call that raised has told it.
        """
        if not self._home.is_here:
            return
        what = f"closing the writer of log {self.name!r}"
        self._must_not_block(what)
        deadline = time.monotonic() + self._timeout_s
        call = Call()
        self._close_with(call)
        is_ended = not self._own_thread(self._begin_close)  # again if an interrupt was faster
        if self._closing is not None:
            if is_ended and not self._close_begun and self._machine.error is not None:
                raise again(self._machine.error)  # the writer failed before the close could begin, so nobody would answer
            wait(self._closing.future, self._timeout_s, what)
            self._await_told(deadline, what)
        self._raise_untold()

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
            self._lock.until(lambda: self._stopped, self._timeout_s)

    def _leave(self) -> None:
        """Stop, because the client is being closed."""
        self._give_up(ClientClosedError(f"the client of the writer of log {self.name!r} was closed by this program", log=self.name))

    def _give_up(self, error: BkError) -> None:
        self._own_thread(self._take_in)
        self._hand_over(lambda now_ns: self._machine.abandon(error, now_ns))

    def __del__(self) -> None:
        """Stop a writer that was dropped. Nothing is pending, because that would refer to the writer. Its threads end by themselves
        (``_end_threads``)."""
        if getattr(self, "_stopped", True) or self._closing is not None or is_ending() or not self._home.is_here:
            return
        self._works.abandon_all()
        warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the writer if there was no error; this raises the error of appends that failed if nobody was told it."""
        if kind is None:
            self.close()
            return
        with suppress(BkError):  # the error on its way out is the one to show
            self.close()

    def _raise_untold(self) -> None:
        """Raise an error that nobody was told, after ``close``. Every append has its outcome, or gets it now from a machine
        that has ended."""
        self._lock.until(lambda: not self._undecided, self._timeout_s)
        lost = self._losses.take()
        if lost is not None:
            raise again(lost, "entries that were not acknowledged before may or may not be in the log")

    def _await_told(self, deadline: float, what: str) -> None:
        self._await(lambda: None not in list(self._untold.values()), deadline, what)
        errors = self._take_untold()
        if errors:
            raise errors[0]

    @holds_lock
    def _take_untold(self) -> list[BkError]:
        with self._lock:
            errors = [error for error in self._untold.values() if error is not None]
            self._untold = {ledger_id: None for ledger_id, error in self._untold.items() if error is None}
            return errors

    def _await(self, condition: Callable[[], bool], deadline: float, what: str) -> None:
        """Wait for a future, without a lock that others need."""
        if not self._lock.until(condition, max(0.0, deadline - time.monotonic())):
            raise OperationTimeoutError(f"{what} did not finish within {self._timeout_s:g} s; it may still take effect", log=self.name)

    # --- the machine ----------------------------------------------------------------------------------------------------

    def _step(self, act: Callable[[int], list[LogEffect]]) -> None:
        with self._lock:
            self._sort(act(time.monotonic_ns()))
        self._go_on()

    def _sort(self, effects: list[LogEffect]) -> None:
        """Sort the effects into their lanes, so that everything leaves in the order of the steps (SM-1). The caller holds the lock."""
        for effect in effects:
            match effect:
                case Complete() | Fail():
                    self._decide(effect)
                    self._outcomes.items.append(effect)
                case AppendTo():
                    self._sends.items.append(effect)
                    self._count(effect)
                case SetTimer(key, after_ns):
                    self._worker.later(key, after_ns / 1e9, partial(self._fire, key))
                case CheckLeadership(request):
                    self._worker.submit(partial(self._check_leadership, request))
                case CreateLedger() if self._works.empty_in_a_row:
                    self._worker.later("create again", self._pause_s(), partial(self._perform, effect))
                case ReadList() | WriteList() | CreateLedger() | RecoverLedger() | CloseLedger() | DeleteLedger() | CheckLedger():
                    self._worker.submit(partial(self._perform, effect))
                case _:
                    raise AssertionError(effect)
        if self._machine.state in (LeaderState.CLOSED, LeaderState.ABDICATED, LeaderState.FAILED) and not self._stopped:
            self._stopped = True
            self._worker.forget_timers()
            self._worker.submit(self._works.abandon_all)
            self._worker.submit(self._end)
        if self._line:
            self._let_in()
        self._lock.notify_all()

    def _decide(self, outcome: Complete | Fail) -> None:
        """Take note of the machine's outcomes. The caller holds the lock."""
        token = outcome.token
        if isinstance(token, Append):
            self._undecided -= 1
            if isinstance(outcome, Fail):
                self._losses.lost(token.future, self._machine.error or outcome.error)
        elif isinstance(token, Call) and isinstance(outcome, Fail):
            token.future.when_told = partial(self._losses.told, self._machine.error or outcome.error)

    def _pause_s(self) -> float:
        """Return a pause before the next ledger is made. With bookies that are gone but still registered, one new ledger after the other
        fails, and the list must not fill with them."""
        return float(min(EMPTY_PAUSE_S * 2 ** (self._works.empty_in_a_row - 1), EMPTY_PAUSE_MAX_S))

    def _go_on(self) -> None:
        """Do what the step has put into the lanes, without the lock. Handing entries to a ledger may wait for room there, which only the
        writer's own thread does."""
        self._outcomes.drain()
        if self._let_some_in:  # not under the lock, because a thread that a signal handler interrupts may have that of the thread's queue
            self._let_some_in = False
            self._own_thread(self._take_in)
        if not self._sends.items:
            return
        if self._own.is_current:
            self._sends.drain()
        else:
            self._own_thread(self._sends.drain)

    def _end(self) -> None:
        """End both threads when they have done what was handed in. This runs on the worker, behind everything else."""
        self._own_thread(self._take_in)
        _end_threads(self._own, self._worker)

    def _fire(self, key: str) -> None:
        self._step(lambda now_ns: self._machine.handle(TimerFired(key), now_ns))

    def _perform(self, work: Work) -> None:
        """Do one piece of blocking work, on the worker."""
        machine = self._machine
        urgent = isinstance(work, CreateLedger) and machine.state is LeaderState.SERVING and machine.health is not Health.HEALTHY
        answer = self._works.answer(work, needed=urgent)
        ended = None  # one of our own; the ends of others go into the list with our first ledger
        if isinstance(work, CloseLedger | RecoverLedger) and answer.outcome is Outcome.OK and work.ledger_id == machine.current:
            ended = work.ledger_id
            with self._lock:
                self._untold[ended] = None
        elif isinstance(work, WriteList) and answer.outcome is Outcome.OK:  # the list now has all known ends
            with self._lock:
                self._untold = {ledger_id: None for ledger_id, error in self._untold.items() if error is None}
        self._step(lambda now_ns: machine.handle(answer, now_ns))
        if ended is not None:
            self._tell_end(ended)

    def _check_leadership(self, request: int) -> None:
        answer = LeadershipChecked(request, self._leads())
        self._step(lambda now_ns: self._machine.handle(answer, now_ns))

    def _leads(self) -> bool:
        if self._still_leading is None:
            return True
        try:
            return bool(self._still_leading())
        except Exception as error:
            log.warning("log %s: the election cannot be asked, so it counts as lost: %s", self.name, error)
            return False

    def _tell_end(self, ledger_id: int) -> None:
        """Store the end of the ledger in the list. A failure does no harm, because the next leader that changes the list fills
        it in, too."""
        problem: BkError | None = None
        try:
            self._works.tell_end(ledger_id)
        except BkError as error:
            log.warning("log %s: the end of ledger %d is not in the list yet: %s", self.name, ledger_id, error)
            problem = error
        with self._lock:
            del self._untold[ledger_id]
            if problem is not None:
                self._untold[ledger_id] = problem
            self._lock.notify_all()

    # --- entries --------------------------------------------------------------------------------------------------------

    def _send(self, effect: AppendTo) -> None:
        run = effect.payloads
        handle = self._works.handles.get(effect.ledger_id)
        assert isinstance(run, PayloadRun)
        try:
            if handle is None or effect.ledger_id in self._broken:
                raise ClientClosedError(f"ledger {effect.ledger_id} takes no more entries of log {self.name!r}", ledger=effect.ledger_id)
            future: Future[int] = handle.append_run(run.data, run.bounds)
        except Exception as error:
            self._broken.add(effect.ledger_id)
            self._appended(effect.request, error)
        else:
            future.add_done_callback(lambda done: self._appended(effect.request, done.exception()))

    def _appended(self, request: int, error: BaseException | None) -> None:
        problem = error if isinstance(error, Exception) else None
        answer = Appended(request, append_outcome(error), problem)
        self._step(lambda now_ns: self._machine.handle(answer, now_ns))

    def _deliver(self, outcome: Complete | Fail) -> None:
        token = outcome.token
        if isinstance(token, Append):
            self._finish_append(token, outcome)
        elif isinstance(token, Call):
            if isinstance(outcome, Complete):
                token.future.set_result(outcome.value)
            else:
                token.future.set_exception(again(outcome.error))
        elif isinstance(outcome, Fail) and self._machine.error is None:
            log.warning("log %s: it is not rolled now: %s", self.name, outcome.error)
            self._filling.not_before_s = time.monotonic() + ROLL_AGAIN_S

    def _finish_append(self, token: Append, outcome: Complete | Fail) -> None:
        spans: tuple[LogSpan, ...] = ()
        with self._lock:
            self._outstanding_bytes -= token.size
            if isinstance(outcome, Complete):
                spans = tuple(self._span(span) for span in outcome.value)
                self._acknowledged = spans[-1]
            if self._line:
                self._let_in()
            self._lock.notify_all()
        with calling_back():
            if isinstance(outcome, Complete):
                token.future.set_result(spans[0].first_position if token.single else spans)
            else:
                uncertain = "entries that were not acknowledged before may or may not be in the log"
                token.future.set_exception(again(outcome.error, uncertain))

    def _span(self, span: Span) -> LogSpan:
        return LogSpan(self._works.seqs[span.ledger_id], span.ledger_id, span.first_entry_id, span.last_entry_id)

    # --- rolling by itself ----------------------------------------------------------------------------------------------

    def _count(self, effect: AppendTo) -> None:
        """Count the entries that go to the ledger, and look at its limits. The caller holds the lock."""
        assert isinstance(effect.payloads, PayloadRun)
        if self._filling.add(effect.ledger_id, effect.payloads):
            self._look_at_age(effect.ledger_id)

    def _look_at_age(self, ledger_id: int, again_s: float = 0.0) -> None:
        age_s = self._filling.limits.age_s
        if age_s is not None:
            self._worker.later("age", max(again_s, age_s), partial(_aged, weakref.ref(self), ledger_id))

    def _aged(self, ledger_id: int) -> None:
        """Roll by age, on the worker."""
        with self._lock:
            if ledger_id != self._machine.current or self._stopped:
                return
            self._filling.old = True
            self._roll_if_due()
            self._look_at_age(ledger_id, ROLL_AGAIN_S)  # in case it fails
        self._go_on()

    def _roll_if_due(self) -> None:
        """Begin a roll if it is due. The caller holds the lock."""
        machine = self._machine
        if machine.current != self._filling.ledger_id or not self._filling.is_due:
            return
        serving = machine.state is LeaderState.SERVING and machine.health is Health.HEALTHY and self._closing is None
        if serving and machine.rolling is Roll.NONE:
            self._sort(machine.roll(_BY_ITSELF, time.monotonic_ns()))
