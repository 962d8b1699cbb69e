"""The cluster at a ledgers root (OWN-1, OWN-2, OWN-10), over nodes in memory; with ZooKeeper: tests/integration/identity/."""

from __future__ import annotations

import pytest

from bk_core.errors import ClusterChangedError, NoClusterError, NodeExistsError, NoNodeError
from bk_core.metadata.store import Version, Versioned
from bk_core.metadata.tree.cluster import ClusterAtRoot, LogRoot

ROOT = "/ledgers"


class Nodes:
    """Nodes by path, each made by a transaction of its own."""

    def __init__(self, **below: bytes) -> None:
        self.nodes = {ROOT: b"", **{f"{ROOT}/{name}": data for name, data in below.items()}}
        self.made = dict.fromkeys(self.nodes, 7)

    def get(self, path: str) -> Versioned:
        if path not in self.nodes:
            raise NoNodeError(path)
        return Versioned(self.nodes[path], 0)

    def exists(self, path: str) -> bool:
        return path in self.nodes

    def children(self, path: str) -> list[str]:
        return [node.rpartition("/")[2] for node in self.nodes if node.rpartition("/")[0] == path]

    def created(self, path: str) -> int | None:
        return self.made.get(path)

    def create_with_parents(self, path: str, data: bytes, top: str = "") -> Version:
        if path in self.nodes:
            raise NodeExistsError(path)
        self.nodes[path] = data
        return 0

    def read_ledger(self, ledger_id: int) -> Versioned:
        raise NoNodeError(str(ledger_id))

    def cluster_id(self) -> str:
        return ClusterAtRoot(self, ROOT, "zk").cluster_id()


def test_a_cluster_is_its_instance_id_or_when_its_root_was_made() -> None:
    """OWN-1"""
    assert ClusterAtRoot(Nodes(INSTANCEID=b"one\n", LAYOUT=b"1"), ROOT, "zk").cluster_id() == "one"
    old = Nodes(LAYOUT=b"1")
    assert ClusterAtRoot(old, ROOT, "zk").cluster_id() == "root-7"
    old.made[ROOT] = 8  # made anew
    assert ClusterAtRoot(old, ROOT, "zk").cluster_id() == "root-8"


def test_without_both_there_is_no_cluster() -> None:
    """OWN-1"""
    for nodes in (Nodes(), Nodes(INSTANCEID=b"\n"), Nodes(available=b"")):
        with pytest.raises(NoClusterError, match="neither LAYOUT nor INSTANCEID"):
            ClusterAtRoot(nodes, ROOT, "zk").cluster_id()


def test_a_cluster_that_lost_its_layout_is_not_believed() -> None:
    """OWN-2: one that never had a LAYOUT is."""
    bare, whole = Nodes(INSTANCEID=b"one"), Nodes(INSTANCEID=b"one", LAYOUT=b"1")
    never, had = ClusterAtRoot(bare, ROOT, "zk"), ClusterAtRoot(whole, ROOT, "zk")
    never.check()
    had.check()
    del whole.nodes[f"{ROOT}/LAYOUT"]
    with pytest.raises(NoClusterError, match="has lost its LAYOUT"):
        had.check()


def test_the_cluster_of_the_first_look_is_the_only_one() -> None:
    """OWN-10, OWN-2: nothing is made, changed or deleted in another one, and it stays noticed."""
    nodes = Nodes(INSTANCEID=b"one", LAYOUT=b"1")
    cluster = ClusterAtRoot(nodes, ROOT, "zk")
    cluster.check_unchanged()  # nobody has asked yet which one this is
    assert cluster.cluster_id() == "one"
    cluster.check_unchanged()
    nodes.nodes[f"{ROOT}/INSTANCEID"] = b"two"
    for look in (cluster.check_unchanged, cluster.check, cluster.cluster_id):
        with pytest.raises(ClusterChangedError, match="holds cluster two now; it was cluster one"):
            look()
    assert cluster.has_changed
    del nodes.nodes[f"{ROOT}/INSTANCEID"], nodes.nodes[f"{ROOT}/LAYOUT"]
    with pytest.raises(NoClusterError, match="it was cluster one before"):
        cluster.check_unchanged()


def test_two_first_writers_decide_once_where_logs_lie() -> None:
    """OWN-8: the slower one goes where the faster one said."""
    nodes = Nodes(INSTANCEID=b"one", LAYOUT=b"1")
    slower = LogRoot(nodes, nodes, None, "/ledgers-logs", "/bk-logs")
    make = nodes.create_with_parents

    def overtaken(path: str, data: bytes, top: str = "") -> Version:
        nodes.nodes.setdefault(path, b'{"logRoot": "/bk-logs"}')
        return make(path, data, top)

    nodes.create_with_parents = overtaken  # type: ignore[method-assign]
    assert slower.find(writing=True) == slower.find() == "/bk-logs"
