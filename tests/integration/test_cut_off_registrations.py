"""Bookies that register elsewhere while a client is cut off from the metadata store. No event tells it, and their list is the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import bk_core
from bk_core.bookie.children import free_port
from bk_core.bookie.embedded import EmbeddedBookie
from bk_core.bookie.etcd_process import EtcdProcess
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.metadata import MetadataStore, open_store
from tests.integration.patience import until
from tests.network.proxy import Proxy

SESSION = "session_timeout_ms=30000"
"""A session outlives the cut."""
SINGLE: Any = {"ensemble_size": 3, "write_quorum_size": 1, "ack_quorum_size": 1}
"""Each entry is on one bookie, and all of them are in turn."""


@pytest.fixture(params=["zk", "etcd"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, int]]:
    if request.param == "zk":
        (tmp_path / "zookeeper").mkdir()
        with ZooKeeperProcess(tmp_path / "zookeeper", free_port()) as zookeeper:
            yield "zk", zookeeper.port
    else:
        with EtcdProcess(tmp_path / "etcd") as etcd:
            yield "etcd", int(etcd.connect_string.rpartition(":")[2])


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


class Shelf:
    """A bookie with an id of its own, on a directory of each place where it was."""

    def __init__(self, store: MetadataStore, directory: Path, name: str) -> None:
        self.store, self.directory, self.name = store, directory, name

    def start(self, port: int = 0) -> None:
        self.bookie = EmbeddedBookie(self.directory / f"{self.name}-at-{port}", port=port).start()
        self.registration = self.store.register_bookie(self.name, "127.0.0.1", self.bookie.port)

    def stop(self) -> None:
        self.registration.close()
        self.bookie.close()


def links(client: bk_core.BookKeeper, bookie: str) -> set[int]:
    """Return the port to which this client sends a bookie's entries, if it is connected. What it asks goes over others (LINK-4)."""
    mine = [link for (of, kind, _), link in list(client._session._links.items()) if (of, kind) == (bookie, "data")]
    return {link._target[3][1] for link in mine if link.is_connected and link._target}


def test_bookies_that_change_places_meanwhile(server: tuple[str, int], proxy: Proxy, tmp_path: Path) -> None:
    """LINK-4, SES-5. The client goes on at the last known places while it is cut off, and leaves them as soon as it is connected again:
    each of the two would take the other one's entries, and deny them to everybody else."""
    scheme, port = server
    direct = f"{scheme}://127.0.0.1:{port}/ledgers?{SESSION}"
    wire = proxy.link("client", "store", "127.0.0.1", port)
    with ExitStack() as ending:
        store = open_store(direct)
        ending.callback(store.close)
        store.initialize_cluster()
        shelves = [Shelf(store, tmp_path, name) for name in ("x", "y", "z")]
        for one in shelves:
            one.start()
            ending.callback(lambda one=one: one.stop())
        x, y, _ = shelves
        at_x, at_y, at_z = (one.bookie.port for one in shelves)
        client = ending.enter_context(
            bk_core.connect(f"{scheme}://127.0.0.1:{wire.listen_port}/ledgers?{SESSION}", ensemble_change="delayed")
        )
        writer = client.create_ledger(ensemble_size=3, write_quorum_size=3, ack_quorum_size=1)
        writer.append(b"before")
        until(lambda: [links(client, one.name) for one in shelves] == [{at_x}, {at_y}, {at_z}], "it is not connected to all")
        proxy.cut(wire, refuse=True)
        until(lambda: not client.store.is_connected(), "it does not notice")
        x.stop()
        y.stop()
        x.start(at_y)
        y.start(at_x)

        def leads(to_x: int, to_y: int) -> bool:
            writer.append(b"more")
            return links(client, "x") == {to_x} and links(client, "y") == {to_y}

        until(lambda: leads(at_x, at_y), "it does not go on at the last known places")
        proxy.heal(wire)
        until(lambda: leads(at_y, at_x), "it stays at their old places")
        made = client.create_ledger(**SINGLE)
        made.append_many([b"acknowledged"] * 10)
        with bk_core.connect(direct) as other:
            assert other.recover_ledger(made.ledger_id).last_add_confirmed == 9
        made.abandon()
        writer.abandon()
