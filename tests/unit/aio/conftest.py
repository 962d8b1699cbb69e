"""A cluster for tests of the asyncio client: bookies on sockets in this process, metadata in memory; and what watches an event loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from bk_core.bookie.server import EmbeddedBookie
from bk_core.metadata import open_store


@pytest.fixture
def uri(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster of three bookies."""
    uri = f"memory://{tmp_path.name}"
    with closing(open_store(uri)) as store, ExitStack() as bookies:
        store.initialize_cluster()
        for number in range(3):
            bookies.enter_context(closing(EmbeddedBookie(tmp_path / str(number), "127.0.0.1", 0, store).start()))
        yield uri
