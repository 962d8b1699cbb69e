"""Sessions, connections and registrations are lost at each kind of metadata store, and the store goes on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bk_core.errors import ZooKeeperProcessError
from bk_core.metadata import open_store
from tests.faults import points
from tests.faults.metadata import ETCD, KINDS, Kind, Server, cut_connections, kind_of, revoke_leases

WAIT_S = 60.0


@pytest.fixture(scope="module", params=KINDS.values(), ids=lambda kind: kind.name)
def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Kind, Server]]:
    kind: Kind = request.param
    try:
        server = kind.process(tmp_path_factory.mktemp(kind.name)).start()
    except ZooKeeperProcessError as error:
        pytest.skip(str(error))
    try:
        yield kind, server
    finally:
        server.stop()


@pytest.fixture
def store(ground: tuple[Kind, Server]) -> Iterator[Any]:
    kind, server = ground
    with closing(open_store(kind.uri(server))) as opened:
        opened.initialize_cluster()
        yield opened


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("fault", ["cut", "expire"])
def test_a_store_is_told_and_goes_on(ground: tuple[Kind, Server], store: Any, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    kind, _ = ground
    assert kind_of(store) is kind and points._stores() == [store]
    told: list[bool] = []
    lost = threading.Event()

    def on_connection(connected: bool) -> None:
        told.append(connected)
        if not connected:
            lost.set()
        heard(connected)

    heard = store._on_connection
    monkeypatch.setattr(store._link, "_on_connection", on_connection)
    path = f"logs/{fault}"
    version = store.create(path, b"1")
    changes: list[int] = []
    watch = store.watch(path, lambda: changes.append(1))
    getattr(kind, fault)(store)
    assert lost.wait(WAIT_S), told
    _until(store.is_connected)
    version = store.write(path, b"2", version)
    _until(lambda: bool(changes))
    assert store.read(path).data == b"2"
    watch.cancel()


def _made(store: Any, bookie_id: str) -> int | None:
    """Return the time at which the registration of a bookie was made, in the store's own count; None if there is none."""
    stat = store._base.stat(f"{store._root}/available/{bookie_id}")
    return None if stat is None else int(stat.created)


def test_a_session_that_is_lost_takes_its_registration_along(ground: tuple[Kind, Server], store: Any) -> None:
    kind, _ = ground
    registration = store.register_bookie("bk", "127.0.0.1", 3181)
    made = _made(store, "bk")
    kind.expire(store)
    _until(lambda: _made(store, "bk") not in (None, made))
    registration.close()


def test_all_leases_are_revoked_at_once(tmp_path: Path) -> None:
    """Bookies hear of it and register again."""
    with ETCD.process(tmp_path) as server, closing(open_store(ETCD.uri(server))) as one, closing(open_store(ETCD.uri(server))) as two:
        one.initialize_cluster()
        registrations = [one.register_bookie("bk1", "127.0.0.1", 3181), two.register_bookie("bk2", "127.0.0.1", 3182)]
        made = [_made(one, name) for name in ("bk1", "bk2")]
        revoke_leases(server)
        for name in ("bk1", "bk2"):
            _until(lambda: _made(one, name) not in (None, *made))  # noqa: B023
        for registration in registrations:
            registration.close()


def test_only_connections_to_the_named_ports_are_cut() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        with socket.create_connection(one.getsockname()) as near, socket.create_connection(two.getsockname()) as kept:
            far, other = one.accept()[0], two.accept()[0]
            assert cut_connections([one.getsockname()[1]]) == 1
            assert (near.recv(1), far.recv(1)) == (b"", b"")
            kept.sendall(b"x")
            assert other.recv(1) == b"x"
            far.close()
            other.close()
    assert cut_connections([1]) == 0
