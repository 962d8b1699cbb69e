"""Admission: rows exact, bytes exact by entries, several logs share, least rows and delay."""

from __future__ import annotations

import random

import pytest

from bk_core.protocol.log.ledger_list import LedgerList
from bk_core.protocol.log.position import Position
from bk_core.protocol.log.segments import SegmentRange
from bk_core.protocol.log.view import LogView
from bk_spark.source.admission import Backlog, Delay, admit, share
from bk_spark.source.measuring import Measured

ROWS_PER_ENTRY = 7


class Sizes:
    """Payload sizes of entries, by ledger; counts the questions."""

    def __init__(self, sizes: dict[int, list[int]]) -> None:
        self.sizes = sizes
        self.asked = 0

    def up_to(self, ledger_id: int, entry: int) -> int | None:
        self.asked += 1
        return sum(self.sizes[ledger_id][: entry + 1])


class Silent:
    """No replica answers."""

    def up_to(self, ledger_id: int, entry: int) -> int | None:
        return None


def log_of(sizes: dict[int, list[int]], k: int = ROWS_PER_ENTRY) -> LogView:
    """One segment per ledger: entries of ``k`` rows, the last with one row less."""
    ranges = [SegmentRange(ledger, 0, len(s) - 1, k * len(s) - (k > 1), sum(s), k) for ledger, s in sizes.items()]
    return LogView(LedgerList(log_id="a").append_segments(ranges, 1, "q", 0))


def backlog(sizes: dict[int, list[int]], k: int = ROWS_PER_ENTRY) -> Backlog:
    view = log_of(sizes, k)
    return Backlog(Measured(view, Sizes(sizes)), view.first_position, view.end_position)


def uneven(seed: int, entries: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.choice((1, 10, 1000)) for _ in range(entries)]


@pytest.mark.parametrize("rows", [1, 6, 7, 8, 69, 70, 100])
def test_rows_are_exact_inside_entries(rows: int) -> None:
    b = backlog({1: [100] * 5, 2: [100] * 8, 3: [50] * 9})
    position, total, steps = b.start, b.waiting()[0], 0
    while position < b.end:
        (there,) = admit([Backlog(b.view, position, b.end)], rows, None, steps)
        taken = b.between(position, there)[0]
        assert taken == min(rows, total)
        position, total, steps = there, total - taken, steps + 1
    assert total == 0


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_exact_and_whole_entries(seed: int) -> None:
    sizes = {1: uneven(seed, 40), 2: uneven(seed + 100, 25)}
    limit = random.Random(seed).choice((5, 50, 999, 1500, 10_000))
    b = backlog(sizes)
    every = sizes[1] + sizes[2]
    position, done = b.start, 0
    while position < b.end:
        (there,) = admit([Backlog(b.view, position, b.end)], None, limit, 0)
        wanted, size = 1, every[done]
        while done + wanted < len(every) and size + every[done + wanted] <= limit:
            size += every[done + wanted]
            wanted += 1
        assert b.between(position, there)[1] == size  # as many entries as fit, and one if none does
        position, done = there, done + wanted
    assert done == len(every)


def test_bytes_are_found_with_few_questions() -> None:
    sizes = {1: [1] * 5000 + [1000] * 5000}
    b = backlog(sizes)
    asked = b.view.lengths  # type: ignore[attr-defined]
    (there,) = admit([b], None, 100_000, 0)
    assert there == Position(0, 5095)
    assert asked.asked < 200


def test_without_answers_bytes_are_shared_out_evenly() -> None:
    view = log_of({1: [100] * 10})
    (there,) = admit([Backlog(Measured(view, Silent()), view.first_position, view.end_position)], None, 450, 0)
    assert there == Position(0, 4)


def test_rows_and_bytes_hold_together() -> None:
    b = backlog({1: [100] * 10})
    assert b.between(b.start, admit([b], 10, 10_000, 0)[0])[0] == 10
    assert b.between(b.start, admit([b], 10_000, 350, 0)[0])[1] == 300
    assert admit([b], None, None, 0) == [b.end]


