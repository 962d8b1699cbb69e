"""A file store through fsspec, and an owner of it that is not fsspec's."""

from __future__ import annotations

from collections.abc import Iterator

import fsspec
import fsspec.core
import pytest

import bk_core
from bk_core.client.files import connections
from bk_core.client.files import fs as module
from bk_core.client.files.fs import BookKeeperFileSystem
from bk_core.client.files.store import FileStore


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """fsspec keeps instances for the life of the process."""
    monkeypatch.delenv(module.URI_VARIABLE, raising=False)
    monkeypatch.delenv(connections.PASSWORD_VARIABLE, raising=False)
    yield
    BookKeeperFileSystem.clear_instance_cache()


@pytest.fixture
def uri(uri: str) -> Iterator[str]:
    """The URI of a cluster. File stores that a test has left open are closed while the cluster is there: without bookies, an owner that
    has a data ledger to drop waits for half a minute."""
    yield uri
    for connection in list(connections._connections.values()):
        connection.close()


@pytest.fixture
def fs(uri: str) -> BookKeeperFileSystem:
    return fsspec.filesystem("bk", uri=uri, store="s", mode="rw")


@pytest.fixture
def owner(uri: str) -> Iterator[FileStore]:
    """Not of fsspec's, as if it were in another process."""
    with bk_core.connect(uri) as client, FileStore.open(client, "s") as store:
        store.put("/there", b"")
        yield store


@pytest.fixture
def reader(uri: str, owner: FileStore) -> BookKeeperFileSystem:
    return fsspec.filesystem("bk", uri=uri, store="s")
