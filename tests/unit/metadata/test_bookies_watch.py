"""The watch of the bookies in stores that keep nodes: how often it looks, and that nothing which happens is left untold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from bk_core.metadata.store import BookieView
from bk_core.metadata.tree.watches import BookiesWatch, Keeper

PATIENCE_S = 30.0
ALL = BookieView(tuple(f"b{number}:1" for number in range(1000)), ())


class Registry:
    """The lists of a cluster. A look at them can be held; ``looks`` counts them."""

    def __init__(self, view: BookieView) -> None:
        self.view = view
        self.looks = 0
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.go.set()

    def probe(self, _arm: Callable[[Any], None] | None) -> BookieView:
        self.looks += 1
        view = self.view
        self.begun.release()
        assert self.go.wait(PATIENCE_S)
        return view


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    made = Keeper()
    yield made
    made.close()
    made.join()


def watched(keeper: Keeper, registry: Registry, callback: Callable[[BookieView], None]) -> BookiesWatch:
    """A watch that has looked, and that the keeper has looked at once more."""
    watch = BookiesWatch(keeper, registry.probe, callback)
    keeper.add(watch)
    watch.start()
    for _ in range(2):
        assert registry.begun.acquire(timeout=PATIENCE_S)
    return watch


def test_registrations_that_end_at_once_are_looked_at_together(keeper: Keeper) -> None:
    registry, told = Registry(ALL), SimpleQueue[BookieView]()
    watch = watched(keeper, registry, told.put)
    assert told.get(timeout=PATIENCE_S) == ALL
    registry.go.clear()
    watch.registration_changed("b0:1")
    assert registry.begun.acquire(timeout=PATIENCE_S)  # and this look hangs, while all others end
    for bookie in ALL.writable:
        watch.registration_changed(bookie)
    registry.go.set()
    anew = [told.get(timeout=PATIENCE_S).anew, told.get(timeout=PATIENCE_S).anew]
    assert anew == [{"b0:1"}, set(ALL.writable)]  # those that ended during a look are told after the next one
    assert registry.looks == 4


def test_a_change_behind_each_look_is_told(keeper: Keeper) -> None:
    registry, told = Registry(ALL), SimpleQueue[BookieView]()
    watch = watched(keeper, registry, told.put)
    assert told.get(timeout=PATIENCE_S) == ALL
    for number in range(2000):
        watch.registration_changed(f"b{number % 1000}:1")
        assert f"b{number % 1000}:1" in told.get(timeout=PATIENCE_S).anew
    assert registry.looks <= 2002
