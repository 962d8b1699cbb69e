"""The cluster under test: a metadata store with short sessions, bookies, and a way through the proxy for every client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bk_core.bookie import apache
from bk_core.bookie.local_cluster import LocalCluster, local_cluster
from bk_core.client import BookKeeper, connect
from bk_core.metadata import open_store
from bk_core.metadata.store import MetadataStore
from tests.network.proxy import Link, Proxy
from tests.soak.stores import STORES

OPERATION_TIMEOUT_S = 40.0
# Different kinds of writers and recoverers side by side (EC-3, EC-8, D1); who is not here has the defaults.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "author-2": {"ensemble_change": "delayed", "commit_during_change": True},
    "child": {"commit_during_change": True, "close_in_recovery": True},
    "recoverer-b": {"ensemble_change": "delayed"},
    "leader-2": {"close_in_recovery": True},
}


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
    """Context manager. ``version`` is an Apache release; None for embedded bookies. ``metadata`` is one of STORES. With ``secured``,
    embedded bookies ask for a certificate and a password."""

    def __init__(self, directory: Path, bookies: int, version: str | None, metadata: str = "zookeeper", secured: bool = False) -> None:
        self.directory = directory
        self.version = version
        self._resources = ExitStack()
        try:
            if version is not None:
                apache.resolve(version)
            self.store = STORES[metadata](directory)
            self._resources.callback(self.store.kill)
            self.store.start()
            self.bookies: LocalCluster = self._resources.enter_context(
                local_cluster(
                    bookies,
                    directory / "cluster",
                    apache=version,
                    zookeeper=self.store.uri(self.store.ports),
                    tls=secured,
                    sasl=secured,
                )
            )
            self.proxy = Proxy()
            self._resources.callback(self.proxy.close)
        except BaseException:
            self._resources.close()
            raise

    @property
    def uri(self) -> str:
        return self.bookies.uri

    def store_links(self, owner: str) -> list[Link]:
        """Links to the servers of the metadata store, in their order."""
        return [self.proxy.link(owner, f"{self.store.name} {at}", "127.0.0.1", port) for at, port in enumerate(self.store.ports)]

    def is_to_store(self, link: Link) -> bool:
        return link.target.startswith(self.store.name)

    def uri_through(self, owner: str) -> str:
        """The URI of the metadata store for a client that reaches it over its own links, with the options by which bookies admit it."""
        place, _, _ = self.store.uri([link.listen_port for link in self.store_links(owner)]).partition("?")
        return f"{place}?{self.uri.partition('?')[2]}"

    @property
    def password(self) -> str | None:
        """The password that the bookies ask for, None if they ask for none."""
        path = self.directory / "cluster" / "security" / "password"
        return path.read_text().strip() if path.exists() else None

    def bookie_links(self, owner: str) -> dict[str, Link]:
        """Return the links to the bookies, by bookie id."""
        addresses = {bookie: bookie.rsplit(":", 1) for bookie in self.bookies.bookie_ids}
        return {bookie: self.proxy.link(owner, bookie, host, int(port)) for bookie, (host, port) in addresses.items()}

    def connect(self, owner: str, protocol: str) -> BookKeeper:
        """A client whose every connection, to bookies and store, goes through links of its own, with ``SETTINGS`` of its own."""
        ports = {bookie: link.listen_port for bookie, link in self.bookie_links(owner).items()}
        return connect_through(self.uri_through(owner), ports, protocol, SETTINGS.get(owner, {}))

    def connect_directly(self, protocol: str) -> BookKeeper:
        return connect(self.uri, protocol=protocol, operation_timeout_s=OPERATION_TIMEOUT_S, await_store=True)

    def close(self) -> None:
        self._resources.close()

    def __enter__(self) -> SoakCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect_through(uri: str, ports: dict[str, int], protocol: str, settings: Mapping[str, Any]) -> BookKeeper:
    """A client that reaches each bookie at these ports of this machine. ``settings``: further ones of ClientConfig."""

    def detour(bookie_id: str, host: str, port: int) -> tuple[str, int]:
        return ("127.0.0.1", ports[bookie_id]) if bookie_id in ports else (host, port)

    store: Any = ThroughProxy(open_store(uri, patient=True), detour)
    return connect(uri, protocol=protocol, store=store, operation_timeout_s=OPERATION_TIMEOUT_S, **settings)
