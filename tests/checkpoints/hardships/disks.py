"""Bookies whose disks get full in the middle of a batch: one of three, then two, until there is room again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.checkpoints.hardships.ground import BOOKIES, STATES, Ground, Outcome, Query, ground, play_all, until
from tests.integration.small_disk import fill_with, small_disk

DISK_MIB = 320  # Apache's bookies keep some entry logs
PATIENCE_S = 15.0
NOTICE_S = 90.0
GOES_ON_S = 45.0


@contextmanager
def small(directory: Path) -> Iterator[Path]:
    with small_disk(directory, DISK_MIB) as disk:
        yield disk


def full(ground: Ground, count: int, query: Query) -> str:
    """Fill the disks under a batch; open the checkpoint and go on where that ended the query; make room."""
    fillings = [disk / "others" for disk in ground.disks[:count]]
    for filling in fillings:
        fill_with(filling)
    until(lambda: len(ground.client.bookies().writable) <= BOOKIES - count, NOTICE_S, "bookies do not notice that their disks are full")
    what = query.under_hardship(GOES_ON_S) + query.opened_anew()
    for filling in fillings:
        filling.unlink()
    until(lambda: len(ground.client.bookies().writable) == BOOKIES, NOTICE_S, "bookies do not come back")
    return what


def measure(work: Path, apache: str | None, only: str, say: Callable[[object], None]) -> list[Outcome]:
    """One disk, then two, with each state store."""
    with ground(work, apache, small) as here:
        plays = [
            (f"{count} of {BOOKIES} disks full", state, PATIENCE_S, partial(full, here, count)) for state in STATES for count in (1, 2)
        ]
        return play_all(here, plays, only, say)
