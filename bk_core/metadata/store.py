"""The metadata store interface: the duties of every store, with each method's errors.

A store works on paths and bytes (``Versioned``) for logs and on ledgers through a ledger manager (paths.py). All calls block; the client
makes them on its own metadata thread. Any call may raise MetadataUnavailableError (definitely not applied, retriable). Any *write* may
raise MetadataOutcomeUnknownError (META-12: the caller repeats the identical request until the outcome is definite).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from bk_core.metadata.underreplication import UnderreplicationStore
from bk_core.metrics.client import MetadataCounts
from bk_core.protocol.ledger.metadata import BookieId

Version = int  # opaque outside the stores; it grows with every write


@dataclass(frozen=True, slots=True)
class Versioned:
    """Bytes read together with the version that a compare-and-set of them must name (META-11)."""

    data: bytes
    version: Version
    created_ms: int | None = None  # when it was made, on the store's own clock
    modified_ms: int | None = None  # when it was written last, on the store's own clock


@dataclass(frozen=True, slots=True)
class BookieView:
    """Registered bookies, ids in sorted order. A bookie in both lists counts as writable (metadata.md 4.1).

    ``anew`` has the bookies that registered anew so soon after their last registration was gone that the view before has them, too. Only
    watches tell of them, and only of bookies whose addresses their store was asked for.
    """

    writable: tuple[BookieId, ...]
    readonly: tuple[BookieId, ...]
    anew: frozenset[BookieId] = field(default=frozenset(), compare=False)

    @property
    def registered(self) -> frozenset[BookieId]:
        """The ids of the registered bookies, writable or read-only."""
        return frozenset((*self.writable, *self.readonly))

    def __repr__(self) -> str:
        return f"<BookieView {len(self.writable)} writable, {len(self.readonly)} read-only>"

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        from bk_core.display import ledgers, table

        return table.html(ledgers.bookies(ledgers.bookie_states(self.writable, self.readonly)))


BY_ROOT = "root-"
"""Prefix of the identity of a cluster without INSTANCEID; the transaction that made its root follows (OWN-1)."""


def changed_cluster(root: str, before: str, now: str) -> str:
    """Return the text of ClusterChangedError."""
    named = "It got an INSTANCEID since, " if before.startswith(BY_ROOT) and not now.startswith(BY_ROOT) else "It "
    return (
        f"{root} holds cluster {now} now; it was cluster {before} when this client connected. {named}was initialised anew, or this is "
        "another metadata store: connect again"
    )


class Watch(Protocol):
    """A callback that is called until it is cancelled."""

    def cancel(self) -> None:
        """Stop calling the callback. A call that is under way may still end. Idempotent."""


class RegistryWatch(Watch, Protocol):
    """A watch of the registered bookies. It calls back on one thread at a time, and with views in the order in which it saw them."""

    def refresh(self) -> None:
        """Look at the registered bookies now, and call back if they differ from those that were told last. It raises what ``bookies``
        raises, and does nothing once the watch is cancelled."""


class Registration(Protocol):
    """The registration of a running bookie. It registers again after a lost session."""

    def set_readonly(self, readonly: bool) -> None:
        """Register the bookie as read-only, or as writable again. Nothing happens once the registration was taken away."""

    def close(self) -> None:
        """Take the registration away. Idempotent."""


class MetadataStore(Protocol):
    """The metadata of one cluster."""

    # ledgers: none is made, changed or deleted in another cluster than the one that this client began with (OWN-10). The calls raise
    # ClusterChangedError or NoClusterError then, and nothing is changed. ------------------------------------------------------
    def new_ledger_id(self) -> int:
        """Return an id that was never issued before (CR-3, metadata.md 2.5)."""

    def create_ledger(self, ledger_id: int, data: bytes) -> Version:
        """Create the metadata if absent. Raises NodeExistsError or MetadataOutcomeUnknownError."""

    def read_ledger(self, ledger_id: int) -> Versioned:
        """Return the metadata. Raises NoNodeError if there is no such ledger."""

    def read_ledgers(self, ledger_ids: Iterable[int]) -> Iterator[tuple[int, Versioned | None]]:
        """Yield each id with its metadata, in their order, None for a ledger that does not exist. Many are asked for at once."""

    def gone_ledgers(self, ledger_ids: Iterable[int]) -> list[int]:
        """Return those of the ledgers that do not exist, for somebody who will destroy what is left of them. Where several servers can be
        asked, more than half of them must say so and none the opposite; other stores are read behind a write of most servers (BKE-10).
        Raises MetadataUnavailableError if too few answer, and MetadataContradictionError if they contradict each other."""

    def write_ledger(self, ledger_id: int, data: bytes, version: Version) -> Version:
        """Write the metadata by compare-and-set. Raises VersionConflictError, NoNodeError or MetadataOutcomeUnknownError."""

    def delete_ledger(self, ledger_id: int) -> None:
        """Delete the metadata whatever the version; an absent ledger is a success."""

    def list_ledgers(self) -> Iterator[int]:
        """Yield all ledger ids, ascending."""

    def watch_ledger(self, ledger_id: int, callback: Callable[[], None]) -> Watch:
        """Call ``callback`` (from any thread) after each change or deletion, until cancelled."""

    # logs: small values beside, never under, the ledgers root -------------------------------------------------------
    def create(self, path: str, data: bytes) -> Version:
        """Create a node. ``path`` is relative to the log root, e.g. ``logs/flights``; parents are made. Raises NodeExistsError."""

    def read(self, path: str) -> Versioned:
        """Return the node. Raises NoNodeError if there is none."""

    def read_many(self, paths: Iterable[str]) -> Iterator[tuple[str, Versioned | None]]:
        """Yield each path with its node, in their order, None for one that does not exist. Many are asked for at once."""

    def read_here(self, path: str) -> tuple[Versioned, str]:
        """Return ``read``, and a ``cluster_id`` that is no older than the value (OWN-3), in one round trip. Raises NoNodeError for the path
        first; then the errors of ``cluster_id``."""

    def write(self, path: str, data: bytes, version: Version) -> Version:
        """Write by compare-and-set. Raises VersionConflictError, NoNodeError or MetadataOutcomeUnknownError."""

    def delete(self, path: str, version: Version | None = None) -> None:
        """Delete the node; an absent one is a success. Raises VersionConflictError if ``version`` is given and differs."""

    def children(self, path: str) -> list[str]:
        """Return the sorted names; [] if the path does not exist."""

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        """Call ``callback`` (from any thread) after the node at ``path`` is created, changed or deleted, until cancelled."""

    def clock_ms(self) -> int:
        """Return milliseconds since 1970 on the store's own clock: at most the time that it would stamp on a node written now, a moment
        less. Raises MetadataDeniedError if this client may not write, so only decisions by age should ask."""

    # bookies ---------------------------------------------------------------------------------------------------
    def bookies(self) -> BookieView:
        """Return the bookies that are registered now, writable and read-only."""

    def unregistered(self) -> str:
        """Return why a bookie that serves may have no registration in this cluster, for messages; "" where one without it is down."""

    def watch_bookies(self, callback: Callable[[BookieView], None]) -> RegistryWatch:
        """Call ``callback`` at once, then after each change, and when bookies registered ``anew``; from any thread."""

    def resolve(self, bookie_id: BookieId) -> tuple[str, int]:
        """Return host and port. Falls back to parsing ``host:port``; raises BookieUnavailableError if neither works (metadata.md 4.4)."""

    def registration(self, bookie_id: BookieId) -> Versioned | None:
        """Return what a registered bookie says of itself (service_info.py), with the time of its registration; None if it is not
        registered."""

    def register_bookie(self, bookie_id: BookieId, host: str, port: int, readonly: bool = False) -> Registration:
        """Register a bookie that is reached at ``host`` and ``port``. Raises NodeExistsError if another process has registered it and keeps
        its registration."""

    # racks: one value beside the ledgers root, written by whoever runs the bookies (racks.py, metadata.md 1.5) -------------------
    def read_rack_map(self) -> Versioned:
        """Return the mapping. Raises NoNodeError if the cluster has none."""

    def write_rack_map(self, data: bytes, version: Version | None) -> Version:
        """Create the mapping if ``version`` is None (NodeExistsError), else write it by compare-and-set."""

    def watch_rack_map(self, callback: Callable[[], None]) -> Watch:
        """Call ``callback`` (from any thread) after each change or deletion, until cancelled."""

    # the cluster -------------------------------------------------------------------------------------------------
    def instance_id(self) -> str | None:
        """Return the INSTANCEID of the cluster; None if it has none."""

    def layout(self) -> str | None:
        """Return the layout of the ledgers, such as "hierarchical", as LAYOUT tells it now; None without a LAYOUT. Raises
        MetadataFormatError for one that cannot be understood."""

    def cluster_id(self) -> str:
        """Return the identity of the cluster at the ledgers root, read anew at each call: INSTANCEID or, where an old cluster has none, the
        transaction that made the root (OWN-1). Raises NoClusterError, and ClusterChangedError if it was another one at this store's first
        call (OWN-2)."""

    def check_cluster(self) -> None:
        """Raise what ``cluster_id`` raises, and NoClusterError if the cluster has lost its LAYOUT. Callers ask this before they believe
        that something does not exist (OWN-2)."""

    @property
    def known_cluster(self) -> str:
        """The identity that this store's first call found; "" before that call. No server is asked."""

    @property
    def cluster_has_changed(self) -> bool:
        """True once a call has raised ClusterChangedError; a store that is opened anew serves the new cluster (OWN-2)."""

    @property
    def log_root(self) -> str:
        """The path of this cluster's logs (OWN-8); absolute, without the chroot."""

    def other_log_roots(self) -> tuple[str, ...] | None:
        """Return None unless the log root was given by hand and does not exist; then return the log roots near it and near the ledgers
        root."""

    def cluster_near(self, cluster_id: str) -> str | None:
        """Return the root of the cluster with this identity, if it lies in the same metadata store, near this one's root."""

    def log_elsewhere(self, name: str) -> str | None:
        """Return another log root that holds a log of this name which may be this cluster's, made by an older program (OWN-8)."""

    def read_cookie(self, bookie_id: BookieId) -> Versioned:
        """Return the cookie. Raises NoNodeError if there is none."""

    def write_cookie(self, bookie_id: BookieId, data: bytes, version: Version | None) -> Version:
        """Create the cookie if ``version`` is None (NodeExistsError), else write it by compare-and-set."""

    def delete_cookie(self, bookie_id: BookieId, version: Version) -> None:
        """Delete the cookie. Raises VersionConflictError if it was changed since ``version``, and NoNodeError if there is none."""

    def underreplication(self) -> UnderreplicationStore:
        """Return the marks and locks of re-replication (underreplication.py)."""

    def cookies(self) -> list[BookieId]:
        """Return the bookies that have a cookie, registered or not, ascending."""

    def initialize_cluster(self, *, new: bool = False) -> str:
        """Make root, LAYOUT, INSTANCEID and available if the root is absent; return the instance id. An existing cluster's instance id is
        returned; with ``new``, ClusterExistsError is raised instead, and also for a place in another cluster (OWN-13)."""

    def count_in(self, counts: MetadataCounts) -> None:
        """Count requests, their times and their failures in ``counts`` from now on."""

    def is_connected(self) -> bool:
        """Return False while the store knows that it has no connection, so that a call would wait for one."""

    def losses(self) -> int:
        """Return a number that grows whenever the connection is lost or made again. What comes and goes in between is told to no watch."""

    def close(self) -> None:
        """End the session and all watches and registrations. Idempotent."""
