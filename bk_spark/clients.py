"""Keeps one client per process and cluster, and one more for read tasks. They are keyed by process id, because Spark forks its workers from
a daemon."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import TYPE_CHECKING, cast

from bk_core.config import WireProtocol
from bk_core.protocol.limits import Limits

if TYPE_CHECKING:
    from bk_core.client import BookKeeper
    from bk_core.metadata.lazy import LazyStore
    from bk_core.metadata.store import MetadataStore
    from bk_spark.source.known import Known

# For a process with one task: many such processes write to the same bookies, which queue 10,000 adds a thread (wire-protocol.md 8.2).
LIMITS = Limits(unretired_entries_max=2000)

_clients: dict[tuple[int, str, str], BookKeeper] = {}
_readers: dict[tuple[int, str, str], tuple[str, LazyStore, BookKeeper]] = {}
_lock = threading.Lock()


def client_for(uri: str, protocol: WireProtocol = "v2") -> BookKeeper:
    """Return the process's client. It is not closed at the end, because Spark kills workers without a goodbye, and a client needs none.

    A client that has met another cluster at its root is closed at the next call and a new one made (OWN-2): the batch that met it has
    failed with ClusterChangedError, and the process need not be started again. A client inherited through a fork has no threads of its own
    in the child, so it is left alone and a new one made.
    """
    from bk_core.client import connect

    key = (os.getpid(), uri, protocol)
    _close_outlived(key)
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = connect(uri, protocol=protocol, limits=LIMITS, await_store=True)
        return client


def reading_client(uri: str, protocol: WireProtocol, known: Known) -> BookKeeper:
    """Return the process's client for reading what the driver has told about (SES-13). It has no session with the metadata store until
    something fails, because a host has many such processes. It is a client of its own, because a writer must not use such addresses."""
    from bk_core.client import connect
    from bk_core.metadata import open_store
    from bk_core.metadata.lazy import LazyStore

    key = (os.getpid(), uri, protocol)
    with _lock:
        there = _readers.get(key)
        outlived = there is not None and (there[0] != known.cluster or there[1].cluster_has_changed)
        if there is None or outlived:
            store = LazyStore(partial(open_store, uri, patient=True), known.cluster, uri)
            client = connect(uri, protocol=protocol, limits=LIMITS, await_store=True, store=cast("MetadataStore", store))
            _readers[key] = known.cluster, store, client
        _, store, client = _readers[key]
        store.know(known.addresses)
    if there is not None and outlived:
        there[2].close()
    return client


def _close_outlived(key: tuple[int, str, str]) -> None:
    with _lock:
        client = _clients.get(key)
        if client is None or not client.store.cluster_has_changed:
            return
        del _clients[key]
    client.close()  # it may wait for threads of its own, so this is done without the lock


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held the lock


os.register_at_fork(after_in_child=_new_lock)
