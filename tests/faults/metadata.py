"""The kinds of metadata store that cells run on: the server that the harness kills, and what a store inside Spark's processes can lose.

Both kinds lose a connection in the same way: the sockets of this process to the servers are shut down. A session is another thing at each.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil  # type: ignore[import-untyped, unused-ignore]

from bk_core.bookie.etcd_process import EtcdProcess
from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from tests.etcd_control import Control

LEASE_TIMEOUT_S = 10.0
Address = tuple[str, int]
Server = ZooKeeperProcess | EtcdProcess


@dataclass(frozen=True)
class Kind:
    """``name``: of the command line. ``servers``: those that a store of this kind speaks to. ``expire``: end the session of a store."""

    name: str
    scheme: str
    process: type[ZooKeeperProcess] | type[EtcdProcess]
    servers: Callable[[Any], Iterable[Address]]
    expire: Callable[[Any], None]

    def uri(self, server: Server) -> str:
        return f"{self.scheme}://{server.connect_string}/ledgers"

    def cut(self, store: Any) -> None:
        """End the connection of a store in this process, and nobody else's."""
        if not cut_connections(port for _, port in self.servers(store)):
            raise RuntimeError("the store has no connection that could be cut")


def cut_connections(ports: Iterable[int]) -> int:
    """Shut down the sockets of this process that are connected to these ports. How many there were."""
    wanted, found = set(ports), 0
    for one in psutil.Process().net_connections("tcp"):
        if one.raddr and one.raddr.port in wanted:
            with suppress(OSError), socket.socket(fileno=os.dup(one.fd)) as shared:
                shared.shutdown(socket.SHUT_RDWR)
                found += 1
    return found


def revoke_leases(server: Server) -> None:
    """End every session at an etcd at once, those of the bookies too."""
    control = Control(server.connect_string)
    for lease in control.leases():
        with suppress(AssertionError):  # it has ended by itself
            control.revoke(lease)


def _hosts(addresses: Iterable[Address]) -> str:
    return ",".join(f"{host}:{port}" for host, port in addresses)


def _expire_zookeeper(store: Any) -> None:
    """A second client takes the session over and closes it."""
    from kazoo.client import KazooClient

    client = store._link.client
    other = KazooClient(hosts=_hosts(client.hosts), client_id=client.client_id)
    other.start()
    other.stop()
    other.close()


def _expire_etcd(store: Any) -> None:
    """All that a client has at etcd goes: its lease is revoked, its connection ends, and its watches find their revisions compacted. The
    lease is taken before, because a client takes none for as long as it makes no ephemeral key."""
    control = Control(_hosts(store._link._servers))
    control.revoke(store._lease.taken(LEASE_TIMEOUT_S))
    control.compact()
    ETCD.cut(store)


ZOOKEEPER = Kind("zookeeper", "zk", ZooKeeperProcess, lambda store: store._link.client.hosts, _expire_zookeeper)
ETCD = Kind("etcd", "etcd", EtcdProcess, lambda store: store._link._servers, _expire_etcd)
KINDS = {kind.name: kind for kind in (ZOOKEEPER, ETCD)}


def kind_of(store: Any) -> Kind:
    """The kind of an open store."""
    return next(kind for kind in KINDS.values() if type(store).__module__.startswith(f"bk_core.metadata.{kind.name}."))
