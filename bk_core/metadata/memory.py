"""A metadata store in this process's memory, for tests, simulations and examples. Nothing outlives the process."""

from __future__ import annotations

import time
import uuid
from _thread import RLock
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock

from bk_core.errors import (
    CLIENT_CLOSED,
    BookieUnavailableError,
    ClientClosedError,
    ClusterChangedError,
    ClusterExistsError,
    MetadataError,
    NoClusterError,
    NodeExistsError,
    NoNodeError,
    VersionConflictError,
)
from bk_core.metadata import paths
from bk_core.metadata.occupied import ByPlace, by_place, check_latest, check_nobodys
from bk_core.metadata.service_info import address_of, bookie_service_info, check_bookie_id, encode_service_info
from bk_core.metadata.store import BookieView, Registration, RegistryWatch, Version, Versioned, Watch, changed_cluster
from bk_core.metadata.underreplication import MemoryUnderreplication, MemoryUnderreplicationState, UnderreplicationStore
from bk_core.metrics.client import MetadataCounts
from bk_core.protocol.ledger.metadata import BookieId

_BOOKIES = "bookies"  # key under which watches of the bookie list are kept
_RACKS = "racks"


@dataclass(slots=True)
class _World:
    """The state that all stores of one name share. Keys of ``nodes``: ``ledger/<id>``, ``log/<path>``, ``cookie/<id>``."""

    lock: RLock = field(default_factory=RLock)
    nodes: dict[str, Versioned] = field(default_factory=dict)
    registrations: dict[BookieId, _MemoryRegistration] = field(default_factory=dict)
    watches: dict[str, list[_MemoryWatch]] = field(default_factory=dict)
    next_ledger_id: int = 0
    instance_id: str | None = None
    underreplication: MemoryUnderreplicationState = field(default_factory=MemoryUnderreplicationState)


_WORLDS: dict[str, _World] = {}
_WORLDS_LOCK = Lock()


