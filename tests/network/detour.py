"""Clients whose way to each bookie goes through a proxy of their own."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client import BookKeeper, connect
from bk_core.metadata import open_store
from tests.network.proxy import Link, Proxy
from tests.soak.cluster import ThroughProxy


class Detour:
    """Links to all bookies of a cluster. Use it with ``with``; it closes the clients that it made."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.proxy = Proxy()
        self.clients: list[BookKeeper] = []
        self.owner = "client"
        self.elsewhere: tuple[str, int] | None = None  # where new connections are sent to instead

    def link(self, bookie: str) -> Link:
        host, port = bookie.rsplit(":", 1)
        return self.proxy.link(self.owner, bookie, host, int(port))

    @property
    def links(self) -> list[Link]:
        return [self.link(bookie) for bookie in self.cluster.bookie_ids]

    @property
    def brought(self) -> int:
        """Bytes that came to the clients."""
        return sum(link.brought for link in self.links)

    @property
    def carried(self) -> int:
        """Bytes both ways."""
        return sum(link.carried for link in self.links)

    def throttle(self, bytes_per_s: float) -> None:
        for link in self.links:
            self.proxy.throttle(link, bytes_per_s)

    def delay(self, seconds: float) -> None:
        for link in self.links:
            self.proxy.delay(link, seconds)

    def cut(self) -> None:
        for link in self.links:
            self.proxy.cut(link)

    def connect(self, **settings: Any) -> BookKeeper:
        def through(bookie: str, host: str, port: int) -> tuple[str, int]:
            if self.elsewhere is not None:
                return self.elsewhere
            return "127.0.0.1", self.proxy.link(self.owner, bookie, host, port).listen_port

        store: Any = ThroughProxy(open_store(self.cluster.uri), through)
        client = connect(self.cluster.uri, store=store, **settings)
        self.clients.append(client)
        return client

    def close(self) -> None:
        for client in self.clients:
            client.close()
        self.proxy.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
