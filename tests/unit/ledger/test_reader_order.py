"""In which order replicas are asked, and what makes a bookie go last."""

from __future__ import annotations

import pytest

from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.read.replica_order import Rank, ReadHistory, ReplicaOrder, Standing
from bk_core.protocol.wire.messages import Status

S = 1_000_000_000


def test_striped_reads_follow_the_write_set() -> None:
    """RD-2: whatever the sticky position that was drawn."""
    order = ReplicaOrder(Distribution(5, 3, 2), 4)
    assert order.sticky is None
    order.failed(0)
    assert [order.positions(e, "abcde") for e in range(5)] == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 0], [4, 0, 1]]


def test_without_a_drawn_position_reads_rotate_with_the_entry() -> None:
    """RD-2: sticky is optional."""
    assert [ReplicaOrder(Distribution(3, 3, 2)).positions(e, "abc")[0] for e in range(4)] == [0, 1, 2, 0]


def test_sticky_reads_start_at_one_position_for_all_entries() -> None:
    """RD-2: only if E = Qw."""
    order = ReplicaOrder(Distribution(3, 3, 2), 1)
    assert {tuple(order.positions(e, "abc")) for e in range(9)} == {(1, 2, 0)}


@pytest.mark.parametrize("size", range(1, 8))
def test_the_sticky_position_moves_behind_the_one_that_failed(size: int) -> None:
    """RD-2, R32: for all E and all positions; never negative, and two errors of one bookie move it once."""
    for start in range(size):
        for failed in range(size):
            order = ReplicaOrder(Distribution(size, size, 1), start)
            for _ in range(2):
                order.failed(failed)
                assert order.sticky == (failed + 1) % size
                assert sorted(order.positions(7, "abcdefgh")) == list(range(size))


def test_slow_and_failing_bookies_go_last() -> None:
    """RD-2, metadata.md 5.7: equals keep the order of the write set."""
    ranks = {
        "a": Rank(Standing.UNREGISTERED),
        "b": Rank(Standing.SLOW),
        "c": Rank(Standing.FAILED, 20),
        "d": Rank(Standing.HEALTHY),
        "e": Rank(Standing.FAILED, 10),
        "f": Rank(Standing.READ_ONLY),
        "g": Rank(Standing.HEALTHY),
    }
    order = ReplicaOrder(Distribution(7, 7, 2), None, ranks.__getitem__)
    assert ["abcdefg"[p] for p in order.positions(0, "abcdefg")] == ["d", "g", "e", "c", "f", "b", "a"]


def test_a_bookie_that_stands_twice_keeps_both_positions() -> None:
    """Scenario 60."""
    assert ReplicaOrder(Distribution(3, 3, 2), 2).positions(0, "aba") == [2, 0, 1]


def test_figures_of_reads() -> None:
    """RD-2: slow answers and timeouts, failures, and how long they count."""
    history = ReadHistory(2 * S, 60 * S)
    history.note("quick", Status.OK, S, 0)
    history.note("striped", Status.NO_ENTRY, S, 0)
    history.note("late", Status.OK, 2 * S, 0)
    history.note("silent", Status.TIMEOUT, S, 0)
    history.note("broken", Status.IO_ERROR, 0, 5)
    standings = {b: history.rank(b, 10 * S).standing for b in ("quick", "striped", "late", "silent", "broken", "unknown")}
    assert standings == {
        "quick": Standing.HEALTHY,
        "striped": Standing.HEALTHY,
        "late": Standing.SLOW,
        "silent": Standing.SLOW,
        "broken": Standing.FAILED,
        "unknown": Standing.HEALTHY,
    }
    assert history.rank("broken", 10 * S) == Rank(Standing.FAILED, 5)
    assert history.rank("late", 60 * S).standing is Standing.HEALTHY  # long ago
    assert history.rank("broken", 61 * S).standing is Standing.HEALTHY


def test_one_good_answer_clears_a_bookie() -> None:
    """RD-2."""
    history = ReadHistory(2 * S)
    history.note("a", Status.TIMEOUT, S, 0)
    history.note("a", Status.UNAVAILABLE, 0, 1)
    assert history.rank("a", 2).standing is Standing.SLOW
    history.note("a", Status.OK, 1, 2)
    assert history.rank("a", 3).standing is Standing.HEALTHY


def test_what_the_registry_says_counts_too() -> None:
    """metadata.md 5.7."""
    history = ReadHistory(2 * S)
    assert history.rank("a", 0, readonly=True).standing is Standing.READ_ONLY
    assert history.rank("a", 0, registered=False).standing is Standing.UNREGISTERED
    history.note("a", Status.TIMEOUT, 0, 0)
    assert history.rank("a", 1, readonly=True).standing is Standing.SLOW