class MemoryStore:
    """A store in memory. Stores opened under one name see the same nodes. Callbacks run on the thread that made the change, after it."""

    __slots__ = ("_closed", "_cluster", "_mine", "_name", "_occupied", "_underreplication", "_world", "cluster_has_changed")
    log_root = "/logs"

    def __init__(self, name: str) -> None:
        self._name = name
        self._cluster: str | None = None
        self.cluster_has_changed = False
        with _WORLDS_LOCK:
            self._world = _WORLDS.setdefault(name, _World())
        self._underreplication = MemoryUnderreplication(self._world.underreplication)
        self._occupied: tuple[dict[BookieId, bytes], ByPlace] = ({}, {})  # with the registrations of which it tells
        self._mine: list[_MemoryWatch | _MemoryRegistration] = []
        self._closed = False

    # ledgers -----------------------------------------------------------------------------------------------------

    def new_ledger_id(self) -> int:
        self._check_open()
        with self._world.lock:
            ledger_id = self._world.next_ledger_id
            self._world.next_ledger_id += 1
        return ledger_id

    def create_ledger(self, ledger_id: int, data: bytes) -> Version:
        self._check_unchanged()
        return self._create(_ledger(ledger_id), data)

    def read_ledger(self, ledger_id: int) -> Versioned:
        return self._read(_ledger(ledger_id))

    def read_ledgers(self, ledger_ids: Iterable[int]) -> Iterator[tuple[int, Versioned | None]]:
        for ledger_id in ledger_ids:
            yield ledger_id, self._read_if_any(_ledger(ledger_id))

    def gone_ledgers(self, ledger_ids: Iterable[int]) -> list[int]:
        return [ledger_id for ledger_id, stored in self.read_ledgers(ledger_ids) if stored is None]

    def write_ledger(self, ledger_id: int, data: bytes, version: Version) -> Version:
        self._check_unchanged()
        return self._write(_ledger(ledger_id), data, version)

    def delete_ledger(self, ledger_id: int) -> None:
        self._check_unchanged()
        self._delete(_ledger(ledger_id), None)

    def list_ledgers(self) -> Iterator[int]:
        self._check_open()
        with self._world.lock:
            ids = sorted(int(key[7:]) for key in self._world.nodes if key.startswith("ledger/"))
        return iter(ids)

    def watch_ledger(self, ledger_id: int, callback: Callable[[], None]) -> Watch:
        return self._watch(_ledger(ledger_id), callback)

    # logs ----------------------------------------------------------------------------------------------------------

    def create(self, path: str, data: bytes) -> Version:
        return self._create(_log(path), data, parents=True)

    def read(self, path: str) -> Versioned:
        return self._read(_log(path))

    def read_many(self, paths: Iterable[str]) -> Iterator[tuple[str, Versioned | None]]:
        for path in paths:
            yield path, self._read_if_any(_log(path))

    def read_here(self, path: str) -> tuple[Versioned, str]:
        return self.read(path), self.cluster_id()

    def write(self, path: str, data: bytes, version: Version) -> Version:
        return self._write(_log(path), data, version)

    def delete(self, path: str, version: Version | None = None) -> None:
        self._delete(_log(path), version)

    def children(self, path: str) -> list[str]:
        self._check_open()
        prefix = f"{_log(path)}/" if path else "log/"  # "" is the log root
        with self._world.lock:
            return sorted({key[len(prefix) :].partition("/")[0] for key in self._world.nodes if key.startswith(prefix)})

    def watch(self, path: str, callback: Callable[[], None]) -> Watch:
        return self._watch(_log(path), callback)

    def clock_ms(self) -> int:
        self._check_open()
        return time.time_ns() // 1_000_000

    # bookies ---------------------------------------------------------------------------------------------------------

    def bookies(self) -> BookieView:
        self._check_open()
        with self._world.lock:
            registrations = sorted(self._world.registrations.items())
        return BookieView(
            tuple(bookie_id for bookie_id, registration in registrations if not registration.readonly),
            tuple(bookie_id for bookie_id, registration in registrations if registration.readonly),
        )

    def unregistered(self) -> str:
        return ""

    def watch_bookies(self, callback: Callable[[BookieView], None]) -> RegistryWatch:
        watch = _MemoryBookiesWatch(self.bookies, callback)
        watch.begin(self._watch(_BOOKIES, watch.tell))
        return watch

    def resolve(self, bookie_id: BookieId) -> tuple[str, int]:
        found = self.registration(bookie_id)
        address = address_of(bookie_id, None if found is None else found.data)
        if found is None:
            check_nobodys(bookie_id, address, self._by_place())
        else:
            with self._world.lock:
                order = {bookie: number for number, bookie in enumerate(self._world.registrations)}
            check_latest(bookie_id, address, self._by_place(), order.get)
        return address

    def _by_place(self) -> ByPlace:
        """Return the registered bookies by their addresses. It is made anew when other bookies or others of their addresses are there."""
        with self._world.lock:
            there = {bookie_id: registration.payload for bookie_id, registration in self._world.registrations.items()}
        kept, found = self._occupied
        if kept != there:
            found = by_place(_addresses(there))
            self._occupied = there, found
        return found

    def registration(self, bookie_id: BookieId) -> Versioned | None:
        self._check_open()
        with self._world.lock:
            found = self._world.registrations.get(bookie_id)
        return None if found is None else Versioned(found.payload, 0, found.created_ms, found.created_ms)

    def register_bookie(self, bookie_id: BookieId, host: str, port: int, readonly: bool = False) -> Registration:
        self._check_open()
        payload = encode_service_info(bookie_service_info(host, port))
        registration = _MemoryRegistration(self._world, check_bookie_id(bookie_id), payload, readonly)
        with self._world.lock:
            if bookie_id in self._world.registrations:
                raise NodeExistsError(f"bookie {bookie_id} is registered already", bookie=bookie_id)
            self._world.registrations[bookie_id] = registration
            self._mine.append(registration)
        _notify(self._world, _BOOKIES)
        return registration

    def read_rack_map(self) -> Versioned:
        return self._read(_RACKS)

    def write_rack_map(self, data: bytes, version: Version | None) -> Version:
        return self._create(_RACKS, data) if version is None else self._write(_RACKS, data, version)

    def watch_rack_map(self, callback: Callable[[], None]) -> Watch:
        return self._watch(_RACKS, callback)

    def instance_id(self) -> str | None:
        self._check_open()
        return self._world.instance_id

    def layout(self) -> str | None:
        return None if self.instance_id() is None else "memory"

    def cluster_id(self) -> str:
        found = self.instance_id()
        if found is None:
            raise NoClusterError(f"there is no cluster at memory://{self._name}; initialize_cluster() makes one")
        self._cluster = self._cluster or found
        if found != self._cluster:
            self.cluster_has_changed = True
            raise ClusterChangedError(changed_cluster(f"memory://{self._name}", self._cluster, found))
        return found

    @property
    def known_cluster(self) -> str:
        return self._cluster or ""

    def check_cluster(self) -> None:
        self.cluster_id()

    def _check_unchanged(self) -> None:
        """Check that the cluster is the same (OWN-10)."""
        if self._cluster is not None:
            self.cluster_id()

    def other_log_roots(self) -> tuple[str, ...] | None:
        return None

    def cluster_near(self, cluster_id: str) -> str | None:
        return None

    def log_elsewhere(self, name: str) -> str | None:
        return None

    def read_cookie(self, bookie_id: BookieId) -> Versioned:
        return self._read(_cookie(bookie_id))

    def write_cookie(self, bookie_id: BookieId, data: bytes, version: Version | None) -> Version:
        key = _cookie(bookie_id)
        return self._create(key, data) if version is None else self._write(key, data, version)

    def delete_cookie(self, bookie_id: BookieId, version: Version) -> None:
        self._delete(_cookie(bookie_id), version)

    def underreplication(self) -> UnderreplicationStore:
        self._check_open()
        return self._underreplication

    def cookies(self) -> list[BookieId]:
        self._check_open()
        with self._world.lock:
            return sorted(key.removeprefix("cookie/") for key in self._world.nodes if key.startswith("cookie/"))

    def initialize_cluster(self, *, new: bool = False) -> str:
        self._check_open()
        with self._world.lock:
            if new and self._world.instance_id is not None:
                raise ClusterExistsError(f"there is a cluster at memory://{self._name} already: {self._world.instance_id}")
            if self._world.instance_id is None:
                self._world.instance_id = str(uuid.uuid4())
            return self._world.instance_id

    def count_in(self, counts: MetadataCounts) -> None:
        """Count nothing: a store in memory sends no requests."""

    def is_connected(self) -> bool:
        return True

    def losses(self) -> int:
        return 0

    def close(self) -> None:
        """End this store's watches and registrations, as the end of a session does. The nodes stay."""
        if self._closed:
            return
        self._closed = True
        self._underreplication.release_all()
        for own in tuple(self._mine):  # each takes itself out
            own.cancel()
        self._mine.clear()

    # nodes -----------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosedError(CLIENT_CLOSED)

    def _create(self, key: str, data: bytes, parents: bool = False) -> Version:
        self._check_open()
        now_ms = self.clock_ms()
        node = Versioned(paths.check_value(data, key), 0, now_ms, now_ms)
        made = [key]
        with self._world.lock:
            if key in self._world.nodes:
                raise NodeExistsError(f"{key} exists")
            if parents:
                made += _absent_parents(self._world.nodes, key)
            for parent in made[1:]:
                self._world.nodes[parent] = Versioned(b"", 0, now_ms, now_ms)
            self._world.nodes[key] = node
        for name in made:
            _notify(self._world, name)
        return 0

    def _read(self, key: str) -> Versioned:
        self._check_open()
        with self._world.lock:
            node = self._world.nodes.get(key)
        if node is None:
            raise NoNodeError(f"{key} does not exist")
        return node

    def _read_if_any(self, key: str) -> Versioned | None:
        try:
            return self._read(key)
        except NoNodeError:
            return None

    def _write(self, key: str, data: bytes, version: Version) -> Version:
        self._check_open()
        data = paths.check_value(data, key)
        with self._world.lock:
            node = self._world.nodes.get(key)
            if node is None:
                raise NoNodeError(f"{key} does not exist")
            _check_version(key, node, version)
            self._world.nodes[key] = Versioned(data, version + 1, node.created_ms, self.clock_ms())
        _notify(self._world, key)
        return version + 1

    def _delete(self, key: str, version: Version | None) -> None:
        self._check_open()
        with self._world.lock:
            node = self._world.nodes.get(key)
            if node is None:
                return
            if version is not None:
                _check_version(key, node, version)
            if any(other.startswith(f"{key}/") for other in self._world.nodes):
                raise MetadataError(f"{key} has children and cannot be deleted")
            del self._world.nodes[key]
        _notify(self._world, key)

    def _watch(self, key: str, callback: Callable[[], None]) -> Watch:
        self._check_open()
        watch = _MemoryWatch(self._world, self._mine, key, callback)
        with self._world.lock:
            self._world.watches.setdefault(key, []).append(watch)
            self._mine.append(watch)
        return watch


