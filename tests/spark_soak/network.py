"""A network that can be made bad between a cluster and everybody who uses it, Spark's processes included.

Clients find bookies by their registrations. ``Detour`` changes each registration so that it names a link of the proxy; a bookie that
registers again is changed again. ZooKeeper has a link of its own, and ``uri`` names that. The bookies themselves use no detour.
"""

from __future__ import annotations

import random
import threading
from contextlib import suppress

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException

from bk_core.bookie.local_cluster import LocalCluster
from bk_core.metadata.service_info import address_of, bookie_service_info, encode_service_info
from tests.network.proxy import IN, OUT, Link, Proxy

ZOOKEEPER = "zookeeper"
AVAILABLE = ("/ledgers/available", "/ledgers/available/readonly")
LOOK_S = 0.2


class Detour:
    """A context manager. ``uri`` is what clients connect to; ``move`` and ``link`` are for faults."""

    def __init__(self, cluster: LocalCluster) -> None:
        host, _, port = cluster.uri.removeprefix("zk://").partition("/")[0].rpartition(":")
        self.proxy = Proxy()
        self._real: dict[str, tuple[str, int]] = {}
        self._generation: dict[str, int] = {}
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._zookeeper = KazooClient(f"{host}:{port}")
        self.uri = f"zk://127.0.0.1:{self.proxy.link('all', ZOOKEEPER, host, int(port)).listen_port}/ledgers"
        self._thread = threading.Thread(target=self._run, name="detour", daemon=True)

    def __enter__(self) -> Detour:
        self._zookeeper.start()
        self._reroute()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._zookeeper.stop()
        self._zookeeper.close()
        self.proxy.close()

    @property
    def zookeeper_link(self) -> Link:
        return next(link for link in self.proxy.links if link.target == ZOOKEEPER)

    @property
    def bookies(self) -> list[str]:
        with self._lock:
            return sorted(self._real)

    def link(self, bookie: str) -> Link:
        """The link that the registration of ``bookie`` names, now or at its next look."""
        with self._lock:
            host, port = self._real[bookie]
            return self.proxy.link(f"all-{self._generation.get(bookie, 0)}", bookie, host, port)

    def move(self, bookie: str) -> Link:
        """Register ``bookie`` at another address. The link that it leaves is returned; it works until somebody makes it bad."""
        old = self.link(bookie)
        with self._lock:
            self._generation[bookie] = self._generation.get(bookie, 0) + 1
        self._reroute()
        return old

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            with suppress(KazooException):  # the next look mends it
                self._reroute()

    def _reroute(self) -> None:
        for folder in AVAILABLE:
            for bookie in self._zookeeper.get_children(folder):
                if bookie == "readonly":
                    continue
                path = f"{folder}/{bookie}"
                data, state = self._zookeeper.get(path)
                host, port = address_of(bookie, data)
                if port not in {link.listen_port for link in self.proxy.links}:
                    with self._lock:
                        self._real[bookie] = host, port
                wanted = self.link(bookie).listen_port
                if port != wanted:
                    self._zookeeper.set(path, encode_service_info(bookie_service_info("127.0.0.1", wanted)), state.version)


def spoil(kind: str, detour: Detour, rng: random.Random, hold: threading.Event) -> None:
    """Make the network bad in one way, wait, and heal it. ``hold`` ends the wait early."""
    proxy = detour.proxy
    if kind == "zookeeper silent":
        link = detour.zookeeper_link
        proxy.silence(link, OUT, IN)
    elif kind == "bookie moves":
        link = detour.move(rng.choice(detour.bookies))
        proxy.silence(link, OUT, IN)
    else:
        link = detour.link(rng.choice(detour.bookies))
        match kind:
            case "link slow":
                proxy.delay(link, rng.choice((0.05, 0.5, 2.0)))
            case "link thin":
                proxy.throttle(link, rng.choice((20_000, 200_000, 1_000_000)))
            case "link silent":
                proxy.silence(link, *rng.choice(((OUT,), (IN,), (OUT, IN))))
            case "link cut":
                proxy.cut(link, refuse=True)
            case _:
                raise ValueError(f"no fault {kind!r}")
    hold.wait(rng.uniform(2.0, 12.0))
    proxy.heal(link, cut=rng.random() < 0.5)
