"""The session that all handles of one client share: the reactor, the links and the metadata threads."""

from __future__ import annotations

import logging
import random
import time
import weakref
from _thread import RLock
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

from bk_core.background import WorkerPool
from bk_core.client.ledger.add_window import AddWindow
from bk_core.client.patience import patience_s
from bk_core.client.peers import Looks, Resolver, Suspects, Unlisting
from bk_core.client.repeating import until_definite
from bk_core.config import ClientConfig
from bk_core.errors import (
    CLIENT_CLOSED,
    AddQuorumTimeoutError,
    BkError,
    BookieSecurityError,
    ClientClosedError,
    LocalResourceError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    OperationTimeoutError,
    ReadError,
    RecoveryFailedError,
    WriteFailedError,
)
from bk_core.metadata.rack_script import RackScript, ScriptedRacks
from bk_core.metadata.racks import RackMap
from bk_core.metadata.store import BookieView, MetadataStore, RegistryWatch
from bk_core.metrics.client import ClientCounts
from bk_core.net.link import BookieLink
from bk_core.net.local_resources import shortage_now, shortage_text
from bk_core.net.names import Address, Names
from bk_core.net.preparing import Preparations
from bk_core.net.reactor import Reactor
from bk_core.protocol.effects import Effect
from bk_core.protocol.events import (
    BookiesChanged,
    Event,
)
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.placement import Placement, Quarantine, RackAwarePlacement, RandomPlacement, is_bookie_failure, location
from bk_core.protocol.ledger.read.replica_order import Rank, ReadHistory
from bk_core.protocol.ledger.recover.options import RecoveryOptions
from bk_core.protocol.ledger.write.options import ChangeWindow, EnsembleChangeMode, WriterOptions
from bk_core.protocol.session.refusals import Refusals
from bk_core.protocol.session.shortage import Shortages
from bk_core.protocol.wire.messages import BatchReadRequest, ReadRequest, ReadRunRequest, Request, Status
from bk_core.security import Security
from bk_core.threads import Home, SafeFuture, rest_if_daemon, wait_done

log = logging.getLogger("bk_core.client")

T = TypeVar("T")

METADATA_THREADS = 4
CLOSE_S = 10.0
ASK_AGAIN_NS = 200_000_000  # the pause before the store is asked again for addresses and racks that it did not tell
MOVED_LATELY_NS = 60_000_000_000  # a read takes less, and one that is asked again in vain does it once
# The statuses of an operation that lacks connections.
BEHIND_A_SHORTAGE = (ReadError, RecoveryFailedError, NotEnoughBookiesError, AddQuorumTimeoutError, WriteFailedError, OperationTimeoutError)
SPREAD_KINDS = frozenset({"data", "batch"})  # over ``connections_per_bookie``


class Informed(Protocol):
    """An object that wants to know of changes of the registry."""

    def feed(self, event: Event) -> None: ...


class Closable(Protocol):
    def close(self) -> None: ...


class Tracer(Protocol):
    """An object that takes down what drivers do, on the reactor thread."""

    def performs(self, driver: Any, effect: Effect, now_ns: int) -> None: ...
    def hears(self, driver: Any, event: Event, now_ns: int) -> None: ...


class Owed(SafeFuture[T]):
    """The outcome that an operation owes its caller. The session that makes it fails it with ClientClosedError when the session closes
    before the outcome is there."""

    def settle(self, value: T) -> None:
        """Bring the outcome. It has no effect after another one. Any thread."""
        with suppress(InvalidStateError):
            self.set_result(value)

    def fail(self, error: Exception) -> None:
        """Bring an error as the outcome. It has no effect after another one. Any thread."""
        with suppress(InvalidStateError):
            self.set_exception(error)

    def close(self) -> None:
        self.fail(ClientClosedError(CLIENT_CLOSED))


