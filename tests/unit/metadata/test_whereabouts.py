"""The addresses of bookies in stores that keep nodes: what is asked for them, over nodes in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bk_core.errors import BookieUnavailableError, MetadataUnavailableError, NoNodeError
from bk_core.metadata import occupied, open_store
from bk_core.metadata.service_info import ServiceInfo, bookie_service_info, encode_service_info
from bk_core.metadata.store import BookieView, Versioned
from bk_core.metadata.tree import whereabouts
from bk_core.metadata.tree.whereabouts import Whereabouts

MANY = 1000
DEAD = "10.9.9.9:3181"


class Cluster:
    """The registrations of a cluster, which counts what it is asked, and tells once of a change, as ZooKeeper does. ``listed`` is what a
    list has that is older than they are."""

    connected = True

    def __init__(self, many: int = 0) -> None:
        self.nodes = {f"/writable/b{number}": _at(f"10.0.{number // 250}.{number % 250}") for number in range(many)}
        self.watched: dict[str, Callable[[Any], None]] = {}
        self.order = {path: number for number, path in enumerate(self.nodes)}
        self.listed: tuple[str, ...] | None = None
        self.reads = self.lists = 0
        self.is_away = False
        self.changed: list[str] = []
        self.whereabouts = Whereabouts(
            self,  # type: ignore[arg-type]
            self,  # type: ignore[arg-type]
            lambda bookie, readonly: f"/{'readonly' if readonly else 'writable'}/{bookie}",
            self.list,
            self.changed.append,
            place="there",
            timeout_s=1.0,
        )

    def get(self, path: str, watch: Callable[[Any], None], _timeout_s: float) -> Versioned:
        self.reads += 1
        if self.is_away:
            raise MetadataUnavailableError("nobody answers")
        if path not in self.nodes:
            raise NoNodeError(path)
        self.watched[path] = watch
        return Versioned(self.nodes[path], 0)

    def list(self) -> BookieView:
        self.lists += 1
        writable, readonly = (
            tuple(sorted(path.rpartition("/")[2] for path in self.nodes if path.startswith(kind))) for kind in ("/w", "/r")
        )
        view = BookieView(writable if self.listed is None else self.listed, readonly)
        self.whereabouts.on_list(view.registered)
        return view

    def created(self, path: str) -> int | None:
        return self.order.get(path)

    def put(self, bookie: str, data: bytes | None) -> None:
        path = f"/writable/{bookie}"
        if data is None:
            del self.nodes[path], self.order[path]
        else:
            self.nodes[path] = data
            self.order.setdefault(path, max(self.order.values(), default=-1) + 1)
        watch = self.watched.pop(path, None)
        if watch is not None:
            watch(SimpleNamespace(path=path))

    def taken(self, bookie: str) -> str:
        """Return who is at the address in an id, "" if it is nobody."""
        try:
            self.whereabouts.resolve(bookie)
        except BookieUnavailableError as error:
            return str(error.args[0]).rpartition(" ")[2]
        return ""


def _at(host: str) -> bytes:
    return encode_service_info(bookie_service_info(host, 3181))


def test_the_registered_bookies_are_asked_for_once_for_all_that_are_not() -> None:
    cluster = Cluster(MANY)
    assert cluster.whereabouts.resolve(DEAD) == ("10.9.9.9", 3181)
    assert (cluster.reads, cluster.lists) == (2 + MANY, 1)
    for _ in range(3):
        assert not cluster.taken(DEAD) and cluster.taken("10.0.0.7:3181") == "b7"
    assert (cluster.reads, cluster.lists) == (2 + MANY + 6 * 2, 7)
    assert cluster.whereabouts._by_place() is cluster.whereabouts._by_place()


def test_a_change_of_a_registration_or_of_the_list_is_followed() -> None:
    cluster = Cluster(4)
    assert not cluster.taken(DEAD)
    cluster.put("b2", _at("10.9.9.9"))  # the list is the same
    assert cluster.changed == ["b2"] and cluster.taken(DEAD) == "b2" and not cluster.taken("10.0.0.2:3181")
    reads = cluster.reads
    cluster.put("b2", None)
    assert not cluster.taken(DEAD) and cluster.reads == reads + 2
    cluster.put("new", _at("10.9.9.9"))
    assert cluster.taken(DEAD) == "new"
    cluster.whereabouts.on_event(SimpleNamespace(path=None))  # the connection was lost, and any may have changed
    reads = cluster.reads
    assert cluster.taken(DEAD) == "new" and cluster.reads == reads + 2 + 4


def test_a_bookie_that_is_missing_for_a_moment_is_not_left_out_for_ever() -> None:
    """No watch tells when it is back, and the list is the same."""
    cluster = Cluster(2)
    cluster.listed = ("b0", "b1", "b9")
    assert not cluster.taken(DEAD)
    cluster.put("b9", _at("10.9.9.9"))
    assert cluster.taken(DEAD) == "b9"


def test_a_registered_bookie_without_an_address_is_asked_for_once() -> None:
    cluster = Cluster(2)
    cluster.put("b1", encode_service_info(ServiceInfo(())))
    assert not cluster.taken(DEAD)
    reads = cluster.reads
    assert not cluster.taken(DEAD) and cluster.reads == reads + 2
    with pytest.raises(BookieUnavailableError):
        cluster.whereabouts.resolve("b1")
    assert cluster.reads == reads + 2
    cluster.put("b1", _at("10.9.9.9"))
    assert cluster.taken(DEAD) == "b1" and cluster.whereabouts.resolve("b1") == ("10.9.9.9", 3181)


def test_bookies_that_are_gone_do_not_ask_about_each_other() -> None:
    """A list of bookies may be older than their registrations."""
    cluster = Cluster()
    cluster.listed = ("10.0.0.1:3181", "10.0.0.2:3181")
    assert cluster.whereabouts.resolve("10.0.0.1:3181") == ("10.0.0.1", 3181)


def test_the_last_known_address_holds_while_nobody_answers() -> None:
    """SES-5"""
    cluster = Cluster(1)
    assert cluster.whereabouts.resolve("b0") == ("10.0.0.0", 3181)
    cluster.whereabouts.on_connection()
    cluster.is_away = True
    assert cluster.whereabouts.resolve("b0") == ("10.0.0.0", 3181)
    with pytest.raises(MetadataUnavailableError):
        cluster.whereabouts.resolve(DEAD)


def test_a_bookie_is_refused_only_as_long_as_a_later_one_is_at_its_address() -> None:
    cluster = Cluster()
    resolve = cluster.whereabouts.resolve
    cluster.put("first", _at("10.0.0.1"))
    cluster.list()
    assert resolve("first") == ("10.0.0.1", 3181)
    cluster.put("second", _at("10.0.0.1"))
    cluster.list()  # as a watch does
    for _ in range(2):
        with pytest.raises(BookieUnavailableError, match="bookie second has registered at 10.0.0.1:3181 later"):
            resolve("first")
        assert resolve("second") == ("10.0.0.1", 3181)
    cluster.put("second", None)
    cluster.list()
    for _ in range(2):
        assert resolve("first") == ("10.0.0.1", 3181)


def test_an_id_that_is_an_address_is_not_taken_for_the_address_of_a_bookie_that_is_refused() -> None:
    """It is registered elsewhere, where another one came later."""
    cluster = Cluster()
    cluster.put("10.0.0.2:3181", _at("10.0.0.1"))
    cluster.put("later", _at("10.0.0.1"))
    cluster.list()
    for _ in range(2):
        with pytest.raises(BookieUnavailableError, match="bookie later has registered at 10.0.0.1:3181 later"):
            cluster.whereabouts.resolve("10.0.0.2:3181")


def test_ids_that_are_addresses_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another bookie whose id is an address, too, may be registered at each of them: it has moved, and kept its id."""
    monkeypatch.setattr(whereabouts, "LISTED_S", 600.0)
    cluster = Cluster()
    for number in range(MANY):
        host = f"10.0.{number // 250}.{number % 250}"
        cluster.put(f"{host}:3181", _at(host))
    cluster.list()
    cluster.lists = 0
    for _ in range(3):
        assert cluster.whereabouts.resolve("10.0.0.7:3181") == ("10.0.0.7", 3181)
    assert (cluster.reads, cluster.lists) == (MANY, 1)
    assert cluster.whereabouts.resolve("10.0.0.8:3181") == ("10.0.0.8", 3181)
    assert (cluster.reads, cluster.lists) == (MANY, 1)
    for late, place in (("named", "10.0.0.7"), ("10.9.9.9:3181", "10.0.0.8")):
        cluster.put(late, _at(place))
        cluster.list()
        with pytest.raises(BookieUnavailableError, match=f"bookie {late} has registered at {place}:3181 later"):
            cluster.whereabouts.resolve(f"{place}:3181")


