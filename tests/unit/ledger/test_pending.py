"""The counting of acknowledgements against a naive model that keeps one set per entry."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bk_core.protocol.ledger.distribution import Distribution, QuorumCoverage, in_at_least
from bk_core.protocol.ledger.run import PackedAdds
from bk_core.protocol.ledger.write.pending import AckSet, PendingAdds, PendingWindow, trailing_ones

SHAPES = [(e, w, a) for e in range(1, 6) for w in range(1, e + 1) for a in range(1, w + 1)]
entry_sets = st.integers(0, 2**12 - 1)


def members(entries: int) -> list[int]:
    return [i for i in range(entries.bit_length()) if entries >> i & 1]


def pending(first: int, count: int, shape: tuple[int, int, int] = (3, 3, 2), token: str = "t") -> PendingAdds:
    run = PackedAdds(7, first, count, b"", memoryview(array("q", [0])))
    bounds = memoryview(array("q", [10 * i for i in range(count + 1)]))
    return PendingAdds(run, AckSet(Distribution(*shape).write_sets(first, count)), bounds, token, 0)


def window(*runs: PendingAdds) -> PendingWindow:
    made = PendingWindow()
    for run in runs:
        made.add(run)
    return made


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("first", [0, 1, 4, 2**31 - 1, 2**63 - 20])
def test_the_write_sets_of_a_run_are_those_of_its_entries(shape: tuple[int, int, int], first: int) -> None:
    """Q-1, SM-5, WR-5."""
    distribution = Distribution(*shape)
    for count in (1, 2, 5, 13):
        sets = distribution.write_sets(first, count)
        assert members(sets.entries) == list(range(count))
        for position in range(shape[0]):
            assert members(sets.held[position]) == [i for i in range(count) if distribution.holds(position, first + i)]


@given(st.lists(entry_sets, min_size=1, max_size=6), st.integers(1, 6))
def test_in_at_least_counts(sets: list[int], needed: int) -> None:
    """WR-7: a threshold over sets is the sets counted entry by entry."""
    assert members(in_at_least(needed, sets)) == [i for i in range(12) if sum(s >> i & 1 for s in sets) >= needed]


@given(entry_sets)
def test_trailing_ones(entries: int) -> None:
    """WR-8: the prefix ends at the first gap."""
    expected = next(i for i in range(14) if not entries >> i & 1)
    assert trailing_ones(entries) == expected


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_coverage_grows_until_it_is_there(shape: tuple[int, int, int]) -> None:
    """Q-4: position by position the same as all at once; all heard is always enough, hearing twice is hearing once."""
    distribution = Distribution(*shape)
    coverage = QuorumCoverage(distribution)
    heard: list[int] = []
    for position in range(shape[0]):
        assert coverage.covered is distribution.covered(heard)
        coverage.hear(position)
        coverage.hear(position)
        heard.append(position)
    assert coverage.covered


@given(
    st.sampled_from(SHAPES), st.integers(0, 9), st.lists(st.tuples(st.integers(0, 4), entry_sets), max_size=12), st.sets(st.integers(0, 4))
)
def test_an_ack_set_counts_like_one_set_per_entry(
    shape: tuple[int, int, int], first: int, answers: list[tuple[int, int]], excluded: set[int]
) -> None:
    """WR-7, G-1, G-6: who has an entry is a set of positions, minus the excluded ones."""
    distribution = Distribution(*shape)
    size, _, quorum = shape
    acks = AckSet(distribution.write_sets(first, 12))
    naive: list[set[int]] = [set() for _ in range(12)]
    for position, entries in answers:
        if position < size:
            acks.acknowledge(position, entries)
            for i in members(entries):
                naive[i] |= {position} & set(distribution.write_set(first + i))
    counted = [i for i, who in enumerate(naive) if len(who - excluded) >= quorum]
    assert members(acks.in_quorum(quorum, excluded)) == counted
    everywhere = [i for i, who in enumerate(naive) if set(distribution.write_set(first + i)) <= who - excluded]
    assert members(acks.everywhere(excluded)) == everywhere
    assert acks.settled is all(set(distribution.write_set(first + i)) <= who for i, who in enumerate(naive))


def test_what_happened_to_a_position() -> None:
    """EC-11, EC-12, WR-10: sent, failed, given up, taken over by another bookie."""
    acks = AckSet(Distribution(3, 3, 2).write_sets(0, 4))
    acks.outstanding[1] = 0b1111
    acks.acknowledge(1, 0b0011)
    assert (acks.missing(1), acks.unsent(1)) == (0b1100, 0)
    acks.fail(1, 0b1000)
    assert (acks.unsent(1), acks.failed[1], acks.outstanding[1]) == (0b1000, 0b1000, 0b0100)
    acks.give_up(1, 0b1000)
    assert (acks.missing(1), acks.failed[1]) == (0b0100, 0)
    acks.move(1, 0b1110)  # the entry below stays with the old fragment
    assert (acks.acked[1], acks.missing(1), acks.outstanding[1]) == (0b0001, 0b1110, 0)
    acks.fail(1, 0b0010)
    acks.acknowledge(1, 0b0010)
    assert acks.failed[1] == 0  # a later OK takes a failure back (EC-3)
    acks.forget(0b1100)
    assert acks.missing(1) == 0


def test_a_run_knows_its_part_of_a_range() -> None:
    """WR-1: ids and bytes of a part of a run."""
    run = pending(10, 4)
    assert [run.between(0, 99), run.between(11, 12), run.between(12, 99), run.between(0, 9), run.between(14, 20)] == [15, 6, 12, 0, 0]
    assert run.after(12) == 0b1000
    assert [run.bytes_after(e) for e in (-1, 9, 10, 13, 99)] == [40, 40, 30, 0, 0]


def test_the_window_finds_and_drops_runs() -> None:
    """WR-9, WR-15: kept by id, dropped from the front, bytes and entries counted."""
    runs = [pending(0, 2), pending(2, 3), pending(5, 1)]
    made = window(*runs)
    assert (len(made), made.entries, made.payload_bytes) == (3, 6, 60)
    assert made.overlapping(1, 3) == [(runs[0], 2), (runs[1], 3)]
    assert made.overlapping(6, 5) == []
    assert list(made.after(4)) == [runs[2]]
    assert list(made.after(-1)) == runs
    for position in range(3):
        made.acknowledge(position, 0, 5, None, 1)
    assert made.drop_settled(1) == [runs[0]]
    assert made.drop_settled(3) == ()
    assert made.drop_settled(9) == [runs[1]]  # the third one still waits
    assert (len(made), made.entries, made.payload_bytes) == (1, 1, 10)
    made.clear()
    assert (len(made), made.entries, made.payload_bytes) == (0, 0, 0)


def test_an_answer_about_a_set_of_entries() -> None:
    """Striped, a bookie has some entries of every run: the set counts from the first entry of the answer, in each run from its own."""
    runs = [pending(0, 4), pending(4, 3), pending(7, 2)]
    made = window(*runs)
    made.acknowledge(0, 2, 6, 0b101011, 5)  # 2, 3, 5, 7; of the first run the upper half
    assert [run.acks.acked[0] & run.acks.write_set.entries for run in runs] == [
        0b1100 & runs[0].acks.write_set.held[0],
        0b010 & runs[1].acks.write_set.held[0],
        0b01 & runs[2].acks.write_set.held[0],
    ]
    assert [run.sent_ns[0] for run in runs] == [5, 5, 5]
    assert [runs[1].shifted(0b101011, 2), runs[0].shifted(0b1, 2), runs[1].shifted(0b11, 4)] == [0b1010, 0b100, 0b11]


def test_a_prefix_ends_at_a_gap_of_any_kind() -> None:
    """WR-2, WR-8: an entry that is not good, and ids that nobody has submitted."""
    made = window(pending(0, 2), pending(2, 3), pending(6, 1))
    assert made.prefix(-1, lambda run, _: run.acks.write_set.entries, ()) == 4
    assert made.prefix(-1, lambda run, _: 0b01 if run.first == 2 else run.acks.write_set.entries, ()) == 2
    assert made.prefix(0, lambda run, _: run.acks.write_set.entries, ()) == 4
    assert made.prefix(4, lambda run, _: 0, ()) == 4
    assert made.prefix(6, lambda run, _: 0, ()) == 6


def test_runs_may_come_in_any_order() -> None:
    """WR-2."""
    late, early = pending(5, 1), pending(2, 2)
    made = window(late, early)
    assert list(made) == [early, late]
    assert made.overlapping(3, 3) == [(early, 2), (late, 1)]


def test_a_cut_forgets_what_lies_above() -> None:
    """G-11: whole runs go, a run in the middle keeps its first entries and waits for no others."""
    made = window(pending(0, 2), pending(2, 3), pending(5, 1))
    touched = made.cut(2)
    assert [run.first for run in touched] == [2, 5]
    assert [run.first for run in made] == [0, 2]
    assert [run.acks.missing(0) for run in made] == [3, 1]
    assert (made.entries, made.payload_bytes) == (5, 50)
