"""One case with two restarts on real bookies and a real Spark, the same each time; all of them: ``make checkpoint-restarts``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import bk_core
from bk_core.bookie.apache import find_java
from bk_core.errors import BookieUnavailableError
from tests.checkpoints.cases import cases
from tests.checkpoints.play import Plan
from tests.checkpoints.run import BOOKIES, play_all
from tests.faults.harness import LEDGERS

SEED = int(os.environ.get("BK_SEED") or 14)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_restarts_change_nothing(tmp_path: Path) -> None:
    try:
        find_java()
    except BookieUnavailableError as error:
        pytest.skip(str(error))
    said: list[str] = []
    with bk_core.local_cluster(bookies=BOOKIES) as cluster:
        judged = play_all([case for case in cases() if case.quick], tmp_path, SEED, Plan(2, 1, (LEDGERS,)), 1, said.append, cluster)
    assert judged and all(one.good and one.kills and one.stops and one.states for one in judged), "\n".join(said)
