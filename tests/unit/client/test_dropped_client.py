"""A client that is dropped leaves nothing in the list of threads."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

import bk_core
from bk_core.metadata import open_store

PATIENCE_S = 120.0


def test_a_dropped_client_leaves_no_thread_in_the_list(tmp_path: Path) -> None:
    uri = f"memory://{tmp_path.name}"
    store = open_store(uri)
    store.initialize_cluster()
    before = set(threading.enumerate())
    for _ in range(10):
        bk = bk_core.connect(uri)
        session = bk._shared
        deadline = time.monotonic() + PATIENCE_S
        with pytest.warns(ResourceWarning, match="unclosed <BookKeeper"):
            del bk  # a thread that was about to let go of it may come later
            while not session.is_over or session.reactor.is_running:
                assert time.monotonic() < deadline
                time.sleep(0.001)
        del session
    deadline = time.monotonic() + PATIENCE_S
    while left := [thread for thread in threading.enumerate() if thread not in before and not thread.name.startswith("Dummy")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.001)
    assert not set(threading.enumerate()) - before
    store.close()
