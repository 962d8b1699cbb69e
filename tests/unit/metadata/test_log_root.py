"""The place where a store looks for logs before anybody has written it down (OWN-8)."""

from __future__ import annotations

from collections import Counter

from bk_core.errors import NodeExistsError, NoNodeError
from bk_core.metadata.store import Version, Versioned
from bk_core.metadata.tree.cluster import LogRoot
from bk_core.protocol.log import codec
from bk_core.protocol.log.ledger_list import LedgerList


class Nodes:
    """A store that counts what it is asked about."""

    def __init__(self, nodes: dict[str, bytes]) -> None:
        self.nodes = nodes
        self.asked: Counter[str] = Counter()

    def get(self, path: str) -> Versioned:
        self.asked[path] += 1
        if path not in self.nodes:
            raise NoNodeError(path)
        return Versioned(self.nodes[path], 0)

    def exists(self, path: str) -> bool:
        return path in self.nodes

    def children(self, path: str) -> list[str]:
        self.asked[path] += 1
        return [node.rpartition("/")[2] for node in self.nodes if node.rpartition("/")[0] == path]

    def created(self, path: str) -> int | None:
        return 1 if path in self.nodes else None

    def create_with_parents(self, path: str, data: bytes, top: str = "") -> Version:
        if path in self.nodes:
            raise NodeExistsError(path)
        self.nodes[path] = data
        return 0

    def read_ledger(self, ledger_id: int) -> Versioned:
        raise NoNodeError(str(ledger_id))

    def cluster_id(self) -> str:
        return "here"


def test_who_only_reads_looks_at_the_old_logs_once() -> None:
    """OWN-8: as long as nobody has decided, the decision is looked for at each read, and nothing else."""
    nodes = Nodes({"/bk-logs/logs/web": codec.encode(LedgerList(log_id="f00d", cluster="here"))})
    root = LogRoot(nodes, nodes, None, "/ledgers-logs", "/bk-logs")
    assert {root.find() for _ in range(10)} == {"/bk-logs"}
    assert nodes.asked == {"/ledgers-logs": 10, "/bk-logs/logs": 1, "/bk-logs/logs/web": 1}
    nodes.nodes["/ledgers-logs"] = b""  # a writer that saw the old logs deleted meanwhile
    assert {root.find() for _ in range(10)} == {"/ledgers-logs"}


def test_who_writes_looks_again_before_it_decides() -> None:
    """OWN-8."""
    nodes = Nodes({"/bk-logs/logs/web": codec.encode(LedgerList(log_id="f00d", cluster="here"))})
    root = LogRoot(nodes, nodes, None, "/ledgers-logs", "/bk-logs")
    assert root.find() == "/bk-logs"
    del nodes.nodes["/bk-logs/logs/web"]
    assert root.find(writing=True) == "/ledgers-logs" and nodes.nodes["/ledgers-logs"] == b""
