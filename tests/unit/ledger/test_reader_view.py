"""The end to which a reader may read, and the effect of newer metadata on it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bk_core.errors import InvalidArgumentError
from bk_core.protocol.ledger.metadata import LedgerMetadata, LedgerState
from bk_core.protocol.ledger.view import LedgerView
from tests.unit.ledger.reader_world import LEDGER, closed, metadata

OPEN = metadata()


def in_recovery(md: LedgerMetadata) -> LedgerMetadata:
    return replace(md, state=LedgerState.IN_RECOVERY)


def view(md: LedgerMetadata = OPEN, *, hold_back: bool = True) -> LedgerView:
    return LedgerView(LEDGER, md, 1, hold_back=hold_back)


def test_a_closed_ledger_is_ready_as_it_is() -> None:
    """OP-2: LAC and length from the metadata. LC-4: what bookies say is ignored."""
    seen = view(closed(OPEN, 9))
    assert seen.is_closed and seen.last_add_confirmed == 9
    assert not seen.heard(20) and seen.last_add_confirmed == 9


def test_the_lac_is_floored_at_the_entry_before_the_last_fragment() -> None:
    """D5, scenario 43."""
    assert view().last_add_confirmed == -1
    assert view(metadata((3, 3, 2), (0, "abc"), (5, "abd"))).last_add_confirmed == 4


def test_the_lac_only_rises() -> None:
    """RD-9, LC-2: monotonic per handle."""
    seen = view()
    assert seen.heard(5) and not seen.heard(3) and not seen.heard(5)
    assert seen.last_add_confirmed == 5


def test_newer_metadata_is_adopted_and_older_is_not() -> None:
    """OP-6, META-11."""
    seen = view()
    seen.heard(7)
    longer = metadata((3, 3, 2), (0, "abc"), (9, "abd"))
    assert seen.adopt(longer, 3) == []
    assert seen.last_add_confirmed == 8
    for version in (2, 3):
        assert seen.adopt(closed(OPEN, 0), version) == []
        assert seen.metadata == longer


def test_a_close_below_the_lac_lowers_it_with_an_alarm() -> None:
    """OP-6: with D6 it cannot happen, and if it does somebody must hear of it."""
    seen = view()
    seen.heard(7)
    (alarm,) = seen.adopt(closed(OPEN, 5), 2)
    assert alarm.level == "error" and "entry 5" in alarm.message and "entry 7" in alarm.message
    assert seen.last_add_confirmed == 5
    quiet = view()
    quiet.heard(7)
    assert quiet.adopt(closed(OPEN, 7), 2) == []


def test_during_a_recovery_nothing_new_is_believed() -> None:
    """Open question 2: a recoverer's own moving LAC may end up above the end of the ledger (D6)."""
    seen = view()
    seen.heard(3)
    seen.adopt(in_recovery(OPEN), 2)
    assert seen.held_back and not seen.heard(9)
    assert seen.last_add_confirmed == 3
    assert seen.adopt(closed(OPEN, 8), 3) == [] and seen.last_add_confirmed == 8
    late = view(in_recovery(metadata((3, 3, 2), (0, "abc"), (5, "abd"))))
    assert not late.heard(9) and late.last_add_confirmed == 4  # opened in the middle of it: what lies before the last fragment
    trusting = view(in_recovery(OPEN), hold_back=False)
    assert trusting.heard(9)


@pytest.mark.parametrize(("first", "last"), [(-1, 0), (3, 2), (0, 6), (6, 6)])
def test_the_bound_is_checked_before_anything_is_sent(first: int, last: int) -> None:
    """RD-1, for CLOSED and for open ledgers."""
    seen = view()
    seen.heard(5)
    for bounded in (seen, view(closed(OPEN, 5))):
        bounded.check_bound(0, 5)
        bounded.check_bound(5, 5)
        with pytest.raises(InvalidArgumentError):
            bounded.check_bound(first, last)


def test_unconfirmed_reads_are_bounded_by_the_end_alone() -> None:
    """RD-1, RD-11."""
    view().check_range(0, 99)
    with pytest.raises(InvalidArgumentError):
        view().check_range(2, 1)
    with pytest.raises(InvalidArgumentError, match="last entry 5"):
        view(closed(OPEN, 5)).check_range(0, 6)
