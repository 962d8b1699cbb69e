"""Other Sparks than the shared session, each in a process of its own; what is killed costs no row and doubles none.

``make deep-tests`` runs one of them; ``make deployments`` all (BK_DEPLOYMENTS=all).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client.log.history import read_log
from bk_core.client.log.janitor import gc_log

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.deep]

ROOT = Path(__file__).resolve().parents[2]
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.executorIdleTimeout": "1s",
    "spark.dynamicAllocation.cachedExecutorIdleTimeout": "1s",
    "spark.dynamicAllocation.shuffleTracking.timeout": "1s",
}
CLUSTER = "local-cluster[2,1,1024]"
NO_REUSE = {"spark.python.worker.reuse": "false"}
ALWAYS: dict[str, dict[str, Any]] = {"local-cluster, executor lost": {"master": CLUSTER, "victims": ["executor"]}}
MORE: dict[str, dict[str, Any]] = {
    "worker reuse off, daemons killed, session made again": {
        "master": "local[2,4]",
        "settings": NO_REUSE,
        "between": True,
        "again": True,
        "victims": ["daemon"],
    },
    "workers and daemons killed": {"master": "local[2,4]", "between": True, "victims": ["worker", "daemon", "worker"]},
    "Unix sockets, workers and daemons killed": {
        "master": "local[2,4]",
        "settings": {"spark.python.unix.domain.socket.enabled": "true"},
        "between": True,
        "victims": ["worker", "daemon", "worker"],
    },
    "no retries of tasks": {"master": "local[2]", "victims": ["worker", "daemon"]},
    "worker killed without reuse": {"master": "local[2,4]", "settings": NO_REUSE, "victims": ["worker"]},
    "executors lost again and again": {"master": CLUSTER, "victims": ["executor", "worker", "executor", "daemon"]},
    "dynamic allocation": {"master": CLUSTER, "settings": DYNAMIC, "victims": ["executor"], "idle_executors": True},
    "Spark Connect": {"master": "local[2]", "remote": True, "between": True, "again": True},
}
CASES = {**ALWAYS, **(MORE if os.environ.get("BK_DEPLOYMENTS") == "all" else {})}


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
def test_nothing_is_lost_doubled_or_left_over(case: str, cluster: LocalCluster, client: Any, tmp_path: Path) -> None:
    before = set(client.list_ledgers())
    log = "d-" + "".join(c if c.isalnum() else "-" for c in case)
    job = {"uri": cluster.uri, "log": log, "directory": str(tmp_path / "work"), **CASES[case]}
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.deployment", json.dumps(job)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=840,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"{case}: {found}")
    assert found["read"] == found["written"] > 0 and found["doubled"] == 0 and found["missing"] == 0
    assert found["kills"] >= len(job.get("victims", ()))
    listed: set[int] = set()
    for name in (f"{log}-in", f"{log}-out"):
        gc_log(client, name, min_age_s=0)
        view = read_log(client, name)
        listed.update(segment.ledger_id for segment in view.segments(view.first_position.seq, view.next_seq - 1))
        assert client.store.children(f"intents/{name}") == []
    assert set(client.list_ledgers()) - before == listed