@pytest.mark.parametrize("turn", range(3))
def test_logs_share_a_limit_in_proportion_and_exactly(turn: int) -> None:
    logs = [backlog({1: [10] * 900}, k=1), backlog({2: [10] * 90}, k=1), backlog({3: [10] * 10}, k=1)]
    taken = [b.between(b.start, there)[0] for b, there in zip(logs, admit(logs, 100, None, turn), strict=True)]
    assert sum(taken) == 100
    assert taken[0] >= 85 and 8 <= taken[1] <= 11 and 1 <= taken[2] <= 3


def test_a_small_limit_goes_round() -> None:
    """One row per trigger for three logs: in turns, so none is starved."""
    logs = [backlog({i: [10] * 1000 ** (i == 1)}, k=1) for i in range(3)]
    first = [[b.between(b.start, there)[0] for b, there in zip(logs, admit(logs, 1, None, turn), strict=True)] for turn in range(3)]
    assert sorted(first) == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]


def test_an_entry_too_large_for_its_share_takes_what_the_others_leave() -> None:
    logs = [backlog({1: [400] * 4}, k=1), backlog({2: [10] * 10}, k=1)]
    reached = admit(logs, None, 500, 0)
    taken = [b.between(b.start, there)[1] for b, there in zip(logs, reached, strict=True)]
    assert taken[0] == 400 and sum(taken) <= 500
    assert [b.between(b.start, t)[1] for b, t in zip(logs, admit(logs, None, 5, 0), strict=True)] in ([400, 0], [0, 10])


@pytest.mark.parametrize("seed", range(50))
def test_shares_add_up(seed: int) -> None:
    rng = random.Random(seed)
    waiting = [rng.choice((0, 1, 2, rng.randrange(1000))) for _ in range(rng.randrange(1, 7))]
    total = rng.randrange(1, 1200)
    shares = share(total, waiting, seed)
    assert sum(shares) == min(total, sum(waiting))
    assert all(0 <= s <= w for s, w in zip(shares, waiting, strict=True))
    assert total < len(waiting) or all(s > 0 for s, w in zip(shares, waiting, strict=True) if w)


def test_few_rows_wait_for_more_but_not_for_ever() -> None:
    delay = Delay(100, 1000)
    assert not delay.holds(1, 0)  # the first batch of a run
    delay.went(0)
    assert delay.holds(99, 999) and not delay.holds(100, 1) and not delay.holds(1, 1000)
    assert not Delay(None, 1000, 0).holds(0, 1)


class Calls:
    """A view that counts what it is asked."""

    def __init__(self, view: Measured) -> None:
        self._view = view
        self.calls = 0

    def counts_before(self, position: Position) -> tuple[int, int]:
        self.calls += 1
        return self._view.counts_before(position)

    def position_at_rows(self, start: Position, rows: int | None, size: int | None) -> Position:
        self.calls += 1
        return self._view.position_at_rows(start, rows, size)


@pytest.mark.parametrize("logs", [50, 400])
@pytest.mark.parametrize(
    ("rows", "size"), [(1, None), (15, None), (40, None), (1000, None), (None, 300), (15, 300), (7, 10_000)], ids=lambda limit: str(limit)
)
def test_admission_asks_as_often_per_log_however_many_there_are(logs: int, rows: int | None, size: int | None) -> None:
    """``rows`` and ``size`` are what the limit comes to for one log; each has 41 rows and 500 bytes."""
    view = log_of({1: [100] * 3, 2: [50] * 4}, 6)
    views = [Calls(Measured(view, Sizes({1: [100] * 3, 2: [50] * 4}))) for _ in range(logs)]
    backlogs = [Backlog(one, view.first_position, view.end_position) for one in views]
    reached = admit(backlogs, rows and rows * logs, size and size * logs, 3)
    assert any(there > view.first_position for there in reached)
    assert sum(one.calls for one in views) <= 30 * logs
