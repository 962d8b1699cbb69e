"""Bookies that are killed for good, or start again, without the wait for the end of a session.

ZooKeeper keeps the registration of a killed bookie until its session ends, ten seconds later, and a bookie that starts again waits as
long. A test that is about what comes after that takes the registration away, of which clients and auditors are told in the same way. How
long it stays, and that a start waits for its end, is seen where ``LocalCluster.restart`` is called behind a kill (``test_client.py``,
``test_aio.py``, ``test_kill_bookie.py``).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from bk_core.bookie.local_cluster import LocalCluster
from bk_core.errors import NoNodeError


def unregister(cluster: LocalCluster, index: int) -> None:
    """Take away the registration of a bookie whose process has ended, and with it the wait for the end of its session."""
    assert not cluster.is_running(index), "a bookie that runs would register again"
    store: Any = cluster._store
    for readonly in (False, True):
        with suppress(NoNodeError):
            store._base.delete(store._names.registration(store._root, cluster.bookie_ids[index], readonly))
    cluster.wait_unregistered(index)


def die(cluster: LocalCluster, index: int) -> str:
    """Kill a bookie for good; return its id, by which nothing is registered any more."""
    cluster.kill(index)
    unregister(cluster, index)
    return cluster.bookie_ids[index]


def revive(cluster: LocalCluster, index: int) -> None:
    """Start a bookie again that was killed or stopped."""
    unregister(cluster, index)
    cluster.restart(index)