class _MemoryWatch:
    __slots__ = ("_callback", "_key", "_of_store", "_world")

    def __init__(self, world: _World, of_store: list[_MemoryWatch | _MemoryRegistration], key: str, callback: Callable[[], None]) -> None:
        self._world, self._of_store, self._key, self._callback = world, of_store, key, callback

    def fire(self) -> None:
        self._callback()

    def cancel(self) -> None:
        with self._world.lock:
            watches = self._world.watches.get(self._key, [])
            for among in (watches, self._of_store):
                if self in among:
                    among.remove(self)


class _MemoryRegistration:
    __slots__ = ("_bookie_id", "_world", "created_ms", "payload", "readonly")

    def __init__(self, world: _World, bookie_id: BookieId, payload: bytes, readonly: bool) -> None:
        self._world, self._bookie_id = world, bookie_id
        self.payload, self.readonly = payload, readonly
        self.created_ms = time.time_ns() // 1_000_000

    def set_readonly(self, readonly: bool) -> None:
        self.readonly = readonly
        _notify(self._world, _BOOKIES)

    def close(self) -> None:
        with self._world.lock:
            if self._world.registrations.get(self._bookie_id) is not self:
                return
            del self._world.registrations[self._bookie_id]
        _notify(self._world, _BOOKIES)

    def cancel(self) -> None:
        self.close()


