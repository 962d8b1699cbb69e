"""The metadata store over nodes by path, as Apache BookKeeper keeps it (metadata.md 1, 2, 4): all that does not depend on the servers.

A store of one kind of servers has their connection, makes new clusters and numbers, and tells the servers' time. Watches and registrations
are looked after by one thread per store (watches.py).
"""

from __future__ import annotations

import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import tee
from threading import RLock
from typing import Any, ClassVar, TypeVar

from bk_core.errors import (
    ClusterExistsError,
    LayoutMismatchError,
    MetadataError,
    MetadataOutcomeUnknownError,
    MetadataUnavailableError,
    NodeExistsError,
    NoNodeError,
)
from bk_core.metadata import paths
from bk_core.metadata.service_info import bookie_service_info, check_bookie_id, encode_service_info
from bk_core.metadata.store import BookieView, Registration, RegistryWatch, Version, Versioned, Watch
from bk_core.metadata.tree.agreement import Agreement
from bk_core.metadata.tree.cluster import ClusterAtRoot, LogRoot
from bk_core.metadata.tree.connected import STOP_S, Connected
from bk_core.metadata.tree.ids import LedgerIds
from bk_core.metadata.tree.names import ZOOKEEPER, Names
from bk_core.metadata.tree.nodes import ANY_VERSION, Nodes
from bk_core.metadata.tree.underreplication import TreeUnderreplication
from bk_core.metadata.tree.watches import Arms, BookiesWatch, Keeper, NodeRegistration, NodeWatch, Stamp
from bk_core.metadata.tree.whereabouts import Whereabouts
from bk_core.metadata.underreplication import UnderreplicationStore
from bk_core.metrics.client import MetadataCounts
from bk_core.protocol.ledger.metadata import BookieId
from bk_core.protocol.ledger.metadata_codec import is_bookie_id
from bk_core.threads import is_ending

CLOCK_KEPT_S = 5.0
W = TypeVar("W", BookiesWatch, NodeWatch)


