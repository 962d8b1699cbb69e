"""What all handles of one client share: the reactor, the links, the metadata thread, and the driver that performs effects."""

from __future__ import annotations

import logging
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from bk_core.client.add_window import AddWindow
from bk_core.client.peers import Resolver, Suspects
from bk_core.config import ClientConfig
from bk_core.errors import (
    AddQuorumTimeoutError,
    BkError,
    ClientClosedError,
    LocalResourceError,
    MetadataError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NoNodeError,
    NotEnoughBookiesError,
    OperationTimeoutError,
    ReadError,
    RecoveryFailedError,
    VersionConflictError,
    WriteFailedError,
)
from bk_core.metadata.racks import RackMap
from bk_core.metadata.store import BookieView, MetadataStore, Watch
from bk_core.net.link import BookieLink
from bk_core.net.local_resources import shortage_now, shortage_text
from bk_core.net.names import Names
from bk_core.net.outstanding import Waiting
from bk_core.net.reactor import Reactor, Timer
from bk_core.protocol.effects import Complete, Effect, Fail, Log, ReadLedger, SendAdds, SendAndForget, SendRead, SetTimer, WriteLedger
from bk_core.protocol.events import (
    AddReply,
    BookieLost,
    BookiesChanged,
    BytesDrained,
    Event,
    LedgerRead,
    LedgerWritten,
    Outcome,
    ReadReply,
    ReadsMoving,
    TimerFired,
)
from bk_core.protocol.ledger import metadata_codec
from bk_core.protocol.ledger.metadata import BookieId, LedgerAccess, LedgerMetadata
from bk_core.protocol.ledger.placement import Placement, Quarantine, RackAwarePlacement, RandomPlacement, is_bookie_failure, location
from bk_core.protocol.ledger.recovery_options import RecoveryOptions
from bk_core.protocol.ledger.replica_order import Rank, ReadHistory
from bk_core.protocol.ledger.writer_options import ChangeWindow, EnsembleChangeMode, WriterOptions
from bk_core.protocol.session.shortage import Shortages
from bk_core.protocol.wire.messages import BatchReadRequest, ReadRequest, ReadRunRequest, Request, Response, Status
from bk_core.threads import Home, SafeFuture, WorkerPool, wait_done

log = logging.getLogger("bk_core.client")

METADATA_THREADS = 4
CLOSE_S = 10.0
SPECULATE, TICK = "speculate", "tick"  # timers of readers and of those who add
SHARED_KINDS = frozenset({"data", "batch", "control"})
# What may become of an operation for want of connections.
BEHIND_A_SHORTAGE = (ReadError, RecoveryFailedError, NotEnoughBookiesError, AddQuorumTimeoutError, WriteFailedError, OperationTimeoutError)
SPREAD_KINDS = frozenset({"data", "batch"})  # over ``connections_per_bookie``


class Machine(Protocol):
    def handle(self, event: Event, now_ns: int) -> list[Effect]: ...


class Closable(Protocol):
    def close(self) -> None: ...


