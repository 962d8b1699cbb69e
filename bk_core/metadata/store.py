"""The metadata store interface: what every store must do, with each method's errors.

A store works on paths and bytes (``Node`` values) for logs and on ledgers through a ledger manager (paths.py). All calls block; the
client makes them on its own metadata thread. Any call may raise MetadataUnavailableError (definitely not applied, retriable). Any
*write* may raise MetadataOutcomeUnknownError (META-12: the caller repeats the identical request until the outcome is definite).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from bk_core.metadata.underreplication import UnderreplicationStore
from bk_core.protocol.ledger.metadata import BookieId

Version = int  # opaque outside the stores: grows by every write


@dataclass(frozen=True, slots=True)
class Versioned:
    """Bytes read together with the version that a compare-and-set of them must name (META-11)."""

    data: bytes
    version: Version
    created_ms: int | None = None  # when it was made, on the store's own clock
    modified_ms: int | None = None  # when it was written last, on the store's own clock


@dataclass(frozen=True, slots=True)
class BookieView:
    """Registered bookies, ids in sorted order. A bookie in both lists counts as writable (metadata.md 4.1)."""

    writable: tuple[BookieId, ...]
    readonly: tuple[BookieId, ...]


BY_ROOT = "root-"
"""Prefix of the identity of a cluster without INSTANCEID: the transaction that made its root follows (OWN-1)."""


def changed_cluster(root: str, before: str, now: str) -> str:
    """The text of ClusterChangedError."""
    named = "It got an INSTANCEID since, " if before.startswith(BY_ROOT) and not now.startswith(BY_ROOT) else "It "
    return (
        f"{root} holds cluster {now} now; it was cluster {before} when this client connected. {named}was initialised anew, or this is "
        "another metadata store: connect again"
    )


class Watch(Protocol):
    def cancel(self) -> None: ...


class Registration(Protocol):
    """A live bookie registration; keeps itself alive and re-registers after a lost session."""

    def set_readonly(self, readonly: bool) -> None: ...
    def close(self) -> None: ...


class MetadataStore(Protocol):
    # ledgers: none is made, changed or deleted in another cluster than the one that this client began with (OWN-10) ----------
    # ClusterChangedError, NoClusterError, with nothing changed
    def new_ledger_id(self) -> int:
        """An id never issued before (CR-3, metadata.md 2.5)."""

    def create_ledger(self, ledger_id: int, data: bytes) -> Version:
        """Create if absent. NodeExistsError; MetadataOutcomeUnknownError."""

    def read_ledger(self, ledger_id: int) -> Versioned:
        """NoNodeError if there is no such ledger."""

    def write_ledger(self, ledger_id: int, data: bytes, version: Version) -> Version:
        """Compare-and-set. VersionConflictError, NoNodeError, MetadataOutcomeUnknownError."""

    def delete_ledger(self, ledger_id: int) -> None:
        """Delete whatever the version; an absent ledger is success."""

    def list_ledgers(self) -> Iterator[int]:
        """All ledger ids, ascending."""

    def watch_ledger(self, ledger_id: int, callback: Callable[[], None]) -> Watch:
        """Call ``callback`` (from any thread) after each change or deletion, until cancelled."""

    # logs: small values beside, never under, the ledgers root -------------------------------------------------------
    def create(self, path: str, data: bytes) -> Version:
        """``path`` is relative to the log root, e.g. ``logs/flights``. NodeExistsError. Parents are made."""

    def read(self, path: str) -> Versioned:
        """NoNodeError."""

    def read_here(self, path: str) -> tuple[Versioned, str]:
        """``read``, and ``cluster_id`` of no earlier state than the value is of (OWN-3), both in one round trip. NoNodeError of the path
        first; then what ``cluster_id`` raises."""

    def write(self, path: str, data: bytes, version: Version) -> Version:
        """Compare-and-set. VersionConflictError, NoNodeError, MetadataOutcomeUnknownError."""

    def delete(self, path: str, version: Version | None = None) -> None:
        """Absent is success. VersionConflictError if ``version`` is given and differs."""

    def children(self, path: str) -> list[str]:
        """Sorted names; [] if the path does not exist."""

    def watch(self, path: str, callback: Callable[[], None]) -> Watch: ...

    def clock_ms(self) -> int:
        """Milliseconds since 1970 on the store's own clock: at most what it would stamp on a node that is written now, a moment less.
        MetadataDeniedError for who may not write: only what goes by age may ask."""

    # bookies ---------------------------------------------------------------------------------------------------
    def bookies(self) -> BookieView: ...

    def watch_bookies(self, callback: Callable[[BookieView], None]) -> Watch:
        """Calls back once at once and then after each change, from any thread."""

    def resolve(self, bookie_id: BookieId) -> tuple[str, int]:
        """Host and port. Falls back to parsing ``host:port``; BookieUnavailableError if neither works (metadata.md 4.4)."""

    def register_bookie(self, bookie_id: BookieId, host: str, port: int, readonly: bool = False) -> Registration: ...

    # racks: one value beside the ledgers root, written by whoever runs the bookies (racks.py, metadata.md 1.5) -------------------
    def read_rack_map(self) -> Versioned:
        """NoNodeError if the cluster has none."""

    def write_rack_map(self, data: bytes, version: Version | None) -> Version:
        """Create when ``version`` is None (NodeExistsError), else compare-and-set."""

    def watch_rack_map(self, callback: Callable[[], None]) -> Watch:
        """Call ``callback`` (from any thread) after each change or deletion, until cancelled."""

    # the cluster -------------------------------------------------------------------------------------------------
    def instance_id(self) -> str | None: ...

    def cluster_id(self) -> str:
        """Identity of the cluster at the ledgers root, read anew at each call: INSTANCEID, or where an old cluster has none, when the root
        was made (OWN-1). NoClusterError; ClusterChangedError if it was another one at this store's first call (OWN-2)."""

    def check_cluster(self) -> None:
        """As ``cluster_id``, and NoClusterError too when the cluster has lost its LAYOUT (OWN-2). Before "does not exist" is believed."""

    @property
    def cluster_has_changed(self) -> bool:
        """True once a call has raised ClusterChangedError (OWN-2): a store opened anew serves the cluster there."""

    @property
    def log_root(self) -> str:
        """The path of this cluster's logs (OWN-8); absolute, without the chroot."""

    def other_log_roots(self) -> tuple[str, ...] | None:
        """None unless the log root was given by hand and does not exist; then the log roots near it and near the ledgers root."""

    def cluster_near(self, cluster_id: str) -> str | None:
        """The root of the cluster with this identity, if it lies in the same metadata store, near this one's root."""

    def log_elsewhere(self, name: str) -> str | None:
        """Another log root that holds a log of this name which may be this cluster's, made by an older program (OWN-8)."""

    def read_cookie(self, bookie_id: BookieId) -> Versioned:
        """NoNodeError."""

    def write_cookie(self, bookie_id: BookieId, data: bytes, version: Version | None) -> Version:
        """Create when ``version`` is None (NodeExistsError), else compare-and-set."""

    def delete_cookie(self, bookie_id: BookieId, version: Version) -> None: ...

    def underreplication(self) -> UnderreplicationStore:
        """Marks and locks of re-replication (underreplication.py)."""

    def cookies(self) -> list[BookieId]:
        """Bookies that have a cookie, registered or not, ascending."""

    def initialize_cluster(self, *, new: bool = False) -> str:
        """Make root, LAYOUT, INSTANCEID, available if the root is absent; return the instance id. Existing cluster: its instance id, or
        with ``new`` ClusterExistsError, as for a place in another cluster (OWN-13)."""

    def is_connected(self) -> bool:
        """False while the store knows that it has no connection, so that a call would wait for one."""

    def close(self) -> None: ...
