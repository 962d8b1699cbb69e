"""The life of a file store's owner: the thread that steps its machine, what it appends, the worker that does the rest, and the end.

A caller hands a change over in one step that an interrupt (Ctrl-C) cannot tear, and waits for its outcome. The store's own thread steps
the machine and appends its records in order. It waits only for the log's writer. Data threads take leases under the lock. A worker thread
does what blocks: rolls, trims, closing and deleting data ledgers.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from functools import partial
from typing import Any

from bk_core.arguments import SECONDS, checked
from bk_core.background import Worker, WorkerPool
from bk_core.client.counting import counts_of
from bk_core.client.files.data import PIECE_BYTES, DataLedgers, Lease
from bk_core.client.files.opening import Opened, again, broken_by, client_closed, ended_by, leave, log_ledger_deleted
from bk_core.client.files.owner_parts import Asked, Gathered, Holds, Retries, end_threads, watch_data, weakly
from bk_core.client.files.reading import ContentReader
from bk_core.client.files.watches import Watches
from bk_core.client.files.works import FileWorks, Work
from bk_core.client.here import StaysHere
from bk_core.client.log.list_store import LogClient
from bk_core.client.log.parts import Call
from bk_core.client.operations import LeftOpen, must_not_block, unanswered, wait
from bk_core.client.payloads import limits_of, payload_bytes_max
from bk_core.errors import (
    ArgumentTypeError,
    BkError,
    ClientClosedError,
    FileStoreClosedError,
    ForeignLedgerError,
    LogDataLossError,
    LogTakenOverError,
    NoSuchLogError,
    OperationTimeoutError,
)
from bk_core.metadata.store import Watch
from bk_core.protocol.effects import Complete, Fail, SetTimer
from bk_core.protocol.events import Outcome, TimerFired
from bk_core.protocol.files.effects import AppendRecords, DropData, FileEffect, FileEvent, RecordsAppended, RollLog, TrimLog
from bk_core.protocol.log.position import Position
from bk_core.threads import Home, Monitor, SafeFuture, holds_lock, is_own, mark_own, start_aside

log = logging.getLogger("bk_core.client.files")

UNDECIDED_BYTES_MAX = 16 << 20  # of changes that are not acknowledged, whoever still waits for them
CHANGE_BYTES = 512  # a change without a content counts as so much
AGAIN_S = 5.0  # the first pause before the worker tries again what failed, such as closing a data ledger
LEASES_S = 5.0  # how often leases of contents that nobody refers to any more are looked for
JOIN_S = 10.0
DEFAULT_TIMEOUT_S = 60.0
_MAY_BE_DELETED = (LogTakenOverError, LogDataLossError, NoSuchLogError)  # what a log says whose ledger, or list, was deleted under it


class StoreOwner(StaysHere):
    """The base of ``FileStore``: all but the calls of its users."""

    def __init__(
        self,
        client: LogClient,
        name: str,
        opened: Opened | None = None,
        *,
        password: bytes = b"",
        inline_max: int = 0,
        on_end: Callable[[BkError], object] | None = None,
    ) -> None:
        if not isinstance(opened, Opened):
            raise ArgumentTypeError("a file store is not made but opened: FileStore.open(client, name)")
        config = getattr(client, "config", None)
        self.name = name
        self.log_name = opened.writer.name
        self._inline_max = inline_max
        self._on_end = on_end
        self._unanswered = partial(unanswered, client)
        self._counts = counts_of(client)
        self._timeout_s: float = config.operation_timeout_s if config is not None else DEFAULT_TIMEOUT_S
        self._home = Home()
        self._lock = Monitor()
        self._machine = opened.machine
        self._writer = opened.writer
        self._works = FileWorks(client, opened.writer, opened.listed.log_id, opened.listed.properties, password)
        self._holds = Holds(self._lock, opened.machine)
        self._arrived: deque[Asked] = deque()
        self._undecided_bytes = 0
        self._closing: Call | None = None
        self._close_begun = False
        self._given_up: BkError | None = None  # set by ``abandon``: nobody is told of the end, and no append is waited for
        self._stopped = False
        self._log_is_lost = False  # an append failed because the log is another owner's, or was deleted
        self._is_opened = False
        self._end_told: SafeFuture[None] | None = None  # while ``on_end`` is told, and after that
        self._own = WorkerPool(f"bookkeeper-files-{name}")
        self._worker = Worker(f"bookkeeper-files-{name}-worker")
        self._retries = Retries(self._worker, name)
        self._watches = Watches()
        self._last: tuple[int, Watch] | None = None  # the ledger at the end of the log's list
        self._data = DataLedgers(
            name,
            self._works.create_data,
            self._holds.take,
            weakly(self._finish_data),
            weakly(self._nudge),
            self._holds.leases,
            partial(watch_data, self._works, weakly(self._data_changed)),
            self._watches,
            timeout_s=self._timeout_s,
            piece_bytes=min(PIECE_BYTES, payload_bytes_max(limits_of(client))),
        )
        self._reader = ContentReader(client, self.log_name, password, weakly(self._data.lost))
        threads = (self._own, self._worker, self._data.pool)
        weakref.finalize(self, end_threads, *threads, self._watches).atexit = False  # one that was dropped
        close_with = getattr(client, "close_with", None)
        if close_with is not None:
            self._left = LeftOpen(self._leave)
            close_with(self._left)

    @property
    def error(self) -> BkError | None:
        """The error that ended the store, such as a take-over or a failure of its log. None while it works, and after ``close``."""
        error = self._machine.error
        return error if isinstance(error, BkError) else None

    @property
    def is_open(self) -> bool:
        """True until the store was closed or has ended; always False in a forked child."""
        return self._home.is_here and self._closing is None and self._machine.error is None

    # --- opening, on the caller's thread ---------------------------------------------------------------------------------------

    def _opened(self) -> None:
        """Note that the store is open. Whatever ends the store from here on abandons its log."""
        self._is_opened = True
        if self._stopped:  # it ended between its first base and this
            self._writer.abandon()

    def _leave_unopened(self) -> None:
        """Give the store up after its open failed, and close its log. Otherwise the next one that opens the store would be told that this
        program has it."""
        self._give_up(FileStoreClosedError(f"file store {self.name!r} could not be opened", store=self.name))
        leave(self._writer)

    # --- changes, on callers' threads ----------------------------------------------------------------------------------------

    def _change(self, what: str, act: Callable[[Asked], list[FileEffect]], timeout_s: float | None, size: int = 0, **paths: str) -> Any:
        """``what`` names the change, and ``paths`` are those that it names: the context of the errors has them."""
        self._home.check("file store")
        must_not_block(what)
        begun = time.monotonic()
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        token = Asked(act, CHANGE_BYTES + size)
        try:
            while not self._admitted(token):
                if not self._lock.until(partial(self._may_try, token), max(0.0, begun + timeout_s - time.monotonic())):
                    waiting = f"{self._undecided_bytes} bytes of earlier changes stayed unacknowledged"
                    told = f"{what}: {waiting}; this change was not made"
                    raise OperationTimeoutError(told, store=self.name, **paths).nothing_done()
        finally:
            self._own_thread(self._take_in)
        try:
            return wait(token.future, timeout_s, what, since_s=begun)
        except OperationTimeoutError as error:
            if token.future.done():
                raise
            late = self._explained(error, begun)
            late.context.update(paths)
            raise late from self._writer.problem

    def _explained(self, error: OperationTimeoutError, begun: float) -> OperationTimeoutError:
        """Return the error with what is known of its reason."""
        problem = self._writer.problem
        held_up = "" if problem is None else f"; its log is held up: {problem}"
        told = error.retold(f"{error.args[0]}{held_up}{self._unanswered(begun)}")
        told.context["store"] = self.name
        return told

    @holds_lock
    def _admitted(self, token: Asked) -> bool:
        with self._lock:
            self._check("nothing was changed")
            if self._has_room(token):
                # Nothing strikes between these (bk_core/threads.py): counted and handed in, or neither.
                self._undecided_bytes += token.size
                self._arrived.append(token)
                return True
            return False

    def _has_room(self, token: Asked) -> bool:
        return not self._undecided_bytes or self._undecided_bytes + token.size <= UNDECIDED_BYTES_MAX

    def _may_try(self, token: Asked) -> bool:
        return self._has_room(token) or not self.is_open

    def _check(self, then: str) -> None:
        self._home.check("file store")
        error = self._machine.error
        if error is not None:
            raise again(error, then)
        if self._closing is not None:
            raise FileStoreClosedError(f"file store {self.name!r} was closed by this program; {then}", store=self.name).nothing_done()

    # --- the machine, on the store's own thread -----------------------------------------------------------------------------

    def _own_thread(self, task: Callable[[], None]) -> bool:
        """False if the thread has ended: then the store has stopped, and there is nothing to do any more."""
        try:
            self._own.submit(task)
        except ClientClosedError:
            return False
        return True

    def _nudge(self) -> None:
        if self._home.is_here:
            self._own_thread(self._take_in)

    def _take_in(self) -> None:
        """Make what callers have handed in, and count out leases that were given back."""
        while self._arrived:
            token = self._arrived.popleft()
            self._step(partial(token.act, token), token)
        while (held := self._holds.leases.next_returned()) is not None:
            while held:
                self._step(partial(self._release, held))

    def _release(self, held: list[int]) -> list[FileEffect]:
        return self._machine.release(held.pop())

    def _step(self, act: Callable[[], list[FileEffect]], asker: Any = None) -> None:
        """One step of the machine, then what it asks for, in order (SM-1): on this thread alone, so nothing comes in between. If the
        machine raises, which it must not, the store ends; ``asker`` is the token that nobody else would tell then."""
        with self._lock:
            try:
                effects = act()
            except Exception as error:
                broken = broken_by(error, self.name)
                log.error("%s", broken, exc_info=error)
                effects = [*self._machine.end(broken), *([] if asker is None else [Fail(asker, broken)])]
            self._lock.notify_all()
        for effect in effects:
            self._perform(effect)
        if self._machine.error is not None and not self._stopped:
            self._stop()

    def _perform(self, effect: FileEffect) -> None:
        match effect:
            case Complete(token, value) if token is self._closing:
                self._worker.submit(self._close_writer)
            case Complete(token, value):
                self._counts.file_changes.value += 1
                self._tell(token, None, value)
            case Fail(token, error):
                self._tell(token, error, None)
            case AppendRecords(request, records):
                self._append(request, records)
            case SetTimer(key, after_ns):
                self._worker.later(key, after_ns / 1e9, partial(weakly(self._fire), key))
            case RollLog() | TrimLog() | DropData():
                self._worker.submit(partial(self._do, effect))
            case _:
                raise AssertionError(effect)

    def _tell(self, token: Any, error: Exception | None, value: Any) -> None:
        if token.future.done():
            return
        if isinstance(token, Asked):
            with self._lock:
                self._undecided_bytes -= token.size
                self._lock.notify_all()
        if error is None:
            token.future.set_result(value)
        else:
            token.future.set_exception(again(error))

    def _handle(self, event: FileEvent) -> None:
        self._own_thread(partial(self._step, lambda: self._machine.handle(event, time.monotonic_ns())))

    def _fire(self, key: str) -> None:
        self._handle(TimerFired(key))

    # --- appending to the log ------------------------------------------------------------------------------------------------

    def _append(self, request: int, records: tuple[bytes, ...]) -> None:
        """The log's writer keeps the order of these calls. What it has no room for it takes back, and that is tried again."""
        gathered = Gathered(request, len(records), weakly(self._appended))
        for index, record in enumerate(records):
            while True:
                try:
                    future = self._writer.append_future(record)
                    break
                except OperationTimeoutError as error:
                    if self._given_up is not None:
                        gathered.end(error)
                        return
                    log.warning("file store %s: its log takes no more at the moment: %s", self.name, error)
                except Exception as error:
                    gathered.end(error)
                    return
            future.add_done_callback(partial(gathered.told, index))

    def _appended(self, request: int, first: Position | None, error: BaseException | None) -> None:
        """Tell the machine, on any thread, what became of the records of ``request``."""
        if error is None:
            self._handle(RecordsAppended(request, Outcome.OK, first_position=first))
        elif self._given_up is None and isinstance(error, _MAY_BE_DELETED):
            self._worker.submit(partial(self._lost_log, request, error))
        else:
            self._handle(RecordsAppended(request, Outcome.UNKNOWN, self._given_up or self._cannot_write(error)))

    # --- on the worker ----------------------------------------------------------------------------------------------------

    def _do(self, work: Work) -> None:
        if not self._stopped:
            answer = self._works.answer(work)
            self._handle(answer)
            if isinstance(answer.error, LogTakenOverError):
                self._end(self._ended_by(answer.error))

    def _lost_log(self, request: int, error: BkError) -> None:
        """One failed append ends the store (FS-10), so the metadata store is asked for the first one alone."""
        if self._stopped or self._log_is_lost:
            return
        self._log_is_lost = True
        self._handle(RecordsAppended(request, Outcome.UNKNOWN, self._given_up or self._ended_by(error)))

    def _ended_by(self, error: BkError) -> BkError:
        """The store's error for one of its log. A bookie answers for a ledger that was deleted, and that it has collected, as for one that
        another owner has fenced, so the metadata store is asked which of both it was, and if there is another owner."""
        if not isinstance(error, _MAY_BE_DELETED):
            return self._cannot_write(error)
        has_owner = True
        try:
            other = self._works.other_owner()
            last = self._works.last_ledger
            has_owner = not self._works.is_ours
            if other is None and last is not None and self._works.is_data_gone(last):
                return log_ledger_deleted(self.name, last, error)
        except BkError as unknown:
            log.warning("file store %s: nobody can tell now whether its log was deleted: %s", self.name, unknown)
            other = None
        return ended_by(other or error, self.name, has_owner=has_owner)

    def _cannot_write(self, error: BaseException) -> BkError:
        return ended_by(error, self.name, self._unanswered(time.monotonic() - self._timeout_s))

    def _watch_log(self) -> None:
        """Watch the log's list. So a store that changes nothing learns, too, that it was taken over."""
        if self._stopped or self._closing is not None:
            return
        try:
            watch = self._works.watch_list(weakly(self._list_changed))
        except BkError as error:
            self._retries.failed("watch", "its log's list cannot be watched", error, AGAIN_S, weakly(self._watch_log))
            return
        self._retries.done("watch")
        self._watches.add(watch)
        self._look_at_list()

    def _list_changed(self) -> None:
        """Have the worker look at the log's list. Any thread may call it."""
        self._worker.submit(self._look_at_list)

    def _look_at_list(self) -> None:
        if self._stopped or self._closing is not None:
            return
        try:
            other = self._works.other_owner()
        except BkError as error:  # nobody tells of this change of the list once more
            self._retries.failed("list", "its log's list cannot be read", error, AGAIN_S, weakly(self._look_at_list))
            return
        self._retries.done("list")
        if other is not None:
            self._end(ended_by(other, self.name))
        elif self._works.last_ledger is not None:
            self._watch_last(self._works.last_ledger)

    def _watch_last(self, ledger_id: int) -> None:
        """Watch the ledger that the log's entries go to. Bookies may go on acknowledging entries of a ledger that somebody has deleted."""
        if self._last is None or self._last[0] != ledger_id:
            try:
                watch = self._works.watch_data(ledger_id, partial(weakly(self._last_changed), ledger_id))
            except BkError as error:
                what = f"ledger {ledger_id} of its log cannot be watched"
                self._retries.failed("last watch", what, error, AGAIN_S, weakly(self._look_at_list))
                return
            self._retries.done("last watch")
            self._watches.add(watch)
            if self._last is not None:
                self._watches.cancel(self._last[1])
            self._last = (ledger_id, watch)
        self._look_at_last(ledger_id)

    def _last_changed(self, ledger_id: int) -> None:
        """Have the worker look at the last ledger of the log, whose metadata has changed. Any thread may call it."""
        self._worker.submit(partial(self._look_at_last, ledger_id))

    def _look_at_last(self, ledger_id: int) -> None:
        if self._stopped or self._closing is not None or self._last is None or self._last[0] != ledger_id:
            return
        try:
            gone = self._works.is_data_gone(ledger_id) and self._works.is_last(ledger_id)
        except BkError as error:
            what = f"ledger {ledger_id} of its log cannot be looked at"
            self._retries.failed("last", what, error, AGAIN_S, partial(weakly(self._look_at_last), ledger_id))
            return
        self._retries.done("last")
        if gone:
            self._end(log_ledger_deleted(self.name, ledger_id))

    def _recover_left(self, ledgers: list[int]) -> None:
        """Close the data ledgers that a former owner left and that files refer to: one a task, so that other tasks come in between."""
        if not ledgers or self._stopped or self._closing is not None:
            return
        first, *rest = ledgers
        key = f"recover {first}"
        try:
            self._works.recover_data(first)
            self._retries.done(key)
        except ForeignLedgerError as error:  # asking again would not make it ours
            log.warning("file store %s: %s", self.name, error)
        except BkError as error:
            what = f"data ledger {first} of a former owner cannot be closed"
            self._retries.failed(key, what, error, AGAIN_S, partial(weakly(self._recover_left), [first]))
        self._worker.submit(partial(self._recover_left, rest))

    def _clean_log(self) -> None:
        """Delete what a former owner made for the log and did not list. The shared pause and its growth apply where that fails."""
        if self._stopped or self._closing is not None:
            return
        key = "clean log"
        try:
            self._works.clean_log()
            self._retries.done(key)
        except BkError as error:
            what = "what a former owner left beside the log cannot be cleaned up"
            self._retries.failed(key, what, error, AGAIN_S, weakly(self._clean_log))

    def _finish_data(self, handle: Any, lease: Lease, failed: bool) -> None:
        """Have the worker close a data ledger that takes no more. Any thread may call it."""
        self._worker.submit(partial(self._close_data, handle, lease, failed))

    def _close_data(self, handle: Any, lease: Lease, failed: bool) -> None:
        if self._stopped:
            handle.abandon()
            return
        key = f"close {handle.ledger_id}"
        try:
            self._works.close_data(handle, failed)
        except BkError as error:  # the next owner closes it if this one ends before that
            what = f"data ledger {handle.ledger_id} cannot be closed"
            self._retries.failed(key, what, error, AGAIN_S, partial(weakly(self._close_data), handle, lease, True))
        else:
            self._retries.done(key)
            lease.release()
            self._nudge()

    def _data_changed(self, ledger_id: int) -> None:
        """Have the worker look at a data ledger whose metadata has changed or is gone. Any thread may call it."""
        self._worker.submit(partial(self._look_at_data, ledger_id))

    def _look_at_data(self, ledger_id: int) -> None:
        if self._stopped:
            return
        key = f"look {ledger_id}"
        try:
            gone = self._works.is_data_gone(ledger_id)
        except BkError as error:
            what = f"data ledger {ledger_id} cannot be looked at"
            self._retries.failed(key, what, error, AGAIN_S, partial(weakly(self._look_at_data), ledger_id))
            return
        self._retries.done(key)
        if not gone:
            return
        log.error("file store %s: data ledger %d was deleted by somebody else; files may have lost their bytes", self.name, ledger_id)
        self._data.lost(ledger_id)

    def _look_for_leases(self) -> None:
        """Look now and then for staged content that was given up. Giving it up wakes nobody, because a finalizer may do it, which may wait
        for nothing."""
        self._nudge()
        self._worker.later("leases", LEASES_S, weakly(self._look_for_leases))

    # --- the end ----------------------------------------------------------------------------------------------------------

    @checked(timeout_s=SECONDS)
    def close(self, timeout_s: float | None = None) -> None:
        """Wait for what was asked for, close the data ledgers and the log, and end the threads. Closing a store that has ended has no
        effect, nor has closing in a forked child.

        Raises FileStoreTakenOverError if the store is taken over meanwhile, and OperationTimeoutError after ``timeout_s`` seconds, by
        default the client's ``operation_timeout_s``: then the closing goes on, and a later call waits for it.
        """
        if not self._home.is_here:
            return
        what = f"closing file store {self.name!r}"
        must_not_block(what)
        begun = time.monotonic()
        self.begin_close()
        if self._closing is not None and not is_own():
            try:
                wait(self._closing.future, self._timeout_s if timeout_s is None else timeout_s, what)
            except OperationTimeoutError as error:
                if self._closing.future.done():
                    raise
                raise self._explained(error, begun) from self._writer.problem
        self._join()

    def begin_close(self) -> None:
        """Begin what ``close`` does, and wait for nothing."""
        if self._home.is_here:
            self._close_with(Call())
            self._own_thread(self._begin_close)  # again if an interrupt was faster

    @holds_lock
    def _close_with(self, call: Call) -> None:
        with self._lock:
            if self._closing is None and self._machine.error is None:
                self._closing = call
            self._lock.notify_all()

    def _begin_close(self) -> None:
        """Begin to close, on the store's own thread, behind all that was asked for."""
        self._take_in()
        if self._closing is not None and not self._close_begun and not self._stopped:
            self._close_begun = True
            self._worker.submit(self._close_all_data)

    def _close_all_data(self) -> None:
        self._data.finish_all(self._timeout_s)
        self._worker.submit(partial(self._then, self._close_machine))  # behind the closing of each

    def _then(self, task: Callable[[], None]) -> None:
        self._own_thread(task)

    def _close_machine(self) -> None:
        self._take_in()
        self._step(lambda: self._machine.close(self._closing))

    def _close_writer(self) -> None:
        """Close the writer of the log, on the worker, behind the data ledgers that are dropped last."""
        problem: BkError | None = None
        try:
            self._writer.close()
        except BkError as error:
            problem = self._ended_by(error)
        self._own_thread(partial(self._closed, problem))

    def _closed(self, problem: BkError | None) -> None:
        if self._stopped:
            return
        self._stopped = True
        assert self._closing is not None
        self._worker.forget_timers()
        self._data.abandon()  # what was not finished in time
        if problem is None:
            self._closing.future.set_result(None)
        else:
            self._closing.future.set_exception(problem)
        end_threads(self._own, self._worker, self._data.pool, self._watches)

    def abandon(self) -> None:
        """Stop without closing anything, and wait for nothing: the next owner clears up. Pending changes may or may not be made."""
        if self._home.is_here:
            self._give_up(FileStoreClosedError(f"file store {self.name!r} was abandoned by this program", store=self.name))

    def _leave(self) -> None:
        """The client is being closed. An append that waits for room ends with the log's writer, which the client closes, too."""
        self._end(client_closed(self.name))

    def _give_up(self, error: BkError) -> None:
        self._given_up = error
        self._end(error)

    def _end(self, error: BkError) -> None:
        self._own_thread(partial(self._step, lambda: self._machine.end(error)))

    def _stop(self) -> None:
        """Stop all parts, on the store's own thread, once the machine has ended by a failure. Everybody who waits has been told."""
        self._stopped = True
        error = self.error
        assert error is not None
        if self._closing is not None and not self._closing.future.done():
            self._closing.future.set_exception(again(error))
        self._data.abandon()
        if self._is_opened:
            self._writer.abandon()
        if self._given_up is not None:  # whoever was taken over may read on what he reads, until he closes
            self._reader.close()
        self._worker.forget_timers()
        self._take_in()  # what was handed in meanwhile is refused
        end_threads(self._own, self._worker, self._data.pool, self._watches)
        if self._on_end is not None and self._given_up is None:
            self._end_told = SafeFuture()
            tell = partial(self._tell_end, self._on_end, error, self._end_told)
            try:
                start_aside(tell, f"bookkeeper-files-{self.name}-end")
            except RuntimeError:  # no thread can be started; this one has nothing else to do any more
                tell()

    def _tell_end(self, on_end: Callable[[BkError], object], error: BkError, told: SafeFuture[None]) -> None:
        """Tell the end on a thread of its own, behind all else: the callback may take long, for example because it opens the store
        again."""
        mark_own()
        try:
            on_end(error)
        except BaseException:  # callbacks of users may raise SystemExit
            log.exception("file store %s: whoever is told of its end failed", self.name)
        finally:
            told.set_result(None)

    def _join(self) -> None:
        """Wait for the threads of a store that has stopped."""
        if not is_own() and self._stopped:
            self._worker.join(JOIN_S)
            self._own.close(JOIN_S, finish=True)
            self._data.pool.close(JOIN_S)
            if self._end_told is not None:
                with suppress(FutureTimeoutError):
                    self._end_told.result(JOIN_S)
            self._reader.close()