class Session:
    """Reactor thread and metadata threads of one client. ``close`` ends both."""

    link_type: type[BookieLink] = BookieLink

    def __init__(self, config: ClientConfig, store: MetadataStore) -> None:
        self.config = config
        self.store = store
        self.home = Home()
        self._over = False
        self._racks = RackMap(store, config.racks) if config.placement == "rack-aware" else None
        self.reactor = Reactor()
        self.rng = random.Random()
        self.rotation = self.rng.randrange(1 << 16)  # with the ledger id it says which replica is read first (RD-2)
        self._metadata = WorkerPool("bookkeeper-metadata", METADATA_THREADS)
        self._links: dict[tuple[BookieId, str, int], BookieLink] = {}
        self._reads = ReadHistory(config.limits.speculative_read_ns)
        self._closables: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._closables_lock = threading.Lock()
        self._closed = False
        self._view = BookieView((), ())
        self._emptied: tuple[BookieId, ...] = ()
        self._emptied_lock = threading.Lock()
        self._quarantine = Quarantine(self.reactor.now_ns, int(config.quarantine_s * 1e9), config.quarantine_errors)
        self._suspects = Suspects(self, int(config.quarantine_s * 1e9), config.limits.read_timeout_ns)
        self._resolver = Resolver(self.reactor, store, self.metadata_call)
        self._names = Names(self.reactor.post)
        self._shortages = Shortages()
        self.placement = self._new_placement(self._racks)
        self._on_bookies: dict[Driver, None] = {}
        self.adds = AddWindow(config.limits.unretired_entries_max)
        self._watch: Watch | None = None
        try:
            self._watch = store.watch_bookies(self._bookies_changed)
        except BaseException:
            self.close()
            raise

    def _new_placement(self, racks: RackMap | None) -> Placement:
        if racks is None:
            return RandomPlacement(self._placeable, self.rng.random, self._avoided)
        settings = self.config
        local = location(settings.local_rack or "")
        return RackAwarePlacement(
            self._placeable,
            self.rng.random,
            self._avoided,
            racks.topology,
            settings.min_racks,
            settings.enforce_racks,
            local,
        )

    def _placeable(self) -> tuple[BookieId, ...]:
        """Any thread: bookies that this client may put entries on."""
        return tuple(bookie for bookie in self._view.writable if bookie not in self._emptied) if self._emptied else self._view.writable

    @contextmanager
    def without(self, bookie: BookieId) -> Iterator[None]:
        """Nothing is placed on ``bookie`` by this client meanwhile (RR-14). Any thread; calls may overlap."""
        with self._emptied_lock:
            self._emptied = (*self._emptied, bookie)
        try:
            yield
        finally:
            with self._emptied_lock:
                left = list(self._emptied)
                left.remove(bookie)
                self._emptied = tuple(left)

    def writer_options(self) -> WriterOptions:
        """What the client's settings say about every writer."""
        settings = self.config
        timeout_s = settings.add_quorum_timeout_s
        return WriterOptions(
            ensemble_change=EnsembleChangeMode[settings.ensemble_change.upper()],
            window=ChangeWindow.SURVIVORS if settings.commit_during_change else None,
            close_in_recovery=settings.close_in_recovery,
            quorum_timeout_ns=None if timeout_s is None else int(timeout_s * 1e9),
            busy_resends_max=settings.busy_resends_max,
            fault_domains_min=settings.min_ack_racks,
        )

    def recovery_options(self) -> RecoveryOptions:
        """What the client's settings say about every recovery."""
        mode = EnsembleChangeMode[self.config.ensemble_change.upper()]
        return RecoveryOptions(ensemble_change=mode, barrier=self.config.recovery_barrier)

    def _bookies_changed(self, view: BookieView) -> None:
        if self._racks is not None:
            self._racks.bookies_changed({*view.writable, *view.readonly})
        self._view = view
        self.reactor.post(self._tell_of_bookies)

    def _tell_of_bookies(self) -> None:
        self._suspects.probe()
        self._look_for_moved()
        for driver in tuple(self._on_bookies):
            driver.feed(BookiesChanged())

    def tell_of_bookies(self, driver: Driver, wanted: bool) -> None:
        """Reactor thread. Whether a writer wants to know that the registry changed (G-10)."""
        if wanted:
            self._on_bookies[driver] = None
        else:
            self._on_bookies.pop(driver, None)

    def bookies(self) -> BookieView:
        return self._view

    def refresh_bookies(self) -> None:
        self._bookies_changed(self.store.bookies())

    def note_answer(self, bookie: BookieId, status: Status) -> None:
        """Reactor thread. What a bookie answered, for the quarantine (CR-2)."""
        self._suspects.noted(bookie, status)
        if is_bookie_failure(status) and not self._shortages.excuses(status, self.reactor.now_ns()):
            self._quarantine.failed(bookie)

    def note_read(self, bookie: BookieId, status: Status, elapsed_ns: int) -> None:
        """Reactor thread. How long a bookie took for a plain read, for the order of replicas (RD-2)."""
        self._suspects.noted(bookie, status)
        self._reads.note(bookie, status, elapsed_ns, self.reactor.now_ns())

    def read_rank(self, bookie: BookieId) -> Rank:
        """Reactor thread. metadata.md 5.7; as long as no bookie is known, none counts as unregistered."""
        view = self._view
        registered = bookie in view.writable or not view.writable
        readonly = bookie in view.readonly
        return self._reads.rank(bookie, self.reactor.now_ns(), readonly=readonly, registered=registered or readonly)

    def close_with(self, closable: Closable) -> None:
        """Any thread. Close it before this session, at once if that is closed: somebody may wait in it for what would never come."""
        with self._closables_lock:
            self._closables.add(closable)
            late = self._closed
        if late:
            closable.close()

    def _avoided(self) -> frozenset[BookieId]:
        """Any thread: bookies in quarantine (CR-2), and those whose connection broke and that have not answered since (SES-1)."""
        return self._quarantine.members() | self._suspects.members()

    def link(self, bookie: BookieId, kind: str, ledger_id: int = 0) -> BookieLink:
        """Reactor thread. Kinds: data, batch (a connection that an old bookie may close), control (v3), and one of its own per recovery:
        a writer on the shared connection must never take the answer to a recovery add for its own."""
        key = bookie, kind, ledger_id % self.config.connections_per_bookie if kind in SPREAD_KINDS else 0
        found = self._links.get(key)
        if found is None:
            v3 = kind == "control" or self.config.protocol == "v3"
            broke = partial(self._suspects.broke, bookie, kind)
            frame_bytes_max = self.config.limits.frame_bytes_max
            found = self.link_type(
                self.reactor,
                bookie,
                "v3" if v3 else "v2",
                self._resolver.resolve,
                frame_bytes_max,
                broke,
                add_timeout_ns=self.config.limits.add_timeout_ns,
                names=self._names,
                on_silent=self._silent,
                on_short=self._short,
            )
            self._links[key] = found
        return found

    def _silent(self, bookie: BookieId, since_ns: int) -> None:
        """LINK-4: one connection to this bookie was silent for a whole timeout; the others need not find out one by one."""
        for link in [link for key, link in self._links.items() if key[0] == bookie]:
            link.doubt(since_ns)

    def _short(self, error: str, text: str) -> None:
        if self._shortages.happened(error, text, self.reactor.now_ns()):
            log.warning("a connection to a bookie cannot be made: %s", text)

    def explained(self, error: Exception, since_ns: int) -> Exception:
        """Any thread. SES-10: the error of what began at ``since_ns``, or the shortage of this host that is behind it."""
        if not isinstance(error, BEHIND_A_SHORTAGE):
            return error
        text = self._shortages.explanation(since_ns, self.reactor.now_ns())
        if not text and (short := shortage_now()) is not None:  # it is not known here: the metadata store may be out of reach for it
            text = shortage_text(short) or ""
        if not text:
            return error
        explained = LocalResourceError(f"{error.args[0]}; {text}", **error.context)
        explained.__cause__ = error
        return explained

    def _look_for_moved(self) -> None:
        """LINK-4: ask where the registered bookies are that this client is connected to."""
        view = self._view
        for bookie in {bookie for bookie, _, _ in self._links} & {*view.writable, *view.readonly}:
            self.metadata_call(partial(self.store.resolve, bookie), partial(self._found, bookie))

    def _found(self, bookie: BookieId, address: tuple[str, int] | None, error: Exception | None) -> None:
        if address is not None:
            for link in [link for key, link in self._links.items() if key[0] == bookie]:
                link.moved(address)

    def drop_link(self, bookie: BookieId, kind: str) -> None:
        link = self._links.pop((bookie, kind, 0), None)
        if link is not None:
            link.close()

    def link_kind(self, message: Request) -> str:
        if isinstance(message, BatchReadRequest):
            return "batch"
        if isinstance(message, ReadRunRequest):
            return "data"
        if isinstance(message, ReadRequest) and not message.fence and message.entry_id >= 0 and message.previous_lac is None:
            return "data"
        return "control"

    def metadata_call(self, function: Callable[[], Any], then: Callable[[Any, Exception | None], None]) -> None:
        """Run ``function`` on a metadata thread; ``then`` gets its result or error on the reactor thread."""

        def call() -> None:
            result: Any = None
            problem: Exception | None = None
            try:
                result = function()
            except Exception as error:
                problem = error
            self.reactor.post(lambda: then(result, problem))

        try:
            self._metadata.submit(call)
        except ClientClosedError as error:
            closed = MetadataUnavailableError(f"the client is closed ({error.args[0]})")
            self.reactor.post(lambda: then(None, closed))

    def check(self) -> None:
        """At every call of a user: ForkedClientError in a forked child, ClientClosedError where nobody would answer any more."""
        self.home.check()
        if self._over:
            raise ClientClosedError("this client was closed, by this program or because the process ends")

    def close(self) -> None:
        """May be called again: each step is done once, or once more."""
        with self._closables_lock:
            self._closed = True
            closables = tuple(self._closables)
        for closable in closables:
            closable.close()
        if self._watch is not None:
            self._watch.cancel()
        if self._racks is not None:
            self._racks.close()
        self._over = True
        self._shut_links()
        self._metadata.close()
        self.reactor.close()

    def _shut_links(self) -> None:
        """On the reactor, which ends after that. Where it cannot answer any more, nobody waits."""
        done: SafeFuture[None] = SafeFuture()

        def shut() -> None:
            self._suspects.close()
            for link in self._links.values():
                link.close()
            self._links.clear()
            done.set_result(None)

        if self.reactor.is_running:
            self.reactor.post(shut)
            if not wait_done(done, CLOSE_S):
                log.warning("the connections to the bookies were not closed within %g s", CLOSE_S)

    def end(self) -> None:
        """As the process ends: stop the reactor and tell nobody. There may still be threads (daemons) that wait in handles, and what they
        would make of an error would be the last that is seen of a program that did nothing wrong."""
        self._over = True
        self.reactor.close()

    def aside(self, task: Callable[[], None]) -> SafeFuture[None]:
        """Do ``task`` on a thread of this session."""
        return self._metadata.call(task)


