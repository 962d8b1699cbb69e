"""The checkpoint gateway over file stores on ledgers: what a driver that dies leaves, another one, outages, and many changes each."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.client.files.store import FileStore
from bk_core.client.files.view import FileStoreView
from bk_core.metadata import open_store
from bk_spark.checkpoint.gateway import Gateway
from bk_spark.checkpoint.staging import CheckpointFiles
from tests.unit.spark.checkpoint_client import Client, JavaError, temporary

LARGE = bytes(range(256)) * 14_000  # more than three entries of a data ledger


class World:
    """Bookies, a client, and drivers that come one after another."""

    def __init__(self, directory: Path) -> None:
        self.uri = f"memory://{directory.name}"
        self.metadata = open_store(self.uri)
        self.metadata.initialize_cluster()
        self.bookies = [EmbeddedBookie(directory / str(i), "127.0.0.1", 0, self.metadata).start() for i in range(3)]
        self.client = bk_core.connect(self.uri, operation_timeout_s=20)
        self.gateways: list[Gateway] = []
        self.clients: list[Client] = []

    def driver(self, patience_s: float = 20) -> Client:
        """A gateway with the checkpoint x, and a client of it. The driver before it, if it is still there, is fenced."""
        gateway = Gateway()
        gateway.files["x"] = CheckpointFiles(FileStore.open(self.client, "x"), patience_s)
        self.gateways.append(gateway)
        self.clients.append(Client(gateway))
        return self.clients[-1]

    def die(self, driver: Client) -> None:
        """As a process does that is killed: nothing is carried out any more."""
        store = driver.gateway.files["x"].store
        assert isinstance(store, FileStore)
        store.abandon()

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for gateway in self.gateways:
            gateway.close()
        self.client.close()
        for bookie in self.bookies:
            bookie.close()
        self.metadata.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.close()


def test_what_was_renamed_is_there_for_the_next_driver_and_temporary_files_are_not(world: World) -> None:
    first = world.driver()
    for batch in range(3):
        first.write_atomic(f"/offsets/{batch}", f"v1\n{batch}".encode())
    first.write_atomic("/state/0/0/1.zip", LARGE)
    first.create(temporary("/offsets/3"), b"small")
    first.create(temporary("/state/0/0/2.zip"), LARGE)
    assert first.read(temporary("/state/0/0/2.zip"), 3_000_000, 10) == LARGE[3_000_000:3_000_010]
    world.die(first)
    second = world.driver()
    assert second.names("/offsets") == ["0", "1", "2"] and second.names("/state/0/0") == ["1.zip"]
    assert second.read("/offsets/2") == b"v1\n2" and second.read("/state/0/0/1.zip") == LARGE
    assert second.read("/state/0/0/1.zip", len(LARGE) - 5) == LARGE[-5:]
    with pytest.raises(JavaError, match="BK-FILES-CLOSED"):
        first.rename(temporary("/offsets/3"), "/offsets/3")


def test_a_driver_that_dies_between_delete_and_rename_loses_nothing(world: World) -> None:
    first = world.driver()
    first.write_atomic("/state/1.delta", b"old")
    first.create(temporary("/state/1.delta", 2), b"new")
    assert first.delete("/state/1.delta") and not first.exists("/state/1.delta")
    world.die(first)
    second = world.driver()
    assert second.read("/state/1.delta") == b"old"
    second.write_atomic("/state/1.delta", b"newer", overwrite=True)
    world.die(second)
    assert world.driver().read("/state/1.delta") == b"newer"


def test_a_second_driver_ends_the_first(world: World) -> None:
    first = world.driver()
    first.write_atomic("/offsets/0", b"0")
    first.create(temporary("/offsets/1"), b"1")
    second = world.driver()
    with pytest.raises(JavaError) as caught:
        first.rename(temporary("/offsets/1"), "/offsets/1")
    assert caught.value.java_class == "java.io.IOException"
    assert caught.value.message.startswith("[BK-FILES-TAKEN-OVER] another driver opened the checkpoint 'x'")
    with pytest.raises(JavaError, match="BK-FILES-TAKEN-OVER"):
        first.read("/offsets/0")
    assert second.names("/offsets") == ["0"]
    second.write_atomic("/offsets/1", b"mine")


def test_closing_carries_out_what_was_kept_back(world: World) -> None:
    first = world.driver()
    first.create("/0", b"old")
    first.create(temporary("/0"), b"new")
    first.delete("/0")
    first.gateway.close()
    with FileStoreView.open(world.client, "x") as view:
        assert view.listing("/") == []


def test_an_upload_that_breaks_leaves_nothing_and_hinders_nobody(world: World) -> None:
    driver = world.driver()
    for path in ("/f", temporary("/f")):
        connection = socket.create_connection((driver.gateway.host, driver.gateway.port), timeout=20)
        head = f"PUT {driver.target('CREATE', path, bkstep='2')} HTTP/1.1\r\nAuthorization: Bearer {driver.gateway.access.reveal()}\r\n"
        connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n300000\r\n" + LARGE[: 2 << 20])
        driver.write_atomic(f"/while{path}", LARGE)  # the upload hangs
        with connection:
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(100) == b""
        assert not driver.exists(path) and driver.read(f"/while{path}") == LARGE
    assert driver.names("/") == ["while"]


def test_a_request_waits_for_bookies_as_long_as_it_was_told_to(world: World) -> None:
    driver = world.driver(patience_s=0.5)
    driver.write_atomic("/0", b"0")
    for bookie in world.bookies[1:]:
        bookie.close()
    with pytest.raises(JavaError) as caught:
        driver.write_atomic("/1", b"1")
    assert caught.value.java_class == "java.io.IOException" and "[BK-" in caught.value.message
    assert driver.read("/0") == b"0"  # what is in memory is there
    world.die(driver)


def test_many_tasks_at_once(world: World) -> None:
    driver = world.driver()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        client = Client(driver.gateway)
        try:
            for batch in range(3):
                client.write_atomic(f"/state/{number}/{batch}.delta", b"%d %d" % (number, batch))
                client.write_atomic(f"/state/{number}/{batch}.delta", LARGE[: 100_000 * batch], overwrite=True, number=2)
        except BaseException as error:
            failures.append(error)
        finally:
            client.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    driver.gateway.close()
    again = world.driver()
    for number in range(6):
        assert [again.read(f"/state/{number}/{batch}.delta") for batch in range(3)] == [LARGE[: 100_000 * batch] for batch in range(3)]
