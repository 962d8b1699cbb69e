"""The ZooKeeper store over nodes in memory, when its cluster is not there."""

from __future__ import annotations

import pytest

from bk_core.errors import NoClusterError
from bk_core.metadata.zookeeper import store as zookeeper
from tests.simulation.owner_store import Link, Pretended, Program, Tree


class Alone(Program):
    """It is always its turn."""

    def wait(self) -> None:
        pass


def store_on(tree: Tree) -> zookeeper.ZooKeeperStore:
    link = Link(tree, Alone("alone", lambda: None), lambda: 1.0, lambda program, path: None, 0.0)
    with Pretended((zookeeper, "Link", lambda *_, **__: link)):
        return zookeeper.ZooKeeperStore(hosts="zk", root="/ledgers")


@pytest.mark.parametrize(("manager", "first"), [("flat", 0), ("hierarchical", 0), ("longhierarchical", 1 << 32)])
def test_a_number_is_not_drawn_where_the_cluster_is_gone(manager: str, first: int) -> None:
    """OWN-2: a missing node of the store's own is no answer to who wants a ledger."""
    tree = Tree(lambda: 1)
    tree.make_cluster("/ledgers", "one")
    tree.nodes["/ledgers/LAYOUT"].data = zookeeper.paths.layout_bytes(manager)
    if first:
        tree.create("/ledgers/idgen-long")
    store = store_on(tree)
    assert [store.new_ledger_id() for _ in range(2)] == [first, first + 1]
    tree.take("/ledgers")
    with pytest.raises(NoClusterError, match="there is no cluster at /ledgers"):
        store.new_ledger_id()


def test_a_node_that_no_bookie_can_have_is_no_cookie() -> None:
    """A node that somebody else left there is passed over: taken for a bookie's id, it would end the doctor with BK-ARGUMENT."""
    tree = Tree(lambda: 1)
    tree.make_cluster("/ledgers", "one")
    for path in ("/ledgers/cookies", "/ledgers/cookies/10.0.0.1:3181", "/ledgers/cookies/a b"):
        tree.create(path)
    assert store_on(tree).cookies() == ["10.0.0.1:3181"]
