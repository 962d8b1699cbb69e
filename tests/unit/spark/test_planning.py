"""Planning: every entry in exactly one task, in order, bounded."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from bk_core.protocol.log.ledger_list import LedgerList, SegmentRange
from bk_core.protocol.log.position import Position
from bk_spark.planning import EntryRange, committed_ranges, plan


def entries_of(tasks: list[tuple[EntryRange, ...]]) -> list[tuple[int, int]]:
    return [(r.ledger_id, e) for task in tasks for r in task for e in range(r.first, r.last + 1)]


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 1000)), max_size=6), st.integers(1, 3000), st.integers(1, 6))
def test_every_entry_once_and_in_order(sizes: list[tuple[int, int]], bytes_max: int, tasks_min: int) -> None:
    ranges = [EntryRange(i, 3, 2 + n, n * each) for i, (n, each) in enumerate(sizes)]
    tasks = plan(ranges, bytes_max, tasks_min, lambda _: [0, 7, 11])
    assert entries_of(tasks) == [(r.ledger_id, e) for r in ranges for e in range(r.first, r.last + 1)]
    assert sum(r.bytes for task in tasks for r in task) == sum(r.bytes for r in ranges)
    assert all(len(task) == 1 or sum(r.bytes for r in task) <= bytes_max for task in tasks)


def test_large_ranges_are_cut_at_fragments_and_small_ones_packed() -> None:
    tasks = plan([EntryRange(1, 0, 99, 1000)], 600, 1, lambda _: [0, 30])
    assert [[(r.first, r.last) for r in task] for task in tasks] == [[(0, 29)], [(30, 64)], [(65, 99)]] or len(tasks) == 3
    small = [EntryRange(i, 0, 0, 10) for i in range(20)]
    assert len(plan(small, 100, 1, lambda _: [0])) == 2


def test_neighbours_of_one_ledger_join_and_nothing_is_nothing() -> None:
    assert plan([EntryRange(1, 0, 4, 5), EntryRange(1, 5, 9, 5)], 100, 1, lambda _: [0]) == [(EntryRange(1, 0, 9, 10),)]
    assert plan([], 100, 4, lambda _: [0]) == []


def test_committed_ranges_between_positions() -> None:
    listed = LedgerList(log_id="a")
    for batch, ledger in enumerate((4, 5, 6)):
        listed = listed.append_segments([SegmentRange(ledger, 10, 19, 100, 1000)], 1, "q", batch)
    listed = listed.add_live_segment(7, 1)
    found = committed_ranges(listed, Position(0, 15), Position(2, 12))
    assert [(r.ledger_id, r.first, r.last, r.bytes) for r in found] == [(4, 15, 19, 500), (5, 10, 19, 1000), (6, 10, 11, 200)]
    assert committed_ranges(listed, Position(1, 10), Position(1, 10)) == []
    assert pickle.loads(pickle.dumps(found)) == found
