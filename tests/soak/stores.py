"""The servers of the metadata store under test: one ZooKeeper, or a cluster of three etcds whose history is compacted every second."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from bk_core.bookie import apache
from bk_core.bookie.children import accepts_connections, free_port, spawn
from bk_core.bookie.etcd_process import EtcdCluster, EtcdProcess
from bk_core.bookie.zookeeper_process import MAIN_CLASS, find_jars
from bk_core.errors import OperationTimeoutError
from tests.etcd_control import Control

SESSION_S = 4.0  # of bookies and clients alike
ETCD_SERVERS = 3
_START_TIMEOUT_S = 60.0
_COMPACTION_S = 1.0


class StoreServers(Protocol):
    """The interface of both. ``name`` is that of a link to one of them."""

    name: str

    @property
    def ports(self) -> Sequence[int]: ...
    def uri(self, ports: Sequence[int]) -> str: ...
    def start(self) -> None: ...
    def kill(self) -> None: ...
    def facts(self) -> dict[str, int]: ...


class ShortSessionZooKeeper:
    """A server that grants sessions of at most ``SESSION_S``, so that killed bookies may come back soon. Keeps its data when killed."""

    name = "zookeeper"

    def __init__(self, directory: Path) -> None:
        self.ports = [free_port()]
        self._log = directory / "zookeeper.log"
        configuration = directory / "zoo.cfg"
        configuration.write_text(
            f"dataDir={directory / 'zookeeper-data'}\nclientPort={self.ports[0]}\nclientPortAddress=127.0.0.1\ntickTime=500\n"
            f"minSessionTimeout=1000\nmaxSessionTimeout={int(SESSION_S * 1000)}\nadmin.enableServer=false\n"
        )
        java = [apache.find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", find_jars()]
        self._command = [*java, MAIN_CLASS, str(configuration)]
        self._process: subprocess.Popen[bytes] | None = None

    def uri(self, ports: Sequence[int]) -> str:
        return f"zk://127.0.0.1:{ports[0]}/ledgers?session_timeout_ms={int(SESSION_S * 1000)}"

    def start(self) -> None:
        """Returns when it takes connections."""
        with self._log.open("ab") as log:
            self._process = spawn(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not accepts_connections(self.ports[0]):
            if time.monotonic() > deadline:
                raise OperationTimeoutError(f"ZooKeeper does not listen on port {self.ports[0]}; see {self._log}")
            time.sleep(0.1)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def facts(self) -> dict[str, int]:
        return {}


class EtcdServers:
    """Three servers. A thread makes them forget all revisions but the last one every second, so that watches find theirs compacted."""

    name = "etcd"

    def __init__(self, directory: Path) -> None:
        self._cluster = EtcdCluster(directory / "etcd", ETCD_SERVERS)
        self._resources = ExitStack()
        self._ended = threading.Event()
        self._compactor = threading.Thread(target=self._compact, name="compactor", daemon=True)
        self._compactions = 0

    @property
    def ports(self) -> list[int]:
        return [server.port for server in self._cluster.servers]

    def uri(self, ports: Sequence[int]) -> str:
        return f"etcd://{','.join(f'127.0.0.1:{port}' for port in ports)}/ledgers?session_timeout_ms={int(SESSION_S * 1000)}"

    def start(self) -> None:
        self._resources.enter_context(self._cluster)
        self._compactor.start()

    def kill(self) -> None:
        """End them for good."""
        self._ended.set()
        if self._compactor.ident is not None:
            self._compactor.join()
        self._resources.close()

    def one(self, rng: random.Random) -> EtcdProcess:
        return rng.choice(self._cluster.servers)

    def kill_all(self) -> None:
        for server in self._cluster.servers:
            server.kill()

    def start_all(self) -> None:
        for server in self._cluster.servers:
            server.start(wait=False)
        for server in self._cluster.servers:
            server.wait_ready()

    def move_leader(self) -> bool:
        """Return False if there was none to move."""
        try:
            Control(self._cluster.connect_string).move_leader()
        except (AssertionError, subprocess.TimeoutExpired):
            return False
        return True

    def facts(self) -> dict[str, int]:
        return {"compactions": self._compactions}

    def _compact(self) -> None:
        control = Control(self._cluster.connect_string)
        while not self._ended.wait(_COMPACTION_S):
            try:
                control.compact()
            except (AssertionError, subprocess.TimeoutExpired):  # a server is away
                continue
            self._compactions += 1


STORES: dict[str, type[ShortSessionZooKeeper] | type[EtcdServers]] = {"zookeeper": ShortSessionZooKeeper, "etcd": EtcdServers}
