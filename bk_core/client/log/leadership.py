"""One process's leadership of a log: it runs ``LogLeader`` on two threads, and performs what the machine asks for.

``writer`` tells what each thread does. Steps of the machine run under one lock, on the thread where something happened.
"""

from __future__ import annotations

import logging
import random
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from bk_core.background import Worker, WorkerPool
from bk_core.client.driver import as_bk_error
from bk_core.client.here import StaysHere
from bk_core.client.log.append_window import AppendWindow
from bk_core.client.log.driver import LeaderWorks, Work, append_outcome
from bk_core.client.log.list_store import LogClient, log_path
from bk_core.client.log.losses import Losses
from bk_core.client.log.parts import Append, Call, Filling, Lane, LogSpan, RollLimits, again, refused
from bk_core.client.log.untold_ends import UntoldEnds
from bk_core.client.payloads import PayloadCheck, Payloads, limits_of, payload_bytes_max
from bk_core.errors import BkError, ClientClosedError
from bk_core.protocol.effects import Complete, Fail, SetTimer
from bk_core.protocol.events import Outcome, TimerFired
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
from bk_core.threads import Home, Monitor, calling_back

log = logging.getLogger("bk_core.client")

EMPTY_PAUSE_S = 0.1
EMPTY_PAUSE_MAX_S = 2.0
FORGET_AGAIN_S = 5.0  # the intent of a ledger, after that failed
ROLL_AGAIN_S = 5.0  # after a roll by size or age that failed
UNCERTAIN = "entries that were not acknowledged before may or may not be in the log"
_DEFAULT_TIMEOUT_S = 60.0
_BY_ITSELF = object()  # the token of a roll that nobody waits for


def end_threads(own: WorkerPool, worker: Worker) -> None:
    """End the threads without waiting for them: this may run on either of them, or wherever Python finds that a writer was dropped."""
    own.close(0.0, finish=True)
    worker.close()


def _aged(known: weakref.ref[Leadership], ledger_id: int) -> None:
    """Roll by age, on the worker. The timer does not keep the writer alive."""
    writer = known()
    if writer is not None:
        writer._aged(ledger_id)


def _forget_again(known: weakref.ref[Leadership]) -> None:
    """Try again to forget intents, on the worker. The timer does not keep the writer alive."""
    writer = known()
    if writer is not None:
        writer._forget_again()


