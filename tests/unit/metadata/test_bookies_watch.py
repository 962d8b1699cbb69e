"""The watch of the bookies in stores that keep nodes: how often it looks, and that nothing which happens is left untold."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from bk_core.metadata import open_store
from bk_core.metadata.lazy import LazyStore
from bk_core.metadata.store import BookieView
from bk_core.metadata.tree.watches import BookiesWatch, Keeper

PATIENCE_S = 30.0
ALL = BookieView(tuple(f"b{number}:1" for number in range(1000)), ())


class Registry:
    """The lists of a cluster. The next look at them waits for ``go`` if there is one; ``looks`` counts them."""

    def __init__(self, view: BookieView) -> None:
        self.view = view
        self.looks = 0
        self.begun = threading.Semaphore(0)
        self.go: threading.Event | None = None

    def probe(self, _arm: Callable[[Any], None] | None) -> BookieView:
        self.looks += 1
        view, go = self.view, self.go
        self.go = None
        self.begun.release()
        assert go is None or go.wait(PATIENCE_S)
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
    registry.go = go = threading.Event()
    watch.registration_changed("b0:1")
    assert registry.begun.acquire(timeout=PATIENCE_S)  # and this look hangs, while all others end
    for bookie in ALL.writable:
        watch.registration_changed(bookie)
    go.set()
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


def test_a_change_and_back_around_a_refresh_is_told(keeper: Keeper) -> None:
    """A view that a refresh brought is what the next look compares with: what it missed is told, and what it brought is not told twice."""
    registry, told = Registry(ALL), SimpleQueue[BookieView]()
    watch = watched(keeper, registry, told.put)
    registry.view = BookieView(ALL.writable[1:], ())
    watch.refresh()
    watch.refresh()
    registry.view = ALL
    watch.look()
    watch.look()
    views = [told.get(timeout=PATIENCE_S) for _ in range(3)]
    assert views == [ALL, BookieView(ALL.writable[1:], ()), ALL] and told.empty()
    watch.cancel()
    registry.view = BookieView((), ())
    watch.refresh()
    assert told.empty()


def test_the_view_of_a_slow_look_comes_before_a_newer_one(keeper: Keeper) -> None:
    registry, told = Registry(ALL), SimpleQueue[BookieView]()
    watch = watched(keeper, registry, told.put)
    registry.view, last = BookieView(("old:1",), ()), BookieView(("new:1",), ())
    registry.go = go = threading.Event()
    watch.registration_changed("b0:1")
    assert registry.begun.acquire(timeout=PATIENCE_S)
    registry.view = last
    refreshing = threading.Thread(target=watch.refresh)
    refreshing.start()
    refreshing.join(0.2)  # it waits for the look that is under way
    go.set()
    refreshing.join(PATIENCE_S)
    views = [told.get(timeout=PATIENCE_S) for _ in range(3)]
    assert views == [ALL, BookieView(("old:1",), ()), last]


def test_a_change_that_an_interrupt_kept_from_being_told_is_told(keeper: Keeper) -> None:
    """Ctrl-C strikes in ``create_ledger``, which looks on the thread of the user. Nothing else may lead to another look."""
    registry, told = Registry(ALL), SimpleQueue[BookieView]()
    interrupts: list[BaseException] = []

    def tell(view: BookieView) -> None:
        if interrupts:
            raise interrupts.pop()
        told.put(view)

    watch = watched(keeper, registry, tell)
    assert told.get(timeout=PATIENCE_S) == ALL
    registry.view = BookieView(("new:1",), ())
    interrupts.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        watch.refresh()
    assert told.get(timeout=PATIENCE_S) == registry.view


def test_a_change_that_an_interrupt_kept_from_being_told_is_told_by_the_next_look_in_memory() -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    store.initialize_cluster()
    told: list[BookieView] = []
    interrupts: list[BaseException] = []

    def tell(view: BookieView) -> None:
        if interrupts:
            raise interrupts.pop()
        told.append(view)

    watch = store.watch_bookies(tell)
    interrupts.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.register_bookie("a:1", "a", 1)
    watch.refresh()
    assert told == [BookieView((), ()), BookieView(("a:1",), ())]
    store.close()


@pytest.mark.parametrize("lazy", [False, True], ids=["memory", "lazy"])
def test_a_refresh_of_other_stores_is_a_look_of_the_watch(lazy: bool) -> None:
    name = f"memory://{uuid.uuid4().hex}"
    real = open_store(name)
    real.initialize_cluster()
    store = LazyStore(lambda: open_store(name), real.cluster_id(), name) if lazy else real
    told: list[BookieView] = []
    watch = store.watch_bookies(told.append)
    watch.refresh()
    assert told == [BookieView((), ())]
    registered = real.register_bookie("a:1", "a", 1)
    watch.refresh()
    assert told == [BookieView((), ()), BookieView(("a:1",), ())]
    watch.cancel()
    registered.close()
    watch.refresh()
    assert len(told) == 2
    store.close()
    real.close()
