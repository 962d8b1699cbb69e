"""No Python runs for an entry on the hot path. What runs, runs for a run of entries, whatever their number.

Calls are counted on the reactor's thread and on the caller's (``sys.setprofile``: Python functions and C functions), and so are the objects
that the result of a read is made of (``tracemalloc``). Both with many and with few entries in the same number of runs.

A busy machine brings the same bytes in more pieces, so a total is compared with the turns of the reactor that it took.
What is made once for an entry shows by itself, as one function that was called as often as there are entries.
"""

from __future__ import annotations

import sys
import tracemalloc
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import pytest

import bk_core
from bk_core.bookie.local_cluster import LocalCluster
from bk_core.client.client import BookKeeper
from bk_core.client.ledger.read_handle import ReadHandle
from bk_core.client.operations import wait

FEW, MANY = 50, 1000  # entries in a run
RUNS = 16
ENTRY_BYTES = 100
CALLS_OF_A_TURN = 500  # of the reactor; about 350 were seen, whatever number of entries it brought


class Calls:
    """Calls of anything, counted by what was called. Two threads may lose a few: it does not matter here."""

    def __init__(self) -> None:
        self.of: Counter[CodeType | str] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            self.of[frame.f_code] += 1
        elif event == "c_call":
            self.of[argument.__qualname__] += 1

    @property
    def count(self) -> int:
        return self.of.total()

    @property
    def turns(self) -> int:
        """Turns of the reactor."""
        return self.of["epoll.poll"]

    @property
    def most(self) -> int:
        """Calls of whatever was called most."""
        return max(self.of.values())

    def __str__(self) -> str:
        return f"{self.count} calls in {self.turns} turns, {self.most} of one function"


@contextmanager
def counted(client: BookKeeper) -> Iterator[Calls]:
    """Calls on this thread and on the reactor's."""
    calls = Calls()
    _on_reactor(client, lambda: sys.setprofile(calls))
    sys.setprofile(calls)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        _on_reactor(client, lambda: sys.setprofile(None))


def _on_reactor(client: BookKeeper, function: Callable[[], Any]) -> None:
    done: Future[None] = Future()
    client._session.reactor.post(lambda: (function(), done.set_result(None))[1])  # type: ignore[func-returns-value]
    wait(done, 30, "a call on the reactor")


def write(client: BookKeeper, entries: int, quorums: tuple[int, int, int]) -> tuple[Calls, int]:
    """(calls, ledger id) of a ledger of RUNS runs, one after the other so that answers do not come in more pieces than need be."""
    ensemble_size, write_quorum_size, ack_quorum_size = quorums
    values, offsets = bytes(entries * ENTRY_BYTES), array("q", range(0, (entries + 1) * ENTRY_BYTES, ENTRY_BYTES))
    with client.create_ledger(ensemble_size=ensemble_size, write_quorum_size=write_quorum_size, ack_quorum_size=ack_quorum_size) as ledger:
        ledger.append_run(values, offsets)  # connections
        with counted(client) as calls:
            for _ in range(RUNS - 1):
                ledger.append_run(values, offsets)
        return calls, ledger.ledger_id


def read(client: BookKeeper, ledger_id: int, *, batch: bool) -> tuple[Calls, int]:
    """(calls, runs) of reading all of a ledger."""
    with client.open_ledger(ledger_id) as ledger:
        ledger._batch = batch
        ledger.read(0, 0)
        last = ledger.last_add_confirmed
        with counted(client) as calls:
            counts = [run.count for run in ledger.read_runs(0, last)]
    assert sum(counts) == last + 1
    return calls, len(counts)


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2)], ids=["whole", "striped"])
def test_calls_are_made_for_runs_and_not_for_entries(cluster: LocalCluster, quorums: tuple[int, int, int]) -> None:
    """Twenty times the entries in as many runs, and not even twice the calls. A read of single entries is runs as well."""
    with bk_core.connect(cluster.uri) as client:
        few, _ = write(client, FEW, quorums)
        many, ledger_id = write(client, MANY, quorums)
        print(f"writing {RUNS - 1} runs of {FEW} entries: {few}; of {MANY}: {many}")
        assert many.count < 2 * few.count + CALLS_OF_A_TURN * max(0, many.turns - few.turns)
        assert many.most < (RUNS - 1) * MANY / 2
        for batch in (True, False):
            calls, runs = read(client, ledger_id, batch=batch)
            print(f"reading {RUNS * MANY} entries in {runs} runs: {calls}")
            assert calls.count < 1000 * (runs + 10) + CALLS_OF_A_TURN * calls.turns and runs < RUNS * MANY / 100
            assert calls.most < RUNS * MANY / 2


def held(handle: ReadHandle) -> tuple[int, int]:
    """(live memory blocks of all runs of a ledger, runs)."""
    tracemalloc.start()
    try:
        before = tracemalloc.take_snapshot()
        runs = list(handle.read_runs(0, handle.last_add_confirmed))
        after = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    return sum(change.count_diff for change in after.compare_to(before, "filename")), len(runs)


def test_a_run_is_a_few_objects_whatever_it_holds(cluster: LocalCluster) -> None:
    """Values and offsets are one buffer each: no object for an entry."""
    with bk_core.connect(cluster.uri) as client:
        _, ledger_id = write(client, MANY, (3, 3, 2))
        with client.open_ledger(ledger_id) as handle:
            handle.read(0, 0)
            blocks, runs = held(handle)
            print(f"{runs} runs of {RUNS * MANY} entries: {blocks} blocks of memory")
            assert blocks < 1000 + 50 * runs < RUNS * MANY / 4
