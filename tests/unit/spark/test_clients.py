"""The clients that a process of Spark keeps."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bk_core.client.log.lists import create_log, list_logs
from bk_core.errors import ClientClosedError, ClusterChangedError
from bk_core.metadata import open_store
from bk_spark import clients
from tests.spark_clients import close_clients


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    """Yield the store of a cluster that only this test knows."""
    made: Any = open_store(f"memory://{tmp_path.name}")
    made.initialize_cluster()
    yield made
    made.close()
    close_clients()


def test_a_cluster_that_was_made_anew_costs_one_batch_and_not_the_process(store: Any) -> None:
    """OWN-2: who meets the other cluster is told; the next use is of a client that knows only the new one."""
    uri = f"memory://{store._name}"
    before = clients.client_for(uri)
    other = clients.client_for(uri, "v3")
    assert clients.client_for(uri) is before
    store._world.instance_id = str(uuid.uuid4())
    assert clients.client_for(uri) is before, "nobody has met the other cluster yet"
    with pytest.raises(ClusterChangedError):
        create_log(before, "a")
    after = clients.client_for(uri)
    assert after is not before and clients.client_for(uri) is after
    create_log(after, "a")
    assert list_logs(after) == ["a"]
    with pytest.raises(ClientClosedError):
        before.store.read("logs/a")
    assert clients.client_for(uri, "v3") is other, "each client finds out by itself"
