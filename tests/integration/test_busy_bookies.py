"""Apache's bookies queue 10,000 adds a thread and refuse the next one, or close its connection (wire-protocol.md 8.2)."""

from __future__ import annotations

import logging
from array import array
from collections import deque
from concurrent.futures import Future

import pytest

import bk_core
from bk_core.bookie.local_cluster import LocalCluster

LEDGERS, RUNS, RUN_ENTRIES, SIZE = 8, 20, 2000, 100


@pytest.mark.apache
def test_a_client_with_many_ledgers_fills_no_bookie_s_queue(apache_cluster: LocalCluster, caplog: pytest.LogCaptureFixture) -> None:
    """Each of them alone could have thousands of adds under way: refusals would end them, because there is no fourth bookie."""
    values = bytes(SIZE * RUN_ENTRIES)
    offsets = array("q", range(0, len(values) + 1, SIZE))
    with caplog.at_level(logging.INFO, logger="bk_core"), bk_core.connect(apache_cluster.uri, busy_resends_max=0) as bk:
        ledgers = [bk.create_ledger() for _ in range(LEDGERS)]
        waiting: deque[Future[int]] = deque()
        for _ in range(RUNS):
            waiting.extend(ledger.append_run_future(values, offsets) for ledger in ledgers)
        while waiting:
            waiting.popleft().result(timeout=60)
        for ledger in ledgers:
            metadata = ledger.close()
            assert (metadata.last_entry_id, len(metadata.fragments)) == (RUNS * RUN_ENTRIES - 1, 1)
    assert not [line for line in caplog.messages if "failed" in line or "lost" in line]
