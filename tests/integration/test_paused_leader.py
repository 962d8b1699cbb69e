"""A leader of three ZooKeepers that was paused knows nothing of what was agreed on meanwhile, and answers for a moment."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie import zookeeper_process
from bk_core.bookie.children import free_port
from bk_core.bookie.collector import CollectorOptions
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.errors import BkError
from bk_core.metadata import open_store
from tests.integration.patience import PATIENCE_S, until
from tests.network.stopping import stop_process

TICK_MS, SYNC_TICKS, SESSION_MS = 500, 4, 10_000
"""A follower gives its leader up after two seconds, and a session outlives that."""
SIZES = {"ensemble_size": 2, "write_quorum_size": 2, "ack_quorum_size": 2}


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[ZooKeeperProcess]]:
    monkeypatch.setattr(zookeeper_process, "MAIN_CLASS", "org.apache.zookeeper.server.quorum.QuorumPeerMain")
    ports = [(free_port(), free_port(), free_port()) for _ in range(3)]
    peers = {f"server.{number}": f"127.0.0.1:{peer}:{vote}" for number, (_, peer, vote) in enumerate(ports, 1)}
    settings = {**peers, "initLimit": "20", "syncLimit": str(SYNC_TICKS), "tickTime": str(TICK_MS)}
    servers = []
    for number, (port, _, _) in enumerate(ports, 1):
        directory = tmp_path / f"zookeeper-{number}"
        (directory / "data").mkdir(parents=True)
        (directory / "data" / "myid").write_text(str(number))
        servers.append(ZooKeeperProcess(directory, port, settings=settings))
    try:
        with ThreadPoolExecutor(3) as threads:
            for started in [threads.submit(one.start) for one in servers]:
                started.result(PATIENCE_S)
        yield servers
    finally:
        for one in servers:
            if one.pid is not None:
                os.kill(one.pid, signal.SIGCONT)
            one.kill()


def mode_of(server: ZooKeeperProcess) -> str:
    """Return what a server says of itself, "" while it serves nobody."""
    told = b""
    try:
        with socket.create_connection(("127.0.0.1", server.port), 1) as connection:
            connection.settimeout(1)
            connection.sendall(b"srvr")
            while more := connection.recv(4096):
                told += more
    except OSError:
        return ""
    return told.partition(b"Mode: ")[2].split(b"\n")[0].decode()


def leads(server: ZooKeeperProcess) -> bool:
    return mode_of(server) == "leader"


def written(client: bk_core.BookKeeper) -> int:
    """Write a ledger, as soon as the metadata store takes it."""
    made: list[int] = []

    def write() -> bool:
        try:
            with client.create_ledger(**SIZES) as ledger:
                ledger.append_many([b"acknowledged"] * 10)
        except BkError:
            return False
        made.append(ledger.ledger_id)
        return True

    until(write, "no ledger is written")
    return made[0]


def test_bookies_keep_what_was_created_while_the_leader_was_paused(three: list[ZooKeeperProcess], tmp_path: Path) -> None:
    """BKE-10: the bookies ask that leader for the ledgers that are gone, right when it goes on."""
    paused = next(server for server in three if leads(server))
    others = [server for server in three if server is not paused]
    at_leader = f"zk://127.0.0.1:{paused.port}/ledgers?session_timeout_ms={SESSION_MS}"
    collector = CollectorOptions(interval_s=0.05)
    store = open_store(at_leader)
    bookies: list[EmbeddedBookie] = []
    try:
        store.initialize_cluster()
        for number in range(2):
            own = tmp_path / f"bookie-{number}"
            bookies.append(EmbeddedBookie(own, "127.0.0.1", 0, open_store(at_leader), BookieOptions(collector=collector)).start())
        with bk_core.connect(f"zk://{','.join(one.connect_string for one in others)}/ledgers") as client:
            written(client)
            assert paused.pid is not None
            stop_process(paused.pid)
            until(lambda: any(map(leads, others)), "no other leader is elected")
            ledger_id = written(client)
            os.kill(paused.pid, signal.SIGCONT)
            until(lambda: mode_of(paused) == "follower", "it does not follow the new leader")
            with client.open_ledger(ledger_id) as reader:
                assert reader.read(0, 9) == [b"acknowledged"] * 10
    finally:
        for bookie in bookies:
            bookie.close()
        store.close()
