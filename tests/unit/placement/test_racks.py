"""Pulsar's rack map: its text, and how a client follows it (metadata.md 1.5)."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import bk_core
from bk_core.client.doctor.bookies import judge_cluster
from bk_core.errors import MetadataFormatError, MetadataUnavailableError
from bk_core.metadata import Versioned
from bk_core.metadata.memory import MemoryStore
from bk_core.metadata.racks import RackMap, parse_rack_map
from tests.integration.patience import until

MAP = b'{"default": {"bookie-a:3181": {"rack": "/rack-a", "hostname": "bk1.example"}, "h2": {"rack": "rack-b"}}}'


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(uuid.uuid4().hex)


def test_the_map_is_read_group_by_group() -> None:
    assert parse_rack_map(MAP) == {"bookie-a:3181": "/rack-a", "h2": "rack-b"}
    assert parse_rack_map(b"") == parse_rack_map(b"{}") == {}
    assert parse_rack_map(b'{"g1": {"a": {"rack": "/x"}, "b": {}}, "g2": {"a": {"rack": "/y"}, "c": {"rack": null}}}') == {"a": "/y"}


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"g": []}', b'{"g": {"a": 1}}', b'{"g": {"a": {"rack": 7}}}', b"\xff"])
def test_anything_else_is_refused(data: bytes) -> None:
    with pytest.raises(MetadataFormatError):
        parse_rack_map(data)


def test_a_client_follows_the_map(store: MemoryStore) -> None:
    racks = RackMap(store)
    assert racks.topology().rack_of("bookie-a:3181") == "/default-rack"
    version = store.write_rack_map(MAP, None)
    assert racks.topology().rack_of("bookie-a:3181") == "/rack-a"
    version = store.write_rack_map(MAP.replace(b"rack-a", b"rack-c"), version)
    assert racks.topology().rack_of("bookie-a:3181") == "/rack-c"
    racks.close()
    store.write_rack_map(b"{}", version)
    assert racks.topology().rack_of("bookie-a:3181") == "/rack-c"


def test_a_typing_error_moves_no_bookie(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    version = store.write_rack_map(MAP, None)
    racks = RackMap(store)
    with caplog.at_level(logging.WARNING):
        store.write_rack_map(b"{oops", version)
    assert racks.topology().rack_of("h2:3181") == "/rack-b"
    assert "the last good rack map stays" in caplog.text


def test_bookies_with_custom_ids_are_found_by_the_host_they_registered(store: MemoryStore) -> None:
    store.register_bookie("bookie-b", "h2", 3181)
    racks = RackMap(store)
    racks.bookies_changed(["bookie-b", "bookie-x"])  # one of them has gone again
    assert racks.topology().rack_of("bookie-b") == "/default-rack"
    store.write_rack_map(MAP, None)
    assert racks.topology().rack_of("bookie-b") == "/rack-b"
    racks.bookies_changed(["bookie-x"])
    assert racks.topology().rack_of("bookie-b") == "/rack-b"  # its last known rack
    store.register_bookie("bookie-x", "h2", 3182)
    racks.bookies_changed(["bookie-b", "bookie-x"])
    assert racks.topology().rack_of("bookie-x") == "/rack-b"


def test_older_bookies_do_not_replace_newer_ones_and_those_that_registered_anew_are_found_again(store: MemoryStore) -> None:
    store.write_rack_map(MAP, None)
    registered = store.register_bookie("bookie-b", "h2", 3181)
    racks = RackMap(store)
    racks.bookies_changed(["bookie-b", "bookie-x"], (), 2)
    assert racks.topology().rack_of("bookie-b") == "/rack-b"
    registered.close()
    store.register_bookie("bookie-b", "h9", 3181)
    racks.bookies_changed(["bookie-b"], (), 1)
    assert racks.topology().registered == {"bookie-b", "bookie-x"} and racks.topology().rack_of("bookie-b") == "/rack-b"
    racks.bookies_changed(["bookie-b"], ["bookie-b", "bookie-c"], 1)
    assert racks.topology().registered == {"bookie-b", "bookie-x"} and racks.topology().rack_of("bookie-b") == "/default-rack"
    racks.bookies_changed(["bookie-b"], (), 3)
    assert racks.topology().registered == {"bookie-b"}


def test_a_fixed_mapping_leaves_the_store_alone(store: MemoryStore) -> None:
    store.write_rack_map(MAP, None)
    racks = RackMap(store, {"h2": "/mine"})
    racks.bookies_changed(["h2:3181"])
    assert racks.topology().rack_of("h2:3181") == "/mine"
    assert racks.topology().rack_of("bookie-a:3181") == "/default-rack"
    racks.close()


def test_names_left_out_are_reported_once(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        racks = RackMap(store, {"a": "/r", "b": "/r", "c": "/region/r"})
        racks.bookies_changed(["a"])
    assert racks.topology().misplaced == ("c",)
    assert [record.getMessage().rpartition(": ")[2] for record in caplog.records] == ["c"]


def test_a_cluster_without_a_mapping_is_reported_once(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        racks = RackMap(store)
        version = store.write_rack_map(b"{}", None)
        store.write_rack_map(MAP, version)
        RackMap(store).close()
        RackMap(store, {}).close()  # a client that was given racks has them, were they none
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("placement is rack-aware, and nothing tells the racks") and "BK_RACK_SCRIPT in its environment" in line
    racks.close()


def test_the_doctor_finds_that_nothing_tells_the_racks(store: MemoryStore) -> None:
    def codes(**settings: Any) -> list[str]:
        with bk_core.connect("memory://racks", store=MemoryStore(store._name), **settings) as client:
            return [one.code for one in judge_cluster(client)]

    store.initialize_cluster()
    assert codes(placement="rack-aware") == ["racks-unknown"]
    assert codes() == codes(placement="rack-aware", racks={"h1": "/r"}) == []
    version = store.write_rack_map(b"{}", None)
    assert codes(placement="rack-aware") == ["racks-unknown"]
    version = store.write_rack_map(b"{oops", version)
    assert codes(placement="rack-aware") == ["racks-unreadable"]
    store.write_rack_map(MAP, version)
    assert codes(placement="rack-aware") == []


def test_names_of_bookies_that_are_gone_do_not_decide_the_depth(store: MemoryStore) -> None:
    racks = RackMap(store, {"a": "/r1", "b": "/r2", "c": "/eu/r1"})
    racks.bookies_changed(["a", "b"])
    racks.bookies_changed(["c"])
    assert racks.topology().rack_of("c") == "/eu/r1"
    racks.close()


class _Flaky(MemoryStore):
    away = False

    def read_rack_map(self) -> Versioned:
        if self.away:
            raise MetadataUnavailableError("no connection")
        return super().read_rack_map()


def test_what_the_store_did_not_answer_is_asked_for_again_later(caplog: pytest.LogCaptureFixture) -> None:
    """One function at a time waits for that, and the log has one line."""
    store, later = _Flaky(uuid.uuid4().hex), list[Callable[[], None]]()
    version = store.write_rack_map(b"{}", None)
    store.register_bookie("bookie-b", "h2", 3181)
    racks = RackMap(store, later=later.append)
    store.away = True
    version = store.write_rack_map(MAP, version)
    store.write_rack_map(MAP, version)
    racks.bookies_changed(["bookie-b"])
    for _ in range(3):
        assert len(later) == 1
        later.pop()()
    store.away = False
    with patched_resolve(store):
        later.pop()()
    assert racks.topology().rack_of("bookie-b") == "/default-rack" and len(later) == 1
    later.pop()()
    assert racks.topology().rack_of("bookie-b") == "/rack-b" and later == []
    assert [record.levelname for record in caplog.records if "cannot be read now" in record.getMessage()] == ["WARNING"]
    racks.close()


@contextmanager
def patched_resolve(store: MemoryStore) -> Iterator[None]:
    """Nobody tells where bookies are."""

    def resolve(_bookie: str) -> tuple[str, int]:
        raise MetadataUnavailableError("no connection")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store, "resolve", resolve)
        yield


def test_a_client_asks_for_racks_again_by_itself() -> None:
    store = _Flaky(uuid.uuid4().hex)
    store.initialize_cluster()
    version = store.write_rack_map(b"{}", None)
    with bk_core.connect("memory://racks", store=store, placement="rack-aware") as client:
        racks = client._session.racks
        assert racks is not None
        store.away = True
        store.write_rack_map(MAP, version)
        assert racks.topology().rack_of("h2:3181") == "/default-rack"
        store.away = False
        until(lambda: racks.topology().rack_of("h2:3181") == "/rack-b", "the rack map is not read again")


def test_a_map_that_could_not_be_read_is_read_again_with_the_next_change() -> None:
    store = _Flaky(uuid.uuid4().hex)
    version = store.write_rack_map(b"{}", None)
    racks = RackMap(store)
    store.away = True
    store.write_rack_map(MAP, version)
    assert racks.topology().rack_of("h2:3181") == "/default-rack"
    store.away = False
    racks.bookies_changed(["h2:3181"])
    assert racks.topology().rack_of("h2:3181") == "/rack-b"


class _Slow(MemoryStore):
    """Answers requests on other threads than the main one only when it is told to: with what it found when it was asked."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.answer, self.asked = threading.Event(), threading.Event()

    def _wait(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.asked.set()
            assert self.answer.wait(60)

    def read_rack_map(self) -> Versioned:
        found = super().read_rack_map()
        self._wait()
        return found

    def resolve(self, bookie_id: str) -> tuple[str, int]:
        found = super().resolve(bookie_id)
        self._wait()
        return found


def _hanging(store: _Slow, change: Callable[[], object], meanwhile: Callable[[], None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(change)
        try:
            assert store.asked.wait(60)
            meanwhile()
        finally:
            store.answer.set()
        done.result(60)


def test_nobody_waits_for_the_racks_that_another_thread_reads() -> None:
    store = _Slow(uuid.uuid4().hex)
    version = store.write_rack_map(MAP, None)
    racks = RackMap(store)

    def meanwhile() -> None:
        assert racks.topology().rack_of("bookie-a:3181") == "/rack-a"
        racks.bookies_changed(["bookie-a:3181", "h2:3181"])
        assert racks.topology().rack_of("h2:3181") == "/rack-b"

    _hanging(store, lambda: store.write_rack_map(MAP.replace(b"rack-a", b"rack-c"), version), meanwhile)
    assert racks.topology().rack_of("bookie-a:3181") == "/rack-c"


def test_an_answer_that_comes_late_does_not_take_the_place_of_a_newer_one() -> None:
    store = _Slow(uuid.uuid4().hex)
    version = store.write_rack_map(b"{}", None)
    racks = RackMap(store)

    def meanwhile() -> None:
        store.write_rack_map(MAP.replace(b"rack-a", b"rack-c"), version + 1)
        assert racks.topology().rack_of("bookie-a:3181") == "/rack-c"

    _hanging(store, lambda: store.write_rack_map(MAP, version), meanwhile)
    assert racks.topology().rack_of("bookie-a:3181") == "/rack-c"


def test_a_host_that_is_told_late_does_not_take_the_place_of_a_newer_one() -> None:
    store = _Slow(uuid.uuid4().hex)
    store.write_rack_map(b'{"default": {"h1": {"rack": "/one"}, "h2": {"rack": "/two"}}}', None)
    racks = RackMap(store)
    registered = store.register_bookie("b", "h1", 3181)

    def meanwhile() -> None:
        racks.bookies_changed([])
        registered.close()
        store.register_bookie("b", "h2", 3181)
        racks.bookies_changed(["b"])
        assert racks.topology().rack_of("b") == "/two"

    _hanging(store, lambda: racks.bookies_changed(["b"]), meanwhile)
    assert racks.topology().rack_of("b") == "/two"
