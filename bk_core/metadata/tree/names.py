"""The names of the nodes that a cluster has below its root. They differ between the layouts of a metadata store (metadata.md 1.2, 6.2)."""

from __future__ import annotations

from dataclasses import dataclass

from bk_core.protocol.ledger.metadata import BookieId


@dataclass(frozen=True, slots=True)
class Names:
    """The names in one layout; without arguments those of ZooKeeper's. ``cookies`` and ``underreplication`` are the same in all."""

    layout: str = "LAYOUT"
    instance_id: str = "INSTANCEID"
    writable: str = "available"
    readonly: str = "available/readonly"

    def registration(self, root: str, bookie_id: BookieId, readonly: bool) -> str:
        """Return the path of the node with which a bookie is registered."""
        return f"{root}/{self.readonly if readonly else self.writable}/{bookie_id}"


ZOOKEEPER = Names()
APACHE_ETCD = Names("layout", "instanceid", "bookies/writable", "bookies/readonly")
