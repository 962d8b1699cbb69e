"""Planning: every row in exactly one task, in order, bounded."""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.protocol.log.ledger_list import LedgerList, SegmentRange
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.view import LogView
from bk_spark.entries.ranges import EntryRange
from bk_spark.source.bounds import Bounds, Interval
from bk_spark.source.planning import bounded, committed_ranges, plan


def rows_of(ranges: Sequence[EntryRange]) -> list[tuple[int, int, int]]:
    """(ledger, entry, row of the entry) of everything that is read."""
    found = []
    for r in ranges:
        assert r.rows is not None and r.rows_per_entry > 0
        before = len(found)
        for entry in range(r.first, r.last + 1):
            start = r.skip_rows if entry == r.first else 0
            end = r.last_rows if entry == r.last and r.last_rows is not None else r.rows_per_entry
            if entry == r.last and r.last_rows is None:  # the rest: an entry at the end of a segment may hold fewer
                end = start + r.rows - (len(found) - before)
            found += [(r.ledger_id, entry, row) for row in range(start, end)]
        assert len(found) - before == r.rows
    return found


def known(ledger: int, first: int, rows: int, per_entry: int, size: int) -> EntryRange:
    entries = -(-rows // per_entry)
    return EntryRange(ledger, first, first + entries - 1, size, rows=rows, rows_per_entry=per_entry, offset=1000 * ledger)


RANGES = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9), st.integers(0, 1000)), max_size=6)


@given(RANGES, st.integers(1, 3000), st.integers(1, 9), st.one_of(st.none(), st.integers(1, 30)))
def test_every_row_once_and_in_order(sizes: list[tuple[int, int, int]], bytes_max: int, tasks_min: int, rows_max: int | None) -> None:
    ranges = [known(i, 3, rows, per_entry, size) for i, (rows, per_entry, size) in enumerate(sizes)]
    tasks = plan(ranges, bytes_max, tasks_min, lambda _: [0, 7, 11], rows_max)
    pieces = [r for task in tasks for r in task]
    assert rows_of(pieces) == rows_of(ranges) and sum(r.bytes for r in pieces) == sum(r.bytes for r in ranges)
    assert all(len(task) == 1 or sum(r.bytes for r in task) <= bytes_max for task in tasks)
    assert len(tasks) >= min(tasks_min, sum(r.rows or 0 for r in ranges))
    if rows_max is not None:
        assert all(sum(r.rows or 0 for r in task) <= rows_max for task in tasks)
    for r in pieces:
        at = rows_of([known(i, 3, *sizes[i]) for i in (r.ledger_id,)]).index(rows_of([r])[0])
        assert r.offset == 1000 * r.ledger_id + at


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 1000)), max_size=6), st.integers(1, 3000), st.integers(1, 6))
def test_where_rows_are_not_known_entries_are_cut(sizes: list[tuple[int, int]], bytes_max: int, tasks_min: int) -> None:
    ranges = [EntryRange(i, 3, 2 + n, n * each) for i, (n, each) in enumerate(sizes)]
    tasks = plan(ranges, bytes_max, tasks_min, lambda _: [0, 7, 11], 3)
    entries = [(r.ledger_id, e) for task in tasks for r in task for e in range(r.first, r.last + 1)]
    assert entries == [(r.ledger_id, e) for r in ranges for e in range(r.first, r.last + 1)]
    assert len(tasks) >= min(tasks_min, len(entries))


def test_large_ranges_are_cut_at_fragments_and_small_ones_packed() -> None:
    tasks = plan([EntryRange(1, 0, 99, 1000)], 600, 1, lambda _: [0, 30])
    assert [[(r.first, r.last) for r in task] for task in tasks] == [[(0, 29)], [(30, 64)], [(65, 99)]]
    small = [EntryRange(i, 0, 0, 10) for i in range(20)]
    assert len(plan(small, 100, 1, lambda _: [0])) == 2


