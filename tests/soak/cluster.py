"""The cluster under test: ZooKeeper with short sessions, bookies, and a way through the proxy for every client."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bk_core.bookie import apache
from bk_core.bookie.children import accepts_connections, free_port, spawn
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from bk_core.bookie.zookeeper_process import MAIN_CLASS, find_jars
from bk_core.client import BookKeeper, connect
from bk_core.errors import OperationTimeoutError
from bk_core.metadata import open_store
from bk_core.metadata.store import MetadataStore
from tests.network.proxy import Link, Proxy

SESSION_S = 4.0  # the longest session that the server grants, to bookies and clients alike
ZOOKEEPER = "zookeeper"
OPERATION_TIMEOUT_S = 40.0
# Different kinds of writers and recoverers side by side (EC-3, EC-8, D1); who is not here has the defaults.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "author-2": {"ensemble_change": "delayed", "commit_during_change": True},
    "child": {"commit_during_change": True, "close_in_recovery": True},
    "recoverer-b": {"ensemble_change": "delayed"},
    "leader-2": {"close_in_recovery": True},
}
_START_TIMEOUT_S = 60.0


class ShortSessionZooKeeper:
    """A server that grants sessions of at most ``SESSION_S``, so that killed bookies may come back soon. Keeps its data when killed."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self._log = directory / "zookeeper.log"
        configuration = directory / "zoo.cfg"
        configuration.write_text(
            f"dataDir={directory / 'zookeeper-data'}\nclientPort={self.port}\nclientPortAddress=127.0.0.1\ntickTime=500\n"
            f"minSessionTimeout=1000\nmaxSessionTimeout={int(SESSION_S * 1000)}\nadmin.enableServer=false\n"
        )
        java = [apache.find_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", find_jars()]
        self._command = [*java, MAIN_CLASS, str(configuration)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it takes connections."""
        with self._log.open("ab") as log:
            self._process = spawn(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not accepts_connections(self.port):
            if time.monotonic() > deadline:
                raise OperationTimeoutError(f"ZooKeeper does not listen on port {self.port}; see {self._log}")
            time.sleep(0.1)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class ThroughProxy:
    """A metadata store whose bookies are found at the proxy. Everything else is the real store's.

    This puts the proxy on the client's side of things: the bookies register their real addresses, and only clients that are made with
    such a store take the detour. Apache's Java client does not.
    """

    def __init__(self, store: MetadataStore, detour: Callable[[str, str, int], tuple[str, int]]) -> None:
        self._store = store
        self._detour = detour

    def resolve(self, bookie_id: str) -> tuple[str, int]:
        return self._detour(bookie_id, *self._store.resolve(bookie_id))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class SoakCluster:
    """Context manager. ``version`` is an Apache release; None for embedded bookies."""

    def __init__(self, directory: Path, bookies: int, version: str | None) -> None:
        self.directory = directory
        self.version = version
        self._resources = ExitStack()
        try:
            if version is not None:
                apache.resolve(version)
            self.zookeeper = ShortSessionZooKeeper(directory)
            self._resources.callback(self.zookeeper.kill)
            self.zookeeper.start()
            self.bookies: LocalCluster = self._resources.enter_context(
                local_cluster(bookies, directory / "cluster", apache=version, zookeeper=f"127.0.0.1:{self.zookeeper.port}")
            )
            self.proxy = Proxy()
            self._resources.callback(self.proxy.close)
        except BaseException:
            self._resources.close()
            raise

    @property
    def uri(self) -> str:
        return self.bookies.uri

    def zookeeper_link(self, owner: str) -> Link:
        return self.proxy.link(owner, ZOOKEEPER, "127.0.0.1", self.zookeeper.port)

    def bookie_links(self, owner: str) -> dict[str, Link]:
        """By bookie id."""
        addresses = {bookie: bookie.rsplit(":", 1) for bookie in self.bookies.bookie_ids}
        return {bookie: self.proxy.link(owner, bookie, host, int(port)) for bookie, (host, port) in addresses.items()}

    def connect(self, owner: str, protocol: str) -> BookKeeper:
        """A client whose every connection, ZooKeeper's included, goes through links of its own, with ``SETTINGS`` of its own."""
        ports = {bookie: link.listen_port for bookie, link in self.bookie_links(owner).items()}
        return connect_through(self.zookeeper_link(owner).listen_port, ports, protocol, SETTINGS.get(owner, {}))

    def connect_directly(self, protocol: str) -> BookKeeper:
        return connect(self.uri, protocol=protocol, operation_timeout_s=OPERATION_TIMEOUT_S, await_store=True)

    def close(self) -> None:
        self._resources.close()

    def __enter__(self) -> SoakCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect_through(zookeeper_port: int, ports: dict[str, int], protocol: str, settings: Mapping[str, Any]) -> BookKeeper:
    """A client that reaches ZooKeeper and each bookie at these ports of this machine. ``settings``: further ones of ClientConfig."""
    uri = f"zk://127.0.0.1:{zookeeper_port}/ledgers?session_timeout_ms={int(SESSION_S * 1000)}"

    def detour(bookie_id: str, host: str, port: int) -> tuple[str, int]:
        return ("127.0.0.1", ports[bookie_id]) if bookie_id in ports else (host, port)

    store: Any = ThroughProxy(open_store(uri, patient=True), detour)
    return connect(uri, protocol=protocol, store=store, operation_timeout_s=OPERATION_TIMEOUT_S, **settings)
