"""A gateway, its store and a client for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bk_spark.checkpoint.gateway import Gateway
from bk_spark.checkpoint.staging import CheckpointFiles
from tests.unit.spark.checkpoint_client import Client
from tests.unit.spark.memory_files import MemoryFiles


@pytest.fixture
def store() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def gateway(store: MemoryFiles) -> Iterator[Gateway]:
    gateway = Gateway()
    gateway.files["x"] = CheckpointFiles(store, 10)
    yield gateway
    gateway.close()


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    client = Client(gateway)
    yield client
    client.close()
