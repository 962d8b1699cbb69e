"""Clusters side by side in one ZooKeeper, each with one bookie in this process, and what programs do to the logs of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

import bk_core
from bk_core.bookie.server import EmbeddedBookie
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from bk_core.cli import run
from bk_core.client.log.janitor import delete_log, gc_log
from bk_core.client.log.list_store import read_ledger_list
from bk_core.client.log.lists import create_log
from bk_core.client.log.reader import LogReader
from bk_core.client.log.writer import LogWriter
from bk_core.metadata import open_store
from bk_core.protocol.ledger.metadata import LedgerState
from bk_core.protocol.log.segments import LogProperties
from tests.integration.patience import PATIENT

_NUMBERS = itertools.count()
ONE = {"ensemble_size": 1, "write_quorum_size": 1, "ack_quorum_size": 1}
RAW = LogProperties(entry_format="raw", **ONE)


class World:
    """A place in one ZooKeeper for clusters side by side."""

    def __init__(self, zookeeper: ZooKeeperProcess, directory: Path) -> None:
        self.address = zookeeper.connect_string
        self.parent = f"/world{next(_NUMBERS)}"
        self.kazoo = KazooClient(hosts=self.address)
        self.kazoo.start(timeout=30)
        self._directory = directory
        self._opened: list[Any] = []

    def uri(self, name: str) -> str:
        return f"zk://{self.address}{self.parent}/{name}"

    def cluster(self, name: str) -> EmbeddedBookie:
        """Initialise it and start its bookie."""
        store = self.opened(open_store(self.uri(name)))
        store.initialize_cluster()
        bookie: EmbeddedBookie = EmbeddedBookie(self._directory / f"{name}-{next(_NUMBERS)}", "127.0.0.1", 0, store).start()
        return self.opened(bookie)

    def connect(self, name: str, **settings: Any) -> bk_core.BookKeeper:
        client: bk_core.BookKeeper = self.opened(bk_core.connect(self.uri(name), limits=PATIENT, **settings))
        return client

    def opened(self, thing: Any) -> Any:
        self._opened.append(thing)
        return thing

    def stop(self) -> None:
        """Bookies and clients, the newest first."""
        while self._opened:
            self._opened.pop().close()

    def wipe(self, *names: str) -> None:
        for name in names:
            self.kazoo.delete(f"{self.parent}/{name}", recursive=True)

    def close(self) -> None:
        self.stop()
        self.kazoo.stop()
        self.kazoo.close()


def written(client: bk_core.BookKeeper, name: str, entries: int = 3) -> list[int]:
    """A log of so many segments of one entry; its ledgers."""
    create_log(client, name, RAW, exist_ok=True)
    with LogWriter.open(client, name) as writer:
        for i in range(entries):
            writer.append(b"%d" % i)
            writer.roll()
    return [segment.ledger_id for segment in read_ledger_list(client, name).segments]


def strangers(client: bk_core.BookKeeper, count: int) -> list[Any]:
    """Ledgers of nobody's log that are being written."""
    writers = [client.create_ledger(**ONE) for _ in range(count)]
    for writer in writers:
        writer.append(b"of a stranger")
    return writers


def check_strangers(client: bk_core.BookKeeper, writers: list[Any]) -> None:
    """None was lost, fenced or deleted."""
    for writer in writers:
        writer.append(b"goes on")
        assert client.ledger_metadata(writer.ledger_id).state is LedgerState.OPEN
        assert writer.last_add_confirmed >= 1


def entries_of(client: bk_core.BookKeeper, name: str) -> list[bytes]:
    with LogReader(client, name) as reader:
        return [payload for run in reader.read() for payload in run.payloads()]


def as_before(world: World, name: str, log: str) -> None:
    """Store a log's list at the old root, in format 2, as earlier programs did."""
    old = f"{world.parent}/bk-logs"
    for kind in ("logs", "intents"):
        world.kazoo.ensure_path(f"{old}/{kind}")
    value = json.loads(world.kazoo.get(f"{world.parent}/{name}-logs/logs/{log}")[0])
    del value["cluster"]
    world.kazoo.create(f"{old}/logs/{log}", json.dumps({**value, "format": 2}).encode())
    world.kazoo.delete(f"{world.parent}/{name}-logs", recursive=True)


ACTIONS: dict[str, Callable[[bk_core.BookKeeper], Any]] = {
    "read": lambda client: entries_of(client, "web"),
    "open a writer": lambda client: LogWriter.open(client, "web"),
    "collect": lambda client: gc_log(client, "web", min_age_s=0),
    "delete": lambda client: delete_log(client, "web"),
}


def bk(capsys: pytest.CaptureFixture[str], uri: str, *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    status = run([*arguments, "--uri", uri])
    said = capsys.readouterr()
    return status, said.out, said.err


COMMANDS = [
    ("log", "ls"),
    ("log", "show", "web"),
    ("log", "tail", "web"),
    ("log", "trim", "web", "--keep-bytes", "1"),
    ("log", "gc"),
    ("log", "rm", "web", "--yes"),
]
