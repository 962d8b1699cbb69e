"""Rack-aware placement over a real ZooKeeper: the map that Pulsar's tools write decides where new ledgers go, also while it changes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

import bk_core
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.client.client import BookKeeper
from bk_core.errors import NotEnoughBookiesError
from bk_core.metadata import MetadataStore, open_store
from bk_core.metadata.zookeeper.store import ZooKeeperStore

WAIT_S = 15.0
BOOKIES = ["bookie-a", "bookie-b", "10.0.0.3:3181", "10.0.0.4:3181"]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper")) as process:
        yield process


@pytest.fixture
def store(zookeeper: ZooKeeperProcess, request: pytest.FixtureRequest) -> Iterator[ZooKeeperStore]:
    """A cluster under a root of its own. Its bookies are only registered: creating a ledger contacts none (CR-6)."""
    name = request.node.name.replace("[", "-").replace("]", "")
    opened = open_store(f"zk://{zookeeper.connect_string}/ledgers?chroot=/{name}")
    assert isinstance(opened, ZooKeeperStore)
    opened.initialize_cluster()
    for number, bookie in enumerate(BOOKIES, 1):
        opened.register_bookie(bookie, f"10.0.0.{number}", 3181)
    yield opened
    opened.close()


def connect(zookeeper: ZooKeeperProcess, store: ZooKeeperStore, **settings: object) -> BookKeeper:
    chroot = store._root.removesuffix("/ledgers")
    return bk_core.connect(f"zk://{zookeeper.connect_string}/ledgers?chroot={chroot}", placement="rack-aware", **settings)


def write_racks(store: MetadataStore, racks: dict[str, str], version: int | None) -> int:
    """As Pulsar's tool writes it, one group named ``default``."""
    return store.write_rack_map(json.dumps({"default": {k: {"rack": v, "hostname": None} for k, v in racks.items()}}).encode(), version)


def ensemble_of_new_ledger(bk: BookKeeper) -> set[str]:
    ledger = bk.create_ledger(ensemble_size=2, write_quorum_size=2, ack_quorum_size=2)
    try:
        return set(bk.ledger_metadata(ledger.ledger_id).last_fragment.ensemble)
    finally:
        ledger.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def test_the_node_lies_beside_the_ledgers_root(store: ZooKeeperStore) -> None:
    """metadata.md 1.5: at the top of the store, below the chroot, a sibling of /ledgers."""
    write_racks(store, {}, None)
    chroot = store._root.removesuffix("/ledgers")
    assert store._link.client.get(f"{chroot}/bookies")[0] == b'{"default": {}}'
    assert sorted(store._link.client.get_children(chroot)) == ["bookies", "ledgers"]


def test_new_ledgers_follow_the_map_by_id_by_host_and_by_address(zookeeper: ZooKeeperProcess, store: ZooKeeperStore) -> None:
    """CR-2: E distinct writable bookies by policy. Three names in one rack, so every ledger needs the fourth bookie."""
    version = write_racks(store, {"bookie-a": "/r1", "10.0.0.2": "/r1", "10.0.0.3:3181": "r1", "10.0.0.4": "/r2"}, None)
    with connect(zookeeper, store) as bk:
        for _ in range(8):
            assert "10.0.0.4:3181" in ensemble_of_new_ledger(bk)
        write_racks(store, {"bookie-a": "/r2", "bookie-b": "/r1", "10.0.0.3": "/r1", "10.0.0.4": "/r1"}, version)
        until(lambda: bk._session.placement.domain_of("bookie-a") == "/r2")
        for _ in range(8):
            assert "bookie-a" in ensemble_of_new_ledger(bk)


def test_a_bookie_that_turns_read_only_or_leaves_is_chosen_no_more(zookeeper: ZooKeeperProcess, store: ZooKeeperStore) -> None:
    """CR-2: writable bookies only. With enforced racks the ledger is refused rather than put into one rack."""
    write_racks(store, {"bookie-a": "/r1", "bookie-b": "/r1", "10.0.0.3": "/r1", "10.0.0.4": "/r2", "late": "/r2"}, None)
    with connect(zookeeper, store, enforce_racks=True) as bk:
        assert "10.0.0.4:3181" in ensemble_of_new_ledger(bk)
        registration = store._registered["10.0.0.4:3181"]
        registration.set_readonly(True)
        until(lambda: "10.0.0.4:3181" in bk._session.bookies().readonly)
        with pytest.raises(NotEnoughBookiesError, match="span 2 racks"):
            ensemble_of_new_ledger(bk)
        store.register_bookie("late", "10.0.0.5", 3181)
        assert "late" in ensemble_of_new_ledger(bk)  # even if the watch has not told yet: a shortage looks again


def test_racks_given_by_hand_and_a_ledger_smaller_than_asked_for(zookeeper: ZooKeeperProcess, store: ZooKeeperStore) -> None:
    """CR-2: opportunistic striping records the E it used."""
    racks = {bookie: f"/r{number % 2}" for number, bookie in enumerate(BOOKIES)}
    with connect(zookeeper, store, racks=racks, local_rack="r1", opportunistic_striping=True) as bk:
        with bk.create_ledger(ensemble_size=7, write_quorum_size=3, ack_quorum_size=2) as ledger:
            metadata = bk.ledger_metadata(ledger.ledger_id)
        assert metadata.ensemble_size == len(metadata.last_fragment.ensemble) == 4
        assert metadata.last_fragment.ensemble[0] in (BOOKIES[1], BOOKIES[3])
        with pytest.raises(NotEnoughBookiesError):
            bk.create_ledger(ensemble_size=7, write_quorum_size=5, ack_quorum_size=2)
