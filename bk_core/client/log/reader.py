"""Reads a log in order, and waits for more of it. Readers fence nothing and write nothing (LOG-17).

``LogReaderOrder`` (protocol/log/reader_order.py), the machine that the simulator runs too, decides what comes next, what is lost and what
is waited for. Here is its world: the list, ledgers, the clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypeVar

from bk_core.arguments import SECONDS, SECRET, checked
from bk_core.client.counting import counts_of
from bk_core.client.here import StaysHere
from bk_core.client.log.history import read_log
from bk_core.client.log.list_store import LogClient, agree, ledger_exists, log_path
from bk_core.client.resuming import Following, ended_by
from bk_core.display.words import counted
from bk_core.errors import (
    ConcurrentIterationError,
    InvalidArgumentError,
    LogDataLossError,
    MetadataUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from bk_core.protocol.effects import Fail, SetTimer
from bk_core.protocol.events import Outcome, TimerFired
from bk_core.protocol.log.effects import (
    AwaitLedger,
    AwaitList,
    Changed,
    ChunkLoaded,
    Deliver,
    Delivered,
    LedgerOpened,
    ListRead,
    LoadChunk,
    LogAnswer,
    LogEffect,
    OpenLedger,
    ReadList,
)
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.reader_order import LogReaderOrder
from bk_core.protocol.log.segments import Segment
from bk_core.protocol.log.view import LogView
from bk_core.protocol.session.outage import Outage
from bk_core.threads import Flag

OUTAGE_LOOK_S = 0.1
WAIT_S = 60.0
_NEVER = Flag()
Rest: TypeAlias = "Deliver | AwaitLedger | AwaitList"
R = TypeVar("R", bound="LogReader")


@dataclass(frozen=True, slots=True)
class LogEntries:
    """``count`` consecutive entries of one segment, from ``first_entry_id`` on. Payload i is ``values[offsets[i]:offsets[i + 1]]``;
    ``offsets`` are int64."""

    segment: Segment
    first_entry_id: int
    count: int
    values: bytes | bytearray | memoryview
    offsets: memoryview

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        last = self.first_entry_id + self.count - 1
        size = int(self.offsets[self.count] - self.offsets[0])
        counts = f"{counted(self.count, 'entry', 'entries')}, {counted(size, 'byte')}"
        return f"<LogEntries {self.segment.seq}:{self.first_entry_id}..{last}, {counts}>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import logs, table

        return table.html(repr(self).strip("<>"), logs.entries(self))

    def payloads(self) -> list[bytes]:
        """Return the payloads as bytes, in the order of their entries. Each is a copy."""
        return [bytes(self.values[self.offsets[i] : self.offsets[i + 1]]) for i in range(self.count)]

    @property
    def end_position(self) -> Position:
        """The position at which to go on after this run."""
        return Position(self.segment.seq, self.first_entry_id + self.count)


def reaching(client: LogClient, name: str, listed: LogView, start: Position) -> LogView:
    """Return the view, or a newer one, if ``start`` may lie in it. InvalidArgumentError."""
    try:
        listed.refuse_beyond(start, name)
    except InvalidArgumentError:
        agree(client)  # the server of the store may have been behind the position's reader
    else:
        return listed
    listed = read_log(client, name)
    listed.refuse_beyond(start, name)
    return listed


class LogReader(StaysHere):
    """Reads a log in order and never fences (LOG-15, LOG-17). ``position`` is the next entry to read. Only one thread at a time may use it.

    To follow a log, use ``follow``, or ``read``, then ``wait``, then ``read`` again. ``close`` it, or use it with ``with``.

    Entries are read whole. If the ``row`` of a position lies inside an entry, this entry is read from its first row on. If all rows of the
    entry were consumed, reading begins after it: in a raw log ``Position(3, 17, row=1)`` is ``Position(3, 18)``. ``Log.to_batches`` is
    exact to the row.
    """

    @checked(password=SECRET)
    def __init__(self, client: LogClient, name: str, *, start: Position | None = None, password: bytes = b"") -> None:
        """Start at ``start``, by default at the first entry that is left. Raises NoSuchLogError; LogDataLossError for a trimmed
        position; InvalidArgumentError for one beyond the end of the log, or of a segment that is closed."""
        self._set_up(client, name, password)
        listed = read_log(client, name)
        if start is not None:
            listed = reaching(client, name, listed, start)
        position = listed.first_position if start is None else listed.normal(start)
        self._order = LogReaderOrder(name, position=position, log_id=listed.log_id)

    def _set_up(self, client: LogClient, name: str, password: bytes) -> None:
        self.name = name
        self._client = client
        self._password = password
        self._handle: Any = None  # the handle of the ledger at the position; the one that saw something new is used to read it (LC-2)
        self._view: LogView | None = None
        self._rest: Rest | None = None  # the reason why the machine waits
        self._changed = Flag()
        self._watching = False
        self._following = False
        self._over = _NEVER  # the flag of the follower at work that is to end
        config = getattr(client, "config", None)
        self._lost: MetadataUnavailableError | None = None  # the last failure of an outage that may go on
        self._outage = Outage(int((config.operation_timeout_s if config is not None else WAIT_S) * 1e9))
        self._fresh = False  # the list is watched, and the machine was told it since the watch was set
        self._asking = True  # bookies are asked for the LAC even if it is known
        self._turns = 0  # how often the machine was told to look, or to go elsewhere
        counts_of(client).watch_reader(self)

    def __repr__(self) -> str:
        return f"<LogReader {self.name!r} at segment {self.position.seq}, entry {self.position.entry}>"

    @property
    def lag_entries(self) -> int:
        """The entries from ``position`` to the end of the log, as far as the reader knows it: the list as it read it last, and the last add
        confirmed of the ledger that it has open. Nobody is asked, and entries of segments in the log's history are left out."""
        view, handle, here = self._view, self._handle, self._order.position
        if view is None or here is None:
            return 0
        behind = 0
        for segment in view.listed.segments:
            if segment.seq >= here.seq:
                is_open = segment.live and handle is not None and handle.ledger_id == segment.ledger_id
                end = handle.last_add_confirmed + 1 if is_open else segment.after_entry
                behind += max(0, end - (here.entry if segment.seq == here.seq else segment.first_entry_id))
        return behind

    def beside(self) -> LogReader:
        """Return another reader at the position of this one, for another thread. It asks for nothing yet. An outage of the metadata store
        that this reader has noticed counts for it as well."""
        return self._beside(LogReader)

    def _beside(self, kind: type[R]) -> R:
        other = kind.__new__(kind)
        other._set_up(self._client, self.name, self._password)
        other._outage = self._outage
        other._order = LogReaderOrder(self.name, position=self.position, log_id=self._order.log_id)
        return other

    @property
    def position(self) -> Position:
        """The next entry to read. It may be set.

        Setting it raises ArgumentTypeError for what is no position, InvalidArgumentError for one beyond the end of the log or of a segment
        that is closed, and what reading the log's list raises.
        """
        assert self._order.position is not None
        return self._order.position

    @position.setter
    @checked()
    def position(self, position: Position) -> None:
        reaching(self._client, self.name, read_log(self._client, self.name), position)
        self._rest = None
        self._turns += 1
        self._order.go_to(position)

    # --- reading -------------------------------------------------------------------------------------------------------

    def read(self) -> Iterator[LogEntries]:
        """Yield everything there is now: closed ranges, then a live segment up to its LAC. Call it again for more.

        A Ctrl-C ends the iteration, not the reader: another ``read`` goes on behind the last run that was given.

        Iterations of one reader share its ``position``: where it was set, or another iteration or ``wait`` was at work meanwhile, this one
        goes on there.

        An acknowledged entry of a live segment is confirmed, and so readable, with the entry after it, or by the writer a moment later
        (``limits.explicit_lac_ns``, a fifth of a second by default); once the writer is closed everything is.

        Raises LogDataLossError if the log was recreated or trimmed past the position (LOG-13), if a ledger that it lists does not exist,
        and, after the entries that are there, if a ledger was closed below what the list says.
        """
        self._asking = not self._following
        try:
            rest = self._now()
            while isinstance(rest, Deliver):
                answer = yield from self._deliver(rest)
                rest = self._run(self._look() if answer is None else self._tell(answer))
        finally:
            if not self._following:
                self.close()

    def __iter__(self) -> Iterator[LogEntries]:
        """``read``: everything there is now."""
        return self.read()

    def _deliver(self, effect: Deliver) -> Generator[LogEntries, None, Delivered | None]:
        """Hand the entries on. If the consumer stops, the reader goes on there the next time. None: the machine has gone on elsewhere
        meanwhile, and expects no answer."""
        segment, last, turns = effect.segment, effect.last_entry_id, self._turns
        self._rest = None
        try:
            for run in self._handle.read_runs(effect.first_entry_id, last, unchecked_bound=not segment.live):
                entries = LogEntries(segment, run.first_entry_id, run.count, run.values, run.offsets)
                self._order.passed(run.first_entry_id + run.count - 1)  # the last call: an interrupt behind it would skip the run
                yield entries
                if self._turns != turns:
                    return None
        except NoSuchEntryError:
            if not (self._handle.is_closed and self._handle.last_add_confirmed < last):
                raise
        except NoSuchLedgerError:
            if ledger_exists(self._client, segment.ledger_id):
                raise
            self.close()
        else:
            return Delivered(effect.request, Outcome.OK)
        return Delivered(effect.request, Outcome.CONFLICT, self.position.entry)

    # --- the machine ---------------------------------------------------------------------------------------------------

    def _now(self) -> Rest:
        """Return the reader's next task: a run to hand out, or something to wait for. While the log is followed, the machine need not look
        again where nothing has changed."""
        if self._following and self._rest is not None and not self._list_may_have_changed:
            return self._rest
        return self._run(self._look())

    @property
    def _list_may_have_changed(self) -> bool:
        return not (self._watching and self._fresh) or self._changed.is_set()

    def _look(self) -> list[LogEffect]:
        self._rest = None  # the machine waits for nothing any more, whatever interrupts it now
        self._turns += 1
        return self._noted(self._order.look(time.monotonic_ns(), list_changed=self._list_may_have_changed))

    def _tell(self, event: LogAnswer | TimerFired) -> list[LogEffect]:
        self._rest = None
        if isinstance(event, ListRead):
            self._fresh = self._watching
        return self._noted(self._order.handle(event, time.monotonic_ns()))

    def _noted(self, effects: list[LogEffect]) -> list[LogEffect]:
        """Return the effects, after noting that the list counts as unread if one of them asks for it. A task may be cancelled before the
        machine is told the list, and what was read is lost then."""
        if any(isinstance(effect, ReadList) for effect in effects):
            self._fresh = False
        return effects

    def _run(self, effects: list[LogEffect]) -> Rest:
        """Perform the machine's effects until it knows what comes next, or has to wait. One request is outstanding at a time."""
        self._rest = None
        while True:
            if len(effects) != 1:
                text = f"another thread reads log {self.name!r} with this reader; a reader of a log is for one thread at a time"
                raise ConcurrentIterationError(text, log=self.name)
            (effect,) = effects
            match effect:
                case ReadList():
                    effects = self._tell(self._read_list(effect))
                case LoadChunk():
                    effects = self._tell(self._load_chunk(effect))
                case OpenLedger():
                    effects = self._tell(self._open(effect))
                case SetTimer(key, after_ns):
                    time.sleep(after_ns / 1e9)
                    effects = self._tell(TimerFired(key))
                case Fail(_, error):
                    raise error
                case Deliver() | AwaitLedger() | AwaitList():
                    self._rest = effect
                    return effect
                case _:
                    raise AssertionError(effect)

    def _read_list(self, effect: ReadList) -> ListRead:
        self._changed.clear()  # this comes before the list is read, so that no change is missed
        self._view = view = read_log(self._client, self.name)
        return ListRead(effect.request, Outcome.OK, version=view.version, listed=view.listed)

    def _load_chunk(self, effect: LoadChunk) -> ChunkLoaded:
        assert self._view is not None
        try:
            return ChunkLoaded(effect.request, Outcome.OK, self._view.load(effect.ref))
        except LogDataLossError as error:
            return ChunkLoaded(effect.request, Outcome.NO_SUCH_LEDGER, error=error)

    def _open(self, effect: OpenLedger) -> LedgerOpened:
        try:
            handle = self._opened(effect.ledger_id)
        except NoSuchLedgerError as error:
            return LedgerOpened(effect.request, Outcome.NO_SUCH_LEDGER, error=error)
        if handle.is_closed:  # this comes before the LAC, so that a ledger that closes in between is seen as open once more
            return LedgerOpened(effect.request, Outcome.OK, True, int(handle.last_add_confirmed))
        asking = effect.wanted is not None and self._asking  # otherwise a long poll, or opening it, has just told the LAC
        known = handle.read_last_add_confirmed() if asking else handle.last_add_confirmed
        return LedgerOpened(effect.request, Outcome.OK, False, int(known))

    def _opened(self, ledger_id: int) -> Any:
        if self._handle is None or self._handle.ledger_id != ledger_id:
            self.close()
            self._handle = self._client.open_ledger(ledger_id, password=self._password)
        return self._handle

    # --- waiting ---------------------------------------------------------------------------------------------------------

    @checked()
    def follow(self, stop: threading.Event | None = None) -> Following[LogEntries]:
        """Yield everything from ``position`` on, and new entries as they come, until ``stop`` is set (seen within half a second) or for
        ever.

        An entry arrives one long-poll round trip after its acknowledgement (LC-5). Raises the errors of ``read``, and NoSuchLogError when
        the log is deleted. The list is read once per change of it, and a live ledger stays open; both end with the iteration.

        An outage of the metadata store is tolerated for the client's ``operation_timeout_s`` (SES-7), then MetadataUnavailableError is
        raised. After any error, a Ctrl-C for one, the iteration may be asked for its next run again: it goes on where it was. A Ctrl-C that
        comes when ``next(iteration)`` has returned, and before its result is kept, takes that run with it; ``for`` has no such moment. Its
        ``close`` ends it from any thread, at once; a run that comes in that very moment may go with it.
        """
        return Following(lambda over: self._follow(stop, over), self._wake)

    def _follow(self, stop: threading.Event | None, over: Flag) -> Iterator[LogEntries]:
        def end() -> None:
            over.set()
            self._wake()

        self._over = over
        try:
            with ended_by(stop, end):
                yield from self._until(over)
        finally:
            self._over = _NEVER

    def _until(self, over: Flag) -> Iterator[LogEntries]:
        while not over.is_set():
            try:
                with self._watched(follow=True):
                    while not over.is_set():
                        yield from self.read()
                        self._store_answered()
                        while not self.wait(WAIT_S) and not over.is_set():
                            pass  # there is nothing to read, and no need to ask the metadata store anything
            except MetadataUnavailableError as error:
                while not (self._outlast(error, time.monotonic() + WAIT_S) or over.is_set()):
                    pass

    def _wake(self) -> None:
        """End what a follower waits for that is to end. Its call raises ClientClosedError, or looks at the flag. Any thread may call it."""
        self._changed.set()
        handle = self._handle
        if handle is not None:
            handle.close()

    @checked(timeout_s=SECONDS)
    def wait(self, timeout_s: float) -> bool:
        """Wait until there is something at ``position``. Return False after ``timeout_s``.

        A live segment is followed by long polls (LC-5), the end of the log by a watch of the list (LOG-16), so nothing is asked for twice.
        An outage of the metadata store is waited out, which may take ``metadata_timeout_s`` longer than ``timeout_s``;
        MetadataUnavailableError is raised when it has lasted for the client's ``operation_timeout_s`` (SES-7).
        """
        deadline = time.monotonic() + timeout_s
        lost = None if self._client.store.is_connected() else self._lost
        while lost is None or self._outlast(lost, deadline):
            try:
                with self._watched():
                    return self._wait_until(deadline)
            except MetadataUnavailableError as error:
                lost = self._lost = error
        return False

    def _wait_until(self, deadline: float) -> bool:
        self._asking = False
        found = False
        try:
            rest = self._now()
            while not (found := isinstance(rest, Deliver)) and time.monotonic() < deadline and not self._over.is_set():
                self._store_answered()
                rest = self._run(self._await(rest, max(0.0, deadline - time.monotonic())))
            self._store_answered()
        finally:
            if not (found or self._following):
                self.close()
        return found

    def _await(self, effect: Rest, timeout_s: float) -> list[LogEffect]:
        """Wait for the ledger or the list (LC-5, LC-7, LOG-16). The list shows if the log was deleted."""
        if isinstance(effect, AwaitLedger):
            try:
                if not (self._handle.wait_for(effect.last_entry_id + 1, timeout_s) or self._handle.is_closed):
                    return self._look()
            except NoSuchLedgerError:
                self.close()
        elif not self._changed.wait(timeout_s):
            return self._look()
        return self._tell(Changed(effect.request))

    def _store_answered(self) -> None:
        self._lost = None
        self._outage.answered()

    def _outlast(self, error: MetadataUnavailableError, until: float) -> bool:
        """Wait for the metadata store; return False if it is not back by ``until``. Raises ``error`` if it was away for too
        long (SES-7)."""
        while True:
            if not self._outage.failed(time.monotonic_ns()):
                raise error
            left = until - time.monotonic()
            if left <= 0 or self._over.is_set():
                return False
            time.sleep(min(left, OUTAGE_LOOK_S))
            if self._client.store.is_connected():
                return True

    @contextmanager
    def _watched(self, *, follow: bool = False) -> Iterator[None]:
        """Watch the list, so that it is read only when it has changed; with ``follow`` a live ledger stays open between reads."""
        if self._watching:
            yield
            return
        self._fresh = False
        watch = self._client.store.watch(log_path(self.name), self._changed.set)
        self._watching, self._following = True, follow
        try:
            yield
        finally:
            self._watching = self._following = False
            watch.cancel()
            if follow:
                self.close()

    def close(self) -> None:
        """Close the reader, which may be used again after that. Idempotent."""
        handle, self._handle, self._rest = self._handle, None, None
        if handle is not None:
            handle.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