def test_a_least_number_of_tasks_makes_them_even() -> None:
    tasks = plan([EntryRange(1, 0, 59, 600), EntryRange(2, 0, 39, 400)], 10_000, 2, lambda _: [0])
    assert [[(r.ledger_id, r.first, r.last) for r in task] for task in tasks] == [[(1, 0, 49)], [(1, 50, 59), (2, 0, 39)]]
    nearly = plan([EntryRange(1, 0, 50, 510), EntryRange(2, 0, 48, 490)], 10_000, 2, lambda _: pytest.fail("not asked"))
    assert [[r.ledger_id for r in task] for task in nearly] == [[1], [2]]
    many = plan([EntryRange(i, 0, i, 10 * (i + 1)) for i in range(50)], 10_000, 7, lambda _: [0])
    assert len(many) == 7 and {sum(r.bytes for r in task) * 7 // 12_750 for task in many} <= {0, 1}
    assert all(abs(sum(r.bytes for r in task) - 12_750 / 7) < 250 for task in many)
    cut_by_fragments = plan([EntryRange(1, 0, 99, 1000)], 10_000, 2, lambda _: [0, 30])
    assert [[(r.first, r.last) for r in task] for task in cut_by_fragments] == [[(0, 29)], [(30, 64)], [(65, 99)]]


def test_micro_batches_of_one_ledger_are_cut_at_its_fragments_too() -> None:
    batches = [EntryRange(1, i * 10, i * 10 + 9, 100, seq=i) for i in range(10)]
    asked: list[int] = []
    tasks = plan(batches, 400, 1, lambda ledger: asked.append(ledger) or [0, 35])  # type: ignore[func-returns-value]
    assert asked == [1] and [(task[0].first, task[-1].last) for task in tasks] == [(0, 34), (35, 69), (70, 99)]
    assert plan(batches, 1000, 1, lambda _: pytest.fail("not asked")) == [tuple(batches)]


def test_nothing_is_nothing_and_more_tasks_than_entries_share_them() -> None:
    assert plan([], 100, 4, lambda _: [0]) == []
    (one, two, three) = plan([known(1, 5, 10, 10, 100)], 1000, 3, lambda _: [0])
    assert [(r.first, r.last, r.skip_rows, r.last_rows, r.rows, r.offset) for (r,) in (one, two, three)] == [
        (5, 5, 0, 2, 2, 1000),
        (5, 5, 2, 5, 3, 1002),
        (5, 5, 5, None, 5, 1005),
    ]


def grown(*segments: tuple[int, int, int]) -> LogView:
    """Segments of (ledger, rows, rows per entry) from entry 10 on, 100 bytes a row, committed at 1000, 2000, ... ms."""
    listed = LedgerList(log_id="a")
    for batch, (ledger, rows, per_entry) in enumerate(segments):
        last = 9 + -(-rows // per_entry)
        listed = listed.append_segments([SegmentRange(ledger, 10, last, rows, 100 * rows, per_entry)], 1000 * (batch + 1), "q", batch)
    return LogView(listed.add_live_segment(99, 1))


def test_committed_ranges_between_positions() -> None:
    view = grown((4, 95, 10), (5, 10, 1), (6, 100, 10))
    found = committed_ranges(view, Position(0, 15, 3), Position(2, 12, 4), "flights")
    assert [(r.ledger_id, r.first, r.last, r.skip_rows, r.last_rows, r.rows, r.bytes, r.offset) for r in found] == [
        (4, 15, 19, 3, None, 42, 4200, 53),
        (5, 10, 19, 0, None, 10, 1000, 95),
        (6, 10, 12, 0, 4, 24, 2400, 105),
    ]
    assert [(r.log, r.seq, r.committed_at_ms) for r in found] == [("flights", 0, 1000), ("flights", 1, 2000), ("flights", 2, 3000)]
    assert committed_ranges(view, Position(1, 10), Position(1, 10)) == []
    assert committed_ranges(view, Position(0, 15, 3), Position(0, 15, 4))[0].rows == 1
    assert pickle.loads(pickle.dumps(found)) == found


def test_bounds_spare_ranges() -> None:
    view = grown((4, 95, 10), (5, 10, 1), (6, 100, 10))

    def read(**intervals: Interval) -> list[tuple[int, int, int, int | None]]:
        found = committed_ranges(view, view.first_position, view.end_position, "flights", Bounds(intervals))
        return [(r.ledger_id, r.first, r.last, r.offset) for r in found]

    assert read(ledgerId=Interval(5, 5)) == [(5, 10, 19, 95)]
    assert read(entryId=Interval(18, 18)) == [(4, 18, 18, 80), (5, 18, 18, 103), (6, 18, 18, 185)]
    assert read(timestamp=Interval(1500, 2500)) == [(5, 10, 19, 95)]
    assert read(offset=Interval(94, 95)) == [(4, 19, 19, 94), (5, 10, 10, 95)]
    assert read(offset=Interval(among=frozenset((7, 104)))) == [(4, 10, 19, 7), (5, 10, 19, 95)]
    assert read(offset=Interval(500)) == read(timestamp=Interval(9000)) == read(offset=Interval(3, 2)) == []
    assert committed_ranges(view, view.first_position, view.end_position, "flights", Bounds(logs=frozenset(("ships",)))) == []
    assert bounded(known(1, 0, 20, 10, 100), Bounds({"entryId": Interval(among=frozenset((5, 9)))})) == []
