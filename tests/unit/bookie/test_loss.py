"""The entries that a bookie should hold, and the time at which it may leave limbo or delete (RC-26, RC-27, B-12)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bk_core.protocol.bookie import decided_entries, may_leave_limbo
from bk_core.protocol.ledger.distribution import Distribution
from bk_core.protocol.ledger.metadata import Fragment, LedgerMetadata, LedgerState

OPEN = LedgerMetadata(3, 2, 2, LedgerState.OPEN, (Fragment(0, ("a", "b", "c")), Fragment(4, ("a", "b", "d")), Fragment(8, ("e", "b", "d"))))


def test_rc27_decided_entries() -> None:
    """RC-27: of a closed ledger all up to the last entry, else those below the last fragment; in the bookie's write sets only."""
    assert list(decided_entries(OPEN, "a")) == [(0, ("b",)), (2, ("c",)), (3, ("b",)), (5, ("d",)), (6, ("b",))]
    assert list(decided_entries(OPEN.in_recovery(), "e")) == []
    assert [entry_id for entry_id, _ in decided_entries(OPEN.closed(9, 9), "e")] == [8, 9]
    assert [entry_id for entry_id, _ in decided_entries(OPEN.closed(5, 9), "d")] == [4, 5]
    assert list(decided_entries(OPEN.closed(-1, 0), "a")) == []
    assert list(decided_entries(OPEN, "x")) == []


def test_rc27_leaving_limbo() -> None:
    """RC-27: not before the ledger was closed, or deleted."""
    assert may_leave_limbo(None) and may_leave_limbo(OPEN.closed(3, 3))
    assert not may_leave_limbo(OPEN) and not may_leave_limbo(OPEN.in_recovery())


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 4))
    quorum = draw(st.integers(1, size))
    starts = sorted({0, *draw(st.lists(st.integers(1, 12), max_size=3))})
    fragments = tuple(Fragment(first, tuple(draw(st.permutations("abcdef"))[:size])) for first in starts)
    ledger = LedgerMetadata(size, quorum, quorum, LedgerState.OPEN, fragments)
    return ledger.closed(draw(st.integers(-1, 15)), 0) if draw(st.booleans()) else ledger


@given(ledgers(), st.sampled_from("abcdef"))
def test_rc27_decided_entries_by_definition(ledger: LedgerMetadata, bookie: str) -> None:
    """RC-27, against a direct reading of META-5 and Q-1."""
    end = ledger.last_entry_id + 1 if ledger.state is LedgerState.CLOSED else ledger.last_fragment.first_entry_id
    stripes = Distribution(ledger.ensemble_size, ledger.write_quorum_size, ledger.ack_quorum_size)
    expected = []
    for entry_id in range(end):
        ensemble = ledger.fragment_of(entry_id).ensemble
        holders = [ensemble[position] for position in stripes.write_set(entry_id)]
        if bookie in holders:
            expected.append((entry_id, tuple(holder for holder in holders if holder != bookie)))
    assert list(decided_entries(ledger, bookie)) == expected