class Session:
    """Reactor thread and metadata threads of one client. ``close`` ends both."""

    link_type: type[BookieLink] = BookieLink
    security: Security | None = None
    _preparing: Preparations | None = None  # reads files and secrets for connections, where there are any
    tracers: tuple[Tracer, ...] = ()  # of ``BookKeeper.trace``; almost always none
    _has_seen_bookies = False
    _shut = False  # True once links are closed; later ones are closed at once

    def __init__(self, config: ClientConfig, store: MetadataStore) -> None:
        self.config = config
        self.store = store
        self.home = Home()
        self.counts = ClientCounts(f"the client of {config.shown_uri}")
        self._over = self._ended = False
        self.racks: RackMap | ScriptedRacks | None = None
        self.reactor = Reactor()
        self.rng = random.Random()
        self.rotation = self.rng.randrange(1 << 16)  # with the ledger id it chooses the replica that is read first (RD-2)
        self._metadata = WorkerPool("bookkeeper-metadata", METADATA_THREADS)
        self._links: dict[tuple[BookieId, str, int], BookieLink] = {}
        self._reads = ReadHistory(config.limits.speculative_read_ns)
        self._closables: weakref.WeakSet[Closable] = weakref.WeakSet()
        self._closables_lock = RLock()
        self._closed = False
        self._view = BookieView((), ())
        self._views = self._view_number = 0  # that were told until now; the one that is stored
        self._view_lock = RLock()
        self._emptied: tuple[BookieId, ...] = ()
        self._emptied_lock = RLock()
        self.owner: Callable[[], object] = lambda: None
        self._is_looking = self._looks_again = False  # for addresses of bookies that this client is connected to
        self._moved_ns: dict[BookieId, int] = {}  # the time at which a link was found to lead to an old address
        self._quarantine = Quarantine(self.reactor.now_ns, int(config.quarantine_s * 1e9), config.quarantine_errors)
        self._suspects = Suspects(self, int(config.quarantine_s * 1e9), config.limits.read_timeout_ns)
        self.unlisting = Unlisting(self.reactor.now_ns)
        self._resolver = Resolver(self.reactor, store, self.metadata_call)
        self._looks = Looks(self.reactor.post, self.metadata_call, self._look_at_bookies)
        self._names = Names(self.reactor.post)
        self._shortages = Shortages()
        self._refusals = Refusals()
        self.security = config.bookie_security
        if self.security is not None:
            self._preparing = Preparations(self.security, self.reactor.post)
        self._on_bookies: dict[Informed, None] = {}
        self.adds = AddWindow(config.limits.unretired_entries_max, self.counts.add_wait_seconds)
        self._read_gauges()
        self._watch: RegistryWatch | None = None
        try:
            self.racks = self._new_racks()
            self.placement = self._new_placement(self.racks)
            self._watch = store.watch_bookies(self._bookies_changed)
            self._settle_racks()
        except BaseException:
            self.close()
            raise

    def _read_gauges(self) -> None:
        read = self.counts.registry.read
        read("bookkeeper_client_pending_add", lambda: self.adds.entries)
        read("bookkeeper_client_pending_add_bytes", lambda: self.adds.bytes)
        read("bookkeeper_client_add_entry_bytes_total", lambda: self.adds.acknowledged_bytes)
        read("bookkeeper_client_add_waiting", lambda: self.adds.waiting)
        read("bookkeeper_client_metadata_connected", lambda: int(not self._over and self.store.is_connected()))

    def _new_racks(self) -> RackMap | ScriptedRacks | None:
        settings = self.config
        if settings.placement_policy != "rack-aware":
            return None
        if (script := settings.script_of_racks) is not None:
            names = Names(lambda tell: tell())  # a client that connects waits for the racks, and not on the reactor thread
            return ScriptedRacks(self.store, RackScript(script, settings.rack_script_timeout_s), names.lookup)
        return RackMap(self.store, settings.racks, self._ask_later)

    def _ask_later(self, call: Callable[[], None]) -> None:
        """Run ``call``, which may ask the store, on a metadata thread some time later, unless the session is over then."""

        def wait() -> None:
            self.reactor.call_later(ASK_AGAIN_NS, partial(self.metadata_call, call, lambda *_: None))

        self.reactor.post(wait)

    def _settle_racks(self) -> None:
        """Wait for the racks of the bookies that are known now, where a script tells them: for its timeout at most."""
        if isinstance(self.racks, ScriptedRacks):
            self.racks.settle()

    def _new_placement(self, racks: RackMap | ScriptedRacks | None) -> Placement:
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

    def definite(self, request: Callable[[], T]) -> T:
        """Repeat the identical request to the metadata store until its outcome is definite, within the operation timeout (META-12)."""
        deadline = time.monotonic() + patience_s(self.config.operation_timeout_s)
        return until_definite(request, deadline, pause_s=self.config.limits.metadata_retry_ns / 1e9)

    def _placeable(self) -> tuple[BookieId, ...]:
        """Return the bookies on which this client may put entries. Any thread."""
        return tuple(bookie for bookie in self._view.writable if bookie not in self._emptied) if self._emptied else self._view.writable

    @contextmanager
    def without(self, bookie: BookieId) -> Iterator[None]:
        """Place nothing on ``bookie`` meanwhile (RR-14). Any thread; calls may overlap."""
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
        """The options that the client's settings give every writer."""
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
        """The options that the client's settings give every recovery."""
        mode = EnsembleChangeMode[self.config.ensemble_change.upper()]
        return RecoveryOptions(ensemble_change=mode, barrier=self.config.recovery_barrier)

    def _bookies_changed(self, view: BookieView) -> None:
        with self._view_lock:
            self._views += 1
            number = self._views
        if self.racks is not None:  # before anybody may place entries on them, and without the lock, because it may ask the store
            self.racks.bookies_changed(view.registered, view.anew, number)
        with self._view_lock:
            if number < self._view_number:  # another thread was faster, with a newer view
                view = replace(self._view, anew=view.anew)
            before, self._view, self._view_number = self._view, view, max(number, self._view_number)
            came = frozenset(view.writable).difference(before.writable) | view.anew.intersection(view.writable)
            gone, back = before.registered - view.registered | view.anew, view.registered - before.registered | view.anew
            self.reactor.post(partial(self._tell_of_bookies, gone, back, came))

    def _tell_of_bookies(self, gone: Collection[BookieId], back: Collection[BookieId], came: frozenset[BookieId]) -> None:
        """Tell all whom it concerns that registrations are ``gone`` or ``back``, and that bookies ``came`` which may be written to."""
        self._refusals.over(*gone)
        if self._has_seen_bookies and back and self._links:  # not for those that were there when this client began
            self._addresses_of(back, self._came_at)
        self._has_seen_bookies = self._has_seen_bookies or bool(back)
        self._suspects.probe()
        self._look_for_moved()
        self._look_names_up(back)
        for link in [link for key, link in self._links.items() if key[0] in back or key[0] in came]:
            link.returned()
        for driver in tuple(self._on_bookies):
            driver.feed(BookiesChanged(came))

    def tell_of_bookies(self, driver: Informed, wanted: bool) -> None:
        """Start or stop telling a writer about changes of the registry (G-10). Reactor thread."""
        if wanted:
            self._on_bookies[driver] = None
        else:
            self._on_bookies.pop(driver, None)

    def begin_trace(self, tracer: Tracer) -> None:
        """Have ``tracer`` take down what drivers do from now on. Reactor thread."""
        self.tracers = (*self.tracers, tracer)

    def end_trace(self, tracer: Tracer) -> None:
        """Forget a tracer. Reactor thread."""
        self.tracers = tuple(one for one in self.tracers if one is not tracer)

    def bookies(self) -> BookieView:
        return self._view

    def refresh_bookies(self) -> None:
        """Look at the registered bookies now, because the watch may be a moment behind. It is a look of the watch, which alone knows what
        was told."""
        if self._watch is not None:
            self._watch.refresh()
        self.reactor.post(self._look_for_moved)  # the list may be the same, and a bookie of it elsewhere

    def look_for_bookies(self, then: Callable[[Exception | None], None]) -> None:
        """Look at the registered bookies for a writer that has found none (EC-6). ``then`` is called when the placement knows them and
        drivers are told of those that came, or with the error for which nobody could look. Reactor thread."""
        self._looks.ask(then)

    def _look_at_bookies(self) -> None:
        """Refresh the bookies and their racks. Runs on a metadata thread."""
        self.refresh_bookies()
        self._settle_racks()

    def note_answer(self, bookie: BookieId, status: Status) -> None:
        """Note the answer of a bookie for the quarantine (CR-2). Reactor thread."""
        self._suspects.noted(bookie, status)
        if is_bookie_failure(status) and not self._shortages.excuses(status, self.reactor.now_ns()):
            self._quarantine.failed(bookie)

    def note_read(self, bookie: BookieId, status: Status, elapsed_ns: int) -> None:
        """Note the time that a bookie took for a plain read, for the order of replicas (RD-2). Reactor thread."""
        self._suspects.noted(bookie, status)
        self._reads.note(bookie, status, elapsed_ns, self.reactor.now_ns())

    def read_rank(self, bookie: BookieId) -> Rank:
        """Return the rank of a bookie (metadata.md 5.7). As long as no bookie is known, none counts as unregistered. Reactor thread."""
        view = self._view
        registered = bookie in view.writable or not view.writable
        readonly = bookie in view.readonly
        return self._reads.rank(bookie, self.reactor.now_ns(), readonly=readonly, registered=registered or readonly)

    def close_with(self, closable: Closable) -> None:
        """Close ``closable`` before this session closes, or at once if it is closed, because a thread that waits in it would wait for ever
        otherwise. Any thread."""
        with self._closables_lock:
            self._closables.add(closable)
            late = self._closed
        if late:
            closable.close()

    def owed(self) -> Owed[Any]:
        """Return a new outcome, for an operation that asks bookies or the store through this session. Once the session is closed the
        outcome is ClientClosedError at once: a closed session answers nothing, so its caller would wait in vain (L-11). Any thread."""
        made: Owed[Any] = Owed()
        self.close_with(made)
        return made

    def _avoided(self) -> frozenset[BookieId]:
        """Return the bookies in quarantine (CR-2), and those whose connection broke and that have not answered since (SES-1).
        Any thread."""
        return self._quarantine.members() | self._suspects.members()

    def unanswering(self, since_s: float) -> tuple[BookieId, ...]:
        """The bookies to which a connection broke, fell silent or could not be made since ``since_s`` on the monotonic clock, and that have
        not answered since then. Any thread."""
        return tuple(sorted(self._suspects.members() & self._suspects.broken_since(int(since_s * 1e9))))

    def link(self, bookie: BookieId, kind: str, ledger_id: int = 0) -> BookieLink:
        """Return a link to a bookie. Its kind is data, batch (a connection that an old bookie may close), control (v3), or one of its own
        per recovery: a writer on a shared connection must never take the answer to a recovery add for its own. Reactor thread."""
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
                counts=self.counts.bookie(bookie),
                prepare=None if self._preparing is None else self._preparing.begin,
                on_entry=self._entered,
            )
            self._links[key] = found
            if self._shut:
                found.close()  # a closed link sends its callers to another bookie, and they must be refused there as well
        return found

    def _silent(self, bookie: BookieId, since_ns: int) -> None:
        """Pass on that one connection to this bookie was silent for a whole timeout, so that the others need not find out one by one
        (LINK-4)."""
        for link in [link for key, link in self._links.items() if key[0] == bookie]:
            link.doubt(since_ns)

    def _short(self, error: str, text: str) -> None:
        if self._shortages.happened(error, text, self.reactor.now_ns()):
            log.warning("a connection to a bookie cannot be made: %s", text)

    def _entered(self, bookie: BookieId, error: BookieSecurityError | None) -> None:
        """Note for which reason a bookie does not admit this client; None where it does, or where that is not known. Reactor thread."""
        if error is None:
            self._refusals.over(bookie)
        elif self._refusals.happened(bookie, error) and not self._closed:
            log.warning("%s", error.args[0])

    def explained(self, error: Exception, since_ns: int) -> Exception:
        """Return the error of an operation that began at ``since_ns``, or the reason for which bookies do not admit this client (LINK-10),
        or the shortage of this host (SES-10), if that is its cause. Any thread."""
        if not isinstance(error, BEHIND_A_SHORTAGE):
            return error
        refused = self._refusals.explained(error)
        if refused is not None:
            refused.__cause__ = error
            return refused
        text = self._shortages.explanation(since_ns, self.reactor.now_ns())
        # no link has seen it, but the metadata store may be out of reach because of it
        if not text and (short := shortage_now()) is not None:
            text = shortage_text(short) or ""
        if not text:
            return error
        explained = LocalResourceError(f"{error.args[0]}; {text}", **error.context)
        explained.__cause__ = error
        return explained

    def _look_for_moved(self) -> None:
        """Ask for the current addresses of the registered bookies that this client is connected to (LINK-4). What comes while they are
        asked for leads to another look."""
        if self._is_looking:
            self._looks_again = True
            return
        linked = self._view.registered.intersection(bookie for bookie, _, _ in self._links)
        if linked:
            self._is_looking, self._looks_again = True, False
            self._addresses_of(linked, self._found, self._looked)

    def _looked(self, _result: object, _error: Exception | None) -> None:
        self._is_looking = False
        if self._looks_again:
            self._look_for_moved()

    def _addresses_of(
        self,
        bookies: Collection[BookieId],
        tell: Callable[[BookieId, tuple[str, int]], None],
        then: Callable[[object, Exception | None], None] = lambda *_: None,
    ) -> None:
        """Tell the addresses of bookies, each as soon as it is known; ``then`` is called in the end. One metadata thread asks for all of
        them, because a thousand bookies may register at once, and changes of ledgers need these threads, too. While nobody answers, they
        are asked for again: until then a connection may lead to another bookie. Reactor thread."""
        left = deque(bookies)

        def ask() -> None:
            while left and not self._over:
                try:
                    self.reactor.post(partial(tell, left[0], self.store.resolve(left[0])))
                except MetadataUnavailableError:
                    raise  # nobody answers about the others either
                except BkError:
                    pass
                left.popleft()

        def asked(result: object, error: Exception | None) -> None:
            if isinstance(error, MetadataUnavailableError) and not self._over:
                self.reactor.call_later(ASK_AGAIN_NS, partial(self._addresses_of, tuple(left), tell, then))
            else:
                then(result, error)

        self.metadata_call(ask, asked)

    def _found(self, bookie: BookieId, address: tuple[str, int]) -> None:
        for link in [link for key, link in self._links.items() if key[0] == bookie]:
            if link.moved(address):
                self._moved_ns[bookie] = self.reactor.now_ns()

    def _came_at(self, bookie: BookieId, address: tuple[str, int]) -> None:
        """End connections of other bookies to the address at which a bookie has registered. They lead to it by now, and it would take their
        entries: the protocol does not say which bookie answers (LINK-4)."""
        self._resolver.came(bookie, address)
        for link in [link for link in self._links.values() if link.bookie != bookie]:
            link.given_away(address, bookie)

    def _look_names_up(self, back: Collection[BookieId]) -> None:
        """Look the names of bookies up that are registered again: whoever started one elsewhere may have kept its name (LINK-4)."""
        for name in {(link.bookie, link.address) for link in self._links.values() if link.bookie in back and link.address is not None}:
            bookie, address = name
            self._names.lookup(*address, partial(self._named, bookie, address), anew=True)  # those under way began before

    def _named(self, bookie: BookieId, name: tuple[str, int], found: list[Address], _problem: str) -> None:
        for link in [link for key, link in self._links.items() if key[0] == bookie]:
            if link.renamed(name, found):
                self._moved_ns[bookie] = self.reactor.now_ns()

    def addresses_of(self, bookies: Iterable[BookieId]) -> dict[BookieId, tuple[str, int]]:
        """Return the current addresses of bookies, without unknown ones. Runs on a metadata thread."""
        found: dict[BookieId, tuple[str, int]] = {}
        for bookie in bookies:
            with suppress(BkError):
                found[bookie] = self.store.resolve(bookie)
        return found

    def have_moved(self, addresses: Mapping[BookieId, tuple[str, int]]) -> bool:
        """Return True if one of them was looked for at another address until now, or until lately; a read that was refused there is to be
        repeated (RD-7). Connections to old addresses are dropped (LINK-4). Reactor thread."""
        for bookie, address in addresses.items():
            self._found(bookie, address)
        since = self.reactor.now_ns() - MOVED_LATELY_NS
        return any(self._moved_ns.get(bookie, since) > since for bookie in addresses)

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

    @property
    def client(self) -> object:
        """The client that ends this session when it is closed or dropped. Handles refer to it, and the session's own threads do not."""
        return self.owner()

    @property
    def is_over(self) -> bool:
        return self._over

    @property
    def is_ended(self) -> bool:
        """True once the process ends, and the session with it."""
        return self._ended

    def check(self) -> None:
        """Raise ForkedClientError in a forked child and ClientClosedError in a closed session. Every call of a user begins with this."""
        self.home.check()
        if self._over:
            if self._ended:
                rest_if_daemon()
            raise ClientClosedError(CLIENT_CLOSED)

    def close(self) -> None:
        """Close the session. It may be called again: each step is done once, or once more."""
        with self._closables_lock:
            self._closed = True
            closables = tuple(self._closables)
        for closable in closables:
            closable.close()
        if self._watch is not None:
            self._watch.cancel()
        if self.racks is not None:
            self.racks.close()
        self._over = True
        self._shut_links()
        self._metadata.close()
        if self._preparing is not None:
            self._preparing.close()
        self.reactor.close()

    def _shut_links(self) -> None:
        """Close the links on the reactor, which ends after that. If the reactor cannot answer any more, nobody waits for it."""
        done: SafeFuture[None] = SafeFuture()

        def shut() -> None:
            self._shut = True
            self._suspects.close()
            for link in list(self._links.values()):
                link.close()
            self._links.clear()
            done.set_result(None)

        if self.reactor.is_running:
            self.reactor.post(shut)
            if not wait_done(done, CLOSE_S):
                log.warning("the connections to the bookies were not closed within %g s", CLOSE_S)

    def end(self) -> None:
        """Stop the reactor at the end of the process, and tell nobody. Daemon threads may still wait in handles, and the error that they
        would raise would be the last output of a program that did nothing wrong. So threads that ask for more are held, too."""
        self._ended = self._over = True
        self.reactor.close()

    def aside(self, task: Callable[[], None]) -> SafeFuture[None]:
        """Run ``task`` on a thread of this session."""
        return self._metadata.call(task)
