"""The history of a query that never ran, in a real store on real bookies."""

from __future__ import annotations

import json

import pytest

import bk_core
from bk_core.bookie.apache import find_java
from bk_core.client.files.store import FileStore
from bk_core.errors import BookieUnavailableError
from tests.checkpoints.figures.history import RETAINED, SNAPSHOT_BYTES, Task, write


@pytest.mark.slow
def test_a_history_is_what_spark_would_have_left(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        find_java()
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    with bk_core.local_cluster(bookies=3) as cluster, bk_core.connect(cluster.uri) as client, FileStore.open(client, "h") as store:
        for batches in (210, 215):  # the second goes on behind the first
            write(client, store, Task(cluster.uri, "h", batches, [150, 200, batches], 1, str(cluster.directory)))
            there = [f"/{folder}/{number}" for folder in ("commits", "offsets") for number in range(batches - RETAINED, batches)]
            found = [status.path for folder in ("/commits", "/offsets") for status in store.listing(folder)]
            assert sorted(found) == sorted(there)
        assert store.read("/offsets/214").endswith(b'{"offset":21500,"timestamp":215000}')
        state = {status.name for status in store.listing("/state/0/0")}
        assert state == {f"{version}.delta" for version in range(100, 216)} | {"100.snapshot", "200.snapshot"}
    first, second, *_, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert [look["batches"] for look in (first, second, last)] == [150, 200, 215]
    assert [look["dataBytes"] for look in (first, second, last)] == [SNAPSHOT_BYTES, 2 * SNAPSHOT_BYTES, 2 * SNAPSHOT_BYTES]
    assert last["dataLedgers"] == 1 and last["files"] == 2 * RETAINED + len(state)
    assert last["logLedgers"] >= 1 and last["logBytes"] > last["records"] and last["nodes"] > 10 and last["diskBytes"] > last["logBytes"]
