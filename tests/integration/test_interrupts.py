"""Real SIGINTs at random moments of every blocking call (interrupted.py), on a quick cluster and on a slow one with a bookie that stops.

A few hundred here; ``BK_INTERRUPTS=1000`` (``make interrupts``) sends as many to each. The seed is printed, or given by ``BK_SEED``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bk_core.bookie.local_cluster import LocalCluster
from tests.network.stopping import stop_process

COUNT = int(os.environ.get("BK_INTERRUPTS", "0"))
SHORT = {"quick": 150, "slow": 60}
STOPPED_S, GOES_S = 0.3, 0.7


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["quick", pytest.param("slow", marks=pytest.mark.deep)])
def test_after_every_interrupt_handles_work_on(running_clusters: Callable[[str], LocalCluster], kind: str) -> None:
    cluster = running_clusters("embedded")
    seed = int(os.environ.get("BK_SEED", random.randrange(1 << 30)))
    print(f"BK_SEED={seed}")
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.integration.interrupted", cluster.uri, str(seed)]
    command += [str(COUNT or SHORT[kind]), kind]
    limit_s = time.monotonic() + 120 + 5 * COUNT
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        stopped = cluster.pid(0)
        assert stopped is not None
        try:
            while process.poll() is None and time.monotonic() < limit_s:
                if kind == "slow":
                    stop_process(stopped)
                    with_timeout(process, STOPPED_S)
                    os.kill(stopped, signal.SIGCONT)
                with_timeout(process, GOES_S)
        finally:
            os.kill(stopped, signal.SIGCONT)
            if process.poll() is None:
                process.send_signal(signal.SIGABRT)  # says where every thread stands
        output, errors = process.communicate()
    assert process.returncode == 0, f"BK_SEED={seed}\n{errors[-6000:]}"
    told = json.loads(output.splitlines()[-1])
    print(told)
    assert told["interrupts"] == (COUNT or SHORT[kind]) and told["during"] and not told["torn"]


def with_timeout(process: subprocess.Popen[str], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return
