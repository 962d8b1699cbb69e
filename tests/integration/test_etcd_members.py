"""A server of etcd that lost what it had acknowledged, as 3.5.0 to 3.5.2 do when they are killed: nothing is dropped for it (BKE-10)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie.collector import CollectorOptions
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.bookie.etcd_process import EtcdCluster, EtcdProcess, EtcdProcessError, find_etcd
from bk_core.errors import MetadataContradictionError, MetadataUnavailableError
from bk_core.metadata import open_store
from tests.etcd_control import Control


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[EtcdProcess, EtcdProcess]]:
    """Two servers that hold one cluster of BookKeeper, as if each were a member that has its own idea of it."""
    try:
        find_etcd()
    except EtcdProcessError as error:
        pytest.skip(str(error))
    whole, forgetful = EtcdProcess(tmp_path / "whole"), EtcdProcess(tmp_path / "forgetful")
    try:
        whole.start()
        forgetful.start()
        yield whole, forgetful
    finally:
        whole.stop()
        forgetful.stop()


def copied(one: EtcdProcess, other: EtcdProcess, keys: list[str]) -> None:
    source, target = Control(one.connect_string), Control(other.connect_string)
    for key in keys:
        value = source.get(key)
        assert value is not None
        target.put(key, value)


def test_a_bookie_keeps_the_ledgers_that_one_server_forgot(two: tuple[EtcdProcess, EtcdProcess], tmp_path: Path) -> None:
    """BKE-10: what one of two servers still has is not gone."""
    whole, forgetful = two
    with closing(open_store(f"etcd://{whole.connect_string}/ledgers")) as store:
        store.initialize_cluster()
        options = BookieOptions(collector=CollectorOptions(interval_s=0.1))
        bookie = EmbeddedBookie(tmp_path / "bookie", store=store)
        with bookie, bk_core.connect(f"etcd://{whole.connect_string}/ledgers") as client:
            with client.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger:
                ledger.append(b"acknowledged")
        copied(
            whole,
            forgetful,
            [
                "/ledgers",
                "/ledgers/available",
                "/ledgers/available/readonly",
                "/ledgers/INSTANCEID",
                f"/ledgers/cookies/{bookie.bookie_id}",
            ],
        )
    uri = f"etcd://{whole.connect_string},{forgetful.connect_string}/ledgers"
    whole.stop()
    with closing(open_store(uri)) as store:  # by the server that forgot the ledger
        assert list(store.list_ledgers()) == []
        with pytest.raises(MetadataUnavailableError, match="1 of 2 servers of etcd answer"):
            store.gone_ledgers([ledger.ledger_id])
        whole.start()
        with pytest.raises(MetadataContradictionError, match=f"{whole.connect_string} has .*{forgetful.connect_string} does not"):
            store.gone_ledgers([ledger.ledger_id])
        assert store.gone_ledgers([4711]) == [4711]
        with EmbeddedBookie(tmp_path / "bookie", port=bookie.port, store=store, options=options) as again:
            deadline = time.monotonic() + 60
            while again.metrics().value("bookkeeper_bookie_collection_refused_total") < 2:
                assert time.monotonic() < deadline, "no round of collection was refused"
                time.sleep(0.05)
            with bk_core.connect(f"etcd://{whole.connect_string}/ledgers") as client, client.open_ledger(ledger.ledger_id) as reader:
                assert reader.read(0, 0) == [b"acknowledged"]


def test_what_is_gone_is_gone_from_most_servers(tmp_path: Path) -> None:
    """BKE-10: two of three servers are enough."""
    try:
        find_etcd()
    except EtcdProcessError as error:
        pytest.skip(str(error))
    with EtcdCluster(tmp_path) as servers, closing(open_store(f"etcd://{servers.connect_string}/ledgers")) as store:
        store.initialize_cluster()
        for ledger_id in (1, 2):
            store.create_ledger(ledger_id, b"")
        store.delete_ledger(2)
        assert store.gone_ledgers([1, 2, 3]) == [2, 3]
        servers.servers[0].kill()
        deadline = time.monotonic() + 60
        while True:  # until another one leads
            try:
                assert store.gone_ledgers([1, 2, 3]) == [2, 3]
                break
            except MetadataUnavailableError:
                assert time.monotonic() < deadline