def test_after_a_lost_connection_those_that_moved_are_told_of() -> None:
    """Nothing else tells: their events came to nobody, and the list of the registered bookies is the same."""
    cluster = Cluster(3)
    cluster.list()
    assert [cluster.whereabouts.resolve(f"b{number}") for number in range(3)] == [(f"10.0.0.{number}", 3181) for number in range(3)]
    cluster.whereabouts.look()
    cluster.changed.clear()
    reads = cluster.reads
    cluster.watched.clear()
    cluster.whereabouts.on_connection()
    cluster.put("b1", _at("10.0.0.9"))
    assert not cluster.changed
    cluster.is_away = True
    with pytest.raises(MetadataUnavailableError):
        cluster.whereabouts.look()
    cluster.is_away = False
    cluster.whereabouts.look()
    assert cluster.changed == ["b1"]
    reads = cluster.reads
    cluster.whereabouts.look()
    assert cluster.reads == reads and cluster.whereabouts.resolve("b1") == ("10.0.0.9", 3181)


def test_whoever_finds_a_bookie_elsewhere_tells_of_it() -> None:
    """After a lost connection somebody may ask before the keeper looks, or the bookie may have been gone in between."""
    cluster = Cluster(2)
    cluster.list()
    cluster.whereabouts.resolve("b0")
    cluster.watched.clear()
    cluster.put("b0", None)
    cluster.whereabouts.on_connection()
    with pytest.raises(BookieUnavailableError):
        cluster.whereabouts.resolve("b0")
    cluster.put("b0", _at("10.0.0.9"))
    cluster.changed.clear()
    assert cluster.whereabouts.resolve("b0") == ("10.0.0.9", 3181)
    assert cluster.changed == ["b0"]


