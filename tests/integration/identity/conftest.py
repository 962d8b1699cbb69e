"""A ZooKeeper for each file of tests, a place in it for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bk_core.bookie.zookeeper_process import ZooKeeperProcess
from tests.integration.identity.clusters import World


@pytest.fixture(scope="module", name="zookeeper")
def a_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    with ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper")) as process:
        yield process


@pytest.fixture
def world(zookeeper: ZooKeeperProcess, tmp_path: Path) -> Iterator[World]:
    made = World(zookeeper, tmp_path)
    yield made
    made.close()
