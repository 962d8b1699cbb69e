"""Plays groups of cases one after the other on one cluster."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from tests.checkpoints.cases import Case
from tests.checkpoints.judge import Judged, line
from tests.checkpoints.play import Group, Plan

BOOKIES = 3


def play_all(
    chosen: Sequence[Case],
    directory: Path,
    seed: int,
    plan: Plan,
    together: int,
    say: Callable[[str], None],
    cluster: LocalCluster | None = None,
) -> list[Judged]:
    """The choices of a group follow from the seed and the names of its cases."""
    judged = []
    with ExitStack() as stack:
        running = cluster or stack.enter_context(bk_core.local_cluster(bookies=BOOKIES))
        client = stack.enter_context(bk_core.connect(running.uri))
        for first in range(0, len(chosen), together):
            mine = chosen[first : first + together]
            begun = time.monotonic()
            group = Group(running, client, directory, plan, random.Random(f"{seed}/{'/'.join(case.name for case in mine)}"))
            found = _played(group, mine, say)
            judged += found
            for one in found:
                say(line(one))
            say(f"    {time.monotonic() - begun:.0f} s")
    return judged


def _played(group: Group, cases: Sequence[Case], say: Callable[[str], None]) -> list[Judged]:
    try:
        for case in cases:
            group.add(case)
        group.play(say)
        return group.judge()
    except Exception as error:
        return [Judged(case=case.name, side="?", problem=f"{type(error).__name__}: {error}") for case in cases]
    finally:
        group.close()