def test_of_two_at_one_address_none_is_taken_while_nobody_answers() -> None:
    """Only the servers tell which of them came later."""
    cluster = Cluster()
    cluster.put("first", _at("10.0.0.1"))
    cluster.list()
    assert cluster.whereabouts.resolve("first") == ("10.0.0.1", 3181)
    cluster.put("second", _at("127.0.0.1"))
    cluster.put("second", _at("::ffff:10.0.0.1"))
    cluster.list()
    assert cluster.whereabouts.resolve("second") == ("::ffff:10.0.0.1", 3181)
    cluster.whereabouts.on_connection()
    cluster.is_away = True
    with pytest.raises(MetadataUnavailableError):
        cluster.whereabouts.resolve("first")


def test_registrations_are_read_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(8)
    together, get = threading.Barrier(8), cluster.get

    def meeting(path: str, watch: Callable[[Any], None], timeout_s: float) -> Versioned:
        together.wait(60)
        return get(path, watch, timeout_s)

    monkeypatch.setattr(cluster, "get", meeting)
    assert len(cluster.whereabouts._by_place()) == 8


def test_the_store_in_memory_remembers_the_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("memory://whereabouts")
    places: list[object] = []
    monkeypatch.setattr(occupied, "places", lambda address: places.append(address) or frozenset({address}))
    store.initialize_cluster()
    for number in range(10):
        store.register_bookie(f"b{number}", f"10.0.0.{number}", 3181)
    for _ in range(3):
        assert store.resolve(DEAD) == ("10.9.9.9", 3181)
    assert len(places) == 10 + 3
    store.register_bookie("new", "10.9.9.9", 3181)
    with pytest.raises(BookieUnavailableError, match="bookie new"):
        store.resolve(DEAD)
    store.register_bookie("10.8.8.8:3181", "10.8.8.8", 3181)
    assert store.resolve("10.8.8.8:3181") == ("10.8.8.8", 3181)
    store.register_bookie("10.7.7.7:3181", "10.8.8.8", 3181)
    with pytest.raises(BookieUnavailableError, match="bookie 10.7.7.7:3181 has registered at 10.8.8.8:3181 later"):
        store.resolve("10.8.8.8:3181")
    store.close()
