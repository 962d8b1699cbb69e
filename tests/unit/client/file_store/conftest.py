"""A client and a file store for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import bk_core
from bk_core.client.files.store import FileStore
from tests.unit.client.file_store.stores import LIMITS


@pytest.fixture
def client(uri: str) -> Iterator[bk_core.BookKeeper]:
    with bk_core.connect(uri, limits=LIMITS) as bk:
        yield bk


@pytest.fixture
def store(client: bk_core.BookKeeper) -> Iterator[FileStore]:
    with FileStore.open(client, "a") as opened:
        yield opened