class _MemoryBookiesWatch:
    """Tells of the bookies, one thread after the other, so that no view comes behind a newer one."""

    def __init__(self, bookies: Callable[[], BookieView], callback: Callable[[BookieView], None]) -> None:
        self._bookies, self._callback = bookies, callback
        self._lock = RLock()
        self._seen: BookieView | None = None
        self._watch: Watch | None = None
        self._cancelled = False

    def begin(self, watch: Watch) -> None:
        self._watch = watch
        self.refresh()

    def tell(self) -> None:
        """Tell of a change. It is told also if nothing differs, because a bookie may have gone and come back."""
        self._look(even_if_same=True)

    def refresh(self) -> None:
        self._look(even_if_same=False)

    def _look(self, even_if_same: bool) -> None:
        with self._lock:
            if self._cancelled:
                return
            view = self._bookies()
            if even_if_same or view != self._seen:
                before, self._seen = self._seen, view
                try:
                    self._callback(view)
                except BaseException:  # an interrupt: the next look tells it
                    self._seen = before
                    raise

    def cancel(self) -> None:
        self._cancelled = True
        if self._watch is not None:
            self._watch.cancel()


def _addresses(registrations: Mapping[BookieId, bytes]) -> Iterator[tuple[BookieId, tuple[str, int]]]:
    for bookie_id, payload in registrations.items():
        with suppress(BookieUnavailableError):  # it is registered without an address
            yield bookie_id, address_of(bookie_id, payload)


def _notify(world: _World, key: str) -> None:
    with world.lock:
        watches = list(world.watches.get(key, ()))
    for watch in watches:
        watch.fire()


def _absent_parents(nodes: dict[str, Versioned], key: str) -> list[str]:
    parents = []
    parent = key.rpartition("/")[0]
    while parent != "log" and parent not in nodes:
        parents.append(parent)
        parent = parent.rpartition("/")[0]
    return parents


def _check_version(key: str, node: Versioned, version: Version) -> None:
    if node.version != version:
        raise VersionConflictError(f"{key} has version {node.version}, not {version}")


def _ledger(ledger_id: int) -> str:
    paths.long_path(ledger_id)  # checks the range
    return f"ledger/{ledger_id}"


def _log(path: str) -> str:
    return f"log/{paths.check_relative(path)}"


def _cookie(bookie_id: BookieId) -> str:
    return f"cookie/{check_bookie_id(bookie_id)}"