class TreeStore(ABC):
    """MetadataStore (bk_core/metadata/store.py) over nodes. ``root`` and ``log_root`` lie below ``chroot``; with ``manager`` None LAYOUT
    decides. ``place`` names the servers, for messages. ``held_s`` is the time in seconds for which what a dead process held may stay.
    ``has_old_logs``: older programs have kept logs in such a store (OWN-8). ``others`` are the names of other layouts that clusters of
    these servers may have."""

    _names: ClassVar[Names] = ZOOKEEPER

    def __init__(
        self,
        link: Connected,
        nodes: Nodes,
        *,
        place: str,
        root: str,
        chroot: str,
        manager: str | None,
        timeout_s: float,
        held_s: float,
        log_root: str | None,
        has_old_logs: bool = True,
        others: Sequence[Names] = (),
    ) -> None:
        prefix = paths.check_root(chroot, "chroot") if chroot else ""
        self._root = prefix + paths.check_root(root, "ledgers root")
        self._prefix = prefix
        self._lock = RLock()
        self._counts: MetadataCounts | None = None
        self._base_link, self._base = link, nodes
        self._cluster = ClusterAtRoot(nodes, self._root, place, self._names, others)
        chosen = None if log_root is None else prefix + paths.check_log_root(log_root, root)
        own, old = paths.check_log_root(paths.default_log_root(root), root), paths.old_log_root(root)
        self._log_root = LogRoot(nodes, self, chosen, prefix + own, prefix + old if has_old_logs else None)
        self._rack_map = prefix + paths.rack_map_path(root)
        self._place = place
        self._wanted_manager = manager
        self._layout: str | None = None
        self._timeout_s = timeout_s
        self._held_s = held_s
        self._closed = False
        self._whereabouts = Whereabouts(
            link, nodes, self._registration_of, lambda: self._listed(None), self._registration_changed, place=place, timeout_s=timeout_s
        )
        self._registered: dict[BookieId, NodeRegistration] = {}
        self._keeper = Keeper()
        self._arms = Arms(self._keeper)
        self._underreplication = TreeUnderreplication(nodes, self._root)
        self._ids = LedgerIds(nodes, self._root, self._sequence)

    # what depends on the servers ------------------------------------------------------------------------------------

    @abstractmethod
    def clock_ms(self) -> int: ...

    @abstractmethod
    def _create_cluster(self, instance_id: str) -> None:
        """Make root, available, available/readonly and INSTANCEID in one transaction. Raises NodeExistsError; NoNodeError where parents of
        the root are missing."""

    @abstractmethod
    def _sequence(self, directory: str) -> int | None:
        """Return the next number of ``directory``, which nobody gets again; None if it is beyond 31 bits. A directory that is missing is
        made, but for the root: then NoNodeError."""

    # ledgers -----------------------------------------------------------------------------------------------------

    def new_ledger_id(self) -> int:
        """Return a new id. A lost answer only wastes a number, so this is repeated like a read (metadata.md 2.5). Raises NoClusterError if
        the root is gone."""
        try:
            return self._ids.next_id(self._manager())
        except NoNodeError:
            self.check_cluster()
            raise

    def create_ledger(self, ledger_id: int, data: bytes) -> Version:
        self._cluster.check_unchanged()
        return self._base.create_with_parents(self._ledger(ledger_id), data)

    def read_ledger(self, ledger_id: int) -> Versioned:
        return self._base.get(self._ledger(ledger_id))

    def read_ledgers(self, ledger_ids: Iterable[int]) -> Iterator[tuple[int, Versioned | None]]:
        asked, left = tee(ledger_ids)
        found = self._base.get_many(map(self._ledger, asked))
        return ((ledger_id, stored) for (_, stored), ledger_id in zip(found, left, strict=False))

    def gone_ledgers(self, ledger_ids: Iterable[int]) -> list[int]:
        asked = list(ledger_ids)
        if not asked:
            return []
        agreement = Agreement(self._base, self._root)
        return agreement.read(lambda: [ledger_id for ledger_id, stored in self.read_ledgers(asked) if stored is None])

    def write_ledger(self, ledger_id: int, data: bytes, version: Version) -> Version:
        self._cluster.check_unchanged()
        return self._base.set(self._ledger(ledger_id), data, version)

    def delete_ledger(self, ledger_id: int) -> None:
        path = self._ledger(ledger_id)
        self._cluster.check_unchanged()
        self._base.remove(path, ANY_VERSION)
        if paths.prunes_parents(self._manager()):
            self._base.prune(path, self._root)

    def list_ledgers(self) -> Iterator[int]:
        """Yield the ids. Raises NoClusterError instead of ending early if the cluster is gone or goes meanwhile (OWN-2)."""
        manager = self._manager()
        agreement = Agreement(self._base, self._root)
        agreement.read(self.check_cluster)
        for tree in paths.trees(manager):
            yield from self._walk(agreement, self._root, "", tree.levels)
        agreement.read(self.check_cluster)

    def watch_ledger(self, ledger_id: int, callback: Callable[[], None]) -> Watch:
        return self._watch(self._ledger(ledger_id), callback)

    # logs ----------------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> Version:
        return self._base.create_with_parents(self._log(path, writing=True), data)

    def read(self, path: str) -> Versioned:
        return self._base.get(self._log(path))

    def read_many(self, paths: Iterable[str]) -> Iterator[tuple[str, Versioned | None]]:
        asked, left = tee(paths)
        found = self._base.get_many(map(self._log, asked))
        return ((path, stored) for (_, stored), path in zip(found, left, strict=False))

    def read_here(self, path: str) -> tuple[Versioned, str]:
        """Read both in one round trip: no answer is of a state before the one of the answer before it."""
        node = self._log(path)
        found, *told = self._base.read_together([("get", node), *self._cluster.questions()])
        if isinstance(found, Exception):
            raise found
        here = self._cluster.cluster_id_of(told)
        return found, here

    def write(self, path: str, data: bytes, version: Version) -> Version:
        return self._base.set(self._log(path), data, version)

    def delete(self, path: str, version: Version | None = None) -> None:
        self._base.remove(self._log(path), ANY_VERSION if version is None else version)

    def children(self, path: str) -> list[str]:
        return self._base.children(self._log(path) if path else self._log_root.find())

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        return self._watch(self._log(path), callback)

    # bookies ---------------------------------------------------------------------------------------------------------

    def bookies(self) -> BookieView:
        return self._bookies(None)

    def unregistered(self) -> str:
        return ""

    def watch_bookies(self, callback: Callable[[BookieView], None]) -> RegistryWatch:
        self._keeper.add(self._whereabouts)
        return self._started(BookiesWatch(self._keeper, self._bookies, callback))

    def resolve(self, bookie_id: BookieId) -> tuple[str, int]:
        return self._whereabouts.resolve(check_bookie_id(bookie_id))

    def registration(self, bookie_id: BookieId) -> Versioned | None:
        check_bookie_id(bookie_id)
        for readonly in (False, True):
            with suppress(NoNodeError):
                return self._base.get(self._registration_of(bookie_id, readonly))
        return None

    def register_bookie(self, bookie_id: BookieId, host: str, port: int, readonly: bool = False) -> Registration:
        """Wait for the node of an earlier process to go, as long as it may stay; raise NodeExistsError if it does (metadata.md 4.1).

        The payload of a node that belongs to this store's own session is left as it is.
        """
        payload = encode_service_info(bookie_service_info(host, port))
        registration = NodeRegistration(
            self._base,
            self._keeper,
            self._root,
            self._names,
            check_bookie_id(bookie_id),
            payload,
            readonly,
            held_s=self._held_s,
            on_close=self._forget,
        )
        with self._lock:
            if bookie_id in self._registered:
                raise NodeExistsError(f"bookie {bookie_id} is registered by this process already", bookie=bookie_id)
            self._registered[bookie_id] = registration
        try:
            registration.start()
        except BaseException:
            self._forget(registration)
            raise
        return registration

    def read_rack_map(self) -> Versioned:
        return self._base.get(self._rack_map)

    def write_rack_map(self, data: bytes, version: Version | None) -> Version:
        return self._base.create_with_parents(self._rack_map, data) if version is None else self._base.set(self._rack_map, data, version)

    def watch_rack_map(self, callback: Callable[[], None]) -> Watch:
        return self._watch(self._rack_map, callback)

    def instance_id(self) -> str | None:
        try:
            return self._base.get(f"{self._root}/{self._names.instance_id}").data.decode("ascii", "replace")
        except NoNodeError:
            return None

    def layout(self) -> str | None:
        try:
            return self._stored_manager()
        except NoNodeError:
            return None

    def cluster_id(self) -> str:
        return self._cluster.cluster_id()

    def check_cluster(self) -> None:
        self._cluster.check()

    @property
    def known_cluster(self) -> str:
        return self._cluster.first

    @property
    def cluster_has_changed(self) -> bool:
        return self._cluster.has_changed

    @property
    def log_root(self) -> str:
        return self._log_root.find().removeprefix(self._prefix)

    def other_log_roots(self) -> tuple[str, ...] | None:
        found = self._log_root.others()
        return None if found is None else tuple(root.removeprefix(self._prefix) for root in found)

    def cluster_near(self, cluster_id: str) -> str | None:
        return self._cluster.near(cluster_id)

    def log_elsewhere(self, name: str) -> str | None:
        found = self._log_root.elsewhere(name)
        return None if found is None else found.removeprefix(self._prefix)

    def read_cookie(self, bookie_id: BookieId) -> Versioned:
        return self._base.get(self._cookie(bookie_id))

    def write_cookie(self, bookie_id: BookieId, data: bytes, version: Version | None) -> Version:
        path = self._cookie(bookie_id)
        return self._base.create_with_parents(path, data, top=self._root) if version is None else self._base.set(path, data, version)

    def delete_cookie(self, bookie_id: BookieId, version: Version) -> None:
        self._base.remove(self._cookie(bookie_id), version)

    def underreplication(self) -> UnderreplicationStore:
        return self._underreplication

    def cookies(self) -> list[BookieId]:
        return [name for name in self._base.children(f"{self._root}/cookies") if is_bookie_id(name)]  # whatever else lies there is none

    def initialize_cluster(self, *, new: bool = False) -> str:
        """Make root, available, available/readonly and INSTANCEID in one transaction, then LAYOUT (metadata.md 1.2)."""
        if new:
            self._cluster.check_free()
        mine = str(uuid.uuid4())
        deadline = time.monotonic() + self._timeout_s
        while not self._base.exists(self._root):
            try:
                self._create_cluster(mine)
            except (NodeExistsError, MetadataOutcomeUnknownError):
                pass  # somebody else was faster, or it was this call, which INSTANCEID tells
            except NoNodeError:
                self._base.make_parents(self._root)
            if time.monotonic() > deadline:
                raise MetadataUnavailableError("the new cluster could not be written in time")
        found = self.instance_id()
        if found is None:
            raise MetadataError(f"{self._root} exists but is no cluster: it has no {self._names.instance_id}")
        if found == mine:
            self._create_layout()
        elif new:
            raise ClusterExistsError(f"somebody else has made a cluster at {self._root} just now: {found}")
        return found

    def count_in(self, counts: MetadataCounts) -> None:
        self._counts = counts
        self._base.count_in(counts)

    def is_connected(self) -> bool:
        return self._base_link.connected

    def losses(self) -> int:
        return self._whereabouts.losses

    def close(self) -> None:
        """End the session, and with it the registrations. Repeating this has no effect, nor has a call in a forked child."""
        if not self._base_link.home.is_here or is_ending():
            return
        self._close(STOP_S)

    def _close(self, wait_s: float) -> None:
        self._closed = True  # from here on the end of the connection is no outage
        self._keeper.close()
        self._base_link.close(wait_s)
        self._keeper.join()

    # cluster ---------------------------------------------------------------------------------------------------------

    def _manager(self) -> str:
        """Return the ledger manager of the cluster. LAYOUT is read until it exists; without it the default holds (metadata.md 1.3)."""
        if self._layout is None:
            try:
                stored = self._stored_manager()
            except NoNodeError:
                return self._wanted_manager or "hierarchical"
            if self._wanted_manager not in (None, stored):
                raise LayoutMismatchError(f"the URI asks for the {self._wanted_manager} layout, the cluster has {stored}")
            self._layout = stored
        return self._layout

    def _stored_manager(self) -> str:
        """Return the ledger manager that LAYOUT names now. Raises NoNodeError, and MetadataFormatError for one that is not known."""
        return paths.manager_of_layout(self._base.get(f"{self._root}/{self._names.layout}").data)

    def _create_layout(self) -> None:
        layout = paths.layout_bytes(self._wanted_manager or "hierarchical")
        path = f"{self._root}/LAYOUT"
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                self._base.create(path, layout)
                return
            except NodeExistsError:
                if self._base.get(path).data != layout:
                    raise LayoutMismatchError(f"{path} was written by another process with another layout") from None
                return
            except MetadataOutcomeUnknownError:
                if time.monotonic() > deadline:
                    raise

    # paths -----------------------------------------------------------------------------------------------------------

    def _ledger(self, ledger_id: int) -> str:
        return self._root + paths.ledger_path(self._manager(), ledger_id)

    def _log(self, path: str, *, writing: bool = False) -> str:
        return f"{self._log_root.find(writing=writing)}/{paths.check_relative(path)}"

    def _cookie(self, bookie_id: BookieId) -> str:
        return f"{self._root}/cookies/{check_bookie_id(bookie_id)}"

    def _walk(self, agreement: Agreement, path: str, digits: str, levels: tuple[re.Pattern[str], ...]) -> Iterator[int]:
        names = agreement.read(lambda: self._base.children(path))
        for name in sorted(filter(levels[0].fullmatch, names), key=lambda name: (len(name), name)):
            joined = digits + name.removeprefix("L")
            if len(levels) > 1:
                yield from self._walk(agreement, f"{path}/{name}", joined, levels[1:])
            elif int(joined) <= paths.LEDGER_ID_MAX:
                yield int(joined)

    # watches -----------------------------------------------------------------------------------------------------------

    def _on_connection(self, connected: bool) -> None:
        self._whereabouts.on_connection()
        if connected:
            self._keeper.look_at_all()
        elif self._counts is not None and not self._closed:
            self._counts.outages.value += 1

    def _stamp(self, path: str, watch: Callable[[Any], None]) -> Stamp:
        stat = self._base.stat(path, watch)
        return None if stat is None else (stat.created, stat.changed)

    def _watch(self, path: str, callback: Callable[[], None]) -> Watch:
        return self._started(NodeWatch(self._keeper, self._arms, path, self._stamp, callback))

    def _started(self, watch: W) -> W:
        """Start a watch, and leave nothing of it behind if that fails."""
        self._keeper.add(watch)
        try:
            watch.start()
        except BaseException:
            watch.cancel()
            raise
        return watch

    def _bookies(self, watch: Callable[[Any], None] | None) -> BookieView:
        return self._listed(watch)

    def _listed(self, watch: Callable[[Any], None] | None) -> BookieView:
        """Return the bookies that have a registration."""
        # in ZooKeeper's layout "readonly" stands among the writable ones, and is no bookie id
        places = (f"{self._root}/{self._names.readonly}", f"{self._root}/{self._names.writable}")
        readonly, writable = (set(filter(is_bookie_id, self._base.children(place, watch))) for place in places)
        self._whereabouts.on_list(frozenset(writable | readonly))
        return BookieView(tuple(sorted(writable)), tuple(sorted(readonly - writable)))

    # registrations -----------------------------------------------------------------------------------------------------

    def _registration_of(self, bookie_id: BookieId, readonly: bool) -> str:
        return self._names.registration(self._root, bookie_id, readonly)

    def _registration_changed(self, bookie_id: BookieId) -> None:
        for watch in self._keeper.each(BookiesWatch):
            watch.registration_changed(bookie_id)

    def _forget(self, registration: NodeRegistration) -> None:
        self._keeper.remove(registration)
        with self._lock:
            if self._registered.get(registration.bookie_id) is registration:
                del self._registered[registration.bookie_id]
