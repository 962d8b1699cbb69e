"""A client that cannot be made gives back all that was built for it."""

from __future__ import annotations

import gc
import os
import threading
import uuid
from collections.abc import Callable

import pytest

import bk_core
from bk_core.config import ClientConfig
from bk_core.errors import MetadataUnavailableError
from bk_core.metadata.memory import MemoryStore
from bk_core.metadata.store import BookieView, Watch
from bk_core.net.reactor import Reactor

TRIES = 20  # each left a thread or two descriptors; what other tests left behind in this process may come and go meanwhile


class Failing(MemoryStore):
    """A store that is there until the registry is read."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex)
        self.initialize_cluster()

    def watch_bookies(self, callback: Callable[[BookieView], None]) -> Watch:
        raise MetadataUnavailableError("ZooKeeper did not answer")


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def threads() -> int:
    return sum(thread.name.startswith(("bookkeeper", "bk-")) for thread in threading.enumerate())


@pytest.mark.parametrize("placement", ["random", "rack-aware"])
def test_a_client_whose_first_look_at_the_registry_fails_leaves_nothing(placement: str) -> None:
    """Two descriptors and a thread stayed for each try."""
    before = descriptors(), threads()
    for _ in range(TRIES):
        with pytest.raises(MetadataUnavailableError):
            bk_core.connect("memory://failing", store=Failing(), placement=placement)
        with pytest.raises(MetadataUnavailableError):  # the store is the caller's here
            bk_core.BookKeeper(ClientConfig("memory://failing", placement=placement), Failing())
    assert descriptors() < before[0] + TRIES and threads() < before[1] + TRIES


def test_a_reactor_without_a_thread_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of threads is met where clients are many."""

    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    before = descriptors()
    monkeypatch.setattr(threading.Thread, "start", start)
    for _ in range(TRIES):
        with pytest.raises(RuntimeError):
            Reactor()
    monkeypatch.undo()
    assert descriptors() < before + TRIES
