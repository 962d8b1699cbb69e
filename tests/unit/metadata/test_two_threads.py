"""Two threads at the same few lines of a store: what one of them did is not undone by the other."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from bk_core.errors import ClientClosedError
from bk_core.metadata import open_store
from bk_core.metadata.etcd.lease import Lease
from bk_core.metadata.lazy import LazyStore
from bk_core.metadata.store import BookieView

PATIENCE_S = 30.0


def test_a_watch_that_begins_while_another_ends_is_kept() -> None:
    real = open_store("memory://two-threads")
    real.initialize_cluster()
    store = LazyStore(lambda: open_store("memory://two-threads"), real.cluster_id(), "memory://two-threads")
    told: queue.SimpleQueue[BookieView] = queue.SimpleQueue()
    beginning = threading.Thread(target=lambda: store.watch_bookies(told.put))
    with store._lock:  # ``_forget`` is between its look at the list and its change of it
        before = store._on_bookies
        beginning.start()
        beginning.join(0.5)
        store._on_bookies = list(before)
    beginning.join(PATIENCE_S)
    try:
        list(store.list_ledgers())  # which opens the session
        assert told.get(timeout=PATIENCE_S) == real.bookies()
    finally:
        store.close()
        real.close()


class Granting:
    """A link to etcd that grants leases, and does nothing else."""

    connection, connected = None, True

    def __init__(self) -> None:
        self.granted = 0
        self.during: Any = lambda: None

    def call(self, method: str, request: object, timeout_s: float) -> Any:
        if method == "grant":
            self.granted += 1
            self.during()
        return SimpleNamespace(TTL=60, ID=self.granted)


def test_a_lease_that_was_just_taken_is_not_forgotten_for_the_one_before() -> None:
    lost: list[int] = []
    lease = Lease(Granting(), 60.0, lambda: lost.append(1))  # type: ignore[arg-type]
    assert lease.taken(1.0) == 1
    late = threading.Thread(target=lambda: lease.gone(1))
    with lease._lock:  # another thread notes the end of the first one, and takes the second
        late.start()
        late.join(0.5)
        assert not lost
        lease.number = 2
    late.join(PATIENCE_S)
    assert lease.number == 2 and not lost
    lease.gone(2)
    lease.gone(2)
    assert lease.number == 0 and lost == [1]
    lease.close(1.0)


def test_a_lease_that_comes_after_the_end_is_not_used() -> None:
    link = Granting()
    lease = Lease(link, 60.0, lambda: None)  # type: ignore[arg-type]
    link.during = lambda: lease.close(1.0)
    with pytest.raises(ClientClosedError):
        lease.taken(1.0)
    assert lease.number == 0 and lease._loop is None