class Driver:
    """Performs the effects of one machine. Reactor thread only, except ``post``."""

    def __init__(self, session: Session, ledger_id: int, *, add_kind: str = "data") -> None:
        self.session = session
        self.ledger_id = ledger_id
        self.machine: Machine | None = None
        self.on_complete: Callable[[Any, Any], None] = lambda token, value: None
        self.on_fail: Callable[[Any, Exception], None] = lambda token, error: None
        self.on_step: Callable[[], None] = lambda: None
        self._add_kind = add_kind
        self._since_ns = session.reactor.now_ns()
        self._timers: dict[str, Timer] = {}
        self._listening: set[BookieId] = set()
        self._reads: dict[int, tuple[BookieLink, Waiting]] = {}  # by the machine's number
        self._quorums = (1, 1)
        self._access = LedgerAccess()
        self._to_perform: deque[Effect] = deque()
        self._performing = False
        self._closed = False

    def set_quorums(self, metadata: LedgerMetadata) -> None:
        """META-15: what the metadata has from its caller holds for other versions of it too."""
        self._access = metadata.access
        self._quorums = (metadata.ensemble_size, metadata.write_quorum_size)

    def feed(self, event: Event) -> None:
        if not self._closed and self.machine is not None:
            self.perform(self.machine.handle(event, self.session.reactor.now_ns()))
            self.on_step()

    def perform(self, effects: list[Effect]) -> None:
        """SM-1: the output of one step after that of the step before. A send on a connection that turns out to be broken is a step
        within a step: what the machine makes of it waits until everything said before is out (I-14)."""
        self._to_perform += effects
        if self._performing:
            return
        self._performing = True
        try:
            while self._to_perform:
                self._perform_one(self._to_perform.popleft())
        finally:
            self._performing = False

    def _perform_one(self, effect: Effect) -> None:
        match effect:
            case SendAdds(bookie, position, run, start):
                link = self.session.link(bookie, self._add_kind, self.ledger_id)
                if bookie not in self._listening:
                    self._listening.add(bookie)
                    link.listen(self.ledger_id, self)
                link.send_adds(run, position, start, *self._quorums)
            case SendRead(request, bookie, message, timeout_ns):
                self._send_read(request, bookie, message, timeout_ns)
            case SendAndForget(bookie, message):
                self.session.link(bookie, "control").request(message, self.session.config.limits.add_timeout_ns, lambda s, r: None)
            case ReadLedger(request):
                self._read_ledger(request)
            case WriteLedger(request, metadata, version):
                self._write_ledger(request, metadata, version)
            case SetTimer(key, after_ns):
                self._set_timer(key, after_ns)
            case Complete(token, value):
                self.on_complete(token, value)
            case Fail(token, error):
                self.on_fail(token, self.session.explained(error, self._since_ns))
            case Log(level, message):
                log.log(logging.getLevelNamesMapping()[level.upper()], "%s", message)

    def _send_read(self, request: int, bookie: BookieId, message: Request, timeout_ns: int | None) -> None:
        link = self.session.link(bookie, self.session.link_kind(message), self.ledger_id)

        plain = isinstance(message, (ReadRequest, BatchReadRequest, ReadRunRequest)) and message.entry_id >= 0
        sent_ns = self.session.reactor.now_ns()
        answered = False

        def answer(status: Status, response: Response | None) -> None:
            nonlocal answered
            answered = True
            self._reads.pop(request, None)
            if plain:
                self.session.note_read(bookie, status, self.session.reactor.now_ns() - sent_ns)
            self.feed(ReadReply(request, bookie, status, response))

        waiting = link.request(message, timeout_ns or self.session.config.limits.read_timeout_ns, answer, self)
        if not answered:
            self._reads[request] = link, waiting

    def _read_ledger(self, request: int) -> None:
        def read() -> tuple[LedgerMetadata, int]:
            found = self.session.store.read_ledger(self.ledger_id)
            return metadata_codec.decode(found.data).with_access(self._access), found.version

        def then(result: Any, error: Exception | None) -> None:
            if error is None:
                self.feed(LedgerRead(request, Outcome.OK, result[0], result[1]))
            else:
                self.feed(LedgerRead(request, outcome_of(error), error=error))

        self.session.metadata_call(read, then)

    def _write_ledger(self, request: int, metadata: LedgerMetadata, version: int) -> None:
        data = metadata_codec.encode(metadata)

        def then(result: Any, error: Exception | None) -> None:
            if error is None:
                self.feed(LedgerWritten(request, Outcome.OK, result))
            else:
                self.feed(LedgerWritten(request, outcome_of(error), error=error))

        self.session.metadata_call(lambda: self.session.store.write_ledger(self.ledger_id, data, version), then)

    def _set_timer(self, key: str, after_ns: int) -> None:
        old = self._timers.pop(key, None)
        if old is not None:
            old.cancel()
        if not self._closed:
            self._timers[key] = self.session.reactor.call_later(after_ns, lambda: self._fired(key))

    def _fired(self, key: str) -> None:
        """Before a machine judges who is slow it learns what the links know (LINK-1)."""
        patience_ns = self.session.config.limits.speculative_read_ns
        if key == SPECULATE:
            self.feed(ReadsMoving(frozenset(number for number, (link, one) in self._reads.items() if not link.is_late(one, patience_ns))))
        elif key == TICK:
            for bookie in self._listening:
                self.feed(BytesDrained(bookie, self.session.link(bookie, self._add_kind, self.ledger_id).drained_ns))
        self.feed(TimerFired(key))

    def on_add(self, bookie: BookieId, first_entry_id: int, count: int, status: Status, entries: int | None) -> None:
        self.session.note_answer(bookie, status)
        self.feed(AddReply(bookie, first_entry_id, count, status, entries))

    def on_lost(self, bookie: BookieId, status: Status) -> None:
        self.session.note_answer(bookie, status)
        self.feed(BookieLost(bookie, status))

    def close(self) -> None:
        """Stop timers and listeners; later events are dropped (L-11). Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.session.tell_of_bookies(self, False)
        for timer in self._timers.values():
            timer.cancel()
        for link, _ in self._reads.values():
            link.forget(self)
        self._reads.clear()
        for bookie in self._listening:
            self.session.link(bookie, self._add_kind, self.ledger_id).unlisten(self.ledger_id, self)
            if self._add_kind not in SHARED_KINDS:
                self.session.drop_link(bookie, self._add_kind)


def outcome_of(error: Exception) -> Outcome:
    """META-12. An unreachable store counts as unknown: the identical request is repeated until it is definite."""
    match error:
        case VersionConflictError():
            return Outcome.CONFLICT
        case NoNodeError():
            return Outcome.NO_SUCH_LEDGER
        case MetadataOutcomeUnknownError() | MetadataUnavailableError():
            return Outcome.UNKNOWN
        case _:
            return Outcome.REFUSED


def as_bk_error(error: BaseException) -> BkError:
    return error if isinstance(error, BkError) else MetadataError(f"unexpected error: {error!r}")
