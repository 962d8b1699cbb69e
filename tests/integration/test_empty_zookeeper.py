"""Running bookies keep what they have when ZooKeeper comes back empty, or as another cluster's (BKE-1, BKE-2)."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient

import bk_core
from bk_core.bookie.apache import find_java
from bk_core.bookie.collector import CollectorOptions
from bk_core.bookie.embedded import BookieOptions, EmbeddedBookie
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.errors import BookieUnavailableError
from bk_core.metadata import open_store
from bk_core.metadata.store import MetadataStore
from bk_core.protocol.wire.messages import Status
from tests.integration.embedded import eventually, peer_of, read

OFTEN = BookieOptions(collector=CollectorOptions(interval_s=0.1))
PATIENCE_S = 60.0


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    try:
        find_java()
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    with ZooKeeperProcess(tmp_path / "zookeeper") as process:
        yield process


def last_transaction(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as sock:
        sock.sendall(b"srvr")
        answer = b""
        while chunk := sock.recv(4096):
            answer += chunk
    return int(answer.partition(b"Zxid: ")[2].split()[0], 16)


def catch_up(zookeeper: ZooKeeperProcess, transaction: int) -> None:
    """Clients stay away from a server that is behind what they have seen. Time heals that, here at once."""
    with _zookeeper(zookeeper) as client:
        while last_transaction(zookeeper.port) <= transaction:
            made = [client.create_async("/elsewhere", makepath=True, sequence=True) for _ in range(50)]
            for one in made:
                one.get(30)


@contextmanager
def _zookeeper(zookeeper: ZooKeeperProcess) -> Iterator[KazooClient]:
    client = KazooClient(zookeeper.connect_string)
    client.start(30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


class Metadata:
    """The files of ZooKeeper, replaced while it is down."""

    def __init__(self, zookeeper: ZooKeeperProcess, kept: Path) -> None:
        self._zookeeper = zookeeper
        self._data = kept.parent / "zookeeper" / "data"
        self._kept = kept

    def wipe(self) -> None:
        """Another ZooKeeper at the same address, which has seen more than this one had."""
        before = last_transaction(self._zookeeper.port)
        self._zookeeper.stop()
        if not self._kept.exists():
            shutil.copytree(self._data, self._kept)
        shutil.rmtree(self._data)
        self._zookeeper.start()
        catch_up(self._zookeeper, before)

    def restore(self) -> None:
        before = last_transaction(self._zookeeper.port)
        self._zookeeper.stop()
        shutil.rmtree(self._data)
        shutil.copytree(self._kept, self._data)
        self._zookeeper.start()
        catch_up(self._zookeeper, before)


def told(caplog: pytest.LogCaptureFixture, bookie: EmbeddedBookie, words: str) -> bool:
    return any(bookie.bookie_id in text and words in text for text in (record.getMessage() for record in tuple(caplog.records)))


def test_bke_1_nothing_is_dropped_when_zookeeper_comes_back_empty(
    zookeeper: ZooKeeperProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """BKE-1. First wiped, then initialised anew as another cluster, at last restored: every entry is on every bookie."""
    uri = f"zk://{zookeeper.connect_string}/ledgers?session_timeout_ms=4000"
    metadata = Metadata(zookeeper, tmp_path / "kept")
    with ExitStack() as stack:
        stores = [stack.enter_context(_open(uri)) for _ in range(3)]
        stores[0].initialize_cluster()
        bookies = [
            stack.enter_context(EmbeddedBookie(tmp_path / f"bookie-{number}", store=store, options=OFTEN))
            for number, store in enumerate(stores)
        ]
        with bk_core.connect(uri) as bk, bk.create_ledger() as ledger:
            for number in range(20):
                ledger.append(b"%d" % number)
            ledger_id = ledger.ledger_id
        metadata.wipe()
        assert eventually(lambda: all(told(caplog, bookie, "no such cluster") for bookie in bookies), PATIENCE_S)
        _require_all_there(bookies, ledger_id)
        with _open(uri) as store:
            store.initialize_cluster()
        assert eventually(lambda: all(told(caplog, bookie, "another cluster") for bookie in bookies), PATIENCE_S)
        _require_all_there(bookies, ledger_id)
        with _open(uri) as store:  # its ledgers may have the same ids: the bookies take nothing for it
            assert eventually(lambda: not store.bookies().writable, PATIENCE_S)
        metadata.restore()
        with _open(uri) as store:
            assert eventually(lambda: len(store.bookies().writable) == 3, PATIENCE_S)
        _require_all_there(bookies, ledger_id)
        with bk_core.connect(uri) as bk, bk.open_ledger(ledger_id) as reader:
            assert reader.read(0, 19) == [b"%d" % number for number in range(20)]
        with _zookeeper(zookeeper) as client:  # a root from which LAYOUT is gone as well is no cluster either
            client.delete("/ledgers/LAYOUT")
            client.delete("/ledgers/00", recursive=True)
        assert eventually(lambda: "LAYOUT" in caplog.text, PATIENCE_S)
        _require_all_there(bookies, ledger_id)


def test_bke_1_a_lost_layout_is_missed_by_a_bookie_that_never_collected(
    zookeeper: ZooKeeperProcess, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """BKE-1. Old clusters have no LAYOUT, so the bookie has to know from its start that this one had it."""
    options = BookieOptions(collector=CollectorOptions(interval_s=3.0))  # the ledger is gone before the first round
    uri = f"zk://{zookeeper.connect_string}/ledgers"
    with _open(uri) as store:
        store.initialize_cluster()
        with EmbeddedBookie(tmp_path / "bookie", store=store, options=options) as bookie:
            with bk_core.connect(uri) as bk, bk.create_ledger(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1) as ledger:
                for number in range(20):
                    ledger.append(b"%d" % number)
            with _zookeeper(zookeeper) as client:
                client.delete("/ledgers/LAYOUT")
                client.delete("/ledgers/00", recursive=True)
            assert eventually(lambda: "LAYOUT" in caplog.text or "are dropped" in caplog.text, PATIENCE_S)
            _require_all_there([bookie], ledger.ledger_id)


@contextmanager
def _open(uri: str) -> Iterator[MetadataStore]:
    store = open_store(uri)
    try:
        yield store
    finally:
        store.close()


def _require_all_there(bookies: list[EmbeddedBookie], ledger_id: int) -> None:
    for bookie in bookies:
        with peer_of(bookie) as peer:
            assert [peer.status(read(ledger_id, number)) for number in range(20)] == [Status.OK] * 20