class Leadership(StaysHere):
    """The machine of one writer with its threads, its ledgers and the appends that have no outcome yet."""

    def __init__(
        self,
        client: LogClient,
        name: str,
        *,
        password: bytes,
        rolls: RollLimits,
        still_leading: Callable[[], bool] | None,
        options: LeaderOptions,
        outstanding_bytes_max: int,
        insisted: Insisted,
    ) -> None:
        log_path(name)
        rolls.check()
        config = getattr(client, "config", None)
        self.name = name
        self._timeout_s = config.operation_timeout_s if config is not None else _DEFAULT_TIMEOUT_S
        # with any digest, because the next ledger may have another one
        self._payloads = PayloadCheck(f"log {name!r}", payload_bytes_max(limits_of(client)), log=name)
        self._still_leading = still_leading
        self._home = Home()
        self._lock = Monitor()
        self._machine = LogLeader(name, random.random, options)
        self._works = LeaderWorks(client, name, password, self._timeout_s, insisted)
        self._own = WorkerPool(f"bookkeeper-log-{name}")
        self._window = AppendWindow(self._lock, outstanding_bytes_max, self._check)
        self._let_some_in = False
        self._worker = Worker(f"bookkeeper-log-{name}-worker")
        self._sends: Lane[AppendTo] = Lane(self._lock, self._send)
        self._outcomes: Lane[Complete | Fail] = Lane(self._lock, self._deliver)
        self._broken: set[int] = set()  # ledgers that refused a run; later runs must not take its entry ids
        self._losses = Losses()
        self._acknowledged: LogSpan | None = None
        self._filling = Filling(rolls)
        self._ends = UntoldEnds(self._lock)
        weakref.finalize(self, end_threads, self._own, self._worker).atexit = False  # one that was dropped without a word
        self._closing: Call | None = None
        self._close_begun = False
        self._stopped = False
        self._left_all = False  # its ledgers, after it stopped

    # --- handing over ---------------------------------------------------------------------------------------------------

    def _let_in(self) -> None:
        """Let those in line in, as far as there is room. The caller holds the lock, on a thread of ours, before ``_go_on``."""
        if self._window.let_in(self._machine.error is not None or self._closing is not None):
            self._let_some_in = True

    def _take_in(self) -> None:
        """Take what callers have handed in, on the writer's own thread."""
        arrived = self._window.arrived
        while arrived:
            token = arrived.popleft()
            with self._lock:
                self._sort(self._machine.append(token.run, token, time.monotonic_ns()))
                self._roll_if_due()
            self._go_on()
        if self._window.line:  # the first one may have gone
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

    def _check(self) -> None:
        error = self._machine.error
        if error is not None:
            self._losses.told(error)
            raise refused(error)
        if self._closing is not None:
            raise ClientClosedError(f"the writer of log {self.name!r} was closed by this program", log=self.name).nothing_done()

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
            self._worker.submit(self._leave_all)
            self._worker.submit(self._end)
        if self._window.line:
            self._let_in()
        self._lock.notify_all()

    def _decide(self, outcome: Complete | Fail) -> None:
        """Take note of the machine's outcomes. The caller holds the lock."""
        token = outcome.token
        if isinstance(token, Append):
            self._window.undecided -= 1
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

    def _leave_all(self) -> None:
        """Leave the ledgers as they are, on the worker. Others may see then that nobody of this process writes them."""
        self._works.abandon_all()
        with self._lock:
            self._left_all = True
            self._lock.notify_all()

    def _end(self) -> None:
        """End both threads when they have done what was handed in. This runs on the worker, behind everything else."""
        self._own_thread(self._take_in)
        end_threads(self._own, self._worker)

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
            self._ends.begin(ended)
        elif isinstance(work, WriteList) and answer.outcome is Outcome.OK:  # the list now has all known ends
            self._ends.take_errors()
        try:
            self._step(lambda now_ns: machine.handle(answer, now_ns))
        finally:
            if ended is not None:
                self._tell_end(ended)
            self._forget_later()

    def _forget_later(self) -> None:
        if self._works.unforgotten:
            self._worker.later("forget again", FORGET_AGAIN_S, partial(_forget_again, weakref.ref(self)))

    def _forget_again(self) -> None:
        """Forget the intents that could not be forgotten, on the worker. One that stays is tried again."""
        self._works.forget_again()
        self._forget_later()

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
        it in, too. It is told to whoever rolls or closes and waits for this; a store may fail in ways that nobody has foreseen."""
        problem: BkError | None = None
        try:
            self._works.tell_end(ledger_id)
        except Exception as error:
            problem = as_bk_error(error)
            log.warning("log %s: the end of ledger %d is not in the list yet: %s", self.name, ledger_id, problem)
        self._ends.finish(ledger_id, problem)

    # --- entries --------------------------------------------------------------------------------------------------------

    def _send(self, effect: AppendTo) -> None:
        run = effect.payloads
        handle = self._works.handles.get(effect.ledger_id)
        assert isinstance(run, Payloads)
        try:
            if handle is None or effect.ledger_id in self._broken:
                raise ClientClosedError(f"ledger {effect.ledger_id} takes no more entries of log {self.name!r}", ledger=effect.ledger_id)
            future: Future[int] = handle.append_run_future(run.data, run.bounds)
        except Exception as error:
            self._broken.add(effect.ledger_id)
            self._appended(effect.request, error)
        else:
            future.add_done_callback(lambda done: self._appended(effect.request, done.exception()))

    def _appended(self, request: int, error: BaseException | None) -> None:
        problem = error if isinstance(error, Exception) else None
        self._works.appended(error)
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
            self._window.decided(token)
            if isinstance(outcome, Complete):
                spans = tuple(self._span(span) for span in outcome.value)
                self._acknowledged = spans[-1]
            if self._window.line:
                self._let_in()
            self._lock.notify_all()
        try:
            with calling_back():
                if isinstance(outcome, Complete):
                    token.future.set_result(spans[0].first_position if token.single else spans)
                else:
                    token.future.set_exception(again(outcome.error, UNCERTAIN))
        finally:
            self._window.told(token)

    def _span(self, span: Span) -> LogSpan:
        return LogSpan(self._works.seqs[span.ledger_id], span.ledger_id, span.first_entry_id, span.last_entry_id)

    # --- rolling by itself ----------------------------------------------------------------------------------------------

    def _count(self, effect: AppendTo) -> None:
        """Count the entries that go to the ledger, and look at its limits. The caller holds the lock."""
        assert isinstance(effect.payloads, Payloads)
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
