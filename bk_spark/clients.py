"""One client per process and cluster. Keyed by process id, because Spark forks its Python workers from a daemon."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from bk_core.protocol.limits import Limits

if TYPE_CHECKING:
    from bk_core.client import BookKeeper

# Of a process with one task: many of them write to the same bookies, which queue 10,000 adds a thread (wire-protocol.md 8.2).
LIMITS = Limits(unretired_entries_max=2000)

_clients: dict[tuple[int, str, str], BookKeeper] = {}
_lock = threading.Lock()


def client_for(uri: str, protocol: str = "v2") -> BookKeeper:
    """The process's client. Not closed at the end: Spark kills workers without a goodbye, and a client needs none.

    One that has met another cluster at its root is closed at the next call and a new one made (OWN-2): the batch that met it has failed
    with ClusterChangedError, and the process need not be started again.
    A client inherited through a fork has no threads of its own in the child, so it is left alone and a new one made.
    """
    from bk_core.client import connect

    key = (os.getpid(), uri, protocol)
    _close_outlived(key)
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = connect(uri, protocol="v3" if protocol == "v3" else "v2", limits=LIMITS, await_store=True)
        return client


def _close_outlived(key: tuple[int, str, str]) -> None:
    with _lock:
        client = _clients.get(key)
        if client is None or not client.store.cluster_has_changed:
            return
        del _clients[key]
    client.close()  # it may wait for threads of its own, so others are not kept out meanwhile


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_new_lock)
