"""A metadata store that opens its session when it is needed. Many processes never need one, because they were told all they need
(SES-13)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from bk_core.background import BackgroundLoop
from bk_core.errors import CLIENT_CLOSED, BkError, ClientClosedError, ClusterChangedError
from bk_core.metadata.store import BookieView, MetadataStore, RegistryWatch, Versioned, Watch, changed_cluster
from bk_core.metrics.client import MetadataCounts
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.session.on_demand import OnDemand

Address = tuple[str, int]


class LazyStore:
    """The whole of MetadataStore, for a client that reads. ``opener`` makes the store itself; ``cluster`` is the identity that the cluster
    had for the process that told this one about it, and ``root`` is its place, for messages.

    Every call opens the session, and a session that nobody has used for a while is ended. Three calls do without a session: ``resolve`` of
    a bookie whose address was told (``know``), the first ``cluster_id``, and ``watch_bookies``, which calls back once there is a session.
    Calls that need one raise ClusterChangedError if the cluster is another one by then (OWN-2).
    """

    def __init__(self, opener: Callable[[], MetadataStore], cluster: str, root: str) -> None:
        self._opener = opener
        self._cluster = cluster
        self._root = root
        self._vouched = True
        self._changed = self._closed = False
        self._addresses: dict[BookieId, Address] = {}
        self._on_bookies: list[_BookiesWatch] = []  # replaced under ``_lock``
        self._state = OnDemand()
        self._store: MetadataStore | None = None
        self._counts: MetadataCounts | None = None
        self._opening = threading.RLock()
        self._failures = 0  # openings that failed so far
        self._failure: BkError | None = None  # of the last one
        self._lock = threading.RLock()
        self._idling: BackgroundLoop | None = None  # of the session that there is; replaced under ``_lock``

    def know(self, addresses: Mapping[BookieId, Address]) -> None:
        """Learn addresses of bookies that the store told to another process lately."""
        with self._lock:
            self._addresses |= addresses

    # --- the session -------------------------------------------------------------------------------------------------------

    @property
    def has_session(self) -> bool:
        """True as long as there is a session."""
        return self._state.open

    @contextmanager
    def _used(self) -> Iterator[MetadataStore]:
        """Yield the store itself, whose session is kept meanwhile. A thread that waits for an opening by another gets its error if
        it fails: if each tried again, their waits would add up."""
        failures = self._failures
        with self._opening:
            with self._lock:
                needed = self._state.began(time.monotonic_ns())
            try:
                if needed and self._failure is not None and self._failures != failures:
                    raise self._failure.retold(str(self._failure.args[0])) from self._failure.__cause__
                if needed:
                    self._try_to_open()
            except BaseException:
                self._release()
                raise
        try:
            store = self._store
            if store is None:
                raise ClientClosedError(CLIENT_CLOSED)
            yield store
        finally:
            self._release()

    def _release(self) -> None:
        with self._lock:
            self._state.ended(time.monotonic_ns())

    def _try_to_open(self) -> None:
        """Open the session, and note a failure for those that wait. Only an attempt counts, or calls that keep coming would never try."""
        try:
            self._open()
        except BkError as error:
            self._failures, self._failure = self._failures + 1, error
            raise

    def _open(self) -> None:
        if self._closed:
            raise ClientClosedError(CLIENT_CLOSED)
        store = self._opener()
        if self._counts is not None:
            store.count_in(self._counts)
        try:
            found = store.cluster_id()
            if found != self._cluster:
                self._changed = True
                raise ClusterChangedError(changed_cluster(self._root, self._cluster, found))
            for watched in self._on_bookies:
                watched.begin(store)
            with self._lock:
                if self._closed:
                    raise ClientClosedError(CLIENT_CLOSED)
                self._store, self._state.open = store, True
                self._idling = idling = BackgroundLoop("bk-metadata-idle", self._end_idle, of_client=True)
        except BaseException:
            store.close()
            raise
        idling.start()

    def _end_idle(self) -> float | None:
        """End the session if nobody has used it for a while."""
        with self._lock:
            left = self._state.idle_in_ns(time.monotonic_ns())
            if left and not self._closed:
                return left / 1e9
            store = self._taken()
        if store is not None:
            store.close()
        return None

    def _taken(self) -> MetadataStore | None:
        store, self._store, self._state.open = self._store, None, False
        return store

    def close(self) -> None:
        with self._lock:
            self._closed = True
            store, idling = self._taken(), self._idling
        if idling is not None:
            idling.stop()
        if store is not None:
            store.close()

    # --- calls without a session --------------------------------------------------------------------------------------------

    def cluster_id(self) -> str:
        """Return the identity that was told, the first time: that call is for the connection, which asks nobody."""
        vouched, self._vouched = self._vouched, False
        if vouched:
            return self._cluster
        with self._used() as store:
            return store.cluster_id()

    @property
    def known_cluster(self) -> str:
        return self._cluster

    @property
    def cluster_has_changed(self) -> bool:
        store = self._store
        return self._changed or (store is not None and store.cluster_has_changed)

    def resolve(self, bookie_id: BookieId) -> Address:
        """Return the address that was told, as long as there is no session. One is opened when all replicas of an entry failed; then the
        store is asked."""
        with self._lock:
            known = None if self._state.open else self._addresses.get(bookie_id)
        if known is not None:
            return known
        with self._used() as store:
            found = store.resolve(bookie_id)
        self.know({bookie_id: found})
        return found

    def watch_bookies(self, callback: Callable[[BookieView], None]) -> RegistryWatch:
        watched = _BookiesWatch(callback)
        with self._opening:
            with self._lock:
                self._on_bookies = [*self._on_bookies, watched]
                store = self._store
            if store is not None:
                watched.begin(store)
        return _ForgottenBookies(partial(self._forget, watched), partial(self._refresh, watched))

    def _refresh(self, watched: _BookiesWatch) -> None:
        if not watched.over:
            with self._used():
                watched.refresh()

    def _forget(self, watched: _BookiesWatch) -> None:
        with self._lock:
            self._on_bookies = [one for one in self._on_bookies if one is not watched]
        watched.end()

    def count_in(self, counts: MetadataCounts) -> None:
        """Count the requests of every session that is opened from now on."""
        self._counts = counts

    def is_connected(self) -> bool:
        store = self._store
        return store is not None and store.is_connected()

    def losses(self) -> int:
        """Return a number that changes with each session, too."""
        store = self._store
        return -1 if store is None else store.losses()

    # --- calls that need a session ------------------------------------------------------------------------------------------

    @property
    def log_root(self) -> str:
        with self._used() as store:
            return store.log_root

    def list_ledgers(self) -> Iterator[int]:
        with self._used() as store:
            yield from store.list_ledgers()

    def read_ledgers(self, ledger_ids: Iterable[int]) -> Iterator[tuple[int, Versioned | None]]:
        with self._used() as store:
            yield from store.read_ledgers(ledger_ids)

    def read_many(self, paths: Iterable[str]) -> Iterator[tuple[str, Versioned | None]]:
        with self._used() as store:
            yield from store.read_many(paths)

    def watch_ledger(self, ledger_id: int, callback: Callable[[], None]) -> Watch:
        return self._watching(lambda store: store.watch_ledger(ledger_id, callback))

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        return self._watching(lambda store: store.watch(path, callback))

    def watch_rack_map(self, callback: Callable[[], None]) -> Watch:
        return self._watching(lambda store: store.watch_rack_map(callback))

    def _watching(self, begin: Callable[[MetadataStore], Watch]) -> Watch:
        """Keep the session until the watch is cancelled."""
        with ExitStack() as using:
            watch = begin(using.enter_context(self._used()))
            using.callback(watch.cancel)
            return _Forgotten(using.pop_all().close)

    def __getattr__(self, name: str) -> Any:
        """Pass every other call on to the store itself."""
        if name.startswith("_") or not callable(getattr(MetadataStore, name, None)):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._used() as store:
                return getattr(store, name)(*args, **kwargs)

        return call


class _BookiesWatch:
    """A watch of the bookies that goes on from session to session."""

    def __init__(self, callback: Callable[[BookieView], None]) -> None:
        self._callback = callback
        self._watch: RegistryWatch | None = None  # of the session that there is, or of the last one
        self.over = False

    def begin(self, store: MetadataStore) -> None:
        """Watch in a new session."""
        self._watch = store.watch_bookies(self._tell)
        if self.over:  # it was ended meanwhile
            self._watch.cancel()

    def _tell(self, found: BookieView) -> None:
        if not self.over:
            self._callback(found)

    def refresh(self) -> None:
        """Look now. The caller keeps the session."""
        if self._watch is not None:
            self._watch.refresh()

    def end(self) -> None:
        self.over = True
        if self._watch is not None:
            self._watch.cancel()


class _Forgotten:
    """A watch that is cancelled once."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel: Callable[[], None] | None = cancel

    def cancel(self) -> None:
        cancel, self._cancel = self._cancel, None
        if cancel is not None:
            cancel()


class _ForgottenBookies(_Forgotten):
    """A watch of the bookies that is cancelled once."""

    def __init__(self, cancel: Callable[[], None], refresh: Callable[[], None]) -> None:
        super().__init__(cancel)
        self.refresh = refresh
